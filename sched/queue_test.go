package sched

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/wire"
)

var anyOctets = make([]byte, 8<<20)

// makeFrame returns a frame that counts for size octets (at least a header). Its
// buffer is no pool's, so that what becomes of it can be seen: Release sets B to
// nil.
func makeFrame(ch wire.Channel, flags wire.Flags, fl *Flow, size int) *Frame {
	f := GetFrame()
	f.Channel, f.Flags, f.Flow = ch, flags, fl
	if size > 0 {
		f.Buf = &buf.Buf{B: anyOctets[:size]}
	}
	return f
}

// naiveFlow, naiveLane and naiveQueue are the queue said with slices: the round
// robins step through every round, and a choice is made anew each time.
type naiveFlow struct {
	frames   []*Frame
	deficit  int
	credited bool
}

type naiveLane struct {
	channel  wire.Channel
	flows    []*naiveFlow
	deficit  int
	credited bool
}

type naiveQueue struct {
	flowQuantum, channelQuantum int
	ranks                       [3][]*naiveLane
	flows                       map[any]*naiveFlow
}

type noFlow struct {
	channel wire.Channel
	urgent  bool
}

func naiveRank(f *Frame) int {
	switch {
	case f.Channel == wire.ChannelControl || f.Channel == wire.ChannelImmune:
		return 0
	case f.Flags&wire.FlagURG != 0:
		return 1
	}
	return 2
}

func (f *naiveFlow) size() int { return max(len(f.frames[0].Buf.B), wire.HeaderLen) }

func (q *naiveQueue) push(f *Frame) {
	var key any = f.Flow
	if f.Flow == nil {
		key = noFlow{f.Channel, naiveRank(f) == 1}
	}
	fl := q.flows[key]
	if fl == nil {
		fl = new(naiveFlow)
		q.flows[key] = fl
	}
	fl.frames = append(fl.frames, f)
	if len(fl.frames) == 1 {
		q.enter(fl)
	}
}

func (q *naiveQueue) enter(fl *naiveFlow) {
	fl.deficit, fl.credited = 0, false
	rank := naiveRank(fl.frames[0])
	for _, ln := range q.ranks[rank] {
		if ln.channel == fl.frames[0].Channel {
			ln.flows = append(ln.flows, fl)
			return
		}
	}
	ln := &naiveLane{channel: fl.frames[0].Channel, flows: []*naiveFlow{fl}}
	q.ranks[rank] = append(q.ranks[rank], ln)
}

func (q *naiveQueue) leave(fl *naiveFlow, rank int, channel wire.Channel) {
	for i, ln := range q.ranks[rank] {
		if ln.channel != channel {
			continue
		}
		at := slices.Index(ln.flows, fl)
		ln.flows = slices.Delete(ln.flows, at, at+1)
		if len(ln.flows) == 0 {
			q.ranks[rank] = slices.Delete(q.ranks[rank], i, i+1)
		}
		return
	}
}

func rotate[T any](s []T) {
	first := s[0]
	copy(s, s[1:])
	s[len(s)-1] = first
}

func (q *naiveQueue) turnOf(ln *naiveLane) *naiveFlow {
	for {
		fl := ln.flows[0]
		if !fl.credited {
			fl.deficit += q.flowQuantum
			fl.credited = true
		}
		if fl.size() <= fl.deficit {
			return fl
		}
		fl.credited = false
		rotate(ln.flows)
	}
}

func (q *naiveQueue) turn() (rank int, ln *naiveLane, fl *naiveFlow) {
	for rank := range q.ranks {
		for len(q.ranks[rank]) > 0 {
			ln := q.ranks[rank][0]
			if !ln.credited {
				ln.deficit += q.channelQuantum
				ln.credited = true
			}
			if fl := q.turnOf(ln); fl.size() <= ln.deficit {
				return rank, ln, fl
			}
			ln.credited = false
			rotate(q.ranks[rank])
		}
	}
	return 0, nil, nil
}

func (q *naiveQueue) pop() *Frame {
	rank, ln, fl := q.turn()
	if fl == nil {
		return nil
	}
	f := fl.frames[0]
	ln.deficit -= fl.size()
	fl.deficit -= fl.size()
	fl.frames = fl.frames[1:]
	switch {
	case len(fl.frames) == 0:
		q.leave(fl, rank, ln.channel)
	case naiveRank(fl.frames[0]) != rank || fl.frames[0].Channel != ln.channel:
		q.leave(fl, rank, ln.channel)
		q.enter(fl)
	}
	return f
}

