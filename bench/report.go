package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"text/tabwriter"
	"time"

	"github.com/klauspost/cpuid/v2"
)

// Report is the result of one run.
type Report struct {
	Options Options `json:"options"`
	Machine Machine `json:"machine"`

	// Elapsed is how long the measured part took, without warming up.
	Elapsed  time.Duration `json:"elapsed_ns"`
	Requests uint64        `json:"requests"` // answered as they should be
	Errors   uint64        `json:"errors"`   // ended otherwise
	Rate     float64       `json:"requests_per_second"`
	Latency  Latency       `json:"latency"`

	Server Cost `json:"server"`
	Client Cost `json:"client"`
}

// Cost is what one side used for each request that the server answered.
type Cost struct {
	CPU    float64 `json:"cpu_us_per_request"`
	System float64 `json:"system_us_per_request"` // the part of CPU inside the kernel
	Allocs float64 `json:"allocs_per_request"`
	Octets float64 `json:"octets_per_request"` // allocated on the heap
	Total  Usage   `json:"total"`
}

func costOf(u Usage, requests uint64) Cost {
	return Cost{
		CPU:    rounded(per(float64(u.CPU())/float64(time.Microsecond), requests), 3),
		System: rounded(per(float64(u.System)/float64(time.Microsecond), requests), 3),
		Allocs: rounded(per(float64(u.Allocs), requests), 4),
		Octets: rounded(per(float64(u.Octets), requests), 2),
		Total:  u,
	}
}

// Machine says what was measured on what.
type Machine struct {
	CPU      string `json:"cpu"`
	CPUs     int    `json:"cpus"` // usable by this process
	System   string `json:"system"`
	Go       string `json:"go"`
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
}

func thisMachine() Machine {
	m := Machine{
		CPU:    cpuid.CPU.BrandName,
		CPUs:   runtime.GOMAXPROCS(0),
		System: runtime.GOOS + "/" + runtime.GOARCH,
		Go:     runtime.Version(),
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		m.Version = info.Main.Version
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				m.Revision = s.Value
			}
		}
	}
	return m
}

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	o := &r.Options
	fmt.Fprintf(t, "load\t%s, %d associations x %d in flight, %d octets, %s over %s\n", o.Class, o.Conns, o.InFlight, o.Size, o.Client, o.Transport)
	fmt.Fprintf(t, "machine\t%d x %s, %s, %s\n", r.Machine.CPUs, r.Machine.CPU, r.Machine.System, r.Machine.Go)
	fmt.Fprintf(t, "requests\t%d in %v, %d errors\n", r.Requests, r.Elapsed.Round(time.Millisecond), r.Errors)
	fmt.Fprintf(t, "rate\t%.0f requests/s\n", r.Rate)
	fmt.Fprintf(t, "latency\tp50 %v  p90 %v  p99 %v  p99.9 %v  max %v\n", short(r.Latency.P50), short(r.Latency.P90), short(r.Latency.P99), short(r.Latency.P999), short(r.Latency.Max))
	for _, side := range []struct {
		name string
		cost Cost
	}{{"server", r.Server}, {"client", r.Client}} {
		fmt.Fprintf(t, "%s\t%.2f us CPU/request (%.2f in the kernel), %.4g allocs/request, %.4g octets/request\n", side.name, side.cost.CPU, side.cost.System, side.cost.Allocs, side.cost.Octets)
	}
	return t.Flush()
}

// short leaves three digits or so of a duration.
func short(d time.Duration) time.Duration {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond)
	case d < time.Second:
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(10 * time.Millisecond)
}

// WriteJSON writes the report for programs.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}
