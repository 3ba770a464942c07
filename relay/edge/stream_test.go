package edge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/relay/sse"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

const subscribe = `{"jsonrpc":"2.0","id":"s","method":"message/stream","params":{}}`

// said is a response to subscribe that says text.
func said(text string) string { return `{"jsonrpc":"2.0","id":"s","result":"` + text + `"}` }

// script is a Stream that a test plays.
type script struct {
	ctx    context.Context
	events chan Event
	end    error // after events is closed; nil is io.EOF
	closed atomic.Int32
}

func newScript(end error, bodies ...string) *script {
	s := &script{events: make(chan Event, len(bodies)), end: end}
	for _, b := range bodies {
		s.events <- Event{Body: []byte(b)}
	}
	close(s.events)
	return s
}

func (s *script) Next() (Event, error) {
	var done <-chan struct{}
	if s.ctx != nil {
		done = s.ctx.Done()
	}
	select {
	case e, ok := <-s.events:
		switch {
		case ok:
			return e, nil
		case s.end != nil:
			return Event{}, s.end
		}
		return Event{}, io.EOF
	case <-done:
		return Event{}, s.ctx.Err()
	}
}

func (s *script) Close() { s.closed.Add(1) }

// play makes an edge whose agent plays s.
func play(t *testing.T, cfg Config, s *script) (*Edge, *httptest.Server) {
	cfg.Forwarder = &agent{stream: func(ctx context.Context, _ *Message) (Stream, error) {
		s.ctx = ctx
		return s, nil
	}}
	e, server := newEdge(t, cfg)
	t.Cleanup(func() {
		// A caller may see its connection reset before the edge has done with it.
		nptest.Eventually(t, func() bool { return s.closed.Load() == 1 && e.Stats().Streaming == 0 }, func() any {
			return fmt.Sprintf("the stream was closed %d times, %+v", s.closed.Load(), e.Stats())
		})
	})
	return e, server
}

// open POSTs a streaming request and returns what answers it, of which nothing was
// read yet but the header.
func open(t *testing.T, ctx context.Context, s *httptest.Server) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, "POST", s.URL+"/agents/echo", strings.NewReader(subscribe))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "text/event-stream")
	request.Header.Set("Accept-Encoding", "gzip, br")
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		response.Body.Close()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	return response
}

// eventsOf reads the events of a body to its end.
func eventsOf(body io.Reader) (events []string, err error) {
	in := sse.NewReader(body, 64<<20, nil)
	defer in.Release()
	for {
		e, err := in.Next()
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return events, err
		}
		events = append(events, string(e.Data))
	}
}

// The events are the agent's, octet for octet, and the end of the body is the end
// of the stream; L17: the header says that nobody may hold anything back, and
// nothing is compressed.
func TestStreamOfEvents(t *testing.T) {
	const odd = ` {"z":1.10,"result":{"h":"<b>&\u003c\u2028é"},"jsonrpc":"2.0","id":"s"}`
	const spaced = "{\n\"jsonrpc\":\"2.0\",\r\n\"id\":\"s\",\r\"result\":1\n}\n"
	s := newScript(nil, said("1"), odd, spaced, said("4"))
	forwarded := 0
	e, server := newEdge(t, Config{Forwarder: &agent{stream: func(_ context.Context, m *Message) (Stream, error) {
		forwarded++
		if string(m.Body) != subscribe || m.Agent != "echo" || string(m.Method) != "message/stream" || string(m.ID) != `"s"` || m.Effect != bridge.NonIdempotentWrite {
			t.Errorf("forwarded %+v", m)
		}
		return s, nil
	}}})
	r := open(t, t.Context(), server)
	for name, want := range map[string]string{
		"Content-Type": "text/event-stream", "Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no", "Content-Encoding": "", "Content-Length": "",
		"X-Content-Type-Options": "nosniff",
	} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	got, err := eventsOf(r.Body)
	if want := []string{said("1"), odd, strings.ReplaceAll(spaced, "\r", "\n"), said("4")}; r.StatusCode != 200 || err != nil || fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("%d, %q, %v", r.StatusCode, got, err)
	}
	if st := e.Stats(); st.Streams != 1 || st.Events != 4 || st.Broken != 0 || st.Left != 0 || forwarded != 1 || s.closed.Load() != 1 {
		t.Errorf("%+v", st)
	}
}

