package carriage_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

func TestStream_EndToEnd(t *testing.T) {
	p, c, h, _ := streaming(t, carriage.StreamOptions{}, func(o *nptest.Options) {
		o.Latency, o.Chunk = 5*time.Millisecond, 33
	})
	s, x := consume(t, c, p.Client.Association, call(ping1), nil)
	p.Run(second)
	for _, e := range []string{"a", "b", "c"} {
		must(t, h.one().TrySend([]byte(e)))
		p.Run(20 * time.Millisecond)
	}
	s.want(t, 1, "a", "b", "c")
	s.pending(t)
	if cur, resumable := x.Cursor(); string(cur.Corr) != "1" || cur.ID != 3 || resumable {
		t.Errorf("cursor %q %d %v", cur.Corr, cur.ID, resumable)
	}
	must(t, h.one().End([]byte("end")))
	p.Run(second)
	s.want(t, 1, "a", "b", "c")
	s.ends(t, "end")
	x.Cancel(nil) // moot
	p.Run(second)
	s.ends(t, "end")
	for _, e := range []*nptest.End{p.Client, p.Server} {
		if n := e.ChannelConn(0x0D).Busy(); n != 0 {
			t.Errorf("%d exchanges open", n)
		}
	}
}

// Unary replies and errors end a streaming request definitely (L16).
func TestStream_UnaryRepliesEndIt(t *testing.T) {
	failed := `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"bad part","data":{"i":0}}}`
	for name, tc := range map[string]struct {
		m    bridge.Message
		want func(t *testing.T, s *taken)
	}{
		"response":        {response([]byte("1"), pong1), func(t *testing.T, s *taken) { s.got(t, bridge.KindResponse, pong1) }},
		"error":           {bridge.Message{Kind: bridge.KindError, Corr: []byte("1"), Foreign: []byte(failed)}, func(t *testing.T, s *taken) { s.got(t, bridge.KindError, failed) }},
		"transport error": {bridge.Message{Kind: bridge.KindError, Corr: []byte("1"), Foreign: []byte("\x04\x02no"), Transport: true}, func(t *testing.T, s *taken) { s.outcome.ended(t, bridge.CodeNotDelivered, true) }},
		"empty stream":    {end(1, ""), func(t *testing.T, s *taken) { s.ends(t, "") }},
		"wrong id":        {response([]byte("1"), `{"jsonrpc":"2.0","id":2,"result":{}}`), func(t *testing.T, s *taken) { s.outcome.ended(t, bridge.CodeEnvelopeMalformed, false) }},
	} {
		t.Run(name, func(t *testing.T) {
			pair, _, p, s, _ := consuming(t)
			p.send(t, tc.m)
			pair.Settle()
			s.want(t, 1)
			tc.want(t, s)
			if n := pair.Client.ChannelConn(0x0D).Busy(); n != 0 {
				t.Errorf("%d exchanges open", n)
			}
		})
	}
}

// An error ends a stream after its events, but a response doesn't fit there.
func TestStream_ErrorsAfterEvents(t *testing.T) {
	pair, _, p, s, _ := consuming(t)
	p.send(t, data(1, "a"))
	p.send(t, bridge.Message{Kind: bridge.KindError, Corr: []byte("1"), Foreign: []byte("\x04\x02no"), Transport: true})
	pair.Settle()
	s.want(t, 1, "a")
	s.outcome.ended(t, bridge.CodeNotDelivered, true)

	pair, _, p, s, _ = consuming(t)
	p.send(t, data(1, "a"))
	p.send(t, response([]byte("1"), pong1))
	pair.Settle()
	s.outcome.ended(t, bridge.CodeEnvelopeMalformed, false)
}

