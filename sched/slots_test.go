package sched

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// naiveSlots is what Slots does, said with maps.
type naiveSlots struct {
	limit    int
	reserved map[*Slot[int]]Token
	live     map[Token]*Slot[int]
	ever     map[Token]bool
}

func TestSlotsAgainstMaps(t *testing.T) {
	script(t, 60, func(t *testing.T, r *rand.Rand) {
		limit := r.IntN(200)
		role := uint8(r.IntN(2))
		s := NewSlots[int](limit, r.Uint64(), role)
		m := naiveSlots{limit, map[*Slot[int]]Token{}, map[Token]*Slot[int]{}, map[Token]bool{}}
		value := map[Token]int{}
		for step := range 5000 {
			switch op := r.IntN(10); {
			case op < 4:
				slot, ok := s.Reserve()
				if ok != (len(m.reserved)+len(m.live) < limit) {
					t.Fatalf("step %d: Reserve is %v with %d reserved and %d live of %d", step, ok, len(m.reserved), len(m.live), limit)
				}
				if !ok {
					break
				}
				tok := slot.Token()
				if m.ever[tok] || tok.Role() != role || slot.Value != 0 {
					t.Fatalf("step %d: token %#x again, or value %d left", step, tok, slot.Value)
				}
				if _, again := m.reserved[slot]; again {
					t.Fatalf("step %d: slot of %#x reserved twice", step, tok)
				}
				m.ever[tok] = true
				m.reserved[slot] = tok
				if s.Resolve(tok) != nil {
					t.Fatalf("step %d: %#x resolves before it is published", step, tok)
				}
			case op < 6:
				for slot, tok := range m.reserved {
					slot.Value = 1 + r.IntN(1<<30)
					value[tok] = slot.Value
					slot.Publish()
					delete(m.reserved, slot)
					m.live[tok] = slot
					break
				}
			case op < 7:
				for slot := range m.reserved {
					s.Release(slot)
					delete(m.reserved, slot)
					break
				}
			case op < 9:
				for tok, slot := range m.live {
					s.Release(slot)
					delete(m.live, tok)
					if s.Resolve(tok) != nil {
						t.Fatalf("step %d: %#x resolves after its release", step, tok)
					}
					break
				}
			default:
				for tok, slot := range m.live {
					if got := s.Resolve(tok); got != slot || got.Value != value[tok] {
						t.Fatalf("step %d: %#x does not resolve to its slot", step, tok)
					}
				}
				for tok := range m.ever {
					if m.live[tok] == nil && s.Resolve(tok) != nil {
						t.Fatalf("step %d: stale token %#x resolves", step, tok)
					}
				}
				for range 20 {
					if tok := Token(r.Uint64()); m.live[tok] == nil && s.Resolve(tok) != nil {
						t.Fatalf("step %d: token %#x, which nobody gave out, resolves", step, tok)
					}
				}
			}
			if s.inUse() != len(m.reserved)+len(m.live) {
				t.Fatalf("step %d: InUse %d, want %d", step, s.inUse(), len(m.reserved)+len(m.live))
			}
		}
	})
}

func TestSlotsResolveRefusesForeignTokens(t *testing.T) {
	s := NewSlots[int](4, 0x1234, 0)
	slot, _ := s.Reserve()
	tok := slot.Token()
	slot.Publish()
	for name, other := range map[string]Token{
		"other role":        tok ^ 1<<roleShift,
		"other nonce":       tok ^ 1<<nonceShift,
		"next generation":   tok + 1<<generationShift,
		"last generation":   tok - 1<<generationShift,
		"free slot":         tok + 1,
		"slot not yet made": tok | firstChunk,
		"last slot":         tok | slotMask,
	} {
		if s.Resolve(other) != nil {
			t.Errorf("%s: %#x resolves", name, other)
		}
	}
	if s.Resolve(tok) != slot {
		t.Error("its own token does not resolve")
	}
	var empty Slots[int]
	if _, ok := empty.Reserve(); ok || empty.Resolve(tok) != nil {
		t.Error("the zero value gave a slot out")
	}
	if other := NewSlots[int](4, 0x1235, 0); other.Resolve(tok) != nil {
		t.Error("resolves in the table of another association")
	}
}

