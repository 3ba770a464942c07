package schedule

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"errors"

	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/profiles"
)

// Errors of the HKDF functions.
var (
	// ErrLength is returned for an output of more than 255 digests (RFC 5869
	// section 2.3) or one that HkdfLabel's 16-bit length can't hold.
	ErrLength = errors.New("schedule: output too long")
	// ErrLabel is returned for a label or context that does not fit the
	// one-octet length in front of it.
	ErrLabel = errors.New("schedule: label or context too long")
	// ErrHash is returned for a hash that is neither SHA-256 nor SHA-384.
	ErrHash = errors.New("schedule: unknown hash")
)

// labelPrefix separates our labels from those of TLS 1.3, QUIC and earlier
// N-PAMP versions (draft-bubblefish-npamp-02 section 7).
const labelPrefix = "n-pamp "

// digest holds an output of either hash; only the first Size octets count.
type digest [profiles.MaxHashSize]byte

const (
	maxBlock = sha512.BlockSize
	// scratchLen holds a padded key, an HkdfLabel of the longest label and
	// context in use and a previous block; longer messages move to the heap.
	scratchLen = maxBlock + 512
)

// sum hashes msg into out.
func sum(h profiles.Hash, msg []byte, out *digest) {
	switch h {
	case profiles.SHA256:
		d := sha256.Sum256(msg)
		copy(out[:], d[:])
		buf.Wipe(d[:])
	default:
		d := sha512.Sum384(msg)
		copy(out[:], d[:])
		buf.Wipe(d[:])
	}
}

// mac computes HMAC (RFC 2104) over the concatenation of the parts. It is
// written out over one-shot hashing, rather than with crypto/hmac, so that no
// keyed state stays behind on the heap.
func mac(h profiles.Hash, key []byte, out *digest, parts ...[]byte) {
	var (
		pad     [maxBlock]byte
		block   = pad[:h.BlockSize()]
		hashed  digest
		scratch [scratchLen]byte
	)
	if len(key) > len(block) {
		sum(h, key, &hashed)
		key = hashed[:h.Size()]
	}
	copy(block, key)

	inner := append(scratch[:0], block...)
	for i := range inner {
		inner[i] ^= 0x36
	}
	for _, p := range parts {
		inner = append(inner, p...)
	}
	var t digest
	sum(h, inner, &t)
	buf.Wipe(inner)

	outer := append(scratch[:0], block...)
	for i := range outer {
		outer[i] ^= 0x5c
	}
	outer = append(outer, t[:h.Size()]...)
	sum(h, outer, out)

	buf.Wipe(scratch[:])
	buf.Wipe(pad[:])
	buf.Wipe(hashed[:])
	buf.Wipe(t[:])
}

// extract is HKDF-Extract into a fixed buffer.
func extract(h profiles.Hash, salt, ikm []byte, out *digest) {
	mac(h, salt, out, ikm)
}

// Extract is HKDF-Extract (RFC 5869 section 2.2). An empty salt means HashLen
// zero octets. The result has h.Size() octets and is the caller's to wipe; it
// is nil for an unknown hash.
func Extract(h profiles.Hash, salt, ikm []byte) []byte {
	if h.Size() == 0 {
		return nil
	}
	var d digest
	extract(h, salt, ikm, &d)
	prk := append([]byte(nil), d[:h.Size()]...)
	buf.Wipe(d[:])
	return prk
}

// Expand is HKDF-Expand (RFC 5869 section 2.3): it fills out, which may have
// up to 255*h.Size() octets. The errors are ErrLength and ErrHash; then out is
// untouched.
func Expand(h profiles.Hash, prk, info, out []byte) error {
	n := h.Size()
	if n == 0 {
		return ErrHash
	}
	if len(out) > 255*n {
		return ErrLength
	}
	var (
		t       digest
		counter [1]byte
	)
	prev := t[:0]
	for len(out) > 0 {
		counter[0]++
		mac(h, prk, &t, prev, info, counter[:])
		prev = t[:n]
		out = out[copy(out, prev):]
	}
	buf.Wipe(t[:])
	return nil
}

// ExpandLabel is HKDF-Expand-Label of RFC 8446 section 7.1 with the prefix
// "n-pamp " in the place of "tls13 ". It fills out. The errors are ErrLabel for
// a label over 248 octets or a context over 255, ErrLength and ErrHash.
func ExpandLabel(h profiles.Hash, secret []byte, label string, context, out []byte) error {
	if len(labelPrefix)+len(label) > 255 || len(context) > 255 {
		return ErrLabel
	}
	if len(out) > 0xffff {
		return ErrLength
	}
	var room [2 + 1 + 255 + 1 + 255]byte
	info := binary.BigEndian.AppendUint16(room[:0], uint16(len(out)))
	info = append(info, byte(len(labelPrefix)+len(label)))
	info = append(info, labelPrefix...)
	info = append(info, label...)
	info = append(info, byte(len(context)))
	info = append(info, context...)
	return Expand(h, secret, info, out)
}

// expandLabel is ExpandLabel for the labels of this package, whose lengths are
// known to be right.
func expandLabel(h profiles.Hash, secret []byte, label string, context, out []byte) {
	if err := ExpandLabel(h, secret, label, context, out); err != nil {
		panic("schedule: " + label + " does not expand") // unreachable: lengths and hash are our own
	}
}
