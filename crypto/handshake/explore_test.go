package handshake

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/crypto/kem"
	"github.com/trestle-npamp/trestle/crypto/record"
	"github.com/trestle-npamp/trestle/internal/explore"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
	messages "github.com/trestle-npamp/trestle/wire/handshake"
)

//go:generate go test -run ^TestStateMachine$ -docs .

var writeDocs = flag.Bool("docs", false, "write what the exploration found to docs/state-machine.md")

const stateMachineDoc = "../../docs/state-machine.md"

// The expected behaviour, as data: the first rule that matches a message, its
// variant and the state says what must come of it, and there must be one. The
// order is the one in which the machine judges a message. Patterns as in the rules
// of the association's machine: * is anything, | separates alternatives, ! negates.
//
//	fail ERROR   the handshake is over, every secret is gone, nothing is sent
//	say MESSAGE  what goes out
//	to STATE     where the machine goes
//	differ       the two sides no longer agree on a secret
//	taken        the roots belong to the caller
//
// A rule without an outcome changes nothing.
var exploreRules = []struct{ message, variant, state, then string }{
	{"AppendOutput", "*", "*", ""},
	{"Result", "*", "done", "taken"},
	{"Result", "*", "*", ""},
	{"Wipe", "*", "*", "fail"},
	{"*", "*", "done|done, taken|failed", "fail ErrOver"},
	{"*", "channel another|channel GREASE", "*", "fail ErrChannel"},
	{"*", "type another", "*", "fail ErrUnexpected"},
	{"!CLIENT_HELLO", "*", "awaits CLIENT_HELLO", "fail ErrUnexpected"},
	{"!SERVER_HELLO", "*", "awaits SERVER_HELLO", "fail ErrUnexpected"},
	{"!SERVER_AUTH", "*", "awaits SERVER_AUTH|awaits SERVER_AUTH, differs", "fail ErrUnexpected"},
	{"!CLIENT_AUTH", "*", "awaits CLIENT_AUTH|awaits CLIENT_AUTH, differs", "fail ErrUnexpected"},
	{"*", "sequence 1", "*", "fail ErrSequence"},
	{"*", "ENC changed|COMP set|FRAG set|URG set", "*", "fail ErrFlags"},
	{"*", "length over the limit", "*", "fail ErrLength"},
	{"SERVER_AUTH|CLIENT_AUTH", "empty|length less by one|length more by one", "*", "fail ErrLength"},
	{"*", "empty|length less by one|length more by one|TLVs swapped|critical TLV", "!awaits SERVER_AUTH, differs|awaits CLIENT_AUTH, differs", "fail malformed"},
	{"CLIENT_HELLO", "nothing in common", "*", "fail ErrNoCommon"},
	{"SERVER_HELLO", "not offered", "*", "fail ErrNotOffered"},
	{"CLIENT_HELLO|SERVER_HELLO", "low-order X25519", "*", "fail kem.ErrLowOrder"},
	{"CLIENT_HELLO", "right", "*", "say SERVER_HELLO; say SERVER_AUTH; to awaits CLIENT_AUTH"},
	{"CLIENT_HELLO", "unknown TLV|KEM octets changed|of another handshake", "*", "say SERVER_HELLO; say SERVER_AUTH; to awaits CLIENT_AUTH; differ"},
	{"SERVER_HELLO", "right", "*", "to awaits SERVER_AUTH"},
	{"SERVER_HELLO", "unknown TLV|KEM octets changed|of another handshake", "*", "to awaits SERVER_AUTH; differ"},
	{"*", "*", "awaits SERVER_AUTH, differs|awaits CLIENT_AUTH, differs", "fail ErrSealed"},
	{"*", "payload changed|tag changed|other direction|of another handshake", "*", "fail ErrSealed"},
	{"*", "signature changed", "*", "fail ErrCertVerify"},
	{"*", "Finished changed", "*", "fail ErrFinished"},
	{"*", "another identity", "*", "fail ErrPeerRefused"},
	{"SERVER_AUTH", "right", "*", "say CLIENT_AUTH; to done"},
	{"CLIENT_AUTH", "right", "*", "to done"},
}

