package identity

import (
	"bytes"
	"crypto/ed25519"
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

var schemes = []profiles.Scheme{profiles.Ed25519, profiles.MLDSA87}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func fromSeed(t testing.TB, scheme profiles.Scheme, seed string) *Key {
	t.Helper()
	k, err := FromSeed(scheme, [SeedLen]byte(unhex(t, seed)))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func countingKey(t testing.TB, scheme profiles.Scheme) *Key {
	t.Helper()
	var seed [SeedLen]byte
	for i := range seed {
		seed[i] = byte(i)
	}
	k, err := FromSeed(scheme, seed)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

const (
	rfc8032Seed1   = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"
	rfc8032Public1 = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
)

// RFC 8032 section 7.1, tests 1 to 3.
func TestEd25519AgreesWithRFC8032(t *testing.T) {
	for _, c := range []struct{ seed, public, message, signature string }{
		{
			rfc8032Seed1, rfc8032Public1, "",
			"e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
		},
		{
			"4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
			"3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
			"92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
		},
		{
			"c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
			"fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
			"6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
		},
	} {
		k := fromSeed(t, profiles.Ed25519, c.seed)
		if k.Public().String() != c.public {
			t.Errorf("public key %s, want %s", k.Public(), c.public)
		}
		signature, err := k.Sign(unhex(t, c.message))
		if err != nil || hex.EncodeToString(signature) != c.signature {
			t.Errorf("signature %x, %v", signature, err)
		}
		if !k.Public().Verify(unhex(t, c.message), signature) {
			t.Error("the signature does not verify")
		}
	}
}

// ML-DSA-87's key generation of the NIST ACVP record tgId 3, tcId 51; and a
// deterministic signature with an empty context, made by another program (the
// cryptography package of Python) from the seed 00 01 .. 1f.
func TestMLDSA87AgreesWithFIPS204(t *testing.T) {
	k := fromSeed(t, profiles.MLDSA87, "38359fbcd79582cffe609e137ee2efe8a8dbcbad18ba92bb433ab4f09b49299d")
	public := sha256.Sum256(k.Public().Append(nil))
	if hex.EncodeToString(public[:]) != "ea374a09356e5f89be784f28f4ef938e8976cb5c4db00fbacb257663491748d4" {
		t.Errorf("public key digest %x", public)
	}
	k = countingKey(t, profiles.MLDSA87)
	public = sha256.Sum256(k.Public().Append(nil))
	if hex.EncodeToString(public[:]) != "91dc389cfaa01470b7f66eee45a4ae9026d154817c754dfe22298b3fa241ffcd" {
		t.Errorf("public key digest %x", public)
	}
	if k.Public().Len() != 2592 {
		t.Errorf("public key of %d octets", k.Public().Len())
	}
	signature, err := k.Sign([]byte("message"))
	if err != nil || len(signature) != 4627 || !k.Public().Verify([]byte("message"), signature) {
		t.Errorf("signature of %d octets, %v", len(signature), err)
	}
}

func TestVerifyRefusesAnythingElse(t *testing.T) {
	for _, scheme := range schemes {
		k, other := countingKey(t, scheme), fromSeed(t, scheme, rfc8032Seed1)
		message := []byte("message")
		signature, err := k.Sign(message)
		if err != nil {
			t.Fatal(err)
		}
		again, err := k.Sign(message)
		if err != nil || !bytes.Equal(signature, again) {
			t.Errorf("%s: signing is not deterministic (%v)", scheme, err)
		}
		if !k.Public().Verify(message, signature) {
			t.Fatalf("%s: the signature does not verify", scheme)
		}
		for i := range 8 {
			bad := bytes.Clone(signature)
			bad[i*len(bad)/8] ^= 1
			if k.Public().Verify(message, bad) {
				t.Errorf("%s: verifies with octet %d changed", scheme, i*len(bad)/8)
			}
		}
		for _, bad := range [][]byte{nil, {}, signature[:len(signature)-1], append(bytes.Clone(signature), 0)} {
			if k.Public().Verify(message, bad) {
				t.Errorf("%s: a signature of %d octets verifies", scheme, len(bad))
			}
		}
		if k.Public().Verify([]byte("massage"), signature) || other.Public().Verify(message, signature) || (PublicKey{}).Verify(message, signature) {
			t.Errorf("%s: verifies for another message or key", scheme)
		}
	}
}

func TestPublicKeysHaveTheirSchemesLength(t *testing.T) {
	for _, scheme := range schemes {
		k := countingKey(t, scheme).Public()
		raw := k.Append([]byte{0xff})[1:]
		got, err := NewPublicKey(scheme, raw)
		if err != nil || got != k || !got.Equal(k) || got.Scheme() != scheme || got.Len() != len(raw) {
			t.Errorf("%s: %v", scheme, err)
		}
		raw[0] ^= 1 // the key holds a copy
		if !got.Equal(k) {
			t.Errorf("%s: a key changed after it was made", scheme)
		}
		for _, n := range []int{0, len(raw) - 1, len(raw) + 1} {
			if _, err := NewPublicKey(scheme, make([]byte, n)); !errors.Is(err, ErrKeyLen) {
				t.Errorf("%s: key of %d octets: %v", scheme, n, err)
			}
		}
		parsed, err := ParsePublicKey(k.String())
		if err != nil || parsed != k {
			t.Errorf("%s: parse: %v", scheme, err)
		}
		if parsed, err := ParsePublicKey(strings.ToUpper(k.String())); err != nil || parsed != k {
			t.Errorf("%s: parse upper case: %v", scheme, err)
		}
	}
	if _, err := NewPublicKey(0x0804, make([]byte, 32)); !errors.Is(err, ErrScheme) {
		t.Errorf("unknown scheme: %v", err)
	}
	for _, text := range []string{"", "00", rfc8032Public1[1:], rfc8032Public1 + "00", "0x" + rfc8032Public1[2:], strings.Repeat("g", 64), " " + rfc8032Public1[1:]} {
		if _, err := ParsePublicKey(text); !errors.Is(err, ErrKeyText) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestNoKeyEqualsNothing(t *testing.T) {
	a, b := countingKey(t, profiles.Ed25519).Public(), fromSeed(t, profiles.Ed25519, rfc8032Seed1).Public()
	var none PublicKey
	if a.Equal(b) || a.Equal(none) || none.Equal(a) || none.Equal(none) || !a.Equal(a) {
		t.Error("Equal")
	}
	if !none.IsZero() || a.IsZero() || none.String() != "" || none.Handle() != "" || none.Len() != 0 {
		t.Error("the zero key is something")
	}
	// The same octets under another scheme are another key.
	if (PublicKey{profiles.MLDSA87, a.raw}).Equal(a) {
		t.Error("schemes are mixed up")
	}
}

// PeerHandle companion, section 2; the expected text comes from a computation
// with Python's hashlib and base64.
func TestHandleIsTheMultihashOfTheTaggedKey(t *testing.T) {
	k, err := ParsePublicKey(rfc8032Public1)
	if err != nil {
		t.Fatal(err)
	}
	if got := k.Handle(); got != "bciqn3e4opqx2aihkydyc7c6uif5vn3odubjjhe6rsc5fpdltyr4aizy" {
		t.Errorf("Ed25519: %s", got)
	}
	raw := make([]byte, 2592)
	for i := range raw {
		raw[i] = byte(i)
	}
	k, err = NewPublicKey(profiles.MLDSA87, raw)
	if err != nil {
		t.Fatal(err)
	}
	if got := k.Handle(); got != "bciqhlx3gosmzl2oxjrj4stooh7qccdfjjcp3xyhxonznede7u26tiua" {
		t.Errorf("ML-DSA-87: %s", got)
	}
}

func TestGenerate(t *testing.T) {
	for _, scheme := range schemes {
		a, err := Generate(scheme, nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := Generate(scheme, nil)
		if err != nil {
			t.Fatal(err)
		}
		if a.Public().Equal(b.Public()) || a.Public().Scheme() != scheme {
			t.Errorf("%s: two keys are one", scheme)
		}
		c, err := Generate(scheme, bytes.NewReader(unhex(t, rfc8032Seed1)))
		if err != nil || !c.Public().Equal(fromSeed(t, scheme, rfc8032Seed1).Public()) {
			t.Errorf("%s: not the seed's key (%v)", scheme, err)
		}
		if _, err := Generate(scheme, bytes.NewReader(make([]byte, SeedLen-1))); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: short randomness: %v", scheme, err)
		}
	}
	if _, err := Generate(1, nil); !errors.Is(err, ErrScheme) {
		t.Errorf("unknown scheme: %v", err)
	}
	if _, err := FromSeed(1, [SeedLen]byte{}); !errors.Is(err, ErrScheme) {
		t.Errorf("unknown scheme: %v", err)
	}
}

func TestWipedKeyIsUseless(t *testing.T) {
	for _, scheme := range schemes {
		k := countingKey(t, scheme)
		var private any
		switch s := k.signer.(type) {
		case ed25519Signer:
			private = &s
		case mldsaSigner:
			private = s.key
		}
		k.Wipe()
		k.Wipe()
		if s, ok := private.(*ed25519Signer); ok && !bytes.Equal(*s, make([]byte, ed25519.PrivateKeySize)) {
			t.Error("the private key is left")
		}
		if scheme == profiles.MLDSA87 && !reflect.ValueOf(private).Elem().IsZero() {
			t.Error("the private key is left")
		}
		if k.seed != [SeedLen]byte{} {
			t.Error("the seed is left")
		}
		if _, err := k.Sign(nil); !errors.Is(err, ErrWiped) {
			t.Errorf("%s: Sign: %v", scheme, err)
		}
		if _, err := k.MarshalPEM(); !errors.Is(err, ErrWiped) {
			t.Errorf("%s: MarshalPEM: %v", scheme, err)
		}
	}
}

func TestSeedIsNotPrinted(t *testing.T) {
	for _, scheme := range schemes {
		k := fromSeed(t, scheme, strings.Repeat("c3", SeedLen))
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d", "%q"} {
			out := fmt.Sprintf(verb, k)
			if !strings.Contains(out, "redacted") || strings.Contains(out, "c3c3c3") || strings.Contains(out, "195 195") || strings.Contains(out, "0xc3, 0xc3") {
				t.Errorf("%s prints %q", verb, out)
			}
		}
	}
}

func TestPinAcceptsOneKey(t *testing.T) {
	a, b := countingKey(t, profiles.Ed25519).Public(), fromSeed(t, profiles.Ed25519, rfc8032Seed1).Public()
	if err := Pin(a)(a); err != nil {
		t.Error(err)
	}
	for _, err := range []error{Pin(a)(b), Pin(a)(PublicKey{}), Pin(PublicKey{})(a), Pin(PublicKey{})(PublicKey{})} {
		if !errors.Is(err, ErrPeerNotAllowed) {
			t.Errorf("%v", err)
		}
	}
}

func TestAllowListAcceptsItsKeys(t *testing.T) {
	a, b := countingKey(t, profiles.Ed25519).Public(), countingKey(t, profiles.MLDSA87).Public()
	other := fromSeed(t, profiles.Ed25519, rfc8032Seed1).Public()
	verify := AllowList(NewSet(a, b, PublicKey{}))
	if verify(a) != nil || verify(b) != nil {
		t.Error("a listed key is refused")
	}
	for _, err := range []error{verify(other), verify(PublicKey{}), AllowList(nil)(a), AllowList(NewSet())(a)} {
		if !errors.Is(err, ErrPeerNotAllowed) {
			t.Errorf("%v", err)
		}
	}
	if NewSet(a, a, PublicKey{}).Len() != 1 || (*Set)(nil).Len() != 0 {
		t.Error("Len")
	}
}

func BenchmarkSign(b *testing.B) {
	for _, scheme := range schemes {
		k := countingKey(b, scheme)
		message := make([]byte, 131)
		signature, err := k.Sign(message)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(scheme.String()+"/sign", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := k.Sign(message); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(scheme.String()+"/verify", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if !k.Public().Verify(message, signature) {
					b.Fatal("does not verify")
				}
			}
		})
	}
}
