package carriage

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"sync/atomic"

	"github.com/trestle-npamp/trestle/internal/defaults"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// A full-duplex exchange is two streams under one correlation id, one each way, which
// have event ids, credit, cancels and resumes of their own (CC-STREAM 8):
//
//	requester                                             responder
//	StreamCall.Up -> REQUEST ------------------> Request
//	  Up().Send ------ STREAM_DATA ------------>   Upstream().Next
//	  Next <---------- STREAM_DATA -------------   Stream().Send
//	  Up().End ------- STREAM_END -------------->
//	     <------------ STREAM_END ---------------
//
// Nothing on the wire says that a request brings a stream: both sides know it of the
// method (Protocol.Duplex). Nothing says either whose exchange a STREAM_DATA belongs to
// when both sides have one under the same correlation id. So the requester of a
// full-duplex exchange always gives it one with a token, which never equals the peer's.
//
// Each half ends by itself, and the exchange with the second. A reply that is no
// stream, or an error, ends both: there is nothing to send for then.

// ErrNotReply: a stream that goes along with a request is no reply, so it can't be
// ended by one.
var ErrNotReply = errors.New("carriage: a stream that goes with a request has no reply")

// upstream is the stream that came with a request of the peer. It belongs to the loop
// and stays until its terminal frame, be its request answered before.
type upstream struct {
	c     *conn
	s     Stream
	corr  []byte
	msg   bridge.Message // what the frames of this side have in common
	taken atomic.Bool    // by the handler
	over  bool           // for its reader: what comes is dropped until the terminal frame
	gone  bool           // out of the table
}

// duplex says that requests with this method bring a stream.
func (p *Protocol) duplex(method []byte) bool { return p.Duplex != nil && p.Duplex(method) }

// expect makes room for the stream that comes with r; false means that there is none.
func (c *conn) expect(r *Request) bool {
	m := &r.msg
	u := &upstream{c: c, corr: bytes.Clone(m.Corr)}
	u.msg = bridge.Message{Protocol: m.Protocol, Content: m.Content, MediaType: bytes.Clone(m.MediaType), Corr: u.corr}
	u.s.b, u.s.wake = c.b, make(chan struct{}, 1)
	u.s.first.init(&u.s, c.a)
	u.s.first.up = u
	u.s.first.named(u.corr)
	u.s.x = &u.s.first
	if !c.ups.Insert(u.corr, u) {
		return false
	}
	c.upsOpen++
	r.up = u
	return true
}

// Upstream is the stream that the requester sends along with its request, as an
// iterator (CC-STREAM 8). It can be had once, until the request is answered; after a
// stream as the answer it goes on until either side ends it. Closing it, or the end of
// ctx, cancels it and not the answer. A handler that does not ask for it cancels it
// when the answer ends.
//
// When the association is lost so is the stream; it can be resumed towards the
// requester with Bridge.Stream, by its Cursor.
//
// Errors: ErrNotStream if the method brings no stream; ErrAnswered.
func (r *Request) Upstream(ctx context.Context) (*Stream, error) {
	u := r.up
	switch {
	case u == nil:
		return nil, ErrNotStream
	case r.state.Load() == stateAnswered || !u.taken.CompareAndSwap(false, true):
		return nil, ErrAnswered
	}
	s := &u.s
	s.ctx = ctx
	s.stop = context.AfterFunc(ctx, func() { s.consumer().Cancel(ctx.Err()) })
	return s, nil
}

// answered sees to the stream that came with r when r's exchange is over: half says
// that it was by a stream's end.
func (r *Request) answered(half bool) {
	u := r.up
	if u == nil {
		return
	}
	if !half && !u.gone {
		u.tell(Reply{Err: ErrAnswered, Sent: true})
		u.drop()
	}
	if u.taken.CompareAndSwap(false, true) {
		u.s.stop = func() bool { return true }
		u.s.Close() // nobody will read it
	}
}

// tell ends the stream for its reader.
func (u *upstream) tell(reply Reply) {
	if u.over {
		return
	}
	u.over = true
	u.c.upsOpen--
	x := &u.s.first
	x.up = nil
	x.h.HandleReply(&reply)
}

// drop takes it out of the table.
func (u *upstream) drop() {
	if !u.gone {
		u.gone = true
		u.c.ups.Delete(u.corr)
	}
}

// abandon tells the requester to stop.
func (u *upstream) abandon(err error) {
	if x := &u.s.first; !u.gone && !(x.begun && x.plain) {
		u.c.sendCancel(&u.msg, EventID(x.readTo.Load()))
	}
	u.tell(Reply{Err: err, Sent: true})
}

