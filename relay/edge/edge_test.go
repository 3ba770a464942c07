package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// agent is a Forwarder that a test decides about.
type agent struct {
	call   func(ctx context.Context, m *Message) (*Reply, error)
	notify func(ctx context.Context, m *Message) error
	stream func(ctx context.Context, m *Message) (Stream, error)
}

func (a *agent) Call(ctx context.Context, m *Message) (*Reply, error) { return a.call(ctx, m) }
func (a *agent) Notify(ctx context.Context, m *Message) error         { return a.notify(ctx, m) }
func (a *agent) Stream(ctx context.Context, m *Message) (Stream, error) {
	return a.stream(ctx, m)
}

// echo answers with the request's id and the fields of the message.
func echo(_ context.Context, m *Message) (*Reply, error) {
	return &Reply{Body: fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%q}`, m.ID, m.Effect.String())}, nil
}

func newEdge(t *testing.T, cfg Config) (*Edge, *httptest.Server) {
	t.Helper()
	if cfg.Forwarder == nil {
		cfg.Forwarder = &agent{call: echo, notify: func(context.Context, *Message) error { return nil }}
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(e)
	t.Cleanup(func() {
		s.Close()
		// The server does not wait for connections that were taken over.
		nptest.Eventually(t, func() bool { return e.gate.Inside() == 0 }, func() any {
			return fmt.Sprintf("%d requests are still counted", e.gate.Inside())
		})
		if used := e.budget.Used(); used != 0 {
			t.Errorf("%d octets of bodies are still held", used)
		}
	})
	return e, s
}

type answer struct {
	status int
	header http.Header
	body   string
}

func do(t *testing.T, method, url, contentType, body string) answer {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	return send(t, request)
}

func send(t *testing.T, request *http.Request) answer {
	t.Helper()
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	defer response.Body.Close()
	octets, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, string(octets)}
}

func post(t *testing.T, s *httptest.Server, body string) answer {
	t.Helper()
	return do(t, "POST", s.URL+"/agents/echo", "application/json", body)
}

// wantProblem checks for a problem+json answer.
func (a answer) wantProblem(t *testing.T, status int, code bridge.Code, detail string) {
	t.Helper()
	var p struct {
		Type, Title, Detail, Name string
		Status, Code              int
	}
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.Errorf("status %d, %q: %v", a.status, a.body, err)
		return
	}
	name := ""
	if code != 0 {
		name = code.String()
	}
	if a.status != status || p.Status != status || p.Code != int(code) || p.Name != name || !strings.Contains(p.Detail, detail) ||
		p.Type != "about:blank" || p.Title != http.StatusText(status) || a.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("status %d, %s %s, want %d, %d %s, detail %q", a.status, a.header.Get("Content-Type"), a.body, status, code, name, detail)
	}
}

// L08, L34, D23: what the agent says crosses with status 200, errors included,
// and not an octet changes in either direction.
func TestOctetsAndErrorsCrossWithStatus200(t *testing.T) {
	const sent = " {\"z\":1.10,\"jsonrpc\":\"2.0\", \"params\":{\"h\":\"<b>&\\u003c\\u2028é\",\"x\":1E+2,\"e\":{},\"n\":null},\"id\":\"s\",\"method\":\"message\\/send\"}\r\n"
	const said = `{"error":{"data":[{"retryAfter":5,"n":12345678901234567890}],"message":"","code":-32005},"id":"s","jsonrpc":"2.0"}` + "\n"
	for _, isError := range []bool{false, true} {
		released := 0
		e, s := newEdge(t, Config{Forwarder: &agent{call: func(_ context.Context, m *Message) (*Reply, error) {
			if string(m.Body) != sent || m.Agent != "echo" || string(m.Method) != "message/send" || string(m.ID) != `"s"` || m.Document || m.Effect != bridge.NonIdempotentWrite {
				t.Errorf("forwarded %+v", m)
			}
			return &Reply{Error: isError, Body: []byte(said), Release: func() { released++ }}, nil
		}}})
		a := post(t, s, sent)
		if a.status != 200 || a.body != said || a.header.Get("Content-Type") != "application/json" || a.header.Get("Content-Length") != fmt.Sprint(len(said)) {
			t.Errorf("%d %q %v", a.status, a.body, a.header)
		}
		if released != 1 {
			t.Errorf("the reply was released %d times", released)
		}
		if st := e.Stats(); isError != (st.Errors == 1) || isError != (st.Results == 0) || st.Faults != 0 {
			t.Errorf("%+v", st)
		}
	}
}

// D15: known methods have the mapping's effect, others are destructive; L30:
// both versions' names are carried.
func TestEffectOfWhatIsForwarded(t *testing.T) {
	_, s := newEdge(t, Config{})
	for method, effect := range map[string]string{
		"message/send": "non_idempotent_write", "SendMessage": "non_idempotent_write", "tasks/get": "read_only", "GetTask": "read_only",
		"tasks/pushNotificationConfig/delete": "destructive", "tasks/pushNotificationConfig/set": "idempotent_write",
		"tasks/frobnicate": "destructive", "agent/getAuthenticatedExtendedCard": "read_only",
	} {
		if a := post(t, s, `{"jsonrpc":"2.0","id":1,"method":"`+method+`"}`); a.status != 200 || a.body != `{"jsonrpc":"2.0","id":1,"result":"`+effect+`"}` {
			t.Errorf("%s: %d %s", method, a.status, a.body)
		}
	}
}

// L35: a notification is answered 202 and Content-Length 0.
func TestNotificationGets202(t *testing.T) {
	n := 0
	e, s := newEdge(t, Config{Forwarder: &agent{notify: func(_ context.Context, m *Message) error {
		n++
		if m.ID != nil || string(m.Method) != "notifications/initialized" {
			t.Errorf("forwarded %+v", m)
		}
		return nil
	}}})
	a := post(t, s, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if a.status != 202 || a.body != "" || a.header.Get("Content-Length") != "0" || n != 1 {
		t.Errorf("%d %q %v, forwarded %d times", a.status, a.body, a.header, n)
	}
	if st := e.Stats(); st.Notifications != 1 {
		t.Errorf("%+v", st)
	}
}

// L07, L09, L10: each malformed message is refused by itself, nothing is
// forwarded, and the connection goes on to serve what is right.
func TestMalformedMessagesAreRefused(t *testing.T) {
	forwarded := 0
	_, s := newEdge(t, Config{Forwarder: &agent{call: func(ctx context.Context, m *Message) (*Reply, error) {
		forwarded++
		return echo(ctx, m)
	}}})
	for _, c := range []struct{ body, detail string }{
		{`{"jsonrpc":"2.0","id":1,`, "ends too early"},
		{`[{"jsonrpc":"2.0","id":2,"method":"ping"}]`, "batch"},
		{`{"jsonrpc":"1.0","id":3,"method":"ping"}`, "2.0"},
		{"\xEF\xBB\xBF" + `{"jsonrpc":"2.0","id":"b","method":"ping"}`, "byte order mark"},
		{``, "empty"},
		{`{"jsonrpc":"2.0","id":5,"method":"a","method":"b"}`, "twice"},
		{`{"jsonrpc":"2.0","id":5,"id":6,"method":"a"}`, "twice"},
		{`{"jsonrpc":"2.0","id":5,"result":1}`, "a response is not accepted"},
		{`{"jsonrpc":"2.0","id":5,"error":{}}`, "a response is not accepted"},
		{`{"jsonrpc":"2.0","id":5,"method":"` + strings.Repeat("m", 256) + `"}`, "255 octets"},
		{`{"jsonrpc":"2.0","id":[],"method":"m"}`, "id"},
		{"{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"\xff\"}", "UTF-8"},
	} {
		post(t, s, c.body).wantProblem(t, 400, bridge.CodeEnvelopeMalformed, c.detail)
	}
	if forwarded != 0 {
		t.Errorf("%d of them were forwarded", forwarded)
	}
	if a := post(t, s, `{"jsonrpc":"2.0","id":4,"method":"ping"}`); a.status != 200 {
		t.Errorf("the message after them: %d %s", a.status, a.body)
	}
}

// L36.
func TestContentTypesOfRequests(t *testing.T) {
	_, s := newEdge(t, Config{})
	const ping = `{"jsonrpc":"2.0","id":4,"method":"ping"}`
	for _, field := range []string{"application/json", "application/json; charset=utf-8", "Application/JSON"} {
		if a := do(t, "POST", s.URL+"/agents/echo", field, ping); a.status != 200 {
			t.Errorf("%s: %d %s", field, a.status, a.body)
		}
	}
	for _, field := range []string{"application/x-ndjson", "", "text/event-stream;charset=UTF-8", "application/x-www-form-urlencoded", "application/json; charset=latin1"} {
		do(t, "POST", s.URL+"/agents/echo", field, ping).wantProblem(t, 415, bridge.CodeEnvelopeMalformed, "application/json")
	}
	request, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/agents/echo", strings.NewReader(ping))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Content-Encoding", "gzip")
	send(t, request).wantProblem(t, 415, bridge.CodeEnvelopeMalformed, "compressed")
}

// D23: the status of everything that never reached the agent.
func TestStatusOfFaults(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		code   bridge.Code
		detail string
		retry  string
	}{
		{&bridge.Error{Code: bridge.CodeEnvelopeMalformed, Text: "why"}, 400, bridge.CodeEnvelopeMalformed, "why", ""},
		{&bridge.Error{Code: bridge.CodeProtocolUnsupported}, 501, bridge.CodeProtocolUnsupported, "without a reason", ""},
		{&bridge.Error{Code: bridge.CodeMethodUnsupported, Text: "why"}, 501, bridge.CodeMethodUnsupported, "why", ""},
		{&bridge.Error{Code: bridge.CodeNotDelivered, Text: "why"}, 502, bridge.CodeNotDelivered, "why", ""},
		{&bridge.Error{Code: bridge.CodeSafetyPolicy, Text: "why"}, 403, bridge.CodeSafetyPolicy, "why", ""},
		{&bridge.Error{Code: bridge.CodeNotResumable, Text: "why"}, 502, bridge.CodeNotResumable, "why", ""},
		{&bridge.Error{Code: bridge.CodeDigestMismatch, Text: "why"}, 502, bridge.CodeDigestMismatch, "why", ""},
		{ErrNoAgent, 404, bridge.CodeNotDelivered, "no agent", ""},
		{fmt.Errorf("wrapped: %w", ErrNoAgent), 404, bridge.CodeNotDelivered, "no agent", ""},
		{ErrLost, 502, bridge.CodeNotDelivered, "outcome unknown", ""},
		{ErrBadReply, 502, bridge.CodeEnvelopeMalformed, "outcome unknown", ""},
		{ErrTooLarge, 413, bridge.CodeNotDelivered, "larger", ""},
		{ErrDraining, 503, bridge.CodeNotDelivered, "shutting down", "1"},
		{ErrCut, 502, bridge.CodeNotDelivered, "shutting down; outcome unknown", ""},
		{ErrBusy, 503, bridge.CodeNotDelivered, "capacity", "1"},
		{context.DeadlineExceeded, 504, bridge.CodeNotDelivered, "outcome unknown", ""},
		{errors.New("secret"), 500, 0, "an internal error", ""},
		{&Fault{Status: 418, Text: "tea", RetryAfter: 1500 * time.Millisecond}, 418, 0, "tea", "2"},
	} {
		_, s := newEdge(t, Config{Forwarder: &agent{
			call:   func(context.Context, *Message) (*Reply, error) { return nil, c.err },
			notify: func(context.Context, *Message) error { return c.err },
		}})
		for _, a := range []answer{
			post(t, s, `{"jsonrpc":"2.0","id":1,"method":"message/send"}`),
			post(t, s, `{"jsonrpc":"2.0","method":"message/send"}`),
			do(t, "GET", s.URL+"/agents/echo/.well-known/agent-card.json", "", ""),
		} {
			a.wantProblem(t, c.status, c.code, c.detail)
			if got := a.header.Get("Retry-After"); got != c.retry {
				t.Errorf("%v: Retry-After %q", c.err, got)
			}
			if strings.Contains(a.body, "secret") {
				t.Errorf("told %s", a.body)
			}
		}
	}
}

// L31, L32, D24: cards by GET, octet for octet, from both paths.
func TestCards(t *testing.T) {
	const card = "{ \"url\":\"https:\\u002f\\u002fh\",\"required\":false,\"description\":\"\",\"v\":1.0 }\n"
	_, s := newEdge(t, Config{Forwarder: &agent{call: func(_ context.Context, m *Message) (*Reply, error) {
		if !m.Document || m.ID != nil || len(m.Body) != 0 || m.Effect != bridge.ReadOnly || m.Agent != "echo" {
			t.Errorf("forwarded %+v", m)
		}
		if string(m.Method) == "agent/getCard" {
			return &Reply{Body: []byte(card)}, nil
		}
		return &Reply{Body: []byte(`"` + string(m.Method) + `"`)}, nil
	}}})
	for path, want := range map[string]string{
		"/.well-known/agent-card.json": card,
		"/.well-known/agent.json":      card,
		"/extendedAgentCard":           `"GetExtendedAgentCard"`,
		"/v1/card":                     `"agent/getAuthenticatedExtendedCard"`,
	} {
		a := do(t, "GET", s.URL+"/agents/echo"+path, "", "")
		if a.status != 200 || a.body != want || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %s %q", path, a.status, a.header.Get("Content-Type"), a.body)
		}
		if a := do(t, "HEAD", s.URL+"/agents/echo"+path, "", ""); a.status != 200 || a.body != "" || a.header.Get("Content-Length") != fmt.Sprint(len(want)) {
			t.Errorf("HEAD %s: %d %v", path, a.status, a.header)
		}
	}
	_, s = newEdge(t, Config{Forwarder: &agent{call: func(context.Context, *Message) (*Reply, error) {
		return &Reply{Error: true, Body: []byte(`{"jsonrpc":"2.0","id":"x","error":{}}`)}, nil
	}}})
	do(t, "GET", s.URL+"/agents/echo/extendedAgentCard", "", "").wantProblem(t, 502, bridge.CodeNotDelivered, "in place of the card")
}

func TestPathsAndMethods(t *testing.T) {
	_, s := newEdge(t, Config{})
	const ping = `{"jsonrpc":"2.0","id":4,"method":"ping"}`
	if a := do(t, "POST", s.URL+"/agents/echo/", "application/json", ping); a.status != 200 {
		t.Errorf("a trailing slash: %d %s", a.status, a.body)
	}
	for _, path := range []string{"/", "/agents", "/agent/echo", "/agents/echo/tasks", "/agents/echo//", "/healthz/x"} {
		do(t, "POST", s.URL+path, "application/json", ping).wantProblem(t, 404, 0, "nothing is served here")
	}
	for _, name := range []string{"", "Echo", "e%20o", "%2f", strings.Repeat("a", 65), "é"} {
		a := do(t, "POST", s.URL+"/agents/"+name, "application/json", ping)
		if a.status != 404 {
			t.Errorf("%q: %d %s", name, a.status, a.body)
		}
	}
	for _, c := range []struct{ method, path, allow string }{
		{"GET", "/agents/echo", "POST"}, {"OPTIONS", "/agents/echo", "POST"}, {"PUT", "/agents/echo", "POST"},
		{"POST", "/agents/echo/.well-known/agent.json", "GET, HEAD"}, {"POST", "/healthz", "GET, HEAD"},
	} {
		a := do(t, c.method, s.URL+c.path, "application/json", ping)
		a.wantProblem(t, 405, 0, "only")
		if a.header.Get("Allow") != c.allow {
			t.Errorf("%s %s: Allow %q", c.method, c.path, a.header.Get("Allow"))
		}
	}
}

// L11: a body over the limit has a definite answer, and one just within crosses
// whole.
func TestBodyLimit(t *testing.T) {
	pad := func(n int) string {
		const head, tail = `{"jsonrpc":"2.0","id":1,"method":"m","params":["`, `"]}`
		return head + strings.Repeat("x", n-len(head)-len(tail)) + tail
	}
	var got []byte
	_, s := newEdge(t, Config{MaxBody: 1 << 20, Forwarder: &agent{call: func(ctx context.Context, m *Message) (*Reply, error) {
		got = bytes.Clone(m.Body)
		return echo(ctx, m)
	}}})
	if a := post(t, s, pad(1<<20)); a.status != 200 || string(got) != pad(1<<20) {
		t.Errorf("at the limit: %d", a.status)
	}
	post(t, s, pad(1<<20+1)).wantProblem(t, 413, bridge.CodeNotDelivered, "limit of 1048576 octets")
	request, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/agents/echo", struct{ io.Reader }{strings.NewReader(pad(1<<20 + 1))})
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	send(t, request).wantProblem(t, 413, bridge.CodeNotDelivered, "limit of 1048576 octets")
}

// A fault that is told before a long body has arrived is read by whoever sends
// it: the connection is not reset under it.
func TestFaultIsReadWhileTheBodyIsSent(t *testing.T) {
	_, s := newEdge(t, Config{MaxBody: 1 << 20})
	long := strings.Repeat("x", 8<<20)
	for range 20 {
		post(t, s, long).wantProblem(t, 413, bridge.CodeNotDelivered, "limit")
		do(t, "POST", s.URL+"/agents/echo", "text/plain", long).wantProblem(t, 415, bridge.CodeEnvelopeMalformed, "")
		do(t, "POST", s.URL+"/agents/Not", "application/json", long).wantProblem(t, 404, bridge.CodeNotDelivered, "")
		request, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/agents/echo", struct{ io.Reader }{strings.NewReader(long)})
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		send(t, request).wantProblem(t, 413, bridge.CodeNotDelivered, "limit")
	}
}

func TestBodiesTogetherAreBounded(t *testing.T) {
	_, s := newEdge(t, Config{MaxBuffered: 1000})
	post(t, s, `{"jsonrpc":"2.0","id":1,"method":"m","params":["`+strings.Repeat("x", 2000)+`"]}`).wantProblem(t, 503, bridge.CodeNotDelivered, "capacity")
}

func TestSlowBodyIsGivenUp(t *testing.T) {
	_, s := newEdge(t, Config{BodyTimeout: 20 * time.Millisecond})
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /agents/echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
	octets, _ := io.ReadAll(conn)
	if !bytes.HasPrefix(octets, []byte("HTTP/1.1 408 ")) {
		t.Errorf("%q", octets)
	}
}

// A body that is refused unread, and never comes, does not hold its connection.
func TestUnreadBodyIsGivenUp(t *testing.T) {
	_, s := newEdge(t, Config{BodyTimeout: 20 * time.Millisecond})
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /agents/echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\n{")
	octets, _ := io.ReadAll(conn)
	if !bytes.HasPrefix(octets, []byte("HTTP/1.1 415 ")) {
		t.Errorf("%q", octets)
	}
}

// The deadlines of one request don't strike the next one on its connection, nor
// a caller who waits longer than a body may take.
func TestDeadlinesDoNotOutliveTheirRequest(t *testing.T) {
	const short = 30 * time.Millisecond
	_, s := newEdge(t, Config{BodyTimeout: short, WriteTimeout: short, Forwarder: &agent{call: func(ctx context.Context, m *Message) (*Reply, error) {
		select {
		case <-time.After(3 * short):
			return echo(ctx, m)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}})
	transport := &http.Transport{MaxConnsPerHost: 1}
	defer transport.CloseIdleConnections()
	for i := range 3 {
		request, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/agents/echo", strings.NewReader(`{"jsonrpc":"2.0","id":4,"method":"ping"}`))
		if i == 1 {
			request, err = http.NewRequestWithContext(t.Context(), "GET", s.URL+"/agents/echo/v1/card", nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Expect", "100-continue")
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != 200 {
			t.Errorf("request %d: %d, %v", i, response.StatusCode, err)
		}
		response.Body.Close()
		<-time.After(2 * short)
	}
}

func TestAuthentication(t *testing.T) {
	var principal string
	_, s := newEdge(t, Config{
		Authenticate: func(r *http.Request) (string, error) {
			if r.Header.Get("Authorization") != "Bearer good" {
				return "", errors.New("no")
			}
			return "somebody", nil
		},
		Forwarder: &agent{call: func(ctx context.Context, m *Message) (*Reply, error) {
			principal = m.Principal
			return echo(ctx, m)
		}},
	})
	const ping = `{"jsonrpc":"2.0","id":4,"method":"ping"}`
	for _, a := range []answer{post(t, s, ping), do(t, "GET", s.URL+"/agents/echo/.well-known/agent.json", "", ""), do(t, "POST", s.URL+"/agents/NOT", "application/json", ping)} {
		a.wantProblem(t, 401, 0, "not authenticated")
		if a.header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%v", a.header)
		}
	}
	if a := do(t, "GET", s.URL+"/healthz", "", ""); a.status != 200 {
		t.Errorf("/healthz: %d", a.status)
	}
	request, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/agents/echo", strings.NewReader(ping))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer good")
	if a := send(t, request); a.status != 200 || principal != "somebody" {
		t.Errorf("%d %s, principal %q", a.status, a.body, principal)
	}
}

// A web page that was given this machine's address under its own name can't use
// an edge that trusts whoever is on this machine.
func TestHostsOfOthersAreRefused(t *testing.T) {
	_, s := newEdge(t, Config{Host: LoopbackHost})
	request, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/agents/echo", strings.NewReader(`{"jsonrpc":"2.0","id":4,"method":"ping"}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Host = "attacker.example"
	send(t, request).wantProblem(t, 421, 0, "host name")
	if a := post(t, s, `{"jsonrpc":"2.0","id":4,"method":"ping"}`); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestLoopbackHost(t *testing.T) {
	for host, want := range map[string]bool{
		"127.0.0.1": true, "127.0.0.1:7480": true, "127.9.9.9:1": true, "[::1]": true, "[::1]:7480": true, "::1": true, "localhost": true,
		"LocalHost:80": true, "localhost.": true, "a.localhost:1": true, "[::ffff:127.0.0.1]:1": true,
		"": false, "attacker.example": false, "localhost.attacker.example": false, "10.0.0.1": false, "0.0.0.0:80": false, "127.0.0.1.example": false,
		"[::2]": false, "xlocalhost": false,
	} {
		if got := LoopbackHost(host); got != want {
			t.Errorf("LoopbackHost(%q) = %v", host, got)
		}
	}
}

func TestRequestsUnderWayAreBounded(t *testing.T) {
	inside, release := make(chan struct{}), make(chan struct{})
	_, s := newEdge(t, Config{MaxInFlight: 2, Forwarder: &agent{call: func(ctx context.Context, m *Message) (*Reply, error) {
		inside <- struct{}{}
		<-release
		return echo(ctx, m)
	}}})
	const ping = `{"jsonrpc":"2.0","id":4,"method":"ping"}`
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if a := post(t, s, ping); a.status != 200 {
				t.Errorf("%d %s", a.status, a.body)
			}
		})
		<-inside
	}
	a := post(t, s, ping)
	a.wantProblem(t, 503, bridge.CodeNotDelivered, "capacity")
	if a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	if a := do(t, "GET", s.URL+"/healthz", "", ""); a.status != 200 {
		t.Errorf("/healthz: %d", a.status)
	}
	close(release)
	wg.Wait()
}

