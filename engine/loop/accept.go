package loop

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/trestle-npamp/trestle/crypto/handshake"
	"github.com/trestle-npamp/trestle/engine/assoc"
)

// Starter turns a completed handshake into an association. It is called off the
// loops; local and remote are the ends of the transport. The association gets
// its roots and keys from res. An error refuses the peer, after all.
type Starter func(role assoc.Role, res handshake.Result, local, remote net.Addr) (*assoc.Association, error)

// Server accepts connections and brings those whose handshake completes onto the
// loops.
type Server struct {
	// Group, Handshakes, NewMachine and Start are required. NewMachine may judge
	// the remote address.
	Group      *Group
	Handshakes *Handshakes
	NewMachine func(remote net.Addr) (*handshake.Machine, error)
	Start      Starter
	Security   Security
	Logger     *slog.Logger

	ln      net.Listener
	ctx     context.Context
	cancel  context.CancelFunc
	accepts sync.WaitGroup
	work    sync.WaitGroup
	once    sync.Once

	next    chan *pending // taken by whoever rests
	resting atomic.Int32

	refusals atomic.Uint64 // of peers
}

// Backoff of accept errors such as EMFILE.
const (
	acceptBackoffMin = 5 * time.Millisecond
	acceptBackoffMax = time.Second
)

// Serve takes over ln, whose connections must be *net.TCPConn, and returns at
// once. Close ends it.
func (s *Server) Serve(ln net.Listener) {
	s.ln = ln
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.next = make(chan *pending)
	s.accepts.Add(1)
	go s.accept()
}

// Addr is where it listens.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Close stops accepting, ends the handshakes under way and waits for their
// goroutines. Associations that stand are not touched.
func (s *Server) Close() error {
	var err error
	s.once.Do(func() {
		s.cancel()
		err = s.ln.Close()
		s.accepts.Wait()
		s.Handshakes.cutAll(s)
		s.work.Wait()
	})
	return err
}

// accept is the one accepting goroutine. An error that will pass (no descriptors
// left, a connection reset while it queued) makes it wait, not end; and when there
// are no descriptors left, handshakes under way give theirs.
func (s *Server) accept() {
	defer s.accepts.Done()
	wait := time.Duration(0)
	for {
		nc, err := s.ln.Accept()
		if err != nil {
			if s.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			if wait == 0 {
				wait = acceptBackoffMin
				// Once a series: a spinning accept must not flood the log.
				s.Logger.Warn("accept failed; backing off", "error", err)
			} else {
				wait = min(2*wait, acceptBackoffMax)
			}
			if (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)) && s.Handshakes.shed() {
				wait = acceptBackoffMin
			}
			select {
			case <-time.After(wait):
			case <-s.ctx.Done():
				return
			}
			continue
		}
		wait = 0
		p := s.Handshakes.admit(nc, s)
		select {
		case s.next <- p:
		default:
			s.work.Add(1)
			go s.shakeHands(p)
		}
	}
}

// maxResting is how many goroutines wait for their next handshake. What a
// handshake computes needs a deep stack, which a new goroutine has to grow.
const maxResting = 16

func (s *Server) shakeHands(p *pending) {
	defer s.work.Done()
	for {
		s.shake(p)
		if s.resting.Add(1) > maxResting {
			s.resting.Add(-1)
			return
		}
		select {
		case p = <-s.next:
			s.resting.Add(-1)
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *Server) shake(p *pending) {
	nc, remote := p.nc, p.nc.RemoteAddr()
	est, err := s.Handshakes.accept(p, s.Security,
		func() (*handshake.Machine, error) { return s.NewMachine(remote) })
	s.Handshakes.leave(p) // a completed one is no longer to be evicted
	if err != nil {
		_ = nc.Close()
		level := slog.LevelDebug
		if errors.Is(err, handshake.ErrPeerRefused) {
			// Somebody may have to be let in: the error names the key. A stranger can't
			// fill the log: of refusals past the sixteenth each power of two is told.
			if n := s.refusals.Add(1); n <= 16 || n&(n-1) == 0 {
				level = slog.LevelWarn
			}
		}
		s.Logger.Log(s.ctx, level, "handshake failed", "remote", remote, "error", err)
		return
	}
	if _, err := est.stand(s.Group, s.Start, assoc.Server, nc.(*net.TCPConn)); err != nil {
		s.Logger.Warn("association could not start", "remote", remote, "error", err)
	}
}

// stand makes the association of a completed handshake and brings it onto a loop.
// On an error everything is closed and wiped.
func (e *established) stand(g *Group, start Starter, role assoc.Role, nc *net.TCPConn) (*assoc.Association, error) {
	a, err := start(role, e.result, nc.LocalAddr(), nc.RemoteAddr())
	if err != nil {
		_ = nc.Close()
		e.wipe()
		return nil, err
	}
	if err := g.enrollEstablished(nc, a, *e); err != nil {
		a.Discard(err)
		e.wipe()
		return nil, err
	}
	return a, nil
}

// Dialer makes associations as a client.
type Dialer struct {
	Group      *Group
	Handshakes *Handshakes
	Start      Starter
	Security   Security
}

// Dial connects to addr, completes the handshake and returns the association
// once its loop has it. ctx bounds all of that.
func (d *Dialer) Dial(ctx context.Context, addr string, newMachine func(remote net.Addr) (*handshake.Machine, error)) (*assoc.Association, error) {
	var nd net.Dialer
	nc, err := nd.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	remote := nc.RemoteAddr()
	est, err := d.Handshakes.dial(ctx, nc, d.Security,
		func() (*handshake.Machine, error) { return newMachine(remote) })
	if err != nil {
		_ = nc.Close()
		return nil, err
	}
	return est.stand(d.Group, d.Start, assoc.Client, nc.(*net.TCPConn))
}
