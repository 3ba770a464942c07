package bench

import (
	"fmt"
	"math"
	"os"
	"runtime/metrics"
	"syscall"
	"time"
)

// Usage is what a process had used of its machine at one moment, counted from
// its start. The difference of two says what lay between them.
type Usage struct {
	User     time.Duration `json:"user_ns"`   // CPU time outside the kernel
	System   time.Duration `json:"system_ns"` // CPU time inside the kernel
	Allocs   uint64        `json:"allocs"`    // objects allocated on the heap
	Octets   uint64        `json:"octets"`    // octets allocated on the heap
	Cycles   uint64        `json:"cycles"`    // garbage collections
	Reads    uint64        `json:"reads"`     // read system calls, those in vain too; 0 where not counted
	Writes   uint64        `json:"writes"`    // write system calls; 0 where not counted
	Switches uint64        `json:"switches"`  // times the process gave up a processor to wait
	Handled  uint64        `json:"handled"`   // requests, events or handshakes, for a server

	// Resident is how much memory the process holds now, in octets; 0 where not
	// counted. In a difference it may be negative.
	Resident int64 `json:"resident"`
	// Free is the part of Resident that the heap has no use for and has not given back
	// yet, by the runtime's own account.
	Free int64 `json:"free"`
	// Goroutines are those there are now. In a difference it may be negative.
	Goroutines int64 `json:"goroutines"`
}

// CPU is user and system time together.
func (u Usage) CPU() time.Duration { return u.User + u.System }

// Sub returns what was used between v and u, v being the earlier one.
func (u Usage) Sub(v Usage) Usage {
	return Usage{
		User:     u.User - v.User,
		System:   u.System - v.System,
		Allocs:   u.Allocs - v.Allocs,
		Octets:   u.Octets - v.Octets,
		Cycles:   u.Cycles - v.Cycles,
		Reads:    u.Reads - v.Reads,
		Writes:   u.Writes - v.Writes,
		Switches: u.Switches - v.Switches,
		Handled:  u.Handled - v.Handled,
		Resident: u.Resident - v.Resident,
		Free:     u.Free - v.Free,

		Goroutines: u.Goroutines - v.Goroutines,
	}
}

// Add returns what two differences come to together.
func (u Usage) Add(v Usage) Usage {
	return Usage{
		User:     u.User + v.User,
		System:   u.System + v.System,
		Allocs:   u.Allocs + v.Allocs,
		Octets:   u.Octets + v.Octets,
		Cycles:   u.Cycles + v.Cycles,
		Reads:    u.Reads + v.Reads,
		Writes:   u.Writes + v.Writes,
		Switches: u.Switches + v.Switches,
		Handled:  u.Handled + v.Handled,
		Resident: u.Resident + v.Resident,
		Free:     u.Free + v.Free,

		Goroutines: u.Goroutines + v.Goroutines,
	}
}

// sampler reads this process's Usage. Reading it allocates nothing after the
// first time, so that it does not count itself.
type sampler struct {
	metrics   [6]metrics.Sample
	io, statm *os.File // nil where there are none
	text      [512]byte
}

func newSampler() *sampler {
	s := &sampler{metrics: [6]metrics.Sample{
		{Name: "/gc/heap/allocs:objects"},
		{Name: "/gc/heap/tiny/allocs:objects"}, // not among the former
		{Name: "/gc/heap/allocs:bytes"},
		{Name: "/gc/cycles/total:gc-cycles"},
		{Name: "/sched/goroutines:goroutines"},
		{Name: "/memory/classes/heap/free:bytes"},
	}}
	// Linux has these; elsewhere what they say is missing.
	s.io, _ = os.Open("/proc/self/io")
	s.statm, _ = os.Open("/proc/self/statm")
	return s
}

func (s *sampler) close() {
	s.io.Close() // of a nil file this is an error and nothing else
	s.statm.Close()
}

func (s *sampler) read() (Usage, error) {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return Usage{}, fmt.Errorf("bench: getrusage: %w", err)
	}
	metrics.Read(s.metrics[:])
	u := Usage{
		User:     time.Duration(r.Utime.Nano()),
		System:   time.Duration(r.Stime.Nano()),
		Allocs:   s.count(0) + s.count(1),
		Octets:   s.count(2),
		Cycles:   s.count(3),
		Switches: uint64(r.Nvcsw),

		Goroutines: int64(s.count(4)),
		Free:       int64(s.count(5)),
	}
	var n [4]uint64
	if s.numbers(s.io, n[:]) {
		u.Reads, u.Writes = n[2], n[3] // rchar, wchar, syscr, syscw
	}
	if s.numbers(s.statm, n[:2]) {
		u.Resident = int64(n[1]) * int64(os.Getpagesize()) // size, resident
	}
	return u, nil
}

func (s *sampler) count(i int) uint64 {
	if s.metrics[i].Value.Kind() != metrics.KindUint64 {
		return 0 // a runtime without this metric
	}
	return s.metrics[i].Value.Uint64()
}

// numbers reads the first numbers in a file of the kernel's.
func (s *sampler) numbers(f *os.File, to []uint64) bool {
	if f == nil {
		return false
	}
	n, _ := f.ReadAt(s.text[:], 0) // the end of the file is an error
	found, digits := 0, false
	for _, c := range s.text[:n] {
		switch {
		case c >= '0' && c <= '9':
			if !digits {
				to[found] = 0
			}
			digits = true
			to[found] = to[found]*10 + uint64(c-'0')
		case digits:
			digits = false
			if found++; found == len(to) {
				return true
			}
		}
	}
	return false
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
