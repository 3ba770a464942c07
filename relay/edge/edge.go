// Package edge is the HTTP way in to the link: a caller POSTs one A2A JSON-RPC
// message to an agent's path and gets the agent's answer, octet for octet, or a
// definite error. The answer to a streaming operation is a stream of Server-Sent
// Events.
//
//	POST /agents/NAME                              one JSON-RPC request or notification
//	GET  /agents/NAME/.well-known/agent-card.json  the agent's public card
//	GET  /agents/NAME/.well-known/agent.json       the same, under its name from before A2A 0.3.0
//	GET  /agents/NAME/extendedAgentCard            the extended card, A2A 1.0
//	GET  /agents/NAME/v1/card                      the extended card, A2A 0.3.0
//	any  /agents/NAME/PATH                         an operation of AGNTCY's ACP, with Config.AGNTCY
//	GET  /healthz                                  200 while requests are taken, else 503
//
// What the agent said crosses with status 200, errors included, and a
// notification is answered 202 without a body. Everything else never reached the
// agent, or nobody knows; it is an application/problem+json object (RFC 9457)
// with the code and name of the transport error, under the status that FaultOf
// tells (D23). A stream that ends before its agent has ended it is an HTTP body
// that is cut, and under HTTP/1.0, where only the connection's end says so, one that is
// reset: no caller can take it for a complete one.
//
// The answer to an ACP operation comes with the agent's own status, Content-Type and
// body, and its streams event by event.
//
// No header of a caller crosses the link, and no credential ever does (D21).
package edge

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/trestle-npamp/trestle/carriage/jsonrpc"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/defaults"
	"github.com/trestle-npamp/trestle/mapping/a2a"
	"github.com/trestle-npamp/trestle/mapping/agntcy"
	"github.com/trestle-npamp/trestle/relay/internal/body"
	"github.com/trestle-npamp/trestle/relay/internal/gate"
	"github.com/trestle-npamp/trestle/relay/internal/media"
	"github.com/trestle-npamp/trestle/wire/bridge"
	"github.com/trestle-npamp/trestle/wire/control"
)

// Message is one message of an HTTP caller. Its slices are borrowed until the
// Forwarder returns or calls Release.
type Message struct {
	// Agent is the name of the agent it is for, a valid one.
	Agent string
	// Principal is who sent it, as Config.Authenticate found; "" for nobody in
	// particular.
	Principal string
	// Protocol is A2A, or Config.AGNTCY's.
	Protocol bridge.ProtocolID
	// Method is the operation's name, at most 255 octets of UTF-8.
	Method []byte
	// ID is the JSON-RPC id as written. It is nil for a notification and for a
	// document.
	ID []byte
	// Document says that a capability document is asked for by Method alone; Body
	// is then empty (D24).
	Document bool
	// Effect is what the mapping knows of the operation; destructive for one that
	// it does not know (D15).
	Effect bridge.Effect
	// Body is the JSON-RPC object, octet for octet, or what an operation of AGNTCY's
	// was sent with.
	Body []byte
	// MediaType is the Content-Type field of an operation's body; nil for one without
	// a body, and elsewhere.
	MediaType []byte
	// Timeout, of a request for Stream, bounds the time until its answer begins; 0
	// does not.
	Timeout time.Duration

	release func()
}

// Release says that Method, ID and Body are not needed any more: a Forwarder that
// waits for an answer calls it before, so that the message, which has left, holds no
// memory meanwhile.
func (m *Message) Release() {
	m.Method, m.ID, m.Body = nil, nil, nil
	if m.release != nil {
		m.release()
	}
}

// Reply is what the agent said.
type Reply struct {
	// Error says that it is an error object.
	Error bool
	// Status and MediaType are an operation's; elsewhere they mean nothing.
	Status    int
	MediaType string
	// Body is its octets, which live until Release is called.
	Body []byte
	// Release, if not nil, gives the body's memory back.
	Release func()
}

