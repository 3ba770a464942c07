package page

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// plotWidth is how wide plots are drawn; the page scales them.
const plotWidth = 360

// palette is how many colours lines can have.
const palette = 10

// Bars compares one number of several.
type Bars struct {
	Title string
	Bars  []Bar
}

// Bar is one of them.
type Bar struct {
	Name  string
	Value float64
	Label string // what the value is called; its digits if empty
	Ours  bool
}

func (b *Bars) title() string { return b.Title }

// svg draws each bar below its name, so that names of any length have room. Where
// the longest would leave the others too short to see, the scale is logarithmic,
// and says so.
func (b *Bars) svg(w *writer, width float64) {
	const row, bar, top = 30, 11, 4
	high, low := 0.0, math.Inf(1)
	for _, x := range b.Bars {
		if x.Value > 0 {
			high, low = max(high, x.Value), min(low, x.Value)
		}
	}
	log := high > 300*low
	height := top + row*float64(len(b.Bars))
	if log {
		height += 14
	}
	begin(w, b.Title, width, height)
	room := width - 74 // for the label behind the longest
	for i, x := range b.Bars {
		y := top + row*float64(i)
		length := 0.0
		switch {
		case x.Value <= 0:
		case log:
			length = room * (0.04 + 0.96*math.Log(x.Value/low)/math.Log(high/low))
		default:
			length = room * x.Value / high
		}
		class, label := "bar", x.Label
		if x.Ours {
			class = "bar ours"
		}
		if label == "" {
			label = digits(x.Value)
		}
		w.f(`<text x="0" y="%.0f" class="dim">%s</text><rect x="0" y="%.0f" width="%.1f" height="%d" rx="2" class="%s"><title>%s: %s</title></rect><text x="%.1f" y="%.0f">%s</text>`+"\n",
			y+11, text(x.Name), y+15, max(length, 1), bar, class, text(x.Name), text(label), max(length, 1)+5, y+24, text(label))
	}
	if log {
		w.f(`<text x="0" y="%.0f" class="dim">logarithmic scale from %s to %s</text>`+"\n", height-2, digits(low), digits(high))
	}
	end(w)
}

// Line is a series of points.
type Line struct {
	Name   string
	Points [][2]float64
}

// Latencies draws distributions of time: for each share of requests, how long they
// took at most. X of a point is nanoseconds, Y the share from 0 to 1.
type Latencies struct {
	Title string
	Lines []Line
}

func (l *Latencies) title() string { return l.Title }

// The shares that get a line of the grid. The axis stretches the slow end, since
// that is what one looks for.
var shares = []struct {
	share float64
	name  string
}{{0, "0"}, {0.5, "50 %"}, {0.9, "90 %"}, {0.99, "99 %"}, {0.999, "99.9 %"}, {0.9999, "99.99 %"}}

func nines(share float64) float64 {
	return -math.Log10(max(1-share, 1e-5))
}

func (l *Latencies) svg(w *writer, width float64) {
	const left, right, top, plot, below = 56, 12, 20, 190, 36
	low, high := math.Inf(1), 0.0
	for _, x := range l.Lines {
		for _, p := range x.Points {
			if p[0] > 0 {
				low, high = min(low, p[0]), max(high, p[0])
			}
		}
	}
	if high == 0 {
		low, high = 1e3, 1e6
	}
	low, high = math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
	if low == high {
		high++
	}
	most := nines(shares[len(shares)-1].share)
	x := func(ns float64) float64 {
		return left + (width-left-right)*(min(max(math.Log10(max(ns, 1)), low), high)-low)/(high-low)
	}
	y := func(share float64) float64 { return top + plot*(1-min(nines(share), most)/most) }
	begin(w, l.Title, width, top+plot+below+legendHeight(l.Lines, width))
	axes(w, width, top+plot+30, "share of all", "took no longer than this (logarithmic)")
	for _, s := range shares {
		w.f(`<line class="grid" x1="%d" x2="%.0f" y1="%.1f" y2="%.1f"/><text class="dim" x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			left, width-right, y(s.share), y(s.share), left-5, y(s.share)+4, s.name)
	}
	for e := low; e <= high; e++ {
		at := x(math.Pow(10, e))
		w.f(`<line class="grid" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/><text class="dim" x="%.1f" y="%d" text-anchor="%s">%s</text>`+"\n",
			at, at, top, top+plot, min(at, width), top+plot+15, anchor(at, width), time.Duration(math.Pow(10, e)))
	}
	for i, line := range l.Lines {
		points := make([][2]float64, 0, len(line.Points)+1)
		for _, p := range line.Points {
			if len(points) == 0 {
				points = append(points, [2]float64{x(p[0]), y(0)})
			}
			points = append(points, [2]float64{x(p[0]), y(p[1])})
		}
		path(w, i, line.Name, points)
	}
	legend(w, l.Lines, width, top+plot+below)
	end(w)
}

// Rates draws how much went on over time. X of a point is seconds.
type Rates struct {
	Title string
	Lines []Line
}

func (r *Rates) title() string { return r.Title }

func (r *Rates) svg(w *writer, width float64) {
	const left, right, top, plot, below = 48, 12, 20, 150, 36
	high, last := 0.0, 0.0
	for _, x := range r.Lines {
		for _, p := range x.Points {
			high, last = max(high, p[1]), max(last, p[0])
		}
	}
	step := stepFor(high, 4)
	most := max(math.Ceil(high/step)*step, step)
	last = max(last, 1e-3)
	x := func(s float64) float64 { return left + (width-left-right)*s/last }
	y := func(v float64) float64 { return top + plot*(1-v/most) }
	begin(w, r.Title, width, top+plot+below+legendHeight(r.Lines, width))
	axes(w, width, top+plot+30, "a second", "time in seconds")
	for v := 0.0; v <= most*1.001; v += step {
		w.f(`<line class="grid" x1="%d" x2="%.0f" y1="%.1f" y2="%.1f"/><text class="dim" x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			left, width-right, y(v), y(v), left-5, y(v)+4, digits(v))
	}
	tick := stepFor(last, 5)
	for s := 0.0; s <= last*1.001; s += tick {
		w.f(`<text class="dim" x="%.1f" y="%d" text-anchor="%s">%s</text>`+"\n", x(s), top+plot+15, anchor(x(s), width), strconv.FormatFloat(s, 'g', 4, 64))
	}
	for i, line := range r.Lines {
		points := make([][2]float64, 0, len(line.Points))
		for _, p := range line.Points {
			points = append(points, [2]float64{x(p[0]), y(p[1])})
		}
		path(w, i, line.Name, points)
	}
	legend(w, r.Lines, width, top+plot+below)
	end(w)
}