// L30: both versions' names; D15: their effects. A notification has no stream.
func TestStreamingOperations(t *testing.T) {
	notified := 0
	_, server := newEdge(t, Config{Forwarder: &agent{
		stream: func(_ context.Context, m *Message) (Stream, error) {
			return newScript(nil, `{"jsonrpc":"2.0","id":1,"result":"`+m.Effect.String()+`"}`), nil
		},
		notify: func(context.Context, *Message) error { notified++; return nil },
	}})
	for method, effect := range map[string]string{
		"message/stream": "non_idempotent_write", "SendStreamingMessage": "non_idempotent_write", "tasks/resubscribe": "read_only", "SubscribeToTask": "read_only",
	} {
		if a := post(t, server, `{"jsonrpc":"2.0","id":1,"method":"`+method+`"}`); a.status != 200 || a.body != `data: {"jsonrpc":"2.0","id":1,"result":"`+effect+"\"}\n\n" {
			t.Errorf("%s: %d %q", method, a.status, a.body)
		}
		if a := post(t, server, `{"jsonrpc":"2.0","method":"`+method+`"}`); a.status != 202 {
			t.Errorf("%s as a notification: %d %q", method, a.status, a.body)
		}
	}
	if notified != 4 {
		t.Errorf("%d notifications", notified)
	}
}

// L16: an agent's answer in one piece is one here, an error as an error.
func TestStreamAnsweredInOnePiece(t *testing.T) {
	for _, isError := range []bool{false, true} {
		said := `{"jsonrpc":"2.0","id":"s","error":{"code":-32602,"message":"bad part","data":{"i":0}}}`
		s := newScript(nil)
		s.events = make(chan Event, 1)
		s.events <- Event{Body: []byte(said), Reply: true, Error: isError}
		e, server := play(t, Config{}, s)
		a := post(t, server, subscribe)
		if a.status != 200 || a.body != said || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%d %q %v", a.status, a.body, a.header)
		}
		if st := e.Stats(); (st.Errors == 1) != isError || (st.Results == 1) == isError || st.Streams != 0 {
			t.Errorf("%+v", st)
		}
	}
	// Once the header was sent it is an event, and the last one.
	s := newScript(nil)
	s.events = make(chan Event, 2)
	_, server := play(t, Config{CommitAfter: time.Millisecond}, s)
	r := open(t, t.Context(), server) // waits for the header
	s.events <- Event{Body: []byte(said("late")), Reply: true, Error: true}
	close(s.events)
	if got, err := eventsOf(r.Body); r.StatusCode != 200 || fmt.Sprint(got) != "["+said("late")+"]" || err != nil {
		t.Errorf("%d, %q, %v", r.StatusCode, got, err)
	}
}

// D23: as long as no header was sent, an error has its status; an end without an
// event is one, too.
func TestStreamThatNeverBegins(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		detail string
	}{
		{ErrNoAgent, 404, "no agent"}, {ErrLost, 502, "outcome unknown"}, {ErrDraining, 503, "shutting down"}, {io.EOF, 502, "malformed"},
		{&bridge.Error{Code: bridge.CodeNotDelivered, Text: "the agent answered HTTP status 401 with text/html in place of JSON"}, 502, "HTTP status 401"},
		{&bridge.Error{Code: bridge.CodeSafetyPolicy, Text: "why"}, 403, "why"},
	} {
		e, server := play(t, Config{}, newScript(c.err))
		a := post(t, server, subscribe)
		if a.status != c.status || !strings.Contains(a.body, c.detail) || a.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%v: %d %s", c.err, a.status, a.body)
		}
		if st := e.Stats(); st.Faults != 1 || st.Broken != 0 {
			t.Errorf("%v: %+v", c.err, st)
		}
		_, server = newEdge(t, Config{Forwarder: &agent{stream: func(context.Context, *Message) (Stream, error) { return nil, c.err }}})
		if a := post(t, server, subscribe); c.err != io.EOF && a.status != c.status {
			t.Errorf("%v: %d %s", c.err, a.status, a.body)
		}
	}
}

