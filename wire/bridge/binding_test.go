package bridge

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

const digest32 = `000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f`

func TestBindingLayout(t *testing.T) {
	for _, tt := range []struct {
		name string
		hex  string
		want Binding
	}{
		{
			"document", `01 02"d1" 10"application/json" 0004 20` + digest32 + `02 00 0000`,
			Binding{Part: PartDocument, DocID: []byte("d1"), MediaType: []byte("application/json"), Alg: DigestSHA256, Digest: unhex(t, digest32), ProofCount: 2},
		},
		{
			"proof", proofBinding,
			Binding{Part: PartProof, DocID: []byte("d1"), Alg: DigestSHA256, Digest: unhex(t, digest32), ProofCount: 3, ProofIndex: 2, ProofAlg: 0x0807},
		},
		{
			"proof with media type and SHA-384", `02 01"d" 03"a/b" 0005 30` + digest32 + digest32[:32] + `ff fe 0905`,
			Binding{Part: PartProof, DocID: []byte("d"), MediaType: []byte("a/b"), Alg: DigestSHA384, Digest: unhex(t, digest32+digest32[:32]), ProofCount: 255, ProofIndex: 254, ProofAlg: 0x0905},
		},
		{
			"longest", `01 ff"` + strings.Repeat("d", 255) + `" ff"` + strings.Repeat("m", 255) + `" 0006 40` + digest32 + digest32 + `00 00 0000`,
			Binding{Part: PartDocument, DocID: bytes.Repeat([]byte("d"), 255), MediaType: bytes.Repeat([]byte("m"), 255), Alg: DigestSHA512, Digest: unhex(t, digest32+digest32)},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := unhex(t, tt.hex)
			got, err := ParseBinding(v)
			if err != nil {
				t.Fatal(err)
			}
			if diff := bindingDiff(&got, &tt.want); diff != "" {
				t.Errorf("parsed %s", diff)
			}
			if out, err := tt.want.Append([]byte("x")); err != nil || !bytes.Equal(out[1:], v) {
				t.Errorf("appended %x, %v", out, err)
			}
			for n := range v {
				if _, err := ParseBinding(v[:n:n]); err != ErrBindingTruncated {
					t.Fatalf("%d octets: %v", n, err)
				}
			}
			if _, err := ParseBinding(append(v, 0)); err != ErrBindingTrailing {
				t.Error(err)
			}
		})
	}
}

func bindingDiff(a, b *Binding) string {
	switch {
	case a.Part != b.Part:
		return "part"
	case !bytes.Equal(a.DocID, b.DocID):
		return "document id"
	case !bytes.Equal(a.MediaType, b.MediaType):
		return "media type"
	case a.Alg != b.Alg:
		return "digest algorithm"
	case !bytes.Equal(a.Digest, b.Digest):
		return "digest"
	case a.ProofCount != b.ProofCount, a.ProofIndex != b.ProofIndex, a.ProofAlg != b.ProofAlg:
		return "proof"
	}
	return ""
}

