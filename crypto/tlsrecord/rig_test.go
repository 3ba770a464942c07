package tlsrecord

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"math/rand/v2"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/crypto/chacha20poly1305"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var everySuite = []uint16{
	tls.TLS_AES_128_GCM_SHA256,
	tls.TLS_AES_256_GCM_SHA384,
	tls.TLS_CHACHA20_POLY1305_SHA256,
}

func eachSuite(t *testing.T, test func(t *testing.T, suite uint16)) {
	for _, id := range everySuite {
		t.Run(tls.CipherSuiteName(id), func(t *testing.T) { test(t, id) })
	}
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "\n", "", "\t", "").Replace(s))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func secretFor(suite uint16, fill byte) []byte {
	n := 32
	if suite == tls.TLS_AES_256_GCM_SHA384 {
		n = 48
	}
	return bytes.Repeat([]byte{fill}, n)
}

// Secrets of the two directions in tests that need no handshake.
const (
	fillClient = 0xC1
	fillServer = 0x5E
)

func config(suite uint16, server bool) Config {
	cfg := Config{
		Suite:  suite,
		Server: server,
		Read:   Keys{Secret: secretFor(suite, fillServer)},
		Write:  Keys{Secret: secretFor(suite, fillClient)},
	}
	if server {
		cfg.Read, cfg.Write = cfg.Write, cfg.Read
	}
	return cfg
}

func mustNew(t testing.TB, cfg Config) *Conn {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newPair(t testing.TB, suite uint16, change func(*Config)) (client, server *Conn) {
	t.Helper()
	cc, cs := config(suite, false), config(suite, true)
	if change != nil {
		change(&cc)
		change(&cs)
	}
	return mustNew(t, cc), mustNew(t, cs)
}

// raw is one direction of TLS 1.3 records written a second time, over crypto/hkdf,
// with every freedom to do wrong.
type raw struct {
	suite  uint16
	hash   func() hash.Hash
	secret []byte
	aead   cipher.AEAD
	iv     []byte
	seq    uint64
}

func newRaw(suite uint16, secret []byte) *raw {
	r := &raw{suite: suite, hash: sha256.New, secret: secret}
	if suite == tls.TLS_AES_256_GCM_SHA384 {
		r.hash = sha512.New384
	}
	r.rekey()
	return r
}

func (r *raw) expand(label string, n int) []byte {
	label = "tls13 " + label
	info := string([]byte{0, byte(n), byte(len(label))}) + label + "\x00"
	out, err := hkdf.Expand(r.hash, r.secret, info, n)
	if err != nil {
		panic(err)
	}
	return out
}

func (r *raw) rekey() {
	n := 32
	if r.suite == tls.TLS_AES_128_GCM_SHA256 {
		n = 16
	}
	key := r.expand("key", n)
	r.iv = r.expand("iv", 12)
	r.seq = 0
	if r.suite == tls.TLS_CHACHA20_POLY1305_SHA256 {
		r.aead, _ = chacha20poly1305.New(key)
		return
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err)
	}
	r.aead, _ = cipher.NewGCM(block)
}

func (r *raw) update() {
	r.secret = r.expand("traffic upd", len(r.secret))
	r.rekey()
}

func (r *raw) nonce() []byte {
	n := bytes.Clone(r.iv)
	for i := range 8 {
		n[4+i] ^= byte(r.seq >> (56 - 8*i))
	}
	return n
}

// inner protects the octets of an inner plaintext, whatever they are, under a
// header of the given type and version.
func (r *raw) inner(typ byte, version uint16, inner []byte) []byte {
	head := []byte{typ, byte(version >> 8), byte(version), 0, 0}
	binary.BigEndian.PutUint16(head[3:], uint16(len(inner)+16))
	rec := r.aead.Seal(head, r.nonce(), inner, bytes.Clone(head))
	r.seq++
	return rec
}

func (r *raw) seal(t byte, content []byte, padding int) []byte {
	in := append(append(bytes.Clone(content), t), make([]byte, padding)...)
	return r.inner(23, 0x0303, in)
}

