package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"unicode/utf8"

	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// Bounds of a policy.
const (
	MaxFile    = 1 << 20 // octets of a file
	MaxRules   = 1024
	MaxEntries = 4096 // in one list of a rule
	MaxPattern = 255  // octets of a pattern or name
	MaxReason  = bridge.MaxErrorText
)

// ErrPolicy is the class of Parse's errors; their texts say what is wrong and where.
var ErrPolicy = errors.New("policy: not a policy")

// The file, as it is written. Absent lists are nil.
type fileJSON struct {
	Default string     `json:"default"`
	Reason  string     `json:"reason"`
	Rules   []ruleJSON `json:"rules"`
}

type ruleJSON struct {
	Decision     string      `json:"decision"`
	Reason       string      `json:"reason"`
	Peers        []string    `json:"peers"`
	Principals   []string    `json:"principals"`
	Agents       []string    `json:"agents"`
	Protocols    []protocols `json:"protocols"`
	Methods      []string    `json:"methods"`
	Effects      []string    `json:"effects"`
	Notification *bool       `json:"notification"`
}

// protocols is a protocol by its name or number.
type protocols bridge.ProtocolID

var protocolNames = map[string]bridge.ProtocolID{
	"mcp": bridge.ProtocolMCP, "a2a": bridge.ProtocolA2A, "http": bridge.ProtocolHTTP, "websocket": bridge.ProtocolWebSocket,
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *protocols) UnmarshalJSON(b []byte) error {
	var name string
	if json.Unmarshal(b, &name) == nil && string(b) != "null" {
		id, ok := protocolNames[name]
		if !ok {
			return fmt.Errorf("%q is no protocol's name", name)
		}
		*p = protocols(id)
		return nil
	}
	var id uint8
	if json.Unmarshal(b, &id) != nil || id == 0 {
		return fmt.Errorf("%s is no protocol id", b)
	}
	*p = protocols(id)
	return nil
}

// Load reads a policy from a file. log gets what is denied; nil discards it.
func Load(path string, log *slog.Logger) (*Policy, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, err
	}
	p, err := Parse(b, log)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// Parse reads a policy: one JSON object of the form that the package's doc shows.
// Whatever is unknown, given twice, empty where it would match nothing, or of another
// type is an error of the class ErrPolicy, since a rule that is not what its author
// meant is worse than none.
//
// default and decision are "allow" or "deny". In a rule everything else is optional,
// and what is present must all match: peers (public keys in hexadecimal, or handles)
// and principals (names of senders without a key) name senders of two kinds, of which
// one must match; agents and methods are patterns, in which * stands for any octets;
// protocols are mcp, a2a, http, websocket or numbers; effects are read_only,
// idempotent_write, non_idempotent_write, destructive; notification is a boolean.
// reason is what a sender is told, 255 octets at most, and may stand where something
// is denied.
func Parse(b []byte, log *slog.Logger) (*Policy, error) {
	if len(b) > MaxFile {
		return nil, fmt.Errorf("%w: longer than %d octets", ErrPolicy, MaxFile)
	}
	if err := checkKeys(b); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPolicy, err)
	}
	var file fileJSON
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPolicy, err)
	}
	p := &Policy{log: log}
	if err := p.fill(&file); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *Policy) fill(file *fileJSON) error {
	if len(file.Rules) > MaxRules {
		return fmt.Errorf("%w: more than %d rules", ErrPolicy, MaxRules)
	}
	var err error
	if p.fallback.denied, err = decision(file.Default, file.Reason, -1); err != nil {
		return fmt.Errorf("%w: default: %w", ErrPolicy, err)
	}
	p.rules = make([]rule, len(file.Rules))
	for i := range file.Rules {
		if err := p.rules[i].fill(&file.Rules[i], i); err != nil {
			return fmt.Errorf("%w: rule %d: %w", ErrPolicy, i, err)
		}
	}
	return nil
}

// decision is nil for "allow".
func decision(name, reason string, number int) (*Denied, error) {
	switch {
	case name == "allow" && reason != "":
		return nil, errors.New("a reason for what is allowed")
	case name == "allow":
		return nil, nil
	case name != "deny":
		return nil, fmt.Errorf("%q is neither allow nor deny", name)
	case len(reason) > MaxReason:
		return nil, fmt.Errorf("reason longer than %d octets", MaxReason)
	case reason == "":
		reason = "refused by policy"
	}
	return &Denied{Rule: number, Reason: reason}, nil
}

