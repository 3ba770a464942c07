package carriage

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"github.com/trestle-npamp/trestle/carriage/jsonrpc"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/sched"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// Call is a request (or a notification) to be sent. It is copied, so it may be
// reused as soon as Start, Call or Notify returns.
type Call struct {
	Protocol bridge.ProtocolID
	// Content is the foreign message's encoding; 0 is the protocol's own.
	Content bridge.ContentType
	// Method is the operation's name. Under the class JSONRPC it may be empty: it
	// is then read from the message, with which it must agree otherwise.
	Method string
	// Label is the SafetyLabel. Without one the message is labelled by what the
	// mapping knows of the method, and as destructive where that is nothing
	// (D15), unless NoLabel says to send none.
	Label   *bridge.Label
	NoLabel bool
	// Foreign is the message, carried octet for octet.
	Foreign []byte
	// Natural is what the correlation id is made from. Under the class JSONRPC it
	// is nil: the message's id is taken.
	Natural []byte
	// Hop is for who speaks for many, an edge or a relay: ids of different
	// callers may be equal then, so the correlation id has a token in it (D10).
	Hop bool
	// Timeout ends the exchange when no reply has come by then; 0 is no limit.
	Timeout time.Duration
	// MediaType and Metadata need configured Tags, and so does Binding, which a
	// notification has that carries a document (CC-DOC 7.2): the value of its
	// DocumentBinding. A request must not have one.
	MediaType, Metadata, Binding []byte
	// Sent, if set, is told on the loop, at most once and before the completion, that
	// the request has left. It must not block.
	Sent func()
}

// Reply is how an exchange ended.
type Reply struct {
	// Kind is bridge.KindResponse, or bridge.KindError for an error of the
	// foreign protocol itself. It means nothing if Err is set.
	Kind      bridge.Kind
	Content   bridge.ContentType
	MediaType []byte
	// Method is the envelope's of an answer in one piece. Most leave it empty, and
	// peers may put anything there.
	Method []byte
	// Foreign is the message, octet for octet.
	Foreign []byte
	// Err says that there was no (good) reply: a *bridge.Error; ErrDuplicateID,
	// ErrDraining, ErrStalled, assoc.ErrTooLarge, bridge.ErrAmbiguous or an error
	// of the class bridge.ErrMalformed for a request that could not be sent; what
	// matches assoc.ErrClosed if the association ended; context.DeadlineExceeded
	// after Timeout; what Abandon was told.
	Err error
	// Remote says that a *bridge.Error in Err is what the peer said and not what
	// we found.
	Remote bool
	// Sent says that octets of the request had left: unless there is a reply, the
	// peer may or may not have acted on it.
	Sent bool
}

// Completion is told how an exchange ended, exactly once, on the loop of its
// association. It must not block. r and what it refers to are borrowed until
// HandleReply returns.
type Completion interface{ HandleReply(r *Reply) }

// CompletionFunc is a Completion.
type CompletionFunc func(r *Reply)

// HandleReply calls f.
func (f CompletionFunc) HandleReply(r *Reply) { f(r) }

// Exchange names an exchange that Start began. The zero value names none.
type Exchange struct {
	c     *conn
	token sched.Token
}

// exchange is the originator's side of one exchange. Its states:
//
//	posted -> waiting for room -> sent -> completed
//	   '---------------------------^ '--> abandoned -> (terminal frame)
//
// Its correlation id stays reserved while it is sent or abandoned.
type exchange struct {
	node  sched.Node
	timer sched.Timer
	wait  waiter

	c     *conn
	slot  *sched.Slot[*exchange]
	proto *Protocol
	done  Completion // nil once told
	state exchangeState
	doc   bool
	hop   bool
	raw   bool // corr is the natural id alone
	named bool // in names
	whole bool // natural is an earlier exchange's whole correlation id

	sub      *Consumer // of a request that may be answered by a stream
	up       *outlet   // of a stream that goes along with it; nil once that is over
	upped    bool      // there was one
	half     bool      // only that goes on
	msg      bridge.Message
	corr     []byte
	natural  []byte
	id       []byte // the JSON-RPC id as written
	method   []byte
	extra    []byte // the label's scope, the media type, the metadata
	body     *buf.Buf
	timeout  time.Duration
	deadline time.Duration // on the loop's clock; 0 is none
	told     func()        // that the request has left

	sameName   *exchange // the next one with this natural id
	prev, next *exchange // all of the association
}

