package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// The lines that a server process understands on its standard input. It ends
// when that ends.
const commandUsage = "usage"

// Hello is the first line a server process writes, as JSON.
type Hello struct {
	Addr string `json:"addr"` // where it listens
	Key  string `json:"key"`  // its public key in hex
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

// StartPeer runs a program that calls Serve on its standard input and output,
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

// Usage asks the process what it has used so far.
func (p *Peer) Usage() (u Usage, err error) {
	if _, err := io.WriteString(p.stdin, commandUsage+"\n"); err != nil {
		return u, fmt.Errorf("%w: %w", ErrPeer, err)
	}
	return u, p.answer(&u)
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

// control answers the commands that arrive on in until it ends or ctx does.
// handled is how many requests have been answered.
func control(ctx context.Context, in io.Reader, out io.Writer, hello Hello, handled func() uint64) error {
	stop := make(chan error, 1)
	go func() {
		s := newSampler()
		answer := json.NewEncoder(out)
		if err := answer.Encode(hello); err != nil {
			stop <- err
			return
		}
		lines := bufio.NewScanner(in)
		for lines.Scan() {
			switch command := strings.TrimSpace(lines.Text()); command {
			case commandUsage:
				u, err := s.read()
				if err != nil {
					stop <- err
					return
				}
				u.Handled = handled()
				if err := answer.Encode(u); err != nil {
					stop <- err
					return
				}
			default:
				stop <- fmt.Errorf("bench: unknown command %q", command)
				return
			}
		}
		stop <- lines.Err()
	}()
	select {
	case err := <-stop:
		return err
	case <-ctx.Done():
		return nil // the reader ends with the process
	}
}
