package sched

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// note is a task that tells its number to whoever runs it.
type note struct {
	Node
	from, number int
	run          func(*note)
}

func newNote(from, number int, run func(*note)) *note {
	n := &note{from: from, number: number, run: run}
	n.Owner = n
	return n
}

func (n *note) RunTask() { n.run(n) }

func TestInboxKeepsOrderAndWakesOnlyFromEmpty(t *testing.T) {
	script(t, 20, func(t *testing.T, r *rand.Rand) {
		var q Inbox
		var want, got []int
		number := 0
		for range 2000 {
			if r.IntN(4) > 0 {
				n := newNote(0, number, func(n *note) { got = append(got, n.number) })
				wake, ok := q.Push(&n.Node)
				if !ok || wake != (len(want) == 0) {
					t.Fatalf("Push of note %d on %d others: wake %v, ok %v", number, len(want), wake, ok)
				}
				want = append(want, number)
				number++
				continue
			}
			if q.Empty() != (len(want) == 0) {
				t.Fatalf("Empty is %v with %d notes in it", q.Empty(), len(want))
			}
			got = got[:0]
			if n := Run(q.TakeAll()); n != len(want) || len(got) != len(want) {
				t.Fatalf("Run returned %d and ran %d, want %d", n, len(got), len(want))
			}
			for i := range want {
				if got[i] != want[i] {
					t.Fatalf("ran %v, want %v", got, want)
				}
			}
			want = want[:0]
		}
	})
}

func TestInboxListIsWalkedByNext(t *testing.T) {
	var q Inbox
	for i := range 5 {
		q.Push(&newNote(0, i, nil).Node)
	}
	i := 0
	for n := q.TakeAll(); n != nil; n = n.Next() {
		if got := n.Owner.(*note).number; got != i {
			t.Fatalf("note %d at place %d", got, i)
		}
		i++
	}
	if i != 5 || q.TakeAll() != nil {
		t.Fatalf("walked %d notes, want 5 and an empty inbox after", i)
	}
}

func TestInboxTaskMayPostItselfAgain(t *testing.T) {
	var q Inbox
	left := 3
	n := newNote(0, 0, nil)
	n.run = func(n *note) {
		if left--; left > 0 {
			if wake, ok := q.PushOnce(&n.Node); !wake || !ok {
				t.Errorf("PushOnce from the task: wake %v, ok %v", wake, ok)
			}
		}
	}
	q.PushOnce(&n.Node)
	for Run(q.TakeAll()) > 0 {
	}
	if left != 0 {
		t.Fatalf("%d runs left", left)
	}
}

func TestInboxClosedRefusesAndKeepsNothing(t *testing.T) {
	var q Inbox
	runs := 0
	run := func(*note) { runs++ }
	q.Push(&newNote(0, 0, run).Node)
	q.Push(&newNote(0, 1, run).Node)
	if n := Run(q.Close()); n != 2 || runs != 2 {
		t.Fatalf("Close returned %d notes of 2", n)
	}
	late := newNote(0, 2, run)
	for range 2 {
		if wake, ok := q.Push(&late.Node); wake || ok {
			t.Fatalf("Push after Close: wake %v, ok %v", wake, ok)
		}
		if wake, ok := q.PushOnce(&late.Node); wake || ok {
			t.Fatalf("PushOnce after Close: wake %v, ok %v", wake, ok)
		}
	}
	if q.Close() != nil || q.TakeAll() != nil || !q.Empty() || runs != 2 {
		t.Fatal("a closed inbox gave something out")
	}
	// What was refused is still the caller's to post elsewhere.
	var other Inbox
	if wake, ok := other.PushOnce(&late.Node); !wake || !ok || Run(other.TakeAll()) != 1 {
		t.Fatal("a refused node was not free for another inbox")
	}
}

