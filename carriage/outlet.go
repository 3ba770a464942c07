package carriage

import (
	"time"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/sched"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// outlet is where a stream that we produce crosses an association: the responder's
// side of one streaming exchange. It belongs to the association's loop.
//
//	posted -> attached -> over: the terminal frame was handed to the association,
//	                            or the association ended
//
// It takes an event from its feed when the event can leave: when the peer's credit
// allows it and the association has room. Only a few frames of it are in the
// association's queue at a time, and while they leave the queue asks for more.
type outlet struct {
	node  sched.Node
	flow  sched.Flow
	timer sched.Timer
	wait  waiter

	c *conn
	r *Request
	e *exchange // instead of r, of a stream that goes along with a request
	f *feed

	msg      bridge.Message
	credit   sched.Credit
	sent     EventID // the last event handed to the association
	attached bool
	over     bool
	filling  bool
	left     EventID // as gone was when the timer was started
}

// outletShare is how many octets of one stream are in the association's queue
// before it keeps the rest.
const outletShare = 16 << 10

func newOutlet(c *conn, r *Request, f *feed) *outlet {
	o := &outlet{c: c, r: r, f: f}
	o.node.Owner, o.timer.Owner, o.wait.owner, o.flow.Source = o, o, o, o
	o.msg = bridge.Message{Protocol: f.proto.ID, Content: f.content, MediaType: f.media, Corr: f.corr}
	return o
}

// attach makes the outlet known to its association, with a stream of which the
// events up to sent are not to be sent.
func (o *outlet) attach(sent EventID) {
	o.attached, o.sent = true, sent
	if o.r != nil {
		o.c.a.StopTimer(&o.r.timer) // the reply timeout: there is a reply
		o.r.out = o
	} else {
		o.c.upsSent++
	}
	o.limit()
	switch {
	case o.r != nil && o.r.cancelled:
		o.cancel(ErrCancelled)
	case o.c.drained:
		o.cut(ErrDraining, textDrained)
	}
}

// limit takes what the peer allows a stream at first.
func (o *outlet) limit() {
	if n, on := o.c.streamLimit(); on {
		o.credit.LimitSend(n)
		o.credit.OverdrawSend(n / overdraw)
	} else {
		o.credit.FreeSend()
	}
}

// RunTask runs on the loop: there may be something to send.
func (o *outlet) RunTask() {
	if !o.attached {
		if o.r == nil {
			return // its request goes first
		}
		o.attach(0)
	}
	switch d, doomed := o.f.doomed(); {
	case o.over:
	case o.f.cur.Load() != o:
		o.leave()
	case doomed:
		o.cut(d.err, d.text)
	case o.blocked() && o.f.behind():
		o.fellBehind()
	default:
		o.pump()
	}
}

// blocked says that the outlet need not even look for something to send. When the
// queue asks for more, a single frame is about to leave.
func (o *outlet) blocked() bool {
	full := o.flow.Octets() >= outletShare && !(o.filling && o.flow.Len() == 1)
	return full || o.wait.waiting()
}

func (o *outlet) fellBehind() {
	o.cut(ErrSlowConsumer, "fell behind: the consumer reads too slowly")
}

// Refill runs on the loop: the queue has room for more of this stream.
func (o *outlet) Refill() {
	if o.over || o.wait.waiting() {
		return
	}
	o.filling = true
	o.pump()
	o.filling = false
}

// late says that the queue is asking for more: what takes frames out of it has to
// wait for a task.
func (o *outlet) late() bool {
	if o.filling {
		o.c.a.PostOnce(&o.node)
	}
	return o.filling
}

// resend runs on the loop: the association has room again. false means that it has
// not enough.
func (o *outlet) resend() bool {
	o.c.starved.remove(&o.wait)
	if o.c.a.PeerHello() == nil {
		o.limit()
	}
	o.pump()
	return !o.wait.waiting()
}

// pump sends what can leave now.
func (o *outlet) pump() {
	o.advance()
	if !o.over && o.flow.Len() > 0 {
		o.watch()
	}
}

func (o *outlet) advance() {
	for !o.over && !o.blocked() {
		it, ok, lost := o.f.next(o)
		if lost {
			o.fellBehind()
			return
		}
		if !ok || !o.step(&it) {
			return
		}
	}
}

// step sends one frame, if it can leave now.
func (o *outlet) step(it *item) bool {
	defer it.tail.Release()
	n := it.octets()
	if it.counts() && !o.credit.Allows(n) {
		o.short()
		return false
	}
	switch err := o.emit(it); {
	case err == assoc.ErrWouldBlock:
		o.starve()
		return false
	case o.c.closing(err):
		return false // HandleClose follows
	case err != nil:
		o.cut(err, "the event can't be carried: "+reason(err))
		return false
	}
	if it.counts() {
		o.credit.Take(n)
	}
	if it.kind != bridge.KindData {
		o.close() // it was the terminal frame
		o.f.retire(o)
		return false
	}
	o.sent = it.id
	o.f.take(o, it.id)
	if o.f.opts.Sent != nil {
		o.tellSent(n)
	}
	return true
}

func (o *outlet) tellSent(octets int) {
	defer func() {
		if p := recover(); p != nil {
			o.c.b.panicked("stream's Sent", &o.c.b.stats.handlerPanics, p)
		}
	}()
	o.f.opts.Sent(octets)
}

// emit hands one frame to the association.
func (o *outlet) emit(it *item) error {
	a, m := o.c.a, &o.msg
	m.Kind, m.Transport, m.Foreign = it.kind, it.transport, it.tail.Octets()
	if len(it.head) > 0 {
		m.Foreign = it.head // what it starts with is what matters for the prefix
	}
	m.HasStream, m.Stream, m.Flags = false, bridge.StreamControl{}, 0
	if it.counts() {
		m.HasStream, m.Stream.EventID = true, it.id
		if it.resumable {
			m.Stream.Flags = bridge.StreamResumable
		}
		if it.kind == bridge.KindEnd {
			m.Flags = bridge.FlagFinal
		}
	}
	o.f.envelope(m)
	head, t := m.PrefixSize()+len(it.head), it.kind.Type()
	n := head + it.tail.Len()
	if n > a.MaxSend() {
		return assoc.ErrTooLarge
	}
	if o.flow.Len() == 0 && a.Direct(o.c.b.cfg.Channel, n) {
		b, err := a.Begin(o.c.b.cfg.Channel, t, n)
		if err != nil {
			return err
		}
		if b, err = m.AppendPrefix(b, o.c.b.cfg.Tags); err != nil {
			a.Cancel()
			return err
		}
		return a.End(append(append(b, it.head...), it.tail.Octets()...))
	}
	b := assoc.NewBuf(head)
	prefix, err := m.AppendPrefix(b.B, o.c.b.cfg.Tags)
	if err != nil {
		b.Release()
		return err
	}
	b.B = append(prefix, it.head...)
	return a.EnqueueShared(o.c.b.cfg.Channel, t, &o.flow, b, it.tail.Retain())
}

// starve waits for outbound room.
func (o *outlet) starve() {
	o.queue()
	o.watch()
}

// queue has the outlet tried again when there is room, or soon.
func (o *outlet) queue() {
	c := o.c
	c.starved.push(&o.wait)
	if !c.retry.timer.Active() {
		c.a.StartTimer(&c.retry.timer, retryInterval)
	}
}

// watch has the stream cut when nothing of it leaves for the stall deadline. A peer
// that gives streams credit of their own is let be: it says itself when it wants no
// more for now (D6).
func (o *outlet) watch() {
	if o.timer.Active() {
		return
	}
	if _, limited := o.c.streamLimit(); !limited {
		o.left = o.gone()
		o.c.a.StartTimer(&o.timer, o.c.b.cfg.StallTimeout)
	}
}

// gone is the last event that is not in the queue any more.
func (o *outlet) gone() EventID { return o.sent - EventID(o.flow.Len()) }

// short waits for credit. What a peer is allowed whose HELLO is still to come
// changes without a word from it, so that is looked at again.
func (o *outlet) short() {
	if o.c.a.PeerHello() == nil {
		o.queue()
	}
}

// HandleExpire runs on the loop: has anything left in the meantime?
func (o *outlet) HandleExpire(time.Duration) {
	switch {
	case !o.wait.waiting() && o.flow.Len() == 0:
	case o.gone() != o.left:
		o.watch()
	default:
		o.cut(ErrSlowConsumer, "nothing of the stream leaves: the peer reads too slowly")
	}
}

// cancel ends the stream because its consumer wants no more of it (CC-STREAM 7.2).
func (o *outlet) cancel(err error) {
	if o.over {
		return // it has its terminal frame
	}
	o.sent -= EventID(o.c.a.DropFlow(&o.flow))
	o.c.b.stats.streamsCancelled.Add(1)
	m := bridge.Message{
		Kind: bridge.KindEnd, Protocol: o.msg.Protocol, Content: o.msg.Content, MediaType: o.msg.MediaType,
		Corr: o.msg.Corr, Flags: bridge.FlagFinal, HasStream: true,
		Stream: bridge.StreamControl{Flags: bridge.StreamCancelAck, EventID: o.sent},
	}
	o.f.envelope(&m)
	_ = o.c.send(&m, true) // fails only with the association
	o.msg.Kind = bridge.KindEnd
	o.close()
	o.f.finish(o, err)
}

// cut ends the stream with NotDelivered, at once.
func (o *outlet) cut(err error, text string) {
	if o.over || o.late() {
		return
	}
	o.c.b.stats.streamsCut.Add(1)
	o.end(err, bridge.CodeNotDelivered, text)
}

// end ends the stream with a transport error, at once.
func (o *outlet) end(err error, code bridge.Code, text string) {
	o.c.a.DropFlow(&o.flow)
	o.c.refuse(o.msg.Protocol, o.msg.Corr, code, text)
	o.msg.Kind = bridge.KindError
	o.close()
	o.f.finish(o, err)
}

// rewind goes on behind an earlier event, which its consumer has asked for on the
// same association. What was not sent has taken no credit.
func (o *outlet) rewind(after EventID) {
	n := EventID(o.c.a.DropFlow(&o.flow))
	o.credit.Return(o.f.octets(o.sent-n, o.sent))
	o.sent = after
	if o.wait.waiting() {
		o.c.starved.remove(&o.wait)
	}
	o.pump()
}

// leave ends the exchange alone: the stream goes on elsewhere.
func (o *outlet) leave() {
	o.c.a.DropFlow(&o.flow)
	o.c.refuse(o.msg.Protocol, o.msg.Corr, bridge.CodeNotDelivered, "the stream was resumed elsewhere")
	o.close()
}

// lost says that the association ended.
func (o *outlet) lost(err error) {
	o.close()
	o.f.detach(o, err)
}

// close takes the outlet off its association.
func (o *outlet) close() {
	o.over = true
	c := o.c
	c.a.StopTimer(&o.timer)
	if o.wait.waiting() {
		c.starved.remove(&o.wait)
	}
	if o.r == nil {
		if o.attached {
			c.upsSent--
		}
		o.e.left()
		return
	}
	r := o.r
	r.out = nil
	r.half = o.msg.Kind == bridge.KindEnd
	r.finished()
	c.drop(r)
}
