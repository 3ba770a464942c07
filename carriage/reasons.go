package carriage

import (
	"errors"
	"strings"
)

// Reasons for which a message is malformed although its envelope is not.
var (
	errContent     = errors.New("carriage: content type is not application/json")
	errNotRequest  = errors.New("carriage: not a JSON-RPC request")
	errNotNotify   = errors.New("carriage: not a JSON-RPC notification")
	errNotResult   = errors.New("carriage: not a JSON-RPC response with a result")
	errNotError    = errors.New("carriage: not a JSON-RPC response with an error")
	errWrongID     = errors.New("carriage: id is not the request's")
	errMethod      = errors.New("carriage: method is not the message's")
	errMethodLong  = errors.New("carriage: method longer than 255 octets")
	errProtocol    = errors.New("carriage: reply under another protocol id")
	errStream      = errors.New("carriage: stream frame on a unary exchange")
	errUnary       = errors.New("carriage: a response after the events of a stream")
	errMixed       = errors.New("carriage: StreamControl on some frames of a stream only")
	errControl     = errors.New("carriage: stream frame with another control than data")
	errAck         = errors.New("carriage: acknowledges a cancel that nobody sent")
	errDeclared    = errors.New("carriage: the frames of a stream declare different content types")
	errOrder       = errors.New("carriage: event id does not increase")
	errHandler     = errors.New("carriage: stream handler panicked")
	errRedial      = errors.New("carriage: what looks for another association panicked")
	errNoEvent     = errors.New("carriage: every other association was lost before it brought an event")
	errResume      = errors.New("carriage: a resume needs a correlation id of 1 to 255 octets")
	errNotDocument = errors.New("carriage: no document")
	errParts       = errors.New("carriage: a part of a document set on another exchange")
	errSetRequest  = errors.New("carriage: a request for a document set has a message or another method")
	errNotUpstream = errors.New("carriage: a reply to no request")
)

// What peers are told when a handler has seen the request: it may have acted on it,
// so that none of these says that the request may be repeated. The texts begin
// with what matters, since long ones are cut.
const (
	textUnknown   = "outcome unknown: "
	textFailed    = textUnknown + "handler failed"
	textSilent    = textUnknown + "handler gave no answer"
	textLeft      = textUnknown + "handler left its stream"
	textLost      = textUnknown + "the producer was lost"
	textLate      = textUnknown + "no reply in time"
	textNoRoom    = textUnknown + "no room for the reply: the peer reads too slowly"
	textDrained   = textUnknown + "shutting down"
	textUncarried = textUnknown + "the reply can't be carried: "
)

// reason is an error's text without the package names in it, for the peer.
func reason(err error) string {
	text := err.Error()
	for _, name := range [...]string{"carriage: ", "jsonrpc: ", "wire/bridge: ", "conn: ", "assoc: "} {
		text = strings.ReplaceAll(text, name, "")
	}
	return text
}
