package jsonrpc

import (
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"
)

func scanned(t *testing.T, s string) Message {
	t.Helper()
	var m Message
	if err := Scan([]byte(s), &m); err != nil {
		t.Fatalf("Scan(%.80q): %v", s, err)
	}
	return m
}

func refused(t *testing.T, s string, want error) {
	t.Helper()
	m := Message{Kind: KindRequest}
	err := Scan([]byte(s), &m)
	if !errors.Is(err, want) {
		t.Errorf("Scan(%.80q) = %v, want %v", s, err, want)
	}
	if m.Kind != KindNone || m.ID != nil || m.Method != nil {
		t.Errorf("Scan(%.80q) left %+v behind", s, m)
	}
}

// CC-JSONRPC 4 to 7: the members present decide the kind.
func TestKindFollowsMembers(t *testing.T) {
	for _, c := range []struct {
		in   string
		kind Kind
		id   IDKind
	}{
		{`{"jsonrpc":"2.0","id":1,"method":"m"}`, KindRequest, IDNumber},
		{`{"jsonrpc":"2.0","id":"1","method":"m","params":[]}`, KindRequest, IDString},
		{`{"jsonrpc":"2.0","id":null,"method":"m"}`, KindRequest, IDNull},
		{`{"jsonrpc":"2.0","method":"m"}`, KindNotification, IDNone},
		{`{"jsonrpc":"2.0","id":1,"result":null}`, KindResponse, IDNumber},
		{`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":""}}`, KindError, IDNull},
	} {
		m := scanned(t, c.in)
		if m.Kind != c.kind || m.IDKind != c.id {
			t.Errorf("%s: kind %v id %v, want %v %v", c.in, m.Kind, m.IDKind, c.kind, c.id)
		}
	}
}

func TestRefusesWithDistinctErrors(t *testing.T) {
	for _, c := range []struct {
		in  string
		err error
	}{
		{"", ErrEmpty},
		{" \r\n\t", ErrEmpty},
		{"\xEF\xBB\xBF{}", ErrBOM},
		{`[{"jsonrpc":"2.0","id":2,"method":"ping"}]`, ErrBatch},
		{`"x"`, ErrNotObject},
		{"\x00\x10", ErrNotObject},
		{`{`, ErrTruncated},
		{`{"jsonrpc":"2.0","id":1,`, ErrTruncated},
		{`{"jsonrpc":"2.0","id":1,}`, ErrSyntax},
		{`{"jsonrpc":"2.0","id":1 "method":"m"}`, ErrSyntax},
		{`{"a":[1,2}`, ErrSyntax},
		{`{"a":{"b":1]}`, ErrSyntax},
		{`{"a":[,]}`, ErrSyntax},
		{`{"a":[1,]}`, ErrSyntax},
		{`{"a":01}`, ErrSyntax},
		{`{"a":.5}`, ErrSyntax},
		{`{"a":+1}`, ErrSyntax},
		{`{"a":1.}`, ErrSyntax},
		{`{"a":1e}`, ErrSyntax},
		{`{"a":NaN}`, ErrSyntax},
		{`{"a":tru}`, ErrSyntax},
		{`{"a":"\x"}`, ErrSyntax},
		{`{"a":"\u12g4"}`, ErrSyntax},
		{"{\"a\":\"\n\"}", ErrSyntax},
		{"{\"a\":\"12345678\x1f\"}", ErrSyntax},
		{`{'a':1}`, ErrSyntax},
		{`{"a":1}{}`, ErrTrailing},
		{`{"a":1} x`, ErrTrailing},
		{"{\"a\":\"\xff\"}", ErrUTF8},
		{"{\"a\":\"\xed\xa0\x80\"}", ErrUTF8},
		{"{\"a\xc0\x80\":1}", ErrUTF8},
		{"{\"a\":[\"0123456789\xe2\x82\"]}", ErrUTF8},
		{`{"jsonrpc":"2.0","jsonrpc":"2.0","id":1,"method":"m"}`, ErrDuplicate},
		{`{"jsonrpc":"2.0","id":1,"id":1,"method":"m"}`, ErrDuplicate},
		{`{"jsonrpc":"2.0","id":1,"method":"m","method":"m"}`, ErrDuplicate},
		{`{"jsonrpc":"2.0","id":1,"method":"m","m\u0065thod":"x"}`, ErrDuplicate},
		{`{"jsonrpc":"2.0","id":1,"result":1,"result":1}`, ErrDuplicate},
		{`{"jsonrpc":"2.0","id":1,"error":1,"error":1}`, ErrDuplicate},
		{`{}`, ErrVersion},
		{`{"id":1,"method":"m"}`, ErrVersion},
		{`{"jsonrpc":"1.0","id":3,"method":"ping"}`, ErrVersion},
		{`{"jsonrpc":2.0,"id":3,"method":"ping"}`, ErrVersion},
		{`{"JSONRPC":"2.0","id":3,"method":"ping"}`, ErrVersion},
		{`{"jsonrpc":"2.0","id":true,"method":"m"}`, ErrIDType},
		{`{"jsonrpc":"2.0","id":[1],"method":"m"}`, ErrIDType},
		{`{"jsonrpc":"2.0","id":{},"method":"m"}`, ErrIDType},
		{`{"jsonrpc":"2.0","id":1,"method":null}`, ErrMethodType},
		{`{"jsonrpc":"2.0","id":1,"method":"\ud800"}`, ErrMethodText},
		{`{"jsonrpc":"2.0","id":1,"method":"a\udc00b"}`, ErrMethodText},
		{`{"jsonrpc":"2.0","id":1,"result":1,"error":{}}`, ErrBothOutcomes},
		{`{"jsonrpc":"2.0","id":1}`, ErrNoOutcome},
		{`{"jsonrpc":"2.0","id":1,"method":"m","result":1}`, ErrMixed},
		{`{"jsonrpc":"2.0","id":1,"method":"m","error":1}`, ErrMixed},
		{`{"jsonrpc":"2.0","result":1}`, ErrNoID},
		{`{"jsonrpc":"2.0","error":{}}`, ErrNoID},
	} {
		refused(t, c.in, c.err)
	}
}

