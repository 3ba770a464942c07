package loop

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
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
	"slices"
	"time"

	"github.com/trestle-npamp/trestle/crypto/tlsrecord"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/buf"
)

// ALPN is the protocol name that TLS must negotiate (D12).
const ALPN = "n-pamp/2"

// ErrALPN says that the peer's TLS does not speak N-PAMP.
var ErrALPN = errors.New("loop: the peer did not negotiate ALPN " + ALPN)

// Key exchanges of the outer TLS unless configured. They are classical on purpose:
// the N-PAMP handshake inside makes the post-quantum exchange, and what crosses
// the link before it is public.
var (
	// ListenCurves are what a listener takes.
	ListenCurves = []tls.CurveID{tls.X25519, tls.CurveP256}
	// DialCurves is what a dialler offers: P-256, which every implementation of TLS
	// 1.3 has to know (RFC 8446 section 9.1) and which costs both sides a quarter
	// less than X25519 in crypto/tls. That prefers X25519 whenever both sides know
	// it, whatever the order here.
	DialCurves = []tls.CurveID{tls.CurveP256}
)

// TLSConfig is the TLS 1.3 configuration of one role. cert is nil for clients, and
// for servers that set GetCertificate.
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

// SelfSigned are the certificates of a server that was given none, as a
// GetCertificate: one with Ed25519, which signs and verifies at the least cost,
// and for peers that don't know that one with ECDSA and P-256, which all of them
// must.
func SelfSigned() (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ed, err := selfSigned(edKey)
	if err != nil {
		return nil, err
	}
	ec, err := selfSigned(ecKey)
	if err != nil {
		return nil, err
	}
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if slices.Contains(hello.SignatureSchemes, tls.Ed25519) {
			return ed, nil
		}
		return ec, nil
	}, nil
}

