package conn

import (
	"errors"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/sched"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

func withStreams(octets uint64) func(*control.Hello) {
	return func(h *control.Hello) { h.HasStreamCredit, h.StreamCredit = true, octets }
}

func streamUpdate(octets uint64, corr string) string {
	p, err := control.AppendStreamFlowUpdate(nil, octets, []byte(corr))
	if err != nil {
		panic(err)
	}
	return string(p)
}

// HELLO's key 4 says how much each stream may bring at first (D6).
func TestStreamCredit_InHello(t *testing.T) {
	for _, tc := range []struct {
		set  int
		want uint64
	}{{0, DefaultStreamCredit}, {5 << 20, 5 << 20}, {1, FloorStreamCredit}, {-1, 0}} {
		r := newRig(t, func(c *Config) { c.StreamCredit = tc.set })
		var h control.Hello
		if err := control.ParseHello(&h, []byte(r.sent[0].payload)); err != nil {
			t.Fatal(err)
		}
		if h.HasStreamCredit != (tc.want > 0) || h.StreamCredit != tc.want {
			t.Errorf("configured %d: told %v %d, want %d", tc.set, h.HasStreamCredit, h.StreamCredit, tc.want)
		}
	}
}

// What may be sent on a stream: the floor before HELLO, then what it says, and
// anything where one of the two HELLOs says nothing (D3, D6).
func TestStreamCredit_InForceByBothHellos(t *testing.T) {
	limit := func(r *rig, want uint64, limited bool) {
		t.Helper()
		if n, on := r.c.StreamLimit(); n != want || on != limited {
			t.Errorf("limit %d %v, want %d %v", n, on, want, limited)
		}
	}
	r := newRig(t, nil)
	limit(r, FloorStreamCredit, true)
	if _, on := r.c.StreamWindow(); on {
		t.Error("a peer without HELLO is held to credit that it knows nothing of")
	}
	r.turn(r.hello(withStreams(3 << 20)))
	limit(r, 3<<20, true)
	if n, on := r.c.StreamWindow(); !on || n != DefaultStreamCredit {
		t.Errorf("window %d %v", n, on)
	}

	r = newRig(t, nil)
	r.turn(r.hello(nil))
	limit(r, 0, false)
	if _, on := r.c.StreamWindow(); on {
		t.Error("credit is in force although the peer's HELLO has none")
	}
	r = newRig(t, func(c *Config) { c.StreamCredit = -1 })
	r.turn(r.hello(withStreams(3 << 20)))
	limit(r, 0, false)
	if _, on := r.c.StreamWindow(); on {
		t.Error("credit is in force although our HELLO has none")
	}
	r = newRig(t, nil)
	r.now += DefaultHelloWait
	r.c.StartBatch(r.now, nil, false)
	r.c.HandleTimeout(r.now)
	r.take()
	limit(r, 0, false)
	if !r.c.HelloExpired() {
		t.Error("the wait for HELLO is not over")
	}
	r.turn(r.hello(withStreams(3 << 20)))
	limit(r, 3<<20, true)
	if r.c.HelloExpired() {
		t.Error("a peer that sent HELLO after all is taken for one that sends none")
	}
}

// FLOW_UPDATE on Bridge is the channel's business: an event with its count and
// correlation id (D6).
func TestStreamCredit_UpdateIsAnEvent(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.hello(withStreams(FloorStreamCredit)))
	evs, _ := r.turn(r.frame(wire.ChannelBridge, wire.TypeFlowUpdate, streamUpdate(12345678, "corr")))
	if len(evs) != 1 || evs[0].Kind != EventCredit || evs[0].Channel != wire.ChannelBridge || evs[0].Octets != 12345678 || string(evs[0].Payload) != "corr" {
		t.Fatalf("events %+v", evs)
	}
	r.wantAlive()
}

func TestStreamCredit_UpdateNotInForceIsCounted(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.hello(nil))
	before := r.c.cfg.Counters.UnknownType.Load()
	for _, p := range []string{streamUpdate(1<<30, "c"), "garbage"} {
		if evs, out := r.turn(r.frame(wire.ChannelBridge, wire.TypeFlowUpdate, p)); len(evs)+len(out) != 0 {
			t.Errorf("events %v, sent %v", evs, out)
		}
	}
	if n := r.c.cfg.Counters.UnknownType.Load() - before; n != 2 {
		t.Errorf("counted %d", n)
	}
	r.wantAlive()
}

func TestStreamCredit_MalformedUpdateCloses(t *testing.T) {
	for _, p := range []string{"", "1234567", "12345678", "12345678\x00", "12345678\x02c", "12345678\x01cc"} {
		r := newRig(t, nil)
		r.turn(r.hello(withStreams(FloorStreamCredit)))
		_, out := r.turn(r.frame(wire.ChannelBridge, wire.TypeFlowUpdate, p))
		r.wantClosed(out, control.CodeProtocol)
	}
}

