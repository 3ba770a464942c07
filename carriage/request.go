package carriage

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestle-npamp/trestle/carriage/jsonrpc"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/sched"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// Request is the responder's side of one exchange. It is answered by exactly one
// of Respond, Fail and Refuse that returns nil or an error other than
// ErrAnswered; whatever goes wrong, the peer gets one definite answer.
//
//	        ServeRequest
//	open ------------------> answered  by the handler: at once, or later
//	  |  \                        ^     if retained
//	  |   '----> streaming -------'     by a Producer's terminal frame
//	  '--------------------> answered  NotDelivered: it panicked, forgot or
//	                                   was too slow; or the association ended
//
// A Request belongs to the handler until ServeRequest returns. On the loop it is
// then used again for other requests, so a handler that wants to answer later
// calls Retain before anything else learns of the request; from then on any
// goroutine may answer it.
type Request struct {
	Inbound

	node  sched.Node
	timer sched.Timer
	job   job
	wait  waiter

	state atomic.Uint32
	done  atomic.Pointer[chan struct{}]

	// retained says that it outlives ServeRequest: then it is in the table of
	// live requests, its octets are in store, and refs counts who still uses it:
	// the table, who runs the handler, and the handler's own Retain.
	retained bool
	kept     bool
	bare     bool // the foreign message was not copied
	live     bool // in the table
	refs     atomic.Int32
	store    *buf.Buf

	// charged is how much of store the association counts, until neither the table
	// nor a worker needs it: holders. What a handler keeps longer is its own affair,
	// since it need not say when it is done.
	charged int
	holders atomic.Int32

	// answer is the whole plaintext of an answer that is on its way to the loop
	// or waits there for room. kind is its frame's; reserved says that it is a
	// transport error, which always has room.
	answer   *buf.Buf
	kind     bridge.Kind
	reserved bool

	declared *declared // what an opaque answer declares, nil for what the request did

	// feed is the stream that answers it, and out, which is the loop's, where that
	// crosses the association. cancelled says that its consumer wanted no more of it
	// before out was known.
	feed      atomic.Pointer[feed]
	set       *setOutlet // or the document set that does
	out       *outlet
	cancelled bool

	// up is the stream that came with it; half says that the answer was a stream's end.
	up   *upstream
	half bool
}

const (
	stateOpen = iota
	stateStreaming
	stateAnswered
)

var requests = sync.Pool{New: func() any {
	r := new(Request)
	r.node.Owner = r
	r.timer.Owner = r
	r.job.owner = r
	r.wait.owner = r
	return r
}}

// recycle gives r back once nothing refers to it.
func (r *Request) recycle() {
	r.store.Release()
	r.answer.Release()
	r.Inbound = Inbound{}
	// Each frame comes by here, and an atomic store is a locked instruction: what
	// has not been set is not stored.
	if r.state.Load() != stateOpen {
		r.state.Store(stateOpen)
	}
	if r.done.Load() != nil {
		r.done.Store(nil)
	}
	r.retained, r.kept, r.bare, r.live, r.reserved = false, false, false, false, false
	r.store, r.answer, r.declared = nil, nil, nil
	r.charged = 0
	if r.holders.Load() != 0 {
		r.holders.Store(0)
	}
	r.set = nil
	if r.feed.Load() != nil {
		r.feed.Store(nil)
		r.out, r.cancelled = nil, false
	}
	r.up, r.half = nil, false
	requests.Put(r)
}

// charge counts what store has now. On the loop.
func (r *Request) charge() {
	if r.live {
		r.c.retained.Add(int64(len(r.store.B) - r.charged))
		r.charged = len(r.store.B)
	}
}

// letGo says that the table or a worker needs the octets no more.
func (r *Request) letGo() {
	if r.holders.Add(-1) == 0 {
		r.c.retained.Add(-int64(r.charged))
		r.charged = 0
	}
}

func (r *Request) unref() {
	if r.refs.Add(-1) == 0 {
		r.recycle()
	}
}

// Corr is the correlation id, opaque to us.
func (r *Request) Corr() []byte { return r.msg.Corr }

// Retain keeps the request beyond ServeRequest, which must be running: what was
// borrowed is copied, and any goroutine may use and answer it. The reply timeout
// starts. Release gives the memory back early; without it the garbage collector
// does.
func (r *Request) Retain() { r.retain(true) }

// RetainEnvelope is Retain without the foreign message, for a handler that has
// no use for it once ServeRequest returns: Foreign must not be called after that.
func (r *Request) RetainEnvelope() { r.retain(false) }

