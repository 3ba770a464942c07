// Package record seals and opens the frames of one channel and direction.
//
// A Sealer or Opener owns key, epoch and sequence number together, so that no
// pair of (key, nonce) is ever used twice: the sequence number moves only with
// a seal or a verified open, the epoch only with Update, and both restart only
// with another key. Neither is safe for concurrent use: the association's
// goroutine owns them.
//
// The AEAD's associated data are the first 21 octets of the header as they
// stand on the wire, so the payload length in them counts the tag; the nonce is
// iv XOR (0^4 || sequence number). Source: draft-bubblefish-npamp-02 sections 4
// and 7.
//
// Keys are derived from the direction's root when they are first needed. In
// steady state neither Seal nor Open allocates.
package record

import (
	"crypto/cipher"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/trestle-npamp/trestle/crypto/schedule"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/wipe"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
)

// Errors of Sealer and Opener. After any of them the state is what it was.
var (
	// ErrExhausted is returned when a sequence number or an epoch has no
	// successor.
	ErrExhausted = errors.New("record: sequence numbers or epochs exhausted")
	// ErrSequence is returned for a frame whose sequence number is not exactly
	// the next one (D8).
	ErrSequence = errors.New("record: sequence number is not the next one")
	// ErrTag is returned for a frame that doesn't authenticate. Its payload has
	// been overwritten.
	ErrTag = errors.New("record: frame does not authenticate")
	// ErrNotSealed is returned for a frame without ENC, with COMP or FRAG (D5),
	// or with a payload shorter than a tag.
	ErrNotSealed = errors.New("record: not a sealed frame")
	// ErrChannel is returned for a frame of another channel.
	ErrChannel = errors.New("record: frame belongs to another channel")
	// ErrFlags is returned for a frame to seal with COMP or FRAG (D5).
	ErrFlags = errors.New("record: COMP and FRAG are never sent")
	// ErrTooLong is returned for a frame to seal that exceeds wire.MaxFrameLen.
	ErrTooLong = errors.New("record: frame too long")
	// ErrSuite is returned for an AEAD suite this package doesn't have.
	ErrSuite = errors.New("record: unknown AEAD suite")
	// ErrWiped is returned after Wipe, or when the root was wiped.
	ErrWiped = errors.New("record: key was wiped")
)

// slot is one expanded key. A state has one, or two with diversification.
type slot struct {
	aead cipher.AEAD // nil: not derived yet, or dropped
	iv   [schedule.IVLen]byte
}

func (s *slot) drop() {
	if s.aead != nil {
		if w, ok := s.aead.(interface{ Wipe() }); ok {
			w.Wipe()
		} else {
			wipe.Object(s.aead)
		}
		s.aead = nil
	}
	buf.Wipe(s.iv[:])
}

// state is what sealing and opening have in common.
type state struct {
	root   *schedule.Root // nil: wiped
	gen    uint64         // of the root, when the current epoch began
	epoch  wire.Epoch
	seq    wire.Seq // of the next frame
	octets uint64   // plaintext under the current keys
	nonce  [schedule.IVLen]byte
	suite  profiles.Suite
	ch     wire.Channel
	// parity is 1 with diversification, where odd sequence numbers have the
	// second slot (D2), and 0 without.
	parity wire.Seq
	slots  [2]slot
}

func (s *state) init(root *schedule.Root, p *profiles.Profile, suite profiles.Suite, ch wire.Channel) {
	*s = state{root: root, suite: suite, ch: ch}
	if p.Diversify {
		s.parity = 1
	}
	if root != nil {
		s.gen = root.Generation()
	}
}

// sync makes the state stand where its root does and tells whether there is a
// next sequence number. It derives nothing: a frame that is refused must not
// cost a key.
func (s *state) sync() error {
	if s.root == nil || s.root.Hash() == 0 {
		return ErrWiped
	}
	if s.gen != s.root.Generation() {
		// The root moved on without Reroot: never use a retired key, and never
		// go on counting under a new one.
		s.restart()
	}
	if s.seq == math.MaxUint64 {
		return ErrExhausted
	}
	return nil
}

