package conn

import (
	"errors"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/crypto/kem"
	"github.com/trestle-npamp/trestle/crypto/record"
	"github.com/trestle-npamp/trestle/crypto/schedule"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// say lets the machine send one application frame.
func (r *rig) say(ch wire.Channel, s string) {
	r.t.Helper()
	b, err := r.c.Begin(ch, 0x0100, len(s))
	if err == nil {
		err = r.c.End(append(b, s...))
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func types(out []sentFrame) (ts []wire.FrameType) {
	for _, f := range out {
		ts = append(ts, f.t)
	}
	return ts
}

// MASTER_RATCHET is the last frame of the old generation over all channels: what
// was sealed before it opens under the old root, everything after it under the
// new one, from epoch 0 and sequence number 0 on (binding 9.3, 9.6).
func TestRatchet_BoundaryOverAllChannels(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.hello(nil))
	r.c.StartBatch(r.now, nil, false)
	r.say(wire.ChannelBridge, "old")
	r.say(wire.ChannelImmune, "old")
	if err := r.c.UpdateKey(wire.ChannelBridge); err != nil {
		t.Fatal(err)
	}
	r.say(wire.ChannelBridge, "old, epoch 1")
	if err := r.c.Ratchet(); err != nil {
		t.Fatal(err)
	}
	r.say(wire.ChannelBridge, "new")
	r.say(wire.ChannelImmune, "new")
	r.say(wire.ChannelDiscovery, "new")
	out := r.take() // opens each frame under the root it must have
	if len(out) != 8 || out[4].t != wire.TypeMasterRatchet || out[4].ch != wire.ChannelControl {
		t.Fatalf("sent %v", types(out))
	}
	if got := out[4].payload; got != string(control.AppendRatchet(nil, 1)) {
		t.Errorf("MASTER_RATCHET says %x", got)
	}
	for _, f := range out[5:] {
		if f.seq != 0 {
			t.Errorf("%v goes on at sequence %d in the new generation", f.ch, f.seq)
		}
	}
	if send, recv := r.c.Generations(); send != 1 || recv != 0 {
		t.Errorf("generations %d and %d", send, recv)
	}
	for _, s := range r.c.sealers {
		if s.sealer != nil && s.sealer.Epoch() != 0 {
			t.Errorf("%v keeps epoch %d", s.sealer.Channel(), s.sealer.Epoch())
		}
	}
}

// What waits in the queue when the step is taken leaves under the new root.
func TestRatchet_QueuedFramesAreOfTheNewGeneration(t *testing.T) {
	r := newRig(t, func(c *Config) { c.HighWater = 2000 })
	r.turn(r.hello(nil))
	for range 6 {
		r.queueBridge(t, 900)
	}
	if _, out := r.turn(nil); len(out) != 3 {
		t.Fatalf("sent %d frames", len(out))
	}
	r.c.StartBatch(r.now, nil, false)
	if err := r.c.Ratchet(); err != nil {
		t.Fatal(err)
	}
	out := r.take()
	if len(out) != 4 || out[0].t != wire.TypeMasterRatchet || out[1].seq != 0 {
		t.Fatalf("sent %v", out)
	}
}

// The peer's step is followed on all channels and acknowledged.
func TestRatchet_FromThePeer(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.frame(wire.ChannelBridge, 0x0100, "old"))
	r.turn(r.frame(wire.ChannelDiscovery, 0x0100, "old"))
	for gen := uint64(1); gen <= 3; gen++ {
		in := append(r.ratchet(), r.frame(wire.ChannelDiscovery, 0x0100, "new")...)
		evs, out := r.turn(in)
		if len(out) != 1 || out[0].t != wire.TypeMasterRatchetAck || out[0].payload != string(control.AppendRatchet(nil, gen)) {
			t.Fatalf("sent %v, want MASTER_RATCHET_ACK %d", out, gen)
		}
		if len(evs) != 1 || string(evs[0].Payload) != "new" {
			t.Fatalf("events %v", evs)
		}
		if send, recv := r.c.Generations(); send != 0 || recv != gen {
			t.Errorf("generations %d and %d, want 0 and %d", send, recv, gen)
		}
	}
	if n := r.c.cfg.Counters.RatchetsIn.Load(); n != 3 {
		t.Errorf("counted %d steps", n)
	}
	r.wantAlive()
}

// A generation that is not exactly the next, or a payload that is not exactly its
// TLV, closes and moves no root.
func TestRatchet_RefusedFailsClosed(t *testing.T) {
	for name, payload := range map[string]string{
		"same generation":    string(control.AppendRatchet(nil, 0)),
		"skipped":            string(control.AppendRatchet(nil, 2)),
		"empty":              "",
		"short":              string(control.AppendRatchet(nil, 1)[:11]),
		"trailing":           string(control.AppendRatchet(nil, 1)) + "x",
		"marker of an epoch": string(control.AppendKeyUpdate(nil, 1)),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			_, out := r.turn(r.frame(wire.ChannelControl, wire.TypeMasterRatchet, payload))
			r.wantClosed(out, control.CodeProtocol)
			if !errors.Is(r.ended, ErrRatchet) {
				t.Errorf("cause %v", r.ended.Cause)
			}
			if send, recv := r.c.Generations(); send != 0 || recv != 0 {
				t.Errorf("generations %d and %d after a refused step", send, recv)
			}
		})
	}
}

