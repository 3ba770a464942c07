package control

import (
	"errors"

	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/cbor"
)

// HelloVersion is the version of the capability exchange that is spoken here,
// and the only one.
const HelloVersion = 1

// Bounds of a HELLO.
const (
	// MaxHelloLen is the longest payload that is read or written.
	MaxHelloLen = 4096
	// MaxChannels is how many different channels a HELLO may name, GREASE not
	// counted.
	MaxChannels = 64
	// FloorMaxMessage and FloorCredit are the least that a HELLO may allow,
	// since a peer uses that much before it has one (D3).
	FloorMaxMessage = wire.FloorFrameLen
	FloorCredit     = 1 << 20
)

// The keys of the HELLO map (HELLO 4) and of the map under keyParams (D3, D6,
// D22).
const (
	keyVersion   = 0
	keyProtocols = 1
	keyParams    = 2
	keyGrease    = 3

	paramMaxMessage   = 0
	paramChannels     = 1
	paramCredit       = 2
	paramAgent        = 3
	paramStreamCredit = 4
)

// The reasons for which a HELLO is refused, besides those of package cbor,
// which are wrapped. Each ends the association.
var (
	ErrHelloLen          = errors.New("control: HELLO longer than the limit")
	ErrHelloNegativeKey  = errors.New("control: HELLO with an unknown negative key")
	ErrHelloNoVersion    = errors.New("control: HELLO without a version")
	ErrHelloVersion      = errors.New("control: HELLO of a version below 1")
	ErrHelloNoProtocols  = errors.New("control: HELLO without a protocol list")
	ErrHelloProtocol     = errors.New("control: HELLO with protocol id 0 or one twice")
	ErrHelloChannel      = errors.New("control: HELLO names what is no channel")
	ErrHelloChannelCount = errors.New("control: HELLO names too many channels")
	ErrHelloMaxMessage   = errors.New("control: HELLO accepts less than a 1 MiB frame")
	ErrHelloCredit       = errors.New("control: HELLO gives less than 1 MiB of credit")
	ErrHelloStreamCredit = errors.New("control: HELLO gives less than 1 MiB of stream credit")
	ErrHelloAgent        = errors.New("control: HELLO with an invalid agent name")
)

// Hello is what a HELLO says (HELLO 4, D3). A parsed one shares nothing with
// the payload. A value with a Has flag is written only with the flag set. The
// zero value is an invalid HELLO.
type Hello struct {
	// Version is the highest version the sender speaks, at least 1.
	Version uint64
	// Protocols lists protocol ids, preferred first, each once. Reading passes
	// over 0 and what is no octet: other implementations may put channel
	// numbers here.
	Protocols []uint8

	// HasMaxMessage says that MaxMessage, the largest frame accepted, header
	// included, is present (params key 0).
	HasMaxMessage bool
	MaxMessage    uint64
	// HasChannels says that the channel list is present (params key 1). Reading
	// drops GREASE numbers and repetitions; writing takes GREASE as it is.
	HasChannels bool
	Channels    []wire.Channel
	// HasCredit says that Credit, the octets of the association's initial
	// credit, is present (params key 2, D6).
	HasCredit bool
	Credit    uint64
	// Agent is the agent wanted, "" for none (params key 3, D22).
	Agent string
	// HasStreamCredit says that StreamCredit, the octets of each stream's
	// initial credit, is present (params key 4, D6).
	HasStreamCredit bool
	StreamCredit    uint64

	// Grease is written as the array of values that mean nothing (key 3), if
	// there are any. Reading ignores that array.
	Grease []uint64
}

// reset empties h and keeps the room of its slices.
func (h *Hello) reset() {
	*h = Hello{Protocols: h.Protocols[:0], Channels: h.Channels[:0]}
}

// ParseHello reads the payload of a HELLO into h, whose slices it reuses. What
// h said before is gone, and after an error it says nothing.
//
// Keys from 0 up that are unknown are ignored, in the map and in its params;
// unknown negative keys are refused (HELLO 4). Besides Agent, and slices of h
// that are too small, nothing is allocated.
func ParseHello(h *Hello, payload []byte) error {
	h.reset()
	err := h.parse(payload)
	if err != nil {
		h.reset()
	}
	return err
}

