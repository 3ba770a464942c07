package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/mapping/a2a"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// shutdownTime is how long either side takes at most to end its associations.
const shutdownTime = 5 * time.Second

const (
	// opaque is the protocol id of the opaque class's messages.
	opaque = bridge.FirstExperimental
	// publishing is that of publications, whose handler waits.
	publishing = opaque + 1
)

// The methods of a server under load.
const (
	MethodEcho      = "bench/echo"      // answered with the message
	MethodStream    = "bench/stream"    // answered with Options.Events events
	MethodSubscribe = "bench/subscribe" // answered with an event at once and then those published
	MethodPublish   = "bench/publish"   // sends the message to all subscribers
	MethodNotify    = "bench/notify"    // not answered
)

// Protocols are the ids of the foreign protocols that a server under load carries.
func Protocols() []uint8 {
	return []uint8{uint8(opaque), uint8(publishing), uint8(bridge.ProtocolA2A)}
}

// protocols are what both sides carry; h serves the requests.
func protocols(h carriage.Handler) []carriage.Protocol {
	harmless := func([]byte) (bridge.Effect, bool) { return bridge.ReadOnly, true }
	return []carriage.Protocol{
		{ID: opaque, Class: carriage.ClassOpaque, Content: bridge.ContentProto, Handler: h, Effect: harmless},
		{ID: publishing, Class: carriage.ClassOpaque, Content: bridge.ContentProto, Handler: h, Effect: harmless, Async: true},
		a2a.Protocol(h),
	}
}

// limits are what lets both sides do what o asks for.
func (o *Options) limits() engine.Limits {
	l := engine.Limits{Associations: maxConns + 1}
	if o.LargeSize > wire.DefaultFrameLen-wire.FloorFrameLen {
		l.MaxFrame = wire.MaxFrameLen
	}
	return l
}

// call is the request that is sent over and over, and the reply it must get. All
// have the same id, as requests of different callers may: each hop numbers its
// exchanges itself.
func (o *Options) call(m Message) (c carriage.Call, reply []byte) {
	if o.Class == JSONRPC && m == Plain {
		return carriage.Call{Protocol: bridge.ProtocolA2A, Hop: true, Foreign: jsonMessage("request", o.Size)}, jsonMessage("reply", o.Size)
	}
	message := o.Message(m)
	return carriage.Call{Protocol: opaque, Method: MethodEcho, Hop: true, Foreign: message}, message
}

// Message is what an opaque request of a kind carries, both ways.
func (o *Options) Message(m Message) []byte {
	size := o.Size
	if m == Large {
		size = o.LargeSize
	}
	message := make([]byte, size)
	for i := range message {
		message[i] = byte(i*7 + 1)
	}
	return message
}

// jsonMessage is a message/send or its result, padded to size octets with text.
func jsonMessage(kind string, size int) []byte {
	head, tail := `{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"`, `"}]}}}`
	if kind == "reply" {
		head, tail = `{"jsonrpc":"2.0","id":1,"result":{"kind":"message","messageId":"r","role":"agent","parts":[{"kind":"text","text":"`, `"}]}}`
	}
	return []byte(head + strings.Repeat("x", max(0, size-len(head)-len(tail))) + tail)
}

// engineTarget is a server that speaks N-PAMP, as our own engine reaches it.
type engineTarget struct {
	o       Options
	e       *engine.Engine
	b       *carriage.Bridge
	addr    string
	key     identity.PublicKey
	calls   [messages]carriage.Call
	replies [messages][]byte
	// What else is sent; all of it is only read.
	notify, stream, subscribe carriage.Call
}

