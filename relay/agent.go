package relay

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/carriage/discovery"
	"github.com/trestle-npamp/trestle/carriage/document"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/internal/defaults"
	"github.com/trestle-npamp/trestle/mapping/a2a"
	"github.com/trestle-npamp/trestle/mapping/a2a/card"
	"github.com/trestle-npamp/trestle/relay/internal/gate"
	"github.com/trestle-npamp/trestle/relay/upstream"
	"github.com/trestle-npamp/trestle/wire/bridge"
	"github.com/trestle-npamp/trestle/wire/control"
	"github.com/trestle-npamp/trestle/wire/disco"
)

// Defaults of AgentConfig.
const (
	DefaultAgentTimeout = 10 * time.Minute
	DefaultMaxRetained  = 256 << 20
	DefaultDialTimeout  = 15 * time.Second
	DefaultBackoffMin   = 100 * time.Millisecond
	DefaultBackoffMax   = 15 * time.Second

	// backstop is how much later than the deadline that should end a request the
	// next one strikes.
	backstop = 30 * time.Second

	// backendGrace is how long a Backend may take to return once its contexts have
	// ended.
	backendGrace = 5 * time.Second
)

// Agent is one agent at a relay. It dials the relay, announces its name, checks
// that the relay has it, serves requests with its Backend, and does all of that
// again when the relay is lost, until it is shut down. Requests that are under
// way when the relay is lost run on to their end: whoever asked may have left,
// but the agent's task is not ours to stop.
type Agent struct {
	cfg    AgentConfig
	log    *slog.Logger
	bridge *carriage.Bridge
	disco  *discovery.Discovery
	record disco.Record

	// stay ends when a shutdown begins, work when what is under way is given up.
	stay   context.Context
	leave  context.CancelFunc
	work   context.Context
	giveUp context.CancelFunc
	// serving holds the messages that the backend has.
	serving gate.Gate

	mu      sync.Mutex
	started bool
	engine  *engine.Engine
	stopped chan struct{} // closed when Run returns
	down    sync.Once
	done    chan struct{}
}

// NewAgent checks the configuration. It contacts nobody.
func NewAgent(cfg AgentConfig) (*Agent, error) {
	switch {
	case !control.ValidAgentName(cfg.Name):
		return nil, fmt.Errorf("%w: %q", ErrName, cfg.Name)
	case cfg.Relay == "":
		return nil, errors.New("relay: agent without a relay")
	case cfg.AGNTCY == nil && cfg.Backend == nil, cfg.AGNTCY != nil && cfg.Operations == nil:
		return nil, errors.New("relay: agent without a backend")
	}
	defaults.Fill(&cfg.MaxInFlight, carriage.DefaultMaxInFlight)
	defaults.Fill(&cfg.MaxRetained, DefaultMaxRetained)
	defaults.Fill(&cfg.Timeout, DefaultAgentTimeout)
	defaults.Fill(&cfg.StreamDrain, DefaultStreamDrain)
	defaults.Fill(&cfg.DialTimeout, DefaultDialTimeout)
	defaults.Fill(&cfg.BackoffMin, DefaultBackoffMin)
	defaults.Fill(&cfg.BackoffMax, DefaultBackoffMax)
	defaults.Fill(&cfg.Engine.Loops, 1)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	a := &Agent{}
	protocol := a2a.Protocol((*server)(a))
	if cfg.AGNTCY != nil {
		protocol = cfg.AGNTCY.Protocol((*server)(a))
	}
	protocol.Async = true
	*a = Agent{
		cfg: cfg, log: cfg.Logger.With(slog.String("agent", cfg.Name)),
		record: disco.Record{
			ID: id, Kind: disco.KindAgent, Revision: 1,
			Agent: disco.AgentBody{AgentID: []byte(cfg.Name), Protocols: disco.ListOf(protocol.ID)},
		},
		stopped: make(chan struct{}), done: make(chan struct{}),
	}
	a.stay, a.leave = context.WithCancel(context.Background())
	a.work, a.giveUp = context.WithCancel(context.Background())
	bridgeConfig := carriage.Config{
		Protocols:   []carriage.Protocol{protocol},
		MaxInFlight: cfg.MaxInFlight,
		MaxRetained: cfg.MaxRetained,
		Workers:     cfg.MaxInFlight,
		WorkQueue:   1, // whoever finds all of them busy is told so
		// The backend's own deadline should come first, and say what happened.
		ReplyTimeout: cfg.Timeout + backstop,
		StreamDrain:  cfg.StreamDrain,
		Tags:         cfg.Tags,
		Logger:       a.log,
	}
	if err := bridgeConfig.Validate(); err != nil {
		return nil, err
	}
	a.bridge = carriage.New(bridgeConfig)
	a.disco = discovery.New(discovery.Config{
		Advertise: func(*engine.Association, *disco.Filter) []disco.Record { return []disco.Record{a.record} },
		Documents: attachDocs(newDocs(bridgeConfig)),
		Logger:    a.log,
	})
	return a, nil
}

