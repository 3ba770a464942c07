package carriage

import (
	"bytes"
	"context"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/defaults"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// The defaults of TopicOptions.
const (
	// DefaultTopicBuffer is how far a subscriber may fall behind, in octets.
	DefaultTopicBuffer = 1 << 20
	// DefaultPatience is how long Publish keeps most subscribers waiting for a few.
	DefaultPatience = time.Second
)

// TopicOptions make a Topic. Zero values take their defaults.
type TopicOptions struct {
	// Buffer is how many octets of events are held for subscribers that have not
	// taken them, and so how far one may fall behind. An event counts for 64 more
	// than it has. A single event may be larger.
	Buffer int
	// Keep is how many octets of events are held beyond that, for subscribers that
	// resume; by default none. Buffer bounds both together.
	Keep int
	// Publish waits for subscribers that are behind by Buffer. Patience is how long
	// most of them wait for the rest: those that are behind by half of it still, when
	// more than half of all have taken everything, are cut. Stall is how long it waits
	// for one that makes no progress at all; 0 is DefaultStallTimeout.
	Patience, Stall time.Duration
}

// Topic sends each event to any number of streams of any associations. The event's
// octets are held once, whatever the number of subscribers, who have each their own
// place: one that falls behind further than it may is cut with NotDelivered, and no
// other loses anything. Any goroutine may use a Topic.
type Topic struct {
	o TopicOptions

	publishing chan struct{} // whose turn it is to publish and wait

	mu    sync.RWMutex
	log   backlog
	feeds []*feed // with an association
	end   ending
	room  chan struct{} // closed when events were let go of; nil while nobody waits
}

// NewTopic makes a Topic.
func NewTopic(o TopicOptions) *Topic {
	defaults.Fill(&o.Buffer, DefaultTopicBuffer)
	o.Keep = min(max(o.Keep, 0), o.Buffer)
	if o.Patience <= 0 {
		o.Patience = DefaultPatience
	}
	if o.Stall <= 0 {
		o.Stall = DefaultStallTimeout
	}
	return &Topic{o: o, publishing: make(chan struct{}, 1), log: backlog{shared: true}}
}

// SubscribeOptions are for one subscriber of a Topic.
type SubscribeOptions struct {
	// First, if set, is sent to this subscriber before the topic's events.
	First []byte
	// Head is what each of the topic's events begins with for this subscriber, and
	// for it alone: under JSON-RPC the part with the id of its request. It must not
	// start with a zero octet.
	Head []byte
	// Resumable lets the subscriber continue after its association was lost, from
	// what the topic still holds.
	Resumable bool
	// Over is as in StreamOptions.
	Over func(err error)
}

// Subscribe answers r with the topic's events from now on. The topic takes care of
// the request, which need not be retained. The Producer serves to end this
// subscriber's stream alone, after the events so far; it may be dropped. Its Send
// and TrySend return ErrNotSubscribed. Errors are Request.Stream's, those of an
// event that can't be carried, and ErrStreamEnded if the topic has ended.
func (t *Topic) Subscribe(r *Request, o SubscribeOptions) (*Producer, error) {
	f, err := r.stream(StreamOptions{Resumable: o.Resumable, Over: o.Over})
	if err != nil {
		return nil, err
	}
	f.topic, f.head = t, bytes.Clone(o.Head)
	if len(f.head) > 0 && f.head[0] == 0 {
		err = bridge.ErrAmbiguous // it might be read as a TLV (D9)
	}
	if err == nil && o.First != nil {
		err = f.check(bridge.KindData, o.First)
		f.early = append(f.early, buf.SharedCopy(o.First))
	}
	if err == nil && !t.join(f) {
		err = ErrStreamEnded
	}
	if err != nil {
		f.opts.Over = nil
		f.condemn(err, "no subscription: "+reason(err))
		return nil, err
	}
	if err := r.launch(f); err != nil {
		return nil, err
	}
	return &Producer{f}, nil
}

// join adds a new feed.
func (t *Topic) join(f *feed) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.end.set() {
		return false
	}
	f.base = t.log.last
	f.at.Store(f.base)
	t.add(f)
	return true
}

func (t *Topic) add(f *feed) {
	f.place = len(t.feeds)
	t.feeds = append(t.feeds, f)
}

// leave takes a feed out, which owes no event any more.
func (t *Topic) leave(f *feed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.place < 0 {
		return
	}
	t.remove(f)
	t.trim()
}

func (t *Topic) remove(f *feed) {
	t.log.owe(f.at.Load(), -1)
	last := len(t.feeds) - 1
	t.feeds[f.place] = t.feeds[last]
	t.feeds[f.place].place = f.place
	t.feeds[last] = nil
	t.feeds = t.feeds[:last]
	f.place = -1
}

// rejoin adds a feed again that goes on behind that event. The caller holds the
// feed's lock.
func (t *Topic) rejoin(f *feed, after EventID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := f.number(after)
	if n < t.log.first {
		return false
	}
	if f.place >= 0 {
		t.remove(f)
	}
	f.at.Store(n)
	t.log.owe(n, 1)
	t.add(f)
	return true
}

// taken says that f has taken the events behind number n, up to number to. One that was
// taken out owes none.
func (t *Topic) taken(f *feed, n, to uint64) {
	t.mu.RLock()
	last := false
	if f.place >= 0 {
		f.at.Store(to)
		for n = max(n, t.log.first); n < to; n++ {
			if atomic.AddInt32(t.log.owes(n+1), -1) == 0 {
				last = true
			}
		}
	}
	t.mu.RUnlock()
	if last {
		t.mu.Lock()
		t.trim()
		t.mu.Unlock()
	}
}

