package carriage_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

func request(corr, foreign string) bridge.Message {
	return bridge.Message{Kind: bridge.KindRequest, Corr: []byte(corr), Method: []byte("m"), Foreign: []byte(foreign)}
}

const ping1 = `{"jsonrpc":"2.0","id":1,"method":"m"}`

func TestBridge1_RequestAndReplyAreCarriedOctetForOctet(t *testing.T) {
	foreign := " {\"z\":1.10, \"jsonrpc\":\"2.0\",\t\"method\":\"m\",\"id\":\"\\u00e9\",\"params\":[1E+2]}\r\n"
	var saw string
	reply := "\n{\"id\" : \"é\", \"result\":{\"h\":\"<b>&\\u003c\",\"x\":1E+2},\"jsonrpc\":\"2.0\"} "
	p, _, c := serving(t, config(carriage.HandlerFunc(func(r *carriage.Request) {
		saw = string(r.Foreign())
		if err := r.Respond([]byte(reply)); err != nil {
			t.Error(err)
		}
	})))
	c.send(t, request("c", foreign))
	p.Settle()
	m := c.one(t)
	if saw != foreign || string(m.Foreign) != reply || m.Kind != bridge.KindResponse {
		t.Fatalf("saw %q, got %v %q", saw, m.Kind, m.Foreign)
	}
	if m.Protocol != mcp || m.Content != bridge.ContentJSON || m.Flags != 0 || len(m.Method) != 0 || m.HasLabel {
		t.Errorf("reply's envelope: %+v", m)
	}
}

func TestBridge1_OpaqueOctetsAreCarriedUnread(t *testing.T) {
	p, _, c := serving(t, config(new(echo)))
	for _, foreign := range []string{"", "\x00", "\xff\xfe", "{", strings.Repeat("\x01", 70000)} {
		m := request("c", foreign)
		m.Protocol, m.Content = raw, bridge.ContentCBOR
		c.send(t, m)
		p.Settle()
		if r := c.one(t); string(r.Foreign) != foreign || r.Content != bridge.ContentCBOR || r.Protocol != raw {
			t.Errorf("%.20q came back as %.20q (%v)", foreign, r.Foreign, r.Content)
		}
	}
}

func TestBridge5_RepliesEchoTheCorrelationIdWhateverItIs(t *testing.T) {
	p, _, c := serving(t, config(new(echo)))
	for _, corr := range []string{"\x00", "x", "\"a\"", "1\x00abcdefgh", strings.Repeat("\xff", 255)} {
		c.send(t, request(corr, ping1))
		p.Settle()
		if m := c.one(t); string(m.Corr) != corr {
			t.Errorf("corr %q came back as %q", corr, m.Corr)
		}
	}
}

func TestBridge5_RepliesMayComeInAnyOrder(t *testing.T) {
	h := new(held)
	p, _, c := serving(t, config(h))
	for i := range 3 {
		c.send(t, request(fmt.Sprint("c", i), fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"m"}`, i)))
	}
	p.Settle()
	for _, i := range []int{2, 0, 1} {
		if err := h.requests[i].Respond(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"result":%d}`, i, i)); err != nil {
			t.Fatal(err)
		}
		h.requests[i].Release()
		p.Settle()
		if m := c.one(t); string(m.Corr) != fmt.Sprint("c", i) {
			t.Errorf("reply %d on corr %q", i, m.Corr)
		}
	}
}

// The fault table's row of malformed requests.
func TestFaultTable_MalformedRequestIsAnsweredOnItsCorr(t *testing.T) {
	p, b, c := serving(t, config(new(echo)))
	good := payload(t, request("corr", ping1))
	n := uint64(0)
	for name, mangle := range map[string]func([]byte) []byte{
		"protocol id 0":         func(b []byte) []byte { b[4] = 0; return b },
		"kind of another frame": func(b []byte) []byte { b[5] = 2; return b },
		"unknown content type":  func(b []byte) []byte { b[6] = 9; return b },
		"method not UTF-8":      func(b []byte) []byte { b[14] = 0xff; return b },
		"envelope cut":          func(b []byte) []byte { b[3]--; return b },
		"envelope too long":     func(b []byte) []byte { b[3]++; return b },
		"label cut":             func(b []byte) []byte { return append(b[:15], 0, 0x13, 0, 9, 1) },
		"effect 4":              func(b []byte) []byte { return append(b[:15], 0, 0x13, 0, 2, 4, 0) },
		"stream control short":  func(b []byte) []byte { return append(b[:15], 0, 0x11, 0, 2, 1, 0) },
		"payload ends":          func(b []byte) []byte { return b[:14] },
	} {
		c.sendRaw(t, bridge.TypeRequest, mangle([]byte(string(good))))
		p.Settle()
		n++
		t.Run(name, func(t *testing.T) { transport(t, c.one(t), "corr", bridge.CodeEnvelopeMalformed) })
	}
	for _, unreadable := range []string{
		"", "\x00", "\x00\x10", "\x00\x10\x00", "\x00\x10\x00\x20\x01\x01\x01", "{}", "\x00\x13\x00\x02\x00\x00",
		string(good[:10]), "\x00\x10\x00\x06\x01\x01\x01\x00\x00\x00",
	} {
		c.sendRaw(t, bridge.TypeRequest, []byte(unreadable))
		p.Settle()
		n++
		transport(t, c.one(t), "\x00", bridge.CodeEnvelopeMalformed)
	}
	if got := b.Stats().RequestsMalformed; got != n {
		t.Errorf("counted %d, want %d", got, n)
	}
	c.send(t, request("after", ping1))
	p.Settle()
	if m := c.one(t); m.Kind != bridge.KindResponse {
		t.Error("the channel did not survive")
	}
}

