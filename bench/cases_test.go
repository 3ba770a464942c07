package bench

import (
	"flag"
	"io"
	"testing"
	"time"
)

// The whole of L12 and L24, which needs two times 10,000 descriptors, a machine that
// has nothing else to do, and five minutes:
//
//	go test -v -run 'TestL12|TestL24' ./bench -args -notifications 1000000 -lone 2000 -idle 10000 -burst 100 -quiet 60s
var (
	notifications = flag.Int("notifications", map[bool]int{true: 200_000, false: 1_000_000}[buildAllocates], "how many notifications are sent")
	loneRequests  = flag.Int("lone", 200, "how many requests travel alone after them; of a thousand or more the 99th percentile counts")
	idleConns     = flag.Int("idle", 500, "how many associations are idle")
	idleBurst     = flag.Int("burst", 8, "on how many of them a message of 10 MiB goes to and fro")
	idleQuiet     = flag.Duration("quiet", 8*time.Second, "how long they say nothing before their memory is read; associations rest after 5 s")
)

// L12: notifications travel in batches and all arrive, a request among them is not
// behind them all, and one that is alone leaves at once.
func TestL12_SmallMessages(t *testing.T) {
	for _, transport := range Transports {
		t.Run(transport, func(t *testing.T) {
			o := Defaults(Notify)
			o.Transport, o.Count, o.Lone = transport, *notifications, *loneRequests
			r := measured(t, o, io.Discard)
			for _, row := range r.Rows() {
				t.Logf("%s: %s", row[0], row[1])
			}
			if err := r.Missed(); err != nil {
				t.Error(err)
			}
			if w := r.Client.Total.Writes; w > uint64(o.Count)/20 {
				t.Errorf("%d writes for %d notifications", w, o.Count)
			}
			if b := r.Among; b.Requests == 0 || b.Errors != 0 {
				t.Errorf("among them in %v: %+v", r.Elapsed, b)
			}
			// On a busy machine anything can take long, the questions over pipes too. Timers
			// that batches wait for are of a millisecond at least.
			slack := time.Millisecond
			if buildAllocates {
				slack *= 5
			}
			b := r.Beside
			if b.Requests != uint64(o.Lone) || b.Errors != 0 || b.Latency.P50 > 2*r.Bare.P50+slack {
				t.Errorf("lone requests: %+v; over pipes: %v", b, r.Bare)
			}
			if o.Lone >= 1000 && b.Latency.P99 > 2*r.Bare.P99+slack {
				t.Errorf("lone requests: %v; over pipes: %v", b.Latency, r.Bare)
			}
		})
	}
}

// L24: what an idle association takes, and that a burst leaves nothing behind: neither
// memory nor goroutines.
func TestL24_IdleAssociations(t *testing.T) {
	for _, transport := range Transports {
		t.Run(transport, func(t *testing.T) {
			o := Defaults(Idle)
			o.Transport, o.Conns, o.Burst, o.Quiet = transport, *idleConns, *idleBurst, *idleQuiet
			o.MostEach = map[string]float64{"tcp": 8, "tls": 12}[transport]
			if o.Conns < 10_000 {
				t.Parallel()
				// What there is only once weighs more among so few, and on a busy machine there
				// is more of it: 12 KiB each have been seen on TCP, where 7 are usual.
				o.ServerLoops, o.MostEach = 1, o.MostEach*1.75
			}
			if buildShadows {
				o.MostEach, o.MostGrowth = 0, 0
			}
			r := measured(t, o, io.Discard)
			for _, row := range r.Rows() {
				t.Logf("%s: %s", row[0], row[1])
			}
			if err := r.Missed(); err != nil {
				t.Error(err)
			}
		})
	}
}
