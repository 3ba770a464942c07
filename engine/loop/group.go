// Package loop runs associations on gnet's event loops. It is the only package
// that imports gnet, and the only one in which an association meets a socket and
// a clock.
//
// gnet serves as a bare group of loops. Listening, dialling and handshakes
// happen off the loops, on goroutines that may block; a connection is enrolled
// once its handshake is complete, and from then on only its loop touches it.
//
//	accept/dial -> handshake (own goroutine) -> loop:
//	    read -> Association.Turn -> one write
package loop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/panjf2000/gnet/v2"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/sched"
)

const (
	// DefaultReadBuffer is the size in octets of each loop's read buffer: the
	// most one association can bring in a turn.
	DefaultReadBuffer = 256 << 10
	// Tick is the step of the timing wheels.
	Tick = 100 * time.Millisecond

	// maxLoops is how many loops gnet makes, whatever it is asked for.
	maxLoops = 256
	// scratchMin is the first size of a batch buffer.
	scratchMin = 16 << 10
	// scratchKeep is the largest batch buffer a loop keeps after a turn.
	scratchKeep = 1 << 20
	// maxRounds bounds how often a loop serves what was posted to it before it looks
	// at its sockets again, and maxWritten how many octets it has written by then, but
	// for those of the last round.
	maxRounds  = 16
	maxWritten = 1 << 20
)

// ErrGroupClosed says that the loops have stopped or are about to.
var ErrGroupClosed = errors.New("loop: event loops are closed")

// GroupConfig makes a Group. Zero fields take defaults.
type GroupConfig struct {
	// Loops is the number of event loops, 256 at most; 0 means GOMAXPROCS.
	Loops int
	// ReadBuffer is rounded up to a power of two.
	ReadBuffer int
	Logger     *slog.Logger
}

// Group is a set of event loops.
type Group struct {
	client *gnet.Client
	origin time.Time
	log    *slog.Logger
	part   partLimits

	mu       sync.Mutex
	loops    map[gnet.EventLoop]*eventLoop
	partings int           // connections that part
	alone    chan struct{} // closed when there are none any more; nil while nobody waits

	ropes  []int // of the loops' bells
	notify *notifier
	enroll sync.Mutex // held to enrol
	closed bool
	close  sync.Once
}

