package upstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/trestle-npamp/trestle/carriage/jsonrpc"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/relay/internal/body"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newAgent starts an HTTP agent and a client for it.
func newAgent(t *testing.T, cfg Config, agent http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(agent)
	t.Cleanup(server.Close)
	if cfg.URL == "" {
		cfg.URL = server.URL + "/a2a"
	}
	return newClient(t, cfg)
}

func newClient(t *testing.T, cfg Config) *Client {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// request makes a request of a JSON-RPC object.
func request(t *testing.T, body string) *Request {
	t.Helper()
	var m jsonrpc.Message
	if err := jsonrpc.Scan([]byte(body), &m); err != nil {
		t.Fatal(err)
	}
	return &Request{Method: string(m.AppendMethod(nil)), ID: m.ID, Body: []byte(body), Effect: bridge.NonIdempotentWrite}
}

func answerWith(status int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = nil
		if contentType != "" {
			w.Header().Set("Content-Type", contentType)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

const (
	plainRequest  = `{"jsonrpc":"2.0","id":"q","method":"message/send","params":{}}`
	plainResponse = `{"jsonrpc":"2.0","id":"q","result":{}}`
)

// L08: not an octet changes, in either direction.
func TestMessagesCrossVerbatim(t *testing.T) {
	const sent = " \r\n\t" + `{"z":1.10,"params":{"h":"<b>&\u003c\u2028é","x":1E+2,"e":{},"n":null}, "jsonrpc":"2.0","method":"message\/send","id":"s"}` + "\n "
	const answer = `{"z":1.10,"jsonrpc":"2.0", "result":{"h":"<b>&\u003c\u2028é","x":1E+2,"e":{},"n":null},"id":"\u0073"}` + "\n"
	var got []byte
	c := newAgent(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		got, _ = io.ReadAll(r.Body)
		answerWith(200, "application/json", answer)(w, r)
	})
	reply, err := c.Call(t.Context(), request(t, sent))
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Release()
	if string(got) != sent {
		t.Errorf("the agent got %q", got)
	}
	if string(reply.Body) != answer || reply.Error {
		t.Errorf("the caller got %q, error %v", reply.Body, reply.Error)
	}
}

// L34: an error object crosses verbatim under every status.
func TestErrorObjectsCrossUnderEveryStatus(t *testing.T) {
	const object = `{"error":{"data":[{"retryAfter":5,"n":12345678901234567890}],"message":"","code":-32005},"id":"q","jsonrpc":"2.0"}`
	for _, status := range []int{200, 400, 401, 404, 500, 503} {
		c := newAgent(t, Config{}, answerWith(status, "application/json", object))
		reply, err := c.Call(t.Context(), request(t, plainRequest))
		if err != nil {
			t.Errorf("status %d: %v", status, err)
			continue
		}
		if !reply.Error || string(reply.Body) != object {
			t.Errorf("status %d: %q, error %v", status, reply.Body, reply.Error)
		}
		reply.Release()
	}
	// D17: an error whose id is null answers the request it came for.
	const null = `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}`
	c := newAgent(t, Config{}, answerWith(400, "application/json", null))
	reply, err := c.Call(t.Context(), request(t, plainRequest))
	if err != nil || !reply.Error || string(reply.Body) != null {
		t.Errorf("id null: %v", err)
	}
}

// L16, L36 and what else is no answer: each is a definite *Error, and the text
// keeps the status for whoever is told.
func TestWhatIsNoAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		agent   http.HandlerFunc
		status  int
		unknown bool
		text    string
	}{
		"401 with HTML":         {answerWith(401, "text/html", "<p>who?</p>"), 401, false, "HTTP status 401 with text/html"},
		"no content type":       {answerWith(200, "", plainResponse), 200, true, "without a Content-Type"},
		"ndjson":                {answerWith(200, "application/x-ndjson", plainResponse), 200, true, "application/x-ndjson"},
		"an event stream":       {answerWith(200, "text/event-stream;charset=UTF-8", "data: "+plainResponse+"\n\n"), 200, true, "text/event-stream"},
		"another charset":       {answerWith(200, "application/json; charset=utf-16", plainResponse), 200, true, "in place of JSON"},
		"204":                   {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, 204, true, "without a body"},
		"202 without a body":    {answerWith(202, "application/json", ""), 202, true, "without a body"},
		"empty":                 {answerWith(200, "application/json", ""), 200, true, "without a body"},
		"cut JSON":              {answerWith(200, "application/json", plainResponse[:20]), 200, true, "not a JSON-RPC response"},
		"not JSON-RPC":          {answerWith(200, "application/json", `{"ok":true}`), 200, true, "not a JSON-RPC response"},
		"a request":             {answerWith(200, "application/json", plainRequest), 200, true, "not a JSON-RPC response"},
		"both outcomes":         {answerWith(200, "application/json", `{"jsonrpc":"2.0","id":"q","result":1,"error":{}}`), 200, true, "not a JSON-RPC response"},
		"another id":            {answerWith(200, "application/json", `{"jsonrpc":"2.0","id":"Q","result":1}`), 200, true, "another id"},
		"another error's id":    {answerWith(200, "application/json", `{"jsonrpc":"2.0","id":7,"error":{}}`), 200, true, "another id"},
		"a result with id null": {answerWith(200, "application/json", `{"jsonrpc":"2.0","id":null,"result":1}`), 200, true, "another id"},
		"a result under 500":    {answerWith(500, "application/json", plainResponse), 500, true, "HTTP status 500 with a JSON-RPC result"},
		"a result under 400":    {answerWith(400, "application/json", plainResponse), 400, false, "HTTP status 400 with a JSON-RPC result"},
		"compressed": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			answerWith(200, "application/json", "\x1f\x8b\x08")(w, r)
		}, 200, true, "content encoding"},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/elsewhere" {
				t.Error("the redirect was followed")
			}
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, 307, true, "redirects are not followed"},
		"503 in plain text": {answerWith(503, "text/plain", "busy"), 503, true, "HTTP status 503 with text/plain"},
	} {
		t.Run(name, func(t *testing.T) {
			client := newAgent(t, Config{}, c.agent)
			reply, err := client.Call(t.Context(), request(t, plainRequest))
			var told *Error
			if !errors.As(err, &told) {
				t.Fatalf("reply %v, error %v", reply, err)
			}
			if told.Status != c.status || told.Unknown != c.unknown || !strings.Contains(told.Text, c.text) {
				t.Errorf("status %d, unknown %v, %q", told.Status, told.Unknown, told.Text)
			}
			if strings.Contains(told.Error(), "127.0.0.1") || len(told.Error()) > bridge.MaxErrorText {
				t.Errorf("not fit for a caller: %q", told.Error())
			}
			if client.budget.Used() != 0 {
				t.Errorf("%d octets are still held", client.budget.Used())
			}
		})
	}
}

