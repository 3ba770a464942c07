package buf

import (
	"sync"
	"sync/atomic"

	"github.com/trestle-npamp/trestle/internal/invariant"
)

// Shared is octets that several owners read and none changes, held once: the last
// one to let go gives them back. Make it with Share, SharedCopy or SharedRoom.
type Shared struct {
	b      *Buf
	octets []byte // b's, so that a reader needs not look into b as well
	refs   atomic.Int32
}

var shareds = sync.Pool{New: func() any { return new(Shared) }}

// Share makes b, which then belongs to the result, shared by one owner.
func Share(b *Buf) *Shared {
	s := shareds.Get().(*Shared)
	s.b, s.octets = b, b.B
	s.refs.Store(1)
	return s
}

// SharedRoom is shared octets of one owner, none yet, with room for n at least, which
// Extend fills.
func SharedRoom(n int) *Shared { return Share(Get(n)) }

// Room is how many octets Extend can add.
func (s *Shared) Room() int { return cap(s.octets) - len(s.octets) }

// Extend adds n octets, at most Room, behind those that are there, and returns them to
// be written. What Octets has returned stays as it was. Of several owners one at a time
// may call Octets, Len, Room and Extend, until there is no more to be added.
func (s *Shared) Extend(n int) []byte {
	at := len(s.octets)
	s.octets = s.octets[:at+n]
	return s.octets[at:]
}

// SharedCopy shares a copy of octets with one owner.
func SharedCopy(octets []byte) *Shared {
	b := Get(len(octets))
	b.B = append(b.B, octets...)
	return Share(b)
}

// Octets are what is shared. The caller must be an owner, and must not change them.
func (s *Shared) Octets() []byte {
	if s == nil {
		return nil
	}
	return s.octets
}

// Len is the number of octets; 0 of nil.
func (s *Shared) Len() int {
	if s == nil {
		return 0
	}
	return len(s.octets)
}

// Retain makes one more owner. The caller must be one. Any goroutine may call it.
func (s *Shared) Retain() *Shared {
	if s != nil {
		n := s.refs.Add(1)
		invariant.Check(n > 1, "buf: shared octets retained after their release")
	}
	return s
}

// Release ends one ownership. Any goroutine may call it. Releasing nil does nothing.
func (s *Shared) Release() {
	if s == nil {
		return
	}
	n := s.refs.Add(-1)
	invariant.Check(n >= 0, "buf: shared octets released twice")
	if n != 0 {
		return
	}
	s.b.Release()
	s.b, s.octets = nil, nil
	shareds.Put(s)
}