// Forwarder carries messages to agents. Its errors are those that FaultOf knows.
// It is called from many goroutines and returns soon after its context ended.
type Forwarder interface {
	// Call delivers a request and returns the agent's reply.
	Call(ctx context.Context, m *Message) (*Reply, error)
	// Notify delivers a notification; nil says that it is on its way.
	Notify(ctx context.Context, m *Message) error
	// Stream delivers a request that is answered by a stream, without waiting for
	// the answer. The end of ctx ends the stream.
	Stream(ctx context.Context, m *Message) (Stream, error)
}

// Defaults of Config.
const (
	DefaultMaxBody      = 4 << 20
	DefaultMaxBuffered  = 256 << 20
	DefaultMaxInFlight  = 4096
	DefaultBodyTimeout  = 30 * time.Second
	DefaultTimeout      = 10 * time.Minute
	DefaultWriteTimeout = 10 * time.Second
	DefaultStallTimeout = time.Minute
	DefaultCommitAfter  = 500 * time.Millisecond
	DefaultKeepAlive    = 20 * time.Second
)

// Config configures an Edge. Forwarder is required; every other zero value stands
// for the default named beside it.
type Config struct {
	Forwarder Forwarder

	// Authenticate says who sent a request, by its headers, or that it may not be
	// served; nil serves everybody. It sees the requests for agents, not those for
	// /healthz.
	Authenticate func(*http.Request) (principal string, err error)
	// Challenge is the WWW-Authenticate field of a 401 ("Bearer").
	Challenge string
	// Host says whether requests with this Host field are served; nil serves all.
	// Without authentication on a loopback address it should be LoopbackHost,
	// which keeps web pages out that were given this machine's address under a
	// name of their own.
	Host func(host string) bool

	// Mapping is A2A as this deployment has it, by which messages are labelled (D15);
	// nil is A2A as it stands.
	Mapping *a2a.Mapping

	// MaxBody bounds a request's body in octets (4 MiB), MaxBuffered all bodies
	// that are held at one time (256 MiB), MaxInFlight the requests for agents
	// that are served at one time (4,096).
	MaxBody     int
	MaxBuffered int64
	MaxInFlight int
	// BodyTimeout bounds how long a request's body may take to arrive (30 s),
	// Timeout how long its answer may take after that (10 min), WriteTimeout how
	// long the caller may take to accept the next 64 KiB of it (10 s).
	BodyTimeout  time.Duration
	Timeout      time.Duration
	WriteTimeout time.Duration
	// StallTimeout is WriteTimeout for streams (1 min): a caller of a stream may
	// pause, during which its agent waits. How long a stream takes has no bound.
	StallTimeout time.Duration
	// CommitAfter is how long a stream waits for its first event before its status
	// and header are sent (500 ms). Until then an error has a status of its own;
	// afterwards it cuts the body.
	CommitAfter time.Duration
	// KeepAlive is after how much silence a stream sends a comment, for what lies
	// between it and the caller and cuts silent connections (20 s); below 0 never.
	KeepAlive time.Duration

	// AGNTCY, if set, has ACP's operations served below the agents' paths.
	AGNTCY *agntcy.Mapping
	// Tags are the link's numbers for features that have none assigned, nil for none:
	// with an OpaqueContentType the body of an operation may have any media type.
	Tags *bridge.Tags

	// Logger gets one debug line a request, without headers and bodies; nil
	// discards it.
	Logger *slog.Logger
}

// Edge is an http.Handler. It starts no goroutine.
type Edge struct {
	cfg    Config
	log    *slog.Logger
	budget *buf.Budget
	gate   gate.Gate
	stats  counters

	cut        context.Context // ends when the streams are to end
	cutStreams context.CancelFunc
}

// ErrNoForwarder is New's error for a configuration without a Forwarder.
var ErrNoForwarder = errors.New("edge: no forwarder configured")

