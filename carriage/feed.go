package carriage

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// feed is one stream that we produce, from the first event to its end, whatever
// associations it crosses. Where it crosses one at present is an outlet.
//
//	Producer ──push──> backlog ──take──> outlet ──> association
//	                   of the feed, or of its topic
//
// Its events are the ones in early, if there are any, and then those of its
// backlog; an event's id is its place among them.
type feed struct {
	b     *Bridge
	topic *Topic // whose backlog it reads; nil: it has its own
	opts  StreamOptions

	// What the request was, for the frames and for authorising a resume.
	peer     identity.PublicKey
	proto    *Protocol
	content  bridge.ContentType
	corr     []byte
	id       []byte // the JSON-RPC id as written
	method   []byte
	media    []byte
	label    bridge.Label
	hasLabel bool
	effect   bridge.Effect
	doc      bool
	up       bool   // it goes along with a request of ours and is no answer
	head     []byte // what the topic's events begin with
	front    int    // octets in front of an event's foreign ones; 0 if none can be carried

	// Instead of what the request declared: by the stream's frames, set before the
	// first event, and by an answer in one piece.
	declared, answer atomic.Pointer[declared]

	cur  atomic.Pointer[outlet] // nil while it is detached; changes under mu
	home atomic.Pointer[assoc.Association]

	mu    sync.Mutex
	own   backlog
	early []*buf.Shared
	base  uint64  // the number in the topic's backlog before this feed's first event
	taken EventID // the last one handed to an association
	spent uint64  // cost of its own events up to that
	top   EventID // the last one that ever was
	told  bool    // the outlet will look for the next event, or is told to
	end   ending  // the feed's own end
	stop  EventID // the last event before it
	doom  doom    // why it must be cut
	state feedState
	err   error
	done  chan struct{}      // made when asked for
	quit  context.CancelFunc // of ctx
	ctx   context.Context    // made when asked for
	room  chan struct{}      // closed when there is room; nil while nobody waits
	// Among the feeds of its topic, -1 for none; the topic's.
	place int
	at    atomic.Uint64 // number of the last event taken
	was   uint64        // what at was

	retained bool  // what was sent is held for a resume
	holds    int64 // cost of what is held, as far as it is counted
	lost     error // why the last association ended
}

// doom is why a stream is cut.
type doom struct {
	err  error
	text string
}

// feedState is how far a stream is:
//
//	open -> ended: its terminal frame was handed on, or it got its end while it was
//	  |       |    detached; the consumer may resume it
//	  '-------'--> gone: nothing is held any more
type feedState uint8

const (
	feedOpen feedState = iota
	feedEnded
	feedGone
)

// number is an event's number in the topic's backlog; for an early event it is that
// of the last one before the feed's first.
func (f *feed) number(id EventID) uint64 {
	return f.base + uint64(id-min(id, EventID(len(f.early))))
}

// newest is the id of the newest event so far. The caller holds mu. Of a topic's feed
// it may have changed when it is read.
func (f *feed) newest() EventID {
	if f.topic == nil {
		return EventID(f.own.last)
	}
	f.topic.mu.RLock()
	defer f.topic.mu.RUnlock()
	return EventID(f.topic.log.last-f.base) + EventID(len(f.early))
}

// next fills the outlet's run, which is at its end, with what comes after the event
// taken last; ok is false when there is nothing yet. lost says that the event is not
// held any more.
func (f *feed) next(o *outlet) (ok, lost bool) {
	r := &o.run
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cur.Load() != o {
		r.clear()
		return false, false
	}
	id := f.taken + 1
	n := f.number(id)
	switch t := f.topic; {
	case f.end.set() && id > f.stop:
		f.end.take(r, id)
		ok = true
	case id <= EventID(len(f.early)):
		r.alone(bridge.KindData, id, f.early[id-1])
		ok = true
	case t == nil:
		ok, lost = f.own.take(r, n, id)
	default:
		t.mu.RLock()
		if ok, lost = t.log.take(r, n, id); !ok && !lost && t.end.set() {
			t.end.take(r, id)
			ok = true
		}
		t.mu.RUnlock()
		if r.kind != bridge.KindError { // whose octets are no event's
			r.head = f.head
		}
	}
	if f.end.set() && id <= f.stop {
		r.n = min(r.n, int(f.stop-id+1)) // its topic goes on
	}
	if f.told = ok; !ok {
		r.clear()
	}
	r.resumable = f.retained
	return ok, lost
}

// behind says that the next event of a topic is not held any more.
func (f *feed) behind() bool {
	t := f.topic
	if t == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.number(f.taken + 1)
	t.mu.RLock()
	defer t.mu.RUnlock()
	return f.taken >= EventID(len(f.early)) && n <= t.log.first
}

