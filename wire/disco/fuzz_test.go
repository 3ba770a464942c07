package disco

import (
	"reflect"
	"testing"

	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/cbor"
)

// A message that is accepted says the same after it was written and read again;
// its lists give as many entries as they claim, and its records can be written
// anew. One that is refused has a code and leaves nothing but its correlation id.
func FuzzParse(f *testing.F) {
	for _, m := range fullMessages() {
		f.Add(uint16(m.Type), must(m.Append(nil)))
	}
	f.Add(uint16(TypeAnnounce), msg(f, TypeAnnounce, 1, "02 82 a4 00 4172 01 09 02 05 04 a1 20 00 a4 00 4173 01 04 02 05 04 a2 00 4161 01 81 02"))
	f.Add(uint16(TypeResult), msg(f, TypeResult, 4, corrC1+"02 81 a5 00 4172 01 04 02 05 04 a3 00 4161 01 81 02 09 a1 20 00 18aa f6 03 f5 1903e8 80"))
	f.Add(uint16(TypeQuery), msg(f, TypeSubscribe, 1, corrC1))
	f.Add(uint16(TypeQuery), msg(f, TypeQuery, 2, corrC1+"02 9bffffffffffffffff"))
	f.Fuzz(func(t *testing.T, typ uint16, payload []byte) {
		var m, again Message
		err := Parse(&m, wire.FrameType(typ), payload)
		if err != nil {
			if _, ok := CodeOf(err); !ok {
				t.Fatalf("error %v has no code", err)
			}
			if err == ErrKindMismatch && cbor.Valid(payload) != nil {
				t.Fatal("a wrong kind hides a wrong encoding")
			}
			if !reflect.DeepEqual(m, Message{Type: wire.FrameType(typ), Corr: m.Corr}) {
				t.Fatalf("a refused message left %+v", m)
			}
			return
		}
		if !IsMessage(payload) || cbor.Valid(payload) != nil {
			t.Fatal("accepted what is no deterministic map")
		}
		out, err := m.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := Parse(&again, m.Type, out); err != nil || !reflect.DeepEqual(again, m) {
			t.Fatalf("%+v came back as %+v: %v", m, again, err)
		}
		var records []Record
		for r := range m.Records.All() {
			records = append(records, *r)
			m.Filter.Match(r)
		}
		if len(records) != m.Records.Len()-m.UnknownKinds {
			t.Fatalf("%d records of %d, %d unknown", len(records), m.Records.Len(), m.UnknownKinds)
		}
		list, _, err := AppendRecords(nil, records...)
		if err != nil {
			t.Fatal(err)
		}
		i := 0
		for r := range list.All() {
			if !reflect.DeepEqual(*r, records[i]) {
				t.Fatalf("%+v came back as %+v", records[i], *r)
			}
			i++
		}
		ids := 0
		for range m.Withdrawn.All() {
			ids++
		}
		if i != len(records) || ids != m.Withdrawn.Len() {
			t.Fatalf("%d of %d records, %d of %d ids", i, len(records), ids, m.Withdrawn.Len())
		}
	})
}
