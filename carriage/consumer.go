package carriage

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/sched"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// Event is one event of a stream.
type Event struct {
	// Kind is bridge.KindData, for the terminal event bridge.KindEnd, and
	// bridge.KindResponse for a reply without a stream.
	Kind bridge.Kind
	// ID is 0 on a stream without StreamControl.
	ID        EventID
	Content   bridge.ContentType
	MediaType []byte
	// Method is the envelope's, of a reply without a stream.
	Method []byte
	// Foreign is the event, octet for octet.
	Foreign []byte
}

// Cursor is a place in a stream, from which it can be resumed.
type Cursor struct {
	// Corr is the stream's correlation id.
	Corr []byte
	// ID is that of the last event consumed, 0 for none.
	ID EventID
}

// StreamCall says more about a Call that may be answered by a stream. nil is the
// zero value.
type StreamCall struct {
	// Resume continues a stream behind a cursor (CC-STREAM 6.2). The Call's Natural
	// and Hop have no meaning then; its message is the original one or empty.
	Resume *Cursor
	// Manual says that an event is not consumed when HandleEvent returns but when
	// Consumed says so: only then credit for it is given back.
	Manual bool
	// Up sends a stream along with the request, for a method of Protocol.Duplex: Up of
	// what StartStream or Stream returns is its producer. On a resume, which concerns
	// the answer alone, it has no meaning: the peer resumes this half itself.
	Up *StreamOptions
	// Redial lets an iterator go on when its association is lost; nil ends the stream
	// with it. Only Bridge.Stream looks at it: who has a StreamHandler is told of the
	// end, and resumes by Resume.
	Redial *Redial
}

// ErrOverrun: the producer sent more than it had credit for.
var ErrOverrun = errors.New("carriage: the producer overran the stream's credit")

// StreamHandler takes what answers a streaming request. Its methods are called on
// the loop of the association and must not block; what they are given is borrowed
// until they return.
type StreamHandler interface {
	// HandleEvent takes the events but the terminal one, in order, each once.
	HandleEvent(e *Event)
	// HandleReply is told how the stream ended, exactly once and last. Its Kind is
	// bridge.KindEnd for a complete stream, with the terminal event's octets in
	// Foreign (none for an end without an event); bridge.KindResponse for a reply
	// without a stream; bridge.KindError for an error of the foreign protocol. Err
	// is set in every other case.
	Completion
}

// Consumer is a stream that is received. Any goroutine may use it.
//
//	StartStream -> REQUEST --------------------> Request.Stream
//	  HandleEvent <----------- STREAM_DATA ------ Send
//	  HandleReply <----------- STREAM_END ------- End
//
// Cancel, or a deadline, sends STREAM_END the other way; what still arrives after
// it is dropped and counted, and the correlation id stays in use until the
// producer's terminal frame.
type Consumer struct {
	node     sched.Node
	b        *Bridge
	a        *assoc.Association
	h        StreamHandler
	manual   bool
	iterator bool // which counts itself what is consumed
	re       *redial
	upward   *Producer

	consumed  atomic.Int64 // octets to give credit for
	readTo    atomic.Uint64
	resumable atomic.Bool
	corr      atomic.Pointer[string]
	cancelled atomic.Pointer[error]

	parts PartHandler // of a document set; nil for any other stream

	// Loop only.
	e       *exchange // nil once HandleReply was called
	up      *upstream // instead of e, of a stream that came with a request
	credit  sched.Credit
	limited bool // by credit that the peer knows of
	begun   bool
	plain   bool // comes without StreamControl
	resumed bool
	cursor  EventID
	last    EventID
	content bridge.ContentType // what the first frame declared
	media   []byte
}

// StartStream sends c as a request that may be answered by a stream, and returns
// at once. h is told everything; if StartStream returns an error it is told
// nothing. The Call's Timeout is the time until the first frame of the answer. Any
// goroutine may call it. The errors are Start's.
func (b *Bridge) StartStream(a *assoc.Association, c *Call, o *StreamCall, h StreamHandler) (*Consumer, error) {
	x := &Consumer{b: b, a: a, h: h}
	x.node.Owner = x
	if err := x.start(c, o); err != nil {
		return nil, err
	}
	return x, nil
}

