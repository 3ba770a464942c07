package kem

import (
	"bytes"
	"testing"

	"github.com/trestle-npamp/trestle/internal/vectors"
	"github.com/trestle-npamp/trestle/profiles"
)

func TestVectorsKEMWire(t *testing.T) {
	var f struct {
		KeyGen struct{ D, Z, EK string } `json:"mlkem768_keygen"`
		X25519 struct {
			AlicePrivate string `json:"alice_private"`
			AlicePublic  string `json:"alice_public"`
			BobPrivate   string `json:"bob_private"`
			BobPublic    string `json:"bob_public"`
			Shared       string `json:"shared_secret"`
		} `json:"x25519_rfc7748_6_1"`
		Decaps map[string]string `json:"mlkem768_decaps_reference"`
		Layout struct {
			Share      int `json:"kem_share_len"`
			Ciphertext int `json:"kem_ciphertext_len"`
			Secret     int `json:"combined_secret_len"`
		} `json:"wire_layout"`
	}
	if !vectors.Load(t, "kem-wire-kat.json", &f) {
		return
	}
	s := ByID(profiles.X25519MLKEM768)
	if s.ShareLen() != f.Layout.Share || s.CiphertextLen() != f.Layout.Ciphertext || SecretLen != f.Layout.Secret {
		t.Errorf("sizes %d, %d, %d", s.ShareLen(), s.CiphertextLen(), SecretLen)
	}
	k, err := s.Generate(bytes.NewReader(unhex(t, f.KeyGen.D+f.KeyGen.Z+f.X25519.AlicePrivate)))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "share", k.Share(), f.KeyGen.EK+f.X25519.AlicePublic)

	// The file has NIST's m, but the key it was used with only in a form that is
	// not given; m serves here as any randomness would.
	m := unhex(t, f.Decaps["encaps_randomness_m"])
	ct, sent, err := s.Encapsulate(bytes.NewReader(append(m, unhex(t, f.X25519.BobPrivate)...)), k.Share())
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "X25519 part of the ciphertext", ct[1088:], f.X25519.BobPublic)
	equal(t, "X25519 part of the secret", sent.Bytes()[32:], f.X25519.Shared)
	got, err := k.Decapsulate(ct)
	if err != nil || !bytes.Equal(got.Bytes(), sent.Bytes()) {
		t.Errorf("secrets differ (%v)", err)
	}
}
