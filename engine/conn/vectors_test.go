package conn

import (
	"bytes"
	"encoding/hex"
	"io"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/crypto/kem"
	"github.com/trestle-npamp/trestle/crypto/schedule"
	"github.com/trestle-npamp/trestle/internal/vectors"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// recordedKEM gives what a recorded exchange gave: its ephemeral keys are gone.
type recordedKEM struct {
	hybrid
	ciphertext []byte
	secret     [kem.SecretLen]byte
}

func (k *recordedKEM) Encapsulate(io.Reader, []byte) ([]byte, *kem.Secret, error) {
	return k.ciphertext, kem.NewSecret(k.secret), nil
}
func (k *recordedKEM) Decapsulate([]byte) (*kem.Secret, error) { return kem.NewSecret(k.secret), nil }
func (k *recordedKEM) Share() []byte                           { return nil }
func (k *recordedKEM) Wipe()                                   {}

// The recorded association as two machines live it: each says every frame that
// the published reference said, octet for octet, when it is told to send, to
// change a key or a root, or when the other's frame makes it; and each opens
// everything the other says.
func TestVectorsRecordedAssociation(t *testing.T) {
	var f struct {
		Master string
		Rekem  []struct{ Secret string }
		Frames []struct {
			Dir        string
			Generation uint64
			Channel    wire.Channel
			Type       wire.FrameType
			Plaintext  string
			Wire       string
		}
	}
	if !vectors.Load(t, "recorded-association.json", &f) {
		return
	}
	scheme := kem.ByID(profiles.X25519MLKEM768)
	machine := func(role Role) *Conn {
		root := func(dir wire.Direction) *schedule.Root {
			return schedule.NewRoot(profiles.SHA256, dir, unhex(t, f.Master))
		}
		return New(Config{
			Role:         role,
			Profile:      profiles.Standard,
			Suite:        profiles.AES256GCM,
			Send:         root(role.Sends()),
			Recv:         root(role.Sends().Reverse()),
			Channels:     []wire.Channel{wire.ChannelBridge, wire.ChannelMemory},
			PeerChannels: []wire.Channel{wire.ChannelMemory},
			NoHello:      true,
			PingInterval: -1,
			KEM:          profiles.X25519MLKEM768,
			Rand:         brokenRand{},
		}, time.Hour)
	}
	sides := map[string]*Conn{"c2s": machine(Client), "s2c": machine(Server)}
	other := map[string]string{"c2s": "s2c", "s2c": "c2s"}
	said := map[string][]byte{} // by a side, not yet compared
	rekems, kinds := 0, map[wire.FrameType]int{}

	for i, fr := range f.Frames {
		from, to := sides[fr.Dir], sides[other[fr.Dir]]
		plain := unhex(t, fr.Plaintext)
		from.StartBatch(time.Hour, nil, false)
		var err error
		typ := fr.Type
		if fr.Channel != wire.ChannelControl && typ >= wire.FirstChannelType {
			typ = 0
			var b []byte
			if b, err = from.Begin(fr.Channel, fr.Type, len(plain)); err == nil {
				err = from.End(append(b, plain...))
			}
		}
		kinds[typ]++
		switch typ {
		case wire.TypeKeyUpdate:
			err = from.UpdateKey(fr.Channel)
		case wire.TypeMasterRatchet:
			err = from.Ratchet()
		case wire.TypeRekem:
			k := &recordedKEM{hybrid: hybrid{scheme}, secret: [kem.SecretLen]byte(unhex(t, f.Rekem[rekems].Secret))}
			rekems++
			_, recv := from.Generations()
			from.rekem = rekem{key: k, request: plain, target: recv + 1, until: 2 * time.Hour}
			to.kem = k
			// The answer is the next frame of the other side.
			for _, next := range f.Frames[i:] {
				if next.Dir == other[fr.Dir] {
					if k.ciphertext, _, err = control.ParseRekemAck(unhex(t, next.Plaintext), scheme.CiphertextLen()); err != nil {
						t.Fatal(err)
					}
					break
				}
			}
			from.sealNow(wire.ChannelControl, wire.TypeRekem, plain)
		}
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		if send, _ := from.Generations(); typ == 0 && send != fr.Generation {
			t.Fatalf("frame %d is of generation %d, we are at %d", i, fr.Generation, send)
		}
		out := append(said[fr.Dir], from.TakeBatch()...)
		sealed := unhex(t, fr.Wire)
		if !bytes.HasPrefix(out, sealed) {
			t.Fatalf("frame %d: the machine says\n%x, want\n%x", i, out, sealed)
		}
		said[fr.Dir] = out[len(sealed):]

		to.StartBatch(time.Hour, nil, false)
		to.HandleBytes(time.Hour, sealed)
		ev, ok := to.Poll()
		if ok != (typ == 0) || ok && (ev.Kind != EventFrame || ev.Type != fr.Type || ev.Channel != fr.Channel || !bytes.Equal(ev.Payload, plain)) {
			t.Fatalf("frame %d opens as %+v", i, ev)
		}
		to.Settle()
		said[other[fr.Dir]] = append(said[other[fr.Dir]], to.TakeBatch()...)
	}
	for dir, c := range sides {
		if c.Closed() || len(said[dir]) != 0 {
			t.Errorf("%s: ended %v, %x not in the recording", dir, c.Closed(), said[dir])
		}
		send, recv := c.Generations()
		if send != 2 || recv != 2 {
			t.Errorf("%s: generations %d and %d", dir, send, recv)
		}
	}
	if len(f.Frames) != 43 || kinds[wire.TypeKeyUpdate] != 4 || kinds[wire.TypeMasterRatchet] != 2 || kinds[wire.TypeRekemAck] != 2 {
		t.Errorf("%d frames, %v", len(f.Frames), kinds)
	}
}
