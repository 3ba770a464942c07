package cbor

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The integers of RFC 8949 appendix A, and the edges of each head length.
func TestIntegersHaveTheShortestHead(t *testing.T) {
	for _, c := range []struct {
		v    int64
		want string
	}{
		{0, "00"}, {1, "01"}, {10, "0a"}, {23, "17"}, {24, "1818"}, {25, "1819"}, {100, "1864"}, {255, "18ff"},
		{256, "190100"}, {1000, "1903e8"}, {65535, "19ffff"}, {65536, "1a00010000"}, {1000000, "1a000f4240"},
		{math.MaxUint32, "1affffffff"}, {math.MaxUint32 + 1, "1b0000000100000000"},
		{1000000000000, "1b000000e8d4a51000"}, {math.MaxInt64, "1b7fffffffffffffff"},
		{-1, "20"}, {-10, "29"}, {-24, "37"}, {-25, "3818"}, {-100, "3863"}, {-1000, "3903e7"}, {math.MinInt64, "3b7fffffffffffffff"},
	} {
		want := unhex(t, c.want)
		got := AppendInt([]byte("x"), c.v)[1:]
		if !bytes.Equal(got, want) {
			t.Errorf("AppendInt(%d) = %x, want %x", c.v, got, want)
		}
		v, n, err := ConsumeInt(append(want, 0xff))
		if v != c.v || n != len(want) || err != nil {
			t.Errorf("ConsumeInt(%x) = %d, %d, %v", want, v, n, err)
		}
		if c.v < 0 {
			continue
		}
		if got := SizeUint(uint64(c.v)); got != len(want) {
			t.Errorf("SizeUint(%d) = %d, want %d", c.v, got, len(want))
		}
		u, n, err := ConsumeUint(want)
		if u != uint64(c.v) || n != len(want) || err != nil {
			t.Errorf("ConsumeUint(%x) = %d, %d, %v", want, u, n, err)
		}
	}
	if got := AppendUint(nil, math.MaxUint64); hex.EncodeToString(got) != "1bffffffffffffffff" {
		t.Errorf("AppendUint(max) = %x", got)
	}
	if _, _, err := ConsumeInt(unhex(t, "1b8000000000000000")); err != ErrRange {
		t.Errorf("integer above int64: %v, want ErrRange", err)
	}
	if _, _, err := ConsumeInt(unhex(t, "3b8000000000000000")); err != ErrRange {
		t.Errorf("integer below int64: %v, want ErrRange", err)
	}
}

// Strings, containers and simple values of RFC 8949 appendix A.
func TestKnownEncodings(t *testing.T) {
	text := "\u6c34"
	for _, c := range []struct {
		name, want string
		got        []byte
	}{
		{"empty bytes", "40", AppendBytes(nil, nil)},
		{"bytes", "4401020304", AppendBytes(nil, []byte{1, 2, 3, 4})},
		{"empty text", "60", AppendText(nil, "")},
		{"text", "6449455446", AppendText(nil, []byte("IETF"))},
		{"text beyond ASCII", "63e6b0b4", AppendText(nil, text)},
		{"empty array", "80", AppendArray(nil, 0)},
		{"array of 25", "9819", AppendArray(nil, 25)},
		{"empty map", "a0", AppendMap(nil, 0)},
		{"false", "f4", AppendBool(nil, false)},
		{"true", "f5", AppendBool(nil, true)},
		{"null", "f6", AppendNull(nil)},
	} {
		if want := unhex(t, c.want); !bytes.Equal(c.got, want) {
			t.Errorf("%s: %x, want %x", c.name, c.got, want)
		}
	}
	if n := SizeString(300); n != 303 {
		t.Errorf("SizeString(300) = %d", n)
	}
	if v, n, err := ConsumeText(unhex(t, "63e6b0b4")); string(v) != text || n != 4 || err != nil {
		t.Errorf("ConsumeText = %q, %d, %v", v, n, err)
	}
	if v, n, err := ConsumeBytes(unhex(t, "440102030405")); len(v) != 4 || cap(v) != 4 || n != 5 || err != nil {
		t.Errorf("ConsumeBytes = %x cap %d, %d, %v", v, cap(v), n, err)
	}
	if c, n, err := ConsumeArray(unhex(t, "820102")); c != 2 || n != 1 || err != nil {
		t.Errorf("ConsumeArray = %d, %d, %v", c, n, err)
	}
	if c, n, err := ConsumeMap(unhex(t, "a10102")); c != 1 || n != 1 || err != nil {
		t.Errorf("ConsumeMap = %d, %d, %v", c, n, err)
	}
	if n, err := ConsumeNull([]byte{simpleNull}); n != 1 || err != nil {
		t.Errorf("ConsumeNull = %d, %v", n, err)
	}
}

