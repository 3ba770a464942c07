package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/trestle-npamp/trestle/bench"
)

// result is what a run found.
type result struct {
	Machine   bench.Machine `json:"machine"`
	Rounds    int           `json:"rounds"`
	Slice     time.Duration `json:"slice_ns"`
	Loops     int           `json:"loops"` // 0: one a processor
	Took      time.Duration `json:"took_ns"`
	Scenarios []*outcome    `json:"scenarios"`
	Goals     []goal        `json:"goals,omitempty"`
}

// outcome is one scenario's.
type outcome struct {
	Name string  `json:"name"`
	What string  `json:"what"`
	Rate float64 `json:"offered_per_second,omitempty"` // of an open loop
	// Slice is how long each turn was measured, none where each peer had but one turn.
	Slice time.Duration `json:"slice_ns,omitempty"`
	Peers []*figures    `json:"peers"`
}

// figures are one peer's in a scenario. Rate and costs are medians over the
// rounds, quantiles those of all rounds together. Idle connections have no rate and
// no quantiles, and their costs are those of a connection in a second of quiet.
type figures struct {
	Peer  string `json:"peer"`
	What  string `json:"what"`
	Shape string `json:"client_shape"`
	Loops string `json:"loops"` // event loops of server and client, or goroutines
	Error string `json:"error,omitempty"`

	Rate     float64       `json:"per_second"`
	P50      time.Duration `json:"p50_ns"`
	P99      time.Duration `json:"p99_ns"`
	P999     time.Duration `json:"p999_ns"`
	CPU      float64       `json:"server_cpu_us"`
	System   float64       `json:"server_kernel_us"` // the part of CPU inside the kernel
	Allocs   float64       `json:"server_allocs"`
	Reads    float64       `json:"server_reads"`
	Writes   float64       `json:"server_writes"`
	Client   float64       `json:"client_cpu_us"`
	Rounds   int           `json:"rounds"`
	Requests uint64        `json:"requests"`
	Errors   uint64        `json:"errors"`
	Unsent   uint64        `json:"unsent,omitempty"`
	// Resident is the server's memory in KiB: with idle connections that of each,
	// otherwise of the process at the end.
	Resident float64 `json:"resident_kib"`
	// After is Resident after a burst.
	After float64 `json:"resident_after_burst_kib,omitempty"`

	// Ours compares us with this peer.
	Ours map[string]ratio `json:"our_ratio,omitempty"`

	samples []*bench.Sample
	latency []bench.Quantile
}

// ratio is how we stand to a peer: medians over the rounds of what one round's
// figures are to each other, and the least and the most that a round had. Above 1
// we are better in all of them; 0 is where there is nothing to compare.
type ratio struct {
	ratios
	Memory float64 `json:"resident_kib"` // its to ours; of one reading
	Rounds int     `json:"rounds"`       // in which both had something to show
	Least  ratios  `json:"least"`
	Most   ratios  `json:"most"`
}

type ratios struct {
	Rate float64 `json:"rate"`       // ours to its
	CPU  float64 `json:"server_cpu"` // its to ours
	P50  float64 `json:"p50"`        // its to ours
	P99  float64 `json:"p99"`        // its to ours
}

func outcomeOf(s *scenario, rate float64, slice time.Duration, turns []*turn) *outcome {
	o := &outcome{Name: s.name, What: s.what, Rate: math.Round(rate)}
	if s.kind != bench.Idle {
		o.Slice = slice
	}
	for _, t := range turns {
		o.Peers = append(o.Peers, figuresOf(t))
	}
	for _, mine := range o.Peers {
		if !isOurs(mine.Peer) || mine.Error != "" {
			continue
		}
		for _, f := range o.Peers {
			if isOurs(f.Peer) || f.Error != "" {
				continue
			}
			if f.Ours == nil {
				f.Ours = make(map[string]ratio)
			}
			f.Ours[mine.Peer] = compare(mine, f)
		}
	}
	return o
}

func isOurs(name string) bool {
	return slices.ContainsFunc(ours, func(p *peer) bool { return p.name == name })
}

