package carriage

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestle-npamp/trestle/engine/assoc"
)

// roomPoll is how often somebody who waits for room looks for himself: whoever was
// woken in front of him may not have used what he was woken for.
const roomPoll = 100 * time.Millisecond

// roomList is who waits for room among the requests that are not sent yet, first come
// first. The zero value is an empty one. Any goroutine may use it.
type roomList struct {
	waiting     atomic.Int32 // so that who makes room need not lock where nobody waits
	mu          sync.Mutex
	first, last *roomWaiter
}

type roomWaiter struct {
	prev, next *roomWaiter
	octets     int64
	woken      chan struct{} // closed once it is out of the list because there is room
	listed     bool
}

func (l *roomList) enlist(w *roomWaiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.listed = true
	if w.prev = l.last; w.prev != nil {
		w.prev.next = w
	} else {
		l.first = w
	}
	l.last = w
	l.waiting.Add(1)
}

func (l *roomList) leave(w *roomWaiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unlink(w)
}

func (l *roomList) unlink(w *roomWaiter) {
	if !w.listed {
		return
	}
	w.listed = false
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		l.last = w.prev
	}
	w.prev, w.next = nil, nil
	l.waiting.Add(-1)
}

// wake wakes as many as have room beside held octets. With all woken each time,
// thousands of callers of one slow peer would cost the square of their number.
func (l *roomList) wake(held, limit int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := l.first; w != nil && fits(held, w.octets, limit); w = l.first {
		held += w.octets
		l.unlink(w)
		close(w.woken)
	}
}

// fits says whether so many octets may be added to those held. A single request has
// room, whatever its size.
func fits(held, octets, limit int64) bool { return held == 0 || held+octets <= limit }

// AwaitRoom waits until a request with so many foreign octets may be tried again
// after assoc.ErrWouldBlock; others may be first. Those who wait are woken in the order
// in which they came. The errors are ctx's, ErrNotAttached and what matches
// assoc.ErrClosed. Any goroutine but a loop may call it.
func (b *Bridge) AwaitRoom(ctx context.Context, a *assoc.Association, octets int) error {
	c, err := b.on(a)
	if err != nil {
		return err
	}
	if fits(c.outgoing.Load(), int64(octets), int64(b.cfg.MaxHeld)) {
		return nil
	}
	w := &roomWaiter{octets: int64(octets), woken: make(chan struct{})}
	c.room.enlist(w) // first, so that whoever makes room from here on sees it
	defer c.room.leave(w)
	poll := time.NewTicker(roomPoll)
	defer poll.Stop()
	for {
		if fits(c.outgoing.Load(), w.octets, int64(b.cfg.MaxHeld)) {
			return nil
		}
		select {
		case <-w.woken:
			return nil
		case <-poll.C:
		case <-a.Done():
			return c.a.ClosedErr()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// left says that so many octets of requests do not wait to be sent any more.
func (c *conn) left(octets int64) {
	held := c.outgoing.Add(-octets)
	if c.room.waiting.Load() > 0 {
		c.room.wake(held, int64(c.b.cfg.MaxHeld))
	}
}