// Well-formed deterministic items of every type are taken whole.
func TestSkipTakesEveryType(t *testing.T) {
	for _, s := range []string{
		"00", "3863", "1bffffffffffffffff", "3bffffffffffffffff",
		"40", "4401020304", "60", "6161", "80", "83010203", "8301820203820405", "a0", "a201020304",
		"a26161016162820203", "c11a514b67b0", "d74401020304", "d818456449455446",
		"f4", "f5", "f6", "f7", "f0", "f8ff",
		"f90000", "f98000", "f93c00", "f97bff", "f90001", "f97c00", "f97e00", "f9fc00",
		"fa47c35000", "fa7f7fffff", "fb3ff199999999999a", "fb7e37e43c8800759c", "fbc010666666666666",
		"fa33000000", // half the least half
		"fa33c00000", // between two least halves
		"fa477fe001", // beside the greatest half
		"fa47800000", // above it
		"fa00000001", // the least single
		"fb47efffffe0000001", "fb0000000000000001",
		"fa7fc00001", "fb7ff8000000000001", // NaNs whose payload needs the width
		"a4000018640020002100", // keys 0, 100, -1, -2
	} {
		b := unhex(t, s)
		n, err := Skip(append(b, 0xff, 0xff))
		if err != nil || n != len(b) {
			t.Errorf("Skip(%s) = %d, %v", s, n, err)
		}
		if err := Valid(b); err != nil {
			t.Errorf("Valid(%s): %v", s, err)
		}
	}
}

