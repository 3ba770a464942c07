package tlsrecord

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/internal/buf"
)

// Whatever arrives without the key: no data, a bounded amount of memory, and the
// same end however it is cut.
func FuzzRecords(f *testing.F) {
	f.Add([]byte{23, 3, 3, 0, 17, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}, uint8(3), false)
	f.Add([]byte{23, 3, 3, 0x41, 0}, uint8(1), true)
	f.Add([]byte{20, 3, 3, 0, 1, 1}, uint8(1), true)
	f.Add([]byte{21, 3, 3, 0, 2, 2, 40}, uint8(200), false)
	f.Fuzz(func(t *testing.T, b []byte, piece uint8, server bool) {
		budget := buf.NewBudget(1 << 20)
		cfg := config(tls.TLS_AES_128_GCM_SHA256, server)
		cfg.Budget = budget
		whole, cut := mustNew(t, cfg), mustNew(t, cfg)
		got, err := receive(whole, b)
		gotCut, errCut := receive(cut, b, int(piece))
		if len(got)+len(gotCut) != 0 {
			t.Fatal("data without the key")
		}
		if err != errCut {
			t.Fatalf("whole: %v, cut: %v", err, errCut)
		}
		if _, ok := isFault(err); err != nil && !ok {
			t.Fatal(err)
		}
		if whole.Buffered() != cut.Buffered() || whole.Buffered() > MaxRecordLen || budget.Used() > 8*int64(len(b))+2*buf.MinClass {
			t.Fatalf("%d octets held, %d counted, of %d", whole.Buffered(), budget.Used(), len(b))
		}
		for _, c := range []*Conn{whole, cut} {
			said := newRaw(cfg.Suite, cfg.Write.Secret).open(t, c.AppendOutput(nil))
			if (err != nil) != (len(said) == 1 && said[0].typ == 21) {
				t.Fatalf("%v, said %s", err, text(said))
			}
			c.Wipe()
		}
		if budget.Used() != 0 {
			t.Fatal("octets not given back")
		}
	})
}

// stream makes a stream of records, right and wrong, out of a fuzzer's octets.
func stream(r *raw, script []byte) []byte {
	var out []byte
	next := func() int {
		if len(script) == 0 {
			return 0
		}
		b := script[0]
		script = script[1:]
		return int(b)
	}
	take := func(n int) []byte {
		n = min(n, len(script))
		b := script[:n]
		script = script[n:]
		return b
	}
	for ops := 0; len(script) > 0 && ops < 64; ops++ {
		switch op := next(); op % 20 {
		case 0, 1, 2, 3:
			out = append(out, r.seal(23, bytes.Repeat([]byte{byte(op)}, next()), 0)...)
		case 4:
			out = append(out, r.seal(23, bytes.Repeat([]byte{byte(op)}, next()), next())...)
		case 5:
			out = append(out, r.seal(23, bytes.Repeat([]byte{byte(op)}, next()*65), next()*3)...)
		case 6:
			out = append(out, r.keyUpdate(byte(next()&1))...)
		case 7:
			out = append(out, r.keyUpdate(byte(next()))...)
		case 8:
			out = append(out, r.seal(22, message(4, ticket(next(), next()*9, string(take(next()&15)))), 0)...)
		case 9:
			out = append(out, r.seal(22, take(next()&31), 0)...)
		case 10: // a message in pieces
			m := message(4, ticket(3, 40, ""))
			n := next() % len(m)
			out = append(out, r.seal(22, m[:n], 0)...)
			out = append(out, r.seal(22, m[n:], next())...)
		case 11:
			out = append(out, r.seal(21, []byte{byte(next() & 3), byte(next())}, 0)...)
		case 12:
			out = append(out, r.seal(21, []byte{1, byte(next() & 1 * 90)}, 0)...)
		case 13:
			typ := byte(next())
			if typ == typeChangeCipherSpec {
				typ = 99 // crypto/tls skips it even where it is protected
			}
			out = append(out, r.seal(typ, take(next()&15), next()&3)...)
		case 14:
			if len(out) > 0 {
				out[len(out)-1-next()%len(out)] ^= byte(1 << (next() & 7))
			}
		case 15:
			out = append(out, r.inner(byte(22+next()&1), 0x0300+uint16(next()&7), take(next()&31))...)
		case 16:
			out = append(out, take(next()&31)...)
		case 17:
			out = append(out, r.inner(23, 0x0303, make([]byte, next()*66))...)
		case 18:
			out = append(out, 20, 3, 3, 0, 1, 1)
		case 19:
			if n := next(); n < len(out) {
				out = out[:len(out)-n]
			}
		}
	}
	return out
}

