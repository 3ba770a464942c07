// Package tlsrecord speaks TLS 1.3 (RFC 8446) on a connection whose handshake
// crypto/tls has completed: records, and the few messages that may follow a
// handshake. It is a pure machine: octets go in, octets come out; it has no
// connection, no goroutine and no clock, so that an event loop can own it.
//
//	Handover: crypto/tls handshake -> secrets, counters -> Conn
//
//	HandleBytes (Poll)* Settle          what arrived -> application data
//	AppendRecords | SealBatch           application data -> what to send
//	AppendOutput                        what the machine itself has to say
//
// # Receiving
//
// Records are opened where they lie in the lent input; only a record that
// straddles two inputs is copied, into a pooled buffer that never holds more
// than that record. KeyUpdate is obeyed, NewSessionTicket is checked, counted
// and dropped, everything else a peer may not send after the handshake ends the
// connection with the alert that RFC 8446 names for it.
//
// # Sending in place
//
// Frames that were sealed contiguously into a batch buffer become records
// without being copied, as long as they fit one record: the batch leaves
// HeaderLen octets of room in front of the first frame, and SealBatch writes
// header, content type and tag around what is there.
//
//	| room | frame | frame | frame |                     the batch
//	| 17 03 03 len | ............. | 17 | tag (16) |     one record, in place
//
// A batch of more than MaxPlaintext octets becomes several records, and all but
// the first are moved within the buffer to make room for what surrounds each,
// which is one pass of memmove over them, from the back. A driver that wants to
// save that pass as well closes a record between two frames: it calls SealBatch
// each time the octets since the last room approach MaxPlaintext, appends
// HeaderLen octets of room, and goes on with its frames. Sealing into another
// buffer (AppendRecords) copies everything once.
//
// # Keys
//
// Each direction is rekeyed before RekeyLimit records (RFC 8446 section 5.5): our
// own by a KeyUpdate of ours, the peer's by asking for one, since a crypto/tls
// peer never thinks of it by itself. Traffic secrets are overwritten when they
// are replaced, when a direction ends and by Wipe; see package internal/wipe for
// what that is worth.
//
// # FIPS 140-3
//
// The standard library approves of AES-GCM in TLS 1.3 only as crypto/tls itself
// does it, and refuses cipher.NewGCM altogether under GODEBUG=fips140=only.
// Where the process runs in FIPS 140-3 mode this package therefore refuses to
// work (ErrFIPS, Available), and the connection stays with crypto/tls.
package tlsrecord

import (
	"crypto/cipher"
	"crypto/fips140"
	"errors"
	"fmt"
	"io"

	"github.com/trestle-npamp/trestle/internal/buf"
)

// Sizes in octets.
const (
	// HeaderLen is the size of a record's header: the room that SealBatch wants
	// in front of the plaintext.
	HeaderLen = 5
	// Overhead is what a record is longer than its plaintext: header, content
	// type and tag.
	Overhead = HeaderLen + 1 + tagLen
	// MaxPlaintext is the most application data one record carries (RFC 8446
	// section 5.1).
	MaxPlaintext = 1 << 14
	// MaxRecordLen is the longest record that may arrive, header included (RFC
	// 8446 section 5.2).
	MaxRecordLen = HeaderLen + maxCiphertext
	// MaxMessage is the longest handshake message we take after the handshake,
	// header included. Tickets are dropped, and none in use comes near it.
	MaxMessage = 1 << 14

	tagLen        = 16
	maxCiphertext = MaxPlaintext + 256
	keyUpdateLen  = Overhead + messageHeaderLen + 1
)

const (
	// RekeyLimit is the most records that are sealed under one key. RFC 8446
	// section 5.5 allows AES-GCM 2^24.5 full records.
	RekeyLimit = 1 << 23
	// maxIdle is how many records in a row may bring nothing: empty application
	// data, tickets, user_canceled.
	maxIdle = 16
	// DefaultKeyUpdateBurst is Config.KeyUpdateBurst's default.
	DefaultKeyUpdateBurst = 16
	// keyUpdateEvery is how many records of application data earn the peer one
	// more KeyUpdate.
	keyUpdateEvery = 16
)

