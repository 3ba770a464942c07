package conn

import (
	"flag"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/trestle-npamp/trestle/internal/explore"
	"github.com/trestle-npamp/trestle/wire"
)

//go:generate go test -run ^TestStateMachine$ -docs .

var writeDocs = flag.Bool("docs", false, "write what the exploration found to docs/state-machine.md")

const stateMachineDoc = "../../docs/state-machine.md"

// condition allows some values of some fields of a state.
type condition [len(fields)]uint8 // bit sets; 0: any

func (c *condition) holds(s *absState) bool {
	for i, set := range c {
		if set != 0 && set&(1<<s[i]) == 0 {
			return false
		}
	}
	return true
}

// expected is what a rule says.
type expected struct {
	opened, dropRekem bool
	moves             string // "", "epoch", "generation"
	restart           string // "", "send", "receive"
	end               string
	sent              []string
	events            []string
	counts            []string
	err               string
	set               []struct{ field, value uint8 }
}

type compiledRule struct {
	*rule
	when  condition
	then  expected
	cells atomic.Int64
}

var compiled = func() []*compiledRule {
	list := make([]*compiledRule, len(rules))
	for i := range rules {
		r := &compiledRule{rule: &rules[i]}
		r.parse()
		list[i] = r
	}
	return list
}()

func field(name string) uint8 {
	for i, f := range fields {
		if f.name == name {
			return uint8(i)
		}
	}
	panic("no field " + name)
}

func value(f uint8, name string) uint8 {
	if i := slices.Index(fields[f].values, name); i >= 0 {
		return uint8(i)
	}
	panic("no value " + name + " of " + fields[f].name)
}

// parse reads a rule's two texts. Conditions are separated where a field's name
// begins, because values may have spaces.
func (r *compiledRule) parse() {
	words := strings.Fields(r.rule.when)
	for i := 0; i < len(words); {
		name, text, ok := strings.Cut(words[i], "=")
		if !ok {
			panic("bad condition " + r.rule.when)
		}
		for i++; i < len(words) && !strings.Contains(words[i], "="); i++ {
			text += " " + words[i]
		}
		f := field(name)
		text, not := strings.CutPrefix(text, "!")
		for _, v := range strings.Split(text, "|") {
			r.when[f] |= 1 << value(f, v)
		}
		if not {
			r.when[f] = ^r.when[f] & (1<<len(fields[f].values) - 1)
		}
	}
	e := &r.then
	for _, token := range strings.Split(r.rule.then, "; ") {
		if name, v, ok := strings.Cut(token, ":="); ok {
			f := field(name)
			e.set = append(e.set, struct{ field, value uint8 }{f, value(f, v)})
			continue
		}
		verb, what, _ := strings.Cut(token, " ")
		switch verb {
		case "":
		case "opened":
			e.opened = true
		case "end":
			e.end = what
		case "send":
			e.sent = append(e.sent, what)
		case "event":
			e.events = append(e.events, what)
		case "count":
			e.counts = append(e.counts, what)
		case "error":
			e.err = what
		case "epoch", "generation":
			e.moves = verb
		case "restart":
			e.restart = what
		case "drop":
			e.dropRekem = true
		default:
			panic("bad outcome " + token)
		}
	}
}

func matches(pattern, s string) bool {
	if pattern == "*" {
		return true
	}
	return slices.Contains(strings.Split(pattern, "|"), s)
}

func (in *input) compile() {
	for _, r := range compiled {
		if matches(r.kind, in.kind) && matches(r.channel, in.channel) && matches(r.variant, in.variant) {
			in.candidates = append(in.candidates, r)
		}
	}
}

// rule is the one that judges the input in s.
func (in *input) rule(s *absState) *compiledRule {
	for _, r := range in.candidates {
		if r.when.holds(s) {
			return r
		}
	}
	return nil
}

// Counters that the rules speak of; the others count what the rules say otherwise.
var ruleCounters = []string{
	"SkippedChannel", "UnknownType", "BadClose", "PathFrames", "StaleAcks", "KeyUpdatesIn",
	"RatchetsIn", "RekemsIn", "RekemsOut", "RekemsDropped", "StaleRekems", "KeyChangesPutOff",
	"PingsIn", "ErrorsIn",
}