// CC-JSONRPC 3, 4: checks above the envelope.
func TestFaultTable_MalformedJSONRequestIsAnsweredOnItsCorr(t *testing.T) {
	p, _, c := serving(t, config(new(echo)))
	for _, foreign := range []string{
		"", "{", "[" + ping1 + "]", "\xEF\xBB\xBF" + ping1,
		`{"jsonrpc":"2.0","id":1}`,
		`{"jsonrpc":"2.0","method":"m"}`,         // a notification
		`{"jsonrpc":"2.0","id":1,"result":1}`,    // a response
		`{"jsonrpc":"2.0","id":1,"method":"n"}`,  // not the envelope's method
		`{"jsonrpc":"2.0","id":[],"method":"m"}`, //
		`{"jsonrpc":"1.0","id":1,"method":"m"}`,  //
		`{"jsonrpc":"2.0","id":1,"method":"\x"}`, //
		`{"jsonrpc":"2.0","id":1,"method":"M"}`,  // no folding
		"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\",\"p\":\"\xff\"}",
	} {
		c.send(t, request("c", foreign))
		p.Settle()
		transport(t, c.one(t), "c", bridge.CodeEnvelopeMalformed)
	}
	m := request("c", ping1)
	m.Content = bridge.ContentCBOR
	c.send(t, m)
	p.Settle()
	transport(t, c.one(t), "c", bridge.CodeEnvelopeMalformed)
}

func TestCCJSONRPC4_EnvelopeMethodIsTheDecodedMethod(t *testing.T) {
	p, _, c := serving(t, config(new(echo)))
	m := request("c", `{"jsonrpc":"2.0","id":1,"method":"\u0061\/\u00e9"}`)
	m.Method = []byte("a/é")
	c.send(t, m)
	m.Method = []byte(`\u0061\/\u00e9`)
	c.send(t, m)
	p.Settle()
	ms := c.take(t)
	if len(ms) != 2 || ms[0].Kind != bridge.KindResponse {
		t.Fatalf("%+v", ms)
	}
	transport(t, ms[1], "c", bridge.CodeEnvelopeMalformed)
}

func TestFaultTable_ProtocolUnsupported(t *testing.T) {
	p, b, c := serving(t, config(new(echo)))
	m := request("c", ping1)
	m.Protocol = a2a // both HELLOs have it, this Bridge does not
	c.send(t, m)
	p.Settle()
	r := c.one(t)
	transport(t, r, "c", bridge.CodeProtocolUnsupported)
	if r.Protocol != a2a || b.Stats().RequestsUnsupported != 1 {
		t.Errorf("protocol %v, %+v", r.Protocol, b.Stats())
	}
}

// HELLO 6: what the peer did not offer is not in common, although we carry it.
func TestFaultTable_ProtocolOutsideThePeersHelloIsUnsupported(t *testing.T) {
	b, c := carriage.New(config(new(echo))), new(peer)
	o := options(c)
	o.Conn.Protocols = []uint8{uint8(mcp)}
	p := pair(t, o, options(b))
	c.send(t, request("c", ping1))
	m := request("d", "x")
	m.Protocol = raw
	c.send(t, m)
	p.Settle()
	ms := c.take(t)
	if len(ms) != 2 || ms[0].Kind != bridge.KindResponse {
		t.Fatalf("%+v", ms)
	}
	transport(t, ms[1], "d", bridge.CodeProtocolUnsupported)
}

// D3: until a HELLO comes, or without any, nothing is taken to be unsupported.
func TestD3_WithoutAHelloEveryProtocolIsServed(t *testing.T) {
	b, c := carriage.New(config(new(echo))), new(peer)
	o := options(c)
	o.Conn.NoHello = true
	p := pair(t, o, options(b))
	c.send(t, request("c", ping1))
	p.Settle()
	if m := c.one(t); m.Kind != bridge.KindResponse {
		t.Error(m.Kind)
	}
}

func TestFaultTable_MethodUnsupported(t *testing.T) {
	cfg := config(new(echo))
	cfg.Protocols[0].Supports = func(m []byte) bool { return string(m) != "m" }
	p, b, c := serving(t, cfg)
	c.send(t, request("c", ping1))
	p.Settle()
	transport(t, c.one(t), "c", bridge.CodeMethodUnsupported)
	if b.Stats().RequestsUnsupported != 1 {
		t.Errorf("%+v", b.Stats())
	}
}

func TestFaultTable_SafetyPolicy(t *testing.T) {
	ran := false
	cfg := config(carriage.HandlerFunc(func(r *carriage.Request) { ran = true }))
	cfg.Authorize = func(m *carriage.Inbound) error {
		if m.Effect() == bridge.Destructive {
			return errors.New("nothing destructive here")
		}
		return nil
	}
	p, b, c := serving(t, cfg)
	c.send(t, request("c", ping1))
	p.Settle()
	m := c.one(t)
	transport(t, m, "c", bridge.CodeSafetyPolicy)
	if ran || !strings.Contains(string(m.Foreign), "nothing destructive here") || b.Stats().RequestsForbidden != 1 {
		t.Errorf("ran %v, %q, %+v", ran, m.Foreign, b.Stats())
	}
}

