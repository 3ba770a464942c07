package bench

import (
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

// Latency are quantiles of how long requests took from before the call until
// their reply was in hand, to 1 %.
type Latency struct {
	P50  time.Duration `json:"p50_ns"`
	P90  time.Duration `json:"p90_ns"`
	P99  time.Duration `json:"p99_ns"`
	P999 time.Duration `json:"p999_ns"`
	Max  time.Duration `json:"max_ns"`
}

// merged gives the quantiles over several histograms.
func merged(all []latencies) Latency {
	sum := newLatencies().h
	for _, l := range all {
		sum.Merge(l.h)
	}
	return Latency{
		P50:  time.Duration(sum.ValueAtPercentile(50)),
		P90:  time.Duration(sum.ValueAtPercentile(90)),
		P99:  time.Duration(sum.ValueAtPercentile(99)),
		P999: time.Duration(sum.ValueAtPercentile(99.9)),
		Max:  time.Duration(sum.Max()),
	}
}