// counterAt finds those counters.
var counterAt = func() (at []func(*Counters) uint64) {
	for _, name := range ruleCounters {
		f, ok := reflect.TypeFor[Counters]().FieldByName(name)
		if !ok {
			panic("no counter " + name)
		}
		at = append(at, func(k *Counters) uint64 {
			return (*atomic.Uint64)(unsafe.Add(unsafe.Pointer(k), f.Offset)).Load()
		})
	}
	return at
}()

func counted(k *Counters) (list []string) {
	for i, at := range counterAt {
		for range at(k) {
			list = append(list, ruleCounters[i])
		}
	}
	return list
}

// explorer explores one role and mode.
type explorer struct {
	t      testing.TB
	cells  int
	failed int
	free   []*world
}

func (x *explorer) drop(w *world) { x.free = append(x.free, w) }

func (x *explorer) clone(w *world) *world {
	d := new(world)
	if n := len(x.free); n > 0 {
		d, x.free = x.free[n-1], x.free[:n-1]
	}
	d.copyWorld(w)
	return d
}

func (x *explorer) fault(w *world, before absState, in *input, format string, args ...any) {
	if x.failed++; x.failed <= 8 {
		x.t.Errorf("in %vinput %v: %s", before, in, fmt.Sprintf(format, args...))
	}
}

// step gives one input to a copy of w and judges what comes of it.
func (x *explorer) step(w *world, in *input) (*world, bool) {
	before := w.state()
	if in.possible != nil && !in.possible(before) {
		return nil, false
	}
	next := x.clone(w)
	ok := x.judge(next, before, in)
	if ok && in.then != nil {
		ok = x.judge(next, next.state(), in.then)
	}
	if !ok {
		x.drop(next)
		return nil, false
	}
	next.warm()
	return next, true
}

func (x *explorer) judge(w *world, before absState, in *input) bool {
	x.cells++
	r := in.rule(&before)
	if r == nil {
		x.fault(w, before, in, "no rule says what must come of it")
		return false
	}
	r.cells.Add(1)
	e := r.then

	w.c.limits = rateLimits{} // what is too often is an input, not a state
	*w.counters = Counters{}
	position := w.position()
	var rest Conn
	quiet := e.end == "" && !e.opened && len(e.sent) == 0 && len(e.set) == 0 && e.err == "" && in.kind != "time" && in.kind != "send" && in.kind != "jump"
	if quiet {
		rest = w.rest()
	}
	var waiting []string
	for _, f := range w.c.queued() {
		waiting = append(waiting, frameName(f.Channel, f.Type, f.Buf.B[wire.HeaderLen:]))
	}
	w.turn(in.do)
	after := w.state()
	counts := counted(w.c.cfg.Counters)

	// What the state must become.
	want := before
	for _, s := range e.set {
		want[s.field] = s.value
	}
	if e.opened {
		want[fPings] = 0
	}
	if e.dropRekem && want[fRekem] == 1 {
		want[fRekem] = 0
		e.counts = append(slices.Clone(e.counts), "RekemsDropped")
	}
	switch {
	case e.restart == "receive" && (want[fEnd] == 1 || want[fEnd] == 2), e.restart == "send" && (want[fEnd] == 4 || want[fEnd] == 5):
		want[fEnd] = 0
	}
	// What must be said.
	var sent []string
	for _, s := range e.sent {
		switch s {
		case "queue":
			sent = append(sent, waiting...)
		case "bye":
			sent = append(sent, w.bye()...)
		default:
			sent = append(sent, s)
		}
	}
	switch e.end {
	case "", "peer", "acked", "done", "lost", "mute":
	default:
		if before[fPhase] != 2 {
			sent = append(sent, "ERROR("+e.end+")", "CLOSE")
		}
	}
	if before[fEnd] == 4 && len(sent) > 0 {
		sent, e.end, e.err = nil, "mute", "*"
	}
	if e.end != "" {
		want = absState{fMode: before[fMode], fPhase: 3}
	}

	ok := true
	fail := func(format string, args ...any) {
		ok = false
		x.fault(w, before, in, format, args...)
	}
	if !slices.Equal(w.sent, sent) {
		fail("sent %q, want %q", w.sent, sent)
	}
	if !slices.Equal(w.events, e.events) {
		fail("events %q, want %q", w.events, e.events)
	}
	slices.Sort(counts)
	wantCounts := slices.Sorted(slices.Values(e.counts))
	if !slices.Equal(counts, wantCounts) {
		fail("counted %q, want %q", counts, wantCounts)
	}
	if got := endName(w.ended); got != e.end {
		fail("ended %q (%v), want %q", got, w.ended, e.end)
	}
	if e.err != "*" && errName(w.err) != e.err {
		fail("the command returned %v, want %q", w.err, e.err)
	}
	if after != want {
		fail("became %v, want %v", after, want)
	}
	// The peer's reason goes with its CLOSE.
	if w.ended != nil && w.ended.Remote && (w.ended.Code != 0) != (before[fError] == 1) {
		fail("ended with code %v", w.ended.Code)
	}
	// No half-changed state: the receiving keys moved exactly as the rule says, also
	// when the association ended over it; and what was dropped changed nothing.
	if before[fPhase] != 3 {
		if got, want := w.position(), moved(position, e, in); got != want {
			fail("the receiving keys moved from %+v to %+v, want %+v", position, got, want)
		}
		if quiet {
			if now := w.rest(); !reflect.DeepEqual(rest, now) {
				fail("something else changed: %s", difference(rest, now))
			}
		}
	}
	return ok
}

