package bridge

import "github.com/trestle-npamp/trestle/wire"

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

// Declare says how messages of a media type are declared (CC-OPAQUE 4.2): by the
// enumerated content type, if the media type is one of those, compared without case;
// and else by the configured one, with the media type as it is written for the
// OpaqueContentType TLV. "application/json; charset=utf-8" is not enumerated: it has
// a parameter.
//
// Errors: ErrMediaType for what is no media type, ErrTagOff where it takes numbers
// that are not configured, ErrValueTooLong for one that no TLV holds.
func (t *Tags) Declare(mediaType []byte) (ContentType, []byte, error) {
	if c := enumerated(mediaType); c != 0 {
		return c, nil, nil
	}
	switch {
	case !validMediaType(mediaType):
		return 0, nil, ErrMediaType
	case t.opaqueContent() == 0:
		return 0, nil, ErrTagOff
	case len(mediaType) > wire.MaxTLVLen:
		return 0, nil, ErrValueTooLong
	}
	return t.OpaqueContent, mediaType, nil
}

// Declared is the media type that a message's Content and MediaType declare, "" if
// they declare none.
func Declared(c ContentType, mediaType []byte) string {
	if len(mediaType) > 0 {
		return string(mediaType)
	}
	return c.MediaType()
}

// enumerated is the content type that stands for a media type, 0 for none.
func enumerated(mediaType []byte) ContentType {
	for c := ContentJSON; c <= ContentProto; c++ {
		if equalFold(mediaType, c.MediaType()) {
			return c
		}
	}
	return 0
}

// equalFold compares US-ASCII without case; want is in lower case.
func equalFold(b []byte, want string) bool {
	if len(b) != len(want) {
		return false
	}
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != want[i] {
			return false
		}
	}
	return true
}
