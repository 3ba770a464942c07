package engine_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/engine/conn"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

func TestMain(m *testing.M) { nptest.VerifyNoLeaks(m) }

const echoType wire.FrameType = 0x0120

// echo serves Memory: it sends back what comes, and hands it to got if that is
// set.
type echo struct {
	reply  bool
	closed func(error)
	got    func(a *engine.Association, p []byte)
}

func (e *echo) Channel() wire.Channel                           { return wire.ChannelMemory }
func (e *echo) Attach(a *engine.Association) engine.ChannelConn { return &echoConn{e, a} }

type echoConn struct {
	e *echo
	a *engine.Association
}

func (c *echoConn) HandleFrame(t wire.FrameType, p []byte) {
	if c.e.got != nil {
		c.e.got(c.a, p)
	}
	if !c.e.reply {
		return
	}
	b, err := c.a.Begin(wire.ChannelMemory, t, len(p))
	if err == nil {
		err = c.a.End(append(b, p...))
	}
	if err != nil {
		c.a.Logger().Error("echo", "error", err)
	}
}
func (c *echoConn) HandleHello(*control.Hello) {}
func (c *echoConn) HandleRoom()                {}
func (c *echoConn) HandleDrain()               {}
func (c *echoConn) Busy() int                  { return 0 }
func (c *echoConn) HandleClose(err error) {
	if c.e.closed != nil {
		c.e.closed(err)
	}
}

// standardTLS is a "transport" of the tests: TLS whose records crypto/tls makes.
const standardTLS engine.Transport = 100

// overBoth runs a test over TLS, with both record layers, and over raw TCP.
func overBoth(t *testing.T, f func(*testing.T, engine.Transport)) {
	for _, tr := range []engine.Transport{engine.TransportTLS, standardTLS, engine.TransportTCP} {
		t.Run(tr.String(), func(t *testing.T) { f(t, tr) })
	}
}

func newEngine(t *testing.T, cfg engine.Config) *engine.Engine {
	t.Helper()
	if cfg.Transport == standardTLS {
		cfg.Transport, cfg.StandardTLS = engine.TransportTLS, true
	}
	e, err := engine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := e.Shutdown(ctx); err != nil {
			t.Error("shutdown:", err)
		}
	})
	return e
}

func listen(t *testing.T, e *engine.Engine) string {
	t.Helper()
	l, err := e.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}

func TestEchoOverLoopback(t *testing.T) { overBoth(t, testEchoOverLoopback) }

func testEchoOverLoopback(t *testing.T, tr engine.Transport) {
	srv := newEngine(t, engine.Config{Transport: tr, Channels: []engine.ChannelHandler{&echo{reply: true}}})
	addr := listen(t, srv)

	got := make(chan []byte, 1)
	cli := newEngine(t, engine.Config{
		Transport: tr,
		Channels:  []engine.ChannelHandler{&echo{got: func(_ *engine.Association, p []byte) { got <- bytes.Clone(p) }}},
	})
	a, err := cli.Dial(t.Context(), addr, engine.DialOptions{Peer: identity.Pin(srv.Identity())})
	if err != nil {
		t.Fatal(err)
	}
	waitHello(t, a)
	for _, n := range []int{0, 1, 511, 4096, 300_000, 4<<20 - 100} {
		want := bytes.Repeat([]byte{byte(n)}, n)
		if err := a.Send(t.Context(), wire.ChannelMemory, echoType, want); err != nil {
			t.Fatalf("%d octets: %v", n, err)
		}
		select {
		case b := <-got:
			if !bytes.Equal(b, want) {
				t.Fatalf("%d octets came back as %d others", n, len(b))
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%d octets: no echo", n)
		}
	}
	if a.PeerKey() != srv.Identity() {
		t.Error("wrong peer key")
	}
	a.Close(0, "")
	<-a.Done()
	if err := a.Err(); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("ended with %v", err)
	}
}

func waitHello(t *testing.T, a *engine.Association) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := a.WaitHello(ctx); err != nil {
		t.Fatal("no HELLO from the peer:", err)
	}
}

// spoken is a handler that carries foreign protocols.
type spoken struct {
	echo
	ids []uint8
}

func (s *spoken) Protocols() []uint8 { return s.ids }

