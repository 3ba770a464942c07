// Package discovery serves the Discovery channel (NPAMP-DISC) of an engine's
// associations: it announces records to a peer, asks a peer for its own, answers
// what peers ask, and holds what each peer announced for as long as the
// association lasts.
//
// A record is a claim of the peer that sent it, never a permission. Whether a
// claim is taken is asked of Config.Accept, which is where the ownership of
// agent names is settled (D22).
//
// Subscriptions are declined, which every peer must be ready for (DISC 7.2), and
// documents (DOC) on this channel are dropped and counted, since they need
// numbers that are not assigned yet (D7).
package discovery

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
	"github.com/trestle-npamp/trestle/wire/disco"
)

// Defaults of Config.
const (
	DefaultMaxRecords   = 256
	DefaultMaxOctets    = 64 << 10
	DefaultMaxQueries   = 64
	DefaultMaxResult    = 64 << 10
	DefaultMaxCollected = 16384
	DefaultBurst        = 64
	DefaultRate         = 16
)

// Errors.
var (
	// ErrNoChannel is returned for an association that this Discovery doesn't
	// serve.
	ErrNoChannel = errors.New("discovery: channel is not served on this association")
	// ErrBusy is returned by Query when too many queries are under way.
	ErrBusy = errors.New("discovery: too many queries under way")
	// ErrTooMany is returned by Query when the peer's answer has more records than
	// the limit.
	ErrTooMany = errors.New("discovery: too many records in the answer")
	// ErrNoProgress is returned by Query when the peer's answer goes on without
	// bringing records.
	ErrNoProgress = errors.New("discovery: the answer does not end")
)

// Config configures a Discovery. Every zero value stands for the default named
// beside it, a nil function for none.
type Config struct {
	// Advertise returns what is told to the peer of a when it asks; records that
	// don't pass the filter are left out afterwards. It is called on a's loop.
	Advertise func(a *assoc.Association, f *disco.Filter) []disco.Record
	// Accept is asked on a's loop before a record that its peer announced is
	// held; an error refuses the record, which is counted and nothing else, since
	// an ANNOUNCE is never answered. prev is the record of the same id that it
	// would replace, nil for none. Both are borrowed.
	Accept func(a *assoc.Association, r, prev *disco.Record) error
	// Gone is told on a's loop that the association ended, and with it all its
	// records.
	Gone func(a *assoc.Association)

	// MaxRecords and MaxOctets bound what is held of one peer (256 records, 64
	// KiB as encoded); what is beyond is refused.
	MaxRecords int
	MaxOctets  int
	// MaxQueries bounds our queries under way at one peer (64), MaxCollected the
	// records one of them may bring (16,384).
	MaxQueries   int
	MaxCollected int
	// MaxResult bounds the octets of one RESULT of ours (64 KiB); a longer list is
	// told in pages.
	MaxResult int
	// Burst and Rate bound what one peer may ask and announce: Burst at once (64)
	// and then Rate a second (16). Requests beyond get ERROR, ANNOUNCEs are
	// dropped.
	Burst int
	Rate  int

	// Logger gets refusals; nil discards them.
	Logger *slog.Logger
}

// Stats counts over all associations.
type Stats struct {
	Announced  uint64 // records taken from peers
	Stale      uint64 // records whose revision was not greater than the one held
	Refused    uint64 // records over a limit or refused by Accept
	Unknown    uint64 // announced records of unknown kinds, passed over
	Queries    uint64 // requests answered with a RESULT
	Errors     uint64 // requests answered with an ERROR
	Dropped    uint64 // frames dropped: malformed, not asked for, over the rate
	Unanswered uint64 // answers that were lost for lack of outbound room
}

type counters struct {
	announced, stale, refused, unknown, queries, errors, dropped, unanswered atomic.Uint64
}

// Discovery is an assoc.ChannelHandler for the Discovery channel. One serves all
// associations of an engine.
type Discovery struct {
	cfg   Config
	log   *slog.Logger
	corr  atomic.Uint64
	count counters
}

// New returns a Discovery.
func New(cfg Config) *Discovery {
	orDefault(&cfg.MaxRecords, DefaultMaxRecords)
	orDefault(&cfg.MaxOctets, DefaultMaxOctets)
	orDefault(&cfg.MaxQueries, DefaultMaxQueries)
	orDefault(&cfg.MaxCollected, DefaultMaxCollected)
	orDefault(&cfg.MaxResult, DefaultMaxResult)
	orDefault(&cfg.Burst, DefaultBurst)
	orDefault(&cfg.Rate, DefaultRate)
	d := &Discovery{cfg: cfg, log: cfg.Logger}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	var seed [8]byte
	_, _ = rand.Read(seed[:]) // never fails
	d.corr.Store(binary.BigEndian.Uint64(seed[:]))
	return d
}