// take says that the events up to id were handed to the association, at that cost. The
// outlet keeps its own ownership of their octets.
func (f *feed) take(o *outlet, id EventID, cost uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cur.Load() != o {
		return
	}
	before := f.taken
	f.taken, f.top = id, max(f.top, id)
	if f.topic != nil {
		if id > EventID(len(f.early)) {
			f.topic.taken(f, f.number(before), f.number(id))
		}
		return
	}
	f.spent += cost
	f.trim()
	f.wake(false)
}

// trim lets go of events of its own that need not be held any more.
func (f *feed) trim() {
	l := &f.own
	if !f.retained {
		l.dropPages(uint64(f.taken))
		return
	}
	for l.first < l.last {
		switch detached := f.cur.Load() == nil; {
		case l.kept() <= uint64(f.b.cfg.Retain.Octets):
			return
		case l.first+1 > uint64(f.taken) && !detached:
			return // it is still to be sent
		}
		f.b.stats.retainedDropped.Add(1)
		f.count(-l.octets() - eventCost)
		l.drop()
	}
}

// count keeps account of what is held for a resume.
func (f *feed) count(cost int) {
	if f.retained {
		f.holds += int64(cost)
		f.b.retained.octets.Add(int64(cost))
	}
}

// waiting is the cost of the events of its own that are still to be sent.
func (f *feed) waiting() uint64 {
	if f.cur.Load() == nil {
		return 0 // they wait for nobody
	}
	return f.own.total - f.spent
}

// wake lets those who wait for room look again.
func (f *feed) wake(anyway bool) {
	if f.room != nil && (anyway || f.waiting() <= uint64(f.opts.Buffer/2)) {
		close(f.room)
		f.room = nil
	}
}

// poke lets the loop look for what is to be sent. It may be called with mu held.
func (f *feed) poke() {
	if o := f.cur.Load(); o != nil {
		o.c.a.PostOnce(&o.node)
	}
}

// lockedStep is how many octets push adds while it keeps the feed from its loop.
const lockedStep = 64 << 10

// push adds events of the feed's own in their order, and returns the number of those
// that were. wait is set if it has to wait for room before it tries the next one again.
func (f *feed) push(events [][]byte, block bool) (n int, wait <-chan struct{}, err error) {
	for n < len(events) && wait == nil && err == nil {
		f.mu.Lock()
		for step := 0; n < len(events) && step < lockedStep; {
			if wait, err = f.add(events[n], block); wait != nil || err != nil {
				break
			}
			step += len(events[n]) + eventCost
			n++
		}
		f.mu.Unlock()
	}
	return n, wait, err
}

// add is push of one event. The caller holds mu.
func (f *feed) add(foreign []byte, block bool) (wait <-chan struct{}, err error) {
	if err := f.sendable(); err != nil {
		return nil, err
	}
	if f.topic != nil {
		return nil, ErrNotSubscribed
	}
	plain := f.b.cfg.Tags.Plain(f.proto.ID, foreign)
	if !plain || f.front == 0 || f.front+len(foreign) > f.home.Load().MaxSend() {
		if err := f.check(bridge.KindData, foreign); err != nil {
			return nil, err
		}
	}
	if w := f.waiting(); w > 0 && w+uint64(len(foreign)+eventCost) > uint64(f.opts.Buffer) {
		if !block {
			return nil, assoc.ErrWouldBlock
		}
		if f.room == nil {
			f.room = make(chan struct{})
		}
		return f.room, nil
	}
	f.own.push(foreign, largeCopy(foreign), 0, plain)
	if f.retained {
		f.count(len(foreign) + eventCost)
		f.trim()
	}
	if !f.told {
		f.told = true
		f.poke()
	}
	return nil, nil
}

// sendable says why nothing more may be sent.
func (f *feed) sendable() error {
	switch {
	case f.state != feedOpen:
		return f.err
	case f.doom.err != nil:
		return f.doom.err
	case f.end.set():
		return ErrStreamEnded
	}
	return nil
}

// message is one of the stream.
func (f *feed) message(kind bridge.Kind, foreign []byte) bridge.Message {
	m := bridge.Message{
		Kind: kind, Protocol: f.proto.ID, Content: f.content, MediaType: f.media, Corr: f.corr,
		HasStream: kind == bridge.KindData || kind == bridge.KindEnd, Foreign: foreign,
	}
	f.envelope(&m)
	return m
}

// measure finds out what stands in front of an event. The caller holds mu, or f is
// new.
func (f *feed) measure() {
	m := f.message(bridge.KindData, nil)
	if f.front = 0; m.Check(f.b.cfg.Tags) == nil {
		f.front = m.PrefixSize()
	}
}