// Faults that crypto/tls doesn't see, or only later: it skips change_cipher_spec for
// good, takes an empty inner plaintext for empty data, is content with less of a
// ticket, forgives any number of KeyUpdates with data between them, and reads a
// record to its end before it judges its type and a message to its end before it
// judges what it is. What it does after that is no oracle for anything.
var unseen = []error{ErrChangeCipherSpec, ErrNoContent, ErrMessage, ErrKeyUpdates,
	ErrContentType, ErrTooShort, ErrMessageType, ErrMessageTooLong}

// crypto/tls and our machine read the same stream with the same keys.
func FuzzAgainstCryptoTLS(f *testing.F) {
	f.Add([]byte{0, 9, 1, 200, 6, 0, 2, 9, 12, 0}, uint16(5), uint8(0), false)
	f.Add([]byte{6, 1, 0, 9, 6, 1, 0, 3, 8, 1, 9, 0, 0, 9, 11, 2, 20}, uint16(1), uint8(1), true)
	f.Add([]byte{5, 252, 5, 5, 253, 255, 17, 250, 4, 0, 0, 4, 0, 3, 0, 1}, uint16(999), uint8(2), true)
	f.Add([]byte{10, 20, 5, 0, 3, 9, 3, 24, 0, 0, 9, 2, 1, 0, 0, 2}, uint16(23), uint8(3), false)
	f.Add([]byte{0, 3, 14, 5, 1, 0, 4}, uint16(2), uint8(4), false)
	f.Add([]byte{0, 3, 18, 0, 3, 16, 7, 20, 3, 3, 0, 1, 1, 1}, uint16(2), uint8(5), true)
	f.Add([]byte{7, 2, 0, 1}, uint16(2), uint8(6), true)
	f.Add([]byte{13, 24, 2, 1, 1, 0}, uint16(2), uint8(7), false)
	f.Add([]byte{0, 5, 0, 5, 19, 3}, uint16(2), uint8(8), false)
	f.Add([]byte{15, 1, 3, 5, 1, 2, 3, 4, 23, 15, 1, 4, 1, 23}, uint16(2), uint8(8), false)
	f.Fuzz(func(t *testing.T, script []byte, piece uint16, kind uint8, server bool) {
		suite := everySuite[int(kind)%len(everySuite)]
		r := unshaken(t, server, nil, nil)
		r.shake(suite)
		readSecret, writeSecret := bytes.Clone(r.h.keys.server.bytes()), bytes.Clone(r.h.keys.client.bytes())
		if server {
			readSecret, writeSecret = writeSecret, readSecret
		}
		cfg := Config{Suite: suite, Server: server, Read: Keys{Secret: readSecret}, Write: Keys{Secret: writeSecret}}
		b := stream(newRaw(suite, readSecret), script)

		whole, cut := mustNew(t, cfg), mustNew(t, cfg)
		got, err := receive(whole, b)
		gotCut, errCut := receive(cut, b, int(piece), 1+int(piece)/3)
		said := whole.AppendOutput(nil)
		if !bytes.Equal(got, gotCut) || err != errCut || !bytes.Equal(said, cut.AppendOutput(nil)) {
			t.Fatalf("whole: %d octets, %v; cut: %d octets, %v", len(got), err, len(gotCut), errCut)
		}

		_, _ = r.far.Write(b)
		theirs, theirErr := readAll(r.tc)
		theirSaid := newRaw(suite, writeSecret).open(t, r.far.in.take())
		ourSaid := newRaw(suite, writeSecret).open(t, said)

		switch {
		case theirErr != nil && strings.Contains(theirErr.Error(), "too many"):
			// It counts key updates with the records that bring nothing.
			if !bytes.HasPrefix(got, theirs) {
				t.Fatal("data differs")
			}
			return
		case slices.Contains(unseen, err):
			if !bytes.HasPrefix(theirs, got) {
				t.Fatalf("%v: data differs", err)
			}
			return
		case err == ErrFlood && theirErr == nil:
			t.Fatal("we lost patience first")
		case (err == nil) != (theirErr == nil), (err == io.EOF) != (theirErr == io.EOF):
			t.Fatalf("we say %v, crypto/tls says %v", err, theirErr)
		case !bytes.Equal(got, theirs):
			t.Fatalf("%v: data differs: %d and %d octets", err, len(got), len(theirs))
		}
		var remote RemoteAlert
		if errors.As(err, &remote) != (theirErr != nil && strings.HasPrefix(theirErr.Error(), "remote error")) {
			t.Fatalf("we say %v, crypto/tls says %v", err, theirErr)
		}
		// What was said: the same alert, and an answer to a KeyUpdate if there is
		// one; crypto/tls gives as many as it was asked for, and before its alert.
		alert := func(list []rawRecord) int {
			if n := len(list); n > 0 && list[n-1].typ == 21 {
				return int(list[n-1].content[1])
			}
			return -1
		}
		ours, their := alert(ourSaid), alert(theirSaid)
		// Which alert is settled by the tests of each fault; where a record breaks
		// several rules, crypto/tls may judge by another one than we do.
		if ours == -1 && their != -1 {
			t.Fatalf("%v: we sent no alert, crypto/tls sent %v (%v)", err, their, theirErr)
		}
		if err == nil && (len(ourSaid) > 0) != (len(theirSaid) > 0) {
			t.Fatalf("we said %s, crypto/tls said %s", text(ourSaid), text(theirSaid))
		}
	})
}

