package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/mapping/agntcy"
	"github.com/trestle-npamp/trestle/relay/edge"
	"github.com/trestle-npamp/trestle/relay/upstream"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

var opaqueTags = &bridge.Tags{OpaqueContentType: 0x40, OpaqueContent: 0x70}

func agntcyMapping(t *testing.T, s agntcy.Surface) *agntcy.Mapping {
	t.Helper()
	m, err := agntcy.New(agntcy.Config{ID: 0x10, Surface: s})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// startOperations puts an HTTP agent of AGNTCY's behind an Agent at the relay.
func startOperations(t *testing.T, r *Relay, name string, tags *bridge.Tags, surface agntcy.Surface, cfg upstream.Config, h http.HandlerFunc) {
	t.Helper()
	server := httptest.NewServer(h)
	cfg.URL, cfg.Logger = server.URL+"/base/", testLog(t)
	client, err := upstream.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		server.CloseClientConnections()
		server.Close()
	})
	startAgent(t, AgentConfig{
		Name: name, Relay: r.Addr().String(), Peer: identity.Pin(r.Key()), AGNTCY: agntcyMapping(t, surface), Operations: client, Tags: tags,
	})
}

// opaqueCaller is an N-PAMP caller of an agent, under AGNTCY's id.
func opaqueCaller(t *testing.T, r *Relay, agent string, surface agntcy.Surface, tags *bridge.Tags) (*carriage.Bridge, *engine.Association) {
	t.Helper()
	b := carriage.New(carriage.Config{Protocols: []carriage.Protocol{agntcyMapping(t, surface).Protocol(nil)}, Tags: tags})
	e, err := engine.New(engine.Config{Transport: engine.TransportTCP, Loops: 1, Channels: []engine.ChannelHandler{b}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		_ = e.Shutdown(ctx)
	})
	a, err := e.Dial(t.Context(), r.Addr().String(), engine.DialOptions{Agent: agent})
	if err != nil {
		t.Fatal(err)
	}
	return b, a
}

// CC-OPAQUE 6(1): what leaves the link for HTTP is what came over it, and the other
// way round: any octets under any media type, with the agent's status, for callers
// over HTTP and over N-PAMP.
func TestCCOPAQUE6_OctetsAreEqualEndToEnd(t *testing.T) {
	binary := make([]byte, 70000)
	for i := range binary {
		binary[i] = byte(i * i >> 3)
	}
	type exchange struct {
		verb, path, contentType, body string
		status                        int
		answerType, answer            string
	}
	var now exchange
	var mu sync.Mutex
	agent := func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if got := read(t, r); got != now.body || r.RequestURI != "/base"+now.path || r.Method != now.verb || r.Header.Get("Content-Type") != now.contentType ||
			r.Header.Get("X-Caller") != "" {
			t.Errorf("%s %s %q %.40q, want %+.80v", r.Method, r.RequestURI, r.Header.Get("Content-Type"), got, now)
		}
		w.Header()["Content-Type"] = nil
		if now.answerType != "" {
			w.Header().Set("Content-Type", now.answerType)
		}
		w.WriteHeader(now.status)
		_, _ = io.WriteString(w, now.answer)
	}
	for name, tags := range map[string]*bridge.Tags{"JSON alone": nil, "any type": opaqueTags} {
		t.Run(name, func(t *testing.T) {
			r := startRelay(t, Config{AGNTCY: agntcyMapping(t, agntcy.Both), Tags: tags})
			startOperations(t, r, "acp", tags, agntcy.Both, upstream.Config{}, agent)
			b, a := opaqueCaller(t, r, "acp", agntcy.Both, tags)
			exchanges := []exchange{
				{"POST", "/runs", "application/json", " {\"a\":1.10,\"é\":\"<\\u003c\"}\r\n", 200, "application/json", "[1E+2 ]\n"},
				{"GET", "/runs/a%20b?x=%2F&y=1&&z", "", "", 200, "application/json", "{}"},
				{"GET", "/runs/1?", "", "", 201, "application/json", "\x00not JSON \xff"},
				{"DELETE", "/runs/1", "", "", 204, "", ""},
				{"POST", "/runs/1/cancel", "", "", 202, "", ""},
				{"POST", "/runs", "application/json", "{", 422, "application/json", `"bad"`},
				{"GET", "/runs/2", "", "", 500, "", ""},
				{"PUT", "/a/b:c/@d", "application/json", "{}", 409, "application/json", "{\"code\":4}"},
				{"PATCH", "/threads/1", "application/json", "{}", 200, "application/json", strings.Repeat("x", 1<<20)},
			}
			if tags != nil {
				exchanges = append(exchanges,
					exchange{"POST", "/runs", "application/octet-stream", string(binary), 200, "application/octet-stream", string(binary)},
					exchange{"POST", "/runs", "a/b", "\x00\x40\x00\x03a/b", 200, "a/b", "\x00\x40\x00\x03a/b"},
					exchange{"POST", "/runs", "a/b", "\x00", 404, "text/html; charset=\"utf-8\"", "\x00\x13\x00\x02\x00\x00"},
					exchange{"POST", "/runs", "application/json; charset=utf-8", "{}", 200, "application/json;charset=UTF-8", "{}"},
					exchange{"GET", "/runs/1", "", "", 200, "text/event-stream", "id: 7\r\n: it has no stream\n\n"},
				)
			}
			for _, x := range exchanges {
				mu.Lock()
				now = x
				mu.Unlock()
				header := http.Header{"Content-Type": {x.contentType}, "X-Caller": {"secret"}, "Authorization": {"secret"}}
				if x.contentType == "" {
					header["Content-Type"] = nil
				}
				got := do(t, x.verb, agentURL(r, "acp")+x.path, x.body, header)
				if got.status != x.status || got.body != x.answer || got.header.Get("Content-Type") != x.answerType {
					t.Errorf("%+.80v: %d %v %.40q", x, got.status, got.header, got.body)
				}
				c := carriage.Call{Protocol: 0x10, Method: x.verb + " " + x.path, MediaType: []byte(x.contentType), Foreign: []byte(x.body)}
				reply, err := b.Call(t.Context(), a, &c)
				wantKind := bridge.KindResponse
				if x.status >= 400 {
					wantKind = bridge.KindError
				}
				if err != nil || reply.Kind != wantKind || string(reply.Foreign) != x.answer || string(reply.Method) != fmt.Sprint(x.status) ||
					x.answer != "" && bridge.Declared(reply.Content, reply.MediaType) != x.answerType {
					t.Errorf("%+.80v over N-PAMP: %v %v %.40q, %s, %s", x, err, reply.Kind, reply.Foreign, reply.Method, reply.MediaType)
				}
			}
		})
	}
}

