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

// tally is what a turn adds to the counters of frames and octets, which all loops
// share: four locked additions a frame, some of them to a cache line that another
// processor has just written, are made two or four a turn.
type tally struct{ framesIn, framesOut, octetsIn, octetsOut uint64 }

func (t *tally) give(c *Counters) {
	if t.framesIn > 0 {
		c.FramesIn.Add(t.framesIn)
		c.OctetsIn.Add(t.octetsIn)
	}
	if t.framesOut > 0 {
		c.FramesOut.Add(t.framesOut)
		c.OctetsOut.Add(t.octetsOut)
	}
	*t = tally{}
}
