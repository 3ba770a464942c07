package tlsrecord

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/trestle-npamp/trestle/internal/buf"
)

// Errors of Handover.Take. The tls.Conn is untouched and can still be used.
var (
	// ErrHandshake says that the handshake is not complete, or not TLS 1.3's.
	ErrHandshake = errors.New("tlsrecord: no completed TLS 1.3 handshake")
	// ErrNoSecrets says that the handshake was not made with the Handover's
	// configuration and connection, or that these served more than one.
	ErrNoSecrets = errors.New("tlsrecord: secrets of this handshake were not seen")
	// ErrUsed says that the tls.Conn was used after its handshake.
	ErrUsed = errors.New("tlsrecord: tls.Conn was used after its handshake")
	// ErrTaken is what crypto/tls gets from Read and Write after Take.
	ErrTaken = errors.New("tlsrecord: connection was taken over from crypto/tls")
)

// RecordReader cuts a reader into TLS records: no Read crosses the end of one, so
// that crypto/tls, which reads ahead what it can get, has nothing left over when
// its handshake is complete. A Read gives a part of one header or of one body. It
// understands nothing but lengths.
type RecordReader struct {
	r    io.Reader
	head [HeaderLen]byte
	have int // octets of the header so far
	left int // octets of the body to come
}

// NewRecordReader returns a RecordReader at the beginning of a record.
func NewRecordReader(r io.Reader) *RecordReader { return &RecordReader{r: r} }

// Read reads to the end of the current header or body at most.
func (r *RecordReader) Read(p []byte) (int, error) {
	if r.left > 0 {
		n, err := r.r.Read(p[:min(len(p), r.left)])
		r.left -= n
		return n, err
	}
	n, err := r.r.Read(p[:min(len(p), HeaderLen-r.have)])
	r.have += copy(r.head[r.have:], p[:n])
	if r.have == HeaderLen {
		r.have, r.left = 0, int(binary.BigEndian.Uint16(r.head[3:]))
	}
	return n, err
}

// AtBoundary tells that everything read so far is whole records.
func (r *RecordReader) AtBoundary() bool { return r.have == 0 && r.left == 0 }

// Handover brings one connection from crypto/tls to a Conn. It stands between
// crypto/tls and the connection while the handshake runs:
//
//	h := NewServerHandover(config, nc)
//	tc := tls.Server(conn{nc, h}, h.Config()) // whose Read and Write are h's
//	err := tc.HandshakeContext(ctx)
//	c, err := h.Take(tc, Config{Budget: ...})
//
// After Take nc carries on with c, and tc is dropped. Whatever it is asked to do
// then, be it to close, would protect another record under a nonce that c uses too;
// so nothing of tc's reaches the connection any more. Its own copies of the secrets
// are the garbage collector's. If Take fails, or instead of it Abandon is called,
// tc goes on as if nothing had been.
//
// A Handover is good for one handshake. It is not safe for concurrent use, but
// what crypto/tls does while it shakes hands is in order.
type Handover struct {
	server bool
	config *tls.Config
	in     *RecordReader
	rw     io.ReadWriter
	keys   keyLog
	over   bool // no more of our business
	taken  bool // no more of crypto/tls's

	// What was written since the secrets were seen: how many protected records,
	// and the last of them.
	written int
	last    []byte
	broken  bool // not whole records
}

// NewClientHandover prepares a handshake as a client over rw; see Handover. config
// may be nil and is not changed.
func NewClientHandover(config *tls.Config, rw io.ReadWriter) *Handover {
	return newHandover(config, rw, false)
}

// NewServerHandover prepares a handshake as a server over rw; see Handover.
func NewServerHandover(config *tls.Config, rw io.ReadWriter) *Handover {
	return newHandover(config, rw, true)
}

func newHandover(config *tls.Config, rw io.ReadWriter, server bool) *Handover {
	h := &Handover{server: server, in: NewRecordReader(rw), rw: rw}
	h.config = h.prepare(config)
	return h
}

// prepare makes the one connection's configuration. A KeyLogWriter that was set
// is replaced: secrets go nowhere but here.
func (h *Handover) prepare(config *tls.Config) *tls.Config {
	if config == nil {
		config = &tls.Config{}
	}
	config = config.Clone()
	config.MinVersion = tls.VersionTLS13
	config.KeyLogWriter = &h.keys
	// A ticket of ours would be a record under the application key before Take,
	// and there is no resumption without crypto/tls to read tickets.
	config.SessionTicketsDisabled = true
	config.ClientSessionCache = nil
	if choose := config.GetConfigForClient; choose != nil {
		config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := choose(hello)
			if chosen != nil {
				chosen = h.prepare(chosen)
			}
			return chosen, err
		}
	}
	return config
}

// Config is the configuration to make the handshake with: a clone of the given
// one with TLS 1.3 only, without session tickets and resumption, and with our
// KeyLogWriter, also for what GetConfigForClient returns.
func (h *Handover) Config() *tls.Config { return h.config }

// Read reads from the connection for crypto/tls; see RecordReader.
func (h *Handover) Read(p []byte) (int, error) {
	if h.taken {
		return 0, ErrTaken
	}
	if h.over && h.in.AtBoundary() {
		return h.rw.Read(p)
	}
	return h.in.Read(p)
}

// Write writes to the connection for crypto/tls.
func (h *Handover) Write(p []byte) (int, error) {
	if h.taken {
		return 0, ErrTaken
	}
	if h.keys.complete() && !h.over {
		h.observe(p)
	}
	return h.rw.Write(p)
}

