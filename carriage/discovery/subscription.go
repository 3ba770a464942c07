package discovery

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/wire/disco"
)

// Subscription is what a peer advertises under a filter, kept up to date by the
// peer until it is closed or its association ends. Any goroutine may use it, one
// at a time may wait in Next.
type Subscription struct {
	c      *conn
	corr   []byte
	filter disco.Filter
	wake   chan struct{} // one token: there is something for Next
	ready  chan struct{} // closed once the snapshot is whole, or never will be
	done   chan struct{} // closed at the end
	rest   *query        // asks for the rest of the snapshot; the loop's

	mu    sync.Mutex
	set   set
	whole bool
	err   error // set at the end
	// Since the last Next: ids of records that are new or newer, and of those that
	// went and that it had told of.
	changed, gone map[string]struct{}
	told          map[string]struct{} // ids that the caller of Next knows of
}

// Change is what happened to a subscription's records.
type Change struct {
	// Added are the records that are new, or replace those with their ids.
	Added []disco.Record
	// Withdrawn are the ids of those that are not advertised any more.
	Withdrawn [][]byte
}

// Subscribe asks the peer of a for the records that pass the filter and for every
// change of them. It returns when the peer has told all it has now. The filter's
// cursor is not used. Any goroutine but a's loop.
//
// Errors: a *disco.PeerError if the peer declines, as every peer may
// (disco.ErrSubscriptionRefused); ctx's; a's when it ended or has no room; and
// those of this package.
func (d *Discovery) Subscribe(ctx context.Context, a *assoc.Association, f disco.Filter) (*Subscription, error) {
	c, err := d.conn(a)
	if err != nil {
		return nil, err
	}
	f.NamePrefix, f.Cursor = bytes.Clone(f.NamePrefix), nil
	s := &Subscription{
		c: c, corr: d.newCorr(), filter: f,
		wake: make(chan struct{}, 1), ready: make(chan struct{}), done: make(chan struct{}),
		changed: make(map[string]struct{}), gone: make(map[string]struct{}), told: make(map[string]struct{}),
	}
	if !a.Do(func() { c.watch(s) }) {
		return nil, a.ClosedErr()
	}
	select {
	case <-s.ready:
		if err := s.Err(); err != nil {
			return nil, err
		}
		return s, nil
	case <-ctx.Done():
		a.Do(func() { c.leave(s, ctx.Err()) })
		return nil, ctx.Err()
	}
}

// Records returns copies of the records that are advertised now, in the order of
// their ids; none after the end (DISC 8).
func (s *Subscription) Records() []disco.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sorted(s.set.records)
}

// Next waits for a change and returns all that changed since the last call; the
// first returns what there was when Subscribe returned. What came and went in
// between is not told of. The error is that of the subscription's end, or ctx's,
// which ends nothing.
func (s *Subscription) Next(ctx context.Context) (Change, error) {
	for {
		if c, err := s.take(); err != nil || len(c.Added)+len(c.Withdrawn) > 0 {
			return c, err
		}
		select {
		case <-s.wake:
		case <-s.done:
		case <-ctx.Done():
			return Change{}, ctx.Err()
		}
	}
}

func (s *Subscription) take() (c Change, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return Change{}, s.err
	}
	for id := range s.changed {
		c.Added = append(c.Added, s.set.records[id].record)
		s.told[id] = struct{}{}
	}
	for id := range s.gone {
		c.Withdrawn = append(c.Withdrawn, []byte(id))
		delete(s.told, id)
	}
	clear(s.changed)
	clear(s.gone)
	sortRecords(c.Added)
	slices.SortFunc(c.Withdrawn, bytes.Compare)
	return c, nil
}

// Done is closed when the subscription has ended; Err then says why.
func (s *Subscription) Done() <-chan struct{} { return s.done }

