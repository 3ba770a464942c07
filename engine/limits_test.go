package engine_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/crypto/handshake"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/engine/conn"
	"github.com/trestle-npamp/trestle/engine/loop"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// D28's numbers for what the engine and its loops hold.
func TestD28_EngineDefaults(t *testing.T) {
	for name, c := range map[string][2]any{
		"handshake":          {loop.DefaultHandshakeTimeout, 5 * time.Second},
		"pending handshakes": {loop.DefaultPending, 8192},
		"budget":             {engine.DefaultBudget, 1 << 30},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: %v, want %v", name, c[0], c[1])
		}
	}
}

// linked gives an association of two engines that differ from the default by
// what edit does to both.
func linked(t *testing.T, edit func(*engine.Config)) (a *engine.Association, cli, srv *engine.Engine) {
	t.Helper()
	cfg := func(reply bool) engine.Config {
		c := engine.Config{Channels: []engine.ChannelHandler{&echo{reply: reply}}}
		edit(&c)
		return c
	}
	srv, cli = newEngine(t, cfg(true)), newEngine(t, cfg(false))
	a, err := cli.Dial(t.Context(), listen(t, srv), engine.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waitHello(t, a)
	return a, cli, srv
}

// At Limits.Associations neither side starts another.
func TestLimit_Associations(t *testing.T) {
	srv := newEngine(t, engine.Config{Limits: engine.Limits{Associations: 2}})
	cli := newEngine(t, engine.Config{Limits: engine.Limits{Associations: 3}})
	addr := listen(t, srv)
	for range 2 {
		a, err := cli.Dial(t.Context(), addr, engine.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		waitHello(t, a)
	}
	if _, err := cli.Dial(t.Context(), addr, engine.DialOptions{}); err == nil {
		t.Error("a third association with a server that takes two")
	}
	if n := srv.Stats().AssociationsRefused; n != 1 {
		t.Errorf("counted %d refusals", n)
	}
	other := listen(t, newEngine(t, engine.Config{}))
	if _, err := cli.Dial(t.Context(), other, engine.DialOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := cli.Dial(t.Context(), other, engine.DialOptions{}); !errors.Is(err, engine.ErrTooManyAssociations) {
		t.Errorf("a fourth on our side: %v", err)
	}
}

// Handshakes that are under way together do not pass Limits.Associations either.
func TestLimit_AssociationsOfSimultaneousHandshakes(t *testing.T) {
	const limit, clients = 2, 5
	srv := newEngine(t, engine.Config{Transport: engine.TransportTCP, Limits: engine.Limits{Associations: limit}})
	addr := listen(t, srv)
	key, err := identity.Generate(profiles.Ed25519, nil)
	if err != nil {
		t.Fatal(err)
	}
	finish := make([]func(), clients)
	conns := make([]net.Conn, clients)
	for i := range finish {
		m, err := handshake.NewClient(handshake.Config{Identity: key, VerifyPeer: identity.Pin(srv.Identity())})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Wipe)
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		_ = nc.SetDeadline(time.Now().Add(20 * time.Second))
		conns[i] = nc
		if _, err := nc.Write(m.AppendOutput(nil)); err != nil {
			t.Fatal(err)
		}
		for !m.Done() {
			if err := m.HandleFrame(readFrame(t, nc)); err != nil {
				t.Fatal(err)
			}
		}
		// The server has admitted this one; only CLIENT_AUTH is missing.
		finish[i] = func() { _, _ = nc.Write(m.AppendOutput(nil)) }
	}
	for _, f := range finish {
		f()
	}
	stand := 0
	for _, nc := range conns {
		// The server's HELLO, or the end of what it refuses.
		if n, _ := nc.Read(make([]byte, 1)); n == 1 {
			stand++
		}
	}
	if st := srv.Stats(); stand != limit || st.Associations != limit || st.AssociationsRefused != clients-limit {
		t.Errorf("%d associations stand; counted %d, %d refused", stand, st.Associations, st.AssociationsRefused)
	}
}

// readFrame reads one frame and not an octet more.
func readFrame(t *testing.T, r io.Reader) wire.Frame {
	t.Helper()
	b := make([]byte, wire.HeaderLen)
	if _, err := io.ReadFull(r, b); err != nil {
		t.Fatal(err)
	}
	h, err := wire.ParseHeader(b, 0)
	if err != nil {
		t.Fatal(err)
	}
	b = append(b, make([]byte, h.PayloadLen())...)
	if _, err := io.ReadFull(r, b[wire.HeaderLen:]); err != nil {
		t.Fatal(err)
	}
	f, _, err := wire.ParseFrame(b, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Limits.Budget bounds what all queues hold: a send beyond it is refused or ends
// with its context.
func TestLimit_Budget(t *testing.T) {
	a, cli, _ := linked(t, func(c *engine.Config) { c.Limits.Budget = 64 << 10 })
	b := conn1MiB()
	if err := a.Send(t.Context(), wire.ChannelMemory, echoType, b); !errors.Is(err, engine.ErrTooLarge) {
		t.Errorf("a megabyte in a budget of 64 KiB: %v", err)
	}
	if n := cli.Stats().WouldBlock; n == 0 {
		t.Error("the refusal is not counted")
	}
}

func conn1MiB() []byte { return bytes.Repeat([]byte{1}, 1<<20-100) }

// Limits.MaxFrame and Limits.Credit are told in HELLO, and what the peer may send
// follows from them.
func TestLimit_FrameAndCredit(t *testing.T) {
	a, _, _ := linked(t, func(c *engine.Config) { c.Limits.MaxFrame, c.Limits.Credit = 2<<20, 3<<20 })
	h := a.PeerHello()
	if h.MaxMessage != 2<<20 || h.Credit != 3<<20 {
		t.Errorf("HELLO says frames of %d and credit of %d", h.MaxMessage, h.Credit)
	}
	if n := a.MaxSend(); n != 2<<20-wire.HeaderLen-wire.TagLen {
		t.Errorf("frames of %d octets of plaintext", n)
	}
	if err := a.Send(t.Context(), wire.ChannelMemory, echoType, make([]byte, a.MaxSend()+1)); !errors.Is(err, engine.ErrTooLarge) {
		t.Errorf("one octet more: %v", err)
	}
}

// Keys and roots change within Limits.Keys, Ratchet and Rekem, and on demand,
// over real sockets, while both sides send.
func TestLimit_KeysRatchetRekem(t *testing.T) {
	overBoth(t, func(t *testing.T, tr engine.Transport) {
		a, cli, srv := linked(t, func(c *engine.Config) {
			c.Transport = tr
			c.Limits.Keys = profiles.Bounds{Frames: 16}
			c.Limits.Ratchet = profiles.Bounds{Frames: 50}
			c.Limits.Rekem = 20 * time.Millisecond
		})
		for range 200 {
			if err := a.Send(t.Context(), wire.ChannelMemory, echoType, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		for name, f := range map[string]func() error{
			"UpdateKey": func() error { return a.UpdateKey(t.Context(), wire.ChannelMemory) },
			"Ratchet":   func() error { return a.Ratchet(t.Context()) },
			"Rekem":     func() error { return a.Rekem(t.Context()) },
		} {
			// By itself it may have come just before, or cross one of the peer's.
			if err := f(); err != nil && !errors.Is(err, engine.ErrRate) && !errors.Is(err, engine.ErrRekemCrossed) {
				t.Errorf("%s: %v", name, err)
			}
		}
		nptest.Eventually(t, func() bool {
			_ = a.Send(t.Context(), wire.ChannelMemory, echoType, []byte("x"))
			c, s := cli.Stats(), srv.Stats()
			return c.KeyUpdatesOut > 0 && s.KeyUpdatesOut > 0 && c.RatchetsOut > 0 && s.RatchetsOut > 0 && c.RekemsOut > 0 && s.RekemsOut > 0
		}, func() any { return []any{cli.Stats(), srv.Stats(), a.Err()} })
		if err := a.Err(); err != nil {
			t.Error(err)
		}
	})
}

// Limits.PingInterval: an idle association is probed and stays; turned off it is
// left alone.
func TestLimit_PingInterval(t *testing.T) {
	a, cli, _ := linked(t, func(c *engine.Config) { c.Limits.PingInterval = 200 * time.Millisecond })
	nptest.Eventually(t, func() bool { return cli.Stats().PingsOut >= 3 }, func() any { return cli.Stats() })
	if a.Err() != nil {
		t.Error(a.Err())
	}
}

// Limits.HelloWait: a peer that sends no HELLO is taken for one without in time.
func TestLimit_HelloWait(t *testing.T) {
	srv := newEngine(t, engine.Config{NoHello: true})
	cli := newEngine(t, engine.Config{Limits: engine.Limits{HelloWait: 50 * time.Millisecond}})
	a, err := cli.Dial(t.Context(), listen(t, srv), engine.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := wire.DefaultFrameLen - wire.HeaderLen - wire.TagLen
	nptest.Eventually(t, func() bool { return a.MaxSend() == want }, func() any { return a.MaxSend() })
}

// Why an association ended reaches the one who holds it, on both sides.
func TestCloseReasonReachesBothSides(t *testing.T) {
	a, _, srv := linked(t, func(*engine.Config) {})
	var peer *engine.Association
	srv.Associations(func(p *engine.Association) bool { peer = p; return false })
	a.Close(control.CodePolicy, "not today")
	<-a.Done()
	<-peer.Done()
	var ours, theirs *engine.CloseError
	if !errors.As(a.Err(), &ours) || ours.Remote || ours.Code != control.CodePolicy {
		t.Errorf("our side: %v", a.Err())
	}
	if !errors.As(peer.Err(), &theirs) || !theirs.Remote || theirs.Code != control.CodePolicy || theirs.Text != "not today" {
		t.Errorf("the peer: %v", peer.Err())
	}
	if !errors.Is(a.Err(), conn.ErrClosed) {
		t.Error("no ErrClosed")
	}
}
