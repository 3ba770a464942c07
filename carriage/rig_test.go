package carriage_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
	"github.com/trestle-npamp/trestle/wire/control"
)

const (
	mcp = bridge.ProtocolMCP
	a2a = bridge.ProtocolA2A
	// raw is an opaque protocol by agreement.
	raw = bridge.FirstExperimental
)

// peer is a Bridge channel without any rules: it records what it receives and
// sends what it is told.
type peer struct {
	a      *assoc.Association
	frames []frame
	auto   func(frame) // called for each frame
	grants []uint64    // FLOW_UPDATEs for streams
}

type frame struct {
	t       wire.FrameType
	payload []byte
}

func (p *peer) Channel() wire.Channel { return wire.ChannelBridge }
func (p *peer) Attach(a *assoc.Association) assoc.ChannelConn {
	p.a = a
	return p
}

func (p *peer) HandleFrame(t wire.FrameType, payload []byte) {
	f := frame{t, bytes.Clone(payload)}
	p.frames = append(p.frames, f)
	if p.auto != nil {
		p.auto(f)
	}
}
func (p *peer) HandleStreamCredit(octets uint64, corr []byte) { p.grants = append(p.grants, octets) }
func (p *peer) HandleHello(*control.Hello)                    {}
func (p *peer) HandleRoom()                                   {}
func (p *peer) HandleDrain()                                  {}
func (p *peer) Busy() int                                     { return 0 }
func (p *peer) HandleClose(error)                             {}

// sendRaw sends octets as one frame.
func (p *peer) sendRaw(t *testing.T, typ wire.FrameType, payload []byte) {
	t.Helper()
	b := assoc.NewBuf(len(payload))
	b.B = append(b.B, payload...)
	if err := p.a.SendBuf(wire.ChannelBridge, typ, b); err != nil {
		t.Fatal(err)
	}
}

// send sends a message.
func (p *peer) send(t *testing.T, m bridge.Message) {
	t.Helper()
	p.sendRaw(t, m.Kind.Type(), payload(t, m))
}

