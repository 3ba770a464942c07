// Package profiles holds the three security profiles of N-PAMP as data: which
// key exchanges, signature schemes, AEAD suites and hash each of them uses,
// how long its traffic keys may live and which channels it opens.
//
// There is no behaviour here beyond looking things up. The code points are
// those of draft-bubblefish-npamp-02, section 6 and 7.
package profiles

import (
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"hash"
	"slices"
	"time"

	"github.com/trestle-npamp/trestle/wire"
)

// Hash is the hash function under a profile's HKDF, HMAC and transcript. It is
// not a code point; it follows from the profile.
type Hash uint8

// The hashes in use.
const (
	SHA256 Hash = 1 // Standard
	SHA384 Hash = 2 // High, Sovereign
)

// MaxHashSize is the greatest Size of any Hash, in octets.
const MaxHashSize = sha512.Size384

// Size is the length of the digest in octets: 32 or 48, and 0 for an unknown
// hash.
func (h Hash) Size() int {
	switch h {
	case SHA256:
		return sha256.Size
	case SHA384:
		return sha512.Size384
	}
	return 0
}

// BlockSize is the length of the hash's input block in octets: 64 or 128, and
// 0 for an unknown hash.
func (h Hash) BlockSize() int {
	switch h {
	case SHA256:
		return sha256.BlockSize
	case SHA384:
		return sha512.BlockSize
	}
	return 0
}

// New returns a fresh state of the hash. It is nil for an unknown hash, which
// no Profile has.
func (h Hash) New() hash.Hash {
	switch h {
	case SHA256:
		return sha256.New()
	case SHA384:
		return sha512.New384()
	}
	return nil
}

func (h Hash) String() string {
	switch h {
	case SHA256:
		return "SHA-256"
	case SHA384:
		return "SHA-384"
	}
	return fmt.Sprintf("Hash(%d)", uint8(h))
}

// KEM is the code point of a hybrid key exchange (2 octets on the wire).
type KEM uint16

// The registered key exchanges. The names put X25519 first, the octets on the
// wire and in the shared secret put ML-KEM first.
const (
	X25519MLKEM768  KEM = 0x11ec
	X25519MLKEM1024 KEM = 0x11ed
)

func (k KEM) String() string {
	switch k {
	case X25519MLKEM768:
		return "X25519MLKEM768"
	case X25519MLKEM1024:
		return "X25519MLKEM1024"
	}
	return fmt.Sprintf("KEM(0x%04x)", uint16(k))
}

// Suite is the code point of an AEAD suite (2 octets on the wire). Every
// registered suite has a 32-octet key, a 12-octet nonce and a 16-octet tag.
type Suite uint16

// The registered suites.
const (
	AES256GCM        Suite = 0x0001
	ChaCha20Poly1305 Suite = 0x0002
)

// Other is the suite that per-frame diversification pairs with s, and 0 for an
// unknown suite.
func (s Suite) Other() Suite {
	switch s {
	case AES256GCM:
		return ChaCha20Poly1305
	case ChaCha20Poly1305:
		return AES256GCM
	}
	return 0
}

func (s Suite) String() string {
	switch s {
	case AES256GCM:
		return "AES-256-GCM"
	case ChaCha20Poly1305:
		return "ChaCha20-Poly1305"
	}
	return fmt.Sprintf("Suite(0x%04x)", uint16(s))
}

// Scheme is the code point of a signature scheme (2 octets on the wire).
type Scheme uint16

// The registered schemes.
const (
	Ed25519 Scheme = 0x0807 // RFC 8032: 32-octet key, 64-octet signature
	MLDSA87 Scheme = 0x0905 // FIPS 204, pure, empty context: 2592-octet key, 4627-octet signature
)

func (s Scheme) String() string {
	switch s {
	case Ed25519:
		return "Ed25519"
	case MLDSA87:
		return "ML-DSA-87"
	}
	return fmt.Sprintf("Scheme(0x%04x)", uint16(s))
}

// Bounds says how long one traffic key may be used, per channel and direction;
// the first bound reached demands a KEY_UPDATE. The numbers are ours (D1): the
// draft makes updates mandatory and leaves the bounds open.
type Bounds struct {
	Frames uint64        // frames sealed under one key
	Octets uint64        // plaintext octets sealed under one key
	Age    time.Duration // since the key came into use, checked when sending
}

// Profile is one security profile. The exported values are shared and must not
// be modified.
type Profile struct {
	// Code is the profile's code point, one octet in ProfileOffer.
	Code uint8
	Name string
	// Hash is under HKDF, HMAC and the transcript.
	Hash Hash
	// KEMs are the accepted key exchanges, the preferred one first (D26).
	KEMs []KEM
	// Schemes are the accepted signature schemes, the preferred one first.
	Schemes []Scheme
	// Suites are the accepted AEAD suites in no order: the machine decides
	// which one is fast.
	Suites []Suite
	// Diversify tells that even sequence numbers are sealed with the selected
	// suite and odd ones with the other (D2). An endpoint of such a profile
	// has both suites.
	Diversify bool
	// Bounds may be tightened by configuration, never widened.
	Bounds Bounds
}

