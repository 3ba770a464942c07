package carriage_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// streamed octets of the frames that a peer has received, all of one stream.
func octets(ms []bridge.Message) (n int) {
	for _, m := range ms {
		n += len(m.Foreign)
	}
	return n
}

// D6: a producer stops at its stream's credit and goes on when there is more.
func TestD6_ProducerStopsAtTheCredit(t *testing.T) {
	pair, _, p, producer, _ := producing(t, carriage.StreamOptions{Buffer: 1 << 20})
	p.take(t)
	const event = 10_000
	sent := 0
	fill := func() {
		for producer.TrySend(text(event)) == nil {
			sent += event
			pair.Settle()
		}
	}
	fill()
	got := octets(p.take(t))
	if got > 1<<20 || got <= 1<<20-event {
		t.Fatalf("%d octets went out on a credit of 1 MiB", got)
	}
	if b := producer.Buffered(); b < 1<<20-2*event || b > 1<<20 {
		t.Errorf("%d octets wait, of 1 MiB that may", b)
	}
	total := got
	for range 5 {
		must(t, pair.Client.GrantStream(wire.ChannelBridge, uint64(total)+300_000, []byte("1")))
		pair.Settle()
		more := octets(p.take(t))
		total += more
		fill()
	}
	if max := 1<<20 + 5*300_000; total > max || total <= max-2*event {
		t.Errorf("%d octets went out on a credit of %d", total, max)
	}
	// A repeated or an old grant does nothing, nor one for a stream that is not there.
	must(t, pair.Client.GrantStream(wire.ChannelBridge, 5, []byte("1")))
	must(t, pair.Client.GrantStream(wire.ChannelBridge, 1<<40, []byte("2")))
	pair.Settle()
	if n := len(p.take(t)); n != 0 {
		t.Errorf("%d frames without credit", n)
	}
	// The end needs credit for its octets, an empty one none.
	must(t, producer.EndEmpty())
	must(t, pair.Client.GrantStream(wire.ChannelBridge, 1<<40, []byte("1")))
	pair.Settle()
	ms := p.take(t)
	if total += octets(ms); total != sent || ms[len(ms)-1].Kind != bridge.KindEnd {
		t.Errorf("%d octets of %d arrived", total, sent)
	}
}

// D6: an event that is larger than what is left goes while a quarter is left; no
// other does.
func TestD6_LargeEvents(t *testing.T) {
	pair, _, p, producer, _ := producing(t, carriage.StreamOptions{Buffer: 64 << 20})
	steps := []struct {
		event int
		goes  bool
	}{
		{600 << 10, true}, // 424 KiB left
		{3 << 20, true},   // larger than what is left, of which there is more than a quarter
		{1, false},
	}
	for _, s := range steps {
		must(t, producer.TrySend(text(s.event)))
		pair.Settle()
		if n := octets(p.take(t)); (n == s.event) != s.goes || n != 0 && !s.goes {
			t.Fatalf("an event of %d: %d octets went", s.event, n)
		}
	}
	must(t, pair.Client.GrantStream(wire.ChannelBridge, 600<<10+3<<20+200<<10, []byte("1")))
	pair.Settle()
	if n := octets(p.take(t)); n != 1 {
		t.Fatalf("%d octets", n)
	}
	must(t, producer.TrySend(text(300<<10))) // less than a quarter is left, and it is more
	pair.Settle()
	p.none(t)
}

// Before a peer's HELLO a stream has the floor's credit, and none at all once it is
// taken for a peer that sends no HELLO (D3, D6).
func TestD6_BeforeHello(t *testing.T) {
	h := &streamed{t: t, o: carriage.StreamOptions{Buffer: 1 << 20}}
	b, p := carriage.New(config(h)), new(peer)
	co := options(p)
	co.Conn.NoHello = true
	pair := nptest.NewPair(t, nptest.Options{Client: co, Server: options(b)})
	pair.Settle()
	p.send(t, request("1", ping1))
	pair.Settle()
	for h.one().TrySend(text(1000)) == nil {
		pair.Settle()
	}
	before := octets(p.take(t))
	if before > 1<<20 || before < 1<<20-2000 && before < 1<<19 {
		t.Fatalf("%d octets before HELLO", before)
	}
	pair.Run(6 * time.Second)
	if n := octets(p.take(t)); n == 0 || h.one().Buffered() != 0 {
		t.Errorf("%d octets once no HELLO is expected, %d wait", n, h.one().Buffered())
	}
}

