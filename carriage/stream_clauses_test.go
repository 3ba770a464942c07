package carriage_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// CC-STREAM 4: the TLVs of a frame are found by their types, in whatever order they
// stand; 5.3: StreamControl is type 0x0011.
func TestCCSTREAM4_TLVsAreFoundByTheirType(t *testing.T) {
	const control, label = "0011 000b 01 00 00 0000000000000001", "0013 0002 00 00"
	for _, tlvs := range []string{control, control + label, label + control} {
		pair, _, p, s, _ := consuming(t)
		p.script(t, "0104 0010 0007 01 05 01 00 01'1' 00 "+tlvs+"'an event'")
		pair.Settle()
		s.want(t, 1, "an event")
	}
	pair, _, p, producer, _ := producing(t, carriage.StreamOptions{})
	must(t, producer.TrySend([]byte("an event")))
	pair.Settle()
	p.wrote(t, "0104 0010 0007 01 05 01 00 01'1' 00"+control+"'an event'")
	if wire.TagStreamControl != 0x0011 || wire.TLVType(wire.TagStreamControl).Critical() {
		t.Error("StreamControl has another type")
	}
}

// CC-STREAM 5.1: event ids may have gaps, and the end's is greater than all.
func TestCCSTREAM5_1_IDsMayHaveGaps(t *testing.T) {
	pair, b, p, s, x := consuming(t)
	for _, id := range []carriage.EventID{1, 3, 1000, 1 << 60} {
		p.send(t, data(id, fmt.Sprint(id)))
	}
	p.send(t, end(1<<64-1, "end"))
	pair.Settle()
	if fmt.Sprint(s.ids) != fmt.Sprint([]uint64{1, 3, 1000, 1 << 60}) {
		t.Errorf("%v", s.ids)
	}
	s.ends(t, "end")
	if c, _ := x.Cursor(); c.ID != 1<<64-1 || b.Stats().RepliesMalformed != 0 {
		t.Errorf("%d, %+v", c.ID, b.Stats())
	}
}

// CC-STREAM 5.2: the reserved flags mean nothing to a receiver and are not sent.
func TestCCSTREAM5_2_ReservedFlags(t *testing.T) {
	pair, _, p, s, x := consuming(t)
	m := data(1, "a")
	m.Stream.Flags = 0xFC
	p.send(t, m)
	pair.Settle()
	s.want(t, 1, "a")
	if _, resumable := x.Cursor(); resumable {
		t.Error("resumable by a reserved flag")
	}
	m = end(2, "b")
	m.Stream.Flags = 0xFD
	p.send(t, m)
	pair.Settle()
	s.ends(t, "b")

	pair, b, _, producer, _ := producing(t, resumable)
	must(t, producer.TrySend([]byte("a")))
	pair.Settle()
	pair.Cut(nil)
	pair.Settle()
	pair, p = relink(t, b)
	m = resume("1", 0, "")
	m.Stream.Flags = 0xFC
	p.send(t, m)
	pair.Settle()
	if m = p.one(t); m.Kind != bridge.KindData || m.Stream.Flags != bridge.StreamResumable {
		t.Errorf("%+v", m)
	}
	m = cancelFrame(1)
	m.Stream.Flags = 0xFC
	p.send(t, m)
	pair.Settle()
	if m = p.one(t); m.Kind != bridge.KindEnd || m.Stream.Flags != bridge.StreamCancelAck {
		t.Errorf("%+v", m)
	}
}

// CC-STREAM 6.1: what can be resumed says so on its data and its end, and what can't
// says it on neither.
func TestCCSTREAM6_1_FlagOnDataAndEnd(t *testing.T) {
	for _, o := range []carriage.StreamOptions{resumable, {}} {
		pair, _, p, producer, _ := producing(t, o)
		must(t, producer.TrySend([]byte("a")))
		must(t, producer.End([]byte("b")))
		pair.Settle()
		ms := p.take(t)
		if len(ms) != 2 {
			t.Fatalf("%d frames", len(ms))
		}
		for _, m := range ms {
			if (m.Stream.Flags == bridge.StreamResumable) != o.Resumable {
				t.Errorf("%v with flags %d", m.Kind, m.Stream.Flags)
			}
		}
	}
}

