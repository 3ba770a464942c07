package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"sync"

	"github.com/trestle-npamp/trestle/bench"
	"github.com/trestle-npamp/trestle/crypto/handshake"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/crypto/record"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
	"github.com/trestle-npamp/trestle/wire/control"
)

// blockingServer is N-PAMP in the simplest way that one would write it in Go: a
// goroutine a connection, which reads a frame, opens it, and seals and writes one
// in return. It has our handshake and our record layer, so that what it lacks is
// the loop and the batch. It serves our own client and nobody else.
type blockingServer struct {
	o        bench.Options
	buffered bool // it reads through a buffer, and so less often than once a frame where many come at once
	identity identity.PrivateKey
	tls      *tls.Config // nil: raw TCP
	handled  bench.Counter
	stands   bench.Counter // connections that completed their handshake

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	subs  map[*blockingConn]bridge.Message
	wg    sync.WaitGroup
}

func serveBlocking(ctx context.Context, o bench.Options, in io.Reader, out io.Writer) error {
	return serveBlockingBy(ctx, o, in, out, false)
}

func serveBuffered(ctx context.Context, o bench.Options, in io.Reader, out io.Writer) error {
	return serveBlockingBy(ctx, o, in, out, true)
}

func serveBlockingBy(ctx context.Context, o bench.Options, in io.Reader, out io.Writer, buffered bool) error {
	id, err := identity.Generate(profiles.Standard.Schemes[0], nil)
	if err != nil {
		return err
	}
	s := &blockingServer{o: o, buffered: buffered, identity: id, conns: make(map[net.Conn]struct{}), subs: make(map[*blockingConn]bridge.Message)}
	if o.Transport == "tls" {
		cert, _, err := certificate()
		if err != nil {
			return err
		}
		s.tls = &tls.Config{
			Certificates:           []tls.Certificate{cert},
			MinVersion:             tls.VersionTLS13,
			NextProtos:             []string{"n-pamp/2"},
			CurvePreferences:       []tls.CurveID{tls.X25519, tls.CurveP256}, // as ours: the handshake inside makes the other exchange
			SessionTicketsDisabled: true,
		}
	}
	l, err := listen()
	if err != nil {
		return err
	}
	s.wg.Add(1)
	go s.accept(l)
	handled := s.handled.Sum
	if o.Scenario == bench.Handshake || o.Scenario == bench.Idle {
		handled = s.stands.Sum
	}
	err = bench.Control(ctx, in, out, bench.Hello{Addr: l.Addr().String(), Key: id.Public().String()}, handled)
	_ = l.Close()
	s.mu.Lock()
	for c := range s.conns {
		_ = c.Close()
	}
	s.conns = nil
	s.mu.Unlock()
	s.wg.Wait()
	return err
}

func (s *blockingServer) accept(l net.Listener) {
	defer s.wg.Done()
	for {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.conns == nil {
			s.mu.Unlock()
			_ = nc.Close()
			return
		}
		s.conns[nc] = struct{}{}
		s.wg.Add(1)
		s.mu.Unlock()
		go func() {
			defer s.wg.Done()
			s.serve(nc)
			_ = nc.Close()
			s.mu.Lock()
			delete(s.conns, nc)
			s.mu.Unlock()
		}()
	}
}

// blockingConn is one connection. What is sent is sealed and written under a lock,
// since streams have goroutines of their own.
type blockingConn struct {
	s    *blockingServer
	nc   net.Conn
	r    io.Reader
	in   []byte // what was read, of which the first done octets are worked off
	done int
	size int               // of the frame that was last handed out, which begins there
	open [2]*record.Opener // Control, Bridge

	mu   sync.Mutex
	seal [2]*record.Sealer
	out  []byte
}

func at(ch wire.Channel) int {
	if ch == wire.ChannelBridge {
		return 1
	}
	return 0
}

