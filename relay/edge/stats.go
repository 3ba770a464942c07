package edge

import "sync/atomic"

// counters are what Stats reads.
type counters struct {
	results, errors, notifications, faults, left atomic.Uint64
	streams, events, broken, stalled             atomic.Uint64
	streaming                                    atomic.Int64
}

// Stats counts what the edge answered since New.
type Stats struct {
	InFlight      int    // requests for agents under way now
	Results       uint64 // agents' results
	Errors        uint64 // agents' error objects
	Notifications uint64 // notifications accepted
	Faults        uint64 // problem+json answers
	Left          uint64 // callers that left before their answer, or its end
	Streaming     int    // streams under way now
	Streams       uint64 // streams that their agents ended
	Broken        uint64 // streams that were cut for what happened on the agent's side, or here
	Stalled       uint64 // streams that were cut because their callers read too slowly
	Events        uint64 // events of all streams
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
		Streaming:     int(e.stats.streaming.Load()),
		Streams:       e.stats.streams.Load(),
		Broken:        e.stats.broken.Load(),
		Stalled:       e.stats.stalled.Load(),
		Events:        e.stats.events.Load(),
		Buffered:      e.budget.Used(),
	}
}
