// Package nptest gives tests two associations joined by a simulated link under a
// virtual clock: no sockets, no real time, the same run every time. It stands in
// for the event loop, so everything from the frame scanner up to the carriage
// classes can be tested with it.
package nptest

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/crypto/schedule"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/invariant"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/sched"
	"github.com/trestle-npamp/trestle/wire"
)

// Options make a Pair. What Client and Server leave zero takes the defaults of
// an association; roles, keys and profile are filled in.
type Options struct {
	Client, Server assoc.Options
	Profile        *profiles.Profile // nil: Standard
	Suite          profiles.Suite    // 0: AES-256-GCM
	KEM            profiles.KEM      // 0: the profile's first
	Seed           uint64            // of both sides' randomness
	Latency        time.Duration     // one way
	// Chunk splits what is sent into reads of at most so many octets; 0: as sent.
	Chunk int
	// Tap sees every batch that leaves a side. It must not keep or change b.
	Tap func(from assoc.Role, b []byte)
}

// tick is the step of the simulated timing wheels.
const tick = time.Millisecond

// Pair is two associations, joined. Its methods are called from the test's
// goroutine; that is the "loop" of both sides.
type Pair struct {
	t   testing.TB
	o   Options
	now time.Duration

	Client, Server *End
}

// End is one side of a Pair.
type End struct {
	*assoc.Association
	p     *Pair
	peer  *End
	role  assoc.Role
	wheel *sched.Wheel
	dirty atomic.Bool
	gone  bool // the transport has ended for this side

	inbound  []packet // what is on its way to this side
	read     []byte
	scratch  []byte
	buffered int  // what Buffered reports
	blocked  bool // the peer reads nothing: what is sent stays buffered
	held     []byte
	batches  int
}

type packet struct {
	at  time.Duration
	b   []byte
	eof bool
	err error
}

// Keys under which the sides know each other.
var clientKey, serverKey = testKey("client"), testKey("server")

func testKey(name string) identity.PublicKey {
	k, err := identity.FromSeed(profiles.Ed25519, sha256.Sum256([]byte("nptest "+name)))
	if err != nil {
		panic(err)
	}
	return k.Public()
}

// NewPair makes the pair and starts both sides. It runs nothing yet: HELLO is
// exchanged by the first Run.
func NewPair(t testing.TB, o Options) *Pair {
	t.Helper()
	if o.Profile == nil {
		o.Profile = profiles.Standard
	}
	if o.Suite == 0 {
		o.Suite = profiles.AES256GCM
	}
	if o.KEM == 0 {
		o.KEM = o.Profile.KEMs[0]
	}
	p := &Pair{t: t, o: o, now: time.Hour}
	p.Client = p.end(assoc.Client, o.Client, serverKey)
	p.Server = p.end(assoc.Server, o.Server, clientKey)
	p.Client.peer, p.Server.peer = p.Server, p.Client
	for _, e := range p.ends() {
		if err := e.Start(p.now, e, e.wheel); err != nil {
			t.Fatalf("start of the %v: %v", e.role, err)
		}
		e.dirty.Store(true)
	}
	return p
}

func (p *Pair) ends() [2]*End { return [2]*End{p.Client, p.Server} }

func (p *Pair) end(role assoc.Role, o assoc.Options, peer identity.PublicKey) *End {
	master := bytes.Repeat([]byte{0x5A}, p.o.Profile.Hash.Size())
	send, recv := wire.ClientToServer, wire.ServerToClient
	if role == assoc.Server {
		send, recv = recv, send
	}
	o.Conn.Role = role
	o.Conn.Profile, o.Conn.Suite = p.o.Profile, p.o.Suite
	if o.Conn.KEM == 0 {
		o.Conn.KEM = p.o.KEM
	}
	if o.Conn.Rand == nil {
		var seed [32]byte
		binary.BigEndian.PutUint64(seed[:], p.o.Seed)
		seed[31] = byte(role)
		o.Conn.Rand = rand.NewChaCha8(seed)
	}
	o.Conn.Send = schedule.NewRoot(p.o.Profile.Hash, send, bytes.Clone(master))
	o.Conn.Recv = schedule.NewRoot(p.o.Profile.Hash, recv, bytes.Clone(master))
	if o.PeerKey.IsZero() {
		o.PeerKey = peer
	}
	o.ID = uint64(role) + 1
	return &End{
		Association: assoc.New(o, p.now),
		p:           p,
		role:        role,
		wheel:       sched.NewWheel(tick, p.now),
	}
}

