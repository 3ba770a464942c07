package carriage_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/sched"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
	"github.com/trestle-npamp/trestle/wire/control"
)

func response(corr []byte, foreign string) bridge.Message {
	return bridge.Message{Kind: bridge.KindResponse, Corr: corr, Foreign: []byte(foreign)}
}

const pong1 = `{"jsonrpc":"2.0","id":1,"result":{}}`

func TestBridge1_OriginatedRequestIsCarriedOctetForOctet(t *testing.T) {
	p, b, s := asking(t, config(nil))
	foreign := " {\"method\":\"tools\\/call\",\"id\" : 7,\"jsonrpc\":\"2.0\"}\n"
	o, _ := start(t, b, p.Client.Association, call(foreign))
	p.Settle()
	m := s.one(t)
	if string(m.Foreign) != foreign || string(m.Method) != "tools/call" || m.Kind != bridge.KindRequest ||
		m.Protocol != mcp || m.Content != bridge.ContentJSON || m.Flags != 0 {
		t.Fatalf("%+v", m)
	}
	reply := "\t{\"jsonrpc\":\"2.0\",\"result\":1E+2,\"id\":7}"
	s.send(t, response(m.Corr, reply))
	p.Settle()
	o.got(t, bridge.KindResponse, reply)
}

// D10: the library's correlation id is the id token as written.
func TestD10_LibraryUsesTheIdTokenAsWritten(t *testing.T) {
	p, b, s := asking(t, config(nil))
	for _, id := range []string{`1`, `1.0`, `1e0`, `-0.5`, `0`, `""`, `"q\"\\"`, `"\u00e9"`, `"é"`, `"7"`, `7`,
		`123456789012345678901234567890`, `"` + strings.Repeat("i", 244) + `"`} {
		start(t, b, p.Client.Association, call(`{"jsonrpc":"2.0","id":`+id+`,"method":"m"}`))
		p.Settle()
		if m := s.one(t); string(m.Corr) != id {
			t.Errorf("id %s has corr %q", id, m.Corr)
		}
	}
}

// CC-JSONRPC 8.4: null ids get correlation ids of their own.
func TestCCJSONRPC8_NullIdsAreToldApart(t *testing.T) {
	p, b, s := asking(t, config(nil))
	const foreign = `{"jsonrpc":"2.0","id":null,"method":"m"}`
	o1, _ := start(t, b, p.Client.Association, call(foreign))
	o2, _ := start(t, b, p.Client.Association, call(foreign))
	p.Settle()
	ms := s.take(t)
	if len(ms) != 2 || string(ms[0].Corr) == string(ms[1].Corr) {
		t.Fatalf("%+v", ms)
	}
	s.send(t, response(ms[1].Corr, `{"jsonrpc":"2.0","id":null,"result":2}`))
	s.send(t, response(ms[0].Corr, `{"jsonrpc":"2.0","id":null,"result":1}`))
	p.Settle()
	o1.got(t, bridge.KindResponse, `{"jsonrpc":"2.0","id":null,"result":1}`)
	o2.got(t, bridge.KindResponse, `{"jsonrpc":"2.0","id":null,"result":2}`)
}

// D18: a long id is represented by its hash.
func TestD18_LongIdsContributeSixteenOctets(t *testing.T) {
	p, b, s := asking(t, config(nil))
	id := `"` + strings.Repeat("i", 245) + `"`
	foreign := `{"jsonrpc":"2.0","id":` + id + `,"method":"m"}`
	o, _ := start(t, b, p.Client.Association, call(foreign))
	dup, _ := start(t, b, p.Client.Association, call(foreign))
	hop := call(foreign)
	hop.Hop = true
	start(t, b, p.Client.Association, hop)
	p.Settle()
	ms := s.take(t)
	if len(ms) != 2 || len(ms[0].Corr) != 16 || len(ms[1].Corr) != 16+1+8 || string(ms[1].Corr[:16]) != string(ms[0].Corr) {
		t.Fatalf("%+v", ms)
	}
	if dup.Err != carriage.ErrDuplicateID {
		t.Error(dup.Err)
	}
	s.send(t, response(ms[0].Corr, `{"jsonrpc":"2.0","id":`+id+`,"result":1}`))
	p.Settle()
	o.got(t, bridge.KindResponse, `{"jsonrpc":"2.0","id":`+id+`,"result":1}`)
}

func TestD18_MethodOver255OctetsIsRefused(t *testing.T) {
	p, b, _ := asking(t, config(nil))
	c := call(`{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("m", 256) + `"}`)
	c.Protocol = mcp
	if _, err := b.Start(p.Client.Association, &c, new(outcome)); !errors.Is(err, carriage.ErrMalformed) {
		t.Error(err)
	}
	start(t, b, p.Client.Association, call(`{"jsonrpc":"2.0","id":1,"method":"`+strings.Repeat("m", 255)+`"}`))
}

// D10: who speaks for many always adds a token.
func TestD10_HopsAddATokenAndIdsMayBeEqual(t *testing.T) {
	p, b, s := asking(t, config(nil))
	c := call(ping1)
	c.Hop = true
	var os []*outcome
	for range 3 {
		o, _ := start(t, b, p.Client.Association, c)
		os = append(os, o)
	}
	p.Settle()
	ms := s.take(t)
	seen := map[string]bool{}
	for _, m := range ms {
		natural, _, ok := sched.ParseCorr(m.Corr)
		if !ok || string(natural) != "1" || seen[string(m.Corr)] {
			t.Errorf("corr %q", m.Corr)
		}
		seen[string(m.Corr)] = true
	}
	for i := range ms {
		s.send(t, response(ms[len(ms)-1-i].Corr, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"result":%d}`, len(ms)-1-i)))
	}
	p.Settle()
	for i, o := range os {
		o.got(t, bridge.KindResponse, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"result":%d}`, i))
	}
}

