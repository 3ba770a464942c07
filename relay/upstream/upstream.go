// Package upstream is the way out of the link to an agent that speaks A2A over
// HTTP: it POSTs a JSON-RPC message exactly as it came and hands back the
// agent's answer exactly as it was sent: in one piece, or as a stream of
// Server-Sent Events. Do does the same with plain HTTP operations, whose bodies and
// answers it does not look into.
//
// What it never does is part of its contract: it follows no redirect, asks for
// no compression and accepts none, sends no header that a caller chose (D21),
// and never sends a message a second time once an octet of it may have reached
// the agent, unless the message is known to be read-only.
//
// HTTP/1.1 is spoken, one request a connection at a time, because only there
// the client can tell whether anything of a failed request was written.
package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/defaults"
	"github.com/trestle-npamp/trestle/relay/internal/body"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// Defaults of Config.
const (
	DefaultMaxReply       = 4 << 20
	DefaultMaxBuffered    = 256 << 20
	DefaultMaxConns       = 4096
	DefaultDialTimeout    = 5 * time.Second
	DefaultTimeout        = 10 * time.Minute
	DefaultCardTimeout    = 15 * time.Second
	DefaultIdleTimeout    = 1500 * time.Millisecond
	DefaultNotifyTimeout  = 30 * time.Second
	maxResponseHeader     = 64 << 10
	maxDiscardedReply     = 64 << 10
	userAgent             = "trestle"
	headerProtocolVersion = "A2A-Version"
)

// Config says which agent is reached and within which bounds. URL is required;
// every other zero value stands for the default named beside it.
type Config struct {
	// URL is the agent's JSON-RPC endpoint, http or https.
	URL string
	// CardURL is where the agent's public card is; empty means the well-known
	// places that CardURLs lists. Elsewhere than at URL's scheme and host it is asked
	// for without Header.
	CardURL string
	// Header is sent with every request to this agent and to no other: the
	// credentials configured for this route. It can't set the headers that the
	// exchange itself decides.
	Header http.Header

	// TLS is used for https; nil means Go's defaults.
	TLS *tls.Config
	// Proxy picks a proxy; nil means none, whatever the environment says.
	Proxy func(*http.Request) (*url.URL, error)

	// MaxReply bounds an answer's body in octets (4 MiB). Longer ones are not
	// delivered.
	MaxReply int
	// MaxBuffered bounds the memory of all answers together, from their first
	// octet until they are released (256 MiB).
	MaxBuffered int64
	// MaxConns bounds the connections to the agent (4,096); a request beyond it
	// waits for one, within its own deadline, and a stream holds one as long as it lasts.
	MaxConns int
	// DialTimeout bounds connecting, and the TLS handshake (5 s).
	DialTimeout time.Duration
	// Timeout bounds one request from the first octet to the last of its answer
	// (10 min); NotifyTimeout one notification (30 s), CardTimeout the whole
	// search for a card (15 s).
	Timeout       time.Duration
	NotifyTimeout time.Duration
	CardTimeout   time.Duration
	// StreamIdle bounds how long a stream may be silent, comments counting as
	// sound; 0 does not. Timeout does not apply to streams.
	StreamIdle time.Duration
	// IdleTimeout is how long an unused connection is kept (1.5 s). It is shorter
	// than what common HTTP servers wait, so that a request rarely meets a
	// connection that the agent is just closing: such a request is lost, since it
	// can't be sent again.
	IdleTimeout time.Duration

	// Logger gets what callers must not see, such as addresses; nil discards it.
	Logger *slog.Logger
}

// Request is one message for the agent.
type Request struct {
	// Method is the JSON-RPC method, decoded.
	Method string
	// ID is the id as written, nil for a notification.
	ID []byte
	// Body is the message, sent octet for octet. It is not kept.
	Body []byte
	// Effect is what the request may do; ReadOnly allows one more attempt when a
	// kept connection turns out to be dead.
	Effect bridge.Effect

	contentType string // of an Operation's body; "" is JSON
}

// Reply is the agent's answer: a JSON-RPC result or error object.
type Reply struct {
	// Error says that the body is an error object.
	Error bool
	// Body is the answer's octets, which live until Release.
	Body []byte

	body *body.Body
}

// Release gives the body's memory back.
func (r *Reply) Release() {
	r.Body = nil
	r.body.Release()
}

// Stats counts what happened since New.
type Stats struct {
	Requests      uint64 // requests sent, first attempts only
	Notifications uint64
	Streams       uint64 // requests for streams
	Retries       uint64 // second attempts
	Failures      uint64 // requests without a definite answer of the agent, and streams that broke
	Skipped       uint64 // events that are no JSON-RPC responses
	Late          uint64 // events behind the last one wanted
	Refused       uint64 // notifications answered with a status of 400 or more
}

// Client speaks to one agent. It may be used from any number of goroutines; it
// starts none that outlive Close.
type Client struct {
	cfg        Config
	endpoint   *url.URL
	cards      []string
	header     http.Header // of requests to the agent
	cardHeader http.Header // of requests for its card
	budget     *buf.Budget
	transport  *http.Transport
	client     *http.Client
	log        *slog.Logger

	requests, notifications, streams, retries, failures, skipped, late, refused atomic.Uint64
}

// Errors of New.
var (
	ErrURL    = errors.New("upstream: not an absolute http or https URL")
	ErrHeader = errors.New("upstream: header can't be configured")
)