// The same numbers on another channel are that channel's own (binding 9.3).
func TestRatchet_OnlyOnControl(t *testing.T) {
	r := newRig(t, nil)
	for typ := wire.TypeMasterRatchet; typ <= wire.TypeRekemAck; typ++ {
		evs, out := r.turn(r.frame(wire.ChannelBridge, typ, string(control.AppendRatchet(nil, 1))))
		if len(evs) != 1 || evs[0].Type != typ || len(out) != 0 {
			t.Errorf("type %#x on Bridge: events %v, sent %v", typ, evs, out)
		}
	}
	if _, recv := r.c.Generations(); recv != 0 {
		t.Errorf("receiving generation %d", recv)
	}
}

// ACKs are informational: none closes, none moves anything.
func TestRatchet_StrayAckIsCounted(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.frame(wire.ChannelControl, wire.TypeMasterRatchetAck, string(control.AppendRatchet(nil, 7))))
	r.turn(r.frame(wire.ChannelControl, wire.TypeMasterRatchetAck, "garbage"))
	if n := r.c.cfg.Counters.StaleAcks.Load(); n != 2 {
		t.Errorf("counted %d", n)
	}
	r.wantAlive()
}

// A tier-2 step that we start: REKEM names the generation that follows, and the
// answer heals the direction we receive.
func TestRekem_Ours(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.frame(wire.ChannelBridge, 0x0100, "old"))
	for gen := uint64(1); gen <= 3; gen++ {
		r.c.StartBatch(r.now, nil, false)
		if err := r.c.Rekem(); err != nil {
			t.Fatal(err)
		}
		if err := r.c.Rekem(); !errors.Is(err, ErrRekemPending) {
			t.Errorf("a second one: %v", err)
		}
		out := r.take()
		if len(out) != 1 || out[0].t != wire.TypeRekem || !strings.HasSuffix(out[0].payload, string(control.AppendRatchet(nil, gen))) {
			t.Fatalf("sent %v", types(out))
		}
		if !r.c.Rekeming() {
			t.Error("not under way")
		}
		// Until the answer comes the old root stands.
		r.turn(r.frame(wire.ChannelBridge, 0x0100, "still old"))
		evs, out := r.turn(append(r.answer(), r.frame(wire.ChannelBridge, 0x0100, "healed")...))
		if len(evs) != 1 || string(evs[0].Payload) != "healed" || len(out) != 0 {
			t.Fatalf("events %v, sent %v", evs, out)
		}
		if r.c.Rekeming() || r.c.RekemOutcome() != nil {
			t.Errorf("under way %v, outcome %v", r.c.Rekeming(), r.c.RekemOutcome())
		}
		if send, recv := r.c.Generations(); send != 0 || recv != gen {
			t.Errorf("generations %d and %d", send, recv)
		}
	}
	if n := r.c.cfg.Counters.RekemsOut.Load(); n != 3 {
		t.Errorf("counted %d steps", n)
	}
	r.wantAlive()
}

// A tier-2 step that the peer starts: REKEM_ACK is the last frame under our old
// root, over all channels.
func TestRekem_FromThePeer(t *testing.T) {
	r := newRig(t, nil)
	r.c.StartBatch(r.now, nil, false)
	r.say(wire.ChannelBridge, "old")
	r.c.HandleBytes(r.now, append(r.rekem(1), r.frame(wire.ChannelBridge, 0x0100, "request")...))
	ev, ok := r.c.Poll()
	if !ok || ev.Kind != EventFrame {
		t.Fatal("the frame behind REKEM did not open: REKEM is no boundary")
	}
	r.c.Settle()
	r.say(wire.ChannelBridge, "new")
	out := r.take()
	if len(out) != 3 || out[1].t != wire.TypeRekemAck || out[2].seq != 0 {
		t.Fatalf("sent %v", types(out))
	}
	if send, recv := r.c.Generations(); send != 1 || recv != 0 {
		t.Errorf("generations %d and %d", send, recv)
	}
	if n := r.c.cfg.Counters.RekemsIn.Load(); n != 1 {
		t.Errorf("counted %d steps", n)
	}
	r.wantAlive()
}