// L36: the accepted spellings of JSON.
func TestSpellingsOfJSON(t *testing.T) {
	for _, field := range []string{"application/json", "application/json; charset=utf-8", "Application/JSON", "application/json;charset=UTF-8"} {
		c := newAgent(t, Config{}, answerWith(200, field, plainResponse))
		if _, err := c.Call(t.Context(), request(t, plainRequest)); err != nil {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// L35: whatever a notification is answered with, nothing comes back.
func TestAnswersToNotificationsAreDiscarded(t *testing.T) {
	for name, c := range map[string]struct {
		agent   http.HandlerFunc
		refused uint64
	}{
		"202 empty": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(202) }, 0},
		"204":       {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, 0},
		"200 empty": {answerWith(200, "", ""), 0},
		"200 null":  {answerWith(200, "application/json", "null"), 0},
		"200 {}":    {answerWith(200, "application/json", "{}"), 0},
		"400":       {answerWith(400, "text/plain", "no"), 1},
		"endless": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		}, 0},
	} {
		client := newAgent(t, Config{}, c.agent)
		err := client.Notify(t.Context(), &Request{Method: "notifications/initialized", Body: []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)})
		if s := client.Stats(); err != nil || s.Refused != c.refused || s.Notifications != 1 {
			t.Errorf("%s: %v, %+v", name, err, s)
		}
	}
}

