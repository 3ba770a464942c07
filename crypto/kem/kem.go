// Package kem implements the two hybrid key exchanges of N-PAMP, X25519MLKEM768
// and X25519MLKEM1024: ML-KEM (FIPS 203) and X25519 (RFC 7748) side by side.
//
// The names put X25519 first; every octet string puts ML-KEM first:
//
//	share      = ML-KEM encapsulation key || X25519 public key
//	ciphertext = ML-KEM ciphertext        || X25519 public key of the answering side
//	secret     = ML-KEM shared secret(32) || X25519 shared secret(32)
//
// Source: the handshake binding of draft-bubblefish-npamp-02, section 4.
package kem

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"

	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/wipe"
	"github.com/trestle-npamp/trestle/profiles"
)

// SecretLen is the length of the combined secret in octets, for every scheme.
const SecretLen = mlkemSecretLen + x25519Len

const (
	x25519Len      = 32
	mlkemSecretLen = 32
	mlkemSeedLen   = 64 // d || z
	encapsSeedLen  = 32 // m
)

// Errors of this package. A corrupt ML-KEM ciphertext is none: implicit
// rejection gives a secret that nobody else has, and Finished fails.
var (
	// ErrShareLen is returned for a share that is not ShareLen octets long.
	ErrShareLen = errors.New("kem: share has the wrong length")
	// ErrShare is returned for a share whose ML-KEM key fails the modulus check
	// of FIPS 203 section 7.2.
	ErrShare = errors.New("kem: malformed ML-KEM key in share")
	// ErrCiphertextLen is returned for a ciphertext that is not CiphertextLen
	// octets long.
	ErrCiphertextLen = errors.New("kem: ciphertext has the wrong length")
	// ErrLowOrder is returned when the X25519 output is all zero, because the
	// peer's public key is a low-order point (RFC 7748 section 6.1).
	ErrLowOrder = errors.New("kem: all-zero X25519 output")
	// ErrWiped is returned by a key pair that was wiped.
	ErrWiped = errors.New("kem: key pair was wiped")
)

// Scheme is one hybrid key exchange. Get it with ByID.
type Scheme struct {
	id            profiles.KEM
	shareLen      int
	ciphertextLen int
	mlkem         mlkem
}

// ByID finds the scheme with the code point, nil if there is none.
func ByID(id profiles.KEM) *Scheme {
	for _, s := range schemes {
		if s.id == id {
			return s
		}
	}
	return nil
}

// ID is the scheme's code point.
func (s *Scheme) ID() profiles.KEM { return s.id }

// ShareLen is the length of a share in octets: 1216 or 1600.
func (s *Scheme) ShareLen() int { return s.shareLen }

// CiphertextLen is the length of a ciphertext in octets: 1120 or 1600.
func (s *Scheme) CiphertextLen() int { return s.ciphertextLen }

func (s *Scheme) String() string { return s.id.String() }

// Secret is the combined secret. Wipe it after use.
type Secret struct{ b [SecretLen]byte }

// NewSecret copies a combined secret that was computed elsewhere.
func NewSecret(b [SecretLen]byte) *Secret { return &Secret{b} }

// Bytes is a view of the secret.
func (s *Secret) Bytes() []byte { return s.b[:] }

// Wipe erases the secret.
func (s *Secret) Wipe() { buf.Wipe(s.b[:]) }

// Format prints no secret, whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { io.WriteString(f, "kem.Secret(redacted)") }

// KeyPair is one side's ephemeral key. It serves one decapsulation's purpose
// and belongs to one goroutine.
type KeyPair struct {
	scheme *Scheme
	share  []byte
	x25519 [x25519Len]byte
	mlkem  decapsulator // nil once wiped
}

