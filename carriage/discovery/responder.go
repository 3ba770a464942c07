package discovery

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"log/slog"
	"slices"
	"time"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/wire/disco"
)

// Why a list of records can't be told.
var (
	errManyMatching = errors.New("discovery: more records match than are told")
	errTooLong      = errors.New("discovery: record longer than a frame to this peer may be")
)

// request serves a QUERY or a SUBSCRIBE.
func (c *conn) request(m *disco.Message) {
	subscribe := m.Type == disco.TypeSubscribe
	if c.served[string(m.Corr)] != nil && (subscribe || m.Filter.Cursor == nil) {
		// DISC 4.2: the id is in use, and an answer would be taken for one to the
		// subscription. Only a page of its snapshot may be asked for under it.
		c.d.count.dropped.Add(1)
		return
	}
	refusal := disco.ErrNotAdvertised
	if subscribe {
		refusal = disco.ErrSubscriptionRefused
	}
	if !c.bucket.take(c.a.Now(), c.d.cfg.Burst, c.d.cfg.Rate) {
		c.refuse(m, refusal, "asked too often")
		return
	}
	if admit := c.d.cfg.Admit; admit != nil {
		if err := admit(c.a, m); err != nil {
			if _, ok := disco.CodeOf(err); !ok {
				err = refusal
			}
			c.refuse(m, err, "")
			return
		}
	}
	if subscribe {
		c.subscribed(m)
	} else {
		c.answer(m)
	}
}

// matching returns what the peer may be told under the filter, in the order of
// the ids, each id once.
func (c *conn) matching(f *disco.Filter) []disco.Record {
	var records []disco.Record
	if c.d.cfg.Advertise != nil {
		records = c.d.cfg.Advertise(c.a, f)
	}
	records = slices.DeleteFunc(slices.Clone(records), func(r disco.Record) bool { return !f.Match(&r) })
	sortRecords(records)
	return slices.CompactFunc(records, func(a, b disco.Record) bool { return bytes.Equal(a.ID, b.ID) })
}

// overhead is what a message has besides its records, in octets, at most: map and
// keys, kind, correlation id, list head, flag and cursor.
const overhead = 40 + disco.MaxCorrLen + cursorTag + disco.MaxRecordIDLen

// limit is how many octets of records a message of ours may hold.
func (c *conn) limit() int { return min(c.most(), c.d.cfg.MaxResult-overhead) }

// most is how many any message to this peer may.
func (c *conn) most() int { return min(c.a.MaxSend(), disco.MaxPayloadLen) - overhead }

// sizeOf returns the octets that a record takes, or why it can't be told.
func (c *conn) sizeOf(r *disco.Record, scratch *[]byte) (int, error) {
	var own []byte
	if scratch == nil {
		scratch = &own
	}
	_, b, err := disco.AppendRecords((*scratch)[:0], *r)
	*scratch = b
	if err == nil && len(b) > c.most() {
		err = errTooLong
	}
	return len(b), err
}

// fit returns how many of the records, one at least, fit one message. They can
// all be encoded.
func (c *conn) fit(records []disco.Record) int {
	limit, size := c.limit(), 0
	var scratch []byte
	for i := range min(len(records), disco.MaxRecords) {
		n, _ := c.sizeOf(&records[i], &scratch)
		if size += n; size > limit && i > 0 {
			return i
		}
	}
	return min(len(records), disco.MaxRecords)
}

// page is the next of a list of records: those behind the id after, as many as
// fit one message.
type page struct {
	list disco.Records
	told []disco.Record
	last bool // nothing follows
}

