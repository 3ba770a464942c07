// Package carriage serves the Bridge channel: foreign requests, replies and
// notifications go out and come in as they are, each exchange ends exactly once,
// and what a peer does wrong has a stated consequence (BRIDGE 1 to 8).
//
// A Bridge is a channel handler that all associations of an engine share. It
// knows foreign protocols by their protocol_id; each belongs to a carriage class,
// which says what is checked about its messages: those of the class JSONRPC are
// read as far as their id and method (see package jsonrpc), those of the class
// OPAQUE not at all.
//
// Both sides of an association may ask. Whoever asks originates an exchange
// (Start, Call), whoever is asked responds to it (Handler, Request).
//
//	originator                                            responder
//	Start -> REQUEST(corr) ------------------> checks, Authorize, Handler
//	                                             Respond, Fail or Refuse
//	Completion <------- RESPONSE or ERROR(corr) <------------'
//
// An answer may be a stream (StartStream, Stream, Request.Stream), which goes on over
// the loss of its association where both sides want that (StreamOptions.Resumable,
// Cursor, Redial), and a request may bring a stream too (StreamCall.Up,
// Request.Upstream).
//
// What happens on a fault is the same for all:
//
//   - A REQUEST that can't be served is answered with a transport error on its
//     correlation id; one whose id is live from the same peer is dropped, since
//     an answer would end the first one.
//   - A reply that breaks a rule ends its exchange with EnvelopeMalformed (or
//     BindingMalformed) for whoever waits, and is answered with that error unless
//     the peer has an exchange of its own under the same correlation id. On an
//     exchange that is unary a STREAM_DATA or STREAM_END breaks a rule.
//   - A reply to nothing, one that comes after its exchange was abandoned, and a
//     NOTIFY that can't be delivered are dropped.
//
// Stats counts each of these.
package carriage

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/trestle-npamp/trestle/carriage/jsonrpc"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/defaults"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// Class is a carriage class, numbered as in discovery records (D7).
type Class uint8

// The classes that are carried here.
const (
	ClassJSONRPC Class = 1 // messages are JSON-RPC 2.0 objects (CC-JSONRPC)
	ClassOpaque  Class = 6 // messages are octets (CC-OPAQUE)
)

// The defaults of a Config (D28).
const (
	// DefaultMaxInFlight is how many exchanges may be open at a time on one
	// association, in each direction.
	DefaultMaxInFlight = 4096
	// DefaultReplyTimeout is how long a handler may keep a request.
	DefaultReplyTimeout = 10 * time.Minute
	// DefaultStallTimeout is how long a message waits for outbound room.
	DefaultStallTimeout = 10 * time.Second
	// DefaultMaxHeld is how many octets wait for room on one association, for
	// requests and for replies each.
	DefaultMaxHeld = 8 << 20
	// DefaultMaxRetained is how many octets are held of one association's requests
	// while they wait for their answers.
	DefaultMaxRetained = 64 << 20
	// DefaultStreamDrain is how long streams may go on during a drain.
	DefaultStreamDrain = 2 * time.Second
	// DefaultMaxReceived is how many octets wait for the readers of streams.
	DefaultMaxReceived = 256 << 20
	// DefaultWorkers is how many Async handlers run at a time.
	DefaultWorkers = 256
	// DefaultWorkQueue is how many messages may wait for a worker.
	DefaultWorkQueue = 64 << 10
)

// Protocol is a foreign protocol that a Bridge carries.
type Protocol struct {
	ID    bridge.ProtocolID
	Class Class
	// Content is the content type of requests that name none; 0 is JSON.
	Content bridge.ContentType

	// Effect tells what the mapping knows of a method's effect; nil knows
	// nothing. It is called on the loop and elsewhere.
	Effect func(method []byte) (effect bridge.Effect, known bool)
	// Document says that a method, when it comes with no foreign message, asks
	// for a document: neither the request nor its reply is then a JSON-RPC object
	// (D24). nil says no.
	Document func(method []byte) bool
	// Stream says whether a method may be answered by a stream. nil says that any
	// may.
	Stream func(method []byte) bool
	// Duplex says whether requests with a method bring a stream of their own, which is
	// read while they are answered (StreamCall.Up, Request.Upstream). nil says that
	// none do.
	Duplex func(method []byte) bool
	// Supports says whether a method is carried; a request for one that is not
	// is refused with MethodUnsupported. nil carries all.
	Supports func(method []byte) bool

	// Handler serves what peers send. Without one their requests are
	// NotDelivered, and we can only originate.
	Handler Handler
	// Async runs the handler on a bounded pool of goroutines, so that it may
	// block; otherwise it runs on the loop and must not.
	Async bool
}