// Generate makes a key pair from 96 octets of rand: ML-KEM's d and z, then the
// X25519 private key. A nil rand is crypto/rand's Reader. The only error is
// rand's.
func (s *Scheme) Generate(rnd io.Reader) (*KeyPair, error) {
	var seed [mlkemSeedLen + x25519Len]byte
	defer buf.Wipe(seed[:])
	if err := read(rnd, seed[:]); err != nil {
		return nil, err
	}
	k := &KeyPair{scheme: s, share: make([]byte, s.shareLen)}
	k.x25519 = [x25519Len]byte(seed[mlkemSeedLen:])
	ek := k.share[:s.shareLen-x25519Len]
	k.mlkem = s.mlkem.generate(seed[:mlkemSeedLen], ek)
	x25519Public((*[x25519Len]byte)(k.share[len(ek):]), &k.x25519)
	return k, nil
}

// Scheme is the key pair's scheme.
func (k *KeyPair) Scheme() *Scheme { return k.scheme }

// Share is the public share, ShareLen octets. It must not be modified.
func (k *KeyPair) Share() []byte { return k.share }

// Decapsulate computes the secret that a ciphertext carries. The errors are
// ErrCiphertextLen, ErrLowOrder and ErrWiped.
func (k *KeyPair) Decapsulate(ciphertext []byte) (*Secret, error) {
	if k.mlkem == nil {
		return nil, ErrWiped
	}
	if len(ciphertext) != k.scheme.ciphertextLen {
		return nil, ErrCiphertextLen
	}
	ct, public := cut(ciphertext)
	secret := new(Secret)
	if !x25519Shared(secret.x25519(), &k.x25519, public) {
		secret.Wipe()
		return nil, ErrLowOrder
	}
	k.mlkem.DecapsulateTo(secret.b[:mlkemSecretLen], ct)
	return secret, nil
}

// Wipe erases the private parts. The share stays readable.
func (k *KeyPair) Wipe() {
	buf.Wipe(k.x25519[:])
	if k.mlkem != nil {
		wipe.Object(k.mlkem)
		k.mlkem = nil
	}
}

// Format prints the scheme and no key, whatever the verb.
func (k KeyPair) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "kem.KeyPair(%s, redacted)", k.scheme) }

// Encapsulate answers a share with a ciphertext and the secret it carries, from
// 64 octets of rand: ML-KEM's m, then an X25519 private key. A nil rand is
// crypto/rand's Reader. The errors are ErrShareLen, ErrShare, ErrLowOrder and
// rand's.
func (s *Scheme) Encapsulate(rnd io.Reader, share []byte) (ciphertext []byte, secret *Secret, err error) {
	if len(share) != s.shareLen {
		return nil, nil, ErrShareLen
	}
	var seed [encapsSeedLen + x25519Len]byte
	defer buf.Wipe(seed[:])
	if err := read(rnd, seed[:]); err != nil {
		return nil, nil, err
	}
	private := (*[x25519Len]byte)(seed[encapsSeedLen:])
	ek, public := cut(share)
	secret = new(Secret)
	if !x25519Shared(secret.x25519(), private, public) {
		secret.Wipe()
		return nil, nil, ErrLowOrder
	}
	ciphertext = make([]byte, s.ciphertextLen)
	ct, ours := cut(ciphertext)
	if !s.mlkem.encapsulate(ek, ct, secret.b[:mlkemSecretLen], seed[:encapsSeedLen]) {
		secret.Wipe()
		return nil, nil, ErrShare
	}
	x25519Public(ours, private)
	return ciphertext, secret, nil
}

func (s *Secret) x25519() *[x25519Len]byte { return (*[x25519Len]byte)(s.b[mlkemSecretLen:]) }

// cut splits a share or ciphertext into its ML-KEM and X25519 parts.
func cut(b []byte) (mlkem []byte, x25519 *[x25519Len]byte) {
	n := len(b) - x25519Len
	return b[:n:n], (*[x25519Len]byte)(b[n:])
}

func read(rnd io.Reader, b []byte) error {
	if rnd == nil {
		_, _ = rand.Read(b) // never fails, and leaves b on the stack
		return nil
	}
	heap := make([]byte, len(b))
	defer buf.Wipe(heap)
	if _, err := io.ReadFull(rnd, heap); err != nil {
		return fmt.Errorf("kem: reading randomness: %w", err)
	}
	copy(b, heap)
	return nil
}