func (h *Hello) parse(payload []byte) error {
	if len(payload) > MaxHelloLen {
		return ErrHelloLen
	}
	var hasVersion, hasProtocols bool
	m := cbor.OpenMap(payload)
	for m.Next() {
		switch key := m.Key(); key {
		case keyVersion:
			h.Version = m.Uint()
			hasVersion = true
			if m.Err() == nil && h.Version < HelloVersion {
				return ErrHelloVersion
			}
		case keyProtocols:
			hasProtocols = true
			a := m.Array()
			if err := h.parseProtocols(&a); err != nil {
				return err
			}
		case keyParams:
			p := m.Map()
			if err := h.parseParams(&p); err != nil {
				return err
			}
		default:
			if key < 0 {
				return ErrHelloNegativeKey
			}
		}
	}
	switch {
	case m.Err() != nil:
		return badCBOR(m.Err())
	case len(m.Rest()) != 0:
		return badCBOR(cbor.ErrTrailing)
	case !hasVersion:
		return ErrHelloNoVersion
	case !hasProtocols:
		return ErrHelloNoProtocols
	}
	return nil
}

func (h *Hello) parseProtocols(a *cbor.ArrayReader) error {
	var seen [256]bool
	seen[0] = true // not assignable
	for a.Next() {
		id := a.Uint()
		if a.Err() == nil && id < uint64(len(seen)) && !seen[id] {
			seen[id] = true
			h.Protocols = append(h.Protocols, uint8(id))
		}
	}
	return badCBOR(a.Err())
}

func (h *Hello) parseParams(p *cbor.MapReader) error {
	for p.Next() {
		switch key := p.Key(); key {
		case paramMaxMessage:
			h.HasMaxMessage, h.MaxMessage = true, p.Uint()
			if p.Err() == nil && h.MaxMessage < FloorMaxMessage {
				return ErrHelloMaxMessage
			}
		case paramChannels:
			h.HasChannels = true
			a := p.Array()
			if err := h.parseChannels(&a); err != nil {
				return err
			}
		case paramCredit:
			h.HasCredit, h.Credit = true, p.Uint()
			if p.Err() == nil && h.Credit < FloorCredit {
				return ErrHelloCredit
			}
		case paramAgent:
			name := p.Text()
			if p.Err() != nil {
				break
			}
			if !ValidAgentName(name) {
				return ErrHelloAgent
			}
			h.Agent = string(name)
		case paramStreamCredit:
			h.HasStreamCredit, h.StreamCredit = true, p.Uint()
			if p.Err() == nil && h.StreamCredit < FloorCredit {
				return ErrHelloStreamCredit
			}
		default:
			if key < 0 {
				return ErrHelloNegativeKey
			}
		}
	}
	return badCBOR(p.Err())
}

func (h *Hello) parseChannels(a *cbor.ArrayReader) error {
	for a.Next() {
		id := a.Uint()
		if a.Err() != nil {
			break
		}
		if id >= uint64(wire.ChannelReserved) {
			return ErrHelloChannel
		}
		ch := wire.Channel(id)
		if ch.IsGREASE() || h.HasChannel(ch) {
			continue
		}
		if len(h.Channels) == MaxChannels {
			return ErrHelloChannelCount
		}
		h.Channels = append(h.Channels, ch)
	}
	return badCBOR(a.Err())
}

// HasChannel reports whether the channel list names ch.
func (h *Hello) HasChannel(ch wire.Channel) bool {
	for _, c := range h.Channels {
		if c == ch {
			return true
		}
	}
	return false
}

