// Package bridge reads and writes the messages of the Bridge channel (BRIDGE 2
// to 8): the envelope and the other TLVs in front of a foreign message, which is
// carried octet for octet, and the transport errors that stand in for one.
//
// A message is the opened payload of a frame:
//
//	BridgeEnvelope | StreamControl? | OpaqueContentType? | SafetyLabel? | DocumentBinding? | EdgeMetadata? | foreign message
//
// We send the TLVs in this order and accept those after the envelope in any.
// Where they end and the foreign message begins is told by Parse.
//
// Nothing here allocates. Parse returns views of the payload.
package bridge

import (
	"errors"
	"strconv"

	"github.com/trestle-npamp/trestle/wire"
)

// Kind is the envelope's message_kind. It says the same as the frame's type,
// but is numbered differently: mind Error and Notify.
type Kind uint8

// The kinds of messages (BRIDGE 4).
const (
	KindRequest  Kind = 1
	KindResponse Kind = 2
	KindNotify   Kind = 3
	KindError    Kind = 4
	KindData     Kind = 5
	KindEnd      Kind = 6
)

// The Bridge channel's frame types (BRIDGE 2).
const (
	TypeRequest    wire.FrameType = 0x0100
	TypeResponse   wire.FrameType = 0x0101
	TypeError      wire.FrameType = 0x0102
	TypeNotify     wire.FrameType = 0x0103
	TypeStreamData wire.FrameType = 0x0104
	TypeStreamEnd  wire.FrameType = 0x0105
)

var kindOfType = [...]Kind{KindRequest, KindResponse, KindError, KindNotify, KindData, KindEnd}

var typeOfKind = [...]wire.FrameType{
	KindRequest: TypeRequest, KindResponse: TypeResponse, KindNotify: TypeNotify,
	KindError: TypeError, KindData: TypeStreamData, KindEnd: TypeStreamEnd,
}

var kindNames = [...]string{
	KindRequest: "request", KindResponse: "response", KindNotify: "notification",
	KindError: "error", KindData: "stream data", KindEnd: "stream end",
}

// KindOf returns the kind that frames of type t carry, and false for a type that
// is not the Bridge channel's.
func KindOf(t wire.FrameType) (Kind, bool) {
	if t < TypeRequest || t > TypeStreamEnd {
		return 0, false
	}
	return kindOfType[t-TypeRequest], true
}

// Valid reports whether k is one of the six kinds.
func (k Kind) Valid() bool { return k >= KindRequest && k <= KindEnd }

// Type returns the frame type that carries k, and wire.TypeNone for an invalid
// kind.
func (k Kind) Type() wire.FrameType {
	if !k.Valid() {
		return wire.TypeNone
	}
	return typeOfKind[k]
}

// IsReply reports whether k answers a request: response, error, stream data and
// stream end do.
func (k Kind) IsReply() bool {
	return k.Valid() && k != KindRequest && k != KindNotify
}

// String returns the kind's name.
func (k Kind) String() string {
	if !k.Valid() {
		return "kind(" + strconv.Itoa(int(k)) + ")"
	}
	return kindNames[k]
}

// ProtocolID names the foreign protocol. 0 is no protocol and always rejected.
type ProtocolID uint8

// The protocol ids (NPAMP-REG 6), and the ranges free to use by agreement.
const (
	ProtocolMCP       ProtocolID = 0x01
	ProtocolA2A       ProtocolID = 0x02
	ProtocolHTTP      ProtocolID = 0x03
	ProtocolWebSocket ProtocolID = 0x04

	FirstExperimental ProtocolID = 0x10
	LastExperimental  ProtocolID = 0x7F
	FirstPrivate      ProtocolID = 0x80
)

// String returns the protocol's name, or its number.
func (p ProtocolID) String() string {
	switch p {
	case ProtocolMCP:
		return "MCP"
	case ProtocolA2A:
		return "A2A"
	case ProtocolHTTP:
		return "HTTP"
	case ProtocolWebSocket:
		return "WebSocket"
	}
	return "protocol(" + strconv.Itoa(int(p)) + ")"
}

// isJSON reports whether foreign messages of p are JSON texts, which never start
// with a zero octet: behind p's envelopes an unknown TLV can be told from the
// foreign message (D9).
func (p ProtocolID) isJSON() bool { return p == ProtocolMCP || p == ProtocolA2A }

// ContentType is the envelope's content_type, the foreign message's encoding.
// Other values than these are rejected, but for the one that Tags configure.
type ContentType uint8

// The content types (BRIDGE 4).
const (
	ContentJSON  ContentType = 1 // application/json
	ContentCBOR  ContentType = 2 // application/cbor
	ContentProto ContentType = 3 // application/grpc+proto
)

func (c ContentType) assigned() bool { return c >= ContentJSON && c <= ContentProto }

// MediaType returns the media type that c stands for, and "" if it stands for
// none.
func (c ContentType) MediaType() string {
	switch c {
	case ContentJSON:
		return "application/json"
	case ContentCBOR:
		return "application/cbor"
	case ContentProto:
		return "application/grpc+proto"
	}
	return ""
}

// String returns the media type, or the number.
func (c ContentType) String() string {
	if s := c.MediaType(); s != "" {
		return s
	}
	return "content(" + strconv.Itoa(int(c)) + ")"
}

// FlagFinal is the only flag of the envelope that has a meaning: nothing follows
// in this stream. The others are sent as 0 and ignored.
const FlagFinal uint8 = 1

// Effect is what an operation may do to the world, from harmless to not. Effects
// compare: the greater of two is the safer assumption.
type Effect uint8

// The effects (BRIDGE 7).
const (
	ReadOnly           Effect = 0
	IdempotentWrite    Effect = 1
	NonIdempotentWrite Effect = 2
	Destructive        Effect = 3
)

var effectNames = [...]string{"read_only", "idempotent_write", "non_idempotent_write", "destructive"}

// ErrEffectName is ParseEffect's error.
var ErrEffectName = errors.New("wire/bridge: no such effect")

// String returns the effect's name as the documents write it.
func (e Effect) String() string {
	if int(e) < len(effectNames) {
		return effectNames[e]
	}
	return "effect(" + strconv.Itoa(int(e)) + ")"
}

// ParseEffect returns the effect with the given name: "read_only",
// "idempotent_write", "non_idempotent_write" or "destructive".
func ParseEffect(name string) (Effect, error) {
	for i, n := range effectNames {
		if n == name {
			return Effect(i), nil
		}
	}
	return 0, ErrEffectName
}

// Label is the value of a SafetyLabel TLV. Scope is advisory text of at most 255
// octets, carried unchanged and not checked.
type Label struct {
	Effect Effect
	Scope  []byte
}

// Control says what a StreamControl TLV is for.
type Control uint8

// The controls (CC-STREAM 5.2).
const (
	ControlData   Control = 0 // the frame bears an event, or ends the stream
	ControlResume Control = 1 // on a request: continue after EventID
	ControlCancel Control = 2 // on the consumer's stream end: stop
)

// Flags of a StreamControl TLV (CC-STREAM 5.2). The others are sent as 0 and
// ignored.
const (
	StreamResumable uint8 = 1 // the producer can continue this stream
	StreamCancelAck uint8 = 2 // this stream end answers a cancel
)

// EventID numbers the events of one stream and direction, from 1; 0 is before
// all of them.
type EventID uint64

// StreamControl is the value of a StreamControl TLV, without its version.
type StreamControl struct {
	Control Control
	Flags   uint8
	EventID EventID
}
