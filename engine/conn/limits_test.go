package conn

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// Each limit of D1, D3, D4, D6 and D28 that the machine holds, at its default.
// Those of liveness, credit, answers and rates are reached in the tests of what
// they limit.

func TestD28_Defaults(t *testing.T) {
	cfg := Config{Profile: profiles.Standard}
	cfg.fill()
	for name, c := range map[string][2]any{
		"largest frame":  {cfg.MaxFrame, 4 << 20},
		"credit":         {cfg.Credit, 16 << 20},
		"high water":     {cfg.HighWater, 256 << 10},
		"ping interval":  {cfg.PingInterval, 30 * time.Second},
		"unanswered":     {maxUnansweredPings, 2},
		"wait for HELLO": {cfg.HelloWait, 5 * time.Second},
		"silence":        {cfg.HelloIdle, 15 * time.Minute},
		"wait for REKEM": {cfg.RekemWait, 30 * time.Second},
		"key bounds":     {cfg.Bounds, profiles.Bounds{Frames: 1 << 24, Octets: 64 << 30, Age: time.Hour}},
		"root bounds":    {cfg.Ratchet, profiles.Bounds{Frames: 1 << 26, Octets: 256 << 30, Age: 4 * time.Hour}},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: %v, want %v", name, c[0], c[1])
		}
	}
}

// Options are lowered to what the documents allow and raised to the floors.
func TestOptions_StayWithinTheFloorsAndTheProfile(t *testing.T) {
	huge := profiles.Bounds{Frames: 1 << 60, Octets: 1 << 60, Age: 1000 * time.Hour}
	for _, p := range profiles.All() {
		cfg := Config{Profile: p, MaxFrame: 1, Credit: 1, Bounds: huge}
		cfg.fill()
		if cfg.MaxFrame != wire.FloorFrameLen || cfg.Credit != FloorCredit {
			t.Errorf("%v: frames of %d and credit of %d, below the floors", p, cfg.MaxFrame, cfg.Credit)
		}
		if cfg.Bounds != p.Bounds {
			t.Errorf("%v: bounds %+v, above the profile's", p, cfg.Bounds)
		}
		cfg = Config{Profile: p, MaxFrame: 1 << 30}
		cfg.fill()
		if cfg.MaxFrame != wire.MaxFrameLen {
			t.Errorf("%v: frames of %d", p, cfg.MaxFrame)
		}
	}
}

// D4: a frame of the largest size is taken, one octet more closes on its header.
func TestD4_LargestFrame(t *testing.T) {
	for name, c := range map[string]struct{ set, want int }{
		"default":    {0, 4 << 20},
		"configured": {1 << 20, 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(cfg *Config) { cfg.MaxFrame = c.set })
			fits := c.want - wire.HeaderLen - wire.TagLen
			evs, _ := r.turn(r.frame(wire.ChannelBridge, 0x0100, strings.Repeat("x", fits)))
			if len(evs) != 1 || len(evs[0].Payload) != fits {
				t.Fatal("the largest frame was not taken")
			}
			over := wire.AppendHeader(nil, wire.FlagENC, 0x0100, wire.ChannelBridge, 1, c.want-wire.HeaderLen+1)
			_, out := r.turn(over)
			r.wantClosed(out, control.CodeLimit)
			if !errors.Is(r.ended, wire.ErrTooLong) {
				t.Errorf("cause %v", r.ended.Cause)
			}
		})
	}
}

// D28: one batch takes 256 KiB, and the frame that passes the mark.
func TestD28_HighWater(t *testing.T) {
	r := newRig(t, func(c *Config) { c.NoHello = true })
	for range 40 {
		r.queueBridge(t, 10<<10)
	}
	n := 0
	_, out := r.turn(nil)
	for _, f := range out {
		n += len(f.payload) + wire.HeaderLen + wire.TagLen
	}
	if n < 256<<10 || n > 256<<10+10<<10+100 {
		t.Errorf("one batch of %d octets", n)
	}
	if !r.c.Sendable() {
		t.Error("the rest does not ask for another turn")
	}
}