var suites = []Suite{AES256GCM, ChaCha20Poly1305}

// The three profiles.
var (
	Standard = &Profile{
		Code:    0x01,
		Name:    "Standard",
		Hash:    SHA256,
		KEMs:    []KEM{X25519MLKEM768, X25519MLKEM1024},
		Schemes: []Scheme{Ed25519},
		Suites:  suites,
		Bounds:  Bounds{Frames: 1 << 24, Octets: 64 << 30, Age: time.Hour},
	}
	High = &Profile{
		Code:      0x02,
		Name:      "High",
		Hash:      SHA384,
		KEMs:      []KEM{X25519MLKEM1024},
		Schemes:   []Scheme{MLDSA87, Ed25519},
		Suites:    suites,
		Diversify: true,
		Bounds:    Bounds{Frames: 1 << 22, Octets: 16 << 30, Age: 30 * time.Minute},
	}
	Sovereign = &Profile{
		Code:      0x03,
		Name:      "Sovereign",
		Hash:      SHA384,
		KEMs:      []KEM{X25519MLKEM1024},
		Schemes:   []Scheme{MLDSA87},
		Suites:    suites,
		Diversify: true,
		Bounds:    Bounds{Frames: 1 << 20, Octets: 4 << 30, Age: 10 * time.Minute},
	}
)

var all = []*Profile{Standard, High, Sovereign}

// All lists the profiles, the weakest first.
func All() []*Profile { return slices.Clone(all) }

// ByCode finds a profile by its code point, nil if it is reserved.
func ByCode(code uint8) *Profile {
	for _, p := range all {
		if p.Code == code {
			return p
		}
	}
	return nil
}

// ByName finds a profile by its registered name, nil if there is none.
func ByName(name string) *Profile {
	for _, p := range all {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// CommonScheme is the signature scheme for an identity that all of the profiles
// accept: Ed25519 where they take it, since its keys and signatures are a fiftieth
// of ML-DSA-87's, and 0 where there is none.
func CommonScheme(ps ...*Profile) Scheme {
	for _, s := range []Scheme{Ed25519, MLDSA87} {
		if len(ps) > 0 && !slices.ContainsFunc(ps, func(p *Profile) bool { return !p.AcceptsScheme(s) }) {
			return s
		}
	}
	return 0
}

// AcceptsKEM tells whether the profile accepts the key exchange.
func (p *Profile) AcceptsKEM(k KEM) bool { return slices.Contains(p.KEMs, k) }

// AcceptsScheme tells whether the profile accepts the signature scheme.
func (p *Profile) AcceptsScheme(s Scheme) bool { return slices.Contains(p.Schemes, s) }

// AcceptsSuite tells whether the profile accepts the AEAD suite.
func (p *Profile) AcceptsSuite(s Suite) bool { return slices.Contains(p.Suites, s) }

// String is the profile's name.
func (p *Profile) String() string {
	if p == nil {
		return "none"
	}
	return p.Name
}

// lowest has, for every assigned channel, the code of the weakest profile that
// opens it; a channel beyond it is unassigned.
var lowest = [...]uint8{
	wire.ChannelControl:     0x01,
	wire.ChannelMemory:      0x01,
	wire.ChannelCapability:  0x01,
	wire.ChannelIdentity:    0x01,
	wire.ChannelGovernance:  0x02,
	wire.ChannelImmune:      0x01,
	wire.ChannelFederation:  0x02,
	wire.ChannelSettlement:  0x01,
	wire.ChannelCompliance:  0x02,
	wire.ChannelSensory:     0x02,
	wire.ChannelTelemetry:   0x01,
	wire.ChannelAudit:       0x03,
	wire.ChannelStream:      0x01,
	wire.ChannelBridge:      0x01,
	wire.ChannelCommerce:    0x01,
	wire.ChannelInteraction: 0x01,
	wire.ChannelDiscovery:   0x01,
	wire.ChannelWorkflow:    0x01,
	wire.ChannelKnowledge:   0x01,
	wire.ChannelSpatial:     0x02,
}

// ChannelAllowed tells whether an association of profile p may use the
// channel: it is assigned and its lowest profile is not above p. GREASE and
// unassigned channels are not allowed at any profile.
func ChannelAllowed(p *Profile, ch wire.Channel) bool {
	return p != nil && int(ch) < len(lowest) && p.Code >= lowest[ch]
}
