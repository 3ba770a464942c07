package carriage

import (
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/trestle-npamp/trestle/carriage/jsonrpc"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/sched"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
	"github.com/trestle-npamp/trestle/wire/control"
)

// conn is the Bridge channel of one association. Everything in it belongs to the
// association's loop, but for retained, slots, outgoing and room.
type conn struct {
	b *Bridge
	a *assoc.Association

	// What the peer asked and is not answered.
	live sched.Table[*Request]

	// Streams that came with what the peer asked (CC-STREAM 8), by its correlation id.
	ups     sched.Table[*upstream]
	upsOpen int // those that may be read
	upsSent int // those of ours that go on

	retained atomic.Int64 // octets held of them, and of what waits for a worker

	// What we asked: by token, by natural correlation id, and in a list.
	slots    sched.Slots[*exchange]
	names    sched.Table[*exchange]
	open     *exchange
	awaited  int          // exchanges that somebody waits for
	outgoing atomic.Int64 // octets of requests not sent yet
	room     roomList     // who waits for outgoing to fall

	waiting waitList // replies and requests without outbound room
	starved waitList // streams without outbound room
	held    int      // octets of the replies among them
	retry   retryTimer

	// The peer's protocol ids, once its HELLO has come.
	speaks   [4]uint64
	hasHello bool

	draining bool
	drained  bool // streams are cut by now
	closed   bool
	flooded  bool
	last     lastCall

	reply Reply // handed to completions, one at a time
	event Event // handed to stream handlers, one at a time
}

// retryInterval is how often the waiting list is tried when nobody says that
// there is room: what limits it may be the budget that associations share.
const retryInterval = 100 * time.Millisecond

type retryTimer struct {
	timer sched.Timer
	c     *conn
}

// HandleExpire runs on the loop, outside a turn: the association's time may be
// old.
func (t *retryTimer) HandleExpire(now time.Duration) { t.c.sendWaiting(now) }

func newConn(b *Bridge, a *assoc.Association) *conn {
	c := &conn{b: b, a: a}
	c.live.Init(b.cfg.MaxInFlight)
	c.names.Init(b.cfg.MaxInFlight)
	c.ups.Init(b.cfg.MaxInFlight)
	c.slots.Init(b.cfg.MaxInFlight, rand.Uint64(), uint8(a.Role()))
	c.retry.c, c.last.c = c, c
	c.retry.timer.Owner, c.last.timer.Owner = &c.retry, &c.last
	return c
}

// HandleFrame takes a frame of the Bridge channel.
func (c *conn) HandleFrame(t wire.FrameType, payload []byte) {
	switch t {
	case bridge.TypeRequest:
		r := requests.Get().(*Request)
		c.handleRequest(r, bridge.Parse(&r.msg, t, payload, c.b.cfg.Tags))
	case bridge.TypeNotify:
		n := notifies.Get().(*Notify)
		c.handleNotify(n, bridge.Parse(&n.msg, t, payload, c.b.cfg.Tags))
	default:
		c.handleAnswer(t, payload)
	}
}

// handleAnswer takes what may end or go on with an exchange.
func (c *conn) handleAnswer(t wire.FrameType, payload []byte) {
	var m bridge.Message
	err := bridge.Parse(&m, t, payload, c.b.cfg.Tags)
	switch {
	case err == bridge.ErrFrameType:
		c.b.stats.unknownTypes.Add(1)
	case err == nil && m.Kind == bridge.KindEnd && c.handleCancel(&m):
	default:
		c.handleReply(&m, err)
	}
}

// HandleHello learns which protocols the peer speaks (HELLO 6).
func (c *conn) HandleHello(h *control.Hello) {
	c.speaks, c.hasHello = [4]uint64{}, true
	for _, id := range h.Protocols {
		c.speaks[id>>6] |= 1 << (id & 63)
	}
	c.eachOutlet((*outlet).again) // HELLO says what a stream may bring at first
	c.eachSet((*setOutlet).again)
}

