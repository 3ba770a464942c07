package relay

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/relay/edge"
	"github.com/trestle-npamp/trestle/relay/sse"
	"github.com/trestle-npamp/trestle/relay/upstream"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// A test run takes less time with less of these. At full length, a few minutes:
//
//	go test -run 'NeverReads|SilentStream|LeaveNothing' -timeout 30m ./relay -args -events 10000 -silence 30s -cycles 5000
var (
	events  = flag.Int("events", 200, "how many events of 1 KiB each of a hundred callers gets")
	silence = flag.Duration("silence", 2*time.Second, "how long the silent stream is silent")
	cycles  = flag.Int("cycles", 200, "how many streams begin and end")
)

// streamRequest is a request for a stream that says n.
func streamRequest(id string, n any) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"message/stream","params":{"n":%v}}`, id, n)
}

// What an agent says in a stream.

func artifact(id string, n any) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"kind":"artifact-update","taskId":"t","contextId":"c","n":%v}}`, id, n)
}

func status(id, state string, final bool) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"kind":"status-update","taskId":"t","contextId":"c","final":%v,"status":{"state":%q}}}`, id, final, state)
}

// flow is the body of an HTTP agent's stream.
type flow struct {
	w http.ResponseWriter
	r *http.Request
}

// flowing makes an agent that answers with a stream. body is the request's.
func flowing(t *testing.T, serve func(f *flow, id, body string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body := read(t, r)
		w.Header().Set("Content-Type", "text/event-stream")
		serve(&flow{w, r}, idOf(t, body), body)
	}
}

// raw sends text as it is; false says that nobody takes it any more.
func (f *flow) raw(text string) bool {
	if _, err := io.WriteString(f.w, text); err != nil {
		return false
	}
	return http.NewResponseController(f.w).Flush() == nil
}

func (f *flow) say(event string) bool { return f.raw("data: " + event + "\n\n") }

// gone waits until nobody takes the stream any more.
func (f *flow) gone() { <-f.r.Context().Done() }

// reset breaks the connection.
func (f *flow) reset(t *testing.T) {
	conn, _, err := http.NewResponseController(f.w).Hijack()
	if err != nil {
		t.Error(err)
		return
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	conn.Close()
}

// backend is a client for an HTTP agent of its own.
func backend(t *testing.T, cfg upstream.Config, h http.Handler) *upstream.Client {
	t.Helper()
	server := httptest.NewServer(h)
	cfg.URL = server.URL
	client, err := upstream.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		server.CloseClientConnections()
		server.Close()
	})
	return client
}

// inflow is a stream that an HTTP caller receives.
type inflow struct {
	t        *testing.T
	response *http.Response
	in       *sse.Reader
	cancel   context.CancelFunc
}

// openHTTP POSTs a request for a stream and waits for the header of the answer. The
// stream is left with the test.
func openHTTP(t *testing.T, r *Relay, name, body string) *inflow {
	t.Helper()
	s := dialHTTP(t, r, name, body)
	t.Cleanup(s.leave)
	return s
}

// dialHTTP is openHTTP for a stream that its test leaves itself.
func dialHTTP(t *testing.T, r *Relay, name, body string) *inflow {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*limit)
	request, err := http.NewRequestWithContext(ctx, "POST", agentURL(r, name), strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "text/event-stream")
	request.Header.Set("Accept-Encoding", "gzip, br")
	response, err := httpClient.RoundTrip(request)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	return &inflow{t, response, sse.NewReader(response.Body, 64<<20, nil), cancel}
}

// openHTTP10 is openHTTP for a caller that speaks HTTP/1.0: only how its connection
// ends tells it whether the body is complete.
func openHTTP10(t *testing.T, r *Relay, name, body string) *inflow {
	t.Helper()
	conn, err := net.Dial("tcp", r.HTTPAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "POST /agents/%s HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", name, len(body), body)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return &inflow{t, response, sse.NewReader(response.Body, 64<<20, nil), func() { conn.Close() }}
}

func (s *inflow) leave() {
	s.cancel()
	s.response.Body.Close()
}

func (s *inflow) next() (string, error) {
	e, err := s.in.Next()
	return string(e.Data), err
}

// want checks for the next event.
func (s *inflow) want(event string) {
	s.t.Helper()
	if got, err := s.next(); err != nil || got != event {
		s.t.Fatalf("%.100q, %v, want %.100q", got, err, event)
	}
}

// wantEnd checks that the stream ends as it should, wantCut that it does not.
func (s *inflow) wantEnd() {
	s.t.Helper()
	if got, err := s.next(); err != io.EOF {
		s.t.Errorf("%q, %v, want the end", got, err)
	}
}

func (s *inflow) wantCut() {
	s.t.Helper()
	if got, err := s.next(); err == nil || err == io.EOF {
		s.t.Errorf("%q, %v, want a cut body", got, err)
	}
}

// open asks for a stream on the link.
func (c *caller) open(body string) *carriage.Stream {
	c.t.Helper()
	s, err := c.bridge.Stream(c.t.Context(), c.assoc, &carriage.Call{Protocol: bridge.ProtocolA2A, Foreign: []byte(body), Hop: true}, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(s.Close)
	return s
}

// wantEvents checks for a stream with these events, the last of them terminal.
func wantEvents(t *testing.T, s *carriage.Stream, events ...string) {
	t.Helper()
	for i, want := range events {
		e, err := s.Next()
		kind := bridge.KindData
		if i == len(events)-1 {
			kind = bridge.KindEnd
		}
		if err != nil || string(e.Foreign) != want || e.Kind != kind || e.ID != carriage.EventID(i+1) {
			t.Fatalf("event %d: %v %d %q, %v, want %v %q", i+1, e.Kind, e.ID, e.Foreign, err, kind, want)
		}
	}
	if e, err := s.Next(); err != io.EOF {
		t.Errorf("%q, %v, want the end", e.Foreign, err)
	}
}

// wantTold checks that a stream ends with a transport error.
func wantTold(t *testing.T, s *carriage.Stream, code bridge.Code, text string) {
	t.Helper()
	e, err := s.Next()
	var told *bridge.Error
	if !errors.As(err, &told) || told.Code != code || !strings.Contains(told.Text, text) {
		t.Errorf("%q, %v, want %v with %q", e.Foreign, err, code, text)
	}
}

// L08, L13, L14, L17: an HTTP agent's events at an HTTP caller and at an N-PAMP
// caller. The octets are the agent's; what only frames them does not cross.
func TestStreamsEndToEnd(t *testing.T) {
	const odd = ` {"z":1.10,"result":{"h":"<b>&\u003c\u2028é","x":1E+2,"n":123456789012345678901234567890},"jsonrpc":"2.0","id":"\u0073"}`
	const request = " {\"z\":1.10,\"jsonrpc\":\"2.0\", \"params\":{\"h\":\"<b>&\\u003c\\u2028é\"},\"id\":\"s\",\"method\":\"message\\/stream\"}\r\n"
	for _, transport := range []engine.Transport{engine.TransportTCP, engine.TransportTLS} {
		t.Run(transport.String(), func(t *testing.T) {
			r := startRelay(t, Config{Engine: engine.Config{Transport: transport}})
			var ends atomic.Int32
			client := backend(t, upstream.Config{}, flowing(t, func(f *flow, id, body string) {
				if body != request || f.r.Header.Get("Accept") != "text/event-stream" {
					t.Errorf("the agent got %q, %v", body, f.r.Header)
				}
				text := ": ping\n\n:\n\nevent: ping\ndata: x\n\nid: 9\nretry: 5\ndata: " + odd + "\n\n" +
					"data: {\"jsonrpc\":\"2.0\",\ndata:\"id\":\"s\",\ndata: \"result\":2}\n\n: more\n\n" + "data:" + status(`"s"`, "completed", true) + "\n\n"
				f.raw(strings.ReplaceAll(text, "\n", []string{"\n", "\r\n", "\r"}[ends.Add(1)%3]))
			}))
			startAgent(t, AgentConfig{Name: "a", Relay: r.Addr().String(), Peer: identity.Pin(r.Key()), Backend: client, Engine: engine.Config{Transport: transport}})
			events := []string{odd, "{\"jsonrpc\":\"2.0\",\n\"id\":\"s\",\n\"result\":2}", status(`"s"`, "completed", true)}
			for range 3 {
				s := openHTTP(t, r, "a", request)
				for name, want := range map[string]string{
					"Content-Type": "text/event-stream", "Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no", "Content-Encoding": "",
				} {
					if got := s.response.Header.Get(name); got != want || s.response.StatusCode != 200 {
						t.Errorf("%d with %s: %q", s.response.StatusCode, name, got)
					}
				}
				for _, e := range events {
					s.want(e)
				}
				s.wantEnd()
			}
			if transport == engine.TransportTCP {
				for range 3 {
					wantEvents(t, dial(t, r, "a").open(request), events...)
				}
				ends.Add(-3)
			}
			if s := client.Stats(); s.Skipped != uint64(s.Streams) {
				t.Errorf("%+v", s)
			}
			if s := r.Stats(); s.Edge.Streams != 3 || s.Edge.Events != 9 || s.Undelivered != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// L17: an event is with the caller before the agent says more, and so the caller
// can answer it.
func TestEventsAreNotHeldBackEndToEnd(t *testing.T) {
	r := startRelay(t, Config{})
	answered := make(chan struct{})
	startHTTP(t, r, "a", flowing(t, func(f *flow, id, _ string) {
		for range 20 {
			f.say(artifact(id, 1))
			select {
			case <-answered:
			case <-f.r.Context().Done():
				return
			}
		}
		f.say(status(id, "completed", true))
	}))
	s := openHTTP(t, r, "a", streamRequest("1", 1))
	var took []time.Duration
	for range 20 {
		began := time.Now()
		s.want(artifact("1", 1))
		took = append(took, time.Since(began))
		answered <- struct{}{}
	}
	// Half of them, since the machine may be busy.
	if slices.Sort(took); took[len(took)/2] > 100*time.Millisecond {
		t.Errorf("events took %v", took)
	}
	t.Logf("an event took %v in the median", took[len(took)/2])
	s.want(status("1", "completed", true))
	s.wantEnd()
}

// D19, L15, L18: how the agent's stream ends is how the callers' ends: with its
// terminal event, whatever follows it; cleanly behind an interrupted state; and in
// every other case not as it should.
func TestEndsOfStreamsEndToEnd(t *testing.T) {
	r := startRelay(t, Config{})
	var play func(f *flow)
	startHTTP(t, r, "a", flowing(t, func(f *flow, _, _ string) { play(f) }))
	c := dial(t, r, "a")
	working, one, done := status("1", "working", false), artifact("1", 1), status("1", "completed", true)
	const errorObject = `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no","data":{"n":12345678901234567890}}}`
	const v1done = `{"jsonrpc":"2.0","id":1,"result":{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_CANCELED"}}}}`
	const message = `{"jsonrpc":"2.0","id":1,"result":{"kind":"message","messageId":"m","role":"agent","parts":[]}}`
	const task = `{"jsonrpc":"2.0","id":1,"result":{"kind":"task","id":"t","contextId":"c","status":{"state":"failed"}}}`
	for name, end := range map[string]struct {
		play   func(f *flow)
		events []string
		told   string // "" for a stream that ends as it should
	}{
		"a final status":             {func(f *flow) { f.say(working); f.say(done) }, []string{working, done}, ""},
		"a final status, then a cut": {func(f *flow) { f.say(done); f.reset(t) }, []string{done}, ""},
		"a final status and more":    {func(f *flow) { f.say(done); f.say(one); f.gone() }, []string{done}, ""},
		"an error object":            {func(f *flow) { f.say(working); f.say(errorObject) }, []string{working, errorObject}, ""},
		"a message":                  {func(f *flow) { f.say(message) }, []string{message}, ""},
		"a failed task":              {func(f *flow) { f.say(working); f.say(task) }, []string{working, task}, ""},
		"v1.0's status":              {func(f *flow) { f.say(one); f.say(v1done) }, []string{one, v1done}, ""},
		"no blank line":              {func(f *flow) { f.say(working); f.raw("data: " + done + "\n") }, []string{working, done}, ""},
		"no line end":                {func(f *flow) { f.say(working); f.raw("data: " + done) }, []string{working, done}, ""},
		"half an event":              {func(f *flow) { f.say(working); f.raw("data: " + done[:40]) }, []string{working}, "cut within an event"},
		"a clean FIN":                {func(f *flow) { f.say(working); f.say(one) }, []string{working, one}, "without a terminal event"},
		"a reset":                    {func(f *flow) { f.say(working); f.say(one); f.reset(t) }, []string{working, one}, "broke"},
		"no event":                   {func(f *flow) { f.raw(": nothing\n\n") }, nil, "without a terminal event"},
		"another id":                 {func(f *flow) { f.say(working); f.say(artifact("2", 1)); f.gone() }, []string{working}, "another id"},
		"no JSON":                    {func(f *flow) { f.say(working); f.say("[DONE]"); f.gone() }, []string{working}, "not a JSON-RPC response"},
		"final, but interrupted":     {func(f *flow) { f.say(status("1", "input-required", true)); f.gone() }, []string{status("1", "input-required", true)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			play = end.play
			s := openHTTP(t, r, "a", streamRequest("1", 1))
			switch {
			case end.told != "" && len(end.events) == 0:
				octets, _ := io.ReadAll(s.response.Body)
				answerOf{s.response.StatusCode, s.response.Header, string(octets)}.want(t, 502, end.told)
			case end.told != "":
				for _, e := range end.events {
					s.want(e)
				}
				s.wantCut()
			default:
				for _, e := range end.events {
					s.want(e)
				}
				s.wantEnd()
			}
			l := c.open(streamRequest("1", 1))
			if end.told == "" {
				wantEvents(t, l, end.events...)
				return
			}
			for _, want := range end.events {
				if e, err := l.Next(); err != nil || e.Kind != bridge.KindData || string(e.Foreign) != want {
					t.Fatalf("%q, %v, want %q", e.Foreign, err, want)
				}
			}
			wantTold(t, l, bridge.CodeNotDelivered, end.told)
		})
	}
	// An interrupted state that is not said to be final: the stream may go on, and
	// when it does not it has ended all the same.
	play = func(f *flow) { f.say(status("1", "input-required", false)) }
	s := openHTTP(t, r, "a", streamRequest("1", 1))
	s.want(status("1", "input-required", false))
	s.wantEnd()
	l := c.open(streamRequest("1", 1))
	if e, err := l.Next(); err != nil || e.Kind != bridge.KindData {
		t.Errorf("%v, %v", e.Kind, err)
	}
	if _, err := l.Next(); err != io.EOF {
		t.Errorf("%v", err)
	}
	play = func(f *flow) { f.say(status("1", "input-required", false)); f.say(one) }
	s = openHTTP(t, r, "a", streamRequest("1", 1))
	s.want(status("1", "input-required", false))
	s.want(one)
	s.wantCut()
}

