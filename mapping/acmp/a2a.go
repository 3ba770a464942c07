package acmp

import (
	"encoding/json"
	"strconv"

	"github.com/trestle-npamp/trestle/carriage/jsonrpc"
	"github.com/trestle-npamp/trestle/mapping/a2a"
)

// Options say which A2A is spoken. The zero value is v0.3.0 with derived ids.
type Options struct {
	// V1 speaks v1.0.
	V1 bool
	// ErrorsComplete leaves a task whose ACMP message is an error completed, so that
	// only who reads the message learns of it, as the binding's first draft has it.
	ErrorsComplete bool
	// MessageID is the id of the A2A message; "" derives one from the task and the
	// kind of message. ContextID is the A2A context's; "" is the task's id.
	MessageID string
	ContextID string
}

// AppendRequest appends the A2A request that carries an invoke or a cancel. id is its
// JSON-RPC id as written; nil takes the message's own, which a cancel does not have.
// stream asks for a stream, and is for an invoke alone.
//
// Errors: ErrUnsupported for an inputChunk, ErrKind, ErrTaskID, ErrMalformed for a
// request without an id.
func AppendRequest(dst, id []byte, m *Message, stream bool, o *Options) ([]byte, error) {
	if id == nil {
		id = m.ID
	}
	switch {
	case m.Kind == InputChunk:
		return dst, ErrUnsupported
	case m.Kind != Invoke && (m.Kind != Cancel || stream):
		return dst, ErrKind
	case m.TaskID == nil:
		return dst, ErrTaskID
	case id == nil:
		return dst, ErrMalformed
	}
	method := a2a.MethodSend
	switch {
	case o.V1 && stream:
		method = a2a.MethodStreamV1
	case o.V1:
		method = a2a.MethodSendV1
	case stream:
		method = a2a.MethodStream
	}
	dst = append(append(dst, `{"jsonrpc":"2.0","id":`...), id...)
	dst = append(append(dst, `,"method":"`...), method...)
	dst = append(dst, `","params":{"message":`...)
	dst = o.appendMessage(dst, m)
	return append(dst, `}}`...), nil
}

// AppendReply appends the A2A response that carries a result or an error in one
// piece: the task, in the message's state. id is the request's as written.
//
// Errors: ErrKind, ErrTaskID.
func AppendReply(dst, id []byte, m *Message, o *Options) ([]byte, error) {
	if !m.Kind.answers() {
		return dst, ErrKind
	}
	if m.TaskID == nil {
		return dst, ErrTaskID
	}
	return o.appendTask(dst, id, m.TaskID, o.state(m), m), nil
}

// AppendTask appends the A2A response that tells of a task's state and nothing else,
// as a cancel is answered. taskID and id are as written.
func AppendTask(dst, id, taskID []byte, s State, o *Options) []byte {
	return o.appendTask(dst, id, taskID, s, nil)
}

func (o *Options) appendTask(dst, id, taskID []byte, s State, m *Message) []byte {
	dst = o.appendResult(dst, id, "task", "task")
	dst = append(append(dst, `"id":`...), taskID...)
	dst = o.appendContext(dst, taskID)
	dst = o.appendStatus(dst, s, m)
	return o.closeResult(dst)
}

// AppendEvent appends the A2A event that carries what a provider says in a stream: a
// streamChunk, a heartbeat, or the result or error that ends it. id is the request's
// as written.
//
// Errors: ErrKind, ErrTaskID.
func AppendEvent(dst, id []byte, m *Message, o *Options) ([]byte, error) {
	switch {
	case m.Kind.FromBuyer() || m.Kind.invalid():
		return dst, ErrKind
	case m.TaskID == nil:
		return dst, ErrTaskID
	case m.Kind == StreamChunk:
		return o.appendArtifact(dst, id, m)
	}
	dst = o.appendResult(dst, id, "status-update", "statusUpdate")
	dst = append(append(dst, `"taskId":`...), m.TaskID...)
	dst = o.appendContext(dst, m.TaskID)
	dst = o.appendStatus(dst, o.state(m), m)
	if !o.V1 {
		dst = append(dst, `,"final":`...)
		dst = strconv.AppendBool(dst, m.Kind.answers())
	}
	return o.closeResult(dst), nil
}

func (k Kind) invalid() bool { return k < Invoke || k > InputChunk }

// appendArtifact appends a chunk: the first begins an artifact, the others go on
// with it.
func (o *Options) appendArtifact(dst, id []byte, m *Message) ([]byte, error) {
	seq, err := member(m.Body, "seq")
	if err != nil {
		return dst, err
	}
	final, err := member(m.Body, "final")
	if err != nil {
		return dst, err
	}
	dst = o.appendResult(dst, id, "artifact-update", "artifactUpdate")
	dst = append(append(dst, `"taskId":`...), m.TaskID...)
	dst = o.appendContext(dst, m.TaskID)
	dst = append(dst, `,"artifact":{"artifactId":"acmp","parts":[`...)
	dst = o.appendPart(dst, m)
	dst = append(dst, `]},"append":`...)
	dst = strconv.AppendBool(dst, seq != nil && string(seq) != "0")
	dst = append(dst, `,"lastChunk":`...)
	dst = strconv.AppendBool(dst, string(final) == "true")
	return o.closeResult(dst), nil
}

