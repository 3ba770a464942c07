package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience bounds every wait of a test; only a failing one gets near it.
const patience = 20 * time.Second

// output collects what a running command writes and tells of each new line.
type output struct {
	mu    sync.Mutex
	text  bytes.Buffer
	lines chan string
	rest  []byte
}

func newOutput() *output { return &output{lines: make(chan string, 64)} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(p)
	o.rest = append(o.rest, p...)
	for {
		i := bytes.IndexByte(o.rest, '\n')
		if i < 0 {
			return len(p), nil
		}
		select {
		case o.lines <- string(o.rest[:i]):
		default: // nobody waits for so many
		}
		o.rest = o.rest[i+1:]
	}
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// running is a command that runs until it is told to stop.
type running struct {
	t           *testing.T
	out, errOut *output
	stop        func() // the first signal
	kill        func() // nil for one in this process
	signal      func(os.Signal)
	ended       chan struct{}
	code        int // after ended
}

// start runs a command in this process.
func start(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{t: t, out: newOutput(), errOut: newOutput(), stop: cancel, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		r.code = run(ctx, append([]string{"trestle"}, args...), strings.NewReader(""), r.out, r.errOut)
	}()
	t.Cleanup(func() {
		cancel()
		r.wait()
	})
	return r
}

// startProcess runs a command in a process of its own.
func startProcess(t *testing.T, args ...string) *running {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	r := &running{t: t, out: newOutput(), errOut: newOutput(), ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = r.out, r.errOut
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.signal = func(s os.Signal) { _ = cmd.Process.Signal(s) } // it may have ended
	r.stop = func() { r.signal(os.Interrupt) }
	r.kill = func() { r.signal(os.Kill) }
	go func() {
		defer close(r.ended)
		_ = cmd.Wait()
		r.code = cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		r.kill()
		r.wait()
	})
	return r
}

// wait waits for the end and gives the exit code, -1 after a deadly signal.
func (r *running) wait() int {
	r.t.Helper()
	select {
	case <-r.ended:
		return r.code
	case <-time.After(patience):
		r.t.Fatalf("still running; stdout %q, stderr %q", r.out, r.errOut)
		return 0
	}
}

// line waits for the next line on standard output.
func (r *running) line() string {
	r.t.Helper()
	select {
	case line := <-r.out.lines:
		return line
	case <-r.ended:
		select {
		case line := <-r.out.lines:
			return line
		default:
		}
		r.t.Fatalf("ended with code %d and no further line; stderr %q", r.code, r.errOut)
	case <-time.After(patience):
		r.t.Fatalf("no further line; stderr %q", r.errOut)
	}
	return ""
}

// says waits for a log line that contains text.
func (r *running) says(text string) {
	r.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case line := <-r.errOut.lines:
			if strings.Contains(line, text) {
				return
			}
		case <-deadline:
			r.t.Fatalf("no log line with %q in %q", text, r.errOut)
		}
	}
}

var (
	readyRelay = regexp.MustCompile(`^ready npamp=(127\.0\.0\.1:[1-9][0-9]*) http=(127\.0\.0\.1:[1-9][0-9]*) key=([0-9a-f]{64})$`)
	readyAgent = regexp.MustCompile(`^ready agent=([a-z0-9._-]+) peer=([0-9a-f]{64})$`)
)

// place is a relay that serves.
type place struct {
	*running
	npamp, http, key string
}

func serving(t *testing.T, r *running) *place {
	t.Helper()
	line := r.line()
	m := readyRelay.FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("%q is no ready line", line)
	}
	return &place{r, m[1], m[2], m[3]}
}

// ports are arguments that let tests run side by side.
func ports(args ...string) []string {
	return append([]string{"serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"}, args...)
}