// trim lets go of what all have taken, but for what is kept for resumption.
func (t *Topic) trim() {
	l := &t.log
	for l.first < l.last && l.kept() > uint64(t.o.Keep) && atomic.LoadInt32(l.owes(l.first+1)) == 0 {
		l.drop()
	}
	if t.room != nil {
		close(t.room)
		t.room = nil
	}
}

// fits makes room for an event of that cost, as far as events are there that all
// have taken, and says whether there is enough.
func (t *Topic) fits(cost uint64) bool {
	l := &t.log
	for l.first < l.last && l.kept()+cost > uint64(t.o.Buffer) {
		if atomic.LoadInt32(l.owes(l.first+1)) > 0 {
			return false
		}
		l.drop()
	}
	return true
}

// Publish sends foreign to all subscribers. While some of them are behind by the
// topic's Buffer it waits for them, as long as its Patience and Stall allow. ctx bounds the wait. foreign may be reused afterwards. Any
// goroutine but a loop may call it.
//
// Errors: ErrStreamEnded, ctx's.
func (t *Topic) Publish(ctx context.Context, foreign []byte) error {
	select {
	case t.publishing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-t.publishing }()
	large := largeCopy(foreign)
	for {
		if ok, err := t.publish(foreign, large, false); ok {
			return err
		}
		if err := t.wait(ctx, uint64(len(foreign)+eventCost)); err != nil {
			large.Release()
			return err
		}
	}
}

// TryPublish is Publish without waiting: who is behind by the topic's Buffer is cut.
// Any goroutine may call it.
func (t *Topic) TryPublish(foreign []byte) error {
	_, err := t.publish(foreign, largeCopy(foreign), true)
	return err
}

// publish adds an event, whose largeCopy passes to the topic; ok is false if there is
// no room for it, and then it does not.
func (t *Topic) publish(foreign []byte, large *buf.Shared, force bool) (ok bool, err error) {
	cost := uint64(len(foreign) + eventCost)
	t.mu.Lock()
	if t.end.set() {
		t.mu.Unlock()
		large.Release()
		return true, ErrStreamEnded
	}
	for !t.fits(cost) {
		if !force {
			t.mu.Unlock()
			return false, nil
		}
		t.log.drop() // those who have not taken it find out that they are behind
	}
	t.log.push(foreign, large, len(t.feeds), len(foreign) > 0 && foreign[0] != 0)
	if len(t.feeds) == 0 {
		t.trim()
	}
	t.mu.Unlock()
	t.poke()
	return true, nil
}

// poke lets all loops look for what is to be sent.
func (t *Topic) poke() {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, f := range t.feeds {
		f.poke()
	}
}

// wait waits until half of the buffer is free, or more if an event of that cost
// needs it, and cuts those it has waited for too long.
func (t *Topic) wait(ctx context.Context, cost uint64) error {
	cost = max(cost, uint64(t.o.Buffer/2))
	patience := time.NewTicker(t.o.Patience)
	defer patience.Stop()
	waited := time.Duration(0)
	for again := true; ; {
		t.mu.Lock()
		if t.end.set() || t.fits(cost) {
			t.mu.Unlock()
			return nil
		}
		if again {
			again, waited = false, 0
			for _, f := range t.feeds {
				f.was = f.at.Load()
			}
		}
		if t.room == nil {
			t.room = make(chan struct{})
		}
		room := t.room
		t.mu.Unlock()
		select {
		case <-room:
		case <-patience.C:
			waited += t.o.Patience
			again = waited >= t.o.Stall
			for _, f := range t.stuck(cost, again) {
				f.condemn(ErrSlowConsumer, "fell behind: the consumer reads too slowly")
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stuck takes out the subscribers that are not waited for any longer: when all are
// behind alike it is not they who are slow, but one that stalls is.
func (t *Topic) stuck(cost uint64, stalled bool) (list []*feed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := &t.log
	// Who has not taken the events up to need is behind.
	need := l.first + uint64(sort.Search(int(l.last-l.first), func(k int) bool {
		return l.total-l.cost(l.first+uint64(k))+cost <= uint64(t.o.Buffer)
	}))
	done := 0
	for _, f := range t.feeds {
		if f.at.Load() == l.last {
			done++
		}
	}
	for i := len(t.feeds) - 1; i >= 0; i-- { // remove moves the last one here
		f := t.feeds[i]
		if at := f.at.Load(); at < need && (stalled && at == f.was || 2*done > len(t.feeds)) {
			list = append(list, f)
		}
	}
	for _, f := range list {
		t.remove(f)
	}
	t.trim()
	return list
}

// End ends all streams with a terminal event, after what was published before;
// empty foreign stands for an end without an event.
func (t *Topic) End(foreign []byte) error {
	return t.close(ending{kind: bridge.KindEnd, tail: buf.SharedCopy(foreign)})
}

// Refuse ends all streams with a transport error, after what was published before.
func (t *Topic) Refuse(code bridge.Code, text string) error {
	return t.close(transportEnding(code, text))
}

func (t *Topic) close(e ending) error {
	t.mu.Lock()
	if t.end.set() {
		t.mu.Unlock()
		e.clear()
		return ErrStreamEnded
	}
	t.end = e
	feeds := slices.Clone(t.feeds)
	t.mu.Unlock()
	for _, f := range feeds {
		f.poke()
	}
	return nil
}

// Subscribers is the number of streams that the topic feeds now, those not counted
// that are without an association.
func (t *Topic) Subscribers() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.feeds)
}
