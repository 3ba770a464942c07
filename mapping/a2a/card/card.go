// Package card signs A2A agent cards and checks their signatures (A2A 8.4), and makes
// document sets of signed cards (MAP-A2A 7).
//
// Carriage never looks into a card: it arrives octet for octet. Whoever received one
// calls Verify with those octets when it wants to know who signed it, and decides
// itself which keys it trusts. Nothing here fetches a key.
//
// A signature is a JSON Web Signature without its payload (RFC 7515, appendix F).
// What is signed is the card without its signatures member, in the canonical form of
// RFC 8785. A2A 8.4.1 and 8.4.3 disagree on members that have a default value; here
// the card is taken as it was received, so that what is verified is what was sent
// and not a reading of it.
package card

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/gowebpki/jcs"

	"github.com/trestle-npamp/trestle/carriage/document"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// The algorithms of signatures by their JOSE names (RFC 8037, RFC 9864, and the
// registration of ML-DSA).
const (
	AlgEdDSA   = "EdDSA"   // with an Ed25519 key
	AlgEd25519 = "Ed25519" // the same, named in full; accepted and not made
	AlgMLDSA87 = "ML-DSA-87"
)

// Media types of the members of a document set.
const (
	MediaType      = "application/json"
	ProofMediaType = "application/jose+json"
)

// DocumentID names the card in its document set.
const DocumentID = "agent-card"

// Errors.
var (
	// ErrCard: the octets are no JSON object that has a canonical form: it has a member
	// twice, text that is not UTF-8 or half a surrogate pair.
	ErrCard = errors.New("card: not a card that can be signed")
	// ErrSignatureFormat: a member of signatures is no JSON Web Signature of an agent
	// card.
	ErrSignatureFormat = errors.New("card: malformed signature")
	// ErrAlgorithm: the signature is of another kind than the key, or of one that is
	// not known here.
	ErrAlgorithm = errors.New("card: signature algorithm is not the key's")
	// ErrSignature: the signature is not the key's over this card.
	ErrSignature = errors.New("card: signature does not verify")
	// ErrNoSignature: none of the card's signatures is by a key that is trusted.
	ErrNoSignature = errors.New("card: no signature by a trusted key")
)

// Header is what we read of a signature's protected header.
type Header struct {
	Algorithm string `json:"alg"`
	Type      string `json:"typ,omitempty"`
	KeyID     string `json:"kid"`
	KeySet    string `json:"jku,omitempty"` // a URL, which is never fetched here
}

// Signature is one member of a card's signatures.
type Signature struct {
	Header
	// Octets are the member as it stands in the card.
	Octets []byte

	protected string
	signature []byte
}

// ParseSignature reads a member of a card's signatures, or the detached proof that it
// was carried as. The result refers to octets. The error is ErrSignatureFormat.
func ParseSignature(octets []byte) (*Signature, error) {
	fail := func(why string) (*Signature, error) { return nil, fmt.Errorf("%w: %s", ErrSignatureFormat, why) }
	var raw map[string]json.RawMessage
	if err := unmarshal(octets, &raw); err != nil || raw == nil {
		return fail("not a JSON object")
	}
	var protected, signature string
	switch {
	case json.Unmarshal(raw["protected"], &protected) != nil, protected == "":
		return fail("no protected header")
	case json.Unmarshal(raw["signature"], &signature) != nil, signature == "":
		return fail("no signature")
	}
	if _, has := raw["payload"]; has {
		return fail("a payload of its own")
	}
	header, err := decode(protected)
	if err != nil {
		return fail("protected header is not base64url")
	}
	s := &Signature{Octets: octets, protected: protected}
	if s.signature, err = decode(signature); err != nil {
		return fail("signature is not base64url")
	}
	var members map[string]json.RawMessage
	if err := unmarshal(header, &members); err != nil || members == nil {
		return fail("protected header is not a JSON object")
	}
	if _, has := members["crit"]; has { // RFC 7515, section 4.1.11: none is understood
		return fail("critical header parameters")
	}
	if err := member(members, "alg", &s.Algorithm); err != nil || s.Algorithm == "" {
		return fail("no algorithm in the protected header")
	}
	if member(members, "kid", &s.KeyID) != nil || member(members, "typ", &s.Type) != nil || member(members, "jku", &s.KeySet) != nil {
		return fail("header parameter of the wrong type")
	}
	return s, nil
}

// decode reads base64url without padding, and without the line ends that the standard
// library passes over (RFC 7515, section 2).
func decode(text string) ([]byte, error) {
	if strings.ContainsAny(text, "\r\n") {
		return nil, ErrSignatureFormat
	}
	return base64.RawURLEncoding.Strict().DecodeString(text)
}

