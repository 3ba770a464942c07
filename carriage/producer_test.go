package carriage_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// CC-STREAM 5.1: events are numbered from 1, the end's number is greater than all,
// every frame bears StreamControl, and the octets cross as they are.
func TestStream5_EventsAreNumberedFromOne(t *testing.T) {
	pair, _, p, producer, h := producing(t, carriage.StreamOptions{})
	pair.Settle()
	p.none(t) // a stream without events has no frames
	for _, e := range []string{`{"a":1}`, ` {"b" : 2}`, ""} {
		must(t, producer.TrySend([]byte(e)))
	}
	if producer.LastID() != 3 {
		t.Errorf("last id %d", producer.LastID())
	}
	pair.Settle()
	frames := p.take(t)
	if len(frames) != 3 {
		t.Fatalf("%d frames", len(frames))
	}
	for i, e := range []string{`{"a":1}`, ` {"b" : 2}`, ""} {
		event(t, frames[i], bridge.KindData, carriage.EventID(i+1), e)
		if string(frames[i].Corr) != "1" || len(frames[i].Method) != 0 || frames[i].Stream.Flags != 0 {
			t.Errorf("frame %+v", frames[i])
		}
	}
	must(t, producer.End([]byte(`{"last":true}`)))
	pair.Settle()
	event(t, p.one(t), bridge.KindEnd, 4, `{"last":true}`)
	if err := producer.TrySend(nil); err != carriage.ErrStreamEnded {
		t.Errorf("sending after the end: %v", err)
	}
	if err := producer.Fail(nil); err == nil {
		t.Error("a second end")
	}
	if len(h.over) != 1 || h.over[0] != nil || producer.Err() != carriage.ErrStreamEnded {
		t.Errorf("over %v, %v", h.over, producer.Err())
	}
	<-producer.Done()
	if n := pair.Server.ChannelConn(0x0D).Busy(); n != 0 {
		t.Errorf("%d exchanges open", n)
	}
	// The correlation id is free again.
	p.send(t, request("1", ping1))
	pair.Settle()
	if len(h.producers) != 2 {
		t.Error("the correlation id was not freed")
	}
}

// The terminal frame is exactly one, of whatever kind.
func TestStream_OneTerminalFrame(t *testing.T) {
	failed := `{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"no","data":{"x":1}}}`
	for name, tc := range map[string]struct {
		end  func(p *carriage.Producer) error
		want func(t *testing.T, m bridge.Message)
	}{
		"End":      {func(p *carriage.Producer) error { return p.End([]byte("x")) }, func(t *testing.T, m bridge.Message) { event(t, m, bridge.KindEnd, 2, "x") }},
		"EndEmpty": {func(p *carriage.Producer) error { return p.EndEmpty() }, func(t *testing.T, m bridge.Message) { event(t, m, bridge.KindEnd, 2, "") }},
		"Fail": {func(p *carriage.Producer) error { return p.Fail([]byte(failed)) }, func(t *testing.T, m bridge.Message) {
			if m.Kind != bridge.KindError || m.Transport || string(m.Foreign) != failed {
				t.Fatalf("%v %q", m.Kind, m.Foreign)
			}
		}},
		"Refuse": {func(p *carriage.Producer) error { return p.Refuse(bridge.CodeNotDelivered, "lost") }, func(t *testing.T, m bridge.Message) {
			transport(t, m, "1", bridge.CodeNotDelivered)
		}},
		"Fail with something else": {func(p *carriage.Producer) error {
			if err := p.Fail([]byte(`{"jsonrpc":"2.0","id":2,"error":{"code":1,"message":""}}`)); !errors.Is(err, carriage.ErrMalformed) {
				return errors.New("an error with a wrong id was taken")
			}
			return nil
		}, func(t *testing.T, m bridge.Message) { transport(t, m, "1", bridge.CodeNotDelivered) }},
	} {
		t.Run(name, func(t *testing.T) {
			pair, _, p, producer, _ := producing(t, carriage.StreamOptions{})
			must(t, producer.TrySend([]byte("e")))
			must(t, tc.end(producer))
			for _, again := range []func() error{
				func() error { return producer.End(nil) },
				producer.EndEmpty,
				func() error { return producer.Refuse(bridge.CodeNotDelivered, "") },
				func() error { return producer.TrySend(nil) },
				func() error { return producer.Send(background, nil) },
			} {
				if err := again(); err != carriage.ErrStreamEnded {
					t.Errorf("after the end: %v", err)
				}
			}
			pair.Run(time.Hour)
			frames := p.take(t)
			if len(frames) != 2 {
				t.Fatalf("%d frames", len(frames))
			}
			tc.want(t, frames[1])
		})
	}
}

