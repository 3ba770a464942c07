package carriage

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/invariant"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// eventCost is what an event counts for besides its octets, so that many empty
// ones are not held for nothing.
const eventCost = 64

// How events are held, in octets.
const (
	// pageSize is how many the events of one page have at most. A backlog that holds
	// less makes smaller pages.
	pageSize = 4 << 10
	// largeEvent is how many an event may have to share a page with others.
	largeEvent = 1 << 10
	recordHead = 4
)

// page is memory that holds events in a row, so that the processor fetches the next
// ones while one is sent, and pools are touched once for all of them:
//
//	2*length + plain (4 octets, little-endian) | the event's octets | 2*length + ...
//
// or one event that is large, and nothing else. When each event had a buffer of its own,
// 64 streams on an association spent a third of their time waiting for memory: an event
// of 256 octets took 0.42 µs and takes 0.29 so, with runs (see outlet).
type page struct {
	mem    *buf.Shared
	before uint64 // number of the event before its first
	cost   uint64 // of all events up to that
	single bool   // it is a large event
	plain  bool   // of a large event, as in record
}

// record is the event at that place of a page: plain says that it is bridge.Tags.Plain
// for all who may take it.
func record(b []byte) (octets []byte, plain bool) {
	head := binary.LittleEndian.Uint32(b)
	return b[recordHead : recordHead+head>>1], head&1 != 0
}

// backlog is a sequence of events, numbered from 1, of which the last ones are
// held. The zero value is empty. Whoever embeds it locks it.
type backlog struct {
	pages  []page // a ring, its length a power of two
	oldest uint   // number of the page with the oldest event held
	pageNo uint   // number of the page to come next
	at     int    // where in its page the oldest event held is
	first  uint64 // number of the oldest event held, less one
	last   uint64 // number of the newest event so far
	gone   uint64 // cost of the events up to first
	total  uint64 // cost of all events so far

	// How many streams of a topic have still to take each event: a ring, its length a
	// power of two. What it holds is atomic. nil unless shared.
	owed   []int32
	shared bool
}

func (l *backlog) page(no uint) *page { return &l.pages[no&uint(len(l.pages)-1)] }

// end is the number of the newest event in that page.
func (l *backlog) end(no uint) uint64 {
	if no+1 == l.pageNo {
		return l.last
	}
	return l.page(no + 1).before
}

// largeCopy is the memory of an event that shares a page with no other; nil for others.
// It serves to copy a large event before a lock is taken.
func largeCopy(foreign []byte) *buf.Shared {
	if len(foreign) <= largeEvent {
		return nil
	}
	return buf.SharedCopy(foreign)
}

// push adds an event that left streams have to take. large is its largeCopy, which
// passes to the backlog.
func (l *backlog) push(foreign []byte, large *buf.Shared, left int, plain bool) {
	if large != nil {
		l.turn(page{mem: large, single: true, plain: plain})
	} else {
		size := recordHead + len(foreign)
		var p *page
		if l.oldest != l.pageNo {
			p = l.page(l.pageNo - 1)
		}
		if p == nil || p.single || p.mem.Room() < size {
			p = l.turn(page{mem: buf.SharedRoom(max(size, int(min(l.kept(), pageSize))))})
		}
		b, head := p.mem.Extend(size), uint32(len(foreign))<<1
		if plain {
			head |= 1
		}
		binary.LittleEndian.PutUint32(b, head)
		copy(b[recordHead:], foreign)
	}
	l.last++
	l.total += uint64(len(foreign) + eventCost)
	if !l.shared {
		return
	}
	if n := int(l.last - l.first); n > len(l.owed) {
		owed := make([]int32, max(8, 2*len(l.owed)))
		for k := l.first + 1; k < l.last; k++ {
			owed[k&uint64(len(owed)-1)] = *l.owes(k)
		}
		l.owed = owed
	}
	*l.owes(l.last) = int32(left)
}

// turn starts a new page.
func (l *backlog) turn(p page) *page {
	if n := len(l.pages); l.pageNo-l.oldest == uint(n) {
		ring := make([]page, max(4, 2*n))
		for no := l.oldest; no != l.pageNo; no++ {
			ring[no&uint(len(ring)-1)] = *l.page(no)
		}
		l.pages = ring
	}
	p.before, p.cost = l.last, l.total
	l.pageNo++
	at := l.page(l.pageNo - 1)
	*at = p
	return at
}

// octets is how many the oldest event held has.
func (l *backlog) octets() int {
	p := l.page(l.oldest)
	if p.single {
		return p.mem.Len()
	}
	octets, _ := record(p.mem.Octets()[l.at:])
	return len(octets)
}

// drop lets go of the oldest event held.
func (l *backlog) drop() {
	invariant.Check(l.first < l.last, "carriage: dropped an event that is not held")
	n := l.octets()
	l.first++
	l.gone += uint64(n + eventCost)
	l.at += recordHead + n
	if l.first == l.end(l.oldest) {
		l.dropPage()
	}
}

// dropTo lets go of the events up to number n.
func (l *backlog) dropTo(n uint64) {
	for l.dropPages(n); l.first < n; {
		l.drop()
	}
}

// dropPages lets go of the events up to number n, but for those that lie in one page
// with later ones.
func (l *backlog) dropPages(n uint64) {
	for l.oldest != l.pageNo && l.end(l.oldest) <= n {
		l.first = l.end(l.oldest)
		l.dropPage()
	}
}

