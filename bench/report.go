package bench

import (
	"encoding/json"
	"errors"
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
	// Shape is the client's; see Load.Shape.
	Shape   string  `json:"client_shape"`
	Machine Machine `json:"machine"`

	// Elapsed is how long the measured part took, without warming up.
	Elapsed time.Duration `json:"elapsed_ns"`
	// Requests, or events, deliveries, notifications or handshakes, that went as
	// they should, and Errors that did not.
	Requests uint64 `json:"requests"`
	Errors   uint64 `json:"errors"`
	// Unsent is how many requests of an open loop never left; see Sample.
	Unsent  uint64  `json:"unsent,omitempty"`
	Rate    float64 `json:"per_second"`
	Latency Latency `json:"latency"`
	// Beside is what the scenario has besides, nil where it has nothing.
	Beside *Beside `json:"beside,omitempty"`
	// Among and Bare are with Notify; see Sample.
	Among  *Beside `json:"among,omitempty"`
	Bare   Latency `json:"bare"`
	Memory *Memory `json:"memory,omitempty"` // with Idle

	Server Cost `json:"server"`
	Client Cost `json:"client"`

	Syscalls *Syscalls `json:"system_calls,omitempty"` // if they were asked for

	Distribution []Quantile `json:"distribution,omitempty"`
	Series       []Point    `json:"rate_over_time,omitempty"`
}

// Beside are the requests of a scenario that are not what it is about.
type Beside struct {
	Name     string  `json:"name"`
	Requests uint64  `json:"requests"`
	Errors   uint64  `json:"errors"`
	Rate     float64 `json:"per_second"`
	Latency  Latency `json:"latency"`
}

// Memory is what a server process held for each idle connection, in KiB of
// resident memory, beyond what it held without connections.
type Memory struct {
	Connections int `json:"connections"`
	// Before and After the burst, as it was; and Settled, when the server had been
	// told to collect its garbage and to give unused memory back, less what its runtime
	// kept nevertheless: that is some megaoctets or nothing, by chance.
	Before        float64 `json:"before_kib"`
	SettledBefore float64 `json:"settled_before_kib"`
	After         float64 `json:"after_kib"`
	SettledAfter  float64 `json:"settled_after_kib"`
	// CPU time in us, and objects allocated, of a connection in a second in which it
	// said nothing, before the burst.
	CPU    float64 `json:"quiet_cpu_us_per_second"`
	Allocs float64 `json:"quiet_allocs_per_second"`
	// Base is what the process held without connections, in KiB.
	Base float64 `json:"base_kib"`
	// Growth is what the whole process held after the burst, as a multiple of what it
	// held before; 0 where that is not counted. It is of the settled readings, and
	// GrowthAsItWas of the others.
	Growth        float64 `json:"after_to_before"`
	GrowthAsItWas float64 `json:"after_to_before_as_it_was"`
	// Goroutines of the server, without connections, before the burst and after it.
	Goroutines [3]int64 `json:"goroutines"`
}

// ErrMissed is the class of errors about a measurement that was made and found
// something to be other than it should.
var ErrMissed = errors.New("bench: not as it should be")

// Missed says what is not as Options ask for, or as it always should be: growth of
// memory and goroutines with Idle, what was lost with Notify. It is nil or of class
// ErrMissed.
func (r *Report) Missed() error {
	var missed []error
	miss := func(format string, args ...any) {
		missed = append(missed, fmt.Errorf("%w: %s", ErrMissed, fmt.Sprintf(format, args...)))
	}
	o := &r.Options
	if o.Scenario == Notify && (r.Errors > 0 || r.Requests != uint64(o.Count)) {
		miss("%d of %d notifications arrived", r.Requests, o.Count)
	}
	if m := r.Memory; m != nil {
		if most := 1 + o.MostGrowth/100; o.MostGrowth > 0 && m.Growth > most {
			miss("%.3f times as much resident memory after the burst as before it, %.3f at most", m.Growth, most)
		}
		if each := max(m.SettledBefore, m.SettledAfter); o.MostEach > 0 && each > o.MostEach {
			miss("%.2f KiB a connection, %.2f at most", each, o.MostEach)
		}
		if m.Goroutines[2] > m.Goroutines[1] {
			miss("%d goroutines after the burst, %d before it", m.Goroutines[2], m.Goroutines[1])
		}
		// Each connection may not have its own.
		if more := m.Goroutines[1] - m.Goroutines[0]; more > 0 && more >= int64(m.Connections)/10 {
			miss("%d goroutines more with %d connections", more, m.Connections)
		}
	}
	return errors.Join(missed...)
}