// common says that both sides speak the protocol, as far as is known.
func (c *conn) common(id bridge.ProtocolID) bool {
	return !c.hasHello || c.speaks[id>>6]>>(id&63)&1 != 0
}

// HandleDrain refuses new exchanges of both sides from now on. Streams, which may
// have no end of their own, are given a last while.
func (c *conn) HandleDrain() {
	c.draining = true
	c.a.StartTimer(&c.last.timer, c.b.cfg.StreamDrain)
}

// lastCall is the end of that while.
type lastCall struct {
	timer sched.Timer
	c     *conn
}

// HandleExpire runs on the loop: what still streams is cut.
func (t *lastCall) HandleExpire(time.Duration) {
	c := t.c
	c.drained = true
	c.eachOutlet(func(o *outlet) { o.cut(ErrDraining, textDrained) })
	c.eachSet(func(o *setOutlet) { o.cut(ErrDraining, textDrained) })
	c.eachUpstream(func(u *upstream) { u.abandon(ErrDraining) })
	for e := c.open; e != nil; {
		next := e.next
		if e.sub != nil && e.sub.parts == nil && e.state != exchangeAbandoned {
			c.abandon(e, ErrDraining)
		}
		e = next
	}
}

// eachOutlet calls f, which may end it, for each stream that we produce here.
func (c *conn) eachOutlet(f func(o *outlet)) {
	c.live.Range(func(_ []byte, r *Request) bool {
		if r.out != nil {
			f(r.out)
		}
		return true
	})
	for e := c.open; e != nil; {
		next := e.next
		if e.up != nil && e.up.attached {
			f(e.up)
		}
		e = next
	}
}

// streamLimit is what may be sent on a stream at first. Only streams of the Bridge
// channel have credit of their own (D6).
func (c *conn) streamLimit() (octets uint64, limited bool) {
	if c.b.cfg.Channel != wire.ChannelBridge {
		return 0, false
	}
	return c.a.StreamLimit()
}

// streamWindow is the same for what we receive.
func (c *conn) streamWindow() (octets uint64, limited bool) {
	if c.b.cfg.Channel != wire.ChannelBridge {
		return 0, false
	}
	return c.a.StreamWindow()
}

// HandleStreamCredit takes a peer's FLOW_UPDATE for a stream (D6).
func (c *conn) HandleStreamCredit(octets uint64, corr []byte) {
	if r, ok := c.live.Get(corr); ok && r.set != nil {
		if r.set.credit.Update(octets) {
			r.set.pump()
		}
		return
	}
	o := c.outletOf(corr)
	if o == nil {
		c.b.stats.creditUnknown.Add(1) // it crossed the stream's end
		return
	}
	if o.credit.Update(octets) {
		o.pump()
	}
}

// Busy is the number of exchanges that somebody waits for, on either side. Of what is
// full duplex each half counts that goes on.
func (c *conn) Busy() int { return c.live.Len() + c.awaited + c.upsOpen + c.upsSent }

// HandleClose ends every exchange: ours are completed with err, the peer's can't
// be answered any more.
func (c *conn) HandleClose(err error) {
	c.closed = true
	c.a.StopTimer(&c.retry.timer)
	c.a.StopTimer(&c.last.timer)
	c.waiting.clear()
	c.starved.clear()
	for e := c.open; e != nil; e = c.open {
		if e.up != nil {
			e.up.lost(err)
			if c.open != e {
				continue // that was all that it waited for
			}
		}
		c.complete(e, Reply{Err: err, Sent: e.state >= exchangeSent})
		c.free(e)
	}
	c.eachUpstream(func(u *upstream) {
		u.tell(Reply{Err: err, Sent: true})
		u.drop()
	})
	c.live.Range(func(_ []byte, r *Request) bool {
		if r.out != nil {
			r.out.lost(err)
			return true
		}
		if r.set != nil {
			r.set.finish(err)
			return true
		}
		r.claim()
		c.drop(r)
		return true
	})
}

