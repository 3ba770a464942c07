package mcp_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/mapping/mcp"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// side is one end of an MCP session: what it was asked, and what it answers.
type side struct {
	bridge *carriage.Bridge
	answer func(r *carriage.Request)

	saw, method string
	effect      bridge.Effect
	label       bridge.Label
	labelled    bool
	notified    []string
}

func (s *side) take(m *carriage.Inbound) {
	s.saw, s.method, s.effect = string(m.Foreign()), string(m.Method()), m.Effect()
	var label bridge.Label
	label, s.labelled = m.Label()
	s.label = bridge.Label{Effect: label.Effect, Scope: bytes.Clone(label.Scope)}
}

func (s *side) ServeRequest(r *carriage.Request) {
	s.take(&r.Inbound)
	s.answer(r)
}

func (s *side) ServeNotify(n *carriage.Notify) {
	s.take(&n.Inbound)
	s.notified = append(s.notified, s.saw)
}

// session is an MCP client and an MCP server, joined.
type session struct {
	*nptest.Pair
	t              *testing.T
	client, server *side
}

const result = `{"jsonrpc":"2.0","id":1,"result":{ "x":1.0 }}`

func newSession(t *testing.T) *session {
	s := &session{t: t, client: new(side), server: new(side)}
	options := func(x *side) assoc.Options {
		x.answer = func(r *carriage.Request) { _ = r.Respond([]byte(result)) }
		x.bridge = carriage.New(carriage.Config{Protocols: []carriage.Protocol{mcp.Protocol(x)}})
		o := assoc.Options{Handlers: []assoc.ChannelHandler{x.bridge}}
		o.Conn.Protocols = x.bridge.Protocols()
		return o
	}
	// The MCP server is the association's client: the roles are independent.
	s.Pair = nptest.NewPair(t, nptest.Options{Client: options(s.server), Server: options(s.client)})
	s.Settle()
	return s
}

func (s *session) end(x *side) *assoc.Association {
	if x == s.server {
		return s.Client.Association
	}
	return s.Server.Association
}

func (s *session) call(from *side, c carriage.Call) (reply carriage.Reply) {
	s.t.Helper()
	c.Protocol = bridge.ProtocolMCP
	n := 0
	_, err := from.bridge.Start(s.end(from), &c, carriage.CompletionFunc(func(r *carriage.Reply) {
		n++
		reply = *r
		reply.Foreign = bytes.Clone(r.Foreign)
	}))
	if err != nil {
		s.t.Fatal(err)
	}
	s.Settle()
	if n != 1 {
		s.t.Fatalf("ended %d times", n)
	}
	return reply
}

func ask(method string) []byte {
	return []byte(`{"jsonrpc":"2.0","id":1, "method":"` + method + `","params":{}}`)
}

// MAP-MCP 4.1, 4.2, 10(2), 10(3): either side asks, under one protocol id, and is
// answered under its own correlation.
func TestMapMCP4_EitherSideAsks(t *testing.T) {
	s := newSession(t)
	for _, c := range []struct {
		from, to *side
		method   string
	}{
		{s.client, s.server, "initialize"}, {s.client, s.server, "tools/list"}, {s.client, s.server, "ping"},
		{s.server, s.client, "sampling/createMessage"}, {s.server, s.client, "roots/list"},
		{s.server, s.client, "elicitation/create"}, {s.server, s.client, "ping"}, {s.server, s.client, "tasks/get"},
	} {
		foreign := ask(c.method)
		r := s.call(c.from, carriage.Call{Foreign: foreign})
		want, _ := mcp.Effect(c.method)
		if r.Err != nil || r.Kind != bridge.KindResponse || string(r.Foreign) != result ||
			c.to.saw != string(foreign) || c.to.method != c.method || c.to.effect != want || c.to.label.Effect != want || !c.to.labelled {
			t.Errorf("%s: %v %q, saw %q, effect %v", c.method, r.Err, r.Foreign, c.to.saw, c.to.effect)
		}
	}
}

