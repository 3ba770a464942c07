package carriage_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// opaqueTags are numbers by agreement (D7).
var opaqueTags = &bridge.Tags{OpaqueContentType: 0x40, EdgeMetadata: 0x41, DocumentBinding: 0x42, OpaqueContent: 0x70}

// opaque is a configuration with one opaque protocol.
func opaque(h carriage.Handler, tags *bridge.Tags) carriage.Config {
	return carriage.Config{Protocols: []carriage.Protocol{{ID: raw, Class: carriage.ClassOpaque, Handler: h}}, Tags: tags}
}

// answerer does one thing with each request, and keeps what it saw of messages.
type answerer struct {
	t      *testing.T
	answer func(r *carriage.Request)
	seen   []sawOpaque
}

type sawOpaque struct {
	foreign, declared string
	effect            bridge.Effect
	notification      bool
}

func (a *answerer) saw(m *carriage.Inbound) {
	a.seen = append(a.seen, sawOpaque{string(m.Foreign()), bridge.Declared(m.Content(), m.MediaType()), m.Effect(), m.Notification()})
}

func (a *answerer) ServeRequest(r *carriage.Request) {
	a.saw(&r.Inbound)
	a.answer(r)
}
func (a *answerer) ServeNotify(n *carriage.Notify) { a.saw(&n.Inbound) }

// lastSeen is what the handler saw last, and forgets it.
func (a *answerer) lastSeen() sawOpaque {
	a.t.Helper()
	if len(a.seen) != 1 {
		a.t.Fatalf("the handler saw %d messages", len(a.seen))
	}
	s := a.seen[0]
	a.seen = nil
	return s
}

// binary are octets of every kind: all values, what looks like the TLVs in front of
// it, what looks like text, and none.
func binary() [][]byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	random := make([]byte, 70000)
	source := rand.New(rand.NewPCG(1, 2))
	for i := range random {
		random[i] = byte(source.Uint32())
	}
	return [][]byte{
		nil, {0}, {0xff}, {0, 0}, all, random,
		slices.Concat([]byte{1}, all), []byte("\xef\xbb\xbf{\"a\": 1.10}\r\n"), []byte("{"), []byte("\xc3\x28"),
		[]byte("\x00\x10\x00\x06\x10\x01\x01\x00\x00\x00"), []byte("\x00\x33\x00\x01x"), []byte("\x80\x01\x00\x00"),
	}
}

// CC-OPAQUE 1.3(1), 5: what arrives is what was sent, octet for octet, whatever it
// is: in requests, in answers of either kind, in notifications.
func TestCCOPAQUE1_3_PayloadsCrossOctetForOctet(t *testing.T) {
	h := &answerer{t: t}
	p, b, _ := both(t, opaque(nil, nil), opaque(h, nil))
	for _, foreign := range binary() {
		for _, kind := range []bridge.Kind{bridge.KindResponse, bridge.KindError} {
			h.answer = func(r *carriage.Request) {
				if kind == bridge.KindError {
					must(t, r.Fail(r.Foreign()))
				} else {
					must(t, r.Respond(r.Foreign()))
				}
			}
			o, _ := start(t, b, p.Client.Association, carriage.Call{Protocol: raw, Foreign: foreign})
			p.Settle()
			if s := h.lastSeen(); s.foreign != string(foreign) {
				t.Errorf("%.20q arrived as %.20q", foreign, s.foreign)
			}
			o.got(t, kind, string(foreign))
		}
		must(t, b.TryNotify(p.Client.Association, &carriage.Call{Protocol: raw, Foreign: foreign}))
		p.Settle()
		if s := h.lastSeen(); s.foreign != string(foreign) || !s.notification {
			t.Errorf("%.20q arrived as %.20q", foreign, s.foreign)
		}
	}
}

