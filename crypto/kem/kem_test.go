package kem

import (
	"bytes"
	"crypto/ecdh"
	stdmlkem "crypto/mlkem"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/profiles"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func equal(t testing.TB, what string, got []byte, want string) {
	t.Helper()
	if hex.EncodeToString(got) != strings.ToLower(want) {
		t.Errorf("%s is %x, want %s", what, got, want)
	}
}

// ML-KEM-768's key generation of the NIST ACVP record (tgId 2, tcId 26), and
// the two X25519 keys of RFC 7748 section 6.1.
const (
	seedDZ = "e582b7d75e6c80b05ae392a1fc9f7153b12390fd99930368cc67a768baebc8a0" +
		"1cdacb8740c0b87c4a379575f187b367cbfa3b300bf591b109f79816e9cbe8f0"
	ekDigest     = "4158f6afb5e516c99f1da07da8c651348422b17c1f4e9a08ad73fb1f91249b3e"
	alicePrivate = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"
	alicePublic  = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
	bobPrivate   = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"
	bobPublic    = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
	sharedX25519 = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
)

func pairs(t testing.TB) map[*Scheme]*KeyPair {
	t.Helper()
	m := map[*Scheme]*KeyPair{}
	for _, s := range schemes {
		k, err := s.Generate(nil)
		if err != nil {
			t.Fatal(err)
		}
		m[s] = k
	}
	return m
}

func TestSizesAreTheBindings(t *testing.T) {
	for _, c := range []struct {
		id                profiles.KEM
		share, ciphertext int
	}{{profiles.X25519MLKEM768, 1216, 1120}, {profiles.X25519MLKEM1024, 1600, 1600}} {
		s := ByID(c.id)
		if s == nil || s.ID() != c.id || s.String() != c.id.String() || s.ShareLen() != c.share || s.CiphertextLen() != c.ciphertext {
			t.Errorf("%s: %+v", c.id, s)
		}
	}
	if ByID(0x11eb) != nil || SecretLen != 64 {
		t.Error("an unregistered scheme was found, or the secret is not 64 octets")
	}
}

// Binding 4: share and ciphertext have ML-KEM first, and so has the secret.
func TestMLKEMComesFirst(t *testing.T) {
	s := ByID(profiles.X25519MLKEM768)
	k, err := s.Generate(bytes.NewReader(unhex(t, seedDZ+alicePrivate)))
	if err != nil {
		t.Fatal(err)
	}
	ek := sha256.Sum256(k.Share()[:1184])
	equal(t, "digest of the encapsulation key", ek[:], ekDigest)
	equal(t, "X25519 part of the share", k.Share()[1184:], alicePublic)

	m := bytes.Repeat([]byte{0x42}, 32)
	ct, sent, err := s.Encapsulate(bytes.NewReader(append(m, unhex(t, bobPrivate)...)), k.Share())
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "X25519 part of the ciphertext", ct[1088:], bobPublic)
	equal(t, "X25519 part of the sent secret", sent.Bytes()[32:], sharedX25519)

	// The standard library decapsulates the ML-KEM part alone.
	dk, err := stdmlkem.NewDecapsulationKey768(unhex(t, seedDZ))
	if err != nil {
		t.Fatal(err)
	}
	want, err := dk.Decapsulate(ct[:1088])
	if err != nil || !bytes.Equal(sent.Bytes()[:32], want) {
		t.Errorf("ML-KEM part of the sent secret is %x, want %x (%v)", sent.Bytes()[:32], want, err)
	}
	got, err := k.Decapsulate(ct)
	if err != nil || !bytes.Equal(got.Bytes(), sent.Bytes()) {
		t.Errorf("received secret differs (%v)", err)
	}
}

