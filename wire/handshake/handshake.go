// Package handshake reads and writes the payloads of the four handshake frames
// (handshake binding section 1). A payload is a run of TLVs, and which TLVs, in
// which order and of which size, is all this package knows: what they mean is
// for crypto/handshake.
//
//	CLIENT_HELLO  ProfileOffer | KEMOffer | SigOffer | AEADOffer | KEMShare
//	SERVER_HELLO  ProfileSelect | KEMSelect | SigSelect | AEADSelect | KEMCiphertext
//	SERVER_AUTH   IdentityKey | CertVerify | Finished          (after opening)
//	CLIENT_AUTH   the same
//
// In the two hellos a TLV of an unknown type is skipped, or rejects the message
// where its type says so; an AUTH is its three TLVs and nothing else. A parsed
// message is a set of views of the payload: nothing is copied, nothing is
// allocated, and the views die with the payload. Every error is terminal for
// the handshake.
package handshake

import (
	"encoding/binary"
	"errors"
	"iter"

	"github.com/trestle-npamp/trestle/wire"
)

// MaxPayloadLen is the longest payload, in octets, that is read or written
// here, an AEAD tag not counted. The largest message needed, an AUTH with
// ML-DSA-87, takes 7,281.
const MaxPayloadLen = 16 << 10

// Sizes, in octets, of what the two hybrid KEMs send. ML-KEM's part comes
// first, X25519's 32 octets last.
const (
	ShareLen768       = 1184 + 32 // X25519MLKEM768 (0x11ec)
	ShareLen1024      = 1568 + 32 // X25519MLKEM1024 (0x11ed)
	CiphertextLen768  = 1088 + 32
	CiphertextLen1024 = 1568 + 32
)

// Sizes, in octets, of the two signature schemes' raw public keys and
// signatures; the CertVerify TLV holds two octets more, the scheme.
const (
	Ed25519KeyLen       = 32 // Ed25519 (0x0807)
	Ed25519SignatureLen = 64
	MLDSA87KeyLen       = 2592 // ML-DSA-87 (0x0905)
	MLDSA87SignatureLen = 4627
)

const (
	kemX25519MLKEM768  = 0x11ec
	kemX25519MLKEM1024 = 0x11ed
	schemeEd25519      = 0x0807
	schemeMLDSA87      = 0x0905

	schemeLen = 2
)

// The reasons for which a message is refused, besides wire.ErrTLVTruncated and
// wire.ErrTLVCritical.
var (
	ErrTooLong       = errors.New("handshake: message longer than the limit")
	ErrMissingTLV    = errors.New("handshake: TLV missing")
	ErrDuplicateTLV  = errors.New("handshake: TLV twice")
	ErrOrder         = errors.New("handshake: TLVs out of order")
	ErrUnexpectedTLV = errors.New("handshake: TLV of another message")
	ErrTrailing      = errors.New("handshake: octets after the last TLV")

	ErrProfileOffer  = errors.New("handshake: empty profile offer")
	ErrKEMOffer      = errors.New("handshake: KEM offer empty or of odd length")
	ErrSigOffer      = errors.New("handshake: signature offer empty or of odd length")
	ErrAEADOffer     = errors.New("handshake: AEAD offer empty or of odd length")
	ErrShareLen      = errors.New("handshake: KEM share of the wrong size")
	ErrProfileSelect = errors.New("handshake: profile selection is not one octet")
	ErrKEMSelect     = errors.New("handshake: KEM selection is not two octets")
	ErrSigSelect     = errors.New("handshake: signature selection is not two octets")
	ErrAEADSelect    = errors.New("handshake: AEAD selection is not two octets")
	ErrCiphertextLen = errors.New("handshake: KEM ciphertext of the wrong size")
	ErrKeyLen        = errors.New("handshake: identity key of the wrong size")
	ErrCertVerify    = errors.New("handshake: certificate verification without a scheme")
	ErrScheme        = errors.New("handshake: unknown signature scheme")
	ErrSignatureLen  = errors.New("handshake: signature of the wrong size")
	ErrFinishedLen   = errors.New("handshake: Finished of the wrong size")
)

