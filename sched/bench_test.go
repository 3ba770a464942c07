package sched

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/ratio"
	"github.com/trestle-npamp/trestle/wire"
)

// One exchange's life in the tables of an association, by 1, 2, 8 and 64 goroutines at
// once, with a thousand exchanges alive all the time, against the two usual ways.
//
// originated: those that we begin. Take a token, put a value under it, find it by the
// token, end it. One table for all goroutines, as callers share it.
//
// received: those that a peer begins. Insert its correlation id, find it, delete it. A
// table for each goroutine, as each loop has the tables of its own associations; the
// usual ways share one.
//
//	go test -run '^$' -bench Tables ./sched
func BenchmarkTables(b *testing.B) {
	const alive = 1024
	const burst = 64 * 200
	v := new(int)
	for _, goroutines := range []int{1, 2, 8, 64} {
		b.Run(fmt.Sprintf("originated/%d", goroutines), func(b *testing.B) {
			slots := NewSlots[*int](1<<16, 1, 0)
			var shared sync.Map
			var last atomic.Uint64
			var mu sync.Mutex
			m := map[uint64]*int{}
			for range alive {
				slots.Reserve()
				id := last.Add(1)
				shared.Store(id, v)
				m[id] = v
			}
			ratio.Run(b, burst,
				ratio.Way{Name: "Slots", Goroutines: goroutines, Each: func(_, n int) {
					for range n {
						slot, _ := slots.Reserve()
						slot.Value = v
						slot.Publish()
						slots.Release(slots.Resolve(slot.Token()))
					}
				}},
				ratio.Way{Name: "sync.Map", Goroutines: goroutines, Each: func(_, n int) {
					for range n {
						id := last.Add(1)
						shared.Store(id, v)
						shared.Load(id)
						shared.Delete(id)
					}
				}},
				ratio.Way{Name: "mutex+map", Goroutines: goroutines, Each: func(_, n int) {
					for range n {
						id := last.Add(1)
						mu.Lock()
						m[id] = v
						mu.Unlock()
						mu.Lock()
						_ = m[id]
						mu.Unlock()
						mu.Lock()
						delete(m, id)
						mu.Unlock()
					}
				}},
			)
		})
		b.Run(fmt.Sprintf("received/%d", goroutines), func(b *testing.B) {
			tables := make([]*Table[*int], goroutines)
			var shared sync.Map
			var mu sync.Mutex
			m := map[string]*int{}
			corr := func(g, i int) []byte { return fmt.Appendf(nil, `"%08x-0000-4000-8000-%012x"`, i, g) }
			for g := range tables {
				tables[g] = NewTable[*int](1 << 16)
				for i := range alive / goroutines {
					c := corr(g, 1<<24+i)
					tables[g].Insert(c, v)
					shared.Store(string(c), v)
					m[string(c)] = v
				}
			}
			// each gives f so many correlation ids that differ.
			each := func(f func(g int, corr []byte)) func(g, n int) {
				return func(g, n int) {
					c := corr(g, 0)
					for i := range n {
						binary.BigEndian.PutUint32(c[1:], uint32(i))
						f(g, c)
					}
				}
			}
			ratio.Run(b, burst,
				ratio.Way{Name: "Table", Goroutines: goroutines, Each: each(func(g int, corr []byte) {
					t := tables[g]
					t.Insert(corr, v)
					t.Get(corr)
					t.Delete(corr)
				})},
				ratio.Way{Name: "sync.Map", Goroutines: goroutines, Each: each(func(_ int, corr []byte) {
					shared.Store(string(corr), v)
					shared.Load(string(corr))
					shared.Delete(string(corr))
				})},
				ratio.Way{Name: "mutex+map", Goroutines: goroutines, Each: each(func(_ int, corr []byte) {
					mu.Lock()
					m[string(corr)] = v
					mu.Unlock()
					mu.Lock()
					_ = m[string(corr)]
					mu.Unlock()
					mu.Lock()
					delete(m, string(corr))
					mu.Unlock()
				})},
			)
		})
	}
}

// The table of what we originate by one goroutine alone, and only the loop's share.
func BenchmarkSlotsAlone(b *testing.B) {
	v := new(int)
	s := NewSlots[*int](1<<16, 1, 0)
	b.Run("life", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			slot, _ := s.Reserve()
			slot.Value = v
			slot.Publish()
			s.Release(s.Resolve(slot.Token()))
		}
	})
	b.Run("resolve", func(b *testing.B) {
		var tokens [4096]Token
		for i := range tokens {
			slot, _ := s.Reserve()
			slot.Publish()
			tokens[i] = slot.Token()
		}
		i := 0
		for b.Loop() {
			if s.Resolve(tokens[i*2654435761%4096]) == nil {
				b.Fatal("lost a slot")
			}
			i++
		}
	})
}

