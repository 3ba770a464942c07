package carriage_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// kilo is a request of about a thousand octets.
func kilo(corr string) bridge.Message {
	return request(corr, `{"jsonrpc":"2.0","id":1,"method":"m","params":["`+strings.Repeat("x", 940)+`"]}`)
}

// overCapacity says that m refuses corr for want of room.
func overCapacity(t *testing.T, m bridge.Message, corr string) {
	t.Helper()
	transport(t, m, corr, bridge.CodeNotDelivered)
	if _, text, _ := bridge.ParseTransportError(m.Foreign); string(text) != "over capacity" {
		t.Errorf("the reason is %q", text)
	}
}

// What handlers retain of one association's requests is bounded in octets: beyond
// it a request is refused before a handler sees it, until another is answered.
func TestLimit_RetainedOctetsAreBounded(t *testing.T) {
	h := new(held)
	cfg := config(h)
	cfg.MaxRetained = 3500
	p, b, c := serving(t, cfg)
	for i := range 5 {
		c.send(t, kilo(fmt.Sprint(i)))
	}
	p.Settle()
	ms := c.take(t)
	if len(ms) != 2 || len(h.requests) != 3 || b.Stats().RequestsOverLimit != 2 {
		t.Fatalf("%d refused, %d served, %+v", len(ms), len(h.requests), b.Stats())
	}
	overCapacity(t, ms[0], "3")
	overCapacity(t, ms[1], "4")
	// An answer makes room, whether or not the handler says that it is done.
	for i, r := range h.requests {
		if err := r.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":1}`)); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			r.Release()
		}
	}
	p.Settle()
	if n := carriage.RetainedOctets(p.Server.Association); n != 0 || len(c.take(t)) != 3 {
		t.Errorf("%d octets held after the answers", n)
	}
	c.send(t, kilo("5"))
	p.Settle()
	c.none(t)
	if n := carriage.RetainedOctets(p.Server.Association); n < 900 || n > 1100 || len(h.requests) != 4 {
		t.Errorf("%d octets held of one request", n)
	}
	p.Cut(nil)
	p.Settle()
	if n := carriage.RetainedOctets(p.Server.Association); n != 0 {
		t.Errorf("%d octets outlive the association", n)
	}
}

// A single request is taken whatever its size, and without its foreign message a
// request holds little.
func TestLimit_RetainedOctetsCountWhatIsCopied(t *testing.T) {
	var first *carriage.Request
	served := 0
	cfg := config(carriage.HandlerFunc(func(r *carriage.Request) {
		served++
		if first == nil {
			first = r
			r.Retain()
			return
		}
		r.RetainEnvelope()
	}))
	cfg.MaxRetained = 900
	p, _, c := serving(t, cfg)
	c.send(t, kilo("large"))
	c.send(t, request("small", ping1))
	p.Settle()
	if served != 1 {
		t.Errorf("%d served", served)
	}
	overCapacity(t, c.one(t), "small")
	if err := first.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":1}`)); err != nil {
		t.Fatal(err)
	}
	p.Settle()
	c.take(t)
	for i := range 50 {
		c.send(t, request(fmt.Sprint(i), ping1))
	}
	p.Settle()
	c.none(t)
	if n := carriage.RetainedOctets(p.Server.Association); served != 51 || n > 500 {
		t.Errorf("%d served, %d octets held", served, n)
	}
}

// What waits for a worker, or is with one, counts too; also when the exchange is
// over for want of an answer in time, since the worker has it still.
func TestLimit_AsyncOctetsAreBounded(t *testing.T) {
	release := make(chan struct{})
	started := make(chan struct{}, 10)
	ended := make(chan struct{}, 10)
	cfg := config(carriage.HandlerFunc(func(r *carriage.Request) {
		started <- struct{}{}
		<-release
		_ = r.Respond(result(r)) // too late
		ended <- struct{}{}
	}))
	cfg.Protocols[0].Async = true
	cfg.MaxRetained, cfg.ReplyTimeout, cfg.Workers = 2500, second, 1
	p, b, c := serving(t, cfg)
	for i := range 3 {
		c.send(t, kilo(fmt.Sprint(i)))
	}
	note := kilo("")
	note.Kind, note.Foreign = bridge.KindNotify, []byte(strings.Replace(string(note.Foreign), `"id":1,`, "", 1))
	c.send(t, note)
	p.Settle()
	overCapacity(t, c.one(t), "2")
	if st := b.Stats(); st.RequestsOverLimit != 1 || st.NotificationsDropped != 1 {
		t.Errorf("%+v", st)
	}
	<-started
	p.Run(2 * second)
	if ms := c.take(t); len(ms) != 2 || b.Stats().ReplyTimeouts != 2 {
		t.Fatalf("%d answers, %+v", len(ms), b.Stats())
	}
	c.send(t, kilo("3"))
	p.Settle()
	overCapacity(t, c.one(t), "3")
	close(release)
	<-ended
	<-ended
	p.RunUntil(func() bool { return carriage.RetainedOctets(p.Server.Association) == 0 })
	c.send(t, kilo("4"))
	p.RunUntil(func() bool { return len(c.frames) == 1 })
	if m := c.one(t); m.Kind != bridge.KindResponse {
		t.Errorf("%v on %q", m.Kind, m.Corr)
	}
	c.send(t, note)
	p.RunUntil(func() bool { return carriage.RetainedOctets(p.Server.Association) == 0 })
	if n := b.Stats().NotificationsDropped; n != 1 {
		t.Errorf("%d notifications dropped", n)
	}
}
