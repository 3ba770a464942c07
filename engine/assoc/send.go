package assoc

import (
	"context"
	"sync"
	"time"

	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/sched"
	"github.com/trestle-npamp/trestle/wire"
)

var zeroHeader [wire.HeaderLen]byte

// NewBuf is a buffer for a frame of up to n plaintext octets: room for the
// header is already in it, the plaintext is appended to B.
func NewBuf(n int) *buf.Buf {
	b := buf.Get(wire.HeaderLen + n + wire.TagLen)
	b.B = append(b.B, zeroHeader[:]...)
	return b
}

// admit makes room for n more queued octets, or counts the refusal. One frame is
// admitted whatever its size if nothing else waits: a limit below the largest
// frame must not make that frame undeliverable.
func (a *Association) admit(n int) bool {
	if q := a.queued.Add(int64(n)); q > int64(a.o.OutboundLimit) && q != int64(n) || !a.o.Budget.Take(n) {
		a.queued.Add(-int64(n))
		a.refused.Store(true)
		a.o.Counters.WouldBlock.Add(1)
		return false
	}
	return true
}

// Room is how many more octets may be queued towards the peer. Any goroutine;
// it may have changed when it is read.
func (a *Association) Room() int {
	return max(0, a.o.OutboundLimit-int(a.queued.Load()))
}

// Begin starts a frame of at most n plaintext octets on ch: append them to the
// slice it returns and hand the result to End, or call Cancel. Nothing else may
// be sent on the association in between. In a turn of the association it seals
// straight into the outgoing batch and allocates nothing; otherwise the frame is
// queued. Loop only.
//
// Errors: ErrWouldBlock at the outbound limit (HandleRoom follows), ErrTooLarge,
// ErrChannel, ErrClosed.
func (a *Association) Begin(ch wire.Channel, t wire.FrameType, n int) ([]byte, error) {
	return a.begin(ch, t, n, false)
}

// BeginReserved is Begin past the outbound limit. It is for small terminal
// answers that must not get lost (a transport error), whose number is bounded
// by the exchanges admitted.
func (a *Association) BeginReserved(ch wire.Channel, t wire.FrameType, n int) ([]byte, error) {
	return a.begin(ch, t, n, true)
}

func (a *Association) begin(ch wire.Channel, t wire.FrameType, n int, reserved bool) ([]byte, error) {
	if a.ended {
		return nil, a.err
	}
	if reserved || a.m.Direct(ch, n) {
		return a.m.Begin(ch, t, n)
	}
	if !a.admit(n + wire.HeaderLen) {
		return nil, ErrWouldBlock
	}
	b, err := a.m.Begin(ch, t, n)
	if err != nil {
		a.dismiss(n + wire.HeaderLen)
		return nil, err
	}
	a.admitted += n + wire.HeaderLen
	return b, nil
}

// End sends the frame that Begin started.
func (a *Association) End(b []byte) error { return a.EndFlow(nil, b) }

// EndFlow is End for a frame of an exchange: if it has to wait, it shares the
// channel fairly with the frames of other flows.
func (a *Association) EndFlow(f *sched.Flow, b []byte) error {
	err := a.m.EndFlow(f, b)
	if !a.inTurn {
		a.trans.Wake()
	}
	return err
}

// Cancel gives up the frame that Begin started.
func (a *Association) Cancel() { a.m.Cancel() }

// dismiss takes back what admit counted.
func (a *Association) dismiss(n int) {
	a.queued.Add(-int64(n))
	a.o.Budget.Give(n)
}

// Enqueue queues b (NewBuf) as one frame of flow f, which may be nil. b passes
// to the association in every case. Loop only. Errors as for Begin.
func (a *Association) Enqueue(ch wire.Channel, t wire.FrameType, f *sched.Flow, b *buf.Buf) error {
	if a.ended {
		b.Release()
		return a.err
	}
	n := len(b.B)
	if !a.admit(n) {
		b.Release()
		return ErrWouldBlock
	}
	return a.enqueueAdmitted(ch, t, f, b, n)
}

func (a *Association) enqueueAdmitted(ch wire.Channel, t wire.FrameType, f *sched.Flow, b *buf.Buf, n int) error {
	if err := a.m.Enqueue(ch, t, 0, f, b); err != nil {
		a.dismiss(n)
		return err
	}
	a.admitted += n
	if !a.inTurn {
		a.trans.Wake()
	}
	return nil
}

// posted is a frame on its way from another goroutine to the loop.
type posted struct {
	node sched.Node
	a    *Association
	ch   wire.Channel
	t    wire.FrameType
	b    *buf.Buf
	n    int
}

