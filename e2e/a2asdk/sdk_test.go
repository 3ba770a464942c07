package a2asdk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/a2a"
	"github.com/a2aproject/a2a-go/a2aclient"
	"github.com/a2aproject/a2a-go/a2aclient/agentcard"
	"github.com/a2aproject/a2a-go/a2asrv"
	"github.com/a2aproject/a2a-go/a2asrv/eventqueue"
	"github.com/a2aproject/a2a-go/a2asrv/push"
)

// agent is an agent built with the SDK. What it does follows from the text it is
// sent: "many" emits that many artifacts, "wait" goes on when it is told to, "ask"
// needs input, "say" answers with a message alone.
type agent struct {
	many      int
	proceed   chan struct{}
	cancelled atomic.Int32
}

func (e *agent) Execute(ctx context.Context, r *a2asrv.RequestContext, q eventqueue.Queue) error {
	text := ""
	for _, p := range r.Message.Parts {
		if t, ok := p.(a2a.TextPart); ok {
			text += t.Text
		}
	}
	if text == "say" {
		return q.Write(ctx, a2a.NewMessage(a2a.MessageRoleAgent, a2a.TextPart{Text: "said"}))
	}
	emit := func(state a2a.TaskState, final bool) error {
		event := a2a.NewStatusUpdateEvent(r, state, nil)
		event.Final = final
		return q.Write(ctx, event)
	}
	if err := q.Write(ctx, a2a.NewSubmittedTask(r, r.Message)); err != nil {
		return err
	}
	if err := emit(a2a.TaskStateWorking, false); err != nil {
		return err
	}
	switch text {
	case "ask":
		return emit(a2a.TaskStateInputRequired, true)
	case "wait":
		select {
		case <-e.proceed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	first := a2a.NewArtifactEvent(r, a2a.TextPart{Text: "0"})
	if err := q.Write(ctx, first); err != nil {
		return err
	}
	for n := 1; n < e.many; n++ {
		// What JSON and HTML care about must come out as it went in.
		event := a2a.NewArtifactUpdateEvent(r, first.Artifact.ID, a2a.TextPart{Text: fmt.Sprintf("%d <é>&\u2028\n\"", n)})
		if err := q.Write(ctx, event); err != nil {
			return err
		}
	}
	return emit(a2a.TaskStateCompleted, true)
}

func (e *agent) Cancel(ctx context.Context, r *a2asrv.RequestContext, q eventqueue.Queue) error {
	e.cancelled.Add(1)
	event := a2a.NewStatusUpdateEvent(r, a2a.TaskStateCanceled, nil)
	event.Final = true
	return q.Write(ctx, event)
}

// pushes takes what the SDK's server would send to webhooks, which is no business of
// the link (MAP-A2A 8).
type pushes struct{}

func (pushes) SendPush(context.Context, *a2a.PushConfig, *a2a.Task) error { return nil }

// world is all that takes part.
type world struct {
	t     *testing.T
	agent *agent
	// server is the SDK's, and streams how many HTTP requests for streams it serves.
	server  *httptest.Server
	streams atomic.Int32

	relay, far *process
	tap        *tap
	edge       string // the agent's URL at the relay
	key        string

	through, direct *a2aclient.Client
}

const sdkPath = "/invoke"

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, agent: &agent{many: 3, proceed: make(chan struct{})}}
	mux := http.NewServeMux()
	w.server = httptest.NewServer(mux)
	t.Cleanup(func() {
		w.server.CloseClientConnections()
		w.server.Close()
	})
	card := &a2a.AgentCard{
		Name: "sdk", Description: "an agent of <the> SDK & its \"card\"", Version: "1.0.0", ProtocolVersion: "0.3.0",
		URL: w.server.URL + sdkPath, PreferredTransport: a2a.TransportProtocolJSONRPC,
		Capabilities:       a2a.AgentCapabilities{Streaming: true, PushNotifications: true},
		DefaultInputModes:  []string{"text/plain"},
		DefaultOutputModes: []string{"text/plain"},
		Skills:             []a2a.AgentSkill{{ID: "s", Name: "S", Description: "does", Tags: []string{"t"}}},
	}
	extended := *card
	extended.Description = "only for friends"
	handler := a2asrv.NewJSONRPCHandler(a2asrv.NewHandler(w.agent, a2asrv.WithExtendedAgentCard(&extended),
		a2asrv.WithPushNotifications(push.NewInMemoryStore(), pushes{})))
	mux.Handle(a2asrv.WellKnownAgentCardPath, a2asrv.NewStaticAgentCardHandler(card))
	mux.HandleFunc(sdkPath, func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") == "text/event-stream" {
			w.streams.Add(1)
			defer w.streams.Add(-1)
		}
		handler.ServeHTTP(rw, r)
	})

	w.relay = startProcess(t, "serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--no-demo", "--drain", "1s", "--log-level", "debug")
	ready := w.relay.line(`^ready npamp=(\S+) http=(\S+) key=([0-9a-f]{64})$`)
	w.tap = newTap(t, ready[1])
	w.edge, w.key = "http://"+ready[2]+"/agents/sdk", ready[3]
	w.startAgent()
	w.through, w.direct = w.client(w.edge), w.client(w.server.URL+sdkPath)
	return w
}