func (r *raw) data(s string) []byte { return r.seal(23, []byte(s), 0) }

func (r *raw) keyUpdate(request byte) []byte {
	b := r.seal(22, []byte{24, 0, 0, 1, request}, 0)
	r.update()
	return b
}

// rawRecord is an opened record.
type rawRecord struct {
	typ     byte
	content []byte
}

// open opens all records in b and follows key updates.
func (r *raw) open(t testing.TB, b []byte) []rawRecord {
	t.Helper()
	var list []rawRecord
	for len(b) > 0 {
		if len(b) < 5 || b[0] != 23 || b[1] != 3 || b[2] != 3 || len(b) < 5+int(binary.BigEndian.Uint16(b[3:])) {
			t.Fatalf("not a whole record: %x", b[:min(len(b), 32)])
		}
		n := 5 + int(binary.BigEndian.Uint16(b[3:]))
		in, err := r.aead.Open(nil, r.nonce(), b[5:n], b[:5])
		if err != nil {
			t.Fatalf("record %d: %v", r.seq, err)
		}
		r.seq++
		b = b[n:]
		if len(in) == 0 || len(in) > MaxPlaintext+1 {
			t.Fatalf("inner plaintext of %d octets", len(in))
		}
		rec := rawRecord{in[len(in)-1], in[:len(in)-1]}
		list = append(list, rec)
		if rec.typ == 22 {
			r.update()
		}
	}
	return list
}

// text writes records as a test wants to read them.
func text(list []rawRecord) string {
	var s []string
	for _, r := range list {
		switch {
		case r.typ == 23 && len(r.content) <= 32:
			s = append(s, fmt.Sprintf("data %q", r.content))
		case r.typ == 23:
			s = append(s, fmt.Sprintf("data of %d", len(r.content)))
		case r.typ == 22:
			s = append(s, fmt.Sprintf("handshake %x", r.content))
		case r.typ == 21 && len(r.content) == 2:
			s = append(s, fmt.Sprintf("alert %d %v", r.content[0], Alert(r.content[1])))
		default:
			s = append(s, fmt.Sprintf("type %d %x", r.typ, r.content))
		}
	}
	return strings.Join(s, ", ")
}

// receive gives c the octets of b in pieces of the given sizes, again and again,
// and returns all data and the error it ended with.
func receive(c *Conn, b []byte, pieces ...int) ([]byte, error) {
	var got []byte
	for i := 0; ; i++ {
		n := len(b)
		if len(pieces) > 0 {
			n = min(n, max(1, pieces[i%len(pieces)]))
		}
		piece := bytes.Clone(b[:n]) // opened in place
		b = b[n:]
		c.HandleBytes(piece)
		for {
			p, ok, err := c.Poll()
			if err != nil {
				return got, err
			}
			if !ok {
				break
			}
			got = append(got, p...)
		}
		c.Settle()
		for i := range piece {
			piece[i] = 0xAA // what was lent is ours again
		}
		if len(b) == 0 {
			return got, nil
		}
	}
}

// splits are ways to cut an input.
func splits(seed uint64) [][]int {
	r := rand.New(rand.NewPCG(seed, 1))
	random := make([]int, 17)
	for i := range random {
		random[i] = 1 + r.IntN(1+r.IntN(3000))
	}
	return [][]int{nil, {1}, {4}, {5}, {6, 1}, {21, 23}, random}
}

func payload(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, uint64(n)))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// batch puts plaintext behind a prefix and room for a header.
func batch(prefix, plaintext []byte, spare int) ([]byte, int) {
	b := make([]byte, 0, len(prefix)+HeaderLen+len(plaintext)+spare)
	b = append(b, prefix...)
	b = append(b, 1, 2, 3, 4, 5)
	return append(b, plaintext...), len(prefix)
}

func isFault(err error) (*Fault, bool) {
	var f *Fault
	ok := errors.As(err, &f)
	return f, ok
}
