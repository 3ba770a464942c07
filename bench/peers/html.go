package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/trestle-npamp/trestle/bench"
	"github.com/trestle-npamp/trestle/bench/page"
)

// writePage writes the result as a page of HTML with plots.
func (r *result) writePage(w io.Writer) error {
	p := &page.Page{
		Title: "Trestle beside its peers",
		Intro: "All were measured in one run, in short turns one after the other, by the same load. Compare figures of one page only.",
		Facts: [][2]string{
			{"machine", r.Machine.String()},
			{"turns", fmt.Sprintf("%d of up to %v each", r.Rounds, r.Slice)},
			{"took", r.Took.String()},
		},
	}
	for _, of := range all() {
		if slices.ContainsFunc(r.Scenarios, func(o *outcome) bool { return o.find(of.name) != nil }) {
			p.Facts = append(p.Facts, [2]string{of.name, of.what})
		}
	}
	if len(r.Goals) > 0 {
		s := page.Section{Title: "What we aim at", Note: "Each is written so that more is better.", Table: [][]string{{"goal", "at least", "got", "in its rounds", ""}}, Marked: map[int]bool{}, Prose: true}
		for i, g := range r.Goals {
			verdict := "missed"
			if g.Met {
				verdict, s.Marked[i] = "met", true
			}
			s.Table = append(s.Table, []string{g.Goal, fmt.Sprintf("%.2f", g.Want), fmt.Sprintf("%.2f", g.Got), g.spread(), verdict})
		}
		p.Sections = append(p.Sections, s)
	}
	for _, o := range r.Scenarios {
		p.Sections = append(p.Sections, o.section())
	}
	return p.Write(w)
}

func (o *outcome) section() page.Section {
	s := page.Section{Title: o.Name, Note: o.What, Table: o.rows(), Marked: map[int]bool{}, Folded: true}
	if o.Rate > 0 {
		s.Note += fmt.Sprintf("; %.0f requests/s", o.Rate)
	}
	for i, f := range o.Peers {
		s.Marked[i] = isOurs(f.Peer)
	}
	bars := func(title string, of func(*figures) float64, more bool) {
		b := &page.Bars{Title: title}
		for _, f := range o.Peers {
			if f.Error == "" {
				b.Bars = append(b.Bars, page.Bar{Name: f.name(), Value: of(f), Ours: isOurs(f.Peer)})
			}
		}
		slices.SortStableFunc(b.Bars, func(x, y page.Bar) int {
			if more {
				return cmp.Compare(y.Value, x.Value)
			}
			return cmp.Compare(x.Value, y.Value)
		})
		s.Plots = append(s.Plots, b)
	}
	if o.Name == "idle" {
		bars("Resident memory of a connection, KiB", func(f *figures) float64 { return f.Resident }, false)
		bars("The same after a burst, KiB", func(f *figures) float64 { return f.After }, false)
		return s
	}
	bars("Server's CPU time for each, us: less is better", func(f *figures) float64 { return f.CPU }, false)
	bars("How many a second: more is better", func(f *figures) float64 { return f.Rate }, true)
	times := &page.Latencies{Title: "Latency: how many took at most how long"}
	for _, f := range o.Peers {
		if f.Error == "" {
			times.Lines = append(times.Lines, page.Line{Name: f.Peer, Points: bench.LatencyPoints(f.latency)})
		}
	}
	s.Plots = append(s.Plots, times)
	rates := &page.Rates{Title: "How many a second, turn by turn"}
	for _, f := range o.Peers {
		line := page.Line{Name: f.Peer}
		var at float64
		for _, sample := range f.samples {
			for _, x := range sample.Series {
				line.Points = append(line.Points, [2]float64{at + x.At.Seconds(), x.Rate})
			}
			at += sample.Elapsed.Seconds()
			if len(sample.Series) == 0 { // a short turn is a point
				line.Points = append(line.Points, [2]float64{at, sample.Rate()})
			}
		}
		if len(line.Points) > 1 {
			rates.Lines = append(rates.Lines, line)
		}
	}
	if len(rates.Lines) > 0 {
		s.Plots = append(s.Plots, rates)
	}
	return s
}

// name says also how the peer was loaded.
func (f *figures) name() string {
	name := f.Peer
	if f.Shape != "" {
		name += ", " + f.Shape + " client"
	}
	if f.Loops != "goroutines" {
		name += ", loops " + f.Loops
	}
	return name
}
