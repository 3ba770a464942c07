package carriage

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/trestle-npamp/trestle/wire/bridge"
)

// modelled is a backlog and what it should hold.
type modelled struct {
	backlog
	events [][]byte // all there ever were; event n is events[n-1]
	owing  []int32
}

func (m *modelled) add(r *rand.Rand, n int) {
	e := make([]byte, n)
	for i := range e {
		e[i] = byte(r.Uint32())
	}
	left := r.Int32N(5)
	m.push(e, largeCopy(e), int(left), n&1 == 0)
	m.events, m.owing = append(m.events, e), append(m.owing, left)
}

// costOf is that of all events up to number n.
func (m *modelled) costOf(n uint64) (cost uint64) {
	for _, e := range m.events[:n] {
		cost += uint64(len(e) + eventCost)
	}
	return cost
}

// check takes runs from a number on, and compares all that is known.
func (m *modelled) check(t *testing.T, run *run, from uint64) {
	t.Helper()
	if m.last != uint64(len(m.events)) || m.total != m.costOf(m.last) || m.gone != m.costOf(m.first) {
		t.Fatalf("%d to %d of %d events, costs %d and %d", m.first, m.last, len(m.events), m.gone, m.total)
	}
	for n := from; n <= m.last; {
		if ok, lost := m.take(run, n, EventID(n)+7); !ok || lost {
			t.Fatalf("event %d: %v, lost %v; held are those from %d to %d", n, ok, lost, m.first+1, m.last)
		}
		for ; run.n > 0; n++ {
			var it item
			run.item(&it)
			e := m.events[n-1]
			if !bytes.Equal(it.tail, e) || it.plain != (len(e)&1 == 0) || it.id != EventID(n)+7 || it.kind != bridge.KindData || len(it.head) != 0 {
				t.Fatalf("event %d is %+v, not %x", n, it, e)
			}
			run.step(len(it.tail))
		}
	}
}

// Whatever is pushed, dropped and read in whatever order, events come out as they went
// in, and their cost is that of their octets.
func TestBacklogHoldsWhatIsPushed(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := modelled{backlog: backlog{shared: seed&1 == 0}}
		largest := 1 + r.IntN(1<<r.IntN(14))
		cursors := make([]run, 3)
		for range 150 {
			switch r.IntN(6) {
			case 0, 1:
				for range r.IntN(20) {
					m.add(r, r.IntN(largest))
				}
			case 2:
				if m.first < m.last {
					m.drop()
				}
			case 3:
				m.dropTo(m.first + uint64(r.IntN(int(m.last-m.first)+1)))
			case 4:
				n := m.first + uint64(r.IntN(int(m.last-m.first)+1))
				if m.dropPages(n); m.first > n || m.first < n && m.end(m.oldest) <= n {
					t.Fatalf("seed %d: up to %d, dropped up to %d", seed, n, m.first)
				}
			case 5:
				for i := range cursors {
					m.check(t, &cursors[i], max(m.first+1, m.last-min(m.last, uint64(r.IntN(30)))))
				}
			}
			if n := m.first + uint64(r.IntN(int(m.last-m.first)+1)); m.cost(n) != m.costOf(n) {
				t.Fatalf("seed %d: the events up to %d cost %d, not %d", seed, n, m.cost(n), m.costOf(n))
			}
			for n := m.first; m.shared && n < m.last; n++ {
				if got := *m.owes(n + 1); got != m.owing[n] {
					t.Fatalf("seed %d: %d streams owe event %d, not %d", seed, got, n+1, m.owing[n])
				}
			}
		}
		for _, n := range []uint64{0, m.first, m.last + 1} {
			if ok, lost := m.take(&cursors[0], n, 1); ok || lost != (n <= m.first) {
				t.Errorf("seed %d: event %d of %d to %d: %v, lost %v", seed, n, m.first+1, m.last, ok, lost)
			}
		}
		m.clear()
		m.check(t, &cursors[0], m.last+1)
		if m.kept() != 0 || m.oldest != m.pageNo || len(m.pages) > sparePages || len(m.owed) > spareOwed {
			t.Errorf("seed %d: an empty backlog holds %+v", seed, m.backlog)
		}
		for i := range cursors {
			cursors[i].clear()
		}
	}
}

// What is taken stays while it is read, though the backlog lets go of it and is filled
// anew.
func TestBacklogRunOutlivesItsEvents(t *testing.T) {
	var l backlog
	var r run
	for range 10 {
		l.push([]byte("event"), nil, 0, true)
	}
	if ok, _ := l.take(&r, 3, 3); !ok || r.n != 8 {
		t.Fatalf("%d events", r.n)
	}
	l.clear()
	for range 1000 {
		l.push([]byte("other"), nil, 0, true)
	}
	for ; r.n > 0; r.step(len("event")) {
		var it item
		if r.item(&it); string(it.tail) != "event" {
			t.Fatalf("event %d is %q", it.id, it.tail)
		}
	}
	r.clear()
	l.clear()
}

// Memory follows what is held: a few events take little, and many small ones not much
// more than their octets.
func TestBacklogMemory(t *testing.T) {
	var l backlog
	memory := func() (n int) {
		for no := l.oldest; no != l.pageNo; no++ {
			n += l.page(no).mem.Len() + l.page(no).mem.Room()
		}
		return n
	}
	for _, size := range []int{1, 100, 256, 300, 1000, 1024, 1025, 4096, 70_000} {
		e := make([]byte, size)
		l.push(e, largeCopy(e), 0, true)
		if n := memory(); n > max(256, 4*(size+recordHead)) {
			t.Errorf("an event of %d octets takes %d", size, n)
		}
		for l.kept() < 1<<20 {
			l.push(e, largeCopy(e), 0, true)
		}
		if n := memory(); size <= largeEvent && uint64(n) > l.kept()*3/2 {
			t.Errorf("events of %d octets take %d for a cost of %d", size, n, l.kept())
		}
		l.clear()
	}
}
