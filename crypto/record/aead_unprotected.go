//go:build trestle_unprotected

package record

import (
	"crypto/cipher"
	"errors"

	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
)

// Unprotected tells that this build seals nothing.
const Unprotected = true

func newAEAD(suite profiles.Suite, _ []byte) (cipher.AEAD, error) {
	switch suite {
	case profiles.AES256GCM, profiles.ChaCha20Poly1305:
		return unprotected{}, nil
	}
	return nil, ErrSuite
}

// unprotected has the shape of an AEAD and leaves everything readable and
// changeable. Its tag is what lies where the tag goes.
type unprotected struct{}

var errShort = errors.New("record: shorter than a tag")

func (unprotected) NonceSize() int { return 12 }
func (unprotected) Overhead() int  { return wire.TagLen }

func (unprotected) Seal(dst, _, plaintext, _ []byte) []byte {
	return append(append(dst, plaintext...), make([]byte, wire.TagLen)...)
}

func (unprotected) Open(dst, _, ciphertext, _ []byte) ([]byte, error) {
	if len(ciphertext) < wire.TagLen {
		return nil, errShort
	}
	return append(dst, ciphertext[:len(ciphertext)-wire.TagLen]...), nil
}