func (r *Request) retain(foreign bool) {
	if r.kept {
		return
	}
	r.kept = true
	if r.retained { // runs on the pool, or streams
		if r.bare && foreign {
			r.bare = false
			old := r.store
			r.store = r.own(true)
			old.Release()
			r.charge()
		}
		r.refs.Add(1)
		return
	}
	r.bare = !foreign
	r.keep(foreign)
	r.refs.Add(1)
}

// keep makes the request outlive the present frame. The caller holds one
// reference afterwards.
func (r *Request) keep(foreign bool) {
	old := r.store
	r.store = r.own(foreign)
	old.Release()
	r.retained = true
	r.refs.Store(1)
	c := r.c
	switch {
	case r.live: // answered, and the answer waits for room
		r.refs.Add(1)
		r.charge()
	case r.state.Load() == stateOpen:
		r.refs.Add(1)
		c.enlist(r)
		if d := c.b.cfg.ReplyTimeout; d > 0 {
			c.a.StartTimer(&r.timer, d)
		}
	case r.state.Load() == stateStreaming:
		r.refs.Add(1)
		c.enlist(r)
	}
}

// Release says that a retained request is not used any more by who retained it.
// It must be called at most once, after the answer. Calling it for a request that
// was not retained does nothing.
func (r *Request) Release() {
	if r.kept {
		r.unref()
	}
}

// Done is closed once the exchange is over: answered, timed out, or ended with
// its association. It is for handlers that retained the request or run on the
// pool, and serves to give up work nobody waits for.
func (r *Request) Done() <-chan struct{} {
	if r.state.Load() == stateAnswered {
		return *over
	}
	for {
		if p := r.done.Load(); p != nil {
			return *p
		}
		ch := make(chan struct{})
		if r.done.CompareAndSwap(nil, &ch) {
			return ch
		}
	}
}

var over = func() *chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return &ch
}()

// claim makes the caller the one who answers.
func (r *Request) claim() bool {
	if !r.state.CompareAndSwap(stateOpen, stateAnswered) {
		return false
	}
	// One that is not retained has no other goroutine to tell.
	if r.retained || r.done.Load() != nil {
		r.tell()
	}
	return true
}

func (r *Request) tell() {
	if p := r.done.Swap(over); p != nil {
		close(*p)
	}
}

// Respond answers with a RESPONSE that carries foreign, octet for octet.
//
// Under the class JSONRPC foreign must be a JSON-RPC response with a result and
// the request's id (D17). If it is not, or is too large for the peer or would be
// misread, the exchange ends as NotDelivered and the error says why: an error
// wrapping ErrMalformed, assoc.ErrTooLarge, bridge.ErrAmbiguous. nil means that
// the reply is sent or will be, unless the association ends or the peer stops
// reading. foreign may be reused once Respond returns. On the loop, before
// Retain, it allocates nothing.
func (r *Request) Respond(foreign []byte) error { return r.reply(bridge.KindResponse, foreign) }

// Fail answers with an ERROR that carries the foreign protocol's own error,
// octet for octet: under the class JSONRPC a response object with an error and
// the request's id or null. Otherwise it is like Respond.
func (r *Request) Fail(foreign []byte) error { return r.reply(bridge.KindError, foreign) }

// Refuse answers with a transport error: the request did not reach the foreign
// endpoint, or no reply came from it. An unknown code is sent as NotDelivered;
// text over 255 octets is cut.
func (r *Request) Refuse(code bridge.Code, text string) error {
	if !r.claim() {
		return ErrAnswered
	}
	r.refuse(code, text)
	return nil
}

func (r *Request) reply(kind bridge.Kind, foreign []byte) error {
	if !r.claim() {
		return ErrAnswered
	}
	var m bridge.Message // filled in place: a literal would be copied
	m.Kind, m.Protocol, m.Content, m.MediaType = kind, r.msg.Protocol, r.msg.Content, r.msg.MediaType
	m.Corr, m.Foreign = r.msg.Corr, foreign
	if d := r.declared; d != nil {
		m.Content, m.MediaType, m.Method = d.content, d.media, d.method
	}
	err := r.check(&m)
	if err == nil {
		if r.retained {
			err = r.post(&m)
		} else {
			err = r.c.answer(r, &m)
		}
		if err == nil || r.c.closing(err) {
			return err
		}
	}
	if err != assoc.ErrWouldBlock {
		r.c.b.stats.repliesBad.Add(1)
	}
	r.refuse(bridge.CodeNotDelivered, textUncarried+reason(err))
	return err
}

// check holds a reply to what its class and the peer demand.
func (r *Request) check(m *bridge.Message) error {
	if r.proto.Class == ClassJSONRPC && !r.doc {
		if err := checkReply(m, r.id, r.c.b.cfg.MaxDepth); err != nil {
			return fmt.Errorf("%w: %w", ErrMalformed, err)
		}
	}
	return checkSize(m, r.c.a)
}

