package conn

import (
	"errors"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/crypto/record"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// The rows of the fault table that concern frames and Control, one test each.

// Row 1: "any: CRC, magic, version, reserved, length over the limit: ERROR, close".
func TestFault_HeaderClosesWithError(t *testing.T) {
	for name, c := range map[string]struct {
		edit func([]byte)
		raw  bool // without mending the CRC
		want error
		code control.ErrorCode
	}{
		"crc":      {func(h []byte) { h[24] ^= 1 }, true, wire.ErrChecksum, control.CodeProtocol},
		"reserved": {func(h []byte) { h[30] = 1 }, true, wire.ErrReserved, control.CodeProtocol},
		"length":   {func(h []byte) { h[17] = 1 }, false, wire.ErrTooLong, control.CodeLimit},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			b := r.frame(wire.ChannelBridge, 0x0100, "x")
			if c.raw {
				c.edit(b)
			} else {
				b = patch(b, c.edit)
			}
			_, out := r.turn(b)
			r.wantClosed(out, c.code)
			if !errors.Is(r.ended, c.want) {
				t.Errorf("cause %v, want %v", r.ended.Cause, c.want)
			}
		})
	}
}

// A wrong magic or version is judged after the CRC; with a right CRC it is found.
func TestFault_MagicAndVersionUnderRightCRC(t *testing.T) {
	for name, c := range map[string]struct {
		edit func([]byte)
		want error
	}{
		"magic":   {func(h []byte) { h[3] = 'Q' }, wire.ErrMagic},
		"version": {func(h []byte) { h[4] = 0x32 }, wire.ErrVersion},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			b := r.frame(wire.ChannelBridge, 0x0100, "x")
			c.edit(b)
			putCRC(b)
			_, out := r.turn(b)
			r.wantClosed(out, control.CodeProtocol)
			if !errors.Is(r.ended, c.want) {
				t.Errorf("cause %v, want %v", r.ended.Cause, c.want)
			}
		})
	}
}

// Row 2: "ENC clear, payload under 16, COMP or FRAG set, type 0: ERROR, close",
// found on the header alone, before the payload is waited for.
func TestFault_FlagsTypeAndShortPayloadCloseOnTheHeader(t *testing.T) {
	for name, c := range map[string]struct {
		flags wire.Flags
		typ   wire.FrameType
		n     int
		want  error
	}{
		"ENC clear":     {0, 0x0100, 64, ErrFlags},
		"COMP":          {wire.FlagENC | wire.FlagCOMP, 0x0100, 64, ErrFlags},
		"FRAG":          {wire.FlagENC | wire.FlagFRAG, 0x0100, 64, ErrFlags},
		"short payload": {wire.FlagENC, 0x0100, 15, ErrPayloadShort},
		"type 0":        {wire.FlagENC, 0, 64, ErrFrameType},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			h := wire.AppendHeader(nil, c.flags, c.typ, wire.ChannelBridge, 0, c.n)
			_, out := r.turn(h)
			r.wantClosed(out, control.CodeProtocol)
			if !errors.Is(r.ended, c.want) {
				t.Errorf("cause %v, want %v", r.ended.Cause, c.want)
			}
		})
	}
}

// Row 3: "wrong sequence or tag: ERROR(crypto), close".
func TestFault_WrongSequenceOrTagCloses(t *testing.T) {
	tests := map[string]struct {
		make func(r *rig) []byte
		want error
	}{
		"skipped": {func(r *rig) []byte {
			r.frame(wire.ChannelBridge, 0x0100, "lost")
			return r.frame(wire.ChannelBridge, 0x0100, "x")
		}, record.ErrSequence},
		"replayed": {func(r *rig) []byte {
			b := r.frame(wire.ChannelBridge, 0x0100, "x")
			if evs, _ := r.turn(b); len(evs) != 1 {
				r.t.Fatal("the first copy was not opened")
			}
			return b
		}, record.ErrSequence},
		"tag": {func(r *rig) []byte {
			b := r.frame(wire.ChannelBridge, 0x0100, "x")
			b[len(b)-1] ^= 1
			return b
		}, record.ErrTag},
		"type changed under a right CRC": {func(r *rig) []byte {
			return patch(r.frame(wire.ChannelBridge, 0x0100, "x"), func(h []byte) { h[6] = 3 })
		}, record.ErrTag},
		"moved to another channel": {func(r *rig) []byte {
			return patch(r.frame(wire.ChannelBridge, 0x0100, "x"), func(h []byte) { h[8] = byte(wire.ChannelDiscovery) })
		}, record.ErrTag},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			_, out := r.turn(c.make(r))
			r.wantClosed(out, control.CodeCrypto)
			if !errors.Is(r.ended, c.want) {
				t.Errorf("cause %v, want %v", r.ended.Cause, c.want)
			}
		})
	}
}

// Row 3, exception: "on a CLOSE: dropped, counted, sequence not moved".
func TestFault_ForgedCloseIsDropped(t *testing.T) {
	r := newRig(t, nil)
	bad := r.frame(wire.ChannelControl, wire.TypeClose, "")
	r.seal[wire.ChannelControl] = nil // the peer's real counter starts again at 0
	bad[len(bad)-1] ^= 1
	evs, out := r.turn(bad)
	if len(evs) != 0 || len(out) != 0 || r.c.cfg.Counters.BadClose.Load() != 1 {
		t.Fatalf("forged CLOSE: events %v, sent %v, counted %d", evs, out, r.c.cfg.Counters.BadClose.Load())
	}
	far := wire.AppendHeader(nil, wire.FlagENC, wire.TypeClose, wire.ChannelControl, 99, wire.TagLen)
	if evs, out := r.turn(append(far, make([]byte, wire.TagLen)...)); len(evs) != 0 || len(out) != 0 {
		t.Fatalf("CLOSE with a wrong sequence: events %v, sent %v", evs, out)
	}
	// The sequence did not move: the peer's first real Control frame opens.
	if _, out := r.turn(r.frame(wire.ChannelControl, wire.TypePing, "12345678")); len(out) != 1 || out[0].t != wire.TypePong {
		t.Fatalf("PING after forged CLOSEs: sent %v", out)
	}
	r.wantAlive()
}

