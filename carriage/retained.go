package carriage

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/internal/defaults"
)

// RetainLimits bound what is held of streams that may be resumed (D28). Zero fields
// take their defaults. Over a limit the oldest goes first.
type RetainLimits struct {
	// Streams is how many streams of one peer are held, running ones included: 64.
	// Negative holds none, whatever is asked for.
	Streams int
	// Octets is how much is held of one stream: 1 MiB.
	Octets int
	// Time is how long a stream is held after its end or the loss of its
	// association: 5 minutes.
	Time time.Duration
	// Total is how many octets are held in all: 256 MiB.
	Total int64
}

// The defaults of RetainLimits.
const (
	DefaultRetainStreams = 64
	DefaultRetainOctets  = 1 << 20
	DefaultRetainTime    = 5 * time.Minute
	DefaultRetainTotal   = 256 << 20
)

func (l *RetainLimits) fill() {
	if l.Streams == 0 {
		l.Streams = DefaultRetainStreams
	}
	defaults.Fill(&l.Octets, DefaultRetainOctets)
	if l.Time <= 0 {
		l.Time = DefaultRetainTime
	}
	if l.Total <= 0 {
		l.Total = DefaultRetainTotal
	}
}

// retained is the streams that may be resumed, whichever associations they were on:
// by the peer's identity and the correlation id.
//
// Its lock comes before a feed's.
type retained struct {
	limits RetainLimits
	stats  *counters
	octets atomic.Int64

	mu    sync.Mutex
	feeds map[feedName]*rested
	peers map[identity.PublicKey][]*rested // oldest first
	idle  []*rested                        // those without an association, oldest first
}

type feedName struct {
	peer identity.PublicKey
	corr string
}

// rested is one stream that may be resumed.
type rested struct {
	f     *feed
	name  feedName
	timer *time.Timer // runs while it has no association
}

func (r *retained) init(limits RetainLimits, stats *counters) {
	r.limits, r.stats = limits, stats
	r.feeds = make(map[feedName]*rested)
	r.peers = make(map[identity.PublicKey][]*rested)
}

// add holds f from now on, if that is permitted at all. An older stream of the same
// name gives way: the peer has started anew under that correlation id.
func (r *retained) add(f *feed) {
	if r.limits.Streams < 0 {
		return
	}
	e := &rested{f: f, name: feedName{f.peer, string(f.corr)}}
	var gone []*rested
	r.mu.Lock()
	if old := r.feeds[e.name]; old != nil {
		r.unlink(old)
		gone = append(gone, old)
		r.stats.retainedReplaced.Add(1)
	}
	for len(r.peers[f.peer]) >= r.limits.Streams {
		old := r.oldest(f.peer)
		r.unlink(old)
		gone = append(gone, old)
		r.stats.retainedEvicted.Add(1)
	}
	r.feeds[e.name] = e
	r.peers[f.peer] = append(r.peers[f.peer], e)
	f.mu.Lock()
	f.retained = true
	f.mu.Unlock()
	r.mu.Unlock()
	for _, old := range gone {
		old.f.expire()
	}
}

// oldest is the peer's stream to give up first: the one that rests for the longest
// time, and without such the first one.
func (r *retained) oldest(peer identity.PublicKey) *rested {
	for _, e := range r.idle {
		if e.name.peer == peer {
			return e
		}
	}
	return r.peers[peer][0]
}

// unlink takes e out. The caller holds mu.
func (r *retained) unlink(e *rested) {
	delete(r.feeds, e.name)
	list := r.peers[e.name.peer]
	if list = slices.DeleteFunc(list, func(x *rested) bool { return x == e }); len(list) == 0 {
		delete(r.peers, e.name.peer)
	} else {
		r.peers[e.name.peer] = list
	}
	r.rouse(e)
}

// rouse says that e does not rest any more.
func (r *retained) rouse(e *rested) {
	if e.timer == nil {
		return
	}
	e.timer.Stop()
	e.timer = nil
	if i := slices.Index(r.idle, e); i >= 0 {
		r.idle = slices.Delete(r.idle, i, i+1)
	}
}

// remove forgets f.
func (r *retained) remove(f *feed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.feeds[feedName{f.peer, string(f.corr)}]; e != nil && e.f == f {
		r.unlink(e)
	}
}

// rest says that f has no association now: its time runs.
func (r *retained) rest(f *feed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.feeds[feedName{f.peer, string(f.corr)}]
	if e == nil || e.f != f || e.timer != nil {
		return
	}
	if f.cur.Load() != nil {
		return // it was resumed in the meantime
	}
	r.idle = append(r.idle, e)
	e.timer = time.AfterFunc(r.limits.Time, func() { r.expire(e) })
}

func (r *retained) expire(e *rested) {
	r.mu.Lock()
	if e.timer == nil || r.feeds[e.name] != e {
		r.mu.Unlock()
		return
	}
	r.unlink(e)
	r.stats.retainedExpired.Add(1)
	r.mu.Unlock()
	e.f.expire()
}

// shed gives up resting streams until what is held is within the limit, and when
// there is none f itself, which makes it more.
func (r *retained) shed(f *feed) {
	for r.octets.Load() > r.limits.Total {
		r.mu.Lock()
		e := r.feeds[feedName{f.peer, string(f.corr)}]
		if len(r.idle) > 0 {
			e = r.idle[0]
		}
		if e == nil {
			r.mu.Unlock()
			return
		}
		r.unlink(e)
		r.stats.retainedEvicted.Add(1)
		r.mu.Unlock()
		e.f.expire()
	}
}

// find returns the stream of that name.
func (r *retained) find(peer identity.PublicKey, corr []byte) *feed {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.feeds[feedName{peer, string(corr)}]; e != nil {
		return e.f
	}
	return nil
}

// resume lets f continue at o behind the event with that id, if it still can.
func (r *retained) resume(f *feed, o *outlet, after EventID) (old *outlet, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.feeds[feedName{f.peer, string(f.corr)}]
	if e == nil || e.f != f {
		return nil, false
	}
	if old, ok = f.moveTo(o, after); ok {
		r.rouse(e)
	}
	return old, ok
}

// moveTo makes o the place where the stream goes on behind that event.
func (f *feed) moveTo(o *outlet, after EventID) (old *outlet, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !f.retained || f.state == feedGone || f.doom.err != nil:
		return nil, false
	case after > f.top:
		return nil, false // nobody can have consumed that
	case f.topic != nil:
		if !f.topic.rejoin(f, after) {
			return nil, false
		}
	case uint64(after) < f.own.first:
		return nil, false
	}
	old = f.cur.Load()
	if f.taken = after; f.topic == nil {
		f.spent = f.own.cost(uint64(after))
	}
	f.cur.Store(o)
	f.home.Store(o.c.a)
	return old, true
}

// shed keeps what is held of all streams within its limit.
func (f *feed) shed() {
	if r := &f.b.retained; f.opts.Resumable && r.octets.Load() > r.limits.Total {
		r.shed(f)
	}
}
