package carriage_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// L21, seeded: the cancel crosses events and the natural end at any distance. There
// is exactly one terminal frame, no event after it, and the association goes on.
func TestL21_CancelRaces(t *testing.T) {
	rounds := 1000
	if slowBuild {
		rounds = 200
	}
	moot, acked := 0, 0
	for round := range rounds {
		r := rand.New(rand.NewPCG(21, uint64(round)))
		h := &streamed{t: t, o: carriage.StreamOptions{Resumable: round%3 == 0}}
		server, client, p := carriage.New(config(h)), carriage.New(config(nil)), new(peer)
		bare := round%2 == 0 // a peer that shows the frames, or a real consumer
		co := options(client)
		if bare {
			co = options(p)
		}
		pair := nptest.NewPair(t, nptest.Options{
			Client: co, Server: options(server),
			Latency: time.Duration(1+r.IntN(5)) * time.Millisecond, Chunk: 1 + r.IntN(300),
		})
		var s *taken
		var x *carriage.Consumer
		if bare {
			p.send(t, request("1", ping1))
		} else {
			s, x = consume(t, client, pair.Client.Association, call(ping1), nil)
		}
		pair.Run(time.Duration(20+r.IntN(10)) * time.Millisecond)
		total, sent := r.IntN(10), 0
		ended, cancelled := false, false
		for !ended || !cancelled {
			switch k := r.IntN(8); {
			case k < 4 && sent < total:
				if err := h.one().TrySend(fmt.Append(nil, "e", sent+1)); err != nil && err != carriage.ErrCancelled {
					t.Fatalf("round %d: %v", round, err)
				}
				sent++
			case k < 5 && sent == total && !ended:
				if err := h.one().End([]byte("end")); err != nil && err != carriage.ErrCancelled {
					t.Fatalf("round %d: %v", round, err)
				}
				ended = true
			case k == 5 && !cancelled:
				if cancelled = true; bare {
					p.send(t, cancelFrame(carriage.EventID(len(p.frames))))
				} else {
					x.Cancel(nil)
				}
			default:
				pair.Run(time.Duration(r.IntN(3)) * time.Millisecond)
			}
		}
		pair.Run(time.Second)
		ack := h.one().Err() == carriage.ErrCancelled
		if !ack && h.one().Err() != carriage.ErrStreamEnded {
			t.Fatalf("round %d: the producer has %v", round, h.one().Err())
		}
		if len(h.over) != 1 {
			t.Fatalf("round %d: over %v", round, h.over)
		}
		if ack {
			acked++
		} else {
			moot++
		}
		var events []string
		if bare {
			frames := p.take(t)
			for i, m := range frames {
				switch last := i == len(frames)-1; {
				case !last:
					event(t, m, bridge.KindData, carriage.EventID(i+1), fmt.Sprint("e", i+1))
					events = append(events, string(m.Foreign))
				case ack:
					ackFrame(t, m, carriage.EventID(i))
				default:
					event(t, m, bridge.KindEnd, carriage.EventID(total+1), "end")
				}
			}
			if len(frames) == 0 {
				t.Fatalf("round %d: no terminal frame", round)
			}
			p.send(t, request("1", ping1))
		} else {
			events = s.events
			switch {
			case s.n != 1 || s.Err != nil && !errors.Is(s.Err, context.Canceled) || s.Err == nil && ack:
				t.Fatalf("round %d: ended %d times, %v, acknowledged %v", round, s.n, s.Err, ack)
			case s.Err == nil:
				s.ends(t, "end")
			}
		}
		if !ack && (bare || s.Err == nil) && len(events) != total {
			t.Fatalf("round %d: complete with %d of %d events", round, len(events), total)
		}
		for i, e := range events {
			if e != fmt.Sprint("e", i+1) {
				t.Fatalf("round %d: event %d is %q", round, i+1, e)
			}
		}
		// The link is up and the correlation id free.
		if !bare {
			s, _ = consume(t, client, pair.Client.Association, call(ping1), nil)
		}
		pair.Run(time.Second)
		if len(h.producers) != 2 {
			t.Fatalf("round %d: the correlation id is not free", round)
		}
		must(t, h.producers[1].End([]byte("again")))
		pair.Run(time.Second)
		if bare {
			event(t, p.one(t), bridge.KindEnd, 1, "again")
		} else {
			s.ends(t, "again")
		}
		for _, e := range []*nptest.End{pair.Client, pair.Server} {
			if n := e.ChannelConn(wire.ChannelBridge).Busy(); n != 0 {
				t.Fatalf("round %d: %d exchanges open on the %v", round, n, e.Role())
			}
		}
	}
	if moot < rounds/10 || acked < rounds/10 {
		t.Errorf("%d cancels moot, %d acknowledged: the race was not run", moot, acked)
	}
}