func (w *world) startAgent() {
	w.far = startProcess(w.t, "agent", "--name", "sdk", "--to", w.tap.l.Addr().String(), "--pin", w.key, "--upstream", w.server.URL+sdkPath)
	w.far.line(`^ready agent=sdk peer=` + w.key + `$`)
}

// client is the SDK's client of the agent at url.
func (w *world) client(url string) *a2aclient.Client {
	w.t.Helper()
	transport := &http.Transport{}
	w.t.Cleanup(transport.CloseIdleConnections)
	c, err := a2aclient.NewFromEndpoints(w.t.Context(), []a2a.AgentInterface{{Transport: a2a.TransportProtocolJSONRPC, URL: url}},
		a2aclient.WithJSONRPCTransport(&http.Client{Transport: transport, Timeout: patience}))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Destroy() })
	return c
}

func send(text string) *a2a.MessageSendParams {
	return &a2a.MessageSendParams{Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.TextPart{Text: text})}
}

// raw POSTs a message as it is and returns the whole answer.
func (w *world) raw(url, message string) string {
	w.t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	r, err := (&http.Client{Transport: transport, Timeout: patience}).Post(url, "application/json", strings.NewReader(message))
	if err != nil {
		w.t.Fatal(err)
	}
	defer r.Body.Close()
	octets, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != 200 {
		w.t.Fatalf("%d %s, %v", r.StatusCode, octets, err)
	}
	return string(octets)
}

// eventually waits until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for !cond() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not in time: %s", what)
		}
	}
}

// taskOf is the task in a result.
func taskOf(t *testing.T, result a2a.SendMessageResult, err error) *a2a.Task {
	t.Helper()
	task, ok := result.(*a2a.Task)
	if err != nil || !ok {
		t.Fatalf("%T, %v", result, err)
	}
	return task
}

// message/send, tasks/get and their errors.
func TestSendAndGet(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	sent, err := w.through.SendMessage(ctx, send("hello"))
	task := taskOf(t, sent, err)
	if task.Status.State != a2a.TaskStateCompleted || len(task.Artifacts) != 1 {
		t.Errorf("%+v", task)
	}
	got, err := w.through.GetTask(ctx, &a2a.TaskQueryParams{ID: task.ID})
	if err != nil || !reflect.DeepEqual(got, task) {
		t.Errorf("%+v, %v, want %+v", got, err, task)
	}
	same, err := w.direct.GetTask(ctx, &a2a.TaskQueryParams{ID: task.ID})
	if err != nil || !reflect.DeepEqual(got, same) {
		t.Errorf("without trestle %+v, %v", same, err)
	}
	said, err := w.through.SendMessage(ctx, send("say"))
	if m, ok := said.(*a2a.Message); err != nil || !ok || m.Role != a2a.MessageRoleAgent {
		t.Errorf("%T, %v", said, err)
	}
	asked, err := w.through.SendMessage(ctx, send("ask"))
	if task := taskOf(t, asked, err); task.Status.State != a2a.TaskStateInputRequired {
		t.Errorf("%+v", task.Status)
	}
	for name, call := range map[string]func(c *a2aclient.Client) error{
		"no such task": func(c *a2aclient.Client) error {
			_, err := c.GetTask(ctx, &a2a.TaskQueryParams{ID: "none"})
			return err
		},
		"no task named": func(c *a2aclient.Client) error {
			_, err := c.GetTask(ctx, &a2a.TaskQueryParams{})
			return err
		},
		"no message": func(c *a2aclient.Client) error {
			_, err := c.SendMessage(ctx, &a2a.MessageSendParams{})
			return err
		},
		"cancel of what is over": func(c *a2aclient.Client) error {
			_, err := c.CancelTask(ctx, &a2a.TaskIDParams{ID: "none"})
			return err
		},
	} {
		err, want := call(w.through), call(w.direct)
		if err == nil || want == nil || err.Error() != want.Error() {
			t.Errorf("%s: %v, without trestle %v", name, err, want)
		}
	}
	if _, err := w.through.GetTask(ctx, &a2a.TaskQueryParams{ID: "none"}); !errors.Is(err, a2a.ErrTaskNotFound) {
		t.Errorf("%v", err)
	}
}

