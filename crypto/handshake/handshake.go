// Package handshake is the N-PAMP handshake as a pure machine: frames go in,
// octets come out, and at the end there are two roots and a peer key. It knows
// no connection and no clock, and both roles share it.
//
//	client                                   server
//	CLIENT_HELLO  ------------------------>  chooses, encapsulates, signs
//	              <------------------------  SERVER_HELLO, SERVER_AUTH
//	verifies, asks VerifyPeer
//	CLIENT_AUTH   ------------------------>  verifies, asks VerifyPeer
//	done                                     done
//
// Sources: the handshake binding of draft-bubblefish-npamp-02, sections 1 to 7;
// D12 and D26 for what the documents leave to us.
package handshake

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/crypto/kem"
	"github.com/trestle-npamp/trestle/crypto/record"
	"github.com/trestle-npamp/trestle/crypto/schedule"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
	messages "github.com/trestle-npamp/trestle/wire/handshake"
)

// MaxFrameLen is the longest frame, in octets with its header, that a handshake
// takes. Until it is over a receiver need accept no longer one.
const MaxFrameLen = wire.HeaderLen + messages.MaxPayloadLen + wire.TagLen

// Errors of a configuration; NewClient and NewServer return them.
var (
	// ErrNoVerifier is returned without a VerifyPeer: to accept everybody is a
	// decision, not a default.
	ErrNoVerifier = errors.New("handshake: no VerifyPeer in the configuration")
	// ErrNoIdentity is returned without an Identity.
	ErrNoIdentity = errors.New("handshake: no Identity in the configuration")
	// ErrConfig is returned, wrapped with the reason, for a configuration that
	// could never complete a handshake as it says.
	ErrConfig = errors.New("handshake: contradictory configuration")
)

// Errors of a handshake. All are terminal, and what travels to the peer is the
// same for each (WireCode). Malformed messages give the errors of wire and
// wire/handshake; a bad KEM share or ciphertext gives those of kem.
var (
	ErrChannel     = errors.New("handshake: frame is not on Control")
	ErrUnexpected  = errors.New("handshake: message out of turn")
	ErrSequence    = errors.New("handshake: sequence number is not 0")
	ErrFlags       = errors.New("handshake: flags are not the message's")
	ErrLength      = errors.New("handshake: payload has the wrong length")
	ErrNoCommon    = errors.New("handshake: nothing in the offer is acceptable")
	ErrNotOffered  = errors.New("handshake: the server selected what was not offered")
	ErrScheme      = errors.New("handshake: signature scheme was not negotiated")
	ErrSealed      = errors.New("handshake: AUTH does not authenticate")
	ErrCertVerify  = errors.New("handshake: signature does not verify")
	ErrFinished    = errors.New("handshake: Finished does not verify")
	ErrPeerRefused = errors.New("handshake: peer refused")
	// ErrOver is returned for a frame after the handshake ended, one way or the
	// other.
	ErrOver = errors.New("handshake: already over")
)

// WireCode is the code under which a failed handshake may be reported to the
// peer. It is one for all errors, so that a peer does not learn which check it
// failed.
func WireCode(error) control.ErrorCode { return control.CodeCrypto }

// Role is the side of the association.
type Role uint8

// The two roles. The client speaks first.
const (
	Client Role = 0
	Server Role = 1
)

// Sends is the direction in which the role sends.
func (r Role) Sends() wire.Direction { return wire.Direction(r) }

func (r Role) String() string {
	if r == Client {
		return "client"
	}
	return "server"
}

// Config is what one side brings. It may be shared by many machines and is not
// modified.
type Config struct {
	// Profiles are the accepted profiles, the preferred one first. None means
	// Standard alone. To list a lower profile beside a higher one is the local
	// policy that permits the lower; nothing below the list is ever selected.
	Profiles []*profiles.Profile
	// KEMs narrows the profiles' key exchanges and orders the client's choice;
	// none means all of them, in the profiles' order.
	KEMs []profiles.KEM
	// Suites are the accepted AEAD suites, the preferred one first. None means
	// both, in the order this processor favours (record.PreferredSuites).
	Suites []profiles.Suite
	// Identity is our key. Its scheme must be one of every listed profile.
	Identity identity.PrivateKey
	// VerifyPeer accepts or refuses the peer once it has proved its key. It is
	// required.
	VerifyPeer identity.Verifier
	// Rand is the source of the ephemeral keys; nil means crypto/rand's Reader.
	Rand io.Reader
}

// Format prints what a log may have and no key, whatever the verb: Identity may be of
// a type that hides nothing of itself.
func (c Config) Format(f fmt.State, _ rune) {
	id := identity.PublicKey{}
	if c.Identity != nil {
		id = c.Identity.Public()
	}
	fmt.Fprintf(f, "handshake.Config(%v, %v, %v, redacted)", c.Profiles, c.Suites, id)
}

