package discovery

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/sched"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
	"github.com/trestle-npamp/trestle/wire/disco"
)

// conn is the channel of one association. All but the guarded fields belong to
// the loop.
type conn struct {
	d         *Discovery
	a         *assoc.Association
	documents assoc.ChannelConn // of Bridge messages, nil for none
	bucket    bucket
	draining  bool
	refusals  refusals // records that were refused
	untold    refusals // records of ours that can't be told

	// What we asked, by correlation id.
	queries map[string]*query
	watches map[string]*Subscription

	// What the peer subscribed to, by correlation id.
	served map[string]*subscriber
	node   sched.Node  // posted by Changed
	pause  sched.Timer // no look for changes while it runs
	again  bool        // and one when it ends

	mu      sync.Mutex // guards what follows for readers on other goroutines
	records map[string]held
	octets  int
}

// held is a record in memory of its own that is never changed.
type held struct {
	record disco.Record
	octets int
}

// keep copies a record into memory of its own.
func keep(r *disco.Record) (held, error) {
	list, raw, err := disco.AppendRecords(nil, *r)
	if err != nil {
		return held{}, err
	}
	for own := range list.All() {
		return held{*own, len(raw)}, nil
	}
	return held{}, disco.ErrUnknownRecordKind
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
	return sorted(c.records)
}

func sorted(records map[string]held) []disco.Record {
	list := make([]disco.Record, 0, len(records))
	for _, h := range records {
		list = append(list, h.record)
	}
	sortRecords(list)
	return list
}

func sortRecords(records []disco.Record) {
	slices.SortStableFunc(records, func(a, b disco.Record) int { return bytes.Compare(a.ID, b.ID) })
}

// isBridge says that a plaintext begins with a BridgeEnvelope (D25).
func isBridge(plaintext []byte) bool {
	return len(plaintext) >= 2 && plaintext[0] == 0x00 && plaintext[1] == 0x10
}

// HandleFrame implements assoc.ChannelConn.
func (c *conn) HandleFrame(t wire.FrameType, payload []byte) {
	count := &c.d.count
	switch {
	case t > disco.TypeUnsubscribe:
		count.dropped.Add(1)
		return
	case c.documents != nil && isBridge(payload):
		count.documents.Add(1)
		c.documents.HandleFrame(t, payload)
		return
	case !disco.IsMessage(payload):
		count.dropped.Add(1)
		return
	}
	var m disco.Message
	if err := disco.Parse(&m, t, payload); err != nil {
		c.refuse(&m, err, "")
		c.fail(&m, err)
		return
	}
	switch t {
	case disco.TypeQuery, disco.TypeSubscribe:
		c.request(&m)
	case disco.TypeAnnounce:
		if !c.bucket.take(c.a.Now(), c.d.cfg.Burst, c.d.cfg.Rate) {
			count.dropped.Add(1)
			return
		}
		c.take(&m)
	case disco.TypeUnsubscribe:
		if !c.unsubscribed(m.Corr) { // DISC 7.3: it may name nothing
			count.dropped.Add(1)
		}
	default:
		if !c.answered(&m) {
			count.dropped.Add(1)
		}
	}
}

// answered takes a frame that follows from a request of ours; false says that
// there is none under its correlation id.
func (c *conn) answered(m *disco.Message) bool {
	if q := c.queries[string(m.Corr)]; q != nil && m.Type != disco.TypeUpdate {
		if m.Type == disco.TypeError {
			c.end(q, m.PeerError())
		} else {
			c.collect(q, m)
		}
		return true
	}
	if s := c.watches[string(m.Corr)]; s != nil {
		switch m.Type {
		case disco.TypeError:
			c.forget(s, m.PeerError())
		case disco.TypeResult:
			c.snapshot(s, m)
		default:
			c.apply(s, m)
		}
		return true
	}
	return false
}

// fail ends the request of ours that a malformed frame seems to follow from:
// nobody waits for what will not come, and no set misses a change unnoticed.
func (c *conn) fail(m *disco.Message, err error) {
	if disco.IsRequest(m.Type) || m.Type == disco.TypeUnsubscribe {
		return
	}
	if q := c.queries[string(m.Corr)]; q != nil {
		c.end(q, err)
	}
	if s := c.watches[string(m.Corr)]; s != nil {
		c.leave(s, err)
	}
}

// HandleHello implements assoc.ChannelConn.
func (c *conn) HandleHello(h *control.Hello) {
	if c.documents != nil {
		c.documents.HandleHello(h)
	}
}

// HandleRoom implements assoc.ChannelConn.
func (c *conn) HandleRoom() {
	if c.documents != nil {
		c.documents.HandleRoom()
	}
	if c.again {
		c.a.StopTimer(&c.pause)
		c.look()
	}
}

// Documents is the channel's handler of Bridge messages, nil for none: what
// Config.Documents made.
func (c *conn) Documents() assoc.ChannelConn { return c.documents }

// HandleDrain implements assoc.ChannelConn. A query is answered during a drain
// too, since it is over at once; a subscription would not be.
func (c *conn) HandleDrain() {
	c.draining = true
	if c.documents != nil {
		c.documents.HandleDrain()
	}
}

// Busy implements assoc.ChannelConn: nobody waits for Discovery itself.
func (c *conn) Busy() int {
	if c.documents != nil {
		return c.documents.Busy()
	}
	return 0
}