func selfSigned(key crypto.Signer) (*tls.Certificate, error) {
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
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// recordLayer stands between an association and its socket. It belongs to the
// loop once the connection is enrolled.
type recordLayer interface {
	// attach gives it the loop whose buffers it may use.
	attach(l *eventLoop)
	// room is how many octets it wants in front of a batch, to seal it in place.
	room() int
	// open takes what arrived, in records of any split, and feeds a with what they
	// hold. in is borrowed until it returns. io.EOF tells that the peer ended its
	// sending in order; any other error ends the connection.
	open(a *assoc.Association, in []byte) error
	// seal makes records of batch[room():], and puts before them what the layer
	// has to say itself (an alert, a KeyUpdate). The result is valid until the next
	// seal on the same loop.
	seal(batch []byte) ([]byte, error)
	// close appends close_notify, once.
	close(dst []byte) []byte
	// rest gives back what can be made again.
	rest()
	// release wipes the keys.
	release()
}

// secured is a connection whose TLS handshake is complete. The N-PAMP handshake
// runs over it; then the loop gets its record layer.
type secured interface {
	io.ReadWriter
	// detach leaves the socket. It returns the record layer and what was read and
	// not taken.
	detach() (recordLayer, []byte)
	// abandon says close_notify, as far as that goes without waiting long, and
	// wipes what there is.
	abandon()
}

// secure runs the TLS handshake over nc.
func secure(g *gate, nc net.Conn, sec Security) (secured, error) {
	b := newCarrier(nc, g, sec.Server)
	s := &switchConn{Conn: nc, b: b, rw: b}
	var hand *tlsrecord.Handover
	cfg, base := sec.Config, net.Conn(s)
	if !sec.Standard && tlsrecord.Available() == nil {
		if sec.Server {
			hand = tlsrecord.NewServerHandover(cfg, s)
		} else {
			hand = tlsrecord.NewClientHandover(cfg, s)
		}
		cfg, base = hand.Config(), handedConn{s, hand}
	} else {
		s.rw = struct {
			io.Reader
			io.Writer
		}{tlsrecord.NewRecordReader(b), b}
	}
	var tc *tls.Conn
	if sec.Server {
		tc = tls.Server(base, cfg)
	} else {
		tc = tls.Client(base, cfg)
	}
	err := g.do(tc.Handshake)
	b.hold, b.over = false, true
	if err == nil && tc.ConnectionState().NegotiatedProtocol != ALPN {
		err = ErrALPN
	} else if err != nil {
		err = fmt.Errorf("loop: TLS handshake: %w", err)
	}
	if err != nil {
		_ = b.flush() // an alert
		b.release()
		if hand != nil {
			hand.Abandon()
		}
		return nil, err
	}
	if hand != nil {
		c, err := hand.Take(tc, tlsrecord.Config{Budget: sec.Budget, AESGCM: sec.AESGCM})
		if err == nil {
			return &ownSecured{tlsrecord.NewStream(c, b), c, b}, nil
		}
		// Something in this process keeps the secrets from us (a debugging
		// setting, say): crypto/tls goes on as if it had never been asked.
	}
	return &stdRecords{conn: tc, s: s}, nil
}

// carrier is the socket while a TLS handshake runs over it, with fewer system
// calls: it reads ahead of records, and it keeps what a client says last in the
// handshake, to send it with the CLIENT_HELLO. It holds no processor while it
// waits.
type carrier struct {
	nc net.Conn
	g  *gate

	in   *buf.Buf // read ahead
	read int      // of in.B, taken
	out  []byte   // kept
	hold bool     // keep what is written until the next Read
	over bool     // TLS is: whoever reads now has a buffer
}

func newCarrier(nc net.Conn, g *gate, server bool) *carrier {
	return &carrier{nc: nc, g: g, in: buf.Get(firstRead), hold: !server}
}

// Read implements io.Reader.
func (c *carrier) Read(p []byte) (int, error) {
	if err := c.flush(); err != nil {
		return 0, err
	}
	if c.over && c.in != nil && c.read == len(c.in.B) {
		c.release()
	}
	if c.in == nil {
		return c.wait(p)
	}
	if c.read == len(c.in.B) {
		n, err := c.wait(c.in.B[:cap(c.in.B)])
		c.in.B, c.read = c.in.B[:n], 0
		if n == 0 {
			return 0, err
		} // an error that came with octets comes again
	}
	n := copy(p, c.in.B[c.read:])
	c.read += n
	return n, nil
}

func (c *carrier) wait(p []byte) (int, error) {
	if !c.g.held {
		return c.nc.Read(p)
	}
	c.g.release()
	n, err := c.nc.Read(p)
	if e := c.g.acquire(); e != nil {
		return 0, e
	}
	return n, err
}

// Write implements io.Writer.
func (c *carrier) Write(p []byte) (int, error) {
	if !c.hold && len(c.out) == 0 {
		return c.nc.Write(p)
	}
	c.out = append(c.out, p...)
	if !c.hold {
		if err := c.flush(); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func (c *carrier) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	_, err := c.nc.Write(c.out)
	c.out = nil
	return err
}

// release ends the carrier and gives what was read ahead and not taken.
func (c *carrier) release() (rest []byte) {
	if c.in != nil {
		rest = append(rest, c.in.B[c.read:]...)
		c.in.Release()
		c.in = nil
	}
	return rest
}

// handedConn is what crypto/tls sees while a Handover listens.
type handedConn struct {
	*switchConn
	h *tlsrecord.Handover
}

func (c handedConn) Read(p []byte) (int, error)  { return c.h.Read(p) }
func (c handedConn) Write(p []byte) (int, error) { return c.h.Write(p) }

// ownSecured runs our own records over the socket until the loop takes over.
type ownSecured struct {
	*tlsrecord.Stream
	c *tlsrecord.Conn
	b *carrier
}

func (o *ownSecured) detach() (recordLayer, []byte) {
	early := o.Release()
	return &ownRecords{o.c, o.b.release()}, early
}

func (o *ownSecured) abandon() {
	_ = o.CloseWrite()
	o.Release()
	o.b.release()
	o.c.Wipe()
}

// ownRecords is the record layer of crypto/tlsrecord: records are opened where
// they were read, and a batch is sealed where it lies.
type ownRecords struct {
	c     *tlsrecord.Conn
	ahead []byte // read by the handshake, and the first to be opened
}

func (r *ownRecords) attach(*eventLoop) {}
func (r *ownRecords) room() int         { return tlsrecord.HeaderLen }

func (r *ownRecords) open(a *assoc.Association, in []byte) error {
	if len(r.ahead) > 0 {
		in, r.ahead = append(r.ahead, in...), nil
	}
	r.c.HandleBytes(in)
	for {
		plain, ok, err := r.c.Poll()
		if !ok {
			r.c.Settle()
			return err
		}
		a.Feed(plain)
	}
}

func (r *ownRecords) seal(batch []byte) ([]byte, error) {
	if len(batch) == tlsrecord.HeaderLen {
		return r.c.AppendOutput(batch[:0]), nil
	}
	out, err := r.c.SealBatch(batch, 0)
	if err != nil {
		out = r.c.AppendOutput(batch[:0])
	}
	return out, err
}

func (r *ownRecords) close(dst []byte) []byte { return r.c.AppendCloseNotify(dst) }
func (r *ownRecords) rest()                   { r.c.Idle() }
func (r *ownRecords) release()                { r.c.Wipe() }

// switchConn is what crypto/tls runs over: the socket while the handshake lasts,
// and memory from then on. From the socket it never reads beyond a record, so
// nothing of the loop's is left in crypto/tls's buffers at the switch.
type switchConn struct {
	net.Conn
	b  *carrier      // of the socket
	rw io.ReadWriter // the same, cut into records

	memory bool
	in     []byte // borrowed
	out    []byte
}

// Read implements net.Conn.
func (s *switchConn) Read(p []byte) (int, error) {
	if !s.memory {
		return s.rw.Read(p)
	}
	if len(s.in) == 0 {
		return 0, errWouldBlock
	}
	n := copy(p, s.in)
	s.in = s.in[n:]
	return n, nil
}

// Write implements net.Conn.
func (s *switchConn) Write(p []byte) (int, error) {
	if !s.memory {
		return s.rw.Write(p)
	}
	s.out = append(s.out, p...)
	return len(p), nil
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

// stdRecords is the record layer of crypto/tls itself, driven over memory: the
// fallback, and what ours is compared with.
type stdRecords struct {
	conn  *tls.Conn
	s     *switchConn
	l     *eventLoop
	ahead []byte // read by the handshake, and the first to be opened
}

func (r *stdRecords) Read(p []byte) (int, error)  { return r.conn.Read(p) }
func (r *stdRecords) Write(p []byte) (int, error) { return r.conn.Write(p) }

func (r *stdRecords) detach() (recordLayer, []byte) {
	r.ahead = r.s.b.release()
	r.s.memory = true
	r.s.Conn, r.s.rw, r.s.b = nil, nil, nil
	return r, nil
}

func (r *stdRecords) abandon() {
	_ = r.conn.CloseWrite()
	r.s.b.release()
}
func (r *stdRecords) release()            {}
func (r *stdRecords) rest()               {}
func (r *stdRecords) room() int           { return 0 }
func (r *stdRecords) attach(l *eventLoop) { r.l = l }

// plainStep is how much room is made at a time: a whole record.
const plainStep = 16 << 10

func (r *stdRecords) open(a *assoc.Association, in []byte) error {
	plain, err := r.appendPlain(r.l.plain[:0], in)
	r.l.plain = keep(r.l.plain, plain)
	if len(plain) > 0 {
		a.Feed(plain)
	}
	return err
}

// appendPlain appends what the records in in hold.
func (r *stdRecords) appendPlain(dst, in []byte) ([]byte, error) {
	if len(r.ahead) > 0 {
		in, r.ahead = append(r.ahead, in...), nil
	}
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

func (r *stdRecords) seal(batch []byte) ([]byte, error) {
	r.s.out = append(r.l.sealed[:0], r.s.out...)
	var err error
	if len(batch) > 0 {
		_, err = r.conn.Write(batch)
	}
	out := r.s.out
	r.s.out = nil
	r.l.sealed = keep(r.l.sealed, out)
	return out, err
}

func (r *stdRecords) close(dst []byte) []byte {
	r.s.out = append(dst, r.s.out...)
	_ = r.conn.CloseWrite() // fails only before the handshake
	dst, r.s.out = r.s.out, nil
	return dst
}