// dropPage lets go of the oldest page, of which no event is held any more.
func (l *backlog) dropPage() {
	p := l.page(l.oldest)
	p.mem.Release()
	*p = page{}
	l.oldest++
	l.at = 0
	if l.first < l.last {
		l.gone = l.page(l.oldest).cost
		return
	}
	l.gone = l.total
	if len(l.pages) > sparePages {
		l.pages = nil
	}
	if len(l.owed) > spareOwed {
		l.owed = nil
	}
}

// What an empty backlog keeps of its rings at most.
const (
	sparePages = 8
	spareOwed  = 64
)

func (l *backlog) clear() { l.dropTo(l.last) }

// kept is the cost of the events held.
func (l *backlog) kept() uint64 { return l.total - l.gone }

// pageOf is the page of an event that is held.
func (l *backlog) pageOf(n uint64) (no uint) {
	invariant.Check(n > l.first && n <= l.last, "carriage: looked for an event that is not held")
	no = l.oldest
	for high := l.pageNo - 1; no < high; {
		if mid := high - (high-no)/2; l.page(mid).before < n {
			no = mid
		} else {
			high = mid - 1
		}
	}
	return no
}

// find is where an event that is held is in its page, and the cost of all before it.
func (l *backlog) find(no uint, n uint64) (at int, cost uint64) {
	p := l.page(no)
	k := p.before + 1
	cost = p.cost
	if no == l.oldest {
		k, at, cost = l.first+1, l.at, l.gone
	}
	for ; k < n; k++ {
		octets, _ := record(p.mem.Octets()[at:])
		at += recordHead + len(octets)
		cost += uint64(len(octets) + eventCost)
	}
	return at, cost
}

// cost is that of all events up to number n, of which the next one is held if there
// is one.
func (l *backlog) cost(n uint64) uint64 {
	if n == l.last {
		return l.total
	}
	_, cost := l.find(l.pageOf(n+1), n+1)
	return cost
}

// owes is how many streams have still to take an event that is held.
func (l *backlog) owes(n uint64) *int32 { return &l.owed[n&uint64(len(l.owed)-1)] }

// owe changes by d how many streams have still to take the events after number n.
func (l *backlog) owe(n uint64, d int32) {
	for n = max(n, l.first); n < l.last; n++ {
		atomic.AddInt32(l.owes(n+1), d)
	}
}

// run is events in a row as an outlet takes them: some that lie one behind the other,
// or what stands alone.
type run struct {
	kind      bridge.Kind
	transport bool
	resumable bool
	single    bool // rest is one event and not records
	plain     bool // of a single one
	n         int  // how many there are
	id        EventID
	number    uint64 // of the first in its backlog, and where in its page that is
	at        int
	head      []byte      // what each begins with for this stream alone
	rest      []byte      // the events
	mem       *buf.Shared // whose octets they are; it is owned
}

// own makes mem what holds the run's octets.
func (r *run) own(mem *buf.Shared) {
	if r.mem != mem {
		r.mem.Release()
		r.mem = mem.Retain()
	}
}

// clear gives the run up.
func (r *run) clear() {
	r.mem.Release()
	*r = run{}
}

// alone makes the run a single item.
func (r *run) alone(kind bridge.Kind, id EventID, mem *buf.Shared) {
	r.own(mem)
	r.kind, r.transport, r.id, r.n = kind, false, id, 1
	r.rest, r.single, r.plain, r.head = mem.Octets(), true, false, nil
}

// step goes on behind the first event, which has so many octets.
func (r *run) step(octets int) {
	r.n--
	r.id++
	r.number++
	if r.single {
		r.rest = nil
		return
	}
	r.at += recordHead + octets
	r.rest = r.rest[recordHead+octets:]
}

// take fills r with events from number n on; ok is false if there is none yet, and
// lost says that it is not held any more.
func (l *backlog) take(r *run, n uint64, id EventID) (ok, lost bool) {
	if n <= l.first || n > l.last {
		return false, n <= l.first
	}
	no := l.pageOf(n)
	p := l.page(no)
	if p.single {
		r.alone(bridge.KindData, id, p.mem)
		r.plain = p.plain
		return true, false
	}
	if r.mem != p.mem || r.number != n {
		r.own(p.mem)
		r.at, _ = l.find(no, n)
	}
	r.kind, r.transport, r.id, r.number, r.n = bridge.KindData, false, id, n, int(l.end(no)-n+1)
	r.rest, r.single, r.head = p.mem.Octets()[r.at:], false, nil
	return true, false
}

// item is what is sent next.
type item struct {
	kind      bridge.Kind
	transport bool
	id        EventID
	resumable bool
	plain     bool   // as in record
	head      []byte // of the foreign octets; tail has the rest
	tail      []byte
}

func (it *item) octets() int { return len(it.head) + len(it.tail) }

// counts says that the item's octets are counted for credit (D6).
func (it *item) counts() bool { return it.kind == bridge.KindData || it.kind == bridge.KindEnd }

// item is the first of the run.
func (r *run) item(it *item) {
	it.kind, it.transport, it.id, it.resumable = r.kind, r.transport, r.id, r.resumable
	if r.single {
		it.tail, it.plain = r.rest, r.plain
	} else {
		it.tail, it.plain = record(r.rest)
	}
	if it.head = nil; len(it.tail) > 0 {
		it.head = r.head
	}
}

// ending is how a stream ends. The zero value says that it does not.
type ending struct {
	kind      bridge.Kind
	transport bool
	tail      *buf.Shared // the foreign octets or the transport error, nil for none
}

func (e *ending) set() bool { return e.kind != 0 }

func (e *ending) take(r *run, id EventID) {
	r.alone(e.kind, id, e.tail)
	r.transport = e.transport
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