// A handler of a streaming request may answer it without a stream.
func TestStream_RespondInsteadOfAStream(t *testing.T) {
	pair, _, p, producer, _ := producing(t, carriage.StreamOptions{})
	must(t, producer.Respond([]byte(pong1)))
	pair.Settle()
	if m := p.one(t); m.Kind != bridge.KindResponse || string(m.Foreign) != pong1 || m.HasStream {
		t.Fatalf("%+v", m)
	}

	pair, _, p, producer, _ = producing(t, carriage.StreamOptions{})
	must(t, producer.TrySend([]byte("e")))
	if err := producer.Respond([]byte(pong1)); err != carriage.ErrStreamEnded {
		t.Errorf("a response after an event: %v", err)
	}
	must(t, producer.EndEmpty())
	pair.Settle()
	if n := len(p.take(t)); n != 2 {
		t.Errorf("%d frames", n)
	}
}

// CC-STREAM 7.2: one acknowledgement, with the id of the last event emitted.
func TestStream7_CancelIsAcknowledgedOnce(t *testing.T) {
	pair, b, p, producer, h := producing(t, carriage.StreamOptions{})
	must(t, producer.TrySend([]byte("a")))
	must(t, producer.TrySend([]byte("b")))
	pair.Settle()
	p.take(t)
	done := producer.Done()
	ctx := producer.Context()
	p.send(t, cancelFrame(1))
	pair.Settle()
	ackFrame(t, p.one(t), 2)
	select {
	case <-done:
	default:
		t.Error("the producer does not know")
	}
	if ctx.Err() == nil || producer.Err() != carriage.ErrCancelled || len(h.over) != 1 || h.over[0] != carriage.ErrCancelled {
		t.Errorf("%v, %v, %v", ctx.Err(), producer.Err(), h.over)
	}
	for _, err := range []error{producer.TrySend(nil), producer.Send(background, nil), producer.EndEmpty()} {
		if err != carriage.ErrCancelled {
			t.Errorf("after the cancel: %v", err)
		}
	}
	p.send(t, cancelFrame(2)) // it has no stream any more
	pair.Run(time.Hour)
	p.none(t)
	if s := b.Stats(); s.StreamsCancelled != 1 || s.RepliesUnknown != 1 {
		t.Errorf("%+v", s)
	}
}

// What was to be sent and was not is not counted as emitted, nor sent later.
func TestStream7_CancelDropsWhatWaits(t *testing.T) {
	pair, _, p, producer, _ := producing(t, carriage.StreamOptions{Buffer: 1 << 20})
	pair.Server.Block(true)
	for range 600 { // more than the association hands to its transport
		must(t, producer.TrySend(text(1000)))
	}
	must(t, producer.End([]byte("end")))
	pair.Run(time.Millisecond)
	p.send(t, cancelFrame(0))
	pair.Settle()
	pair.Server.Block(false)
	pair.Settle()
	frames := p.take(t)
	last := len(frames) - 1
	if last < 100 || last > 400 {
		t.Fatalf("%d events although the transport was blocked", last)
	}
	ackFrame(t, frames[last], carriage.EventID(last))
}

