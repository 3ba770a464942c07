// Package conn is one N-PAMP association after its handshake, as a pure state
// machine: octets and a time go in, events and octets come out. It has no
// socket, no clock, no goroutine and no randomness of its own.
//
// Methods fall into four groups:
//
//   - Handle* take input (octets that arrived, a timeout that passed);
//   - Poll gives the events that the input caused, one by one, each borrowed
//     until the next call;
//   - Begin/End and Enqueue put frames into the outbound side, Flush moves what
//     waits there into the batch that the driver is about to write;
//   - the rest are commands and getters.
//
// A Conn is owned by one goroutine. Nothing in it may be called from another.
// It does not bound its queue: what may enter it is decided by the association
// that owns it, which also knows what other goroutines have posted.
//
//	       HandleBytes                    Begin/End, Enqueue
//	            |                                |
//	scan -> header rules -> open -> control   queue -> key bounds -> seal
//	            |              |     frames      |                    |
//	          Poll <-----------+--------+        +---- Flush ----> batch
package conn

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/trestle-npamp/trestle/crypto/handshake"
	"github.com/trestle-npamp/trestle/crypto/record"
	"github.com/trestle-npamp/trestle/crypto/schedule"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/defaults"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/sched"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// Limits and defaults (D3, D4, D6, D28). Octets unless said otherwise.
const (
	// FloorCredit is the connection-level credit that every peer grants before
	// its HELLO has arrived (D3).
	FloorCredit = 1 << 20
	// DefaultCredit is the connection-level credit we grant (D6).
	DefaultCredit = 16 << 20
	// FloorStreamCredit is each stream's credit before the peer's HELLO has arrived
	// (D3), and DefaultStreamCredit the one we grant (D6).
	FloorStreamCredit   = control.FloorCredit
	DefaultStreamCredit = 1 << 20
	// DefaultHighWater is how much of a batch is handed to the transport in one
	// turn before the rest waits in the queue (D28).
	DefaultHighWater = 256 << 10
	// DefaultPingInterval is the silence after which a PING goes out (D28).
	DefaultPingInterval = 30 * time.Second
	// DefaultHelloWait is how long a peer is expected to send its HELLO; after
	// that it is taken as one that sends none (D3).
	DefaultHelloWait = 5 * time.Second
	// DefaultHelloIdle is how long a peer that has sent no HELLO, and is therefore not
	// pinged, may be silent while nothing is sent to it either and no exchange is
	// open (D13). It is longer than the longest unary deadline (D28).
	DefaultHelloIdle = 15 * time.Minute
	// DefaultCloseWait bounds how long queued frames and the peer's CLOSE_ACK
	// are waited for once we close.
	DefaultCloseWait = time.Second
	// MaxPendingReplies bounds answers to the peer's own control frames (PONG,
	// KEY_UPDATE_ACK) that wait for room; a peer that makes more is closed.
	MaxPendingReplies = 128
	// DefaultRekemWait is how long the answer to a REKEM is waited for before its
	// key is erased; an answer that comes later ends the association.
	DefaultRekemWait = 30 * time.Second

	maxUnansweredPings = 2
)