// A consumer grants what it has consumed, when half of the credit is used (D6).
func TestD6_ConsumerGrants(t *testing.T) {
	pair, _, p, s, _ := consuming(t)
	id := carriage.EventID(0)
	for range 400 {
		id++
		p.send(t, data(id, string(text(10_000))))
		pair.Settle()
	}
	if len(s.events) != 400 {
		t.Fatalf("%d events, %v", len(s.events), s.Err)
	}
	if n := len(p.grants); n < 5 || n > 10 {
		t.Errorf("%d grants for 4 MB on a credit of 1 MiB: %v", n, p.grants)
	}
	if last := p.grants[len(p.grants)-1]; last < 4_000_000 || last > 4_000_000+1<<20 {
		t.Errorf("granted %d", last)
	}
}

// With StreamCall.Manual only what Consumed says is consumed.
func TestD6_ManualConsumption(t *testing.T) {
	pair, b, p := asking(t, config(nil))
	s, x := consume(t, b, pair.Client.Association, call(ping1), &carriage.StreamCall{Manual: true})
	pair.Settle()
	for id := range carriage.EventID(60) {
		p.send(t, data(id+1, string(text(10_000))))
	}
	pair.Settle()
	if len(s.events) != 60 || len(p.grants) != 0 {
		t.Fatalf("%d events, grants %v", len(s.events), p.grants)
	}
	for range 60 {
		x.Consumed(10_000)
	}
	pair.Settle()
	if n := len(p.grants); n != 1 || p.grants[0] < 550_000+1<<20 {
		t.Errorf("grants %v", p.grants)
	}
	x.Consumed(1 << 40) // more than there was: no harm
	pair.Settle()
	if last := p.grants[len(p.grants)-1]; last > 600_000+1<<20 {
		t.Errorf("granted %d", last)
	}
}

// A producer that overruns its credit loses its stream, with a definite reason.
func TestD6_OverrunCutsTheStream(t *testing.T) {
	pair, b, p := asking(t, config(nil))
	s, _ := consume(t, b, pair.Client.Association, call(ping1), &carriage.StreamCall{Manual: true})
	pair.Settle()
	p.take(t)
	for id := range carriage.EventID(120) {
		p.send(t, data(id+1, string(text(10_000))))
	}
	pair.Settle()
	if !errors.Is(s.Err, carriage.ErrOverrun) || len(s.events) > 105 {
		t.Errorf("%d events, %v", len(s.events), s.Err)
	}
	if m := p.one(t); m.Stream.Control != bridge.ControlCancel {
		t.Errorf("%+v", m)
	}
	if st := b.Stats(); st.StreamsOverrun != 1 {
		t.Errorf("%+v", st)
	}
	if pair.Client.Err() != nil {
		t.Error("the association did not survive it")
	}
}

// A reader that is too slow for a producer without credit loses its stream, with a
// definite reason, after all that it was given.
func TestIterator_TooSlowWithoutCredit(t *testing.T) {
	b, p := carriage.New(config(nil)), new(peer)
	so := options(p)
	so.Conn.StreamCredit = -1
	pair := nptest.NewPair(t, nptest.Options{Client: options(b), Server: so})
	pair.Settle()
	q := call(ping1)
	q.Protocol = mcp
	s, err := b.Stream(background, pair.Client.Association, &q, nil)
	must(t, err)
	pair.Settle()
	p.take(t)
	for id := range carriage.EventID(200) {
		p.send(t, data(id+1, string(text(10_000))))
	}
	pair.Settle()
	if m := p.one(t); m.Stream.Control != bridge.ControlCancel {
		t.Errorf("%+v", m)
	}
	n := carriage.EventID(0)
	for e, err := range s.Events() {
		if err != nil {
			if err != carriage.ErrSlowConsumer {
				t.Errorf("%v", err)
			}
			break
		}
		if n++; e.ID != n {
			t.Fatalf("event %d after %d", e.ID, n-1)
		}
	}
	if n < 100 || n > 106 {
		t.Errorf("%d events of 10 kB read", n)
	}
	if st := b.Stats(); st.StreamsUnread != 1 {
		t.Errorf("%+v", st)
	}
}

