package sched

import (
	"math"
	"math/bits"
	"time"

	"github.com/trestle-npamp/trestle/internal/invariant"
)

// Expirer is called when a timer of its expires, on the loop that advances the
// wheel, with the time that Advance was given. It may start and stop any timer
// of the wheel, the expired one included, but must not call Advance.
type Expirer interface{ HandleExpire(now time.Duration) }

// Timer is one deadline. It is meant to be embedded in what it is for: set Owner
// once; starting and stopping it then allocates nothing. The zero value with
// Owner set is a stopped timer. While it runs it must not be copied or freed,
// and belongs to one wheel.
type Timer struct {
	// Owner is called when the timer expires.
	Owner Expirer

	next, prev *Timer // a ring of the timers of one slot
	tick       uint64
	place      uint16 // level and slot plus one; 0 when stopped
}

// Active reports whether the timer runs.
func (t *Timer) Active() bool { return t.place != 0 }

const (
	wheelBits   = 6
	wheelSlots  = 1 << wheelBits
	wheelLevels = (64 + wheelBits - 1) / wheelBits
)

// Wheel is a hierarchy of hashed timing wheels for one loop. It has no clock:
// time is what Advance is told, as a duration since any fixed moment. Starting
// and stopping a timer takes constant time, whatever its delay; advancing costs
// by the timers that are passed and not by the time.
//
// A timer expires never early and at most one tick late, counted from its
// deadline, plus what the caller is late with Advance. Timers of the same tick
// expire in no particular order.
//
// Level 0 has the timers that differ from the wheel's present tick in the lowest
// six bits only, level 1 those that differ in the next six bits too, and so on;
// the differing digit is the slot. Hence all of a level's timers are later than
// all of the level below, and in a level a greater slot is later.
type Wheel struct {
	step      uint64 // nanoseconds
	start     time.Duration
	now       uint64 // in ticks; no timer is at or before it, but while advancing
	until     uint64 // where Advance is going
	advancing bool
	n         int
	occupied  [wheelLevels]uint64 // a bit for each slot that has timers
	slots     [wheelLevels][wheelSlots]*Timer
}

// NewWheel returns a wheel with ticks of that duration (at least a nanosecond)
// whose time is start.
func NewWheel(tick, start time.Duration) *Wheel {
	return &Wheel{step: uint64(max(tick, 1)), start: start}
}

// Len returns the number of running timers.
func (w *Wheel) Len() int { return w.n }

// Start sets the timer to expire at that time, in place of its earlier deadline
// if it runs. A deadline that is not after the wheel's time expires with the
// next tick; during Advance, with the first tick after the time that Advance was
// given. So an expirer never makes Advance run it twice.
func (w *Wheel) Start(t *Timer, at time.Duration) {
	invariant.Check(t.Owner != nil, "sched: started a timer without owner")
	after := w.now
	if w.advancing {
		after = w.until
	}
	tick := max(w.ticks(at, w.step-1), after+1)
	place := w.placeOf(tick)
	if t.place != 0 {
		if t.place == place {
			t.tick = tick
			return
		}
		w.unlink(t)
	}
	t.tick = tick
	w.link(t, place)
}

// Stop stops the timer if it runs and reports whether it did: its owner will not
// be called.
func (w *Wheel) Stop(t *Timer) bool {
	if t.place == 0 {
		return false
	}
	w.unlink(t)
	return true
}

// Advance moves the wheel's time to now, calls the owners of the timers whose
// deadline has come, and returns how many there were. A now before the wheel's
// time changes nothing.
func (w *Wheel) Advance(now time.Duration) int {
	invariant.Check(!w.advancing, "sched: an expirer advanced its wheel")
	until := w.ticks(now, 0)
	if w.advancing || until <= w.now {
		return 0
	}
	w.advancing, w.until = true, until
	defer func() { w.advancing = false }() // also when an owner panics
	expired := 0
	for {
		level, slot, begin := w.first()
		if level < 0 || begin > until {
			break
		}
		w.now = begin
		list := &w.slots[level][slot]
		if level == 0 {
			// An owner may stop others of the list, so always take its first.
			for *list != nil {
				t := *list
				w.unlink(t)
				expired++
				t.Owner.HandleExpire(now)
			}
			continue
		}
		// Their slot has begun: they differ in fewer bits now, so each goes to a
		// lower level.
		for *list != nil {
			t := *list
			w.unlink(t)
			w.link(t, w.placeOf(t.tick))
		}
	}
	w.now = until
	return expired
}

// Next returns a time before which no timer expires; ok is false when none runs.
// It costs no search and may therefore be earlier than the first deadline, where
// that is far away: Advance at that time then expires nothing but brings Next
// nearer. A caller that sleeps until Next is woken in vain at most ten times for
// any timer.
func (w *Wheel) Next() (at time.Duration, ok bool) {
	level, _, begin := w.first()
	if level < 0 {
		return 0, false
	}
	hi, ns := bits.Mul64(begin, w.step)
	if hi != 0 || ns > uint64(math.MaxInt64)-uint64(w.start) {
		return math.MaxInt64, true
	}
	return time.Duration(uint64(w.start) + ns), true
}

// first returns the earliest occupied slot and the tick at which it begins; the
// level is -1 if there is none.
func (w *Wheel) first() (level, slot int, begin uint64) {
	if w.n == 0 {
		return -1, 0, 0
	}
	for w.occupied[level] == 0 {
		level++
	}
	slot = bits.TrailingZeros64(w.occupied[level])
	shift := level * wheelBits
	return level, slot, w.now&(^uint64(0)<<(shift+wheelBits)) | uint64(slot)<<shift
}

// ticks returns the time in ticks after rounding up by that many nanoseconds.
func (w *Wheel) ticks(at time.Duration, up uint64) uint64 {
	if at <= w.start {
		return 0
	}
	// Unsigned, the difference of any two durations is right.
	ns := uint64(at) - uint64(w.start)
	if ns > math.MaxUint64-up {
		return math.MaxUint64/w.step + 1
	}
	return (ns + up) / w.step
}

func (w *Wheel) placeOf(tick uint64) uint16 {
	level := (bits.Len64((tick^w.now)|1) - 1) / wheelBits
	slot := tick >> (level * wheelBits) & (wheelSlots - 1)
	return uint16(level*wheelSlots+int(slot)) + 1
}

func (w *Wheel) link(t *Timer, place uint16) {
	level, slot := int(place-1)/wheelSlots, int(place-1)%wheelSlots
	t.place = place
	w.n++
	first := w.slots[level][slot]
	if first == nil {
		t.next, t.prev = t, t
		w.slots[level][slot] = t
		w.occupied[level] |= 1 << slot
		return
	}
	t.next, t.prev = first, first.prev
	t.prev.next, first.prev = t, t
}

func (w *Wheel) unlink(t *Timer) {
	level, slot := int(t.place-1)/wheelSlots, int(t.place-1)%wheelSlots
	w.n--
	if t.next == t {
		w.slots[level][slot] = nil
		w.occupied[level] &^= 1 << slot
	} else {
		t.next.prev, t.prev.next = t.prev, t.next
		if w.slots[level][slot] == t {
			w.slots[level][slot] = t.next
		}
	}
	t.next, t.prev, t.place = nil, nil, 0
}
