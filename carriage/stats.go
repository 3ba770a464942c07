package carriage

import "sync/atomic"

// Stats counts what went another way than intended, over all associations of a
// Bridge since it was made.
type Stats struct {
	// Requests of peers that were answered with a transport error.
	RequestsMalformed   uint64 // EnvelopeMalformed
	RequestsUnsupported uint64 // ProtocolUnsupported, MethodUnsupported, NotResumable
	RequestsForbidden   uint64 // SafetyPolicy
	RequestsOverLimit   uint64 // NotDelivered: too many in flight, too many octets retained, no worker, draining, no handler
	// RequestsDuplicate were dropped: their correlation id was live.
	RequestsDuplicate uint64

	// Requests whose handler gave no (good) answer; each became NotDelivered.
	HandlerPanics   uint64
	HandlerSilent   uint64 // neither answered nor retained
	ReplyTimeouts   uint64 // retained beyond the reply timeout
	RepliesBad      uint64 // not a reply to this request, or too large for the peer
	RepliesStalled  uint64 // no outbound room before the stall deadline
	RepliesOverHeld uint64 // more waiting octets than are kept

	// Replies of peers.
	RepliesMalformed uint64 // broke a rule; the waiter got EnvelopeMalformed
	RepliesUnknown   uint64 // no exchange under their correlation id
	RepliesLate      uint64 // the exchange had been abandoned

	// Streams that we produce.
	StreamsCancelled uint64 // by their consumers
	StreamsCut       uint64 // ended as NotDelivered: slow consumers, drains, handlers that left them
	StreamsResumed   uint64
	NotResumable     uint64 // resumes refused with NotResumable
	CreditUnknown    uint64 // FLOW_UPDATE for a stream that is not there (any more)

	// What was held of streams that may be resumed, and is not any more.
	RetainedDropped  uint64 // events, over the octets of one stream
	RetainedEvicted  uint64 // streams, over the number for a peer or the octets of all
	RetainedExpired  uint64 // streams, over the time
	RetainedReplaced uint64 // streams whose peer began another under their correlation id

	// Streams that we consume.
	EventsRepeated   uint64 // at or below the cursor after a resume, dropped
	StreamsOverrun   uint64 // cut because the producer sent more than its credit
	StreamsUnread    uint64 // cut because their reader was too slow
	StreamsRedialled uint64 // whose iterators asked for the rest on another association

	// Document sets (CC-DOC).
	SetsRefused uint64 // ours, by their consumers, with one of the codes of CC-DOC 8
	SetsFailed  uint64 // of peers: refused by us, given up or not complete in time

	NotificationsDropped uint64 // malformed, unsupported, forbidden, no room, or the handler panicked
	UnknownTypes         uint64 // frames of types that the channel does not have
	CompletionPanics     uint64
	// Floods are associations closed because the peer causes refusals and does
	// not read them.
	Floods uint64
}

type counters struct {
	requestsMalformed, requestsUnsupported, requestsForbidden, requestsOverLimit, requestsDuplicate,
	handlerPanics, handlerSilent, replyTimeouts, repliesBad, repliesStalled, repliesOverHeld,
	repliesMalformed, repliesUnknown, repliesLate,
	streamsCancelled, streamsCut, streamsResumed, notResumable, creditUnknown,
	retainedDropped, retainedEvicted, retainedExpired, retainedReplaced,
	eventsRepeated, streamsOverrun, streamsUnread, streamsRedialled,
	setsRefused, setsFailed,
	notificationsDropped, unknownTypes, completionPanics, floods atomic.Uint64
}

// Stats returns the counts so far.
func (b *Bridge) Stats() Stats {
	c := &b.stats
	return Stats{
		RequestsMalformed:    c.requestsMalformed.Load(),
		RequestsUnsupported:  c.requestsUnsupported.Load(),
		RequestsForbidden:    c.requestsForbidden.Load(),
		RequestsOverLimit:    c.requestsOverLimit.Load(),
		RequestsDuplicate:    c.requestsDuplicate.Load(),
		HandlerPanics:        c.handlerPanics.Load(),
		HandlerSilent:        c.handlerSilent.Load(),
		ReplyTimeouts:        c.replyTimeouts.Load(),
		RepliesBad:           c.repliesBad.Load(),
		RepliesStalled:       c.repliesStalled.Load(),
		RepliesOverHeld:      c.repliesOverHeld.Load(),
		RepliesMalformed:     c.repliesMalformed.Load(),
		RepliesUnknown:       c.repliesUnknown.Load(),
		RepliesLate:          c.repliesLate.Load(),
		StreamsCancelled:     c.streamsCancelled.Load(),
		StreamsCut:           c.streamsCut.Load(),
		StreamsResumed:       c.streamsResumed.Load(),
		NotResumable:         c.notResumable.Load(),
		CreditUnknown:        c.creditUnknown.Load(),
		RetainedDropped:      c.retainedDropped.Load(),
		RetainedEvicted:      c.retainedEvicted.Load(),
		RetainedExpired:      c.retainedExpired.Load(),
		RetainedReplaced:     c.retainedReplaced.Load(),
		EventsRepeated:       c.eventsRepeated.Load(),
		StreamsOverrun:       c.streamsOverrun.Load(),
		StreamsUnread:        c.streamsUnread.Load(),
		StreamsRedialled:     c.streamsRedialled.Load(),
		SetsRefused:          c.setsRefused.Load(),
		SetsFailed:           c.setsFailed.Load(),
		NotificationsDropped: c.notificationsDropped.Load(),
		UnknownTypes:         c.unknownTypes.Load(),
		CompletionPanics:     c.completionPanics.Load(),
		Floods:               c.floods.Load(),
	}
}
