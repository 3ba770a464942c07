package conn

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/crypto/kem"
	"github.com/trestle-npamp/trestle/crypto/record"
	"github.com/trestle-npamp/trestle/crypto/schedule"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// rig is a server's machine and, on the other end, a peer in the test's hands:
// it seals what it likes and opens what the machine says.
type rig struct {
	t     testing.TB
	c     *Conn
	now   time.Duration
	send  *schedule.Root // the peer's sending direction
	recv  *schedule.Root
	seal  map[wire.Channel]*record.Sealer
	open  map[wire.Channel]*record.Opener
	sent  []sentFrame // what the machine has sent, opened
	ended *CloseError

	rand    *rand.ChaCha8
	key     *kem.KeyPair // of the peer's REKEM
	request string       // the peer's REKEM or, answering, the machine's
}

type sentFrame struct {
	ch      wire.Channel
	t       wire.FrameType
	seq     wire.Seq
	payload string
}

// rekemShare and rekemCiphertext are the sizes under the rigs' KEM.
var (
	rekemShare      = kem.ByID(profiles.X25519MLKEM768).ShareLen()
	rekemCiphertext = kem.ByID(profiles.X25519MLKEM768).CiphertextLen()
)

func root(dir wire.Direction) *schedule.Root {
	return schedule.NewRoot(profiles.SHA256, dir, bytes.Repeat([]byte{7}, 32))
}

func newRig(t testing.TB, edit func(*Config)) *rig {
	t.Helper()
	cfg := Config{
		Role:    Server,
		Profile: profiles.Standard,
		Suite:   profiles.AES256GCM,
		Send:    root(wire.ServerToClient),
		Recv:    root(wire.ClientToServer),
		Channels: []wire.Channel{
			wire.ChannelBridge, wire.ChannelDiscovery, wire.ChannelMemory, wire.ChannelImmune,
		},
		KEM:  profiles.X25519MLKEM768,
		Rand: rand.NewChaCha8([32]byte{1}),
	}
	if edit != nil {
		edit(&cfg)
	}
	r := &rig{
		t:    t,
		now:  time.Hour,
		send: root(wire.ClientToServer),
		recv: root(wire.ServerToClient),
		seal: map[wire.Channel]*record.Sealer{},
		open: map[wire.Channel]*record.Opener{},
		rand: rand.NewChaCha8([32]byte{2}),
	}
	r.c = New(cfg, r.now)
	r.c.StartBatch(r.now, nil, false)
	if err := r.c.Open(); err != nil {
		t.Fatal(err)
	}
	r.take()
	return r
}

// take ends a turn and opens what the machine put into its batch.
func (r *rig) take() []sentFrame {
	r.t.Helper()
	batch := r.c.TakeBatch()
	var out []sentFrame
	for len(batch) > 0 {
		f, n, err := wire.ParseFrame(batch, wire.MaxFrameLen)
		if err != nil || n == 0 {
			r.t.Fatalf("the machine sent no frame: %v", err)
		}
		h := f.Header()
		if h.Flags()&wire.FlagENC == 0 {
			r.t.Fatal("the machine sent a frame without ENC")
		}
		ch, typ, seq := h.Channel(), h.Type(), h.Seq()
		o := r.open[ch]
		if o == nil {
			o = record.NewOpener(r.recv, profiles.Standard, profiles.AES256GCM, ch)
			r.open[ch] = o
		}
		pt, err := o.Open(f)
		if err != nil {
			r.t.Fatalf("the machine's %v frame %#x does not open: %v", ch, typ, err)
		}
		out = append(out, sentFrame{ch, typ, seq, string(pt)})
		r.follow(ch, typ, pt)
		batch = batch[n:]
	}
	r.sent = append(r.sent, out...)
	return out
}

// follow moves the peer's receiving keys as what the machine sent tells.
func (r *rig) follow(ch wire.Channel, typ wire.FrameType, pt []byte) {
	r.t.Helper()
	var err error
	switch {
	case typ == wire.TypeKeyUpdate:
		err = r.open[ch].Update()
	case ch != wire.ChannelControl:
	case typ == wire.TypeMasterRatchet:
		err = r.recv.Ratchet()
		r.rerootOpeners()
	case typ == wire.TypeRekem:
		r.request = string(pt)
	case typ == wire.TypeRekemAck:
		var ct []byte
		var secret *kem.Secret
		if ct, _, err = control.ParseRekemAck(pt, rekemCiphertext); err != nil {
			break
		}
		if secret, err = r.key.Decapsulate(ct); err != nil {
			break
		}
		th := schedule.RekemPoint(profiles.SHA256, []byte(r.request), pt)
		err = r.recv.RatchetKEM(secret.Bytes(), &th)
		r.rerootOpeners()
	}
	if err != nil {
		r.t.Fatalf("the machine's %v frame %#x can't be followed: %v", ch, typ, err)
	}
}

func (r *rig) rerootOpeners() {
	for _, o := range r.open {
		o.Reroot(r.recv)
	}
}

func (r *rig) rerootSealers() {
	for _, s := range r.seal {
		s.Reroot(r.send)
	}
}

// ratchet is the peer's MASTER_RATCHET; what the peer seals next is under the
// new root.
func (r *rig) ratchet() []byte {
	r.t.Helper()
	b := r.frame(wire.ChannelControl, wire.TypeMasterRatchet, string(control.AppendRatchet(nil, r.send.Generation()+1)))
	if err := r.send.Ratchet(); err != nil {
		r.t.Fatal(err)
	}
	r.rerootSealers()
	return b
}

