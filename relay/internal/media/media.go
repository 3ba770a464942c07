// Package media compares media types as RFC 9110 section 8.3.1 says: without
// case, and apart from their parameters. HTTP servers and clients in the field
// spell one type in many ways.
package media

import (
	"errors"
	"mime"
	"strings"
)

// The media types that the HTTP edges speak.
const (
	JSON        = "application/json"
	Problem     = "application/problem+json" // RFC 9457
	EventStream = "text/event-stream"
)

// Type returns the media type that a Content-Type field names, in lower case,
// and "" if it names none.
func Type(field string) string {
	t, _, err := mime.ParseMediaType(field)
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return ""
	}
	return t
}

// IsJSON says whether a Content-Type field names application/json in UTF-8, the
// only character encoding JSON text is exchanged in (RFC 8259 section 8.1). A
// missing field does not.
func IsJSON(field string) bool {
	t, params, err := mime.ParseMediaType(field)
	return err == nil && t == JSON && utf8Charset(params)
}

// IsEventStream says whether a Content-Type field names text/event-stream, which
// is in UTF-8 too, whether it says so or not.
func IsEventStream(field string) bool {
	t, params, err := mime.ParseMediaType(field)
	return err == nil && t == EventStream && utf8Charset(params)
}

// IsPlain says whether a Content-Type field names text/plain in UTF-8.
func IsPlain(field string) bool {
	t, params, err := mime.ParseMediaType(field)
	return err == nil && t == "text/plain" && utf8Charset(params)
}

// IsDocument is IsJSON that also accepts a type with the suffix "+json", which
// capability documents are served under.
func IsDocument(field string) bool {
	t, params, err := mime.ParseMediaType(field)
	return err == nil && (t == JSON || strings.HasSuffix(t, "+json")) && utf8Charset(params)
}

func utf8Charset(params map[string]string) bool {
	charset, ok := params["charset"]
	return !ok || strings.EqualFold(charset, "utf-8") || strings.EqualFold(charset, "utf8") || strings.EqualFold(charset, "us-ascii")
}