func TestFaultTable_LimitIsNotDelivered(t *testing.T) {
	h := new(held)
	cfg := config(h)
	cfg.MaxInFlight = 3
	p, b, c := serving(t, cfg)
	for i := range 5 {
		c.send(t, request(fmt.Sprint(i), ping1))
	}
	p.Settle()
	ms := c.take(t)
	if len(ms) != 2 || len(h.requests) != 3 || b.Stats().RequestsOverLimit != 2 {
		t.Fatalf("%d answers, %d served, %+v", len(ms), len(h.requests), b.Stats())
	}
	transport(t, ms[0], "3", bridge.CodeNotDelivered)
	transport(t, ms[1], "4", bridge.CodeNotDelivered)
	_ = h.requests[0].Refuse(bridge.CodeNotDelivered, "x")
	p.Settle()
	c.take(t)
	c.send(t, request("5", ping1))
	p.Settle()
	if len(h.requests) != 4 {
		t.Error("an answered exchange did not make room")
	}
}

func TestFaultTable_DrainingIsNotDelivered(t *testing.T) {
	h := new(held)
	p, _, c := serving(t, config(h))
	c.send(t, request("old", ping1))
	p.Settle()
	p.Server.Drain(0, "")
	p.Settle()
	c.send(t, request("new", ping1))
	p.Settle()
	transport(t, c.one(t), "new", bridge.CodeNotDelivered)
	if err := h.requests[0].Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":1}`)); err != nil {
		t.Fatal(err)
	}
	p.Settle()
	if m := c.one(t); m.Kind != bridge.KindResponse || string(m.Corr) != "old" {
		t.Errorf("%v on %q", m.Kind, m.Corr)
	}
	p.Run(2 * second)
	if p.Server.Err() == nil {
		t.Error("the drain did not end once the last exchange had")
	}
}

func TestFaultTable_LiveCorrIsDroppedAndTheFirstAnswered(t *testing.T) {
	h := new(held)
	p, b, c := serving(t, config(h))
	c.send(t, request("c", ping1))
	c.send(t, request("c", `{"jsonrpc":"2.0","id":2,"method":"m"}`))
	bad := payload(t, request("c", ping1))
	bad[5] = 9
	c.sendRaw(t, bridge.TypeRequest, bad) // also a malformed one
	p.Settle()
	c.none(t)
	if len(h.requests) != 1 || b.Stats().RequestsDuplicate != 2 {
		t.Fatalf("%d served, %+v", len(h.requests), b.Stats())
	}
	if err := h.requests[0].Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":1}`)); err != nil {
		t.Fatal(err)
	}
	p.Settle()
	if m := c.one(t); m.Kind != bridge.KindResponse {
		t.Error(m.Kind)
	}
	// Answered, the correlation id is free again.
	c.send(t, request("c", ping1))
	p.Settle()
	if len(h.requests) != 2 {
		t.Error("the correlation id stayed in use")
	}
}

func TestCCStream6_ResumeOfNothingIsNotResumable(t *testing.T) {
	p, _, c := serving(t, config(new(echo)))
	m := request("c", ping1)
	m.HasStream, m.Stream.Control, m.Stream.EventID = true, bridge.ControlResume, 4
	c.send(t, m)
	p.Settle()
	transport(t, c.one(t), "c", bridge.CodeNotResumable)
}

func TestFaultTable_UnknownTypesAreDropped(t *testing.T) {
	p, b, c := serving(t, config(new(echo)))
	c.sendRaw(t, 0x0106, payload(t, request("c", ping1)))
	c.sendRaw(t, 0x0FFF, nil)
	p.Settle()
	c.none(t)
	if b.Stats().UnknownTypes != 2 {
		t.Errorf("%+v", b.Stats())
	}
}

func notification(foreign string) bridge.Message {
	return bridge.Message{Kind: bridge.KindNotify, Method: []byte("m"), Foreign: []byte(foreign)}
}

const note = `{"jsonrpc":"2.0","method":"m"}`

func TestBridge8_NotificationIsDeliveredAndNeverAnswered(t *testing.T) {
	h := new(echo)
	p, _, c := serving(t, config(h))
	c.send(t, notification(note))
	p.Settle()
	c.none(t)
	if len(h.notified) != 1 || string(h.notified[0]) != note {
		t.Errorf("%q", h.notified)
	}
}

func TestFaultTable_NotifyIsDroppedWhateverIsWrong(t *testing.T) {
	h := new(echo)
	cfg := config(h)
	cfg.Protocols[0].Supports = func(m []byte) bool { return string(m) != "no" }
	cfg.Authorize = func(m *carriage.Inbound) error {
		if m.Notification() && string(m.Method()) == "forbidden" {
			return errors.New("no")
		}
		return nil
	}
	p, b, c := serving(t, cfg)
	with := func(method string, p bridge.ProtocolID, foreign string) bridge.Message {
		m := notification(foreign)
		m.Method, m.Protocol = []byte(method), p
		return m
	}
	for _, m := range []bridge.Message{
		with("m", a2a, note), with("x", mcp, note), with("m", mcp, "{"), with("m", mcp, ping1),
		with("no", mcp, `{"jsonrpc":"2.0","method":"no"}`),
		with("forbidden", mcp, `{"jsonrpc":"2.0","method":"forbidden"}`),
	} {
		c.send(t, m)
	}
	withCorr := payload(t, request("c", note))
	withCorr[5] = byte(bridge.KindNotify)
	c.sendRaw(t, bridge.TypeNotify, withCorr)
	c.sendRaw(t, bridge.TypeNotify, nil)
	p.Settle()
	c.none(t)
	if len(h.notified) != 0 || b.Stats().NotificationsDropped != 8 {
		t.Errorf("%q, %+v", h.notified, b.Stats())
	}
}