// RFC 8949 section 4.2.1, and what section 3 calls not well-formed: each has
// its own error.
func TestRefusalsAreTold(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     error
	}{
		{"nothing", "", ErrTruncated},
		{"head of two octets cut", "18", ErrTruncated},
		{"head of nine octets cut", "1b00000000000000", ErrTruncated},
		{"bytes cut", "430102", ErrTruncated},
		{"text cut", "63e6b0", ErrTruncated},
		{"array cut", "8201", ErrTruncated},
		{"map without its value", "a101", ErrTruncated},
		{"tag without its item", "c1", ErrTruncated},
		{"more items than octets", "9bffffffffffffffff00", ErrTruncated},
		{"more pairs than octets", "bbffffffffffffffff00", ErrTruncated},
		{"longer bytes than octets", "5bffffffffffffffff00", ErrTruncated},
		{"second item", "0000", ErrTrailing},
		{"23 in two octets", "1817", ErrNotShortest},
		{"255 in three octets", "1900ff", ErrNotShortest},
		{"65535 in five octets", "1a0000ffff", ErrNotShortest},
		{"32 bits in nine octets", "1b00000000ffffffff", ErrNotShortest},
		{"negative in two octets", "3817", ErrNotShortest},
		{"string length too long", "580100", ErrNotShortest},
		{"array length too long", "980100", ErrNotShortest},
		{"map length too long", "b8010000", ErrNotShortest},
		{"tag too long", "d80100", ErrNotShortest},
		{"half as single", "fa3f800000", ErrNotShortest},
		{"zero as single", "fa00000000", ErrNotShortest},
		{"greatest half as single", "fa477fe000", ErrNotShortest},
		{"least half as single", "fa33800000", ErrNotShortest},
		{"three least halves as single", "fa34400000", ErrNotShortest},
		{"infinity as single", "fa7f800000", ErrNotShortest},
		{"NaN as single", "fa7fc00000", ErrNotShortest},
		{"single as double", "fb40f86a0000000000", ErrNotShortest},
		{"negative zero as double", "fb8000000000000000", ErrNotShortest},
		{"infinity as double", "fbfff0000000000000", ErrNotShortest},
		{"NaN as double", "fb7ff8000000000000", ErrNotShortest},
		{"indefinite bytes", "5f4101ff", ErrIndefinite},
		{"indefinite text", "7f6161ff", ErrIndefinite},
		{"indefinite array", "9f01ff", ErrIndefinite},
		{"indefinite map", "bf0101ff", ErrIndefinite},
		{"stray break", "ff", ErrIndefinite},
		{"indefinite integer", "1f", ErrIndefinite},
		{"reserved 28", "1c", ErrReserved},
		{"reserved 29", "5d", ErrReserved},
		{"reserved 30", "fe", ErrReserved},
		{"simple value 20 in two octets", "f814", ErrSimple},
		{"simple value 31 in two octets", "f81f", ErrSimple},
		{"text not UTF-8", "61ff", ErrUTF8},
		{"text with a surrogate", "63eda080", ErrUTF8},
		{"keys out of order", "a202000100", ErrOrder},
		{"negative key first", "a220000100", ErrOrder},
		{"longer key first", "a2181800" + "1700", ErrOrder},
		{"text keys out of order", "a2616200616100", ErrOrder},
		{"key twice", "a201000100", ErrDuplicate},
		{"text key twice", "a2616100616100", ErrDuplicate},
		{"fault in an inner array", "82018118" + "17", ErrNotShortest},
		{"fault in a key", "a1181700", ErrNotShortest},
		{"fault in a value", "a1001817", ErrNotShortest},
		{"fault behind a tag", "c11817", ErrNotShortest},
		{"17 arrays", strings.Repeat("81", 17) + "00", ErrDepth},
		{"17 maps", strings.Repeat("a100", 17) + "00", ErrDepth},
		{"17 tags", strings.Repeat("c1", 17) + "00", ErrDepth},
	} {
		if err := Valid(unhex(t, c.in)); err != c.want {
			t.Errorf("%s: Valid(%s) = %v, want %v", c.name, c.in, err, c.want)
		}
	}
	if err := Valid(unhex(t, strings.Repeat("81", MaxDepth)+"00")); err != nil {
		t.Errorf("%d levels: %v", MaxDepth, err)
	}
}

func TestTypesAreNotMistaken(t *testing.T) {
	consumers := map[string]func([]byte) error{
		"uint":  func(b []byte) error { _, _, err := ConsumeUint(b); return err },
		"int":   func(b []byte) error { _, _, err := ConsumeInt(b); return err },
		"bytes": func(b []byte) error { _, _, err := ConsumeBytes(b); return err },
		"text":  func(b []byte) error { _, _, err := ConsumeText(b); return err },
		"array": func(b []byte) error { _, _, err := ConsumeArray(b); return err },
		"map":   func(b []byte) error { _, _, err := ConsumeMap(b); return err },
		"bool":  func(b []byte) error { _, _, err := ConsumeBool(b); return err },
		"null":  func(b []byte) error { _, err := ConsumeNull(b); return err },
	}
	items := map[string][]byte{
		"uint": {0x01}, "bytes": {0x41, 0}, "text": {0x61, 'a'}, "array": {0x81, 0}, "map": {0xa1, 0, 0},
		"bool": {0xf5}, "null": {0xf6}, "float": {0xf9, 0, 0}, "tag": {0xc1, 0},
	}
	for want, consume := range consumers {
		for name, item := range items {
			var expected error = ErrType
			if name == want || name == "uint" && want == "int" {
				expected = nil
			}
			if err := consume(item); err != expected {
				t.Errorf("%s read as %s: %v, want %v", name, want, err, expected)
			}
			if err := consume(nil); err != ErrTruncated {
				t.Errorf("nothing read as %s: %v", want, err)
			}
		}
	}
	if _, _, err := ConsumeUint([]byte{0x20}); err != ErrType {
		t.Errorf("negative read as uint: %v", err)
	}
	if m, err := Peek([]byte{0xa1}); m != Map || err != nil {
		t.Errorf("Peek = %v, %v", m, err)
	}
	if _, err := Peek([]byte{0xbf}); err != ErrIndefinite {
		t.Errorf("Peek(indefinite) = %v", err)
	}
}

