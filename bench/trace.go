package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrTrace is the class of errors about counting system calls.
var ErrTrace = errors.New("bench: counting system calls")

const (
	// tracer is the program that counts; only Linux has it.
	tracer = "strace"
	// traced is how long the load goes on while system calls are counted.
	traced = time.Second
	// attaching bounds how long a tracer may take to begin, and to end.
	attaching = 10 * time.Second
)

// Syscall is one system call, and how often a process made it.
type Syscall struct {
	Name   string  `json:"name"`
	Calls  uint64  `json:"calls"`
	Failed uint64  `json:"failed"` // of them, those with an error, EAGAIN too
	Each   float64 `json:"per_request"`
}

// Syscalls are all system calls that both processes made while strace counted them,
// the most frequent first. Under it a system call takes many times longer, so that
// batches may grow: these counts are from a time of their own, in which nothing
// else is measured.
type Syscalls struct {
	// Requests, or events or handshakes, that the server handled meanwhile.
	Requests uint64    `json:"requests"`
	Server   []Syscall `json:"server"`
	Client   []Syscall `json:"client"`
}

// Traceable says why system calls can't be counted here, nil if they can as far as
// can be known beforehand.
func Traceable() error {
	if _, err := exec.LookPath(tracer); err != nil {
		return fmt.Errorf("%w: it takes the program strace, for Linux: %w", ErrTrace, err)
	}
	return nil
}

// traceable is a Server whose process can be traced.
type traceable interface{ PID() int }

// count runs the load once more, with a tracer at both processes.
func (l *Load) count(ctx context.Context, server Server, progress io.Writer) (*Syscalls, error) {
	p, ok := server.(traceable)
	if !ok {
		return nil, fmt.Errorf("%w: the server has no process of its own", ErrTrace)
	}
	if err := Traceable(); err != nil {
		return nil, err
	}
	allowTracing()
	fmt.Fprintf(progress, "bench: %v more to count system calls\n", traced)
	theirs, err := attach(ctx, p.PID())
	if err != nil {
		return nil, err
	}
	own, err := attach(ctx, os.Getpid())
	if err != nil {
		_, _ = theirs.end()
		return nil, err
	}
	before, err := server.Usage()
	if err == nil {
		l.o.Warmup, l.o.Duration = 0, traced
		_, err = l.Run(ctx, server, io.Discard)
	}
	after, err2 := server.Usage()
	s := &Syscalls{Requests: after.Handled - before.Handled}
	var err3, err4 error
	s.Client, err3 = own.end()
	s.Server, err4 = theirs.end()
	if err := errors.Join(err, err2, err3, err4); err != nil {
		return nil, err
	}
	for _, calls := range [][]Syscall{s.Server, s.Client} {
		for i := range calls {
			calls[i].Each = rounded(per(float64(calls[i].Calls), s.Requests), 4)
		}
	}
	return s, nil
}

// tracing is a tracer at work on a process.
type tracing struct {
	cmd  *exec.Cmd
	file string       // where it writes its summary
	said bytes.Buffer // what it said on standard error; of the goroutine that reads it
	over chan error   // closed when it has ended
}

// attach starts a tracer and waits until it counts.
func attach(ctx context.Context, pid int) (*tracing, error) {
	f, err := os.CreateTemp("", "trestle-bench-*.strace")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTrace, err)
	}
	t := &tracing{file: f.Name(), over: make(chan error, 1)}
	_ = f.Close()
	t.cmd = exec.CommandContext(ctx, tracer, "-c", "-f", "-o", t.file, "-p", strconv.Itoa(pid))
	stderr, err := t.cmd.StderrPipe()
	if err == nil {
		err = t.cmd.Start()
	}
	if err != nil {
		_ = os.Remove(t.file)
		return nil, fmt.Errorf("%w: %w", ErrTrace, err)
	}
	attached := make(chan struct{})
	go func() {
		seen := false
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			t.said.WriteString(lines.Text() + "\n")
			if !seen && strings.Contains(lines.Text(), "attached") {
				seen = true
				close(attached)
			}
		}
		t.over <- t.cmd.Wait()
		close(t.over)
	}()
	timer := time.NewTimer(attaching)
	defer timer.Stop()
	select {
	case <-attached:
		return t, nil
	case err := <-t.over:
		_ = os.Remove(t.file)
		return nil, fmt.Errorf("%w: strace can't attach to a process (%w); without leave to ptrace, as in many containers, that takes root: %s", ErrTrace, err, strings.TrimSpace(t.said.String()))
	case <-timer.C:
		_ = t.cmd.Process.Kill()
		<-t.over
		_ = os.Remove(t.file)
		return nil, fmt.Errorf("%w: strace did not attach within %v", ErrTrace, attaching)
	}
}

// end detaches the tracer and reads what it counted.
func (t *tracing) end() ([]Syscall, error) {
	defer os.Remove(t.file)
	kill := time.AfterFunc(attaching, func() { _ = t.cmd.Process.Kill() })
	defer kill.Stop()
	_ = t.cmd.Process.Signal(syscall.SIGTERM) // one that has ended is seen below
	<-t.over                                  // it ends by the signal, which says nothing
	text, err := os.ReadFile(t.file)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTrace, err)
	}
	calls, err := parseTrace(string(text))
	if err != nil {
		return nil, fmt.Errorf("%w; strace said %q", err, t.said.String())
	}
	return calls, nil
}

// parseTrace reads the table of strace -c: shares, seconds, microseconds a call,
// calls, errors where there were any, and the name.
func parseTrace(text string) (calls []Syscall, err error) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 5 || f[0] == "%" || strings.HasPrefix(f[0], "-") || f[len(f)-1] == "total" {
			continue
		}
		c := Syscall{Name: f[len(f)-1]}
		if c.Calls, err = strconv.ParseUint(f[3], 10, 64); err == nil && len(f) > 5 {
			c.Failed, err = strconv.ParseUint(f[4], 10, 64)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %q of strace's table: %w", ErrTrace, strings.TrimSpace(line), err)
		}
		calls = append(calls, c)
	}
	if len(calls) == 0 {
		return nil, fmt.Errorf("%w: strace counted none", ErrTrace)
	}
	slices.SortStableFunc(calls, func(a, b Syscall) int { return cmp.Compare(b.Calls, a.Calls) })
	return calls, nil
}

// few is the share of the most frequent system call from which another is worth a
// word.
const few = 0.005

// words lists system calls, the most frequent first, for people.
func words(calls []Syscall) string {
	var all []string
	rest := 0.0
	for _, c := range calls {
		if c.Each < few*calls[0].Each {
			rest += c.Each
			continue
		}
		text := fmt.Sprintf("%.3g %s", c.Each, c.Name)
		if c.Failed*4 > c.Calls {
			text += fmt.Sprintf(" (%.0f %% in vain)", 100*float64(c.Failed)/float64(c.Calls))
		}
		all = append(all, text)
	}
	if rest > 0 {
		all = append(all, fmt.Sprintf("%.2g others", rest))
	}
	return strings.Join(all, ", ")
}