// What waits for readers is bounded over all streams.
func TestIterator_MaxReceived(t *testing.T) {
	cfg := config(nil)
	cfg.MaxReceived = 500_000
	pair, b, p := asking(t, cfg)
	var all []*carriage.Stream
	for i := range 3 {
		s, err := b.Stream(background, pair.Client.Association, &carriage.Call{Protocol: raw, Natural: fmt.Append(nil, i)}, nil)
		must(t, err)
		all = append(all, s)
	}
	pair.Settle()
	reqs := p.take(t)
	for _, r := range reqs {
		for id := range carriage.EventID(20) {
			p.send(t, bridge.Message{Kind: bridge.KindData, Protocol: raw, Corr: r.Corr, HasStream: true, Stream: bridge.StreamControl{EventID: id + 1}, Foreign: text(10_000)})
		}
	}
	pair.Settle()
	if st := b.Stats(); st.StreamsUnread != 1 {
		t.Errorf("%+v", st)
	}
	total := 0
	for _, s := range all {
		for {
			if _, err := s.Next(); err != nil {
				if err != carriage.ErrSlowConsumer {
					t.Errorf("%v", err)
				}
				break
			}
			if total++; total == 20 || total == 40 {
				break
			}
		}
		s.Close()
	}
	pair.Settle()
	if total != 50 {
		t.Errorf("%d events", total)
	}
	// It was all given back.
	s, err := b.Stream(background, pair.Client.Association, &carriage.Call{Protocol: raw, Natural: []byte("x")}, nil)
	must(t, err)
	pair.Settle()
	for id := range carriage.EventID(49) {
		p.send(t, bridge.Message{Kind: bridge.KindData, Protocol: raw, Corr: []byte("x"), HasStream: true, Stream: bridge.StreamControl{EventID: id + 1}, Foreign: text(10_000)})
	}
	pair.Settle()
	if st := b.Stats(); st.StreamsUnread != 1 {
		t.Errorf("%+v", st)
	}
	s.Close()
}

// Send waits for the consumer, and its context ends the wait.
func TestSend_WaitsForTheConsumer(t *testing.T) {
	pair, _, p, producer, _ := producing(t, carriage.StreamOptions{Buffer: 100_000})
	const n = 400
	errs := make(chan error, 1)
	go func() {
		for range n {
			if err := producer.Send(background, text(10_000)); err != nil {
				errs <- err
				return
			}
		}
		errs <- producer.EndEmpty()
	}()
	total := 0
	pair.RunUntil(func() bool {
		got := octets(p.take(t))
		if total += got; producer.Buffered() > 110_000 {
			t.Errorf("%d octets wait", producer.Buffered())
		}
		if got > 0 {
			must(t, pair.Client.GrantStream(wire.ChannelBridge, uint64(total)+500_000, []byte("1")))
		}
		return total == n*10_000
	})
	pair.RunUntil(func() bool { return len(errs) == 1 })
	must(t, <-errs)

	pair, _, _, producer, _ = producing(t, carriage.StreamOptions{Buffer: 1000})
	pair.Server.Block(true)
	for producer.TrySend(text(900)) == nil {
		pair.Settle()
	}
	ctx, cancel := context.WithCancel(background)
	go func() { errs <- producer.Send(ctx, text(900)) }()
	cancel()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	go func() { errs <- producer.Send(background, text(900)) }()
	pair.Cut(errors.New("reset"))
	pair.RunUntil(func() bool { return len(errs) == 1 })
	if err := <-errs; err == nil {
		t.Error("sent into an association that has ended")
	}
}