// CC-STREAM 7.2: a cancel that crosses the natural end is moot.
func TestStream7_CancelAfterTheEndIsMoot(t *testing.T) {
	pair, b, p, producer, _ := producing(t, carriage.StreamOptions{})
	must(t, producer.TrySend([]byte("a")))
	must(t, producer.End([]byte("b")))
	pair.Settle()
	if n := len(p.take(t)); n != 2 {
		t.Fatalf("%d frames", n)
	}
	p.send(t, cancelFrame(1))
	pair.Settle()
	p.none(t)
	if s := b.Stats(); s.StreamsCancelled != 0 {
		t.Errorf("%+v", s)
	}
}

// A consumer may leave before the handler has made a stream.
func TestStream7_CancelBeforeTheStream(t *testing.T) {
	h := new(held)
	pair, b, p := serving(t, config(h))
	p.send(t, request("1", ping1))
	pair.Settle()
	p.send(t, cancelFrame(0))
	pair.Settle()
	ackFrame(t, p.one(t), 0)
	r := h.requests[0]
	<-r.Done()
	if _, err := r.Stream(carriage.StreamOptions{}); err != carriage.ErrAnswered {
		t.Errorf("a stream after the cancel: %v", err)
	}
	if err := r.Respond([]byte(pong1)); err != carriage.ErrAnswered {
		t.Errorf("a reply after the cancel: %v", err)
	}
	pair.Run(time.Hour)
	p.none(t)
	if s := b.Stats(); s.StreamsCancelled != 1 {
		t.Errorf("%+v", s)
	}
}

// What the peer refuses that it has asked for is over too.
func TestStream_RefusedByItsConsumer(t *testing.T) {
	pair, _, p, producer, _ := producing(t, carriage.StreamOptions{})
	must(t, producer.TrySend([]byte("a")))
	pair.Settle()
	p.take(t)
	p.send(t, bridge.Message{Kind: bridge.KindError, Corr: []byte("1"), Transport: true,
		Foreign: bridge.AppendTransportError(nil, bridge.CodeEnvelopeMalformed, "no stream wanted")})
	pair.Settle()
	ackFrame(t, p.one(t), 1)
	if producer.Err() != carriage.ErrCancelled {
		t.Errorf("%v", producer.Err())
	}
}