// rekem is the peer's REKEM for a generation.
func (r *rig) rekem(gen uint64) []byte {
	r.t.Helper()
	var err error
	if r.key, err = kem.ByID(profiles.X25519MLKEM768).Generate(r.rand); err != nil {
		r.t.Fatal(err)
	}
	r.request = string(control.AppendRekem(nil, r.key.Share(), gen))
	return r.frame(wire.ChannelControl, wire.TypeRekem, r.request)
}

// answer is the peer's REKEM_ACK to the machine's last REKEM; what the peer seals
// next is under the new root.
func (r *rig) answer() []byte {
	r.t.Helper()
	share, gen, err := control.ParseRekem([]byte(r.request), rekemShare)
	if err != nil {
		r.t.Fatal(err)
	}
	ct, secret, err := kem.ByID(profiles.X25519MLKEM768).Encapsulate(r.rand, share)
	if err != nil {
		r.t.Fatal(err)
	}
	ack := control.AppendRekemAck(nil, ct, gen)
	b := r.frame(wire.ChannelControl, wire.TypeRekemAck, string(ack))
	th := schedule.RekemPoint(profiles.SHA256, []byte(r.request), ack)
	if err := r.send.RatchetKEM(secret.Bytes(), &th); err != nil {
		r.t.Fatal(err)
	}
	r.rerootSealers()
	return b
}

// turn feeds b and gives the events, payloads copied, and what was sent.
func (r *rig) turn(b []byte) ([]Event, []sentFrame) {
	r.t.Helper()
	r.c.StartBatch(r.now, nil, false)
	var evs []Event
	if b != nil {
		r.c.HandleBytes(r.now, bytes.Clone(b))
	}
	for {
		ev, ok := r.c.Poll()
		if !ok {
			break
		}
		ev.Payload = bytes.Clone(ev.Payload)
		if ev.Kind == EventClosed {
			r.ended = ev.Err
		}
		evs = append(evs, *ev)
	}
	r.c.Settle()
	out := r.take()
	for {
		ev, ok := r.c.Poll()
		if !ok {
			break
		}
		if ev.Kind == EventClosed {
			r.ended = ev.Err
		}
		evs = append(evs, *ev)
	}
	return evs, out
}

func (r *rig) sealer(ch wire.Channel) *record.Sealer {
	s := r.seal[ch]
	if s == nil {
		s = record.NewSealer(r.send, profiles.Standard, profiles.AES256GCM, ch)
		r.seal[ch] = s
	}
	return s
}

// frame seals the peer's next frame on ch.
func (r *rig) frame(ch wire.Channel, t wire.FrameType, payload string) []byte {
	r.t.Helper()
	b := append(make([]byte, wire.HeaderLen), payload...)
	b, err := r.sealer(ch).Seal(b, 0, 0, t)
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

// hello is the peer's HELLO; edit may change it.
func (r *rig) hello(edit func(*control.Hello)) []byte {
	r.t.Helper()
	h := control.Hello{
		Version: 1, Protocols: []uint8{2},
		HasMaxMessage: true, MaxMessage: wire.DefaultFrameLen,
		HasChannels: true, Channels: []wire.Channel{wire.ChannelControl, wire.ChannelBridge, wire.ChannelDiscovery, wire.ChannelImmune},
		HasCredit: true, Credit: FloorCredit,
	}
	if edit != nil {
		edit(&h)
	}
	p, err := control.AppendHello(nil, &h)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.frame(wire.ChannelControl, wire.TypeHello, string(p))
}

// patch changes a sealed frame's header and mends the CRC.
func patch(b []byte, edit func(h []byte)) []byte {
	b = bytes.Clone(b)
	edit(b)
	h := wire.Header(b[:wire.HeaderLen])
	fixed := wire.AppendHeader(nil, h.Flags(), h.Type(), h.Channel(), h.Seq(), h.PayloadLen())
	copy(b[21:25], fixed[21:25]) // only the CRC: magic, version and reserved stay as edited
	return b
}

// wantClosed checks that the machine ended as the fault table says "ERROR,
// close": ERROR with code on Control, then CLOSE, and nothing else.
func (r *rig) wantClosed(out []sentFrame, code control.ErrorCode) {
	r.t.Helper()
	if r.ended == nil {
		r.t.Fatal("the association lives on")
	}
	if r.ended.Code != code || r.ended.Remote {
		r.t.Fatalf("ended with %v, want code %v", r.ended, code)
	}
	if len(out) < 2 {
		r.t.Fatalf("sent %v, want ERROR and CLOSE", out)
	}
	e, c := out[len(out)-2], out[len(out)-1]
	rep, err := control.ParseErrorReport([]byte(e.payload))
	if e.ch != wire.ChannelControl || e.t != wire.TypeError || err != nil || rep.Code != code {
		r.t.Errorf("sent %+v, want ERROR %v", e, code)
	}
	if c.ch != wire.ChannelControl || c.t != wire.TypeClose || c.payload != "" {
		r.t.Errorf("sent %+v, want an empty CLOSE", c)
	}
	if evs, out := r.turn(r.frame(wire.ChannelBridge, 0x0100, "late")); len(evs) != 0 || len(out) != 0 {
		r.t.Errorf("the dead machine gave %v and sent %v", evs, out)
	}
}

// wantAlive checks that the machine still opens and answers.
func (r *rig) wantAlive() {
	r.t.Helper()
	if r.ended != nil {
		r.t.Fatalf("ended: %v", r.ended)
	}
	evs, _ := r.turn(r.frame(wire.ChannelBridge, 0x0100, "alive?"))
	if len(evs) != 1 || string(evs[0].Payload) != "alive?" {
		r.t.Fatalf("the machine does not open the next frame: %v", evs)
	}
}
