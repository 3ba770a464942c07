package agntcy_test

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/mapping/agntcy"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
	"github.com/trestle-npamp/trestle/wire/control"
)

func mapping(t *testing.T, cfg agntcy.Config) *agntcy.Mapping {
	t.Helper()
	if cfg.ID == 0 {
		cfg.ID = 0x10
	}
	m, err := agntcy.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// seen is a message as a handler got it.
type seen struct {
	method, foreign string
	content         bridge.ContentType
	media           string
	effect          bridge.Effect
	label           bridge.Label
	labelled        bool
	notification    bool
}

func see(m *carriage.Inbound) seen {
	s := seen{
		method: string(m.Method()), foreign: string(m.Foreign()), content: m.Content(), media: string(m.MediaType()),
		effect: m.Effect(), notification: m.Notification(),
	}
	var l bridge.Label
	l, s.labelled = m.Label()
	s.label = bridge.Label{Effect: l.Effect, Scope: bytes.Clone(l.Scope)}
	return s
}

// agent serves AGNTCY and remembers what it was sent.
type agent struct {
	seen   []seen
	answer func(r *carriage.Request)
}

func (a *agent) ServeRequest(r *carriage.Request) {
	a.seen = append(a.seen, see(&r.Inbound))
	if a.answer != nil {
		a.answer(r)
		return
	}
	_ = r.Respond([]byte("done"))
}

func (a *agent) ServeNotify(n *carriage.Notify) { a.seen = append(a.seen, see(&n.Inbound)) }

// last is what was sent last, and how much was sent.
func (a *agent) last() (seen, int) {
	if len(a.seen) == 0 {
		return seen{}, 0
	}
	return a.seen[len(a.seen)-1], len(a.seen)
}

// link is a caller and an agent that agreed on AGNTCY.
type link struct {
	*nptest.Pair
	t       *testing.T
	mapping *agntcy.Mapping
	caller  *carriage.Bridge
	served  *carriage.Bridge
	agent   *agent
}

func options(b *carriage.Bridge, more ...assoc.ChannelHandler) assoc.Options {
	o := assoc.Options{Handlers: append([]assoc.ChannelHandler{b}, more...)}
	o.Conn.Protocols = b.Protocols()
	return o
}

func newLink(t *testing.T, cfg agntcy.Config, of carriage.Config) *link {
	l := &link{t: t, mapping: mapping(t, cfg), agent: &agent{}}
	callerOf := of
	of.Protocols = []carriage.Protocol{l.mapping.Protocol(l.agent)}
	callerOf.Protocols, callerOf.Authorize = []carriage.Protocol{l.mapping.Protocol(nil)}, nil
	l.caller, l.served = carriage.New(callerOf), carriage.New(of)
	l.Pair = nptest.NewPair(t, nptest.Options{Client: options(l.caller), Server: options(l.served)})
	l.Settle()
	return l
}

func (l *link) send(c *carriage.Call) (reply carriage.Reply) {
	l.t.Helper()
	n := 0
	_, err := l.caller.Start(l.Client.Association, c, carriage.CompletionFunc(func(r *carriage.Reply) {
		n++
		reply = *r
		reply.Foreign = bytes.Clone(r.Foreign)
	}))
	if err != nil {
		return carriage.Reply{Err: err}
	}
	l.Settle()
	if n != 1 {
		l.t.Fatalf("ended %d times", n)
	}
	return reply
}

func (l *link) request(method string, payload string) *carriage.Call {
	l.t.Helper()
	c, err := l.mapping.Request(method, []byte(payload))
	if err != nil {
		l.t.Fatalf("%s: %v", method, err)
	}
	return c
}

// tap is one side of the Bridge channel whose frames a test reads and writes.
type tap struct {
	*nptest.Pair
	t      *testing.T
	end    *nptest.End
	types  []wire.FrameType
	frames [][]byte
}

func (p *tap) Channel() wire.Channel                       { return wire.ChannelBridge }
func (p *tap) Attach(*assoc.Association) assoc.ChannelConn { return p }
func (p *tap) HandleFrame(t wire.FrameType, payload []byte) {
	p.types, p.frames = append(p.types, t), append(p.frames, bytes.Clone(payload))
}
func (p *tap) HandleHello(*control.Hello) {}
func (p *tap) HandleRoom()                {}
func (p *tap) HandleDrain()               {}
func (p *tap) Busy() int                  { return 0 }
func (p *tap) HandleClose(error)          {}

// newTap joins a tap and a Bridge; protocols are what the tap's HELLO names.
func newTap(t *testing.T, b *carriage.Bridge, protocols ...uint8) *tap {
	p := &tap{t: t}
	o := assoc.Options{Handlers: []assoc.ChannelHandler{p}}
	o.Conn.Protocols = protocols
	p.Pair = nptest.NewPair(t, nptest.Options{Client: o, Server: options(b)})
	p.end = p.Client
	p.Settle()
	return p
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// put sends a frame, its plaintext in hex.
func (p *tap) put(typ wire.FrameType, plaintext string) {
	p.t.Helper()
	raw := unhex(p.t, plaintext)
	b := assoc.NewBuf(len(raw))
	b.B = append(b.B, raw...)
	if err := p.end.SendBuf(wire.ChannelBridge, typ, b); err != nil {
		p.t.Fatal(err)
	}
	p.Settle()
}

// want checks the frames that came since, each "type plaintext" in hex.
func (p *tap) want(frames ...string) {
	p.t.Helper()
	p.Settle()
	var got []string
	for i := range p.frames {
		got = append(got, hex.EncodeToString([]byte{byte(p.types[i] >> 8), byte(p.types[i])})+hex.EncodeToString(p.frames[i]))
	}
	for i, f := range frames {
		frames[i] = strings.ReplaceAll(f, " ", "")
	}
	if strings.Join(got, "\n") != strings.Join(frames, "\n") {
		p.t.Errorf("frames\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(frames, "\n"))
	}
	p.types, p.frames = nil, nil
}
