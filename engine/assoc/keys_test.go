package assoc_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/engine/conn"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// counting serves a channel and checks that what arrives on it is the sequence
// 0, 1, 2, ... that the other side sends.
type counting struct {
	t    testing.TB
	ch   wire.Channel
	next uint64
	err  error
}

func (c *counting) Channel() wire.Channel                       { return c.ch }
func (c *counting) Attach(*assoc.Association) assoc.ChannelConn { return c }
func (c *counting) HandleFrame(_ wire.FrameType, p []byte) {
	if n := binary.BigEndian.Uint64(p); n != c.next {
		c.t.Fatalf("%v: frame %d where %d was due", c.ch, n, c.next)
	}
	c.next++
}
func (c *counting) HandleHello(*control.Hello) {}
func (c *counting) HandleRoom()                {}
func (c *counting) HandleDrain()               {}
func (c *counting) Busy() int                  { return 0 }
func (c *counting) HandleClose(err error)      { c.err = err }

// loadSide is one side of a pair under load.
type loadSide struct {
	*nptest.End
	counters *conn.Counters
	chans    [3]*counting
	sent     [3]uint64 // accepted, by channel
}

var loadChannels = [3]wire.Channel{wire.ChannelBridge, wire.ChannelDiscovery, wire.ChannelImmune}

// send queues or seals the next frame of channel i, of about n octets.
func (s *loadSide) send(i, n int) error {
	p := make([]byte, 8+n)
	binary.BigEndian.PutUint64(p, s.sent[i])
	b := assoc.NewBuf(len(p))
	b.B = append(b.B, p...)
	err := s.SendBuf(loadChannels[i], typ, b)
	if err == nil {
		s.sent[i]++
	}
	return err
}

// Keys and roots change by themselves and on demand, under load, in both
// directions at once, over a link with latency that cuts its octets anywhere and
// sometimes stands still: no frame is lost, none overtakes another, nobody closes.
func TestKeysChangeUnderLoad(t *testing.T) {
	seeds, steps := 40, 1500
	if testing.Short() {
		seeds, steps = 6, 600
	}
	var total conn.Counters
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			for _, k := range runLoad(t, seed, steps) {
				total.KeyUpdatesIn.Add(k.KeyUpdatesIn.Load())
				total.RatchetsIn.Add(k.RatchetsIn.Load())
				total.RekemsIn.Add(k.RekemsIn.Load())
				total.RekemsOut.Add(k.RekemsOut.Load())
				total.RekemsDropped.Add(k.RekemsDropped.Load())
				total.StaleRekems.Add(k.StaleRekems.Load())
				total.FramesIn.Add(k.FramesIn.Load())
			}
		})
	}
	for name, n := range map[string]uint64{
		"key updates":   total.KeyUpdatesIn.Load(),
		"tier-1 steps":  total.RatchetsIn.Load(),
		"tier-2 steps":  total.RekemsIn.Load(),
		"crossed":       total.RekemsDropped.Load(),
		"stale REKEMs":  total.StaleRekems.Load(),
		"frames opened": total.FramesIn.Load(),
	} {
		t.Logf("%s: %d", name, n)
		if n == 0 {
			t.Errorf("%s: none, so the test shows nothing about them", name)
		}
	}
	if in, out := total.RekemsIn.Load(), total.RekemsOut.Load(); in != out {
		t.Errorf("%d tier-2 steps answered, %d taken", in, out)
	}
}

