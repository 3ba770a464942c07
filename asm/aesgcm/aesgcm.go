package aesgcm

import (
	"crypto/cipher"
	"errors"
	"unsafe"

	"github.com/trestle-npamp/trestle/internal/wipe"
)

const (
	// NonceSize is the only length of a nonce, in octets.
	NonceSize = 12
	// Overhead is the length of a tag, in octets: how much longer a sealed
	// message is than its plaintext.
	Overhead = 16

	// maxPlaintext is GCM's limit in octets: the 32-bit block counter must not
	// come round (NIST SP 800-38D section 5.2.1.1). With 12-octet nonces it is 1
	// for the tag and 2 for the first block, so that the longest text ends at
	// 2^32 - 1 and no kernel ever sees a wrap.
	maxPlaintext = (1<<32 - 2) * 16
)

var (
	// ErrKeySize is returned for a key that has neither 16 nor 32 octets.
	ErrKeySize = errors.New("aesgcm: key is not 16 or 32 octets")
	// ErrOpen is returned for a message that does not authenticate.
	ErrOpen = errors.New("aesgcm: message does not authenticate")
)

// Key is an expanded key for one of this package's kernels. It is the
// cipher.AEAD that New returns where there is one. The zero value has no key
// and panics when used. Any number of goroutines may use a Key at a time, but
// not while it is being wiped. It holds no pointers, and 881 octets.
type Key struct {
	material
	kernel kernel
}

var _ cipher.AEAD = (*Key)(nil)

// New expands a key of 16 octets (AES-128) or 32 (AES-256); any other length is
// ErrKeySize. The AEAD is a *Key, or else the standard library's in a wrapper;
// either has a method Wipe that erases the key, after which it must not be used
// again. In FIPS 140-3 only mode the error may be the standard library's.
func New(key []byte) (cipher.AEAD, error) { return newAEAD(chosen().use, key) }

func newAEAD(i implementation, key []byte) (cipher.AEAD, error) {
	if len(key) != 16 && len(key) != 32 {
		return nil, ErrKeySize
	}
	if i == std {
		aead, err := newStd(key)
		if err != nil {
			return nil, err
		}
		return &stdKey{aead}, nil
	}
	k := new(Key)
	k.expand(i, key)
	return k, nil
}

// NonceSize is 12 octets.
func (k *Key) NonceSize() int { return NonceSize }

// Overhead is 16 octets.
func (k *Key) Overhead() int { return Overhead }

// Seal encrypts and authenticates plaintext, authenticates aad, and appends
// ciphertext and tag to dst. To seal in place pass plaintext[:0] as dst;
// Overhead octets of spare capacity then keep it from allocating. A nonce must
// never be used twice with a key. Seal panics where the standard library does:
// on a nonce that is not 12 octets, on a plaintext above 64 GiB, and when the
// octets to write overlap aad, or plaintext otherwise than exactly.
func (k *Key) Seal(dst, nonce, plaintext, aad []byte) []byte {
	// All calls but the kernels' end the function, and there is no instruction
	// too many: at 64 octets it shows.
	if len(nonce) != NonceSize {
		panic(badNonce)
	}
	if uint64(len(plaintext)) > maxPlaintext {
		panic(tooLong)
	}
	total := len(dst) + len(plaintext) + Overhead
	if total > cap(dst) {
		return k.Seal(grow(dst, total), nonce, plaintext, aad)
	}
	out := unsafe.SliceData(dst[len(dst):total])
	in, ad := unsafe.SliceData(plaintext), unsafe.SliceData(aad)
	if out != in && near(out, len(plaintext)+Overhead, in, len(plaintext)) && len(plaintext) > 0 ||
		near(out, len(plaintext)+Overhead, ad, len(aad)) && len(aad) > 0 {
		panic(badOverlap)
	}
	switch k.kernel {
	case avx512Rounds14:
		seal512Rounds14(&k.material, out, in, len(plaintext), unsafe.SliceData(nonce), ad, len(aad))
	case avx512Rounds10:
		seal512Rounds10(&k.material, out, in, len(plaintext), unsafe.SliceData(nonce), ad, len(aad))
	case avx2Rounds14:
		seal256Rounds14(&k.material, out, in, len(plaintext), unsafe.SliceData(nonce), ad, len(aad))
	case avx2Rounds10:
		seal256Rounds10(&k.material, out, in, len(plaintext), unsafe.SliceData(nonce), ad, len(aad))
	default:
		panic(noKey)
	}
	return dst[:total]
}