// A post from 1 and from 8 goroutines to one that takes and runs it, against a channel
// and a slice under a mutex. Each of the goroutines has at most 64 posts under way, as
// callers have who wait for what they asked.
//
//	go test -run '^$' -bench Inbox ./sched
func BenchmarkInbox(b *testing.B) {
	const window = 64
	const burst = 8 * window * 40
	for _, producers := range []int{1, 8} {
		b.Run(fmt.Sprint(producers), func(b *testing.B) {
			got := 0
			bell := make(chan struct{}, 1)
			notes := make([][window]*note, producers)
			again := make([]chan struct{}, producers)
			for p := range notes {
				again[p] = make(chan struct{}, 1)
				for i := range notes[p] {
					notes[p][i] = newNote(p, i, func(*note) { got++ })
				}
				notes[p][window-1] = newNote(p, window-1, func(*note) { got++; again[p] <- struct{}{} })
			}
			// from has the producers post while take takes, until all have been run.
			from := func(post func(*note), take func()) func(int) {
				return func(n int) {
					got = 0
					var wg sync.WaitGroup
					for p := range producers {
						wg.Go(func() {
							for range n / producers / window {
								for _, n := range notes[p] {
									post(n)
								}
								<-again[p]
							}
						})
					}
					for got < n {
						take()
					}
					wg.Wait()
				}
			}
			var q Inbox
			c := make(chan Task, 1024)
			var mu sync.Mutex
			var list, spare []Task
			ratio.Run(b, burst,
				ratio.Way{Name: "Inbox", Do: from(
					func(n *note) {
						if wake, _ := q.Push(&n.Node); wake {
							wakeUp(bell)
						}
					},
					func() {
						<-bell
						Run(q.TakeAll())
					})},
				ratio.Way{Name: "chan", Do: from(
					func(n *note) { c <- n },
					func() { (<-c).RunTask() })},
				ratio.Way{Name: "mutex+slice", Do: from(
					func(n *note) {
						mu.Lock()
						list = append(list, n)
						wake := len(list) == 1
						mu.Unlock()
						if wake {
							wakeUp(bell)
						}
					},
					func() {
						<-bell
						mu.Lock()
						list, spare = spare[:0], list
						mu.Unlock()
						for _, t := range spare {
							t.RunTask()
						}
					})},
			)
		})
	}
}

// A timer set and cancelled, and one moved while it runs, among 10,000 others, against
// the runtime's.
//
//	go test -run '^$' -bench Timers ./sched
func BenchmarkTimers(b *testing.B) {
	const others = 10000
	w := NewWheel(100*time.Millisecond, 0)
	for i := range others {
		w.Start(&newAlarm(i, func(*alarm, time.Duration) {}).Timer, time.Duration(i)*3*time.Millisecond)
		t := time.AfterFunc(time.Hour+time.Duration(i)*3*time.Millisecond, func() {})
		b.Cleanup(func() { t.Stop() })
	}
	one := newAlarm(others, func(*alarm, time.Duration) {})
	at := func(i int) time.Duration { return time.Duration(i%300) * 100 * time.Millisecond }
	b.Run("set+cancel", func(b *testing.B) {
		ratio.Run(b, 20000,
			ratio.Way{Name: "Wheel", Do: func(n int) {
				for i := range n {
					w.Start(&one.Timer, at(i))
					w.Stop(&one.Timer)
				}
			}},
			ratio.Way{Name: "time.AfterFunc", Do: func(n int) {
				for i := range n {
					time.AfterFunc(time.Hour+at(i), func() {}).Stop()
				}
			}},
		)
	})
	b.Run("move", func(b *testing.B) {
		t := time.AfterFunc(time.Hour, func() {})
		b.Cleanup(func() { t.Stop() })
		ratio.Run(b, 20000,
			ratio.Way{Name: "Wheel", Do: func(n int) {
				for i := range n {
					w.Start(&one.Timer, at(i))
				}
			}},
			ratio.Way{Name: "time.Timer", Do: func(n int) {
				for i := range n {
					t.Reset(time.Hour + at(i))
				}
			}},
		)
	})
}

// What time passing costs a wheel.
func BenchmarkWheel(b *testing.B) {
	const timers = 10000
	w := NewWheel(10*time.Millisecond, 0)
	alarms := make([]*alarm, timers)
	for i := range alarms {
		alarms[i] = newAlarm(i, func(a *alarm, now time.Duration) { w.Start(&a.Timer, now+30*time.Second) })
		w.Start(&alarms[i].Timer, time.Duration(i)*3*time.Millisecond)
	}
	now := time.Duration(0)
	b.Run("tick", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			now += 10 * time.Millisecond
			w.Advance(now)
		}
	})
	b.Run("month", func(b *testing.B) {
		w := NewWheel(time.Millisecond, 0)
		now := time.Duration(0)
		var few [8]*alarm
		for i := range few {
			few[i] = newAlarm(i, func(a *alarm, now time.Duration) { w.Start(&a.Timer, now+240*time.Hour) })
			w.Start(&few[i].Timer, time.Duration(i)*time.Hour)
		}
		b.ReportAllocs()
		for b.Loop() {
			now += 30 * 24 * time.Hour
			if now < 0 { // the end of time
				b.StopTimer()
				now, *w = 0, *NewWheel(time.Millisecond, 0)
				for i, a := range few {
					a.Timer = Timer{Owner: a}
					w.Start(&a.Timer, time.Duration(i)*time.Hour)
				}
				b.StartTimer()
			}
			w.Advance(now)
		}
	})
}

