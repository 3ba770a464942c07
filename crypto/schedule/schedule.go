// Package schedule derives every key of an association: the handshake's
// secrets, each channel's traffic keys, and the roots they hang from, which the
// ratchet moves on.
//
//	secret (KEM) -> handshake_secret -> c hs, s hs -> AUTH traffic keys, finished keys
//	                                 -> master -> Root c2s -> (epoch, suite, channel) -> key, iv
//	                                           -> Root s2c -> ...
//
// Sources: draft-bubblefish-npamp-02 section 7 and its handshake binding,
// sections 3, 5, 6 and 9. Nothing here allocates but the constructors, and
// nothing keeps a secret longer than its owner does.
package schedule

import (
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"

	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
)

// Sizes of what a traffic secret gives, in octets, the same for every suite.
const (
	KeyLen = 32
	IVLen  = 12
)

// Transcript is the running hash over the handshake's messages: for each frame
// its two-octet type, then its TLVs as they stand on the wire, and nothing else
// of the frame. The zero value is not usable.
type Transcript struct {
	h hash.Hash
	// What passes through an interface moves to the heap; this is there already.
	scratch [profiles.MaxHashSize]byte
}

// NewTranscript returns an empty transcript over the profile's hash.
func NewTranscript(h profiles.Hash) *Transcript { return &Transcript{h: h.New()} }

// AddFrameType absorbs the frame type that the next TLVs belong to.
func (t *Transcript) AddFrameType(ft wire.FrameType) {
	t.h.Write(append(t.scratch[:0], byte(ft>>8), byte(ft)))
}

// AddTLV absorbs one TLV as type, length and value. A value over 65535 octets
// is the caller's mistake: no TLV on the wire has one.
func (t *Transcript) AddTLV(typ wire.TLVType, value []byte) {
	t.h.Write(append(t.scratch[:0], byte(typ>>8), byte(typ), byte(len(value)>>8), byte(len(value))))
	t.h.Write(value)
}

// AddTLVs absorbs TLVs in the form they have on the wire, for instance a
// message's whole payload.
func (t *Transcript) AddTLVs(raw []byte) { t.h.Write(raw) }

// Sum returns the hash over all that was absorbed so far; the transcript goes
// on. Only the first h.Size() octets of the result count.
func (t *Transcript) Sum() Point {
	var p Point
	p.n = copy(p.b[:], t.h.Sum(t.scratch[:0]))
	return p
}

// Point is a transcript hash at one point of the handshake.
type Point struct {
	n int
	b [profiles.MaxHashSize]byte
}

// Bytes is a view of the hash, HashLen octets.
func (p *Point) Bytes() []byte { return p.b[:p.n] }

// Secrets are the handshake's: what the KEM secret becomes once the transcript
// up to SERVER_HELLO is known. Wipe them when the handshake is over.
type Secrets struct {
	h         profiles.Hash
	handshake digest
	hs        [2]digest // by direction: c hs, s hs
}

// NewSecrets extracts the handshake secret from the KEM's and expands both
// directions' handshake secrets under TH_kem. The KEM secret stays the
// caller's to wipe.
func NewSecrets(h profiles.Hash, kemSecret []byte, thKEM *Point) *Secrets {
	s := &Secrets{h: h}
	var zero digest
	n := h.Size()
	extract(h, zero[:n], kemSecret, &s.handshake)
	expandLabel(h, s.handshake[:n], "c hs", thKEM.Bytes(), s.hs[wire.ClientToServer][:n])
	expandLabel(h, s.handshake[:n], "s hs", thKEM.Bytes(), s.hs[wire.ServerToClient][:n])
	return s
}

// AuthRoot is the root under which the AUTH frame of a direction is sealed: its
// handshake secret in the place of the master secret.
func (s *Secrets) AuthRoot(dir wire.Direction) *Root {
	return NewRoot(s.h, dir, s.hs[dir&1][:s.h.Size()])
}

// Finished computes the Finished MAC of a direction's sender over a transcript
// point: TH_sCV for the server, TH_cCV for the client. It has HashLen octets.
func (s *Secrets) Finished(dir wire.Direction, th *Point) (mac Point) {
	var key digest
	n := s.h.Size()
	expandLabel(s.h, s.hs[dir&1][:n], "finished", nil, key[:n])
	mac = finishedMAC(s.h, key[:n], th)
	buf.Wipe(key[:])
	return mac
}

func finishedMAC(h profiles.Hash, key []byte, th *Point) (p Point) {
	mac(h, key, (*digest)(&p.b), th.Bytes())
	p.n = h.Size()
	return p
}

// VerifyFinished compares a received Finished with the expected one in
// constant time.
func (s *Secrets) VerifyFinished(dir wire.Direction, th *Point, got []byte) bool {
	want := s.Finished(dir, th)
	return subtle.ConstantTimeCompare(want.Bytes(), got) == 1
}

// Master derives the master secret under TH_cCV and returns the roots of both
// directions, generation 0, which are all that keeps it.
func (s *Secrets) Master(thCCV *Point) (c2s, s2c *Root) {
	var master digest
	n := s.h.Size()
	expandLabel(s.h, s.handshake[:n], "master", thCCV.Bytes(), master[:n])
	c2s = NewRoot(s.h, wire.ClientToServer, master[:n])
	s2c = NewRoot(s.h, wire.ServerToClient, master[:n])
	buf.Wipe(master[:])
	return c2s, s2c
}

// Wipe erases the secrets.
func (s *Secrets) Wipe() {
	buf.Wipe(s.handshake[:])
	buf.Wipe(s.hs[0][:])
	buf.Wipe(s.hs[1][:])
}

