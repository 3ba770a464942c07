package tlsrecord

import (
	"bytes"
	"crypto/cipher"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Nothing that the peer sends right behind its handshake is lost in crypto/tls.
func TestNothingIsReadAhead(t *testing.T) {
	eachRole(t, func(t *testing.T, suite uint16, server bool) {
		r := unshaken(t, server, nil, nil)
		r.shake(suite)
		if _, err := r.peer.Write([]byte("early")); err != nil {
			t.Fatal(err)
		}
		r.take(Config{})
		r.mustHear([]byte("early"))
	})
}

// A client sends its first data together with its Finished: crypto/tls over an
// ordinary connection would read them ahead.
func TestDataBehindTheClientsFinished(t *testing.T) {
	client, server := ends()
	h := NewServerHandover(serverConfig(), server)
	tc := tls.Server(tapped{server, h}, h.Config())
	peer := tls.Client(client, clientConfig())
	done := make(chan error, 1)
	hold := newPipe() // the client's flight waits here until its data is behind it
	client.out = hold
	go func() {
		err := peer.Handshake()
		if err == nil {
			_, err = peer.Write([]byte("early"))
		}
		done <- err
	}()
	// Its first flight has to go through at once.
	first := make([]byte, 4096)
	n, err := hold.Read(first)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = server.in.Write(first[:n])
	shaken := make(chan error, 1)
	go func() { shaken <- tc.Handshake() }()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	_, _ = server.in.Write(hold.take())
	if err := <-shaken; err != nil {
		t.Fatal(err)
	}
	c, err := h.Take(tc, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := receive(c, server.in.take()); string(got) != "early" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
}

func TestRecordReaderNeverCrossesARecord(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var stream []byte
		boundary := map[int]bool{0: true}
		for range 1 + r.IntN(8) {
			n := r.IntN(1 + r.IntN(2000))
			stream = append(stream, byte(r.Uint32()), 3, 3)
			stream = binary.BigEndian.AppendUint16(stream, uint16(n))
			stream = append(stream, payload(1, n)...)
			boundary[len(stream)] = true
		}
		src := bytes.NewReader(stream)
		rr := NewRecordReader(src)
		at := 0
		for {
			p := make([]byte, 1+r.IntN(1+r.IntN(3000)))
			n, err := rr.Read(p)
			if err == io.EOF {
				break
			}
			if err != nil || n == 0 || !bytes.Equal(p[:n], stream[at:at+n]) {
				t.Fatal("stream changed:", n, err)
			}
			for i := at + 1; i < at+n; i++ {
				if boundary[i] {
					t.Fatalf("a read from %d to %d crosses %d", at, at+n, i)
				}
			}
			at += n
			if rr.AtBoundary() != boundary[at] {
				t.Fatalf("at %d: AtBoundary is %v", at, rr.AtBoundary())
			}
		}
		if at != len(stream) {
			t.Fatal("not everything was read")
		}
	}
}

func TestRecordReaderPassesErrorsOn(t *testing.T) {
	tr := &script{in: [][]byte{{22, 3, 3, 0}}, err: os.ErrDeadlineExceeded}
	rr := NewRecordReader(tr)
	if n, err := rr.Read(make([]byte, 99)); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := rr.Read(make([]byte, 99)); n != 0 || err != os.ErrDeadlineExceeded || rr.AtBoundary() {
		t.Fatal(n, err)
	}
}

func FuzzRecordReader(f *testing.F) {
	f.Add([]byte{22, 3, 1, 0, 3, 1, 2, 3, 23, 3, 3, 0, 0, 23, 3, 3, 0, 1, 9}, uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, size uint8) {
		rr := NewRecordReader(bytes.NewReader(b))
		var got []byte
		p := make([]byte, 1+int(size))
		for {
			n, err := rr.Read(p)
			got = append(got, p[:n]...)
			if err != nil {
				break
			}
		}
		if !bytes.Equal(got, b) {
			t.Fatal("stream changed")
		}
		whole := true
		for rest := b; len(rest) > 0 && whole; {
			whole = len(rest) >= HeaderLen && len(rest) >= HeaderLen+int(binary.BigEndian.Uint16(rest[3:]))
			if whole {
				rest = rest[HeaderLen+int(binary.BigEndian.Uint16(rest[3:])):]
			}
		}
		if rr.AtBoundary() != whole {
			t.Fatalf("AtBoundary is %v", rr.AtBoundary())
		}
	})
}