var exploreErrors = map[string][]error{
	"ErrOver": {ErrOver}, "ErrChannel": {ErrChannel}, "ErrUnexpected": {ErrUnexpected}, "ErrSequence": {ErrSequence},
	"ErrFlags": {ErrFlags}, "ErrLength": {ErrLength}, "ErrNoCommon": {ErrNoCommon}, "ErrNotOffered": {ErrNotOffered},
	"ErrSealed": {ErrSealed}, "ErrCertVerify": {ErrCertVerify}, "ErrFinished": {ErrFinished}, "ErrPeerRefused": {ErrPeerRefused},
	"kem.ErrLowOrder": {kem.ErrLowOrder},
	"malformed":       {messages.ErrMissingTLV, messages.ErrOrder, messages.ErrTrailing, messages.ErrUnexpectedTLV, wire.ErrTLVTruncated, wire.ErrTLVCritical},
}

// exploreInput is one thing that can happen to a machine: a message that comes, or
// a command.
type exploreInput struct {
	message, variant string
	// message gives the octets; nil for a command.
	octets func(w *exploreWorld) []byte
	do     func(m *Machine)
}

// exploreWorld is a machine and its genuine peer.
type exploreWorld struct {
	t       testing.TB
	role    Role
	r       *run
	other   *run // another handshake of the same sides, complete
	differs bool
}

func (w *exploreWorld) machine() *Machine {
	if w.role == Client {
		return w.r.c
	}
	return w.r.s
}

var stateNames = map[state]string{
	failed: "failed", awaitClientHello: "awaits CLIENT_HELLO", awaitServerHello: "awaits SERVER_HELLO",
	awaitServerAuth: "awaits SERVER_AUTH", awaitClientAuth: "awaits CLIENT_AUTH", done: "done",
}

func (w *exploreWorld) state() string {
	m := w.machine()
	name := stateNames[m.state]
	switch {
	case m.state == done && m.taken:
		name += ", taken"
	case w.differs && (m.state == awaitServerAuth || m.state == awaitClientAuth):
		name += ", differs"
	}
	return name
}

// right is message i as the peer sent it, or as another handshake has it where
// this one has not come so far.
func (w *exploreWorld) right(i int) []byte {
	if b := w.r.message[i]; b != nil {
		return b
	}
	return w.other.message[i]
}

// due is the message that the machine waits for, if any.
func (w *exploreWorld) due() (int, bool) {
	s, ok := steps[w.machine().state]
	return int(s.typ - wire.TypeClientHello), ok
}

func exploreInputs() (list []*exploreInput) {
	for _, c := range []struct {
		name string
		do   func(m *Machine)
	}{
		{"AppendOutput", func(m *Machine) { m.AppendOutput(nil) }},
		{"Result", func(m *Machine) { m.Result() }},
		{"Wipe", (*Machine).Wipe},
	} {
		list = append(list, &exploreInput{message: c.name, variant: "-", do: c.do})
	}
	// What does not belong into a handshake at all.
	for name, typ := range map[string]wire.FrameType{
		"PING": wire.TypePing, "CLOSE": wire.TypeClose, "KEY_UPDATE": wire.TypeKeyUpdate,
		"MASTER_RATCHET": wire.TypeMasterRatchet, "REKEM": wire.TypeRekem, "HELLO": wire.TypeHello, "application": 0x0200, "type 0": 0,
	} {
		b := append(wire.AppendHeader(nil, wire.FlagENC, typ, wire.ChannelControl, 0, 40), make([]byte, 40)...)
		list = append(list, &exploreInput{message: name, variant: "right", octets: func(*exploreWorld) []byte { return b }})
	}
	slices.SortFunc(list[3:], func(a, b *exploreInput) int { return strings.Compare(a.message, b.message) })
	for i := range messageCount {
		list = append(list, messageInputs(i)...)
	}
	return list
}