func runLoad(t *testing.T, seed uint64, steps int) [2]*conn.Counters {
	rnd := rand.New(rand.NewPCG(seed, 4))
	all := profiles.All()
	o := nptest.Options{
		Seed:    seed,
		Profile: all[rnd.IntN(len(all))],
		Suite:   profiles.Suite(1 + rnd.IntN(2)),
		Latency: time.Duration(rnd.IntN(4)) * 20 * time.Millisecond,
		Chunk:   []int{0, 0, 1000, 200, 37}[rnd.IntN(5)],
	}
	budget := buf.NewBudget(1 << 30)
	var sides [2]*loadSide
	for i, ao := range []*assoc.Options{&o.Client, &o.Server} {
		s := &loadSide{counters: new(conn.Counters)}
		for j, ch := range loadChannels {
			s.chans[j] = &counting{t: t, ch: ch}
			ao.Handlers = append(ao.Handlers, s.chans[j])
		}
		ao.Budget = budget
		ao.Conn.Budget = budget
		ao.Conn.Counters = s.counters
		ao.Conn.HighWater = 4 << 10
		ao.Conn.Bounds = profiles.Bounds{Frames: 8 + rnd.Uint64N(64), Octets: 20_000, Age: 3 * time.Second}
		ao.Conn.Ratchet = profiles.Bounds{Frames: 50 + rnd.Uint64N(200), Age: 5 * time.Second}
		ao.Conn.Rekem = 7 * time.Second
		ao.OutboundLimit = 64 << 10
		sides[i] = s
	}
	p := nptest.NewPair(t, o)
	sides[0].End, sides[1].End = p.Client, p.Server
	p.Run(time.Second)

	for range steps {
		s := sides[rnd.IntN(2)]
		switch k := rnd.IntN(100); {
		case k < 70:
			for range 1 + rnd.IntN(5) {
				if err := s.send(rnd.IntN(3), rnd.IntN(600)); err != nil && !errors.Is(err, assoc.ErrWouldBlock) {
					t.Fatal(err)
				}
			}
		case k < 74:
			ch := loadChannels[rnd.IntN(3)]
			s.Do(func() { command(t, s.Machine().UpdateKey(ch)) })
		case k < 78:
			s.Do(func() { command(t, s.Machine().Ratchet()) })
		case k < 82:
			s.Do(func() { command(t, s.Machine().Rekem()) })
		case k < 84:
			s.Block(true)
		case k < 88:
			s.Block(false)
		default:
			p.Run(time.Duration(rnd.IntN(400)) * time.Millisecond)
		}
		if rnd.IntN(3) == 0 {
			p.Settle()
		}
	}
	for _, s := range sides {
		s.Block(false)
	}
	p.Run(5 * time.Second)
	for i, s := range sides {
		for j, c := range sides[1-i].chans {
			if c.err != nil {
				t.Fatalf("side %d ended: %v", 1-i, c.err)
			}
			if c.next != s.sent[j] {
				t.Errorf("%v: %d frames arrived of %d sent", c.ch, c.next, s.sent[j])
			}
		}
	}
	cs, cr := sides[0].Machine().Generations()
	ss, sr := sides[1].Machine().Generations()
	if cs != sr || ss != cr {
		t.Errorf("generations %d/%d at one end, %d/%d at the other", cs, cr, ss, sr)
	}
	if budget.Used() != 0 {
		t.Errorf("%d octets held at rest", budget.Used())
	}
	return [2]*conn.Counters{sides[0].counters, sides[1].counters}
}

// command judges what a key change on demand may say in the middle of a load.
func command(t *testing.T, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, conn.ErrRate) && !errors.Is(err, conn.ErrRekemPending) {
		t.Errorf("on demand: %v", err)
	}
}

// ask runs one of the blocking calls while the pair runs.
func ask(t *testing.T, p *nptest.Pair, f func() error) error {
	t.Helper()
	res := make(chan error, 1)
	go func() { res <- f() }()
	p.RunUntil(func() bool { return len(res) == 1 })
	return <-res
}

