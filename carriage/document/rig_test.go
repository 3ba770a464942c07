package document

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/carriage/discovery"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
	"github.com/trestle-npamp/trestle/wire/control"
)

func TestMain(m *testing.M) { nptest.VerifyNoLeaks(m) }

const (
	a2a    = bridge.ProtocolA2A
	method = "agent/getCard"
	second = time.Second
)

var tags = &bridge.Tags{DocumentBinding: 0x40}

// peer is a channel of Bridge messages without any rules.
type peer struct {
	ch     wire.Channel
	tags   *bridge.Tags
	a      *assoc.Association
	frames []bridge.Message
	types  []wire.FrameType
	raw    [][]byte
	auto   func(m bridge.Message)
}

func (p *peer) Channel() wire.Channel { return p.ch }
func (p *peer) Attach(a *assoc.Association) assoc.ChannelConn {
	p.a = a
	return p
}

func (p *peer) HandleFrame(t wire.FrameType, payload []byte) {
	var m bridge.Message
	own := bytes.Clone(payload)
	if err := bridge.Parse(&m, t, own, p.tags); err != nil {
		panic(err)
	}
	p.frames, p.types, p.raw = append(p.frames, m), append(p.types, t), append(p.raw, own)
	if p.auto != nil {
		p.auto(m)
	}
}
func (p *peer) HandleHello(*control.Hello)        {}
func (p *peer) HandleStreamCredit(uint64, []byte) {}
func (p *peer) HandleRoom()                       {}
func (p *peer) HandleDrain()                      {}
func (p *peer) Busy() int                         { return 0 }
func (p *peer) HandleClose(error)                 {}

func (p *peer) send(t *testing.T, m bridge.Message) {
	t.Helper()
	if m.Content == 0 {
		m.Content = bridge.ContentJSON
	}
	if m.Protocol == 0 {
		m.Protocol = a2a
	}
	octets, err := m.Append(nil, p.tags)
	if err != nil {
		t.Fatal(err)
	}
	p.sendRaw(t, m.Kind.Type(), octets)
}

func (p *peer) sendRaw(t *testing.T, typ wire.FrameType, octets []byte) {
	t.Helper()
	b := assoc.NewBuf(len(octets))
	b.B = append(b.B, octets...)
	if err := p.a.SendBuf(p.ch, typ, b); err != nil {
		t.Fatal(err)
	}
}

func (p *peer) take() []bridge.Message {
	ms := p.frames
	p.frames, p.types, p.raw = nil, nil, nil
	return ms
}

func (p *peer) one(t *testing.T) bridge.Message {
	t.Helper()
	ms := p.take()
	if len(ms) != 1 {
		t.Fatalf("%d frames, want 1: %+v", len(ms), ms)
	}
	return ms[0]
}

func (p *peer) none(t *testing.T) {
	t.Helper()
	if ms := p.take(); len(ms) != 0 {
		t.Fatalf("%d frames, want none: %v %q", len(ms), ms[0].Kind, ms[0].Foreign)
	}
}

// told checks that the peer was sent one transport error.
func (p *peer) told(t *testing.T, corr []byte, code bridge.Code) {
	t.Helper()
	m := p.one(t)
	got, text, ok := bridge.ParseTransportError(m.Foreign)
	if m.Kind != bridge.KindError || !ok || got != code || !bytes.Equal(m.Corr, corr) {
		t.Fatalf("%v on %q: %q, want %v on %q", m.Kind, m.Corr, m.Foreign, code, corr)
	}
	if len(text) == 0 {
		t.Errorf("%v without a text", code)
	}
}

func config(h carriage.Handler) carriage.Config {
	return carriage.Config{
		Protocols: []carriage.Protocol{{
			ID: a2a, Class: carriage.ClassJSONRPC, Handler: h,
			Effect:   func(m []byte) (bridge.Effect, bool) { return bridge.ReadOnly, string(m) == method },
			Document: func(m []byte) bool { return string(m) == method },
		}},
		Tags: tags,
	}
}