// resolve fills in the defaults and refuses what cannot work.
func (c Config) resolve() (Config, error) {
	if c.VerifyPeer == nil {
		return c, ErrNoVerifier
	}
	if c.Identity == nil {
		return c, ErrNoIdentity
	}
	if len(c.Profiles) == 0 {
		c.Profiles = []*profiles.Profile{profiles.Standard}
	}
	if len(c.Suites) == 0 {
		c.Suites = record.PreferredSuites()
	}
	for _, s := range c.Suites {
		if !record.HasSuite(s) {
			return c, fmt.Errorf("%w: %s is not implemented", ErrConfig, s)
		}
	}
	scheme := c.Identity.Public().Scheme()
	for _, p := range c.Profiles {
		switch {
		case p == nil:
			return c, fmt.Errorf("%w: a profile is nil", ErrConfig)
		case !p.AcceptsScheme(scheme):
			return c, fmt.Errorf("%w: %s does not take %s identities", ErrConfig, p, scheme)
		case !slices.ContainsFunc(c.Suites, p.AcceptsSuite):
			return c, fmt.Errorf("%w: %s takes none of the suites", ErrConfig, p)
		case p.Diversify && !hasBoth(func(s profiles.Suite) bool { return slices.Contains(c.Suites, s) }):
			return c, fmt.Errorf("%w: %s needs both suites", ErrConfig, p)
		case !slices.ContainsFunc(p.KEMs, c.allowsKEM):
			return c, fmt.Errorf("%w: %s takes none of the key exchanges", ErrConfig, p)
		}
	}
	return c, nil
}

func hasBoth(has func(profiles.Suite) bool) bool {
	return has(profiles.AES256GCM) && has(profiles.ChaCha20Poly1305)
}

// allowsKEM tells whether the configuration permits a key exchange that a
// profile accepts.
func (c *Config) allowsKEM(k profiles.KEM) bool {
	return kem.ByID(k) != nil && (len(c.KEMs) == 0 || slices.Contains(c.KEMs, k))
}

// shareKEM is the key exchange a client makes its share for: the first that
// every offered profile accepts. It is the only one offered, because the server
// must take the first entry or fail.
func (c *Config) shareKEM() *kem.Scheme {
	list := c.KEMs
	if len(list) == 0 {
		list = c.Profiles[0].KEMs
	}
	for _, k := range list {
		accepts := func(p *profiles.Profile) bool { return !p.AcceptsKEM(k) }
		if c.allowsKEM(k) && !slices.ContainsFunc(c.Profiles, accepts) {
			return kem.ByID(k)
		}
	}
	return nil
}

// choice is what a handshake negotiates.
type choice struct {
	profile *profiles.Profile
	kem     *kem.Scheme
	scheme  profiles.Scheme
	suite   profiles.Suite
}

// choose answers an offer: the first of our profiles for which everything else
// fits too.
func (c *Config) choose(hello *messages.ClientHello) (choice, error) {
	k := profiles.KEM(hello.KEMs.At(0))
	scheme := c.Identity.Public().Scheme()
	if !c.allowsKEM(k) || !hello.Schemes.Contains(uint16(scheme)) {
		return choice{}, ErrNoCommon
	}
	offers := func(s profiles.Suite) bool { return hello.AEADs.Contains(uint16(s)) }
	for _, p := range c.Profiles {
		if bytes.IndexByte(hello.Profiles, p.Code) < 0 || !p.AcceptsKEM(k) || p.Diversify && !hasBoth(offers) {
			continue
		}
		if suite := c.chooseSuite(p, hello.AEADs); suite != 0 {
			return choice{profile: p, kem: kem.ByID(k), scheme: scheme, suite: suite}, nil
		}
	}
	return choice{}, ErrNoCommon
}

// chooseSuite gives the suite that both sides put first, and ChaCha20-Poly1305
// when they differ: the side that puts it first has no AES instructions, and
// AES in software is slow and not constant-time, while ChaCha20 is good
// everywhere. It is 0 when there is no common suite.
func (c *Config) chooseSuite(p *profiles.Profile, offer messages.CodePoints) profiles.Suite {
	var ours, theirs profiles.Suite
	for _, s := range c.Suites {
		if p.AcceptsSuite(s) && offer.Contains(uint16(s)) {
			ours = s
			break
		}
	}
	for s := range offer.All() {
		if s := profiles.Suite(s); p.AcceptsSuite(s) && slices.Contains(c.Suites, s) {
			theirs = s
			break
		}
	}
	if ours != theirs {
		return profiles.ChaCha20Poly1305
	}
	return ours
}

// accepts checks a client's view of the server's selections.
func (c *Config) accepts(hello *messages.ServerHello, offered *kem.Scheme) (choice, error) {
	p := profiles.ByCode(hello.Profile)
	ch := choice{
		profile: p,
		kem:     offered,
		scheme:  profiles.Scheme(hello.Scheme),
		suite:   profiles.Suite(hello.AEAD),
	}
	if p == nil || !slices.Contains(c.Profiles, p) || profiles.KEM(hello.KEM) != offered.ID() ||
		ch.scheme != c.Identity.Public().Scheme() || !slices.Contains(c.Suites, ch.suite) || !p.AcceptsSuite(ch.suite) {
		return choice{}, ErrNotOffered
	}
	return ch, nil
}

// Result is what a completed handshake leaves.
type Result struct {
	Role    Role
	Profile *profiles.Profile
	Suite   profiles.Suite // at a diversifying profile, that of even sequence numbers
	KEM     profiles.KEM
	// Send and Recv are the roots of the two directions, at generation 0. They
	// are the caller's to wipe.
	Send, Recv *schedule.Root
	// PeerKey is the key that the peer proved and VerifyPeer accepted.
	PeerKey identity.PublicKey
}