// key gives the slot for the next sequence number, deriving its key if needed.
func (s *state) key() (*slot, error) {
	i := s.seq & s.parity
	if k := &s.slots[i]; k.aead != nil {
		return k, nil
	}
	return s.derive(i)
}

func (s *state) derive(i wire.Seq) (*slot, error) {
	suite := s.suite
	if i == 1 {
		suite = suite.Other()
	}
	key, iv, err := s.root.Traffic(s.epoch, suite, s.ch)
	if err != nil {
		return nil, ErrWiped
	}
	k := &s.slots[i]
	k.aead, err = newAEAD(suite, key[:])
	buf.Wipe(key[:])
	if err != nil {
		return nil, ErrSuite
	}
	k.iv = iv
	buf.Wipe(iv[:])
	return k, nil
}

func (s *state) drop() {
	s.slots[0].drop()
	s.slots[1].drop()
	buf.Wipe(s.nonce[:])
}

// restart begins epoch 0 of the root's current generation.
func (s *state) restart() {
	s.drop()
	s.gen = s.root.Generation()
	s.epoch, s.seq, s.octets = 0, 0, 0
}

// Seq is the sequence number of the next frame: the number of frames under the
// current epoch.
func (s *state) Seq() wire.Seq { return s.seq }

// Epoch is the current epoch.
func (s *state) Epoch() wire.Epoch { return s.epoch }

// Octets is the number of plaintext octets under the current epoch.
func (s *state) Octets() uint64 { return s.octets }

// Channel is the channel whose frames these are.
func (s *state) Channel() wire.Channel { return s.ch }

// Update moves on to the next epoch: sequence number 0, another key, the old
// one erased. A KEY_UPDATE is the last frame of its epoch, so call it right
// after that frame was sealed or opened. The errors are ErrExhausted and
// ErrWiped.
func (s *state) Update() error {
	if s.root == nil {
		return ErrWiped
	}
	if s.gen != s.root.Generation() {
		s.restart()
	}
	if s.epoch == math.MaxUint64 {
		return ErrExhausted
	}
	s.drop()
	s.epoch++
	s.seq, s.octets = 0, 0
	return nil
}

// Reroot restarts the channel at epoch 0 under another root, or under the same
// one after it ratcheted. The old key is erased at once.
func (s *state) Reroot(root *schedule.Root) {
	s.root = root
	if root == nil {
		s.Wipe()
		return
	}
	s.restart()
}

// Idle erases the expanded key, some hundreds of octets, and keeps everything
// else; the next frame derives it again.
func (s *state) Idle() { s.drop() }

// Expanded tells whether a key is expanded, that is, whether Idle would free
// anything.
func (s *state) Expanded() bool { return s.slots[0].aead != nil || s.slots[1].aead != nil }

// Wipe erases the key for good; Seal, Open and Update fail from then on. The
// root is not touched: it belongs to the whole direction.
func (s *state) Wipe() {
	s.drop()
	s.root = nil
}

func (s *state) format(f fmt.State, name string) {
	fmt.Fprintf(f, "record.%s(%s, epoch %d, sequence %d, redacted)", name, s.ch, s.epoch, s.seq)
}

// Sealer seals the frames of one channel in the direction we send.
type Sealer struct {
	state
}

// NewSealer returns a Sealer at epoch 0, sequence number 0. It derives its keys
// from root, which it shares with the direction's other channels, and pairs
// both suites when the profile diversifies. An unknown suite shows at the first
// Seal, as ErrSuite.
func NewSealer(root *schedule.Root, p *profiles.Profile, suite profiles.Suite, ch wire.Channel) *Sealer {
	s := new(Sealer)
	s.init(root, p, suite, ch)
	return s
}

