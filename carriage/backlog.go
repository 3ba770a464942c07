package carriage

import (
	"sync/atomic"

	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/invariant"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// eventCost is what an event counts for besides its octets, so that many empty
// ones are not held for nothing.
const eventCost = 64

// backlog is a sequence of events, numbered from 1, of which the last ones are
// held. The zero value is empty. Whoever embeds it locks it.
type backlog struct {
	ring  []held // its length is a power of two
	first uint64 // number of the oldest event held, less one
	last  uint64 // number of the newest event so far
	gone  uint64 // cost of the events up to first
	total uint64 // cost of all events so far
}

type held struct {
	tail  *buf.Shared
	total uint64 // cost of all events up to this one
	plain bool   // known to be bridge.Tags.Plain for all who may take it
	left  int32  // how many streams of a topic have still to take it; atomic
}

// at returns an event that is held.
func (l *backlog) at(n uint64) *held {
	invariant.Check(n > l.first && n <= l.last, "carriage: looked for an event that is not held")
	return &l.ring[n&uint64(len(l.ring)-1)]
}

// push adds an event; tail passes to the backlog.
func (l *backlog) push(tail *buf.Shared, left int, plain bool) {
	if n := int(l.last - l.first); n == len(l.ring) {
		ring := make([]held, max(8, 2*n))
		for k := l.first + 1; k <= l.last; k++ {
			ring[k&uint64(len(ring)-1)] = l.ring[k&uint64(n-1)]
		}
		l.ring = ring
	}
	l.last++
	l.total += uint64(tail.Len() + eventCost)
	*l.at(l.last) = held{tail, l.total, plain, int32(left)}
}

// drop lets go of the oldest event held.
func (l *backlog) drop() {
	h := l.at(l.first + 1)
	h.tail.Release()
	l.gone = h.total
	*h = held{}
	l.first++
	if l.first == l.last && len(l.ring) > spareRing {
		l.ring = nil
	}
}

// spareRing is the largest ring that an empty backlog keeps.
const spareRing = 64

func (l *backlog) clear() {
	for l.first < l.last {
		l.drop()
	}
}

// kept is the cost of the events held.
func (l *backlog) kept() uint64 { return l.total - l.gone }

// behind is the cost of the events after number n.
func (l *backlog) behind(n uint64) uint64 {
	switch {
	case n >= l.last:
		return 0
	case n <= l.first:
		return l.kept()
	}
	return l.total - l.at(n).total
}

// owe changes by d how many streams have still to take the events after number n.
func (l *backlog) owe(n uint64, d int32) {
	for n = max(n, l.first); n < l.last; n++ {
		atomic.AddInt32(&l.at(n+1).left, d)
	}
}

// item is what is sent next.
type item struct {
	kind      bridge.Kind
	transport bool
	id        EventID
	resumable bool
	plain     bool   // as in held
	head      []byte // of the foreign octets; tail has the rest
	tail      *buf.Shared
}

func (it *item) octets() int { return len(it.head) + it.tail.Len() }

// counts says that the item's octets are counted for credit (D6).
func (it *item) counts() bool { return it.kind == bridge.KindData || it.kind == bridge.KindEnd }

// item is the event with that number; ok is false if there is none yet, and lost
// says that it is not held any more.
func (l *backlog) item(n uint64, id EventID) (it item, ok, lost bool) {
	if n <= l.first || n > l.last {
		return item{}, false, n <= l.first
	}
	h := l.at(n)
	return item{kind: bridge.KindData, id: id, plain: h.plain, tail: h.tail.Retain()}, true, false
}

// ending is how a stream ends. The zero value says that it does not.
type ending struct {
	kind      bridge.Kind
	transport bool
	tail      *buf.Shared // the foreign octets or the transport error, nil for none
}

func (e *ending) set() bool { return e.kind != 0 }

func (e *ending) item(id EventID) item {
	return item{kind: e.kind, transport: e.transport, id: id, tail: e.tail.Retain()}
}

func (e *ending) clear() {
	e.tail.Release()
	e.tail = nil
}

func transportEnding(code bridge.Code, text string) ending {
	if !code.Known() {
		code = bridge.CodeNotDelivered
	}
	b := buf.Get(2 + bridge.MaxErrorText)
	b.B = bridge.AppendTransportError(b.B, code, text)
	return ending{bridge.KindError, true, buf.Share(b)}
}