func (q *naiveQueue) count() (frames, octets int) {
	for _, fl := range q.flows {
		frames += len(fl.frames)
		for _, f := range fl.frames {
			octets += len(f.Buf.B)
		}
	}
	return frames, octets
}

func TestQueueAgainstSlices(t *testing.T) {
	channels := []wire.Channel{
		wire.ChannelControl, wire.ChannelImmune, wire.ChannelMemory, wire.ChannelBridge, wire.ChannelDiscovery, wire.ChannelSpatial,
	}
	script(t, 150, func(t *testing.T, r *rand.Rand) {
		q, m := new(Queue), &naiveQueue{flowQuantum: DefaultFlowQuantum, channelQuantum: DefaultChannelQuantum, flows: map[any]*naiveFlow{}}
		if r.IntN(3) > 0 {
			q.FlowQuantum, q.ChannelQuantum = 1+r.IntN(5000), 1+r.IntN(20000)
			m.flowQuantum, m.channelQuantum = q.FlowQuantum, q.ChannelQuantum
		}
		flows := make([]Flow, 1+r.IntN(12))
		wander := r.IntN(4) == 0 // flows change channels
		urgent := r.IntN(3)
		largest := wire.HeaderLen + r.IntN(1<<(6+r.IntN(14)))
		pushes := 5
		for step := range 2000 {
			if step%200 == 0 {
				pushes = r.IntN(10)
			}
			switch op := r.IntN(20); {
			case op < pushes*2:
				at := r.IntN(len(flows) + 1)
				var fl *Flow
				if at < len(flows) {
					fl = &flows[at]
				}
				ch := channels[at%len(channels)]
				if wander || fl == nil {
					ch = channels[r.IntN(len(channels))]
				}
				var flags wire.Flags
				if r.IntN(10) < urgent {
					flags = wire.FlagURG
				}
				f := makeFrame(ch, flags, fl, wire.HeaderLen+r.IntN(largest))
				q.Push(f)
				m.push(f)
			case op < 19:
				if r.IntN(2) == 0 {
					_, _, fl := m.turn()
					if got := q.Peek(); got == nil && fl != nil || got != nil && (fl == nil || fl.frames[0] != got) {
						t.Fatalf("step %d: Peek gives another frame than the model", step)
					}
				}
				got, want := q.Pop(), m.pop()
				if got != want {
					t.Fatalf("step %d: Pop gives another frame than the model", step)
				}
				if got != nil && got.Buf.B == nil {
					t.Fatalf("step %d: a queued frame's buffer was released", step)
				}
				PutFrame(got)
			default:
				fl := &flows[r.IntN(len(flows))]
				var bufs []*buf.Buf
				want := 0
				if nf := m.flows[fl]; nf != nil && len(nf.frames) > 0 {
					for _, f := range nf.frames {
						bufs = append(bufs, f.Buf)
						want += len(f.Buf.B)
					}
					m.leave(nf, naiveRank(nf.frames[0]), nf.frames[0].Channel)
					nf.frames = nil
				}
				frames, octets := q.DropFlow(fl)
				if frames != len(bufs) || octets != want {
					t.Fatalf("step %d: DropFlow is %d, %d; want %d, %d", step, frames, octets, len(bufs), want)
				}
				for _, b := range bufs {
					if b.B != nil {
						t.Fatalf("step %d: a dropped frame's buffer was not released", step)
					}
				}
				if *fl != (Flow{}) {
					t.Fatalf("step %d: a dropped flow is not as new", step)
				}
			}
			frames, octets := m.count()
			if q.Len() != frames || q.Octets() != octets {
				t.Fatalf("step %d: %d frames of %d octets, want %d of %d", step, q.Len(), q.Octets(), frames, octets)
			}
			for i := range flows {
				if nf := m.flows[&flows[i]]; nf != nil && flows[i].Len() != len(nf.frames) {
					t.Fatalf("step %d: flow %d has %d frames, want %d", step, i, flows[i].Len(), len(nf.frames))
				}
			}
		}
		q.Drain(func(f *Frame) {
			if want := m.pop(); f != want {
				t.Fatal("Drain gives another frame than the model")
			}
			PutFrame(f)
		})
		if q.Len() != 0 || q.Octets() != 0 || m.pop() != nil || q.Pop() != nil || q.Peek() != nil {
			t.Fatal("something is left after Drain")
		}
		for i := range flows {
			if flows[i] != (Flow{}) {
				t.Fatalf("flow %d is not as new after Drain", i)
			}
		}
	})
}

