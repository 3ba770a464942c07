package relay

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/trestle-npamp/trestle/mapping/a2a"
	"github.com/trestle-npamp/trestle/relay/upstream"
)

// Echo returns a Backend that is a whole A2A agent of its own: it answers a
// message with a completed task whose artifact is the text it was sent, in one
// piece or as a stream. It remembers the last tasks for tasks/get, speaks the names
// and forms of A2A v0.3.0 and of v1.0, and serves to try a relay out.
func Echo() Backend { return &echo{tasks: make(map[string]echoTask)} }

// maxEchoTasks bounds the tasks it remembers, maxEchoText the octets of a
// remembered one; longer texts are answered and then forgotten.
const (
	maxEchoTasks = 1024
	maxEchoText  = 64 << 10
)

type echo struct {
	mu    sync.Mutex
	tasks map[string]echoTask
	order []string // their ids, oldest first
}

type echoTask struct {
	id, context, text string
}

// JSON-RPC and A2A error codes.
const (
	codeInvalidParams     = -32602
	codeMethodNotFound    = -32601
	codeTaskNotFound      = -32001
	codeTaskNotCancelable = -32002
	codeUnsupported       = -32004
	codeNoExtendedCard    = -32007
)

// echoCard is the public card, in the form of v0.3.0; url is a name and not an
// address, since the relay's callers know better how they got here.
const echoCard = `{
  "protocolVersion": "0.3.0",
  "name": "echo",
  "description": "Answers with the text it was sent.",
  "url": "http://localhost/agents/echo",
  "preferredTransport": "JSONRPC",
  "version": "1.0.0",
  "capabilities": {"streaming": true, "pushNotifications": false},
  "defaultInputModes": ["text/plain"],
  "defaultOutputModes": ["text/plain"],
  "skills": [{"id": "echo", "name": "Echo", "description": "Repeats your text.", "tags": ["echo", "demo"]}]
}
`

// paramsOf returns the params of a request, nil for none. The link carries JSON-RPC
// objects only.
func paramsOf(r *upstream.Request) json.RawMessage {
	var m struct {
		Params json.RawMessage `json:"params"`
	}
	_ = json.Unmarshal(r.Body, &m)
	return m.Params
}

// unread answers a request that package encoding/json does not read, although it is
// JSON: the link carries what is nested more deeply. ok says that r is none.
func unread(r *upstream.Request) (reply *upstream.Reply, ok bool, err error) {
	if _, known := a2a.Lookup(r.Method); !known || json.Valid(r.Body) {
		return nil, true, nil
	}
	reply, err = failure(r, codeInvalidParams, "Invalid parameters: nested too deeply")
	return reply, false, err
}

// Call implements Backend.
func (e *echo) Call(_ context.Context, r *upstream.Request) (*upstream.Reply, error) {
	if reply, ok, err := unread(r); !ok {
		return reply, err
	}
	params, v1 := paramsOf(r), a2a.IsV1(r.Method)
	switch r.Method {
	case a2a.MethodSend, a2a.MethodSendV1:
		t, ok := e.begin(params)
		if !ok {
			return failure(r, codeInvalidParams, "Invalid parameters: a message is needed")
		}
		return result(r, inform(taskOf(t, v1), "task", v1))
	case a2a.MethodGetTask, a2a.MethodGetTaskV1:
		if t, ok := e.task(params); ok {
			return result(r, taskOf(t, v1))
		}
		return failure(r, codeTaskNotFound, "Task not found")
	case a2a.MethodCancelTask, a2a.MethodCancelTaskV1:
		if _, ok := e.task(params); ok {
			return failure(r, codeTaskNotCancelable, "Task cannot be canceled")
		}
		return failure(r, codeTaskNotFound, "Task not found")
	case a2a.MethodGetExtendedCard, a2a.MethodGetExtendedCardV1:
		return failure(r, codeNoExtendedCard, "Authenticated Extended Card is not configured")
	}
	if _, known := a2a.Lookup(r.Method); known {
		return failure(r, codeUnsupported, "This operation is not supported")
	}
	return failure(r, codeMethodNotFound, "Method not found")
}

// Notify implements Backend; there is nothing to notify it of.
func (e *echo) Notify(context.Context, *upstream.Request) error { return nil }

// Card implements Backend.
func (e *echo) Card(context.Context) (*upstream.Reply, error) {
	return &upstream.Reply{Body: []byte(echoCard)}, nil
}

// ExtendedCard implements Backend.
func (e *echo) ExtendedCard(_ context.Context, operation string) (*upstream.Reply, error) {
	return failure(&upstream.Request{ID: []byte("null"), Method: operation}, codeNoExtendedCard, "Authenticated Extended Card is not configured")
}