// handleRequest serves a REQUEST; parsed is what Parse said about it.
func (c *conn) handleRequest(r *Request, parsed error) {
	s := &c.b.stats
	m := &r.msg
	resume := parsed == nil && m.HasStream && m.Stream.Control == bridge.ControlResume
	if first, dup := c.live.Get(m.Corr); dup {
		if resume && first.out != nil {
			c.handleResume(r, first.out)
			return
		}
		// BRIDGE 5: an answer, even an error, would end the first one.
		s.requestsDuplicate.Add(1)
		r.recycle()
		return
	}
	if _, up := c.ups.Get(m.Corr); up && !resume {
		s.requestsDuplicate.Add(1) // one half of the first one goes on
		r.recycle()
		return
	}
	var code bridge.Code
	var text string
	var count *atomic.Uint64
	switch {
	case parsed != nil:
		count, code, text = &s.requestsMalformed, bridge.CodeOf(parsed), reason(parsed)
	case c.b.protocols[m.Protocol] == nil || !c.common(m.Protocol):
		count, code, text = &s.requestsUnsupported, bridge.CodeProtocolUnsupported, "protocol not carried"
	case len(m.Binding) > 0: // CC-DOC 7.1
		count, code, text = &s.requestsMalformed, bridge.CodeBindingMalformed, "a request carries no document part"
	case c.draining:
		count, code, text = &s.requestsOverLimit, bridge.CodeNotDelivered, "shutting down"
	case c.live.Full():
		count, code, text = &s.requestsOverLimit, bridge.CodeNotDelivered, "too many requests in flight"
	case resume:
		r.c, r.proto = c, c.b.protocols[m.Protocol]
		c.handleResume(r, nil)
		return
	case c.b.protocols[m.Protocol].Handler == nil:
		count, code, text = &s.requestsOverLimit, bridge.CodeNotDelivered, "nothing serves this protocol here"
	default:
		r.c, r.proto = c, c.b.protocols[m.Protocol]
		c.serve(r)
		c.served(r)
		return
	}
	count.Add(1)
	c.reject(m.Protocol, m.Corr, code, text)
	r.recycle()
}

// serve examines a request and hands it to its handler. All code that is not
// ours runs below it, so all its panics end here.
func (c *conn) serve(r *Request) {
	defer func() {
		if p := recover(); p != nil {
			c.b.panicked("handler", &c.b.stats.handlerPanics, p)
			if r.claim() {
				r.refuse(bridge.CodeNotDelivered, textFailed)
			} else {
				r.abandonStream(textFailed)
			}
		}
	}()
	p, m := r.proto, &r.msg
	if err := r.examine(jsonrpc.KindRequest, errNotRequest); err != nil {
		c.b.stats.requestsMalformed.Add(1)
		c.turnDown(r, bridge.CodeEnvelopeMalformed, reason(err))
		return
	}
	if p.Supports != nil && !p.Supports(m.Method) || !r.doc && c.b.cfg.Channel != wire.ChannelBridge {
		c.b.stats.requestsUnsupported.Add(1)
		c.turnDown(r, bridge.CodeMethodUnsupported, "method not carried")
		return
	}
	r.assess()
	if authorize := c.b.cfg.Authorize; authorize != nil {
		if err := authorize(&r.Inbound); err != nil {
			c.b.stats.requestsForbidden.Add(1)
			c.turnDown(r, bridge.CodeSafetyPolicy, err.Error())
			return
		}
	}
	// Before any handler sees it: one that retains it may have acted by then.
	if !c.mayRetain(&r.Inbound) {
		c.b.stats.requestsOverLimit.Add(1)
		c.turnDown(r, bridge.CodeNotDelivered, "over capacity")
		return
	}
	if p.duplex(m.Method) && !c.expect(r) {
		c.b.stats.requestsOverLimit.Add(1)
		c.turnDown(r, bridge.CodeNotDelivered, "over capacity")
		return
	}
	if !p.Async {
		p.Handler.ServeRequest(r)
		return
	}
	r.keep(true)
	r.refs.Add(1) // the worker's; served drops ours
	r.holders.Add(1)
	if !c.b.workers.submit(&r.job) {
		r.refs.Add(-1)
		r.letGo()
		c.b.stats.requestsOverLimit.Add(1)
		if r.claim() {
			c.endAnswer(r, "over capacity")
		}
	}
}

