package carriage_test

import (
	"bytes"
	"context"
	bin "encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"runtime/metrics"
	"slices"
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

// The tests here run over real sockets and loops, over TLS as by default. L22 in full:
//
//	go test -v -run TestSockets_L2 ./carriage -args -subscribers 99 -events 10000
var (
	fanSubscribers = flag.Int("subscribers", map[bool]int{true: 29, false: 99}[slowBuild], "how many subscribers of a topic read everything")
	fanEvents      = flag.Int("events", 2500, "how many events of 1 KiB each of them gets; one that never reads is cut after 2,100 or so")
)

var order = bin.BigEndian

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

// Whoever was told its reply may call again at once, on another association: the loop
// that told it is done with the call by then.
func TestSockets_CallAfterCall(t *testing.T) {
	const callers, calls = 8, 500
	s := newSockets(t, config(nil), config(carriage.HandlerFunc(func(r *carriage.Request) { _ = r.Respond(r.Foreign()) })), nil)
	links := []*engine.Association{s.dial(), s.dial()}
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for k := range calls {
				want := fmt.Sprint(i, k)
				reply, err := s.client.Call(background, links[(i+k)%2], &carriage.Call{Protocol: raw, Natural: fmt.Append(nil, i), Foreign: []byte(want)})
				if err != nil || string(reply.Foreign) != want {
					t.Errorf("caller %d, call %d: %v %q", i, k, err, reply.Foreign)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := s.client.Stats().CompletionPanics; n != 0 {
		t.Errorf("%d completions panicked", n)
	}
}

// L22 over sockets: subscribers on many associations, one of whom never reads. Whether
// the others notice is a comparison with the same events without that one.
func TestSockets_L22(t *testing.T) {
	var current atomic.Pointer[carriage.Topic]
	h := carriage.HandlerFunc(func(r *carriage.Request) {
		_, _ = current.Load().Subscribe(r, carriage.SubscribeOptions{})
	})
	begin := func() *carriage.Topic {
		topic := carriage.NewTopic(carriage.TopicOptions{})
		current.Store(topic)
		return topic
	}
	s := newSockets(t, config(nil), config(h), nil)
	var links []*engine.Association
	for range 10 {
		links = append(links, s.dial())
	}
	rounds := 2
	if slowBuild {
		rounds = 1
	}
	least := func(d, than time.Duration) time.Duration {
		if than == 0 {
			return d
		}
		return min(d, than)
	}
	var without, with time.Duration
	var peak, peakWith uint64
	for round := range rounds {
		took, most := s.fan(begin(), links, fmt.Sprint("a", round))
		without, peak = least(took, without), max(peak, most)

		// It shares an association with a tenth of the others.
		topic := begin()
		slow, err := s.client.Stream(background, links[0], &carriage.Call{Protocol: raw, Natural: fmt.Append(nil, "slow", round)}, nil)
		must(t, err)
		nptest.Eventually(t, func() bool { return topic.Subscribers() == 1 }, func() any { return topic.Subscribers() })
		took, most = s.fan(topic, links, fmt.Sprint("b", round))
		with, peakWith = least(took, with), max(peakWith, most)
		if n := topic.Subscribers(); n != 0 {
			t.Errorf("%d subscribers are left", n)
		}
		n := 0
		for {
			if _, err = slow.Next(); err != nil {
				break
			}
			n++
		}
		var cut *bridge.Error
		if !errors.As(err, &cut) || cut.Code != bridge.CodeNotDelivered || cut.Text == "" || n == 0 || n > 1100 {
			t.Errorf("the slow one: %v after %d events", err, n)
		}
	}
	if st := s.server.Stats(); st.StreamsCut != uint64(rounds) || s.served.Stats().WouldBlock != 0 {
		t.Errorf("%+v", st)
	}
	for _, a := range links {
		must(t, a.Err())
	}
	t.Logf("%d subscribers, %d events: %v without and %v with one that never reads; heap of at most %d and %d KiB",
		*fanSubscribers, *fanEvents, without, with, peak>>10, peakWith>>10)
	if with > 3*without+200*time.Millisecond {
		t.Errorf("the others were slowed: %v instead of %v", with, without)
	}
	if peakWith > 2*peak+16<<20 {
		t.Errorf("%d octets of heap instead of %d", peakWith, peak)
	}
}

// fan publishes events to subscribers on links who read all of them, and says how long
// that took and how large the heap became. Somebody else may have subscribed before.
func (s *sockets) fan(topic *carriage.Topic, links []*engine.Association, name string) (took time.Duration, heap uint64) {
	t, subscribers, events := s.t, *fanSubscribers, *fanEvents
	t.Helper()
	before := topic.Subscribers()
	var wg sync.WaitGroup
	read := make([]atomic.Int64, subscribers)
	for i := range read {
		st, err := s.client.Stream(background, links[i%len(links)], &carriage.Call{Protocol: raw, Natural: fmt.Append(nil, name, i)}, nil)
		must(t, err)
		wg.Go(func() {
			n := carriage.EventID(0)
			want := text(1024)
			for e, err := range st.Events() {
				n++
				if last := n == carriage.EventID(events)+1; last {
					want = []byte("end")
				} else {
					order.PutUint64(want, uint64(n-1))
				}
				if err != nil || e.ID != n || !bytes.Equal(e.Foreign, want) {
					t.Errorf("subscriber %s%d: event %d as number %d: %v", name, i, e.ID, n, err)
					read[i].Store(int64(events))
					return
				}
				read[i].Add(1)
			}
			if n != carriage.EventID(events)+1 {
				t.Errorf("subscriber %s%d: %d events", name, i, n)
			}
		})
	}
	nptest.Eventually(t, func() bool { return topic.Subscribers() == before+subscribers }, func() any { return topic.Subscribers() })
	heapNow := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	event := text(1024)
	begun := time.Now()
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
			metrics.Read(heapNow)
			heap = max(heap, heapNow[0].Value.Uint64())
		}
		order.PutUint64(event, uint64(i))
		must(t, topic.TryPublish(event))
	}
	must(t, topic.End([]byte("end")))
	wg.Wait()
	return time.Since(begun), heap
}

// L23 over sockets: 64 MiB that nobody reads. On the same association requests take
// as long as they do without it, keys change in both directions, a cancel takes effect,
// and what waits has a bound.
func TestSockets_L23(t *testing.T) {
	const pieces, piece = 1024, 64 << 10
	sent := make(chan error, 1)
	var producer atomic.Pointer[carriage.Producer]
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
		producer.Store(p)
		go func() {
			for range pieces {
				if err := p.Send(background, text(piece)); err != nil {
					sent <- err
					return
				}
			}
			sent <- p.EndEmpty()
		}()
	})
	s := newSockets(t, config(nil), config(h), nil)
	a := s.dial()
	var served *engine.Association
	nptest.Eventually(t, func() bool {
		s.served.Associations(func(x *engine.Association) bool { served = x; return true })
		return served != nil
	}, func() any { return s.served.Stats() })

	pings := func(n int, then func(i int)) (each []time.Duration) {
		for i := range n {
			ctx, cancel := context.WithTimeout(background, 10*time.Second)
			begun := time.Now()
			_, err := s.client.Call(ctx, a, &carriage.Call{Protocol: raw, Method: "ping", Natural: fmt.Append(nil, i), Foreign: []byte("x")})
			each = append(each, time.Since(begun))
			cancel()
			must(t, err)
			then(i)
		}
		slices.Sort(each)
		return each
	}
	at := func(each []time.Duration, percent int) time.Duration { return each[(len(each)-1)*percent/100] }

	const n = 1000
	pings(n/10, func(int) {}) // what is made once is made
	alone := pings(n, func(int) {})
	big, err := s.client.Stream(background, a, &carriage.Call{Protocol: raw, Method: "big", Natural: []byte("big")}, nil)
	must(t, err)
	first, err := big.Next()
	must(t, err)
	if len(first.Foreign) != piece {
		t.Fatalf("%d octets", len(first.Foreign))
	}
	beside := pings(n, func(i int) {
		switch i {
		case n / 2:
			must(t, a.UpdateKey(background, wire.ChannelBridge))
		case n * 3 / 4:
			must(t, served.UpdateKey(background, wire.ChannelBridge))
		}
	})
	t.Logf("requests p50 %v, p99 %v; beside the stream p50 %v, p99 %v, max %v", at(alone, 50), at(alone, 99), at(beside, 50), at(beside, 99), at(beside, 100))
	if at(beside, 50) > 3*at(alone, 50)+time.Millisecond {
		t.Errorf("half of the requests took %v beside the stream, %v without it", at(beside, 50), at(alone, 50))
	}
	if st := s.served.Stats(); st.KeyUpdatesIn != 1 || st.KeyUpdatesOut != 1 {
		t.Errorf("keys changed %d and %d times", st.KeyUpdatesIn, st.KeyUpdatesOut)
	}
	if held := producer.Load().Buffered() + served.Queued(); held > carriage.DefaultStreamBuffer+2*piece+64<<10 {
		t.Errorf("%d octets wait where they are produced", held)
	}
	select {
	case err := <-sent:
		t.Fatalf("all of it was sent although nobody reads: %v", err)
	default:
	}
	big.Close()
	if err := <-sent; err != carriage.ErrCancelled {
		t.Errorf("%v", err)
	}
	if st := s.server.Stats(); st.StreamsCancelled != 1 || st.StreamsCut != 0 {
		t.Errorf("%+v", st)
	}
	pings(1, func(int) {})
	if a.Err() != nil || served.Err() != nil {
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
