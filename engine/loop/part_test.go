package loop

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/crypto/handshake"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/crypto/record"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/engine/conn"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// partRig is a server of one loop that says nothing by itself.
type partRig struct {
	t     *testing.T
	g     *Group
	s     *Server
	key   identity.PrivateKey
	stood chan *assoc.Association
	ended chan error
}

func anyKey(identity.PublicKey) error { return nil }

func newPartRig(t *testing.T) *partRig {
	key, err := identity.Generate(profiles.Ed25519, nil)
	if err != nil {
		t.Fatal(err)
	}
	g, err := NewGroup(GroupConfig{Loops: 1})
	if err != nil {
		t.Fatal(err)
	}
	g.part.wait, g.part.close = time.Minute, time.Minute // for a busy machine
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &partRig{t: t, g: g, key: key, stood: make(chan *assoc.Association, 8), ended: make(chan error, 8)}
	r.s = &Server{
		Group: g, Handshakes: NewHandshakes(0, 0),
		NewMachine: func(net.Addr) (*handshake.Machine, error) {
			return handshake.NewServer(handshake.Config{Identity: key, VerifyPeer: anyKey})
		},
		Start: func(role assoc.Role, res handshake.Result, local, remote net.Addr) (*assoc.Association, error) {
			a := assoc.New(assoc.Options{
				Conn: conn.Config{
					Role: role, Profile: res.Profile, Suite: res.Suite, Send: res.Send, Recv: res.Recv, NoHello: true, CloseWait: time.Millisecond,
					Channels: []wire.Channel{wire.ChannelMemory}, PeerChannels: []wire.Channel{wire.ChannelMemory},
				},
				OnEnd: func(a *assoc.Association) { r.ended <- a.Err() },
			}, g.Now())
			r.stood <- a
			return a, nil
		},
	}
	r.s.Serve(ln)
	t.Cleanup(func() { _, _ = r.s.Close(), g.Close() })
	return r
}

// peer is the other end of an association, on a plain socket.
type peer struct {
	net.Conn
	memory  *record.Sealer
	control *record.Opener
}

func (r *partRig) dial() *peer {
	r.t.Helper()
	nc, err := net.Dial("tcp", r.s.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(30 * time.Second))
	m, err := handshake.NewClient(handshake.Config{Identity: r.key, VerifyPeer: anyKey})
	if err != nil {
		r.t.Fatal(err)
	}
	for {
		if _, err := nc.Write(m.AppendOutput(nil)); err != nil {
			r.t.Fatal(err)
		}
		if m.Done() {
			break
		}
		if err := m.HandleFrame(readWhole(r.t, nc)); err != nil {
			r.t.Fatal(err)
		}
	}
	res := m.Result()
	return &peer{
		Conn:    nc,
		memory:  record.NewSealer(res.Send, res.Profile, res.Suite, wire.ChannelMemory),
		control: record.NewOpener(res.Recv, res.Profile, res.Suite, wire.ChannelControl),
	}
}