// BRIDGE 7, D15: what a request must be assumed to do.
func TestBridge7_EffectIsTheWorstThatCanBeMeant(t *testing.T) {
	known := map[string]bridge.Effect{"read": bridge.ReadOnly, "write": bridge.NonIdempotentWrite, "drop": bridge.Destructive}
	var got bridge.Effect
	cfg := config(carriage.HandlerFunc(func(r *carriage.Request) { got = r.Effect(); _ = r.Respond(result(r)) }))
	cfg.Protocols[0].Effect = func(m []byte) (bridge.Effect, bool) { e, ok := known[string(m)]; return e, ok }
	p, _, c := serving(t, cfg)
	const none = bridge.Effect(99)
	for _, x := range []struct {
		method string
		label  bridge.Effect
		want   bridge.Effect
	}{
		{"read", none, bridge.ReadOnly},
		{"read", bridge.ReadOnly, bridge.ReadOnly},
		{"read", bridge.Destructive, bridge.Destructive},
		{"write", none, bridge.Destructive}, // absence on a state-mutating operation
		{"write", bridge.ReadOnly, bridge.NonIdempotentWrite},
		{"write", bridge.NonIdempotentWrite, bridge.NonIdempotentWrite},
		{"drop", bridge.ReadOnly, bridge.Destructive},
		{"unknown", none, bridge.Destructive},
		{"unknown", bridge.ReadOnly, bridge.ReadOnly},
		{"unknown", bridge.IdempotentWrite, bridge.IdempotentWrite},
	} {
		m := request("c", `{"jsonrpc":"2.0","id":1,"method":"`+x.method+`"}`)
		m.Method = []byte(x.method)
		if x.label != none {
			m.HasLabel, m.Label = true, bridge.Label{Effect: x.label, Scope: []byte("fs:/tmp")}
		}
		got = none
		c.send(t, m)
		p.Settle()
		if got != x.want {
			t.Errorf("%s labelled %v: %v, want %v", x.method, x.label, got, x.want)
		}
	}
}

func TestBridge7_LabelReachesTheHandlerUnchanged(t *testing.T) {
	var label bridge.Label
	var has bool
	var scope string
	p, _, c := serving(t, config(carriage.HandlerFunc(func(r *carriage.Request) {
		r.Retain()
		label, has = r.Label()
		scope = string(label.Scope)
		_ = r.Respond(result(r))
	})))
	m := request("c", ping1)
	m.HasLabel, m.Label = true, bridge.Label{Effect: bridge.IdempotentWrite, Scope: []byte("\xff odd scope")}
	c.send(t, m)
	p.Settle()
	if !has || label.Effect != bridge.IdempotentWrite || scope != "\xff odd scope" {
		t.Errorf("%v %v %q", has, label.Effect, scope)
	}
	c.take(t)
	c.send(t, request("c", ping1))
	p.Settle()
	if has {
		t.Error("a label out of nothing")
	}
}

// BRIDGE 6: a request that did not get through is never a success.
func TestBridge6_NeverReportsSuccessForUndelivered(t *testing.T) {
	ok := func(r *carriage.Request) { _ = r.Respond(result(r)) }
	for name, f := range map[string]func(*carriage.Request){
		"forgets":                    func(*carriage.Request) {},
		"panics":                     func(*carriage.Request) { panic("x") },
		"panics after retaining":     func(r *carriage.Request) { r.Retain(); panic("x") },
		"answers no JSON":            func(r *carriage.Request) { _ = r.Respond([]byte("ok")) },
		"answers another id":         func(r *carriage.Request) { _ = r.Respond([]byte(`{"jsonrpc":"2.0","id":2,"result":1}`)) },
		"answers 1.0 for 1":          func(r *carriage.Request) { _ = r.Respond([]byte(`{"jsonrpc":"2.0","id":1.0,"result":1}`)) },
		"answers null":               func(r *carriage.Request) { _ = r.Respond([]byte(`{"jsonrpc":"2.0","id":null,"result":1}`)) },
		"an error as result":         func(r *carriage.Request) { _ = r.Respond([]byte(`{"jsonrpc":"2.0","id":1,"error":{}}`)) },
		"a result as error":          func(r *carriage.Request) { _ = r.Fail([]byte(`{"jsonrpc":"2.0","id":1,"result":1}`)) },
		"an unparsable error":        func(r *carriage.Request) { _ = r.Fail([]byte("no")) },
		"a transport error's octets": func(r *carriage.Request) { _ = r.Fail([]byte("\x04\x01x")) },
		"refuses":                    func(r *carriage.Request) { _ = r.Refuse(bridge.CodeNotDelivered, "agent gone") },
		"refuses with no code":       func(r *carriage.Request) { _ = r.Refuse(0, "agent gone") },
		"too large":                  func(r *carriage.Request) { _ = r.Respond(huge("1")) },
	} {
		t.Run(name, func(t *testing.T) {
			for _, async := range []bool{false, true} {
				cfg := config(carriage.HandlerFunc(f))
				cfg.Protocols[0].Async = async
				p, b, c := serving(t, cfg)
				c.send(t, request("c", ping1))
				p.RunUntil(func() bool { return len(c.frames) > 0 })
				p.Settle()
				m := c.one(t)
				transport(t, m, "c", bridge.CodeNotDelivered)
				// It has seen the request, and only itself knows what it did.
				if !strings.HasPrefix(name, "refuses") {
					unknownOutcome(t, m)
				}
				if b.Stats() == (carriage.Stats{}) && !strings.HasPrefix(name, "refuses") {
					t.Error("nothing was counted")
				}
				c.send(t, request("c", ping1)) // the correlation id is free again
				p.RunUntil(func() bool { return len(c.frames) > 0 })
				if b.Stats().RequestsDuplicate != 0 {
					t.Error("the correlation id stayed in use")
				}
			}
		})
	}
	p, _, c := serving(t, config(carriage.HandlerFunc(ok)))
	c.send(t, request("c", ping1))
	p.Settle()
	if m := c.one(t); m.Kind != bridge.KindResponse {
		t.Error(m.Kind)
	}
}

