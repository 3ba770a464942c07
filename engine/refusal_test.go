package engine_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/crypto/handshake"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
)

func newIdentity(t *testing.T) *identity.Key {
	t.Helper()
	k, err := identity.Generate(profiles.Ed25519, nil)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Whatever a server does not like about a handshake, its peer sees the end of the
// connection and not one octet about which check failed.
func TestRefusedHandshakesLookAlike(t *testing.T) { overBoth(t, testRefusedHandshakesLookAlike) }

func testRefusedHandshakesLookAlike(t *testing.T, tr engine.Transport) {
	known, stranger := newIdentity(t), newIdentity(t)
	srv := newEngine(t, engine.Config{Transport: tr, Peers: identity.Pin(known.Public())})
	addr := listen(t, srv)
	flip := func(at int) func([]byte) []byte {
		return func(b []byte) []byte { b[(at+len(b))%len(b)] ^= 1; return b }
	}
	type edit = func([]byte) []byte
	same := func(b []byte) []byte { return b }
	for name, tc := range map[string]struct {
		key         *identity.Key
		hello, auth edit
	}{
		"checksum":         {known, flip(0), nil},
		"reserved octets":  {known, flip(wire.HeaderLen - 1), nil},
		"another channel":  {known, func(b []byte) []byte { return resealed(b, wire.ChannelBridge) }, nil},
		"profile unknown":  {known, flip(wire.HeaderLen + 4), nil},
		"share truncated":  {known, func(b []byte) []byte { return cutPayload(b, 1) }, nil},
		"bad ML-KEM share": {known, func(b []byte) []byte { return overwrite(b, 0xff, 1216, 64) }, nil},
		"low order share":  {known, func(b []byte) []byte { return overwrite(b, 0, 32, 32) }, nil},
		"AUTH tag":         {known, same, flip(-1)},
		"AUTH sequence":    {known, same, func(b []byte) []byte { return resequenced(b, 1) }},
		"key not allowed":  {stranger, same, same},
	} {
		var nc net.Conn
		var err error
		if nc, err = net.Dial("tcp", addr); err != nil {
			t.Fatal(err)
		}
		if tr != engine.TransportTCP {
			nc = tls.Client(nc, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"n-pamp/2"}, MinVersion: tls.VersionTLS13})
		}
		defer nc.Close()
		_ = nc.SetDeadline(time.Now().Add(10 * time.Second))
		m, err := handshake.NewClient(handshake.Config{Identity: tc.key, VerifyPeer: identity.Pin(srv.Identity())})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Wipe()
		if _, err := nc.Write(tc.hello(m.AppendOutput(nil))); err != nil {
			t.Fatal(err)
		}
		if tc.auth != nil {
			for range 2 { // SERVER_HELLO, SERVER_AUTH
				if err := m.HandleFrame(readWhole(t, nc)); err != nil {
					t.Fatal(name, err)
				}
			}
			if _, err := nc.Write(tc.auth(m.AppendOutput(nil))); err != nil {
				t.Fatal(err)
			}
		}
		got, err := io.ReadAll(nc)
		if len(got) > 0 || errors.Is(err, os.ErrDeadlineExceeded) || err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %d octets, %v", name, len(got), err)
		}
	}
	if n := srv.Stats().HandshakesCompleted; n != 0 {
		t.Errorf("%d handshakes were completed", n)
	}
}

func readWhole(t *testing.T, r io.Reader) wire.Frame {
	t.Helper()
	b := make([]byte, wire.HeaderLen)
	if _, err := io.ReadFull(r, b); err != nil {
		t.Fatal(err)
	}
	h, err := wire.ParseHeader(b, handshake.MaxFrameLen)
	if err != nil {
		t.Fatal(err)
	}
	b = append(b, make([]byte, h.PayloadLen())...)
	if _, err := io.ReadFull(r, b[wire.HeaderLen:]); err != nil {
		t.Fatal(err)
	}
	f, _, err := wire.ParseFrame(b, handshake.MaxFrameLen)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// resealed is the frame on another channel, under a right checksum.
func resealed(b []byte, ch wire.Channel) []byte {
	h := wire.Header(bytes.Clone(b[:wire.HeaderLen]))
	wire.PutHeader(b, h.Flags(), h.Type(), ch, h.Seq(), h.PayloadLen())
	return b
}

// resequenced is the frame with another sequence number, under a right checksum.
func resequenced(b []byte, seq wire.Seq) []byte {
	h := wire.Header(bytes.Clone(b[:wire.HeaderLen]))
	wire.PutHeader(b, h.Flags(), h.Type(), h.Channel(), seq, h.PayloadLen())
	return b
}

// cutPayload takes n octets off the end of a frame and says so in its header.
func cutPayload(b []byte, n int) []byte {
	h := wire.Header(bytes.Clone(b[:wire.HeaderLen]))
	wire.PutHeader(b, h.Flags(), h.Type(), h.Channel(), h.Seq(), h.PayloadLen()-n)
	return b[:len(b)-n]
}

// overwrite fills n octets of a frame, from so many before its end.
func overwrite(b []byte, with byte, before, n int) []byte {
	at := len(b) - before
	for i := range n {
		b[at+i] = with
	}
	return b
}

// The zero Config is safe: TLS, a key of its own, and nobody from elsewhere
// (TestD12_WithoutARuleOnlyLoopbackIsAccepted).
func TestZeroConfigIsSafe(t *testing.T) {
	a, b := newEngine(t, engine.Config{}), newEngine(t, engine.Config{})
	if a.Identity().IsZero() || a.Identity().Equal(b.Identity()) {
		t.Error("two engines without an identity have the same")
	}
	addr := listen(t, a)
	x, err := b.Dial(t.Context(), addr, engine.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !x.PeerKey().Equal(a.Identity()) {
		t.Error("the peer's key is not the listener's")
	}
	raw := newEngine(t, engine.Config{Transport: engine.TransportTCP})
	if _, err := raw.Dial(t.Context(), addr, engine.DialOptions{}); err == nil {
		t.Error("an association without TLS")
	}
}