// CC-OPAQUE 1.3(1): a payload is never truncated: up to the largest frame that the
// peer accepts it is carried whole, and one octet more is refused, to either side.
func TestCCOPAQUE1_3_FromNoOctetsToTheLimit(t *testing.T) {
	var answer []byte
	h := &answerer{t: t, answer: func(r *carriage.Request) { _ = r.Respond(answer) }}
	p, b, _ := both(t, opaque(nil, nil), opaque(h, nil))
	limit := p.Client.Association.MaxSend()
	const corr = "x"
	prefix := func(kind bridge.Kind) int {
		m := bridge.Message{Kind: kind, Protocol: raw, Content: bridge.ContentJSON, Corr: []byte(corr), HasLabel: kind == bridge.KindRequest}
		return m.Size()
	}
	ask := func(n int) (*outcome, error) {
		o := new(outcome)
		_, err := b.Start(p.Client.Association, &carriage.Call{Protocol: raw, Natural: []byte(corr), Foreign: make([]byte, n)}, o)
		p.Settle()
		return o, err
	}
	// What is checked at the start has room for a token behind the correlation id.
	most := limit - prefix(bridge.KindRequest) - 9
	for _, n := range []int{0, 1, most - 1, most} {
		answer = make([]byte, limit-prefix(bridge.KindResponse)-most+n)
		o, err := ask(n)
		if err != nil {
			t.Fatalf("%d octets: %v", n, err)
		}
		if s := h.lastSeen(); s.foreign != string(make([]byte, n)) {
			t.Errorf("%d octets arrived as %d", n, len(s.foreign))
		}
		o.got(t, bridge.KindResponse, string(answer))
	}
	if _, err := ask(most + 1); !errors.Is(err, assoc.ErrTooLarge) || len(h.seen) != 0 {
		t.Errorf("an octet too much: %v, %d seen", err, len(h.seen))
	}
	answer = make([]byte, limit-prefix(bridge.KindResponse)+1)
	o, err := ask(0)
	must(t, err)
	o.ended(t, bridge.CodeNotDelivered, true) // and no part of it as a success
}

// CC-OPAQUE 2: who holds the message says whether it is answered, and frame type
// and kind say so together; a frame in which they differ is malformed.
func TestCCOPAQUE2_FrameTypeAndKindAgree(t *testing.T) {
	h := &answerer{t: t, answer: func(r *carriage.Request) { must(t, r.Respond(nil)) }}
	p, _, c := serving(t, opaque(h, nil))
	c.script(t, "0100 0010 0007 10 03 01 00 01'c' 00 'x'") // a REQUEST of the kind notification
	p.Settle()
	transport(t, c.one(t), "c", bridge.CodeEnvelopeMalformed)
	c.script(t, "0103 0010 0006 10 01 01 00 00 00 'x'") // a NOTIFY of the kind request
	p.Settle()
	c.none(t)
	if len(h.seen) != 0 {
		t.Errorf("%+v", h.seen)
	}
}

// CC-OPAQUE 2: either side asks.
func TestCCOPAQUE2_EitherSideOriginates(t *testing.T) {
	h := &answerer{t: t, answer: func(r *carriage.Request) { must(t, r.Respond(r.Foreign())) }}
	p, c, s := both(t, opaque(h, nil), opaque(h, nil))
	one, _ := start(t, c, p.Client.Association, carriage.Call{Protocol: raw, Natural: []byte("1"), Foreign: []byte("\x00client")})
	two, _ := start(t, s, p.Server.Association, carriage.Call{Protocol: raw, Natural: []byte("1"), Foreign: []byte("\x00server")})
	p.Settle()
	one.got(t, bridge.KindResponse, "\x00client")
	two.got(t, bridge.KindResponse, "\x00server")
}

// CC-OPAQUE 2: replies are matched by their correlation ids, in whatever order they
// come.
func TestCCOPAQUE2_RepliesAreMatchedByCorrelation(t *testing.T) {
	h := new(held)
	p, b, _ := both(t, opaque(nil, nil), opaque(h, nil))
	var all []*outcome
	for i := range 8 {
		o, _ := start(t, b, p.Client.Association, carriage.Call{Protocol: raw, Foreign: []byte{byte(i)}})
		all = append(all, o)
	}
	p.Settle()
	for _, i := range []int{7, 0, 3, 6, 1, 5, 2, 4} {
		must(t, h.requests[i].Respond([]byte{0xF0 | byte(i)}))
		h.requests[i].Release()
	}
	p.Settle()
	for i, o := range all {
		o.got(t, bridge.KindResponse, string([]byte{0xF0 | byte(i)}))
	}
}

// CC-OPAQUE 3: a protocol that is not carried is ProtocolUnsupported; the class is
// chosen by the agreed id and by nothing else.
func TestCCOPAQUE3_UnagreedProtocolIDs(t *testing.T) {
	h := &answerer{t: t, answer: func(r *carriage.Request) { must(t, r.Respond(nil)) }}
	p, b, c := serving(t, opaque(h, nil))
	c.script(t, "0100 0010 0007 11 01 01 00 01'c' 00 'x'")
	p.Settle()
	transport(t, c.one(t), "c", bridge.CodeProtocolUnsupported)
	c.script(t, "0100 0010 0007 01 01 01 00 01'c' 00 '{}'")
	p.Settle()
	transport(t, c.one(t), "c", bridge.CodeProtocolUnsupported)
	if len(h.seen) != 0 {
		t.Errorf("%+v", h.seen)
	}
	if _, err := b.Start(p.Server.Association, &carriage.Call{Protocol: 0x11}, nil); !errors.Is(err, carriage.ErrProtocol) {
		t.Errorf("sent under an id that is not ours: %v", err)
	}
}