func checkSize(m *bridge.Message, a *assoc.Association) error {
	if n, limit := m.Size(), a.MaxSend(); n > limit {
		return fmt.Errorf("%w: %d octets, the peer accepts %d", assoc.ErrTooLarge, n, limit)
	}
	return nil
}

// refuse sends a transport error for a request that the caller has claimed.
func (r *Request) refuse(code bridge.Code, text string) {
	if !code.Known() {
		code = bridge.CodeNotDelivered
	}
	if !r.retained {
		r.c.refuse(r.msg.Protocol, r.msg.Corr, code, text)
		return
	}
	f := buf.Get(2 + bridge.MaxErrorText)
	f.B = bridge.AppendTransportError(f.B, code, text)
	m := bridge.Message{
		Kind: bridge.KindError, Protocol: r.msg.Protocol, Content: bridge.ContentJSON,
		Corr: r.msg.Corr, Foreign: f.B, Transport: true,
	}
	// A transport error has nothing that could be refused; only the association
	// may have ended, and with it the exchange.
	_ = r.post(&m)
	f.Release()
}

// post sends an answer by way of the loop.
func (r *Request) post(m *bridge.Message) error {
	b := buf.Get(m.Size())
	out, err := m.Append(b.B, r.c.b.cfg.Tags)
	if err != nil {
		b.Release()
		return err
	}
	b.B = out
	r.answer, r.kind = b, m.Kind
	r.reserved = m.Transport
	if !r.c.a.Post(&r.node) {
		return r.c.a.ClosedErr()
	}
	return nil
}

// RunTask runs on the loop: an answer from elsewhere is to be sent.
func (r *Request) RunTask() { r.c.sendAnswer(r) }

// HandleExpire runs on the loop: the handler was too slow, or the answer found
// no room for too long.
func (r *Request) HandleExpire(time.Duration) {
	c := r.c
	if r.wait.waiting() {
		c.b.stats.repliesStalled.Add(1)
		c.endAnswer(r, textNoRoom)
		return
	}
	if !r.claim() {
		return // its answer is on its way to the loop
	}
	c.b.stats.replyTimeouts.Add(1)
	c.endAnswer(r, textLate)
}

// work runs an Async handler on the pool.
func (r *Request) work() {
	defer r.worked()
	r.proto.Handler.ServeRequest(r)
}

func (r *Request) worked() {
	if p := recover(); p != nil {
		r.c.b.panicked("handler", &r.c.b.stats.handlerPanics, p)
		if r.claim() {
			r.refuse(bridge.CodeNotDelivered, textFailed)
		} else {
			r.abandonStream(textFailed)
		}
	} else if !r.kept {
		if r.claim() {
			r.c.b.stats.handlerSilent.Add(1)
			r.refuse(bridge.CodeNotDelivered, textSilent)
		} else {
			r.abandonStream(textLeft)
		}
	}
	r.letGo()
	r.unref()
}

var notifies = sync.Pool{New: func() any {
	n := new(Notify)
	n.job.owner = n
	return n
}}

func (n *Notify) recycle() {
	if n.store != nil {
		n.c.retained.Add(-int64(len(n.store.B)))
		n.store.Release()
	}
	n.Inbound, n.store = Inbound{}, nil
	notifies.Put(n)
}

// work runs an Async handler on the pool.
func (n *Notify) work() {
	b := n.c.b
	defer func() {
		if p := recover(); p != nil {
			b.panicked("handler", &b.stats.handlerPanics, p)
			b.stats.notificationsDropped.Add(1)
		}
		n.recycle()
	}()
	n.proto.Handler.ServeNotify(n)
}

// panicked counts and logs a panic that was recovered.
func (b *Bridge) panicked(who string, count *atomic.Uint64, p any) {
	count.Add(1)
	b.cfg.Logger.Error(who+" panicked", "panic", p, "stack", string(debug.Stack()))
}

// checkReply checks a JSON-RPC reply to the request with this id (CC-JSONRPC 5,
// 6; D17).
func checkReply(m *bridge.Message, id []byte, maxDepth int) error {
	if m.Content != bridge.ContentJSON {
		return errContent
	}
	var j jsonrpc.Message
	if err := jsonrpc.ScanDepth(m.Foreign, &j, maxDepth); err != nil {
		return err
	}
	switch {
	case m.Kind == bridge.KindResponse && j.Kind != jsonrpc.KindResponse:
		return errNotResult
	case m.Kind == bridge.KindError && j.Kind != jsonrpc.KindError:
		return errNotError
	case j.Kind == jsonrpc.KindError && j.IDKind == jsonrpc.IDNull:
		return nil // the agent could not read the id; the correlation id did it
	case !jsonrpc.EqualID(j.ID, id):
		return errWrongID
	}
	return nil
}
