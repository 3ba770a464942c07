package aesgcm

import (
	"encoding/hex"
	"errors"
	"testing"
)

// The test cases with 12-octet nonces of the GCM specification that NIST
// published with the proposal (McGrew and Viega, appendix B) and that SP 800-38D
// refers to.
func TestPublishedVectors(t *testing.T) {
	const (
		key128 = "feffe9928665731c6d6a8f9467308308"
		key256 = key128 + key128
		zero   = "00000000000000000000000000000000"
		nonce0 = "000000000000000000000000"
		nonce  = "cafebabefacedbaddecaf888"
		aad    = "feedfacedeadbeeffeedfacedeadbeefabaddad2"
		text60 = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
		text   = text60 + "1aafd255"
	)
	for name, v := range map[string]struct{ key, nonce, aad, plain, sealed string }{
		"1":  {zero, nonce0, "", "", "58e2fccefa7e3061367f1d57a4e7455a"},
		"2":  {zero, nonce0, "", zero, "0388dace60b6a392f328c2b971b2fe78" + "ab6e47d42cec13bdf53a67b21257bddf"},
		"3":  {key128, nonce, "", text, "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091473f5985" + "4d5c2af327cd64a62cf35abd2ba6fab4"},
		"4":  {key128, nonce, aad, text60, "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091" + "5bc94fbc3221a5db94fae95ae7121a47"},
		"13": {zero + zero, nonce0, "", "", "530f8afbc74536b9a963b4f1c4cb738b"},
		"14": {zero + zero, nonce0, "", zero, "cea7403d4d606b6e074ec5d3baf39d18" + "d0d1c8a799996bf0265b98b5d48ab919"},
		"15": {key256, nonce, "", text, "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad" + "b094dac5d93471bdec1a502270e3cc6c"},
		"16": {key256, nonce, aad, text60, "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662" + "76fc6ece0f4e1768cddf8853bb2d551b"},
	} {
		t.Run(name, func(t *testing.T) {
			in := func(s string) []byte {
				b, err := hex.DecodeString(s)
				if err != nil {
					t.Fatal(err)
				}
				return b
			}
			for _, i := range implementations() {
				a := mustAEAD(t, i, in(v.key))
				sealed := a.Seal(nil, in(v.nonce), in(v.plain), in(v.aad))
				if got := hex.EncodeToString(sealed); got != v.sealed {
					t.Errorf("%s: sealed %s, want %s", i, got, v.sealed)
				}
				plain, err := a.Open(nil, in(v.nonce), in(v.sealed), in(v.aad))
				if got := hex.EncodeToString(plain); err != nil || got != v.plain {
					t.Errorf("%s: opened %s, %v, want %s", i, got, err, v.plain)
				}
				sealed[0] ^= 0x80
				if _, err := a.Open(nil, in(v.nonce), sealed, in(v.aad)); !errors.Is(err, ErrOpen) {
					t.Errorf("%s: a forgery gives %v", i, err)
				}
			}
		})
	}
}