// NewGroup starts the loops.
func NewGroup(cfg GroupConfig) (*Group, error) {
	if cfg.Loops <= 0 {
		cfg.Loops = runtime.GOMAXPROCS(0)
	}
	cfg.Loops = min(cfg.Loops, maxLoops)
	if cfg.ReadBuffer <= 0 {
		cfg.ReadBuffer = DefaultReadBuffer
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	g := &Group{
		origin: time.Now(),
		log:    cfg.Logger,
		loops:  make(map[gnet.EventLoop]*eventLoop),
		part:   defaultPart,
	}
	var err error
	if g.notify, err = newNotifier(); err != nil {
		return nil, fmt.Errorf("loop: write notifier: %w", err)
	}
	g.client, err = gnet.NewClient(&events{g: g},
		gnet.WithNumEventLoop(cfg.Loops),
		gnet.WithReadBufferCap(cfg.ReadBuffer),
		gnet.WithTCPNoDelay(gnet.TCPNoDelay),
		gnet.WithTicker(true),
		gnet.WithLogger(gnetLogger{cfg.Logger}),
	)
	if err == nil {
		err = g.client.Start()
	}
	if err != nil {
		g.notify.close()
		return nil, fmt.Errorf("loop: %w", err)
	}
	if err := g.hangBells(cfg.Loops); err != nil {
		_ = g.client.Stop()
		g.notify.close()
		g.dropBells()
		return nil, err
	}
	return g, nil
}

// Now is the time since the group's origin, as its associations see it.
func (g *Group) Now() time.Duration { return time.Since(g.origin) }

// Close stops the loops, once the connections of associations that have ended are
// done, for which there is a second. Associations that are still there end without a
// word to their peers; close them first. It must not be called from a loop.
func (g *Group) Close() error {
	var err error
	g.close.Do(func() {
		g.enroll.Lock() // waits for an enrolment under way
		g.closed = true
		g.enroll.Unlock()
		g.waitParted()
		err = g.client.Stop()
		g.notify.close()
		g.dropBells()
	})
	return err
}

// enrollEstablished hands nc with its association to the loop that has the
// fewest connections, and returns once the association was started there. nc
// belongs to the group in every case.
func (g *Group) enrollEstablished(nc *net.TCPConn, a *assoc.Association, est established) error {
	k := newLink(a, est)
	// One at a time: gnet picks the least loaded loop without synchronising choice
	// and count, so two at once would pick the same. And not while the loops stop:
	// EnrollContext waits for one that may already have ended.
	g.enroll.Lock()
	defer g.enroll.Unlock()
	if g.closed {
		_ = nc.Close()
		return ErrGroupClosed
	}
	_, err := g.client.EnrollContext(nc, k)
	if err == nil && !k.started.Load() {
		err = errors.New("loop: the connection could not be registered")
	}
	return err
}

// loopOf finds what we keep of a gnet loop. It runs on that loop, at OnOpen.
func (g *Group) loopOf(el gnet.EventLoop) *eventLoop {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.loops[el]
	if l == nil {
		l = &eventLoop{g: g, el: el, wheel: sched.NewWheel(Tick, g.Now())}
		l.ticker.l = l
		g.loops[el] = l
	}
	return l
}

// events is what gnet calls.
type events struct {
	gnet.BuiltinEventEngine
	g *Group
}

// OnOpen runs on the connection's loop.
func (e *events) OnOpen(c gnet.Conn) ([]byte, gnet.Action) {
	k, ok := c.Context().(*link)
	if !ok {
		c.Context().(*bell).hang(e.g.loopOf(c.EventLoop()))
		return nil, gnet.None
	}
	k.l, k.c = e.g.loopOf(c.EventLoop()), c
	k.started.Store(true)
	l := k.l
	l.enter()
	if err := k.a.Start(l.now, k, l.wheel); err != nil {
		e.g.log.Error("association could not start", "error", err)
		k.a.TransportClosed(l.now, err)
	}
	early := k.early
	k.early = nil
	if k.records == nil {
		l.turn(k, early)
	} else {
		k.records.attach(l)
		l.begin(k)
		if len(early) > 0 {
			k.a.Feed(early)
		}
		// crypto/tls may hold a part of its last record; what is ours has nothing.
		l.end(k, k.records.open(k.a, nil))
	}
	l.leave()
	return nil, gnet.None
}

// OnTraffic runs on the connection's loop, with what one read brought.
func (e *events) OnTraffic(c gnet.Conn) gnet.Action {
	k, ok := c.Context().(*link)
	if !ok {
		if b, ok := c.Context().(*bell); ok {
			b.heard(c)
		}
		return gnet.None
	}
	if k.closed {
		return gnet.None
	}
	l := k.l
	// Everything is taken every time: what stays would be copied by gnet into a
	// buffer without a bound.
	in, _ := c.Next(-1)
	if k.parting != nil {
		if k.parting.drop(len(in)) {
			return gnet.Close
		}
		return gnet.None
	}
	l.looked()
	l.enter()
	l.turn(k, in)
	l.leave()
	return gnet.None
}

// OnClose runs on the connection's loop, also inside a Write that fails.
func (e *events) OnClose(c gnet.Conn, err error) gnet.Action {
	k, ok := c.Context().(*link)
	if !ok || k.closed {
		return gnet.None
	}
	k.closed = true
	k.c = nil // gnet reuses descriptors: a late write would reach a stranger
	e.g.notify.remove(k)
	if k.parting != nil {
		k.parting.over()
	}
	if errors.Is(err, io.EOF) && k.records == nil {
		err = nil // a plain end; inside TLS it lacks the close_notify before it
	}
	if k.l != nil {
		k.a.TransportClosed(e.g.Now(), err)
	}
	if k.records != nil {
		k.records.release()
	}
	return gnet.None
}

// OnTick runs on a goroutine of its own; the loops step their wheels themselves.
func (e *events) OnTick() (time.Duration, gnet.Action) {
	e.g.mu.Lock()
	defer e.g.mu.Unlock()
	for _, l := range e.g.loops {
		l.ticker.post()
	}
	return Tick, gnet.None
}

// ticker steps its loop's wheel. At most one step is in flight.
type ticker struct {
	l      *eventLoop
	posted atomic.Bool
}

func (t *ticker) post() {
	if t.posted.CompareAndSwap(false, true) && t.l.el.Execute(context.Background(), t) != nil {
		t.posted.Store(false)
	}
}

// Run runs on the loop.
func (t *ticker) Run(context.Context) error {
	t.posted.Store(false)
	t.l.enter()
	t.l.wheel.Advance(t.l.now)
	t.l.leave()
	return nil
}

// eventLoop is what we keep beside one gnet loop. But for dirty and running it
// belongs to that loop.
type eventLoop struct {
	g      *Group
	el     gnet.EventLoop
	ticker ticker
	rope   int  // of its bell
	rung   bool // and not heard yet

	woke    int           // goroutines that were told what they waited for
	patient time.Duration // no yield before

	// dirty holds the links that want a turn. While running is set, whoever adds
	// to it needs not wake the loop: it looks again before it rests.
	dirty   sched.Inbox
	running atomic.Bool

	wheel *sched.Wheel
	now   time.Duration // read once an event, not once a turn
	// Since the sockets were looked at: rounds of dirty links, octets written.
	rounds, written int
	// Buffers of a turn: frames sealed, records opened, records sealed.
	scratch, plain, sealed []byte
}

func (l *eventLoop) enter() {
	l.running.Store(true)
	l.now = l.g.Now()
}

// looked is called for what a socket brings.
func (l *eventLoop) looked() { l.rounds, l.written = 0, 0 }

// leave serves the links that became dirty meanwhile, as long as the sockets can
// wait, then lets the loop rest.
func (l *eventLoop) leave() {
	for l.rounds < maxRounds && l.written < maxWritten {
		l.rounds++
		sched.Run(l.dirty.TakeAll())
		if l.yield() {
			l.enter()
			continue
		}
		l.running.Store(false)
		if l.dirty.Empty() {
			return
		}
		l.enter()
	}
	l.running.Store(false)
	if !l.dirty.Empty() {
		l.ring() // the sockets come first now
	}
}

// yield lets a goroutine run that has just been told its answer, if it is the only
// one, and says whether that brought work. Its next request then finds the loop awake:
// otherwise that takes a write to wake it and the way through the kernel and the
// scheduler, half as long again as all the rest of one request at a time (17,300 to
// 22,700 a second, interleaved, medians of 5). Several find each other there anyway,
// and to yield to them made batches smaller (64 x 16: 13 % fewer).
//
// In a process with more to run than processors a loop that yields may wait long for
// its turn. So it does not again for a hundred times as long as it took.
func (l *eventLoop) yield() bool {
	woke := l.woke
	l.woke = 0
	if woke != 1 {
		return false
	}
	before := l.g.Now()
	if before < l.patient {
		return false
	}
	runtime.Gosched()
	if d := l.g.Now() - before; d > longYield {
		l.patient = before + 100*d
	}
	return !l.dirty.Empty()
}

// longYield is what a caller with little to do between two requests does not take.
const longYield = 50 * time.Microsecond

func (l *eventLoop) wake() { _ = l.el.Execute(context.Background(), l) }

// Run serves what made the loop wake up.
func (l *eventLoop) Run(context.Context) error {
	l.enter()
	l.leave()
	return nil
}

// turn gives k one step with what one read brought, if anything, and writes what
// it yields, in one write.
func (l *eventLoop) turn(k *link, in []byte) {
	if k.closed {
		return
	}
	if k.parting != nil {
		k.parting.proceed()
		return
	}
	l.begin(k)
	var err error
	switch {
	case in == nil:
	case k.records == nil:
		k.a.Feed(in)
	default:
		err = k.records.open(k.a, in)
	}
	l.end(k, err)
}

func (l *eventLoop) begin(k *link) {
	room := 0
	if k.records != nil {
		room = k.records.room()
	}
	if cap(l.scratch) < room {
		l.scratch = make([]byte, 0, scratchMin)
	}
	k.a.BeginTurn(l.now, l.scratch[:room])
}

// end finishes k's turn; read is what its record layer said of the input.
func (l *eventLoop) end(k *link, read error) {
	out := k.a.EndTurn()
	ended := k.a.Ended()
	if k.records != nil {
		sealed, err := k.records.seal(out)
		if read == nil && err != nil {
			read = err
		}
		if read != nil && !ended {
			// Either the peer ended TLS (io.EOF) or broke it. The layer may have said
			// so in an alert; of the association nothing can be said any more.
			if read == io.EOF {
				read = nil
			}
			k.a.TransportClosed(l.now, read)
			ended = true
		}
		if ended {
			sealed = k.records.close(sealed)
		}
		if k.records.room() > 0 {
			l.scratch = keep(l.scratch, sealed)
		} else {
			l.scratch = keep(l.scratch, out)
		}
		out = sealed
	} else {
		l.scratch = keep(l.scratch, out)
	}
	if len(out) > 0 {
		l.written += len(out)
		if _, err := k.c.Write(out); err != nil {
			// OnClose has run inside Write.
			l.g.log.Debug("write failed", "association", k.a.ID(), "error", err)
		}
	}
	if k.closed {
		return
	}
	if ended {
		// What says why may have been sent in an earlier turn.
		if !acked(k.a) && k.part() {
			return
		}
		_ = l.el.Close(k.c) // runs OnClose; gnet tries once more to send what it holds
		return
	}
	held := k.c.OutboundBuffered()
	if held > 0 {
		k.a.WatchStall(held)
	}
	switch {
	case k.a.Pending() && held < k.a.HighWater():
		k.Wake() // behind the others that want a turn
	case k.a.Pending() || held > 0 && k.a.Draining():
		if err := l.g.notify.arm(k); err != nil && !k.mute {
			// Without the notifier the stall deadline is what notices.
			k.mute = true // once a connection: out of descriptors there are many
			l.g.log.Warn("write notification failed", "association", k.a.ID(), "error", err)
		}
	}
}

// keep decides which of a loop's buffer and what a turn made of it serves the
// next turn: the larger one, unless a burst made it too large to keep.
func keep(old, used []byte) []byte {
	if cap(used) > cap(old) && cap(used) <= scratchKeep {
		return used[:0]
	}
	return old
}

// link ties one association to its gnet connection.
type link struct {
	a       *assoc.Association
	node    sched.Node
	early   []byte
	records recordLayer // nil on raw TCP

	// Loop only, set at OnOpen.
	l      *eventLoop
	c      gnet.Conn
	closed bool
	mute   bool // a failed notification has been logged
	// parting is set from the association's last words to the end of the connection.
	parting *parting

	started atomic.Bool
	watch   watch // the notifier's
}

func newLink(a *assoc.Association, est established) *link {
	k := &link{a: a, early: est.early, records: est.records}
	k.node.Owner = k
	k.watch.fd = -1
	return k
}

// Wake implements assoc.Transport.
func (k *link) Wake() {
	l := k.l
	if wake, _ := l.dirty.PushOnce(&k.node); wake && !l.running.Load() {
		l.wake()
	}
}

// Buffered implements assoc.Transport.
func (k *link) Buffered() int {
	if k.closed {
		return 0
	}
	return k.c.OutboundBuffered()
}

// Now implements assoc.Transport.
func (k *link) Now() time.Duration { return k.l.now }

// Yield implements assoc.Yielder.
func (k *link) Yield() { k.l.woke++ }

// Rest implements assoc.Rester.
func (k *link) Rest() {
	if k.records != nil && !k.closed {
		k.records.rest()
	}
}

// RunTask runs on the loop for a dirty link.
func (k *link) RunTask() { k.l.turn(k, nil) }

// gnetLogger brings gnet's own messages to our logger.
type gnetLogger struct{ log *slog.Logger }

func (g gnetLogger) Debugf(string, ...any) {}
func (g gnetLogger) Infof(string, ...any)  {}
func (g gnetLogger) Warnf(f string, a ...any) {
	g.log.Warn("gnet: " + fmt.Sprintf(f, a...))
}
func (g gnetLogger) Errorf(f string, a ...any) {
	g.log.Error("gnet: " + fmt.Sprintf(f, a...))
}
func (g gnetLogger) Fatalf(f string, a ...any) {
	g.log.Error("gnet: " + fmt.Sprintf(f, a...))
}
