package tlsrecord

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
	_ "unsafe" // for linkname
)

// The order in which crypto/tls prefers the suites of TLS 1.3 can't be configured;
// both ends take it from here.
//
//go:linkname suitesWithAES crypto/tls.defaultCipherSuitesTLS13
var suitesWithAES []uint16

//go:linkname suitesWithoutAES crypto/tls.defaultCipherSuitesTLS13NoAES
var suitesWithoutAES []uint16

var suitesMutex sync.Mutex

// pipe is one direction of a connection in memory, without a bound.
type pipe struct {
	mu     sync.Mutex
	cond   *sync.Cond
	b      []byte
	closed bool
	// poll: a Read of nothing fails for the moment instead of waiting.
	poll bool
}

func newPipe() *pipe {
	p := &pipe{}
	p.cond = sync.NewCond(&p.mu)
	return p
}

// wouldBlock is the kind of error after which crypto/tls can be asked again.
type wouldBlock struct{}

func (wouldBlock) Error() string   { return "nothing there yet" }
func (wouldBlock) Timeout() bool   { return true }
func (wouldBlock) Temporary() bool { return true }

func (p *pipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.b) == 0 && !p.closed {
		if p.poll {
			return 0, wouldBlock{}
		}
		p.cond.Wait()
	}
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.b)
	p.b = p.b[n:]
	return n, nil
}

func (p *pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.b = append(p.b, b...)
	p.cond.Broadcast()
	return len(b), nil
}

func (p *pipe) set(poll, closed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.poll, p.closed = poll, closed
	p.cond.Broadcast()
}

// take is everything that was written and not read.
func (p *pipe) take() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.b
	p.b = nil
	return b
}

// end is one end of a connection in memory.
type end struct {
	in, out *pipe
}

func ends() (client, server *end) {
	a, b := newPipe(), newPipe()
	return &end{a, b}, &end{b, a}
}

func (e *end) Read(b []byte) (int, error)  { return e.in.Read(b) }
func (e *end) Write(b []byte) (int, error) { return e.out.Write(b) }
func (e *end) Close() error                { e.out.set(true, true); return nil }

func (e *end) LocalAddr() net.Addr              { return &net.UnixAddr{Name: "memory"} }
func (e *end) RemoteAddr() net.Addr             { return e.LocalAddr() }
func (e *end) SetDeadline(time.Time) error      { return nil }
func (e *end) SetReadDeadline(time.Time) error  { return nil }
func (e *end) SetWriteDeadline(time.Time) error { return nil }

// tapped is a connection whose reads and writes go through a Handover, as a
// driver makes it.
type tapped struct {
	net.Conn
	h *Handover
}

func (c tapped) Read(p []byte) (int, error)  { return c.h.Read(p) }
func (c tapped) Write(p []byte) (int, error) { return c.h.Write(p) }

var certificate = sync.OnceValue(func() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Unix(1<<33, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
})

func serverConfig() *tls.Config {
	return &tls.Config{
		Certificates:                []tls.Certificate{certificate()},
		CurvePreferences:            []tls.CurveID{tls.X25519},
		DynamicRecordSizingDisabled: true,
	}
}

func clientConfig() *tls.Config {
	return &tls.Config{
		InsecureSkipVerify:          true,
		CurvePreferences:            []tls.CurveID{tls.X25519},
		DynamicRecordSizingDisabled: true,
	}
}

