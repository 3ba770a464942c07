package conn

import "sync/atomic"

// Counters count what happened on the associations that share them. Any
// goroutine may read them; they are exact once the loops rest.
type Counters struct {
	FramesIn, FramesOut atomic.Uint64 // sealed frames opened and sent
	OctetsIn, OctetsOut atomic.Uint64 // octets on the wire of those frames
	SkippedChannel      atomic.Uint64 // frames of channels not carried, unopened
	UnknownType         atomic.Uint64 // opened frames of types nobody handles
	BadClose            atomic.Uint64 // CLOSE frames with a wrong sequence or tag
	PathFrames          atomic.Uint64 // PATH_CHALLENGE and PATH_RESPONSE
	StaleAcks           atomic.Uint64 // ACKs that fit no update
	KeyUpdatesIn        atomic.Uint64
	KeyUpdatesOut       atomic.Uint64
	RatchetsIn          atomic.Uint64 // tier-1 steps of the peer that were followed
	RatchetsOut         atomic.Uint64 // tier-1 steps of ours
	RekemsIn            atomic.Uint64 // tier-2 steps the peer asked for and got
	RekemsOut           atomic.Uint64 // tier-2 steps we asked for and got
	RekemsDropped       atomic.Uint64 // ours that were crossed or not answered
	StaleRekems         atomic.Uint64 // the peer's that were not followed
	KeyChangesPutOff    atomic.Uint64 // due by configuration, but too soon for a peer
	PingsIn, PingsOut   atomic.Uint64
	ErrorsIn, ErrorsOut atomic.Uint64
	ClosedByPeer        atomic.Uint64 // associations that the peer ended
	ClosedLocally       atomic.Uint64 // associations that this side ended
	ClosedProtocol      atomic.Uint64 // of the latter, by a fault of the peer

	DroppedQueued atomic.Uint64 // queued frames lost with their association
}
