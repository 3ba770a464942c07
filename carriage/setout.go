package carriage

import (
	"errors"
	"time"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/defaults"
	"github.com/trestle-npamp/trestle/sched"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// SetPart is one member of a document set that is sent: the document or one of its
// proofs.
type SetPart struct {
	// Binding is the value of its DocumentBinding TLV.
	Binding []byte
	// Foreign is the member, octet for octet.
	Foreign []byte
}

// SetOptions are for one document set that is sent.
type SetOptions struct {
	// Content is the content type of its frames, with MediaType where that points at
	// one; 0 is the request's.
	Content   bridge.ContentType
	MediaType []byte
	// Stream sends the set as a stream in every case. Otherwise only one is of which a
	// member does not fit in one frame, or would be misread at the start of one (D9).
	Stream bool
	// Chunk is how many octets of a member one frame of a stream has at most; 0 is
	// DefaultChunk.
	Chunk int
	// Over, if set, is told once, on the loop, that the set is over: nil when its last
	// frame was handed to the association, else why it was not. It must not block.
	Over func(err error)
}

// DefaultChunk is how many octets of a member one frame of a streamed set has.
const DefaultChunk = 32 << 10

// ErrNoParts: a document set without members.
var ErrNoParts = errors.New("carriage: a document set has no members")

// RespondSet answers the request with the members of a document set, each in a
// RESPONSE of its own, or all of them in one stream (CC-DOC 7.1, 7.4). nil says that
// they will be sent as fast as the peer takes them: what the parts refer to must not
// be changed until Over was called. Whether the bindings agree with one another is
// for the caller to see to. All frames are labelled read-only (CC-DOC 9).
//
// Any error leaves the request as it was: ErrAnswered, ErrNoParts,
// bridge.ErrTagOff, one of the class bridge.ErrMalformed, or assoc.ErrTooLarge if
// not even one octet of a member fits in a frame.
func (r *Request) RespondSet(parts []SetPart, o SetOptions) error {
	defaults.Fill(&o.Chunk, DefaultChunk)
	s := &setOutlet{c: r.c, r: r, o: o, parts: parts}
	s.msg = bridge.Message{
		Protocol: r.msg.Protocol, Content: o.Content, MediaType: o.MediaType, HasLabel: true,
		Corr: append([]byte(nil), r.msg.Corr...),
	}
	if o.Content == 0 {
		s.msg.Content, s.msg.MediaType = r.msg.Content, append([]byte(nil), r.msg.MediaType...)
	}
	if len(parts) == 0 {
		return ErrNoParts
	}
	for i := range parts {
		s.frame(bridge.KindData, &parts[i], nil)
		if err := s.msg.Check(r.c.b.cfg.Tags); err != nil {
			return err
		}
		if s.msg.Size()+1 > r.c.a.MaxSend() {
			return assoc.ErrTooLarge
		}
	}
	if !r.state.CompareAndSwap(stateOpen, stateStreaming) {
		return ErrAnswered
	}
	if !r.retained {
		r.bare = true
		r.keep(false)
	}
	s.node.Owner, s.timer.Owner, s.wait.owner, s.flow.Source = s, s, s, s
	if !r.c.a.PostOnce(&s.node) {
		return r.c.a.ClosedErr()
	}
	return nil
}

// setOutlet is a document set on its way to who asked for it. It belongs to the
// association's loop, and gives the next frame when that can leave, as an outlet does.
type setOutlet struct {
	node  sched.Node
	flow  sched.Flow
	timer sched.Timer
	wait  waiter

	c *conn
	r *Request
	o SetOptions

	parts  []SetPart
	part   int // the next to be sent
	off    int // octets of it that were sent
	msg    bridge.Message
	credit sched.Credit
	sent   EventID
	stream bool
	over   bool
	asked  bool          // the queue asks: what takes frames out of it has to wait
	n      int           // octets of its part in the frame that is next
	last   bool          // of the set
	moved  time.Duration // when something left last, while the timer runs
}

// frame fills in a frame with octets of a part.
func (s *setOutlet) frame(k bridge.Kind, p *SetPart, foreign []byte) {
	m := &s.msg
	m.Kind, m.Binding, m.Foreign, m.Flags = k, p.Binding, foreign, 0
	m.HasStream, m.Stream = k != bridge.KindResponse, bridge.StreamControl{}
	if m.HasStream {
		m.Stream.EventID = s.sent + 1
	}
	if k == bridge.KindEnd {
		m.Flags = bridge.FlagFinal
	}
}

// RunTask runs on the loop: the set is to be sent, or more of it.
func (s *setOutlet) RunTask() {
	if s.over {
		return
	}
	if s.r.set == nil {
		s.c.a.StopTimer(&s.r.timer) // the reply timeout: there is a reply
		s.r.set = s
		s.limit()
		s.stream = s.o.Stream || s.needsStream()
		switch {
		case s.r.cancelled:
			s.cancel()
			return
		case s.c.drained:
			s.cut(ErrDraining, textDrained)
			return
		}
	}
	s.pump()
}

// needsStream says whether a member can't be carried by one RESPONSE.
func (s *setOutlet) needsStream() bool {
	for i := range s.parts {
		s.frame(bridge.KindResponse, &s.parts[i], s.parts[i].Foreign)
		if s.msg.Size() > s.c.a.MaxSend() || s.msg.Check(s.c.b.cfg.Tags) != nil {
			return true
		}
	}
	return false
}

// limit takes what the peer allows a stream at first.
func (s *setOutlet) limit() {
	if n, on := s.c.streamLimit(); on {
		s.credit.LimitSend(n)
		s.credit.OverdrawSend(n / overdraw)
	} else {
		s.credit.FreeSend()
	}
}

// next fills in the next frame, and returns how many octets of its part it has and
// whether it is the last one of the set.
func (s *setOutlet) next() (n int, last bool) {
	p := &s.parts[s.part]
	final := s.part == len(s.parts)-1
	if !s.stream {
		s.frame(bridge.KindResponse, p, p.Foreign)
		return len(p.Foreign), final
	}
	rest := p.Foreign[s.off:]
	s.frame(bridge.KindData, p, nil)
	room := s.c.a.MaxSend() - s.msg.Size()
	n = max(1, min(len(rest), s.o.Chunk, room))
	n = min(n, len(rest))
	kind := func() bridge.Kind {
		if last = final && n == len(rest); last {
			return bridge.KindEnd
		}
		return bridge.KindData
	}
	s.frame(kind(), p, rest[:n])
	if errors.Is(s.msg.Check(s.c.b.cfg.Tags), bridge.ErrAmbiguous) {
		n = 1 // a single octet starts like nothing (D9)
		s.frame(kind(), p, rest[:n])
	}
	return n, last
}

// blocked says that the set waits for its turn, or for credit.
func (s *setOutlet) blocked() bool { return s.flow.Len() > 0 || s.wait.waiting() }

// again looks anew at what is to be sent: what the peer takes has changed.
func (s *setOutlet) again() {
	s.c.a.DropFlow(&s.flow)
	s.limit()
	s.pump()
}

// resend runs on the loop: the association has room again. false means that it has
// not enough.
func (s *setOutlet) resend() bool {
	s.c.starved.remove(&s.wait)
	if s.c.a.PeerHello() == nil {
		s.limit()
	}
	s.pump()
	return !s.wait.waiting()
}

// queue makes the set wait until the association has room.
func (s *setOutlet) queue() {
	s.c.starved.push(&s.wait)
	if !s.c.retry.timer.Active() {
		s.c.a.StartTimer(&s.c.retry.timer, retryInterval)
	}
}

// pump puts the next frame in for its turn.
func (s *setOutlet) pump() {
	if s.over || s.blocked() {
		return
	}
	if t, n, ok := s.stage(); ok {
		if err := s.c.a.Offer(s.c.b.cfg.Channel, t, &s.flow, n); err != nil {
			s.failed(err)
			return
		}
	}
	if !s.over && s.blocked() {
		s.watch()
	}
}

func (s *setOutlet) failed(err error) {
	if !s.c.closing(err) { // otherwise HandleClose follows
		s.cut(err, "the document can't be carried: "+reason(err))
	}
}

// stage fills in the next frame and says what it is, if it may be sent now.
func (s *setOutlet) stage() (t wire.FrameType, size int, ok bool) {
	s.n, s.last = s.next()
	if s.stream && !s.credit.Allows(s.n) {
		if s.c.a.PeerHello() == nil {
			s.queue() // what is allowed changes without a word from the peer
		}
		return 0, 0, false
	}
	err := s.msg.Check(s.c.b.cfg.Tags)
	if size = s.msg.Size(); err == nil && size > s.c.a.MaxSend() {
		err = assoc.ErrTooLarge
	}
	if err != nil {
		s.failed(err)
		return 0, 0, false
	}
	return s.msg.Kind.Type(), size, true
}

// Fill implements sched.Source.
func (s *setOutlet) Fill(dst []byte) []byte {
	dst, _ = s.msg.Append(dst, s.c.b.cfg.Tags) // it was checked when it was staged
	return dst
}

// Next implements sched.Source. Nothing may be taken out of the queue meanwhile.
func (s *setOutlet) Next() (t wire.FrameType, size int, ok bool) {
	s.asked = true
	defer func() { s.asked = false }()
	if s.stream {
		s.credit.Take(s.n)
		s.sent++
	}
	if s.timer.Active() {
		s.moved = s.c.a.Now()
	}
	s.off += s.n
	if s.off == len(s.parts[s.part].Foreign) {
		s.part, s.off = s.part+1, 0
	}
	if s.last {
		s.finish(nil)
		return 0, 0, false
	}
	return s.stage()
}

// Rest implements sched.Source.
func (s *setOutlet) Rest() {}

// watch has the set cut when nothing of it leaves for the stall deadline, unless it
// waits for credit, which is the peer's to give.
func (s *setOutlet) watch() {
	if s.timer.Active() {
		return
	}
	if _, limited := s.c.streamLimit(); !limited || !s.stream {
		s.moved = s.c.a.Now()
		s.c.a.StartTimer(&s.timer, s.c.b.cfg.StallTimeout)
	}
}

// HandleExpire runs on the loop: has anything left in the meantime?
func (s *setOutlet) HandleExpire(now time.Duration) {
	switch rest := s.moved + s.c.b.cfg.StallTimeout - now; {
	case !s.blocked():
	case rest > 0:
		s.c.a.StartTimer(&s.timer, rest)
	default:
		s.cut(ErrSlowConsumer, "nothing of the document leaves: the peer reads too slowly")
	}
}

// cut ends the set with NotDelivered.
func (s *setOutlet) cut(err error, text string) {
	if s.asked { // nothing may be taken out of the queue now
		s.c.a.PostOnce(&s.node)
		return
	}
	s.drop()
	s.c.b.stats.streamsCut.Add(1)
	s.c.refuse(s.msg.Protocol, s.msg.Corr, bridge.CodeNotDelivered, text)
	s.finish(err)
}

// cancel ends the set because its consumer cancelled the stream (CC-STREAM 7.2). One
// that is not streamed can't be.
func (s *setOutlet) cancel() {
	if !s.stream {
		s.pump()
		return
	}
	s.drop()
	s.c.b.stats.streamsCancelled.Add(1)
	m := bridge.Message{
		Kind: bridge.KindEnd, Protocol: s.msg.Protocol, Content: s.msg.Content, MediaType: s.msg.MediaType,
		Corr: s.msg.Corr, Flags: bridge.FlagFinal, HasStream: true,
		Stream: bridge.StreamControl{Flags: bridge.StreamCancelAck, EventID: s.sent},
	}
	_ = s.c.send(&m, true) // fails only with the association
	s.finish(ErrCancelled)
}

// drop gives up what has not left.
func (s *setOutlet) drop() { s.c.a.DropFlow(&s.flow) }

// finish ends the exchange on this side.
func (s *setOutlet) finish(err error) {
	if s.over {
		return
	}
	s.over = true
	c, r := s.c, s.r
	c.a.StopTimer(&s.timer)
	if s.wait.waiting() {
		c.starved.remove(&s.wait)
	}
	s.parts, s.r, r.set = nil, nil, nil
	r.finished()
	c.drop(r)
	if s.o.Over == nil {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			c.b.panicked("document set's Over", &c.b.stats.handlerPanics, p)
		}
	}()
	s.o.Over(err)
}