// L18, D19: a stream that breaks is a body that is cut, behind its events and
// before any, once the header was sent.
func TestStreamThatBreaksIsACutBody(t *testing.T) {
	e, server := play(t, Config{}, newScript(ErrLost, said("1"), said("2")))
	r := open(t, t.Context(), server)
	got, err := eventsOf(r.Body)
	if fmt.Sprint(got) != "["+said("1")+" "+said("2")+"]" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%q, %v", got, err)
	}
	if st := e.Stats(); st.Broken != 1 || st.Streams != 0 || st.Left != 0 {
		t.Errorf("%+v", st)
	}
	s := newScript(nil)
	s.events, s.end = make(chan Event), ErrLost
	_, server = play(t, Config{CommitAfter: time.Millisecond}, s)
	r = open(t, t.Context(), server)
	close(s.events)
	if got, err := eventsOf(r.Body); len(got) != 0 || !errors.Is(err, io.ErrUnexpectedEOF) || r.StatusCode != 200 {
		t.Errorf("%q, %v", got, err)
	}
}

// L18, D19: nor does a caller that speaks HTTP/1.0, as proxies do, take a stream that
// broke for a complete one: there a body ends with its connection, which is reset.
func TestBrokenStreamResetsAnHTTP10Connection(t *testing.T) {
	for _, end := range []error{nil, ErrLost} {
		_, server := play(t, Config{}, newScript(end, said("1")))
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST /agents/echo HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(subscribe), subscribe)
		octets, err := io.ReadAll(conn)
		if end == nil && (err != nil || !strings.HasSuffix(string(octets), "\r\n\r\ndata: "+said("1")+"\n\n")) {
			t.Errorf("a complete stream: %q, %v", octets, err)
		}
		if end != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a stream that broke: %q, %v", octets, err)
		}
	}
}

// D17: what is no response to the request is not passed on, and does not pass for an
// end.
func TestEventsThatAreNoAnswers(t *testing.T) {
	for _, no := range []string{
		``, `x`, `{}`, `{"jsonrpc":"2.0","id":"t","result":1}`, `{"jsonrpc":"2.0","id":null,"result":1}`, `{"jsonrpc":"2.0","id":"s","method":"message/send"}`,
		`{"jsonrpc":"2.0","method":"message/send"}`, "{\"jsonrpc\":\"2.0\",\"id\":\"s\",\"result\":\"\r\"}",
	} {
		e, server := play(t, Config{}, newScript(nil, said("1"), no, said("2")))
		got, err := eventsOf(open(t, t.Context(), server).Body)
		if fmt.Sprint(got) != "["+said("1")+"]" || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: %q, %v", no, got, err)
		}
		if st := e.Stats(); st.Broken != 1 {
			t.Errorf("%q: %+v", no, st)
		}
		_, server = play(t, Config{}, newScript(nil, no))
		post(t, server, subscribe).wantProblem(t, 502, bridge.CodeEnvelopeMalformed, "malformed")
	}
	const null = `{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"no"}}`
	_, server := play(t, Config{}, newScript(nil, null))
	if got, err := eventsOf(open(t, t.Context(), server).Body); err != nil || fmt.Sprint(got) != "["+null+"]" {
		t.Errorf("%q, %v", got, err)
	}
}

// L17: an event is with the caller before there is another, and the header before
// there is any.
func TestEventsAreNotHeldBack(t *testing.T) {
	s := newScript(nil)
	s.events = make(chan Event)
	_, server := play(t, Config{CommitAfter: 10 * time.Millisecond}, s)
	r := open(t, t.Context(), server)
	in := bufio.NewReader(r.Body)
	var took []time.Duration
	for range 50 {
		began := time.Now()
		s.events <- Event{Body: []byte(said(strings.Repeat("x", 40)))}
		line, err := in.ReadString('\n')
		if err != nil || line != "data: "+said(strings.Repeat("x", 40))+"\n" {
			t.Fatalf("%q, %v", line, err)
		}
		took = append(took, time.Since(began))
		if _, err := in.Discard(1); err != nil {
			t.Fatal(err)
		}
	}
	close(s.events)
	if _, err := in.ReadByte(); err != io.EOF {
		t.Errorf("%v", err)
	}
	// Half of them, since the machine may be busy.
	if slices.Sort(took); took[len(took)/2] > 100*time.Millisecond {
		t.Errorf("events took %v", took)
	}
}