func figuresOf(t *turn) *figures {
	f := &figures{Peer: t.peer.name, What: t.peer.what, Shape: t.o.Client, Loops: "goroutines", samples: t.samples}
	if t.peer.transport != "" { // its client, at least, is on loops
		f.Loops = fmt.Sprintf("%d and %d", loops(t.o.ServerLoops), loops(t.o.ClientLoops))
		if t.peer.serverGoroutines {
			f.Loops = fmt.Sprintf("goroutines and %d", loops(t.o.ClientLoops))
		}
	}
	if t.load != nil {
		f.Shape = t.load.Shape()
	}
	if t.err != nil {
		f.Error = t.err.Error()
		return f
	}
	if m := t.memory; m != nil {
		f.Shape = ""
		f.Resident, f.After = m.SettledBefore, m.SettledAfter
		f.CPU, f.Allocs = m.CPU, m.Allocs
		return f
	}
	f.Rounds = len(t.samples)
	var sum bench.Sample
	for _, s := range t.samples {
		sum.Add(s)
	}
	l := sum.Main.Latency()
	f.P50, f.P99, f.P999 = l.P50, l.P99, l.P999
	f.latency = sum.Main.Distribution()
	f.Requests, f.Errors, f.Unsent = sum.Main.Good, sum.Main.Bad+sum.Beside.Bad, sum.Unsent
	cost := func(s *bench.Sample) bench.Cost { return bench.CostOf(s.Server, s.Server.Handled) }
	f.Rate = rounded(median(t.samples, (*bench.Sample).Rate), 0)
	f.CPU = rounded(median(t.samples, func(s *bench.Sample) float64 { return cost(s).CPU }), 3)
	f.System = rounded(median(t.samples, func(s *bench.Sample) float64 { return cost(s).System }), 3)
	f.Allocs = rounded(median(t.samples, func(s *bench.Sample) float64 { return cost(s).Allocs }), 3)
	f.Reads = rounded(median(t.samples, func(s *bench.Sample) float64 { return cost(s).Reads }), 3)
	f.Writes = rounded(median(t.samples, func(s *bench.Sample) float64 { return cost(s).Writes }), 3)
	f.Client = rounded(median(t.samples, func(s *bench.Sample) float64 { return bench.CostOf(s.Client, s.Main.Good).CPU }), 3)
	if u, err := t.server.Usage(); err == nil {
		f.Resident = float64(u.Resident) / 1024
	}
	return f
}

// compare says how we stand to a peer.
func compare(mine, its *figures) ratio {
	n := min(len(mine.samples), len(its.samples))
	var rates, cpus, p50s, p99s []float64
	for i := range n {
		a, b := mine.samples[i], its.samples[i]
		if a.Main.Good == 0 || b.Main.Good == 0 {
			continue // a machine so busy that a turn was over before anything was: it says nothing
		}
		rates = append(rates, over(a.Rate(), b.Rate()))
		cpus = append(cpus, over(bench.CostOf(b.Server, b.Server.Handled).CPU, bench.CostOf(a.Server, a.Server.Handled).CPU))
		// Of all rounds together, one in which the machine stood still for a while
		// would decide.
		x, y := a.Main.Latency(), b.Main.Latency()
		p50s = append(p50s, over(float64(y.P50), float64(x.P50)))
		p99s = append(p99s, over(float64(y.P99), float64(x.P99)))
	}
	r := ratio{Memory: over(its.Resident, mine.Resident), Rounds: len(rates)}
	if len(rates) == 0 { // idle
		r.CPU = over(its.CPU, mine.CPU)
		return r
	}
	all := func(of func([]float64) float64) ratios {
		return ratios{Rate: short(of(rates)), CPU: short(of(cpus)), P50: short(of(p50s)), P99: short(of(p99s))}
	}
	r.ratios, r.Least, r.Most = all(middle), all(slices.Min[[]float64]), all(slices.Max[[]float64])
	return r
}

func over(a, b float64) float64 {
	if a <= 0 || b <= 0 {
		return 0
	}
	return short(a / b)
}

// short leaves three digits of a number, wherever its point is.
func short(v float64) float64 {
	if v == 0 {
		return 0
	}
	return rounded(v, 2-int(math.Floor(math.Log10(math.Abs(v)))))
}

func median(samples []*bench.Sample, of func(*bench.Sample) float64) float64 {
	var all []float64
	for _, s := range samples {
		all = append(all, of(s))
	}
	return middle(all)
}

func middle(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	slices.SortFunc(all, cmp.Compare[float64])
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}

func rounded(v float64, digits int) float64 {
	p := math.Pow10(digits)
	return math.Round(v*p) / p
}

// best is the highest rate that a protocol other than ours had in a scenario.
func (r *result) best(name string) (rate float64) {
	for _, o := range r.Scenarios {
		if o.Name != name {
			continue
		}
		for _, f := range o.Peers {
			if !isOurs(f.Peer) && find(f.Peer).protocol() {
				rate = max(rate, f.Rate)
			}
		}
	}
	return rate
}

