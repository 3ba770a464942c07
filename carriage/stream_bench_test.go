package carriage_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// counted is a StreamHandler that only counts.
type counted struct {
	events int
	ended  int
	err    error
}

func (c *counted) HandleEvent(*carriage.Event) { c.events++ }
func (c *counted) HandleReply(r *carriage.Reply) {
	c.ended++
	c.err = r.Err
}

// open opens n streams of a direct pair's server and returns their consumers.
func open(tb testing.TB, n int, h func(r *carriage.Request)) (*direct, []*counted) {
	tb.Helper()
	return openTo(tb, assoc.Client, n, h)
}

// openTo is open for streams to either side.
func openTo(tb testing.TB, consumer assoc.Role, n int, h func(r *carriage.Request)) (*direct, []*counted) {
	tb.Helper()
	cfg := config(carriage.HandlerFunc(h))
	cfg.MaxInFlight = 1 << 16
	b := carriage.New(cfg)
	d := newDirect(tb, b, b)
	a := d.client
	if consumer == assoc.Server {
		a = d.server
	}
	all := make([]*counted, n)
	for i := range all {
		all[i] = new(counted)
		_, err := b.StartStream(a, &carriage.Call{Protocol: raw, Natural: fmt.Append(nil, i), Foreign: []byte("open")}, nil, all[i])
		if err != nil {
			tb.Fatal(err)
		}
	}
	d.step()
	return d, all
}

// In steady state an event costs neither side an allocation.
func TestStreamEventAllocatesNothing(t *testing.T) {
	for _, consumer := range []assoc.Role{assoc.Client, assoc.Server} {
		for _, resumable := range []bool{false, true} {
			var p *carriage.Producer
			d, all := openTo(t, consumer, 1, func(r *carriage.Request) {
				r.RetainEnvelope()
				p, _ = r.Stream(carriage.StreamOptions{Resumable: resumable})
				r.Release()
			})
			events := 0
			for _, size := range []int{100, 1024, 2048} {
				list := [][]byte{message(size), message(size), message(size)}
				round := func() {
					if err := p.TrySend(list[0]); err != nil {
						t.Fatal(err)
					}
					if _, err := p.TrySendAll(list); err != nil {
						t.Fatal(err)
					}
					d.step()
				}
				for range 5000 {
					round()
				}
				if n := testing.AllocsPerRun(1000, round); n != 0 && !raceEnabled {
					t.Errorf("to a %v, resumable %v: %v allocations for 4 events of %d octets", consumer, resumable, n, size)
				}
				events += 4 * 6001
			}
			if all[0].events != events {
				t.Errorf("%d events, %v", all[0].events, all[0].err)
			}
		}
	}
}

// Nor does it cost one for each subscriber of a topic.
func TestFanOutAllocatesNothing(t *testing.T) {
	topic := carriage.NewTopic(carriage.TopicOptions{})
	n := 100
	if slowBuild {
		n = 10
	}
	d, all := open(t, n, func(r *carriage.Request) {
		if _, err := topic.Subscribe(r, carriage.SubscribeOptions{Head: []byte("head ")}); err != nil {
			t.Error(err)
		}
	})
	e := message(1024)
	round := func() {
		if err := topic.TryPublish(e); err != nil {
			t.Fatal(err)
		}
		d.step()
	}
	for range 2000 {
		round()
	}
	if got := testing.AllocsPerRun(500, round); got > 1 && !raceEnabled {
		t.Errorf("%v allocations an event for %d subscribers", got, n)
	}
	for i, c := range all {
		if c.events != 2501 || c.ended != 0 {
			t.Fatalf("subscriber %d: %d events, ended %d times: %v", i, c.events, c.ended, c.err)
		}
	}
}

// One event of 1 KiB from its producer to its consumer, both sides' work.
func BenchmarkStreamEvent(b *testing.B) {
	for _, batch := range []int{1, 16} {
		b.Run(fmt.Sprint(batch), func(b *testing.B) {
			var p *carriage.Producer
			d, all := open(b, 1, func(r *carriage.Request) {
				r.RetainEnvelope()
				p, _ = r.Stream(carriage.StreamOptions{})
				r.Release()
			})
			e := message(1024)
			b.ReportAllocs()
			for b.Loop() {
				for range batch {
					if err := p.TrySend(e); err != nil {
						b.Fatal(err)
					}
				}
				d.step()
			}
			if all[0].ended != 0 {
				b.Fatal(all[0].err)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(batch), "ns/event")
		})
	}
}