// CC-STREAM 5.1, 9, D20: a frame that breaks a rule of its stream is
// EnvelopeMalformed for the consumer, and the producer is told to stop.
func TestStream5_FaultsCancel(t *testing.T) {
	ctl := func(m bridge.Message, edit func(*bridge.StreamControl)) bridge.Message {
		edit(&m.Stream)
		return m
	}
	plain := data(2, "x")
	plain.HasStream = false
	other := data(2, "x")
	other.Protocol = raw
	other.Content = bridge.ContentCBOR
	for name, m := range map[string]bridge.Message{
		"repeated id":          data(1, "x"),
		"id zero":              data(0, "x"),
		"without control":      plain,
		"resume on data":       ctl(data(2, "x"), func(s *bridge.StreamControl) { s.Control = bridge.ControlResume }),
		"cancel on data":       ctl(data(2, "x"), func(s *bridge.StreamControl) { s.Control = bridge.ControlCancel }),
		"ack of no cancel":     ctl(data(2, "x"), func(s *bridge.StreamControl) { s.Flags = bridge.StreamCancelAck }),
		"another protocol":     other,
		"end with an old id":   end(1, "x"),
		"end acks no cancel":   ctl(end(2, "x"), func(s *bridge.StreamControl) { s.Flags = bridge.StreamCancelAck }),
		"end asks for resume":  ctl(end(2, "x"), func(s *bridge.StreamControl) { s.Control = bridge.ControlResume }),
		"end sends the cancel": ctl(end(2, "x"), func(s *bridge.StreamControl) { s.Control = bridge.ControlCancel }),
	} {
		t.Run(name, func(t *testing.T) {
			pair, b, p, s, _ := consuming(t)
			p.send(t, data(1, "a"))
			p.send(t, m)
			p.send(t, data(7, "late"))
			pair.Settle()
			s.want(t, 1, "a")
			s.outcome.ended(t, bridge.CodeEnvelopeMalformed, false)
			frames := p.take(t)
			if m.Kind == bridge.KindEnd {
				for _, f := range frames {
					if f.Kind == bridge.KindEnd {
						t.Errorf("a cancel of what has ended")
					}
				}
				return
			}
			last := frames[len(frames)-1]
			if last.Kind != bridge.KindEnd || last.Stream.Control != bridge.ControlCancel || last.Stream.EventID != 1 || string(last.Corr) != "1" || !last.Final() {
				t.Errorf("sent %+v, want a cancel", last)
			}
			if st := b.Stats(); st.RepliesMalformed != 1 || st.RepliesLate != 1 {
				t.Errorf("%+v", st)
			}
			// The correlation id is free after the producer's end.
			p.send(t, ctl(end(1, ""), func(s *bridge.StreamControl) { s.Flags = bridge.StreamCancelAck }))
			pair.Settle()
			consume(t, b, pair.Client.Association, call(ping1), nil)
			pair.Settle()
			if m := p.one(t); string(m.Corr) != "1" {
				t.Errorf("the correlation id was not freed: %q", m.Corr)
			}
		})
	}
}

// CC-STREAM 9: a malformed StreamControl is answered with EnvelopeMalformed.
func TestStream9_MalformedStreamControl(t *testing.T) {
	good := payload(t, data(2, "x"))
	at := len(good) - 1 - 11
	for name, edit := range map[string]func([]byte) []byte{
		"version": func(b []byte) []byte { b[at] = 2; return b },
		"control": func(b []byte) []byte { b[at+1] = 3; return b },
		"length":  func(b []byte) []byte { b[at-1] = 10; return b },
	} {
		t.Run(name, func(t *testing.T) {
			pair, _, p, s, _ := consuming(t)
			p.send(t, data(1, "a"))
			p.sendRaw(t, bridge.TypeStreamData, edit(append([]byte(nil), good...)))
			pair.Settle()
			s.outcome.ended(t, bridge.CodeEnvelopeMalformed, false)
			frames := p.take(t)
			if len(frames) != 2 || frames[1].Stream.Control != bridge.ControlCancel {
				t.Fatalf("sent %+v", frames)
			}
			transport(t, frames[0], "1", bridge.CodeEnvelopeMalformed)
		})
	}
}

