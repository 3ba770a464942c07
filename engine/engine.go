// Package engine is the public face of Trestle's network engine: it listens for
// and dials N-PAMP associations, runs them on event loops and hands the frames
// of each channel to the handler registered for it. It knows no carriage class:
// what travels on the Bridge channel is package carriage's business.
//
//	e, err := engine.New(engine.Config{Channels: []engine.ChannelHandler{bridge}})
//	l, err := e.Listen(ctx, "127.0.0.1:7447")
//	a, err := e.Dial(ctx, "127.0.0.1:7447", engine.DialOptions{})
//	err = e.Shutdown(ctx)
//
// Sources: draft-bubblefish-npamp-02; decisions D3, D4, D6, D12, D16, D28.
package engine

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestle-npamp/trestle/asm/aesgcm"
	"github.com/trestle-npamp/trestle/crypto/handshake"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/engine/conn"
	"github.com/trestle-npamp/trestle/engine/loop"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// The association and what serves its channels are defined in package assoc.
type (
	// Association is one peer.
	Association = assoc.Association
	// ChannelHandler serves one channel of every association.
	ChannelHandler = assoc.ChannelHandler
	// ChannelConn serves one channel of one association.
	ChannelConn = assoc.ChannelConn
	// CloseError says why an association ended; it matches ErrClosed.
	CloseError = assoc.CloseError
	// Role is the side of an association in its handshake.
	Role = assoc.Role
)

// Roles.
const (
	Client = assoc.Client
	Server = assoc.Server
)

// Errors, for errors.Is.
var (
	// ErrClosed: the association has ended. A *CloseError says why.
	ErrClosed = assoc.ErrClosed
	// ErrWouldBlock: the outbound limit of the association is reached.
	ErrWouldBlock = assoc.ErrWouldBlock
	// ErrTooLarge: the frame is larger than the peer accepts.
	ErrTooLarge = assoc.ErrTooLarge
	// ErrChannel: the channel was not advertised by both sides.
	ErrChannel = assoc.ErrChannel
	// ErrRate: another key change now is more than the peer puts up with.
	ErrRate = assoc.ErrRate
	// ErrNoRatchet: the association takes no ratchet steps.
	ErrNoRatchet = assoc.ErrNoRatchet
	// ErrRekemCrossed and ErrRekemTimeout: a REKEM led to nothing.
	ErrRekemCrossed = assoc.ErrRekemCrossed
	ErrRekemTimeout = assoc.ErrRekemTimeout
	// ErrShutdown: the engine is shutting down.
	ErrShutdown = errors.New("engine: shut down")
	// ErrRawRemote: raw TCP towards or from an address that is not loopback, and
	// Config.AllowRawRemote is not set (D12).
	ErrRawRemote = errors.New("engine: raw TCP is refused on non-loopback addresses")
	// ErrPeerNotAllowed: the peer's key is not accepted.
	ErrPeerNotAllowed = identity.ErrPeerNotAllowed
	// ErrALPN: the peer's TLS does not speak N-PAMP.
	ErrALPN = loop.ErrALPN
	// ErrHandshakeTimeout: the peer took too long to complete the handshake.
	ErrHandshakeTimeout = loop.ErrHandshakeTimeout
	// ErrHandshakeCut: the peer ended the connection before the handshake was
	// complete. Peers that refuse what we offer say no more than that.
	ErrHandshakeCut = loop.ErrHandshakeCut
	// ErrTooManyAssociations: Limits.Associations is reached.
	ErrTooManyAssociations = errors.New("engine: too many associations")
)

// Transport is what carries associations.
type Transport uint8

// Transports.
const (
	// TransportTLS is TCP with TLS 1.3 and ALPN "n-pamp/2", the default.
	TransportTLS Transport = iota + 1
	// TransportTCP is raw TCP. The N-PAMP association is as protected over it as
	// over anything else, but an observer sees which channels are used.
	TransportTCP
)

// String names the transport.
func (t Transport) String() string {
	switch t {
	case TransportTLS:
		return "tls"
	case TransportTCP:
		return "tcp"
	}
	return fmt.Sprintf("transport %d", uint8(t))
}

