package sched

import (
	"sync"

	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/invariant"
	"github.com/trestle-npamp/trestle/wire"
)

// The default quanta of a Queue in octets.
const (
	DefaultFlowQuantum    = 4 << 10
	DefaultChannelQuantum = 16 << 10
)

// Frame is one outbound frame, not yet sealed: it has no sequence number before
// it leaves the queue. Frames come from GetFrame and go back by PutFrame, and
// have one owner at a time.
type Frame struct {
	Channel wire.Channel
	Type    wire.FrameType
	Flags   wire.Flags
	// Buf holds the plaintext at B[wire.HeaderLen:], with room for the header in
	// front of it. It belongs to the frame; nil stands for an empty payload.
	Buf *buf.Buf
	// Flow is the exchange that the frame belongs to, nil for none. It must not
	// change while the frame is queued.
	Flow *Flow

	next    *Frame
	size    int32
	state   uint8
	offered bool // stands for what the flow's source keeps
}

const (
	frameOwned = iota
	frameQueued
	framePooled
)

var frames = sync.Pool{New: func() any { return new(Frame) }}

// GetFrame returns an empty frame. Any goroutine may call it.
func GetFrame() *Frame {
	f := frames.Get().(*Frame)
	f.state = frameOwned
	return f
}

// PutFrame releases the frame's buffer, if it has one, and gives the frame back
// to the pool; neither may be used afterwards. Whoever wants to keep the buffer
// takes it out first and sets Buf to nil. Any goroutine may call it. nil is
// ignored.
func PutFrame(f *Frame) {
	if f == nil {
		return
	}
	invariant.Check(f.state == frameOwned, "sched: put back a frame that is queued or was put back before")
	if f.offered {
		return // it is a part of its flow
	}
	b := f.Buf
	*f = Frame{state: framePooled}
	b.Release()
	frames.Put(f)
}

// Offered says that the frame's plaintext is still with the Source of its flow: see
// Queue.Offer.
func (f *Frame) Offered() bool { return f.offered }

// Plaintext returns the size of the frame's plaintext in octets.
func (f *Frame) Plaintext() int {
	if f.offered {
		return int(f.size) - wire.HeaderLen
	}
	if f.Buf == nil {
		return 0
	}
	return max(0, len(f.Buf.B)-wire.HeaderLen)
}

// measure returns what a frame counts for in its turn: header and plaintext, without
// the tag. No frame on the wire is so large that the upper bound changes it.
func (f *Frame) measure() int32 { return measured(f.Plaintext()) }

func measured(plaintext int) int32 { return int32(min(wire.HeaderLen+plaintext, 1<<30)) }

// held is how many octets of the frame the queue holds.
func (f *Frame) held() int {
	if f.offered {
		return 0
	}
	return int(f.size)
}

// Flow is one exchange's share of a Queue: its frames leave in the order in which
// they came, and it takes turns with the other flows of its channel. The zero
// value is ready; it is meant to be embedded in the exchange. While it has frames
// queued it belongs to one queue and must not be copied or freed.
type Flow struct {
	// Source is asked for what Offer announced. It must not change while the flow is
	// in a queue.
	Source Source

	node
	head, tail *Frame
	frames     int32
	octets     int
	own        Frame // stands for what was offered
}

// Source is an exchange with much to send, which keeps it until it leaves: what is
// offered takes its turn in the queue and no room there.
type Source interface {
	// Fill appends the plaintext of the frame that was offered, of exactly the size
	// that was announced, to dst, and does nothing else.
	Fill(dst []byte) []byte
	// Next is told that the frame has left, and says what the one after it is: its
	// type and the size of its plaintext in octets; with ok false there is none for
	// now, and nothing of the source's is in the queue any more. Next may push frames
	// of other flows, and must not take anything out of the queue.
	Next() (t wire.FrameType, n int, ok bool)
	// Rest is told, for as far as it knows of it, that no more of the source leaves for
	// now although it has more: what it has to do once for several frames it does then,
	// or when it says in Next that there is no more. What holds of Next holds of Rest.
	Rest()
}