// The configuration is a clone: the given one keeps its own key log, which sees
// nothing, and its tickets.
func TestConfigIsACloneAndSecretsStayHere(t *testing.T) {
	var log bytes.Buffer
	given := serverConfig()
	given.KeyLogWriter = &log
	given.MinVersion = tls.VersionTLS12
	h := NewServerHandover(given, nil)
	got := h.Config()
	if got == given || given.KeyLogWriter != &log || given.SessionTicketsDisabled || given.MinVersion != tls.VersionTLS12 {
		t.Error("the given configuration was changed")
	}
	if !got.SessionTicketsDisabled || got.MinVersion != tls.VersionTLS13 || got.ClientSessionCache != nil {
		t.Error("tickets, versions")
	}
	for _, viaCallback := range []bool{false, true} {
		client, server := ends()
		use := given
		if viaCallback {
			// Who chooses another configuration gets the same treatment.
			use = serverConfig()
			use.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return given, nil }
		}
		h := NewServerHandover(use, server)
		tc := tls.Server(tapped{server, h}, h.Config())
		// A client that would take a ticket.
		cc := clientConfig()
		cc.ClientSessionCache = tls.NewLRUClientSessionCache(4)
		cc.ServerName = "x"
		peer := tls.Client(client, cc)
		shake(t, tls.TLS_AES_128_GCM_SHA256, peer, tc)
		client.in.set(true, false)
		c, err := h.Take(tc, Config{})
		if err != nil {
			t.Fatal(err)
		}
		if c.wr.seq != 0 {
			t.Errorf("a ticket was sent: %d records", c.wr.seq)
		}
		b, err := c.AppendRecords(nil, []byte("hello"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = server.Write(b)
		if got, err := readAll(peer); string(got) != "hello" || err != nil {
			t.Errorf("the peer read %q, %v", got, err)
		}
	}
	if log.Len() != 0 {
		t.Error("secrets went to another log")
	}
}

func TestGetConfigForClientMayRefuseOrKeep(t *testing.T) {
	refuse := errors.New("no")
	given := serverConfig()
	given.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, refuse }
	h := NewServerHandover(given, nil)
	if c, err := h.Config().GetConfigForClient(nil); c != nil || err != refuse {
		t.Error(c, err)
	}
	given.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, nil }
	h = NewServerHandover(given, nil)
	if c, err := h.Config().GetConfigForClient(nil); c != nil || err != nil {
		t.Error(c, err)
	}
}

// Should crypto/tls have used the application key before us, for a ticket or for
// data, the number goes on from there and no nonce is used twice.
func TestRecordsThatCryptoTLSHasSealedAreCounted(t *testing.T) {
	eachSuite(t, func(t *testing.T, suite uint16) {
		for _, withCert := range []bool{false, true} {
			r := unshaken(t, true, func(c *tls.Config) {
				c.SessionTicketsDisabled = false
				if withCert {
					c.ClientAuth = tls.RequestClientCert // moves the ticket to the end
				}
			}, func(c *tls.Config) {
				c.ClientSessionCache = tls.NewLRUClientSessionCache(4)
				c.ServerName = "x"
				c.Certificates = []tls.Certificate{certificate()}
			})
			r.shake(suite)
			r.take(Config{})
			if r.c.wr.seq != 1 {
				t.Fatalf("%d records counted", r.c.wr.seq)
			}
			r.mustReach(r.send([]byte("hello")), []byte("hello"))
		}
		for _, server := range []bool{false, true} {
			for _, n := range []int{1, 5, 100} {
				r := unshaken(t, server, nil, nil)
				r.shake(suite)
				var want []byte
				for i := range n {
					b := payload(1, 1+i*9)
					want = append(want, b...)
					if _, err := r.tc.Write(b); err != nil {
						t.Fatal(err)
					}
				}
				if n > 50 {
					if c, err := r.h.Take(r.tc, Config{}); c != nil || err != ErrUsed {
						t.Fatal(err)
					}
					continue
				}
				r.take(Config{})
				if r.c.wr.seq != uint64(n) {
					t.Fatalf("%d records counted, not %d", r.c.wr.seq, n)
				}
				want = append(want, "hello"...)
				r.mustReach(r.send([]byte("hello")), want)
			}
		}
	})
}