// popAll takes everything out and says what it was by the buffers' sizes.
func popAll(q *Queue) (sizes []int) {
	q.Drain(func(f *Frame) {
		sizes = append(sizes, len(f.Buf.B))
		PutFrame(f)
	})
	return sizes
}

func TestQueueControlAndImmuneFirstThenUrgent(t *testing.T) {
	var q Queue
	q.Push(makeFrame(wire.ChannelBridge, 0, nil, 101))
	q.Push(makeFrame(wire.ChannelMemory, 0, nil, 102))
	q.Push(makeFrame(wire.ChannelBridge, wire.FlagURG, nil, 103))
	q.Push(makeFrame(wire.ChannelMemory, wire.FlagURG, nil, 104))
	q.Push(makeFrame(wire.ChannelImmune, 0, nil, 105))
	q.Push(makeFrame(wire.ChannelControl, 0, nil, 106))
	if got := popAll(&q); !slices.Equal(got, []int{105, 106, 103, 104, 101, 102}) {
		t.Fatalf("order %v", got)
	}
}

// A frame on Control waits for nothing but what is on the wire already, however
// much is queued.
func TestQueuePingOvertakesBulk(t *testing.T) {
	var q Queue
	var flows [50]Flow
	for i := range 500 {
		q.Push(makeFrame(wire.ChannelBridge, 0, &flows[i%50], 16<<10))
	}
	for range 100 {
		PutFrame(q.Pop())
		q.Push(makeFrame(wire.ChannelControl, 0, nil, 44))
		if f := q.Pop(); f.Channel != wire.ChannelControl {
			t.Fatal("a ping waited")
		} else {
			PutFrame(f)
		}
	}
	q.Drain(nil)
}

func TestQueueUrgentChangesNothingOnControl(t *testing.T) {
	var q Queue
	for i := range 20 {
		q.Push(makeFrame(wire.ChannelControl, wire.Flags(i)&wire.FlagURG, nil, 100+i))
	}
	if got := popAll(&q); !slices.IsSorted(got) {
		t.Fatalf("order %v", got)
	}
}

// An urgent frame must not overtake what its own exchange sent before: a stream's
// end before its data would be an error at the peer.
func TestQueueUrgentFrameStaysBehindItsOwnFlow(t *testing.T) {
	var q Queue
	var fl, other Flow
	q.Push(makeFrame(wire.ChannelBridge, 0, &other, 101))
	q.Push(makeFrame(wire.ChannelBridge, 0, &fl, 102))
	q.Push(makeFrame(wire.ChannelBridge, wire.FlagURG, &fl, 103))
	q.Push(makeFrame(wire.ChannelBridge, 0, &fl, 104))
	q.Push(makeFrame(wire.ChannelBridge, 0, &other, 105))
	// 101 and 105 are the other flow's turn; 103 is urgent once it is first.
	if got := popAll(&q); !slices.Equal(got, []int{101, 105, 102, 103, 104}) {
		t.Fatalf("order %v", got)
	}
	q.Push(makeFrame(wire.ChannelBridge, 0, &fl, DefaultFlowQuantum))
	q.Push(makeFrame(wire.ChannelBridge, wire.FlagURG, &fl, 103))
	q.Push(makeFrame(wire.ChannelBridge, 0, &other, DefaultFlowQuantum))
	q.Push(makeFrame(wire.ChannelBridge, 0, &other, 105))
	if got := popAll(&q); !slices.Equal(got, []int{DefaultFlowQuantum, 103, DefaultFlowQuantum, 105}) {
		t.Fatalf("order %v: an urgent frame that is first in its flow goes first", got)
	}
}