// Every proper prefix of a message is refused, so a cut message is never taken
// for a whole one.
func TestEveryPrefixIsRefused(t *testing.T) {
	const whole = `{"jsonrpc":"2.0","id":"é\"\u00e9","result":{"a":[1,-2.5e+3,true,false,null,{"b":{}}],"c":"x\n"}}`
	scanned(t, whole)
	var m Message
	for n := range len(whole) {
		if err := Scan([]byte(whole[:n]), &m); err == nil {
			t.Fatalf("prefix of %d octets accepted: %q", n, whole[:n])
		}
	}
}

// Numbers as an id stay as they are written (cases of big numbers, fractions,
// exponents).
func TestIDIsTheTokenAsWritten(t *testing.T) {
	for _, id := range []string{
		"9007199254740993", "18446744073709551616", "123456789012345678901234567890",
		"1", "1.0", "1e0", "-0.5", "0", "-0", "1E+2", `""`, `"q\"\\"`, `"\u00e9"`, `"é"`, "null",
	} {
		m := scanned(t, `{"jsonrpc":"2.0","id": `+id+` ,"method":"m"}`)
		if string(m.ID) != id || m.Kind != KindRequest {
			t.Errorf("id %s read as %s (%v)", id, m.ID, m.Kind)
		}
	}
}

// D17.
func TestEqualID(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{`1`, `1`, true},
		{`1`, `1.0`, false},
		{`1`, `1e0`, false},
		{`1`, `"1"`, false},
		{`9007199254740992`, `9007199254740993`, false},
		{`null`, `null`, true},
		{`null`, `"null"`, false},
		{`null`, `0`, false},
		{`""`, `""`, true},
		{`""`, `null`, false},
		{`"é"`, `"\u00e9"`, true},
		{`"\u00E9"`, `"\u00e9"`, true},
		{`"a\/b"`, `"a/b"`, true},
		{`"\ud83d\ude00"`, `"😀"`, true},
		{`"\ud800"`, `"\uD800"`, true},
		{`"\ud800"`, `"\ufffd"`, false},
		{`"\ud800a"`, `"\ud801a"`, false},
		{`"ab"`, `"a"`, false},
		{`"a"`, `"a\u0000"`, false},
		{"", "", false},
		{"", "null", false},
	} {
		if got := EqualID([]byte(c.a), []byte(c.b)); got != c.want {
			t.Errorf("EqualID(%s, %s) = %v", c.a, c.b, got)
		}
		if got := EqualID([]byte(c.b), []byte(c.a)); got != c.want {
			t.Errorf("EqualID(%s, %s) = %v", c.b, c.a, got)
		}
	}
}