// Handlers that panic, forget or lose their stream end it definitely.
func TestStream_LeftStreamsAreNotDelivered(t *testing.T) {
	for name, tc := range map[string]struct {
		serve func(r *carriage.Request)
		async bool
	}{
		"panic": {serve: func(r *carriage.Request) {
			p, _ := r.Stream(carriage.StreamOptions{})
			_ = p.TrySend([]byte("e"))
			panic("x")
		}},
		"left": {serve: func(r *carriage.Request) {
			p, _ := r.Stream(carriage.StreamOptions{})
			_ = p.TrySend([]byte("e"))
		}},
		"async panic": {async: true, serve: func(r *carriage.Request) {
			p, _ := r.Stream(carriage.StreamOptions{})
			_ = p.TrySend([]byte("e"))
			panic("x")
		}},
		"async left": {async: true, serve: func(r *carriage.Request) {
			p, _ := r.Stream(carriage.StreamOptions{})
			_ = p.TrySend([]byte("e"))
		}},
		"retained, then panic": {serve: func(r *carriage.Request) {
			r.Retain()
			p, _ := r.Stream(carriage.StreamOptions{})
			_ = p.TrySend([]byte("e"))
			panic("x")
		}},
		"lost": {serve: func(r *carriage.Request) {
			r.Retain()
			p, _ := r.Stream(carriage.StreamOptions{})
			_ = p.TrySend([]byte("e"))
			r.Release()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(carriage.HandlerFunc(tc.serve))
			cfg.Protocols[0].Async = tc.async
			pair, b, p := serving(t, cfg)
			p.send(t, request("1", ping1))
			var frames []bridge.Message
			pair.RunUntil(func() bool {
				frames = append(frames, p.take(t)...)
				runtime.GC() // a lost producer is found by nobody else
				return len(frames) > 0 && frames[len(frames)-1].Kind == bridge.KindError
			})
			pair.Run(time.Hour)
			frames = append(frames, p.take(t)...)
			transport(t, frames[len(frames)-1], "1", bridge.CodeNotDelivered)
			unknownOutcome(t, frames[len(frames)-1])
			for _, m := range frames[:len(frames)-1] {
				if m.Kind != bridge.KindData {
					t.Errorf("a second terminal frame: %v", m.Kind)
				}
			}
			if s := b.Stats(); s.StreamsCut != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// The end of the association ends its streams.
func TestStream_EndsWithItsAssociation(t *testing.T) {
	pair, _, _, producer, h := producing(t, carriage.StreamOptions{})
	must(t, producer.TrySend([]byte("a")))
	pair.Cut(errors.New("reset"))
	pair.Settle()
	<-producer.Done()
	if !errors.Is(producer.Err(), assoc.ErrClosed) || !errors.Is(producer.TrySend(nil), assoc.ErrClosed) || !errors.Is(producer.EndEmpty(), assoc.ErrClosed) {
		t.Errorf("%v", producer.Err())
	}
	if len(h.over) != 1 || !errors.Is(h.over[0], assoc.ErrClosed) {
		t.Errorf("over %v", h.over)
	}
}

// A drain gives streams a last while, and then cuts them (L27).
func TestStream_DrainCutsWhatGoesOn(t *testing.T) {
	pair, b, p, producer, _ := producing(t, carriage.StreamOptions{})
	pair.Server.Drain(6, "shutting down")
	pair.Run(carriage.DefaultStreamDrain - time.Millisecond)
	must(t, producer.TrySend([]byte("still")))
	pair.Settle()
	event(t, p.one(t), bridge.KindData, 1, "still")
	pair.Run(2 * time.Millisecond)
	last := p.one(t)
	transport(t, last, "1", bridge.CodeNotDelivered)
	if !strings.Contains(string(last.Foreign), "outcome unknown") { // the handler had the request
		t.Errorf("%q", last.Foreign)
	}
	if producer.Err() != carriage.ErrDraining {
		t.Errorf("%v", producer.Err())
	}
	if s := b.Stats(); s.StreamsCut != 1 {
		t.Errorf("%+v", s)
	}
	pair.Run(second)
	if pair.Server.Err() == nil {
		t.Error("the drain does not end")
	}
}

// One that begins after that while is cut at once.
func TestStream_BegunTooLateInADrain(t *testing.T) {
	h := new(held)
	pair, _, p := serving(t, config(h))
	p.send(t, request("1", ping1))
	pair.Settle()
	pair.Server.Drain(6, "shutting down")
	pair.Run(2 * carriage.DefaultStreamDrain)
	s, err := h.requests[0].Stream(carriage.StreamOptions{})
	must(t, err)
	must(t, s.TrySend([]byte("e")))
	pair.Settle()
	transport(t, p.one(t), "1", bridge.CodeNotDelivered)
	if s.Err() != carriage.ErrDraining || s.Association() != pair.Server.Association {
		t.Errorf("%v", s.Err())
	}
}

// A stream that ends by itself in that while is not cut.
func TestStream_DrainLetsStreamsEnd(t *testing.T) {
	pair, b, p, producer, _ := producing(t, carriage.StreamOptions{})
	pair.Server.Drain(6, "shutting down")
	pair.Run(time.Second)
	must(t, producer.End([]byte("done")))
	pair.Run(time.Second)
	event(t, p.one(t), bridge.KindEnd, 1, "done")
	if pair.Server.Err() == nil || b.Stats().StreamsCut != 0 {
		t.Errorf("%v %+v", pair.Server.Err(), b.Stats())
	}
}

// A request that is answered has no stream, and one with a stream no other answer.
func TestStream_OnlyOneKindOfAnswer(t *testing.T) {
	h := new(held)
	cfg := config(h)
	cfg.Protocols[0].Stream = func(method []byte) bool { return string(method) == "stream" }
	pair, _, p := serving(t, cfg)
	p.send(t, request("1", ping1))
	m := request("2", `{"jsonrpc":"2.0","id":2,"method":"stream"}`)
	m.Method = []byte("stream")
	p.send(t, m)
	pair.Settle()
	unary, stream := h.requests[0], h.requests[1]
	if unary.Streams() || !stream.Streams() {
		t.Error("the protocol knows which methods stream")
	}
	if _, err := unary.Stream(carriage.StreamOptions{}); err != carriage.ErrNotStream {
		t.Errorf("a stream for a method without: %v", err)
	}
	must(t, unary.Respond([]byte(pong1)))
	producer, err := stream.Stream(carriage.StreamOptions{})
	must(t, err)
	for _, err := range []error{stream.Respond(nil), stream.Fail(nil), stream.Refuse(4, "")} {
		if err != carriage.ErrAnswered {
			t.Errorf("another answer beside a stream: %v", err)
		}
	}
	if _, err := stream.Stream(carriage.StreamOptions{}); err != carriage.ErrAnswered {
		t.Errorf("a second stream: %v", err)
	}
	select {
	case <-stream.Done():
		t.Error("the exchange is over although its stream is not")
	default:
	}
	must(t, producer.EndEmpty())
	pair.Settle()
	<-stream.Done()
	if n := len(p.take(t)); n != 2 {
		t.Errorf("%d frames", n)
	}
}

// Several events at a time are sent as far as there is room for them and they can be
// carried.
func TestStream_SendAll(t *testing.T) {
	h := &streamed{t: t, o: carriage.StreamOptions{Buffer: 10 * 1064}}
	pair, _, p := serving(t, config(h))
	p.send(t, request("1", ping1))
	pair.Settle()
	producer := h.one()
	all := make([][]byte, 25)
	for i := range all {
		all[i] = fmt.Appendf(nil, "%-1000d", i)
	}
	if n, err := producer.TrySendAll(all); n != 10 || err != assoc.ErrWouldBlock {
		t.Fatalf("room for 10: %d, %v", n, err)
	}
	if n, err := producer.TrySendAll(nil); n != 0 || err != nil {
		t.Errorf("nothing: %d, %v", n, err)
	}
	gone, leave := context.WithCancel(background)
	leave()
	if n, err := producer.SendAll(gone, all[10:]); n != 0 || err != context.Canceled {
		t.Errorf("no room, and nobody waits: %d, %v", n, err)
	}
	patience, giveUp := context.WithTimeout(background, time.Minute)
	defer giveUp()
	sent := make(chan error, 1)
	go func() {
		n, err := producer.SendAll(patience, all[10:])
		if n != 15 {
			err = fmt.Errorf("%d sent: %v", n, err)
		}
		sent <- err
	}()
	for waiting := true; waiting; {
		select {
		case err := <-sent:
			must(t, err)
			waiting = false
		default:
			pair.Settle()
			runtime.Gosched()
		}
	}
	if n, err := producer.TrySendAll([][]byte{[]byte("25"), text(5 << 20), []byte("no more")}); n != 1 || !errors.Is(err, assoc.ErrTooLarge) {
		t.Errorf("one too large: %d, %v", n, err)
	}
	must(t, producer.EndEmpty())
	if n, err := producer.TrySendAll(all); n != 0 || err != carriage.ErrStreamEnded {
		t.Errorf("after the end: %d, %v", n, err)
	}
	pair.Settle()
	ms := p.take(t)
	if len(ms) != 27 {
		t.Fatalf("%d frames", len(ms))
	}
	for i, m := range ms[:26] {
		if m.Stream.EventID != carriage.EventID(i+1) || strings.TrimSpace(string(m.Foreign)) != fmt.Sprint(i) {
			t.Errorf("event %d is %d, %q", i+1, m.Stream.EventID, m.Foreign)
		}
	}
}

// An event that can't be carried leaves the stream as it was.
func TestStream_EventsThatCannotBeCarried(t *testing.T) {
	h := &streamed{t: t}
	pair, _, p := serving(t, config(h))
	p.send(t, bridge.Message{Kind: bridge.KindRequest, Protocol: raw, Content: bridge.ContentCBOR, Corr: []byte("c"), Foreign: []byte("x")})
	pair.Settle()
	producer := h.one()
	if err := producer.TrySend(make([]byte, 5<<20)); !errors.Is(err, assoc.ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	if err := producer.TrySend([]byte("\x00\x13\x00\x02\x00\x00")); err != nil {
		t.Errorf("settled by a label: %v", err) // D9
	}
	if err := producer.End(make([]byte, 5<<20)); !errors.Is(err, assoc.ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	must(t, producer.End([]byte("end")))
	pair.Settle()
	frames := p.take(t)
	if len(frames) != 2 || string(frames[0].Foreign) != "\x00\x13\x00\x02\x00\x00" || string(frames[1].Foreign) != "end" {
		t.Fatalf("%d frames", len(frames))
	}
}

// A cancel that meets an answer on its way is moot, and nothing of it stays for
// requests to come.
func TestStream7_CancelMeetsAnAnswer(t *testing.T) {
	h := new(held)
	pair, b, p := serving(t, config(h))
	for range 20 {
		p.send(t, request("1", ping1))
		pair.Settle()
		r := h.requests[len(h.requests)-1]
		p.send(t, cancelFrame(0))
		must(t, r.Respond([]byte(pong1)))
		r.Release()
		pair.Settle()
		if m := p.one(t); m.Kind != bridge.KindResponse {
			t.Fatalf("%v", m.Kind)
		}
		p.send(t, request("1", ping1))
		pair.Settle()
		r = h.requests[len(h.requests)-1]
		s, err := r.Stream(carriage.StreamOptions{})
		must(t, err)
		must(t, s.TrySend([]byte("e")))
		pair.Settle()
		event(t, p.one(t), bridge.KindData, 1, "e")
		must(t, s.EndEmpty())
		r.Release()
		pair.Settle()
		p.take(t)
	}
	if st := b.Stats(); st.StreamsCancelled != 0 {
		t.Errorf("%+v", st)
	}
}

// A cancel that comes before the loop knows the stream ends it.
func TestStream7_CancelMeetsTheStream(t *testing.T) {
	h := new(held)
	pair, _, p := serving(t, config(h))
	p.send(t, request("1", ping1))
	pair.Settle()
	p.send(t, cancelFrame(0))
	s, err := h.requests[0].Stream(carriage.StreamOptions{}) // posted, as the cancel is
	must(t, err)
	must(t, s.TrySend([]byte("e")))
	pair.Settle()
	ackFrame(t, p.one(t), 0)
	if s.Err() != carriage.ErrCancelled {
		t.Errorf("%v", s.Err())
	}
}

// The foreign message of a request stays with who retains it, also after it became a
// stream.
func TestStream_RetainAfterStream(t *testing.T) {
	var r *carriage.Request
	pair, _, p := serving(t, config(carriage.HandlerFunc(func(x *carriage.Request) {
		s, err := x.Stream(carriage.StreamOptions{})
		must(t, err)
		x.Retain()
		r = x
		must(t, s.TrySend([]byte("e")))
		t.Cleanup(func() { _ = s.EndEmpty() })
	})))
	p.send(t, request("1", ping1))
	pair.Settle()
	event(t, p.one(t), bridge.KindData, 1, "e")
	if string(r.Foreign()) != ping1 || string(r.Corr()) != "1" || string(r.Method()) != "m" {
		t.Errorf("%q %q %q", r.Foreign(), r.Corr(), r.Method())
	}
}