func TestQueueUrgentFrameWithoutFlowOvertakes(t *testing.T) {
	var q Queue
	for i := range 10 {
		q.Push(makeFrame(wire.ChannelBridge, 0, nil, 100+i))
	}
	q.Push(makeFrame(wire.ChannelBridge, wire.FlagURG, nil, 50))
	if f := q.Peek(); len(f.Buf.B) != 50 {
		t.Fatal("an urgent frame waits behind the others without a flow")
	}
	if got := popAll(&q); !slices.IsSorted(got) {
		t.Fatalf("order %v", got)
	}
}

// Any two flows that have something to send all the time get the same octets,
// but for one quantum and one frame of each, whatever the sizes of their frames;
// and so do channels.
func TestQueueSharesAreEqual(t *testing.T) {
	script(t, 30, func(t *testing.T, r *rand.Rand) {
		channels := []wire.Channel{wire.ChannelMemory, wire.ChannelBridge, wire.ChannelTelemetry}
		type sender struct {
			Flow
			channel int
			size    int
			sent    int
		}
		var q Queue
		senders := make([]*sender, 12)
		largest := 0
		for i := range senders {
			senders[i] = &sender{channel: min(i/2, 2), size: 40 + r.IntN(1<<(5+r.IntN(13)))}
			largest = max(largest, senders[i].size)
		}
		byFlow := map[*Flow]*sender{}
		feed := func(s *sender) {
			for s.Flow.Len() < 3 {
				q.Push(makeFrame(channels[s.channel], 0, &s.Flow, s.size))
			}
		}
		for _, s := range senders {
			byFlow[&s.Flow] = s
			feed(s)
		}
		var total [3]int
		for sum := 0; sum < 20<<20; {
			f := q.Pop()
			s := byFlow[f.Flow]
			s.sent += s.size
			total[s.channel] += s.size
			sum += s.size
			PutFrame(f)
			feed(s)
			for _, a := range senders {
				if d := a.sent - s.sent; a.channel == s.channel && max(d, -d) > DefaultFlowQuantum+2*largest {
					t.Fatalf("flows of %d and %d octets a frame sent %d and %d", a.size, s.size, a.sent, s.sent)
				}
			}
			for _, c := range total {
				if d := c - total[s.channel]; max(d, -d) > DefaultChannelQuantum+2*largest {
					t.Fatalf("channels sent %v", total)
				}
			}
		}
		q.Drain(nil)
	})
}

// A flow that sends seldom is served within one round, whatever the others have
// queued.
func TestQueueSmallFlowWaitsOneRound(t *testing.T) {
	const n = 20
	var q Queue
	var bulk [n]Flow
	for i := range bulk {
		for range 3 {
			q.Push(makeFrame(wire.ChannelBridge, 0, &bulk[i], 1<<20))
		}
	}
	var small Flow
	for range 10 {
		q.Push(makeFrame(wire.ChannelBridge, 0, &small, 200))
		octets := 0
		for {
			f := q.Pop()
			if f.Flow == &small {
				PutFrame(f)
				break
			}
			octets += len(f.Buf.B)
			PutFrame(f)
		}
		if octets > 1<<20+n*DefaultFlowQuantum {
			t.Fatalf("waited for %d octets", octets)
		}
	}
	q.Drain(nil)
}

func TestQueueDropFlow(t *testing.T) {
	var q Queue
	var fl, other Flow
	if frames, octets := q.DropFlow(&fl); frames != 0 || octets != 0 {
		t.Fatal("dropped something from an empty flow")
	}
	q.DropFlow(nil)
	q.Push(makeFrame(wire.ChannelBridge, 0, &other, 100))
	for i := range 4 {
		q.Push(makeFrame(wire.ChannelBridge, 0, &fl, 200+i))
	}
	if fl.Len() != 4 || fl.Octets() != 806 {
		t.Fatalf("flow of %d frames, %d octets", fl.Len(), fl.Octets())
	}
	if frames, octets := q.DropFlow(&fl); frames != 4 || octets != 806 || q.Len() != 1 || q.Octets() != 100 || fl.Len() != 0 {
		t.Fatalf("dropped %d frames, %d octets; left %d, %d", frames, octets, q.Len(), q.Octets())
	}
	q.Push(makeFrame(wire.ChannelBridge, 0, &fl, 300)) // and is ready again
	if got := popAll(&q); !slices.Equal(got, []int{100, 300}) {
		t.Fatalf("order %v", got)
	}
}

