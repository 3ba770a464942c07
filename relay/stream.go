package relay

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/relay/edge"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// What callers of streams are told besides.
const (
	textSlow     = "the stream was read too slowly"
	textOverrun  = "the agent sent more than it may"
	textFull     = "too much waits for the callers of streams; outcome unknown"
	textTooLarge = "an event is larger than its receiver accepts"
)

// passage is a stream of an N-PAMP caller on its way: what comes from the agent on
// one loop leaves for the caller on another.
//
//	agent -- DATA --> HandleEvent -- TrySend --> caller
//	      <- credit - Consumed <------- sent ---
//	      <- cancel - Cancel <--------- over ---
//
// The agent is given credit for an event when it has left for the caller, so what
// waits here is bounded by one stream's credit. An agent that knows no credit is
// bounded by the producer's buffer, and cut with a reason beyond it. What waits of all
// passages together has a bound of its own.
type passage struct {
	f      *forwarder
	r      *carriage.Request
	to     *carriage.Producer
	demand *demand
	end    func() bool // of watching for a shutdown

	declared bool // the agent's answer has been, as an opaque one must be
}

// demand is what a caller's side asks of the agent's. It lives as long as the
// producer's callbacks, so it lets go of the rest when the agent's side has ended.
type demand struct {
	waiting *buf.Budget

	mu   sync.Mutex
	held int  // octets that wait for the caller
	gone bool // the caller's side has ended
	from *carriage.Consumer
	// What there was before from, until StartStream had returned.
	owed int   // octets to be credited
	err  error // why it is to be cancelled
	over bool
}

// forwardStream forwards a request that is answered by a stream.
func (f *forwarder) forwardStream(r *carriage.Request, to *route) {
	x := &passage{f: f, r: r, demand: &demand{waiting: f.waiting}}
	var err error
	x.to, err = r.Stream(carriage.StreamOptions{Buffer: f.streamBuffer, Sent: x.demand.sent, Over: x.demand.leave})
	if err != nil {
		return // the exchange is over
	}
	h := f.hop(&r.Inbound)
	if r.Protocol() == bridge.ProtocolA2A { // elsewhere it may be no stream
		h.call.Timeout = 0
	}
	x.declared = r.Protocol() == bridge.ProtocolA2A
	r.RetainEnvelope() // the foreign octets are copied by StartStream
	x.end = context.AfterFunc(f.cut, func() { x.cut(carriage.ErrDraining, textCut) })
	from, err := f.bridge.StartStream(to.assoc, &h.call, &carriage.StreamCall{Manual: true}, x)
	h.recycle()
	if err != nil {
		x.HandleReply(&carriage.Reply{Err: err})
		return
	}
	x.demand.begin(from)
}

func (d *demand) begin(from *carriage.Consumer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return
	}
	d.from = from
	from.Consumed(d.owed)
	if d.err != nil {
		from.Cancel(d.err)
	}
}

// take makes room for so many octets to wait; false says that there is none.
func (d *demand) take(octets int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.gone: // nothing waits any more
	case !d.waiting.Take(octets):
		return false
	default:
		d.held += octets
	}
	return true
}

// give says that so many octets don't wait (any more). The caller holds mu.
func (d *demand) give(octets int) {
	if !d.gone {
		d.held -= octets
		d.waiting.Give(octets)
	}
}

// untake undoes take.
func (d *demand) untake(octets int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.give(octets)
}

// sent gives the agent credit for what has left.
func (d *demand) sent(octets int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.give(octets)
	if d.from == nil {
		d.owed += octets
		return
	}
	d.from.Consumed(octets)
}

// leave is told that the caller's side is over, and why; nil is the end that the agent
// made itself.
func (d *demand) leave(err error) {
	d.mu.Lock()
	d.give(d.held)
	d.gone = true
	d.mu.Unlock()
	d.stop(err)
}

// stop tells the agent that nobody takes its events any more; nil is the end that
// it made itself.
func (d *demand) stop(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err == nil:
	case d.from == nil:
		d.err = err
	default:
		d.from.Cancel(err)
	}
}

func (d *demand) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over, d.from = true, nil
}

// cut ends the stream on both sides before its time.
func (x *passage) cut(err error, text string) {
	_ = x.to.Refuse(bridge.CodeNotDelivered, text) // unless it has ended
	x.demand.stop(err)
}

// HandleEvent implements carriage.StreamHandler, on the agent's loop.
func (x *passage) HandleEvent(e *carriage.Event) {
	n := len(e.Foreign)
	if !x.demand.take(n) {
		x.cut(carriage.ErrSlowConsumer, textFull)
		return
	}
	err := x.declare(&carriage.Reply{Content: e.Content, MediaType: e.MediaType})
	if err == nil {
		err = x.to.TrySend(e.Foreign)
	}
	if err != nil {
		x.demand.untake(n)
	}
	switch {
	case err == nil:
	case errors.Is(err, engine.ErrWouldBlock):
		x.cut(carriage.ErrSlowConsumer, textSlow)
	case errors.Is(err, engine.ErrTooLarge), errors.Is(err, bridge.ErrAmbiguous):
		x.cut(err, textTooLarge)
	default:
		x.demand.stop(err) // it is over for the caller
	}
}