type exchangeState uint8

const (
	exchangePosted exchangeState = iota
	exchangeWaiting
	exchangeSent
	exchangeAbandoned
)

var exchanges = sync.Pool{New: func() any {
	e := new(exchange)
	e.node.Owner = e
	e.timer.Owner = e
	e.wait.owner = e
	return e
}}

// spare is the largest slice that a pooled exchange keeps.
const spare = 1 << 10

func keepSpare(b []byte) []byte {
	if cap(b) > spare {
		return nil
	}
	return b[:0]
}

func (e *exchange) recycle() {
	e.body.Release()
	e.c, e.slot, e.proto, e.done, e.body, e.sub, e.up = nil, nil, nil, nil, nil, nil, nil
	e.upped, e.half = false, false
	e.state, e.doc, e.hop, e.raw, e.named, e.whole = exchangePosted, false, false, false, false, false
	e.msg = bridge.Message{}
	e.corr, e.natural, e.id = keepSpare(e.corr), keepSpare(e.natural), keepSpare(e.id)
	e.method, e.extra = keepSpare(e.method), keepSpare(e.extra)
	e.timeout, e.deadline, e.told = 0, 0, nil
	exchanges.Put(e)
}

// documents is a Discovery channel, which has its Bridge messages from another
// handler (D25).
type documents interface{ Documents() assoc.ChannelConn }

// on returns the Bridge channel of a, if it is ours.
func (b *Bridge) on(a *assoc.Association) (*conn, error) {
	cc := a.ChannelConn(b.cfg.Channel)
	c, ok := cc.(*conn)
	if !ok { // only then: to ask for an interface is a look into a table
		if d, docs := cc.(documents); docs {
			c, ok = d.Documents().(*conn)
		}
	}
	if !ok || c.b != b {
		return nil, ErrNotAttached
	}
	return c, nil
}

// Start sends c as a request on a and returns at once. done, unless it is nil, is
// told how the exchange ends, exactly once and possibly before Start returns; if
// Start returns an error it is not told anything. Any goroutine may call Start.
//
// Errors: ErrNotAttached, ErrProtocol, ErrMalformed (with the reason),
// assoc.ErrTooLarge, assoc.ErrWouldBlock when too much waits to be sent (AwaitRoom),
// ErrInFlight, assoc.ErrClosed, and a *bridge.Error with
// CodeProtocolUnsupported for a protocol that the peer's HELLO does not name.
// What is found out later, ErrDuplicateID among it, done is told.
func (b *Bridge) Start(a *assoc.Association, c *Call, done Completion) (Exchange, error) {
	return b.start(a, c, done, nil, nil)
}

func (b *Bridge) start(a *assoc.Association, c *Call, done Completion, sub *Consumer, o *StreamCall) (Exchange, error) {
	cn, err := b.on(a)
	if err != nil {
		return Exchange{}, err
	}
	if done == nil {
		done = CompletionFunc(func(*Reply) {})
	}
	e := exchanges.Get().(*exchange)
	e.c, e.done, e.sub = cn, done, sub
	if err := e.prepare(c, bridge.KindRequest, o); err != nil {
		e.recycle()
		return Exchange{}, err
	}
	duplex := o != nil && o.Up != nil && o.Resume == nil
	if duplex && !e.proto.duplex(e.method) {
		e.recycle()
		return Exchange{}, ErrNotStream
	}
	n := int64(len(c.Foreign))
	if total := cn.outgoing.Add(n); total > int64(b.cfg.MaxHeld) && total != n {
		cn.left(n)
		e.recycle()
		return Exchange{}, assoc.ErrWouldBlock
	}
	slot, ok := cn.slots.Reserve()
	if !ok {
		cn.left(n)
		e.recycle()
		return Exchange{}, ErrInFlight
	}
	slot.Value, e.slot, e.told = e, slot, c.Sent
	if sub != nil {
		sub.e = e
		sub.re.learn(e)
	}
	if duplex {
		sub.upward = e.join(o.Up)
	}
	e.body = buf.Get(len(c.Foreign))
	e.body.B = append(e.body.B, c.Foreign...)
	e.msg.Foreign = e.body.B
	x := Exchange{cn, slot.Token()}
	if !a.Post(&e.node) {
		cn.slots.Release(slot)
		cn.left(n)
		e.recycle()
		return Exchange{}, cn.a.ClosedErr()
	}
	return x, nil
}