// CC-OPAQUE 4.2, 4.3, 4.4: how a sender declares a media type, in both directions.
// An enumerated one has no TLV, whatever numbers are configured.
func TestCCOPAQUE4_2_DeclaredByTheEnvelopeOrTheTLV(t *testing.T) {
	for _, c := range []struct {
		media, content, tlv string
		off                 bool // needs the configured numbers
	}{
		{"application/json", "01", "", false},
		{"Application/JSON", "01", "", false},
		{"application/cbor", "02", "", false},
		{"application/grpc+proto", "03", "", false},
		{"application/json; charset=utf-8", "70", "0040 001f 'application/json; charset=utf-8'", true},
		{"application/octet-stream", "70", "0040 0018 'application/octet-stream'", true},
		{"text/plain; charset=utf-8", "70", "0040 0019 'text/plain; charset=utf-8'", true},
		{"a/b", "70", "0040 0003 'a/b'", true},
	} {
		for _, tags := range []*bridge.Tags{nil, opaqueTags} {
			works := tags != nil || !c.off
			p, b, s := asking(t, opaque(nil, tags))
			o := new(outcome)
			_, err := b.Start(p.Client.Association, &carriage.Call{Protocol: raw, Natural: []byte("c"), Method: "m", MediaType: []byte(c.media), Foreign: []byte{0xff}}, o)
			p.Settle()
			if works != (err == nil) || !works && !errors.Is(err, bridge.ErrTagOff) {
				t.Fatalf("%s, configured %v: %v", c.media, tags != nil, err)
			}
			if works {
				s.wrote(t, "0100 0010 0008 10 01"+c.content+"00 01'c' 01'm'"+c.tlv+"0013 0002 03 00 ff")
			} else {
				s.none(t)
			}

			q, _, asker := serving(t, opaque(carriage.HandlerFunc(func(r *carriage.Request) {
				if err := r.Declare(carriage.Declaration{MediaType: c.media}); works != (err == nil) || !works && !errors.Is(err, bridge.ErrTagOff) {
					t.Errorf("%s, configured %v: %v", c.media, tags != nil, err)
				}
				must(t, r.Respond([]byte{0xfe}))
			}), tags))
			asker.script(t, "0100 0010 0007 10 01 02 00 01'c' 00")
			q.Settle()
			if works {
				asker.wrote(t, "0101 0010 0007 10 02"+c.content+"00 01'c' 00"+c.tlv+"fe")
			} else {
				asker.wrote(t, "0101 0010 0007 10 02 02 00 01'c' 00 fe") // as the request
			}
		}
	}
}

// CC-OPAQUE 1.3(2), 4.1: the declaration arrives as it was made, and no part of it
// in the payload.
func TestCCOPAQUE4_1_DeclarationsArriveVerbatim(t *testing.T) {
	h := &answerer{t: t}
	p, b, _ := both(t, opaque(nil, opaqueTags), opaque(h, opaqueTags))
	for _, media := range []string{"application/json", "application/json;charset=UTF-8", "text/x-y ; a=\"b; \\\"c\"", "application/vnd.a.b+json"} {
		h.answer = func(r *carriage.Request) {
			must(t, r.Declare(carriage.Declaration{MediaType: media}))
			must(t, r.Respond([]byte("payload")))
		}
		o, _ := start(t, b, p.Client.Association, carriage.Call{Protocol: raw, MediaType: []byte(media), Foreign: []byte("payload")})
		p.Settle()
		if s := h.lastSeen(); s.declared != media || s.foreign != "payload" {
			t.Errorf("%q: %+v", media, s)
		}
		o.got(t, bridge.KindResponse, "payload")
	}
}

