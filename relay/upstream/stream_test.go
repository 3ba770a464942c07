package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestle-npamp/trestle/relay/internal/media"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

const streamRequest = `{"jsonrpc":"2.0","id":"q","method":"message/stream","params":{}}`

// event is a response to streamRequest that says n.
func event(n any) string { return fmt.Sprintf(`{"jsonrpc":"2.0","id":"q","result":{"n":%v}}`, n) }

// stream asks for a stream and collects its events.
func stream(t *testing.T, c *Client) (events []string, reply *Reply, err error) {
	t.Helper()
	reply, err = c.Stream(t.Context(), request(t, streamRequest), func(octets []byte) error {
		events = append(events, string(octets))
		return nil
	})
	return events, reply, err
}

// wantStream checks for a stream that the agent ended after these events.
func wantStream(t *testing.T, c *Client, want ...string) {
	t.Helper()
	events, reply, err := stream(t, c)
	if err != nil || reply != nil || fmt.Sprint(events) != fmt.Sprint(want) {
		t.Errorf("%q, %v, %v, want %q", events, reply, err, want)
	}
}

// wantBroken checks for a stream that broke after these events.
func wantBroken(t *testing.T, c *Client, text string, want ...string) {
	t.Helper()
	events, reply, err := stream(t, c)
	var fault *Error
	if !errors.As(err, &fault) || !fault.Unknown || !strings.Contains(fault.Text, text) || reply != nil || fmt.Sprint(events) != fmt.Sprint(want) {
		t.Errorf("%q, %v, %v, want %q and an error with %q", events, reply, err, want, text)
	}
	if used := c.budget.Used(); used != 0 {
		t.Errorf("%d octets are still held", used)
	}
}

func events(text string) http.HandlerFunc {
	return answerWith(200, "text/event-stream", text)
}

// Each event is handed out before the next one is sent, octet for octet, and the
// request says what is hoped for.
func TestEventsAreHandedOutAsTheyCome(t *testing.T) {
	const odd = ` {"z":1.10,"result":{"h":"<b>&\u003c\u2028é","x":1E+2,"n":null},"jsonrpc":"2.0","id":"\u0071"}`
	seen := make(chan struct{})
	c := newAgent(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		if got, _ := io.ReadAll(r.Body); string(got) != streamRequest || r.Header.Get("Accept") != media.EventStream || r.Header.Get("Accept-Encoding") != "identity" || r.Header.Get("Content-Type") != media.JSON {
			t.Errorf("the agent got %q, %v", got, r.Header)
		}
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		w.(http.Flusher).Flush()
		for _, e := range []string{event(1), odd, event(3)} {
			fmt.Fprintf(w, "id: x\ndata: %s\n\n", e)
			w.(http.Flusher).Flush()
			select {
			case <-seen:
			case <-r.Context().Done():
			}
		}
	})
	var got []string
	reply, err := c.Stream(t.Context(), request(t, streamRequest), func(octets []byte) error {
		got = append(got, string(octets))
		seen <- struct{}{}
		return nil
	})
	if err != nil || reply != nil || fmt.Sprint(got) != fmt.Sprint([]string{event(1), odd, event(3)}) {
		t.Errorf("%q, %v, %v", got, reply, err)
	}
	if s := c.Stats(); s.Streams != 1 || s.Requests != 0 || s.Failures != 0 {
		t.Errorf("%+v", s)
	}
}

// L13: comments and keep-alives are no events; an event of another type that is no
// JSON-RPC is dropped and counted, and does not end the stream.
func TestWhatKeepsAStreamAliveIsSkipped(t *testing.T) {
	c := newAgent(t, Config{}, events(": ping\n\n:\n\nevent: ping\ndata: x\n\ndata:\n\ndata:  \n\nevent: ping\ndata: {}\n\ndata: "+event(1)+"\n\n"))
	wantStream(t, c, event(1))
	if s := c.Stats(); s.Skipped != 4 {
		t.Errorf("%+v", s)
	}
	// What is JSON-RPC counts under every type: an error may have one of its own.
	const object = `{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"no"}}`
	wantStream(t, newAgent(t, Config{}, events("event: error\ndata: "+object+"\n\n")), object)
}