// member reads a string member, if there is one.
func member(members map[string]json.RawMessage, name string, to *string) error {
	raw, has := members[name]
	if !has {
		return nil
	}
	if len(raw) == 0 || raw[0] != '"' {
		return ErrSignatureFormat
	}
	return json.Unmarshal(raw, to)
}

// unmarshal refuses what two readers could read in two ways.
func unmarshal(octets []byte, to any) error {
	if !utf8.Valid(octets) {
		return ErrCard
	}
	if _, err := jcs.Transform(octets); err != nil {
		return err
	}
	return json.Unmarshal(octets, to)
}

// split reads a card's members.
func split(card []byte) (map[string]json.RawMessage, error) {
	var members map[string]json.RawMessage
	if err := unmarshal(bytes.TrimPrefix(card, []byte("\xef\xbb\xbf")), &members); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCard, err)
	}
	if members == nil {
		return nil, ErrCard
	}
	return members, nil
}

// Payload returns what a card's signatures are over: the card without them, in the
// canonical form of RFC 8785 (A2A 8.4.1). A byte order mark before the card is
// passed over. The error wraps ErrCard.
func Payload(card []byte) ([]byte, error) {
	members, err := split(card)
	if err != nil {
		return nil, err
	}
	delete(members, "signatures")
	plain, err := json.Marshal(members)
	if err == nil {
		plain, err = jcs.Transform(plain)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCard, err)
	}
	return plain, nil
}

// Signatures returns a card's signatures in their order. One that is malformed is
// nil. The error wraps ErrCard.
func Signatures(card []byte) ([]*Signature, error) {
	members, err := split(card)
	if err != nil {
		return nil, err
	}
	raw, has := members["signatures"]
	if !has {
		return nil, nil
	}
	list, err := array(raw)
	if err != nil {
		return nil, err
	}
	all := make([]*Signature, len(list))
	for i, octets := range list {
		all[i], _ = ParseSignature(octets) // nil says it
	}
	return all, nil
}

func array(raw json.RawMessage) (list []json.RawMessage, err error) {
	if raw[0] != '[' {
		return nil, fmt.Errorf("%w: signatures is not an array", ErrCard)
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCard, err)
	}
	return list, nil
}

// scheme is the kind of keys that make signatures of an algorithm.
func scheme(algorithm string) (profiles.Scheme, bool) {
	switch algorithm {
	case AlgEdDSA, AlgEd25519:
		return profiles.Ed25519, true
	case AlgMLDSA87:
		return profiles.MLDSA87, true
	}
	return 0, false
}

// Verify checks one signature over a card with a key that the caller trusts for it.
// card is what was received, whole; s is one of its Signatures, or a detached proof's
// (ParseSignature). Errors: ErrCard, ErrAlgorithm, ErrSignature.
func Verify(card []byte, s *Signature, key identity.PublicKey) error {
	if !s.isOf(key) {
		return ErrAlgorithm
	}
	payload, err := Payload(card)
	if err != nil {
		return err
	}
	return s.verify(payload, key)
}

// isOf says that the signature is of the kind that the key makes.
func (s *Signature) isOf(key identity.PublicKey) bool {
	want, known := scheme(s.Algorithm)
	return known && !key.IsZero() && key.Scheme() == want
}

func (s *Signature) verify(payload []byte, key identity.PublicKey) error {
	if !s.isOf(key) {
		return ErrAlgorithm
	}
	if !key.Verify(input(s.protected, payload), s.signature) {
		return ErrSignature
	}
	return nil
}

// MaxClaims is how many of a card's signatures VerifyAny checks.
const MaxClaims = 16

// VerifyAny returns the first of a card's signatures that is by a trusted key. trusted
// returns the key that is trusted for what a header claims, of which nothing is
// checked yet: with a zero key the signature is passed over. ErrNoSignature says that
// none was found; it wraps what was wrong with those that claimed a trusted key. After
// MaxClaims of those it looks no further: anybody can write any number of them.
func VerifyAny(card []byte, trusted func(h *Header) identity.PublicKey) (*Signature, error) {
	all, err := Signatures(card)
	if err != nil {
		return nil, err
	}
	payload, err := Payload(card)
	if err != nil {
		return nil, err
	}
	why := []error{ErrNoSignature}
	for _, s := range all {
		if s == nil {
			continue
		}
		key := trusted(&s.Header)
		if key.IsZero() {
			continue
		}
		err := s.verify(payload, key)
		if err == nil {
			return s, nil
		}
		if why = append(why, err); len(why) > MaxClaims {
			break
		}
	}
	return nil, errors.Join(why...)
}

