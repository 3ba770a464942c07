package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/carriage/discovery"
	"github.com/trestle-npamp/trestle/carriage/jsonrpc"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/mapping/a2a"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/relay/edge"
	"github.com/trestle-npamp/trestle/relay/upstream"
	"github.com/trestle-npamp/trestle/wire/bridge"
	"github.com/trestle-npamp/trestle/wire/disco"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.IgnoreCurrent()) }

// limit is how long a test waits for what must happen; a second is what the dead
// agent's callers are promised.
const limit = 30 * time.Second

func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

func newKey(t *testing.T) *identity.Key {
	t.Helper()
	k, err := identity.Generate(profiles.Ed25519, nil)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// startRelay starts a relay on loopback, which is shut down with the test.
func startRelay(t *testing.T, cfg Config) *Relay {
	t.Helper()
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	if cfg.HTTP == "" {
		cfg.HTTP = "127.0.0.1:0"
	}
	if cfg.Engine.Transport == 0 {
		cfg.Engine.Transport = engine.TransportTCP
	}
	cfg.Engine.Loops = 1
	if cfg.Logger == nil {
		cfg.Logger = testLog(t)
	}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := r.Shutdown(ctx); err != nil {
			t.Errorf("shutdown of the relay: %v", err)
		}
	})
	return r
}

// startAgent starts an agent and waits until it is at its relay. It is shut down
// with the test, or by the function returned.
func startAgent(t *testing.T, cfg AgentConfig) (a *Agent, stop func()) {
	t.Helper()
	a, ready, stop := runAgent(t, cfg)
	select {
	case <-ready:
	case <-time.After(limit):
		t.Fatal("the agent never got to its relay")
	}
	return a, stop
}

func runAgent(t *testing.T, cfg AgentConfig) (a *Agent, ready <-chan Standing, stop func()) {
	t.Helper()
	standing := make(chan Standing, 16)
	cfg.OnReady = func(s Standing) { standing <- s }
	if cfg.Engine.Transport == 0 {
		cfg.Engine.Transport = engine.TransportTCP
	}
	cfg.Logger = testLog(t)
	a, err := NewAgent(cfg)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- a.Run(t.Context()) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			_ = a.Shutdown(ctx)
			<-done
		})
	}
	t.Cleanup(stop)
	return a, standing, stop
}

// startHTTP puts an HTTP agent behind an Agent at the relay.
func startHTTP(t *testing.T, r *Relay, name string, h http.Handler) (*Agent, *httptest.Server) {
	t.Helper()
	server := httptest.NewServer(h)
	client, err := upstream.New(upstream.Config{URL: server.URL + "/a2a", Logger: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		server.CloseClientConnections()
		server.Close()
	})
	a, _ := startAgent(t, AgentConfig{Name: name, Relay: r.Addr().String(), Peer: identity.Pin(r.Key()), Backend: client})
	return a, server
}

// caller is an N-PAMP caller.
type caller struct {
	t      *testing.T
	engine *engine.Engine
	bridge *carriage.Bridge
	disco  *discovery.Discovery
	assoc  *engine.Association
}

func dial(t *testing.T, r *Relay, agent string) *caller {
	t.Helper()
	return dialWith(t, r, agent, nil)
}

func dialAs(t *testing.T, r *Relay, key *identity.Key) *caller {
	t.Helper()
	return dialWith(t, r, "", key)
}

func dialWith(t *testing.T, r *Relay, agent string, key identity.PrivateKey) *caller {
	t.Helper()
	c := &caller{t: t, bridge: carriage.New(carriage.Config{Protocols: []carriage.Protocol{a2a.Protocol(nil)}}), disco: discovery.New(discovery.Config{})}
	var err error
	c.engine, err = engine.New(engine.Config{
		Transport: engine.TransportTCP, Loops: 1, Identity: key, Protocols: c.bridge.Protocols(), Channels: []engine.ChannelHandler{c.bridge, c.disco},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		_ = c.engine.Shutdown(ctx)
	})
	c.assoc, err = c.engine.Dial(t.Context(), r.Addr().String(), engine.DialOptions{Agent: agent, Peer: identity.Pin(r.Key())})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *caller) call(call *carriage.Call) *carriage.Reply {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), limit)
	defer cancel()
	call.Protocol = bridge.ProtocolA2A
	reply, _ := c.bridge.Call(ctx, c.assoc, call)
	return reply
}

func (c *caller) send(body string) *carriage.Reply {
	c.t.Helper()
	return c.call(&carriage.Call{Foreign: []byte(body)})
}

// wantRefused checks for a transport error that the peer told.
func (c *caller) wantRefused(reply *carriage.Reply, code bridge.Code, text string) {
	c.t.Helper()
	var told *bridge.Error
	if !errors.As(reply.Err, &told) || !reply.Remote || told.Code != code || !strings.Contains(told.Text, text) {
		c.t.Errorf("told %v (remote %v) and %q, want %v with %q", reply.Err, reply.Remote, reply.Foreign, code, text)
	}
}

type answerOf struct {
	status int
	header http.Header
	body   string
}

func (a answerOf) want(t *testing.T, status int, text string) {
	t.Helper()
	if a.status != status || !strings.Contains(a.body, text) {
		t.Errorf("%d %s, want %d with %q", a.status, a.body, status, text)
	}
	if status >= 300 && a.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%d with %s", a.status, a.header.Get("Content-Type"))
	}
}

func do(t *testing.T, method, url, body string, header http.Header) answerOf {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return answerOf{}
	}
	request.Header.Set("Content-Type", "application/json")
	for name, values := range header {
		request.Header[name] = values
	}
	response, err := httpClient.RoundTrip(request)
	if err != nil {
		t.Error(err)
		return answerOf{}
	}
	defer response.Body.Close()
	octets, err := io.ReadAll(response.Body)
	if err != nil {
		t.Error(err)
	}
	return answerOf{response.StatusCode, response.Header, string(octets)}
}

var httpClient = &http.Transport{DisableKeepAlives: true, DisableCompression: true}

func agentURL(r *Relay, name string) string {
	return "http://" + r.HTTPAddr().String() + "/agents/" + name
}

func post(t *testing.T, r *Relay, name, body string) answerOf {
	t.Helper()
	return do(t, "POST", agentURL(r, name), body, nil)
}

// eventually waits until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	late := time.After(limit)
	for !cond() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not in time: %s", what)
		}
	}
}

