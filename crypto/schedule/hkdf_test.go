package schedule

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"hash"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/profiles"
)

var hashes = []profiles.Hash{profiles.SHA256, profiles.SHA384}

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

// RFC 5869 appendix A.1 and A.3 (SHA-256; A.3 has neither salt nor info).
func TestHKDFAgreesWithRFC5869(t *testing.T) {
	for _, c := range []struct {
		salt, ikm, info, prk, okm string
	}{
		{
			"000102030405060708090a0b0c", "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b", "f0f1f2f3f4f5f6f7f8f9",
			"077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5",
			"3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
		},
		{
			"", "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b", "",
			"19ef24a32c717b167f33a91d6f648bdf96596776afdb6377ac434c1c293ccb04",
			"8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
		},
	} {
		prk := Extract(profiles.SHA256, unhex(t, c.salt), unhex(t, c.ikm))
		equal(t, "PRK", prk, c.prk)
		okm := make([]byte, len(c.okm)/2)
		if err := Expand(profiles.SHA256, prk, unhex(t, c.info), okm); err != nil {
			t.Fatal(err)
		}
		equal(t, "OKM", okm, c.okm)
	}
}

// RFC 8448 section 3: with TLS's prefix the same construction gives the client
// handshake keys of the published trace. Ours differs in the prefix alone.
func TestExpandLabelIsTLSsButForThePrefix(t *testing.T) {
	secret := unhex(t, "b3eddb126e067f35a780b3abf45e2d8f3b1a950738f52e9600746a0e27a55a21")
	for _, c := range []struct{ label, tls string }{
		{"key", "dbfaa693d1762c5b666af5d950258d01"},
		{"iv", "5bd3c71b836e0b76bb73265f"},
		{"finished", "b80ad01015fb2f0bd65ff7d4da5d6bf83f84821d1f87fdc7d3c75b5a7b42d9c4"},
	} {
		n := len(c.tls) / 2
		info := func(prefix string) []byte {
			b := []byte{byte(n >> 8), byte(n), byte(len(prefix) + len(c.label))}
			return append(append(b, prefix+c.label...), 0)
		}
		out := make([]byte, n)
		if err := Expand(profiles.SHA256, secret, info("tls13 "), out); err != nil {
			t.Fatal(err)
		}
		equal(t, "TLS "+c.label, out, c.tls)

		want := make([]byte, n)
		if err := Expand(profiles.SHA256, secret, info("n-pamp "), want); err != nil {
			t.Fatal(err)
		}
		if err := ExpandLabel(profiles.SHA256, secret, c.label, nil, out); err != nil || !bytes.Equal(out, want) {
			t.Errorf("%s: %x, %v, want %x", c.label, out, err, want)
		}
	}
}

// RFC 4231 test cases 1, 2 and 6 (a key longer than the block), both hashes.
func TestMACAgreesWithRFC4231(t *testing.T) {
	long := bytes.Repeat([]byte{0xaa}, 131)
	for _, c := range []struct {
		key    []byte
		data   string
		s, s38 string
	}{
		{
			bytes.Repeat([]byte{0x0b}, 20), "Hi There",
			"b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
			"afd03944d84895626b0825f4ab46907f15f9dadbe4101ec682aa034c7cebc59cfaea9ea9076ede7f4af152e8b2fa9cb6",
		},
		{
			[]byte("Jefe"), "what do ya want for nothing?",
			"5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
			"af45d2e376484031617f78d2b58a6b1b9c7ef464f5a01b47e42ec3736322445e8e2240ca5e69e2c78b3239ecfab21649",
		},
		{
			long, "Test Using Larger Than Block-Size Key - Hash Key First",
			"60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
			"4ece084485813e9088d2c63a041bc5b44f9ef1012a2b588f3cd11f05033ac4c60c2ef6ab4030fe8296248df163f44952",
		},
	} {
		var d digest
		mac(profiles.SHA256, c.key, &d, []byte(c.data[:3]), []byte(c.data[3:]))
		equal(t, "HMAC-SHA-256", d[:32], c.s)
		mac(profiles.SHA384, c.key, &d, []byte(c.data))
		equal(t, "HMAC-SHA-384", d[:], c.s38)
	}
}