// unknownOutcome says that a transport error does not claim that nothing happened.
func unknownOutcome(t *testing.T, m bridge.Message) {
	t.Helper()
	if _, text, _ := bridge.ParseTransportError(m.Foreign); !strings.HasPrefix(string(text), "outcome unknown: ") {
		t.Errorf("the reason is %q", text)
	}
}

func huge(id string) []byte {
	return []byte(`{"jsonrpc":"2.0","id":` + id + `,"result":"` + strings.Repeat("x", 5<<20) + `"}`)
}

func TestD17_ErrorReplyMayHaveANullId(t *testing.T) {
	const foreign = `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error"}}`
	p, _, c := serving(t, config(carriage.HandlerFunc(func(r *carriage.Request) {
		if err := r.Fail([]byte(foreign)); err != nil {
			t.Error(err)
		}
	})))
	c.send(t, request("c", ping1))
	p.Settle()
	if m := c.one(t); m.Kind != bridge.KindError || m.Transport || string(m.Foreign) != foreign {
		t.Errorf("%v %q", m.Kind, m.Foreign)
	}
}

func TestRequestIsAnsweredExactlyOnce(t *testing.T) {
	for _, retain := range []bool{false, true} {
		var errs []error
		p, _, c := serving(t, config(carriage.HandlerFunc(func(r *carriage.Request) {
			if retain {
				r.Retain()
			}
			good := []byte(`{"jsonrpc":"2.0","id":1,"result":1}`)
			errs = append(errs, r.Respond(good), r.Respond(good), r.Fail(good), r.Refuse(bridge.CodeNotDelivered, "x"))
		})))
		c.send(t, request("c", ping1))
		p.Settle()
		if m := c.one(t); m.Kind != bridge.KindResponse {
			t.Error(m.Kind)
		}
		if len(errs) != 4 || errs[0] != nil {
			t.Fatal(errs)
		}
		for _, err := range errs[1:] {
			if err != carriage.ErrAnswered {
				t.Error(err)
			}
		}
	}
}

func TestRespondErrorsSayWhy(t *testing.T) {
	var err error
	var answer func(*carriage.Request) error
	p, _, c := serving(t, config(carriage.HandlerFunc(func(r *carriage.Request) { err = answer(r) })))
	for _, x := range []struct {
		f    func(*carriage.Request) error
		want error
	}{
		{func(r *carriage.Request) error { return r.Respond([]byte("x")) }, carriage.ErrMalformed},
		{func(r *carriage.Request) error { return r.Respond(huge("1")) }, assoc.ErrTooLarge},
	} {
		answer = x.f
		c.send(t, request("c", ping1))
		p.Settle()
		if !errors.Is(err, x.want) {
			t.Errorf("%v, want %v", err, x.want)
		}
		c.take(t)
	}
	answer = func(r *carriage.Request) error { return r.Fail([]byte("\x04\x01x")) }
	m := request("c", "")
	m.Protocol = raw
	c.send(t, m)
	p.Settle()
	if !errors.Is(err, bridge.ErrAmbiguous) { // D11
		t.Error(err)
	}
	transport(t, c.one(t), "c", bridge.CodeNotDelivered)
}

func TestReplyTimeoutIsNotDelivered(t *testing.T) {
	h := new(held)
	cfg := config(h)
	cfg.ReplyTimeout = 3 * second
	p, b, c := serving(t, cfg)
	c.send(t, request("c", ping1))
	p.Run(2 * second)
	c.none(t)
	select {
	case <-h.requests[0].Done():
		t.Error("done before its time")
	default:
	}
	p.Run(2 * second)
	m := c.one(t)
	transport(t, m, "c", bridge.CodeNotDelivered)
	unknownOutcome(t, m)
	<-h.requests[0].Done()
	if err := h.requests[0].Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":1}`)); err != carriage.ErrAnswered {
		t.Error(err)
	}
	h.requests[0].Release()
	p.Settle()
	c.none(t)
	if b.Stats().ReplyTimeouts != 1 {
		t.Errorf("%+v", b.Stats())
	}
}

func TestRetainedRequestEndsWithItsAssociation(t *testing.T) {
	h := new(held)
	p, _, c := serving(t, config(h))
	c.send(t, request("c", ping1))
	p.Settle()
	r := h.requests[0]
	done := r.Done()
	p.Cut(nil)
	p.Settle()
	<-done
	if err := r.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":1}`)); err != carriage.ErrAnswered {
		t.Error(err)
	}
	if string(r.Foreign()) != ping1 || string(r.Corr()) != "c" || string(r.Method()) != "m" {
		t.Error("what was retained is gone")
	}
	r.Release()
}

func TestRetainKeepsEverythingBorrowed(t *testing.T) {
	h := new(held)
	p, _, c := serving(t, config(h))
	c.send(t, request("c1", `{"jsonrpc":"2.0","id":"one","method":"m"}`))
	c.send(t, request("c2", `{"jsonrpc":"2.0","id":"two","method":"m"}`))
	p.Settle()
	for i, want := range []string{"one", "two"} {
		r := h.requests[i]
		if string(r.ID()) != `"`+want+`"` || !strings.Contains(string(r.Foreign()), want) || r.Protocol() != mcp ||
			r.Content() != bridge.ContentJSON || r.Association() != p.Server.Association {
			t.Errorf("%q %q", r.ID(), r.Foreign())
		}
	}
}