// pipes is a listener whose connections are pipes, to serve HTTP in virtual time.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

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

func (p *pipes) dial() net.Conn {
	a, b := net.Pipe()
	p.conns <- a
	return b
}

// inBubble serves an edge in virtual time and sends the streaming request.
func inBubble(t *testing.T, cfg Config, test func(t *testing.T, e *Edge, s *script, conn net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{events: make(chan Event, 1)}
		cfg.Forwarder = &agent{stream: func(ctx context.Context, _ *Message) (Stream, error) {
			s.ctx = ctx
			return s, nil
		}}
		e, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		l := newPipes()
		server := &http.Server{Handler: e}
		go func() { _ = server.Serve(l) }()
		defer server.Close()
		conn := l.dial()
		defer conn.Close()
		fmt.Fprintf(conn, "POST /agents/echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(subscribe), subscribe)
		test(t, e, s, conn)
		conn.Close()
		e.Drain()
		if err := e.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		if st := e.Stats(); st.Streaming != 0 || st.InFlight != 0 || st.Buffered != 0 || s.closed.Load() != 1 {
			t.Errorf("%+v, closed %d times", st, s.closed.Load())
		}
	})
}

// L13: a silent stream has its header after CommitAfter and a comment every
// KeepAlive, for hours; events put the next comment off.
func TestSilentStreamIsKeptAlive(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, e *Edge, s *script, conn net.Conn) {
		began := time.Now()
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || time.Since(began) != DefaultCommitAfter {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
		body := bufio.NewReader(r.Body)
		line := func(want string, after time.Duration) {
			t.Helper()
			began := time.Now()
			for _, want := range []string{want + "\n", "\n"} {
				if got, err := body.ReadString('\n'); err != nil || got != want {
					t.Fatalf("%q, %v", got, err)
				}
			}
			if took := time.Since(began); took != after {
				t.Errorf("%q after %v, want %v", want, took, after)
			}
		}
		for range 1000 {
			line(": keep-alive", DefaultKeepAlive)
		}
		<-time.After(DefaultKeepAlive / 2)
		s.events <- Event{Body: []byte(said("x"))}
		line("data: "+said("x"), 0)
		line(": keep-alive", DefaultKeepAlive)
		close(s.events)
		if _, err := body.ReadByte(); err != io.EOF {
			t.Errorf("%v", err)
		}
	})
}

