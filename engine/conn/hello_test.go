package conn

import (
	"testing"

	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// What a later peer may say in HELLO is taken: a higher version than ours, keys
// that nobody knows yet, GREASE as a channel and in its own array (D3). Unknown
// negative keys close (HELLO 4).
func TestHello_OfALaterPeer(t *testing.T) {
	r := newRig(t, nil)
	evs, _ := r.turn(r.hello(func(h *control.Hello) {
		h.Version = 9
		h.Channels = append(h.Channels, wire.FirstGREASEChannel, 0x0BAD)
		h.Grease = []uint64{0xFACE, 1 << 40}
	}))
	if len(evs) != 1 || evs[0].Kind != EventHello {
		t.Fatalf("events %v, ended %v", evs, r.ended)
	}
	h, ok := r.c.PeerHello()
	if !ok || h.Version != 9 || h.HasChannel(wire.FirstGREASEChannel) {
		t.Errorf("HELLO %+v", h)
	}
	for _, ch := range []wire.Channel{wire.FirstGREASEChannel, 0x0BAD} {
		if r.c.Usable(ch) {
			t.Errorf("channel %v is usable because the peer named it", ch)
		}
	}
	r.wantAlive()

	// {0: 1, 1: [2], 7: "later", 100: null}, and the same with the key -2.
	later := "\xa4\x00\x01\x01\x81\x02\x07\x65later\x18\x64\xf6"
	r = newRig(t, nil)
	if evs, _ := r.turn(r.frame(wire.ChannelControl, wire.TypeHello, later)); len(evs) != 1 {
		t.Errorf("unknown keys: events %v, ended %v", evs, r.ended)
	}
	r = newRig(t, nil)
	_, out := r.turn(r.frame(wire.ChannelControl, wire.TypeHello, "\xa3\x00\x01\x01\x81\x02\x21\x00"))
	r.wantClosed(out, control.CodeProtocol)
}

// Our HELLO is exactly one, whatever the peer does, and GREASE differs by
// association (D3).
func TestHello_OursIsOneAndItsGreaseVaries(t *testing.T) {
	seen := map[string]bool{}
	for i := range uint32(8) {
		r := newRig(t, func(c *Config) { c.Grease = i * 0x9E3779B9 })
		seen[r.sent[0].payload] = true
		r.turn(r.hello(nil))
		r.turn(r.frame(wire.ChannelControl, wire.TypeHelloDone, ""))
		n := 0
		for _, f := range r.sent {
			if f.ch == wire.ChannelControl && (f.t == wire.TypeHello || f.t == wire.TypeHelloDone) {
				n++
			}
		}
		if n != 2 {
			t.Errorf("%d frames of HELLO and HELLO_DONE", n)
		}
	}
	if len(seen) < 3 {
		t.Errorf("%d different HELLOs of 8", len(seen))
	}
}
