package conn

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

func putCRC(h []byte) {
	binary.BigEndian.PutUint32(h[21:25], crc32.Checksum(h[:21], crc32.MakeTable(crc32.Castagnoli)))
}

// HELLO is our first Control frame, HELLO_DONE the second, and HELLO says what
// we carry (D3, D22).
func TestHello_FirstControlFrameAndItsContent(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Protocols = []uint8{2, 1}; c.Agent = "echo"; c.Grease = 0x1234 })
	if len(r.sent) != 2 || r.sent[0].t != wire.TypeHello || r.sent[1].t != wire.TypeHelloDone || r.sent[0].seq != 0 {
		t.Fatalf("sent %v, want HELLO and HELLO_DONE", r.sent)
	}
	var h control.Hello
	if err := control.ParseHello(&h, []byte(r.sent[0].payload)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(h.Protocols, []uint8{2, 1}) || h.Agent != "echo" {
		t.Errorf("protocols %v, agent %q", h.Protocols, h.Agent)
	}
	if h.MaxMessage != wire.DefaultFrameLen || h.Credit != DefaultCredit {
		t.Errorf("largest message %d, credit %d", h.MaxMessage, h.Credit)
	}
	for _, ch := range []wire.Channel{wire.ChannelControl, wire.ChannelBridge, wire.ChannelMemory} {
		if !h.HasChannel(ch) {
			t.Errorf("HELLO does not name %v", ch)
		}
	}
	grease := control.GREASEChannel(0x1234)
	if n := bytes.Count([]byte(r.sent[0].payload), []byte{0x19, byte(grease >> 8), byte(grease)}); n != 2 {
		t.Errorf("GREASE stands %d times in HELLO, want once as a channel and once in the array (D3)", n)
	}
}

func TestHello_NoHelloSendsNone(t *testing.T) {
	r := newRig(t, func(c *Config) { c.NoHello = true })
	if len(r.sent) != 0 {
		t.Fatalf("sent %v", r.sent)
	}
	if !r.c.Usable(wire.ChannelBridge) || r.c.Usable(wire.ChannelMemory) {
		t.Error("without HELLO a peer carries Control, Bridge and Discovery")
	}
}

// Until its HELLO a peer is taken to carry Control, Bridge and Discovery, and a
// Config option widens that; a HELLO with a channel list replaces it, one
// without leaves it (D3).
func TestHello_UsableChannels(t *testing.T) {
	r := newRig(t, func(c *Config) { c.PeerChannels = []wire.Channel{wire.ChannelMemory} })
	if !r.c.Usable(wire.ChannelMemory) {
		t.Error("the widened set is not used")
	}
	r.turn(r.hello(func(h *control.Hello) { h.HasChannels, h.Channels = false, nil }))
	if !r.c.Usable(wire.ChannelMemory) {
		t.Error("a HELLO without channels changed the set")
	}
	r = newRig(t, func(c *Config) { c.PeerChannels = []wire.Channel{wire.ChannelMemory} })
	r.turn(r.hello(nil))
	if r.c.Usable(wire.ChannelMemory) || !r.c.Usable(wire.ChannelImmune) {
		t.Error("a HELLO with channels does not replace the set")
	}
	if _, err := r.c.Begin(wire.ChannelMemory, 0x0120, 1); !errors.Is(err, ErrChannel) {
		t.Errorf("sending on a channel the peer does not carry: %v", err)
	}
}

// Nobody exceeds 1 MiB frames and 1 MiB of credit before the peer's HELLO (D3).
func TestHello_FloorsBeforeIt(t *testing.T) {
	r := newRig(t, nil)
	if got, want := r.c.MaxSend(), wire.FloorFrameLen-wire.HeaderLen-wire.TagLen; got != want {
		t.Fatalf("largest plaintext %d, want %d", got, want)
	}
	r.queueBridge(t, 600<<10)
	r.queueBridge(t, 600<<10)
	if _, out := r.turn(nil); len(out) != 1 {
		t.Fatalf("sent %d frames, want the one within 1 MiB of credit", len(out))
	}
	_, out := r.turn(r.hello(func(h *control.Hello) { h.Credit = 8 << 20 }))
	if len(out) != 1 || len(out[0].payload) != 600<<10 {
		t.Fatalf("HELLO did not release the waiting frame")
	}
	if got, want := r.c.MaxSend(), wire.DefaultFrameLen-wire.HeaderLen-wire.TagLen; got != want {
		t.Errorf("largest plaintext %d, want %d", got, want)
	}
}