func TestKeepAliveCanBeTurnedOff(t *testing.T) {
	inBubble(t, Config{KeepAlive: -1}, func(t *testing.T, e *Edge, s *script, conn net.Conn) {
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(24*time.Hour, func() {
			s.events <- Event{Body: []byte(said("x"))}
			close(s.events)
		})
		// The end is written in time, too, however long nothing was.
		if got, err := io.ReadAll(r.Body); err != nil || string(got) != "data: "+said("x")+"\n\n" {
			t.Errorf("%q, %v", got, err)
		}
		if st := e.Stats(); st.Streams != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// L22: a caller that takes nothing is cut with a reason and counted; one that takes
// a little in time is not.
func TestCallerThatReadsTooSlowly(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, e *Edge, s *script, conn net.Conn) {
		s.events <- Event{Body: []byte(said("x"))}
		synctest.Wait()
		began := time.Now()
		<-s.ctx.Done()
		if took := time.Since(began); took != DefaultStallTimeout {
			t.Errorf("after %v", took)
		}
		synctest.Wait()
		if st := e.Stats(); st.Stalled != 1 || st.Left != 0 || st.Broken != 0 {
			t.Errorf("%+v", st)
		}
	})

	const size = 1 << 20
	inBubble(t, Config{}, func(t *testing.T, e *Edge, s *script, conn net.Conn) {
		s.events <- Event{Body: []byte(said(strings.Repeat("x", size)))}
		close(s.events)
		in := bufio.NewReaderSize(conn, 16)
		r, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		step := make([]byte, 64<<10)
		total := 0
		for {
			n, err := io.ReadFull(r.Body, step)
			total += n
			if err != nil {
				break
			}
			<-time.After(DefaultStallTimeout / 2)
		}
		if total != size+len("data: "+said("")+"\n\n") {
			t.Errorf("%d octets", total)
		}
	})
}

// L19: the caller's leaving ends the stream at once.
func TestCallerThatLeavesAStream(t *testing.T) {
	s := newScript(nil)
	s.events = make(chan Event, 1)
	e, server := play(t, Config{}, s)
	ctx, cancel := context.WithCancel(t.Context())
	s.events <- Event{Body: []byte(said("x"))}
	r := open(t, ctx, server)
	if _, err := io.ReadFull(r.Body, make([]byte, 9)); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case <-s.ctx.Done():
	case <-time.After(time.Second):
		t.Fatal("the stream was not told within a second")
	}
	e.Drain()
	if err := e.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := e.Stats(); st.Left != 1 || st.Broken != 0 || st.Streams != 0 || st.Stalled != 0 {
		t.Errorf("%+v", st)
	}
}

// L27: streams go on through a drain until they are cut, which their callers can
// tell from an end.
func TestStreamsAreCutWhenToldSo(t *testing.T) {
	s := newScript(nil)
	s.events = make(chan Event, 2)
	e, server := play(t, Config{}, s)
	s.events <- Event{Body: []byte(said("1"))}
	r := open(t, t.Context(), server)
	e.Drain()
	s.events <- Event{Body: []byte(said("2"))}
	in := bufio.NewReader(r.Body)
	for range 4 {
		if _, err := in.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	post(t, server, subscribe).wantProblem(t, 503, bridge.CodeNotDelivered, "shutting down")
	e.CutStreams()
	if _, err := in.ReadByte(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
	if err := e.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := e.Stats(); st.Broken != 1 || st.Left != 0 {
		t.Errorf("%+v", st)
	}
	// One that had no event is told so, and that the agent may have acted: 503 would
	// invite it to send the message once more.
	s = newScript(nil)
	s.events = make(chan Event)
	e, server = play(t, Config{CommitAfter: time.Minute}, s)
	told := make(chan answer)
	go func() { told <- post(t, server, subscribe) }()
	for e.Stats().Streaming == 0 {
		<-time.After(time.Millisecond)
	}
	e.CutStreams()
	a := <-told
	a.wantProblem(t, 502, bridge.CodeNotDelivered, "shutting down; outcome unknown")
	if a.header.Get("Retry-After") != "" {
		t.Errorf("%v", a.header)
	}
}

// A request's body is not held while its stream goes on.
func TestStreamHoldsNoBody(t *testing.T) {
	s := newScript(nil)
	s.events = make(chan Event, 1)
	s.events <- Event{Body: []byte(said("x"))}
	e, server := play(t, Config{}, s)
	open(t, t.Context(), server)
	if st := e.Stats(); st.Buffered != 0 || st.Streaming != 1 || st.InFlight != 1 {
		t.Errorf("%+v", st)
	}
	close(s.events)
	e.Drain()
	if err := e.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The connection of a stream that ended serves the next request.
func TestConnectionAfterAStream(t *testing.T) {
	_, server := newEdge(t, Config{StallTimeout: 30 * time.Millisecond, Forwarder: &agent{
		call:   echo,
		stream: func(context.Context, *Message) (Stream, error) { return newScript(nil, said("x")), nil },
	}})
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	for _, body := range []string{subscribe, `{"jsonrpc":"2.0","id":4,"method":"ping"}`, subscribe} {
		fmt.Fprintf(conn, "POST /agents/echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		r, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil || r.StatusCode != 200 {
			t.Errorf("%d, %v", r.StatusCode, err)
		}
		<-time.After(60 * time.Millisecond)
	}
}
