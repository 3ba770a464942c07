package carriage_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// streamed answers every request with a stream and gives its producer to the test.
type streamed struct {
	t         *testing.T
	o         carriage.StreamOptions
	producers []*carriage.Producer
	over      []error // of all streams, in order
}

func (s *streamed) ServeNotify(*carriage.Notify) {}
func (s *streamed) ServeRequest(r *carriage.Request) {
	o := s.o
	o.Over = func(err error) { s.over = append(s.over, err) }
	r.RetainEnvelope()
	p, err := r.Stream(o)
	if err != nil {
		s.t.Error(err)
	}
	r.Release()
	s.producers = append(s.producers, p)
}

// one is the only stream so far.
func (s *streamed) one() *carriage.Producer {
	s.t.Helper()
	if len(s.producers) != 1 {
		s.t.Fatalf("%d streams", len(s.producers))
	}
	return s.producers[0]
}

// taken is a StreamHandler that keeps everything.
type taken struct {
	outcome
	ids     []carriage.EventID
	events  []string
	onEvent func(e *carriage.Event)
}

func (s *taken) HandleEvent(e *carriage.Event) {
	s.ids = append(s.ids, e.ID)
	s.events = append(s.events, string(e.Foreign))
	if s.onEvent != nil {
		s.onEvent(e)
	}
}

func (s *taken) want(t *testing.T, first carriage.EventID, events ...string) {
	t.Helper()
	if fmt.Sprint(s.events) != fmt.Sprint(events) {
		t.Fatalf("events %q, want %q", s.events, events)
	}
	for i, id := range s.ids {
		if id != first+carriage.EventID(i) {
			t.Fatalf("event ids %v", s.ids)
		}
	}
}

// ends says how the stream ended: with a terminal event, or none for "".
func (s *taken) ends(t *testing.T, foreign string) {
	t.Helper()
	s.got(t, bridge.KindEnd, foreign)
}

func consume(t *testing.T, b *carriage.Bridge, a *assoc.Association, c carriage.Call, o *carriage.StreamCall) (*taken, *carriage.Consumer) {
	t.Helper()
	if c.Protocol == 0 {
		c.Protocol = mcp
	}
	s := new(taken)
	x, err := b.StartStream(a, &c, o, s)
	if err != nil {
		t.Fatal(err)
	}
	return s, x
}

// streaming is a Bridge that streams on the server's side and one that consumes on
// the client's.
func streaming(t *testing.T, o carriage.StreamOptions, edit func(*nptest.Options)) (*nptest.Pair, *carriage.Bridge, *streamed, *carriage.Bridge) {
	t.Helper()
	h := &streamed{t: t, o: o}
	c, s := carriage.New(config(nil)), carriage.New(config(h))
	no := nptest.Options{Client: options(c), Server: options(s)}
	if edit != nil {
		edit(&no)
	}
	p := nptest.NewPair(t, no)
	p.Run(1) // HELLO both ways, whatever the latency
	p.Run(no.Latency * 4)
	return p, c, h, s
}

// producing is a Bridge that streams on the server's side and a peer without rules on
// the client's, which has asked for one stream with the correlation id "1".
func producing(t *testing.T, o carriage.StreamOptions) (*nptest.Pair, *carriage.Bridge, *peer, *carriage.Producer, *streamed) {
	t.Helper()
	h := &streamed{t: t, o: o}
	pair, b, p := serving(t, config(h))
	p.send(t, request("1", ping1))
	pair.Settle()
	return pair, b, p, h.one(), h
}

// consuming is a Bridge that consumes one stream on the client's side, asked for
// under the correlation id "1", and a peer without rules on the server's.
func consuming(t *testing.T) (*nptest.Pair, *carriage.Bridge, *peer, *taken, *carriage.Consumer) {
	t.Helper()
	pair, b, p := asking(t, config(nil))
	s, x := consume(t, b, pair.Client.Association, call(ping1), nil)
	pair.Settle()
	if m := p.one(t); m.Kind != bridge.KindRequest || string(m.Corr) != "1" || m.HasStream {
		t.Fatalf("request %+v", m)
	}
	return pair, b, p, s, x
}

func data(id carriage.EventID, foreign string) bridge.Message {
	return bridge.Message{Kind: bridge.KindData, Corr: []byte("1"), HasStream: true, Stream: bridge.StreamControl{EventID: id}, Foreign: []byte(foreign)}
}

func end(id carriage.EventID, foreign string) bridge.Message {
	m := data(id, foreign)
	m.Kind, m.Flags = bridge.KindEnd, bridge.FlagFinal
	return m
}

func cancelFrame(id carriage.EventID) bridge.Message {
	m := end(id, "")
	m.Stream.Control = bridge.ControlCancel
	return m
}

// event checks one stream frame.
func event(t *testing.T, m bridge.Message, kind bridge.Kind, id carriage.EventID, foreign string) {
	t.Helper()
	if m.Kind != kind || !m.HasStream || m.Stream.EventID != id || m.Stream.Control != bridge.ControlData ||
		string(m.Foreign) != foreign || m.Final() != (kind == bridge.KindEnd) {
		t.Fatalf("frame %v, StreamControl %v %+v, final %v, %q; want %v %d %q", m.Kind, m.HasStream, m.Stream, m.Final(), m.Foreign, kind, id, foreign)
	}
}

// ackFrame checks that m acknowledges a cancel.
func ackFrame(t *testing.T, m bridge.Message, id carriage.EventID) {
	t.Helper()
	if m.Kind != bridge.KindEnd || !m.Final() || m.Stream.Flags&bridge.StreamCancelAck == 0 || m.Stream.EventID != id || len(m.Foreign) != 0 {
		t.Fatalf("frame %v %+v, final %v, %q; want an acknowledged cancel at %d", m.Kind, m.Stream, m.Final(), m.Foreign, id)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func text(n int) []byte { return bytes.Repeat([]byte("x"), n) }

var background = context.Background()

// otherKey is an identity that no pair has by itself.
func otherKey(t *testing.T) identity.PublicKey {
	t.Helper()
	k, err := identity.FromSeed(profiles.Ed25519, [32]byte{7})
	if err != nil {
		t.Fatal(err)
	}
	return k.Public()
}