func (r *rig) queueBridge(t *testing.T, n int) {
	t.Helper()
	b := buf.Get(wire.HeaderLen + n + wire.TagLen)
	b.B = append(b.B, zeroHeader[:]...)
	b.B = append(b.B, make([]byte, n)...)
	if err := r.c.Enqueue(wire.ChannelBridge, 0x0100, 0, nil, b); err != nil {
		t.Fatal(err)
	}
}

// A peer that never sends HELLO (the published SDK) knows no credit: after
// HelloWait nothing is held back any more.
func TestHello_AbsentOneLiftsTheFloors(t *testing.T) {
	r := newRig(t, nil)
	r.queueBridge(t, 600<<10)
	r.queueBridge(t, 600<<10)
	r.turn(nil)
	at, ok := r.c.Deadline()
	if !ok || at != r.now+DefaultHelloWait {
		t.Fatalf("deadline %v %v", at, ok)
	}
	r.now = at
	r.c.StartBatch(r.now, nil, false)
	r.c.HandleTimeout(r.now)
	if out := r.take(); len(out) != 1 {
		t.Fatalf("sent %d frames after HelloWait, want the one that waited", len(out))
	}
}

func TestCredit_GrantsAndOverrun(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Credit, c.MaxFrame = FloorCredit, wire.FloorFrameLen })
	r.turn(r.hello(nil))
	big := strings.Repeat("d", 400<<10)
	_, out := r.turn(r.frame(wire.ChannelBridge, 0x0100, big))
	var granted uint64
	for _, f := range out {
		if f.t == wire.TypeFlowUpdate && f.ch == wire.ChannelControl {
			granted, _ = control.ParseFlowUpdate([]byte(f.payload))
		}
	}
	if granted != uint64(len(big))+FloorCredit {
		t.Fatalf("granted %d, want %d", granted, len(big)+FloorCredit)
	}
	// Three frames in one turn, before any further grant could be sent.
	var burst []byte
	for range 3 {
		burst = append(burst, r.frame(wire.ChannelBridge, 0x0100, big)...)
	}
	_, out = r.turn(burst)
	r.wantClosed(out, control.CodeLimit)
	if !errors.Is(r.ended, ErrCredit) {
		t.Errorf("cause %v", r.ended.Cause)
	}
}

// Credit does not bind a peer that has sent no HELLO with key 2 (D6).
func TestCredit_NotInForceWithoutBothHellos(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Credit, c.MaxFrame = FloorCredit, wire.FloorFrameLen })
	big := strings.Repeat("d", 1<<19)
	for range 5 {
		r.turn(r.frame(wire.ChannelBridge, 0x0100, big))
	}
	r.wantAlive()
}

// Control frames pass while Bridge waits for credit.
func TestCredit_ControlIsNeverHeldBack(t *testing.T) {
	r := newRig(t, nil)
	r.queueBridge(t, 1000<<10)
	r.queueBridge(t, 1000<<10)
	r.turn(nil)
	if _, out := r.turn(r.frame(wire.ChannelControl, wire.TypePing, "p")); len(out) != 1 || out[0].t != wire.TypePong {
		t.Fatalf("sent %v, want PONG", out)
	}
}

// PONG echoes PING, on every advertised channel (D6, D13).
func TestPing_EchoedOnItsChannel(t *testing.T) {
	r := newRig(t, nil)
	for _, ch := range []wire.Channel{wire.ChannelControl, wire.ChannelBridge, wire.ChannelDiscovery} {
		p := strings.Repeat("p", 64)
		if _, out := r.turn(r.frame(ch, wire.TypePing, p)); len(out) != 1 || out[0] != (sentFrame{ch, wire.TypePong, out[0].seq, p}) {
			t.Errorf("%v: sent %v", ch, out)
		}
	}
}

// A peer that provokes answers without reading them is closed, in bounded memory.
func TestPing_FloodWithoutReadingCloses(t *testing.T) {
	r := newRig(t, nil)
	var flood []byte
	for range MaxPendingReplies + 1 {
		flood = append(flood, r.frame(wire.ChannelControl, wire.TypePing, "p")...)
	}
	r.c.StartBatch(r.now, nil, true) // congested: the transport takes nothing
	r.c.HandleBytes(r.now, flood)
	for {
		ev, ok := r.c.Poll()
		if !ok {
			break
		}
		if ev.Kind == EventClosed {
			r.ended = ev.Err
		}
	}
	if r.ended == nil || !errors.Is(r.ended, ErrReplies) {
		t.Fatalf("ended with %v", r.ended)
	}
}

