package bench

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/trestle-npamp/trestle/bench/page"
)

// WritePage writes the report as a page of HTML with plots.
func (r *Report) WritePage(w io.Writer) error {
	o := &r.Options
	p := &page.Page{
		Title: fmt.Sprintf("trestle bench %s over %s", o.Scenario, o.under()),
		Facts: r.Rows(),
	}
	s := page.Section{Title: "What was measured"}
	if len(r.Distribution) > 0 {
		s.Plots = append(s.Plots, &page.Latencies{Title: "Latency: how many took at most how long", Lines: []page.Line{{Name: "all", Points: LatencyPoints(r.Distribution)}}})
	}
	if len(r.Series) > 0 {
		line := page.Line{Name: "all"}
		for _, q := range r.Series {
			line.Points = append(line.Points, [2]float64{q.At.Seconds(), q.Rate})
		}
		s.Plots = append(s.Plots, &page.Rates{Title: strings.ToUpper(nouns[o.Scenario][:1]) + nouns[o.Scenario][1:] + " a second", Lines: []page.Line{line}})
	}
	if m := r.Memory; m != nil {
		s.Plots = append(s.Plots, &page.Bars{Title: "Resident memory of a connection, KiB", Bars: []page.Bar{
			{Name: "before the burst", Value: m.SettledBefore, Ours: true},
			{Name: "after it", Value: m.SettledAfter, Ours: true},
			{Name: "before, garbage included", Value: m.Before},
			{Name: "after, garbage included", Value: m.After},
		}})
	} else {
		s.Plots = append(s.Plots, &page.Bars{Title: "CPU time for each, us", Bars: []page.Bar{
			{Name: "server", Value: r.Server.CPU, Ours: true},
			{Name: "server, in the kernel", Value: r.Server.System},
			{Name: "client", Value: r.Client.CPU},
			{Name: "client, in the kernel", Value: r.Client.System},
		}})
	}
	p.Sections = append(p.Sections, s)
	if c := r.Syscalls; c != nil {
		one := singles[o.Scenario]
		s := page.Section{Title: "System calls", Note: fmt.Sprintf("Counted by strace for both processes while %d %s were served, in a time of its own.", c.Requests, nouns[o.Scenario]), Table: [][]string{{"system call", "server, each " + one, "in vain", "client, each " + one, "in vain"}}}
		at := make(map[string]int)
		for side, calls := range [][]Syscall{c.Server, c.Client} {
			for _, x := range calls {
				if at[x.Name] == 0 {
					at[x.Name] = len(s.Table)
					s.Table = append(s.Table, []string{x.Name, "-", "-", "-", "-"})
				}
				row := s.Table[at[x.Name]]
				row[1+2*side], row[2+2*side] = fmt.Sprintf("%.4g", x.Each), fmt.Sprintf("%.0f %%", 100*float64(x.Failed)/float64(max(x.Calls, 1)))
			}
		}
		p.Sections = append(p.Sections, s)
	}
	return p.Write(w)
}

// LatencyPoints are a distribution's as a page draws them.
func LatencyPoints(d []Quantile) (points [][2]float64) {
	for _, q := range d {
		points = append(points, [2]float64{float64(q.Time / time.Nanosecond), q.Share})
	}
	return points
}
