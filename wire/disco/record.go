package disco

import (
	"iter"
	"unicode/utf8"

	"github.com/trestle-npamp/trestle/wire/cbor"
)

// The keys of a record (DISC 5) and of the four bodies (DISC 5.1 to 5.4).
const (
	keyRecordID = 0
	keyKind     = 1
	keyRevision = 2
	keyLabel    = 3
	keyBody     = 4

	keyProtocolID           = 0
	keyProtocolClass        = 1
	keyProtocolChannels     = 2
	keyProtocolContentTypes = 3
	keyProtocolMethods      = 4

	keyClass             = 0
	keyClassContentTypes = 1

	keyToolName       = 0
	keyToolProtocolID = 1
	keyToolEffect     = 2
	keyToolSchemaRef  = 3

	keyAgentID        = 0
	keyAgentProtocols = 1
	keyAgentTools     = 2
)

// Record is one advertisement. In a parsed one all slices are views. A record
// with a greater revision replaces the one with the same ID; all of them end
// with the association. It is a claim of the peer, not a permission.
//
// Of the four bodies only the one that Kind names is in use; under a kind that
// is unknown there is none.
type Record struct {
	ID       []byte // 1 to 32 octets
	Kind     Kind
	Revision uint64
	Label    []byte // UTF-8, advisory; nil when absent

	Protocol ProtocolBody
	Class    ClassBody
	Tool     ToolBody
	Agent    AgentBody
}

// ProtocolBody is the body of a KindProtocol record: a protocol that the peer
// carries.
type ProtocolBody struct {
	ProtocolID   uint8
	Class        Class
	Channels     List // channel numbers; absent: the Bridge channel
	ContentTypes List
	Methods      Texts
}

// ClassBody is the body of a KindClass record: a carriage class that the peer
// implements for any protocol.
type ClassBody struct {
	Class        Class
	ContentTypes List
}

// ToolBody is the body of a KindTool record.
type ToolBody struct {
	Name       []byte // UTF-8
	ProtocolID uint8
	// HasEffect says that Effect, by the SafetyLabel's numbers 0 to 3, is
	// present. Absence never means read-only.
	HasEffect bool
	Effect    uint8
	SchemaRef []byte // UTF-8, nil when absent
}

// AgentBody is the body of a KindAgent record.
type AgentBody struct {
	AgentID   []byte // 1 to 64 octets
	Protocols List   // protocol ids, one at least
	Tools     IDs    // ids of tool records; one without its record leads nowhere
}

// UsesProtocol reports whether the record names the protocol id; a carriage
// class names none.
func (r *Record) UsesProtocol(id uint64) bool {
	switch r.Kind {
	case KindProtocol:
		return uint64(r.Protocol.ProtocolID) == id
	case KindTool:
		return uint64(r.Tool.ProtocolID) == id
	case KindAgent:
		return r.Agent.Protocols.Contains(id)
	}
	return false
}

// parseRecord reads one encoded record.
func parseRecord(r *Record, raw []byte) error {
	*r = Record{}
	var hasKind, hasRevision bool
	var body []byte
	m := cbor.OpenMap(raw)
	for m.Next() {
		switch key := m.Key(); key {
		case keyRecordID:
			r.ID = m.Bytes()
			if m.Err() == nil && !validLen(r.ID, MaxRecordIDLen) {
				return FaultRecordIDLen
			}
		case keyKind:
			hasKind, r.Kind = true, Kind(m.Uint())
		case keyRevision:
			hasRevision, r.Revision = true, m.Uint()
		case keyLabel:
			r.Label = m.Text()
		case keyBody:
			body = m.Raw()
		default:
			if key < 0 {
				return FaultNegativeKey
			}
		}
	}
	switch {
	case m.Err() != nil:
		return badCBOR(m.Err())
	case r.ID == nil:
		return FaultNoRecordID
	case !hasKind:
		return FaultNoRecordKind
	case !hasRevision:
		return FaultNoRevision
	case body == nil:
		return FaultNoBody
	}
	b := cbor.OpenMap(body)
	switch r.Kind {
	case KindProtocol:
		return r.Protocol.parse(&b)
	case KindClass:
		return r.Class.parse(&b)
	case KindTool:
		return r.Tool.parse(&b)
	case KindAgent:
		return r.Agent.parse(&b)
	}
	return badCBOR(b.Err()) // of an unknown kind only that it is a map
}

