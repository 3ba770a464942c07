// Package relay joins agents and those who call them: agents dial it and
// announce themselves, callers name the agent they want, and messages cross octet for
// octet in between: A2A's, and with Config.AGNTCY those of ACP and SLIM.
//
//	HTTP caller --- edge ---+                    +--- Agent --- upstream --- HTTP agent
//	                        |--- Relay (routes) -|
//	N-PAMP caller ----------+                    +--- any N-PAMP agent
//
// Relay is the middle with the HTTP way in, Agent the far end with the HTTP way
// out. Both speak N-PAMP to each other through an engine of their own. Package
// edge is the HTTP handler and package upstream the HTTP client; both know
// nothing of N-PAMP but the errors it can tell.
//
// A caller's correlation ids and an agent's never meet: each hop has its own
// (D10). What can't be delivered is answered with a transport error that says so,
// also when the agent dies with requests under way. Nothing is sent twice.
//
// Streams go event by event, at their caller's pace: what it has not taken is not
// read from the agent (D6). A caller that leaves ends its stream, and never the
// agent's task. A stream that does not end as A2A says (D19) is a transport error on
// the link, and over HTTP a body that is cut.
package relay

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/mapping/a2a"
	"github.com/trestle-npamp/trestle/mapping/agntcy"
	"github.com/trestle-npamp/trestle/relay/edge"
	"github.com/trestle-npamp/trestle/relay/upstream"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// Where a relay listens unless told otherwise.
const (
	DefaultListen = "127.0.0.1:7447"
	DefaultHTTP   = "127.0.0.1:7480"
)

// Config configures a Relay. The zero value is safe: N-PAMP on DefaultListen for
// peers on this machine, no HTTP.
type Config struct {
	// Listen is the N-PAMP address, host:port; "" means DefaultListen, port 0
	// picks one.
	Listen string
	// Engine configures the N-PAMP side: identity, accepted peers, limits. Its
	// Channels, Protocols and Logger are set by the relay.
	Engine engine.Config

	// HTTP is the address of the HTTP edge, host:port; "" serves none by itself
	// (Handler can be mounted elsewhere), port 0 picks one. Beyond loopback the
	// edge needs Edge.Authenticate, or AllowOpenHTTP.
	HTTP string
	// AllowOpenHTTP permits an HTTP edge that anybody on the network may use.
	AllowOpenHTTP bool
	// Edge configures the HTTP edge. Its Forwarder, Mapping and Logger are set by the
	// relay, and its Host too when the edge is on a loopback address, has no
	// Authenticate and Host is nil.
	Edge edge.Config
	// MaxHTTPConns bounds the HTTP connections at one time (4,096); further ones
	// wait in the kernel's queue.
	MaxHTTPConns int

	// AGNTCY, if set, is carried besides A2A, under the protocol id it was made with.
	// ACP's operations are then served over HTTP too, below the agents' paths (see
	// package edge).
	AGNTCY *agntcy.Mapping
	// Tags are the numbers for features that have none assigned (D7), nil for none.
	// Callers and agents must have the same ones. With a DocumentBinding cards cross as
	// document sets, on the Discovery channel too (D24, D25).
	Tags *bridge.Tags

	// Policy decides on every request before it is forwarded; an error is told to
	// the caller as SafetyPolicy, with the error's text. nil forwards all.
	Policy func(*Access) error
	// Mapping is A2A as this deployment has it, for callers over N-PAMP and over HTTP
	// alike: a stricter effect counts for the Policy and as the label of what an HTTP
	// caller sends, and what is not carried is refused. nil is A2A as it stands.
	Mapping *a2a.Mapping
	// Visible says whether a peer that asks by Discovery is told of an agent; nil
	// tells all of all. A peer is always told of its own.
	Visible func(peer identity.PublicKey, agent string) bool

	// MaxAgents bounds the agents at one time (16,384), MaxNames the names one
	// association may announce (64), MaxInFlight the requests under way at one
	// association in each direction (4,096).
	MaxAgents   int
	MaxNames    int
	MaxInFlight int
	// ReplyTimeout bounds how long a request of an N-PAMP caller waits for its
	// agent (10 min); an HTTP caller's is bounded by Edge.Timeout.
	ReplyTimeout time.Duration

	// MaxWaiting bounds the octets of all streams together that wait at the relay for
	// their callers, those over HTTP and those on the link each (256 MiB), documents
	// included; one for which there is no room is cut.
	MaxWaiting int64

	// StreamDrain is how long streams may go on after a shutdown has begun (2 s):
	// some never end by themselves. Then they are cut, and their callers told.
	StreamDrain time.Duration

	// Demo serves an A2A agent named "echo" that answers with the text it was
	// sent, over a real association to this relay.
	Demo bool

	// Logger gets what an operator should know; nil discards it.
	Logger *slog.Logger
}

// Access is one request that a Policy decides on.
type Access struct {
	// Agent is the agent the request is for.
	Agent string
	// Protocol is the foreign protocol.
	Protocol bridge.ProtocolID
	// Method is the operation's name; of ACP's its verb, path and query.
	Method string
	// Effect is what the request may do, at the least (D15).
	Effect bridge.Effect
	// Peer is the caller's key; it is zero for a caller over HTTP, whose name
	// Principal is.
	Peer      identity.PublicKey
	Principal string
	// Notification says that no answer is expected, so that the caller won't learn
	// of a refusal.
	Notification bool
}