// A REKEM that crossed steps of ours is ignored and counted, however many; one
// for a generation that can't be known yet closes.
func TestRekem_StaleIsIgnoredAndFutureCloses(t *testing.T) {
	r := newRig(t, nil)
	r.c.StartBatch(r.now, nil, false)
	for range 2 {
		if err := r.c.Ratchet(); err != nil {
			t.Fatal(err)
		}
	}
	r.take()
	for gen := range uint64(3) {
		if evs, out := r.turn(r.rekem(gen)); len(evs) != 0 || len(out) != 0 {
			t.Errorf("REKEM for %d at generation 2: events %v, sent %v", gen, evs, types(out))
		}
	}
	if n := r.c.cfg.Counters.StaleRekems.Load(); n != 3 {
		t.Errorf("counted %d", n)
	}
	if _, out := r.turn(r.rekem(3)); len(out) != 1 || out[0].t != wire.TypeRekemAck {
		t.Fatalf("sent %v, want REKEM_ACK", types(out))
	}
	_, out := r.turn(r.rekem(5))
	r.wantClosed(out, control.CodeProtocol)
	if send, _ := r.c.Generations(); send != 3 {
		t.Errorf("sending generation %d after a refused step", send)
	}
}

// The peer's MASTER_RATCHET takes the generation our REKEM named: we drop it, the
// peer passes over it, and the next one names the one after.
func TestRekem_DroppedOnTheirRatchet(t *testing.T) {
	r := newRig(t, nil)
	r.c.StartBatch(r.now, nil, false)
	if err := r.c.Rekem(); err != nil {
		t.Fatal(err)
	}
	r.take()
	key := r.c.rekem.key
	r.turn(r.ratchet())
	if r.c.Rekeming() || !errors.Is(r.c.RekemOutcome(), ErrRekemCrossed) {
		t.Errorf("under way %v, outcome %v", r.c.Rekeming(), r.c.RekemOutcome())
	}
	wantErased(t, key)
	r.c.StartBatch(r.now, nil, false)
	if err := r.c.Rekem(); err != nil {
		t.Fatal(err)
	}
	r.take()
	evs, _ := r.turn(append(r.answer(), r.frame(wire.ChannelBridge, 0x0100, "healed")...))
	if len(evs) != 1 || r.c.RekemOutcome() != nil {
		t.Fatalf("events %v, outcome %v", evs, r.c.RekemOutcome())
	}
	if _, recv := r.c.Generations(); recv != 2 {
		t.Errorf("receiving generation %d", recv)
	}
}

// A REKEM that is not answered for 30 s is dropped and its key erased. An answer
// that comes after that can't be followed and closes.
func TestRekem_DroppedAfter30Seconds(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.hello(nil))
	r.c.StartBatch(r.now, nil, false)
	if err := r.c.Rekem(); err != nil {
		t.Fatal(err)
	}
	r.take()
	key := r.c.rekem.key
	late := r.now + DefaultRekemWait
	var at time.Duration
	for at != late {
		var ok bool
		if at, ok = r.c.Deadline(); !ok || at > late {
			t.Fatalf("deadline %v %v, want %v among them", at, ok, late)
		}
		if !r.c.Rekeming() {
			t.Fatal("dropped early")
		}
		r.now = at
		r.c.StartBatch(r.now, nil, false)
		r.c.HandleTimeout(r.now)
		r.take()
	}
	if r.c.Rekeming() || !errors.Is(r.c.RekemOutcome(), ErrRekemTimeout) {
		t.Fatalf("under way %v, outcome %v", r.c.Rekeming(), r.c.RekemOutcome())
	}
	if n := r.c.cfg.Counters.RekemsDropped.Load(); n != 1 {
		t.Errorf("counted %d", n)
	}
	wantErased(t, key)
	_, out := r.turn(r.answer())
	r.wantClosed(out, control.CodeProtocol)
}

func wantErased(t *testing.T, key ephemeral) {
	t.Helper()
	if _, err := key.Decapsulate(make([]byte, rekemCiphertext)); !errors.Is(err, kem.ErrWiped) {
		t.Errorf("the key of a REKEM that is over: %v", err)
	}
}

