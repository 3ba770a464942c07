package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/mapping/a2a"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

func keyOf(t testing.TB, seed byte) identity.PublicKey {
	t.Helper()
	k, err := identity.FromSeed(profiles.Ed25519, [identity.SeedLen]byte{seed})
	if err != nil {
		t.Fatal(err)
	}
	return k.Public()
}

func parse(t testing.TB, s string, args ...any) *Policy {
	t.Helper()
	p, err := Parse(fmt.Appendf(nil, s, args...), nil)
	if err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	return p
}

// decide writes a decision as "allow" or the rule's number and reason.
func decide(p *Policy, a Access) string {
	err := p.Decide(&a)
	var d *Denied
	switch {
	case err == nil:
		return "allow"
	case errors.As(err, &d) && errors.Is(err, ErrDenied):
		return fmt.Sprintf("%d %s", d.Rule, d.Reason)
	}
	return "?"
}

// The default decides where no rule matches, and it must be stated.
func TestDefaultIsStated(t *testing.T) {
	if got := decide(parse(t, `{"default":"allow"}`), Access{}); got != "allow" {
		t.Error(got)
	}
	if got := decide(parse(t, `{"default":"deny"}`), Access{}); got != "-1 refused by policy" {
		t.Error(got)
	}
	if got := decide(parse(t, `{"default":"deny","reason":"closed"}`), Access{}); got != "-1 closed" {
		t.Error(got)
	}
	for _, s := range []string{`{}`, `{"rules":[]}`, `{"default":""}`, `{"default":"Allow"}`} {
		if _, err := Parse([]byte(s), nil); !errors.Is(err, ErrPolicy) {
			t.Errorf("%s: %v", s, err)
		}
	}
}

// The first rule that matches decides.
func TestFirstMatchWins(t *testing.T) {
	p := parse(t, `{"default":"deny","rules":[
		{"decision":"deny","methods":["tasks/cancel"],"reason":"no cancels"},
		{"decision":"allow","methods":["tasks/*"]},
		{"decision":"deny","methods":["tasks/get"],"reason":"never reached"},
		{"decision":"deny","reason":"the rest"}
	]}`)
	for method, want := range map[string]string{"tasks/cancel": "0 no cancels", "tasks/get": "allow", "tasks/": "allow", "message/send": "3 the rest", "": "3 the rest"} {
		if got := decide(p, Access{Method: []byte(method)}); got != want {
			t.Errorf("%s: %s, want %s", method, got, want)
		}
	}
	if s := p.Stats(); s.Allowed != 2 || s.Denied != 3 || fmt.Sprint(s.Rules) != "[1 2 0 2]" || s.Default != 0 {
		t.Errorf("%+v", s)
	}
}