// Liveness: PING after the silence, dead after two unanswered, and only towards
// peers that sent HELLO (D13, D28).
func TestLiveness(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.hello(nil))
	start := r.now
	pings := 0
	for r.ended == nil {
		at, ok := r.c.Deadline()
		if !ok {
			t.Fatal("no deadline while the peer is silent")
		}
		if at <= r.now {
			t.Fatalf("deadline %v does not lie ahead of %v", at, r.now)
		}
		r.now = at
		r.c.StartBatch(r.now, nil, false)
		r.c.HandleTimeout(r.now)
		for _, f := range r.take() {
			if f.t == wire.TypePing {
				pings++
				if first := r.now - start; pings == 1 && (first < 24*time.Second || first > 36*time.Second) {
					t.Errorf("first PING after %v, want 30 s +- 20 %%", first)
				}
			}
		}
		if ev, ok := r.c.Poll(); ok && ev.Kind == EventClosed {
			r.ended = ev.Err
		}
	}
	if pings != 2 || !errors.Is(r.ended, ErrDead) || r.ended.Code != control.CodeTimeout {
		t.Errorf("%d pings, ended with %v", pings, r.ended)
	}
	if d := r.now - start; d > 3*36*time.Second {
		t.Errorf("noticed after %v", d)
	}
}

func TestLiveness_AnsweredPingsKeepItAlive(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.hello(nil))
	for range 10 {
		at, _ := r.c.Deadline()
		r.now = at
		r.c.StartBatch(r.now, nil, false)
		r.c.HandleTimeout(r.now)
		for _, f := range r.take() {
			if f.t == wire.TypePing {
				r.turn(r.frame(f.ch, wire.TypePong, f.payload))
			}
		}
	}
	r.wantAlive()
}

func TestLiveness_NotTowardsPeersWithoutHello(t *testing.T) {
	r := newRig(t, nil)
	r.now += DefaultHelloWait
	r.c.StartBatch(r.now, nil, false)
	r.c.HandleTimeout(r.now)
	r.take()
	if at, _ := r.c.Deadline(); at != r.c.opened+DefaultHelloIdle {
		t.Errorf("a deadline at %v for a peer that never answers pings; it may be silent for %v", at, DefaultHelloIdle)
	}
	r.now = r.c.opened + DefaultHelloIdle - 1
	r.c.StartBatch(r.now, nil, false)
	r.c.HandleTimeout(r.now)
	if out := r.take(); len(out) != 0 {
		t.Errorf("sent %v", out)
	}
	r.wantAlive()
}

// CLOSE has an empty payload and goes out behind what was queued; the peer's
// CLOSE_ACK ends it (D16).
func TestClose_AfterTheQueueThenAck(t *testing.T) {
	r := newRig(t, nil)
	r.queueBridge(t, 10)
	r.c.Close(r.now, control.CodeShutdown, "bye")
	_, out := r.turn(nil)
	if len(out) != 3 || out[0].ch != wire.ChannelBridge || out[1].t != wire.TypeError || out[2].t != wire.TypeClose || out[2].payload != "" {
		t.Fatalf("sent %v, want the queued frame, ERROR, CLOSE", out)
	}
	if rep, _ := control.ParseErrorReport([]byte(out[1].payload)); rep.Code != control.CodeShutdown || string(rep.Text) != "bye" {
		t.Errorf("reason %+v", rep)
	}
	if _, err := r.c.Begin(wire.ChannelBridge, 0x0100, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("sending after Close: %v", err)
	}
	r.turn(r.frame(wire.ChannelControl, wire.TypeCloseAck, ""))
	if r.ended == nil || r.ended.Remote || !r.ended.Acked || r.ended.Code != control.CodeShutdown {
		t.Errorf("ended with %v", r.ended)
	}
}

// The wait for CLOSE_ACK, and for a queue that does not drain, is bounded.
func TestClose_WaitIsBounded(t *testing.T) {
	r := newRig(t, nil)
	r.queueBridge(t, 1000<<10)
	r.queueBridge(t, 1000<<10) // waits for credit that never comes
	r.c.Close(r.now, 0, "")
	r.turn(nil)
	at, ok := r.c.Deadline()
	if !ok || at != r.now+DefaultCloseWait {
		t.Fatalf("deadline %v %v", at, ok)
	}
	r.now = at
	r.c.StartBatch(r.now, nil, false)
	r.c.HandleTimeout(r.now)
	out := r.take()
	if len(out) != 1 || out[0].t != wire.TypeClose {
		t.Errorf("sent %v, want CLOSE", out)
	}
	if ev, ok := r.c.Poll(); !ok || ev.Kind != EventClosed {
		t.Error("still open after the close deadline")
	}
}