// Both ways against crypto/mlkem and crypto/ecdh, with random keys.
func TestAgreesWithTheStandardLibrary(t *testing.T) {
	type encapsulator interface{ Encapsulate() (ss, ct []byte) }
	for s, k := range pairs(t) {
		n := s.ShareLen() - x25519Len
		var ek encapsulator
		var err error
		if s.ID() == profiles.X25519MLKEM768 {
			ek, err = stdmlkem.NewEncapsulationKey768(k.Share()[:n])
		} else {
			ek, err = stdmlkem.NewEncapsulationKey1024(k.Share()[:n])
		}
		if err != nil {
			t.Fatal(err)
		}
		x, err := ecdh.X25519().GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		public, err := ecdh.X25519().NewPublicKey(k.Share()[n:])
		if err != nil {
			t.Fatal(err)
		}
		xs, err := x.ECDH(public)
		if err != nil {
			t.Fatal(err)
		}
		ss, ct := ek.Encapsulate()
		got, err := k.Decapsulate(append(ct, x.PublicKey().Bytes()...))
		if err != nil || !bytes.Equal(got.Bytes(), append(ss, xs...)) {
			t.Errorf("%s: secret differs (%v)", s, err)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	for s, k := range pairs(t) {
		ct, sent, err := s.Encapsulate(nil, k.Share())
		if err != nil {
			t.Fatal(err)
		}
		if len(ct) != s.CiphertextLen() || len(k.Share()) != s.ShareLen() || k.Scheme() != s {
			t.Errorf("%s: sizes %d, %d", s, len(k.Share()), len(ct))
		}
		got, err := k.Decapsulate(ct)
		if err != nil || !bytes.Equal(got.Bytes(), sent.Bytes()) {
			t.Errorf("%s: secrets differ (%v)", s, err)
		}
	}
}

func TestLengthsAreChecked(t *testing.T) {
	for s, k := range pairs(t) {
		for _, n := range []int{0, 1, 31, 32, s.ShareLen() - 1, s.ShareLen() + 1, 5000} {
			if ct, secret, err := s.Encapsulate(nil, make([]byte, n)); !errors.Is(err, ErrShareLen) || ct != nil || secret != nil {
				t.Errorf("%s: share of %d octets: %v", s, n, err)
			}
		}
		for _, n := range []int{0, 1, 32, s.CiphertextLen() - 1, s.CiphertextLen() + 1} {
			if secret, err := k.Decapsulate(make([]byte, n)); !errors.Is(err, ErrCiphertextLen) || secret != nil {
				t.Errorf("%s: ciphertext of %d octets: %v", s, n, err)
			}
		}
	}
}

// RFC 7748 section 6.1: both sides refuse a shared secret of zeroes. The points
// are 0, 1, p-1, p, p+1 and the two of order 8, each also with the unused top
// bit set.
func TestAllZeroX25519IsAnError(t *testing.T) {
	points := []string{
		"0000000000000000000000000000000000000000000000000000000000000000",
		"0100000000000000000000000000000000000000000000000000000000000000",
		"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
		"5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
	}
	for s, k := range pairs(t) {
		ct, _, err := s.Encapsulate(nil, k.Share())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range points {
			for _, top := range []byte{0, 0x80} {
				low := unhex(t, p)
				low[31] |= top
				share := append(bytes.Clone(k.Share()[:s.ShareLen()-32]), low...)
				if _, secret, err := s.Encapsulate(nil, share); !errors.Is(err, ErrLowOrder) || secret != nil {
					t.Errorf("%s: encapsulate to %x: %v", s, low, err)
				}
				bad := append(bytes.Clone(ct[:s.CiphertextLen()-32]), low...)
				if secret, err := k.Decapsulate(bad); !errors.Is(err, ErrLowOrder) || secret != nil {
					t.Errorf("%s: decapsulate from %x: %v", s, low, err)
				}
			}
		}
	}
}

// FIPS 203 section 7.2: coefficients of the encapsulation key are below q.
func TestUnreducedMLKEMKeyIsRefused(t *testing.T) {
	for s, k := range pairs(t) {
		share := bytes.Clone(k.Share())
		share[0], share[1] = 0xff, 0xff
		if ct, secret, err := s.Encapsulate(nil, share); !errors.Is(err, ErrShare) || ct != nil || secret != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
}

// Binding 4: a corrupt ML-KEM ciphertext is no error; it gives a secret of its
// own, the same each time.
func TestCorruptCiphertextIsRejectedImplicitly(t *testing.T) {
	for s, k := range pairs(t) {
		ct, sent, err := s.Encapsulate(nil, k.Share())
		if err != nil {
			t.Fatal(err)
		}
		ct[17] ^= 1
		a, err := k.Decapsulate(ct)
		if err != nil {
			t.Fatal(err)
		}
		b, err := k.Decapsulate(ct)
		if err != nil || !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Errorf("%s: not deterministic (%v)", s, err)
		}
		if bytes.Equal(a.Bytes()[:32], sent.Bytes()[:32]) || !bytes.Equal(a.Bytes()[32:], sent.Bytes()[32:]) {
			t.Errorf("%s: the rejection secret is wrong", s)
		}
	}
}

func TestWipedKeyPairIsUseless(t *testing.T) {
	for s, k := range pairs(t) {
		inner := k.mlkem
		// What hangs off the unpacked ML-KEM key.
		field := reflect.ValueOf(inner).Elem().FieldByName("sk")
		unpacked := reflect.NewAt(field.Type().Elem(), field.UnsafePointer()).Elem()
		if unpacked.IsZero() {
			t.Fatalf("%s: the test looks at the wrong place", s)
		}
		k.Wipe()
		k.Wipe()
		if k.x25519 != [32]byte{} || !unpacked.IsZero() || !reflect.ValueOf(inner).Elem().IsZero() {
			t.Errorf("%s: a private part is left", s)
		}
		if _, err := k.Decapsulate(make([]byte, s.CiphertextLen())); !errors.Is(err, ErrWiped) {
			t.Errorf("%s: %v", s, err)
		}
		if len(k.Share()) != s.ShareLen() {
			t.Errorf("%s: the share is gone", s)
		}
	}
	secret := NewSecret([SecretLen]byte{1, 2, 3})
	secret.Wipe()
	if !bytes.Equal(secret.Bytes(), make([]byte, SecretLen)) {
		t.Error("a secret is left after Wipe")
	}
}

func TestShortRandomnessIsAnError(t *testing.T) {
	for s, k := range pairs(t) {
		if _, err := s.Generate(bytes.NewReader(make([]byte, 95))); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: Generate: %v", s, err)
		}
		if _, _, err := s.Encapsulate(bytes.NewReader(make([]byte, 63)), k.Share()); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: Encapsulate: %v", s, err)
		}
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	s := ByID(profiles.X25519MLKEM768)
	k, err := s.Generate(bytes.NewReader(bytes.Repeat([]byte{0xc3}, 96)))
	if err != nil {
		t.Fatal(err)
	}
	secret := NewSecret([SecretLen]byte(bytes.Repeat([]byte{0xc3}, SecretLen)))
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d", "%q"} {
		for _, v := range []any{k, secret} {
			out := fmt.Sprintf(verb, v)
			if !strings.Contains(out, "redacted") || strings.Contains(out, "c3c3") || strings.Contains(out, "195 195") {
				t.Errorf("%s prints %q", verb, out)
			}
		}
	}
}

