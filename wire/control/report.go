package control

import (
	"encoding/binary"
	"errors"
	"strconv"
	"unicode/utf8"
)

// ErrorCode says why an association ends (D16). It is what travels in an ERROR
// frame, two octets; it is no Go error.
type ErrorCode uint16

// The codes of an ERROR frame.
const (
	CodeProtocol ErrorCode = 1 // the peer broke the protocol
	CodeCrypto   ErrorCode = 2 // a wrong tag or sequence number
	CodeLimit    ErrorCode = 3 // a limit was overrun
	CodeTimeout  ErrorCode = 4
	CodePolicy   ErrorCode = 5
	CodeShutdown ErrorCode = 6 // the sender is going away
	CodeInternal ErrorCode = 7
)

var codeNames = [...]string{
	CodeProtocol: "protocol", CodeCrypto: "crypto", CodeLimit: "limit", CodeTimeout: "timeout",
	CodePolicy: "policy", CodeShutdown: "shutdown", CodeInternal: "internal",
}

// String returns the code's name, or its number in decimal.
func (c ErrorCode) String() string {
	if int(c) < len(codeNames) && codeNames[c] != "" {
		return codeNames[c]
	}
	return "code(" + strconv.Itoa(int(c)) + ")"
}

// MaxErrorText is the longest text that AppendErrorReport writes.
const MaxErrorText = 256

const errorCodeLen = 2

// The reasons for which an ERROR is refused. It ends the association all the
// same: only what it says is then unknown, or its text unfit to be shown.
var (
	ErrReportLen  = errors.New("control: ERROR without a code")
	ErrReportText = errors.New("control: ERROR text is not UTF-8")
)

// ErrorReport is the payload of an ERROR frame: code(2) || UTF-8 text (D16).
type ErrorReport struct {
	Code ErrorCode
	Text []byte // in a parsed one a view of the payload
}

// AppendErrorReport appends the payload of an ERROR frame. Text beyond
// MaxErrorText octets is cut off between two characters, and so is what follows
// octets that are not UTF-8.
func AppendErrorReport[T ~string | ~[]byte](dst []byte, code ErrorCode, text T) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(code))
	start := len(dst)
	dst = append(dst, text[:min(len(text), MaxErrorText)]...)
	end := start
	for end < len(dst) {
		r, n := utf8.DecodeRune(dst[end:])
		if r == utf8.RuneError && n == 1 {
			break
		}
		end += n
	}
	return dst[:end]
}

// ParseErrorReport reads the payload of an ERROR frame. With ErrReportText the
// code is right and the text is left out.
func ParseErrorReport(payload []byte) (ErrorReport, error) {
	if len(payload) < errorCodeLen {
		return ErrorReport{}, ErrReportLen
	}
	r := ErrorReport{Code: ErrorCode(binary.BigEndian.Uint16(payload))}
	text := payload[errorCodeLen:]
	if !utf8.Valid(text) {
		return r, ErrReportText
	}
	r.Text = text[:len(text):len(text)]
	return r, nil
}
