// Package discovery serves the Discovery channel (NPAMP-DISC) of an engine's
// associations: it announces records to a peer, asks a peer for its own and
// follows how they change, answers what peers ask and tells them of changes, and
// holds what each peer announced for as long as the association lasts.
//
//	Query      -> QUERY ------------------> Config.Advertise, a page at a time
//	           <- RESULT, RESULT, ... <----'
//	Subscribe  -> SUBSCRIBE --------------> Config.Advertise
//	           <- RESULT (the snapshot) <---'
//	Next       <- UPDATE, UPDATE, ... <---- Changed
//	Close      -> UNSUBSCRIBE ------------> no more of them
//	Announce   -> ANNOUNCE ---------------> Config.Accept, Records
//
// A record is a claim of the peer that sent it, never a permission. Whether a
// claim is taken is asked of Config.Accept, which is where the ownership of
// agent names is settled (D22).
//
// Bridge messages on this channel (documents) are another handler's, and are
// dropped and counted where there is none (D25).
package discovery

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/defaults"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/disco"
)

// Defaults of Config.
const (
	DefaultMaxRecords         = 256
	DefaultMaxOctets          = 64 << 10
	DefaultMaxQueries         = 64
	DefaultMaxSubscriptions   = 16
	DefaultMaxResult          = 64 << 10
	DefaultMaxCollected       = 16384
	DefaultMaxCollectedOctets = 16 << 20
	DefaultBurst              = 64
	DefaultRate               = 16
	DefaultUpdateInterval     = 100 * time.Millisecond
)

// Errors.
var (
	// ErrNoChannel is returned for an association that this Discovery doesn't
	// serve.
	ErrNoChannel = errors.New("discovery: channel is not served on this association")
	// ErrBusy is returned when too many queries or subscriptions are under way.
	ErrBusy = errors.New("discovery: too many requests under way")
	// ErrTooMany says that the peer has more records than are collected.
	ErrTooMany = errors.New("discovery: the peer has more records than are collected")
	// ErrNoProgress is returned by Query when the peer's answer goes on without
	// bringing records.
	ErrNoProgress = errors.New("discovery: the answer does not end")
	// ErrCursor says that the peer's answer goes on at a cursor of more than
	// MaxCursorLen octets.
	ErrCursor = errors.New("discovery: the answer's cursor is too long")
	// ErrUnsubscribed is returned by a Subscription that was closed.
	ErrUnsubscribed = errors.New("discovery: subscription closed")
)

// MaxCursorLen is how long a peer's cursor may be, in octets. Ours have 41 at
// most.
const MaxCursorLen = 1 << 10

// Config configures a Discovery. Every zero value stands for the default named
// beside it, a nil function for none.
type Config struct {
	// Advertise returns what is told to the peer of a when it asks; records that
	// don't pass the filter are left out afterwards. It is called on a's loop, for
	// a subscription again after each Changed. Of two records with one id only the
	// first is told.
	Advertise func(a *assoc.Association, f *disco.Filter) []disco.Record
	// Admit decides on a's loop whether a QUERY or SUBSCRIBE is served at all. Its
	// error is answered with the code that disco.CodeOf finds for it, else with
	// NotAdvertised for a QUERY and SubscriptionRefused for a SUBSCRIBE; the peer
	// is not told its text. m is borrowed.
	Admit func(a *assoc.Association, m *disco.Message) error
	// Accept is asked on a's loop before a record that its peer announced is
	// held; an error refuses the record, which is counted and nothing else, since
	// an ANNOUNCE is never answered. prev is the record of the same id that it
	// would replace, nil for none. Both are borrowed.
	Accept func(a *assoc.Association, r, prev *disco.Record) error
	// Withdrawn is told on a's loop that the peer withdrew a record which is held,
	// and is not any more. Only a peer that we subscribed to can do so.
	Withdrawn func(a *assoc.Association, r *disco.Record)
	// Gone is told on a's loop that the association ended, and with it all its
	// records.
	Gone func(a *assoc.Association)
	// Documents makes what serves the Bridge messages on this channel of a (D25).
	// It is called like assoc.ChannelHandler.Attach, and what it returns gets the
	// frames whose plaintext starts as a Bridge message does, and all else that a
	// ChannelConn is told. nil drops and counts them.
	Documents func(a *assoc.Association) assoc.ChannelConn

	// MaxRecords and MaxOctets bound what is held of one peer (256 records, 64
	// KiB as encoded); the first record beyond is refused, and with it the rest of
	// its ANNOUNCE.
	MaxRecords int
	MaxOctets  int
	// MaxQueries bounds our queries under way at one peer (64), MaxSubscriptions
	// our subscriptions there (16).
	MaxQueries       int
	MaxSubscriptions int
	// MaxCollected bounds the records that a query of ours brings or a subscription
	// covers, ours or a peer's (16,384), and MaxCollectedOctets those that ours bring
	// (16 MiB as encoded).
	MaxCollected       int
	MaxCollectedOctets int
	// MaxSubscribers bounds the subscriptions of one peer with us; further ones
	// are refused. 0 refuses all, which every peer must be ready for (DISC 7.2).
	MaxSubscribers int
	// UpdateInterval is the least time between two looks for changes on one
	// association (100 ms); a first change is told at once.
	UpdateInterval time.Duration
	// MaxResult bounds the octets of one RESULT, ANNOUNCE or UPDATE of ours (64
	// KiB), but for one that has a single record; a longer list is told in several.
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
	Announced   uint64 // records taken from peers
	Stale       uint64 // records whose revision was not greater than the one held
	Refused     uint64 // records over a limit or refused by Accept
	Withdrawn   uint64 // held records that their peer withdrew
	Unknown     uint64 // records of unknown kinds, passed over
	Queries     uint64 // QUERYs answered with a RESULT
	Errors      uint64 // ERRORs sent
	Subscribers uint64 // SUBSCRIBEs accepted
	Updates     uint64 // UPDATEs sent
	Documents   uint64 // Bridge messages handed to Config.Documents
	Dropped     uint64 // frames dropped: malformed, not asked for, over the rate
	Unanswered  uint64 // answers that were lost for lack of outbound room
}

