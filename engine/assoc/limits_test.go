package assoc_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/engine/conn"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// D28's limits that the association holds, reached at their defaults.

// 8 MiB outbound: the frame that would pass it is refused and counted.
func TestD28_OutboundLimit(t *testing.T) {
	counters := new(assoc.Counters)
	p := pair(t, &probe{}, &probe{}, func(o *nptest.Options) { o.Client.Counters = counters })
	if n := p.Client.Room(); n != 8<<20 {
		t.Fatalf("room for %d octets", n)
	}
	p.Client.Block(true)
	// Fill the transport to its high-water mark, so that all the rest is queued.
	for p.Client.Buffered() < p.Client.HighWater() {
		_ = p.Client.SendBuf(wire.ChannelBridge, typ, plain(strings.Repeat("x", 64<<10)))
		p.Settle()
	}
	const size = 1<<16 - wire.HeaderLen
	n := 0
	for ; p.Client.SendBuf(wire.ChannelBridge, typ, plain(strings.Repeat("x", size))) == nil; n++ {
		p.Settle()
	}
	if n != 128 {
		t.Errorf("%d frames of 64 KiB were queued, want 8 MiB of them", n)
	}
	if counters.WouldBlock.Load() != 1 {
		t.Errorf("counted %d refusals", counters.WouldBlock.Load())
	}
	if err := p.Client.SendBuf(wire.ChannelBridge, typ, plain("")); !errors.Is(err, assoc.ErrWouldBlock) {
		t.Errorf("at the limit: %v", err)
	}
}

// 256 KiB handed to the transport ahead: above it nothing more is sealed.
func TestD28_HighWater(t *testing.T) {
	p := pair(t, &probe{}, &probe{}, nil)
	p.Client.Block(true)
	for range 100 {
		_ = p.Client.SendBuf(wire.ChannelBridge, typ, plain(strings.Repeat("x", 10<<10)))
		p.Settle()
	}
	if n := p.Client.Buffered(); n < 256<<10 || n > 267<<10 {
		t.Errorf("%d octets handed to the transport", n)
	}
}

// D13: a peer that sends no HELLO is not pinged, and may be one that has vanished
// before it could. It may be silent for 15 minutes, and longer while frames go to it
// or an exchange is open; then its association ends, with the reason.
func TestD13_SilenceWithoutHello(t *testing.T) {
	c := &probe{}
	counters := new(conn.Counters)
	p := pair(t, c, &probe{}, func(o *nptest.Options) {
		o.Server.Conn.NoHello = true
		o.Server.Conn.PingInterval, o.Server.Stall = -1, 10*time.Hour // it would notice first
		o.Client.Conn.Counters = counters
	})
	p.Server.Block(true) // as if it had vanished
	live := func(why string) {
		t.Helper()
		if len(c.closed) != 0 {
			t.Fatalf("%s: ended with %v", why, c.closed)
		}
	}
	p.Run(14 * time.Minute)
	live("before its time")
	if err := p.Client.SendBuf(wire.ChannelBridge, typ, plain("x")); err != nil {
		t.Fatal(err)
	}
	p.Run(14 * time.Minute)
	live("a frame went to it")
	c.busy = 1
	p.Run(40 * time.Minute)
	live("an exchange is open")
	c.busy = 0
	p.Run(16 * time.Minute)
	var ce *assoc.CloseError
	if len(c.closed) != 1 || !errors.Is(c.closed[0], conn.ErrIdle) || !errors.As(c.closed[0], &ce) || ce.Code != control.CodeTimeout {
		t.Errorf("ended with %v", c.closed)
	}
	if n := counters.PingsOut.Load(); n != 0 {
		t.Errorf("%d pings", n)
	}
}

// A negative limit lets such a peer be silent for ever.
func TestD13_SilenceWithoutHelloMayBeEndless(t *testing.T) {
	c := &probe{}
	p := pair(t, c, &probe{}, func(o *nptest.Options) {
		o.Server.Conn.NoHello = true
		o.Client.Conn.HelloIdle = -1
	})
	p.Run(24 * time.Hour)
	if len(c.closed) != 0 {
		t.Errorf("ended with %v", c.closed)
	}
}

// Liveness over a link: PING after the silence, an answered one keeps it, a peer
// that vanished is noticed after two, with the reason.
func TestD28_Liveness(t *testing.T) {
	c, s := &probe{}, &probe{}
	counters := new(conn.Counters)
	p := pair(t, c, s, func(o *nptest.Options) {
		o.Client.Conn.Counters = counters
		o.Server.Stall = time.Hour // it would notice first
	})
	p.Run(10 * time.Minute)
	if n := counters.PingsOut.Load(); n < 10 || len(c.closed)+len(s.closed) != 0 {
		t.Fatalf("%d pings in ten idle minutes, closed %v %v", n, c.closed, s.closed)
	}
	p.Server.Block(true) // it says nothing any more
	p.Run(2 * time.Minute)
	if len(c.closed) != 1 || !errors.Is(c.closed[0], conn.ErrDead) {
		t.Errorf("ended with %v", c.closed)
	}
}

// The wait for CLOSE_ACK is bounded by CloseWait, and Close returns at once.
func TestD28_CloseWait(t *testing.T) {
	c := &probe{}
	p := pair(t, c, &probe{}, nil)
	p.Client.Block(true)
	p.Client.Close(control.CodePolicy, "")
	p.Run(conn.DefaultCloseWait - 10*time.Millisecond)
	if len(c.closed) != 0 {
		t.Fatal("closed without an answer, before the wait was over")
	}
	p.Run(20 * time.Millisecond)
	if len(c.closed) != 1 {
		t.Error("still waiting")
	}
}

// One budget bounds the queues and partial frames of all associations together.
func TestD28_BudgetAcrossAssociations(t *testing.T) {
	budget := buf.NewBudget(1 << 20)
	both := func(o *nptest.Options) {
		for _, a := range []*assoc.Options{&o.Client, &o.Server} {
			a.Budget, a.Conn.Budget = budget, budget
			a.Conn.HighWater = 1 << 10
		}
	}
	s := &probe{}
	p, q := pair(t, &probe{}, &probe{}, both), pair(t, &probe{}, s, both)
	p.Client.Block(true)
	for p.Client.SendBuf(wire.ChannelBridge, typ, plain(strings.Repeat("x", 50<<10))) == nil {
		p.Settle()
	}
	if used := budget.Used(); used < 900<<10 || used > 1<<20 {
		t.Fatalf("%d octets in use", used)
	}
	if err := q.Client.SendBuf(wire.ChannelBridge, typ, plain(strings.Repeat("x", 200<<10))); !errors.Is(err, assoc.ErrWouldBlock) {
		t.Errorf("another association: %v", err)
	}
	q.Client.Inject(wire.AppendHeader(nil, wire.FlagENC, typ, wire.ChannelBridge, 0, 900<<10))
	q.Client.Inject(make([]byte, 800<<10))
	q.Settle()
	if len(s.closed) != 1 || !errors.Is(s.closed[0], wire.ErrBudget) {
		t.Errorf("a partial frame without room for it: %v", s.closed)
	}
	p.Cut(nil)
	p.Settle()
	q.Settle()
	if used := budget.Used(); used != 0 {
		t.Errorf("%d octets in use after the end", used)
	}
}
