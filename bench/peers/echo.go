package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/panjf2000/gnet/v2"

	"github.com/trestle-npamp/trestle/bench"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// readBuffer of a loop in octets, as our engine has it.
const readBuffer = 256 << 10

// echoServer writes back what it reads: the least that a server on these loops can
// do.
type echoServer struct {
	gnet.BuiltinEventEngine
	o       bench.Options
	size    int
	handled bench.Counter
	stands  bench.Counter
	boots   chan struct{} // closed when it listens
}

func (s *echoServer) OnBoot(gnet.Engine) gnet.Action {
	close(s.boots)
	return gnet.None
}

func (s *echoServer) OnOpen(gnet.Conn) ([]byte, gnet.Action) {
	s.stands.Add(0, 1)
	return nil, gnet.None
}

func (s *echoServer) OnTraffic(c gnet.Conn) gnet.Action {
	b, _ := c.Next(-1)
	// A message counts when its first octets come; parts of it are rare.
	s.handled.Add(uint64(c.Fd()), uint64((len(b)+s.size-1)/s.size))
	if _, err := c.Write(b); err != nil {
		return gnet.Close
	}
	return gnet.None
}

func loops(n int) int {
	if n == 0 {
		return runtime.GOMAXPROCS(0)
	}
	return n
}

func serveEcho(ctx context.Context, o bench.Options, in io.Reader, out io.Writer) error {
	// gnet does not say which port it took, so one is taken before it.
	l, err := listen()
	if err != nil {
		return err
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		return err
	}
	s := &echoServer{o: o, size: len(echoMessage(&o, bench.Plain)), boots: make(chan struct{})}
	served := make(chan error, 1)
	go func() {
		served <- gnet.Run(s, "tcp://"+addr, gnet.WithNumEventLoop(loops(o.ServerLoops)), gnet.WithReadBufferCap(readBuffer), gnet.WithTCPNoDelay(gnet.TCPNoDelay), gnet.WithLogger(noLog{}))
	}()
	select {
	case <-s.boots:
	case err := <-served:
		return err
	}
	handled := s.handled.Sum
	if o.Scenario == bench.Handshake || o.Scenario == bench.Idle {
		handled = s.stands.Sum
	}
	// The process ends now, and the loops with it: to stop them takes half a second.
	return bench.Control(ctx, in, out, bench.Hello{Addr: addr}, handled)
}

// noLog keeps gnet quiet.
type noLog struct{}

func (noLog) Debugf(string, ...any) {}
func (noLog) Infof(string, ...any)  {}
func (noLog) Warnf(string, ...any)  {}
func (noLog) Errorf(string, ...any) {}
func (noLog) Fatalf(string, ...any) {}

// echoMessage is as long as a frame of ours with the same message.
func echoMessage(o *bench.Options, m bench.Message) []byte {
	request := bridge.Message{
		Kind: bridge.KindRequest, Protocol: bridge.FirstExperimental, Content: bridge.ContentProto,
		Corr: make([]byte, 9), Method: []byte(bench.MethodEcho), HasLabel: true, Foreign: o.Message(m),
	}
	b, err := request.Append(make([]byte, wire.HeaderLen), nil)
	if err != nil {
		panic(err) // it is always the same
	}
	return append(b, make([]byte, wire.TagLen)...)
}

// echoTarget is the client: gnet's loops too, and the least that can be done on
// them.
type echoTarget struct {
	gnet.BuiltinEventEngine
	o      bench.Options
	addr   string
	sent   [2][]byte
	client *gnet.Client
	conns  closers
}

func reachEcho(o bench.Options, hello bench.Hello) (bench.Target, error) {
	t := &echoTarget{o: o, addr: hello.Addr, sent: [2][]byte{echoMessage(&o, bench.Plain), echoMessage(&o, bench.Large)}}
	var err error
	t.client, err = gnet.NewClient(t, gnet.WithNumEventLoop(loops(o.ClientLoops)), gnet.WithReadBufferCap(readBuffer), gnet.WithTCPNoDelay(gnet.TCPNoDelay), gnet.WithLogger(noLog{}))
	if err != nil {
		return nil, err
	}
	return t, t.client.Start()
}

func (t *echoTarget) Dial(ctx context.Context) (bench.Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", t.addr)
	if err != nil {
		return nil, err
	}
	c := &echoConn{t: t, over: make(chan struct{})}
	c.c, err = t.client.EnrollContext(nc, c)
	if err != nil {
		return nil, err
	}
	t.conns.add(c)
	return c, nil
}

func (t *echoTarget) Close() error { return errors.Join(t.conns.close(), t.client.Stop()) }

