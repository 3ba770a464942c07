package bench

import (
	"fmt"
	"math"
	"runtime/metrics"
	"syscall"
	"time"
)

// Usage is what a process had used of its machine at one moment, counted from
// its start. The difference of two says what lay between them.
type Usage struct {
	User    time.Duration `json:"user_ns"`   // CPU time outside the kernel
	System  time.Duration `json:"system_ns"` // CPU time inside the kernel
	Allocs  uint64        `json:"allocs"`    // objects allocated on the heap
	Octets  uint64        `json:"octets"`    // octets allocated on the heap
	Cycles  uint64        `json:"cycles"`    // garbage collections
	Handled uint64        `json:"handled"`   // requests answered, for a server
}

// CPU is user and system time together.
func (u Usage) CPU() time.Duration { return u.User + u.System }

// Sub returns what was used between v and u, v being the earlier one.
func (u Usage) Sub(v Usage) Usage {
	return Usage{
		User:    u.User - v.User,
		System:  u.System - v.System,
		Allocs:  u.Allocs - v.Allocs,
		Octets:  u.Octets - v.Octets,
		Cycles:  u.Cycles - v.Cycles,
		Handled: u.Handled - v.Handled,
	}
}

// sampler reads this process's Usage. Reading it allocates nothing after the
// first time, so that it does not count itself.
type sampler struct {
	metrics [4]metrics.Sample
}

func newSampler() *sampler {
	return &sampler{[4]metrics.Sample{
		{Name: "/gc/heap/allocs:objects"},
		{Name: "/gc/heap/tiny/allocs:objects"}, // not among the former
		{Name: "/gc/heap/allocs:bytes"},
		{Name: "/gc/cycles/total:gc-cycles"},
	}}
}

func (s *sampler) read() (Usage, error) {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return Usage{}, fmt.Errorf("bench: getrusage: %w", err)
	}
	metrics.Read(s.metrics[:])
	return Usage{
		User:   time.Duration(r.Utime.Nano()),
		System: time.Duration(r.Stime.Nano()),
		Allocs: s.count(0) + s.count(1),
		Octets: s.count(2),
		Cycles: s.count(3),
	}, nil
}

func (s *sampler) count(i int) uint64 {
	if s.metrics[i].Value.Kind() != metrics.KindUint64 {
		return 0 // a runtime without this metric
	}
	return s.metrics[i].Value.Uint64()
}

// per is total/n, and 0 where there was nothing to share it among.
func per(total float64, n uint64) float64 {
	if n == 0 {
		return 0
	}
	return total / float64(n)
}

// rounded cuts a measured number to digits after the point, since more would
// claim more than was measured.
func rounded(v float64, digits int) float64 {
	p := math.Pow10(digits)
	return math.Round(v*p) / p
}
