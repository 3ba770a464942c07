package disco

import "github.com/trestle-npamp/trestle/wire/cbor"

// Fault is a fine-grained reason for which a payload is malformed. Each is
// ErrMalformedPayload for errors.Is; returning one allocates nothing.
type Fault uint8

// The faults that are not already CBOR's.
const (
	_                 Fault = iota
	FaultFrameType          // the frame type is none of Discovery's
	FaultTooLong            // more than MaxPayloadLen octets
	FaultTooMany            // more than MaxRecords records or record ids
	FaultNegativeKey        // an unknown negative key
	FaultNoFrameKind        // no frame kind
	FaultNoCorr             // no correlation id where there must be one
	FaultCorr               // a correlation id on ANNOUNCE
	FaultCorrLen            // a correlation id that is not 1 to 64 octets
	FaultNoRecords          // no record list in RESULT or ANNOUNCE
	FaultNoComplete         // no complete flag in RESULT
	FaultNoCursor           // an incomplete RESULT without a cursor
	FaultEmptyUpdate        // an UPDATE that neither adds nor withdraws
	FaultNoCode             // an ERROR without a code
	FaultNoRecordID         // a record without its id
	FaultRecordIDLen        // a record id that is not 1 to 32 octets
	FaultNoRecordKind       // a record without its kind
	FaultNoRevision         // a record without its revision
	FaultNoBody             // a record without its body
	FaultNoProtocolID       // a protocol or tool body without a protocol id
	FaultProtocolID         // a protocol id over 255
	FaultNoClass            // a protocol or class body without a carriage class
	FaultNoName             // a tool body without a name
	FaultEffect             // an effect over 3
	FaultNoAgentID          // an agent body without an id
	FaultAgentIDLen         // an agent id that is not 1 to 64 octets
	FaultNoProtocols        // an agent body without protocols
	FaultNotUTF8            // text to be written is not UTF-8
	faultCount
)

var faultTexts = [faultCount]string{
	0:                 "disco: no fault",
	FaultFrameType:    "disco: no frame type of Discovery",
	FaultTooLong:      "disco: payload over 1 MiB",
	FaultTooMany:      "disco: more than 4096 records or record ids",
	FaultNegativeKey:  "disco: unknown negative key",
	FaultNoFrameKind:  "disco: no frame kind",
	FaultNoCorr:       "disco: no correlation id",
	FaultCorr:         "disco: correlation id on ANNOUNCE",
	FaultCorrLen:      "disco: correlation id is not 1 to 64 octets",
	FaultNoRecords:    "disco: no record list",
	FaultNoComplete:   "disco: RESULT without a complete flag",
	FaultNoCursor:     "disco: incomplete RESULT without a cursor",
	FaultEmptyUpdate:  "disco: UPDATE without a change",
	FaultNoCode:       "disco: ERROR without a code",
	FaultNoRecordID:   "disco: record without an id",
	FaultRecordIDLen:  "disco: record id is not 1 to 32 octets",
	FaultNoRecordKind: "disco: record without a kind",
	FaultNoRevision:   "disco: record without a revision",
	FaultNoBody:       "disco: record without a body",
	FaultNoProtocolID: "disco: record body without a protocol id",
	FaultProtocolID:   "disco: protocol id over 255",
	FaultNoClass:      "disco: record body without a carriage class",
	FaultNoName:       "disco: tool without a name",
	FaultEffect:       "disco: effect over 3",
	FaultNoAgentID:    "disco: agent without an id",
	FaultAgentIDLen:   "disco: agent id is not 1 to 64 octets",
	FaultNoProtocols:  "disco: agent without protocols",
	FaultNotUTF8:      "disco: text is not UTF-8",
}

// Error returns the fault in words.
func (f Fault) Error() string {
	if f < faultCount {
		return faultTexts[f]
	}
	return "disco: unknown fault"
}

// Is reports whether target is ErrMalformedPayload.
func (f Fault) Is(target error) bool { return target == ErrMalformedPayload }

// cborFault is a fault of the encoding: ErrMalformedPayload and, unwrapped, the
// cbor.Error.
type cborFault cbor.Error

func (f cborFault) Error() string { return "disco: " + cbor.Error(f).Error() }

func (f cborFault) Unwrap() error { return cbor.Error(f) }

func (f cborFault) Is(target error) bool { return target == ErrMalformedPayload }

// badCBOR gives a reader's error this package's name and code.
func badCBOR(err error) error {
	if e, ok := err.(cbor.Error); ok {
		return cborFault(e)
	}
	return err
}
