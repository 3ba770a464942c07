// Package ratio compares ways to do one thing within one benchmark, for tests. What a
// benchmark takes says little on a machine that does other things as well, so the ways
// take turns in short bursts, and what counts is how they compare.
package ratio

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// Way is one way to do it.
type Way struct {
	// Name has no spaces: it becomes part of a unit.
	Name string
	// Do does it n times.
	Do func(n int)
}

// Run gives each way in turn a burst of n operations, as often as b wants. Of each it
// reports the nanoseconds and the octets allocated that an operation took in the median
// of its bursts, and of all but the first how many times as long as the first it took.
// A burst must be long enough that reading the clock does not show: 10 us or more.
func Run(b *testing.B, n int, ways ...Way) {
	b.Helper()
	for _, w := range ways {
		w.Do(n) // whatever is made once
	}
	times := make([][]float64, len(ways))
	octets := make([][]float64, len(ways))
	var before, after runtime.MemStats
	for b.Loop() {
		for i, w := range ways {
			runtime.ReadMemStats(&before)
			start := time.Now()
			w.Do(n)
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			times[i] = append(times[i], float64(took.Nanoseconds())/float64(n))
			octets[i] = append(octets[i], float64(after.TotalAlloc-before.TotalAlloc)/float64(n))
		}
	}
	b.ReportMetric(0, "ns/op") // of a round of bursts: of no interest
	first := median(times[0])
	for i, w := range ways {
		t := median(times[i])
		b.ReportMetric(t, w.Name+"-ns")
		b.ReportMetric(median(octets[i]), w.Name+"-B")
		if i > 0 {
			b.ReportMetric(t/first, w.Name+"-ratio")
		}
	}
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// Split is a Way's Do for some goroutines at once: do is called on each of them, with its
// number, and does a part of the n operations. They begin together, and the burst ends
// with the last of them.
func Split(goroutines int, do func(g, n int)) func(n int) {
	return func(n int) {
		if n%goroutines != 0 {
			panic(fmt.Sprintf("ratio: %d operations cannot be split among %d goroutines", n, goroutines))
		}
		var wg sync.WaitGroup
		for g := range goroutines {
			wg.Go(func() { do(g, n/goroutines) })
		}
		wg.Wait()
	}
}
