package discovery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
	"github.com/trestle-npamp/trestle/wire/cbor"
	"github.com/trestle-npamp/trestle/wire/control"
	"github.com/trestle-npamp/trestle/wire/disco"
)

// shelf is what a test's Advertise returns.
type shelf []disco.Record

func (s *shelf) advertise(*assoc.Association, *disco.Filter) []disco.Record { return *s }

func toolRecord(id, name string, protocol uint8) disco.Record {
	return disco.Record{ID: []byte(id), Kind: disco.KindTool, Revision: 1, Tool: disco.ToolBody{Name: []byte(name), ProtocolID: protocol}}
}

func ids(records disco.Records) (s string) {
	for r := range records.All() {
		s += string(r.ID) + " "
	}
	return s
}

func idsOf(records []disco.Record) (s string) {
	for _, r := range records {
		s += string(r.ID) + " "
	}
	return s
}

// octets is a list of records as encoded.
func octets(t *testing.T, records ...disco.Record) []byte {
	t.Helper()
	_, b, err := disco.AppendRecords(nil, records...)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// changes writes an UPDATE as "+id/revision" and "-id".
func changes(m *disco.Message) (s string) {
	for r := range m.Records.All() {
		s += fmt.Sprintf("+%s/%d ", r.ID, r.Revision)
	}
	for id := range m.Withdrawn.All() {
		s += fmt.Sprintf("-%s ", id)
	}
	return s
}

// read gives what came from the server since it was last asked.
func (r *raw) read() []disco.Message {
	r.t.Helper()
	got := make([]disco.Message, len(r.frames))
	for i := range got {
		if err := disco.Parse(&got[i], r.types[i], r.frames[i]); err != nil {
			r.t.Fatalf("%x is malformed: %v", r.frames[i], err)
		}
	}
	r.types, r.frames = nil, nil
	return got
}

// updates lets d pass and gives the UPDATEs that came, which must be under corr.
func (r *raw) updates(corr string, d time.Duration) (s string) {
	r.t.Helper()
	r.Run(d)
	for _, m := range r.read() {
		if m.Type != disco.TypeUpdate || string(m.Corr) != corr {
			r.t.Errorf("%+v, want an UPDATE under %q", m, corr)
		}
		s += changes(&m) + "; "
	}
	return s
}

func subscribeOf(corr string, f disco.Filter) disco.Message {
	return disco.Message{Type: disco.TypeSubscribe, Corr: []byte(corr), Filter: f}
}

func queryOf(corr string, f disco.Filter) disco.Message {
	return disco.Message{Type: disco.TypeQuery, Corr: []byte(corr), Filter: f}
}

// DISC 3, 11(1): types beyond the seven are none of Discovery's, and the common
// ones keep their meaning: a PING on the channel is answered by the association.
func TestDISC3_OnlyTheSevenTypesAreDiscoverys(t *testing.T) {
	r := newRaw(t, Config{})
	before := r.server.Stats().Dropped
	for _, typ := range []wire.FrameType{0x0107, 0x0200, 0xFFFF} {
		if answers := r.send(typ, mustAppend(t, queryOf("q", disco.Filter{}))); len(answers) != 0 {
			t.Errorf("%#x: %+v", uint16(typ), answers)
		}
	}
	if n := r.server.Stats().Dropped - before; n != 3 {
		t.Errorf("%d dropped", n)
	}
	if r.Server.Err() != nil {
		t.Error(r.Server.Err())
	}
}

// DISC 4.1, 4.2, 11(2): what is not a deterministic CBOR map with the required
// keys of the right types is MalformedPayload, a wrong frame kind KindMismatch.
func TestDISC4_MalformedAndMismatchedPayloadsAreRefused(t *testing.T) {
	r := newRaw(t, Config{})
	head := func(pairs int) []byte {
		b := cbor.AppendUint(cbor.AppendMap(nil, pairs), 0)
		b = cbor.AppendUint(b, uint64(disco.TypeQuery))
		return cbor.AppendBytes(cbor.AppendUint(b, 1), []byte("q"))
	}
	for _, c := range []struct {
		name    string
		payload []byte
		want    disco.Code
	}{
		{"octets behind the map", append(head(2), 0), disco.CodeMalformedPayload},
		{"keys out of order", append(head(4), 4, 0x61, 'a', 2, 0x80), disco.CodeMalformedPayload},
		{"not the shortest form", append(head(3), 2, 0x98, 0), disco.CodeMalformedPayload},
		{"indefinite length", append(head(3), 2, 0x9F, 0xFF), disco.CodeMalformedPayload},
		{"a filter of another type", append(head(3), 2, 0x01), disco.CodeMalformedPayload},
		{"a name that is not UTF-8", append(head(3), 4, 0x61, 0xFF), disco.CodeMalformedPayload},
		{"an unknown negative key", append(head(3), 0x20, 0), disco.CodeMalformedPayload},
		{"another frame kind", mustAppend(t, subscribeOf("q", disco.Filter{})), disco.CodeKindMismatch},
	} {
		if !bytes.Contains(c.payload, []byte("q")) {
			t.Fatal(c.name)
		}
		answers := r.send(disco.TypeQuery, c.payload)
		if len(answers) != 1 || answers[0].Code != c.want || string(answers[0].Corr) != "q" {
			t.Errorf("%s: %+v, want %v", c.name, answers, c.want)
		}
	}
	// DISC 4.1: an unknown key that is not negative is ignored.
	if answers := r.send(disco.TypeQuery, append(head(3), 23, 0xF5)); len(answers) != 1 || answers[0].Type != disco.TypeResult {
		t.Errorf("an unknown key: %+v", answers)
	}
}

// DISC 4.2, 11(3): replies echo the correlation id and are matched by it, in
// whatever order they come.
func TestDISC4_AnswersAreMatchedByTheirCorrelationID(t *testing.T) {
	p, d := newPeer(t, Config{})
	a, b := p.ask(d, disco.Filter{}), p.ask(d, disco.Filter{Kinds: disco.ListOf(disco.KindTool)})
	if bytes.Equal(a.corr, b.corr) || len(a.corr) == 0 {
		t.Fatalf("correlation ids %x and %x", a.corr, b.corr)
	}
	p.result(b.corr, true, nil, toolRecord("t", "tool", 1))
	p.result(a.corr, true, nil, agentRecord("a", "agent", 1))
	if got := idsOf(b.wait(t, p)); got != "t " {
		t.Errorf("the second query got %q", got)
	}
	if got := idsOf(a.wait(t, p)); got != "a " {
		t.Errorf("the first query got %q", got)
	}
	// DISC 4.3: with its answer the exchange is over.
	before := d.Stats().Dropped
	p.result(a.corr, true, nil)
	p.Settle()
	if d.Stats().Dropped != before+1 {
		t.Error("a second answer was not dropped")
	}
}

// DISC 4.2: an id that is in use for a subscription is not answered for anything
// else, since the answer would be taken for one to the subscription.
func TestDISC4_AnIDInUseIsNotTakenTwice(t *testing.T) {
	s := shelf{agentRecord("1", "a", 1)}
	r := newRaw(t, Config{MaxSubscribers: 4, Advertise: s.advertise})
	r.sendMessage(subscribeOf("s", disco.Filter{}))
	before := r.server.Stats().Dropped
	for _, m := range []disco.Message{subscribeOf("s", disco.Filter{}), queryOf("s", disco.Filter{})} {
		if answers := r.sendMessage(m); len(answers) != 0 {
			t.Errorf("%+v", answers)
		}
	}
	if n := r.server.Stats().Dropped - before; n != 2 {
		t.Errorf("%d dropped", n)
	}
}

// DISC 5: a record of an unknown kind is refused, unless the answer is a tolerant
// one, of which the others are kept.
func TestDISC5_UnknownKindsAreRefusedUnlessTolerated(t *testing.T) {
	p, d := newPeer(t, Config{})
	strange := bytes.Replace(octets(t, agentRecord("x", "strange", 1)), []byte{1, 4, 2}, []byte{1, 9, 2}, 1)
	for _, tolerant := range []bool{false, true} {
		q := p.ask(d, disco.Filter{Tolerant: tolerant})
		b := cbor.AppendUint(cbor.AppendMap(nil, 4), 0)
		b = cbor.AppendUint(b, uint64(disco.TypeResult))
		b = cbor.AppendBytes(cbor.AppendUint(b, 1), q.corr)
		b = cbor.AppendArray(cbor.AppendUint(b, 2), 2)
		b = append(b, octets(t, agentRecord("1", "a", 1))[1:]...)
		b = append(b, strange[1:]...)
		p.put(disco.TypeResult, cbor.AppendBool(cbor.AppendUint(b, 3), true))
		records, err := q.outcome(t, p)
		if tolerant && (err != nil || idsOf(records) != "1 ") {
			t.Errorf("tolerated: %q, %v", idsOf(records), err)
		}
		if !tolerant && !errors.Is(err, disco.ErrUnknownRecordKind) {
			t.Errorf("not tolerated: %v", err)
		}
	}
	if d.Stats().Unknown != 1 {
		t.Errorf("%+v", d.Stats())
	}
}

// DISC 5.1, 11(8): what is advertised of protocols is what is carried.
func TestDISC5_1_AdvertisedProtocolsAreThoseCarried(t *testing.T) {
	records := Protocols(
		carriage.Protocol{ID: bridge.ProtocolA2A, Class: carriage.ClassJSONRPC, Content: bridge.ContentJSON},
		carriage.Protocol{ID: 0x10, Class: carriage.ClassOpaque},
	)
	if len(records) != 2 || records[0].Protocol.ProtocolID != 2 || records[0].Protocol.Class != disco.ClassJSONRPC ||
		!records[0].Protocol.ContentTypes.Contains(1) || records[1].Protocol.ProtocolID != 0x10 ||
		records[1].Protocol.Class != disco.ClassOPAQUE || records[1].Protocol.ContentTypes.Present() {
		t.Errorf("%+v", records)
	}
	list(t, records...)
}

// DISC 5.4: an agent's reference to a tool that is not there makes no record.
func TestDISC5_4_DanglingReferencesMakeNoRecords(t *testing.T) {
	r := agentRecord("1", "a", 1)
	r.Agent.Tools = mustIDs(t, "gone")
	s := shelf{r}
	p := newPair(t, Config{}, Config{Advertise: s.advertise})
	records, err := p.query(disco.Filter{Tolerant: true})
	if err != nil || idsOf(records) != "1 " {
		t.Errorf("%q, %v", idsOf(records), err)
	}
	if records, err := p.query(disco.Filter{Kinds: disco.ListOf(disco.KindTool)}); err != nil || len(records) != 0 {
		t.Errorf("%q, %v", idsOf(records), err)
	}
}

// DISC 6.1, 11(5): a record is told only if it passes everything that is in the
// filter.
func TestDISC6_1_FiltersAreConjunctive(t *testing.T) {
	s := shelf{
		agentRecord("a1", "echo", 1), agentRecord("a2", "echo-two", 1), agentRecord("a3", "weather", 1),
		toolRecord("t1", "echo.say", 1), toolRecord("t2", "echo.say", 2), toolRecord("t3", "\xc3\xa9cho", 2),
		{ID: []byte("p1"), Kind: disco.KindProtocol, Revision: 1, Protocol: disco.ProtocolBody{ProtocolID: 2, Class: disco.ClassJSONRPC}},
		{ID: []byte("c1"), Kind: disco.KindClass, Revision: 1, Class: disco.ClassBody{Class: disco.ClassOPAQUE}},
	}
	r := newRaw(t, Config{Advertise: s.advertise})
	for _, c := range []struct {
		filter disco.Filter
		want   string
	}{
		{disco.Filter{}, "a1 a2 a3 c1 p1 t1 t2 t3 "},
		{disco.Filter{Kinds: disco.ListOf(disco.KindTool, disco.KindAgent)}, "a1 a2 a3 t1 t2 t3 "},
		{disco.Filter{Kinds: disco.ListOf[uint8]()}, ""},
		{disco.Filter{Kinds: disco.ListOf[uint8](9)}, ""},
		{disco.Filter{ProtocolIDs: disco.ListOf[uint8](1)}, "c1 t1 "},
		{disco.Filter{Kinds: disco.ListOf(disco.KindTool), ProtocolIDs: disco.ListOf[uint8](2)}, "t2 t3 "},
		{disco.Filter{Kinds: disco.ListOf(disco.KindTool), ProtocolIDs: disco.ListOf[uint8](2), NamePrefix: []byte("echo")}, "t2 "},
		{disco.Filter{Kinds: disco.ListOf(disco.KindTool), NamePrefix: []byte("\xc3\xa9")}, "t3 "},
		{disco.Filter{Kinds: disco.ListOf(disco.KindAgent), NamePrefix: []byte("echo-")}, "a2 "},
	} {
		answers := r.sendMessage(queryOf("q", c.filter))
		if len(answers) != 1 || answers[0].Type != disco.TypeResult || !answers[0].Complete || ids(answers[0].Records) != c.want {
			t.Errorf("%+v: %+v, want %q", c.filter, answers, c.want)
		}
	}
}

// DISC 6.1, 9: a filter that is not implemented is refused, never ignored: a
// list that is too long to be held against every record, a cursor for a
// subscription.
func TestDISC9_4_FilterUnsupported(t *testing.T) {
	s := shelf{agentRecord("1", "a", 1)}
	r := newRaw(t, Config{MaxSubscribers: 4, Advertise: s.advertise})
	b := mustAppend(t, queryOf("q", disco.Filter{}))
	b[0]++ // one more pair
	b = cbor.AppendArray(cbor.AppendUint(b, 2), disco.MaxFilterLen+1)
	b = append(b, make([]byte, disco.MaxFilterLen+1)...)
	r.wantError(r.send(disco.TypeQuery, b), "q", disco.CodeFilterUnsupported)
	r.wantError(r.sendMessage(subscribeOf("s", disco.Filter{Cursor: []byte("x")})), "s", disco.CodeFilterUnsupported)
}

// DISC 6.2: a large set comes in pages, each with the cursor for the next; the
// filter stays the same.
func TestDISC6_2_PagesAndCursors(t *testing.T) {
	var s shelf
	for i := range 120 {
		s = append(s, agentRecord(fmt.Sprintf("id-%03d", i), fmt.Sprintf("agent-%03d", i), 1))
	}
	r := newRaw(t, Config{Advertise: s.advertise, MaxResult: 1 << 10})
	filter := disco.Filter{Kinds: disco.ListOf(disco.KindAgent)}
	var got []string
	var cursors [][]byte
	for {
		answers := r.sendMessage(queryOf("q", filter))
		if len(answers) != 1 || answers[0].Type != disco.TypeResult || answers[0].Records.Len() == 0 {
			t.Fatalf("%+v", answers)
		}
		a := answers[0]
		for rec := range a.Records.All() {
			got = append(got, string(rec.ID))
		}
		if a.Complete != (a.Cursor == nil) {
			t.Fatal("complete, and a cursor")
		}
		if a.Complete {
			break
		}
		filter.Cursor = bytes.Clone(a.Cursor)
		cursors = append(cursors, filter.Cursor)
	}
	if len(got) != 120 || !slices.IsSorted(got) || len(slices.Compact(got)) != 120 || len(cursors) < 3 {
		t.Errorf("%d records in %d pages", len(got), len(cursors)+1)
	}
	// A cursor serves again, and what comes and goes meanwhile changes nothing for
	// what stays.
	s = append(s[10:60], agentRecord("id-0600", "late", 1))
	again := r.sendMessage(queryOf("q", disco.Filter{Kinds: filter.Kinds, Cursor: cursors[0]}))
	if len(again) != 1 || again[0].Records.Len() == 0 {
		t.Fatalf("%+v", again)
	}
}

// DISC 6.2, 9: a cursor that is not known is StaleCursor: one made up, one for
// another filter, one of another association.
func TestDISC9_5_StaleCursor(t *testing.T) {
	s := shelf{agentRecord("1", "a", 1), agentRecord("2", "b", 1)}
	cfg := Config{Advertise: s.advertise, MaxResult: 1}
	d := New(cfg)
	first, second := newRawOn(t, d), newRawOn(t, d)
	second.Pair = nptest.NewPair(t, nptest.Options{
		Client: assoc.Options{Handlers: []assoc.ChannelHandler{second}},
		Server: assoc.Options{Handlers: []assoc.ChannelHandler{New(cfg)}},
	})
	second.Run(time.Millisecond)
	answers := first.sendMessage(queryOf("q", disco.Filter{}))
	if len(answers) != 1 || answers[0].Complete {
		t.Fatalf("%+v", answers)
	}
	cursor := bytes.Clone(answers[0].Cursor)
	if got := first.sendMessage(queryOf("q", disco.Filter{Cursor: cursor})); len(got) != 1 || ids(got[0].Records) != "2 " || !got[0].Complete {
		t.Errorf("its own cursor: %+v", got)
	}
	forged := bytes.Clone(cursor)
	forged[len(forged)-1] ^= 1
	for name, f := range map[string]disco.Filter{
		"empty":               {Cursor: []byte{}},
		"made up":             {Cursor: []byte("1")},
		"forged":              {Cursor: forged},
		"too long":            {Cursor: bytes.Repeat([]byte("x"), cursorTag+disco.MaxRecordIDLen+1)},
		"for another filter":  {Cursor: cursor, Kinds: disco.ListOf(disco.KindAgent)},
		"for a tolerant one":  {Cursor: cursor, Tolerant: true},
		"without a record id": {Cursor: cursor[:cursorTag]},
	} {
		answers := first.sendMessage(queryOf("q", f))
		if len(answers) != 1 || answers[0].Code != disco.CodeStaleCursor {
			t.Errorf("%s: %+v", name, answers)
		}
	}
	second.wantError(second.sendMessage(queryOf("q", disco.Filter{Cursor: cursor})), "q", disco.CodeStaleCursor)
}

// DISC 6.3, 9: a record that can't be told fails a request, unless it is a
// tolerant one, which gets the others. A complete RESULT never lacks one.
func TestDISC6_3_RecordsThatCantBeTold(t *testing.T) {
	huge := agentRecord("2", "huge", 1)
	huge.Label = bytes.Repeat([]byte("x"), disco.MaxPayloadLen)
	s := shelf{agentRecord("1", "a", 1), {ID: []byte("3"), Kind: 9, Revision: 1}, huge, agentRecord("4", "d", 1)}
	s[1].Kind = 9
	r := newRaw(t, Config{Advertise: s.advertise, MaxSubscribers: 4})
	r.wantError(r.sendMessage(queryOf("q", disco.Filter{})), "q", disco.CodeUnknownRecordKind)
	r.wantError(r.sendMessage(subscribeOf("s", disco.Filter{})), "s", disco.CodeUnknownRecordKind)
	answers := r.sendMessage(queryOf("q", disco.Filter{Tolerant: true}))
	if len(answers) != 1 || !answers[0].Complete || ids(answers[0].Records) != "1 4 " {
		t.Errorf("%+v", answers)
	}
	if answers := r.sendMessage(subscribeOf("s", disco.Filter{Tolerant: true})); len(answers) != 1 || ids(answers[0].Records) != "1 4 " {
		t.Errorf("%+v", answers)
	}
	// What can be told and then can't be is withdrawn from who tolerates it.
	bad := agentRecord("1", "a", 2)
	bad.Label = huge.Label
	s[0] = bad
	r.read()
	r.server.Changed()
	if got := r.updates("s", time.Second); got != "-1 ; " {
		t.Errorf("%q", got)
	}
	// One that the filter leaves out fails nothing.
	if answers := r.sendMessage(queryOf("q", disco.Filter{NamePrefix: []byte("d"), Kinds: disco.ListOf(disco.KindAgent)})); len(answers) != 1 || ids(answers[0].Records) != "4 " {
		t.Errorf("%+v", answers)
	}
	// Of the others a page may be told before the one that fails.
	s = shelf{agentRecord("1", "a", 1), {ID: []byte("3"), Kind: 9, Revision: 1}}
	r = newRaw(t, Config{Advertise: s.advertise, MaxResult: 1})
	first := r.sendMessage(queryOf("q", disco.Filter{}))
	if len(first) != 1 || first[0].Type != disco.TypeError && first[0].Complete {
		t.Errorf("%+v", first)
	}
}

// DISC 7.1: an ANNOUNCE is never answered, whatever is wrong with it.
func TestDISC7_1_AnnounceIsNeverAnswered(t *testing.T) {
	r := newRaw(t, Config{Accept: func(*assoc.Association, *disco.Record, *disco.Record) error { return errors.New("no") }})
	good := disco.Message{Type: disco.TypeAnnounce, Records: list(t, agentRecord("1", "a", 1))}
	if answers := r.sendMessage(good); len(answers) != 0 {
		t.Errorf("%+v", answers)
	}
	b := mustAppend(t, good)
	if answers := r.send(disco.TypeAnnounce, append(b, 0)); len(answers) != 0 {
		t.Errorf("%+v", answers)
	}
}

// A long announcement goes in several frames, and one with a record that can't be
// told does not begin.
func TestAnnouncementsInSeveralFrames(t *testing.T) {
	p := newPair(t, Config{MaxResult: 200}, Config{})
	p.announce(agentRecord("1", "a", 1), agentRecord("2", "b", 1), agentRecord("3", "c", 1), agentRecord("4", "d", 1))
	if got := p.held(); got != "1:a/1 2:b/1 3:c/1 4:d/1 " {
		t.Errorf("held %q", got)
	}
	huge := agentRecord("6", "f", 1)
	huge.Label = bytes.Repeat([]byte("x"), disco.MaxPayloadLen)
	err := p.do(func() error {
		return p.client.Announce(t.Context(), p.Client.Association, agentRecord("5", "e", 1), huge)
	})
	p.Run(time.Millisecond)
	if !errors.Is(err, errTooLong) || strings.Contains(p.held(), "5:e") {
		t.Errorf("%v, held %q", err, p.held())
	}
}

// DISC 7.2, 7.3, 11(6): a subscription is acknowledged with what there is, told of
// every record that comes, changes or goes within its filter, and ends with
// UNSUBSCRIBE.
func TestDISC7_2_SubscribeUpdateUnsubscribe(t *testing.T) {
	s := shelf{agentRecord("1", "echo", 1), agentRecord("2", "weather", 1)}
	r := newRaw(t, Config{MaxSubscribers: 4, Advertise: s.advertise})
	answers := r.sendMessage(subscribeOf("s", disco.Filter{NamePrefix: []byte("e")}))
	if len(answers) != 1 || answers[0].Type != disco.TypeResult || string(answers[0].Corr) != "s" || !answers[0].Complete || ids(answers[0].Records) != "1 " {
		t.Fatalf("%+v", answers)
	}
	r.types, r.frames = nil, nil
	step := func(want string, next ...disco.Record) {
		t.Helper()
		s = next
		r.server.Changed()
		if got := r.updates("s", time.Second); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	step("", agentRecord("1", "echo", 1), agentRecord("2", "weather", 1))
	step("", agentRecord("1", "echo", 1))                                                              // outside the filter
	step("+3/7 ; ", agentRecord("1", "echo", 1), agentRecord("3", "eve", 7))                           // came
	step("+1/2 ; ", agentRecord("1", "echo", 2), agentRecord("3", "eve", 7))                           // replaced
	step("-1 ; ", agentRecord("3", "eve", 7))                                                          // went
	step("-3 ; ", agentRecord("3", "adam", 8))                                                         // left the filter
	step("+3/9 +4/1 ; ", agentRecord("4", "ego", 1), agentRecord("3", "eve", 9))                       // both at once
	step("-4 ; +5/1 ; ", agentRecord("3", "eve", 9), agentRecord("5", "emu", 1))                       // both ways at once
	step("-3 ; +3/1 ; ", agentRecord("3", "ern", 1), agentRecord("5", "emu", 1))                       // was given up in between
	step("", agentRecord("3", "ern", 1), agentRecord("5", "emu", 1), agentRecord("5", "emu again", 2)) // ids are told once

	if answers := r.sendMessage(disco.Message{Type: disco.TypeUnsubscribe, Corr: []byte("s")}); len(answers) != 0 {
		t.Errorf("UNSUBSCRIBE was answered: %+v", answers)
	}
	step("")
	step("", agentRecord("9", "end", 1))
	if st := r.server.Stats(); st.Subscribers != 1 || st.Updates != 9 {
		t.Errorf("%+v", st)
	}
	// Its id is free again.
	if answers := r.sendMessage(subscribeOf("s", disco.Filter{})); len(answers) != 1 || ids(answers[0].Records) != "9 " {
		t.Errorf("%+v", answers)
	}
}

// Two subscriptions of one peer are told apart, and a look for changes is made once
// in an interval however often something changes.
func TestChangesAreLookedForOnceInAnInterval(t *testing.T) {
	var s shelf
	looks := 0
	r := newRaw(t, Config{MaxSubscribers: 4, UpdateInterval: time.Second, Advertise: func(*assoc.Association, *disco.Filter) []disco.Record {
		looks++
		return s
	}})
	r.sendMessage(subscribeOf("all", disco.Filter{}))
	r.sendMessage(subscribeOf("some", disco.Filter{NamePrefix: []byte("b")}))
	r.read()
	looks = 0
	for i := range 50 {
		s = append(s, agentRecord(fmt.Sprint(10+i), "agent", 1))
		r.server.Changed()
		r.Run(time.Millisecond)
	}
	if looks != 2 {
		t.Errorf("%d looks within the interval, want one for each subscription", looks)
	}
	s = append(s, agentRecord("99", "b", 1))
	r.Run(2 * time.Second)
	told := map[string]int{}
	for _, m := range r.read() {
		if m.Type != disco.TypeUpdate {
			t.Fatalf("%+v", m)
		}
		told[string(m.Corr)] += m.Records.Len()
	}
	if looks != 4 || told["all"] != 51 || told["some"] != 1 {
		t.Errorf("%d looks, told of %v", looks, told)
	}
}

// DISC 6.2: a snapshot that is too long for one RESULT comes in several, one
// behind the other, and can be asked for by its cursors as well.
func TestDISC7_2_LongSnapshotsComeInPages(t *testing.T) {
	var s shelf
	for i := range 100 {
		s = append(s, agentRecord(fmt.Sprintf("%03d", i), "agent", 1))
	}
	r := newRaw(t, Config{MaxSubscribers: 1, MaxResult: 512, Advertise: s.advertise})
	answers := r.sendMessage(subscribeOf("s", disco.Filter{}))
	n := 0
	for i, a := range answers {
		if a.Type != disco.TypeResult || string(a.Corr) != "s" || a.Complete != (i == len(answers)-1) {
			t.Fatalf("page %d: %+v", i, a)
		}
		n += a.Records.Len()
	}
	if n != 100 || len(answers) < 3 {
		t.Errorf("%d records in %d pages", n, len(answers))
	}
	cursor := bytes.Clone(answers[0].Cursor)
	for _, corr := range []string{"s", "other"} {
		got := r.sendMessage(queryOf(corr, disco.Filter{Cursor: cursor}))
		if len(got) != 1 || ids(got[0].Records) != ids(answers[1].Records) {
			t.Errorf("asked for under %q: %+v", corr, got)
		}
	}
}

// DISC 7.2, 9, 10: subscriptions may be declined: all of them, those beyond a
// number, by policy, during a drain, for too many records.
func TestDISC9_6_SubscriptionRefused(t *testing.T) {
	var s shelf
	refused := func(r *raw, corr string) {
		t.Helper()
		r.wantError(r.sendMessage(subscribeOf(corr, disco.Filter{})), corr, disco.CodeSubscriptionRefused)
	}
	accepted := func(r *raw, corr string) {
		t.Helper()
		if a := r.sendMessage(subscribeOf(corr, disco.Filter{})); len(a) != 1 || a[0].Type != disco.TypeResult {
			t.Errorf("%s: %+v", corr, a)
		}
	}
	refused(newRaw(t, Config{Advertise: s.advertise}), "none")

	r := newRaw(t, Config{MaxSubscribers: 2, Advertise: s.advertise})
	accepted(r, "1")
	accepted(r, "2")
	refused(r, "3")
	r.sendMessage(disco.Message{Type: disco.TypeUnsubscribe, Corr: []byte("1")})
	accepted(r, "4")

	r = newRaw(t, Config{MaxSubscribers: 2, Advertise: s.advertise, Admit: func(_ *assoc.Association, m *disco.Message) error {
		if m.Type == disco.TypeSubscribe {
			return errors.New("not for you")
		}
		return nil
	}})
	refused(r, "policy")

	r = newRaw(t, Config{MaxSubscribers: 2, MaxCollected: 1, Advertise: s.advertise})
	s = shelf{agentRecord("1", "a", 1), agentRecord("2", "b", 1)}
	refused(r, "many")
	s = s[:1]
	accepted(r, "few")
	s = append(s[:1:1], agentRecord("2", "b", 1), agentRecord("3", "c", 1))
	r.read()
	r.server.Changed()
	r.Run(time.Second)
	r.wantError(r.read(), "few", disco.CodeSubscriptionRefused) // it grew: better no more than in part
	if len(r.server.telling) != 0 {
		t.Error("the subscription is still held")
	}

	r = newRaw(t, Config{MaxSubscribers: 2, Burst: 1, Advertise: (&shelf{}).advertise})
	accepted(r, "1")
	refused(r, "too often")

	r = newRaw(t, Config{MaxSubscribers: 2, Advertise: (&shelf{}).advertise})
	c, err := r.server.conn(r.Server.Association)
	if err != nil {
		t.Fatal(err)
	}
	c.HandleDrain()
	refused(r, "draining")
	if a := r.sendMessage(queryOf("q", disco.Filter{})); len(a) != 1 || a[0].Type != disco.TypeResult {
		t.Errorf("a query while draining: %+v", a)
	}
}

// DISC 9: discovery that policy has turned off is NotAdvertised; a policy may also
// name another code.
func TestDISC9_7_NotAdvertised(t *testing.T) {
	refusal := errors.New("no discovery here")
	r := newRaw(t, Config{Admit: func(a *assoc.Association, m *disco.Message) error { return refusal }})
	answers := r.sendMessage(queryOf("q", disco.Filter{}))
	r.wantError(answers, "q", disco.CodeNotAdvertised)
	if len(answers[0].Reason) != 0 {
		t.Errorf("the peer was told %q", answers[0].Reason)
	}
	refusal = disco.ErrFilterUnsupported
	r.wantError(r.sendMessage(queryOf("q", disco.Filter{})), "q", disco.CodeFilterUnsupported)
}

// DISC 7.3: an UNSUBSCRIBE of nothing is ignored.
func TestDISC7_3_UnsubscribeIsIdempotent(t *testing.T) {
	r := newRaw(t, Config{MaxSubscribers: 1, Advertise: (&shelf{}).advertise})
	r.sendMessage(subscribeOf("s", disco.Filter{}))
	for range 3 {
		if answers := r.sendMessage(disco.Message{Type: disco.TypeUnsubscribe, Corr: []byte("s")}); len(answers) != 0 {
			t.Errorf("%+v", answers)
		}
	}
	if r.Server.Err() != nil {
		t.Error(r.Server.Err())
	}
}

// DISC 4.3, 8: subscriptions end with their association.
func TestDISC8_SubscriptionsEndWithTheirAssociation(t *testing.T) {
	s := shelf{agentRecord("1", "a", 1)}
	r := newRaw(t, Config{MaxSubscribers: 1, Advertise: s.advertise})
	r.sendMessage(subscribeOf("s", disco.Filter{}))
	r.Cut(nil)
	r.Run(time.Second)
	if len(r.server.telling) != 0 {
		t.Error("a subscription outlives its association")
	}
	r.server.Changed() // and nothing happens
}

// A peer that reads nothing for a while misses nothing: what it has not been told
// waits, as the difference to what it knows.
func TestSubscribersWithoutRoomAreToldLater(t *testing.T) {
	var s shelf
	fill := func(from, n int, revision uint64) {
		for i := range n {
			r := agentRecord(fmt.Sprintf("%04d", from+i), "agent", revision)
			r.Label = bytes.Repeat([]byte("x"), 200)
			s = append(s, r)
		}
	}
	fill(0, 2000, 1)
	d := New(Config{MaxSubscribers: 1, MaxResult: 32 << 10, Advertise: s.advertise})
	r := &raw{t: t, server: d}
	r.Pair = nptest.NewPair(t, nptest.Options{
		Client: assoc.Options{Handlers: []assoc.ChannelHandler{r}},
		Server: assoc.Options{Handlers: []assoc.ChannelHandler{d}, OutboundLimit: 64 << 10},
	})
	r.Run(time.Millisecond)
	r.Server.Block(true)
	b := assoc.NewBuf(100)
	b.B = append(b.B, mustAppend(t, subscribeOf("s", disco.Filter{}))...)
	if err := r.Client.SendBuf(wire.ChannelDiscovery, disco.TypeSubscribe, b); err != nil {
		t.Fatal(err)
	}
	r.Run(time.Second)
	s = nil
	fill(1000, 1500, 2) // 0 to 999 went, 1000 to 1999 changed, 2000 to 2499 came
	d.Changed()
	r.Run(time.Second)
	r.Server.Block(false)
	r.Run(5 * time.Second)
	known := map[string]uint64{}
	whole := false
	for _, m := range r.read() {
		for rec := range m.Records.All() {
			if known[string(rec.ID)] >= rec.Revision {
				t.Fatalf("%q told twice", rec.ID)
			}
			known[string(rec.ID)] = rec.Revision
		}
		for id := range m.Withdrawn.All() {
			delete(known, string(id))
		}
		if m.Type == disco.TypeResult && m.Complete {
			whole = true
		}
	}
	if !whole || len(known) != len(s) {
		t.Fatalf("whole %v, %d records are known, want %d", whole, len(known), len(s))
	}
	for _, rec := range s {
		if known[string(rec.ID)] != rec.Revision {
			t.Fatalf("%q at %d", rec.ID, known[string(rec.ID)])
		}
	}
}

// DISC 8, 11(4): a RESULT or an UPDATE renews what is held, an UPDATE withdraws it,
// and absence means nothing.
func TestDISC8_WhatIsHeldIsRenewedAndWithdrawn(t *testing.T) {
	var accepted, withdrawn []string
	p, d := newPeer(t, Config{
		Accept: func(_ *assoc.Association, r, _ *disco.Record) error {
			accepted = append(accepted, fmt.Sprintf("%s/%d", r.ID, r.Revision))
			return nil
		},
		Withdrawn: func(_ *assoc.Association, r *disco.Record) { withdrawn = append(withdrawn, string(r.Agent.AgentID)) },
	})
	held := func() (s string) {
		for _, r := range d.Records(p.Server.Association) {
			s += fmt.Sprintf("%s:%s/%d ", r.ID, r.Agent.AgentID, r.Revision)
		}
		return s
	}
	p.putMessage(disco.Message{Type: disco.TypeAnnounce, Records: list(t, agentRecord("1", "a", 3), agentRecord("2", "b", 3))})
	p.Settle()
	q := p.ask(d, disco.Filter{})
	p.result(q.corr, true, nil, agentRecord("1", "new", 4), agentRecord("3", "c", 1))
	if got := idsOf(q.wait(t, p)); got != "1 3 " {
		t.Errorf("%q", got)
	}
	if got := held(); got != "1:new/4 2:b/3 " { // 2 is still there, and 3 was not announced
		t.Errorf("held %q", got)
	}
	q = p.ask(d, disco.Filter{})
	p.result(q.corr, true, nil, agentRecord("1", "old", 4), agentRecord("2", "older", 2))
	q.wait(t, p)
	if got := held(); got != "1:new/4 2:b/3 " {
		t.Errorf("held %q", got)
	}
	w := p.follow(d, disco.Filter{})
	p.result(w.corr, true, nil)
	w.wait(t, p)
	p.putMessage(disco.Message{Type: disco.TypeUpdate, Corr: w.corr, Records: list(t, agentRecord("2", "bee", 9)), Withdrawn: mustIDs(t, "1", "7")})
	p.Settle()
	if got := held(); got != "2:bee/9 " {
		t.Errorf("held %q", got)
	}
	if fmt.Sprint(accepted) != "[1/3 2/3 1/4 2/9]" || fmt.Sprint(withdrawn) != "[new]" || d.Stats().Withdrawn != 1 {
		t.Errorf("accepted %v, withdrawn %v, %+v", accepted, withdrawn, d.Stats())
	}
}

// peer is the other side of a Discovery that asks: what it asks is read, and
// answered, by the test.
type peer struct {
	*raw
	t *testing.T
}

func newPeer(t *testing.T, cfg Config) (*peer, *Discovery) {
	d := New(cfg)
	p := &peer{raw: &raw{t: t}, t: t}
	p.Pair = nptest.NewPair(t, nptest.Options{
		Client: assoc.Options{Handlers: []assoc.ChannelHandler{p.raw}},
		Server: assoc.Options{Handlers: []assoc.ChannelHandler{d}},
	})
	p.Run(time.Millisecond)
	return p, d
}

func newRawOn(t *testing.T, d *Discovery) *raw {
	r := &raw{t: t, server: d}
	r.Pair = nptest.NewPair(t, nptest.Options{
		Client: assoc.Options{Handlers: []assoc.ChannelHandler{r}},
		Server: assoc.Options{Handlers: []assoc.ChannelHandler{d}},
	})
	r.Run(time.Millisecond)
	return r
}

func (p *peer) put(typ wire.FrameType, payload []byte) {
	p.t.Helper()
	b := assoc.NewBuf(len(payload))
	b.B = append(b.B, payload...)
	if err := p.Client.SendBuf(wire.ChannelDiscovery, typ, b); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) putMessage(m disco.Message) { p.t.Helper(); p.put(m.Type, mustAppend(p.t, m)) }

func (p *peer) result(corr []byte, complete bool, cursor []byte, records ...disco.Record) {
	p.t.Helper()
	p.putMessage(disco.Message{Type: disco.TypeResult, Corr: corr, Records: list(p.t, records...), Complete: complete, Cursor: cursor})
	p.Settle()
}

// next is the next frame from the Discovery.
func (p *peer) next() disco.Message {
	p.t.Helper()
	p.RunUntil(func() bool { return len(p.frames) > 0 })
	var m disco.Message
	if err := disco.Parse(&m, p.types[0], p.frames[0]); err != nil {
		p.t.Fatal(err)
	}
	p.types, p.frames = p.types[1:], p.frames[1:]
	return m
}

// asked is a Query or a Subscribe that is under way.
type asked struct {
	corr    []byte
	filter  disco.Filter
	done    chan error
	records []disco.Record
	sub     *Subscription
}

func (p *peer) ask(d *Discovery, f disco.Filter) *asked {
	p.t.Helper()
	q := &asked{done: make(chan error, 1)}
	go func() {
		var err error
		q.records, err = d.Query(p.t.Context(), p.Server.Association, f)
		q.done <- err
	}()
	m := p.next()
	if m.Type != disco.TypeQuery {
		p.t.Fatalf("%+v", m)
	}
	q.corr, q.filter = bytes.Clone(m.Corr), m.Filter
	return q
}

func (p *peer) follow(d *Discovery, f disco.Filter) *asked {
	p.t.Helper()
	q := &asked{done: make(chan error, 1)}
	go func() {
		var err error
		q.sub, err = d.Subscribe(p.t.Context(), p.Server.Association, f)
		q.done <- err
	}()
	m := p.next()
	if m.Type != disco.TypeSubscribe || m.Filter.Cursor != nil {
		p.t.Fatalf("%+v", m)
	}
	q.corr, q.filter = bytes.Clone(m.Corr), m.Filter
	return q
}

func (q *asked) outcome(t *testing.T, p *peer) ([]disco.Record, error) {
	t.Helper()
	var err error
	p.RunUntil(func() bool {
		select {
		case err = <-q.done:
			return true
		default:
			return false
		}
	})
	return q.records, err
}

func (q *asked) wait(t *testing.T, p *peer) []disco.Record {
	t.Helper()
	records, err := q.outcome(t, p)
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// say writes a Change as changes does.
func say(c Change) (s string) {
	for _, r := range c.Added {
		s += fmt.Sprintf("+%s/%d ", r.ID, r.Revision)
	}
	for _, id := range c.Withdrawn {
		s += fmt.Sprintf("-%s ", id)
	}
	return s
}

// change is what Next has to tell now.
func (q *asked) change(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c, err := q.sub.Next(ctx)
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	return say(c)
}

func (p *peer) tellChange(q *asked, added []disco.Record, withdrawn ...string) {
	p.t.Helper()
	m := disco.Message{Type: disco.TypeUpdate, Corr: q.corr}
	if added != nil {
		m.Records = list(p.t, added...)
	}
	if withdrawn != nil {
		m.Withdrawn = mustIDs(p.t, withdrawn...)
	}
	p.putMessage(m)
	p.Settle()
}

// DISC 7.2: a subscriber applies what it is told by record id, with greater
// revisions only, and tells its own side of every change.
func TestDISC7_2_SubscriberAppliesUpdates(t *testing.T) {
	p, d := newPeer(t, Config{})
	q := p.follow(d, disco.Filter{Kinds: disco.ListOf(disco.KindAgent), NamePrefix: []byte("e")})
	if !q.filter.Kinds.Contains(4) || string(q.filter.NamePrefix) != "e" {
		t.Errorf("asked for %+v", q.filter)
	}
	p.result(q.corr, true, nil, agentRecord("1", "e1", 1), agentRecord("2", "e2", 1))
	q.wait(t, p)
	if got := idsOf(q.sub.Records()); got != "1 2 " {
		t.Errorf("the snapshot is %q", got)
	}
	records := func(r ...disco.Record) []disco.Record { return r }
	for _, step := range []struct {
		added     []disco.Record
		withdrawn []string
		now       string
		change    string
	}{
		{nil, []string{"9"}, "1 2 ", "+1/1 +2/1 "},
		{records(agentRecord("3", "e3", 5)), nil, "1 2 3 ", "+3/5 "},
		{records(agentRecord("3", "old", 5), agentRecord("1", "older", 0)), nil, "1 2 3 ", ""},
		{records(agentRecord("3", "e3", 6), agentRecord("4", "e4", 1)), []string{"1"}, "2 3 4 ", "+3/6 +4/1 -1 "},
		{records(agentRecord("1", "e1", 1)), nil, "1 2 3 4 ", "+1/1 "}, // a new life of the id
		{records(agentRecord("5", "e5", 1)), []string{"5"}, "1 2 3 4 ", ""},
	} {
		p.tellChange(q, step.added, step.withdrawn...)
		if now, change := idsOf(q.sub.Records()), q.change(t); now != step.now || change != step.change {
			t.Errorf("now %q, changed %q, want %q, %q", now, change, step.now, step.change)
		}
	}
	// Several changes between two looks are one.
	p.tellChange(q, nil, "1")
	p.tellChange(q, records(agentRecord("1", "e1", 1)))
	p.tellChange(q, nil, "1", "2")
	p.tellChange(q, records(agentRecord("6", "e6", 1)))
	p.tellChange(q, nil, "6")
	if got := q.change(t); got != "-1 -2 " {
		t.Errorf("%q", got)
	}

	// DISC 7.3.
	q.sub.Close()
	q.sub.Close()
	if m := p.next(); m.Type != disco.TypeUnsubscribe || !bytes.Equal(m.Corr, q.corr) {
		t.Errorf("%+v", m)
	}
	p.Settle()
	if len(p.frames) != 0 {
		t.Error("more than one UNSUBSCRIBE")
	}
	before := d.Stats().Dropped
	p.tellChange(q, records(agentRecord("7", "e7", 1)))
	if d.Stats().Dropped != before+1 {
		t.Error("an UPDATE after the end was not dropped")
	}
	if _, err := q.sub.Next(t.Context()); !errors.Is(err, ErrUnsubscribed) || len(q.sub.Records()) != 0 {
		t.Errorf("%v", err)
	}
	<-q.sub.Done()
}

// Next waits for what comes.
func TestNextWaitsForAChange(t *testing.T) {
	var s shelf
	p := newPair(t, Config{}, Config{MaxSubscribers: 1, Advertise: s.advertise})
	var sub *Subscription
	if err := p.do(func() (err error) {
		sub, err = p.client.Subscribe(t.Context(), p.Client.Association, disco.Filter{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 1)
	go func() {
		c, err := sub.Next(t.Context())
		got <- say(c) + fmt.Sprint(err)
	}()
	s = shelf{agentRecord("1", "a", 1)}
	p.server.Changed()
	p.RunUntil(func() bool { return len(got) == 1 })
	if g := <-got; g != "+1/1 <nil>" {
		t.Error(g)
	}
	go func() {
		_, err := sub.Next(t.Context())
		got <- fmt.Sprint(errors.Is(err, assoc.ErrClosed))
	}()
	p.Cut(nil)
	p.Run(time.Second)
	if g := <-got; g != "true" {
		t.Error(g)
	}
}

// DISC 6.2: the rest of a snapshot may have to be asked for, with the filter
// unchanged, and it may come by itself.
func TestDISC6_2_RestOfASnapshotIsAskedFor(t *testing.T) {
	filter := disco.Filter{Kinds: disco.ListOf(disco.KindAgent)}
	t.Run("asked for", func(t *testing.T) {
		p, d := newPeer(t, Config{})
		q := p.follow(d, filter)
		p.result(q.corr, false, []byte("c1"), agentRecord("1", "a", 1))
		m := p.next()
		if m.Type != disco.TypeQuery || string(m.Filter.Cursor) != "c1" || !m.Filter.Kinds.Contains(4) || bytes.Equal(m.Corr, q.corr) {
			t.Fatalf("%+v", m)
		}
		corr := bytes.Clone(m.Corr)
		p.result(corr, false, []byte("c2"), agentRecord("2", "b", 1))
		if m := p.next(); m.Type != disco.TypeQuery || string(m.Filter.Cursor) != "c2" {
			t.Fatalf("%+v", m)
		}
		p.tellChange(q, []disco.Record{agentRecord("1", "a", 2)}) // changes may come in between
		p.result(corr, true, nil, agentRecord("3", "c", 1))
		q.wait(t, p)
		if got := q.change(t); got != "+1/2 +2/1 +3/1 " {
			t.Errorf("%q", got)
		}
		c, err := d.conn(p.Server.Association)
		if err != nil || len(c.queries) != 0 {
			t.Error("a query is still held")
		}
	})
	t.Run("by itself", func(t *testing.T) {
		p, d := newPeer(t, Config{})
		q := p.follow(d, filter)
		p.result(q.corr, false, []byte("c1"), agentRecord("1", "a", 1))
		p.result(q.corr, false, []byte("c2"), agentRecord("2", "b", 1))
		p.result(q.corr, true, nil, agentRecord("3", "c", 1))
		q.wait(t, p)
		if got := q.change(t); got != "+1/1 +2/1 +3/1 " {
			t.Errorf("%q", got)
		}
		asked := p.next() // it could not know
		if len(p.frames) != 0 {
			t.Error("asked more than once")
		}
		p.putMessage(disco.Message{Type: disco.TypeError, Corr: asked.Corr, Code: disco.CodeStaleCursor})
		p.Settle()
		if q.sub.Err() != nil {
			t.Error(q.sub.Err())
		}
	})
	t.Run("between two of us", func(t *testing.T) {
		var s shelf
		for i := range 500 {
			s = append(s, agentRecord(fmt.Sprintf("%03d", i), "agent", 1))
		}
		p := newPair(t, Config{}, Config{MaxSubscribers: 1, MaxResult: 1 << 10, Advertise: s.advertise})
		var sub *Subscription
		if err := p.do(func() (err error) {
			sub, err = p.client.Subscribe(t.Context(), p.Client.Association, filter)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if n := len(sub.Records()); n != 500 {
			t.Errorf("%d records", n)
		}
		p.Run(time.Second)
		if n := len(p.conn(t).queries); n != 0 {
			t.Errorf("%d queries are still held", n)
		}
	})
}

// How subscriptions of ours end: the peer declines or breaks off, says something
// that can't be understood, has more than is collected; the caller gives up.
func TestSubscriptionEnds(t *testing.T) {
	unsubscribed := func(t *testing.T, p *peer, q *asked, want bool) {
		t.Helper()
		p.Settle()
		got := len(p.frames) > 0 && p.types[len(p.types)-1] == disco.TypeUnsubscribe
		if got != want {
			t.Errorf("UNSUBSCRIBE sent: %v", got)
		}
	}
	whole := func(t *testing.T, p *peer, d *Discovery, f disco.Filter) *asked {
		q := p.follow(d, f)
		p.result(q.corr, true, nil, agentRecord("1", "a", 1))
		q.wait(t, p)
		return q
	}
	t.Run("declined", func(t *testing.T) {
		p, d := newPeer(t, Config{})
		q := p.follow(d, disco.Filter{})
		p.putMessage(disco.Message{Type: disco.TypeError, Corr: q.corr, Code: disco.CodeSubscriptionRefused, Reason: []byte("no")})
		_, err := q.outcome(t, p)
		var said *disco.PeerError
		if !errors.Is(err, disco.ErrSubscriptionRefused) || !errors.As(err, &said) || said.Reason != "no" {
			t.Errorf("%v", err)
		}
		unsubscribed(t, p, q, false)
	})
	t.Run("broken off", func(t *testing.T) {
		p, d := newPeer(t, Config{})
		q := whole(t, p, d, disco.Filter{})
		p.putMessage(disco.Message{Type: disco.TypeError, Corr: q.corr, Code: disco.CodeNotAdvertised})
		p.Settle()
		if err := q.sub.Err(); !errors.Is(err, disco.ErrNotAdvertised) {
			t.Errorf("%v", err)
		}
		unsubscribed(t, p, q, false)
	})
	t.Run("unknown kind", func(t *testing.T) {
		for _, tolerant := range []bool{false, true} {
			p, d := newPeer(t, Config{})
			q := whole(t, p, d, disco.Filter{Tolerant: tolerant})
			b := mustAppend(t, disco.Message{Type: disco.TypeUpdate, Corr: q.corr, Records: list(t, agentRecord("2", "b", 1))})
			p.put(disco.TypeUpdate, bytes.Replace(b, []byte{1, 4, 2}, []byte{1, 9, 2}, 1))
			p.Settle()
			if err := q.sub.Err(); errors.Is(err, disco.ErrUnknownRecordKind) == tolerant {
				t.Errorf("tolerant %v: %v", tolerant, err)
			}
			unsubscribed(t, p, q, !tolerant)
		}
	})
	t.Run("malformed", func(t *testing.T) {
		p, d := newPeer(t, Config{})
		q := whole(t, p, d, disco.Filter{})
		p.put(disco.TypeUpdate, append(mustAppend(t, disco.Message{Type: disco.TypeUpdate, Corr: q.corr, Withdrawn: mustIDs(t, "1")}), 0))
		p.Settle()
		if err := q.sub.Err(); !errors.Is(err, disco.ErrMalformedPayload) {
			t.Errorf("%v", err)
		}
		unsubscribed(t, p, q, true)
	})
	t.Run("too many", func(t *testing.T) {
		p, d := newPeer(t, Config{MaxCollected: 2})
		q := whole(t, p, d, disco.Filter{})
		p.tellChange(q, []disco.Record{agentRecord("2", "b", 1)})
		p.tellChange(q, []disco.Record{agentRecord("2", "b", 2)})
		p.tellChange(q, []disco.Record{agentRecord("3", "c", 1)})
		if err := q.sub.Err(); !errors.Is(err, ErrTooMany) {
			t.Errorf("%v", err)
		}
		unsubscribed(t, p, q, true)
	})
	t.Run("too much", func(t *testing.T) {
		p, d := newPeer(t, Config{MaxCollectedOctets: 100})
		q := whole(t, p, d, disco.Filter{})
		long := agentRecord("2", "b", 1)
		long.Label = bytes.Repeat([]byte("x"), 100)
		p.tellChange(q, []disco.Record{long})
		if err := q.sub.Err(); !errors.Is(err, ErrTooMany) {
			t.Errorf("%v", err)
		}
	})
	t.Run("given up", func(t *testing.T) {
		p, d := newPeer(t, Config{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := d.Subscribe(ctx, p.Server.Association, disco.Filter{})
			done <- err
		}()
		if m := p.next(); m.Type != disco.TypeSubscribe {
			t.Fatalf("%+v", m)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		if m := p.next(); m.Type != disco.TypeUnsubscribe {
			t.Errorf("%+v", m)
		}
	})
	t.Run("association lost", func(t *testing.T) {
		p, d := newPeer(t, Config{})
		q, late := whole(t, p, d, disco.Filter{}), p.follow(d, disco.Filter{})
		p.Cut(nil)
		p.Run(time.Second)
		if err := q.sub.Err(); !errors.Is(err, assoc.ErrClosed) {
			t.Errorf("%v", err)
		}
		if _, err := late.outcome(t, p); !errors.Is(err, assoc.ErrClosed) {
			t.Errorf("%v", err)
		}
		if _, err := d.Subscribe(t.Context(), p.Server.Association, disco.Filter{}); !errors.Is(err, assoc.ErrClosed) {
			t.Errorf("%v", err)
		}
	})
	t.Run("too many of them", func(t *testing.T) {
		p, d := newPeer(t, Config{MaxSubscriptions: 1})
		whole(t, p, d, disco.Filter{})
		done := make(chan error, 1)
		go func() {
			_, err := d.Subscribe(t.Context(), p.Server.Association, disco.Filter{})
			done <- err
		}()
		p.RunUntil(func() bool { return len(done) > 0 })
		if err := <-done; !errors.Is(err, ErrBusy) {
			t.Errorf("%v", err)
		}
		other := New(Config{})
		if _, err := other.Subscribe(t.Context(), p.Server.Association, disco.Filter{}); !errors.Is(err, ErrNoChannel) {
			t.Errorf("%v", err)
		}
	})
}

// An answer that can't be read ends the query that it is for.
func TestMalformedAnswersEndTheirQuery(t *testing.T) {
	p, d := newPeer(t, Config{})
	q := p.ask(d, disco.Filter{})
	p.put(disco.TypeResult, append(mustAppend(t, disco.Message{Type: disco.TypeResult, Corr: q.corr, Records: list(t), Complete: true}), 0))
	if _, err := q.outcome(t, p); !errors.Is(err, disco.ErrMalformedPayload) {
		t.Errorf("%v", err)
	}
	q = p.ask(d, disco.Filter{})
	p.result(q.corr, false, bytes.Repeat([]byte("c"), MaxCursorLen+1), agentRecord("1", "a", 1))
	if _, err := q.outcome(t, p); !errors.Is(err, ErrCursor) {
		t.Errorf("%v", err)
	}
}

// documents is a ChannelConn for Bridge messages on the Discovery channel.
type documents struct {
	frames []string
	calls  []string
}

func (d *documents) HandleFrame(t wire.FrameType, payload []byte) {
	d.frames = append(d.frames, fmt.Sprintf("%#x %x", uint16(t), payload))
}
func (d *documents) HandleHello(*control.Hello) { d.calls = append(d.calls, "hello") }
func (d *documents) HandleRoom()                { d.calls = append(d.calls, "room") }
func (d *documents) HandleDrain()               { d.calls = append(d.calls, "drain") }
func (d *documents) Busy() int                  { return 3 }
func (d *documents) HandleClose(err error)      { d.calls = append(d.calls, "close") }

// D25: by how the plaintext starts, one type is Discovery's or the Bridge's.
func TestD25_BridgeMessagesGoToTheirHandler(t *testing.T) {
	docs := &documents{}
	attached := 0
	r := newRaw(t, Config{Documents: func(*assoc.Association) assoc.ChannelConn {
		attached++
		return docs
	}})
	if answers := r.send(disco.TypeQuery, []byte{0x00, 0x10, 0x00, 0x01, 0xFF}); len(answers) != 0 {
		t.Errorf("%+v", answers)
	}
	for _, payload := range [][]byte{{0x00, 0x11, 0x00, 0x00}, {0x00}, {0x10, 0x00}, {0x80}, nil} {
		r.send(disco.TypeResult, payload)
	}
	r.send(0x0107, []byte{0x00, 0x10, 0x00, 0x00})
	if answers := r.sendMessage(queryOf("q", disco.Filter{})); len(answers) != 1 || answers[0].Type != disco.TypeResult {
		t.Errorf("%+v", answers)
	}
	if attached != 1 || len(docs.frames) != 1 || docs.frames[0] != "0x100 00100001ff" {
		t.Errorf("attached %d times, got %q", attached, docs.frames)
	}
	if s := r.server.Stats(); s.Documents != 1 || s.Dropped != 6 {
		t.Errorf("%+v", s)
	}
	c, err := r.server.conn(r.Server.Association)
	if err != nil || c.Busy() != 3 {
		t.Error("what it is busy with does not count")
	}
	c.HandleRoom()
	c.HandleDrain()
	r.Cut(nil)
	r.Run(time.Second)
	if got := fmt.Sprint(docs.calls); got != "[hello room drain close]" {
		t.Errorf("told of %s", got)
	}
}

// Whatever a peer answers, what is asked of it ends or goes on, within its bounds,
// and the association lives.
func FuzzAnswers(f *testing.F) {
	records, _, err := disco.AppendRecords(nil, agentRecord("1", "a", 1), agentRecord("2", "b", 2))
	if err != nil {
		f.Fatal(err)
	}
	gone, err := disco.IDsOf([]byte("1"))
	if err != nil {
		f.Fatal(err)
	}
	for _, m := range []disco.Message{
		{Type: disco.TypeResult, Corr: []byte("c"), Records: records, Complete: true},
		{Type: disco.TypeResult, Corr: []byte("c"), Records: records, Cursor: []byte("more")},
		{Type: disco.TypeError, Corr: []byte("c"), Code: 5},
		{Type: disco.TypeUpdate, Corr: []byte("c"), Records: records, Withdrawn: gone},
		{Type: disco.TypeAnnounce, Records: records},
	} {
		b, err := m.Append(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint16(m.Type), b, uint16(m.Type), b, true)
	}
	f.Fuzz(func(t *testing.T, typ1 uint16, one []byte, typ2 uint16, two []byte, watch bool) {
		if typ1 < 0x0100 || typ2 < 0x0100 {
			return
		}
		cfg := Config{MaxCollected: 3, MaxCollectedOctets: 200, MaxRecords: 3, MaxOctets: 200}
		p, d := newPeer(t, cfg)
		c, err := d.conn(p.Server.Association)
		if err != nil {
			t.Fatal(err)
		}
		// Under a correlation id that the fuzzer knows.
		q := &query{corr: []byte("c"), done: make(chan error, 2)}
		s := &Subscription{
			c: c, corr: []byte("c"), wake: make(chan struct{}, 1), ready: make(chan struct{}), done: make(chan struct{}),
			changed: make(map[string]struct{}), gone: make(map[string]struct{}), told: make(map[string]struct{}),
		}
		p.Server.Do(func() {
			if watch {
				c.watch(s)
			} else {
				c.begin(q)
			}
		})
		p.Settle()
		for _, frame := range []struct {
			t wire.FrameType
			b []byte
		}{{wire.FrameType(typ1), one}, {wire.FrameType(typ2), two}, {wire.FrameType(typ1), one}} {
			p.put(frame.t, frame.b)
			p.Run(time.Millisecond)
			if watch && s.Err() == nil {
				if _, err := s.take(); err != nil {
					t.Fatal(err)
				}
			}
			s.mu.Lock()
			if n := len(s.set.records); n > 3 || s.set.octets > 200 || len(s.changed) > n || len(s.gone) > 6 || len(s.told) > 6 {
				t.Fatalf("%d records of %d octets", n, s.set.octets)
			}
			s.mu.Unlock()
		}
		if len(q.set.records) > 3 || len(d.Records(p.Server.Association)) > 3 {
			t.Fatal("more is held than may be")
		}
		if len(q.done) > 1 {
			t.Fatal("ended twice")
		}
		if p.Server.Err() != nil {
			t.Fatal(p.Server.Err())
		}
	})
}

// A record that can't be told is logged, and not once for everybody who asks.
func TestRecordsThatCantBeToldAreLoggedSeldom(t *testing.T) {
	var log bytes.Buffer
	s := shelf{{ID: []byte("1"), Kind: 9, Revision: 1}}
	r := newRaw(t, Config{Burst: 1000, Advertise: s.advertise, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for range 50 {
		r.sendMessage(queryOf("q", disco.Filter{}))
	}
	r.Run(refusalInterval)
	r.sendMessage(queryOf("q", disco.Filter{}))
	if n := strings.Count(log.String(), "can't be told"); n != 2 || !strings.Contains(log.String(), "count=50") {
		t.Errorf("%d lines:\n%s", n, &log)
	}
}
