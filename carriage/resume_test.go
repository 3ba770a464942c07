package carriage_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

func resume(corr string, after carriage.EventID, foreign string) bridge.Message {
	m := request(corr, foreign)
	m.HasStream = true
	m.Stream = bridge.StreamControl{Control: bridge.ControlResume, EventID: after}
	return m
}

// relink joins a peer without rules and b by one more association, between the same
// identities.
func relink(t *testing.T, b *carriage.Bridge) (*nptest.Pair, *peer) {
	t.Helper()
	p := new(peer)
	pair := nptest.NewPair(t, nptest.Options{Client: options(p), Server: options(b)})
	pair.Settle()
	return pair, p
}

var resumable = carriage.StreamOptions{Resumable: true}

// CC-STREAM 6: after the loss of its association a stream goes on behind the cursor,
// with what was produced in the meantime, and ends.
func TestStream6_ResumeOnAnotherAssociation(t *testing.T) {
	pair, b, p, producer, h := producing(t, resumable)
	for _, e := range []string{"a", "b", "c"} {
		must(t, producer.TrySend([]byte(e)))
	}
	pair.Settle()
	ms := p.take(t)
	for i, m := range ms {
		if m.Stream.Flags != bridge.StreamResumable {
			t.Errorf("event %d: flags %d", i+1, m.Stream.Flags)
		}
	}
	pair.Cut(errors.New("reset"))
	pair.Settle()
	select {
	case <-producer.Done():
		t.Fatal("the stream ended with its association")
	default:
	}
	must(t, producer.TrySend([]byte("d")))

	pair, p = relink(t, b)
	p.send(t, resume("1", 2, ping1))
	pair.Settle()
	ms = p.take(t)
	if len(ms) != 2 {
		t.Fatalf("%d frames", len(ms))
	}
	event(t, ms[0], bridge.KindData, 3, "c")
	event(t, ms[1], bridge.KindData, 4, "d")
	must(t, producer.End([]byte("end")))
	pair.Settle()
	event(t, p.one(t), bridge.KindEnd, 5, "end")
	if len(h.producers) != 1 {
		t.Error("a resume reached the handler")
	}
	if len(h.over) != 1 || h.over[0] != nil {
		t.Errorf("over %v", h.over)
	}
	if s := b.Stats(); s.StreamsResumed != 1 {
		t.Errorf("%+v", s)
	}
	// And once more, although it has ended: the end may have been lost.
	pair.Cut(errors.New("reset"))
	pair.Settle()
	pair, p = relink(t, b)
	p.send(t, resume("1", 4, ""))
	pair.Settle()
	event(t, p.one(t), bridge.KindEnd, 5, "end")
}

// A stream that ended while it had no association is told so on resume.
func TestStream6_EndedWhileDetached(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(p *carriage.Producer) error
		want func(m bridge.Message)
	}{
		"end": {func(p *carriage.Producer) error { return p.EndEmpty() }, func(m bridge.Message) { event(t, m, bridge.KindEnd, 2, "") }},
		"refused": {func(p *carriage.Producer) error { return p.Refuse(bridge.CodeNotDelivered, "agent lost") }, func(m bridge.Message) {
			transport(t, m, "1", bridge.CodeNotDelivered)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			pair, b, p, producer, h := producing(t, resumable)
			must(t, producer.TrySend([]byte("a")))
			pair.Settle()
			p.take(t)
			pair.Cut(nil)
			pair.Settle()
			must(t, tc.end(producer))
			if err := producer.TrySend(nil); err != carriage.ErrStreamEnded {
				t.Errorf("after the end: %v", err)
			}
			<-producer.Done()
			if len(h.over) != 1 || h.over[0] != nil {
				t.Errorf("over %v", h.over)
			}
			pair, p = relink(t, b)
			p.send(t, resume("1", 1, ""))
			pair.Settle()
			tc.want(p.one(t))
		})
	}
}

