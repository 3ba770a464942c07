package control

import (
	"encoding/binary"
	"errors"

	"github.com/trestle-npamp/trestle/wire"
)

// markerLen is the size of an epoch or a generation.
const markerLen = 8

// KeyUpdateLen and RatchetLen are the payload sizes of KEY_UPDATE and
// MASTER_RATCHET and of their acknowledgements.
const (
	KeyUpdateLen = wire.TLVHeaderLen + markerLen
	RatchetLen   = wire.TLVHeaderLen + markerLen
)

// The reasons for which the payloads of key updates and ratchet steps are
// refused, besides wire.ErrTLVTruncated and wire.ErrTLVCritical.
var (
	ErrNoMarker           = errors.New("control: key update without an epoch marker")
	ErrTwoMarkers         = errors.New("control: key update with two epoch markers")
	ErrMarkerLen          = errors.New("control: epoch marker is not eight octets")
	ErrRatchetLayout      = errors.New("control: ratchet step with other TLVs than its own in order")
	ErrRatchetTrailing    = errors.New("control: octets after a ratchet step's last TLV")
	ErrGenerationLen      = errors.New("control: ratchet generation is not eight octets")
	ErrRekemShareLen      = errors.New("control: re-KEM share of the wrong size")
	ErrRekemCiphertextLen = errors.New("control: re-KEM ciphertext of the wrong size")
)

var keyUpdateTLVs = wire.TLVSetOf(wire.TagKeyUpdateMarker)

// AppendKeyUpdate appends the payload of KEY_UPDATE or its acknowledgement: the
// epoch that follows.
func AppendKeyUpdate(dst []byte, next wire.Epoch) []byte {
	dst = wire.AppendTLVHeader(dst, wire.TagKeyUpdateMarker, markerLen)
	return binary.BigEndian.AppendUint64(dst, uint64(next))
}

// ParseKeyUpdate reads the payload of KEY_UPDATE or its acknowledgement and
// returns the epoch it announces. TLVs of unknown types are skipped where they
// allow it.
func ParseKeyUpdate(payload []byte) (next wire.Epoch, err error) {
	found := false
	for len(payload) > 0 {
		t, n, err := wire.ConsumeKnownTLV(payload, keyUpdateTLVs)
		if err != nil {
			return 0, err
		}
		payload = payload[n:]
		switch {
		case t.Type == 0:
			// Only skipped TLVs were left.
		case found:
			return 0, ErrTwoMarkers
		case len(t.Value) != markerLen:
			return 0, ErrMarkerLen
		default:
			found = true
			next = wire.Epoch(binary.BigEndian.Uint64(t.Value))
		}
	}
	if !found {
		return 0, ErrNoMarker
	}
	return next, nil
}

// AppendRatchet appends the payload of MASTER_RATCHET or its acknowledgement:
// the generation that follows.
func AppendRatchet(dst []byte, generation uint64) []byte {
	dst = wire.AppendTLVHeader(dst, wire.TagRatchetGeneration, markerLen)
	return binary.BigEndian.AppendUint64(dst, generation)
}

// ParseRatchet reads the payload of MASTER_RATCHET or its acknowledgement and
// returns the generation it announces. The payload holds that one TLV and
// nothing else (handshake binding section 9.3).
func ParseRatchet(payload []byte) (generation uint64, err error) {
	return consumeGeneration(payload)
}

// consumeGeneration reads the generation that ends each ratchet payload.
func consumeGeneration(b []byte) (uint64, error) {
	t, n, err := consumeExactly(b, wire.TagRatchetGeneration)
	switch {
	case err != nil:
		return 0, err
	case len(t.Value) != markerLen:
		return 0, ErrGenerationLen
	case n != len(b):
		return 0, ErrRatchetTrailing
	}
	return binary.BigEndian.Uint64(t.Value), nil
}

// consumeExactly reads a TLV that must have the type want. A payload that has
// ended lacks its TLV; one that breaks off inside it is truncated.
func consumeExactly(b []byte, want wire.TLVType) (wire.TLV, int, error) {
	if len(b) == 0 {
		return wire.TLV{}, 0, ErrRatchetLayout
	}
	t, n, err := wire.ConsumeTLV(b)
	switch {
	case err != nil:
		return wire.TLV{}, 0, err
	case t.Type == want:
		return t, n, nil
	case t.Type.Critical():
		return wire.TLV{}, 0, wire.ErrTLVCritical
	}
	return wire.TLV{}, 0, ErrRatchetLayout
}

// RekemLen returns the payload size of REKEM with a share, or of REKEM_ACK with
// a ciphertext, of n octets.
func RekemLen(n int) int { return wire.TLVHeaderLen + n + wire.TLVHeaderLen + markerLen }

// AppendRekem appends the payload of REKEM: a fresh KEM share, at most
// wire.MaxTLVLen octets, and the generation it is to lead to.
func AppendRekem(dst, share []byte, generation uint64) []byte {
	return AppendRatchet(wire.AppendTLV(dst, wire.TagKEMShare, share), generation)
}

// ParseRekem reads the payload of REKEM; shareLen is the size of a share under
// the association's KEM. share is a view of payload.
func ParseRekem(payload []byte, shareLen int) (share []byte, generation uint64, err error) {
	return parseRekem(payload, wire.TagKEMShare, shareLen, ErrRekemShareLen)
}

// AppendRekemAck appends the payload of REKEM_ACK: the ciphertext for the share
// received, at most wire.MaxTLVLen octets, and its generation.
func AppendRekemAck(dst, ciphertext []byte, generation uint64) []byte {
	return AppendRatchet(wire.AppendTLV(dst, wire.TagKEMCiphertext, ciphertext), generation)
}

// ParseRekemAck reads the payload of REKEM_ACK; ciphertextLen is the size of a
// ciphertext under the association's KEM. ciphertext is a view of payload.
func ParseRekemAck(payload []byte, ciphertextLen int) (ciphertext []byte, generation uint64, err error) {
	return parseRekem(payload, wire.TagKEMCiphertext, ciphertextLen, ErrRekemCiphertextLen)
}

func parseRekem(payload []byte, want wire.TLVType, size int, wrongSize error) ([]byte, uint64, error) {
	t, n, err := consumeExactly(payload, want)
	if err != nil {
		return nil, 0, err
	}
	if len(t.Value) != size {
		return nil, 0, wrongSize
	}
	generation, err := consumeGeneration(payload[n:])
	if err != nil {
		return nil, 0, err
	}
	return t.Value, generation, nil
}
