package acmp

import (
	"bytes"

	"github.com/trestle-npamp/trestle/carriage/jsonrpc"
)

// What is here walks JSON that has been found to be JSON. It copies nothing, and
// nesting costs it nothing.

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

func skipSpace(b []byte, i int) int {
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	return i
}

// document is a whole text's value, without the white space around it.
func document(b []byte) []byte { return bytes.Trim(b, " \t\r\n") }

func isObject(v []byte) bool { return len(v) > 0 && v[0] == '{' }
func isArray(v []byte) bool  { return len(v) > 0 && v[0] == '[' }
func isString(v []byte) bool { return len(v) > 0 && v[0] == '"' }

// skipString returns the index after the string that starts at b[i].
func skipString(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

// skipValue returns the index after the value that starts at b[i].
func skipValue(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			i = skipString(b, i)
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\t', '\n', '\r':
			i++
			continue // within a container
		default:
			for i < len(b) && bytes.IndexByte([]byte(",:]} \t\r\n"), b[i]) < 0 {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
	return len(b)
}

// next gives an element of an array or a member of an object, and where to go on;
// ok is false at the end.
func next(v []byte, i int, object bool) (key, value []byte, after int, ok bool) {
	i = skipSpace(v, i)
	if i < len(v) && (v[i] == ',' || i == 0) {
		i = skipSpace(v, i+1) // past the comma, or the opening bracket
	}
	if i >= len(v) || v[i] == '}' || v[i] == ']' {
		return nil, nil, i, false
	}
	if object {
		end := skipString(v, i)
		key = v[i:end:end]
		i = skipSpace(v, skipSpace(v, end)+1) // past the colon
	}
	end := skipValue(v, i)
	return key, v[i:end:end], end, true
}

// member finds the value of an object's member that has one of the names, nil if
// there is none. Names are compared by their decoded values and exactly; more than
// one is ErrMalformed.
func member(object []byte, names ...string) (found []byte, err error) {
	if !isObject(object) {
		return nil, nil
	}
	for i := 0; ; {
		key, value, after, ok := next(object, i, true)
		if !ok {
			return found, nil
		}
		i = after
		for _, name := range names {
			if !jsonrpc.EqualString(key, []byte(name)) {
				continue
			}
			if found != nil {
				return nil, ErrMalformed
			}
			found = value
		}
	}
}
