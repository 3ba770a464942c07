package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMain lets the test binary be a server process, as the program is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		main()
		return
	}
	flag.Parse()
	os.Exit(m.Run())
}

// Every peer does its work in every scenario that it has a part in.
func TestEveryPeerDoesItsWork(t *testing.T) {
	p, err := parse([]string{"--rounds", "2", "--slice", "30ms", "--warmup", "5ms", "--idle-conns", "5", "--quiet", "10ms"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	p.small = true
	var progress bytes.Buffer
	r, err := p.measure(t.Context(), &progress)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Scenarios) != len(scenarios) {
		t.Fatalf("%d scenarios of %d", len(r.Scenarios), len(scenarios))
	}
	for i, o := range r.Scenarios {
		seen := 0
		for _, f := range o.Peers {
			seen++
			if f.Error != "" || f.Errors > 0 || (scenarios[i].kind != "idle" && (f.Requests == 0 || f.Rate <= 0 || f.P50 <= 0 || f.P99 < f.P50)) {
				t.Errorf("%s: %+v", o.Name, f)
			}
			if !isOurs(f.Peer) && len(f.Ours) != len(ours) {
				t.Errorf("%s: %s has no ratio: %v", o.Name, f.Peer, f.Ours)
			}
		}
		for _, of := range p.peers {
			if !slices.Contains(of.not, scenarios[i].kind) {
				seen--
			}
		}
		if seen != 0 {
			t.Errorf("%s: not every peer is there: %d", o.Name, seen)
		}
	}
	if len(r.Goals) < 10 {
		t.Errorf("goals: %v", r.Goals)
	}
	if strings.Contains(progress.String(), "fault") {
		t.Errorf("progress:\n%s", progress.String())
	}
	for name, write := range map[string]func(io.Writer) error{"tables": r.writeTables, "JSON": r.writeJSON, "page": r.writePage} {
		var out bytes.Buffer
		if err := write(&out); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, want := range []string{"unary-batch", "grpc", "callback", "blocking-tcp"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: no %q", name, want)
			}
		}
	}
}

func TestFiguresAreWrittenAsJSON(t *testing.T) {
	file := filepath.Join(t.TempDir(), "peers.json")
	var out bytes.Buffer
	args := []string{"--rounds", "1", "--slice", "20ms", "--warmup", "0", "--only", "lone-batch", "--peers", "echo", "--json", file}
	if err := run(t.Context(), args, strings.NewReader(""), &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		Scenarios []struct {
			Name  string
			Peers []map[string]any
		}
	}
	if err := json.Unmarshal(text, &r); err != nil || len(r.Scenarios) != 1 || len(r.Scenarios[0].Peers) != 3 {
		t.Fatalf("%v: %s", err, text)
	}
	for _, name := range []string{"peer", "per_second", "p50_ns", "p99_ns", "server_cpu_us", "server_allocs", "resident_kib", "client_shape", "loops", "our_ratio"} {
		if _, ok := r.Scenarios[0].Peers[2][name]; !ok {
			t.Errorf("no %s in %v", name, r.Scenarios[0].Peers[2])
		}
	}
	if !strings.Contains(out.String(), "lone-batch") {
		t.Errorf("no table: %s", out.String())
	}
}

func TestTheCommandLine(t *testing.T) {
	for _, args := range [][]string{{"--only", "everything"}, {"--peers", "nobody"}, {"--rounds", "0"}, {"--slice", "-1s"}, {"argument"}, {"--unknown"}} {
		if _, err := parse(args, io.Discard); !errors.Is(err, errUsage) {
			t.Errorf("%v: %v", args, err)
		}
	}
	p, err := parse([]string{"--quick", "--rounds", "5"}, io.Discard)
	if err != nil || p.rounds != 5 || p.slice >= time.Second || len(p.peers) != len(all()) {
		t.Errorf("%v, %+v", err, p)
	}
	if err := run(context.Background(), []string{"--json", "/nonexistent/file"}, nil, io.Discard, io.Discard); err == nil {
		t.Error("a file that can't be written")
	}
	if err := run(context.Background(), []string{"serve", "nobody", "{}"}, nil, io.Discard, io.Discard); !errors.Is(err, errUsage) {
		t.Errorf("a server that is none: %v", err)
	}
}

func TestMiddles(t *testing.T) {
	for want, of := range map[float64][]float64{0: nil, 5: {5}, 2.5: {4, 1}, 3: {9, 3, 1}} {
		if got := middle(of); got != want {
			t.Errorf("of %v: %v", of, got)
		}
	}
	if over(1, 0) != 0 || over(3, 2) != 1.5 {
		t.Error("over")
	}
}