// L16, L36: what an agent answers to a stream call without a stream.
func TestStreamCallsAnsweredWithoutAStream(t *testing.T) {
	r := startRelay(t, Config{})
	var answer atomic.Pointer[answerOf]
	startHTTP(t, r, "a", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_ = read(t, req)
		a := answer.Load()
		w.Header()["Content-Type"] = a.header["Content-Type"]
		w.WriteHeader(a.status)
		_, _ = io.WriteString(w, a.body)
	}))
	c := dial(t, r, "a")
	const request = `{"jsonrpc":"2.0","id":"m1","method":"message/stream"}`
	give := func(status int, contentType, body string) {
		a := &answerOf{status: status, body: body, header: http.Header{"Content-Type": nil}}
		if contentType != "" {
			a.header.Set("Content-Type", contentType)
		}
		answer.Store(a)
	}
	const object = `{"jsonrpc":"2.0","id":"m1","error":{"code":-32602,"message":"bad part","data":{"i":0}}}`
	for _, status := range []int{200, 400} {
		give(status, "application/json", object)
		a := post(t, r, "a", request)
		if a.status != 200 || a.body != object || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%d %s", a.status, a.body)
		}
		_, err := c.open(request).Next()
		var foreign *carriage.ForeignError
		if !errors.As(err, &foreign) || string(foreign.Foreign) != object {
			t.Errorf("on the link: %v", err)
		}
	}
	const result = `{"jsonrpc":"2.0","id":"m1","result":{"kind":"task","status":{"state":"working"}}}`
	give(200, "application/json; charset=utf-8", result)
	if a := post(t, r, "a", request); a.status != 200 || a.body != result || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("%d %s", a.status, a.body)
	}
	if e, err := c.open(request).Next(); err != nil || e.Kind != bridge.KindResponse || string(e.Foreign) != result {
		t.Errorf("on the link: %v %q, %v", e.Kind, e.Foreign, err)
	}
	for _, no := range []struct {
		status      int
		contentType string
		text        string
	}{
		{401, "text/html", "HTTP status 401 with text/html"}, {200, "text/html", "with text/html"}, {200, "", "without a Content-Type"},
		{200, "application/x-ndjson", "application/x-ndjson"}, {503, "text/event-stream", "HTTP status 503"},
	} {
		give(no.status, no.contentType, "<p>no</p>")
		post(t, r, "a", request).want(t, 502, no.text)
		wantTold(t, c.open(request), bridge.CodeNotDelivered, no.text)
	}
	give(200, "Text/Event-Stream;charset=UTF-8", "data: "+status(`"m1"`, "completed", true)+"\n\n")
	wantEvents(t, c.open(request), status(`"m1"`, "completed", true))
}