// Errors of commands. They leave the machine as it was.
var (
	// ErrClosed: the association has ended or is ending.
	ErrClosed = errors.New("conn: association closed")
	// ErrTooLarge: the frame exceeds what the peer accepts, or more plaintext
	// was appended than Begin was told.
	ErrTooLarge = errors.New("conn: frame too large")
	// ErrChannel: the channel is not usable on this association.
	ErrChannel = errors.New("conn: channel not advertised by both sides")
	// ErrBegin: Begin and End do not pair up, or a command came between them or
	// outside a batch.
	ErrBegin = errors.New("conn: out of place between Begin and End, or outside a batch")
	// ErrReserved: the channel or frame type is the machine's own.
	ErrReserved = errors.New("conn: Control and the common frame types are not for sending")
	// ErrRate: another key change now is more than a peer puts up with.
	ErrRate = errors.New("conn: keys change too often")
	// ErrNoCredit: the peer's credit does not cover a KEY_UPDATE on the channel.
	ErrNoCredit = errors.New("conn: no credit left for a key update")
	// ErrRekemPending: a REKEM is under way already.
	ErrRekemPending = errors.New("conn: another REKEM is under way")
	// ErrNoRatchet: this association takes no such step.
	ErrNoRatchet = errors.New("conn: no ratchet on this association")
	// ErrRekemCrossed: the peer took a step of its own before it had seen ours.
	ErrRekemCrossed = errors.New("conn: REKEM crossed a master ratchet")
	// ErrRekemTimeout: the peer did not answer a REKEM.
	ErrRekemTimeout = errors.New("conn: REKEM was not answered")
)

// Reasons for which the machine itself ends an association. They are found in
// the chain of a CloseError.
var (
	ErrFlags        = errors.New("conn: ENC clear, or COMP or FRAG set")
	ErrPayloadShort = errors.New("conn: payload shorter than its tag")
	ErrFrameType    = errors.New("conn: frame type 0")
	ErrKeyUpdate    = errors.New("conn: bad key update marker")
	ErrUpdateRate   = errors.New("conn: peer updates keys too often")
	ErrHello        = errors.New("conn: malformed, second or misplaced HELLO")
	ErrControl      = errors.New("conn: malformed control frame")
	ErrRatchet      = errors.New("conn: master ratchet refused")
	ErrCredit       = errors.New("conn: peer overran its credit")
	ErrReplies      = errors.New("conn: peer provokes more answers than it reads")
	ErrDead         = errors.New("conn: peer does not answer pings")
	ErrIdle         = errors.New("conn: a peer that sent no HELLO has been silent for too long")
	ErrNotAccepted  = fmt.Errorf("%w and before the server said anything: it may not accept our key", ErrTruncated)
	ErrTruncated    = errors.New("conn: transport ended without CLOSE")
)

// CloseError says why an association ended. It matches ErrClosed.
type CloseError struct {
	// Code is the reason that went or came with ERROR, 0 for a plain CLOSE or a
	// transport that just ended (D16).
	Code control.ErrorCode
	// Text is the human-readable part of that ERROR.
	Text string
	// Remote tells whether the peer ended it.
	Remote bool
	// Acked tells, of an association that this side closed, that the peer
	// answered with CLOSE_ACK: it has read everything that was sent before.
	Acked bool
	// Cause is what this side found wrong, or nil.
	Cause error
}