// All that a rule names must match.
func TestRulesAreConjunctive(t *testing.T) {
	alice, bob, carol := keyOf(t, 1), keyOf(t, 2), keyOf(t, 3)
	p := parse(t, `{"default":"allow","rules":[{
		"decision":"deny","reason":"r","peers":[%q,%q],"principals":["dave"],"agents":["bill*","echo"],"protocols":["a2a",16],
		"methods":["*/send","DELETE *"],"effects":["destructive","non_idempotent_write"],"notification":false
	}]}`, strings.ToUpper(alice.String()), bob.Handle())
	match := Access{Peer: alice, Agent: "billing", Protocol: 2, Method: []byte("message/send"), Effect: bridge.Destructive}
	with := func(f func(a *Access)) Access {
		a := match
		f(&a)
		return a
	}
	for name, c := range map[string]struct {
		a    Access
		deny bool
	}{
		"all":                       {match, true},
		"another peer of the rule":  {with(func(a *Access) { a.Peer = bob }), true},
		"a principal of the rule":   {with(func(a *Access) { a.Peer, a.Principal = identity.PublicKey{}, "dave" }), true},
		"another principal":         {with(func(a *Access) { a.Peer, a.Principal = identity.PublicKey{}, "eve" }), false},
		"nobody in particular":      {with(func(a *Access) { a.Peer = identity.PublicKey{} }), false},
		"a key and a name":          {with(func(a *Access) { a.Peer, a.Principal = carol, "dave" }), false},
		"another peer":              {with(func(a *Access) { a.Peer = carol }), false},
		"another agent of the rule": {with(func(a *Access) { a.Agent = "echo" }), true},
		"another agent":             {with(func(a *Access) { a.Agent = "echo2" }), false},
		"no agent":                  {with(func(a *Access) { a.Agent = "" }), false},
		"a protocol by its number":  {with(func(a *Access) { a.Protocol = 16 }), true},
		"another protocol":          {with(func(a *Access) { a.Protocol = 1 }), false},
		"another method":            {with(func(a *Access) { a.Method = []byte("message/stream") }), false},
		"a longer method":           {with(func(a *Access) { a.Method = []byte("message/sender") }), false},
		"another method's pattern":  {with(func(a *Access) { a.Method = []byte("DELETE /runs/1") }), true},
		"another effect":            {with(func(a *Access) { a.Effect = bridge.NonIdempotentWrite }), true},
		"less effect":               {with(func(a *Access) { a.Effect = bridge.ReadOnly }), false},
		"a notification":            {with(func(a *Access) { a.Notification = true }), false},
	} {
		if got := decide(p, c.a); (got == "0 r") != c.deny || !c.deny && got != "allow" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"", "", true}, {"", "a", false}, {"a", "", false}, {"*", "", true}, {"*", "anything/at all", true}, {"**", "x", true},
		{"tasks/*", "tasks/", true}, {"tasks/*", "tasks", false}, {"tasks/*", "Tasks/get", false}, {"*/get", "tasks/get", true}, {"*/get", "tasks/get/x", false},
		{"a*b*c", "abc", true}, {"a*b*c", "axxbyybzzc", true}, {"a*b*c", "axxbyyczz", false}, {"*a*", "bab", true}, {"*aab", "aaaab", true}, {"a?c", "abc", false},
		{"tasks/get", "tasks/get", true}, {"é*", "état", true}, {"DELETE /threads/*/runs/*", "DELETE /threads/1/runs/2", true},
	} {
		if got := matches(pattern(c.pattern), c.name); got != c.want {
			t.Errorf("%q, %q: %v", c.pattern, c.name, got)
		}
		if got := matches(pattern(c.pattern), []byte(c.name)); got != c.want {
			t.Errorf("%q, %q: %v", c.pattern, c.name, got)
		}
	}
}

// A file that is not exactly what it should be is refused as a whole.
func TestFilesAreReadStrictly(t *testing.T) {
	rule := func(s string) string { return `{"default":"deny","rules":[{"decision":"allow"` + s + `}]}` }
	for _, s := range []string{
		``, ` `, `[]`, `null`, `"deny"`, `7`, `{`, `{"default":"deny"`, `{"default":"deny",}`, `{"default":"deny"} {}`, `{"default":"deny"}]`, "{\"default\":\"deny\"}\x00",
		"\xEF\xBB\xBF{\"default\":\"deny\"}", "{\"default\":\"deny\",\"reason\":\"\xff\"}",
		`{"default":"deny","default":"allow"}`, `{"Default":"deny"}`, `{"default":"deny","DEFAULT":"allow"}`, `{"default":"deny","\u0044efault":"allow"}`,
		`{"default":"deny","rule":[]}`, `{"default":"deny","comment":"x"}`, `{"default":"deny","rules":{}}`, `{"default":"deny","rules":null}`, `{"default":1}`,
		`{"default":"deny","rules":[null]}`, `{"default":"deny","rules":[7]}`, `{"default":"deny","rules":[{}]}`, `{"default":"allow","reason":"x"}`,
		`{"default":"deny","reason":"` + strings.Repeat("x", MaxReason+1) + `"}`,
		rule(`,"reason":"allowed because"`), rule(`,"decision":"deny"`), rule(`,"method":["x"]`), rule(`,"Methods":["x"]`), rule(`,"methods":"x"`), rule(`,"methods":[1]`),
		rule(`,"methods":[]`), rule(`,"methods":null`), rule(`,"methods":[null]`), rule(`,"methods":[""]`), rule(`,"methods":["` + strings.Repeat("x", MaxPattern+1) + `"]`),
		rule(`,"methods":["x"],"methods":["y"]`), rule(`,"agents":[]`), rule(`,"agents":[""]`), rule(`,"principals":[]`), rule(`,"principals":[""]`),
		rule(`,"peers":[]`), rule(`,"peers":["alice"]`), rule(`,"peers":[""]`), rule(`,"peers":["3c0f"]`),
		rule(`,"effects":[]`), rule(`,"effects":["write"]`), rule(`,"effects":["Destructive"]`), rule(`,"effects":[3]`),
		rule(`,"protocols":[]`), rule(`,"protocols":["A2A"]`), rule(`,"protocols":[0]`), rule(`,"protocols":[256]`), rule(`,"protocols":[-1]`), rule(`,"protocols":[1.5]`), rule(`,"protocols":[[]]`), rule(`,"protocols":[true]`),
		rule(`,"notification":"yes"`), rule(`,"notification":null`), rule(`,"x":{"y":[[[]]]}`),
		`{"default":"deny","rules":[` + strings.TrimSuffix(strings.Repeat(`{"decision":"allow"},`, MaxRules+1), ",") + `]}`,
		rule(`,"methods":[` + strings.TrimSuffix(strings.Repeat(`"x",`, MaxEntries+1), ",") + `]`),
		`{"default":"deny"}` + strings.Repeat(" ", MaxFile),
	} {
		if p, err := Parse([]byte(s), nil); !errors.Is(err, ErrPolicy) || p != nil {
			t.Errorf("%.200s: %v", s, err)
		}
	}
	for _, s := range []string{
		" {\n\t\"default\" : \"deny\" }\n", `{"rules":[],"default":"allow"}`, `{"def\u0061ult":"deny"}`, rule(``), rule(`,"protocols":["mcp","a2a","http","websocket",255]`),
		rule(`,"notification":true`), `{"default":"deny","rules":[{"decision":"deny","reason":"\u00e9"}]}`,
		rule(`,"methods":["` + strings.Repeat("*", MaxPattern) + `"]`),
	} {
		if _, err := Parse([]byte(s), nil); err != nil {
			t.Errorf("%.200s: %v", s, err)
		}
	}
}

