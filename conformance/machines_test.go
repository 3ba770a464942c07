package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/carriage/discovery"
	"github.com/trestle-npamp/trestle/carriage/document"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/mapping/a2a"
	"github.com/trestle-npamp/trestle/mapping/agntcy"
	"github.com/trestle-npamp/trestle/mapping/mcp"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
	"github.com/trestle-npamp/trestle/wire/control"
	"github.com/trestle-npamp/trestle/wire/disco"
)

// machines plays a script on the pure machines: a Bridge and a Discovery on one side
// of a simulated link, and channels without rules on the other.
type machines struct {
	t      testing.TB
	s      *Script
	bridge *carriage.Bridge // of the channel that the script is about
	disco  *discovery.Discovery
	// channels are the side's handlers.
	channels []assoc.ChannelHandler
	pair     *nptest.Pair
	link     *rawLink

	// Responder.
	seen     []Seen
	told     int
	requests []*carriage.Request
	streams  map[*carriage.Request]*carriage.Producer
	// Originator.
	calls    []*machineCall
	receiver *document.Receiver
	// Advertiser.
	records []disco.Record
}

// rawLink is what the peer got over one association.
type rawLink struct{ frames []Received }

// rawChannel is one channel of the peer.
type rawChannel struct {
	m  *machines
	ch wire.Channel
}

func (c rawChannel) Channel() wire.Channel                       { return c.ch }
func (c rawChannel) Attach(*assoc.Association) assoc.ChannelConn { return c }
func (c rawChannel) HandleFrame(t wire.FrameType, payload []byte) {
	c.m.link.frames = append(c.m.link.frames, Received{c.ch, t, bytes.Clone(payload)})
}
func (c rawChannel) HandleHello(*control.Hello) {}
func (c rawChannel) HandleRoom()                {}
func (c rawChannel) HandleDrain()               {}
func (c rawChannel) Busy() int                  { return 0 }
func (c rawChannel) HandleClose(error)          {}

func newMachines(t testing.TB, s *Script) *machines {
	t.Helper()
	m := &machines{t: t, s: s, streams: map[*carriage.Request]*carriage.Producer{}, receiver: document.NewReceiver(document.Config{})}
	cfg := carriage.Config{Tags: &s.Tags, Authorize: m.authorize}
	cfg.Retain.Octets = s.Holds
	for _, c := range s.Carries {
		p, err := c.protocol(m)
		if err != nil {
			t.Fatalf("%s: %v", s.Name, err)
		}
		cfg.Protocols = append(cfg.Protocols, p)
	}
	if err := cfg.Validate(); err != nil {
		t.Fatalf("%s: %v", s.Name, err)
	}
	m.bridge = carriage.New(cfg)
	m.channels = []assoc.ChannelHandler{m.bridge}
	var documents func(*assoc.Association) assoc.ChannelConn
	if s.Documents == wire.ChannelDiscovery {
		// What the script asks for and answers is there; its Bridge stays beside it.
		cfg.Channel = s.Documents
		m.bridge = carriage.New(cfg)
		documents = m.bridge.Attach
	}
	m.disco = discovery.New(discovery.Config{
		Documents: documents,
		Advertise: func(*assoc.Association, *disco.Filter) []disco.Record {
			return append(discovery.Protocols(cfg.Protocols...), m.records...)
		},
		MaxSubscribers: 1,
		MaxResult:      s.Page,
	})
	m.channels = append(m.channels, m.disco)
	m.connect()
	return m
}

// protocol is what a script says that the side carries.
func (c *Carries) protocol(h carriage.Handler) (p carriage.Protocol, err error) {
	switch c.Mapping {
	case "A2A":
		p = a2a.Protocol(h)
	case "MCP":
		p = mcp.Protocol(h)
	case "AGNTCY":
		m, err := agntcy.New(agntcy.Config{ID: c.ID})
		if err != nil {
			return p, err
		}
		p = m.Protocol(h)
	default:
		p = carriage.Protocol{ID: c.ID, Class: carriage.ClassOpaque, Content: c.Content, Handler: h}
		if c.Class == "jsonrpc" {
			p.Class = carriage.ClassJSONRPC
		}
	}
	if len(c.Without) > 0 {
		p.Supports = func(method []byte) bool { return !slices.Contains(c.Without, string(method)) }
	}
	return p, nil
}

