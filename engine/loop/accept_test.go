package loop

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/trestle-npamp/trestle/crypto/handshake"
	"github.com/trestle-npamp/trestle/internal/nptest"
)

func TestMain(m *testing.M) { nptest.VerifyNoLeaks(m) }

// flaky is a listener whose first accepts fail as if no descriptors were left.
type flaky struct {
	net.Listener
	mu    sync.Mutex
	fails int
}

func (f *flaky) Accept() (net.Conn, error) {
	f.mu.Lock()
	if f.fails > 0 {
		f.fails--
		f.mu.Unlock()
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	f.mu.Unlock()
	return f.Listener.Accept()
}

// L26: accept errors back off with few log lines, and the server goes on.
func TestAcceptErrorsBackOffAndPass(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var log syncBuffer
	machine := make(chan struct{}, 1)
	s := &Server{
		Handshakes: NewHandshakes(0, 0),
		Logger:     slog.New(slog.NewTextHandler(&log, nil)),
		NewMachine: func(net.Addr) (*handshake.Machine, error) {
			machine <- struct{}{}
			return nil, errors.New("no machine in this test")
		},
	}
	s.Serve(&flaky{Listener: ln, fails: 5})
	nc, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	<-machine // accepted after all
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(log.String(), "accept failed"); n != 1 {
		t.Errorf("%d log lines for one series of errors", n)
	}
	if n := s.Handshakes.Pending(); n != 0 {
		t.Errorf("%d handshakes pending after Close", n)
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// The least advanced, and of those the oldest, makes room.
func TestAdmission_EvictsTheLeastAdvanced(t *testing.T) {
	h := NewHandshakes(3, 0)
	var ends []net.Conn
	admit := func() *pending {
		a, b := net.Pipe()
		ends = append(ends, b)
		return h.admit(a)
	}
	defer func() {
		for _, e := range ends {
			e.Close()
		}
	}()
	first, second, third := admit(), admit(), admit()
	h.advance(first)
	admit()
	if first.at == nil || second.at != nil || third.at == nil {
		t.Errorf("evicted the wrong one: first %v second %v third %v", first.at == nil, second.at == nil, third.at == nil)
	}
	if h.Pending() != 3 || h.Evicted.Load() != 1 {
		t.Errorf("%d pending, %d evicted", h.Pending(), h.Evicted.Load())
	}
	h.leave(second) // its goroutine ends later; that must not count twice
	if h.Pending() != 3 {
		t.Errorf("%d pending after an evicted one left", h.Pending())
	}
}
