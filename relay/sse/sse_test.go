package sse

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/trestle-npamp/trestle/internal/buf"
)

const testLimit = 16 << 20

// all reads the events of a source to its end.
func all(r *Reader) (events []Event, err error) {
	defer r.Release()
	for {
		e, err := r.Next()
		if err != nil {
			return events, err
		}
		events = append(events, Event{Type: bytes.Clone(e.Type), Data: bytes.Clone(e.Data), ID: bytes.Clone(e.ID), Cut: e.Cut})
	}
}

func show(events []Event) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "{%q %q %q %v}", e.Type, e.Data, e.ID, e.Cut)
	}
	return b.String()
}

// want checks the events of text, however it is split.
func want(t *testing.T, text, events string) {
	t.Helper()
	for name, src := range map[string]io.Reader{
		"at once":        strings.NewReader(text),
		"octet by octet": iotest.OneByteReader(strings.NewReader(text)),
		"halves":         iotest.HalfReader(strings.NewReader(text)),
		"with the end":   iotest.DataErrReader(strings.NewReader(text)),
	} {
		got, err := all(NewReader(src, testLimit, nil))
		if err != io.EOF || show(got) != events {
			t.Errorf("%q %s: %s, %v, want %s", text, name, show(got), err, events)
		}
	}
}

// L14: LF, CRLF, CR and a mix of them; data lines are joined by LF; one space
// behind the colon is no part of the value; fields come in any order.
func TestLineEnds(t *testing.T) {
	const text = "data: one\n\nid: 7\nretry: 10\ndata:{\ndata: \"a\":\ndata:  1}\nevent: x\n\nretry:2\ndata:three\nid\n\n"
	const events = `{"" "one" "" false}{"x" "{\n\"a\":\n 1}" "7" false}{"" "three" "" false}`
	want(t, text, events)
	want(t, strings.ReplaceAll(text, "\n", "\r\n"), events)
	want(t, strings.ReplaceAll(text, "\n", "\r"), events)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		var mixed strings.Builder
		for _, line := range strings.SplitAfter(text, "\n") {
			line, ended := strings.CutSuffix(line, "\n")
			mixed.WriteString(line)
			if ended {
				// A lone CR before an empty line's LF would be one line end.
				mixed.WriteString([]string{"\r\n", "\n", "\r\n", "\r"}[rng.IntN(3)])
			}
		}
		want(t, mixed.String(), events)
	}
	want(t, "data:a\r\r\n\ndata:b\r\n\r", `{"" "a" "" false}{"" "b" "" false}`)
}

// An event that ends in CR is there before the octet behind it, which may be an
// LF, or never come.
func TestEventIsThereWithItsBlankLine(t *testing.T) {
	for _, end := range []string{"\n\n", "\r\n\r\n", "\r\r", "\r\n\r"} {
		in, out := io.Pipe()
		r := NewReader(in, testLimit, nil)
		go func() { _, _ = io.WriteString(out, "data: x"+end) }()
		if e, err := r.Next(); err != nil || string(e.Data) != "x" || e.Cut {
			t.Errorf("%q: %+v, %v", end, e, err)
		}
		in.Close()
		r.Release()
	}
}

// L13: comments are no events, and blank lines neither.
func TestCommentsAreNoEvents(t *testing.T) {
	want(t, ": ping\n\n:\n\n\n\nevent: ping\ndata: x\n\n: data: y\ndata: z\n: in the middle\ndata\n\n", `{"ping" "x" "" false}{"" "z\n" "" false}`)
}

