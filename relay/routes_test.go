package relay

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/wire/bridge"
	"github.com/trestle-npamp/trestle/wire/disco"
)

// announceMany announces names in as few messages as they need.
func (c *caller) announceMany(names ...string) {
	c.t.Helper()
	var records []disco.Record
	for i, name := range names {
		records = append(records, disco.Record{
			ID: fmt.Append(nil, i), Kind: disco.KindAgent, Revision: 1,
			Agent: disco.AgentBody{AgentID: []byte(name), Protocols: disco.ListOf(bridge.ProtocolA2A)},
		})
	}
	if err := c.disco.Announce(c.t.Context(), c.assoc, records...); err != nil {
		c.t.Fatal(err)
	}
	c.query(disco.Filter{Kinds: disco.ListOf(disco.KindProtocol)}) // answered after that was handled
}

func (c *caller) query(f disco.Filter) []disco.Record {
	c.t.Helper()
	records, err := c.disco.Query(c.t.Context(), c.assoc, f)
	if err != nil {
		c.t.Fatal(err)
	}
	return records
}

// A query for a name looks at the agents with that name and not at all.
func TestQueriesLookAtWhatMayMatch(t *testing.T) {
	const agents = 200
	var looked atomic.Int32
	r := startRelay(t, Config{MaxNames: agents, Visible: func(identity.PublicKey, string) bool {
		looked.Add(1)
		return true
	}})
	c, other := dial(t, r, ""), dial(t, r, "")
	var names []string
	for i := range agents {
		names = append(names, fmt.Sprintf("a%03d", i))
	}
	c.announceMany(names...)
	for _, q := range []struct {
		f          disco.Filter
		told, seen int
	}{
		{disco.Filter{Kinds: disco.ListOf(disco.KindAgent), NamePrefix: []byte("a007")}, 1, 1},
		{disco.Filter{Kinds: disco.ListOf(disco.KindAgent), NamePrefix: []byte("a19")}, 10, 10},
		{disco.Filter{Kinds: disco.ListOf(disco.KindAgent), NamePrefix: []byte("b")}, 0, 0},
		{disco.Filter{Kinds: disco.ListOf(disco.KindProtocol)}, 1, 0},
		{disco.Filter{ProtocolIDs: disco.ListOf(bridge.ProtocolMCP)}, 0, 0},
		{disco.Filter{}, agents + 1, agents},
	} {
		looked.Store(0)
		if got := len(other.query(q.f)); got != q.told || int(looked.Load()) != q.seen {
			t.Errorf("%+v: %d told of %d seen, want %d of %d", q.f, got, looked.Load(), q.told, q.seen)
		}
	}
	// One's own come as they were announced.
	if own := c.query(disco.Filter{NamePrefix: []byte("a007"), Kinds: disco.ListOf(disco.KindAgent)}); len(own) != 1 || string(own[0].ID) != "7" {
		t.Errorf("%+v", own)
	}
	first := r.routes.find("a000")
	if allocs := testing.AllocsPerRun(10, func() { r.routes.under("a000") }); allocs > 1 || first == nil {
		t.Errorf("%v allocations to find one", allocs)
	}
}

// What is looked up by order stays the same as what is looked up by name.
func TestRoutesKeepTheirOrder(t *testing.T) {
	r := startRelay(t, Config{})
	c := dial(t, r, "")
	c.announceMany("b", "a-b", "a", "c", "a.b")
	announce(t, c.disco, c.assoc, "0", "d", 2) // frees "b"
	order := func(prefix string) string {
		var names []string
		for _, t := range r.routes.under(prefix) {
			names = append(names, t.name)
		}
		return strings.Join(names, " ")
	}
	if got := order(""); got != "a a-b a.b c d" {
		t.Errorf("%q", got)
	}
	if got := order("a"); got != "a a-b a.b" {
		t.Errorf("%q", got)
	}
	c.assoc.Close(0, "")
	eventually(t, "they are gone", func() bool { return len(r.Agents()) == 0 && order("") == "" && r.Stats().Agents == 0 })
}

// An agent that takes over from its own lost association, again and again while
// those last, leaves no trace with them.
func TestTakeoversLeaveNothingBehind(t *testing.T) {
	r := startRelay(t, Config{})
	key := newKey(t)
	for range 5 {
		(&linkAgent{t: t, seen: make(chan carriage.Call, 1)}).start(t, r, "a", key)
	}
	r.routes.mu.Lock()
	defer r.routes.mu.Unlock()
	if n := len(r.routes.names); n != 1 {
		t.Errorf("%d associations are remembered for one name", n)
	}
	for a, names := range r.routes.names {
		if !slices.Equal(names, []string{"a"}) || r.routes.find("a").assoc != a {
			t.Errorf("%q", names)
		}
	}
}

// Two associations of one key that claim a name in turns don't grow a list by that.
func TestNamesThatGoBackAndForth(t *testing.T) {
	r := startRelay(t, Config{})
	key := newKey(t)
	c := [2]*caller{dialAs(t, r, key), dialAs(t, r, key)}
	for turn := range 10 {
		announce(t, c[turn%2].disco, c[turn%2].assoc, "r", "a", uint64(turn+1))
	}
	r.routes.mu.Lock()
	defer r.routes.mu.Unlock()
	for _, names := range r.routes.names {
		if len(names) != 1 {
			t.Errorf("%q", names)
		}
	}
	if len(r.routes.names) != 1 {
		t.Errorf("%d associations are remembered for one name", len(r.routes.names))
	}
}