// Format prints no secret, whatever the verb.
func (s Secrets) Format(f fmt.State, _ rune) { io.WriteString(f, "schedule.Secrets(redacted)") }

// Errors of a Root.
var (
	// ErrGeneration is returned when a ratchet has no next generation.
	ErrGeneration = errors.New("schedule: ratchet generation exhausted")
	// ErrWiped is returned when a root was wiped.
	ErrWiped = errors.New("schedule: root was wiped")
)

// Root is what one direction's traffic keys descend from. Both directions start
// at the master secret, generation 0, and ratchet each for itself. A Root
// belongs to the goroutine that owns its association.
type Root struct {
	h      profiles.Hash // 0 once wiped
	dir    wire.Direction
	gen    uint64
	secret digest
}

// NewRoot returns a direction's root at generation 0. The master secret must
// have h.Size() octets; it is copied and stays the caller's to wipe.
func NewRoot(h profiles.Hash, dir wire.Direction, master []byte) *Root {
	if h.Size() == 0 || len(master) != h.Size() {
		panic("schedule: master secret is not a hash long")
	}
	r := &Root{h: h, dir: dir}
	copy(r.secret[:], master)
	return r
}

// Direction is the direction the root belongs to.
func (r *Root) Direction() wire.Direction { return r.dir }

// Generation counts the ratchet's steps, from 0.
func (r *Root) Generation() uint64 { return r.gen }

// Hash is the profile's hash, 0 once the root was wiped.
func (r *Root) Hash() profiles.Hash { return r.h }

// Traffic derives one channel's key and iv for an epoch and suite. On a wiped
// root it returns ErrWiped and zeroes. The caller wipes what it gets.
func (r *Root) Traffic(epoch wire.Epoch, suite profiles.Suite, ch wire.Channel) (key [KeyLen]byte, iv [IVLen]byte, err error) {
	if r == nil || r.h == 0 {
		return key, iv, ErrWiped
	}
	var traffic digest
	t := traffic[:r.h.Size()]
	r.trafficSecret(epoch, suite, ch, t)
	expandLabel(r.h, t, "key", nil, key[:])
	expandLabel(r.h, t, "iv", nil, iv[:])
	buf.Wipe(traffic[:])
	return key, iv, nil
}

func (r *Root) trafficSecret(epoch wire.Epoch, suite profiles.Suite, ch wire.Channel, out []byte) {
	var context [1 + 8 + 2 + 2]byte
	context[0] = byte(r.dir)
	binary.BigEndian.PutUint64(context[1:], uint64(epoch))
	binary.BigEndian.PutUint16(context[9:], uint16(suite))
	binary.BigEndian.PutUint16(context[11:], uint16(ch))
	expandLabel(r.h, r.secret[:r.h.Size()], "traffic", context[:], out)
}

// Ratchet takes the tier-1 step: forward secrecy. The old root is gone
// afterwards, the generation is one higher, and every channel of the direction
// restarts at epoch 0. The errors are ErrGeneration and ErrWiped; then nothing
// changed.
func (r *Root) Ratchet() error {
	gen, err := r.next()
	if err != nil {
		return err
	}
	var context [8]byte
	binary.BigEndian.PutUint64(context[:], gen)
	r.step(gen, r.secret[:r.h.Size()], "master ratchet", context[:])
	return nil
}

// RatchetKEM takes the tier-2 step: it mixes a fresh KEM secret into the root,
// so that the direction heals from an exposed one. thRekem is the point over
// REKEM and REKEM_ACK (RekemPoint). The KEM secret stays the caller's to wipe.
// Otherwise it is like Ratchet.
func (r *Root) RatchetKEM(kemSecret []byte, thRekem *Point) error {
	gen, err := r.next()
	if err != nil {
		return err
	}
	var rekem digest
	extract(r.h, r.secret[:r.h.Size()], kemSecret, &rekem)
	r.step(gen, rekem[:r.h.Size()], "master ratchet rekem", thRekem.Bytes())
	buf.Wipe(rekem[:])
	return nil
}

func (r *Root) next() (uint64, error) {
	if r.h == 0 {
		return 0, ErrWiped
	}
	if r.gen == math.MaxUint64 {
		return 0, ErrGeneration
	}
	return r.gen + 1, nil
}

func (r *Root) step(gen uint64, parent []byte, label string, context []byte) {
	var fresh digest
	expandLabel(r.h, parent, label, context, fresh[:r.h.Size()])
	r.secret = fresh
	r.gen = gen
	buf.Wipe(fresh[:])
}

// Wipe erases the root. Keys that were derived from it are not touched.
func (r *Root) Wipe() {
	buf.Wipe(r.secret[:])
	r.h = 0
}

// Format prints the direction and generation and no secret, whatever the verb.
func (r Root) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "schedule.Root(%s, generation %d, redacted)", r.dir, r.gen)
}

// RekemPoint is TH_rekem, the transcript hash over a REKEM and its REKEM_ACK,
// whose payloads (TLVs) are passed as they stood on the wire before sealing.
func RekemPoint(h profiles.Hash, rekem, rekemAck []byte) Point {
	t := NewTranscript(h)
	t.AddFrameType(wire.TypeRekem)
	t.AddTLVs(rekem)
	t.AddFrameType(wire.TypeRekemAck)
	t.AddTLVs(rekemAck)
	return t.Sum()
}

// Nonce folds a sequence number into an iv: iv XOR (0^4 || seq). The channel is
// not part of it; channels have keys of their own.
func Nonce(iv *[IVLen]byte, seq wire.Seq, nonce *[IVLen]byte) {
	copy(nonce[:4], iv[:4])
	binary.BigEndian.PutUint64(nonce[4:], binary.BigEndian.Uint64(iv[4:])^uint64(seq))
}
