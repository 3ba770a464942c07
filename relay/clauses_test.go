package relay

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/carriage/policy"
	"github.com/trestle-npamp/trestle/mapping/a2a"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// BRIDGE 6, 7, D15: what the rules deny is refused with SafetyPolicy before the agent,
// and the association to it, see anything: from an HTTP caller and from one on a link,
// whatever is asked for in whatever way. It is counted by rule and logged with its
// reason, and not with what the caller wrote.
func TestSafetyPolicyAtTheEdgeAndOnTheLink(t *testing.T) {
	log := new(logged)
	rules, err := policy.Parse([]byte(`{"default":"allow","rules":[
		{"decision":"deny","methods":["message/*","SendMessage"],"protocols":["a2a"],"reason":"no messages"},
		{"decision":"deny","effects":["destructive"],"reason":"too dangerous"},
		{"decision":"deny","methods":["agent/getAuthenticatedExtendedCard"],"reason":"not for you"}
	]}`), slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	r := startRelay(t, Config{Policy: func(a *Access) error {
		return rules.Decide(&policy.Access{
			Peer: a.Peer, Principal: a.Principal, Agent: a.Agent, Protocol: bridge.ProtocolA2A,
			Method: []byte(a.Method), Effect: a.Effect, Notification: a.Notification,
		})
	}})
	var reached atomic.Int32
	startHTTP(t, r, "a", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		reached.Add(1)
		respond(w, 200, `{"jsonrpc":"2.0","id":`+idOf(t, read(t, req))+`,"result":{}}`)
	}))
	c := dial(t, r, "a")
	ask := func(method string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{"secret":"what the caller wrote"}}`
	}
	denied := uint64(0)
	for _, x := range []struct{ method, reason string }{
		{"message/send", "no messages"}, {"SendMessage", "no messages"},
		{"message/stream", "no messages"}, // a stream is refused by a reply
		{"tasks/pushNotificationConfig/delete", "too dangerous"}, {"tasks/frobnicate", "too dangerous"},
		{"agent/getAuthenticatedExtendedCard", "not for you"},
	} {
		post(t, r, "a", ask(x.method)).want(t, 403, fmt.Sprintf(`"detail":%q,"code":5,"name":"SafetyPolicy"`, x.reason))
		c.wantRefused(c.send(ask(x.method)), bridge.CodeSafetyPolicy, x.reason)
		denied += 2
		if a2a.IsStream(x.method) {
			wantTold(t, c.open(ask(x.method)), bridge.CodeSafetyPolicy, x.reason)
			denied++
		}
		if a2a.IsDocument(x.method) {
			do(t, "GET", agentURL(r, "a")+"/v1/card", "", nil).want(t, 403, x.reason)
			c.wantRefused(c.call(&carriage.Call{Method: x.method}), bridge.CodeSafetyPolicy, x.reason)
			denied += 2
		}
	}
	// A label is no permission, and its absence is destructive.
	c.wantRefused(c.call(&carriage.Call{Foreign: []byte(ask("message/send")), Label: &bridge.Label{Effect: bridge.ReadOnly}}), bridge.CodeSafetyPolicy, "no messages")
	c.wantRefused(c.call(&carriage.Call{Foreign: []byte(ask("tasks/cancel")), NoLabel: true}), bridge.CodeSafetyPolicy, "too dangerous")
	denied += 2
	// Notifications are refused in silence; over HTTP that has a status.
	const note = `{"jsonrpc":"2.0","method":"message/send","params":{}}`
	post(t, r, "a", note).want(t, 403, "no messages")
	if err := c.bridge.TryNotify(c.assoc, &carriage.Call{Protocol: bridge.ProtocolA2A, Foreign: []byte(note)}); err != nil {
		t.Fatal(err)
	}
	denied += 2
	eventually(t, "the notification is refused", func() bool { return rules.Stats().Denied == denied })
	if n, s := reached.Load(), r.Stats(); n != 0 || s.Requests != 0 || s.Notifications != 0 || s.Undelivered != 0 {
		t.Errorf("%d reached the agent; %d and %d forwarded, %d undelivered", n, s.Requests, s.Notifications, s.Undelivered)
	}
	if s := rules.Stats(); s.Denied != s.Rules[0]+s.Rules[1]+s.Rules[2] || s.Rules[0] != 10 || s.Rules[1] != 5 || s.Rules[2] != 4 || s.Allowed != 0 {
		t.Errorf("%+v", s)
	}
	if s := r.Stats().Bridge; s.RequestsForbidden != 11 {
		t.Errorf("%d refused on the link", s.RequestsForbidden)
	}
	text := strings.Join(log.with(""), "")
	for _, want := range []string{"no messages", "too dangerous", "not for you"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not logged", want)
		}
	}
	if strings.Contains(text, "secret") || strings.Contains(text, "frobnicate") {
		t.Error("what callers wrote is logged")
	}
	// What is allowed gets there.
	post(t, r, "a", ask("tasks/get")).want(t, 200, `"result"`)
	if reached.Load() != 1 {
		t.Error("it did not reach the agent")
	}
}

// MAP-A2A 4, 5: a deployment's stricter mapping counts on both sides of a relay: an
// edge labels by it, a caller's label on a link crosses unchanged and is taken for
// what the mapping knows all the same, and what is not carried reaches nobody.
func TestMapA2A5_StricterMappingOfARelay(t *testing.T) {
	m, err := a2a.NewMapping(a2a.Options{Stricter: a2a.Strict.Stricter, NotCarried: []string{a2a.MethodSetPush}})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var effects []bridge.Effect
	r := startRelay(t, Config{Mapping: m, Policy: func(a *Access) error {
		mu.Lock()
		defer mu.Unlock()
		effects = append(effects, a.Effect)
		return nil
	}})
	l := &linkAgent{t: t, seen: make(chan carriage.Call, 16)}
	l.serve = func(r *carriage.Request) { _ = r.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`)) }
	l.start(t, r, "a", nil)
	c := dial(t, r, "a")
	for _, method := range []string{"tasks/cancel", "CancelTask"} {
		request := `{"jsonrpc":"2.0","id":1,"method":"` + method + `"}`
		post(t, r, "a", request).want(t, 200, "result")
		if seen := <-l.seen; seen.Label == nil || seen.Label.Effect != bridge.Destructive {
			t.Errorf("%s from the edge: %+v", method, seen.Label)
		}
		if reply := c.send(request); reply.Err != nil {
			t.Error(reply.Err)
		}
		if seen := <-l.seen; seen.Label == nil || seen.Label.Effect != bridge.NonIdempotentWrite {
			t.Errorf("%s from the link: %+v", method, seen.Label)
		}
	}
	mu.Lock()
	if fmt.Sprint(effects) != "[destructive destructive destructive destructive]" {
		t.Errorf("the policy was asked about %v", effects)
	}
	mu.Unlock()
	for _, method := range []string{"tasks/pushNotificationConfig/set", "CreateTaskPushNotificationConfig"} {
		request := `{"jsonrpc":"2.0","id":1,"method":"` + method + `"}`
		post(t, r, "a", request).want(t, 501, "MethodUnsupported")
		c.wantRefused(c.send(request), bridge.CodeMethodUnsupported, "not carried")
	}
	if len(l.seen) != 0 {
		t.Error("what is not carried reached the agent")
	}
}