// Client certificates, and a client that gets tickets from a server of others.
func TestHandoverWithClientCertificate(t *testing.T) {
	eachRole(t, func(t *testing.T, suite uint16, server bool) {
		with := func(c *tls.Config) { c.Certificates = []tls.Certificate{certificate()} }
		ask := func(c *tls.Config) { with(c); c.ClientAuth = tls.RequireAnyClientCert }
		ours, peers := with, ask
		if server {
			ours, peers = ask, with
		}
		r := unshaken(t, server, ours, peers)
		r.shake(suite)
		r.take(Config{})
		r.mustReach(r.send([]byte("hello")), []byte("hello"))
		if _, err := r.peer.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		r.mustHear([]byte("hello"))
	})
}

func TestTicketsFromCryptoTLSAreDropped(t *testing.T) {
	eachSuite(t, func(t *testing.T, suite uint16) {
		r := unshaken(t, false, func(c *tls.Config) {
			c.SessionTicketsDisabled = false // so that it asks for one
			c.ClientSessionCache = tls.NewLRUClientSessionCache(4)
			c.ServerName = "x"
		}, nil)
		r.shake(suite)
		r.take(Config{})
		if _, err := r.peer.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		r.mustHear([]byte("hello"), 11)
		if n := r.c.Stats().TicketsIn; n != 1 {
			t.Errorf("%d tickets", n)
		}
	})
}

func TestHelloRetryRequest(t *testing.T) {
	for _, server := range []bool{false, true} {
		few := func(c *tls.Config) { c.CurvePreferences = []tls.CurveID{tls.CurveP256} }
		many := func(c *tls.Config) { c.CurvePreferences = []tls.CurveID{tls.X25519, tls.CurveP256} }
		ours, peers := many, few
		if server {
			ours, peers = few, many
		}
		r := unshaken(t, server, ours, peers)
		r.shake(tls.TLS_AES_128_GCM_SHA256)
		if !r.peer.ConnectionState().HelloRetryRequest {
			t.Fatal("no retry")
		}
		r.take(Config{})
		r.mustReach(r.send([]byte("hello")), []byte("hello"))
	}
}