func read(t *testing.T, r *http.Request) string {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

func respond(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

// idOf is the id of a JSON-RPC message, as written.
func idOf(t *testing.T, body string) string {
	var m jsonrpc.Message
	if err := jsonrpc.Scan([]byte(body), &m); err != nil {
		t.Errorf("%q: %v", body, err)
		return "null"
	}
	return string(m.ID)
}

// L08: HTTP caller, edge, link, link, HTTP agent and back; and the same for an
// N-PAMP caller. Not an octet changes.
func TestOctetsAreEqualEndToEnd(t *testing.T) {
	const sent = " {\"z\":1.10,\"jsonrpc\":\"2.0\", \"params\":{\"h\":\"<b>&\\u003c\\u2028é\",\"x\":1E+2,\"e\":{},\"n\":null,\"i\":123456789012345678901234567890},\"id\":\"s\",\"method\":\"message\\/send\"}\r\n"
	const said = `{"z":1.10,"jsonrpc":"2.0", "result":{"h":"<b>&\u003c\u2028é","x":1E+2,"e":{},"n":null},"id":"\u0073"}` + "\n"
	for _, transport := range []engine.Transport{engine.TransportTCP, engine.TransportTLS} {
		t.Run(transport.String(), func(t *testing.T) {
			r := startRelay(t, Config{Engine: engine.Config{Transport: transport}})
			got := make(chan string, 1)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				got <- read(t, req)
				respond(w, 200, said)
			}))
			defer server.Close()
			client, err := upstream.New(upstream.Config{URL: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			startAgent(t, AgentConfig{Name: "a", Relay: r.Addr().String(), Peer: identity.Pin(r.Key()), Backend: client, Engine: engine.Config{Transport: transport}})
			a := post(t, r, "a", sent)
			if b := <-got; b != sent {
				t.Errorf("the agent got %q", b)
			}
			if a.status != 200 || a.body != said {
				t.Errorf("the caller got %d %q", a.status, a.body)
			}
			if transport != engine.TransportTCP {
				return
			}
			reply := dial(t, r, "a").send(sent)
			if b := <-got; b != sent {
				t.Errorf("the agent got %q", b)
			}
			if reply.Err != nil || reply.Kind != bridge.KindResponse || string(reply.Foreign) != said {
				t.Errorf("the caller got %+v, %q", reply, reply.Foreign)
			}
		})
	}
}

// L01: 200 callers at once, each over its own HTTP connection, all with id 1,
// answered out of order. Each gets its own answer.
func TestCallersWithEqualIDs(t *testing.T) {
	const callers = 200
	r := startRelay(t, Config{})
	var mu sync.Mutex
	var held []chan struct{}
	startHTTP(t, r, "a", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body := read(t, req)
		release := make(chan struct{})
		mu.Lock()
		held = append(held, release)
		if len(held) == callers {
			rand.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
			for _, c := range held {
				close(c)
			}
		}
		mu.Unlock()
		select {
		case <-release:
		case <-req.Context().Done():
		}
		n := body[strings.Index(body, `"n":`)+4 : strings.Index(body, "}")]
		respond(w, 200, `{"jsonrpc":"2.0","id":1,"result":{"n":`+n+`}}`)
	}))
	var wg sync.WaitGroup
	for k := range callers {
		wg.Go(func() {
			a := post(t, r, "a", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"n":%d}}`, k))
			a.want(t, 200, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"result":{"n":%d}}`, k))
		})
	}
	wg.Wait()
	if s := r.Stats(); s.Edge.Results != callers || s.Undelivered != 0 {
		t.Errorf("%+v", s)
	}
}

// L01 on the link: many N-PAMP callers, each with several requests under equal
// ids of its own.
func TestLinkCallersWithEqualIDs(t *testing.T) {
	r := startRelay(t, Config{})
	startAgent(t, AgentConfig{Name: "a", Relay: r.Addr().String(), Backend: Echo()})
	var wg sync.WaitGroup
	for k := range 16 {
		c := dial(t, r, "a")
		wg.Go(func() {
			for i := range 20 {
				want := fmt.Sprintf("text %d of %d", i, k)
				reply := c.send(sendText("1", want))
				if reply.Err != nil || !strings.Contains(string(reply.Foreign), `"`+want+`"`) || idOf(t, string(reply.Foreign)) != "1" {
					t.Errorf("%d/%d: %v, %s", k, i, reply.Err, reply.Foreign)
				}
			}
		})
	}
	wg.Wait()
}

func sendText(id, text string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"message/send","params":{"message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"` + text + `"}]}}}`
}

// L09: one connection, three bad messages and a good one.
func TestBadThenGoodOnOneConnection(t *testing.T) {
	r := startRelay(t, Config{Demo: true})
	conn, err := net.Dial("tcp", r.HTTPAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
	for i, body := range []string{`{"jsonrpc":"2.0","id":1,`, `[{"jsonrpc":"2.0","id":2,"method":"ping"}]`, `{"jsonrpc":"1.0","id":3,"method":"ping"}`, sendText("4", "hi")} {
		request, err := http.NewRequestWithContext(t.Context(), "POST", agentURL(r, "echo"), strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if want := []int{400, 400, 400, 200}[i]; response.StatusCode != want {
			t.Errorf("message %d: %d", i+1, response.StatusCode)
		}
	}
	transport.CloseIdleConnections()
	if n := r.Stats().Engine.ClosedForFault; n != 0 {
		t.Errorf("%d associations dropped", n)
	}
}

// L30: v1.0's names and forms cross, and an unknown method is refused by the
// agent, not by us.
func TestVersionsAndUnknownMethods(t *testing.T) {
	r := startRelay(t, Config{})
	var version []string
	startHTTP(t, r, "a", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body := read(t, req)
		version = req.Header["A2a-Version"]
		if strings.Contains(body, "frobnicate") {
			respond(w, 200, `{"jsonrpc":"2.0","id":"v","error":{"code":-32601,"message":"Method not found"}}`)
			return
		}
		respond(w, 200, `{"jsonrpc":"2.0","id":"v","result":`+body+`}`)
	}))
	const v1 = `{"jsonrpc":"2.0","id":"v","method":"SendMessage","params":{"message":{"messageId":"a","role":"ROLE_USER","parts":[{"text":"hi"}]}}}`
	post(t, r, "a", v1).want(t, 200, `{"jsonrpc":"2.0","id":"v","result":`+v1+`}`)
	if fmt.Sprint(version) != "[1.0]" {
		t.Errorf("A2A-Version %v", version)
	}
	post(t, r, "a", `{"jsonrpc":"2.0","id":"v","method":"tasks/frobnicate"}`).want(t, 200, `-32601`)
	if version != nil {
		t.Errorf("A2A-Version %v", version)
	}
}

// L31, L32: a card's octets are the agent's, from both paths and on the link.
func TestCardsEndToEnd(t *testing.T) {
	const card = "{ \"protocolVersion\":\"0.3.0\",\"url\":\"https:\\u002f\\u002fh\",\"required\":false,\"streaming\":false,\"description\":\"\",\"version\":1.0, \"signatures\":[{\"signature\":\"x\"}] }\n"
	const extended = `{"extended": true, "v":1.0}`
	r := startRelay(t, Config{})
	has := "/.well-known/agent.json"
	startHTTP(t, r, "a", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case req.URL.Path == has:
			respond(w, 200, card)
		case req.Method == "POST":
			respond(w, 200, `{"jsonrpc":"2.0","id":`+idOf(t, read(t, req))+`,"result":`+extended+`}`)
		default:
			http.NotFound(w, req)
		}
	}))
	for _, path := range []string{"/.well-known/agent-card.json", "/.well-known/agent.json"} {
		a := do(t, "GET", agentURL(r, "a")+path, "", nil)
		if a.status != 200 || a.body != card || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %q", path, a.status, a.body)
		}
	}
	for _, path := range []string{"/extendedAgentCard", "/v1/card"} {
		a := do(t, "GET", agentURL(r, "a")+path, "", nil)
		if a.status != 200 || a.body != extended {
			t.Errorf("%s: %d %q", path, a.status, a.body)
		}
	}
	c := dial(t, r, "a")
	for method, want := range map[string]string{"agent/getCard": card, "agent/getAuthenticatedExtendedCard": extended, "GetExtendedAgentCard": extended} {
		if reply := c.call(&carriage.Call{Method: method}); reply.Err != nil || reply.Kind != bridge.KindResponse || string(reply.Foreign) != want {
			t.Errorf("%s: %+v, %q", method, reply, reply.Foreign)
		}
	}
	// Asked for by a JSON-RPC object it is carried as one.
	post(t, r, "a", `{"jsonrpc":"2.0","id":"x","method":"GetExtendedAgentCard"}`).want(t, 200, `{"jsonrpc":"2.0","id":"x","result":`+extended+`}`)

	has = "nowhere"
	do(t, "GET", agentURL(r, "a")+"/.well-known/agent-card.json", "", nil).want(t, 502, "HTTP status 404")
	c.wantRefused(c.call(&carriage.Call{Method: "agent/getCard"}), bridge.CodeNotDelivered, "no agent card")
	do(t, "GET", agentURL(r, "nobody")+"/.well-known/agent-card.json", "", nil).want(t, 404, "NotDelivered")
}

