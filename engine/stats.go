package engine

// Stats is a snapshot of an engine's counters. All but the first three only
// grow.
type Stats struct {
	Associations      int   // that stand now
	PendingHandshakes int   // on accepted connections, now
	Held              int64 // octets in queues and partial frames, now

	HandshakesStarted, HandshakesCompleted, HandshakesFailed uint64
	HandshakesEvicted                                        uint64 // of the most crowded stage, for others
	AssociationsRefused                                      uint64 // by Limits.Associations

	FramesIn, FramesOut           uint64 // sealed frames
	OctetsIn, OctetsOut           uint64 // of those frames, on the wire
	SkippedChannel                uint64 // frames of channels not carried, unopened
	UnknownType                   uint64 // frames of types nobody handles
	BadClose                      uint64 // CLOSE frames that did not verify
	PathFrames                    uint64
	StaleAcks                     uint64
	KeyUpdatesIn, KeyUpdatesOut   uint64
	RatchetsIn, RatchetsOut       uint64 // tier-1 steps of peers and of ours
	RekemsIn, RekemsOut           uint64 // tier-2 steps peers asked for, and we
	RekemsDropped                 uint64 // ours that were crossed or not answered
	StaleRekems                   uint64 // peers' that were not followed
	KeyChangesPutOff              uint64 // due by Limits, but too soon for a peer
	PingsIn, PingsOut             uint64
	ErrorsIn, ErrorsOut           uint64
	ClosedByPeer, ClosedLocally   uint64 // associations
	ClosedForFault                uint64 // of the latter, those in which the peer broke the protocol
	DroppedQueued                 uint64 // queued frames lost with their association
	WouldBlock, Stalled, Panicked uint64
}

// Stats gives a snapshot.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	n := len(e.assocs)
	e.mu.Unlock()
	f, s, h := &e.frames, &e.sends, e.shakes
	return Stats{
		Associations:        n,
		PendingHandshakes:   h.Pending(),
		Held:                e.budget.Used(),
		HandshakesStarted:   h.Started.Load(),
		HandshakesCompleted: h.Completed.Load(),
		HandshakesFailed:    h.Failed.Load(),
		HandshakesEvicted:   h.Evicted.Load(),
		AssociationsRefused: e.refused.Load(),
		FramesIn:            f.FramesIn.Load(),
		FramesOut:           f.FramesOut.Load(),
		OctetsIn:            f.OctetsIn.Load(),
		OctetsOut:           f.OctetsOut.Load(),
		SkippedChannel:      f.SkippedChannel.Load(),
		UnknownType:         f.UnknownType.Load(),
		BadClose:            f.BadClose.Load(),
		PathFrames:          f.PathFrames.Load(),
		StaleAcks:           f.StaleAcks.Load(),
		KeyUpdatesIn:        f.KeyUpdatesIn.Load(),
		KeyUpdatesOut:       f.KeyUpdatesOut.Load(),
		RatchetsIn:          f.RatchetsIn.Load(),
		RatchetsOut:         f.RatchetsOut.Load(),
		RekemsIn:            f.RekemsIn.Load(),
		RekemsOut:           f.RekemsOut.Load(),
		RekemsDropped:       f.RekemsDropped.Load(),
		StaleRekems:         f.StaleRekems.Load(),
		KeyChangesPutOff:    f.KeyChangesPutOff.Load(),
		PingsIn:             f.PingsIn.Load(),
		PingsOut:            f.PingsOut.Load(),
		ErrorsIn:            f.ErrorsIn.Load(),
		ErrorsOut:           f.ErrorsOut.Load(),
		ClosedByPeer:        f.ClosedByPeer.Load(),
		ClosedLocally:       f.ClosedLocally.Load(),
		ClosedForFault:      f.ClosedProtocol.Load(),
		DroppedQueued:       f.DroppedQueued.Load(),
		WouldBlock:          s.WouldBlock.Load(),
		Stalled:             s.Stalled.Load(),
		Panicked:            s.Panics.Load(),
	}
}