// New returns an Edge.
func New(cfg Config) (*Edge, error) {
	if cfg.Forwarder == nil {
		return nil, ErrNoForwarder
	}
	defaults.Fill(&cfg.MaxBody, DefaultMaxBody)
	defaults.Fill(&cfg.MaxBuffered, DefaultMaxBuffered)
	defaults.Fill(&cfg.MaxInFlight, DefaultMaxInFlight)
	defaults.Fill(&cfg.BodyTimeout, DefaultBodyTimeout)
	defaults.Fill(&cfg.Timeout, DefaultTimeout)
	defaults.Fill(&cfg.WriteTimeout, DefaultWriteTimeout)
	defaults.Fill(&cfg.StallTimeout, DefaultStallTimeout)
	defaults.Fill(&cfg.CommitAfter, DefaultCommitAfter)
	if cfg.KeepAlive == 0 {
		cfg.KeepAlive = DefaultKeepAlive
	}
	if cfg.Challenge == "" {
		cfg.Challenge = "Bearer"
	}
	e := &Edge{cfg: cfg, log: cfg.Logger, budget: buf.NewBudget(cfg.MaxBuffered)}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	e.gate.Limit = cfg.MaxInFlight
	e.cut, e.cutStreams = context.WithCancel(context.Background())
	return e, nil
}

// Drain makes the edge refuse new requests, and /healthz say so, from now on.
// Those under way go on.
func (e *Edge) Drain() { e.gate.Close() }

// CutStreams ends the streams under way, which may be endless: their callers see
// a body that is cut. It follows Drain.
func (e *Edge) CutStreams() { e.cutStreams() }

// Wait returns when the edge drains and no request is under way any more, or
// with the context's error.
func (e *Edge) Wait(ctx context.Context) error { return e.gate.Wait(ctx) }

// LoopbackHost says whether a Host field names this machine itself: a loopback
// address or localhost, with or without a port.
func LoopbackHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.Unmap().IsLoopback()
}

const agentsPath = "/agents/"

// What is served below an agent's own path, by GET.
var documents = map[string]string{
	"/.well-known/agent-card.json": a2a.MethodGetCard,
	"/.well-known/agent.json":      a2a.MethodGetCard,
	"/extendedAgentCard":           a2a.MethodGetExtendedCardV1,
	"/v1/card":                     a2a.MethodGetExtendedCard,
}

// ServeHTTP serves one request.
func (e *Edge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begin := time.Now()
	x := exchange{edge: e, w: w, r: r, control: http.NewResponseController(w)}
	// The connection may come with the deadlines of the request before. This one
	// also bounds what net/http reads of a body that is refused unread.
	_ = x.control.SetWriteDeadline(time.Time{})
	_ = x.control.SetReadDeadline(begin.Add(e.cfg.BodyTimeout))
	if r.URL.Path == "/healthz" {
		x.health()
		return
	}
	rest, ok := strings.CutPrefix(r.URL.Path, agentsPath)
	if !ok {
		x.fail(&Fault{Status: http.StatusNotFound, Text: "nothing is served here"})
		return
	}
	name, place := rest, ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		name, place = rest[:i], rest[i:]
	}
	x.message.Agent, x.message.Protocol = name, bridge.ProtocolA2A
	defer func() { // a stream that breaks leaves by a panic
		e.log.Debug("http", slog.String("agent", x.message.Agent), slog.String("op", x.op),
			slog.Int("status", x.status), slog.Duration("took", time.Since(begin)))
	}()
	if err := x.serve(place); err != nil {
		x.fail(FaultOf(err))
	}
}

// exchange is one HTTP request and its answer.
type exchange struct {
	edge    *Edge
	w       http.ResponseWriter
	r       *http.Request
	control *http.ResponseController
	message Message
	op      string // the method, for the log, if it is wanted there
	status  int    // of the answer, once there is one
	read    bool   // the body was read to its end
}

func (x *exchange) health() {
	if !x.allow(http.MethodGet, http.MethodHead) {
		return
	}
	if x.edge.gate.Closed() {
		x.fail(FaultOf(ErrDraining))
		return
	}
	x.answer(http.StatusOK, media.JSON, []byte("{\"status\":\"ready\"}\n"))
}

// allow answers 405 unless the request has one of the methods.
func (x *exchange) allow(methods ...string) bool {
	for _, m := range methods {
		if x.r.Method == m {
			return true
		}
	}
	x.w.Header().Set("Allow", strings.Join(methods, ", "))
	x.fail(&Fault{Status: http.StatusMethodNotAllowed, Text: "this is served by " + strings.Join(methods, " and ") + " only"})
	return false
}