// L30, D27: both versions' names are carried, and a resubscription of an HTTP caller
// is a stream of its own for the agent, body and id untouched.
func TestStreamingOperationsOfBothVersions(t *testing.T) {
	r := startRelay(t, Config{})
	got := make(chan string, 1)
	startHTTP(t, r, "a", flowing(t, func(f *flow, id, body string) {
		got <- f.r.Header.Get("A2A-Version") + " " + body
		f.say(`{"jsonrpc":"2.0","id":` + id + `,"result":{"task":{"id":"t","status":{"state":"TASK_STATE_WORKING"}}}}`)
		f.say(`{"jsonrpc":"2.0","id":` + id + `,"result":{"statusUpdate":{"taskId":"t","status":{"state":"TASK_STATE_COMPLETED"}}}}`)
	}))
	for method, version := range map[string]string{"message/stream": "", "tasks/resubscribe": "", "SendStreamingMessage": "1.0", "SubscribeToTask": "1.0"} {
		request := `{"jsonrpc":"2.0","id":"v","method":"` + method + `","params":{"id":"t","message":{"messageId":"a","role":"ROLE_USER","parts":[{"text":"hi"}]}}}`
		s := openHTTP(t, r, "a", request)
		if b := <-got; b != version+" "+request {
			t.Errorf("%s: the agent got %q", method, b)
		}
		s.want(`{"jsonrpc":"2.0","id":"v","result":{"task":{"id":"t","status":{"state":"TASK_STATE_WORKING"}}}}`)
		s.want(`{"jsonrpc":"2.0","id":"v","result":{"statusUpdate":{"taskId":"t","status":{"state":"TASK_STATE_COMPLETED"}}}}`)
		s.wantEnd()
	}
}