// CLOSE on any channel closes the association and is acknowledged there (D13).
func TestClose_FromThePeerOnAnyChannel(t *testing.T) {
	for _, ch := range []wire.Channel{wire.ChannelControl, wire.ChannelBridge} {
		r := newRig(t, nil)
		r.turn(r.frame(wire.ChannelControl, wire.TypeError, string(control.AppendErrorReport(nil, control.CodeShutdown, "restart"))))
		_, out := r.turn(r.frame(ch, wire.TypeClose, ""))
		if len(out) != 1 || out[0].ch != ch || out[0].t != wire.TypeCloseAck {
			t.Errorf("%v: sent %v, want CLOSE_ACK", ch, out)
		}
		if r.ended == nil || !r.ended.Remote || r.ended.Code != control.CodeShutdown || r.ended.Text != "restart" {
			t.Errorf("%v: ended with %v", ch, r.ended)
		}
	}
}

// A transport that ends without CLOSE is a truncation, never a clean end.
func TestClose_TruncationIsTold(t *testing.T) {
	r := newRig(t, nil)
	r.c.HandleEOF(r.now, nil)
	ev, ok := r.c.Poll()
	if !ok || ev.Kind != EventClosed || !errors.Is(ev.Err, ErrTruncated) || !errors.Is(ev.Err, ErrClosed) {
		t.Errorf("ended with %v", ev.Err)
	}
}

// KEY_UPDATE both ways: ours when a bound is reached, with the marker as last
// frame of the old epoch; the peer's acknowledged on its channel (D1).
func TestKeyUpdate_OursAtTheBound(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Bounds = profiles.Bounds{Frames: 4} })
	for i := range 10 {
		b, err := r.beginDirect(wire.ChannelBridge, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.c.End(append(b, byte(i))); err != nil {
			t.Fatal(err)
		}
		r.take() // opens every frame with the epoch it must have
	}
	var updates, data int
	for _, f := range r.sent {
		switch {
		case f.ch != wire.ChannelBridge:
		case f.t == wire.TypeKeyUpdate:
			updates++
			if f.seq != 3 {
				t.Errorf("marker at sequence %d, want the 4th frame of the epoch", f.seq)
			}
		default:
			data++
		}
	}
	if data != 10 || updates != 3 {
		t.Errorf("%d frames, %d updates; want 10 and 3", data, updates)
	}
}

func (r *rig) beginDirect(ch wire.Channel, n int) ([]byte, error) {
	r.c.StartBatch(r.now, nil, false)
	return r.c.Begin(ch, 0x0100, n)
}

func TestKeyUpdate_OursByOctetsAndByAge(t *testing.T) {
	for name, c := range map[string]struct {
		bounds profiles.Bounds
		step   time.Duration
	}{
		"octets": {profiles.Bounds{Octets: 100}, 0},
		"age":    {profiles.Bounds{Age: time.Minute}, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(cfg *Config) { cfg.Bounds = c.bounds })
			for range 3 {
				r.c.StartBatch(r.now, nil, false)
				r.queueBridge(t, 100)
				r.take()
				r.now += c.step
			}
			n := 0
			for _, f := range r.sent {
				if f.t == wire.TypeKeyUpdate && f.ch == wire.ChannelBridge {
					n++
				}
			}
			if n != 2 {
				t.Errorf("%d updates before three frames, want 2", n)
			}
		})
	}
}

// An idle channel does not rotate (D1).
func TestKeyUpdate_IdleChannelDoesNotRotate(t *testing.T) {
	r := newRig(t, func(c *Config) { c.PingInterval = -1 })
	r.now += 24 * time.Hour
	r.turn(nil)
	for _, f := range r.sent {
		if f.t == wire.TypeKeyUpdate {
			t.Fatalf("sent %+v without traffic", f)
		}
	}
}

func TestKeyUpdate_FromThePeer(t *testing.T) {
	r := newRig(t, nil)
	p := string(control.AppendKeyUpdate(nil, 1))
	_, out := r.turn(r.frame(wire.ChannelBridge, wire.TypeKeyUpdate, p))
	if len(out) != 1 || out[0].ch != wire.ChannelBridge || out[0].t != wire.TypeKeyUpdateAck || out[0].payload != p {
		t.Fatalf("sent %v, want KEY_UPDATE_ACK with the same marker", out)
	}
	if err := r.sealer(wire.ChannelBridge).Update(); err != nil {
		t.Fatal(err)
	}
	r.wantAlive() // under epoch 1, sequence 0
}