// pageOf makes a page. A record that can't be told is left out of a tolerant
// answer and otherwise an error (DISC 6.3).
func (c *conn) pageOf(records []disco.Record, after []byte, tolerant bool) (p page, err error) {
	from := 0
	if after != nil {
		var exact bool
		if from, exact = slices.BinarySearchFunc(records, after, func(r disco.Record, id []byte) int { return bytes.Compare(r.ID, id) }); exact {
			from++
		}
	}
	limit, size := c.limit(), 0
	var scratch []byte
	for i := from; ; i++ {
		if i == len(records) {
			p.last = true
			break
		}
		n, err := c.sizeOf(&records[i], &scratch)
		if err != nil {
			c.cantTell(err)
			if tolerant {
				continue
			}
			return page{}, disco.ErrUnknownRecordKind
		}
		if len(p.told) == disco.MaxRecords || size+n > limit && len(p.told) > 0 {
			break
		}
		size += n
		p.told = append(p.told, records[i])
	}
	p.list, _, err = disco.AppendRecords(nil, p.told...)
	return p, err
}

// cantTell logs that a record of ours can't be told, seldom: a peer may ask for it
// for ever.
func (c *conn) cantTell(err error) {
	l, now := &c.untold, c.a.Now()
	l.n++
	if l.any && now < l.next {
		return
	}
	c.d.log.Warn("records can't be told", slog.String("peer", c.a.PeerKey().String()), slog.String("handle", c.a.PeerKey().Handle()), slog.Uint64("count", l.n), slog.Any("error", err))
	*l = refusals{next: now + refusalInterval, any: true}
}

// cursorTag is the length of what a cursor has in front of a record id: a tag that
// this Discovery alone makes.
const cursorTag = 8

// cursor names the place behind a record id, for one filter and one association.
func (c *conn) cursor(f *disco.Filter, id []byte) []byte {
	return append(binary.BigEndian.AppendUint64(nil, c.tag(f, id)), id...)
}

func (c *conn) tag(f *disco.Filter, id []byte) uint64 {
	q := disco.Message{Type: disco.TypeQuery, Corr: []byte("c"), Filter: *f}
	q.Filter.Cursor = id
	b, err := q.Append(binary.BigEndian.AppendUint64(nil, c.a.ID()))
	if err != nil {
		return 0 // of a filter that was parsed everything can be written
	}
	return maphash.Bytes(c.d.seed, b)
}

// position is the record id that a filter's cursor stands behind, nil for the
// start; ok is false for a cursor that is not one of ours for this filter.
//
// The pages follow the order of the record ids, so a cursor gets stale with its
// association alone: what is advertised all the while is told exactly once, and
// what comes or goes between two pages may be told or not.
func (c *conn) position(f *disco.Filter) (after []byte, ok bool) {
	if f.Cursor == nil {
		return nil, true
	}
	if n := len(f.Cursor) - cursorTag; n < 1 || n > disco.MaxRecordIDLen {
		return nil, false
	}
	after = f.Cursor[cursorTag:]
	return after, binary.BigEndian.Uint64(f.Cursor) == c.tag(f, after)
}

// answer answers a QUERY with one page.
func (c *conn) answer(m *disco.Message) {
	f := &m.Filter
	after, ok := c.position(f)
	if !ok {
		c.refuse(m, disco.ErrStaleCursor, "")
		return
	}
	p, err := c.pageOf(c.matching(f), after, f.Tolerant)
	if err != nil {
		c.refuse(m, err, "a record can't be told")
		return
	}
	c.reply(c.result(m.Corr, f, &p), &c.d.count.queries)
}

func (c *conn) result(corr []byte, f *disco.Filter, p *page) *disco.Message {
	r := &disco.Message{Type: disco.TypeResult, Corr: corr, Records: p.list, Complete: p.last}
	if !p.last {
		r.Cursor = c.cursor(f, p.told[len(p.told)-1].ID)
	}
	return r
}

// subscriber is a subscription of the peer:
//
//	snapshot -> following: all pages of the snapshot are sent, changes follow
type subscriber struct {
	corr   []byte
	filter disco.Filter
	// told is what the peer has been told, by record id.
	told map[string]version
	// last is the id up to which the snapshot has been told.
	last      []byte
	following bool
}

// version tells one state of a record from another.
type version struct{ revision, sum uint64 }