// Wake implements assoc.Transport.
func (e *End) Wake() { e.dirty.Store(true) }

// Buffered implements assoc.Transport.
func (e *End) Buffered() int { return e.buffered + len(e.held) }

// Now implements assoc.Transport.
func (e *End) Now() time.Duration { return e.p.now }

// Now is the virtual time.
func (p *Pair) Now() time.Duration { return p.now }

// Batches is how many writes the side has made.
func (e *End) Batches() int { return e.batches }

// Block lets the side's peer read nothing more (true), or everything again.
func (e *End) Block(on bool) {
	e.blocked = on
	if !on && len(e.held) > 0 {
		e.deliver(e.held)
		e.held = nil
		e.dirty.Store(true)
	}
}

// Inject puts octets on the wire as if the side had sent them.
func (e *End) Inject(b []byte) { e.deliver(bytes.Clone(b)) }

// Cut ends the transport for both sides; cause is what they are told, nil for a
// plain end of file. What is in flight is lost.
func (p *Pair) Cut(cause error) {
	for _, e := range p.ends() {
		e.inbound = append(e.inbound[:0], packet{at: p.now, eof: true, err: cause})
	}
}

func (e *End) deliver(b []byte) {
	if e.gone || e.peer.gone {
		return
	}
	at := e.p.now + e.p.o.Latency
	for len(b) > 0 {
		n := len(b)
		if c := e.p.o.Chunk; c > 0 && n > c {
			n = c
		}
		e.peer.inbound = append(e.peer.inbound, packet{at: at, b: bytes.Clone(b[:n])})
		b = b[n:]
	}
}

// turn gives the side one step and puts what it says on the wire.
func (e *End) turn(in []byte) {
	if e.gone {
		return
	}
	out := e.Turn(e.p.now, in, e.scratch[:0])
	if cap(out) > cap(e.scratch) {
		e.scratch = out[:0]
	}
	if len(out) > 0 {
		e.batches++
		if e.p.o.Tap != nil {
			e.p.o.Tap(e.role, out)
		}
		if e.blocked {
			e.held = append(e.held, out...)
		} else {
			e.deliver(out)
		}
	}
	if e.Pending() && e.Buffered() < e.HighWater() {
		e.dirty.Store(true)
	}
	if e.Ended() {
		e.gone = true
		e.peer.inbound = append(e.peer.inbound, packet{at: e.p.now + e.p.o.Latency, eof: true})
	}
}

// step does what is due now and tells whether there was anything.
func (p *Pair) step() bool {
	worked := false
	for _, e := range p.ends() {
		for len(e.inbound) > 0 && e.inbound[0].at <= p.now {
			k := e.inbound[0]
			e.inbound = e.inbound[1:]
			worked = true
			if k.eof {
				if !e.gone {
					e.gone = true
					e.TransportClosed(p.now, k.err)
				}
				continue
			}
			// The side gets its own copy, as from a loop's read buffer, and loses it
			// after the turn.
			e.read = append(e.read[:0], k.b...)
			e.turn(e.read)
			invariant.Poison(e.read)
		}
		if e.wheel.Advance(p.now) > 0 {
			worked = true
		}
		if e.dirty.Swap(false) {
			worked = true
			e.turn(nil)
		}
	}
	return worked
}

// Settle runs until nothing is left to do at the present time.
func (p *Pair) Settle() {
	for i := 0; p.step(); i++ {
		if i > 1_000_000 {
			p.t.Fatal("the pair never comes to rest")
		}
	}
}

// Run lets d pass, doing on its way everything that falls due.
func (p *Pair) Run(d time.Duration) {
	until := p.now + d
	for {
		p.Settle()
		next := until
		for _, e := range p.ends() {
			if len(e.inbound) > 0 {
				next = min(next, e.inbound[0].at)
			}
			if at, ok := e.wheel.Next(); ok && at > p.now {
				next = min(next, at)
			}
		}
		if next <= p.now {
			next = min(p.now+tick, until)
		}
		if p.now >= until {
			return
		}
		p.now = next
	}
}

// RunUntil runs, without letting virtual time pass, until cond holds: for tests
// whose other goroutines call into an association. It gives up after a bound in
// real time.
func (p *Pair) RunUntil(cond func() bool) {
	p.t.Helper()
	for start := time.Now(); !cond(); {
		p.Settle()
		runtime.Gosched()
		if time.Since(start) > time.Minute {
			p.t.Fatal("condition never held")
		}
	}
}