// Limits bound what peers can make an engine hold. Zero fields take the default
// named behind them (D28). Sizes are in octets.
type Limits struct {
	Associations      int             // 65,536 at once, handshakes not counted
	PendingHandshakes int             // 8,192; the oldest of the most crowded stage makes room
	HandshakeTimeout  time.Duration   // 5 s
	MaxFrame          int             // 4 MiB received, header included; 1 to 16 MiB
	Credit            int             // 16 MiB, connection-level
	StreamCredit      int             // 1 MiB, each stream's; negative: streams have none of their own
	HighWater         int             // 256 KiB handed to the socket ahead
	Outbound          int             // 8 MiB queued towards one peer
	Stall             time.Duration   // 10 s in which a peer takes no octet
	PingInterval      time.Duration   // 30 s of silence, +-20 %; negative: never
	HelloWait         time.Duration   // 5 s for the peer's HELLO
	HelloIdle         time.Duration   // 15 min without a frame of either side, an exchange or a HELLO; negative: for ever
	CloseWait         time.Duration   // 1 s for the queue and CLOSE_ACK at the end
	Budget            int64           // 1 GiB in all queues and partial frames
	Keys              profiles.Bounds // the profile's; only lower ones count (D1)
	// Ratchet bounds what is sent under one root before a MASTER_RATCHET replaces
	// it: by default four times the profile's bounds of keys. A negative Age turns
	// the steps that come by themselves off.
	Ratchet profiles.Bounds
	// Rekem is the age at which a REKEM heals the root of what is received: by
	// default 24 times the profile's age bound of keys; negative: never by itself.
	Rekem time.Duration
}

// Defaults of Limits that belong to the engine itself.
const (
	DefaultAssociations = 65536
	DefaultBudget       = 1 << 30
)

// Config makes an Engine. The zero value is safe: TLS, a fresh identity, any peer
// on loopback and none elsewhere.
type Config struct {
	// Identity is our key; nil makes a fresh one, of a scheme that all Profiles
	// accept (profiles.CommonScheme).
	Identity identity.PrivateKey
	// Peers accepts or refuses peers by their keys. nil accepts whoever comes
	// from a loopback address, and nobody else (D12).
	Peers identity.Verifier
	// Profiles accepted, preferred first; nil means Standard.
	Profiles []*profiles.Profile
	// Suites accepted, preferred first; nil means both AEADs in the order this
	// CPU favours.
	Suites []profiles.Suite
	// Transport defaults to TransportTLS.
	Transport Transport
	// Certificate is the TLS certificate of our listeners; nil makes a self-signed
	// one. Peers do not verify it: the N-PAMP key is the identity (D12).
	Certificate *tls.Certificate
	// Curves are the key exchanges of the outer TLS; crypto/tls chooses among
	// them in an order of its own. nil means that we listen with X25519 and P-256
	// and dial with P-256. They are classical because the N-PAMP handshake inside
	// makes the post-quantum exchange (E7).
	Curves []tls.CurveID
	// StandardTLS leaves TLS records to crypto/tls. Otherwise crypto/tls makes the
	// handshake, and our own record layer, which works in place, carries on.
	StandardTLS bool
	// AllowRawRemote permits raw TCP on addresses that are not loopback.
	AllowRawRemote bool
	// Channels are the handlers of the channels we carry, besides Control.
	Channels []ChannelHandler
	// Protocols are the foreign protocol ids told in HELLO, preferred first; nil
	// means those that Channels carry: each handler that has a method
	// Protocols() []uint8, as a carriage.Bridge has, is asked.
	Protocols []uint8
	// NoHello sends no HELLO, for peers known not to expect it. PeerChannels
	// then names the channels they carry besides Control, Bridge and Discovery.
	NoHello      bool
	PeerChannels []wire.Channel
	// Loops is the number of event loops, 256 at most; 0 means GOMAXPROCS.
	Loops int
	// ReadBuffer is the size in octets of each loop's read buffer, rounded up to
	// a power of two; 0 means 256 KiB.
	ReadBuffer int
	Limits     Limits
	// Logger gets what an operator should know; nil discards it.
	Logger *slog.Logger
}