// D10: an id in flight is refused locally; the first one is not disturbed.
func TestD10_DuplicateIdIsRefusedLocally(t *testing.T) {
	p, b, s := asking(t, config(nil))
	first, _ := start(t, b, p.Client.Association, call(ping1))
	second, _ := start(t, b, p.Client.Association, call(`{"jsonrpc":"2.0","id":1,"method":"other"}`))
	p.Settle()
	if second.n != 1 || second.Err != carriage.ErrDuplicateID || second.Sent {
		t.Fatalf("%+v", second)
	}
	s.send(t, response(s.one(t).Corr, pong1))
	p.Settle()
	first.got(t, bridge.KindResponse, pong1)
	third, _ := start(t, b, p.Client.Association, call(ping1))
	p.Settle()
	third.pending(t)
	if m := s.one(t); string(m.Corr) != "1" {
		t.Errorf("%q", m.Corr)
	}
}

// D10: the corr of an abandoned exchange stays reserved until its terminal frame;
// the id itself may be used again, under a token.
func TestD10_AbandonedCorrStaysReserved(t *testing.T) {
	p, b, s := asking(t, config(nil))
	a := p.Client.Association
	first, x := start(t, b, a, call(ping1))
	p.Settle()
	s.take(t)
	cause := errors.New("no more interest")
	x.Abandon(cause)
	x.Abandon(nil)
	p.Settle()
	if first.n != 1 || first.Err != cause || !first.Sent {
		t.Fatalf("%+v", first)
	}
	second, _ := start(t, b, a, call(ping1))
	p.Settle()
	m := s.one(t)
	if natural, _, ok := sched.ParseCorr(m.Corr); !ok || string(natural) != "1" {
		t.Fatalf("corr %q", m.Corr)
	}
	third, _ := start(t, b, a, call(ping1))
	p.Settle()
	if third.Err != carriage.ErrDuplicateID {
		t.Errorf("%+v", third)
	}
	// The late reply reaches nobody, above all not the second one.
	s.send(t, response([]byte("1"), `{"jsonrpc":"2.0","id":1,"result":"late"}`))
	p.Settle()
	second.pending(t)
	s.none(t)
	if b.Stats().RepliesLate != 1 || first.n != 1 {
		t.Errorf("%+v", b.Stats())
	}
	// Now "1" is free, but its id is not, since the second one is in flight.
	fourth, _ := start(t, b, a, call(ping1))
	p.Settle()
	if fourth.Err != carriage.ErrDuplicateID {
		t.Errorf("%+v", fourth)
	}
	s.send(t, response(m.Corr, pong1))
	p.Settle()
	second.got(t, bridge.KindResponse, pong1)
	start(t, b, a, call(ping1))
	p.Settle()
	if m := s.one(t); string(m.Corr) != "1" {
		t.Errorf("corr %q", m.Corr)
	}
}

func TestManyAbandonedUsesOfOneId(t *testing.T) {
	p, b, s := asking(t, config(nil))
	a := p.Client.Association
	var corrs [][]byte
	for range 5 {
		_, x := start(t, b, a, call(ping1))
		p.Settle()
		corrs = append(corrs, s.one(t).Corr)
		x.Abandon(nil)
		p.Settle()
	}
	for _, i := range []int{2, 0, 4, 1, 3} { // in any order their terminal frames free them
		s.send(t, response(corrs[i], pong1))
		p.Settle()
	}
	if st := b.Stats(); st.RepliesLate != 5 || st.RepliesUnknown != 0 {
		t.Errorf("%+v", st)
	}
	o, _ := start(t, b, a, call(ping1))
	p.Settle()
	s.send(t, response([]byte("1"), pong1))
	p.Settle()
	o.got(t, bridge.KindResponse, pong1)
}

func TestTimeoutEndsTheWaitAndKeepsTheCorr(t *testing.T) {
	p, b, s := asking(t, config(nil))
	c := call(ping1)
	c.Timeout = 2 * second
	o, _ := start(t, b, p.Client.Association, c)
	p.Run(second)
	o.pending(t)
	p.Run(2 * second)
	if o.n != 1 || o.Err != context.DeadlineExceeded || !o.Sent {
		t.Fatalf("%+v", o)
	}
	s.take(t)
	s.send(t, response([]byte("1"), pong1))
	p.Settle()
	if o.n != 1 || b.Stats().RepliesLate != 1 {
		t.Errorf("%+v %+v", o, b.Stats())
	}
}

