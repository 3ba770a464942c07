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

// What is added lies behind what was there, which stays where it is.
func TestSharedExtend(t *testing.T) {
	s := SharedRoom(200)
	if s.Len() != 0 || s.Room() < 200 {
		t.Fatalf("%d octets, room for %d", s.Len(), s.Room())
	}
	room := s.Room()
	copy(s.Extend(3), "one")
	first := s.Octets()
	copy(s.Extend(3), "two")
	if string(first) != "one" || string(s.Octets()) != "onetwo" || &first[0] != &s.Octets()[0] || s.Room() != room-6 {
		t.Errorf("%q, then %q, room for %d of %d", first, s.Octets(), s.Room(), room)
	}
	if len(s.Extend(s.Room())) != room-6 || s.Room() != 0 {
		t.Errorf("room for %d is left", s.Room())
	}
	s.Release()
}

// Owners read what they were given while more is added.
func TestSharedExtendBesideReaders(t *testing.T) {
	s := SharedRoom(1000)
	defer s.Release()
	var readers sync.WaitGroup
	for i := range 100 {
		s.Extend(1)[0] = byte(i)
		octets := s.Retain().Octets()
		readers.Go(func() {
			defer s.Release()
			for k, b := range octets {
				if b != byte(k) {
					t.Errorf("octet %d is %d", k, b)
				}
			}
		})
	}
	readers.Wait()
}