func options(hs ...assoc.ChannelHandler) assoc.Options {
	o := assoc.Options{Handlers: hs}
	o.Conn.Protocols = []uint8{uint8(a2a)}
	o.Conn.PingInterval = -1
	return o
}

// asking is a Bridge on the client's side and a peer on the server's.
func asking(t *testing.T, cfg carriage.Config) (*nptest.Pair, *carriage.Bridge, *peer) {
	t.Helper()
	b, p := carriage.New(cfg), &peer{ch: wire.ChannelBridge, tags: tags}
	pair := nptest.NewPair(t, nptest.Options{Client: options(b), Server: options(p)})
	pair.Settle()
	return pair, b, p
}

// serving is a Bridge on the server's side and a peer on the client's.
func serving(t *testing.T, cfg carriage.Config) (*nptest.Pair, *carriage.Bridge, *peer) {
	t.Helper()
	b, p := carriage.New(cfg), &peer{ch: wire.ChannelBridge, tags: tags}
	pair := nptest.NewPair(t, nptest.Options{Client: options(p), Server: options(b)})
	pair.Settle()
	return pair, b, p
}

// both is a Bridge on either side.
func both(t *testing.T, client, server carriage.Config, edit func(*nptest.Options)) (*nptest.Pair, *carriage.Bridge, *carriage.Bridge) {
	t.Helper()
	c, s := carriage.New(client), carriage.New(server)
	o := nptest.Options{Client: options(c), Server: options(s)}
	if edit != nil {
		edit(&o)
	}
	pair := nptest.NewPair(t, o)
	pair.Settle()
	return pair, c, s
}

// onDiscovery is a documents Bridge on the Discovery channel of either side.
func onDiscovery(t *testing.T, client, server carriage.Config) (*nptest.Pair, *carriage.Bridge, *carriage.Bridge) {
	t.Helper()
	client.Channel, server.Channel = wire.ChannelDiscovery, wire.ChannelDiscovery
	c, s := carriage.New(client), carriage.New(server)
	cd := discovery.New(discovery.Config{Documents: c.Attach})
	sd := discovery.New(discovery.Config{Documents: s.Attach})
	pair := nptest.NewPair(t, nptest.Options{Client: options(cd), Server: options(sd)})
	pair.Settle()
	return pair, c, s
}

// outcome is how a reception ended.
type outcome struct {
	n      int
	set    *Set
	err    error
	remote bool
}

func (o *outcome) done(s *Set, reply *carriage.Reply) {
	o.n++
	o.set, o.err, o.remote = s, Err(reply), reply.Remote
}

func (o *outcome) pending(t *testing.T) {
	t.Helper()
	if o.n != 0 {
		t.Fatalf("ended already: %+v, %v", o.set, o.err)
	}
}

// failed checks that nothing was shown, and why.
func (o *outcome) failed(t *testing.T, code bridge.Code, remote bool) {
	t.Helper()
	if o.n != 1 || o.set != nil || bridge.CodeOf(o.err) != code || o.remote != remote {
		t.Fatalf("ended %d times with set %v and %v (remote %v), want none and %v (remote %v)", o.n, o.set, o.err, o.remote, code, remote)
	}
}

// got checks that the set is s, octet for octet.
func (o *outcome) got(t *testing.T, s *Set) *Set {
	t.Helper()
	if o.n != 1 || o.err != nil || o.set == nil {
		t.Fatalf("ended %d times with set %v and %v", o.n, o.set, o.err)
	}
	equal(t, o.set, s)
	return o.set
}

