package sched

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/wire"
)

// One exchange's life in the table of those we originate: take a token, put a
// value under it, find it by the token, end it. From many goroutines at once,
// with some exchanges alive all the time, against the two usual ways.
func BenchmarkSlots(b *testing.B) {
	const alive = 1024
	v := new(int)
	b.Run("Slots", func(b *testing.B) {
		s := NewSlots[*int](1<<16, 1, 0)
		for range alive {
			s.Reserve()
		}
		b.ReportAllocs()
		b.SetParallelism(4)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				slot, _ := s.Reserve()
				slot.Value = v
				slot.Publish()
				s.Release(s.Resolve(slot.Token()))
			}
		})
	})
	b.Run("sync.Map", func(b *testing.B) {
		var m sync.Map
		var last atomic.Uint64
		for range alive {
			m.Store(last.Add(1), v)
		}
		b.ReportAllocs()
		b.SetParallelism(4)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				id := last.Add(1)
				m.Store(id, v)
				m.Load(id)
				m.Delete(id)
			}
		})
	})
	b.Run("mutex+map", func(b *testing.B) {
		var mu sync.Mutex
		m := map[uint64]*int{}
		last := uint64(0)
		for last < alive {
			last++
			m[last] = v
		}
		b.ReportAllocs()
		b.SetParallelism(4)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				mu.Lock()
				last++
				id := last
				m[id] = v
				mu.Unlock()
				mu.Lock()
				_ = m[id]
				mu.Unlock()
				mu.Lock()
				delete(m, id)
				mu.Unlock()
			}
		})
	})
}

// The same by one goroutine alone, and only the loop's share.
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

// What the loop pays for resolving while others reserve and give up.
func BenchmarkSlotsResolveBesideReservers(b *testing.B) {
	s := NewSlots[*int](1<<16, 1, 0)
	var tokens [64]Token
	for i := range tokens {
		slot, _ := s.Reserve()
		slot.Publish()
		tokens[i] = slot.Token()
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			slot, _ := s.Reserve()
			s.Release(slot)
		}
	})
	i := 0
	for b.Loop() {
		if s.Resolve(tokens[i%64]) == nil {
			b.Fatal("lost a slot")
		}
		i++
	}
	stop.Store(true)
	wg.Wait()
}

// Notes from several goroutines to one, against a channel.
func BenchmarkInbox(b *testing.B) {
	for _, producers := range []int{1, 4, 16} {
		b.Run(fmt.Sprintf("Inbox/%d", producers), func(b *testing.B) {
			var q Inbox
			bell := make(chan struct{}, 1)
			nodes := make([]*note, b.N)
			got := 0
			for i := range nodes {
				nodes[i] = newNote(0, i, func(*note) { got++ })
			}
			b.ReportAllocs()
			b.ResetTimer()
			each := b.N / producers
			for p := range producers {
				mine := nodes[p*each : (p+1)*each]
				go func() {
					for _, n := range mine {
						if wake, _ := q.Push(&n.Node); wake {
							wakeUp(bell)
						}
					}
				}()
			}
			for got < producers*each {
				<-bell
				Run(q.TakeAll())
			}
		})
		b.Run(fmt.Sprintf("chan/%d", producers), func(b *testing.B) {
			c := make(chan Task, 1024)
			nodes := make([]*note, b.N)
			got := 0
			for i := range nodes {
				nodes[i] = newNote(0, i, func(*note) { got++ })
			}
			b.ReportAllocs()
			b.ResetTimer()
			each := b.N / producers
			for p := range producers {
				mine := nodes[p*each : (p+1)*each]
				go func() {
					for _, n := range mine {
						c <- n
					}
				}()
			}
			for got < producers*each {
				(<-c).RunTask()
			}
		})
	}
}

func BenchmarkTable(b *testing.B) {
	for _, size := range []int{4, 36, 120} {
		corr := bytes.Repeat([]byte{'c'}, size)
		b.Run(fmt.Sprintf("Table/%d", size), func(b *testing.B) {
			t := NewTable[int](4096)
			for i := range 1000 {
				t.Insert(fmt.Appendf(nil, "%d", i), i)
			}
			i := uint32(0)
			b.ReportAllocs()
			for b.Loop() {
				i++
				binary.BigEndian.PutUint32(corr, i)
				t.Insert(corr, 1)
				t.Get(corr)
				t.Delete(corr)
			}
		})
		b.Run(fmt.Sprintf("map/%d", size), func(b *testing.B) {
			m := map[string]int{}
			for i := range 1000 {
				m[fmt.Sprint(i)] = i
			}
			i := uint32(0)
			b.ReportAllocs()
			for b.Loop() {
				i++
				binary.BigEndian.PutUint32(corr, i)
				m[string(corr)] = 1
				_ = m[string(corr)]
				delete(m, string(corr))
			}
		})
	}
}

// Timers as associations have them: most are moved long before they expire.
func BenchmarkWheel(b *testing.B) {
	const timers = 10000
	w := NewWheel(10*time.Millisecond, 0)
	alarms := make([]*alarm, timers)
	for i := range alarms {
		alarms[i] = newAlarm(i, func(a *alarm, now time.Duration) { w.Start(&a.Timer, now+30*time.Second) })
		w.Start(&alarms[i].Timer, time.Duration(i)*3*time.Millisecond)
	}
	now := time.Duration(0)
	b.Run("restart", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			w.Start(&alarms[i%timers].Timer, now+time.Duration(i%3000)*10*time.Millisecond)
			i++
		}
	})
	b.Run("stop+start", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			a := alarms[i%timers]
			w.Stop(&a.Timer)
			w.Start(&a.Timer, now+time.Duration(i%3000)*10*time.Millisecond)
			i++
		}
	})
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

func BenchmarkQueue(b *testing.B) {
	for _, n := range []int{1, 64, 4096} {
		b.Run(fmt.Sprintf("flows%d", n), func(b *testing.B) {
			var q Queue
			flows := make([]Flow, n)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if i++; i%n == 0 {
					for f := q.Pop(); f != nil; f = q.Pop() {
						PutFrame(f)
					}
				}
				f := GetFrame()
				f.Channel, f.Flow = wire.ChannelBridge, &flows[i%n]
				q.Push(f)
			}
			q.Drain(nil)
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