// L19: one of two subscribers resets its connection after two events of six. The
// other gets all six, the agent is asked to cancel nothing, and what the one held
// is gone within a second, to the agent's own connection.
func TestSubscriberThatLeaves(t *testing.T) {
	r := startRelay(t, Config{})
	step := make(chan struct{})
	left := make(chan string, 2)
	var asked sync.Map
	a, _ := startHTTP(t, r, "a", flowing(t, func(f *flow, id, body string) {
		asked.Store(body, true)
		for n := 1; n <= 5; n++ {
			f.say(artifact(id, n))
			if n >= 2 && id == `"A"` {
				f.gone()
				left <- id
				return
			}
		}
		select {
		case <-step:
		case <-f.r.Context().Done():
			left <- id
		}
		f.say(status(id, "completed", true))
	}))
	resubscribe := func(id string) string {
		return `{"jsonrpc":"2.0","id":` + id + `,"method":"tasks/resubscribe","params":{"id":"t"}}`
	}
	b := openHTTP(t, r, "a", resubscribe(`"B"`))
	before := runtime.NumGoroutine()
	one := openHTTP(t, r, "a", resubscribe(`"A"`))
	one.want(artifact(`"A"`, 1))
	one.want(artifact(`"A"`, 2))
	began := time.Now()
	one.leave()
	if id := <-left; id != `"A"` {
		t.Errorf("%s was left", id)
	}
	eventually(t, "all of it is gone", func() bool {
		return a.Stats().InFlight == 1 && r.Stats().Edge.InFlight == 1 && runtime.NumGoroutine() <= before
	})
	if took := time.Since(began); took > time.Second {
		t.Errorf("gone after %v", took)
	}
	close(step)
	for n := 1; n <= 5; n++ {
		b.want(artifact(`"B"`, n))
	}
	b.want(status(`"B"`, "completed", true))
	b.wantEnd()
	asked.Range(func(body, _ any) bool {
		if body != resubscribe(`"A"`) && body != resubscribe(`"B"`) {
			t.Errorf("the agent was asked %s", body)
		}
		return true
	})
	if s := r.Stats(); s.Edge.Left != 1 || s.Edge.Streams != 1 || s.Edge.Broken != 0 {
		t.Errorf("%+v", s.Edge)
	}

	// The same on the link.
	c := dial(t, r, "a")
	l := c.open(resubscribe(`"A"`))
	if _, err := l.Next(); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	l.Close()
	<-left
	if took := time.Since(began); took > time.Second {
		t.Errorf("gone after %v", took)
	}
	eventually(t, "all of it is gone", func() bool { return a.Stats().InFlight == 0 })
}

// The agent's process dies in the middle of streams: their callers, on either side,
// know within a second, and none takes it for an end.
func TestAgentDiesInTheMiddleOfStreams(t *testing.T) {
	const streams = 20
	r := startRelay(t, Config{})
	k := newLink(t, r.Addr().String())
	client := backend(t, upstream.Config{}, flowing(t, func(f *flow, id, _ string) {
		f.say(artifact(id, 1))
		f.gone()
	}))
	_, ready, _ := runAgent(t, AgentConfig{Name: "a", Relay: k.addr(), Backend: client})
	<-ready
	c := dial(t, r, "a")
	var https []*inflow
	var links []*carriage.Stream
	for range streams {
		s := openHTTP(t, r, "a", streamRequest("1", 1))
		s.want(artifact("1", 1))
		https = append(https, s)
		l := c.open(streamRequest("1", 1))
		if _, err := l.Next(); err != nil {
			t.Fatal(err)
		}
		links = append(links, l)
	}
	old := openHTTP10(t, r, "a", streamRequest("1", 1))
	old.want(artifact("1", 1))
	began := time.Now()
	k.cut()
	old.wantCut()
	for i := range streams {
		https[i].wantCut()
		wantTold(t, links[i], bridge.CodeNotDelivered, "outcome unknown")
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("they knew after %v", took)
	}
	<-ready // it has come back
	s := openHTTP(t, r, "a", streamRequest("1", 1))
	s.want(artifact("1", 1))
}

// Sixty-four streams at once of a thousand events each, half of the callers over
// HTTP and half on the link: every event once and in order.
func TestManyStreamsAtOnce(t *testing.T) {
	const streams, events = 64, 1000
	r := startRelay(t, Config{})
	startHTTP(t, r, "a", flowing(t, func(f *flow, id, body string) {
		for n := range events - 1 {
			if !f.say(artifact(id, fmt.Sprintf(`"%s/%d"`, strings.Trim(id, `"`), n))) {
				return
			}
		}
		f.say(status(id, "completed", true))
	}))
	began := time.Now()
	var wg sync.WaitGroup
	for k := range streams {
		id := fmt.Sprintf(`"s%d"`, k)
		expect := func(n int) string {
			if n == events-1 {
				return status(id, "completed", true)
			}
			return artifact(id, fmt.Sprintf(`"s%d/%d"`, k, n))
		}
		if k%2 == 0 {
			s := openHTTP(t, r, "a", streamRequest(id, k))
			wg.Go(func() {
				for n := range events {
					if got, err := s.next(); err != nil || got != expect(n) {
						t.Errorf("stream %d, event %d: %q, %v", k, n, got, err)
						return
					}
				}
				s.wantEnd()
			})
			continue
		}
		s := dial(t, r, "a").open(streamRequest(id, k))
		wg.Go(func() {
			for n := range events {
				if e, err := s.Next(); err != nil || string(e.Foreign) != expect(n) || e.ID != carriage.EventID(n+1) {
					t.Errorf("stream %d, event %d: %d %q, %v", k, n, e.ID, e.Foreign, err)
					return
				}
			}
			if _, err := s.Next(); err != io.EOF {
				t.Errorf("stream %d: %v", k, err)
			}
		})
	}
	wg.Wait()
	t.Logf("%d events in %v", streams*events, time.Since(began))
	if s := r.Stats(); s.Edge.Streams != streams/2 || s.Edge.Events != streams/2*events || s.Undelivered != 0 || s.Engine.ClosedForFault != 0 {
		t.Errorf("%+v", s)
	}
}

