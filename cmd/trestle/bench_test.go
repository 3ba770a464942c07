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
	for _, want := range []string{"2 connections x 3 in flight, 100 octets", "requests/s", "p50", "p99", "us CPU/request", "allocs"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("no %q in\n%s", want, r.out)
		}
	}
	if !strings.Contains(r.err, "2 connections") {
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

func TestBenchMeasuresWhatItsHelpNames(t *testing.T) {
	t.Setenv(asProgram, "1")
	for scenario, want := range map[string]string{
		"mixed --conns 2 --inflight 2 --large-size 50000 --duration 50ms --warmup 0 --rate 1000": "large requests",
		"stream --conns 2 --streams 2 --events 100 --duration 50ms --warmup 0":                   "us CPU/event",
		"fanout --conns 2 --duration 50ms --warmup 0":                                            "us CPU/delivery",
		"notify --count 1000 --transport tcp":                                                    "lone requests",
		"handshake --conns 2 --duration 50ms --warmup 0":                                         "us CPU/handshake",
		"idle --conns 20 --burst 2 --large-size 100000 --quiet 1ms --most-growth 0":              "KiB a connection before the burst",
	} {
		r := trestle(t, "", append([]string{"bench"}, strings.Fields(scenario)...)...)
		if r.code != exitOK || !strings.Contains(r.out, want) {
			t.Errorf("%s: code %d: %s%s", scenario, r.code, r.out, r.err)
		}
	}
}

// What is measured and is not as it should be is reported, and then an error.
func TestBenchFailsWhereSomethingIsMissed(t *testing.T) {
	t.Setenv(asProgram, "1")
	r := trestle(t, "", "bench", "idle", "--conns", "50", "--burst", "0", "--quiet", "1ms", "--most-growth", "0", "--most-each", "0.001", "--json", "-")
	var report bench.Report
	if err := json.Unmarshal([]byte(r.out), &report); err != nil || report.Memory == nil {
		t.Fatalf("%v: %s%s", err, r.out, r.err)
	}
	if want := "at most"; report.Memory.SettledBefore > 0.001 && (r.code != exitFailure || !strings.Contains(r.err, want)) {
		t.Errorf("code %d, no %q in %q", r.code, want, r.err)
	}
}

func TestBenchWritesAPage(t *testing.T) {
	t.Setenv(asProgram, "1")
	file := filepath.Join(t.TempDir(), "report.html")
	r := trestle(t, "", "bench", "unary", "--conns", "1", "--duration", "150ms", "--warmup", "0", "--report", file)
	text, err := os.ReadFile(file)
	if r.code != exitOK || err != nil || !strings.Contains(string(text), "</svg>") || !strings.Contains(r.out, "requests/s") {
		t.Errorf("code %d, %v: %s%s", r.code, err, r.out, r.err)
	}
	if r := trestle(t, "", "bench", "unary", "--report", "/nonexistent/file"); r.code != exitFailure {
		t.Errorf("code %d without a place for the page", r.code)
	}
}

func TestBenchWithoutAScenarioSaysSoOnce(t *testing.T) {
	r := trestle(t, "", "bench")
	if want := "trestle: bench: say what to measure; see \"trestle bench --help\"\n"; r.code != exitUsage || r.out != "" || r.err != want {
		t.Errorf("code %d, stdout %q, stderr %q; want %q", r.code, r.out, r.err, want)
	}
}

func TestBenchWritesProfiles(t *testing.T) {
	t.Setenv(asProgram, "1")
	dir := filepath.Join(t.TempDir(), "profiles")
	r := trestle(t, "", "bench", "unary", "--conns", "1", "--duration", "500ms", "--warmup", "0", "--profile", dir)
	if r.code != exitOK {
		t.Fatalf("code %d: %s", r.code, r.err)
	}
	for _, name := range []string{"server.pprof", "client.pprof"} {
		if s, err := os.Stat(filepath.Join(dir, name)); err != nil || s.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBenchRefusesWhatCanNotBeMeasured(t *testing.T) {
	for _, args := range []string{"", "unary --conns 0", "stream --events 0", "server --options x", "handshake --rate 5"} {
		if r := trestle(t, "", append([]string{"bench"}, strings.Fields(args)...)...); r.code != exitUsage {
			t.Errorf("%q: code %d", args, r.code)
		}
	}
}