// Engine is the Target that hello names, reached by our own engine.
func Engine(o Options, log *slog.Logger, hello Hello) (Target, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	t := &engineTarget{o: o, addr: hello.Addr}
	var err error
	if t.key, err = identity.ParsePublicKey(hello.Key); err != nil {
		return nil, err
	}
	for m := range messages {
		t.calls[m], t.replies[m] = o.call(m)
	}
	t.notify = carriage.Call{Protocol: opaque, Method: MethodNotify, Foreign: o.Message(Plain)}
	t.stream = carriage.Call{Protocol: opaque, Method: MethodStream, Hop: true}
	t.subscribe = carriage.Call{Protocol: opaque, Method: MethodSubscribe, Hop: true}
	t.b = carriage.New(carriage.Config{
		Protocols:   protocols(nil),
		MaxInFlight: max(o.InFlight+o.LargeInFlight, o.Streams) + 1,
		Logger:      log,
	})
	t.e, err = engine.New(engine.Config{
		Channels:    []engine.ChannelHandler{t.b},
		Transport:   o.transport(),
		StandardTLS: o.TLS == StandardTLS,
		Loops:       o.ClientLoops,
		Limits:      o.limits(),
		Logger:      log,
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (t *engineTarget) Dial(ctx context.Context) (Conn, error) {
	a, err := t.e.Dial(ctx, t.addr, engine.DialOptions{Peer: identity.Pin(t.key)})
	if err != nil {
		return nil, err
	}
	return &engineConn{t, a}, nil
}

func (t *engineTarget) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTime)
	defer cancel()
	// Subscriptions have no end of their own that a shutdown could wait for.
	t.e.Associations(func(a *engine.Association) bool {
		a.Close(0, "")
		return true
	})
	if err := t.e.Shutdown(ctx); err != nil {
		return fmt.Errorf("bench: stopping the client: %w", err)
	}
	return nil
}

// engineConn is one association. It is a CallbackConn, StreamConn, TopicConn and
// NotifyConn.
type engineConn struct {
	t *engineTarget
	a *engine.Association
}

func (c *engineConn) Close() error {
	c.a.Close(0, "")
	<-c.a.Done()
	return nil
}

// check says what is wrong with a reply.
func (c *engineConn) check(m Message, r *carriage.Reply) error {
	switch {
	case r.Err != nil:
		return r.Err
	case r.Kind != bridge.KindResponse || !bytes.Equal(r.Foreign, c.t.replies[m]):
		return fmt.Errorf("bench: a reply of kind %v and %d octets is not the expected one", r.Kind, len(r.Foreign))
	}
	return nil
}

func (c *engineConn) Call(ctx context.Context, m Message) error {
	r, err := c.t.b.Call(ctx, c.a, &c.t.calls[m])
	if err != nil {
		return err
	}
	return c.check(m, r)
}

// enginePlace is a place for requests in the callback shape.
type enginePlace struct {
	*engineConn
	m    Message
	done func(error)
}

func (c *engineConn) Place(m Message, done func(error)) func() error {
	return (&enginePlace{c, m, done}).start
}

func (p *enginePlace) start() error {
	_, err := p.t.b.Start(p.a, &p.t.calls[p.m], p)
	return err
}

// HandleReply is called on the association's loop.
func (p *enginePlace) HandleReply(r *carriage.Reply) { p.done(p.check(p.m, r)) }

func (c *engineConn) Notify(ctx context.Context) error {
	return c.t.b.Notify(ctx, c.a, &c.t.notify)
}

// engineStream takes one stream in the callback shape.
type engineStream struct {
	*engineConn
	each func([]byte)
	done func(error)
}

func (s *engineStream) HandleEvent(e *carriage.Event) { s.each(e.Foreign) }

func (s *engineStream) HandleReply(r *carriage.Reply) {
	err := r.Err
	if err == nil && r.Kind != bridge.KindEnd {
		err = fmt.Errorf("bench: a stream ended with a reply of kind %v", r.Kind)
	}
	s.done(err)
}

func (c *engineConn) Stream(ctx context.Context, each func([]byte), done func(error)) error {
	return c.receive(ctx, &c.t.stream, each, done)
}

// receive takes a stream in the client's shape.
func (c *engineConn) receive(ctx context.Context, call *carriage.Call, each func([]byte), done func(error)) error {
	if c.t.o.Client == Callback {
		_, err := c.t.b.StartStream(c.a, call, nil, &engineStream{c, each, done})
		return err
	}
	s, err := c.t.b.Stream(ctx, c.a, call, nil)
	if err != nil {
		return err
	}
	go func() {
		defer s.Close()
		for {
			e, err := s.Next()
			if errors.Is(err, io.EOF) {
				err = nil
			} else if err == nil {
				each(e.Foreign)
				continue
			}
			done(err)
			return
		}
	}()
	return nil
}

func (c *engineConn) Subscribe(ctx context.Context, each func([]byte)) error {
	ready := make(chan error, 1)
	first := true
	event := func(event []byte) {
		if first { // which says that the subscription stands
			first = false
			ready <- nil
			return
		}
		each(event)
	}
	done := func(err error) {
		if first {
			ready <- errors.Join(errors.New("bench: the subscription ended at once"), err)
		}
	}
	// It outlives ctx, and ends with its association.
	if err := c.receive(context.WithoutCancel(ctx), &c.t.subscribe, event, done); err != nil {
		return err
	}
	select {
	case err := <-ready:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *engineConn) Publish(ctx context.Context, event []byte) error {
	call := carriage.Call{Protocol: publishing, Method: MethodPublish, Hop: true, Foreign: event}
	_, err := c.t.b.Call(ctx, c.a, &call)
	return err
}
