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

// errCut is the end of an accepted handshake that made place for another, or
// whose listener was closed.
var errCut = errors.New("loop: handshake was cut off")

// Handshakes runs handshakes off the loops: a goroutine each, bounded in number
// and time, of which only a few compute at once. It is shared by everything that
// listens and dials.
//
// A peer that stalls costs a goroutine, a small buffer and one of the places;
// what it can't cost is another's progress. Places are taken from the most
// crowded stage, processors are given to the most advanced first (processors).
type Handshakes struct {
	timeout time.Duration
	limit   int
	cpu     *processors

	mu      sync.Mutex
	stages  [stages]list.List // of *pending, oldest first
	waiting int

	Started   atomic.Uint64
	Completed atomic.Uint64
	Failed    atomic.Uint64
	Evicted   atomic.Uint64
}

// stages an accepted handshake can have reached: nothing yet, then one more with
// the TLS handshake and with each N-PAMP frame read. Raw TCP has one less.
const stages = 4

// pending is an accepted handshake.
type pending struct {
	gate
	nc    net.Conn
	owner *Server
	stage int           // its own goroutine's
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
		cpu:     newProcessors(max(1, runtime.GOMAXPROCS(0)/2)),
	}
}

// Pending is the number of handshakes under way on accepted connections.
func (h *Handshakes) Pending() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waiting
}

// admit makes place for one more, at the cost of another if all are taken.
func (h *Handshakes) admit(nc net.Conn, owner *Server) *pending {
	p := &pending{nc: nc, owner: owner}
	p.gate = gate{p: h.cpu, ctx: owner.ctx, deadline: time.Now().Add(h.timeout)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting >= h.limit {
		h.evict()
	}
	p.at = h.stages[0].PushBack(p)
	h.waiting++
	return p
}

// shed gives up some of the pending handshakes, for their descriptors, and says
// whether there were any.
func (h *Handshakes) shed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := (h.waiting + shedPart - 1) / shedPart
	for range n {
		h.evict()
	}
	return n > 0
}

// shedPart says which part of the pending handshakes is shed at a time.
const shedPart = 16

// evict cuts off the oldest of the most crowded stage; the mutex is held. So a
// flood makes place for itself, whatever it does: who stalls in great numbers at
// one stage is cut off there, and peers that go on find the other stages, and a
// good part of this one, as if there were no flood.
func (h *Handshakes) evict() {
	most := 0
	for s := range h.stages {
		if h.stages[s].Len() > h.stages[most].Len() {
			most = s
		}
	}
	if e := h.stages[most].Front(); e != nil {
		p := h.stages[most].Remove(e).(*pending)
		p.at = nil
		h.waiting--
		h.Evicted.Add(1)
		p.end()
	}
}

// end makes the handshake's goroutine end.
func (p *pending) end() {
	p.cut(errCut)
	_ = p.nc.Close()
}

// cutAll ends the handshakes of a listener.
func (h *Handshakes) cutAll(owner *Server) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.stages {
		for e := h.stages[s].Front(); e != nil; e = e.Next() {
			if p := e.Value.(*pending); p.owner == owner {
				p.end() // and its goroutine takes it out
			}
		}
	}
}

func (h *Handshakes) leave(p *pending) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.at != nil {
		h.stages[p.stage].Remove(p.at)
		p.at = nil
		h.waiting--
	}
}

func (h *Handshakes) advance(p *pending) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.at == nil || p.stage == stages-1 {
		return
	}
	h.stages[p.stage].Remove(p.at)
	p.stage++
	p.rank = p.stage
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

// Format prints the role and no key, whatever the verb: TLS configurations hold some.
func (s Security) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "loop.Security(TLS %v, server %v, redacted)", s.Config != nil, s.Server)
}

// established is a completed handshake.
type established struct {
	result  handshake.Result
	records recordLayer // nil on raw TCP
	early   []byte      // read beyond it
}