func TestFields(t *testing.T) {
	for text, events := range map[string]string{
		"data\n\n":                              `{"" "" "" false}`,
		"data:\n\n":                             `{"" "" "" false}`,
		"data: \n\n":                            `{"" "" "" false}`,
		"data:  \n\n":                           `{"" " " "" false}`,
		"data\ndata\n\n":                        `{"" "\n" "" false}`,
		"event: lost\n\ndata: x\n\n":            `{"" "x" "" false}`, // a type without data is forgotten
		"event: a\nevent: b\ndata: x\n\n":       `{"b" "x" "" false}`,
		"id: 1\n\ndata: x\n\ndata: y\n\n":       `{"" "x" "1" false}{"" "y" "1" false}`, // the ID stays
		"id: 1\nid: a\x00b\ndata: x\n\n":        `{"" "x" "1" false}`,
		"id: 1\ndata: x\n\nid\ndata: y\n\n":     `{"" "x" "1" false}{"" "y" "" false}`,
		" data: x\nData: x\ndata : x\ndat: x\n": ``,
		"databases: x\ndata\x00: x\n\n":         ``,
		"data: a: b\n\n":                        `{"" "a: b" "" false}`,
		"data: é\u2028\xff\x00\n\n":             `{"" "é\u2028\xff\x00" "" false}`,
		"":                                      ``,
		"\n\n\r\r":                              ``,
	} {
		want(t, text, events)
	}
}

func TestByteOrderMark(t *testing.T) {
	want(t, "\xEF\xBB\xBFdata: x\n\n\xEF\xBB\xBFdata: y\n\n", `{"" "x" "" false}`) // at the start alone
	want(t, "\xEF\xBB\xBF\xEF\xBB\xBFdata: x\n\n", ``)
	want(t, "\xEF\xBBdata: x\ndata: y\n\n", `{"" "y" "" false}`)
	want(t, "\xEF\xBB\ndata: y\n\n", `{"" "y" "" false}`)
	want(t, "\xEF\xBB\xBF\n\ndata: y\n\n", `{"" "y" "" false}`)
	want(t, "\xEF\xBB", ``)
}

// L15, D21: what there is at the end of a source is handed out as what it is, a
// part that may be whole.
func TestSourceThatEndsWithoutABlankLine(t *testing.T) {
	want(t, "data: {}\n", `{"" "{}" "" true}`)
	want(t, "data: {}", `{"" "{}" "" true}`)
	want(t, "data: {\r", `{"" "{" "" true}`)
	want(t, "id: 3\nevent: x\ndata: {\ndata: }\ndat", `{"x" "{\n}" "3" true}`)
	want(t, "data: x\n\ndata: y", `{"" "x" "" false}{"" "y" "" true}`)
	want(t, "event: x\n", ``)

	text := func(err error) string {
		got, e := all(NewReader(io.MultiReader(strings.NewReader("data: x\n"), iotest.ErrReader(err)), testLimit, nil))
		if e != err {
			t.Errorf("%v, want %v", e, err)
		}
		return show(got)
	}
	if got := text(io.ErrUnexpectedEOF); got != `{"" "x" "" true}` {
		t.Errorf("an HTTP body that was not ended: %s", got)
	}
	if got := text(errors.New("reset")); got != "" {
		t.Errorf("a broken connection: %s", got)
	}
}

func TestRetry(t *testing.T) {
	for text, ms := range map[string]int64{
		"retry: 10\n": 10, "retry:0\n": 0, "retry: 15\nretry: x\n": 15, "retry: 15\nretry\n": 15, "retry: 15\nretry: \n": 15, "retry: -1\n": 0, "retry: 1.5\n": 0,
		"retry: 1 \n": 0, "retry: 99999999999999999999999999\n": 0, "retry: 3600000\n": 3600000, "retry: 10": 0,
	} {
		for _, src := range []io.Reader{strings.NewReader(text), iotest.OneByteReader(strings.NewReader(text))} {
			r := NewReader(src, testLimit, nil)
			if _, err := r.Next(); err != io.EOF || r.Retry() != time.Duration(ms)*time.Millisecond {
				t.Errorf("%q: %v, %v", text, r.Retry(), err)
			}
			r.Release()
		}
	}
}

