package bridge

import (
	"encoding/binary"
	"slices"
	"unicode/utf8"

	"github.com/trestle-npamp/trestle/wire"
)

const (
	envelopeMin   = 6   // octets of an envelope without correlation id and method
	maxField      = 255 // what a one-octet length can say (D18)
	streamLen     = 11  // octets of a StreamControl
	streamVersion = 1
)

// Message is a message of the Bridge channel. Read by Parse, all its slices are
// views of the payload and live as long as that does.
type Message struct {
	Kind     Kind
	Protocol ProtocolID
	Content  ContentType
	Flags    uint8 // FlagFinal, and reserved ones as they came; set none of those

	HasLabel  bool
	HasStream bool
	// Transport says that Foreign is a transport error instead of the foreign
	// protocol's own octets (D11). Only with KindError.
	Transport bool

	Corr   []byte // correlation id, 1 to 255 octets; empty on a notification
	Method []byte // operation name, UTF-8 of 0 to 255 octets

	Label  Label         // with HasLabel
	Stream StreamControl // with HasStream

	// These need Tags. Empty means absent.
	MediaType []byte // of Foreign, where Content points at it
	Binding   []byte // value of a DocumentBinding TLV, which ParseBinding accepts
	Metadata  []byte // value of an EdgeMetadata TLV

	Foreign []byte // the foreign message, octet for octet
}

// Final reports whether the final flag is set.
func (m *Message) Final() bool { return m.Flags&FlagFinal != 0 }

// EffectOr returns the label's effect, or missing if there is no label. What a
// missing label stands for depends on the method: destructive on anything that
// is not known to be read-only (BRIDGE 7).
func (m *Message) EffectOr(missing Effect) Effect {
	if m.HasLabel {
		return m.Label.Effect
	}
	return missing
}

// Parse reads the opened payload of a Bridge frame of type t into m, which it
// overwrites whole. tags are the configured numbers, nil for none.
//
// The foreign message begins behind the envelope and the TLVs of the known set
// that follow it in any order, each at most once; a second one of a kind, or
// anything else, is its start. Behind envelopes of MCP and A2A alone an unknown
// TLV of a type up to 0x00FF is passed over, since JSON does not start so (D9).
//
// The error is ErrFrameType for a type of another kind, and otherwise one of the
// class ErrMalformed. After such an error m has the Kind of the frame's type, and
// Corr and Protocol if they could be read, so that it can be answered; nothing
// else of it means anything.
func Parse(m *Message, t wire.FrameType, payload []byte, tags *Tags) error {
	*m = Message{}
	kind, ok := KindOf(t)
	if !ok {
		return ErrFrameType
	}
	m.Kind = kind
	rest, err := m.parseEnvelope(payload, tags)
	if err != nil {
		return err
	}
	if rest, err = m.parseTLVs(rest, tags); err != nil {
		return err
	}
	m.Foreign = rest[:len(rest):len(rest)]
	if kind == KindError {
		_, _, m.Transport = ParseTransportError(m.Foreign)
	}
	if opaque := tags.opaqueContent(); opaque != 0 {
		// CC-OPAQUE 4.2: the discriminator and the TLV come together or not at all.
		switch has := len(m.MediaType) > 0; {
		case m.Content == opaque && !has:
			return ErrMediaTypeMissing
		case m.Content != opaque && has:
			return ErrMediaTypeAmbiguous
		}
	}
	return nil
}