// decided lists the headers that an exchange decides by itself, in canonical
// form.
var decided = map[string]bool{
	"Accept": true, "Accept-Encoding": true, "Connection": true, "Content-Encoding": true, "Content-Length": true,
	"Content-Type": true, "Expect": true, "Host": true, "Keep-Alive": true, "Proxy-Connection": true, "Te": true,
	"Trailer": true, "Transfer-Encoding": true, "Upgrade": true, "A2a-Version": true,
	"Idempotency-Key": true, "X-Idempotency-Key": true, // with these the transport sends again by itself
}

// New checks the configuration; it contacts nobody.
func New(cfg Config) (*Client, error) {
	endpoint, err := parseURL(cfg.URL)
	if err != nil {
		return nil, err
	}
	c := &Client{endpoint: endpoint, header: http.Header{}, log: cfg.Logger}
	elsewhere := false // is the card
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if cfg.CardURL != "" {
		u, err := parseURL(cfg.CardURL)
		if err != nil {
			return nil, err
		}
		c.cards = []string{u.String()}
		elsewhere = u.Scheme != endpoint.Scheme || !strings.EqualFold(u.Host, endpoint.Host)
	} else {
		c.cards = CardURLs(endpoint)
	}
	for name, values := range cfg.Header {
		name = textproto.CanonicalMIMEHeaderKey(name)
		if decided[name] {
			return nil, fmt.Errorf("%w: %s", ErrHeader, name)
		}
		c.header[name] = append(c.header[name], values...)
	}
	if c.header.Get("User-Agent") == "" {
		c.header.Set("User-Agent", userAgent)
	}
	if c.cardHeader = c.header; elsewhere {
		c.cardHeader = http.Header{"User-Agent": {userAgent}}
	}

	defaults.Fill(&cfg.MaxReply, DefaultMaxReply)
	defaults.Fill(&cfg.MaxBuffered, DefaultMaxBuffered)
	defaults.Fill(&cfg.MaxConns, DefaultMaxConns)
	defaults.Fill(&cfg.DialTimeout, DefaultDialTimeout)
	defaults.Fill(&cfg.Timeout, DefaultTimeout)
	defaults.Fill(&cfg.NotifyTimeout, DefaultNotifyTimeout)
	defaults.Fill(&cfg.CardTimeout, DefaultCardTimeout)
	defaults.Fill(&cfg.IdleTimeout, DefaultIdleTimeout)
	c.cfg = cfg
	c.budget = buf.NewBudget(cfg.MaxBuffered)

	dialer := &net.Dialer{Timeout: cfg.DialTimeout}
	c.transport = &http.Transport{
		Proxy: cfg.Proxy,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &countedConn{Conn: conn}, nil
		},
		TLSClientConfig:        cfg.TLS.Clone(),
		TLSHandshakeTimeout:    cfg.DialTimeout,
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{}, // HTTP/1.1 only
		DisableCompression:     true,
		MaxConnsPerHost:        cfg.MaxConns,
		MaxIdleConns:           cfg.MaxConns,
		MaxIdleConnsPerHost:    cfg.MaxConns,
		IdleConnTimeout:        cfg.IdleTimeout,
		MaxResponseHeaderBytes: maxResponseHeader,
	}
	c.client = &http.Client{
		Transport:     c.transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// Close drops the connections that are idle. Requests under way end on their
// own; their connections are not kept afterwards only if IdleTimeout has passed.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Stats returns the counters.
func (c *Client) Stats() Stats {
	return Stats{
		Requests:      c.requests.Load(),
		Notifications: c.notifications.Load(),
		Streams:       c.streams.Load(),
		Retries:       c.retries.Load(),
		Failures:      c.failures.Load(),
		Skipped:       c.skipped.Load(),
		Late:          c.late.Load(),
		Refused:       c.refused.Load(),
	}
}

func parseURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Opaque != "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, ErrURL // not the URL itself, which may hold a password
	}
	u.Fragment, u.RawFragment = "", ""
	return u, nil
}

// Format prints where the agent is and no credential, whatever the verb: Header, TLS
// and URL may hold some.
func (c Config) Format(f fmt.State, _ rune) {
	at := "no URL"
	if u, err := url.Parse(c.URL); err == nil {
		at = redacted(u)
	}
	fmt.Fprintf(f, "upstream.Config(%s, redacted)", at)
}

// redacted is a URL without its password and without its query, where keys stand too.
func redacted(u *url.URL) string {
	without := *u
	if without.RawQuery != "" {
		without.RawQuery = "redacted"
	}
	return without.Redacted()
}

// Format prints where the agent is and no credential, whatever the verb.
func (c *Client) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "upstream.Client(%s, redacted)", redacted(c.endpoint))
}

// countedConn counts the octets that may have left, so that a failed request can
// be told from one that never did. They are counted before the kernel gets them:
// a reader of the counter must not see less than what a write under way has sent.
type countedConn struct {
	net.Conn
	left atomic.Int64
}

func (c *countedConn) Write(b []byte) (int, error) {
	c.left.Add(int64(len(b)))
	n, err := c.Conn.Write(b)
	if n < len(b) {
		c.left.Add(int64(n - len(b)))
	}
	return n, err
}

// counted finds the counter below a connection the transport hands to its trace.
func counted(conn net.Conn) *countedConn {
	for {
		switch c := conn.(type) {
		case *countedConn:
			return c
		case interface{ NetConn() net.Conn }:
			conn = c.NetConn()
		default:
			return nil
		}
	}
}
