package agntcy

import (
	"bytes"

	"github.com/trestle-npamp/trestle/wire/bridge"
)

// What SLIM does besides calls. SLIM has no names for these in a method's place, so
// they are ours; only envelopes have them, no message.
const (
	MethodPublish     = "publish"     // delivers a message
	MethodSubscribe   = "subscribe"   // to a channel
	MethodUnsubscribe = "unsubscribe" // from it
	MethodJoin        = "join"        // a group
	MethodLeave       = "leave"       // it
)

// lookupSLIM classifies by MAP-AGNTCY 7.
func lookupSLIM(method []byte) (op Operation, known bool) {
	op.Surface = SLIM
	switch string(method) {
	case MethodPublish:
		op.Effect, op.Carriage = bridge.NonIdempotentWrite, OneWay
	case MethodSubscribe:
		// What is published may come as a stream.
		op.Effect, op.Carriage = bridge.IdempotentWrite, Any
	case MethodUnsubscribe, MethodJoin, MethodLeave:
		op.Effect, op.Carriage = bridge.IdempotentWrite, Unary
	default:
		if _, _, ok := SplitSRPC(method); !ok {
			return Operation{}, false
		}
		op.Effect, op.Carriage = bridge.NonIdempotentWrite, Any
	}
	return op, true
}

// SplitSRPC takes the name of an SRPC method apart: "pkg.Service/Method" into its
// service and its method, views of method. ok says that it has that form.
func SplitSRPC(method []byte) (service, name []byte, ok bool) {
	service, name, found := bytes.Cut(method, []byte("/"))
	if !found || !isIdentifier(name) {
		return nil, nil, false
	}
	for rest := service; ; {
		part, more, dot := bytes.Cut(rest, []byte("."))
		if !isIdentifier(part) {
			return nil, nil, false
		}
		if !dot {
			return service, name, true
		}
		rest = more
	}
}

// isIdentifier says that s is an identifier of Protocol Buffers.
func isIdentifier(s []byte) bool {
	for i, c := range s {
		switch {
		case c == '_', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
		case i > 0 && c >= '0' && c <= '9':
		default:
			return false
		}
	}
	return len(s) > 0
}

// isA2AService says that a method is one of A2A's gRPC service, of whichever
// version.
func isA2AService(method []byte) bool {
	service, _, ok := SplitSRPC(method)
	return ok && (string(service) == "A2AService" || bytes.HasSuffix(service, []byte(".A2AService")))
}

// The packages of the Agent Directory's and OASF's services.
var documentPackages = [...]string{"agntcy.dir.", "agntcy.oasf."}

// isDocument says that a method works on directory or OASF records.
func isDocument(method []byte) bool {
	service, _, ok := SplitSRPC(method)
	for _, p := range documentPackages {
		if ok && bytes.HasPrefix(service, []byte(p)) {
			return true
		}
	}
	return false
}
