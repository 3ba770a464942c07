package discovery

import (
	"bytes"
	"context"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/wire/disco"
)

// set is the records that a request of ours has brought.
type set struct {
	records map[string]held
	octets  int
}

// put takes a copy of r unless a record with its id and no lesser revision is
// there. The error is ErrTooMany or that of a record that can't be kept.
func (s *set) put(r *disco.Record, cfg *Config) (changed bool, err error) {
	prev, had := s.records[string(r.ID)]
	if had && r.Revision <= prev.record.Revision {
		return false, nil
	}
	own, err := keep(r)
	if err != nil {
		return false, err
	}
	if !had && len(s.records) >= cfg.MaxCollected || s.octets-prev.octets+own.octets > cfg.MaxCollectedOctets {
		return false, ErrTooMany
	}
	if s.records == nil {
		s.records = make(map[string]held)
	}
	s.records[string(own.record.ID)] = own
	s.octets += own.octets - prev.octets
	return true, nil
}

func (s *set) remove(id []byte) bool {
	prev, had := s.records[string(id)]
	delete(s.records, string(id))
	s.octets -= prev.octets
	return had
}

// query is one of our queries. It belongs to the loop until done is sent to.
type query struct {
	corr   []byte
	filter disco.Filter
	set    set
	// into is the subscription whose snapshot the query asks for the rest of, nil
	// for a query of its own.
	into  *Subscription
	done  chan error // one error, nil for success; not of a query for a subscription
	ended bool
}

// Query asks the peer of a for its records and returns all that pass the filter,
// as copies, in the order of their ids. The filter's cursor is not used. Any
// goroutine but a's loop. Errors: a *disco.PeerError if the peer refused, ctx's,
// a's when it ended or has no room, and those of this package.
func (d *Discovery) Query(ctx context.Context, a *assoc.Association, f disco.Filter) ([]disco.Record, error) {
	c, err := d.conn(a)
	if err != nil {
		return nil, err
	}
	f.NamePrefix, f.Cursor = bytes.Clone(f.NamePrefix), nil
	q := &query{corr: d.newCorr(), filter: f, done: make(chan error, 1)}
	if !a.Do(func() { c.begin(q) }) {
		return nil, a.ClosedErr()
	}
	select {
	case err := <-q.done:
		if err != nil {
			return nil, err
		}
		return sorted(q.set.records), nil
	case <-ctx.Done():
		a.Do(func() { c.end(q, ctx.Err()) })
		return nil, ctx.Err()
	}
}

// begin sends a query of ours.
func (c *conn) begin(q *query) {
	if len(c.queries) >= c.d.cfg.MaxQueries {
		c.end(q, ErrBusy)
		return
	}
	c.queries[string(q.corr)] = q
	c.ask(q)
}

func (c *conn) ask(q *query) {
	if err := c.send(&disco.Message{Type: disco.TypeQuery, Corr: q.corr, Filter: q.filter}, false); err != nil {
		c.end(q, err)
	}
}

// collect takes a page of an answer. If it is not the last, the next is asked
// for under the same correlation id: the peer may also send it unasked (DISC
// 6.2), and records that come twice count once.
func (c *conn) collect(q *query, m *disco.Message) {
	if q.into != nil {
		c.collectRest(q, m)
		return
	}
	err, progress := c.learn(m, q.filter.Tolerant), false
	if err == nil {
		progress, err = q.set.gather(m, &c.d.cfg, nil)
	}
	switch {
	case err != nil:
		c.end(q, err)
	case m.Complete:
		c.end(q, nil)
	case len(m.Cursor) > MaxCursorLen:
		c.end(q, ErrCursor)
	case !progress && m.UnknownKinds == 0:
		c.end(q, ErrNoProgress)
	default:
		q.filter.Cursor = append(q.filter.Cursor[:0], m.Cursor...)
		c.ask(q)
	}
}

// learn does to what is held what an answer or an UPDATE says (DISC 8). Its error
// says that it has records which can't be understood (DISC 5, 6.3).
func (c *conn) learn(m *disco.Message, tolerant bool) error {
	if !tolerant {
		if err := m.CheckKinds(); err != nil {
			return err
		}
	}
	c.d.count.unknown.Add(uint64(m.UnknownKinds))
	var refused tally
	for r := range m.Records.All() {
		refused.add(c.renew(r))
	}
	c.tellRefused(refused)
	for id := range m.Withdrawn.All() {
		c.withdraw(id)
	}
	return nil
}

// gather puts a message's records into a set. changed, unless nil, is told of the
// ids that are new or newer.
func (s *set) gather(m *disco.Message, cfg *Config, changed func(id []byte)) (progress bool, err error) {
	for r := range m.Records.All() {
		news, err := s.put(r, cfg)
		if err != nil {
			return progress, err
		}
		if news {
			progress = true
			if changed != nil {
				changed(r.ID)
			}
		}
	}
	return progress, nil
}

// end ends a query of ours, once.
func (c *conn) end(q *query, err error) {
	if q.ended {
		return
	}
	q.ended = true
	delete(c.queries, string(q.corr))
	if q.into != nil {
		q.into.rest = nil
		return
	}
	q.done <- err
}
