package conn

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/trestle-npamp/trestle/internal/ratio"
	"github.com/trestle-npamp/trestle/wire"
)

// BenchmarkEchoTurn is what one frame of 512 octets in and one out cost in the
// machine: scanning, rules, opening, the event, Begin and End, the batch.
func BenchmarkEchoTurn(b *testing.B) {
	for _, frames := range []int{1, 16} {
		b.Run(fmt.Sprintf("frames=%d", frames), func(b *testing.B) { benchmarkEcho(b, frames) })
	}
}

func benchmarkEcho(b *testing.B, frames int) {
	r := newRig(b, nil)
	r.turn(r.hello(nil))
	r.turn(r.frame(wire.ChannelBridge, 0x0100, "")) // its key is derived now
	opener := r.c.openers[wire.ChannelBridge]
	before := *opener
	var sealed []byte
	for range frames {
		sealed = append(sealed, r.frame(wire.ChannelBridge, 0x0100, strings.Repeat("x", 512))...)
	}
	in := make([]byte, len(sealed))
	batch := make([]byte, 0, 64<<10)
	credit := r.c.credit
	b.ReportAllocs()
	for b.Loop() {
		// The same frames again: the opener goes back to where it was.
		*opener = before
		r.c.credit = credit
		copy(in, sealed)
		r.c.StartBatch(r.now, batch, false)
		r.c.HandleBytes(r.now, in)
		for {
			ev, ok := r.c.Poll()
			if !ok {
				break
			}
			out, err := r.c.Begin(ev.Channel, 0x0101, len(ev.Payload))
			if err == nil {
				err = r.c.End(append(out, ev.Payload...))
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		r.c.Settle()
		if r.c.TakeBatch(); r.c.Closed() {
			b.Fatal("closed")
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(frames), "ns/frame")
}

// BenchmarkSequences is what it costs to find the sequence number of a channel, by 1, 2, 8
// and 64 goroutines at once, each with an association of its own, as loops have: in the
// association's array of sealers, of which each has key, epoch and number in one place,
// against tables that all associations share. The number in the array moves when a frame is
// sealed, here one that stands for it.
//
//	go test -run '^$' -bench Sequences ./engine/conn
func BenchmarkSequences(b *testing.B) {
	type key struct {
		association int
		channel     wire.Channel
	}
	chans := [...]wire.Channel{wire.ChannelControl, wire.ChannelBridge, wire.ChannelDiscovery, wire.ChannelBridge}
	for _, goroutines := range []int{1, 2, 8, 64} {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
			conns := make([]*Conn, goroutines)
			var shared sync.Map
			var mu sync.Mutex
			m := map[key]uint64{}
			for g := range conns {
				conns[g] = newRig(b, nil).c
				for _, ch := range chans {
					shared.Store(key{g, ch}, new(atomic.Uint64))
					m[key{g, ch}] = 0
				}
			}
			var total atomic.Uint64
			ratio.Run(b, 64*8000,
				ratio.Way{Name: "sealers", Goroutines: goroutines, Each: func(g, n int) {
					c, next := conns[g], uint64(0)
					for i := range n {
						next = uint64(c.side(chans[i%len(chans)]).sealer.Seq()) + next + 1
					}
					total.Add(next)
				}},
				ratio.Way{Name: "sync.Map", Goroutines: goroutines, Each: func(g, n int) {
					for i := range n {
						v, _ := shared.Load(key{g, chans[i%len(chans)]})
						v.(*atomic.Uint64).Add(1)
					}
				}},
				ratio.Way{Name: "mutex+map", Goroutines: goroutines, Each: func(g, n int) {
					for i := range n {
						mu.Lock()
						m[key{g, chans[i%len(chans)]}]++
						mu.Unlock()
					}
				}},
			)
		})
	}
}

// BenchmarkCounters is what it costs two loops to count a frame in and one out on counters
// that they share: once a turn of 16, as they do, and for each frame.
//
//	go test -run '^$' -bench Counters ./engine/conn
func BenchmarkCounters(b *testing.B) {
	var shared Counters
	ratio.Run(b, 160000,
		ratio.Way{Name: "turn", Goroutines: 2, Each: func(_, n int) {
			var t tally
			for i := range n {
				t.framesIn++
				t.octetsIn += 548
				t.framesOut++
				t.octetsOut += 548
				if i%16 == 15 {
					t.give(&shared)
				}
			}
		}},
		ratio.Way{Name: "frame", Goroutines: 2, Each: func(_, n int) {
			for range n {
				shared.FramesIn.Add(1)
				shared.OctetsIn.Add(548)
				shared.FramesOut.Add(1)
				shared.OctetsOut.Add(548)
			}
		}},
	)
}
