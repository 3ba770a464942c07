package engine_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/wire"
)

// An association that always has something to do leaves its loop time for the
// sockets of the others.
func TestBusyAssociationDoesNotStarveItsLoop(t *testing.T) {
	testStarvation(t, func(busy *engine.Association, stop *atomic.Bool, turns *atomic.Int64) {
		var again func()
		again = func() {
			turns.Add(1)
			if !stop.Load() {
				busy.Do(again)
			}
		}
		busy.Do(again)
	})
}

// So do goroutines that post without end.
func TestPostsDoNotStarveTheLoop(t *testing.T) {
	var posters sync.WaitGroup
	defer posters.Wait()
	testStarvation(t, func(busy *engine.Association, stop *atomic.Bool, turns *atomic.Int64) {
		for range 4 {
			posters.Go(func() {
				// Posts ahead are few, or the memory would be what ends this.
				var ahead atomic.Int64
				for !stop.Load() {
					if ahead.Load() > 64 {
						runtime.Gosched()
						continue
					}
					ahead.Add(1)
					busy.Do(func() { turns.Add(1); ahead.Add(-1) })
				}
			})
		}
	})
}

func testStarvation(t *testing.T, keepBusy func(busy *engine.Association, stop *atomic.Bool, turns *atomic.Int64)) {
	var heard atomic.Int64
	srv := newEngine(t, engine.Config{Loops: 1, Channels: []engine.ChannelHandler{&echo{got: func(*engine.Association, []byte) { heard.Add(1) }}}})
	addr := listen(t, srv)
	cli := newEngine(t, engine.Config{Loops: 1, Channels: []engine.ChannelHandler{&echo{}}})
	dial := func() *engine.Association {
		a, err := cli.Dial(t.Context(), addr, engine.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		waitHello(t, a)
		return a
	}
	dial()
	var busy *engine.Association
	srv.Associations(func(a *engine.Association) bool { busy = a; return false })
	other := dial()

	var stop atomic.Bool
	defer stop.Store(true)
	var turns atomic.Int64
	keepBusy(busy, &stop, &turns)
	for i := range int64(100) {
		before := turns.Load()
		if err := other.Send(t.Context(), wire.ChannelMemory, echoType, []byte("x")); err != nil {
			t.Fatal(err)
		}
		nptest.Eventually(t, func() bool { return heard.Load() > i && turns.Load() > before },
			func() any { return []int64{heard.Load(), turns.Load() - before} })
	}
}