// CC-OPAQUE 4.2(3), 4.3, 4.4, 8(3): an absent, ambiguous, malformed or unknown
// declaration is EnvelopeMalformed, on requests and on replies.
func TestCCOPAQUE4_FaultyDeclarationsAreMalformed(t *testing.T) {
	faults := map[string]struct {
		content, tlv string
		tags         *bridge.Tags
	}{
		"none":                           {"00", "", opaqueTags},
		"one that nobody assigned":       {"04", "", opaqueTags},
		"the pointer without a TLV":      {"70", "", opaqueTags},
		"enumerated beside the TLV":      {"01", "0040 0003 'a/b'", opaqueTags},
		"an empty TLV":                   {"70", "0040 0000", opaqueTags},
		"a NUL":                          {"70", "0040 0004 'a/b' 00", opaqueTags},
		"no media type":                  {"70", "0040 0005 'plain'", opaqueTags},
		"not US-ASCII":                   {"70", "0040 0005 'a/b' c3a9", opaqueTags},
		"a TLV that is cut":              {"70", "0040 00ff 'a/b'", opaqueTags},
		"the pointer, not configured":    {"70", "0040 0003 'a/b'", nil},
		"the pointer, another's numbers": {"71", "0040 0003 'a/b'", opaqueTags},
	}
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			h := &answerer{t: t}
			p, _, c := serving(t, opaque(h, f.tags))
			c.script(t, "0100 0010 0007 10 01"+f.content+"00 01'c' 00"+f.tlv)
			p.Settle()
			transport(t, c.one(t), "c", bridge.CodeEnvelopeMalformed)
			c.script(t, "0103 0010 0006 10 03"+f.content+"00 00 00"+f.tlv)
			p.Settle()
			c.none(t) // a notification is never answered
			if len(h.seen) != 0 {
				t.Errorf("%+v", h.seen)
			}

			q, b, s := asking(t, opaque(nil, f.tags))
			o, _ := start(t, b, q.Client.Association, carriage.Call{Protocol: raw, Natural: []byte("c")})
			q.Settle()
			s.one(t)
			s.script(t, "0101 0010 0007 10 02"+f.content+"00 01'c' 00"+f.tlv)
			q.Settle()
			o.ended(t, bridge.CodeEnvelopeMalformed, false)
			transport(t, s.one(t), "c", bridge.CodeEnvelopeMalformed)
		})
	}
}

// CC-OPAQUE 4.2: what can't be declared is not sent, and the class decides who may
// declare at all.
func TestCCOPAQUE4_2_WhatCanNotBeDeclared(t *testing.T) {
	var declare carriage.Declaration
	var got error
	h := &answerer{t: t, answer: func(r *carriage.Request) {
		got = r.Declare(declare)
		must(t, r.Respond(r.Foreign()))
	}}
	p, b, _ := both(t, opaque(nil, opaqueTags), opaque(h, opaqueTags))
	for _, c := range []struct {
		d    carriage.Declaration
		want error
	}{
		{carriage.Declaration{MediaType: "plain"}, bridge.ErrMediaType},
		{carriage.Declaration{MediaType: "a/b\x00"}, bridge.ErrMediaType},
		{carriage.Declaration{Content: bridge.ContentCBOR, MediaType: "a/b"}, bridge.ErrMediaTypeAmbiguous},
		{carriage.Declaration{Content: 0x70}, bridge.ErrMediaTypeMissing},
		{carriage.Declaration{Content: 9}, bridge.ErrContentType},
		{carriage.Declaration{Method: strings.Repeat("x", 256)}, bridge.ErrMethodTooLong},
		{carriage.Declaration{Method: "\xff"}, bridge.ErrMethodUTF8},
		{carriage.Declaration{Content: 0x70, MediaType: "a/b"}, nil},
		{carriage.Declaration{Content: bridge.ContentCBOR, Method: strings.Repeat("x", 255)}, nil},
		{carriage.Declaration{}, nil},
	} {
		declare = c.d
		o, _ := start(t, b, p.Client.Association, carriage.Call{Protocol: raw, Foreign: []byte("x")})
		p.Settle()
		o.got(t, bridge.KindResponse, "x")
		if !errors.Is(got, c.want) || c.want == nil && got != nil {
			t.Errorf("%+v: %v, want %v", c.d, got, c.want)
		}
	}
	q, b, _ := both(t, config(nil), config(carriage.HandlerFunc(func(r *carriage.Request) {
		got = r.Declare(carriage.Declaration{Content: bridge.ContentCBOR})
		must(t, r.Respond(result(r)))
	})))
	o, _ := start(t, b, q.Client.Association, call(ping1))
	q.Settle()
	if o.Err != nil || got != carriage.ErrNotOpaque {
		t.Errorf("JSON-RPC: %v, %v", o.Err, got)
	}
}