func (r *rule) fill(j *ruleJSON, number int) (err error) {
	if r.denied, err = decision(j.Decision, j.Reason, number); err != nil {
		return err
	}
	for name, n := range map[string]int{
		"peers": length(j.Peers), "principals": length(j.Principals), "agents": length(j.Agents), "protocols": length(j.Protocols),
		"methods": length(j.Methods), "effects": length(j.Effects),
	} {
		if n == 0 {
			return fmt.Errorf("%s is empty and would match nothing", name)
		}
		if n > MaxEntries {
			return fmt.Errorf("more than %d %s", MaxEntries, name)
		}
	}
	if err := r.fillPeers(j.Peers); err != nil {
		return err
	}
	if j.Principals != nil {
		r.principals = make(map[string]struct{}, len(j.Principals))
	}
	for _, name := range j.Principals {
		if err := checkText("principals", name); err != nil {
			return err
		}
		r.principals[name] = struct{}{}
	}
	if r.agents, err = patterns("agents", j.Agents); err != nil {
		return err
	}
	if r.methods, err = patterns("methods", j.Methods); err != nil {
		return err
	}
	if j.Protocols != nil {
		r.protocols = new([256]bool)
	}
	for _, id := range j.Protocols {
		r.protocols[id] = true
	}
	if j.Effects != nil {
		r.effects = new([bridge.Destructive + 1]bool)
	}
	for _, name := range j.Effects {
		e, err := bridge.ParseEffect(name)
		if err != nil {
			return fmt.Errorf("effects: %q is no effect", name)
		}
		r.effects[e] = true
	}
	r.notify = j.Notification
	return nil
}

func (r *rule) fillPeers(names []string) error {
	r.anyPeer = names != nil
	r.keys, r.handles = make(map[identity.PublicKey]struct{}), make(map[string]struct{})
	for _, name := range names {
		if k, err := identity.ParsePublicKey(name); err == nil {
			r.keys[k] = struct{}{}
			continue
		}
		ref, err := identity.ParseRef(name)
		if err != nil {
			return fmt.Errorf("peers: %.80q is neither a key in hexadecimal nor a handle", name)
		}
		r.handles[ref.String()] = struct{}{}
	}
	return nil
}

// length is that of a list, -1 for an absent one.
func length[T any](list []T) int {
	if list == nil {
		return -1
	}
	return len(list)
}

func patterns(what string, names []string) ([]pattern, error) {
	if names == nil {
		return nil, nil
	}
	list := make([]pattern, len(names))
	for i, name := range names {
		if err := checkText(what, name); err != nil {
			return nil, err
		}
		list[i] = pattern(name)
	}
	return list, nil
}

func checkText(what, s string) error {
	if s == "" || len(s) > MaxPattern {
		return fmt.Errorf("%s: an entry is not 1 to %d octets long", what, MaxPattern)
	}
	return nil
}

// checkKeys finds what the standard library is silent about: keys that occur twice
// or that it would match whatever their case, null for an absent value, text behind
// the object, and octets that are not UTF-8.
func checkKeys(b []byte) error {
	if !utf8.Valid(b) {
		return errors.New("not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	var open []map[string]bool // the keys of each container; nil for an array
	key := false               // a key comes next
	for {
		t, err := d.Token()
		if err == io.EOF && len(open) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		switch v := t.(type) {
		case json.Delim:
			switch v {
			case '{':
				open = append(open, make(map[string]bool))
			case '[':
				open = append(open, nil)
			default:
				open = open[:len(open)-1]
			}
			if len(open) > maxDepth {
				return errors.New("nested too deeply")
			}
			if len(open) == 0 {
				if _, err := d.Token(); err != io.EOF {
					return errors.New("something follows the policy")
				}
				return nil
			}
		case string:
			keys := open1(open)
			if keys == nil || !key {
				break
			}
			if keys[v] {
				return fmt.Errorf("%.80q occurs twice", v)
			}
			if !lowerCase(v) {
				return fmt.Errorf("%.80q is unknown", v)
			}
			keys[v] = true
			key = false
			continue
		case nil:
			return errors.New("null is no value here")
		}
		key = open1(open) != nil
		if len(open) == 0 {
			return errors.New("not an object")
		}
	}
}

// maxDepth is how deep a policy nests: object, rules, rule, list.
const maxDepth = 4

// open1 is the innermost container's keys, nil for an array and for none.
func open1(open []map[string]bool) map[string]bool {
	if len(open) == 0 {
		return nil
	}
	return open[len(open)-1]
}

func lowerCase(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && c != '_' {
			return false
		}
	}
	return true
}