// What is no answer to our REKEM closes, and moves no root.
func TestRekemAck_RefusedFailsClosed(t *testing.T) {
	ack := func(r *rig, gen uint64) string {
		share, _, err := control.ParseRekem([]byte(r.request), rekemShare)
		if err != nil {
			r.t.Fatal(err)
		}
		ct, _, err := kem.ByID(profiles.X25519MLKEM768).Encapsulate(r.rand, share)
		if err != nil {
			r.t.Fatal(err)
		}
		return string(control.AppendRekemAck(nil, ct, gen))
	}
	for name, c := range map[string]struct {
		payload func(r *rig) string
		code    control.ErrorCode
	}{
		"below":   {func(r *rig) string { return ack(r, 0) }, control.CodeProtocol},
		"above":   {func(r *rig) string { return ack(r, 2) }, control.CodeProtocol},
		"empty":   {func(r *rig) string { return "" }, control.CodeProtocol},
		"short":   {func(r *rig) string { s := ack(r, 1); return s[:len(s)-1] }, control.CodeProtocol},
		"share":   {func(r *rig) string { return r.request }, control.CodeProtocol},
		"trailer": {func(r *rig) string { return ack(r, 1) + "x" }, control.CodeProtocol},
		"low order": {func(r *rig) string {
			s := []byte(ack(r, 1))
			clear(s[4+1088 : 4+1120])
			return string(s)
		}, control.CodeCrypto},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			r.c.StartBatch(r.now, nil, false)
			if err := r.c.Rekem(); err != nil {
				t.Fatal(err)
			}
			r.take()
			_, out := r.turn(r.frame(wire.ChannelControl, wire.TypeRekemAck, c.payload(r)))
			r.wantClosed(out, c.code)
			if _, recv := r.c.Generations(); recv != 0 {
				t.Errorf("receiving generation %d after a refused step", recv)
			}
		})
	}
	t.Run("unasked", func(t *testing.T) {
		r := newRig(t, nil)
		_, out := r.turn(r.frame(wire.ChannelControl, wire.TypeRekemAck, string(control.AppendRekemAck(nil, make([]byte, rekemCiphertext), 1))))
		r.wantClosed(out, control.CodeProtocol)
	})
}

// A corrupt ML-KEM ciphertext is no error of its own: the roots part, and the
// next frame does not open.
func TestRekemAck_CorruptCiphertextPartsTheRoots(t *testing.T) {
	r := newRig(t, nil)
	r.c.StartBatch(r.now, nil, false)
	if err := r.c.Rekem(); err != nil {
		t.Fatal(err)
	}
	r.take()
	share, _, _ := control.ParseRekem([]byte(r.request), rekemShare)
	ct, secret, err := kem.ByID(profiles.X25519MLKEM768).Encapsulate(r.rand, share)
	if err != nil {
		t.Fatal(err)
	}
	ct[7] ^= 1
	ack := control.AppendRekemAck(nil, ct, 1)
	b := r.frame(wire.ChannelControl, wire.TypeRekemAck, string(ack))
	th := schedule.RekemPoint(profiles.SHA256, []byte(r.request), ack)
	if err := r.send.RatchetKEM(secret.Bytes(), &th); err != nil {
		t.Fatal(err)
	}
	r.rerootSealers()
	if evs, out := r.turn(b); len(evs) != 0 || len(out) != 0 {
		t.Fatalf("events %v, sent %v", evs, types(out))
	}
	_, out := r.turn(r.frame(wire.ChannelBridge, 0x0100, "x"))
	r.wantClosed(out, control.CodeCrypto)
	if !errors.Is(r.ended, record.ErrTag) {
		t.Errorf("cause %v", r.ended.Cause)
	}
}

// A malformed REKEM closes, and moves no root.
func TestRekem_RefusedFailsClosed(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(p []byte) []byte
		code control.ErrorCode
	}{
		"empty":      {func(p []byte) []byte { return nil }, control.CodeProtocol},
		"short":      {func(p []byte) []byte { return p[:len(p)-1] }, control.CodeProtocol},
		"trailing":   {func(p []byte) []byte { return append(p, 0) }, control.CodeProtocol},
		"ciphertext": {func(p []byte) []byte { p[1] = 8; return p }, control.CodeProtocol},
		"other size": {func(p []byte) []byte { return control.AppendRekem(nil, make([]byte, 1600), 1) }, control.CodeProtocol},
		"order": {func(p []byte) []byte {
			return append(control.AppendRatchet(nil, 1), p[:len(p)-control.RatchetLen]...)
		}, control.CodeProtocol},
		"low order":         {func(p []byte) []byte { clear(p[4+1184 : 4+1216]); return p }, control.CodeCrypto},
		"not an ML-KEM key": {func(p []byte) []byte { copy(p[4:], strings.Repeat("\xff", 1152)); return p }, control.CodeCrypto},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			key, err := kem.ByID(profiles.X25519MLKEM768).Generate(r.rand)
			if err != nil {
				t.Fatal(err)
			}
			p := c.edit(control.AppendRekem(nil, key.Share(), 1))
			_, out := r.turn(r.frame(wire.ChannelControl, wire.TypeRekem, string(p)))
			r.wantClosed(out, c.code)
			if send, _ := r.c.Generations(); send != 0 {
				t.Errorf("sending generation %d after a refused step", send)
			}
		})
	}
}

