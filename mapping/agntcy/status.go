package agntcy

import "strconv"

// An answer to a REST operation has its HTTP status in the envelope's method, as
// three digits: "201". That is ours, like the names of requests; the body is the
// foreign message and nothing else, a success is a RESPONSE, and a status of 400 or
// more an ERROR. The frames of a stream have no status; theirs is 200.

// Status is the method of an answer with an HTTP status.
func Status(status int) string { return strconv.Itoa(status) }

// Failed says whether an answer with a status is an ERROR.
func Failed(status int) bool { return status >= 400 }

// ParseStatus reads the status of an answer, of which failed says that it is an
// ERROR. A peer that tells none means 200 or 500. ok is false for what is no status
// of a last response, 200 to 299 and 400 to 599, and for one that says something else
// than the frame.
func ParseStatus(method []byte, failed bool) (status int, ok bool) {
	switch {
	case len(method) == 0 && failed:
		return 500, true
	case len(method) == 0:
		return 200, true
	case len(method) != 3:
		return 0, false
	}
	for _, c := range method {
		if c < '0' || c > '9' {
			return 0, false
		}
		status = 10*status + int(c-'0')
	}
	success, failure := status >= 200 && status <= 299, status >= 400 && status <= 599
	return status, success && !failed || failure && failed
}

// EventType is the type of the events of ACP's streams (OpenAPI 0.2.3,
// RunOutputStream).
const EventType = "agent_event"