// A frame pushed and one popped, where 1, 16 and 1,000 streams have two frames queued
// each and the classes are mixed: of 16 frames one is on Control and one is urgent, and
// the others are on two channels. Against a plain list, which is fair to nobody.
//
//	go test -run '^$' -bench Queue ./sched
func BenchmarkQueue(b *testing.B) {
	shared := buf.Get(1 << 10)
	shared.B = shared.B[:wire.HeaderLen+512]
	for _, streams := range []int{1, 16, 1000} {
		b.Run(fmt.Sprint(streams), func(b *testing.B) {
			flows := make([]Flow, streams)
			mixed := func(push func(*Frame), pop func() *Frame) func(int) {
				i := 0
				next := func() {
					f := GetFrame()
					f.Buf = shared
					switch i % 16 {
					case 0:
						f.Channel = wire.ChannelControl
					case 8:
						f.Channel, f.Flags = wire.ChannelBridge, wire.FlagURG
					default:
						fl := i % streams
						f.Channel, f.Flow = wire.ChannelBridge, &flows[fl]
						if fl%2 != 0 {
							f.Channel = wire.ChannelMemory
						}
					}
					i++
					push(f)
				}
				for range 2 * streams {
					next()
				}
				return func(n int) {
					for range n {
						next()
						f := pop()
						f.Buf = nil
						PutFrame(f)
					}
				}
			}
			var q Queue
			var first, last *Frame
			ratio.Run(b, 20000,
				ratio.Way{Name: "Queue", Do: mixed(q.Push, q.Pop)},
				ratio.Way{Name: "list", Do: mixed(
					func(f *Frame) {
						if first == nil {
							first = f
						} else {
							last.next = f
						}
						last = f
					},
					func() *Frame {
						f := first
						first, f.next = f.next, nil
						return f
					})},
			)
			q.Drain(func(f *Frame) { f.Buf = nil; PutFrame(f) })
		})
	}
	// Streams that always have something to send, of frames over the quantum.
	b.Run("backlog64", func(b *testing.B) {
		var q Queue
		flows := make([]Flow, 64)
		shared := buf.Get(16 << 10)
		shared.B = shared.B[:16<<10]
		push := func(fl *Flow) {
			f := GetFrame()
			f.Channel, f.Flow, f.Buf = wire.ChannelBridge, fl, shared
			q.Push(f)
		}
		for i := range flows {
			push(&flows[i])
			push(&flows[i])
		}
		b.ReportAllocs()
		for b.Loop() {
			f := q.Pop()
			push(f.Flow)
			f.Buf = nil
			PutFrame(f)
		}
	})
}

// What it costs that two processors write and read the same line of their caches, for the
// structures where callers and the loop do.
//
// slots: the loop resolves (reads how many slots are made) while another goroutine
// reserves and releases (writes the list of free slots): a line apart, as they are, and as
// it would be on one line with the list, for which the list itself stands in.
//
// slot: two goroutines begin and end exchanges, 16 at a time each, in slots that lie side by
// side, as they are, and in slots of a whole line each.
//
//	go test -run '^$' -bench CacheLines ./sched
func BenchmarkCacheLines(b *testing.B) {
	b.Run("slots", func(b *testing.B) {
		s := NewSlots[*int](1<<16, 1, 0)
		s.Reserve()
		var total atomic.Uint64
		beside := func(read func() uint64) func(g, n int) {
			return func(g, n int) {
				if g == 0 {
					for range n / 4 {
						slot, _ := s.Reserve()
						s.Release(slot)
					}
					return
				}
				sum := uint64(0)
				for range n {
					sum += read()
				}
				total.Add(sum)
			}
		}
		ratio.Run(b, 160000,
			ratio.Way{Name: "apart", Goroutines: 2, Each: beside(func() uint64 { return uint64(s.made.Load()) })},
			ratio.Way{Name: "together", Goroutines: 2, Each: beside(s.free.Load)},
		)
	})
	b.Run("slot", func(b *testing.B) {
		type line struct {
			v *int
			_ [40]byte
		}
		v := new(int)
		ratio.Run(b, 40000,
			ratio.Way{Name: "24-octets", Goroutines: 2, Each: lives(NewSlots[*int](1<<16, 1, 0), v)},
			ratio.Way{Name: "64-octets", Goroutines: 2, Each: lives(NewSlots[line](1<<16, 1, 0), line{v: v})},
		)
	})
}

// lives has each goroutine begin n exchanges and end the one before the last 16.
func lives[T any](s *Slots[T], v T) func(g, n int) {
	return func(_, n int) {
		var open [16]*Slot[T]
		for i := range n {
			p := &open[i%len(open)]
			if *p != nil {
				s.Release(s.Resolve((*p).Token()))
			}
			*p, _ = s.Reserve()
			(*p).Value = v
			(*p).Publish()
		}
		for _, slot := range open {
			if slot != nil {
				s.Release(slot)
			}
		}
	}
}
