package cbor

import (
	"bytes"
	"encoding/hex"
	"testing"
)

var fuzzSeeds = []string{
	"", "00", "1bffffffffffffffff", "3863", "4401020304", "63e6b0b4", "8301820203820405", "a26161016162820203",
	"c11a514b67b0", "f5", "f8ff", "f93c00", "fa47c35000", "fb3ff199999999999a", "a4000018640020002100",
	"bf0101ff", "a202000100", "81818181818181818181818181818181818100", "9bffffffffffffffff00", "5b7fffffffffffffff",
	"a30001018103026161", "a20001190100a10045", "61ff", "fa3f800000",
}

// rewrite appends the item that b starts with as this package's Append
// functions write it. Floats and simple values, which have none, are copied.
func rewrite(t *testing.T, dst, b []byte) (out []byte, n int) {
	m, err := Peek(b)
	if err != nil {
		t.Fatal(err)
	}
	fatal := func(err error) {
		if err != nil {
			t.Fatalf("Skip took what a Consume function refuses: %v in %x", err, b)
		}
	}
	nested := func(items int) {
		for range items {
			var used int
			out, used = rewrite(t, out, b[n:])
			n += used
		}
	}
	switch m {
	case Uint:
		v, used, err := ConsumeUint(b)
		fatal(err)
		return AppendUint(dst, v), used
	case Bytes:
		v, used, err := ConsumeBytes(b)
		fatal(err)
		return AppendBytes(dst, v), used
	case Text:
		v, used, err := ConsumeText(b)
		fatal(err)
		return AppendText(dst, v), used
	case Array:
		count, used, err := ConsumeArray(b)
		fatal(err)
		out, n = AppendArray(dst, count), used
		nested(count)
		return out, n
	case Map:
		count, used, err := ConsumeMap(b)
		fatal(err)
		out, n = AppendMap(dst, count), used
		nested(2 * count)
		return out, n
	case NegInt:
		if v, used, err := ConsumeInt(b); err == nil {
			return AppendInt(dst, v), used
		}
	}
	n, err = Skip(b)
	fatal(err)
	return append(dst, b[:n]...), n
}

// What Skip takes, the Append functions write again octet for octet; it never
// reads beyond what it reports, and a prefix of an item is truncated.
func FuzzSkip(f *testing.F) {
	for _, s := range fuzzSeeds {
		b, err := hex.DecodeString(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := Skip(b)
		if err != nil {
			if _, ok := err.(Error); !ok {
				t.Fatalf("error %v is not one of this package's", err)
			}
			return
		}
		if n < 1 || n > len(b) {
			t.Fatalf("took %d of %d octets", n, len(b))
		}
		out, used := rewrite(t, nil, b)
		if used != n || !bytes.Equal(out, b[:n]) {
			t.Fatalf("%x came back as %x", b[:n], out)
		}
		if m, err := Skip(b[:n:n]); m != n || err != nil {
			t.Fatalf("the item alone: %d, %v", m, err)
		}
		if _, err := Skip(b[: n-1 : n-1]); err != ErrTruncated {
			t.Fatalf("one octet less: %v", err)
		}
	})
}

// A map that the reader takes without an error is one that Skip takes, of the
// same length, and its keys are integers; a reader that refuses agrees with
// Skip or has met another key.
func FuzzMapReader(f *testing.F) {
	for _, s := range fuzzSeeds {
		b, err := hex.DecodeString(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, uint8(0))
		f.Add(b, uint8(7))
	}
	f.Fuzz(func(t *testing.T, b []byte, take uint8) {
		m := OpenMap(b)
		pairs := 0
		for m.Next() {
			pairs++
			switch take {
			case 1:
				m.Uint()
			case 2:
				m.Bytes()
			case 3:
				m.Text()
			case 4:
				m.Bool()
			case 5:
				for a := m.Array(); a.Next(); {
				}
			case 6:
				for inner := m.Map(); inner.Next(); {
				}
			case 7:
				m.Raw()
			case 8:
				m.Int()
			}
		}
		n, err := Skip(b)
		switch {
		case m.Err() == nil && (err != nil || n != len(b)-len(m.Rest())):
			t.Fatalf("reader took %d octets, Skip %d, %v", len(b)-len(m.Rest()), n, err)
		case m.Err() == nil && m.Len() != 0:
			t.Fatalf("%d pairs left", m.Len())
		case m.Err() != nil && err == nil && m.Err() != ErrKey && m.Err() != ErrType && m.Err() != ErrRange:
			t.Fatalf("reader refuses a valid item: %v", m.Err())
		case 2*pairs > len(b):
			t.Fatalf("%d pairs in %d octets", pairs, len(b))
		}
	})
}