// L25: one stream that is silent for long beside a thousand that are not; its last
// event arrives all the same.
func TestSilentStreamBesideFastOnes(t *testing.T) {
	const fast, atOnce, events = 1000, 40, 20
	r := startRelay(t, Config{Edge: edge.Config{KeepAlive: 100 * time.Millisecond, StallTimeout: time.Second, Timeout: time.Second}, ReplyTimeout: time.Second})
	over := make(chan struct{})
	startHTTP(t, r, "a", flowing(t, func(f *flow, id, body string) {
		if id == `"silent"` {
			f.say(artifact(id, 0))
			select {
			case <-over:
			case <-f.r.Context().Done():
			}
		} else {
			for n := range events {
				f.say(artifact(id, n))
			}
		}
		f.say(status(id, "completed", true))
	}))
	began := time.Now()
	c := dial(t, r, "a")
	silent, onLink := openHTTP(t, r, "a", streamRequest(`"silent"`, 0)), c.open(streamRequest(`"silent"`, 0))
	silent.want(artifact(`"silent"`, 0))
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for range fast / atOnce {
				s := openHTTP(t, r, "a", streamRequest("1", 1))
				for n := range events {
					s.want(artifact("1", n))
				}
				s.want(status("1", "completed", true))
				s.wantEnd()
			}
		})
	}
	wg.Wait()
	t.Logf("%d streams of %d events in %v", fast, events+1, time.Since(began))
	<-time.After(*silence - time.Since(began))
	close(over)
	silent.want(status(`"silent"`, "completed", true))
	silent.wantEnd()
	wantEvents(t, onLink, artifact(`"silent"`, 0), status(`"silent"`, "completed", true))
	if s := r.Stats(); s.Edge.Streams != fast+1 || s.Edge.Broken != 0 || s.Edge.Stalled != 0 || s.Edge.Left != 0 {
		t.Errorf("%+v", s.Edge)
	}
}

// D6: a caller that does not read makes its agent wait, after what lies in sockets
// and what one stream's credit allows, and when it reads on it gets everything. It
// is the same for a caller on the link.
func TestCallersPaceTheirAgents(t *testing.T) {
	const size = 64 << 10
	const events = 1000 // twice what any system's socket buffers grow to
	r := startRelay(t, Config{})
	pad := strings.Repeat("x", size)
	var sent atomic.Int64
	startHTTP(t, r, "a", flowing(t, func(f *flow, id, _ string) {
		for n := range events {
			if !f.say(artifact(id, fmt.Sprintf(`"%d%s"`, n, pad))) {
				return
			}
			sent.Add(1)
		}
		f.say(status(id, "completed", true))
	}))
	// rest waits until the agent does, and returns what it has sent by then.
	rest := func() int64 {
		last := sent.Load()
		for range 10 {
			<-time.After(30 * time.Millisecond)
			if n := sent.Load(); n != last {
				last = n
			}
		}
		eventually(t, "the agent waits", func() bool {
			last := sent.Load()
			<-time.After(100 * time.Millisecond)
			return last == sent.Load()
		})
		return sent.Load()
	}
	s := openHTTP(t, r, "a", streamRequest("1", 1))
	n := rest()
	t.Logf("an HTTP caller that does not read: the agent has sent %d of %d KiB", n*size>>10, events*size>>10)
	if n > events/2 {
		t.Errorf("%d events were sent to nobody", n)
	}
	for n := range events {
		s.want(artifact("1", fmt.Sprintf(`"%d%s"`, n, pad)))
	}
	s.want(status("1", "completed", true))
	s.wantEnd()

	sent.Store(0)
	c := dial(t, r, "a")
	l := c.open(streamRequest("1", 1))
	n = rest()
	t.Logf("an N-PAMP caller that does not read: the agent has sent %d of %d KiB", n*size>>10, events*size>>10)
	if n > events/2 {
		t.Errorf("%d events were sent to nobody", n)
	}
	// Its neighbours on the same associations are not held up.
	post(t, r, "a", `{"jsonrpc":"2.0","id":1,"method":"tasks/get"}`)
	for n := range events {
		if e, err := l.Next(); err != nil || string(e.Foreign) != artifact("1", fmt.Sprintf(`"%d%s"`, n, pad)) {
			t.Fatalf("event %d: %.80q, %v", n, e.Foreign, err)
		}
	}
	if e, err := l.Next(); err != nil || e.Kind != bridge.KindEnd {
		t.Errorf("%v", err)
	}
}

// L22: of a hundred callers of one stream, on either side, two never read. The
// others get all of theirs. What the two have not taken is bounded: over HTTP the one
// is cut, with a reason and a count, when it has taken nothing for long enough; on
// the link the other's agent waits.
func TestCallerThatNeverReads(t *testing.T) {
	const callers = 100
	stall := 5 * time.Second
	if raceEnabled { // a hundred who do read are slow, too
		stall = 20 * time.Second
	}
	r := startRelay(t, Config{Edge: edge.Config{StallTimeout: stall}})
	pad := strings.Repeat("x", 1<<10)
	event := func(id string) string { return artifact(id, `"`+pad+`"`) }
	var unread [2]atomic.Int64 // events that were sent to those who don't read
	a, _ := startHTTP(t, r, "a", flowing(t, func(f *flow, id, _ string) {
		for n := 0; ; n++ {
			switch id {
			case "0", "1": // endless
				unread[id[0]-'0'].Add(1)
			default:
				if n == *events {
					f.say(status(id, "completed", true))
					return
				}
			}
			if !f.say(event(id)) {
				return
			}
		}
	}))
	c := dial(t, r, "a") // whose engine all callers on the link share
	slow, paced := openHTTP(t, r, "a", streamRequest("0", 1)), c.open(streamRequest("1", 1))
	began := time.Now()
	var wg sync.WaitGroup
	for k := range callers - 2 {
		if k%2 == 0 {
			wg.Go(func() {
				s := openHTTP(t, r, "a", streamRequest("2", 1))
				for range *events {
					s.want(event("2"))
				}
				s.want(status("2", "completed", true))
				s.wantEnd()
			})
			continue
		}
		wg.Go(func() {
			link, err := c.engine.Dial(t.Context(), r.Addr().String(), engine.DialOptions{Agent: "a"})
			if err != nil {
				t.Error(err)
				return
			}
			s, err := c.bridge.Stream(t.Context(), link, &carriage.Call{Protocol: bridge.ProtocolA2A, Foreign: []byte(streamRequest("3", 1))}, nil)
			if err != nil {
				t.Error(err)
				return
			}
			n := 0
			for e, err := range s.Events() {
				if n++; err != nil || e.ID != carriage.EventID(n) || n <= *events && string(e.Foreign) != event("3") {
					t.Errorf("caller %d, event %d: %v %.80q", k, n, err, e.Foreign)
					return
				}
			}
			if n != *events+1 {
				t.Errorf("caller %d: %d events", k, n)
			}
		})
	}
	wg.Wait()
	t.Logf("%d KiB in %v", (callers-2)**events*len(event("2"))>>10, time.Since(began))
	eventually(t, "the slow one is cut", func() bool { return r.Stats().Edge.Stalled == 1 })
	eventually(t, "and its agent told", func() bool { return a.Stats().InFlight == 1 })
	if e, err := paced.Next(); err != nil || string(e.Foreign) != event("1") {
		t.Errorf("%.80q, %v", e.Foreign, err)
	}
	paced.Close()
	eventually(t, "both agents are told", func() bool { return a.Stats().InFlight == 0 })
	for i := range unread {
		// Sockets' buffers, and the credit of a stream on two hops.
		if n := unread[i].Load(); n == 0 || n > 48<<10 {
			t.Errorf("%d KiB were sent to one who does not read", n)
		}
	}
	n := int64(0)
	for {
		if _, err := slow.next(); err != nil {
			if err == io.EOF {
				t.Error("the slow one's stream has ended")
			}
			break
		}
		n++
	}
	if n == 0 || n > unread[0].Load() {
		t.Errorf("%d events of %d", n, unread[0].Load())
	}
	if s := r.Stats().Edge; s.Streams != callers/2-1 || s.Broken != 0 || s.Left != 0 {
		t.Errorf("%+v", s)
	}
}

