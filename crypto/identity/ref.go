package identity

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"strings"
)

// ErrRefText is returned for text that is neither a public key in hexadecimal
// nor a handle.
var ErrRefText = errors.New("identity: neither a public key in hexadecimal nor a handle")

// Ref names a public key: by the key itself or by its handle (PublicKey.Handle),
// which is as good for recognising it. The zero value names none.
type Ref struct{ handle string }

// RefTo names a key.
func RefTo(k PublicKey) Ref { return Ref{k.Handle()} }

// ParseRef reads a key in hexadecimal, either case, or a handle. The error is
// ErrRefText.
func ParseRef(text string) (Ref, error) {
	if k, err := ParsePublicKey(text); err == nil {
		return RefTo(k), nil
	}
	digits, ok := strings.CutPrefix(text, "b")
	if !ok {
		return Ref{}, ErrRefText
	}
	raw, err := handleEncoding.DecodeString(digits)
	if err != nil || len(raw) != 2+sha256.Size || raw[0] != 0x12 || raw[1] != sha256.Size {
		return Ref{}, ErrRefText
	}
	// Base32 leaves spare bits at the end: only one spelling is the handle.
	if handleEncoding.EncodeToString(raw) != digits {
		return Ref{}, ErrRefText
	}
	return Ref{text}, nil
}

// Matches tells whether k is the key that r names, in constant time. No key
// matches nothing.
func (r Ref) Matches(k PublicKey) bool {
	h := k.Handle()
	return h != "" && subtle.ConstantTimeCompare([]byte(h), []byte(r.handle)) == 1
}

// String is the handle of the key.
func (r Ref) String() string { return r.handle }

// PinRef accepts the one key that r names.
func PinRef(r Ref) Verifier {
	return func(peer PublicKey) error {
		if !r.Matches(peer) {
			return ErrPeerNotAllowed
		}
		return nil
	}
}