// D21: an agent sees the headers of the exchange and the configured ones.
func TestHeadersTowardsTheAgent(t *testing.T) {
	var got http.Header
	c := newAgent(t, Config{Header: http.Header{"authorization": {"Bearer secret"}, "X-Team": {"a", "b"}}}, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Clone()
		answerWith(200, "application/json", plainResponse)(w, r)
	})
	for method, version := range map[string]string{"message/send": "", "SendMessage": "1.0", "GetTask": "1.0", "tasks/frobnicate": ""} {
		r := request(t, plainRequest)
		r.Method = method
		if _, err := c.Call(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		want := http.Header{
			"Accept": {"application/json"}, "Accept-Encoding": {"identity"}, "Content-Type": {"application/json"},
			"Content-Length": {fmt.Sprint(len(plainRequest))}, "User-Agent": {"trestle"},
			"Authorization": {"Bearer secret"}, "X-Team": {"a", "b"},
		}
		if version != "" {
			want["A2a-Version"] = []string{version}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", method, got, want)
		}
	}
}

func TestConfigurationIsChecked(t *testing.T) {
	for _, url := range []string{"", "agent", "/a2a", "ftp://h/", "http://", "http:h", "://", "http://user:secret@h:x/"} {
		if _, err := New(Config{URL: url}); !errors.Is(err, ErrURL) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", url, err)
		}
	}
	if _, err := New(Config{URL: "http://h/", CardURL: "card"}); !errors.Is(err, ErrURL) {
		t.Errorf("a card URL: %v", err)
	}
	for _, name := range []string{"Content-Type", "accept-encoding", "Host", "Transfer-Encoding", "a2a-version", "Content-Length"} {
		if _, err := New(Config{URL: "http://h/", Header: http.Header{name: {"x"}}}); !errors.Is(err, ErrHeader) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReplySizeIsBounded(t *testing.T) {
	answer := func(n int) string {
		return `{"jsonrpc":"2.0","id":"q","result":"` + strings.Repeat("x", n-len(`{"jsonrpc":"2.0","id":"q","result":""}`)) + `"}`
	}
	for name, announced := range map[string]bool{"announced": true, "chunked": false} {
		size := 0
		c := newAgent(t, Config{MaxReply: 100_000}, func(w http.ResponseWriter, r *http.Request) {
			if announced {
				w.Header().Set("Content-Length", fmt.Sprint(size))
			}
			answerWith(200, "application/json", answer(size))(w, r)
		})
		size = 100_000
		reply, err := c.Call(t.Context(), request(t, plainRequest))
		if err != nil || len(reply.Body) != size {
			t.Fatalf("%s, at the limit: %v", name, err)
		}
		reply.Release()
		size++
		var told *Error
		if _, err := c.Call(t.Context(), request(t, plainRequest)); !errors.As(err, &told) || !told.Unknown || !strings.Contains(told.Text, "limit of 100000 octets") {
			t.Errorf("%s, over the limit: %v", name, err)
		}
		if c.budget.Used() != 0 {
			t.Errorf("%d octets are still held", c.budget.Used())
		}
	}
}

// A body that ends before its announced length is no answer, even if what came
// would be one.
func TestCutBodyIsNoAnswer(t *testing.T) {
	c := newAgent(t, Config{}, func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(rw, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(plainResponse)+1, plainResponse)
		_ = rw.Flush()
	})
	var told *Error
	if _, err := c.Call(t.Context(), request(t, plainRequest)); !errors.As(err, &told) || !told.Unknown {
		t.Errorf("%v", err)
	}
}