// find returns a peer's figures in a scenario, nil if there are none.
func (r *result) find(scenario, peer string) *figures {
	for _, o := range r.Scenarios {
		if f := o.find(peer); o.Name == scenario && f != nil && f.Error == "" {
			return f
		}
	}
	return nil
}

// find returns what there is of a peer, nil if there is nothing.
func (o *outcome) find(peer string) *figures {
	for _, f := range o.Peers {
		if f.Peer == peer {
			return f
		}
	}
	return nil
}

// goal is something that we aim at, and how far we have come.
type goal struct {
	Goal string  `json:"goal"`
	Want float64 `json:"at_least"`
	Got  float64 `json:"got"` // the median over the rounds
	// Least and Most are those of a round.
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
	Rounds int     `json:"rounds"`
	Met    bool    `json:"met"`
}

// spread is what else there is to know about Got, in words.
func (g *goal) spread() string {
	if g.Rounds == 1 {
		return "one reading"
	}
	return fmt.Sprintf("%.2f to %.2f in %d rounds", g.Least, g.Most, g.Rounds)
}

// goals sets down those that this run can judge. Each is written so that more is
// better.
func (r *result) goals() {
	ratioOf := func(scenario, us, peer string) (ratio, bool) {
		f := r.find(scenario, peer)
		if f == nil {
			return ratio{}, false
		}
		v, ok := f.Ours[us]
		return v, ok
	}
	cpu := func(x ratios) float64 { return x.CPU }
	rate := func(x ratios) float64 { return x.Rate }
	p50 := func(x ratios) float64 { return x.P50 }
	p99 := func(x ratios) float64 { return x.P99 }
	for _, g := range []struct {
		text               string
		want               float64
		scenario, us, peer string
		of                 func(ratios) float64
	}{
		{"raw TCP: times less server CPU a request than grpc-go", 16, "unary-batch", "trestle-tcp", "grpc", cpu},
		{"raw TCP: times less server CPU a request than blocking N-PAMP on raw TCP", 14, "unary-batch", "trestle-tcp", "blocking-tcp", cpu},
		{"raw TCP: share of the bare echo's rate", 0.6, "unary-batch", "trestle-tcp", "echo", rate},
		{"TLS: times less server CPU a request than grpc-go", 12, "unary-batch", "trestle-tls", "grpc", cpu},
		{"TLS: times less server CPU a request than blocking N-PAMP on TLS", 10, "unary-batch", "trestle-tls", "blocking-tls", cpu},
		{"raw TCP, a goroutine a call: times grpc-go's rate", 2.5, "unary-calls", "trestle-tcp", "grpc", rate},
		{"TLS, a goroutine a call: times grpc-go's rate", 2.5, "unary-calls", "trestle-tls", "grpc", rate},
		{"raw TCP, one request at a time: times grpc-go's rate", 3.5, "lone-calls", "trestle-tcp", "grpc", rate},
		{"TLS, one request at a time: times grpc-go's rate", 3.5, "lone-calls", "trestle-tls", "grpc", rate},
		{"raw TCP, one request at a time: the bare echo's p50 to ours", 1 / 1.2, "lone-batch", "trestle-tcp", "echo", p50},
		{"raw TCP, 64 connections: times grpc-go's events a CPU second", 4, "stream-64", "trestle-tcp", "grpc", cpu},
		{"TLS, 64 connections: times grpc-go's events a CPU second", 4, "stream-64", "trestle-tls", "grpc", cpu},
		{"raw TCP, one connection: times grpc-go's events a CPU second", 8, "stream-1", "trestle-tcp", "grpc", cpu},
		{"TLS, one connection: times grpc-go's events a CPU second", 8, "stream-1", "trestle-tls", "grpc", cpu},
	} {
		if got, ok := ratioOf(g.scenario, g.us, g.peer); ok && g.of(got.ratios) > 0 {
			r.add(g.text, g.want, got, g.of)
		}
	}
	for _, us := range ours {
		var least ratio // to the protocol that has the best p99
		for _, p := range others {
			got, ok := ratioOf("offered", us.name, p.name)
			if ok && p.protocol() && got.P99 > 0 && (least.Rounds == 0 || got.P99 < least.P99) {
				least = got
			}
		}
		if least.Rounds > 0 {
			r.add(us.what+", at equal offered load: the best protocol's p99 to ours", 1, least, p99)
		}
	}
	for i, most := range []float64{8, 12} {
		if f := r.find("idle", ours[i].name); f != nil && f.Resident > 0 {
			r.addOne(fmt.Sprintf("%s, idle: %v KiB a connection to ours (%.1f KiB)", f.What, most, f.Resident), 1, most/f.Resident)
			r.addOne(fmt.Sprintf("%s, after a burst: %v KiB a connection to ours (%.1f KiB)", f.What, most, f.After), 1, most/f.After)
		}
	}
}