// Config is what a Bridge is made from. Zero limits take their defaults.
type Config struct {
	Protocols []Protocol
	// Channel is the channel that is served; 0 is wire.ChannelBridge. On
	// wire.ChannelDiscovery, where discovery.Config.Documents attaches it, documents
	// are all that is carried: a request for anything else is refused with
	// MethodUnsupported (D25).
	Channel wire.Channel
	// Authorize decides, on the loop and before any handler, whether a request or
	// a notification is served. An error refuses it: a request with SafetyPolicy
	// and the error's text, a notification silently. It must not keep m. nil
	// permits all.
	Authorize func(m *Inbound) error

	MaxInFlight int
	// ReplyTimeout bounds how long a retained request stays unanswered; then it
	// is NotDelivered. Negative is no bound.
	ReplyTimeout time.Duration
	StallTimeout time.Duration
	MaxHeld      int
	// MaxRetained is how many octets are held of the requests of one association:
	// of those that a handler retained, until they are answered, and of requests and
	// notifications that an Async handler is to serve, until it has; 0 is
	// DefaultMaxRetained. What counts is what was copied of a message, which with
	// RetainEnvelope is little; buffers may have up to four times as much. A request
	// for which there is no room is NotDelivered before a handler sees it, a
	// notification dropped. A single one is taken whatever its size.
	MaxRetained int
	Workers     int
	WorkQueue   int
	// Retain bounds what is held of streams that may be resumed.
	Retain RetainLimits
	// StreamDrain is how long streams may go on once their association drains; 0 is
	// DefaultStreamDrain.
	StreamDrain time.Duration
	// MaxReceived is how many octets of received streams wait for those who read
	// them by iterators, on all associations together; a stream for which there is
	// no room is cut.
	MaxReceived int64
	// MaxDepth bounds the nesting of JSON messages; see jsonrpc.DefaultMaxDepth.
	MaxDepth int

	// SetRefused, if set, is told on the loop that a peer reported a fault in a
	// document set that we sent or send: one of the codes of CC-DOC 8. corr and text
	// are borrowed; text is meant as UTF-8 and not checked.
	SetRefused func(a *assoc.Association, corr []byte, code bridge.Code, text []byte)

	// Tags are the numbers for features that have none assigned, nil for none.
	Tags   *bridge.Tags
	Logger *slog.Logger
}

// ErrConfig is the class of Validate's errors.
var ErrConfig = errors.New("carriage: invalid configuration")

// Validate says what New would panic about.
func (c *Config) Validate() error {
	var seen [256]bool
	for i := range c.Protocols {
		p := &c.Protocols[i]
		switch {
		case p.ID == 0:
			return fmt.Errorf("%w: protocol id 0", ErrConfig)
		case seen[p.ID]:
			return fmt.Errorf("%w: %v twice", ErrConfig, p.ID)
		case p.Class != ClassJSONRPC && p.Class != ClassOpaque:
			return fmt.Errorf("%w: %v has no carriage class", ErrConfig, p.ID)
		case p.Class == ClassJSONRPC && p.Content != 0 && p.Content != bridge.ContentJSON:
			return fmt.Errorf("%w: %v is of class JSONRPC and not JSON", ErrConfig, p.ID)
		}
		seen[p.ID] = true
	}
	if c.Channel != 0 && c.Channel != wire.ChannelBridge && c.Channel != wire.ChannelDiscovery {
		return fmt.Errorf("%w: %v does not carry bridge messages", ErrConfig, c.Channel)
	}
	if err := c.Tags.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return nil
}