func (e *CloseError) Error() string {
	who := "locally"
	if e.Remote {
		who = "by the peer"
	}
	s := "association closed " + who
	if e.Code != 0 {
		s += fmt.Sprintf(" (%v)", e.Code)
	}
	if e.Text != "" {
		s += ": " + e.Text
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Is makes every CloseError match ErrClosed.
func (e *CloseError) Is(target error) bool { return target == ErrClosed }

// Unwrap gives the cause.
func (e *CloseError) Unwrap() error { return e.Cause }

// Role is the side of the association in the handshake.
type Role = handshake.Role

// Roles.
const (
	Client = handshake.Client
	Server = handshake.Server
)

// Config is what a Conn is made from: Role, Profile, Suite, Send and Recv as the
// handshake gave them. Zero limits take their defaults.
type Config struct {
	Role    Role
	Profile *profiles.Profile
	Suite   profiles.Suite
	// Send and Recv are the roots of the two directions; the Conn owns and
	// wipes them.
	Send, Recv *schedule.Root
	// Channels are those we carry; Control is always among them, and those that
	// the profile does not open are not. More than wire.ChannelSpatial is not
	// supported.
	Channels []wire.Channel
	// PeerChannels widens what a peer is taken to carry until its HELLO says
	// (or if it never says): Control, Bridge and Discovery by default (D3).
	PeerChannels []wire.Channel
	// NoHello sends no HELLO, for peers known not to expect one (D3).
	NoHello bool
	// Protocols are the foreign protocol ids of our HELLO, preferred first.
	Protocols []uint8
	// Agent is HELLO's params key 3, empty for none (D22).
	Agent string
	// Grease is mixed into our HELLO's GREASE values and the jitter of what comes
	// by itself after a time.
	Grease uint32

	MaxFrame     int // largest frame we accept, header included
	Credit       int // connection-level credit we grant
	StreamCredit int // each stream's credit we grant; negative: streams have none
	HighWater    int
	PingInterval time.Duration // negative: no liveness
	HelloWait    time.Duration
	HelloIdle    time.Duration // negative: for ever
	CloseWait    time.Duration
	RekemWait    time.Duration
	// Bounds of the keys; zero fields take the profile's, larger ones are
	// lowered to it (D1).
	Bounds profiles.Bounds
	// Ratchet bounds what is sent under one root before a MASTER_RATCHET
	// replaces it. Zero fields take RatchetFactor times the profile's key
	// bounds, and a negative Age means that no step is taken unasked.
	Ratchet profiles.Bounds
	// Rekem is the age at which the root of the receiving direction is healed by
	// a REKEM. Zero takes RekemFactor times the age bound of the profile's keys;
	// negative: no step is taken unasked.
	Rekem time.Duration
	// NoRatchet is for transports without one order over all channels (D29): no
	// step is taken, and one by the peer ends the association.
	NoRatchet bool
	// KEM is the association's key exchange, and Rand the source of what a REKEM
	// or its answer needs. Without either this side starts none and leaves the
	// peer's unanswered.
	KEM  profiles.KEM
	Rand io.Reader
	// Busy tells whether exchanges are open, which keeps a peer without HELLO from
	// being silent for too long; nil means that none ever are.
	Busy func() bool
	// Budget is what partial frames are counted against.
	Budget *buf.Budget
	// Counters are shared by many associations; nil makes private ones.
	Counters *Counters
}

func (c *Config) fill() {
	defDur := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	defaults.Fill(&c.MaxFrame, wire.DefaultFrameLen)
	c.MaxFrame = min(max(c.MaxFrame, wire.FloorFrameLen), wire.MaxFrameLen)
	defaults.Fill(&c.Credit, DefaultCredit)
	c.Credit = max(c.Credit, FloorCredit, c.MaxFrame) // a frame we accept must be able to come
	if c.StreamCredit >= 0 {
		defaults.Fill(&c.StreamCredit, DefaultStreamCredit)
		c.StreamCredit = max(c.StreamCredit, FloorStreamCredit)
	}
	defaults.Fill(&c.HighWater, DefaultHighWater)
	defDur(&c.PingInterval, DefaultPingInterval)
	defDur(&c.HelloWait, DefaultHelloWait)
	defDur(&c.HelloIdle, DefaultHelloIdle)
	defDur(&c.CloseWait, DefaultCloseWait)
	b := c.Profile.Bounds
	if c.Bounds.Frames == 0 || c.Bounds.Frames > b.Frames {
		c.Bounds.Frames = b.Frames
	}
	if c.Bounds.Octets == 0 || c.Bounds.Octets > b.Octets {
		c.Bounds.Octets = b.Octets
	}
	if c.Bounds.Age == 0 || c.Bounds.Age > b.Age {
		c.Bounds.Age = b.Age
	}
	defDur(&c.RekemWait, DefaultRekemWait)
	c.fillRatchet()
	if c.Counters == nil {
		c.Counters = new(Counters)
	}
}

type state uint8

const (
	stateOpen    state = iota
	stateClosing       // Close was called: queue drains, then CLOSE goes out
	stateClosed        // nothing is read or sent any more; the event is due
	stateDone          // EventClosed was given
)

const knownChannels = int(wire.ChannelSpatial) + 1

// channelSet is a bit set over the assigned channel ids.
type channelSet uint32

func (s channelSet) has(ch wire.Channel) bool {
	return int(ch) < knownChannels && s&(1<<ch) != 0
}

func setOf(chs ...wire.Channel) channelSet {
	var s channelSet
	for _, ch := range chs {
		if int(ch) < knownChannels {
			s |= 1 << ch
		}
	}
	return s
}

// sendSide is the sealer of one channel with what bounds its key's life.
type sendSide struct {
	sealer *record.Sealer
	since  time.Duration // when the current epoch began
}

// Conn is one association. Make it with New.
type Conn struct {
	cfg   Config
	state state
	now   time.Duration

	ours, theirs channelSet

	event   Event // Poll's
	scan    wire.Scanner
	openers [knownChannels]*record.Opener
	sealers [knownChannels]sendSide

	// Outbound: the batch belongs to the driver (see StartBatch).
	batch     []byte
	inBatch   bool
	congested bool
	lively    bool   // a PING or PONG came or went since StartBatch
	worked    bool   // anything else did
	sealed    int    // octets sealed into the current batch
	total     uint64 // octets sealed in all
	tally     tally
	begin     beginState
	queue     sched.Queue
	replies   int // queued answers to control frames

	// Keys over time.
	generation generation
	kem        exchange // nil: no tier-2 steps
	rekem      rekem
	limits     rateLimits

	// HELLO and credit.
	peerHello    control.Hello
	hasHello     bool
	helloDone    bool
	helloExpired bool
	overran      bool // the peer sent more than our credit before its HELLO
	maxPeerFrame int
	credit       sched.Credit

	// Time.
	opened        time.Duration
	lastRecv      time.Duration
	lastSent      time.Duration // outside Control, or busy
	heard         bool          // a frame of the peer's was opened
	pings         int
	pingAt        time.Duration // 0: none scheduled
	pingSeq       uint64
	closeBy       time.Duration
	spread        uint32            // state of jitter
	peerError     control.ErrorCode // of the last ERROR, 0 for none
	peerErrorText string

	closeCode control.ErrorCode
	closeText string
	closeSent bool
	failure   *CloseError
}

// New makes the machine; now is the time at which the association stands. The
// caller then calls Open once a batch is started.
func New(cfg Config, now time.Duration) *Conn {
	cfg.fill()
	c := &Conn{cfg: cfg, now: now, opened: now, lastRecv: now, spread: cfg.Grease}
	c.ours = setOf(cfg.Channels...) | setOf(wire.ChannelControl)
	for ch := range wire.Channel(knownChannels) {
		if !profiles.ChannelAllowed(cfg.Profile, ch) {
			c.ours &^= 1 << ch
		}
	}
	c.theirs = setOf(wire.ChannelControl, wire.ChannelBridge, wire.ChannelDiscovery) | setOf(cfg.PeerChannels...)
	c.scan.MaxFrame = cfg.MaxFrame
	c.scan.Budget = cfg.Budget
	c.maxPeerFrame = wire.FloorFrameLen
	if cfg.NoHello {
		// Neither side tells a limit, so the default one is the best guess.
		c.maxPeerFrame = wire.DefaultFrameLen
	}
	if !cfg.NoHello {
		c.credit.LimitSend(FloorCredit)
		c.credit.LimitReceive(uint64(cfg.Credit), uint64(cfg.MaxFrame))
	}
	c.startKeys()
	return c
}

// Open queues our HELLO and HELLO_DONE, the first Control frames we send (D3).
func (c *Conn) Open() error {
	if c.cfg.NoHello {
		return nil
	}
	h := c.hello()
	b := buf.Get(wire.HeaderLen + 256 + wire.TagLen)
	b.B = append(b.B, zeroHeader[:]...)
	var err error
	if b.B, err = control.AppendHello(b.B, &h); err != nil {
		b.Release()
		return fmt.Errorf("conn: own HELLO: %w", err)
	}
	c.push(wire.ChannelControl, wire.TypeHello, 0, nil, b)
	done := buf.Get(wire.HeaderLen + wire.TagLen)
	done.B = append(done.B, zeroHeader[:]...)
	c.push(wire.ChannelControl, wire.TypeHelloDone, 0, nil, done)
	return nil
}

var zeroHeader [wire.HeaderLen]byte

// PeerHello gives the peer's HELLO, if it has come. The slices in it are the
// Conn's own.
func (c *Conn) PeerHello() (*control.Hello, bool) {
	if !c.hasHello {
		return nil, false
	}
	return &c.peerHello, true
}

// Usable tells whether frames of ch may be sent: both sides carry it.
func (c *Conn) Usable(ch wire.Channel) bool { return c.ours.has(ch) && c.theirs.has(ch) }

// MaxSend is the largest plaintext, in octets, of one frame towards this peer.
func (c *Conn) MaxSend() int {
	n := c.maxPeerFrame - wire.HeaderLen - wire.TagLen
	if c.creditInForce() {
		// More would wait for credit for ever (affords).
		n = int(min(uint64(n), c.peerHello.Credit-control.KeyUpdateLen))
	}
	return n
}

// Closed tells whether the machine has ended; Poll then gives EventClosed once.
func (c *Conn) Closed() bool { return c.state >= stateClosed }

// Closing tells whether Close was called or the machine has ended.
func (c *Conn) Closing() bool { return c.state != stateOpen }

// Profile is the negotiated profile.
func (c *Conn) Profile() *profiles.Profile { return c.cfg.Profile }

// Suite is the negotiated AEAD suite.
func (c *Conn) Suite() profiles.Suite { return c.cfg.Suite }

// Rest gives back what an idle association can make again: the expanded keys,
// some 900 octets each, and the queue's spare room. The next frame on a channel
// derives its key anew.
func (c *Conn) Rest() {
	for i := range c.sealers {
		if s := c.sealers[i].sealer; s != nil {
			s.Idle()
		}
		if o := c.openers[i]; o != nil {
			o.Idle()
		}
	}
	c.queue.Trim()
}

// Expanded tells whether Rest would free a key.
func (c *Conn) Expanded() bool {
	for i := range c.sealers {
		if s := c.sealers[i].sealer; s != nil && s.Expanded() {
			return true
		}
		if o := c.openers[i]; o != nil && o.Expanded() {
			return true
		}
	}
	return false
}

// Release wipes the keys and gives every buffer back. The machine is dead
// after it.
func (c *Conn) Release() {
	c.state = stateDone
	c.tally.give(c.cfg.Counters)
	c.scan.Release()
	c.dropQueue()
	for i := range c.sealers {
		if s := c.sealers[i].sealer; s != nil {
			s.Wipe()
			c.sealers[i].sealer = nil
		}
		if o := c.openers[i]; o != nil {
			o.Wipe()
			c.openers[i] = nil
		}
	}
	c.dropRekem(ErrClosed)
	if c.cfg.Send != nil {
		c.cfg.Send.Wipe()
		c.cfg.Recv.Wipe()
		c.cfg.Send, c.cfg.Recv = nil, nil
	}
}

// Format prints what a log may have and no secret, plaintext or key, whatever the
// verb.
func (c *Conn) Format(f fmt.State, _ rune) {
	send, recv := c.Generations()
	fmt.Fprintf(f, "conn.Conn(%v, %v, generations %d and %d, redacted)", c.cfg.Role, c.cfg.Profile, send, recv)
}

// Format prints what a log may have and no secret, whatever the verb.
func (c Config) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "conn.Config(%v, %v, %v, channels %v, redacted)", c.Role, c.Profile, c.Suite, c.Channels)
}