// Streams without StreamControl are taken, in order, but not cancelled.
func TestStream_WithoutStreamControl(t *testing.T) {
	plain := func(m bridge.Message) bridge.Message { m.HasStream = false; return m }
	pair, _, p, s, x := consuming(t)
	p.send(t, plain(data(0, "a")))
	p.send(t, plain(data(0, "b")))
	p.send(t, plain(end(0, "c")))
	pair.Settle()
	if fmt.Sprint(s.events) != "[a b]" || s.ids[1] != 0 {
		t.Errorf("%q %v", s.events, s.ids)
	}
	s.ends(t, "c")
	if _, resumable := x.Cursor(); resumable {
		t.Error("resumable")
	}

	pair, b, p, s, x := consuming(t)
	p.send(t, plain(data(0, "a")))
	pair.Settle()
	x.Cancel(nil)
	pair.Settle()
	p.none(t)
	if !errors.Is(s.Err, context.Canceled) {
		t.Errorf("%v", s.Err)
	}
	p.send(t, plain(data(0, "late")))
	p.send(t, plain(end(0, "late")))
	pair.Settle()
	if st := b.Stats(); st.RepliesLate != 2 {
		t.Errorf("%+v", st)
	}
}

// CC-STREAM 7.1: the cancel bears the highest event consumed; what comes after it is
// dropped and counted until the acknowledgement.
func TestStream7_Cancel(t *testing.T) {
	pair, b, p, s, x := consuming(t)
	p.send(t, data(1, "a"))
	p.send(t, data(2, "b"))
	pair.Settle()
	x.Cancel(nil)
	x.Cancel(errors.New("again"))
	pair.Settle()
	m := p.one(t)
	if m.Kind != bridge.KindEnd || m.Stream.Control != bridge.ControlCancel || m.Stream.EventID != 2 || !m.Final() || string(m.Corr) != "1" {
		t.Fatalf("%+v", m)
	}
	if s.n != 1 || !errors.Is(s.Err, context.Canceled) || !s.Sent {
		t.Errorf("ended %d times: %v", s.n, s.Err)
	}
	p.send(t, data(3, "late"))
	pair.Settle()
	// The correlation id is in use until then (D10).
	_, other := consume(t, b, pair.Client.Association, call(ping1), nil)
	pair.Settle()
	if m := p.one(t); string(m.Corr) == "1" {
		t.Error("the correlation id was used again before the stream's end")
	}
	other.Cancel(nil)
	pair.Settle()
	p.take(t)
	a := end(3, "")
	a.Stream.Flags = bridge.StreamCancelAck
	p.send(t, a)
	pair.Settle()
	s.want(t, 1, "a", "b")
	if st := b.Stats(); st.RepliesLate != 2 || s.n != 1 {
		t.Errorf("%+v", st)
	}
	consume(t, b, pair.Client.Association, call(ping1), nil)
	pair.Settle()
	if m := p.one(t); string(m.Corr) != "1" {
		t.Error("the correlation id is still in use")
	}
}

func TestStream7_CancelBeforeAnyFrame(t *testing.T) {
	pair, _, p, s, x := consuming(t)
	x.Cancel(context.DeadlineExceeded)
	pair.Settle()
	if m := p.one(t); m.Kind != bridge.KindEnd || m.Stream.Control != bridge.ControlCancel || m.Stream.EventID != 0 {
		t.Fatalf("%+v", m)
	}
	if s.n != 1 || !errors.Is(s.Err, context.DeadlineExceeded) {
		t.Errorf("%v", s.Err)
	}
}

// A request that never left is not cancelled on the wire.
func TestStream7_CancelBeforeTheRequest(t *testing.T) {
	b, p := carriage.New(config(nil)), new(peer)
	pair := nptest.NewPair(t, nptest.Options{Client: options(b), Server: options(p)})
	s, x := consume(t, b, pair.Client.Association, call(ping1), nil)
	x.Cancel(nil)
	pair.Settle()
	frames := p.take(t)
	if s.n != 1 || len(frames) != 2 && len(frames) != 0 {
		t.Errorf("ended %d times, %d frames", s.n, len(frames))
	}
}