// ACKs are informational and never close.
func TestKeyUpdate_StrayAckIsCounted(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.frame(wire.ChannelBridge, wire.TypeKeyUpdateAck, string(control.AppendKeyUpdate(nil, 9))))
	r.turn(r.frame(wire.ChannelBridge, wire.TypeKeyUpdateAck, "garbage"))
	if n := r.c.cfg.Counters.StaleAcks.Load(); n != 2 {
		t.Errorf("counted %d", n)
	}
	r.wantAlive()
}

// Updates from a peer are rate-limited (D1).
func TestKeyUpdate_FloodCloses(t *testing.T) {
	r := newRig(t, nil)
	var out []sentFrame
	for i := 0; r.ended == nil; i++ {
		if i > PeerUpdateBurst {
			t.Fatal("never limited")
		}
		_, out = r.turn(r.frame(wire.ChannelBridge, wire.TypeKeyUpdate, string(control.AppendKeyUpdate(nil, wire.Epoch(i+1)))))
		if r.ended == nil {
			_ = r.sealer(wire.ChannelBridge).Update()
		}
	}
	if !errors.Is(r.ended, ErrUpdateRate) || out[len(out)-1].t != wire.TypeClose {
		t.Errorf("ended with %v", r.ended)
	}
}

// Control and Immune leave before bulk when there is a queue.
func TestQueue_ControlAndImmuneFirst(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.hello(nil))
	r.c.StartBatch(r.now, nil, true) // congested
	for _, ch := range []wire.Channel{wire.ChannelBridge, wire.ChannelImmune} {
		b, err := r.c.Begin(ch, 0x0100, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.c.End(append(b, 'x')); err != nil {
			t.Fatal(err)
		}
	}
	r.take()
	r.c.StartBatch(r.now, nil, false)
	if out := r.take(); len(out) != 2 || out[0].ch != wire.ChannelImmune {
		t.Errorf("sent %v, want Immune first", out)
	}
}

// A batch ends at the high-water mark; the rest waits its turn.
func TestQueue_HighWaterBoundsABatch(t *testing.T) {
	r := newRig(t, func(c *Config) { c.HighWater = 64 << 10; c.NoHello = true })
	for range 10 {
		r.queueBridge(t, 32<<10)
	}
	_, out := r.turn(nil)
	if len(out) != 2 {
		t.Errorf("one batch of %d frames", len(out))
	}
	for n := len(out); n < 10; {
		_, out = r.turn(nil)
		if len(out) == 0 {
			t.Fatal("the queue does not drain")
		}
		n += len(out)
	}
}

