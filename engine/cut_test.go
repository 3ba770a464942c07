package engine_test

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine"
)

// cutter passes on what goes between a dialler and addr, up to limit octets in the
// given direction, and then resets or closes both.
func cutter(t *testing.T, addr string, fromServer bool, limit int64, reset bool) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = ln.Close(); wg.Wait() })
	wg.Go(func() {
		down, err := ln.Accept()
		if err != nil {
			return
		}
		up, err := net.Dial("tcp", addr)
		if err != nil {
			_ = down.Close()
			return
		}
		end := func() {
			if reset {
				_ = down.(*net.TCPConn).SetLinger(0)
				_ = up.(*net.TCPConn).SetLinger(0)
			}
			_ = down.Close()
			_ = up.Close()
		}
		from, to := down, up
		if fromServer {
			from, to = up, down
		}
		wg.Go(func() { _, _ = io.Copy(from, to) })
		_, _ = io.CopyN(to, from, limit)
		end()
	})
	return ln.Addr().String()
}

// A connection that is lost at any point of its handshake, or just behind it, leaves
// nothing: the dial fails or its association ends, the server forgets it, and the next
// one works.
func TestConnectionLostWithinTheHandshake(t *testing.T) {
	overBoth(t, func(t *testing.T, tr engine.Transport) {
		srv := newEngine(t, engine.Config{Transport: tr})
		cli := newEngine(t, engine.Config{Transport: tr})
		addr := listen(t, srv)
		pin := engine.DialOptions{Peer: identity.Pin(srv.Identity())}
		failed, ended := 0, 0
		const step = 251 // through the hellos; each message has more
		for _, fromServer := range []bool{false, true} {
			for limit := int64(0); limit < 4096; limit += step {
				a, err := cli.Dial(t.Context(), cutter(t, addr, fromServer, limit, limit%2 == 1), pin)
				if err != nil {
					failed++
					continue
				}
				// It stands for the client; it ends with HELLO at the latest, or by its own CLOSE.
				a.Close(0, "")
				select {
				case <-a.Done():
				case <-time.After(30 * time.Second):
					t.Fatalf("cut after %d octets, from the server %v: the association stands", limit, fromServer)
				}
				if !errors.Is(a.Err(), engine.ErrClosed) {
					t.Errorf("%v", a.Err())
				}
				ended++
			}
		}
		if failed < 10 || ended == 0 {
			t.Errorf("%d dials failed, %d associations ended: not every part was cut", failed, ended)
		}
		a, err := cli.Dial(t.Context(), addr, pin)
		if err != nil {
			t.Fatal(err)
		}
		a.Close(0, "")
		<-a.Done()
		for late := time.After(30 * time.Second); ; {
			open := 0
			srv.Associations(func(*engine.Association) bool { open++; return true })
			if open == 0 && srv.Stats().PendingHandshakes == 0 {
				break
			}
			select {
			case <-late:
				t.Fatalf("the server has %d associations, %d handshakes", open, srv.Stats().PendingHandshakes)
			case <-time.After(5 * time.Millisecond):
			}
		}
		t.Logf("%d dials failed, %d associations ended", failed, ended)
	})
}
