package assoc_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/crypto/schedule"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/engine/conn"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/sched"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

const typ wire.FrameType = 0x0100

// probe serves Bridge and keeps what it is told.
type probe struct {
	frame  func(p *probe, t wire.FrameType, payload []byte)
	busy   int
	a      *assoc.Association
	frames [][]byte
	rooms  int
	drains int
	hellos int
	closed []error
}

func (p *probe) Channel() wire.Channel { return wire.ChannelBridge }
func (p *probe) Attach(a *assoc.Association) assoc.ChannelConn {
	p.a = a
	return p
}
func (p *probe) HandleFrame(t wire.FrameType, payload []byte) {
	if p.frame != nil {
		p.frame(p, t, payload)
		return
	}
	p.frames = append(p.frames, bytes.Clone(payload))
}
func (p *probe) HandleHello(*control.Hello) { p.hellos++ }
func (p *probe) HandleRoom()                { p.rooms++ }
func (p *probe) HandleDrain()               { p.drains++ }
func (p *probe) Busy() int                  { return p.busy }
func (p *probe) HandleClose(err error)      { p.closed = append(p.closed, err) }

func pair(t *testing.T, client, server *probe, edit func(*nptest.Options)) *nptest.Pair {
	t.Helper()
	var o nptest.Options
	o.Client.Handlers = []assoc.ChannelHandler{client}
	o.Server.Handlers = []assoc.ChannelHandler{server}
	if edit != nil {
		edit(&o)
	}
	p := nptest.NewPair(t, o)
	p.Settle()
	return p
}

func plain(s string) *buf.Buf {
	b := assoc.NewBuf(len(s))
	b.B = append(b.B, s...)
	return b
}

func TestSendBufKeepsOrder(t *testing.T) {
	c, s := &probe{}, &probe{}
	p := pair(t, c, s, nil)
	for _, m := range []string{"a", "b", "", "d"} {
		if err := p.Client.SendBuf(wire.ChannelBridge, typ, plain(m)); err != nil {
			t.Fatal(err)
		}
	}
	p.Settle()
	if got := string(bytes.Join(s.frames, []byte("|"))); got != "a|b||d" {
		t.Errorf("arrived: %q", got)
	}
	if c.hellos != 1 || s.hellos != 1 {
		t.Errorf("HELLO told %d and %d times", c.hellos, s.hellos)
	}
}

// What is queued towards one peer is bounded; whoever was refused is told when
// there is room, and nothing accepted is lost.
func TestOutboundLimit(t *testing.T) {
	budget := buf.NewBudget(1 << 30)
	c, s := &probe{}, &probe{}
	p := pair(t, c, s, func(o *nptest.Options) {
		o.Client.OutboundLimit = 64 << 10
		o.Client.Budget = budget
		o.Client.Conn.HighWater = 16 << 10
	})
	p.Client.Block(true)
	m := strings.Repeat("m", 8<<10)
	accepted := 0
	var err error
	for {
		if err = p.Client.SendBuf(wire.ChannelBridge, typ, plain(m)); err != nil {
			break
		}
		accepted++
		p.Settle()
		if accepted > 100 {
			t.Fatal("never refused")
		}
	}
	if !errors.Is(err, assoc.ErrWouldBlock) {
		t.Fatalf("refused with %v", err)
	}
	if q := p.Client.Queued(); q > 64<<10 {
		t.Errorf("%d octets queued over a limit of 64 KiB", q)
	}
	if c.rooms != 0 {
		t.Error("room was told while there is none")
	}
	p.Client.Block(false)
	p.Settle()
	if len(s.frames) != accepted {
		t.Errorf("%d frames arrived of %d accepted", len(s.frames), accepted)
	}
	if c.rooms == 0 {
		t.Error("nobody was told of the room")
	}
	if q, b := p.Client.Queued(), budget.Used(); q != 0 || b != 0 {
		t.Errorf("%d octets queued, %d of the budget used, after everything left", q, b)
	}
}