// D21, L33: no header of a caller crosses.
func TestCallersHeadersDoNotCross(t *testing.T) {
	r := startRelay(t, Config{})
	var got http.Header
	startHTTP(t, r, "a", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		got = req.Header.Clone()
		respond(w, 200, `{"jsonrpc":"2.0","id":1,"result":1}`)
	}))
	do(t, "POST", agentURL(r, "a"), `{"jsonrpc":"2.0","id":1,"method":"message/send"}`, http.Header{
		"Authorization": {"Bearer caller"}, "Traceparent": {"00-1-2-01"}, "A2a-Version": {"0.3"}, "A2a-Extensions": {"x"}, "X-Team": {"a", "b"}, "Cookie": {"c=d"},
	}).want(t, 200, "result")
	for _, name := range []string{"Authorization", "Traceparent", "A2a-Version", "A2a-Extensions", "X-Team", "Cookie"} {
		if v := got[name]; v != nil {
			t.Errorf("%s: %v crossed", name, v)
		}
	}
}

// L34: error objects cross with status 200, whatever status they came with, and
// an agent that is gone can't be mistaken for one that answers.
func TestErrorObjectsEndToEnd(t *testing.T) {
	const object = `{"error":{"data":[{"retryAfter":5,"n":12345678901234567890}],"message":"","code":-32005},"id":"q","jsonrpc":"2.0"}`
	r := startRelay(t, Config{})
	var status atomic.Int32
	_, server := startHTTP(t, r, "a", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { respond(w, int(status.Load()), object) }))
	c := dial(t, r, "a")
	const request = `{"jsonrpc":"2.0","id":"q","method":"message/send"}`
	for _, s := range []int32{200, 400, 503} {
		status.Store(s)
		a := post(t, r, "a", request)
		if a.status != 200 || a.body != object || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%d: %d %q", s, a.status, a.body)
		}
		if reply := c.send(request); reply.Err != nil || reply.Kind != bridge.KindError || string(reply.Foreign) != object {
			t.Errorf("%d: %+v, %q", s, reply, reply.Foreign)
		}
	}
	server.CloseClientConnections()
	server.Close()
	post(t, r, "a", request).want(t, 502, `"name":"NotDelivered"`)
	c.wantRefused(c.send(request), bridge.CodeNotDelivered, "agent")
}

// L35: nothing comes back for a notification, on the link or at the edge.
func TestNotificationsEndToEnd(t *testing.T) {
	r := startRelay(t, Config{})
	got := make(chan string, 16)
	answers := []http.HandlerFunc{
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(202) },
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) },
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) },
		func(w http.ResponseWriter, _ *http.Request) { respond(w, 200, "null") },
		func(w http.ResponseWriter, _ *http.Request) { respond(w, 200, "{}") },
		func(w http.ResponseWriter, _ *http.Request) { respond(w, 400, "no") },
	}
	var n atomic.Int32
	startHTTP(t, r, "a", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		got <- read(t, req)
		answers[(n.Add(1)-1)/2](w, req)
	}))
	c := dial(t, r, "a")
	const notification = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	for range answers {
		a := post(t, r, "a", notification)
		if a.status != 202 || a.body != "" || a.header.Get("Content-Length") != "0" {
			t.Errorf("%d %q %v", a.status, a.body, a.header)
		}
		if b := <-got; b != notification {
			t.Errorf("the agent got %q", b)
		}
		if err := c.bridge.Notify(t.Context(), c.assoc, &carriage.Call{Protocol: bridge.ProtocolA2A, Foreign: []byte(notification)}); err != nil {
			t.Fatal(err)
		}
		if b := <-got; b != notification {
			t.Errorf("the agent got %q", b)
		}
	}
	if s := c.bridge.Stats(); s.RepliesUnknown != 0 {
		t.Errorf("something came back: %+v", s)
	}
	post(t, r, "nobody", notification).want(t, 404, "NotDelivered")
}

// L16, L36: an agent that answers with something else.
func TestForeignContentTypesEndToEnd(t *testing.T) {
	r := startRelay(t, Config{})
	var kind atomic.Pointer[string]
	startHTTP(t, r, "a", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header()["Content-Type"] = nil
		status := 200
		if k := *kind.Load(); k != "" {
			w.Header().Set("Content-Type", k)
		}
		if *kind.Load() == "text/html" {
			status = 401
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":1}`)
	}))
	const request = `{"jsonrpc":"2.0","id":1,"method":"message/send"}`
	for field, want := range map[string]struct {
		status int
		text   string
	}{
		"application/json; charset=utf-8": {200, "result"}, "Application/JSON": {200, "result"},
		"text/event-stream;charset=UTF-8": {502, "text/event-stream"}, "application/x-ndjson": {502, "x-ndjson"},
		"": {502, "without a Content-Type"}, "text/html": {502, "HTTP status 401 with text/html"},
	} {
		kind.Store(&field)
		post(t, r, "a", request).want(t, want.status, want.text)
	}
}

func TestWhoIsNotThere(t *testing.T) {
	r := startRelay(t, Config{})
	const request = `{"jsonrpc":"2.0","id":1,"method":"message/send"}`
	post(t, r, "nobody", request).want(t, 404, `"code":4,"name":"NotDelivered"`)
	c := dial(t, r, "nobody")
	c.wantRefused(c.send(request), bridge.CodeNotDelivered, textNoAgent)
	c = dial(t, r, "")
	c.wantRefused(c.send(request), bridge.CodeNotDelivered, textNoAgentNamed)
}