func TestRetainEnvelopeAnswersWithoutTheForeignMessage(t *testing.T) {
	var r *carriage.Request
	p, _, c := serving(t, config(carriage.HandlerFunc(func(x *carriage.Request) {
		x.RetainEnvelope()
		if string(x.Foreign()) != ping1 {
			t.Errorf("%q", x.Foreign())
		}
		r = x
	})))
	c.send(t, request("c", ping1))
	p.Settle()
	if err := r.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":1}`)); err != nil {
		t.Fatal(err)
	}
	r.Release()
	p.Settle()
	if m := c.one(t); m.Kind != bridge.KindResponse || string(m.Corr) != "c" {
		t.Error(m.Kind)
	}
}

// A reply that finds no room waits, keeps its exchange, and goes when there is.
func TestReplyWaitsForRoom(t *testing.T) {
	for _, retain := range []bool{false, true} {
		b, c := carriage.New(config(carriage.HandlerFunc(func(r *carriage.Request) {
			if retain {
				r.Retain()
			}
			reply := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"result":"%0100000d"}`, 0)
			if err := r.Respond(reply); err != nil {
				t.Error(err)
			}
		}))), new(peer)
		o := options(b)
		o.OutboundLimit = 256 << 10
		o.Conn.HighWater = 64 << 10
		p := pair(t, options(c), o)
		p.Server.Block(true)
		for i := range 10 {
			c.send(t, request(fmt.Sprint(i), ping1))
		}
		p.Settle()
		if n := p.Server.ChannelConn(wire.ChannelBridge).Busy(); n == 0 || n >= 10 {
			t.Fatalf("%d exchanges wait", n)
		}
		p.Run(second)
		c.none(t)
		p.Server.Block(false)
		p.Run(second)
		ms := c.take(t)
		if len(ms) != 10 {
			t.Fatalf("%d replies", len(ms))
		}
		for i, m := range ms {
			if m.Kind != bridge.KindResponse || string(m.Corr) != fmt.Sprint(i) {
				t.Errorf("%v on %q", m.Kind, m.Corr)
			}
		}
		if n := p.Server.ChannelConn(wire.ChannelBridge).Busy(); n != 0 || b.Stats() != (carriage.Stats{}) {
			t.Errorf("%d still busy, %+v", n, b.Stats())
		}
	}
}

// A reply that the association refuses at last, at once or after a wait for room, is
// NotDelivered: the peer does not wait for it in vain.
func TestReplyThatIsRefusedLateBecomesNotDelivered(t *testing.T) {
	for name, wait := range map[string]bool{"at once": false, "after a wait": true} {
		t.Run(name, func(t *testing.T) {
			h := new(held)
			b, c := carriage.New(config(h)), new(peer)
			o := options(b)
			o.OutboundLimit = 256 << 10
			o.Conn.HighWater = 64 << 10
			p := pair(t, options(c), o)
			corrs := []string{"0", "1", "2", "3", "large"}
			for _, corr := range corrs {
				c.send(t, request(corr, ping1))
			}
			p.Settle()
			p.Server.Block(wait)
			for i, r := range h.requests {
				reply, respond := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"result":"%0100000d"}`, 0), r.Respond
				if corrs[i] == "large" {
					reply, respond = huge("1"), r.AnswerUnchecked
				}
				if err := respond(reply); err != nil {
					t.Fatal(err)
				}
				if !wait {
					p.Settle()
				}
			}
			p.Run(second)
			p.Server.Block(false)
			p.Run(second)
			ms := c.take(t)
			if len(ms) != len(corrs) {
				t.Fatalf("%d answers", len(ms))
			}
			transport(t, ms[4], "large", bridge.CodeNotDelivered)
			unknownOutcome(t, ms[4])
			if n := p.Server.ChannelConn(wire.ChannelBridge).Busy(); n != 0 || b.Stats() != (carriage.Stats{RepliesBad: 1}) {
				t.Errorf("%d still busy, %+v", n, b.Stats())
			}
		})
	}
}

// Past the stall deadline a waiting reply becomes NotDelivered, for which there
// is always room.
func TestReplyThatStallsBecomesNotDelivered(t *testing.T) {
	cfg := config(carriage.HandlerFunc(func(r *carriage.Request) {
		_ = r.Respond(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"result":"%0100000d"}`, 0))
	}))
	cfg.StallTimeout = 2 * second
	b, c := carriage.New(cfg), new(peer)
	o := options(b)
	o.OutboundLimit = 128 << 10
	o.Conn.HighWater = 64 << 10
	o.Stall = time.Hour
	p := pair(t, options(c), o)
	p.Server.Block(true)
	for i := range 6 {
		c.send(t, request(fmt.Sprint(i), ping1))
	}
	p.Run(3 * second)
	if n := b.Stats().RepliesStalled; n == 0 {
		t.Fatal("nothing stalled")
	}
	p.Server.Block(false)
	p.Run(second)
	seen := map[string]int{}
	stalled := uint64(0)
	for _, m := range c.take(t) {
		seen[string(m.Corr)]++
		if m.Kind == bridge.KindError {
			transport(t, m, string(m.Corr), bridge.CodeNotDelivered)
			unknownOutcome(t, m)
			stalled++
		}
	}
	if len(seen) != 6 || stalled != b.Stats().RepliesStalled {
		t.Errorf("%v, %d stalled, %+v", seen, stalled, b.Stats())
	}
	for corr, n := range seen {
		if n != 1 {
			t.Errorf("%d answers on %q", n, corr)
		}
	}
}

func TestWaitingRepliesAreBounded(t *testing.T) {
	cfg := config(carriage.HandlerFunc(func(r *carriage.Request) {
		_ = r.Respond(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"result":"%0100000d"}`, 0))
	}))
	cfg.MaxHeld = 250_000
	b, c := carriage.New(cfg), new(peer)
	o := options(b)
	o.OutboundLimit = 128 << 10
	o.Conn.HighWater = 64 << 10
	p := pair(t, options(c), o)
	p.Server.Block(true)
	for i := range 10 {
		c.send(t, request(fmt.Sprint(i), ping1))
	}
	p.Settle()
	p.Server.Block(false)
	p.Run(second)
	if ms := c.take(t); len(ms) != 10 || b.Stats().RepliesOverHeld == 0 {
		t.Errorf("%d answers, %+v", len(ms), b.Stats())
	}
}