// ShareLen returns the size of a KEMShare, in octets, under the KEM of that
// code point; ok is false for an unknown one.
func ShareLen(kem uint16) (n int, ok bool) {
	switch kem {
	case kemX25519MLKEM768:
		return ShareLen768, true
	case kemX25519MLKEM1024:
		return ShareLen1024, true
	}
	return 0, false
}

// CiphertextLen returns the size of a KEMCiphertext, in octets, under the KEM
// of that code point; ok is false for an unknown one.
func CiphertextLen(kem uint16) (n int, ok bool) {
	switch kem {
	case kemX25519MLKEM768:
		return CiphertextLen768, true
	case kemX25519MLKEM1024:
		return CiphertextLen1024, true
	}
	return 0, false
}

// SignatureLens returns the sizes of a raw public key and of a signature, in
// octets, under the scheme of that code point; ok is false for an unknown one.
func SignatureLens(scheme uint16) (key, signature int, ok bool) {
	switch scheme {
	case schemeEd25519:
		return Ed25519KeyLen, Ed25519SignatureLen, true
	case schemeMLDSA87:
		return MLDSA87KeyLen, MLDSA87SignatureLen, true
	}
	return 0, 0, false
}

// CodePoints is a list of two-octet code points as an offer carries it. Its
// length is even, preferred entries come first, unknown ones are to be passed
// over.
type CodePoints []byte

// AppendCodePoints appends the list of the given code points to dst.
func AppendCodePoints[T ~uint16](dst []byte, points ...T) []byte {
	for _, p := range points {
		dst = binary.BigEndian.AppendUint16(dst, uint16(p))
	}
	return dst
}

// Len returns the number of entries.
func (c CodePoints) Len() int { return len(c) / 2 }

// At returns entry i, from 0; it panics outside the list.
func (c CodePoints) At(i int) uint16 { return binary.BigEndian.Uint16(c[2*i:]) }

// Contains reports whether v is an entry.
func (c CodePoints) Contains(v uint16) bool {
	for i := range c.Len() {
		if c.At(i) == v {
			return true
		}
	}
	return false
}

// All yields the entries in order.
func (c CodePoints) All() iter.Seq[uint16] {
	return func(yield func(uint16) bool) {
		for i := range c.Len() {
			if !yield(c.At(i)) {
				return
			}
		}
	}
}

func (c CodePoints) valid() bool { return len(c) > 0 && len(c)%2 == 0 }

// handshakeTags are the types that belong to one of the four messages.
var handshakeTags = wire.TLVSetOf(
	wire.TagProfileOffer, wire.TagProfileSelect, wire.TagKEMOffer, wire.TagKEMSelect,
	wire.TagSigOffer, wire.TagSigSelect, wire.TagKEMShare, wire.TagKEMCiphertext,
	wire.TagIdentityKey, wire.TagCertVerify, wire.TagFinished,
	wire.TagAEADOffer, wire.TagAEADSelect,
)

// collect reads the TLVs of payload and puts the value of the one whose type is
// want[i] into values[i]. A fault in what a TLV is comes before one in how they
// are arranged: a message that lacks a TLV is told apart from one that has it in
// another place. Unless exact, TLVs of types from outside the handshake are
// skipped when they allow it.
func collect(payload []byte, want []wire.TLVType, values [][]byte, exact bool) error {
	if len(payload) > MaxPayloadLen {
		return ErrTooLong
	}
	var seen wire.TLVSet
	found, last, ordered := 0, -1, true
	for off := 0; off < len(payload); {
		t, n, err := wire.ConsumeTLV(payload[off:])
		if err != nil {
			if found == len(want) {
				return ErrTrailing
			}
			return err
		}
		off += n
		i := index(want, t.Type)
		switch {
		case i >= 0 && seen.Has(t.Type):
			return ErrDuplicateTLV
		case i >= 0:
			seen |= 1 << t.Type
			values[i] = t.Value
			found++
			ordered = ordered && i > last
			last = i
		case exact && found == len(want):
			return ErrTrailing
		case t.Type.Critical():
			return wire.ErrTLVCritical
		case exact || handshakeTags.Has(t.Type):
			return ErrUnexpectedTLV
		}
	}
	switch {
	case found != len(want):
		return ErrMissingTLV
	case !ordered:
		return ErrOrder
	}
	return nil
}

func index(list []wire.TLVType, t wire.TLVType) int {
	for i, w := range list {
		if w == t {
			return i
		}
	}
	return -1
}
