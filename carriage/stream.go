package carriage

import (
	"bytes"
	"context"
	"io"
	"iter"
	"sync"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/wire/bridge"
	"github.com/trestle-npamp/trestle/wire/control"
)

// ForeignError is an error of the foreign protocol that ended a stream.
type ForeignError struct {
	Content   bridge.ContentType
	MediaType []byte
	// Method is the envelope's.
	Method []byte
	// Foreign is the error object, octet for octet.
	Foreign []byte
}

// Error says that there is one, not what it says.
func (e *ForeignError) Error() string { return "carriage: the foreign protocol answered with an error" }

// Stream is a stream as an iterator. One goroutine at a time may read it; any may
// close it.
//
// What its reader has not read yet waits, at most as much as the producer has credit
// for (D6). From a producer that knows of no such credit it may be as much again
// before the stream is cut.
//
// With StreamCall.Redial it goes on when its association is lost.
type Stream struct {
	b     *Bridge
	o     StreamCall
	ctx   context.Context
	stop  func() bool // ends the watch on ctx
	wake  chan struct{}
	re    *redial // nil: it ends with its association
	first Consumer

	mu   sync.Mutex
	x    *Consumer      // at present; changes only when its association has ended
	ring []waitingEvent // a power of two
	head uint
	n    int
	held int // octets of the events in ring
	cut  bool
	err  error        // set once no more events come
	read waitingEvent // what the reader has
}

type waitingEvent struct {
	Event
	b *buf.Buf
	x *Consumer // that it came by
}

// Stream sends c as a request that may be answered by a stream, and returns it as
// an iterator. When ctx ends the stream is cancelled. The errors are Start's. Any
// goroutine may call it, but only one that is no loop can read.
func (b *Bridge) Stream(ctx context.Context, a *assoc.Association, c *Call, o *StreamCall) (*Stream, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := &Stream{b: b, ctx: ctx, wake: make(chan struct{}, 1)}
	s.first.init(s, a)
	s.x = &s.first
	if o != nil {
		s.o = *o
	}
	if s.o.Redial != nil && s.o.Redial.Dial != nil {
		s.keepGoing(c, s.o.Redial)
		s.first.re = s.re
	}
	if s.o.Resume != nil {
		s.first.readTo.Store(uint64(s.o.Resume.ID))
	}
	if err := s.first.start(c, o); err != nil {
		s.over()
		return nil, err
	}
	s.stop = context.AfterFunc(ctx, func() { s.consumer().Cancel(ctx.Err()) })
	return s, nil
}

// init makes x what brings the stream from a.
func (x *Consumer) init(s *Stream, a *assoc.Association) {
	x.b, x.a, x.h, x.manual, x.iterator = s.b, a, (*streamReader)(s), true, true
	x.node.Owner = x
}

func (s *Stream) consumer() *Consumer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.x
}

// over ends what waits for the stream's context.
func (s *Stream) over() {
	if s.stop != nil {
		s.stop()
	}
	if s.re != nil {
		s.re.quit()
	}
}

// Next waits for the next event, whose octets are borrowed until the next call.
// io.EOF says that the stream is complete; any other error that it is not:
// *ForeignError, *bridge.Error, ErrSlowConsumer, the context's, or what a Reply's
// Err may be.
func (s *Stream) Next() (Event, error) {
	for {
		if err := s.ctx.Err(); err != nil {
			s.Close()
			return Event{}, err
		}
		s.mu.Lock()
		s.letGo(true)
		if s.n > 0 {
			s.read = s.pop()
			e := s.read.Event
			s.x.readTo.Store(uint64(e.ID))
			s.mu.Unlock()
			return e, nil
		}
		err := s.err
		s.mu.Unlock()
		if err != nil {
			s.over()
			return Event{}, err
		}
		select {
		case <-s.wake:
		case <-s.ctx.Done():
		}
	}
}

