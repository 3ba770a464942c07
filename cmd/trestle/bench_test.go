package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/bench"
)

func TestBenchUnaryReportsToPeopleAndPrograms(t *testing.T) {
	t.Setenv(asProgram, "1") // for the server that it starts
	file := filepath.Join(t.TempDir(), "result.json")
	r := trestle(t, "", "bench", "unary", "--conns", "2", "--inflight", "3", "--size", "100", "--duration", "200ms", "--warmup", "0", "--json", file)
	if r.code != exitOK {
		t.Fatalf("code %d: %s", r.code, r.err)
	}
	for _, want := range []string{"2 associations x 3 in flight, 100 octets", "requests/s", "p50", "p99", "us CPU/request", "allocs/request"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("no %q in\n%s", want, r.out)
		}
	}
	if !strings.Contains(r.err, "2 associations stand") {
		t.Errorf("no progress on stderr: %q", r.err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var report bench.Report
	if err := json.Unmarshal(text, &report); err != nil || report.Requests == 0 || report.Options.Conns != 2 {
		t.Errorf("%v: %s", err, text)
	}
}

func TestBenchUnaryWritesJSONToStandardOutput(t *testing.T) {
	t.Setenv(asProgram, "1")
	r := trestle(t, "", "bench", "unary", "--conns", "1", "--inflight", "1", "--duration", "50ms", "--warmup", "0", "--json", "-")
	var report bench.Report
	if err := json.Unmarshal([]byte(r.out), &report); r.code != exitOK || err != nil || report.Requests == 0 {
		t.Errorf("code %d, %v: %s%s", r.code, err, r.out, r.err)
	}
}
