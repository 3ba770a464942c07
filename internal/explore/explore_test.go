package explore

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Two counters modulo 3 and 5 that inputs move: all 15 states are found, each
// input is tried in each of them once, and what is not followed is not.
func TestSearchFindsEveryState(t *testing.T) {
	type machine struct{ a, b int }
	steps := 0
	step := func(m machine, in string) (machine, bool) {
		steps++
		switch in {
		case "a":
			m.a = (m.a + 1) % 3
		case "b":
			m.b = (m.b + 1) % 5
		case "leave":
			return machine{99, 99}, false
		}
		return m, true
	}
	dropped := 0
	states := Search(machine{}, func(m machine) machine { return m }, []string{"a", "b", "leave"}, step, func(machine) { dropped++ })
	if dropped != 1+30 { // the first, and what every followed step made
		t.Errorf("%d machines dropped", dropped)
	}
	if len(states) != 15 || steps != 45 || slices.Contains(states, machine{99, 99}) {
		t.Errorf("%d states, %d steps", len(states), steps)
	}
	if states[0] != (machine{}) || states[1] != (machine{1, 0}) || states[2] != (machine{0, 1}) {
		t.Errorf("not breadth first: %v", states[:3])
	}
}

func TestSectionIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "doc.md")
	check := func(name, body string, write bool, want error) {
		t.Helper()
		if err := Section(path, name, body, write); !errors.Is(err, want) {
			t.Errorf("%s %q, write %v: %v, want %v", name, body, write, err, want)
		}
	}
	check("one", "text", false, ErrStale) // no document
	check("one", "text", true, nil)
	check("one", "text", false, nil)
	check("two", "more", false, ErrStale)
	check("two", "more", true, nil)
	check("one", "other", false, ErrStale)
	check("one", "other", true, nil)
	check("two", "more", false, nil)
	b, err := os.ReadFile(path)
	want := "<!-- begin: one -->\nother\n<!-- end: one -->\n\n<!-- begin: two -->\nmore\n<!-- end: two -->\n"
	if err != nil || string(b) != want {
		t.Errorf("%q, %v", b, err)
	}
	if err := os.WriteFile(path, []byte("<!-- begin: one -->\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Section(path, "one", "x", true); err == nil || errors.Is(err, ErrStale) {
		t.Errorf("broken markers: %v", err)
	}
}
