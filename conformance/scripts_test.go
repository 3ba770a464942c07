package conformance

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

var layout = flag.Bool("layout", false, "write the octets beside the fields of all scripts")

const testdata = "testdata"

func paths(t testing.TB) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(testdata, "*"+Extension))
	if err != nil || len(names) == 0 {
		t.Fatalf("scripts: %v %v", names, err)
	}
	return names
}

var loadOnce = sync.OnceValues(func() ([]*Script, error) { return Load(os.DirFS(testdata)) })

func load(t testing.TB) []*Script {
	t.Helper()
	scripts, err := loadOnce()
	if err != nil {
		t.Fatal(err)
	}
	return scripts
}

// proves runs all scripts that prove a clause on the pure machines.
func proves(t *testing.T, clause string) {
	t.Helper()
	n := 0
	for _, s := range load(t) {
		if !slices.Contains(s.Clauses, clause) || s.Not[Machines] != "" {
			continue
		}
		n++
		t.Run(s.Name, func(t *testing.T) {
			if err := s.Run(newMachines(t, s)); err != nil {
				t.Error(err)
			}
		})
	}
	if n == 0 {
		t.Errorf("no script proves %s", clause)
	}
}

// A script looks as Layout writes it: its octets are those of its fields.
func TestScriptsAreLaidOut(t *testing.T) {
	for _, path := range paths(t) {
		src, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(path), Extension)
		out, err := Layout(name, src)
		if err != nil {
			t.Error(err)
			continue
		}
		if bytes.Equal(out, src) {
			continue
		}
		if *layout {
			if err := os.WriteFile(path, out, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		t.Errorf("%s is not laid out: go test ./conformance -run TestScriptsAreLaidOut -layout", path)
	}
}

// A run sees every octet that the side under test sends: with one of the golden octets
// changed, each script fails at that frame.
func TestRunsSeeEveryOctet(t *testing.T) {
	for _, s := range load(t) {
		if s.Not[Machines] != "" {
			continue
		}
		for _, st := range s.Steps {
			if st.Frame == nil || st.Verb != "receives" {
				continue
			}
			golden := st.Frame.Golden
			for i := range golden.b {
				if slices.ContainsFunc(golden.holes, func(h gap) bool { return i >= h.at && i < h.at+holeLen }) {
					continue
				}
				if i%7 != len(golden.b)%7 && i != len(golden.b)-1 { // a part of them, the last one always
					continue
				}
				st.Frame.Golden.b = slices.Clone(golden.b)
				st.Frame.Golden.b[i] ^= 0x20
				err := s.Run(newMachines(t, s))
				st.Frame.Golden = golden
				var e *Error
				if !errors.As(err, &e) || e.Line != st.Line {
					t.Fatalf("%s:%d: octet %d was changed, and the run says %v", s.Name, st.Line, i, err)
				}
			}
		}
	}
}