// difference names the fields in which two machines differ.
func difference(a, b Conn) (names string) {
	for i := range reflect.TypeFor[Conn]().NumField() {
		name := reflect.TypeFor[Conn]().Field(i).Name
		if !reflect.DeepEqual(fieldOf(&a, name).Interface(), fieldOf(&b, name).Interface()) {
			names += fmt.Sprintf(" %s: %+v, %+v", name, fieldOf(&a, name), fieldOf(&b, name))
		}
	}
	return names
}

// moved is the position after what a rule says.
func moved(p position, e expected, in *input) position {
	i := slices.IndexFunc(exploredChannels, func(ch wire.Channel) bool { return ch.String() == in.channel })
	switch {
	case in.kind == "jump":
		switch in.variant {
		case "receive sequence":
			p.seq[0], p.seq[1] = 1<<64-1, 1<<64-1
		case "receive epoch":
			p.epoch[0], p.epoch[1] = 1<<64-1, 1<<64-1
		case "receive generation":
			p.generation = 1<<64 - 1
		}
	case e.moves == "generation":
		return position{generation: p.generation + 1}
	case e.moves == "epoch":
		p.epoch[i]++
		p.seq[i] = 0
	case e.opened:
		p.seq[i]++
	}
	return p
}

func endName(e *CloseError) string {
	switch {
	case e == nil:
		return ""
	case e.Remote && e.Cause != nil:
		return "lost"
	case e.Remote:
		return "peer"
	case e.Acked:
		return "acked"
	case e.Cause == nil:
		return "done"
	case reflect.TypeOf(e.Cause).String() == "*errors.joinError":
		return "mute"
	}
	return e.Code.String()
}

func errName(err error) string {
	if err == nil {
		return ""
	}
	for name, known := range map[string]error{
		"ErrClosed": ErrClosed, "ErrChannel": ErrChannel, "ErrReserved": ErrReserved, "ErrTooLarge": ErrTooLarge,
		"ErrNoCredit": ErrNoCredit, "ErrRate": ErrRate, "ErrNoRatchet": ErrNoRatchet, "ErrRekemPending": ErrRekemPending,
	} {
		if err == known {
			return name
		}
	}
	if s := err.Error(); strings.Contains(s, "exhausted") {
		return map[bool]string{true: "ErrGeneration", false: "ErrExhausted"}[strings.Contains(s, "generation")]
	}
	return err.Error()
}

func (w *world) bye() []string {
	if w.c.closeCode != 0 {
		return []string{fmt.Sprintf("ERROR(%v)", w.c.closeCode), "CLOSE"}
	}
	return []string{"CLOSE"}
}

// searched is what the search of one role and mode found.
type searched struct {
	role   Role
	mode   uint8
	states []absState
	cells  int
}

