package carriage

import (
	"context"
	"errors"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// EventID numbers the events of one stream, from 1 (CC-STREAM 5.1).
type EventID = bridge.EventID

// DefaultStreamBuffer is how many octets of a stream's events wait on this side
// before its producer has to.
const DefaultStreamBuffer = 256 << 10

// How streams end, besides the errors that requests have.
var (
	// ErrCancelled: the consumer wants no more of the stream.
	ErrCancelled = errors.New("carriage: the consumer cancelled the stream")
	// ErrStreamEnded: the stream's terminal frame was given already.
	ErrStreamEnded = errors.New("carriage: stream already ended")
	// ErrSlowConsumer: a consumer reads more slowly than it may, and its stream
	// was cut.
	ErrSlowConsumer = errors.New("carriage: the consumer reads too slowly")
	// ErrNotStream: the request's method has no stream for an answer.
	ErrNotStream = errors.New("carriage: the method is not answered by a stream")
	// ErrNotSubscribed: a stream's events come from a Topic.
	ErrNotSubscribed = errors.New("carriage: the stream is a topic's")
	// ErrAbandoned: the handler returned, or the producer was lost, without an end.
	ErrAbandoned = errors.New("carriage: stream left without an end")
)

// StreamOptions are for one stream.
type StreamOptions struct {
	// Resumable keeps what was sent for a while, so that the consumer can continue
	// after its association was lost (CC-STREAM 6.1). While it is away the producer
	// goes on; what it sends is kept, or lost oldest first, and then the stream can't
	// be resumed from before.
	Resumable bool
	// Buffer is how many octets may wait before Send does; 0 is
	// DefaultStreamBuffer. A single event may wait whatever its size.
	Buffer int
	// Sent, if set, is told on the loop that events with so many foreign octets in
	// all have left the producer's buffer. It must not block.
	Sent func(octets int)
	// Over, if set, is told once that the stream is over, and why: nil when its
	// terminal frame has left the producer's buffer, else what Err says. It is
	// called on a loop or on the goroutine that found out, and must not block.
	Over func(err error)
}

// Producer sends the events of one stream. Any goroutine may use it; the events of
// one goroutine keep their order.
//
// A stream has exactly one terminal frame: the producer's own (End, EndEmpty, Fail,
// Refuse, Respond), or the acknowledgement of the consumer's cancel, or NotDelivered
// when the handler panicked or left it, the producer was lost, the association
// drains or the consumer reads too slowly.
type Producer struct{}

// Stream answers the request with a stream: its events are sent by the Producer,
// and Respond, Fail and Refuse of the request return ErrAnswered from now on. No
// frame is sent yet.
//
// Like the request, the stream must be retained (Request.Retain before or after)
// to live on when ServeRequest returns; one that is not ends as NotDelivered then.
//
// Errors: ErrAnswered, ErrNotStream, assoc.ErrClosed.
func (r *Request) Stream(o StreamOptions) (*Producer, error) { return nil, ErrNotStream }

// Send sends foreign as the stream's next event, octet for octet. It waits while
// more octets wait than may, because the consumer gives no credit or its
// association takes nothing; ctx bounds that. foreign may be reused afterwards. Any
// goroutine but a loop may call it.
//
// nil means that the event is on its way, not that it was received. Errors: those
// of Err once the stream is over; assoc.ErrTooLarge and bridge.ErrAmbiguous for an
// event that can't be carried, after which the stream goes on; ctx's.
func (p *Producer) Send(ctx context.Context, foreign []byte) error { return ErrStreamEnded }

// TrySend is Send without waiting: it returns assoc.ErrWouldBlock instead. Any
// goroutine may call it.
func (p *Producer) TrySend(foreign []byte) error { return ErrStreamEnded }

// End ends the stream with a terminal event: it is sent as STREAM_END. It does not
// wait, but follows what was sent before. The errors are Send's; after
// assoc.ErrTooLarge or bridge.ErrAmbiguous the stream still has to be ended.
func (p *Producer) End(foreign []byte) error { return ErrStreamEnded }

// EndEmpty ends the stream with a STREAM_END that bears no event.
func (p *Producer) EndEmpty() error { return ErrStreamEnded }

// Fail ends the stream with an ERROR that carries the foreign protocol's own error.
func (p *Producer) Fail(foreign []byte) error { return ErrStreamEnded }

// Refuse ends the stream with a transport error.
func (p *Producer) Refuse(code bridge.Code, text string) error { return ErrStreamEnded }

// Respond answers the request with a RESPONSE instead of a stream. It returns
// ErrStreamEnded once there was an event.
func (p *Producer) Respond(foreign []byte) error { return ErrStreamEnded }

// Done is closed when the stream is over: ended, cancelled by its consumer, cut, or
// lost with its association.
func (p *Producer) Done() <-chan struct{} { return nil }

// Err says why the stream is over: ErrStreamEnded after its own end, ErrCancelled,
// ErrSlowConsumer, ErrDraining, ErrAbandoned, or what matches assoc.ErrClosed; nil
// before.
func (p *Producer) Err() error { return nil }

// Context ends with the stream.
func (p *Producer) Context() context.Context { return nil }

// LastID is the id of the last event given to Send, 0 before the first.
func (p *Producer) LastID() EventID { return 0 }

// Buffered is how many octets of events wait to be sent.
func (p *Producer) Buffered() int { return 0 }

// Association is where the stream goes, or went last.
func (p *Producer) Association() *assoc.Association { return nil }
