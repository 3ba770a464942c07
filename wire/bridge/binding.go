package bridge

import (
	"encoding/binary"
	"unicode/utf8"
)

// PartKind says which part of a document set a message carries.
type PartKind uint8

// The kinds of parts (CC-DOC 6.2).
const (
	PartDocument PartKind = 1
	PartProof    PartKind = 2
)

// DigestAlg names a digest algorithm, numbered as TLS's HashAlgorithm (D7).
type DigestAlg uint16

// The digest algorithms.
const (
	DigestSHA256 DigestAlg = 4
	DigestSHA384 DigestAlg = 5
	DigestSHA512 DigestAlg = 6
)

// Size returns the digest's length in octets, and 0 for an unknown algorithm.
func (a DigestAlg) Size() int {
	switch a {
	case DigestSHA256:
		return 32
	case DigestSHA384:
		return 48
	case DigestSHA512:
		return 64
	}
	return 0
}

// Binding is the value of a DocumentBinding TLV: what ties the parts of a
// document set together (CC-DOC 6). Read by ParseBinding, its slices are views.
type Binding struct {
	Part       PartKind
	DocID      []byte // 1 to 255 octets, the same on all parts of a set
	MediaType  []byte // UTF-8 of up to 255 octets; a document's is not empty
	Alg        DigestAlg
	Digest     []byte // of the document, Alg.Size() octets
	ProofCount uint8  // detached proofs in the set
	ProofIndex uint8  // which of them this is; 0 and ignored on a document
	ProofAlg   uint16 // signature scheme or other proof; 0 on a document
}

// ParseBinding reads the value of a DocumentBinding TLV. The errors are the
// ErrBinding ones, whose code is BindingMalformed. Whether the parts of one set
// agree is for the reader of the set to see.
func ParseBinding(v []byte) (Binding, error) {
	var b Binding
	var ok bool
	if len(v) < 1 {
		return Binding{}, ErrBindingTruncated
	}
	b.Part, v = PartKind(v[0]), v[1:]
	if b.DocID, v, ok = cutField(v); !ok {
		return Binding{}, ErrBindingTruncated
	}
	if b.MediaType, v, ok = cutField(v); !ok || len(v) < 2 {
		return Binding{}, ErrBindingTruncated
	}
	b.Alg, v = DigestAlg(binary.BigEndian.Uint16(v)), v[2:]
	if b.Digest, v, ok = cutField(v); !ok || len(v) < 4 {
		return Binding{}, ErrBindingTruncated
	}
	if len(v) > 4 {
		return Binding{}, ErrBindingTrailing
	}
	b.ProofCount, b.ProofIndex, b.ProofAlg = v[0], v[1], binary.BigEndian.Uint16(v[2:])
	if err := b.check(); err != nil {
		return Binding{}, err
	}
	return b, nil
}

// cutField cuts a one-octet length and that many octets off v.
func cutField(v []byte) (field, rest []byte, ok bool) {
	if len(v) < 1 || len(v) < 1+int(v[0]) {
		return nil, nil, false
	}
	n := 1 + int(v[0])
	return v[1:n:n], v[n:], true
}

func (b *Binding) check() error {
	switch {
	case b.Part != PartDocument && b.Part != PartProof:
		return ErrBindingPart
	case len(b.DocID) == 0:
		return ErrBindingDocID
	case b.Part == PartDocument && len(b.MediaType) == 0, !utf8.Valid(b.MediaType):
		return ErrBindingMediaType
	case b.Alg.Size() == 0:
		return ErrBindingDigestAlg
	case len(b.Digest) != b.Alg.Size():
		return ErrBindingDigest
	case b.Part == PartProof && b.ProofIndex >= b.ProofCount, b.Part == PartDocument && b.ProofAlg != 0:
		return ErrBindingProof
	}
	return nil
}

// Append appends the value to dst, for a Message's Binding. It returns dst
// unchanged and an error if ParseBinding would not accept it, if a field is over
// 255 octets (ErrValueTooLong), or if a document has a ProofIndex
// (ErrBindingProof).
func (b *Binding) Append(dst []byte) ([]byte, error) {
	if err := b.check(); err != nil {
		return dst, err
	}
	if len(b.DocID) > maxField || len(b.MediaType) > maxField {
		return dst, ErrValueTooLong
	}
	if b.Part == PartDocument && b.ProofIndex != 0 {
		return dst, ErrBindingProof
	}
	dst = append(dst, byte(b.Part), byte(len(b.DocID)))
	dst = append(dst, b.DocID...)
	dst = append(dst, byte(len(b.MediaType)))
	dst = append(dst, b.MediaType...)
	dst = binary.BigEndian.AppendUint16(dst, uint16(b.Alg))
	dst = append(dst, byte(len(b.Digest)))
	dst = append(dst, b.Digest...)
	dst = append(dst, b.ProofCount, b.ProofIndex)
	return binary.BigEndian.AppendUint16(dst, b.ProofAlg), nil
}