// The Call's Timeout bounds the wait for the first frame; a stream has no other.
func TestStream_TimeoutIsForTheFirstFrame(t *testing.T) {
	pair, b, p := asking(t, config(nil))
	c := call(ping1)
	c.Timeout = second
	s, _ := consume(t, b, pair.Client.Association, c, nil)
	pair.Settle()
	p.take(t)
	pair.Run(2 * second)
	if !errors.Is(s.Err, context.DeadlineExceeded) {
		t.Fatalf("%v", s.Err)
	}
	if m := p.one(t); m.Stream.Control != bridge.ControlCancel {
		t.Errorf("%+v", m)
	}

	c.Foreign = []byte(`{"jsonrpc":"2.0","id":2,"method":"m"}`)
	s, _ = consume(t, b, pair.Client.Association, c, nil)
	pair.Settle()
	p.take(t)
	m := data(1, "a")
	m.Corr = []byte("2")
	p.send(t, m)
	pair.Run(time.Hour)
	s.pending(t)
	s.want(t, 1, "a")
}

// A handler that panics ends its own stream alone.
func TestStream_HandlerPanics(t *testing.T) {
	pair, b, p, s, _ := consuming(t)
	s.onEvent = func(*carriage.Event) { panic("x") }
	p.send(t, data(1, "a"))
	pair.Settle()
	if s.n != 1 || s.Err == nil || b.Stats().CompletionPanics != 1 {
		t.Errorf("%v %+v", s.Err, b.Stats())
	}
	if m := p.one(t); m.Stream.Control != bridge.ControlCancel {
		t.Errorf("%+v", m)
	}
}

func TestStream_ConsumerLosesItsAssociation(t *testing.T) {
	pair, _, p, s, x := consuming(t)
	p.send(t, data(1, "a"))
	pair.Settle()
	pair.Cut(errors.New("reset"))
	pair.Settle()
	if s.n != 1 || !errors.Is(s.Err, assoc.ErrClosed) || !s.Sent {
		t.Errorf("%v", s.Err)
	}
	x.Cancel(nil)
	x.Consumed(1)
	pair.Settle()
	if s.n != 1 {
		t.Error("told twice")
	}
}

// A drain on the consumer's side gives its streams the same while.
func TestStream_ConsumerDrains(t *testing.T) {
	pair, _, p, s, _ := consuming(t)
	pair.Client.Drain(6, "shutting down")
	pair.Run(carriage.DefaultStreamDrain - time.Millisecond)
	s.pending(t)
	pair.Run(2 * time.Millisecond)
	if !errors.Is(s.Err, carriage.ErrDraining) {
		t.Fatalf("%v", s.Err)
	}
	if m := p.one(t); m.Stream.Control != bridge.ControlCancel {
		t.Errorf("%+v", m)
	}
}

// The iterator: every event once and in order, the terminal one too, then io.EOF.
func TestIterator(t *testing.T) {
	p, c, h, _ := streaming(t, carriage.StreamOptions{Buffer: 10 << 10}, nil)
	q := call(ping1)
	q.Protocol = mcp
	s, err := c.Stream(background, p.Client.Association, &q, nil)
	must(t, err)
	p.Settle()
	producer := h.one()
	const n = 2000
	go func() {
		for i := range n {
			if err := producer.Send(background, fmt.Append(nil, "event ", i)); err != nil {
				t.Error(err)
			}
		}
		if err := producer.End([]byte("end")); err != nil {
			t.Error(err)
		}
	}()
	got := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e, err := range s.Events() {
			if err != nil {
				t.Error(err)
				return
			}
			want := fmt.Sprint("event ", got)
			kind := bridge.KindData
			if got == n {
				want, kind = "end", bridge.KindEnd
			}
			if string(e.Foreign) != want || e.ID != carriage.EventID(got+1) || e.Kind != kind {
				t.Errorf("event %v %d %q, want %q", e.Kind, e.ID, e.Foreign, want)
			}
			got++
		}
	}()
	p.RunUntil(func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
	if got != n+1 {
		t.Errorf("%d events", got)
	}
	if cur, _ := s.Cursor(); cur.ID != n+1 {
		t.Errorf("cursor %d", cur.ID)
	}
	if _, err := s.Next(); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}
}