// check refuses what ParseHello would refuse or read as something else.
func (h *Hello) check() error {
	if h.Version < HelloVersion {
		return ErrHelloVersion
	}
	var seen [256]bool
	seen[0] = true
	for _, id := range h.Protocols {
		if seen[id] {
			return ErrHelloProtocol
		}
		seen[id] = true
	}
	counted := 0
	for _, ch := range h.Channels {
		switch {
		case ch == wire.ChannelReserved:
			return ErrHelloChannel
		case !ch.IsGREASE():
			counted++
		}
	}
	switch {
	case counted > MaxChannels:
		return ErrHelloChannelCount
	case h.HasMaxMessage && h.MaxMessage < FloorMaxMessage:
		return ErrHelloMaxMessage
	case h.HasCredit && h.Credit < FloorCredit:
		return ErrHelloCredit
	case h.HasStreamCredit && h.StreamCredit < FloorCredit:
		return ErrHelloStreamCredit
	case h.Agent != "" && !ValidAgentName(h.Agent):
		return ErrHelloAgent
	}
	return nil
}

// params returns the number of entries of the params map.
func (h *Hello) params() int {
	n := 0
	for _, has := range [...]bool{h.HasMaxMessage, h.HasChannels, h.HasCredit, h.Agent != "", h.HasStreamCredit} {
		if has {
			n++
		}
	}
	return n
}

// AppendHello appends the payload of a HELLO to dst. It refuses what ParseHello
// would refuse, with the same errors, and what it would not read back, and
// then returns dst as it was.
func AppendHello(dst []byte, h *Hello) ([]byte, error) {
	if err := h.check(); err != nil {
		return dst, err
	}
	start := len(dst)
	pairs, params := 2, h.params()
	if params > 0 {
		pairs++
	}
	if len(h.Grease) > 0 {
		pairs++
	}
	dst = cbor.AppendMap(dst, pairs)
	dst = cbor.AppendUint(dst, keyVersion)
	dst = cbor.AppendUint(dst, h.Version)
	dst = cbor.AppendUint(dst, keyProtocols)
	dst = cbor.AppendArray(dst, len(h.Protocols))
	for _, id := range h.Protocols {
		dst = cbor.AppendUint(dst, uint64(id))
	}
	if params > 0 {
		dst = cbor.AppendUint(dst, keyParams)
		dst = h.appendParams(cbor.AppendMap(dst, params))
	}
	if len(h.Grease) > 0 {
		dst = cbor.AppendUint(dst, keyGrease)
		dst = cbor.AppendArray(dst, len(h.Grease))
		for _, v := range h.Grease {
			dst = cbor.AppendUint(dst, v)
		}
	}
	if len(dst)-start > MaxHelloLen {
		return dst[:start], ErrHelloLen
	}
	return dst, nil
}

func (h *Hello) appendParams(dst []byte) []byte {
	if h.HasMaxMessage {
		dst = cbor.AppendUint(dst, paramMaxMessage)
		dst = cbor.AppendUint(dst, h.MaxMessage)
	}
	if h.HasChannels {
		dst = cbor.AppendUint(dst, paramChannels)
		dst = cbor.AppendArray(dst, len(h.Channels))
		for _, ch := range h.Channels {
			dst = cbor.AppendUint(dst, uint64(ch))
		}
	}
	if h.HasCredit {
		dst = cbor.AppendUint(dst, paramCredit)
		dst = cbor.AppendUint(dst, h.Credit)
	}
	if h.Agent != "" {
		dst = cbor.AppendUint(dst, paramAgent)
		dst = cbor.AppendText(dst, h.Agent)
	}
	if h.HasStreamCredit {
		dst = cbor.AppendUint(dst, paramStreamCredit)
		dst = cbor.AppendUint(dst, h.StreamCredit)
	}
	return dst
}

// MaxAgentNameLen is the longest agent name.
const MaxAgentNameLen = 64

// ValidAgentName reports whether name may name an agent (D22): 1 to 64 of the
// characters a-z, 0-9, dot, underscore and hyphen.
func ValidAgentName[T ~string | ~[]byte](name T) bool {
	if len(name) == 0 || len(name) > MaxAgentNameLen {
		return false
	}
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// AppendUsable appends to dst the protocol ids that both peers carry, in the
// order of the one that initiated the association (HELLO 5).
func AppendUsable(dst, initiator, responder []uint8) []uint8 {
	var carried [256]bool
	for _, id := range responder {
		carried[id] = true
	}
	for _, id := range initiator {
		if carried[id] {
			carried[id] = false // once
			dst = append(dst, id)
		}
	}
	return dst
}
