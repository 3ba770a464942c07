package tlsrecord

import (
	"bytes"
	"crypto/cipher"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// keyRecorder is the standard library's AES-GCM, noting the keys.
func keyRecorder(keys *[]string) func([]byte) (cipher.AEAD, error) {
	return func(key []byte) (cipher.AEAD, error) {
		*keys = append(*keys, hex.EncodeToString(key))
		return newAESGCM(key)
	}
}

var sizes = []int{1, 2, 15, 16, 17, 255, 600, 4096, MaxPlaintext - 1, MaxPlaintext, MaxPlaintext + 1,
	2*MaxPlaintext - 1, 2 * MaxPlaintext, 2*MaxPlaintext + 1, 50_000, 200_000}

func TestAppendRecordsUsesAsFewRecordsAsPossible(t *testing.T) {
	eachSuite(t, func(t *testing.T, suite uint16) {
		c := mustNew(t, config(suite, true))
		r := newRaw(suite, secretFor(suite, fillServer))
		for _, n := range sizes {
			data := payload(1, n)
			prefix := []byte("prefix")
			b, err := c.AppendRecords(bytes.Clone(prefix), data)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.HasPrefix(b, prefix) || len(b) != len(prefix)+SealedLen(n) {
				t.Fatalf("%d octets became %d, not %d", n, len(b)-len(prefix), SealedLen(n))
			}
			if !bytes.Equal(data, payload(1, n)) {
				t.Fatal("plaintext was written to")
			}
			list := r.open(t, b[len(prefix):])
			if len(list) != (n+MaxPlaintext-1)/MaxPlaintext {
				t.Fatalf("%d octets: %d records", n, len(list))
			}
			var got []byte
			for i, rec := range list {
				if rec.typ != 23 || i < len(list)-1 && len(rec.content) != MaxPlaintext {
					t.Fatalf("%d octets: %s", n, text(list))
				}
				got = append(got, rec.content...)
			}
			if !bytes.Equal(got, data) {
				t.Fatalf("%d octets arrive changed", n)
			}
		}
	})
}

// The two ways to seal give the same octets, also where keys change in the middle
// of a batch.
func TestSealBatchIsAppendRecordsInPlace(t *testing.T) {
	for _, limit := range []uint64{0, 2, 3, 4, 7} {
		for _, spare := range []int{0, 17, 100, 400_000} {
			a := mustNew(t, withLimit(config(tls.TLS_AES_128_GCM_SHA256, true), limit))
			b := mustNew(t, withLimit(config(tls.TLS_AES_128_GCM_SHA256, true), limit))
			in := newRaw(tls.TLS_AES_128_GCM_SHA256, secretFor(tls.TLS_AES_128_GCM_SHA256, fillClient))
			for i, n := range sizes {
				data := payload(2, n)
				if i%3 == 1 {
					ask := in.keyUpdate(1)
					for _, c := range []*Conn{a, b} {
						if _, err := receive(c, ask); err != nil {
							t.Fatal(err)
						}
					}
				}
				if i%5 == 4 {
					for range 8 {
						d := in.data("x")
						for _, c := range []*Conn{a, b} {
							if _, err := receive(c, d); err != nil {
								t.Fatal(err)
							}
						}
					}
				}
				want, err := a.AppendRecords([]byte("prefix"), data)
				if err != nil {
					t.Fatal(err)
				}
				bb, start := batch([]byte("prefix"), data, spare)
				got, err := b.SealBatch(bb, start)
				if err != nil || !bytes.Equal(got, want) {
					t.Fatalf("limit %d, %d octets, %d spare: %d octets, not %d, or others; %v", limit, n, spare, len(got), len(want), err)
				}
				if spare >= SealedLen(n) && &got[0] != &bb[0] {
					t.Fatal("moved to another buffer")
				}
				if a.Stats() != b.Stats() {
					t.Fatalf("%+v, %+v", a.Stats(), b.Stats())
				}
			}
		}
	}
}

func withLimit(cfg Config, limit uint64) Config {
	cfg.RekeyAfter = limit
	cfg.KeyUpdateBurst = 1 << 30
	return cfg
}

// A batch that is closed between two frames moves nothing: several records, each
// sealed where it lies.
func TestBatchClosedBetweenFrames(t *testing.T) {
	c := mustNew(t, config(tls.TLS_AES_128_GCM_SHA256, true))
	r := newRaw(tls.TLS_AES_128_GCM_SHA256, secretFor(tls.TLS_AES_128_GCM_SHA256, fillServer))
	b := make([]byte, 0, 1<<20)
	home := &b[:1][0]
	var want []byte
	start := 0
	b = b[:HeaderLen]
	for i := range 100 {
		frame := payload(uint64(i), 100+i*37)
		want = append(want, frame...)
		if len(b)-start-HeaderLen+len(frame) > MaxPlaintext {
			var err error
			if b, err = c.SealBatch(b, start); err != nil {
				t.Fatal(err)
			}
			start = len(b)
			b = b[:start+HeaderLen]
		}
		b = append(b, frame...)
	}
	b, err := c.SealBatch(b, start)
	if err != nil || &b[0] != home {
		t.Fatal(err)
	}
	var got []byte
	list := r.open(t, b)
	for _, rec := range list {
		got = append(got, rec.content...)
	}
	if !bytes.Equal(got, want) || len(list) > len(want)/MaxPlaintext+2 {
		t.Fatalf("%d records, %d octets", len(list), len(got))
	}
}

func TestNothingToSendMakesNoRecord(t *testing.T) {
	c := mustNew(t, config(tls.TLS_AES_128_GCM_SHA256, true))
	b, err := c.AppendRecords([]byte("x"), nil)
	if string(b) != "x" || err != nil {
		t.Error(b, err)
	}
	for _, b := range [][]byte{[]byte("x"), []byte("x12345"), []byte("x12")} {
		got, err := c.SealBatch(b, 1)
		if string(got) != "x" || err != nil {
			t.Error(got, err)
		}
	}
	if c.AppendOutput(nil) != nil || c.Pending() || c.Stats() != (Stats{}) {
		t.Error("something was sent")
	}
}

// RFC 8446 5.5: a key's records are counted, its KeyUpdate with them.
func TestOwnKeyIsReplacedAtItsLimit(t *testing.T) {
	eachSuite(t, func(t *testing.T, suite uint16) {
		c := mustNew(t, withLimit(config(suite, true), 4))
		r := newRaw(suite, secretFor(suite, fillServer))
		var said []string
		for range 7 {
			b, err := c.AppendRecords(nil, []byte("x"))
			if err != nil {
				t.Fatal(err)
			}
			said = append(said, text(r.open(t, b)))
		}
		x, ku := `data "x"`, `handshake 1800000100, data "x"`
		if got, want := fmt.Sprint(said), fmt.Sprint([]string{x, x, x, ku, x, x, ku}); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if st := c.Stats(); st.KeyUpdatesOut != 2 || st.RecordsOut != 9 {
			t.Errorf("%+v", st)
		}
	})
}

func TestRekeyLimitCanOnlyBeLowered(t *testing.T) {
	for given, want := range map[uint64]uint64{0: RekeyLimit, 1: 2, 2: 2, 1 << 40: RekeyLimit, 1000: 1000} {
		if c := mustNew(t, withLimit(config(tls.TLS_AES_128_GCM_SHA256, true), given)); c.cfg.limit != want {
			t.Errorf("%d became %d", given, c.cfg.limit)
		}
	}
	if RekeyLimit > 1<<23 || DefaultKeyUpdateBurst < 1 {
		t.Error("limits")
	}
}

func TestAppendKeyUpdate(t *testing.T) {
	eachSuite(t, func(t *testing.T, suite uint16) {
		cfg := config(suite, false)
		c := mustNew(t, cfg)
		in, out := newRaw(suite, cfg.Read.Secret), newRaw(suite, cfg.Write.Secret)
		if _, err := receive(c, in.keyUpdate(1)); err != nil {
			t.Fatal(err)
		}
		b, err := c.AppendKeyUpdate([]byte{}, true)
		if err != nil {
			t.Fatal(err)
		}
		b, err = c.AppendKeyUpdate(b, false)
		if err != nil {
			t.Fatal(err)
		}
		b, err = c.AppendRecords(b, []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		// The answer asks nothing (4.6.3), so asking takes another.
		if got := text(out.open(t, b)); got != `handshake 1800000100, handshake 1800000101, handshake 1800000100, data "x"` {
			t.Error(got)
		}
	})
}

func TestCloseNotifyEndsWritingOnly(t *testing.T) {
	cfg := config(tls.TLS_AES_128_GCM_SHA256, true)
	c := mustNew(t, cfg)
	in, out := newRaw(cfg.Suite, cfg.Read.Secret), newRaw(cfg.Suite, cfg.Write.Secret)
	b, err := c.AppendRecords(nil, []byte("last words"))
	if err != nil {
		t.Fatal(err)
	}
	b = c.AppendCloseNotify(b)
	if got := text(out.open(t, b)); got != `data "last words", alert 1 close_notify` {
		t.Error(got)
	}
	if c.wr.secret != [maxSecret]byte{} || c.wr.aead != nil {
		t.Error("secrets of an ended direction were kept")
	}
	if b, err := c.AppendRecords([]byte("as it was"), []byte("x")); err != ErrClosed || string(b) != "as it was" {
		t.Error(b, err)
	}
	bb, start := batch([]byte("as it was"), []byte("x"), 99)
	if b, err := c.SealBatch(bb, start); err != ErrClosed || string(b) != "as it was" {
		t.Error(b, err)
	}
	if b, err := c.AppendKeyUpdate([]byte("as it was"), true); err != ErrClosed || string(b) != "as it was" {
		t.Error(b, err)
	}
	if len(c.AppendCloseNotify(nil)) != 0 || len(c.AppendAlert(nil, AlertInternalError)) != 0 || c.Pending() {
		t.Error("said more after close_notify")
	}
	got, err := receive(c, in.data("still heard"))
	if string(got) != "still heard" || err != nil {
		t.Error(got, err)
	}
}

func TestWritingGoesOnAfterThePeersCloseNotify(t *testing.T) {
	cfg := config(tls.TLS_AES_128_GCM_SHA256, true)
	c := mustNew(t, cfg)
	in, out := newRaw(cfg.Suite, cfg.Read.Secret), newRaw(cfg.Suite, cfg.Write.Secret)
	// What it asked for before it left is still owed.
	_, _ = receive(c, join(in.keyUpdate(1), in.seal(21, []byte{1, 0}, 0)))
	b, err := c.AppendRecords(nil, []byte("x"))
	if got := text(out.open(t, c.AppendCloseNotify(b))); err != nil || got != `handshake 1800000100, data "x", alert 1 close_notify` {
		t.Error(got, err)
	}
}

func TestAppendAlert(t *testing.T) {
	cfg := config(tls.TLS_CHACHA20_POLY1305_SHA256, true)
	c := mustNew(t, cfg)
	in, out := newRaw(cfg.Suite, cfg.Read.Secret), newRaw(cfg.Suite, cfg.Write.Secret)
	b := c.AppendAlert(nil, AlertUserCanceled) // announces, ends nothing
	b, err := c.AppendRecords(b, []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	b = c.AppendAlert(b, AlertInternalError)
	b = c.AppendAlert(b, AlertInternalError)
	if got := text(out.open(t, b)); got != `alert 1 user_canceled, data "x", alert 2 internal_error` {
		t.Error(got)
	}
	if _, err := c.AppendRecords(nil, []byte("x")); err != ErrClosed {
		t.Error(err)
	}
	if got, err := receive(c, in.data("y")); len(got) != 0 || err != ErrClosed {
		t.Error("a fatal alert must end both directions:", got, err)
	}
}

func TestAlertNames(t *testing.T) {
	for a, want := range map[Alert]string{
		0: "close_notify", 10: "unexpected_message", 20: "bad_record_mac", 22: "record_overflow", 47: "illegal_parameter",
		50: "decode_error", 70: "protocol_version", 80: "internal_error", 90: "user_canceled", 40: "40",
	} {
		if a.String() != want {
			t.Errorf("%d is %s", a, a)
		}
	}
	if got := RemoteAlert(40).Error(); got != "tlsrecord: peer sent alert 40" {
		t.Error(got)
	}
}

// seen is an AEAD whose state a test can look at.
type seen struct {
	cipher.AEAD
	key [32]byte
}

// wiper is one that erases itself.
type wiper struct{ *seen }

func (w wiper) Wipe() { *w.seen = seen{} }

func TestSecretsAreErased(t *testing.T) {
	for _, suite := range []uint16{tls.TLS_AES_128_GCM_SHA256, tls.TLS_AES_256_GCM_SHA384} {
		var made []*seen
		cfg := config(suite, true)
		cfg.AESGCM = func(key []byte) (cipher.AEAD, error) {
			aead, err := newAESGCM(key)
			s := &seen{AEAD: aead}
			copy(s.key[:], key)
			made = append(made, s)
			if suite == tls.TLS_AES_128_GCM_SHA256 {
				return wiper{s}, err
			}
			return s, err
		}
		live := func() (n int) {
			for _, s := range made {
				if s.key != [32]byte{} || s.AEAD != nil {
					n++
				}
			}
			return n
		}
		c := mustNew(t, cfg)
		first := [2][maxSecret]byte{c.rd.secret, c.wr.secret}
		if len(made) != 2 || live() != 2 {
			t.Fatal("no keys")
		}
		in := newRaw(suite, cfg.Read.Secret)
		if _, err := receive(c, in.keyUpdate(1)); err != nil {
			t.Fatal(err)
		}
		c.AppendOutput(nil)
		if len(made) != 4 || live() != 2 || c.rd.secret == first[0] || c.wr.secret == first[1] {
			t.Fatal("an update kept the old key or secret")
		}
		c.Idle()
		if live() != 0 || c.Expanded() || c.rd.nonce != [ivLen]byte{} || c.wr.iv != 0 {
			t.Fatal("Idle kept a key")
		}
		if got, err := receive(c, in.data("x")); string(got) != "x" || err != nil {
			t.Fatal("not derived again:", got, err)
		}
		if b, err := c.AppendRecords(nil, []byte("x")); err != nil || len(b) != 1+Overhead || live() != 2 {
			t.Fatal("not derived again:", err)
		}
		part := in.data("partial")
		if _, err := receive(c, part[:20]); err != nil {
			t.Fatal(err)
		}
		c.Wipe()
		c.Wipe()
		if live() != 0 || c.rd.secret != [maxSecret]byte{} || c.wr.secret != [maxSecret]byte{} || c.Buffered() != 0 {
			t.Fatal("Wipe kept something")
		}
		if _, ok, err := c.Poll(); ok || err != ErrWiped {
			t.Error(err)
		}
		if _, err := c.AppendRecords(nil, []byte("x")); err != ErrWiped {
			t.Error(err)
		}
		if len(c.AppendOutput(nil))+len(c.AppendCloseNotify(nil)) != 0 {
			t.Error("said something without a key")
		}
	}
}

func TestWipeBeforeTheAlertWasSent(t *testing.T) {
	c := mustNew(t, config(tls.TLS_AES_128_GCM_SHA256, true))
	if _, err := receive(c, make([]byte, 99)); err != ErrContentType || !c.Pending() {
		t.Fatal(err)
	}
	c.Wipe()
	if c.Pending() || len(c.AppendOutput(nil)) != 0 || c.wr.secret != [maxSecret]byte{} {
		t.Error("an alert without a key")
	}
	if _, _, err := c.Poll(); err != ErrContentType {
		t.Error("the first error is the one that counts:", err)
	}
}

// A fault's alert can still be sent after Idle.
func TestAlertAfterIdle(t *testing.T) {
	cfg := config(tls.TLS_AES_128_GCM_SHA256, true)
	c := mustNew(t, cfg)
	_, _ = receive(c, make([]byte, 99))
	c.Idle()
	if said := text(newRaw(cfg.Suite, cfg.Write.Secret).open(t, c.AppendOutput(nil))); said != "alert 2 unexpected_message" {
		t.Error(said)
	}
}

var errKey = errors.New("no key today")

// What fails while a key is replaced ends the connection and sends no half record.
func TestKeyThatCannotBeMade(t *testing.T) {
	left := 2
	cfg := config(tls.TLS_AES_128_GCM_SHA256, true)
	cfg.RekeyAfter = 3
	cfg.AESGCM = func(key []byte) (cipher.AEAD, error) {
		if left--; left < 0 {
			return nil, errKey
		}
		return newAESGCM(key)
	}
	c := mustNew(t, cfg)
	if b, err := c.AppendRecords(nil, make([]byte, 3*MaxPlaintext)); err != errKey || len(b) != 0 {
		t.Fatal(len(b), err)
	}
	if _, err := c.AppendRecords(nil, []byte("x")); err != errKey {
		t.Fatal(err)
	}
	for _, how := range []string{"batch", "update", "output", "idle", "idle alert", "read", "idle read"} {
		left = 2
		c = mustNew(t, cfg)
		in := newRaw(cfg.Suite, cfg.Read.Secret)
		var err error
		var b []byte
		switch how {
		case "batch":
			bb, start := batch(nil, make([]byte, 5*MaxPlaintext), 0)
			b, err = c.SealBatch(bb, start)
		case "update":
			b, err = c.AppendKeyUpdate(nil, true)
		case "output":
			left = 1
			if _, err := receive(c, in.keyUpdate(1)); err != nil {
				t.Fatal(err)
			}
			c.AppendOutput(nil) // the KeyUpdate is out, the key behind it is not to be had
			_, err = c.AppendRecords(nil, []byte("x"))
		case "idle":
			c.Idle()
			b, err = c.AppendRecords(nil, []byte("x"))
		case "idle alert":
			c.Idle()
			b, err = c.AppendCloseNotify(nil), errKey
		case "read":
			_, err = receive(c, in.keyUpdate(1))
		case "idle read":
			c.Idle()
			_, err = receive(c, in.data("x"))
		}
		if err != errKey || len(b) != 0 {
			t.Errorf("%s: %d octets, %v", how, len(b), err)
		}
	}
	left = 1
	if _, err := New(cfg); err != errKey {
		t.Error(err)
	}
}

func TestNewRefuses(t *testing.T) {
	good := config(tls.TLS_AES_256_GCM_SHA384, true)
	for name, tc := range map[string]struct {
		change func(*Config)
		want   error
	}{
		"no suite":           {func(c *Config) { c.Suite = 0 }, ErrSuite},
		"a suite of TLS 1.2": {func(c *Config) { c.Suite = tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 }, ErrSuite},
		"CCM":                {func(c *Config) { c.Suite = 0x1304 }, ErrSuite},
		"no secret":          {func(c *Config) { c.Read.Secret = nil }, ErrSecret},
		"a short secret":     {func(c *Config) { c.Write.Secret = c.Write.Secret[1:] }, ErrSecret},
		"another hash":       {func(c *Config) { c.Suite = tls.TLS_AES_128_GCM_SHA256 }, ErrSecret},
	} {
		cfg := good
		tc.change(&cfg)
		if c, err := New(cfg); c != nil || err != tc.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := mustNew(t, good)
	good.Read.Secret[0] ^= 1 // copied
	if c.rd.secret[0] == good.Read.Secret[0] || c.Suite() != tls.TLS_AES_256_GCM_SHA384 {
		t.Error("kept the caller's secret")
	}
}

func TestNothingPrintsASecret(t *testing.T) {
	c := mustNew(t, config(tls.TLS_AES_128_GCM_SHA256, true))
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d"} {
		if got := fmt.Sprintf(verb, c); got != "tlsrecord.Conn(TLS_AES_128_GCM_SHA256, redacted)" {
			t.Errorf("%s: %s", verb, got)
		}
	}
	cfg := config(tls.TLS_AES_128_GCM_SHA256, true)
	h := NewServerHandover(nil, nil)
	h.keys.client.set([]byte("CLIENT_TRAFFIC_SECRET_0 00 " + strings.Repeat("7e", 32) + "\n"))
	for _, verb := range []string{"%v", "%+v", "%#v", "%x"} {
		got := fmt.Sprintf(verb, h) + fmt.Sprintf(verb, &h.keys) + fmt.Sprintf(verb, cfg) + fmt.Sprintf(verb, cfg.Read)
		for _, part := range []string{"7e7e", "126 126", "0x7e", "c1c1", "193 193", "0xc1"} {
			if strings.Contains(got, part) {
				t.Errorf("%s: %s", verb, got)
			}
		}
	}
}