// TestStateMachine searches the machine from its beginning, in both roles and
// every mode: every input in every state that is reached. Each cell must be as the
// rules say, each rule must be of use, and the document must say the same. In
// short, and under the race detector, it searches one role and mode and leaves the
// latter two.
func TestStateMachine(t *testing.T) {
	var runs []*searched
	for mode := range fields[fMode].values {
		for _, role := range []Role{Client, Server} {
			runs = append(runs, &searched{role: role, mode: uint8(mode)})
		}
	}
	whole := !testing.Short() && !raceEnabled
	if !whole {
		runs = runs[len(runs)-1:]
	}
	inputs := alphabet()
	if raceEnabled {
		// There is one goroutine in it; the detector needs to see each command once.
		inputs = slices.DeleteFunc(inputs, func(in *input) bool { return in.generic })
	}
	t.Run("search", func(t *testing.T) {
		for _, r := range runs {
			t.Run(fmt.Sprintf("%v %s", r.role, fields[fMode].values[r.mode]), func(t *testing.T) {
				t.Parallel()
				x := &explorer{t: t}
				r.states = explore.Search(newWorld(r.role, r.mode), (*world).state, inputs, x.step, x.drop)
				r.cells = x.cells
			})
		}
	})
	if !whole || t.Failed() {
		return
	}
	for _, r := range compiled {
		if r.cells.Load() == 0 {
			t.Errorf("no state and input comes to the rule %v", *r.rule)
		}
	}
	if err := explore.Section(stateMachineDoc, "association", document(runs, inputs), *writeDocs); err != nil {
		t.Errorf("%v; go generate ./engine/conn writes it", err)
	}
}

// document is the table of the association's machine as a page.
func document(runs []*searched, inputs []*input) string {
	var b strings.Builder
	cells, kindsSeen := 0, map[string]bool{}
	for _, r := range runs {
		cells += r.cells
	}
	for _, in := range inputs {
		kindsSeen[in.kind+in.channel] = true
	}
	fmt.Fprintf(&b, `# State machines

The tables of this page are generated from those that the tests check the machines against (%s
in engine/conn and crypto/handshake), together with what the tests' search found. The search goes breadth first
from a machine's beginning, gives every input in every state that is reached, and goes on until no state is new. In
every cell what is sent, told, counted and returned, the next state, and how the keys moved must be exactly what
the first matching row says; an input without a row, and a row without an input, fail the test.

## The association

%d cells over %d inputs of %d kinds; states reached:

| role | mode | states | cells |
|---|---|---|---|
`, "`go generate ./engine/conn ./crypto/handshake`", cells, len(inputs), len(kindsSeen))
	for _, r := range runs {
		fmt.Fprintf(&b, "| %v | %s | %d | %d |\n", r.role, fields[fMode].values[r.mode], len(r.states), r.cells)
	}
	b.WriteString(`
A state is what tells apart two machines that may answer an input differently. Sequence numbers, epochs,
generations and counts of credit are not in it: inputs name them by what the machine expects (below, right, above), and only
a number without a successor is a state.

| part | values | meaning |
|---|---|---|
`)
	for _, f := range fields {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", f.name, strings.Join(f.values, ", "), f.says)
	}
	b.WriteString(`
The first row that matches is the one that counts; the order is the one in which a receiver judges a frame. "any" stands
for everything. *opened*: the frame authenticates, its sequence number is consumed, and
pings become 0. *end* with a code: ERROR with that code and CLOSE go out, unless CLOSE was said before. *end peer*: the
peer ended it; *end acked*: it ended as we asked and the peer said CLOSE_ACK; *end
done*: it ended as we asked, without one; *end lost*: the transport ended; *end mute*: keys are at their end and no word
goes out, which is also what comes of anything that would be sent with the send sequence at its end. *send queue*:
all that waited; *send bye*: the ERROR and CLOSE that Close asked for. *restart*: under a new root the epochs and
sequence numbers of a direction begin again. Rows of the kind *jump* are the search's own: they put a number where it has no
successor, which no test could wait for.

The faults that are the same for every frame (tampered fields, tags and numbers, cuts, repetition) are tried with every kind
of frame in each state of the ordinary mode in which no number is at its end, and with three kinds that stand for
the others (CLOSE, KEY_UPDATE on Control, an application frame) in all states. What is no concern of keys, an ERROR and
a PING of ours, is left out where a number is at its end.

| input | channel | variant | in states | outcome | cells |
|---|---|---|---|---|---|
`)
	say := func(pattern string) string {
		if pattern == "" || pattern == "*" {
			return "any"
		}
		pattern = strings.ReplaceAll(pattern, "=!", " other than ")
		return strings.ReplaceAll(pattern, "|", " / ")
	}
	for _, r := range compiled {
		then := r.rule.then
		if then == "" {
			then = "nothing"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %d |\n", say(r.kind), say(r.channel), say(r.variant), say(r.rule.when), strings.ReplaceAll(then, "|", " / "), r.cells.Load())
	}
	return b.String()
}