// Errors.
var (
	// ErrOpenHTTP: an HTTP edge beyond loopback without authentication.
	ErrOpenHTTP = errors.New("relay: an HTTP listener beyond loopback needs authentication")
	// ErrName: not a name an agent can have.
	ErrName = errors.New("relay: agent names are 1 to 64 of a-z, 0-9, '.', '_' and '-'")
	// ErrNameTaken: an agent with another key has the name.
	ErrNameTaken = errors.New("relay: the agent name is held by another key")
	// ErrNotTaken: the relay does not have our record, which is so when another
	// key holds the name.
	ErrNotTaken = errors.New("relay: our agent's record does not stand at the relay")
	// ErrStarted: Start or Run was called a second time.
	ErrStarted = errors.New("relay: already started")
	// ErrStopped: the relay or the agent was shut down.
	ErrStopped = errors.New("relay: shut down")
)

// Backend is what an Agent serves requests with. Its methods are called from many
// goroutines, at most AgentConfig.MaxInFlight at one time; errors become
// NotDelivered with their text, unless they are a *bridge.Error. They must return
// soon after their context has ended: Shutdown waits 5 s for that and then leaves
// them behind.
//
// *upstream.Client is one, and Echo returns another.
type Backend interface {
	// Call delivers a request and returns the agent's answer.
	Call(ctx context.Context, r *upstream.Request) (*upstream.Reply, error)
	// Stream delivers a request that is answered by a stream, and calls event with
	// each of its events, JSON-RPC responses that are borrowed until event returns.
	// It returns nil, nil when the agent ended the stream, or when event returned
	// upstream.ErrEnough, any other error of event as it is, and a Reply for what
	// the agent answered in place of a stream.
	Stream(ctx context.Context, r *upstream.Request, event func(octets []byte) error) (*upstream.Reply, error)
	// Notify delivers a notification.
	Notify(ctx context.Context, r *upstream.Request) error
	// Card returns the public card.
	Card(ctx context.Context) (*upstream.Reply, error)
	// ExtendedCard returns the extended card by the operation of the given name.
	ExtendedCard(ctx context.Context, operation string) (*upstream.Reply, error)
}

// Operations is what an Agent serves AGNTCY's operations with, as a Backend is for
// A2A. *upstream.Client is one.
type Operations interface {
	// Do performs an operation and returns the agent's answer; nil and nil say that
	// o.Stream took it.
	Do(ctx context.Context, o *upstream.Operation) (*upstream.Answer, error)
}

// AgentConfig configures an Agent. Name, Relay and Backend are required; with
// AGNTCY, Operations takes Backend's place.
type AgentConfig struct {
	// Name is the name announced.
	Name string
	// Relay is the relay's N-PAMP address, host:port.
	Relay string
	// Peer accepts or refuses the relay by its key, usually identity.Pin; nil means
	// Engine.Peers.
	Peer identity.Verifier
	// Engine configures the N-PAMP side. Its Channels, Protocols and Logger are
	// set by the agent; Loops defaults to 1.
	Engine engine.Config
	// Backend serves the requests.
	Backend Backend
	// AGNTCY, if set, is served instead of A2A, under the protocol id it was made
	// with, by Operations: ACP's as they are, a message or call of SLIM as a POST to
	// its name.
	AGNTCY     *agntcy.Mapping
	Operations Operations
	// Tags are the numbers for features that have none assigned (D7), nil for none.
	// The relay must have the same ones. With an OpaqueContentType an answer may have
	// any media type, and a stream of events crosses as it is; with a DocumentBinding
	// cards cross as document sets, on the Discovery channel too (D24, D25).
	Tags *bridge.Tags

	// MaxInFlight bounds the requests under way at one time (4,096), over all
	// associations the agent has had; further ones are not delivered.
	MaxInFlight int
	// MaxRetained bounds the octets of requests that are held until they are answered
	// (256 MiB, as much as the edge holds on their way here); further ones are not
	// delivered.
	MaxRetained int
	// Timeout bounds one request (10 min), DialTimeout connecting and announcing
	// (15 s). Streams have no bound but StreamDrain: how long they may go on after a
	// shutdown has begun (2 s).
	Timeout     time.Duration
	DialTimeout time.Duration
	StreamDrain time.Duration
	// BackoffMin and BackoffMax bound the wait before a lost relay is dialled
	// again (100 ms, 15 s): it doubles from one to the other and is cut short at
	// random.
	BackoffMin, BackoffMax time.Duration

	// OnReady is called each time the relay has been seen to hold our record, on a
	// goroutine of the agent.
	OnReady func(Standing)
	// Logger gets what an operator should know; nil discards it.
	Logger *slog.Logger
}

// Standing is an agent's place at a relay.
type Standing struct {
	Agent string
	// Peer is the relay's key and Addr its address.
	Peer identity.PublicKey
	Addr net.Addr
}