func messageInputs(i int) (list []*exploreInput) {
	flags := wire.Flags(0)
	if i >= serverAuth {
		flags = wire.FlagENC
	}
	typ := wire.TypeClientHello + wire.FrameType(i)
	add := func(variant string, octets func(w *exploreWorld) []byte) *exploreInput {
		in := &exploreInput{message: messageNames[i], variant: variant, octets: octets}
		list = append(list, in)
		return in
	}
	header := func(variant string, f wire.Flags, t wire.FrameType, ch wire.Channel, seq wire.Seq) {
		add(variant, func(w *exploreWorld) []byte { return reheader(w.right(i), f, t, ch, seq) })
	}
	payload := func(variant string, edit func(p []byte) []byte) {
		add(variant, func(w *exploreWorld) []byte {
			b := w.right(i)
			return withPayload(b, edit(bytes.Clone(b[wire.HeaderLen:])))
		})
	}
	add("right", func(w *exploreWorld) []byte { return w.right(i) })
	add("of another handshake", func(w *exploreWorld) []byte { return w.other.message[i] })
	header("channel another", flags, typ, wire.ChannelBridge, 0)
	header("channel GREASE", flags, typ, wire.FirstGREASEChannel, 0)
	header("type another", flags, 0x0FFF, wire.ChannelControl, 0)
	header("sequence 1", flags, typ, wire.ChannelControl, 1)
	header("ENC changed", flags^wire.FlagENC, typ, wire.ChannelControl, 0)
	header("COMP set", flags|wire.FlagCOMP, typ, wire.ChannelControl, 0)
	header("FRAG set", flags|wire.FlagFRAG, typ, wire.ChannelControl, 0)
	header("URG set", flags|wire.FlagURG, typ, wire.ChannelControl, 0)
	payload("empty", func([]byte) []byte { return nil })
	payload("length less by one", func(p []byte) []byte { return p[:len(p)-1] })
	payload("length more by one", func(p []byte) []byte { return append(p, 0) })
	payload("length over the limit", func(p []byte) []byte { return append(p, make([]byte, messages.MaxPayloadLen)...) })
	if i < serverAuth {
		payload("KEM octets changed", func(p []byte) []byte { p[len(p)-1] ^= 1; return p })
		payload("low-order X25519", func(p []byte) []byte { clear(p[len(p)-32:]); return p })
		payload("unknown TLV", func(p []byte) []byte { return append(p, 0x7E, 0, 0, 1, 9) })
		payload("critical TLV", func(p []byte) []byte { return append(p, 0xFE, 0, 0, 1, 9) })
		payload("TLVs swapped", swapTLVs)
		name := "nothing in common"
		if i == serverHello {
			name = "not offered"
		}
		payload(name, func(p []byte) []byte { p[4] = 0x77; return p }) // the profile
		return list
	}
	dir := wire.ServerToClient
	if i == clientAuth {
		dir = wire.ClientToServer
	}
	payload("payload changed", func(p []byte) []byte { p[8] ^= 1; return p })
	payload("tag changed", func(p []byte) []byte { p[len(p)-1] ^= 1; return p })
	// By a peer that has the handshake's keys.
	sealed := func(variant string, plain func(w *exploreWorld) []byte) {
		add(variant, func(w *exploreWorld) []byte {
			if due, ok := w.due(); !ok || due != i || w.differs {
				return w.right(i) // refused before it is opened
			}
			return sealAuth(w.t, w.machine(), dir, plain(w))
		})
	}
	open := func(w *exploreWorld) []byte { return openAuth(w.t, w.machine(), dir, w.right(i)) }
	const signature, finished = 4 + 32 + 4 + 2, 4 + 32 + 4 + 66 + 4
	sealed("signature changed", func(w *exploreWorld) []byte { p := open(w); p[signature] ^= 1; return p })
	sealed("Finished changed", func(w *exploreWorld) []byte { p := open(w); p[finished] ^= 1; return p })
	sealed("TLVs swapped", func(w *exploreWorld) []byte { return swapTLVs(open(w)) })
	sealed("critical TLV", func(w *exploreWorld) []byte {
		// As long as what it replaces, so that the length is right.
		p := open(w)
		p[finished-4], p[finished-3] = 0xFE, 0
		return p
	})
	sealed("another identity", func(w *exploreWorld) []byte { return w.authOf(i, dir) })
	add("other direction", func(w *exploreWorld) []byte {
		if due, ok := w.due(); !ok || due != i || w.differs {
			return w.right(i)
		}
		m := w.machine()
		s := record.NewSealer(m.secrets.AuthRoot(dir.Reverse()), m.choice.profile, m.choice.suite, wire.ChannelControl)
		b, err := s.Seal(append(make([]byte, wire.HeaderLen), open(w)...), 0, 0, typ)
		if err != nil {
			w.t.Fatal(err)
		}
		return b
	})
	return list
}

