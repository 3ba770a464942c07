package loop

import (
	"container/list"
	"context"
	"os"
	"sync"
	"time"
)

// Ranks of those who wait for a processor: the stage that an accepted handshake
// has reached, and above all of them the handshakes that we began.
const (
	dialled = stages
	ranks   = dialled + 1
)

// processors are what handshakes compute on: few at once, so that associations
// that stand keep their share of the machine. A handshake holds one while it
// computes and never while it waits for octets: stalled peers cost a goroutine
// each and delay nobody.
//
// When more want one than there are, the most advanced comes first, and among
// equals the newest. An old one has a flood before it that came at the same time,
// and its peer may have left; in the order of arrival every honest peer would
// wait for the whole flood, at each step.
type processors struct {
	mu      sync.Mutex
	free    int
	waiting [ranks]list.List // of *gate, newest first
}

func newProcessors(n int) *processors { return &processors{free: n} }

// gate is one handshake's way to a processor. It belongs to the handshake's
// goroutine; only cut may be called by others.
type gate struct {
	p        *processors
	ctx      context.Context
	deadline time.Time
	rank     int
	held     bool

	// Guarded by p.mu.
	at   *list.Element // while it waits
	err  error         // of the first cut, which stays
	turn chan bool     // true: it has a processor; false: it was cut. Made when it first has to wait
}

// acquire waits for a processor. The errors are the context's, cut's, and
// os.ErrDeadlineExceeded.
func (g *gate) acquire() error {
	p := g.p
	p.mu.Lock()
	switch {
	case g.err != nil:
		p.mu.Unlock()
		return g.err
	case p.free > 0:
		p.free--
		p.mu.Unlock()
		g.held = true
		return nil
	}
	if g.turn == nil {
		g.turn = make(chan bool, 1)
	}
	g.at = p.waiting[g.rank].PushFront(g)
	p.mu.Unlock()

	late := time.NewTimer(time.Until(g.deadline))
	defer late.Stop()
	var err error
	select {
	case g.held = <-g.turn:
		if g.held {
			return nil
		}
		return g.err
	case <-g.ctx.Done():
		err = g.ctx.Err()
	case <-late.C:
		err = os.ErrDeadlineExceeded
	}
	p.mu.Lock()
	if g.at != nil {
		p.waiting[g.rank].Remove(g.at)
		g.at = nil
		p.mu.Unlock()
		return err
	}
	p.mu.Unlock()
	if <-g.turn { // at the same moment
		g.release()
	}
	return err
}

// release passes the processor on.
func (g *gate) release() {
	g.held = false
	p := g.p
	p.mu.Lock()
	defer p.mu.Unlock()
	for r := ranks - 1; r >= 0; r-- {
		if e := p.waiting[r].Front(); e != nil {
			next := p.waiting[r].Remove(e).(*gate)
			next.at = nil
			next.turn <- true
			return
		}
	}
	p.free++
}

// cut ends a wait and every later acquire with err.
func (g *gate) cut(err error) {
	p := g.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.err != nil {
		return
	}
	g.err = err
	if g.at != nil {
		p.waiting[g.rank].Remove(g.at)
		g.at = nil
		g.turn <- false
	}
}

// do runs f while holding a processor.
func (g *gate) do(f func() error) error {
	if err := g.acquire(); err != nil {
		return err
	}
	defer func() {
		if g.held {
			g.release()
		}
	}()
	return f()
}