func TestAgentThatIsNotThere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	c := newClient(t, Config{URL: "http://" + addr + "/"})
	var told *Error
	if _, err := c.Call(t.Context(), request(t, plainRequest)); !errors.As(err, &told) || told.Unknown || told.Text != "the agent refused the connection" {
		t.Errorf("%v", err)
	}
	if err := c.Notify(t.Context(), request(t, plainRequest)); !errors.As(err, &told) || told.Unknown {
		t.Errorf("%v", err)
	}
	if _, err := c.Card(t.Context()); !errors.As(err, &told) {
		t.Errorf("%v", err)
	}
}

func TestDeadlines(t *testing.T) {
	release := make(chan struct{})
	agent := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}
	c := newAgent(t, Config{Timeout: 20 * time.Millisecond, NotifyTimeout: 20 * time.Millisecond, CardTimeout: 20 * time.Millisecond}, agent)
	defer close(release)
	var told *Error
	if _, err := c.Call(t.Context(), request(t, plainRequest)); !errors.As(err, &told) || !told.Unknown || told.Text != "the agent did not answer in time" {
		t.Errorf("call: %v", err)
	}
	if err := c.Notify(t.Context(), request(t, plainRequest)); !errors.As(err, &told) || told.Text != "the agent did not answer in time" {
		t.Errorf("notification: %v", err)
	}
	if _, err := c.Card(t.Context()); !errors.As(err, &told) || !strings.Contains(told.Text, "in time") {
		t.Errorf("card: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Call(ctx, request(t, plainRequest)); !errors.As(err, &told) || told.Text != "the request was given up" {
		t.Errorf("cancelled: %v", err)
	}
}

// keepAlive is a bare HTTP server that decides about each connection by itself.
type keepAlive struct {
	net.Listener
	wg sync.WaitGroup
}

func newKeepAlive(t *testing.T, serve func(conn net.Conn)) *keepAlive {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &keepAlive{Listener: l}
	k.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			k.wg.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	return k
}

func (k *keepAlive) stop() {
	k.Close()
	k.wg.Wait()
}

func readRequest(r *bufio.Reader) (string, error) {
	request, err := http.ReadRequest(r)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(request.Body)
	return string(body), err
}

func respond(conn net.Conn) {
	fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(plainResponse), plainResponse)
}

