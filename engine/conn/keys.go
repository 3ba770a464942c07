package conn

import (
	"errors"
	"math"
	"time"

	"github.com/trestle-npamp/trestle/crypto/record"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// How often keys may change (D1), each a burst and then one an interval.
//
// Ours are few enough that the peer's bound is never met, not even by what a
// transport held back for ten seconds, the longest that one may stall (D28), and
// then delivers at once: 64 + 16*10 < 256 and 4 + 10/2 < 16.
const (
	// PeerUpdateBurst and PeerUpdateEvery bound KEY_UPDATE and MASTER_RATCHET
	// from a peer, over all channels; beyond them the association ends.
	PeerUpdateBurst = 256
	PeerUpdateEvery = time.Second / 32
	// PeerRekemBurst and PeerRekemEvery bound REKEM from a peer.
	PeerRekemBurst = 16
	PeerRekemEvery = time.Second
	// UpdateBurst and UpdateEvery bound our own KEY_UPDATE and MASTER_RATCHET.
	UpdateBurst = 64
	UpdateEvery = time.Second / 16
	// RekemBurst and RekemEvery bound our own REKEM.
	RekemBurst = 4
	RekemEvery = 2 * time.Second
)

// rateLimits are the buckets of both sides' key changes.
type rateLimits struct {
	peerUpdates, peerRekems bucket
	ourUpdates, ourRekems   bucket
}

// bucket counts what was taken since it was last full: one of every interval
// drains away. The zero value is a full bucket.
type bucket struct {
	taken int
	at    time.Duration // until when taken has been drained
}

// take takes one of burst, and reports false when there is none.
func (b *bucket) take(now time.Duration, burst int, every time.Duration) bool {
	if b.taken == 0 {
		b.at = now
	} else if n := int64((now - b.at) / every); n > 0 {
		b.at += time.Duration(n) * every
		b.taken -= int(min(n, int64(b.taken)))
	}
	if b.taken >= burst {
		return false
	}
	b.taken++
	return true
}

func (c *Conn) side(ch wire.Channel) *sendSide {
	s := &c.sealers[ch]
	if s.sealer == nil {
		s.sealer = record.NewSealer(c.cfg.Send, c.cfg.Profile, c.cfg.Suite, ch)
		s.since = c.now
	}
	return s
}

// renewKey sends KEY_UPDATE and moves to the next epoch when the current key of
// ch has reached one of its bounds (D1). The marker is the old epoch's last
// frame; it is sealed right before the frame that needed the new key, so an
// idle channel never rotates.
func (c *Conn) renewKey(ch wire.Channel) error {
	s := c.side(ch)
	b := &c.cfg.Bounds
	if uint64(s.sealer.Seq())+1 < b.Frames && s.sealer.Octets() < b.Octets && c.now-s.since < b.Age {
		return nil
	}
	return c.renewOldKey(ch, s)
}

func (c *Conn) renewOldKey(ch wire.Channel, s *sendSide) error {
	if s.sealer.Seq() == 0 {
		// The key is old but unused: nothing was sealed under it that more age
		// could endanger, and an update of it would be an update a frame when
		// the bound is tiny.
		s.since = c.now
		return nil
	}
	if !c.limits.ourUpdates.take(c.now, UpdateBurst, UpdateEvery) {
		b := &c.cfg.Profile.Bounds
		if uint64(s.sealer.Seq())+1 < b.Frames && s.sealer.Octets() < b.Octets && c.now-s.since < b.Age {
			// Bounds configured below the profile's ask for more updates than a peer
			// takes. The profile's are never exceeded.
			c.cfg.Counters.KeyChangesPutOff.Add(1)
			return nil
		}
	}
	return c.updateKey(ch)
}

// UpdateKey renews the sending key of ch now. It must be called in a batch, and
// not between Begin and End. Errors: ErrClosed, ErrChannel, ErrBegin, ErrNoCredit,
// and ErrRate when the peer would take it for a flood.
func (c *Conn) UpdateKey(ch wire.Channel) error {
	switch {
	case c.state != stateOpen:
		return ErrClosed
	case !c.Usable(ch):
		return ErrChannel
	case !c.inBatch || c.begin.open:
		return ErrBegin
	case !c.affords(ch, 0):
		return ErrNoCredit
	case !c.limits.ourUpdates.take(c.now, UpdateBurst, UpdateEvery):
		return ErrRate
	}
	return c.updateKey(ch)
}

func (c *Conn) updateKey(ch wire.Channel) error {
	s := c.side(ch)
	if s.sealer.Epoch() == math.MaxUint64 {
		c.sealFailed(record.ErrExhausted) // before a marker says what can't be done
		return record.ErrExhausted
	}
	var p [control.KeyUpdateLen]byte
	start := len(c.batch)
	c.batch = append(c.batch, zeroHeader[:]...)
	c.batch = append(c.batch, control.AppendKeyUpdate(p[:0], s.sealer.Epoch()+1)...)
	if err := c.sealAt(start, ch, wire.TypeKeyUpdate, 0); err != nil {
		return err
	}
	if err := s.sealer.Update(); err != nil {
		c.sealFailed(err)
		return err
	}
	s.since = c.now
	c.cfg.Counters.KeyUpdatesOut.Add(1)
	return nil
}

func (c *Conn) handleKeyUpdate(ch wire.Channel, pt []byte) {
	next, err := control.ParseKeyUpdate(pt)
	o := c.openers[ch]
	if err != nil || o.Epoch() == math.MaxUint64 || next != o.Epoch()+1 {
		c.fail(control.CodeProtocol, ErrKeyUpdate)
		return
	}
	if !c.limits.peerUpdates.take(c.now, PeerUpdateBurst, PeerUpdateEvery) {
		c.fail(control.CodeLimit, ErrUpdateRate)
		return
	}
	if err := o.Update(); err != nil {
		c.fail(control.CodeCrypto, err)
		return
	}
	c.cfg.Counters.KeyUpdatesIn.Add(1)
	c.reply(ch, wire.TypeKeyUpdateAck, pt)
}

// handleKeyUpdateAck: informational, it never closes and moves nothing.
func (c *Conn) handleKeyUpdateAck(ch wire.Channel, pt []byte) {
	e, err := control.ParseKeyUpdate(pt)
	if err != nil || c.sealers[ch].sealer == nil || e > c.sealers[ch].sealer.Epoch() {
		c.cfg.Counters.StaleAcks.Add(1)
	}
}

// sealFailed ends an association whose keys can't be used any more. Nothing can
// be said to the peer then.
func (c *Conn) sealFailed(err error) {
	c.closeSent = true
	c.end(&CloseError{Code: control.CodeCrypto, Cause: errors.Join(ErrClosed, err)})
}