// input is what is signed (RFC 7515, section 5.1).
func input(protected string, payload []byte) []byte {
	b := make([]byte, 0, len(protected)+1+base64.RawURLEncoding.EncodedLen(len(payload)))
	b = append(append(b, protected...), '.')
	return base64.RawURLEncoding.AppendEncode(b, payload)
}

// Sign makes a signature over a card, which may have others already: a JSON object as
// it stands in a card's signatures. h says under which KeyID, and perhaps KeySet; the
// rest of it is filled in. The error wraps ErrCard, or is the key's.
func Sign(card []byte, key identity.PrivateKey, h Header) ([]byte, error) {
	payload, err := Payload(card)
	if err != nil {
		return nil, err
	}
	switch key.Public().Scheme() {
	case profiles.Ed25519:
		h.Algorithm = AlgEdDSA
	case profiles.MLDSA87:
		h.Algorithm = AlgMLDSA87
	default:
		return nil, ErrAlgorithm
	}
	h.Type = "JOSE"
	header, err := json.Marshal(&h)
	if err != nil {
		return nil, err
	}
	protected := base64.RawURLEncoding.EncodeToString(header)
	signature, err := key.Sign(input(protected, payload))
	if err != nil {
		return nil, err
	}
	return json.Marshal(struct {
		Protected string `json:"protected"`
		Signature string `json:"signature"`
	}{protected, base64.RawURLEncoding.EncodeToString(signature)})
}

// Attach returns the card with one more signature in it. All other octets stay as they
// are. The error wraps ErrCard.
func Attach(card, signature []byte) ([]byte, error) {
	members, err := split(card)
	if err != nil {
		return nil, err
	}
	raw, has := members["signatures"]
	if !has {
		end := bytes.LastIndexByte(card, '}') // of the object: only white space follows it
		glue := ","
		if len(members) == 0 {
			glue = ""
		}
		return splice(card, end, glue+`"signatures":[`, signature, "]"), nil
	}
	list, err := array(raw)
	if err != nil {
		return nil, err
	}
	at, err := endOf(card, "signatures")
	if err != nil {
		return nil, err
	}
	glue := ","
	if len(list) == 0 {
		glue = ""
	}
	return splice(card, at-1, glue, signature, ""), nil
}

func splice(card []byte, at int, before string, what []byte, after string) []byte {
	out := make([]byte, 0, len(card)+len(before)+len(what)+len(after))
	out = append(append(out, card[:at]...), before...)
	out = append(append(out, what...), after...)
	return append(out, card[at:]...)
}

// endOf returns where a top-level member's value ends. The card is one that split
// accepts.
func endOf(card []byte, name string) (int, error) {
	body := bytes.TrimPrefix(card, []byte("\xef\xbb\xbf"))
	skipped := len(card) - len(body)
	d := json.NewDecoder(bytes.NewReader(body))
	if _, err := d.Token(); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrCard, err)
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return 0, fmt.Errorf("%w: %w", ErrCard, err)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return 0, fmt.Errorf("%w: %w", ErrCard, err)
		}
		if key == name {
			return skipped + int(d.InputOffset()), nil
		}
	}
	return 0, ErrCard
}

// Document makes a document set of a card as it is: each signature in it whose
// algorithm is one of the core specification's is a detached proof too, its octets
// those in the card (MAP-A2A 7). Others have no number to be carried under, and are
// in the card alone. A card that has no canonical form is carried all the same,
// without proofs. The error is document.ErrSet.
func Document(card []byte, alg bridge.DigestAlg) (*document.Set, error) {
	all, err := Signatures(card)
	if err != nil {
		all = nil
	}
	var proofs []document.Proof
	for _, s := range all {
		if s == nil || len(proofs) == document.MaxProofs {
			continue
		}
		if scheme, known := scheme(s.Algorithm); known {
			proofs = append(proofs, document.Proof{Alg: uint16(scheme), MediaType: ProofMediaType, Octets: s.Octets})
		}
	}
	return document.New(DocumentID, MediaType, alg, card, proofs...)
}

// VerifyProof checks a detached proof of a received set like one of the card's own
// signatures. Errors: ErrSignatureFormat, ErrAlgorithm (which a proof under another
// number than its algorithm's gets too), ErrCard, ErrSignature.
func VerifyProof(s *document.Set, p *document.Proof, key identity.PublicKey) error {
	signature, err := ParseSignature(p.Octets)
	if err != nil {
		return err
	}
	if want, known := scheme(signature.Algorithm); !known || uint16(want) != p.Alg {
		return ErrAlgorithm
	}
	return Verify(s.Document, signature, key)
}