func TestCallEndsWithItsContext(t *testing.T) {
	p, b, s := asking(t, config(nil))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	var reply *carriage.Reply
	go func() {
		var err error
		c := call(ping1)
		c.Protocol = mcp
		reply, err = b.Call(ctx, p.Client.Association, &c)
		done <- err
	}()
	p.RunUntil(func() bool { return len(s.frames) == 1 })
	cancel()
	p.RunUntil(func() bool { return len(done) == 1 })
	if err := <-done; err != context.Canceled || !reply.Sent {
		t.Errorf("%v %+v", err, reply)
	}
	c := call(ping1)
	c.Protocol = mcp
	if reply, err := b.Call(ctx, p.Client.Association, &c); err != context.Canceled || reply.Sent {
		t.Errorf("%v %+v", err, reply)
	}
}

func TestCallOwnsItsReply(t *testing.T) {
	p, c, _ := both(t, config(nil), config(new(echo)))
	done := make(chan *carriage.Reply, 1)
	go func() {
		q := call(ping1)
		q.Protocol = mcp
		reply, err := c.Call(context.Background(), p.Client.Association, &q)
		if err != nil {
			t.Error(err)
		}
		done <- reply
	}()
	p.RunUntil(func() bool { return len(done) == 1 })
	if r := <-done; string(r.Foreign) != `{"jsonrpc":"2.0","id":1,"result":`+ping1+`}` || r.Kind != bridge.KindResponse {
		t.Errorf("%+v", r)
	}
}

// BRIDGE 6: what the foreign endpoint says is kept apart from what we say.
func TestBridge6_ForeignErrorIsCarriedVerbatim(t *testing.T) {
	p, b, s := asking(t, config(nil))
	o, _ := start(t, b, p.Client.Association, call(ping1))
	p.Settle()
	foreign := ` {"jsonrpc":"2.0","id":1,"error":{"code":-32005,"message":"","data":[12345678901234567890]}}`
	s.send(t, bridge.Message{Kind: bridge.KindError, Corr: s.one(t).Corr, Foreign: []byte(foreign)})
	p.Settle()
	o.got(t, bridge.KindError, foreign)
}

func TestBridge6_TransportErrorsKeepTheirCode(t *testing.T) {
	p, b, s := asking(t, config(nil))
	for _, code := range []bridge.Code{1, 2, 3, 4, 5, 6, 16, 17, 18, 19, 20, 21} {
		o, _ := start(t, b, p.Client.Association, call(ping1))
		p.Settle()
		s.send(t, bridge.Message{Kind: bridge.KindError, Transport: true, Corr: s.one(t).Corr,
			Foreign: bridge.AppendTransportError(nil, code, "why")})
		p.Settle()
		o.ended(t, code, true)
		if !errors.Is(o.Err, code) || o.Err.(*bridge.Error).Text != "why" {
			t.Error(o.Err)
		}
	}
}

// D11: what only looks like a transport error is the foreign protocol's; under
// JSONRPC it is then no JSON.
func TestD11_OnlyAnExactTransportErrorIsOne(t *testing.T) {
	p, b, s := asking(t, config(nil))
	for _, foreign := range []string{"\x04\x02x", "\x04\x00x", "\x09\x00", "\x04", ""} {
		c := call("x")
		c.Protocol = raw
		o, _ := start(t, b, p.Client.Association, c)
		p.Settle()
		s.send(t, bridge.Message{Kind: bridge.KindError, Protocol: raw, Corr: s.one(t).Corr, Foreign: []byte(foreign)})
		p.Settle()
		o.got(t, bridge.KindError, foreign)

		o, _ = start(t, b, p.Client.Association, call(ping1))
		p.Settle()
		s.send(t, bridge.Message{Kind: bridge.KindError, Corr: s.one(t).Corr, Foreign: []byte(foreign)})
		p.Settle()
		o.ended(t, bridge.CodeEnvelopeMalformed, false)
		s.take(t)
	}
}

func TestFaultTable_MalformedReplyEndsTheWaitWithEM(t *testing.T) {
	p, b, s := asking(t, config(nil))
	n := uint64(0)
	for _, m := range []bridge.Message{
		response(nil, ""),
		response(nil, "{"),
		response(nil, ping1),
		response(nil, `{"jsonrpc":"2.0","id":2,"result":1}`),
		response(nil, `{"jsonrpc":"2.0","id":1.0,"result":1}`), // D17: as written
		response(nil, `{"jsonrpc":"2.0","id":"1","result":1}`),
		response(nil, `{"jsonrpc":"2.0","id":null,"result":1}`),
		response(nil, `{"jsonrpc":"2.0","id":1,"error":{}}`),
		response(nil, `{"jsonrpc":"2.0","id":1,"result":1,"error":{}}`),
		{Kind: bridge.KindError, Foreign: []byte(pong1)},
		{Kind: bridge.KindResponse, Foreign: []byte(pong1), Protocol: a2a},
		{Kind: bridge.KindResponse, Foreign: []byte(pong1), Content: bridge.ContentCBOR},
		{Kind: bridge.KindEnd, Foreign: []byte(pong1), Flags: bridge.FlagFinal},
		{Kind: bridge.KindEnd},
	} {
		o, _ := start(t, b, p.Client.Association, call(ping1))
		p.Settle()
		m.Corr = s.one(t).Corr
		s.send(t, m)
		p.Settle()
		n++
		o.ended(t, bridge.CodeEnvelopeMalformed, false)
		transport(t, s.one(t), "1", bridge.CodeEnvelopeMalformed)
	}
	for _, mangle := range []func([]byte) []byte{
		func(b []byte) []byte { b[4] = 0; return b },
		func(b []byte) []byte { b[5] = 1; return b },
		func(b []byte) []byte { return append(b[:11], 0, 0x11, 0, 1, 0) },
	} {
		o, _ := start(t, b, p.Client.Association, call(ping1))
		p.Settle()
		s.sendRaw(t, bridge.TypeResponse, mangle(payload(t, response(s.one(t).Corr, pong1))))
		p.Settle()
		n++
		o.ended(t, bridge.CodeEnvelopeMalformed, false)
		transport(t, s.one(t), "1", bridge.CodeEnvelopeMalformed)
	}
	if b.Stats().RepliesMalformed != n {
		t.Errorf("%+v, want %d", b.Stats(), n)
	}
	o, _ := start(t, b, p.Client.Association, call(ping1))
	p.Settle()
	s.send(t, response(s.one(t).Corr, pong1))
	p.Settle()
	o.got(t, bridge.KindResponse, pong1)
}

