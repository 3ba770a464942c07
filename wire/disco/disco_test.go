package disco

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/cbor"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func recordsOf(records ...Record) Records {
	list, _, err := AppendRecords(nil, records...)
	return must(list, err)
}

func agentRecord(name string) Record {
	return Record{ID: []byte("a:" + name)[:min(len(name)+2, MaxRecordIDLen)], Kind: KindAgent, Revision: 1, Label: []byte("Agent " + name),
		Agent: AgentBody{AgentID: []byte(name), Protocols: ListOf[uint8](2)}}
}

// fullRecords are one record of each kind with every field.
func fullRecords() []Record {
	return []Record{
		{ID: []byte{1}, Kind: KindProtocol, Revision: 7, Label: []byte("A2A"), Protocol: ProtocolBody{
			ProtocolID: 2, Class: ClassJSONRPC, Channels: ListOf(wire.ChannelBridge), ContentTypes: ListOf[uint8](1),
			Methods: must(TextsOf("message/send", "tasks/get")),
		}},
		{ID: []byte{2}, Kind: KindClass, Revision: 0, Class: ClassBody{Class: ClassOPAQUE, ContentTypes: ListOf[uint8]()}},
		{ID: []byte("tool"), Kind: KindTool, Revision: 1 << 40, Tool: ToolBody{
			Name: []byte("echo.say"), ProtocolID: 1, HasEffect: true, Effect: 3, SchemaRef: []byte("urn:x"),
		}},
		{ID: bytes.Repeat([]byte{4}, 32), Kind: KindAgent, Revision: 3, Label: []byte{}, Agent: AgentBody{
			AgentID: []byte("echo"), Protocols: ListOf[uint8](2, 1), Tools: must(IDsOf([]byte("tool"), []byte("gone"))),
		}},
	}
}

// fullMessages are messages of every type with every field, and the least ones.
func fullMessages() []Message {
	corr := []byte("c1")
	filter := Filter{Kinds: ListOf(KindAgent, KindTool), ProtocolIDs: ListOf[uint8](2), NamePrefix: []byte("ec"), Tolerant: true, Cursor: []byte{9}}
	records := recordsOf(fullRecords()...)
	return []Message{
		{Type: TypeQuery, Corr: corr, Filter: filter},
		{Type: TypeQuery, Corr: bytes.Repeat([]byte{1}, 64)},
		{Type: TypeQuery, Corr: corr, Filter: Filter{Kinds: ListOf[uint8](), NamePrefix: []byte{}, Cursor: []byte{}}},
		{Type: TypeResult, Corr: corr, Records: records, Complete: false, Cursor: []byte("next")},
		{Type: TypeResult, Corr: corr, Records: recordsOf(), Complete: true},
		{Type: TypeError, Corr: corr, Code: CodeStaleCursor, Reason: []byte("gone")},
		{Type: TypeError, Corr: corr, Code: 99},
		{Type: TypeAnnounce, Records: recordsOf(agentRecord("echo"))},
		{Type: TypeSubscribe, Corr: corr, Filter: filter},
		{Type: TypeUpdate, Corr: corr, Records: records, Withdrawn: must(IDsOf([]byte{1}))},
		{Type: TypeUpdate, Corr: corr, Withdrawn: must(IDsOf([]byte{1}, []byte{2}))},
		{Type: TypeUpdate, Corr: corr, Records: records},
		{Type: TypeUnsubscribe, Corr: corr},
	}
}

// DISC 3 and 4: every frame type, laid out by hand.
func TestEncoding(t *testing.T) {
	corr := []byte{0xc1}
	agent := Record{ID: []byte("r"), Kind: KindAgent, Revision: 5, Agent: AgentBody{AgentID: []byte("a"), Protocols: ListOf[uint8](2)}}
	const encoded = "a4 00 4172 01 04 02 05 04 a2 00 4161 01 81 02"
	for _, c := range []struct {
		m    Message
		want string
	}{
		{Message{Type: TypeQuery, Corr: corr}, "a2 00 190100 01 41c1"},
		{Message{Type: TypeQuery, Corr: corr, Filter: Filter{Kinds: ListOf(KindAgent), ProtocolIDs: ListOf[uint8](2, 0x80), NamePrefix: []byte("e"), Tolerant: true, Cursor: []byte{7}}},
			"a7 00 190100 01 41c1 02 8104 03 82 02 1880 04 6165 05 f5 06 4107"},
		{Message{Type: TypeResult, Corr: corr, Records: recordsOf(agent), Complete: true}, "a4 00 190101 01 41c1 02 81" + encoded + "03 f5"},
		{Message{Type: TypeResult, Corr: corr, Records: recordsOf(), Cursor: []byte{7}}, "a5 00 190101 01 41c1 02 80 03 f4 04 4107"},
		{Message{Type: TypeError, Corr: corr, Code: CodeKindMismatch, Reason: []byte("no")}, "a4 00 190102 01 41c1 02 02 03 626e6f"},
		{Message{Type: TypeAnnounce, Records: recordsOf(agent)}, "a2 00 190103 02 81" + encoded},
		{Message{Type: TypeSubscribe, Corr: corr}, "a2 00 190104 01 41c1"},
		{Message{Type: TypeUpdate, Corr: corr, Records: recordsOf(agent), Withdrawn: must(IDsOf([]byte("x")))}, "a4 00 190105 01 41c1 02 81" + encoded + "03 81 4178"},
		{Message{Type: TypeUnsubscribe, Corr: corr}, "a2 00 190106 01 41c1"},
	} {
		got, err := c.m.Append([]byte("x"))
		if err != nil {
			t.Errorf("%#x: %v", uint16(c.m.Type), err)
			continue
		}
		if want := unhex(t, c.want); !bytes.Equal(got[1:], want) {
			t.Errorf("%#x:\ngot  %x\nwant %x", uint16(c.m.Type), got[1:], want)
		}
		if !IsMessage(got[1:]) {
			t.Errorf("%#x is not taken for a message", uint16(c.m.Type))
		}
	}
}

