package a2asdk

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// program is the trestle binary under test.
var program string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	// What the SDK's server logs is not what is looked at here.
	slog.SetDefault(slog.New(slog.DiscardHandler))
	dir, err := os.MkdirTemp("", "trestle")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "trestle")
	build := exec.Command("go", "build", "-o", program, "./cmd/trestle")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building trestle: %v\n%s", err, out)
		return 1
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// patience bounds every wait; only a failing test gets near it.
const patience = 30 * time.Second

// process is a trestle that runs.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan string
	ended chan struct{}

	mu     sync.Mutex
	errOut bytes.Buffer
}

// startProcess starts a trestle, which is killed with the test.
func startProcess(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(program, args...), lines: make(chan string, 16), ended: make(chan struct{})}
	p.cmd.Stderr = p
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		for in := bufio.NewScanner(out); in.Scan(); {
			p.lines <- in.Text()
		}
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			p.mu.Lock()
			defer p.mu.Unlock()
			t.Logf("trestle %s:\n%s", strings.Join(args, " "), p.errOut.String())
		}
	})
	return p
}

// Write takes what the process logs.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.errOut.Write(b)
}

// kill ends the process on the spot, as a crash would.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

// terminate ends the process in order and returns its exit code.
func (p *process) terminate() int {
	p.t.Helper()
	_ = p.cmd.Process.Signal(os.Interrupt)
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatal("a process does not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

// line waits for a line that matches and returns its parts.
func (p *process) line(pattern string) []string {
	p.t.Helper()
	select {
	case line := <-p.lines:
		m := regexp.MustCompile(pattern).FindStringSubmatch(line)
		if m == nil {
			p.t.Fatalf("%q does not match %s", line, pattern)
		}
		return m
	case <-p.ended:
		p.t.Fatal("a process has ended")
	case <-time.After(patience):
		p.t.Fatal("a process says nothing")
	}
	return nil
}

// tap is a TCP proxy that sees what crosses it from whoever connects.
type tap struct {
	l  net.Listener
	wg sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
	first []byte // the first octet of each connection
	seen  bytes.Buffer
}

func newTap(t *testing.T, to string) *tap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &tap{l: l}
	p.wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			p.mu.Unlock()
			first := true
			p.wg.Go(func() {
				_, _ = io.Copy(out, io.TeeReader(in, writerFunc(func(b []byte) {
					p.mu.Lock()
					defer p.mu.Unlock()
					if first {
						p.first, first = append(p.first, b[0]), false
					}
					p.seen.Write(b)
				})))
				out.Close()
			})
			p.wg.Go(func() { _, _ = io.Copy(in, out); in.Close() })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.mu.Lock()
		for _, c := range p.conns {
			c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}
