package kem

import (
	"bytes"
	"crypto/ecdh"
	stdmlkem "crypto/mlkem"
	"crypto/rand"
	"testing"

	"github.com/cloudflare/circl/kem/mlkem/mlkem768"

	"github.com/trestle-npamp/trestle/profiles"
)

func BenchmarkHybrid(b *testing.B) {
	for _, s := range schemes {
		k, err := s.Generate(nil)
		if err != nil {
			b.Fatal(err)
		}
		ct, _, err := s.Encapsulate(nil, k.Share())
		if err != nil {
			b.Fatal(err)
		}
		b.Run(s.String()+"/generate", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Generate(nil); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(s.String()+"/encapsulate", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := s.Encapsulate(nil, k.Share()); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(s.String()+"/decapsulate", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := k.Decapsulate(ct); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkLibraries is the reason for circl: the same operations by circl and
// by the standard library, from the same encodings.
func BenchmarkLibraries(b *testing.B) {
	seed := make([]byte, 64)
	rand.Read(seed)
	public, private := mlkem768.NewKeyFromSeed(seed)
	ek := make([]byte, mlkem768.PublicKeySize)
	public.Pack(ek)
	ct, ss := make([]byte, mlkem768.CiphertextSize), make([]byte, mlkem768.SharedKeySize)

	public.EncapsulateTo(ct, ss, nil)

	b.Run("mlkem768/generate/circl", func(b *testing.B) {
		for b.Loop() {
			public, _ := mlkem768.NewKeyFromSeed(seed)
			public.Pack(ek)
		}
	})
	b.Run("mlkem768/generate/std", func(b *testing.B) {
		for b.Loop() {
			dk, err := stdmlkem.NewDecapsulationKey768(seed)
			if err != nil {
				b.Fatal(err)
			}
			dk.EncapsulationKey().Bytes()
		}
	})
	b.Run("mlkem768/encapsulate/circl", func(b *testing.B) {
		for b.Loop() {
			var public mlkem768.PublicKey
			if err := public.Unpack(ek); err != nil {
				b.Fatal(err)
			}
			public.EncapsulateTo(ct, ss, nil)
		}
	})
	b.Run("mlkem768/encapsulate/std", func(b *testing.B) {
		for b.Loop() {
			public, err := stdmlkem.NewEncapsulationKey768(ek)
			if err != nil {
				b.Fatal(err)
			}
			public.Encapsulate()
		}
	})
	dk, err := stdmlkem.NewDecapsulationKey768(seed)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("mlkem768/decapsulate/circl", func(b *testing.B) {
		for b.Loop() {
			private.DecapsulateTo(ss, ct)
		}
	})
	b.Run("mlkem768/decapsulate/std", func(b *testing.B) {
		for b.Loop() {
			if got, err := dk.Decapsulate(ct); err != nil || !bytes.Equal(got, ss) {
				b.Fatal(err)
			}
		}
	})

	k, err := ByID(profiles.X25519MLKEM768).Generate(nil)
	if err != nil {
		b.Fatal(err)
	}
	peer := (*[x25519Len]byte)(k.Share()[1184:])
	raw := bytes.Clone(k.x25519[:])
	std, err := ecdh.X25519().NewPublicKey(peer[:])
	if err != nil {
		b.Fatal(err)
	}
	b.Run("x25519/generate+shared/circl", func(b *testing.B) {
		var out [x25519Len]byte
		for b.Loop() {
			x25519Public(&out, &k.x25519)
			x25519Shared(&out, &k.x25519, peer)
		}
	})
	b.Run("x25519/generate+shared/std", func(b *testing.B) {
		for b.Loop() {
			private, err := ecdh.X25519().NewPrivateKey(raw)
			if err != nil {
				b.Fatal(err)
			}
			private.PublicKey()
			if _, err := private.ECDH(std); err != nil {
				b.Fatal(err)
			}
		}
	})
}
