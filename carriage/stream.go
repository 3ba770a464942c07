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
	Content bridge.ContentType
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
type Stream struct {
	x    Consumer
	ctx  context.Context
	stop func() bool // ends the watch on ctx
	wake chan struct{}

	mu    sync.Mutex
	ring  []waitingEvent // a power of two
	first uint
	n     int
	held  int // octets of the events in ring
	cut   bool
	err   error        // set once no more events come
	read  waitingEvent // what the reader has
}

type waitingEvent struct {
	Event
	b *buf.Buf
}

// Stream sends c as a request that may be answered by a stream, and returns it as
// an iterator. When ctx ends the stream is cancelled. The errors are Start's. Any
// goroutine may call it, but only one that is no loop can read.
func (b *Bridge) Stream(ctx context.Context, a *assoc.Association, c *Call, o *StreamCall) (*Stream, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := &Stream{ctx: ctx, wake: make(chan struct{}, 1)}
	s.x = Consumer{b: b, a: a, h: (*streamReader)(s), manual: true, iterator: true}
	s.x.node.Owner = &s.x
	if err := s.x.start(c, o); err != nil {
		return nil, err
	}
	s.stop = context.AfterFunc(ctx, func() { s.x.Cancel(ctx.Err()) })
	return s, nil
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
			s.mu.Unlock()
			s.x.readTo.Store(uint64(e.ID))
			return e, nil
		}
		err := s.err
		s.mu.Unlock()
		if err != nil {
			s.stop()
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
func (s *Stream) Cursor() (c Cursor, resumable bool) { return s.x.Cursor() }

// Close cancels the stream unless it has ended, and gives up what waits to be read.
// The reader keeps the event that it has.
func (s *Stream) Close() {
	s.stop()
	s.x.Cancel(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
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
	at := s.first & uint(len(s.ring)-1)
	e := s.ring[at]
	s.ring[at] = waitingEvent{}
	s.first++
	s.n--
	return e
}

// giveUp says that an event has been consumed.
func (s *Stream) giveUp(e waitingEvent) {
	n := len(e.Foreign)
	s.held -= n
	s.x.b.received.Give(n)
	s.x.Consumed(n)
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
	if !s.x.b.received.Take(n) {
		return false
	}
	b := buf.Get(n + len(e.MediaType))
	b.B = append(append(b.B, e.Foreign...), e.MediaType...)
	own := waitingEvent{*e, b}
	own.Foreign = b.B[:n:n]
	if own.MediaType = nil; len(e.MediaType) > 0 {
		own.MediaType = b.B[n:]
	}
	if s.n == len(s.ring) {
		ring := make([]waitingEvent, max(8, 2*s.n))
		for i := range s.n {
			ring[i] = s.ring[(s.first+uint(i))&uint(len(s.ring)-1)]
		}
		s.ring, s.first = ring, 0
	}
	s.ring[(s.first+uint(s.n))&uint(len(s.ring)-1)] = own
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
	// Where credit is in force it has been held to already.
	window, _ := s.x.a.StreamWindow()
	over := !s.x.limited && s.held > 0 && s.held+len(e.Foreign) > max(int(window), control.FloorCredit)
	if over || !s.push(e) {
		s.cut = true
		s.x.b.stats.streamsUnread.Add(1)
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
	case reply.Err != nil:
		s.err = reply.Err
	case reply.Kind == bridge.KindError:
		s.err = &ForeignError{reply.Content, bytes.Clone(reply.Foreign)}
	default:
		s.err = io.EOF
		e := Event{Kind: reply.Kind, Content: reply.Content, MediaType: reply.MediaType, Foreign: reply.Foreign}
		if reply.Kind == bridge.KindEnd {
			e.ID = s.x.last
		}
		if (reply.Kind == bridge.KindResponse || len(e.Foreign) > 0) && !s.push(&e) {
			s.x.b.stats.streamsUnread.Add(1)
			s.err = ErrSlowConsumer
		}
	}
	s.signal()
}