// connect joins both sides anew. The server's side is under test.
func (m *machines) connect() {
	m.link = new(rawLink)
	ours := assoc.Options{Handlers: m.channels}
	ours.Conn.Protocols, ours.Conn.PingInterval = m.bridge.Protocols(), -1
	peers := assoc.Options{Handlers: []assoc.ChannelHandler{
		rawChannel{m, wire.ChannelBridge}, rawChannel{m, wire.ChannelDiscovery}, rawChannel{m, wire.ChannelStream},
	}}
	peers.Conn.Protocols, peers.Conn.PingInterval = m.s.Speaks, -1
	m.pair = nptest.NewPair(m.t, nptest.Options{Client: peers, Server: ours})
	m.pair.Settle()
}

func (m *machines) Send(_ string, ch wire.Channel, t wire.FrameType, payload []byte) error {
	b := assoc.NewBuf(len(payload))
	b.B = append(b.B, payload...)
	err := m.pair.Client.SendBuf(ch, t, b)
	m.pair.Settle()
	return err
}

func (m *machines) Receive(string) (f Received, ok bool, err error) {
	if len(m.link.frames) == 0 {
		return f, false, nil
	}
	f = m.link.frames[0]
	m.link.frames = m.link.frames[1:]
	return f, true, nil
}

func (m *machines) Quiet(peer string) (Received, bool, error) { return m.Receive(peer) }

func (m *machines) authorize(in *carriage.Inbound) error {
	if reason, ok := m.s.Denies[string(in.Method())]; ok {
		return errors.New(reason)
	}
	return nil
}

func (m *machines) see(kind string, in *carriage.Inbound) {
	s := Seen{
		Kind: kind, Method: bytes.Clone(in.Method()), Foreign: bytes.Clone(in.Foreign()),
		Effect: in.Effect().String(), Content: int(in.Content()), Media: bytes.Clone(in.MediaType()), Labelled: true,
	}
	if l, ok := in.Label(); ok {
		s.Label = append([]byte{byte(l.Effect), byte(len(l.Scope))}, l.Scope...)
	}
	m.seen = append(m.seen, s)
}

func (m *machines) ServeRequest(r *carriage.Request) {
	m.see("request", &r.Inbound)
	m.seen[len(m.seen)-1].Corr = bytes.Clone(r.Corr())
	r.Retain()
	m.requests = append(m.requests, r)
}

func (m *machines) ServeNotify(n *carriage.Notify) { m.see("notification", &n.Inbound) }

// request is the one that a step is about: by its correlation id, else the last.
func (m *machines) request(st *Step) (*carriage.Request, error) {
	for _, r := range slices.Backward(m.requests) {
		if st.Corr == nil || bytes.Equal(r.Corr(), st.Corr) {
			return r, nil
		}
	}
	return nil, errors.New("there is no such request")
}

// machineCall is what the application asked for.
type machineCall struct {
	id       []byte
	consumer *carriage.Consumer
	outcomes []Outcome
}

func (c *machineCall) HandleEvent(e *carriage.Event) {
	c.outcomes = append(c.outcomes, Outcome{Kind: "event", Event: uint64(e.ID), Told: true, Foreign: bytes.Clone(e.Foreign)})
}

func (c *machineCall) HandleReply(r *carriage.Reply) {
	o := Outcome{Foreign: bytes.Clone(r.Foreign)}
	var transport *bridge.Error
	switch {
	case errors.As(r.Err, &transport):
		o.Kind, o.Code, o.Text = "refusal", uint64(transport.Code), transport.Text
	case r.Err != nil:
		o.Kind, o.Text = "failure", r.Err.Error()
	case r.Kind == bridge.KindEnd:
		o.Kind = "end"
	case r.Kind == bridge.KindError:
		o.Kind = "error"
	default:
		o.Kind = "response"
	}
	c.outcomes = append(c.outcomes, o)
}

func (m *machines) call(st *Step) (*machineCall, error) {
	for _, c := range slices.Backward(m.calls) {
		if st.Corr == nil || bytes.Equal(c.id, st.Corr) {
			return c, nil
		}
	}
	return nil, errors.New("nothing was asked for under this id")
}

