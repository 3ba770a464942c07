package loop

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"
)

// A server that was given no certificate has one for whoever comes.
func TestSelfSigned_Ed25519AndForOthersECDSA(t *testing.T) {
	get, err := SelfSigned()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		schemes []tls.SignatureScheme
		ed      bool
	}{
		{[]tls.SignatureScheme{tls.ECDSAWithP256AndSHA256, tls.Ed25519}, true},
		{[]tls.SignatureScheme{tls.ECDSAWithP256AndSHA256, tls.PSSWithSHA256, tls.PKCS1WithSHA256}, false},
	} {
		hello := &tls.ClientHelloInfo{SignatureSchemes: tc.schemes, SupportedVersions: []uint16{tls.VersionTLS13}}
		cert, err := get(hello)
		if err != nil {
			t.Fatal(err)
		}
		if err := hello.SupportsCertificate(cert); err != nil {
			t.Errorf("%v: %v", tc.schemes, err)
		}
		if _, ok := cert.PrivateKey.(ed25519.PrivateKey); ok != tc.ed {
			t.Errorf("%v: a key of type %T", tc.schemes, cert.PrivateKey)
		}
		if _, ok := cert.PrivateKey.(*ecdsa.PrivateKey); ok == tc.ed {
			t.Errorf("%v: a key of type %T", tc.schemes, cert.PrivateKey)
		}
	}
}

// Whatever classical key exchange a peer's TLS knows, we have one in common: we
// listen with both, and offer the one that all have to know.
func TestCurves_CommonWithEveryPeer(t *testing.T) {
	get, err := SelfSigned()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		client, server []tls.CurveID // nil: crypto/tls's own
		want           tls.CurveID
	}{
		{DialCurves, ListenCurves, tls.CurveP256},
		{DialCurves, nil, tls.CurveP256},
		{nil, ListenCurves, tls.X25519},
		{[]tls.CurveID{tls.X25519}, ListenCurves, tls.X25519},
		{[]tls.CurveID{tls.CurveP256}, ListenCurves, tls.CurveP256},
	} {
		a, b := net.Pipe()
		got := make(chan tls.CurveID, 1)
		go func() {
			c := tls.Client(b, TLSConfig(nil, tc.client))
			_ = c.Handshake() // its failure is the server's
			got <- c.ConnectionState().CurveID
		}()
		cfg := TLSConfig(nil, tc.server)
		cfg.GetCertificate = get
		if err := tls.Server(a, cfg).Handshake(); err != nil {
			t.Errorf("%v with %v: %v", tc.client, tc.server, err)
		}
		if id := <-got; id != tc.want {
			t.Errorf("%v with %v: %v", tc.client, tc.server, id)
		}
		a.Close()
		b.Close()
	}
}

// script is a connection that gives what it is told in given pieces and notes
// what is written.
type script struct {
	net.Conn
	reads  [][]byte
	writes [][]byte
}

func (s *script) Read(p []byte) (int, error) {
	if len(s.reads) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.reads[0])
	if s.reads[0] = s.reads[0][n:]; len(s.reads[0]) == 0 {
		s.reads = s.reads[1:]
	}
	return n, nil
}

func (s *script) Write(p []byte) (int, error) {
	s.writes = append(s.writes, bytes.Clone(p))
	return len(p), nil
}

// What a client says last in the TLS handshake leaves with what comes after it;
// what is waited for leaves before the wait.
func TestCarrier_KeepsTheLastFlight(t *testing.T) {
	nc := &script{reads: [][]byte{[]byte("answer")}}
	c := &carrier{nc: nc, g: &gate{}, hold: true}
	say := func(s string) {
		t.Helper()
		if n, err := c.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatal(n, err)
		}
	}
	say("hello")
	if len(nc.writes) != 0 {
		t.Errorf("wrote %q at once", nc.writes)
	}
	b := make([]byte, 100)
	if n, err := c.Read(b); string(b[:n]) != "answer" || err != nil {
		t.Fatalf("%q, %v", b[:n], err)
	}
	say("last ")
	say("words, ")
	c.hold, c.over = false, true
	say("and more")
	say("later")
	if err := c.flush(); err != nil {
		t.Fatal(err)
	}
	if got := bytes.Join(nc.writes, []byte("|")); string(got) != "hello|last words, and more|later" {
		t.Errorf("wrote %q", got)
	}
}

// Octets that were read ahead reach whoever reads next, in any sizes, and what
// nobody took is given out at the end.
func TestCarrier_LosesNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p := newProcessors(1)
	g := &gate{p: p, ctx: ctx, deadline: time.Now().Add(time.Minute)}
	want := bytes.Repeat([]byte("0123456789"), 1000)
	for size := 1; size < len(want); size = size*3 + 1 {
		nc := &script{reads: [][]byte{bytes.Clone(want[:7000]), bytes.Clone(want[7000:])}}
		c := newCarrier(nc, g, true)
		var got []byte
		b := make([]byte, size)
		for len(got) < 2000 {
			n, err := c.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, b[:n]...)
		}
		if size%2 == 0 {
			c.over = true
			n, err := c.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, b[:n]...)
		}
		got = append(got, c.release()...)
		for _, r := range nc.reads {
			got = append(got, r...)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("in reads of %d: %d octets of %d, or others", size, len(got), len(want))
		}
	}
	// A processor is held, and not while it waits.
	if err := g.acquire(); err != nil {
		t.Fatal(err)
	}
	free := -1
	c := newCarrier(readerConn{r: func([]byte) (int, error) { free = p.free; return 0, io.EOF }}, g, true)
	defer c.release()
	if _, err := c.Read(make([]byte, 1)); err != io.EOF || free != 1 || p.free != 0 || !g.held {
		t.Errorf("%v; %d free while it waited, %d afterwards", err, free, p.free)
	}
}

type readerConn struct {
	net.Conn
	r func([]byte) (int, error)
}

func (r readerConn) Read(p []byte) (int, error) { return r.r(p) }
