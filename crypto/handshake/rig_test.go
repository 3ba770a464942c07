package handshake

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"testing"

	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/crypto/record"
	"github.com/trestle-npamp/trestle/crypto/schedule"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func key(t testing.TB, scheme profiles.Scheme, fill byte) *identity.Key {
	t.Helper()
	k, err := identity.FromSeed(scheme, [identity.SeedLen]byte(bytes.Repeat([]byte{fill}, identity.SeedLen)))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

const clientFill, serverFill = 0xc1, 0x5e

// configs are those of two sides that pin each other.
func configs(t testing.TB, p *profiles.Profile, scheme profiles.Scheme) (client, server Config) {
	ck, sk := key(t, scheme, clientFill), key(t, scheme, serverFill)
	client = Config{Profiles: []*profiles.Profile{p}, Identity: ck, VerifyPeer: identity.Pin(sk.Public())}
	server = Config{Profiles: []*profiles.Profile{p}, Identity: sk, VerifyPeer: identity.Pin(ck.Public())}
	return client, server
}

func standard(t testing.TB) (client, server Config) {
	return configs(t, profiles.Standard, profiles.Ed25519)
}

func machines(t testing.TB, client, server Config) (c, s *Machine) {
	t.Helper()
	c, err := NewClient(client)
	if err != nil {
		t.Fatal(err)
	}
	s, err = NewServer(server)
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}

// frames cuts octets into frames.
func frames(t testing.TB, b []byte) (list [][]byte) {
	t.Helper()
	for len(b) > 0 {
		f, n, err := wire.ParseFrame(b, MaxFrameLen)
		if err != nil || n == 0 {
			t.Fatalf("output is not frames: %d of %d, %v", n, len(b), err)
		}
		list = append(list, b[:f.Len():f.Len()])
		b = b[n:]
	}
	return list
}

// frame views a copy of b as a frame, so that opening in place leaves b alone.
func frame(t testing.TB, b []byte) wire.Frame {
	t.Helper()
	f, n, err := wire.ParseFrame(bytes.Clone(b), wire.MaxFrameLen)
	if err != nil || n != len(b) {
		t.Fatalf("not a frame: %d of %d, %v", n, len(b), err)
	}
	return f
}

// The four messages, and the machine that takes each.
const (
	clientHello = iota
	serverHello
	serverAuth
	clientAuth
	messageCount
)

var messageNames = [messageCount]string{"CLIENT_HELLO", "SERVER_HELLO", "SERVER_AUTH", "CLIENT_AUTH"}

// run is a handshake that stands before one of its messages.
type run struct {
	t       testing.TB
	c, s    *Machine
	message [messageCount][]byte
}

// start begins a handshake and delivers the messages before next.
func start(t testing.TB, client, server Config, next int) *run {
	t.Helper()
	r := &run{t: t}
	r.c, r.s = machines(t, client, server)
	r.message[clientHello] = r.c.AppendOutput(nil)
	for i := range next {
		r.deliver(i, r.message[i])
	}
	return r
}

func (r *run) receiver(message int) *Machine {
	if message == clientHello || message == clientAuth {
		return r.s
	}
	return r.c
}

// deliver gives a message to its receiver and keeps what that answers.
func (r *run) deliver(message int, b []byte) {
	r.t.Helper()
	if err := r.give(message, b); err != nil {
		r.t.Fatalf("%s: %v", messageNames[message], err)
	}
}

func (r *run) give(message int, b []byte) error {
	r.t.Helper()
	m := r.receiver(message)
	if err := m.HandleFrame(frame(r.t, b)); err != nil {
		return err
	}
	out := frames(r.t, m.AppendOutput(nil))
	switch message {
	case clientHello:
		r.message[serverHello], r.message[serverAuth] = out[0], out[1]
	case serverAuth:
		r.message[clientAuth] = out[0]
	default:
		if len(out) != 0 {
			r.t.Fatalf("output after %s", messageNames[message])
		}
	}
	return nil
}

// dead checks that a machine failed for good and gives nothing away.
func dead(t testing.TB, m *Machine) {
	t.Helper()
	if m.Done() {
		t.Fatal("done after an error")
	}
	if r := m.Result(); r != (Result{}) {
		t.Fatalf("a result after an error: %+v", r)
	}
	if out := m.AppendOutput(nil); len(out) != 0 {
		t.Fatalf("output after an error: %x", out)
	}
	if m.keys != nil || m.secrets != nil || m.transcript != nil || m.hello != nil {
		t.Fatal("secrets are left after an error")
	}
	over := wire.AppendHeader(nil, 0, wire.TypeClientHello, wire.ChannelControl, 0, 0)
	if err := m.HandleFrame(frame(t, over)); err != ErrOver {
		t.Fatalf("a frame after an error: %v", err)
	}
}

// reheader gives a frame another header before the same payload.
func reheader(b []byte, f wire.Flags, typ wire.FrameType, ch wire.Channel, seq wire.Seq) []byte {
	payload := b[wire.HeaderLen:]
	return append(wire.AppendHeader(nil, f, typ, ch, seq, len(payload)), payload...)
}

// withPayload gives a frame another payload behind the same header.
func withPayload(b, payload []byte) []byte {
	h := wire.Header(b[:wire.HeaderLen])
	return append(wire.AppendHeader(nil, h.Flags(), h.Type(), h.Channel(), h.Seq(), len(payload)), payload...)
}

// openAuth gives the plaintext of an AUTH that travels in dir; m is a machine
// that has the handshake secrets, either one.
func openAuth(t testing.TB, m *Machine, dir wire.Direction, b []byte) []byte {
	t.Helper()
	o := record.NewOpener(m.secrets.AuthRoot(dir), m.choice.profile, m.choice.suite, wire.ChannelControl)
	plain, err := o.Open(frame(t, b))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(plain)
}

// sealAuth seals a plaintext as an AUTH that travels in dir.
func sealAuth(t testing.TB, m *Machine, dir wire.Direction, plain []byte) []byte {
	t.Helper()
	s := record.NewSealer(m.secrets.AuthRoot(dir), m.choice.profile, m.choice.suite, wire.ChannelControl)
	b, err := s.Seal(append(make([]byte, wire.HeaderLen), plain...), 0, 0, authType(dir))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// transcript is what was absorbed before an AUTH, put together again from the
// messages.
func (r *run) transcript(before int) *schedule.Transcript {
	r.t.Helper()
	m := r.receiver(before)
	tr := schedule.NewTranscript(m.choice.profile.Hash)
	for i := range before {
		tr.AddFrameType(wire.TypeClientHello + wire.FrameType(i))
		if i == serverAuth {
			tr.AddTLVs(openAuth(r.t, m, wire.ServerToClient, r.message[i]))
		} else {
			tr.AddTLVs(r.message[i][wire.HeaderLen:])
		}
	}
	return tr
}

func hexDigest(b []byte) string {
	d := sha256.Sum256(b)
	return hex.EncodeToString(d[:])
}

// agree checks that two results are of one association: what one seals the
// other opens, both ways, on two channels.
func agree(t testing.TB, c, s Result) {
	t.Helper()
	if c.Role != Client || s.Role != Server || c.Profile != s.Profile || c.Suite != s.Suite || c.KEM != s.KEM || c.Profile == nil {
		t.Fatalf("results differ: %+v, %+v", c, s)
	}
	for _, ch := range []wire.Channel{wire.ChannelControl, wire.ChannelBridge} {
		for _, way := range [][2]*schedule.Root{{c.Send, s.Recv}, {s.Send, c.Recv}} {
			sealer := record.NewSealer(way[0], c.Profile, c.Suite, ch)
			opener := record.NewOpener(way[1], c.Profile, c.Suite, ch)
			for i := range 3 {
				b, err := sealer.Seal(append(make([]byte, wire.HeaderLen), byte(i)), 0, 0, wire.FirstChannelType)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := opener.Open(frame(t, b)); err != nil || !bytes.Equal(got, []byte{byte(i)}) {
					t.Fatalf("%v frame %d on %s: %v", way[0], i, ch, err)
				}
			}
		}
	}
	if c.Send.Direction() != wire.ClientToServer || s.Send.Direction() != wire.ServerToClient {
		t.Fatal("directions are wrong")
	}
}

// counting gives 00 01 02 .. as randomness.
type counting struct{ next byte }

func (c *counting) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = c.next
		c.next++
	}
	return len(b), nil
}

var _ io.Reader = (*counting)(nil)

// codePoints16 is a list of code points as an offer has it.
func codePoints16(list ...uint16) []byte {
	var b []byte
	for _, v := range list {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	return b
}
