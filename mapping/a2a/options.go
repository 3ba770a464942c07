package a2a

import (
	"errors"
	"fmt"
	"maps"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/carriage/jsonrpc"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// Options are what a deployment decides about the mapping. Operations are named by
// either version's name, which means the operation under both.
type Options struct {
	// Stricter raises the effects of operations above those of the mapping: MAP-A2A 5
	// permits it for tasks/cancel, which may be destructive, and nothing here depends
	// on an effect being low. Requests that we send are labelled by it, and requests
	// that we receive are taken for it whatever their label says. An effect can't be
	// lowered: senders everywhere count on the table.
	Stricter map[string]bridge.Effect
	// NotCarried are operations that are refused with MethodUnsupported (MAP-A2A 4):
	// those of which a peer is to know that nobody here looks at them. An agent that
	// carries an operation without supporting it says so itself, by an error of A2A.
	NotCarried []string
}

// ErrOptions is the class of NewMapping's errors.
var ErrOptions = errors.New("a2a: invalid options")

// Mapping is the mapping as a deployment has it. nil is the mapping as it stands. It
// is safe for use by many goroutines.
type Mapping struct {
	operations map[string]Operation
	off        map[string]bool
}

// Strict is what MAP-A2A 5 offers a deployment with a stricter policy: cancelling a
// task is destructive.
var Strict = Options{Stricter: map[string]bridge.Effect{MethodCancelTask: bridge.Destructive}}

// The names of one operation in both versions.
var twins = map[string]string{
	MethodSend: MethodSendV1, MethodStream: MethodStreamV1, MethodGetTask: MethodGetTaskV1, MethodCancelTask: MethodCancelTaskV1,
	MethodResubscribe: MethodSubscribeV1, MethodSetPush: MethodCreatePushV1, MethodGetPush: MethodGetPushV1, MethodListPush: MethodListPushV1,
	MethodDeletePush: MethodDeletePushV1, MethodGetExtendedCard: MethodGetExtendedCardV1,
}

func init() {
	for v03, v1 := range maps.Clone(twins) {
		twins[v1] = v03
	}
}

// NewMapping makes a mapping. Errors, of the class ErrOptions, are for names that no
// operation has and for effects below the mapping's.
func NewMapping(o Options) (*Mapping, error) {
	m := &Mapping{operations: maps.Clone(operations), off: make(map[string]bool)}
	for name, effect := range o.Stricter {
		for _, name := range names(name) {
			op, known := m.operations[name]
			switch {
			case !known:
				return nil, fmt.Errorf("%w: %q is no operation of A2A", ErrOptions, name)
			case effect > bridge.Destructive:
				return nil, fmt.Errorf("%w: %v is no effect", ErrOptions, effect)
			case effect < operations[name].Effect:
				return nil, fmt.Errorf("%w: %s is %v, and can't be %v", ErrOptions, name, operations[name].Effect, effect)
			}
			op.Effect = max(op.Effect, effect) // both names may be given
			m.operations[name] = op
		}
	}
	for _, name := range o.NotCarried {
		for _, name := range names(name) {
			if _, known := operations[name]; !known {
				return nil, fmt.Errorf("%w: %q is no operation of A2A", ErrOptions, name)
			}
			m.off[name] = true
		}
	}
	return m, nil
}

func names(name string) []string {
	if twin := twins[name]; twin != "" {
		return []string{name, twin}
	}
	return []string{name}
}

// Effect returns what an operation may do to the world; see the function of that name.
func (m *Mapping) Effect(method []byte) (effect bridge.Effect, known bool) {
	if m == nil {
		return Effect(method)
	}
	op, known := m.operations[string(method)]
	return op.Effect, known
}

// Carries says that requests with the method are carried, which those are too that A2A
// does not define.
func (m *Mapping) Carries(method []byte) bool { return m == nil || !m.off[string(method)] }

// Protocol is A2A as a Bridge carries it with this mapping; see the function of that
// name.
func (m *Mapping) Protocol(h carriage.Handler) carriage.Protocol {
	p := Protocol(h)
	p.Effect, p.Supports = m.Effect, m.Carries
	return p
}

// WithoutPush serves all but the push-notification configuration of an agent that has
// none: its requests are answered with A2A's own error -32003 (MAP-A2A 8), and h does
// not see them.
func WithoutPush(h carriage.Handler) carriage.Handler { return withoutPush{h} }

type withoutPush struct{ carriage.Handler }

// ServeRequest implements carriage.Handler.
func (h withoutPush) ServeRequest(r *carriage.Request) {
	switch string(r.Method()) {
	case MethodSetPush, MethodGetPush, MethodListPush, MethodDeletePush, MethodCreatePushV1, MethodGetPushV1, MethodListPushV1, MethodDeletePushV1:
		b := append([]byte(`{"jsonrpc":"2.0","id":`), r.ID()...)
		_ = r.Fail(append(b, `,"error":{"code":-32003,"message":"Push Notification is not supported"}}`...)) // nobody else answers
	default:
		h.Handler.ServeRequest(r)
	}
}

// AppendResubscribe appends the request that asks for a task's stream to go on: in
// v1.0's words, or in v0.3.0's. id and task are JSON tokens: the id of the request that
// began the stream, as written, and the task's id, as TaskOf finds it. With a cursor it
// is what resumes that stream on a link (D27, MAP-A2A 6; carriage.StreamCall.Resume,
// carriage.Redial.Message).
func AppendResubscribe(dst, id, task []byte, v1 bool) []byte {
	method := MethodResubscribe
	if v1 {
		method = MethodSubscribeV1
	}
	dst = append(append(dst, `{"jsonrpc":"2.0","id":`...), id...)
	dst = append(append(dst, `,"method":"`...), method...)
	dst = append(append(dst, `","params":{"id":`...), task...)
	return append(dst, "}}"...)
}

// TaskOf returns the id of the task that an event of a stream is about, a JSON string
// as written and a view of event, and whether the event is v1.0's; nil for none.
func TaskOf(event []byte) (task []byte, v1 bool) {
	var m jsonrpc.Message
	if jsonrpc.Scan(event, &m) != nil || m.Kind != jsonrpc.KindResponse {
		return nil, false
	}
	var kind, id, of, wrapped []byte
	whole := false
	each(m.Body, func(name, value []byte) {
		switch {
		case is(name, "kind"):
			kind = value
		case is(name, "id"):
			id = value
		case is(name, "taskId"):
			of = value
		case is(name, "task"):
			wrapped, whole = value, true
		case is(name, "statusUpdate"), is(name, "artifactUpdate"), is(name, "message"):
			wrapped, whole = value, false
		}
	})
	switch {
	case is(kind, "task"):
		return text(id), false
	case kind != nil:
		return text(of), false
	}
	each(wrapped, func(name, value []byte) {
		if whole && is(name, "id") || !whole && is(name, "taskId") {
			task = text(value)
		}
	})
	return task, task != nil
}

// text is a token that is a string, nil for another one.
func text(token []byte) []byte {
	if len(token) < 2 || token[0] != '"' {
		return nil
	}
	return token
}
