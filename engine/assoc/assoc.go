// Package assoc binds one association's machine (engine/conn) to what is built
// on it: the handlers of its channels, the inbox through which other goroutines
// reach it, and its timers. It still has no socket and no clock: a driver calls
// Turn with what arrived and the time, and writes what Turn gives back. The
// event loop (engine/loop) is one driver, the simulated network of the tests
// another.
//
// One goroutine, the loop, owns an Association. Methods say who may call them.
package assoc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine/conn"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/defaults"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/sched"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// Defaults (D28).
const (
	// DefaultOutboundLimit bounds the octets queued towards one peer, those
	// posted by other goroutines included.
	DefaultOutboundLimit = 8 << 20
	// DefaultStall is how long a peer may take no octet at all while some wait
	// for it.
	DefaultStall = 10 * time.Second
)

// Errors. ErrClosed is matched by every *CloseError.
var (
	ErrClosed     = conn.ErrClosed
	ErrTooLarge   = conn.ErrTooLarge
	ErrChannel    = conn.ErrChannel
	ErrWouldBlock = errors.New("assoc: outbound limit reached")
	// ErrStalled: the peer took nothing for the whole stall deadline.
	ErrStalled = errors.New("assoc: peer stopped reading")
	// ErrPanic: a channel handler panicked outside any exchange.
	ErrPanic = errors.New("assoc: channel handler panicked")
)

// CloseError says why an association ended.
type CloseError = conn.CloseError

// Role is the side of an association in its handshake.
type Role = conn.Role

// Roles.
const (
	Client = conn.Client
	Server = conn.Server
)

// ChannelHandler serves one channel of every association of an engine.
type ChannelHandler interface {
	// Channel is the channel it serves.
	Channel() wire.Channel
	// Attach makes what serves this channel of a. It is called on the loop once
	// the association stands, before its first frame. a's sending methods may be
	// used in it.
	Attach(a *Association) ChannelConn
}

// ChannelConn serves one channel of one association. Its methods are called on
// the loop and must not block.
type ChannelConn interface {
	// HandleFrame takes an opened frame of type 0x0100 or above. payload is
	// borrowed until the call returns.
	HandleFrame(t wire.FrameType, payload []byte)
	// HandleHello tells that the peer's HELLO arrived. h and what it refers to
	// must not be changed.
	HandleHello(h *control.Hello)
	// HandleRoom tells that there is outbound room again after something was
	// refused with ErrWouldBlock.
	HandleRoom()
	// HandleDrain tells that a graceful shutdown began: refuse what is new, let
	// what runs end.
	HandleDrain()
	// Busy is the number of exchanges that a drain waits for.
	Busy() int
	// HandleClose tells that the association ended. It is the last call. err
	// matches ErrClosed.
	HandleClose(err error)
}

// Transport is what carries an association's octets.
type Transport interface {
	// Wake asks for a Turn soon. Any goroutine may call it.
	Wake()
	// Buffered is how many octets of earlier turns the transport still holds.
	// Loop only.
	Buffered() int
	// Now is the loop's time, which does not move within a turn. Loop only.
	Now() time.Duration
}

// Options make an Association.
type Options struct {
	ID         uint64
	Conn       conn.Config
	PeerKey    identity.PublicKey
	LocalAddr  net.Addr
	RemoteAddr net.Addr
	Handlers   []ChannelHandler
	// OutboundLimit in octets and Stall; zero takes the default.
	OutboundLimit int
	Stall         time.Duration
	// Budget is shared by the queues of many associations.
	Budget *buf.Budget
	// Counters of refusals, shared; nil makes private ones.
	Counters *Counters
	Logger   *slog.Logger
	// OnEnd, if set, is called on the loop once every channel knows the end.
	OnEnd func(*Association)
}

// Counters count over all associations that share them.
type Counters struct {
	WouldBlock atomic.Uint64 // sends refused by a limit
	Stalled    atomic.Uint64 // associations ended because the peer stopped reading
	Panics     atomic.Uint64 // channel handlers that panicked
}

const channels = int(wire.ChannelSpatial) + 1

