package disco

import (
	"bytes"
	"unicode/utf8"

	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/cbor"
)

// The keys of a message (DISC 4.2, 6, 7, 9).
const (
	keyFrameKind = 0
	keyCorr      = 1

	keyKinds       = 2 // QUERY, SUBSCRIBE
	keyProtocolIDs = 3
	keyNamePrefix  = 4
	keyTolerant    = 5
	keyCursorEcho  = 6

	keyRecords  = 2 // RESULT, ANNOUNCE
	keyComplete = 3 // RESULT
	keyCursor   = 4 // RESULT

	keyAdded     = 2 // UPDATE
	keyWithdrawn = 3 // UPDATE

	keyCode   = 2 // ERROR
	keyReason = 3 // ERROR
)

// Filter narrows a QUERY or a SUBSCRIBE: a record has to pass all that is
// present. The zero value lets every record through.
type Filter struct {
	Kinds       List   // absent: all kinds
	ProtocolIDs List   // of protocol, tool and agent records
	NamePrefix  []byte // UTF-8, of tools' names and agents' ids; nil when absent
	// Tolerant asks for what can be represented rather than for all or an
	// error.
	Tolerant bool
	// Cursor continues an earlier, incomplete RESULT; nil when absent.
	Cursor []byte
}

// Match reports whether the record passes the filter. Carriage classes pass a
// filter on protocol ids, and protocols and carriage classes one on names,
// since they have none (DISC 6.1).
func (f *Filter) Match(r *Record) bool {
	if f.Kinds.Present() && !f.Kinds.Contains(uint64(r.Kind)) {
		return false
	}
	if f.ProtocolIDs.Present() && r.Kind != KindClass {
		named := false
		for id := range f.ProtocolIDs.All() {
			if r.UsesProtocol(id) {
				named = true
				break
			}
		}
		if !named {
			return false
		}
	}
	switch r.Kind {
	case KindTool:
		return bytes.HasPrefix(r.Tool.Name, f.NamePrefix)
	case KindAgent:
		return bytes.HasPrefix(r.Agent.AgentID, f.NamePrefix)
	}
	return true
}

// Message is the payload of a Discovery frame. In a parsed one all slices and
// lists are views of the payload. Which fields are in use follows from Type.
type Message struct {
	Type wire.FrameType
	Corr []byte // 1 to 64 octets; none on ANNOUNCE

	Filter Filter // QUERY, SUBSCRIBE

	// Records are what RESULT and ANNOUNCE bring and what UPDATE adds or
	// replaces.
	Records Records
	// UnknownKinds is how many of Records have a kind that is unknown here; see
	// CheckKinds.
	UnknownKinds int
	// Complete says that a RESULT ends its set. If not, Cursor asks for more.
	Complete bool
	Cursor   []byte // RESULT; nil when absent
	// Withdrawn are the records that an UPDATE takes away.
	Withdrawn IDs

	Code   Code   // ERROR
	Reason []byte // ERROR: UTF-8, advisory; nil when absent
}

// Parse reads the payload of a Discovery frame of type t into m. Every error is
// ErrMalformedPayload, ErrKindMismatch, or, for a filter list of more than
// MaxFilterLen entries, ErrFilterUnsupported; CodeOf gives the code. After an error
// m.Type is t and m.Corr is the correlation id if one could be read, so that a
// faulty request can be answered (see IsRequest); everything else is void.
//
// Keys from 0 up that are unknown are ignored in all maps, negative ones
// refused (DISC 4.1). Records of unknown kinds are counted; see CheckKinds.
func Parse(m *Message, t wire.FrameType, payload []byte) error {
	*m = Message{Type: t}
	if err := m.parse(payload); err != nil {
		*m = Message{Type: t, Corr: m.Corr}
		return err
	}
	return nil
}

