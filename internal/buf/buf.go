// Package buf holds the octet buffers that pass from owner to owner: pooled by
// size class, so that steady traffic allocates nothing and a burst is given
// back, and counted against budgets, so that memory has a bound.
package buf

import (
	"sync"

	"github.com/trestle-npamp/trestle/internal/invariant"
)

// The size classes, in octets. Each is four times the one before it: a request
// just over a class wastes at most three quarters of its buffer.
const (
	MinClass = 256
	MaxClass = 1 << 20

	classes  = 7
	unpooled = -1
)

// Buf is a buffer with exactly one owner at a time, who may reslice B and
// append to it. Handing a Buf on hands on the duty to Release it. The zero
// value is an empty buffer that no pool takes back.
type Buf struct {
	// B is the octets in use. An append beyond its capacity moves it to memory
	// of its own as usual; Release then returns the original memory.
	B []byte

	base     []byte // the memory that Get attached, whole
	class    int8
	released bool
}

var pools [classes]sync.Pool

// small is a Buf of the smallest class with its memory: many of those are made at a
// time, when a queue of small frames fills for the first time.
type small struct {
	Buf
	memory [MinClass]byte
}

// classOf returns the index of the smallest class that holds n octets, or
// unpooled.
func classOf(n int) int {
	size := MinClass
	for c := range classes {
		if n <= size {
			return c
		}
		size <<= 2
	}
	return unpooled
}

// Get returns a buffer with len(B) == 0 and cap(B) >= capacity. Up to MaxClass
// octets it comes from a pool; above that it is made for the caller and left to
// the garbage collector afterwards. What B holds beyond its length is
// unspecified.
func Get(capacity int) *Buf {
	c := classOf(capacity)
	if c == unpooled {
		base := make([]byte, capacity)
		return &Buf{B: base[:0], base: base, class: unpooled}
	}
	if b, _ := pools[c].Get().(*Buf); b != nil {
		b.released = false
		b.B = b.base[:0]
		return b
	}
	if c == 0 {
		s := new(small)
		s.base = s.memory[:]
		s.B = s.base[:0]
		return &s.Buf
	}
	base := make([]byte, MinClass<<(2*c))
	return &Buf{B: base[:0], base: base, class: int8(c)}
}

// Release gives the buffer back; the caller must not touch it, nor any slice of
// it, afterwards. In builds with the tag "invariants" its memory is poisoned and
// a second Release panics. Releasing a nil Buf does nothing.
func (b *Buf) Release() {
	if b == nil {
		return
	}
	invariant.Check(!b.released, "buf: released twice")
	b.released = true
	invariant.Poison(b.base)
	b.B = nil // whatever an append moved it to must not be kept alive
	if b.base == nil || b.class == unpooled {
		b.base = nil
		return
	}
	pools[b.class].Put(b)
}

// Cap returns the size in octets that the buffer is accounted with: that of the
// memory it came with, whatever B was resliced to.
func (b *Buf) Cap() int {
	if b == nil {
		return 0
	}
	return len(b.base)
}

// SizeOf returns what Cap will be of a Buf that Get makes for the given
// capacity, so that a budget can be asked before the memory is touched.
func SizeOf(capacity int) int {
	c := classOf(capacity)
	if c == unpooled {
		return capacity
	}
	return MinClass << (2 * c)
}