func (c *conn) versionOf(r *disco.Record) version {
	_, b, _ := disco.AppendRecords(nil, *r) // what can't be encoded is not told
	return version{r.Revision, maphash.Bytes(c.d.seed, b)}
}

// subscribed serves a SUBSCRIBE.
func (c *conn) subscribed(m *disco.Message) {
	switch {
	case len(c.served) >= c.d.cfg.MaxSubscribers:
		c.refuse(m, disco.ErrSubscriptionRefused, "")
		return
	case c.draining:
		c.refuse(m, disco.ErrSubscriptionRefused, "shutting down")
		return
	case m.Filter.Cursor != nil:
		// DISC 7.2 gives a SUBSCRIBE no cursor, and to ignore it would tell too
		// much.
		c.refuse(m, disco.ErrFilterUnsupported, "a subscription starts with everything")
		return
	}
	s := &subscriber{
		corr: bytes.Clone(m.Corr), filter: cloneFilter(&m.Filter),
		told: make(map[string]version),
	}
	c.served[string(s.corr)] = s
	if len(c.served) == 1 {
		c.d.mu.Lock()
		c.d.telling[c] = struct{}{}
		c.d.mu.Unlock()
	}
	c.tell(s)
}

// unsubscribed serves an UNSUBSCRIBE; false says that there is no such
// subscription.
func (c *conn) unsubscribed(corr []byte) bool {
	s := c.served[string(corr)]
	if s != nil {
		c.drop(s)
	}
	return s != nil
}

// drop ends a subscription of the peer.
func (c *conn) drop(s *subscriber) {
	delete(c.served, string(s.corr))
	if len(c.served) == 0 {
		c.stopTelling()
	}
}

func (c *conn) stopTelling() {
	c.d.mu.Lock()
	delete(c.d.telling, c)
	c.d.mu.Unlock()
	c.a.StopTimer(&c.pause)
	c.again = false
}

// breakOff ends a subscription of the peer that can't be served any more.
func (c *conn) breakOff(s *subscriber, err error, reason string) {
	code, _ := disco.CodeOf(err)
	if c.send(errorTo(s.corr, code, reason), true) == nil {
		c.d.count.errors.Add(1)
	}
	c.drop(s)
}

// look is a conn as what Changed and the pause between two looks wake.
type look conn

// RunTask runs on the loop: the advertised set may have changed.
func (l *look) RunTask() { (*conn)(l).look() }

// HandleExpire runs on the loop: the pause is over.
func (l *look) HandleExpire(time.Duration) {
	if l.again {
		(*conn)(l).look()
	}
}

// look tells the peer's subscriptions what has changed, now or when the pause
// since the last look is over.
func (c *conn) look() {
	if c.pause.Active() {
		c.again = true
		return
	}
	if len(c.served) == 0 {
		return
	}
	c.again = false
	c.a.StartTimer(&c.pause, c.d.cfg.UpdateInterval)
	for _, s := range c.served {
		c.tell(s)
	}
}

// tell brings a subscription up to date as far as there is room, and comes back
// later for the rest.
func (c *conn) tell(s *subscriber) {
	records := c.matching(&s.filter)
	err := error(nil)
	if len(records) > c.d.cfg.MaxCollected {
		err = errManyMatching
	}
	if err == nil && !s.following {
		err = c.tellSnapshot(s, records)
	}
	if err == nil {
		err = c.tellChanges(s, records)
	}
	switch {
	case err == nil:
	case err == assoc.ErrWouldBlock:
		c.again = true
		if !c.pause.Active() {
			c.a.StartTimer(&c.pause, c.d.cfg.UpdateInterval)
		}
	case errors.Is(err, disco.ErrUnknownRecordKind):
		c.breakOff(s, disco.ErrUnknownRecordKind, "a record can't be told")
	case err == errManyMatching:
		c.breakOff(s, disco.ErrSubscriptionRefused, "too many records")
	default:
		c.drop(s) // the association is ending
	}
}

