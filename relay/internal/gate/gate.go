// Package gate counts what is under way, bounds it, and lets a shutdown wait for
// it.
package gate

import (
	"context"
	"errors"
	"sync"
)

// Errors of Enter.
var (
	ErrClosed = errors.New("gate: closed")
	ErrFull   = errors.New("gate: full")
)

// Gate lets at most a number of things be inside at a time, and no new ones once
// it is closed. The zero value is open and has no bound.
type Gate struct {
	// Limit bounds what is inside; 0 is no bound. It must not change in use.
	Limit int

	mu     sync.Mutex
	inside int
	closed bool
	empty  chan struct{} // made by Wait; closed when a closed gate is empty
}

// Enter goes in, or says why not. After nil, Leave must follow.
func (g *Gate) Enter() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return ErrClosed
	case g.Limit > 0 && g.inside >= g.Limit:
		return ErrFull
	}
	g.inside++
	return nil
}

// Leave goes out.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	g.signal()
}

// Close lets nothing more in.
func (g *Gate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	g.signal()
}

func (g *Gate) signal() {
	if g.closed && g.inside == 0 && g.empty != nil {
		close(g.empty)
		g.empty = nil
	}
}

// Closed says whether Close was called.
func (g *Gate) Closed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}

// Inside is how many are inside.
func (g *Gate) Inside() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inside
}

// Wait returns when the gate is closed and empty, or with ctx's error.
func (g *Gate) Wait(ctx context.Context) error {
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