// L29: the agent closes its idle connections just when the next request is sent.
// No message is executed twice, and one that was not executed is never a success.
func TestStaleConnectionNeverExecutesTwice(t *testing.T) {
	var mu sync.Mutex
	executed := map[string]int{}
	idle := make(chan net.Conn, 16) // connections whose request was answered
	k := newKeepAlive(t, func(conn net.Conn) {
		r := bufio.NewReader(conn)
		for {
			body, err := readRequest(r)
			if err != nil {
				return // the idle limit has passed, or the client left
			}
			mu.Lock()
			executed[body]++
			mu.Unlock()
			respond(conn)
			select {
			case idle <- conn:
			default:
			}
		}
	})
	defer k.stop()
	c := newClient(t, Config{URL: "http://" + k.Addr().String() + "/", IdleTimeout: time.Minute})
	defer c.Close()

	failures := 0
	for i := range 500 {
		warm := request(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":"q","method":"message/send","params":{"messageId":"warm-%d"}}`, i))
		for len(idle) > 0 {
			<-idle
		}
		if _, err := c.Call(t.Context(), warm); err != nil {
			failures++
			continue // the connection of the round before was met stale
		}
		conn := <-idle
		r := request(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":"q","method":"message/send","params":{"messageId":"m-%d"}}`, i))
		start := make(chan struct{})
		closed := make(chan struct{})
		spin := rand.IntN(20_000)
		go func() {
			defer close(closed)
			<-start
			for n := range spin {
				_ = n
			}
			_ = conn.SetReadDeadline(time.Unix(1, 0)) // the idle limit
		}()
		close(start)
		reply, err := c.Call(t.Context(), r)
		<-closed
		mu.Lock()
		n := executed[string(r.Body)]
		mu.Unlock()
		switch {
		case err == nil && n != 1:
			t.Fatalf("round %d: success, executed %d times", i, n)
		case err != nil && n > 1:
			t.Fatalf("round %d: %v, executed %d times", i, err, n)
		}
		if err == nil {
			reply.Release()
			continue
		}
		failures++
		var told *Error
		if !errors.As(err, &told) || (n == 1 && !told.Unknown) {
			t.Fatalf("round %d: executed %d times and told %v", i, n, err)
		}
	}
	for body, n := range executed {
		if n > 1 {
			t.Errorf("%s was executed %d times", body, n)
		}
	}
	t.Logf("%d of 1000 requests met a closing connection", failures)
}

// An operation without a body has none on the wire, not an empty chunked one, and is
// not sent a second time on a connection that was kept.
func TestOperationsWithoutABody(t *testing.T) {
	for _, verb := range []string{"POST", "PUT", "PATCH", "DELETE", "GET"} {
		var asked atomic.Int32
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ContentLength != 0 || len(r.TransferEncoding) != 0 || r.Header.Get("Content-Type") != "" {
				t.Errorf("%s: %d octets, %v", verb, r.ContentLength, r.TransferEncoding)
			}
			if asked.Add(1) > 1 {
				conn, _, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				_ = conn.Close()
				return
			}
			w.WriteHeader(204)
		}))
		c := newClient(t, Config{URL: server.URL, IdleTimeout: time.Minute})
		o := &Operation{Verb: verb, Target: "/x", Effect: bridge.NonIdempotentWrite}
		answer, err := c.Do(t.Context(), o)
		if err != nil {
			t.Fatalf("%s: %v", verb, err)
		}
		answer.Release()
		var told *Error
		if _, err := c.Do(t.Context(), o); !errors.As(err, &told) || !told.Unknown || asked.Load() != 2 {
			t.Errorf("%s: %v, asked %d times", verb, err, asked.Load())
		}
		c.Close()
		server.Close()
	}
}

// What a second attempt may repeat: nothing that had left, but for a read.
func TestSecondAttempts(t *testing.T) {
	for name, c := range map[string]struct {
		effect   bridge.Effect
		executed int32
		ok       bool
	}{
		"read_only":            {bridge.ReadOnly, 3, true},
		"idempotent_write":     {bridge.IdempotentWrite, 2, false},
		"non_idempotent_write": {bridge.NonIdempotentWrite, 2, false},
		"destructive":          {bridge.Destructive, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			var executed atomic.Int32
			k := newKeepAlive(t, func(conn net.Conn) {
				r := bufio.NewReader(conn)
				for {
					if _, err := readRequest(r); err != nil {
						return
					}
					if executed.Add(1) == 2 {
						return // read whole, and then the connection is gone
					}
					respond(conn)
				}
			})
			defer k.stop()
			client := newClient(t, Config{URL: "http://" + k.Addr().String() + "/", IdleTimeout: time.Minute})
			defer client.Close()
			r := request(t, plainRequest)
			r.Effect = c.effect
			if _, err := client.Call(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			_, err := client.Call(t.Context(), r)
			if (err == nil) != c.ok || executed.Load() != c.executed {
				t.Errorf("%v, executed %d times", err, executed.Load())
			}
			var told *Error
			if err != nil && (!errors.As(err, &told) || !told.Unknown) {
				t.Errorf("told %v", err)
			}
		})
	}
}

// deadConn is a kept connection that has died without anybody noticing: the
// next write fails before an octet has left.
type deadConn struct {
	net.Conn
	dead *atomic.Bool
}