// DialOptions are for one association.
type DialOptions struct {
	// Peer replaces Config.Peers, usually identity.Pin(key).
	Peer identity.Verifier
	// Agent is the agent that the association is to reach, told in HELLO (D22).
	Agent string
}

// Engine is a set of event loops with the associations on them. Its methods may
// be called from any goroutine but the loops'.
type Engine struct {
	cfg    Config
	log    *slog.Logger
	group  *loop.Group
	shakes *loop.Handshakes
	dialer loop.Dialer
	budget *buf.Budget

	frames conn.Counters
	sends  assoc.Counters
	nextID atomic.Uint64

	mu      sync.Mutex
	closing bool
	// selfSigned gives the certificates of listeners that were given none; made
	// for the first of them.
	selfSigned func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	servers    map[*loop.Server]struct{}
	assocs     map[uint64]*Association
	changed    chan struct{} // closed at each end of an association while closing
	dials      sync.WaitGroup
	refused    atomic.Uint64
	life       context.Context // ends when Shutdown begins
	end        context.CancelFunc
	shutdown   sync.Once
	anybody    sync.Once // warns of dials without a rule
	stopped    chan struct{}
}

// aesSelfTest is a variable so that a test can have it fail.
var aesSelfTest = aesgcm.SelfTest

// New starts the loops. Shutdown must follow.
func New(cfg Config) (*Engine, error) {
	if cfg.Transport == 0 {
		cfg.Transport = TransportTLS
	}
	if cfg.Transport != TransportTLS && cfg.Transport != TransportTCP {
		return nil, fmt.Errorf("engine: unknown transport %d", cfg.Transport)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if len(cfg.Profiles) == 0 {
		cfg.Profiles = []*profiles.Profile{profiles.Standard}
	}
	if cfg.Identity == nil {
		k, err := identity.Generate(profiles.CommonScheme(cfg.Profiles...), nil)
		if err != nil {
			return nil, err
		}
		cfg.Identity = k
	}
	seen := map[wire.Channel]bool{wire.ChannelControl: true}
	for _, h := range cfg.Channels {
		ch := h.Channel()
		if seen[ch] || ch > wire.ChannelSpatial {
			return nil, fmt.Errorf("engine: channel %v can't have this handler, or has one already", ch)
		}
		seen[ch] = true
	}
	if cfg.Protocols == nil {
		cfg.Protocols = protocolsOf(cfg.Channels)
	}
	if cfg.Limits.Associations <= 0 {
		cfg.Limits.Associations = DefaultAssociations
	}
	if cfg.Limits.Budget <= 0 {
		cfg.Limits.Budget = DefaultBudget
	}
	e := &Engine{
		cfg:     cfg,
		log:     cfg.Logger,
		shakes:  loop.NewHandshakes(cfg.Limits.PendingHandshakes, cfg.Limits.HandshakeTimeout),
		budget:  buf.NewBudget(cfg.Limits.Budget),
		servers: make(map[*loop.Server]struct{}),
		assocs:  make(map[uint64]*Association),
		changed: make(chan struct{}),
		stopped: make(chan struct{}),
	}
	e.life, e.end = context.WithCancel(context.Background())
	// Fail now and not at the first peer: the machine checks the combination of
	// profiles, suites and identity.
	if m, err := handshake.NewServer(e.handshakeConfig(acceptAny)); err != nil {
		return nil, err
	} else {
		m.Wipe()
	}
	if err := aesSelfTest(); err != nil {
		e.log.Warn("AES-GCM is slower than it could be", "error", err)
	}
	var err error
	e.group, err = loop.NewGroup(loop.GroupConfig{Loops: cfg.Loops, ReadBuffer: cfg.ReadBuffer, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	e.dialer = loop.Dialer{Group: e.group, Handshakes: e.shakes}
	if cfg.Transport == TransportTLS {
		e.dialer.Security = loop.Security{
			Config:   loop.TLSConfig(nil, curves(cfg.Curves, loop.DialCurves)),
			Standard: cfg.StandardTLS,
			Budget:   e.budget,
			AESGCM:   aesgcm.New,
		}
	}
	return e, nil
}

// protocolsOf asks the handlers which foreign protocols they carry.
func protocolsOf(handlers []ChannelHandler) []uint8 {
	var ids []uint8
	for _, h := range handlers {
		if p, ok := h.(interface{ Protocols() []uint8 }); ok {
			ids = append(ids, p.Protocols()...)
		}
	}
	return ids
}

func acceptAny(identity.PublicKey) error { return nil }

// Format prints which engine it is and nothing that it holds, whatever the verb:
// its identity's private key is among that.
func (e *Engine) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "engine.Engine(%v, %v)", e.cfg.Transport, e.Identity())
}

// Format prints what a log may have and no key, whatever the verb: Identity and
// Certificate may be types that hide nothing of themselves.
func (c Config) Format(f fmt.State, _ rune) {
	id := identity.PublicKey{}
	if c.Identity != nil {
		id = c.Identity.Public()
	}
	fmt.Fprintf(f, "engine.Config(%v, %v, %v, limits %+v, redacted)", c.Transport, id, c.Profiles, c.Limits)
}

// Format prints the address.
func (l *Listener) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "engine.Listener(%v)", l.Addr()) }