// shake runs both sides' handshakes under the given suite.
func shake(t testing.TB, suite uint16, client, server *tls.Conn) {
	t.Helper()
	suitesMutex.Lock()
	defer suitesMutex.Unlock()
	with, without := suitesWithAES, suitesWithoutAES
	suitesWithAES, suitesWithoutAES = []uint16{suite}, []uint16{suite}
	defer func() { suitesWithAES, suitesWithoutAES = with, without }()
	done := make(chan error, 1)
	go func() { done <- server.Handshake() }()
	if err := client.Handshake(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := client.ConnectionState().CipherSuite; got != suite {
		t.Fatalf("suite %x", got)
	}
}

// rig is a machine of ours, taken over from crypto/tls, and a peer that stayed
// with it.
type rig struct {
	t    testing.TB
	c    *Conn
	line *end // our end
	peer *tls.Conn
	far  *end // the peer's end
	tc   *tls.Conn
	h    *Handover
}

// unshaken prepares a rig; changeOurs may alter the configuration that the
// handover made, changePeers the peer's.
func unshaken(t testing.TB, server bool, changeOurs, changePeers func(*tls.Config)) *rig {
	a, b := ends()
	r := &rig{t: t, line: a, far: b}
	peers := serverConfig()
	if server {
		r.line, r.far = b, a
		peers = clientConfig()
		r.h = NewServerHandover(serverConfig(), r.line)
	} else {
		r.h = NewClientHandover(clientConfig(), r.line)
	}
	if changeOurs != nil {
		changeOurs(r.h.Config())
	}
	if changePeers != nil {
		changePeers(peers)
	}
	nc := tapped{r.line, r.h}
	if server {
		r.tc, r.peer = tls.Server(nc, r.h.Config()), tls.Client(r.far, peers)
	} else {
		r.tc, r.peer = tls.Client(nc, r.h.Config()), tls.Server(r.far, peers)
	}
	return r
}

func (r *rig) shake(suite uint16) {
	r.t.Helper()
	if r.h.server {
		shake(r.t, suite, r.peer, r.tc)
	} else {
		shake(r.t, suite, r.tc, r.peer)
	}
	r.line.in.set(true, false)
	r.far.in.set(true, false)
}

func (r *rig) take(cfg Config) {
	r.t.Helper()
	c, err := r.h.Take(r.tc, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.c = c
}

func newRig(t testing.TB, suite uint16, server bool, cfg Config) *rig {
	t.Helper()
	r := unshaken(t, server, nil, nil)
	r.shake(suite)
	r.take(cfg)
	return r
}

func eachRole(t *testing.T, test func(t *testing.T, suite uint16, server bool)) {
	eachSuite(t, func(t *testing.T, suite uint16) {
		t.Run("client", func(t *testing.T) { test(t, suite, false) })
		t.Run("server", func(t *testing.T) { test(t, suite, true) })
	})
}

// toPeer sends b and returns what the peer reads.
func (r *rig) toPeer(b []byte) ([]byte, error) {
	_, _ = r.line.Write(b)
	return readAll(r.peer)
}

// readAll reads what has arrived; an error is the connection's.
func readAll(c *tls.Conn) ([]byte, error) {
	var got []byte
	b := make([]byte, 40_000)
	for {
		n, err := c.Read(b)
		got = append(got, b[:n]...)
		if _, ok := err.(wouldBlock); ok {
			return got, nil
		}
		if err != nil {
			return got, err
		}
	}
}

// fromPeer receives what the peer wrote.
func (r *rig) fromPeer(pieces ...int) ([]byte, error) {
	return receive(r.c, r.line.in.take(), pieces...)
}

func (r *rig) send(data []byte) []byte {
	r.t.Helper()
	b, err := r.c.AppendRecords(nil, data)
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

func (r *rig) mustReach(b, want []byte) {
	r.t.Helper()
	got, err := r.toPeer(b)
	if err != nil || !bytes.Equal(got, want) {
		r.t.Fatalf("the peer read %d octets, not %d, or others; %v", len(got), len(want), err)
	}
}

func (r *rig) mustHear(want []byte, pieces ...int) {
	r.t.Helper()
	got, err := r.fromPeer(pieces...)
	if err != nil || !bytes.Equal(got, want) {
		r.t.Fatalf("we read %d octets, not %d, or others; %v", len(got), len(want), err)
	}
}

func TestDataWithCryptoTLS(t *testing.T) {
	eachRole(t, func(t *testing.T, suite uint16, server bool) {
		r := newRig(t, suite, server, Config{})
		for i, n := range sizes {
			data := payload(uint64(i), n)
			r.mustReach(r.send(data), data)
			b, start := batch(nil, data, 0)
			b, err := r.c.SealBatch(b, start)
			if err != nil {
				t.Fatal(err)
			}
			r.mustReach(b, data)
			for _, pieces := range splits(uint64(n)) {
				if n > 2*MaxPlaintext && len(pieces) > 0 && pieces[0] < 10 {
					continue
				}
				if _, err := r.peer.Write(data); err != nil {
					t.Fatal(err)
				}
				r.mustHear(data, pieces...)
			}
		}
		// Many small records at once, both ways.
		var sent []byte
		for i := range 300 {
			b := payload(uint64(i), i)
			sent = append(sent, b...)
			if _, err := r.peer.Write(b); err != nil {
				t.Fatal(err)
			}
		}
		r.mustHear(sent, 1000)
		var b []byte
		for i := range 300 {
			b = append(b, r.send(payload(uint64(i), i))...)
		}
		r.mustReach(b, sent)
	})
}

// crypto/tls's own sizes of records, which start small.
func TestDynamicRecordSizes(t *testing.T) {
	r := unshaken(t, true, nil, func(c *tls.Config) { c.DynamicRecordSizingDisabled = false })
	r.shake(tls.TLS_AES_128_GCM_SHA256)
	r.take(Config{})
	data := payload(1, 500_000)
	if _, err := r.peer.Write(data); err != nil {
		t.Fatal(err)
	}
	r.mustHear(data, 5000)
}

func TestKeyUpdateWithCryptoTLS(t *testing.T) {
	eachRole(t, func(t *testing.T, suite uint16, server bool) {
		r := newRig(t, suite, server, Config{})
		for i := range 5 {
			b := r.send([]byte("before"))
			b, err := r.c.AppendKeyUpdate(b, i%2 == 0)
			if err != nil {
				t.Fatal(err)
			}
			b, err = r.c.AppendRecords(b, []byte(" after"))
			if err != nil {
				t.Fatal(err)
			}
			r.mustReach(b, []byte("before after"))
			if _, err := r.peer.Write([]byte("answer")); err != nil {
				t.Fatal(err)
			}
			r.mustHear([]byte("answer"), 3)
		}
		if st := r.c.Stats(); st.KeyUpdatesOut != 5 || st.KeyUpdatesIn != 3 {
			t.Errorf("%+v", st)
		}
	})
}

// With a low limit both directions rekey all the time: ours by itself, crypto/tls's
// because it is asked.
func TestRekeyingWithCryptoTLS(t *testing.T) {
	eachRole(t, func(t *testing.T, suite uint16, server bool) {
		r := newRig(t, suite, server, Config{RekeyAfter: 8, KeyUpdateBurst: 1000})
		for i := range 100 {
			data := payload(uint64(i), 1+i*300)
			r.mustReach(r.send(data), data)
			if _, err := r.peer.Write(data); err != nil {
				t.Fatal(err)
			}
			r.mustHear(data)
		}
		if st := r.c.Stats(); st.KeyUpdatesOut < 15 || st.KeyUpdatesIn < 5 {
			t.Errorf("%+v", st)
		}
	})
}

func TestCloseNotifyWithCryptoTLS(t *testing.T) {
	eachRole(t, func(t *testing.T, suite uint16, server bool) {
		r := newRig(t, suite, server, Config{})
		got, err := r.toPeer(r.c.AppendCloseNotify(r.send([]byte("bye"))))
		if string(got) != "bye" || err != io.EOF {
			t.Fatalf("the peer read %q, %v", got, err)
		}
		if _, err := r.peer.Write([]byte("and more")); err != nil {
			t.Fatal(err)
		}
		r.mustHear([]byte("and more"))
		if err := r.peer.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := r.fromPeer(); len(got) != 0 || err != io.EOF {
			t.Fatal(got, err)
		}
	})
}

// What crypto/tls does about a tampered record is what we do: both directions.
func TestTamperingWithCryptoTLS(t *testing.T) {
	for _, server := range []bool{false, true} {
		r := newRig(t, tls.TLS_AES_128_GCM_SHA256, server, Config{})
		if _, err := r.peer.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		b := r.line.in.take()
		b[len(b)-1] ^= 1
		if got, err := receive(r.c, b); len(got) != 0 || err != ErrTag {
			t.Fatal(got, err)
		}
		_, err := r.toPeer(r.c.AppendOutput(nil))
		if err == nil || err.Error() != "remote error: tls: bad record MAC" {
			t.Fatal(err)
		}

		r = newRig(t, tls.TLS_AES_128_GCM_SHA256, server, Config{})
		b = r.send([]byte("hello"))
		b[HeaderLen] ^= 1
		if _, err := r.toPeer(b); err == nil || err.Error() != "local error: tls: bad record MAC" {
			t.Fatal(err)
		}
		if got, err := r.fromPeer(); len(got) != 0 || err != RemoteAlert(AlertBadRecordMAC) {
			t.Fatal(got, err)
		}
	}
}

// All of our alerts are understood by crypto/tls.
func TestAlertsReachCryptoTLS(t *testing.T) {
	for _, a := range []Alert{AlertUnexpectedMessage, AlertBadRecordMAC, AlertRecordOverflow, AlertIllegalParameter,
		AlertDecodeError, AlertProtocolVersion, AlertInternalError} {
		r := newRig(t, tls.TLS_AES_128_GCM_SHA256, true, Config{})
		_, err := r.toPeer(r.c.AppendAlert(nil, a))
		if err == nil || err.Error() != "remote error: "+tls.AlertError(a).Error() {
			t.Errorf("%v arrived as %v", a, err)
		}
	}
}

// Two machines of ours: updates from both sides, also at once.
func TestTwoMachines(t *testing.T) {
	eachSuite(t, func(t *testing.T, suite uint16) {
		client, server := newPair(t, suite, func(c *Config) { c.RekeyAfter, c.KeyUpdateBurst = 5, 1<<20 })
		for i := range 200 {
			data := payload(uint64(i), 1+i*211%40_000)
			var out [2][]byte
			for j, c := range []*Conn{client, server} {
				var err error
				if i%7 == j {
					if out[j], err = c.AppendKeyUpdate(nil, i%2 == 0); err != nil {
						t.Fatal(err)
					}
				}
				if out[j], err = c.AppendRecords(out[j], data); err != nil {
					t.Fatal(err)
				}
			}
			for j, c := range []*Conn{client, server} { // they crossed
				got, err := receive(c, out[1-j], splits(uint64(i))[i%7]...)
				if err != nil || !bytes.Equal(got, data) {
					t.Fatalf("round %d: %d octets, %v", i, len(got), err)
				}
			}
		}
		cs, ss := client.Stats(), server.Stats()
		if cs.RecordsIn != ss.RecordsOut || cs.RecordsOut != ss.RecordsIn || cs.KeyUpdatesIn != ss.KeyUpdatesOut || cs.KeyUpdatesIn < 40 {
			t.Errorf("%+v, %+v", cs, ss)
		}
		got, err := receive(server, client.AppendCloseNotify(nil))
		if len(got) != 0 || err != io.EOF {
			t.Error(got, err)
		}
	})
}

// Over a transport that blocks, in both roles.
func TestStreamWithCryptoTLS(t *testing.T) {
	eachRole(t, func(t *testing.T, suite uint16, server bool) {
		r := unshaken(t, server, nil, nil)
		near, far := net.Pipe()
		defer near.Close()
		defer far.Close()
		peers := serverConfig()
		if server {
			peers = clientConfig()
			r.h = NewServerHandover(serverConfig(), near)
			r.tc, r.peer = tls.Server(tapped{near, r.h}, r.h.Config()), tls.Client(far, peers)
			shake(t, suite, r.peer, r.tc)
		} else {
			r.h = NewClientHandover(clientConfig(), near)
			r.tc, r.peer = tls.Client(tapped{near, r.h}, r.h.Config()), tls.Server(far, peers)
			shake(t, suite, r.tc, r.peer)
		}
		r.take(Config{RekeyAfter: 50})
		s := NewStream(r.c, near)
		data := payload(3, 150_000)
		done := make(chan error, 1)
		go func() { // echo
			b := make([]byte, 10_000)
			for {
				n, err := r.peer.Read(b)
				if err != nil {
					if err == io.EOF {
						err = r.peer.CloseWrite()
					}
					done <- err
					return
				}
				if _, err := r.peer.Write(b[:n]); err != nil {
					done <- err
					return
				}
			}
		}()
		var got []byte
		b := make([]byte, 7000)
		for off := 0; off < len(data); off += 5000 {
			if _, err := s.Write(data[off : off+5000]); err != nil {
				t.Fatal(err)
			}
			for len(got) < off+5000 {
				n, err := s.Read(b)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, b[:n]...)
			}
		}
		if !bytes.Equal(got, data) {
			t.Error("echo differs")
		}
		if err := s.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if n, err := s.Read(b); n != 0 || err != io.EOF {
			t.Fatal(n, err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if len(s.Release()) != 0 || s.Release() != nil {
			t.Error("something was left")
		}
	})
}

// script is a transport that gives what it is told.
type script struct {
	in  [][]byte
	err error
	out bytes.Buffer
}

func (s *script) Write(p []byte) (int, error) { return s.out.Write(p) }

func (s *script) Read(p []byte) (int, error) {
	if len(s.in) == 0 {
		return 0, s.err
	}
	n := copy(p, s.in[0])
	if s.in[0] = s.in[0][n:]; len(s.in[0]) == 0 {
		s.in = s.in[1:]
	}
	return n, nil
}

func TestStreamReleaseGivesWhatWasReadAhead(t *testing.T) {
	cfg := config(tls.TLS_AES_128_GCM_SHA256, true)
	c := mustNew(t, cfg)
	in, out := newRaw(cfg.Suite, cfg.Read.Secret), newRaw(cfg.Suite, cfg.Write.Secret)
	first := join(in.data("one"), in.data("two"), in.keyUpdate(1), in.data("three"))
	partial := in.data("partial")
	tr := &script{in: [][]byte{join(first, partial[:9])}}
	s := NewStream(c, tr)
	b := make([]byte, 2)
	if n, err := s.Read(b); n != 2 || err != nil || string(b) != "on" {
		t.Fatal(n, err)
	}
	if n, err := s.Read(nil); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if early := s.Release(); string(early) != "etwothree" {
		t.Errorf("%q", early)
	}
	// What the machine owes and the partial record stay with it.
	if got := text(out.open(t, c.AppendOutput(nil))); got != "handshake 1800000100" {
		t.Error(got)
	}
	if got, err := receive(c, partial[9:]); string(got) != "partial" || err != nil {
		t.Error(got, err)
	}
}

func TestStreamReadsRecordsInPieces(t *testing.T) {
	cfg := config(tls.TLS_AES_128_GCM_SHA256, true)
	r := newRaw(cfg.Suite, cfg.Read.Secret)
	var b, want []byte
	for i := range 30 {
		data := payload(uint64(i), 1+i*50)
		want = append(want, data...)
		b = append(b, r.seal(typeData, data, 0)...)
	}
	for _, n := range []int{1, 7, 100, 1000} {
		tr := &script{err: io.EOF}
		for piece := range slices.Chunk(b, n) {
			tr.in = append(tr.in, bytes.Clone(piece))
		}
		s := NewStream(mustNew(t, cfg), tr)
		got, err := io.ReadAll(s)
		if !bytes.Equal(got, want) || err != ErrTruncated {
			t.Errorf("pieces of %d: %d octets, %v", n, len(got), err)
		}
		s.Release()
	}
}

func TestStreamErrors(t *testing.T) {
	cfg := config(tls.TLS_AES_128_GCM_SHA256, true)
	for name, tc := range map[string]struct {
		tr   *script
		want error
		said string
	}{
		"truncated":       {&script{err: io.EOF}, ErrTruncated, ""},
		"transport fails": {&script{err: os.ErrDeadlineExceeded}, os.ErrDeadlineExceeded, ""},
		"no progress":     {&script{}, io.ErrNoProgress, ""},
		"fault":           {&script{in: [][]byte{make([]byte, 30)}}, ErrContentType, "alert 2 unexpected_message"},
	} {
		c := mustNew(t, cfg)
		s := NewStream(c, tc.tr)
		if _, err := s.Read(make([]byte, 9)); err != tc.want {
			t.Errorf("%s: %v", name, err)
		}
		if got := text(newRaw(cfg.Suite, cfg.Write.Secret).open(t, tc.tr.out.Bytes())); got != tc.said {
			t.Errorf("%s: said %q", name, got)
		}
		if tc.said != "" {
			if n, err := s.Write([]byte("x")); n != 0 || err != tc.want {
				t.Errorf("%s: %v", name, err)
			}
		}
		s.Release()
	}
}
