package carriage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/defaults"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// Redial lets a stream that is read by an iterator outlive its association: with the
// next one the iterator goes on behind the event that it got last, and its reader sees
// every event once and in order, as if nothing had happened (CC-STREAM 6).
//
//	streaming -- association lost --> waiting --> dialling --> resuming --> streaming
//	                                     ^            '- no association -.
//	                                     '-------------------------------'
//
// It does so where that can't do harm. A stream is resumed if its producer said in its
// last frame that it can be (CC-STREAM 6.1). A request that brought no frame is sent
// again if none of it had left, or if it only reads; otherwise nobody knows whether it
// was acted on, and the stream ends as it would without a Redial. So it does when the
// producer refuses the resume: NotResumable is not followed by a new request, since
// that would bring events again.
type Redial struct {
	// Dial returns an association with the same peer under the same identity, which
	// must not be lost: that one has ended, or is about to be told so. It may be
	// one that others use, and must return when ctx ends, which it does when the
	// stream is closed. It is called on a goroutine of the stream. See Redialer. nil
	// ends the stream with its association.
	Dial func(ctx context.Context, lost *assoc.Association) (*assoc.Association, error)
	// Message gives the foreign message of a resume, for a producer that wants one,
	// under the original request's id: tasks/resubscribe, say (MAP-A2A 6). nil, or a
	// nil result, sends none and the original request's method.
	Message func() []byte
	// Attempts is how many times in a row an association is asked for, without an
	// event between: 0 is DefaultRedialAttempts.
	Attempts int
	// Wait is the time before the first of them, MaxWait the longest one: each is
	// twice the one before, less up to half of it at random. 0 is DefaultRedialWait
	// and DefaultRedialMaxWait.
	Wait, MaxWait time.Duration
}

// The defaults of a Redial: about a minute in all.
const (
	DefaultRedialAttempts = 12
	DefaultRedialWait     = 50 * time.Millisecond
	DefaultRedialMaxWait  = 10 * time.Second
)

// ErrRedial: a stream lost its association, and no other took its place. It wraps
// both reasons.
var ErrRedial = errors.New("carriage: the stream was not resumed")

// redial is what an iterator keeps for going on. It belongs to the stream's lock.
type redial struct {
	Redial
	ctx   context.Context // ends with the stream
	quit  context.CancelFunc
	call  Call // of the request, without its octets once there was a frame
	label bridge.Label
	again bool // the request may be sent twice
	known bool // by learn
	tried int  // in a row
}

// keepGoing makes what the stream needs to go on.
func (s *Stream) keepGoing(c *Call, o *Redial) {
	r := &redial{Redial: *o, call: *c}
	defaults.Fill(&r.Attempts, DefaultRedialAttempts)
	if r.Wait <= 0 {
		r.Wait = DefaultRedialWait
	}
	if r.MaxWait <= 0 {
		r.MaxWait = max(r.Wait, DefaultRedialMaxWait)
	}
	r.call.Foreign, r.call.Natural = bytes.Clone(c.Foreign), bytes.Clone(c.Natural)
	r.call.MediaType, r.call.Metadata = bytes.Clone(c.MediaType), bytes.Clone(c.Metadata)
	if c.Label != nil {
		r.label = bridge.Label{Effect: c.Label.Effect, Scope: bytes.Clone(c.Label.Scope)}
		r.call.Label = &r.label
	}
	r.ctx, r.quit = context.WithCancel(s.ctx)
	s.re = r
}

// learn completes what is known of the request when it is put together for the first
// time: its method, and whether it only reads (D15).
func (r *redial) learn(e *exchange) {
	if r == nil || r.known {
		return
	}
	r.known = true
	r.call.Method = string(e.method)
	r.again = e.proto.effectOf(e.method) == bridge.ReadOnly && (!e.msg.HasLabel || e.msg.Label.Effect == bridge.ReadOnly)
}

// came says that an event came: what is tried next is tried anew, and the request is
// not needed any more.
func (r *redial) came() {
	r.tried = 0
	r.call.Foreign = nil
}

// wait is the time before the next attempt.
func (r *redial) wait() time.Duration {
	d := r.MaxWait
	if n := r.tried; n < 32 && r.Wait < r.MaxWait>>n {
		d = r.Wait << n
	}
	return d - rand.N(d/2+1)
}

// goOn is told that the association is lost, and says whether the stream goes on
// without it. The caller holds mu, on the loop.
func (s *Stream) goOn(reply *Reply) bool {
	r, x := s.re, s.x
	if r == nil || s.cut || r.ctx.Err() != nil || !errors.Is(reply.Err, assoc.ErrClosed) {
		return false
	}
	resume := x.resumable.Load() || x.resumed && !x.begun
	if !resume && (x.begun || reply.Sent && !r.again || s.o.Up != nil) {
		return false
	}
	go s.redial(x.a, x.last, resume, reply.Err)
	return true
}