// Seal turns buf[start:] into a frame, in place: its first wire.HeaderLen
// octets are room for the header, the rest is the plaintext. ENC is added to
// the flags, of which only URG is free to choose. It returns buf, longer by the
// tag; with wire.TagLen octets of spare capacity nothing is allocated. The
// errors are ErrFlags, ErrTooLong, ErrExhausted, ErrSuite and ErrWiped; after
// one of them buf's content is as before.
func (s *Sealer) Seal(buf []byte, start int, f wire.Flags, t wire.FrameType) ([]byte, error) {
	if f&(wire.FlagCOMP|wire.FlagFRAG) != 0 {
		return buf, ErrFlags
	}
	n := len(buf) - start - wire.HeaderLen
	if n > wire.MaxFrameLen-wire.HeaderLen-wire.TagLen {
		return buf, ErrTooLong
	}
	if err := s.sync(); err != nil {
		return buf, err
	}
	k, err := s.key()
	if err != nil {
		return buf, err
	}
	buf = slices.Grow(buf, wire.TagLen)
	header := buf[start : start+wire.HeaderLen]
	body := start + wire.HeaderLen
	wire.PutHeader(header, f|wire.FlagENC, t, s.ch, s.seq, n+wire.TagLen)
	schedule.Nonce(&k.iv, s.seq, &s.nonce)
	k.aead.Seal(buf[body:body], s.nonce[:], buf[body:], header[:wire.PrefixLen])
	s.seq++
	s.octets += uint64(n)
	return buf[:len(buf)+wire.TagLen], nil
}

// Due tells that the next frame must be a KEY_UPDATE, because one more of any
// kind would reach a bound on frames or octets (D1). Age is the caller's, who
// has a clock.
func (s *Sealer) Due(b profiles.Bounds) bool {
	return uint64(s.seq)+1 >= b.Frames || s.octets >= b.Octets
}

// Format prints position and no secret, whatever the verb.
func (s Sealer) Format(f fmt.State, _ rune) { s.format(f, "Sealer") }

// Opener opens the frames of one channel in the direction we receive.
type Opener struct {
	state
}

// NewOpener returns an Opener at epoch 0, sequence number 0; see NewSealer.
func NewOpener(root *schedule.Root, p *profiles.Profile, suite profiles.Suite, ch wire.Channel) *Opener {
	o := new(Opener)
	o.init(root, p, suite, ch)
	return o
}

// Open checks a frame and decrypts its payload in place. The plaintext is a
// view of the frame's octets, its capacity clipped to its length. Nothing moves
// before the tag has verified: whatever the error, the next frame of the same
// sequence number can still be opened. The errors are ErrNotSealed, ErrChannel,
// ErrSequence, ErrTag, ErrExhausted, ErrSuite and ErrWiped. On ErrTag the
// payload's octets are overwritten, so that unverified plaintext is nowhere to
// be found.
func (o *Opener) Open(f wire.Frame) ([]byte, error) {
	h := f.Header()
	payload := f.Payload()
	if h.Flags()&^wire.FlagURG != wire.FlagENC || len(payload) < wire.TagLen {
		return nil, ErrNotSealed
	}
	if h.Channel() != o.ch {
		return nil, ErrChannel
	}
	if err := o.sync(); err != nil {
		return nil, err
	}
	if h.Seq() != o.seq {
		return nil, ErrSequence
	}
	k, err := o.key()
	if err != nil {
		return nil, err
	}
	schedule.Nonce(&k.iv, o.seq, &o.nonce)
	plain, err := k.aead.Open(payload[:0], o.nonce[:], payload, h.Prefix())
	if err != nil {
		return nil, ErrTag
	}
	o.seq++
	o.octets += uint64(len(plain))
	return plain[:len(plain):len(plain)], nil
}

// Format prints position and no secret, whatever the verb.
func (o Opener) Format(f fmt.State, _ rune) { o.format(f, "Opener") }

// PreferredSuites lists the AEAD suites, the one this processor is best at
// first: AES-256-GCM where it has instructions for it, and otherwise
// ChaCha20-Poly1305, since AES in software is slow and leaks through the cache.
func PreferredSuites() []profiles.Suite {
	if hasAESGCM() {
		return []profiles.Suite{profiles.AES256GCM, profiles.ChaCha20Poly1305}
	}
	return []profiles.Suite{profiles.ChaCha20Poly1305, profiles.AES256GCM}
}

// HasSuite tells whether this package has the suite.
func HasSuite(s profiles.Suite) bool {
	return s == profiles.AES256GCM || s == profiles.ChaCha20Poly1305
}