// L27: readiness fails at once, new requests are refused, and those under way
// get their answers.
func TestDrain(t *testing.T) {
	inside, release := make(chan struct{}), make(chan struct{})
	e, s := newEdge(t, Config{Forwarder: &agent{call: func(ctx context.Context, m *Message) (*Reply, error) {
		close(inside)
		<-release
		return echo(ctx, m)
	}}})
	const ping = `{"jsonrpc":"2.0","id":4,"method":"ping"}`
	done := make(chan answer, 1)
	go func() { done <- post(t, s, ping) }()
	<-inside
	e.Drain()
	a := do(t, "GET", s.URL+"/healthz", "", "")
	a.wantProblem(t, 503, bridge.CodeNotDelivered, "shutting down")
	post(t, s, ping).wantProblem(t, 503, bridge.CodeNotDelivered, "shutting down")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := e.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a request under way: %v", err)
	}
	waited := make(chan error, 1)
	go func() { waited <- e.Wait(t.Context()) }()
	close(release)
	if a := <-done; a.status != 200 {
		t.Errorf("the request under way: %d %s", a.status, a.body)
	}
	if err := <-waited; err != nil {
		t.Error(err)
	}
	if err := e.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestDeadlineAndLeaving(t *testing.T) {
	e, s := newEdge(t, Config{Timeout: 10 * time.Millisecond, Forwarder: &agent{call: func(ctx context.Context, _ *Message) (*Reply, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}})
	const ping = `{"jsonrpc":"2.0","id":4,"method":"ping"}`
	post(t, s, ping).wantProblem(t, 504, bridge.CodeNotDelivered, "outcome unknown")

	e.cfg.Timeout = time.Minute
	inside := make(chan struct{})
	left := make(chan error, 1)
	e.cfg.Forwarder = &agent{call: func(ctx context.Context, _ *Message) (*Reply, error) {
		close(inside)
		<-ctx.Done()
		left <- ctx.Err()
		return nil, ctx.Err()
	}}
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, "POST", s.URL+"/agents/echo", strings.NewReader(ping))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	go func() {
		<-inside
		cancel()
	}()
	if _, err := http.DefaultTransport.RoundTrip(request); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the caller left and the forwarder was told %v", err)
	}
	e.Drain()
	if err := e.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := e.Stats(); st.Left != 1 || st.Faults != 1 {
		t.Errorf("%+v", st)
	}
}