// state is the one that is told for a message.
func (o *Options) state(m *Message) State {
	if o.ErrorsComplete && m.Kind == Error {
		return Completed
	}
	return m.State()
}

// appendResult opens a response with a result of that kind: v0.3.0 names it within,
// v1.0 around it.
func (o *Options) appendResult(dst, id []byte, kind, kindV1 string) []byte {
	dst = append(append(dst, `{"jsonrpc":"2.0","id":`...), id...)
	if o.V1 {
		return append(append(append(dst, `,"result":{"`...), kindV1...), `":{`...)
	}
	return append(append(append(dst, `,"result":{"kind":"`...), kind...), `",`...)
}

func (o *Options) closeResult(dst []byte) []byte {
	if o.V1 {
		dst = append(dst, '}')
	}
	return append(dst, `}}`...)
}

func (o *Options) appendContext(dst, taskID []byte) []byte {
	dst = append(dst, `,"contextId":`...)
	if o.ContextID == "" {
		return append(dst, taskID...)
	}
	return appendString(dst, o.ContextID)
}

func (o *Options) appendStatus(dst []byte, s State, m *Message) []byte {
	dst = append(append(append(dst, `,"status":{"state":"`...), s.Name(o.V1)...), '"')
	if m != nil {
		dst = o.appendMessage(append(dst, `,"message":`...), m)
	}
	return append(dst, '}')
}

// appendMessage appends the A2A message around an ACMP message.
func (o *Options) appendMessage(dst []byte, m *Message) []byte {
	dst = append(dst, '{')
	role := "agent"
	if m.Kind.FromBuyer() {
		role = "user"
	}
	if o.V1 {
		role = "ROLE_AGENT"
		if m.Kind.FromBuyer() {
			role = "ROLE_USER"
		}
	} else {
		dst = append(dst, `"kind":"message",`...)
	}
	dst = append(dst, `"messageId":`...)
	if o.MessageID != "" {
		dst = appendString(dst, o.MessageID)
	} else {
		dst = appendString(dst, string(jsonrpc.AppendString(nil, m.TaskID))+"/"+m.Kind.label())
	}
	dst = append(append(append(dst, `,"role":"`...), role...), `","taskId":`...)
	dst = append(dst, m.TaskID...)
	if o.ContextID != "" {
		dst = appendString(append(dst, `,"contextId":`...), o.ContextID)
	}
	dst = o.appendPart(append(dst, `,"parts":[`...), m)
	return append(dst, `]}`...)
}

// label is the kind's name without the protocol's.
func (k Kind) label() string {
	switch k {
	case Result:
		return "result"
	case Error:
		return "error"
	}
	return k.Method()[len("acmp/"):]
}

// appendPart appends the data part with the message in it.
func (o *Options) appendPart(dst []byte, m *Message) []byte {
	dst = append(dst, '{')
	if !o.V1 {
		dst = append(dst, `"kind":"data",`...)
	}
	dst = append(dst, `"data":{`...)
	switch m.Kind {
	case Result:
		dst = append(dst, `"acmp_result":`...)
	case Error:
		dst = append(dst, `"acmp_error":`...)
	default:
		dst = append(append(append(dst, `"acmp_method":"`...), m.Kind.Method()...), `","params":`...)
	}
	return append(append(dst, m.Body...), `},"mediaType":"`+MediaType+`"}`...)
}

func appendString(dst []byte, s string) []byte {
	text, _ := json.Marshal(s) // a string always has a form
	return append(dst, text...)
}

// ParseA2A finds the ACMP message in an A2A message: a request, a response or an
// event of a stream, of either version. The message's ID is the A2A message's where
// ACMP has one. An inputChunk is found too, so that it can be refused.
//
// Errors: ErrNone, also for an error of A2A's own; ErrSeveral, ErrKind, ErrTaskID,
// ErrMethod, ErrMalformed, and those of package jsonrpc.
func ParseA2A(b []byte) (Message, error) {
	var j jsonrpc.Message
	if err := jsonrpc.Scan(b, &j); err != nil {
		return Message{}, err
	}
	request := j.Kind == jsonrpc.KindRequest || j.Kind == jsonrpc.KindNotification
	var parts, taskID []byte
	var err error
	switch {
	case request:
		parts, taskID, err = inRequest(document(b))
	case j.Kind == jsonrpc.KindResponse:
		parts, taskID, err = inResult(j.Body)
	default:
		return Message{}, ErrNone
	}
	if err != nil {
		return Message{}, err
	}
	m, err := inParts(parts)
	if err != nil {
		return Message{}, err
	}
	if m.Kind.FromBuyer() != request {
		return Message{}, ErrKind
	}
	if m.Kind == Invoke || m.Kind.answers() {
		m.ID = j.ID
	}
	switch {
	case m.Kind == Invoke && j.ID == nil:
		return Message{}, ErrMalformed // it wants an answer
	case m.TaskID == nil:
		m.TaskID = taskID
	case taskID != nil && !jsonrpc.EqualID(m.TaskID, taskID):
		return Message{}, ErrTaskID
	}
	return m, nil
}

