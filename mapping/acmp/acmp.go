// Package acmp binds ACMP, a protocol in which agents buy work from agents, to
// A2A: its messages travel unchanged in data parts of A2A messages, and A2A is
// nothing but the session around them (the shallow binding of "A2A Mapping: Layer 1
// Transport"). On the link it is A2A like any other, carried and labelled by package
// mapping/a2a.
//
//	ACMP           from      in A2A
//	invoke         buyer     message/send or message/stream
//	cancel         buyer     message/send, answered with the task as it is
//	streamChunk    provider  an artifact update of the stream
//	heartbeat      provider  a status update of the stream: working
//	result         provider  the task: completed; or the stream's last status update
//	error          provider  the same: failed, rejected or canceled
//	inputChunk     buyer     not carried; providers declare input_streaming false
//
// A data part holds {"acmp_method":...,"params":...}, {"acmp_result":...} or
// {"acmp_error":...}. The values of params, result and error are ACMP's own, octet
// for octet; the JSON-RPC frame around them is A2A's on the link and can be made
// again on the far side, with the same id.
//
// Names and forms of A2A are those of v0.3.0 or, where asked for, of v1.0.
package acmp

import (
	"errors"
	"strconv"

	"github.com/trestle-npamp/trestle/carriage/jsonrpc"
)

// MediaType is that of a data part with an ACMP message.
const MediaType = "application/acmp+json"

// The methods.
const (
	MethodInvoke      = "acmp/invoke"
	MethodCancel      = "acmp/cancel"
	MethodStreamChunk = "acmp/streamChunk"
	MethodHeartbeat   = "acmp/heartbeat"
	MethodInputChunk  = "acmp/inputChunk"
)

// The error codes that decide on a task's state.
const (
	CodeBudgetExceeded     = -33001
	CodeCapabilityNotFound = -33002
	CodeTimeout            = -33003
	CodeCancelled          = -33004
	CodeEscrowInvalid      = -33005
	CodeProofUnsupported   = -33006
	CodeFeatureUnsupported = -33007
	CodeInternal           = -33099
)

// Kind is what a message is.
type Kind uint8

// The kinds.
const (
	Invoke Kind = iota + 1
	Cancel
	StreamChunk
	Heartbeat
	Result
	Error
	// InputChunk is known, and not carried.
	InputChunk
)

var methods = [...]string{
	Invoke: MethodInvoke, Cancel: MethodCancel, StreamChunk: MethodStreamChunk, Heartbeat: MethodHeartbeat,
	Result: "", Error: "", InputChunk: MethodInputChunk,
}

// Method is the kind's method; "" for a result or an error.
func (k Kind) Method() string {
	if int(k) < len(methods) {
		return methods[k]
	}
	return ""
}

// FromBuyer says that a buyer sends it, and not a provider.
func (k Kind) FromBuyer() bool { return k == Invoke || k == Cancel || k == InputChunk }

// answers says that the message ends an invoke.
func (k Kind) answers() bool { return k == Result || k == Error }

// kindOf finds a method's kind; token is a JSON string.
func kindOf(token []byte) (Kind, bool) {
	for k, m := range methods {
		if m != "" && jsonrpc.EqualString(token, []byte(m)) {
			return Kind(k), true
		}
	}
	return 0, false
}

// Errors.
var (
	// ErrMalformed: not a message of ACMP.
	ErrMalformed = errors.New("acmp: malformed message")
	// ErrMethod: a method that ACMP does not have.
	ErrMethod = errors.New("acmp: unknown method")
	// ErrUnsupported: a message that the binding does not carry: inputChunk.
	ErrUnsupported = errors.New("acmp: input streaming is not carried over A2A")
	// ErrKind: a message in a place where another kind belongs.
	ErrKind = errors.New("acmp: this kind of message does not belong here")
	// ErrTaskID: no task id, or another one in the A2A message than in ACMP's.
	ErrTaskID = errors.New("acmp: missing or different task id")
	// ErrNone: an A2A message without an ACMP message in it.
	ErrNone = errors.New("acmp: no ACMP message in this A2A message")
	// ErrSeveral: an A2A message with more than one.
	ErrSeveral = errors.New("acmp: more than one ACMP message in an A2A message")
)