// L11: with the limits raised on all hops an event of 12 MiB crosses whole; with the
// defaults it is a definite error.
func TestLargeEvents(t *testing.T) {
	pad := `"` + strings.Repeat("0123456789abcdef", 12<<20/16) + `"`
	for _, raised := range []bool{true, false} {
		var limits engine.Limits
		if raised {
			limits = engine.Limits{MaxFrame: 16 << 20, Outbound: 32 << 20}
		}
		r := startRelay(t, Config{Engine: engine.Config{Limits: limits}})
		client := backend(t, upstream.Config{MaxReply: 14 << 20}, flowing(t, func(f *flow, id, _ string) {
			f.say(artifact(id, 0))
			f.say(artifact(id, pad))
			f.say(status(id, "completed", true))
		}))
		startAgent(t, AgentConfig{Name: "a", Relay: r.Addr().String(), Backend: client, Engine: engine.Config{Limits: limits}})
		s := openHTTP(t, r, "a", streamRequest("1", 1))
		s.want(artifact("1", 0))
		if !raised {
			s.wantCut()
			l := dial(t, r, "a").open(streamRequest("1", 1))
			if _, err := l.Next(); err != nil {
				t.Fatal(err)
			}
			wantTold(t, l, bridge.CodeNotDelivered, "too large")
			continue
		}
		s.want(artifact("1", pad))
		s.want(status("1", "completed", true))
		s.wantEnd()
	}
}