// Call sends c as a request on a and waits for its end. ctx bounds the wait.
//
// The Reply is never nil and owns its octets. The error is its Err, or Start's;
// an error of the foreign protocol is a Reply of bridge.KindError and no error
// here. Any goroutine but a loop may call it.
func (b *Bridge) Call(ctx context.Context, a *assoc.Association, c *Call) (*Reply, error) {
	if err := ctx.Err(); err != nil {
		return &Reply{Err: err}, err
	}
	w := waitingCalls.Get().(*waitingCall)
	w.a = a
	x, err := b.Start(a, c, w)
	if err != nil {
		w.a = nil
		waitingCalls.Put(w) // it is told nothing
		return &Reply{Err: err}, err
	}
	select {
	case <-w.ended:
	case <-ctx.Done():
		x.Abandon(ctx.Err())
		<-w.ended
	}
	r := w.reply
	w.reply, w.a = nil, nil
	waitingCalls.Put(w)
	return r, r.Err
}

// waitingCall is the Completion of a Call. It is told exactly once, and goes back to
// the pool only once that was taken from ended: no completion of an earlier Call is
// left that could wake a later one.
type waitingCall struct {
	a     *assoc.Association
	reply *Reply
	ended chan struct{} // has room for the one completion, so that the loop never waits
}

var waitingCalls = sync.Pool{New: func() any { return &waitingCall{ended: make(chan struct{}, 1)} }}

func (w *waitingCall) HandleReply(r *Reply) {
	a := w.a // once the caller is told, w is another Call's
	w.reply = r.clone()
	w.ended <- struct{}{}
	a.Woke()
}

// Replies that are one object with their octets. With 64-bit pointers, and the 8 octets
// that the runtime has in front of objects over 512, they have 192, 384, 640 and 1152
// octets, which are sizes of its allocator.
type (
	reply88 struct {
		Reply
		octets [88]byte
	}
	reply280 struct {
		Reply
		octets [280]byte
	}
	reply528 struct {
		Reply
		octets [528]byte
	}
	reply1040 struct {
		Reply
		octets [1040]byte
	}
)

// clone is a copy that owns its octets, in one allocation for a small reply and two for
// a large one.
func (r *Reply) clone() *Reply {
	n := len(r.Foreign) + len(r.MediaType) + len(r.Method)
	var c *Reply
	var room []byte
	switch {
	case n == 0:
		c = new(Reply)
	case n <= len(reply88{}.octets):
		x := new(reply88)
		c, room = &x.Reply, x.octets[:0]
	case n <= len(reply280{}.octets):
		x := new(reply280)
		c, room = &x.Reply, x.octets[:0]
	case n <= len(reply528{}.octets):
		x := new(reply528)
		c, room = &x.Reply, x.octets[:0]
	case n <= len(reply1040{}.octets):
		x := new(reply1040)
		c, room = &x.Reply, x.octets[:0]
	default:
		c, room = new(Reply), make([]byte, 0, n)
	}
	*c = *r
	for _, v := range [...]*[]byte{&c.Foreign, &c.MediaType, &c.Method} {
		if len(*v) == 0 {
			if *v != nil {
				*v = []byte{} // nothing, but given
			}
			continue
		}
		at := len(room)
		room = append(room, *v...)
		*v = room[at:len(room):len(room)]
	}
	return c
}

// Notify sends c as a notification. At the outbound limit it waits for room,
// until ctx ends or the association does. nil means that it is queued, not that
// it was received. Any goroutine but a loop may call it.
func (b *Bridge) Notify(ctx context.Context, a *assoc.Association, c *Call) error {
	for {
		err := b.TryNotify(a, c)
		if err != assoc.ErrWouldBlock {
			return err
		}
		if err := a.WaitRoom(ctx, len(c.Foreign)+wire.HeaderLen); err != nil {
			return err
		}
	}
}

// TryNotify is Notify without waiting: at the outbound limit it returns
// assoc.ErrWouldBlock. Any goroutine may call it. The other errors are Start's.
func (b *Bridge) TryNotify(a *assoc.Association, c *Call) error {
	cn, err := b.on(a)
	if err != nil {
		return err
	}
	e := exchanges.Get().(*exchange)
	defer e.recycle()
	e.c = cn
	if err := e.prepare(c, bridge.KindNotify, nil); err != nil {
		return err
	}
	frame := assoc.NewBuf(e.msg.Size())
	out, err := e.msg.Append(frame.B, b.cfg.Tags)
	if err != nil {
		frame.Release()
		return err
	}
	frame.B = out
	return a.SendBuf(b.cfg.Channel, bridge.TypeNotify, frame)
}

