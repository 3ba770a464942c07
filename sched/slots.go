package sched

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/trestle-npamp/trestle/internal/invariant"
)

// MaxSlots is the greatest limit of a Slots.
const MaxSlots = 1 << slotBits

// Chunk 0 has firstChunk slots and each further one as many as all before it, so
// that a slot's number says where it is and chunks never move.
const (
	firstChunkBits = 4
	firstChunk     = 1 << firstChunkBits
	chunks         = slotBits - firstChunkBits + 1
)

// Slot is one exchange of a Slots: a token and what belongs to it. Its life:
//
//	free --Reserve--> reserved --Publish--> live --Release--> free
//	                      '--------Release-------------------->'
//
// A reserved slot belongs to the goroutine that reserved it, and to whomever it
// hands it on; a live one belongs to the loop.
type Slot[T any] struct {
	// Value is the owner's. Release sets it to its zero value.
	Value T

	token Token // the one of its present life; changes only in Release
	// next says slotLive, or else where the free list goes on: a slot's number plus
	// one, 0 at its end; in a reserved slot it is stale. One word, because an atomic
	// store is a locked instruction and each life has two of them so.
	next atomic.Uint32
}

const (
	slotLive     = 1<<32 - 1 - iota
	slotReserved // told from free only under the tag "invariants"
)

// Token returns the token of the slot's present life.
func (s *Slot[T]) Token() Token { return s.token }

// Publish makes the token resolve. Value must be set before; from then on the
// slot belongs to the loop, which best publishes it itself, just before it sends
// the first frame that carries the token. That a slot resolves only once it is
// published keeps a peer that guesses tokens away from slots which another
// goroutine is still filling, and from answering what was never asked.
func (s *Slot[T]) Publish() {
	if invariant.Enabled {
		invariant.Check(s.next.Load() == slotReserved, "sched: published a slot that is not reserved")
	}
	s.next.Store(slotLive)
}

// Slots is the table of the exchanges that one side of an association
// originates: it gives out tokens and finds by token what was put there (D10).
// Any goroutine reserves, with one compare-and-swap in the common case; the loop
// resolves, without a lock, a map or a wait.
//
// It starts without memory and grows by chunks up to its limit; a slot never
// moves. Memory is kept until the table itself goes, so large state belongs
// behind a pointer in T. The zero value has a limit of 0; NewSlots makes usable
// ones. A Slots must not be copied.
//
// No token is given out twice: a slot has 2^28 generations and is then retired
// in favour of a fresh one, and only after some 2^48 exchanges, less what the
// slots in use have left, is the table used up and reserves no more.
type Slots[T any] struct {
	// free is the list of free slots, a stack: the number of pops so far in the
	// upper 43 bits, the first slot's number plus one in the lower 21. That pops
	// are counted is what makes the list safe against a slot that was popped and
	// pushed again while another goroutine was looking at it.
	free atomic.Uint64

	// What follows changes seldom and is read by each Resolve: it must not share
	// a cache line with what changes all the time.
	_ [64]byte

	made    atomic.Uint32 // slots in circulation; all chunks below are there
	retired atomic.Uint32
	limit   uint32
	base    Token // role, nonce and first generation
	grow    sync.Mutex
	dir     [chunks]*chunk[T] // written under grow, before made covers it
}

type chunk[T any] struct{ slots []Slot[T] }

const (
	freeBits = slotBits + 1
	freeMask = 1<<freeBits - 1
	freePop  = 1 << freeBits
)

// NewSlots returns a table for at most limit exchanges at a time (at most
// MaxSlots, fewer are taken as they are and a negative limit as 0). nonce is the
// association's, random: its bits go into every token, some of them by way of
// the first generation, so that two associations hardly share a token. role is
// that of the side which originates, 0 or 1; only its lowest bit counts.
func NewSlots[T any](limit int, nonce uint64, role uint8) *Slots[T] {
	s := new(Slots[T])
	s.Init(limit, nonce, role)
	return s
}

// Init does what NewSlots does for a Slots that is part of another object. It
// must not be called once the table is in use.
func (s *Slots[T]) Init(limit int, nonce uint64, role uint8) {
	s.limit = uint32(min(max(limit, 0), MaxSlots))
	s.base = Token(role&1)<<roleShift |
		Token(nonce&nonceMask)<<nonceShift |
		Token(nonce>>nonceBits&generationMask)<<generationShift
}