// turnDown refuses a request that no handler has seen.
func (c *conn) turnDown(r *Request, code bridge.Code, text string) {
	r.claim()
	c.reject(r.msg.Protocol, r.msg.Corr, code, text)
}

// served sees to a request after its handler has returned.
func (c *conn) served(r *Request) {
	switch {
	case r.retained:
		if r.bare {
			r.msg.Foreign = nil
		}
		if !r.proto.Async && !r.kept {
			r.abandonStream(textLeft)
		}
		r.unref()
	case r.live: // the answer waits for room
		r.msg.Foreign = nil
	default:
		if r.claim() {
			c.b.stats.handlerSilent.Add(1)
			r.refuse(bridge.CodeNotDelivered, textSilent)
		}
		r.answered(false)
		r.recycle()
	}
}

// examine checks a message above its envelope, by its carriage class.
func (m *Inbound) examine(want jsonrpc.Kind, otherwise error) error {
	p, x := m.proto, &m.msg
	switch {
	case want == jsonrpc.KindRequest:
		m.doc = len(x.Foreign) == 0 && p.Document != nil && p.Document(x.Method)
	case len(x.Binding) > 0: // CC-DOC 7.2: the document is the message
		m.doc = true
	case m.c.b.cfg.Channel != wire.ChannelBridge:
		return errNotDocument
	}
	if p.Class != ClassJSONRPC || m.doc {
		return nil
	}
	if x.Content != bridge.ContentJSON {
		return errContent // CC-JSONRPC 3
	}
	var j jsonrpc.Message
	if err := jsonrpc.ScanDepth(x.Foreign, &j, m.c.b.cfg.MaxDepth); err != nil {
		return err
	}
	switch {
	case j.Kind != want:
		return otherwise
	case !j.EqualMethod(x.Method):
		return errMethod // CC-JSONRPC 4
	}
	m.id = j.ID
	return nil
}

// handleNotify serves a NOTIFY. Nothing about it is ever answered (BRIDGE 8).
func (c *conn) handleNotify(n *Notify, parsed error) {
	p := c.b.protocols[n.msg.Protocol]
	n.c, n.proto = c, p
	if parsed != nil || p == nil || p.Handler == nil || !c.common(n.msg.Protocol) {
		c.b.stats.notificationsDropped.Add(1)
		n.recycle()
		return
	}
	if !c.serveNotify(n, p) {
		c.b.stats.notificationsDropped.Add(1)
	}
}

// serveNotify takes n over.
func (c *conn) serveNotify(n *Notify, p *Protocol) (ok bool) {
	defer func() {
		if p := recover(); p != nil {
			c.b.panicked("handler", &c.b.stats.handlerPanics, p)
			ok = false
		}
		if n != nil {
			n.recycle()
		}
	}()
	if n.examine(jsonrpc.KindNotification, errNotNotify) != nil || p.Supports != nil && !p.Supports(n.msg.Method) {
		return false
	}
	n.assess()
	if authorize := c.b.cfg.Authorize; authorize != nil && authorize(&n.Inbound) != nil {
		c.b.stats.requestsForbidden.Add(1)
		return false
	}
	if !p.Async {
		p.Handler.ServeNotify(n)
		return true
	}
	if !c.mayRetain(&n.Inbound) {
		return false
	}
	n.store = n.own(true)
	c.retained.Add(int64(len(n.store.B)))
	if !c.b.workers.submit(&n.job) {
		return false
	}
	n = nil
	return true
}

// enlist enters a request into the table of live ones.
func (c *conn) enlist(r *Request) {
	// There is room and no such id: handleRequest looked, and only this frame has
	// been handled since.
	r.live = c.live.Insert(r.msg.Corr, r)
	r.holders.Store(1)
	r.charge()
}

