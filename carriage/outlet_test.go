package carriage_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// crowded is a server with many streams whose peer reads nothing at first, and a
// small outbound limit.
func crowded(t *testing.T, streams int, cfg carriage.Config, edit func(*assoc.Options)) (*nptest.Pair, *carriage.Bridge, *peer) {
	t.Helper()
	b, p := carriage.New(cfg), new(peer)
	so := options(b)
	so.OutboundLimit, so.Stall = 128<<10, time.Hour
	so.Conn.HighWater = 16 << 10
	if edit != nil {
		edit(&so)
	}
	pair := nptest.NewPair(t, nptest.Options{Client: options(p), Server: so})
	pair.Settle()
	for i := range streams {
		id := fmt.Sprint(i)
		p.send(t, request(id, `{"jsonrpc":"2.0","id":`+id+`,"method":"m"}`))
	}
	pair.Settle()
	return pair, b, p
}

// However many streams have much to send, they take nothing of the outbound limit, and
// all of them get on when there is room (L22, L23).
func TestOutlet_StreamsLeaveRoomForOthers(t *testing.T) {
	const streams, events = 50, 40
	h := &streamed{t: t, o: carriage.StreamOptions{Buffer: 1 << 20}}
	pair, b, p := crowded(t, streams, config(h), nil)
	pair.Server.Block(true)
	for i, q := range h.producers {
		for k := range events {
			must(t, q.TrySend(fmt.Append(text(1000), " ", i, " ", k)))
		}
		must(t, q.End(fmt.Append(nil, i)))
	}
	pair.Run(time.Millisecond)
	if q := pair.Server.Queued(); q != 0 {
		t.Errorf("%d octets queued", q)
	}
	if err := pair.Server.SendBuf(wire.ChannelBridge, bridge.TypeNotify, assoc.NewBuf(0)); err != nil {
		t.Errorf("nothing is left for others: %v", err)
	}
	pair.Server.Block(false)
	pair.Settle()
	got := map[string]int{}
	for _, f := range p.frames {
		var m bridge.Message
		if bridge.Parse(&m, f.t, f.payload, nil) != nil {
			continue // the notification
		}
		id := string(m.Corr)
		if m.Kind == bridge.KindEnd {
			if string(m.Foreign) != id || got[id] != events || int(m.Stream.EventID) != events+1 {
				t.Errorf("stream %s: end %q with id %d after %d events", id, m.Foreign, m.Stream.EventID, got[id])
			}
			got[id] = -1
			continue
		}
		if want := fmt.Sprintf("%s %s %d", text(1000), id, got[id]); string(m.Foreign) != want {
			t.Fatalf("stream %s: event %d is not the %d. of it", id, m.Stream.EventID, got[id])
		}
		got[id]++
	}
	if len(got) != streams || got["0"] != -1 || got["49"] != -1 {
		t.Errorf("%d streams arrived", len(got))
	}
	if q := pair.Server.Queued(); q != 0 || b.Stats().StreamsCut != 0 {
		t.Errorf("%d octets queued, %+v", q, b.Stats())
	}
}

// Streams get on although others have used up the budget that associations share.
func TestOutlet_SharedBudget(t *testing.T) {
	budget := buf.NewBudget(40 << 10)
	h := &streamed{t: t, o: carriage.StreamOptions{Buffer: 1 << 20}}
	pair, _, p := crowded(t, 3, config(h), func(o *assoc.Options) { o.Budget = budget })
	if !budget.Take(40 << 10) { // another association's
		t.Fatal("no budget")
	}
	pair.Server.Block(true)
	for _, q := range h.producers {
		for range 40 {
			must(t, q.TrySend(text(1000)))
		}
	}
	pair.Run(time.Second)
	pair.Server.Block(false)
	pair.Run(time.Second)
	budget.Give(40 << 10)
	if n := len(p.take(t)); n != 120 {
		t.Errorf("%d events of 120", n)
	}
	if budget.Used() != 0 {
		t.Errorf("%d octets of the budget taken", budget.Used())
	}
}