// The budget is shared: what one association holds another can't.
func TestSharedBudget(t *testing.T) {
	budget := buf.NewBudget(10 << 10)
	p := pair(t, &probe{}, &probe{}, func(o *nptest.Options) {
		o.Client.Budget, o.Server.Budget = budget, budget
		o.Client.Conn.HighWater = 1
	})
	p.Client.Block(true)
	p.Settle()
	if err := p.Client.SendBuf(wire.ChannelBridge, typ, plain(strings.Repeat("x", 8<<10))); err != nil {
		t.Fatal(err)
	}
	if err := p.Server.SendBuf(wire.ChannelBridge, typ, plain(strings.Repeat("x", 8<<10))); !errors.Is(err, assoc.ErrWouldBlock) {
		t.Errorf("beyond the budget: %v", err)
	}
}

// Send waits for room, and its context ends the wait.
func TestSendWaitsForRoom(t *testing.T) {
	c, s := &probe{}, &probe{}
	p := pair(t, c, s, func(o *nptest.Options) {
		o.Client.OutboundLimit = 16 << 10
		o.Client.Conn.HighWater = 1 << 10
	})
	p.Client.Block(true)
	m := bytes.Repeat([]byte{'m'}, 8<<10)
	for p.Client.SendBuf(wire.ChannelBridge, typ, plain(string(m))) == nil {
		p.Settle()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Client.Send(ctx, wire.ChannelBridge, typ, m); !errors.Is(err, context.Canceled) {
		t.Fatalf("a cancelled Send: %v", err)
	}
	res := make(chan error, 1)
	go func() { res <- p.Client.Send(t.Context(), wire.ChannelBridge, typ, m) }()
	p.Client.Block(false)
	before := 0
	p.RunUntil(func() bool {
		before = len(s.frames)
		return len(res) == 1
	})
	if err := <-res; err != nil {
		t.Fatal(err)
	}
	p.Settle()
	if len(s.frames) <= before-1 {
		t.Error("the waiting frame did not arrive")
	}
}

func TestSendTooLarge(t *testing.T) {
	p := pair(t, &probe{}, &probe{}, nil)
	n := p.Client.MaxSend()
	if err := p.Client.Send(t.Context(), wire.ChannelBridge, typ, make([]byte, n+1)); !errors.Is(err, assoc.ErrTooLarge) {
		t.Errorf("over the peer's limit: %v", err)
	}
}

// D3: a peer that sends no HELLO is held to the floor until its HELLO is no longer
// expected, and gets frames of the default limit from then on.
func TestD3_NoHelloRaisesTheLimitInTime(t *testing.T) {
	p := pair(t, &probe{}, &probe{}, func(o *nptest.Options) { o.Server.Conn.NoHello = true })
	const overhead = wire.HeaderLen + wire.TagLen
	if n := p.Client.MaxSend(); n != wire.FloorFrameLen-overhead {
		t.Errorf("before: frames of %d octets", n+overhead)
	}
	p.Run(conn.DefaultHelloWait + time.Second)
	if n := p.Client.MaxSend(); n != wire.DefaultFrameLen-overhead {
		t.Errorf("after the wait: frames of %d octets", n+overhead)
	}
	if err := p.Client.Send(t.Context(), wire.ChannelBridge, typ, make([]byte, 2<<20)); err != nil {
		t.Error(err)
	}
}

// A peer that takes no octet for the stall deadline loses the association.
func TestStalledPeerIsClosed(t *testing.T) {
	c, s := &probe{}, &probe{}
	p := pair(t, c, s, func(o *nptest.Options) { o.Client.Conn.HighWater = 1 << 10 })
	p.Client.Block(true)
	for range 4 {
		_ = p.Client.SendBuf(wire.ChannelBridge, typ, plain(strings.Repeat("x", 1<<10)))
		p.Settle()
	}
	p.Run(9 * time.Second)
	if len(c.closed) != 0 {
		t.Fatalf("closed before the deadline: %v", c.closed)
	}
	p.Run(12 * time.Second)
	if len(c.closed) != 1 || !errors.Is(c.closed[0], assoc.ErrStalled) || !errors.Is(c.closed[0], assoc.ErrClosed) {
		t.Errorf("ended with %v", c.closed)
	}
}

// A slow peer that still takes something is no stalled one.
func TestSlowPeerIsKept(t *testing.T) {
	c, s := &probe{}, &probe{}
	p := pair(t, c, s, func(o *nptest.Options) { o.Client.Conn.HighWater = 1 << 10 })
	for range 20 {
		p.Client.Block(true)
		for range 4 {
			_ = p.Client.SendBuf(wire.ChannelBridge, typ, plain(strings.Repeat("x", 1<<10)))
		}
		p.Run(6 * time.Second)
		p.Client.Block(false)
		p.Settle()
	}
	if len(c.closed) != 0 {
		t.Errorf("ended with %v", c.closed)
	}
}

// A handler's panic ends its association, with the reason, and no other.
func TestPanicEndsOnlyItsAssociation(t *testing.T) {
	c, s := &probe{}, &probe{frame: func(*probe, wire.FrameType, []byte) { panic("boom") }}
	counters := new(assoc.Counters)
	p := pair(t, c, s, func(o *nptest.Options) { o.Server.Counters = counters })
	_ = p.Client.SendBuf(wire.ChannelBridge, typ, plain("x"))
	p.Settle()
	if len(s.closed) != 1 || !errors.Is(s.closed[0], assoc.ErrPanic) || counters.Panics.Load() != 1 {
		t.Errorf("server ended with %v, %d panics counted", s.closed, counters.Panics.Load())
	}
	var ce *assoc.CloseError
	if len(c.closed) != 1 || !errors.As(c.closed[0], &ce) || ce.Code != control.CodeInternal || !ce.Remote {
		t.Errorf("client ended with %v", c.closed)
	}
	if strings.Contains(ce.Error(), "boom") {
		t.Error("the peer was told what panicked")
	}
}

// A drain waits for what is busy, then closes with its reason.
func TestDrainWaitsForBusyChannels(t *testing.T) {
	c, s := &probe{}, &probe{busy: 1}
	p := pair(t, c, s, nil)
	p.Server.Drain(control.CodeShutdown, "going")
	p.Settle()
	if s.drains != 1 || len(s.closed) != 0 {
		t.Fatalf("drained %d times, closed %v", s.drains, s.closed)
	}
	_ = p.Client.SendBuf(wire.ChannelBridge, typ, plain("still served"))
	p.Settle()
	if len(s.frames) != 1 {
		t.Error("a draining association serves nothing")
	}
	p.Server.Do(func() { s.busy = 0 })
	p.Settle()
	var ce *assoc.CloseError
	if len(c.closed) != 1 || !errors.As(c.closed[0], &ce) || ce.Code != control.CodeShutdown {
		t.Errorf("client ended with %v", c.closed)
	}
}

// After the end nothing runs, nothing is sent, and everybody was told once.
func TestEndIsTotal(t *testing.T) {
	budget := buf.NewBudget(1 << 20)
	c, s := &probe{}, &probe{}
	p := pair(t, c, s, func(o *nptest.Options) { o.Client.Budget = budget })
	p.Cut(errors.New("cable"))
	ran := false
	if !p.Client.Do(func() { ran = true }) {
		t.Error("a task was refused before the end")
	}
	if err := p.Client.SendBuf(wire.ChannelBridge, typ, plain("x")); err != nil {
		t.Errorf("before the end: %v", err)
	}
	p.Settle()
	if !ran {
		t.Error("a task accepted before the end did not run")
	}
	if err := p.Client.SendBuf(wire.ChannelBridge, typ, plain("x")); !errors.Is(err, assoc.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
	if _, err := p.Client.Begin(wire.ChannelBridge, typ, 1); !errors.Is(err, assoc.ErrClosed) {
		t.Errorf("Begin after the end: %v", err)
	}
	if p.Client.Do(func() { t.Error("ran after the end") }) {
		t.Error("a task was accepted after the end")
	}
	p.Settle()
	if len(c.closed) != 1 || !errors.Is(c.closed[0], conn.ErrTruncated) {
		t.Errorf("told %v", c.closed)
	}
	<-p.Client.Done()
	if budget.Used() != 0 {
		t.Errorf("%d octets of the budget left", budget.Used())
	}
}

// Timers of a channel run on the loop, and what they send leaves.
func TestChannelTimer(t *testing.T) {
	c, s := &probe{}, &probe{}
	p := pair(t, c, s, nil)
	tm := &channelTimer{p: c}
	tm.timer.Owner = tm
	p.Client.Do(func() { p.Client.StartTimer(&tm.timer, time.Second) })
	p.Run(900 * time.Millisecond)
	if len(s.frames) != 0 {
		t.Fatal("early")
	}
	p.Run(200 * time.Millisecond)
	if len(s.frames) != 1 {
		t.Fatal("the timer's frame did not arrive")
	}
}

type channelTimer struct {
	timer sched.Timer
	p     *probe
}

func (t *channelTimer) HandleExpire(time.Duration) {
	b, err := t.p.a.Begin(wire.ChannelBridge, typ, 4)
	if err == nil {
		err = t.p.a.End(append(b, "tick"...))
	}
	if err != nil {
		panic(err)
	}
}

// A request answered in its turn leaves in that turn's one write.
func TestOneWriteATurn(t *testing.T) {
	c := &probe{}
	s := &probe{frame: func(p *probe, t wire.FrameType, payload []byte) {
		b, err := p.a.Begin(wire.ChannelBridge, t+1, len(payload))
		if err == nil {
			err = p.a.End(append(b, payload...))
		}
		if err != nil {
			panic(err)
		}
	}}
	p := pair(t, c, s, nil)
	before := p.Server.Batches()
	for range 100 {
		_ = p.Client.SendBuf(wire.ChannelBridge, typ, plain("request"))
	}
	p.Settle()
	if len(c.frames) != 100 {
		t.Fatalf("%d replies", len(c.frames))
	}
	if n := p.Server.Batches() - before; n != 1 {
		t.Errorf("%d writes for 100 replies of one read", n)
	}
}

// The whole way from octets to a handler and back allocates nothing.
func TestEchoTurnAllocatesNothing(t *testing.T) {
	s := &probe{frame: func(p *probe, t wire.FrameType, payload []byte) {
		b, err := p.a.Begin(wire.ChannelBridge, t, len(payload))
		if err == nil {
			err = p.a.End(append(b, payload...))
		}
		if err != nil {
			panic(err)
		}
	}}
	var wireOut [][]byte
	p := pair(t, &probe{}, s, func(o *nptest.Options) {
		o.Tap = func(from assoc.Role, b []byte) {
			if from == assoc.Client {
				wireOut = append(wireOut, bytes.Clone(b))
			}
		}
	})
	wireOut = nil
	const runs = 200
	p.Client.Block(true) // what the client seals is fed by hand below
	for range runs + 1 {
		_ = p.Client.SendBuf(wire.ChannelBridge, typ, plain(strings.Repeat("x", 512)))
		p.Settle()
	}
	batch := make([]byte, 0, 4096)
	i := 0
	n := testing.AllocsPerRun(runs, func() {
		if len(p.Server.Turn(p.Now(), wireOut[i], batch)) == 0 {
			t.Fatal("no echo")
		}
		i++
	})
	if n != 0 {
		t.Errorf("%v allocations a turn", n)
	}
}

// A frame over the outbound limit is not undeliverable: it goes when nothing
// else waits.
func TestOversizedFrameGoesAlone(t *testing.T) {
	c, s := &probe{}, &probe{}
	p := pair(t, c, s, func(o *nptest.Options) {
		o.Client.OutboundLimit = 64 << 10
		o.Client.Conn.HighWater = 1 << 10
	})
	p.Client.Block(true)
	for p.Client.SendBuf(wire.ChannelBridge, typ, plain(strings.Repeat("x", 1<<10))) == nil {
		p.Settle()
	}
	if err := p.Client.SendBuf(wire.ChannelBridge, typ, plain(strings.Repeat("x", 512<<10))); !errors.Is(err, assoc.ErrWouldBlock) {
		t.Errorf("beside others: %v", err)
	}
	p.Client.Block(false)
	p.Settle()
	n := len(s.frames)
	if err := p.Client.Send(t.Context(), wire.ChannelBridge, typ, make([]byte, 512<<10)); err != nil {
		t.Errorf("alone: %v", err)
	}
	p.Settle()
	if len(s.frames) != n+1 || len(s.frames[n]) != 512<<10 {
		t.Error("it did not arrive")
	}
}

// A timer that an expiring timer starts runs its whole time.
func TestTimerStartedByATimer(t *testing.T) {
	c, s := &probe{}, &probe{}
	p := pair(t, c, s, nil)
	tm := &chain{a: p.Client.Association}
	tm.timer.Owner = tm
	start := p.Now()
	p.Client.Do(func() { p.Client.StartTimer(&tm.timer, time.Second) })
	p.Run(10 * time.Second)
	if len(tm.at) != 3 {
		t.Fatalf("expired %d times, want 3", len(tm.at))
	}
	for i, at := range tm.at {
		if d := at - start; d < time.Duration(i+1)*time.Second || d > time.Duration(i+1)*time.Second+100*time.Millisecond {
			t.Errorf("expiry %d after %v", i, d)
		}
	}
}

type chain struct {
	timer sched.Timer
	a     *assoc.Association
	at    []time.Duration
}

func (c *chain) HandleExpire(now time.Duration) {
	if c.at = append(c.at, now); len(c.at) < 3 {
		c.a.StartTimer(&c.timer, time.Second)
	}
}

// A posted task that panics ends the association; those behind it still run.
func TestTasksBehindAPanicRun(t *testing.T) {
	c, s := &probe{}, &probe{}
	p := pair(t, c, s, nil)
	ran := false
	p.Client.Do(func() { panic("boom") })
	p.Client.Do(func() { ran = true })
	p.Settle()
	if !ran {
		t.Error("a task that was accepted did not run")
	}
	if len(c.closed) != 1 || !errors.Is(c.closed[0], assoc.ErrPanic) {
		t.Errorf("ended with %v", c.closed)
	}
}

// An idle association gives back its expanded keys, and works on as before.
func TestRestAndWakeUp(t *testing.T) {
	c, s := &probe{}, &probe{}
	p := pair(t, c, s, nil)
	for i := range 3 {
		_ = p.Client.SendBuf(wire.ChannelBridge, typ, plain("x"))
		p.Settle()
		if !p.Client.Expanded() || !p.Server.Expanded() {
			t.Fatal("no key is expanded although a frame was just sent")
		}
		p.Run(4 * time.Second)
		if !p.Client.Expanded() {
			t.Error("rests after less than five seconds")
		}
		p.Run(2 * time.Second)
		if p.Client.Expanded() || p.Server.Expanded() {
			t.Error("keys are expanded in an idle association")
		}
		if len(s.frames) != i+1 {
			t.Fatalf("%d frames arrived, want %d", len(s.frames), i+1)
		}
	}
}

// L24: PINGs keep no keys between them, or a part of all idle associations would
// always hold theirs.
func TestRestBetweenPings(t *testing.T) {
	var frames conn.Counters
	p := pair(t, &probe{}, &probe{}, func(o *nptest.Options) { o.Client.Conn.Counters, o.Server.Conn.Counters = &frames, &frames })
	p.Run(10 * time.Second) // nothing is left of the start
	const step = 100 * time.Millisecond
	held, all := 0, 0
	for ; all < int(5*time.Minute/step); all++ {
		p.Run(step)
		if p.Client.Expanded() || p.Server.Expanded() {
			held++
		}
	}
	if pings := frames.PingsOut.Load(); pings < 8 || pings > 25 || held == 0 {
		t.Fatalf("%d PINGs in five minutes, expanded keys at %d of %d looks", pings, held, all)
	}
	if at := float64(held) / float64(all); at > 0.04 {
		t.Errorf("keys are expanded for %.0f %% of the time", at*100)
	}
}

// A PING does not hurry the rest after work, and makes none of its own wait.
func TestPingsDoNotHurryTheRest(t *testing.T) {
	c, s := &probe{}, &probe{}
	var frames conn.Counters
	p := pair(t, c, s, func(o *nptest.Options) { o.Client.Conn.PingInterval, o.Client.Conn.Counters = 2*time.Second, &frames })
	p.Run(10 * time.Second)
	_ = p.Client.SendBuf(wire.ChannelBridge, typ, plain("x"))
	p.Settle()
	before := frames.PingsOut.Load()
	for at := time.Duration(0); at < 4800*time.Millisecond; at += 100 * time.Millisecond {
		if !p.Client.Expanded() || !p.Server.Expanded() {
			t.Fatalf("rests after %v", at)
		}
		p.Run(100 * time.Millisecond)
	}
	if frames.PingsOut.Load() == before {
		t.Error("no PING came meanwhile")
	}
	p.Run(2 * time.Second)
	rested := false
	for range 20 {
		p.Run(100 * time.Millisecond)
		rested = rested || !p.Client.Expanded() && !p.Server.Expanded()
	}
	if !rested {
		t.Error("PINGs kept the keys")
	}
}

// A timer that finds nothing to do is nothing that happens: it keeps no keys.
func TestRestInSpiteOfTimers(t *testing.T) {
	c, s := &probe{}, &probe{}
	p := pair(t, c, s, func(o *nptest.Options) { o.Client.Stall = 4 * time.Second })
	p.Run(10 * time.Second) // nothing is left of the start
	p.Client.Block(true)
	_ = p.Client.SendBuf(wire.ChannelBridge, typ, plain("x")) // waits, and so the stall deadline runs
	p.Settle()
	_ = p.Client.SendBuf(wire.ChannelBridge, typ, plain("y"))
	p.Settle()
	p.Client.Block(false)
	p.Settle()
	if len(s.frames) != 2 || !p.Client.Expanded() {
		t.Fatalf("%d frames arrived, expanded %v", len(s.frames), p.Client.Expanded())
	}
	p.Run(5*time.Second + 500*time.Millisecond) // the stall deadline was in it
	if p.Client.Expanded() {
		t.Error("a timer kept the keys")
	}
}

// A drain waits until everything has been given to the transport, however slow
// its peer reads.
func TestDrainWaitsForWhatIsQueued(t *testing.T) {
	c, s := &probe{}, &probe{}
	p := pair(t, c, s, func(o *nptest.Options) { o.Server.Conn.HighWater = 8 << 10 })
	p.Server.Block(true)
	const n = 20
	for range n {
		if err := p.Server.SendBuf(wire.ChannelBridge, typ, plain(strings.Repeat("x", 4<<10))); err != nil {
			t.Fatal(err)
		}
	}
	p.Settle()
	p.Server.Drain(control.CodeShutdown, "")
	for range 30 { // the peer reads a little every two seconds
		p.Run(2 * time.Second)
		if len(s.closed) > 0 {
			t.Fatalf("closed with %d of %d frames read: %v", len(c.frames), n, s.closed)
		}
		p.Server.Block(false)
		p.Settle()
		if len(c.closed) > 0 {
			break
		}
		p.Server.Block(true)
	}
	if len(c.frames) != n || len(c.closed) != 1 {
		t.Errorf("%d of %d frames arrived, closed %v", len(c.frames), n, c.closed)
	}
}

// A handler that panics in Attach is an error of the start.
func TestPanicInAttach(t *testing.T) {
	a := assoc.New(assoc.Options{Handlers: []assoc.ChannelHandler{panicky{}}, Conn: pairConfig()}, 0)
	if err := a.Start(0, still{}, sched.NewWheel(time.Millisecond, 0)); !errors.Is(err, assoc.ErrPanic) {
		t.Errorf("started with %v", err)
	}
}

type panicky struct{}

func (panicky) Channel() wire.Channel                       { return wire.ChannelBridge }
func (panicky) Attach(*assoc.Association) assoc.ChannelConn { panic("attach") }

type still struct{}

func (still) Wake()              {}
func (still) Buffered() int      { return 0 }
func (still) Now() time.Duration { return 0 }

func pairConfig() conn.Config {
	root := func(d wire.Direction) *schedule.Root {
		return schedule.NewRoot(profiles.SHA256, d, make([]byte, 32))
	}
	return conn.Config{
		Profile: profiles.Standard, Suite: profiles.AES256GCM,
		Send: root(wire.ServerToClient), Recv: root(wire.ClientToServer),
	}
}

// What an association says when it ends leaves with the turn that ended it:
// CLOSE_ACK, and ERROR with CLOSE for a fault.
func TestLastWordsLeave(t *testing.T) {
	p := pair(t, &probe{}, &probe{}, nil)
	p.Client.Close(0, "")
	p.Settle()
	var ce *assoc.CloseError
	if !errors.As(p.Client.Err(), &ce) || !ce.Acked {
		t.Errorf("CLOSE: ended with %v, not acknowledged", p.Client.Err())
	}
	p = pair(t, &probe{}, &probe{}, nil)
	forged := wire.AppendHeader(nil, wire.FlagENC, typ, wire.ChannelBridge, 7, wire.TagLen)
	p.Client.Inject(append(forged, make([]byte, wire.TagLen)...))
	p.Settle()
	if !errors.As(p.Client.Err(), &ce) || !ce.Remote || ce.Code != control.CodeCrypto {
		t.Errorf("fault: the peer was told %v", p.Client.Err())
	}
}