func TestSlotsLimitIsClamped(t *testing.T) {
	for limit, want := range map[int]int{-1: 0, 0: 0, 1: 1, MaxSlots: MaxSlots, MaxSlots + 1: MaxSlots} {
		if got := NewSlots[int](limit, 0, 0).Limit(); got != want {
			t.Errorf("limit %d became %d", limit, got)
		}
	}
}

func TestSlotsNeverMove(t *testing.T) {
	s := NewSlots[[4]int](3000, 9, 1)
	var all []*Slot[[4]int]
	for {
		slot, ok := s.Reserve()
		if !ok {
			break
		}
		slot.Value[0] = len(all)
		slot.Publish()
		all = append(all, slot)
	}
	if len(all) != 3000 || s.inUse() != 3000 {
		t.Fatalf("reserved %d, in use %d", len(all), s.inUse())
	}
	for i, slot := range all {
		if s.Resolve(slot.Token()) != slot || slot.Value[0] != i {
			t.Fatalf("slot %d has moved", i)
		}
	}
}

func TestSlotsReleaseDropsPointers(t *testing.T) {
	s := NewSlots[*int](1, 0, 0)
	slot, _ := s.Reserve()
	slot.Value = new(int)
	s.Release(slot)
	if slot.Value != nil {
		t.Fatal("a free slot keeps its value alive")
	}
}

// No token comes twice: when a slot has been through all generations it is
// retired, and a fresh one takes its place within the limit.
func TestSlotsRetireASlotThatIsUsedUp(t *testing.T) {
	s := NewSlots[int](2, 0xABCDEF, 0)
	kept, _ := s.Reserve()
	kept.Publish()
	slot, _ := s.Reserve()
	first := slot.Token()
	// Its last generation, in place of 2^28 reservations.
	slot.token = first&^(generationMask<<generationShift) |
		Token((first.generation()-1)&generationMask)<<generationShift
	last := slot.Token()
	slot.Publish()
	if s.Resolve(last) != slot {
		t.Fatal("the last generation does not resolve")
	}
	s.Release(slot)
	if s.inUse() != 1 {
		t.Fatalf("%d in use, want 1", s.inUse())
	}
	fresh, ok := s.Reserve()
	if !ok || fresh == slot || fresh.Token().slot() == first.slot() {
		t.Fatal("no fresh slot in place of the one used up")
	}
	if _, ok := s.Reserve(); ok {
		t.Fatal("more slots than the limit")
	}
	if s.Resolve(first) != nil || s.Resolve(last) != nil || s.Resolve(kept.Token()) != kept {
		t.Fatal("tokens of the retired slot, or of its neighbour")
	}
}

func TestSlotsGenerationWrapsThroughZero(t *testing.T) {
	s := NewSlots[int](1, generationMask<<nonceBits, 0) // first generation 2^28-1
	slot, _ := s.Reserve()
	first := slot.Token()
	s.Release(slot)
	slot, ok := s.Reserve()
	if !ok || slot.Token() != first&^(generationMask<<generationShift) {
		t.Fatalf("token %#x after %#x", slot.Token(), first)
	}
}

func TestSlotsTableUsedUpReservesNoMore(t *testing.T) {
	s := NewSlots[struct{}](MaxSlots, 0, 0)
	var last *Slot[struct{}]
	for {
		slot, ok := s.Reserve()
		if !ok {
			break
		}
		last = slot
	}
	if s.inUse() != MaxSlots {
		t.Fatalf("%d in use, want %d", s.inUse(), MaxSlots)
	}
	last.token |= generationMask << generationShift // its last generation
	s.Release(last)
	if slot, ok := s.Reserve(); ok || s.inUse() != MaxSlots-1 {
		t.Fatalf("gave out %#x from a table that is used up", slot.Token())
	}
}