// Both directions heal at once: the steps do not get in each other's way.
func TestRekem_BothAtOnce(t *testing.T) {
	r := newRig(t, nil)
	r.c.StartBatch(r.now, nil, false)
	if err := r.c.Rekem(); err != nil {
		t.Fatal(err)
	}
	r.take()
	ours := r.request
	theirs := r.rekem(1)
	_, out := r.turn(theirs)
	if len(out) != 1 || out[0].t != wire.TypeRekemAck {
		t.Fatalf("sent %v", types(out))
	}
	r.request = ours
	evs, _ := r.turn(append(r.answer(), r.frame(wire.ChannelBridge, 0x0100, "x")...))
	if len(evs) != 1 {
		t.Fatal("not healed")
	}
	if send, recv := r.c.Generations(); send != 1 || recv != 1 {
		t.Errorf("generations %d and %d", send, recv)
	}
	r.wantAlive()
}

// What a peer may trigger is bounded (D1): steps like key updates, and together
// with them; a REKEM, which costs a KEM, much less often.
func TestRatchet_FloodCloses(t *testing.T) {
	r := newRig(t, nil)
	var out []sentFrame
	for i := 0; r.ended == nil; i++ {
		if i > PeerUpdateBurst {
			t.Fatal("never limited")
		}
		if i%2 == 0 {
			_, out = r.turn(r.ratchet())
			continue
		}
		_, out = r.turn(r.frame(wire.ChannelBridge, wire.TypeKeyUpdate, string(control.AppendKeyUpdate(nil, 1))))
		if r.ended == nil {
			_ = r.sealer(wire.ChannelBridge).Update()
		}
	}
	r.wantClosed(out, control.CodeLimit)
	if !errors.Is(r.ended, ErrUpdateRate) {
		t.Errorf("cause %v", r.ended.Cause)
	}
}

func TestRekem_FloodCloses(t *testing.T) {
	for name, gen := range map[string]func(uint64) uint64{
		"followed": func(send uint64) uint64 { return send + 1 },
		"stale":    func(send uint64) uint64 { return send },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			var out []sentFrame
			for i := 0; r.ended == nil; i++ {
				if i > PeerRekemBurst {
					t.Fatal("never limited")
				}
				send, _ := r.c.Generations()
				_, out = r.turn(r.rekem(gen(send)))
			}
			r.wantClosed(out, control.CodeLimit)
		})
	}
}

// Our own changes never come so often that a peer closes for it.
func TestRates_OursStayBelowThePeers(t *testing.T) {
	var ours, theirs bucket
	for _, c := range []struct {
		burst, peerBurst int
		every, peerEvery time.Duration
	}{
		{UpdateBurst, PeerUpdateBurst, UpdateEvery, PeerUpdateEvery},
		{RekemBurst, PeerRekemBurst, RekemEvery, PeerRekemEvery},
	} {
		ours, theirs = bucket{}, bucket{}
		// As often as allowed, for a while; the transport then holds back ten
		// seconds' worth and delivers it at once.
		const step, stall = 10 * time.Millisecond, 10 * time.Second
		for now := time.Duration(0); now < 10*time.Minute; now += step {
			for ours.take(now, c.burst, c.every) {
				arrives := (now + stall - 1).Truncate(stall)
				if !theirs.take(arrives, c.peerBurst, c.peerEvery) {
					t.Fatalf("bursts %d and %d: refused at %v", c.burst, c.peerBurst, now)
				}
			}
		}
	}
	r := newRig(t, nil)
	r.turn(r.hello(nil))
	for _, try := range []func() error{
		func() error { return r.c.UpdateKey(wire.ChannelBridge) },
		r.c.Ratchet,
	} {
		n := 0
		r.now += time.Hour
		r.c.StartBatch(r.now, nil, false)
		for ; try() == nil; n++ {
		}
		if err := try(); !errors.Is(err, ErrRate) || n != UpdateBurst {
			t.Errorf("%d changes at once, then %v", n, err)
		}
		r.take()
	}
}