// Open checks the tag that ciphertext ends with, and aad, and appends the
// plaintext to dst; for in place pass ciphertext[:0]. A message that does not
// authenticate is ErrOpen, and no octet of its plaintext is left anywhere: it
// is decrypted while it is being hashed, and the room in dst where it stands
// is zeroed before Open returns. It panics as Seal does.
func (k *Key) Open(dst, nonce, ciphertext, aad []byte) ([]byte, error) {
	if len(nonce) != NonceSize {
		panic(badNonce)
	}
	n := len(ciphertext) - Overhead
	if n < 0 || uint64(n) > maxPlaintext {
		return nil, ErrOpen
	}
	total := len(dst) + n
	if total > cap(dst) {
		return k.Open(grow(dst, total), nonce, ciphertext, aad)
	}
	out := unsafe.SliceData(dst[len(dst):total])
	in, ad := unsafe.SliceData(ciphertext), unsafe.SliceData(aad)
	if n > 0 && (out != in && near(out, n, in, len(ciphertext)) || near(out, n, ad, len(aad)) && len(aad) > 0) {
		panic(badOverlap)
	}
	ok := false
	switch k.kernel {
	case avx512Rounds14:
		ok = open512Rounds14(&k.material, out, in, n, unsafe.SliceData(nonce), ad, len(aad))
	case avx512Rounds10:
		ok = open512Rounds10(&k.material, out, in, n, unsafe.SliceData(nonce), ad, len(aad))
	case avx2Rounds14:
		ok = open256Rounds14(&k.material, out, in, n, unsafe.SliceData(nonce), ad, len(aad))
	case avx2Rounds10:
		ok = open256Rounds10(&k.material, out, in, n, unsafe.SliceData(nonce), ad, len(aad))
	default:
		panic(noKey)
	}
	if !ok {
		clear(dst[len(dst):total])
		return nil, ErrOpen
	}
	return dst[:total], nil
}

// Wipe erases the expanded key.
func (k *Key) Wipe() { *k = Key{} }

const (
	badNonce   = "aesgcm: nonce is not 12 octets"
	badOverlap = "aesgcm: output overlaps input inexactly, or associated data"
	tooLong    = "aesgcm: plaintext too long"
	noKey      = "aesgcm: no key, or a wiped one"
)

// grow gives a copy of b with room for total octets.
//
//go:noinline
func grow(b []byte, total int) []byte {
	return append(make([]byte, 0, total), b...)
}

// near tells whether the n octets at p and the m octets at q share one, if n and
// m are above 0; it may say so, too, where one of them is 0.
func near(p *byte, n int, q *byte, m int) bool {
	d := uintptr(unsafe.Pointer(q)) - uintptr(unsafe.Pointer(p))
	return d < uintptr(n) || -d < uintptr(m)
}

// stdKey is the standard library's AEAD with this package's errors and Wipe.
type stdKey struct{ aead cipher.AEAD }

func (k *stdKey) NonceSize() int { return NonceSize }
func (k *stdKey) Overhead() int  { return Overhead }

func (k *stdKey) Seal(dst, nonce, plaintext, aad []byte) []byte {
	if k.aead == nil {
		panic(noKey)
	}
	return k.aead.Seal(dst, nonce, plaintext, aad)
}

func (k *stdKey) Open(dst, nonce, ciphertext, aad []byte) ([]byte, error) {
	if k.aead == nil {
		panic(noKey)
	}
	out, err := k.aead.Open(dst, nonce, ciphertext, aad)
	if err != nil {
		return nil, ErrOpen
	}
	return out, nil
}

// Wipe erases the expanded key.
func (k *stdKey) Wipe() {
	if k.aead != nil {
		wipe.Object(k.aead)
		k.aead = nil
	}
}
