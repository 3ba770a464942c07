package assoc

import (
	"github.com/trestle-npamp/trestle/engine/conn"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/sched"
	"github.com/trestle-npamp/trestle/wire"
)

// StreamConn is a ChannelConn whose streams have credit of their own (D6).
type StreamConn interface {
	ChannelConn
	// HandleStreamCredit tells how many octets in all the peer allows on the stream
	// with this correlation id, which is borrowed until the call returns. It is
	// called only if such credit is in force, and may name a stream that is over.
	HandleStreamCredit(octets uint64, corr []byte)
}

func (a *Association) handleCredit(ev *conn.Event) {
	if sc, ok := a.chans[ev.Channel].(StreamConn); ok {
		sc.HandleStreamCredit(ev.Octets, ev.Payload)
		return
	}
	a.o.Frames.UnknownType.Add(1)
}

// StreamLimit is how many octets may be sent on a stream at first; limited is false
// when nothing limits them. It may change when the peer's HELLO arrives, or is no
// longer expected. Loop only.
func (a *Association) StreamLimit() (octets uint64, limited bool) { return a.m.StreamLimit() }

// StreamWindow is how many octets beyond those consumed the peer may send on a
// stream; limited is false if it knows of no such limit. Loop only.
func (a *Association) StreamWindow() (octets uint64, limited bool) { return a.m.StreamWindow() }

// GrantStream tells the peer how many octets in all it may send on a stream of ch.
// Loop only. It fails only with the association.
func (a *Association) GrantStream(ch wire.Channel, octets uint64, corr []byte) error {
	err := a.m.GrantStream(ch, octets, corr)
	if !a.inTurn && !a.ended {
		a.trans.Wake()
	}
	return err
}

// Direct tells whether a frame of n plaintext octets on ch would be sealed into the
// present batch by Begin and End, without a stay in the queue. Loop only.
func (a *Association) Direct(ch wire.Channel, n int) bool { return !a.ended && a.m.Direct(ch, n) }

// EnqueueShared queues b (NewBuf) and tail, one behind the other, as one frame of
// flow f. b and one ownership of tail pass to the association in every case. It is
// for what there is much of: it uses half of the outbound limit, which leaves the
// rest to other exchanges, and a frame that finds room there is admitted whatever
// its size. Loop only. Errors as for Begin.
func (a *Association) EnqueueShared(ch wire.Channel, t wire.FrameType, f *sched.Flow, b *buf.Buf, tail *buf.Shared) error {
	err := error(nil)
	n := len(b.B) + tail.Len()
	switch {
	case a.ended:
		err = a.err
	case a.queued.Load() > int64(a.o.OutboundLimit/2) || !a.o.Budget.Take(n):
		a.refused.Store(true)
		a.o.Counters.WouldBlock.Add(1)
		err = ErrWouldBlock
	}
	if err != nil {
		b.Release()
		tail.Release()
		return err
	}
	a.queued.Add(int64(n))
	if err := a.m.EnqueueShared(ch, t, 0, f, b, tail); err != nil {
		a.dismiss(n)
		return err
	}
	a.admitted += n
	if !a.inTurn {
		a.trans.Wake()
	}
	return nil
}

// DropFlow gives up the frames of f that wait in the queue, and returns their
// number. Loop only.
func (a *Association) DropFlow(f *sched.Flow) int {
	if a.ended {
		return 0
	}
	return a.m.DropFlow(f)
}

// PostOnce is Post for a node that may be posted already, which then does nothing
// (sched.Inbox.PushOnce). Any goroutine.
func (a *Association) PostOnce(n *sched.Node) bool {
	wake, ok := a.inbox.PushOnce(n)
	if wake && a.started.Load() {
		a.trans.Wake()
	}
	return ok
}
