package bridge

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/trestle-npamp/trestle/wire"
)

// Code is the code of a transport error: why a message did not reach the foreign
// endpoint, or a document set its consumer. As an error it is what *Error
// unwraps to, so that errors.Is(err, CodeNotDelivered) works.
type Code uint8

// The codes (BRIDGE 6, CC-STREAM 6.4, CC-DOC 8). They are never collapsed into
// one another, nor turned into a foreign error or back.
const (
	CodeEnvelopeMalformed   Code = 1
	CodeProtocolUnsupported Code = 2
	CodeMethodUnsupported   Code = 3
	CodeNotDelivered        Code = 4
	CodeSafetyPolicy        Code = 5
	CodeNotResumable        Code = 6
	CodeBindingMalformed    Code = 16
	CodeDigestMismatch      Code = 17
	CodeDigestUnstable      Code = 18
	CodeProofUnbound        Code = 19
	CodeProofUnsupported    Code = 20
	CodeSetIncomplete       Code = 21
)

var codeNames = [...]string{
	CodeEnvelopeMalformed: "EnvelopeMalformed", CodeProtocolUnsupported: "ProtocolUnsupported",
	CodeMethodUnsupported: "MethodUnsupported", CodeNotDelivered: "NotDelivered",
	CodeSafetyPolicy: "SafetyPolicy", CodeNotResumable: "NotResumable",
	CodeBindingMalformed: "BindingMalformed", CodeDigestMismatch: "DigestMismatch",
	CodeDigestUnstable: "DigestUnstable", CodeProofUnbound: "ProofUnbound",
	CodeProofUnsupported: "ProofUnsupported", CodeSetIncomplete: "SetIncomplete",
}

// Known reports whether the documents define c. A transport error with any other
// code is read as a foreign error (D11).
func (c Code) Known() bool { return int(c) < len(codeNames) && codeNames[c] != "" }

// String returns the code's name, or its number.
func (c Code) String() string {
	if c.Known() {
		return codeNames[c]
	}
	return "code(" + strconv.Itoa(int(c)) + ")"
}

// Error returns the code's name.
func (c Code) Error() string { return c.String() }

// MaxErrorText is the longest text of a transport error, in octets.
const MaxErrorText = 255

// Error is a transport error. It unwraps to its Code.
type Error struct {
	Code Code
	Text string
}

// Error returns the code's name and the text.
func (e *Error) Error() string {
	if e.Text == "" {
		return e.Code.String()
	}
	return e.Code.String() + ": " + e.Text
}

// Unwrap returns the code.
func (e *Error) Unwrap() error { return e.Code }

// AppendTransportError appends a transport error as it stands in place of a
// foreign message: code, length, text. Text over MaxErrorText octets is cut
// between two characters, and what is not UTF-8 in it is replaced. The code must
// be Known.
func AppendTransportError(dst []byte, code Code, text string) []byte {
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, string(utf8.RuneError))
	}
	if len(text) > MaxErrorText {
		n := MaxErrorText
		for n > 0 && !utf8.RuneStart(text[n]) {
			n--
		}
		text = text[:n]
	}
	dst = append(dst, byte(code), byte(len(text)))
	return append(dst, text...)
}

// ParseTransportError reads the foreign part of a BRIDGE_ERROR. It is a transport
// error if it starts with a known code and is exactly as long as its length octet
// says; anything else is the foreign protocol's own error (D11), and ok is false.
// text is a view of foreign, meant as UTF-8 and not checked.
func ParseTransportError(foreign []byte) (code Code, text []byte, ok bool) {
	if len(foreign) < 2 || !Code(foreign[0]).Known() || len(foreign) != 2+int(foreign[1]) {
		return 0, nil, false
	}
	return Code(foreign[0]), foreign[2:], true
}

// NoCorr is the correlation id of an error reply to a request whose own could
// not be read.
const NoCorr = "\x00"

// MaxErrorReplyLen is the most that AppendErrorReply adds, in octets.
const MaxErrorReplyLen = wire.TLVHeaderLen + envelopeMin + maxField + 2 + MaxErrorText

// AppendErrorReply appends the whole payload of a BRIDGE_ERROR that carries a
// transport error, at most MaxErrorReplyLen octets. p and corr are those of the
// message it answers, as Parse left them even if it failed: for an empty corr
// NoCorr is used, and for the protocol id 0, which must not be sent, MCP's. The
// code must be Known; a corr over 255 octets is the caller's mistake and panics.
func AppendErrorReply(dst []byte, p ProtocolID, corr []byte, code Code, text string) []byte {
	if p == 0 {
		p = ProtocolMCP
	}
	n := len(corr)
	switch {
	case n == 0:
		n = len(NoCorr)
	case n > maxField:
		panic("wire/bridge: correlation id too long")
	}
	dst = wire.AppendTLVHeader(dst, wire.TagBridgeEnvelope, envelopeMin+n)
	dst = append(dst, byte(p), byte(KindError), byte(ContentJSON), 0, byte(n))
	if len(corr) == 0 {
		dst = append(dst, NoCorr...)
	} else {
		dst = append(dst, corr...)
	}
	dst = append(dst, 0) // no method
	return AppendTransportError(dst, code, text)
}