// inRequest finds the parts of what a request sends, and the task it is for.
func inRequest(document []byte) (parts, taskID []byte, err error) {
	params, err := member(document, "params")
	if err != nil {
		return nil, nil, err
	}
	message, err := member(params, "message")
	if err != nil {
		return nil, nil, err
	}
	return inMessage(message)
}

func inMessage(message []byte) (parts, taskID []byte, err error) {
	if parts, err = member(message, "parts"); err != nil {
		return nil, nil, err
	}
	taskID, err = idOf(message, "taskId", "task_id")
	return parts, taskID, err
}

// idOf is a member that is a string.
func idOf(object []byte, names ...string) ([]byte, error) {
	v, err := member(object, names...)
	if err == nil && v != nil && !isString(v) {
		return nil, ErrMalformed
	}
	return v, err
}

// inResult finds the parts of a task, a message or an update.
func inResult(result []byte) (parts, taskID []byte, err error) {
	for _, name := range [...][2]string{ // v1.0 names the kind around it
		{"task"}, {"message"}, {"statusUpdate", "status_update"}, {"artifactUpdate", "artifact_update"},
	} {
		inner, err := member(result, name[0], name[1])
		if err != nil {
			return nil, nil, err
		}
		if isObject(inner) {
			result = inner
			break
		}
	}
	if taskID, err = idOf(result, "taskId", "task_id", "id"); err != nil {
		return nil, nil, err
	}
	in := result
	if artifact, err := member(result, "artifact"); err != nil || artifact != nil {
		in = artifact
		if err != nil {
			return nil, nil, err
		}
	} else if status, err := member(result, "status"); err != nil || status != nil {
		if err != nil {
			return nil, nil, err
		}
		if in, err = member(status, "message"); err != nil {
			return nil, nil, err
		}
	}
	parts, err = member(in, "parts")
	return parts, taskID, err
}

// inParts finds the one data part with an ACMP message.
func inParts(parts []byte) (m Message, err error) {
	if !isArray(parts) {
		return Message{}, ErrNone
	}
	for i := 0; ; {
		_, part, after, ok := next(parts, i, false)
		if !ok {
			break
		}
		i = after
		data, err := inPart(part)
		if err != nil {
			return Message{}, err
		}
		if data == nil {
			continue
		}
		if m.Kind != 0 {
			return Message{}, ErrSeveral
		}
		if m, err = inData(data); err != nil {
			return Message{}, err
		}
	}
	if m.Kind == 0 {
		return Message{}, ErrNone
	}
	return m, nil
}

// inPart finds a part's data if it is ACMP's: its media type says so. Parts of A2A
// v0.3.0, which say their kind, have no place for one, so that a data part without
// it is ACMP's if its root is.
func inPart(part []byte) (data []byte, err error) {
	media, err := member(part, "mediaType", "media_type")
	if err != nil {
		return nil, err
	}
	kind, err := member(part, "kind")
	if err != nil {
		return nil, err
	}
	named := jsonrpc.EqualString(media, []byte(MediaType))
	if !named && (media != nil || !jsonrpc.EqualString(kind, []byte("data"))) {
		return nil, nil
	}
	if data, err = member(part, "data"); err != nil {
		return nil, err
	}
	if !named {
		for _, root := range [...]string{"acmp_method", "acmp_result", "acmp_error"} {
			if v, err := member(data, root); v != nil || err != nil {
				return data, err
			}
		}
		return nil, nil
	}
	if data == nil {
		return nil, ErrMalformed
	}
	return data, nil
}

// inData reads the root of a data part.
func inData(data []byte) (m Message, err error) {
	method, err := member(data, "acmp_method")
	if err != nil {
		return Message{}, err
	}
	if method != nil {
		var ok bool
		if m.Kind, ok = kindOf(method); !ok {
			return Message{}, ErrMethod
		}
		if m.Body, err = member(data, "params"); err != nil {
			return Message{}, err
		}
	}
	for _, root := range [...]struct {
		kind Kind
		name string
	}{{Result, "acmp_result"}, {Error, "acmp_error"}} {
		body, err := member(data, root.name)
		if err != nil || body != nil && m.Kind != 0 {
			return Message{}, ErrMalformed
		}
		if body != nil {
			m.Kind, m.Body = root.kind, body
		}
	}
	if m.Kind == 0 {
		return Message{}, ErrMalformed
	}
	return m.checked()
}
