package conformance

import (
	"bytes"
	"fmt"
	"strings"
)

// Layout is a script's text with the octets written beside its fields, as the fields
// say they are: how a new script gets its golden octets, and what every script must
// look like. It fails where Parse does, but for the octets.
func Layout(name string, src []byte) ([]byte, error) {
	s, err := parse(name, src, false)
	if err != nil {
		return nil, err
	}
	octets := map[int][]string{}
	for _, st := range s.Steps {
		if st.Frame == nil {
			continue
		}
		octets[st.Line] = []string{fmt.Sprintf("%04x %04x", uint16(st.Frame.Channel), uint16(st.Frame.Type))}
		for _, f := range st.Frame.Fields {
			octets[f.Line] = f.octets.lines()
		}
	}
	var out bytes.Buffer
	for i, line := range strings.Split(strings.TrimRight(string(src), "\n"), "\n") {
		trimmed := strings.TrimSpace(line)
		if trimmed != "" && trimmed[0] == '#' {
			out.WriteString(trimmed + "\n")
			continue
		}
		tokens, right, cut, _ := lex(line) // as parse did
		if len(tokens) == 0 {
			if !cut {
				out.WriteString("\n")
			}
			continue
		}
		if cut {
			line = line[:len(line)-len(right)-1]
		}
		left := strings.TrimSpace(line)
		if line[0] == ' ' || line[0] == '\t' {
			left = "  " + left
		}
		putBeside(&out, left, octets[i+1])
	}
	return append(bytes.TrimRight(out.Bytes(), "\n"), '\n'), nil
}

// The columns of a laid out script: where octets begin, and how many stand in a line.
const (
	octetColumn = 64
	perLine     = 16
)

// putBeside writes a line and the octets beside it, on as many lines as they need. A
// line that reaches into their column has them below.
func putBeside(out *bytes.Buffer, left string, octets []string) {
	if n := len([]rune(left)); len(octets) == 0 || n >= octetColumn {
		out.WriteString(left + "\n")
		left = ""
	}
	for _, l := range octets {
		out.WriteString(left + strings.Repeat(" ", octetColumn-len([]rune(left))) + "| " + l + "\n")
		left = ""
	}
}
