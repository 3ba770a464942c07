package conformance

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// tokenKind says what a token of a line is.
type tokenKind uint8

const (
	word tokenKind = iota + 1 // a bare word, * included
	text                      // octets: `raw`, "escaped" or h'00ff'
	hole                      // <name>: eight octets that only the run knows
)

// token is one of a line, from a column on.
type token struct {
	kind tokenKind
	s    string // the word, the octets, or the name
}

var (
	errUnended = errors.New("a quoted text has no end")
	errHex     = errors.New("not pairs of hexadecimal digits")
	errHole    = errors.New("a name in <> is letters alone")
)

// lex takes a line apart up to its bare |, and returns what is behind that. Without
// one right is empty and cut is false.
func lex(line string) (tokens []token, right string, cut bool, err error) {
	for i := 0; i < len(line); {
		switch c := line[i]; {
		case c == ' ' || c == '\t' || c == ',':
			i++
		case c == '|':
			return tokens, line[i+1:], true, nil
		case c == '`':
			end := strings.IndexByte(line[i+1:], '`')
			if end < 0 {
				return nil, "", false, errUnended
			}
			tokens = append(tokens, token{text, line[i+1 : i+1+end]})
			i += end + 2
		case c == '"':
			quoted, err := strconv.QuotedPrefix(line[i:])
			if err != nil {
				return nil, "", false, errUnended
			}
			s, err := strconv.Unquote(quoted)
			if err != nil {
				return nil, "", false, fmt.Errorf("%s: %w", quoted, err)
			}
			tokens = append(tokens, token{text, s})
			i += len(quoted)
		case strings.HasPrefix(line[i:], "h'"):
			end := strings.IndexByte(line[i+2:], '\'')
			if end < 0 {
				return nil, "", false, errUnended
			}
			b, err := unhex(line[i+2 : i+2+end])
			if err != nil {
				return nil, "", false, err
			}
			tokens = append(tokens, token{text, string(b)})
			i += end + 3
		case c == '<':
			end := strings.IndexByte(line[i:], '>')
			if end < 0 || !isName(line[i+1:i+end]) {
				return nil, "", false, errHole
			}
			tokens = append(tokens, token{hole, line[i+1 : i+end]})
			i += end + 1
		default:
			n := strings.IndexAny(line[i:], " \t,|")
			if n < 0 {
				n = len(line) - i
			}
			tokens = append(tokens, token{word, line[i : i+n]})
			i += n
		}
	}
	return tokens, "", false, nil
}

func isName(s string) bool {
	for _, r := range s {
		if r < 'a' || r > 'z' {
			return false
		}
	}
	return s != ""
}

// unhex reads hexadecimal digits, blanks aside.
func unhex(s string) ([]byte, error) {
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		return nil, errHex
	}
	return b, nil
}

// words are a line's tokens as they are used up.
type words struct{ rest []token }

func (w *words) empty() bool { return len(w.rest) == 0 }

// is takes the next token if it is this word.
func (w *words) is(s string) bool {
	if len(w.rest) > 0 && w.rest[0].kind == word && w.rest[0].s == s {
		w.rest = w.rest[1:]
		return true
	}
	return false
}

// word takes a bare word.
func (w *words) word(what string) (string, error) {
	if len(w.rest) == 0 || w.rest[0].kind != word {
		return "", fmt.Errorf("%s is missing", what)
	}
	s := w.rest[0].s
	w.rest = w.rest[1:]
	return s, nil
}

// number takes a number of at most so many bits, decimal or 0x.
func (w *words) number(what string, bits int) (uint64, error) {
	s, err := w.word(what)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(s, 0, bits)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is no number of %d bits", what, s, bits)
	}
	return n, nil
}

// octets takes all that follows as octets with holes; none are an empty text.
func (w *words) octets(what string) (Octets, error) {
	var o Octets
	if w.empty() {
		return o, fmt.Errorf("%s is missing", what)
	}
	for len(w.rest) > 0 && w.rest[0].kind != word {
		if t := w.rest[0]; t.kind == hole {
			o.hole(t.s)
		} else {
			o.append([]byte(t.s))
		}
		w.rest = w.rest[1:]
	}
	return o, nil
}

// plain takes octets without holes.
func (w *words) plain(what string) ([]byte, error) {
	o, err := w.octets(what)
	if err != nil {
		return nil, err
	}
	if len(o.holes) > 0 {
		return nil, fmt.Errorf("%s can't have a <name>", what)
	}
	return o.b, nil
}

// end says what is left over.
func (w *words) end() error {
	if !w.empty() {
		return fmt.Errorf("%q is left over", w.rest[0].s)
	}
	return nil
}