func (c *Config) fill() {
	if c.Channel == 0 {
		c.Channel = wire.ChannelBridge
	}
	defaults.Fill(&c.MaxInFlight, DefaultMaxInFlight)
	defaults.Fill(&c.MaxHeld, DefaultMaxHeld)
	defaults.Fill(&c.MaxRetained, DefaultMaxRetained)
	defaults.Fill(&c.Workers, DefaultWorkers)
	defaults.Fill(&c.WorkQueue, DefaultWorkQueue)
	defaults.Fill(&c.MaxDepth, jsonrpc.DefaultMaxDepth)
	c.Retain.fill()
	if c.StreamDrain <= 0 {
		c.StreamDrain = DefaultStreamDrain
	}
	if c.MaxReceived <= 0 {
		c.MaxReceived = DefaultMaxReceived
	}
	if c.ReplyTimeout == 0 {
		c.ReplyTimeout = DefaultReplyTimeout
	}
	if c.StallTimeout <= 0 {
		c.StallTimeout = DefaultStallTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// Bridge serves the Bridge channel of any number of associations. It is safe for
// use by many goroutines.
type Bridge struct {
	cfg       Config
	protocols [256]*Protocol
	ids       []uint8
	workers   workers
	retained  retained
	received  *buf.Budget // octets that wait for the readers of streams
	stats     counters
}

var (
	_ assoc.ChannelHandler = (*Bridge)(nil)
	_ assoc.StreamConn     = (*conn)(nil)
)

// New makes a Bridge. It panics on a configuration that Validate refuses: the
// protocols that a program carries are written down in it, so that such a one is a
// mistake in the program, met the first time it runs, and no caller has an error to
// handle that can't happen. Whoever takes protocols from elsewhere asks Validate
// first.
func New(cfg Config) *Bridge {
	if err := cfg.Validate(); err != nil {
		panic(err)
	}
	cfg.fill()
	b := &Bridge{cfg: cfg}
	b.cfg.Protocols = append([]Protocol(nil), cfg.Protocols...)
	for i := range b.cfg.Protocols {
		p := &b.cfg.Protocols[i]
		if p.Content == 0 {
			p.Content = bridge.ContentJSON
		}
		b.protocols[p.ID] = p
		b.ids = append(b.ids, uint8(p.ID))
	}
	b.workers.limit, b.workers.maxQueue = cfg.Workers, cfg.WorkQueue
	b.retained.init(cfg.Retain, &b.stats)
	b.received = buf.NewBudget(cfg.MaxReceived)
	return b
}

// Channel is the channel that is served, the Bridge channel unless Config says
// otherwise.
func (b *Bridge) Channel() wire.Channel { return b.cfg.Channel }

// Tags returns a copy of the configured numbers (D7).
func (b *Bridge) Tags() bridge.Tags {
	if b.cfg.Tags == nil {
		return bridge.Tags{}
	}
	return *b.cfg.Tags
}

// Protocols returns the protocol ids as HELLO lists them; the engine asks for
// them unless it is configured with others. A peer sends no requests under an id
// that our HELLO does not name.
func (b *Bridge) Protocols() []uint8 { return append([]uint8(nil), b.ids...) }

// Attach serves the channel of one more association.
func (b *Bridge) Attach(a *assoc.Association) assoc.ChannelConn { return newConn(b, a) }

// Handler responds to what peers send under one protocol. Its methods are called
// on the loop of the association, or on the pool if the protocol is Async. Many
// may run at the same time.
type Handler interface {
	// ServeRequest answers r, now or, after r.Retain, later. A request that it
	// leaves neither answered nor retained is NotDelivered; so is one for which
	// it panics.
	ServeRequest(r *Request)
	// ServeNotify takes a notification, which has no answer. n and what it refers
	// to are borrowed until the call returns.
	ServeNotify(n *Notify)
}

// HandlerFunc is a Handler of requests alone: it ignores notifications.
type HandlerFunc func(r *Request)

// ServeRequest calls f.
func (f HandlerFunc) ServeRequest(r *Request) { f(r) }

// ServeNotify does nothing.
func (f HandlerFunc) ServeNotify(*Notify) {}

// What the functions of this package return. Transport errors are *bridge.Error.
var (
	// ErrNotAttached: the association's Bridge channel is not served by this
	// Bridge.
	ErrNotAttached = errors.New("carriage: association does not carry this bridge")
	// ErrProtocol: the protocol is not one of this Bridge's.
	ErrProtocol = errors.New("carriage: protocol not carried")
	// ErrMalformed: the message is not what its carriage class carries. It wraps
	// the reason.
	ErrMalformed = errors.New("carriage: malformed message")
	// ErrDuplicateID: a request with this id is in flight (CC-JSONRPC 8.2, D10).
	ErrDuplicateID = errors.New("carriage: request id in flight")
	// ErrInFlight: the association has as many exchanges open as it may.
	ErrInFlight = errors.New("carriage: too many exchanges in flight")
	// ErrDraining: the association is shutting down and starts nothing new.
	ErrDraining = errors.New("carriage: association is draining")
	// ErrStalled: the message found no outbound room before the stall deadline.
	ErrStalled = errors.New("carriage: no outbound room before the stall deadline")
	// ErrAnswered: the exchange is over: answered before, timed out, or ended
	// with its association.
	ErrAnswered = errors.New("carriage: request already answered")
)