// Errors that are not about what the peer sent. What the peer can do wrong is
// listed at Fault.
var (
	// ErrSuite is returned by New for a cipher suite that is not one of TLS 1.3's
	// three in use.
	ErrSuite = errors.New("tlsrecord: unknown cipher suite")
	// ErrSecret is returned by New for a traffic secret that doesn't have the
	// length of the suite's hash.
	ErrSecret = errors.New("tlsrecord: traffic secret has the wrong length")
	// ErrFIPS is returned by New where the process runs in FIPS 140-3 mode.
	ErrFIPS = errors.New("tlsrecord: not available in FIPS 140-3 mode")
	// ErrClosed is returned for data to send after close_notify or an alert of
	// ours.
	ErrClosed = errors.New("tlsrecord: closed for sending")
	// ErrWiped is returned after Wipe.
	ErrWiped = errors.New("tlsrecord: keys were wiped")
	// ErrTruncated is what Poll returns when the transport ended without the
	// peer's close_notify: somebody may have cut off what it wanted to say.
	ErrTruncated = errors.New("tlsrecord: transport ended without close_notify")
	// ErrExhausted is returned when a sequence number has no successor.
	ErrExhausted = errors.New("tlsrecord: sequence numbers exhausted")
	// ErrUnpolled is what Poll returns after a Settle that came while whole
	// records were unread: the driver's mistake, and octets are lost.
	ErrUnpolled = errors.New("tlsrecord: settled with whole records unread")
)

// Available tells whether this package can be used in this process: nil or
// ErrFIPS. Ask once, before a Handover is made.
func Available() error {
	if fips140.Enabled() {
		return ErrFIPS
	}
	return nil
}

// Keys are one direction's application traffic secret and record counter.
type Keys struct {
	// Secret is client_ or server_application_traffic_secret_N, 32 octets with
	// SHA-256 and 48 with SHA-384. New copies it.
	Secret []byte
	// Seq is the number of records already protected under it.
	Seq uint64
}

// Format prints the counter and not the secret, whatever the verb.
func (k Keys) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "tlsrecord.Keys(%d, redacted)", k.Seq) }

// Config makes a Conn. Suite, Read and Write are required.
type Config struct {
	// Suite is the cipher suite: tls.TLS_AES_128_GCM_SHA256,
	// tls.TLS_AES_256_GCM_SHA384 or tls.TLS_CHACHA20_POLY1305_SHA256.
	Suite uint16
	// Server tells that we were the handshake's server. Only a client may be sent
	// tickets.
	Server bool
	// Read and Write are the peer's and our own direction.
	Read, Write Keys

	// Budget is what partial records and messages are counted against, with the
	// size of the buffers that hold them; nil is unlimited.
	Budget *buf.Budget
	// RekeyAfter lowers the number of records that are sealed under one key, the
	// KeyUpdate that ends it included; 0, and anything above, is RekeyLimit. It
	// is at least 2.
	RekeyAfter uint64
	// KeyUpdateBurst is how many KeyUpdates a peer may send in a row; each 16
	// records of application data allow one more. 0 is DefaultKeyUpdateBurst.
	KeyUpdateBurst int
	// AESGCM expands an AES-128 or AES-256 key; nil is the standard library. What
	// it returns has a 12-octet nonce and a 16-octet tag, works in place without
	// allocating, and overwrites dst when it fails to open. It is erased by its
	// method Wipe, or as wipe.Object does it if it has none.
	AESGCM func(key []byte) (cipher.AEAD, error)
}

// Stats counts what went through a Conn.
type Stats struct {
	RecordsIn, RecordsOut       uint64
	KeyUpdatesIn, KeyUpdatesOut uint64
	// TicketsIn counts NewSessionTicket messages, all of them dropped.
	TicketsIn uint64
}

// Conn is one connection after its handshake. It is not safe for concurrent use:
// whoever owns the connection owns it.
//
// Reading and writing end separately. Reading ends with the peer's close_notify
// (io.EOF), the transport's end (ErrTruncated), an alert from the peer
// (RemoteAlert) or a Fault; writing ends with AppendCloseNotify or AppendAlert,
// and with every alert and Fault. An end is final.
type Conn struct {
	rd, wr half
	cfg    settings

	// Input.
	in    []byte   // borrowed and unread
	part  *buf.Buf // the beginning of one record, from earlier turns
	spent *buf.Buf // held a record that was handed out in this turn
	hand  *buf.Buf // the beginning of one handshake message
	eof   bool     // the transport has ended

	readErr error
	idle    int // records in a row that brought nothing

	// Key updates of the peer's that count against its allowance, and records of
	// data since one was last earned back.
	updates, data int

	// Output.
	writeErr error
	alert    Alert
	alertDue bool // alert is still to be sent, after which nothing is
	owed     bool // the peer asked for a KeyUpdate
	want     bool // we are to ask the peer for one
	asked    bool // and have, under its present key

	stats Stats
}