// Cost is what one side used for each request, or event, or whatever else the
// scenario counts.
type Cost struct {
	CPU      float64 `json:"cpu_us_per_request"`
	System   float64 `json:"system_us_per_request"` // the part of CPU inside the kernel
	Allocs   float64 `json:"allocs_per_request"`
	Octets   float64 `json:"octets_per_request"` // allocated on the heap
	Reads    float64 `json:"reads_per_request"`  // system calls
	Writes   float64 `json:"writes_per_request"` // system calls
	Switches float64 `json:"waits_per_request"`  // times that no thread had more to do
	Total    Usage   `json:"total"`
}

// CostOf shares what was used among requests.
func CostOf(u Usage, requests uint64) Cost {
	return Cost{
		CPU:      rounded(per(float64(u.CPU())/float64(time.Microsecond), requests), 3),
		System:   rounded(per(float64(u.System)/float64(time.Microsecond), requests), 3),
		Allocs:   rounded(per(float64(u.Allocs), requests), 4),
		Octets:   rounded(per(float64(u.Octets), requests), 2),
		Reads:    rounded(per(float64(u.Reads), requests), 4),
		Writes:   rounded(per(float64(u.Writes), requests), 4),
		Switches: rounded(per(float64(u.Switches), requests), 4),
		Total:    u,
	}
}

// Machine says what was measured on what.
type Machine struct {
	CPU      string `json:"cpu"`
	CPUs     int    `json:"cpus"` // usable by this process
	System   string `json:"system"`
	Go       string `json:"go"`
	AESGCM   string `json:"aes_gcm,omitempty"` // see the function AESGCM
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
}