// kept is what an association needs of its Options for good. (The machine keeps
// its own configuration: idle associations are many.)
type kept struct {
	ID                    uint64
	Role                  Role
	Profile               *profiles.Profile
	Suite                 profiles.Suite
	HighWater             int
	Frames                *conn.Counters
	PeerKey               identity.PublicKey
	LocalAddr, RemoteAddr net.Addr
	Handlers              []ChannelHandler
	OutboundLimit         int
	Stall                 time.Duration
	Budget                *buf.Budget
	Counters              *Counters
	Logger                *slog.Logger
	OnEnd                 func(*Association)
}

// Association is one peer: everything that is sent to it goes through here.
type Association struct {
	o     kept
	m     *conn.Conn
	trans Transport
	wheel *sched.Wheel
	chans [channels]ChannelConn

	inbox sched.Inbox
	// queued is what waits for the peer, posted frames included.
	queued    atomic.Int64
	maxSend   atomic.Int64
	hello     atomic.Pointer[control.Hello]
	helloCame chan struct{}
	started   atomic.Bool // trans is set
	attached  atomic.Bool // chans is as it stays
	done      chan struct{}
	err       error // set before done is closed
	refused   atomic.Bool
	roomMu    sync.Mutex
	roomWait  chan struct{} // closed when room is back; nil while nobody waits

	// Loop only.
	now       time.Duration
	inTurn    bool
	stirred   bool   // something came, ran or left in the turn: it is not a timer's alone
	sealed    uint64 // by the machine when the turn began
	buffered  int    // what the transport held when the turn began
	after     []byte // the batch of a turn after the end
	admitted  int    // octets admitted that are in the machine's queue
	ended     bool
	draining  bool
	drainCode control.ErrorCode
	drainText string
	timeout   machineTimer
	stall     stallTimer
	rest      restTimer
	rekems    []chan<- error // who waits for the tier-2 step under way
}

// New makes an association that stands at now. Start must follow, on the loop.
func New(o Options, now time.Duration) *Association {
	defaults.Fill(&o.OutboundLimit, DefaultOutboundLimit)
	defaults.Fill(&o.Stall, DefaultStall)
	if o.Counters == nil {
		o.Counters = new(Counters)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	for _, h := range o.Handlers {
		o.Conn.Channels = append(o.Conn.Channels[:len(o.Conn.Channels):len(o.Conn.Channels)], h.Channel())
	}
	defaults.Fill(&o.Conn.HighWater, conn.DefaultHighWater)
	if o.Conn.Counters == nil {
		o.Conn.Counters = new(conn.Counters)
	}
	a := &Association{
		o: kept{
			ID: o.ID, Role: o.Conn.Role, Profile: o.Conn.Profile, Suite: o.Conn.Suite,
			HighWater: o.Conn.HighWater, Frames: o.Conn.Counters,
			PeerKey: o.PeerKey, LocalAddr: o.LocalAddr, RemoteAddr: o.RemoteAddr,
			Handlers: o.Handlers, OutboundLimit: o.OutboundLimit, Stall: o.Stall,
			Budget: o.Budget, Counters: o.Counters, Logger: o.Logger, OnEnd: o.OnEnd,
		},
		now:       now,
		done:      make(chan struct{}),
		helloCame: make(chan struct{}),
	}
	o.Conn.Busy = func() bool { return a.busy() > 0 }
	a.m = conn.New(o.Conn, now)
	a.maxSend.Store(int64(a.m.MaxSend()))
	a.timeout.init(a)
	a.stall.init(a)
	a.rest.init(a)
	return a
}

// Start binds the association to its loop: HELLO is queued and the channels are
// attached. A Turn must follow. Loop only.
func (a *Association) Start(now time.Duration, t Transport, w *sched.Wheel) (err error) {
	defer func() {
		if p := recover(); p != nil {
			a.o.Counters.Panics.Add(1)
			a.o.Logger.Error("channel handler panicked in Attach", "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %v", ErrPanic, p)
		}
	}()
	a.now, a.trans, a.wheel = now, t, w
	a.started.Store(true) // what was posted before is taken by the first Turn
	if err := a.m.Open(); err != nil {
		return err
	}
	for _, h := range a.o.Handlers {
		if int(h.Channel()) >= channels {
			return fmt.Errorf("assoc: no handler can serve channel %v", h.Channel())
		}
		a.chans[h.Channel()] = h.Attach(a)
	}
	a.attached.Store(true)
	return nil
}

// Discard ends an association that no loop ever got. Nobody else may know it.
func (a *Association) Discard(cause error) {
	if a.ended {
		return
	}
	a.m.HandleEOF(a.now, cause)
	a.finishClosed()
}

// Format prints which association it is and nothing that it holds, whatever the
// verb.
func (a *Association) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "assoc.Association(%d, %v, peer %v %s)", a.o.ID, a.o.Role, a.o.PeerKey, a.o.PeerKey.Handle())
}