// ... but an answer must not end an exchange of the peer's own.
func TestFaultTable_MalformedReplyIsNotAnsweredOverThePeersOwnExchange(t *testing.T) {
	h := new(held)
	p, b, s := asking(t, config(h))
	o, _ := start(t, b, p.Client.Association, call(ping1))
	p.Settle()
	s.take(t)
	s.send(t, request("1", ping1)) // the peer asks under the same correlation id
	s.send(t, response([]byte("1"), "{"))
	p.Settle()
	o.ended(t, bridge.CodeEnvelopeMalformed, false)
	s.none(t)
	if err := h.requests[0].Respond([]byte(pong1)); err != nil {
		t.Fatal(err)
	}
	p.Settle()
	if m := s.one(t); m.Kind != bridge.KindResponse {
		t.Error(m.Kind)
	}
}

func TestFaultTable_ReplyToNothingIsDroppedAndNotAnswered(t *testing.T) {
	p, b, s := asking(t, config(new(echo)))
	start(t, b, p.Client.Association, call(ping1))
	hop := call(ping1)
	hop.Hop = true
	start(t, b, p.Client.Association, hop)
	p.Settle()
	token := s.take(t)[1].Corr
	other := append([]byte("2"), token[1:]...) // our token, but not our corr
	wrong := append([]byte(nil), token...)
	wrong[len(wrong)-1] ^= 1
	n := uint64(0)
	for _, corr := range [][]byte{[]byte("2"), []byte("x"), {0}, other, wrong, []byte("1 ")} {
		for _, k := range []bridge.Kind{bridge.KindResponse, bridge.KindError, bridge.KindData, bridge.KindEnd} {
			s.send(t, bridge.Message{Kind: k, Corr: corr, Foreign: []byte(pong1)})
			n++
		}
	}
	s.sendRaw(t, bridge.TypeResponse, nil)
	s.sendRaw(t, bridge.TypeError, []byte("\x00\x10\x00\x06\x01\x04\x01\x00\x00\x00"))
	n += 2
	p.Settle()
	s.none(t)
	if b.Stats().RepliesUnknown != n {
		t.Errorf("%+v, want %d", b.Stats(), n)
	}
}

// A unary exchange has no stream: the first frame of one ends the wait, the rest
// is dropped, and the correlation id is reserved until the stream's end.
func TestStreamOnAUnaryExchangeIsMalformed(t *testing.T) {
	p, b, s := asking(t, config(nil))
	o, _ := start(t, b, p.Client.Association, call(ping1))
	p.Settle()
	s.take(t)
	data := bridge.Message{Kind: bridge.KindData, Corr: []byte("1"), Foreign: []byte(pong1), HasStream: true, Stream: bridge.StreamControl{EventID: 1}}
	s.send(t, data)
	p.Settle()
	o.ended(t, bridge.CodeEnvelopeMalformed, false)
	transport(t, s.one(t), "1", bridge.CodeEnvelopeMalformed)
	data.Stream.EventID = 2
	s.send(t, data)
	p.Settle()
	s.none(t)
	start(t, b, p.Client.Association, call(ping1))
	p.Settle()
	if m := s.one(t); string(m.Corr) == "1" {
		t.Error("the correlation id was given out again before the stream's end")
	}
	s.send(t, bridge.Message{Kind: bridge.KindEnd, Corr: []byte("1"), Flags: bridge.FlagFinal})
	p.Settle()
	if o.n != 1 || b.Stats().RepliesLate != 2 {
		t.Errorf("%+v %+v", o, b.Stats())
	}
}

func TestReplyBeforeTheRequestIsNotTaken(t *testing.T) {
	b, s := carriage.New(config(nil)), new(peer)
	co := options(b)
	co.OutboundLimit, co.Conn.HighWater = 64<<10, 16<<10
	p := pair(t, co, options(s))
	p.Client.Block(true)
	fill(t, b, p.Client.Association, 10)
	o, _ := start(t, b, p.Client.Association, call(ping1))
	p.Settle()
	s.send(t, response([]byte("1"), pong1)) // guessed
	p.Settle()
	o.pending(t)
	if b.Stats().RepliesUnknown != 1 {
		t.Errorf("%+v", b.Stats())
	}
}

