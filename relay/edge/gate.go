package edge

import (
	"context"
	"sync"
	"sync/atomic"
)

// gate lets at most limit requests in at a time, and none once it drains. The
// zero value but for limit is open.
type gate struct {
	limit int

	mu     sync.Mutex
	inside int
	closed bool
	empty  chan struct{} // made by wait, closed when the last one leaves a closed gate
}

func (g *gate) enter() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return ErrDraining
	case g.inside >= g.limit:
		return ErrBusy
	}
	g.inside++
	return nil
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	g.signal()
}

func (g *gate) drain() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	g.signal()
}

func (g *gate) signal() {
	if g.closed && g.inside == 0 && g.empty != nil {
		close(g.empty)
		g.empty = nil
	}
}

func (g *gate) draining() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}

func (g *gate) wait(ctx context.Context) error {
	g.mu.Lock()
	if g.closed && g.inside == 0 {
		g.mu.Unlock()
		return nil
	}
	if g.empty == nil {
		g.empty = make(chan struct{})
	}
	empty := g.empty
	g.mu.Unlock()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *gate) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inside
}

// counters are what Stats reads.
type counters struct {
	results, errors, notifications, faults, left atomic.Uint64
}

// Stats counts what the edge answered since New.
type Stats struct {
	InFlight      int    // requests for agents under way now
	Results       uint64 // agents' results
	Errors        uint64 // agents' error objects
	Notifications uint64 // notifications accepted
	Faults        uint64 // problem+json answers
	Left          uint64 // callers that left before their answer
	Buffered      int64  // octets of request bodies held now
}

// Stats returns the counters.
func (e *Edge) Stats() Stats {
	return Stats{
		InFlight:      e.gate.count(),
		Results:       e.stats.results.Load(),
		Errors:        e.stats.errors.Load(),
		Notifications: e.stats.notifications.Load(),
		Faults:        e.stats.faults.Load(),
		Left:          e.stats.left.Load(),
		Buffered:      e.budget.Used(),
	}
}