// mayRetain says whether there is room for all of one more message. A single one
// has room, whatever its size.
func (c *conn) mayRetain(m *Inbound) bool {
	held := c.retained.Load()
	return held == 0 || held+int64(m.octets(true)) <= int64(c.b.cfg.MaxRetained)
}

// drop takes a request out of the table and lets go of it.
func (c *conn) drop(r *Request) {
	r.answered(r.half)
	c.a.StopTimer(&r.timer)
	if r.wait.waiting() {
		c.waiting.remove(&r.wait)
		c.held -= r.wait.octets
	}
	if r.live {
		c.live.Delete(r.msg.Corr)
		r.live = false
		r.letGo()
	}
	if r.retained {
		r.unref()
	} else {
		r.recycle()
	}
}

// send sends one message now. Errors are Begin's and Append's.
func (c *conn) send(m *bridge.Message, reserved bool) error {
	b, err := c.begin(m.Kind, m.Size(), reserved)
	if err != nil {
		return err
	}
	out, err := m.Append(b, c.b.cfg.Tags)
	if err != nil {
		c.a.Cancel()
		return err
	}
	return c.a.End(out)
}

// sendPlain sends a message that is already put together.
func (c *conn) sendPlain(k bridge.Kind, plain []byte, reserved bool) error {
	b, err := c.begin(k, len(plain), reserved)
	if err != nil {
		return err
	}
	return c.a.End(append(b, plain...))
}

func (c *conn) begin(k bridge.Kind, n int, reserved bool) ([]byte, error) {
	if reserved {
		return c.a.BeginReserved(c.b.cfg.Channel, k.Type(), n)
	}
	return c.a.Begin(c.b.cfg.Channel, k.Type(), n)
}

// answer sends the reply to a request that is not retained, or makes it wait.
func (c *conn) answer(r *Request, m *bridge.Message) error {
	err := assoc.ErrWouldBlock
	if c.waiting.empty() {
		if err = c.send(m, false); err != assoc.ErrWouldBlock {
			return err
		}
	}
	n := m.Size()
	if !c.mayHold(n) {
		return err
	}
	b := buf.Get(n)
	out, err := m.Append(b.B, c.b.cfg.Tags)
	if err != nil {
		b.Release()
		return err
	}
	b.B = out
	r.answer, r.kind = b, m.Kind
	r.store = r.own(false)
	c.enlist(r)
	c.hold(r)
	return nil
}

// sendAnswer sends the answer that came from elsewhere, or makes it wait.
func (c *conn) sendAnswer(r *Request) {
	if r.reserved {
		_ = c.sendPlain(r.kind, r.answer.B, true) // fails only with the association
		c.drop(r)
		return
	}
	if c.waiting.empty() {
		if err := c.sendPlain(r.kind, r.answer.B, false); err != assoc.ErrWouldBlock {
			c.sentAnswer(r, err)
			return
		}
	}
	if c.mayHold(len(r.answer.B)) {
		c.hold(r)
		return
	}
	c.endAnswer(r, textNoRoom)
}

// sentAnswer is done with a request whose answer was handed to the association. One
// that it refuses after all, because the peer's HELLO came between, is NotDelivered:
// silence would keep the peer waiting.
func (c *conn) sentAnswer(r *Request, err error) {
	if err == nil || c.closing(err) {
		c.drop(r)
		return
	}
	c.b.stats.repliesBad.Add(1)
	c.endAnswer(r, textUncarried+reason(err))
}

// mayHold says whether one more reply may wait for room. A single one may,
// whatever its size.
func (c *conn) mayHold(n int) bool {
	if c.held == 0 || c.held+n <= c.b.cfg.MaxHeld {
		return true
	}
	c.b.stats.repliesOverHeld.Add(1)
	return false
}

func (c *conn) hold(r *Request) {
	c.held += len(r.answer.B)
	c.await(&r.wait, len(r.answer.B))
	c.a.StartTimer(&r.timer, c.b.cfg.StallTimeout)
}