func (x *Consumer) start(c *Call, o *StreamCall) error {
	if o != nil {
		x.manual = x.manual || o.Manual
		if o.Resume != nil {
			x.resumed, x.cursor, x.last = true, o.Resume.ID, o.Resume.ID
			if !x.iterator {
				x.readTo.Store(uint64(o.Resume.ID))
			}
		}
	}
	_, err := x.b.start(x.a, c, x.h, x, o)
	return err
}

// Consumed gives credit for so many foreign octets back to the producer, where
// StreamCall.Manual asks for that.
func (x *Consumer) Consumed(octets int) {
	if x.manual && octets > 0 && x.consumed.Add(int64(octets)) >= grantStep {
		x.a.PostOnce(&x.node)
	}
}

// grantStep is how many octets are consumed elsewhere before the loop is told.
const grantStep = 64 << 10

// An event that is larger than what is left of the stream's credit may be sent while
// one part in overdraw of the initial credit is left: events can't be split, and one
// may be larger than any credit. With all consumed at least half of the initial
// credit is there, less one grantStep, so every event can be sent at last.
const overdraw = 4

// Cancel stops the stream: HandleReply is told err, or context.Canceled if that is
// nil, unless the stream has ended before, and the producer is told to stop.
func (x *Consumer) Cancel(err error) {
	if err == nil {
		err = context.Canceled
	}
	if x.cancelled.CompareAndSwap(nil, &err) {
		x.a.PostOnce(&x.node) // if that fails the association has ended, and the stream too
	}
}

// Cursor is how far the stream has been consumed, and whether the producer says that
// it can be resumed from there. The correlation id is empty as long as the request
// has not been sent.
func (x *Consumer) Cursor() (c Cursor, resumable bool) {
	if corr := x.corr.Load(); corr != nil {
		c.Corr = []byte(*corr)
	}
	c.ID = EventID(x.readTo.Load())
	return c, x.resumable.Load()
}

// RunTask runs on the loop: something was consumed, or the stream is cancelled.
func (x *Consumer) RunTask() {
	n := x.consumed.Swap(0)
	if x.e == nil && x.up == nil {
		return
	}
	if n > 0 {
		x.credit.Consume(int(min(uint64(n), x.credit.Held())))
		x.grant()
	}
	switch err := x.cancelled.Load(); {
	case err == nil:
	case x.up != nil:
		x.up.abandon(*err)
	default:
		x.e.c.abandon(x.e, *err)
	}
}

// grant extends the producer's credit when that is due (D6).
func (x *Consumer) grant() {
	if abs, due := x.credit.Grant(); due {
		_ = x.a.GrantStream(x.b.cfg.Channel, abs, x.wireCorr()) // fails only with the association
	}
}

// wireCorr is the correlation id of a stream that goes on.
func (x *Consumer) wireCorr() []byte {
	if x.up != nil {
		return x.up.corr
	}
	return x.e.corr
}

// named says under which correlation id the request goes out.
func (x *Consumer) named(corr []byte) {
	s := string(corr)
	x.corr.Store(&s)
}

// cancelFrame tells the producer to stop (CC-STREAM 7.1).
func (c *conn) cancelFrame(e *exchange) {
	x := e.sub
	if x.begun && x.plain {
		return // it would not understand
	}
	c.sendCancel(&e.msg, EventID(x.readTo.Load()))
}

// handleStream takes a well-formed STREAM_DATA or STREAM_END of an exchange that
// wants it.
func (c *conn) handleStream(e *exchange, m *bridge.Message) {
	x := e.sub
	repeated, err := c.accept(x, m)
	if err != nil {
		c.abandonOrEnd(e, m, err)
		return
	}
	if m.Kind == bridge.KindEnd {
		x.readTo.Store(uint64(x.last))
		c.complete(e, Reply{Kind: bridge.KindEnd, Content: m.Content, MediaType: m.MediaType, Foreign: m.Foreign, Sent: true})
		c.free(e)
		return
	}
	if e.deadline > 0 {
		e.deadline = 0
		c.a.StopTimer(&e.timer)
	}
	if !repeated && !c.deliver(x, m) {
		c.abandon(e, errHandler)
	}
}