// Goroutines reserve, fill, and either give up or hand over to the loop, which
// publishes, resolves and releases, while it also resolves what a peer might
// guess. Run with -race.
func TestSlotsManyReserversOneLoop(t *testing.T) {
	const reservers, each, limit = 8, 4000, 64
	s := NewSlots[int64](limit, rand.Uint64(), 0)
	handed := make(chan *Slot[int64], limit)
	var inUse, refused atomic.Int64
	var wg sync.WaitGroup
	for p := range reservers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(p), 3))
			for i := range each {
				slot, ok := s.Reserve()
				if !ok {
					refused.Add(1)
					continue
				}
				if n := inUse.Add(1); n > limit {
					t.Errorf("%d slots in use, limit %d", n, limit)
				}
				if slot.Value != 0 {
					t.Errorf("reserved a slot in use, value %d", slot.Value)
				}
				slot.Value = int64(p*each + i + 1)
				if r.IntN(4) == 0 {
					inUse.Add(-1)
					s.Release(slot)
					continue
				}
				handed <- slot
			}
		})
	}
	go func() { wg.Wait(); close(handed) }()

	r := rand.New(rand.NewPCG(4, 4))
	seen := map[Token]bool{}
	var live []*Slot[int64]
	end := func(i int) {
		slot := live[i]
		live[i] = live[len(live)-1]
		live = live[:len(live)-1]
		tok, value := slot.Token(), slot.Value
		if s.Resolve(tok) != slot || value == 0 {
			t.Fatalf("%#x does not resolve to its slot, value %d", tok, value)
		}
		inUse.Add(-1)
		s.Release(slot)
		if s.Resolve(tok) != nil {
			t.Fatalf("%#x resolves after its release", tok)
		}
		// The one that a peer would guess next: reserved perhaps, published never.
		if got := s.Resolve(tok + 1<<generationShift); got != nil {
			t.Fatalf("%#x resolves to a slot that was not published", got.Token())
		}
	}
	for slot := range handed {
		if tok := slot.Token(); seen[tok] || s.Resolve(tok) != nil {
			t.Fatalf("token %#x twice, or resolved before it was published", tok)
		} else {
			seen[tok] = true
		}
		slot.Publish()
		live = append(live, slot)
		for len(live) > 0 && r.IntN(3) > 0 {
			end(r.IntN(len(live)))
		}
		if len(handed) == 0 {
			for len(live) > 0 {
				end(0)
			}
		}
	}
	for len(live) > 0 {
		end(0)
	}
	if s.inUse() != 0 {
		t.Fatalf("%d in use at the end", s.inUse())
	}
	t.Logf("%d handed over, %d refused", len(seen), refused.Load())
}

// Reservers alone, racing for the same few slots: the free list never gives one
// slot to two of them, nor loses one.
func TestSlotsFreeListUnderContention(t *testing.T) {
	const limit = 5
	s := NewSlots[atomic.Int32](limit, 1, 1)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20000 {
				slot, ok := s.Reserve()
				if !ok {
					continue
				}
				if slot.Value.Add(1) != 1 {
					t.Error("one slot, two owners")
				}
				slot.Value.Add(-1)
				s.Release(slot)
			}
		})
	}
	wg.Wait()
	for i := range limit {
		if _, ok := s.Reserve(); !ok {
			t.Fatalf("only %d of %d slots are left", i, limit)
		}
	}
	if _, ok := s.Reserve(); ok {
		t.Fatal("more slots than the limit")
	}
}

func TestSlotsAllocateNothing(t *testing.T) {
	s := NewSlots[*int](64, 1, 0)
	v := new(int)
	noAllocs(t, func() {
		slot, _ := s.Reserve()
		slot.Value = v
		slot.Publish()
		s.Release(s.Resolve(slot.Token()))
	})
}

// inUse counts the slots that are neither free nor retired, while nobody else uses
// the table.
func (s *Slots[T]) inUse() int {
	n := int(s.made.Load() - s.retired.Load())
	for i := uint32(s.free.Load() & freeMask); i != 0; i = s.at(i - 1).next.Load() {
		n--
	}
	return n
}
