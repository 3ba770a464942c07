package relay

import (
	"crypto/sha256"
	"fmt"
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
	// claim numbers the claims of this relay.
	claim uint64
}

// routes knows the agents by name. Looking one up takes no lock.
type routes struct {
	max    int
	byName sync.Map // string to *route

	mu     sync.Mutex // held by whoever changes byName
	names  map[*engine.Association][]string
	count  int
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
// replaces, nil for none; its name becomes free.
func (t *routes) claim(a *engine.Association, r, prev *disco.Record) error {
	name := string(r.Agent.AgentID)
	if !control.ValidAgentName(name) {
		return fmt.Errorf("%w: %.80q", ErrName, name)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.find(name)
	switch {
	case old == nil && t.count >= t.max:
		return fmt.Errorf("relay: there are %d agents already", t.count)
	case old != nil && !old.key.Equal(a.PeerKey()):
		return fmt.Errorf("%w: %s", ErrNameTaken, name)
	case old == nil:
		t.count++
	}
	t.claims++
	t.byName.Store(name, &route{name: name, assoc: a, key: a.PeerKey(), record: r.ID, claim: t.claims})
	if t.names == nil {
		t.names = make(map[*engine.Association][]string)
	}
	if old == nil || old.assoc != a {
		t.names[a] = append(t.names[a], name)
	}
	if prev != nil && prev.Kind == disco.KindAgent && string(prev.Agent.AgentID) != name {
		if p := t.find(string(prev.Agent.AgentID)); p != nil && p.assoc == a && string(p.record) == string(prev.ID) {
			t.remove(p)
		}
	}
	return nil
}

// remove frees a name. The caller holds the lock.
func (t *routes) remove(r *route) {
	t.byName.Delete(r.name)
	t.count--
	names := t.names[r.assoc]
	for i, n := range names {
		if n == r.name {
			t.names[r.assoc] = append(names[:i], names[i+1:]...)
			break
		}
	}
}

// gone frees the names that are still a's.
func (t *routes) gone(a *engine.Association) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range t.names[a] {
		if r := t.find(name); r != nil && r.assoc == a {
			t.byName.Delete(name)
			t.count--
		}
	}
	delete(t.names, a)
}

func (t *routes) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count
}

// each calls f for every agent, in no order, until it returns false.
func (t *routes) each(f func(*route) bool) {
	t.byName.Range(func(_, r any) bool { return f(r.(*route)) })
}

// record is how the relay tells others of the agent. The id follows from the
// name and the revision from the claims, so that whoever claims the name later
// replaces it.
func (r *route) advertised() disco.Record {
	id := sha256.Sum256([]byte("agent " + r.name))
	return disco.Record{
		ID: id[:16], Kind: disco.KindAgent, Revision: r.claim,
		Agent: disco.AgentBody{AgentID: []byte(r.name), Protocols: disco.ListOf(bridge.ProtocolA2A)},
	}
}