// fill starts requests of 20,000 octets that nobody reads.
func fill(t *testing.T, b *carriage.Bridge, a *assoc.Association, n int) (os []*outcome) {
	t.Helper()
	for i := range n {
		o, _ := start(t, b, a, call(fmt.Sprintf(`{"jsonrpc":"2.0","id":"fill%d","method":"m","params":["%020000d"]}`, i, 0)))
		os = append(os, o)
	}
	return os
}

func TestRequestWaitsForRoomAndStalls(t *testing.T) {
	cfg := config(nil)
	cfg.StallTimeout = 2 * second
	b, s := carriage.New(cfg), new(peer)
	co := options(b)
	co.OutboundLimit, co.Conn.HighWater, co.Stall = 64<<10, 16<<10, time.Hour
	p := pair(t, co, options(s))
	p.Client.Block(true)
	os := fill(t, b, p.Client.Association, 12)
	p.Run(second)
	for _, o := range os {
		o.pending(t)
	}
	p.Run(2 * second)
	stalled := 0
	for _, o := range os {
		if o.n == 1 {
			stalled++
			if o.Err != carriage.ErrStalled || o.Sent {
				t.Errorf("%+v", o)
			}
		}
	}
	if stalled == 0 || stalled == len(os) {
		t.Fatalf("%d of %d stalled", stalled, len(os))
	}
	p.Client.Block(false)
	p.Run(second)
	for _, m := range s.take(t) {
		s.send(t, response(m.Corr, `{"jsonrpc":"2.0","id":`+string(m.Corr)+`,"result":1}`))
	}
	p.Run(second)
	for i, o := range os {
		if o.n != 1 || i < len(os)-stalled && o.Err != nil {
			t.Errorf("%d: %+v", i, o)
		}
	}
	// And with room in time they all go, in order.
	p.Client.Block(true)
	os = fill(t, b, p.Client.Association, 12)
	p.Run(second)
	p.Client.Block(false)
	p.Run(second)
	ms := s.take(t)
	if len(ms) != 12 {
		t.Fatalf("%d arrived", len(ms))
	}
	for i, m := range ms {
		if string(m.Corr) != fmt.Sprintf(`"fill%d"`, i) {
			t.Errorf("%d: %q", i, m.Corr)
		}
	}
	_ = os
}

func TestWaitingRequestCanBeAbandonedAndTimesOut(t *testing.T) {
	b, s := carriage.New(config(nil)), new(peer)
	co := options(b)
	co.OutboundLimit, co.Conn.HighWater, co.Stall = 64<<10, 16<<10, time.Hour
	p := pair(t, co, options(s))
	p.Client.Block(true)
	fill(t, b, p.Client.Association, 8)
	o, x := start(t, b, p.Client.Association, call(ping1))
	c := call(`{"jsonrpc":"2.0","id":2,"method":"m"}`)
	c.Timeout = second
	late, _ := start(t, b, p.Client.Association, c)
	p.Settle()
	x.Abandon(nil)
	p.Settle()
	if o.n != 1 || o.Err != context.Canceled || o.Sent {
		t.Errorf("%+v", o)
	}
	p.Run(2 * second)
	if late.n != 1 || late.Err != context.DeadlineExceeded || late.Sent {
		t.Errorf("%+v", late)
	}
	again, _ := start(t, b, p.Client.Association, call(ping1))
	p.Settle()
	again.pending(t) // nothing of it was sent, so its id is free
}

func TestOutgoingOctetsAreBounded(t *testing.T) {
	cfg := config(nil)
	cfg.MaxHeld = 100_000
	p, b, _ := asking(t, cfg)
	c := call(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"m","params":["%040000d"]}`, 0))
	c.Protocol, c.Hop = mcp, true
	var err error
	n := 0
	for ; n < 10 && err == nil; n++ {
		_, err = b.Start(p.Client.Association, &c, new(outcome))
	}
	if err != assoc.ErrWouldBlock || n != 3 {
		t.Fatalf("%v after %d", err, n)
	}
	p.Settle()
	if _, err = b.Start(p.Client.Association, &c, new(outcome)); err != nil {
		t.Error(err)
	}
	// One message of any size goes when nothing else waits.
	p.Settle()
	c.Foreign = fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":"m","params":["%0200000d"]}`, 0)
	if _, err = b.Start(p.Client.Association, &c, new(outcome)); err != nil {
		t.Error(err)
	}
}