// L23: one 64 MiB reply that nobody reads; on the same association pings, a key
// update, unary requests and other streams go on, and a cancel takes effect.
func TestL23_UndrainedReply(t *testing.T) {
	var unread *carriage.Producer
	h := carriage.HandlerFunc(func(r *carriage.Request) {
		switch string(r.Method()) {
		case "big":
			r.RetainEnvelope()
			unread, _ = r.Stream(carriage.StreamOptions{})
			r.Release()
		case "small":
			p, _ := r.Stream(carriage.StreamOptions{})
			for range 10 {
				_ = p.TrySend([]byte("e"))
			}
			_ = p.End([]byte("end"))
		default:
			_ = r.Respond(result(r))
		}
	})
	pair, c, s := both(t, config(nil), config(h))
	q := call(`{"jsonrpc":"2.0","id":"big","method":"big"}`)
	q.Protocol = mcp
	big, err := c.Stream(background, pair.Client.Association, &q, nil)
	must(t, err)
	pair.Settle()
	sent := make(chan error, 1)
	go func() {
		for range 1024 {
			if err := unread.Send(background, text(64<<10)); err != nil {
				sent <- err
				return
			}
		}
		sent <- unread.EndEmpty()
	}()
	// It comes as far as its credit.
	pair.RunUntil(func() bool { return unread.LastID() >= 1<<20/(64<<10)+2 })
	for i := range 1000 {
		id := fmt.Sprint(i)
		ping, _ := start(t, c, pair.Client.Association, call(`{"jsonrpc":"2.0","id":`+id+`,"method":"m"}`))
		pair.Settle()
		if ping.n != 1 || ping.Err != nil {
			t.Fatalf("ping %d: %v", i, ping.Err)
		}
		switch i {
		case 300, 600:
			keys := make(chan error, 1)
			e := pair.Server
			if i == 600 {
				e = pair.Client
			}
			go func() { keys <- e.UpdateKey(background, wire.ChannelBridge) }()
			pair.RunUntil(func() bool { return len(keys) == 1 })
			must(t, <-keys)
		case 900:
			other, _ := consume(t, c, pair.Client.Association, call(`{"jsonrpc":"2.0","id":"small","method":"small"}`), nil)
			pair.Settle()
			if len(other.events) != 10 {
				t.Fatalf("%d events of another stream", len(other.events))
			}
			other.ends(t, "end")
		}
	}
	if q := pair.Server.Queued(); q > 64<<10 {
		t.Errorf("%d octets in the association's queue", q)
	}
	if b := unread.Buffered(); b > carriage.DefaultStreamBuffer+128<<10 {
		t.Errorf("%d octets wait at the producer", b)
	}
	select {
	case err := <-sent:
		t.Fatalf("all of it was sent although nobody reads: %v", err)
	default:
	}
	big.Close()
	pair.RunUntil(func() bool { return len(sent) == 1 })
	if err := <-sent; err != carriage.ErrCancelled {
		t.Errorf("%v", err)
	}
	if st := s.Stats(); st.StreamsCancelled != 1 {
		t.Errorf("%+v", st)
	}
	if pair.Client.Err() != nil || pair.Server.Err() != nil {
		t.Error("the association ended")
	}
}

// Many goroutines produce, consume, publish, cancel and cut at the same time:
// everything ends exactly once, and nothing stays.
func TestStreams_FromManyGoroutines(t *testing.T) {
	for round := range 4 {
		topic := carriage.NewTopic(carriage.TopicOptions{Buffer: 20_000, Patience: 50 * time.Millisecond})
		var producing sync.WaitGroup
		h := carriage.HandlerFunc(func(r *carriage.Request) {
			if string(r.Method()) == "topic" {
				_, _ = topic.Subscribe(r, carriage.SubscribeOptions{})
				return
			}
			r.Retain()
			p, err := r.Stream(carriage.StreamOptions{Buffer: 5000, Resumable: len(r.Corr())%2 == 0})
			if err != nil {
				r.Release()
				return
			}
			producing.Go(func() {
				defer r.Release()
				for i := range 100 {
					if p.Send(p.Context(), fmt.Append(text(200), i)) != nil {
						break
					}
				}
				_ = p.End([]byte("end"))
			})
		})
		b := carriage.New(config(h))
		p := nptest.NewPair(t, nptest.Options{Client: options(b), Server: options(b), Latency: time.Millisecond, Chunk: 999})
		p.Run(10 * time.Millisecond)
		var wg sync.WaitGroup
		var complete, cancelled, lost int
		var mu sync.Mutex
		for i := range 60 {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(background)
				defer cancel()
				a := []*assoc.Association{p.Client.Association, p.Server.Association}[i%2]
				method := []string{"produce", "topic"}[i/2%2]
				s, err := b.Stream(ctx, a, &carriage.Call{Protocol: mcp, Hop: true, Foreign: fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":%q}`, i, method)}, nil)
				if err != nil {
					if !errors.Is(err, assoc.ErrClosed) {
						t.Error(err)
					}
					return
				}
				n := carriage.EventID(0)
				for {
					e, err := s.Next()
					if err != nil {
						mu.Lock()
						var te *bridge.Error
						switch {
						case err == io.EOF:
							complete++
						case errors.Is(err, context.Canceled):
							cancelled++
						case errors.Is(err, assoc.ErrClosed), errors.As(err, &te) && te.Code == bridge.CodeNotDelivered:
							lost++
						default:
							t.Errorf("stream %d: %v", i, err)
						}
						mu.Unlock()
						return
					}
					if n++; e.ID != n {
						t.Errorf("stream %d: event %d as number %d", i, e.ID, n)
					}
					if n == 50 && i%5 == 0 {
						cancel()
					}
				}
			})
		}
		wg.Go(func() {
			for range 300 {
				if topic.Publish(background, text(100)) != nil {
					break
				}
			}
			_ = topic.End([]byte("end"))
		})
		done := make(chan struct{})
		go func() {
			wg.Wait()
			producing.Wait()
			close(done)
		}()
		turns := 0
		p.RunUntil(func() bool {
			if turns++; round >= 2 && turns == 300*round {
				p.Cut(errors.New("reset"))
			}
			p.Run(time.Millisecond)
			select {
			case <-done:
				return true
			default:
				return round >= 2 && turns > 300*round && p.Client.Err() != nil && func() bool { <-done; return true }()
			}
		})
		p.Run(10 * second)
		if complete+cancelled+lost > 60 || round < 2 && complete+cancelled+lost != 60 {
			t.Errorf("round %d: %d complete, %d cancelled, %d lost", round, complete, cancelled, lost)
		}
		if round < 2 {
			for _, e := range []*nptest.End{p.Client, p.Server} {
				if n := e.ChannelConn(wire.ChannelBridge).Busy(); n != 0 {
					t.Errorf("round %d: %d exchanges busy on the %v", round, n, e.Role())
				}
			}
		}
		if n := topic.Subscribers(); n != 0 {
			t.Errorf("round %d: %d subscribers left", round, n)
		}
		b.ForgetRetained()
	}
}