// serve serves a request for an agent. An error that it returns is still to be
// told to the caller.
func (x *exchange) serve(place string) error {
	e := x.edge
	if e.cfg.Host != nil && !e.cfg.Host(x.r.Host) {
		return &Fault{Status: http.StatusMisdirectedRequest, Text: "requests for this host name are not served"}
	}
	document, isDocument := documents[place]
	isOperation := !isDocument && place != "" && place != "/" && e.servesACP()
	switch {
	case isOperation:
		if !x.allow(operationVerbs...) {
			return nil
		}
	case isDocument:
		if !x.allow(http.MethodGet, http.MethodHead) {
			return nil
		}
	case place != "" && place != "/":
		return &Fault{Status: http.StatusNotFound, Text: "nothing is served here"}
	case !x.allow(http.MethodPost):
		return nil
	}
	switch err := e.gate.Enter(); err {
	case nil:
		defer e.gate.Leave()
	case gate.ErrFull:
		return ErrBusy
	default:
		return ErrDraining
	}
	if e.cfg.Authenticate != nil {
		principal, err := e.cfg.Authenticate(x.r)
		if err != nil {
			x.w.Header().Set("WWW-Authenticate", e.cfg.Challenge)
			return &Fault{Status: http.StatusUnauthorized, Text: "the request is not authenticated", Cause: err}
		}
		x.message.Principal = principal
	}
	if !control.ValidAgentName(x.message.Agent) {
		x.message.Agent = ""
		return ErrNoAgent
	}
	if isOperation {
		return x.operation()
	}
	if isDocument {
		return x.document(document)
	}
	return x.post()
}

// document serves a GET for a card.
func (x *exchange) document(operation string) error {
	x.message.Document, x.op = true, operation
	_ = x.control.SetReadDeadline(time.Time{}) // watched for the caller's leaving
	x.message.Method = []byte(operation)
	x.message.Effect = bridge.ReadOnly
	ctx, cancel := context.WithTimeout(x.r.Context(), x.edge.cfg.Timeout)
	defer cancel()
	reply, err := x.edge.cfg.Forwarder.Call(ctx, &x.message)
	if err != nil {
		return x.gone(err)
	}
	defer release(reply)
	if reply.Error {
		// An error object under status 200 would be taken for a card.
		return &Fault{Status: http.StatusBadGateway, Code: bridge.CodeNotDelivered, Text: "the agent answered with an error in place of the card"}
	}
	x.w.Header().Set("Cache-Control", "no-cache")
	x.answer(http.StatusOK, media.JSON, reply.Body)
	return nil
}

// post serves a POST of a JSON-RPC message.
func (x *exchange) post() error {
	e := x.edge
	if !media.IsJSON(x.r.Header.Get("Content-Type")) {
		return &Fault{Status: http.StatusUnsupportedMediaType, Code: bridge.CodeEnvelopeMalformed, Text: "the Content-Type must be application/json"}
	}
	if encoding := x.r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return &Fault{Status: http.StatusUnsupportedMediaType, Code: bridge.CodeEnvelopeMalformed, Text: "compressed bodies are not accepted"}
	}
	content, err := x.readBody()
	if err != nil {
		return err
	}
	defer content.Release()

	var m jsonrpc.Message
	if err := jsonrpc.Scan(content.Bytes(), &m); err != nil {
		return malformed(err)
	}
	if m.Kind != jsonrpc.KindRequest && m.Kind != jsonrpc.KindNotification {
		return &Fault{Status: http.StatusBadRequest, Code: bridge.CodeEnvelopeMalformed, Text: "a response is not accepted here"}
	}
	method, plain := m.MethodPlain()
	if !plain {
		method = m.AppendMethod(nil)
	}
	if len(method) > maxMethod { // D18
		return &Fault{Status: http.StatusBadRequest, Code: bridge.CodeEnvelopeMalformed, Text: "the method is longer than " + strconv.Itoa(maxMethod) + " octets"}
	}
	x.message.Method, x.message.ID, x.message.Body, x.message.release = method, m.ID, content.Bytes(), content.Release
	if e.log.Enabled(x.r.Context(), slog.LevelDebug) {
		x.op = string(method) // the view ends with the body
	}
	x.message.Effect = bridge.Destructive
	if effect, known := e.cfg.Mapping.Effect(method); known {
		x.message.Effect = effect
	}
	if m.Kind == jsonrpc.KindRequest && a2a.IsStream(method) {
		return x.stream()
	}

	ctx, cancel := context.WithTimeout(x.r.Context(), e.cfg.Timeout)
	defer cancel()
	if m.Kind == jsonrpc.KindNotification {
		if err := e.cfg.Forwarder.Notify(ctx, &x.message); err != nil {
			return x.gone(err)
		}
		e.stats.notifications.Add(1)
		x.status = http.StatusAccepted
		x.w.WriteHeader(http.StatusAccepted) // with Content-Length 0 (L35)
		return nil
	}
	reply, err := e.cfg.Forwarder.Call(ctx, &x.message)
	if err != nil {
		return x.gone(err)
	}
	defer release(reply)
	x.reply(reply.Body, reply.Error)
	return nil
}

