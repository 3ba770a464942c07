package main

import (
	"context"
	"errors"
	"os"
	"strconv"

	"github.com/urfave/cli/v3"

	"github.com/trestle-npamp/trestle/bench"
)

func benchCommand() *cli.Command {
	return &cli.Command{
		Name:     "bench",
		Usage:    "measure this build on this machine",
		Commands: []*cli.Command{benchUnaryCommand(), benchServerCommand()},
		Action: func(_ context.Context, cmd *cli.Command) error {
			return usagef("%s: say what to measure; see %q", cmd.FullName(), cmd.FullName()+" --help")
		},
	}
}

// benchFlags are the options that both processes of a measurement know.
func benchFlags() []cli.Flag {
	d := bench.Defaults()
	return []cli.Flag{
		&cli.IntFlag{Name: "conns", Value: d.Conns, Usage: "keep `N` associations"},
		&cli.IntFlag{Name: "inflight", Value: d.InFlight, Usage: "keep `N` requests in flight on each of them"},
		&cli.IntFlag{Name: "size", Value: d.Size, Usage: "requests and replies of `N` octets each"},
		&cli.StringFlag{Name: "class", Value: d.Class, Usage: "what is carried, `CLASS` opaque or jsonrpc (A2A's message/send)"},
		&cli.StringFlag{Name: "transport", Value: d.Transport, Usage: "`TRANSPORT` under the associations: tls or tcp"},
		&cli.IntFlag{Name: "server-loops", Usage: "`N` event loops in the server; 0 is one a processor"},
	}
}

func benchOptions(cmd *cli.Command) bench.Options {
	o := bench.Defaults()
	o.Conns, o.InFlight, o.Size = cmd.Int("conns"), cmd.Int("inflight"), cmd.Int("size")
	o.Class, o.Transport, o.ServerLoops = cmd.String("class"), cmd.String("transport"), cmd.Int("server-loops")
	return o
}

func benchUnaryCommand() *cli.Command {
	d := bench.Defaults()
	return &cli.Command{
		Name:  "unary",
		Usage: "requests per second, latency, and what a request costs the server",
		Description: `Starts itself once more as a server on a loopback port and drives closed loops against
it: a fixed number of requests in flight on each of a fixed number of associations, each
answered with as many octets as it has. Two processes, so that the server's CPU time and
allocations are its own. Progress goes to standard error, the result to standard output as
a table and, with --json, as JSON to a file ("-" is standard output instead of the table).

   trestle bench unary
   trestle bench unary --transport tcp                          # without the outer TLS
   trestle bench unary --conns 1 --inflight 1 --duration 3s     # the latency of a lone request
   trestle bench unary --class jsonrpc --size 4096 --json result.json

Compare only numbers of one machine and one sitting.`,
		Flags: append(append(benchFlags(), logFlags("error")...),
			&cli.DurationFlag{Name: "duration", Value: d.Duration, Usage: "measure for `D`"},
			&cli.DurationFlag{Name: "warmup", Value: d.Warmup, Usage: "run for `D` before measuring"},
			&cli.StringFlag{Name: "client", Value: d.Client, Usage: "`SHAPE` of the client: callback (on the loops) or blocking (a goroutine a request)"},
			&cli.IntFlag{Name: "client-loops", Usage: "`N` event loops in the client; 0 is one a processor"},
			&cli.StringFlag{Name: "json", Usage: "write the result as JSON to `FILE`", TakesFile: true},
		),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			o := benchOptions(cmd)
			o.Duration, o.Warmup = cmd.Duration("duration"), cmd.Duration("warmup")
			o.Client, o.ClientLoops = cmd.String("client"), cmd.Int("client-loops")
			if err := o.Validate(); err != nil {
				return &exitError{exitUsage, err}
			}
			ctx, stop := untilSignal(ctx)
			defer stop()
			return benchUnary(ctx, cmd, o)
		},
	}
}

func benchUnary(ctx context.Context, cmd *cli.Command, o bench.Options) (err error) {
	stdout, stderr := cmd.Root().Writer, cmd.Root().ErrWriter
	log, err := logger(cmd)
	if err != nil {
		return err
	}
	write := func(r *bench.Report) error { return r.WriteTable(stdout) }
	switch name := cmd.String("json"); name {
	case "":
	case "-":
		write = func(r *bench.Report) error { return r.WriteJSON(stdout) }
	default:
		// Created now, so that a measurement is not lost for the want of a place.
		f, err := os.Create(name)
		if err != nil {
			return err
		}
		defer f.Close()
		write = func(r *bench.Report) error {
			return errors.Join(r.WriteJSON(f), f.Close(), r.WriteTable(stdout))
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	server, err := bench.StartPeer(ctx, stderr, self, serverArgs(o)...)
	if err != nil {
		return err
	}
	report, err := bench.Unary(ctx, o, log, server.Hello, server.Usage, stderr)
	if err := errors.Join(err, server.Close()); err != nil {
		return err
	}
	return write(report)
}

// serverArgs is the command line of the server process.
func serverArgs(o bench.Options) []string {
	return []string{
		"bench", "server",
		"--conns", strconv.Itoa(o.Conns),
		"--inflight", strconv.Itoa(o.InFlight),
		"--size", strconv.Itoa(o.Size),
		"--class", o.Class,
		"--transport", o.Transport,
		"--server-loops", strconv.Itoa(o.ServerLoops),
		"--log-level", "error",
	}
}

func benchServerCommand() *cli.Command {
	return &cli.Command{
		Name:   "server",
		Usage:  "the measured half of bench unary, which starts it",
		Hidden: true,
		Description: `Answers requests on a loopback port of its own. It writes a line of JSON that says where,
and one with what it has used so far for each line "usage" on its standard input, with
which it ends.

   trestle bench server </dev/tty`,
		Flags: append(benchFlags(), logFlags("warn")...),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			o := benchOptions(cmd)
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
