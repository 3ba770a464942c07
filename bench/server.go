package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// Counter counts what a server has handled. Each of its cells has a cache line of
// its own, because all loops count at once.
type Counter struct {
	cells [64]struct {
		n atomic.Uint64
		_ [56]byte
	}
}

// Add counts n more. Who counts often has a number of its own, which spreads.
func (c *Counter) Add(who, n uint64) { c.cells[who%uint64(len(c.cells))].n.Add(n) }

// Sum is how much was counted.
func (c *Counter) Sum() (n uint64) {
	for i := range c.cells {
		n += c.cells[i].n.Load()
	}
	return n
}

// server answers each request from its own octets, or with a reply of the same
// size where the class wants a proper one; it produces streams and serves a topic.
type server struct {
	o       Options
	reply   []byte // for JSON-RPC
	topic   *carriage.Topic
	handled Counter // requests, events and deliveries
	heard   Counter // notifications
}

func (s *server) ServeRequest(r *carriage.Request) {
	id := r.Association().ID()
	if r.Protocol() == bridge.ProtocolA2A {
		s.handled.Add(id, 1)
		_ = r.Respond(s.reply) // a reply that is not taken shows at the client
		return
	}
	switch string(r.Method()) {
	case MethodEcho:
		s.handled.Add(id, 1)
		_ = r.Respond(r.Foreign())
	case MethodStream:
		s.produce(r)
	case MethodSubscribe:
		_, err := s.topic.Subscribe(r, carriage.SubscribeOptions{First: []byte{1}})
		if err != nil {
			_ = r.Refuse(bridge.CodeNotDelivered, err.Error())
		}
	case MethodPublish: // on a goroutine of its own
		if err := s.topic.Publish(context.Background(), r.Foreign()); err != nil {
			_ = r.Refuse(bridge.CodeNotDelivered, err.Error())
			return
		}
		s.handled.Add(id, uint64(s.topic.Subscribers()))
		_ = r.Respond(nil)
	default:
		_ = r.Refuse(bridge.CodeMethodUnsupported, "")
	}
}

func (s *server) ServeNotify(n *carriage.Notify) { s.heard.Add(n.Association().ID(), 1) }

// Stamping is how many events of a stream share one look at the clock: one in so
// many bears the time.
const Stamping = 32

// Feed makes the events of one stream.
type Feed struct {
	event     []byte
	stamped   []byte // the same, but that it bears the time
	made, all int
}

// NewFeed makes the events that o asks for.
func NewFeed(o *Options) *Feed {
	f := &Feed{event: o.Message(Plain), all: o.Events}
	f.stamped = bytes.Clone(f.event)
	clear(f.event[:stampLen])
	return f
}

// Batch appends the next events, as many as there are up to the capacity of list. They
// are borrowed until the next call, and at most Stamping at once.
func (f *Feed) Batch(list [][]byte) [][]byte {
	for n := min(cap(list)-len(list), f.all-f.made, Stamping); n > 0; n-- {
		e := f.event
		if f.made%Stamping == 0 {
			e = f.stamped
			Stamped(e, time.Now())
		}
		f.made++
		list = append(list, e)
	}
	return list
}

// Next gives the next event, whose octets are the Feed's until the one after it;
// nil says that there are no more.
func (f *Feed) Next() []byte {
	var one [1][]byte
	f.Batch(one[:0])
	return one[0]
}

// produce sends a stream's events, in the shape that is asked for of the client
// too: from the loop whenever there is room, or from a goroutine that waits for it.
func (s *server) produce(r *carriage.Request) {
	f := &producer{s: s, id: r.Association().ID(), feed: NewFeed(&s.o)}
	o := carriage.StreamOptions{Buffer: s.o.Buffer}
	if s.o.Client == Callback {
		o.Sent = func(int) { f.more() }
	}
	r.Retain()
	p, err := r.Stream(o)
	if err != nil {
		_ = r.Refuse(bridge.CodeNotDelivered, err.Error())
		return
	}
	f.p = p
	if s.o.Client == Callback {
		f.more()
	} else {
		go f.all()
	}
}

// producer sends the events of one stream.
type producer struct {
	s    *server
	id   uint64
	p    *carriage.Producer
	feed *Feed
	list [Stamping][]byte
	held [][]byte // those in list that found no room yet
}

func (f *producer) all() {
	for e := f.feed.Next(); e != nil; e = f.feed.Next() {
		if f.p.Send(f.p.Context(), e) != nil {
			return // the consumer has seen the reason
		}
		f.s.handled.Add(f.id, 1)
	}
	_ = f.p.EndEmpty()
}

func (f *producer) more() {
	for {
		if len(f.held) == 0 {
			if f.held = f.feed.Batch(f.list[:0]); len(f.held) == 0 {
				_ = f.p.EndEmpty()
				return
			}
		}
		n, err := f.p.TrySendAll(f.held)
		f.s.handled.Add(f.id, uint64(n))
		if f.held = f.held[n:]; err != nil {
			return // until there is room, or for good
		}
	}
}

// Serve is the server process: it serves all scenarios on a loopback port of its
// own until in ends or ctx does. See Control for in and out.
func Serve(ctx context.Context, o Options, log *slog.Logger, in io.Reader, out io.Writer) (err error) {
	if err := o.Validate(); err != nil {
		return err
	}
	if o.Syscalls {
		allowTracing()
	}
	h := &server{o: o, reply: jsonMessage("reply", o.Size), topic: carriage.NewTopic(carriage.TopicOptions{})}
	b := carriage.New(carriage.Config{
		Protocols:   protocols(h),
		MaxInFlight: max(o.InFlight+o.LargeInFlight, o.Streams) + 1,
		Logger:      log,
	})
	e, err := engine.New(engine.Config{
		Channels:    []engine.ChannelHandler{b},
		Transport:   o.transport(),
		StandardTLS: o.TLS == StandardTLS,
		Loops:       o.ServerLoops,
		Limits:      o.limits(),
		Logger:      log,
	})
	if err != nil {
		return err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
		defer cancel()
		if serr := e.Shutdown(stop); err == nil && serr != nil {
			err = fmt.Errorf("bench: stopping the server: %w", serr)
		}
	}()
	l, err := e.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		return err
	}
	handled := h.handled.Sum
	switch o.Scenario {
	case Handshake, Idle:
		handled = func() uint64 { return e.Stats().HandshakesCompleted }
	case Notify:
		handled = h.heard.Sum
	}
	return Control(ctx, in, out, Hello{Addr: l.Addr().String(), Key: e.Identity().String()}, handled)
}