// HandleClose implements assoc.ChannelConn. All that was learned over the
// association is given up (DISC 8).
func (c *conn) HandleClose(err error) {
	for _, q := range c.queries {
		c.end(q, err)
	}
	for _, s := range c.watches {
		c.forget(s, err)
	}
	clear(c.served)
	c.stopTelling()
	c.mu.Lock()
	c.records, c.octets = nil, 0
	c.mu.Unlock()
	if c.documents != nil {
		c.documents.HandleClose(err)
	}
	if c.d.cfg.Gone != nil {
		c.d.cfg.Gone(c.a)
	}
}

// send sends m and says whether it is on its way. A reserved one finds room past
// the outbound limit.
func (c *conn) send(m *disco.Message, reserved bool) error {
	payload, err := m.Append(nil)
	if err != nil {
		return err
	}
	begin := c.a.Begin
	if reserved {
		begin = c.a.BeginReserved
	}
	out, err := begin(wire.ChannelDiscovery, m.Type, len(payload))
	if err != nil {
		return err
	}
	return c.a.End(append(out, payload...))
}

// reply sends an answer to a request of the peer; without room the request stays
// unanswered, which ends in the peer's own time limit.
func (c *conn) reply(m *disco.Message, sent *atomic.Uint64) {
	if err := c.send(m, false); err != nil {
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
	c.reply(errorTo(m.Corr, code, reason), &c.d.count.errors)
}

func errorTo(corr []byte, code disco.Code, reason string) *disco.Message {
	e := &disco.Message{Type: disco.TypeError, Corr: corr, Code: code}
	if reason != "" {
		e.Reason = []byte(reason)
	}
	return e
}

// take holds what an ANNOUNCE brought, until a limit is met: what the peer tells
// beyond it is not even looked at.
func (c *conn) take(m *disco.Message) {
	c.d.count.unknown.Add(uint64(m.UnknownKinds))
	var refused tally
	for r := range m.Records.All() {
		if refused.err == errFull {
			refused.n++
			continue
		}
		refused.add(c.takeRecord(r))
	}
	c.tellRefused(refused)
}

// errFull says that a peer announced more than is held of one.
var errFull = errors.New("discovery: more than is held of one peer")

// tally counts the records of one message that were refused. err is why: the first
// reason, but for a limit, which ends it.
type tally struct {
	n   uint64
	err error
}

func (t *tally) add(err error) {
	if err == nil {
		return
	}
	t.n++
	if t.err == nil || err == errFull {
		t.err = err
	}
}

// refusals bounds how often refused records, or others, are logged for one peer.
type refusals struct {
	n    uint64 // not logged yet
	next time.Duration
	any  bool
}

// refusalInterval is the least time between two of their log lines.
const refusalInterval = 10 * time.Second

// tellRefused counts the records of one message that were refused and logs at most
// one line about them, and none soon after another: a peer may go on for ever.
func (c *conn) tellRefused(t tally) {
	if t.n == 0 {
		return
	}
	c.d.count.refused.Add(t.n)
	l, now := &c.refusals, c.a.Now()
	l.n += t.n
	if l.any && now < l.next {
		return
	}
	c.d.log.Warn("records were refused", slog.String("peer", c.a.PeerKey().String()), slog.String("handle", c.a.PeerKey().Handle()), slog.Uint64("count", l.n), slog.Any("error", t.err))
	*l = refusals{next: now + refusalInterval, any: true}
}

// takeRecord holds one record; the error says why it is refused.
func (c *conn) takeRecord(r *disco.Record) error {
	prev, had := c.records[string(r.ID)]
	if had && r.Revision <= prev.record.Revision {
		c.d.count.stale.Add(1)
		return nil
	}
	own, err := keep(r)
	if err != nil {
		return err
	}
	if !had && len(c.records) >= c.d.cfg.MaxRecords || c.octets-prev.octets+own.octets > c.d.cfg.MaxOctets {
		return errFull
	}
	if c.d.cfg.Accept != nil {
		var old *disco.Record
		if had {
			old = &prev.record
		}
		if err := c.d.cfg.Accept(c.a, &own.record, old); err != nil {
			return err
		}
	}
	c.d.count.announced.Add(1)
	c.mu.Lock()
	c.records[string(own.record.ID)] = own
	c.octets += own.octets - prev.octets
	c.mu.Unlock()
	return nil
}

// renew replaces a record that is held by a newer one that a RESULT or UPDATE
// brought (DISC 8).
func (c *conn) renew(r *disco.Record) error {
	if prev, had := c.records[string(r.ID)]; had && r.Revision > prev.record.Revision {
		return c.takeRecord(r)
	}
	return nil
}

// withdraw gives up a held record that its peer withdrew.
func (c *conn) withdraw(id []byte) {
	prev, had := c.records[string(id)]
	if !had {
		return
	}
	c.mu.Lock()
	delete(c.records, string(id))
	c.octets -= prev.octets
	c.mu.Unlock()
	c.d.count.withdrawn.Add(1)
	if c.d.cfg.Withdrawn != nil {
		c.d.cfg.Withdrawn(c.a, &prev.record)
	}
}

// bucket bounds how often something may happen: a burst, refilled at a rate.
type bucket struct {
	left int
	at   time.Duration
}

func (b *bucket) take(now time.Duration, burst, rate int) bool {
	step := max(1, time.Second/time.Duration(rate))
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
