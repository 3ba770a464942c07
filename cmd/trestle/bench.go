package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"

	"github.com/urfave/cli/v3"

	"github.com/trestle-npamp/trestle/bench"
)

func benchCommand() *cli.Command {
	cmd := &cli.Command{
		Name:  "bench",
		Usage: "measure this build on this machine",
		Description: `Starts itself once more as a server on a loopback port and puts a load on it. Two
processes, so that the server's CPU time, allocations and memory are its own. Progress goes
to standard error, the result to standard output as a table and, with --json, as JSON to a
file ("-" is standard output instead of the table); --report writes a page with plots.

   trestle bench unary
   trestle bench idle --transport tcp
   trestle bench unary --report unary.html
   trestle bench unary --syscalls                # and what both ask of the kernel

Compare only numbers of one machine and one sitting.`,
		Action: func(_ context.Context, cmd *cli.Command) error {
			return usagef("%s: say what to measure; see %q", cmd.Name, cmd.FullName()+" --help")
		},
	}
	for _, s := range scenarios {
		cmd.Commands = append(cmd.Commands, s.command())
	}
	cmd.Commands = append(cmd.Commands, benchServerCommand())
	return cmd
}

// scenario is a subcommand.
type scenario struct {
	name, usage, description string
	flags                    []string // besides those that all have
}

// loopFlags are those of what repeats requests.
var loopFlags = []string{"conns", "inflight", "size", "duration", "warmup", "client", "rate", "syscalls"}

var scenarios = []scenario{
	{
		bench.Unary, "requests per second, latency, and what a request costs the server",
		`Each request is answered with as many octets as it has. Closed loops keep a fixed number of
requests in flight on each of a fixed number of associations. With --rate it is an open
loop: requests start at fixed times, whatever became of those before, and the latency of
each counts from when it should have started.

   trestle bench unary
   trestle bench unary --transport tcp                          # without the outer TLS
   trestle bench unary --conns 1 --inflight 1 --duration 3s     # the latency of a lone request
   trestle bench unary --rate 50000                             # an open loop
   trestle bench unary --class jsonrpc --size 4096 --json result.json`,
		slices.Concat(loopFlags, []string{"class"}),
	},
	{
		bench.Mixed, "small requests with large ones on the same associations",
		`Says how long small requests wait for large ones that travel on the same associations.

   trestle bench mixed
   trestle bench mixed --rate 20000 --large-inflight 2`,
		slices.Concat(loopFlags, []string{"large-size", "large-inflight"}),
	},
	{
		bench.Stream, "events per second of streams from the server",
		`Each stream starts again when it has ended. The time of one event in 32 is taken, from
when the server made it until the client had it.

   trestle bench stream                                         # one stream on each of 64 associations
   trestle bench stream --conns 1 --streams 64                  # 64 streams on one
   trestle bench stream --client blocking`,
		[]string{"conns", "streams", "events", "buffer", "size", "duration", "warmup", "client", "syscalls"},
	},
	{
		bench.Fanout, "events to a subscriber on every association",
		`One more association publishes events, each of which the server sends to all subscribers.
What counts is deliveries; the time of each begins when its event should have been
published.

   trestle bench fanout
   trestle bench fanout --conns 1000 --rate 100`,
		loopFlags,
	},
	{
		bench.Notify, "messages without a reply, as fast as they are taken",
		`Says how many writes they cost, and, in requests that travel among them and then alone,
whether anything is held back for the sake of batches; "over pipes instead" is what questions
to the server take that are no requests. Fails if a notification is lost.

   trestle bench notify
   trestle bench notify --count 10000000 --inflight 4`,
		[]string{"conns", "inflight", "size", "count", "lone"},
	},
	{
		bench.Handshake, "what it costs to make an association",
		`Makes and ends associations, --conns at a time.

   trestle bench handshake
   trestle bench handshake --transport tcp --conns 1`,
		[]string{"conns", "duration", "warmup", "syscalls"},
	},
	{
		bench.Idle, "resident memory of associations that say nothing",
		`Reads the server's memory with --conns associations that had a request each and then said
nothing for --quiet, and again after a large message went to and fro on some of them: once
as it is, and once after the server has collected its garbage and given unused memory back.
Fails, after the report, if that second number or the goroutines have grown by the burst, or
with --most-each if it is too large.

   trestle bench idle --quiet 60s
   trestle bench idle --conns 1000 --transport tcp --most-each 8`,
		[]string{"conns", "burst", "large-size", "quiet", "most-growth", "most-each"},
	},
}