func (m *Message) parse(payload []byte) error {
	if m.Type < TypeQuery || m.Type > TypeUnsubscribe {
		return FaultFrameType
	}
	if len(payload) > MaxPayloadLen {
		return FaultTooLong
	}
	var has fields
	var kind uint64
	p := cbor.OpenMap(payload)
	for p.Next() {
		var err error
		switch key := p.Key(); {
		case key < 0:
			err = FaultNegativeKey
		case key == keyFrameKind:
			has.kind, kind = true, p.Uint()
		case key == keyCorr:
			has.corr = true
			m.Corr, err = readCorr(&p)
		case has.kind && kind != uint64(m.Type):
			// Another kind's fields, of which only the encoding is checked: what
			// is wrong here is the kind.
		default:
			err = m.parseField(key, &p, &has)
		}
		if err != nil {
			return err
		}
	}
	if p.Err() != nil {
		return badCBOR(p.Err())
	}
	if len(p.Rest()) != 0 {
		return badCBOR(cbor.ErrTrailing)
	}
	return m.checkPresent(&has, kind)
}

func readCorr(p *cbor.MapReader) ([]byte, error) {
	corr := p.Bytes()
	if p.Err() == nil && !validLen(corr, MaxCorrLen) {
		return nil, FaultCorrLen
	}
	return corr, nil
}

// fields notes which fields a payload brought, where their values can't tell.
type fields struct{ kind, corr, complete, code bool }

// parseField reads a field that the message's type gives a meaning to and
// passes over the others.
func (m *Message) parseField(key int64, p *cbor.MapReader, has *fields) (err error) {
	switch m.Type {
	case TypeQuery, TypeSubscribe:
		switch key {
		case keyKinds:
			m.Filter.Kinds, err = readFilterList(p)
		case keyProtocolIDs:
			m.Filter.ProtocolIDs, err = readFilterList(p)
		case keyNamePrefix:
			m.Filter.NamePrefix = p.Text()
		case keyTolerant:
			m.Filter.Tolerant = p.Bool()
		case keyCursorEcho:
			m.Filter.Cursor = p.Bytes()
		}
	case TypeResult:
		switch key {
		case keyRecords:
			m.Records, m.UnknownKinds, err = readRecords(p)
		case keyComplete:
			has.complete, m.Complete = true, p.Bool()
		case keyCursor:
			m.Cursor = p.Bytes()
		}
	case TypeAnnounce:
		if key == keyRecords {
			m.Records, m.UnknownKinds, err = readRecords(p)
		}
	case TypeUpdate:
		switch key {
		case keyAdded:
			m.Records, m.UnknownKinds, err = readRecords(p)
		case keyWithdrawn:
			m.Withdrawn, err = readIDs(p)
		}
	case TypeError:
		switch key {
		case keyCode:
			has.code, m.Code = true, Code(p.Uint())
		case keyReason:
			m.Reason = p.Text()
		}
	}
	return err
}

// readFilterList reads a list that each record is held against; its length is
// bounded so that a peer cannot make that expensive.
func readFilterList(p *cbor.MapReader) (List, error) {
	list, err := readList(p)
	if err == nil && list.Len() > MaxFilterLen {
		return List{}, ErrFilterUnsupported
	}
	return list, err
}

// checkPresent checks that all is there that the type needs.
func (m *Message) checkPresent(has *fields, kind uint64) error {
	switch {
	case !has.kind:
		return FaultNoFrameKind
	case kind != uint64(m.Type):
		return ErrKindMismatch
	case m.Type == TypeAnnounce && has.corr:
		return FaultCorr
	case m.Type != TypeAnnounce && !has.corr:
		return FaultNoCorr
	case m.Type == TypeResult && !has.complete:
		return FaultNoComplete
	case m.Type == TypeError && !has.code:
		return FaultNoCode
	}
	return m.checkLists()
}

// checkLists checks what a message must bring to mean anything (DISC 6.2, 7).
func (m *Message) checkLists() error {
	switch m.Type {
	case TypeResult:
		if !m.Records.Present() {
			return FaultNoRecords
		}
		if !m.Complete && m.Cursor == nil {
			return FaultNoCursor
		}
	case TypeAnnounce:
		if !m.Records.Present() {
			return FaultNoRecords
		}
	case TypeUpdate:
		if m.Records.Len() == 0 && m.Withdrawn.Len() == 0 {
			return FaultEmptyUpdate
		}
	}
	return nil
}

// CheckKinds refuses a message with records of unknown kinds: the error is
// ErrUnknownRecordKind. It is for every message but the answer to a tolerant
// request, whose unknown records are passed over instead (DISC 5, 6.3), as
// Records.All does.
func (m *Message) CheckKinds() error {
	if m.UnknownKinds > 0 {
		return ErrUnknownRecordKind
	}
	return nil
}

