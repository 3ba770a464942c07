package sched

import (
	"sync/atomic"

	"github.com/trestle-npamp/trestle/internal/invariant"
)

// Task is work for the loop that owns an Inbox. RunTask is called on that loop.
type Task interface{ RunTask() }

// Node links a Task into an Inbox. It is meant to be embedded in the (pooled)
// object that is the task: set Owner once, when the object is made, and posting
// it allocates nothing. A Node is in at most one inbox at a time. The zero value
// with Owner set is ready; a Node must not be copied.
type Node struct {
	// Owner is what runs when the node comes out of the inbox.
	Owner Task

	next   *Node
	posted atomic.Bool // only for PushOnce
}

// Next returns the node behind n in a list that TakeAll or Close returned, nil
// at its end. It must be read before n's owner runs, since the owner may post n
// again. Run does so; lists with nodes of PushOnce in them are for Run alone.
func (n *Node) Next() *Node { return n.next }

// Inbox is a queue that any goroutine posts to and one loop empties: an
// intrusive list, unbounded, without locks or allocations. What is posted is
// taken in the order in which the posts took effect, so one goroutine's posts
// keep their order. The zero value is an empty, open inbox; it must not be
// copied.
type Inbox struct {
	head atomic.Pointer[Node] // newest first
}

// closedInbox stands in an inbox's head once it is closed.
var closedInbox Node

// Push posts n; any goroutine may call it. ok is false when the inbox is closed:
// n was not posted and still belongs to the caller. wake is true when the inbox
// was empty: whoever sees it owes the loop a wake-up, everyone else relies on
// that one.
//
// All that the caller wrote before is visible to the task that runs. n must not
// be in an inbox already (see PushOnce).
func (q *Inbox) Push(n *Node) (wake, ok bool) {
	invariant.Check(n.Owner != nil, "sched: posted a node without owner")
	for {
		head := q.head.Load()
		if head == &closedInbox {
			return false, false
		}
		n.next = head
		if q.head.CompareAndSwap(head, n) {
			return head == nil, true
		}
	}
}

// PushOnce is Push for a node that may be posted already, by this or another
// goroutine: then it does nothing and returns false, true. It serves a node that
// stands for a state ("this association has work") and not for one message.
//
// A node posted so may be posted again from the moment Run has unlinked it,
// before its owner runs. What the owner shall find must therefore be published
// before the call, by something that is atomic itself such as another Inbox: a
// post that was merged with an earlier one publishes nothing.
func (q *Inbox) PushOnce(n *Node) (wake, ok bool) {
	if !n.posted.CompareAndSwap(false, true) {
		return false, true
	}
	wake, ok = q.Push(n)
	if !ok {
		n.posted.Store(false)
	}
	return wake, ok
}

// TakeAll empties the inbox and returns what was in it, oldest first, linked by
// Next; nil when it was empty or is closed. Only the loop may call it. A Push
// after it sees an empty inbox and asks for a wake-up, so take first, then work:
// no wake-up is lost.
func (q *Inbox) TakeAll() *Node {
	if q.Empty() {
		return nil
	}
	// Between the two steps others can only add: closing is the loop's as well.
	return oldestFirst(q.head.Swap(nil))
}

// Close makes every further Push fail and returns what was in the inbox, as
// TakeAll does. Only the loop may call it; closing twice returns nil.
func (q *Inbox) Close() *Node {
	head := q.head.Swap(&closedInbox)
	if head == &closedInbox {
		return nil
	}
	return oldestFirst(head)
}

// Empty reports whether there is nothing to take. Any goroutine may call it; the
// answer may be old when it arrives.
func (q *Inbox) Empty() bool {
	head := q.head.Load()
	return head == nil || head == &closedInbox
}

func oldestFirst(n *Node) *Node {
	var first *Node
	for n != nil {
		next := n.next
		n.next = first
		first = n
		n = next
	}
	return first
}

// Take unlinks the first node of a list that TakeAll or Close returned, so that
// its owner may be run, and returns the rest: Run in single steps, for a loop that
// must go on behind an owner that panics.
func (n *Node) Take() (rest *Node) {
	rest = n.next
	n.next = nil
	if n.posted.Load() { // seldom, and a store is a locked instruction
		n.posted.Store(false)
	}
	return rest
}

// Run runs the owners of a list that TakeAll or Close returned, in its order,
// and returns their number. Each node is unlinked before its owner runs, so the
// owner may post it again or give it back to a pool. An owner must not panic:
// those behind it would be lost.
func Run(list *Node) int {
	done := 0
	for n := list; n != nil; done++ {
		rest := n.Take()
		n.Owner.RunTask()
		n = rest
	}
	return done
}
