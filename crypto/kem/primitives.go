package kem

import (
	"github.com/cloudflare/circl/dh/x25519"
	"github.com/cloudflare/circl/kem/mlkem/mlkem1024"
	"github.com/cloudflare/circl/kem/mlkem/mlkem768"

	"github.com/trestle-npamp/trestle/profiles"
)

// mlkem is what a scheme needs of an ML-KEM parameter set. Lengths are the
// caller's to check.
type mlkem interface {
	// generate derives a key from d || z and writes the encapsulation key.
	generate(seed, ek []byte) decapsulator
	// encapsulate writes the ciphertext and the secret; it is false when ek
	// fails the modulus check.
	encapsulate(ek, ct, secret, seed []byte) bool
}

type decapsulator interface {
	DecapsulateTo(secret, ct []byte)
}

// The rows: one for each code point.
var schemes = []*Scheme{
	{
		id:            profiles.X25519MLKEM768,
		shareLen:      mlkem768.PublicKeySize + x25519Len,
		ciphertextLen: mlkem768.CiphertextSize + x25519Len,
		mlkem:         set768{},
	},
	{
		id:            profiles.X25519MLKEM1024,
		shareLen:      mlkem1024.PublicKeySize + x25519Len,
		ciphertextLen: mlkem1024.CiphertextSize + x25519Len,
		mlkem:         set1024{},
	},
}

type set768 struct{}

func (set768) generate(seed, ek []byte) decapsulator {
	public, private := mlkem768.NewKeyFromSeed(seed)
	public.Pack(ek)
	return private
}

func (set768) encapsulate(ek, ct, secret, seed []byte) bool {
	var public mlkem768.PublicKey
	if public.Unpack(ek) != nil {
		return false
	}
	public.EncapsulateTo(ct, secret, seed)
	return true
}

type set1024 struct{}

func (set1024) generate(seed, ek []byte) decapsulator {
	public, private := mlkem1024.NewKeyFromSeed(seed)
	public.Pack(ek)
	return private
}

func (set1024) encapsulate(ek, ct, secret, seed []byte) bool {
	var public mlkem1024.PublicKey
	if public.Unpack(ek) != nil {
		return false
	}
	public.EncapsulateTo(ct, secret, seed)
	return true
}

// x25519Public writes the public key of a private one.
func x25519Public(public, private *[x25519Len]byte) {
	x25519.KeyGen((*x25519.Key)(public), (*x25519.Key)(private))
}

// x25519Shared writes the shared secret and is false when that is all zero.
func x25519Shared(shared, private, public *[x25519Len]byte) bool {
	ok := x25519.Shared((*x25519.Key)(shared), (*x25519.Key)(private), (*x25519.Key)(public))
	// The library compares the public key with the low-order points. We are
	// asked to look at the output, so we do.
	var any byte
	for _, b := range shared {
		any |= b
	}
	return ok && any != 0
}
