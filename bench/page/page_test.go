package page

import (
	"bytes"
	"encoding/xml"
	"errors"
	"html"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func written(t *testing.T, p *Page) string {
	t.Helper()
	var out bytes.Buffer
	if err := p.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// ten lines, as many as there are colours.
func ten() (lines []Line) {
	for i := range palette {
		lines = append(lines, Line{"number " + strconv.Itoa(i), [][2]float64{{0.1, float64(i)}, {1, float64(2 * i)}}})
	}
	return lines
}

func everything() *Page {
	line := func(name string, scale float64) Line {
		return Line{name, [][2]float64{{scale, 0.5}, {3 * scale, 0.99}, {40 * scale, 0.99999}, {50 * scale, 1}}}
	}
	return &Page{
		Title: `A <title> & "more"`, Intro: "what it is", Facts: [][2]string{{"machine", "a <machine>"}},
		Sections: []Section{
			{
				Title: "one", Note: "a note",
				Plots: []Plot{
					&Bars{Title: "even", Bars: []Bar{{Name: "ours", Value: 3, Ours: true}, {Name: "a & b", Value: 2, Label: "two"}, {Name: "none"}}},
					&Bars{Title: "uneven", Bars: []Bar{{Name: "small", Value: 0.01}, {Name: "large", Value: 1e7}}},
					&Latencies{Title: "times", Lines: []Line{line("fast", 1e3), line("slow", 1e6)}},
					&Rates{Title: "rates", Lines: []Line{{"x", [][2]float64{{0.1, 100}, {0.2, 250}}}, {"y", [][2]float64{{0.1, 7}, {9, 3}}}}},
				},
				Table: [][]string{{"name", "value"}, {"<a>", "1"}, {"b"}}, Marked: map[int]bool{0: true}, Prose: true,
			},
			{Title: "empty", Plots: []Plot{&Bars{}, &Latencies{}, &Rates{}, &Latencies{Lines: []Line{{}}}, &Rates{Lines: []Line{{"", [][2]float64{{0, 0}}}}}}},
			{Title: "many", Plots: []Plot{&Rates{Title: "ten", Lines: ten()}}},
			{Title: "folded", Table: [][]string{{"a"}}, Folded: true},
		},
	}
}

// A page is complete in itself and fits a phone.
func TestAPageNeedsNothingElse(t *testing.T) {
	out := written(t, everything())
	for _, never := range []string{"<script", "src=", "href=", "http:", "https:", "@import", "url(", "NaN", "Inf", "%!"} {
		if i := strings.Index(out, never); i >= 0 {
			t.Errorf("%q in %q", never, out[max(0, i-40):i+40])
		}
	}
	for _, want := range []string{`name="viewport"`, "A &lt;title&gt; &amp; &#34;more&#34;", "a &lt;machine&gt;", `<tr class="ours"><td>&lt;a&gt;`, "logarithmic scale from 0.01 to 10 M", "99.9 %", "<details>", "share of all", "took no longer than this", "a second", "time in seconds", `<td data-name="value">1</td>`, "(max-width:600px)"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q", want)
		}
	}
}

// Everything between the tags of the document is well-formed, drawings included.
func TestAPageIsWellFormed(t *testing.T) {
	out := written(t, everything())
	out = strings.NewReplacer("<!DOCTYPE html>", "", `<meta charset="utf-8">`, "", `<meta name="viewport" content="width=device-width, initial-scale=1">`, "").Replace(out)
	d := xml.NewDecoder(strings.NewReader(out))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// What is drawn lies within its drawing.
func TestDrawingsStayWithinTheirBounds(t *testing.T) {
	out := written(t, everything())
	box := regexp.MustCompile(`(?s)<svg viewBox="0 0 (\S+) (\S+)".*?</svg>`)
	point := regexp.MustCompile(`[ML](-?[\d.]+) (-?[\d.]+)`)
	place := regexp.MustCompile(` (x|y)="(-?[\d.]+)"`)
	words := regexp.MustCompile(`<text[^>]* x="([\d.]+)"[^>]*?( text-anchor="(\w+)")?>([^<]*)</text>`)
	number := func(s string) float64 {
		v, err := strconv.ParseFloat(s, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	drawings := box.FindAllStringSubmatch(out, -1)
	if len(drawings) != 10 {
		t.Fatalf("%d drawings", len(drawings))
	}
	for _, m := range drawings {
		width, height := number(m[1]), number(m[2])
		for _, p := range point.FindAllStringSubmatch(m[0], -1) {
			if x, y := number(p[1]), number(p[2]); x < 0 || x > width || y < 0 || y > height {
				t.Errorf("point %v,%v in %v x %v", x, y, width, height)
			}
		}
		for _, p := range words.FindAllStringSubmatch(m[0], -1) {
			long := 5.5 * float64(len([]rune(html.UnescapeString(p[4]))))
			left := number(p[1])
			switch p[3] {
			case "middle":
				left -= long / 2
			case "end":
				left -= long
			}
			if left < 0 || left+long > width {
				t.Errorf("%q from %.0f to %.0f in %v", p[4], left, left+long, width)
			}
		}
		for _, p := range place.FindAllStringSubmatch(m[0], -1) {
			if v := number(p[2]); v < 0 || p[1] == "x" && v > width || p[1] == "y" && v > height {
				t.Errorf("%s=%v in %v x %v", p[1], v, width, height)
			}
		}
	}
}

// No two of ten lines look alike: they differ in colour, and half of them are broken.
func TestLinesCanBeToldApart(t *testing.T) {
	out := written(t, &Page{Sections: []Section{{Plots: []Plot{&Rates{Lines: ten()}}}}})
	seen := map[string]int{}
	for _, m := range regexp.MustCompile(`<path class="([a-z ]+)" style="stroke:var\((--s\d)\)`).FindAllStringSubmatch(out, -1) {
		seen[m[1]+m[2]]++
	}
	solid := 0
	for look, n := range seen {
		if n != 2 { // in the drawing and in the legend
			t.Errorf("%s: %d times", look, n)
		}
		if !strings.Contains(look, "dashed") {
			solid++
		}
	}
	if len(seen) != palette || solid != palette/2 {
		t.Errorf("%v", seen)
	}
	colours := regexp.MustCompile(`--s\d:(#[0-9a-f]{6})`).FindAllStringSubmatch(style, -1)
	different := map[string]bool{}
	for _, c := range colours {
		different[c[1]] = true
	}
	if len(colours) != 2*palette || len(different) != 2*palette {
		t.Errorf("%d colours, %d different ones, for light and dark", len(colours), len(different))
	}
}

func TestNumbersAreShort(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.014: "0.01", 2.5: "2.5", 9.999: "10", 12.34: "12.3", 123.4: "123", 1234: "1.2 k", 56789: "56.8 k", 1234567: "1.23 M"} {
		if got := digits(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
	for _, all := range []float64{0, 1e-9, 0.3, 1, 7, 99, 12345} {
		if s := stepFor(all, 4); s <= 0 || all > 0 && (all/s > 5 || math.IsInf(s, 0)) {
			t.Errorf("steps of %v in %v", s, all)
		}
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestAPageThatCanNotBeWritten(t *testing.T) {
	if err := everything().Write(full{}); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("%v", err)
	}
}