// settings are what is kept of a Config.
type settings struct {
	suite  *suite
	server bool
	limit  uint64
	burst  int
	budget *buf.Budget
	aesgcm func(key []byte) (cipher.AEAD, error)
}

// New makes a Conn. The errors are ErrSuite, ErrSecret, ErrFIPS and what
// Config.AESGCM returns.
func New(cfg Config) (*Conn, error) {
	if err := Available(); err != nil {
		return nil, err
	}
	s := suiteOf(cfg.Suite)
	if s == nil {
		return nil, ErrSuite
	}
	if len(cfg.Read.Secret) != s.hash.Size() || len(cfg.Write.Secret) != s.hash.Size() {
		return nil, ErrSecret
	}
	c := &Conn{cfg: settings{
		suite:  s,
		server: cfg.Server,
		limit:  RekeyLimit,
		burst:  cfg.KeyUpdateBurst,
		budget: cfg.Budget,
		aesgcm: cfg.AESGCM,
	}}
	if cfg.RekeyAfter != 0 {
		c.cfg.limit = max(2, min(RekeyLimit, cfg.RekeyAfter))
	}
	if c.cfg.burst == 0 {
		c.cfg.burst = DefaultKeyUpdateBurst
	}
	if c.cfg.aesgcm == nil {
		c.cfg.aesgcm = newAESGCM
	}
	copy(c.rd.secret[:], cfg.Read.Secret)
	copy(c.wr.secret[:], cfg.Write.Secret)
	c.rd.seq, c.wr.seq = cfg.Read.Seq, cfg.Write.Seq
	for _, h := range []*half{&c.rd, &c.wr} {
		if err := h.derive(&c.cfg); err != nil {
			c.Wipe()
			return nil, err
		}
	}
	return c, nil
}

// Suite is the cipher suite's number.
func (c *Conn) Suite() uint16 { return c.cfg.suite.id }

// Stats returns the counters.
func (c *Conn) Stats() Stats { return c.stats }

// Idle erases the expanded keys, some hundreds of octets each, and keeps the
// secrets they come from; the next record derives them again.
func (c *Conn) Idle() {
	c.rd.drop()
	c.wr.drop()
}

// Expanded tells whether Idle would free anything.
func (c *Conn) Expanded() bool { return c.rd.aead != nil || c.wr.aead != nil }

// Wipe erases all secrets and gives all buffers back. An alert that was still to
// be sent is lost. What Poll handed out is no longer valid. Where reading or
// writing has not ended before, it ends with ErrWiped.
func (c *Conn) Wipe() {
	c.endRead(ErrWiped)
	c.endWrite(ErrWiped)
	c.alertDue = false
	c.wr.wipe()
	c.free(&c.spent)
}

// endRead ends reading; what was handed out before stays valid.
func (c *Conn) endRead(err error) {
	if c.readErr == nil {
		c.readErr = err
	}
	c.in = nil
	c.free(&c.part)
	c.free(&c.hand)
	c.rd.wipe()
}

// endWrite ends writing, but for an alert that is due.
func (c *Conn) endWrite(err error) {
	if c.writeErr == nil {
		c.writeErr = err
	}
	c.owed, c.want = false, false
	if !c.alertDue {
		c.wr.wipe()
	}
}

// fail ends the connection because of err, with the alert that belongs to it.
func (c *Conn) fail(err error) {
	var f *Fault
	switch {
	case c.writeErr != nil, c.alertDue:
		// Nothing more can be said.
	case errors.As(err, &f):
		c.alert, c.alertDue = f.Alert, true
	}
	c.endRead(err)
	c.endWrite(err)
}

func (c *Conn) free(b **buf.Buf) {
	if *b != nil {
		c.cfg.budget.Give((*b).Cap())
		(*b).Release()
		*b = nil
	}
}

// get takes a buffer with room for n octets out of the budget.
func (c *Conn) get(n int) (*buf.Buf, error) {
	if !c.cfg.budget.Take(buf.SizeOf(n)) {
		return nil, ErrBudget
	}
	return buf.Get(n), nil
}

// Format prints suite and counters and no secret, whatever the verb.
func (c *Conn) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, "tlsrecord.Conn("+c.cfg.suite.name+", redacted)")
}