// D10, D15: a stream's request crosses the relay as any other does, and an agent on
// the link is told of a caller that leaves.
func TestStreamsOfAnAgentOnTheLink(t *testing.T) {
	r := startRelay(t, Config{})
	over := make(chan error, 4)
	l := &linkAgent{t: t, seen: make(chan carriage.Call, 16)}
	l.serve = func(r *carriage.Request) {
		p, err := r.Stream(carriage.StreamOptions{Over: func(err error) { over <- err }})
		if err != nil {
			t.Error(err)
			return
		}
		r.RetainEnvelope()
		if err := p.TrySend([]byte(artifact("7", 1))); err != nil {
			t.Error(err)
		}
		if bytes.Contains(r.Corr(), []byte("end")) {
			t.Error("the caller's correlation id crossed")
		}
		go func() {
			<-p.Done()
			r.Release()
		}()
	}
	l.start(t, r, "a", nil)
	c := dial(t, r, "a")
	const request = `{"jsonrpc":"2.0","id":7,"method":"message/stream"}`
	for name, call := range map[string]carriage.Call{
		"no label":     {NoLabel: true},
		"with a scope": {Label: &bridge.Label{Effect: bridge.Destructive, Scope: []byte("tasks/7 \xff")}},
	} {
		want := call.Label
		call.Protocol, call.Foreign = bridge.ProtocolA2A, []byte(request)
		s, err := c.bridge.Stream(t.Context(), c.assoc, &call, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := <-l.seen
		if got.Method != "message/stream" || string(got.Foreign) != request || !bytes.HasPrefix(got.Natural, []byte("7\x00")) {
			t.Errorf("%s: %+v", name, got)
		}
		if (got.Label == nil) != (want == nil) || (want != nil && (got.Label.Effect != want.Effect || !bytes.Equal(got.Label.Scope, want.Scope))) {
			t.Errorf("%s: label %+v, want %+v", name, got.Label, want)
		}
		if e, err := s.Next(); err != nil || string(e.Foreign) != artifact("7", 1) {
			t.Errorf("%s: %q, %v", name, e.Foreign, err)
		}
		s.Close()
		if err := <-over; !errors.Is(err, carriage.ErrCancelled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := openHTTP(t, r, "a", request)
	if got := <-l.seen; got.Label == nil || got.Label.Effect != bridge.NonIdempotentWrite {
		t.Errorf("%+v", got)
	}
	s.want(artifact("7", 1))
	s.leave()
	if err := <-over; !errors.Is(err, carriage.ErrCancelled) {
		t.Errorf("%v", err)
	}
}

// An agent that knows no credit for single streams can't be made to wait. It is the
// caller that is cut then, with a reason.
func TestSlowCallerOfAnAgentWithoutCredit(t *testing.T) {
	r := startRelay(t, Config{})
	cfg := engine.Config{Transport: engine.TransportTCP}
	cfg.Limits.StreamCredit = -1
	pad := strings.Repeat("x", 64<<10)
	client := backend(t, upstream.Config{}, flowing(t, func(f *flow, id, _ string) {
		for range 1000 {
			if !f.say(artifact(id, `"`+pad+`"`)) {
				return
			}
		}
		f.say(status(id, "completed", true))
	}))
	a, _ := startAgent(t, AgentConfig{Name: "a", Relay: r.Addr().String(), Backend: client, Engine: cfg})
	c := dial(t, r, "a")
	l := c.open(streamRequest("1", 1))
	eventually(t, "the agent has been told", func() bool { return a.Stats().Bridge.StreamsCancelled == 1 && a.Stats().InFlight == 0 })
	for {
		_, err := l.Next()
		if err == nil {
			continue
		}
		var told *bridge.Error
		if !errors.As(err, &told) || told.Code != bridge.CodeNotDelivered || told.Text != textSlow {
			t.Errorf("%v", err)
		}
		break
	}
	if s := r.Stats(); s.Engine.ClosedForFault != 0 {
		t.Errorf("%+v", s.Engine)
	}
}

// What waits of all streams together for callers on the link is bounded: one that
// finds no room is cut with a reason, and nothing stays when they are over.
func TestWaitingStreamsAreBoundedTogether(t *testing.T) {
	const streams = 16 // which may have 1 MiB each
	r := startRelay(t, Config{MaxWaiting: 4 << 20})
	pad := strings.Repeat("x", 64<<10)
	a, _ := startHTTP(t, r, "a", flowing(t, func(f *flow, id, body string) {
		for n := 0; n < 100 || strings.Contains(body, `"endless"`); n++ {
			if !f.say(artifact(id, `"`+pad+`"`)) {
				return
			}
		}
		f.say(status(id, "completed", true))
	}))
	c := dial(t, r, "a")
	var open []*carriage.Stream
	for range streams {
		open = append(open, c.open(streamRequest("1", `"endless"`)))
	}
	eventually(t, "some are cut", func() bool {
		if n := r.forward.waiting.Used(); n > 4<<20 {
			t.Fatalf("%d octets wait", n)
		}
		return a.Stats().Bridge.StreamsCancelled > 0
	})
	cut := 0
	for _, s := range open {
		// All but what has been cut is under way; to read on is to have it go on.
		for n := 0; n < 64; n++ {
			if _, err := s.Next(); err != nil {
				var told *bridge.Error
				if !errors.As(err, &told) || told.Code != bridge.CodeNotDelivered || told.Text != textFull {
					t.Errorf("%v", err)
				}
				cut++
				break
			}
		}
		s.Close()
	}
	if cut == 0 {
		t.Error("none was cut")
	}
	eventually(t, "nothing stays", func() bool { return r.forward.waiting.Used() == 0 && a.Stats().InFlight == 0 })
	// There is room again, and what is read is not held.
	s := c.open(streamRequest("1", 1))
	n := 0
	for _, err := range s.Events() {
		if n++; err != nil {
			t.Fatal(err)
		}
	}
	if n != 101 {
		t.Errorf("%d events", n)
	}
	eventually(t, "nothing stays", func() bool { return r.forward.waiting.Used() == 0 })
}

// D15, D23: a policy refuses streams, too, and so does who is not there.
func TestStreamsThatAreNotForwarded(t *testing.T) {
	r := startRelay(t, Config{Demo: true, Policy: func(a *Access) error {
		if a.Effect == bridge.ReadOnly {
			return nil
		}
		return errors.New("too dangerous")
	}})
	const resubscribe = `{"jsonrpc":"2.0","id":1,"method":"tasks/resubscribe","params":{"id":"x"}}`
	post(t, r, "echo", streamRequest("1", 1)).want(t, 403, `"code":5,"name":"SafetyPolicy"`)
	wantTold(t, dial(t, r, "echo").open(streamRequest("1", 1)), bridge.CodeSafetyPolicy, "too dangerous")
	post(t, r, "nobody", resubscribe).want(t, 404, "NotDelivered")
	wantTold(t, dial(t, r, "nobody").open(resubscribe), bridge.CodeNotDelivered, textNoAgent)
	wantTold(t, dial(t, r, "").open(resubscribe), bridge.CodeNotDelivered, textNoAgentNamed)
	post(t, r, "echo", resubscribe).want(t, 200, "-32001")
}

// L27: with a unary call of a while and an endless stream under way, readiness fails
// at once, the call is answered, the streams end in a way that nobody takes for
// complete, and all is over long before the deadline.
func TestGracefulShutdownWithStreams(t *testing.T) {
	r := startRelay(t, Config{StreamDrain: 400 * time.Millisecond})
	release := make(chan struct{})
	startHTTP(t, r, "a", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body := read(t, req)
		if strings.Contains(body, "message/send") {
			<-release
			respond(w, 200, `{"jsonrpc":"2.0","id":7,"result":"done"}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		f := &flow{w, req}
		for f.say(artifact("1", 1)) {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-req.Context().Done():
				return
			}
		}
	}))
	s, l := openHTTP(t, r, "a", streamRequest("1", 1)), dial(t, r, "a").open(streamRequest("1", 1))
	s.want(artifact("1", 1))
	var wg sync.WaitGroup
	wg.Go(func() {
		post(t, r, "a", `{"jsonrpc":"2.0","id":7,"method":"message/send"}`).want(t, 200, "done")
	})
	eventually(t, "all are under way", func() bool { return r.Stats().Edge.InFlight == 2 && r.Stats().Requests == 3 })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	began := time.Now()
	shut := make(chan error, 1)
	go func() { shut <- r.Shutdown(ctx) }()
	eventually(t, "readiness fails", func() bool {
		return do(t, "GET", "http://"+r.HTTPAddr().String()+"/healthz", "", nil).status == 503
	})
	post(t, r, "a", streamRequest("1", 1)).want(t, 503, textDraining)
	s.want(artifact("1", 1)) // it goes on for now
	for {
		if got, err := s.next(); err != nil {
			if err == io.EOF {
				t.Error("the endless stream has ended")
			}
			break
		} else if got != artifact("1", 1) {
			t.Errorf("%q", got)
		}
	}
	for {
		e, err := l.Next()
		if err == nil && e.Kind == bridge.KindData {
			continue
		}
		var told *bridge.Error
		if !errors.As(err, &told) || told.Code != bridge.CodeNotDelivered || !strings.Contains(told.Text, "outcome unknown") {
			t.Errorf("%v, %v", e.Kind, err)
		}
		break
	}
	if took := time.Since(began); took < 300*time.Millisecond || took > 5*time.Second {
		t.Errorf("streams were cut after %v", took)
	}
	close(release)
	wg.Wait()
	if err := <-shut; err != nil {
		t.Error(err)
	}
}

// An agent that is shut down ends its endless streams with a reason.
func TestAgentShutdownWithStreams(t *testing.T) {
	r := startRelay(t, Config{})
	client := backend(t, upstream.Config{}, flowing(t, func(f *flow, id, _ string) {
		f.say(artifact(id, 1))
		f.gone()
	}))
	a, _ := startAgent(t, AgentConfig{Name: "a", Relay: r.Addr().String(), Backend: client, StreamDrain: 50 * time.Millisecond})
	s, l := openHTTP(t, r, "a", streamRequest("1", 1)), dial(t, r, "a").open(streamRequest("1", 1))
	s.want(artifact("1", 1))
	if _, err := l.Next(); err != nil {
		t.Fatal(err)
	}
	if err := a.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	s.wantCut()
	wantTold(t, l, bridge.CodeNotDelivered, "outcome unknown")
}

// Whoever shuts down in the middle, a message that had left for the agent may have
// been acted on, although no event has come back; nobody is told that it was not.
func TestSilentStreamsInAShutdown(t *testing.T) {
	for _, agents := range []bool{false, true} {
		r := startRelay(t, Config{StreamDrain: 50 * time.Millisecond, Edge: edge.Config{CommitAfter: limit}})
		inside := make(chan struct{}, 2)
		client := backend(t, upstream.Config{}, flowing(t, func(f *flow, _, _ string) {
			inside <- struct{}{}
			f.gone()
		}))
		a, _ := startAgent(t, AgentConfig{Name: "a", Relay: r.Addr().String(), Backend: client, StreamDrain: 50 * time.Millisecond})
		l := dial(t, r, "a").open(streamRequest("1", 1))
		told := make(chan answerOf, 1)
		go func() { told <- post(t, r, "a", streamRequest("1", 1)) }()
		<-inside
		<-inside
		down := r.Shutdown
		if agents {
			down = a.Shutdown
		}
		if err := down(t.Context()); err != nil {
			t.Error(err)
		}
		(<-told).want(t, 502, "outcome unknown")
		wantTold(t, l, bridge.CodeNotDelivered, "outcome unknown")
	}
}

// L28: streams that end, that their callers leave, that their agents break and whose
// links are cut: nothing of them is left behind.
func TestStreamsLeaveNothingBehind(t *testing.T) {
	r := startRelay(t, Config{})
	a, _ := startHTTP(t, r, "a", flowing(t, func(f *flow, id, body string) {
		f.say(artifact(id, 1))
		switch {
		case strings.Contains(body, `"end"`):
			f.say(status(id, "completed", true))
		case strings.Contains(body, `"break"`):
			f.reset(t)
		default:
			f.gone()
		}
	}))
	// One engine for all callers on the link, which come and go.
	calls := dial(t, r, "a")
	cycle := func(i int) {
		how := []string{`"end"`, `"break"`, `"leave"`}[i%3]
		request := streamRequest("1", how)
		if i%2 == 0 {
			s := dialHTTP(t, r, "a", request)
			s.want(artifact("1", 1))
			switch how {
			case `"end"`:
				s.want(status("1", "completed", true))
				s.wantEnd()
			case `"break"`:
				s.wantCut()
			}
			s.leave()
			return
		}
		a, err := calls.engine.Dial(t.Context(), r.Addr().String(), engine.DialOptions{Agent: "a"})
		if err != nil {
			t.Fatal(err)
		}
		l, err := calls.bridge.Stream(t.Context(), a, &carriage.Call{Protocol: bridge.ProtocolA2A, Foreign: []byte(request)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Next(); err != nil {
			t.Fatal(err)
		}
		switch {
		case how == `"end"`:
			if e, err := l.Next(); err != nil || e.Kind != bridge.KindEnd {
				t.Errorf("%v", err)
			}
		case how == `"break"`:
			wantTold(t, l, bridge.CodeNotDelivered, "")
		case i%4 == 1:
			l.Close()
		}
		a.Close(0, "") // with the stream, if it goes on
		<-a.Done()
		l.Close()
	}
	settle := func() (goroutines int, heap uint64) {
		eventually(t, "all has ended", func() bool {
			s := r.Stats()
			return a.Stats().InFlight == 0 && s.Edge.InFlight == 0 && s.Edge.Streaming == 0 && s.Engine.Associations == 2
		})
		var m runtime.MemStats
		for range 3 {
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return runtime.NumGoroutine(), m.HeapAlloc
	}
	for i := range 24 {
		cycle(i)
	}
	goroutines, heap := settle()
	for i := range *cycles {
		cycle(i)
	}
	eventually(t, "the goroutines are gone", func() bool {
		n, _ := settle()
		return n <= goroutines+4
	})
	n, h := settle()
	t.Logf("goroutines %d, then %d; heap %d KiB, then %d KiB", goroutines, n, heap>>10, h>>10)
	if !raceEnabled && h > heap+1<<20 {
		t.Errorf("the heap has grown from %d to %d", heap, h)
	}
}

// The demo agent's streams, in both versions' forms.
func TestDemoAgentStreams(t *testing.T) {
	r := startRelay(t, Config{Demo: true})
	events := func(body string) (events []string) {
		s := openHTTP(t, r, "echo", body)
		for {
			e, err := s.next()
			if err == io.EOF {
				return events
			}
			if err != nil {
				t.Fatal(err)
			}
			if idOf(t, e) != `"q"` {
				t.Errorf("%s", e)
			}
			events = append(events, e)
		}
	}
	want := func(events []string, parts ...string) {
		t.Helper()
		if len(events) != len(parts) {
			t.Fatalf("%q", events)
		}
		for i, part := range parts {
			if !strings.Contains(events[i], part) {
				t.Errorf("event %d is %s, want %s", i, events[i], part)
			}
		}
	}
	const message = `{"messageId":"m","role":"user","parts":[{"kind":"text","text":"grüße"}]}`
	all := events(`{"jsonrpc":"2.0","id":"q","method":"message/stream","params":{"message":` + message + `}}`)
	want(all, `"state":"submitted"`, `"state":"working"`, `"text":"gr"`, `"text":"üße"`, `"final":true`)
	want(all, `"kind":"task"`, `"final":false`, `"append":false`, `"lastChunk":true`, `"state":"completed"`)
	task := all[4][strings.Index(all[4], `"taskId":"`)+10:]
	task = task[:strings.IndexByte(task, '"')]
	for _, v := range [][2]string{{"tasks/resubscribe", `"kind":"task"`}, {"SubscribeToTask", `TASK_STATE_COMPLETED`}} {
		want(events(`{"jsonrpc":"2.0","id":"q","method":"`+v[0]+`","params":{"id":"`+task+`"}}`), v[1])
		post(t, r, "echo", `{"jsonrpc":"2.0","id":"q","method":"`+v[0]+`","params":{"id":"none"}}`).want(t, 200, "-32001")
	}
	post(t, r, "echo", `{"jsonrpc":"2.0","id":"q","method":"tasks/get","params":{"id":"`+task+`"}}`).want(t, 200, "grüße")
	all = events(`{"jsonrpc":"2.0","id":"q","method":"SendStreamingMessage","params":{"message":` + message + `}}`)
	want(all, `{"task":{`, `{"statusUpdate":{`, `{"artifactUpdate":{`, `{"artifactUpdate":{`, `{"statusUpdate":{`)
	want(all, `TASK_STATE_SUBMITTED`, `TASK_STATE_WORKING`, `"text":"gr"`, `"text":"üße"`, `TASK_STATE_COMPLETED`)
	if strings.Contains(strings.Join(all, ""), `"kind"`) {
		t.Errorf("%q", all)
	}
	for _, method := range []string{"message/stream", "SendStreamingMessage"} {
		post(t, r, "echo", `{"jsonrpc":"2.0","id":"q","method":"`+method+`","params":{}}`).want(t, 200, "-32602")
	}
	if a := do(t, "GET", agentURL(r, "echo")+"/.well-known/agent-card.json", "", nil); !strings.Contains(a.body, `"streaming": true`) {
		t.Errorf("%s", a.body)
	}
}
