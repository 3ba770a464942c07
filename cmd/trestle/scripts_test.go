package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
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

// The run of a script against the program sees every octet, too: with another reply in
// its last frame it fails there.
func TestScriptsAgainstTheProgramSeeTheOctets(t *testing.T) {
	src, err := os.ReadFile("../../conformance/testdata/bridge-request.script")
	if err != nil {
		t.Fatal(err)
	}
	// The application's reply stays as it is, the golden one gets another number.
	at := bytes.LastIndex(src, []byte("1E+2"))
	altered, err := conformance.Layout("altered", slices.Replace(slices.Clone(src), at, at+4, []byte("1E+3")...))
	if err != nil {
		t.Fatal(err)
	}
	s, err := conformance.Parse("altered", altered)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := conformance.NewProgram(t.Context(), conformance.Command{Path: self, Env: []string{asProgram + "=1"}}, s)
	if err != nil {
		t.Fatal(err)
	}
	err = s.Run(b)
	if closed := b.Close(); closed != nil {
		t.Error(closed)
	}
	if err == nil || !strings.Contains(err.Error(), "octets differ") {
		t.Errorf("%v", err)
	}
}
