package main

import (
	"bytes"
	"crypto/cipher"
	"errors"
	"fmt"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/trestle-npamp/trestle/asm/aesgcm"
	"github.com/trestle-npamp/trestle/crypto/schedule"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// conformOps are the operations by their names in the corpus. Each one only
// translates between JSON and the package that does the work.
var conformOps = map[string]conformOp{
	"header.decode":          takes(headerDecode),
	"header.encode":          takes(headerEncode),
	"crc32c":                 takes(checksum),
	"tlv.decode":             takes(tlvDecode),
	"tlv.encode":             takes(tlvEncode),
	"bridge.envelope.decode": takes(bridgeDecode),
	"bridge.envelope.encode": takes(bridgeEncode),
	"bridge.correlate":       takes(bridgeCorrelate),
	"aead.seal":              takes(aeadSeal),
	"aead.open":              takes(aeadOpen),
	"frame.seal":             takes(frameSeal),
	"frame.open":             takes(frameOpen),
	"nonce.derive":           takes(nonceDerive),
	"hkdf.expand":            takes(hkdfExpand),
	"hkdf.expand_label":      takes(hkdfExpandLabel),
	"keys.derive_traffic":    takes(deriveTraffic),
	"profile.check":          takes(profileCheck),
}

// --- frames and TLVs -------------------------------------------------------

type headerFields struct {
	Magic         string `json:"magic"`
	Version       number `json:"ver"`
	Flags         number `json:"flags"`
	FrameType     number `json:"frameType"`
	Channel       number `json:"channel"`
	Seq           number `json:"seq"`
	PayloadLength number `json:"payloadLength"`
}

type headerReport struct {
	headerFields
	Checksum     octets `json:"crc32c"`
	ReservedZero bool   `json:"reservedZero"`
}

type frameHex struct {
	Frame octets `json:"frame"`
}

func headerDecode(in frameHex) (headerReport, error) {
	h, err := wire.ParseHeader(in.Frame, wire.MaxFrameLen)
	if err != nil {
		return headerReport{}, err
	}
	return headerReport{
		headerFields: headerFields{
			Magic:         string(h[:4]),
			Version:       number(h[4] >> 4),
			Flags:         number(h.Flags()),
			FrameType:     number(h.Type()),
			Channel:       number(h.Channel()),
			Seq:           number(h.Seq()),
			PayloadLength: number(h.PayloadLen()),
		},
		Checksum:     octets(h[wire.PrefixLen:][:4]),
		ReservedZero: true, // ParseHeader takes nothing else
	}, nil
}

func headerEncode(in headerFields) (frameHex, error) {
	if in.Magic != "NPAM" {
		return frameHex{}, wire.ErrMagic
	}
	if in.Version != wire.Version {
		return frameHex{}, wire.ErrVersion
	}
	h, err := in.header()
	return frameHex{octets(h)}, err
}

// header writes the header, with the fields' ranges checked.
func (in headerFields) header() (wire.Header, error) {
	f, err1 := narrow[wire.Flags](in.Flags)
	t, err2 := narrow[wire.FrameType](in.FrameType)
	ch, err3 := narrow[wire.Channel](in.Channel)
	if err := errors.Join(err1, err2, err3); err != nil || f > 0x0F || in.PayloadLength > wire.MaxFrameLen-wire.HeaderLen {
		return nil, errConformRange
	}
	return wire.AppendHeader(nil, f, t, ch, wire.Seq(in.Seq), int(in.PayloadLength)), nil
}

func checksum(in struct {
	Octets octets `json:"octets"`
}) (any, error) {
	c := wire.Checksum(in.Octets)
	return map[string]octets{"crc32c": {byte(c >> 24), byte(c >> 16), byte(c >> 8), byte(c)}}, nil
}

type tlvHex struct {
	TLV octets `json:"tlv"`
}

type tlvFields struct {
	Type   number `json:"type"`
	Length int    `json:"length"`
	Value  octets `json:"value"`
}

func tlvDecode(in tlvHex) (tlvFields, error) {
	t, n, err := wire.ConsumeTLV(in.TLV)
	switch {
	case err != nil:
		return tlvFields{}, err
	case t.Type.Critical(): // no critical type is assigned
		return tlvFields{}, wire.ErrTLVCritical
	case n != len(in.TLV):
		return tlvFields{}, errConformTrailing
	}
	return tlvFields{Type: number(t.Type), Length: len(t.Value), Value: t.Value}, nil
}

func tlvEncode(in tlvFields) (tlvHex, error) {
	t, err := narrow[wire.TLVType](in.Type)
	if err != nil || len(in.Value) > wire.MaxTLVLen {
		return tlvHex{}, errConformRange
	}
	return tlvHex{wire.AppendTLV(nil, t, in.Value)}, nil
}

// --- Bridge ----------------------------------------------------------------

type bridgeFields struct {
	FrameType number        `json:"frameType,omitempty"`
	Protocol  number        `json:"protocol_id"`
	Kind      number        `json:"message_kind"`
	Content   number        `json:"content_type"`
	Flags     number        `json:"flags"`
	Final     bool          `json:"final"`
	Corr      octets        `json:"corr"`
	Method    string        `json:"method"`
	Safety    *safetyFields `json:"safety"`
	Foreign   octets        `json:"foreign"`
}

type safetyFields struct {
	Effect number `json:"effect"`
	Scope  string `json:"scope"`
}

type bridgePayload struct {
	FrameType number `json:"frameType"`
	Payload   octets `json:"payload"`
}

func (in bridgePayload) parse() (m bridge.Message, err error) {
	t, err := narrow[wire.FrameType](in.FrameType)
	if err != nil {
		return m, err
	}
	err = bridge.Parse(&m, t, in.Payload, nil)
	return m, err
}

func bridgeDecode(in bridgePayload) (bridgeFields, error) {
	m, err := in.parse()
	if err != nil {
		return bridgeFields{}, err
	}
	out := bridgeFields{
		Protocol: number(m.Protocol),
		Kind:     number(m.Kind),
		Content:  number(m.Content),
		Flags:    number(m.Flags),
		Final:    m.Final(),
		Corr:     m.Corr,
		Method:   string(m.Method),
		Foreign:  m.Foreign,
	}
	if m.HasLabel {
		out.Safety = &safetyFields{Effect: number(m.Label.Effect), Scope: string(m.Label.Scope)}
	}
	return out, nil
}

func bridgeEncode(in struct {
	Fields bridgeFields `json:"fields"`
}) (any, error) {
	f := in.Fields
	kind, err1 := narrow[bridge.Kind](f.Kind)
	protocol, err2 := narrow[bridge.ProtocolID](f.Protocol)
	content, err3 := narrow[bridge.ContentType](f.Content)
	flags, err4 := narrow[uint8](f.Flags)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	if number(kind.Type()) != f.FrameType {
		return nil, fmt.Errorf("conform: frame type %#x does not carry a %v", f.FrameType, kind)
	}
	m := bridge.Message{
		Kind:     kind,
		Protocol: protocol,
		Content:  content,
		Flags:    flags,
		Corr:     f.Corr,
		Method:   []byte(f.Method),
		Foreign:  f.Foreign,
	}
	if f.Safety != nil {
		effect, err := narrow[bridge.Effect](f.Safety.Effect)
		if err != nil {
			return nil, err
		}
		m.HasLabel, m.Label = true, bridge.Label{Effect: effect, Scope: []byte(f.Safety.Scope)}
	}
	payload, err := m.Append(nil, nil)
	return map[string]octets{"payload": payload}, err
}

func bridgeCorrelate(in struct {
	RequestType    number `json:"requestFrameType"`
	RequestPayload octets `json:"requestPayload"`
	ReplyType      number `json:"replyFrameType"`
	ReplyPayload   octets `json:"replyPayload"`
}) (any, error) {
	request, err := bridgePayload{in.RequestType, in.RequestPayload}.parse()
	if err != nil {
		return nil, err
	}
	reply, err := bridgePayload{in.ReplyType, in.ReplyPayload}.parse()
	if err != nil {
		return nil, err
	}
	match := request.Kind == bridge.KindRequest && reply.Kind.IsReply() && bytes.Equal(request.Corr, reply.Corr)
	return map[string]bool{"match": match}, nil
}

// --- keys and records ------------------------------------------------------

var (
	errConformSuite   = errors.New("conform: unknown AEAD suite")
	errConformProfile = errors.New("conform: unknown profile")
	errConformKEM     = errors.New("conform: unknown key exchange")
	errConformRefused = errors.New("conform: the profile does not accept this key exchange")
	errConformHash    = errors.New("conform: unknown hash")
	errConformLength  = errors.New("conform: key, iv or nonce of the wrong length")
	errConformTag     = errors.New("conform: does not authenticate")
)

// aeadFields name a suite and what it needs. The frame operations give an iv
// and the header's fields in the place of nonce and aad.
type aeadFields struct {
	Suite  string `json:"suite"`
	Key    octets `json:"key"`
	Nonce  octets `json:"nonce"`
	AAD    octets `json:"aad"`
	Plain  octets `json:"pt"`
	Sealed octets `json:"sealed"`
}

type sealedHex struct {
	Sealed octets `json:"sealed"`
}

type plainHex struct {
	Plain octets `json:"pt"`
}

// aead expands the key, with the implementations that the record layer, which
// seals whole frames only, is made from.
func (in aeadFields) aead() (cipher.AEAD, error) {
	if len(in.Key) != schedule.KeyLen || len(in.Nonce) != schedule.IVLen {
		return nil, errConformLength
	}
	switch in.Suite {
	case profiles.AES256GCM.String():
		return aesgcm.New(in.Key)
	case profiles.ChaCha20Poly1305.String():
		return chacha20poly1305.New(in.Key)
	}
	return nil, errConformSuite
}

func aeadSeal(in aeadFields) (sealedHex, error) {
	aead, err := in.aead()
	if err != nil {
		return sealedHex{}, err
	}
	return sealedHex{aead.Seal(nil, in.Nonce, in.Plain, in.AAD)}, nil
}

func aeadOpen(in aeadFields) (plainHex, error) {
	aead, err := in.aead()
	if err != nil {
		return plainHex{}, err
	}
	plain, err := aead.Open(nil, in.Nonce, in.Sealed, in.AAD)
	if err != nil {
		return plainHex{}, errConformTag
	}
	return plainHex{plain}, nil
}

type frameFields struct {
	aeadFields
	headerFields
	IV octets `json:"iv"`
}

// bind derives nonce and associated data. The corpus builds the associated data
// with the length of the PLAINTEXT, where a frame on the wire has the length
// with the tag (draft-bubblefish-npamp-02 section 4; the handshake flow vector
// and the recorded associations have it so, too). It is special-cased here, and
// nowhere else.
func (in *frameFields) bind(plainLen int) error {
	if in.Version != wire.Version {
		return wire.ErrVersion
	}
	in.PayloadLength = number(plainLen)
	header, err := in.header()
	if err != nil {
		return err
	}
	in.AAD = octets(header.Prefix())
	in.Nonce, err = nonce(in.IV, in.Seq)
	return err
}

func frameSeal(in frameFields) (sealedHex, error) {
	if err := in.bind(len(in.Plain)); err != nil {
		return sealedHex{}, err
	}
	return aeadSeal(in.aeadFields)
}

func frameOpen(in frameFields) (plainHex, error) {
	if len(in.Sealed) < wire.TagLen {
		return plainHex{}, errConformTag
	}
	if err := in.bind(len(in.Sealed) - wire.TagLen); err != nil {
		return plainHex{}, err
	}
	return aeadOpen(in.aeadFields)
}

func nonce(iv octets, seq number) (octets, error) {
	if len(iv) != schedule.IVLen {
		return nil, errConformLength
	}
	var n [schedule.IVLen]byte
	schedule.Nonce((*[schedule.IVLen]byte)(iv), wire.Seq(seq), &n)
	return n[:], nil
}

func nonceDerive(in struct {
	IV  octets `json:"iv"`
	Seq number `json:"seq"`
}) (any, error) {
	n, err := nonce(in.IV, in.Seq)
	return map[string]octets{"nonce": n}, err
}

func hashNamed(name string) (profiles.Hash, error) {
	switch name {
	case "sha256":
		return profiles.SHA256, nil
	case "sha384":
		return profiles.SHA384, nil
	}
	return 0, errConformHash
}

// maxConformOutput is more than any hash can expand to; the schedule has the
// exact bound.
const maxConformOutput = 1 << 16

func hkdfExpand(in struct {
	Hash   string `json:"hash"`
	PRK    octets `json:"prk"`
	Info   octets `json:"info"`
	Length number `json:"length"`
}) (any, error) {
	h, err := hashNamed(in.Hash)
	if err != nil {
		return nil, err
	}
	out := make(octets, min(in.Length, maxConformOutput))
	err = schedule.Expand(h, in.PRK, in.Info, out)
	return map[string]octets{"okm": out}, err
}

func hkdfExpandLabel(in struct {
	Hash    string `json:"hash"`
	Secret  octets `json:"secret"`
	Label   string `json:"label"`
	Context octets `json:"context"`
	Length  number `json:"length"`
}) (any, error) {
	h, err := hashNamed(in.Hash)
	if err != nil {
		return nil, err
	}
	out := make(octets, min(in.Length, maxConformOutput))
	err = schedule.ExpandLabel(h, in.Secret, in.Label, in.Context, out)
	return map[string]octets{"out": out}, err
}

func deriveTraffic(in struct {
	Profile   string `json:"profile"`
	Master    octets `json:"master"`
	Direction number `json:"dir"`
	Epoch     number `json:"epoch"`
	Suite     number `json:"suite"`
	Channel   number `json:"channel"`
}) (any, error) {
	p := profiles.ByName(in.Profile)
	if p == nil {
		return nil, errConformProfile
	}
	suite, err1 := narrow[profiles.Suite](in.Suite)
	ch, err2 := narrow[wire.Channel](in.Channel)
	if err := errors.Join(err1, err2); err != nil || in.Direction > number(wire.ServerToClient) {
		return nil, errConformRange
	}
	if !p.AcceptsSuite(suite) {
		return nil, errConformSuite
	}
	if len(in.Master) != p.Hash.Size() {
		return nil, errConformLength
	}
	root := schedule.NewRoot(p.Hash, wire.Direction(in.Direction), in.Master)
	key, iv, err := root.Traffic(wire.Epoch(in.Epoch), suite, ch)
	return map[string]octets{"key": key[:], "iv": iv[:]}, err
}

func profileCheck(in struct {
	Profile string `json:"profile"`
	KEM     string `json:"kem"`
}) (any, error) {
	p := profiles.ByName(in.Profile)
	if p == nil {
		return nil, errConformProfile
	}
	for _, k := range []profiles.KEM{profiles.X25519MLKEM768, profiles.X25519MLKEM1024} {
		if k.String() != in.KEM {
			continue
		}
		if !p.AcceptsKEM(k) {
			return nil, errConformRefused
		}
		return map[string]bool{"accepted": true}, nil
	}
	return nil, errConformKEM
}