func (c *deadConn) Write(b []byte) (int, error) {
	if c.dead.Swap(false) {
		return 0, errors.New("broken pipe")
	}
	return c.Conn.Write(b)
}

// L29: a request of which nothing was written is sent again, whatever it does.
func TestNothingWrittenIsSentAgain(t *testing.T) {
	var executed atomic.Int32
	var dead atomic.Bool
	c := newAgent(t, Config{IdleTimeout: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
		executed.Add(1)
		answerWith(200, "application/json", plainResponse)(w, r)
	})
	c.transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &countedConn{Conn: &deadConn{conn, &dead}}, nil
	}
	r := request(t, plainRequest)
	if _, err := c.Call(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	dead.Store(true)
	if _, err := c.Call(t.Context(), r); err != nil || executed.Load() != 2 {
		t.Errorf("%v, executed %d times", err, executed.Load())
	}
	if s := c.Stats(); s.Retries != 1 || s.Failures != 0 || s.Requests != 2 {
		t.Errorf("%+v", s)
	}
	// A fresh connection that fails is not tried again.
	c.transport.CloseIdleConnections()
	dead.Store(true)
	var told *Error
	if _, err := c.Call(t.Context(), r); !errors.As(err, &told) || told.Unknown {
		t.Errorf("%v", err)
	}
	if executed.Load() != 2 {
		t.Errorf("executed %d times", executed.Load())
	}
}

// L31: a card's octets are the agent's, whatever they are.
const card = "{ \"url\":\"https:\\u002f\\u002fh/a2a\",\"required\":false,\"streaming\":false,\"description\":\"\",\"version\":1.0,\"b\":1,\"a\":[]}\n"

// L32: cards are found below the endpoint and at the origin, under both names.
func TestCardIsFoundInAStatedOrder(t *testing.T) {
	for name, c := range map[string]struct {
		path  string // of the endpoint
		at    []string
		asked string
	}{
		"A: only under the old name":     {"/", []string{CardPathOld}, "/.well-known/agent-card.json /.well-known/agent.json"},
		"B: at the origin only":          {"/a2a", []string{CardPath}, "/a2a/.well-known/agent-card.json /a2a/.well-known/agent.json /.well-known/agent-card.json"},
		"C: below the endpoint":          {"/tenants/7/a2a/", []string{"/tenants/7/a2a" + CardPath, CardPath}, "/tenants/7/a2a/.well-known/agent-card.json"},
		"both names":                     {"", []string{CardPath, CardPathOld}, "/.well-known/agent-card.json"},
		"below, under the old name":      {"/x", []string{"/x" + CardPathOld, CardPath}, "/x/.well-known/agent-card.json /x/.well-known/agent.json"},
		"a query is no part of its path": {"/x?y=z", []string{"/x" + CardPath}, "/x/.well-known/agent-card.json"},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = append(asked, r.URL.String())
				if r.Method != "GET" || r.Header.Get("Authorization") != "Bearer secret" || r.Header.Get("Accept") != "application/json" {
					t.Errorf("%s with %v", r.Method, r.Header)
				}
				for _, at := range c.at {
					if r.URL.Path == at {
						answerWith(200, "application/json; charset=utf-8", card)(w, r)
						return
					}
				}
				answerWith(404, "text/html", "<h1>404</h1>")(w, r)
			}))
			defer server.Close()
			client := newClient(t, Config{URL: server.URL + c.path, Header: http.Header{"Authorization": {"Bearer secret"}}})
			defer client.Close()
			reply, err := client.Card(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if string(reply.Body) != card {
				t.Errorf("%q", reply.Body)
			}
			reply.Release()
			if got := strings.Join(asked, " "); got != c.asked {
				t.Errorf("asked for %s, want %s", got, c.asked)
			}
		})
	}
}

