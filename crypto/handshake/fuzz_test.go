package handshake

import (
	"bytes"
	"testing"

	"github.com/trestle-npamp/trestle/wire"
)

// replaying gives the same octets again and again.
type replaying struct{ b []byte }

func (r replaying) Read(b []byte) (int, error) { return copy(b, r.b), nil }

// FuzzMachine gives arbitrary frames to both roles in every state. Nothing
// panics; a frame other than the genuine one never brings a side to the end
// (but a hello with unknown TLVs may be answered); an error ends the machine
// for good.
func FuzzMachine(f *testing.F) {
	client, server := standard(f)
	// The same handshake each time, so that a genuine message is known.
	client.Rand, server.Rand = replaying{bytes.Repeat([]byte{0x31}, 96)}, replaying{bytes.Repeat([]byte{0x32}, 64)}
	whole := start(f, client, server, messageCount)
	for i, b := range whole.message {
		h := wire.Header(b[:wire.HeaderLen])
		f.Add(uint8(i), uint8(h.Flags()), uint16(h.Type()), uint16(0), uint64(0), b[wire.HeaderLen:])
		f.Add(uint8(i), uint8(h.Flags()), uint16(h.Type()), uint16(0), uint64(0), b[wire.HeaderLen:len(b)-1])
		f.Add(uint8(i), uint8(h.Flags()), uint16(h.Type()), uint16(0), uint64(1), b[wire.HeaderLen:])
		f.Add(uint8(i+4), uint8(0), uint16(wire.TypeHello), uint16(0), uint64(0), []byte{0xa0})
	}
	f.Fuzz(func(t *testing.T, stage, flags uint8, typ, ch uint16, seq uint64, payload []byte) {
		if len(payload) > wire.MaxFrameLen-wire.HeaderLen {
			return
		}
		next := int(stage % (messageCount + 1))
		r := start(t, client, server, next)
		b := append(wire.AppendHeader(nil, wire.Flags(flags), wire.FrameType(typ), wire.Channel(ch), wire.Seq(seq), len(payload)), payload...)
		for _, m := range []*Machine{r.c, r.s} {
			// With the same randomness each time, a side may get its genuine
			// message before the other one is ready for it to be sent.
			genuine := false
			for i, msg := range whole.message {
				genuine = genuine || m == r.receiver(i) && steps[m.state].typ == wire.TypeClientHello+wire.FrameType(i) && bytes.Equal(b, msg)
			}
			was := m.state
			err := m.HandleFrame(frame(t, b))
			switch {
			case err != nil && genuine:
				t.Fatalf("the genuine message: %v", err)
			case err != nil:
				dead(t, m)
			case m.Done() && !genuine:
				t.Fatalf("a forged frame completed the handshake: %x", b)
			case m.state == was:
				t.Fatal("a frame was taken and nothing happened")
			}
		}
	})
}

// FuzzAuthPlaintext gives arbitrary plaintexts under the right keys: only the
// genuine one gets through.
func FuzzAuthPlaintext(f *testing.F) {
	client, server := standard(f)
	client.Rand, server.Rand = replaying{bytes.Repeat([]byte{0x31}, 96)}, replaying{bytes.Repeat([]byte{0x32}, 64)}
	r := start(f, client, server, clientAuth)
	plain := openAuth(f, r.s, wire.ClientToServer, r.message[clientAuth])
	f.Add(true, plain)
	f.Add(true, plain[1:])
	f.Add(false, openAuth(f, r.s, wire.ServerToClient, r.message[serverAuth]))
	f.Add(false, wire.AppendTLV(nil, wire.TagIdentityKey, nil))
	f.Fuzz(func(t *testing.T, toServer bool, plain []byte) {
		if len(plain) > 1<<16 {
			return
		}
		i, dir := serverAuth, wire.ServerToClient
		if toServer {
			i, dir = clientAuth, wire.ClientToServer
		}
		r := start(t, client, server, i)
		m := r.receiver(i)
		genuine := bytes.Equal(plain, openAuth(t, m, dir, r.message[i]))
		err := m.HandleFrame(frame(t, sealAuth(t, m, dir, plain)))
		if (err == nil) != genuine {
			t.Fatalf("%x: %v", plain, err)
		}
		if err != nil {
			dead(t, m)
		}
	})
}