// Whatever is sealed, in whatever way and with whatever limits, comes out at the
// other end; both ways of sealing give the same octets.
func FuzzSeal(f *testing.F) {
	f.Add([]byte{0, 1, 2, 0, 200, 3, 9, 9, 1, 255, 255}, uint8(0), uint8(3))
	f.Add([]byte{1, 64, 0, 1, 64, 1, 2, 1, 255, 0, 3, 0, 128, 4}, uint8(1), uint8(200))
	f.Fuzz(func(t *testing.T, script []byte, limit, kind uint8) {
		suite := everySuite[int(kind)%len(everySuite)]
		change := func(c *Config) { c.RekeyAfter, c.KeyUpdateBurst = uint64(limit), 1<<30 }
		a, peer := newPair(t, suite, change)
		b, _ := newPair(t, suite, change)
		r := newRaw(suite, secretFor(suite, fillClient))
		var sent, got []byte
		for ops := 0; len(script) >= 3 && ops < 40; ops++ {
			op, n := script[0], int(script[1])<<8|int(script[2])
			script = script[3:]
			var x, y []byte
			var errX, errY error
			records := 0
			switch op % 5 {
			case 0, 1, 2:
				data := payload(uint64(ops), n*3/2)
				sent = append(sent, data...)
				records = (len(data) + MaxPlaintext - 1) / MaxPlaintext
				x, errX = a.AppendRecords(nil, data)
				bb, start := batch(data[:min(len(data), 9)], data, n)
				y, errY = b.SealBatch(bb, start)
				y = y[start:]
			case 3:
				x, errX = a.AppendKeyUpdate(nil, n&1 == 1)
				y, errY = b.AppendKeyUpdate(nil, n&1 == 1)
			case 4: // the peer asks
				ask, err := peer.AppendKeyUpdate(nil, true)
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range []*Conn{a, b} {
					if _, err := receive(c, ask); err != nil {
						t.Fatal(err)
					}
				}
			}
			if errX != nil || errY != nil || !bytes.Equal(x, y) {
				t.Fatalf("%d and %d octets, %v, %v", len(x), len(y), errX, errY)
			}
			for _, rec := range r.open(t, x) {
				if rec.typ == 23 {
					records--
				}
			}
			if records != 0 {
				t.Fatalf("%d records too few", records)
			}
			p, err := receive(peer, x, 1+n)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, p...)
			// What the peer has to say, to both.
			say := peer.AppendOutput(nil)
			for _, c := range []*Conn{a, b} {
				if _, err := receive(c, say); err != nil {
					t.Fatal(err)
				}
			}
		}
		if !bytes.Equal(sent, got) {
			t.Fatalf("%d octets became %d", len(sent), len(got))
		}
		if a.Stats() != b.Stats() {
			t.Fatalf("%+v, %+v", a.Stats(), b.Stats())
		}
	})
}
