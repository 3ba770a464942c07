package a2a

import "github.com/trestle-npamp/trestle/carriage/jsonrpc"

// Event is what one event of a stream means for the stream's end (D19).
type Event uint8

// Meanings of an event.
const (
	// Other events are sent on and end nothing. What can't be read is one.
	Other Event = iota
	// Terminal ends the stream at once: a v0.3 status update with final true, a
	// task or a v1.0 status update in a terminal state, a message, an error object.
	Terminal
	// Interrupted leaves the task waiting for its caller (input or authorization):
	// a source that ends cleanly behind it has ended in order.
	Interrupted
)

// Classify tells what an event means: the JSON-RPC response object of one
// server-sent event. Nothing is allocated and nothing changed.
func Classify(event []byte) Event {
	var m jsonrpc.Message
	if jsonrpc.Scan(event, &m) != nil {
		return Other
	}
	switch m.Kind {
	case jsonrpc.KindError:
		return Terminal
	case jsonrpc.KindResponse:
		return classifyResult(m.Body)
	}
	return Other
}

func classifyResult(result []byte) Event {
	var kind, final, status, task, message, update []byte
	each(result, func(name, value []byte) {
		switch {
		case is(name, "kind"):
			kind = value
		case is(name, "final"):
			final = value
		case is(name, "status"):
			status = value
		case is(name, "task"):
			task = value
		case is(name, "message"):
			message = value
		case is(name, "statusUpdate"):
			update = value
		}
	})
	switch { // v0.3.0 names the kind, v1.0 wraps the object in a member of its name
	case is(kind, "message"):
		return Terminal
	case is(kind, "task"):
		return stateOf(status)
	case is(kind, "status-update"):
		if string(final) == "true" {
			return Terminal
		}
		if stateOf(status) == Interrupted {
			return Interrupted
		}
		return Other
	case kind != nil:
		return Other
	case isObject(message):
		return Terminal
	case task != nil:
		return stateIn(task)
	case update != nil:
		return stateIn(update)
	}
	return Other
}

// stateIn classifies the status member of a task or status update.
func stateIn(object []byte) Event {
	var status []byte
	each(object, func(name, value []byte) {
		if is(name, "status") {
			status = value
		}
	})
	return stateOf(status)
}

// stateOf classifies the state in a status object, by the names of both versions.
func stateOf(status []byte) Event {
	var state []byte
	each(status, func(name, value []byte) {
		if is(name, "state") {
			state = value
		}
	})
	for _, s := range states {
		if is(state, s.v03) || is(state, s.v10) {
			return s.event
		}
	}
	return Other
}

var states = [...]struct {
	v03, v10 string
	event    Event
}{
	{"completed", "TASK_STATE_COMPLETED", Terminal},
	{"failed", "TASK_STATE_FAILED", Terminal},
	{"canceled", "TASK_STATE_CANCELED", Terminal},
	{"rejected", "TASK_STATE_REJECTED", Terminal},
	{"input-required", "TASK_STATE_INPUT_REQUIRED", Interrupted},
	{"auth-required", "TASK_STATE_AUTH_REQUIRED", Interrupted},
}

// is compares a string token, quotes included, with plain ASCII text.
func is(token []byte, text string) bool {
	if len(token) < 2 || token[0] != '"' {
		return false
	}
	if string(token[1:len(token)-1]) == text {
		return true
	}
	return len(token) > len(text)+2 && jsonrpc.EqualString(token, []byte(text)) // escapes
}

func isObject(value []byte) bool { return len(value) > 0 && value[0] == '{' }

// each calls f for every member of a JSON object, and not at all for anything
// else. object is a value of a message that was scanned, so it is valid.
func each(object []byte, f func(name, value []byte)) {
	if !isObject(object) {
		return
	}
	for i := 1; i < len(object); {
		i = skipSpace(object, i)
		if i >= len(object) || object[i] != '"' {
			return
		}
		end := skipValue(object, i)
		name := object[i:end]
		i = skipSpace(object, skipSpace(object, end)+1) // the colon
		if i >= len(object) {
			return
		}
		end = skipValue(object, i)
		f(name, object[i:end])
		i = skipSpace(object, end) + 1 // the comma, or the end
	}
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipValue gives the end of the value that starts at i, without recursion.
func skipValue(b []byte, i int) int {
	depth := 0
	for ; i < len(b); i++ {
		switch b[i] {
		case '"':
			for i++; i < len(b) && b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
			continue
		case '}', ']':
			if depth == 0 {
				return i // of the object around a bare number or literal
			}
			depth--
		case ',', ' ', '\n', '\t', '\r':
			if depth == 0 {
				return i
			}
			continue
		default:
			continue
		}
		if depth == 0 {
			return min(i+1, len(b))
		}
	}
	return len(b)
}
