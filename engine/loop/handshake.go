package loop

import (
	"container/list"
	"context"
	"crypto/cipher"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestle-npamp/trestle/crypto/handshake"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/wire"
)

// Defaults of handshakes (D28).
const (
	DefaultHandshakeTimeout = 5 * time.Second
	DefaultPending          = 8192
)

var (
	// ErrHandshakeTimeout says that the peer took too long.
	ErrHandshakeTimeout = errors.New("loop: handshake timed out")
	// ErrHandshakeCut says that the peer left before the handshake was complete,
	// which is all that one sees of a peer that refuses.
	ErrHandshakeCut = errors.New("loop: the peer ended the handshake")
)

// Handshakes runs handshakes off the loops: a goroutine each, bounded in number
// and time, of which only a few compute at once. It is shared by everything that
// listens and dials.
type Handshakes struct {
	timeout time.Duration
	limit   int
	// cpu is held while a handshake computes, never while it waits for octets:
	// stalled peers cost a goroutine each and delay nobody.
	cpu chan struct{}

	mu      sync.Mutex
	stages  [stages]list.List // of *pending, oldest first
	waiting int

	Started   atomic.Uint64
	Completed atomic.Uint64
	Failed    atomic.Uint64
	Evicted   atomic.Uint64
}

// stages a pending handshake can have reached: nothing yet, TLS complete (or, on
// raw TCP, the first frame read), first frame read inside TLS.
const stages = 3

type pending struct {
	nc    net.Conn
	stage int
	at    *list.Element // nil once it has left
}

// NewHandshakes makes the admission of handshakes; zero values take defaults.
func NewHandshakes(limit int, timeout time.Duration) *Handshakes {
	if limit <= 0 {
		limit = DefaultPending
	}
	if timeout <= 0 {
		timeout = DefaultHandshakeTimeout
	}
	return &Handshakes{
		timeout: timeout,
		limit:   limit,
		cpu:     make(chan struct{}, runtime.GOMAXPROCS(0)),
	}
}

// Pending is the number of handshakes under way on accepted connections.
func (h *Handshakes) Pending() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waiting
}

// admit makes place for one more, at the cost of the oldest of the least
// advanced if all places are taken.
func (h *Handshakes) admit(nc net.Conn) *pending {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting >= h.limit {
		for s := range h.stages {
			if e := h.stages[s].Front(); e != nil {
				v := e.Value.(*pending)
				h.drop(v)
				h.Evicted.Add(1)
				_ = v.nc.Close() // its goroutine ends by that
				break
			}
		}
	}
	p := &pending{nc: nc}
	p.at = h.stages[0].PushBack(p)
	h.waiting++
	return p
}

// drop takes p out; the mutex is held.
func (h *Handshakes) drop(p *pending) {
	if p.at != nil {
		h.stages[p.stage].Remove(p.at)
		p.at = nil
		h.waiting--
	}
}

func (h *Handshakes) leave(p *pending) {
	h.mu.Lock()
	h.drop(p)
	h.mu.Unlock()
}

func (h *Handshakes) advance(p *pending) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.at == nil || p.stage == stages-1 {
		return
	}
	h.stages[p.stage].Remove(p.at)
	p.stage++
	p.at = h.stages[p.stage].PushBack(p)
}

// Security is the outer TLS of a handshake; the zero value is raw TCP.
type Security struct {
	Config *tls.Config
	Server bool
	// Standard leaves the records to crypto/tls after the handshake too.
	Standard bool
	// Budget is what partial records are counted against.
	Budget *buf.Budget
	// AESGCM expands the keys of AES-GCM suites; nil is the standard library.
	AESGCM func(key []byte) (cipher.AEAD, error)
}

// established is a completed handshake.
type established struct {
	result  handshake.Result
	records recordLayer // nil on raw TCP
	early   []byte      // read beyond it
}