// accept runs the server's side of p's handshake.
func (h *Handshakes) accept(p *pending, sec Security, newMachine func() (*handshake.Machine, error)) (est established, err error) {
	h.Started.Add(1)
	if err = p.nc.SetDeadline(p.deadline); err == nil {
		est, err = h.drive(&p.gate, p.nc, sec, newMachine, func() { h.advance(p) })
	}
	return h.done(est, err)
}

// dial runs the client's side of a handshake over nc. ctx may end it before its
// deadline.
func (h *Handshakes) dial(ctx context.Context, nc net.Conn, sec Security, newMachine func() (*handshake.Machine, error)) (est established, err error) {
	h.Started.Add(1)
	g := &gate{p: h.cpu, ctx: ctx, rank: dialled, deadline: time.Now().Add(h.timeout)}
	if d, ok := ctx.Deadline(); ok && d.Before(g.deadline) {
		g.deadline = d
	}
	if err = nc.SetDeadline(g.deadline); err != nil {
		return h.done(est, err)
	}
	// A context that ends early breaks the reads and writes under way.
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	est, err = h.drive(g, nc, sec, newMachine, func() {})
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil && ctx.Err() != nil {
		est.wipe()
		est, err = established{}, context.Cause(ctx)
	}
	return h.done(est, err)
}

// done counts a handshake's end. The deadline stays: the loop has a descriptor of
// its own, and no deadlines on it.
func (h *Handshakes) done(est established, err error) (established, error) {
	if err == nil {
		h.Completed.Add(1)
		return est, nil
	}
	h.Failed.Add(1)
	if isTimeout(err) {
		err = fmt.Errorf("%w: %w", ErrHandshakeTimeout, err)
	}
	return established{}, err
}

func (e *established) wipe() {
	if e.result.Send != nil {
		e.result.Send.Wipe()
		e.result.Recv.Wipe()
	}
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
	if g.rank == dialled { // a client's makes a key pair
		err = g.do(func() (err error) { m, err = newMachine(); return err })
	} else {
		m, err = newMachine()
	}
	if err != nil {
		return est, err
	}
	defer m.Wipe()

	in := incoming{r: rw, b: buf.Get(firstRead)}
	defer func() { in.b.Release() }()
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
		f, n, err := in.frame(m)
		if err != nil {
			return est, err
		}
		progress()
		if err := g.do(func() error { return m.HandleFrame(f) }); err != nil {
			return est, err
		}
		in.b.B = in.b.B[:copy(in.b.B, in.b.B[n:])]
	}
	est = established{result: m.Result(), early: append([]byte(nil), in.b.B...)}
	if outer != nil {
		var more []byte
		est.records, more = outer.detach()
		est.early = append(est.early, more...)
	}
	return est, nil
}

// firstRead is the size in octets of the buffer that every handshake has, enough
// for all of its messages but those with ML-DSA-87. It grows by what arrives.
const firstRead = 4 << 10

// incoming are the frames of a handshake. What a peer sends right behind its last
// one comes with it and is left in b.
type incoming struct {
	r io.Reader
	b *buf.Buf
}

// frame reads until there is a whole frame that the machine would take, and gives
// its length. The header is judged before the payload is waited for.
func (in *incoming) frame(m *handshake.Machine) (wire.Frame, int, error) {
	checked := false
	for {
		if !checked && len(in.b.B) >= wire.HeaderLen {
			hd, err := wire.ParseHeader(in.b.B, handshake.MaxFrameLen)
			if err != nil {
				return wire.Frame{}, 0, err
			}
			if err := m.CheckHeader(hd); err != nil {
				return wire.Frame{}, 0, err
			}
			checked = true
		}
		f, n, err := wire.ParseFrame(in.b.B, handshake.MaxFrameLen)
		if err != nil || n > 0 {
			return f, n, err
		}
		if len(in.b.B) == cap(in.b.B) {
			larger := buf.Get(min(2*len(in.b.B), handshake.MaxFrameLen))
			larger.B = append(larger.B, in.b.B...)
			in.b.Release()
			in.b = larger
		}
		k, err := in.r.Read(in.b.B[len(in.b.B):cap(in.b.B)])
		in.b.B = in.b.B[:len(in.b.B)+k]
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