func TestMapReaderReadsFieldsAndPassesOverTheRest(t *testing.T) {
	b := AppendMap(nil, 8)
	b = AppendUint(AppendUint(b, 0), 7)
	b = AppendBytes(AppendUint(b, 1), []byte("corr"))
	b = AppendArray(AppendUint(b, 2), 2)
	b = AppendText(AppendUint(b, 1), "nobody takes this")
	b = AppendText(AppendUint(b, 5), "text")
	b = AppendMap(AppendUint(b, 24), 1)
	b = AppendBool(AppendUint(b, 3), true)
	b = AppendInt(AppendUint(b, math.MaxUint64), -5)
	b = AppendArray(AppendInt(b, -1), 2)
	b = AppendUint(AppendUint(b, 8), 9)
	b = AppendNull(AppendInt(b, math.MinInt64))
	b = append(b, 0xde, 0xad)

	var got []string
	m := OpenMap(b)
	if m.Len() != 8 {
		t.Fatalf("Len = %d", m.Len())
	}
	for m.Next() {
		switch m.Key() {
		case 0:
			got = append(got, fmt.Sprint("uint ", m.Uint()))
		case 1:
			v := m.Bytes()
			got = append(got, fmt.Sprintf("bytes %s cap %d", v, cap(v)))
		case 5:
			got = append(got, fmt.Sprintf("text %s", m.Text()))
		case 24:
			inner := m.Map()
			for inner.Next() {
				got = append(got, fmt.Sprint("inner ", inner.Key(), " ", inner.Bool()))
			}
			got = append(got, fmt.Sprint(inner.Err()))
		case math.MaxInt64:
			got = append(got, fmt.Sprint("huge key ", m.Int()))
		case -1:
			a := m.Array()
			for a.Next() {
				got = append(got, fmt.Sprint("item ", a.Uint(), " left ", a.Len()))
			}
		case math.MinInt64:
			got = append(got, fmt.Sprintf("raw %x", m.Raw()))
		}
	}
	if m.Err() != nil {
		t.Fatal(m.Err())
	}
	want := []string{"uint 7", "bytes corr cap 4", "text text", "inner 3 true", "<nil>", "huge key -5",
		"item 8 left 1", "item 9 left 0", "raw f6"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("read\n%v, want\n%v", got, want)
	}
	if !bytes.Equal(m.Rest(), []byte{0xde, 0xad}) {
		t.Errorf("Rest = %x", m.Rest())
	}
}