func TestWhatIsNoCardIsPassedOver(t *testing.T) {
	for name, wrong := range map[string]http.HandlerFunc{
		"a page":     answerWith(200, "text/html", "<html>"),
		"an array":   answerWith(200, "application/json", "[]"),
		"cut":        answerWith(200, "application/json", card[:40]),
		"401":        answerWith(401, "application/json", "{}"),
		"a redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, CardPathOld, http.StatusFound) },
		"too large":  answerWith(200, "application/json", `{"x":"`+strings.Repeat("x", 2000)+`"}`),
		"204":        func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) },
		"500":        answerWith(500, "text/plain", "oops"),
		"an encoding": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			answerWith(200, "application/json", card)(w, r)
		},
	} {
		client := newAgent(t, Config{MaxReply: 1000}, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == CardPath {
				answerWith(200, "application/a2a+json", card)(w, r)
				return
			}
			wrong(w, r)
		})
		reply, err := client.Card(t.Context())
		if err != nil || string(reply.Body) != card {
			t.Errorf("%s: %v", name, err)
			continue
		}
		reply.Release()
		client = newAgent(t, Config{MaxReply: 1000}, wrong)
		var told *Error
		if _, err := client.Card(t.Context()); !errors.As(err, &told) || !strings.HasPrefix(told.Text, "no agent card: ") {
			t.Errorf("%s everywhere: %v", name, err)
		}
		if client.budget.Used() != 0 {
			t.Errorf("%s: %d octets are still held", name, client.budget.Used())
		}
	}
}

func TestConfiguredCardURLIsTheOnlyPlace(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		answerWith(404, "text/plain", "")(w, r)
	}))
	defer server.Close()
	client := newClient(t, Config{URL: server.URL, CardURL: server.URL + "/my/card"})
	defer client.Close()
	var told *Error
	if _, err := client.Card(t.Context()); !errors.As(err, &told) || told.Status != 404 || fmt.Sprint(asked) != "[/my/card]" {
		t.Errorf("%v, asked for %v", err, asked)
	}
}