// CC-OPAQUE 4.2, 8(2): what can't be declared does not cross, and its status is told.
func TestCCOPAQUE8_WhatCanNotBeDeclaredIsNotDelivered(t *testing.T) {
	r := startRelay(t, Config{AGNTCY: agntcyMapping(t, agntcy.ACP)})
	startOperations(t, r, "acp", nil, agntcy.ACP, upstream.Config{}, func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/base/runs/")
		at := strings.LastIndexByte(name, '-')
		kind, status := name[:at], name[at+1:]
		if kind != "none" {
			w.Header().Set("Content-Type", strings.ReplaceAll(kind, "_", "/"))
		} else {
			w.Header()["Content-Type"] = nil
		}
		if status == "302" {
			w.Header().Set("Location", "/elsewhere")
		}
		var n int
		_, _ = fmt.Sscan(status, &n)
		w.WriteHeader(n)
		_, _ = io.WriteString(w, "text")
	})
	for path, want := range map[string]string{
		"text_html-502":         "HTTP status 502 with text/html, which can't be carried; outcome unknown",
		"text_html-404":         "HTTP status 404 with text/html, which can't be carried\"",
		"text_plain-200":        "HTTP status 200 with text/plain",
		"none-200":              "HTTP status 200 with an unknown type",
		"application_json-302":  "HTTP status 302: redirects are not followed",
		"text_event-stream-200": "HTTP status 200 with text/event-stream, which can't be carried",
	} {
		do(t, "GET", agentURL(r, "acp")+"/runs/"+path, "", nil).want(t, 502, want)
	}
	for contentType, status := range map[string]int{"text/plain": 415, "application/json; charset=latin1": 415, "": 415} {
		header := http.Header{"Content-Type": {contentType}}
		do(t, "POST", agentURL(r, "acp")+"/runs", "x", header).want(t, status, "application/json")
	}
}