func (m *machines) carriageCall(st *Step) (*carriage.Call, error) {
	if m.s.Carries[0].Mapping == "AGNTCY" {
		return m.agntcyCall(st)
	}
	c := &carriage.Call{
		Protocol: m.s.Carries[0].ID, Content: st.Content, Method: string(st.Method), NoLabel: st.NoLabel,
		Foreign: st.Foreign, MediaType: st.Media,
	}
	if m.s.Carries[0].Class == "opaque" {
		c.Natural = st.Corr
	}
	if st.Label != nil {
		c.Label = &bridge.Label{Effect: bridge.Effect(st.Label[0]), Scope: st.Label[2:]}
	}
	return c, nil
}

// agntcyCall lets the mapping's helper make the call: it labels it and declares its
// content.
func (m *machines) agntcyCall(st *Step) (*carriage.Call, error) {
	to, err := agntcy.New(agntcy.Config{ID: m.s.Carries[0].ID})
	if err != nil {
		return nil, err
	}
	helper := to.Request
	if st.Verb == "notifies" {
		helper = to.OneWay
	}
	c, err := helper(string(st.Method), st.Foreign)
	if err != nil {
		return nil, err
	}
	c.Natural, c.NoLabel = st.Corr, st.NoLabel
	if st.Content != 0 {
		c.Content, c.MediaType = st.Content, st.Media
	}
	return c, nil
}

func (m *machines) Do(st *Step) error {
	err := m.do(st)
	m.pair.Settle()
	return err
}

func (m *machines) do(st *Step) error {
	switch st.Who + " " + st.Verb {
	case "time passes":
		m.pair.Run(time.Duration(st.N))
		return nil
	case "link breaks":
		m.pair.Cut(nil)
		return nil
	case "link returns":
		m.connect()
		return nil
	case "side counts":
		v := reflect.ValueOf(m.bridge.Stats()).FieldByName(st.Object)
		if !v.IsValid() {
			v = reflect.ValueOf(m.disco.Stats()).FieldByName(st.Object)
		}
		if !v.IsValid() {
			return fmt.Errorf("there is no counter %s", st.Object)
		}
		if v.Uint() != st.N {
			return fmt.Errorf("it counts %d", v.Uint())
		}
		return nil
	case "app sees":
		return m.sees(st)
	case "app responds", "app fails", "app refuses", "app streams", "app event", "app ends", "app presents":
		err := m.answer(st)
		if st.Object != "refused" {
			return err
		}
		if err == nil || err.Error() != string(st.Text) {
			return fmt.Errorf("it is refused with %v", err)
		}
		return nil
	case "app calls", "app opens", "app resumes", "app notifies", "app fetches":
		return m.ask(st)
	case "app cancels":
		c, err := m.call(st)
		if err == nil {
			c.consumer.Cancel(nil)
		}
		return err
	case "app gets":
		c, err := m.call(st)
		switch {
		case err != nil:
			return err
		case st.Object == "nothing":
			if len(c.outcomes) > 0 {
				return fmt.Errorf("it got %+v", c.outcomes[0])
			}
			return nil
		case len(c.outcomes) == 0:
			return errors.New("it got nothing")
		}
		o := c.outcomes[0]
		c.outcomes = c.outcomes[1:]
		return st.Compare(&o)
	case "app advertises":
		id := append([]byte("agent "), st.Text...)
		m.withdraw(id)
		m.records = append(m.records, disco.Record{
			ID: id, Kind: disco.KindAgent, Revision: st.N,
			Agent: disco.AgentBody{AgentID: st.Text, Protocols: disco.ListOf(bridge.ProtocolA2A)},
		})
		m.disco.Changed()
		return nil
	case "app withdraws":
		m.withdraw(append([]byte("agent "), st.Text...))
		m.disco.Changed()
		return nil
	}
	return fmt.Errorf("%s %s: not on the machines", st.Who, st.Verb)
}

func (m *machines) withdraw(id []byte) {
	m.records = slices.DeleteFunc(m.records, func(r disco.Record) bool { return bytes.Equal(r.ID, id) })
}

func (m *machines) sees(st *Step) error {
	switch {
	case st.Object == "nothing":
		if m.told < len(m.seen) {
			return fmt.Errorf("a %s came: %q", m.seen[m.told].Kind, m.seen[m.told].Foreign)
		}
		return nil
	case st.Object == "cancel":
		r, err := m.request(st)
		if err != nil {
			return err
		}
		if p := m.streams[r]; p == nil || p.Err() == nil {
			return errors.New("the stream goes on")
		}
		return nil
	case m.told == len(m.seen):
		return errors.New("nothing came")
	}
	m.told++
	return st.Check(&m.seen[m.told-1])
}