type counters struct {
	announced, stale, refused, withdrawn, unknown, queries, errors, subscribers, updates, documents, dropped, unanswered atomic.Uint64
}

// Discovery is an assoc.ChannelHandler for the Discovery channel. One serves all
// associations of an engine.
type Discovery struct {
	cfg   Config
	log   *slog.Logger
	corr  atomic.Uint64
	seed  maphash.Seed
	count counters

	mu      sync.Mutex
	telling map[*conn]struct{} // those with subscribers
}

// New returns a Discovery.
func New(cfg Config) *Discovery {
	defaults.Fill(&cfg.MaxRecords, DefaultMaxRecords)
	defaults.Fill(&cfg.MaxOctets, DefaultMaxOctets)
	defaults.Fill(&cfg.MaxQueries, DefaultMaxQueries)
	defaults.Fill(&cfg.MaxSubscriptions, DefaultMaxSubscriptions)
	defaults.Fill(&cfg.MaxCollected, DefaultMaxCollected)
	defaults.Fill(&cfg.MaxCollectedOctets, DefaultMaxCollectedOctets)
	defaults.Fill(&cfg.UpdateInterval, DefaultUpdateInterval)
	defaults.Fill(&cfg.MaxResult, DefaultMaxResult)
	defaults.Fill(&cfg.Burst, DefaultBurst)
	defaults.Fill(&cfg.Rate, DefaultRate)
	d := &Discovery{cfg: cfg, log: cfg.Logger, seed: maphash.MakeSeed(), telling: make(map[*conn]struct{})}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	var start [8]byte
	_, _ = rand.Read(start[:]) // never fails
	d.corr.Store(binary.BigEndian.Uint64(start[:]))
	return d
}

// newCorr is a correlation id that none of our requests has had before it.
func (d *Discovery) newCorr() []byte { return binary.BigEndian.AppendUint64(nil, d.corr.Add(1)) }

// Stats returns the counters.
func (d *Discovery) Stats() Stats {
	c := &d.count
	return Stats{
		Announced:   c.announced.Load(),
		Stale:       c.stale.Load(),
		Refused:     c.refused.Load(),
		Withdrawn:   c.withdrawn.Load(),
		Unknown:     c.unknown.Load(),
		Queries:     c.queries.Load(),
		Errors:      c.errors.Load(),
		Subscribers: c.subscribers.Load(),
		Updates:     c.updates.Load(),
		Documents:   c.documents.Load(),
		Dropped:     c.dropped.Load(),
		Unanswered:  c.unanswered.Load(),
	}
}

// Channel is the Discovery channel.
func (d *Discovery) Channel() wire.Channel { return wire.ChannelDiscovery }

// Attach implements assoc.ChannelHandler.
func (d *Discovery) Attach(a *assoc.Association) assoc.ChannelConn {
	c := &conn{
		d: d, a: a,
		records: make(map[string]held),
		queries: make(map[string]*query),
		watches: make(map[string]*Subscription),
		served:  make(map[string]*subscriber),
		bucket:  bucket{left: d.cfg.Burst, at: a.Now()},
	}
	c.node.Owner, c.pause.Owner = (*look)(c), (*look)(c)
	if d.cfg.Documents != nil {
		c.documents = d.cfg.Documents(a)
	}
	return c
}

func (d *Discovery) conn(a *assoc.Association) (*conn, error) {
	c, ok := a.ChannelConn(wire.ChannelDiscovery).(*conn)
	if !ok || c.d != d {
		return nil, ErrNoChannel
	}
	return c, nil
}

// Announce sends records to the peer of a, in as many frames as they need. nil
// says that they are on their way; whether the peer took them only a Query tells.
// Any goroutine but a's loop. Errors are those of a record that can't be encoded,
// before anything is sent, of a's Send, and ErrNoChannel.
func (d *Discovery) Announce(ctx context.Context, a *assoc.Association, records ...disco.Record) error {
	c, err := d.conn(a)
	if err != nil {
		return err
	}
	for i := range records {
		if _, err := c.sizeOf(&records[i], nil); err != nil {
			return err
		}
	}
	for len(records) > 0 {
		n := c.fit(records)
		list, _, err := disco.AppendRecords(nil, records[:n]...)
		if err != nil {
			return err
		}
		m := disco.Message{Type: disco.TypeAnnounce, Records: list}
		payload, err := m.Append(nil)
		if err != nil {
			return err
		}
		if err := a.Send(ctx, wire.ChannelDiscovery, disco.TypeAnnounce, payload); err != nil {
			return err
		}
		records = records[n:]
	}
	return nil
}

// Changed says that what Advertise returns may have become other: peers that
// subscribed are told of what really did, soon. Any goroutine.
func (d *Discovery) Changed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.telling {
		c.a.PostOnce(&c.node)
	}
}