// PeerError returns what an ERROR says as an error of its own, which keeps a
// copy of the reason.
func (m *Message) PeerError() *PeerError {
	return &PeerError{Code: m.Code, Reason: string(m.Reason)}
}

// Append appends the payload to dst. It refuses what Parse would, with the same
// errors, and returns dst as it was. Records and lists are written as they are
// encoded, so that a parsed message is passed on unchanged but for fields that
// are unknown here.
func (m *Message) Append(dst []byte) ([]byte, error) {
	if err := m.check(); err != nil {
		return dst, err
	}
	start := len(dst)
	dst = cbor.AppendMap(dst, m.pairs())
	dst = cbor.AppendUint(cbor.AppendUint(dst, keyFrameKind), uint64(m.Type))
	if m.Type != TypeAnnounce {
		dst = cbor.AppendBytes(cbor.AppendUint(dst, keyCorr), m.Corr)
	}
	switch m.Type {
	case TypeQuery, TypeSubscribe:
		dst = m.Filter.append(dst)
	case TypeResult:
		dst = appendRaw(dst, keyRecords, m.Records.raw)
		dst = cbor.AppendBool(cbor.AppendUint(dst, keyComplete), m.Complete)
		if m.Cursor != nil {
			dst = cbor.AppendBytes(cbor.AppendUint(dst, keyCursor), m.Cursor)
		}
	case TypeAnnounce:
		dst = appendRaw(dst, keyRecords, m.Records.raw)
	case TypeUpdate:
		dst = appendRaw(dst, keyAdded, m.Records.raw)
		dst = appendRaw(dst, keyWithdrawn, m.Withdrawn.raw)
	case TypeError:
		dst = cbor.AppendUint(cbor.AppendUint(dst, keyCode), uint64(m.Code))
		if m.Reason != nil {
			dst = cbor.AppendText(cbor.AppendUint(dst, keyReason), m.Reason)
		}
	}
	if len(dst)-start > MaxPayloadLen {
		return dst[:start], FaultTooLong
	}
	return dst, nil
}

func (m *Message) check() error {
	switch {
	case m.Type < TypeQuery || m.Type > TypeUnsubscribe:
		return FaultFrameType
	case m.Type == TypeAnnounce && len(m.Corr) != 0:
		return FaultCorr
	case m.Type != TypeAnnounce && !validLen(m.Corr, MaxCorrLen):
		return FaultCorrLen
	case !utf8.Valid(m.Filter.NamePrefix), !utf8.Valid(m.Reason):
		return FaultNotUTF8
	case m.Filter.Kinds.Len() > MaxFilterLen, m.Filter.ProtocolIDs.Len() > MaxFilterLen:
		return ErrFilterUnsupported
	}
	return m.checkLists()
}

// pairs returns the number of pairs that Append writes.
func (m *Message) pairs() int {
	f := &m.Filter
	switch m.Type {
	case TypeQuery, TypeSubscribe:
		return 2 + count(f.Kinds.Present(), f.ProtocolIDs.Present(), f.NamePrefix != nil, f.Tolerant, f.Cursor != nil)
	case TypeResult:
		return 4 + count(m.Cursor != nil)
	case TypeUpdate:
		return 2 + count(m.Records.Present(), m.Withdrawn.Present())
	case TypeError:
		return 3 + count(m.Reason != nil)
	}
	return 2 // ANNOUNCE: kind, records; UNSUBSCRIBE: kind, corr
}

func (f *Filter) append(dst []byte) []byte {
	dst = appendRaw(dst, keyKinds, f.Kinds.raw)
	dst = appendRaw(dst, keyProtocolIDs, f.ProtocolIDs.raw)
	if f.NamePrefix != nil {
		dst = cbor.AppendText(cbor.AppendUint(dst, keyNamePrefix), f.NamePrefix)
	}
	if f.Tolerant { // false is the default and stays out
		dst = cbor.AppendBool(cbor.AppendUint(dst, keyTolerant), true)
	}
	if f.Cursor != nil {
		dst = cbor.AppendBytes(cbor.AppendUint(dst, keyCursorEcho), f.Cursor)
	}
	return dst
}
