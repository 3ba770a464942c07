package jsonrpc

import (
	"bytes"
	"unicode/utf8"
)

// The functions here work on string tokens, quotes included, that scanString has
// accepted. They are safe on anything else too, but then mean nothing.

// surrogates are the code points that only escapes can name and that UTF-8 has
// no form for.
const (
	surrogateMin  = 0xD800
	surrogateLow  = 0xDC00
	surrogateMax  = 0xDFFF
	surrogateSelf = 0x10000
)

// inner returns a string token without its quotes.
func inner(token []byte) ([]byte, bool) {
	if len(token) < 2 || token[0] != '"' || token[len(token)-1] != '"' {
		return nil, false
	}
	return token[1 : len(token)-1], true
}

// next decodes the code point at s[i:], which is inside a string. A surrogate
// escape without its other half comes out as itself. n is at least 1.
func next(s []byte, i int) (r rune, n int) {
	c := s[i]
	if c < utf8.RuneSelf && c != '\\' {
		return rune(c), 1
	}
	if c != '\\' {
		return utf8.DecodeRune(s[i:])
	}
	if i+1 >= len(s) {
		return utf8.RuneError, 1
	}
	switch s[i+1] {
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		hi, ok := hex4(s, i+2)
		if !ok {
			return utf8.RuneError, 2
		}
		if hi < surrogateMin || hi >= surrogateLow {
			return hi, 6
		}
		if i+7 < len(s) && s[i+6] == '\\' && s[i+7] == 'u' {
			if lo, ok := hex4(s, i+8); ok && lo >= surrogateLow && lo <= surrogateMax {
				return (hi-surrogateMin)<<10 + (lo - surrogateLow) + surrogateSelf, 12
			}
		}
		return hi, 6
	}
	return rune(s[i+1]), 2 // a quote, a backslash or a slash
}

func hex4(s []byte, i int) (rune, bool) {
	if i+4 > len(s) {
		return 0, false
	}
	var r rune
	for _, c := range s[i : i+4] {
		d := hexDigit[c]
		if d < 0 {
			return 0, false
		}
		r = r<<4 | rune(d)
	}
	return r, true
}

// hexDigit is the value of each hexadecimal digit and -1 for all else.
var hexDigit = func() (t [256]int8) {
	for i := range t {
		t[i] = -1
	}
	for i := range 10 {
		t['0'+i] = int8(i)
	}
	for i := range 6 {
		t['a'+i] = int8(10 + i)
		t['A'+i] = int8(10 + i)
	}
	return t
}()

func isSurrogate(r rune) bool { return r >= surrogateMin && r <= surrogateMax }

// checkText says whether a string token has escapes, and whether its value has a
// form in UTF-8.
func checkText(token []byte) (escaped, ok bool) {
	s, ok := inner(token)
	if !ok {
		return false, false
	}
	i := bytes.IndexByte(s, '\\')
	if i < 0 {
		return false, true
	}
	for i < len(s) {
		r, n := next(s, i)
		if isSurrogate(r) {
			return true, false
		}
		i += n
	}
	return true, true
}

// AppendString appends the decoded value of a string token as UTF-8. Half a
// surrogate pair becomes U+FFFD, the replacement character. It appends nothing
// for a token that is no string.
func AppendString(dst, token []byte) []byte {
	s, ok := inner(token)
	if !ok {
		return dst
	}
	for {
		i := bytes.IndexByte(s, '\\')
		if i < 0 {
			return append(dst, s...)
		}
		dst = append(dst, s[:i]...)
		r, n := next(s, i)
		dst = utf8.AppendRune(dst, r)
		s = s[i+n:]
	}
}

// EqualString says whether a string token's decoded value is text, octet for
// octet. Half a surrogate pair equals nothing.
func EqualString(token, text []byte) bool {
	s, ok := inner(token)
	if !ok {
		return false
	}
	for {
		i := bytes.IndexByte(s, '\\')
		if i < 0 {
			return string(s) == string(text)
		}
		if len(text) < i || string(s[:i]) != string(text[:i]) {
			return false
		}
		r, n := next(s, i)
		if isSurrogate(r) {
			return false
		}
		var u [utf8.UTFMax]byte
		w := utf8.EncodeRune(u[:], r)
		text = text[i:]
		if len(text) < w || string(u[:w]) != string(text[:w]) {
			return false
		}
		s, text = s[i+n:], text[w:]
	}
}

// equalStrings compares two string tokens by their decoded values.
func equalStrings(a, b []byte) bool {
	s, ok := inner(a)
	t, ok2 := inner(b)
	if !ok || !ok2 {
		return false
	}
	i, j := 0, 0
	for i < len(s) && j < len(t) {
		r, n := next(s, i)
		q, k := next(t, j)
		if r != q {
			return false
		}
		i += n
		j += k
	}
	return i == len(s) && j == len(t)
}

// decodeShort decodes key into dst; ok is false when it does not fit, and then
// it is none of the short ASCII names we look for.
func decodeShort(dst, key []byte) (n int, ok bool) {
	for i := 0; i < len(key); {
		r, w := next(key, i)
		if n == len(dst) || r >= utf8.RuneSelf {
			return 0, false
		}
		dst[n] = byte(r)
		n++
		i += w
	}
	return n, true
}