func (s scenario) command() *cli.Command {
	d := bench.Defaults(s.name)
	all := map[string]cli.Flag{
		"conns":          &cli.IntFlag{Name: "conns", Value: d.Conns, Usage: "keep `N` associations"},
		"inflight":       &cli.IntFlag{Name: "inflight", Value: d.InFlight, Usage: "have up to `N` requests in flight on each of them"},
		"size":           &cli.IntFlag{Name: "size", Value: d.Size, Usage: "messages of `N` octets each"},
		"class":          &cli.StringFlag{Name: "class", Value: d.Class, Usage: "what is carried, `CLASS` opaque or jsonrpc (A2A's message/send)"},
		"duration":       &cli.DurationFlag{Name: "duration", Value: d.Duration, Usage: "measure for `D`"},
		"warmup":         &cli.DurationFlag{Name: "warmup", Value: d.Warmup, Usage: "run for `D` before measuring"},
		"client":         &cli.StringFlag{Name: "client", Value: d.Client, Usage: "`SHAPE` of the client: callback (on the loops) or blocking (a goroutine a request)"},
		"rate":           &cli.FloatFlag{Name: "rate", Usage: "start `N` requests a second in all, in an open loop; 0 is a closed loop"},
		"large-size":     &cli.IntFlag{Name: "large-size", Value: d.LargeSize, Usage: "large messages of `N` octets"},
		"large-inflight": &cli.IntFlag{Name: "large-inflight", Value: d.LargeInFlight, Usage: "keep `N` of them in flight on each association"},
		"streams":        &cli.IntFlag{Name: "streams", Value: d.Streams, Usage: "keep `N` streams on each association"},
		"events":         &cli.IntFlag{Name: "events", Value: d.Events, Usage: "streams of `N` events"},
		"buffer":         &cli.IntFlag{Name: "buffer", Value: d.Buffer, Usage: "let each stream's producer be `N` octets ahead; 0 is the default of package carriage"},
		"count":          &cli.IntFlag{Name: "count", Value: d.Count, Usage: "send `N` notifications"},
		"burst":          &cli.IntFlag{Name: "burst", Value: d.Burst, Usage: "a large message on `N` of the associations"},
		"syscalls":       &cli.BoolFlag{Name: "syscalls", Usage: "count both processes' system calls too, in a second of its own (with strace, on Linux)"},
		"lone":           &cli.IntFlag{Name: "lone", Value: d.Lone, Usage: "make `N` requests afterwards, a rest before each"},
		"most-growth":    &cli.FloatFlag{Name: "most-growth", Value: d.MostGrowth, Usage: "fail if the process has more than `P` per cent more memory after the burst; 0 is any"},
		"most-each":      &cli.FloatFlag{Name: "most-each", Value: d.MostEach, Usage: "fail if an association takes more than `N` KiB; 0 is any"},
		"quiet":          &cli.DurationFlag{Name: "quiet", Value: d.Quiet, Usage: "wait for `D` before each reading"},
	}
	if s.name == bench.Handshake {
		all["conns"] = &cli.IntFlag{Name: "conns", Value: d.Conns, Usage: "make `N` associations at a time"}
	}
	flags := []cli.Flag{
		&cli.StringFlag{Name: "transport", Value: d.Transport, Usage: "`TRANSPORT` under the associations: tls or tcp"},
		&cli.StringFlag{Name: "tls", Value: d.TLS, Usage: "`WHOSE` records under them: own, or std for those of crypto/tls"},
		&cli.IntFlag{Name: "server-loops", Usage: "`N` event loops in the server; 0 is one a processor"},
		&cli.IntFlag{Name: "client-loops", Usage: "`N` event loops in the client; 0 is one a processor"},
		&cli.StringFlag{Name: "json", Usage: "write the result as JSON to `FILE`", TakesFile: true},
		&cli.StringFlag{Name: "report", Usage: "write a page of HTML with plots to `FILE`", TakesFile: true},
		&cli.StringFlag{Name: "profile", Usage: "write CPU profiles of both processes, server.pprof and client.pprof, to `DIR`", TakesFile: true},
	}
	for _, name := range s.flags {
		flags = append(flags, all[name])
	}
	return &cli.Command{
		Name:        s.name,
		Usage:       s.usage,
		Description: s.description,
		Flags:       append(flags, logFlags("error")...),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			o := s.options(cmd)
			if err := o.Validate(); err != nil {
				return &exitError{exitUsage, err}
			}
			ctx, stop := untilSignal(ctx)
			defer stop()
			return runBench(ctx, cmd, o)
		},
	}
}