// L14: whatever the lines end in, and over however many a JSON text goes.
func TestEventsInSeveralLines(t *testing.T) {
	const text = "id: 1\ndata: {\"jsonrpc\":\"2.0\",\ndata:\"id\":\"q\",\ndata: \"result\":1}\nretry: 5\n\ndata:{\"jsonrpc\":\"2.0\",\"id\":\"q\",\"result\":2}\n\n"
	for _, end := range []string{"\n", "\r\n", "\r"} {
		wantStream(t, newAgent(t, Config{}, events(strings.ReplaceAll(text, "\n", end))),
			"{\"jsonrpc\":\"2.0\",\n\"id\":\"q\",\n\"result\":1}", `{"jsonrpc":"2.0","id":"q","result":2}`)
	}
}

// L15: a whole JSON event is accepted at the end of a body, half of one is an
// abnormal end and never handed out.
func TestStreamThatEndsWithinAnEvent(t *testing.T) {
	for _, end := range []string{"\n\n", "\n", ""} {
		wantStream(t, newAgent(t, Config{}, events("data: "+event(1)+"\n\ndata: "+event(2)+end)), event(1), event(2))
	}
	half := "data: " + event(1) + "\n\ndata: " + event(2)[:20]
	wantBroken(t, newAgent(t, Config{}, events(half)), "cut within an event", event(1))
	wantBroken(t, newAgent(t, Config{}, events(half+"\n")), "cut within an event", event(1))
	// The same of a body that was to be longer.
	long := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1000")
			events(text)(w, r)
		}
	}
	wantBroken(t, newAgent(t, Config{}, long("data: "+event(1)+"\n\ndata: "+event(2))), "broke", event(1), event(2))
	wantBroken(t, newAgent(t, Config{}, long(half)), "cut within an event", event(1))
}