// CC-OPAQUE 5; D9: octets that look like the TLVs in front of them arrive whole: a
// label before them settles it where one can, and else they are refused, to either
// side and in notifications.
func TestCCOPAQUE5_AmbiguousBeginningsAreSettledOrRefused(t *testing.T) {
	look := map[string]struct {
		foreign string
		carried bool
	}{
		"a SafetyLabel":              {"\x00\x13\x00\x02\x00\x00tail", true},
		"half a SafetyLabel":         {"\x00\x13\x00", true},
		"a SafetyLabel of nonsense":  {"\x00\x13\x00\x02\x09\x09", true},
		"a StreamControl":            {"\x00\x11\x00\x0b\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01", false},
		"half a StreamControl":       {"\x00\x11", false},
		"a type's octet alone":       {"\x00", true},
		"an OpaqueContentType":       {"\x00\x40\x00\x03a/b", false},
		"EdgeMetadata":               {"\x00\x41\x00\x01x", false},
		"a DocumentBinding":          {"\x00\x42", false},
		"an unknown TLV":             {"\x00\x33\x00\x01x", true},
		"an envelope":                {"\x00\x10\x00\x06\x10\x01\x01\x00\x00\x00", true},
		"a label, then a stream one": {"\x00\x13\x00\x02\x00\x00\x00\x11", true},
	}
	for name, l := range look {
		t.Run(name, func(t *testing.T) {
			h := &answerer{t: t, answer: func(r *carriage.Request) { must(t, r.Respond([]byte("ok"))) }}
			p, b, _ := both(t, opaque(nil, opaqueTags), opaque(h, opaqueTags))
			for _, noLabel := range []bool{false, true} {
				c := carriage.Call{Protocol: raw, NoLabel: noLabel, Foreign: []byte(l.foreign)}
				o := new(outcome)
				_, err := b.Start(p.Client.Association, &c, o)
				p.Settle()
				if o.n > 0 && err == nil {
					err = o.Err
				}
				noted := b.TryNotify(p.Client.Association, &c)
				p.Settle()
				if !l.carried {
					if !errors.Is(err, bridge.ErrAmbiguous) || !errors.Is(noted, bridge.ErrAmbiguous) || len(h.seen) != 0 || o.Sent {
						t.Errorf("%v, %v, %+v", err, noted, h.seen)
					}
					continue
				}
				if err != nil || noted != nil || len(h.seen) != 2 {
					t.Fatalf("%v, %v, %+v", err, noted, h.seen)
				}
				for _, s := range h.seen {
					// The label that is made up for an unlabelled one is what its absence means.
					if s.foreign != l.foreign || s.effect != bridge.Destructive {
						t.Errorf("%q arrived as %+v", l.foreign, s)
					}
				}
				h.seen = nil
			}
			// The other way, as an answer and as an error.
			for _, kind := range []bridge.Kind{bridge.KindResponse, bridge.KindError} {
				h.answer = func(r *carriage.Request) {
					reply := r.Respond
					if kind == bridge.KindError {
						reply = r.Fail
					}
					if err := reply([]byte(l.foreign)); l.carried != (err == nil) || !l.carried && !errors.Is(err, bridge.ErrAmbiguous) {
						t.Errorf("%v: %v", kind, err)
					}
				}
				o, _ := start(t, b, p.Client.Association, carriage.Call{Protocol: raw})
				p.Settle()
				if l.carried {
					o.got(t, kind, l.foreign)
				} else {
					o.ended(t, bridge.CodeNotDelivered, true)
				}
			}
		})
	}
}

// CC-OPAQUE 7(1), 7(2), 7(4): the chunks of a stream make the payload, in their
// order, wherever they are cut; what would be misread at the start of one is cut
// elsewhere.
func TestCCOPAQUE7_ChunksMakeThePayload(t *testing.T) {
	for i, payload := range append(binary(), []byte("\x00\x40\x00\x03a/b"), []byte("\x00\x41\x00\x42\x00\x40"), []byte("\x00\x11\x00\x0b")) {
		for _, step := range []int{1, 3, 1 << 20} {
			h := &streamed{t: t, o: carriage.StreamOptions{Buffer: 1 << 30}}
			p, b, _ := both(t, opaque(nil, opaqueTags), opaque(h, opaqueTags))
			s, _ := consume(t, b, p.Client.Association, carriage.Call{Protocol: raw}, nil)
			p.Settle()
			to := h.one()
			from := io.Reader(bytes.NewReader(payload))
			if step < 1<<20 && len(payload) < 1000 {
				from = &stepReader{payload, step}
			}
			if n, err := to.Copy(background, from); err != nil || n != int64(len(payload)) {
				t.Fatalf("payload %d: %d octets, %v", i, n, err)
			}
			must(t, to.EndEmpty())
			p.Settle()
			s.ends(t, "")
			if got := strings.Join(s.events, ""); got != string(payload) {
				t.Errorf("payload %d in steps of %d: %.40q, want %.40q", i, step, got, payload)
			}
			for id := range s.ids {
				if s.ids[id] != carriage.EventID(id+1) {
					t.Fatalf("chunks %v", s.ids)
				}
			}
		}
	}
}

