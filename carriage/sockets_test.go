package carriage_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// The tests here run over real sockets and loops, over TLS as by default.

// sockets is a serving engine and one that dials it.
type sockets struct {
	t              *testing.T
	client, server *carriage.Bridge
	dialer, served *engine.Engine
	addr           string
}

func newSockets(t *testing.T, client, server carriage.Config, edit func(*engine.Config)) *sockets {
	t.Helper()
	s := &sockets{t: t, client: carriage.New(client), server: carriage.New(server)}
	start := func(b *carriage.Bridge) *engine.Engine {
		cfg := engine.Config{Channels: []engine.ChannelHandler{b}, Protocols: b.Protocols()}
		if edit != nil {
			edit(&cfg)
		}
		e, err := engine.New(cfg)
		must(t, err)
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(background, 10*time.Second)
			defer cancel()
			must(t, e.Shutdown(ctx))
		})
		return e
	}
	s.dialer, s.served = start(s.client), start(s.server)
	l, err := s.served.Listen(background, "127.0.0.1:0")
	must(t, err)
	s.addr = l.Addr().String()
	return s
}

func (s *sockets) dial() *engine.Association {
	s.t.Helper()
	a, err := s.dialer.Dial(background, s.addr, engine.DialOptions{})
	must(s.t, err)
	return a
}

// Streams of many producers to many readers at once, every event once and in order.
func TestSockets_ManyStreams(t *testing.T) {
	const streams, events = 64, 1000
	h := carriage.HandlerFunc(func(r *carriage.Request) {
		p, err := r.Stream(carriage.StreamOptions{Buffer: 16 << 10})
		if err != nil {
			return
		}
		for i := range events {
			if p.Send(p.Context(), fmt.Append(text(i%500), i)) != nil {
				return
			}
		}
		_ = p.EndEmpty()
	})
	cfg := config(h)
	cfg.Protocols[1].Async = true
	s := newSockets(t, config(nil), cfg, nil)
	links := []*engine.Association{s.dial(), s.dial()}
	var wg sync.WaitGroup
	for i := range streams {
		wg.Go(func() {
			st, err := s.client.Stream(background, links[i%2], &carriage.Call{Protocol: raw, Natural: fmt.Append(nil, i)}, nil)
			if err != nil {
				t.Error(err)
				return
			}
			n := 0
			for e, err := range st.Events() {
				if err != nil {
					t.Errorf("stream %d: %v after %d events", i, err, n)
					return
				}
				if want := fmt.Sprintf("%s%d", text(n%500), n); string(e.Foreign) != want || e.ID != carriage.EventID(n+1) {
					t.Errorf("stream %d: event %d is wrong", i, n+1)
					return
				}
				n++
			}
			if n != events {
				t.Errorf("stream %d: %d events", i, n)
			}
		})
	}
	wg.Wait()
}

// L22 over sockets: subscribers on many associations, one of whom never reads.
func TestSockets_L22(t *testing.T) {
	topic := carriage.NewTopic(carriage.TopicOptions{})
	var subscribed atomic.Int32
	h := carriage.HandlerFunc(func(r *carriage.Request) {
		if _, err := topic.Subscribe(r, carriage.SubscribeOptions{}); err == nil {
			subscribed.Add(1)
		}
	})
	s := newSockets(t, config(nil), config(h), nil)
	const subscribers, events = 40, 3000
	var links []*engine.Association
	for range 8 {
		links = append(links, s.dial())
	}
	slow, err := s.client.Stream(background, links[0], &carriage.Call{Protocol: raw, Natural: []byte("slow")}, nil)
	must(t, err)
	var wg sync.WaitGroup
	var read [subscribers]atomic.Int64
	for i := range subscribers {
		st, err := s.client.Stream(background, links[i%len(links)], &carriage.Call{Protocol: raw, Natural: fmt.Append(nil, i)}, nil)
		must(t, err)
		wg.Go(func() {
			n := carriage.EventID(0)
			for e, err := range st.Events() {
				if n++; err != nil || e.ID != n {
					t.Errorf("subscriber %d: event %d as number %d: %v", i, e.ID, n, err)
					read[i].Store(events)
					return
				}
				read[i].Add(1)
			}
			if n != events+1 {
				t.Errorf("subscriber %d: %d events", i, n)
			}
		})
	}
	nptest.Eventually(t, func() bool { return subscribed.Load() == subscribers+1 }, func() any { return subscribed.Load() })
	for i := range events {
		if i%400 == 0 { // no faster than those who read, whatever this machine can do
			nptest.Eventually(t, func() bool {
				for k := range read {
					if read[k].Load() < int64(i)-400 {
						return false
					}
				}
				return true
			}, func() any { return i })
		}
		must(t, topic.TryPublish(fmt.Append(text(1020), i)))
	}
	must(t, topic.End([]byte("end")))
	wg.Wait()
	n := 0
	for {
		if _, err = slow.Next(); err != nil {
			break
		}
		n++
	}
	var cut *bridge.Error
	if !errors.As(err, &cut) || cut.Code != bridge.CodeNotDelivered || n == 0 || n > 1100 {
		t.Errorf("the slow one: %v after %d events", err, n)
	}
	if st := s.server.Stats(); st.StreamsCut != 1 {
		t.Errorf("%+v", st)
	}
}