// CC-STREAM 6.3: what can't be resumed is refused with NotResumable.
func TestStream6_NotResumable(t *testing.T) {
	cut := func(pair *nptest.Pair) {
		pair.Cut(nil)
		pair.Settle()
	}
	for name, run := range map[string]func(t *testing.T) (*carriage.Bridge, bridge.Message){
		"no such stream": func(t *testing.T) (*carriage.Bridge, bridge.Message) {
			pair, b, _, _, _ := producing(t, resumable)
			cut(pair)
			return b, resume("other", 0, "")
		},
		"not a resumable stream": func(t *testing.T) (*carriage.Bridge, bridge.Message) {
			pair, b, _, p, _ := producing(t, carriage.StreamOptions{})
			must(t, p.TrySend([]byte("a")))
			pair.Settle()
			cut(pair)
			return b, resume("1", 0, "")
		},
		"a cursor beyond what was sent": func(t *testing.T) (*carriage.Bridge, bridge.Message) {
			pair, b, _, p, _ := producing(t, resumable)
			must(t, p.TrySend([]byte("a")))
			pair.Settle()
			cut(pair)
			return b, resume("1", 2, "")
		},
		"another protocol": func(t *testing.T) (*carriage.Bridge, bridge.Message) {
			pair, b, _, p, _ := producing(t, resumable)
			must(t, p.TrySend([]byte("a")))
			pair.Settle()
			cut(pair)
			m := resume("1", 0, "")
			m.Protocol = raw
			return b, m
		},
		"a cancelled stream": func(t *testing.T) (*carriage.Bridge, bridge.Message) {
			pair, b, peer, p, _ := producing(t, resumable)
			must(t, p.TrySend([]byte("a")))
			pair.Settle()
			peer.send(t, cancelFrame(0))
			pair.Settle()
			cut(pair)
			return b, resume("1", 0, "")
		},
		"events not held any more": func(t *testing.T) (*carriage.Bridge, bridge.Message) {
			pair, b, _, p, _ := producing(t, resumable)
			for range 300 {
				must(t, p.TrySend(text(10_000)))
				pair.Settle()
				must(t, pair.Client.GrantStream(0x0D, 1<<40, []byte("1")))
			}
			pair.Settle()
			cut(pair)
			if s := b.Stats(); s.RetainedDropped == 0 {
				t.Errorf("%+v", s)
			}
			return b, resume("1", 1, "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, m := run(t)
			pair, p := relink(t, b)
			p.send(t, m)
			pair.Settle()
			transport(t, p.one(t), string(m.Corr), bridge.CodeNotResumable)
			if s := b.Stats(); s.NotResumable != 1 || s.StreamsResumed != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// CC-STREAM 12: a resume is authorised as the stream was, and for another identity it
// is nothing.
func TestStream12_ResumeIsAuthorisedAgain(t *testing.T) {
	allowed := true
	var asked []string
	h := &streamed{t: t, o: resumable}
	cfg := config(h)
	cfg.Protocols[0].Effect = func(m []byte) (bridge.Effect, bool) { return bridge.ReadOnly, string(m) == "harmless" }
	cfg.Authorize = func(m *carriage.Inbound) error {
		after, ok := m.Resumes()
		asked = append(asked, fmt.Sprintf("%s/%v/%v/%d", m.Method(), m.Effect(), ok, after))
		if !allowed && m.Effect() != bridge.ReadOnly {
			return errors.New("not any more")
		}
		return nil
	}
	pair, b, p := serving(t, cfg)
	p.send(t, request("1", ping1))
	pair.Settle()
	must(t, h.one().TrySend([]byte("a")))
	pair.Settle()
	pair.Cut(nil)
	pair.Settle()

	// Under the name of a harmless operation it is no less what it was.
	allowed = false
	pair, p = relink(t, b)
	m := resume("1", 0, `{"jsonrpc":"2.0","id":1,"method":"harmless"}`)
	m.Method = []byte("harmless")
	p.send(t, m)
	pair.Settle()
	transport(t, p.one(t), "1", bridge.CodeSafetyPolicy)
	if s := b.Stats(); s.RequestsForbidden != 1 {
		t.Errorf("%+v", s)
	}
	allowed = true
	p.send(t, m)
	pair.Settle()
	event(t, p.one(t), bridge.KindData, 1, "a")
	if got := fmt.Sprint(asked); got != "[m/destructive/false/0 m/destructive/true/0 m/destructive/true/0 harmless/read_only/true/0]" {
		t.Errorf("asked %s", got)
	}

	// Another identity has no such stream.
	pair.Cut(nil)
	pair.Settle()
	so := options(b)
	q := new(peer)
	so.PeerKey = otherKey(t)
	other := nptest.NewPair(t, nptest.Options{Client: options(q), Server: so})
	other.Settle()
	q.send(t, resume("1", 0, ""))
	other.Settle()
	transport(t, q.one(t), "1", bridge.CodeNotResumable)
}

// D27: a resume's message bears the original id.
func TestD27_ResumeWithAnotherID(t *testing.T) {
	pair, b, _, producer, _ := producing(t, resumable)
	must(t, producer.TrySend([]byte("a")))
	pair.Settle()
	pair.Cut(nil)
	pair.Settle()
	pair, p := relink(t, b)
	p.send(t, resume("1", 0, `{"jsonrpc":"2.0","id":2,"method":"m"}`))
	pair.Settle()
	transport(t, p.one(t), "1", bridge.CodeEnvelopeMalformed)
	p.send(t, resume("1", 0, "not JSON"))
	pair.Settle()
	transport(t, p.one(t), "1", bridge.CodeEnvelopeMalformed)
	p.send(t, resume("1", 0, ping1))
	pair.Settle()
	event(t, p.one(t), bridge.KindData, 1, "a")
}

// A resume on an association where the stream still runs goes back to the cursor.
func TestStream6_ResumeOnTheSameAssociation(t *testing.T) {
	pair, b, p, producer, _ := producing(t, resumable)
	for _, e := range []string{"a", "b", "c"} {
		must(t, producer.TrySend([]byte(e)))
	}
	pair.Settle()
	p.take(t)
	p.send(t, resume("1", 1, ""))
	pair.Settle()
	ms := p.take(t)
	if len(ms) != 2 {
		t.Fatalf("%d frames", len(ms))
	}
	event(t, ms[0], bridge.KindData, 2, "b")
	event(t, ms[1], bridge.KindData, 3, "c")
	must(t, producer.End(nil))
	pair.Settle()
	event(t, p.one(t), bridge.KindEnd, 4, "")
	if s := b.Stats(); s.StreamsResumed != 1 || s.RequestsDuplicate != 0 {
		t.Errorf("%+v", s)
	}

	// From where nothing is held it ends the stream, there being one exchange.
	pair, _, p, producer, _ = producing(t, resumable)
	must(t, producer.TrySend([]byte("a")))
	pair.Settle()
	p.take(t)
	p.send(t, resume("1", 9, ""))
	pair.Settle()
	transport(t, p.one(t), "1", bridge.CodeNotResumable)
	if producer.Err() != carriage.ErrNotResumable {
		t.Errorf("%v", producer.Err())
	}
	// An ordinary request under a live correlation id is still dropped.
	pair, b, p, producer, _ = producing(t, resumable)
	p.send(t, request("1", ping1))
	pair.Settle()
	p.none(t)
	if s := b.Stats(); s.RequestsDuplicate != 1 || producer.Err() != nil {
		t.Errorf("%+v", s)
	}
}

// Credit goes on counting over a resume on the same association.
func TestStream6_CreditOverAResume(t *testing.T) {
	pair, _, p, producer, _ := producing(t, carriage.StreamOptions{Resumable: true, Buffer: 4 << 20})
	for range 90 {
		must(t, producer.TrySend(text(10_000)))
	}
	pair.Settle()
	total := octets(p.take(t))
	pair.Server.Block(true)
	p.send(t, resume("1", 89, ""))
	pair.Settle()
	for range 300 {
		must(t, producer.TrySend(text(10_000)))
	}
	pair.Settle()
	p.send(t, resume("1", 90, "")) // some of it waits in the queue and is dropped
	pair.Settle()
	pair.Server.Block(false)
	pair.Settle()
	if total += octets(p.take(t)); total > 1<<20 || total < 1<<20-20_000 {
		t.Errorf("%d octets on a credit of 1 MiB", total)
	}
}

// A stream is on one association at a time: the one that resumes has it.
func TestStream6_TakenOverFromALiveAssociation(t *testing.T) {
	first, b, p, producer, _ := producing(t, resumable)
	must(t, producer.TrySend([]byte("a")))
	first.Settle()
	p.take(t)
	second, q := relink(t, b)
	q.send(t, resume("1", 0, ""))
	second.Settle()
	event(t, q.one(t), bridge.KindData, 1, "a")
	first.Settle()
	transport(t, p.one(t), "1", bridge.CodeNotDelivered)
	must(t, producer.TrySend([]byte("b")))
	first.Settle()
	second.Settle()
	p.none(t)
	event(t, q.one(t), bridge.KindData, 2, "b")
	p.send(t, cancelFrame(1)) // of what is not its any more
	first.Settle()
	first.Cut(nil)
	first.Settle()
	must(t, producer.EndEmpty())
	second.Settle()
	event(t, q.one(t), bridge.KindEnd, 3, "")
}

// A new request under the same correlation id replaces what was held under it.
func TestRetained_ReplacedByANewRequest(t *testing.T) {
	pair, b, p, producer, h := producing(t, resumable)
	must(t, producer.End([]byte("first")))
	pair.Settle()
	p.take(t)
	p.send(t, request("1", ping1))
	pair.Settle()
	must(t, h.producers[1].TrySend([]byte("second")))
	pair.Settle()
	event(t, p.one(t), bridge.KindData, 1, "second")
	pair.Cut(nil)
	pair.Settle()
	pair, p = relink(t, b)
	p.send(t, resume("1", 0, ""))
	pair.Settle()
	event(t, p.one(t), bridge.KindData, 1, "second")
	if s := b.Stats(); s.RetainedReplaced != 1 {
		t.Errorf("%+v", s)
	}
}

// D28: the number of streams held for a peer is bounded, the oldest resting one goes
// first.
func TestRetained_BoundedByNumber(t *testing.T) {
	h := &streamed{t: t, o: resumable}
	cfg := config(h)
	cfg.Retain.Streams = 4
	pair, b, p := serving(t, cfg)
	ask := func(i int) {
		id := fmt.Sprint(i)
		p.send(t, request(id, `{"jsonrpc":"2.0","id":`+id+`,"method":"m"}`))
		pair.Settle()
		must(t, h.producers[i].TrySend([]byte("e")))
		pair.Settle()
	}
	for i := range 4 {
		ask(i)
	}
	must(t, h.producers[2].EndEmpty()) // rests
	pair.Settle()
	ask(4) // 2 goes
	ask(5) // 0 goes, the oldest of the running ones
	p.take(t)
	must(t, h.producers[0].TrySend([]byte("e")))
	pair.Settle()
	if m := p.one(t); m.Stream.Flags != 0 {
		t.Error("a stream that is not held any more says that it can be resumed")
	}
	if s := b.Stats(); s.RetainedEvicted != 2 {
		t.Errorf("%+v", s)
	}
	pair.Cut(nil)
	pair.Settle()
	if err := h.producers[0].Err(); !errors.Is(err, assoc.ErrClosed) {
		t.Errorf("what is not held ends with its association: %v", err)
	}
	pair, p = relink(t, b)
	for i := range 6 {
		p.send(t, resume(fmt.Sprint(i), 0, ""))
	}
	pair.Settle()
	got := ""
	for _, m := range p.take(t) {
		if m.Kind == bridge.KindData {
			got += string(m.Corr)
		}
	}
	if got != "1345" {
		t.Errorf("resumed %s", got)
	}
}

// D28: what is held of one stream is bounded by octets: while it has an association
// from what was sent, and while it has none also from what was not.
func TestRetained_BoundedByOctets(t *testing.T) {
	h := &streamed{t: t, o: carriage.StreamOptions{Resumable: true, Buffer: 1 << 20}}
	cfg := config(h)
	cfg.Retain.Octets = 20_000
	pair, b, p := serving(t, cfg)
	p.send(t, request("1", ping1))
	pair.Settle()
	for range 100 {
		must(t, h.one().TrySend(text(1000)))
	}
	pair.Settle()
	if n := len(p.take(t)); n != 100 {
		t.Fatalf("%d events arrived: what was to be sent is not dropped", n)
	}
	pair.Cut(nil)
	pair.Settle()
	pair, p = relink(t, b)
	p.send(t, resume("1", 82, ""))
	pair.Settle()
	p.send(t, resume("1", 81, "")) // the stream is live now, so this ends it
	pair.Settle()
	ms := p.take(t)
	if len(ms) != 19 || ms[0].Stream.EventID != 83 {
		t.Fatalf("%d frames", len(ms))
	}
	transport(t, ms[18], "1", bridge.CodeNotResumable)

	p.send(t, request("2", `{"jsonrpc":"2.0","id":2,"method":"m"}`))
	pair.Settle()
	pair.Cut(nil)
	pair.Settle()
	for range 1000 {
		must(t, h.producers[1].TrySend(text(1000))) // never waits: nobody is there
	}
	if n := h.producers[1].Buffered(); n != 0 {
		t.Errorf("%d octets wait for nobody", n)
	}
	pair, p = relink(t, b)
	p.send(t, resume("2", 0, ""))
	pair.Settle()
	transport(t, p.one(t), "2", bridge.CodeNotResumable)
	if s := b.Stats(); s.RetainedDropped < 1000 {
		t.Errorf("%+v", s)
	}
}

// What is held of all streams together is bounded.
func TestRetained_BoundedInTotal(t *testing.T) {
	h := &streamed{t: t, o: carriage.StreamOptions{Resumable: true, Buffer: 1 << 20}}
	cfg := config(h)
	cfg.Retain.Total = 50_000
	pair, b, p := serving(t, cfg)
	for i := range 5 {
		id := fmt.Sprint(i)
		p.send(t, request(id, `{"jsonrpc":"2.0","id":`+id+`,"method":"m"}`))
		pair.Settle()
		for range 20 {
			must(t, h.producers[i].TrySend(text(1000)))
		}
		must(t, h.producers[i].EndEmpty())
		pair.Settle()
	}
	if s := b.Stats(); s.RetainedEvicted != 3 {
		t.Errorf("%+v", s)
	}
	// A single running stream that is too much by itself is not held any more.
	p.send(t, request("x", ping1))
	pair.Settle()
	for range 100 {
		must(t, h.producers[5].TrySend(text(1000)))
		pair.Settle()
	}
	if s := b.Stats(); s.RetainedEvicted != 6 {
		t.Errorf("%+v", s)
	}
	if h.producers[5].Err() != nil {
		t.Error("the stream itself ended")
	}
}

// So it is while a producer waits for room with a part of its events.
func TestRetained_BoundedInTotalWhileWaiting(t *testing.T) {
	h := &streamed{t: t, o: carriage.StreamOptions{Resumable: true, Buffer: 60_000}}
	cfg := config(h)
	cfg.Retain.Total = 50_000
	pair, b, p := serving(t, cfg)
	p.send(t, request("1", ping1))
	pair.Settle()
	gone, leave := context.WithCancel(background)
	leave()
	n, err := h.one().SendAll(gone, slices.Repeat([][]byte{text(1000)}, 100))
	if n != 56 || err != context.Canceled {
		t.Fatalf("%d sent: %v", n, err)
	}
	if s := b.Stats(); s.RetainedEvicted != 1 {
		t.Errorf("%+v", s)
	}
}

// D28: and by time, counted from the end or the loss of the association.
func TestRetained_BoundedByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pair, b, p, producer, h := producing(t, resumable)
		must(t, producer.TrySend([]byte("a")))
		pair.Settle()
		p.take(t)
		<-time.After(time.Hour) // while it runs its time does not
		pair.Cut(nil)
		pair.Settle()
		<-time.After(5*time.Minute - time.Second)
		pair, p = relink(t, b)
		p.send(t, resume("1", 0, ""))
		pair.Settle()
		event(t, p.one(t), bridge.KindData, 1, "a")
		pair.Cut(nil)
		pair.Settle()
		<-time.After(5*time.Minute - time.Second)
		if producer.Err() != nil {
			t.Error("its time is counted from the first loss")
		}
		<-time.After(2 * time.Second)
		synctest.Wait()
		if !errors.Is(producer.Err(), assoc.ErrClosed) || len(h.over) != 1 {
			t.Errorf("%v, over %v", producer.Err(), h.over)
		}
		pair, p = relink(t, b)
		p.send(t, resume("1", 0, ""))
		pair.Settle()
		transport(t, p.one(t), "1", bridge.CodeNotResumable)
		if s := b.Stats(); s.RetainedExpired != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// Nothing is held where the configuration says so.
func TestRetained_Off(t *testing.T) {
	h := &streamed{t: t, o: resumable}
	cfg := config(h)
	cfg.Retain.Streams = -1
	pair, _, p := serving(t, cfg)
	p.send(t, request("1", ping1))
	pair.Settle()
	must(t, h.one().TrySend([]byte("a")))
	pair.Settle()
	if m := p.one(t); m.Stream.Flags != 0 {
		t.Error("resumable")
	}
	pair.Cut(nil)
	pair.Settle()
	if h.one().Err() == nil {
		t.Error("not over")
	}
}

// A topic's subscriber resumes from what the topic keeps.
func TestStream6_ResumeOfASubscription(t *testing.T) {
	br := &broker{t: t, topic: carriage.NewTopic(carriage.TopicOptions{Keep: 5000}), o: carriage.SubscribeOptions{Resumable: true, First: []byte("first"), Head: []byte("h ")}}
	pair, b, p := serving(t, config(br))
	p.send(t, request("1", ping1))
	pair.Settle()
	must(t, br.topic.TryPublish([]byte("a")))
	pair.Settle()
	if n := len(p.take(t)); n != 2 {
		t.Fatalf("%d frames", n)
	}
	pair.Cut(nil)
	pair.Settle()
	must(t, br.topic.TryPublish([]byte("b")))
	pair, p = relink(t, b)
	p.send(t, resume("1", 0, ""))
	pair.Settle()
	ms := p.take(t)
	if len(ms) != 3 {
		t.Fatalf("%d frames", len(ms))
	}
	event(t, ms[0], bridge.KindData, 1, "first")
	event(t, ms[1], bridge.KindData, 2, "h a")
	event(t, ms[2], bridge.KindData, 3, "h b")
	if ms[0].Stream.Flags != bridge.StreamResumable {
		t.Error("not resumable")
	}
	pair.Cut(nil)
	pair.Settle()
	for range 10 {
		must(t, br.topic.TryPublish(text(1000)))
	}
	pair, p = relink(t, b)
	p.send(t, resume("1", 3, ""))
	pair.Settle()
	transport(t, p.one(t), "1", bridge.CodeNotResumable)
}

// D20: after a resume what is at or below the cursor is discarded, and only that.
func TestD20_ConsumerDiscardsWhatItHas(t *testing.T) {
	pair, b, p := asking(t, config(nil))
	s, x := consume(t, b, pair.Client.Association, carriage.Call{}, &carriage.StreamCall{
		Resume: &carriage.Cursor{Corr: []byte("old\x00token..."), ID: 4},
	})
	pair.Settle()
	m := p.one(t)
	if m.Kind != bridge.KindRequest || string(m.Corr) != "old\x00token..." || !m.HasStream || m.Stream.Control != bridge.ControlResume || m.Stream.EventID != 4 || len(m.Foreign) != 0 {
		t.Fatalf("%+v", m)
	}
	on := func(m bridge.Message) bridge.Message { m.Corr = []byte("old\x00token..."); return m }
	for _, id := range []carriage.EventID{3, 4, 2} {
		p.send(t, on(data(id, "old")))
	}
	p.send(t, on(data(5, "e")))
	p.send(t, on(data(4, "old")))
	p.send(t, on(data(6, "f")))
	pair.Settle()
	s.want(t, 5, "e", "f")
	if c, _ := x.Cursor(); c.ID != 6 {
		t.Errorf("cursor %d", c.ID)
	}
	if st := b.Stats(); st.EventsRepeated != 4 {
		t.Errorf("%+v", st)
	}
	p.send(t, on(data(5, "again"))) // beyond the cursor it must increase
	pair.Settle()
	s.outcome.ended(t, bridge.CodeEnvelopeMalformed, false)
}

// A resumed stream without StreamControl can't be told from its repetition.
func TestD20_ResumedWithoutStreamControl(t *testing.T) {
	pair, b, p := asking(t, config(nil))
	s, _ := consume(t, b, pair.Client.Association, carriage.Call{}, &carriage.StreamCall{Resume: &carriage.Cursor{Corr: []byte("1"), ID: 4}})
	pair.Settle()
	m := data(0, "x")
	m.HasStream = false
	p.send(t, m)
	pair.Settle()
	s.outcome.ended(t, bridge.CodeEnvelopeMalformed, false)
}

func TestStream6_ResumeNeedsACorrelationID(t *testing.T) {
	pair, b, p := asking(t, config(nil))
	for _, corr := range []string{"", strings.Repeat("c", 256)} {
		_, err := b.StartStream(pair.Client.Association, &carriage.Call{Protocol: mcp}, &carriage.StreamCall{Resume: &carriage.Cursor{Corr: []byte(corr)}}, new(taken))
		if !errors.Is(err, carriage.ErrMalformed) {
			t.Errorf("%d octets: %v", len(corr), err)
		}
	}
	s, _ := consume(t, b, pair.Client.Association, call(ping1), nil)
	again, _ := consume(t, b, pair.Client.Association, carriage.Call{}, &carriage.StreamCall{Resume: &carriage.Cursor{Corr: []byte("1")}})
	pair.Settle()
	if again.n != 1 || !errors.Is(again.Err, carriage.ErrDuplicateID) {
		t.Errorf("a resume of what runs here: %v", again.Err)
	}
	s.pending(t)
	if n := len(p.take(t)); n != 1 {
		t.Errorf("%d frames", n)
	}
}

// L20, seeded: the link is lost at any moment, the end comes at any moment around the
// resume, and the application sees every event once and in order, or NotResumable.
func TestL20_ResumeRaces(t *testing.T) {
	rounds := 1000
	if slowBuild {
		rounds = 200
	}
	refused, losses := 0, 0
	for round := range rounds {
		r := rand.New(rand.NewPCG(20, uint64(round)))
		h := &streamed{t: t, o: resumable}
		cfg := config(h)
		if round%10 == 0 {
			cfg.Retain.Octets = 5 * 100 // less than what may be lost
		}
		server, client := carriage.New(cfg), carriage.New(config(nil))
		total := 1 + r.IntN(20)
		var got []string
		var ended, nr bool
		var x *carriage.Consumer
		var pair *nptest.Pair
		link := func(cursor *carriage.Cursor) {
			pair = nptest.NewPair(t, nptest.Options{
				Client: options(client), Server: options(server),
				Latency: time.Duration(r.IntN(3)) * time.Millisecond, Chunk: 1 + r.IntN(300),
			})
			s := new(taken)
			s.onEvent = func(e *carriage.Event) {
				if e.ID != carriage.EventID(len(got)+1) {
					t.Errorf("round %d: event %d as number %d", round, e.ID, len(got)+1)
				}
				got = append(got, string(e.Foreign))
			}
			var o *carriage.StreamCall
			if cursor != nil {
				o = &carriage.StreamCall{Resume: cursor}
			}
			c := call(ping1)
			c.Protocol = mcp
			if cursor != nil && r.IntN(2) == 0 {
				c.Foreign = nil
			}
			var err error
			x, err = client.StartStream(pair.Client.Association, &c, o, endings{s, func(reply *carriage.Reply) {
				var e *bridge.Error
				switch {
				case reply.Err == nil && reply.Kind == bridge.KindEnd && string(reply.Foreign) == "end":
					ended = true
				case errors.As(reply.Err, &e) && e.Code == bridge.CodeNotResumable:
					nr = true
				case !errors.Is(reply.Err, assoc.ErrClosed):
					t.Errorf("round %d: %v %v", round, reply.Kind, reply.Err)
				}
			}})
			must(t, err)
		}
		link(nil)
		sent := -1 // the end counts too
		for steps := 0; !ended && !nr; steps++ {
			if steps > 10_000 {
				t.Fatalf("round %d: hangs with %d of %d", round, len(got), total)
			}
			switch k := r.IntN(10); {
			case k < 4 && len(h.producers) > 0 && sent < total:
				if sent++; sent == 0 {
					continue
				}
				must(t, h.producers[0].TrySend(fmt.Append(nil, "e", sent)))
			case k < 6 && sent == total:
				sent++
				must(t, h.producers[0].End([]byte("end")))
			case k == 6 && len(h.producers) > 0 && losses < 10*(round+1):
				losses++
				pair.Cut(errors.New("reset"))
				pair.Settle()
				if r.IntN(2) == 0 && sent < total {
					for sent = max(sent, 0); sent < total; {
						sent++
						must(t, h.producers[0].TrySend(fmt.Append(nil, "e", sent)))
					}
					sent++
					must(t, h.producers[0].End([]byte("end")))
				}
				if ended || nr {
					break
				}
				c, ok := x.Cursor()
				if len(c.Corr) == 0 {
					c.Corr = []byte("1")
				}
				if _ = ok; c.ID != carriage.EventID(len(got)) {
					t.Fatalf("round %d: cursor %d after %d events", round, c.ID, len(got))
				}
				link(&c)
			default:
				pair.Run(time.Duration(r.IntN(3)) * time.Millisecond)
			}
		}
		pair.Run(time.Second)
		switch {
		case nr:
			refused++
			if round%10 != 0 {
				t.Errorf("round %d: refused although all was held", round)
			}
		case len(got) != total:
			t.Errorf("round %d: ended with %d of %d events", round, len(got), total)
		}
		for i, e := range got {
			if e != fmt.Sprint("e", i+1) {
				t.Errorf("round %d: event %d is %q", round, i+1, e)
			}
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	t.Logf("%d rounds, %d losses, %d refused", rounds, losses, refused)
}

// endings is a StreamHandler with an end of its own.
type endings struct {
	*taken
	end func(r *carriage.Reply)
}

func (e endings) HandleReply(r *carriage.Reply) {
	e.taken.HandleReply(r)
	e.end(r)
}

// So it does for a topic's subscriber, whose events have a head of their own.
func TestStream6_CreditOverAResumeOfASubscription(t *testing.T) {
	br := &broker{t: t, topic: carriage.NewTopic(carriage.TopicOptions{Buffer: 4 << 20, Keep: 4 << 20}),
		o: carriage.SubscribeOptions{Resumable: true, First: text(5000), Head: text(5000)}}
	pair, _, p := serving(t, config(br))
	p.send(t, request("1", ping1))
	pair.Settle()
	p.take(t)
	total := 5000
	pair.Server.Block(true)
	for range 100 {
		must(t, br.topic.TryPublish(text(5000)))
	}
	pair.Settle()
	p.send(t, resume("1", 0, "")) // what waits in the queue is dropped
	pair.Settle()
	for range 100 {
		must(t, br.topic.TryPublish(text(5000)))
	}
	pair.Settle()
	pair.Server.Block(false)
	pair.Settle()
	if total += octets(p.take(t)); total > 1<<20 || total < 1<<20-15_000 {
		t.Errorf("%d octets on a credit of 1 MiB", total)
	}
	if n := br.topic.Subscribers(); n != 1 {
		t.Errorf("%d subscribers", n)
	}
}