func orDefault(v *int, def int) {
	if *v <= 0 {
		*v = def
	}
}

// Stats returns the counters.
func (d *Discovery) Stats() Stats {
	c := &d.count
	return Stats{
		Announced:  c.announced.Load(),
		Stale:      c.stale.Load(),
		Refused:    c.refused.Load(),
		Unknown:    c.unknown.Load(),
		Queries:    c.queries.Load(),
		Errors:     c.errors.Load(),
		Dropped:    c.dropped.Load(),
		Unanswered: c.unanswered.Load(),
	}
}

// Channel is the Discovery channel.
func (d *Discovery) Channel() wire.Channel { return wire.ChannelDiscovery }

// Attach implements assoc.ChannelHandler.
func (d *Discovery) Attach(a *assoc.Association) assoc.ChannelConn {
	return &conn{
		d: d, a: a,
		records: make(map[string]held),
		queries: make(map[string]*query),
		bucket:  bucket{left: d.cfg.Burst, at: a.Now()},
	}
}

func (d *Discovery) conn(a *assoc.Association) (*conn, error) {
	c, ok := a.ChannelConn(wire.ChannelDiscovery).(*conn)
	if !ok || c.d != d {
		return nil, ErrNoChannel
	}
	return c, nil
}

// Announce sends records to the peer of a. nil says that they are on their way;
// whether the peer took them only a Query tells. Any goroutine but a's loop.
// Errors are those of a record that can't be encoded, of a's Send, and
// ErrNoChannel.
func (d *Discovery) Announce(ctx context.Context, a *assoc.Association, records ...disco.Record) error {
	if _, err := d.conn(a); err != nil {
		return err
	}
	list, _, err := disco.AppendRecords(nil, records...)
	if err != nil {
		return err
	}
	m := disco.Message{Type: disco.TypeAnnounce, Records: list}
	payload, err := m.Append(nil)
	if err != nil {
		return err
	}
	return a.Send(ctx, wire.ChannelDiscovery, disco.TypeAnnounce, payload)
}

// Query asks the peer of a for its records and returns all that pass the filter,
// as copies. The filter's cursor is not used. Any goroutine but a's loop.
// Errors: a *disco.PeerError if the peer refused, ctx's, a's when it ended or has
// no room, and those of this package.
func (d *Discovery) Query(ctx context.Context, a *assoc.Association, f disco.Filter) ([]disco.Record, error) {
	c, err := d.conn(a)
	if err != nil {
		return nil, err
	}
	f.NamePrefix = bytes.Clone(f.NamePrefix)
	f.Cursor = nil
	q := &query{
		corr:   binary.BigEndian.AppendUint64(nil, d.corr.Add(1)),
		filter: f,
		seen:   make(map[string]bool),
		done:   make(chan error, 1),
	}
	if !a.Do(func() { c.begin(q) }) {
		return nil, closedErr(a)
	}
	select {
	case err := <-q.done:
		if err != nil {
			return nil, err
		}
		return q.records, nil
	case <-ctx.Done():
		a.Do(func() { c.end(q, ctx.Err()) })
		return nil, ctx.Err()
	}
}

// closedErr is the reason of a's end, or ErrClosed while it is being told.
func closedErr(a *assoc.Association) error {
	if err := a.Err(); err != nil {
		return err
	}
	return assoc.ErrClosed
}

// Records returns copies of what the peer of a has announced, in the order of
// their ids. Any goroutine; none after the association ended.
func (d *Discovery) Records(a *assoc.Association) []disco.Record {
	c, err := d.conn(a)
	if err != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	records := make([]disco.Record, 0, len(c.records))
	for _, h := range c.records {
		records = append(records, h.record)
	}
	sortRecords(records)
	return records
}

func sortRecords(records []disco.Record) {
	slices.SortFunc(records, func(a, b disco.Record) int { return bytes.Compare(a.ID, b.ID) })
}

// held is a record that was announced, in memory of its own that is never
// changed.
type held struct {
	record disco.Record
	octets int
}

// query is one of our queries. It belongs to the loop until done is sent to.
type query struct {
	corr    []byte
	filter  disco.Filter
	records []disco.Record
	seen    map[string]bool // ids in records: pages may overlap
	done    chan error      // one error, nil for success
	ended   bool
}

// conn is the channel of one association. All but the guarded fields belong to
// the loop.
type conn struct {
	d       *Discovery
	a       *assoc.Association
	queries map[string]*query
	bucket  bucket

	mu      sync.Mutex // guards what follows for readers on other goroutines
	records map[string]held
	octets  int
}