// MAP-AGNTCY 7; D15: an HTTP caller's operations are labelled by what they do, unknown
// ones as destructive, and a policy sees them with their protocol.
func TestMapAGNTCY7_EdgeLabelsOperations(t *testing.T) {
	var mu sync.Mutex
	var asked []Access
	served := 0
	r := startRelay(t, Config{AGNTCY: agntcyMapping(t, agntcy.ACP), Policy: func(a *Access) error {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, *a)
		if a.Effect == bridge.Destructive {
			return errors.New("too dangerous")
		}
		return nil
	}})
	startOperations(t, r, "acp", nil, agntcy.ACP, upstream.Config{}, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		served++
		mu.Unlock()
		respond(w, 200, "{}")
	})
	for _, c := range []struct {
		verb, path string
		effect     bridge.Effect
	}{
		{"GET", "/runs/1", bridge.ReadOnly},
		{"POST", "/runs/search", bridge.ReadOnly},
		{"PATCH", "/threads/1", bridge.IdempotentWrite},
		{"POST", "/runs", bridge.NonIdempotentWrite},
		{"POST", "/runs/stream", bridge.NonIdempotentWrite},
		{"DELETE", "/runs/1", bridge.Destructive},
		{"PUT", "/runs/1", bridge.Destructive},
		{"GET", "/unknown", bridge.Destructive},
	} {
		status, text := 200, "{}"
		if c.effect == bridge.Destructive {
			status, text = 403, "too dangerous"
		}
		do(t, c.verb, agentURL(r, "acp")+c.path, "", nil).want(t, status, text)
		mu.Lock()
		if want := (Access{Agent: "acp", Protocol: 0x10, Method: c.verb + " " + c.path, Effect: c.effect}); len(asked) != 1 || asked[0] != want {
			t.Errorf("asked %+v, want %+v", asked, want)
		}
		asked = nil
		mu.Unlock()
	}
	b, a := opaqueCaller(t, r, "acp", agntcy.ACP, nil)
	reply, err := b.Call(t.Context(), a, &carriage.Call{Protocol: 0x10, Method: "POST /runs", NoLabel: true, Foreign: []byte("{}")})
	if !errors.Is(err, bridge.CodeSafetyPolicy) {
		t.Errorf("without a label: %v, %+v", err, reply)
	}
	mu.Lock()
	defer mu.Unlock()
	if served != 5 || len(asked) != 1 || asked[0].Protocol != 0x10 || asked[0].Effect != bridge.Destructive {
		t.Errorf("served %d, asked %+v", served, asked)
	}
}

// What the edge takes for an operation: a path that all servers read alike, short
// enough for an envelope, under a verb that an agent answers.
func TestWhatIsNoOperation(t *testing.T) {
	r := startRelay(t, Config{AGNTCY: agntcyMapping(t, agntcy.ACP), Demo: true})
	startOperations(t, r, "acp", nil, agntcy.ACP, upstream.Config{}, func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("the agent was asked for %s", r.RequestURI)
	})
	for _, path := range []string{"/runs/", "//runs", "/runs/%2e%2e/threads", "/runs/%2F", "/runs/%00", "/runs/a%5Cb", "/runs/%25", "/r%75ns/1", "/runs/%7E", "/runs;x/1"} {
		do(t, "GET", agentURL(r, "acp")+path, "", nil).want(t, 400, "EnvelopeMalformed")
	}
	do(t, "GET", agentURL(r, "acp")+"/runs/"+strings.Repeat("x", 246), "", nil).want(t, 414, "255 octets")
	for _, verb := range []string{"HEAD", "OPTIONS", "TRACE", "get"} {
		if got := do(t, verb, agentURL(r, "acp")+"/runs/1", "", nil); got.status != 405 || got.header.Get("Allow") != "GET, POST, PUT, PATCH, DELETE" {
			t.Errorf("%s: %+v", verb, got)
		}
	}
	do(t, "GET", agentURL(r, "nobody")+"/runs/1", "", nil).want(t, 404, "no agent")
	do(t, "POST", agentURL(r, "acp")+"/runs", "{}", http.Header{"Content-Encoding": {"gzip"}}).want(t, 415, "compressed")
	// An agent that speaks another protocol.
	do(t, "GET", agentURL(r, "echo")+"/runs/1", "", nil).want(t, 501, "ProtocolUnsupported")
	post(t, r, "acp", sendText("1", "hi")).want(t, 501, "ProtocolUnsupported")
	// And without the protocol there are no such paths.
	r = startRelay(t, Config{Demo: true})
	do(t, "GET", agentURL(r, "echo")+"/runs/1", "", nil).want(t, 404, "nothing is served here")
}