// observe looks at what crypto/tls writes, always whole records, and remembers
// the last protected one.
func (h *Handover) observe(p []byte) {
	for len(p) > 0 {
		if len(p) < HeaderLen || len(p) < HeaderLen+int(binary.BigEndian.Uint16(p[3:])) {
			h.broken = true
			return
		}
		n := HeaderLen + int(binary.BigEndian.Uint16(p[3:]))
		if p[0] == typeData {
			h.written++
			if n == len(p) {
				h.last = append(h.last[:0], p...)
			}
		}
		p = p[n:]
	}
}

// Take gives the Conn that goes on where tc's handshake has ended. Of cfg the
// suite, the role and the keys are filled in. The errors are ErrHandshake,
// ErrNoSecrets, ErrUsed and New's; whatever comes of it, the Handover's secrets
// are erased.
func (h *Handover) Take(tc *tls.Conn, cfg Config) (*Conn, error) {
	defer h.Abandon()
	st := tc.ConnectionState()
	switch {
	case !st.HandshakeComplete || st.Version != tls.VersionTLS13:
		return nil, ErrHandshake
	case !h.keys.complete() || h.over:
		return nil, ErrNoSecrets
	case h.broken || !h.in.AtBoundary():
		return nil, ErrUsed
	}
	cfg.Suite, cfg.Server = st.CipherSuite, h.server
	cfg.Read = Keys{Secret: h.keys.server.bytes()}
	cfg.Write = Keys{Secret: h.keys.client.bytes()}
	if h.server {
		cfg.Read, cfg.Write = cfg.Write, cfg.Read
	}
	c, err := New(cfg)
	if err != nil {
		return nil, err
	}
	n, err := h.sealed(c)
	if err != nil {
		c.Wipe()
		return nil, err
	}
	c.wr.seq = n
	c.wr.setNonce()
	h.taken = true
	return c, nil
}

// maxObserved is how many records may have been written since the secrets were
// seen: a certificate chain of a megabyte.
const maxObserved = 64

// sealed counts the records that crypto/tls has already protected under our
// application key. There are none when it sends no tickets; but a mistake about
// that would use a nonce twice, so it is not taken on trust. The last record of
// the handshake is under the handshake's key. If it isn't, it opens with one of
// the numbers that it can have under the application key.
//
// This is no trial decryption of what a peer sends: it is our own record, and a
// copy of it.
func (h *Handover) sealed(c *Conn) (uint64, error) {
	if h.written == 0 || len(h.last) == 0 {
		return 0, ErrNoSecrets // a Finished at least is written through us
	}
	if h.written > maxObserved {
		return 0, ErrUsed
	}
	w := half{aead: c.wr.aead, iv: c.wr.iv, nonce: c.wr.nonce}
	defer func() { buf.Wipe(w.nonce[:]) }()
	for ; w.seq < uint64(h.written); w.advance() {
		w.setNonce()
		body := bytes.Clone(h.last[HeaderLen:])
		if _, err := w.aead.Open(body[:0], w.nonce[:], body, h.last[:HeaderLen]); err == nil {
			return w.seq + 1, nil
		}
	}
	return 0, nil
}

// Abandon erases the Handover's secrets and leaves the connection to crypto/tls:
// from the next record on reads and writes pass through as they are.
func (h *Handover) Abandon() {
	h.over = true
	h.keys.client.wipe()
	h.keys.server.wipe()
	h.last = nil
}

// Format prints no secret, whatever the verb.
func (h *Handover) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, "tlsrecord.Handover(redacted)")
}

// keyLog is the KeyLogWriter of one handshake. crypto/tls calls its Write with a
// mutex held that all connections of the process share, so it does next to
// nothing: it keeps the two application secrets, in place, and gives nothing away.
type keyLog struct {
	client, server secret
}

type secret struct {
	n    int // octets, 0 before it was seen
	seen bool
	// again: a second handshake went through the same configuration, and nobody
	// can tell whose secret this is.
	again bool
	b     [maxSecret]byte
}

func (s *secret) bytes() []byte { return s.b[:s.n] }

func (s *secret) wipe() {
	buf.Wipe(s.b[:])
	s.n = 0
}

var (
	labelClient = []byte("CLIENT_TRAFFIC_SECRET_0 ")
	labelServer = []byte("SERVER_TRAFFIC_SECRET_0 ")
)

// Write takes one line of the format of NSS: a label, the client's random and the
// secret in hexadecimal.
func (k *keyLog) Write(line []byte) (int, error) {
	switch {
	case bytes.HasPrefix(line, labelClient):
		k.client.set(line)
	case bytes.HasPrefix(line, labelServer):
		k.server.set(line)
	}
	return len(line), nil
}

func (s *secret) set(line []byte) {
	if s.seen {
		s.again = true
		s.wipe()
		return
	}
	s.seen = true
	digits := bytes.TrimSuffix(line[bytes.LastIndexByte(line, ' ')+1:], []byte("\n"))
	if len(digits) > 2*maxSecret {
		return
	}
	if n, err := hex.Decode(s.b[:], digits); err == nil {
		s.n = n
	}
}

// Format prints no secret, whatever the verb: crypto/tls's configuration points
// here, and configurations get printed.
func (k *keyLog) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "tlsrecord.keyLog(redacted)") }

// complete tells that both secrets are there.
func (k *keyLog) complete() bool { return k.client.n > 0 && k.server.n > 0 }