// L38: a client that leaves while its server waits for an answer from it: the
// server's request ends, once, with the reason and never with a reply, and so does
// the call in which it asked.
func TestMapMCP4_2_AClientThatLeavesBeforeItAnswers(t *testing.T) {
	s := newSession(t)
	var asked, held *carriage.Request
	s.server.answer = func(r *carriage.Request) {
		r.Retain()
		held = r
	}
	s.client.answer = func(r *carriage.Request) {
		r.Retain()
		asked = r
	}
	var called, ended []carriage.Reply
	start := func(from *side, foreign []byte, to *[]carriage.Reply) {
		t.Helper()
		if _, err := from.bridge.Start(s.end(from), &carriage.Call{Protocol: bridge.ProtocolMCP, Foreign: foreign},
			carriage.CompletionFunc(func(r *carriage.Reply) { *to = append(*to, *r) })); err != nil {
			t.Fatal(err)
		}
		s.Settle()
	}
	start(s.client, []byte(`{"jsonrpc":"2.0","id":"c1","method":"tools/call","params":{"name":"x"}}`), &called)
	start(s.server, []byte(`{"jsonrpc":"2.0","id":"s1","method":"elicitation/create","params":{"message":"ok?"}}`), &ended)
	if held == nil || asked == nil || len(called)+len(ended) != 0 {
		t.Fatal("not both are under way")
	}
	s.Cut(nil)
	s.Settle()
	for _, r := range append(called, ended...) {
		if !errors.Is(r.Err, assoc.ErrClosed) || r.Foreign != nil || !r.Sent {
			t.Errorf("%+v", r)
		}
	}
	if len(called) != 1 || len(ended) != 1 {
		t.Errorf("the call ended %d times, the server's request %d times", len(called), len(ended))
	}
	// What both still hold can't be answered any more, and says so.
	for _, r := range []*carriage.Request{held, asked} {
		if err := r.Respond([]byte(result)); err == nil {
			t.Error("an answer to nobody was taken")
		}
		r.Release()
	}
}

// A server asks within a call of its client's, and both end.
func TestMapMCP4_2_ARequestWithinARequest(t *testing.T) {
	s := newSession(t)
	var held *carriage.Request
	s.server.answer = func(r *carriage.Request) {
		r.Retain()
		held = r
	}
	var reply string
	foreign := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
	if _, err := s.client.bridge.Start(s.end(s.client), &carriage.Call{Protocol: bridge.ProtocolMCP, Foreign: foreign},
		carriage.CompletionFunc(func(r *carriage.Reply) { reply = string(r.Foreign) })); err != nil {
		t.Fatal(err)
	}
	s.Settle()
	if held == nil {
		t.Fatal("the call has not arrived")
	}
	// It has the same id, which is the other direction's.
	if r := s.call(s.server, carriage.Call{Foreign: ask("elicitation/create")}); r.Err != nil || string(r.Foreign) != result {
		t.Errorf("%v %q", r.Err, r.Foreign)
	}
	if err := held.Respond([]byte(result)); err != nil {
		t.Fatal(err)
	}
	held.Release()
	s.Settle()
	if reply != result {
		t.Errorf("%q", reply)
	}
}

// MAP-MCP 4.3, 10(2): notifications have no answer, and cross in order.
func TestMapMCP4_3_Notifications(t *testing.T) {
	s := newSession(t)
	for _, method := range []string{"notifications/initialized", "notifications/progress", "notifications/strange"} {
		foreign := []byte(`{"method":"` + method + `","jsonrpc":"2.0"}`)
		if err := s.client.bridge.TryNotify(s.end(s.client), &carriage.Call{Protocol: bridge.ProtocolMCP, Foreign: foreign}); err != nil {
			t.Fatal(err)
		}
		s.Settle()
		if n := len(s.server.notified); n == 0 || s.server.notified[n-1] != string(foreign) || s.server.method != method {
			t.Errorf("%s: %q", method, s.server.notified)
		}
		want, known := mcp.Effect(method)
		if !known {
			want = bridge.Destructive
		}
		if !s.server.labelled || s.server.effect != want {
			t.Errorf("%s: labelled %v, effect %v", method, s.server.labelled, s.server.effect)
		}
	}
	if err := s.client.bridge.TryNotify(s.end(s.client), &carriage.Call{Protocol: bridge.ProtocolMCP, Foreign: ask("ping")}); err == nil {
		t.Error("a request was sent as a notification")
	}
}

// MAP-MCP 4, 10(2): an error object stays as it is, and a method that is not in
// the tables is the endpoint's to refuse.
func TestMapMCP4_UnknownMethodsAndErrorsCrossVerbatim(t *testing.T) {
	s := newSession(t)
	const refusal = `{"jsonrpc":"2.0","id":1,"error":{"data":{"a":[1.10]},"code":-32601,"message":"no such method"}}`
	s.server.answer = func(r *carriage.Request) { _ = r.Fail([]byte(refusal)) }
	foreign := ask("tools/frobnicate")
	r := s.call(s.client, carriage.Call{Foreign: foreign})
	if r.Err != nil || r.Kind != bridge.KindError || string(r.Foreign) != refusal || s.server.saw != string(foreign) || s.server.effect != bridge.Destructive {
		t.Errorf("%v %q, saw %q, effect %v", r.Err, r.Foreign, s.server.saw, s.server.effect)
	}
}