func TestMessagesRoundTrip(t *testing.T) {
	for _, want := range fullMessages() {
		b, err := want.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		got := Message{Corr: []byte("old"), Complete: true, UnknownKinds: 3, Code: 4}
		if err := Parse(&got, want.Type, b); err != nil {
			t.Fatalf("%#x: %v", uint16(want.Type), err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%#x:\ngot  %+v\nwant %+v", uint16(want.Type), got, want)
		}
	}
}

// DISC 5.1 to 5.4: every field of every body.
func TestRecordsRoundTrip(t *testing.T) {
	want := fullRecords()
	list, _, err := AppendRecords(nil, want...)
	if err != nil {
		t.Fatal(err)
	}
	if !list.Present() || list.Len() != len(want) {
		t.Errorf("%d records", list.Len())
	}
	i := 0
	for r := range list.All() {
		if !reflect.DeepEqual(*r, want[i]) {
			t.Errorf("got  %+v\nwant %+v", *r, want[i])
		}
		i++
	}
	if i != len(want) {
		t.Errorf("%d records were yielded", i)
	}
	for range list.All() {
		break // an iteration may end early
	}
	var methods []string
	for r := range list.All() {
		for s := range r.Protocol.Methods.All() {
			methods = append(methods, string(s))
		}
		for id := range r.Agent.Tools.All() {
			methods = append(methods, string(id))
		}
		for v := range r.Agent.Protocols.All() {
			methods = append(methods, fmt.Sprint(v))
		}
	}
	if fmt.Sprint(methods) != "[message/send tasks/get tool gone 2 1]" {
		t.Errorf("lists give %v", methods)
	}
	r := want[3]
	if !r.Agent.Tools.Contains([]byte("gone")) || r.Agent.Tools.Contains([]byte("none")) || !r.Agent.Protocols.Contains(1) || r.Agent.Protocols.Contains(3) ||
		want[0].Protocol.Methods.Len() != 2 || r.Agent.Tools.Len() != 2 {
		t.Error("Contains or Len is wrong")
	}
}

// Appending to octets that are already there leaves them alone.
func TestAppendRecordsAppends(t *testing.T) {
	list, out, err := AppendRecords([]byte("front"), agentRecord("one"))
	if err != nil || !bytes.HasPrefix(out, []byte("front")) || !bytes.Equal(out[5:], list.raw) {
		t.Errorf("%q, %v", out, err)
	}
	if _, out, err := AppendRecords([]byte("front"), agentRecord("one"), Record{}); err != FaultRecordIDLen || string(out) != "front" {
		t.Errorf("%q, %v", out, err)
	}
}

// msg builds a payload of a type from the hex of its other pairs.
func msg(t testing.TB, typ wire.FrameType, pairs int, rest string) []byte {
	b := cbor.AppendMap(nil, 1+pairs)
	b = cbor.AppendUint(cbor.AppendUint(b, 0), uint64(typ))
	return append(b, unhex(t, rest)...)
}

const (
	recordHead = "00 4172 01" // a record's id; its kind follows
	corrC1     = "01 41c1"
)

// DISC 4, 6, 7, 9: each thing a message is refused for has its own error and
// the right code.
func TestMessageRefusals(t *testing.T) {
	agent := "a4 00 4172 01 04 02 05 04 a2 00 4161 01 81 02"
	for _, c := range []struct {
		name string
		typ  wire.FrameType
		in   []byte
		want error
		code Code
	}{
		{"no Discovery type", 0x0107, msg(t, 0x0107, 1, corrC1), FaultFrameType, CodeMalformedPayload},
		{"nothing", TypeQuery, nil, cbor.ErrTruncated, CodeMalformedPayload},
		{"no map", TypeQuery, unhex(t, "80"), cbor.ErrType, CodeMalformedPayload},
		{"indefinite map", TypeQuery, unhex(t, "bf 00 190100 01 41c1 ff"), cbor.ErrIndefinite, CodeMalformedPayload},
		{"octets behind", TypeQuery, append(msg(t, TypeQuery, 1, corrC1), 0), cbor.ErrTrailing, CodeMalformedPayload},
		{"kind not shortest", TypeQuery, unhex(t, "a2 00 1a00000100 01 41c1"), cbor.ErrNotShortest, CodeMalformedPayload},
		{"keys out of order", TypeQuery, unhex(t, "a2 01 41c1 00 190100"), cbor.ErrOrder, CodeMalformedPayload},
		{"key twice", TypeQuery, unhex(t, "a3 00 190100 01 41c1 01 41c1"), cbor.ErrDuplicate, CodeMalformedPayload},
		{"text key", TypeQuery, msg(t, TypeQuery, 2, corrC1+"6161 00"), cbor.ErrKey, CodeMalformedPayload},
		{"negative key", TypeQuery, msg(t, TypeQuery, 2, corrC1+"20 00"), FaultNegativeKey, CodeMalformedPayload},
		{"no kind", TypeQuery, unhex(t, "a1 01 41c1"), FaultNoFrameKind, CodeMalformedPayload},
		{"kind of another type", TypeQuery, unhex(t, "a2 00 41c1 01 41c1"), cbor.ErrType, CodeMalformedPayload},
		{"another kind", TypeQuery, msg(t, TypeSubscribe, 1, corrC1), ErrKindMismatch, CodeKindMismatch},
		{"another kind and its fields", TypeQuery, msg(t, TypeResult, 3, corrC1+"02 81 a0 03 f5"), ErrKindMismatch, CodeKindMismatch},
		{"a kind beyond 16 bits", TypeQuery, unhex(t, "a2 00 1a00010100 01 41c1"), ErrKindMismatch, CodeKindMismatch},
		{"no corr", TypeQuery, msg(t, TypeQuery, 0, ""), FaultNoCorr, CodeMalformedPayload},
		{"no corr to unsubscribe", TypeUnsubscribe, msg(t, TypeUnsubscribe, 0, ""), FaultNoCorr, CodeMalformedPayload},
		{"empty corr", TypeQuery, msg(t, TypeQuery, 1, "01 40"), FaultCorrLen, CodeMalformedPayload},
		{"corr of 65", TypeQuery, msg(t, TypeQuery, 1, "01 5841"+strings.Repeat("00", 65)), FaultCorrLen, CodeMalformedPayload},
		{"corr of another type", TypeQuery, msg(t, TypeQuery, 1, "01 6161"), cbor.ErrType, CodeMalformedPayload},
		{"corr on ANNOUNCE", TypeAnnounce, msg(t, TypeAnnounce, 2, corrC1+"02 80"), FaultCorr, CodeMalformedPayload},
		{"kinds of another type", TypeQuery, msg(t, TypeQuery, 2, corrC1+"02 04"), cbor.ErrType, CodeMalformedPayload},
		{"a kind of another type in kinds", TypeQuery, msg(t, TypeQuery, 2, corrC1+"02 8120"), cbor.ErrType, CodeMalformedPayload},
		{"too many kinds", TypeQuery, msg(t, TypeQuery, 2, corrC1+"02 990101"+strings.Repeat("04", 257)), ErrFilterUnsupported, CodeFilterUnsupported},
		{"too many protocols", TypeSubscribe, msg(t, TypeSubscribe, 2, corrC1+"03 990101"+strings.Repeat("02", 257)), ErrFilterUnsupported, CodeFilterUnsupported},
		{"protocols of another type", TypeQuery, msg(t, TypeQuery, 2, corrC1+"03 a0"), cbor.ErrType, CodeMalformedPayload},
		{"prefix of another type", TypeQuery, msg(t, TypeQuery, 2, corrC1+"04 4161"), cbor.ErrType, CodeMalformedPayload},
		{"prefix not UTF-8", TypeQuery, msg(t, TypeQuery, 2, corrC1+"04 61ff"), cbor.ErrUTF8, CodeMalformedPayload},
		{"tolerant of another type", TypeQuery, msg(t, TypeQuery, 2, corrC1+"05 01"), cbor.ErrType, CodeMalformedPayload},
		{"cursor of another type", TypeQuery, msg(t, TypeQuery, 2, corrC1+"06 6161"), cbor.ErrType, CodeMalformedPayload},
		{"no records", TypeResult, msg(t, TypeResult, 2, corrC1+"03 f5"), FaultNoRecords, CodeMalformedPayload},
		{"no complete", TypeResult, msg(t, TypeResult, 2, corrC1+"02 80"), FaultNoComplete, CodeMalformedPayload},
		{"no cursor", TypeResult, msg(t, TypeResult, 3, corrC1+"02 80 03 f4"), FaultNoCursor, CodeMalformedPayload},
		{"records of another type", TypeResult, msg(t, TypeResult, 3, corrC1+"02 a0 03 f5"), cbor.ErrType, CodeMalformedPayload},
		{"more records than octets", TypeResult, msg(t, TypeResult, 3, corrC1+"02 9bffffffffffffffff"), cbor.ErrTruncated, CodeMalformedPayload},
		{"a record of another type", TypeAnnounce, msg(t, TypeAnnounce, 1, "02 81 00"), cbor.ErrType, CodeMalformedPayload},
		{"ANNOUNCE without records", TypeAnnounce, msg(t, TypeAnnounce, 0, ""), FaultNoRecords, CodeMalformedPayload},
		{"second record at fault", TypeAnnounce, msg(t, TypeAnnounce, 1, "02 82"+agent+"a0"), FaultNoRecordID, CodeMalformedPayload},
		{"UPDATE without anything", TypeUpdate, msg(t, TypeUpdate, 1, corrC1), FaultEmptyUpdate, CodeMalformedPayload},
		{"UPDATE of two empty lists", TypeUpdate, msg(t, TypeUpdate, 3, corrC1+"02 80 03 80"), FaultEmptyUpdate, CodeMalformedPayload},
		{"withdrawn id empty", TypeUpdate, msg(t, TypeUpdate, 2, corrC1+"03 81 40"), FaultRecordIDLen, CodeMalformedPayload},
		{"withdrawn id of another type", TypeUpdate, msg(t, TypeUpdate, 2, corrC1+"03 81 01"), cbor.ErrType, CodeMalformedPayload},
		{"ERROR without a code", TypeError, msg(t, TypeError, 1, corrC1), FaultNoCode, CodeMalformedPayload},
		{"code of another type", TypeError, msg(t, TypeError, 2, corrC1+"02 20"), cbor.ErrType, CodeMalformedPayload},
		{"reason of another type", TypeError, msg(t, TypeError, 3, corrC1+"02 01 03 4161"), cbor.ErrType, CodeMalformedPayload},
		{"unknown key at fault", TypeQuery, msg(t, TypeQuery, 2, corrC1+"18ff 9f"), cbor.ErrIndefinite, CodeMalformedPayload},
	} {
		var m Message
		err := Parse(&m, c.typ, c.in)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
			continue
		}
		if code, ok := CodeOf(err); code != c.code || !ok || !errors.Is(err, c.code.Err()) || !strings.HasPrefix(err.Error(), "disco: ") {
			t.Errorf("%s: %q has the code %v", c.name, err, code)
		}
	}
}