func (m *machines) answer(st *Step) error {
	r, err := m.request(st)
	if err != nil {
		return err
	}
	p := m.streams[r]
	if st.Verb == "presents" {
		return present(r, st)
	}
	if st.Content != 0 || st.Media != nil || st.Method != nil {
		d := carriage.Declaration{Content: st.Content, MediaType: string(st.Media), Method: string(st.Method)}
		if err := r.Declare(d); err != nil {
			return err
		}
	}
	switch st.Verb {
	case "streams":
		if p, err = r.Stream(carriage.StreamOptions{Resumable: st.Flag == "resumable"}); err == nil {
			m.streams[r] = p
		}
		return err
	case "event":
		if p == nil {
			return errors.New("there is no stream")
		}
		return p.TrySend(st.Foreign)
	case "ends":
		switch {
		case p == nil:
			return errors.New("there is no stream")
		case len(st.Foreign) == 0:
			return p.EndEmpty()
		}
		return p.End(st.Foreign)
	case "responds":
		if p != nil {
			return p.Respond(st.Foreign)
		}
		return r.Respond(st.Foreign)
	case "fails":
		if p != nil {
			return p.Fail(st.Foreign)
		}
		return r.Fail(st.Foreign)
	}
	if p != nil {
		return p.Refuse(bridge.Code(st.N), string(st.Text))
	}
	return r.Refuse(bridge.Code(st.N), string(st.Text))
}

// present answers with a document set.
func present(r *carriage.Request, st *Step) error {
	var proofs []document.Proof
	for _, p := range st.Proofs {
		proofs = append(proofs, document.Proof{Alg: p.Scheme, Octets: p.Octets})
	}
	set, err := document.New(string(st.Document), string(st.DocumentType), 0, st.Foreign, proofs...)
	if err != nil {
		return err
	}
	return document.Respond(r, set, carriage.SetOptions{Content: st.Content})
}

// handleSet is told how a call for a document set ended.
func (c *machineCall) handleSet(s *document.Set, r *carriage.Reply) {
	if s == nil {
		c.HandleReply(r)
		return
	}
	o := Outcome{Kind: "set", Foreign: s.Document, Document: []byte(s.ID), DocumentType: []byte(s.MediaType)}
	for _, p := range s.Proofs {
		o.Proofs = append(o.Proofs, Proof{p.Alg, p.Octets})
	}
	c.outcomes = append(c.outcomes, o)
}

func (m *machines) ask(st *Step) (err error) {
	a := m.pair.Server.Association
	call := &machineCall{id: st.Corr}
	c, err := m.carriageCall(st)
	switch {
	case err != nil:
	case st.Verb == "calls":
		_, err = m.bridge.Start(a, c, call)
	case st.Verb == "opens":
		call.consumer, err = m.bridge.StartStream(a, c, nil, call)
	case st.Verb == "resumes":
		call.consumer, err = m.bridge.StartStream(a, c, &carriage.StreamCall{
			Resume: &carriage.Cursor{Corr: st.Corr, ID: carriage.EventID(st.N)},
		}, call)
	case st.Verb == "fetches":
		call.consumer, err = m.receiver.Start(m.bridge, a, c, call.handleSet)
	case st.Verb == "notifies":
		err = m.bridge.TryNotify(a, c)
	}
	if err == nil && st.Verb != "notifies" && st.Object != "refused" {
		m.calls = append(m.calls, call)
	}
	if st.Object == "refused" {
		m.pair.Settle()
		if err == nil && len(call.outcomes) == 1 && call.outcomes[0].Kind == "failure" {
			err = errors.New(call.outcomes[0].Text)
			call.outcomes = nil
		}
		if err == nil || err.Error() != string(st.Text) {
			return fmt.Errorf("it is refused with %v", err)
		}
		return nil
	}
	return err
}

// Finish says what the application saw or got beyond the script.
func (m *machines) Finish() error {
	if m.told < len(m.seen) {
		return fmt.Errorf("the application saw a %s: %q", m.seen[m.told].Kind, m.seen[m.told].Foreign)
	}
	for _, c := range m.calls {
		if len(c.outcomes) > 0 {
			return fmt.Errorf("the application got %+v", c.outcomes[0])
		}
	}
	return nil
}