// readWhole reads one frame and not an octet more.
func readWhole(t *testing.T, r io.Reader) wire.Frame {
	t.Helper()
	b := make([]byte, wire.HeaderLen)
	if _, err := io.ReadFull(r, b); err != nil {
		t.Fatal("header:", err)
	}
	h, err := wire.ParseHeader(b, 0)
	if err != nil {
		t.Fatal(err)
	}
	b = append(b, make([]byte, h.PayloadLen())...)
	if _, err := io.ReadFull(r, b[wire.HeaderLen:]); err != nil {
		t.Fatal("payload:", err)
	}
	f, _, err := wire.ParseFrame(b, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// fail sends a fault and waits until it has ended the association.
func (r *partRig) fail(p *peer) {
	r.t.Helper()
	if _, err := p.Write(p.fault(r.t)); err != nil {
		r.t.Fatal(err)
	}
	<-r.ended
}

// fault is a frame that does not authenticate.
func (p *peer) fault(t *testing.T) []byte {
	t.Helper()
	b, err := p.memory.Seal(make([]byte, wire.HeaderLen+1000), 0, 0, 0x0120)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	return b
}

// lastWords reads what the server says at the end: ERROR, CLOSE, end of file.
func (p *peer) lastWords(t *testing.T, code control.ErrorCode) {
	t.Helper()
	for _, want := range []wire.FrameType{wire.TypeError, wire.TypeClose} {
		f := readWhole(t, p)
		text, err := p.control.Open(f)
		if err != nil || f.Header().Type() != want {
			t.Fatalf("%v, want %v: %v", f.Header().Type(), want, err)
		}
		if want == wire.TypeError {
			if r, err := control.ParseErrorReport(text); err != nil || r.Code != code {
				t.Errorf("ERROR says %v, %v", r.Code, err)
			}
		}
	}
	if n, err := p.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("behind CLOSE: %d octets, %v", n, err)
	}
}

func (r *partRig) partings() int {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	return r.g.partings
}

func (r *partRig) eventuallyAlone() {
	r.t.Helper()
	nptest.Eventually(r.t, func() bool { return r.partings() == 0 }, func() any { return r.partings() })
}

// eventuallyClosed waits until what p writes meets nobody.
func (p *peer) eventuallyClosed(t *testing.T) {
	t.Helper()
	nptest.Eventually(t, func() bool { _, err := p.Write([]byte{0}); return err != nil }, func() any { return "it takes octets" })
}

// The connection of an association that ended in a fault is not reset while the
// peer still writes; the peer reads why it ended, whenever it looks. Then it is
// closed.
func TestPart_PeerThatStillWritesReadsTheReason(t *testing.T) {
	r := newPartRig(t)
	p := r.dial()
	r.fail(p)
	for range 8 { // much later than the fault, and all of it unread when that was found
		if _, err := p.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	p.lastWords(t, control.CodeCrypto)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	r.eventuallyAlone()
}

// A peer that goes on writing whatever it is told is cut off after so many octets.
func TestPart_EndsAfterOctets(t *testing.T) {
	r := newPartRig(t)
	p := r.dial()
	r.fail(p)
	var err error
	written := 0
	for b := make([]byte, 1<<20); err == nil && written < 8*defaultPart.octets; written += len(b) {
		_, err = p.Write(b)
	}
	if err == nil || isTimeout(err) {
		t.Errorf("%d octets written, %v", written, err)
	}
	r.eventuallyAlone()
}

// A peer that neither writes nor closes is cut off after a while.
func TestPart_EndsAfterTime(t *testing.T) {
	r := newPartRig(t)
	r.g.part.wait = 100 * time.Millisecond
	p := r.dial()
	r.fail(p)
	p.lastWords(t, control.CodeCrypto)
	r.eventuallyAlone()
	p.eventuallyClosed(t) // and not only shut
}

// What was said in an earlier turn and not acknowledged are last words too.
func TestPart_PeerThatDoesNotAcknowledge(t *testing.T) {
	r := newPartRig(t)
	p := r.dial()
	(<-r.stood).Close(control.CodePolicy, "")
	<-r.ended
	for range 8 {
		if _, err := p.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	p.lastWords(t, control.CodePolicy)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	r.eventuallyAlone()
}

// Not more than so many connections part at a time; others are closed at once.
func TestPart_NotTooMany(t *testing.T) {
	r := newPartRig(t)
	r.g.part.most = 1
	first, second := r.dial(), r.dial()
	r.fail(first)
	first.lastWords(t, control.CodeCrypto)
	r.fail(second)
	second.eventuallyClosed(t)
	if n := r.partings(); n != 1 {
		t.Errorf("%d part", n)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	r.eventuallyAlone()
	third := r.dial()
	r.fail(third)
	third.lastWords(t, control.CodeCrypto)
	if n := r.partings(); n != 1 {
		t.Errorf("%d part later", n)
	}
}

// Closing the loops waits for the last words, and no longer than they may take.
func TestPart_CloseOfTheGroupWaits(t *testing.T) {
	r := newPartRig(t)
	p := r.dial()
	big := append(p.fault(t), make([]byte, 200<<10)...)
	if _, err := p.Write(big); err != nil {
		t.Fatal(err)
	}
	<-r.ended
	closed := make(chan error, 1)
	go func() { closed <- r.g.Close() }()
	if _, err := p.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	p.lastWords(t, control.CodeCrypto)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-closed; err != nil && !errors.Is(err, ErrGroupClosed) {
		t.Error(err)
	}
}
