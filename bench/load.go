package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// ErrLoad is returned when nothing at all went as it should. It wraps the first
// fault.
var ErrLoad = errors.New("bench: nothing went as it should")

const (
	// dialling bounds the handshakes at one time, so that none waits for its turn
	// past its deadline.
	dialling = 32
	// maxFaults in a row end a slot: trying on would only keep others from their
	// work.
	maxFaults = 3
	// tick is the step of the rate over time.
	tick = 100 * time.Millisecond
	// An open loop may go on for a while to send what its schedule wanted sent.
	minGrace, maxGrace = time.Second, 10 * time.Second
)

// Part is what was measured of one kind of request.
type Part struct {
	Good, Bad uint64
	spread    latencies
}

func (p *Part) times() latencies {
	if p.spread.h == nil {
		p.spread = newLatencies()
	}
	return p.spread
}

// Latency gives the quantiles of those whose time was taken.
func (p *Part) Latency() Latency { return p.times().quantiles() }

// Distribution gives quantiles enough to draw them.
func (p *Part) Distribution() []Quantile { return p.times().distribution() }

func (p *Part) add(q *Part) {
	p.Good += q.Good
	p.Bad += q.Bad
	p.times().add(q.times())
}

// Point is how much went on in one step of time.
type Point struct {
	At   time.Duration `json:"at_ns"` // its end
	Rate float64       `json:"per_second"`
}

// Sample is what one run of a Load measured.
type Sample struct {
	Elapsed time.Duration
	// Main are the requests, events or deliveries that the scenario is about, and
	// Beside what it has beside them: large messages, or publications.
	Main, Beside Part
	// Among are requests of Notify that were made while the notifications were sent,
	// one at a time on the first connection, and Bare are questions about its Usage that
	// the server answered over its pipes, in turns with those of Beside.
	Among, Bare Part
	// Unsent is how many requests of an open loop's schedule were not even started
	// when its time was over. The time that they had waited is among the latencies.
	Unsent uint64
	Series []Point
	// Server and Client are what the two processes used in Elapsed.
	Server, Client Usage
}

// Add adds another run of the same load to s.
func (s *Sample) Add(t *Sample) {
	for _, p := range t.Series {
		s.Series = append(s.Series, Point{s.Elapsed + p.At, p.Rate})
	}
	s.Elapsed += t.Elapsed
	s.Main.add(&t.Main)
	s.Beside.add(&t.Beside)
	s.Unsent += t.Unsent
	s.Server, s.Client = s.Server.Add(t.Server), s.Client.Add(t.Client)
}

// Rate is how many good ones of Main there were in a second.
func (s *Sample) Rate() float64 {
	if s.Elapsed <= 0 {
		return 0
	}
	return float64(s.Main.Good) / s.Elapsed.Seconds()
}

// Load is a client with its connections, ready to put its scenario's load on a
// server as often as is wanted.
//
// A closed loop has a fixed number of requests in flight and starts the next when
// one has ended. An open loop starts them at fixed times, whatever became of the
// ones before, and takes the time of each from when it should have been started:
// what a slow server keeps from being sent counts as slow.
type Load struct {
	o      Options
	target Target
	shape  string
	origin time.Time
	conns  []Conn
	lanes  []*lane
	paced  []*lane
	slots  []*slot

	measuring atomic.Bool
	stop      atomic.Bool
	active    sync.WaitGroup // slots at work
	running   sync.WaitGroup // goroutines
	quit      chan struct{}  // closed to end the goroutines of a run
	pacer     chan struct{}  // closed when a run's schedule is worked off

	// Of a run's open loop, since origin: its start, what is measured of it, and
	// the step between two requests.
	begun, from, until time.Duration
	step               float64

	fault sync.Once
	first error
}

// lane are the requests of one kind on one connection. Its lock is held for a few
// instructions at a time.
type lane struct {
	l     *Load
	tally *tally
	paced bool
	index int // among the paced ones
	// beside says that its requests are counted in Sample.Beside.
	beside bool

	mu   sync.Mutex
	due  int64 // how many requests of the schedule have been started
	idle []*slot
}

// slot is the place of one request at a time.
type slot struct {
	l     *Load
	lane  *lane
	tally *tally
	at    time.Duration // when its request was, or should have been, started
	fails int           // in a row
	// A slot has begin, which starts a request and does not wait, or call, which
	// waits for its end.
	begin func() error
	call  func(context.Context, *slot) error
	wake  chan struct{} // of a slot with call, in an open loop
	// aside says that good ends are not counted: what counts is counted elsewhere.
	aside bool
}