// Cancelling and cutting give up what waits, wherever it waits.
func TestOutlet_EndsWhileItWaits(t *testing.T) {
	h := &streamed{t: t, o: carriage.StreamOptions{Buffer: 1 << 20}}
	pair, b, p := crowded(t, 30, config(h), nil)
	pair.Server.Block(true)
	for _, q := range h.producers {
		for range 40 {
			must(t, q.TrySend(text(1000)))
		}
	}
	pair.Run(time.Millisecond)
	for i := range 30 {
		m := cancelFrame(0)
		m.Corr = fmt.Append(nil, i)
		p.send(t, m)
	}
	pair.Run(time.Millisecond)
	if q := pair.Server.Queued(); q > 30*100 { // the acknowledgements
		t.Errorf("%d octets queued that nobody wants", q)
	}
	pair.Server.Block(false)
	pair.Settle()
	acks := map[string]int{}
	sent := map[string]carriage.EventID{}
	for _, m := range p.take(t) {
		if m.Kind == bridge.KindEnd {
			ackFrame(t, m, sent[string(m.Corr)])
			acks[string(m.Corr)]++
			continue
		}
		sent[string(m.Corr)] = m.Stream.EventID
	}
	if len(acks) != 30 || b.Stats().StreamsCancelled != 30 {
		t.Errorf("%d acknowledged, %+v", len(acks), b.Stats())
	}
	pair.Cut(errors.New("reset"))
	pair.Settle()
}

// The stall deadline is for streams of which nothing leaves; one that gets on, however
// slowly, is not cut (D6).
func TestOutlet_SlowIsNotStalled(t *testing.T) {
	h := &streamed{t: t, o: carriage.StreamOptions{Buffer: 4 << 20}}
	cfg := config(h)
	cfg.StallTimeout = second
	b, p := carriage.New(cfg), new(peer)
	co, so := options(p), options(b)
	co.Conn.StreamCredit = -1
	so.OutboundLimit, so.Stall, so.Conn.HighWater = 64<<10, time.Hour, 4<<10
	pair := nptest.NewPair(t, nptest.Options{Client: co, Server: so})
	pair.Settle()
	p.send(t, request("1", ping1))
	pair.Settle()
	for range 100 {
		must(t, h.one().TrySend(text(1000)))
	}
	for range 20 { // 4 KiB each second or so
		pair.Server.Block(true)
		pair.Run(second * 9 / 10)
		pair.Server.Block(false)
		pair.Server.Block(true)
		pair.Run(time.Millisecond)
	}
	if err := h.one().Err(); err != nil {
		t.Errorf("cut although it gets on: %v", err)
	}
	pair.Run(3 * second)
	if err := h.one().Err(); err != carriage.ErrSlowConsumer {
		t.Errorf("not cut although nothing leaves: %v", err)
	}
}

// An event that fits no frame of the association that the stream goes on with ends it
// there.
func TestOutlet_EventTooLargeAfterAResume(t *testing.T) {
	pair, b, _, producer, _ := producing(t, carriage.StreamOptions{Resumable: true, Buffer: 8 << 20})
	pair.Cut(nil)
	pair.Settle()
	must(t, producer.TrySend(text(2<<20)))
	p := new(peer)
	co := options(p)
	co.Conn.MaxFrame = wire.FloorFrameLen
	small := nptest.NewPair(t, nptest.Options{Client: co, Server: options(b)})
	small.Settle()
	p.send(t, resume("1", 0, ""))
	small.Settle()
	m := p.one(t)
	if m.Kind == bridge.KindData {
		t.Fatal("a frame larger than the peer accepts")
	}
}

// Callbacks that panic are counted, and do no harm.
func TestOutlet_CallbacksPanic(t *testing.T) {
	pair, b, p, producer, _ := producing(t, carriage.StreamOptions{Sent: func(int) { panic("x") }})
	must(t, producer.TrySend([]byte("e")))
	must(t, producer.EndEmpty())
	pair.Settle()
	if n := len(p.take(t)); n != 2 || b.Stats().HandlerPanics != 1 {
		t.Errorf("%d frames, %+v", n, b.Stats())
	}
	pair, b, p = serving(t, config(carriage.HandlerFunc(func(r *carriage.Request) {
		s, err := r.Stream(carriage.StreamOptions{Over: func(error) { panic("x") }})
		must(t, err)
		must(t, s.EndEmpty())
	})))
	p.send(t, request("1", ping1))
	pair.Settle()
	event(t, p.one(t), bridge.KindEnd, 1, "")
	if b.Stats().HandlerPanics != 1 {
		t.Errorf("%+v", b.Stats())
	}
}