// HandleFrame implements assoc.ChannelConn.
func (c *conn) HandleFrame(t wire.FrameType, payload []byte) {
	if t > disco.TypeUnsubscribe || !disco.IsMessage(payload) {
		c.d.count.dropped.Add(1) // D25: the others are the Bridge's
		return
	}
	var m disco.Message
	if err := disco.Parse(&m, t, payload); err != nil {
		c.refuse(&m, err, "")
		return
	}
	switch t {
	case disco.TypeQuery:
		if !c.bucket.take(c.a.Now(), c.d.cfg.Burst, c.d.cfg.Rate) {
			c.refuse(&m, disco.ErrNotAdvertised, "asked too often")
			return
		}
		c.answer(&m)
	case disco.TypeSubscribe:
		c.refuse(&m, disco.ErrSubscriptionRefused, "")
	case disco.TypeAnnounce:
		if !c.bucket.take(c.a.Now(), c.d.cfg.Burst, c.d.cfg.Rate) {
			c.d.count.dropped.Add(1)
			return
		}
		c.take(&m)
	case disco.TypeResult, disco.TypeError:
		q := c.queries[string(m.Corr)]
		if q == nil {
			c.d.count.dropped.Add(1)
			return
		}
		if t == disco.TypeError {
			c.end(q, &disco.PeerError{Code: m.Code, Reason: string(m.Reason)})
			return
		}
		c.collect(q, &m)
	default: // an UPDATE nobody subscribed to; an UNSUBSCRIBE of nothing
		c.d.count.dropped.Add(1)
	}
}

// HandleHello implements assoc.ChannelConn.
func (c *conn) HandleHello(*control.Hello) {}

// HandleRoom implements assoc.ChannelConn.
func (c *conn) HandleRoom() {}

// HandleDrain implements assoc.ChannelConn. A query is answered during a drain
// too: it is over at once.
func (c *conn) HandleDrain() {}

// Busy implements assoc.ChannelConn: nobody waits for Discovery.
func (c *conn) Busy() int { return 0 }

// HandleClose implements assoc.ChannelConn.
func (c *conn) HandleClose(err error) {
	for _, q := range c.queries {
		c.end(q, err)
	}
	c.mu.Lock()
	c.records, c.octets = nil, 0
	c.mu.Unlock()
	if c.d.cfg.Gone != nil {
		c.d.cfg.Gone(c.a)
	}
}

// send sends m and says whether it is on its way.
func (c *conn) send(m *disco.Message) error {
	payload, err := m.Append(nil)
	if err != nil {
		return err
	}
	out, err := c.a.Begin(wire.ChannelDiscovery, m.Type, len(payload))
	if err != nil {
		return err
	}
	return c.a.End(append(out, payload...))
}

// reply sends an answer to a request of the peer; without room the request stays
// unanswered, which ends in the peer's own time limit.
func (c *conn) reply(m *disco.Message, sent *atomic.Uint64) {
	if err := c.send(m); err != nil {
		c.d.count.unanswered.Add(1)
		return
	}
	sent.Add(1)
}

// refuse answers what asks for an answer with an ERROR and drops the rest.
func (c *conn) refuse(m *disco.Message, err error, reason string) {
	code, ok := disco.CodeOf(err)
	if !ok || len(m.Corr) == 0 || !disco.IsRequest(m.Type) {
		c.d.count.dropped.Add(1)
		return
	}
	e := disco.Message{Type: disco.TypeError, Corr: m.Corr, Code: code}
	if reason != "" {
		e.Reason = []byte(reason)
	}
	c.reply(&e, &c.d.count.errors)
}

// resultOverhead is what a RESULT has besides its records, in octets, at most:
// map and keys, kind, correlation id, list head, flag and cursor.
const resultOverhead = 32 + disco.MaxCorrLen + disco.MaxRecordIDLen

// answer answers a QUERY with one page. The pages follow the order of the record
// ids and the cursor is the last id told, so that it never gets stale.
func (c *conn) answer(m *disco.Message) {
	f := &m.Filter
	if len(f.Cursor) > disco.MaxRecordIDLen {
		c.refuse(m, disco.ErrStaleCursor, "")
		return
	}
	var records []disco.Record
	if c.d.cfg.Advertise != nil {
		records = c.d.cfg.Advertise(c.a, f)
	}
	records = slices.DeleteFunc(slices.Clone(records), func(r disco.Record) bool {
		return !f.Match(&r) || (f.Cursor != nil && bytes.Compare(r.ID, f.Cursor) <= 0)
	})
	sortRecords(records)

	limit := min(c.d.cfg.MaxResult, c.a.MaxSend()) - resultOverhead
	var page []byte
	n, size := 0, 0
	for n < len(records) {
		_, one, err := disco.AppendRecords(page[:0], records[n])
		if err != nil {
			c.d.log.Error("a record can't be advertised", slog.Any("error", err))
			c.refuse(m, disco.ErrNotAdvertised, "a record can't be told")
			return
		}
		page = one
		if size += len(one); size > limit && n > 0 {
			break
		}
		n++
	}
	list, _, err := disco.AppendRecords(page[:0], records[:n]...)
	if err != nil {
		c.refuse(m, disco.ErrNotAdvertised, "a record can't be told")
		return
	}
	r := disco.Message{Type: disco.TypeResult, Corr: m.Corr, Records: list, Complete: n == len(records)}
	if !r.Complete {
		r.Cursor = records[n-1].ID
	}
	c.reply(&r, &c.d.count.queries)
}

