package jsonrpc

import (
	"encoding/json"
	"strconv"
)

// AppendResult appends the response to the request with this id. id is the token
// as written (Message.ID); a nil one becomes null. result is one JSON value and
// goes in as it is.
func AppendResult(dst, id, result []byte) []byte {
	dst = appendHead(dst, id)
	dst = append(dst, `"result":`...)
	return append(append(dst, result...), '}')
}

// AppendError appends an error response to the request with this id, which is as
// for AppendResult. What is not UTF-8 in message becomes U+FFFD.
func AppendError(dst, id []byte, code int, message string) []byte {
	text, _ := json.Marshal(message) // a string always has a form
	dst = appendHead(dst, id)
	dst = append(dst, `"error":{"code":`...)
	dst = strconv.AppendInt(dst, int64(code), 10)
	dst = append(dst, `,"message":`...)
	return append(append(dst, text...), `}}`...)
}

func appendHead(dst, id []byte) []byte {
	if id == nil {
		id = []byte("null")
	}
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	return append(append(dst, id...), ',')
}
