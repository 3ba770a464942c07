// Package ratio compares ways to do one thing within one benchmark, for tests. What a
// benchmark takes says little on a machine that does other things as well, so the ways
// take turns in short bursts, and what counts is how they compare.
package ratio

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Way is one way to do it.
type Way struct {
	// Name has no spaces: it becomes part of a unit.
	Name string
	// Do does it n times.
	Do func(n int)
	// Each, in place of Do, is called on so many goroutines at once, with the
	// goroutine's number and its part of the n operations.
	Goroutines int
	Each       func(g, n int)
}

// burst does n operations and returns how long they took. On a busy machine goroutines
// that should run at once may get one processor between them, and then such a burst is
// done again, some times.
func (w *Way) burst(n int) (took time.Duration) {
	if w.Each == nil {
		start := time.Now()
		w.Do(n)
		return time.Since(start)
	}
	for range attempts {
		var ran time.Duration // of all goroutines
		took, ran = w.together(n)
		if float64(ran) >= overlap*float64(took)*float64(w.parties()) {
			break
		}
	}
	return took
}

const (
	attempts = 20
	overlap  = 0.8 // of its time that a burst must have had all processors for
)

// parties is how many of the goroutines can run at once.
func (w *Way) parties() int { return min(w.Goroutines, runtime.GOMAXPROCS(0)) }

func (w *Way) together(n int) (took, ran time.Duration) {
	if w.Goroutines < 1 || n%w.Goroutines != 0 {
		panic(fmt.Sprintf("ratio: %d operations cannot be split among %d goroutines", n, w.Goroutines))
	}
	l := line{parties: int64(w.parties())}
	times := make([]time.Duration, w.Goroutines)
	var wg sync.WaitGroup
	for g := range w.Goroutines {
		wg.Go(func() {
			l.wait()
			start := time.Now()
			w.Each(g, n/w.Goroutines)
			times[g] = time.Since(start)
		})
	}
	wg.Wait()
	took = time.Since(l.start)
	for _, t := range times {
		ran += t
	}
	return took, ran
}

// line is where goroutines wait until as many of them are running as can run at once. A
// burst is short: without that one goroutine would be done before the next has begun, and
// the system would have given them one processor, on a busy machine the more so. So they
// meet again and again until it is clear from the time which that takes that each has a
// processor.
type line struct {
	parties int64
	turns   atomic.Int64 // given out
	came    atomic.Int64 // how often any of the parties has
	off     atomic.Bool
	start   time.Time // when it went off
}

const (
	meetings = 20                    // in a row, each within
	meeting  = 5 * time.Microsecond  // of the one before
	patience = 20 * time.Millisecond // after which it goes off anyway
)

func (l *line) wait() {
	turn := l.turns.Add(1)
	if turn > l.parties {
		for !l.off.Load() {
			runtime.Gosched()
		}
		return
	}
	leader := turn == 1
	l.came.Add(1)
	first := time.Now()
	last, met := first, 0
	for round := int64(1); !l.off.Load(); round++ {
		for l.came.Load() < round*l.parties && !l.off.Load() {
			if leader && time.Since(first) > patience {
				l.start = time.Now()
				l.off.Store(true)
			}
		}
		if leader {
			now := time.Now()
			if met++; now.Sub(last) > meeting {
				met = 0
			}
			if last = now; met == meetings {
				l.start = now
				l.off.Store(true)
			}
		}
		l.came.Add(1)
	}
}

// Run gives each way in turn a burst of n operations, as often as b wants. Of each it
// reports the nanoseconds that an operation took in the bursts which a fifth of them stay
// below, since whatever disturbs a burst makes it longer; the octets it allocated, in the
// median; and of all but the first how many times as long as the first it took.
// A burst must be long enough that reading the clock does not show: 10 us or more.
func Run(b *testing.B, n int, ways ...Way) {
	b.Helper()
	for _, w := range ways {
		w.burst(n) // whatever is made once
	}
	times := make([][]float64, len(ways))
	octets := make([][]float64, len(ways))
	var before, after runtime.MemStats
	for b.Loop() {
		for i, w := range ways {
			runtime.ReadMemStats(&before)
			took := w.burst(n)
			runtime.ReadMemStats(&after)
			times[i] = append(times[i], float64(took.Nanoseconds())/float64(n))
			octets[i] = append(octets[i], float64(after.TotalAlloc-before.TotalAlloc)/float64(n))
		}
	}
	b.ReportMetric(0, "ns/op") // of a round of bursts: of no interest
	first := quantile(times[0], 0.2)
	for i, w := range ways {
		t := quantile(times[i], 0.2)
		b.ReportMetric(t, w.Name+"-ns")
		b.ReportMetric(quantile(octets[i], 0.5), w.Name+"-B")
		if i > 0 {
			b.ReportMetric(t/first, w.Name+"-ratio")
		}
	}
}

// quantile returns what that part of v stays below.
func quantile(v []float64, part float64) float64 {
	slices.Sort(v)
	return v[int(part*float64(len(v)))]
}
