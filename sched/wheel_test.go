package sched

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// alarm is a timer that tells somebody when it expires.
type alarm struct {
	Timer
	id  int
	run func(a *alarm, now time.Duration)
}

func newAlarm(id int, run func(*alarm, time.Duration)) *alarm {
	a := &alarm{id: id, run: run}
	a.Owner = a
	return a
}

func (a *alarm) HandleExpire(now time.Duration) { a.run(a, now) }

// someDelay is anything from nothing to centuries, each magnitude as likely.
func someDelay(r *rand.Rand) time.Duration {
	return time.Duration(r.Int64N(1 << (1 + r.IntN(62))))
}

// naiveWheel keeps the deadlines of the running timers, in ticks, in a map.
type naiveWheel struct {
	tick, start time.Duration
	now, until  uint64
	advancing   bool
	running     map[*alarm]uint64
}

func (m *naiveWheel) startTimer(a *alarm, at time.Duration) {
	due := uint64(0)
	if at > m.start {
		ns, tick := uint64(at)-uint64(m.start), uint64(m.tick)
		due = ns / tick
		if ns%tick != 0 {
			due++
		}
	}
	after := m.now
	if m.advancing {
		after = m.until
	}
	m.running[a] = max(due, after+1)
}

func (m *naiveWheel) earliest() (due uint64, ok bool) {
	due = math.MaxUint64
	for _, d := range m.running {
		due, ok = min(due, d), true
	}
	return due, ok
}

func TestWheelAgainstAMap(t *testing.T) {
	script(t, 60, func(t *testing.T, r *rand.Rand) {
		tick := time.Duration(1 + r.Int64N(1<<r.IntN(40)))
		start := time.Duration(r.Int64N(1<<40) - 1<<39)
		w := NewWheel(tick, start)
		m := &naiveWheel{tick: tick, start: start, running: map[*alarm]uint64{}}
		alarms := make([]*alarm, 40)
		now := start

		change := func() {
			a := alarms[r.IntN(len(alarms))]
			_, running := m.running[a]
			if a.Active() != running {
				t.Fatalf("timer %d: Active is %v", a.id, a.Active())
			}
			if r.IntN(3) == 0 {
				if w.Stop(&a.Timer) != running {
					t.Fatalf("timer %d: Stop is not %v", a.id, running)
				}
				delete(m.running, a)
				return
			}
			at := now + someDelay(r) - time.Duration(r.Int64N(2))*someDelay(r)
			if at < now-1<<60 || at > math.MaxInt64-1<<41 {
				at = now
			}
			w.Start(&a.Timer, at)
			m.startTimer(a, at)
		}
		last, expired := uint64(0), 0
		for i := range alarms {
			alarms[i] = newAlarm(i, func(a *alarm, told time.Duration) {
				due, running := m.running[a]
				if !running || due > m.until || told != now || a.Active() {
					t.Fatalf("timer %d expired at %v: running %v, due at tick %d of %d", a.id, told, running, due, m.until)
				}
				if due < last {
					t.Fatalf("timer %d of tick %d after one of tick %d", a.id, due, last)
				}
				if first, _ := m.earliest(); first != due {
					t.Fatalf("timer %d of tick %d while one of tick %d waits", a.id, due, first)
				}
				last = due
				delete(m.running, a)
				expired++
				for r.IntN(2) == 0 {
					change()
				}
			})
		}
		for step := range 3000 {
			if r.IntN(2) == 0 {
				change()
				continue
			}
			at, ok := w.Next()
			first, running := m.earliest()
			if ok != running {
				t.Fatalf("step %d: Next is %v with %d timers", step, ok, len(m.running))
			}
			if ok && first < uint64(math.MaxInt64)/uint64(tick) && at > start+time.Duration(first)*tick {
				t.Fatalf("step %d: Next %v, a timer is due at tick %d of %v", step, at, first, tick)
			}
			before := now
			switch r.IntN(4) {
			case 0:
				now += tick / 2
			case 1:
				if ok {
					now = max(now, at)
				}
			default:
				now += someDelay(r) >> r.IntN(20)
			}
			if now < before || now > math.MaxInt64/2 {
				now = before
			}
			m.until = max(m.now, (uint64(now)-uint64(start))/uint64(tick))
			m.advancing, expired, last = true, 0, 0
			if n := w.Advance(now); n != expired {
				t.Fatalf("step %d: Advance is %d, %d expired", step, n, expired)
			}
			m.advancing, m.now = false, m.until
			if first, ok := m.earliest(); ok && first <= m.now {
				t.Fatalf("step %d: tick %d passed and its timer did not expire", step, first)
			}
			if w.Len() != len(m.running) {
				t.Fatalf("step %d: Len %d, want %d", step, w.Len(), len(m.running))
			}
		}
	})
}