func (p *ProtocolBody) parse(m *cbor.MapReader) error {
	var hasID, hasClass bool
	for m.Next() {
		var err error
		switch key := m.Key(); key {
		case keyProtocolID:
			hasID = true
			p.ProtocolID, err = readProtocolID(m)
		case keyProtocolClass:
			hasClass, p.Class = true, Class(m.Uint())
		case keyProtocolChannels:
			p.Channels, err = readList(m)
		case keyProtocolContentTypes:
			p.ContentTypes, err = readList(m)
		case keyProtocolMethods:
			p.Methods, err = readTexts(m)
		default:
			err = checkKey(key)
		}
		if err != nil {
			return err
		}
	}
	switch {
	case m.Err() != nil:
		return badCBOR(m.Err())
	case !hasID:
		return FaultNoProtocolID
	case !hasClass:
		return FaultNoClass
	}
	return nil
}

func (c *ClassBody) parse(m *cbor.MapReader) error {
	hasClass := false
	for m.Next() {
		var err error
		switch key := m.Key(); key {
		case keyClass:
			hasClass, c.Class = true, Class(m.Uint())
		case keyClassContentTypes:
			c.ContentTypes, err = readList(m)
		default:
			err = checkKey(key)
		}
		if err != nil {
			return err
		}
	}
	switch {
	case m.Err() != nil:
		return badCBOR(m.Err())
	case !hasClass:
		return FaultNoClass
	}
	return nil
}

func (t *ToolBody) parse(m *cbor.MapReader) error {
	hasID := false
	for m.Next() {
		var err error
		switch key := m.Key(); key {
		case keyToolName:
			t.Name = m.Text()
		case keyToolProtocolID:
			hasID = true
			t.ProtocolID, err = readProtocolID(m)
		case keyToolEffect:
			effect := m.Uint()
			if effect > maxEffect {
				return FaultEffect
			}
			t.HasEffect, t.Effect = true, uint8(effect)
		case keyToolSchemaRef:
			t.SchemaRef = m.Text()
		default:
			err = checkKey(key)
		}
		if err != nil {
			return err
		}
	}
	switch {
	case m.Err() != nil:
		return badCBOR(m.Err())
	case t.Name == nil:
		return FaultNoName
	case !hasID:
		return FaultNoProtocolID
	}
	return nil
}

func (a *AgentBody) parse(m *cbor.MapReader) error {
	for m.Next() {
		var err error
		switch key := m.Key(); key {
		case keyAgentID:
			a.AgentID = m.Bytes()
			if m.Err() == nil && !validLen(a.AgentID, MaxAgentIDLen) {
				return FaultAgentIDLen
			}
		case keyAgentProtocols:
			a.Protocols, err = readList(m)
		case keyAgentTools:
			a.Tools, err = readIDs(m)
		default:
			err = checkKey(key)
		}
		if err != nil {
			return err
		}
	}
	switch {
	case m.Err() != nil:
		return badCBOR(m.Err())
	case a.AgentID == nil:
		return FaultNoAgentID
	case a.Protocols.Len() == 0:
		return FaultNoProtocols
	}
	return nil
}

const (
	maxEffect     = 3
	maxProtocolID = 255
)

// checkKey is for a key that the map's reader does not know.
func checkKey(key int64) error {
	if key < 0 {
		return FaultNegativeKey
	}
	return nil
}

func readProtocolID(m *cbor.MapReader) (uint8, error) {
	id := m.Uint()
	if id > maxProtocolID {
		return 0, FaultProtocolID
	}
	return uint8(id), nil
}

