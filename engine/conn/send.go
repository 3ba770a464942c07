package conn

import (
	"slices"
	"time"
	"unsafe"

	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/invariant"
	"github.com/trestle-npamp/trestle/sched"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// beginState is the frame between Begin and End.
type beginState struct {
	open  bool
	ch    wire.Channel
	t     wire.FrameType
	max   int
	start int      // direct: where the frame starts in the batch
	buf   *buf.Buf // queued: its buffer
}

// StartBatch begins a turn: sealed frames are appended to batch, which stays
// the driver's. congested tells that the transport still holds much of earlier
// batches, so that frames are queued and not sealed.
func (c *Conn) StartBatch(now time.Duration, batch []byte, congested bool) {
	c.now = now
	c.batch, c.inBatch, c.congested, c.sealed = batch, true, congested, 0
	c.lively, c.worked = false, false
}

// note is told of every frame that was opened or sealed.
func (c *Conn) note(t wire.FrameType) {
	if t == wire.TypePing || t == wire.TypePong {
		c.lively = true
	} else {
		c.worked = true
	}
}

// Calm tells that frames came or went since StartBatch, and that all of them were
// PINGs and PONGs.
func (c *Conn) Calm() bool { return c.lively && !c.worked }

// TakeBatch ends a turn: it moves what may go from the queue into the batch and
// gives it back.
func (c *Conn) TakeBatch() []byte {
	c.flush()
	c.renewRoots()
	c.tally.give(c.cfg.Counters)
	b := c.batch
	c.batch, c.inBatch = nil, false
	return b
}

// Queued is the number of plaintext octets that wait in the queue.
func (c *Conn) Queued() int { return c.queue.Octets() }

// Waiting tells whether anything waits in the queue, or to be asked for by it.
func (c *Conn) Waiting() bool { return c.queue.Len() > 0 }

// Sendable tells whether a queued frame could leave now but for the room in the
// batch: another turn would bring it further.
func (c *Conn) Sendable() bool {
	if c.state >= stateClosed {
		return false
	}
	f := c.queue.Peek()
	return f != nil && c.affords(f.Channel, f.Plaintext())
}

// affords tells whether the peer's credit covers n plaintext octets on ch and, so
// that the key can be renewed before them, a KEY_UPDATE (D6).
func (c *Conn) affords(ch wire.Channel, n int) bool {
	return ch == wire.ChannelControl || uint64(n)+control.KeyUpdateLen <= c.credit.Available()
}

// Direct tells whether a frame of n plaintext octets on ch would be sealed
// right away by Begin and End, without a stay in the queue.
func (c *Conn) Direct(ch wire.Channel, n int) bool {
	return c.direct() && c.affords(ch, n)
}

// Sealed is the number of octets of sealed frames so far, over all batches.
func (c *Conn) Sealed() uint64 { return c.total }

// direct tells whether a frame may be sealed right away: nothing waits before
// it, and the batch has room.
func (c *Conn) direct() bool {
	return c.inBatch && !c.congested && c.queue.Len() == 0 && c.sealed < c.cfg.HighWater
}

// Begin starts a frame of at most n plaintext octets. The caller appends them
// to the slice it gets and hands the result to End; nothing else may happen on
// the Conn in between. It does not allocate while the batch's capacity lasts.
// A nil slice means that the frame can't be sent, and why.
func (c *Conn) Begin(ch wire.Channel, t wire.FrameType, n int) ([]byte, error) {
	if c.begin.open {
		return nil, ErrBegin
	}
	if c.state != stateOpen {
		return nil, ErrClosed
	}
	if err := c.maySend(ch, t, n); err != nil {
		return nil, err
	}
	if c.Direct(ch, n) {
		if err := c.renewKey(ch); err != nil {
			return nil, err
		}
		start := len(c.batch)
		c.batch = slices.Grow(c.batch, wire.HeaderLen+n+wire.TagLen)
		// One by one: a literal is put together elsewhere and then copied.
		g := &c.begin
		g.open, g.ch, g.t, g.max, g.start, g.buf = true, ch, t, n, start, nil
		at := start + wire.HeaderLen
		return c.batch[at : at : at+n+wire.TagLen], nil
	}
	b := buf.Get(wire.HeaderLen + n + wire.TagLen)
	b.B = append(b.B, zeroHeader[:]...)
	c.begin = beginState{open: true, ch: ch, t: t, max: n, buf: b}
	return b.B[wire.HeaderLen : wire.HeaderLen : wire.HeaderLen+n+wire.TagLen], nil
}

// End finishes the frame that Begin started; b is what the caller's appends
// made of Begin's slice.
func (c *Conn) End(b []byte) error { return c.EndFlow(nil, b) }

// EndFlow is End under a flow: if the frame has to wait, it waits among the
// frames of f.
func (c *Conn) EndFlow(f *sched.Flow, b []byte) error {
	g := &c.begin
	if !g.open {
		return ErrBegin
	}
	g.open = false
	// An append beyond what Begin was told has moved the slice elsewhere. (The
	// tag's room keeps the slice of an empty plaintext from having no place.)
	var home []byte
	if g.buf != nil {
		home = g.buf.B[:wire.HeaderLen+1][wire.HeaderLen:]
	} else {
		home = c.batch[:g.start+wire.HeaderLen+1][g.start+wire.HeaderLen:]
	}
	if len(b) > g.max || unsafe.SliceData(b) != unsafe.SliceData(home) {
		g.buf.Release()
		g.buf = nil
		return ErrTooLarge
	}
	if queued := g.buf; queued != nil {
		queued.B = queued.B[:wire.HeaderLen+len(b)]
		g.buf = nil
		c.push(g.ch, g.t, 0, f, queued)
		return nil
	}
	c.batch = c.batch[:g.start+wire.HeaderLen+len(b)]
	return c.sealAt(g.start, g.ch, g.t, 0)
}

// Cancel gives up the frame that Begin started.
func (c *Conn) Cancel() {
	c.begin.buf.Release()
	c.begin = beginState{}
}

// Enqueue queues the plaintext in b.B[wire.HeaderLen:] as one frame; b passes
// to the Conn in every case. f may be nil.
func (c *Conn) Enqueue(ch wire.Channel, t wire.FrameType, fl wire.Flags, f *sched.Flow, b *buf.Buf) error {
	err := ErrClosed
	if c.state == stateOpen {
		err = c.maySend(ch, t, len(b.B)-wire.HeaderLen)
	}
	if err != nil {
		b.Release()
		return err
	}
	c.push(ch, t, fl, f, b)
	return nil
}

// Offer queues a frame of n plaintext octets that f.Source keeps until it is sealed
// (sched.Queue.Offer). f must have nothing queued.
func (c *Conn) Offer(ch wire.Channel, t wire.FrameType, f *sched.Flow, n int) error {
	if c.state != stateOpen {
		return ErrClosed
	}
	if err := c.maySend(ch, t, n); err != nil {
		return err
	}
	c.queue.Offer(f, ch, t, n)
	return nil
}

// DropFlow gives up the frames of f that wait in the queue, and returns their
// number.
func (c *Conn) DropFlow(f *sched.Flow) int {
	n, _ := c.queue.DropFlow(f)
	return n
}

// maySend judges a frame of n plaintext octets from outside the machine, which
// alone speaks on Control and with the types that all channels share: most of
// those move its state.
func (c *Conn) maySend(ch wire.Channel, t wire.FrameType, n int) error {
	switch {
	case !c.Usable(ch):
		return ErrChannel
	case ch == wire.ChannelControl || t < wire.FirstChannelType:
		return ErrReserved
	case n > c.MaxSend():
		return ErrTooLarge
	}
	return nil
}

func (c *Conn) push(ch wire.Channel, t wire.FrameType, fl wire.Flags, flow *sched.Flow, b *buf.Buf) {
	f := sched.GetFrame()
	f.Channel, f.Type, f.Flags, f.Flow, f.Buf = ch, t, fl, flow, b
	c.queue.Push(f)
}

// flush moves queued frames into the batch as far as the high-water mark and
// the peer's credit allow, then says CLOSE if that is what is waited for.
func (c *Conn) flush() {
	if c.state >= stateClosed {
		return
	}
	c.grant()
	var turn *sched.Flow // whose source has more to say
	var f *sched.Frame
	for again := false; !c.congested && c.sealed < c.cfg.HighWater; {
		if !again {
			f = c.queue.Peek()
		}
		if again = false; turn != nil && (f == nil || f.Flow != turn) {
			turn.Source.Rest()
			turn = nil
			continue // what comes next may be something else now
		}
		if f == nil {
			break
		}
		if f.Offered() && (c.state != stateOpen || !c.Usable(f.Channel)) {
			c.queue.Pop() // it has not begun to be sent, and now it is too late
			continue
		}
		n := f.Plaintext()
		if !c.affords(f.Channel, n) {
			break
		}
		if f.Offered() {
			if c.sealOffered(f, n) != nil {
				return
			}
			var more bool
			if more, again = c.queue.Next(f); more {
				turn = f.Flow
			} else {
				turn = nil
			}
			continue
		}
		f = c.queue.Pop()
		if isReply(f.Channel, f.Type) {
			c.replies--
		}
		if !c.Usable(f.Channel) {
			// The peer's HELLO took the channel away after the frame was queued.
			c.cfg.Counters.DroppedQueued.Add(1)
			sched.PutFrame(f)
			continue
		}
		err := c.renewKey(f.Channel)
		if err == nil {
			start := len(c.batch)
			c.batch = slices.Grow(c.batch, wire.HeaderLen+n+wire.TagLen)
			c.batch = append(c.batch, f.Buf.B...)
			err = c.sealAt(start, f.Channel, f.Type, f.Flags)
		}
		sched.PutFrame(f)
		if err != nil {
			return
		}
	}
	if turn != nil {
		turn.Source.Rest()
	}
	if c.state == stateClosing && !c.closeSent && c.queue.Len() == 0 {
		c.sealClose(c.closeCode, c.closeText)
	}
}

// sealOffered seals a frame of n plaintext octets, which its flow's source puts where
// it is sealed.
func (c *Conn) sealOffered(f *sched.Frame, n int) error {
	if err := c.renewKey(f.Channel); err != nil {
		return err
	}
	start := len(c.batch)
	b := slices.Grow(c.batch, wire.HeaderLen+n+wire.TagLen)
	c.batch = f.Flow.Source.Fill(b[:start+wire.HeaderLen])
	invariant.Check(len(c.batch) == start+wire.HeaderLen+n, "conn: a source gave another size than it had announced")
	return c.sealAt(start, f.Channel, f.Type, 0)
}

// isReply tells the frames that reply counts.
func isReply(ch wire.Channel, t wire.FrameType) bool {
	switch t {
	case wire.TypePing, wire.TypePong, wire.TypeKeyUpdateAck:
		return true
	}
	return ch == wire.ChannelControl && t == wire.TypeMasterRatchetAck
}

// grant extends the peer's credit once half of it is used (D6), past the queue:
// two peers that both wait for credit must not wait for each other.
func (c *Conn) grant() {
	if !c.creditInForce() || c.state != stateOpen || c.congested {
		return
	}
	limit, due := c.credit.Grant()
	if !due {
		return
	}
	var p [8]byte
	c.sealNow(wire.ChannelControl, wire.TypeFlowUpdate, control.AppendFlowUpdate(p[:0], limit))
}

// sealNow seals a small frame of the machine's own into the batch, past the
// queue. Without a batch it is queued.
func (c *Conn) sealNow(ch wire.Channel, t wire.FrameType, payload []byte) {
	if !c.inBatch {
		b := buf.Get(wire.HeaderLen + len(payload) + wire.TagLen)
		b.B = append(append(b.B, zeroHeader[:]...), payload...)
		c.push(ch, t, 0, nil, b)
		return
	}
	if c.renewKey(ch) != nil {
		return
	}
	c.seal(ch, t, payload)
}

// seal is sealNow without a look at the key's bounds, in a batch.
func (c *Conn) seal(ch wire.Channel, t wire.FrameType, payload []byte) {
	if !c.inBatch {
		return
	}
	start := len(c.batch)
	c.batch = append(c.batch, zeroHeader[:]...)
	c.batch = append(c.batch, payload...)
	_ = c.sealAt(start, ch, t, 0) // a failure has ended the association already
}

// sealAt seals batch[start:], header room and plaintext, as the last frame of
// the batch.
func (c *Conn) sealAt(start int, ch wire.Channel, t wire.FrameType, fl wire.Flags) error {
	n := len(c.batch) - start - wire.HeaderLen
	out, err := c.side(ch).sealer.Seal(c.batch, start, fl, t)
	if err != nil {
		c.batch = c.batch[:start]
		c.sealFailed(err)
		return err
	}
	c.batch = out
	c.sealed += len(out) - start
	c.total += uint64(len(out) - start)
	c.generation.frames++
	c.note(t)
	if ch != wire.ChannelControl {
		c.credit.Take(n)
		c.lastSent = c.now
	}
	c.tally.framesOut++
	c.tally.octetsOut += uint64(len(out) - start)
	return nil
}

func (c *Conn) dropQueue() {
	c.queue.Drain(func(f *sched.Frame) {
		c.cfg.Counters.DroppedQueued.Add(1)
		sched.PutFrame(f)
	})
	c.replies = 0
}