// prepare checks c and copies all of it but the foreign message.
func (e *exchange) prepare(c *Call, kind bridge.Kind, o *StreamCall) error {
	b := e.c.b
	p := b.protocols[c.Protocol]
	if p == nil {
		return ErrProtocol
	}
	if h := e.c.a.PeerHello(); h != nil && bytes.IndexByte(h.Protocols, byte(c.Protocol)) < 0 {
		return &bridge.Error{Code: bridge.CodeProtocolUnsupported, Text: "the peer does not carry " + c.Protocol.String()}
	}
	e.proto, e.hop, e.timeout = p, c.Hop, c.Timeout
	m := &e.msg
	m.Kind, m.Protocol, m.Content = kind, c.Protocol, c.Content
	if m.Content == 0 {
		m.Content = p.Content
	}
	e.method = append(e.method, c.Method...)
	natural := c.Natural
	switch {
	case kind == bridge.KindNotify:
		e.doc = len(c.Binding) > 0
	case len(c.Binding) > 0:
		return fmt.Errorf("%w: %w", ErrMalformed, errSetRequest)
	default:
		e.doc = len(c.Foreign) == 0 && p.Document != nil && p.Document(e.method)
	}
	if !e.doc && (b.cfg.Channel != wire.ChannelBridge || e.sub != nil && e.sub.parts != nil && p.Class == ClassJSONRPC) {
		return fmt.Errorf("%w: %w", ErrMalformed, errSetRequest)
	}
	if e.sub != nil && e.sub.parts != nil {
		e.hop = true // an id of its own, never to be used again
	}
	resume := o != nil && o.Resume != nil
	if p.Class == ClassJSONRPC && !e.doc && !(resume && len(c.Foreign) == 0) {
		var err error
		if natural, err = e.readJSON(c, kind); err != nil {
			return fmt.Errorf("%w: %w", ErrMalformed, err)
		}
	}
	if len(e.method) > 255 {
		return fmt.Errorf("%w: %w", ErrMalformed, errMethodLong) // D18
	}
	if resume {
		natural, e.hop, e.whole = o.Resume.Corr, false, true
		if n := len(natural); n == 0 || n > sched.MaxCorrLen {
			return fmt.Errorf("%w: %w", ErrMalformed, errResume)
		}
		m.HasStream = true
		m.Stream = bridge.StreamControl{Control: bridge.ControlResume, EventID: o.Resume.ID}
		e.natural = append(e.natural, natural...)
		e.corr = append(e.corr, natural...)
		m.Corr = e.corr
	} else if kind == bridge.KindRequest {
		if len(natural) > sched.MaxNaturalLen {
			sum := sha256.Sum256(natural) // D18
			e.natural = append(e.natural, sum[:16]...)
		} else {
			e.natural = append(e.natural, natural...)
		}
		// The longest it can get, for what is checked here.
		e.corr = sched.AppendCorr(e.corr, e.natural, 0)
		m.Corr = e.corr
	}

	// Views into extra would move with it, so it is filled first.
	switch {
	case c.Label != nil:
		m.HasLabel, m.Label.Effect = true, c.Label.Effect
		e.extra = append(e.extra, c.Label.Scope...)
	case !c.NoLabel:
		m.HasLabel, m.Label.Effect = true, p.effectOf(e.method)
	}
	e.extra = append(e.extra, c.MediaType...)
	e.extra = append(e.extra, c.Metadata...)
	e.extra = append(e.extra, c.Binding...)
	scope := len(e.extra) - len(c.MediaType) - len(c.Metadata) - len(c.Binding)
	media := scope + len(c.MediaType)
	meta := media + len(c.Metadata)
	m.Label.Scope, m.MediaType = e.extra[:scope:scope], e.extra[scope:media:media]
	m.Metadata, m.Binding = e.extra[media:meta:meta], e.extra[meta:]
	if len(m.MediaType) > 0 && p.Class == ClassOpaque && (c.Content == 0 || b.points(c.Content)) {
		var err error
		if m.Content, m.MediaType, err = b.cfg.Tags.Declare(m.MediaType); err != nil { // CC-OPAQUE 4.2
			return err
		}
	}
	m.Method, m.Foreign = e.method, c.Foreign
	if n, limit := m.Size(), e.c.a.MaxSend(); n > limit {
		return fmt.Errorf("%w: %d octets, the peer accepts %d", assoc.ErrTooLarge, n, limit)
	}
	return nil
}