// stepFor is a round number that fits about count times into all.
func stepFor(all float64, count int) float64 {
	if all <= 0 {
		return 1
	}
	step := math.Pow(10, math.Floor(math.Log10(all/float64(count))))
	for _, f := range []float64{1, 2, 5, 10} {
		if all <= step*f*float64(count)*1.01 {
			return step * f
		}
	}
	return step * 10
}

func begin(w *writer, title string, width, height float64) {
	w.f(`<svg viewBox="0 0 %.0f %.0f" role="img" aria-label="%s">`+"\n", width, height, text(title))
}

func end(w *writer) { w.f("</svg>\n") }

func path(w *writer, i int, name string, points [][2]float64) {
	if len(points) == 0 {
		return
	}
	class := "path"
	if dashed(i) {
		class = "path dashed"
	}
	w.f(`<path class="%s" style="stroke:var(--s%d)" d="`, class, i%palette)
	for j, p := range points {
		c := 'L'
		if j == 0 {
			c = 'M'
		}
		w.f("%c%.1f %.1f", c, p[0], p[1])
	}
	w.f(`"><title>%s</title></path>`+"\n", text(name))
}

// dashed tells which lines are broken, so that colours alone don't have to tell ten
// of them apart.
func dashed(i int) bool { return i%palette >= palette/2 }

// axes names what goes up and what goes right; bottom is where the latter stands.
func axes(w *writer, width, bottom float64, up, right string) {
	w.f(`<text class="dim" x="0" y="11">%s</text><text class="dim" x="%.0f" y="%.0f" text-anchor="end">%s</text>`+"\n", text(up), width-12, bottom, text(right))
}

// anchor puts a mark of the lower axis below its place, or before it at the end.
func anchor(at, width float64) string {
	if at > width-24 {
		return "end"
	}
	return "middle"
}

// A legend has its names side by side, as many as there is room for.
const legendRow = 16

func legendColumns(lines []Line, width float64) int {
	longest := 0
	for _, l := range lines {
		longest = max(longest, len(l.Name))
	}
	return max(1, int(width/(float64(longest)*6.3+24)))
}

func legendHeight(lines []Line, width float64) float64 {
	if len(lines) < 2 {
		return 0
	}
	columns := legendColumns(lines, width)
	return float64((len(lines)+columns-1)/columns)*legendRow + 4
}

func legend(w *writer, lines []Line, width, top float64) {
	if len(lines) < 2 {
		return
	}
	columns := legendColumns(lines, width)
	for i, l := range lines {
		x, y := width/float64(columns)*float64(i%columns), top+legendRow*float64(i/columns)+10
		class := "path"
		if dashed(i) {
			class = "path dashed"
		}
		w.f(`<path class="%s" style="stroke:var(--s%d);stroke-width:3" d="M%.1f %.1fL%.1f %.1f"/><text x="%.1f" y="%.1f">%s</text>`+"\n", class, i%palette, x, y-4, x+13, y-4, x+17, y, text(l.Name))
	}
}

// digits writes a number as short as it can be understood.
func digits(v float64) string {
	a := math.Abs(v)
	switch {
	case a >= 1e6:
		return strconv.FormatFloat(math.Round(v/1e4)/100, 'f', -1, 64) + " M"
	case a >= 1e3:
		return strconv.FormatFloat(math.Round(v/100)/10, 'f', -1, 64) + " k"
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
	}
	return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64)
}
