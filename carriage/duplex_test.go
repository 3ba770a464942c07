package carriage_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// talker answers with a stream and reads the one that came with the request.
type talker struct {
	t    *testing.T
	o    carriage.StreamOptions
	deaf bool // it reads nothing
	out  *carriage.Producer
	in   *carriage.Stream
	r    *carriage.Request
}

func (h *talker) ServeNotify(*carriage.Notify) {}
func (h *talker) ServeRequest(r *carriage.Request) {
	var err error
	if !h.deaf {
		if h.in, err = r.Upstream(background); err != nil {
			h.t.Error(err)
		}
		if _, err := r.Upstream(background); err != carriage.ErrAnswered {
			h.t.Errorf("a second time: %v", err)
		}
	}
	r.RetainEnvelope()
	h.r = r
	if h.out, err = r.Stream(h.o); err != nil {
		h.t.Error(err)
	}
}

func duplexConfig(h carriage.Handler) carriage.Config {
	cfg := config(h)
	cfg.Protocols[0].Duplex = func(method []byte) bool { return string(method) == "m" }
	return cfg
}

// duplex is a full-duplex exchange between two Bridges.
type duplex struct {
	*nptest.Pair
	t              *testing.T
	client, server *carriage.Bridge
	h              *talker
	s              *carriage.Stream
	up             *carriage.Producer
}

func talking(t *testing.T, up carriage.StreamOptions, down carriage.StreamOptions, edit func(*nptest.Options)) *duplex {
	t.Helper()
	d := &duplex{t: t, h: &talker{t: t, o: down}}
	d.client, d.server = carriage.New(duplexConfig(nil)), carriage.New(duplexConfig(d.h))
	o := nptest.Options{Client: options(d.client), Server: options(d.server)}
	if edit != nil {
		edit(&o)
	}
	d.Pair = nptest.NewPair(t, o)
	d.Run(20 * time.Millisecond)
	q := call(ping1)
	q.Protocol = mcp
	var err error
	d.s, err = d.client.Stream(background, d.Client.Association, &q, &carriage.StreamCall{Up: &up})
	must(t, err)
	d.up = d.s.Up()
	d.Run(20 * time.Millisecond)
	return d
}

func wantEvent(t *testing.T, s *carriage.Stream, id carriage.EventID, foreign string) {
	t.Helper()
	e, err := s.Next()
	if err != nil || e.ID != id || string(e.Foreign) != foreign {
		t.Fatalf("event %d %q, %v; want %d %q", e.ID, e.Foreign, err, id, foreign)
	}
}

func wantEnd(t *testing.T, s *carriage.Stream, want error) {
	t.Helper()
	if _, err := s.Next(); !errors.Is(err, want) {
		t.Fatalf("ended with %v, want %v", err, want)
	}
}

// idle says that neither side has anything open.
func (d *duplex) idle() {
	d.t.Helper()
	for _, e := range []*nptest.End{d.Client, d.Server} {
		if n := e.ChannelConn(0x0D).Busy(); n != 0 {
			d.t.Errorf("%d exchanges open", n)
		}
	}
}

// CC-STREAM 8: events go both ways at a time, each way with ids of its own from 1, and
// the exchange is over when both halves are.
func TestCCSTREAM8_FullDuplex(t *testing.T) {
	d := talking(t, carriage.StreamOptions{}, carriage.StreamOptions{}, func(o *nptest.Options) { o.Latency, o.Chunk = 3*time.Millisecond, 41 })
	for i := range 5 {
		must(t, d.up.TrySend(fmt.Append(nil, "up", i)))
		if i < 3 {
			must(t, d.h.out.TrySend(fmt.Append(nil, "down", i)))
		}
	}
	d.Run(second)
	for i := range 3 {
		wantEvent(t, d.s, carriage.EventID(i+1), fmt.Sprint("down", i))
	}
	for i := range 5 {
		wantEvent(t, d.h.in, carriage.EventID(i+1), fmt.Sprint("up", i))
	}
	must(t, d.up.End([]byte("last")))
	d.Run(second)
	wantEvent(t, d.h.in, 6, "last")
	wantEnd(t, d.h.in, io.EOF)
	must(t, d.h.out.TrySend([]byte("goes on")))
	must(t, d.h.out.EndEmpty())
	d.Run(second)
	wantEvent(t, d.s, 4, "goes on")
	wantEnd(t, d.s, io.EOF)
	d.idle()
}