// A stream for a request whose association has ended is an error and nothing else.
func TestStream_AfterTheAssociationEnded(t *testing.T) {
	h := new(held)
	pair, b, p := serving(t, config(h))
	p.send(t, request("1", ping1))
	p.send(t, request("2", `{"jsonrpc":"2.0","id":2,"method":"m"}`))
	pair.Settle()
	r := h.requests[0]
	pair.Cut(nil)
	pair.Settle()
	if _, err := r.Stream(carriage.StreamOptions{Resumable: true}); err == nil {
		t.Error("a stream of a request that is over")
	}
	topic := carriage.NewTopic(carriage.TopicOptions{})
	if _, err := topic.Subscribe(h.requests[1], carriage.SubscribeOptions{Resumable: true}); err == nil || topic.Subscribers() != 0 {
		t.Errorf("%v, %d subscribers", err, topic.Subscribers())
	}
	if n, _ := b.Retained(); n != 0 {
		t.Errorf("%d streams held", n)
	}
}

// begun is a stream of 20 events of which two batches have left: what its peer has got of
// them.
func begun(t *testing.T, b *carriage.Bridge, h *streamed) (d *direct, got []bridge.Message) {
	t.Helper()
	p := new(peer)
	d = newDirect(t, p, b, func(o *assoc.Options) { o.Conn.HighWater = 1000 })
	p.send(t, request("1", ping1))
	d.step()
	for i := range 20 {
		must(t, h.one().TrySend(fmt.Append(text(200), i)))
	}
	for range 2 { // sealed at once, and by the queue
		d.down = d.server.Turn(d.now, nil, d.down[:0])
		d.client.Turn(d.now, d.down, nil)
		n := len(got)
		if got = append(got, p.take(t)...); len(got) < n+2 || len(got) > n+8 {
			t.Fatalf("%d events after %d in a batch", len(got)-n, n)
		}
	}
	return d, got
}

// The producer knows what has left by the time that it does, though more of what its
// stream has in hand waits.
func TestOutlet_SentIsToldWithTheBatch(t *testing.T) {
	told := 0
	h := &streamed{t: t, o: carriage.StreamOptions{Sent: func(n int) { told += n }}}
	_, got := begun(t, carriage.New(config(h)), h)
	octets := 0
	for _, m := range got {
		octets += len(m.Foreign)
	}
	left := 20 - len(got)
	if told != octets || h.one().Buffered() < left*264 || h.one().Buffered() > left*266 {
		t.Errorf("%d octets told, %d arrived; %d wait in %d events", told, octets, h.one().Buffered(), left)
	}
}

// Nor does a consumer that resumes at once name an event that the producer's side does
// not know to have left (CC-STREAM 6.3).
func TestOutlet_ResumeBehindTheLastOfABatch(t *testing.T) {
	h := &streamed{t: t, o: resumable}
	b := carriage.New(config(h))
	_, got := begun(t, b, h)
	p := new(peer)
	d := newDirect(t, p, b)
	p.send(t, resume("1", carriage.EventID(len(got)), ""))
	d.step()
	ms := p.take(t)
	if len(ms) != 20-len(got) {
		t.Fatalf("%d events of %d", len(ms), 20-len(got))
	}
	for i, m := range ms {
		n := len(got) + i
		event(t, m, bridge.KindData, carriage.EventID(n+1), string(fmt.Append(text(200), n)))
	}
}

// A stream that goes on elsewhere sends nothing more where it was, whatever it has in
// hand there.
func TestOutlet_ResumedElsewhereSendsNoMore(t *testing.T) {
	h := &streamed{t: t, o: resumable}
	b := carriage.New(config(h))
	old, _ := begun(t, b, h)
	d := newDirect(t, new(peer), b)
	q := d.client.ChannelConn(wire.ChannelBridge).(*peer)
	q.send(t, resume("1", 1, ""))
	d.step()
	if n := len(q.take(t)); n != 19 {
		t.Errorf("%d events", n)
	}
	p := old.client.ChannelConn(wire.ChannelBridge).(*peer)
	old.step()
	transport(t, p.one(t), "1", bridge.CodeNotDelivered)
}