// DISC 5: each thing a record is refused for has its own error.
func TestRecordRefusals(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     error
	}{
		{"no id", "a3 01 04 02 05 04 a0", FaultNoRecordID},
		{"empty id", "a4 00 40 01 04 02 05 04 a0", FaultRecordIDLen},
		{"id of 33", "a4 00 5821" + strings.Repeat("00", 33) + "01 04 02 05 04 a0", FaultRecordIDLen},
		{"id of another type", "a4 00 6161 01 04 02 05 04 a0", cbor.ErrType},
		{"no kind", "a3 00 4172 02 05 04 a0", FaultNoRecordKind},
		{"kind of another type", "a4" + recordHead + "20 02 05 04 a0", cbor.ErrType},
		{"no revision", "a3" + recordHead + "04 04 a0", FaultNoRevision},
		{"revision negative", "a4" + recordHead + "04 02 20 04 a0", cbor.ErrType},
		{"label of another type", "a5" + recordHead + "04 02 05 03 4161 04 a0", cbor.ErrType},
		{"no body", "a3" + recordHead + "04 02 05", FaultNoBody},
		{"body of another type", "a4" + recordHead + "04 02 05 04 80", cbor.ErrType},
		{"unknown kind's body of another type", "a4" + recordHead + "09 02 05 04 80", cbor.ErrType},
		{"negative key", "a5" + recordHead + "04 02 05 04 a2 00 4161 01 81 02 20 00", FaultNegativeKey},

		{"protocol: no id", "a4" + recordHead + "01 02 05 04 a1 01 01", FaultNoProtocolID},
		{"protocol: id over 255", "a4" + recordHead + "01 02 05 04 a2 00 190100 01 01", FaultProtocolID},
		{"protocol: id of another type", "a4" + recordHead + "01 02 05 04 a2 00 20 01 01", cbor.ErrType},
		{"protocol: no class", "a4" + recordHead + "01 02 05 04 a1 00 02", FaultNoClass},
		{"protocol: channels of another type", "a4" + recordHead + "01 02 05 04 a3 00 02 01 01 02 0d", cbor.ErrType},
		{"protocol: content types of another type", "a4" + recordHead + "01 02 05 04 a3 00 02 01 01 03 8120", cbor.ErrType},
		{"protocol: methods of another type", "a4" + recordHead + "01 02 05 04 a3 00 02 01 01 04 814161", cbor.ErrType},
		{"protocol: methods no list", "a4" + recordHead + "01 02 05 04 a3 00 02 01 01 04 6161", cbor.ErrType},
		{"protocol: negative key", "a4" + recordHead + "01 02 05 04 a3 00 02 01 01 20 00", FaultNegativeKey},

		{"class: no class", "a4" + recordHead + "02 02 05 04 a0", FaultNoClass},
		{"class: content types of another type", "a4" + recordHead + "02 02 05 04 a2 00 01 01 00", cbor.ErrType},
		{"class: negative key", "a4" + recordHead + "02 02 05 04 a2 00 01 20 00", FaultNegativeKey},

		{"tool: no name", "a4" + recordHead + "03 02 05 04 a1 01 01", FaultNoName},
		{"tool: name of another type", "a4" + recordHead + "03 02 05 04 a2 00 4161 01 01", cbor.ErrType},
		{"tool: no protocol", "a4" + recordHead + "03 02 05 04 a1 00 6161", FaultNoProtocolID},
		{"tool: effect over 3", "a4" + recordHead + "03 02 05 04 a3 00 6161 01 01 02 04", FaultEffect},
		{"tool: effect of another type", "a4" + recordHead + "03 02 05 04 a3 00 6161 01 01 02 f5", cbor.ErrType},
		{"tool: schema of another type", "a4" + recordHead + "03 02 05 04 a3 00 6161 01 01 03 00", cbor.ErrType},
		{"tool: negative key", "a4" + recordHead + "03 02 05 04 a3 00 6161 01 01 20 00", FaultNegativeKey},

		{"agent: no id", "a4" + recordHead + "04 02 05 04 a1 01 81 02", FaultNoAgentID},
		{"agent: empty id", "a4" + recordHead + "04 02 05 04 a2 00 40 01 81 02", FaultAgentIDLen},
		{"agent: id of 65", "a4" + recordHead + "04 02 05 04 a2 00 5841" + strings.Repeat("61", 65) + "01 81 02", FaultAgentIDLen},
		{"agent: id of another type", "a4" + recordHead + "04 02 05 04 a2 00 6161 01 81 02", cbor.ErrType},
		{"agent: no protocols", "a4" + recordHead + "04 02 05 04 a1 00 4161", FaultNoProtocols},
		{"agent: empty protocols", "a4" + recordHead + "04 02 05 04 a2 00 4161 01 80", FaultNoProtocols},
		{"agent: tools of another type", "a4" + recordHead + "04 02 05 04 a3 00 4161 01 81 02 02 81 6161", cbor.ErrType},
		{"agent: tool id of 33", "a4" + recordHead + "04 02 05 04 a3 00 4161 01 81 02 02 81 5821" + strings.Repeat("00", 33), FaultRecordIDLen},
		{"agent: negative key", "a4" + recordHead + "04 02 05 04 a3 00 4161 01 81 02 20 00", FaultNegativeKey},
	} {
		var m Message
		err := Parse(&m, TypeAnnounce, msg(t, TypeAnnounce, 1, "02 81"+c.in))
		if !errors.Is(err, c.want) || !errors.Is(err, ErrMalformedPayload) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if m.Records.Present() {
			t.Errorf("%s: records are left", c.name)
		}
	}
}