// D15: a policy sees the effect and refuses before anything is forwarded.
func TestPolicy(t *testing.T) {
	var mu sync.Mutex
	var asked []Access
	r := startRelay(t, Config{Demo: true, Policy: func(a *Access) error {
		mu.Lock()
		asked = append(asked, *a)
		mu.Unlock()
		if a.Effect > bridge.NonIdempotentWrite {
			return errors.New("too dangerous")
		}
		return nil
	}})
	c := dial(t, r, "echo")
	post(t, r, "echo", sendText("1", "hi")).want(t, 200, "hi")
	if reply := c.send(sendText("1", "hi")); reply.Err != nil {
		t.Error(reply.Err)
	}
	const unknown = `{"jsonrpc":"2.0","id":1,"method":"tasks/frobnicate"}`
	post(t, r, "echo", unknown).want(t, 403, `"code":5,"name":"SafetyPolicy"`)
	c.wantRefused(c.send(unknown), bridge.CodeSafetyPolicy, "too dangerous")
	// A missing label is destructive, on what is known to write as well.
	c.wantRefused(c.call(&carriage.Call{Foreign: []byte(sendText("1", "hi")), NoLabel: true}), bridge.CodeSafetyPolicy, "too dangerous")
	mu.Lock()
	defer mu.Unlock()
	key := c.engine.Identity()
	for i, want := range []Access{
		{Agent: "echo", Protocol: bridge.ProtocolA2A, Method: "message/send", Effect: bridge.NonIdempotentWrite},
		{Agent: "echo", Protocol: bridge.ProtocolA2A, Method: "message/send", Effect: bridge.NonIdempotentWrite, Peer: key},
		{Agent: "echo", Protocol: bridge.ProtocolA2A, Method: "tasks/frobnicate", Effect: bridge.Destructive},
		{Agent: "echo", Protocol: bridge.ProtocolA2A, Method: "tasks/frobnicate", Effect: bridge.Destructive, Peer: key},
		{Agent: "echo", Protocol: bridge.ProtocolA2A, Method: "message/send", Effect: bridge.Destructive, Peer: key},
	} {
		if i >= len(asked) || asked[i] != want {
			t.Errorf("asked %+v, want %+v", asked, want)
			break
		}
	}
}

// linkAgent is an agent that speaks N-PAMP itself and notes what it is sent.
type linkAgent struct {
	t     *testing.T
	seen  chan carriage.Call
	serve func(r *carriage.Request)
	lie   func(p *carriage.Protocol) // nil: it keeps to the protocol
}

func (l *linkAgent) ServeRequest(r *carriage.Request) {
	c := carriage.Call{Method: string(r.Method()), Foreign: bytes.Clone(r.Foreign()), Natural: bytes.Clone(r.Corr())}
	if label, ok := r.Label(); ok {
		label.Scope = bytes.Clone(label.Scope)
		c.Label = &label
	}
	l.seen <- c
	l.serve(r)
}

func (l *linkAgent) ServeNotify(n *carriage.Notify) {
	c := carriage.Call{Method: string(n.Method()), Foreign: bytes.Clone(n.Foreign())}
	if label, ok := n.Label(); ok {
		c.Label = &bridge.Label{Effect: label.Effect}
	}
	l.seen <- c
}

func (l *linkAgent) start(t *testing.T, r *Relay, name string, key identity.PrivateKey) *engine.Association {
	t.Helper()
	protocol := a2a.Protocol(l)
	if l.lie != nil {
		l.lie(&protocol)
	}
	b := carriage.New(carriage.Config{Protocols: []carriage.Protocol{protocol}})
	d := discovery.New(discovery.Config{})
	e, err := engine.New(engine.Config{Transport: engine.TransportTCP, Loops: 1, Identity: key, Protocols: b.Protocols(), Channels: []engine.ChannelHandler{b, d}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		_ = e.Shutdown(ctx)
	})
	a, err := e.Dial(t.Context(), r.Addr().String(), engine.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	announce(t, d, a, "r", name, 1)
	return a
}

func announce(t *testing.T, d *discovery.Discovery, a *engine.Association, id, name string, revision uint64) {
	t.Helper()
	err := d.Announce(t.Context(), a, disco.Record{
		ID: []byte(id), Kind: disco.KindAgent, Revision: revision,
		Agent: disco.AgentBody{AgentID: []byte(name), Protocols: disco.ListOf(bridge.ProtocolA2A)},
	})
	if err != nil {
		t.Fatal(err)
	}
	// Answered after what came before it was handled.
	if _, err := d.Query(t.Context(), a, disco.Filter{}); err != nil {
		t.Fatal(err)
	}
}

// D10, D15: the relay's hop has correlation ids of its own and leaves the foreign
// octets and the label alone; a missing one stays missing.
func TestLabelsCrossAndCorrelationsDoNot(t *testing.T) {
	r := startRelay(t, Config{})
	l := &linkAgent{t: t, seen: make(chan carriage.Call, 16), serve: func(r *carriage.Request) {
		_ = r.Respond([]byte(`{"jsonrpc":"2.0","id":7,"result":null}`))
	}}
	l.start(t, r, "a", nil)
	c := dial(t, r, "a")
	const request = `{"jsonrpc":"2.0","id":7,"method":"message/send"}`
	const notification = `{"jsonrpc":"2.0","method":"message/send"}`
	for name, call := range map[string]carriage.Call{
		"no label":     {NoLabel: true},
		"read_only":    {Label: &bridge.Label{Effect: bridge.ReadOnly}},
		"with a scope": {Label: &bridge.Label{Effect: bridge.Destructive, Scope: []byte("tasks/7 \xff")}},
	} {
		call.Foreign = []byte(request)
		want := call.Label
		if reply := c.call(&call); reply.Err != nil {
			t.Fatalf("%s: %v", name, reply.Err)
		}
		got := <-l.seen
		if got.Method != "message/send" || string(got.Foreign) != request || string(got.Natural) == "7" || !bytes.HasPrefix(got.Natural, []byte("7\x00")) {
			t.Errorf("%s: %+v", name, got)
		}
		if (got.Label == nil) != (want == nil) || (want != nil && (got.Label.Effect != want.Effect || !bytes.Equal(got.Label.Scope, want.Scope))) {
			t.Errorf("%s: label %+v, want %+v", name, got.Label, want)
		}
		call = carriage.Call{Protocol: bridge.ProtocolA2A, Foreign: []byte(notification), Label: want, NoLabel: want == nil}
		if err := c.bridge.Notify(t.Context(), c.assoc, &call); err != nil {
			t.Fatal(err)
		}
		if got := <-l.seen; string(got.Foreign) != notification || (got.Label == nil) != (want == nil) {
			t.Errorf("%s: notification %+v", name, got)
		}
	}
	// An HTTP caller's is always labelled.
	post(t, r, "a", request).want(t, 200, "result")
	if got := <-l.seen; got.Label == nil || got.Label.Effect != bridge.NonIdempotentWrite || !bytes.HasPrefix(got.Natural, []byte("7\x00")) {
		t.Errorf("%+v", got)
	}
	post(t, r, "a", `{"jsonrpc":"2.0","id":7,"method":"tasks/frobnicate"}`).want(t, 200, "result")
	if got := <-l.seen; got.Label == nil || got.Label.Effect != bridge.Destructive {
		t.Errorf("%+v", got)
	}
}

// Transport errors of the far side keep their codes across both hops (BRIDGE 6).
func TestTransportErrorsKeepTheirCodes(t *testing.T) {
	r := startRelay(t, Config{})
	var code atomic.Uint32
	l := &linkAgent{t: t, seen: make(chan carriage.Call, 64), serve: func(r *carriage.Request) {
		_ = r.Refuse(bridge.Code(code.Load()), "because")
	}}
	l.start(t, r, "a", nil)
	c := dial(t, r, "a")
	const request = `{"jsonrpc":"2.0","id":7,"method":"message/send"}`
	for known, status := range map[bridge.Code]int{
		bridge.CodeEnvelopeMalformed: 400, bridge.CodeProtocolUnsupported: 501, bridge.CodeMethodUnsupported: 501, bridge.CodeNotDelivered: 502,
		bridge.CodeSafetyPolicy: 403, bridge.CodeNotResumable: 502, bridge.CodeSetIncomplete: 502,
	} {
		code.Store(uint32(known))
		c.wantRefused(c.send(request), known, "because")
		post(t, r, "a", request).want(t, status, fmt.Sprintf(`"detail":"because","code":%d,"name":%q`, known, known.String()))
	}
}

// A far side that answers with no reply to the request.
func TestMalformedReplyOfAnAgent(t *testing.T) {
	r := startRelay(t, Config{})
	l := &linkAgent{t: t, seen: make(chan carriage.Call, 64)}
	l.serve = func(r *carriage.Request) { _ = r.Respond([]byte(`{"jsonrpc":"2.0","id":8,"result":null}`)) }
	l.start(t, r, "a", nil)
	// The agent's own side refuses to send it.
	post(t, r, "a", `{"jsonrpc":"2.0","id":7,"method":"message/send"}`).want(t, 502, "NotDelivered")
}

// link is a TCP proxy whose connections can be cut, which is what a killed
// process looks like from outside.
type link struct {
	l     net.Listener
	to    string
	mu    sync.Mutex
	conns []net.Conn
	wg    sync.WaitGroup
}

func newLink(t *testing.T, to string) *link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &link{l: l, to: to}
	k.wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			k.mu.Lock()
			k.conns = append(k.conns, in, out)
			k.mu.Unlock()
			k.wg.Go(func() { _, _ = io.Copy(in, out); in.Close() })
			k.wg.Go(func() { _, _ = io.Copy(out, in); out.Close() })
		}
	})
	t.Cleanup(func() {
		l.Close()
		k.cut()
		k.wg.Wait()
	})
	return k
}