// L16: what an agent answers in place of a stream is never an empty success.
func TestStreamCallAnsweredWithoutAStream(t *testing.T) {
	const object = `{"jsonrpc":"2.0","id":"q","error":{"code":-32602,"message":"bad part","data":{"i":0}}}`
	for _, status := range []int{200, 400, 503} {
		c := newAgent(t, Config{}, answerWith(status, "application/json", object))
		events, reply, err := stream(t, c)
		if err != nil || reply == nil || !reply.Error || string(reply.Body) != object || len(events) != 0 {
			t.Errorf("%d: %q, %+v, %v", status, events, reply, err)
			continue
		}
		reply.Release()
	}
	c := newAgent(t, Config{}, answerWith(200, "Application/JSON; charset=utf-8", plainResponse))
	if _, reply, err := stream(t, c); err != nil || reply == nil || reply.Error || string(reply.Body) != plainResponse {
		t.Errorf("%+v, %v", reply, err)
	} else {
		reply.Release()
	}
	for name, c := range map[string]struct {
		agent  http.HandlerFunc
		status int
		text   string
	}{
		"401 with HTML":      {answerWith(401, "text/html", "<p>who?</p>"), 401, "HTTP status 401 with text/html"},
		"no content type":    {answerWith(200, "", "data: "+event(1)+"\n\n"), 200, "without a Content-Type"},
		"another charset":    {answerWith(200, "text/event-stream; charset=utf-16", "data: "+event(1)+"\n\n"), 200, "in place of JSON"},
		"ndjson":             {answerWith(200, "application/x-ndjson", event(1)), 200, "application/x-ndjson"},
		"204":                {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, 204, "without a body"},
		"a stream under 500": {answerWith(500, "text/event-stream", "data: "+event(1)+"\n\n"), 500, "HTTP status 500 with text/event-stream"},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, 307, "redirects are not followed"},
		"a compressed stream": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			events("x")(w, r)
		}, 200, "content encoding"},
	} {
		client := newAgent(t, Config{}, c.agent)
		_, reply, err := stream(t, client)
		var fault *Error
		if !errors.As(err, &fault) || fault.Status != c.status || !strings.Contains(fault.Text, c.text) || reply != nil {
			t.Errorf("%s: %v, %v", name, reply, err)
		}
		if s := client.Stats(); s.Failures != 1 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// L36.
func TestEventStreamContentTypes(t *testing.T) {
	for _, field := range []string{"text/event-stream", "text/event-stream;charset=UTF-8", "Text/Event-Stream ; x=y"} {
		wantStream(t, newAgent(t, Config{}, answerWith(200, field, "data: "+event(1)+"\n\n")), event(1))
	}
}

// An event that is no answer to the request breaks the stream: it can neither be
// delivered nor dropped.
func TestEventsThatAreNoAnswers(t *testing.T) {
	for body, text := range map[string]string{
		`[DONE]`: "not a JSON-RPC response",
		`{"jsonrpc":"2.0","id":"q","method":"message/send"}`: "not a JSON-RPC response",
		`{"jsonrpc":"2.0","id":"other","result":1}`:          "another id",
		`{"jsonrpc":"2.0","id":null,"result":1}`:             "another id",
	} {
		wantBroken(t, newAgent(t, Config{}, events("data: "+event(1)+"\n\ndata: "+body+"\n\n")), text, event(1))
	}
}

// L11: a line of 12 MiB crosses whole, and one over the limit is a definite error.
func TestLongEventsOfAStream(t *testing.T) {
	pad := `"` + strings.Repeat("0123456789abcdef", 12<<20/16) + `"`
	wantStream(t, newAgent(t, Config{MaxReply: 13 << 20}, events("data: "+event(pad)+"\n\ndata: "+event("2")+"\n\n")), event(pad), event("2"))
	wantBroken(t, newAgent(t, Config{}, events("data: "+event("0")+"\n\ndata: "+event(pad)+"\n\n")), "over the limit of 4194304 octets", event("0"))
	wantBroken(t, newAgent(t, Config{MaxBuffered: 1 << 20}, events("data: "+event("0")+"\n\ndata: "+event(pad)+"\n\n")), "no memory is left", event("0"))
}

// L18: a reset is told from an end.
func TestStreamThatBreaks(t *testing.T) {
	sent := make(chan struct{}, 1)
	reset := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: %s\n\n", event(1))
		w.(http.Flusher).Flush()
		<-sent
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_ = conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}
	c := newAgent(t, Config{}, reset)
	var got []string
	_, err := c.Stream(t.Context(), request(t, streamRequest), func(octets []byte) error {
		got = append(got, string(octets))
		sent <- struct{}{}
		return nil
	})
	var fault *Error
	if !errors.As(err, &fault) || !fault.Unknown || !strings.Contains(fault.Text, "broke") || len(got) != 1 {
		t.Errorf("%q, %v", got, err)
	}
	// Chunks without the last one.
	wantBroken(t, newAgent(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: %s\n\n", event(1))
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}), "broke", event(1))
	// A body that ends with its connection.
	wantStream(t, newAgent(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // what is left unread would reset it
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		fmt.Fprintf(rw, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\ndata: %s\n\n", event(1))
		rw.Flush()
		conn.Close()
	}), event(1))
}

// pipes is a listener whose connections are pipes, to speak HTTP in virtual time.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// inBubble runs a test with an agent in virtual time.
func inBubble(t *testing.T, cfg Config, agent http.HandlerFunc, test func(t *testing.T, c *Client)) {
	synctest.Test(t, func(t *testing.T) {
		l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		server := &http.Server{Handler: agent}
		go func() { _ = server.Serve(l) }()
		cfg.URL = "http://localhost/a2a"
		c, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		c.transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			a, b := net.Pipe()
			l.conns <- a
			return &countedConn{Conn: b}, nil
		}
		test(t, c)
		c.Close()
		server.Close()
	})
}