// Key changes on demand return when they have happened, and say why not.
func TestKeyChangesOnDemand(t *testing.T) {
	p := pair(t, &probe{}, &probe{}, nil)
	ctx := t.Context()
	if err := ask(t, p, func() error { return p.Client.UpdateKey(ctx, wire.ChannelBridge) }); err != nil {
		t.Errorf("UpdateKey: %v", err)
	}
	if err := ask(t, p, func() error { return p.Client.UpdateKey(ctx, wire.ChannelMemory) }); !errors.Is(err, assoc.ErrChannel) {
		t.Errorf("UpdateKey of a channel nobody carries: %v", err)
	}
	if err := ask(t, p, func() error { return p.Client.Ratchet(ctx) }); err != nil {
		t.Errorf("Ratchet: %v", err)
	}
	if err := ask(t, p, func() error { return p.Client.Rekem(ctx) }); err != nil {
		t.Errorf("Rekem: %v", err)
	}
	p.Settle()
	if send, recv := p.Client.Machine().Generations(); send != 1 || recv != 1 {
		t.Errorf("generations %d and %d", send, recv)
	}
	if send, recv := p.Server.Machine().Generations(); send != 1 || recv != 1 {
		t.Errorf("the server's generations %d and %d", send, recv)
	}
	for {
		if err := ask(t, p, func() error { return p.Client.Rekem(ctx) }); err != nil {
			if !errors.Is(err, assoc.ErrRate) {
				t.Errorf("Rekem too often: %v", err)
			}
			break
		}
	}
}

// Who asks while a step is under way waits for that one; a step that the peer's
// own overtakes, that is not answered, or that the association does not live to
// see, says so to all of them.
func TestRekemOutcomes(t *testing.T) {
	two := func(p *nptest.Pair, ctx context.Context) chan error {
		res := make(chan error, 2)
		for range 2 {
			go func() { res <- p.Client.Rekem(ctx) }()
		}
		p.RunUntil(func() bool { return p.Client.Rekems() == 2 })
		return res
	}
	both := func(t *testing.T, p *nptest.Pair, res chan error, want error) {
		t.Helper()
		p.RunUntil(func() bool { return len(res) == 2 })
		for range 2 {
			if err := <-res; !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		}
	}
	t.Run("taken", func(t *testing.T) {
		p := pair(t, &probe{}, &probe{}, func(o *nptest.Options) { o.Latency = time.Millisecond })
		p.Run(time.Second)
		res := two(p, t.Context())
		p.Run(time.Second)
		both(t, p, res, nil)
	})
	t.Run("crossed", func(t *testing.T) {
		p := pair(t, &probe{}, &probe{}, func(o *nptest.Options) { o.Latency = time.Millisecond })
		p.Run(time.Second)
		p.Server.Do(func() { command(t, p.Server.Machine().Ratchet()) })
		res := two(p, t.Context())
		p.Run(time.Second)
		both(t, p, res, assoc.ErrRekemCrossed)
	})
	t.Run("not answered", func(t *testing.T) {
		p := pair(t, &probe{}, &probe{}, func(o *nptest.Options) { o.Server.Conn.KEM = 0xFFFF }) // knows none
		res := two(p, t.Context())
		p.Run(conn.DefaultRekemWait + time.Second)
		both(t, p, res, assoc.ErrRekemTimeout)
	})
	t.Run("ended", func(t *testing.T) {
		p := pair(t, &probe{}, &probe{}, func(o *nptest.Options) { o.Latency = time.Millisecond })
		p.Run(time.Second)
		res := two(p, t.Context())
		p.Cut(nil)
		p.Run(time.Second)
		both(t, p, res, assoc.ErrClosed)
		if err := p.Client.Ratchet(t.Context()); !errors.Is(err, assoc.ErrClosed) {
			t.Errorf("after the end: %v", err)
		}
	})
	t.Run("not waited for", func(t *testing.T) {
		p := pair(t, &probe{}, &probe{}, nil)
		p.Client.Block(true)
		ctx, cancel := context.WithCancel(t.Context())
		res := two(p, ctx)
		cancel()
		both(t, p, res, context.Canceled)
		p.Client.Block(false)
		p.Run(time.Second)
		if _, recv := p.Client.Machine().Generations(); recv != 1 {
			t.Error("the step itself was given up")
		}
	})
}