// What we grant goes out at once, or before what waits.
func TestStreamCredit_GrantGoesFirst(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.hello(withStreams(FloorStreamCredit)))
	r.c.StartBatch(r.now, nil, false)
	if err := r.c.GrantStream(wire.ChannelBridge, 777, []byte("c")); err != nil {
		t.Fatal(err)
	}
	want := sentFrame{ch: wire.ChannelBridge, t: wire.TypeFlowUpdate, payload: streamUpdate(777, "c")}
	if out := r.take(); len(out) != 1 || out[0] != want {
		t.Fatalf("sent %v", out)
	}

	r.c.StartBatch(r.now, nil, true) // congested
	for range 3 {
		r.queueBridge(t, 100)
	}
	if err := r.c.GrantStream(wire.ChannelBridge, 777, []byte("c")); err != nil {
		t.Fatal(err)
	}
	r.take()
	if _, out := r.turn(nil); len(out) != 4 || out[0].t != wire.TypeFlowUpdate || out[0].payload != want.payload {
		t.Fatalf("sent %v", out)
	}
	if err := r.c.GrantStream(wire.ChannelControl, 1, []byte("c")); err != ErrChannel {
		t.Errorf("on Control: %v", err)
	}
	if err := r.c.GrantStream(wire.ChannelBridge, 1, nil); !errors.Is(err, control.ErrFlowCorr) {
		t.Errorf("without a correlation id: %v", err)
	}
	r.c.Close(r.now, 0, "")
	if err := r.c.GrantStream(wire.ChannelBridge, 1, []byte("c")); err != ErrClosed {
		t.Errorf("after Close: %v", err)
	}
}

// Without credit in force nothing is granted: the peer would not know what it is.
func TestStreamCredit_NoGrantUnlessInForce(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.hello(nil))
	r.c.StartBatch(r.now, nil, false)
	if err := r.c.GrantStream(wire.ChannelBridge, 777, []byte("c")); err != nil {
		t.Fatal(err)
	}
	if out := r.take(); len(out) != 0 {
		t.Errorf("sent %v", out)
	}
}

// source is a flow's source of these frames.
type source struct {
	flow   sched.Flow
	frames []string
	filled func()
	rest   func()
}

func (s *source) Fill(dst []byte) []byte {
	if s.filled != nil {
		s.filled()
	}
	return append(dst, s.frames[0]...)
}

func (s *source) Next() (wire.FrameType, int, bool) {
	if s.frames = s.frames[1:]; len(s.frames) == 0 {
		return 0, 0, false
	}
	return 0x0105, len(s.frames[0]), true
}

func (s *source) Rest() {
	if s.rest != nil {
		s.rest()
	}
}

func (r *rig) offer(t *testing.T, s *source) {
	t.Helper()
	s.flow.Source = s
	if err := r.c.Offer(wire.ChannelBridge, 0x0104, &s.flow, len(s.frames[0])); err != nil {
		t.Fatal(err)
	}
}

// What a source keeps is sealed when it is its turn, and counted for credit.
func TestOffer_SealsWhatTheSourceGives(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.hello(nil))
	s := &source{frames: []string{"first", "", "and the third"}}
	r.c.StartBatch(r.now, nil, false)
	r.offer(t, s)
	if r.c.Queued() != 0 || !r.c.Waiting() || !r.c.Sendable() || r.c.Direct(wire.ChannelBridge, 1) {
		t.Errorf("%d octets queued, waiting %v, sendable %v", r.c.Queued(), r.c.Waiting(), r.c.Sendable())
	}
	sent := r.c.credit.Sent()
	out := r.take()
	if len(out) != 3 || out[0].payload != "first" || out[1].payload != "" || out[2].payload != "and the third" {
		t.Fatalf("sent %v", out)
	}
	if n := r.c.credit.Sent() - sent; n != uint64(len("firstand the third")) {
		t.Errorf("%d octets counted", n)
	}
	if r.c.Waiting() || s.flow.Len() != 0 {
		t.Error("something is left")
	}
}

// It leaves as far as the batch and the peer's credit allow, and the rest later.
func TestOffer_WaitsForRoomAndCredit(t *testing.T) {
	r := newRig(t, func(c *Config) { c.HighWater = 1000 })
	r.turn(r.hello(func(h *control.Hello) { h.HasCredit, h.Credit = true, FloorCredit }))
	s := new(source)
	for range 3 {
		s.frames = append(s.frames, strings.Repeat("x", 600))
	}
	s.frames = append(s.frames, strings.Repeat("y", FloorCredit))
	r.c.StartBatch(r.now, nil, true)
	r.offer(t, s)
	if out := r.take(); len(out) != 0 {
		t.Fatalf("sent %d frames into a congested transport", len(out))
	}
	if _, out := r.turn(nil); len(out) != 2 || !r.c.Sendable() {
		t.Fatalf("sent %d frames into a batch of 1,000 octets", len(out))
	}
	if _, out := r.turn(nil); len(out) != 1 || r.c.Sendable() || !r.c.Waiting() {
		t.Fatalf("sent %d frames with credit for one", len(out))
	}
	if n := r.c.DropFlow(&s.flow); n != 1 || r.c.Waiting() {
		t.Errorf("dropped %d", n)
	}
}