func (s *blockingServer) serve(nc net.Conn) {
	if s.tls != nil {
		nc = tls.Server(nc, s.tls)
	}
	c := &blockingConn{s: s, nc: nc, r: nc}
	if s.buffered {
		c.r = bufio.NewReader(nc)
	}
	if c.handshake() != nil || c.hello() != nil {
		return
	}
	s.stands.Add(0, 1)
	defer func() {
		s.mu.Lock()
		delete(s.subs, c)
		s.mu.Unlock()
	}()
	for {
		f, err := c.frame(wire.MaxFrameLen)
		if err != nil {
			return
		}
		if err := c.handle(f); err != nil {
			return
		}
	}
}

// frame reads the next frame. It asks for as many octets as the frame before had,
// so that one read brings one frame where frames are alike; the header says what is
// missing, and what came of the frame behind waits for its turn.
func (c *blockingConn) frame(most int) (wire.Frame, error) {
	c.done += c.size
	want, known := max(c.size, wire.HeaderLen), false
	for {
		have := c.in[c.done:]
		if !known && len(have) >= wire.HeaderLen {
			h, err := wire.ParseHeader(have, most)
			if err != nil {
				return wire.Frame{}, err
			}
			want, known = wire.HeaderLen+h.PayloadLen(), true
		}
		if known && len(have) >= want {
			f, n, err := wire.ParseFrame(have, most)
			c.size = n
			return f, err
		}
		c.in, c.done = c.in[:copy(c.in, have)], 0
		c.in = slices.Grow(c.in, want-len(c.in))
		n, err := c.r.Read(c.in[len(c.in):want])
		if n == 0 && err != nil {
			return wire.Frame{}, err
		}
		c.in = c.in[:len(c.in)+n]
	}
}

func (c *blockingConn) handshake() error {
	m, err := handshake.NewServer(handshake.Config{Identity: c.s.identity, VerifyPeer: func(identity.PublicKey) error { return nil }})
	if err != nil {
		return err
	}
	defer m.Wipe()
	for {
		if out := m.AppendOutput(nil); len(out) > 0 {
			if _, err := c.nc.Write(out); err != nil {
				return err
			}
		}
		if m.Done() {
			break
		}
		f, err := c.frame(handshake.MaxFrameLen)
		if err != nil {
			return err
		}
		if err := m.HandleFrame(f); err != nil {
			return err
		}
	}
	r := m.Result()
	for _, ch := range []wire.Channel{wire.ChannelControl, wire.ChannelBridge} {
		c.open[at(ch)] = record.NewOpener(r.Recv, r.Profile, r.Suite, ch)
		c.seal[at(ch)] = record.NewSealer(r.Send, r.Profile, r.Suite, ch)
	}
	return nil
}

// hello says what is spoken here. There is no credit in it: nobody counts any.
func (c *blockingConn) hello() error {
	h := control.Hello{
		Version: control.HelloVersion, Protocols: bench.Protocols(),
		HasMaxMessage: true, MaxMessage: wire.MaxFrameLen,
		HasChannels: true, Channels: []wire.Channel{wire.ChannelControl, wire.ChannelBridge},
	}
	payload, err := control.AppendHello(nil, &h)
	if err != nil {
		return err
	}
	return errors.Join(c.send(wire.ChannelControl, wire.TypeHello, payload), c.send(wire.ChannelControl, wire.TypeHelloDone, nil))
}

func (c *blockingConn) send(ch wire.Channel, t wire.FrameType, payload []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begin()
	c.out = append(c.out, payload...)
	return c.end(ch, t)
}

var room [wire.HeaderLen]byte

// begin starts a frame in c.out, and end seals and writes it. The lock is held.
func (c *blockingConn) begin() { c.out = append(c.out[:0], room[:]...) }