// Len returns the number of its frames in the queue.
func (f *Flow) Len() int { return int(f.frames) }

// Octets returns the size of its frames in the queue, headers included.
func (f *Flow) Octets() int { return f.octets }

// Queue orders the outbound frames of one association:
//
//  1. frames on Control and Immune;
//  2. frames with FlagURG;
//  3. all others;
//
// and among those of one rank by deficit round robin over their channels, and
// within a channel over its flows, so that each channel and each flow gets the
// same share of octets, however large its frames are. Frames of one flow never
// overtake each other: the rank of a flow is that of its first frame, and an
// urgent frame waits for the earlier ones of its own flow. Frames without a flow
// form two flows of their channel, an urgent and an ordinary one; on Control and
// Immune, where FlagURG makes no difference, they form one.
//
// The zero value is an empty queue with the default quanta. A Queue belongs to
// the loop and must not be copied.
type Queue struct {
	// FlowQuantum and ChannelQuantum are the octets that a flow may send in its
	// turn, and a channel in its own; 0 means the default. They may be set before
	// the first Push.
	FlowQuantum, ChannelQuantum int

	ranks  [ranks]ring // of lanes
	chans  []*channel
	frames int
	octets int
}

const (
	rankControl = iota
	rankUrgent
	rankOrdinary
	ranks
)

// channel is what a queue keeps for a channel that was used.
type channel struct {
	id       wire.Channel
	urgent   lane
	ordinary lane
	// The flows of frames that have none.
	urgentFlow   Flow
	ordinaryFlow Flow
}

// lane is a channel's flows of one rank.
type lane struct {
	node
	rank  uint8
	flows ring
}

// Push adds a frame to the end of its flow; the frame then belongs to the queue.
// Its channel, flags, flow and buffer must not change before it comes out.
func (q *Queue) Push(f *Frame) {
	invariant.Check(f.state == frameOwned, "sched: queued a frame that is queued or was put back")
	f.size, f.state, f.next = f.measure(), frameQueued, nil
	fl := f.Flow
	if fl == nil {
		ch := q.channel(f.Channel)
		fl = &ch.ordinaryFlow
		if f.Flags&wire.FlagURG != 0 && ch.ordinary.rank != rankControl {
			fl = &ch.urgentFlow
		}
	}
	q.frames++
	q.octets += f.held()
	fl.frames++
	fl.octets += f.held()
	if fl.head == nil {
		fl.head, fl.tail = f, f
		q.enter(fl)
		return
	}
	fl.tail.next, fl.tail = f, f
}

// Offer puts a flow that has nothing queued in for a frame of n plaintext octets, which
// its Source keeps until it is the frame's turn: Peek returns a frame that says
// Offered then, whose plaintext Fill of the flow's Source gives, and when it has been
// sent Next follows. It counts for no octets of the queue. Frames that are pushed
// behind it leave once the Source has no more.
func (q *Queue) Offer(fl *Flow, ch wire.Channel, t wire.FrameType, n int) {
	invariant.Check(fl.head == nil && fl.Source != nil, "sched: offered for a flow that has no source, or frames queued")
	fl.own = Frame{Channel: ch, Type: t, Flow: fl, size: measured(n), offered: true}
	q.Push(&fl.own)
}

// Next says that f, which was offered and which Peek has returned, was sent, and asks
// its flow's Source for what comes after it: the flow keeps its turn as long as there
// is more. more says so; then Rest of the Source is to follow before frames of another
// flow leave, unless Next does. again says that Peek would return f at once: what is
// known here need not be looked for, which took an event of 256 octets 7 ns of 150.
func (q *Queue) Next(f *Frame) (more, again bool) {
	fl := f.Flow
	invariant.Check(f.offered && fl.head == f, "sched: a frame that was not offered, or not the next one")
	ln, size := fl.lane, f.size
	t, n, ok := fl.Source.Next()
	if !ok {
		q.out(fl)
		return false, false
	}
	fl.deficit -= size
	ln.deficit -= size
	f.Type, f.size = t, measured(n)
	fl.size, ln.size = f.size, f.size
	ln.stale = fl.size > fl.deficit
	return true, !ln.stale && ln.size <= ln.deficit && q.highest(ln)
}