// Run serves until Shutdown is called, which makes it return nil, or ctx ends,
// which cuts everything at once and makes it return ctx's error. It may be called
// once. Errors that only concern one attempt to reach the relay are logged.
func (a *Agent) Run(ctx context.Context) error {
	a.mu.Lock()
	if a.started {
		a.mu.Unlock()
		return ErrStarted
	}
	a.started = true
	a.mu.Unlock()
	defer close(a.stopped)

	if a.stay.Err() != nil {
		return ErrStopped
	}
	cfg := a.cfg.Engine
	cfg.Channels = []engine.ChannelHandler{a.bridge, a.disco}
	cfg.Protocols = a.bridge.Protocols()
	cfg.Logger = a.log
	e, err := engine.New(cfg)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.engine = e
	a.mu.Unlock()

	a.attend(ctx, e)
	if ctx.Err() != nil {
		_ = e.Shutdown(ctx)
		a.end(ctx)
		return ctx.Err()
	}
	return nil // Shutdown sees to the rest
}

// attend keeps the agent at its relay until ctx ends or a shutdown begins.
func (a *Agent) attend(ctx context.Context, e *engine.Engine) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.stay, cancel)()
	waits := backoff{min: a.cfg.BackoffMin, max: a.cfg.BackoffMax}
	for {
		link, err := a.stand(ctx, e)
		switch {
		case err == nil:
			began := time.Now()
			select {
			case <-link.Done():
				a.log.Warn("the relay was lost", slog.Any("reason", link.Err()))
			case <-ctx.Done():
				return
			}
			if time.Since(began) > a.cfg.BackoffMax {
				waits.reset()
			}
		case ctx.Err() != nil:
			return
		default:
			a.log.Warn("not at the relay", slog.String("relay", a.cfg.Relay), slog.Any("error", err))
		}
		timer := time.NewTimer(waits.wait())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// stand makes one attempt to get to the relay and to be known there.
func (a *Agent) stand(ctx context.Context, e *engine.Engine) (*engine.Association, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.DialTimeout)
	defer cancel()
	link, err := e.Dial(ctx, a.cfg.Relay, engine.DialOptions{Peer: a.cfg.Peer})
	if err != nil {
		return nil, err
	}
	if err := a.announce(ctx, link); err != nil {
		link.Close(0, "")
		return nil, err
	}
	a.log.Info("at the relay", append(peer(link.PeerKey()), slog.String("relay", a.cfg.Relay))...)
	if a.cfg.OnReady != nil {
		a.cfg.OnReady(Standing{Agent: a.cfg.Name, Peer: link.PeerKey(), Addr: link.RemoteAddr()})
	}
	return link, nil
}

// announce tells the relay of the agent and asks whether it has it (D22).
func (a *Agent) announce(ctx context.Context, link *engine.Association) error {
	if err := a.disco.Announce(ctx, link, a.record); err != nil {
		return err
	}
	records, err := a.disco.Query(ctx, link, disco.Filter{
		Kinds: disco.ListOf(disco.KindAgent), NamePrefix: []byte(a.cfg.Name),
	})
	if err != nil {
		return err
	}
	for _, r := range records {
		if string(r.ID) == string(a.record.ID) && string(r.Agent.AgentID) == a.cfg.Name {
			return nil
		}
	}
	return ErrNotTaken
}

// Shutdown ends the agent in order: new requests are refused, those under way
// are answered, then the association is closed. When ctx ends first, what is
// still under way is given up, and ctx's error returned; a Backend that goes on
// although its contexts have ended is waited for at most 5 s more. A second call
// waits for the first.
func (a *Agent) Shutdown(ctx context.Context) error {
	var err error
	a.down.Do(func() {
		defer close(a.done)
		err = a.shutdown(ctx)
	})
	<-a.done
	return err
}

func (a *Agent) shutdown(ctx context.Context) error {
	a.leave()
	a.mu.Lock()
	started := a.started
	a.mu.Unlock()
	if started {
		<-a.stopped // soon: everything that Run waits for ends with stay
	}
	a.mu.Lock()
	e := a.engine
	a.mu.Unlock()
	var err error
	if e != nil {
		err = e.Shutdown(ctx)
	}
	a.end(ctx)
	return err
}

// end lets what is under way end until ctx does, and gives up the rest: requests
// of associations that were lost, and all of them when ctx has ended. A backend that
// goes on even then is left behind.
func (a *Agent) end(ctx context.Context) {
	a.serving.Close()
	_ = a.serving.Wait(ctx)
	a.giveUp()
	grace, cancel := context.WithTimeout(context.Background(), backendGrace)
	defer cancel()
	if a.serving.Wait(grace) != nil {
		a.log.Warn("the backend goes on although its contexts have ended", slog.Int("messages", a.serving.Inside()))
	}
}

// AgentStats counts since NewAgent.
type AgentStats struct {
	InFlight int // requests and notifications under way now

	Bridge    carriage.Stats
	Discovery discovery.Stats
}

