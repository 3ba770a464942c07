package conn

import (
	"fmt"
	"strings"
	"testing"

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
