package carriage_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// These are faults that users of neighbouring systems reported in public, each
// provoked here by an input of its own.

// L01: requests of many callers with one id, on one association, answered in any
// order: each caller gets its own reply.
func TestL01_EqualIdsOfManyCallers(t *testing.T) {
	h := new(held)
	p, c, _ := both(t, config(nil), config(h))
	const callers = 200
	var os []*outcome
	for k := range callers {
		q := call(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"n":%d}}}`, k))
		q.Hop = true
		o, _ := start(t, c, p.Client.Association, q)
		os = append(os, o)
	}
	p.Settle()
	corrs := map[string]bool{}
	for _, i := range rand.Perm(callers) {
		r := h.requests[i]
		corrs[string(r.Corr())] = true
		if err := r.Respond(result(r)); err != nil {
			t.Fatal(err)
		}
		if i%7 == 0 {
			p.Settle()
		}
	}
	p.Settle()
	if len(corrs) != callers {
		t.Errorf("%d different correlation ids", len(corrs))
	}
	for k, o := range os {
		if o.n != 1 || o.Err != nil || !strings.HasPrefix(string(o.Foreign), `{"jsonrpc":"2.0","id":1,`) ||
			!strings.Contains(string(o.Foreign), fmt.Sprintf(`"n":%d}`, k)) {
			t.Fatalf("caller %d: %d %v %q", k, o.n, o.Err, o.Foreign)
		}
	}
}

// L02: a second request with an id in flight does not touch the first.
func TestL02_DuplicateInFlight(t *testing.T) {
	h := new(held)
	p, c, _ := both(t, config(nil), config(h))
	first, _ := start(t, c, p.Client.Association, call(`{"jsonrpc":"2.0","id":"d1","method":"m","params":{"a":1}}`))
	p.Run(second / 10)
	again, _ := start(t, c, p.Client.Association, call(`{"jsonrpc":"2.0","id":"d1","method":"m","params":{"a":2}}`))
	p.Settle()
	if again.n != 1 || again.Err != carriage.ErrDuplicateID || len(h.requests) != 1 {
		t.Fatalf("%+v, %d served", again, len(h.requests))
	}
	p.Run(second)
	_ = h.requests[0].Respond([]byte(`{"jsonrpc":"2.0","id":"d1","result":1}`))
	p.Settle()
	first.got(t, bridge.KindResponse, `{"jsonrpc":"2.0","id":"d1","result":1}`)
}

// L03: no number is ever read as one.
func TestL03_BigNumbers(t *testing.T) {
	h := new(held)
	p, c, _ := both(t, config(nil), config(h))
	ids := []string{"9007199254740992", "9007199254740993", "18446744073709551616", "123456789012345678901234567890"}
	var os []*outcome
	for _, id := range ids {
		o, _ := start(t, c, p.Client.Association, call(`{"jsonrpc":"2.0","id":`+id+`,"method":"m"}`))
		os = append(os, o)
	}
	p.Settle()
	for i, id := range ids {
		reply := `{"jsonrpc":"2.0","id":` + id + `,"result":{"n":9223372036854775807,"m":1915000000000000077}}`
		if string(h.requests[i].Corr()) != id {
			t.Errorf("corr %q, want %s", h.requests[i].Corr(), id)
		}
		if err := h.requests[i].Respond([]byte(reply)); err != nil {
			t.Fatal(err)
		}
		p.Settle()
		os[i].got(t, bridge.KindResponse, reply)
	}
}

// L04: fractions and exponents are ids as written; 1.0 does not answer 1.
func TestL04_FractionsAndExponents(t *testing.T) {
	h := new(held)
	p, c, s := both(t, config(nil), config(h))
	ids := []string{"1", "1.0", "1e0", "-0.5"}
	var os []*outcome
	for _, id := range ids {
		o, _ := start(t, c, p.Client.Association, call(`{"jsonrpc":"2.0","id":`+id+`,"method":"m"}`))
		os = append(os, o)
	}
	p.Settle()
	corrs := map[string]bool{}
	for _, r := range h.requests {
		corrs[string(r.Corr())] = true
	}
	if len(corrs) != 4 {
		t.Errorf("%v", corrs)
	}
	if err := h.requests[0].Respond([]byte(`{"jsonrpc":"2.0","id":1.0,"result":1}`)); !errors.Is(err, carriage.ErrMalformed) {
		t.Error(err)
	}
	for i, id := range ids[1:] {
		_ = h.requests[i+1].Respond([]byte(`{"jsonrpc":"2.0","id":` + id + `,"result":1}`))
	}
	p.Settle()
	os[0].ended(t, bridge.CodeNotDelivered, true)
	for i, id := range ids[1:] {
		os[i+1].got(t, bridge.KindResponse, `{"jsonrpc":"2.0","id":`+id+`,"result":1}`)
	}
	_ = s
}

// L05: ids that are false or escaped somewhere are ids.
func TestL05_FalsyAndEscapedIds(t *testing.T) {
	h := new(held)
	p, c, _ := both(t, config(nil), config(h))
	ids := []string{`0`, `""`, `"q\"\\"`, `"\u00e9"`, `"é"`}
	var os []*outcome
	for _, id := range ids {
		o, _ := start(t, c, p.Client.Association, call(`{"jsonrpc":"2.0","id":`+id+`,"method":"m"}`))
		os = append(os, o)
	}
	n := carriage.Call{Protocol: mcp, Foreign: []byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":0}}`)}
	if err := c.TryNotify(p.Client.Association, &n); err != nil {
		t.Fatal(err)
	}
	p.Settle()
	if len(h.requests) != len(ids) || h.notified != 1 {
		t.Fatalf("%d requests, %d notifications", len(h.requests), h.notified)
	}
	for i, id := range ids {
		if len(h.requests[i].Corr()) == 0 {
			t.Error("empty corr")
		}
		reply := `{"jsonrpc":"2.0","id":` + id + `,"result":null}`
		_ = h.requests[i].Respond([]byte(reply))
		p.Settle()
		os[i].got(t, bridge.KindResponse, reply)
	}
}