// ID is unique within the engine.
func (a *Association) ID() uint64 { return a.o.ID }

// Role is our side in the handshake.
func (a *Association) Role() Role { return a.o.Role }

// PeerKey is the peer's verified identity.
func (a *Association) PeerKey() identity.PublicKey { return a.o.PeerKey }

// Profile is the negotiated profile. Any goroutine.
func (a *Association) Profile() *profiles.Profile { return a.o.Profile }

// Suite is the negotiated AEAD suite; a profile that diversifies uses the other
// one too. Any goroutine.
func (a *Association) Suite() profiles.Suite { return a.o.Suite }

// LocalAddr is our end of the transport; nil in a simulated one.
func (a *Association) LocalAddr() net.Addr { return a.o.LocalAddr }

// RemoteAddr is the peer's end of the transport; nil in a simulated one.
func (a *Association) RemoteAddr() net.Addr { return a.o.RemoteAddr }

// ChannelConn is what serves ch of this association; nil for none, and before all
// channels are attached. Any goroutine.
func (a *Association) ChannelConn(ch wire.Channel) ChannelConn {
	if int(ch) >= channels || !a.attached.Load() {
		return nil
	}
	return a.chans[ch]
}

// Done is closed when the association has ended and every channel knows it.
func (a *Association) Done() <-chan struct{} { return a.done }

// Err says why the association ended, a *CloseError; nil before.
func (a *Association) Err() error {
	select {
	case <-a.done:
		return a.err
	default:
		return nil
	}
}

// PeerHello is the peer's HELLO, or nil while none has come. It must not be
// changed. Any goroutine.
func (a *Association) PeerHello() *control.Hello { return a.hello.Load() }