// DISC 4.1: unknown keys from 0 up are ignored in every map.
func TestUnknownKeysAreIgnored(t *testing.T) {
	var m Message
	in := msg(t, TypeResult, 4, corrC1+"02 81 a5 00 4172 01 04 02 05 04 a3 00 4161 01 81 02 09 a1 20 00 18aa f6 03 f5 1903e8 80")
	if err := Parse(&m, TypeResult, in); err != nil {
		t.Fatal(err)
	}
	for r := range m.Records.All() {
		if string(r.Agent.AgentID) != "a" {
			t.Errorf("%+v", r)
		}
	}
	// A field of another type of message is unknown here.
	if err := Parse(&m, TypeUnsubscribe, msg(t, TypeUnsubscribe, 2, corrC1+"02 00")); err != nil {
		t.Error(err)
	}
}

// DISC 5, 6.3: records of unknown kinds are passed over in a tolerant
// enumeration and refused elsewhere.
func TestUnknownRecordKinds(t *testing.T) {
	var m Message
	in := msg(t, TypeAnnounce, 1, "02 82 a4 00 4172 01 09 02 05 04 a1 20 00 a4 00 4173 01 04 02 05 04 a2 00 4161 01 81 02")
	if err := Parse(&m, TypeAnnounce, in); err != nil {
		t.Fatal(err)
	}
	if m.UnknownKinds != 1 || m.Records.Len() != 2 {
		t.Errorf("%d of %d unknown", m.UnknownKinds, m.Records.Len())
	}
	if err := m.CheckKinds(); err != ErrUnknownRecordKind {
		t.Error(err)
	} else if code, _ := CodeOf(err); code != CodeUnknownRecordKind {
		t.Errorf("code %v", code)
	}
	seen := 0
	for r := range m.Records.All() {
		if seen++; string(r.ID) != "s" {
			t.Errorf("yielded %+v", r)
		}
	}
	if seen != 1 {
		t.Errorf("%d yielded", seen)
	}
	if out, err := m.Append(nil); err != nil || !bytes.Equal(out, in) {
		t.Errorf("passed on as %x, %v", out, err)
	}
	m = Message{Type: TypeAnnounce, Records: recordsOf(agentRecord("a"))}
	if err := m.CheckKinds(); err != nil {
		t.Error(err)
	}
}