// An error object crosses with its data, octet for octet.
func TestErrorsCrossVerbatim(t *testing.T) {
	w := newWorld(t)
	for _, message := range []string{
		`{"jsonrpc":"2.0","id":"e","method":"tasks/get","params":{"id":"none"}}`,
		`{"jsonrpc":"2.0","id":"e","method":"tasks/cancel","params":{"id":"none"}}`,
		`{"jsonrpc":"2.0","id":"e","method":"tasks/frobnicate"}`,
		`{"jsonrpc":"2.0","id":"e","method":"message/send","params":"text"}`,
	} {
		got, want := w.raw(w.edge, message), w.raw(w.server.URL+sdkPath, message)
		if got != want || !strings.Contains(got, `"error":{`) {
			t.Errorf("%s: %s, without trestle %s", message, got, want)
		}
	}
	got := w.raw(w.edge, `{"jsonrpc":"2.0","id":"e","method":"tasks/get","params":{"id":"none"}}`)
	if !strings.Contains(got, `"code":-32001`) || !strings.Contains(got, `"data":{"error":`) {
		t.Errorf("%s", got)
	}
}

// The card is the agent's, octet for octet, and the SDK's resolver finds it.
func TestCards(t *testing.T) {
	w := newWorld(t)
	get := func(url string) []byte {
		r, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		octets, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != 200 || r.Header.Get("Content-Type") != "application/json" {
			t.Fatalf("%s: %d, %v", url, r.StatusCode, err)
		}
		return octets
	}
	want := get(w.server.URL + a2asrv.WellKnownAgentCardPath)
	for _, path := range []string{"/.well-known/agent-card.json", "/.well-known/agent.json"} {
		if got := get(w.edge + path); !bytes.Equal(got, want) {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	transport := &http.Transport{DisableKeepAlives: true}
	card, err := agentcard.NewResolver(&http.Client{Transport: transport}).Resolve(t.Context(), w.edge)
	if err != nil || card.Name != "sdk" || !card.Capabilities.Streaming {
		t.Errorf("%+v, %v", card, err)
	}
	var extended a2a.AgentCard
	if err := json.Unmarshal(get(w.edge+"/v1/card"), &extended); err != nil || extended.Description != "only for friends" {
		t.Errorf("%+v, %v", extended, err)
	}
	const ask = `{"jsonrpc":"2.0","id":"x","method":"agent/getAuthenticatedExtendedCard"}`
	if got, want := w.raw(w.edge, ask), w.raw(w.server.URL+sdkPath, ask); got != want || !strings.Contains(got, "friends") {
		t.Errorf("%s, without trestle %s", got, want)
	}
}

// A stream of many events: each once, in order, as it was emitted.
func TestStreamOfManyEvents(t *testing.T) {
	w := newWorld(t)
	w.agent.many = 1000
	var texts []string
	var states []a2a.TaskState
	var last a2a.Event
	began := time.Now()
	for event, err := range w.through.SendStreamingMessage(t.Context(), send("many")) {
		if err != nil {
			t.Fatal(err)
		}
		last = event
		switch e := event.(type) {
		case *a2a.Task:
			states = append(states, e.Status.State)
		case *a2a.TaskStatusUpdateEvent:
			states = append(states, e.Status.State)
		case *a2a.TaskArtifactUpdateEvent:
			texts = append(texts, e.Artifact.Parts[0].(a2a.TextPart).Text)
		}
	}
	took := time.Since(began)
	began = time.Now()
	if err := failure(w.direct.SendStreamingMessage(t.Context(), send("many"))); err != nil {
		t.Error(err)
	}
	t.Logf("%d events in %v, without trestle in %v", len(texts)+len(states), took, time.Since(began))
	if fmt.Sprint(states) != "[submitted working completed]" || len(texts) != w.agent.many {
		t.Fatalf("%v with %d artifacts", states, len(texts))
	}
	for n, text := range texts[1:] {
		if want := fmt.Sprintf("%d <é>&\u2028\n\"", n+1); text != want {
			t.Fatalf("artifact %d is %q, want %q", n+1, text, want)
		}
	}
	if e, ok := last.(*a2a.TaskStatusUpdateEvent); !ok || !e.Final {
		t.Errorf("ends with %+v", last)
	}
	// The other kinds of ends.
	for text, want := range map[string]string{"say": "*a2a.Message", "ask": "*a2a.TaskStatusUpdateEvent"} {
		var last a2a.Event
		for event, err := range w.through.SendStreamingMessage(t.Context(), send(text)) {
			if err != nil {
				t.Fatal(err)
			}
			last = event
		}
		if got := fmt.Sprintf("%T", last); got != want {
			t.Errorf("%s: ends with a %s", text, got)
		}
	}
	for name, params := range map[string]*a2a.MessageSendParams{"no message": {}} {
		err, want := failure(w.through.SendStreamingMessage(t.Context(), params)), failure(w.direct.SendStreamingMessage(t.Context(), params))
		if err == nil || want == nil || err.Error() != want.Error() {
			t.Errorf("%s: %v, without trestle %v", name, err, want)
		}
	}
}

// failure is the error that a stream ends with.
func failure(events func(yield func(a2a.Event, error) bool)) (err error) {
	events(func(_ a2a.Event, e error) bool {
		err = e
		return e == nil
	})
	return err
}

// Sixteen streams at once over the one association.
func TestStreamsAtOnce(t *testing.T) {
	w := newWorld(t)
	w.agent.many = 100
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			n := 0
			for event, err := range w.through.SendStreamingMessage(t.Context(), send("many")) {
				if err != nil {
					t.Error(err)
					return
				}
				if e, ok := event.(*a2a.TaskArtifactUpdateEvent); ok {
					if text := e.Artifact.Parts[0].(a2a.TextPart).Text; !strings.HasPrefix(text+" ", fmt.Sprintf("%d ", n)) {
						t.Errorf("artifact %d is %q", n, text)
					}
					n++
				}
			}
			if n != w.agent.many {
				t.Errorf("%d artifacts", n)
			}
		})
	}
	wg.Wait()
	w.oneAssociation()
}

