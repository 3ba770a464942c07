package relay

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/wire/bridge"
	"github.com/trestle-npamp/trestle/wire/control"
	"github.com/trestle-npamp/trestle/wire/disco"
)

// route is where an agent is. It is never changed.
type route struct {
	name   string
	assoc  *engine.Association
	key    identity.PublicKey
	record []byte // the id of the record that claimed it
	// told is how the relay tells others of the agent. Its id follows from the name
	// and its revision from the claims, so that whoever claims the name later
	// replaces it.
	told disco.Record
}

// routes knows the agents by name. Looking one up takes no lock.
type routes struct {
	max    int
	ids    []bridge.ProtocolID // what the relay carries
	byName sync.Map            // string to *route

	mu     sync.Mutex // held by whoever changes byName
	sorted []*route   // by name
	names  map[*engine.Association][]string
	claims uint64
}

// find returns the agent's route, nil if it is not here.
func (t *routes) find(name string) *route {
	if r, ok := t.byName.Load(name); ok {
		return r.(*route)
	}
	return nil
}

// claim gives a's peer the name that the record announces (D22): a free one, or
// one that its own key holds, which is how an agent that dials anew takes over
// from an association that has not ended yet. prev is the record that this one
// replaces, nil for none; its name becomes free. came says that the name is new to
// a.
func (t *routes) claim(a *engine.Association, r, prev *disco.Record) (came bool, err error) {
	name := string(r.Agent.AgentID)
	if !control.ValidAgentName(name) {
		return false, fmt.Errorf("%w: %.80q", ErrName, name)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.find(name)
	at, _ := t.place(name)
	switch {
	case old == nil && len(t.sorted) >= t.max:
		return false, fmt.Errorf("relay: there are %d agents already", len(t.sorted))
	case old != nil && !old.key.Equal(a.PeerKey()):
		return false, fmt.Errorf("%w: %s", ErrNameTaken, name)
	}
	t.claims++
	id := sha256.Sum256([]byte("agent " + name))
	now := &route{name: name, assoc: a, key: a.PeerKey(), record: r.ID, told: disco.Record{
		ID: id[:16], Kind: disco.KindAgent, Revision: t.claims,
		Agent: disco.AgentBody{AgentID: []byte(name), Protocols: disco.ListOf(t.carried(r)...)},
	}}
	t.byName.Store(name, now)
	if old == nil {
		t.sorted = slices.Insert(t.sorted, at, now)
	} else {
		t.sorted[at] = now
	}
	if came = old == nil || old.assoc != a; came {
		if old != nil {
			t.forget(old)
		}
		if t.names == nil {
			t.names = make(map[*engine.Association][]string)
		}
		t.names[a] = append(t.names[a], name)
	}
	if prev != nil && prev.Kind == disco.KindAgent && string(prev.Agent.AgentID) != name {
		if p := t.find(string(prev.Agent.AgentID)); p != nil && p.assoc == a && string(p.record) == string(prev.ID) {
			t.remove(p)
		}
	}
	return came, nil
}

// carried is what others are told that an agent speaks: what it says, as far as the
// relay carries it. One that says nothing speaks A2A.
func (t *routes) carried(r *disco.Record) []bridge.ProtocolID {
	if !r.Agent.Protocols.Present() {
		return []bridge.ProtocolID{bridge.ProtocolA2A}
	}
	var ids []bridge.ProtocolID
	for _, id := range t.ids {
		if r.Agent.Protocols.Contains(uint64(id)) {
			ids = append(ids, id)
		}
	}
	return ids
}

// place is where a name is in sorted, or would be. The caller holds the lock.
func (t *routes) place(name string) (at int, found bool) {
	return slices.BinarySearchFunc(t.sorted, name, func(r *route, name string) int { return strings.Compare(r.name, name) })
}

// remove frees a name. The caller holds the lock.
func (t *routes) remove(r *route) {
	t.drop(r.name)
	t.forget(r)
}

// drop takes a name out of what is looked up. The caller holds the lock.
func (t *routes) drop(name string) {
	t.byName.Delete(name)
	if at, found := t.place(name); found {
		t.sorted = slices.Delete(t.sorted, at, at+1)
	}
}

// forget takes r's name off the list of its association, which may go on to live
// without it. The caller holds the lock.
func (t *routes) forget(r *route) {
	names := t.names[r.assoc]
	if i := slices.Index(names, r.name); i >= 0 {
		names = slices.Delete(names, i, i+1)
	}
	if len(names) == 0 {
		delete(t.names, r.assoc)
		return
	}
	t.names[r.assoc] = names
}

// gone frees the names that are still a's, and returns them.
func (t *routes) gone(a *engine.Association) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	names := t.names[a]
	for _, name := range names {
		t.drop(name)
	}
	delete(t.names, a)
	return names
}

func (t *routes) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.sorted)
}

// each calls f for every agent, in no order, until it returns false.
func (t *routes) each(f func(*route) bool) {
	t.byName.Range(func(_, r any) bool { return f(r.(*route)) })
}

// under returns the agents whose names start with prefix, by name. It looks at no
// others.
func (t *routes) under(prefix string) []*route {
	t.mu.Lock()
	defer t.mu.Unlock()
	from, _ := t.place(prefix)
	to := from + sort.Search(len(t.sorted)-from, func(i int) bool { return !strings.HasPrefix(t.sorted[from+i].name, prefix) })
	return slices.Clone(t.sorted[from:to])
}
