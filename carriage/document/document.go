// Package document carries documents and their detached proofs as sets (CC-DOC):
// agent cards, catalogs, schemas. What arrives is octet for octet what was sent, and
// nobody sees any of it before the set is complete and the document's digest is
// recomputed.
//
//	Receiver.Fetch -> REQUEST -------------------> Server.Get
//	               <- part, part, ... <----------- Respond
//	               -> ERROR (codes 16 to 21)       unless all is well
//
// A set crosses one channel whole: the Bridge channel, or the Discovery channel
// where a second Bridge is attached to it:
//
//	docs := carriage.New(carriage.Config{Channel: wire.ChannelDiscovery, ...})
//	discovery.New(discovery.Config{Documents: docs.Attach, ...})
//
// Both peers must have configured the same number for the DocumentBinding TLV (D7).
// Without one a document without proofs crosses as one plain RESPONSE (D24), and
// anything else is refused.
//
// Whether a proof proves anything is for who receives it to find out. Nothing here
// checks a signature.
package document

import (
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"hash"
	"strconv"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// MaxProofs is how many proofs a set can have.
const MaxProofs = 255

// The kinds of proofs that are signatures of the core specification (CC-DOC 6.4).
const (
	ProofEd25519 = uint16(profiles.Ed25519)
	ProofMLDSA87 = uint16(profiles.MLDSA87)
)

// Errors.
var (
	// ErrSet: the set can't be carried as one: its id or media type is empty or over
	// 255 octets, it has more than MaxProofs proofs, or its digest is not known to us.
	ErrSet = errors.New("document: impossible set")
	// ErrProofs: a set with proofs where there can be none: without a configured
	// number for bindings, or in a notification (CC-DOC 7.2).
	ErrProofs = errors.New("document: proofs can't be carried here")
	// ErrNotDocument: the notification carries no document.
	ErrNotDocument = errors.New("document: not a document")
)

// Proof is a detached proof: a signature, a receipt, a key binding.
type Proof struct {
	// Alg is what kind of proof it is: ProofEd25519, ProofMLDSA87, or another by
	// agreement.
	Alg uint16
	// MediaType is that of Octets, and may be empty.
	MediaType string
	// Octets are the proof as it was made.
	Octets []byte
	// Err is set on a received proof of a kind that the Receiver does not know: a
	// *bridge.Error with CodeProofUnsupported. Such a proof is there, and can't be
	// checked.
	Err error
}

// Set is a document with its proofs. A received one owns its octets.
type Set struct {
	// ID names the document, 1 to 255 octets, the same in all parts of the set.
	ID string
	// MediaType is the document's, 1 to 255 octets of UTF-8.
	MediaType string
	// Alg and Digest are over Document. Alg is 0 for a document that came without a
	// binding, because no number is configured.
	Alg    bridge.DigestAlg
	Digest []byte
	// Document is the document, octet for octet.
	Document []byte
	// Proofs are in the order of their indices.
	Proofs []Proof
}

// New makes a set to be sent. It keeps what it is given, which must not be changed.
// alg 0 is bridge.DigestSHA256. The error is ErrSet.
func New(id, mediaType string, alg bridge.DigestAlg, document []byte, proofs ...Proof) (*Set, error) {
	if alg == 0 {
		alg = bridge.DigestSHA256
	}
	h := newHash(alg)
	if h == nil || len(proofs) > MaxProofs {
		return nil, ErrSet
	}
	h.Write(document)
	s := &Set{ID: id, MediaType: mediaType, Alg: alg, Digest: h.Sum(nil), Document: document, Proofs: proofs}
	if _, err := s.Parts(); err != nil {
		return nil, err
	}
	return s, nil
}

// newHash returns nil for an unknown algorithm.
func newHash(alg bridge.DigestAlg) hash.Hash {
	switch alg {
	case bridge.DigestSHA256:
		return sha256.New()
	case bridge.DigestSHA384:
		return sha512.New384()
	case bridge.DigestSHA512:
		return sha512.New()
	}
	return nil
}

// Parts returns the set's members with their bindings, the document first. They are
// views of the set. The error is ErrSet.
func (s *Set) Parts() ([]carriage.SetPart, error) {
	if len(s.Proofs) > MaxProofs {
		return nil, ErrSet
	}
	v := bridge.Binding{
		Part: bridge.PartDocument, DocID: []byte(s.ID), MediaType: []byte(s.MediaType),
		Alg: s.Alg, Digest: s.Digest, ProofCount: uint8(len(s.Proofs)),
	}
	parts := make([]carriage.SetPart, 0, 1+len(s.Proofs))
	add := func(octets []byte) error {
		binding, err := v.Append(nil)
		parts = append(parts, carriage.SetPart{Binding: binding, Foreign: octets})
		if err != nil {
			return errors.Join(ErrSet, err)
		}
		return nil
	}
	if err := add(s.Document); err != nil {
		return nil, err
	}
	v.Part = bridge.PartProof
	for i := range s.Proofs {
		p := &s.Proofs[i]
		v.MediaType, v.ProofIndex, v.ProofAlg = []byte(p.MediaType), uint8(i), p.Alg
		if err := add(p.Octets); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// Respond answers a request with a set; afterwards the set must not be changed until
// o.Over was called. Without a configured number the document alone is the RESPONSE,
// if it has no proofs, and Over is not called. An error says that the set can't be
// carried; the request is then refused with its code, unless it is
// carriage.ErrAnswered.
func Respond(r *carriage.Request, s *Set, o carriage.SetOptions) error {
	if !r.Sets() {
		if len(s.Proofs) > 0 {
			return refuse(r, ErrProofs)
		}
		return r.Respond(s.Document)
	}
	parts, err := s.Parts()
	if err != nil {
		return refuse(r, err)
	}
	if err := r.RespondSet(parts, o); err != nil {
		return refuse(r, err)
	}
	return nil
}

func refuse(r *carriage.Request, err error) error {
	if err == carriage.ErrAnswered || errors.Is(err, assoc.ErrClosed) {
		return err
	}
	code := bridge.CodeNotDelivered
	if errors.Is(err, bridge.ErrAmbiguous) {
		code = bridge.CodeDigestUnstable // CC-DOC 4
	}
	if r.Refuse(code, err.Error()) != nil {
		return carriage.ErrAnswered
	}
	return err
}

// Server is a carriage.Handler that answers requests for documents
// (Inbound.Document), and leaves everything else to another one.
type Server struct {
	// Get returns the set that a request asks for, which must not be changed from then
	// on. An error refuses the request with the code that it has (bridge.CodeOf, such
	// as a *bridge.Error), or NotDelivered. It is called where a Handler is.
	Get func(r *carriage.Request) (*Set, error)
	// Options are how sets are sent. Over is called for each.
	Options carriage.SetOptions
	// Next serves what asks for no document; nil refuses it.
	Next carriage.Handler
	// Pushed takes a document that a peer sends unasked (CC-DOC 7.2), for which it is
	// borrowed; nil leaves it to Next.
	Pushed func(n *carriage.Notify)
}

// ServeRequest implements carriage.Handler.
func (s *Server) ServeRequest(r *carriage.Request) {
	if !r.Document() || s.Get == nil {
		if s.Next == nil {
			_ = r.Refuse(bridge.CodeMethodUnsupported, "only documents are served here") // nobody else answers
			return
		}
		s.Next.ServeRequest(r)
		return
	}
	set, err := s.Get(r)
	if err != nil {
		code := bridge.CodeOf(err)
		if code == 0 {
			code = bridge.CodeNotDelivered
		}
		text := err.Error()
		var told *bridge.Error
		if errors.As(err, &told) {
			text = told.Text
		}
		_ = r.Refuse(code, text) // nobody else answers
		return
	}
	_ = Respond(r, set, s.Options) // refuses what it can't carry
}

// ServeNotify implements carriage.Handler.
func (s *Server) ServeNotify(n *carriage.Notify) {
	switch {
	case len(n.Binding()) > 0 && s.Pushed != nil:
		s.Pushed(n)
	case s.Next != nil:
		s.Next.ServeNotify(n)
	}
}

func algName(alg uint16) string { return "0x" + strconv.FormatUint(uint64(alg), 16) }