// oneAssociation checks that all of it went over one connection, and what it
// looked like from outside.
func (w *world) oneAssociation() {
	w.t.Helper()
	w.tap.mu.Lock()
	defer w.tap.mu.Unlock()
	const handshakeRecord = 22
	if len(w.tap.first) != 1 || w.tap.first[0] != handshakeRecord {
		w.t.Errorf("the connections of the agent begin with %v", w.tap.first)
	}
	if bytes.Contains(w.tap.seen.Bytes(), []byte("jsonrpc")) || bytes.Contains(w.tap.seen.Bytes(), []byte("NPAM")) {
		w.t.Error("the association is not encrypted")
	}
}

// subscriber collects a task's events.
type subscriber struct {
	begun  chan a2a.TaskID
	states chan a2a.TaskState
	ended  chan error
}

// subscribe follows events until they end.
func subscribe(events func(yield func(a2a.Event, error) bool)) *subscriber {
	s := &subscriber{begun: make(chan a2a.TaskID, 1), states: make(chan a2a.TaskState, 16), ended: make(chan error, 1)}
	go func() {
		var failed error
		events(func(event a2a.Event, err error) bool {
			if err != nil {
				failed = err
				return false
			}
			if e, ok := event.(*a2a.TaskStatusUpdateEvent); ok {
				s.states <- e.Status.State
				select {
				case s.begun <- e.TaskID:
				default:
				}
			}
			return true
		})
		close(s.states)
		s.ended <- failed
	}()
	return s
}