// handleUpstream takes a frame of a stream that came with a request; parsed is what
// Parse said about it.
func (c *conn) handleUpstream(u *upstream, m *bridge.Message, parsed error) {
	s := &c.b.stats
	terminal := m.Kind != bridge.KindData
	if u.over {
		s.repliesLate.Add(1)
		if terminal {
			u.drop()
		}
		return
	}
	err := parsed
	switch {
	case err != nil:
	case len(m.Binding) > 0:
		err = errParts
	case m.Protocol != u.msg.Protocol:
		err = errProtocol
	case m.Kind == bridge.KindResponse || m.Kind == bridge.KindError && !m.Transport:
		err = errNotUpstream
	case m.Kind != bridge.KindError:
		err = u.s.first.declares(m)
	}
	if err != nil {
		// An EnvelopeMalformed on the wire would end the exchange's other half too: the
		// cancel says enough.
		s.repliesMalformed.Add(1)
		err = breach(err)
	}
	x, repeated := &u.s.first, false
	if err == nil && m.Kind != bridge.KindError {
		repeated, err = c.accept(x, m)
	}
	switch {
	case err != nil && terminal:
		u.tell(Reply{Err: err, Sent: true})
		u.drop()
	case err != nil:
		u.abandon(err)
	case m.Kind == bridge.KindError:
		code, text, _ := bridge.ParseTransportError(m.Foreign)
		u.tell(Reply{Err: &bridge.Error{Code: code, Text: string(text)}, Remote: true, Sent: true})
		u.drop()
	case terminal:
		x.readTo.Store(uint64(x.last))
		u.tell(Reply{Kind: bridge.KindEnd, Content: m.Content, MediaType: m.MediaType, Foreign: m.Foreign, Sent: true})
		u.drop()
	case !repeated:
		c.deliver(x, m)
	}
}

// eachUpstream calls f for each stream that came with a request and that somebody
// may read.
func (c *conn) eachUpstream(f func(u *upstream)) {
	c.ups.Range(func(_ []byte, u *upstream) bool {
		if !u.over {
			f(u)
		}
		return true
	})
}

// Up is the producer of the stream that goes along with the request, nil without
// StreamCall.Up. What it is given before the request is sent waits for that.
func (x *Consumer) Up() *Producer { return x.upward }

// Up is the producer of the stream that goes along with the request; see Consumer.Up.
func (s *Stream) Up() *Producer { return s.first.upward }

// join makes the stream that goes along with e's request. On any goroutine, before e
// is posted.
func (e *exchange) join(o *StreamOptions) *Producer {
	c, m := e.c, &e.msg
	f := &feed{
		b: c.b, opts: *o, place: -1, up: true,
		peer: c.a.PeerKey(), proto: e.proto, content: m.Content,
		// As long as it will be, which is all that matters before it is named.
		corr: bytes.Clone(e.corr), id: bytes.Clone(e.id), method: bytes.Clone(e.method), media: bytes.Clone(m.MediaType),
	}
	defaults.Fill(&f.opts.Buffer, DefaultStreamBuffer)
	out := newOutlet(c, nil, f)
	out.e = e
	f.home.Store(c.a)
	f.cur.Store(out)
	e.up, e.upped, e.hop = out, true, true
	p := &Producer{f}
	runtime.AddCleanup(p, func(f *feed) { f.condemn(ErrAbandoned, textLost) }, f)
	return p
}

// tellName says under which correlation id the request goes out.
func (e *exchange) tellName() {
	if e.sub != nil {
		e.sub.named(e.corr)
	}
	if e.up == nil {
		return
	}
	copy(e.up.f.corr, e.corr)
	if f := e.up.f; f.opts.Resumable {
		f.b.retained.add(f)
	}
}

// ascend lets the stream that goes along with the request follow it.
func (e *exchange) ascend() {
	if e.up != nil {
		e.up.attach(0)
		e.up.RunTask()
	}
}

// endUp ends the stream that goes along with the request without a frame: the
// exchange it is part of is over.
func (e *exchange) endUp(err error) {
	if o := e.up; o != nil {
		o.c.a.DropFlow(&o.flow)
		o.close()
		o.f.finish(o, err)
	}
}

// left says that the stream that goes along with the request is over.
func (e *exchange) left() {
	e.up = nil
	if e.half {
		e.c.free(e)
	}
}

// halve says whether the exchange has to stay for the stream that goes along with it.
func (e *exchange) halve() bool {
	if e.up == nil {
		return false
	}
	e.half, e.state = true, exchangeAbandoned
	return true
}

// handleUpCancel takes a cancel of a stream that goes along with a request of ours,
// and says whether it was one. A cancel of an answer that has ended is moot, although
// the other half goes on.
func (c *conn) handleUpCancel(corr []byte) bool {
	if _, up := c.ups.Get(corr); up {
		return true
	}
	e := c.find(corr)
	if e == nil || !e.upped {
		return false
	}
	if e.up != nil {
		e.up.cancel(ErrCancelled)
	}
	return true
}

// outletOf is the stream that we produce under a correlation id.
func (c *conn) outletOf(corr []byte) *outlet {
	if r, ok := c.live.Get(corr); ok && r.out != nil {
		return r.out
	}
	if e := c.find(corr); e != nil {
		return e.up
	}
	return nil
}

// sendCancel tells a producer to stop (CC-STREAM 7.1). m is what frames of the
// exchange have in common.
func (c *conn) sendCancel(m *bridge.Message, consumed EventID) {
	cancel := bridge.Message{
		Kind: bridge.KindEnd, Protocol: m.Protocol, Content: m.Content, MediaType: m.MediaType,
		Corr: m.Corr, Flags: bridge.FlagFinal, HasStream: true,
		Stream: bridge.StreamControl{Control: bridge.ControlCancel, EventID: consumed},
	}
	_ = c.send(&cancel, true) // fails only with the association
}