func (c *blockingConn) end(ch wire.Channel, t wire.FrameType) error {
	s := c.seal[at(ch)]
	var err error
	if c.out, err = s.Seal(c.out, 0, 0, t); err != nil {
		return err
	}
	if t == wire.TypeKeyUpdate {
		if err := s.Update(); err != nil {
			return err
		}
	}
	if _, err := c.nc.Write(c.out); err != nil {
		return err
	}
	if s.Due(profiles.Standard.Bounds) {
		c.begin()
		c.out = control.AppendKeyUpdate(c.out, s.Epoch()+1)
		return c.end(ch, wire.TypeKeyUpdate)
	}
	return nil
}

// reply sends a message of the Bridge channel.
func (c *blockingConn) reply(m *bridge.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begin()
	var err error
	if c.out, err = m.Append(c.out, nil); err != nil {
		return err
	}
	return c.end(wire.ChannelBridge, m.Kind.Type())
}

var errClosed = errors.New("peers: the client closed")

func (c *blockingConn) handle(f wire.Frame) error {
	h := f.Header()
	ch, t := h.Channel(), h.Type()
	if ch != wire.ChannelControl && ch != wire.ChannelBridge {
		return nil // GREASE
	}
	plain, err := c.open[at(ch)].Open(f)
	if err != nil {
		return err
	}
	switch t {
	case wire.TypePing:
		return c.send(ch, wire.TypePong, plain)
	case wire.TypeKeyUpdate:
		return errors.Join(c.open[at(ch)].Update(), c.send(ch, wire.TypeKeyUpdateAck, plain))
	case wire.TypeClose:
		return errors.Join(c.send(ch, wire.TypeCloseAck, nil), errClosed)
	}
	if ch != wire.ChannelBridge || t < wire.FirstChannelType {
		return nil
	}
	var m bridge.Message
	if err := bridge.Parse(&m, t, plain, nil); err != nil {
		return err
	}
	return c.serve(&m)
}

func (c *blockingConn) serve(m *bridge.Message) error {
	if m.Kind == bridge.KindNotify {
		c.s.handled.Add(0, 1)
		return nil
	}
	r := bridge.Message{Kind: bridge.KindResponse, Protocol: m.Protocol, Content: m.Content, Corr: m.Corr}
	switch string(m.Method) {
	case bench.MethodEcho:
		c.s.handled.Add(0, 1)
		r.Foreign = m.Foreign
	case bench.MethodStream:
		r.Corr = slices.Clone(m.Corr)
		c.s.wg.Add(1)
		go func() {
			defer c.s.wg.Done()
			c.stream(&r)
		}()
		return nil
	case bench.MethodSubscribe:
		r.Corr = slices.Clone(m.Corr)
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		r.Kind, r.HasStream, r.Stream.EventID, r.Foreign = bridge.KindData, true, 1, []byte{1}
		if err := c.reply(&r); err != nil {
			return err
		}
		c.s.subs[c] = r
		return nil
	case bench.MethodPublish:
		c.s.publish(m.Foreign)
	default:
		return errors.New("peers: unknown method")
	}
	return c.reply(&r)
}

// stream writes the events of one stream, each in a frame and a write of its own.
func (c *blockingConn) stream(m *bridge.Message) {
	f := bench.NewFeed(&c.s.o)
	m.Kind, m.HasStream = bridge.KindData, true
	for e := f.Next(); e != nil; e = f.Next() {
		m.Stream.EventID++
		m.Foreign = e
		if c.reply(m) != nil {
			return
		}
		c.s.handled.Add(0, 1)
	}
	m.Kind, m.Foreign = bridge.KindEnd, nil
	m.Stream.EventID++
	_ = c.reply(m)
}

// publish writes an event to all subscribers, one after the other.
func (s *blockingServer) publish(event []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c, m := range s.subs {
		m.Stream.EventID++
		m.Foreign = event
		if c.reply(&m) == nil {
			s.handled.Add(0, 1)
		}
		s.subs[c] = m
	}
}