// parseEnvelope reads the envelope and returns what follows it.
func (m *Message) parseEnvelope(payload []byte, tags *Tags) (rest []byte, err error) {
	if len(payload) < 2 || wire.TLVType(binary.BigEndian.Uint16(payload)) != wire.TagBridgeEnvelope {
		return nil, ErrNoEnvelope // BRIDGE 4: it is required, and first
	}
	if len(payload) < wire.TLVHeaderLen {
		return nil, ErrEnvelopeTruncated
	}
	// A value that ends too early is read as far as it goes, for the sake of the
	// correlation id in it.
	end := wire.TLVHeaderLen + int(binary.BigEndian.Uint16(payload[2:]))
	v := payload[wire.TLVHeaderLen:min(end, len(payload))]
	if len(v) > 0 {
		m.Protocol = ProtocolID(v[0])
	}
	if len(v) < 5 {
		return nil, ErrEnvelopeTruncated
	}
	corrEnd := 5 + int(v[4])
	if len(v) < corrEnd {
		return nil, ErrEnvelopeTruncated
	}
	m.Corr = v[5:corrEnd:corrEnd]
	if end > len(payload) || len(v) < corrEnd+1 {
		return nil, ErrEnvelopeTruncated
	}
	methodEnd := corrEnd + 1 + int(v[corrEnd])
	switch {
	case len(v) < methodEnd:
		return nil, ErrEnvelopeTruncated
	case len(v) > methodEnd:
		return nil, ErrEnvelopeTrailing
	case Kind(v[1]) != m.Kind:
		return nil, ErrKindMismatch
	}
	m.Content, m.Flags = ContentType(v[2]), v[3]
	m.Method = v[corrEnd+1 : methodEnd : methodEnd]
	return payload[end:], m.checkEnvelope(tags)
}

// checkEnvelope holds the fields of an envelope to the rules that are the same
// for reading and for sending.
func (m *Message) checkEnvelope(tags *Tags) error {
	switch {
	case m.Protocol == 0:
		return ErrProtocolZero
	case m.Kind == KindNotify && len(m.Corr) != 0:
		return ErrCorrOnNotify // BRIDGE 5, 8: nothing to answer, so nothing to correlate
	case m.Kind != KindNotify && len(m.Corr) == 0:
		return ErrCorrMissing // BRIDGE 5
	case !utf8.Valid(m.Method):
		return ErrMethodUTF8
	case !m.Content.assigned() && (m.Content == 0 || m.Content != tags.opaqueContent()):
		return ErrContentType
	}
	return nil
}

// parseTLVs reads the TLVs behind the envelope and returns the foreign message.
func (m *Message) parseTLVs(rest []byte, tags *Tags) ([]byte, error) {
	var seen tlvs
	// All types that can follow start with a zero octet.
	for len(rest) >= 2 && rest[0] == 0 {
		typ := wire.TLVType(rest[1])
		tlv := tags.known(typ)
		if tlv&seen != 0 {
			break
		}
		t, n, err := wire.ConsumeTLV(rest)
		switch {
		case tlv == 0 && (err != nil || !skipped(m.Protocol, typ)):
			return rest, nil
		case err != nil:
			return nil, ErrTLVTruncated
		}
		if err := m.setTLV(tlv, t.Value); err != nil {
			return nil, err
		}
		seen |= tlv
		rest = rest[n:]
	}
	return rest, nil
}

// setTLV reads the value of a known TLV; that of an unknown one it ignores.
func (m *Message) setTLV(tlv tlvs, v []byte) (err error) {
	switch tlv {
	case tlvStream:
		m.HasStream = true
		m.Stream, err = parseStream(v)
	case tlvLabel:
		m.HasLabel = true
		m.Label, err = parseLabel(v)
	case tlvMediaType:
		if !validMediaType(v) {
			err = ErrMediaType
		}
		m.MediaType = v
	case tlvBinding:
		_, err = ParseBinding(v)
		m.Binding = v
	case tlvMetadata:
		if len(v) == 0 {
			err = ErrMetadataEmpty
		}
		m.Metadata = v
	}
	return err
}

func parseLabel(v []byte) (Label, error) {
	if len(v) < 2 {
		return Label{}, ErrLabelTruncated
	}
	switch n := 2 + int(v[1]); {
	case len(v) < n:
		return Label{}, ErrLabelTruncated
	case len(v) > n:
		return Label{}, ErrLabelTrailing
	case Effect(v[0]) > Destructive:
		return Label{}, ErrEffect
	}
	return Label{Effect: Effect(v[0]), Scope: v[2:]}, nil
}

func parseStream(v []byte) (StreamControl, error) {
	switch {
	case len(v) != streamLen:
		return StreamControl{}, ErrStreamLength
	case v[0] != streamVersion:
		return StreamControl{}, ErrStreamVersion
	case Control(v[1]) > ControlCancel:
		return StreamControl{}, ErrStreamControl
	}
	return StreamControl{
		Control: Control(v[1]),
		Flags:   v[2],
		EventID: EventID(binary.BigEndian.Uint64(v[3:])),
	}, nil
}

