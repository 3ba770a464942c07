package loop

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/sched"
)

// A connection that is closed while octets of the peer's are unread, or on their
// way, is reset, and a reset can overtake the ERROR that says why it ended, or make
// the peer's next write fail before it looks at what has arrived. So the connection
// of an association that has said its last words is shut for sending first, and
// what the peer still sends is read and dropped until the peer closes its side.
//
// That takes a descriptor, which counts for no association any more, so those that
// part are few: peers that make faults as fast as they can must not take all there
// are. Beyond that a connection is closed at once.
type partLimits struct {
	// wait bounds how long that takes, and how long the last words may take to leave.
	wait time.Duration
	// close bounds how long the end of the loops waits for all that part.
	close time.Duration
	// octets bounds what is dropped meanwhile.
	octets int
	// most bounds how many connections part at a time.
	most int
}

var defaultPart = partLimits{wait: 5 * time.Second, close: time.Second, octets: 16 << 20, most: 1024}

// parting is a connection after its association's last words. Loop only.
type parting struct {
	k       *link
	timer   sched.Timer
	shut    bool
	dropped int
}

// part begins the end of k's connection. Nothing more is sent on it but what gnet
// still holds. It reports false when too many part already.
func (k *link) part() bool {
	if !k.l.g.parts() {
		return false
	}
	p := &parting{k: k}
	p.timer.Owner = p
	k.parting = p
	if k.records != nil {
		k.records.release() // what comes is not read, and close_notify was sent
	}
	k.l.wheel.Start(&p.timer, k.l.now+k.l.g.part.wait)
	p.proceed()
	return true
}

// proceed shuts the sending side once everything has left.
func (p *parting) proceed() {
	k := p.k
	switch {
	case p.shut:
	case k.c.OutboundBuffered() > 0:
		_ = k.l.g.notify.arm(k) // without it the time runs out
	default:
		p.shut = true
		if unix.Shutdown(k.c.Fd(), unix.SHUT_WR) != nil {
			_ = k.l.el.Close(k.c) // it is gone already
		}
	}
}

// drop counts n octets as read in vain and reports whether that is enough.
func (p *parting) drop(n int) bool {
	p.dropped += n
	return p.dropped > p.k.l.g.part.octets
}

// HandleExpire runs on the loop.
func (p *parting) HandleExpire(time.Duration) { _ = p.k.l.el.Close(p.k.c) }

// over is called when the connection is closed.
func (p *parting) over() {
	p.k.l.wheel.Stop(&p.timer)
	p.k.l.g.parted()
}

// acked tells that the peer has read everything that this side had to say.
func acked(a *assoc.Association) bool {
	var e *assoc.CloseError
	return errors.As(a.Err(), &e) && e.Acked
}

// parts counts a connection that is to part, if there are not too many.
func (g *Group) parts() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.partings >= g.part.most {
		return false
	}
	g.partings++
	return true
}

// parted says that one has.
func (g *Group) parted() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.partings--
	if g.partings == 0 && g.alone != nil {
		close(g.alone)
		g.alone = nil
	}
}

// waitParted waits for the connections that part.
func (g *Group) waitParted() {
	limit := time.NewTimer(g.part.close)
	defer limit.Stop()
	g.mu.Lock()
	loops := make([]*eventLoop, 0, len(g.loops))
	for _, l := range g.loops {
		loops = append(loops, l)
	}
	g.mu.Unlock()
	// The association that ended last may be in the turn in which it did.
	for _, l := range loops {
		rested := make(chan struct{})
		if l.el.Execute(context.Background(), runnable(func() { close(rested) })) != nil {
			continue
		}
		select {
		case <-rested:
		case <-limit.C:
			return
		}
	}
	g.mu.Lock()
	if g.partings == 0 {
		g.mu.Unlock()
		return
	}
	alone := make(chan struct{})
	g.alone = alone
	g.mu.Unlock()
	select {
	case <-alone:
	case <-limit.C:
	}
}

// runnable is a function as gnet wants it.
type runnable func()

// Run runs on the loop.
func (r runnable) Run(context.Context) error {
	r()
	return nil
}
