package loop

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// tlsRig is a server's record layer, detached, with crypto/tls as its peer. What
// the peer sends is collected as raw records, to be fed as the test likes.
type tlsRig struct {
	layer *stdRecords
	peer  *tls.Conn
	raw   *rawPeer
}

// rawPeer is the peer's transport once the handshake is over: writes are
// collected, reads come from what the layer sealed.
type rawPeer struct {
	net.Conn // during the handshake
	memory   bool
	out      []byte // what the peer sent
	in       []byte // what the peer is to read
}

func (r *rawPeer) Write(p []byte) (int, error) {
	if !r.memory {
		return r.Conn.Write(p)
	}
	r.out = append(r.out, p...)
	return len(p), nil
}

func (r *rawPeer) Read(p []byte) (int, error) {
	if !r.memory {
		return r.Conn.Read(p)
	}
	if len(r.in) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.in)
	r.in = r.in[n:]
	return n, nil
}

func (r *rawPeer) SetWriteDeadline(time.Time) error { return nil }

var testCert = func() *tls.Certificate {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	c, err := selfSigned(key)
	if err != nil {
		panic(err)
	}
	return c
}()

func newTLSRig(t testing.TB, clientALPN ...string) (*tlsRig, error) {
	t.Helper()
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	_ = a.SetDeadline(time.Now().Add(10 * time.Second))
	_ = b.SetDeadline(time.Now().Add(10 * time.Second))
	cfg := TLSConfig(nil, ListenCurves)
	if clientALPN != nil {
		cfg.NextProtos = clientALPN
	}
	raw := &rawPeer{Conn: b}
	peer := tls.Client(raw, cfg)
	done := make(chan error, 1)
	go func() { done <- peer.Handshake() }()
	g := &gate{p: newProcessors(1), ctx: context.Background(), deadline: time.Now().Add(time.Minute)}
	outer, err := secure(g, a, Security{Config: TLSConfig(testCert, ListenCurves), Server: true, Standard: true})
	if err != nil {
		a.Close()
		<-done
		return nil, err
	}
	layer := outer.(*stdRecords)
	layer.attach(new(eventLoop))
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	layer.detach()
	raw.memory = true
	return &tlsRig{layer, peer, raw}, nil
}

// feed gives the layer the peer's records in pieces of at most step octets.
func (r *tlsRig) feed(step int) (plain []byte, err error) {
	in := r.raw.out
	r.raw.out = nil
	for len(in) > 0 && err == nil {
		n := min(step, len(in))
		var p []byte
		p, err = r.layer.appendPlain(nil, bytes.Clone(in[:n]))
		plain = append(plain, p...)
		in = in[n:]
	}
	return plain, err
}

func TestTLS_AnySplitGivesTheSamePlaintext(t *testing.T) {
	for _, step := range []int{1, 2, 3, 5, 7, 100, 16 << 10, 1 << 20} {
		r, err := newTLSRig(t)
		if err != nil {
			t.Fatal(err)
		}
		var want []byte
		for _, n := range []int{1, 0, 600, 16 << 10, 40_000} {
			p := bytes.Repeat([]byte{byte(n)}, n)
			want = append(want, p...)
			if _, err := r.peer.Write(p); err != nil {
				t.Fatal(err)
			}
		}
		if step < 100 && len(r.raw.out) > 4000 { // a byte at a time is slow; a part will do
			r.raw.out = r.raw.out[:4000]
			want = want[:601]
		}
		got, err := r.feed(step)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("step %d: %d octets of %d, error %v", step, len(got), len(want), err)
		}
	}
}

func TestTLS_SealedBatchIsReadByCryptoTLS(t *testing.T) {
	r, err := newTLSRig(t)
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("batch"), 20_000)
	out, err := r.layer.seal(want)
	if err != nil {
		t.Fatal(err)
	}
	r.raw.in = out
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r.peer, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("read back: %v", err)
	}
}

func TestTLS_CloseNotifyEndsReadingInOrder(t *testing.T) {
	r, err := newTLSRig(t)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.peer.Write([]byte("last")); err != nil {
		t.Fatal(err)
	}
	if err := r.peer.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := r.feed(1 << 20)
	if string(got) != "last" || !errors.Is(err, io.EOF) {
		t.Errorf("%q, %v; want the data, then io.EOF", got, err)
	}
	r.raw.in = r.layer.close(nil)
	if _, err := r.peer.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("our close_notify reads as %v", err)
	}
}

