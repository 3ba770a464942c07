package jsonrpc

import (
	"encoding/binary"
	"math/bits"
	"sync"
	"unicode/utf8"
)

// skipSpace returns the index of the first octet at or after i that is not JSON
// white space, len(b) if there is none.
func skipSpace(b []byte, i int) int {
	for i < len(b) && b[i] <= ' ' {
		switch b[i] {
		case ' ', '\t', '\n', '\r':
			i++
		default:
			return i
		}
	}
	return i
}

func isDigit(c byte) bool { return c-'0' <= 9 }

// Octet patterns repeated over a word, for looking at eight octets at once.
const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// stops marks, in the top bits of its octets, which octets of w end a plain run
// of a string: a quote, a backslash, a control character. Octets above the first
// one truly meant may be marked too, so only the lowest mark counts; the other
// bits mean nothing.
//
// The quote, 0x22, with bit 1 inverted is 0x20, next to the control characters,
// which inverting that bit only permutes: so one comparison finds both.
func stops(w uint64) uint64 {
	q := w ^ 0x02*ones
	s := w ^ '\\'*ones
	return (q-0x21*ones)&^q | (s-ones)&^s
}

// scanString checks the string token that starts at b[i] and returns the index
// after its closing quote and whether an escape is in it.
func scanString(b []byte, i int) (end int, escaped bool, err error) {
	if i >= len(b) {
		return 0, false, ErrTruncated
	}
	if b[i] != '"' {
		return 0, false, ErrSyntax
	}
	i++
	start := i
	var high uint64 // gathers the top bits of the string's octets
	for {
		rest := b[i:]
		for len(rest) >= 16 {
			v, w := binary.LittleEndian.Uint64(rest), binary.LittleEndian.Uint64(rest[8:])
			if (stops(v)|stops(w))&highs != 0 {
				break
			}
			high |= v | w
			rest = rest[16:]
		}
		i = len(b) - len(rest)
		for len(b)-i >= 8 {
			w := binary.LittleEndian.Uint64(b[i:])
			if stop := stops(w) & highs; stop != 0 {
				n := bits.TrailingZeros64(stop) &^ 7
				high |= w & (1<<n - 1)
				i += n >> 3
				goto special
			}
			high |= w
			i += 8
		}
		for i < len(b) {
			c := b[i]
			if c == '"' || c == '\\' || c < 0x20 {
				goto special
			}
			high |= uint64(c)
			i++
		}
		return 0, false, ErrTruncated

	special:
		switch b[i] {
		case '"':
			// An escape is all ASCII, so checking the token as written checks
			// every raw octet of it.
			if high&highs != 0 && !utf8.Valid(b[start:i]) {
				return 0, false, ErrUTF8
			}
			return i + 1, escaped, nil
		case '\\':
			escaped = true
			if i+1 >= len(b) {
				return 0, false, ErrTruncated
			}
			switch b[i+1] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
				i += 2
			case 'u':
				for k := i + 2; k < i+6; k++ {
					if k >= len(b) {
						return 0, false, ErrTruncated
					}
					if hexDigit[b[k]] < 0 {
						return 0, false, ErrSyntax
					}
				}
				i += 6
			default:
				return 0, false, ErrSyntax
			}
		default:
			return 0, false, ErrSyntax // a control character must be escaped
		}
	}
}

// scanScalar checks the string, number or literal that starts at b[i] and
// returns the index after it.
func scanScalar(b []byte, i int) (int, error) {
	if i >= len(b) {
		return 0, ErrTruncated
	}
	switch c := b[i]; {
	case c == '"':
		end, _, err := scanString(b, i)
		return end, err
	case c == '-' || isDigit(c):
		return scanNumber(b, i)
	case c == 't':
		return scanLiteral(b, i, "true")
	case c == 'f':
		return scanLiteral(b, i, "false")
	case c == 'n':
		return scanLiteral(b, i, "null")
	}
	return 0, ErrSyntax
}

func scanLiteral(b []byte, i int, word string) (int, error) {
	for k := range len(word) {
		if i+k >= len(b) {
			return 0, ErrTruncated
		}
		if b[i+k] != word[k] {
			return 0, ErrSyntax
		}
	}
	return i + len(word), nil
}