// L06: what policy sees is what the agent sees.
func TestL06_DuplicateAndCaseVariantKeys(t *testing.T) {
	var policy, served []string
	cfg := config(carriage.HandlerFunc(func(r *carriage.Request) {
		served = append(served, string(r.Foreign()))
		_ = r.Respond([]byte(`{"jsonrpc":"2.0","id":5,"result":1}`))
	}))
	cfg.Authorize = func(m *carriage.Inbound) error { policy = append(policy, string(m.Method())); return nil }
	p, c, s := both(t, config(nil), cfg)
	for _, x := range []struct {
		foreign string
		ok      bool
	}{
		{`{"jsonrpc":"2.0","id":5,"method":"tasks/get","Method":"tasks/cancel"}`, true},
		{`{"jsonrpc":"2.0","id":5,"method":"tasks/get","method":"tasks/cancel"}`, false},
		{`{"jsonrpc":"2.0","id":5,"method":"tasks/get","m\u0065thod":"tasks/cancel"}`, false},
		{`{"jsonrpc":"2.0","id":5,"id":6,"method":"tasks/get"}`, false},
		{`{"params":{"id":9,"method":"x","jsonrpc":"1.0"},"method":"tasks/get","id":5,"jsonrpc":"2.0"}`, true},
	} {
		policy, served = nil, nil
		o := new(outcome)
		_, err := c.Start(p.Client.Association, &carriage.Call{Protocol: mcp, Foreign: []byte(x.foreign)}, o)
		p.Settle()
		if (err == nil) != x.ok {
			t.Errorf("%s: %v", x.foreign, err)
		}
		if x.ok {
			if o.Err != nil || len(policy) != 1 || policy[0] != "tasks/get" || len(served) != 1 || served[0] != x.foreign {
				t.Errorf("%s: %v, policy %q, served %q", x.foreign, o.Err, policy, served)
			}
		}
	}
	_ = s
	// The same from a peer that does not check what it sends.
	p2, _, raw := serving(t, cfg)
	policy, served = nil, nil
	for _, foreign := range []string{
		`{"jsonrpc":"2.0","id":5,"method":"m","method":"tasks/cancel"}`,
		`{"jsonrpc":"2.0","id":5,"id":6,"method":"m"}`,
	} {
		raw.send(t, request("c", foreign))
		p2.Settle()
		transport(t, raw.one(t), "c", bridge.CodeEnvelopeMalformed)
	}
	if len(policy)+len(served) != 0 {
		t.Errorf("policy %q, served %q", policy, served)
	}
}

// L07: white space is carried, a byte order mark is refused at once, and the link
// lives.
func TestL07_ByteOrderMarkAndWhiteSpace(t *testing.T) {
	var saw string
	cfg := config(carriage.HandlerFunc(func(r *carriage.Request) {
		saw = string(r.Foreign())
		_ = r.Respond([]byte("\n{\"jsonrpc\":\"2.0\",\"id\":\"b\",\"result\":1}\t "))
	}))
	p, c, _ := both(t, config(nil), cfg)
	const bom = "\xEF\xBB\xBF" + `{"jsonrpc":"2.0","id":"b","method":"ping"}`
	if _, err := c.Start(p.Client.Association, &carriage.Call{Protocol: mcp, Foreign: []byte(bom)}, new(outcome)); !errors.Is(err, carriage.ErrMalformed) {
		t.Error(err)
	}
	spaced := " \r\n\t{\"jsonrpc\":\"2.0\",\"id\":\"b\",\"method\":\"ping\"}\n "
	o, _ := start(t, c, p.Client.Association, call(spaced))
	p.Settle()
	o.got(t, bridge.KindResponse, "\n{\"jsonrpc\":\"2.0\",\"id\":\"b\",\"result\":1}\t ")
	if saw != spaced {
		t.Errorf("%q", saw)
	}
	p2, _, raw := serving(t, cfg)
	m := request("c", bom)
	m.Method = []byte("ping")
	raw.send(t, m)
	p2.Settle()
	transport(t, raw.one(t), "c", bridge.CodeEnvelopeMalformed)
}