// L11: the length of a line has no bound of its own, and a bound for events is a
// definite error that no part of the event precedes.
func TestLongEvents(t *testing.T) {
	for _, n := range []int{64<<10 - 6, 64 << 10, 1<<20 + 1, 12 << 20} {
		data := strings.Repeat("0123456789abcdef", n/16+1)[:n]
		text := "data: " + data + "\n\ndata: last\n\n"
		got, err := all(NewReader(strings.NewReader(text), testLimit, nil))
		if err != io.EOF || len(got) != 2 || string(got[0].Data) != data || string(got[1].Data) != "last" {
			t.Errorf("%d octets: %d events, %v", n, len(got), err)
		}
	}
	for _, text := range []string{
		"data: " + strings.Repeat("x", 1001), "data: ok\n\ndata: " + strings.Repeat("x\ndata: ", 501), "event: " + strings.Repeat("x", 1001),
		"id: " + strings.Repeat("x", 1001), "event: " + strings.Repeat("x", 500) + "\ndata: " + strings.Repeat("x", 501),
	} {
		for _, src := range []io.Reader{strings.NewReader(text), iotest.OneByteReader(strings.NewReader(text))} {
			budget := buf.NewBudget(4096)
			r := NewReader(src, 1000, budget)
			var err error
			for err == nil {
				var e Event
				if e, err = r.Next(); err == nil && string(e.Data) != "ok" {
					t.Errorf("%.20q: %+v", text, e)
				}
			}
			if err != ErrTooLarge {
				t.Errorf("%.20q: %v", text, err)
			}
			if _, err := r.Next(); err != ErrTooLarge {
				t.Errorf("%.20q again: %v", text, err)
			}
			if budget.Used() != 0 {
				t.Errorf("%d octets are still held", budget.Used())
			}
			r.Release()
		}
	}
	// Just within, and what is skipped does not count.
	skipped := ":" + strings.Repeat("x", 5000) + "\nunknown: " + strings.Repeat("x", 5000) + "\n"
	want := strings.Repeat("x", 998) + "\n"
	got, err := all(NewReader(strings.NewReader(skipped+"event:e\ndata:"+want+skipped+"data\n\n"), 1000, nil))
	if err != io.EOF || len(got) != 1 || string(got[0].Data) != want {
		t.Errorf("%d events, %v", len(got), err)
	}
}

