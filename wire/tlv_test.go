package wire

import (
	"bytes"
	"errors"
	"testing"
)

func TestTLVLayout(t *testing.T) {
	tests := []struct {
		typ   TLVType
		value string
		hex   string
	}{
		{TagProfileSelect, "", "00020000"},
		{TagProfileSelect, "01", "0002000101"},
		{TagKeyUpdateMarker, "0000000000000001", "001700080000000000000001"},
		{TagRatchetGeneration, "00000000000000ff", "0019000800000000000000ff"},
		{0x8001, "abcd", "80010002abcd"}, // sending one is legal
	}
	for _, tt := range tests {
		want, value := unhex(t, tt.hex), unhex(t, tt.value)
		got := AppendTLV([]byte("x"), tt.typ, value)
		if !bytes.Equal(got[1:], want) {
			t.Errorf("appended %x, want %x", got[1:], want)
		}
		v, n, err := ConsumeTLV(append(got[1:], "rest"...))
		if err != nil || n != len(want) || v.Type != tt.typ || !bytes.Equal(v.Value, value) || v.Len() != n {
			t.Errorf("read %v %d %v", v, n, err)
		}
		if cap(v.Value) != len(value) {
			t.Errorf("value's capacity %d runs into what follows", cap(v.Value))
		}
	}
	long := make([]byte, MaxTLVLen)
	v, n, err := ConsumeTLV(AppendTLV(nil, 1, long))
	if err != nil || n != TLVHeaderLen+MaxTLVLen || len(v.Value) != MaxTLVLen {
		t.Error(n, err)
	}
}

func TestTLVTruncated(t *testing.T) {
	whole := AppendTLV(nil, TagKEMSelect, []byte{0x11, 0xEC})
	for n := range whole {
		v, used, err := ConsumeTLV(whole[:n:n])
		if !errors.Is(err, ErrTLVTruncated) || used != 0 || v.Value != nil {
			t.Errorf("%d octets: %v %d %v", n, v, used, err)
		}
	}
	if _, _, err := ConsumeTLV([]byte{0, 1, 0xFF, 0xFF, 1}); !errors.Is(err, ErrTLVTruncated) {
		t.Error(err)
	}
}

func TestTLVUnknownIsSkippedUnlessCritical(t *testing.T) {
	known := TLVSetOf(TagKEMShare, TagRatchetGeneration)
	b := AppendTLV(nil, 0x0033, []byte("skipped"))
	b = AppendTLV(b, 0x7FFF, nil)
	b = AppendTLV(b, TagKEMCiphertext, []byte("known elsewhere"))
	first := len(b)
	b = AppendTLV(b, TagKEMShare, []byte("share"))
	second := len(b)
	b = AppendTLV(b, 0x0040, []byte("beyond the set"))
	v, n, err := ConsumeKnownTLV(b, known)
	if err != nil || v.Type != TagKEMShare || string(v.Value) != "share" || n != second {
		t.Fatalf("%v %d %v, first at %d", v, n, err, first)
	}
	v, used, err := ConsumeKnownTLV(b[n:], known)
	if err != nil || v.Type != 0 || n+used != len(b) {
		t.Errorf("%v %d %v", v, used, err)
	}
	if v, n, err := ConsumeKnownTLV(nil, known); err != nil || v.Type != 0 || n != 0 {
		t.Errorf("%v %d %v", v, n, err)
	}
	critical := AppendTLV(AppendTLV(nil, 0x8001, nil), TagKEMShare, nil)
	if _, n, err := ConsumeKnownTLV(critical, known); !errors.Is(err, ErrTLVCritical) || n != 0 {
		t.Error(n, err)
	}
	if _, n, err := ConsumeKnownTLV([]byte{0, 7, 0}, known); !errors.Is(err, ErrTLVTruncated) || n != 0 {
		t.Error(n, err)
	}
	for typ, want := range map[TLVType]bool{0: false, 0x7FFF: false, 0x8000: true, 0xFFFF: true} {
		if typ.Critical() != want {
			t.Errorf("Critical(%v) = %v", typ, !want)
		}
	}
}

func TestTLVCallersMistakesPanic(t *testing.T) {
	for name, f := range map[string]func(){
		"value too long":  func() { AppendTLV(nil, 1, make([]byte, MaxTLVLen+1)) },
		"negative length": func() { AppendTLVHeader(nil, 1, -1) },
		"type 0 in a set": func() { TLVSetOf(0) },
		"type over 63":    func() { TLVSetOf(64) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

// Reading TLV by TLV loses no octet and writes back the same ones.
func FuzzTLV(f *testing.F) {
	f.Add(unhex(f, "00020001010015000411111111"))
	f.Add(unhex(f, "80010000"))
	f.Add(unhex(f, "0017000800000000000000"))
	f.Fuzz(func(t *testing.T, b []byte) {
		b = b[:len(b):len(b)]
		var again []byte
		rest, critical := b, false
		for len(rest) > 0 {
			v, n, err := ConsumeTLV(rest)
			if err != nil {
				if err != ErrTLVTruncated || n != 0 {
					t.Fatal(n, err)
				}
				break
			}
			if n != v.Len() {
				t.Fatal(n, v.Len())
			}
			critical = critical || v.Type.Critical()
			again = AppendTLV(again, v.Type, v.Value)
			rest = rest[n:]
		}
		if !bytes.Equal(again, b[:len(b)-len(rest)]) {
			t.Fatalf("%x became %x", b, again)
		}
		known := TLVSetOf(1, 2, TagKeyUpdateMarker, 63)
		for at := 0; ; {
			v, n, err := ConsumeKnownTLV(b[at:], known)
			if err != nil {
				if len(rest) == 0 && !critical || err != ErrTLVTruncated && err != ErrTLVCritical {
					t.Fatal(err)
				}
				break
			}
			at += n
			if v.Type == 0 {
				if at != len(b) || len(rest) != 0 || critical {
					t.Fatal("ended early")
				}
				break
			}
			if !known.Has(v.Type) {
				t.Fatal(v.Type)
			}
		}
	})
}

func TestTLVAllocatesNothing(t *testing.T) {
	room := make([]byte, 0, 64)
	known := TLVSetOf(TagKeyUpdateMarker)
	value := []byte("12345678")
	if n := testing.AllocsPerRun(100, func() {
		b := AppendTLV(AppendTLV(room, 0x33, value), TagKeyUpdateMarker, value)
		if _, _, err := ConsumeTLV(b); err != nil {
			t.Fatal(err)
		}
		if v, _, err := ConsumeKnownTLV(b, known); err != nil || v.Type != TagKeyUpdateMarker {
			t.Fatal(err)
		}
		if _, _, err := ConsumeTLV(b[:3]); err == nil {
			t.Fatal("no error")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkConsumeTLV(b *testing.B) {
	v := AppendTLV(nil, TagKeyUpdateMarker, make([]byte, 8))
	b.ReportAllocs()
	for b.Loop() {
		_, n, err := ConsumeTLV(v)
		if err != nil {
			b.Fatal(err)
		}
		sink += n
	}
}