// NewLoad connects and prepares. Close must follow, also after an error.
func NewLoad(ctx context.Context, o Options, t Target) (*Load, error) {
	l := &Load{o: o, target: t, origin: time.Now(), shape: o.Client}
	if err := o.Validate(); err != nil {
		return l, err
	}
	if o.Scenario == Handshake {
		l.handshakes()
		return l, nil
	}
	prepare, ok := map[string]func(context.Context) error{
		Unary: l.unary, Mixed: l.mixed, Stream: l.streams, Fanout: l.fanout,
	}[o.Scenario]
	if !ok {
		return l, fmt.Errorf("%w: %s is no load that can be repeated", ErrOptions, o.Scenario)
	}
	conns := o.Conns
	if o.Scenario == Fanout {
		conns++ // the publisher's
	}
	var err error
	if l.conns, err = dial(ctx, t, conns); err != nil {
		return l, err
	}
	return l, prepare(ctx)
}

// errShape says that a client can't do what its scenario needs.
func (l *Load) errShape() error {
	return fmt.Errorf("%w: this client has no %s", ErrOptions, l.o.Scenario)
}

// Shape is the client's: the one asked for, or "blocking" if it has no other.
func (l *Load) Shape() string { return l.shape }

func (l *Load) now() time.Duration { return time.Since(l.origin) }

func (l *Load) lane(paced bool) *lane {
	n := &lane{l: l, tally: newTally(), paced: paced && l.o.Rate > 0}
	if n.paced {
		n.index = len(l.paced)
		l.paced = append(l.paced, n)
	}
	l.lanes = append(l.lanes, n)
	return n
}

func (l *Load) slot(n *lane, call func(context.Context, *slot) error) *slot {
	s := &slot{l: l, lane: n, tally: n.tally, call: call, wake: make(chan struct{}, 1)}
	l.slots = append(l.slots, s)
	return s
}

// requests gives a connection places for requests in the client's shape.
func (l *Load) requests(c Conn, n *lane, m Message, count int) {
	cb, ok := c.(CallbackConn)
	if !ok {
		l.shape = Blocking
	}
	for range count {
		s := l.slot(n, func(ctx context.Context, _ *slot) error { return c.Call(ctx, m) })
		if l.shape == Callback {
			s.begin = cb.Place(m, s.done)
		}
	}
}

func (l *Load) unary(context.Context) error {
	for _, c := range l.conns {
		l.requests(c, l.lane(true), Plain, l.o.InFlight)
	}
	return nil
}

func (l *Load) mixed(context.Context) error {
	for _, c := range l.conns {
		l.requests(c, l.lane(true), Plain, l.o.InFlight)
		large := l.lane(false)
		large.beside = true
		l.requests(c, large, Large, l.o.LargeInFlight)
	}
	return nil
}

func (l *Load) streams(ctx context.Context) error {
	for _, c := range l.conns {
		sc, ok := c.(StreamConn)
		if !ok {
			return l.errShape()
		}
		for range l.o.Streams {
			s := l.slot(l.lane(false), nil)
			s.aside = true
			each := func(event []byte) {
				if !l.measuring.Load() {
					return
				}
				if at, ok := Stamp(event); ok {
					s.tally.takes(time.Since(at))
				} else {
					s.tally.counts()
				}
			}
			s.begin = func() error { return sc.Stream(ctx, each, s.done) }
		}
	}
	return nil
}

// handshakes makes connections and ends them. What counts is the time until one
// stands.
func (l *Load) handshakes() {
	l.shape = Blocking
	for range l.o.Conns {
		s := l.slot(l.lane(false), func(ctx context.Context, s *slot) error {
			begun := l.now()
			c, err := l.target.Dial(ctx)
			if err != nil {
				return err
			}
			if took := l.now() - begun; l.measuring.Load() {
				s.tally.takes(took)
			}
			return c.Close()
		})
		s.aside = true
	}
}

// fanout subscribes with all connections but the last, which publishes.
func (l *Load) fanout(ctx context.Context) error {
	last := len(l.conns) - 1
	for _, c := range l.conns[:last] {
		tc, ok := c.(TopicConn)
		if !ok {
			return l.errShape()
		}
		n := l.lane(false)
		err := tc.Subscribe(ctx, func(event []byte) {
			stamp, ok := Stamp(event)
			if len(event) != l.o.Size || !ok {
				l.wrong(fmt.Errorf("bench: an event of %d octets is not what was published", len(event)))
				n.tally.fails()
				return
			}
			// It was made from origin, so that no step of the clock is in it.
			at := time.Duration(stamp.UnixNano() - l.origin.UnixNano())
			if l.counted(at) {
				n.tally.takes(l.now() - at)
			}
		})
		if err != nil {
			return fmt.Errorf("bench: subscribing: %w", err)
		}
	}
	publisher, ok := l.conns[last].(TopicConn)
	if !ok {
		return l.errShape()
	}
	n := l.lane(true)
	n.beside = true
	for range l.o.InFlight {
		event := make([]byte, l.o.Size)
		l.slot(n, func(ctx context.Context, s *slot) error {
			Stamped(event, l.origin.Add(s.at))
			return publisher.Publish(ctx, event)
		})
	}
	return nil
}