// CC-STREAM 6.2: a stream is asked for again from its first event by cursor 0.
func TestCCSTREAM6_2_CursorZeroIsTheStart(t *testing.T) {
	pair, b, _, producer, h := producing(t, resumable)
	for _, e := range []string{"a", "b"} {
		must(t, producer.TrySend([]byte(e)))
	}
	pair.Settle()
	pair.Cut(nil)
	pair.Settle()
	pair, p := relink(t, b)
	p.send(t, resume("1", 0, ""))
	pair.Settle()
	ms := p.take(t)
	if len(ms) != 2 || len(h.producers) != 1 {
		t.Fatalf("%d frames of %d streams", len(ms), len(h.producers))
	}
	event(t, ms[0], bridge.KindData, 1, "a")
	event(t, ms[1], bridge.KindData, 2, "b")
}

// CC-STREAM 6.3: a resume has exactly one outcome, whatever the cursor: the events
// behind it, all of them, in order and to the end, or NotResumable and nothing.
func TestCCSTREAM6_3_ExactlyOneOutcome(t *testing.T) {
	const total = 12
	for cursor := range carriage.EventID(total + 4) {
		h := &streamed{t: t, o: resumable}
		cfg := config(h)
		cfg.Retain.Octets = 6 * 100 // of what is sent the last few are held
		pair, b, p := serving(t, cfg)
		p.send(t, request("1", ping1))
		pair.Settle()
		for i := range total {
			must(t, h.one().TrySend(fmt.Appendf(nil, "event number %-23d", i+1)))
			pair.Settle()
		}
		must(t, h.one().EndEmpty())
		pair.Settle()
		pair.Cut(nil)
		pair.Settle()
		pair, p = relink(t, b)
		p.send(t, resume("1", cursor, ""))
		pair.Settle()
		ms := p.take(t)
		if len(ms) == 0 {
			t.Fatalf("cursor %d: no answer", cursor)
		}
		if ms[0].Kind == bridge.KindError {
			transport(t, ms[0], "1", bridge.CodeNotResumable)
			if len(ms) != 1 || cursor == total {
				t.Errorf("cursor %d: %d frames", cursor, len(ms))
			}
			continue
		}
		if cursor < 3 || cursor > total {
			t.Errorf("cursor %d: resumed", cursor)
		}
		for i, m := range ms {
			if want := cursor + carriage.EventID(i+1); m.Stream.EventID != want || string(m.Corr) != "1" {
				t.Errorf("cursor %d: frame %d is event %d of %q", cursor, i, m.Stream.EventID, m.Corr)
			}
		}
		if last := ms[len(ms)-1]; last.Kind != bridge.KindEnd || last.Stream.EventID != total+1 {
			t.Errorf("cursor %d: ends with %+v", cursor, last)
		}
	}
}

// CC-STREAM 6.3: from the beginning again only upon a fresh request, which the handler
// serves anew; never as the answer to a resume.
func TestCCSTREAM6_3_RestartTakesAFreshRequest(t *testing.T) {
	pair, b, _, producer, h := producing(t, resumable)
	must(t, producer.TrySend([]byte("a")))
	pair.Settle()
	b.ForgetRetained()
	pair.Cut(nil)
	pair.Settle()
	pair, p := relink(t, b)
	p.send(t, resume("1", 1, ping1))
	pair.Settle()
	transport(t, p.one(t), "1", bridge.CodeNotResumable)
	if len(h.producers) != 1 {
		t.Fatal("a resume began a stream")
	}
	p.send(t, request("1", ping1))
	pair.Settle()
	must(t, h.producers[1].TrySend([]byte("a again")))
	pair.Settle()
	event(t, p.one(t), bridge.KindData, 1, "a again")
}

