package conn

import (
	"bytes"
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

// A shared tail is sealed behind the frame's own octets, and counted for credit.
func TestEnqueueShared_SealsBothParts(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.hello(nil))
	tail := buf.SharedCopy([]byte("event"))
	var flows [2]sched.Flow
	r.c.StartBatch(r.now, nil, false)
	for i, head := range []string{"first ", "second "} {
		b := buf.Get(100)
		b.B = append(append(b.B, zeroHeader[:]...), head...)
		if err := r.c.EnqueueShared(wire.ChannelBridge, 0x0104, 0, &flows[i], b, tail.Retain()); err != nil {
			t.Fatal(err)
		}
	}
	if n := r.c.Queued(); n != 2*wire.HeaderLen+len("first eventsecond event") {
		t.Errorf("%d octets queued", n)
	}
	sent := r.c.credit.Sent()
	out := r.take()
	if len(out) != 2 || out[0].payload != "first event" || out[1].payload != "second event" {
		t.Fatalf("sent %v", out)
	}
	if n := r.c.credit.Sent() - sent; n != uint64(len("first eventsecond event")) {
		t.Errorf("%d octets counted", n)
	}
	if string(tail.Octets()) != "event" {
		t.Error("the tail was changed")
	}
	tail.Release()
}

func TestEnqueueShared_LimitsWhatBothPartsMake(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.hello(nil))
	tail := buf.SharedCopy(bytes.Repeat([]byte("x"), r.c.MaxSend()))
	b := buf.Get(100)
	b.B = append(append(b.B, zeroHeader[:]...), '.')
	if err := r.c.EnqueueShared(wire.ChannelBridge, 0x0104, 0, nil, b, tail); err != ErrTooLarge {
		t.Fatalf("%v", err)
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