func readList(m *cbor.MapReader) (List, error) {
	raw := m.Raw()
	if m.Err() != nil {
		return List{}, badCBOR(m.Err())
	}
	a := cbor.OpenArray(raw)
	for a.Next() {
		a.Uint()
	}
	if a.Err() != nil {
		return List{}, badCBOR(a.Err())
	}
	return List{raw}, nil
}

func readTexts(m *cbor.MapReader) (Texts, error) {
	raw := m.Raw()
	if m.Err() != nil {
		return Texts{}, badCBOR(m.Err())
	}
	a := cbor.OpenArray(raw)
	for a.Next() {
		a.Text()
	}
	if a.Err() != nil {
		return Texts{}, badCBOR(a.Err())
	}
	return Texts{raw}, nil
}

func readIDs(m *cbor.MapReader) (IDs, error) {
	raw := m.Raw()
	if m.Err() != nil {
		return IDs{}, badCBOR(m.Err())
	}
	a := cbor.OpenArray(raw)
	if a.Len() > MaxRecords {
		return IDs{}, FaultTooMany
	}
	for a.Next() {
		if id := a.Bytes(); a.Err() == nil && !validLen(id, MaxRecordIDLen) {
			return IDs{}, FaultRecordIDLen
		}
	}
	if a.Err() != nil {
		return IDs{}, badCBOR(a.Err())
	}
	return IDs{raw}, nil
}

// Records is an array of records in its encoded form; every record in it has
// been checked. The zero value is an absent array.
type Records struct{ raw []byte }

// readRecords takes the value as an array of records and checks each. Records
// of unknown kinds are counted, not refused: whether they may be passed over
// depends on the request that they answer.
func readRecords(m *cbor.MapReader) (list Records, unknown int, err error) {
	raw := m.Raw()
	if m.Err() != nil {
		return Records{}, 0, badCBOR(m.Err())
	}
	var r Record
	a := cbor.OpenArray(raw)
	if a.Len() > MaxRecords {
		return Records{}, 0, FaultTooMany
	}
	for a.Next() {
		one := a.Raw()
		if a.Err() != nil {
			break
		}
		if err := parseRecord(&r, one); err != nil {
			return Records{}, 0, err
		}
		if !r.Kind.Known() {
			unknown++
		}
	}
	if a.Err() != nil {
		return Records{}, 0, badCBOR(a.Err())
	}
	return Records{raw}, unknown, nil
}

// Present reports whether there is an array at all.
func (l Records) Present() bool { return l.raw != nil }

// Len returns the number of records, those of unknown kinds included.
func (l Records) Len() int { return arrayLen(l.raw) }

// All yields the records of known kinds in order. The record that it yields is
// one that the iteration reuses: what is kept of it must be copied. It costs one
// allocation at most, for that record, however many there are.
func (l Records) All() iter.Seq[*Record] {
	return func(yield func(*Record) bool) {
		var r Record
		a := cbor.OpenArray(l.raw)
		for a.Next() {
			one := a.Raw()
			if a.Err() != nil || parseRecord(&r, one) != nil {
				return
			}
			if r.Kind.Known() && !yield(&r) {
				return
			}
		}
	}
}

// AppendRecords encodes records to the end of dst and returns the list, whose
// octets are those appended, and the longer dst. On a record that a peer would
// refuse the error says why and dst comes back as it was.
func AppendRecords(dst []byte, records ...Record) (Records, []byte, error) {
	if len(records) > MaxRecords {
		return Records{}, dst, FaultTooMany
	}
	start := len(dst)
	out := cbor.AppendArray(dst, len(records))
	for i := range records {
		var err error
		if out, err = appendRecord(out, &records[i]); err != nil {
			return Records{}, dst, err
		}
	}
	return Records{out[start:len(out):len(out)]}, out, nil
}

