package agntcy_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/mapping/a2a"
	"github.com/trestle-npamp/trestle/mapping/agntcy"
	"github.com/trestle-npamp/trestle/mapping/mcp"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
	"github.com/trestle-npamp/trestle/wire/control"
)

func refusedWith(t *testing.T, name string, r carriage.Reply, code bridge.Code) {
	t.Helper()
	if e, ok := r.Err.(*bridge.Error); !ok || e.Code != code {
		t.Errorf("%s: %v, want %v", name, r.Err, code)
	}
}

// MAP-AGNTCY 1.2, 12(5): A2A and MCP are not carried under AGNTCY's id, whichever
// way they are named: a sender refuses, and a receiver does when one sends them all
// the same.
func TestMapAGNTCY1_2_HostedA2AAndMCPAreRefused(t *testing.T) {
	l := newLink(t, agntcy.Config{}, carriage.Config{})
	for _, method := range []string{
		"message/send", "message/stream", "tasks/cancel", "SendMessage", "GetTask", "agent/getCard",
		"tools/call", "initialize", "resources/read", "notifications/progress", "sampling/createMessage",
		"a2a.v1.A2AService/SendMessage", "lf.a2a.v1.A2AService/GetTask", "A2AService/CancelTask",
	} {
		if _, err := l.mapping.Request(method, nil); !errors.Is(err, agntcy.ErrHosted) {
			t.Errorf("Request %s: %v", method, err)
		}
		if _, err := l.mapping.OneWay(method, nil); !errors.Is(err, agntcy.ErrHosted) {
			t.Errorf("OneWay %s: %v", method, err)
		}
		c := &carriage.Call{Protocol: 0x10, Method: method, Foreign: []byte(`{"jsonrpc":"2.0","id":1,"method":"x"}`)}
		refusedWith(t, method, l.send(c), bridge.CodeMethodUnsupported)
		if err := l.caller.TryNotify(l.Client.Association, c); err != nil {
			t.Fatal(err)
		}
		l.Settle()
	}
	if _, n := l.agent.last(); n != 0 {
		t.Errorf("the agent saw %+v", l.agent.seen)
	}
	if s := l.served.Stats(); s.RequestsUnsupported != 14 || s.NotificationsDropped != 14 {
		t.Errorf("%+v", s)
	}
}

// MAP-AGNTCY 4, 12(1): an experimental id, and no other; none by default.
func TestMapAGNTCY4_ExperimentalProtocolIDsOnly(t *testing.T) {
	for id := range 256 {
		m, err := agntcy.New(agntcy.Config{ID: bridge.ProtocolID(id)})
		if ok := id >= 0x10 && id <= 0x7F; (err == nil) != ok || ok && m.Protocol(nil).ID != bridge.ProtocolID(id) ||
			!ok && !errors.Is(err, agntcy.ErrProtocolID) {
			t.Errorf("%#x: %v", id, err)
		}
	}
	if _, err := agntcy.New(agntcy.Config{ID: 0x10, Surface: 4}); !errors.Is(err, agntcy.ErrSurface) {
		t.Errorf("%v", err)
	}
	l := newLink(t, agntcy.Config{ID: 0x5A}, carriage.Config{})
	if c := l.request("POST /runs", "{}"); c.Protocol != 0x5A {
		t.Errorf("%#x", c.Protocol)
	}
}