// declare passes on what the first of an opaque answer declares.
func (x *passage) declare(reply *carriage.Reply) error {
	if x.declared {
		return nil
	}
	x.declared = true
	return x.to.Declare(declaration(reply))
}

// HandleReply implements carriage.StreamHandler, on the agent's loop. What can't be
// told to the caller has nobody to go to any more, or is told as what it is.
func (x *passage) HandleReply(reply *carriage.Reply) {
	x.end()
	x.demand.end()
	var err error
	if reply.Err == nil {
		if x.r.Protocol() != bridge.ProtocolA2A && reply.Kind == bridge.KindError {
			x.declared = false // it declares what it is, also behind events
		}
		err = x.declare(reply)
	}
	switch {
	case err != nil: // mostly it is over for the caller, and refusing changes nothing
		_ = x.to.Refuse(bridge.CodeNotDelivered, edge.ErrBadReply.Error())
	case reply.Err == nil && !x.demand.take(len(reply.Foreign)): // until the caller's side is over
		x.f.undelivered.Add(1)
		_ = x.to.Refuse(bridge.CodeNotDelivered, textFull)
	case reply.Err != nil:
		x.f.undelivered.Add(1)
		code, text := outcome(reply)
		_ = x.to.Refuse(code, text)
	case reply.Kind == bridge.KindError:
		err = x.to.Fail(reply.Foreign)
	case reply.Kind == bridge.KindResponse:
		err = x.to.Respond(reply.Foreign)
	case len(reply.Foreign) == 0:
		err = x.to.EndEmpty()
	default:
		err = x.to.End(reply.Foreign)
	}
	if errors.Is(err, engine.ErrTooLarge) || errors.Is(err, bridge.ErrAmbiguous) {
		_ = x.to.Refuse(bridge.CodeNotDelivered, textTooLarge)
	}
	x.r.Release()
}

// Stream implements edge.Forwarder.
func (f *forwarder) Stream(ctx context.Context, m *edge.Message) (edge.Stream, error) {
	if err := f.admit(m, false); err != nil {
		return nil, err
	}
	f.requests.Add(1)
	to := f.routes.find(m.Agent)
	if to == nil {
		f.undelivered.Add(1)
		return nil, edge.ErrNoAgent
	}
	call := hopFrom(m)
	s, err := f.bridge.Stream(ctx, to.assoc, &call, nil)
	for err == engine.ErrWouldBlock {
		if err = f.bridge.AwaitRoom(ctx, to.assoc, len(call.Foreign)); err == nil {
			s, err = f.bridge.Stream(ctx, to.assoc, &call, nil)
		}
	}
	if err != nil {
		f.undelivered.Add(1)
		return nil, edgeError(&carriage.Reply{Err: err})
	}
	return &edgeStream{f: f, Stream: s, opaque: m.Protocol != bridge.ProtocolA2A}, nil
}

// edgeStream is a link's stream for an HTTP caller.
type edgeStream struct {
	f *forwarder
	*carriage.Stream
	opaque bool
	over   bool
}

// Next implements edge.Stream.
func (s *edgeStream) Next() (edge.Event, error) {
	if s.over {
		return edge.Event{}, io.EOF
	}
	e, err := s.Stream.Next()
	var foreign *carriage.ForeignError
	switch {
	case err == nil && s.opaque:
		return s.told(e.Kind == bridge.KindResponse, false, &e)
	case err == nil:
		return edge.Event{Body: e.Foreign, Reply: e.Kind == bridge.KindResponse}, nil
	case err == io.EOF:
		return edge.Event{}, io.EOF
	case errors.As(err, &foreign):
		s.over = true
		if s.opaque {
			return s.told(true, true, &carriage.Event{Content: foreign.Content, MediaType: foreign.MediaType, Method: foreign.Method, Foreign: foreign.Foreign})
		}
		return edge.Event{Body: foreign.Foreign, Reply: true, Error: true}, nil
	}
	s.f.undelivered.Add(1)
	return edge.Event{}, edgeError(&carriage.Reply{Err: err, Sent: true})
}

// told is an event of an opaque stream, or an answer in place of one.
func (s *edgeStream) told(reply, failed bool, e *carriage.Event) (edge.Event, error) {
	out := edge.Event{Body: e.Foreign, Reply: reply, Error: failed, ID: uint64(e.ID), MediaType: bridge.Declared(e.Content, e.MediaType)}
	if reply {
		var ok bool
		if out.Status, ok = statusOfReply(e.Method, failed); !ok {
			s.f.undelivered.Add(1)
			return edge.Event{}, edge.ErrBadReply
		}
	}
	return out, nil
}
