//go:build !trestle_unprotected

package record

import (
	"crypto/cipher"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/trestle-npamp/trestle/asm/aesgcm"
	"github.com/trestle-npamp/trestle/profiles"
)

// Unprotected tells that this build seals nothing. It is true only under the
// build tag trestle_unprotected, with which bench shows what everything but the
// AEAD costs; nothing in a running program can make it so.
const Unprotected = false

// newAEAD expands a key for a suite. Whatever implements cipher.AEAD without
// allocating and wipes dst when it fails to open can stand here.
func newAEAD(suite profiles.Suite, key []byte) (cipher.AEAD, error) {
	switch suite {
	case profiles.AES256GCM:
		return aesgcm.New(key)
	case profiles.ChaCha20Poly1305:
		return chacha20poly1305.New(key)
	}
	return nil, ErrSuite
}