// A faulty request can be answered when its correlation id could be read.
func TestFaultyRequestKeepsItsCorr(t *testing.T) {
	for _, c := range []struct {
		name string
		in   []byte
		want string
	}{
		{"field at fault", msg(t, TypeQuery, 2, corrC1+"02 04"), "\xc1"},
		{"another kind", msg(t, TypeResult, 1, corrC1), "\xc1"},
		{"cut behind", msg(t, TypeQuery, 2, corrC1+"02 8204"), "\xc1"},
		{"no kind", unhex(t, "a1 01 41c1"), "\xc1"},
		{"octets behind", append(msg(t, TypeQuery, 1, corrC1), 0xff), "\xc1"},
		{"corr at fault", msg(t, TypeQuery, 1, "01 40"), ""},
		{"no corr", msg(t, TypeQuery, 0, ""), ""},
		{"fault in front", unhex(t, "a2 00 61ff 01 41c1"), ""},
	} {
		m := Message{Corr: []byte("old"), Complete: true}
		if err := Parse(&m, TypeQuery, c.in); err == nil {
			t.Errorf("%s: accepted", c.name)
		}
		if string(m.Corr) != c.want || !IsRequest(m.Type) {
			t.Errorf("%s: corr %q, want %q", c.name, m.Corr, c.want)
		}
		m.Type, m.Corr = 0, nil
		if !reflect.DeepEqual(m, Message{}) {
			t.Errorf("%s: left %+v", c.name, m)
		}
	}
	for typ := TypeQuery; typ <= TypeUnsubscribe; typ++ {
		if IsRequest(typ) != (typ == TypeQuery || typ == TypeSubscribe) {
			t.Errorf("IsRequest(%#x)", uint16(typ))
		}
	}
}

