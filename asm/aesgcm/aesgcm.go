package aesgcm

import (
	"crypto/aes"
	"crypto/cipher"
	"errors"

	"github.com/trestle-npamp/trestle/internal/wipe"
)

const (
	// NonceSize is the only length of a nonce, in octets.
	NonceSize = 12
	// Overhead is the length of a tag, in octets: how much longer a sealed
	// message is than its plaintext.
	Overhead = 16

	// maxPlaintext is GCM's limit in octets: the 32-bit block counter must not
	// come round (NIST SP 800-38D section 5.2.1.1).
	maxPlaintext = (1<<32 - 2) * 16
)

var (
	// ErrKeySize is returned for a key that has neither 16 nor 32 octets.
	ErrKeySize = errors.New("aesgcm: key is not 16 or 32 octets")
	// ErrOpen is returned for a message that does not authenticate.
	ErrOpen = errors.New("aesgcm: message does not authenticate")
)

// Key is an expanded key. It is a cipher.AEAD. Make one with New or NewKey: the
// zero value has no key and panics when used. Any number of goroutines may use
// a Key at a time, but not while it is being wiped.
type Key struct {
	std cipher.AEAD // the standard library's, when that was chosen
}

var _ cipher.AEAD = (*Key)(nil)

// New expands a key of 16 octets (AES-128) or 32 (AES-256); any other length is
// ErrKeySize. The AEAD is a *Key. In FIPS 140-3 only mode the error may be the
// standard library's.
func New(key []byte) (cipher.AEAD, error) {
	k, err := NewKey(key)
	if err != nil {
		return nil, err
	}
	return k, nil
}

// NewKey is New with the concrete type.
func NewKey(key []byte) (*Key, error) {
	if len(key) != 16 && len(key) != 32 {
		return nil, ErrKeySize
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	defer wipe.Object(block) // NewGCM copied the expanded key
	std, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	return &Key{std: std}, nil
}

// NonceSize is 12 octets.
func (k *Key) NonceSize() int { return NonceSize }

// Overhead is 16 octets.
func (k *Key) Overhead() int { return Overhead }

// Implementation tells what New's keys run on: "avx512", "avx2", or "std" for
// the standard library.
func Implementation() string { return "std" }

// Seal encrypts and authenticates plaintext, authenticates aad, and appends
// ciphertext and tag to dst. To seal in place pass plaintext[:0] as dst;
// Overhead octets of spare capacity then keep it from allocating. A nonce must
// never be used twice with a key. Seal panics where the standard library does:
// on a nonce that is not 12 octets, on a plaintext above 64 GiB, and when the
// octets to write overlap aad, or plaintext otherwise than exactly.
func (k *Key) Seal(dst, nonce, plaintext, aad []byte) []byte {
	return k.std.Seal(dst, nonce, plaintext, aad)
}

// Open checks the tag that ciphertext ends with, and aad, and appends the
// plaintext to dst; for in place pass ciphertext[:0]. A message that does not
// authenticate is ErrOpen, and no octet of its plaintext is left anywhere: the
// room in dst where it would have stood is zeroed before Open returns. It
// panics as Seal does.
func (k *Key) Open(dst, nonce, ciphertext, aad []byte) ([]byte, error) {
	out, err := k.std.Open(dst, nonce, ciphertext, aad)
	if err != nil {
		return nil, ErrOpen
	}
	return out, nil
}

// Wipe erases the expanded key. The Key must not be used again; it panics.
func (k *Key) Wipe() {
	if k.std != nil {
		wipe.Object(k.std)
	}
	*k = Key{}
}