// run drives machine m over nc until it is done. progress is called after each
// frame read. nc's deadline is set for the time of the handshake.
func (h *Handshakes) run(ctx context.Context, nc net.Conn, sec Security, newMachine func() (*handshake.Machine, error), progress func()) (est established, err error) {
	h.Started.Add(1)
	defer func() {
		if err != nil {
			h.Failed.Add(1)
		} else {
			h.Completed.Add(1)
		}
	}()
	deadline := time.Now().Add(h.timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := nc.SetDeadline(deadline); err != nil {
		return est, err
	}
	// A context that ends early breaks the reads and writes under way.
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	g := &gate{ctx: ctx, cpu: h.cpu}
	est, err = h.drive(g, nc, sec, newMachine, progress)
	switch {
	case err == nil && stop():
		return est, nc.SetDeadline(time.Time{})
	case ctx.Err() != nil:
		if err == nil {
			est.wipe()
		}
		return established{}, context.Cause(ctx)
	case isTimeout(err):
		return established{}, fmt.Errorf("%w: %w", ErrHandshakeTimeout, err)
	}
	return established{}, err
}

func (e *established) wipe() {
	e.result.Send.Wipe()
	e.result.Recv.Wipe()
	if e.records != nil {
		e.records.release()
	}
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func (h *Handshakes) drive(g *gate, nc net.Conn, sec Security, newMachine func() (*handshake.Machine, error), progress func()) (est established, err error) {
	var rw io.ReadWriter = nc
	var outer secured
	if sec.Config != nil {
		if outer, err = secure(g, nc, sec); err != nil {
			return est, err
		}
		defer func() {
			if err != nil {
				outer.abandon()
			}
		}()
		progress()
		rw = outer
	}
	var m *handshake.Machine
	if err := g.do(func() (err error) { m, err = newMachine(); return err }); err != nil {
		return est, err
	}
	defer m.Wipe()

	// One pooled buffer holds the largest frame of a handshake; what a peer sends
	// right behind its last one comes with it.
	in := buf.Get(handshake.MaxFrameLen)
	defer in.Release()
	var out []byte
	for {
		if out = m.AppendOutput(out[:0]); len(out) > 0 {
			if _, err := rw.Write(out); err != nil {
				return est, err
			}
		}
		if m.Done() {
			break
		}
		f, n, err := readFrame(rw, in, m)
		if err != nil {
			return est, err
		}
		progress()
		if err := g.do(func() error { return m.HandleFrame(f) }); err != nil {
			return est, err
		}
		in.B = in.B[:copy(in.B[:cap(in.B)], in.B[n:])]
	}
	est = established{result: m.Result(), early: append([]byte(nil), in.B...)}
	if outer != nil {
		var more []byte
		est.records, more = outer.detach()
		est.early = append(est.early, more...)
	}
	return est, nil
}

// readFrame reads until in holds a whole frame that the machine would take, and
// gives its length. The header is judged before the payload is waited for.
func readFrame(r io.Reader, in *buf.Buf, m *handshake.Machine) (wire.Frame, int, error) {
	checked := false
	for {
		if !checked && len(in.B) >= wire.HeaderLen {
			hd, err := wire.ParseHeader(in.B, handshake.MaxFrameLen)
			if err != nil {
				return wire.Frame{}, 0, err
			}
			if err := m.CheckHeader(hd); err != nil {
				return wire.Frame{}, 0, err
			}
			checked = true
		}
		f, n, err := wire.ParseFrame(in.B, handshake.MaxFrameLen)
		if err != nil || n > 0 {
			return f, n, err
		}
		k, err := r.Read(in.B[len(in.B):cap(in.B)])
		in.B = in.B[:len(in.B)+k]
		if k == 0 {
			switch {
			case err == nil:
				err = io.ErrNoProgress
			case errors.Is(err, io.EOF):
				err = fmt.Errorf("%w: %w", ErrHandshakeCut, err)
			}
			return wire.Frame{}, 0, err
		}
	}
}