// DISC 6.1: a record passes when it passes every filter that is present.
func TestFilterMatches(t *testing.T) {
	records := fullRecords()
	for _, c := range []struct {
		name string
		f    Filter
		want string
	}{
		{"none", Filter{}, "protocol, carriage class, tool, agent"},
		{"kinds", Filter{Kinds: ListOf(KindTool, KindAgent)}, "tool, agent"},
		{"no kind", Filter{Kinds: ListOf[uint8]()}, ""},
		{"protocol", Filter{ProtocolIDs: ListOf[uint8](1)}, "carriage class, tool, agent"},
		{"another protocol", Filter{ProtocolIDs: ListOf[uint8](9, 2)}, "protocol, carriage class, agent"},
		{"no protocol", Filter{ProtocolIDs: ListOf[uint8]()}, "carriage class"},
		{"prefix", Filter{NamePrefix: []byte("echo.")}, "protocol, carriage class, tool"},
		{"empty prefix", Filter{NamePrefix: []byte{}}, "protocol, carriage class, tool, agent"},
		{"all of them", Filter{Kinds: ListOf(KindAgent, KindProtocol), ProtocolIDs: ListOf[uint8](2), NamePrefix: []byte("ec")}, "protocol, agent"},
		{"a code beyond an octet", Filter{ProtocolIDs: ListOf[uint16](0x102)}, "carriage class"},
	} {
		var got []string
		for i := range records {
			if c.f.Match(&records[i]) {
				got = append(got, records[i].Kind.String())
			}
		}
		if s := strings.Join(got, ", "); s != c.want {
			t.Errorf("%s: %s, want %s", c.name, s, c.want)
		}
	}
	if r := (Record{Kind: 9}); r.UsesProtocol(0) {
		t.Error("a record of an unknown kind names a protocol")
	}
}