// Err says why the subscription ended: ErrUnsubscribed, what the peer's ERROR
// said, why its association ended, ErrTooMany, or disco.ErrUnknownRecordKind for a
// record that can't be understood under a filter that is not tolerant. nil while
// it goes on.
func (s *Subscription) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close ends the subscription and tells the peer (DISC 7.3). A second call does
// nothing.
func (s *Subscription) Close() { s.c.a.Do(func() { s.c.leave(s, ErrUnsubscribed) }) }

// watch begins a subscription of ours.
func (c *conn) watch(s *Subscription) {
	if len(c.watches) >= c.d.cfg.MaxSubscriptions {
		s.finish(ErrBusy)
		return
	}
	if err := c.send(&disco.Message{Type: disco.TypeSubscribe, Corr: s.corr, Filter: s.filter}, false); err != nil {
		s.finish(err)
		return
	}
	c.watches[string(s.corr)] = s
}

// leave ends a subscription of ours that the peer still serves.
func (c *conn) leave(s *Subscription, err error) {
	if c.watches[string(s.corr)] != s {
		return
	}
	// Past the limit: no more of them than there are subscriptions.
	_ = c.send(&disco.Message{Type: disco.TypeUnsubscribe, Corr: s.corr}, true) // fails only with the association
	c.forget(s, err)
}

// forget ends a subscription of ours that the peer does not serve any more.
func (c *conn) forget(s *Subscription, err error) {
	delete(c.watches, string(s.corr))
	if s.rest != nil {
		c.end(s.rest, err)
	}
	s.finish(err)
}

func (s *Subscription) finish(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.err = err
	s.set, s.changed, s.gone, s.told = set{}, nil, nil, nil
	close(s.done)
	s.settle()
}

// settle says that Subscribe need not wait any longer. The caller holds mu.
func (s *Subscription) settle() {
	if !s.whole {
		s.whole = true
		close(s.ready)
	}
}

// snapshot takes a page of what the peer had when the subscription began. The
// peer sends all pages by itself, or waits to be asked for the next (DISC 6.2);
// which it does can't be seen, so the next one is asked for once, and what comes
// twice counts once.
func (c *conn) snapshot(s *Subscription, m *disco.Message) {
	if !c.apply(s, m) || m.Complete || s.rest != nil || len(m.Cursor) > MaxCursorLen {
		return
	}
	q := &query{corr: c.d.newCorr(), filter: s.filter, into: s}
	q.filter.Cursor = bytes.Clone(m.Cursor)
	s.rest = q
	c.begin(q) // if it can't be sent, the peer may go on by itself
}

// collectRest takes a page that was asked for.
func (c *conn) collectRest(q *query, m *disco.Message) {
	s := q.into
	if !c.apply(s, m) { // ended, and the query with it
		return
	}
	if s.isWhole() || len(m.Cursor) > MaxCursorLen || bytes.Equal(m.Cursor, q.filter.Cursor) {
		c.end(q, nil)
		return
	}
	q.filter.Cursor = append(q.filter.Cursor[:0], m.Cursor...)
	c.ask(q)
}

func (s *Subscription) isWhole() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.whole
}

// apply does to a subscription's set what a RESULT or an UPDATE says (DISC 7.2);
// false says that this was its end.
func (c *conn) apply(s *Subscription, m *disco.Message) bool {
	err := c.learn(m, s.filter.Tolerant)
	if err == nil {
		err = s.apply(m)
	}
	if err != nil {
		c.leave(s, err)
	}
	return err == nil
}

func (s *Subscription) apply(m *disco.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.set.gather(m, &s.c.d.cfg, func(id []byte) {
		s.changed[string(id)] = struct{}{}
		delete(s.gone, string(id))
	})
	if err != nil {
		return err
	}
	for id := range m.Withdrawn.All() {
		if !s.set.remove(id) {
			continue
		}
		delete(s.changed, string(id))
		if _, told := s.told[string(id)]; told {
			s.gone[string(id)] = struct{}{}
		}
	}
	if m.Type == disco.TypeResult && m.Complete {
		s.settle()
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}