func (r *result) add(text string, want float64, x ratio, of func(ratios) float64) {
	got := of(x.ratios)
	r.Goals = append(r.Goals, goal{Goal: text, Want: rounded(want, 2), Got: short(got), Least: of(x.Least), Most: of(x.Most), Rounds: x.Rounds, Met: got >= want})
}

// addOne is add for what is read once.
func (r *result) addOne(text string, want, got float64) {
	v := short(got)
	r.Goals = append(r.Goals, goal{Goal: text, Want: rounded(want, 2), Got: v, Least: v, Most: v, Rounds: 1, Met: got >= want})
}

func (r *result) writeJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// rounds are how many turns each peer had that had any.
func (o *outcome) rounds() (n int) {
	for _, f := range o.Peers {
		if f.Rounds > 0 && (n == 0 || f.Rounds < n) {
			n = f.Rounds
		}
	}
	return n
}

// rows of a scenario, the first of them the names of the columns.
func (o *outcome) rows() [][]string {
	num := func(v float64) string {
		switch {
		case v == 0:
			return "-"
		case v >= 100:
			return fmt.Sprintf("%.0f", v)
		case v >= 10:
			return fmt.Sprintf("%.1f", v)
		}
		return fmt.Sprintf("%.2f", v)
	}
	if o.Name == "idle" {
		rows := [][]string{{"peer", "KiB/connection", "after a burst", "server us/s", "to tcp", "to tls"}}
		for _, f := range o.Peers {
			if f.Error != "" {
				rows = append(rows, []string{f.Peer, f.Error})
				continue
			}
			rows = append(rows, []string{f.Peer, num(f.Resident), num(f.After), num(f.CPU), num(f.Ours["trestle-tcp"].Memory), num(f.Ours["trestle-tls"].Memory)})
		}
		return rows
	}
	rows := [][]string{{"peer", "client", "loops", "rate/s", "p50", "p99", "server us", "kernel", "allocs", "reads", "writes", "client us", "tcp: rate", "cpu", "p99", "tls: rate", "cpu", "p99"}}
	for _, f := range o.Peers {
		if f.Error != "" {
			rows = append(rows, []string{f.Peer, f.Error})
			continue
		}
		tcp, tls := f.Ours["trestle-tcp"], f.Ours["trestle-tls"]
		rate := fmt.Sprintf("%.0f", f.Rate)
		if f.Errors+f.Unsent > 0 {
			rate += fmt.Sprintf(" (%d errors, %d unsent)", f.Errors, f.Unsent)
		}
		rows = append(rows, []string{
			f.Peer, f.Shape, f.Loops, rate, bench.Short(f.P50).String(), bench.Short(f.P99).String(),
			num(f.CPU), num(f.System), num(f.Allocs), num(f.Reads), num(f.Writes), num(f.Client),
			num(tcp.Rate), num(tcp.CPU), num(tcp.P99), num(tls.Rate), num(tls.CPU), num(tls.P99),
		})
	}
	return rows
}

func (r *result) writeTables(w io.Writer) error {
	fmt.Fprintf(w, "%v; %d rounds of up to %v; took %v\n", r.Machine, r.Rounds, r.Slice, r.Took)
	fmt.Fprintf(w, "rate, p50, p99 and costs are of each peer; the last columns say how many times better we are\n")
	for _, o := range r.Scenarios {
		fmt.Fprintf(w, "\n%s: %s", o.Name, o.What)
		if o.Rate > 0 {
			fmt.Fprintf(w, "; %.0f requests/s", o.Rate)
		}
		if o.Slice > 0 {
			fmt.Fprintf(w, "; %d rounds of %v", o.rounds(), o.Slice.Round(time.Millisecond))
		}
		fmt.Fprintln(w)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		for _, row := range o.rows() {
			for _, cell := range row {
				fmt.Fprintf(t, "%s\t", cell)
			}
			fmt.Fprintln(t)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if len(r.Goals) > 0 {
		fmt.Fprintln(w, "\ngoals")
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, g := range r.Goals {
			verdict := "missed"
			if g.Met {
				verdict = "met"
			}
			fmt.Fprintf(t, "%s\t%s\tat least %.2f\tgot %.2f\t%s\n", verdict, g.Goal, g.Want, g.Got, g.spread())
		}
		return t.Flush()
	}
	return nil
}