// The other half may outlast the answer, and the correlation id with it.
func TestCCSTREAM8_HalvesEndByThemselves(t *testing.T) {
	d := talking(t, carriage.StreamOptions{}, carriage.StreamOptions{}, nil)
	must(t, d.h.out.End([]byte("answered")))
	d.Settle()
	wantEvent(t, d.s, 1, "answered")
	wantEnd(t, d.s, io.EOF)
	if n := d.Client.ChannelConn(0x0D).Busy(); n != 1 {
		t.Errorf("%d exchanges open on the requester's side", n)
	}
	must(t, d.up.TrySend([]byte("more")))
	must(t, d.up.EndEmpty())
	d.Settle()
	wantEvent(t, d.h.in, 1, "more")
	wantEnd(t, d.h.in, io.EOF)
	d.idle()
	if s := d.server.Stats(); s.RepliesUnknown != 0 || s.RequestsDuplicate != 0 {
		t.Errorf("%+v", s)
	}
}

// CC-STREAM 8: the halves share one correlation id, which is unlike any of the peer's.
// The frames, octet by octet as far as they are known.
func TestCCSTREAM8_FramesOfTheRequester(t *testing.T) {
	p, b, s := asking(t, duplexConfig(nil))
	q := call(ping1)
	q.Protocol = mcp
	got := new(taken)
	x, err := b.StartStream(p.Client.Association, &q, &carriage.StreamCall{Up: &carriage.StreamOptions{}}, got)
	must(t, err)
	must(t, x.Up().TrySend([]byte("early"))) // waits for the request
	p.Settle()
	must(t, x.Up().End([]byte("end")))
	p.Settle()
	ms := s.take(t)
	if len(ms) != 3 || ms[0].Kind != bridge.KindRequest || len(ms[0].Corr) != len("1")+9 || ms[0].Corr[0] != '1' || ms[0].Corr[1] != 0 {
		t.Fatalf("%+v", ms)
	}
	event(t, ms[1], bridge.KindData, 1, "early")
	event(t, ms[2], bridge.KindEnd, 2, "end")
	for _, m := range ms {
		if string(m.Corr) != string(ms[0].Corr) {
			t.Errorf("another correlation id: %q", m.Corr)
		}
	}
	down := data(1, "a")
	down.Corr = ms[0].Corr
	s.send(t, down)
	down = end(2, "b")
	down.Corr = ms[0].Corr
	s.send(t, down)
	p.Settle()
	got.want(t, 1, "a")
	got.ends(t, "b")
}

func TestCCSTREAM8_FramesOfTheResponder(t *testing.T) {
	h := &talker{t: t}
	p, b, c := serving(t, duplexConfig(h))
	c.send(t, request("1", ping1))
	c.send(t, data(1, "a"))
	p.Settle()
	wantEvent(t, h.in, 1, "a")
	must(t, h.out.TrySend([]byte("b")))
	p.Settle()
	event(t, c.one(t), bridge.KindData, 1, "b")
	c.send(t, end(2, ""))
	p.Settle()
	wantEnd(t, h.in, io.EOF)
	c.send(t, data(3, "behind the end"))
	p.Settle()
	must(t, h.out.EndEmpty())
	p.Settle()
	event(t, c.one(t), bridge.KindEnd, 2, "")
	if s := b.Stats(); s.RepliesUnknown != 1 {
		t.Errorf("%+v", s)
	}
}