// stepReader gives a few octets at a time.
type stepReader struct {
	rest []byte
	step int
}

func (r *stepReader) Read(b []byte) (int, error) {
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), r.step)], r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// CC-OPAQUE 7(2): a payload that is read as one: chunks, the octets of the
// STREAM_END, and a stream that ends in another way is no complete payload.
func TestCCOPAQUE7_PayloadIsReassembled(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(p *carriage.Producer) error
		tail string
		err  error
	}{
		"octets in the end": {func(p *carriage.Producer) error { return p.End([]byte("\x00end")) }, "\x00end", nil},
		"none":              {(*carriage.Producer).EndEmpty, "", nil},
		"not delivered":     {func(p *carriage.Producer) error { return p.Refuse(bridge.CodeNotDelivered, "gone") }, "", bridge.CodeNotDelivered},
		"foreign error":     {func(p *carriage.Producer) error { return p.Fail([]byte("\x00bad")) }, "", new(carriage.ForeignError)},
	} {
		t.Run(name, func(t *testing.T) {
			h := &streamed{t: t}
			p, b, _ := both(t, opaque(nil, opaqueTags), opaque(h, opaqueTags))
			s, err := b.Stream(background, p.Client.Association, &carriage.Call{Protocol: raw}, nil)
			must(t, err)
			p.Settle()
			to := h.one()
			must(t, to.Declare(carriage.Declaration{MediaType: "application/octet-stream"}))
			for _, chunk := range []string{"\x00\x01", "", "\xff", strings.Repeat("z", 5000)} {
				must(t, to.TrySend([]byte(chunk)))
			}
			must(t, c.end(to))
			p.Settle()
			payload := s.Payload()
			got, err := io.ReadAll(payload)
			if want := "\x00\x01\xff" + strings.Repeat("z", 5000) + c.tail; string(got) != want || payload.Declared() != "application/octet-stream" {
				t.Errorf("%d octets as %q, want %d", len(got), payload.Declared(), len(want))
			}
			var foreign *carriage.ForeignError
			switch {
			case c.err == nil:
				must(t, err)
			case errors.As(c.err, &foreign):
				if !errors.As(err, &foreign) || string(foreign.Foreign) != "\x00bad" || bridge.Declared(foreign.Content, foreign.MediaType) != "application/octet-stream" {
					t.Errorf("%v", err)
				}
			case !errors.Is(err, c.err):
				t.Errorf("%v, want %v", err, c.err)
			}
		})
	}
}

// CC-OPAQUE 7(3): the content type is declared on the first frame of a stream and
// the same on all others, also on the one that acknowledges a cancel.
func TestCCOPAQUE7_OneContentTypeAStream(t *testing.T) {
	h := &streamed{t: t}
	p, _, c := serving(t, opaque(h, opaqueTags))
	const asked = "0100 0010 0007 10 01 01 00 01'1' 00"
	const tlv = "0040 0011 'application/x-tar'"
	c.script(t, asked)
	p.Settle()
	to := h.one()
	must(t, to.Declare(carriage.Declaration{MediaType: "application/x-tar", Method: "unused"}))
	must(t, to.TrySend([]byte("a")))
	must(t, to.Declare(carriage.Declaration{MediaType: "a/b", Method: "m"})) // of an error, if there is one
	must(t, to.TrySend([]byte("b")))
	p.Settle()
	c.wrote(t,
		"0104 0010 0007 10 05 70 00 01'1' 00 0011 000b 01 00 00 0000000000000001"+tlv+"'a'",
		"0104 0010 0007 10 05 70 00 01'1' 00 0011 000b 01 00 00 0000000000000002"+tlv+"'b'")
	c.script(t, "0105 0010 0007 10 06 01 01 01'1' 00 0011 000b 01 02 00 0000000000000002")
	p.Settle()
	c.wrote(t, "0105 0010 0007 10 06 70 01 01'1' 00 0011 000b 01 00 02 0000000000000002"+tlv)

	// An error is no part of the payload, and declares what it is.
	c.script(t, strings.Replace(asked, "'1'", "'2'", 1))
	p.Settle()
	to = h.producers[1]
	must(t, to.TrySend([]byte("a")))
	must(t, to.Declare(carriage.Declaration{MediaType: "a/b", Method: "m"}))
	must(t, to.Fail([]byte("bad")))
	if err := to.Declare(carriage.Declaration{}); err != carriage.ErrStreamEnded {
		t.Errorf("declared after the end: %v", err)
	}
	p.Settle()
	c.wrote(t, "0104 0010 0007 10 05 01 00 01'2' 00 0011 000b 01 00 00 0000000000000001 'a'",
		"0102 0010 0008 10 04 70 00 01'2' 01'm' 0040 0003 'a/b' 'bad'")
}