func TestBegin_MisuseIsRefused(t *testing.T) {
	r := newRig(t, nil)
	r.c.StartBatch(r.now, nil, false)
	if err := r.c.End(nil); !errors.Is(err, ErrBegin) {
		t.Errorf("End without Begin: %v", err)
	}
	b, err := r.c.Begin(wire.ChannelBridge, 0x0100, 4)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.c.End(append(b, "12345"...)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("more than Begin was told: %v", err)
	}
	if _, err := r.c.Begin(wire.ChannelBridge, 0x0100, r.c.MaxSend()+1); !errors.Is(err, ErrTooLarge) {
		t.Errorf("over the peer's limit: %v", err)
	}
	b, err = r.c.Begin(wire.ChannelBridge, 0x0100, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.c.End(b); err != nil {
		t.Errorf("an empty plaintext: %v", err)
	}
	if out := r.take(); len(out) != 1 || out[0].payload != "" {
		t.Errorf("sent %v", out)
	}
}

// Every split of the input gives the same events.
func TestInput_AnySplit(t *testing.T) {
	for step := 1; step < 130; step += 7 {
		r := newRig(t, nil)
		var in []byte
		for i := range 5 {
			in = append(in, r.frame(wire.ChannelBridge, 0x0100, strings.Repeat("x", 20*i))...)
		}
		var got int
		for len(in) > 0 {
			n := min(step, len(in))
			evs, _ := r.turn(in[:n])
			for _, ev := range evs {
				if len(ev.Payload) != 20*got {
					t.Fatalf("step %d: frame %d has %d octets", step, got, len(ev.Payload))
				}
				got++
			}
			in = in[n:]
		}
		if got != 5 {
			t.Fatalf("step %d: %d frames", step, got)
		}
	}
}

// In steady state a frame in and a frame out allocate nothing.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.hello(nil))
	const runs = 200
	in := make([][]byte, runs+2)
	for i := range in {
		in[i] = r.frame(wire.ChannelBridge, 0x0100, strings.Repeat("x", 512))
	}
	batch := make([]byte, 0, 4096)
	i := 0
	n := testing.AllocsPerRun(runs, func() {
		r.c.StartBatch(r.now, batch, false)
		r.c.HandleBytes(r.now, in[i])
		i++
		for {
			ev, ok := r.c.Poll()
			if !ok {
				break
			}
			b, err := r.c.Begin(ev.Channel, 0x0101, len(ev.Payload))
			if err != nil {
				t.Fatal(err)
			}
			if err := r.c.End(append(b, ev.Payload...)); err != nil {
				t.Fatal(err)
			}
		}
		r.c.Settle()
		if len(r.c.TakeBatch()) == 0 {
			t.Fatal("no echo")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations a frame", n)
	}
}

func TestRelease_GivesEverythingBack(t *testing.T) {
	budget := buf.NewBudget(1 << 20)
	r := newRig(t, func(c *Config) { c.Budget = budget })
	b := r.frame(wire.ChannelBridge, 0x0100, strings.Repeat("x", 9000))
	r.turn(b[:5000])
	if budget.Used() == 0 {
		t.Fatal("a partial frame is not counted")
	}
	r.queueBridge(t, 100)
	r.c.Release()
	if budget.Used() != 0 || r.c.queue.Len() != 0 {
		t.Errorf("%d octets and %d frames left", budget.Used(), r.c.queue.Len())
	}
}

func FuzzConn(f *testing.F) {
	f.Add([]byte("NPAM"), uint8(1))
	f.Add(wire.AppendHeader(nil, wire.FlagENC, 0x0100, wire.ChannelBridge, 0, 16), uint8(3))
	f.Fuzz(func(t *testing.T, in []byte, step uint8) {
		r := newRig(t, nil)
		in = append(r.frame(wire.ChannelBridge, 0x0100, "first"), in...)
		frames := 0
		for len(in) > 0 && r.ended == nil {
			n := min(int(step)+1, len(in))
			evs, _ := r.turn(in[:n])
			for _, ev := range evs {
				if ev.Kind == EventFrame {
					frames++
				}
			}
			in = in[n:]
		}
		if frames > 1 {
			t.Fatal("an unsealed frame was opened")
		}
	})
}

// An end without CLOSE_ACK does not count as one: what was sent may not have been
// read.
func TestClose_WithoutAckIsTold(t *testing.T) {
	r := newRig(t, nil)
	r.c.Close(r.now, 0, "")
	r.turn(nil)
	r.c.HandleEOF(r.now, nil)
	if ev, ok := r.c.Poll(); !ok || ev.Kind != EventClosed || ev.Err.Acked {
		t.Errorf("ended with %v", ev.Err)
	}
}

// A second Close shortens a longer wait and never lengthens it.
func TestClose_ShortensTheWait(t *testing.T) {
	r := newRig(t, nil)
	r.c.CloseBy(r.now, 0, "", r.now+time.Hour)
	r.c.Close(r.now, 0, "")
	r.c.CloseBy(r.now, 0, "", r.now+time.Hour)
	if at, ok := r.c.Deadline(); !ok || at != r.now+DefaultCloseWait {
		t.Errorf("ends at %v, %v", at-r.now, ok)
	}
}

// A frame that the peer's credit can never cover is refused at once: it would
// wait for ever.
func TestCredit_BoundsTheLargestFrame(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.hello(nil))                            // 4 MiB frames, 1 MiB of credit
	const most = FloorCredit - control.KeyUpdateLen // which may have to go before it
	if got := r.c.MaxSend(); got != most {
		t.Errorf("largest plaintext %d, want %d", got, most)
	}
	r.queueBridge(t, most)
	if _, out := r.turn(nil); len(out) != 1 {
		t.Error("the largest frame waits for credit")
	}
	r = newRig(t, func(c *Config) { c.MaxFrame, c.Credit = 8<<20, 1<<20 })
	var h control.Hello
	if err := control.ParseHello(&h, []byte(r.sent[0].payload)); err != nil || h.Credit < h.MaxMessage {
		t.Errorf("our HELLO gives %d octets of credit for frames of %d: %v", h.Credit, h.MaxMessage, err)
	}
}
