package sched

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"testing"
)

func TestTokenLayout(t *testing.T) {
	s := NewSlots[int](1, 0xFFFF_FFFF_0000_5A5A, 1)
	slot, _ := s.Reserve()
	// role 1, nonce 0x5A5A of 15 bits, generation from the nonce's next 28 bits.
	want := Token(1<<63 | 0x5A5A<<48 | (0xFFFF_FFFF_0000_5A5A>>15&0xFFF_FFFF)<<20)
	if got := slot.Token(); got != want || got.Role() != 1 {
		t.Fatalf("token %#x, role %d, want %#x", got, got.Role(), want)
	}
}

func TestAppendCorrIsNaturalSeparatorToken(t *testing.T) {
	const token = Token(0x8123456789ABCDEF)
	for _, c := range []struct{ natural, want string }{
		{`1`, "31" + "00" + "8123456789abcdef"},
		{`"a"`, "226122" + "00" + "8123456789abcdef"},
		{``, "00" + "8123456789abcdef"},
	} {
		got := AppendCorr([]byte{0xEE}, []byte(c.natural), token)
		if hex.EncodeToString(got) != "ee"+c.want {
			t.Errorf("%q: %x", c.natural, got)
		}
		if len(got)-1 != CorrLen(len(c.natural)) {
			t.Errorf("%q: CorrLen %d, appended %d", c.natural, CorrLen(len(c.natural)), len(got)-1)
		}
		natural, tok, ok := ParseCorr(got[1:])
		if !ok || tok != token || string(natural) != c.natural {
			t.Errorf("%q: parsed %q, %#x, %v", c.natural, natural, tok, ok)
		}
	}
}

func TestAppendCorrHashesWhatIsTooLong(t *testing.T) {
	for n, hashed := range map[int]bool{246: false, 247: true, 4096: true} {
		natural := bytes.Repeat([]byte{'7'}, n)
		got := AppendCorr(nil, natural, 5)
		sum := sha256.Sum256(natural)
		want := natural
		if hashed {
			want = sum[:16]
		}
		parsed, tok, ok := ParseCorr(got)
		if !ok || tok != 5 || !bytes.Equal(parsed, want) || len(got) > MaxCorrLen || len(got) != CorrLen(n) {
			t.Errorf("%d octets: corr of %d octets, natural %x", n, len(got), parsed)
		}
	}
}

func TestParseCorrRefusesOtherForms(t *testing.T) {
	for _, corr := range [][]byte{
		nil,
		[]byte("1"),
		make([]byte, 8),
		[]byte("\x0112345678"),
		[]byte("0\x000123456789"),
		append(bytes.Repeat([]byte{1}, 247), make([]byte, 9)...),
	} {
		if _, _, ok := ParseCorr(corr); ok {
			t.Errorf("took %x apart", corr)
		}
	}
}

func TestParseCorrViewIsClipped(t *testing.T) {
	corr := AppendCorr(nil, []byte("ab"), 1)
	natural, _, _ := ParseCorr(corr)
	if cap(natural) != 2 {
		t.Fatal("appending to the natural part would overwrite the token")
	}
}

func FuzzParseCorr(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 9))
	f.Add(AppendCorr(nil, []byte(`"9f1c"`), 1<<63|77))
	f.Add(AppendCorr(nil, bytes.Repeat([]byte{'1'}, 246), 3))
	f.Fuzz(func(t *testing.T, corr []byte) {
		natural, tok, ok := ParseCorr(corr)
		if !ok {
			if natural != nil || tok != 0 {
				t.Fatal("a refused corr gave something out")
			}
			return
		}
		if back := AppendCorr(nil, natural, tok); !bytes.Equal(back, corr) {
			t.Fatalf("%x came back as %x", corr, back)
		}
	})
}

func TestCorrAllocatesNothing(t *testing.T) {
	long := bytes.Repeat([]byte{'9'}, 1000)
	dst := make([]byte, 0, MaxCorrLen)
	noAllocs(t, func() {
		ParseCorr(AppendCorr(dst, []byte("12"), 7))
		ParseCorr(AppendCorr(dst, long, 7))
	})
}