// MAP-AGNTCY 1.2: A2A and MCP are not carried under AGNTCY's id, not through a relay
// either.
func TestMapAGNTCY1_2_RelayRefusesHostedProtocols(t *testing.T) {
	r := startRelay(t, Config{AGNTCY: agntcyMapping(t, agntcy.Both)})
	startOperations(t, r, "x", nil, agntcy.Both, upstream.Config{}, func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("the agent was asked for %s", r.RequestURI)
	})
	b, a := opaqueCaller(t, r, "x", agntcy.Both, nil)
	for _, method := range []string{"message/send", "SendMessage", "tools/call", "lf.a2a.v1.A2AService/SendMessage"} {
		if _, err := b.Call(t.Context(), a, &carriage.Call{Protocol: 0x10, Method: method, Foreign: []byte("{}")}); !errors.Is(err, bridge.CodeMethodUnsupported) {
			t.Errorf("%s: %v", method, err)
		}
	}
	for _, method := range []string{"", "TRACE /runs", "what is this"} {
		if _, err := b.Call(t.Context(), a, &carriage.Call{Protocol: 0x10, Method: method, Foreign: []byte("{}")}); !errors.Is(err, bridge.CodeMethodUnsupported) {
			t.Errorf("%q: %v", method, err)
		}
	}
}

// SLIM's calls and messages reach an HTTP agent as POSTs to their names.
func TestMapAGNTCY5_SLIMReachesAnHTTPAgent(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	r := startRelay(t, Config{AGNTCY: agntcyMapping(t, agntcy.SLIM)})
	startOperations(t, r, "slim", nil, agntcy.SLIM, upstream.Config{}, func(w http.ResponseWriter, r *http.Request) {
		body := read(t, r)
		mu.Lock()
		asked = append(asked, r.Method+" "+r.RequestURI+" "+r.Header.Get("Content-Type")+" "+body)
		mu.Unlock()
		w.Header().Set("Content-Type", "application/grpc+proto")
		if strings.HasSuffix(r.URL.Path, "Fail") {
			w.WriteHeader(500)
		}
		_, _ = io.WriteString(w, "\x0a\x01re")
	})
	b, a := opaqueCaller(t, r, "slim", agntcy.SLIM, nil)
	m := agntcyMapping(t, agntcy.SLIM)
	for method, kind := range map[string]bridge.Kind{"pkg.Service/Call": bridge.KindResponse, "pkg.Service/Fail": bridge.KindError} {
		c, err := m.Request(method, []byte("\x00\x01\xff"))
		if err != nil {
			t.Fatal(err)
		}
		s, err := b.Stream(t.Context(), a, c, nil)
		if err != nil {
			t.Fatal(err)
		}
		e, err := s.Next()
		var failed *carriage.ForeignError
		if errors.As(err, &failed) {
			e = carriage.Event{Kind: bridge.KindError, Content: failed.Content, Foreign: failed.Foreign}
		}
		if e.Kind != kind || e.Content != bridge.ContentProto || string(e.Foreign) != "\x0a\x01re" {
			t.Errorf("%s: %v, %+v", method, err, e)
		}
	}
	c, err := m.OneWay("publish", []byte("\xfe"))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Notify(t.Context(), a, c); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the message", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(asked) == 3 && asked[2] == "POST /base/publish application/grpc+proto \xfe"
	})
	// A call has an answer, so nobody notifies of it.
	if err := b.Notify(t.Context(), a, &carriage.Call{Protocol: 0x10, Method: "pkg.Service/Call"}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Call(t.Context(), a, &carriage.Call{Protocol: 0x10, Method: "unsubscribe"}); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(asked) != 4 || !strings.HasPrefix(asked[3], "POST /base/unsubscribe") {
		t.Errorf("%q", asked)
	}
	do(t, "POST", agentURL(r, "slim")+"/pkg.Service/Call", "", nil).want(t, 404, "nothing is served here")
}