// HELLO names the protocols that the handlers carry, unless others are configured.
func TestHelloNamesTheHandlersProtocols(t *testing.T) {
	for _, tc := range []struct {
		configured, want []uint8
	}{{nil, []uint8{2, 0x10}}, {[]uint8{3}, []uint8{3}}, {[]uint8{}, nil}} {
		srv := newEngine(t, engine.Config{Protocols: tc.configured, Channels: []engine.ChannelHandler{&spoken{ids: []uint8{2, 0x10}}}})
		a, err := newEngine(t, engine.Config{Channels: []engine.ChannelHandler{&echo{}}}).Dial(t.Context(), listen(t, srv), engine.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		waitHello(t, a)
		if got := a.PeerHello().Protocols; !bytes.Equal(got, tc.want) {
			t.Errorf("configured %v: HELLO names %v, want %v", tc.configured, got, tc.want)
		}
	}
}

func TestPinnedKeyRefused(t *testing.T) {
	srv := newEngine(t, engine.Config{})
	addr := listen(t, srv)
	cli := newEngine(t, engine.Config{})
	other, err := identity.Generate(profiles.Ed25519, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = cli.Dial(t.Context(), addr, engine.DialOptions{Peer: identity.Pin(other.Public())})
	if !errors.Is(err, engine.ErrPeerNotAllowed) {
		t.Fatalf("dialled a peer with another key: %v", err)
	}
}

func TestRawTCPRefusedBeyondLoopback(t *testing.T) {
	e := newEngine(t, engine.Config{Transport: engine.TransportTCP})
	if _, err := e.Listen(t.Context(), "0.0.0.0:0"); !errors.Is(err, engine.ErrRawRemote) {
		t.Fatalf("listening on all addresses: %v", err)
	}
}

// A peer that says nothing is cut off at the handshake deadline, and its
// goroutine ends.
func TestHandshakeDeadline(t *testing.T) { overBoth(t, testHandshakeDeadline) }

func testHandshakeDeadline(t *testing.T, tr engine.Transport) {
	e := newEngine(t, engine.Config{Transport: tr, Limits: engine.Limits{HandshakeTimeout: 50 * time.Millisecond}})
	nc, err := net.Dial("tcp", listen(t, e))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_ = nc.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := nc.Read(make([]byte, 1)); err == nil {
		t.Fatal("octets from a server that was told nothing")
	}
	if n := e.Stats().HandshakesFailed; n != 1 {
		t.Errorf("%d handshakes failed, want 1", n)
	}
}

// When all places for handshakes are taken, one that stalls makes room.
func TestHandshakeEviction(t *testing.T) { overBoth(t, testHandshakeEviction) }

func testHandshakeEviction(t *testing.T, tr engine.Transport) {
	srv := newEngine(t, engine.Config{Transport: tr, Limits: engine.Limits{PendingHandshakes: 4}})
	addr := listen(t, srv)
	for range 8 {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
	}
	cli := newEngine(t, engine.Config{Transport: tr})
	if _, err := cli.Dial(t.Context(), addr, engine.DialOptions{}); err != nil {
		t.Fatalf("honest peer behind stalled ones: %v", err)
	}
	if n := srv.Stats().HandshakesEvicted; n < 4 {
		t.Errorf("%d evicted, want at least 4", n)
	}
}

// Concurrent senders: every frame arrives once, and those of one sender in order.
func TestSendFromManyGoroutines(t *testing.T) { overBoth(t, testSendFromManyGoroutines) }

func testSendFromManyGoroutines(t *testing.T, tr engine.Transport) {
	const senders, each = 8, 500
	var mu sync.Mutex
	last := map[byte]int{}
	done := make(chan struct{})
	n := 0
	srv := newEngine(t, engine.Config{Transport: tr, Channels: []engine.ChannelHandler{&echo{got: func(_ *engine.Association, p []byte) {
		mu.Lock()
		defer mu.Unlock()
		if i := int(p[1])<<8 | int(p[2]); i != last[p[0]] {
			t.Errorf("sender %d: frame %d where %d was due", p[0], i, last[p[0]])
		} else {
			last[p[0]]++
		}
		if n++; n == senders*each {
			close(done)
		}
	}}}})
	cli := newEngine(t, engine.Config{Transport: tr, Channels: []engine.ChannelHandler{&echo{}}})
	a, err := cli.Dial(t.Context(), listen(t, srv), engine.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waitHello(t, a)
	for s := range senders {
		go func() {
			for i := range each {
				if err := a.Send(t.Context(), wire.ChannelMemory, echoType, []byte{byte(s), byte(i >> 8), byte(i)}); err != nil {
					t.Error(err)
					return
				}
			}
		}()
	}
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("frames were lost")
	}
}

// Shutdown says CLOSE with the reason, and leaves nothing behind.
func TestShutdownTellsPeers(t *testing.T) { overBoth(t, testShutdownTellsPeers) }

func testShutdownTellsPeers(t *testing.T, tr engine.Transport) {
	srv := newEngine(t, engine.Config{Transport: tr})
	cli := newEngine(t, engine.Config{Transport: tr})
	a, err := cli.Dial(t.Context(), listen(t, srv), engine.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waitHello(t, a)
	if err := srv.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-a.Done()
	var ce *engine.CloseError
	if !errors.As(a.Err(), &ce) || !ce.Remote || ce.Code != control.CodeShutdown {
		t.Fatalf("ended with %v", a.Err())
	}
	if _, err := srv.Listen(t.Context(), "127.0.0.1:0"); !errors.Is(err, engine.ErrShutdown) {
		t.Errorf("listened after shutdown: %v", err)
	}
}

// A peer that reads late gets everything, through sockets that fill up in
// between: the queue waits for the write notification.
func TestSlowReaderGetsEverything(t *testing.T) { overBoth(t, testSlowReaderGetsEverything) }

func testSlowReaderGetsEverything(t *testing.T, tr engine.Transport) {
	const frames, size = 300, 64 << 10
	srv := newEngine(t, engine.Config{
		Transport: tr,
		Channels:  []engine.ChannelHandler{&echo{reply: true}},
		Limits:    engine.Limits{Outbound: 2 * frames * size}, // the echo drops what is refused
	})
	gate := make(chan struct{})
	var once sync.Once
	got := make(chan int, frames)
	cli := newEngine(t, engine.Config{
		Transport: tr,
		Channels: []engine.ChannelHandler{&echo{got: func(_ *engine.Association, p []byte) {
			// The client's loop stands still until the server's side is full.
			once.Do(func() { <-gate })
			got <- len(p)
		}}},
	})
	a, err := cli.Dial(t.Context(), listen(t, srv), engine.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waitHello(t, a)
	sent := make(chan error, 1)
	go func() {
		var err error
		for range frames {
			if err = a.Send(t.Context(), wire.ChannelMemory, echoType, make([]byte, size)); err != nil {
				break
			}
		}
		sent <- err
	}()
	time.AfterFunc(300*time.Millisecond, func() { close(gate) })
	for i := range frames {
		select {
		case n := <-got:
			if n != size {
				t.Fatalf("frame of %d octets", n)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%d of %d frames arrived; server %+v, client %+v", i, frames, srv.Stats(), cli.Stats())
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// A process of thousands of short associations leaves nothing behind.
func TestManyAssociationsComeAndGo(t *testing.T) { overBoth(t, testManyAssociationsComeAndGo) }

func testManyAssociationsComeAndGo(t *testing.T, tr engine.Transport) {
	srv := newEngine(t, engine.Config{Transport: tr, Channels: []engine.ChannelHandler{&echo{reply: true}}})
	addr := listen(t, srv)
	cli := newEngine(t, engine.Config{Transport: tr, Channels: []engine.ChannelHandler{&echo{}}})
	for i := range 60 {
		a, err := cli.Dial(t.Context(), addr, engine.DialOptions{})
		if err != nil {
			t.Fatal(i, err)
		}
		a.Close(0, "")
		<-a.Done()
	}
	nptest.Eventually(t, func() bool {
		s, c := srv.Stats(), cli.Stats()
		return s.Associations == 0 && c.Associations == 0 && s.Held == 0 && c.Held == 0
	}, func() any { return []engine.Stats{srv.Stats(), cli.Stats()} })
}

// Whoever walks the associations may meet one whose channels are being attached.
func TestChannelConnWhileAttaching(t *testing.T) {
	h := &echo{}
	srv := newEngine(t, engine.Config{Transport: engine.TransportTCP, Channels: []engine.ChannelHandler{h}})
	cli := newEngine(t, engine.Config{Transport: engine.TransportTCP})
	addr := listen(t, srv)
	var stop atomic.Bool
	var walker sync.WaitGroup
	seen := 0
	walker.Go(func() {
		for !stop.Load() {
			for a := range srv.Associations {
				if c, ok := a.ChannelConn(wire.ChannelMemory).(*echoConn); ok {
					seen++
					if c.e != h || c.a != a {
						t.Error("half an attached channel")
					}
				}
			}
		}
	})
	for range 50 {
		a, err := cli.Dial(t.Context(), addr, engine.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		waitHello(t, a)
	}
	nptest.Eventually(t, func() bool { return srv.Stats().Associations == 50 }, func() any { return srv.Stats() })
	stop.Store(true)
	walker.Wait()
	if seen == 0 {
		t.Error("no association was met with its channel")
	}
}

// proxy carries one connection and lets edit see what the client sends.
func proxy(t *testing.T, to string, edit func(n int, b []byte) (out []byte, more bool)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	wg.Add(1)
	go func() {
		defer wg.Done()
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		s, err := net.Dial("tcp", to)
		if err != nil {
			t.Error(err)
			return
		}
		defer s.Close()
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, _ = io.Copy(c, s)
			c.Close()
		}()
		b := make([]byte, 64<<10)
		for total := 0; ; {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			out, more := edit(total, b[:n])
			total += n
			if _, err := s.Write(out); err != nil || !more {
				return
			}
		}
	}()
	return ln.Addr().String()
}

// A link that is cut in the middle of a record is a truncation on both sides,
// and one that is tampered with ends with an error: never a clean end, and the
// server lives on.
func TestCutAndTamperedLinks(t *testing.T) { overBoth(t, cutAndTampered) }

func cutAndTampered(t *testing.T, tr engine.Transport) {
	ended := make(chan error, 4)
	srv := newEngine(t, engine.Config{Transport: tr, Channels: []engine.ChannelHandler{&echo{reply: true, closed: func(err error) { ended <- err }}}})
	addr := listen(t, srv)
	var on atomic.Bool
	for name, edit := range map[string]func(int, []byte) ([]byte, bool){
		"cut": func(_ int, b []byte) ([]byte, bool) {
			if on.Load() {
				return b[:len(b)/2], false
			}
			return b, true
		},
		"tampered": func(_ int, b []byte) ([]byte, bool) {
			if on.Load() {
				b[len(b)-1] ^= 1
			}
			return b, true
		},
		"garbage": func(_ int, b []byte) ([]byte, bool) {
			if on.Load() {
				return append([]byte{22, 3, 1, 0, 4, 0, 0, 0, 0}, b...), true
			}
			return b, true
		},
	} {
		on.Store(false)
		cli := newEngine(t, engine.Config{Transport: tr, Channels: []engine.ChannelHandler{&echo{}}})
		a, err := cli.Dial(t.Context(), proxy(t, addr, edit), engine.DialOptions{Peer: identity.Pin(srv.Identity())})
		if err != nil {
			t.Fatal(name, err)
		}
		waitHello(t, a)
		on.Store(true)
		// Something else on the way may have met the cut before this.
		if err := a.Send(t.Context(), wire.ChannelMemory, echoType, make([]byte, 1000)); err != nil && !errors.Is(err, engine.ErrClosed) {
			t.Fatal(name, err)
		}
		var ce *engine.CloseError
		select {
		case err := <-ended:
			if !errors.As(err, &ce) || ce.Cause == nil {
				t.Errorf("%s: the server's side ended with %v, want a cause", name, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the server's side lives on", name)
		}
		select {
		case <-a.Done():
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the client's side lives on", name)
		}
	}
	cli := newEngine(t, engine.Config{Transport: tr})
	if _, err := cli.Dial(t.Context(), addr, engine.DialOptions{}); err != nil {
		t.Errorf("after all that: %v", err)
	}
}

// A peer that leaves without CLOSE is a truncation; that its end of file came as
// an error of the socket is nobody's business.
func TestPlainEndOfFile(t *testing.T) {
	ended := make(chan error, 1)
	srv := newEngine(t, engine.Config{Transport: engine.TransportTCP, Channels: []engine.ChannelHandler{&echo{closed: func(err error) { ended <- err }}}})
	cli := newEngine(t, engine.Config{Transport: engine.TransportTCP, Channels: []engine.ChannelHandler{&echo{}}})
	var on atomic.Bool
	cut := func(_ int, b []byte) ([]byte, bool) { return b, !on.Load() }
	a, err := cli.Dial(t.Context(), proxy(t, listen(t, srv), cut), engine.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waitHello(t, a)
	for a := range srv.Associations {
		waitHello(t, a) // nothing is on its way when the link ends: a reset would be another end
	}
	on.Store(true)
	if err := a.Send(t.Context(), wire.ChannelMemory, echoType, []byte("last")); err != nil {
		t.Fatal(err)
	}
	for side, end := range map[string]func() error{
		"client": func() error { <-a.Done(); return a.Err() },
		"server": func() error { return <-ended },
	} {
		var ce *engine.CloseError
		if err := end(); !errors.As(err, &ce) || !ce.Remote || ce.Cause != conn.ErrTruncated {
			t.Errorf("%s: ended with %v", side, err)
		}
	}
}

// A server that refuses what a client offers says nothing but a connection that
// ends, which is an error with a name.
func TestRefusedOfferIsNamed(t *testing.T) { overBoth(t, testRefusedOfferIsNamed) }

func testRefusedOfferIsNamed(t *testing.T, tr engine.Transport) {
	srv := newEngine(t, engine.Config{Transport: tr, Suites: []profiles.Suite{profiles.AES256GCM}})
	cli := newEngine(t, engine.Config{Transport: tr, Suites: []profiles.Suite{profiles.ChaCha20Poly1305}})
	if _, err := cli.Dial(t.Context(), listen(t, srv), engine.DialOptions{}); !errors.Is(err, engine.ErrHandshakeCut) {
		t.Errorf("no suite in common: %v", err)
	}
}

// Transports do not mix: each side gets an error, not a hang.
func TestTransportsDoNotMix(t *testing.T) {
	for _, tr := range []engine.Transport{engine.TransportTLS, engine.TransportTCP} {
		srv := newEngine(t, engine.Config{Transport: tr, Limits: engine.Limits{HandshakeTimeout: 300 * time.Millisecond}})
		cli := newEngine(t, engine.Config{Transport: engine.TransportTLS + engine.TransportTCP - tr, Limits: engine.Limits{HandshakeTimeout: 300 * time.Millisecond}})
		if _, err := cli.Dial(t.Context(), listen(t, srv), engine.DialOptions{}); err == nil {
			t.Errorf("a server on %v took the other transport", tr)
		}
	}
}

// A client whose key the server does not accept learns what may be the matter.
func TestRefusedKeyIsNamed(t *testing.T) { overBoth(t, refusedKeyIsNamed) }

func refusedKeyIsNamed(t *testing.T, tr engine.Transport) {
	srv := newEngine(t, engine.Config{Transport: tr, Peers: identity.AllowList(identity.NewSet())})
	cli := newEngine(t, engine.Config{Transport: tr})
	a, err := cli.Dial(t.Context(), listen(t, srv), engine.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = a.WaitHello(t.Context())
	if !errors.Is(err, engine.ErrClosed) || !errors.Is(err, conn.ErrNotAccepted) || strings.Contains(err.Error(), "\n") {
		t.Errorf("ended with %q", err)
	}
}

// 0.0.0.0 is every IPv4 address and no IPv6 one.
func TestListenOnIPv4Only(t *testing.T) {
	e := newEngine(t, engine.Config{})
	l, err := e.Listen(t.Context(), "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	if ip := l.Addr().(*net.TCPAddr).IP; ip.To4() == nil {
		t.Errorf("listens on %v", l.Addr())
	}
}

// Shutdown ends a dial whose peer says nothing; it does not wait for it.
func TestShutdownEndsDials(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // accepts by its backlog and is silent
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	e := newEngine(t, engine.Config{Limits: engine.Limits{HandshakeTimeout: time.Minute}})
	dialled := make(chan error, 1)
	go func() {
		_, err := e.Dial(t.Context(), ln.Addr().String(), engine.DialOptions{})
		dialled <- err
	}()
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	start := time.Now()
	if err := e.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-dialled; err == nil {
		t.Error("dialled a silent peer")
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("took %v", d)
	}
}