// FuzzEncapsulate: no share makes it panic, and what it accepts has the sizes
// and the secret of the scheme.
func FuzzEncapsulate(f *testing.F) {
	for s, k := range pairs(f) {
		f.Add(uint16(s.ID()), k.Share())
		f.Add(uint16(s.ID()), k.Share()[1:])
	}
	f.Add(uint16(0x11ec), make([]byte, 1216))
	f.Fuzz(func(t *testing.T, id uint16, share []byte) {
		s := ByID(profiles.KEM(id))
		if s == nil {
			return
		}
		ct, secret, err := s.Encapsulate(nil, share)
		if err != nil {
			if ct != nil || secret != nil {
				t.Error("a result beside an error")
			}
			return
		}
		if len(share) != s.ShareLen() || len(ct) != s.CiphertextLen() {
			t.Errorf("share of %d octets gives %d", len(share), len(ct))
		}
	})
}

// FuzzDecapsulate: no ciphertext makes it panic, and the outcome is
// deterministic.
func FuzzDecapsulate(f *testing.F) {
	keys := map[profiles.KEM]*KeyPair{}
	for s, k := range pairs(f) {
		keys[s.ID()] = k
		ct, _, err := s.Encapsulate(nil, k.Share())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint16(s.ID()), ct)
		f.Add(uint16(s.ID()), make([]byte, len(ct)))
	}
	f.Fuzz(func(t *testing.T, id uint16, ct []byte) {
		k := keys[profiles.KEM(id)]
		if k == nil {
			return
		}
		a, errA := k.Decapsulate(ct)
		b, errB := k.Decapsulate(ct)
		if !errors.Is(errA, errB) || (a == nil) != (errA != nil) {
			t.Fatalf("%v, %v", errA, errB)
		}
		if a != nil && !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Error("two secrets from one ciphertext")
		}
	})
}