// limit puts the credit in force that the peer knows of, if it does.
func (x *Consumer) limit(c *conn) {
	if n, on := c.streamWindow(); on {
		x.limited = true
		x.credit.LimitReceive(n, 0)
		x.credit.OverdrawReceive(n / overdraw)
	}
}

// accept holds a frame to the rules of its stream and to its credit. An event that is
// repeated is not to be delivered.
func (c *conn) accept(x *Consumer, m *bridge.Message) (repeated bool, err error) {
	s := &c.b.stats
	repeated, err = x.follow(m)
	if err != nil {
		s.repliesMalformed.Add(1)
		return false, &bridge.Error{Code: bridge.CodeEnvelopeMalformed, Text: reason(err)} // D20
	}
	if !x.limited {
		x.limit(c)
	}
	if x.credit.Receive(len(m.Foreign)) != nil {
		s.streamsOverrun.Add(1)
		return false, ErrOverrun
	}
	if repeated {
		s.eventsRepeated.Add(1)
		x.credit.Consume(len(m.Foreign))
		x.grant()
	}
	return repeated, nil
}

// abandonOrEnd ends an exchange for who waits, because of what m is: data may be
// followed by more, so its producer is told to stop.
func (c *conn) abandonOrEnd(e *exchange, m *bridge.Message, err error) {
	if m.Kind == bridge.KindData {
		c.abandon(e, err)
		return
	}
	c.complete(e, Reply{Err: err, Sent: true})
	c.free(e)
}

// deliver hands an event over; false means that the handler panicked.
func (c *conn) deliver(x *Consumer, m *bridge.Message) (ok bool) {
	defer func() {
		c.event = Event{}
		if p := recover(); p != nil {
			c.b.panicked("stream handler", &c.b.stats.completionPanics, p)
		}
	}()
	c.event = Event{Kind: m.Kind, ID: x.last, Content: m.Content, MediaType: m.MediaType, Foreign: m.Foreign}
	x.h.HandleEvent(&c.event)
	if !x.iterator {
		x.readTo.Store(uint64(x.last))
	}
	if !x.manual {
		x.credit.Consume(len(m.Foreign))
		x.grant()
	}
	return true
}

// follow holds a frame to the rules of its stream's StreamControl (CC-STREAM 5.1,
// 6.3, 7.2; D20). repeated says that the event was consumed before the resume.
func (x *Consumer) follow(m *bridge.Message) (repeated bool, err error) {
	first := !x.begun
	if first {
		x.begun, x.plain = true, !m.HasStream
	}
	if m.HasStream == x.plain {
		return false, errMixed
	}
	if x.plain {
		if x.resumed {
			return false, errMixed // nothing says which events these are
		}
		return false, nil
	}
	sc := &m.Stream
	x.resumable.Store(sc.Flags&bridge.StreamResumable != 0)
	switch {
	case sc.Control != bridge.ControlData:
		return false, errControl
	case sc.Flags&bridge.StreamCancelAck != 0:
		return false, errAck // nobody cancelled
	case m.Kind == bridge.KindData && x.resumed && sc.EventID <= x.cursor:
		return true, nil
	case sc.EventID <= x.last:
		return false, errOrder
	}
	x.last = sc.EventID
	return false, nil
}

// declares holds a frame to the content type of its stream's first one (CC-OPAQUE 7).
func (x *Consumer) declares(m *bridge.Message) error {
	if !x.begun {
		x.content, x.media = m.Content, bytes.Clone(m.MediaType)
		return nil
	}
	if m.Content != x.content || !bytes.Equal(m.MediaType, x.media) {
		return errDeclared
	}
	return nil
}
