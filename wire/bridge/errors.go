package bridge

import "errors"

// ErrMalformed is the class of all errors that say that a message breaks the
// rules of the Bridge channel, whether it came from a peer or was to be sent.
// Each breach has an error of its own below; errors.Is(err, ErrMalformed) holds
// for all of them, and CodeOf tells which transport error answers it.
var ErrMalformed = errors.New("wire/bridge: malformed message")

// malformed is one breach. Being static it costs nothing to return.
type malformed struct {
	text string
	code Code
}

func (e *malformed) Error() string { return "wire/bridge: " + e.text }
func (e *malformed) Unwrap() error { return ErrMalformed }

func newMalformed(text string) error { return &malformed{text, CodeEnvelopeMalformed} }
func newBinding(text string) error   { return &malformed{text, CodeBindingMalformed} }

// Breaches of the envelope (BRIDGE 4, 5).
var (
	ErrNoEnvelope        = newMalformed("no envelope at the start")
	ErrEnvelopeTruncated = newMalformed("envelope truncated")
	ErrEnvelopeTrailing  = newMalformed("octets left over in the envelope")
	ErrKindMismatch      = newMalformed("message kind is not the frame type's")
	ErrProtocolZero      = newMalformed("protocol id 0")
	ErrCorrMissing       = newMalformed("no correlation id on a request or reply")
	ErrCorrOnNotify      = newMalformed("correlation id on a notification")
	ErrMethodUTF8        = newMalformed("method is not UTF-8")
	ErrContentType       = newMalformed("unknown content type")
)

// Breaches of the TLVs behind the envelope.
var (
	ErrTLVTruncated       = newMalformed("known TLV truncated")
	ErrLabelTruncated     = newMalformed("safety label truncated")
	ErrLabelTrailing      = newMalformed("octets left over in the safety label")
	ErrEffect             = newMalformed("unknown effect in the safety label")
	ErrStreamLength       = newMalformed("stream control not of 11 octets")
	ErrStreamVersion      = newMalformed("unknown stream control version")
	ErrStreamControl      = newMalformed("unknown control in the stream control")
	ErrMediaType          = newMalformed("no valid media type in the opaque content type")
	ErrMediaTypeMissing   = newMalformed("content type points at an absent opaque content type")
	ErrMediaTypeAmbiguous = newMalformed("opaque content type beside an enumerated content type")
	ErrMetadataEmpty      = newMalformed("empty edge metadata")
)

// Breaches of a DocumentBinding (CC-DOC 6.2), whose code is BindingMalformed.
var (
	ErrBindingTruncated = newBinding("document binding truncated")
	ErrBindingTrailing  = newBinding("octets left over in the document binding")
	ErrBindingPart      = newBinding("unknown part kind in the document binding")
	ErrBindingDocID     = newBinding("empty document id in the document binding")
	ErrBindingMediaType = newBinding("no media type in a document's binding, or not UTF-8")
	ErrBindingDigestAlg = newBinding("unknown digest algorithm in the document binding")
	ErrBindingDigest    = newBinding("digest not of its algorithm's length in the document binding")
	ErrBindingProof     = newBinding("impossible proof index or algorithm in the document binding")
)

// Breaches that only a message to be sent can have, because its lengths have
// only so many octets (D18).
var (
	ErrCorrTooLong   = newMalformed("correlation id over 255 octets")
	ErrMethodTooLong = newMalformed("method over 255 octets")
	ErrScopeTooLong  = newMalformed("safety label's scope over 255 octets")
	ErrValueTooLong  = newMalformed("TLV value over 65535 octets")
	ErrKind          = newMalformed("no such message kind")
	ErrNotTransport  = newMalformed("not a transport error, though marked as one")
)

// Errors outside the class.
var (
	// ErrFrameType says that the frame's type is not the Bridge channel's. Such a
	// frame is dropped and never answered.
	ErrFrameType = errors.New("wire/bridge: not a Bridge frame type")
	// ErrAmbiguous says that the receiver of the message would not find its
	// foreign octets again: their start looks like one more TLV (D9), or a
	// foreign error like a transport error (D11). The message is not sent.
	ErrAmbiguous = errors.New("wire/bridge: foreign octets would be misread")
	// ErrTagOff says that the message needs a TLV that no number is configured
	// for (D7). The message is not sent.
	ErrTagOff = errors.New("wire/bridge: feature needs a configured TLV number")
	// ErrTags is Validate's error.
	ErrTags = errors.New("wire/bridge: impossible TLV numbers configured")
)

// CodeOf returns the transport error's code that err stands for: the breach's
// for an error of the class ErrMalformed, NotDelivered for what we refuse to
// send, the code itself for an *Error or a Code. It returns 0 for anything else,
// ErrFrameType among it.
func CodeOf(err error) Code {
	var breach *malformed
	if errors.As(err, &breach) {
		return breach.code
	}
	var code Code
	if errors.As(err, &code) {
		return code
	}
	switch {
	case errors.Is(err, ErrMalformed):
		return CodeEnvelopeMalformed
	case errors.Is(err, ErrAmbiguous), errors.Is(err, ErrTagOff):
		return CodeNotDelivered
	}
	return 0
}
