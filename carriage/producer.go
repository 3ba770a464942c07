package carriage

import (
	"bytes"
	"context"
	"errors"
	"runtime"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/defaults"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// EventID numbers the events of one stream, from 1 (CC-STREAM 5.1).
type EventID = bridge.EventID

// DefaultStreamBuffer is how many octets of a stream's events wait on this side
// before its producer has to.
const DefaultStreamBuffer = 256 << 10

// How streams end, besides the errors that requests have.
var (
	// ErrCancelled: the consumer wants no more of the stream.
	ErrCancelled = errors.New("carriage: the consumer cancelled the stream")
	// ErrStreamEnded: the stream's terminal frame was given already.
	ErrStreamEnded = errors.New("carriage: stream already ended")
	// ErrSlowConsumer: a consumer reads more slowly than it may, and its stream
	// was cut.
	ErrSlowConsumer = errors.New("carriage: the consumer reads too slowly")
	// ErrNotStream: the request's method has no stream for an answer.
	ErrNotStream = errors.New("carriage: the method is not answered by a stream")
	// ErrNotSubscribed: a stream's events come from a Topic.
	ErrNotSubscribed = errors.New("carriage: the stream is a topic's")
	// ErrNotResumable: the consumer asked for what is not held any more.
	ErrNotResumable = errors.New("carriage: the stream can't be resumed from there")
	// ErrAbandoned: the handler returned, or the producer was lost, without an end.
	ErrAbandoned = errors.New("carriage: stream left without an end")
)

// StreamOptions are for one stream.
type StreamOptions struct {
	// Resumable keeps what was sent for a while, so that the consumer can continue
	// after its association was lost (CC-STREAM 6.1). While it is away the producer
	// goes on; what it sends is kept, or lost oldest first, and then the stream can't
	// be resumed from before.
	Resumable bool
	// Buffer is how many octets may wait before Send does; 0 is
	// DefaultStreamBuffer. A single event may wait whatever its size.
	Buffer int
	// Sent, if set, is told on the loop that events with so many foreign octets in
	// all have left the producer's buffer. It must not block.
	Sent func(octets int)
	// Over, if set, is told once that the stream is over, and why: nil when its
	// terminal frame has left the producer's buffer, else what Err says. It is
	// called on a loop or on the goroutine that found out, and must not block.
	Over func(err error)
}

// Producer sends the events of one stream. Any goroutine may use it; the events of
// one goroutine keep their order.
//
// A stream has exactly one terminal frame: the producer's own (End, EndEmpty, Fail,
// Refuse, Respond), or the acknowledgement of the consumer's cancel, or NotDelivered
// when the handler panicked or left it, the producer was lost, the association
// drains or the consumer reads too slowly.
type Producer struct{ f *feed }

// Stream answers the request with a stream: its events are sent by the Producer,
// and Respond, Fail and Refuse of the request return ErrAnswered from now on. No
// frame is sent yet.
//
// Like the request, the stream must be retained (Request.Retain or RetainEnvelope,
// before or after) to live on when ServeRequest returns; one that is not ends as
// NotDelivered then.
//
// Errors: ErrAnswered, ErrNotStream, assoc.ErrClosed.
func (r *Request) Stream(o StreamOptions) (*Producer, error) {
	f, err := r.stream(o)
	if err != nil {
		return nil, err
	}
	if err := r.launch(f); err != nil {
		return nil, err
	}
	p := &Producer{f}
	// Whoever loses the producer can't end the stream any more.
	runtime.AddCleanup(p, func(f *feed) { f.condemn(ErrAbandoned, textLost) }, f)
	return p, nil
}

// stream makes the request's feed.
func (r *Request) stream(o StreamOptions) (*feed, error) {
	if s := r.proto.Stream; s != nil && !s(r.msg.Method) {
		return nil, ErrNotStream
	}
	if !r.state.CompareAndSwap(stateOpen, stateStreaming) {
		return nil, ErrAnswered
	}
	if !r.retained {
		r.bare = true
		r.keep(false)
	}
	defaults.Fill(&o.Buffer, DefaultStreamBuffer)
	m := &r.msg
	f := &feed{
		b: r.c.b, opts: o, place: -1,
		peer: r.c.a.PeerKey(), proto: r.proto, content: m.Content,
		corr: bytes.Clone(m.Corr), id: bytes.Clone(r.id), method: bytes.Clone(m.Method), media: bytes.Clone(m.MediaType),
		label: m.Label, hasLabel: m.HasLabel, effect: r.effect, doc: r.doc,
	}
	f.label.Scope = bytes.Clone(m.Label.Scope)
	f.measure()
	f.home.Store(r.c.a)
	f.cur.Store(newOutlet(r.c, r, f))
	r.feed.Store(f)
	return f, nil
}

// launch brings a new feed to the loop.
func (r *Request) launch(f *feed) error {
	if f.opts.Resumable {
		f.b.retained.add(f)
	}
	o := f.cur.Load()
	if o.c.a.PostOnce(&o.node) {
		return nil
	}
	// The exchange is ended by whoever tells the conn.
	err := o.c.a.ClosedErr()
	f.opts.Over = nil // the caller is told by the error
	f.finish(o, err)
	f.condemn(err, "the producer was lost") // should it have been resumed already
	return err
}

// finished says that the stream is over for the request.
func (r *Request) finished() {
	r.state.Store(stateAnswered)
	r.tell()
}

// abandonStream ends a stream that its handler has left behind.
func (r *Request) abandonStream(text string) {
	if f := r.feed.Load(); f != nil && f.topic == nil {
		f.condemn(ErrAbandoned, text)
	}
}

// Send sends foreign as the stream's next event, octet for octet. It waits while
// more octets wait than may, because the consumer gives no credit or its
// association takes nothing; ctx bounds that. foreign may be reused afterwards. Any
// goroutine but a loop may call it.
//
// nil means that the event is on its way, not that it was received. Errors: those
// of Err once the stream is over; assoc.ErrTooLarge and bridge.ErrAmbiguous for an
// event that can't be carried, after which the stream goes on; ctx's.
func (p *Producer) Send(ctx context.Context, foreign []byte) error {
	_, err := p.SendAll(ctx, [][]byte{foreign})
	return err
}

// SendAll is Send of several events, in their order, which costs less than as many
// calls. n is how many of them are on their way; an error is about the one after those.
func (p *Producer) SendAll(ctx context.Context, events [][]byte) (n int, err error) {
	for {
		done, wait, err := p.f.push(events[n:], true)
		n += done
		p.f.shed()
		if wait == nil {
			runtime.KeepAlive(p)
			return n, err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return n, ctx.Err()
		}
	}
}

// TrySend is Send without waiting: it returns assoc.ErrWouldBlock instead. Any
// goroutine may call it.
func (p *Producer) TrySend(foreign []byte) error {
	_, err := p.TrySendAll([][]byte{foreign})
	return err
}

// TrySendAll is SendAll without waiting: it returns assoc.ErrWouldBlock instead, when
// there is room for a part of the events only. Any goroutine may call it.
func (p *Producer) TrySendAll(events [][]byte) (n int, err error) {
	n, _, err = p.f.push(events, false)
	runtime.KeepAlive(p)
	p.f.shed()
	return n, err
}

// End ends the stream with a terminal event: it is sent as STREAM_END. It does not
// wait, but follows what was sent before. The errors are Send's; after
// assoc.ErrTooLarge or bridge.ErrAmbiguous the stream still has to be ended.
func (p *Producer) End(foreign []byte) error { return p.close(bridge.KindEnd, foreign) }

// EndEmpty ends the stream with a STREAM_END that bears no event.
func (p *Producer) EndEmpty() error { return p.close(bridge.KindEnd, nil) }

// Fail ends the stream with an ERROR that carries the foreign protocol's own error.
// It must be what Request.Fail takes; otherwise the stream ends as NotDelivered, and
// the error says why.
func (p *Producer) Fail(foreign []byte) error { return p.close(bridge.KindError, foreign) }

// Refuse ends the stream with a transport error, as Request.Refuse does.
func (p *Producer) Refuse(code bridge.Code, text string) error {
	if p.f.up && code == bridge.CodeEnvelopeMalformed {
		code = bridge.CodeNotDelivered // the other one is about what we received
	}
	err := p.f.close(transportEnding(code, text))
	runtime.KeepAlive(p)
	return err
}

// Respond answers the request with a RESPONSE instead of a stream. It must be what
// Request.Respond takes; otherwise the exchange ends as NotDelivered, and the error
// says why. It returns ErrStreamEnded once there was an event.
func (p *Producer) Respond(foreign []byte) error {
	if p.LastID() != 0 {
		return ErrStreamEnded
	}
	return p.close(bridge.KindResponse, foreign)
}

func (p *Producer) close(kind bridge.Kind, foreign []byte) error {
	f := p.f
	defer runtime.KeepAlive(p)
	if f.up && kind != bridge.KindEnd {
		return ErrNotReply
	}
	if err := f.check(kind, foreign); err != nil {
		if kind != bridge.KindEnd {
			f.b.stats.repliesBad.Add(1)
			if closed := f.close(transportEnding(bridge.CodeNotDelivered, textUncarried+reason(err))); closed != nil {
				return closed
			}
		}
		return err
	}
	return f.close(ending{kind: kind, tail: buf.SharedCopy(foreign)})
}

// Done is closed when the stream is over: ended, cancelled by its consumer, cut, or
// lost with its association.
func (p *Producer) Done() <-chan struct{} {
	f := p.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state != feedOpen {
		return *over
	}
	if f.done == nil {
		f.done = make(chan struct{})
	}
	return f.done
}

// Err says why the stream is over: ErrStreamEnded after its own end, ErrCancelled,
// ErrSlowConsumer, ErrDraining, ErrAbandoned, or what matches assoc.ErrClosed; nil
// before.
func (p *Producer) Err() error {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	return p.f.err
}

// Context ends with the stream.
func (p *Producer) Context() context.Context {
	f := p.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx == nil {
		f.ctx, f.quit = context.WithCancel(context.Background())
		if f.state != feedOpen {
			f.quit()
		}
	}
	return f.ctx
}

// LastID is the id of the newest event, 0 before the first.
func (p *Producer) LastID() EventID {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	return p.f.newest()
}

// Buffered is how many octets wait to be sent; each event counts for 64 more than it
// has.
func (p *Producer) Buffered() int {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	return int(p.f.waiting())
}

// Association is where the stream goes, or went last.
func (p *Producer) Association() *assoc.Association { return p.f.home.Load() }