// CC-STREAM 7.2: a cancel is acknowledged once, with the last event that was emitted,
// and releases what was held; 7.3: it is no error on either side.
func TestCCSTREAM7_CancelIsNoError(t *testing.T) {
	d, c, h, s := streaming(t, resumable, nil)
	got, x := consume(t, c, d.Client.Association, call(ping1), nil)
	d.Settle()
	must(t, h.one().TrySend([]byte("a")))
	must(t, h.one().TrySend([]byte("b")))
	d.Settle()
	x.Cancel(nil)
	d.Settle()
	got.want(t, 1, "a", "b")
	var told *bridge.Error
	if got.n != 1 || !errors.Is(got.Err, context.Canceled) || errors.As(got.Err, &told) {
		t.Errorf("ended %d times with %v", got.n, got.Err)
	}
	if h.one().Err() != carriage.ErrCancelled || len(h.over) != 1 {
		t.Errorf("%v, over %v", h.one().Err(), h.over)
	}
	if n, octets := s.Retained(); n != 0 || octets != 0 {
		t.Errorf("%d streams, %d octets are still held", n, octets)
	}
	if a, b := c.Stats(), s.Stats(); a.RepliesMalformed != 0 || a.RepliesLate != 1 || b.StreamsCut != 0 || b.StreamsCancelled != 1 {
		t.Errorf("%+v %+v", a, b)
	}
}

// CC-STREAM 9, BRIDGE 1: events are opaque: they are neither read nor changed, under
// no class, whatever they look like.
func TestCCSTREAM9_EventsAreOpaque(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	events := []string{
		"", "not JSON", "\xEF\xBB\xBF{}", `{"jsonrpc":"1.0"}`, "\x00", string(all), `[1,` + "\r\n" + ` 2]`,
		"\x00\x13\x00\x02\x00\x00", // looks like a SafetyLabel
		"\x04\x00",                 // looks like NotDelivered
	}
	for _, id := range []bridge.ProtocolID{mcp, raw} {
		d, c, h, _ := streaming(t, carriage.StreamOptions{}, nil)
		q := carriage.Call{Protocol: id, Foreign: []byte(ping1), Natural: []byte("1")}
		got, _ := consume(t, c, d.Client.Association, q, nil)
		d.Settle()
		for _, e := range events {
			must(t, h.one().TrySend([]byte(e)))
		}
		must(t, h.one().End(all))
		d.Settle()
		got.want(t, 1, events...)
		got.ends(t, string(all))
	}
}

// CC-STREAM 12: what is held for streams that were cancelled or abandoned does not
// pile up, however many a peer opens.
func TestCCSTREAM12_RetentionDoesNotPileUp(t *testing.T) {
	h := &streamed{t: t, o: resumable}
	_, b, _ := serving(t, config(h))
	for i := range 300 {
		pair, p := relink(t, b)
		id := fmt.Sprint(i)
		p.send(t, request(id, `{"jsonrpc":"2.0","id":`+id+`,"method":"m"}`))
		pair.Settle()
		must(t, h.producers[i].TrySend(text(1000)))
		pair.Settle()
		if i%3 == 0 {
			m := cancelFrame(1)
			m.Corr = []byte(id)
			p.send(t, m)
			pair.Settle()
		}
		pair.Cut(nil)
		pair.Settle()
	}
	if n, octets := b.Retained(); n != carriage.DefaultRetainStreams || octets > 64*1100 {
		t.Errorf("%d streams, %d octets are held", n, octets)
	}
	if s := b.Stats(); s.StreamsCancelled != 100 || s.RetainedEvicted != 200-64 {
		t.Errorf("%+v", s)
	}
	b.ForgetRetained()
}

// CC-STREAM 6.3, 12: an iterator that is resumed by hand shows nothing at or below its
// cursor either.
func TestCCSTREAM6_3_IteratorResumedByHand(t *testing.T) {
	pair, b, p := asking(t, config(nil))
	s, err := b.Stream(background, pair.Client.Association, &carriage.Call{Protocol: mcp}, &carriage.StreamCall{Resume: &carriage.Cursor{Corr: []byte("1"), ID: 2}})
	must(t, err)
	if c, _ := s.Cursor(); c.ID != 2 {
		t.Errorf("cursor %d", c.ID)
	}
	pair.Settle()
	if m := p.one(t); m.Stream.EventID != 2 || m.Stream.Control != bridge.ControlResume {
		t.Errorf("%+v", m)
	}
	for id := range carriage.EventID(4) {
		p.send(t, data(id+1, fmt.Sprint("event ", id+1)))
	}
	p.send(t, end(5, ""))
	pair.Settle()
	wantEvent(t, s, 3, "event 3")
	wantEvent(t, s, 4, "event 4")
	wantEnd(t, s, io.EOF)
	if n := b.Stats().EventsRepeated; n != 2 {
		t.Errorf("%d repeated", n)
	}
}