// resend tries a reply that waits for room; false means that it still does.
func (r *Request) resend() bool {
	err := r.c.sendPlain(r.kind, r.answer.B, false)
	if err == assoc.ErrWouldBlock {
		return false
	}
	r.c.sentAnswer(r, err)
	return true
}

// endAnswer ends a live request that the caller has claimed with NotDelivered.
func (c *conn) endAnswer(r *Request, text string) {
	c.refuse(r.msg.Protocol, r.msg.Corr, bridge.CodeNotDelivered, text)
	c.drop(r)
}

// refuse sends a transport error for an exchange that was admitted: for that
// there is always room.
func (c *conn) refuse(p bridge.ProtocolID, corr []byte, code bridge.Code, text string) {
	_ = c.sendTransport(p, corr, code, text, true) // fails only with the association
}

// reject sends a transport error for a request that was not admitted. The number
// of these is up to the peer; one that does not even read them is a flood.
func (c *conn) reject(p bridge.ProtocolID, corr []byte, code bridge.Code, text string) {
	if c.sendTransport(p, corr, code, text, false) != assoc.ErrWouldBlock || c.flooded {
		return
	}
	c.flooded = true
	c.b.stats.floods.Add(1)
	c.a.Close(control.CodeLimit, "requests refused faster than their refusals are read")
}

// noCorr answers a request whose correlation id can't be read.
var noCorr = []byte{0}

func (c *conn) sendTransport(p bridge.ProtocolID, corr []byte, code bridge.Code, text string, reserved bool) error {
	if p == 0 {
		p = c.b.anyProtocol() // an envelope must name one
	}
	if len(corr) == 0 {
		if _, live := c.live.Get(noCorr); live {
			return nil
		}
		corr = noCorr
	}
	f := buf.Get(2 + bridge.MaxErrorText)
	f.B = bridge.AppendTransportError(f.B, code, text)
	m := bridge.Message{
		Kind: bridge.KindError, Protocol: p, Content: bridge.ContentJSON,
		Corr: corr, Foreign: f.B, Transport: true,
	}
	err := c.send(&m, reserved)
	f.Release()
	return err
}

func (b *Bridge) anyProtocol() bridge.ProtocolID {
	if len(b.ids) > 0 {
		return bridge.ProtocolID(b.ids[0])
	}
	return bridge.ProtocolMCP
}

// closing says that err means the end of the association.
func (c *conn) closing(err error) bool { return errors.Is(err, assoc.ErrClosed) }

// waiter is a place in the list of what waits for outbound room.
type waiter struct {
	owner      interface{ resend() bool }
	list       *waitList
	prev, next *waiter
	octets     int
}

func (w *waiter) waiting() bool { return w.list != nil }

// waitList is first come, first served: what is large is not overtaken by what
// is small until it is too late.
type waitList struct{ first, last *waiter }

func (l *waitList) empty() bool { return l.first == nil }

func (l *waitList) push(w *waiter) {
	w.list, w.prev, w.next = l, l.last, nil
	if l.last == nil {
		l.first = w
	} else {
		l.last.next = w
	}
	l.last = w
}

func (l *waitList) remove(w *waiter) {
	if w.prev == nil {
		l.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.list, w.prev, w.next = nil, nil, nil
}

func (l *waitList) clear() {
	for l.first != nil {
		l.remove(l.first)
	}
}

// await puts w at the end of the list.
func (c *conn) await(w *waiter, octets int) {
	w.octets = octets
	c.waiting.push(w)
	if !c.retry.timer.Active() {
		c.a.StartTimer(&c.retry.timer, retryInterval)
	}
}

// HandleRoom sends what waits, as far as it goes.
func (c *conn) HandleRoom() { c.sendWaiting(c.a.Now()) }

func (c *conn) sendWaiting(now time.Duration) {
	for !c.waiting.empty() || !c.starved.empty() {
		first := c.waiting.first
		if first == nil {
			first = c.starved.first
		}
		if !first.owner.resend() {
			c.a.StartTimer(&c.retry.timer, now+retryInterval-c.a.Now())
			return
		}
	}
	c.a.StopTimer(&c.retry.timer)
}