// CC-STREAM 8: cancelling one direction does not cancel the other. The requester's
// side acknowledges as any producer does (7.2).
func TestCCSTREAM8_CancelIsPerDirection(t *testing.T) {
	t.Run("up", func(t *testing.T) {
		p, b, s := asking(t, duplexConfig(nil))
		q := call(ping1)
		q.Protocol = mcp
		got := new(taken)
		x, err := b.StartStream(p.Client.Association, &q, &carriage.StreamCall{Up: &carriage.StreamOptions{}}, got)
		must(t, err)
		must(t, x.Up().TrySend([]byte("a")))
		p.Settle()
		ms := s.take(t)
		on := func(m bridge.Message) bridge.Message { m.Corr = ms[0].Corr; return m }
		s.send(t, on(cancelFrame(1)))
		s.send(t, on(cancelFrame(1))) // moot
		s.send(t, on(data(1, "goes on")))
		p.Settle()
		ackFrame(t, s.one(t), 1)
		if err := x.Up().TrySend(nil); err != carriage.ErrCancelled {
			t.Errorf("%v", err)
		}
		got.want(t, 1, "goes on")
		got.pending(t)
		s.send(t, on(end(2, "end")))
		p.Settle()
		got.ends(t, "end")
		if n := p.Client.ChannelConn(0x0D).Busy(); n != 0 {
			t.Errorf("%d exchanges open", n)
		}
	})
	t.Run("down", func(t *testing.T) {
		d := talking(t, carriage.StreamOptions{}, carriage.StreamOptions{}, nil)
		d.s.Close()
		d.Settle()
		if err := d.h.out.Err(); err != carriage.ErrCancelled {
			t.Errorf("%v", err)
		}
		must(t, d.up.TrySend([]byte("goes on")))
		must(t, d.up.EndEmpty())
		d.Settle()
		wantEvent(t, d.h.in, 1, "goes on")
		wantEnd(t, d.h.in, io.EOF)
		d.idle()
	})
	t.Run("moot", func(t *testing.T) { // the answer's end crossed the cancel
		h := &talker{t: t}
		p, b, c := serving(t, duplexConfig(h))
		c.send(t, request("1", ping1))
		c.send(t, data(1, "a"))
		p.Settle()
		must(t, h.out.EndEmpty())
		p.Settle()
		c.take(t)
		c.send(t, cancelFrame(0))
		c.send(t, end(2, "b"))
		p.Settle()
		c.none(t)
		wantEvent(t, h.in, 1, "a")
		wantEvent(t, h.in, 2, "b")
		wantEnd(t, h.in, io.EOF)
		if s := b.Stats(); s.RepliesMalformed != 0 {
			t.Errorf("%+v", s)
		}
	})
	t.Run("both", func(t *testing.T) {
		d := talking(t, carriage.StreamOptions{}, carriage.StreamOptions{}, nil)
		must(t, d.up.TrySend([]byte("a")))
		d.Settle()
		d.h.in.Close()
		d.s.Close()
		d.Settle()
		if d.up.Err() != carriage.ErrCancelled || d.h.out.Err() != carriage.ErrCancelled {
			t.Errorf("%v, %v", d.up.Err(), d.h.out.Err())
		}
		d.idle()
	})
}

