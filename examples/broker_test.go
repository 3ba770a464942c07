package examples

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// subscriber is a client that subscribes, line by line.
type subscriber struct {
	t      *testing.T
	cmd    *exec.Cmd
	lines  *bufio.Reader
	stderr bytes.Buffer
}

func subscribe(t *testing.T, addr, topic string) *subscriber {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	s := &subscriber{t: t, cmd: exec.CommandContext(ctx, filepath.Join(programs, "broker", "client"), "--to", addr, "subscribe", topic)}
	s.cmd.Stderr = &s.stderr
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.lines = bufio.NewReader(out)
	s.want("1 subscribed to " + topic)
	return s
}

func (s *subscriber) want(line string) {
	s.t.Helper()
	if got, err := s.lines.ReadString('\n'); got != line+"\n" {
		s.t.Errorf("printed %q (%v), want %q\n%s", got, err, line, &s.stderr)
	}
}

func (s *subscriber) ends() {
	s.t.Helper()
	if rest, _ := io.ReadAll(s.lines); len(rest) != 0 {
		s.t.Errorf("printed %q at the end", rest)
	}
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("ended with %v\n%s", err, &s.stderr)
	}
}

// leave interrupts a subscriber, which cancels its stream.
func leave(s *subscriber) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		s.t.Fatal(err)
	}
	s.ends()
}

// Every subscriber gets every event of its topic once and in order, and one that
// leaves disturbs nobody.
func TestBroker(t *testing.T) {
	addr := serve(t, "broker")
	publish := func(want string, args ...string) {
		t.Helper()
		if out, errOut, ok := call(t, "broker", append([]string{"--to", addr}, args...)...); !ok || out != want+"\n" {
			t.Errorf("%q printed %q, %q, success %v, want %q", args, out, errOut, ok, want)
		}
	}
	a, b, other := subscribe(t, addr, "news"), subscribe(t, addr, "news"), subscribe(t, addr, "other")
	publish("2", "publish", "news", "it", "rains")
	a.want("2 it rains")
	b.want("2 it rains")
	leave(b)
	publish("1", "publish", "news", "again")
	a.want("3 again")
	publish("", "end", "news", "that was all")
	a.want("4 that was all")
	a.ends()
	publish("0", "publish", "news", "to nobody")
	publish("1", "publish", "other", "still here")
	other.want("2 still here")
	leave(other)
}
