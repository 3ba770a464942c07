package assoc_test

import (
	"errors"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/engine/conn"
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

// source is a flow's source of so many frames of a size.
type source struct {
	flow       sched.Flow
	left, size int
}

func (s *source) Fill(dst []byte) []byte { return append(dst, make([]byte, s.size)...) }

func (s *source) Next() (wire.FrameType, int, bool) {
	s.left--
	return typ, s.size, s.left > 0
}

func (s *source) Rest() {}

// What is offered takes no room and no budget, and leaves when there is room for it.
func TestOfferTakesNoRoom(t *testing.T) {
	budget := buf.NewBudget(1 << 30)
	p, _, s := streams(t, func(o *nptest.Options) {
		o.Client.OutboundLimit = 64 << 10
		o.Client.Budget = budget
		o.Client.Conn.HighWater = 16 << 10
	})
	p.Client.Block(true)
	o := &source{left: 100, size: 3000}
	o.flow.Source = o
	if err := p.Client.Offer(wire.ChannelBridge, typ, &o.flow, o.size); err != nil { // outside a turn
		t.Fatal(err)
	}
	p.Settle()
	if p.Client.Queued() != 0 || budget.Used() != 0 || o.left == 100 || o.left < 90 {
		t.Errorf("%d octets queued, %d of the budget, %d frames left of 100", p.Client.Queued(), budget.Used(), o.left)
	}
	if err := p.Client.SendBuf(wire.ChannelBridge, typ, plain("another")); err != nil {
		t.Errorf("nothing is left for others: %v", err)
	}
	p.Client.Block(false)
	p.Settle()
	if len(s.frames) != 101 || o.left != 0 {
		t.Errorf("%d frames arrived", len(s.frames))
	}
	p.Client.Close(0, "")
	p.Settle()
	if err := p.Client.Offer(wire.ChannelBridge, typ, &o.flow, 1); !errors.Is(err, assoc.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// A peer that takes nothing of what is offered stalls.
func TestOfferedCanStall(t *testing.T) {
	p, _, _ := streams(t, func(o *nptest.Options) {
		o.Client.Stall = 3 * time.Second
		o.Server.Conn.Credit = conn.FloorCredit
	})
	o := &source{left: 1, size: 1 << 20}
	o.flow.Source = o
	first := &source{left: 8, size: (wire.DefaultFrameLen - 1000) / 8} // what a frame at most has is granted
	first.flow.Source = first
	p.Server.Block(true) // so that it grants nothing
	for _, s := range []*source{first, o} {
		if err := p.Client.Offer(wire.ChannelBridge, typ, &s.flow, s.size); err != nil {
			t.Fatal(err)
		}
	}
	p.Run(8 * time.Second)
	if err := p.Client.Err(); !errors.Is(err, assoc.ErrStalled) || o.left+first.left == 0 {
		t.Errorf("%v, %d left", err, o.left+first.left)
	}
}

// Dropped frames are not sent, and no longer counted.
func TestDropFlow(t *testing.T) {
	budget := buf.NewBudget(1 << 30)
	p, _, s := streams(t, func(o *nptest.Options) { o.Client.Budget = budget })
	var flow sched.Flow
	for range 3 {
		if err := p.Client.Enqueue(wire.ChannelBridge, typ, &flow, plain("x")); err != nil {
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
