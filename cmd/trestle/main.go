// Command trestle is the whole engine in one binary: a relay for agents (serve),
// its counterparts at both ends (agent, call), and the tools around them.
//
// Every subcommand has a file of its own. Standard output carries results only,
// one format a command; logs, progress and complaints go to standard error.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/urfave/cli/v3"

	"github.com/trestle-npamp/trestle/bench"
)

// Exit codes, the same in every subcommand. Help texts and scripts rest on them.
const (
	exitOK        = 0
	exitFailure   = 1 // the command could not do its work
	exitUsage     = 2 // the command line was wrong; nothing was done
	exitForeign   = 3 // call: the agent answered with an error of its own protocol
	exitTransport = 4 // call: no answer of the agent; a transport error instead
)

func main() {
	os.Exit(run(context.Background(), os.Args, os.Stdin, os.Stdout, os.Stderr))
}

// run is the program with everything it touches handed in; it returns the exit
// code. A cancelled context counts as the first signal.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.Reader, root.Writer, root.ErrWriter = stdin, shared(stdout), shared(stderr)
	err := root.Run(ctx, args)
	if err == nil {
		return exitOK
	}
	code := exitFailure
	var exit *exitError
	if errors.As(err, &exit) {
		code = exit.code
	}
	if text := err.Error(); text != "" {
		fmt.Fprintf(stderr, "trestle: %s\n", text)
	}
	return code
}

// untilSignal gives a context that the first SIGINT or SIGTERM ends. From then on
// signals do again what they do by default, so that a second one ends the
// process on the spot.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// shared makes a writer safe for the goroutines of a command, which log and
// print at the same time. Files are already.
func shared(w io.Writer) io.Writer {
	if f, ok := w.(*os.File); ok {
		return f
	}
	return &sharedWriter{w: w}
}

type sharedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *sharedWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

// exitError is an error that decides the exit code. An empty cause means that
// everything worth saying has been said.
type exitError struct {
	code  int
	cause error
}

func (e *exitError) Error() string {
	if e.cause == nil {
		return ""
	}
	return e.cause.Error()
}

func (e *exitError) Unwrap() error { return e.cause }

func usagef(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

func newRoot() *cli.Command {
	root := &cli.Command{
		Name:    "trestle",
		Usage:   "carry agent protocols over N-PAMP",
		Version: readBuild().Version,
		Description: `Trestle carries agent protocols (A2A and others) as N-PAMP Bridge frames: thousands
of exchanges over one post-quantum, mutually authenticated association.

Try it, in three terminals:

   trestle serve --http 127.0.0.1:7480
   curl -s 127.0.0.1:7480/agents/echo -H 'Content-Type: application/json' \
     -d '{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","messageId":"m1","role":"user","parts":[{"kind":"text","text":"hello"}]}}}'
   trestle agent --name mine --to 127.0.0.1:7447 --upstream http://127.0.0.1:7480/agents/echo

The last one brings the echo agent along once more, as /agents/mine; put your own agent's
URL in its place.

Exit codes: 0 success, 1 failure, 2 wrong usage; "call" adds 3 and 4 (see there).`,
		Commands: []*cli.Command{
			serveCommand(),
			agentCommand(),
			callCommand(),
			keygenCommand(),
			benchCommand(),
			conformCommand(),
			versionCommand(),
		},
		Action: func(_ context.Context, cmd *cli.Command) error {
			cmd.Writer = cmd.ErrWriter
			if err := cli.ShowRootCommandHelp(cmd); err != nil {
				return err
			}
			return &exitError{code: exitUsage}
		},
		ArgValidator: func(_ context.Context, cmd *cli.Command) error {
			if !cmd.Args().Present() || cmd.Name == "help" { // which takes a command's name
				return nil
			}
			if name := cmd.Args().First(); len(cmd.VisibleCommands()) > 0 {
				return usagef("no command %q; %q lists them", name, cmd.FullName()+" --help")
			}
			return usagef("unexpected argument %q; see %q", cmd.Args().First(), cmd.FullName()+" --help")
		},
		ExitErrHandler: func(context.Context, *cli.Command, error) {}, // run decides
	}
	if bench.Unprotected {
		onlyMeasures(root)
	}
	prepare(root)
	return root
}

// errUnprotected refuses what would carry something of value.
var errUnprotected = errors.New("this build seals nothing (build tag trestle_unprotected): it has only bench and version")

// onlyMeasures leaves root the commands that carry nothing of value. The others
// are there to say why they are not.
func onlyMeasures(root *cli.Command) {
	root.Description = "This build seals nothing, to show what everything else costs: it has only bench and version."
	for i, cmd := range root.Commands {
		if cmd.Name == "bench" || cmd.Name == "version" {
			continue
		}
		refuse := func(context.Context, *cli.Command) error { return usagef("%s: %w", cmd.Name, errUnprotected) }
		root.Commands[i] = &cli.Command{Name: cmd.Name, Usage: "not in this build", Hidden: true, SkipFlagParsing: true, ArgValidator: refuse, Action: refuse}
	}
}

// prepare gives every command below cmd the same manners.
func prepare(cmd *cli.Command) {
	cmd.OnUsageError = func(_ context.Context, cmd *cli.Command, err error, _ bool) error {
		return usagef("%w; see %q", err, cmd.FullName()+" --help")
	}
	cmd.HideHelpCommand = len(cmd.Commands) == 0
	for _, sub := range cmd.Commands {
		prepare(sub)
	}
}

// logFlags are the flags of commands that log. level is the default.
func logFlags(level string) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "log-level", Value: level, Usage: "lowest `LEVEL` that is logged: debug, info, warn or error"},
		&cli.BoolFlag{Name: "log-json", Usage: "log JSON lines instead of text"},
	}
}

// logger writes to standard error what logFlags ask for.
func logger(cmd *cli.Command) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(strings.ToUpper(cmd.String("log-level")))); err != nil {
		return nil, usagef("--log-level: %q is not one of debug, info, warn, error", cmd.String("log-level"))
	}
	options := &slog.HandlerOptions{Level: level}
	if cmd.Bool("log-json") {
		return slog.New(slog.NewJSONHandler(cmd.Root().ErrWriter, options)), nil
	}
	return slog.New(slog.NewTextHandler(cmd.Root().ErrWriter, options)), nil
}