// swapTLVs puts the first TLV behind the second.
func swapTLVs(p []byte) []byte {
	_, n, _ := wire.ConsumeTLV(p)
	_, k, _ := wire.ConsumeTLV(p[n:])
	return slices.Concat(p[n:n+k], p[:n], p[n+k:])
}

// authOf is a valid AUTH of an identity that nobody allowed.
func (w *exploreWorld) authOf(i int, dir wire.Direction) []byte {
	mallory := key(w.t, profiles.Ed25519, 0x66)
	m := w.machine()
	tr := w.r.transcript(i)
	tr.AddFrameType(authType(dir))
	plain, err := messages.AppendIdentityKey(nil, uint16(profiles.Ed25519), mallory.Public().Append(nil))
	if err != nil {
		w.t.Fatal(err)
	}
	tr.AddTLVs(plain)
	th := tr.Sum()
	sig, err := mallory.Sign(signingInput(nil, dir, th.Bytes()))
	if err != nil {
		w.t.Fatal(err)
	}
	mark := len(plain)
	if plain, err = messages.AppendCertVerify(plain, uint16(profiles.Ed25519), sig); err != nil {
		w.t.Fatal(err)
	}
	tr.AddTLVs(plain[mark:])
	thCV := tr.Sum()
	mac := m.secrets.Finished(dir, &thCV)
	if plain, err = messages.AppendFinished(plain, mac.Bytes(), len(mac.Bytes())); err != nil {
		w.t.Fatal(err)
	}
	return plain
}

// exploreExplorer explores one role. A machine can't be copied, so each cell
// plays the way to its state again.
type exploreExplorer struct {
	t     *testing.T
	role  Role
	other *run
	cells []int // by rule
}

type path []*exploreInput

func (x *exploreExplorer) world(p path) *exploreWorld {
	client, server := standard(x.t)
	w := &exploreWorld{t: x.t, role: x.role, r: start(x.t, client, server, 0), other: x.other}
	if x.role == Client {
		w.r.deliver(clientHello, w.r.message[clientHello]) // the server has spoken
	}
	for _, in := range p {
		if _, err := w.apply(in); err != nil {
			w.differs = false
		}
	}
	return w
}

// apply gives one input, and names what the machine says.
func (w *exploreWorld) apply(in *exploreInput) (said []string, err error) {
	m := w.machine()
	if in.octets == nil {
		in.do(m)
		return nil, nil
	}
	// Whatever is not the right message of this handshake makes the sides differ, if
	// the machine takes it.
	i := slices.Index(messageNames[:], in.message)
	b := in.octets(w)
	genuine := i >= 0 && bytes.Equal(b, w.r.message[i])
	if err = m.HandleFrame(frame(w.t, b)); err != nil {
		return nil, err
	}
	out := frames(w.t, m.AppendOutput(nil))
	for _, f := range out {
		said = append(said, messageNames[int(wire.Header(f[:wire.HeaderLen]).Type()-wire.TypeClientHello)])
	}
	switch {
	case !genuine:
		w.differs = true
	case i == clientHello:
		// The genuine client goes on, so that its CLIENT_AUTH is at hand.
		w.r.message[serverHello], w.r.message[serverAuth] = out[0], out[1]
		w.r.deliver(serverHello, out[0])
		w.r.deliver(serverAuth, out[1])
	case i == serverAuth:
		w.r.message[clientAuth] = out[0]
	}
	return said, nil
}

func ruleFor(in *exploreInput, state string) int {
	for i, r := range exploreRules {
		if patternMatches(r.message, in.message) && patternMatches(r.variant, in.variant) && patternMatches(r.state, state) {
			return i
		}
	}
	return -1
}

func patternMatches(pattern, s string) bool {
	pattern, not := strings.CutPrefix(pattern, "!")
	return (pattern == "*" || slices.Contains(strings.Split(pattern, "|"), s)) != not
}