// Identity is our public key.
func (e *Engine) Identity() identity.PublicKey { return e.cfg.Identity.Public() }

// Listener is one listening address of an Engine.
type Listener struct {
	e *Engine
	s *loop.Server
}

// Addr is the address, with the real port.
func (l *Listener) Addr() net.Addr { return l.s.Addr() }

// Close stops listening and ends the handshakes under way. Associations stay.
func (l *Listener) Close() error {
	l.e.mu.Lock()
	delete(l.e.servers, l.s)
	l.e.mu.Unlock()
	return l.s.Close()
}

// Listen accepts associations on addr ("host:port"; port 0 picks one) until the
// listener or the engine is closed. ctx bounds the resolution of addr.
func (e *Engine) Listen(ctx context.Context, addr string) (*Listener, error) {
	network := "tcp"
	if a, err := netip.ParseAddrPort(addr); err == nil && a.Addr().Is4() {
		network = "tcp4" // 0.0.0.0 is every IPv4 address, not every address
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if !e.mayUse(ln.Addr()) {
		_ = ln.Close()
		return nil, fmt.Errorf("%w: %v", ErrRawRemote, ln.Addr())
	}
	sec, err := e.serverSecurity()
	if err != nil {
		_ = ln.Close()
		return nil, err
	}
	if e.cfg.Peers == nil {
		e.log.Warn("no peers are configured: whoever comes from a loopback address is accepted", "listen", ln.Addr())
	}
	s := &loop.Server{
		Group:      e.group,
		Handshakes: e.shakes,
		Security:   sec,
		Logger:     e.log,
		NewMachine: func(remote net.Addr) (*handshake.Machine, error) {
			if !e.mayStart() {
				e.refused.Add(1)
				return nil, ErrTooManyAssociations
			}
			return handshake.NewServer(e.handshakeConfig(e.verifier(remote, e.cfg.Peers)))
		},
		Start: func(role Role, res handshake.Result, local, remote net.Addr) (*Association, error) {
			a, err := e.start(role, res, local, remote, DialOptions{})
			if err != nil {
				e.refused.Add(1)
			}
			return a, err
		},
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		_ = ln.Close()
		return nil, ErrShutdown
	}
	e.servers[s] = struct{}{}
	s.Serve(ln)
	return &Listener{e, s}, nil
}

// Dial makes an association with the peer at addr. It returns when the peer has
// proved its key and the association's channels are attached; the peer may still
// refuse our key, which then ends the association. ctx bounds it, besides
// Limits.HandshakeTimeout.
func (e *Engine) Dial(ctx context.Context, addr string, opts DialOptions) (*Association, error) {
	e.mu.Lock()
	if e.closing {
		e.mu.Unlock()
		return nil, ErrShutdown
	}
	e.dials.Add(1)
	e.mu.Unlock()
	defer e.dials.Done()

	if opts.Agent != "" && !control.ValidAgentName(opts.Agent) {
		return nil, fmt.Errorf("engine: %q is no agent name", opts.Agent)
	}
	if !e.mayStart() {
		return nil, ErrTooManyAssociations
	}
	peers := opts.Peer
	if peers == nil {
		peers = e.cfg.Peers
	}
	timeout := e.cfg.Limits.HandshakeTimeout
	if timeout <= 0 {
		timeout = loop.DefaultHandshakeTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	defer context.AfterFunc(e.life, cancel)() // Shutdown ends dials under way
	d := e.dialer
	d.Start = func(role Role, res handshake.Result, local, remote net.Addr) (*Association, error) {
		return e.start(role, res, local, remote, opts)
	}
	return d.Dial(ctx, addr, func(remote net.Addr) (*handshake.Machine, error) {
		if !e.mayUse(remote) {
			return nil, fmt.Errorf("%w: %v", ErrRawRemote, remote)
		}
		if peers == nil && isLoopback(remote) {
			e.anybody.Do(func() {
				e.log.Warn("no peer is configured: whoever answers at a loopback address is accepted", "remote", remote)
			})
		}
		return handshake.NewClient(e.handshakeConfig(e.verifier(remote, peers)))
	})
}

// mayUse applies D12: raw TCP is for loopback.
func (e *Engine) mayUse(a net.Addr) bool {
	return e.cfg.Transport != TransportTCP || e.cfg.AllowRawRemote || isLoopback(a)
}

// serverSecurity is the listeners' TLS, with a certificate made when the first
// one needs it.
func (e *Engine) serverSecurity() (loop.Security, error) {
	if e.cfg.Transport != TransportTLS {
		return loop.Security{}, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	cfg := loop.TLSConfig(e.cfg.Certificate, curves(e.cfg.Curves, loop.ListenCurves))
	if e.cfg.Certificate == nil {
		if e.selfSigned == nil {
			var err error
			if e.selfSigned, err = loop.SelfSigned(); err != nil {
				return loop.Security{}, fmt.Errorf("engine: certificate: %w", err)
			}
		}
		cfg.GetCertificate = e.selfSigned
	}
	return loop.Security{
		Config:   cfg,
		Server:   true,
		Standard: e.cfg.StandardTLS,
		Budget:   e.budget,
		AESGCM:   aesgcm.New,
	}, nil
}

func curves(configured, fallback []tls.CurveID) []tls.CurveID {
	if len(configured) > 0 {
		return configured
	}
	return fallback
}

// verifier applies D12: without a rule only loopback is accepted.
func (e *Engine) verifier(remote net.Addr, v identity.Verifier) identity.Verifier {
	switch {
	case v != nil:
		return v
	case isLoopback(remote):
		return acceptAny
	}
	return func(identity.PublicKey) error { return ErrPeerNotAllowed }
}

func isLoopback(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.IP.IsLoopback()
}

func (e *Engine) handshakeConfig(v identity.Verifier) handshake.Config {
	return handshake.Config{
		Profiles:   e.cfg.Profiles,
		Suites:     e.cfg.Suites,
		Identity:   e.cfg.Identity,
		VerifyPeer: v,
	}
}

// mayStart tells before a handshake that it would be in vain. What counts is start:
// handshakes under way hold no place, or those that never end would keep others out.
func (e *Engine) mayStart() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.closing && len(e.assocs) < e.cfg.Limits.Associations
}

// start makes the association of a completed handshake and registers it. The error is
// ErrTooManyAssociations.
func (e *Engine) start(role Role, res handshake.Result, local, remote net.Addr, opts DialOptions) (*Association, error) {
	a := assoc.New(e.options(role, res, local, remote, opts), e.group.Now())
	e.mu.Lock()
	full, closing := len(e.assocs) >= e.cfg.Limits.Associations, e.closing
	if !full {
		e.assocs[a.ID()] = a
	}
	e.mu.Unlock()
	switch {
	case full:
		a.Discard(ErrTooManyAssociations)
		return nil, ErrTooManyAssociations
	case closing:
		a.Drain(control.CodeShutdown, "shutting down")
	}
	return a, nil
}

// options are what the association of a completed handshake is made with.
func (e *Engine) options(role Role, res handshake.Result, local, remote net.Addr, opts DialOptions) assoc.Options {
	l := &e.cfg.Limits
	var seed [4]byte
	_, _ = rand.Read(seed[:]) // never fails (crypto/rand)
	return assoc.Options{
		ID: e.nextID.Add(1),
		Conn: conn.Config{
			Role:         role,
			Profile:      res.Profile,
			Suite:        res.Suite,
			Send:         res.Send,
			Recv:         res.Recv,
			PeerChannels: e.cfg.PeerChannels,
			NoHello:      e.cfg.NoHello,
			Protocols:    e.cfg.Protocols,
			Agent:        opts.Agent,
			Grease:       binary.BigEndian.Uint32(seed[:]),
			MaxFrame:     l.MaxFrame,
			Credit:       l.Credit,
			StreamCredit: l.StreamCredit,
			HighWater:    l.HighWater,
			PingInterval: l.PingInterval,
			HelloWait:    l.HelloWait,
			HelloIdle:    l.HelloIdle,
			CloseWait:    l.CloseWait,
			Bounds:       l.Keys,
			Ratchet:      l.Ratchet,
			Rekem:        l.Rekem,
			KEM:          res.KEM,
			Rand:         rand.Reader,
			Budget:       e.budget,
			Counters:     &e.frames,
		},
		PeerKey:       res.PeerKey,
		LocalAddr:     local,
		RemoteAddr:    remote,
		Handlers:      e.cfg.Channels,
		OutboundLimit: l.Outbound,
		Stall:         l.Stall,
		Budget:        e.budget,
		Counters:      &e.sends,
		Logger:        e.log,
		OnEnd:         e.ended,
	}
}

func (e *Engine) ended(a *Association) {
	e.mu.Lock()
	delete(e.assocs, a.ID())
	if e.closing {
		close(e.changed)
		e.changed = make(chan struct{})
	}
	e.mu.Unlock()
	e.log.Debug("association ended", "association", a.ID(), "reason", a.Err())
}

// Associations calls yield for each association that stands, in no order.
func (e *Engine) Associations(yield func(*Association) bool) {
	e.mu.Lock()
	all := make([]*Association, 0, len(e.assocs))
	for _, a := range e.assocs {
		all = append(all, a)
	}
	e.mu.Unlock()
	for _, a := range all {
		if !yield(a) {
			return
		}
	}
}

// Shutdown ends the engine in order: it stops listening and dialling, lets
// running exchanges end while new ones are refused, closes every association
// with the reason "shutdown", and stops the loops. When ctx ends first, what
// still runs is cut, and ctx's error returned. It must not be called from a loop;
// a second call waits for the first.
func (e *Engine) Shutdown(ctx context.Context) error {
	var err error
	e.shutdown.Do(func() {
		err = e.stop(ctx)
		close(e.stopped)
	})
	<-e.stopped
	return err
}

// cutWait bounds how long the associations that a deadline cut may take to say
// so, besides their own CloseWait.
const cutWait = time.Second

func (e *Engine) stop(ctx context.Context) error {
	e.end()
	e.mu.Lock()
	e.closing = true
	servers := make([]*loop.Server, 0, len(e.servers))
	for s := range e.servers {
		servers = append(servers, s)
	}
	e.mu.Unlock()
	for _, s := range servers {
		_ = s.Close()
	}
	e.Associations(func(a *Association) bool {
		a.Drain(control.CodeShutdown, "shutting down")
		return true
	})
	err := e.waitEnded(ctx)
	if err != nil {
		e.Associations(func(a *Association) bool {
			a.Close(control.CodeShutdown, "shutting down")
			return true
		})
		wait := e.cfg.Limits.CloseWait
		if wait <= 0 {
			wait = conn.DefaultCloseWait
		}
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait+cutWait)
		defer cancel()
		_ = e.waitEnded(last)
	}
	e.dials.Wait() // their contexts have ended
	return errors.Join(err, e.group.Close())
}

func (e *Engine) waitEnded(ctx context.Context) error {
	for {
		e.mu.Lock()
		n, changed := len(e.assocs), e.changed
		e.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
