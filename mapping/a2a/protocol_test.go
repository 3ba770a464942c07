package a2a_test

import (
	"bytes"
	"testing"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/mapping/a2a"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// link is a caller and an agent, joined.
type link struct {
	*nptest.Pair
	t      *testing.T
	caller *carriage.Bridge
	effect bridge.Effect // of the last request that the agent saw
	label  bridge.Label
	saw    string
	doc    bool
	answer func(r *carriage.Request)
}

func newLink(t *testing.T) *link {
	l := &link{t: t}
	agent := carriage.New(carriage.Config{Protocols: []carriage.Protocol{a2a.Protocol(carriage.HandlerFunc(func(r *carriage.Request) {
		l.effect, l.saw, l.doc = r.Effect(), string(r.Foreign()), r.Document()
		l.label, _ = r.Label()
		l.answer(r)
	}))}})
	l.caller = carriage.New(carriage.Config{Protocols: []carriage.Protocol{a2a.Protocol(nil)}})
	side := func(b *carriage.Bridge) assoc.Options {
		o := assoc.Options{Handlers: []assoc.ChannelHandler{b}}
		o.Conn.Protocols = b.Protocols()
		return o
	}
	l.Pair = nptest.NewPair(t, nptest.Options{Client: side(l.caller), Server: side(agent)})
	l.Settle()
	l.answer = func(r *carriage.Request) { _ = r.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`)) }
	return l
}

func (l *link) call(c carriage.Call) (reply carriage.Reply) {
	l.t.Helper()
	c.Protocol = bridge.ProtocolA2A
	n := 0
	_, err := l.caller.Start(l.Client.Association, &c, carriage.CompletionFunc(func(r *carriage.Reply) {
		n++
		reply = *r
		reply.Foreign = bytes.Clone(r.Foreign)
	}))
	if err != nil {
		l.t.Fatal(err)
	}
	l.Settle()
	if n != 1 {
		l.t.Fatalf("ended %d times", n)
	}
	return reply
}

func ask(method string) carriage.Call {
	return carriage.Call{Foreign: []byte(`{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{}}`)}
}

// MAP-A2A 4, 5: either version's names, labelled by what they do.
func TestMapA2A4_UnaryOperationsAreCarriedAndLabelled(t *testing.T) {
	l := newLink(t)
	for _, method := range []string{
		"message/send", "SendMessage", "tasks/get", "GetTask", "ListTasks", "tasks/cancel", "CancelTask",
		"tasks/pushNotificationConfig/set", "CreateTaskPushNotificationConfig",
		"tasks/pushNotificationConfig/get", "GetTaskPushNotificationConfig",
		"tasks/pushNotificationConfig/list", "ListTaskPushNotificationConfigs",
		"tasks/pushNotificationConfig/delete", "DeleteTaskPushNotificationConfig",
		"agent/getAuthenticatedExtendedCard", "GetExtendedAgentCard",
	} {
		c := ask(method)
		r := l.call(c)
		want, _ := a2a.Effect(method)
		if r.Err != nil || r.Kind != bridge.KindResponse || l.saw != string(c.Foreign) || l.label.Effect != want || l.effect != want || l.doc {
			t.Errorf("%s: %v, labelled %v, effect %v, saw %q", method, r.Err, l.label.Effect, l.effect, l.saw)
		}
	}
}

// MAP-A2A 5: a missing label on what changes state is destructive.
func TestMapA2A5_MissingLabelIsDestructive(t *testing.T) {
	l := newLink(t)
	for method, want := range map[string]bridge.Effect{
		"tasks/cancel": bridge.Destructive, "CancelTask": bridge.Destructive, "message/send": bridge.Destructive,
		"tasks/frobnicate": bridge.Destructive, "tasks/get": bridge.ReadOnly, "GetTask": bridge.ReadOnly,
	} {
		c := ask(method)
		c.NoLabel = true
		if r := l.call(c); r.Err != nil || l.effect != want {
			t.Errorf("%s: %v, effect %v, want %v", method, r.Err, l.effect, want)
		}
	}
}

// collected is what a streaming call brought.
type collected struct {
	events []string
	reply  carriage.Reply
	last   string
	ends   int
}

func (c *collected) HandleEvent(e *carriage.Event) { c.events = append(c.events, string(e.Foreign)) }
func (c *collected) HandleReply(r *carriage.Reply) {
	c.reply, c.last = *r, string(r.Foreign)
	c.ends++
}

// MAP-A2A 4 and 6: the streaming operations of both versions are answered by a
// stream: each event one STREAM_DATA, the terminal one the STREAM_END.
func TestMapA2A6_StreamingOperationsAreStreams(t *testing.T) {
	working := `{"jsonrpc":"2.0","id":1,"result":{"kind":"status-update","final":false,"status":{"state":"working"}}}`
	done := `{"jsonrpc":"2.0","id":1,"result":{"kind":"status-update","final":true,"status":{"state":"completed"}}}`
	for _, method := range []string{"message/stream", "SendStreamingMessage", "tasks/resubscribe", "SubscribeToTask"} {
		l := newLink(t)
		l.answer = func(r *carriage.Request) {
			p, err := r.Stream(carriage.StreamOptions{})
			if err != nil {
				t.Errorf("%s: %v", method, err)
				return
			}
			for _, e := range []string{working, working, done} {
				if a2a.Classify([]byte(e)) == a2a.Terminal {
					err = p.End([]byte(e))
				} else {
					err = p.TrySend([]byte(e))
				}
				if err != nil {
					t.Errorf("%s: %v", method, err)
				}
			}
		}
		c := ask(method)
		c.Protocol = bridge.ProtocolA2A
		got := new(collected)
		if _, err := l.caller.StartStream(l.Client.Association, &c, nil, got); err != nil {
			t.Fatal(err)
		}
		l.Settle()
		if got.ends != 1 || got.reply.Err != nil || got.reply.Kind != bridge.KindEnd || got.last != done || len(got.events) != 2 || got.events[0] != working {
			t.Errorf("%s: %d events, then %v %v %q, %d times", method, len(got.events), got.reply.Kind, got.reply.Err, got.last, got.ends)
		}
		if want, _ := a2a.Effect([]byte(method)); l.effect != want {
			t.Errorf("%s: effect %v", method, l.effect)
		}
	}
}

// Other operations are no streams.
func TestMapA2A4_UnaryOperationsAreNoStreams(t *testing.T) {
	l := newLink(t)
	l.answer = func(r *carriage.Request) {
		if _, err := r.Stream(carriage.StreamOptions{}); err == nil {
			t.Error("tasks/get was answered by a stream")
		}
		_ = r.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`))
	}
	if r := l.call(ask("tasks/get")); r.Err != nil {
		t.Error(r.Err)
	}
}