// wrong keeps the first fault.
func (l *Load) wrong(err error) { l.fault.Do(func() { l.first = err }) }

// counted tells whether what was started at that time is measured.
func (l *Load) counted(at time.Duration) bool {
	if l.o.Rate > 0 {
		return at >= l.from && at < l.until
	}
	return l.measuring.Load()
}

// done is the end of a request of a slot with begin.
func (s *slot) done(err error) {
	if s.ended(err) {
		s.fire()
	}
}

// fire starts the slot's request.
func (s *slot) fire() {
	if s.begin == nil {
		s.wake <- struct{}{} // its goroutine waits
		return
	}
	if err := s.begin(); err != nil {
		// What can't be started now can't be a moment later either.
		s.fails = maxFaults
		s.ended(err)
	}
}

// loop makes the requests of a slot with call.
func (s *slot) loop(ctx context.Context, quit <-chan struct{}) {
	for {
		select {
		case <-s.wake:
		case <-quit:
			select {
			case <-s.wake: // a run that was broken off
				s.l.active.Done()
			default:
			}
			return
		}
		for s.ended(s.call(ctx, s)) {
		}
	}
}

// ended accounts for a request and says whether the slot starts its next one now;
// s.at is then when it should have started.
func (s *slot) ended(err error) bool {
	l, now := s.l, s.l.now()
	if err != nil {
		l.wrong(err)
		s.fails++
	} else {
		s.fails = 0
	}
	if l.counted(s.at) {
		switch {
		case err != nil:
			s.tally.fails()
		case !s.aside:
			s.tally.takes(now - s.at)
		}
	}
	switch {
	case s.fails >= maxFaults || l.stop.Load():
	case !s.lane.paced:
		s.at = now
		return true
	case s.lane.next(s, now):
		return true
	}
	l.active.Done()
	return false
}

// at is when request number due of the lane should start.
func (n *lane) at() time.Duration {
	return n.l.begun + time.Duration(float64(n.due*int64(len(n.l.paced))+int64(n.index))*n.l.step)
}

// next gives s the request that is due, or puts it to rest.
func (n *lane) next(s *slot, now time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if at := n.at(); at <= now && at < n.l.until {
		n.due++
		s.at = at
		return true
	}
	n.idle = append(n.idle, s)
	return false
}

// take gives an idle slot the request that is due. left says that the schedule
// has more.
func (n *lane) take(now time.Duration) (s *slot, left bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	at := n.at()
	if at >= n.l.until {
		return nil, false
	}
	if at > now || len(n.idle) == 0 {
		return nil, true
	}
	s = n.idle[len(n.idle)-1]
	n.idle = n.idle[:len(n.idle)-1]
	n.due++
	s.at = at
	n.l.active.Add(1)
	return s, true
}

// pace starts what is due in the idle slots of an open loop, until the schedule is
// worked off or the run is stopped.
func (l *Load) pace() {
	defer close(l.pacer)
	sleep, end := preciseSleep()
	defer end()
	for !l.stop.Load() {
		now, left := l.now(), false
		for _, n := range l.paced {
			for {
				s, more := n.take(now)
				left = left || more
				if s == nil {
					break
				}
				s.fire()
			}
		}
		if !left {
			return
		}
		now = l.now()
		next := l.begun + time.Duration(math.Ceil(float64(now-l.begun)/l.step)*l.step)
		sleep(max(next-now, pacing))
	}
}

// pacing is how long the pacer sleeps at least: what is due more often is started
// together.
const pacing = 100 * time.Microsecond

// Run puts the load on for Options.Warmup and then measures for Options.Duration.
// Requests that are in flight then are waited for. Runs follow one another. Lines
// of progress go to progress.
//
// Errors: the context's and the server's; only Close may follow them.
func (l *Load) Run(ctx context.Context, server Server, progress io.Writer) (*Sample, error) {
	own := newSampler()
	defer own.close()
	if _, err := own.read(); err != nil { // so that the first real one allocates nothing
		return nil, err
	}
	l.start(ctx)
	sample, err := l.measure(ctx, own, server, progress)
	if err == nil && l.o.Rate > 0 {
		err = l.workOff(ctx)
	}
	l.stop.Store(true)
	<-l.pacer
	if err == nil {
		l.active.Wait()
	}
	close(l.quit)
	if err != nil {
		return nil, err // Close ends what is in flight
	}
	l.running.Wait()
	l.gather(sample)
	return sample, nil
}