// MAP-MCP 6.1, 10(6): without a label everything but what is listed as reading is
// destructive.
func TestMapMCP6_1_MissingLabelIsDestructive(t *testing.T) {
	s := newSession(t)
	for method, want := range map[string]bridge.Effect{
		"tools/list": bridge.ReadOnly, "initialize": bridge.ReadOnly, "tasks/result": bridge.ReadOnly,
		"resources/subscribe": bridge.Destructive, "logging/setLevel": bridge.Destructive, "tasks/cancel": bridge.Destructive,
		"sampling/createMessage": bridge.Destructive, "tools/call": bridge.Destructive, "tools/other": bridge.Destructive,
	} {
		if r := s.call(s.client, carriage.Call{Foreign: ask(method), NoLabel: true}); r.Err != nil || s.server.labelled || s.server.effect != want {
			t.Errorf("%s: %v, effect %v, want %v", method, r.Err, s.server.effect, want)
		}
	}
	if err := s.client.bridge.TryNotify(s.end(s.client), &carriage.Call{
		Protocol: bridge.ProtocolMCP, NoLabel: true, Foreign: []byte(`{"jsonrpc":"2.0","method":"notifications/cancelled"}`),
	}); err != nil {
		t.Fatal(err)
	}
	s.Settle()
	if s.server.effect != bridge.Destructive {
		t.Errorf("effect %v", s.server.effect)
	}
}

// MAP-MCP 6.2, 10(5): a call of a tool is labelled by the tool's annotations, and
// as destructive where nothing is known of it.
func TestMapMCP6_2_ToolCallsAreLabelledByTheirTool(t *testing.T) {
	s := newSession(t)
	yes, no := true, false
	for _, c := range []struct {
		label *bridge.Label
		want  bridge.Effect
		scope string
	}{
		{mcp.ToolLabel("look", mcp.Annotations{ReadOnly: &yes}), bridge.ReadOnly, "look"},
		{mcp.ToolLabel("set", mcp.Annotations{ReadOnly: &no, Destructive: &no, Idempotent: &yes}), bridge.IdempotentWrite, "set"},
		{mcp.ToolLabel("add", mcp.Annotations{ReadOnly: &no, Destructive: &no}), bridge.NonIdempotentWrite, "add"},
		{mcp.ToolLabel("any", mcp.Annotations{}), bridge.Destructive, "any"},
		{nil, bridge.Destructive, ""},
	} {
		r := s.call(s.client, carriage.Call{Foreign: ask("tools/call"), Label: c.label})
		if r.Err != nil || s.server.effect != c.want || !s.server.labelled || s.server.label.Effect != c.want || string(s.server.label.Scope) != c.scope {
			t.Errorf("%+v: %v, effect %v, label %+v", c.label, r.Err, s.server.effect, s.server.label)
		}
	}
	// D15: a label never makes less of what the mapping knows.
	r := s.call(s.client, carriage.Call{Foreign: ask("tasks/cancel"), Label: &bridge.Label{Effect: bridge.ReadOnly}})
	if r.Err != nil || s.server.effect != bridge.IdempotentWrite {
		t.Errorf("%v, effect %v", r.Err, s.server.effect)
	}
}

// MAP-MCP 2: a peer that does not carry MCP says so.
func TestMapMCP2_ProtocolUnsupported(t *testing.T) {
	other := carriage.New(carriage.Config{Protocols: []carriage.Protocol{{ID: bridge.ProtocolA2A, Class: carriage.ClassJSONRPC}}})
	client := carriage.New(carriage.Config{Protocols: []carriage.Protocol{mcp.Protocol(nil)}})
	o := assoc.Options{Handlers: []assoc.ChannelHandler{client}}
	o.Conn.Protocols = client.Protocols()
	p := nptest.NewPair(t, nptest.Options{Client: o, Server: assoc.Options{Handlers: []assoc.ChannelHandler{other}}})
	// Before the peer's HELLO nothing is known of it.
	var got error
	if _, err := client.Start(p.Client.Association, &carriage.Call{Protocol: bridge.ProtocolMCP, Foreign: ask("ping")},
		carriage.CompletionFunc(func(r *carriage.Reply) { got = r.Err })); err != nil {
		t.Fatal(err)
	}
	p.Settle()
	if e, ok := got.(*bridge.Error); !ok || e.Code != bridge.CodeProtocolUnsupported {
		t.Errorf("%v", got)
	}
}

// MAP-MCP answers no request with a stream.
func TestRepliesAreNoStreams(t *testing.T) {
	s := newSession(t)
	var err error
	s.server.answer = func(r *carriage.Request) {
		if _, err = r.Stream(carriage.StreamOptions{}); err != nil {
			_ = r.Respond([]byte(result))
		}
	}
	if r := s.call(s.client, carriage.Call{Foreign: ask("tools/call")}); r.Err != nil || err != carriage.ErrNotStream {
		t.Errorf("%v, %v", r.Err, err)
	}
}
