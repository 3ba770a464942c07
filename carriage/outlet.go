package carriage

import (
	"time"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/sched"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// outlet is where a stream that we produce crosses an association: the responder's
// side of one streaming exchange. It belongs to the association's loop.
//
//	posted -> attached -> over: the terminal frame was handed to the association,
//	                            or the association ended
//
// It has the one event that goes next, if the peer's credit allows it. When several
// things want to leave, the association's queue asks for that event when it is the
// stream's turn (sched.Source): what a stream has to send waits with its producer.
//
// It gets its events a run at a time, and the feed learns which of them have left once
// a turn: an event costs no lock here, where it cost three, and six more locked
// instructions for the buffer that it was in.
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
	data     bridge.Template // of the events that say that they are resumable, or not
	marked   bool            // which of them
	credit   sched.Credit
	run      run     // what goes next and what is known to follow it
	item     item    // what goes next; its kind is 0 if nothing does
	left     tally   // what has left since the feed was told
	prefix   int     // octets in front of it
	sent     EventID // the last event handed to the association
	attached bool
	over     bool
	asked    bool          // the queue asks: what takes frames out of it has to wait
	moved    time.Duration // when something left last, while the timer runs
}

// tally is events that have left.
type tally struct {
	octets int    // foreign ones
	cost   uint64 // to the feed
	any    bool
}

// directShare is about how many octets of one stream are sent in a row before others
// have their turn.
const directShare = 16 << 10

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

// blocked says that the outlet need not even look for something to send: it waits for
// its turn, or for credit.
func (o *outlet) blocked() bool { return o.flow.Len() > 0 || o.wait.waiting() }

func (o *outlet) fellBehind() {
	o.cut(ErrSlowConsumer, "fell behind: the consumer reads too slowly")
}

// late says that the queue is asking: what takes frames out of it has to wait for a
// task.
func (o *outlet) late() bool {
	if o.asked {
		o.c.a.PostOnce(&o.node)
	}
	return o.asked
}

// resend runs on the loop: what a peer without HELLO allows may be more by now.
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
	if o.over || o.blocked() {
		return
	}
	a, ch := o.c.a, o.c.b.cfg.Channel
	t, n, ok := o.stage()
	for left := directShare; ok && left > 0 && a.Direct(ch, n); left -= n {
		b, err := a.Begin(ch, t, n)
		if err == nil {
			err = a.End(o.Fill(b))
		}
		if err != nil {
			o.failed(err)
			return
		}
		t, n, ok = o.next()
	}
	o.settle()
	if !ok {
		return
	}
	if err := a.Offer(ch, t, &o.flow, n); err != nil {
		o.failed(err)
		return
	}
	o.watch()
}

// failed says that the association did not take what was staged.
func (o *outlet) failed(err error) {
	o.unstage()
	if !o.c.closing(err) { // otherwise HandleClose follows
		o.cut(err, "the event can't be carried: "+reason(err))
	}
}

// again looks anew at what is to be sent: what the peer takes has changed.
func (o *outlet) again() {
	o.c.a.DropFlow(&o.flow)
	o.unstage()
	o.limit()
	o.pump()
}

// stage takes what goes next out of the run, or the feed, and says what its frame will
// be; ok is false if there is nothing, or nothing that may be sent now.
func (o *outlet) stage() (t wire.FrameType, n int, ok bool) {
	if o.run.n == 0 || o.f.cur.Load() != o {
		o.settle()
		ok, lost := o.f.next(o)
		if lost {
			o.fellBehind()
		}
		if !ok {
			o.unstage()
			return 0, 0, false
		}
	}
	it := &o.item
	o.run.item(it)
	if it.counts() && !o.credit.Allows(it.octets()) {
		o.unstage()
		if o.f.topic != nil {
			o.run.clear() // when there is credit the topic may not hold it any more
		}
		o.short()
		return 0, 0, false
	}
	err := o.measure(it)
	if n = o.prefix + it.octets(); err == nil && n > o.c.a.MaxSend() {
		err = assoc.ErrTooLarge
	}
	if err != nil {
		o.failed(err)
		return 0, 0, false
	}
	return it.kind.Type(), n, true
}

func (o *outlet) unstage() { o.item = item{} }

// start is how the foreign octets of an item begin.
func (it *item) start() []byte {
	if len(it.head) > 0 {
		return it.head
	}
	return it.tail
}