// Limit returns the greatest number of slots in use at a time.
func (s *Slots[T]) Limit() int { return int(s.limit) }

// at returns the slot with this number, which must be below made.
func (s *Slots[T]) at(i uint32) *Slot[T] {
	c := bits.Len32(i >> firstChunkBits)
	if c > 0 {
		i -= firstChunk << (c - 1)
	}
	return &s.dir[c].slots[i]
}

// Reserve takes a free slot, whose token does not resolve before Publish. ok is
// false when the limit is reached. Any goroutine may call it.
func (s *Slots[T]) Reserve() (slot *Slot[T], ok bool) {
	for {
		head := s.free.Load()
		first := uint32(head & freeMask)
		if first == 0 {
			if !s.refill() {
				return nil, false
			}
			continue
		}
		slot = s.at(first - 1)
		// next may be stale when another goroutine was faster; then the pops
		// differ and the swap fails.
		next := uint64(slot.next.Load())
		if s.free.CompareAndSwap(head, head&^freeMask+freePop|next) {
			if invariant.Enabled {
				invariant.Check(next < slotReserved, "sched: reserved a slot in use")
				slot.next.Store(slotReserved)
			}
			return slot, true
		}
	}
}

// Resolve returns the live slot of this token, nil if there is none: it was
// released, is another association's or the other side's, or nobody ever gave it
// out. Only the loop may call it.
func (s *Slots[T]) Resolve(t Token) *Slot[T] {
	i := t.slot()
	if i >= s.made.Load() {
		return nil
	}
	slot := s.at(i)
	// The order matters: the token of a slot that is not live may be changing.
	if slot.next.Load() != slotLive || slot.token != t {
		return nil
	}
	return slot
}

// Release ends a slot's life, clears its Value and makes it available under
// another token. A live slot only the loop may release; a reserved one whoever
// owns it. Each life is released exactly once; a second release corrupts the
// table (and panics under the tag "invariants").
func (s *Slots[T]) Release(slot *Slot[T]) {
	if invariant.Enabled {
		invariant.Check(slot.next.Load() >= slotReserved, "sched: released a free slot")
	}
	var zero T
	slot.Value = zero
	i := slot.token.slot()
	// Generations run from the association's first one all the way round to it.
	generation := Token(slot.token.generation()+1) & generationMask
	slot.token = slot.token&^(generationMask<<generationShift) | generation<<generationShift
	if slot.token == s.base|Token(i) {
		slot.next.Store(0)
		s.retired.Add(1)
	} else {
		s.push(i+1, &slot.next)
	}
}

// push makes a chain of free slots available: from the one numbered first-1 to
// the one that has tail.
func (s *Slots[T]) push(first uint32, tail *atomic.Uint32) {
	for {
		head := s.free.Load()
		tail.Store(uint32(head & freeMask))
		if s.free.CompareAndSwap(head, head&^freeMask|uint64(first)) {
			return
		}
	}
}

// refill brings more slots into circulation and reports whether there may be a
// free one now.
func (s *Slots[T]) refill() bool {
	s.grow.Lock()
	defer s.grow.Unlock()
	if s.free.Load()&freeMask != 0 {
		return true // somebody was faster
	}
	made := s.made.Load()
	room := min(s.limit+s.retired.Load(), MaxSlots) - made
	if room == 0 {
		return false
	}
	c := bits.Len32(made >> firstChunkBits)
	size, start := uint32(firstChunk), uint32(0)
	if c > 0 {
		size = firstChunk << (c - 1)
		start = size
	}
	if s.dir[c] == nil {
		s.dir[c] = &chunk[T]{slots: make([]Slot[T], size)}
	}
	n := min(start+size-made, room)
	for i := made; i < made+n; i++ {
		slot := &s.dir[c].slots[i-start]
		slot.token = s.base | Token(i)
		slot.next.Store(i + 2) // the next slot's number plus one
	}
	s.made.Store(made + n)
	s.push(made+1, &s.dir[c].slots[made+n-1-start].next)
	return true
}