func TestTakeRefuses(t *testing.T) {
	suite := tls.TLS_AES_128_GCM_SHA256
	cases := map[string]func(t *testing.T) (*rig, error){
		"before the handshake": func(t *testing.T) (*rig, error) {
			return unshaken(t, true, nil, nil), ErrHandshake
		},
		"another configuration": func(t *testing.T) (*rig, error) {
			r := unshaken(t, true, nil, nil)
			r.tc = tls.Server(tapped{r.line, r.h}, serverConfig())
			r.shake(suite)
			return r, ErrNoSecrets
		},
		"TLS 1.2": func(t *testing.T) (*rig, error) {
			old := func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }
			r := unshaken(t, true, old, old)
			done := make(chan error, 1)
			go func() { done <- r.peer.Handshake() }()
			if err := r.tc.Handshake(); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			return r, ErrHandshake
		},
		"another connection": func(t *testing.T) (*rig, error) {
			r := unshaken(t, false, nil, nil)
			r.tc = tls.Client(r.line, r.h.Config())
			r.shake(suite)
			return r, ErrNoSecrets
		},
		"a configuration used twice": func(t *testing.T) (*rig, error) {
			r := unshaken(t, true, nil, nil)
			r.shake(suite)
			a, b := ends()
			other := tls.Server(b, r.h.Config())
			shake(t, suite, tls.Client(a, clientConfig()), other)
			return r, ErrNoSecrets
		},
		"half a record written": func(t *testing.T) (*rig, error) {
			r := unshaken(t, true, nil, nil)
			r.shake(suite)
			_, _ = r.h.Write([]byte{23, 3, 3, 0, 9, 1})
			return r, ErrUsed
		},
		"half a record read": func(t *testing.T) (*rig, error) {
			r := unshaken(t, true, nil, nil)
			r.shake(suite)
			_, _ = r.far.Write([]byte{23, 3, 3, 0, 9, 1})
			_, _ = r.tc.Read(make([]byte, 1))
			return r, ErrUsed
		},
		"taken before": func(t *testing.T) (*rig, error) {
			r := unshaken(t, true, nil, nil)
			r.shake(suite)
			r.take(Config{})
			return r, ErrNoSecrets
		},
		"abandoned": func(t *testing.T) (*rig, error) {
			r := unshaken(t, true, nil, nil)
			r.shake(suite)
			r.h.Abandon()
			return r, ErrNoSecrets
		},
	}
	for name, prepare := range cases {
		t.Run(name, func(t *testing.T) {
			r, want := prepare(t)
			if c, err := r.h.Take(r.tc, Config{}); c != nil || err != want {
				t.Errorf("%v, want %v", err, want)
			}
			if r.h.keys.client.b != [maxSecret]byte{} || r.h.keys.server.b != [maxSecret]byte{} {
				t.Error("secrets were kept")
			}
		})
	}
}

// A tls.Conn that is used after all, for instance closed by somebody who tidies up,
// must not put a second record under a nonce of ours on the wire.
func TestCryptoTLSIsCutOffByTake(t *testing.T) {
	r := newRig(t, tls.TLS_AES_128_GCM_SHA256, true, Config{})
	if _, err := r.tc.Write([]byte("x")); err != ErrTaken {
		t.Error(err)
	}
	if _, err := r.tc.Read(make([]byte, 1)); err != ErrTaken {
		t.Error(err)
	}
	if err := r.tc.CloseWrite(); err == nil {
		t.Error("close_notify was sent")
	}
	if b := r.far.in.take(); len(b) != 0 {
		t.Errorf("%d octets reached the peer", len(b))
	}
	r.mustReach(r.send([]byte("hello")), []byte("hello"))
}

// Whatever keeps the machine from being made, the connection goes on in crypto/tls.
func TestFallback(t *testing.T) {
	eachRole(t, func(t *testing.T, suite uint16, server bool) {
		for _, how := range []string{"failed", "abandoned"} {
			r := unshaken(t, server, nil, nil)
			r.shake(suite)
			if how == "failed" {
				broken := Config{AESGCM: func([]byte) (cipher.AEAD, error) { return nil, errKey }}
				if suite == tls.TLS_CHACHA20_POLY1305_SHA256 {
					r.h.broken = true
				}
				if c, err := r.h.Take(r.tc, broken); c != nil || err == nil {
					t.Fatal("it did not fail")
				}
			} else {
				r.h.Abandon()
			}
			r.echo()
		}
	})
}

// echo shows that both tls.Conns work.
func (r *rig) echo() {
	r.t.Helper()
	for i := range 5 {
		data := payload(uint64(i), 1+i*10_000)
		for _, dir := range [][2]*tls.Conn{{r.tc, r.peer}, {r.peer, r.tc}} {
			if _, err := dir[0].Write(data); err != nil {
				r.t.Fatal(err)
			}
			if got, err := readAll(dir[1]); err != nil || !bytes.Equal(got, data) {
				r.t.Fatal(len(got), err)
			}
		}
	}
}