// Whoever has met that bound can wait until there is room, the context ends or the
// association does.
func TestAwaitRoom(t *testing.T) {
	cfg := config(nil)
	cfg.MaxHeld = 100_000
	p, b, _ := asking(t, cfg)
	a := p.Client.Association
	c := call(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"m","params":["%040000d"]}`, 0))
	c.Protocol, c.Hop = mcp, true
	must(t, b.AwaitRoom(background, a, 1<<30))
	fill := func() {
		t.Helper()
		for range 2 {
			_, err := b.Start(a, &c, new(outcome))
			must(t, err)
		}
	}
	await := func(ctx context.Context, n int) <-chan error {
		done := make(chan error, 1)
		go func() { done <- b.AwaitRoom(ctx, a, n) }()
		return done
	}
	fill()
	must(t, b.AwaitRoom(background, a, 1000))
	ctx, cancel := context.WithCancel(background)
	first, second, third := await(background, len(c.Foreign)), await(background, 1<<30), await(ctx, len(c.Foreign))
	cancel()
	if err := <-third; err != context.Canceled {
		t.Errorf("%v", err)
	}
	select {
	case err := <-first:
		t.Errorf("there was no room, and yet %v", err)
	default:
	}
	p.Settle()
	for _, done := range []<-chan error{first, second} {
		must(t, <-done)
	}
	fill()
	last := await(background, len(c.Foreign))
	p.Client.Close(0, "")
	p.Run(time.Minute)
	// What was about to be sent has made room, or its end was seen first.
	if err := <-last; err != nil && !errors.Is(err, assoc.ErrClosed) {
		t.Errorf("%v", err)
	}
	if _, err := b.Start(a, &c, new(outcome)); !errors.Is(err, assoc.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// Who was woken need not use the room: those behind it look for themselves.
func TestAwaitRoomBehindOneThatGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config(nil)
		cfg.MaxHeld = 100_000
		p, b, _ := asking(t, cfg)
		a := p.Client.Association
		c := call(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"m","params":["%080000d"]}`, 0))
		c.Protocol, c.Hop = mcp, true
		_, err := b.Start(a, &c, new(outcome))
		must(t, err)
		done := make(chan error, 2)
		for range 2 { // either has room, but not both
			go func() { done <- b.AwaitRoom(t.Context(), a, len(c.Foreign)) }()
		}
		synctest.Wait()
		p.Settle()
		for range 2 { // and neither sends anything
			must(t, <-done)
		}
	})
}

// Sent is told once, before the end, and only of a request that leaves.
func TestSentIsToldOfWhatLeaves(t *testing.T) {
	p, b, s := asking(t, config(nil))
	var told []string
	c := call(ping1)
	c.Protocol = mcp
	c.Sent = func() { told = append(told, "sent") }
	end := carriage.CompletionFunc(func(r *carriage.Reply) { told = append(told, fmt.Sprint("ended ", r.Err)) })
	_, err := b.Start(p.Client.Association, &c, end)
	must(t, err)
	_, err = b.Start(p.Client.Association, &c, end) // the same id
	must(t, err)
	p.Settle()
	s.send(t, response(s.one(t).Corr, `{"jsonrpc":"2.0","id":1,"result":1}`))
	p.Settle()
	if got := fmt.Sprint(told); got != fmt.Sprintf("[sent ended %v ended <nil>]", carriage.ErrDuplicateID) {
		t.Error(got)
	}
	c.Sent = func() { panic("Sent") }
	o := new(outcome)
	_, err = b.Start(p.Client.Association, &c, o)
	must(t, err)
	p.Settle()
	s.send(t, response(s.one(t).Corr, `{"jsonrpc":"2.0","id":1,"result":1}`))
	p.Settle()
	if o.n != 1 || o.Err != nil || b.Stats().CompletionPanics != 1 {
		t.Errorf("%+v %+v", o, b.Stats())
	}
}

func TestInFlightLimitIsLocal(t *testing.T) {
	cfg := config(nil)
	cfg.MaxInFlight = 2
	p, b, s := asking(t, cfg)
	c := call(ping1)
	c.Protocol, c.Hop = mcp, true
	for range 2 {
		start(t, b, p.Client.Association, c)
	}
	if _, err := b.Start(p.Client.Association, &c, new(outcome)); err != carriage.ErrInFlight {
		t.Error(err)
	}
	p.Settle()
	s.send(t, response(s.take(t)[0].Corr, pong1))
	p.Settle()
	start(t, b, p.Client.Association, c)
}

func TestStartRefusesWhatItCannotSend(t *testing.T) {
	p, b, s := asking(t, config(nil))
	a := p.Client.Association
	for name, x := range map[string]struct {
		c    carriage.Call
		want error
	}{
		"unknown protocol":  {carriage.Call{Protocol: 0x44, Foreign: []byte(ping1)}, carriage.ErrProtocol},
		"no JSON":           {carriage.Call{Protocol: mcp, Foreign: []byte("x")}, carriage.ErrMalformed},
		"nothing":           {carriage.Call{Protocol: mcp}, carriage.ErrMalformed},
		"a notification":    {carriage.Call{Protocol: mcp, Foreign: []byte(note)}, carriage.ErrMalformed},
		"a response":        {carriage.Call{Protocol: mcp, Foreign: []byte(pong1)}, carriage.ErrMalformed},
		"another method":    {carriage.Call{Protocol: mcp, Method: "n", Foreign: []byte(ping1)}, carriage.ErrMalformed},
		"CBOR":              {carriage.Call{Protocol: mcp, Content: bridge.ContentCBOR, Foreign: []byte(ping1)}, carriage.ErrMalformed},
		"more than a frame": {carriage.Call{Protocol: mcp, Foreign: huge("1")}, carriage.ErrMalformed},
		"more octets":       {carriage.Call{Protocol: raw, Foreign: huge("1")}, assoc.ErrTooLarge},
	} {
		o := new(outcome)
		if _, err := b.Start(a, &x.c, o); !errors.Is(err, x.want) {
			t.Errorf("%s: %v, want %v", name, err, x.want)
		}
		p.Settle()
		if o.n != 0 {
			t.Errorf("%s: told although refused", name)
		}
	}
	s.none(t)
	if _, err := carriage.New(config(nil)).Start(a, &carriage.Call{}, nil); err != carriage.ErrNotAttached {
		t.Error(err)
	}
}