func TestQueueFrameWithoutBufferCountsItsHeader(t *testing.T) {
	var q Queue
	q.Push(makeFrame(wire.ChannelControl, 0, nil, 0))
	if q.Octets() != wire.HeaderLen {
		t.Fatalf("%d octets", q.Octets())
	}
	f := q.Pop()
	if f.Buf != nil || q.Octets() != 0 {
		t.Fatal("the frame or the count changed")
	}
	PutFrame(f)
}

func TestPutFrameForgetsEverything(t *testing.T) {
	var fl Flow
	f := makeFrame(wire.ChannelBridge, wire.FlagURG, &fl, 100)
	f.Type = wire.TypePing
	b := f.Buf
	PutFrame(f)
	if b.B != nil {
		t.Error("the buffer was not released")
	}
	if *f != (Frame{state: framePooled}) {
		t.Errorf("a pooled frame keeps %+v", *f)
	}
	PutFrame(nil)

	f = makeFrame(wire.ChannelBridge, 0, nil, 100)
	b, f.Buf = f.Buf, nil // the caller keeps the buffer
	PutFrame(f)
	if b.B == nil {
		t.Error("released a buffer that was taken out")
	}
}

func TestQueueTrim(t *testing.T) {
	var q Queue
	q.Push(makeFrame(wire.ChannelBridge, 0, nil, 100))
	q.Trim() // not empty: nothing may be lost
	if q.Len() != 1 || len(q.chans) != 1 {
		t.Fatal("Trim lost a frame")
	}
	PutFrame(q.Pop())
	q.Trim()
	if q.chans != nil {
		t.Fatal("an empty queue kept memory")
	}
	q.Push(makeFrame(wire.ChannelBridge, 0, nil, 100))
	if got := popAll(&q); len(got) != 1 {
		t.Fatal("a trimmed queue takes no frames")
	}
}

// Large frames must not make the round robin step through all the rounds that it
// takes to save up for them: this would not end.
func TestQueueCostDoesNotGrowWithFrames(t *testing.T) {
	q := Queue{FlowQuantum: 1, ChannelQuantum: 1}
	flows := make([]Flow, 100)
	for i := range flows {
		for range 2 {
			q.Push(makeFrame(wire.ChannelBridge, 0, &flows[i], 8<<20))
		}
	}
	if got := popAll(&q); len(got) != 200 {
		t.Fatalf("%d frames", len(got))
	}
}

func TestQueueAllocatesNothing(t *testing.T) {
	var q Queue
	var flows [4]Flow
	step := func() {
		for i := range flows {
			f := GetFrame()
			f.Channel, f.Flow, f.Buf = wire.ChannelBridge, &flows[i], buf.Get(512)
			f.Buf.B = f.Buf.B[:512]
			q.Push(f)
		}
		q.Push(GetFrame())
		q.Peek()
		for f := q.Pop(); f != nil; f = q.Pop() {
			PutFrame(f)
		}
	}
	if poolsLose {
		step()
		return
	}
	noAllocs(t, step)
}

func ExampleQueue() {
	var q Queue
	var exchange Flow
	f := GetFrame()
	f.Channel, f.Type, f.Flow = wire.ChannelBridge, wire.FirstChannelType, &exchange
	f.Buf = buf.Get(wire.HeaderLen + 64)
	f.Buf.B = append(f.Buf.B[:wire.HeaderLen], "plaintext"...)
	q.Push(f)
	for f := q.Pop(); f != nil; f = q.Pop() {
		fmt.Printf("%s: %s\n", f.Channel, f.Buf.B[wire.HeaderLen:])
		PutFrame(f)
	}
	// Output: Bridge: plaintext
}

// keeper is a flow's source with frames of these sizes, of which it has given some.
type keeper struct {
	flow  Flow
	sizes []int
	given int
	asked int
}

func (k *keeper) Fill(dst []byte) []byte {
	return append(dst, anyOctets[:k.sizes[k.given]]...)
}

func (k *keeper) Next() (wire.FrameType, int, bool) {
	k.asked++
	if k.given++; k.given == len(k.sizes) {
		return 0, 0, false
	}
	return wire.FirstChannelType + wire.FrameType(k.given), k.sizes[k.given], true
}

func (k *keeper) Rest() {}

