package sched

import (
	"crypto/sha256"
	"encoding/binary"
)

// Token names one exchange that we originated, on the wire and in our own slot
// table (D10). From the most significant bit:
//
//	role 1 | nonce 15 | generation 28 | slot 20
//
// The role is the originator's, so that a token never equals one of the peer's;
// the nonce is the association's, so that one left over from another association
// is recognised; slot and generation find the exchange without a map. A Token
// carries no secret and proves nothing: the peer can make up any.
type Token uint64

// TokenLen is the size of a token on the wire in octets.
const TokenLen = 8

const (
	slotBits       = 20
	generationBits = 28
	nonceBits      = 15

	generationShift = slotBits
	nonceShift      = slotBits + generationBits
	roleShift       = nonceShift + nonceBits

	slotMask       = 1<<slotBits - 1
	generationMask = 1<<generationBits - 1
	nonceMask      = 1<<nonceBits - 1
)

func (t Token) slot() uint32       { return uint32(t & slotMask) }
func (t Token) generation() uint32 { return uint32(t >> generationShift & generationMask) }

// Role returns the role of the originator, 0 or 1.
func (t Token) Role() uint8 { return uint8(t >> roleShift) }

// MaxCorrLen is the size of the largest correlation id in octets: corr_len is
// one octet (BRIDGE 5).
const MaxCorrLen = 255

// MaxNaturalLen is the size in octets of the largest natural correlation that
// AppendCorr takes as it is: with the separator and the token it fills
// MaxCorrLen.
const MaxNaturalLen = MaxCorrLen - 1 - TokenLen

// hashedNatural is the size of what stands for a longer one (D18).
const hashedNatural = 16

// AppendCorr appends the correlation id of an exchange whose corr must be ours
// alone: natural || 0x00 || token (D10). natural, the id token of the foreign
// request, may be empty; over MaxNaturalLen octets the first 16 octets of its
// SHA-256 stand for it (D18).
func AppendCorr(dst, natural []byte, t Token) []byte {
	if len(natural) > MaxNaturalLen {
		sum := sha256.Sum256(natural)
		dst = append(dst, sum[:hashedNatural]...)
	} else {
		dst = append(dst, natural...)
	}
	dst = append(dst, 0)
	return binary.BigEndian.AppendUint64(dst, uint64(t))
}

// CorrLen returns how many octets AppendCorr adds for a natural correlation of n
// octets.
func CorrLen(n int) int {
	if n > MaxNaturalLen {
		n = hashedNatural
	}
	return n + 1 + TokenLen
}

// ParseCorr takes a correlation id apart that has the form AppendCorr gives it.
// ok only says that it has the form; whether the token is one of ours and live
// is for Slots.Resolve to say. natural is a view of corr.
func ParseCorr(corr []byte) (natural []byte, t Token, ok bool) {
	n := len(corr) - TokenLen - 1
	if n < 0 || corr[n] != 0 || len(corr) > MaxCorrLen {
		return nil, 0, false
	}
	return corr[:n:n], Token(binary.BigEndian.Uint64(corr[n+1:])), true
}