// take holds what an ANNOUNCE brought.
func (c *conn) take(m *disco.Message) {
	c.d.count.unknown.Add(uint64(m.UnknownKinds))
	for r := range m.Records.All() {
		c.takeRecord(r)
	}
}

func (c *conn) takeRecord(r *disco.Record) {
	prev, had := c.records[string(r.ID)]
	if had && r.Revision <= prev.record.Revision {
		c.d.count.stale.Add(1)
		return
	}
	kept, octets, err := keep(r)
	if err != nil {
		c.d.count.refused.Add(1)
		return
	}
	if !had && len(c.records) >= c.d.cfg.MaxRecords || c.octets-prev.octets+octets > c.d.cfg.MaxOctets {
		c.d.count.refused.Add(1)
		c.d.log.Warn("a peer announced more than is held of one", slog.String("peer", c.a.PeerKey().String()))
		return
	}
	if c.d.cfg.Accept != nil {
		var old *disco.Record
		if had {
			old = &prev.record
		}
		if err := c.d.cfg.Accept(c.a, &kept, old); err != nil {
			c.d.count.refused.Add(1)
			c.d.log.Warn("a record was refused", slog.String("peer", c.a.PeerKey().String()), slog.Any("error", err))
			return
		}
	}
	c.d.count.announced.Add(1)
	c.mu.Lock()
	c.records[string(kept.ID)] = held{kept, octets}
	c.octets += octets - prev.octets
	c.mu.Unlock()
}

// keep copies a record into memory of its own.
func keep(r *disco.Record) (disco.Record, int, error) {
	list, raw, err := disco.AppendRecords(nil, *r)
	if err != nil {
		return disco.Record{}, 0, err
	}
	for own := range list.All() {
		return *own, len(raw), nil
	}
	return disco.Record{}, 0, disco.ErrUnknownRecordKind
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
	if err := c.send(&disco.Message{Type: disco.TypeQuery, Corr: q.corr, Filter: q.filter}); err != nil {
		c.end(q, err)
	}
}

// collect takes a page of an answer. If it is not the last, the next is asked
// for under the same correlation id: the peer may also send it unasked (DISC
// 6.2), and records that come twice count once.
func (c *conn) collect(q *query, m *disco.Message) {
	if m.UnknownKinds > 0 && !q.filter.Tolerant {
		c.end(q, disco.ErrUnknownRecordKind)
		return
	}
	before := len(q.records)
	for r := range m.Records.All() {
		if q.seen[string(r.ID)] {
			continue
		}
		if len(q.records) >= c.d.cfg.MaxCollected {
			c.end(q, ErrTooMany)
			return
		}
		kept, _, err := keep(r)
		if err != nil {
			c.end(q, err)
			return
		}
		q.seen[string(kept.ID)] = true
		q.records = append(q.records, kept)
	}
	switch {
	case m.Complete:
		c.end(q, nil)
	case len(q.records) == before && m.UnknownKinds == 0:
		c.end(q, ErrNoProgress)
	default:
		q.filter.Cursor = append(q.filter.Cursor[:0], m.Cursor...)
		c.ask(q)
	}
}

// end ends a query of ours, once.
func (c *conn) end(q *query, err error) {
	if q.ended {
		return
	}
	q.ended = true
	delete(c.queries, string(q.corr))
	q.done <- err
}

// bucket bounds how often something may happen: a burst, refilled at a rate.
type bucket struct {
	left int
	at   time.Duration
}

func (b *bucket) take(now time.Duration, burst, rate int) bool {
	step := time.Second / time.Duration(rate)
	if n := (now - b.at) / step; n >= time.Duration(burst) {
		b.left, b.at = burst, now
	} else if n > 0 {
		b.left = min(burst, b.left+int(n))
		b.at += n * step
	}
	if b.left == 0 {
		return false
	}
	b.left--
	return true
}