// StreamOptions.Sent tells what has left, so that whoever relays gives credit on.
func TestSent_TellsWhatHasLeft(t *testing.T) {
	left := 0
	pair, _, p, producer, _ := producing(t, carriage.StreamOptions{Buffer: 8 << 20, Sent: func(n int) { left += n }})
	for range 200 {
		must(t, producer.TrySend(text(10_000)))
	}
	pair.Settle()
	if got := octets(p.take(t)); left != got || left > 1<<20 {
		t.Errorf("%d left, %d arrived", left, got)
	}
	must(t, pair.Client.GrantStream(wire.ChannelBridge, 1<<30, []byte("1")))
	pair.Settle()
	if left != 2_000_000 {
		t.Errorf("%d left", left)
	}
}

// A peer that gives streams no credit, and whose association takes nothing of a
// stream for the stall deadline, loses the stream and not the others (D6).
func TestD6_StalledWithoutCredit(t *testing.T) {
	h := &streamed{t: t, o: carriage.StreamOptions{Buffer: 64 << 20}}
	cfg := config(h)
	cfg.StallTimeout = second
	b, p := carriage.New(cfg), new(peer)
	co := options(p)
	co.Conn.StreamCredit = -1
	so := options(b)
	so.OutboundLimit, so.Stall = 256<<10, time.Hour
	pair := nptest.NewPair(t, nptest.Options{Client: co, Server: so})
	pair.Settle()
	p.send(t, request("1", ping1))
	p.send(t, request("2", `{"jsonrpc":"2.0","id":2,"method":"m"}`))
	pair.Settle()
	pair.Server.Block(true)
	for range 100 {
		must(t, h.producers[0].TrySend(text(10_000)))
	}
	pair.Run(second / 2)
	if err := h.producers[0].Err(); err != nil {
		t.Fatalf("cut before the deadline: %v", err)
	}
	pair.Run(second)
	if err := h.producers[0].Err(); err != carriage.ErrSlowConsumer {
		t.Fatalf("%v", err)
	}
	must(t, h.producers[1].TrySend([]byte("other")))
	pair.Server.Block(false)
	pair.Run(second / 2)
	ms := p.take(t)
	var failed, other bool
	for _, m := range ms {
		failed = failed || m.Kind == bridge.KindError && string(m.Corr) == "1"
		other = other || bytes.Equal(m.Foreign, []byte("other"))
	}
	if !failed || !other || b.Stats().StreamsCut != 1 {
		t.Errorf("cut told %v, other stream went on %v, %+v", failed, other, b.Stats())
	}
}

// One big stream does not keep the others waiting: they take turns (L23).
func TestFairness_OneBigStreamAmongOthers(t *testing.T) {
	h := &streamed{t: t, o: carriage.StreamOptions{Buffer: 64 << 20}}
	pair, _, p := serving(t, config(h))
	for i := range 10 {
		id := fmt.Sprint(i + 1)
		p.send(t, request(id, `{"jsonrpc":"2.0","id":`+id+`,"method":"m"}`))
	}
	pair.Settle()
	pair.Server.Block(true)
	for range 1000 {
		must(t, h.producers[0].TrySend(text(1000)))
	}
	pair.Settle() // the transport is full of it
	for i, q := range h.producers {
		if i > 0 {
			must(t, q.TrySend([]byte("small")))
		}
	}
	pair.Settle()
	pair.Server.Block(false)
	pair.Settle()
	at, big := 0, 0
	for i, m := range p.take(t) {
		if string(m.Foreign) == "small" {
			at = i
		} else {
			big++
		}
	}
	if big != 1000 || at > 350 { // 256 KiB had left before they came
		t.Errorf("%d events, the last small one behind %d", big, at)
	}
}

// Events larger than a flow's share leave one after the other, and more than one
// batch of them.
func TestOutlet_LargeEventsFollowEachOther(t *testing.T) {
	pair, _, p, producer, _ := producing(t, carriage.StreamOptions{Buffer: 16 << 20})
	must(t, pair.Client.GrantStream(wire.ChannelBridge, 1<<40, []byte("1")))
	pair.Settle()
	for range 100 {
		must(t, producer.TrySend(text(100_000)))
	}
	must(t, producer.End(text(100_000)))
	pair.Settle()
	if n := len(p.take(t)); n != 101 {
		t.Errorf("%d frames of 101", n)
	}
}
