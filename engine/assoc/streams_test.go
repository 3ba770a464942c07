package assoc_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/sched"
	"github.com/trestle-npamp/trestle/wire"
)

// streaming is a probe whose channel has streams.
type streaming struct {
	probe
	credit []uint64
	corrs  []string
}

func (s *streaming) Attach(a *assoc.Association) assoc.ChannelConn {
	s.a = a
	return s
}

func (s *streaming) HandleStreamCredit(octets uint64, corr []byte) {
	s.credit = append(s.credit, octets)
	s.corrs = append(s.corrs, string(corr))
}

func streams(t *testing.T, edit func(*nptest.Options)) (*nptest.Pair, *streaming, *streaming) {
	t.Helper()
	c, s := &streaming{}, &streaming{}
	var o nptest.Options
	o.Client.Handlers = []assoc.ChannelHandler{c}
	o.Server.Handlers = []assoc.ChannelHandler{s}
	if edit != nil {
		edit(&o)
	}
	p := nptest.NewPair(t, o)
	p.Settle()
	return p, c, s
}

// The credit of a stream reaches the channel on the other side, also when it is
// granted outside a turn (D6).
func TestStreamCreditReachesTheChannel(t *testing.T) {
	p, _, s := streams(t, func(o *nptest.Options) { o.Client.Conn.StreamCredit = 2 << 20 })
	if n, on := p.Server.StreamLimit(); !on || n != 2<<20 {
		t.Errorf("limit %d %v", n, on)
	}
	if n, on := p.Client.StreamWindow(); !on || n != 2<<20 {
		t.Errorf("window %d %v", n, on)
	}
	if err := p.Client.GrantStream(wire.ChannelBridge, 12345, []byte("corr")); err != nil {
		t.Fatal(err)
	}
	p.Settle()
	if len(s.credit) != 1 || s.credit[0] != 12345 || s.corrs[0] != "corr" {
		t.Fatalf("granted %v %q", s.credit, s.corrs)
	}
	p.Client.Close(0, "")
	p.Settle()
	if err := p.Client.GrantStream(wire.ChannelBridge, 1, []byte("c")); !errors.Is(err, assoc.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// What a channel without streams is granted is counted.
func TestStreamCreditOfAChannelWithoutStreams(t *testing.T) {
	c, s := &probe{}, &probe{}
	p := pair(t, c, s, nil)
	if err := p.Client.GrantStream(wire.ChannelBridge, 1, []byte("corr")); err != nil {
		t.Fatal(err)
	}
	p.Settle()
	if n := p.Server.Machine().Usable(wire.ChannelBridge); !n {
		t.Error("the association did not survive it")
	}
}

// Shared octets use half of the outbound limit, whole frames at a time, and give
// everything back.
func TestEnqueueSharedLeavesHalfOfTheLimit(t *testing.T) {
	budget := buf.NewBudget(1 << 30)
	p, c, s := streams(t, func(o *nptest.Options) {
		o.Client.OutboundLimit = 64 << 10
		o.Client.Budget = budget
		o.Client.Conn.HighWater = 16 << 10
	})
	p.Client.Block(true)
	tail := buf.SharedCopy(bytes.Repeat([]byte("e"), 3000))
	var flow sched.Flow
	send := func() error {
		return p.Client.EnqueueShared(wire.ChannelBridge, typ, &flow, plain("head "), tail.Retain())
	}
	for send() == nil {
		p.Settle()
		if p.Client.Queued() > 40<<10 {
			t.Fatal("more than half of the limit and a frame")
		}
	}
	big := buf.SharedCopy(make([]byte, 100<<10))
	if err := p.Client.EnqueueShared(wire.ChannelBridge, typ, nil, plain(""), big); err != assoc.ErrWouldBlock {
		t.Errorf("past half of the limit: %v", err)
	}
	if err := p.Client.SendBuf(wire.ChannelBridge, typ, plain("another")); err != nil {
		t.Errorf("nothing is left for others: %v", err)
	}
	if c.rooms != 0 {
		t.Error("room was told while there is none")
	}
	p.Client.Block(false)
	p.Settle()
	if c.rooms == 0 {
		t.Error("room was not told")
	}
	if err := p.Client.EnqueueShared(wire.ChannelBridge, typ, nil, plain(""), buf.SharedCopy(make([]byte, 100<<10))); err != nil {
		t.Errorf("a frame beyond the limit, with nothing before it: %v", err)
	}
	p.Settle()
	n := 0
	for _, f := range s.frames {
		if string(f) == "head "+string(tail.Octets()) {
			n++
		}
	}
	if n < 10 || len(s.frames) != n+2 {
		t.Errorf("%d of %d frames arrived as they were sent", n, len(s.frames))
	}
	if q := p.Client.Queued(); q != 0 {
		t.Errorf("%d octets still counted", q)
	}
	if u := budget.Used(); u != 0 {
		t.Errorf("%d octets of the budget still taken", u)
	}
	tail.Release()
}

// Dropped frames are not sent, and no longer counted.
func TestDropFlow(t *testing.T) {
	budget := buf.NewBudget(1 << 30)
	p, _, s := streams(t, func(o *nptest.Options) { o.Client.Budget = budget })
	var flow sched.Flow
	for range 3 {
		if err := p.Client.EnqueueShared(wire.ChannelBridge, typ, &flow, plain("x"), nil); err != nil {
			t.Fatal(err)
		}
	}
	if n := p.Client.DropFlow(&flow); n != 3 {
		t.Errorf("dropped %d", n)
	}
	p.Settle()
	if len(s.frames) != 0 || p.Client.Queued() != 0 || budget.Used() != 0 {
		t.Errorf("%d frames arrived, %d octets counted, %d of the budget", len(s.frames), p.Client.Queued(), budget.Used())
	}
}

// A node that is posted already is not posted again.
func TestPostOnce(t *testing.T) {
	p, _, _ := streams(t, nil)
	n := new(countedTask)
	n.node.Owner = n
	for range 3 {
		if !p.Client.PostOnce(&n.node) {
			t.Fatal("refused")
		}
	}
	p.Settle()
	if n.runs != 1 {
		t.Errorf("ran %d times", n.runs)
	}
	p.Client.Close(0, "")
	p.Settle()
	if p.Client.PostOnce(&n.node) {
		t.Error("posted after the end")
	}
}

type countedTask struct {
	node sched.Node
	runs int
}

func (c *countedTask) RunTask() { c.runs++ }