func TestStartRefusesWhatThePeerDoesNotSpeak(t *testing.T) {
	b, s := carriage.New(config(nil)), new(peer)
	o := options(s)
	o.Conn.Protocols = []uint8{uint8(a2a)}
	p := pair(t, options(b), o)
	c := call(ping1)
	c.Protocol = mcp
	if _, err := b.Start(p.Client.Association, &c, new(outcome)); !errors.Is(err, bridge.CodeProtocolUnsupported) {
		t.Error(err)
	}
}

// D9: octets that would be misread are not sent, and that is told.
func TestD9_AmbiguousRequestIsNotSent(t *testing.T) {
	p, b, s := asking(t, config(nil))
	stream := string([]byte{0, 0x11, 0, 11, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 'x'})
	o, _ := start(t, b, p.Client.Association, carriage.Call{Protocol: raw, Foreign: []byte(stream)})
	p.Settle()
	if o.n != 1 || !errors.Is(o.Err, bridge.ErrAmbiguous) || o.Sent {
		t.Errorf("%+v", o)
	}
	s.none(t)
	// What only looks like a label is settled by an explicit one.
	label := "\x00\x13\x00\x02\x00\x00x"
	for _, noLabel := range []bool{false, true} {
		start(t, b, p.Client.Association, carriage.Call{Protocol: raw, Foreign: []byte(label), NoLabel: noLabel})
		p.Settle()
		if m := s.one(t); string(m.Foreign) != label || m.Label.Effect != bridge.Destructive {
			t.Errorf("%q %+v", m.Foreign, m.Label)
		}
	}
}

// D15, MAP-A2A 5: requests are labelled by what is known, else as destructive.
func TestD15_RequestsAreLabelled(t *testing.T) {
	cfg := config(nil)
	cfg.Protocols[0].Effect = func(m []byte) (bridge.Effect, bool) { return bridge.IdempotentWrite, string(m) == "m" }
	p, b, s := asking(t, cfg)
	for _, x := range []struct {
		c     carriage.Call
		has   bool
		label bridge.Label
	}{
		{call(ping1), true, bridge.Label{Effect: bridge.IdempotentWrite}},
		{call(`{"jsonrpc":"2.0","id":1,"method":"unknown"}`), true, bridge.Label{Effect: bridge.Destructive}},
		{carriage.Call{Foreign: []byte(ping1), NoLabel: true}, false, bridge.Label{}},
		{carriage.Call{Foreign: []byte(ping1), Label: &bridge.Label{Effect: bridge.ReadOnly, Scope: []byte("s")}}, true,
			bridge.Label{Effect: bridge.ReadOnly, Scope: []byte("s")}},
	} {
		x.c.Hop = true
		start(t, b, p.Client.Association, x.c)
		p.Settle()
		m := s.one(t)
		if m.HasLabel != x.has || m.Label.Effect != x.label.Effect || string(m.Label.Scope) != string(x.label.Scope) {
			t.Errorf("%s: %v %+v", x.c.Foreign, m.HasLabel, m.Label)
		}
	}
}

func TestBridge8_NotifyHasNoCorrelationId(t *testing.T) {
	p, b, s := asking(t, config(nil))
	c := call(note)
	c.Protocol = mcp
	if err := b.Notify(t.Context(), p.Client.Association, &c); err != nil {
		t.Fatal(err)
	}
	p.Settle()
	if m := s.one(t); m.Kind != bridge.KindNotify || len(m.Corr) != 0 || string(m.Foreign) != note || string(m.Method) != "m" {
		t.Errorf("%+v", m)
	}
	c.Foreign = []byte(ping1)
	if err := b.Notify(t.Context(), p.Client.Association, &c); !errors.Is(err, carriage.ErrMalformed) {
		t.Error(err)
	}
	if n := p.Client.ChannelConn(wire.ChannelBridge).Busy(); n != 0 {
		t.Errorf("%d busy", n)
	}
}