// A stream lasts as long as it lasts, however requests are bounded.
func TestStreamsHaveNoDeadline(t *testing.T) {
	inBubble(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then the server notices who leaves
		<-time.After(3 * DefaultTimeout)
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %s\n\n", event(i))
			w.(http.Flusher).Flush()
			<-time.After(24 * time.Hour)
		}
	}, func(t *testing.T, c *Client) { wantStream(t, c, event(0), event(1), event(2)) })
}

// A bound for silence is an option, and comments break it; how long an event is
// worked on does not count.
func TestSilentStream(t *testing.T) {
	const idle = time.Minute
	left := false
	inBubble(t, Config{StreamIdle: idle}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for range 10 {
			<-time.After(idle - 1)
			fmt.Fprint(w, ":\n\n")
			w.(http.Flusher).Flush()
		}
		fmt.Fprintf(w, "data: %s\n\n", event(1))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		left = true
	}, func(t *testing.T, c *Client) {
		began, worked := time.Now(), 0
		_, err := c.Stream(t.Context(), request(t, streamRequest), func([]byte) error {
			<-time.After(5 * idle)
			worked++
			return nil
		})
		if !errors.As(err, new(*Error)) || !strings.Contains(err.Error(), "silent for too long") || worked != 1 {
			t.Errorf("%v after %d events", err, worked)
		}
		if took := time.Since(began); took != 10*(idle-1)+5*idle+idle {
			t.Errorf("after %v", took)
		}
		synctest.Wait()
		if !left {
			t.Error("its connection was not closed")
		}
	})
	inBubble(t, Config{StreamIdle: idle}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}, func(t *testing.T, c *Client) {
		began := time.Now()
		if _, _, err := stream(t, c); err == nil || !strings.Contains(err.Error(), "silent for too long") || time.Since(began) != idle {
			t.Errorf("without a header: %v after %v", err, time.Since(began))
		}
	})
}

// The end of the context is a closed connection for the agent, at once.
func TestStreamThatIsGivenUp(t *testing.T) {
	left := make(chan struct{})
	c := newAgent(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: %s\n\n", event(1))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(left)
	})
	ctx, cancel := context.WithCancel(t.Context())
	_, err := c.Stream(ctx, request(t, streamRequest), func([]byte) error {
		cancel()
		return nil
	})
	if !errors.As(err, new(*Error)) || !strings.Contains(err.Error(), "given up") {
		t.Errorf("%v", err)
	}
	select {
	case <-left:
	case <-time.After(time.Second):
		t.Error("the agent has not noticed within a second")
	}

	failed := errors.New("failed")
	c = newAgent(t, Config{}, events("data: "+event(1)+"\n\n"))
	if _, err := c.Stream(t.Context(), request(t, streamRequest), func([]byte) error { return failed }); err != failed {
		t.Errorf("%v", err)
	}
	if s := c.Stats(); s.Failures != 0 {
		t.Errorf("%+v", s)
	}
}

// D19: events behind the last one wanted are counted, and the connection is used
// again; a source that does not end does not hold us.
func TestEnoughOfAStream(t *testing.T) {
	var mu sync.Mutex
	var from []string
	endless := make(chan struct{})
	c := newAgent(t, Config{IdleTimeout: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		from = append(from, r.RemoteAddr)
		last := len(from) == 3
		mu.Unlock()
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: %s\n\ndata: %s\n\ndata: x\n\n", event(1), event(2))
		if last {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			close(endless)
		}
	})
	for range 3 {
		n := 0
		reply, err := c.Stream(t.Context(), request(t, streamRequest), func([]byte) error { n++; return ErrEnough })
		if reply != nil || err != nil || n != 1 {
			t.Errorf("%v, %v after %d events", reply, err, n)
		}
	}
	<-endless
	mu.Lock()
	defer mu.Unlock()
	if from[0] != from[1] {
		t.Error("the connection was not used again")
	}
	if s := c.Stats(); s.Late != 6 || s.Failures != 0 {
		t.Errorf("%+v", s)
	}
}

