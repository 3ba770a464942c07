package control

import (
	"encoding/binary"
	"errors"
)

// FlowUpdateLen is the payload size of a FLOW_UPDATE for the association, and
// the least size of one for a stream.
const FlowUpdateLen = 8

// MaxCorrLen is the longest correlation id.
const MaxCorrLen = 255

// The reasons for which a FLOW_UPDATE is refused.
var (
	ErrFlowLen  = errors.New("control: FLOW_UPDATE of the wrong size")
	ErrFlowCorr = errors.New("control: FLOW_UPDATE without a correlation id")
)

// AppendFlowUpdate appends the payload of a FLOW_UPDATE on Control: the
// absolute count of plaintext octets, on all channels but Control, that the
// sender is ready to have received (D6).
func AppendFlowUpdate(dst []byte, octets uint64) []byte {
	return binary.BigEndian.AppendUint64(dst, octets)
}

// ParseFlowUpdate reads the payload of a FLOW_UPDATE on Control. The error is
// ErrFlowLen.
func ParseFlowUpdate(payload []byte) (octets uint64, err error) {
	if len(payload) != FlowUpdateLen {
		return 0, ErrFlowLen
	}
	return binary.BigEndian.Uint64(payload), nil
}

// AppendStreamFlowUpdate appends the payload of a FLOW_UPDATE on Bridge: the
// absolute count of foreign octets that the sender is ready to have received in
// the stream with that correlation id of 1 to 255 octets (D6). The error is
// ErrFlowCorr, for another length, and dst comes back as it was.
func AppendStreamFlowUpdate(dst []byte, octets uint64, corr []byte) ([]byte, error) {
	if len(corr) == 0 || len(corr) > MaxCorrLen {
		return dst, ErrFlowCorr
	}
	dst = append(AppendFlowUpdate(dst, octets), byte(len(corr)))
	return append(dst, corr...), nil
}

// ParseStreamFlowUpdate reads the payload of a FLOW_UPDATE on Bridge, which the
// correlation id fills exactly. corr is a view of payload. The error is
// ErrFlowCorr or ErrFlowLen.
func ParseStreamFlowUpdate(payload []byte) (octets uint64, corr []byte, err error) {
	if len(payload) <= FlowUpdateLen {
		return 0, nil, ErrFlowLen
	}
	n := int(payload[FlowUpdateLen])
	corr = payload[FlowUpdateLen+1:]
	switch {
	case n == 0:
		return 0, nil, ErrFlowCorr
	case n != len(corr):
		return 0, nil, ErrFlowLen
	}
	return binary.BigEndian.Uint64(payload), corr[:n:n], nil
}