// CC-JSONRPC 4: the envelope's method is the decoded value.
func TestMethodIsComparedByDecodedValue(t *testing.T) {
	for _, c := range []struct {
		token, value string
		plain        bool
	}{
		{`"tasks/get"`, "tasks/get", true},
		{`"tasks\/get"`, "tasks/get", false},
		{`"t\u0061sks/get"`, "tasks/get", false},
		{`"é"`, "é", true},
		{`"\u00e9"`, "é", false},
		{`"\ud83d\ude00"`, "😀", false},
		{`"\b\f\n\r\t\"\\"`, "\b\f\n\r\t\"\\", false},
		{`""`, "", true},
		{`"\u0000"`, "\x00", false},
	} {
		m := scanned(t, `{"jsonrpc":"2.0","method":`+c.token+`}`)
		if got := string(m.AppendMethod([]byte("x"))); got != "x"+c.value {
			t.Errorf("%s decodes to %q", c.token, got)
		}
		if !m.EqualMethod([]byte(c.value)) {
			t.Errorf("%s is not %q", c.token, c.value)
		}
		for _, other := range []string{c.value + "x", c.token, "Tasks/get"} {
			if m.EqualMethod([]byte(other)) {
				t.Errorf("%s equals %q", c.token, other)
			}
		}
		if v, ok := m.MethodPlain(); ok != c.plain || ok && string(v) != c.value {
			t.Errorf("%s: plain %q %v", c.token, v, ok)
		}
	}
}

// Case variants and names inside params mean nothing; any order of members does.
func TestTopLevelNamesOnlyWithoutFolding(t *testing.T) {
	m := scanned(t, `{"jsonrpc":"2.0","id":5,"method":"tasks/get","Method":"tasks/cancel"}`)
	if !m.EqualMethod([]byte("tasks/get")) {
		t.Errorf("method %s", m.Method)
	}
	m = scanned(t, `{"params":{"id":9,"method":"x","jsonrpc":"1.0","result":1},"method":"tasks/get","id":5,"jsonrpc":"2.0"}`)
	if m.Kind != KindRequest || string(m.ID) != "5" || !m.EqualMethod([]byte("tasks/get")) {
		t.Errorf("%+v", m)
	}
	// U+017F and U+212A fold to s and k in careless comparisons.
	m = scanned(t, `{"jsonrpc":"2.0","id":5,"method":"m","re`+"\u017f"+`ult":1,"jsonrpc ":"1.0"}`)
	if m.Kind != KindRequest {
		t.Errorf("%+v", m)
	}
	m = scanned(t, `{"json\u0072pc":"2.\u0030","\u0069d":5,"method":"m"}`)
	if m.Kind != KindRequest || string(m.ID) != "5" {
		t.Errorf("%+v", m)
	}
}

func TestWhiteSpaceAroundIsAccepted(t *testing.T) {
	scanned(t, " \r\n\t{ \"jsonrpc\"\t:\n\"2.0\" , \"id\":\r\"b\",\"method\": \"ping\" }\n ")
	refused(t, "\v{}", ErrNotObject)
	refused(t, "{\u00a0}", ErrSyntax)
}

func nested(open, close string, n int) string {
	return `{"jsonrpc":"2.0","id":"n","method":"m","params":` + strings.Repeat(open, n) + "0" + strings.Repeat(close, n) + `}`
}

// Deep nesting is carried up to the stated limit, and needs no stack for it.
func TestDeepNesting(t *testing.T) {
	for _, n := range []int{1, 63, 64, 65, nearLevels - 1, nearLevels, nearLevels + 1, nearLevels + 64, nearLevels + 65, 200_000} {
		scanned(t, nested("[", "]", n))
		scanned(t, nested(`{"a":`, "}", n))
		scanned(t, nested(`[{"a":`, "}]", n))
		refused(t, nested("[", "]", n)+"]", ErrTrailing)
		refused(t, nested("[", "]", n)[:len(nested("[", "]", n))-2]+"}}", ErrSyntax)
	}
	refused(t, nested("[", "]", DefaultMaxDepth), ErrDepth)
	scanned(t, nested("[", "]", DefaultMaxDepth-1))

	// A closed container uncovers what contains it, also past the near levels.
	scanned(t, `{"jsonrpc":"2.0","method":"m","p":`+strings.Repeat(`[{"a":[0,{}],"b":`, 300)+"0"+strings.Repeat(`,"c":[]},1]`, 300)+"}")

	var m Message
	deep := []byte(nested("[", "]", 9))
	if err := ScanDepth(deep, &m, 10); err != nil {
		t.Error(err)
	}
	if err := ScanDepth(deep, &m, 9); err != ErrDepth {
		t.Error(err)
	}
	if err := ScanDepth([]byte(`{}`), &m, 0); err != ErrDepth {
		t.Error(err)
	}
}