// take takes out what is next, and says whose it was and how large.
func (q *Queue) take(t *testing.T) (fl *Flow, size int) {
	f := q.Peek()
	if f == nil {
		return nil, 0
	}
	fl, size = f.Flow, f.Plaintext()
	if !f.Offered() {
		if q.Pop() != f {
			t.Fatal("Pop gives another frame than Peek")
		}
		PutFrame(f)
		return fl, size
	}
	k := fl.Source.(*keeper)
	if n := len(k.Fill(nil)); n != size || f.Type != wire.FirstChannelType+wire.FrameType(k.given) {
		t.Fatalf("frame %d of a source: %d octets and type %v announced, %d given", k.given, size, f.Type, n)
	}
	if more, again := q.Next(f); more != (k.given < len(k.sizes)) || again && q.Peek() != f {
		t.Fatalf("more %v, again %v; given are %d frames of %d", more, again, k.given, len(k.sizes))
	}
	return fl, size
}

// What a source keeps leaves as if it were queued.
func TestQueueOffersLeaveAsIfQueued(t *testing.T) {
	script(t, 100, func(t *testing.T, r *rand.Rand) {
		var q, all Queue
		q.FlowQuantum, q.ChannelQuantum = 1+r.IntN(5000), 1+r.IntN(20000)
		all.FlowQuantum, all.ChannelQuantum = q.FlowQuantum, q.ChannelQuantum
		channels := []wire.Channel{wire.ChannelBridge, wire.ChannelMemory, wire.ChannelControl}
		keepers := make([]*keeper, 1+r.IntN(8))
		flows := make([]Flow, len(keepers))
		names := map[*Flow]int{}
		largest := 1 + r.IntN(1<<(4+r.IntN(12)))
		for i := range keepers {
			k := &keeper{sizes: make([]int, 1+r.IntN(40))}
			k.flow.Source = k
			ch := channels[r.IntN(2+r.IntN(2))]
			kept := r.IntN(4) > 0
			for j := range k.sizes {
				k.sizes[j] = r.IntN(largest)
				all.Push(makeFrame(ch, 0, &flows[i], wire.HeaderLen+k.sizes[j]))
				if !kept {
					q.Push(makeFrame(ch, 0, &k.flow, wire.HeaderLen+k.sizes[j]))
				}
			}
			if kept {
				q.Offer(&k.flow, ch, wire.FirstChannelType, k.sizes[0])
			}
			names[&flows[i]], names[&k.flow] = i, i
			keepers[i] = k
		}
		for step := 0; ; step++ {
			a, n := q.take(t)
			b, m := all.take(t)
			if a == nil || b == nil {
				if a != nil || b != nil || q.Len() != 0 || q.Octets() != 0 {
					t.Fatalf("step %d: one of the two is empty", step)
				}
				break
			}
			if names[a] != names[b] || n != m {
				t.Fatalf("step %d: %d octets of flow %d, queued it would be %d of flow %d", step, n, names[a], m, names[b])
			}
		}
		for i, k := range keepers {
			if k.flow.Len() != 0 || k.flow.lane != nil {
				t.Errorf("flow %d is not ready for more", i)
			}
		}
	})
}

// As long as a flow's turn lasts it takes no search for what is next.
func TestQueueTurnGoesOn(t *testing.T) {
	var q Queue
	keepers := make([]keeper, 2)
	for i := range keepers {
		k := &keepers[i]
		k.sizes = slices.Repeat([]int{1000}, 9)
		k.flow.Source = k
		q.Offer(&k.flow, wire.ChannelBridge, wire.FirstChannelType, 1000)
	}
	searched := 0
	for again := false; ; {
		if !again {
			searched++
		}
		f := q.Peek()
		if f == nil {
			break
		}
		_, again = q.Next(f)
	}
	// 4,096 octets are a turn: 3, 4 and 2 frames of each. 16,384 are the channel's, and
	// at last there is nothing.
	if want := 6 + 1 + 1; searched != want {
		t.Errorf("%d searches, want %d", searched, want)
	}
}

