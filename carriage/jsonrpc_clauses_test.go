package carriage_test

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// wrote checks the frames that a peer received since, each as its type and its
// plaintext in hex, blanks aside; the text in quotes stands for its octets.
func (p *peer) wrote(t *testing.T, frames ...string) {
	t.Helper()
	var got, want []string
	for _, f := range p.frames {
		got = append(got, fmt.Sprintf("%04x%x", uint16(f.t), f.payload))
	}
	for _, f := range frames {
		want = append(want, hexOf(f))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("frames\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	p.frames = nil
}

// hexOf turns hex digits and 'quoted text' into hex digits alone.
func hexOf(s string) string {
	var out strings.Builder
	for i, part := range strings.Split(s, "'") {
		if i%2 == 1 {
			out.WriteString(hex.EncodeToString([]byte(part)))
			continue
		}
		out.WriteString(strings.ReplaceAll(part, " ", ""))
	}
	return out.String()
}

// script sends a frame that is written as in wrote.
func (p *peer) script(t *testing.T, f string) {
	t.Helper()
	b, err := hex.DecodeString(hexOf(f))
	if err != nil {
		t.Fatal(err)
	}
	p.sendRaw(t, wire.FrameType(b[0])<<8|wire.FrameType(b[1]), b[2:])
}

// CC-JSONRPC 3, 10(1): under this class everything is JSON, in either direction and
// of every kind.
func TestCCJSONRPC3_ContentTypeIsJSON(t *testing.T) {
	h := new(echo)
	p, b, c := serving(t, config(h))
	for _, content := range []bridge.ContentType{bridge.ContentCBOR, bridge.ContentProto} {
		m := request("c", ping1)
		m.Content = content
		c.send(t, m)
		p.Settle()
		transport(t, c.one(t), "c", bridge.CodeEnvelopeMalformed)
		n := notification(note)
		n.Content = content
		c.send(t, n)
		p.Settle()
		c.none(t)
	}
	if len(h.notified) != 0 || b.Stats().NotificationsDropped != 2 {
		t.Errorf("%q, %+v", h.notified, b.Stats())
	}
	q, a, s := asking(t, config(nil))
	for _, content := range []bridge.ContentType{bridge.ContentCBOR, bridge.ContentProto} {
		for _, c := range []carriage.Call{{Protocol: mcp, Content: content, Foreign: []byte(ping1)}} {
			if _, err := a.Start(q.Client.Association, &c, nil); err == nil {
				t.Error("sent as something else than JSON")
			}
			c.Foreign = []byte(note)
			if err := a.TryNotify(q.Client.Association, &c); err == nil {
				t.Error("sent as something else than JSON")
			}
		}
	}
	q.Settle()
	s.none(t)
}

// CC-JSONRPC 3: nobody sends, and nobody takes, an object without "jsonrpc":"2.0".
func TestCCJSONRPC3_VersionIsTwo(t *testing.T) {
	p, _, c := serving(t, config(new(echo)))
	q, b, s := asking(t, config(nil))
	for _, version := range []string{``, `"jsonrpc":"1.0",`, `"jsonrpc":2.0,`, `"jsonrpc":null,`, `"JSONRPC":"2.0",`, `"jsonrpc":"2.00",`} {
		foreign := `{` + version + `"id":1,"method":"m"}`
		c.send(t, request("c", foreign))
		p.Settle()
		transport(t, c.one(t), "c", bridge.CodeEnvelopeMalformed)
		ask := call(foreign)
		ask.Protocol = mcp
		if _, err := b.Start(q.Client.Association, &ask, nil); err == nil {
			t.Errorf("sent %s", foreign)
		}
		o, _ := start(t, b, q.Client.Association, call(ping1))
		q.Settle()
		s.send(t, response(s.one(t).Corr, `{`+version+`"id":1,"result":1}`))
		q.Settle()
		o.ended(t, bridge.CodeEnvelopeMalformed, false)
		s.take(t)
	}
}

// CC-JSONRPC 4, 5, 6: replies that we send have no method and no flags; those that we
// get may have, since nothing follows from them.
func TestCCJSONRPC5_MethodsAndFlagsOfReplies(t *testing.T) {
	p, _, c := serving(t, config(new(echo)))
	m := request("c", ping1)
	m.Flags = 0xFE // BRIDGE 4: ignored
	c.send(t, m)
	p.Settle()
	if r := c.one(t); r.Kind != bridge.KindResponse || r.Flags != 0 || len(r.Method) != 0 {
		t.Errorf("%+v", r)
	}
	q, b, s := asking(t, config(nil))
	for _, flags := range []uint8{0, 1, 0xFF} {
		o, _ := start(t, b, q.Client.Association, call(ping1))
		q.Settle()
		asked := s.one(t)
		if asked.Flags != 0 {
			t.Errorf("flags %x", asked.Flags)
		}
		r := response(asked.Corr, pong1)
		r.Flags, r.Method = flags, []byte("another method")
		s.send(t, r)
		q.Settle()
		o.got(t, bridge.KindResponse, pong1)
	}
}

// CC-JSONRPC 6, 10(4): no code of JSON-RPC becomes another one, and no data is lost,
// in either direction.
func TestCCJSONRPC6_ErrorObjectsAreVerbatim(t *testing.T) {
	codes := []int{-32700, -32600, -32601, -32602, -32603, -32000, -32050, -32099, -1, 0, 1, 4, 6, 16, 2147483648}
	data := []string{``, `,"data":null`, `,"data":{"a":[1.0,{"b":"\u003c"}]}`, `,"data":12345678901234567890`}
	for _, id := range []string{"1", "null"} { // CC-JSONRPC 8.4: or the id that could not be read
		for _, code := range codes {
			for _, d := range data {
				foreign := fmt.Sprintf(` {"jsonrpc":"2.0","id":%s,"error":{"message":"","code":%d%s}}`, id, code, d)
				p, c, _ := both(t, config(nil), config(carriage.HandlerFunc(func(r *carriage.Request) { must(t, r.Fail([]byte(foreign))) })))
				o, _ := start(t, c, p.Client.Association, call(ping1))
				p.Settle()
				o.got(t, bridge.KindError, foreign)
			}
		}
	}
}

// CC-JSONRPC 6, 10(5): every failure below JSON-RPC is a transport error, with no
// object made up for it.
func TestCCJSONRPC6_TransportFailuresAreNoObjects(t *testing.T) {
	for code := bridge.CodeEnvelopeMalformed; code <= bridge.CodeNotResumable; code++ {
		p, c, _ := both(t, config(nil), config(carriage.HandlerFunc(func(r *carriage.Request) { must(t, r.Refuse(code, "why")) })))
		o, _ := start(t, c, p.Client.Association, call(ping1))
		p.Settle()
		o.ended(t, code, true)
		if o.Foreign != nil {
			t.Errorf("%v: %q", code, o.Foreign)
		}
	}
	p, b, _ := asking(t, config(nil))
	o, _ := start(t, b, p.Client.Association, call(ping1))
	p.Settle()
	p.Cut(nil)
	p.Run(second)
	if o.n != 1 || o.Err == nil || o.Foreign != nil {
		t.Errorf("%+v", o)
	}
}

// CC-JSONRPC 7, 10(6): a notification has neither id nor correlation id, and what has
// one is not carried as one.
func TestCCJSONRPC7_NotificationsHaveNoID(t *testing.T) {
	p, b, s := asking(t, config(nil))
	for _, foreign := range []string{ping1, `{"jsonrpc":"2.0","id":null,"method":"m"}`, pong1, `{"jsonrpc":"2.0","id":null,"error":{}}`} {
		if err := b.TryNotify(p.Client.Association, &carriage.Call{Protocol: mcp, Foreign: []byte(foreign)}); err == nil {
			t.Errorf("%s was sent as a notification", foreign)
		}
	}
	p.Settle()
	s.none(t)
	h := new(echo)
	q, _, c := serving(t, config(h))
	for _, foreign := range []string{ping1, `{"jsonrpc":"2.0","id":null,"method":"m"}`, pong1} {
		c.send(t, notification(foreign))
	}
	q.Settle()
	c.none(t)
	if len(h.notified) != 0 {
		t.Errorf("%q", h.notified)
	}
	// A handler that fails is not heard of.
	failing := config(new(failingNotify))
	q, _, c = serving(t, failing)
	c.send(t, notification(note))
	q.Settle()
	c.none(t)
}

type failingNotify struct{ echo }

func (*failingNotify) ServeNotify(*carriage.Notify) { panic("no") }

// CC-JSONRPC 8.1, 8.3, 10(7): the id that the far endpoint sees is the object's, not
// the envelope's, and both name one exchange.
func TestCCJSONRPC8_TheObjectsIDIsTheEndpoints(t *testing.T) {
	for _, id := range []string{`1`, `"1"`, `1.0`, `-0`, `""`, `null`, `"\u00e9\ud83d\ude00"`, `"` + strings.Repeat("x", 300) + `"`, strings.Repeat("9", 300)} {
		for _, hop := range []bool{false, true} {
			foreign := `{"jsonrpc":"2.0","method":"m","id":` + id + `}`
			reply := `{"jsonrpc":"2.0","result":[],"id":` + id + `}`
			var saw, named string
			p, c, _ := both(t, config(nil), config(carriage.HandlerFunc(func(r *carriage.Request) {
				saw, named = string(r.Foreign()), string(r.ID())
				if len(r.Corr()) == 0 {
					t.Error("no correlation id")
				}
				must(t, r.Respond([]byte(reply)))
			})))
			ask := call(foreign)
			ask.Hop = hop
			o, _ := start(t, c, p.Client.Association, ask)
			p.Settle()
			o.got(t, bridge.KindResponse, reply)
			if saw != foreign || named != id {
				t.Errorf("saw %q, id %q", saw, named)
			}
		}
	}
}

// CC-JSONRPC 8.2: a correlation id of a peer's is opaque: it need not be its id.
func TestCCJSONRPC8_PeersCorrelationIDsAreOpaque(t *testing.T) {
	p, _, c := serving(t, config(new(echo)))
	for _, corr := range []string{"2", "\"1\"", "null", "\x00", "any octets \xff"} {
		c.send(t, request(corr, ping1))
		p.Settle()
		if m := c.one(t); string(m.Corr) != corr || !strings.HasPrefix(string(m.Foreign), `{"jsonrpc":"2.0","id":1,`) {
			t.Errorf("%q: %+v", corr, m)
		}
	}
}

// CC-JSONRPC 4, 10(7): both sides may have a request of one id under way, each its own.
func TestCCJSONRPC4_EqualIDsOfBothSidesAreTwoExchanges(t *testing.T) {
	hc, hs := new(held), new(held)
	p, c, s := both(t, config(hc), config(hs))
	ours, _ := start(t, c, p.Client.Association, call(ping1))
	theirs, _ := start(t, s, p.Server.Association, call(ping1))
	p.Settle()
	if len(hc.requests) != 1 || len(hs.requests) != 1 || string(hc.requests[0].Corr()) != "1" || string(hs.requests[0].Corr()) != "1" {
		t.Fatalf("%d and %d requests", len(hc.requests), len(hs.requests))
	}
	must(t, hc.requests[0].Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":"to the server"}`)))
	p.Settle()
	ours.pending(t)
	theirs.got(t, bridge.KindResponse, `{"jsonrpc":"2.0","id":1,"result":"to the server"}`)
	must(t, hs.requests[0].Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":"to the client"}`)))
	p.Settle()
	ours.got(t, bridge.KindResponse, `{"jsonrpc":"2.0","id":1,"result":"to the client"}`)
}

// CC-JSONRPC 1.2: batches are not carried, by whoever they come from.
func TestCCJSONRPC1_BatchesAreNotCarried(t *testing.T) {
	batch := "[" + ping1 + "]"
	p, _, c := serving(t, config(new(echo)))
	c.send(t, request("c", batch))
	p.Settle()
	transport(t, c.one(t), "c", bridge.CodeEnvelopeMalformed)
	q, b, s := asking(t, config(nil))
	o, _ := start(t, b, q.Client.Association, call(ping1))
	q.Settle()
	s.send(t, response(s.one(t).Corr, "["+pong1+"]"))
	q.Settle()
	o.ended(t, bridge.CodeEnvelopeMalformed, false)
	if err := b.TryNotify(q.Client.Association, &carriage.Call{Protocol: mcp, Foreign: []byte("[" + note + "]")}); err == nil {
		t.Error("a batch was sent")
	}
}

// CC-JSONRPC 9, 10(8): what a sender does not say is labelled as destructive, and
// what a receiver is not told counts as destructive.
func TestCCJSONRPC9_LabelsAreInherited(t *testing.T) {
	var effect bridge.Effect
	p, c, _ := both(t, config(nil), config(carriage.HandlerFunc(func(r *carriage.Request) {
		effect = r.Effect()
		_ = r.Respond(result(r))
	})))
	for _, x := range []struct {
		label   *bridge.Label
		without bool
		want    bridge.Effect
	}{
		{nil, false, bridge.Destructive},
		{nil, true, bridge.Destructive},
		{&bridge.Label{Effect: bridge.ReadOnly}, false, bridge.ReadOnly},
		{&bridge.Label{Effect: bridge.IdempotentWrite}, false, bridge.IdempotentWrite},
	} {
		ask := call(ping1)
		ask.Label, ask.NoLabel = x.label, x.without
		o, _ := start(t, c, p.Client.Association, ask)
		p.Settle()
		if o.Err != nil || effect != x.want {
			t.Errorf("%+v: %v, effect %v", x, o.Err, effect)
		}
	}
}