// D1: the bounds of the profiles themselves, each from just below it.
func TestD1_KeyBoundsOfTheProfile(t *testing.T) {
	b := profiles.Standard.Bounds
	for name, c := range map[string]struct {
		near func(r *rig)
		at   int // the frame that finds the bound reached
	}{
		"frames": {func(r *rig) {
			setField(r.c.side(wire.ChannelBridge).sealer, "seq", b.Frames-2)
			setField(r.open[wire.ChannelBridge], "seq", b.Frames-2)
		}, 2}, // the last frame of the key is the marker itself
		"octets": {func(r *rig) { setField(r.c.side(wire.ChannelBridge).sealer, "octets", b.Octets-10) }, 2},
		"age":    {func(r *rig) { r.now += b.Age }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(c *Config) { c.Ratchet.Age = -1; c.Rekem = -1; c.NoHello = true })
			r.queueBridge(t, 10)
			r.turn(nil)
			c.near(r)
			for i := 1; i <= c.at; i++ {
				r.queueBridge(t, 10)
				_, out := r.turn(nil)
				if updated := out[0].t == wire.TypeKeyUpdate; updated != (i == c.at) {
					t.Fatalf("frame %d: sent %v", i, types(out))
				}
			}
		})
	}
}

// D28: partial frames of all associations share one budget; whoever finds it
// empty closes with the reason.
func TestD28_BudgetOfPartialFrames(t *testing.T) {
	budget := buf.NewBudget(1 << 20)
	a := newRig(t, func(c *Config) { c.Budget = budget })
	b := newRig(t, func(c *Config) { c.Budget = budget })
	big := a.frame(wire.ChannelBridge, 0x0100, strings.Repeat("x", 900<<10))
	if evs, _ := a.turn(big[:800<<10]); len(evs) != 0 || a.ended != nil {
		t.Fatal("the first partial frame does not fit")
	}
	_, out := b.turn(b.frame(wire.ChannelBridge, 0x0100, strings.Repeat("x", 900<<10))[:800<<10])
	b.wantClosed(out, control.CodeLimit)
	if !errors.Is(b.ended, wire.ErrBudget) {
		t.Errorf("cause %v", b.ended.Cause)
	}
	b.c.Release()
	if evs, _ := a.turn(big[800<<10:]); len(evs) != 1 {
		t.Error("the neighbour's frame was lost")
	}
	if budget.Used() != 0 {
		t.Errorf("%d octets left", budget.Used())
	}
}

// D6: credit is counted from the beginning: a peer whose HELLO comes after it has
// sent more than that closes the association.
func TestD6_OverrunBeforeHello(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Credit, c.MaxFrame = FloorCredit, wire.FloorFrameLen })
	for range 3 {
		r.turn(r.frame(wire.ChannelBridge, 0x0100, strings.Repeat("x", 1<<19)))
	}
	if r.ended != nil {
		t.Fatal("credit bound a peer that knows of none")
	}
	_, out := r.turn(r.hello(nil))
	r.wantClosed(out, control.CodeLimit)
	if !errors.Is(r.ended, ErrCredit) {
		t.Errorf("cause %v", r.ended.Cause)
	}
}

// D3: before the peer's HELLO the floor stands, whatever FLOW_UPDATE says.
func TestD3_NoCreditBeforeHello(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.frame(wire.ChannelControl, wire.TypeFlowUpdate, string(control.AppendFlowUpdate(nil, 1<<40))))
	for range 3 {
		r.queueBridge(t, 1<<19-control.KeyUpdateLen)
	}
	n := 0
	for range 5 {
		_, out := r.turn(nil)
		n += len(out)
	}
	if n != 2 {
		t.Errorf("sent %d frames, want the two within 1 MiB", n)
	}
}

// A profile opens its channels only (draft-bubblefish-npamp-02, section 5).
func TestChannelsOfTheProfile(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Channels = append(c.Channels, wire.ChannelGovernance, wire.ChannelAudit) })
	var h control.Hello
	if err := control.ParseHello(&h, []byte(r.sent[0].payload)); err != nil {
		t.Fatal(err)
	}
	if h.HasChannel(wire.ChannelGovernance) || h.HasChannel(wire.ChannelAudit) {
		t.Errorf("HELLO names %v at Standard", h.Channels)
	}
	r.turn(r.hello(func(h *control.Hello) { h.Channels = append(h.Channels, wire.ChannelGovernance) }))
	if r.c.Usable(wire.ChannelGovernance) {
		t.Error("a channel above the profile is usable because the peer names it")
	}
}

