package loop

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/crypto/handshake"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/profiles"
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

// admission is a Handshakes with connections to admit.
type admission struct {
	*Handshakes
	owner *Server
}

func newAdmission(t *testing.T, limit int) *admission {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	return &admission{NewHandshakes(limit, 0), &Server{ctx: ctx}}
}

// admit admits a connection and brings it to a stage.
func (a *admission) admit(t *testing.T, stage int) *pending {
	nc, peer := net.Pipe()
	t.Cleanup(func() { nc.Close(); peer.Close() })
	p := a.Handshakes.admit(nc, a.owner)
	for range stage {
		a.advance(p)
	}
	return p
}

// The oldest of the most crowded stage makes place.
func TestAdmission_EvictsFromTheMostCrowdedStage(t *testing.T) {
	h := newAdmission(t, 3)
	first, second, third := h.admit(t, 1), h.admit(t, 0), h.admit(t, 0)
	h.admit(t, 0)
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

// Stalled peers that are far advanced keep no place from those who come: as long
// as they are many it is they who make place for each other.
func TestAdmission_AdvancedOnesKeepNobodyOut(t *testing.T) {
	const limit = 64
	h := newAdmission(t, limit)
	for range limit {
		h.admit(t, 2) // a valid CLIENT_HELLO, and silence
	}
	honest := []*pending{h.admit(t, 0), h.admit(t, 0), h.admit(t, 1), h.admit(t, 2)}
	for range limit / 4 {
		h.admit(t, 2)
	}
	for i, p := range honest {
		if p.at == nil {
			t.Errorf("honest peer %d was cut off", i)
		}
	}
	// Nor do many at one stage reach those at another.
	for range 10 * limit {
		h.admit(t, 0)
	}
	if p := honest[2]; p.at == nil {
		t.Error("a flood of silent peers cut off one that had advanced")
	}
	if h.Pending() != limit {
		t.Errorf("%d pending, want %d", h.Pending(), limit)
	}
}

// Without descriptors a part of those who wait gives theirs.
func TestAdmission_Shed(t *testing.T) {
	h := newAdmission(t, 100)
	if h.shed() {
		t.Error("shed where there was nobody")
	}
	var all []*pending
	for range 33 {
		all = append(all, h.admit(t, 0))
	}
	if !h.shed() || h.Pending() != 30 || all[2].at != nil || all[3].at == nil {
		t.Errorf("%d pending", h.Pending())
	}
	if _, err := all[0].nc.Write([]byte{0}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("its connection: %v", err)
	}
	if err := all[0].acquire(); !errors.Is(err, errCut) {
		t.Errorf("a processor for one that was cut off: %v", err)
	}
}

// Accept errors for want of descriptors end when the pending handshakes give
// theirs.
func TestAcceptShedsWithoutDescriptors(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := NewHandshakes(0, 0)
	s := &Server{
		Handshakes: h,
		Logger:     slog.New(slog.DiscardHandler),
		NewMachine: func(net.Addr) (*handshake.Machine, error) {
			id, err := identity.Generate(profiles.Ed25519, nil)
			if err != nil {
				return nil, err
			}
			return handshake.NewServer(handshake.Config{Identity: id, VerifyPeer: identity.Pin(id.Public())})
		},
	}
	fl := &flaky{Listener: ln}
	s.Serve(fl)
	dial := func() net.Conn {
		nc, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		return nc
	}
	stalled := dial()
	nptest.Eventually(t, func() bool { return h.Pending() == 1 }, func() any { return h.Pending() })
	fl.mu.Lock()
	fl.fails = 1
	fl.mu.Unlock()
	dial() // ends the Accept under way; the next one fails
	_ = stalled.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := stalled.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the stalled connection was kept: %v", err)
	}
	if n := h.Evicted.Load(); n == 0 {
		t.Error("nobody was shed")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := h.Pending(); n != 0 {
		t.Errorf("%d handshakes pending after Close", n)
	}
}
