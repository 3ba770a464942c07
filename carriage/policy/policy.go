// Package policy decides by rules that lie in a file which requests are served: by
// who sent them, under which protocol, with which method, for which agent and with
// which effect. The first rule that matches decides, and what no rule matches is
// decided by a default that the file must state.
//
//	{
//	  "default": "deny",
//	  "reason": "not on the list",
//	  "rules": [
//	    {"decision": "deny", "methods": ["tasks/pushNotificationConfig/*"], "reason": "no webhooks"},
//	    {"decision": "allow", "effects": ["read_only"]},
//	    {"decision": "allow", "peers": ["3c0f...", "bciq..."], "protocols": ["a2a"], "effects": ["idempotent_write", "non_idempotent_write"]}
//	  ]
//	}
//
// What is denied is refused with SafetyPolicy before any handler or agent sees it
// (BRIDGE 6, 7). The effect is the greater of the request's label and what the
// mapping knows of its method, and destructive where neither says anything (D15); a
// label is never a permission by itself, but what the rules make of it.
//
// The package stands beside carriage, since whoever embeds a Bridge without a relay
// needs it as much as the relay does, for its callers over N-PAMP and over HTTP.
package policy

import (
	"errors"
	"log/slog"
	"math/bits"
	"strconv"
	"sync/atomic"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// Access is a request or notification to decide on.
type Access struct {
	// Peer is the sender's key; the zero value for a sender without one, whose name
	// Principal is.
	Peer      identity.PublicKey
	Principal string
	// Agent is who it is for, where that is known.
	Agent string
	// Protocol is the foreign protocol, Method the operation's name.
	Protocol bridge.ProtocolID
	Method   []byte
	// Effect is what it must be assumed to do (D15).
	Effect bridge.Effect
	// Notification says that it wants no answer.
	Notification bool
}

// ErrDenied is the class of what Decide returns.
var ErrDenied = errors.New("policy: denied")

// Denied says why a request is not served. It is shared and must not be changed.
type Denied struct {
	// Rule is the number of the rule that decided, from 0; -1 for the default.
	Rule int
	// Reason is what the file says, or a text of ours.
	Reason string
}

// Error is the reason, which is what a peer is told.
func (d *Denied) Error() string { return d.Reason }

// Is reports whether target is ErrDenied.
func (d *Denied) Is(target error) bool { return target == ErrDenied }

// Policy is a set of rules. It is safe for use by many goroutines.
type Policy struct {
	rules    []rule
	fallback verdict // the default
	log      *slog.Logger
	allowed  atomic.Uint64
	denied   atomic.Uint64
}

// verdict is what a rule decides, and how often it has.
type verdict struct {
	denied *Denied // nil allows
	count  atomic.Uint64
}

// rule matches what passes all that is present. A nil list is absent.
type rule struct {
	verdict
	keys       map[identity.PublicKey]struct{}
	handles    map[string]struct{}
	anyPeer    bool
	principals map[string]struct{}
	agents     []pattern
	methods    []pattern
	protocols  *[256]bool
	effects    *[bridge.Destructive + 1]bool
	notify     *bool
}

// Decide returns nil for what is allowed and a *Denied for what is not. It counts
// both, and logs what is denied: by rule, reason, sender, protocol and effect, and by
// nothing that the sender could have written. It allocates nothing, unless a rule
// names peers by their handles.
func (p *Policy) Decide(a *Access) error {
	v, who := &p.fallback, sender{key: a.Peer}
	for i := range p.rules {
		if p.rules[i].matches(a, &who) {
			v = &p.rules[i].verdict
			break
		}
	}
	n := v.count.Add(1)
	if v.denied == nil {
		p.allowed.Add(1)
		return nil
	}
	p.denied.Add(1)
	if p.log != nil && (n <= logFirst || bits.OnesCount64(n) == 1) {
		p.logDenied(v.denied, a, n)
	}
	return v.denied
}

// logFirst is how many denials of a rule are logged one by one; after them each
// doubling of their number is, so that no peer fills a disk.
const logFirst = 32

func (p *Policy) logDenied(d *Denied, a *Access, n uint64) {
	p.log.Warn("refused by policy", slog.String("rule", d.name()), slog.String("reason", d.Reason), slog.Uint64("times", n),
		slog.String("peer", a.Peer.String()), slog.String("handle", a.Peer.Handle()), slog.String("protocol", a.Protocol.String()), slog.String("effect", a.Effect.String()),
		slog.Bool("notification", a.Notification))
}

func (d *Denied) name() string {
	if d.Rule < 0 {
		return "default"
	}
	return strconv.Itoa(d.Rule)
}

// Authorize decides on what a Bridge was sent: it is a carriage.Config.Authorize.
func (p *Policy) Authorize(m *carriage.Inbound) error {
	a := m.Association()
	access := Access{
		Peer: a.PeerKey(), Protocol: m.Protocol(), Method: m.Method(), Effect: m.Effect(), Notification: m.Notification(),
	}
	if h := a.PeerHello(); h != nil {
		access.Agent = h.Agent
	}
	return p.Decide(&access)
}

// Stats counts what was decided.
type Stats struct {
	Allowed, Denied uint64
	// Rules is how often each rule decided, in their order, and Default how often
	// none did.
	Rules   []uint64
	Default uint64
}

// Stats returns the counts so far.
func (p *Policy) Stats() Stats {
	s := Stats{Allowed: p.allowed.Load(), Denied: p.denied.Load(), Default: p.fallback.count.Load()}
	for i := range p.rules {
		s.Rules = append(s.Rules, p.rules[i].count.Load())
	}
	return s
}

// sender is a peer's key and, once somebody asked for it, its handle.
type sender struct {
	key    identity.PublicKey
	handle string
}

func (r *rule) matches(a *Access, who *sender) bool {
	switch {
	case r.protocols != nil && !r.protocols[a.Protocol]:
	case r.effects != nil && !r.effects[min(a.Effect, bridge.Destructive)]:
	case r.notify != nil && *r.notify != a.Notification:
	case r.agents != nil && !anyMatches(r.agents, a.Agent):
	case r.methods != nil && !anyMatches(r.methods, a.Method):
	case !r.from(a, who):
	default:
		return true
	}
	return false
}

// from says whether the rule is about this sender. Keys and names are different
// kinds of sender: a rule that names some of either kind is about all of them.
func (r *rule) from(a *Access, who *sender) bool {
	if !r.anyPeer && r.principals == nil {
		return true
	}
	if who.key.IsZero() {
		_, ok := r.principals[a.Principal]
		return ok && a.Principal != ""
	}
	if _, ok := r.keys[who.key]; ok {
		return true
	}
	if len(r.handles) == 0 {
		return false
	}
	if who.handle == "" {
		who.handle = who.key.Handle()
	}
	_, ok := r.handles[who.handle]
	return ok
}

// pattern is a name in which each '*' stands for any octets, none included.
type pattern string

func anyMatches[T string | []byte](list []pattern, name T) bool {
	for _, p := range list {
		if matches(p, name) {
			return true
		}
	}
	return false
}

// matches takes time in proportion to the product of the lengths at worst, both of
// which are 255 octets at most.
func matches[T string | []byte](p pattern, name T) bool {
	star, retry := -1, 0 // the last '*', and where in name what follows it was tried
	i, n := 0, 0
	for n < len(name) {
		switch {
		case i < len(p) && p[i] == '*':
			star, retry = i, n
			i++
		case i < len(p) && p[i] == name[n]:
			i++
			n++
		case star >= 0:
			retry++
			i, n = star+1, retry
		default:
			return false
		}
	}
	for i < len(p) && p[i] == '*' {
		i++
	}
	return i == len(p)
}
