package carriage

import (
	"bytes"
	"sync/atomic"

	"github.com/trestle-npamp/trestle/carriage/jsonrpc"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// handleCancel takes a STREAM_END by which the peer cancels a stream that it
// consumes (CC-STREAM 7.1), and says whether it was one.
func (c *conn) handleCancel(m *bridge.Message) bool {
	if !m.HasStream || m.Stream.Control != bridge.ControlCancel || m.Stream.Flags&bridge.StreamCancelAck != 0 {
		return false
	}
	r, ok := c.live.Get(m.Corr)
	switch {
	case !ok:
		return c.handleUpCancel(m.Corr)
	case r.out != nil:
		r.out.cancel(ErrCancelled)
	case r.set != nil:
		r.set.cancel()
	case r.claim():
		// No event has been sent, and now none will be.
		c.b.stats.streamsCancelled.Add(1)
		end := bridge.Message{
			Kind: bridge.KindEnd, Protocol: r.msg.Protocol, Content: r.msg.Content, MediaType: r.msg.MediaType,
			Corr: r.msg.Corr, Flags: bridge.FlagFinal, HasStream: true,
			Stream: bridge.StreamControl{Flags: bridge.StreamCancelAck},
		}
		_ = c.send(&end, true) // fails only with the association
		r.half = true
		c.drop(r)
	case r.state.Load() == stateStreaming:
		r.cancelled = true // the stream is on its way to this loop
	}
	return true
}

// handleResume continues a stream behind what its consumer has consumed (CC-STREAM
// 6.3): r asks for it, and live is where the stream crosses this association
// already, nil if it does not.
func (c *conn) handleResume(r *Request, live *outlet) {
	m, s := &r.msg, &c.b.stats
	code, text, count := bridge.CodeNotResumable, "no such stream", &s.notResumable
	if e := c.find(m.Corr); e != nil && e.up != nil {
		text = "it was not lost"
	} else if f := c.b.retained.find(c.a.PeerKey(), m.Corr); f != nil && m.Protocol == f.proto.ID && (live == nil || live.f == f) {
		if code, text, count = c.mayResume(r, f); code == 0 {
			if c.resume(r, f, live) {
				s.streamsResumed.Add(1)
				return
			}
			code, text, count = bridge.CodeNotResumable, "what follows the cursor is not held any more", &s.notResumable
		}
	}
	count.Add(1)
	if live != nil {
		// There is one exchange under this correlation id, so this ends it.
		live.end(ErrNotResumable, code, text)
	} else {
		c.reject(m.Protocol, m.Corr, code, text)
	}
	r.recycle()
}

// mayResume says why r may not continue f; 0 that it may. What f was made by is
// authorised again, and r itself where it is another operation (CC-STREAM 12).
func (c *conn) mayResume(r *Request, f *feed) (code bridge.Code, text string, count *atomic.Uint64) {
	s := &c.b.stats
	r.c, r.proto = c, f.proto
	if len(r.msg.Foreign) > 0 {
		if err := r.examine(jsonrpc.KindRequest, errNotRequest); err != nil {
			return bridge.CodeEnvelopeMalformed, reason(err), &s.requestsMalformed
		}
		if r.id != nil && !jsonrpc.EqualID(r.id, f.id) {
			return bridge.CodeEnvelopeMalformed, reason(errWrongID), &s.requestsMalformed // D27
		}
	}
	authorize := c.b.cfg.Authorize
	if authorize == nil || f.up {
		return 0, "", nil // what goes along with our own request, its responder may have
	}
	defer func() {
		if p := recover(); p != nil {
			c.b.panicked("Authorize", &s.handlerPanics, p)
			code, text, count = bridge.CodeNotDelivered, "authorization failed", &s.requestsForbidden
		}
	}()
	first := r.Inbound
	first.msg.Method, first.msg.Label, first.msg.HasLabel = f.method, f.label, f.hasLabel
	first.id, first.effect, first.doc = f.id, f.effect, f.doc
	err := authorize(&first)
	if err == nil && len(r.msg.Method) > 0 && !bytes.Equal(r.msg.Method, f.method) {
		r.assess()
		err = authorize(&r.Inbound)
	}
	if err != nil {
		return bridge.CodeSafetyPolicy, err.Error(), &s.requestsForbidden
	}
	return 0, "", nil
}

// resume moves f here, behind the event that r names; false if that is not held.
func (c *conn) resume(r *Request, f *feed, live *outlet) bool {
	after := r.msg.Stream.EventID
	if live != nil {
		if _, ok := c.b.retained.resume(f, live, after); !ok {
			return false
		}
		r.recycle()
		live.rewind(after)
		return true
	}
	o := newOutlet(c, r, f)
	old, ok := c.b.retained.resume(f, o, after)
	if !ok {
		return false
	}
	if old != nil {
		old.c.a.PostOnce(&old.node) // it finds that it is not the stream's any more
	}
	r.state.Store(stateStreaming)
	r.feed.Store(f)
	r.bare = true
	r.keep(false)
	r.msg.Foreign = nil
	r.unref()
	o.attach(after)
	o.pump()
	return true
}