// Message is one ACMP message. Its slices are views of what it was parsed from.
type Message struct {
	Kind Kind
	// ID is the JSON-RPC id as written, of an invoke and what answers it; nil in a
	// notification.
	ID []byte
	// TaskID is the task's id as written, a JSON string with its quotes; nil if there
	// is none, as in an error without data.
	TaskID []byte
	// Body is the value of params, result or error, octet for octet: a JSON object.
	Body []byte
	// Code is an error's.
	Code int
}

// Parse reads one of ACMP's own JSON-RPC messages. Errors: ErrMalformed, ErrMethod,
// those of package jsonrpc.
func Parse(b []byte) (Message, error) {
	var j jsonrpc.Message
	if err := jsonrpc.Scan(b, &j); err != nil {
		return Message{}, err
	}
	m := Message{ID: j.ID, Body: j.Body}
	switch j.Kind {
	case jsonrpc.KindResponse:
		m.Kind = Result
	case jsonrpc.KindError:
		m.Kind = Error
	default:
		var ok bool
		if m.Kind, ok = kindOf(j.Method); !ok {
			return Message{}, ErrMethod
		}
		if (m.Kind == Invoke) != (j.Kind == jsonrpc.KindRequest) {
			return Message{}, ErrMalformed
		}
		var err error
		if m.Body, err = member(document(b), "params"); err != nil {
			return Message{}, err
		}
	}
	return m.checked()
}

// checked is the message with what its body says of it, or why it is none.
func (m Message) checked() (Message, error) {
	if err := m.complete(); err != nil {
		return Message{}, err
	}
	return m, nil
}

// complete reads what Body says of the task, and checks that it is an object.
func (m *Message) complete() (err error) {
	if !isObject(m.Body) {
		return ErrMalformed
	}
	of := m.Body
	if m.Kind == Error {
		code, err := member(m.Body, "code")
		if err != nil {
			return err
		}
		if m.Code, err = strconv.Atoi(string(code)); err != nil {
			return ErrMalformed
		}
		if of, err = member(m.Body, "data"); err != nil {
			return err
		}
		if !isObject(of) {
			return nil // it has no task id
		}
	}
	if m.TaskID, err = member(of, "task_id"); err != nil {
		return err
	}
	if !isString(m.TaskID) && (m.TaskID != nil || m.Kind != Error) {
		return ErrMalformed
	}
	return nil
}

// Append appends the message as ACMP's own JSON-RPC message.
func (m *Message) Append(dst []byte) []byte {
	dst = append(dst, `{"jsonrpc":"2.0"`...)
	if method := m.Kind.Method(); method != "" {
		dst = append(append(append(dst, `,"method":"`...), method...), '"')
	}
	if m.ID != nil {
		dst = append(append(dst, `,"id":`...), m.ID...)
	}
	switch m.Kind {
	case Result:
		dst = append(dst, `,"result":`...)
	case Error:
		dst = append(dst, `,"error":`...)
	default:
		dst = append(dst, `,"params":`...)
	}
	return append(append(dst, m.Body...), '}')
}

// State is the state of an A2A task.
type State uint8

// The states that ACMP's tasks have. A2A's interrupted ones are not among them.
const (
	Submitted State = iota + 1
	Working
	Completed
	Failed
	Canceled
	Rejected
)

var stateNames = [...][2]string{
	Submitted: {"submitted", "TASK_STATE_SUBMITTED"},
	Working:   {"working", "TASK_STATE_WORKING"},
	Completed: {"completed", "TASK_STATE_COMPLETED"},
	Failed:    {"failed", "TASK_STATE_FAILED"},
	Canceled:  {"canceled", "TASK_STATE_CANCELED"},
	Rejected:  {"rejected", "TASK_STATE_REJECTED"},
}

// Name is the state's name on the wire, in A2A v0.3.0 or v1.0.
func (s State) Name(v1 bool) string {
	if s < Submitted || s > Rejected {
		s = Working
	}
	if v1 {
		return stateNames[s][1]
	}
	return stateNames[s][0]
}

// State is the A2A state that a message says its task is in. An error is canceled
// after a cancel, rejected when its code says that no work was begun, and failed
// otherwise.
func (m *Message) State() State {
	switch {
	case m.Kind == Result:
		return Completed
	case m.Kind == Invoke:
		return Submitted
	case m.Kind != Error:
		return Working
	}
	switch m.Code {
	case CodeCancelled:
		return Canceled
	case CodeBudgetExceeded, CodeCapabilityNotFound, CodeEscrowInvalid, CodeProofUnsupported, CodeFeatureUnsupported:
		return Rejected
	}
	return Failed
}