// redial looks for another association, until there is one or no use in it.
func (s *Stream) redial(lost *assoc.Association, after EventID, resume bool, cause error) {
	r := s.re
	for last := error(nil); ; {
		s.mu.Lock()
		d, tried := r.wait(), r.tried
		r.tried++
		s.mu.Unlock()
		if tried >= r.Attempts {
			if last == nil {
				last = errNoEvent
			}
			s.giveIn(fmt.Errorf("%w after %d attempts (%w): %w", ErrRedial, tried, last, cause))
			return
		}
		wait := time.NewTimer(d)
		select {
		case <-wait.C:
		case <-r.ctx.Done():
			wait.Stop()
			s.giveIn(r.ctx.Err())
			return
		}
		if last = s.attempt(lost, after, resume); last == nil {
			return
		}
	}
}

// attempt dials and asks once.
func (s *Stream) attempt(lost *assoc.Association, after EventID, resume bool) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.b.panicked("Redial", &s.b.stats.completionPanics, p)
			err = errRedial
		}
	}()
	var message []byte
	if resume && s.re.Message != nil {
		message = s.re.Message()
	}
	a, err := s.re.Dial(s.re.ctx, lost)
	if err != nil {
		return err
	}
	return s.resume(a, after, resume, message)
}

// resume sends the request again or asks for what follows the last event.
func (s *Stream) resume(a *assoc.Association, after EventID, resume bool, message []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.re
	call, o := r.call, s.o
	o.Up = nil
	if o.Resume = nil; resume {
		if call.Foreign = message; message != nil {
			call.Method = "" // as the message says
		}
		call.Timeout = 0 // there may be nothing to send yet
	}
	if s.cut || r.ctx.Err() != nil {
		return context.Canceled
	}
	old := s.x
	if resume {
		c, _ := old.Cursor()
		o.Resume = &Cursor{Corr: c.Corr, ID: after}
	}
	x := new(Consumer)
	x.init(s, a)
	if resume {
		x.readTo.Store(old.readTo.Load())
		x.resumable.Store(true)
		x.corr.Store(old.corr.Load())
	}
	s.x = x
	err := x.start(&call, &o)
	if err != nil {
		s.x = old
		return err
	}
	s.b.stats.streamsRedialled.Add(1)
	return nil
}

// giveIn ends the stream for its reader.
func (s *Stream) giveIn(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.signal()
}

// Redialer shares one association with a peer among all streams that lost the last
// one: they wait for the same dial. It is for Redial.Dial.
type Redialer struct {
	dial func(ctx context.Context) (*assoc.Association, error)

	mu     sync.Mutex
	last   *assoc.Association
	flight *flight
}

// flight is one dial, and who waits for it.
type flight struct {
	done    chan struct{}
	waiting int
	quit    context.CancelFunc
	a       *assoc.Association
	err     error
}

// NewRedialer makes a Redialer of what makes one association, for instance an engine's
// Dial of one address with one identity. dial must return when its context ends, which
// it does when nobody waits any more.
func NewRedialer(dial func(ctx context.Context) (*assoc.Association, error)) *Redialer {
	return &Redialer{dial: dial}
}

// Dial returns the association that the last dial made if it lives and is not lost,
// and else dials, once for all who ask meanwhile. Any goroutine but a loop may call it.
func (d *Redialer) Dial(ctx context.Context, lost *assoc.Association) (*assoc.Association, error) {
	d.mu.Lock()
	if a := d.last; a != nil && a != lost {
		select {
		case <-a.Done():
		default:
			d.mu.Unlock()
			return a, nil
		}
	}
	f := d.flight
	if f == nil {
		var dialling context.Context
		f = &flight{done: make(chan struct{})}
		dialling, f.quit = context.WithCancel(context.WithoutCancel(ctx))
		d.flight = f
		go d.fly(dialling, f)
	}
	f.waiting++
	d.mu.Unlock()
	select {
	case <-f.done:
		return f.a, f.err
	case <-ctx.Done():
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if f.waiting--; f.waiting == 0 {
		f.quit()
		if d.flight == f {
			d.flight = nil // who asks now is not to get a dial that was given up
		}
	}
	return nil, ctx.Err()
}

func (d *Redialer) fly(ctx context.Context, f *flight) {
	defer f.quit()
	f.a, f.err = d.dial(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.flight == f:
		d.flight = nil
		if f.err == nil {
			d.last = f.a
		}
	case f.err == nil:
		f.a.Close(0, "") // it was given up, and came all the same
	}
	close(f.done)
}
