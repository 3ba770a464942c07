package aesgcm

import (
	"encoding/hex"
	"errors"
	"testing"
)

// The test cases for AES-128 and AES-256 of the GCM specification that NIST
// published with the proposal (McGrew and Viega, appendix B) and that SP 800-38D
// refers to. Those whose nonces have not 12 octets are refused here; they show
// that the reference of the other tests is right.
func TestPublishedVectors(t *testing.T) {
	const (
		key128 = "feffe9928665731c6d6a8f9467308308"
		key256 = key128 + key128
		zero   = "00000000000000000000000000000000"
		nonce0 = "000000000000000000000000"
		nonce  = "cafebabefacedbaddecaf888"
		nonce8 = "cafebabefacedbad"

		nonce60 = "9313225df88406e555909c5aff5269aa6a7a9538534f7da1e4c303d2a318a728c3c0c95156809539fcf0e2429a6b525416aedbf5a0de6a57a637b39b"
		aad     = "feedfacedeadbeeffeedfacedeadbeefabaddad2"
		text60  = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
		text    = text60 + "1aafd255"
	)
	for name, v := range map[string]struct{ key, nonce, aad, plain, sealed string }{
		"1":  {zero, nonce0, "", "", "58e2fccefa7e3061367f1d57a4e7455a"},
		"2":  {zero, nonce0, "", zero, "0388dace60b6a392f328c2b971b2fe78" + "ab6e47d42cec13bdf53a67b21257bddf"},
		"3":  {key128, nonce, "", text, "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091473f5985" + "4d5c2af327cd64a62cf35abd2ba6fab4"},
		"4":  {key128, nonce, aad, text60, "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091" + "5bc94fbc3221a5db94fae95ae7121a47"},
		"5":  {key128, nonce8, aad, text60, "61353b4c2806934a777ff51fa22a4755699b2a714fcdc6f83766e5f97b6c742373806900e49f24b22b097544d4896b424989b5e1ebac0f07c23f4598" + "3612d2e79e3b0785561be14aaca2fccb"},
		"6":  {key128, nonce60, aad, text60, "8ce24998625615b603a033aca13fb894be9112a5c3a211a8ba262a3cca7e2ca701e4a9a4fba43c90ccdcb281d48c7c6fd62875d2aca417034c34aee5" + "619cc5aefffe0bfa462af43c1699d050"},
		"13": {zero + zero, nonce0, "", "", "530f8afbc74536b9a963b4f1c4cb738b"},
		"14": {zero + zero, nonce0, "", zero, "cea7403d4d606b6e074ec5d3baf39d18" + "d0d1c8a799996bf0265b98b5d48ab919"},
		"15": {key256, nonce, "", text, "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad" + "b094dac5d93471bdec1a502270e3cc6c"},
		"17": {key256, nonce8, aad, text60, "c3762df1ca787d32ae47c13bf19844cbaf1ae14d0b976afac52ff7d79bba9de0feb582d33934a4f0954cc2363bc73f7862ac430e64abe499f47c9b1f" + "3a337dbf46a792c45e454913fe2ea8f2"},
		"18": {key256, nonce60, aad, text60, "5a8def2f0c9e53f1f75d7853659e2a20eeb2b22aafde6419a058ab4f6f746bf40fc0c3b780f244452da3ebf1c5d82cdea2418997200ef82e44ae7e3f" + "a44a8266ee1c8eb0c8b5d4cf5ae9f19a"},
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
			ref := newReference(t, in(v.key)).seal(in(v.nonce), in(v.plain), in(v.aad))
			if got := hex.EncodeToString(ref); got != v.sealed {
				t.Fatalf("the plain reference seals %s, want %s", got, v.sealed)
			}
			for _, i := range implementations() {
				a := mustAEAD(t, i, in(v.key))
				if len(in(v.nonce)) != NonceSize {
					if !panics(func() { a.Seal(nil, in(v.nonce), in(v.plain), in(v.aad)) }) {
						t.Errorf("%s: a nonce of %d octets is taken", i, len(in(v.nonce)))
					}
					continue
				}
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
