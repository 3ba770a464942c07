package conformance

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// holeLen is how many octets a <name> stands for: the token that a hop puts into its
// correlation ids (D10).
const holeLen = 8

// Octets are the golden octets of a payload. A <name> among them stands for eight
// octets that only the run knows, the same wherever the name stands; a trailing *
// for whatever follows.
type Octets struct {
	b     []byte
	holes []gap
	cuts  []int // where one part ends and another begins, for the eye
	open  bool  // ends with *
}

type gap struct {
	at   int
	name string
}

// append adds the next part.
func (o *Octets) append(b []byte) {
	o.cut()
	o.b = append(o.b, b...)
}

func (o *Octets) cut() {
	if n := len(o.b); n > 0 {
		o.cuts = append(o.cuts, n)
	}
}

func (o *Octets) hole(name string) {
	o.cut()
	o.holes = append(o.holes, gap{len(o.b), name})
	o.b = append(o.b, make([]byte, holeLen)...)
}

// join adds other octets as the next part.
func (o *Octets) join(p Octets) {
	o.cut()
	for _, at := range p.cuts {
		o.cuts = append(o.cuts, len(o.b)+at)
	}
	for _, h := range p.holes {
		o.holes = append(o.holes, gap{len(o.b) + h.at, h.name})
	}
	o.b = append(o.b, p.b...)
	o.open = o.open || p.open
}

// Len is how many octets there are, without what a * stands for.
func (o *Octets) Len() int { return len(o.b) }

// text is how the octets are written: hexadecimal digits, names and a *, without
// blanks.
func (o *Octets) text() string {
	var s strings.Builder
	at := 0
	for _, h := range o.holes {
		s.WriteString(hex.EncodeToString(o.b[at:h.at]))
		s.WriteString("<" + h.name + ">")
		at = h.at + holeLen
	}
	s.WriteString(hex.EncodeToString(o.b[at:]))
	if o.open {
		s.WriteString("*")
	}
	return s.String()
}

// lines are the octets as they are laid out: the parts, in groups of four octets at
// most and sixteen in a line.
func (o *Octets) lines() []string {
	var lines []string
	var line []string
	n := 0
	put := func(group string, octets int) {
		if n+octets > perLine && n > 0 {
			lines, line, n = append(lines, strings.Join(line, " ")), nil, 0
		}
		line, n = append(line, group), n+octets
	}
	holes, cuts := o.holes, o.cuts
	for at := 0; at < len(o.b); {
		for len(cuts) > 0 && cuts[0] <= at {
			cuts = cuts[1:]
		}
		if len(holes) > 0 && holes[0].at == at {
			put("<"+holes[0].name+">", holeLen)
			holes, at = holes[1:], at+holeLen
			continue
		}
		end := min(at+4, len(o.b))
		if len(cuts) > 0 {
			end = min(end, cuts[0])
		}
		if len(holes) > 0 {
			end = min(end, holes[0].at)
		}
		put(hex.EncodeToString(o.b[at:end]), end-at)
		at = end
	}
	if o.open {
		put("*", 1)
	}
	if len(line) > 0 {
		lines = append(lines, strings.Join(line, " "))
	}
	return lines
}

// bindings are the octets that names stand for.
type bindings map[string][]byte

// fill gives the octets with all names filled in.
func (o *Octets) fill(known bindings) ([]byte, error) {
	if o.open {
		return nil, errors.New("what a * stands for can't be sent")
	}
	b := bytes.Clone(o.b)
	for _, h := range o.holes {
		v, ok := known[h.name]
		if !ok {
			return nil, fmt.Errorf("nothing has shown what <%s> is", h.name)
		}
		copy(b[h.at:], v)
	}
	return b, nil
}

// match compares with what came, and learns the names that are new.
func (o *Octets) match(got []byte, known bindings) error {
	want := bytes.Clone(o.b)
	for _, h := range o.holes {
		v, ok := known[h.name]
		if !ok && len(got) >= h.at+holeLen {
			v = bytes.Clone(got[h.at : h.at+holeLen])
			known[h.name] = v
		}
		copy(want[h.at:], v)
	}
	if o.open && len(got) > len(want) {
		got = got[:len(want)]
	}
	if bytes.Equal(got, want) {
		return nil
	}
	at := 0
	for at < len(got) && at < len(want) && got[at] == want[at] {
		at++
	}
	return fmt.Errorf("octets differ from offset %d on:\n got %s\nwant %s", at, dump(got), dump(want))
}

// dump writes octets as digits in groups, and those that are text beside it.
func dump(b []byte) string {
	const most = 512
	cut := ""
	if len(b) > most {
		b, cut = b[:most], fmt.Sprintf("... (%d octets)", len(b))
	}
	return hex.EncodeToString(b) + cut + fmt.Sprintf(" %q", b)
}
