package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/carriage/discovery"
	"github.com/trestle-npamp/trestle/carriage/document"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/engine/conn"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/defaults"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/relay/edge"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
	"github.com/trestle-npamp/trestle/wire/disco"
)

// Defaults of Config.
const (
	DefaultMaxHTTPConns = 4096
	DefaultMaxAgents    = 16384
	DefaultMaxNames     = 64
	DefaultReplyTimeout = 10 * time.Minute
	DefaultStreamDrain  = 2 * time.Second
	DefaultMaxWaiting   = 256 << 20
)

// Bounds of the HTTP server that need no option.
const (
	headerTimeout  = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 64 << 10
	// answerGrace is how long answers that were decided may take to be written
	// once the deadline of a shutdown has passed.
	answerGrace = time.Second
	// demoWait bounds how long Start waits for the demo agent.
	demoWait = 10 * time.Second
)

// DemoAgent is the name of the demo agent.
const DemoAgent = "echo"

// Relay is a relay with its listeners. New makes one, Start lets it serve, and
// Shutdown must follow Start. Its other methods may be called from any goroutine.
type Relay struct {
	cfg      Config
	log      *slog.Logger
	routes   routes
	forward  forwarder
	arrivals arrivals
	bridge   *carriage.Bridge
	disco    *discovery.Discovery
	edge     *edge.Edge
	carried  []disco.Record // the protocols

	// ctx ends when a shutdown begins.
	ctx      context.Context
	stop     context.CancelFunc
	starting sync.Mutex // held while Start works
	started  bool       // guarded by starting

	mu      sync.Mutex
	engine  *engine.Engine
	npamp   *engine.Listener
	http    *http.Server
	addr    net.Addr
	demo    *Agent
	serving sync.WaitGroup // the HTTP server and the demo agent
	ended   chan struct{}
	err     error // why serving failed; read after ended
	end     sync.Once
	down    sync.Once
	done    chan struct{}
}

