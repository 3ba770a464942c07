// Package page writes measurements as one page of HTML that needs nothing else: no
// script, no font and no picture from elsewhere. Plots are SVG inside it, sized so
// that they can be read on a phone.
package page

import (
	"bufio"
	"fmt"
	"html"
	"io"
)

// Page is what is written.
type Page struct {
	Title    string
	Intro    string
	Facts    [][2]string // a name and what it is
	Sections []Section
}

// Section is a part of a page with a heading. Every field but Title may be empty.
type Section struct {
	Title string
	Note  string
	Plots []Plot
	// Table has the names of its columns in its first row. Rows may be shorter.
	Table [][]string
	// Marked are the rows, without the first, that stand out.
	Marked map[int]bool
	// Prose says that the first column is sentences, which may take several lines. On
	// a phone each row is then a sentence with its figures below it.
	Prose bool
	// Folded hides the table until it is asked for.
	Folded bool
}

// Plot is a drawing.
type Plot interface {
	// svg draws it, width units wide; units are about a pixel of a phone's.
	svg(w *writer, width float64)
	title() string
}

// Write writes the page.
func (p *Page) Write(to io.Writer) error {
	w := &writer{bufio.NewWriter(to)}
	w.f(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>%s</title>
<style>%s</style>
</head>
<body>
<main>
<h1>%s</h1>
`, text(p.Title), style, text(p.Title))
	if p.Intro != "" {
		w.f("<p class=\"intro\">%s</p>\n", text(p.Intro))
	}
	if len(p.Facts) > 0 {
		w.f("<dl>\n")
		for _, f := range p.Facts {
			w.f("<dt>%s</dt><dd>%s</dd>\n", text(f[0]), text(f[1]))
		}
		w.f("</dl>\n")
	}
	for i := range p.Sections {
		p.Sections[i].write(w)
	}
	w.f("</main>\n</body>\n</html>\n")
	return w.Flush()
}

func (s *Section) write(w *writer) {
	w.f("<section>\n<h2>%s</h2>\n", text(s.Title))
	if s.Note != "" {
		w.f("<p>%s</p>\n", text(s.Note))
	}
	if len(s.Plots) > 0 {
		w.f("<div class=\"plots\">\n")
		for _, p := range s.Plots {
			w.f("<figure>\n<figcaption>%s</figcaption>\n", text(p.title()))
			p.svg(w, plotWidth)
			w.f("</figure>\n")
		}
		w.f("</div>\n")
	}
	if len(s.Table) > 0 {
		if s.Folded {
			w.f("<details><summary>All figures</summary>\n")
		}
		class := ""
		if s.Prose {
			class = ` class="prose"`
		}
		w.f("<div class=\"scroll\"><table%s>\n", class)
		for i, row := range s.Table {
			cell, class := "td", ""
			if i == 0 {
				cell = "th"
			} else if s.Marked[i-1] {
				class = ` class="ours"`
			}
			w.f("<tr%s>", class)
			for j, c := range row {
				name := ""
				if s.Prose && i > 0 && j > 0 && j < len(s.Table[0]) && s.Table[0][j] != "" {
					name = fmt.Sprintf(` data-name="%s"`, text(s.Table[0][j])) // shown where the head is not
				}
				w.f("<%s%s>%s</%s>", cell, name, text(c), cell)
			}
			w.f("</tr>\n")
		}
		w.f("</table></div>\n")
		if s.Folded {
			w.f("</details>\n")
		}
	}
	w.f("</section>\n")
}

// writer keeps the first error until Flush.
type writer struct{ *bufio.Writer }

func (w *writer) f(format string, args ...any) { fmt.Fprintf(w, format, args...) }

func text(s string) string { return html.EscapeString(s) }

const style = `
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#5b6570;--line:#d9dee3;--soft:#f3f5f7;--bar:#9aa7b4;--ours:#0b6bcb;
--s0:#0b6bcb;--s1:#00897b;--s2:#c2410c;--s3:#7c3aed;--s4:#b7791f;--s5:#be185d;--s6:#4d7c0f;--s7:#475569;--s8:#0e7490;--s9:#9f1239}
@media (prefers-color-scheme:dark){:root{--bg:#12161b;--fg:#e6e9ec;--dim:#9aa5b1;--line:#2c343d;--soft:#1a2027;--bar:#5b6875;--ours:#5aa9f5;
--s0:#5aa9f5;--s1:#3fbfae;--s2:#f28b52;--s3:#b794f6;--s4:#e0b252;--s5:#f075ae;--s6:#9ac94f;--s7:#a3b1c2;--s8:#4cc3dd;--s9:#f27a93}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1080px;margin:0 auto;padding:16px}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0}
h2{font-size:1.15rem;line-height:1.3;margin:2.2rem 0 .3rem;padding-top:1rem;border-top:1px solid var(--line)}
p{margin:.3rem 0 .8rem;color:var(--dim);overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem .9rem;margin:1rem 0;font-size:.92rem}
dt{color:var(--dim)}dd{margin:0;overflow-wrap:anywhere}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:20px}
figure{margin:0;min-width:0}figcaption{font-weight:600;font-size:.92rem;margin-bottom:.2rem}
svg{display:block;width:100%;height:auto;max-width:520px;font:11px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
svg text{fill:var(--fg)}svg .dim{fill:var(--dim)}svg .grid{stroke:var(--line);stroke-width:1}
svg .bar{fill:var(--bar)}svg .bar.ours{fill:var(--ours)}
svg .path{fill:none;stroke-width:1.8;stroke-linejoin:round}svg .dashed{stroke-dasharray:5 3}
.scroll{overflow-x:auto;margin-top:.8rem;-webkit-overflow-scrolling:touch}
table{border-collapse:collapse;font-size:.82rem;font-variant-numeric:tabular-nums}
th,td{padding:.28rem .6rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
th{color:var(--dim);font-weight:600;white-space:normal;vertical-align:bottom;min-width:3.6rem}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--bg)}
.prose th:first-child,.prose td:first-child{white-space:normal;position:static;min-width:9rem}
tr.ours td{background:var(--soft)}
@media (max-width:600px){
th,td{padding:.28rem .45rem}th{min-width:0}
.prose,.prose tbody,.prose tr{display:block}.prose tr{padding:.35rem .4rem;border-bottom:1px solid var(--line)}
.prose tr:first-child{display:none}.prose tr.ours{background:var(--soft)}
.prose td{display:inline-block;padding:0 .9rem 0 0;border:0;text-align:left;white-space:normal}
.prose td:first-child{display:block;background:none}
.prose td[data-name]::before{content:attr(data-name) " ";color:var(--dim)}
}
summary{cursor:pointer;color:var(--ours);margin-top:.8rem;padding:.3rem 0}
`