// Every changed octet ends the connection, and with an alert that the peer
// understands.
func TestTLS_TamperedRecordIsFatal(t *testing.T) {
	for i := range 5 + 4 + 17 {
		r, err := newTLSRig(t)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.peer.Write([]byte("data")); err != nil {
			t.Fatal(err)
		}
		r.raw.out[i] ^= 0x40
		got, err := r.layer.appendPlain(nil, r.raw.out)
		if i == 3 || i == 4 {
			// A longer record just is not complete yet; one too long is refused.
			if len(got) != 0 {
				t.Errorf("octet %d: plaintext %q", i, got)
			}
			continue
		}
		if err == nil || len(got) != 0 {
			t.Errorf("octet %d: plaintext %q, error %v", i, got, err)
			continue
		}
		r.raw.in = r.layer.close(nil)
		if _, err := r.peer.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) && len(r.raw.in) > 0 {
			t.Errorf("octet %d: the peer reads %v", i, err)
		}
	}
}

// What looks like a handshake on an established connection is refused: TLS 1.3
// knows no renegotiation.
func TestTLS_HandshakeGarbageIsFatal(t *testing.T) {
	for name, rec := range map[string][]byte{
		"client hello": {22, 3, 1, 0, 5, 1, 0, 0, 1, 0},
		"ccs":          {20, 3, 3, 0, 1, 1},
		"clear alert":  {21, 3, 3, 0, 2, 2, 40},
		"http":         []byte("GET / HTTP/1.1\r\n\r\n"),
		"ssl2":         {0x80, 0x2e, 1, 3, 1},
	} {
		r, err := newTLSRig(t)
		if err != nil {
			t.Fatal(err)
		}
		var got []byte
		// A single CCS may pass by the letter of RFC 8446; a stream of them not.
		for range 20 {
			var p []byte
			if p, err = r.layer.appendPlain(nil, rec); err != nil {
				break
			}
			got = append(got, p...)
		}
		if err == nil || errors.Is(err, io.EOF) || len(got) != 0 {
			t.Errorf("%s: plaintext %q, error %v", name, got, err)
		}
	}
}

func TestTLS_ALPNIsRequired(t *testing.T) {
	if _, err := newTLSRig(t, "h2"); err == nil {
		t.Error("a peer with another ALPN was accepted")
	}
	if _, err := newTLSRig(t); err != nil {
		t.Errorf("the right ALPN: %v", err)
	}
}

func TestTLS_WithoutALPNIsRefused(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	cfg := TLSConfig(nil, ListenCurves)
	cfg.NextProtos = nil
	done := make(chan error, 1)
	go func() { done <- tls.Client(b, cfg).Handshake() }()
	g := &gate{p: newProcessors(1), ctx: context.Background(), deadline: time.Now().Add(time.Minute)}
	_, err := secure(g, a, Security{Config: TLSConfig(testCert, ListenCurves), Server: true})
	a.Close()
	<-done
	if !errors.Is(err, ErrALPN) {
		t.Errorf("without ALPN: %v", err)
	}
	if g.p.free != 1 || g.held {
		t.Error("the place for computing was not given back")
	}
}

// FuzzTLSRecords feeds a valid stream with a change in it, in any split: what
// comes out is a prefix of what was sent, whatever happens.
func FuzzTLSRecords(f *testing.F) {
	f.Add(uint16(3), uint16(1000), uint16(0), byte(0), []byte(nil))
	f.Add(uint16(1), uint16(20), uint16(7), byte(1), []byte{23, 3, 3, 0, 1})
	f.Fuzz(func(t *testing.T, step, size, at uint16, flip byte, junk []byte) {
		r, err := newTLSRig(t)
		if err != nil {
			t.Fatal(err)
		}
		want := bytes.Repeat([]byte("0123456789abcdef"), int(size)/16+1)
		if _, err := r.peer.Write(want); err != nil {
			t.Fatal(err)
		}
		r.raw.out[int(at)%len(r.raw.out)] ^= flip
		r.raw.out = append(r.raw.out, junk...)
		got, err := r.feed(int(step) + 1)
		if !bytes.HasPrefix(want, got) {
			t.Fatal("plaintext that was never sent")
		}
		if flip == 0 && len(junk) == 0 && (err != nil || len(got) != len(want)) {
			t.Fatalf("an untouched stream: %d of %d octets, %v", len(got), len(want), err)
		}
	})
}