// step plays p, gives in, and judges what comes of it.
func (x *exploreExplorer) step(p path, in *exploreInput) (path, bool) {
	w := x.world(p)
	m := w.machine()
	before := w.state()
	i := ruleFor(in, before)
	if i < 0 {
		x.t.Errorf("%v, %s: no rule for %s, %s", x.role, before, in.message, in.variant)
		return nil, false
	}
	x.cells[i]++
	ok := true
	fail := func(format string, args ...any) {
		x.t.Helper()
		ok = false
		x.t.Errorf("%v, %s: %s, %s: %s", x.role, before, in.message, in.variant, fmt.Sprintf(format, args...))
	}
	want, wantErr, wantState := []string(nil), "", before
	for _, token := range strings.Split(exploreRules[i].then, "; ") {
		verb, what, _ := strings.Cut(token, " ")
		switch verb {
		case "fail":
			wantErr, wantState = what, "failed"
		case "say":
			want = append(want, what)
		case "to":
			wantState = what
		case "differ":
			wantState += ", differs"
		case "taken":
			wantState += ", taken"
		}
	}
	roots := m.result
	said, err := w.apply(in)
	if !slices.Equal(said, want) {
		fail("said %q, want %q", said, want)
	}
	if wantErr == "" && err != nil || wantErr != "" && !slices.ContainsFunc(exploreErrors[wantErr], func(e error) bool { return errors.Is(err, e) }) {
		fail("%v, want %q", err, wantErr)
	}
	if got := w.state(); got != wantState {
		fail("became %q, want %q", got, wantState)
	}
	if m.state == failed {
		dead(x.t, m)
		// Roots that were handed out are the caller's; others are gone.
		if roots.Send != nil && (roots.Send.Hash() == 0) != (before != "done, taken") {
			fail("the roots were not left to whom they belong")
		}
	}
	return append(slices.Clone(p), in), ok
}

// TestStateMachine searches the machine from its beginning, in both roles: every
// input in every state that is reached. Each cell must be as the rules say, each
// rule must be of use, and the document must say the same.
func TestStateMachine(t *testing.T) {
	client, server := standard(t)
	other := start(t, client, server, messageCount)
	inputs := exploreInputs()
	cells := make([]int, len(exploreRules))
	states := map[Role][]string{}
	for _, role := range []Role{Client, Server} {
		x := &exploreExplorer{t: t, role: role, other: other, cells: cells}
		states[role] = explore.Search(path(nil), func(p path) string { return x.world(p).state() }, inputs, x.step, nil)
	}
	if t.Failed() {
		return
	}
	for i, n := range cells {
		if n == 0 {
			t.Errorf("no state and input comes to the rule %v", exploreRules[i])
		}
	}
	if err := explore.Section(stateMachineDoc, "handshake", exploreDocument(states, inputs, cells), *writeDocs); err != nil {
		t.Errorf("%v; go generate ./crypto/handshake writes it", err)
	}
}

func exploreDocument(states map[Role][]string, inputs []*exploreInput, cells []int) string {
	var b strings.Builder
	total := 0
	for _, n := range cells {
		total += n
	}
	fmt.Fprintf(&b, `## The handshake

%d cells over %d inputs; states reached:

| role | states |
|---|---|
| client | %s |
| server | %s |

*differs*: the machine took a message that is not its peer's, so that the two no longer agree on a secret; *taken*: the
roots were handed out. *fail*: the handshake is over, every secret that is still the machine's is gone, nothing is sent, and
every later frame is ErrOver. The peer is told the same for every error.

| message | variant | in states | outcome | cells |
|---|---|---|---|---|
`, total, len(inputs), strings.Join(states[Client], "; "), strings.Join(states[Server], "; "))
	say := func(pattern string) string {
		pattern, not := strings.CutPrefix(pattern, "!")
		switch {
		case pattern == "*":
			return "any"
		case not:
			pattern = "other than " + pattern
		}
		return strings.ReplaceAll(pattern, "|", " / ")
	}
	for i, r := range exploreRules {
		then := r.then
		if then == "" {
			then = "nothing"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %d |\n", say(r.message), say(r.variant), say(r.state), then, cells[i])
	}
	return b.String()
}