// readJSON reads the method and the id out of a JSON-RPC message.
func (e *exchange) readJSON(c *Call, kind bridge.Kind) (natural []byte, err error) {
	if e.msg.Content != bridge.ContentJSON {
		return nil, errContent
	}
	var j jsonrpc.Message
	if err := jsonrpc.ScanDepth(c.Foreign, &j, e.c.b.cfg.MaxDepth); err != nil {
		return nil, err
	}
	switch {
	case kind == bridge.KindNotify && j.Kind != jsonrpc.KindNotification:
		return nil, errNotNotify
	case kind == bridge.KindRequest && j.Kind != jsonrpc.KindRequest:
		return nil, errNotRequest
	case len(e.method) == 0:
		e.method = j.AppendMethod(e.method)
	case !j.EqualMethod(e.method):
		return nil, errMethod
	}
	e.id = append(e.id, j.ID...)
	if j.IDKind == jsonrpc.IDNull {
		// CC-JSONRPC 8.4: null names nothing, so it needs a token.
		e.hop = true
	}
	return e.id, nil
}

// effectOf is the effect that a request is labelled with when its sender says
// nothing: an unknown operation may do anything (D15).
func (p *Protocol) effectOf(method []byte) bridge.Effect {
	if p.Effect != nil {
		if effect, known := p.Effect(method); known {
			return effect
		}
	}
	return bridge.Destructive
}

// RunTask runs on the loop: the exchange begins.
func (e *exchange) RunTask() {
	c := e.c
	e.next = c.open
	if c.open != nil {
		c.open.prev = e
	}
	c.open = e
	c.awaited++
	e.slot.Publish()
	if c.draining {
		c.fail(e, ErrDraining)
		return
	}
	if !c.name(e) {
		c.fail(e, ErrDuplicateID)
		return
	}
	if e.timeout > 0 {
		e.deadline = c.a.Now() + e.timeout
	}
	if c.waiting.empty() && e.resend() {
		return
	}
	e.state = exchangeWaiting
	c.await(&e.wait, 0)
	d := c.b.cfg.StallTimeout
	if e.timeout > 0 {
		d = min(d, e.timeout)
	}
	c.a.StartTimer(&e.timer, d)
}

// name gives the exchange its correlation id (D10); false means that the same
// originator has a request with this id in flight.
func (c *conn) name(e *exchange) bool {
	if e.whole && c.find(e.natural) != nil {
		return false
	}
	if !e.hop && len(e.natural) > 0 {
		first, _ := c.names.Get(e.natural)
		e.raw = true
		for x := first; x != nil; x = x.sameName {
			if x.state != exchangeAbandoned {
				return false
			}
			e.raw = e.raw && !x.raw
		}
		switch {
		case first != nil:
			e.sameName, first.sameName, e.named = first.sameName, e, true
		case c.names.Insert(e.natural, e):
			e.named = true
		default:
			e.raw = false // what is not in the table is found by its token
		}
	}
	if e.raw {
		e.corr = append(e.corr[:0], e.natural...)
	} else {
		e.corr = sched.AppendCorr(e.corr[:0], e.natural, e.slot.Token())
	}
	e.msg.Corr = e.corr
	e.tellName()
	return !e.whole || e.raw
}

// unname undoes name.
func (c *conn) unname(e *exchange) {
	first, _ := c.names.Get(e.natural)
	if first == e {
		c.names.Delete(e.natural)
		if e.sameName != nil {
			c.names.Insert(e.natural, e.sameName)
		}
	} else {
		for x := first; x != nil; x = x.sameName {
			if x.sameName == e {
				x.sameName = e.sameName
				break
			}
		}
	}
	e.sameName, e.named = nil, false
}

