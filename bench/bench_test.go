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
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/trestle-npamp/trestle/carriage/jsonrpc"
)

// asPeer makes the test binary a server process; the options come behind it.
const asPeer = "as-peer"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == asPeer {
		var o Options
		err := json.Unmarshal([]byte(os.Args[2]), &o)
		if err == nil {
			err = Serve(context.Background(), o, quietly, os.Stdin, os.Stdout)
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

var quietly = slog.New(slog.DiscardHandler)

func small(scenario string) Options {
	o := Defaults(scenario)
	o.Conns = min(o.Conns, 2)
	o.InFlight = min(o.InFlight, 4)
	o.Warmup, o.Duration = 50*time.Millisecond, 200*time.Millisecond
	o.Quiet = 10 * time.Millisecond
	return o
}

// startPeer runs Serve in a process of its own.
func startPeer(t testing.TB, o Options) *Peer {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	p, err := StartPeer(context.Background(), io.Discard, self, asPeer, string(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func measured(t testing.TB, o Options, progress io.Writer) *Report {
	t.Helper()
	p := startPeer(t, o)
	target, err := Engine(o, quietly, p.Hello)
	if err != nil {
		t.Fatal(errors.Join(err, p.Close()))
	}
	r, err := Measure(context.Background(), o, target, p, progress)
	if err := errors.Join(err, p.Close()); err != nil {
		t.Fatal(err)
	}
	return r
}

func ordered(l Latency) bool {
	return l.P50 > 0 && l.P50 <= l.P90 && l.P90 <= l.P99 && l.P99 <= l.P999 && l.P999 <= l.Max
}

func TestUnaryMeasuresEveryClassWithEveryClient(t *testing.T) {
	for i, class := range Classes {
		for _, client := range Clients {
			transport := Transports[i%len(Transports)]
			t.Run(class+"/"+client+"/"+transport, func(t *testing.T) {
				o := small(Unary)
				o.Class, o.Client, o.Transport = class, client, transport
				var progress bytes.Buffer
				r := measured(t, o, &progress)
				if r.Requests == 0 || r.Errors != 0 || r.Rate <= 0 || r.Elapsed < o.Duration || r.Shape != client {
					t.Errorf("%d requests, %d errors, %v/s in %v, %s client", r.Requests, r.Errors, r.Rate, r.Elapsed, r.Shape)
				}
				if !ordered(r.Latency) || len(r.Distribution) == 0 {
					t.Errorf("latency %+v, distribution %v", r.Latency, r.Distribution)
				}
				if r.Server.CPU <= 0 || r.Client.CPU <= 0 || r.Server.Total.Handled < r.Requests/2 {
					t.Errorf("server %+v, client %+v for %d requests", r.Server, r.Client, r.Requests)
				}
				if !strings.Contains(progress.String(), "2 connections") {
					t.Errorf("progress: %q", progress.String())
				}
			})
		}
	}
}

// Whose records are under it makes no difference to what is measured, and is said.
func TestRecordsOfTheStandardLibraryCanBeMeasured(t *testing.T) {
	for _, scenario := range []string{Unary, Stream} {
		o := small(scenario)
		o.TLS = StandardTLS
		r := measured(t, o, io.Discard)
		if r.Requests == 0 || r.Errors != 0 || r.Server.CPU <= 0 {
			t.Errorf("%s: %d good, %d bad, server %+v", scenario, r.Requests, r.Errors, r.Server)
		}
		if text := fmt.Sprint(r.Rows()); !strings.Contains(text, "over tls by crypto/tls") {
			t.Errorf("%s: %s", scenario, text)
		}
	}
}

// In the steady state nothing is allocated for a request, its reply, a notification
// or an event, by the server or by a client with callbacks. What is counted all the
// same does not grow with them: the runtime counts the objects of a span when it is
// full, and so up to a few hundred of those made before; the measurement makes a few
// timers; and pools make another buffer when more are under way than ever before.
//
// Package bench notifies from goroutines that wait for room, and waiting takes a
// channel and a timer; carriage.TestNotificationAllocatesNothing is about those that
// don't wait.
func TestNothingIsAllocatedForARequest(t *testing.T) {
	if buildAllocates {
		return
	}
	const late = 1000
	for _, transport := range Transports {
		for _, kind := range []struct {
			name   string
			change func(*Options)
		}{
			{"opaque requests", func(o *Options) {}},
			{"jsonrpc requests", func(o *Options) { o.Class = JSONRPC }},
			{"lone requests", func(o *Options) { o.Conns, o.InFlight = 1, 1 }},
			{"events", func(o *Options) { *o = small(Stream); o.Events = 500_000 }},
			{"notifications", func(o *Options) { *o = small(Notify); o.Count = 200_000 }},
		} {
			t.Run(transport+"/"+kind.name, func(t *testing.T) {
				o := small(Unary)
				kind.change(&o)
				o.Transport = transport
				o.Warmup, o.Duration = 300*time.Millisecond, 500*time.Millisecond
				r := measured(t, o, io.Discard)
				n := r.Server.Total.Handled
				if a := r.Server.Total.Allocs; a > late+n/1000 {
					t.Errorf("the server allocated %d objects for %d", a, n)
				}
				if a := r.Client.Total.Allocs; a > late+n/1000 && o.Scenario != Notify {
					t.Errorf("the client allocated %d objects for %d", a, n)
				}
				if n < 10*late { // too few to tell: a machine that has no time
					t.Logf("only %d in %v", n, r.Elapsed)
				}
			})
		}
	}
}

// In an open loop everything that was due in the measured time is accounted for,
// whether it left late or never.
func TestOpenLoopAccountsForItsWholeSchedule(t *testing.T) {
	for _, client := range Clients {
		for _, rate := range []float64{500, 1e7} {
			t.Run(fmt.Sprintf("%s/%.0f", client, rate), func(t *testing.T) {
				o := small(Unary)
				o.Transport, o.Client, o.Rate, o.Warmup = "tcp", client, rate, 0
				r := measured(t, o, io.Discard)
				due := uint64(rate * o.Duration.Seconds())
				if all := r.Requests + r.Errors + r.Unsent; all < due-1 || all > due+1 {
					t.Errorf("%d answered, %d failed, %d unsent; %d were due", r.Requests, r.Errors, r.Unsent, due)
				}
				if over := rate > 1e6; over != (r.Unsent > 0) {
					t.Errorf("%d unsent", r.Unsent)
				} else if over && r.Latency.Max < o.Duration {
					t.Errorf("the slowest took %v, but some were never sent", r.Latency.Max)
				}
			})
		}
	}
}

// What is slow delays what comes after it, and an open loop's schedule shows that: a
// stall of a quarter of the time is in its p99, by either shape of client. A closed
// loop sends nothing meanwhile, and its p99 knows of no stall.
func TestOpenLoopCountsFromWhenARequestShouldHaveStarted(t *testing.T) {
	const stall = 100 * time.Millisecond
	run := func(rate float64, client string) Latency {
		t.Helper()
		o := small(Unary)
		o.Conns, o.InFlight, o.Client = 1, 1, client
		o.Rate, o.Warmup, o.Duration = rate, 0, 4*stall
		target := &slowTarget{stall: stall}
		l, err := NewLoad(t.Context(), o, target)
		if err != nil {
			t.Fatal(err)
		}
		s, err := l.Run(t.Context(), noServer{}, io.Discard)
		if err := errors.Join(err, l.Close()); err != nil {
			t.Fatal(err)
		}
		target.calls.Wait()
		return s.Main.Latency()
	}
	for _, client := range Clients {
		// The first request takes the stall, and each of the 100 behind it a millisecond
		// less: of all, each hundredth takes at least 96 ms.
		if q := run(1000, client); q.P99 < stall*9/10 || q.P90 < stall/2 || q.Max < stall {
			t.Errorf("%s: open loop: %v", client, q)
		}
		if q := run(0, client); q.P99 > stall/2 || q.Max < stall {
			t.Errorf("%s: closed loop: %v", client, q)
		}
	}
}

// slowTarget answers its first request late.
type slowTarget struct {
	stall time.Duration
	count atomic.Int64
	calls sync.WaitGroup
}

func (t *slowTarget) Dial(context.Context) (Conn, error) { return t, nil }
func (t *slowTarget) Close() error                       { return nil }
func (t *slowTarget) Call(ctx context.Context, _ Message) error {
	if t.count.Add(1) == 1 {
		return pause(ctx, t.stall)
	}
	return nil
}
func (t *slowTarget) Place(m Message, done func(error)) func() error {
	return func() error {
		t.calls.Go(func() { done(t.Call(context.Background(), m)) })
		return nil
	}
}

type noServer struct{}

func (noServer) Usage() (Usage, error)  { return Usage{}, nil }
func (noServer) Settle() (Usage, error) { return Usage{}, nil }

func TestMixedTellsSmallRequestsFromLargeOnes(t *testing.T) {
	o := small(Mixed)
	o.LargeSize = 100_000
	r := measured(t, o, io.Discard)
	if r.Requests == 0 || r.Errors != 0 || r.Beside == nil || r.Beside.Requests == 0 || r.Beside.Errors != 0 || r.Beside.Name != "large requests" {
		t.Errorf("%d requests, %d errors, beside %+v", r.Requests, r.Errors, r.Beside)
	}
}

func TestStreamsAreCountedByTheEvent(t *testing.T) {
	for _, client := range Clients {
		for i, transport := range Transports {
			o := small(Stream)
			o.Client, o.Transport, o.Conns, o.Streams = client, transport, 1+i, 3
			r := measured(t, o, io.Discard)
			if r.Requests == 0 || r.Errors != 0 || !ordered(r.Latency) || r.Server.Total.Handled < r.Requests/2 {
				t.Errorf("%s, %s: %d events, %d errors, %+v, server %+v", client, transport, r.Requests, r.Errors, r.Latency, r.Server)
			}
		}
	}
}

func TestFanoutDeliversEachPublicationToEachSubscriber(t *testing.T) {
	for i, rate := range []float64{0, 200} {
		o := small(Fanout)
		o.Conns, o.Rate, o.Warmup, o.Client = 5, rate, 0, Clients[i]
		r := measured(t, o, io.Discard)
		if r.Requests == 0 || r.Errors != 0 || !ordered(r.Latency) || r.Beside == nil || r.Beside.Errors != 0 {
			t.Errorf("%d deliveries, %d errors, %+v, beside %+v", r.Requests, r.Errors, r.Latency, r.Beside)
		}
		// On a busy machine some are still on their way when the time is up.
		if rate > 0 && (r.Requests > 5*r.Beside.Requests || r.Requests < r.Beside.Requests) {
			t.Errorf("%d deliveries of %d publications", r.Requests, r.Beside.Requests)
		}
	}
}

func TestHandshakesAreCountedAndTimed(t *testing.T) {
	for _, transport := range Transports {
		o := small(Handshake)
		o.Transport = transport
		r := measured(t, o, io.Discard)
		if r.Requests == 0 || r.Errors != 0 || !ordered(r.Latency) || r.Server.Total.Handled == 0 || r.Server.CPU < 50 {
			t.Errorf("%s: %d handshakes, %d errors, %+v, server %+v", transport, r.Requests, r.Errors, r.Latency, r.Server)
		}
	}
}

func TestIdleReadsMemoryBeforeAndAfterABurst(t *testing.T) {
	o := small(Idle)
	o.Conns, o.Burst, o.LargeSize = 50, 3, 5<<20 // over the usual limit of a frame
	r := measured(t, o, io.Discard)
	m := r.Memory
	if m == nil || m.Connections != 50 {
		t.Fatalf("%+v", m)
	}
	if _, err := os.Stat("/proc/self/statm"); err == nil && (m.SettledBefore <= 0 || m.Base < 1024) {
		t.Errorf("%+v", m)
	}
	if m.Goroutines[0] <= 0 || m.Goroutines[1] <= 0 || m.Goroutines[2] <= 0 {
		t.Errorf("%d goroutines", m.Goroutines)
	}
	if text := fmt.Sprint(r.Rows()); !strings.Contains(text, "KiB a connection before the burst") || !strings.Contains(text, "after/before") {
		t.Errorf("%s", text)
	}
}

// What a report finds to be other than it should be.
func TestMissed(t *testing.T) {
	well := func() *Report {
		o := Defaults(Idle)
		o.MostEach = 8
		return &Report{Options: o, Memory: &Memory{Connections: 10_000, SettledBefore: 7, SettledAfter: 8, Growth: 1.1, Goroutines: [3]int64{10, 12, 12}}}
	}
	lossless := func() *Report { return &Report{Options: Defaults(Notify), Requests: 1_000_000} }
	if err := errors.Join(well().Missed(), lossless().Missed(), (&Report{Options: Defaults(Unary), Errors: 1}).Missed()); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]struct {
		r      *Report
		change func(*Report)
	}{
		"growth":                      {well(), func(r *Report) { r.Memory.Growth = 1.101 }},
		"too much before":             {well(), func(r *Report) { r.Memory.SettledBefore = 8.01 }},
		"too much after":              {well(), func(r *Report) { r.Memory.SettledAfter = 8.01 }},
		"goroutines of the burst":     {well(), func(r *Report) { r.Memory.Goroutines[2]++ }},
		"goroutines of connections":   {well(), func(r *Report) { r.Memory.Goroutines = [3]int64{10, 1010, 1010} }},
		"a notification did not come": {lossless(), func(r *Report) { r.Requests-- }},
		"one came too often":          {lossless(), func(r *Report) { r.Requests++ }},
		"sending failed":              {lossless(), func(r *Report) { r.Errors = 1 }},
	} {
		if c.change(c.r); !errors.Is(c.r.Missed(), ErrMissed) {
			t.Errorf("%s: %v", name, c.r.Missed())
		}
	}
	any := well()
	any.Options.MostEach, any.Options.MostGrowth = 0, 0
	any.Memory.Growth, any.Memory.SettledAfter = 100, 100
	if err := any.Missed(); err != nil {
		t.Errorf("not asked for: %v", err)
	}
}

// BenchmarkNotifications is L12 in full: 1,000,000 notifications of 60 octets on
// one association. It reports how many writes each cost, and how long a lone
// request takes afterwards.
func BenchmarkNotifications(b *testing.B) {
	for _, transport := range Transports {
		b.Run(transport, func(b *testing.B) {
			for b.Loop() {
				o := Defaults(Notify)
				o.Transport = transport
				r := measured(b, o, io.Discard)
				if r.Requests != uint64(o.Count) {
					b.Fatalf("%d of %d arrived", r.Requests, o.Count)
				}
				b.ReportMetric(r.Rate, "notifications/s")
				b.ReportMetric(r.Client.Writes, "writes/notification")
				b.ReportMetric(r.Server.CPU*1000, "server-ns/notification")
				b.ReportMetric(float64(r.Beside.Latency.P50.Nanoseconds()), "lone-p50-ns")
				b.ReportMetric(float64(r.Beside.Latency.P99.Nanoseconds()), "lone-p99-ns")
			}
		})
	}
}

func TestALoadCanRunAgain(t *testing.T) {
	o := small(Unary)
	p := startPeer(t, o)
	target, err := Engine(o, quietly, p.Hello)
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewLoad(t.Context(), o, target)
	if err != nil {
		t.Fatal(err)
	}
	var sum Sample
	for range 3 {
		s, err := l.Run(t.Context(), p, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if s.Main.Good == 0 || s.Main.Bad != 0 {
			t.Errorf("%d good, %d bad", s.Main.Good, s.Main.Bad)
		}
		sum.Add(s)
	}
	if sum.Elapsed < 3*o.Duration || sum.Rate() <= 0 || sum.Server.Handled == 0 || !ordered(sum.Main.Latency()) {
		t.Errorf("together %v, %v/s, %+v", sum.Elapsed, sum.Rate(), sum.Server)
	}
	if err := errors.Join(l.Close(), p.Close()); err != nil {
		t.Error(err)
	}
}

func TestAServerThatIsNotThereIsReported(t *testing.T) {
	o := small(Unary)
	p := startPeer(t, o)
	other := startPeer(t, o)
	for _, hello := range []Hello{{Addr: p.Addr, Key: other.Key}, {Addr: "127.0.0.1:1", Key: p.Key}} {
		target, err := Engine(o, quietly, hello)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Measure(t.Context(), o, target, p, io.Discard); err == nil {
			t.Errorf("%+v was measured", hello)
		}
	}
	if err := errors.Join(p.Close(), other.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Usage(); !errors.Is(err, ErrPeer) {
		t.Errorf("usage of an ended process: %v", err)
	}
	if _, err := Engine(o, quietly, Hello{Addr: p.Addr, Key: "no key"}); err == nil {
		t.Error("a key that is none was taken")
	}
}

func TestMeasureEndsWithItsContext(t *testing.T) {
	for _, scenario := range []string{Unary, Handshake} {
		for _, client := range Clients {
			o := small(scenario)
			o.Duration, o.Client = time.Hour, client
			p := startPeer(t, o)
			target, err := Engine(o, quietly, p.Hello)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			// The first line of progress says that the load is about to begin.
			r, w := io.Pipe()
			go func() {
				_, _ = bufio.NewReader(r).ReadString('\n')
				cancel()
				_, _ = io.Copy(io.Discard, r)
			}()
			if _, err := Measure(ctx, o, target, p, w); !errors.Is(err, context.Canceled) {
				t.Errorf("%s, %s: ended with %v", scenario, client, err)
			}
			w.Close()
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
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

func TestControlAnswersItsCommandsAndRefusesTheRest(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cpu.pprof")
	in := "usage\nusage\nsettle\nprofile " + file + "\nprofile\n"
	var out bytes.Buffer
	err := Control(t.Context(), strings.NewReader(in), &out, Hello{Addr: "a", Key: "k"}, func() uint64 { return 7 })
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(&out)
	var hello Hello
	var first, second, settled Usage
	if err := errors.Join(d.Decode(&hello), d.Decode(&first), d.Decode(&second), d.Decode(&settled)); err != nil {
		t.Fatal(err)
	}
	if hello != (Hello{"a", "k"}) || first.Handled != 7 || first.CPU() <= 0 || second.CPU() < first.CPU() || second.Allocs < first.Allocs || settled.Cycles <= first.Cycles {
		t.Errorf("%+v %+v %+v %+v", hello, first, second, settled)
	}
	if s, err := os.Stat(file); err != nil || s.Size() == 0 {
		t.Errorf("profile: %v, %v", s, err)
	}
	if err := Control(t.Context(), strings.NewReader("reboot\n"), io.Discard, Hello{}, nil); err == nil {
		t.Error("an unknown command was taken")
	}
}

func TestOptionsThatCanNotBeMeasured(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"no associations":    func(o *Options) { o.Conns = 0 },
		"too many":           func(o *Options) { o.Conns = maxConns + 1 },
		"nothing in flight":  func(o *Options) { o.InFlight = 0 },
		"over the limit":     func(o *Options) { o.InFlight = maxInFlight + 1 },
		"both over it":       func(o *Options) { o.InFlight, o.LargeInFlight = maxInFlight/2+1, maxInFlight/2 },
		"negative size":      func(o *Options) { o.Size = -1 },
		"too large":          func(o *Options) { o.Size = maxSize + 1 },
		"no time":            func(o *Options) { o.Duration = 0 },
		"negative warmup":    func(o *Options) { o.Warmup = -1 },
		"negative quiet":     func(o *Options) { o.Quiet = -1 },
		"negative growth":    func(o *Options) { o.MostGrowth = -1 },
		"no size at all":     func(o *Options) { o.MostEach = math.NaN() },
		"negative lone":      func(o *Options) { o.Lone = -1 },
		"negative rate":      func(o *Options) { o.Rate = -1 },
		"unknown class":      func(o *Options) { o.Class = "xml" },
		"unknown client":     func(o *Options) { o.Client = "fax" },
		"unknown transport":  func(o *Options) { o.Transport = "rdma" },
		"unknown scenario":   func(o *Options) { o.Scenario = "chaos" },
		"too short":          func(o *Options) { o.Class, o.Size = "jsonrpc", 10 },
		"unknown records":    func(o *Options) { o.TLS = "foreign" },
		"records of tcp":     func(o *Options) { o.Transport, o.TLS = "tcp", StandardTLS },
		"negative loops":     func(o *Options) { o.ServerLoops = -1 },
		"no large messages":  func(o *Options) { *o = Defaults(Mixed); o.LargeInFlight = 0 },
		"no streams":         func(o *Options) { *o = Defaults(Stream); o.Streams = 0 },
		"no events":          func(o *Options) { *o = Defaults(Stream); o.Events = 0 },
		"events too short":   func(o *Options) { *o = Defaults(Stream); o.Size = stampLen - 1 },
		"streams by rate":    func(o *Options) { *o = Defaults(Stream); o.Rate = 1 },
		"nothing to notify":  func(o *Options) { *o = Defaults(Notify); o.Count = 0 },
		"jsonrpc by streams": func(o *Options) { *o = Defaults(Stream); o.Class, o.Size = JSONRPC, 4096 },
	} {
		o := Defaults(Unary)
		change(&o)
		if err := o.Validate(); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Engine(o, quietly, Hello{}); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: reached: %v", name, err)
		}
		if _, err := Measure(t.Context(), o, &slowTarget{}, noServer{}, io.Discard); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: measured: %v", name, err)
		}
		if err := Serve(t.Context(), o, quietly, strings.NewReader(""), io.Discard); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: served: %v", name, err)
		}
	}
	for _, s := range Scenarios {
		o := Defaults(s)
		if err := o.Validate(); err != nil {
			t.Errorf("the defaults of %s: %v", s, err)
		}
	}
}

// A client that lacks what a scenario needs is told so.
func TestScenariosThatAClientDoesNotHave(t *testing.T) {
	for _, s := range []string{Stream, Fanout, Notify} {
		if _, err := Measure(t.Context(), small(s), &slowTarget{}, noServer{}, io.Discard); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: %v", s, err)
		}
	}
}

func TestMessagesHaveTheSizeAskedForAndAreWhatTheyClaim(t *testing.T) {
	for _, size := range []int{512, 1 << 16} {
		o := Defaults(Unary)
		o.Size, o.LargeSize = size, 2*size
		if call, reply := o.call(Plain); len(call.Foreign) != size || len(reply) != size {
			t.Errorf("opaque: %d and %d octets, want %d", len(call.Foreign), len(reply), size)
		}
		if call, reply := o.call(Large); len(call.Foreign) != 2*size || len(reply) != 2*size {
			t.Errorf("large: %d and %d octets, want %d", len(call.Foreign), len(reply), 2*size)
		}
		o.Class = JSONRPC
		call, reply := o.call(Plain)
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

func TestEventsBearTheTimeNowAndThen(t *testing.T) {
	o := Defaults(Stream)
	o.Events = 3 * Stamping
	f := NewFeed(&o)
	events, stamps := 0, 0
	for e := f.Next(); e != nil; e = f.Next() {
		events++
		if len(e) != o.Size {
			t.Fatalf("an event of %d octets", len(e))
		}
		if at, ok := Stamp(e); ok {
			stamps++
			if d := time.Since(at); d < 0 || d > time.Minute {
				t.Errorf("made %v ago", d)
			}
		}
	}
	if events != o.Events || stamps != 3 {
		t.Errorf("%d events, %d with the time", events, stamps)
	}
	if _, ok := Stamp(make([]byte, stampLen-1)); ok {
		t.Error("a time in too few octets")
	}
	f = NewFeed(&o)
	events, stamps = 0, 0
	for list := f.Batch(make([][]byte, 0, 17)); len(list) > 0; list = f.Batch(list[:0]) {
		for _, e := range list {
			if _, ok := Stamp(e); ok != (events%Stamping == 0) {
				t.Errorf("event %d of batches bears the time: %v", events, ok)
			}
			events++
		}
	}
	if events != o.Events || f.Next() != nil {
		t.Errorf("%d events in batches", events)
	}
}

func TestSamplingCountsNothingOfItsOwn(t *testing.T) {
	s := newSampler()
	defer s.close()
	if _, err := s.read(); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = s.read() }); n != 0 {
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
	if _, err := os.Stat("/proc/self/io"); err != nil {
		return
	}
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	before, _ = s.read()
	for range 10 {
		_, _ = f.Write([]byte("x"))
	}
	after, _ = s.read()
	if d := after.Sub(before); d.Writes != 10 || after.Resident < 1<<20 {
		t.Errorf("10 writes made %+v, %d octets resident", d, after.Resident)
	}
}

func TestDifferencesAddUp(t *testing.T) {
	a := Usage{User: 3, System: 5, Allocs: 7, Octets: 11, Cycles: 13, Reads: 17, Writes: 19, Switches: 23, Handled: 29, Resident: 31, Goroutines: 37, Free: 41}
	v := reflect.ValueOf(a)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Fatalf("%s has no value here", v.Type().Field(i).Name)
		}
	}
	if back := a.Add(a).Sub(a); back != a {
		t.Errorf("%+v became %+v", a, back)
	}
}

func TestQuantilesOverSeveralTallies(t *testing.T) {
	var sum Part
	for i := range 2 {
		n := newTally()
		for ms := 1 + i; ms <= 1000; ms += 2 {
			n.takes(time.Duration(ms) * time.Millisecond)
		}
		if i == 0 {
			n.takes(-time.Second) // clamped, not lost
		} else {
			n.takes(time.Hour)
		}
		n.fails()
		n.drain(&sum)
		n.drain(&sum) // has nothing more
	}
	near := func(got, want time.Duration) bool { return got > want*98/100 && got < want*102/100 }
	l := sum.Latency()
	if !near(l.P50, 500*time.Millisecond) || !near(l.P90, 900*time.Millisecond) || !near(l.P99, 990*time.Millisecond) || !near(l.Max, 2*time.Minute) {
		t.Errorf("%+v", l)
	}
	if sum.Good != 1002 || sum.Bad != 2 {
		t.Errorf("%d good, %d bad", sum.Good, sum.Bad)
	}
	d := sum.Distribution()
	for i, q := range d {
		if i > 0 && (q.Share <= d[i-1].Share || q.Time <= d[i-1].Time) {
			t.Fatalf("not a distribution: %v", d)
		}
	}
	if n := len(d); n < 20 || d[n-1].Share != 1 || !near(d[n-1].Time, 2*time.Minute) {
		t.Errorf("%v", d)
	}
}

func TestReportForPeopleAndPrograms(t *testing.T) {
	r := &Report{
		Options: Defaults(Unary), Shape: Callback, Machine: Machine{CPU: "cpu", CPUs: 2, System: "linux/amd64", Go: "go1"},
		Elapsed: 10 * time.Second, Requests: 1000000, Errors: 3, Unsent: 4, Rate: 100000,
		Latency:      Latency{P50: 123456, P90: 2345678, P99: 3456789012, P999: 4e9, Max: 5e9},
		Server:       CostOf(Usage{User: 2 * time.Second, System: time.Second, Allocs: 500, Octets: 1e6, Reads: 1e5, Writes: 2e5, Handled: 1e6}, 1e6),
		Beside:       &Beside{Name: "others", Requests: 5},
		Distribution: []Quantile{{0.5, 1}, {1, 2}},
		Series:       []Point{{1, 2}},
	}
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"unary: 64 connections x 16 in flight, 512 octets, closed loop; callback client over tls; loops: server one a processor, client one a processor\n",
		"1000000 in 10s, 3 errors\n",
		"100000 requests/s\n",
		"4 requests of the schedule\n",
		"p50 123µs  p90 2.35ms  p99 3.46s  p99.9 4s  max 5s\n",
		"  5, 0 errors, p50 0s",
		"3.00 us CPU/request (1.00 in the kernel), 0.0005 allocs, 1 octets, 0.1 reads, 0.2 writes, 0 waits\n",
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
	if err := json.Unmarshal(text.Bytes(), &back); err != nil || !reflect.DeepEqual(&back, r) {
		t.Errorf("%v, %+v came back as %+v", err, r, back)
	}
	for _, r := range []*Report{r, {Options: Defaults(Idle), Memory: &Memory{SettledBefore: 7.5}}} {
		var out bytes.Buffer
		if err := r.WritePage(&out); err != nil || !strings.Contains(out.String(), "<svg") || !strings.Contains(out.String(), "trestle bench "+r.Options.Scenario) {
			t.Errorf("%v: %s", err, out.String())
		}
	}
	if c := CostOf(Usage{User: 1}, 0); c.CPU != 0 {
		t.Errorf("a cost without requests: %+v", c)
	}
	for _, s := range Scenarios {
		o := Defaults(s)
		if o.Load() == "" || nouns[s] == "" {
			t.Errorf("no words for %s", s)
		}
	}
}