// Types and IDs are outside the budget, so they have a bound of their own.
func TestLongTypesAndIDs(t *testing.T) {
	long := strings.Repeat("x", maxField)
	for _, field := range []string{"event", "id"} {
		if got, err := all(NewReader(strings.NewReader(field+": "+long+"\ndata: d\n\n"), testLimit, nil)); err != io.EOF || len(got) != 1 {
			t.Errorf("%s: %d events, %v", field, len(got), err)
		}
		if _, err := all(NewReader(strings.NewReader(field+": "+long+"x\ndata: d\n\n"), testLimit, nil)); err != ErrTooLarge {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestEventsShareABudget(t *testing.T) {
	budget := buf.NewBudget(buf.MinClass)
	a, b := NewReader(strings.NewReader("data: a\n\ndata: b\n\n"), testLimit, budget), NewReader(strings.NewReader("data: a\n\n"), testLimit, budget)
	if _, err := a.Next(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Next(); err != ErrBudget {
		t.Errorf("%v, want ErrBudget", err)
	}
	if e, err := a.Next(); err != nil || string(e.Data) != "b" {
		t.Errorf("%+v, %v", e, err)
	}
	a.Release()
	b.Release()
	if budget.Used() != 0 {
		t.Errorf("%d octets are still held", budget.Used())
	}
	if _, err := a.Next(); err == nil {
		t.Error("a released reader reads on")
	}
}

// What a reader holds follows what has come, and is little while nothing comes.
func TestMemoryFollowsWhatCame(t *testing.T) {
	budget := buf.NewBudget(1 << 30)
	came := 0
	r := NewReader(readerFunc(func(b []byte) (int, error) {
		if held := budget.Used(); held > int64(max(4*came, 1<<10)) {
			t.Fatalf("%d octets came and %d are held", came, held)
		}
		if came > 3<<20 {
			return 0, io.EOF
		}
		text := "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
		if came == 0 {
			text = "data:"
		}
		n := copy(b, text)
		came += n
		return n, nil
	}), testLimit, budget)
	if e, err := r.Next(); err != nil || !e.Cut || len(e.Data) != came-5 {
		t.Errorf("%d octets, %v", len(e.Data), err)
	}
	r.Release()
	if budget.Used() != 0 {
		t.Errorf("%d octets are still held", budget.Used())
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func TestSourceWithoutProgress(t *testing.T) {
	r := NewReader(readerFunc(func([]byte) (int, error) { return 0, nil }), testLimit, nil)
	if _, err := r.Next(); err != io.ErrNoProgress {
		t.Errorf("%v", err)
	}
	r.Release()
}

// L14, D21: a body with line ends is written as several data lines; a CR arrives
// as LF.
func TestWriter(t *testing.T) {
	for data, text := range map[string]string{
		`{"a":1}`:       "data: {\"a\":1}\n\n",
		"":              "data: \n\n",
		"{\n\"a\":1\n}": "data: {\ndata: \"a\":1\ndata: }\n\n",
		"{\r\n}\n":      "data: {\ndata: \ndata: }\ndata: \n\n",
		"{\r}":          "data: {\ndata: }\n\n",
		" x: y":         "data:  x: y\n\n",
	} {
		var out bytes.Buffer
		flushed := 0
		w := NewWriter(&out, func() error { flushed = out.Len(); return nil })
		if err := w.Event([]byte(data)); err != nil || out.String() != text || flushed != len(text) {
			t.Errorf("%q: %q, %v, %d octets flushed", data, out.String(), err, flushed)
		}
		if err := w.Comment([]byte("still here")); err != nil || flushed != out.Len() {
			t.Error(err)
		}
		got, err := all(NewReader(&out, testLimit, nil))
		if err != io.EOF || len(got) != 1 || string(got[0].Data) != strings.ReplaceAll(data, "\r", "\n") {
			t.Errorf("%q: %s, %v", data, show(got), err)
		}
	}
	failed := errors.New("failed")
	if err := NewWriter(io.Discard, func() error { return failed }).Event(nil); err != failed {
		t.Errorf("%v", err)
	}
	in, out := io.Pipe()
	in.CloseWithError(failed)
	if err := NewWriter(out, nil).Event(nil); err != failed {
		t.Errorf("%v", err)
	}
	if err := NewWriter(out, nil).Comment(nil); err != failed {
		t.Errorf("%v", err)
	}
}

// L17.
func TestHeader(t *testing.T) {
	h := http.Header{}
	SetHeader(h)
	for name, want := range map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"} {
		if h.Get(name) != want {
			t.Errorf("%s: %q", name, h.Get(name))
		}
	}
}

func TestEventsCostNoAllocation(t *testing.T) {
	if raceEnabled {
		return // the detector empties pools at random
	}
	text := []byte("id: 1\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n")
	r := NewReader(readerFunc(func(b []byte) (int, error) { return copy(b, text), nil }), testLimit, buf.NewBudget(1<<20))
	w := NewWriter(io.Discard, func() error { return nil })
	next := func() {
		e, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Event(e.Data); err != nil {
			t.Fatal(err)
		}
	}
	next()
	if n := testing.AllocsPerRun(1000, next); n != 0 {
		t.Errorf("%v allocations an event", n)
	}
	r.Release()
}

// standard is the algorithm of the HTML standard as it is written there, on a
// whole text, with limits and the tolerance at the end.
func standard(text []byte, limit int) (events []Event, tooLarge bool) {
	text = bytes.TrimPrefix(text, []byte(byteOrderMark))
	var typ, data, id []byte
	has := false
	for len(text) > 0 {
		end := bytes.IndexAny(text, "\r\n")
		cut := end < 0
		if cut {
			end = len(text)
		}
		line := text[:end]
		text = text[end:]
		if !cut {
			if bytes.HasPrefix(text, []byte("\r\n")) {
				text = text[1:]
			}
			text = text[1:]
		}
		if len(line) == 0 {
			if has {
				events = append(events, Event{Type: typ, Data: data, ID: id})
			}
			typ, data, has = nil, nil, false
			continue
		}
		name, value, colon := bytes.Cut(line, []byte(":"))
		if cut && !colon {
			break
		}
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "data":
			if has {
				data = append(data, '\n')
			}
			data, has = append(data, value...), true
		case "event":
			typ = bytes.Clone(value)
		case "id":
			if len(data)+len(typ)+len(value) > limit {
				return events, true
			}
			if bytes.IndexByte(value, 0) < 0 && !cut {
				id = bytes.Clone(value)
			}
		}
		if len(data)+len(typ) > limit {
			return events, true
		}
	}
	if has {
		events = append(events, Event{Type: typ, Data: data, ID: id, Cut: true})
	}
	return events, false
}

// Any text is read as the standard says, whatever way it is split, within its
// limit; everything held is given back.
func FuzzReader(f *testing.F) {
	for _, text := range []string{
		"data: x\n\n", "data:x\r\ndata\r\r", "\xEF\xBB\xBF: c\nid: 1\nevent: e\ndata: x", "retry: 10\n\ndata: {}\n", "id: \x00\ndata\n\n", "\xEF\xBB\n", "datax: y\n\ndata",
	} {
		f.Add([]byte(text), uint64(1))
	}
	f.Fuzz(func(t *testing.T, text []byte, seed uint64) {
		const limit = 200
		events, tooLarge := standard(text, limit)
		rng := rand.New(rand.NewPCG(seed, 1))
		for _, src := range []io.Reader{bytes.NewReader(text), iotest.OneByteReader(bytes.NewReader(text)), &splitter{text, rng}} {
			budget := buf.NewBudget(1 << 20)
			got, err := all(NewReader(src, limit, budget))
			if (err == ErrTooLarge) != tooLarge || !tooLarge && err != io.EOF || show(got) != show(events) {
				t.Errorf("%s, %v, want %s, too large %v", show(got), err, show(events), tooLarge)
			}
			if budget.Used() != 0 {
				t.Errorf("%d octets are still held", budget.Used())
			}
		}
	})
}

// splitter hands out a text in parts of random length.
type splitter struct {
	text []byte
	rng  *rand.Rand
}

func (s *splitter) Read(b []byte) (int, error) {
	if len(s.text) == 0 {
		return 0, io.EOF
	}
	n := copy(b, s.text[:min(len(s.text), s.rng.IntN(8))])
	s.text = s.text[n:]
	return n, nil
}

// What a Writer writes is read as the same events, whatever way it is split.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte(`{"a":1}`), []byte("{\r\n}"), uint64(1))
	f.Add([]byte(""), []byte("\n\n"), uint64(2))
	f.Fuzz(func(t *testing.T, a, b []byte, seed uint64) {
		var out bytes.Buffer
		w := NewWriter(&out, nil)
		for _, err := range []error{w.Comment(nil), w.Event(a), w.Comment([]byte("c")), w.Event(b)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		rng := rand.New(rand.NewPCG(seed, 1))
		got, err := all(NewReader(&splitter{out.Bytes(), rng}, testLimit, nil))
		if err != io.EOF || len(got) != 2 {
			t.Fatalf("%s, %v", show(got), err)
		}
		for i, data := range [][]byte{a, b} {
			if e := got[i]; !bytes.Equal(e.Data, bytes.ReplaceAll(data, []byte("\r"), []byte("\n"))) || e.Cut || !e.Message() || len(e.ID) != 0 {
				t.Errorf("%q: %s", data, show(got))
			}
		}
	})
}

func BenchmarkReader(b *testing.B) {
	for _, n := range []int{80, 1 << 10, 1 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			text := []byte("data: " + strings.Repeat("x", n) + "\n\n")
			rest := text
			r := NewReader(readerFunc(func(p []byte) (int, error) {
				k := copy(p, rest)
				if rest = rest[k:]; len(rest) == 0 {
					rest = text
				}
				return k, nil
			}), testLimit, nil)
			defer r.Release()
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Next(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkWriter(b *testing.B) {
	data := []byte(strings.Repeat("x", 1<<10))
	w := NewWriter(io.Discard, nil)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if err := w.Event(data); err != nil {
			b.Fatal(err)
		}
	}
}