// CC-OPAQUE 7(3): a stream whose frames declare different content types is
// malformed, for its reader and for its producer.
func TestCCOPAQUE7_InconsistentContentTypesAreMalformed(t *testing.T) {
	const first = "0104 0010 0007 10 05 70 00 01'1' 00 0011 000b 01 00 00 0000000000000001 0040 0003 'a/b' 'x'"
	for name, second := range map[string]string{
		"another media type":      "0104 0010 0007 10 05 70 00 01'1' 00 0011 000b 01 00 00 0000000000000002 0040 0003 'a/c' 'y'",
		"an enumerated one":       "0104 0010 0007 10 05 01 00 01'1' 00 0011 000b 01 00 00 0000000000000002 'y'",
		"another one in the end":  "0105 0010 0007 10 06 01 01 01'1' 00 0011 000b 01 00 00 0000000000000002 'y'",
		"in the end without more": "0105 0010 0007 10 06 02 01 01'1' 00 0011 000b 01 00 00 0000000000000002",
	} {
		t.Run(name, func(t *testing.T) {
			p, b, s := asking(t, opaque(nil, opaqueTags))
			got, _ := consume(t, b, p.Client.Association, carriage.Call{Protocol: raw, Natural: []byte("1")}, nil)
			p.Settle()
			s.one(t)
			s.script(t, first)
			s.script(t, second)
			p.Settle()
			got.want(t, 1, "x")
			got.ended(t, bridge.CodeEnvelopeMalformed, false)
			transport(t, s.take(t)[0], "1", bridge.CodeEnvelopeMalformed)
		})
	}
}

// CC-OPAQUE 8(1); D11: a foreign error crosses as it is, with what it declares, and
// none that would pass for a transport error is sent.
func TestCCOPAQUE8_ForeignErrorsAreVerbatim(t *testing.T) {
	for _, foreign := range []string{"", "\x04", "\x04\x02x", "\x04\x01xy", "\x07\x01x", "\x00\x01x", "{\"code\":5}", "<e/>", strings.Repeat("\x04", 6000)} {
		p, b, _ := both(t, opaque(nil, opaqueTags), opaque(carriage.HandlerFunc(func(r *carriage.Request) {
			must(t, r.Declare(carriage.Declaration{MediaType: "application/xml", Method: "why"}))
			must(t, r.Fail([]byte(foreign)))
		}), opaqueTags))
		var declared, method string
		o := new(outcome)
		_, err := b.Start(p.Client.Association, &carriage.Call{Protocol: raw}, carriage.CompletionFunc(func(r *carriage.Reply) {
			declared, method = bridge.Declared(r.Content, r.MediaType), string(r.Method)
			o.HandleReply(r)
		}))
		must(t, err)
		p.Settle()
		o.got(t, bridge.KindError, foreign)
		if declared != "application/xml" || method != "why" {
			t.Errorf("%q: declared %q, method %q", foreign, declared, method)
		}
	}
	for _, foreign := range []string{"\x04\x00", "\x04\x01x", "\x05\x03any", "\x15\x00"} {
		var got error
		p, b, _ := both(t, opaque(nil, nil), opaque(carriage.HandlerFunc(func(r *carriage.Request) { got = r.Fail([]byte(foreign)) }), nil))
		o, _ := start(t, b, p.Client.Association, carriage.Call{Protocol: raw})
		p.Settle()
		o.ended(t, bridge.CodeNotDelivered, true)
		if !errors.Is(got, bridge.ErrAmbiguous) {
			t.Errorf("%q: %v", foreign, got)
		}
		// As a success the same octets are only octets.
		p, b, _ = both(t, opaque(nil, nil), opaque(carriage.HandlerFunc(func(r *carriage.Request) { must(t, r.Respond([]byte(foreign))) }), nil))
		o, _ = start(t, b, p.Client.Association, carriage.Call{Protocol: raw})
		p.Settle()
		o.got(t, bridge.KindResponse, foreign)
	}
}