// CC-STREAM 8: each direction is resumed by who consumes it, under the one correlation
// id, and from its own cursor.
func TestCCSTREAM8_ResumeIsPerDirection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := talking(t, resumable, resumable, nil)
		defer d.client.ForgetRetained() // whose timers are the bubble's
		defer d.server.ForgetRetained()
		board := newSwitchboard()
		q := carriage.Call{Protocol: mcp, Foreign: []byte(`{"jsonrpc":"2.0","id":2,"method":"m"}`)}
		s, err := d.client.Stream(t.Context(), d.Client.Association, &q, &carriage.StreamCall{Up: &carriage.StreamOptions{Resumable: true}, Redial: &carriage.Redial{Dial: board.dial}})
		must(t, err)
		up := s.Up()
		d.Settle()
		for i := range 3 {
			must(t, up.TrySend(fmt.Append(nil, "up", i+1)))
		}
		must(t, d.h.out.TrySend([]byte("down1")))
		d.Settle()
		wantEvent(t, d.h.in, 1, "up1")
		wantEvent(t, s, 1, "down1")
		in := d.h.in
		d.Cut(errReset)
		d.Settle()
		must(t, up.TrySend([]byte("up4"))) // both go on without an association
		must(t, d.h.out.TrySend([]byte("down2")))
		for i := range 2 { // what had come
			wantEvent(t, in, carriage.EventID(i+2), fmt.Sprint("up", i+2))
		}
		wantEnd(t, in, assoc.ErrClosed)
		cursor, ok := in.Cursor()
		if cursor.ID != 3 || !ok {
			t.Errorf("cursor %d %v", cursor.ID, ok)
		}
		<-board.asked
		d.Pair = pair(t, options(d.client), options(d.server))
		board.answer <- d.Client.Association
		in, err = d.server.Stream(t.Context(), d.Server.Association, &carriage.Call{Protocol: mcp}, &carriage.StreamCall{Resume: &cursor})
		must(t, err)
		synctest.Wait()
		d.Settle()
		must(t, up.End([]byte("up5")))
		must(t, d.h.out.End([]byte("down3")))
		d.Settle()
		wantEvent(t, in, 4, "up4")
		wantEvent(t, in, 5, "up5")
		wantEnd(t, in, io.EOF)
		wantEvent(t, s, 2, "down2")
		wantEvent(t, s, 3, "down3")
		wantEnd(t, s, io.EOF)
		d.idle()
		if a, b := d.client.Stats(), d.server.Stats(); a.StreamsResumed != 1 || b.StreamsResumed != 1 {
			t.Errorf("%+v %+v", a, b)
		}
	})
}

// What was not lost is not resumed: there is one exchange under its correlation id.
func TestCCSTREAM8_NoResumeOfWhatWasNotLost(t *testing.T) {
	p, b, s := asking(t, duplexConfig(nil))
	q := call(ping1)
	q.Protocol = mcp
	x, err := b.StartStream(p.Client.Association, &q, &carriage.StreamCall{Up: &carriage.StreamOptions{Resumable: true}}, new(taken))
	must(t, err)
	must(t, x.Up().TrySend([]byte("a")))
	p.Settle()
	corr := string(s.take(t)[0].Corr)
	s.send(t, resume(corr, 0, ""))
	p.Settle()
	transport(t, s.one(t), corr, bridge.CodeNotResumable)
	must(t, x.Up().TrySend([]byte("b")))
	p.Settle()
	event(t, s.one(t), bridge.KindData, 2, "b")
}

// A reply that is no stream and an error end both halves.
func TestCCSTREAM8_RepliesEndBothHalves(t *testing.T) {
	failed := `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"x"}}`
	for name, answer := range map[string]func(d *duplex) error{
		"response":        func(d *duplex) error { return d.h.out.Respond([]byte(pong1)) },
		"foreign error":   func(d *duplex) error { return d.h.out.Fail([]byte(failed)) },
		"transport error": func(d *duplex) error { return d.h.out.Refuse(bridge.CodeNotDelivered, "no") },
	} {
		t.Run(name, func(t *testing.T) {
			d := talking(t, carriage.StreamOptions{}, carriage.StreamOptions{}, nil)
			must(t, d.up.TrySend([]byte("a")))
			d.Settle()
			must(t, answer(d))
			d.Settle()
			if err := d.up.Err(); err != carriage.ErrCancelled {
				t.Errorf("%v", err)
			}
			wantEvent(t, d.h.in, 1, "a")
			wantEnd(t, d.h.in, carriage.ErrAnswered)
			d.idle()
		})
	}
	t.Run("at once", func(t *testing.T) { // answered before the handler returns
		var in *carriage.Stream
		p, c, s := both(t, duplexConfig(nil), duplexConfig(carriage.HandlerFunc(func(r *carriage.Request) {
			in, _ = r.Upstream(background)
			must(t, r.Respond([]byte(pong1)))
			if _, err := r.Upstream(background); err != carriage.ErrAnswered {
				t.Errorf("after the answer: %v", err)
			}
		})))
		q := call(ping1)
		q.Protocol = mcp
		got := new(taken)
		x, err := c.StartStream(p.Client.Association, &q, &carriage.StreamCall{Up: &carriage.StreamOptions{}}, got)
		must(t, err)
		must(t, x.Up().TrySend([]byte("a")))
		p.Settle()
		got.got(t, bridge.KindResponse, pong1)
		wantEnd(t, in, carriage.ErrAnswered)
		if x.Up().Err() != carriage.ErrCancelled || s.Stats().RepliesUnknown != 1 {
			t.Errorf("%v, %+v", x.Up().Err(), s.Stats())
		}
	})
}