// resend sends the request, or ends an exchange whose request can't be sent;
// false means that it has to wait for room.
func (e *exchange) resend() bool {
	c := e.c
	switch err := c.send(&e.msg, false); {
	case err == assoc.ErrWouldBlock:
		return false
	case err != nil:
		c.fail(e, err)
		return true
	}
	if e.wait.waiting() {
		c.waiting.remove(&e.wait)
		c.a.StopTimer(&e.timer)
	}
	c.left(int64(len(e.msg.Foreign)))
	e.state = exchangeSent
	e.msg.Foreign = nil
	e.body.Release()
	e.body = nil
	if e.deadline > 0 {
		c.a.StartTimer(&e.timer, e.deadline-c.a.Now())
	}
	if e.told != nil {
		c.tellSent(e)
	}
	e.ascend()
	return true
}

func (c *conn) tellSent(e *exchange) {
	defer func() {
		if p := recover(); p != nil {
			c.b.panicked("call's Sent", &c.b.stats.completionPanics, p)
		}
	}()
	e.told()
}

// HandleExpire runs on the loop: no room or no reply in time.
func (e *exchange) HandleExpire(now time.Duration) {
	c := e.c
	if e.state == exchangeWaiting && (e.deadline == 0 || now < e.deadline) {
		c.fail(e, ErrStalled)
		return
	}
	c.abandon(e, context.DeadlineExceeded)
}

// complete tells the end of the exchange, if that has not happened yet.
func (c *conn) complete(e *exchange, r Reply) {
	if e.done != nil {
		c.reply = r
		c.tell(e)
	}
}

// tell is complete with what c.reply has. The frequent reply is put together there,
// since each copy of one loads in 16 octets what was just stored in fields.
func (c *conn) tell(e *exchange) {
	done := e.done
	e.done = nil
	if e.sub != nil {
		e.sub.e = nil
	}
	c.awaited--
	defer func() {
		c.reply = Reply{}
		if p := recover(); p != nil {
			c.b.panicked("completion", &c.b.stats.completionPanics, p)
		}
	}()
	done.HandleReply(&c.reply)
}

// fail ends an exchange of which nothing was sent.
func (c *conn) fail(e *exchange, err error) {
	e.endUp(err)
	c.complete(e, Reply{Err: err})
	c.free(e)
}

// abandon ends an exchange for who waits. If it was sent, its correlation id
// stays reserved until the peer has ended it too (D10).
func (c *conn) abandon(e *exchange, err error) {
	if e.state < exchangeSent {
		c.fail(e, err)
		return
	}
	if e.sub != nil && e.sub.parts != nil {
		c.abandonSet(e, err)
		return
	}
	e.state = exchangeAbandoned
	c.a.StopTimer(&e.timer)
	if e.sub != nil {
		c.cancelFrame(e)
	}
	c.complete(e, Reply{Err: err, Sent: true})
}

// free ends the exchange's hold on its correlation id.
func (c *conn) free(e *exchange) {
	if e.halve() {
		return
	}
	c.a.StopTimer(&e.timer)
	if e.wait.waiting() {
		c.waiting.remove(&e.wait)
	}
	if e.state < exchangeSent {
		c.left(int64(len(e.msg.Foreign)))
	}
	if e.named {
		c.unname(e)
	}
	if e.prev == nil {
		c.open = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	}
	e.prev, e.next = nil, nil
	c.slots.Release(e.slot)
	e.recycle()
}

// Abandon stops waiting: the exchange ends with err, or context.Canceled if that
// is nil, unless it has ended before. The peer is not told, since nothing is
// defined that would tell it; its late reply is dropped, and until then the
// correlation id stays in use. Any goroutine may call it.
func (x Exchange) Abandon(err error) {
	if x.c == nil {
		return
	}
	if err == nil {
		err = context.Canceled
	}
	t := abandonTasks.Get().(*abandonTask)
	t.x, t.err = x, err
	if !x.c.a.Post(&t.node) {
		t.recycle() // the association has ended, and the exchange too
	}
}

type abandonTask struct {
	node sched.Node
	x    Exchange
	err  error
}

var abandonTasks = sync.Pool{New: func() any {
	t := new(abandonTask)
	t.node.Owner = t
	return t
}}

func (t *abandonTask) recycle() {
	t.x, t.err = Exchange{}, nil
	abandonTasks.Put(t)
}

// RunTask runs on the loop.
func (t *abandonTask) RunTask() {
	c, token, err := t.x.c, t.x.token, t.err
	t.recycle()
	if s := c.slots.Resolve(token); s != nil && s.Value.state != exchangeAbandoned {
		c.abandon(s.Value, err)
	}
}