// WaitHello waits for the peer's HELLO: until it has come, a frame may be at most
// 1 MiB and not every channel is known to be there (D3). Peers that send none
// exist; ctx bounds the wait. Any goroutine but the loop. Errors are ctx's and
// what ended the association.
func (a *Association) WaitHello(ctx context.Context) (*control.Hello, error) {
	select {
	case <-a.helloCame:
		return a.hello.Load(), nil
	case <-a.done:
		return nil, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// MaxSend is the largest plaintext, in octets, of one frame towards this peer.
// It may grow when the peer's HELLO arrives, or is no longer expected. Any
// goroutine.
func (a *Association) MaxSend() int { return int(a.maxSend.Load()) }

// Logger is the engine's logger.
func (a *Association) Logger() *slog.Logger { return a.o.Logger }

// task is a function run on the loop.
type task struct {
	node sched.Node
	run  func()
}

func (t *task) RunTask() { t.run() }

// Do runs f on the loop; false means that the association has ended and f will
// not run. Any goroutine. It allocates; frequent work embeds a sched.Node and
// uses Post.
func (a *Association) Do(f func()) bool {
	t := &task{run: f}
	t.node.Owner = t
	return a.Post(&t.node)
}

// Post runs n.Owner.RunTask on the loop, in the order of posting; false means
// that the association has ended and it will not run. A task may find the
// association ended when it runs. Any goroutine.
func (a *Association) Post(n *sched.Node) bool {
	wake, ok := a.inbox.Push(n)
	if wake && a.started.Load() {
		a.trans.Wake()
	}
	return ok
}

// Close ends the association in order: what is queued goes first, bounded by
// the close deadline, then ERROR with code and text unless code is 0, then
// CLOSE. Any goroutine; Done tells when it has happened.
func (a *Association) Close(code control.ErrorCode, text string) {
	a.Do(func() { a.m.Close(a.now, code, text) })
}

// Drain ends the association once no channel is busy any more; new exchanges
// are refused from now on. Any goroutine. The caller bounds it with Close.
func (a *Association) Drain(code control.ErrorCode, text string) {
	a.Do(func() {
		if a.draining || a.ended {
			return
		}
		a.draining, a.drainCode, a.drainText = true, code, text
		a.each(ChannelConn.HandleDrain)
	})
}

// each calls f for every channel. A panic in one is logged and does not keep the
// others from being called.
func (a *Association) each(f func(ChannelConn)) {
	for _, cc := range a.chans {
		if cc != nil {
			a.safely(cc, f)
		}
	}
}

func (a *Association) safely(cc ChannelConn, f func(ChannelConn)) {
	defer func() {
		if p := recover(); p != nil {
			a.o.Counters.Panics.Add(1)
			a.o.Logger.Error("channel handler panicked", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	f(cc)
}

// Ended tells the driver to close the transport once it has written the last
// batch. Loop only.
func (a *Association) Ended() bool { return a.ended }

// Turn is one step of the association on its loop: in is what arrived (borrowed,
// opened in place), batch is where sealed frames are appended. It gives back the
// batch, which the driver writes at once. It is BeginTurn, Feed and EndTurn, for
// a driver whose input is one piece.
func (a *Association) Turn(now time.Duration, in, batch []byte) []byte {
	a.BeginTurn(now, batch)
	if in != nil {
		a.Feed(in)
	}
	return a.EndTurn()
}

// BeginTurn starts a step; batch may hold something already, which is kept.
func (a *Association) BeginTurn(now time.Duration, batch []byte) {
	a.now = now
	if a.ended {
		a.after = batch
		return
	}
	a.buffered = a.trans.Buffered()
	a.inTurn, a.stirred, a.sealed = true, false, a.m.Sealed()
	a.m.StartBatch(now, batch, a.buffered >= a.o.HighWater)
	if a.timeout.due {
		a.timeout.due = false
		a.m.HandleTimeout(now)
		a.maxSend.Store(int64(a.m.MaxSend())) // no HELLO came in time (D3)
	}
	if a.stall.due {
		a.stall.due = false
		a.checkStall(a.buffered)
	}
}

// Feed takes a piece of what arrived. in is borrowed, and frames are opened in
// it, until Feed returns.
func (a *Association) Feed(in []byte) {
	if a.ended {
		return
	}
	a.stirred = true
	defer a.survive()
	a.m.HandleBytes(a.now, in)
	for a.dispatch() {
	}
	a.m.Settle()
}

// EndTurn runs what was posted, and gives the batch.
func (a *Association) EndTurn() []byte {
	if !a.inTurn { // it had ended before
		b := a.after
		a.after = nil
		return b
	}
	if a.ended { // in this turn: what it had to say is in the batch
		a.inTurn = false
		return a.m.TakeBatch()
	}
	posted := a.runPosted()
	if a.draining && !a.m.Closing() && a.busy() == 0 && a.m.Queued() == 0 && a.buffered == 0 {
		// Everything has been given to the transport. A slow peer may take a while
		// to read it, and its CLOSE_ACK says that it has.
		a.m.CloseBy(a.now, a.drainCode, a.drainText, a.now+a.o.Stall)
	}
	last := a.draining && !a.m.Closing() && a.m.Queued() > 0
	batch := a.m.TakeBatch()
	if last && a.m.Queued() == 0 {
		a.trans.Wake() // to see that nothing is left
	}
	a.inTurn = false // what HandleRoom sends asks for a turn of its own
	a.settleQueue()
	if a.rekems != nil && !a.m.Rekeming() {
		a.settleRekem(a.m.RekemOutcome())
	}
	if a.m.Closed() {
		a.finishClosed()
		return batch
	}
	if at, ok := a.m.Deadline(); ok {
		a.timeout.arm(at)
	}
	if a.m.Waiting() || a.buffered > 0 {
		a.stall.arm(a.buffered)
	}
	switch {
	case a.m.Calm() && !posted:
		a.rest.touch(calmAfter)
	case a.stirred || a.m.Sealed() != a.sealed:
		a.rest.touch(restAfter)
	}
	return batch
}

// runPosted runs every task, also those behind one that panics, and tells whether
// there was any.
func (a *Association) runPosted() (ran bool) {
	for n := a.inbox.TakeAll(); n != nil; {
		rest := n.Take()
		a.stirred, ran = true, true
		a.runTask(n)
		n = rest
	}
	return ran
}

func (a *Association) runTask(n *sched.Node) {
	defer a.survive()
	n.Owner.RunTask()
}

// survive is deferred around handlers: a panic is theirs, and ends this
// association alone.
func (a *Association) survive() {
	if p := recover(); p != nil {
		a.m.Cancel()
		a.o.Counters.Panics.Add(1)
		a.o.Logger.Error("channel handler panicked", "panic", p, "stack", string(debug.Stack()))
		a.m.Abort(a.now, control.CodeInternal, fmt.Errorf("%w: %v", ErrPanic, p))
	}
}

// dispatch gives the machine's next event to whom it concerns.
func (a *Association) dispatch() bool {
	if a.m.Closed() {
		return false // its event is taken by finishClosed, last
	}
	ev, ok := a.m.Poll()
	if !ok {
		return false
	}
	switch ev.Kind {
	case conn.EventFrame:
		if cc := a.chans[ev.Channel]; cc != nil {
			cc.HandleFrame(ev.Type, ev.Payload)
		} else {
			a.o.Frames.UnknownType.Add(1)
		}
	case conn.EventHello:
		h, _ := a.m.PeerHello()
		a.maxSend.Store(int64(a.m.MaxSend()))
		a.hello.Store(h)
		close(a.helloCame) // a second HELLO ends the association
		a.each(func(cc ChannelConn) { cc.HandleHello(h) })
	case conn.EventCredit:
		a.handleCredit(ev)
	case conn.EventClosed:
		a.finish(ev.Err)
	}
	return true
}

func (a *Association) finishClosed() {
	if ev, ok := a.m.Poll(); ok && ev.Kind == conn.EventClosed {
		a.finish(ev.Err)
	}
}

// finish tells everybody, once.
func (a *Association) finish(err *CloseError) {
	if a.ended {
		return
	}
	a.ended = true
	a.err = err
	a.StopTimer(&a.timeout.timer)
	a.StopTimer(&a.stall.timer)
	a.StopTimer(&a.rest.timer)
	for n := a.inbox.Close(); n != nil; { // their sends fail; whoever posted learns of the end below
		rest := n.Take()
		a.runTask(n)
		n = rest
	}
	a.each(func(cc ChannelConn) { cc.HandleClose(err) })
	a.m.Release()
	a.settleRekem(err)
	a.o.Budget.Give(int(a.admittedNow()))
	a.releaseWaiters()
	close(a.done)
	if a.o.OnEnd != nil {
		a.o.OnEnd(a)
	}
}

// TransportClosed tells that the transport ended; cause is nil for a plain end
// of file. Loop only, outside a Turn.
func (a *Association) TransportClosed(now time.Duration, cause error) {
	a.now = now
	if a.ended {
		return
	}
	a.m.HandleEOF(now, cause)
	a.finishClosed()
}

func (a *Association) busy() int {
	n := 0
	for _, cc := range a.chans {
		if cc != nil {
			n += cc.Busy()
		}
	}
	return n
}

// Draining tells the driver that the association waits until nothing is left to
// be sent: it wants a turn when the transport holds nothing any more. Loop only.
func (a *Association) Draining() bool { return a.draining && !a.ended }

// Pending tells the driver that frames wait for nothing but another turn and
// room in the transport. Loop only.
func (a *Association) Pending() bool { return a.m.Sendable() }

// HighWater is the number of octets left in the transport at which an
// association stops sealing more.
func (a *Association) HighWater() int { return a.o.HighWater }

// Queued is the number of octets that wait for the peer, outside the transport.
// Any goroutine.
func (a *Association) Queued() int { return int(a.queued.Load()) }