// Our HMAC and HKDF against the standard library's, over lengths around every
// internal boundary.
func TestHKDFAgreesWithTheStandardLibrary(t *testing.T) {
	lengths := []int{0, 1, 31, 32, 33, 47, 48, 63, 64, 65, 127, 128, 129, 300, 511, 512, 513, 900}
	random := make([]byte, 1000)
	rand.Read(random)
	for _, h := range hashes {
		for _, n := range lengths {
			key, msg := random[:n], random[50:]
			for _, m := range lengths {
				var d digest
				mac(h, key, &d, msg[:m])
				std := hmac.New(h.New, key)
				std.Write(msg[:m])
				if !bytes.Equal(d[:h.Size()], std.Sum(nil)) {
					t.Fatalf("%v: HMAC differs at key %d, message %d", h, n, m)
				}
			}
			prk, err := hkdf.Extract(func() hash.Hash { return h.New() }, msg[:n], key)
			if err != nil {
				t.Fatal(err)
			}
			if got := Extract(h, key, msg[:n]); len(got) != h.Size() {
				t.Fatalf("%v: Extract gives %d octets", h, len(got))
			}
			if got := Extract(h, key, key); len(key) > 0 && bytes.Equal(got, prk) {
				t.Fatalf("%v: salt and key material are interchangeable", h)
			}
			out := make([]byte, n)
			if err := Expand(h, prk, msg[:n], out); err != nil {
				t.Fatal(err)
			}
			want, err := hkdf.Expand(func() hash.Hash { return h.New() }, prk, string(msg[:n]), n)
			if err != nil || !bytes.Equal(out, want) {
				t.Fatalf("%v: Expand of %d octets differs (%v)", h, n, err)
			}
		}
	}
}

func TestExpandRefusesWhatDoesNotFit(t *testing.T) {
	secret := make([]byte, 32)
	for _, h := range hashes {
		if err := Expand(h, secret, nil, make([]byte, 255*h.Size())); err != nil {
			t.Errorf("%v: 255 digests: %v", h, err)
		}
		// RFC 5869 section 2.3.
		out := make([]byte, 255*h.Size()+1)
		if err := ExpandLabel(h, secret, "key", nil, out); !errors.Is(err, ErrLength) {
			t.Errorf("%v: more than 255 digests: %v", h, err)
		}
		if !bytes.Equal(out, make([]byte, len(out))) {
			t.Errorf("%v: a refused output was written", h)
		}
		if err := ExpandLabel(h, secret, strings.Repeat("x", 249), nil, secret); !errors.Is(err, ErrLabel) {
			t.Errorf("%v: label of 249 octets: %v", h, err)
		}
		if err := ExpandLabel(h, secret, "", make([]byte, 256), secret); !errors.Is(err, ErrLabel) {
			t.Errorf("%v: context of 256 octets: %v", h, err)
		}
		if err := ExpandLabel(h, secret, strings.Repeat("x", 248), make([]byte, 255), secret); err != nil {
			t.Errorf("%v: longest label and context: %v", h, err)
		}
		if err := ExpandLabel(h, secret, "key", nil, make([]byte, 0x10000)); !errors.Is(err, ErrLength) {
			t.Errorf("%v: length over 16 bits: %v", h, err)
		}
	}
	if err := Expand(0, secret, nil, secret); !errors.Is(err, ErrHash) {
		t.Errorf("unknown hash: %v", err)
	}
	if Extract(0, nil, secret) != nil {
		t.Error("unknown hash extracts")
	}
}

func TestExpandLabelDoesNotAllocate(t *testing.T) {
	secret, context, out := make([]byte, 32), make([]byte, 13), make([]byte, 32)
	for _, h := range hashes {
		if n := testing.AllocsPerRun(100, func() { _ = ExpandLabel(h, secret, "traffic", context, out) }); n != 0 {
			t.Errorf("%v: %v allocations", h, n)
		}
	}
}

func BenchmarkExpandLabel(b *testing.B) {
	secret, context, out := make([]byte, 32), make([]byte, 13), make([]byte, 32)
	for _, h := range hashes {
		b.Run(h.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = ExpandLabel(h, secret, "traffic", context, out)
			}
		})
	}
}