func TestNotifyWaitsForRoom(t *testing.T) {
	b, s := carriage.New(config(nil)), new(peer)
	co := options(b)
	co.OutboundLimit, co.Conn.HighWater, co.Stall = 64<<10, 16<<10, time.Hour
	p := pair(t, co, options(s))
	p.Client.Block(true)
	c := carriage.Call{Protocol: mcp, Foreign: fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"m","params":["%020000d"]}`, 0)}
	n := 0
	for ; b.TryNotify(p.Client.Association, &c) == nil; n++ {
		p.Settle()
	}
	if n == 0 {
		t.Fatal("nothing went")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Notify(ctx, p.Client.Association, &c); err != context.Canceled {
		t.Error(err)
	}
	done := make(chan error, 1)
	go func() { done <- b.Notify(t.Context(), p.Client.Association, &c) }()
	p.Client.Block(false)
	p.RunUntil(func() bool { return len(s.frames) == n+1 })
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Every exchange ends when its association does, on both sides, once.
func TestAssociationsEndEndsEveryExchange(t *testing.T) {
	for name, end := range map[string]func(a *assoc.Association){
		"close": func(a *assoc.Association) { a.Close(control.CodeShutdown, "bye") },
		"cut":   nil,
	} {
		t.Run(name, func(t *testing.T) {
			h := new(held)
			p, b, s := both(t, config(nil), config(h))
			var os []*outcome
			for i := range 20 {
				o, _ := start(t, b, p.Client.Association, call(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"m"}`, i)))
				os = append(os, o)
			}
			p.Settle()
			if end != nil {
				end(p.Server.Association)
			} else {
				p.Cut(errors.New("reset"))
			}
			unsent, _ := start(t, b, p.Client.Association, call(`{"jsonrpc":"2.0","id":"posted","method":"m"}`))
			p.Run(5 * second)
			for _, o := range os {
				if o.n != 1 || !errors.Is(o.Err, assoc.ErrClosed) || !o.Sent {
					t.Fatalf("%+v", o)
				}
			}
			if unsent.n != 1 || !errors.Is(unsent.Err, assoc.ErrClosed) {
				t.Errorf("%+v", unsent)
			}
			for _, r := range h.requests {
				<-r.Done()
				if err := r.Refuse(bridge.CodeNotDelivered, "x"); err != carriage.ErrAnswered {
					t.Error(err)
				}
			}
			c := call(ping1)
			c.Protocol = mcp
			if _, err := b.Start(p.Client.Association, &c, new(outcome)); !errors.Is(err, assoc.ErrClosed) {
				t.Error(err)
			}
			_ = s
		})
	}
}

func TestDrainRefusesNewExchangesLocally(t *testing.T) {
	p, b, s := asking(t, config(nil))
	old, _ := start(t, b, p.Client.Association, call(ping1))
	p.Settle()
	p.Client.Drain(0, "")
	p.Settle()
	o, _ := start(t, b, p.Client.Association, call(`{"jsonrpc":"2.0","id":2,"method":"m"}`))
	p.Settle()
	if o.n != 1 || o.Err != carriage.ErrDraining {
		t.Errorf("%+v", o)
	}
	s.send(t, response(s.one(t).Corr, pong1))
	p.Run(2 * second)
	old.got(t, bridge.KindResponse, pong1)
	if p.Client.Err() == nil {
		t.Error("the drain did not end")
	}
}

func TestCompletionPanicHurtsNobody(t *testing.T) {
	p, b, _ := both(t, config(nil), config(new(echo)))
	c := call(ping1)
	c.Protocol = mcp
	if _, err := b.Start(p.Client.Association, &c, carriage.CompletionFunc(func(*carriage.Reply) { panic("x") })); err != nil {
		t.Fatal(err)
	}
	o, _ := start(t, b, p.Client.Association, call(`{"jsonrpc":"2.0","id":2,"method":"m"}`))
	p.Settle()
	if o.n != 1 || o.Err != nil || b.Stats().CompletionPanics != 1 {
		t.Errorf("%+v %+v", o, b.Stats())
	}
}

// BRIDGE 5: either side asks, also at the same time and with equal ids.
func TestBridge5_EitherSideOriginates(t *testing.T) {
	p, c, s := both(t, config(new(echo)), config(new(echo)))
	want := `{"jsonrpc":"2.0","id":1,"result":` + ping1 + `}`
	o1, _ := start(t, c, p.Client.Association, call(ping1))
	o2, _ := start(t, s, p.Server.Association, call(ping1))
	p.Settle()
	o1.got(t, bridge.KindResponse, want)
	o2.got(t, bridge.KindResponse, want)
}

func TestD24_DocumentCallHasAnAllocatedCorr(t *testing.T) {
	cfg := config(nil)
	cfg.Protocols[0].Document = func(m []byte) bool { return string(m) == "card" }
	p, b, s := asking(t, cfg)
	o, _ := start(t, b, p.Client.Association, carriage.Call{Method: "card"})
	p.Settle()
	m := s.one(t)
	if natural, _, ok := sched.ParseCorr(m.Corr); !ok || len(natural) != 0 || len(m.Foreign) != 0 || string(m.Method) != "card" {
		t.Fatalf("%+v", m)
	}
	s.send(t, response(m.Corr, "{not a response"))
	p.Settle()
	o.got(t, bridge.KindResponse, "{not a response")
}

func TestOpaqueCallsAreNamedByTheirNaturalIds(t *testing.T) {
	p, b, s := asking(t, config(nil))
	c := carriage.Call{Protocol: raw, Method: "POST /runs", Foreign: []byte("x"), Natural: []byte("run-1")}
	o, _ := start(t, b, p.Client.Association, c)
	dup, _ := start(t, b, p.Client.Association, c)
	c.Natural = nil
	start(t, b, p.Client.Association, c)
	p.Settle()
	ms := s.take(t)
	if len(ms) != 2 || string(ms[0].Corr) != "run-1" || len(ms[1].Corr) != 9 || ms[0].Content != bridge.ContentCBOR {
		t.Fatalf("%+v", ms)
	}
	if dup.Err != carriage.ErrDuplicateID {
		t.Error(dup.Err)
	}
	m := response(ms[0].Corr, "\x00any octets")
	m.Protocol = raw
	s.send(t, m)
	p.Settle()
	o.got(t, bridge.KindResponse, "\x00any octets")
}