// start waits for the task to work and returns its id.
func (s *subscriber) start(t *testing.T) a2a.TaskID {
	t.Helper()
	select {
	case id := <-s.begun:
		<-s.states
		return id
	case err := <-s.ended:
		t.Fatalf("the stream has ended: %v", err)
	case <-time.After(patience):
		t.Fatal("the task does not begin")
	}
	return ""
}

func (s *subscriber) want(t *testing.T, states ...a2a.TaskState) {
	t.Helper()
	for _, want := range states {
		select {
		case got := <-s.states:
			if got != want {
				t.Errorf("%q, want %q", got, want)
			}
		case <-time.After(patience):
			t.Fatalf("no %q", want)
		}
	}
	if err := <-s.ended; err != nil {
		t.Errorf("the stream ended with %v", err)
	}
}

// tasks/cancel of a task that streams: the canceller and the stream both see it.
func TestCancel(t *testing.T) {
	w := newWorld(t)
	s := subscribe(w.through.SendStreamingMessage(t.Context(), send("wait")))
	id := s.start(t)
	task, err := w.through.CancelTask(t.Context(), &a2a.TaskIDParams{ID: id})
	if err != nil || task.Status.State != a2a.TaskStateCanceled {
		t.Errorf("%+v, %v", task, err)
	}
	s.want(t, a2a.TaskStateCanceled)
	if n := w.agent.cancelled.Load(); n != 1 {
		t.Errorf("cancelled %d times", n)
	}
	eventually(t, "the stream's connection is free", func() bool { return w.streams.Load() == 0 })
}

// tasks/resubscribe: a second stream of the same task, for another client.
func TestResubscribe(t *testing.T) {
	w := newWorld(t)
	s := subscribe(w.through.SendStreamingMessage(t.Context(), send("wait")))
	id := s.start(t)
	again := subscribe(w.client(w.edge).ResubscribeToTask(t.Context(), &a2a.TaskIDParams{ID: id}))
	eventually(t, "both are subscribed", func() bool { return w.streams.Load() == 2 })
	// The SDK's server registers a subscriber some time after it has answered.
	<-time.After(200 * time.Millisecond)
	close(w.agent.proceed)
	s.want(t, a2a.TaskStateCompleted)
	again.want(t, a2a.TaskStateCompleted)

	err := failure(w.through.ResubscribeToTask(t.Context(), &a2a.TaskIDParams{ID: "none"}))
	if !errors.Is(err, a2a.ErrTaskNotFound) {
		t.Errorf("%v", err)
	}
	w.oneAssociation()
}

// A client leaves in the middle of a stream: the agent's connection is free within a
// second, its task is not cancelled and goes on to its end.
func TestClientLeavesInTheMiddleOfAStream(t *testing.T) {
	w := newWorld(t)
	var id a2a.TaskID
	began := time.Now()
	for event, err := range w.through.SendStreamingMessage(t.Context(), send("wait")) {
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := event.(*a2a.TaskStatusUpdateEvent); ok {
			id, began = e.TaskID, time.Now()
			break
		}
	}
	eventually(t, "the agent's connection is free", func() bool { return w.streams.Load() == 0 })
	if took := time.Since(began); took > time.Second {
		t.Errorf("free after %v", took)
	}
	task, err := w.through.GetTask(t.Context(), &a2a.TaskQueryParams{ID: id})
	if err != nil || task.Status.State != a2a.TaskStateWorking {
		t.Fatalf("%+v, %v", task, err)
	}
	close(w.agent.proceed)
	eventually(t, "the task is completed", func() bool {
		task, err := w.through.GetTask(t.Context(), &a2a.TaskQueryParams{ID: id})
		return err == nil && task.Status.State == a2a.TaskStateCompleted
	})
	if n := w.agent.cancelled.Load(); n != 0 {
		t.Errorf("cancelled %d times", n)
	}
}