// maxMethod is the longest method the link carries, in octets.
const maxMethod = 255

func release(r *Reply) {
	if r.Release != nil {
		r.Release()
	}
}

// readBody reads the request's body within its bounds.
func (x *exchange) readBody() (*body.Body, error) {
	e := x.edge
	content, err := body.Read(x.r.Body, x.r.ContentLength, e.cfg.MaxBody, e.budget)
	switch {
	case err == nil:
		x.read = true
		// The connection is watched for the caller's leaving, without a deadline.
		_ = x.control.SetReadDeadline(time.Time{})
		return content, nil
	case errors.Is(err, body.ErrTooLarge):
		return nil, &Fault{Status: http.StatusRequestEntityTooLarge, Code: bridge.CodeNotDelivered,
			Text: "the body is over the limit of " + strconv.Itoa(e.cfg.MaxBody) + " octets"}
	case errors.Is(err, body.ErrBudget):
		return nil, ErrBusy
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &Fault{Status: http.StatusRequestTimeout, Code: bridge.CodeNotDelivered, Text: "the body did not arrive in time"}
	}
	return nil, x.gone(&Fault{Status: http.StatusBadRequest, Code: bridge.CodeEnvelopeMalformed, Text: "the body could not be read", Cause: err})
}

// errGone says that the caller has left, so that there is nobody to tell.
var errGone = errors.New("edge: the caller has left")

// gone returns err, or errGone if the caller left in the meantime.
func (x *exchange) gone(err error) error {
	if x.r.Context().Err() != nil && !errors.Is(err, context.DeadlineExceeded) {
		return errGone
	}
	return err
}

// writeStep is how much the caller must accept within the write timeout.
const writeStep = 64 << 10

// answer writes a whole answer.
func (x *exchange) answer(status int, contentType string, octets []byte) {
	x.status = status
	h := x.w.Header()
	h["Content-Type"] = []string{contentType}
	h["Content-Length"] = []string{strconv.Itoa(len(octets))}
	h["X-Content-Type-Options"] = []string{"nosniff"}
	_ = x.control.SetWriteDeadline(time.Now().Add(x.edge.cfg.WriteTimeout))
	x.w.WriteHeader(status)
	for len(octets) > 0 {
		n := min(writeStep, len(octets))
		if _, err := x.w.Write(octets[:n]); err != nil {
			return // the connection is lost, and what was promised stays incomplete
		}
		octets = octets[n:]
		_ = x.control.SetWriteDeadline(time.Now().Add(x.edge.cfg.WriteTimeout))
	}
}

// What is still read of a body after a fault was told. Whoever sends a long body
// and is answered before its end would else find the connection reset, and not
// the answer.
const (
	lingerFrom    = 256 << 10 // what net/http reads by itself
	lingerOctets  = 16 << 20
	lingerTimeout = 2 * time.Second
)

// lingers says whether much of the request's body may still be on its way.
func (x *exchange) lingers() bool {
	n := x.r.ContentLength
	return !x.read && (n < 0 || n > lingerFrom) && x.r.Header.Get("Expect") == ""
}

// linger reads and discards the rest of the body, within bounds.
func (x *exchange) linger() {
	if x.control.Flush() != nil {
		return
	}
	_ = x.control.SetReadDeadline(time.Now().Add(lingerTimeout))
	_, _ = io.CopyN(io.Discard, x.r.Body, lingerOctets)
}