// New checks the configuration. It opens nothing yet.
func New(cfg Config) (*Relay, error) {
	defaults.Fill(&cfg.MaxHTTPConns, DefaultMaxHTTPConns)
	defaults.Fill(&cfg.MaxAgents, DefaultMaxAgents)
	defaults.Fill(&cfg.MaxNames, DefaultMaxNames)
	defaults.Fill(&cfg.MaxInFlight, carriage.DefaultMaxInFlight)
	defaults.Fill(&cfg.ReplyTimeout, DefaultReplyTimeout)
	defaults.Fill(&cfg.StreamDrain, DefaultStreamDrain)
	defaults.Fill(&cfg.MaxWaiting, DefaultMaxWaiting)
	if cfg.Listen == "" {
		cfg.Listen = DefaultListen
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Engine.Identity == nil {
		key, err := identity.Generate(profiles.Ed25519, nil)
		if err != nil {
			return nil, err
		}
		cfg.Engine.Identity = key
	}
	r := &Relay{cfg: cfg, log: cfg.Logger, ended: make(chan struct{}), done: make(chan struct{})}
	r.ctx, r.stop = context.WithCancel(context.Background())
	r.routes.max, r.routes.ids = cfg.MaxAgents, []bridge.ProtocolID{bridge.ProtocolA2A}
	r.arrivals.log = cfg.Logger

	f := &r.forward
	f.routes, f.policy, f.mapping, f.timeout = &r.routes, cfg.Policy, cfg.Mapping, cfg.ReplyTimeout
	f.waiting = buf.NewBudget(cfg.MaxWaiting)
	f.streamBuffer = streamBuffer(&cfg.Engine.Limits)
	f.cut, f.cutStreams = context.WithCancel(context.Background())
	protocols := []carriage.Protocol{cfg.Mapping.Protocol(f)}
	r.carried = []disco.Record{carried}
	if m := cfg.AGNTCY; m != nil {
		protocols = append(protocols, m.Protocol(f))
		r.routes.ids = append(r.routes.ids, m.ID())
		r.carried = append(r.carried, disco.Record{
			ID: []byte("agntcy"), Kind: disco.KindProtocol, Revision: 1,
			Protocol: disco.ProtocolBody{ProtocolID: uint8(m.ID()), Class: disco.ClassOPAQUE},
		})
		cfg.Edge.AGNTCY, cfg.Edge.Tags = m, cfg.Tags
	}
	bridgeConfig := carriage.Config{
		Protocols:   protocols,
		Authorize:   f.authorize,
		MaxInFlight: cfg.MaxInFlight,
		// The exchange with the agent should end first, and say why.
		ReplyTimeout: cfg.ReplyTimeout + backstop,
		StreamDrain:  cfg.StreamDrain,
		MaxReceived:  cfg.MaxWaiting,
		Tags:         cfg.Tags,
		Logger:       cfg.Logger,
	}
	if err := bridgeConfig.Validate(); err != nil {
		return nil, err
	}
	r.bridge = carriage.New(bridgeConfig)
	f.bridge = r.bridge
	docs := newDocs(bridgeConfig)
	if docs != nil {
		f.docs = document.NewReceiver(document.Config{MaxHeld: cfg.MaxWaiting, MaxProofs: document.MaxProofs, Verbatim: true})
	}
	r.disco = discovery.New(discovery.Config{
		Advertise:  r.advertise,
		Accept:     r.accept,
		Gone:       func(a *engine.Association) { r.arrivals.left(a, r.routes.gone(a)) },
		Documents:  attachDocs(docs),
		MaxRecords: cfg.MaxNames,
		Logger:     cfg.Logger,
	})

	cfg.Edge.Forwarder, cfg.Edge.Logger, cfg.Edge.Mapping = f, cfg.Logger, cfg.Mapping
	if cfg.Edge.Host == nil && cfg.Edge.Authenticate == nil {
		cfg.Edge.Host = r.host
	}
	var err error
	if r.edge, err = edge.New(cfg.Edge); err != nil {
		return nil, err
	}
	if cfg.Edge.MaxBuffered <= 0 {
		cfg.Edge.MaxBuffered = edge.DefaultMaxBuffered
	}
	f.replies = buf.NewBudget(cfg.Edge.MaxBuffered)
	return r, nil
}

// streamBuffer is what can be under way from an agent to a caller in one stream: an
// agent that keeps to its credit never has more. One event may exceed the credit,
// and each costs a little more than its octets.
func streamBuffer(l *engine.Limits) int {
	credit, frame := l.StreamCredit, l.MaxFrame
	defaults.Fill(&credit, conn.DefaultStreamCredit)
	defaults.Fill(&frame, wire.DefaultFrameLen)
	return 3*credit + frame
}

// host lets only requests in that name this machine, as long as the edge is on
// one of its loopback addresses.
func (r *Relay) host(host string) bool {
	r.mu.Lock()
	addr := r.addr
	r.mu.Unlock()
	return addr == nil || !isLoopback(addr) || edge.LoopbackHost(host)
}

func isLoopback(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.IP.IsLoopback()
}

// Start opens the listeners and serves. When it returns without an error, agents
// and callers are served on both, and the demo agent, if there is one, is
// reachable. ctx bounds the start alone. After an error nothing is left open.
func (r *Relay) Start(ctx context.Context) error {
	err := r.startOnce(ctx)
	if err != nil && err != ErrStarted && err != ErrStopped {
		ended, cancel := context.WithCancel(context.WithoutCancel(ctx))
		cancel()
		_ = r.Shutdown(ended)
	}
	return err
}

// startOnce holds starting, so that a shutdown finds all or nothing started.
func (r *Relay) startOnce(ctx context.Context) error {
	r.starting.Lock()
	defer r.starting.Unlock()
	switch {
	case r.ctx.Err() != nil:
		return ErrStopped
	case r.started:
		return ErrStarted
	}
	r.started = true
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	return r.start(ctx)
}

func (r *Relay) start(ctx context.Context) error {
	cfg := r.cfg.Engine
	cfg.Channels = []engine.ChannelHandler{r.bridge, r.disco}
	cfg.Protocols = r.bridge.Protocols()
	cfg.Logger = r.log
	var demoKey *identity.Key
	if r.cfg.Demo {
		var err error
		// Both ends of an association have keys of one scheme.
		scheme := profiles.CommonScheme(cfg.Profiles...)
		switch {
		case cfg.Identity != nil:
			scheme = cfg.Identity.Public().Scheme()
		case len(cfg.Profiles) == 0:
			scheme = profiles.CommonScheme(profiles.Standard)
		}
		if demoKey, err = identity.Generate(scheme, nil); err != nil {
			return err
		}
		cfg.Peers = allowAlso(cfg.Peers, demoKey.Public())
	}
	e, err := engine.New(cfg)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.engine = e
	r.mu.Unlock()
	l, err := e.Listen(ctx, r.cfg.Listen)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.npamp = l
	r.mu.Unlock()
	var web net.Listener
	if r.cfg.HTTP != "" {
		if web, err = r.listenHTTP(ctx); err != nil {
			return err
		}
	}
	if r.cfg.Demo {
		if err := r.startDemo(ctx, demoKey); err != nil {
			if web != nil {
				_ = web.Close()
			}
			return err
		}
	}
	if web != nil {
		r.serveHTTP(web)
	}
	return nil
}

// allowAlso is peers that accepts one more key; without a rule everybody from
// this machine is accepted anyway.
func allowAlso(peers identity.Verifier, key identity.PublicKey) identity.Verifier {
	if peers == nil {
		return nil
	}
	return func(k identity.PublicKey) error {
		if k.Equal(key) {
			return nil
		}
		return peers(k)
	}
}

func (r *Relay) listenHTTP(ctx context.Context) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", r.cfg.HTTP)
	if err != nil {
		return nil, err
	}
	switch {
	case isLoopback(l.Addr()), r.cfg.Edge.Authenticate != nil:
	case r.cfg.AllowOpenHTTP:
		r.log.Warn("the HTTP edge is open to the network without authentication", slog.Any("http", l.Addr()))
	default:
		_ = l.Close()
		return nil, fmt.Errorf("%w: %v", ErrOpenHTTP, l.Addr())
	}
	return l, nil
}