func TestBindingRejects(t *testing.T) {
	for _, tt := range []struct {
		name string
		hex  string
		want error
	}{
		{"part 0", `00 02"d1" 00 0004 20` + digest32 + `00 00 0000`, ErrBindingPart},
		{"part 3", `03 02"d1" 00 0004 20` + digest32 + `00 00 0000`, ErrBindingPart},
		{"empty document id", `01 00 03"a/b" 0004 20` + digest32 + `00 00 0000`, ErrBindingDocID},
		{"document without media type", `01 02"d1" 00 0004 20` + digest32 + `00 00 0000`, ErrBindingMediaType},
		{"media type not UTF-8", `01 02"d1" 01 ff 0004 20` + digest32 + `00 00 0000`, ErrBindingMediaType},
		{"unknown digest", `01 02"d1" 03"a/b" 0002 20` + digest32 + `00 00 0000`, ErrBindingDigestAlg},
		{"digest too short", `01 02"d1" 03"a/b" 0005 20` + digest32 + `00 00 0000`, ErrBindingDigest},
		{"digest too long", `01 02"d1" 03"a/b" 0004 21` + digest32 + `ff 00 00 0000`, ErrBindingDigest},
		{"index equal to count", `02 02"d1" 00 0004 20` + digest32 + `02 02 0807`, ErrBindingProof},
		{"proof of none", `02 02"d1" 00 0004 20` + digest32 + `00 00 0807`, ErrBindingProof},
		{"document with proof algorithm", `01 02"d1" 03"a/b" 0004 20` + digest32 + `01 00 0807`, ErrBindingProof},
	} {
		_, err := ParseBinding(unhex(t, tt.hex))
		if err != tt.want || !errors.Is(err, ErrMalformed) || CodeOf(err) != CodeBindingMalformed {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
	// CC-DOC 6.2: a document's proof_index is ignored by who reads it.
	if _, err := ParseBinding(unhex(t, `01 02"d1" 03"a/b" 0004 20`+digest32+`01 07 0000`)); err != nil {
		t.Error(err)
	}
}

func TestBindingAppendRefuses(t *testing.T) {
	good := func() Binding {
		return Binding{Part: PartDocument, DocID: []byte("d"), MediaType: []byte("a/b"), Alg: DigestSHA256, Digest: make([]byte, 32)}
	}
	for _, tt := range []struct {
		name string
		f    func(*Binding)
		want error
	}{
		{"index on a document", func(b *Binding) { b.ProofIndex = 1 }, ErrBindingProof},
		{"document id of 256 octets", func(b *Binding) { b.DocID = make([]byte, 256) }, ErrValueTooLong},
		{"media type of 256 octets", func(b *Binding) { b.MediaType = make([]byte, 256) }, ErrValueTooLong},
		{"no document id", func(b *Binding) { b.DocID = nil }, ErrBindingDocID},
		{"short digest", func(b *Binding) { b.Digest = b.Digest[1:] }, ErrBindingDigest},
	} {
		b := good()
		tt.f(&b)
		if out, err := b.Append([]byte("x")); err != tt.want || string(out) != "x" {
			t.Errorf("%s: %x, %v; want %v", tt.name, out, err, tt.want)
		}
	}
}

// What is accepted can be written again; the one octet that is ignored aside,
// as it was.
func FuzzBinding(f *testing.F) {
	f.Add(unhex(f, proofBinding))
	f.Add(unhex(f, `01 02"d1" 03"a/b" 0004 20`+digest32+`01 07 0000`))
	f.Add(unhex(f, `01 02"d1" 03"a/b" 0005 30`+digest32))
	f.Fuzz(func(t *testing.T, v []byte) {
		b, err := ParseBinding(v)
		if err != nil {
			if CodeOf(err) != CodeBindingMalformed {
				t.Fatal(err)
			}
			return
		}
		if b.Part == PartDocument {
			b.ProofIndex = 0
			v = bytes.Clone(v)
			v[len(v)-3] = 0
		}
		if out, err := b.Append(nil); err != nil || !bytes.Equal(out, v) {
			t.Fatalf("%x became %x, %v", v, out, err)
		}
	})
}

func TestMediaType(t *testing.T) {
	for s, want := range map[string]bool{
		"text/plain":                         true,
		"application/vnd.example.v1+json":    true,
		"text/plain; charset=utf-8":          true,
		"text/plain;charset=utf-8":           true,
		"text/plain \t; \tcharset=utf-8":     true,
		`text/plain; a="b; c"; d=e`:          true,
		`text/plain; a="b\"c"`:               true,
		"text/plain;":                        true,
		"a/b; ;c=d":                          true,
		"!#$%&'*+-.^_`|~/0":                  true,
		"":                                   false,
		"text":                               false,
		"text/":                              false,
		"/plain":                             false,
		" text/plain":                        false,
		"text /plain":                        false,
		"text/plain charset=utf-8":           false,
		"text/plain ":                        false,
		"text/plain; charset":                false,
		"text/plain; charset=":               false,
		"text/plain; =utf-8":                 false,
		"text/plain; charset =utf-8":         false,
		`text/plain; a="b`:                   false,
		`text/plain; a="b\`:                  false,
		`text/plain; a="b"c`:                 false,
		"text/plain; a=\"\x00\"":             false,
		"text/plain; a=\"\\\x00\"":           false,
		"text/plain; a=\"é\"":                false,
		"text/plain\x00":                     false,
		"text/plain\r\n":                     false,
		"text/pläin":                         false,
		"text/plain, text/html":              false,
		"text/plain/html":                    false,
		"application/json; charset=\"utf8\"": true,
	} {
		if validMediaType([]byte(s)) != want {
			t.Errorf("%q: %v", s, !want)
		}
	}
}

func FuzzMediaType(f *testing.F) {
	f.Add([]byte(`text/plain; a="b\"c"; d=e`))
	f.Add([]byte("a/b;"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if !validMediaType(b) {
			return
		}
		for _, c := range b {
			if c >= 0x7F || c < ' ' && c != '\t' {
				t.Fatalf("%q has %#x", b, c)
			}
		}
		if n := bytes.IndexByte(b, '/'); n <= 0 || n == len(b)-1 {
			t.Fatalf("%q", b)
		}
	})
}