// A frame queued for a channel that the peer's HELLO then does not name is not
// sent.
func TestHello_TakesBackAChannel(t *testing.T) {
	r := newRig(t, func(c *Config) { c.PeerChannels = []wire.Channel{wire.ChannelMemory} })
	r.c.StartBatch(r.now, nil, true) // congested: it waits
	r.say(wire.ChannelMemory, "x")
	r.take()
	_, out := r.turn(r.hello(nil))
	if len(out) != 0 || r.c.Queued() != 0 || r.c.cfg.Counters.DroppedQueued.Load() != 1 {
		t.Errorf("sent %v, %d octets queued", types(out), r.c.Queued())
	}
}

// What a peer says in ERROR is kept to the length of what we would say.
func TestError_LongTextIsCut(t *testing.T) {
	r := newRig(t, nil)
	text := strings.Repeat("a", control.MaxErrorText-1) + "ü" + strings.Repeat("b", 1<<20)
	p := append([]byte{0, byte(control.CodePolicy)}, text...)
	r.turn(r.frame(wire.ChannelControl, wire.TypeError, string(p)))
	r.turn(r.frame(wire.ChannelControl, wire.TypeClose, ""))
	if r.ended == nil || r.ended.Text != text[:control.MaxErrorText-1] {
		t.Errorf("ended with %d octets of text", len(r.ended.Text))
	}
}

// After CLOSE nothing is said any more: an answer would come behind the end.
func TestClose_IsTheLastWord(t *testing.T) {
	r := newRig(t, nil)
	r.c.Close(r.now, 0, "")
	r.turn(nil)
	for _, in := range [][]byte{
		r.frame(wire.ChannelControl, wire.TypePing, "p"),
		r.frame(wire.ChannelBridge, wire.TypeKeyUpdate, string(control.AppendKeyUpdate(nil, 1))),
		r.ratchet(),
		r.rekem(1),
	} {
		if evs, out := r.turn(in); len(evs) != 0 || len(out) != 0 {
			t.Errorf("events %v, sent %v", evs, types(out))
		}
	}
	// Keys are followed all the same: the peer's last words must open.
	_, out := r.turn(r.frame(wire.ChannelControl, wire.TypeClose, ""))
	if len(out) != 1 || out[0].t != wire.TypeCloseAck || r.ended == nil {
		t.Errorf("sent %v, ended %v", types(out), r.ended)
	}
}

// D6: credit counts every plaintext octet outside Control, so a KEY_UPDATE before
// a frame and answers of our own must find room in it too.
func TestD6_CreditCoversKeyUpdatesAndAnswers(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Bounds = profiles.Bounds{Frames: 2} })
	r.turn(r.hello(nil))
	r.queueBridge(t, 10)
	r.turn(nil) // the next frame on Bridge needs another key
	left := func(n int) { r.c.credit.LimitSend(r.c.credit.Sent() + uint64(n)) }

	left(100)
	r.queueBridge(t, 100)
	r.queueBridge(t, 1)
	if _, out := r.turn(nil); len(out) != 0 {
		t.Fatalf("sent %v, which with the key update is more than 100 octets", types(out))
	}
	left(100 + control.KeyUpdateLen)
	if _, out := r.turn(nil); len(out) != 2 || out[0].t != wire.TypeKeyUpdate || len(out[1].payload) != 100 {
		t.Fatalf("sent %v", types(out))
	}
	if n := r.c.credit.Available(); n != 0 {
		t.Errorf("%d octets of credit left", n)
	}
	if _, out := r.turn(r.frame(wire.ChannelBridge, wire.TypePing, "p")); len(out) != 0 {
		t.Errorf("sent %v without credit", types(out))
	}
	r.c.StartBatch(r.now, nil, false)
	if err := r.c.UpdateKey(wire.ChannelBridge); !errors.Is(err, ErrNoCredit) {
		t.Errorf("UpdateKey without credit: %v", err)
	}
	if err := r.c.UpdateKey(wire.ChannelControl); err != nil {
		t.Errorf("Control knows no credit: %v", err)
	}
	r.take()
	left(1 << 10)
	if _, out := r.turn(nil); len(out) < 2 || out[len(out)-1].t != wire.TypePong {
		t.Errorf("sent %v with credit again", types(out))
	}
}
