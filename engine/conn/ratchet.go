package conn

import (
	"errors"
	"io"
	"math"
	"time"

	"github.com/trestle-npamp/trestle/crypto/kem"
	"github.com/trestle-npamp/trestle/crypto/schedule"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// The master ratchet replaces the roots that all channel keys of a direction
// descend from, each direction's for itself.
//
//	tier 1   we            MASTER_RATCHET{g+1} ------>       our sending root
//	                       <------ MASTER_RATCHET_ACK        moves on
//	tier 2   we            REKEM{share, g+1} ------->        our receiving root
//	                       <------ REKEM_ACK{ct, g+1}        moves on
//
// MASTER_RATCHET and REKEM_ACK are the last frames under the old root in the
// direction they travel, over all channels. Frames get their keys when they are
// sealed and not when they are queued, so that is what stands after them in the
// batch; it is also why no step is taken while Begin has a frame open there.
//
// Source: the handshake binding of draft-bubblefish-npamp-02, section 9.

// RatchetFactor and RekemFactor relate the default bounds of roots to the
// profile's bounds of keys: at Standard four hours for tier 1, a day for tier 2.
const (
	RatchetFactor = 4
	RekemFactor   = 24
)

func (c *Config) fillRatchet() {
	b := c.Profile.Bounds
	if c.Ratchet.Frames == 0 {
		c.Ratchet.Frames = RatchetFactor * b.Frames
	}
	if c.Ratchet.Octets == 0 {
		c.Ratchet.Octets = RatchetFactor * b.Octets
	}
	if c.Ratchet.Age == 0 {
		c.Ratchet.Age = RatchetFactor * b.Age
	}
	if c.Rekem == 0 {
		c.Rekem = RekemFactor * b.Age
	}
	if c.NoRatchet {
		c.Ratchet.Age, c.Rekem = -1, -1
	}
	if c.Rand == nil || kem.ByID(c.KEM) == nil {
		c.Rekem = -1
	}
}

// exchange is nil without what a tier-2 step needs.
func (c *Config) exchange() exchange {
	if s := kem.ByID(c.KEM); s != nil && c.Rand != nil {
		return hybrid{s}
	}
	return nil
}

// generation is what bounds the life of the sending root.
type generation struct {
	since  time.Duration
	octets uint64 // Conn.total when it began
	frames uint64 // sealed under it
}

// exchange is the association's KEM, a hybrid outside of tests.
type exchange interface {
	ShareLen() int
	CiphertextLen() int
	Generate(io.Reader) (ephemeral, error)
	Encapsulate(rand io.Reader, share []byte) (ciphertext []byte, secret *kem.Secret, err error)
}

// ephemeral is the key of a REKEM, a *kem.KeyPair outside of tests.
type ephemeral interface {
	Share() []byte
	Decapsulate(ciphertext []byte) (*kem.Secret, error)
	Wipe()
}

type hybrid struct{ *kem.Scheme }

func (h hybrid) Generate(rand io.Reader) (ephemeral, error) {
	key, err := h.Scheme.Generate(rand)
	if err != nil {
		return nil, err
	}
	return key, nil
}

// rekem is our side of a tier-2 step. The zero value: none is under way.
type rekem struct {
	key     ephemeral // nil: none
	request []byte    // REKEM's payload, for the transcript
	target  uint64    // generation
	until   time.Duration
	due     time.Duration // when the next one is; 0: never unasked
	outcome error         // of the last one
}

func (r *rekem) pending() bool { return r.key != nil }

// startKeys begins the time of both roots.
func (c *Conn) startKeys() {
	c.kem = c.cfg.exchange()
	c.generation.since = c.now
	c.scheduleRekem(c.cfg.Rekem)
}

// scheduleRekem lets the next tier-2 step fall due after d, less up to a tenth:
// associations that began together need not compute together for ever.
func (c *Conn) scheduleRekem(d time.Duration) {
	if c.cfg.Rekem > 0 {
		c.rekem.due = c.now + d - c.jitter(d/10)
	}
}

// renewRoots takes the steps that are due. It ends a batch, so that a bound is
// met to within a batch, and so that the step costs nothing on any frame's way.
func (c *Conn) renewRoots() {
	if c.congested || c.state != stateOpen || !c.inBatch || c.begin.open {
		return
	}
	// An idle direction does not ratchet: only what was sealed in this batch, or
	// received since the step was due, makes it come.
	if c.sealed > 0 && c.ratchetDue() {
		if c.limits.ourUpdates.take(c.now, UpdateBurst, UpdateEvery) {
			_ = c.ratchet()
		} else {
			c.cfg.Counters.KeyChangesPutOff.Add(1)
		}
	}
	if due := c.rekem.due; due != 0 && c.lastRecv >= due && !c.rekem.pending() && c.state == stateOpen {
		if c.limits.ourRekems.take(c.now, RekemBurst, RekemEvery) {
			_ = c.startRekem()
		} else {
			c.cfg.Counters.KeyChangesPutOff.Add(1)
		}
	}
}

func (c *Conn) ratchetDue() bool {
	b, g := &c.cfg.Ratchet, &c.generation
	return b.Age > 0 && g.frames > 0 &&
		(g.frames >= b.Frames || c.total-g.octets >= b.Octets || c.now-g.since >= b.Age)
}

// Generations are how many steps the roots of the two directions have taken.
func (c *Conn) Generations() (send, recv uint64) {
	if c.cfg.Send == nil {
		return 0, 0
	}
	return c.cfg.Send.Generation(), c.cfg.Recv.Generation()
}

// mayStep tells what keeps a step from being taken now, if anything.
func (c *Conn) mayStep() error {
	switch {
	case c.state != stateOpen:
		return ErrClosed
	case c.cfg.NoRatchet:
		return ErrNoRatchet
	case !c.inBatch || c.begin.open:
		return ErrBegin
	}
	return nil
}

// Ratchet takes a tier-1 step of the sending direction now: whoever learns its
// root or keys later can't read what was sent before. It must be called in a
// batch, and not between Begin and End. Errors: ErrClosed, ErrNoRatchet, ErrBegin,
// and ErrRate when the peer would take it for a flood.
func (c *Conn) Ratchet() error {
	if err := c.mayStep(); err != nil {
		return err
	}
	if !c.limits.ourUpdates.take(c.now, UpdateBurst, UpdateEvery) {
		return ErrRate
	}
	return c.ratchet()
}

func (c *Conn) ratchet() error {
	gen := c.cfg.Send.Generation()
	if gen == math.MaxUint64 {
		c.sealFailed(schedule.ErrGeneration)
		return schedule.ErrGeneration
	}
	var p [control.RatchetLen]byte
	start := len(c.batch)
	c.batch = append(c.batch, zeroHeader[:]...)
	c.batch = append(c.batch, control.AppendRatchet(p[:0], gen+1)...)
	// No KEY_UPDATE before it, though the key of Control may be due for one: it is
	// the last frame under that key in any case.
	if err := c.sealAt(start, wire.ChannelControl, wire.TypeMasterRatchet, 0); err != nil {
		return err
	}
	if err := c.cfg.Send.Ratchet(); err != nil {
		c.sealFailed(err)
		return err
	}
	c.rerootSend()
	c.cfg.Counters.RatchetsOut.Add(1)
	return nil
}

// rerootSend restarts every channel of the sending direction under its new root;
// the old keys are erased.
func (c *Conn) rerootSend() {
	for i := range c.sealers {
		if s := &c.sealers[i]; s.sealer != nil {
			s.sealer.Reroot(c.cfg.Send)
			s.since = c.now
		}
	}
	c.generation = generation{since: c.now, octets: c.total}
}

func (c *Conn) rerootRecv() {
	for _, o := range c.openers {
		if o != nil {
			o.Reroot(c.cfg.Recv)
		}
	}
}

// handleMasterRatchet follows the peer's tier-1 step.
func (c *Conn) handleMasterRatchet(pt []byte) {
	gen, err := control.ParseRatchet(pt)
	if err != nil || c.cfg.NoRatchet || !isNext(gen, c.cfg.Recv) {
		// Nothing that follows could be opened, or the peer believes in another
		// generation: fail closed.
		c.fail(control.CodeProtocol, ErrRatchet)
		return
	}
	if !c.limits.peerUpdates.take(c.now, PeerUpdateBurst, PeerUpdateEvery) {
		c.fail(control.CodeLimit, ErrUpdateRate)
		return
	}
	if err := c.cfg.Recv.Ratchet(); err != nil {
		c.fail(control.CodeCrypto, err)
		return
	}
	c.rerootRecv()
	c.cfg.Counters.RatchetsIn.Add(1)
	// A REKEM of ours named the generation that this step took; the peer passes
	// over it.
	c.dropRekem(ErrRekemCrossed)
	c.reply(wire.ChannelControl, wire.TypeMasterRatchetAck, pt)
}

func isNext(gen uint64, r *schedule.Root) bool {
	return r.Generation() != math.MaxUint64 && gen == r.Generation()+1
}

// handleMasterRatchetAck: informational, it never closes and moves nothing.
func (c *Conn) handleMasterRatchetAck(pt []byte) {
	gen, err := control.ParseRatchet(pt)
	if err != nil || gen > c.cfg.Send.Generation() {
		c.cfg.Counters.StaleAcks.Add(1)
	}
}

// Rekem starts a tier-2 step of the receiving direction: once the peer has
// answered, whoever knew its root or keys before can't read what comes. Rekeming
// tells while it is under way and RekemOutcome how it ended. It must be called in
// a batch, and not between Begin and End. Errors: ErrClosed, ErrNoRatchet,
// ErrBegin, ErrRekemPending, ErrRate when the peer would take it for a flood, and
// Rand's.
func (c *Conn) Rekem() error {
	if err := c.mayStep(); err != nil {
		return err
	}
	switch {
	case c.kem == nil:
		return ErrNoRatchet
	case c.rekem.pending():
		return ErrRekemPending
	case !c.limits.ourRekems.take(c.now, RekemBurst, RekemEvery):
		return ErrRate
	}
	return c.startRekem()
}

// Rekeming tells whether a tier-2 step of ours waits for the peer's answer.
func (c *Conn) Rekeming() bool { return c.rekem.pending() }

// RekemOutcome tells how the last tier-2 step that we started ended: nil if it
// was taken, otherwise ErrRekemCrossed, ErrRekemTimeout or ErrClosed.
func (c *Conn) RekemOutcome() error { return c.rekem.outcome }

func (c *Conn) startRekem() error {
	gen := c.cfg.Recv.Generation()
	if gen == math.MaxUint64 {
		return schedule.ErrGeneration
	}
	key, err := c.kem.Generate(c.cfg.Rand)
	if err != nil {
		return err
	}
	r := &c.rekem
	r.key, r.target, r.until = key, gen+1, c.now+c.cfg.RekemWait
	r.request = control.AppendRekem(r.request[:0], key.Share(), r.target)
	// Past the queue: what waits there may wait longer than the peer's answer is
	// waited for.
	c.sealNow(wire.ChannelControl, wire.TypeRekem, r.request)
	return nil
}

// dropRekem erases what a tier-2 step of ours waits with.
func (c *Conn) dropRekem(outcome error) {
	r := &c.rekem
	if !r.pending() {
		return
	}
	r.key.Wipe()
	r.key, r.request, r.until = nil, nil, 0
	r.outcome = outcome
	if outcome != nil {
		c.cfg.Counters.RekemsDropped.Add(1)
	}
}

// abandonRekem gives up waiting. A peer that does not answer is not asked again
// at once.
func (c *Conn) abandonRekem() {
	c.dropRekem(ErrRekemTimeout)
	c.scheduleRekem(c.cfg.Rekem / 8)
}

// handleRekem answers the peer's tier-2 step. REKEM_ACK is the last frame under
// our old root.
func (c *Conn) handleRekem(pt []byte) {
	if c.cfg.NoRatchet {
		c.fail(control.CodeProtocol, ErrRatchet)
		return
	}
	if c.kem == nil {
		c.cfg.Counters.StaleRekems.Add(1) // the peer gives it up in time
		return
	}
	share, target, err := control.ParseRekem(pt, c.kem.ShareLen())
	if err != nil {
		c.fail(control.CodeProtocol, ErrRatchet)
		return
	}
	if !c.limits.peerRekems.take(c.now, PeerRekemBurst, PeerRekemEvery) {
		c.fail(control.CodeLimit, ErrUpdateRate)
		return
	}
	gen := c.cfg.Send.Generation()
	switch {
	case target <= gen || c.state != stateOpen || !c.inBatch:
		// It crossed a step of ours, or there is nothing left to protect. The peer
		// drops it when it sees that step, or in time.
		c.cfg.Counters.StaleRekems.Add(1)
		return
	case !isNext(target, c.cfg.Send):
		c.fail(control.CodeProtocol, ErrRatchet)
		return
	}
	ciphertext, secret, err := c.kem.Encapsulate(c.cfg.Rand, share)
	switch {
	case errors.Is(err, kem.ErrShare), errors.Is(err, kem.ErrLowOrder):
		c.fail(control.CodeCrypto, err)
		return
	case err != nil:
		c.Abort(c.now, control.CodeInternal, err)
		return
	}
	defer secret.Wipe()
	start := len(c.batch)
	c.batch = append(c.batch, zeroHeader[:]...)
	c.batch = control.AppendRekemAck(c.batch, ciphertext, target)
	th := schedule.RekemPoint(c.cfg.Profile.Hash, pt, c.batch[start+wire.HeaderLen:])
	if c.sealAt(start, wire.ChannelControl, wire.TypeRekemAck, 0) != nil {
		return
	}
	if err := c.cfg.Send.RatchetKEM(secret.Bytes(), &th); err != nil {
		c.sealFailed(err)
		return
	}
	c.rerootSend()
	c.cfg.Counters.RekemsIn.Add(1)
}

// handleRekemAck ends our tier-2 step. What does not fit it closes: the peer has
// left its old root, and we could not follow.
func (c *Conn) handleRekemAck(pt []byte) {
	r := &c.rekem
	if !r.pending() {
		c.fail(control.CodeProtocol, ErrRatchet)
		return
	}
	ciphertext, gen, err := control.ParseRekemAck(pt, c.kem.CiphertextLen())
	if err != nil || gen != r.target || !isNext(gen, c.cfg.Recv) {
		c.fail(control.CodeProtocol, ErrRatchet)
		return
	}
	secret, err := r.key.Decapsulate(ciphertext)
	if err != nil {
		c.fail(control.CodeCrypto, err)
		return
	}
	defer secret.Wipe()
	th := schedule.RekemPoint(c.cfg.Profile.Hash, r.request, pt)
	if err := c.cfg.Recv.RatchetKEM(secret.Bytes(), &th); err != nil {
		c.fail(control.CodeCrypto, err)
		return
	}
	c.rerootRecv()
	c.dropRekem(nil)
	c.scheduleRekem(c.cfg.Rekem)
	c.cfg.Counters.RekemsOut.Add(1)
}