// highest says that nothing waits in a higher rank than that of a lane.
func (q *Queue) highest(ln *lane) bool {
	for rank := range ln.rank {
		if q.ranks[rank].n > 0 {
			return false
		}
	}
	return true
}

// Peek returns the frame that Pop would return, nil from an empty queue. It stays
// the same until Pop, unless frames of a higher rank come or its flow is dropped.
func (q *Queue) Peek() *Frame {
	ln := q.first()
	if ln == nil {
		return nil
	}
	return ln.flows.first.flow.head
}

// Pop takes the next frame out, nil from an empty queue. It belongs to the
// caller then, who gives it back by PutFrame. One that was offered is given up.
func (q *Queue) Pop() *Frame {
	ln := q.first()
	if ln == nil {
		return nil
	}
	return q.out(ln.flows.first.flow)
}

// out takes out the first frame of the flow whose turn it is.
func (q *Queue) out(fl *Flow) *Frame {
	ln, f := fl.lane, fl.head
	fl.head = f.next
	f.next, f.state = nil, frameOwned
	fl.frames--
	fl.octets -= f.held()
	q.frames--
	q.octets -= f.held()
	fl.deficit -= f.size
	ln.deficit -= f.size
	switch {
	case fl.head == nil:
		q.leave(fl)
		fl.empty()
	case q.laneOf(fl.head) == ln:
		fl.size = fl.head.size
		ln.stale = true
	default:
		q.leave(fl)
		q.enter(fl)
	}
	return f
}

// Len returns the number of frames queued, those offered included.
func (q *Queue) Len() int { return q.frames }

// Octets returns the size of the frames queued, in octets: headers and
// plaintext, without the tags.
func (q *Queue) Octets() int { return q.octets }

// DropFlow puts back all frames of a flow, which is empty and ready then, and
// returns what they were. An offered one is among the frames and has no octets.
func (q *Queue) DropFlow(fl *Flow) (frames, octets int) {
	if fl == nil || fl.head == nil {
		return 0, 0
	}
	invariant.Check(!invariant.Enabled || q.has(fl.lane), "sched: dropped a flow of another queue")
	frames, octets = int(fl.frames), fl.octets
	f := fl.head
	q.leave(fl)
	q.frames -= frames
	q.octets -= octets
	fl.empty()
	for f != nil {
		next := f.next
		f.next, f.state = nil, frameOwned
		PutFrame(f)
		f = next
	}
	return frames, octets
}

// empty leaves own as it is: whoever took it out may be looking at it.
func (f *Flow) empty() {
	f.node = node{}
	f.head, f.tail, f.frames, f.octets = nil, nil, 0, 0
}

// Drain takes out all frames in the order of Pop and hands each to fn, whose they
// are; without fn they are put back. fn must not use the queue. No source is asked
// for anything.
func (q *Queue) Drain(fn func(*Frame)) {
	for f := q.Pop(); f != nil; f = q.Pop() {
		if fn != nil {
			fn(f)
		} else {
			PutFrame(f)
		}
	}
}

// Trim gives back the memory kept for channels of an empty queue; one with
// frames it leaves as it is. It is for the moment when an association falls idle.
func (q *Queue) Trim() {
	if q.frames == 0 {
		q.chans = nil
	}
}

// first returns the lane whose turn it is, nil when there is none. The flow whose
// turn it is in there is then the first of its ring.
func (q *Queue) first() *lane {
	for rank := range q.ranks {
		if r := &q.ranks[rank]; r.n > 0 {
			flows := quantum(q.FlowQuantum, DefaultFlowQuantum)
			return r.turn(quantum(q.ChannelQuantum, DefaultChannelQuantum), flows).lane
		}
	}
	return nil
}

