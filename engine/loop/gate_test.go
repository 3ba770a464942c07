package loop

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// crowd are gates that wait for one processor, which the test holds.
type crowd struct {
	t    *testing.T
	p    *processors
	held gate
	wg   sync.WaitGroup

	mu    sync.Mutex
	order []string
}

func newCrowd(t *testing.T) *crowd {
	c := &crowd{t: t, p: newProcessors(1)}
	c.held = gate{p: c.p, ctx: t.Context(), deadline: time.Now().Add(time.Hour)}
	if err := c.held.acquire(); err != nil {
		t.Fatal(err)
	}
	return c
}

// wait makes a gate that waits, notes its name when its turn has come, and
// passes on.
func (c *crowd) wait(ctx context.Context, name string, rank int, limit time.Duration) (*gate, <-chan error) {
	g := &gate{p: c.p, ctx: ctx, rank: rank, deadline: time.Now().Add(limit)}
	done := make(chan error, 1)
	c.wg.Go(func() {
		done <- g.do(func() error {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.order = append(c.order, name)
			return nil
		})
	})
	synctest.Wait()
	return g, done
}

// A processor goes to the most advanced, and among equals to the newest; what we
// dialled comes first.
func TestProcessors_TheMostAdvancedAndNewestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t)
		for _, w := range []struct {
			name string
			rank int
		}{{"old", 0}, {"new", 0}, {"old advanced", 2}, {"ours", dialled}, {"new advanced", 2}, {"newest", 0}} {
			c.wait(t.Context(), w.name, w.rank, time.Hour)
		}
		c.held.release()
		c.wg.Wait()
		want := []string{"ours", "new advanced", "old advanced", "newest", "new", "old"}
		if !slices.Equal(c.order, want) {
			t.Errorf("in the order %q, want %q", c.order, want)
		}
		if c.p.free != 1 {
			t.Errorf("%d processors free at the end", c.p.free)
		}
	})
}

// A wait ends with its deadline, its context, or when it is cut off; and the
// processor reaches the others all the same.
func TestProcessors_WaitsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t)
		ctx, cancel := context.WithCancel(t.Context())
		_, late := c.wait(t.Context(), "late", 0, time.Second)
		_, left := c.wait(ctx, "left", 1, time.Hour)
		g, cut := c.wait(t.Context(), "cut", 2, time.Hour)
		_, stays := c.wait(t.Context(), "stays", 0, time.Hour)

		if err := <-late; !errors.Is(err, os.ErrDeadlineExceeded) { // virtual time moves on
			t.Errorf("past its deadline: %v", err)
		}
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("its context ended: %v", err)
		}
		g.cut(errCut)
		g.cut(errors.New("again"))
		if err := <-cut; !errors.Is(err, errCut) {
			t.Errorf("cut off: %v", err)
		}
		if err := g.acquire(); !errors.Is(err, errCut) {
			t.Errorf("after that: %v", err)
		}
		c.held.release()
		if err := <-stays; err != nil {
			t.Errorf("whoever stayed: %v", err)
		}
		c.wg.Wait()
		if c.p.free != 1 || !slices.Equal(c.order, []string{"stays"}) {
			t.Errorf("%d processors free, turns of %q", c.p.free, c.order)
		}
	})
}

// Whatever ends at the same moment as a turn comes, no processor is lost.
func TestProcessors_NoneIsLost(t *testing.T) {
	const gates, rounds = 16, 200
	p := newProcessors(2)
	var wg sync.WaitGroup
	for i := range gates {
		wg.Go(func() {
			for n := range rounds {
				ctx, cancel := context.WithCancel(t.Context())
				g := &gate{p: p, ctx: ctx, rank: i % ranks, deadline: time.Now().Add(time.Duration(n) * time.Microsecond)}
				go func() {
					if n%3 == 0 {
						g.cut(errCut)
					}
					cancel()
				}()
				_ = g.do(func() error { return nil })
				<-ctx.Done()
			}
		})
	}
	wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free != 2 {
		t.Errorf("%d of 2 processors left", p.free)
	}
	for r := range p.waiting {
		if n := p.waiting[r].Len(); n != 0 {
			t.Errorf("%d still wait at rank %d", n, r)
		}
	}
}
