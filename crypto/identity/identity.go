// Package identity holds the long-term keys by which peers know each other:
// public keys and their names, private keys and their files, and the rules that
// accept or refuse a peer. The key is the identity; there are no certificates
// (D12).
package identity

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/trestle-npamp/trestle/profiles"
)

// Errors of this package.
var (
	// ErrScheme is returned for a signature scheme this package doesn't have.
	ErrScheme = errors.New("identity: unknown signature scheme")
	// ErrKeyLen is returned for a public key whose length isn't its scheme's.
	ErrKeyLen = errors.New("identity: public key has the wrong length")
	// ErrKeyText is returned for text that is no public key in hexadecimal.
	ErrKeyText = errors.New("identity: not a public key in hexadecimal")
	// ErrPeerNotAllowed is returned by the verifiers of this package for a peer
	// they refuse.
	ErrPeerNotAllowed = errors.New("identity: peer key is not allowed")
	// ErrWiped is returned by a private key that was wiped.
	ErrWiped = errors.New("identity: private key was wiped")
)

// PublicKey is a raw public key with its scheme: 32 octets for Ed25519, 2592
// for ML-DSA-87. It is immutable, may be a map key and may be compared with ==.
// The zero value is no key.
type PublicKey struct {
	scheme profiles.Scheme
	raw    string
}

// NewPublicKey copies a raw public key as the handshake carries it. The errors
// are ErrScheme and ErrKeyLen.
func NewPublicKey(scheme profiles.Scheme, raw []byte) (PublicKey, error) {
	row := rowOf(scheme)
	if row == nil {
		return PublicKey{}, ErrScheme
	}
	if len(raw) != row.publicLen {
		return PublicKey{}, ErrKeyLen
	}
	return PublicKey{scheme, string(raw)}, nil
}

// ParsePublicKey reads a public key in hexadecimal, either case. The length
// tells the scheme. The error is ErrKeyText.
func ParsePublicKey(text string) (PublicKey, error) {
	for _, row := range rows {
		if len(text) != 2*row.publicLen {
			continue
		}
		raw, err := hex.DecodeString(text)
		if err != nil {
			return PublicKey{}, ErrKeyText
		}
		return PublicKey{row.scheme, string(raw)}, nil
	}
	return PublicKey{}, ErrKeyText
}

// Scheme is the key's signature scheme, 0 for no key.
func (k PublicKey) Scheme() profiles.Scheme { return k.scheme }

// IsZero tells whether k is no key.
func (k PublicKey) IsZero() bool { return k == PublicKey{} }

// Len is the length of the raw key in octets.
func (k PublicKey) Len() int { return len(k.raw) }

// Append appends the raw key.
func (k PublicKey) Append(dst []byte) []byte { return append(dst, k.raw...) }

// Equal compares two keys in constant time. No key equals nothing, not even no
// key: an unset pin must not match an absent identity.
func (k PublicKey) Equal(other PublicKey) bool {
	return k.scheme != 0 && k.scheme == other.scheme &&
		subtle.ConstantTimeCompare([]byte(k.raw), []byte(other.raw)) == 1
}

// String is the raw key in lower-case hexadecimal.
func (k PublicKey) String() string { return hex.EncodeToString([]byte(k.raw)) }

// Verify checks a signature over a message.
func (k PublicKey) Verify(message, signature []byte) bool {
	row := rowOf(k.scheme)
	return row != nil && len(signature) == row.signatureLen && row.verify([]byte(k.raw), message, signature)
}

// Handle is the key's self-certifying name, for logs and records: the multibase
// base32 form of the SHA-256 multihash over the multicodec-tagged key (the
// PeerHandle companion, section 2). It is empty for no key.
func (k PublicKey) Handle() string {
	row := rowOf(k.scheme)
	if row == nil {
		return ""
	}
	digest := sha256.Sum256(append(append([]byte(nil), row.multicodec...), k.raw...))
	const sha2_256, base32Lower = 0x12, "b"
	multihash := append([]byte{sha2_256, sha256.Size}, digest[:]...)
	return base32Lower + handleEncoding.EncodeToString(multihash)
}

var handleEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// PrivateKey signs the handshake. The keys of Generate and Load implement it,
// and so may one that lives in other hardware. Its methods may be called by
// many goroutines at once.
type PrivateKey interface {
	// Public is the key's public half.
	Public() PublicKey
	// Sign signs a message with the scheme of Public.
	Sign(message []byte) (signature []byte, err error)
}

// SeedLen is the length in octets of the seed a private key derives from, the
// same for every scheme.
const SeedLen = 32

// Key is a private key in memory. Its zero value is not usable.
type Key struct {
	row    *row
	seed   [SeedLen]byte
	public PublicKey
	signer signer // nil once wiped
}

var _ PrivateKey = (*Key)(nil)

// Generate makes a key of the scheme from 32 octets of rand; a nil rand is
// crypto/rand's Reader. The errors are ErrScheme and rand's.
func Generate(scheme profiles.Scheme, rnd io.Reader) (*Key, error) {
	row := rowOf(scheme)
	if row == nil {
		return nil, ErrScheme
	}
	return row.generate(rnd)
}

// FromSeed derives the key of the scheme from its seed: RFC 8032's private key
// or FIPS 204's xi. The error is ErrScheme.
func FromSeed(scheme profiles.Scheme, seed [SeedLen]byte) (*Key, error) {
	row := rowOf(scheme)
	if row == nil {
		return nil, ErrScheme
	}
	return row.derive(&seed), nil
}

// Public is the key's public half.
func (k *Key) Public() PublicKey { return k.public }

// Sign signs a message; the signature is the same every time. The error is
// ErrWiped.
func (k *Key) Sign(message []byte) ([]byte, error) {
	if k.signer == nil {
		return nil, ErrWiped
	}
	return k.signer.sign(message), nil
}

// Wipe erases the private parts. It must not run while another goroutine signs.
func (k *Key) Wipe() {
	clear(k.seed[:])
	if k.signer != nil {
		k.signer.wipe()
		k.signer = nil
	}
}

// Format prints the public key and no secret, whatever the verb.
func (k Key) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "identity.Key(%s %s, redacted)", k.public.scheme, k.public)
}

// Verifier accepts a peer's key with nil or refuses it with an error. It is
// asked after the peer proved that it holds the key, on the goroutine of the
// handshake, and must not block for long.
type Verifier func(PublicKey) error

// Pin accepts one key.
func Pin(key PublicKey) Verifier {
	return func(peer PublicKey) error {
		if !key.Equal(peer) {
			return ErrPeerNotAllowed
		}
		return nil
	}
}

// AllowList accepts the keys of a set. A nil or empty set accepts nobody.
func AllowList(set *Set) Verifier {
	return func(peer PublicKey) error {
		if !set.Contains(peer) {
			return ErrPeerNotAllowed
		}
		return nil
	}
}
