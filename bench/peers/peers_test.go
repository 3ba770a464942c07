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
	p, err := parse([]string{"--rounds", "3", "--slice", "50ms", "--warmup", "5ms", "--idle-conns", "5", "--quiet", "10ms"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	p.small = true
	p.peers = append(p.peers, find("trestle-std")) // who asks for it
	p.budget = time.Millisecond                    // makes turns short, but never fewer
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
	demandFigures(t, p, r)
	// Short as the turns were, the page draws how they went on: a line a peer.
	var drawn bytes.Buffer
	if err := r.writePage(&drawn); err != nil || strings.Count(drawn.String(), "How many a second, turn by turn</figcaption>") != len(scenarios)-1 {
		t.Errorf("%v: not every scenario has its rates drawn", err)
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

// demandFigures checks that the JSON of a result has, for each scenario and peer,
// rate, latency, costs, memory and how we stand to the peer.
func demandFigures(t *testing.T, p *plan, r *result) {
	t.Helper()
	var text bytes.Buffer
	if err := r.writeJSON(&text); err != nil {
		t.Fatal(err)
	}
	type number = *float64 // nil where it is missing
	type parts struct {
		Rate number `json:"rate"`
		CPU  number `json:"server_cpu"`
		P50  number `json:"p50"`
		P99  number `json:"p99"`
	}
	var read struct {
		Scenarios []struct {
			Name  string
			Peers []struct {
				Peer     string
				Rounds   int    `json:"rounds"`
				Rate     number `json:"per_second"`
				P50      number `json:"p50_ns"`
				P99      number `json:"p99_ns"`
				CPU      number `json:"server_cpu_us"`
				Allocs   number `json:"server_allocs"`
				Resident number `json:"resident_kib"`
				Ours     map[string]struct {
					parts
					Memory number `json:"resident_kib"`
					Rounds int    `json:"rounds"`
					Least  parts  `json:"least"`
					Most   parts  `json:"most"`
				} `json:"our_ratio"`
			}
		}
		Goals []struct {
			Goal             string
			Got, Least, Most number
			Rounds           int
			Want             number `json:"at_least"`
		}
	}
	if err := json.Unmarshal(text.Bytes(), &read); err != nil {
		t.Fatal(err)
	}
	missing := func(all ...number) bool { return slices.Contains(all, nil) }
	for _, s := range read.Scenarios {
		idle := s.Name == "idle"
		for _, f := range s.Peers {
			if missing(f.Rate, f.P50, f.P99, f.CPU, f.Allocs, f.Resident) {
				t.Errorf("%s, %s: a figure is missing: %+v", s.Name, f.Peer, f)
				continue
			}
			// What an idle connection costs may be too little to be seen, in a moment.
			if !idle && (*f.Rate <= 0 || *f.P50 <= 0 || *f.P99 < *f.P50 || *f.CPU <= 0 || *f.Allocs < 0 || *f.Resident <= 0 || f.Rounds != p.rounds) {
				t.Errorf("%s, %s: %v a second, p50 %v, p99 %v, %v us, %v allocs, %v KiB, %d rounds", s.Name, f.Peer, *f.Rate, *f.P50, *f.P99, *f.CPU, *f.Allocs, *f.Resident, f.Rounds)
			}
			if isOurs(f.Peer) {
				continue
			}
			for _, us := range ours {
				x, ok := f.Ours[us.name]
				if !ok || missing(x.Rate, x.CPU, x.P50, x.P99, x.Memory, x.Least.Rate, x.Least.CPU, x.Least.P50, x.Least.P99, x.Most.Rate, x.Most.CPU, x.Most.P50, x.Most.P99) {
					t.Errorf("%s, %s: a ratio of %s is missing: %+v", s.Name, f.Peer, us.name, x)
					continue
				}
				if idle {
					continue
				}
				for _, three := range [][3]float64{{*x.Least.Rate, *x.Rate, *x.Most.Rate}, {*x.Least.CPU, *x.CPU, *x.Most.CPU}, {*x.Least.P50, *x.P50, *x.Most.P50}, {*x.Least.P99, *x.P99, *x.Most.P99}} {
					if x.Rounds < 1 || x.Rounds > p.rounds || three[0] <= 0 || !slices.IsSorted(three[:]) {
						t.Errorf("%s, %s to %s: %v in %d rounds", s.Name, us.name, f.Peer, three, x.Rounds)
					}
				}
				if *x.Memory <= 0 {
					t.Errorf("%s, %s to %s: memory %v", s.Name, us.name, f.Peer, *x.Memory)
				}
			}
		}
	}
	for _, g := range read.Goals {
		if missing(g.Got, g.Least, g.Most, g.Want) || *g.Least > *g.Got || *g.Got > *g.Most || g.Rounds < 1 || g.Rounds > p.rounds {
			t.Errorf("goal %q: %+v", g.Goal, g)
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
	if err != nil || p.rounds != 5 || p.slice >= time.Second || p.budget == 0 || len(p.peers) != len(all())-1 {
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
	for want, v := range map[float64]float64{0: 0, 0.00123: 0.0012345, 1.23: 1.2345, 12300: 12345, -1.23: -1.2345} {
		if got := short(v); got != want {
			t.Errorf("%v became %v", v, got)
		}
	}
	if over(1, 0) != 0 || over(3, 2) != 1.5 {
		t.Error("over")
	}
}