func TestKeyLogTakesOnlyWhatItKnows(t *testing.T) {
	var k keyLog
	for _, line := range []string{
		"", "\n", "CLIENT_RANDOM 00 11\n", "CLIENT_HANDSHAKE_TRAFFIC_SECRET 00 1122\n", "CLIENT_TRAFFIC_SECRET_1 00 1122\n",
		"EXPORTER_SECRET 00 1122\n",
	} {
		if n, err := fmt.Fprint(&k, line); n != len(line) || err != nil || k != (keyLog{}) {
			t.Errorf("%q: %d, %v", line, n, err)
		}
	}
	for _, line := range []string{
		"CLIENT_TRAFFIC_SECRET_0 ", "CLIENT_TRAFFIC_SECRET_0 00 xx\n", "CLIENT_TRAFFIC_SECRET_0 00 111\n",
		"CLIENT_TRAFFIC_SECRET_0 00 " + strings.Repeat("11", 49) + "\n",
	} {
		k = keyLog{}
		if n, err := fmt.Fprint(&k, line); n != len(line) || err != nil || k.client.n != 0 {
			t.Errorf("%q: %d, %v", line, n, err)
		}
	}
	k = keyLog{}
	_, _ = fmt.Fprintf(&k, "CLIENT_TRAFFIC_SECRET_0 aa %s\n", strings.Repeat("ab", 48))
	if k.complete() {
		t.Error("half of them is not complete")
	}
	_, _ = fmt.Fprintf(&k, "SERVER_TRAFFIC_SECRET_0 aa %s\n", strings.Repeat("cd", 32))
	if !k.complete() || !bytes.Equal(k.client.bytes(), bytes.Repeat([]byte{0xab}, 48)) || !bytes.Equal(k.server.bytes(), bytes.Repeat([]byte{0xcd}, 32)) {
		t.Error("secrets")
	}
	if n := testing.AllocsPerRun(100, func() {
		k.client = secret{}
		_, _ = k.Write([]byte("CLIENT_TRAFFIC_SECRET_0 aa 112233445566778899aabbccddeeff00\n"))
	}); n != 0 {
		t.Errorf("%v allocations under a lock of the whole process", n)
	}
}

// In FIPS 140-3 mode, which only a process's start can turn on, crypto/tls keeps
// the connection.
func TestFIPS(t *testing.T) {
	const child = "TLSRECORD_FIPS_CHILD"
	if os.Getenv(child) != "" {
		if Available() != ErrFIPS {
			t.Fatal("available in FIPS 140-3 mode")
		}
		if c, err := New(config(tls.TLS_AES_128_GCM_SHA256, true)); c != nil || err != ErrFIPS {
			t.Fatal(err)
		}
		p256 := func(c *tls.Config) { c.CurvePreferences = []tls.CurveID{tls.CurveP256} }
		for _, server := range []bool{false, true} {
			r := unshaken(t, server, p256, p256)
			r.shake(tls.TLS_AES_128_GCM_SHA256)
			if c, err := r.h.Take(r.tc, Config{}); c != nil || err != ErrFIPS {
				t.Fatal(err)
			}
			r.echo()
		}
		fmt.Println("refused")
		return
	}
	if err := Available(); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"on", "only"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestFIPS$", "-test.v")
		cmd.Env = append(os.Environ(), "GODEBUG=fips140="+mode, child+"=1")
		out, err := cmd.CombinedOutput()
		if bytes.HasPrefix(out, []byte("panic: fips140: ")) {
			continue // the standard library has no such mode in this build
		}
		if err != nil || !bytes.Contains(out, []byte("refused")) {
			t.Errorf("fips140=%s: %v\n%s", mode, err, out)
		}
	}
}