// Who produces what goes along with a request can break it off, which the answer
// outlives.
func TestCCSTREAM8_RequesterBreaksOff(t *testing.T) {
	for name, breakOff := range map[string]func(d *duplex){
		"refused":   func(d *duplex) { must(d.t, d.up.Refuse(bridge.CodeNotDelivered, "no more")) },
		"malformed": func(d *duplex) { must(d.t, d.up.Refuse(bridge.CodeEnvelopeMalformed, "no more")) },
	} {
		t.Run(name, func(t *testing.T) {
			d := talking(t, carriage.StreamOptions{}, carriage.StreamOptions{}, nil)
			must(t, d.up.TrySend([]byte("a")))
			breakOff(d)
			d.Settle()
			wantEvent(t, d.h.in, 1, "a")
			var told *bridge.Error
			if _, err := d.h.in.Next(); !errors.As(err, &told) || told.Code != bridge.CodeNotDelivered {
				t.Errorf("%v", err)
			}
			must(t, d.h.out.End([]byte("answered")))
			d.Settle()
			wantEvent(t, d.s, 1, "answered")
			d.idle()
		})
	}
	d := talking(t, carriage.StreamOptions{}, carriage.StreamOptions{}, nil)
	for _, err := range []error{d.up.Respond([]byte(pong1)), d.up.Fail([]byte(pong1))} {
		if err != carriage.ErrNotReply {
			t.Errorf("%v", err)
		}
	}
}

// A handler that reads nothing of it has it cancelled when it has answered; and before
// that the requester is bounded by credit.
func TestCCSTREAM8_NobodyReads(t *testing.T) {
	d := &duplex{t: t, h: &talker{t: t, deaf: true}}
	d.client, d.server = carriage.New(duplexConfig(nil)), carriage.New(duplexConfig(d.h))
	d.Pair = pair(t, options(d.client), options(d.server))
	q := call(ping1)
	q.Protocol = mcp
	var err error
	d.s, err = d.client.Stream(background, d.Client.Association, &q, &carriage.StreamCall{Up: &carriage.StreamOptions{}})
	must(t, err)
	d.up = d.s.Up()
	d.Settle()
	sent := 0
	for ; sent < 1000; sent++ {
		if d.up.TrySend(text(10_000)) != nil {
			break
		}
		d.Settle()
	}
	if sent < 100 || sent > 140 { // 1 MiB of credit and 256 KiB that wait
		t.Errorf("%d events of 10,000 octets for nobody", sent)
	}
	must(t, d.h.out.EndEmpty())
	d.Settle()
	if err := d.up.Err(); err != carriage.ErrCancelled {
		t.Errorf("%v", err)
	}
	wantEnd(t, d.s, io.EOF)
	d.idle()
	if _, err := d.h.r.Upstream(background); err != carriage.ErrAnswered {
		t.Errorf("after the answer: %v", err)
	}
}

// D6 in this direction: what is read gives credit back.
func TestCCSTREAM8_CreditOfTheOtherHalf(t *testing.T) {
	d := talking(t, carriage.StreamOptions{Buffer: 1 << 20}, carriage.StreamOptions{}, nil)
	const n = 500
	sent, read := 0, 0
	for read < n {
		for sent < n && d.up.TrySend(text(10_000)) == nil {
			sent++
		}
		d.Settle()
		for c, _ := d.h.in.Cursor(); read < n; read++ {
			if c.ID >= carriage.EventID(sent-d.up.Buffered()/10_064) {
				break
			}
			e, err := d.h.in.Next()
			must(t, err)
			c.ID = e.ID
			if len(e.Foreign) != 10_000 || e.ID != carriage.EventID(read+1) {
				t.Fatalf("event %d of %d octets", e.ID, len(e.Foreign))
			}
		}
		d.Settle()
	}
	if s := d.server.Stats(); s.StreamsOverrun != 0 || s.StreamsUnread != 0 {
		t.Errorf("%+v", s)
	}
}