var postedPool = sync.Pool{New: func() any {
	p := new(posted)
	p.node.Owner = p
	return p
}}

// RunTask runs on the loop.
func (p *posted) RunTask() {
	a, b, n := p.a, p.b, p.n
	ch, t := p.ch, p.t
	p.a, p.b = nil, nil
	postedPool.Put(p)
	if a.ended {
		b.Release()
		a.dismiss(n)
		return
	}
	// A frame that is refused here was lost with its association, or its channel
	// vanished with the peer's HELLO; nobody was told that it was delivered.
	_ = a.enqueueAdmitted(ch, t, nil, b, n)
}

// SendBuf sends the plaintext in b.B[wire.HeaderLen:] (NewBuf) as one frame. It
// does not block. b passes to the association in every case. Any goroutine; the
// frames of one goroutine keep their order.
//
// nil means that the frame is queued, not that it has arrived. Errors:
// ErrWouldBlock at the outbound limit, ErrTooLarge, ErrClosed.
func (a *Association) SendBuf(ch wire.Channel, t wire.FrameType, b *buf.Buf) error {
	n := len(b.B)
	if n-wire.HeaderLen > a.MaxSend() {
		b.Release()
		return ErrTooLarge
	}
	if !a.admit(n) {
		b.Release()
		return ErrWouldBlock
	}
	p := postedPool.Get().(*posted)
	p.a, p.ch, p.t, p.b, p.n = a, ch, t, b, n
	if !a.Post(&p.node) {
		p.a, p.b = nil, nil
		postedPool.Put(p)
		b.Release()
		a.dismiss(n)
		return a.ClosedErr()
	}
	return nil
}

// ClosedErr is the reason for which a call fails on an association that has ended:
// Err, or ErrClosed while the channels are being told. Any goroutine.
func (a *Association) ClosedErr() error {
	if err := a.Err(); err != nil {
		return err
	}
	return ErrClosed
}

// Send copies payload and sends it as one frame. At the outbound limit it waits
// for room, until ctx ends or the association does (which it does, at the
// latest, when the peer has taken nothing for the stall deadline). Any goroutine
// but the loop.
func (a *Association) Send(ctx context.Context, ch wire.Channel, t wire.FrameType, payload []byte) error {
	for {
		b := NewBuf(len(payload))
		b.B = append(b.B, payload...)
		err := a.SendBuf(ch, t, b)
		if err != ErrWouldBlock {
			return err
		}
		if err := a.WaitRoom(ctx, len(payload)+wire.HeaderLen); err != nil {
			return err
		}
	}
}

// WaitRoom waits until about n octets could be queued, the association ends or
// ctx does. Any goroutine but the loop.
func (a *Association) WaitRoom(ctx context.Context, n int) error {
	if int64(n) > a.o.Budget.Limit() {
		return ErrTooLarge // such room there never is
	}
	n = min(n, a.o.OutboundLimit) // a larger frame needs the queue empty
	for {
		a.roomMu.Lock()
		if a.roomWait == nil {
			a.roomWait = make(chan struct{})
		}
		wait := a.roomWait
		a.roomMu.Unlock()
		a.refused.Store(true)
		if a.Room() >= n && a.o.Budget.Limit()-a.o.Budget.Used() >= int64(n) {
			return nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		case <-a.done:
			return a.err
		case <-time.After(roomPoll):
			// The budget is shared: what frees it may be another association, which
			// tells nobody here.
		}
	}
}

// roomPoll bounds a wait for room in the budget that all associations share.
const roomPoll = 100 * time.Millisecond

func (a *Association) releaseWaiters() {
	a.roomMu.Lock()
	if a.roomWait != nil {
		close(a.roomWait)
		a.roomWait = nil
	}
	a.roomMu.Unlock()
}

// settleQueue gives back what has left the machine's queue, and tells those who
// were refused once half of the limit is free.
func (a *Association) settleQueue() {
	if gone := a.admitted - a.m.Queued(); gone > 0 {
		a.admitted -= gone
		a.dismiss(gone)
	}
	if a.refused.Load() && a.queued.Load() <= int64(a.o.OutboundLimit/2) {
		a.refused.Store(false)
		a.releaseWaiters()
		a.each(ChannelConn.HandleRoom)
	}
}

// admittedNow empties the account when the association ends.
func (a *Association) admittedNow() int {
	n := a.admitted
	a.admitted = 0
	a.queued.Add(-int64(n))
	return n
}