// An unknown method is the agent's to refuse, with its own error.
func TestMapA2A4_UnknownMethodsReachTheAgent(t *testing.T) {
	l := newLink(t)
	const refusal = `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no such method"}}`
	l.answer = func(r *carriage.Request) { _ = r.Fail([]byte(refusal)) }
	r := l.call(ask("tasks/frobnicate"))
	if r.Err != nil || r.Kind != bridge.KindError || string(r.Foreign) != refusal || l.effect != bridge.Destructive {
		t.Errorf("%v %v %q", r.Err, r.Kind, r.Foreign)
	}
}

// MAP-A2A 4: A2A's own error codes stay what they are.
func TestMapA2A4_ErrorsAreCarriedVerbatim(t *testing.T) {
	l := newLink(t)
	for _, code := range []string{"-32001", "-32002", "-32003", "-32004", "-32005", "-32006", "-32603"} {
		foreign := `{"error":{"message":"x","code":` + code + `,"data":{"taskId":"t"}},"id":1, "jsonrpc":"2.0"}`
		l.answer = func(r *carriage.Request) { _ = r.Fail([]byte(foreign)) }
		if r := l.call(ask("tasks/get")); r.Err != nil || r.Kind != bridge.KindError || string(r.Foreign) != foreign {
			t.Errorf("%s: %v %q", code, r.Err, r.Foreign)
		}
	}
}

// MAP-A2A 7, D24: cards are documents, octet for octet.
func TestMapA2A7_CardsAreDocuments(t *testing.T) {
	l := newLink(t)
	card := "{\"url\":\"http:\\u002f\\u002fa\",\"streaming\":false,\"v\":1.0}\n"
	l.answer = func(r *carriage.Request) { _ = r.Respond([]byte(card)) }
	for _, method := range []string{"agent/getCard", "agent/getAuthenticatedExtendedCard", "GetExtendedAgentCard"} {
		r := l.call(carriage.Call{Method: method})
		if r.Err != nil || string(r.Foreign) != card || !l.doc || l.effect != bridge.ReadOnly || l.saw != "" {
			t.Errorf("%s: %v %q", method, r.Err, r.Foreign)
		}
	}
}