// eachSet calls f, which may end it, for each document set on its way.
func (c *conn) eachSet(f func(s *setOutlet)) {
	c.live.Range(func(_ []byte, r *Request) bool {
		if r.set != nil {
			f(r.set)
		}
		return true
	})
}

// handleRefusal takes a transport error about a correlation id that is none of ours:
// the consumer of a document set refuses it (CC-DOC 8). That ends the exchange if it
// has not ended yet. false means that it is about something else.
func (c *conn) handleRefusal(m *bridge.Message) bool {
	code, text, _ := bridge.ParseTransportError(m.Foreign)
	r, live := c.live.Get(m.Corr)
	live = live && r.doc
	if !live && code < bridge.CodeBindingMalformed {
		return false
	}
	c.b.stats.setsRefused.Add(1)
	if tell := c.b.cfg.SetRefused; tell != nil && code >= bridge.CodeBindingMalformed {
		c.tellRefused(tell, m.Corr, code, text)
	}
	switch {
	case !live:
	case r.set != nil:
		r.set.drop()
		r.set.finish(&bridge.Error{Code: code, Text: string(text)})
	case r.claim():
		c.drop(r) // nobody waits for the answer any more
	}
	return true
}

func (c *conn) tellRefused(tell func(*assoc.Association, []byte, bridge.Code, []byte), corr []byte, code bridge.Code, text []byte) {
	defer func() {
		if p := recover(); p != nil {
			c.b.panicked("SetRefused", &c.b.stats.handlerPanics, p)
		}
	}()
	tell(c.a, corr, code, text)
}
