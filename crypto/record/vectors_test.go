package record

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"testing"

	"github.com/trestle-npamp/trestle/crypto/schedule"
	"github.com/trestle-npamp/trestle/internal/vectors"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
)

func suiteNamed(t *testing.T, name string) profiles.Suite {
	t.Helper()
	for _, s := range []profiles.Suite{profiles.AES256GCM, profiles.ChaCha20Poly1305} {
		if s.String() == name {
			return s
		}
	}
	t.Fatalf("suite %q", name)
	return 0
}

func TestVectorsAEAD(t *testing.T) {
	var all struct {
		TestGroups []map[string]any `json:"testGroups"`
	}
	if !vectors.Load(t, "conformance-corpus.json", &all) {
		return
	}
	all.TestGroups = slices.DeleteFunc(all.TestGroups, func(g map[string]any) bool {
		return !slices.Contains([]string{"aead.seal", "aead.open", "frame.seal", "frame.open"}, g["op"].(string))
	})
	raw, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		TestGroups []struct {
			Op    string
			Tests []struct {
				TcID   int
				Result string
				In     struct {
					Suite, Key, Nonce, AAD, PT, Sealed, IV string

					Flags     wire.Flags
					FrameType wire.FrameType
					Channel   wire.Channel
					Seq       wire.Seq
				}
				Expected struct{ Sealed, PT string }
			}
		}
	}
	if err := json.Unmarshal(raw, &f); err != nil {
		t.Fatal(err)
	}
	run := map[string]int{}
	for _, g := range f.TestGroups {
		for _, c := range g.Tests {
			name := g.Op + " " + strconv.Itoa(c.TcID)
			in := c.In
			aead, err := newAEAD(suiteNamed(t, in.Suite), unhex(t, in.Key))
			if err != nil {
				t.Fatal(err)
			}
			nonce, aad := unhex(t, in.Nonce), unhex(t, in.AAD)
			text := unhex(t, in.PT)
			if g.Op == "frame.seal" || g.Op == "frame.open" {
				// These two operations count the plaintext alone in the header's
				// length; frames on the wire count the tag too.
				n := len(text)
				if g.Op == "frame.open" {
					n = len(unhex(t, in.Sealed)) - wire.TagLen
				}
				aad = wire.AppendHeader(nil, in.Flags, in.FrameType, in.Channel, in.Seq, n)[:wire.PrefixLen]
				var out [schedule.IVLen]byte
				schedule.Nonce((*[schedule.IVLen]byte)(unhex(t, in.IV)), in.Seq, &out)
				nonce = out[:]
			}
			switch g.Op {
			case "aead.seal", "frame.seal":
				equal(t, name, aead.Seal(nil, nonce, text, aad), c.Expected.Sealed)
			default:
				plain, err := aead.Open(nil, nonce, unhex(t, in.Sealed), aad)
				if (err == nil) != (c.Result == "valid") {
					t.Errorf("%s: %v", name, err)
				}
				equal(t, name, plain, c.Expected.PT)
			}
			run[g.Op]++
		}
	}
	if len(run) != 4 {
		t.Errorf("operations run: %v", run)
	}
}

// replay is both ends of one direction: what one seals the other opens.
type replay struct {
	root    [2]*schedule.Root // sealing, opening
	sealers map[wire.Channel]*Sealer
	openers map[wire.Channel]*Opener
}

func (r *replay) channel(ch wire.Channel) (*Sealer, *Opener) {
	if r.sealers[ch] == nil {
		r.sealers[ch] = NewSealer(r.root[0], profiles.Standard, profiles.AES256GCM, ch)
		r.openers[ch] = NewOpener(r.root[1], profiles.Standard, profiles.AES256GCM, ch)
	}
	return r.sealers[ch], r.openers[ch]
}

func (r *replay) reroot() {
	for ch := range r.sealers {
		r.sealers[ch].Reroot(r.root[0])
		r.openers[ch].Reroot(r.root[1])
	}
}

// The recorded association, as the published reference sealed it: both
// directions, key updates, both tiers of the ratchet. Every frame is sealed to
// the same octets and opened to the same plaintext.
func TestVectorsRecordedAssociation(t *testing.T) {
	var f struct {
		Master string
		Rekem  []json.RawMessage
		Frames []struct {
			Dir        string
			Generation uint64
			Channel    wire.Channel
			Type       wire.FrameType
			Epoch      wire.Epoch
			Seq        wire.Seq
			Plaintext  string
			Wire       string
		}
	}
	if !vectors.Load(t, "recorded-association.json", &f) {
		return
	}
	dirs := map[string]*replay{}
	for name, dir := range map[string]wire.Direction{"c2s": wire.ClientToServer, "s2c": wire.ServerToClient} {
		r := &replay{sealers: map[wire.Channel]*Sealer{}, openers: map[wire.Channel]*Opener{}}
		for i := range r.root {
			r.root[i] = schedule.NewRoot(profiles.SHA256, dir, unhex(t, f.Master))
		}
		dirs[name] = r
	}
	other := map[string]string{"c2s": "s2c", "s2c": "c2s"}
	rekem := map[string][]byte{}
	rekems := 0
	kinds := map[wire.FrameType]int{}
	for i, c := range f.Frames {
		d := dirs[c.Dir]
		s, o := d.channel(c.Channel)
		if d.root[0].Generation() != c.Generation || s.Epoch() != c.Epoch || s.Seq() != c.Seq || o.Epoch() != c.Epoch || o.Seq() != c.Seq {
			t.Fatalf("frame %d: we are at generation %d, %v, %v", i, d.root[0].Generation(), s, o)
		}
		plain := unhex(t, c.Plaintext)
		sealed, err := s.Seal(append(make([]byte, wire.HeaderLen), plain...), 0, 0, c.Type)
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		if hex.EncodeToString(sealed) != c.Wire {
			t.Fatalf("frame %d seals to\n%x, want\n%s", i, sealed, c.Wire)
		}
		got, err := o.Open(frame(t, unhex(t, c.Wire)))
		if err != nil || !bytes.Equal(got, plain) {
			t.Fatalf("frame %d opens to %x, %v", i, got, err)
		}
		if c.Type < wire.FirstChannelType || c.Channel == wire.ChannelControl {
			kinds[c.Type]++
		}
		switch {
		case c.Type == wire.TypeKeyUpdate:
			if s.Update() != nil || o.Update() != nil {
				t.Fatalf("frame %d: no next epoch", i)
			}
		case c.Channel != wire.ChannelControl:
		case c.Type == wire.TypeMasterRatchet:
			for _, root := range d.root {
				if err := root.Ratchet(); err != nil {
					t.Fatal(err)
				}
			}
			d.reroot()
		case c.Type == wire.TypeRekem:
			rekem[c.Dir] = plain
		case c.Type == wire.TypeRekemAck:
			th := schedule.RekemPoint(profiles.SHA256, rekem[other[c.Dir]], plain)
			for _, root := range d.root {
				if err := root.RatchetKEM(rekemSecret(t, f.Rekem[rekems]), &th); err != nil {
					t.Fatal(err)
				}
			}
			rekems++
			d.reroot()
		}
	}
	if len(f.Frames) != 43 || kinds[wire.TypeKeyUpdate] != 4 || kinds[wire.TypeMasterRatchet] != 2 || rekems != 2 {
		t.Errorf("%d frames, %v, %d tier-2 steps", len(f.Frames), kinds, rekems)
	}
}

func rekemSecret(t *testing.T, raw json.RawMessage) []byte {
	t.Helper()
	var r struct{ Secret string }
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatal(err)
	}
	return unhex(t, r.Secret)
}
