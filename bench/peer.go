package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"runtime/pprof"
	"strings"
)

// The lines that a server process understands on its standard input. It ends
// when that ends.
const (
	commandUsage   = "usage"
	commandSettle  = "settle"
	commandProfile = "profile" // and a file's name; without one it ends
)

// Hello is the first line a server process writes, as JSON.
type Hello struct {
	Addr string `json:"addr"` // where it listens
	Key  string `json:"key"`  // what its clients know it by; of ours its public key in hex
}

// ErrPeer is the class of errors about the server process itself.
var ErrPeer = errors.New("bench: server process")

// Peer is a server process under the control of this one.
type Peer struct {
	Hello
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Reader
}

// StartPeer runs a program that calls Control on its standard input and output,
// and waits until it listens. The end of ctx kills it.
func StartPeer(ctx context.Context, stderr io.Writer, program string, args ...string) (*Peer, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stderr = stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPeer, err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPeer, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPeer, err)
	}
	p := &Peer{cmd: cmd, stdin: stdin, lines: bufio.NewReader(stdout)}
	if err := p.answer(&p.Hello); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// PID is the number of the process.
func (p *Peer) PID() int { return p.cmd.Process.Pid }

// Usage asks the process what it has used so far.
func (p *Peer) Usage() (u Usage, err error) { return u, p.ask(commandUsage, &u) }

// Settle is Usage after the process has collected its garbage and given unused
// memory back.
func (p *Peer) Settle() (u Usage, err error) { return u, p.ask(commandSettle, &u) }

// Profile has the process write a profile of its CPU time to a file until the
// next call; an empty name only ends that.
func (p *Peer) Profile(file string) error {
	var u Usage
	return p.ask(strings.TrimSpace(commandProfile+" "+file), &u)
}

func (p *Peer) ask(command string, v any) error {
	if _, err := io.WriteString(p.stdin, command+"\n"); err != nil {
		return fmt.Errorf("%w: %w", ErrPeer, err)
	}
	return p.answer(v)
}

func (p *Peer) answer(v any) error {
	line, err := p.lines.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, v)
	}
	if err != nil {
		return fmt.Errorf("%w: reading its answer: %w", ErrPeer, err)
	}
	return nil
}

// Close ends the process and waits for it.
func (p *Peer) Close() error {
	p.stdin.Close()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %w", ErrPeer, err)
	}
	return nil
}

// Control is a server process's side of a Peer. It writes hello to out and then,
// for each command on in, a Usage, all as lines of JSON, until in ends or ctx does.
// handled is how many requests have been served.
func Control(ctx context.Context, in io.Reader, out io.Writer, hello Hello, handled func() uint64) error {
	stop := make(chan error, 1)
	go func() { stop <- answer(in, json.NewEncoder(out), hello, handled) }()
	select {
	case err := <-stop:
		return err
	case <-ctx.Done():
		return nil // the reader ends with the process
	}
}

func answer(in io.Reader, out *json.Encoder, hello Hello, handled func() uint64) error {
	s := newSampler()
	defer s.close()
	var profile *os.File
	endProfile := func() error {
		if profile == nil {
			return nil
		}
		pprof.StopCPUProfile()
		err := profile.Close()
		profile = nil
		return err
	}
	defer endProfile()
	if err := out.Encode(hello); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		command, file, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		switch command {
		case commandUsage:
		case commandSettle:
			debug.FreeOSMemory()
			debug.FreeOSMemory() // what had finalizers, and what pools held
		case commandProfile:
			err := endProfile()
			if err == nil && file != "" {
				if profile, err = os.Create(file); err == nil {
					err = pprof.StartCPUProfile(profile)
				}
			}
			if err != nil {
				return err
			}
		default:
			return fmt.Errorf("bench: unknown command %q", command)
		}
		u, err := s.read()
		if err != nil {
			return err
		}
		u.Handled = handled()
		if err := out.Encode(u); err != nil {
			return err
		}
	}
	return lines.Err()
}