// has returns the TLVs that the message carries.
func (m *Message) has() tlvs {
	var set tlvs
	if m.HasStream {
		set |= tlvStream
	}
	if m.HasLabel {
		set |= tlvLabel
	}
	if len(m.MediaType) > 0 {
		set |= tlvMediaType
	}
	if len(m.Binding) > 0 {
		set |= tlvBinding
	}
	if len(m.Metadata) > 0 {
		set |= tlvMetadata
	}
	return set
}

// needsLabel reports whether a label must be made up for the foreign message to
// be found again: its start looks like the label that the message does not have.
func (m *Message) needsLabel() bool {
	return !m.HasLabel && len(m.Foreign) >= 2 &&
		wire.TLVType(binary.BigEndian.Uint16(m.Foreign)) == wire.TagSafetyLabel
}

// impliedEffect is the effect of a made-up label. On what asks for something it
// is what a missing label stands for (BRIDGE 7); replies have no effect.
func (m *Message) impliedEffect() Effect {
	if m.Kind.IsReply() {
		return ReadOnly
	}
	return Destructive
}

// ambiguous reports whether a receiver would take the start of the foreign
// message for one more TLV, a made-up label being settled by then (D9).
func (m *Message) ambiguous(tags *Tags) bool {
	f := m.Foreign
	if len(f) < 2 || f[0] != 0 {
		return false
	}
	typ := wire.TLVType(f[1])
	tlv := tags.known(typ)
	switch {
	case tlv == tlvLabel:
		return false // either it would be a second one, or the made-up one comes first
	case tlv != 0:
		return m.has()&tlv == 0
	case !skipped(m.Protocol, typ):
		return false
	}
	_, _, err := wire.ConsumeTLV(f)
	return err == nil
}

// check holds a message to be sent to everything that Parse demands.
func (m *Message) check(tags *Tags) error {
	switch {
	case !m.Kind.Valid():
		return ErrKind
	case len(m.Corr) > maxField:
		return ErrCorrTooLong
	case len(m.Method) > maxField:
		return ErrMethodTooLong
	}
	if err := m.checkEnvelope(tags); err != nil {
		return err
	}
	if m.HasStream && m.Stream.Control > ControlCancel {
		return ErrStreamControl
	}
	if m.HasLabel {
		switch {
		case m.Label.Effect > Destructive:
			return ErrEffect
		case len(m.Label.Scope) > maxField:
			return ErrScopeTooLong
		}
	}
	if err := m.checkConfigured(tags); err != nil {
		return err
	}
	_, _, transport := ParseTransportError(m.Foreign)
	switch {
	case m.Transport && (!transport || m.Kind != KindError):
		return ErrNotTransport
	case !m.Transport && transport && m.Kind == KindError:
		return ErrAmbiguous // D11: the agent's own error would pass for ours
	case m.ambiguous(tags):
		return ErrAmbiguous
	}
	return nil
}

// checkConfigured checks the TLVs whose numbers are configured.
func (m *Message) checkConfigured(tags *Tags) error {
	opaque := tags.opaqueContent()
	switch has := len(m.MediaType) > 0; {
	case has && opaque == 0:
		return ErrTagOff
	case has && m.Content != opaque:
		return ErrMediaTypeAmbiguous
	case !has && opaque != 0 && m.Content == opaque:
		return ErrMediaTypeMissing
	case has && len(m.MediaType) > wire.MaxTLVLen:
		return ErrValueTooLong
	case has && !validMediaType(m.MediaType):
		return ErrMediaType
	}
	if len(m.Binding) > 0 {
		if tags == nil || tags.DocumentBinding == 0 {
			return ErrTagOff
		}
		if _, err := ParseBinding(m.Binding); err != nil {
			return err
		}
	}
	if len(m.Metadata) > 0 {
		if tags == nil || tags.EdgeMetadata == 0 {
			return ErrTagOff
		}
		if len(m.Metadata) > wire.MaxTLVLen {
			return ErrValueTooLong
		}
	}
	return nil
}