// CC-OPAQUE 8(2), 11(7): what failed below the foreign protocol is a transport
// error with its own code, and never a success.
func TestCCOPAQUE8_TransportErrorsKeepTheirCodes(t *testing.T) {
	for _, code := range []bridge.Code{
		bridge.CodeEnvelopeMalformed, bridge.CodeProtocolUnsupported, bridge.CodeMethodUnsupported, bridge.CodeNotDelivered, bridge.CodeSafetyPolicy,
	} {
		p, b, _ := both(t, opaque(nil, nil), opaque(carriage.HandlerFunc(func(r *carriage.Request) { must(t, r.Refuse(code, "why")) }), nil))
		o, _ := start(t, b, p.Client.Association, carriage.Call{Protocol: raw})
		p.Settle()
		o.ended(t, code, true)
	}
}

// CC-OPAQUE 1.2: a missing label is destructive (BRIDGE 7), and an opaque sender
// that knows nothing of a method labels it so.
func TestCCOPAQUE1_2_LabelsAreInherited(t *testing.T) {
	h := &answerer{t: t, answer: func(r *carriage.Request) { must(t, r.Respond(nil)) }}
	p, b, _ := both(t, opaque(nil, nil), opaque(h, nil))
	for label, want := range map[*bridge.Label]bridge.Effect{nil: bridge.Destructive, {Effect: bridge.ReadOnly}: bridge.ReadOnly} {
		for _, none := range []bool{false, true} {
			if label != nil && none {
				continue
			}
			start(t, b, p.Client.Association, carriage.Call{Protocol: raw, Method: "m", Label: label, NoLabel: none})
			p.Settle()
			if s := h.lastSeen(); s.effect != want {
				t.Errorf("label %v, none %v: %v", label, none, s.effect)
			}
		}
	}
}

// Whatever octets an opaque message has, they arrive as they are or not at all:
// in a request and its answer, in a notification, in an error, and in chunks.
func FuzzOpaquePayload(f *testing.F) {
	for _, seed := range binary() {
		f.Add(seed[:min(len(seed), 300)], []byte("a/b"), uint8(3))
	}
	f.Add([]byte("\x00\x11\x00\x0b\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01"), []byte(""), uint8(1))
	f.Add([]byte("\x00\x40\x00\x03a/b"), []byte("application/json"), uint8(2))
	f.Add([]byte("\x04\x01x"), []byte("text/plain; q=\"a\""), uint8(255))
	f.Fuzz(func(t *testing.T, foreign, media []byte, step uint8) {
		if len(foreign) > 4096 {
			return // Copy would wait for room, on the loop
		}
		var replied error
		h := &answerer{t: t}
		p, b, _ := both(t, opaque(nil, opaqueTags), opaque(h, opaqueTags))
		h.answer = func(r *carriage.Request) {
			if string(r.Method()) == "chunks" {
				to, err := r.Stream(carriage.StreamOptions{Buffer: 1 << 20})
				must(t, err)
				r.Retain()
				n, err := to.Copy(background, &stepReader{foreign, int(step) + 1})
				if err != nil || int(n) != len(foreign) {
					t.Fatalf("%d octets, %v", n, err)
				}
				must(t, to.EndEmpty())
				r.Release()
				return
			}
			if string(r.Method()) == "fail" {
				replied = r.Fail(foreign)
				return
			}
			replied = r.Respond(foreign)
		}
		declared := string(media)
		for _, method := range []string{"", "fail"} {
			o := new(outcome)
			_, err := b.Start(p.Client.Association, &carriage.Call{Protocol: raw, Method: method, MediaType: media, Foreign: foreign}, o)
			p.Settle()
			if o.n == 1 && len(h.seen) == 0 {
				err = o.Err
			}
			if err != nil {
				if len(h.seen) != 0 || !errors.Is(err, bridge.ErrAmbiguous) && !errors.Is(err, bridge.ErrMalformed) && !errors.Is(err, bridge.ErrMediaType) {
					t.Fatalf("%v, seen %d", err, len(h.seen))
				}
				continue
			}
			s := h.lastSeen()
			if s.foreign != string(foreign) || declared != "" && !strings.EqualFold(s.declared, declared) {
				t.Fatalf("%x as %q arrived as %+v", foreign, media, s)
			}
			switch {
			case replied == nil:
				if o.n != 1 || o.Err != nil || !bytes.Equal(o.Foreign, foreign) {
					t.Fatalf("%x came back as %+v", foreign, o.Reply)
				}
			default:
				o.ended(t, bridge.CodeNotDelivered, true)
			}
		}
		h.seen = nil
		s, _ := consume(t, b, p.Client.Association, carriage.Call{Protocol: raw, Method: "chunks"}, nil)
		p.Settle()
		if got := strings.Join(s.events, ""); s.n != 1 || s.Err != nil || got != string(foreign) {
			t.Fatalf("%x in chunks: %x, %v", foreign, got, s.Err)
		}
	})
}
