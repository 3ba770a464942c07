// Package a2a maps A2A, the Agent2Agent protocol, onto the Bridge channel: which
// operations there are, what each may do to the world and how it is carried
// (MAP-A2A). It knows nothing else of A2A: messages cross octet for octet, and a
// method it does not know is the agent's to refuse.
//
// The names are those of the JSON-RPC binding of A2A v0.3.0, which MAP-A2A 4 pins
// its tables to, and of v1.0, where the same operations have other names.
package a2a

import (
	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// The operations by their names in v0.3.0.
const (
	MethodSend            = "message/send"
	MethodStream          = "message/stream"
	MethodGetTask         = "tasks/get"
	MethodCancelTask      = "tasks/cancel"
	MethodResubscribe     = "tasks/resubscribe"
	MethodSetPush         = "tasks/pushNotificationConfig/set"
	MethodGetPush         = "tasks/pushNotificationConfig/get"
	MethodListPush        = "tasks/pushNotificationConfig/list"
	MethodDeletePush      = "tasks/pushNotificationConfig/delete"
	MethodGetExtendedCard = "agent/getAuthenticatedExtendedCard"
)

// The operations by their names in v1.0. ListTasks has no JSON-RPC name in
// v0.3.0.
const (
	MethodSendV1            = "SendMessage"
	MethodStreamV1          = "SendStreamingMessage"
	MethodGetTaskV1         = "GetTask"
	MethodListTasksV1       = "ListTasks"
	MethodCancelTaskV1      = "CancelTask"
	MethodSubscribeV1       = "SubscribeToTask"
	MethodCreatePushV1      = "CreateTaskPushNotificationConfig"
	MethodGetPushV1         = "GetTaskPushNotificationConfig"
	MethodListPushV1        = "ListTaskPushNotificationConfigs"
	MethodDeletePushV1      = "DeleteTaskPushNotificationConfig"
	MethodGetExtendedCardV1 = "GetExtendedAgentCard"
)

// MethodGetCard asks for an agent's public card. The name is ours: A2A itself has
// only an HTTP path for it (D24).
const MethodGetCard = "agent/getCard"

// Carriage is how an operation crosses the link.
type Carriage uint8

// The ways of carriage.
const (
	// Unary is one JSON-RPC request and one reply (MAP-A2A 4).
	Unary Carriage = iota + 1
	// Stream is one JSON-RPC request and a stream of replies (MAP-A2A 6).
	Stream
	// Document is a request without a foreign message, answered by a capability
	// document (MAP-A2A 7, D24). Asked for by a JSON-RPC object, it is carried as
	// Unary.
	Document
)

// Operation is what we know of one.
type Operation struct {
	Effect   bridge.Effect
	Carriage Carriage
	// V1 says that the name is v1.0's.
	V1 bool
}

// The table of MAP-A2A 4 and 5, once for each version's names.
var operations = map[string]Operation{
	MethodSend:            {bridge.NonIdempotentWrite, Unary, false},
	MethodStream:          {bridge.NonIdempotentWrite, Stream, false},
	MethodGetTask:         {bridge.ReadOnly, Unary, false},
	MethodCancelTask:      {bridge.NonIdempotentWrite, Unary, false},
	MethodResubscribe:     {bridge.ReadOnly, Stream, false},
	MethodSetPush:         {bridge.IdempotentWrite, Unary, false},
	MethodGetPush:         {bridge.ReadOnly, Unary, false},
	MethodListPush:        {bridge.ReadOnly, Unary, false},
	MethodDeletePush:      {bridge.Destructive, Unary, false},
	MethodGetExtendedCard: {bridge.ReadOnly, Document, false},

	MethodSendV1:            {bridge.NonIdempotentWrite, Unary, true},
	MethodStreamV1:          {bridge.NonIdempotentWrite, Stream, true},
	MethodGetTaskV1:         {bridge.ReadOnly, Unary, true},
	MethodListTasksV1:       {bridge.ReadOnly, Unary, true},
	MethodCancelTaskV1:      {bridge.NonIdempotentWrite, Unary, true},
	MethodSubscribeV1:       {bridge.ReadOnly, Stream, true},
	MethodCreatePushV1:      {bridge.IdempotentWrite, Unary, true},
	MethodGetPushV1:         {bridge.ReadOnly, Unary, true},
	MethodListPushV1:        {bridge.ReadOnly, Unary, true},
	MethodDeletePushV1:      {bridge.Destructive, Unary, true},
	MethodGetExtendedCardV1: {bridge.ReadOnly, Document, true},

	MethodGetCard: {bridge.ReadOnly, Document, false},
}

// Lookup returns what is known of a method; known is false for one that neither
// version names. Methods are compared exactly.
func Lookup[T string | []byte](method T) (op Operation, known bool) {
	op, known = operations[string(method)]
	return op, known
}

// Effect returns what the operation may do to the world. An unknown one is
// destructive unless its label says otherwise (MAP-A2A 5, D15).
func Effect[T string | []byte](method T) (effect bridge.Effect, known bool) {
	op, known := Lookup(method)
	return op.Effect, known
}

// IsStream says that the operation's reply is a stream.
func IsStream[T string | []byte](method T) bool {
	op, _ := Lookup(method)
	return op.Carriage == Stream
}

// IsDocument says that the operation, asked for by its name alone, is answered
// by a capability document.
func IsDocument[T string | []byte](method T) bool {
	op, _ := Lookup(method)
	return op.Carriage == Document
}

// IsV1 says that the method's name is one of v1.0.
func IsV1[T string | []byte](method T) bool {
	op, _ := Lookup(method)
	return op.V1
}

// Protocol is A2A as a Bridge carries it, served by h; nil only originates.
// Requests for a streaming operation, and no others, may be answered by a stream
// (MAP-A2A 4). Methods that A2A does not define are carried, since refusing them
// is the agent's part.
func Protocol(h carriage.Handler) carriage.Protocol {
	return carriage.Protocol{
		ID:       bridge.ProtocolA2A,
		Class:    carriage.ClassJSONRPC,
		Content:  bridge.ContentJSON,
		Effect:   Effect[[]byte],
		Document: IsDocument[[]byte],
		Stream:   IsStream[[]byte],
		Handler:  h,
	}
}