func (k *link) addr() string { return k.l.Addr().String() }

func (k *link) cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		c.Close()
	}
	k.conns = nil
}

// The agent dies with requests under way: every caller, on either side, has a
// definite answer within a second, none of them a success; and starting the
// agent again is all it takes.
func TestAgentDiesWithRequestsUnderWay(t *testing.T) {
	const callers = 40
	r := startRelay(t, Config{})
	k := newLink(t, r.Addr().String())
	var inside atomic.Int32
	hold := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		id := idOf(t, read(t, req))
		inside.Add(1)
		select {
		case <-hold:
		case <-req.Context().Done():
			return
		}
		respond(w, 200, `{"jsonrpc":"2.0","id":`+id+`,"result":"late"}`)
	}))
	defer server.Close()
	client, err := upstream.New(upstream.Config{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_, ready, _ := runAgent(t, AgentConfig{Name: "a", Relay: k.addr(), Backend: client})
	<-ready
	c := dial(t, r, "a")
	var wg sync.WaitGroup
	var killed atomic.Int64
	took := make([]time.Duration, 2*callers)
	for i := range callers {
		request := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"message/send"}`, i)
		wg.Go(func() {
			post(t, r, "a", request).want(t, 502, "outcome unknown")
			took[2*i] = time.Since(time.Unix(0, killed.Load()))
		})
		wg.Go(func() {
			c.wantRefused(c.send(request), bridge.CodeNotDelivered, "outcome unknown")
			took[2*i+1] = time.Since(time.Unix(0, killed.Load()))
		})
	}
	eventually(t, "all requests are with the agent", func() bool { return inside.Load() == 2*callers })
	killed.Store(time.Now().UnixNano())
	k.cut()
	wg.Wait()
	if longest := slices.Max(took); longest > time.Second {
		t.Errorf("the last caller was told after %v", longest)
	}
	close(hold)
	<-ready // it came back by itself
	post(t, r, "a", `{"jsonrpc":"2.0","id":1,"method":"message/send"}`).want(t, 200, "late")
	if reply := c.send(`{"jsonrpc":"2.0","id":1,"method":"message/send"}`); reply.Err != nil {
		t.Error(reply.Err)
	}
}

// D22: a record of the same key replaces; another key's is refused while the
// first lives, and not afterwards.
func TestNamesBelongToKeys(t *testing.T) {
	r := startRelay(t, Config{})
	key := newKey(t)
	who := func(name string) *linkAgent {
		return &linkAgent{t: t, seen: make(chan carriage.Call, 64), serve: func(r *carriage.Request) {
			_ = r.Respond([]byte(`{"jsonrpc":"2.0","id":7,"result":"` + name + `"}`))
		}}
	}
	const request = `{"jsonrpc":"2.0","id":7,"method":"message/send"}`
	first := who("first").start(t, r, "a", key)
	post(t, r, "a", request).want(t, 200, "first")
	stranger := who("stranger").start(t, r, "a", nil)
	post(t, r, "a", request).want(t, 200, "first")
	second := who("second").start(t, r, "a", key)
	post(t, r, "a", request).want(t, 200, "second")
	first.Close(0, "")
	<-first.Done()
	post(t, r, "a", request).want(t, 200, "second")
	second.Close(0, "")
	eventually(t, "the name is free", func() bool { return len(r.Agents()) == 0 })
	post(t, r, "a", request).want(t, 404, "NotDelivered")
	stranger.Close(0, "")
	who("another").start(t, r, "a", nil)
	post(t, r, "a", request).want(t, 200, "another")
	if s := r.Stats(); s.Agents != 1 || s.Discovery.Refused != 1 {
		t.Errorf("%+v", s)
	}
}

// An Agent whose name is taken goes on trying, and gets it once it is free.
func TestAgentWaitsForItsName(t *testing.T) {
	r := startRelay(t, Config{})
	_, stopFirst := startAgent(t, AgentConfig{Name: "a", Relay: r.Addr().String(), Backend: Echo()})
	_, ready, _ := runAgent(t, AgentConfig{Name: "a", Relay: r.Addr().String(), Backend: Echo(), BackoffMin: 5 * time.Millisecond, BackoffMax: 20 * time.Millisecond})
	eventually(t, "it was refused twice", func() bool { return r.Stats().Discovery.Refused >= 2 })
	select {
	case s := <-ready:
		t.Fatalf("ready under a name that another key holds: %+v", s)
	default:
	}
	stopFirst()
	if s := <-ready; s.Agent != "a" || !s.Peer.Equal(r.Key()) || s.Addr.String() != r.Addr().String() {
		t.Errorf("%+v", s)
	}
	post(t, r, "a", sendText("1", "hi")).want(t, 200, "hi")
}

// One association may have several names, and a record that changes its name
// frees the old one.
func TestRecordsOfOneAssociation(t *testing.T) {
	r := startRelay(t, Config{MaxNames: 3, MaxAgents: 3})
	(&linkAgent{t: t}).start(t, r, "one", nil)
	c := dial(t, r, "")
	announce(t, c.disco, c.assoc, "1", "two", 1)
	announce(t, c.disco, c.assoc, "2", "three", 1)
	announce(t, c.disco, c.assoc, "3", "four", 1) // the fourth agent
	announce(t, c.disco, c.assoc, "4", "Not A Name", 1)
	names := func() string {
		n := r.Agents()
		slices.Sort(n)
		return strings.Join(n, " ")
	}
	if got := names(); got != "one three two" {
		t.Errorf("agents %q", got)
	}
	announce(t, c.disco, c.assoc, "1", "two-b", 2) // there is no room for it while "two" is held
	announce(t, c.disco, c.assoc, "2", "two", 2)   // the same key: replaces, and "three" is free
	if got := names(); got != "one two" {
		t.Errorf("agents %q", got)
	}
	announce(t, c.disco, c.assoc, "2", "five", 3)
	if got := names(); got != "five one" {
		t.Errorf("agents %q", got)
	}
	if s := r.Stats(); s.Agents != 2 {
		t.Errorf("%+v", s)
	}
	c.assoc.Close(0, "")
	eventually(t, "its names are free", func() bool { return names() == "one" && r.Stats().Agents == 1 })
	r.routes.mu.Lock()
	if n := len(r.routes.names); n != 1 {
		t.Errorf("%d associations are remembered", n)
	}
	r.routes.mu.Unlock()
}

// DISC 10: a peer is told of agents as far as it may know of them, and always of
// its own as it announced them.
func TestWhatDiscoveryTells(t *testing.T) {
	secret := newKey(t)
	r := startRelay(t, Config{Visible: func(_ identity.PublicKey, agent string) bool { return agent != "hidden" }})
	(&linkAgent{t: t, seen: make(chan carriage.Call, 1)}).start(t, r, "hidden", secret)
	(&linkAgent{t: t, seen: make(chan carriage.Call, 1)}).start(t, r, "shown", nil)
	c := dial(t, r, "")
	announce(t, c.disco, c.assoc, "mine", "own", 3)
	tell := func() string {
		records, err := c.disco.Query(t.Context(), c.assoc, disco.Filter{Kinds: disco.ListOf(disco.KindAgent)})
		if err != nil {
			t.Fatal(err)
		}
		var told []string
		for _, rec := range records {
			id := "other"
			if string(rec.ID) == "mine" {
				id = "mine"
			}
			told = append(told, fmt.Sprintf("%s:%s", id, rec.Agent.AgentID))
		}
		slices.Sort(told)
		return strings.Join(told, " ")
	}
	if got := tell(); got != "mine:own other:shown" {
		t.Errorf("told %q", got)
	}
	records, err := c.disco.Query(t.Context(), c.assoc, disco.Filter{Kinds: disco.ListOf(disco.KindProtocol)})
	if err != nil || len(records) != 1 || records[0].Protocol.ProtocolID != 2 {
		t.Errorf("%+v, %v", records, err)
	}
}

// Agents and callers come and go while others are served.
func TestComingsAndGoings(t *testing.T) {
	r := startRelay(t, Config{})
	stop := make(chan struct{})
	var wg, agents sync.WaitGroup
	for i := range 3 {
		name := fmt.Sprintf("a%d", i)
		key := newKey(t)
		agents.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				a, err := NewAgent(AgentConfig{Name: name, Relay: r.Addr().String(), Backend: Echo(), Engine: engine.Config{Transport: engine.TransportTCP, Identity: key}})
				if err != nil {
					t.Error(err)
					return
				}
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error, 1)
				go func() { done <- a.Run(ctx) }()
				timer := time.NewTimer(time.Duration(rand.IntN(100)) * time.Millisecond)
				select {
				case <-timer.C:
				case <-stop:
				}
				timer.Stop()
				if rand.IntN(2) == 0 {
					cancel()
				} else if err := a.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
				<-done
				cancel()
			}
		})
	}
	var ok, other atomic.Int32
	for i := range 8 {
		wg.Go(func() {
			for n := range 60 {
				name := fmt.Sprintf("a%d", (i+n)%3)
				switch a := post(t, r, name, sendText("1", "hi")); {
				case a.status == 200 && strings.Contains(a.body, `"hi"`):
					ok.Add(1)
				case a.status == 404 || a.status == 502 || a.status == 503:
					other.Add(1)
				default:
					t.Errorf("%d %s", a.status, a.body)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	agents.Wait()
	t.Logf("%d answered, %d definitely not", ok.Load(), other.Load())
	if ok.Load() == 0 {
		t.Error("nobody was ever answered")
	}
	eventually(t, "all names are free", func() bool { return r.Stats().Agents == 0 })
}

// L27: readiness fails at once, what is under way is answered, what is new is
// refused.
func TestGracefulShutdown(t *testing.T) {
	r := startRelay(t, Config{})
	inside, release := make(chan struct{}, 2), make(chan struct{})
	startHTTP(t, r, "a", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		id := idOf(t, read(t, req))
		inside <- struct{}{}
		<-release
		respond(w, 200, `{"jsonrpc":"2.0","id":`+id+`,"result":"done"}`)
	}))
	const request = `{"jsonrpc":"2.0","id":7,"method":"message/send"}`
	c := dial(t, r, "a")
	var wg sync.WaitGroup
	wg.Go(func() { post(t, r, "a", request).want(t, 200, "done") })
	wg.Go(func() {
		if reply := c.send(request); reply.Err != nil {
			t.Errorf("the link's caller: %v", reply.Err)
		}
	})
	<-inside
	<-inside
	health := "http://" + r.HTTPAddr().String() + "/healthz"
	do(t, "GET", health, "", nil).want(t, 200, "ready")
	shut := make(chan error, 1)
	go func() { shut <- r.Shutdown(t.Context()) }()
	eventually(t, "readiness fails", func() bool { return do(t, "GET", health, "", nil).status == 503 })
	post(t, r, "a", request).want(t, 503, textDraining)
	c.wantRefused(c.send(`{"jsonrpc":"2.0","id":8,"method":"message/send"}`), bridge.CodeNotDelivered, textDraining)
	if err := r.Wait(); err != nil {
		t.Error(err)
	}
	close(release)
	wg.Wait()
	if err := <-shut; err != nil {
		t.Error(err)
	}
	if err := r.Start(t.Context()); !errors.Is(err, ErrStopped) {
		t.Errorf("started again: %v", err)
	}
}

// L27: a deadline cuts what won't end, and its callers are told.
func TestShutdownDeadline(t *testing.T) {
	r := startRelay(t, Config{Demo: true})
	inside := make(chan struct{}, 2)
	hold := make(chan struct{})
	defer close(hold)
	startHTTP(t, r, "a", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_ = read(t, req)
		inside <- struct{}{}
		select {
		case <-hold:
		case <-req.Context().Done():
		}
	}))
	const request = `{"jsonrpc":"2.0","id":7,"method":"message/send"}`
	c := dial(t, r, "a")
	var wg sync.WaitGroup
	wg.Go(func() { post(t, r, "a", request).want(t, 502, "outcome unknown") })
	wg.Go(func() {
		if reply := c.send(request); reply.Err == nil {
			t.Errorf("the link's caller got %q", reply.Foreign)
		}
	})
	<-inside
	<-inside
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	wg.Wait()
}

// An agent that is shut down answers what it has before it leaves.
func TestAgentShutdown(t *testing.T) {
	r := startRelay(t, Config{})
	inside, release := make(chan struct{}), make(chan struct{})
	a, _ := startHTTP(t, r, "a", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		id := idOf(t, read(t, req))
		if id == "7" {
			close(inside)
			<-release
		}
		respond(w, 200, `{"jsonrpc":"2.0","id":`+id+`,"result":"done"}`)
	}))
	const request = `{"jsonrpc":"2.0","id":7,"method":"message/send"}`
	var wg sync.WaitGroup
	wg.Go(func() { post(t, r, "a", request).want(t, 200, "done") })
	<-inside
	shut := make(chan error, 1)
	go func() { shut <- a.Shutdown(t.Context()) }()
	eventually(t, "new requests are refused", func() bool {
		return post(t, r, "a", `{"jsonrpc":"2.0","id":8,"method":"message/send"}`).status == 502
	})
	close(release)
	wg.Wait()
	if err := <-shut; err != nil {
		t.Error(err)
	}
	post(t, r, "a", request).want(t, 404, "NotDelivered")
	if err := a.Run(t.Context()); !errors.Is(err, ErrStarted) {
		t.Errorf("run again: %v", err)
	}
}

// A backend that ignores its contexts does not hold up a shutdown for ever.
func TestAgentLeavesAStuckBackendBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := NewAgent(AgentConfig{Name: "a", Relay: "127.0.0.1:1", Backend: Echo()})
		if err != nil {
			t.Fatal(err)
		}
		if err := a.serving.Enter(); err != nil { // and never leaves
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		_ = a.Shutdown(ctx)
		if d := time.Since(began); d != backendGrace || a.work.Err() == nil {
			t.Errorf("after %v; given up: %v", d, a.work.Err())
		}
	})
}

func TestAgentRunEndsWithItsContext(t *testing.T) {
	r := startRelay(t, Config{})
	a, err := NewAgent(AgentConfig{Name: "a", Relay: r.Addr().String(), Backend: Echo(), Engine: engine.Config{Transport: engine.TransportTCP}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	eventually(t, "the agent is there", func() bool { return len(r.Agents()) == 1 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if err := a.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	b, err := NewAgent(AgentConfig{Name: "a", Relay: r.Addr().String(), Backend: Echo()})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := b.Run(t.Context()); !errors.Is(err, ErrStopped) {
		t.Errorf("run after a shutdown: %v", err)
	}
}

// A body over what a frame carries is refused with 413, not cut (L11).
func TestMessagesOverTheFrameLimit(t *testing.T) {
	r := startRelay(t, Config{Engine: engine.Config{Limits: engine.Limits{MaxFrame: 1 << 20}}, Edge: edge.Config{MaxBody: 8 << 20}})
	startHTTP(t, r, "a", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body := read(t, req)
		respond(w, 200, `{"jsonrpc":"2.0","id":7,"result":`+fmt.Sprint(len(body))+`,"pad":"`+strings.Repeat("y", len(body))+`"}`)
	}))
	request := func(n int) string {
		return `{"jsonrpc":"2.0","id":7,"method":"message/send","pad":"` + strings.Repeat("x", n) + `"}`
	}
	post(t, r, "a", request(900<<10)).want(t, 200, `"result":`)
	post(t, r, "a", request(5<<20)).want(t, 413, "larger")
	post(t, r, "a", request(9<<20)).want(t, 413, "limit")
	// The answer is too large for the relay: a definite error, no cut success.
	post(t, r, "a", request(1100<<10)).want(t, 502, "NotDelivered")
}

// L11: with the limits raised on all hops, a message of 12 MiB crosses whole,
// both ways.
func TestLargeMessagesCrossWhole(t *testing.T) {
	limits := engine.Limits{MaxFrame: 16 << 20, Outbound: 32 << 20}
	r := startRelay(t, Config{Engine: engine.Config{Limits: limits}, Edge: edge.Config{MaxBody: 13 << 20}})
	pad := strings.Repeat("0123456789abcdef", 12<<20/16)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body := read(t, req)
		respond(w, 200, `{"jsonrpc":"2.0","id":7,"result":`+body+`}`)
	}))
	defer server.Close()
	client, err := upstream.New(upstream.Config{URL: server.URL, MaxReply: 14 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	startAgent(t, AgentConfig{Name: "a", Relay: r.Addr().String(), Backend: client, Engine: engine.Config{Limits: limits}})
	request := `{"jsonrpc":"2.0","id":7,"method":"message/send","params":"` + pad + `"}`
	if a := post(t, r, "a", request); a.status != 200 || a.body != `{"jsonrpc":"2.0","id":7,"result":`+request+`}` {
		t.Errorf("%d with %d octets: %.200s", a.status, len(a.body), a.body)
	}
}

func TestDemoAgent(t *testing.T) {
	allowed := newKey(t)
	r := startRelay(t, Config{Demo: true, Engine: engine.Config{Peers: identity.Pin(allowed.Public())}})
	a := post(t, r, "echo", sendText(`"é\u00e9"`, "hello <b>&"))
	a.want(t, 200, `"text":"hello \u003cb\u003e\u0026"`)
	if idOf(t, a.body) != `"é\u00e9"` {
		t.Errorf("%s", a.body)
	}
	task := a.body[strings.LastIndex(a.body[:strings.Index(a.body, `"kind":"task"`)], `"id":"`)+6:]
	task = task[:strings.IndexByte(task, '"')]
	post(t, r, "echo", `{"jsonrpc":"2.0","id":2,"method":"tasks/get","params":{"id":"`+task+`"}}`).want(t, 200, `"state":"completed"`)
	post(t, r, "echo", `{"jsonrpc":"2.0","id":2,"method":"GetTask","params":{"id":"`+task+`"}}`).want(t, 200, `TASK_STATE_COMPLETED`)
	post(t, r, "echo", `{"jsonrpc":"2.0","id":2,"method":"SendMessage","params":{"message":{"messageId":"a","role":"ROLE_USER","parts":[{"text":"hi"},{"text":"!"}]}}}`).want(t, 200, `"text":"hi!"`)
	for _, c := range []struct{ request, code string }{
		{`"method":"tasks/get","params":{"id":"none"}`, "-32001"},
		{`"method":"tasks/get"`, "-32001"},
		{`"method":"tasks/cancel","params":{"id":"` + task + `"}`, "-32002"},
		{`"method":"CancelTask","params":{"id":"none"}`, "-32001"},
		{`"method":"message/send","params":{}`, "-32602"},
		{`"method":"message/send"`, "-32602"},
		{`"method":"tasks/frobnicate"`, "-32601"},
		{`"method":"tasks/pushNotificationConfig/get"`, "-32004"},
		{`"method":"agent/getAuthenticatedExtendedCard"`, "-32007"},
	} {
		post(t, r, "echo", `{"jsonrpc":"2.0","id":2,`+c.request+`}`).want(t, 200, `"code":`+c.code)
	}
	// L10: what is nested more deeply than it reads is an error of its own that says so,
	// and not that something is missing.
	deep := strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)
	for _, method := range []string{"message/send", "message/stream", "tasks/get", "SendMessage", "SubscribeToTask"} {
		a := post(t, r, "echo", `{"jsonrpc":"2.0","id":2,"method":"`+method+`","params":{"id":"`+task+`","message":{"parts":[{"text":"x"}]},"m":`+deep+`}}`)
		if a.want(t, 200, `"code":-32602`); !strings.Contains(a.body, "nested too deeply") {
			t.Errorf("%s: %s", method, a.body)
		}
	}
	post(t, r, "echo", `{"jsonrpc":"2.0","id":2,"method":"m","params":`+deep+`}`).want(t, 200, `"code":-32601`)
	for _, path := range []string{"/.well-known/agent-card.json", "/.well-known/agent.json"} {
		if a := do(t, "GET", agentURL(r, "echo")+path, "", nil); a.status != 200 || a.body != echoCard {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	do(t, "GET", agentURL(r, "echo")+"/extendedAgentCard", "", nil).want(t, 502, "in place of the card")
	if a := post(t, r, "echo", `{"jsonrpc":"2.0","method":"notifications/initialized"}`); a.status != 202 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestEchoRemembersSoMuch(t *testing.T) {
	e := Echo().(*echo)
	for range maxEchoTasks + 10 {
		e.remember(echoTask{id: fmt.Sprint(len(e.order), rand.Int()), text: "x"})
	}
	e.remember(echoTask{id: "large", text: strings.Repeat("x", maxEchoText+1)})
	if len(e.tasks) != maxEchoTasks || len(e.order) != maxEchoTasks {
		t.Errorf("%d tasks, %d in order", len(e.tasks), len(e.order))
	}
}

// A listener beyond loopback must be asked for, with authentication or by name.
func TestOpenHTTPIsRefused(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want error
	}{
		{Config{HTTP: "0.0.0.0:0"}, ErrOpenHTTP},
		{Config{HTTP: "[::]:0"}, ErrOpenHTTP},
		{Config{HTTP: ":0"}, ErrOpenHTTP},
		{Config{HTTP: "0.0.0.0:0", AllowOpenHTTP: true}, nil},
		{Config{HTTP: "0.0.0.0:0", Edge: edge.Config{Authenticate: func(*http.Request) (string, error) { return "", nil }}}, nil},
		{Config{HTTP: "127.0.0.1:0"}, nil},
		{Config{HTTP: "127.0.0.1:0", Listen: "300.1.1.1:1"}, errAny},
		{Config{HTTP: "127.0.0.1:0", Listen: "0.0.0.0:0"}, engine.ErrRawRemote},
	} {
		c.cfg.Engine.Transport, c.cfg.Engine.Loops = engine.TransportTCP, 1
		if c.cfg.Listen == "" {
			c.cfg.Listen = "127.0.0.1:0"
		}
		r, err := New(c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		err = r.Start(t.Context())
		if !errors.Is(err, c.want) && (c.want != errAny || err == nil) {
			t.Errorf("%s: %v, want %v", c.cfg.HTTP, err, c.want)
		}
		if err == nil && r.Start(t.Context()) != ErrStarted {
			t.Error("started twice")
		}
		if err := r.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Shutdown in the middle of Start leaves nothing behind.
func TestShutdownDuringStart(t *testing.T) {
	for range 20 {
		r, err := New(Config{Listen: "127.0.0.1:0", HTTP: "127.0.0.1:0", Demo: true, Engine: engine.Config{Transport: engine.TransportTCP, Loops: 1}})
		if err != nil {
			t.Fatal(err)
		}
		started := make(chan error, 1)
		go func() { started <- r.Start(t.Context()) }()
		if rand.IntN(2) == 0 {
			<-time.After(time.Duration(rand.IntN(5)) * time.Millisecond)
		}
		if err := r.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-started; err != nil && !errors.Is(err, ErrStopped) && !errors.Is(err, context.Canceled) {
			t.Errorf("start: %v", err)
		}
	}
}

var errAny = errors.New("any error")

func TestHTTPConnectionsAreBounded(t *testing.T) {
	r := startRelay(t, Config{MaxHTTPConns: 1})
	first, err := net.Dial("tcp", r.HTTPAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(first, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 12)
	if _, err := io.ReadFull(first, b); err != nil || string(b) != "HTTP/1.1 200" {
		t.Fatalf("%q, %v", b, err)
	}
	served := make(chan answerOf, 1)
	go func() { served <- do(t, "GET", "http://"+r.HTTPAddr().String()+"/healthz", "", nil) }()
	select {
	case <-served:
		t.Error("a second connection was served beside the first")
	case <-time.After(50 * time.Millisecond):
	}
	first.Close()
	if a := <-served; a.status != 200 {
		t.Errorf("%d", a.status)
	}
}

func TestBackoffGrowsAndIsCutAtRandom(t *testing.T) {
	b := backoff{min: 100 * time.Millisecond, max: time.Second}
	for range 3 {
		for _, want := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
			want *= time.Millisecond
			if d := b.wait(); d > want || d < want/2 {
				t.Errorf("waits %v, want %v to %v", d, want/2, want)
			}
		}
		b.reset()
	}
	seen := map[time.Duration]bool{}
	for range 32 {
		b.reset()
		seen[b.wait()] = true
	}
	if len(seen) < 2 {
		t.Error("always the same wait")
	}
}

func TestAgentConfigurationIsChecked(t *testing.T) {
	for _, name := range []string{"", "Echo", "a b", strings.Repeat("a", 65)} {
		if _, err := NewAgent(AgentConfig{Name: name, Relay: "127.0.0.1:1", Backend: Echo()}); !errors.Is(err, ErrName) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := NewAgent(AgentConfig{Name: "a", Backend: Echo()}); err == nil {
		t.Error("no relay")
	}
	if _, err := NewAgent(AgentConfig{Name: "a", Relay: "127.0.0.1:1"}); err == nil {
		t.Error("no backend")
	}
}

// BenchmarkForward is one unary request of an N-PAMP caller through the relay to
// an N-PAMP agent and back, over loopback, many under way at a time.
func BenchmarkForward(b *testing.B) {
	r, err := New(Config{Listen: "127.0.0.1:0", Engine: engine.Config{Transport: engine.TransportTCP, Loops: 1}})
	if err != nil {
		b.Fatal(err)
	}
	if err := r.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	defer r.Shutdown(context.Background())
	answer := []byte(`{"jsonrpc":"2.0","id":1,"result":{"pad":"` + strings.Repeat("x", 400) + `"}}`)
	agent := carriage.New(carriage.Config{Protocols: []carriage.Protocol{a2a.Protocol(carriage.HandlerFunc(func(r *carriage.Request) { _ = r.Respond(answer) }))}})
	d := discovery.New(discovery.Config{})
	link := func(agent string, handlers ...engine.ChannelHandler) (*engine.Engine, *engine.Association) {
		e, err := engine.New(engine.Config{Transport: engine.TransportTCP, Loops: 1, Protocols: []uint8{2}, Channels: handlers})
		if err != nil {
			b.Fatal(err)
		}
		a, err := e.Dial(b.Context(), r.Addr().String(), engine.DialOptions{Agent: agent})
		if err != nil {
			b.Fatal(err)
		}
		return e, a
	}
	e, a := link("", agent, d)
	defer e.Shutdown(context.Background())
	err = d.Announce(b.Context(), a, disco.Record{ID: []byte("r"), Kind: disco.KindAgent, Agent: disco.AgentBody{AgentID: []byte("a"), Protocols: disco.ListOf(bridge.ProtocolA2A)}})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := d.Query(b.Context(), a, disco.Filter{}); err != nil {
		b.Fatal(err)
	}
	client := carriage.New(carriage.Config{Protocols: []carriage.Protocol{a2a.Protocol(nil)}})
	e, a = link("a", client)
	defer e.Shutdown(context.Background())
	request := []byte(`{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"pad":"` + strings.Repeat("x", 400) + `"}}`)
	b.ReportAllocs()
	b.SetParallelism(64)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := client.Call(context.Background(), a, &carriage.Call{Protocol: bridge.ProtocolA2A, Foreign: request, Hop: true}); err != nil {
				b.Error(err)
			}
		}
	})
}