// Stats returns the counters.
func (a *Agent) Stats() AgentStats {
	return AgentStats{InFlight: a.serving.Inside(), Bridge: a.bridge.Stats(), Discovery: a.disco.Stats()}
}

// server is the Agent as a carriage.Handler, on the bridge's workers.
type server Agent

// ServeRequest implements carriage.Handler.
func (s *server) ServeRequest(r *carriage.Request) {
	if s.serving.Enter() != nil {
		_ = r.Refuse(bridge.CodeNotDelivered, textDraining) // nobody else answers
		return
	}
	defer s.serving.Leave()
	switch {
	case s.cfg.AGNTCY != nil:
		s.operate(r)
		return
	case r.Streams():
		s.stream(r)
		return
	}
	ctx, cancel := context.WithTimeout(s.work, s.cfg.Timeout)
	defer cancel()
	reply, err := s.deliver(ctx, r)
	if err != nil {
		s.refuse(r, err)
		return
	}
	defer reply.Release()
	switch {
	case reply.Error:
		err = r.Fail(reply.Body)
	case r.Document() && r.Sets():
		err = respondCard(r, reply.Body)
	default:
		err = r.Respond(reply.Body)
	}
	s.carried(r, err)
}

// respondCard answers with a card as a document set, and its signatures as proofs.
func respondCard(r *carriage.Request, octets []byte) error {
	set, err := card.Document(bytes.Clone(octets), 0)
	if err != nil {
		_ = r.Refuse(bridge.CodeNotDelivered, err.Error()) // nobody else answers
		return err
	}
	return document.Respond(r, set, carriage.SetOptions{})
}

// carried logs an answer that can't be carried, which has been answered with that,
// or that ended with its association and has nobody to go to.
func (s *server) carried(r *carriage.Request, err error) {
	if err != nil {
		s.log.Debug("an answer was not carried", slog.String("op", string(r.Method())), slog.Any("error", err))
	}
}

// stream serves a request that is answered by a stream: each event of the backend
// is sent on when it comes, and the terminal one ends the stream at once (D19).
func (s *server) stream(r *carriage.Request) {
	to, err := r.Stream(carriage.StreamOptions{})
	if err != nil {
		return // the exchange is over
	}
	// When nobody takes the stream any more, its source is left.
	ctx, cancel := context.WithCancel(to.Context())
	defer cancel()
	defer context.AfterFunc(s.work, cancel)()
	var seen a2a.Event
	reply, err := s.cfg.Backend.Stream(ctx, message(&r.Inbound), func(octets []byte) error {
		if seen = a2a.Classify(octets); seen != a2a.Terminal {
			return to.Send(ctx, octets)
		}
		if err := to.End(octets); err != nil {
			return err
		}
		return upstream.ErrEnough
	})
	switch {
	case reply != nil:
		if reply.Error {
			err = to.Fail(reply.Body)
		} else {
			err = to.Respond(reply.Body)
		}
		reply.Release()
	case err == nil && seen == a2a.Interrupted:
		err = to.EndEmpty()
	case err == nil && seen != a2a.Terminal:
		err = errUnended
	}
	if err == nil || to.Err() != nil {
		return
	}
	s.carried(r, err)
	code, text := reason(err)
	_ = to.Refuse(code, text) // nobody else ends it
}

var errUnended = errors.New("the agent's stream ended without a terminal event")

func (s *server) deliver(ctx context.Context, r *carriage.Request) (*upstream.Reply, error) {
	if r.Document() { // D24
		if method := string(r.Method()); method != a2a.MethodGetCard {
			return s.cfg.Backend.ExtendedCard(ctx, method)
		}
		return s.cfg.Backend.Card(ctx)
	}
	return s.cfg.Backend.Call(ctx, message(&r.Inbound))
}

func message(m *carriage.Inbound) *upstream.Request {
	return &upstream.Request{Method: string(m.Method()), ID: m.ID(), Body: m.Foreign(), Effect: m.Effect()}
}

// refuse tells the caller why there is no answer.
func (s *server) refuse(r *carriage.Request, err error) {
	code, text := reason(err)
	_ = r.Refuse(code, text) // nobody else answers
}

func reason(err error) (bridge.Code, string) {
	var told *bridge.Error
	if errors.As(err, &told) {
		return told.Code, told.Text
	}
	return bridge.CodeNotDelivered, err.Error()
}

// ServeNotify implements carriage.Handler.
func (s *server) ServeNotify(n *carriage.Notify) {
	if n.Document() || s.serving.Enter() != nil { // an HTTP agent has no use for a document
		return
	}
	defer s.serving.Leave()
	ctx, cancel := context.WithTimeout(s.work, s.cfg.Timeout)
	defer cancel()
	notify := func() error { return s.cfg.Backend.Notify(ctx, message(&n.Inbound)) }
	if s.cfg.AGNTCY != nil {
		notify = func() error { return s.publish(ctx, n) }
	}
	if err := notify(); err != nil {
		s.log.Warn("a notification was not delivered", slog.String("op", string(n.Method())), slog.Any("error", err))
	}
}