// OnOpen is called on the connection's loop.
func (t *echoTarget) OnOpen(gc gnet.Conn) ([]byte, gnet.Action) {
	c := gc.Context().(*echoConn)
	c.c = gc
	return nil, gnet.None
}

var errEchoClosed = errors.New("peers: the connection is closed")

func (t *echoTarget) OnClose(gc gnet.Conn, _ error) gnet.Action {
	c := gc.Context().(*echoConn)
	c.mu.Lock()
	left := c.waiting
	c.waiting, c.closed = nil, true
	c.mu.Unlock()
	for _, p := range left[c.head:] {
		p.done(errEchoClosed)
	}
	close(c.over)
	return gnet.None
}

// OnTraffic takes the echoes and writes what they led to in one go.
func (t *echoTarget) OnTraffic(gc gnet.Conn) gnet.Action {
	c := gc.Context().(*echoConn)
	in, _ := gc.Next(-1)
	c.inLoop.Store(true)
	for len(in) > 0 {
		c.mu.Lock()
		p := c.waiting[c.head]
		c.mu.Unlock()
		if len(c.part) > 0 || len(in) < len(p.sent) {
			n := min(len(p.sent)-len(c.part), len(in))
			c.part = append(c.part, in[:n]...)
			in = in[n:]
			if len(c.part) < len(p.sent) {
				break
			}
			c.answered(p, c.part)
			c.part = c.part[:0]
			continue
		}
		c.answered(p, in[:len(p.sent)])
		in = in[len(p.sent):]
	}
	c.inLoop.Store(false)
	return c.flush(gc)
}

// echoConn is one connection. Echoes come in the order of the requests.
type echoConn struct {
	t    *echoTarget
	c    gnet.Conn
	over chan struct{}
	part []byte // of an echo that came in pieces

	mu      sync.Mutex
	waiting []*echoPlace // from head on
	head    int
	out     []byte
	closed  bool
	inLoop  atomic.Bool // the loop looks at out before it leaves
	woken   atomic.Bool
	spare   []byte
}

// echoPlace is a place for one request.
type echoPlace struct {
	c    *echoConn
	sent []byte
	done func(error)
}

func (c *echoConn) answered(p *echoPlace, echo []byte) {
	c.mu.Lock()
	c.head++
	if c.head > 64 && 2*c.head > len(c.waiting) {
		c.waiting = c.waiting[:copy(c.waiting, c.waiting[c.head:])]
		c.head = 0
	}
	c.mu.Unlock()
	if !bytes.Equal(echo, p.sent) {
		p.done(fmt.Errorf("%w: an echo of %d octets", errReply, len(echo)))
		return
	}
	p.done(nil)
}

// start queues the request, and wakes the loop unless it is about to look.
func (p *echoPlace) start() error {
	c := p.c
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return errEchoClosed
	}
	c.waiting = append(c.waiting, p)
	c.out = append(c.out, p.sent...)
	c.mu.Unlock()
	if !c.inLoop.Load() && c.woken.CompareAndSwap(false, true) {
		return c.c.EventLoop().Execute(context.Background(), c)
	}
	return nil
}

// Run runs on the loop: others have queued something.
func (c *echoConn) Run(context.Context) error {
	c.woken.Store(false)
	if !c.isClosed() {
		c.flush(c.c)
	}
	return nil
}

func (c *echoConn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

func (c *echoConn) flush(gc gnet.Conn) gnet.Action {
	c.mu.Lock()
	out := c.out
	c.out = c.spare[:0]
	c.mu.Unlock()
	c.spare = out
	if len(out) == 0 {
		return gnet.None
	}
	if _, err := gc.Write(out); err != nil {
		return gnet.Close
	}
	return gnet.None
}

func (c *echoConn) Place(m bench.Message, done func(error)) func() error {
	return (&echoPlace{c, c.t.sent[m], done}).start
}

// calls wait for their echoes.
var calls = sync.Pool{New: func() any {
	c := &echoCall{ended: make(chan error, 1)}
	c.done = func(err error) { c.ended <- err }
	return c
}}

type echoCall struct {
	echoPlace
	ended chan error
}

func (c *echoConn) Call(ctx context.Context, m bench.Message) error {
	p := calls.Get().(*echoCall)
	p.c, p.sent = c, c.t.sent[m]
	if err := p.start(); err != nil {
		return err
	}
	select {
	case err := <-p.ended:
		calls.Put(p)
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *echoConn) Close() error {
	c.t.conns.remove(c)
	if err := c.c.EventLoop().Execute(context.Background(), closing{c}); err != nil {
		return err
	}
	<-c.over
	return nil
}

// closing ends a connection on its loop.
type closing struct{ c *echoConn }

func (x closing) Run(context.Context) error {
	if x.c.isClosed() {
		return nil
	}
	return x.c.c.Close()
}
