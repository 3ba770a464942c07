package main

import (
	"os"
	"testing"

	"github.com/trestle-npamp/trestle/conformance"
)

// The recorded exchanges of package conformance, played against this program: each
// that can be, over loopback and with its octets compared on the wire.
func TestScriptsAgainstTheProgram(t *testing.T) {
	scripts, err := conformance.Load(os.DirFS("../../conformance/testdata"))
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, s := range scripts {
		if s.Not[conformance.Program] != "" {
			continue
		}
		n++
		t.Run(s.Name, func(t *testing.T) {
			b, err := conformance.NewProgram(t.Context(), conformance.Command{Path: self, Env: []string{asProgram + "=1"}}, s)
			if err != nil {
				t.Fatal(err)
			}
			err = s.Run(b)
			if closed := b.Close(); closed != nil {
				t.Error(closed)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	if n < 10 {
		t.Errorf("%d scripts", n)
	}
}