func (r *Relay) serveHTTP(l net.Listener) {
	server := &http.Server{
		Handler:           r.edge,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(r.log.Handler(), slog.LevelDebug),
	}
	r.mu.Lock()
	r.http, r.addr = server, l.Addr()
	r.mu.Unlock()
	r.serving.Go(func() {
		if err := server.Serve(limitConns(l, r.cfg.MaxHTTPConns)); !errors.Is(err, http.ErrServerClosed) {
			r.fail(fmt.Errorf("relay: HTTP: %w", err))
		}
	})
}

// startDemo starts the demo agent and waits until callers can reach it.
func (r *Relay) startDemo(ctx context.Context, key *identity.Key) error {
	addr, err := r.loopback(ctx)
	if err != nil {
		return err
	}
	ready := make(chan struct{})
	var once sync.Once
	agent, err := NewAgent(AgentConfig{
		Name:  DemoAgent,
		Relay: addr,
		Peer:  identity.Pin(r.Key()),
		Engine: engine.Config{
			Identity: key, Transport: r.cfg.Engine.Transport, Profiles: first(r.cfg.Engine.Profiles), Suites: r.cfg.Engine.Suites,
		},
		Tags:    r.cfg.Tags,
		Backend: Echo(),
		OnReady: func(Standing) { once.Do(func() { close(ready) }) },
		Logger:  r.log,
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.demo = agent
	r.mu.Unlock()
	r.serving.Go(func() {
		if err := agent.Run(context.WithoutCancel(ctx)); err != nil && !errors.Is(err, ErrStopped) {
			r.fail(fmt.Errorf("relay: demo agent: %w", err))
		}
	})
	wait, cancel := context.WithTimeout(ctx, demoWait)
	defer cancel()
	select {
	case <-ready:
		return nil
	case <-r.ended:
		return cmp.Or(r.err, ErrStopped)
	case <-wait.Done():
		return fmt.Errorf("relay: demo agent: %w", wait.Err())
	}
}

// first is the profile that a relay prefers.
func first(ps []*profiles.Profile) []*profiles.Profile { return ps[:min(1, len(ps))] }

// loopback is an address at which this machine reaches the relay without leaving
// it, so that the demo agent needs no raw TCP beyond loopback.
func (r *Relay) loopback(ctx context.Context) (string, error) {
	addr, ok := r.npamp.Addr().(*net.TCPAddr)
	switch {
	case ok && addr.IP.IsLoopback():
		return addr.String(), nil
	case ok && addr.IP.IsUnspecified():
		host := "127.0.0.1"
		if addr.IP.To4() == nil {
			host = "::1"
		}
		return net.JoinHostPort(host, fmt.Sprint(addr.Port)), nil
	}
	l, err := r.engine.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), nil
}

func (r *Relay) fail(err error) {
	r.end.Do(func() {
		r.err = err
		close(r.ended)
	})
}

// Wait returns when Shutdown was called or serving has failed, with the reason in
// the latter case; Shutdown must follow even then.
func (r *Relay) Wait() error {
	<-r.ended
	return r.err
}

// Addr is the N-PAMP address with its real port; nil before Start.
func (r *Relay) Addr() net.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.npamp == nil {
		return nil
	}
	return r.npamp.Addr()
}

// HTTPAddr is the HTTP address with its real port; nil before Start and without
// an HTTP edge.
func (r *Relay) HTTPAddr() net.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.addr
}

// Key is the relay's public key.
func (r *Relay) Key() identity.PublicKey { return r.cfg.Engine.Identity.Public() }

// Handler is the HTTP edge, to be mounted at the root of a server of one's own.
func (r *Relay) Handler() http.Handler { return r.edge }

