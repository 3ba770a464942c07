package bench

import (
	"context"
	"time"
)

// Message names what a request carries.
type Message uint8

// The messages of a load.
const (
	Plain Message = iota // Options.Size octets each way
	Large                // Options.LargeSize octets each way
	messages
)

// Target is a server under load, as one kind of client reaches it.
type Target interface {
	// Dial makes one more connection. When it returns, the connection takes
	// requests.
	Dial(ctx context.Context) (Conn, error)
	// Close ends the client and what it has dialled.
	Close() error
}

// Conn is one connection of a Target. Any goroutine may use it.
type Conn interface {
	// Call sends a request and waits until its reply has been found to be the
	// right one.
	Call(ctx context.Context, m Message) error
	// Close ends the connection and waits until it has ended.
	Close() error
}

// CallbackConn is a Conn whose client takes functions to be called: requests can
// be started where replies arrive, without a goroutine for each.
type CallbackConn interface {
	Conn
	// Place prepares for one request at a time. start begins it and never waits;
	// unless it returns an error, done is told once how the request ended, later
	// and not from within start. done may call start.
	Place(m Message, done func(error)) (start func() error)
}

// StreamConn is a Conn that can be sent streams of events.
type StreamConn interface {
	Conn
	// Stream asks for a stream of Options.Events events of Options.Size octets.
	// each is given each event, one at a time and in order, before it returns; done
	// is told once that the stream is complete, or why it is not, and not from
	// within Stream.
	Stream(ctx context.Context, each func(event []byte), done func(error)) error
}

// TopicConn is a Conn that can take part in a fan-out.
type TopicConn interface {
	Conn
	// Subscribe has each given every event that is published from its return on,
	// one at a time and in order, until the connection is closed.
	Subscribe(ctx context.Context, each func(event []byte)) error
	// Publish has an event sent to all subscribers and waits until the server has
	// taken it.
	Publish(ctx context.Context, event []byte) error
}

// NotifyConn is a Conn that can send what has no reply.
type NotifyConn interface {
	Conn
	// Notify sends Options.Size octets. It waits for room where there is none.
	Notify(ctx context.Context) error
}

// Server is the process of a server under load.
type Server interface {
	// Usage asks what it has used so far.
	Usage() (Usage, error)
	// Settle has it collect its garbage and give unused memory back, and then asks
	// what it has used.
	Settle() (Usage, error)
}

// Stamped puts the time into the first octets of an event or message, for Stamp.
func Stamped(event []byte, at time.Time) {
	if len(event) >= stampLen {
		order.PutUint64(event, uint64(at.UnixNano()))
	}
}

// Stamp reads the time that Stamped put into an event; there is none in one that
// begins with zeros or is too short.
func Stamp(event []byte) (at time.Time, ok bool) {
	if len(event) < stampLen {
		return at, false
	}
	n := order.Uint64(event)
	return time.Unix(0, int64(n)), n != 0
}