func TestInboxPushOnceMergesPosts(t *testing.T) {
	var q Inbox
	runs := 0
	n := newNote(0, 0, func(*note) { runs++ })
	for i := range 3 {
		wake, ok := q.PushOnce(&n.Node)
		if !ok || wake != (i == 0) {
			t.Fatalf("post %d: wake %v, ok %v", i, wake, ok)
		}
	}
	Run(q.TakeAll())
	if wake, _ := q.PushOnce(&n.Node); !wake {
		t.Fatal("the node could not be posted again after it ran")
	}
	Run(q.TakeAll())
	if runs != 2 {
		t.Fatalf("ran %d times, want 2", runs)
	}
}

// wakeUp wakes the loop; a wake-up that is still pending serves for this one too.
func wakeUp(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// Many producers, one loop that sleeps unless it was woken: every note arrives
// once, each producer's notes in order, and no wake-up is lost (or this test
// never ends).
func TestInboxManyProducersOneLoop(t *testing.T) {
	const producers, each = 8, 5000
	var q Inbox
	wakeups := make(chan struct{}, 1)
	for p := range producers {
		go func() {
			for i := range each {
				wake, ok := q.Push(&newNote(p, i, nil).Node)
				if !ok {
					t.Error("refused by an open inbox")
				}
				if wake {
					wakeUp(wakeups)
				}
			}
		}()
	}
	var next [producers]int
	for got := 0; got < producers*each; {
		<-wakeups
		for n := q.TakeAll(); n != nil; n = n.Next() {
			note := n.Owner.(*note)
			if next[note.from] != note.number {
				t.Fatalf("producer %d: note %d after %d", note.from, note.number, next[note.from]-1)
			}
			next[note.from]++
			got++
		}
	}
}

// A note that Push accepted comes out of TakeAll or of Close; one that it refused
// comes out of neither.
func TestInboxCloseAgainstProducers(t *testing.T) {
	for range 200 {
		const producers = 4
		var q Inbox
		var accepted atomic.Int64
		var wg sync.WaitGroup
		for p := range producers {
			wg.Go(func() {
				for i := range 50 {
					if _, ok := q.Push(&newNote(p, i, func(*note) {}).Node); ok {
						accepted.Add(1)
					}
				}
			})
		}
		got := Run(q.TakeAll())
		got += Run(q.Close())
		wg.Wait()
		if int64(got) != accepted.Load() || q.TakeAll() != nil {
			t.Fatalf("%d accepted, %d came out", accepted.Load(), got)
		}
	}
}

// The way an association is woken: its own inbox carries the work and one node
// of it, posted once, marks it dirty in its loop's inbox. The loop may empty an
// association's inbox at other times too.
func TestInboxDirtyListLosesNothing(t *testing.T) {
	const associations, producers, each = 4, 4, 3000
	var loop Inbox
	wakeups := make(chan struct{}, 1)
	done := 0
	type association struct {
		note
		inbox Inbox
	}
	var all [associations]*association
	for i := range all {
		a := new(association)
		a.Owner = &a.note
		a.run = func(*note) { done += Run(a.inbox.TakeAll()) }
		all[i] = a
	}
	for range producers {
		go func() {
			r := rand.New(rand.NewPCG(1, 2))
			for i := range each {
				a := all[r.IntN(associations)]
				a.inbox.Push(&newNote(0, i, func(*note) {}).Node)
				if wake, _ := loop.PushOnce(&a.Node); wake {
					wakeUp(wakeups)
				}
			}
		}()
	}
	for i := 0; done < producers*each; i++ {
		<-wakeups
		done += Run(all[i%associations].inbox.TakeAll())
		Run(loop.TakeAll())
	}
}

func TestInboxAllocatesNothing(t *testing.T) {
	var q Inbox
	n := newNote(0, 0, func(*note) {})
	m := newNote(0, 1, func(*note) {})
	noAllocs(t, func() {
		q.Push(&n.Node)
		q.PushOnce(&m.Node)
		Run(q.TakeAll())
	})
}