// CC-OPAQUE 7; MAP-AGNTCY 5: an SSE stream goes event by event, or whole under its own
// media type, and one that breaks is no complete one for any caller.
func TestMapAGNTCY5_StreamsOfEvents(t *testing.T) {
	const events = ": hi\n\nid: a\nevent: agent_event\ndata: {\"n\":1}\n\n" + "event: agent_event\rdata: {\rdata: \"n\":2}\rid: b\r\r" + "data: 3\r\n\r\n"
	agent := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		how := r.URL.Query().Get("how")
		_, _ = io.WriteString(w, events)
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		switch how {
		case "breaks":
			panic(http.ErrAbortHandler)
		case "cut":
			_, _ = io.WriteString(w, "data: half")
		case "other":
			_, _ = io.WriteString(w, "event: error\ndata: {}\n\n")
		case "leave":
			<-r.Context().Done()
		}
	}
	for name, tags := range map[string]*bridge.Tags{"events": nil, "whole": opaqueTags} {
		t.Run(name, func(t *testing.T) {
			r := startRelay(t, Config{AGNTCY: agntcyMapping(t, agntcy.ACP), Tags: tags})
			left := make(chan struct{}, 1)
			startOperations(t, r, "acp", tags, agntcy.ACP, upstream.Config{}, func(w http.ResponseWriter, r *http.Request) {
				defer func() {
					if r.URL.Query().Get("how") == "leave" {
						left <- struct{}{}
					}
				}()
				agent(w, r)
			})
			want := "id: 1\nevent: agent_event\ndata: {\"n\":1}\n\nid: 2\nevent: agent_event\ndata: {\ndata: \"n\":2}\n\nid: 3\nevent: agent_event\ndata: 3\n\n"
			tails := map[string]string{"": "", "breaks": "", "cut": "", "other": ""}
			whole := map[string]bool{"": true}
			if tags != nil {
				want, tails["cut"], tails["other"] = events, "data: half", "event: error\ndata: {}\n\n"
				whole["cut"], whole["other"] = true, true // it is all there was
			}
			for how, tail := range tails {
				req, err := http.NewRequestWithContext(t.Context(), "GET", agentURL(r, "acp")+"/runs/1/stream?how="+how, nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := httpClient.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				octets, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" || string(octets) != want+tail || whole[how] != (err == nil) {
					t.Errorf("%q: %d %v, %q, %v, want %q", how, resp.StatusCode, resp.Header, octets, err, want+tail)
				}
			}
			// A caller that leaves is told to the agent by its connection alone.
			ctx, cancel := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, "GET", agentURL(r, "acp")+"/runs/1/stream?how=leave", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := httpClient.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(resp.Body, make([]byte, len(want))); err != nil {
				t.Fatal(err)
			}
			cancel()
			resp.Body.Close()
			select {
			case <-left:
			case <-time.After(limit):
				t.Fatal("the agent goes on")
			}
			// Over N-PAMP: the payload, and what ended it.
			b, a := opaqueCaller(t, r, "acp", agntcy.ACP, tags)
			for how, tail := range tails {
				s, err := b.Stream(t.Context(), a, &carriage.Call{Protocol: 0x10, Method: "GET /runs/1/stream?how=" + how}, nil)
				if err != nil {
					t.Fatal(err)
				}
				payload := s.Payload()
				octets, err := io.ReadAll(payload)
				wantPayload, declared := "{\"n\":1}{\n\"n\":2}3", "application/json"
				if tags != nil {
					wantPayload, declared = events+tail, "text/event-stream"
				}
				if string(octets) != wantPayload || payload.Declared() != declared || whole[how] != (err == nil) || err != nil && !errors.Is(err, bridge.CodeNotDelivered) {
					t.Errorf("%q: %q as %s, %v", how, octets, payload.Declared(), err)
				}
			}
		})
	}
}