// What else ends a stream is an error of the iterator.
func TestIterator_Ends(t *testing.T) {
	failed := `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"x"}}`
	for name, tc := range map[string]struct {
		answer func(p *peer)
		events int
		ends   func(err error) bool
	}{
		"empty end": {func(p *peer) { p.send(t, end(1, "")) }, 0, func(err error) bool { return err == nil }},
		"response":  {func(p *peer) { p.send(t, response([]byte("1"), pong1)) }, 1, func(err error) bool { return err == nil }},
		"foreign error": {func(p *peer) {
			p.send(t, data(1, "a"))
			p.send(t, bridge.Message{Kind: bridge.KindError, Corr: []byte("1"), Foreign: []byte(failed)})
		}, 1, func(err error) bool {
			var f *carriage.ForeignError
			return errors.As(err, &f) && string(f.Foreign) == failed && f.Error() != ""
		}},
		"transport error": {func(p *peer) {
			p.send(t, bridge.Message{Kind: bridge.KindError, Corr: []byte("1"), Foreign: []byte("\x04\x02no"), Transport: true})
		}, 0, func(err error) bool {
			var f *bridge.Error
			return errors.As(err, &f) && f.Code == bridge.CodeNotDelivered
		}},
	} {
		t.Run(name, func(t *testing.T) {
			pair, b, p := asking(t, config(nil))
			q := call(ping1)
			q.Protocol = mcp
			s, err := b.Stream(background, pair.Client.Association, &q, nil)
			must(t, err)
			pair.Settle()
			tc.answer(p)
			pair.Settle()
			n := 0
			var last error
			for _, err := range s.Events() {
				if last = err; err == nil {
					n++
				}
			}
			if n != tc.events || !tc.ends(last) {
				t.Errorf("%d events, then %v", n, last)
			}
		})
	}
}

// The iterator's context cancels its stream; so does leaving its loop.
func TestIterator_Cancel(t *testing.T) {
	for _, leave := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			pair, b, p := asking(t, config(nil))
			ctx, cancel := context.WithCancel(background)
			defer cancel()
			q := call(ping1)
			q.Protocol = mcp
			s, err := b.Stream(ctx, pair.Client.Association, &q, nil)
			must(t, err)
			pair.Settle()
			p.send(t, data(1, "a"))
			p.send(t, data(2, "b"))
			p.send(t, data(3, "c"))
			pair.Settle()
			p.take(t)
			for e, err := range s.Events() {
				must(t, err)
				if e.ID == 2 {
					if leave {
						break
					}
					cancel()
					synctest.Wait()
					pair.Settle()
					_, err := s.Next()
					if !errors.Is(err, context.Canceled) {
						t.Errorf("after its context: %v", err)
					}
					break
				}
			}
			pair.Settle()
			if m := p.one(t); m.Stream.Control != bridge.ControlCancel || m.Stream.EventID != 2 {
				t.Errorf("%+v", m)
			}
			if _, err := s.Next(); !errors.Is(err, context.Canceled) {
				t.Errorf("after the end: %v", err)
			}
			s.Close()
		})
	}
}

// A context that has ended starts nothing.
func TestIterator_ContextOver(t *testing.T) {
	pair, b, p := asking(t, config(nil))
	ctx, cancel := context.WithCancel(background)
	cancel()
	q := call(ping1)
	q.Protocol = mcp
	if _, err := b.Stream(ctx, pair.Client.Association, &q, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	pair.Settle()
	p.none(t)
}

// Closing does not disturb a reader that is at work: it has its event, and then the
// end.
func TestIterator_CloseWhileReading(t *testing.T) {
	for range 50 {
		pair, b, p := asking(t, config(nil))
		q := call(ping1)
		q.Protocol = mcp
		s, err := b.Stream(background, pair.Client.Association, &q, nil)
		must(t, err)
		pair.Settle()
		for id := range carriage.EventID(20) {
			p.send(t, data(id+1, fmt.Sprint("event ", id+1)))
		}
		pair.Settle()
		reading, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for n := 1; ; n++ {
				e, err := s.Next()
				if err != nil {
					if !errors.Is(err, context.Canceled) {
						t.Errorf("%v", err)
					}
					return
				}
				if n == 1 {
					close(reading)
				}
				if string(e.Foreign) != fmt.Sprint("event ", n) {
					t.Errorf("event %d is %q", n, e.Foreign)
				}
			}
		}()
		<-reading
		s.Close()
		<-done
		pair.Settle()
	}
}
