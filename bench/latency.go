package bench

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies are kept from 1 us to 2 min with two significant digits, about 20
// kilooctets a histogram; what lies outside is counted at the nearest end.
const (
	lowestLatency  = int64(time.Microsecond)
	highestLatency = int64(2 * time.Minute)
	latencyDigits  = 2
)

// latencies is a histogram of durations. It belongs to one goroutine.
type latencies struct {
	h *hdrhistogram.Histogram
}

func newLatencies() latencies {
	return latencies{hdrhistogram.New(lowestLatency, highestLatency, latencyDigits)}
}

func (l latencies) record(d time.Duration) {
	// The value is clamped into range, so that there is no error.
	_ = l.h.RecordValue(min(max(int64(d), lowestLatency), highestLatency))
}

func (l latencies) add(from latencies) {
	if !from.empty() { // which takes a while to find out otherwise
		l.h.Merge(from.h)
	}
}

func (l latencies) empty() bool { return l.h.TotalCount() == 0 }

// Latency are quantiles of how long requests took from before the call until
// their reply was in hand, to 1 %.
type Latency struct {
	P50  time.Duration `json:"p50_ns"`
	P90  time.Duration `json:"p90_ns"`
	P99  time.Duration `json:"p99_ns"`
	P999 time.Duration `json:"p999_ns"`
	Max  time.Duration `json:"max_ns"`
}

// quantiles are all 0 where nothing was recorded.
func (l latencies) quantiles() Latency {
	if l.empty() {
		return Latency{}
	}
	at := func(p float64) time.Duration { return time.Duration(l.h.ValueAtPercentile(p)) }
	return Latency{P50: at(50), P90: at(90), P99: at(99), P999: at(99.9), Max: time.Duration(l.h.Max())}
}

// Quantile says that a share of all requests took no longer than a time.
type Quantile struct {
	Share float64       `json:"share"`
	Time  time.Duration `json:"ns"`
}

// distribution gives enough quantiles to draw a line through.
func (l latencies) distribution() []Quantile {
	if l.empty() {
		return nil
	}
	var all []Quantile
	for _, b := range l.h.CumulativeDistributionWithTicks(10) {
		q := Quantile{b.Quantile / 100, time.Duration(b.ValueAt)}
		if n := len(all); n > 0 && all[n-1].Time == q.Time {
			all[n-1] = q
			continue
		}
		all = append(all, q)
	}
	return all
}

// tally counts what was measured in one place. The lock is next to never
// contended: with callbacks only a connection's loop takes it.
type tally struct {
	mu sync.Mutex
	latencies
	good, bad uint64
	_         [64]byte // tallies of two loops don't share a cache line
}

func newTally() *tally { return &tally{latencies: newLatencies()} }

// fails counts something that ended otherwise than it should.
func (t *tally) fails() {
	t.mu.Lock()
	t.bad++
	t.mu.Unlock()
}

// takes counts something that took so long.
func (t *tally) takes(d time.Duration) {
	t.mu.Lock()
	t.record(d)
	t.good++
	t.mu.Unlock()
}

// counts counts one of those whose time nobody measured.
func (t *tally) counts() {
	t.mu.Lock()
	t.good++
	t.mu.Unlock()
}

// drain moves what was counted into sum.
func (t *tally) drain(sum *Part) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum.Good += t.good
	sum.Bad += t.bad
	t.good, t.bad = 0, 0
	if !t.empty() {
		sum.times().add(t.latencies)
		t.h.Reset()
	}
}

// The clock in an event; see Stamped.
const stampLen = 8

var order = binary.BigEndian