// scanNumber checks the number at b[i] (RFC 8259 section 6). What may follow a
// number is the caller's business.
func scanNumber(b []byte, i int) (int, error) {
	if b[i] == '-' {
		i++
	}
	if i == len(b) {
		return 0, ErrTruncated
	}
	switch {
	case b[i] == '0':
		i++ // and no other digit after it
	case isDigit(b[i]):
		i = skipDigits(b, i)
	default:
		return 0, ErrSyntax
	}
	if i < len(b) && b[i] == '.' {
		i++
		if i == len(b) {
			return 0, ErrTruncated
		}
		if !isDigit(b[i]) {
			return 0, ErrSyntax
		}
		i = skipDigits(b, i)
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if i == len(b) {
			return 0, ErrTruncated
		}
		if !isDigit(b[i]) {
			return 0, ErrSyntax
		}
		i = skipDigits(b, i)
	}
	return i, nil
}

func skipDigits(b []byte, i int) int {
	for i < len(b) && isDigit(b[i]) {
		i++
	}
	return i
}

// scanValue checks the value that starts at b[i] and returns the index after it.
// At most maxDepth arrays and objects may contain each other in it.
func scanValue(b []byte, i, maxDepth int) (int, error) {
	if i < len(b) && (b[i] == '{' || b[i] == '[') {
		var l levels
		i, err := scanNested(b, i, maxDepth, &l)
		l.release()
		return i, err
	}
	return scanScalar(b, i)
}

// scanNested checks the array or object at b[i] without recursion:
//
//	value -> open    -> value of the first element, or close at once
//	      -> scalar  -> comma -> next value
//	                 -> close -> as after a scalar, one level up
func scanNested(b []byte, i, maxDepth int, l *levels) (int, error) {
	var err error
	depth := 0
	object := false // what the innermost open container is
	for {
		// b[i] is where a value must start.
		if i < len(b) && (b[i] == '{' || b[i] == '[') {
			if depth == maxDepth {
				return 0, ErrDepth
			}
			object = b[i] == '{'
			l.set(depth, object)
			depth++
			i = skipSpace(b, i+1)
			if i == len(b) {
				return 0, ErrTruncated
			}
			if b[i] != closer(object) {
				if object {
					if i, err = scanKey(b, i); err != nil {
						return 0, err
					}
				}
				continue
			}
		} else if i, err = scanScalar(b, i); err != nil {
			return 0, err
		}

		// b[i] is what follows a value, or the end of an empty container.
		for {
			i = skipSpace(b, i)
			if i == len(b) {
				return 0, ErrTruncated
			}
			if b[i] == ',' {
				i = skipSpace(b, i+1)
				if object {
					if i, err = scanKey(b, i); err != nil {
						return 0, err
					}
				}
				break
			}
			if b[i] != closer(object) {
				return 0, ErrSyntax
			}
			i++
			if depth--; depth == 0 {
				return i, nil
			}
			object = l.object(depth - 1)
		}
	}
}

func closer(object bool) byte {
	if object {
		return '}'
	}
	return ']'
}

// scanKey checks a member's name and colon and returns where its value starts.
func scanKey(b []byte, i int) (int, error) {
	i, _, err := scanString(b, i)
	if err != nil {
		return 0, err
	}
	i = skipSpace(b, i)
	if i == len(b) {
		return 0, ErrTruncated
	}
	if b[i] != ':' {
		return 0, ErrSyntax
	}
	return skipSpace(b, i+1), nil
}

// nearLevels is how many levels of nesting need no memory but the scan's own
// frame.
const nearLevels = 256

// levels remembers for each open container whether it is an object, one bit a
// level. The zero value is ready; the levels beyond nearLevels lie in a pooled
// slice that grows with what was really opened.
type levels struct {
	near [nearLevels / 64]uint64
	far  *[]uint64
}

var farPool = sync.Pool{New: func() any { return new([]uint64) }}

func (l *levels) set(i int, object bool) {
	if i < nearLevels {
		setBit(&l.near[i>>6], i, object)
		return
	}
	l.setFar(i-nearLevels, object)
}

func (l *levels) setFar(i int, object bool) {
	if l.far == nil {
		l.far = farPool.Get().(*[]uint64)
	}
	if i>>6 == len(*l.far) {
		*l.far = append(*l.far, 0)
	}
	setBit(&(*l.far)[i>>6], i, object)
}

func setBit(w *uint64, i int, on bool) {
	bit := uint64(1) << (i & 63)
	if on {
		*w |= bit
	} else {
		*w &^= bit
	}
}

func (l *levels) object(i int) bool {
	if i < nearLevels {
		return l.near[i>>6]>>(i&63)&1 != 0
	}
	i -= nearLevels
	return (*l.far)[i>>6]>>(i&63)&1 != 0
}

func (l *levels) release() {
	if l.far != nil {
		*l.far = (*l.far)[:0]
		farPool.Put(l.far)
		l.far = nil
	}
}