func (l *Load) start(ctx context.Context) {
	l.stop.Store(false)
	l.quit, l.pacer = make(chan struct{}), make(chan struct{})
	l.begun = l.now()
	if l.o.Rate > 0 {
		l.step = float64(time.Second) / l.o.Rate
		l.from = l.begun + l.o.Warmup
		l.until = l.from + l.o.Duration
	}
	for _, n := range l.lanes {
		n.tally.drain(new(Part))
		n.due, n.idle = 0, nil
	}
	for _, s := range l.slots {
		if s.begin == nil {
			l.running.Add(1)
			go func() {
				defer l.running.Done()
				s.loop(ctx, l.quit)
			}()
		}
		s.fails = 0
		if s.lane.paced {
			s.lane.idle = append(s.lane.idle, s)
			continue
		}
		l.active.Add(1)
		s.at = l.now()
		s.fire()
	}
	if l.o.Rate > 0 {
		go l.pace()
	} else {
		close(l.pacer)
	}
}

func (l *Load) measure(ctx context.Context, own *sampler, server Server, progress io.Writer) (*Sample, error) {
	if err := pause(ctx, l.begun+l.o.Warmup-l.now()); err != nil {
		return nil, err
	}
	serverStart, err := server.Usage()
	if err != nil {
		return nil, err
	}
	ownStart, err := own.read()
	if err != nil {
		return nil, err
	}
	s := new(Sample)
	start := l.now()
	l.measuring.Store(true)
	var good, bad, before uint64
	said := start
	for last := start; ; {
		left := start + l.o.Duration - l.now()
		if left <= 0 {
			break
		}
		if err := pause(ctx, min(left, tick)); err != nil {
			l.measuring.Store(false)
			return nil, err
		}
		now := l.now()
		sum, faults := l.counts()
		if now-last >= tick/2 { // a shorter rest at the end would say little
			s.Series = append(s.Series, Point{now - start, rounded(float64(sum-good)/(now-last).Seconds(), 1)})
			good, last = sum, now
		}
		if now-said >= time.Second {
			fmt.Fprintf(progress, "bench: %v: %d good, %d bad\n", (now - start).Round(100*time.Millisecond), sum-before, faults-bad)
			before, bad, said = sum, faults, now
		}
	}
	l.measuring.Store(false)
	s.Elapsed = l.now() - start
	ownEnd, err := own.read()
	if err != nil {
		return nil, err
	}
	serverEnd, err := server.Usage()
	if err != nil {
		return nil, err
	}
	s.Server, s.Client = serverEnd.Sub(serverStart), ownEnd.Sub(ownStart)
	return s, nil
}

// counts sums up what was measured so far of Main.
func (l *Load) counts() (good, bad uint64) {
	for _, n := range l.lanes {
		if n.beside {
			continue
		}
		n.tally.mu.Lock()
		good += n.tally.good
		bad += n.tally.bad
		n.tally.mu.Unlock()
	}
	return good, bad
}

// workOff waits until an open loop has sent what its schedule has, for a while.
func (l *Load) workOff(ctx context.Context) error {
	grace := time.NewTimer(min(max(l.o.Duration, minGrace), maxGrace))
	defer grace.Stop()
	select {
	case <-l.pacer:
	case <-grace.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

func (l *Load) gather(s *Sample) {
	now := l.now()
	for _, n := range l.lanes {
		for n.paced && n.at() < l.until {
			if at := n.at(); l.counted(at) {
				n.tally.record(now - at)
				s.Unsent++
			}
			n.due++
		}
		if n.beside {
			n.tally.drain(&s.Beside)
		} else {
			n.tally.drain(&s.Main)
		}
	}
}

// Last changes how long runs measure from now on, in place of Options.Duration. It
// is not called during a run.
func (l *Load) Last(d time.Duration) { l.o.Duration = d }

// Fault is the first thing that did not go as it should; nil if there was none.
func (l *Load) Fault() error {
	l.wrong(nil) // from now on it stands
	return l.first
}

// Close ends the connections and waits for all that ran.
func (l *Load) Close() error {
	err := l.target.Close()
	l.active.Wait()
	l.running.Wait()
	return err
}

// pause waits for d, or for the end of ctx, whose error it returns.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