// L08: nothing is written anew.
func TestL08_NothingIsReserialized(t *testing.T) {
	const reply = "{\"z\":1.10,\"jsonrpc\":\"2.0\", \"result\":{\"h\":\"<b>&\\u003c\u2028é\",\"x\":1E+2,\"e\":{},\"n\":null},\"id\":\"s\"}"
	const ask = "{ \"params\":[\"<b>&\\u003c\u2028é\",1.10,1E+2],\"id\":\"s\",\"method\":\"m\" ,\"jsonrpc\":\"2.0\"}"
	var saw string
	p, c, _ := both(t, config(nil), config(carriage.HandlerFunc(func(r *carriage.Request) {
		saw = string(r.Foreign())
		_ = r.Respond([]byte(reply))
	})))
	o, _ := start(t, c, p.Client.Association, call(ask))
	p.Settle()
	o.got(t, bridge.KindResponse, reply)
	if saw != ask {
		t.Errorf("%q", saw)
	}
}

// L09: three bad messages are refused, a good one works, the link stays.
func TestL09_BadThenGood(t *testing.T) {
	bad := []string{
		`{"jsonrpc":"2.0","id":1,`,
		`[{"jsonrpc":"2.0","id":2,"method":"ping"}]`,
		`{"jsonrpc":"1.0","id":3,"method":"ping"}`,
	}
	const good = `{"jsonrpc":"2.0","id":4,"method":"ping"}`
	p, _, c := serving(t, config(new(echo)))
	for i, foreign := range append(bad, good) {
		m := request(fmt.Sprint(i+1), foreign)
		m.Method = []byte("ping")
		c.send(t, m)
	}
	p.Settle()
	ms := c.take(t)
	if len(ms) != 4 {
		t.Fatalf("%d answers", len(ms))
	}
	for i := range bad {
		transport(t, ms[i], fmt.Sprint(i+1), bridge.CodeEnvelopeMalformed)
	}
	if ms[3].Kind != bridge.KindResponse || string(ms[3].Corr) != "4" {
		t.Errorf("%+v", ms[3])
	}
	p2, b, _ := both(t, config(nil), config(new(echo)))
	for _, foreign := range bad {
		if _, err := b.Start(p2.Client.Association, &carriage.Call{Protocol: mcp, Foreign: []byte(foreign)}, new(outcome)); !errors.Is(err, carriage.ErrMalformed) {
			t.Error(err)
		}
	}
	o, _ := start(t, b, p2.Client.Association, call(good))
	p2.Settle()
	if o.n != 1 || o.Err != nil {
		t.Errorf("%+v", o)
	}
}

// L10: deep nesting is carried, or refused with an answer by a stated limit.
func TestL10_DeepNesting(t *testing.T) {
	foreign := `{"jsonrpc":"2.0","id":"n","method":"m","params":` + strings.Repeat("[", 200_000) + strings.Repeat("]", 200_000) + `}`
	p, c, _ := both(t, config(nil), config(carriage.HandlerFunc(func(r *carriage.Request) {
		_ = r.Respond([]byte(`{"jsonrpc":"2.0","id":"n","result":1}`))
	})))
	o, _ := start(t, c, p.Client.Association, call(foreign))
	other, _ := start(t, c, p.Client.Association, call(`{"jsonrpc":"2.0","id":2,"method":"m"}`))
	p.Settle()
	o.got(t, bridge.KindResponse, `{"jsonrpc":"2.0","id":"n","result":1}`)
	if other.n != 1 {
		t.Error("other traffic was affected")
	}
	cfg := config(new(echo))
	cfg.MaxDepth = 1000
	p2, _, raw := serving(t, cfg)
	raw.send(t, request("n", foreign))
	p2.Settle()
	transport(t, raw.one(t), "n", bridge.CodeEnvelopeMalformed)
}

// L34: the agent's error object crosses as it is; a dead agent's is ours and can't
// be mistaken for it.
func TestL34_ErrorObjects(t *testing.T) {
	const foreign = `{"error":{"data":[{"retryAfter":5,"n":12345678901234567890}],"message":"","code":-32005},"id":"q","jsonrpc":"2.0"}`
	dead := false
	p, c, _ := both(t, config(nil), config(carriage.HandlerFunc(func(r *carriage.Request) {
		if dead {
			_ = r.Refuse(bridge.CodeNotDelivered, "agent is gone")
			return
		}
		if err := r.Fail([]byte(foreign)); err != nil {
			t.Error(err)
		}
	})))
	ask := call(`{"jsonrpc":"2.0","id":"q","method":"m"}`)
	o, _ := start(t, c, p.Client.Association, ask)
	p.Settle()
	o.got(t, bridge.KindError, foreign)
	dead = true
	o, _ = start(t, c, p.Client.Association, ask)
	p.Settle()
	o.ended(t, bridge.CodeNotDelivered, true)
	if o.Foreign != nil {
		t.Errorf("%q", o.Foreign)
	}
}
