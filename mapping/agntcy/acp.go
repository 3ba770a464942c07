package agntcy

import (
	"bytes"

	"github.com/trestle-npamp/trestle/wire/bridge"
)

// template is a row of ACP's table: the path of an operation, in segments, of which
// an empty one stands for any id.
type template struct {
	path    []string
	op      Operation
	cancels bool
}

func row(effect bridge.Effect, c Carriage, path ...string) template {
	return template{path: path, op: Operation{Surface: ACP, Effect: effect, Carriage: c}}
}

func cancel(path ...string) template {
	t := row(bridge.NonIdempotentWrite, Unary, path...)
	t.cancels = true
	return t
}

const id = "" // in a template

// The operations of ACP's OpenAPI 0.2.3 by their verbs, with the effects of
// MAP-AGNTCY 7. Names stand before ids, so that POST /runs/search is no resuming of
// a run called "search".
var (
	acpGet = []template{
		row(bridge.ReadOnly, Unary, "agents", id),
		row(bridge.ReadOnly, Unary, "agents", id, "descriptor"),
		row(bridge.ReadOnly, Unary, "threads", id),
		row(bridge.ReadOnly, Unary, "threads", id, "history"),
		row(bridge.ReadOnly, Unary, "threads", id, "runs"),
		row(bridge.ReadOnly, Unary, "threads", id, "runs", id),
		row(bridge.ReadOnly, Unary, "threads", id, "runs", id, "wait"),
		row(bridge.ReadOnly, Stream, "threads", id, "runs", id, "stream"),
		row(bridge.ReadOnly, Unary, "runs", id),
		row(bridge.ReadOnly, Unary, "runs", id, "wait"),
		row(bridge.ReadOnly, Stream, "runs", id, "stream"),
	}
	acpPost = []template{
		row(bridge.ReadOnly, Unary, "agents", "search"),
		row(bridge.ReadOnly, Unary, "threads", "search"),
		row(bridge.ReadOnly, Unary, "runs", "search"),
		row(bridge.NonIdempotentWrite, Unary, "threads"),
		row(bridge.NonIdempotentWrite, Unary, "threads", id, "copy"),
		row(bridge.NonIdempotentWrite, Unary, "threads", id, "runs"),
		row(bridge.NonIdempotentWrite, Stream, "threads", id, "runs", "stream"),
		row(bridge.NonIdempotentWrite, Unary, "threads", id, "runs", "wait"),
		row(bridge.NonIdempotentWrite, Unary, "threads", id, "runs", id),
		cancel("threads", id, "runs", id, "cancel"),
		row(bridge.NonIdempotentWrite, Unary, "runs"),
		row(bridge.NonIdempotentWrite, Stream, "runs", "stream"),
		row(bridge.NonIdempotentWrite, Unary, "runs", "wait"),
		row(bridge.NonIdempotentWrite, Unary, "runs", id),
		cancel("runs", id, "cancel"),
	}
	acpPatch  = []template{row(bridge.IdempotentWrite, Unary, "threads", id)}
	acpDelete = []template{
		row(bridge.Destructive, Unary, "threads", id),
		row(bridge.Destructive, Unary, "threads", id, "runs", id),
		row(bridge.Destructive, Unary, "runs", id),
	}
)

// SplitACP takes a REST operation apart: "POST /runs?x=1" into its verb, its path
// and its query, views of method. ok says that it has the form of one: a verb of
// capitals, one space, and an absolute path whose segments are what they look like.
// That leaves out empty and dot segments and whatever hides one: an escaped slash,
// backslash or percent sign, and escapes of what needs none, letters and dots among
// it. It leaves out semicolons too, behind which some servers look for parameters, and
// not for a part of the path. So no server on the way takes the path for another one,
// and one operation has one name, to which its effect and the rules of a policy hold.
func SplitACP(method []byte) (verb, path, query []byte, ok bool) {
	verb, target, found := bytes.Cut(method, []byte(" "))
	if !found || len(verb) == 0 || len(target) < 2 || target[0] != '/' {
		return nil, nil, nil, false
	}
	for _, c := range verb {
		if c < 'A' || c > 'Z' {
			return nil, nil, nil, false
		}
	}
	path, query, _ = bytes.Cut(target, []byte("?"))
	for rest := path; len(rest) > 0; {
		var segment []byte
		segment, rest = nextSegment(rest)
		if !validSegment(segment) {
			return nil, nil, nil, false
		}
	}
	if !validText(query, true) {
		return nil, nil, nil, false
	}
	return verb, path, query, true
}

// nextSegment cuts the first segment, behind its slash, off a path.
func nextSegment(path []byte) (segment, rest []byte) {
	if i := bytes.IndexByte(path[1:], '/'); i >= 0 {
		return path[1 : 1+i], path[1+i:]
	}
	return path[1:], nil
}

func validSegment(s []byte) bool {
	return len(s) > 0 && string(s) != "." && string(s) != ".." && validText(s, false)
}

// validText says that a part of a URI has only octets that stand for themselves,
// and escapes (RFC 3986 3.3, 3.4). A path has no escapes of what could mean
// something else to whoever undoes them.
func validText(s []byte, query bool) bool {
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '%':
			if i+2 >= len(s) {
				return false
			}
			hi, lo := hexDigit(s[i+1]), hexDigit(s[i+2])
			if hi < 0 || lo < 0 {
				return false
			}
			switch v := byte(hi<<4 | lo); {
			case query:
			case v < ' ', v == 0x7F, v == '/', v == '\\', v == '%', unreserved(v):
				return false
			}
			i += 2
		case unreserved(c):
		case query && (c == '/' || c == '?' || c == ';'):
		case bytes.IndexByte([]byte("!$&'()*+,=:@"), c) >= 0:
		default:
			return false
		}
	}
	return true
}

// unreserved says that an escape of c means the same as c (RFC 3986 2.3).
func unreserved(c byte) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		return true
	}
	return c == '-' || c == '.' || c == '_' || c == '~'
}

func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// lookupACP finds the row for a concrete path, nil for none.
func lookupACP(method []byte) *template {
	verb, path, _, ok := SplitACP(method)
	if !ok {
		return nil
	}
	var rows []template
	switch string(verb) {
	case "GET":
		rows = acpGet
	case "POST":
		rows = acpPost
	case "PATCH":
		rows = acpPatch
	case "DELETE":
		rows = acpDelete
	}
	for i := range rows {
		if rows[i].matches(path) {
			return &rows[i]
		}
	}
	return nil
}

func (t *template) matches(path []byte) bool {
	for _, want := range t.path {
		if len(path) == 0 {
			return false
		}
		var segment []byte
		segment, path = nextSegment(path)
		if want != id && string(segment) != want {
			return false
		}
	}
	return len(path) == 0
}