// D27, MAP-A2A 6: over HTTP a resubscribe is a fresh stream for the agent: it has an id
// of its own, which its events bear, so events of the stream before can't be played
// again in it. An edge names no event, and knows no cursor: a Last-Event-ID, which a
// browser may send, crosses no link (D21).
func TestD27_ResubscribeOverHTTPIsAFreshStream(t *testing.T) {
	r := startRelay(t, Config{})
	var mu sync.Mutex
	var asked []string
	startHTTP(t, r, "a", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body := read(t, req)
		mu.Lock()
		asked = append(asked, body+req.Header.Get("Last-Event-ID"))
		mu.Unlock()
		w.Header().Set("Content-Type", "text/event-stream")
		f := &flow{w, req}
		id := idOf(t, body)
		f.raw("id: 17\nretry: 1\n")
		f.say(artifact(id, 1))
		f.say(status(id, "completed", true))
	}))
	for i, request := range []string{
		`{"jsonrpc":"2.0","id":"first","method":"message/stream","params":{}}`,
		`{"jsonrpc":"2.0","id":"again","method":"tasks/resubscribe","params":{"id":"t"}}`,
	} {
		answer := do(t, "POST", agentURL(r, "a"), request, http.Header{"Last-Event-Id": {"17"}})
		id := idOf(t, request)
		want := "data: " + artifact(id, 1) + "\n\ndata: " + status(id, "completed", true) + "\n\n"
		if answer.status != 200 || answer.body != want {
			t.Errorf("%d: %d %q, want %q", i, answer.status, answer.body, want)
		}
		mu.Lock()
		if asked[i] != request {
			t.Errorf("the agent was asked %q", asked[i])
		}
		mu.Unlock()
	}
}

// MAP-A2A 3, 6: neither the lines of server-sent events nor anything else of HTTP is
// part of a foreign message: on the link there are JSON-RPC objects.
func TestMapA2A3_NothingOfHTTPOnTheLink(t *testing.T) {
	r := startRelay(t, Config{})
	startHTTP(t, r, "a", flowing(t, func(f *flow, id, _ string) {
		f.raw(": a comment\n\nevent: message\nid: 9\nretry: 100\n")
		f.say(artifact(id, 1))
		f.raw("data: " + strings.ReplaceAll(status(id, "completed", true), `,"`, ",\ndata: \"") + "\n\n") // over several lines
	}))
	c := dial(t, r, "a")
	s := c.open(`{"jsonrpc":"2.0","id":1,"method":"message/stream","params":{}}`)
	wantEvents(t, s, artifact("1", 1), strings.ReplaceAll(status("1", "completed", true), `,"`, ",\n\""))
	l := &linkAgent{t: t, seen: make(chan carriage.Call, 16)}
	l.serve = func(r *carriage.Request) { _ = r.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`)) }
	l.start(t, r, "b", nil)
	const request = `{"jsonrpc":"2.0","id":1,"method":"tasks/get"}`
	do(t, "POST", agentURL(r, "b"), request, http.Header{"Authorization": {"Bearer x"}, "X-Team": {"y"}}).want(t, 200, "result")
	if seen := <-l.seen; string(seen.Foreign) != request {
		t.Errorf("%q", seen.Foreign)
	}
}
