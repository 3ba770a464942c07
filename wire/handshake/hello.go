package handshake

import (
	"encoding/binary"

	"github.com/trestle-npamp/trestle/wire"
)

var (
	clientHelloTLVs = [...]wire.TLVType{wire.TagProfileOffer, wire.TagKEMOffer, wire.TagSigOffer, wire.TagAEADOffer, wire.TagKEMShare}
	serverHelloTLVs = [...]wire.TLVType{wire.TagProfileSelect, wire.TagKEMSelect, wire.TagSigSelect, wire.TagAEADSelect, wire.TagKEMCiphertext}
)

// ClientHello is the payload of CLIENT_HELLO. In a parsed one all fields are
// views of the payload. The zero value is an invalid message.
type ClientHello struct {
	Profiles []byte     // the profiles offered, one octet each, preferred first
	KEMs     CodePoints // the first one is Share's
	Schemes  CodePoints // signature schemes that the client holds a key for
	AEADs    CodePoints
	Share    []byte // of the size that the first KEM has, where that is known

	raw []byte
}

// ParseClientHello reads the payload of a CLIENT_HELLO frame. A share under an
// unknown KEM may have any size but none: a server that does not know the KEM
// fails for that reason.
func ParseClientHello(payload []byte) (ClientHello, error) {
	var v [len(clientHelloTLVs)][]byte
	if err := collect(payload, clientHelloTLVs[:], v[:], false); err != nil {
		return ClientHello{}, err
	}
	m := ClientHello{Profiles: v[0], KEMs: v[1], Schemes: v[2], AEADs: v[3], Share: v[4], raw: payload[:len(payload):len(payload)]}
	if err := m.check(); err != nil {
		return ClientHello{}, err
	}
	return m, nil
}

func (m *ClientHello) check() error {
	switch {
	case len(m.Profiles) == 0:
		return ErrProfileOffer
	case !m.KEMs.valid():
		return ErrKEMOffer
	case !m.Schemes.valid():
		return ErrSigOffer
	case !m.AEADs.valid():
		return ErrAEADOffer
	}
	if n, ok := ShareLen(m.KEMs.At(0)); ok && len(m.Share) != n || len(m.Share) == 0 {
		return ErrShareLen
	}
	if m.Size() > MaxPayloadLen {
		return ErrTooLong
	}
	return nil
}

// Size returns the octets that Append adds.
func (m *ClientHello) Size() int {
	return len(clientHelloTLVs)*wire.TLVHeaderLen + len(m.Profiles) + len(m.KEMs) + len(m.Schemes) + len(m.AEADs) + len(m.Share)
}

// Append appends the payload to dst. It refuses what ParseClientHello would,
// with the same errors, and returns dst as it was.
func (m *ClientHello) Append(dst []byte) ([]byte, error) {
	if err := m.check(); err != nil {
		return dst, err
	}
	dst = wire.AppendTLV(dst, wire.TagProfileOffer, m.Profiles)
	dst = wire.AppendTLV(dst, wire.TagKEMOffer, m.KEMs)
	dst = wire.AppendTLV(dst, wire.TagSigOffer, m.Schemes)
	dst = wire.AppendTLV(dst, wire.TagAEADOffer, m.AEADs)
	return wire.AppendTLV(dst, wire.TagKEMShare, m.Share), nil
}

// Raw returns the TLVs of a parsed message as they came, skipped ones included:
// with the frame type in front, what the transcript absorbs. It is nil for a
// message that was not parsed.
func (m *ClientHello) Raw() []byte { return m.raw }

// ServerHello is the payload of SERVER_HELLO. In a parsed one Ciphertext is a
// view of the payload. The zero value is an invalid message.
type ServerHello struct {
	Profile    uint8
	KEM        uint16
	Scheme     uint16 // signature scheme
	AEAD       uint16
	Ciphertext []byte // of the size that KEM has, where that is known

	raw []byte
}

// ParseServerHello reads the payload of a SERVER_HELLO frame. Whether the
// selections were offered is for the caller to check.
func ParseServerHello(payload []byte) (ServerHello, error) {
	var v [len(serverHelloTLVs)][]byte
	if err := collect(payload, serverHelloTLVs[:], v[:], false); err != nil {
		return ServerHello{}, err
	}
	switch {
	case len(v[0]) != 1:
		return ServerHello{}, ErrProfileSelect
	case len(v[1]) != 2:
		return ServerHello{}, ErrKEMSelect
	case len(v[2]) != 2:
		return ServerHello{}, ErrSigSelect
	case len(v[3]) != 2:
		return ServerHello{}, ErrAEADSelect
	}
	m := ServerHello{
		Profile:    v[0][0],
		KEM:        binary.BigEndian.Uint16(v[1]),
		Scheme:     binary.BigEndian.Uint16(v[2]),
		AEAD:       binary.BigEndian.Uint16(v[3]),
		Ciphertext: v[4],
		raw:        payload[:len(payload):len(payload)],
	}
	if err := m.check(); err != nil {
		return ServerHello{}, err
	}
	return m, nil
}

func (m *ServerHello) check() error {
	if n, ok := CiphertextLen(m.KEM); ok && len(m.Ciphertext) != n || len(m.Ciphertext) == 0 {
		return ErrCiphertextLen
	}
	if m.Size() > MaxPayloadLen {
		return ErrTooLong
	}
	return nil
}

// Size returns the octets that Append adds.
func (m *ServerHello) Size() int {
	return len(serverHelloTLVs)*wire.TLVHeaderLen + 1 + 2 + 2 + 2 + len(m.Ciphertext)
}

// Append appends the payload to dst. It refuses what ParseServerHello would,
// with the same errors, and returns dst as it was.
func (m *ServerHello) Append(dst []byte) ([]byte, error) {
	if err := m.check(); err != nil {
		return dst, err
	}
	dst = append(wire.AppendTLVHeader(dst, wire.TagProfileSelect, 1), m.Profile)
	dst = binary.BigEndian.AppendUint16(wire.AppendTLVHeader(dst, wire.TagKEMSelect, 2), m.KEM)
	dst = binary.BigEndian.AppendUint16(wire.AppendTLVHeader(dst, wire.TagSigSelect, 2), m.Scheme)
	dst = binary.BigEndian.AppendUint16(wire.AppendTLVHeader(dst, wire.TagAEADSelect, 2), m.AEAD)
	return wire.AppendTLV(dst, wire.TagKEMCiphertext, m.Ciphertext), nil
}

// Raw returns the TLVs of a parsed message as they came, as [ClientHello.Raw]
// does.
func (m *ServerHello) Raw() []byte { return m.raw }