// A peer that provokes refusals and does not read them is closed.
func TestUnreadRefusalsCloseTheAssociation(t *testing.T) {
	b, c := carriage.New(config(new(echo))), new(peer)
	o := options(b)
	o.OutboundLimit = 64 << 10
	o.Conn.HighWater = 16 << 10
	p := pair(t, options(c), o)
	p.Server.Block(true)
	for i := range 2000 {
		c.send(t, request(fmt.Sprint(i), "{"))
	}
	p.Run(5 * second)
	if p.Server.Err() == nil || b.Stats().Floods != 1 {
		t.Errorf("%v, %+v", p.Server.Err(), b.Stats())
	}
}

func TestAsyncHandlersAreBounded(t *testing.T) {
	release := make(chan struct{})
	started := make(chan struct{}, 10)
	cfg := config(carriage.HandlerFunc(func(r *carriage.Request) {
		started <- struct{}{}
		<-release
		_ = r.Respond(result(r))
	}))
	cfg.Protocols[0].Async = true
	cfg.Workers, cfg.WorkQueue = 2, 3
	p, b, c := serving(t, cfg)
	for i := range 7 {
		c.send(t, request(fmt.Sprint(i), ping1))
	}
	p.RunUntil(func() bool { return len(c.frames) == 2 && len(started) == 2 })
	for _, m := range c.take(t) {
		transport(t, m, string(m.Corr), bridge.CodeNotDelivered)
	}
	close(release)
	p.RunUntil(func() bool { return len(c.frames) == 5 })
	for _, m := range c.take(t) {
		if m.Kind != bridge.KindResponse {
			t.Error(m.Kind)
		}
	}
	if b.Stats().RequestsOverLimit != 2 {
		t.Errorf("%+v", b.Stats())
	}
}

func TestAsyncNotifications(t *testing.T) {
	got := make(chan string, 2)
	h := &asyncNotes{got: got}
	cfg := config(h)
	cfg.Protocols[0].Async = true
	p, b, c := serving(t, cfg)
	c.send(t, notification(note))
	c.send(t, notification(`{"jsonrpc":"2.0","method":"m","params":["panic"]}`))
	p.RunUntil(func() bool { return len(got) == 1 && b.Stats().NotificationsDropped == 1 })
	if s := <-got; s != note {
		t.Errorf("%q", s)
	}
	c.none(t)
}

type asyncNotes struct {
	carriage.HandlerFunc
	got chan string
}

func (h *asyncNotes) ServeNotify(n *carriage.Notify) {
	if strings.Contains(string(n.Foreign()), "panic") {
		panic("x")
	}
	h.got <- string(n.Foreign())
}

func TestPanicInPolicyRefuses(t *testing.T) {
	cfg := config(new(echo))
	cfg.Authorize = func(*carriage.Inbound) error { panic("x") }
	p, b, c := serving(t, cfg)
	c.send(t, request("c", ping1))
	c.send(t, notification(note))
	p.Settle()
	transport(t, c.one(t), "c", bridge.CodeNotDelivered)
	if b.Stats().HandlerPanics != 2 {
		t.Errorf("%+v", b.Stats())
	}
}

// D24: a document is asked for by the method alone.
func TestD24_DocumentsAreNotJSONRPC(t *testing.T) {
	card := "not a JSON-RPC response at all {"
	var docs []bool
	cfg := config(carriage.HandlerFunc(func(r *carriage.Request) {
		docs = append(docs, r.Document())
		if r.Document() {
			_ = r.Respond([]byte(card))
		} else {
			_ = r.Respond(result(r))
		}
	}))
	cfg.Protocols[0].Document = func(m []byte) bool { return string(m) == "card" }
	p, _, c := serving(t, cfg)
	m := request("c", "")
	m.Method = []byte("card")
	c.send(t, m)
	m.Foreign = []byte(`{"jsonrpc":"2.0","id":1,"method":"card"}`)
	c.send(t, m)
	c.send(t, request("d", "")) // no document operation: then it must be JSON-RPC
	p.Settle()
	ms := c.take(t)
	if len(ms) != 3 || string(ms[0].Foreign) != card || ms[1].Kind != bridge.KindResponse || fmt.Sprint(docs) != "[true false]" {
		t.Fatalf("%v %+v", docs, ms)
	}
	transport(t, ms[2], "d", bridge.CodeEnvelopeMalformed)
}

