package engine_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/crypto/handshake"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/engine/loop"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
)

// The whole flood, which needs 11,000 descriptors and most of a minute:
//
//	go test -v -run TestFlood ./engine -args -flood 5000 -flood-time 5s
//
// It prints what traffic and handshakes were like before and during the flood.
var (
	flooding  = flag.Int("flood", 240, "connections of a flood, that stall or send garbage")
	floodTime = flag.Duration("flood-time", 500*time.Millisecond, "how long traffic is measured, before a flood and during it")
)

// strict tells that the whole flood was asked for, on a machine that has nothing
// else to do: then what it must not slow is held to numbers. Otherwise it is that
// every handshake is completed and every message comes back.
func strict() bool { return *flooding >= 1000 }

// flood are connections that never become associations. Each comes again when it
// is cut off, so many a second at most.
type flood struct {
	addr  string
	hello []byte // a CLIENT_HELLO
	outer []byte // a ClientHello of TLS, nil over raw TCP
	kinds []kind

	pace    *time.Ticker
	opened  atomic.Int64 // ever
	stop    chan struct{}
	working sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

var clientTLS = loop.TLSConfig(nil, loop.DialCurves)

// within is a connection whose outer TLS is complete, if there is one.
func (f *flood) within(nc net.Conn) (io.ReadWriter, error) {
	if f.outer == nil {
		return nc, nil
	}
	c := tls.Client(nc, clientTLS)
	return c, c.Handshake()
}

// kind is what a connection of a flood does before it falls silent.
type kind struct {
	inside bool // the outer TLS
	says   func(*flood) []byte
}

func (k kind) do(f *flood, nc net.Conn) (rw io.ReadWriter, err error) {
	rw = nc
	if k.inside {
		if rw, err = f.within(nc); err != nil {
			return nil, err
		}
	}
	_, err = rw.Write(k.says(f))
	return rw, err
}

func nothing(*flood) []byte      { return nil }
func halfHeader(f *flood) []byte { return f.hello[:wire.HeaderLen/2] }
func halfHello(f *flood) []byte  { return f.hello[:len(f.hello)/2] }
func whole(f *flood) []byte      { return f.hello }
func garbage(*flood) []byte {
	b := make([]byte, 300)
	_, _ = rand.Read(b)
	return b
}

// newFlood prepares a flood of the server at addr.
func newFlood(t *testing.T, addr string, tr engine.Transport) *flood {
	t.Helper()
	f := &flood{
		addr:  addr,
		pace:  time.NewTicker(10 * time.Millisecond),
		stop:  make(chan struct{}),
		conns: make(map[net.Conn]struct{}),
		kinds: []kind{{true, nothing}, {true, halfHeader}, {true, halfHello}, {true, garbage}, {true, whole}},
	}
	id, err := identity.Generate(profiles.Ed25519, nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := handshake.NewClient(handshake.Config{Identity: id, VerifyPeer: identity.Pin(id.Public())})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Wipe()
	f.hello = m.AppendOutput(nil)
	if tr == engine.TransportTLS {
		a, b := net.Pipe()
		go func() {
			_ = tls.Client(a, clientTLS).Handshake()
			a.Close()
		}()
		first := make([]byte, 4<<10)
		n, err := b.Read(first)
		b.Close()
		if err != nil {
			t.Fatal(err)
		}
		f.outer = first[:n]
		f.kinds = append(f.kinds, kind{false, nothing}, kind{false, garbage},
			kind{false, func(f *flood) []byte { return f.outer[:3] }},
			kind{false, func(f *flood) []byte { return f.outer[:len(f.outer)/2] }},
			kind{false, func(f *flood) []byte { return f.outer }})
	}
	return f
}

// stalling is how many of n connections stay until they are cut off, the rest
// being sent away for their garbage.
func (f *flood) stalling(n int) int { return n - n/5 - 1 }

// begin opens n connections and keeps them coming. Not many of them are busy at a
// time: what they compute here would be computed elsewhere by a real flood.
func (f *flood) begin(t *testing.T, n int) {
	t.Cleanup(f.end)
	busy := make(chan struct{}, 16)
	for i := range n {
		busy <- struct{}{}
		f.working.Go(func() {
			f.once(i, func() { <-busy })
			for {
				select {
				case <-f.pace.C:
					f.once(i, func() {})
				case <-f.stop:
					return
				}
			}
		})
	}
}

// once makes a connection, calls stalled when it falls silent, and returns when
// it is cut off.
func (f *flood) once(i int, stalled func()) {
	nc, err := net.Dial("tcp", f.addr)
	if err != nil || !f.keep(nc) {
		stalled()
		return
	}
	defer f.drop(nc)
	rw, err := f.kinds[i%len(f.kinds)].do(f, nc)
	f.opened.Add(1)
	stalled()
	if err == nil {
		_, _ = io.Copy(io.Discard, rw)
	}
}

func (f *flood) keep(nc net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.stop:
		nc.Close()
		return false
	default:
		f.conns[nc] = struct{}{}
		return true
	}
}

func (f *flood) drop(nc net.Conn) {
	nc.Close()
	f.mu.Lock()
	delete(f.conns, nc)
	f.mu.Unlock()
}

func (f *flood) end() {
	f.mu.Lock()
	close(f.stop)
	for nc := range f.conns {
		nc.Close()
	}
	f.mu.Unlock()
	f.working.Wait()
	f.pace.Stop()
}

// traffic is a load of echoes on one association.
type traffic struct {
	a    *engine.Association
	came chan int // of capacity
	mu   sync.Mutex
	at   []time.Time     // when each message was due
	took []time.Duration // until its echo
	left int
	done chan time.Time // when the last echo came
}

const trafficSize = 512

// arrived is an echo. It runs on the loop.
func (l *traffic) arrived(_ *engine.Association, p []byte) {
	now := time.Now()
	if len(p) != trafficSize {
		return
	}
	i := int(binary.BigEndian.Uint64(p))
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == nil {
		l.came <- i
		return
	}
	l.took[i] = now.Sub(l.at[i])
	if l.left--; l.left == 0 {
		l.done <- now
	}
}

func (l *traffic) send(t *testing.T, i int, b []byte) {
	binary.BigEndian.PutUint64(b, uint64(i))
	if err := l.a.Send(t.Context(), wire.ChannelMemory, echoType, b); err != nil {
		t.Error(err)
	}
}

// capacity is how many messages a second there and back are possible, as far as
// one association with so many under way shows it.
func (l *traffic) capacity(t *testing.T, d time.Duration) float64 {
	const window = 128
	l.came = make(chan int, window)
	b := make([]byte, trafficSize)
	begun, n := time.Now(), 0
	for n < window {
		l.send(t, n, b)
		n++
	}
	for time.Since(begun) < d {
		<-l.came
		l.send(t, n, b)
		n++
	}
	for range window {
		<-l.came
	}
	return float64(n) / time.Since(begun).Seconds()
}

// measured is what became of a load that is offered at a fixed rate.
type measured struct {
	rate     float64 // a second
	p50, p99 time.Duration
}

func (m measured) String() string { return fmt.Sprintf("%.0f/s p50 %v p99 %v", m.rate, m.p50, m.p99) }

// offer sends at rate for d, whatever becomes of it, and takes each message's
// time from when it was due.
func (l *traffic) offer(t *testing.T, rate float64, d time.Duration) measured {
	n := max(1, int(rate*d.Seconds()))
	begun := time.Now()
	at := make([]time.Time, n)
	for i := range at {
		at[i] = begun.Add(time.Duration(float64(i) / rate * float64(time.Second)))
	}
	l.mu.Lock()
	l.at, l.took, l.left, l.done = at, make([]time.Duration, n), n, make(chan time.Time, 1)
	l.mu.Unlock()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	b := make([]byte, trafficSize)
	for i := 0; i < n; {
		for ; i < n && !time.Now().Before(at[i]); i++ {
			l.send(t, i, b)
		}
		<-tick.C
	}
	var last time.Time
	select {
	case last = <-l.done:
	case <-time.After(time.Minute):
		t.Fatal("echoes were lost:", l.a.Err())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(l.took)
	return measured{float64(n) / last.Sub(begun).Seconds(), l.took[n/2], l.took[n*99/100]}
}

// dials makes handshakes one after the other until stop is closed, and n at
// least.
func dials(t *testing.T, cli *engine.Engine, addr string, n int, stop <-chan struct{}) (took []time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	pace := time.NewTicker(20 * time.Millisecond)
	defer pace.Stop()
	for {
		if len(took) >= n {
			select {
			case <-stop:
				return took
			default:
			}
		}
		begun := time.Now()
		a, err := cli.Dial(ctx, addr, engine.DialOptions{})
		if err != nil {
			t.Errorf("an honest handshake, number %d: %v", len(took), err)
			return took
		}
		took = append(took, time.Since(begun))
		a.Close(0, "")
		<-a.Done()
		<-pace.C
	}
}

// Thousands of connections that stall or send garbage hold up nobody: honest
// handshakes are complete within a second each, and traffic at half of what is
// possible is as fast as without them.
func TestFlood_HoldsNobodyUp(t *testing.T) {
	for _, tr := range []engine.Transport{engine.TransportTLS, engine.TransportTCP} {
		t.Run(tr.String(), func(t *testing.T) {
			n := floodSize(t)
			srv := newEngine(t, engine.Config{
				Transport: tr,
				Channels:  []engine.ChannelHandler{&echo{reply: true}},
				// They are to stand all the time, not to go in between; and the echo
				// drops what is refused.
				Limits: engine.Limits{HandshakeTimeout: 2 * time.Minute, Outbound: 1 << 30},
			})
			addr := listen(t, srv)
			l := new(traffic)
			cli := newEngine(t, engine.Config{
				Transport: tr,
				Channels:  []engine.ChannelHandler{&echo{got: l.arrived}},
				Limits:    engine.Limits{HandshakeTimeout: time.Minute}, // for a busy machine
			})
			var err error
			if l.a, err = cli.Dial(t.Context(), addr, engine.DialOptions{}); err != nil {
				t.Fatal(err)
			}
			waitHello(t, l.a)
			rate := l.capacity(t, *floodTime) / 2
			honest := make(chan []time.Duration, 1)
			alone := make(chan struct{})
			go func() { honest <- dials(t, cli, addr, 10, alone) }()
			before := l.offer(t, rate, *floodTime)
			close(alone)
			calm := <-honest

			f := newFlood(t, addr, tr)
			stop := make(chan struct{})
			go func() { honest <- dials(t, cli, addr, 10, stop) }()
			f.begin(t, n)
			nptest.Eventually(t, func() bool { return srv.Stats().PendingHandshakes >= f.stalling(n) }, func() any { return srv.Stats() })
			during := l.offer(t, rate, *floodTime)
			close(stop)
			took := <-honest
			if len(took) == 0 || len(calm) == 0 {
				return
			}
			s := srv.Stats()
			t.Logf("%d connections, %d of them pending at the end, %d opened in all", n, s.PendingHandshakes, f.opened.Load())
			t.Logf("honest handshakes: %d, p50 %v, slowest %v; without a flood p50 %v, slowest %v", len(took), middle(took), slices.Max(took), middle(calm), slices.Max(calm))
			t.Logf("traffic before: %v", before)
			t.Logf("traffic during: %v; ratios: rate %.3f, p50 %.2f, p99 %.2f", during, during.rate/before.rate,
				ratio(during.p50, before.p50), ratio(during.p99, before.p99))
			if s.PendingHandshakes < f.stalling(n) || s.HandshakesEvicted > 0 {
				t.Errorf("%d pending, %d evicted: this was no flood", s.PendingHandshakes, s.HandshakesEvicted)
			}
			if !strict() {
				return
			}
			if slowest := slices.Max(took); slowest > time.Second {
				t.Errorf("an honest handshake took %v", slowest)
			}
			if during.rate < 0.95*before.rate {
				t.Errorf("traffic went on at %.0f/s of %.0f/s", during.rate, before.rate)
			}
			const noise = 10 * time.Millisecond
			if during.p99 > noise && ratio(during.p99, before.p99) > 3 {
				t.Errorf("traffic took %v at p99, %v before", during.p99, before.p99)
			}
		})
	}
}

// When a flood has taken all places, it makes place for itself and for others:
// honest handshakes are complete all the same.
func TestFlood_OfAllPlaces(t *testing.T) {
	for _, tr := range []engine.Transport{engine.TransportTLS, engine.TransportTCP} {
		t.Run(tr.String(), func(t *testing.T) {
			n := floodSize(t)
			places := n / 4
			srv := newEngine(t, engine.Config{Transport: tr, Limits: engine.Limits{PendingHandshakes: places, HandshakeTimeout: 2 * time.Minute}})
			addr := listen(t, srv)
			cli := newEngine(t, engine.Config{Transport: tr, Limits: engine.Limits{HandshakeTimeout: time.Minute}})
			f := newFlood(t, addr, tr)
			// The costliest kind is half of them: it gets as far as one can without a
			// key.
			far := f.kinds[4]
			for i := range f.kinds {
				if i%2 == 0 {
					f.kinds[i] = far
				}
			}
			// A fifth of the places a second: who is honest has a second at least.
			f.pace.Reset(5 * time.Second / time.Duration(places))
			f.begin(t, n)
			nptest.Eventually(t, func() bool { return srv.Stats().HandshakesEvicted > uint64(places) }, func() any { return srv.Stats() })
			stop := make(chan struct{})
			close(stop)
			took := dials(t, cli, addr, 25, stop)
			if len(took) == 0 {
				return
			}
			s := srv.Stats()
			t.Logf("%d connections for %d places, %d evicted; honest handshakes: p50 %v, slowest %v", n, places, s.HandshakesEvicted, middle(took), slices.Max(took))
			if s.PendingHandshakes > places {
				t.Errorf("%d pending of %d", s.PendingHandshakes, places)
			}
			if slowest := slices.Max(took); strict() && slowest > time.Second {
				t.Errorf("an honest handshake took %v", slowest)
			}
		})
	}
}

func middle(d []time.Duration) time.Duration {
	d = slices.Clone(d)
	slices.Sort(d)
	return d[len(d)/2]
}

func ratio(a, b time.Duration) float64 { return float64(a) / math.Max(1, float64(b)) }

// floodSize is the size asked for, or what the descriptors allow.
func floodSize(t *testing.T) int {
	t.Helper()
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
	n := *flooding
	if most := (int(min(l.Cur, math.MaxInt32)) - 256) / 2; n > most {
		t.Logf("%d descriptors: %d connections instead of %d", l.Cur, most, n)
		n = most
	}
	return n
}
