package carriage

import (
	"context"
	"iter"

	"github.com/trestle-npamp/trestle/engine/assoc"
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

// StreamCall says more about a Call that is answered by a stream. nil is the zero
// value.
type StreamCall struct {
	// Resume continues a stream after a cursor (CC-STREAM 6.2). The Call's Natural
	// and Hop have no meaning then; its message may be the original one or empty.
	Resume *Cursor
	// Manual says that consuming is not receiving: credit is given back when
	// Consumed says so, and not when HandleEvent returns.
	Manual bool
}

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
type Consumer struct{}

// StartStream sends c as a request that may be answered by a stream, and returns
// at once. h is told everything; if StartStream returns an error it is told
// nothing. Any goroutine may call it. The errors are Start's.
func (b *Bridge) StartStream(a *assoc.Association, c *Call, o *StreamCall, h StreamHandler) (*Consumer, error) {
	return nil, ErrProtocol
}

// Consumed gives credit for so many foreign octets back to the producer, where
// StreamCall.Manual asks for that.
func (x *Consumer) Consumed(octets int) {}

// Cancel stops the stream: HandleReply is told err, or context.Canceled if that is
// nil, unless the stream has ended before, and the producer is told to stop.
func (x *Consumer) Cancel(err error) {}

// Cursor is how far the stream has been received, and whether the producer says
// that it can be resumed from there.
func (x *Consumer) Cursor() (c Cursor, resumable bool) { return Cursor{}, false }

// Stream is a stream as an iterator. One goroutine at a time may read it; any may
// close it.
type Stream struct{}

// ForeignError is an error of the foreign protocol that ended a stream.
type ForeignError struct {
	Content bridge.ContentType
	// Foreign is the error object, octet for octet.
	Foreign []byte
}

// Error says that there is one, not what it says.
func (e *ForeignError) Error() string { return "carriage: the foreign protocol answered with an error" }

// Stream sends c as a request that may be answered by a stream, and returns it as
// an iterator. When ctx ends the stream is cancelled. The errors are Start's.
func (b *Bridge) Stream(ctx context.Context, a *assoc.Association, c *Call, o *StreamCall) (*Stream, error) {
	return nil, ErrProtocol
}

// Next waits for the next event, whose octets are borrowed until the next call.
// io.EOF says that the stream is complete; any other error that it is not:
// *ForeignError, *bridge.Error, ErrSlowConsumer, the context's, or what a Reply's
// Err may be.
func (s *Stream) Next() (Event, error) { return Event{}, ErrProtocol }

// Events goes through the rest of the stream. An error other than io.EOF is its
// last value. Leaving the loop cancels the stream.
func (s *Stream) Events() iter.Seq2[Event, error] { return nil }

// Cursor is how far the stream has been read, and whether the producer says that it
// can be resumed from there.
func (s *Stream) Cursor() (c Cursor, resumable bool) { return Cursor{}, false }

// Close cancels the stream unless it has ended.
func (s *Stream) Close() {}