// options are the scenario's defaults with what flags say instead.
func (s scenario) options(cmd *cli.Command) bench.Options {
	o := bench.Defaults(s.name)
	o.Transport, o.TLS = cmd.String("transport"), cmd.String("tls")
	o.ServerLoops, o.ClientLoops = cmd.Int("server-loops"), cmd.Int("client-loops")
	for _, name := range s.flags {
		switch name {
		case "conns":
			o.Conns = cmd.Int(name)
		case "inflight":
			o.InFlight = cmd.Int(name)
		case "size":
			o.Size = cmd.Int(name)
		case "class":
			o.Class = cmd.String(name)
		case "duration":
			o.Duration = cmd.Duration(name)
		case "warmup":
			o.Warmup = cmd.Duration(name)
		case "client":
			o.Client = cmd.String(name)
		case "rate":
			o.Rate = cmd.Float(name)
		case "large-size":
			o.LargeSize = cmd.Int(name)
		case "large-inflight":
			o.LargeInFlight = cmd.Int(name)
		case "streams":
			o.Streams = cmd.Int(name)
		case "events":
			o.Events = cmd.Int(name)
		case "buffer":
			o.Buffer = cmd.Int(name)
		case "count":
			o.Count = cmd.Int(name)
		case "burst":
			o.Burst = cmd.Int(name)
		case "syscalls":
			o.Syscalls = cmd.Bool(name)
		case "quiet":
			o.Quiet = cmd.Duration(name)
		case "lone":
			o.Lone = cmd.Int(name)
		case "most-growth":
			o.MostGrowth = cmd.Float(name)
		case "most-each":
			o.MostEach = cmd.Float(name)
		}
	}
	return o
}

func runBench(ctx context.Context, cmd *cli.Command, o bench.Options) (err error) {
	stderr := cmd.Root().ErrWriter
	if o.Syscalls {
		if err := bench.Traceable(); err != nil {
			return err
		}
	}
	log, err := logger(cmd)
	if err != nil {
		return err
	}
	write, err := benchOutput(cmd)
	if err != nil {
		return err
	}
	server, err := startBenchServer(ctx, stderr, o)
	if err != nil {
		return err
	}
	target, err := bench.Engine(o, log, server.Hello)
	if err != nil {
		return errors.Join(err, server.Close())
	}
	endProfiles, err := startProfiles(cmd.String("profile"), server)
	if err != nil {
		return errors.Join(err, target.Close(), server.Close())
	}
	report, err := bench.Measure(ctx, o, target, server, stderr)
	if err := errors.Join(err, endProfiles(), server.Close()); err != nil {
		return err
	}
	return errors.Join(write(report), report.Missed())
}

// benchOutput makes the files that flags ask for now, so that a measurement is not
// lost for the want of a place, and gives what writes a report to where it belongs.
func benchOutput(cmd *cli.Command) (func(*bench.Report) error, error) {
	var writers []func(*bench.Report) error
	for flag, write := range map[string]func(*bench.Report, io.Writer) error{"json": (*bench.Report).WriteJSON, "report": (*bench.Report).WritePage} {
		name := cmd.String(flag)
		if name == "" || flag == "json" && name == "-" {
			continue
		}
		f, err := os.Create(name)
		if err != nil {
			return nil, err
		}
		writers = append(writers, func(r *bench.Report) error { return errors.Join(write(r, f), f.Close()) })
	}
	return func(r *bench.Report) (err error) {
		for _, write := range writers {
			err = errors.Join(err, write(r))
		}
		if cmd.String("json") == "-" {
			return errors.Join(err, r.WriteJSON(cmd.Root().Writer))
		}
		return errors.Join(err, r.WriteTable(cmd.Root().Writer))
	}, nil
}

// startProfiles has both processes write down where their time goes, until end is
// called. Without a directory it does nothing.
func startProfiles(dir string, server *bench.Peer) (end func() error, err error) {
	if dir == "" {
		return func() error { return nil }, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Create(filepath.Join(dir, "client.pprof"))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(pprof.StartCPUProfile(f), server.Profile(filepath.Join(dir, "server.pprof"))); err != nil {
		pprof.StopCPUProfile()
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return errors.Join(f.Close(), server.Profile(""))
	}, nil
}

// startBenchServer runs this program once more, as the server.
func startBenchServer(ctx context.Context, stderr io.Writer, o bench.Options) (*bench.Peer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	return bench.StartPeer(ctx, stderr, self, "bench", "server", "--options", string(text), "--log-level", "error")
}

func benchServerCommand() *cli.Command {
	return &cli.Command{
		Name:   "server",
		Usage:  "the measured half of bench, which starts it",
		Hidden: true,
		Description: `Answers requests on a loopback port of its own. It writes a line of JSON that says where,
and one with what it has used so far for each line "usage" on its standard input, with
which it ends.

   trestle bench server </dev/tty`,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "options", Usage: "the options of the measurement as `JSON`"},
		}, logFlags("warn")...),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			o := bench.Defaults(bench.Unary)
			if text := cmd.String("options"); text != "" {
				if err := json.Unmarshal([]byte(text), &o); err != nil {
					return usagef("--options: %w", err)
				}
			}
			if err := o.Validate(); err != nil {
				return &exitError{exitUsage, err}
			}
			log, err := logger(cmd)
			if err != nil {
				return err
			}
			return bench.Serve(ctx, o, log, cmd.Root().Reader, cmd.Root().Writer)
		},
	}
}