// task is a streamed task that tasks/cancel ends, if nothing has before.
type task struct{ streamed }

func (x *task) ServeRequest(r *carriage.Request) {
	if string(r.Method()) != "tasks/cancel" {
		x.streamed.ServeRequest(r)
		return
	}
	if x.one().End([]byte("canceled")) == nil {
		must(x.t, r.Respond([]byte(`{"jsonrpc":"2.0","id":2,"result":"canceled"}`)))
		return
	}
	must(x.t, r.Fail([]byte(`{"jsonrpc":"2.0","id":2,"error":{"code":-32002,"message":"done"}}`)))
}

// L21: tasks/cancel crosses the completion of its task. The stream has one end and the
// cancel one answer, which tell the same, and the link stays up.
func TestL21_TasksCancelRaces(t *testing.T) {
	cancelled, completed := 0, 0
	for round := range 200 {
		r := rand.New(rand.NewPCG(22, uint64(round)))
		h := &task{streamed{t: t}}
		server, client := carriage.New(config(h)), carriage.New(config(nil))
		pair := nptest.NewPair(t, nptest.Options{
			Client: options(client), Server: options(server),
			Latency: time.Duration(1+r.IntN(5)) * time.Millisecond, Chunk: 1 + r.IntN(300),
		})
		s, _ := consume(t, client, pair.Client.Association, call(ping1), nil)
		pair.Run(time.Duration(20+r.IntN(10)) * time.Millisecond)
		total := r.IntN(10)
		for n := range total {
			must(t, h.one().TrySend(fmt.Append(nil, "e", n+1)))
		}
		// Which of the two comes first, and by how much, is left to the round.
		var o outcome
		ask := func() {
			c := call(`{"jsonrpc":"2.0","id":2,"method":"tasks/cancel"}`)
			c.Protocol = mcp
			_, err := client.Start(pair.Client.Association, &c, &o)
			must(t, err)
		}
		done := func() {
			if err := h.one().End([]byte("completed")); err != nil && err != carriage.ErrStreamEnded {
				t.Fatalf("round %d: %v", round, err)
			}
		}
		first, second := ask, done
		if r.IntN(3) == 0 {
			first, second = done, ask
		}
		first()
		pair.Run(time.Duration(r.IntN(8)) * time.Millisecond)
		second()
		pair.Run(time.Second)
		if len(s.events) != total || s.n != 1 || o.n != 1 || len(h.over) != 1 {
			t.Fatalf("round %d: %d of %d events, ended %d times, cancel answered %d times, over %v", round, len(s.events), total, s.n, o.n, h.over)
		}
		if o.Kind == bridge.KindResponse {
			s.ends(t, "canceled")
			cancelled++
		} else {
			o.got(t, bridge.KindError, `{"jsonrpc":"2.0","id":2,"error":{"code":-32002,"message":"done"}}`)
			s.ends(t, "completed")
			completed++
		}
		if err := pair.Client.Err(); err != nil {
			t.Fatalf("round %d: the link has ended: %v", round, err)
		}
	}
	t.Logf("cancelled %d, completed %d", cancelled, completed)
	if cancelled == 0 || completed == 0 {
		t.Errorf("cancelled %d, completed %d", cancelled, completed)
	}
}
