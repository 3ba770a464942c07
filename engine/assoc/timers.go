package assoc

import (
	"time"

	"github.com/trestle-npamp/trestle/sched"
	"github.com/trestle-npamp/trestle/wire/control"
)

// Now is the loop's time, since an arbitrary origin: in a turn that turn's, in an
// expiring timer that of the expiry. Loop only.
func (a *Association) Now() time.Duration {
	if a.trans == nil {
		return a.now // before the start
	}
	return a.trans.Now()
}

// StartTimer lets t expire after d, on the loop; a running t is moved. Loop only.
func (a *Association) StartTimer(t *sched.Timer, d time.Duration) {
	a.wheel.Start(t, a.Now()+d)
}

// StopTimer stops t if it runs. Loop only.
func (a *Association) StopTimer(t *sched.Timer) {
	if a.wheel != nil {
		a.wheel.Stop(t)
	}
}

// machineTimer brings the machine's own deadlines into a turn. It is armed for
// the earliest one and not moved when that one recedes: a busy association would
// otherwise move it with every frame.
type machineTimer struct {
	timer sched.Timer
	a     *Association
	at    time.Duration
	armed bool
	due   bool
}

func (t *machineTimer) init(a *Association) {
	t.a = a
	t.timer.Owner = t
}

func (t *machineTimer) arm(at time.Duration) {
	if t.armed && t.at <= at {
		return
	}
	t.armed, t.at = true, at
	t.a.wheel.Start(&t.timer, at)
}

// HandleExpire runs on the loop, outside a turn.
func (t *machineTimer) HandleExpire(time.Duration) {
	t.armed, t.due = false, true
	t.a.trans.Wake()
}

// stallTimer ends an association whose peer takes no octet although some wait.
type stallTimer struct {
	timer sched.Timer
	a     *Association
	armed bool
	due   bool
	// What the transport and the queue held when the timer was armed.
	buffered int
	out      uint64
}

func (t *stallTimer) init(a *Association) {
	t.a = a
	t.timer.Owner = t
}

func (t *stallTimer) arm(buffered int) {
	if t.armed {
		return
	}
	t.armed, t.buffered, t.out = true, buffered, t.a.m.Sealed()
	t.a.wheel.Start(&t.timer, t.a.now+t.a.o.Stall)
}

// WatchStall tells that the transport holds back octets of this association:
// the stall deadline runs from now unless it runs already. Loop only.
func (a *Association) WatchStall(buffered int) {
	if !a.ended {
		a.stall.arm(buffered)
	}
}

// HandleExpire runs on the loop, outside a turn.
func (t *stallTimer) HandleExpire(time.Duration) {
	t.armed, t.due = false, true
	t.a.trans.Wake()
}

// checkStall runs in a turn, a stall deadline after something waited. Nothing
// was taken if nothing more could be sealed and the transport holds as much as
// it did then.
func (a *Association) checkStall(buffered int) {
	s := &a.stall
	waiting := buffered > 0 || a.m.Waiting()
	if waiting && buffered >= s.buffered && a.m.Sealed() == s.out {
		a.o.Counters.Stalled.Add(1)
		a.m.Abort(a.now, control.CodeTimeout, ErrStalled)
	}
}

// restAfter is how long nothing must have happened for an association to give
// back what it can make again: a busy one must not derive its keys anew all the
// time, and many are idle for hours. A PING with its PONG is not work: one that came
// to an association at rest keeps keys for no longer than its answer may take, or a
// sixth of all idle associations would hold them at any time. Deriving them for the
// next one costs some microseconds, twice a second at most.
const (
	restAfter = 5 * time.Second
	calmAfter = 500 * time.Millisecond
)

// Yielder is a Transport that can let goroutines run which are likely to post
// something, before it rests.
type Yielder interface {
	// Yield is called on the loop when such a goroutine has been made ready.
	Yield()
}

// Woke tells that a goroutine was made ready which may well post something next, as
// one does that waited for a reply. Loop only.
func (a *Association) Woke() {
	if y, ok := a.trans.(Yielder); ok {
		y.Yield()
	}
}

// Rester is a Transport that can give something back while an association rests.
type Rester interface {
	// Rest is called on the loop, outside a turn.
	Rest()
}

// restTimer notices that an association is idle. It is not moved by every turn:
// when it expires it looks whether one has put that off.
type restTimer struct {
	timer sched.Timer
	a     *Association
	at    time.Duration // when there has been nothing for long enough
	armed bool
}

func (t *restTimer) init(a *Association) {
	t.a = a
	t.timer.Owner = t
}

// touch is called at the end of every turn in which something happened: a timer that
// finds nothing to do does not keep keys. after is how long there must be nothing now;
// it never shortens what an earlier turn asked for.
func (t *restTimer) touch(after time.Duration) {
	t.at = max(t.at, t.a.now+after)
	if !t.armed {
		t.armed = true
		t.a.wheel.Start(&t.timer, t.at)
	}
}

// HandleExpire runs on the loop, outside a turn.
func (t *restTimer) HandleExpire(now time.Duration) {
	if t.at > now {
		t.a.wheel.Start(&t.timer, t.at)
		return
	}
	t.armed = false
	if t.a.ended {
		return
	}
	t.a.m.Rest()
	if r, ok := t.a.trans.(Rester); ok {
		r.Rest()
	}
}