func appendRecord(dst []byte, r *Record) ([]byte, error) {
	if !validLen(r.ID, MaxRecordIDLen) {
		return dst, FaultRecordIDLen
	}
	if !r.Kind.Known() {
		return dst, ErrUnknownRecordKind
	}
	if !utf8.Valid(r.Label) {
		return dst, FaultNotUTF8
	}
	dst = cbor.AppendMap(dst, 4+count(r.Label != nil))
	dst = cbor.AppendBytes(cbor.AppendUint(dst, keyRecordID), r.ID)
	dst = cbor.AppendUint(cbor.AppendUint(dst, keyKind), uint64(r.Kind))
	dst = cbor.AppendUint(cbor.AppendUint(dst, keyRevision), r.Revision)
	if r.Label != nil {
		dst = cbor.AppendText(cbor.AppendUint(dst, keyLabel), r.Label)
	}
	dst = cbor.AppendUint(dst, keyBody)
	switch r.Kind {
	case KindProtocol:
		return r.Protocol.append(dst), nil
	case KindClass:
		return r.Class.append(dst), nil
	case KindTool:
		return r.Tool.append(dst)
	}
	return r.Agent.append(dst)
}

func (p *ProtocolBody) append(dst []byte) []byte {
	dst = cbor.AppendMap(dst, 2+count(p.Channels.Present(), p.ContentTypes.Present(), p.Methods.Present()))
	dst = cbor.AppendUint(cbor.AppendUint(dst, keyProtocolID), uint64(p.ProtocolID))
	dst = cbor.AppendUint(cbor.AppendUint(dst, keyProtocolClass), uint64(p.Class))
	dst = appendRaw(dst, keyProtocolChannels, p.Channels.raw)
	dst = appendRaw(dst, keyProtocolContentTypes, p.ContentTypes.raw)
	return appendRaw(dst, keyProtocolMethods, p.Methods.raw)
}

func (c *ClassBody) append(dst []byte) []byte {
	dst = cbor.AppendMap(dst, 1+count(c.ContentTypes.Present()))
	dst = cbor.AppendUint(cbor.AppendUint(dst, keyClass), uint64(c.Class))
	return appendRaw(dst, keyClassContentTypes, c.ContentTypes.raw)
}

func (t *ToolBody) append(dst []byte) ([]byte, error) {
	switch {
	case !utf8.Valid(t.Name), !utf8.Valid(t.SchemaRef):
		return dst, FaultNotUTF8
	case t.HasEffect && t.Effect > maxEffect:
		return dst, FaultEffect
	}
	dst = cbor.AppendMap(dst, 2+count(t.HasEffect, t.SchemaRef != nil))
	dst = cbor.AppendText(cbor.AppendUint(dst, keyToolName), t.Name)
	dst = cbor.AppendUint(cbor.AppendUint(dst, keyToolProtocolID), uint64(t.ProtocolID))
	if t.HasEffect {
		dst = cbor.AppendUint(cbor.AppendUint(dst, keyToolEffect), uint64(t.Effect))
	}
	if t.SchemaRef != nil {
		dst = cbor.AppendText(cbor.AppendUint(dst, keyToolSchemaRef), t.SchemaRef)
	}
	return dst, nil
}

func (a *AgentBody) append(dst []byte) ([]byte, error) {
	switch {
	case !validLen(a.AgentID, MaxAgentIDLen):
		return dst, FaultAgentIDLen
	case a.Protocols.Len() == 0:
		return dst, FaultNoProtocols
	}
	dst = cbor.AppendMap(dst, 2+count(a.Tools.Present()))
	dst = cbor.AppendBytes(cbor.AppendUint(dst, keyAgentID), a.AgentID)
	dst = appendRaw(dst, keyAgentProtocols, a.Protocols.raw)
	return appendRaw(dst, keyAgentTools, a.Tools.raw), nil
}

// appendRaw appends a pair whose value is encoded already, or nothing for an
// absent one.
func appendRaw(dst []byte, key uint64, raw []byte) []byte {
	if raw == nil {
		return dst
	}
	return append(cbor.AppendUint(dst, key), raw...)
}

// count returns how many of the conditions hold.
func count(conditions ...bool) int {
	n := 0
	for _, c := range conditions {
		if c {
			n++
		}
	}
	return n
}
