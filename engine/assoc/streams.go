package assoc

import (
	"github.com/trestle-npamp/trestle/engine/conn"
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

// Offer queues a frame of n plaintext octets on ch that f.Source keeps until it is
// sealed (sched.Queue.Offer). f must have nothing queued. It takes no room and no
// budget, whatever waits. Loop only. Errors: ErrTooLarge, ErrChannel, ErrClosed.
func (a *Association) Offer(ch wire.Channel, t wire.FrameType, f *sched.Flow, n int) error {
	if a.ended {
		return a.err
	}
	err := a.m.Offer(ch, t, f, n)
	if err == nil && !a.inTurn {
		a.trans.Wake()
	}
	return err
}

// DropFlow gives up the frames of f that wait in the queue, one that was offered
// included, and returns their number. Loop only.
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