func TestForwarderIsRequired(t *testing.T) {
	if _, err := New(Config{}); !errors.Is(err, ErrNoForwarder) {
		t.Errorf("%v", err)
	}
}

// Whatever is POSTed gets a definite answer, and only what is a request reaches
// the agent, octet for octet.
func FuzzPost(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"message/send","params":{}}`, `{"jsonrpc":"2.0","method":"x"}`, `[`, ``, `{"jsonrpc":"2.0","id":1,"result":{}}`,
		`{"jsonrpc":"2.0","id":null,"method":"tasks/resubscribe"}`, `{"jsonrpc":"2.0","id":"\ud800","method":"\u0000"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, octets []byte) {
		reached := false
		check := func(m *Message) {
			reached = true
			if !bytes.Equal(m.Body, octets) || len(m.Method) > 255 {
				t.Errorf("forwarded %q", m.Body)
			}
		}
		e, err := New(Config{Forwarder: &agent{
			call: func(_ context.Context, m *Message) (*Reply, error) {
				check(m)
				return &Reply{Body: []byte("{}")}, nil
			},
			notify: func(_ context.Context, m *Message) error {
				check(m)
				return nil
			},
			stream: func(_ context.Context, m *Message) (Stream, error) {
				check(m)
				return nil, ErrNoAgent
			},
		}})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "/agents/echo", bytes.NewReader(octets))
		r.Header.Set("Content-Type", "application/json")
		e.ServeHTTP(w, r)
		if reached != (w.Code == 200 || w.Code == 202 || w.Code == 404) || (!reached && w.Code != 400) {
			t.Errorf("status %d, reached the agent %v", w.Code, reached)
		}
		if e.budget.Used() != 0 || e.gate.Inside() != 0 {
			t.Error("something is still held")
		}
	})
}