// MAP-AGNTCY 4: nothing is sent under an id that the peer has not agreed to, and
// what comes under one that we have not is ProtocolUnsupported, whatever its other
// fields look like.
func TestMapAGNTCY4_OnlyUnderTheAgreedID(t *testing.T) {
	h := &agent{}
	p := newTap(t, carriage.New(carriage.Config{Protocols: []carriage.Protocol{mapping(t, agntcy.Config{ID: 0x10}).Protocol(h)}}), 0x10, 0x11)
	// REQUEST, protocol 0x11, JSON, corr "c", method "POST /runs", label, "{}".
	p.put(bridge.TypeRequest, "0010 0011 11 01 01 00 01 63 0a 504f5354202f72756e73"+"0013 0002 02 00"+"7b7d")
	if len(p.frames) != 1 {
		t.Fatalf("%d frames", len(p.frames))
	}
	var m bridge.Message
	if err := bridge.Parse(&m, p.types[0], p.frames[0], nil); err != nil {
		t.Fatal(err)
	}
	if code, _, ok := bridge.ParseTransportError(m.Foreign); m.Kind != bridge.KindError || !ok || code != bridge.CodeProtocolUnsupported || string(m.Corr) != "c" {
		t.Errorf("%+v", m)
	}
	if len(h.seen) != 0 {
		t.Error("the agent saw it")
	}

	// The other way round: the peer's HELLO does not name the id.
	sends := mapping(t, agntcy.Config{ID: 0x10})
	b := carriage.New(carriage.Config{Protocols: []carriage.Protocol{sends.Protocol(nil)}})
	q := newTap(t, b, 0x11, 2)
	c, err := sends.Request("POST /runs", []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Start(q.Server.Association, c, nil); !errors.As(err, new(*bridge.Error)) {
		t.Errorf("%v", err)
	}
	q.want()
}

// MAP-AGNTCY 4, 5, 12(2): the content type is declared: SLIM's, ACP's, or another
// one by its name where numbers for that are configured.
func TestMapAGNTCY4_ContentTypeIsDeclared(t *testing.T) {
	tags := &bridge.Tags{OpaqueContentType: 0x0040, OpaqueContent: 0x7F}
	l := newLink(t, agntcy.Config{}, carriage.Config{Tags: tags})
	for method, want := range map[string]bridge.ContentType{
		"POST /runs": bridge.ContentJSON, "GET /runs/1/stream": bridge.ContentJSON, "PUT /other": bridge.ContentJSON,
		"a.B/C": bridge.ContentProto, "subscribe": bridge.ContentProto,
	} {
		if r := l.send(l.request(method, "x")); r.Err != nil {
			t.Errorf("%s: %v", method, r.Err)
		}
		if s, _ := l.agent.last(); s.content != want || s.method != method {
			t.Errorf("%s: content type %d", method, s.content)
		}
	}
	c := l.request("POST /runs", "<run/>")
	c.Content, c.MediaType = tags.OpaqueContent, []byte("application/xml; charset=utf-8")
	if r := l.send(c); r.Err != nil {
		t.Error(r.Err)
	}
	if s, _ := l.agent.last(); s.media != "application/xml; charset=utf-8" || s.content != 0x7F {
		t.Errorf("%+v", s)
	}
	// Without such numbers there is no way to declare it, and it is not sent.
	l = newLink(t, agntcy.Config{}, carriage.Config{})
	c = l.request("POST /runs", "<run/>")
	c.Content, c.MediaType = tags.OpaqueContent, []byte("application/xml")
	if r := l.send(c); r.Err == nil {
		t.Error("an undeclared media type was sent")
	}
	for surface, want := range map[agntcy.Surface]bridge.ContentType{agntcy.ACP: bridge.ContentJSON, agntcy.SLIM: bridge.ContentProto, 0: bridge.ContentJSON} {
		if p := mapping(t, agntcy.Config{Surface: surface}).Protocol(nil); p.Content != want {
			t.Errorf("%v: %d", surface, p.Content)
		}
	}
}

// MAP-AGNTCY 5, 12(2): octet for octet, in both directions, whatever the octets
// are.
func TestMapAGNTCY5_PayloadsCrossOctetForOctet(t *testing.T) {
	l := newLink(t, agntcy.Config{}, carriage.Config{})
	l.agent.answer = func(r *carriage.Request) { _ = r.Respond(r.Foreign()) }
	noise := make([]byte, 100_000)
	for i := range noise {
		noise[i] = byte(rand.N(256))
	}
	for name, payload := range map[string][]byte{
		"empty": nil, "zero": {0}, "every octet": all256(), "noise": noise, "not JSON": []byte("{\"a\":"),
		"white space":       []byte(" \r\n\t{ \"z\" : 1.10, \"a\":1 }\n"),
		"a byte order mark": []byte("\xEF\xBB\xBF{}"),
		"like a TLV":        {0x00, 0x05, 0x00, 0x00, 1, 2},
		"like a label":      {0x00, 0x13, 0x00, 0x02, 0x00, 0x00},
		"like JSON-RPC":     []byte(`{"jsonrpc":"1.0","id":{},"method":7}`),
		"protobuf":          {0x0A, 0x03, 'a', 'b', 'c', 0x10, 0x96, 0x01},
	} {
		for _, method := range []string{"POST /runs", "pkg.Service/Method"} {
			r := l.send(l.request(method, string(payload)))
			if s, _ := l.agent.last(); r.Err != nil || !bytes.Equal(r.Foreign, payload) || s.foreign != string(payload) {
				t.Errorf("%s under %s: %v, %d octets back", name, method, r.Err, len(r.Foreign))
			}
		}
	}
}

func all256() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// MAP-AGNTCY 5, 6.1, 6.2: the class is OPAQUE for either surface; there is no
// native mapping yet.
func TestMapAGNTCY5_ClassIsOpaque(t *testing.T) {
	for _, s := range []agntcy.Surface{0, agntcy.ACP, agntcy.SLIM, agntcy.Both} {
		if p := mapping(t, agntcy.Config{Surface: s}).Protocol(nil); p.Class != carriage.ClassOpaque || p.Document != nil {
			t.Errorf("%v: %+v", s, p)
		}
	}
}

// MAP-AGNTCY 5: a failure of the foreign protocol stays its own error, one below it
// is a transport error.
func TestMapAGNTCY5_ErrorsAreWhoseTheyAre(t *testing.T) {
	l := newLink(t, agntcy.Config{}, carriage.Config{})
	const problem = `{"code":404,"message":"no such run"}`
	l.agent.answer = func(r *carriage.Request) { _ = r.Fail([]byte(problem)) }
	if r := l.send(l.request("GET /runs/1", "")); r.Err != nil || r.Kind != bridge.KindError || string(r.Foreign) != problem {
		t.Errorf("%v %q", r.Err, r.Foreign)
	}
	l.agent.answer = func(*carriage.Request) {}
	refusedWith(t, "no answer", l.send(l.request("GET /runs/1", "")), bridge.CodeNotDelivered)
}

// MAP-AGNTCY 5, 12(3): replies are matched by their correlation ids, whatever their
// order.
func TestMapAGNTCY5_RepliesAreMatchedByCorrelation(t *testing.T) {
	l := newLink(t, agntcy.Config{}, carriage.Config{})
	var held []*carriage.Request
	l.agent.answer = func(r *carriage.Request) {
		r.Retain()
		held = append(held, r)
	}
	got := map[int]string{}
	corrs := map[string]bool{}
	for i := range 5 {
		c := l.request("POST /runs", fmt.Sprintf("run %d", i))
		if _, err := l.caller.Start(l.Client.Association, c, carriage.CompletionFunc(func(r *carriage.Reply) { got[i] = string(r.Foreign) })); err != nil {
			t.Fatal(err)
		}
	}
	l.Settle()
	for _, i := range []int{3, 0, 4, 2, 1} {
		r := held[i]
		corrs[string(r.Corr())] = true
		if err := r.Respond(append([]byte("result of "), r.Foreign()...)); err != nil {
			t.Fatal(err)
		}
		r.Release()
	}
	l.Settle()
	for i := range 5 {
		if got[i] != fmt.Sprintf("result of run %d", i) {
			t.Errorf("%d: %q", i, got[i])
		}
	}
	if len(corrs) != 5 || corrs[""] {
		t.Errorf("%d correlation ids", len(corrs))
	}
}

// MAP-AGNTCY 5: what expects a reply is no notification.
func TestMapAGNTCY5_OneWayIsForMessagesAlone(t *testing.T) {
	m := mapping(t, agntcy.Config{})
	for _, method := range []string{"POST /runs", "GET /runs/1", "DELETE /threads/1", "PUT /unknown", "pkg.Service/Method"} {
		if _, err := m.OneWay(method, nil); !errors.Is(err, agntcy.ErrOneWay) {
			t.Errorf("%s: %v", method, err)
		}
	}
	for _, method := range []string{"publish", "leave", "something new"} {
		if c, err := m.OneWay(method, nil); err != nil || c.Label == nil {
			t.Errorf("%s: %v", method, err)
		}
	}
}

// MAP-AGNTCY 6.3, 12(6): directory and OASF records are no business of this
// carriage.
func TestMapAGNTCY6_3_DirectoryAndOASFRecordsAreRefused(t *testing.T) {
	l := newLink(t, agntcy.Config{}, carriage.Config{})
	for _, method := range []string{"agntcy.dir.store.v1.StoreService/Push", "agntcy.dir.routing.v1.RoutingService/Search", "agntcy.oasf.v1.Records/Get"} {
		if _, err := l.mapping.Request(method, nil); !errors.Is(err, agntcy.ErrDocument) {
			t.Errorf("%s: %v", method, err)
		}
		refusedWith(t, method, l.send(&carriage.Call{Protocol: 0x10, Method: method}), bridge.CodeMethodUnsupported)
	}
	if r := l.send(l.request("agntcy.directory.Service/Push", "")); r.Err != nil {
		t.Errorf("a service of another package: %v", r.Err)
	}
}

// A peer that carries one surface refuses the other's operations.
func TestOneSurfaceAlone(t *testing.T) {
	for surface, c := range map[agntcy.Surface][2][]string{
		agntcy.ACP:  {{"POST /runs", "PUT /new/operation"}, {"pkg.Service/Method", "publish", "POST /runs/", "anything"}},
		agntcy.SLIM: {{"pkg.Service/Method", "subscribe", "anything"}, {"POST /runs", "GET /runs/1"}},
	} {
		both := mapping(t, agntcy.Config{})
		l := newLink(t, agntcy.Config{Surface: surface}, carriage.Config{})
		for _, method := range c[0] {
			if r := l.send(l.request(method, "")); r.Err != nil {
				t.Errorf("%v, %s: %v", surface, method, r.Err)
			}
		}
		for _, method := range c[1] {
			if _, err := l.mapping.Request(method, nil); !errors.Is(err, agntcy.ErrSurface) {
				t.Errorf("%v, %s: %v", surface, method, err)
			}
			call, err := both.Request(method, nil)
			if err != nil {
				t.Fatal(err)
			}
			refusedWith(t, method, l.send(call), bridge.CodeMethodUnsupported)
			if op, known := l.mapping.Lookup([]byte(method)); known {
				t.Errorf("%v knows %s: %+v", surface, method, op)
			}
		}
		// An operation without a name is carried, and taken for the worst.
		if r := l.send(&carriage.Call{Protocol: 0x10, NoLabel: true}); r.Err != nil {
			t.Errorf("%v: %v", surface, r.Err)
		}
		if s, _ := l.agent.last(); s.effect != bridge.Destructive {
			t.Errorf("%v: %v", surface, s.effect)
		}
	}
}

// MAP-AGNTCY 7, 12(4): a sender labels every operation by what it does, those that
// it does not know as destructive.
func TestMapAGNTCY7_SenderLabelsEveryOperation(t *testing.T) {
	l := newLink(t, agntcy.Config{}, carriage.Config{})
	for method, want := range map[string]bridge.Effect{
		"GET /runs/1": bridge.ReadOnly, "POST /threads/search": bridge.ReadOnly, "GET /threads/1/runs/2/stream": bridge.ReadOnly,
		"POST /runs": bridge.NonIdempotentWrite, "POST /threads/1/runs/wait": bridge.NonIdempotentWrite, "POST /runs/1": bridge.NonIdempotentWrite,
		"POST /threads": bridge.NonIdempotentWrite, "POST /threads/1/copy": bridge.NonIdempotentWrite, "PATCH /threads/1": bridge.IdempotentWrite,
		"POST /runs/1/cancel": bridge.NonIdempotentWrite, "DELETE /runs/1": bridge.Destructive, "DELETE /threads/1?force=1": bridge.Destructive,
		"pkg.Service/Method": bridge.NonIdempotentWrite, "publish": bridge.NonIdempotentWrite, "subscribe": bridge.IdempotentWrite, "join": bridge.IdempotentWrite,
		"PUT /runs/1": bridge.Destructive, "anything else": bridge.Destructive,
	} {
		r := l.send(l.request(method, ""))
		if s, _ := l.agent.last(); r.Err != nil || !s.labelled || s.label.Effect != want || s.effect != want {
			t.Errorf("%s: %v, %+v, want %v", method, r.Err, s, want)
		}
	}
	c, err := l.mapping.OneWay("publish", []byte("news"))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.caller.TryNotify(l.Client.Association, c); err != nil {
		t.Fatal(err)
	}
	l.Settle()
	if s, _ := l.agent.last(); !s.notification || !s.labelled || s.label.Effect != bridge.NonIdempotentWrite || s.foreign != "news" {
		t.Errorf("%+v", s)
	}
}

// MAP-AGNTCY 7, 12(4): without a label everything is destructive but what ACP
// reads.
func TestMapAGNTCY7_MissingLabelIsDestructive(t *testing.T) {
	l := newLink(t, agntcy.Config{ReadOnly: func([]byte) bool { return true }}, carriage.Config{})
	for method, want := range map[string]bridge.Effect{
		"POST /runs": bridge.Destructive, "PATCH /threads/1": bridge.Destructive, "POST /runs/1/cancel": bridge.Destructive,
		"DELETE /runs/1": bridge.Destructive, "PUT /runs/1": bridge.Destructive, "subscribe": bridge.Destructive, "publish": bridge.Destructive,
		"pkg.Service/Method": bridge.Destructive, // whoever knows that it reads labels it
		"":                   bridge.Destructive,
		"GET /runs/1":        bridge.ReadOnly, "POST /agents/search": bridge.ReadOnly,
	} {
		r := l.send(&carriage.Call{Protocol: 0x10, Method: method, NoLabel: true})
		if s, _ := l.agent.last(); r.Err != nil || s.labelled || s.effect != want {
			t.Errorf("%q: %v, %+v, want %v", method, r.Err, s, want)
		}
	}
}

// D15: a label never makes less of what is known; where the mapping leaves it to
// the sender, the label tells.
func TestLabelsAgainstWhatIsKnown(t *testing.T) {
	reads := func(method []byte) bool { return string(method) == "pkg.Service/Read" }
	l := newLink(t, agntcy.Config{ReadOnly: reads}, carriage.Config{})
	for _, c := range []struct {
		method      string
		label, want bridge.Effect
	}{
		{"DELETE /runs/1", bridge.ReadOnly, bridge.Destructive},
		{"POST /runs", bridge.ReadOnly, bridge.NonIdempotentWrite},
		{"GET /runs/1", bridge.Destructive, bridge.Destructive},
		{"pkg.Service/Write", bridge.ReadOnly, bridge.NonIdempotentWrite},
		{"pkg.Service/Read", bridge.ReadOnly, bridge.ReadOnly},
		{"PUT /unknown", bridge.IdempotentWrite, bridge.IdempotentWrite},
	} {
		l.send(&carriage.Call{Protocol: 0x10, Method: c.method, Label: &bridge.Label{Effect: c.label}})
		if s, _ := l.agent.last(); s.effect != c.want || s.label.Effect != c.label {
			t.Errorf("%+v: %+v", c, s)
		}
	}
}

// MAP-AGNTCY 7: an intermediary passes the label on as it is, and none where there
// is none.
func TestMapAGNTCY7_IntermediaryCarriesTheLabelUnchanged(t *testing.T) {
	far := newLink(t, agntcy.Config{}, carriage.Config{})
	near := newLink(t, agntcy.Config{}, carriage.Config{})
	near.agent.answer = func(r *carriage.Request) {
		c := carriage.Call{Protocol: r.Protocol(), Content: r.Content(), Method: string(r.Method()), Foreign: r.Foreign(), Hop: true}
		if label, ok := r.Label(); ok {
			c.Label = &label
		} else {
			c.NoLabel = true
		}
		reply := far.send(&c)
		_ = r.Respond(reply.Foreign)
	}
	for _, label := range []*bridge.Label{nil, {Effect: bridge.IdempotentWrite, Scope: []byte("thread \xc3\xa9")}, {Effect: bridge.ReadOnly}} {
		c := near.request("POST /runs", "payload")
		c.Label, c.NoLabel = label, label == nil
		if r := near.send(c); r.Err != nil || string(r.Foreign) != "done" {
			t.Errorf("%v %q", r.Err, r.Foreign)
		}
		s, _ := far.agent.last()
		if s.labelled != (label != nil) || label != nil && (s.label.Effect != label.Effect || !bytes.Equal(s.label.Scope, label.Scope)) || s.method != "POST /runs" || s.foreign != "payload" {
			t.Errorf("%+v became %+v", label, s)
		}
	}
}

// MAP-AGNTCY 7: a favourable label is no permission.
func TestMapAGNTCY7_LabelIsNoPermission(t *testing.T) {
	l := newLink(t, agntcy.Config{}, carriage.Config{Authorize: func(m *carriage.Inbound) error {
		if string(m.Method()) == "GET /runs/secret" {
			return errors.New("not yours")
		}
		return nil
	}})
	refusedWith(t, "labelled read_only", l.send(l.request("GET /runs/secret", "")), bridge.CodeSafetyPolicy)
	if _, n := l.agent.last(); n != 0 {
		t.Error("the agent saw it")
	}
}

// silent is a channel on which nothing may come.
type silent struct {
	t  *testing.T
	ch wire.Channel
}

func (s silent) Channel() wire.Channel                       { return s.ch }
func (s silent) Attach(*assoc.Association) assoc.ChannelConn { return s }
func (s silent) HandleFrame(t wire.FrameType, payload []byte) {
	s.t.Errorf("type %#x on %v: %x", uint16(t), s.ch, payload)
}
func (silent) HandleHello(*control.Hello) {}
func (silent) HandleRoom()                {}
func (silent) HandleDrain()               {}
func (silent) Busy() int                  { return 0 }
func (silent) HandleClose(error)          {}

// MAP-AGNTCY 8, 12(7): an exchange stays on the Bridge channel, which needs no more
// than the Standard profile.
func TestMapAGNTCY8_AnExchangeStaysOnOneChannel(t *testing.T) {
	m, a := mapping(t, agntcy.Config{}), &agent{}
	a.answer = func(r *carriage.Request) {
		s, err := r.Stream(carriage.StreamOptions{})
		if err != nil {
			t.Fatal(err)
		}
		r.Retain()
		for i := range 20 {
			if err := s.TrySend(fmt.Appendf(nil, "event %d", i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.End([]byte("end")); err != nil {
			t.Fatal(err)
		}
	}
	caller := carriage.New(carriage.Config{Protocols: []carriage.Protocol{m.Protocol(nil)}})
	served := carriage.New(carriage.Config{Protocols: []carriage.Protocol{m.Protocol(a)}})
	others := []assoc.ChannelHandler{silent{t, wire.ChannelDiscovery}, silent{t, wire.ChannelStream}, silent{t, wire.ChannelMemory}}
	p := nptest.NewPair(t, nptest.Options{Profile: profiles.Standard, Client: options(caller, others...), Server: options(served, others...)})
	p.Settle()
	c, err := m.Request("POST /runs/stream", []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	h := &events{}
	if _, err := caller.StartStream(p.Client.Association, c, nil, h); err != nil {
		t.Fatal(err)
	}
	p.Settle()
	if h.n != 20 || h.end != "end" || h.err != nil {
		t.Errorf("%+v", h)
	}
}

type events struct {
	n   int
	all string
	end string
	err error
}

func (h *events) HandleEvent(e *carriage.Event) {
	h.n++
	h.all += string(e.Foreign)
}

func (h *events) HandleReply(r *carriage.Reply) { h.end, h.err = string(r.Foreign), r.Err }

// MAP-AGNTCY 8: nothing is sent on a channel that the peer did not advertise.
func TestMapAGNTCY8_OnlyOnAdvertisedChannels(t *testing.T) {
	m := mapping(t, agntcy.Config{})
	caller := carriage.New(carriage.Config{Protocols: []carriage.Protocol{m.Protocol(nil)}})
	none := assoc.Options{Handlers: []assoc.ChannelHandler{silent{t, wire.ChannelDiscovery}}}
	none.Conn.Protocols = []uint8{0x10}
	p := nptest.NewPair(t, nptest.Options{Client: options(caller, silent{t, wire.ChannelDiscovery}), Server: none})
	p.Settle()
	c, err := m.Request("GET /runs/1", nil)
	if err != nil {
		t.Fatal(err)
	}
	var got error
	_, err = caller.Start(p.Client.Association, c, carriage.CompletionFunc(func(r *carriage.Reply) { got = r.Err }))
	p.Settle()
	if !errors.Is(err, assoc.ErrChannel) && !errors.Is(got, assoc.ErrChannel) {
		t.Errorf("%v, %v", err, got)
	}
}

// MAP-AGNTCY 9(3), 12(5): there is no JSON-RPC namespace: no method has such a
// name, and none is read from a payload.
func TestMapAGNTCY9_NoJSONRPCMethodNamespace(t *testing.T) {
	m := mapping(t, agntcy.Config{})
	for _, method := range []string{"runs/create", "acp/run", "slim/publish", "agntcy/invoke", "runs.create"} {
		if op, known := m.Lookup([]byte(method)); known && op.Surface != agntcy.SLIM { // it is an SRPC method by its form
			t.Errorf("%s: %+v", method, op)
		}
	}
	for _, hosted := range []string{a2a.MethodSend, mcp.MethodCallTool} {
		if _, known := m.Lookup([]byte(hosted)); known {
			t.Errorf("%s is known", hosted)
		}
	}
	l := newLink(t, agntcy.Config{}, carriage.Config{})
	if r := l.send(l.request("POST /runs", `{"jsonrpc":"2.0","id":1,"method":"message/send"}`)); r.Err != nil {
		t.Error(r.Err)
	}
	if s, _ := l.agent.last(); s.method != "POST /runs" {
		t.Errorf("%+v", s)
	}
}

// MAP-AGNTCY 10: no element of a transport is made up for what a payload lacks: a
// frame has the envelope, the label and the payload, and nothing else.
func TestMapAGNTCY10_NothingOfATransportIsMadeUp(t *testing.T) {
	m := mapping(t, agntcy.Config{})
	c, err := m.Request("POST /runs", []byte(`{"token":"t"}`))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Metadata)+len(c.MediaType) != 0 || string(c.Foreign) != `{"token":"t"}` {
		t.Errorf("%+v", c)
	}
}

func TestMethodsThatNoEnvelopeHas(t *testing.T) {
	m := mapping(t, agntcy.Config{})
	for _, method := range []string{"", "POST /runs/" + string(bytes.Repeat([]byte("x"), 245)), "pub\xff"} {
		if _, err := m.Request(method, nil); !errors.Is(err, agntcy.ErrMethod) {
			t.Errorf("%q: %v", method, err)
		}
	}
	if _, err := m.Request("POST /runs/"+string(bytes.Repeat([]byte("x"), 244)), nil); err != nil {
		t.Error(err)
	}
	for _, s := range []agntcy.Surface{0, agntcy.ACP, agntcy.SLIM, agntcy.Both} {
		if s.String() == "" {
			t.Errorf("%d has no name", s)
		}
	}
}