// The agent dies in the middle of a stream, the process beside it or it itself: the
// client has an error within a second, no end; and starting it again is all it
// takes.
func TestAgentDiesInTheMiddleOfAStream(t *testing.T) {
	w := newWorld(t)
	defer close(w.agent.proceed)
	for name, die := range map[string]func(){
		"the process beside the agent": func() { w.far.kill() },
		"the agent's connections":      func() { w.server.CloseClientConnections() },
	} {
		s := subscribe(w.through.SendStreamingMessage(t.Context(), send("wait")))
		s.start(t)
		began := time.Now()
		die()
		select {
		case err := <-s.ended:
			if err == nil {
				t.Errorf("%s: the stream has ended as it should", name)
			}
		case <-time.After(patience):
			t.Fatalf("%s: the stream goes on", name)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("%s: the client knew after %v", name, took)
		}
		select {
		case <-w.far.ended:
			if _, err := w.through.SendMessage(t.Context(), send("say")); err == nil {
				t.Errorf("%s: somebody answers", name)
			}
			w.startAgent()
		default:
		}
		if _, err := w.through.SendMessage(t.Context(), send("say")); err != nil {
			t.Errorf("%s, and is back: %v", name, err)
		}
	}
}

// Push-notification configurations are set, read, listed and deleted. The SDK's
// server answers a deletion with nothing at all, which its own client takes for a
// fault; so do we, and the deletion has happened all the same.
func TestPushNotificationConfiguration(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	sent, err := w.through.SendMessage(ctx, send("hello"))
	id := taskOf(t, sent, err).ID
	config := &a2a.TaskPushConfig{TaskID: id, Config: a2a.PushConfig{ID: "p", URL: "http://localhost/hook", Token: "t"}}
	set, err := w.through.SetTaskPushConfig(ctx, config)
	if err != nil || !reflect.DeepEqual(set, config) {
		t.Errorf("%+v, %v", set, err)
	}
	got, err := w.through.GetTaskPushConfig(ctx, &a2a.GetTaskPushConfigParams{TaskID: id, ConfigID: "p"})
	if err != nil || !reflect.DeepEqual(got, config) {
		t.Errorf("%+v, %v", got, err)
	}
	list, err := w.through.ListTaskPushConfig(ctx, &a2a.ListTaskPushConfigParams{TaskID: id})
	if err != nil || len(list) != 1 || !reflect.DeepEqual(list[0], config) {
		t.Errorf("%+v, %v", list, err)
	}
	through, direct := w.through.DeleteTaskPushConfig(ctx, &a2a.DeleteTaskPushConfigParams{TaskID: id, ConfigID: "p"}), w.direct.DeleteTaskPushConfig(ctx, &a2a.DeleteTaskPushConfigParams{TaskID: id, ConfigID: "p"})
	if (through == nil) != (direct == nil) {
		t.Errorf("%v, without trestle %v", through, direct)
	}
	if list, err := w.through.ListTaskPushConfig(ctx, &a2a.ListTaskPushConfigParams{TaskID: id}); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	_, err = w.through.GetTaskPushConfig(ctx, &a2a.GetTaskPushConfigParams{TaskID: id, ConfigID: "p"})
	_, want := w.direct.GetTaskPushConfig(ctx, &a2a.GetTaskPushConfigParams{TaskID: id, ConfigID: "p"})
	if err == nil || want == nil || err.Error() != want.Error() {
		t.Errorf("%v, without trestle %v", err, want)
	}
}

// Both processes end in order with the client's stream under way, which the client
// can tell from its end.
func TestProcessesEndInOrder(t *testing.T) {
	w := newWorld(t)
	defer close(w.agent.proceed)
	s := subscribe(w.through.SendStreamingMessage(t.Context(), send("wait")))
	s.start(t)
	if code := w.relay.terminate(); code != 0 {
		t.Errorf("the relay ended with %d", code)
	}
	if err := <-s.ended; err == nil {
		t.Error("the stream has ended as it should")
	}
	if code := w.far.terminate(); code != 0 {
		t.Errorf("the agent ended with %d", code)
	}
}
