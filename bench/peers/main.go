// Command peers measures Trestle beside others that do the same work: grpc-go,
// net/http with HTTP/1.1 and HTTP/2, NATS, a blocking N-PAMP server, and, as the
// floor, a bare echo on the same event loops. All are measured by the same load in
// one run, in short turns one after the other, so that what else the machine does
// falls on all of them, and figures can be compared as ratios.
//
//	cd bench/peers && go run . --quick             # under a minute if the machine does nothing else
//	cd bench/peers && go run . --json peers.json --report peers.html
//
// Each server has a process of its own on a loopback port. Progress goes to
// standard error, tables to standard output.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/trestle-npamp/trestle/bench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		os.Exit(2) // package flag has said why
	default:
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("wrong usage")

const (
	// limit bounds a run that hangs.
	limit = 30 * time.Minute
	// quickly is how long a quick run takes, but for the idle connections: on a
	// machine that is busy otherwise its turns are shorter, though not than shortest.
	quickly  = 35 * time.Second
	shortest = 30 * time.Millisecond
)

// plan is the command line.
type plan struct {
	rounds        int
	slice, warmup time.Duration
	loops         int
	idle          int
	quiet         time.Duration
	budget        time.Duration // for all scenarios; 0: as long as they take
	events        int           // of a stream at most; 0: as many as it has
	scenarios     []*scenario
	peers         []*peer
	json, report  string
	small         bool // few connections, to see that all of it works
}

func parse(args []string, stderr io.Writer) (*plan, error) {
	p := new(plan)
	fs := flag.NewFlagSet("peers", flag.ContinueOnError)
	fs.SetOutput(stderr)
	quick := fs.Bool("quick", false, "short turns and few of them, three to each peer in each scenario: under a minute on a machine that does nothing else")
	fs.IntVar(&p.rounds, "rounds", 9, "give each peer `N` turns in each scenario")
	fs.DurationVar(&p.slice, "slice", 700*time.Millisecond, "measure for `D` in each turn")
	fs.DurationVar(&p.warmup, "warmup", 150*time.Millisecond, "run for `D` before that")
	fs.IntVar(&p.loops, "loops", 1, "`N` event loops on each side, of those that have loops; 0 is one a processor")
	fs.IntVar(&p.idle, "idle-conns", 2000, "`N` idle connections")
	fs.DurationVar(&p.quiet, "quiet", 12*time.Second, "let idle connections be quiet for `D` before each reading")
	only := fs.String("only", "", "only these scenarios, `NAME,...`, of "+strings.Join(names(scenarios, func(s *scenario) string { return s.name }), ", "))
	among := fs.String("peers", "", "only these peers and ours, `NAME,...`, of "+strings.Join(names(others, func(p *peer) string { return p.name }), ", "))
	fs.StringVar(&p.json, "json", "", "write all figures to `FILE` as JSON; - is standard output, instead of the tables")
	fs.StringVar(&p.report, "report", "", "write a page with tables and plots to `FILE`")
	if err := fs.Parse(args); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			err = errUsage
		}
		return nil, err
	}
	set := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { set[f.Name] = true })
	if *quick {
		for name, value := range map[string]func(){
			"rounds":     func() { p.rounds = 3 },
			"slice":      func() { p.slice = 60 * time.Millisecond },
			"warmup":     func() { p.warmup = 15 * time.Millisecond },
			"idle-conns": func() { p.idle = 300 },
			"quiet":      func() { p.quiet = 5600 * time.Millisecond }, // we let go of what rests for 5 s
			"events":     func() { p.events = 200 },
			"budget":     func() { p.budget = quickly },
		} {
			if !set[name] {
				value()
			}
		}
	}
	var err error
	if p.scenarios, err = choose(scenarios, *only, func(s *scenario) string { return s.name }); err == nil {
		p.peers, err = choose(others, *among, func(p *peer) string { return p.name })
	}
	if err == nil && (p.rounds < 1 || p.slice <= 0 || p.warmup < 0 || p.quiet < 0 || p.loops < 0 || p.idle < 1 || fs.NArg() > 0) {
		err = errors.New("a number that can't be, or an argument too many")
	}
	if err != nil {
		fmt.Fprintln(stderr, "peers:", err)
		return nil, errUsage
	}
	if *among == "" {
		p.peers = slices.DeleteFunc(slices.Clone(p.peers), func(of *peer) bool { return of.asked })
	}
	p.peers = slices.Concat(ours, p.peers)
	return p, nil
}

func names[T any](all []T, name func(T) string) (n []string) {
	for _, x := range all {
		n = append(n, name(x))
	}
	return n
}

// choose picks what list names, in the order of all; an empty list picks all.
func choose[T any](all []T, list string, name func(T) string) (some []T, err error) {
	if list == "" {
		return all, nil
	}
	wanted := strings.Split(list, ",")
	for _, x := range all {
		if i := slices.Index(wanted, name(x)); i >= 0 {
			wanted = slices.Delete(wanted, i, i+1)
			some = append(some, x)
		}
	}
	if len(wanted) > 0 {
		return nil, fmt.Errorf("no %s", strings.Join(wanted, ", "))
	}
	return some, nil
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "serve" {
		return serve(ctx, args[1:], stdin, stdout)
	}
	p, err := parse(args, stderr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	files, err := create(p.json, p.report)
	if err != nil {
		return err
	}
	r, err := p.measure(ctx, stderr)
	if err != nil {
		return err
	}
	if p.json == "-" {
		return r.writeJSON(stdout)
	}
	err = r.writeTables(stdout)
	for name, write := range map[string]func(io.Writer) error{p.json: r.writeJSON, p.report: r.writePage} {
		if f := files[name]; f != nil {
			err = errors.Join(err, write(f), f.Close())
		}
	}
	return err
}

// create makes the files before anything is measured, so that nothing is lost for
// the want of a place.
func create(names ...string) (map[string]*os.File, error) {
	files := make(map[string]*os.File)
	for _, name := range names {
		if name == "" || name == "-" {
			continue
		}
		f, err := os.Create(name)
		if err != nil {
			return nil, err
		}
		files[name] = f
	}
	return files, nil
}

// serve is a server process: the peer's name and its options follow.
func serve(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) != 2 || find(args[0]) == nil {
		return errUsage
	}
	var o bench.Options
	if err := json.Unmarshal([]byte(args[1]), &o); err != nil {
		return err
	}
	return find(args[0]).serve(ctx, o, stdin, stdout)
}
