package bridge

import "github.com/trestle-npamp/trestle/wire"

// Tags are the numbers for what the documents have assigned none to yet. Both
// peers must configure the same ones; a zero field turns its feature off (D7).
// A nil *Tags turns all off. Parse and Append expect Tags that Validate accepts.
type Tags struct {
	OpaqueContentType wire.TLVType
	DocumentBinding   wire.TLVType
	EdgeMetadata      wire.TLVType
	// OpaqueContent is the content type that points at an OpaqueContentType TLV.
	// The two are configured together.
	OpaqueContent ContentType
}

// The range that configured TLV types come from. None of the assigned ones in it
// may be taken.
const (
	firstTag wire.TLVType = 0x0012
	lastTag  wire.TLVType = 0x00FF
)

var assignedTags = wire.TLVSetOf(wire.TagAnomalyCharge, wire.TagSafetyLabel, wire.TagReserved14,
	wire.TagPathChallenge, wire.TagPathResponse, wire.TagKeyUpdateMarker, wire.TagProtectionMode,
	wire.TagRatchetGeneration)

// Validate returns ErrTags unless every number is zero or free to use and none
// is used twice: TLV types within 0x0012 to 0x00FF that the documents assign to
// nothing, and a content type that they do not assign, with an OpaqueContentType
// and only with one.
func (t *Tags) Validate() error {
	if t == nil {
		return nil
	}
	types := [...]wire.TLVType{t.OpaqueContentType, t.DocumentBinding, t.EdgeMetadata}
	for i, a := range types {
		if a == 0 {
			continue
		}
		if a < firstTag || a > lastTag || assignedTags.Has(a) {
			return ErrTags
		}
		for _, b := range types[:i] {
			if a == b {
				return ErrTags
			}
		}
	}
	if (t.OpaqueContent == 0) != (t.OpaqueContentType == 0) || t.OpaqueContent.assigned() {
		return ErrTags
	}
	return nil
}

// tlvs is a set of the TLVs that can stand behind an envelope.
type tlvs uint8

const (
	tlvStream tlvs = 1 << iota
	tlvMediaType
	tlvLabel
	tlvBinding
	tlvMetadata
)

// known returns the TLV that type t stands for behind an envelope, or 0.
func (t *Tags) known(typ wire.TLVType) tlvs {
	switch typ {
	case 0:
		return 0 // also what a feature that is off has
	case wire.TagStreamControl:
		return tlvStream
	case wire.TagSafetyLabel:
		return tlvLabel
	}
	if t != nil {
		switch typ {
		case t.OpaqueContentType:
			return tlvMediaType
		case t.DocumentBinding:
			return tlvBinding
		case t.EdgeMetadata:
			return tlvMetadata
		}
	}
	return 0
}

// opaqueContent returns the content type that points at an OpaqueContentType
// TLV, or 0.
func (t *Tags) opaqueContent() ContentType {
	if t == nil {
		return 0
	}
	return t.OpaqueContent
}

// skipped reports whether a receiver passes over a TLV of type typ, which it does
// not know, instead of taking it for the start of the foreign message: behind the
// envelopes of protocols whose messages cannot start with a zero octet (D9). A
// second envelope is not unknown.
func skipped(p ProtocolID, typ wire.TLVType) bool {
	return p.isJSON() && typ <= lastTag && typ != wire.TagBridgeEnvelope
}
