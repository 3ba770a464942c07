package bridge

// validMediaType reports whether b is a media type as RFC 9110, section 8.3.1
// writes it: type "/" subtype, and parameters behind semicolons. That leaves no
// room for a NUL (CC-OPAQUE 4.3).
func validMediaType(b []byte) bool {
	n := tokenLen(b)
	if n == 0 || n == len(b) || b[n] != '/' {
		return false
	}
	b = b[n+1:]
	if n = tokenLen(b); n == 0 {
		return false
	}
	for b = b[n:]; len(b) > 0; {
		b = trimSpace(b)
		if len(b) == 0 || b[0] != ';' {
			return false
		}
		if b = trimSpace(b[1:]); len(b) == 0 || b[0] == ';' {
			continue // RFC 9110, section 5.6.6 lets a parameter be empty
		}
		n = tokenLen(b)
		if n == 0 || n == len(b) || b[n] != '=' {
			return false
		}
		b = b[n+1:]
		if n = valueLen(b); n == 0 {
			return false
		}
		b = b[n:]
	}
	return true
}

func trimSpace(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	return b
}

// tokenLen returns the length of the token that b starts with.
func tokenLen(b []byte) int {
	for i, c := range b {
		if !isToken(c) {
			return i
		}
	}
	return len(b)
}

func isToken(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	switch c {
	case '!', '#', '$', '%', '&', '\'', '*', '+', '-', '.', '^', '_', '`', '|', '~':
		return true
	}
	return false
}

// valueLen returns the length of the token or quoted string that b starts with,
// or 0.
func valueLen(b []byte) int {
	if len(b) == 0 || b[0] != '"' {
		return tokenLen(b)
	}
	for i := 1; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c == '\\':
			i++
			if i < len(b) && !isText(b[i]) {
				return 0
			}
		case !isText(c):
			return 0
		}
	}
	return 0
}

// isText reports whether c may stand in a quoted string. The media type of an
// OpaqueContentType is US-ASCII (CC-OPAQUE 4.3).
func isText(c byte) bool { return c == '\t' || c >= ' ' && c <= '~' }