// One event of 1 KiB to many subscribers, the broker's side alone: what it seals
// goes nowhere.
func BenchmarkFanOut(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			topic := carriage.NewTopic(carriage.TopicOptions{})
			br := carriage.New(carriage.Config{MaxInFlight: 1 << 16, Protocols: []carriage.Protocol{{ID: raw, Class: carriage.ClassOpaque,
				Handler: carriage.HandlerFunc(func(r *carriage.Request) {
					if _, err := topic.Subscribe(r, carriage.SubscribeOptions{}); err != nil {
						b.Error(err)
					}
				})}}})
			c := new(ask)
			d := newDirect(b, c, br, func(o *assoc.Options) { // nothing is received, and so nothing granted
				o.Conn.Credit, o.Conn.StreamCredit = 1<<50, 1<<50
			})
			for i := range n {
				f := assoc.NewBuf(100)
				var err error
				f.B, err = (&bridge.Message{Kind: bridge.KindRequest, Protocol: raw, Content: bridge.ContentCBOR, Corr: fmt.Append(nil, i)}).Append(f.B, nil)
				if err != nil {
					b.Fatal(err)
				}
				if err := c.a.SendBuf(0x0D, bridge.TypeRequest, f); err != nil {
					b.Fatal(err)
				}
			}
			d.step()
			if topic.Subscribers() != n {
				b.Fatalf("%d subscribers", topic.Subscribers())
			}
			e := message(1024)
			octets := 0
			b.ReportAllocs()
			for b.Loop() {
				if err := topic.TryPublish(e); err != nil {
					b.Fatal(err)
				}
				for more := true; more; more = d.server.Pending() {
					d.down = d.server.Turn(d.now, nil, d.down[:0])
					octets += len(d.down)
				}
			}
			if got := octets / b.N / n; got < 1024 {
				b.Fatalf("%d octets for an event and a subscriber", got)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/event/subscriber")
		})
	}
}

// One event of 256 octets of streams whose producers are 16 KiB ahead: the producers'
// side alone, what it seals goes nowhere.
func BenchmarkProducers(b *testing.B) {
	for _, n := range []struct{ conns, streams int }{{1, 64}, {64, 1}} {
		b.Run(fmt.Sprintf("%dx%d", n.conns, n.streams), func(b *testing.B) {
			e, sent := slices.Repeat([][]byte{message(256)}, 16), 0
			br := carriage.New(carriage.Config{MaxInFlight: 1 << 16, Protocols: []carriage.Protocol{{ID: raw, Class: carriage.ClassOpaque,
				Handler: carriage.HandlerFunc(func(r *carriage.Request) {
					var p *carriage.Producer
					more := func(int) {
						for err := error(nil); err == nil; {
							var n int
							n, err = p.TrySendAll(e)
							sent += n
						}
					}
					r.RetainEnvelope()
					p, _ = r.Stream(carriage.StreamOptions{Buffer: 16 << 10, Sent: more})
					r.Release()
					more(0)
				})}}})
			all := make([]*direct, n.conns)
			for i := range all {
				c := new(ask)
				d := newDirect(b, c, br, func(o *assoc.Options) { // nothing is received, and so nothing granted
					o.Conn.Credit, o.Conn.StreamCredit = 1<<50, 1<<50
				})
				for i := range n.streams {
					f := assoc.NewBuf(100)
					f.B, _ = (&bridge.Message{Kind: bridge.KindRequest, Protocol: raw, Content: bridge.ContentCBOR, Corr: fmt.Append(nil, i)}).Append(f.B, nil)
					if err := c.a.SendBuf(0x0D, bridge.TypeRequest, f); err != nil {
						b.Fatal(err)
					}
				}
				d.up = d.client.Turn(d.now, nil, d.up[:0])
				d.down = d.server.Turn(d.now, d.up, d.down[:0])
				all[i] = d
			}
			batch := all[0].down
			b.ReportAllocs()
			sent = 0
			for b.Loop() {
				for _, d := range all {
					batch = d.server.Turn(d.now, nil, batch[:0])
				}
			}
			if sent < b.N*n.conns*100 {
				b.Fatalf("%d events", sent)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(sent), "ns/event")
		})
	}
}