// Close sends what had room before it, and nothing that sources keep for later: it
// would have no end.
func TestOffer_AtClose(t *testing.T) {
	r := newRig(t, func(c *Config) { c.HighWater = 1000 })
	r.turn(r.hello(nil))
	s := new(source)
	for range 5 {
		s.frames = append(s.frames, strings.Repeat("x", 600))
	}
	r.c.StartBatch(r.now, nil, false)
	r.offer(t, s)
	r.c.Close(r.now, 0, "")
	if err := r.c.Offer(wire.ChannelBridge, 0x0104, new(sched.Flow), 1); err != ErrClosed {
		t.Errorf("after Close: %v", err)
	}
	out := r.take()
	_, more := r.turn(nil)
	if out = append(out, more...); len(out) != 3 || out[2].t != wire.TypeClose {
		t.Fatalf("sent %v", out)
	}
	if s.flow.Len() != 0 || len(s.frames) != 3 {
		t.Errorf("%d frames are left, %d of them queued", len(s.frames), s.flow.Len())
	}
}

// A source that has more learns that its turn is over before anything of another flow
// leaves, and before the batch does.
func TestOffer_RestFollowsATurn(t *testing.T) {
	for _, tc := range []struct {
		highWater   int
		frames      int // of 1,400 octets that each has
		first, then string
	}{
		{1 << 20, 5, "aa rest-a bb rest-b u aaa bbb", ""}, // 4,096 octets are a turn
		{2 * 1400, 5, "aa rest-a", "bb rest-b"},
		{1 << 20, 1, "a b", ""},
	} {
		r := newRig(t, func(c *Config) { c.HighWater = tc.highWater })
		r.turn(r.hello(nil))
		var log []string
		said := func(s string) {
			if n := len(log); n > 0 && log[n-1][0] == s[0] && len(s) == 1 {
				log[n-1] += s
				return
			}
			log = append(log, s)
		}
		r.c.StartBatch(r.now, nil, false)
		pushed := false
		for _, name := range []string{"a", "b"} {
			s := &source{filled: func() { said(name) }}
			for range tc.frames {
				s.frames = append(s.frames, strings.Repeat("x", 1400))
			}
			s.rest = func() {
				said("rest-" + name)
				// What has a higher rank than others that wait goes first.
				if name == "b" && !pushed {
					pushed = true
					u := &source{frames: []string{"u"}, filled: func() { said("u") }}
					u.flow.Source = u
					if err := r.c.Offer(wire.ChannelImmune, 0x0104, &u.flow, 1); err != nil {
						t.Fatal(err)
					}
				}
			}
			r.offer(t, s)
		}
		r.take()
		if got := strings.Join(log, " "); got != tc.first {
			t.Errorf("%+v: %s", tc, got)
		}
		if log = nil; tc.then != "" {
			r.turn(nil)
			if got := strings.Join(log, " "); got != tc.then {
				t.Errorf("%+v: then %s", tc, got)
			}
		}
	}
}

func TestOffer_Limits(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.hello(nil))
	flow := sched.Flow{Source: new(source)}
	if err := r.c.Offer(wire.ChannelBridge, 0x0104, &flow, r.c.MaxSend()+1); err != ErrTooLarge {
		t.Errorf("a frame too large: %v", err)
	}
	if err := r.c.Offer(wire.ChannelControl, 0x0104, &flow, 1); err != ErrReserved {
		t.Errorf("on Control: %v", err)
	}
	if r.c.Waiting() {
		t.Error("what was refused is queued")
	}
}

func TestDropFlow_GivesUpItsFramesAlone(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.hello(nil))
	var flow sched.Flow
	r.c.StartBatch(r.now, nil, true)
	for _, f := range []*sched.Flow{&flow, nil, &flow} {
		b := buf.Get(100)
		b.B = append(append(b.B, zeroHeader[:]...), strings.Repeat("x", 50)...)
		if err := r.c.Enqueue(wire.ChannelBridge, 0x0104, 0, f, b); err != nil {
			t.Fatal(err)
		}
	}
	r.take()
	if n := r.c.DropFlow(&flow); n != 2 {
		t.Errorf("dropped %d", n)
	}
	if _, out := r.turn(nil); len(out) != 1 {
		t.Errorf("sent %v", out)
	}
}