// check says whether a message of the stream can be carried to where it goes now.
func (f *feed) check(kind bridge.Kind, foreign []byte) error {
	m := f.message(kind, foreign)
	if !m.HasStream && f.proto.Class == ClassJSONRPC && !f.doc {
		if err := checkReply(&m, f.id, f.b.cfg.MaxDepth); err != nil {
			return fmt.Errorf("%w: %w", ErrMalformed, err)
		}
	}
	if err := m.Check(f.b.cfg.Tags); err != nil {
		return err
	}
	return checkSize(&m, f.home.Load())
}

// close gives the stream its own end, after the events so far. The ending passes to
// the feed in every case.
func (f *feed) close(e ending) error {
	f.mu.Lock()
	if err := f.sendable(); err != nil {
		f.mu.Unlock()
		e.clear()
		return err
	}
	f.end, f.stop = e, f.newest()
	then := func() {}
	if f.cur.Load() != nil {
		f.poke()
	} else {
		then = f.over(ErrStreamEnded) // what is held waits for a resume
	}
	f.wake(true)
	f.mu.Unlock()
	then()
	return nil
}

// over makes the stream's end known on this side. What it returns is to be called
// once no lock is held. The caller holds mu.
func (f *feed) over(err error) (then func()) {
	if f.state != feedOpen {
		return func() {}
	}
	f.state, f.err = feedEnded, err
	if f.done != nil {
		close(f.done)
	}
	if f.quit != nil {
		f.quit()
	}
	f.wake(true)
	tell, reason := f.opts.Over, err
	if err == ErrStreamEnded {
		reason = nil
	}
	if tell == nil {
		return func() {}
	}
	return func() {
		defer func() {
			if p := recover(); p != nil {
				f.b.panicked("stream's Over", &f.b.stats.handlerPanics, p)
			}
		}()
		tell(reason)
	}
}

// finish ends the stream and lets go of all it holds. o is the outlet for which it
// ends, nil for none: one that is not the stream's any more ends nothing.
func (f *feed) finish(o *outlet, err error) {
	f.mu.Lock()
	if f.cur.Load() != o {
		f.mu.Unlock()
		return
	}
	then := f.over(err)
	f.discard()
	f.mu.Unlock()
	f.b.retained.remove(f)
	then()
}

// retire is the stream's natural end: the terminal frame was handed to o's
// association. What may be resumed is held on.
func (f *feed) retire(o *outlet) {
	f.mu.Lock()
	if f.cur.Load() != o {
		f.mu.Unlock()
		return
	}
	then := f.over(ErrStreamEnded)
	f.cur.Store(nil)
	if f.retained {
		f.trim()
	} else {
		f.discard()
	}
	f.mu.Unlock()
	f.b.retained.rest(f)
	then()
}

// detach says that o's association ended, because of err. A stream that may be
// resumed goes on without one.
func (f *feed) detach(o *outlet, err error) {
	f.mu.Lock()
	if f.cur.Load() != o {
		f.mu.Unlock()
		return
	}
	then := func() {}
	f.cur.Store(nil)
	f.lost = err
	switch {
	case !f.retained || f.doom.err != nil:
		then = f.over(err)
		f.discard()
	case f.end.set():
		then = f.over(ErrStreamEnded)
		fallthrough
	default:
		f.wake(true)
		f.trim()
		if f.topic != nil {
			f.topic.leave(f)
		}
	}
	f.mu.Unlock()
	f.b.retained.rest(f)
	then()
}

// expire ends a stream that is not held for a resume any more. One that has an
// association goes on there.
func (f *feed) expire() {
	f.mu.Lock()
	f.forget()
	then := func() {}
	if f.cur.Load() == nil && f.state != feedGone {
		then = f.over(f.lost)
		f.discard()
	}
	f.mu.Unlock()
	then()
}

// forget stops holding what was sent. The caller holds mu.
func (f *feed) forget() {
	f.retained = false
	f.b.retained.octets.Add(-f.holds)
	f.holds = 0
	if f.topic == nil && f.cur.Load() != nil {
		f.trim()
	}
}

// discard lets go of everything. The caller holds mu.
func (f *feed) discard() {
	f.state = feedGone
	f.cur.Store(nil)
	f.forget()
	f.own.clear()
	f.end.clear()
	if f.topic != nil {
		f.topic.leave(f)
	}
	for _, e := range f.early {
		e.Release()
	}
	f.early = nil
}

// condemn has the stream cut, because of err and with NotDelivered for its
// consumer. A stream that has got its end is left to it. Any goroutine.
func (f *feed) condemn(err error, text string) {
	f.mu.Lock()
	if f.state != feedOpen || f.doom.err != nil || f.end.set() && f.topic == nil {
		f.mu.Unlock()
		return
	}
	f.doom = doom{err, text}
	f.wake(true)
	attached := f.cur.Load() != nil
	f.poke()
	f.mu.Unlock()
	if !attached {
		f.finish(nil, err)
	}
}

// doomed is why the stream must be cut, if it must.
func (f *feed) doomed() (doom, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.doom, f.doom.err != nil
}
