// Package explore searches pure state machines completely, for their tests:
// every input in every state that any sequence of inputs reaches, so that what a
// test claims of a machine is shown and not sampled. It also keeps what was found
// in a document, section by section, and tells when that is out of date.
package explore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// Search goes breadth first through the states of a machine, from start until
// none is new, and gives each state that was reached, in the order of reaching.
//
// state abstracts a machine to what tells its states apart. step gives one input
// to a copy of m, judges what came of it, and returns the copy; it must leave m as
// it was. When it reports false the copy is not followed. A copy that is not kept
// is handed to drop, if there is one, for use again.
func Search[M any, S comparable, I any](start M, state func(M) S, inputs []I, step func(m M, in I) (M, bool), drop func(M)) []S {
	if drop == nil {
		drop = func(M) {}
	}
	first := state(start)
	seen := map[S]bool{first: true}
	order := []S{first}
	queue := []M{start}
	for len(queue) > 0 {
		m := queue[0]
		queue[0] = *new(M)
		queue = queue[1:]
		for _, in := range inputs {
			next, ok := step(m, in)
			if !ok {
				continue
			}
			s := state(next)
			if seen[s] {
				drop(next)
				continue
			}
			seen[s] = true
			order = append(order, s)
			queue = append(queue, next)
		}
		drop(m)
	}
	return order
}

// ErrStale says that a document's section does not hold what it should.
var ErrStale = errors.New("explore: out of date")

// Section compares the section of the document at path between its markers with
// body, or, with write, puts body there; a document or section that does not exist
// is then made.
func Section(path, name, body string, write bool) error {
	begin, end := marker("begin", name), marker("end", name)
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	section := begin + strings.TrimSpace(body) + "\n" + end
	text := string(old)
	from := strings.Index(text, begin)
	to := strings.Index(text, end)
	switch {
	case from >= 0 && to > from:
		if text[from:to+len(end)] == section {
			return nil
		}
		text = text[:from] + section + text[to+len(end):]
	case from < 0 && to < 0:
		if text != "" {
			text = strings.TrimRight(text, "\n") + "\n\n"
		}
		text += section
	default:
		return fmt.Errorf("explore: %s: broken markers of section %q", path, name)
	}
	if !write {
		return fmt.Errorf("%w: section %q of %s", ErrStale, name, path)
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

func marker(what, name string) string { return "<!-- " + what + ": " + name + " -->\n" }