func TestWheelIsNeverEarlyAndAtMostATickLate(t *testing.T) {
	const tick = 10 * time.Millisecond
	script(t, 20, func(t *testing.T, r *rand.Rand) {
		w := NewWheel(tick, 0)
		now := time.Duration(0)
		deadlines := map[*alarm]time.Duration{}
		for i := range 200 {
			a := newAlarm(i, func(a *alarm, told time.Duration) {
				late := told - deadlines[a]
				if late < 0 || late > tick+tick/4 { // Advance comes each quarter of a tick
					t.Errorf("deadline %v, expired at %v", deadlines[a], told)
				}
				delete(deadlines, a)
			})
			deadlines[a] = 1 + time.Duration(r.Int64N(int64(20*time.Second)))
			w.Start(&a.Timer, deadlines[a])
		}
		for len(deadlines) > 0 && now < 21*time.Second {
			now += tick / 4
			w.Advance(now)
		}
		if len(deadlines) > 0 || w.Len() != 0 {
			t.Fatalf("%d timers never expired", len(deadlines))
		}
	})
}

func TestWheelNextReachesEachTimerInFewSteps(t *testing.T) {
	script(t, 50, func(t *testing.T, r *rand.Rand) {
		w := NewWheel(time.Duration(1+r.Int64N(1<<30)), 0)
		w.Advance(time.Duration(r.Int64N(1 << 50)))
		done := false
		a := newAlarm(0, func(*alarm, time.Duration) { done = true })
		w.Start(&a.Timer, time.Duration(r.Int64N(1<<61)))
		last := time.Duration(-1)
		for i := 0; !done; i++ {
			at, ok := w.Next()
			if !ok || at <= last || i > wheelLevels {
				t.Fatalf("step %d: Next %v after %v, %v", i, at, last, ok)
			}
			last = at
			w.Advance(at)
		}
		if _, ok := w.Next(); ok {
			t.Fatal("Next of an empty wheel")
		}
	})
}

// With a tick of a nanosecond a century has 3e18 of them: a wheel that stepped
// would never come back.
func TestWheelJumpsOverIdleTime(t *testing.T) {
	const century = 100 * 365 * 24 * time.Hour
	w := NewWheel(1, 0)
	var order []int
	for i := range 5 {
		a := newAlarm(i, func(a *alarm, _ time.Duration) { order = append(order, a.id) })
		w.Start(&a.Timer, century/5*time.Duration(i+1))
	}
	if n := w.Advance(century); n != 5 || !slices.Equal(order, []int{0, 1, 2, 3, 4}) {
		t.Fatalf("%d expired, in the order %v", n, order)
	}
	w.Advance(2 * century) // and with none at all
}

func TestWheelTimerThatRestartsItselfRunsOnceAnAdvance(t *testing.T) {
	w := NewWheel(time.Millisecond, 0)
	runs := 0
	a := newAlarm(0, nil)
	a.run = func(a *alarm, now time.Duration) {
		runs++
		w.Start(&a.Timer, now-time.Hour) // long due
	}
	w.Start(&a.Timer, time.Millisecond)
	for i := 1; i <= 5; i++ {
		if w.Advance(time.Duration(i) * time.Second); runs != i {
			t.Fatalf("%d runs after %d advances", runs, i)
		}
	}
	w.Advance(5 * time.Second)
	if runs != 5 {
		t.Fatal("ran again though no time had passed")
	}
}