func TestAppendRefusesWhatParseWould(t *testing.T) {
	corr := []byte("c")
	long := bytes.Repeat([]byte{1}, 65)
	for _, c := range []struct {
		name string
		m    Message
		want error
	}{
		{"no type", Message{}, FaultFrameType},
		{"another channel's type", Message{Type: 0x0107, Corr: corr}, FaultFrameType},
		{"no corr", Message{Type: TypeQuery}, FaultCorrLen},
		{"corr of 65", Message{Type: TypeSubscribe, Corr: long}, FaultCorrLen},
		{"corr on ANNOUNCE", Message{Type: TypeAnnounce, Corr: corr, Records: recordsOf()}, FaultCorr},
		{"ANNOUNCE of nothing", Message{Type: TypeAnnounce}, FaultNoRecords},
		{"RESULT of nothing", Message{Type: TypeResult, Corr: corr, Complete: true}, FaultNoRecords},
		{"no cursor", Message{Type: TypeResult, Corr: corr, Records: recordsOf()}, FaultNoCursor},
		{"empty update", Message{Type: TypeUpdate, Corr: corr, Records: recordsOf()}, FaultEmptyUpdate},
		{"prefix not UTF-8", Message{Type: TypeQuery, Corr: corr, Filter: Filter{NamePrefix: []byte{0xff}}}, FaultNotUTF8},
		{"reason not UTF-8", Message{Type: TypeError, Corr: corr, Code: 1, Reason: []byte{0xff}}, FaultNotUTF8},
		{"long filter", Message{Type: TypeQuery, Corr: corr, Filter: Filter{Kinds: ListOf(make([]uint8, 257)...)}}, ErrFilterUnsupported},
	} {
		if out, err := c.m.Append([]byte("kept")); err != c.want || string(out) != "kept" {
			t.Errorf("%s: %q, %v, want %v", c.name, out, err, c.want)
		}
	}
	protocols := ListOf[uint8](2)
	for _, c := range []struct {
		name string
		r    Record
		want error
	}{
		{"no id", Record{Kind: KindClass}, FaultRecordIDLen},
		{"id of 33", Record{ID: long[:33], Kind: KindClass}, FaultRecordIDLen},
		{"no kind", Record{ID: corr}, ErrUnknownRecordKind},
		{"unknown kind", Record{ID: corr, Kind: 5}, ErrUnknownRecordKind},
		{"label", Record{ID: corr, Kind: KindClass, Label: []byte{0xff}}, FaultNotUTF8},
		{"tool's name", Record{ID: corr, Kind: KindTool, Tool: ToolBody{Name: []byte{0xff}}}, FaultNotUTF8},
		{"tool's schema", Record{ID: corr, Kind: KindTool, Tool: ToolBody{SchemaRef: []byte{0xff}}}, FaultNotUTF8},
		{"tool's effect", Record{ID: corr, Kind: KindTool, Tool: ToolBody{HasEffect: true, Effect: 4}}, FaultEffect},
		{"agent without an id", Record{ID: corr, Kind: KindAgent, Agent: AgentBody{Protocols: protocols}}, FaultAgentIDLen},
		{"agent id of 65", Record{ID: corr, Kind: KindAgent, Agent: AgentBody{AgentID: long, Protocols: protocols}}, FaultAgentIDLen},
		{"agent without protocols", Record{ID: corr, Kind: KindAgent, Agent: AgentBody{AgentID: corr}}, FaultNoProtocols},
	} {
		if _, _, err := AppendRecords(nil, c.r); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if _, err := IDsOf(nil); err != FaultRecordIDLen {
		t.Error(err)
	}
	if _, err := TextsOf("\xff"); err != FaultNotUTF8 {
		t.Error(err)
	}
}

// What one message can have done is bounded, in octets and in records.
func TestMessagesAreBounded(t *testing.T) {
	many := func(n int) []byte {
		b := cbor.AppendArray(nil, n)
		for range n {
			b = append(b, 0x41, 'r')
		}
		return b
	}
	var m Message
	for _, c := range []struct {
		name string
		typ  wire.FrameType
		in   []byte
		want error
	}{
		{"too long", TypeQuery, make([]byte, MaxPayloadLen+1), FaultTooLong},
		{"4,097 records", TypeResult, msg(t, TypeResult, 3, corrC1+"02"+hex.EncodeToString(many(MaxRecords+1))+"03 f5"), FaultTooMany},
		{"4,097 ids", TypeUpdate, msg(t, TypeUpdate, 2, corrC1+"03"+hex.EncodeToString(many(MaxRecords+1))), FaultTooMany},
		{"4,096 ids", TypeUpdate, msg(t, TypeUpdate, 2, corrC1+"03"+hex.EncodeToString(many(MaxRecords))), nil},
	} {
		if err := Parse(&m, c.typ, c.in); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if _, _, err := AppendRecords(nil, make([]Record, MaxRecords+1)...); err != FaultTooMany {
		t.Error(err)
	}
	if _, err := IDsOf(make([][]byte, MaxRecords+1)...); err != FaultTooMany {
		t.Error(err)
	}
	m = Message{Type: TypeError, Corr: []byte("c"), Reason: make([]byte, MaxPayloadLen)}
	if out, err := m.Append([]byte("kept")); err != FaultTooLong || string(out) != "kept" {
		t.Errorf("%d octets, %v", len(out), err)
	}
}

// D25: a Discovery map starts with A0 to BF, a Bridge frame with its envelope's
// type.
func TestDiscoveryAndBridgeAreToldApart(t *testing.T) {
	for _, c := range []struct {
		in   []byte
		want bool
	}{{nil, false}, {[]byte{0x00, 0x10}, false}, {[]byte{0x9f}, false}, {[]byte{0xa0}, true}, {[]byte{0xbf}, true}, {[]byte{0xc0}, false}} {
		if IsMessage(c.in) != c.want {
			t.Errorf("IsMessage(%x) is not %v", c.in, c.want)
		}
	}
}

// DISC 9: seven codes, each with a name and an error of its own; what a peer
// said is a third thing.
func TestCodesAndErrors(t *testing.T) {
	names := []string{"MalformedPayload", "KindMismatch", "UnknownRecordKind", "FilterUnsupported", "StaleCursor", "SubscriptionRefused", "NotAdvertised"}
	for i, name := range names {
		c := Code(i + 1)
		if c.String() != name || !c.Known() {
			t.Errorf("code %d is %v", i+1, c)
		}
		if got, ok := CodeOf(c.Err()); got != c || !ok {
			t.Errorf("CodeOf(%v) = %v", c.Err(), got)
		}
		if got, ok := CodeOf(fmt.Errorf("wrapped: %w", c.Err())); got != c || !ok {
			t.Errorf("CodeOf(wrapped) = %v", got)
		}
		for j := range names {
			peer := &PeerError{Code: c, Reason: "r"}
			if errors.Is(peer, Code(j+1).Err()) != (i == j) {
				t.Errorf("a peer's %v is %v", c, Code(j+1).Err())
			}
		}
	}
	if Code(0).Known() || Code(8).Known() || Code(8).Err() != nil || Code(8).String() != "code(8)" {
		t.Error("an unknown code has a name or an error")
	}
	if _, ok := CodeOf(errors.New("other")); ok {
		t.Error("any error has a code")
	}
	m := Message{Type: TypeError, Code: CodeStaleCursor, Reason: []byte("a\nb")}
	if s := m.PeerError().Error(); s != `disco: peer: StaleCursor: "a\nb"` {
		t.Errorf("%s", s)
	}
	if s := (&PeerError{Code: 70}).Error(); s != "disco: peer: code(70)" || errors.Is(&PeerError{Code: 70}, nil) {
		t.Errorf("%s", s)
	}
	seen := map[string]bool{}
	for f := Fault(1); f < faultCount; f++ {
		if s := f.Error(); seen[s] || !strings.HasPrefix(s, "disco: ") || !errors.Is(f, ErrMalformedPayload) || errors.Is(f, ErrKindMismatch) {
			t.Errorf("fault %d is %q", f, s)
		} else {
			seen[s] = true
		}
	}
	if faultCount.Error() != "disco: unknown fault" {
		t.Error("an unknown fault has no text")
	}
	for want, s := range map[string]fmt.Stringer{"protocol": KindProtocol, "agent": KindAgent, "kind(0)": Kind(0), "kind(9)": Kind(9),
		"JSONRPC": ClassJSONRPC, "OPAQUE": ClassOPAQUE, "class(0)": Class(0), "class(7)": Class(7)} {
		if s.String() != want {
			t.Errorf("%q, want %q", s, want)
		}
	}
}

// What is absent is not what is empty.
func TestAbsentLists(t *testing.T) {
	if (List{}).Present() || (IDs{}).Present() || (Texts{}).Present() || (Records{}).Present() {
		t.Error("an absent list is present")
	}
	if !ListOf[uint8]().Present() || !must(IDsOf()).Present() || !must(TextsOf()).Present() || !recordsOf().Present() {
		t.Error("an empty list is absent")
	}
	if (List{}).Len() != 0 || (IDs{}).Len() != 0 || (Texts{}).Len() != 0 || (Records{}).Len() != 0 || (List{}).Contains(0) || (IDs{}).Contains(nil) {
		t.Error("an absent list has entries")
	}
	for range (List{}).All() {
		t.Error("an absent list yields")
	}
	for range (Records{}).All() {
		t.Error("absent records are yielded")
	}
}

// Reading and writing a message allocate nothing; walking its records costs at
// most the one record that is yielded.
func TestNothingAllocates(t *testing.T) {
	filter := Filter{ProtocolIDs: ListOf[uint8](1, 2), NamePrefix: []byte("e"), Kinds: ListOf(KindAgent, KindTool)}
	for _, want := range fullMessages() {
		in := must(want.Append(nil))
		buf := make([]byte, 0, 1024)
		var m Message
		if n := testing.AllocsPerRun(100, func() {
			if err := Parse(&m, want.Type, in[:len(in)-1]); err == nil {
				t.Fatal("accepted")
			}
			if err := Parse(&m, want.Type, in); err != nil {
				t.Fatal(err)
			}
			if _, err := m.Append(buf); err != nil {
				t.Fatal(err)
			}
			for range m.Withdrawn.All() {
			}
		}); n != 0 {
			t.Errorf("%#x: %v allocations", uint16(want.Type), n)
		}
		if n := testing.AllocsPerRun(100, func() {
			matched := 0
			for r := range m.Records.All() {
				if filter.Match(r) {
					matched++
				}
				for range r.Protocol.Methods.All() {
					matched++
				}
			}
		}); n > 1 {
			t.Errorf("%#x: %v allocations to walk the records", uint16(want.Type), n)
		}
	}
	records := fullRecords()
	buf := make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(100, func() {
		if _, _, err := AppendRecords(buf, records...); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("AppendRecords: %v allocations", n)
	}
}

func BenchmarkParseResult(b *testing.B) {
	var records []Record
	for i := range 100 {
		records = append(records, agentRecord(fmt.Sprint("agent-", i)))
	}
	want := Message{Type: TypeResult, Corr: []byte("c"), Records: recordsOf(records...), Complete: true}
	in := must(want.Append(nil))
	b.ReportAllocs()
	b.SetBytes(int64(len(in)))
	var m Message
	for b.Loop() {
		if err := Parse(&m, TypeResult, in); err != nil {
			b.Fatal(err)
		}
		n := 0
		for r := range m.Records.All() {
			n += len(r.Agent.AgentID)
		}
		if n == 0 {
			b.Fatal("nothing read")
		}
	}
}