// D21: what is configured for the agent is sent to its origin and nowhere else, not
// even for the card.
func TestCredentialsStayWithTheAgentsOrigin(t *testing.T) {
	seen := make(chan http.Header, 4)
	serve := func() *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen <- r.Header.Clone()
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{}`)
		}))
		t.Cleanup(s.Close)
		return s
	}
	agent, other := serve(), serve()
	for card, want := range map[string]string{"": "secret", agent.URL + "/card": "secret", other.URL + "/card": ""} {
		c, err := New(Config{URL: agent.URL + "/a2a", CardURL: card, Header: http.Header{"authorization": {"secret"}, "User-Agent": {"me"}}})
		if err != nil {
			t.Fatal(err)
		}
		reply, err := c.Card(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		reply.Release()
		c.Close()
		if h := <-seen; h.Get("Authorization") != want || h.Get("Accept") != "application/json" {
			t.Errorf("%q got %v", card, h)
		}
	}
}

func TestExtendedCardIsTheResultsOctets(t *testing.T) {
	for _, operation := range []string{"agent/getAuthenticatedExtendedCard", "GetExtendedAgentCard"} {
		inner := strings.TrimSpace(card)
		c := newAgent(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			var m jsonrpc.Message
			if err := jsonrpc.Scan(body, &m); err != nil || string(m.AppendMethod(nil)) != operation {
				t.Errorf("asked with %s: %v", body, err)
			}
			answerWith(200, "application/json", `{"jsonrpc":"2.0","id":`+string(m.ID)+`,"result": `+inner+` }`)(w, r)
		})
		reply, err := c.ExtendedCard(t.Context(), operation)
		if err != nil || string(reply.Body) != inner {
			t.Errorf("%s: %v", operation, err)
			continue
		}
		reply.Release()
		if c.budget.Used() != 0 {
			t.Errorf("%d octets are still held", c.budget.Used())
		}
	}
	const refusal = `{"jsonrpc":"2.0","id":"card","error":{"code":-32007,"message":"none"}}`
	c := newAgent(t, Config{}, answerWith(200, "application/json", refusal))
	reply, err := c.ExtendedCard(t.Context(), "GetExtendedAgentCard")
	if err != nil || !reply.Error || string(reply.Body) != refusal {
		t.Errorf("an error object: %v", err)
	}
}

// An https agent is spoken to over HTTP/1.1 too, so that what was written can be
// told.
func TestTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 1 {
			t.Errorf("spoken to over %s", r.Proto)
		}
		answerWith(200, "application/json", plainResponse)(w, r)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	config := server.Client().Transport.(*http.Transport).TLSClientConfig
	c := newClient(t, Config{URL: server.URL, TLS: config})
	defer c.Close()
	for range 2 {
		if _, err := c.Call(t.Context(), request(t, plainRequest)); err != nil {
			t.Fatal(err)
		}
	}
	// A peer that the certificates do not name is not spoken to.
	c = newClient(t, Config{URL: server.URL})
	var told *Error
	if _, err := c.Call(t.Context(), request(t, plainRequest)); !errors.As(err, &told) {
		t.Errorf("%v", err)
	}
}

func TestConnectionsAreCountedBelowTLS(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	inner := &countedConn{Conn: a}
	if counted(inner) != inner || counted(wrapped{inner}) != inner || counted(b) != nil {
		t.Error("the counter was not found")
	}
	go func() { _, _ = io.CopyN(io.Discard, b, 3) }()
	if _, err := inner.Write([]byte("abc")); err != nil || inner.left.Load() != 3 {
		t.Errorf("%v, %d octets", err, inner.left.Load())
	}
	a.Close()
	if _, err := inner.Write(bytes.Repeat([]byte("x"), 10)); err == nil || inner.left.Load() != 3 {
		t.Errorf("a failed write: %v, %d octets", err, inner.left.Load())
	}
}

type wrapped struct{ *countedConn }

func (w wrapped) NetConn() net.Conn { return w.countedConn }

// Whatever an agent answers, a reply is exactly what it said, and answers the
// request that was asked.
func FuzzAnswer(f *testing.F) {
	f.Add(200, []byte(plainResponse))
	f.Add(500, []byte(plainResponse))
	f.Add(503, []byte(`{"jsonrpc":"2.0","id":null,"error":{}}`))
	f.Add(200, []byte(`{"jsonrpc":"2.0","id":"\u0071","result":null}`))
	f.Add(200, []byte(`[`))
	f.Fuzz(func(t *testing.T, status int, octets []byte) {
		budget := buf.NewBudget(1 << 30)
		content, err := body.Read(bytes.NewReader(octets), -1, 1<<20, budget)
		if err != nil {
			return
		}
		reply, err := check(&Request{ID: []byte(`"q"`)}, status, content)
		if err != nil {
			var told *Error
			if !errors.As(err, &told) || len(told.Error()) > bridge.MaxErrorText {
				t.Errorf("told %v", err)
			}
			content.Release()
		} else {
			var m jsonrpc.Message
			if err := jsonrpc.Scan(reply.Body, &m); err != nil || !bytes.Equal(reply.Body, octets) {
				t.Errorf("%q became %q: %v", octets, reply.Body, err)
			}
			success := m.Kind == jsonrpc.KindResponse && status >= 200 && status <= 299
			if reply.Error != (m.Kind == jsonrpc.KindError) || (!reply.Error && !success) {
				t.Errorf("status %d, %q: error %v", status, octets, reply.Error)
			}
			if !jsonrpc.EqualID(m.ID, []byte(`"q"`)) && !(reply.Error && m.IDKind == jsonrpc.IDNull) {
				t.Errorf("%q answers another id", octets)
			}
			reply.Release()
		}
		if budget.Used() != 0 {
			t.Error("memory is still held")
		}
	})
}
