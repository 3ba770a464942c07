package document

import (
	"crypto/subtle"
	"hash"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// assembler puts one set together from its frames, whatever their order (CC-DOC 7.3,
// 7.4). It is a pure machine. The zero value with limits is ready.
//
// A RESPONSE is a member as a whole. The pieces of a stream belong to the members
// that their bindings name, and the stream's end ends all of those.
type assembler struct {
	maxProofs int
	maxOctets int
	budget    *buf.Budget // of all sets that are put together at a time
	known     func(alg uint16) bool

	begun   bool
	id      string
	alg     bridge.DigestAlg
	digest  []byte
	count   int // of proofs
	doc     *member
	proofs  []*member // in the order of their arrival
	whole   int       // of them
	octets  int       // of all members
	taken   int       // of the budget
	sum     hash.Hash // over the document so far
	checked bool      // the document is whole and its digest is right
}

// member is the document or a proof, as far as it has come.
type member struct {
	index     uint8
	alg       uint16
	mediaType string
	octets    []byte
	whole     bool
}

func failure(code bridge.Code, text string) error { return &bridge.Error{Code: code, Text: text} }

// add takes one frame. done says that the set is complete. After an error the
// assembler is only good for discard.
func (a *assembler) add(p *carriage.Part) (done bool, err error) {
	if len(p.Binding) == 0 { // CC-DOC 6.1
		return false, failure(bridge.CodeBindingMalformed, "a part without a document binding")
	}
	v, err := bridge.ParseBinding(p.Binding)
	if err != nil {
		return false, err
	}
	if err := a.agree(&v); err != nil {
		return false, err
	}
	m, err := a.member(&v, p.Kind)
	if err != nil {
		return false, err
	}
	n := len(p.Foreign)
	if n > a.maxOctets-a.octets || !a.budget.Take(n) {
		return false, failure(bridge.CodeSetIncomplete, "the document set is larger than is received here")
	}
	a.octets += n
	a.taken += n
	m.octets = append(m.octets, p.Foreign...)
	if m == a.doc {
		a.sum.Write(p.Foreign)
	}
	switch p.Kind {
	case bridge.KindResponse:
		a.close(m)
	case bridge.KindEnd:
		if a.doc != nil {
			a.close(a.doc)
		}
		for _, m := range a.proofs {
			a.close(m)
		}
	}
	if err := a.verify(); err != nil {
		return false, err
	}
	return a.checked && a.whole == a.count, nil
}

// agree holds a binding to those of the set's other parts (CC-DOC 6.2, 6.3).
func (a *assembler) agree(v *bridge.Binding) error {
	if !a.begun {
		if int(v.ProofCount) > a.maxProofs {
			return failure(bridge.CodeSetIncomplete, "more proofs than are received here")
		}
		a.begun, a.id, a.alg, a.count = true, string(v.DocID), v.Alg, int(v.ProofCount)
		a.digest = append([]byte(nil), v.Digest...)
		a.sum = newHash(v.Alg) // ParseBinding knows it
		return nil
	}
	switch {
	case string(v.DocID) != a.id && (v.Part == bridge.PartProof || a.doc == nil):
		return failure(bridge.CodeProofUnbound, "a proof of another document")
	case string(v.DocID) != a.id:
		return failure(bridge.CodeBindingMalformed, "two documents in one set")
	case v.Alg != a.alg, int(v.ProofCount) != a.count, string(v.Digest) != string(a.digest):
		return failure(bridge.CodeBindingMalformed, "the parts of the set disagree")
	}
	return nil
}

// member returns the member that a frame belongs to.
func (a *assembler) member(v *bridge.Binding, k bridge.Kind) (*member, error) {
	var m *member
	if v.Part == bridge.PartDocument {
		m = a.doc
	} else {
		for _, p := range a.proofs {
			if p.index == v.ProofIndex {
				m = p
				break
			}
		}
	}
	switch {
	case m == nil:
		m = &member{alg: v.ProofAlg, mediaType: string(v.MediaType)}
		if v.Part == bridge.PartDocument {
			a.doc = m
		} else {
			m.index = v.ProofIndex
			a.proofs = append(a.proofs, m)
		}
	case m.whole, k == bridge.KindResponse:
		return nil, failure(bridge.CodeBindingMalformed, "a part that has come before")
	case m.alg != v.ProofAlg, m.mediaType != string(v.MediaType):
		return nil, failure(bridge.CodeBindingMalformed, "the pieces of a part disagree")
	}
	return m, nil
}

func (a *assembler) close(m *member) {
	if m.whole {
		return
	}
	m.whole = true
	if m != a.doc {
		a.whole++
	}
}

// verify compares the digest once the document is whole (CC-DOC 5, 7.4).
func (a *assembler) verify() error {
	if a.checked || a.doc == nil || !a.doc.whole {
		return nil
	}
	if subtle.ConstantTimeCompare(a.sum.Sum(nil), a.digest) != 1 {
		return failure(bridge.CodeDigestMismatch, "the document is not the one that its digest is of")
	}
	a.checked = true
	return nil
}

// set returns the complete set, whose octets are the caller's.
func (a *assembler) set() *Set {
	s := &Set{
		ID: a.id, MediaType: a.doc.mediaType, Alg: a.alg, Digest: a.digest, Document: a.doc.octets,
		Proofs: make([]Proof, a.count),
	}
	for _, m := range a.proofs {
		p := Proof{Alg: m.alg, MediaType: m.mediaType, Octets: m.octets}
		if a.known != nil && !a.known(m.alg) {
			p.Err = failure(bridge.CodeProofUnsupported, "proof algorithm "+algName(m.alg)+" is not known here")
		}
		s.Proofs[m.index] = p
	}
	a.discard()
	return s
}

// discard lets go of everything. It may be called more than once.
func (a *assembler) discard() {
	a.budget.Give(a.taken)
	a.taken = 0
	a.doc, a.proofs = nil, nil
}