func TestWheelExpirersStopEachOther(t *testing.T) {
	w := NewWheel(time.Millisecond, 0)
	var alarms [3]*alarm
	ran := 0
	for i := range alarms {
		alarms[i] = newAlarm(i, func(a *alarm, _ time.Duration) {
			ran++
			for _, other := range alarms {
				if w.Stop(&other.Timer) && other == a {
					t.Error("an expired timer was still running")
				}
			}
		})
		w.Start(&alarms[i].Timer, 5*time.Millisecond)
	}
	if w.Advance(time.Second); ran != 1 || w.Len() != 0 {
		t.Fatalf("%d of three ran that stop each other, %d left", ran, w.Len())
	}
}

func TestWheelPastDeadlineExpiresWithTheNextTick(t *testing.T) {
	w := NewWheel(time.Second, time.Hour)
	ran := 0
	for i, at := range []time.Duration{0, -time.Hour, math.MinInt64, time.Hour} {
		w.Start(&newAlarm(i, func(*alarm, time.Duration) { ran++ }).Timer, at)
	}
	if w.Advance(time.Hour); ran != 0 {
		t.Fatal("expired without a tick")
	}
	if at, _ := w.Next(); at != time.Hour+time.Second {
		t.Fatalf("Next %v", at)
	}
	if w.Advance(time.Hour + time.Second); ran != 4 {
		t.Fatalf("%d of 4 expired", ran)
	}
}

func TestWheelTimeNeverGoesBack(t *testing.T) {
	w := NewWheel(time.Millisecond, 0)
	ran := false
	a := newAlarm(0, func(*alarm, time.Duration) { ran = true })
	w.Advance(time.Second)
	w.Start(&a.Timer, 1500*time.Millisecond)
	for _, now := range []time.Duration{0, -time.Hour, time.Millisecond, 1499 * time.Millisecond} {
		if w.Advance(now) != 0 || ran {
			t.Fatalf("expired at %v", now)
		}
	}
	if w.Advance(1500*time.Millisecond) != 1 {
		t.Fatal("did not expire at its time")
	}
}

func TestWheelEndsOfTime(t *testing.T) {
	for _, start := range []time.Duration{math.MinInt64, 0, math.MaxInt64 - 5} {
		for _, tick := range []time.Duration{-1, 0, 1, 7, time.Hour, math.MaxInt64} {
			w := NewWheel(tick, start)
			a := newAlarm(0, func(*alarm, time.Duration) {})
			w.Start(&a.Timer, math.MaxInt64)
			at, ok := w.Next()
			if !ok || at <= start {
				t.Errorf("start %d, tick %d: Next %d, %v", start, tick, at, ok)
			}
			// What is due after the last tick that there is waits for ever.
			last := (uint64(math.MaxInt64) - uint64(start)) % uint64(max(tick, 1))
			if n := w.Advance(math.MaxInt64); (n == 1) != (last == 0) {
				t.Errorf("start %d, tick %d: %d expired", start, tick, n)
			}
			w.Stop(&a.Timer)
		}
	}
}

func TestWheelSurvivesAnOwnerThatPanics(t *testing.T) {
	w := NewWheel(time.Millisecond, 0)
	ran := 0
	for i := range 3 {
		w.Start(&newAlarm(i, func(a *alarm, _ time.Duration) {
			if a.id == 0 {
				panic("owner")
			}
			ran++
		}).Timer, time.Millisecond)
	}
	func() {
		defer func() { _ = recover() }()
		w.Advance(time.Second)
	}()
	if w.Advance(2 * time.Second); ran != 2 || w.Len() != 0 {
		t.Fatalf("%d of the other two expired, %d left", ran, w.Len())
	}
}

func TestWheelAllocatesNothing(t *testing.T) {
	w := NewWheel(time.Millisecond, 0)
	now := time.Duration(0)
	a := newAlarm(0, nil)
	a.run = func(a *alarm, now time.Duration) { w.Start(&a.Timer, now+time.Minute) }
	b := newAlarm(1, nil)
	w.Start(&a.Timer, time.Second)
	noAllocs(t, func() {
		w.Start(&b.Timer, now+30*time.Second)
		w.Start(&b.Timer, now+40*time.Second)
		now += 10 * time.Second
		w.Advance(now)
		w.Stop(&b.Timer)
		w.Next()
	})
}