// Row 4: "channel not advertised, GREASE channel: skipped unopened, counted",
// and also while the frame is still arriving.
func TestFault_UnadvertisedChannelIsSkippedUnopened(t *testing.T) {
	r := newRig(t, nil)
	r.turn(r.hello(nil)) // without Memory
	junk := strings.Repeat("z", 5000)
	for _, ch := range []wire.Channel{wire.ChannelMemory, wire.ChannelSpatial, 0x0014, 0xEFFF, 0xF000, 0xFFFE, 0xFFFF} {
		before := r.c.cfg.Counters.SkippedChannel.Load()
		b := wire.AppendHeader(nil, wire.FlagENC, 0x0100, ch, 12345, len(junk))
		b = append(b, junk...)
		for _, part := range [][]byte{b[:40], b[40:1000], b[1000:]} {
			if evs, out := r.turn(part); len(evs) != 0 || len(out) != 0 {
				t.Fatalf("channel %v: events %v, sent %v", ch, evs, out)
			}
		}
		if n := r.c.cfg.Counters.SkippedChannel.Load() - before; n != 1 {
			t.Errorf("channel %v: counted %d times", ch, n)
		}
	}
	r.wantAlive()
}

// Row 5: "unknown type on an advertised channel: opened, its sequence number
// consumed, dropped, counted".
func TestFault_UnknownTypeIsOpenedAndDropped(t *testing.T) {
	r := newRig(t, nil)
	for _, typ := range []wire.FrameType{0x000B, 0x002F, 0x0030, 0x00FF} {
		if evs, out := r.turn(r.frame(wire.ChannelBridge, typ, "?")); len(evs) != 0 || len(out) != 0 {
			t.Errorf("type %#x on Bridge: events %v, sent %v", typ, evs, out)
		}
	}
	for _, typ := range []wire.FrameType{0x0103, 0x0112, 0xFFFF} {
		if evs, out := r.turn(r.frame(wire.ChannelControl, typ, "?")); len(evs) != 0 || len(out) != 0 {
			t.Errorf("type %#x on Control: events %v, sent %v", typ, evs, out)
		}
	}
	if n := r.c.cfg.Counters.UnknownType.Load(); n != 7 {
		t.Errorf("counted %d, want 7", n)
	}
	r.wantAlive() // the next sequence number is the one behind them
}

// Row "Control: malformed or second HELLO: ERROR(protocol), close".
func TestFault_MalformedOrSecondHelloCloses(t *testing.T) {
	t.Run("malformed", func(t *testing.T) {
		r := newRig(t, nil)
		_, out := r.turn(r.frame(wire.ChannelControl, wire.TypeHello, "\xa1\x18\x00\x00"))
		r.wantClosed(out, control.CodeProtocol)
	})
	t.Run("second", func(t *testing.T) {
		r := newRig(t, nil)
		if evs, _ := r.turn(r.hello(nil)); len(evs) != 1 || evs[0].Kind != EventHello {
			t.Fatal("the first HELLO was not taken")
		}
		_, out := r.turn(r.hello(nil))
		r.wantClosed(out, control.CodeProtocol)
	})
	t.Run("HELLO_DONE before HELLO", func(t *testing.T) {
		r := newRig(t, nil)
		_, out := r.turn(r.frame(wire.ChannelControl, wire.TypeHelloDone, ""))
		r.wantClosed(out, control.CodeProtocol)
	})
	t.Run("HELLO_DONE with a payload", func(t *testing.T) {
		r := newRig(t, nil)
		r.turn(r.hello(nil))
		_, out := r.turn(r.frame(wire.ChannelControl, wire.TypeHelloDone, "x"))
		r.wantClosed(out, control.CodeProtocol)
	})
}

// Row "Control: bad epoch marker or generation: ERROR(protocol), close". A key
// update may come on any channel (D13).
func TestFault_BadEpochMarkerCloses(t *testing.T) {
	for name, payload := range map[string]string{
		"same epoch": string(control.AppendKeyUpdate(nil, 0)),
		"skipped":    string(control.AppendKeyUpdate(nil, 2)),
		"no marker":  "",
		"truncated":  string(control.AppendKeyUpdate(nil, 1)[:11]),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			_, out := r.turn(r.frame(wire.ChannelBridge, wire.TypeKeyUpdate, payload))
			r.wantClosed(out, control.CodeProtocol)
		})
	}
}

// A PING over 64 octets is malformed Control traffic (D6).
func TestFault_OversizedPingCloses(t *testing.T) {
	r := newRig(t, nil)
	_, out := r.turn(r.frame(wire.ChannelControl, wire.TypePing, strings.Repeat("p", 65)))
	r.wantClosed(out, control.CodeProtocol)
}

// An ERROR without a code, a FLOW_UPDATE of the wrong size.
func TestFault_MalformedControlFramesClose(t *testing.T) {
	for name, c := range map[string]struct {
		typ wire.FrameType
		p   string
	}{
		"ERROR":       {wire.TypeError, "\x00"},
		"FLOW_UPDATE": {wire.TypeFlowUpdate, "1234567"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			_, out := r.turn(r.frame(wire.ChannelControl, c.typ, c.p))
			r.wantClosed(out, control.CodeProtocol)
		})
	}
}