// Long polls last as long as they may and no longer, whatever else the edge does
// about streams meanwhile; an unknown operation keeps its own status.
func TestOperationsHaveTheTimeTheyAreGiven(t *testing.T) {
	release := make(chan struct{})
	var once sync.Once
	t.Cleanup(func() { once.Do(func() { close(release) }) })
	r := startRelay(t, Config{AGNTCY: agntcyMapping(t, agntcy.ACP), Edge: edge.Config{CommitAfter: time.Millisecond, KeepAlive: time.Millisecond}})
	startOperations(t, r, "acp", nil, agntcy.ACP, upstream.Config{}, func(w http.ResponseWriter, r *http.Request) {
		<-release
		respond(w, 409, "\"late\"")
	})
	startOperations(t, r, "never", nil, agntcy.ACP, upstream.Config{Timeout: 500 * time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
	})
	answers := make(chan answerOf, 2)
	for _, path := range []string{"/runs/1/wait", "/unknown/wait"} {
		go func() { answers <- do(t, "GET", agentURL(r, "acp")+path, "", nil) }()
	}
	for _, path := range []string{"/runs/1/wait", "/unknown/wait"} {
		do(t, "GET", agentURL(r, "never")+path, "", nil).want(t, 502, "did not answer in time; outcome unknown")
	}
	once.Do(func() { close(release) })
	for range 2 {
		if a := <-answers; a.status != 409 || a.body != "\"late\"" {
			t.Errorf("%+v", a)
		}
	}
	short := startRelay(t, Config{AGNTCY: agntcyMapping(t, agntcy.ACP), Edge: edge.Config{Timeout: 30 * time.Millisecond}})
	startOperations(t, short, "never", nil, agntcy.ACP, upstream.Config{}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	for _, path := range []string{"/runs/1/wait", "/unknown/wait"} {
		do(t, "GET", agentURL(short, "never")+path, "", nil).want(t, 504, "outcome unknown")
	}
}

// Browsers let any page POST to this machine what a form could send, and nothing at
// all, without asking first: that must not reach an agent. Who is no browser, or a page
// of the edge's own origin, is not in question, and JSON from elsewhere is asked about.
func TestPagesOfOtherOriginsSendNothing(t *testing.T) {
	r := startRelay(t, Config{AGNTCY: agntcyMapping(t, agntcy.ACP), Tags: opaqueTags})
	var reached atomic.Int32
	startOperations(t, r, "acp", opaqueTags, agntcy.ACP, upstream.Config{}, func(w http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		w.WriteHeader(204)
	})
	own := "http://" + r.HTTPAddr().String()
	for _, c := range []struct {
		verb, contentType, body, name, value string
		want                                 int
	}{
		{"POST", "", "", "Sec-Fetch-Site", "cross-site", 403},
		{"POST", "", "", "Sec-Fetch-Site", "same-site", 403},
		{"POST", "", "", "Origin", "https://elsewhere.example", 403},
		{"POST", "", "", "Origin", "null", 403},
		{"POST", "text/plain", "{}", "Sec-Fetch-Site", "cross-site", 403},
		{"POST", "text/plain;application/json", "{}", "Origin", "https://elsewhere.example", 403},
		{"POST", "", "", "Sec-Fetch-Site", "same-origin", 204},
		{"POST", "", "", "Sec-Fetch-Site", "none", 204},
		{"POST", "", "", "Origin", own, 204},
		{"POST", "text/plain", "{}", "Accept", "*/*", 204},
		{"POST", "application/json", "{}", "Origin", "https://elsewhere.example", 204},
		{"OPTIONS", "", "", "Origin", "https://elsewhere.example", 405},
	} {
		request, err := http.NewRequest(c.verb, agentURL(r, "acp")+"/runs/1/cancel", strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		if c.contentType != "" {
			request.Header.Set("Content-Type", c.contentType)
		}
		request.Header.Set(c.name, c.value)
		reached.Store(0)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != c.want || reached.Load() == 1 != (c.want == 204) {
			t.Errorf("%+v: %d, reached the agent %d times", c, answer.StatusCode, reached.Load())
		}
	}
}

// What an agent on the link may get wrong about an HTTP status is no answer.
func TestAnswersWithImpossibleStatuses(t *testing.T) {
	r := startRelay(t, Config{AGNTCY: agntcyMapping(t, agntcy.ACP)})
	var answer func(r *carriage.Request)
	l := &linkAgent{t: t, seen: make(chan carriage.Call, 64), lie: func(p *carriage.Protocol) {
		h := p.Handler
		*p = agntcyMapping(t, agntcy.ACP).Protocol(h)
	}, serve: func(r *carriage.Request) { answer(r) }}
	l.start(t, r, "a", nil)
	for method, want := range map[string]int{"": 200, "201": 201, "404": 502, "99": 502, "ok": 502, "204": 502} {
		for _, path := range []string{"/runs/1", "/unknown"} {
			answer = func(r *carriage.Request) {
				if err := errors.Join(r.Declare(carriage.Declaration{Method: method}), r.Respond([]byte("{}"))); err != nil {
					t.Error(err)
				}
			}
			if got := do(t, "GET", agentURL(r, "a")+path, "", nil); got.status != want {
				t.Errorf("%q: %+v, want %d", method, got, want)
			}
			answer = func(r *carriage.Request) {
				if err := errors.Join(r.Declare(carriage.Declaration{Method: method}), r.Fail([]byte("{}"))); err != nil {
					t.Error(err)
				}
			}
			failed := map[string]int{"": 500, "404": 404}[method]
			if failed == 0 {
				failed = 502
			}
			if got := do(t, "GET", agentURL(r, "a")+path, "", nil); got.status != failed {
				t.Errorf("failed with %q: %+v, want %d", method, got, failed)
			}
		}
	}
}