// Events goes through the rest of the stream. An error other than io.EOF is its
// last value. Leaving the loop early cancels the stream.
func (s *Stream) Events() iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		defer s.Close()
		for {
			e, err := s.Next()
			if err == io.EOF || !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// Cursor is how far the stream has been read, and whether the producer says that it
// can be resumed from there.
func (s *Stream) Cursor() (c Cursor, resumable bool) { return s.consumer().Cursor() }

// Close cancels the stream unless it has ended, and gives up what waits to be read.
// The reader keeps the event that it has.
func (s *Stream) Close() {
	s.over()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.x.Cancel(nil)
	s.cut = true
	s.letGo(false)
	for s.n > 0 {
		e := s.pop()
		s.giveUp(e)
		e.b.Release()
	}
	if s.err == nil {
		s.err = context.Canceled
	}
	s.signal()
}

func (s *Stream) pop() waitingEvent {
	at := s.head & uint(len(s.ring)-1)
	e := s.ring[at]
	s.ring[at] = waitingEvent{}
	s.head++
	s.n--
	return e
}

// giveUp says that an event has been consumed.
func (s *Stream) giveUp(e waitingEvent) {
	n := len(e.Foreign)
	s.held -= n
	s.b.received.Give(n)
	e.x.Consumed(n)
}

// letGo ends the loan of the last event. Unless the reader says so itself it may still
// be looking at it; then the octets are left to the garbage collector.
func (s *Stream) letGo(reader bool) {
	if s.read.b == nil {
		return
	}
	s.giveUp(s.read)
	if reader {
		s.read.b.Release()
	}
	s.read = waitingEvent{}
}

func (s *Stream) push(e *Event) bool {
	n := len(e.Foreign)
	if !s.b.received.Take(n) {
		return false
	}
	b := buf.Get(n + len(e.MediaType) + len(e.Method))
	b.B = append(append(append(b.B, e.Foreign...), e.MediaType...), e.Method...)
	own := waitingEvent{*e, b, s.x}
	method := n + len(e.MediaType)
	own.Foreign, own.MediaType, own.Method = b.B[:n:n], nil, nil
	if len(e.MediaType) > 0 {
		own.MediaType = b.B[n:method:method]
	}
	if len(e.Method) > 0 {
		own.Method = b.B[method:]
	}
	if s.n == len(s.ring) {
		ring := make([]waitingEvent, max(8, 2*s.n))
		for i := range s.n {
			ring[i] = s.ring[(s.head+uint(i))&uint(len(s.ring)-1)]
		}
		s.ring, s.head = ring, 0
	}
	s.ring[(s.head+uint(s.n))&uint(len(s.ring)-1)] = own
	s.n++
	s.held += n
	return true
}

func (s *Stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// streamReader is a Stream as the loop sees it.
type streamReader Stream

// HandleEvent implements StreamHandler.
func (r *streamReader) HandleEvent(e *Event) {
	s := (*Stream)(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut {
		return
	}
	if s.re != nil {
		s.re.came()
	}
	// Where credit is in force it has been held to already.
	window, _ := s.x.a.StreamWindow()
	over := !s.x.limited && s.held > 0 && s.held+len(e.Foreign) > max(int(window), control.FloorCredit)
	if over || !s.push(e) {
		s.cut = true
		s.b.stats.streamsUnread.Add(1)
		s.x.Cancel(ErrSlowConsumer)
	}
	s.signal()
}

// HandleReply implements Completion.
func (r *streamReader) HandleReply(reply *Reply) {
	s := (*Stream)(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil: // closed
	case s.goOn(reply):
		return
	case reply.Err != nil:
		s.err = reply.Err
	case reply.Kind == bridge.KindError:
		s.err = &ForeignError{
			Content: reply.Content, MediaType: bytes.Clone(reply.MediaType), Method: bytes.Clone(reply.Method), Foreign: bytes.Clone(reply.Foreign),
		}
	default:
		s.err = io.EOF
		e := Event{Kind: reply.Kind, Content: reply.Content, MediaType: reply.MediaType, Method: reply.Method, Foreign: reply.Foreign}
		if reply.Kind == bridge.KindEnd {
			e.ID = s.x.last
		}
		if (reply.Kind == bridge.KindResponse || len(e.Foreign) > 0) && !s.push(&e) {
			s.b.stats.streamsUnread.Add(1)
			s.err = ErrSlowConsumer
		}
	}
	s.signal()
}
