package assoc

import "github.com/trestle-npamp/trestle/engine/conn"

// Machine is the association's machine, for tests that command it on the loop.
func (a *Association) Machine() *conn.Conn { return a.m }

// Rekems is how many wait for the tier-2 step under way. Loop only.
func (a *Association) Rekems() int { return len(a.rekems) }

// Expanded tells whether any key of the association is expanded.
func (a *Association) Expanded() bool { return a.m.Expanded() }
