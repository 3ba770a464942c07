package edge

import "sync/atomic"

// counters are what Stats reads.
type counters struct {
	results, errors, notifications, faults, left atomic.Uint64
}

// Stats counts what the edge answered since New.
type Stats struct {
	InFlight      int    // requests for agents under way now
	Results       uint64 // agents' results
	Errors        uint64 // agents' error objects
	Notifications uint64 // notifications accepted
	Faults        uint64 // problem+json answers
	Left          uint64 // callers that left before their answer
	Buffered      int64  // octets of request bodies held now
}

// Stats returns the counters.
func (e *Edge) Stats() Stats {
	return Stats{
		InFlight:      e.gate.Inside(),
		Results:       e.stats.results.Load(),
		Errors:        e.stats.errors.Load(),
		Notifications: e.stats.notifications.Load(),
		Faults:        e.stats.faults.Load(),
		Left:          e.stats.left.Load(),
		Buffered:      e.budget.Used(),
	}
}