// find returns the exchange that holds corr.
func (c *conn) find(corr []byte) *exchange {
	if _, token, ok := sched.ParseCorr(corr); ok {
		if s := c.slots.Resolve(token); s != nil && holds(s.Value, corr) {
			return s.Value
		}
	}
	e, _ := c.names.Get(corr)
	for ; e != nil; e = e.sameName {
		if holds(e, corr) {
			return e
		}
	}
	return nil
}

func holds(e *exchange, corr []byte) bool {
	return e.state >= exchangeSent && bytes.Equal(e.corr, corr)
}

// handleReply takes a RESPONSE, ERROR, STREAM_DATA or STREAM_END; parsed is what
// Parse said about it.
func (c *conn) handleReply(m *bridge.Message, parsed error) {
	s := &c.b.stats
	e := c.find(m.Corr)
	if e == nil {
		u, up := c.ups.Get(m.Corr)
		refused := parsed == nil && m.Transport && (!up || m.Foreign[0] == byte(bridge.CodeEnvelopeMalformed))
		if r, ok := c.live.Get(m.Corr); ok && r.out != nil && refused {
			r.out.cancel(ErrCancelled) // the peer refuses the stream that it asked for
			return
		}
		if up && !refused {
			c.handleUpstream(u, m, parsed)
			return
		}
		if parsed == nil && m.Transport && c.handleRefusal(m) {
			return
		}
		s.repliesUnknown.Add(1)
		return
	}
	terminal := m.Kind != bridge.KindData
	if e.state == exchangeAbandoned {
		s.repliesLate.Add(1)
		if terminal && !e.half {
			c.concluded(e, m)
		}
		return
	}
	err := parsed
	if err == nil {
		err = e.check(m)
	}
	if e.sub != nil && e.sub.parts != nil {
		c.handlePart(e, m, err)
		return
	}
	if err == nil && (m.Kind == bridge.KindData || m.Kind == bridge.KindEnd) {
		c.handleStream(e, m)
		return
	}
	switch {
	case err != nil:
		s.repliesMalformed.Add(1)
		malformed := breach(err)
		if _, live := c.live.Get(m.Corr); !live {
			c.refuse(e.proto.ID, e.corr, malformed.Code, malformed.Text)
		}
		if !terminal {
			// More of the stream that nobody asked for may follow.
			c.abandon(e, malformed)
			return
		}
		c.complete(e, Reply{Err: malformed, Sent: true})
	case m.Transport:
		code, text, _ := bridge.ParseTransportError(m.Foreign)
		c.complete(e, Reply{Err: &bridge.Error{Code: code, Text: string(text)}, Remote: true, Sent: true})
	case e.done != nil:
		r := &c.reply // empty between completions
		r.Kind, r.Content, r.MediaType, r.Method, r.Foreign, r.Sent = m.Kind, m.Content, m.MediaType, m.Method, m.Foreign, true
		c.tell(e)
	}
	c.concluded(e, m)
}

// concluded says that m was the answer's terminal frame. Only a stream's end leaves
// what goes along with the request as it is.
func (c *conn) concluded(e *exchange, m *bridge.Message) {
	if m.Kind != bridge.KindEnd {
		e.endUp(ErrCancelled)
	}
	c.free(e)
}

// check holds a reply to the request it answers.
func (e *exchange) check(m *bridge.Message) error {
	stream := m.Kind == bridge.KindData || m.Kind == bridge.KindEnd
	set := e.sub != nil && e.sub.parts != nil
	switch {
	case len(m.Binding) > 0 && !set:
		return errParts
	case stream && e.sub == nil:
		return errStream
	case m.Protocol != e.proto.ID:
		return errProtocol // CC-JSONRPC 5
	case stream:
		if set {
			return nil // what a part is its binding says
		}
		return e.sub.declares(m) // its events are opaque (CC-STREAM 9)
	case m.Kind == bridge.KindResponse && e.sub != nil && e.sub.begun && !set:
		return errUnary
	case e.whole && len(e.id) == 0:
		return nil // it was resumed without its message, so with no id to hold to
	case m.Transport || e.proto.Class != ClassJSONRPC || e.doc:
		return nil
	}
	return checkReply(m, e.id, e.c.b.cfg.MaxDepth)
}
