package sched

import (
	"hash/maphash"
	"sync"
)

// shortKey is the size in octets of the keys that are kept in an entry itself: a
// quoted UUID with a separator and a token fits. Longer ones take a block from a
// pool that all tables share.
const shortKey = 47

type longKey [MaxCorrLen]byte

var longKeys = sync.Pool{New: func() any { return new(longKey) }}

// Table maps the correlation ids that a peer allocated to what they stand for.
// It is bounded, owns its keys, and allocates nothing once it has grown to what
// its use needs; its hash is seeded, so that a peer cannot choose ids that
// collide. It belongs to the loop. The zero value has a limit of 0; NewTable
// makes usable ones. A Table must not be copied.
type Table[T any] struct {
	seed    maphash.Seed
	limit   int
	n       int
	index   []uint32 // open addressing: an entry's number plus one, 0 for none
	entries []entry[T]
	free    uint32 // the first of the free entries, its number plus one
}

type entry[T any] struct {
	value T
	long  *longKey
	hash  uint32
	next  uint32 // in the list of free entries
	size  uint8  // of the key; 0 when the entry is free
	short [shortKey]byte
}

func (e *entry[T]) key() []byte {
	if e.long != nil {
		return e.long[:e.size:e.size]
	}
	return e.short[:e.size:e.size]
}

// NewTable returns a table for at most limit entries; it takes no memory before
// the first.
func NewTable[T any](limit int) *Table[T] {
	t := new(Table[T])
	t.Init(limit)
	return t
}

// Init does what NewTable does for a Table that is part of another object.
func (t *Table[T]) Init(limit int) {
	*t = Table[T]{seed: maphash.MakeSeed(), limit: min(limit, 1<<30)}
}

// Len returns the number of entries.
func (t *Table[T]) Len() int { return t.n }

// Limit returns the greatest number of entries.
func (t *Table[T]) Limit() int { return t.limit }

// Full reports whether there is no room for another entry.
func (t *Table[T]) Full() bool { return t.n >= t.limit }

// Insert adds an entry under a copy of corr and reports whether it did: not if
// corr is there already, if the table is full, or if corr is empty or longer
// than MaxCorrLen.
func (t *Table[T]) Insert(corr []byte, v T) bool {
	if t.Full() || len(corr) == 0 || len(corr) > MaxCorrLen {
		return false
	}
	if (t.n+1)*4 > len(t.index)*3 {
		t.rehash(max(8, 2*len(t.index)))
	}
	hash := t.hash(corr)
	at, found := t.find(hash, corr)
	if found {
		return false
	}
	number := t.free
	if number != 0 {
		t.free = t.entries[number-1].next
	} else {
		t.entries = append(t.entries, entry[T]{})
		number = uint32(len(t.entries))
	}
	e := &t.entries[number-1]
	e.value, e.hash, e.size = v, hash, uint8(len(corr))
	if len(corr) > shortKey {
		e.long = longKeys.Get().(*longKey)
		copy(e.long[:], corr)
	} else {
		copy(e.short[:], corr)
	}
	t.index[at] = number
	t.n++
	return true
}

// Get returns what is kept under corr.
func (t *Table[T]) Get(corr []byte) (v T, ok bool) {
	if t.n == 0 {
		return v, false
	}
	at, found := t.find(t.hash(corr), corr)
	if !found {
		return v, false
	}
	return t.entries[t.index[at]-1].value, true
}

// Delete removes what is kept under corr and returns it.
func (t *Table[T]) Delete(corr []byte) (v T, ok bool) {
	if t.n == 0 {
		return v, false
	}
	at, found := t.find(t.hash(corr), corr)
	if !found {
		return v, false
	}
	number := t.index[at]
	e := &t.entries[number-1]
	v = e.value
	if e.long != nil {
		longKeys.Put(e.long)
		e.long = nil
	}
	var zero T
	e.value, e.size = zero, 0
	e.next, t.free = t.free, number
	t.n--
	t.vacate(uint32(at))
	return v, true
}

// Range calls yield for each entry, in no particular order, until it returns
// false; it has the form of an iterator. yield may delete any entries, and add
// some, which may be met or not. corr is the table's own: it must not be changed,
// nor used after its entry is deleted.
func (t *Table[T]) Range(yield func(corr []byte, v T) bool) {
	for i := 0; i < len(t.entries); i++ {
		e := &t.entries[i]
		if e.size != 0 && !yield(e.key(), e.value) {
			return
		}
	}
}

// Trim gives back the memory of an empty table; one with entries it leaves as it
// is. It is for the moment when an association falls idle.
func (t *Table[T]) Trim() {
	if t.n == 0 {
		t.index, t.entries, t.free = nil, nil, 0
	}
}

func (t *Table[T]) hash(corr []byte) uint32 { return uint32(maphash.Bytes(t.seed, corr)) }

// find returns the place of corr in the index, or the free place for it. The
// index is never full.
func (t *Table[T]) find(hash uint32, corr []byte) (at int, found bool) {
	mask := uint32(len(t.index) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		number := t.index[i]
		if number == 0 {
			return int(i), false
		}
		e := &t.entries[number-1]
		if e.hash == hash && string(e.key()) == string(corr) {
			return int(i), true
		}
	}
}

// vacate empties a place in the index and closes the gap that it leaves in the
// runs of those behind it.
func (t *Table[T]) vacate(hole uint32) {
	mask := uint32(len(t.index) - 1)
	for i := (hole + 1) & mask; t.index[i] != 0; i = (i + 1) & mask {
		home := t.entries[t.index[i]-1].hash & mask
		if (i-home)&mask >= (i-hole)&mask {
			t.index[hole] = t.index[i]
			hole = i
		}
	}
	t.index[hole] = 0
}

func (t *Table[T]) rehash(size int) {
	t.index = make([]uint32, size)
	mask := uint32(size - 1)
	for n := range t.entries {
		e := &t.entries[n]
		if e.size == 0 {
			continue
		}
		i := e.hash & mask
		for t.index[i] != 0 {
			i = (i + 1) & mask
		}
		t.index[i] = uint32(n + 1)
	}
}
