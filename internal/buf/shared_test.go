package buf

import (
	"sync"
	"testing"
)

func TestSharedLivesUntilTheLastOwnerLetsGo(t *testing.T) {
	s := SharedCopy([]byte("event"))
	s.Retain()
	s.Release()
	if string(s.Octets()) != "event" || s.Len() != 5 {
		t.Fatalf("%q after one of two owners left", s.Octets())
	}
	b := s.b
	s.Release()
	if b.B != nil {
		t.Error("the buffer was not given back")
	}
}

func TestSharedNilIsEmpty(t *testing.T) {
	var s *Shared
	if s.Retain() != nil || s.Len() != 0 || s.Octets() != nil {
		t.Error("nil is not empty")
	}
	s.Release()
}

func TestSharedByManyGoroutines(t *testing.T) {
	s := SharedCopy([]byte("event"))
	var wg sync.WaitGroup
	for range 8 {
		s.Retain()
		wg.Go(func() {
			for range 1000 {
				s.Retain()
				if string(s.Octets()) != "event" {
					t.Error("changed")
				}
				s.Release()
			}
			s.Release()
		})
	}
	s.Release()
	wg.Wait()
}

func TestSharedAllocatesNothing(t *testing.T) {
	octets := make([]byte, 1000)
	if n := testing.AllocsPerRun(1000, func() { SharedCopy(octets).Release() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
