package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/trestle-npamp/trestle/carriage/jsonrpc"
)

// asPeer makes the test binary a server process; its value is the options.
const asPeer = "TRESTLE_BENCH_PEER"

func TestMain(m *testing.M) {
	if text := os.Getenv(asPeer); text != "" {
		var o Options
		err := json.Unmarshal([]byte(text), &o)
		if err == nil {
			err = Serve(context.Background(), o, quiet, os.Stdin, os.Stdout)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// gnet's worker pool starts two goroutines when the program does.
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent())
}

var quiet = slog.New(slog.DiscardHandler)

func small() Options {
	o := Defaults()
	o.Conns, o.InFlight, o.Size = 2, 4, 300
	o.Warmup, o.Duration = 50*time.Millisecond, 200*time.Millisecond
	return o
}

// startPeer runs Serve in a process of its own.
func startPeer(t *testing.T, o Options) *Peer {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(asPeer, string(text))
	p, err := StartPeer(t.Context(), io.Discard, self)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestUnaryMeasuresEveryClassWithEveryClient(t *testing.T) {
	for i, class := range Classes {
		for _, client := range Clients {
			transport := Transports[i%len(Transports)]
			t.Run(class+"/"+client+"/"+transport, func(t *testing.T) {
				o := small()
				o.Class, o.Client, o.Transport = class, client, transport
				p := startPeer(t, o)
				var progress bytes.Buffer
				r, err := Unary(t.Context(), o, quiet, p.Hello, p.Usage, &progress)
				if err := errors.Join(err, p.Close()); err != nil {
					t.Fatal(err)
				}
				if r.Requests == 0 || r.Errors != 0 || r.Rate <= 0 || r.Elapsed < o.Duration {
					t.Errorf("%d requests, %d errors, %v/s in %v", r.Requests, r.Errors, r.Rate, r.Elapsed)
				}
				if l := r.Latency; l.P50 <= 0 || l.P50 > l.P90 || l.P90 > l.P99 || l.P99 > l.P999 || l.P999 > l.Max {
					t.Errorf("quantiles out of order: %+v", l)
				}
				if r.Server.CPU <= 0 || r.Client.CPU <= 0 || r.Server.Total.Handled < r.Requests/2 {
					t.Errorf("server %+v, client %+v for %d requests", r.Server, r.Client, r.Requests)
				}
				if !strings.Contains(progress.String(), "2 associations stand") {
					t.Errorf("progress: %q", progress.String())
				}
			})
		}
	}
}

// The steady state of a server allocates nothing for a request: what it does
// allocate is for the measurement itself and does not grow with the requests.
// What an outer TLS allocates is crypto/tls' own affair.
func TestServerAllocatesNothingForARequest(t *testing.T) {
	if buildAllocates {
		return
	}
	o := small()
	o.Transport = "tcp"
	o.Warmup, o.Duration = 300*time.Millisecond, time.Second
	p := startPeer(t, o)
	r, err := Unary(t.Context(), o, quiet, p.Hello, p.Usage, io.Discard)
	if err := errors.Join(err, p.Close()); err != nil {
		t.Fatal(err)
	}
	if r.Server.Total.Handled > 5000 && r.Server.Allocs > 0.1 {
		t.Errorf("%v allocations for each of %d requests", r.Server.Allocs, r.Server.Total.Handled)
	}
}

func TestUnaryReportsAServerThatIsNotThere(t *testing.T) {
	o := small()
	p := startPeer(t, o)
	other := startPeer(t, o)
	hello := Hello{Addr: p.Addr, Key: other.Key}
	if _, err := Unary(t.Context(), o, quiet, hello, p.Usage, io.Discard); err == nil {
		t.Error("a server with another key was measured")
	}
	if err := errors.Join(p.Close(), other.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Usage(); !errors.Is(err, ErrPeer) {
		t.Errorf("usage of an ended process: %v", err)
	}
	if _, err := Unary(t.Context(), o, quiet, p.Hello, p.Usage, io.Discard); err == nil {
		t.Error("an ended server was measured")
	}
}

func TestUnaryEndsWithItsContext(t *testing.T) {
	o := small()
	o.Duration = time.Hour
	p := startPeer(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	// The first line of progress says that the load is about to begin.
	r, w := io.Pipe()
	go func() {
		bufio.NewReader(r).ReadString('\n')
		cancel()
		io.Copy(io.Discard, r)
	}()
	if _, err := Unary(ctx, o, quiet, p.Hello, p.Usage, w); !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	w.Close()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func TestStartPeerReportsAProgramThatIsNoServer(t *testing.T) {
	if _, err := StartPeer(t.Context(), io.Discard, "/nonexistent/program"); !errors.Is(err, ErrPeer) {
		t.Errorf("no such program: %v", err)
	}
	if _, err := StartPeer(t.Context(), io.Discard, "true"); !errors.Is(err, ErrPeer) {
		t.Errorf("a program that says nothing: %v", err)
	}
}

func TestControlAnswersUsageAndRefusesTheRest(t *testing.T) {
	var out bytes.Buffer
	err := control(t.Context(), strings.NewReader("usage\nusage\n"), &out, Hello{Addr: "a", Key: "k"}, func() uint64 { return 7 })
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(&out)
	var hello Hello
	var first, second Usage
	if err := errors.Join(d.Decode(&hello), d.Decode(&first), d.Decode(&second)); err != nil {
		t.Fatal(err)
	}
	if hello != (Hello{"a", "k"}) || first.Handled != 7 || first.CPU() <= 0 || second.CPU() < first.CPU() || second.Allocs < first.Allocs {
		t.Errorf("%+v %+v %+v", hello, first, second)
	}
	if err := control(t.Context(), strings.NewReader("reboot\n"), io.Discard, Hello{}, nil); err == nil {
		t.Error("an unknown command was taken")
	}
}

func TestOptionsThatCanNotBeMeasured(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"no associations":   func(o *Options) { o.Conns = 0 },
		"too many":          func(o *Options) { o.Conns = maxConns + 1 },
		"nothing in flight": func(o *Options) { o.InFlight = 0 },
		"over the limit":    func(o *Options) { o.InFlight = maxInFlight + 1 },
		"negative size":     func(o *Options) { o.Size = -1 },
		"too large":         func(o *Options) { o.Size = maxSize + 1 },
		"no time":           func(o *Options) { o.Duration = 0 },
		"negative warmup":   func(o *Options) { o.Warmup = -1 },
		"unknown class":     func(o *Options) { o.Class = "xml" },
		"unknown client":    func(o *Options) { o.Client = "fax" },
		"unknown transport": func(o *Options) { o.Transport = "rdma" },
		"too short":         func(o *Options) { o.Class, o.Size = "jsonrpc", 10 },
		"negative loops":    func(o *Options) { o.ServerLoops = -1 },
	} {
		o := Defaults()
		change(&o)
		if err := o.Validate(); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Unary(t.Context(), o, quiet, Hello{}, nil, io.Discard); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: measured: %v", name, err)
		}
	}
	o := Defaults()
	if err := o.Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
}

func TestMessagesHaveTheSizeAskedForAndAreWhatTheyClaim(t *testing.T) {
	for _, size := range []int{512, 1 << 16} {
		o := Defaults()
		o.Size = size
		if call, reply := o.call(); len(call.Foreign) != size || len(reply) != size {
			t.Errorf("opaque: %d and %d octets, want %d", len(call.Foreign), len(reply), size)
		}
		o.Class = "jsonrpc"
		call, reply := o.call()
		if len(call.Foreign) != size || len(reply) != size {
			t.Errorf("jsonrpc: %d and %d octets, want %d", len(call.Foreign), len(reply), size)
		}
		var m jsonrpc.Message
		if err := jsonrpc.Scan(call.Foreign, &m); err != nil || m.Kind != jsonrpc.KindRequest {
			t.Errorf("the request is a %v: %v", m.Kind, err)
		}
		if err := jsonrpc.Scan(reply, &m); err != nil || m.Kind != jsonrpc.KindResponse {
			t.Errorf("the reply is a %v: %v", m.Kind, err)
		}
	}
}

func TestSamplingCountsNothingOfItsOwn(t *testing.T) {
	s := newSampler()
	if _, err := s.read(); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { s.read() }); n != 0 {
		t.Errorf("%v allocations a sample", n)
	}
	before, _ := s.read()
	// The runtime counts a few objects late.
	hold := make([][]byte, 1000)
	for i := range hold {
		hold[i] = make([]byte, 2048)
	}
	after, _ := s.read()
	if d := after.Sub(before); d.Octets < 900*2048 || d.Allocs < 900 {
		t.Errorf("%d objects of %d octets made %+v", len(hold), len(hold[0]), d)
	}
}

func TestQuantilesOverSeveralAssociations(t *testing.T) {
	all := []latencies{newLatencies(), newLatencies()}
	for i := 1; i <= 1000; i++ {
		all[i%2].record(time.Duration(i) * time.Millisecond)
	}
	all[0].record(-time.Second) // clamped, not lost
	all[1].record(time.Hour)
	l := merged(all)
	near := func(got, want time.Duration) bool { return got > want*98/100 && got < want*102/100 }
	if !near(l.P50, 500*time.Millisecond) || !near(l.P90, 900*time.Millisecond) || !near(l.P99, 990*time.Millisecond) || !near(l.Max, 2*time.Minute) {
		t.Errorf("%+v", l)
	}
}

func TestReportForPeopleAndPrograms(t *testing.T) {
	r := &Report{
		Options: Defaults(), Machine: Machine{CPU: "cpu", CPUs: 2, System: "linux/amd64", Go: "go1"},
		Elapsed: 10 * time.Second, Requests: 1000000, Errors: 3, Rate: 100000,
		Latency: Latency{P50: 123456, P90: 2345678, P99: 3456789012, P999: 4e9, Max: 5e9},
		Server:  costOf(Usage{User: 2 * time.Second, System: time.Second, Allocs: 500, Octets: 1e6, Handled: 1e6}, 1e6),
	}
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"opaque, 64 associations x 16 in flight, 512 octets, callback over tls\n",
		"1000000 in 10s, 3 errors\n",
		"100000 requests/s\n",
		"p50 123µs  p90 2.35ms  p99 3.46s  p99.9 4s  max 5s\n",
		"3.00 us CPU/request (1.00 in the kernel), 0.0005 allocs/request, 1 octets/request\n",
	} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, table.String())
		}
	}
	var text bytes.Buffer
	if err := r.WriteJSON(&text); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(text.Bytes(), &back); err != nil || back != *r {
		t.Errorf("%v, %+v came back as %+v", err, r, back)
	}
	if c := costOf(Usage{User: 1}, 0); c.CPU != 0 {
		t.Errorf("a cost without requests: %+v", c)
	}
}
