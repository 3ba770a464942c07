// Package disco reads and writes the payloads of the Discovery channel
// (NPAMP-DISC): deterministic CBOR maps in which a peer says which protocols,
// carriage classes, tools and agents it offers.
//
// A parsed [Message] is checked as a whole and is then a set of views of its
// payload; records and lists stay encoded and are walked by iterators, so that
// a large result costs no memory beyond the frame that brought it. To write,
// lists and records are encoded first ([AppendRecords], [ListOf], ...) and put
// into a Message.
//
// On the Discovery channel the same frame types also carry Bridge messages:
// [IsMessage] tells them apart (D25).
package disco

import (
	"errors"
	"strconv"

	"github.com/trestle-npamp/trestle/wire"
)

// The frame types of the Discovery channel (DISC 3).
const (
	TypeQuery       wire.FrameType = 0x0100 // answered by RESULT or ERROR
	TypeResult      wire.FrameType = 0x0101
	TypeError       wire.FrameType = 0x0102
	TypeAnnounce    wire.FrameType = 0x0103 // never answered, has no correlation id
	TypeSubscribe   wire.FrameType = 0x0104 // answered by RESULT or ERROR, then by UPDATEs
	TypeUpdate      wire.FrameType = 0x0105
	TypeUnsubscribe wire.FrameType = 0x0106 // never answered
)

// Sizes, in octets.
const (
	MaxCorrLen     = 64 // correlation id, 1 at least
	MaxRecordIDLen = 32 // record id, 1 at least
	MaxAgentIDLen  = 64 // agent id, 1 at least
)

// Bounds of what a peer can have done with one message. A larger set is sent in
// several RESULTs, ANNOUNCEs or UPDATEs.
const (
	MaxPayloadLen = 1 << 20 // octets
	MaxRecords    = 4096    // records, and record ids withdrawn, in a message
	MaxFilterLen  = 256     // entries of a filter's list; there are no more protocol ids
)

// IsMessage reports whether the plaintext of a frame on the Discovery channel
// with a type from TypeQuery to TypeUnsubscribe is a message of this package: a
// CBOR map. Bridge frames there start with a TLV (D25).
func IsMessage(plaintext []byte) bool {
	return len(plaintext) > 0 && plaintext[0] >= 0xA0 && plaintext[0] <= 0xBF
}

// IsRequest reports whether a frame type asks for an answer: QUERY and
// SUBSCRIBE do.
func IsRequest(t wire.FrameType) bool { return t == TypeQuery || t == TypeSubscribe }

// Kind says what a record describes.
type Kind uint64

// The kinds of records (DISC 5).
const (
	KindProtocol Kind = 1
	KindClass    Kind = 2
	KindTool     Kind = 3
	KindAgent    Kind = 4
)

var kindNames = [...]string{
	KindProtocol: "protocol", KindClass: "carriage class", KindTool: "tool", KindAgent: "agent",
}

// Known reports whether the documents define k.
func (k Kind) Known() bool { return k >= KindProtocol && k <= KindAgent }

// String returns the kind's name, or its number in decimal.
func (k Kind) String() string {
	if k.Known() {
		return kindNames[k]
	}
	return "kind(" + strconv.FormatUint(uint64(k), 10) + ")"
}

// Class is a carriage class by number (D7).
type Class uint64

// The carriage classes.
const (
	ClassJSONRPC Class = 1
	ClassHTTP    Class = 2
	ClassMSG     Class = 3
	ClassSTREAM  Class = 4
	ClassDOC     Class = 5
	ClassOPAQUE  Class = 6
)

var classNames = [...]string{
	ClassJSONRPC: "JSONRPC", ClassHTTP: "HTTP", ClassMSG: "MSG",
	ClassSTREAM: "STREAM", ClassDOC: "DOC", ClassOPAQUE: "OPAQUE",
}

// String returns the class's name, or its number in decimal.
func (c Class) String() string {
	if c < Class(len(classNames)) && classNames[c] != "" {
		return classNames[c]
	}
	return "class(" + strconv.FormatUint(uint64(c), 10) + ")"
}

// Code is what an ERROR carries. It is no Go error: [CodeOf] gives the code for
// one, [Code.Err] the error for a code, and [PeerError] is what a peer said.
type Code uint64

// The codes of an ERROR (DISC 9).
const (
	CodeMalformedPayload    Code = 1
	CodeKindMismatch        Code = 2
	CodeUnknownRecordKind   Code = 3
	CodeFilterUnsupported   Code = 4
	CodeStaleCursor         Code = 5
	CodeSubscriptionRefused Code = 6
	CodeNotAdvertised       Code = 7
)

var codeNames = [...]string{
	CodeMalformedPayload: "MalformedPayload", CodeKindMismatch: "KindMismatch",
	CodeUnknownRecordKind: "UnknownRecordKind", CodeFilterUnsupported: "FilterUnsupported",
	CodeStaleCursor: "StaleCursor", CodeSubscriptionRefused: "SubscriptionRefused",
	CodeNotAdvertised: "NotAdvertised",
}

// Known reports whether the documents define c.
func (c Code) Known() bool { return c >= CodeMalformedPayload && c <= CodeNotAdvertised }

// String returns the code's name, or its number in decimal.
func (c Code) String() string {
	if c.Known() {
		return codeNames[c]
	}
	return "code(" + strconv.FormatUint(uint64(c), 10) + ")"
}

// The errors that have a code of their own on the wire. Parsing and CheckKinds
// give the first four; the finer faults are ErrMalformedPayload too, for
// errors.Is. The others are for whoever answers requests.
var (
	ErrMalformedPayload    = errors.New("disco: malformed payload")
	ErrKindMismatch        = errors.New("disco: frame kind contradicts the frame type")
	ErrUnknownRecordKind   = errors.New("disco: unknown record kind")
	ErrFilterUnsupported   = errors.New("disco: filter unsupported")
	ErrStaleCursor         = errors.New("disco: stale cursor")
	ErrSubscriptionRefused = errors.New("disco: subscription refused")
	ErrNotAdvertised       = errors.New("disco: discovery not advertised")
)

var codeErrors = [...]error{
	CodeMalformedPayload: ErrMalformedPayload, CodeKindMismatch: ErrKindMismatch,
	CodeUnknownRecordKind: ErrUnknownRecordKind, CodeFilterUnsupported: ErrFilterUnsupported,
	CodeStaleCursor: ErrStaleCursor, CodeSubscriptionRefused: ErrSubscriptionRefused,
	CodeNotAdvertised: ErrNotAdvertised,
}

// Err returns the error that a known code stands for, nil for another one.
func (c Code) Err() error {
	if c.Known() {
		return codeErrors[c]
	}
	return nil
}

// CodeOf returns the code to answer err with; ok is false when no code fits.
func CodeOf(err error) (c Code, ok bool) {
	for c := CodeMalformedPayload; c.Known(); c++ {
		if errors.Is(err, codeErrors[c]) {
			return c, true
		}
	}
	return 0, false
}

// PeerError is what a peer's ERROR said. The reason is advisory and comes from
// the peer: show it as data, decide nothing by it.
type PeerError struct {
	Code   Code
	Reason string
}

// Error returns the code's name and the reason.
func (e *PeerError) Error() string {
	if e.Reason == "" {
		return "disco: peer: " + e.Code.String()
	}
	return "disco: peer: " + e.Code.String() + ": " + strconv.Quote(e.Reason)
}

// Is reports whether target is the error that the code stands for.
func (e *PeerError) Is(target error) bool { return target != nil && target == e.Code.Err() }