// Steps come by themselves when a bound is reached, at the end of a batch, and
// never on an idle association.
func TestRatchet_OursAtTheBound(t *testing.T) {
	for name, c := range map[string]struct {
		bounds profiles.Bounds
		step   time.Duration
		after  int // frames of 100 octets under one root
		first  int // under the first one
	}{
		"frames": {profiles.Bounds{Frames: 4}, 0, 4, 4},
		"octets": {profiles.Bounds{Octets: 1000}, 0, 7, 7},
		"age":    {profiles.Bounds{Age: time.Minute}, 20 * time.Second, 3, 4},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(cfg *Config) { cfg.Ratchet = c.bounds; cfg.NoHello = true; cfg.PingInterval = -1 })
			data, steps := 0, 0
			for range 30 {
				r.queueBridge(t, 100)
				_, out := r.turn(nil)
				for _, f := range out {
					if f.t == wire.TypeMasterRatchet {
						steps++
						if data < c.first || (data-c.first)%c.after != 0 {
							t.Errorf("a step after %d frames", data)
						}
					} else {
						data++
					}
				}
				r.now += c.step
			}
			if steps != 1+(30-c.first)/c.after {
				t.Errorf("%d steps", steps)
			}
			r.now += 24 * time.Hour
			if _, out := r.turn(nil); len(out) != 0 {
				t.Errorf("an idle direction sent %v", types(out))
			}
		})
	}
}

func TestRatchet_NeverUnaskedWhenTurnedOff(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Ratchet = profiles.Bounds{Frames: 1, Age: -1}; c.Rekem = -1 })
	for range 10 {
		r.queueBridge(t, 100)
		r.turn(r.frame(wire.ChannelBridge, 0x0100, "x"))
		r.now += 100 * time.Hour
	}
	if send, _ := r.c.Generations(); send != 0 || r.c.Rekeming() {
		t.Errorf("generation %d, REKEM %v", send, r.c.Rekeming())
	}
	r.c.StartBatch(r.now, nil, false)
	if err := errors.Join(r.c.Ratchet(), r.c.Rekem()); err != nil {
		t.Errorf("on demand: %v", err)
	}
	r.take()
}

// A bound too tight for the peer's patience is met more slowly; the profile's own
// bounds are met in any case.
func TestRates_TightBoundsArePutOff(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.Bounds = profiles.Bounds{Frames: 2}
		c.Ratchet = profiles.Bounds{Frames: 2}
		c.NoHello = true
	})
	for range 10 * UpdateBurst {
		r.queueBridge(t, 10)
		r.turn(nil)
	}
	k := r.c.cfg.Counters
	if n := k.KeyUpdatesOut.Load() + k.RatchetsOut.Load(); n != UpdateBurst {
		t.Errorf("%d changes at once", n)
	}
	if k.KeyChangesPutOff.Load() == 0 {
		t.Error("what was put off is not counted")
	}
	// The profile's bound stands above all.
	before := k.KeyUpdatesOut.Load()
	r.now += profiles.Standard.Bounds.Age
	r.c.limits.ourUpdates = bucket{taken: UpdateBurst, at: r.now}
	r.queueBridge(t, 10)
	r.turn(nil)
	if k.KeyUpdatesOut.Load() != before+1 {
		t.Error("the profile's bound was passed")
	}
}

// A tier-2 step comes by itself when the receiving root has reached its age and
// something still arrives.
func TestRekem_OursAtItsAge(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Rekem = time.Hour; c.PingInterval = -1; c.NoHello = true })
	start := r.now
	for r.request == "" {
		r.now += time.Minute
		if _, out := r.turn(nil); len(out) != 0 {
			t.Fatalf("an idle association sent %v", types(out))
		}
		r.turn(r.frame(wire.ChannelBridge, 0x0100, "x"))
	}
	if age := r.now - start; age < 54*time.Minute || age > 61*time.Minute {
		t.Errorf("started after %v, want an hour less up to a tenth", age)
	}
	r.turn(r.answer())
	if _, recv := r.c.Generations(); recv != 1 {
		t.Errorf("receiving generation %d", recv)
	}
	if due := r.c.rekem.due - r.now; due < 54*time.Minute || due > time.Hour {
		t.Errorf("the next is due in %v", due)
	}
}

