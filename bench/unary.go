package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// ErrLoad is returned when no request at all was answered as it should be. It
// wraps the first fault.
var ErrLoad = errors.New("bench: no request was answered")

// load is a running set of closed loops.
type load struct {
	o      Options
	bridge *carriage.Bridge
	call   carriage.Call
	reply  []byte

	stop      atomic.Bool
	measuring atomic.Bool
	running   sync.WaitGroup // one for each request in flight
	links     []*link

	fault sync.Once
	first error
}

// link is one association and what was measured on it. The lock is next to never
// contended: with callbacks only the association's loop takes it.
type link struct {
	a  *engine.Association
	mu sync.Mutex
	latencies
	requests, errors uint64
}

// end accounts for one request and says whether the next one may start.
func (l *load) end(k *link, start time.Time, r *carriage.Reply, err error) bool {
	took := time.Since(start)
	good := err == nil && r.Err == nil && r.Kind == bridge.KindResponse && bytes.Equal(r.Foreign, l.reply)
	if !good {
		l.fault.Do(func() {
			switch {
			case err != nil:
				l.first = err
			case r.Err != nil:
				l.first = r.Err
			default:
				l.first = fmt.Errorf("bench: a reply of kind %v is not the expected one", r.Kind)
			}
		})
	}
	if l.measuring.Load() {
		k.mu.Lock()
		if good {
			k.record(took)
			k.requests++
		} else {
			k.errors++
		}
		k.mu.Unlock()
	}
	return !l.stop.Load() && (good || k.a.Err() == nil)
}

// caller is one request in flight of the callback client.
type caller struct {
	*load
	link  *link
	start time.Time
}

func (c *caller) next() {
	c.start = time.Now()
	if _, err := c.bridge.Start(c.link.a, &c.call, c); err != nil {
		// What can't be started now can't be a moment later either; trying on would
		// keep the loop from what it waits for.
		c.end(c.link, c.start, nil, err)
		c.running.Done()
	}
}

// HandleReply is called on the association's loop.
func (c *caller) HandleReply(r *carriage.Reply) {
	if !c.end(c.link, c.start, r, nil) {
		c.running.Done()
		return
	}
	c.next()
}

// block is one request in flight of the blocking client.
func (l *load) block(ctx context.Context, k *link) {
	defer l.running.Done()
	for {
		start := time.Now()
		r, err := l.bridge.Call(ctx, k.a, &l.call)
		if !l.end(k, start, r, err) {
			return
		}
	}
}

func (l *load) begin(ctx context.Context) {
	for _, k := range l.links {
		for range l.o.InFlight {
			l.running.Add(1)
			if l.o.Client == "blocking" {
				go l.block(ctx, k)
			} else {
				go (&caller{load: l, link: k}).next()
			}
		}
	}
}

// counts sums up what was measured so far.
func (l *load) counts() (requests, errors uint64) {
	for _, k := range l.links {
		k.mu.Lock()
		requests += k.requests
		errors += k.errors
		k.mu.Unlock()
	}
	return requests, errors
}

// UsageFunc reports what the server process has used so far.
type UsageFunc func() (Usage, error)

// Unary measures unary requests against the server that hello names, whose cost
// server reports. Progress is written to progress, a line a second.
//
// Errors: of class ErrOptions or ErrLoad, the context's, or what kept the client
// from connecting.
func Unary(ctx context.Context, o Options, log *slog.Logger, hello Hello, server UsageFunc, progress io.Writer) (_ *Report, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	key, err := identity.ParsePublicKey(hello.Key)
	if err != nil {
		return nil, err
	}
	l := &load{o: o}
	l.call, l.reply = o.call()
	l.bridge = carriage.New(carriage.Config{Protocols: protocols(nil), MaxInFlight: o.InFlight + 1, Logger: log})
	e, err := engine.New(engine.Config{
		Channels:  []engine.ChannelHandler{l.bridge},
		Protocols: l.bridge.Protocols(),
		Transport: o.transport(),
		Loops:     o.ClientLoops,
		Logger:    log,
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
		defer cancel()
		if serr := e.Shutdown(stop); err == nil && serr != nil {
			err = fmt.Errorf("bench: stopping the client: %w", serr)
		}
	}()
	if err := l.dial(ctx, e, hello.Addr, identity.Pin(key)); err != nil {
		return nil, err
	}
	fmt.Fprintf(progress, "bench: %d associations stand; warming up for %v\n", o.Conns, o.Warmup)

	l.begin(ctx)
	report, err := l.measure(ctx, server, progress)
	l.stop.Store(true)
	if err != nil {
		return nil, err // Shutdown ends what is in flight
	}
	l.running.Wait()
	if report.Requests == 0 {
		return nil, fmt.Errorf("%w: %w", ErrLoad, l.first)
	}
	return report, nil
}

// dialling bounds the handshakes at one time, so that none waits for its turn
// past its deadline.
const dialling = 32

func (l *load) dial(ctx context.Context, e *engine.Engine, addr string, peer identity.Verifier) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(dialling)
	l.links = make([]*link, l.o.Conns)
	for i := range l.links {
		g.Go(func() error {
			a, err := e.Dial(ctx, addr, engine.DialOptions{Peer: peer})
			if err != nil {
				return fmt.Errorf("bench: association %d of %d: %w", i+1, l.o.Conns, err)
			}
			l.links[i] = &link{a: a, latencies: newLatencies()}
			return nil
		})
	}
	return g.Wait()
}

func (l *load) measure(ctx context.Context, server UsageFunc, progress io.Writer) (*Report, error) {
	if err := pause(ctx, l.o.Warmup); err != nil {
		return nil, err
	}
	own := newSampler()
	if _, err := own.read(); err != nil { // so that the first real one allocates nothing
		return nil, err
	}
	serverStart, err := server()
	if err != nil {
		return nil, err
	}
	ownStart, err := own.read()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	l.measuring.Store(true)
	var before uint64
	for {
		left := l.o.Duration - time.Since(start)
		if left <= 0 {
			break
		}
		if err := pause(ctx, min(left, time.Second)); err != nil {
			return nil, err
		}
		requests, errors := l.counts()
		fmt.Fprintf(progress, "bench: %v: %d requests, %d errors\n", time.Since(start).Round(100*time.Millisecond), requests-before, errors)
		before = requests
	}
	l.measuring.Store(false)
	elapsed := time.Since(start)
	ownEnd, err := own.read()
	if err != nil {
		return nil, err
	}
	serverEnd, err := server()
	if err != nil {
		return nil, err
	}

	r := &Report{Options: l.o, Machine: thisMachine(), Elapsed: elapsed}
	r.Requests, r.Errors = l.counts()
	r.Rate = rounded(float64(r.Requests)/elapsed.Seconds(), 1)
	all := make([]latencies, len(l.links))
	for i, k := range l.links {
		k.mu.Lock()
		all[i] = latencies{k.h.Clone()}
		k.mu.Unlock()
	}
	r.Latency = merged(all)
	cost := serverEnd.Sub(serverStart)
	r.Server = costOf(cost, cost.Handled)
	r.Client = costOf(ownEnd.Sub(ownStart), r.Requests)
	return r, nil
}

// pause waits for d, or for the end of ctx, whose error it returns.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