// Faults in this direction are EnvelopeMalformed for its reader and a cancel for its
// producer, and leave the answer alone (CC-STREAM 9, D20).
func TestCCSTREAM8_FaultsOfTheOtherHalf(t *testing.T) {
	bad := payload(t, data(2, "x"))
	bad[len(bad)-12] = 9 // version of the StreamControl
	other := data(2, "x")
	other.Protocol, other.Content = raw, bridge.ContentCBOR
	plain := data(2, "x")
	plain.HasStream = false
	for name, send := range map[string]func(c *peer){
		"event id":         func(c *peer) { c.send(t, data(1, "x")) },
		"StreamControl":    func(c *peer) { c.sendRaw(t, bridge.TypeStreamData, bad) },
		"another protocol": func(c *peer) { c.send(t, other) },
		"no StreamControl": func(c *peer) { c.send(t, plain) },
		"a response":       func(c *peer) { c.send(t, response([]byte("1"), pong1)) },
		"end":              func(c *peer) { c.send(t, end(1, "x")) },
	} {
		t.Run(name, func(t *testing.T) {
			h := &talker{t: t}
			p, b, c := serving(t, duplexConfig(h))
			c.send(t, request("1", ping1))
			c.send(t, data(1, "a"))
			send(c)
			c.send(t, data(7, "late"))
			p.Settle()
			wantEvent(t, h.in, 1, "a")
			var told *bridge.Error
			if _, err := h.in.Next(); !errors.As(err, &told) || told.Code != bridge.CodeEnvelopeMalformed {
				t.Errorf("%v", err)
			}
			ms := c.take(t)
			if name != "a response" && name != "end" {
				if len(ms) != 1 || ms[0].Kind != bridge.KindEnd || ms[0].Stream.Control != bridge.ControlCancel || ms[0].Stream.EventID != 0 {
					t.Fatalf("%+v", ms)
				}
				if s := b.Stats(); s.RepliesLate != 1 {
					t.Errorf("%+v", s)
				}
			} else if len(ms) != 0 {
				t.Fatalf("%+v", ms)
			}
			must(t, h.out.End([]byte("answered")))
			p.Settle()
			event(t, c.one(t), bridge.KindEnd, 1, "answered")
			a := end(7, "")
			a.Stream.Flags = bridge.StreamCancelAck
			c.send(t, a)
			p.Settle()
			c.send(t, request("1", ping1)) // the correlation id is free again
			p.Settle()
			if s := b.Stats(); s.RequestsDuplicate != 0 || s.RepliesMalformed != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A correlation id is in use as long as either half goes on (BRIDGE 5).
func TestCCSTREAM8_CorrelationIdStaysInUse(t *testing.T) {
	h := &talker{t: t}
	p, b, c := serving(t, duplexConfig(h))
	c.send(t, request("1", ping1))
	p.Settle()
	must(t, h.out.EndEmpty())
	p.Settle()
	c.take(t)
	c.send(t, request("1", ping1))
	p.Settle()
	c.none(t)
	if s := b.Stats(); s.RequestsDuplicate != 1 {
		t.Errorf("%+v", s)
	}
}

// Methods that bring no stream are told from those that do on both sides.
func TestCCSTREAM8_OnlyWhereTheMappingSaysSo(t *testing.T) {
	p, b, s := asking(t, duplexConfig(nil))
	q := carriage.Call{Protocol: mcp, Foreign: []byte(`{"jsonrpc":"2.0","id":1,"method":"other"}`)}
	if _, err := b.StartStream(p.Client.Association, &q, &carriage.StreamCall{Up: &carriage.StreamOptions{}}, new(taken)); err != carriage.ErrNotStream {
		t.Errorf("%v", err)
	}
	p.Settle()
	s.none(t)
	x, err := b.StartStream(p.Client.Association, &q, nil, new(taken))
	must(t, err)
	if x.Up() != nil {
		t.Error("a producer of nothing")
	}

	var told error
	r, sb, c := serving(t, duplexConfig(carriage.HandlerFunc(func(r *carriage.Request) {
		_, told = r.Upstream(background)
		r.Retain()
	})))
	m := request("1", `{"jsonrpc":"2.0","id":1,"method":"other"}`)
	m.Method = []byte("other")
	c.send(t, m)
	c.send(t, data(1, "a"))
	r.Settle()
	if told != carriage.ErrNotStream || sb.Stats().RepliesUnknown != 1 {
		t.Errorf("%v, %+v", told, sb.Stats())
	}
	c.none(t)
}

// Both halves end with their association, and with a drain.
func TestCCSTREAM8_EndsWithTheAssociation(t *testing.T) {
	d := talking(t, carriage.StreamOptions{}, carriage.StreamOptions{}, nil)
	d.Cut(errReset)
	d.Settle()
	wantEnd(t, d.s, assoc.ErrClosed)
	wantEnd(t, d.h.in, assoc.ErrClosed)
	if !errors.Is(d.up.Err(), assoc.ErrClosed) || !errors.Is(d.h.out.Err(), assoc.ErrClosed) {
		t.Errorf("%v, %v", d.up.Err(), d.h.out.Err())
	}
	if err := d.up.TrySend(nil); !errors.Is(err, assoc.ErrClosed) {
		t.Errorf("%v", err)
	}
	for _, server := range []bool{true, false} {
		d = talking(t, carriage.StreamOptions{}, carriage.StreamOptions{}, nil)
		must(t, d.h.out.EndEmpty()) // the other half alone
		d.Settle()
		wantEnd(t, d.s, io.EOF)
		draining := d.Client
		if server {
			draining = d.Server
		}
		draining.Drain(6, "shutting down")
		d.Run(carriage.DefaultStreamDrain - time.Millisecond)
		if d.up.Err() != nil {
			t.Fatalf("cut at once: %v", d.up.Err())
		}
		d.Run(second)
		if _, err := d.h.in.Next(); err == nil || d.up.Err() == nil {
			t.Errorf("%v, %v", err, d.up.Err())
		}
		d.Run(second)
		if d.Client.Err() == nil || d.Server.Err() == nil {
			t.Error("the drain does not end")
		}
	}
}

// A request that never left takes what goes along with it away.
func TestCCSTREAM8_RequestIsNotSent(t *testing.T) {
	b, p := carriage.New(duplexConfig(nil)), new(peer)
	pair := nptest.NewPair(t, nptest.Options{Client: options(b), Server: options(p)})
	q := call(ping1)
	q.Protocol = mcp
	got := new(taken)
	var over []error
	x, err := b.StartStream(pair.Client.Association, &q, &carriage.StreamCall{Up: &carriage.StreamOptions{Over: func(err error) { over = append(over, err) }}}, got)
	must(t, err)
	must(t, x.Up().TrySend([]byte("a")))
	pair.Cut(errReset)
	pair.Settle()
	if got.n != 1 || !errors.Is(x.Up().Err(), assoc.ErrClosed) || len(over) != 1 {
		t.Errorf("ended %d times, %v, over %v", got.n, x.Up().Err(), over)
	}
}

// The context of whoever reads ends that half.
func TestCCSTREAM8_ReaderGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(background)
		var in *carriage.Stream
		p, c, _ := both(t, duplexConfig(nil), duplexConfig(carriage.HandlerFunc(func(r *carriage.Request) {
			in, _ = r.Upstream(ctx)
			r.Retain()
		})))
		q := call(ping1)
		q.Protocol = mcp
		x, err := c.StartStream(p.Client.Association, &q, &carriage.StreamCall{Up: &carriage.StreamOptions{}}, new(taken))
		must(t, err)
		p.Settle()
		cancel()
		synctest.Wait()
		p.Settle()
		wantEnd(t, in, context.Canceled)
		if x.Up().Err() != carriage.ErrCancelled {
			t.Errorf("%v", x.Up().Err())
		}
	})
}

// CC-STREAM 8, seeded: whatever both sides do at the same time, each reader sees its
// half in order and each event once, each half has one end, and nothing stays open.
func TestCCSTREAM8_Races(t *testing.T) {
	rounds := 1000
	if slowBuild {
		rounds = 150
	}
	ends := make(map[string]int)
	for round := range rounds {
		r := rand.New(rand.NewPCG(8, uint64(round)))
		synctest.Test(t, func(t *testing.T) {
			d := talking(t, carriage.StreamOptions{}, carriage.StreamOptions{}, func(o *nptest.Options) {
				o.Latency, o.Chunk = time.Duration(r.IntN(3))*time.Millisecond, 1+r.IntN(200)
			})
			up := &half{t: t, name: "up", p: d.up, s: d.h.in}
			down := &half{t: t, name: "down", p: d.h.out, s: d.s}
			go up.read()
			go down.read()
			for range 40 {
				h := up
				if r.IntN(2) == 0 {
					h = down
				}
				switch k := r.IntN(20); {
				case k < 9:
					h.send()
				case k == 9:
					if h.p.End([]byte("end")) == nil {
						h.whole = true
					}
				case k == 10 && r.IntN(3) == 0:
					h.s.Close()
				case k == 11 && r.IntN(6) == 0:
					d.Cut(errReset)
				case k == 12 && r.IntN(4) == 0:
					_ = down.p.Refuse(bridge.CodeNotDelivered, "no")
				case k == 13 && r.IntN(4) == 0:
					_ = up.p.Refuse(bridge.CodeNotDelivered, "no")
				default:
					d.Run(time.Duration(r.IntN(3)) * time.Millisecond)
				}
				synctest.Wait()
			}
			_, _ = up.p.End(nil), down.p.End(nil)
			d.Run(50 * time.Millisecond)
			synctest.Wait()
			for _, h := range []*half{up, down} {
				if h.err == nil || h.p.Err() == nil {
					t.Errorf("round %d: %s does not end: %v, %v", round, h.name, h.err, h.p.Err())
					h.s.Close()
				}
				kind := "cut"
				if h.err == io.EOF {
					kind = "whole"
					if h.whole && h.got != h.sent+1 {
						t.Errorf("round %d: %s ended after %d of %d", round, h.name, h.got, h.sent+1)
					}
				}
				ends[h.name+" "+kind]++
			}
			d.idle()
			if s := d.server.Stats(); s.RepliesMalformed != 0 || s.CompletionPanics+s.HandlerPanics != 0 {
				t.Errorf("round %d: %+v", round, s)
			}
			if s := d.client.Stats(); s.RepliesMalformed != 0 || s.CompletionPanics+s.HandlerPanics != 0 {
				t.Errorf("round %d: %+v", round, s)
			}
			d.Cut(nil)
			d.Settle()
		})
		if t.Failed() {
			t.FailNow()
		}
	}
	t.Logf("%v", ends)
	if len(ends) != 4 {
		t.Error("the rounds did not meet every case")
	}
}

// half is one direction.
type half struct {
	t         *testing.T
	name      string
	p         *carriage.Producer
	s         *carriage.Stream
	sent, got int
	whole     bool
	err       error
}

func (h *half) send() {
	if h.p.TrySend(fmt.Append(nil, h.name, h.sent+1)) == nil {
		h.sent++
	}
}

func (h *half) read() {
	for {
		e, err := h.s.Next()
		if err != nil {
			h.err = err
			return
		}
		h.got++
		if e.ID != carriage.EventID(h.got) || string(e.Foreign) != fmt.Sprint(h.name, h.got) && e.Kind != bridge.KindEnd {
			h.t.Errorf("%s: event %d is %d %q", h.name, h.got, e.ID, e.Foreign)
		}
	}
}