// ThisMachine describes this one, and this build.
func ThisMachine() Machine {
	m := Machine{
		CPU:    cpuid.CPU.BrandName,
		CPUs:   runtime.GOMAXPROCS(0),
		System: runtime.GOOS + "/" + runtime.GOARCH,
		Go:     runtime.Version(),
		AESGCM: AESGCM(),
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

func (m Machine) String() string {
	s := fmt.Sprintf("%d x %s, %s, %s", m.CPUs, m.CPU, m.System, m.Go)
	if m.AESGCM != "" {
		s += ", AES-GCM " + m.AESGCM
	}
	return s
}

// nouns are what the scenarios count.
var nouns = map[string]string{
	Unary: "requests", Mixed: "small requests", Stream: "events", Fanout: "deliveries",
	Notify: "notifications", Handshake: "handshakes", Idle: "connections",
}

// singles are one of them, or what else costs are shared among.
var singles = map[string]string{
	Unary: "request", Mixed: "request of either size", Stream: "event", Fanout: "delivery",
	Notify: "notification", Handshake: "handshake",
}

// besides are what they have besides.
var besides = map[string]string{Mixed: "large requests", Fanout: "publications", Notify: "lone requests"}

// reportOf makes a report of a sample.
func reportOf(o Options, shape string, s *Sample) *Report {
	r := &Report{
		Options: o, Shape: shape, Machine: ThisMachine(),
		Elapsed:  s.Elapsed,
		Requests: s.Main.Good, Errors: s.Main.Bad, Unsent: s.Unsent,
		Rate:         rounded(s.Rate(), 1),
		Latency:      s.Main.Latency(),
		Server:       CostOf(s.Server, s.Server.Handled),
		Client:       CostOf(s.Client, s.Main.Good),
		Distribution: s.Main.Distribution(),
		Series:       s.Series,
	}
	if o.Scenario == Mixed {
		r.Client = CostOf(s.Client, s.Main.Good+s.Beside.Good)
	}
	if name := besides[o.Scenario]; name != "" {
		r.Beside = besideOf(name, &s.Beside, s.Elapsed)
	}
	if o.Scenario == Notify {
		r.Beside.Rate = 0 // they rest in between
		r.Among = besideOf("requests among them", &s.Among, s.Elapsed)
		r.Bare = s.Bare.Latency()
	}
	return r
}

func besideOf(name string, p *Part, elapsed time.Duration) *Beside {
	b := &Beside{Name: name, Requests: p.Good, Errors: p.Bad, Latency: p.Latency()}
	if elapsed > 0 {
		b.Rate = rounded(float64(p.Good)/elapsed.Seconds(), 1)
	}
	return b
}

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range r.Rows() {
		fmt.Fprintf(t, "%s\t%s\n", row[0], row[1])
	}
	return t.Flush()
}

// Rows are the report as names and what they have to say.
func (r *Report) Rows() (rows [][2]string) {
	o := &r.Options
	add := func(name, format string, args ...any) {
		rows = append(rows, [2]string{name, fmt.Sprintf(format, args...)})
	}
	noun := nouns[o.Scenario]
	one := singles[o.Scenario]
	what := o.Scenario
	if o.Class != Opaque {
		what += " " + o.Class
	}
	add("load", "%s: %s; %s client over %s; loops: server %s, client %s", what, o.Load(), r.Shape, o.under(), loops(o.ServerLoops), loops(o.ClientLoops))
	add("machine", "%v", r.Machine)
	if Unprotected {
		add("protection", "NONE: this build seals no frame, to show what the rest costs")
	}
	if m := r.Memory; m != nil {
		add("resident", "%.2f KiB a connection before the burst, %.2f after it", m.SettledBefore, m.SettledAfter)
		add("as it was", "%.2f KiB before, %.2f after, without collecting garbage for the reading", m.Before, m.After)
		add("base", "%.0f KiB without connections", m.Base)
		add("quiet", "%.3g us CPU and %.3g allocs a second for each connection", m.CPU, m.Allocs)
		add("after/before", "%.3f of the whole process; as it was %.3f", m.Growth, m.GrowthAsItWas)
		add("goroutines", "%d without connections, %d before the burst, %d after it", m.Goroutines[0], m.Goroutines[1], m.Goroutines[2])
		return rows
	}
	add(noun, "%d in %v, %d errors", r.Requests, r.Elapsed.Round(time.Millisecond), r.Errors)
	add("rate", "%.0f %s/s", r.Rate, noun)
	if r.Unsent > 0 {
		add("unsent", "%d requests of the schedule", r.Unsent)
	}
	if r.Latency.Max > 0 {
		add("latency", "%v", r.Latency)
	}
	for _, b := range []*Beside{r.Among, r.Beside} {
		switch {
		case b == nil:
		case b.Rate > 0:
			add(b.Name, "%d, %d errors, %.0f/s, %v", b.Requests, b.Errors, b.Rate, b.Latency)
		default:
			add(b.Name, "%d, %d errors, %v", b.Requests, b.Errors, b.Latency)
		}
	}
	if r.Bare.Max > 0 {
		add("over pipes instead", "%v", r.Bare)
	}
	for _, side := range []struct {
		name string
		cost Cost
	}{{"server", r.Server}, {"client", r.Client}} {
		c := side.cost
		add(side.name, "%.2f us CPU/%s (%.2f in the kernel), %.4g allocs, %.4g octets, %.3g reads, %.3g writes, %.3g waits", c.CPU, one, c.System, c.Allocs, c.Octets, c.Reads, c.Writes, c.Switches)
	}
	if s := r.Syscalls; s != nil {
		add("server calls", "%s", words(s.Server))
		add("client calls", "%s; counted by strace, while %d %s were served", words(s.Client), s.Requests, noun)
	}
	return rows
}

func loops(n int) string {
	if n == 0 {
		return "one a processor"
	}
	return fmt.Sprint(n)
}

// String gives the quantiles, three digits or so each.
func (l Latency) String() string {
	return fmt.Sprintf("p50 %v  p90 %v  p99 %v  p99.9 %v  max %v", Short(l.P50), Short(l.P90), Short(l.P99), Short(l.P999), Short(l.Max))
}

// Short leaves three digits or so of a duration.
func Short(d time.Duration) time.Duration {
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