// Check returns the error that Append and AppendPrefix would.
func (m *Message) Check(tags *Tags) error { return m.check(tags) }

// Append appends the message to dst in the one order we send. What it accepts,
// Parse with the same tags reads back as it was: the same fields and the same
// foreign octets. It returns dst unchanged with ErrAmbiguous where that cannot be
// had (D9, D11), with ErrTagOff where tags lack a number that the message needs,
// and with an error of the class ErrMalformed where the message breaks a rule.
//
// There is one addition: if the foreign octets start like a SafetyLabel and the
// message has none, it is sent with one (D9): destructive on a request or
// notification, as its absence would be read, and read-only on a reply. Whoever
// knows better sets a Label.
func (m *Message) Append(dst []byte, tags *Tags) ([]byte, error) {
	if err := m.check(tags); err != nil {
		return dst, err
	}
	return append(m.appendPrefix(slices.Grow(dst, m.Size()), tags), m.Foreign...), nil
}

// AppendPrefix appends everything in front of the foreign message, for callers
// who put its octets there themselves. Foreign must be set to them all the same:
// its start and length decide what AppendPrefix appends or refuses. The errors
// are Append's.
func (m *Message) AppendPrefix(dst []byte, tags *Tags) ([]byte, error) {
	if err := m.check(tags); err != nil {
		return dst, err
	}
	return m.appendPrefix(slices.Grow(dst, m.PrefixSize()), tags), nil
}

// Size returns exactly how many octets Append adds, if it adds any.
func (m *Message) Size() int { return m.PrefixSize() + len(m.Foreign) }

// PrefixSize returns exactly how many octets AppendPrefix adds, if it adds any.
func (m *Message) PrefixSize() int {
	n := wire.TLVHeaderLen + envelopeMin + len(m.Corr) + len(m.Method)
	if m.HasStream {
		n += wire.TLVHeaderLen + streamLen
	}
	if m.HasLabel {
		n += wire.TLVHeaderLen + 2 + len(m.Label.Scope)
	} else if m.needsLabel() {
		n += wire.TLVHeaderLen + 2
	}
	if len(m.MediaType) > 0 {
		n += wire.TLVHeaderLen + len(m.MediaType)
	}
	if len(m.Binding) > 0 {
		n += wire.TLVHeaderLen + len(m.Binding)
	}
	if len(m.Metadata) > 0 {
		n += wire.TLVHeaderLen + len(m.Metadata)
	}
	return n
}

func (m *Message) appendPrefix(dst []byte, tags *Tags) []byte {
	dst = wire.AppendTLVHeader(dst, wire.TagBridgeEnvelope, envelopeMin+len(m.Corr)+len(m.Method))
	dst = append(dst, byte(m.Protocol), byte(m.Kind), byte(m.Content), m.Flags, byte(len(m.Corr)))
	dst = append(dst, m.Corr...)
	dst = append(dst, byte(len(m.Method)))
	dst = append(dst, m.Method...)
	if m.HasStream {
		dst = wire.AppendTLVHeader(dst, wire.TagStreamControl, streamLen)
		dst = append(dst, streamVersion, byte(m.Stream.Control), m.Stream.Flags)
		dst = binary.BigEndian.AppendUint64(dst, uint64(m.Stream.EventID))
	}
	if len(m.MediaType) > 0 {
		dst = wire.AppendTLV(dst, tags.OpaqueContentType, m.MediaType)
	}
	if m.HasLabel {
		dst = appendLabel(dst, m.Label)
	} else if m.needsLabel() {
		dst = appendLabel(dst, Label{Effect: m.impliedEffect()})
	}
	if len(m.Binding) > 0 {
		dst = wire.AppendTLV(dst, tags.DocumentBinding, m.Binding)
	}
	if len(m.Metadata) > 0 {
		dst = wire.AppendTLV(dst, tags.EdgeMetadata, m.Metadata)
	}
	return dst
}

func appendLabel(dst []byte, l Label) []byte {
	dst = wire.AppendTLVHeader(dst, wire.TagSafetyLabel, 2+len(l.Scope))
	dst = append(dst, byte(l.Effect), byte(len(l.Scope)))
	return append(dst, l.Scope...)
}