func TestDeepNestingGrowsNoStack(t *testing.T) {
	msg := []byte(nested("[", "]", 200_000))
	done := make(chan [2]uint64)
	go func() {
		var before, after runtime.MemStats
		var m Message
		_ = Scan([]byte(`{}`), &m)
		runtime.ReadMemStats(&before)
		_ = Scan(msg, &m)
		runtime.ReadMemStats(&after)
		done <- [2]uint64{before.StackInuse, after.StackInuse}
	}()
	if s := <-done; s[1] > s[0]+64<<10 {
		t.Errorf("stack in use went from %d to %d octets", s[0], s[1])
	}
}

const typical = `{"jsonrpc":"2.0","id":"req-000001","method":"message/send","params":{"message":{"messageId":"9b1f6f2e-7f0a-4a55-9a0b-0c5a1e1f2d3c","role":"user","kind":"message","parts":[{"kind":"text","text":"`

func typicalMessage(size int) []byte {
	const tail = `"}]},"configuration":{"blocking":true,"historyLength":10,"acceptedOutputModes":["text/plain","application/json"]}}}`
	return []byte(typical + strings.Repeat("Lorem ipsum dolor ", size)[:size-len(typical)-len(tail)] + tail)
}

func TestScanAllocatesNothing(t *testing.T) {
	msg := typicalMessage(512)
	deep := []byte(nested("[", "]", 5000))
	method := []byte("message/send")
	var m Message
	if n := testing.AllocsPerRun(100, func() {
		if Scan(msg, &m) != nil || !m.EqualMethod(method) || !EqualID(m.ID, []byte(`"req-00000\u0031"`)) {
			t.Fatal("unexpected")
		}
	}); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
	if raceEnabled {
		return // pools drop what they are given at random then
	}
	// A collection in between may empty the pool of deep levels, hence not 0.
	if n := testing.AllocsPerRun(100, func() { _ = Scan(deep, &m) }); n >= 1 {
		t.Errorf("%v allocations a deep message", n)
	}
}