func equal(t *testing.T, got, want *Set) {
	t.Helper()
	if !bytes.Equal(got.Document, want.Document) || got.ID != want.ID || got.MediaType != want.MediaType ||
		got.Alg != want.Alg || !bytes.Equal(got.Digest, want.Digest) || len(got.Proofs) != len(want.Proofs) {
		t.Fatalf("got set %q %q, %v, %d proofs, %d octets; want %q %q, %v, %d proofs, %d octets",
			got.ID, got.MediaType, got.Alg, len(got.Proofs), len(got.Document),
			want.ID, want.MediaType, want.Alg, len(want.Proofs), len(want.Document))
	}
	for i, p := range got.Proofs {
		if w := want.Proofs[i]; p.Alg != w.Alg || p.MediaType != w.MediaType || !bytes.Equal(p.Octets, w.Octets) {
			t.Fatalf("proof %d is %+v, want %+v", i, p, w)
		}
	}
}

// ask starts a reception.
func ask(t *testing.T, r *Receiver, b *carriage.Bridge, a *assoc.Association) (*outcome, *carriage.Consumer) {
	t.Helper()
	o := new(outcome)
	x, err := r.Start(b, a, &carriage.Call{Protocol: a2a, Method: method}, o.done)
	if err != nil {
		t.Fatal(err)
	}
	return o, x
}

// receiving is a reception whose request has reached a peer without rules. corr is
// its correlation id.
func receiving(t *testing.T, cfg Config) (pair *nptest.Pair, p *peer, o *outcome, r *Receiver, corr []byte) {
	t.Helper()
	pair, b, p := asking(t, config(nil))
	r = NewReceiver(cfg)
	o, _ = ask(t, r, b, pair.Client.Association)
	pair.Settle()
	m := p.one(t)
	if m.Kind != bridge.KindRequest || string(m.Method) != method {
		t.Fatalf("request %+v", m)
	}
	return pair, p, o, r, m.Corr
}

// request asks a server for the document.
func request(t *testing.T, p *peer, corr string) {
	t.Helper()
	p.send(t, bridge.Message{Kind: bridge.KindRequest, Corr: []byte(corr), Method: []byte(method)})
}

// part makes a frame of a set.
func part(corr []byte, k bridge.Kind, v bridge.Binding, id bridge.EventID, foreign []byte) bridge.Message {
	binding, err := v.Append(nil)
	if err != nil {
		panic(err)
	}
	m := bridge.Message{Kind: k, Corr: corr, Binding: binding, Foreign: foreign}
	if k != bridge.KindResponse {
		m.HasStream, m.Stream.EventID = true, id
	}
	if k == bridge.KindEnd {
		m.Flags = bridge.FlagFinal
	}
	return m
}

// bindingOf is the binding of a document with so many proofs.
func bindingOf(doc []byte, proofs int) bridge.Binding {
	sum := sha256.Sum256(doc)
	return bridge.Binding{
		Part: bridge.PartDocument, DocID: []byte("card"), MediaType: []byte("application/json"),
		Alg: bridge.DigestSHA256, Digest: sum[:], ProofCount: uint8(proofs),
	}
}

func proofOf(v bridge.Binding, index int) bridge.Binding {
	v.Part, v.ProofIndex, v.ProofAlg, v.MediaType = bridge.PartProof, uint8(index), ProofEd25519, nil
	return v
}

func setOf(t *testing.T, doc []byte, proofs ...Proof) *Set {
	t.Helper()
	s, err := New("card", "application/json", 0, doc, proofs...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// server answers with one set.
func server(s *Set, o carriage.SetOptions) *Server {
	return &Server{Get: func(*carriage.Request) (*Set, error) { return s, nil }, Options: o}
}

var (
	card      = []byte("\xef\xbb\xbf{\"b\":1.0,\r\n \"a\" : \"\\u002f\xc3\xa9\", \"a2\":[ ]}\n")
	signature = Proof{Alg: ProofEd25519, MediaType: "application/jose+json", Octets: []byte(`{"protected":"e30","signature":"AA"}`)}
	receipt   = Proof{Alg: 0xF001, Octets: []byte{0, 0x11, 0, 11, 1, 0xFF}}
)

func text(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}

var background = context.Background()

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func isCode(err error, code bridge.Code) bool {
	var e *bridge.Error
	return errors.As(err, &e) && e.Code == code
}