func payload(t *testing.T, m bridge.Message) []byte {
	t.Helper()
	if m.Content == 0 {
		m.Content = bridge.ContentJSON
	}
	if m.Protocol == 0 {
		m.Protocol = mcp
	}
	b, err := m.Append(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// take returns the frames received so far, parsed, and forgets them.
func (p *peer) take(t *testing.T) []bridge.Message {
	t.Helper()
	var ms []bridge.Message
	for _, f := range p.frames {
		var m bridge.Message
		if err := bridge.Parse(&m, f.t, f.payload, nil); err != nil {
			t.Fatalf("we sent a malformed message: %v", err)
		}
		ms = append(ms, m)
	}
	p.frames = nil
	return ms
}

// one returns the only frame received.
func (p *peer) one(t *testing.T) bridge.Message {
	t.Helper()
	ms := p.take(t)
	if len(ms) != 1 {
		t.Fatalf("%d frames, want 1: %+v", len(ms), ms)
	}
	return ms[0]
}

func (p *peer) none(t *testing.T) {
	t.Helper()
	if ms := p.take(t); len(ms) != 0 {
		t.Fatalf("%d frames, want none: kind %v, %q", len(ms), ms[0].Kind, ms[0].Foreign)
	}
}

// transport says that m is a transport error with this code on this corr.
func transport(t *testing.T, m bridge.Message, corr string, code bridge.Code) {
	t.Helper()
	got, text, ok := bridge.ParseTransportError(m.Foreign)
	if m.Kind != bridge.KindError || !ok || got != code || string(m.Corr) != corr {
		t.Fatalf("got %v on corr %q: %q (%v), want %v on %q", m.Kind, m.Corr, m.Foreign, got, code, corr)
	}
	if len(text) == 0 {
		t.Errorf("%v without a text", code)
	}
}

// echo answers with what JSON-RPC asks for: result is the request itself.
type echo struct{ notified [][]byte }

func (e *echo) ServeRequest(r *carriage.Request) { _ = r.Respond(result(r)) }
func (e *echo) ServeNotify(n *carriage.Notify) {
	e.notified = append(e.notified, bytes.Clone(n.Foreign()))
}

func result(r *carriage.Request) []byte {
	if r.ID() == nil {
		return r.Foreign()
	}
	b := append([]byte(`{"jsonrpc":"2.0","id":`), r.ID()...)
	b = append(append(b, `,"result":`...), r.Foreign()...)
	return append(b, '}')
}

// held retains every request for the test to answer.
type held struct {
	requests []*carriage.Request
	notified int
}

func (h *held) ServeRequest(r *carriage.Request) {
	r.Retain()
	h.requests = append(h.requests, r)
}
func (h *held) ServeNotify(*carriage.Notify) { h.notified++ }

func config(h carriage.Handler) carriage.Config {
	return carriage.Config{Protocols: []carriage.Protocol{
		{ID: mcp, Class: carriage.ClassJSONRPC, Handler: h},
		{ID: raw, Class: carriage.ClassOpaque, Content: bridge.ContentCBOR, Handler: h},
	}}
}

func options(h assoc.ChannelHandler) assoc.Options {
	o := assoc.Options{Handlers: []assoc.ChannelHandler{h}}
	o.Conn.Protocols = []uint8{uint8(mcp), uint8(a2a), uint8(raw)}
	o.Conn.PingInterval = -1
	return o
}

// serving is a Bridge on the server's side and a peer on the client's.
func serving(t *testing.T, cfg carriage.Config) (*nptest.Pair, *carriage.Bridge, *peer) {
	t.Helper()
	b, p := carriage.New(cfg), new(peer)
	pair := nptest.NewPair(t, nptest.Options{Client: options(p), Server: options(b)})
	pair.Settle()
	return pair, b, p
}

// asking is a Bridge on the client's side and a peer on the server's.
func asking(t *testing.T, cfg carriage.Config) (*nptest.Pair, *carriage.Bridge, *peer) {
	t.Helper()
	b, p := carriage.New(cfg), new(peer)
	pair := nptest.NewPair(t, nptest.Options{Client: options(b), Server: options(p)})
	pair.Settle()
	return pair, b, p
}

// both is a Bridge on either side.
func both(t *testing.T, client, server carriage.Config) (*nptest.Pair, *carriage.Bridge, *carriage.Bridge) {
	t.Helper()
	c, s := carriage.New(client), carriage.New(server)
	pair := nptest.NewPair(t, nptest.Options{Client: options(c), Server: options(s)})
	pair.Settle()
	return pair, c, s
}

// outcome is a Completion that counts and copies.
type outcome struct {
	n int
	carriage.Reply
}

func (o *outcome) HandleReply(r *carriage.Reply) {
	o.n++
	o.Reply = *r
	o.Foreign = bytes.Clone(r.Foreign)
}

func start(t *testing.T, b *carriage.Bridge, a *assoc.Association, c carriage.Call) (*outcome, carriage.Exchange) {
	t.Helper()
	if c.Protocol == 0 {
		c.Protocol = mcp
	}
	o := new(outcome)
	x, err := b.Start(a, &c, o)
	if err != nil {
		t.Fatal(err)
	}
	return o, x
}

func call(foreign string) carriage.Call { return carriage.Call{Foreign: []byte(foreign)} }

// ended says that the exchange ended once, with a transport error of this code.
func (o *outcome) ended(t *testing.T, code bridge.Code, remote bool) {
	t.Helper()
	e, ok := o.Err.(*bridge.Error)
	if o.n != 1 || !ok || e.Code != code || o.Remote != remote {
		t.Fatalf("ended %d times with %v (remote %v), want once with %v (remote %v)", o.n, o.Err, o.Remote, code, remote)
	}
}

func (o *outcome) got(t *testing.T, kind bridge.Kind, foreign string) {
	t.Helper()
	if o.n != 1 || o.Err != nil || o.Kind != kind || string(o.Foreign) != foreign {
		t.Fatalf("ended %d times: %v %v %q, want once %v %q", o.n, o.Err, o.Kind, o.Foreign, kind, foreign)
	}
}

func (o *outcome) pending(t *testing.T) {
	t.Helper()
	if o.n != 0 {
		t.Fatalf("ended already: %v %v %q", o.Err, o.Kind, o.Foreign)
	}
}

const second = time.Second

func pair(t *testing.T, client, server assoc.Options) *nptest.Pair {
	t.Helper()
	p := nptest.NewPair(t, nptest.Options{Client: client, Server: server})
	p.Settle()
	return p
}