// An offer takes a turn and no room.
func TestQueueOfferCountsNoOctets(t *testing.T) {
	var q Queue
	k := &keeper{sizes: []int{1000, 2000}}
	k.flow.Source = k
	q.Offer(&k.flow, wire.ChannelBridge, wire.FirstChannelType, 1000)
	if q.Len() != 1 || q.Octets() != 0 || k.flow.Len() != 1 || k.flow.Octets() != 0 {
		t.Errorf("%d frames of %d octets, in the flow %d of %d", q.Len(), q.Octets(), k.flow.Len(), k.flow.Octets())
	}
	if f := q.Peek(); !f.Offered() || f.Plaintext() != 1000 {
		t.Errorf("first is %+v", f)
	}
	if fl, n := q.take(t); fl != &k.flow || n != 1000 || q.Len() != 1 {
		t.Errorf("%d octets", n)
	}
	if frames, octets := q.DropFlow(&k.flow); frames != 1 || octets != 0 || q.Len() != 0 || k.flow.Source != k {
		t.Errorf("dropped %d frames, %d octets", frames, octets)
	}
	if k.asked != 1 {
		t.Errorf("asked %d times", k.asked)
	}
}

// Frames behind what was offered leave when their flow's source has no more, and
// none of them is lost.
func TestQueueFramesBehindAnOffer(t *testing.T) {
	var q Queue
	k := &keeper{sizes: []int{1000, 2000}}
	k.flow.Source = k
	q.Offer(&k.flow, wire.ChannelBridge, wire.FirstChannelType, 1000)
	q.Push(makeFrame(wire.ChannelBridge, 0, &k.flow, wire.HeaderLen+10))
	q.Push(makeFrame(wire.ChannelBridge, wire.FlagURG, &k.flow, wire.HeaderLen+20))
	q.Push(makeFrame(wire.ChannelBridge, 0, nil, wire.HeaderLen+30))
	var mine []int
	for range 5 {
		if fl, n := q.take(t); fl == &k.flow {
			mine = append(mine, n)
		}
	}
	if !slices.Equal(mine, []int{1000, 2000, 10, 20}) || q.Octets() != 0 || k.flow.Len() != 0 || k.flow.Octets() != 0 {
		t.Errorf("left %v; still queued %d octets", mine, q.Octets())
	}
}

// What pushes while it is asked for more does not disturb its turn.
func TestQueuePushFromNext(t *testing.T) {
	var q Queue
	p := &pusher{q: &q}
	p.keeper.sizes = []int{100, 100, 100}
	p.flow.Source = p
	q.Offer(&p.flow, wire.ChannelBridge, wire.FirstChannelType, 100)
	var got []int
	for f := q.Peek(); f != nil; f = q.Peek() {
		got = append(got, f.Plaintext())
		if f.Offered() {
			if _, again := q.Next(f); again {
				t.Error("an urgent frame waits, and the turn goes on")
			}
		} else {
			PutFrame(q.Pop())
		}
	}
	// Those without a flow, in their turn, and the urgent ones at once.
	if !slices.Equal(got, []int{100, 1, 100, 1, 100, 1, 10, 10, 10}) || q.Octets() != 0 {
		t.Errorf("order %v", got)
	}
}

type pusher struct {
	keeper
	q *Queue
}

func (p *pusher) Next() (wire.FrameType, int, bool) {
	p.q.Push(makeFrame(wire.ChannelBridge, 0, nil, wire.HeaderLen+10))
	p.q.Push(makeFrame(wire.ChannelBridge, wire.FlagURG, nil, wire.HeaderLen+1))
	return p.keeper.Next()
}

func TestQueueDrainAsksNoSource(t *testing.T) {
	var q Queue
	k := &keeper{sizes: []int{1, 2}}
	k.flow.Source = k
	q.Offer(&k.flow, wire.ChannelBridge, wire.FirstChannelType, 1)
	q.Push(makeFrame(wire.ChannelBridge, 0, nil, 100))
	n := 0
	q.Drain(func(f *Frame) { n++; PutFrame(f) })
	if n != 2 || k.asked != 0 || q.Len() != 0 || k.flow.Len() != 0 {
		t.Errorf("%d drained, asked %d times", n, k.asked)
	}
	for range 3 {
		if f := GetFrame(); f == &k.flow.own {
			t.Fatal("the pool has a part of a flow")
		}
	}
	q.Offer(&k.flow, wire.ChannelBridge, wire.FirstChannelType, 1)
	if fl, n := q.take(t); fl != &k.flow || n != 1 {
		t.Error("a drained flow is not ready for more")
	}
}