func BenchmarkScan(b *testing.B) {
	for _, size := range []int{512, 4 << 10, 64 << 10} {
		msg := typicalMessage(size)
		b.Run(sizeName(size), func(b *testing.B) {
			b.SetBytes(int64(size))
			b.ReportAllocs()
			var m Message
			for b.Loop() {
				if err := Scan(msg, &m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	dense := []byte(`{"jsonrpc":"2.0","id":1,"result":[` + strings.Repeat(`{"a":1,"b":[true,null,-1.5e3],"c":"é\n"},`, 100) + `0]}`)
	b.Run("dense", func(b *testing.B) {
		b.SetBytes(int64(len(dense)))
		b.ReportAllocs()
		var m Message
		for b.Loop() {
			if err := Scan(dense, &m); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("encoding-json-valid", func(b *testing.B) {
		msg := typicalMessage(512)
		b.SetBytes(512)
		for b.Loop() {
			json.Valid(msg)
		}
	})
}

func sizeName(n int) string {
	if n < 1<<10 {
		return "512"
	}
	return map[int]string{4 << 10: "4K", 64 << 10: "64K"}[n]
}

func seeds(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"a":1}`, typical, `{"jsonrpc":"2.0","id":1,"method":"m"}`,
		`{"jsonrpc":"2.0","id":"\ud83d\ude00","result":{"z":1.10,"e":{},"n":null,"x":1E+2}}`,
		`{"error":{"data":[{"retryAfter":5,"n":12345678901234567890}],"message":"","code":-32005},"id":"q","jsonrpc":"2.0"}`,
		`{"jsonrpc":"2.0","m\u0065thod":"a\/b","params":[[],{},[{"a":[]}]]}`,
		"{\"a\":\"0123456\xff\"}", "{\"a\":\"\\\"01234567\\u0000é😀\"}", `{"a":-0.0e-00}`, `{"a":[1,]}`, `{"a" : [ 1 , "\b" ] , "b":tru}`,
		"\xEF\xBB\xBF{}", "[]", `{"a":"\ud800\u0041"}`,
	} {
		f.Add([]byte(s))
	}
}

// What is JSON for the standard library is JSON here and the other way round,
// but for the stated differences; and what we read is what it reads.
func FuzzScan(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		var m Message
		before := string(b)
		err := Scan(b, &m)
		if string(b) != before {
			t.Fatal("the message was changed")
		}
		if len(b) > 9000 {
			return // the standard library's own limit on nesting comes near
		}
		valid := json.Valid(b)
		switch err {
		case ErrEmpty, ErrBOM, ErrTruncated, ErrSyntax, ErrTrailing:
			if valid {
				t.Fatalf("%q: %v, but it is JSON", b, err)
			}
			return
		case ErrBatch, ErrNotObject:
			return // refused at the first octet
		case ErrUTF8:
			if utf8.Valid(b) {
				t.Fatalf("%q is UTF-8", b)
			}
			return
		}
		if !valid {
			t.Fatalf("%q accepted as JSON (%v)", b, err)
		}
		if !utf8.Valid(b) {
			t.Fatalf("%q is not UTF-8", b)
		}
		if err != nil {
			if m.Kind != KindNone {
				t.Fatal("a kind and an error")
			}
			return
		}

		// Exact names, each once: the standard library's map has the same.
		var object map[string]json.RawMessage
		if err := json.Unmarshal(b, &object); err != nil {
			t.Fatal(err)
		}
		if string(m.ID) != string(object["id"]) {
			t.Fatalf("%q: id %q, want %q", b, m.ID, object["id"])
		}
		var version string
		if json.Unmarshal(object["jsonrpc"], &version) != nil || version != "2.0" {
			t.Fatalf("%q: version %q", b, version)
		}
		switch m.Kind {
		case KindRequest, KindNotification:
			var method string
			if err := json.Unmarshal(object["method"], &method); err != nil {
				t.Fatal(err)
			}
			if got := m.AppendMethod(nil); string(got) != method || !m.EqualMethod(got) {
				t.Fatalf("%q: method %q, want %q", b, got, method)
			}
			if (m.Kind == KindRequest) != (m.ID != nil) {
				t.Fatalf("%q: %v", b, m.Kind)
			}
		case KindResponse:
			if string(m.Body) != string(object["result"]) || m.ID == nil {
				t.Fatalf("%q: result %q", b, m.Body)
			}
		case KindError:
			if string(m.Body) != string(object["error"]) || m.ID == nil {
				t.Fatalf("%q: error %q", b, m.Body)
			}
		default:
			t.Fatalf("%q: kind %v", b, m.Kind)
		}
	})
}

// Any value, not just objects: in every place a value can stand.
func FuzzScanValue(f *testing.F) {
	seeds(f)
	f.Add([]byte(`[1,{"a":[]},"x"]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 9000 {
			return
		}
		i := skipSpace(b, 0)
		end, err := scanValue(b, i, DefaultMaxDepth)
		ok := err == nil && skipSpace(b, end) == len(b)
		want := json.Valid(b) && utf8.Valid(b)
		if ok != want {
			t.Fatalf("%q: accepted %v (%v), want %v", b, ok, err, want)
		}
	})
}

// Ids are equal exactly when the standard library decodes them to equal values;
// anything else does not panic.
func FuzzEqualID(f *testing.F) {
	f.Add([]byte(`"\u00e9"`), []byte(`"é"`))
	f.Add([]byte(`"\ud800\udc00"`), []byte(`"𐀀"`))
	f.Add([]byte(`1`), []byte(`1.0`))
	f.Add([]byte(`"\`), []byte(`"\u12"`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		got := EqualID(a, b)
		if got != EqualID(b, a) {
			t.Fatal("not symmetric")
		}
		EqualString(a, b)
		AppendString(nil, a)
		var x, y string
		if !utf8.Valid(a) || !utf8.Valid(b) || json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil || a[0] != '"' || b[0] != '"' {
			return
		}
		if end, _, err := scanString(a, 0); err != nil || end != len(a) {
			return // white space around it: no token
		}
		if end, _, err := scanString(b, 0); err != nil || end != len(b) {
			return
		}
		if got && x != y {
			t.Fatalf("%q equals %q", a, b)
		}
		if !got && x == y && !strings.ContainsRune(x, utf8.RuneError) {
			t.Fatalf("%q differs from %q", a, b)
		}
		if s := string(AppendString(nil, a)); s != x {
			t.Fatalf("%q decodes to %q, want %q", a, s, x)
		}
	})
}