// Agents returns the names of the agents that are here, in no order.
func (r *Relay) Agents() []string {
	var names []string
	r.routes.each(func(t *route) bool {
		names = append(names, t.name)
		return true
	})
	return names
}

// Stats counts since New.
type Stats struct {
	Agents        int    // agents here now
	Requests      uint64 // requests forwarded
	Notifications uint64 // notifications forwarded
	Undelivered   uint64 // both, that did not reach an agent or brought no answer

	Engine    engine.Stats
	Bridge    carriage.Stats
	Discovery discovery.Stats
	Edge      edge.Stats
}

// Stats returns the counters.
func (r *Relay) Stats() Stats {
	s := Stats{
		Agents:        r.routes.len(),
		Requests:      r.forward.requests.Load(),
		Notifications: r.forward.notifications.Load(),
		Undelivered:   r.forward.undelivered.Load(),
		Bridge:        r.bridge.Stats(),
		Discovery:     r.disco.Stats(),
		Edge:          r.edge.Stats(),
	}
	r.mu.Lock()
	e := r.engine
	r.mu.Unlock()
	if e != nil {
		s.Engine = e.Stats()
	}
	return s
}

// Shutdown ends the relay in order. From its first moment /healthz says 503 and
// new requests are refused, while those under way go on and are answered, streams
// for Config.StreamDrain; then the associations are closed and the listeners. When
// ctx ends first, what is still under way is cut, its callers are told so, and
// ctx's error is returned.
// A second call waits for the first.
func (r *Relay) Shutdown(ctx context.Context) error {
	var err error
	r.down.Do(func() {
		defer close(r.done)
		err = r.shutdown(ctx)
	})
	<-r.done
	return err
}

func (r *Relay) shutdown(ctx context.Context) error {
	r.forward.drain.Store(true)
	r.edge.Drain()
	r.fail(nil)
	r.stop()
	r.starting.Lock()
	defer r.starting.Unlock()
	r.mu.Lock()
	e, server, demo := r.engine, r.http, r.demo
	r.mu.Unlock()

	// With an ended ctx the rest cuts what is left, and its callers are told.
	cut := func() {
		r.edge.CutStreams()
		r.forward.cutStreams()
	}
	endless := time.AfterFunc(r.cfg.StreamDrain, cut)
	defer endless.Stop()
	err := r.edge.Wait(ctx)
	if err != nil {
		cut()
	}
	if demo != nil {
		err = errors.Join(err, demo.Shutdown(ctx))
	}
	if e != nil {
		err = errors.Join(err, e.Shutdown(ctx))
	}
	if server != nil {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerGrace)
		defer cancel()
		if server.Shutdown(grace) != nil {
			err = errors.Join(err, server.Close())
		}
	}
	r.serving.Wait()
	return err
}

// accept decides on a record that a's peer announced.
func (r *Relay) accept(a *engine.Association, rec, prev *disco.Record) error {
	if rec.Kind != disco.KindAgent {
		return nil
	}
	if r.forward.drain.Load() {
		return ErrStopped
	}
	came, err := r.routes.claim(a, rec, prev)
	if err != nil {
		return err
	}
	if came {
		r.arrivals.came(a, string(rec.Agent.AgentID))
	}
	return nil
}

// advertise is what a's peer is told: the protocols carried, its own agents as it
// announced them, which is how it sees that they stand (D22), and others under
// records of the relay's own. It runs on a's loop for each page, so it looks at
// what may pass the filter and at nothing else: an agent that asks for its own name
// costs the same among many.
func (r *Relay) advertise(a *engine.Association, f *disco.Filter) []disco.Record {
	var records []disco.Record
	for i := range r.carried {
		if f.Match(&r.carried[i]) {
			records = append(records, r.carried[i])
		}
	}
	if f.Kinds.Present() && !f.Kinds.Contains(uint64(disco.KindAgent)) {
		return records
	}
	for _, own := range r.disco.Records(a) {
		if own.Kind != disco.KindAgent || !f.Match(&own) {
			continue
		}
		if t := r.routes.find(string(own.Agent.AgentID)); t != nil && t.assoc == a {
			records = append(records, own)
		}
	}
	for _, t := range r.routes.under(string(f.NamePrefix)) {
		if t.assoc != a && f.Match(&t.told) && (r.cfg.Visible == nil || r.cfg.Visible(a.PeerKey(), t.name)) {
			records = append(records, t.told)
		}
	}
	return records
}

// carried is the protocol that is always carried.
var carried = disco.Record{
	ID: []byte("a2a"), Kind: disco.KindProtocol, Revision: 1,
	Protocol: disco.ProtocolBody{ProtocolID: uint8(bridge.ProtocolA2A), Class: disco.ClassJSONRPC},
}