// D29: where no step may be taken, none is, and the peer's closes.
func TestNoRatchet(t *testing.T) {
	off := func(c *Config) { c.NoRatchet = true; c.Ratchet.Frames = 1; c.Rekem = 1 }
	for name, in := range map[string]func(r *rig) []byte{
		"MASTER_RATCHET": (*rig).ratchet,
		"REKEM":          func(r *rig) []byte { return r.rekem(1) },
	} {
		r := newRig(t, off)
		r.queueBridge(t, 10)
		r.turn(r.frame(wire.ChannelBridge, 0x0100, "x"))
		if send, _ := r.c.Generations(); send != 0 || r.c.Rekeming() {
			t.Fatalf("%s: a step was taken", name)
		}
		r.c.StartBatch(r.now, nil, false)
		if e1, e2 := r.c.Ratchet(), r.c.Rekem(); !errors.Is(e1, ErrNoRatchet) || !errors.Is(e2, ErrNoRatchet) {
			t.Errorf("on demand: %v, %v", e1, e2)
		}
		r.take()
		_, out := r.turn(in(r))
		r.wantClosed(out, control.CodeProtocol)
	}
}

// Without randomness no tier-2 step is started, and the peer's stays unanswered.
func TestRekem_NeedsKEMAndRand(t *testing.T) {
	for name, edit := range map[string]func(*Config){
		"no Rand": func(c *Config) { c.Rand = nil },
		"no KEM":  func(c *Config) { c.KEM = 0 },
	} {
		r := newRig(t, edit)
		r.c.StartBatch(r.now, nil, false)
		if err := r.c.Rekem(); !errors.Is(err, ErrNoRatchet) {
			t.Errorf("%s: %v", name, err)
		}
		r.take()
		if _, out := r.turn(r.rekem(1)); len(out) != 0 || r.c.cfg.Counters.StaleRekems.Load() != 1 {
			t.Errorf("%s: sent %v", name, types(out))
		}
		r.wantAlive()
	}
}

type brokenRand struct{}

var errBroken = errors.New("broken")

func (brokenRand) Read([]byte) (int, error) { return 0, errBroken }

func TestRekem_BrokenRandEndsIt(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Rand = brokenRand{} })
	r.c.StartBatch(r.now, nil, false)
	if err := r.c.Rekem(); !errors.Is(err, errBroken) || r.c.Rekeming() {
		t.Errorf("our REKEM: %v", err)
	}
	r.take()
	_, out := r.turn(r.rekem(1))
	r.wantClosed(out, control.CodeInternal)
}

var _ io.Reader = brokenRand{}

// A step in the middle of a frame would seal its first half under a key that the
// second half no longer has: refused, like any command outside a batch.
func TestCommands_RefusedBetweenBeginAndEnd(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.hello(nil))
	all := func() []error {
		return []error{r.c.UpdateKey(wire.ChannelBridge), r.c.Ratchet(), r.c.Rekem()}
	}
	for _, err := range all() {
		if !errors.Is(err, ErrBegin) {
			t.Errorf("outside a batch: %v", err)
		}
	}
	r.c.StartBatch(r.now, nil, false)
	b, err := r.c.Begin(wire.ChannelBridge, 0x0100, 4)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range all() {
		if !errors.Is(err, ErrBegin) {
			t.Errorf("between Begin and End: %v", err)
		}
	}
	if err := r.c.End(append(b, "four"...)); err != nil {
		t.Fatal(err)
	}
	if out := r.take(); len(out) != 1 || out[0].payload != "four" {
		t.Errorf("sent %v", out)
	}
	r.c.Close(r.now, 0, "")
	r.c.StartBatch(r.now, nil, false)
	for _, err := range all() {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("closing: %v", err)
		}
	}
	r.take()
}

// The machine alone speaks on Control and with the common types.
func TestBegin_ReservedForTheMachine(t *testing.T) {
	r := newRig(t, nil)
	r.c.StartBatch(r.now, nil, false)
	for _, c := range []struct {
		ch wire.Channel
		t  wire.FrameType
	}{{wire.ChannelControl, wire.TypeMasterRatchet}, {wire.ChannelControl, 0x0200}, {wire.ChannelBridge, wire.TypeKeyUpdate}, {wire.ChannelBridge, 0}} {
		if _, err := r.c.Begin(c.ch, c.t, 1); !errors.Is(err, ErrReserved) {
			t.Errorf("%v %#x: %v", c.ch, c.t, err)
		}
	}
	r.take()
}