// enter puts a flow into the lane where its first frame belongs.
func (q *Queue) enter(fl *Flow) {
	ln := q.laneOf(fl.head)
	fl.node = node{flow: fl, lane: ln, size: fl.head.size}
	ln.flows.append(&fl.node)
	if ln.flows.n == 1 {
		ln.node = node{lane: ln, stale: true}
		q.ranks[ln.rank].append(&ln.node)
	}
}

// leave takes a flow out of its lane, and the lane out of its rank when it has no
// other.
func (q *Queue) leave(fl *Flow) {
	ln := fl.lane
	ln.flows.remove(&fl.node)
	ln.stale = true
	if ln.flows.n == 0 {
		q.ranks[ln.rank].remove(&ln.node)
	}
}

func (q *Queue) laneOf(f *Frame) *lane {
	ch := q.channel(f.Channel)
	if f.Flags&wire.FlagURG != 0 && ch.ordinary.rank != rankControl {
		return &ch.urgent
	}
	return &ch.ordinary
}

// channel returns what is kept for a channel. An association uses few, so this
// is a short walk.
func (q *Queue) channel(id wire.Channel) *channel {
	for _, ch := range q.chans {
		if ch.id == id {
			return ch
		}
	}
	ch := &channel{id: id}
	ch.urgent.rank, ch.ordinary.rank = rankUrgent, rankOrdinary
	if id == wire.ChannelControl || id == wire.ChannelImmune {
		ch.ordinary.rank = rankControl
	}
	q.chans = append(q.chans, ch)
	return ch
}

func (q *Queue) has(ln *lane) bool {
	for _, ch := range q.chans {
		if ln == &ch.urgent || ln == &ch.ordinary {
			return true
		}
	}
	return false
}

func quantum(set, def int) int32 {
	if set <= 0 {
		set = def
	}
	return int32(min(set, wire.MaxFrameLen))
}

// node is a member of a ring: a flow in its lane, or a lane in its rank.
type node struct {
	next, prev *node
	flow       *Flow // the flow that it is the node of, nil for a lane
	lane       *lane // the lane that it is the node of, or that the flow is in
	size       int32 // of the frame that it would send
	deficit    int32
	credited   bool // has had its quantum in the present turn
	stale      bool // of a lane: its flows have changed, and so perhaps size
}

// ring is a deficit round robin (Shreedhar and Varghese): in its turn a member
// gets a quantum on top of what it did not use, and sends while that lasts.
type ring struct {
	first *node // whose turn it is
	n     int
}

func (r *ring) append(m *node) {
	r.n++
	if r.first == nil {
		m.next, m.prev = m, m
		r.first = m
		return
	}
	m.next, m.prev = r.first, r.first.prev
	m.prev.next, r.first.prev = m, m
}

func (r *ring) remove(m *node) {
	r.n--
	if r.n == 0 {
		r.first = nil
	} else {
		m.next.prev, m.prev.next = m.prev, m.next
		if r.first == m {
			r.first = m.next
		}
	}
	m.next, m.prev = nil, nil
}

// turn moves on to the member that may send and returns it; of a lane, it does
// the same to the ring of its flows, whose quantum is inner. It changes nothing if
// it was called just before. The ring must not be empty.
func (r *ring) turn(quantum, inner int32) *node {
	for vain := 0; ; {
		m := r.first
		if m.stale {
			m.size = m.lane.flows.turn(inner, 0).size
			m.stale = false
		}
		if !m.credited {
			m.deficit += quantum
			m.credited = true
		}
		if m.size <= m.deficit {
			return m
		}
		m.credited = false
		r.first = m.next
		if vain++; vain == r.n {
			// Nobody's frame fits yet. Skip the rounds that would be in vain as
			// well, so that the cost does not grow with the size of the frames.
			r.skip(quantum)
			vain = 0
		}
	}
}

// skip credits everyone with the rounds before the first one in which somebody
// may send.
func (r *ring) skip(quantum int32) {
	rounds := int32(1<<31 - 1)
	m := r.first
	for range r.n {
		rounds = min(rounds, (m.size-m.deficit-1)/quantum)
		m = m.next
	}
	for range r.n {
		m.deficit += rounds * quantum
		m = m.next
	}
}