// While an event is worked on no more is read: an agent can't send ahead further
// than what lies in sockets.
func TestStreamIsReadNoFasterThanItsEventsAreTaken(t *testing.T) {
	const total = 64 << 20
	var sent atomic.Int64
	c := newAgent(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		text := []byte("data: " + event(`"`+strings.Repeat("x", 64<<10)+`"`) + "\n\n")
		for sent.Load() < total {
			n, err := w.Write(text)
			if err != nil {
				return
			}
			sent.Add(int64(n))
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, _ = c.Stream(ctx, request(t, streamRequest), func([]byte) error {
		for last := int64(-1); last != sent.Load(); {
			last = sent.Load()
			<-time.After(50 * time.Millisecond)
		}
		if n := sent.Load(); n >= total/2 {
			t.Errorf("%d octets were sent beside one event", n)
		}
		return ErrEnough
	})
}

// L29: a stream that only reads is asked for again when a kept connection turns
// out to be dead, any other is not.
func TestStreamsOnDeadConnections(t *testing.T) {
	for _, effect := range []bridge.Effect{bridge.ReadOnly, bridge.NonIdempotentWrite} {
		var n atomic.Int32
		c := newAgent(t, Config{IdleTimeout: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
			n := n.Add(1)
			if n == 2 {
				panic(http.ErrAbortHandler)
			}
			events("data: "+event(n)+"\n\n")(w, r)
		})
		wantStream(t, c, event(1))
		r := request(t, streamRequest)
		r.Effect = effect
		_, err := c.Stream(t.Context(), r, func([]byte) error { return nil })
		if reads := effect == bridge.ReadOnly; (err == nil) != reads || (n.Load() == 3) != reads || (c.Stats().Retries == 1) != reads {
			t.Errorf("%v: %v after %d requests, %+v", effect, err, n.Load(), c.Stats())
		}
	}
}

// Whatever a body holds, only responses to the request are handed out, and nothing
// is held afterwards.
func FuzzStream(f *testing.F) {
	for _, text := range []string{
		"data: " + event(1) + "\n\n", ": x\n\nevent: ping\ndata: x\n\n", "data: {\ndata: }\n\n", "data: " + event(1), `data: {"jsonrpc":"2.0","id":"q","error":{}}` + "\r\r",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := New(Config{URL: "http://localhost/"})
		if err != nil {
			t.Fatal(err)
		}
		c.client.Transport = roundTripper(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: io.NopCloser(bytes.NewReader(text))}, nil
		})
		r := request(t, streamRequest)
		reply, err := c.Stream(t.Context(), r, func(octets []byte) error {
			if _, err := kindOf(r, octets); err != nil {
				t.Errorf("%q: %v", octets, err)
			}
			return nil
		})
		if reply != nil || err != nil && !errors.As(err, new(*Error)) || c.budget.Used() != 0 {
			t.Errorf("%v, %v, %d octets held", reply, err, c.budget.Used())
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A Go server that names no content type is given text/plain by its library; a
// JSON-RPC answer under it is one.
func TestAnswersWithoutAContentTypeOfTheirOwn(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, plainResponse) }))
	defer server.Close()
	c := newClient(t, Config{URL: server.URL})
	reply, err := c.Call(t.Context(), request(t, plainRequest))
	if err != nil || string(reply.Body) != plainResponse {
		t.Fatalf("%v", err)
	}
	reply.Release()
	c = newAgent(t, Config{}, answerWith(200, "text/plain; charset=utf-8", `"text"`))
	if _, err := c.Call(t.Context(), request(t, plainRequest)); err == nil || !strings.Contains(err.Error(), "with text/plain in place of JSON") || c.budget.Used() != 0 {
		t.Errorf("%v", err)
	}
}
