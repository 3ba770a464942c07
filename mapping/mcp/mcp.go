// Package mcp maps MCP, the Model Context Protocol, onto the Bridge channel: which
// operations there are, who asks for them and what each may do to the world
// (MAP-MCP). It knows nothing else of MCP: messages cross octet for octet, in both
// directions on one association, and a method that it does not know is carried
// all the same.
//
// The names are those of MCP's revision 2025-11-25.
//
// What tools/call may do is the tool's affair. Whoever calls a tool knows its
// annotations from tools/list and labels the call with ToolLabel; a call without a
// label is destructive (MAP-MCP 6.2).
package mcp

import (
	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// The requests.
const (
	MethodInitialize            = "initialize"
	MethodPing                  = "ping"
	MethodListTools             = "tools/list"
	MethodCallTool              = "tools/call"
	MethodListResources         = "resources/list"
	MethodListResourceTemplates = "resources/templates/list"
	MethodReadResource          = "resources/read"
	MethodSubscribeResource     = "resources/subscribe"
	MethodUnsubscribeResource   = "resources/unsubscribe"
	MethodListPrompts           = "prompts/list"
	MethodGetPrompt             = "prompts/get"
	MethodComplete              = "completion/complete"
	MethodSetLogLevel           = "logging/setLevel"
	MethodGetTask               = "tasks/get"
	MethodTaskResult            = "tasks/result"
	MethodListTasks             = "tasks/list"
	MethodCancelTask            = "tasks/cancel"
	MethodCreateMessage         = "sampling/createMessage"
	MethodListRoots             = "roots/list"
	MethodElicit                = "elicitation/create"
)

// The notifications.
const (
	NotifyInitialized         = "notifications/initialized"
	NotifyCancelled           = "notifications/cancelled"
	NotifyProgress            = "notifications/progress"
	NotifyMessage             = "notifications/message"
	NotifyResourceUpdated     = "notifications/resources/updated"
	NotifyResourcesChanged    = "notifications/resources/list_changed"
	NotifyToolsChanged        = "notifications/tools/list_changed"
	NotifyPromptsChanged      = "notifications/prompts/list_changed"
	NotifyRootsChanged        = "notifications/roots/list_changed"
	NotifyElicitationComplete = "notifications/elicitation/complete"
	NotifyTaskStatus          = "notifications/tasks/status"
)

// Direction says who sends a message. MCP's client and server are roles of the
// session; either may be either side of the association.
type Direction uint8

// The directions.
const (
	ClientToServer Direction = 1 << iota
	ServerToClient
	Either = ClientToServer | ServerToClient
)

// Operation is what we know of one.
type Operation struct {
	// Effect is what it may do, at the least. Of tools/call it is Destructive, which
	// holds for a tool nothing is known of.
	Effect bridge.Effect
	// Variable says that the effect depends on the message, as that of tools/call
	// does on the tool.
	Variable     bool
	Direction    Direction
	Notification bool
}

// The tables of MAP-MCP 4 and 6.1. The latter classifies requests alone, and wants
// whatever it does not call read-only to be destructive without a label; so
// notifications are writes that may be repeated: each tells its receiver
// something.
var operations = map[string]Operation{
	MethodInitialize:            {Effect: bridge.ReadOnly, Direction: ClientToServer},
	MethodPing:                  {Effect: bridge.ReadOnly, Direction: Either},
	MethodListTools:             {Effect: bridge.ReadOnly, Direction: ClientToServer},
	MethodCallTool:              {Effect: bridge.Destructive, Variable: true, Direction: ClientToServer},
	MethodListResources:         {Effect: bridge.ReadOnly, Direction: ClientToServer},
	MethodListResourceTemplates: {Effect: bridge.ReadOnly, Direction: ClientToServer},
	MethodReadResource:          {Effect: bridge.ReadOnly, Direction: ClientToServer},
	MethodSubscribeResource:     {Effect: bridge.IdempotentWrite, Direction: ClientToServer},
	MethodUnsubscribeResource:   {Effect: bridge.IdempotentWrite, Direction: ClientToServer},
	MethodListPrompts:           {Effect: bridge.ReadOnly, Direction: ClientToServer},
	MethodGetPrompt:             {Effect: bridge.ReadOnly, Direction: ClientToServer},
	MethodComplete:              {Effect: bridge.ReadOnly, Direction: ClientToServer},
	MethodSetLogLevel:           {Effect: bridge.IdempotentWrite, Direction: ClientToServer},
	MethodGetTask:               {Effect: bridge.ReadOnly, Direction: Either},
	MethodTaskResult:            {Effect: bridge.ReadOnly, Direction: Either},
	MethodListTasks:             {Effect: bridge.ReadOnly, Direction: Either},
	MethodCancelTask:            {Effect: bridge.IdempotentWrite, Direction: Either},
	MethodCreateMessage:         {Effect: bridge.NonIdempotentWrite, Direction: ServerToClient},
	MethodListRoots:             {Effect: bridge.ReadOnly, Direction: ServerToClient},
	MethodElicit:                {Effect: bridge.NonIdempotentWrite, Direction: ServerToClient},

	NotifyInitialized:         notification(ClientToServer),
	NotifyCancelled:           notification(Either),
	NotifyProgress:            notification(Either),
	NotifyMessage:             notification(ServerToClient),
	NotifyResourceUpdated:     notification(ServerToClient),
	NotifyResourcesChanged:    notification(ServerToClient),
	NotifyToolsChanged:        notification(ServerToClient),
	NotifyPromptsChanged:      notification(ServerToClient),
	NotifyRootsChanged:        notification(ClientToServer),
	NotifyElicitationComplete: notification(ServerToClient),
	NotifyTaskStatus:          notification(Either),
}

func notification(d Direction) Operation {
	return Operation{Effect: bridge.IdempotentWrite, Direction: d, Notification: true}
}

// Lookup returns what is known of a method; known is false for one that MCP's
// revision does not name. Methods are compared exactly.
func Lookup[T string | []byte](method T) (op Operation, known bool) {
	op, known = operations[string(method)]
	return op, known
}

// Effect returns what an operation may do to the world, where its method alone
// tells that: of tools/call it knows nothing, so that the label decides and one
// without a label is destructive (D15).
func Effect[T string | []byte](method T) (effect bridge.Effect, known bool) {
	op, known := Lookup(method)
	if op.Variable {
		return 0, false
	}
	return op.Effect, known
}

// Annotations are the hints that tools/list gives of a tool (ToolAnnotations). nil
// says that a hint is not given; the zero value is a tool nothing is known of.
// They are the server's claim and no permission.
type Annotations struct {
	ReadOnly    *bool `json:"readOnlyHint,omitempty"`
	Destructive *bool `json:"destructiveHint,omitempty"`
	Idempotent  *bool `json:"idempotentHint,omitempty"`
}

// Effect is what calling the tool may do (MAP-MCP 6.2). A tool that does not say
// whether it only reads is destructive; for what else it does not say, MCP's own
// defaults hold: destructive, and not to be repeated.
func (a Annotations) Effect() bridge.Effect {
	switch {
	case a.ReadOnly == nil:
		return bridge.Destructive
	case *a.ReadOnly:
		return bridge.ReadOnly
	case a.Destructive == nil || *a.Destructive:
		return bridge.Destructive
	case a.Idempotent != nil && *a.Idempotent:
		return bridge.IdempotentWrite
	}
	return bridge.NonIdempotentWrite
}

// MaxScope is how long a label's scope may be, in octets.
const MaxScope = 255

// ToolLabel is the SafetyLabel of a call of the tool. Its name is the scope, unless
// it is longer than that may be.
func ToolLabel(name string, a Annotations) *bridge.Label {
	l := &bridge.Label{Effect: a.Effect()}
	if len(name) <= MaxScope {
		l.Scope = []byte(name)
	}
	return l
}

// Protocol is MCP as a Bridge carries it, served by h; nil only originates. Either
// side may ask (MAP-MCP 4.2), every method is carried, and none is answered by a
// stream.
func Protocol(h carriage.Handler) carriage.Protocol {
	return carriage.Protocol{
		ID:      bridge.ProtocolMCP,
		Class:   carriage.ClassJSONRPC,
		Content: bridge.ContentJSON,
		Effect:  Effect[[]byte],
		Stream:  func([]byte) bool { return false },
		Handler: h,
	}
}
