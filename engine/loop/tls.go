package loop

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"time"
)

// ALPN is the protocol name that TLS must negotiate (D12).
const ALPN = "n-pamp/2"

// ErrALPN says that the peer's TLS does not speak N-PAMP.
var ErrALPN = errors.New("loop: the peer did not negotiate ALPN " + ALPN)

// DefaultCurves are the key exchanges of the outer TLS. It is classical on
// purpose: the N-PAMP handshake inside makes the post-quantum exchange, and what
// crosses the link before it is public.
var DefaultCurves = []tls.CurveID{tls.X25519, tls.CurveP256}

// TLSConfig is the TLS 1.3 configuration of one role. cert is nil for clients.
//
// The certificate is not verified: a peer's N-PAMP key is its identity, and the
// association inside is authenticated by it (D12).
func TLSConfig(cert *tls.Certificate, curves []tls.CurveID) *tls.Config {
	c := &tls.Config{
		MinVersion:       tls.VersionTLS13,
		NextProtos:       []string{ALPN},
		CurvePreferences: curves,
		// Batches leave as full records from the first one on.
		DynamicRecordSizingDisabled: true,
		// No tickets: nothing here resumes, and a ticket would be a write of the
		// handshake's that the loop's record layer does not know of.
		SessionTicketsDisabled: true,
		InsecureSkipVerify:     true, //nolint:gosec // see above
	}
	if cert != nil {
		c.Certificates = []tls.Certificate{*cert}
	}
	return c
}

// SelfSigned makes a certificate for a server that was given none.
func SelfSigned() (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	tmpl := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "N-PAMP"},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.AddDate(10, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// recordLayer stands between an association and its socket. It belongs to the
// loop once the connection is enrolled.
type recordLayer interface {
	// open takes what arrived, in records of any split, and appends the plaintext
	// to dst. in is borrowed until it returns. io.EOF tells that the peer ended
	// its sending in order; any other error ends the connection. What open wants
	// to say itself (an alert, a KeyUpdate) comes out of the next seal.
	open(dst, in []byte) ([]byte, error)
	// seal appends records that hold plain, and what the layer has to say before
	// them.
	seal(dst, plain []byte) ([]byte, error)
	// close appends close_notify.
	close(dst []byte) []byte
}

// gate is held while a handshake computes and let go while it waits for octets.
type gate struct {
	ctx  context.Context
	cpu  chan struct{}
	held bool
}

func (g *gate) acquire() error {
	select {
	case g.cpu <- struct{}{}:
		g.held = true
		return nil
	case <-g.ctx.Done():
		return g.ctx.Err()
	}
}

func (g *gate) release() {
	g.held = false
	<-g.cpu
}

// do runs f while holding the gate.
func (g *gate) do(f func() error) error {
	if err := g.acquire(); err != nil {
		return err
	}
	defer func() {
		if g.held {
			g.release()
		}
	}()
	return f()
}

// read is nc.Read without the gate.
func (g *gate) read(nc net.Conn, p []byte) (int, error) {
	if !g.held {
		return nc.Read(p)
	}
	g.release()
	n, err := nc.Read(p)
	if e := g.acquire(); e != nil && err == nil {
		err = e
	}
	return n, err
}

// switchConn is what crypto/tls runs over: the socket while the handshake lasts,
// and memory from then on. From the socket it never reads beyond a record, so
// nothing of the loop's is left in crypto/tls's buffers at the switch.
type switchConn struct {
	net.Conn
	gate *gate

	head [recordHeader]byte
	got  int // octets of head read
	left int // octets of the current record's body still to read

	memory bool
	in     []byte // borrowed
	out    []byte
}

const recordHeader = 5

// Read implements net.Conn.
func (s *switchConn) Read(p []byte) (int, error) {
	if s.memory {
		if len(s.in) == 0 {
			return 0, errWouldBlock
		}
		n := copy(p, s.in)
		s.in = s.in[n:]
		return n, nil
	}
	limit := s.left
	if limit == 0 {
		limit = recordHeader - s.got
	}
	n, err := s.gate.read(s.Conn, p[:min(len(p), limit)])
	if s.left > 0 {
		s.left -= n
		return n, err
	}
	s.got += copy(s.head[s.got:], p[:n])
	if s.got == recordHeader {
		s.left, s.got = int(s.head[3])<<8|int(s.head[4]), 0
	}
	return n, err
}

// Write implements net.Conn.
func (s *switchConn) Write(p []byte) (int, error) {
	if s.memory {
		s.out = append(s.out, p...)
		return len(p), nil
	}
	return s.Conn.Write(p)
}

// SetWriteDeadline implements net.Conn: crypto/tls sets one around its last
// alert, and memory never blocks.
func (s *switchConn) SetWriteDeadline(t time.Time) error {
	if s.memory {
		return nil
	}
	return s.Conn.SetWriteDeadline(t)
}

// wouldBlock is what an empty memory answers: crypto/tls goes on after a
// temporary error as if the Read had not happened.
type wouldBlock struct{}

func (wouldBlock) Error() string   { return "loop: no record yet" }
func (wouldBlock) Timeout() bool   { return false }
func (wouldBlock) Temporary() bool { return true }

var errWouldBlock net.Error = wouldBlock{}

// stdRecords is the record layer of crypto/tls itself, driven over memory.
type stdRecords struct {
	conn *tls.Conn
	s    *switchConn
}

// secure runs the TLS handshake over nc.
func secure(g *gate, nc net.Conn, cfg *tls.Config, server bool) (*stdRecords, error) {
	s := &switchConn{Conn: nc, gate: g}
	r := &stdRecords{s: s}
	if server {
		r.conn = tls.Server(s, cfg)
	} else {
		r.conn = tls.Client(s, cfg)
	}
	if err := g.do(r.conn.Handshake); err != nil {
		return nil, fmt.Errorf("loop: TLS handshake: %w", err)
	}
	if p := r.conn.ConnectionState().NegotiatedProtocol; p != ALPN {
		return nil, ErrALPN
	}
	return r, nil
}

// detach leaves the socket: from now on records come from and go to memory.
func (r *stdRecords) detach() {
	r.s.memory = true
	r.s.Conn, r.s.gate = nil, nil
}

// plainStep is how much room open makes at a time: a whole record.
const plainStep = 16 << 10

func (r *stdRecords) open(dst, in []byte) ([]byte, error) {
	r.s.in = in
	defer func() { r.s.in = nil }()
	for {
		if cap(dst)-len(dst) < plainStep {
			dst = append(make([]byte, 0, 2*cap(dst)+plainStep), dst...)
		}
		n, err := r.conn.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		switch {
		case err == nil:
		case errors.Is(err, errWouldBlock):
			return dst, nil
		case errors.Is(err, io.EOF):
			return dst, io.EOF
		default:
			return dst, err
		}
	}
}

func (r *stdRecords) seal(dst, plain []byte) ([]byte, error) {
	pending := r.s.out
	r.s.out = append(dst, pending...)
	var err error
	if len(plain) > 0 {
		_, err = r.conn.Write(plain)
	}
	dst, r.s.out = r.s.out, nil
	return dst, err
}

func (r *stdRecords) close(dst []byte) []byte {
	r.s.out = append(dst, r.s.out...)
	_ = r.conn.CloseWrite() // fails only before the handshake
	dst, r.s.out = r.s.out, nil
	return dst
}