// L23 over sockets: 64 MiB that nobody reads, beside pings and a key update.
func TestSockets_L23(t *testing.T) {
	sent := make(chan error, 1)
	h := carriage.HandlerFunc(func(r *carriage.Request) {
		if string(r.Method()) != "big" {
			_ = r.Respond(result(r))
			return
		}
		r.RetainEnvelope()
		p, err := r.Stream(carriage.StreamOptions{})
		r.Release()
		if err != nil {
			sent <- err
			return
		}
		go func() {
			for range 1024 {
				if err := p.Send(background, text(64<<10)); err != nil {
					sent <- err
					return
				}
			}
			sent <- p.EndEmpty()
		}()
	})
	s := newSockets(t, config(nil), config(h), nil)
	a := s.dial()
	big, err := s.client.Stream(background, a, &carriage.Call{Protocol: raw, Method: "big", Natural: []byte("big")}, nil)
	must(t, err)
	first, err := big.Next()
	must(t, err)
	if len(first.Foreign) != 64<<10 {
		t.Fatalf("%d octets", len(first.Foreign))
	}
	begun := time.Now()
	for i := range 1000 {
		ctx, cancel := context.WithTimeout(background, 10*time.Second)
		_, err := s.client.Call(ctx, a, &carriage.Call{Protocol: raw, Method: "ping", Natural: fmt.Append(nil, i), Foreign: []byte("x")})
		cancel()
		must(t, err)
		if i == 500 {
			must(t, a.UpdateKey(background, wire.ChannelBridge))
		}
	}
	t.Logf("1000 round trips in %v", time.Since(begun))
	select {
	case err := <-sent:
		t.Fatalf("all of it was sent although nobody reads: %v", err)
	default:
	}
	big.Close()
	if err := <-sent; err != carriage.ErrCancelled {
		t.Errorf("%v", err)
	}
	if a.Err() != nil {
		t.Error("the association ended")
	}
}

// Streams that are opened and closed in every way leave nothing behind.
func TestSockets_NothingStays(t *testing.T) {
	h := carriage.HandlerFunc(func(r *carriage.Request) {
		r.RetainEnvelope()
		p, err := r.Stream(carriage.StreamOptions{Resumable: r.Corr()[0]%2 == 0})
		r.Release()
		if err != nil {
			return
		}
		go func() {
			for p.Send(p.Context(), text(500)) == nil {
				if p.LastID() == 50 {
					_ = p.End([]byte("end"))
					return
				}
			}
		}()
	})
	cfg := config(h)
	cfg.Retain.Time = time.Millisecond
	s := newSockets(t, config(nil), cfg, nil)
	cycle := func() {
		var wg sync.WaitGroup
		a := s.dial()
		for i := range 20 {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(background)
				defer cancel()
				st, err := s.client.Stream(ctx, a, &carriage.Call{Protocol: raw, Natural: fmt.Append(nil, i)}, nil)
				if err != nil {
					return
				}
				for {
					e, err := st.Next()
					if err != nil {
						if err != io.EOF && !errors.Is(err, context.Canceled) && !errors.Is(err, engine.ErrClosed) {
							t.Errorf("%v", err)
						}
						return
					}
					switch {
					case i%4 == 1 && e.ID == 10:
						st.Close()
					case i%4 == 2 && e.ID == 10:
						cancel()
					case i == 3 && e.ID == 30:
						a.Close(0, "")
					}
				}
			})
		}
		wg.Wait()
		a.Close(0, "")
		<-a.Done()
	}
	cycle()
	settle := func() (goroutines int, heap uint64) {
		var m runtime.MemStats
		for range 3 {
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return runtime.NumGoroutine(), m.HeapAlloc
	}
	goroutines, heap := settle()
	for range 30 {
		cycle()
	}
	nptest.Eventually(t, func() bool {
		n, _ := s.server.Retained()
		g, _ := settle()
		return n == 0 && g <= goroutines+2
	}, func() any {
		n, o := s.server.Retained()
		g, _ := settle()
		return fmt.Sprintf("%d streams of %d octets held, %d goroutines of %d at first", n, o, g, goroutines)
	})
	if _, h := settle(); h > heap+4<<20 {
		t.Errorf("%d octets of heap more than at first", h-heap)
	}
}