func TestFilesAreLoaded(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "policy.json")
	if _, err := Load(file, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	write := func(b []byte) {
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write([]byte(`{"default":"deny","rules":[{"decision":"allow","effects":["read_only"]}]}`))
	p, err := Load(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := decide(p, Access{}); got != "allow" {
		t.Error(got)
	}
	write(bytes.Repeat([]byte(" "), MaxFile+1))
	if _, err := Load(file, nil); !errors.Is(err, ErrPolicy) || !strings.Contains(err.Error(), file) {
		t.Errorf("%v", err)
	}
	if _, err := Load(dir, nil); err == nil {
		t.Error("a directory was read")
	}
}

// What is denied is logged with its reason and without anything that its sender
// wrote, and not without end.
func TestDenialsAreLoggedWithoutForeignContent(t *testing.T) {
	var out bytes.Buffer
	p, err := Parse([]byte(`{"default":"allow","rules":[{"decision":"deny","methods":["*"],"effects":["destructive"],"reason":"too dangerous"}]}`),
		slog.New(slog.NewJSONHandler(&out, nil)))
	if err != nil {
		t.Fatal(err)
	}
	alice := keyOf(t, 1)
	a := Access{Peer: alice, Principal: "FOREIGN", Agent: "FOREIGN", Protocol: 2, Method: []byte("FOREIGN\n"), Effect: bridge.Destructive}
	if err := p.Decide(&a); err == nil {
		t.Fatal("allowed")
	}
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatal(err)
	}
	delete(line, "time")
	want := fmt.Sprint(map[string]any{
		"level": "WARN", "msg": "refused by policy", "rule": "0", "reason": "too dangerous", "times": 1.0,
		"peer": alice.String(), "handle": alice.Handle(), "protocol": "A2A", "effect": "destructive", "notification": false,
	})
	if fmt.Sprint(line) != want {
		t.Errorf("%v\nwant\n%s", line, want)
	}
	if strings.Contains(out.String(), "FOREIGN") {
		t.Error("what the sender wrote is logged")
	}
	for range 1 << 16 {
		_ = p.Decide(&a)
	}
	if n := strings.Count(out.String(), "\n"); n < 32 || n > 64 {
		t.Errorf("%d lines for 65537 denials", n)
	}
	if s := p.Stats(); s.Denied != 1<<16+1 {
		t.Errorf("%+v", s)
	}
	out.Reset()
	a.Effect = bridge.ReadOnly
	if p.Decide(&a) != nil || out.Len() != 0 {
		t.Error("what is allowed is logged")
	}
}

func TestDecidingAllocatesNothing(t *testing.T) {
	alice, bob := keyOf(t, 1), keyOf(t, 2)
	p := parse(t, `{"default":"deny","rules":[
		{"decision":"deny","peers":[%q],"reason":"not you"},
		{"decision":"allow","peers":[%q],"protocols":["a2a"],"methods":["message/*","tasks/get"],"effects":["read_only","non_idempotent_write"]}
	]}`, bob.String(), alice.String())
	for _, peer := range []identity.PublicKey{alice, bob} {
		a := Access{Peer: peer, Protocol: 2, Method: []byte("tasks/get")}
		if n := testing.AllocsPerRun(100, func() { _ = p.Decide(&a) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}

// link is a caller and a server under a policy.
type link struct {
	*nptest.Pair
	t              *testing.T
	caller, served *carriage.Bridge
	policy         *Policy
	seen           []string
}

func newLink(t *testing.T, policy string) *link {
	l := &link{t: t, policy: parse(t, "%s", policy)}
	l.served = carriage.New(carriage.Config{Protocols: []carriage.Protocol{a2a.Protocol(l)}, Authorize: l.policy.Authorize})
	l.caller = carriage.New(carriage.Config{Protocols: []carriage.Protocol{a2a.Protocol(nil)}})
	side := func(b *carriage.Bridge) assoc.Options {
		o := assoc.Options{Handlers: []assoc.ChannelHandler{b}}
		o.Conn.Protocols = b.Protocols()
		return o
	}
	client := side(l.caller)
	client.Conn.Agent = "echo"
	l.Pair = nptest.NewPair(t, nptest.Options{Client: client, Server: side(l.served)})
	l.Settle()
	return l
}

func (l *link) ServeRequest(r *carriage.Request) {
	l.seen = append(l.seen, string(r.Method()))
	_ = r.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`))
}

func (l *link) ServeNotify(n *carriage.Notify) { l.seen = append(l.seen, "notify "+string(n.Method())) }

func (l *link) call(method string, label *bridge.Label) (got error) {
	l.t.Helper()
	c := carriage.Call{Protocol: bridge.ProtocolA2A, Label: label, NoLabel: label == nil, Foreign: []byte(`{"jsonrpc":"2.0","id":1,"method":"` + method + `"}`)}
	if _, err := l.caller.Start(l.Client.Association, &c, carriage.CompletionFunc(func(r *carriage.Reply) { got = r.Err })); err != nil {
		l.t.Fatal(err)
	}
	l.Settle()
	return got
}

// BRIDGE 6, 7, D15: what is denied gets SafetyPolicy with its reason before any
// handler sees it; the effect is the greater of label and mapping, and destructive
// without a label.
func TestSafetyPolicyBeforeAnyHandler(t *testing.T) {
	l := newLink(t, `{"default":"deny","reason":"not allowed here","rules":[
		{"decision":"deny","effects":["destructive"],"reason":"too dangerous"},
		{"decision":"allow","effects":["read_only"]},
		{"decision":"allow","agents":["echo"],"methods":["message/send"]}
	]}`)
	write, read := &bridge.Label{Effect: bridge.NonIdempotentWrite}, &bridge.Label{Effect: bridge.ReadOnly}
	for _, c := range []struct {
		method string
		label  *bridge.Label
		want   string // "" is served
	}{
		{"tasks/get", read, ""},
		{"tasks/get", nil, ""}, // the mapping knows that it reads
		{"tasks/get", &bridge.Label{Effect: bridge.Destructive}, "too dangerous"},
		{"message/send", write, ""},
		{"message/send", read, ""}, // by its method; its effect stays what the mapping knows
		{"message/send", nil, "too dangerous"},
		{"tasks/cancel", write, "not allowed here"},
		{"tasks/cancel", read, "not allowed here"}, // a label is no permission
		{"tasks/pushNotificationConfig/delete", read, "too dangerous"},
		{"tasks/frobnicate", nil, "too dangerous"},
		{"tasks/frobnicate", write, "not allowed here"},
		{"tasks/frobnicate", read, ""}, // of an unknown method the label tells
	} {
		l.seen = nil
		err := l.call(c.method, c.label)
		var told *bridge.Error
		switch {
		case c.want == "" && (err != nil || len(l.seen) != 1):
			t.Errorf("%s, %+v: %v", c.method, c.label, err)
		case c.want != "" && (!errors.As(err, &told) || told.Code != bridge.CodeSafetyPolicy || told.Text != c.want || len(l.seen) != 0):
			t.Errorf("%s, %+v: %v, seen %q", c.method, c.label, err, l.seen)
		}
	}
	// A notification is refused in silence.
	for method, served := range map[string]bool{"message/send": true, "tasks/cancel": false} {
		l.seen = nil
		c := carriage.Call{Protocol: bridge.ProtocolA2A, Foreign: []byte(`{"jsonrpc":"2.0","method":"` + method + `"}`)}
		if err := l.caller.TryNotify(l.Client.Association, &c); err != nil {
			t.Fatal(err)
		}
		l.Settle()
		if (len(l.seen) == 1) != served {
			t.Errorf("%s: seen %q", method, l.seen)
		}
	}
	if s, b := l.policy.Stats(), l.served.Stats(); s.Denied != 8 || s.Allowed != 6 || b.RequestsForbidden != 8 || s.Default != 4 || fmt.Sprint(s.Rules) != "[4 3 3]" {
		t.Errorf("%+v, %d forbidden", s, b.RequestsForbidden)
	}
}

// A policy is read or refused, whole; and whatever it is, deciding by it ends.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"default":"deny","reason":"r","rules":[{"decision":"allow","peers":["` + strings.Repeat("ab", 32) + `"],"methods":["a*b*"],"protocols":["a2a",7],"effects":["read_only"],"notification":true}]}`,
		`{"default":"allow","rules":[{"decision":"deny","agents":["*"],"principals":["x"]}]}`, `{"default":"deny"} `, `{"a":[{"b":{}}]}`, `[[[[[`, `{"default":null}`,
	} {
		f.Add([]byte(s), "method", uint8(2), uint8(3))
	}
	f.Fuzz(func(t *testing.T, b []byte, method string, protocol, effect uint8) {
		p, err := Parse(b, nil)
		if (p == nil) != (err != nil) {
			t.Fatal("neither a policy nor an error")
		}
		if err != nil {
			if !errors.Is(err, ErrPolicy) {
				t.Fatal(err)
			}
			return
		}
		if !json.Valid(b) {
			t.Fatalf("%q is not JSON", b)
		}
		a := Access{Method: []byte(method), Protocol: bridge.ProtocolID(protocol), Effect: bridge.Effect(effect), Principal: method, Agent: method}
		first, second := p.Decide(&a), p.Decide(&a)
		if first != second {
			t.Fatal("decides in two ways")
		}
		if d, ok := first.(*Denied); ok && (d.Rule >= len(p.rules) || d.Reason == "" || len(d.Reason) > MaxReason) {
			t.Fatalf("%+v", d)
		}
		if s := p.Stats(); s.Allowed+s.Denied != 2 || len(s.Rules) != len(p.rules) {
			t.Fatalf("%+v", s)
		}
	})
}

// Patterns match what the same pattern as a regular expression would.
func FuzzMatches(f *testing.F) {
	f.Add("a*b", "axxb")
	f.Add("**", "")
	f.Add("*aab", "aaaab")
	f.Fuzz(func(t *testing.T, p, name string) {
		if len(p) > 24 || len(name) > 64 {
			return
		}
		if got, want := matches(pattern(p), name), slow(p, name); got != want {
			t.Fatalf("%q, %q: %v, want %v", p, name, got, want)
		}
	})
}

// slow is matches by its definition.
func slow(p, name string) bool {
	// reach[i] says that p so far matches the first i octets of name.
	reach := make([]bool, len(name)+1)
	reach[0] = true
	for i := range len(p) {
		next := make([]bool, len(name)+1)
		if p[i] == '*' {
			on := false
			for j := range reach {
				on = on || reach[j]
				next[j] = on
			}
		} else {
			for j := range len(name) {
				next[j+1] = reach[j] && name[j] == p[i]
			}
		}
		reach = next
	}
	return reach[len(name)]
}