// measure finds out what stands in front of an item, or that nothing can. The data
// template is empty before the first event.
func (o *outlet) measure(it *item) (err error) {
	if !o.templated(it) {
		m := o.message(it)
		if err = m.Check(o.c.b.cfg.Tags); err == nil {
			o.prefix = m.PrefixSize()
		}
		return err
	}
	if o.data.PrefixSize() == 0 || o.marked != it.resumable {
		if o.data, err = o.message(it).Template(o.c.b.cfg.Tags); err != nil {
			return err
		}
		o.marked = it.resumable
	}
	o.prefix = o.data.PrefixSize()
	return nil
}

// templated says that the item is one of the many that look alike.
func (o *outlet) templated(it *item) bool {
	return it.kind == bridge.KindData && (it.plain || o.c.b.cfg.Tags.Plain(o.msg.Protocol, it.start()))
}

// message is the one that carries an item, but for what follows the start of its
// foreign octets.
func (o *outlet) message(it *item) *bridge.Message {
	m := &o.msg
	m.Kind, m.Transport, m.Foreign = it.kind, it.transport, it.start()
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
	return m
}

// Fill implements sched.Source: it appends what is staged.
func (o *outlet) Fill(dst []byte) []byte {
	it := &o.item
	if o.templated(it) {
		dst = o.data.AppendPrefix(dst, it.id)
	} else {
		// It was checked when it was staged, and nothing of it has changed.
		dst, _ = o.message(it).AppendPrefix(dst, o.c.b.cfg.Tags)
	}
	if len(it.head) > 0 {
		dst = append(dst, it.head...)
	}
	return append(dst, it.tail...)
}

// Next implements sched.Source. Nothing may be taken out of the queue meanwhile.
func (o *outlet) Next() (t wire.FrameType, n int, ok bool) {
	o.asked = true
	if t, n, ok = o.next(); !ok {
		o.settle()
	}
	o.asked = false
	return t, n, ok
}

// Rest implements sched.Source: the stream's turn is over.
func (o *outlet) Rest() {
	o.asked = true
	o.settle()
	o.asked = false
}

// next accounts for what has left, and stages what follows.
func (o *outlet) next() (t wire.FrameType, n int, ok bool) {
	it := &o.item
	n = it.octets()
	if it.counts() {
		o.credit.Take(n)
	}
	if it.kind != bridge.KindData {
		o.close() // it was the terminal frame
		o.f.retire(o)
		return 0, 0, false
	}
	o.sent = it.id
	o.left.octets += n
	o.left.cost += uint64(len(it.tail) + eventCost)
	o.left.any = true
	o.run.step(len(it.tail))
	return o.stage()
}

// settle tells the feed, and whoever asked to be told, what has left.
func (o *outlet) settle() {
	if !o.left.any {
		return
	}
	left := o.left
	o.left = tally{}
	if o.timer.Active() {
		o.moved = o.c.a.Now()
	}
	o.f.take(o, o.sent, left.cost)
	if o.f.opts.Sent != nil {
		o.tellSent(left.octets)
	}
}

func (o *outlet) tellSent(octets int) {
	defer func() {
		if p := recover(); p != nil {
			o.c.b.panicked("stream's Sent", &o.c.b.stats.handlerPanics, p)
		}
	}()
	o.f.opts.Sent(octets)
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
		o.moved = o.c.a.Now()
		o.c.a.StartTimer(&o.timer, o.c.b.cfg.StallTimeout)
	}
}

// short waits for credit. What a peer is allowed whose HELLO is still to come
// changes without a word from it, so that is looked at again.
func (o *outlet) short() {
	if o.c.a.PeerHello() == nil {
		o.queue()
	}
}

// HandleExpire runs on the loop: has anything left in the meantime?
func (o *outlet) HandleExpire(now time.Duration) {
	switch rest := o.moved + o.c.b.cfg.StallTimeout - now; {
	case !o.blocked():
	case rest > 0:
		o.c.a.StartTimer(&o.timer, rest)
	default:
		o.cut(ErrSlowConsumer, "nothing of the stream leaves: the peer reads too slowly")
	}
}

// cancel ends the stream because its consumer wants no more of it (CC-STREAM 7.2).
func (o *outlet) cancel(err error) {
	if o.over {
		return // it has its terminal frame
	}
	o.c.a.DropFlow(&o.flow)
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
// same association.
func (o *outlet) rewind(after EventID) {
	o.c.a.DropFlow(&o.flow)
	o.unstage()
	o.run.clear()
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
	o.settle()
	o.unstage()
	o.run.clear()
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
