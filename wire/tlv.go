package wire

import (
	"encoding/binary"
	"errors"
)

// TLVType is the type of a TLV.
type TLVType uint16

// The TLV types of the documents. The two types that the Bridge channel gives
// meaning to (BRIDGE 4, 7) and the stream control's (CC-STREAM 5) are among
// them; DocumentBinding and the others that wait for a number are configured
// (D7).
const (
	TagProfileOffer      TLVType = 0x0001
	TagProfileSelect     TLVType = 0x0002
	TagKEMOffer          TLVType = 0x0003
	TagKEMSelect         TLVType = 0x0004
	TagSigOffer          TLVType = 0x0005
	TagSigSelect         TLVType = 0x0006
	TagKEMShare          TLVType = 0x0007
	TagKEMCiphertext     TLVType = 0x0008
	TagIdentityKey       TLVType = 0x0009
	TagCertVerify        TLVType = 0x000A
	TagFinished          TLVType = 0x000B
	TagAEADOffer         TLVType = 0x000C
	TagAEADSelect        TLVType = 0x000D
	TagBridgeEnvelope    TLVType = 0x0010
	TagStreamControl     TLVType = 0x0011
	TagAnomalyCharge     TLVType = 0x0012
	TagSafetyLabel       TLVType = 0x0013
	TagReserved14        TLVType = 0x0014 // kept for a companion document, handshake only
	TagPathChallenge     TLVType = 0x0015
	TagPathResponse      TLVType = 0x0016
	TagKeyUpdateMarker   TLVType = 0x0017
	TagProtectionMode    TLVType = 0x0018
	TagRatchetGeneration TLVType = 0x0019
)

const (
	// TLVHeaderLen is what a TLV has in front of its value: type and length.
	TLVHeaderLen = 4
	// MaxTLVLen is the longest value a TLV can have.
	MaxTLVLen = 0xFFFF

	criticalBit TLVType = 0x8000
)

var tagNames = [...]string{
	TagProfileOffer: "ProfileOffer", TagProfileSelect: "ProfileSelect",
	TagKEMOffer: "KEMOffer", TagKEMSelect: "KEMSelect",
	TagSigOffer: "SigOffer", TagSigSelect: "SigSelect",
	TagKEMShare: "KEMShare", TagKEMCiphertext: "KEMCiphertext",
	TagIdentityKey: "IdentityKey", TagCertVerify: "CertVerify", TagFinished: "Finished",
	TagAEADOffer: "AEADOffer", TagAEADSelect: "AEADSelect",
	TagBridgeEnvelope: "BridgeEnvelope", TagStreamControl: "StreamControl",
	TagAnomalyCharge: "AnomalyCharge", TagSafetyLabel: "SafetyLabel",
	TagPathChallenge: "PathChallenge", TagPathResponse: "PathResponse",
	TagKeyUpdateMarker: "KeyUpdateMarker", TagProtectionMode: "ProtectionMode",
	TagRatchetGeneration: "RatchetGeneration",
}

// String returns the type's name, or its number in hexadecimal.
func (t TLVType) String() string {
	if int(t) < len(tagNames) && tagNames[t] != "" {
		return tagNames[t]
	}
	return "tlv(" + hex16(uint16(t)) + ")"
}

// Critical reports whether a receiver that does not know t must reject the
// frame instead of skipping the TLV.
func (t TLVType) Critical() bool { return t&criticalBit != 0 }

// Errors of the TLV readers.
var (
	ErrTLVTruncated = errors.New("wire: truncated TLV")
	ErrTLVCritical  = errors.New("wire: unknown critical TLV")
)

// TLV is a type and a view of its value, which is at most MaxTLVLen octets.
type TLV struct {
	Type  TLVType
	Value []byte
}

// Len returns the octets the TLV takes on the wire.
func (t TLV) Len() int { return TLVHeaderLen + len(t.Value) }

// ConsumeTLV reads the TLV that b starts with and returns how many octets it
// takes. Value is a view of b whose capacity ends with it. The error is
// ErrTLVTruncated, also for an empty b.
func ConsumeTLV(b []byte) (t TLV, n int, err error) {
	if len(b) < TLVHeaderLen {
		return TLV{}, 0, ErrTLVTruncated
	}
	n = TLVHeaderLen + int(binary.BigEndian.Uint16(b[2:]))
	if len(b) < n {
		return TLV{}, 0, ErrTLVTruncated
	}
	return TLV{Type: TLVType(binary.BigEndian.Uint16(b)), Value: b[TLVHeaderLen:n:n]}, n, nil
}

// AppendTLV appends a TLV to dst. A value over MaxTLVLen octets is the caller's
// mistake and panics.
func AppendTLV(dst []byte, t TLVType, value []byte) []byte {
	return append(AppendTLVHeader(dst, t, len(value)), value...)
}

// AppendTLVHeader appends what goes in front of a value of n octets, which the
// caller appends next. An n outside 0..MaxTLVLen is the caller's mistake and
// panics.
func AppendTLVHeader(dst []byte, t TLVType, n int) []byte {
	if uint(n) > MaxTLVLen {
		panic("wire: TLV value too long")
	}
	return append(dst, byte(t>>8), byte(t), byte(n>>8), byte(n))
}

// TLVSet is a set of TLV types below 64, which all assigned ones are.
type TLVSet uint64

// TLVSetOf returns the set of the given types, each from 1 to 63.
func TLVSetOf(types ...TLVType) TLVSet {
	var s TLVSet
	for _, t := range types {
		if t == 0 || t >= 64 {
			panic("wire: TLV type outside the set's range")
		}
		s |= 1 << t
	}
	return s
}

// Has reports whether t is in the set.
func (s TLVSet) Has(t TLVType) bool { return t < 64 && s>>t&1 != 0 }

// ConsumeKnownTLV reads the first TLV of b whose type is in known. Unknown TLVs
// before it are skipped, or rejected where the type says so (ErrTLVCritical).
// n counts all octets up to the end of the TLV. When b holds no more known TLV,
// n is len(b) and t.Type is 0, which no TLV in a set has. Duplicates are the
// caller's business.
func ConsumeKnownTLV(b []byte, known TLVSet) (t TLV, n int, err error) {
	for n < len(b) {
		t, used, err := ConsumeTLV(b[n:])
		if err != nil {
			return TLV{}, 0, err
		}
		n += used
		if known.Has(t.Type) {
			return t, n, nil
		}
		if t.Type.Critical() {
			return TLV{}, 0, ErrTLVCritical
		}
	}
	return TLV{}, n, nil
}