// Counters that have no successor: the change is refused before the marker that
// would announce it, and the association ends.
func TestExhaustion_FailsClosed(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(r *rig)
		act     func(r *rig) error
		want    error
	}{
		"sequence": {
			func(r *rig) { setField(r.c.side(wire.ChannelBridge).sealer, "seq", math.MaxUint64) },
			func(r *rig) error {
				b, err := r.c.Begin(wire.ChannelBridge, 0x0100, 1)
				if err == nil {
					err = r.c.End(append(b, 'x'))
				}
				return err
			}, record.ErrExhausted,
		},
		"epoch": {
			func(r *rig) { setField(r.c.side(wire.ChannelBridge).sealer, "epoch", math.MaxUint64) },
			func(r *rig) error { return r.c.UpdateKey(wire.ChannelBridge) }, record.ErrExhausted,
		},
		"generation": {
			func(r *rig) { setField(r.c.cfg.Send, "gen", math.MaxUint64) },
			func(r *rig) error { return r.c.Ratchet() }, schedule.ErrGeneration,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			r.turn(r.hello(nil))
			r.c.StartBatch(r.now, nil, false)
			c.prepare(r)
			err := c.act(r)
			if !errors.Is(err, c.want) || !r.c.Closed() {
				t.Fatalf("%v, closed %v", err, r.c.Closed())
			}
			if out := r.c.TakeBatch(); len(out) != 0 {
				t.Errorf("%d octets were sealed", len(out))
			}
			if ev, ok := r.c.Poll(); !ok || !errors.Is(ev.Err, c.want) {
				t.Errorf("ended with %v", ev.Err)
			}
		})
	}
}

// setField moves a counter of another package to where no test could wait for it.
func setField(of any, name string, v uint64) { fieldOf(of, name).SetUint(v) }

func fieldOf(of any, name string) reflect.Value {
	f := reflect.ValueOf(of).Elem().FieldByName(name)
	return reflect.NewAt(f.Type(), f.Addr().UnsafePointer()).Elem()
}

// Every secret that a change retires is erased at once, and all of them when the
// association ends.
func TestKeys_RetiredAreErased(t *testing.T) {
	aead := func(of any) reflect.Value {
		return fieldOf(of, "slots").Index(0).Field(0).Elem()
	}
	zero := func(v reflect.Value) bool { return v.Elem().IsZero() }
	secret := func(root *schedule.Root) string { return string(fieldOf(root, "secret").Slice(0, 32).Bytes()) }

	r := newRig(t, nil)
	r.turn(r.frame(wire.ChannelBridge, 0x0100, "x"))
	r.queueBridge(t, 10)
	r.turn(nil)
	sealer, opener := r.c.sealers[wire.ChannelBridge].sealer, r.c.openers[wire.ChannelBridge]
	sealKey, openKey := aead(sealer), aead(opener)
	sendSecret, recvSecret := secret(r.c.cfg.Send), secret(r.c.cfg.Recv)
	if zero(sealKey) || zero(openKey) {
		t.Fatal("no keys to begin with")
	}

	r.c.StartBatch(r.now, nil, false)
	if err := r.c.Ratchet(); err != nil {
		t.Fatal(err)
	}
	r.take()
	r.turn(r.ratchet())
	if !zero(sealKey) || !zero(openKey) {
		t.Error("a channel key outlives its root")
	}
	if secret(r.c.cfg.Send) == sendSecret || secret(r.c.cfg.Recv) == recvSecret {
		t.Error("a root outlives its step")
	}

	r.turn(r.frame(wire.ChannelBridge, 0x0100, "x"))
	openKey = aead(opener)
	r.turn(r.frame(wire.ChannelBridge, wire.TypeKeyUpdate, string(control.AppendKeyUpdate(nil, 1))))
	if !zero(openKey) {
		t.Error("a key outlives its epoch")
	}
	_ = r.sealer(wire.ChannelBridge).Update()

	r.turn(r.frame(wire.ChannelBridge, 0x0100, "x"))
	r.queueBridge(t, 10)
	r.turn(nil)
	sealKey, openKey = aead(sealer), aead(opener)
	r.c.StartBatch(r.now, nil, false)
	if err := r.c.Rekem(); err != nil {
		t.Fatal(err)
	}
	r.take()
	key, send, recv := r.c.rekem.key, r.c.cfg.Send, r.c.cfg.Recv
	r.c.Release()
	if !zero(sealKey) || !zero(openKey) {
		t.Error("a channel key outlives its association")
	}
	wantErased(t, key)
	for _, root := range []*schedule.Root{send, recv} {
		if strings.Trim(secret(root), "\x00") != "" {
			t.Error("a root outlives its association")
		}
	}
}
