package handshake

import (
	"encoding/binary"

	"github.com/trestle-npamp/trestle/wire"
)

var authTLVs = [...]wire.TLVType{wire.TagIdentityKey, wire.TagCertVerify, wire.TagFinished}

// Auth is the plaintext of SERVER_AUTH and CLIENT_AUTH. In a parsed one all
// fields are views of the plaintext. The zero value is an invalid message.
//
// It is written piece by piece, since each piece depends on the transcript up
// to the one before: [AppendIdentityKey], [AppendCertVerify], [AppendFinished].
type Auth struct {
	IdentityKey []byte // the raw public key, of the size that Scheme has
	Scheme      uint16 // the signature scheme that CertVerify names
	Signature   []byte // of the size that Scheme has
	Finished    []byte // the MAC, as long as the profile's hash: 32 or 48

	raw []byte
}

// ParseAuth reads an opened AUTH; hashLen is the digest size, in octets, of the
// negotiated profile's hash. Whether Scheme is the negotiated one is for the
// caller to check.
func ParseAuth(plaintext []byte, hashLen int) (Auth, error) {
	var v [len(authTLVs)][]byte
	if err := collect(plaintext, authTLVs[:], v[:], true); err != nil {
		return Auth{}, err
	}
	if len(v[1]) < schemeLen {
		return Auth{}, ErrCertVerify
	}
	m := Auth{
		IdentityKey: v[0],
		Scheme:      binary.BigEndian.Uint16(v[1]),
		Signature:   v[1][schemeLen:],
		Finished:    v[2],
		raw:         plaintext,
	}
	key, signature, ok := SignatureLens(m.Scheme)
	switch {
	case !ok:
		return Auth{}, ErrScheme
	case len(m.IdentityKey) != key:
		return Auth{}, ErrKeyLen
	case len(m.Signature) != signature:
		return Auth{}, ErrSignatureLen
	case len(m.Finished) != hashLen || !isHashLen(hashLen):
		return Auth{}, ErrFinishedLen
	}
	return m, nil
}

// isHashLen reports whether a profile's hash has digests of n octets: SHA-256
// or SHA-384.
func isHashLen(n int) bool { return n == 32 || n == 48 }

// RawIdentityKey returns the IdentityKey TLV as it came, header included; it is
// nil for a message that was not parsed, like the other two.
func (m *Auth) RawIdentityKey() []byte { return m.piece(0, m.keyEnd()) }

// RawCertVerify returns the CertVerify TLV as it came, header included.
func (m *Auth) RawCertVerify() []byte { return m.piece(m.keyEnd(), m.certEnd()) }

// RawFinished returns the Finished TLV as it came, header included.
func (m *Auth) RawFinished() []byte { return m.piece(m.certEnd(), len(m.raw)) }

func (m *Auth) keyEnd() int { return wire.TLVHeaderLen + len(m.IdentityKey) }

func (m *Auth) certEnd() int { return m.keyEnd() + wire.TLVHeaderLen + schemeLen + len(m.Signature) }

func (m *Auth) piece(from, to int) []byte {
	if m.raw == nil {
		return nil
	}
	return m.raw[from:to:to]
}

// AppendIdentityKey appends the IdentityKey TLV: the raw public key of the
// scheme.
func AppendIdentityKey(dst []byte, scheme uint16, key []byte) ([]byte, error) {
	n, _, ok := SignatureLens(scheme)
	switch {
	case !ok:
		return dst, ErrScheme
	case len(key) != n:
		return dst, ErrKeyLen
	}
	return wire.AppendTLV(dst, wire.TagIdentityKey, key), nil
}

// AppendCertVerify appends the CertVerify TLV: the scheme and its signature.
func AppendCertVerify(dst []byte, scheme uint16, signature []byte) ([]byte, error) {
	_, n, ok := SignatureLens(scheme)
	switch {
	case !ok:
		return dst, ErrScheme
	case len(signature) != n:
		return dst, ErrSignatureLen
	}
	dst = wire.AppendTLVHeader(dst, wire.TagCertVerify, schemeLen+len(signature))
	return append(binary.BigEndian.AppendUint16(dst, scheme), signature...), nil
}

// AppendFinished appends the Finished TLV: the MAC, whose size must be hashLen.
func AppendFinished(dst, mac []byte, hashLen int) ([]byte, error) {
	if len(mac) != hashLen || !isHashLen(hashLen) {
		return dst, ErrFinishedLen
	}
	return wire.AppendTLV(dst, wire.TagFinished, mac), nil
}

// AuthLen returns the plaintext size of an AUTH, in octets, under the scheme
// and hash; ok is false for an unknown scheme.
func AuthLen(scheme uint16, hashLen int) (n int, ok bool) {
	key, signature, ok := SignatureLens(scheme)
	if !ok {
		return 0, false
	}
	return len(authTLVs)*wire.TLVHeaderLen + key + schemeLen + signature + hashLen, true
}

// Append appends the whole plaintext to dst, as the three pieces do. It refuses
// what ParseAuth would under a hash of len(m.Finished) octets, with the same
// errors, and returns dst as it was.
func (m *Auth) Append(dst []byte) ([]byte, error) {
	start := len(dst)
	out, err := AppendIdentityKey(dst, m.Scheme, m.IdentityKey)
	if err == nil {
		out, err = AppendCertVerify(out, m.Scheme, m.Signature)
	}
	if err == nil {
		out, err = AppendFinished(out, m.Finished, len(m.Finished))
	}
	if err != nil {
		return dst[:start], err
	}
	return out, nil
}