func TestMapReaderRefusals(t *testing.T) {
	readAll := func(b []byte) error {
		m := OpenMap(b)
		for m.Next() {
		}
		return m.Err()
	}
	for _, c := range []struct {
		name, in string
		want     error
	}{
		{"no map", "80", ErrType},
		{"indefinite map", "bfff", ErrIndefinite},
		{"key not an integer", "a1616100", ErrKey},
		{"keys out of order", "a202000100", ErrOrder},
		{"unsigned key after a negative one", "a220000100", ErrOrder},
		{"negative keys out of order", "a221002000", ErrOrder},
		{"key twice", "a201000100", ErrDuplicate},
		{"negative key twice", "a220002000", ErrDuplicate},
		{"key not shortest", "a1181700", ErrNotShortest},
		{"key missing", "a2010000", ErrTruncated},
		{"value nobody takes at fault", "a100a201000000", ErrOrder},
		{"value too deep", "a100" + strings.Repeat("81", MaxDepth) + "00", ErrDepth},
	} {
		if err := readAll(unhex(t, c.in)); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if err := readAll(unhex(t, "a100"+strings.Repeat("81", MaxDepth-1)+"00")); err != nil {
		t.Errorf("value of the greatest depth: %v", err)
	}
}

// An error stays, and nothing is read after it.
func TestReadersKeepTheFirstError(t *testing.T) {
	m := OpenMap(unhex(t, "a200010101"))
	m.Next()
	if v := m.Text(); v != nil || m.Err() != ErrType {
		t.Errorf("Text of an integer = %q, %v", v, m.Err())
	}
	if m.Next() || m.Uint() != 0 || m.Int() != 0 || m.Bool() || m.Bytes() != nil || m.Raw() != nil {
		t.Error("something was read after an error")
	}
	inner, list := m.Map(), m.Array()
	if inner.Next() || list.Next() || inner.Err() != ErrType || list.Err() != ErrType {
		t.Error("a container was opened after an error")
	}

	a := OpenArray(unhex(t, "820102"))
	a.Next()
	a.Uint()
	if a.Uint(); a.Err() != ErrTruncated {
		t.Errorf("item taken twice: %v", a.Err())
	}
	a = OpenArray(unhex(t, "8100"))
	a.Next()
	if inner := a.Map(); inner.Err() != ErrType || a.Err() != ErrType {
		t.Errorf("Map of an integer: %v, %v", inner.Err(), a.Err())
	}
	var zero MapReader
	if zero.Next() || zero.Err() != nil {
		t.Error("the zero MapReader is not an empty map")
	}
}

func TestNamesAndErrorTexts(t *testing.T) {
	seen := map[string]bool{}
	for e := ErrTruncated; e < errorCount; e++ {
		if s := e.Error(); !strings.HasPrefix(s, "cbor: ") || seen[s] {
			t.Errorf("error %d has the text %q", e, s)
		} else {
			seen[s] = true
		}
	}
	if errorCount.Error() != "cbor: unknown error" || Simple.String() != "simple" || Major(8).String() != "unknown" {
		t.Error("unknown values have no fallback text")
	}
}

// A declared size costs nothing before its octets are there, and reading costs
// nothing at all.
func TestNothingAllocates(t *testing.T) {
	b := AppendMap(nil, 3)
	b = AppendText(AppendUint(b, 0), "name")
	b = AppendArray(AppendUint(b, 1), 3)
	b = AppendUint(AppendUint(AppendUint(b, 1), 2), 300)
	b = AppendUint(AppendUint(b, 2), 1)
	bad := unhex(t, "a1009bffffffffffffffff")
	buf := make([]byte, 0, 64)
	if n := testing.AllocsPerRun(100, func() {
		if Valid(b) != nil {
			t.Fatal("not valid")
		}
		sum := uint64(0)
		m := OpenMap(b)
		for m.Next() {
			switch m.Key() {
			case 1:
				a := m.Array()
				for a.Next() {
					sum += a.Uint()
				}
			case 2:
				sum += m.Uint()
			}
		}
		if m.Err() != nil || sum != 304 {
			t.Fatal(sum, m.Err())
		}
		if Valid(bad) != ErrTruncated {
			t.Fatal("an array longer than the input passed")
		}
		out := AppendMap(buf, 1)
		out = AppendText(AppendInt(out, -7), "x")
		if len(out) != 4 {
			t.Fatal(len(out))
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkMapReader(b *testing.B) {
	in := AppendMap(nil, 3)
	in = AppendText(AppendUint(in, 0), "name")
	in = AppendArray(AppendUint(in, 1), 3)
	in = AppendUint(AppendUint(AppendUint(in, 1), 2), 300)
	in = AppendUint(AppendUint(in, 2), 1)
	b.ReportAllocs()
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		m := OpenMap(in)
		for m.Next() {
		}
		if m.Err() != nil {
			b.Fatal(m.Err())
		}
	}
}