// tellSnapshot sends what is left of the snapshot, all its pages one behind the
// other (DISC 6.2, 7.2).
func (c *conn) tellSnapshot(s *subscriber, records []disco.Record) error {
	for !s.following {
		p, err := c.pageOf(records, s.last, s.filter.Tolerant)
		if err != nil {
			return err
		}
		if err := c.send(c.result(s.corr, &s.filter, &p), false); err != nil {
			return err
		}
		if s.last == nil {
			c.d.count.subscribers.Add(1)
		}
		for i := range p.told {
			r := &p.told[i]
			s.told[string(r.ID)] = c.versionOf(r)
			s.last = bytes.Clone(r.ID)
		}
		s.following = p.last
	}
	s.last = nil
	return nil
}

// tellChanges sends UPDATEs about what is other than the peer was told
// (DISC 7.2). A record that changed without a greater revision was given up in
// between: it is withdrawn first, since the peer would ignore it otherwise.
func (c *conn) tellChanges(s *subscriber, records []disco.Record) error {
	var added []disco.Record
	var withdrawn [][]byte
	here := make(map[string]struct{}, len(records))
	var scratch []byte
	for i := range records {
		r := &records[i]
		here[string(r.ID)] = struct{}{}
		before, had := s.told[string(r.ID)]
		if had && before == c.versionOf(r) {
			continue
		}
		if _, err := c.sizeOf(r, &scratch); err != nil {
			c.cantTell(err)
			if !s.filter.Tolerant {
				return disco.ErrUnknownRecordKind
			}
			delete(here, string(r.ID)) // what can be told of it any more is that it went
			continue
		}
		if had && r.Revision <= before.revision {
			withdrawn = append(withdrawn, r.ID)
		}
		added = append(added, *r)
	}
	for id := range s.told {
		if _, ok := here[id]; !ok {
			withdrawn = append(withdrawn, []byte(id))
		}
	}
	slices.SortFunc(withdrawn, bytes.Compare)
	if err := c.tellWithdrawn(s, withdrawn); err != nil {
		return err
	}
	return c.tellAdded(s, added)
}

func (c *conn) tellWithdrawn(s *subscriber, ids [][]byte) error {
	for len(ids) > 0 {
		n := max(1, min(len(ids), disco.MaxRecords, c.limit()/(2+disco.MaxRecordIDLen)))
		list, err := disco.IDsOf(ids[:n]...)
		if err != nil {
			return err
		}
		if err := c.sendUpdate(&disco.Message{Type: disco.TypeUpdate, Corr: s.corr, Withdrawn: list}); err != nil {
			return err
		}
		for _, id := range ids[:n] {
			delete(s.told, string(id))
		}
		ids = ids[n:]
	}
	return nil
}

func (c *conn) tellAdded(s *subscriber, records []disco.Record) error {
	for len(records) > 0 {
		n := c.fit(records)
		list, _, err := disco.AppendRecords(nil, records[:n]...)
		if err != nil {
			return err
		}
		if err := c.sendUpdate(&disco.Message{Type: disco.TypeUpdate, Corr: s.corr, Records: list}); err != nil {
			return err
		}
		for i := range records[:n] {
			s.told[string(records[i].ID)] = c.versionOf(&records[i])
		}
		records = records[n:]
	}
	return nil
}

func (c *conn) sendUpdate(m *disco.Message) error {
	err := c.send(m, false)
	if err == nil {
		c.d.count.updates.Add(1)
	}
	return err
}

// cloneFilter copies a filter whose lists are views of a frame.
func cloneFilter(f *disco.Filter) disco.Filter {
	m := disco.Message{Type: disco.TypeQuery, Corr: []byte("c"), Filter: *f}
	b, err := m.Append(nil)
	if err != nil {
		return disco.Filter{}
	}
	var own disco.Message
	if disco.Parse(&own, disco.TypeQuery, b) != nil {
		return disco.Filter{}
	}
	return own.Filter
}
