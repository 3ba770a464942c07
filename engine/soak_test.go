package engine_test

import (
	"context"
	"flag"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/wire"
)

// go test -run TestSoak ./engine -args -cycles 5000 -idle 2000
var (
	cycles = flag.Int("cycles", 60, "associations that come and go, a third each by CLOSE, by FIN and by vanishing")
	idle   = flag.Int("idle", 40, "associations that stand idle at once")
)

// hole is a proxy whose connections can be told to vanish: nothing is carried
// any more, and nobody is told.
type hole struct {
	ln net.Listener
	to string
	mu sync.Mutex
	on []*holed
	// the latest connections, so that none outlives the test
	all []*holed
	wg  sync.WaitGroup
}

type holed struct {
	client, server net.Conn
	gone           chan struct{}
}

func newHole(t *testing.T, to string) *hole {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &hole{ln: ln, to: to}
	h.wg.Add(1)
	go h.accept()
	t.Cleanup(func() {
		ln.Close()
		h.mu.Lock()
		for _, x := range h.all {
			x.client.Close()
			x.server.Close()
		}
		h.mu.Unlock()
		h.wg.Wait()
	})
	return h
}

func (h *hole) accept() {
	defer h.wg.Done()
	for {
		c, err := h.ln.Accept()
		if err != nil {
			return
		}
		s, err := net.Dial("tcp", h.to)
		if err != nil {
			c.Close()
			continue
		}
		x := &holed{c, s, make(chan struct{})}
		h.mu.Lock()
		h.on, h.all = append(h.on, x), append(h.all, x)
		h.mu.Unlock()
		h.wg.Add(2)
		go h.carry(x, s, c)
		go h.carry(x, c, s)
	}
}

// carry copies until one side ends or the connection vanishes; a vanished one is
// only drained, so that each side's end is still noticed here.
func (h *hole) carry(x *holed, to, from net.Conn) {
	defer h.wg.Done()
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		select {
		case <-x.gone:
			_, _ = io.Copy(io.Discard, from)
			from.Close()
			return
		default:
		}
		if err == nil {
			_, err = to.Write(b[:n])
		}
		if err != nil {
			to.Close()
			from.Close()
			return
		}
	}
}

// last takes the connections made since the last call.
func (h *hole) last() []*holed {
	h.mu.Lock()
	defer h.mu.Unlock()
	on := h.on
	h.on = nil
	const kept = 300
	if len(h.all) > 2*kept {
		h.all = append([]*holed(nil), h.all[len(h.all)-kept:]...)
	}
	return on
}

// TestSoakLeavesNothingBehind: associations that come and go, however they go,
// and many that stand idle, leave goroutines, descriptors' worth of state and the
// heap where they were.
func TestSoakLeavesNothingBehind(t *testing.T) {
	limits := engine.Limits{PingInterval: 300 * time.Millisecond}
	srv := newEngine(t, engine.Config{Limits: limits, Channels: []engine.ChannelHandler{&echo{reply: true}}})
	addr := listen(t, srv)
	through := newHole(t, addr)
	echoed := make(chan struct{}, 1)
	cli := newEngine(t, engine.Config{Limits: limits, Channels: []engine.ChannelHandler{&echo{got: func(*engine.Association, []byte) { echoed <- struct{}{} }}}})

	dial := func(to string) *engine.Association {
		a, err := cli.Dial(t.Context(), to, engine.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		waitHello(t, a)
		return a
	}
	settled := func() bool {
		s, c := srv.Stats(), cli.Stats()
		return s.Associations == 0 && c.Associations == 0 && s.Held == 0 && c.Held == 0
	}
	wait := func() {
		t.Helper()
		nptest.Eventually(t, settled, func() any { return []engine.Stats{srv.Stats(), cli.Stats()} })
		runtime.GC()
		runtime.GC()
	}
	cycle := func(i int) {
		a := dial(through.ln.Addr().String())
		if err := a.Send(t.Context(), wire.ChannelMemory, echoType, make([]byte, 600)); err != nil {
			t.Fatal(err)
		}
		<-echoed // and so our HELLO has arrived: a peer without one is not pinged (D13)
		for _, x := range through.last() {
			switch i % 3 {
			case 0:
				a.Close(0, "")
			case 1: // the link ends without a word
				x.client.Close()
				x.server.Close()
			case 2:
				close(x.gone)
			}
		}
		if i%3 != 2 {
			<-a.Done()
		}
	}
	for i := range 30 { // what is made once is made
		cycle(i)
	}
	wait()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	goroutines := runtime.NumGoroutine()

	start := time.Now()
	for i := range *cycles {
		cycle(i)
	}
	wait()
	runtime.ReadMemStats(&after)
	t.Logf("%d cycles in %v: goroutines %d -> %d, heap %d -> %d KiB", *cycles, time.Since(start).Round(time.Millisecond),
		goroutines, runtime.NumGoroutine(), before.HeapAlloc>>10, after.HeapAlloc>>10)
	if n := runtime.NumGoroutine(); n > goroutines+2 {
		t.Errorf("%d goroutines after the cycles, %d before", n, goroutines)
	}
	if after.HeapAlloc > before.HeapAlloc+before.HeapAlloc/4+(1<<20) {
		t.Errorf("heap of %d KiB after the cycles, %d before", after.HeapAlloc>>10, before.HeapAlloc>>10)
	}

	all := make([]*engine.Association, *idle)
	for i := range all {
		all[i] = dial(addr)
	}
	if n := runtime.NumGoroutine(); n > goroutines+4 {
		t.Errorf("%d goroutines with %d idle associations, %d without", n, *idle, goroutines)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / int64(*idle) / 2
	for _, a := range all {
		a.Close(0, "")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, a := range all {
		select {
		case <-a.Done():
		case <-ctx.Done():
			t.Fatal("an association does not end")
		}
	}
	wait()
	runtime.ReadMemStats(&after)
	t.Logf("%d idle: %d octets of heap each end while they stood, goroutines %d, heap %d KiB afterwards", *idle, each, runtime.NumGoroutine(), after.HeapAlloc>>10)
	if after.HeapAlloc > before.HeapAlloc+before.HeapAlloc/4+(1<<20) {
		t.Errorf("heap of %d KiB afterwards, %d before", after.HeapAlloc>>10, before.HeapAlloc>>10)
	}
}