func TestWithoutAHandlerRequestsAreNotDelivered(t *testing.T) {
	p, _, c := serving(t, config(nil))
	c.send(t, request("c", ping1))
	p.Settle()
	transport(t, c.one(t), "c", bridge.CodeNotDelivered)
}

func TestValidateRefusesImpossibleConfigurations(t *testing.T) {
	for name, cfg := range map[string]carriage.Config{
		"protocol 0":    {Protocols: []carriage.Protocol{{Class: carriage.ClassOpaque}}},
		"twice":         {Protocols: []carriage.Protocol{{ID: 2, Class: 1}, {ID: 2, Class: 6}}},
		"no class":      {Protocols: []carriage.Protocol{{ID: 2}}},
		"unknown class": {Protocols: []carriage.Protocol{{ID: 2, Class: 4}}},
		"JSONRPC CBOR":  {Protocols: []carriage.Protocol{{ID: 2, Class: 1, Content: bridge.ContentCBOR}}},
		"tags":          {Tags: &bridge.Tags{EdgeMetadata: wire.TagBridgeEnvelope}},
	} {
		if err := cfg.Validate(); !errors.Is(err, carriage.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("New took it")
		}
	}()
	carriage.New(carriage.Config{Protocols: []carriage.Protocol{{ID: 2}}})
}

// A handler that ends its goroutine costs its request and not the pool.
func TestAsyncHandlerThatEndsItsGoroutine(t *testing.T) {
	cfg := config(carriage.HandlerFunc(func(r *carriage.Request) {
		if string(r.Corr()) == "exit" {
			runtime.Goexit()
		}
		_ = r.Respond(result(r))
	}))
	cfg.Protocols[0].Async = true
	cfg.Workers = 1
	p, _, c := serving(t, cfg)
	for _, corr := range []string{"exit", "a", "b"} {
		c.send(t, request(corr, ping1))
	}
	p.RunUntil(func() bool { return len(c.frames) == 3 })
	for _, m := range c.take(t) {
		if string(m.Corr) == "exit" {
			transport(t, m, "exit", bridge.CodeNotDelivered)
		} else if m.Kind != bridge.KindResponse {
			t.Errorf("%q: %v", m.Corr, m.Kind)
		}
	}
}

// A request that is answered first and retained afterwards keeps its octets.
func TestRetainAfterTheAnswer(t *testing.T) {
	var kept *carriage.Request
	p, _, c := serving(t, config(carriage.HandlerFunc(func(r *carriage.Request) {
		_ = r.Respond(result(r))
		r.Retain()
		kept = r
	})))
	c.send(t, request("c", ping1))
	p.Settle()
	c.send(t, request("d", `{"jsonrpc":"2.0","id":2,"method":"m"}`))
	first := kept
	p.Settle()
	if ms := c.take(t); len(ms) != 2 || string(first.Foreign()) != ping1 || string(first.Corr()) != "c" {
		t.Errorf("%d answers, %q on %q", len(ms), first.Foreign(), first.Corr())
	}
	<-first.Done()
	first.Release()
	if n := p.Server.ChannelConn(wire.ChannelBridge).Busy(); n != 0 {
		t.Errorf("%d busy", n)
	}
}

// ... also when that answer waits for room.
func TestRetainOfARequestWhoseAnswerWaits(t *testing.T) {
	var kept []*carriage.Request
	b, c := carriage.New(config(carriage.HandlerFunc(func(r *carriage.Request) {
		_ = r.Respond(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"result":"%0100000d"}`, 0))
		r.Retain()
		kept = append(kept, r)
	}))), new(peer)
	o := options(b)
	o.OutboundLimit, o.Conn.HighWater = 128<<10, 64<<10
	p := pair(t, options(c), o)
	p.Server.Block(true)
	for i := range 6 {
		c.send(t, request(fmt.Sprint(i), ping1))
	}
	p.Settle()
	p.Server.Block(false)
	p.Run(second)
	if n := len(c.take(t)); n != 6 {
		t.Errorf("%d answers", n)
	}
	for i, r := range kept {
		if string(r.Foreign()) != ping1 || string(r.Corr()) != fmt.Sprint(i) {
			t.Errorf("%q on %q", r.Foreign(), r.Corr())
		}
		r.Release()
	}
}

// D7, D21: what the configured numbers carry reaches the handler, and a reply has
// its request's media type.
func TestD7_ConfiguredTagsAreCarried(t *testing.T) {
	h := new(held)
	tags := &bridge.Tags{OpaqueContentType: 0x40, EdgeMetadata: 0x41, OpaqueContent: 0x70}
	client, server := config(nil), config(h)
	client.Tags, server.Tags = tags, tags
	p, b, _ := both(t, client, server)
	o, _ := start(t, b, p.Client.Association, carriage.Call{
		Protocol: raw, Content: tags.OpaqueContent, MediaType: []byte("text/plain"), Metadata: []byte("meta"), Foreign: []byte("hello"),
	})
	p.Settle()
	r := h.requests[0]
	if string(r.MediaType()) != "text/plain" || string(r.Metadata()) != "meta" || r.Content() != tags.OpaqueContent || string(r.Foreign()) != "hello" {
		t.Errorf("%q %q %v %q", r.MediaType(), r.Metadata(), r.Content(), r.Foreign())
	}
	if err := r.Respond([]byte("bye")); err != nil {
		t.Fatal(err)
	}
	r.Release()
	p.Settle()
	if o.n != 1 || o.Err != nil || o.Content != tags.OpaqueContent || string(o.Foreign) != "bye" {
		t.Errorf("%+v", o)
	}
}