// Stream implements Backend: the task, that it works, the text in two pieces, and
// that it is completed. Subscribing to a task that is completed gets the task.
func (e *echo) Stream(_ context.Context, r *upstream.Request, event func([]byte) error) (*upstream.Reply, error) {
	if reply, ok, err := unread(r); !ok {
		return reply, err
	}
	params, v1 := paramsOf(r), a2a.IsV1(r.Method)
	var t echoTask
	var ok bool
	if r.Method == a2a.MethodResubscribe || r.Method == a2a.MethodSubscribeV1 {
		if t, ok = e.task(params); !ok {
			return failure(r, codeTaskNotFound, "Task not found")
		}
		return nil, say(r, event, inform(taskOf(t, v1), "task", v1))
	}
	if t, ok = e.begin(params); !ok {
		return failure(r, codeInvalidParams, "Invalid parameters: a message is needed")
	}
	submitted := taskOf(t, v1)
	submitted["status"] = statusOf("submitted", v1)
	delete(submitted, "artifacts")
	half := len(t.text) / 2
	for half > 0 && !utf8.RuneStart(t.text[half]) {
		half--
	}
	update := func(kind, v1kind string, fields map[string]any) map[string]any {
		fields["taskId"], fields["contextId"] = t.id, t.context
		if !v1 {
			fields["kind"] = kind
		}
		return inform(fields, v1kind, v1)
	}
	status := func(state string, final bool) map[string]any {
		fields := map[string]any{"status": statusOf(state, v1)}
		if !v1 {
			fields["final"] = final
		}
		return update("status-update", "statusUpdate", fields)
	}
	artifact := func(text string, more bool) map[string]any {
		return update("artifact-update", "artifactUpdate", map[string]any{"artifact": artifactOf(text, v1), "append": !more, "lastChunk": !more})
	}
	return nil, say(r, event, inform(submitted, "task", v1), status("working", false),
		artifact(t.text[:half], true), artifact(t.text[half:], false), status("completed", true))
}

// say sends events.
func say(r *upstream.Request, event func([]byte) error, values ...any) error {
	for _, v := range values {
		reply, err := result(r, v)
		if err != nil {
			return err
		}
		switch err := event(reply.Body); err {
		case nil:
		case upstream.ErrEnough:
			return nil
		default:
			return err
		}
	}
	return nil
}

// begin makes a task of a message, and remembers it; false says that there is no
// message.
func (e *echo) begin(params json.RawMessage) (echoTask, bool) {
	var p struct {
		Message *struct {
			ContextID string `json:"contextId"`
			Parts     []struct {
				Text string `json:"text"`
			} `json:"parts"`
		} `json:"message"`
	}
	if json.Unmarshal(params, &p) != nil || p.Message == nil {
		return echoTask{}, false
	}
	var text strings.Builder
	for _, part := range p.Message.Parts {
		text.WriteString(part.Text)
	}
	t := echoTask{id: rand.Text(), context: p.Message.ContextID, text: text.String()}
	if t.context == "" {
		t.context = rand.Text()
	}
	e.remember(t)
	return t, true
}

func (e *echo) remember(t echoTask) {
	if len(t.text)+len(t.context) > maxEchoText {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.order) == maxEchoTasks {
		delete(e.tasks, e.order[0])
		e.order = append(e.order[:0], e.order[1:]...)
	}
	e.tasks[t.id] = t
	e.order = append(e.order, t.id)
}

func (e *echo) task(params json.RawMessage) (echoTask, bool) {
	var p struct {
		ID string `json:"id"`
	}
	_ = json.Unmarshal(params, &p) // without an id there is no such task
	e.mu.Lock()
	defer e.mu.Unlock()
	t, ok := e.tasks[p.ID]
	return t, ok
}

// taskOf is a completed task in the form of one version or the other.
func taskOf(t echoTask, v1 bool) map[string]any {
	task := map[string]any{"id": t.id, "contextId": t.context, "status": statusOf("completed", v1), "artifacts": []any{artifactOf(t.text, v1)}}
	if !v1 {
		task["kind"] = "task"
	}
	return task
}

func statusOf(state string, v1 bool) map[string]any {
	if v1 {
		state = "TASK_STATE_" + strings.ToUpper(state)
	}
	return map[string]any{"state": state}
}

func artifactOf(text string, v1 bool) map[string]any {
	part := map[string]any{"text": text}
	if !v1 {
		part["kind"] = "text"
	}
	return map[string]any{"artifactId": "echo", "parts": []any{part}}
}

// inform is how a version says of which kind a value is: v1.0 by a member around
// it, v0.3.0 by one in it.
func inform(value map[string]any, kind string, v1 bool) map[string]any {
	if v1 {
		return map[string]any{kind: value}
	}
	return value
}

func result(r *upstream.Request, value any) (*upstream.Reply, error) {
	return answer(r, "result", value, false)
}

func failure(r *upstream.Request, code int, text string) (*upstream.Reply, error) {
	return answer(r, "error", map[string]any{"code": code, "message": text}, true)
}

// answer writes a response around the id's own octets.
func answer(r *upstream.Request, member string, value any, isError bool) (*upstream.Reply, error) {
	octets, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	b := append([]byte(`{"jsonrpc":"2.0","id":`), r.ID...)
	b = append(b, `,"`+member+`":`...)
	b = append(b, octets...)
	return &upstream.Reply{Error: isError, Body: append(b, '}')}, nil
}
