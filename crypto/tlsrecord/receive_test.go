package tlsrecord

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/internal/buf"
)

// ticket is the body of a NewSessionTicket.
func ticket(nonce, label int, extensions string) []byte {
	b := []byte{0, 0, 0x1c, 0x20, 1, 2, 3, 4, byte(nonce)}
	b = append(b, make([]byte, nonce)...)
	b = append(b, byte(label>>8), byte(label))
	b = append(b, make([]byte, label)...)
	b = append(b, byte(len(extensions)>>8), byte(len(extensions)))
	return append(b, extensions...)
}

func message(t byte, body []byte) []byte {
	return append([]byte{t, byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...)
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func repeat(n int, f func() []byte) []byte {
	var b []byte
	for range n {
		b = append(b, f()...)
	}
	return b
}

// Each case is a stream of records by an independent sealer, and what must come of
// it, however the stream is cut: the data before the end, the error, and the
// alert that the peer gets.
var receiveCases = []struct {
	name   string
	stream func(r *raw) []byte
	server bool
	data   string
	err    error
	said   string
}{
	{name: "data record by record", stream: func(r *raw) []byte {
		return join(r.data("one"), r.data("two"), r.data("three"))
	}, data: "onetwothree"},
	{name: "zero padding is stripped (5.4)", stream: func(r *raw) []byte {
		return join(r.seal(23, []byte("a"), 1), r.seal(23, []byte("b\x00"), 7), r.seal(23, []byte("\x00c"), 8),
			r.seal(23, []byte("d"), 300), r.seal(23, []byte("e"), MaxPlaintext-1))
	}, data: "ab\x00\x00cde"},
	{name: "content of 2^14 octets fits (5.1)", stream: func(r *raw) []byte {
		return r.seal(23, bytes.Repeat([]byte{'x'}, MaxPlaintext), 0)
	}, data: strings.Repeat("x", MaxPlaintext)},
	{name: "content and padding above 2^14 (5.4)", stream: func(r *raw) []byte {
		return join(r.data("a"), r.seal(23, []byte("b"), MaxPlaintext))
	}, data: "a", err: ErrInnerTooLong, said: "alert 2 record_overflow"},
	{name: "content above 2^14 (5.1)", stream: func(r *raw) []byte {
		return join(r.data("a"), r.seal(23, make([]byte, MaxPlaintext+1), 0))
	}, data: "a", err: ErrInnerTooLong, said: "alert 2 record_overflow"},
	{name: "the longest record there may be still has too long an inner (5.2)", stream: func(r *raw) []byte {
		return r.inner(23, 0x0303, bytes.Repeat([]byte{1}, maxCiphertext-tagLen))
	}, err: ErrInnerTooLong, said: "alert 2 record_overflow"},
	{name: "record above 2^14+256 (5.2)", stream: func(r *raw) []byte {
		return join(r.data("a"), []byte{23, 3, 3, 0x41, 0x01})
	}, data: "a", err: ErrTooLong, said: "alert 2 record_overflow"},
	{name: "all-zero inner (5.4)", stream: func(r *raw) []byte {
		return join(r.data("a"), r.inner(23, 0x0303, make([]byte, 40)))
	}, data: "a", err: ErrNoContent, said: "alert 2 unexpected_message"},
	{name: "empty inner (5.4)", stream: func(r *raw) []byte {
		return r.inner(23, 0x0303, nil)
	}, err: ErrNoContent, said: "alert 2 unexpected_message"},
	{name: "record shorter than a tag", stream: func(r *raw) []byte {
		return join(r.data("a"), []byte{23, 3, 3, 0, 15})
	}, data: "a", err: ErrTooShort, said: "alert 2 bad_record_mac"},
	{name: "record replayed (5.3)", stream: func(r *raw) []byte {
		a := r.data("a")
		return join(a, a)
	}, data: "a", err: ErrTag, said: "alert 2 bad_record_mac"},
	{name: "record left out (5.3)", stream: func(r *raw) []byte {
		a, _, c := r.data("a"), r.data("b"), r.data("c")
		return join(a, c)
	}, data: "a", err: ErrTag, said: "alert 2 bad_record_mac"},
	{name: "other outer type under the key (5.2)", stream: func(r *raw) []byte {
		return r.inner(22, 0x0303, []byte("x\x17"))
	}, err: ErrContentType, said: "alert 2 unexpected_message"},
	{name: "unprotected alert", stream: func(r *raw) []byte {
		return join(r.data("a"), []byte{21, 3, 3, 0, 2, 1, 0})
	}, data: "a", err: ErrContentType, said: "alert 2 unexpected_message"},
	{name: "change_cipher_spec after the handshake (5)", stream: func(r *raw) []byte {
		return join(r.data("a"), []byte{20, 3, 3, 0, 1, 1})
	}, data: "a", err: ErrChangeCipherSpec, said: "alert 2 unexpected_message"},
	{name: "protected change_cipher_spec (5)", stream: func(r *raw) []byte {
		return r.seal(20, []byte{1}, 0)
	}, err: ErrInnerType, said: "alert 2 unexpected_message"},
	{name: "heartbeat", stream: func(r *raw) []byte {
		return r.seal(24, []byte{1, 0, 0}, 0)
	}, err: ErrInnerType, said: "alert 2 unexpected_message"},
	{name: "record version 0x0301 (5.2)", stream: func(r *raw) []byte {
		return join(r.data("a"), r.inner(23, 0x0301, []byte("x\x17")))
	}, data: "a", err: ErrVersion, said: "alert 2 protocol_version"},
	{name: "record version 0x0304 (5.2)", stream: func(r *raw) []byte {
		return r.inner(23, 0x0304, []byte("x\x17"))
	}, err: ErrVersion, said: "alert 2 protocol_version"},

	{name: "some empty records", stream: func(r *raw) []byte {
		return join(repeat(16, func() []byte { return r.data("") }), r.data("a"), repeat(16, func() []byte { return r.seal(23, nil, 5) }), r.data("b"))
	}, data: "ab"},
	{name: "too many empty records", stream: func(r *raw) []byte {
		return join(r.data("a"), repeat(17, func() []byte { return r.data("") }), r.data("b"))
	}, data: "a", err: ErrFlood, said: "alert 2 unexpected_message"},
	{name: "empty alert record (5.1)", stream: func(r *raw) []byte {
		return r.seal(21, nil, 0)
	}, err: ErrEmpty, said: "alert 2 unexpected_message"},
	{name: "empty handshake record (5.1)", stream: func(r *raw) []byte {
		return r.seal(22, nil, 9)
	}, err: ErrEmpty, said: "alert 2 unexpected_message"},

	{name: "close_notify ends reading (6.1)", stream: func(r *raw) []byte {
		return join(r.data("a"), r.seal(21, []byte{1, 0}, 0))
	}, data: "a", err: io.EOF},
	{name: "close_notify, whatever its level (6)", stream: func(r *raw) []byte {
		return r.seal(21, []byte{2, 0}, 0)
	}, err: io.EOF},
	{name: "what follows close_notify is ignored (6.1)", stream: func(r *raw) []byte {
		return join(r.data("a"), r.seal(21, []byte{1, 0}, 0), []byte("anything at all"))
	}, data: "a", err: io.EOF},
	{name: "fatal alert (6.2)", stream: func(r *raw) []byte {
		return join(r.data("a"), r.seal(21, []byte{2, 40}, 0), r.data("b"))
	}, data: "a", err: RemoteAlert(40)},
	{name: "an error alert is fatal whatever its level (6.2)", stream: func(r *raw) []byte {
		return r.seal(21, []byte{1, 20}, 0)
	}, err: RemoteAlert(AlertBadRecordMAC)},
	{name: "unknown alert (6)", stream: func(r *raw) []byte {
		return r.seal(21, []byte{1, 200}, 0)
	}, err: RemoteAlert(200)},
	{name: "user_canceled, then close_notify (6.1)", stream: func(r *raw) []byte {
		return join(r.seal(21, []byte{1, 90}, 0), r.data("a"), r.seal(21, []byte{1, 0}, 0))
	}, data: "a", err: io.EOF},
	{name: "too many user_canceled", stream: func(r *raw) []byte {
		return repeat(17, func() []byte { return r.seal(21, []byte{1, 90}, 0) })
	}, err: ErrFlood, said: "alert 2 unexpected_message"},
	{name: "alert split over records (5.1)", stream: func(r *raw) []byte {
		return join(r.seal(21, []byte{1}, 0), r.seal(21, []byte{0}, 0))
	}, err: ErrAlert, said: "alert 2 decode_error"},
	{name: "two alerts in a record (5.1)", stream: func(r *raw) []byte {
		return r.seal(21, []byte{1, 90, 1, 0}, 0)
	}, err: ErrAlert, said: "alert 2 decode_error"},

	{name: "KeyUpdate (4.6.3)", stream: func(r *raw) []byte {
		return join(r.data("a"), r.keyUpdate(0), r.data("b"), r.keyUpdate(0), r.keyUpdate(0), r.data("c"))
	}, data: "abc"},
	{name: "KeyUpdate in pieces", stream: func(r *raw) []byte {
		b := join(r.data("a"), r.seal(22, []byte{24}, 0), r.seal(22, []byte{0, 0}, 3), r.seal(22, []byte{1}, 0), r.seal(22, []byte{0}, 0))
		r.update()
		return append(b, r.data("b")...)
	}, data: "ab"},
	{name: "data under the old key after a KeyUpdate", stream: func(r *raw) []byte {
		return join(r.seal(22, []byte{24, 0, 0, 1, 0}, 0), r.data("b"))
	}, err: ErrTag, said: "alert 2 bad_record_mac"},
	{name: "data under a new key without a KeyUpdate", stream: func(r *raw) []byte {
		a := r.data("a")
		r.update()
		return join(a, r.data("b"))
	}, data: "a", err: ErrTag, said: "alert 2 bad_record_mac"},
	{name: "KeyUpdate that is not the last of its record (5.1)", stream: func(r *raw) []byte {
		return r.seal(22, join(message(24, []byte{0}), message(24, []byte{0})), 0)
	}, err: ErrKeyUpdateNotLast, said: "alert 2 unexpected_message"},
	{name: "ticket behind a KeyUpdate in its record (5.1)", stream: func(r *raw) []byte {
		return r.seal(22, join(message(24, []byte{0}), []byte{4}), 0)
	}, err: ErrKeyUpdateNotLast, said: "alert 2 unexpected_message"},
	{name: "KeyUpdate with another request (4.6.3)", stream: func(r *raw) []byte {
		return r.seal(22, message(24, []byte{2}), 0)
	}, err: ErrKeyUpdateValue, said: "alert 2 illegal_parameter"},
	{name: "KeyUpdate without a request", stream: func(r *raw) []byte {
		return r.seal(22, message(24, nil), 0)
	}, err: ErrMessage, said: "alert 2 decode_error"},
	{name: "KeyUpdate of two octets", stream: func(r *raw) []byte {
		return r.seal(22, message(24, []byte{0, 0}), 0)
	}, err: ErrMessage, said: "alert 2 decode_error"},
	{name: "KeyUpdate that announces much", stream: func(r *raw) []byte {
		return r.seal(22, []byte{24, 0xff, 0xff, 0xff}, 0)
	}, err: ErrMessage, said: "alert 2 decode_error"},
	{name: "KeyUpdates within the allowance", stream: func(r *raw) []byte {
		b := repeat(16, func() []byte { return r.keyUpdate(0) })
		for range 3 {
			b = append(b, repeat(16, func() []byte { return r.data("x") })...)
			b = append(b, r.keyUpdate(0)...)
		}
		return b
	}, data: strings.Repeat("x", 48)},
	{name: "too many KeyUpdates in a row", stream: func(r *raw) []byte {
		return repeat(17, func() []byte { return r.keyUpdate(0) })
	}, err: ErrKeyUpdates, said: "alert 2 unexpected_message"},
	{name: "too many KeyUpdates for the data between", stream: func(r *raw) []byte {
		return repeat(17, func() []byte { return join(r.data("x"), r.keyUpdate(0)) })
	}, data: strings.Repeat("x", 17), err: ErrKeyUpdates, said: "alert 2 unexpected_message"},

	{name: "tickets for a client (4.6.1)", stream: func(r *raw) []byte {
		t := message(4, ticket(2, 100, "\x00\x2a\x00\x04\x00\x00\x04\x00"))
		return join(r.seal(22, t, 0), r.data("a"), r.seal(22, join(t, t), 0), r.data("b"))
	}, data: "ab"},
	{name: "tickets in pieces", stream: func(r *raw) []byte {
		t := message(4, ticket(255, 10000, ""))
		return join(r.seal(22, t[:3], 0), r.seal(22, t[3:9000], 0), r.seal(22, join(t[9000:], t[:1]), 0), r.seal(22, t[1:], 0), r.data("a"))
	}, data: "a"},
	{name: "a ticket, then a KeyUpdate in its record", stream: func(r *raw) []byte {
		b := r.seal(22, join(message(4, ticket(0, 1, "")), message(24, []byte{0})), 0)
		r.update()
		return join(b, r.data("a"))
	}, data: "a"},
	{name: "too many tickets", stream: func(r *raw) []byte {
		return repeat(17, func() []byte { return r.seal(22, message(4, ticket(0, 1, "")), 0) })
	}, err: ErrFlood, said: "alert 2 unexpected_message"},
	{name: "ticket for a server", server: true, stream: func(r *raw) []byte {
		return r.seal(22, message(4, ticket(0, 1, "")), 0)
	}, err: ErrMessageType, said: "alert 2 unexpected_message"},
	{name: "ticket without a ticket (4.6.1)", stream: func(r *raw) []byte {
		return r.seal(22, message(4, ticket(4, 0, "")), 0)
	}, err: ErrMessage, said: "alert 2 decode_error"},
	{name: "ticket cut short", stream: func(r *raw) []byte {
		b := ticket(4, 30, "")
		return r.seal(22, message(4, b[:len(b)-1]), 0)
	}, err: ErrMessage, said: "alert 2 decode_error"},
	{name: "ticket with more behind it", stream: func(r *raw) []byte {
		return r.seal(22, message(4, append(ticket(4, 30, ""), 0)), 0)
	}, err: ErrMessage, said: "alert 2 decode_error"},
	{name: "ticket with broken extensions", stream: func(r *raw) []byte {
		return r.seal(22, message(4, ticket(4, 30, "\x00\x2a\x00\x05\x00\x00\x04\x00")), 0)
	}, err: ErrMessage, said: "alert 2 decode_error"},
	{name: "ticket of absurd length", stream: func(r *raw) []byte {
		return r.seal(22, []byte{4, 0, 0x40, 0x00}, 0)
	}, err: ErrMessageTooLong, said: "alert 2 illegal_parameter"},
	{name: "certificate request that we never offered (4.6.2)", stream: func(r *raw) []byte {
		return r.seal(22, message(13, []byte{0, 0, 0}), 0)
	}, err: ErrMessageType, said: "alert 2 unexpected_message"},
	{name: "ClientHello again (4.1.2)", server: true, stream: func(r *raw) []byte {
		return r.seal(22, []byte{1}, 0)
	}, err: ErrMessageType, said: "alert 2 unexpected_message"},
	{name: "HelloRequest", stream: func(r *raw) []byte {
		return r.seal(22, message(0, nil), 0)
	}, err: ErrMessageType, said: "alert 2 unexpected_message"},

	{name: "data in the middle of a message (5.1)", stream: func(r *raw) []byte {
		return join(r.seal(22, []byte{24, 0}, 0), r.data("a"))
	}, err: ErrInterleaved, said: "alert 2 unexpected_message"},
	{name: "empty data in the middle of a message (5.1)", stream: func(r *raw) []byte {
		return join(r.seal(22, []byte{24, 0}, 0), r.data(""))
	}, err: ErrInterleaved, said: "alert 2 unexpected_message"},
	{name: "close_notify in the middle of a message (5.1)", stream: func(r *raw) []byte {
		return join(r.seal(22, []byte{24, 0}, 0), r.seal(21, []byte{1, 0}, 0))
	}, err: ErrInterleaved, said: "alert 2 unexpected_message"},
}

func TestReceive(t *testing.T) {
	for _, tc := range receiveCases {
		t.Run(tc.name, func(t *testing.T) {
			for i, suite := range everySuite {
				for _, pieces := range splits(uint64(i)) {
					if len(pieces) > 0 && pieces[0] < 10 && len(tc.data) > 4096 {
						continue
					}
					budget := buf.NewBudget(1 << 20)
					cfg := config(suite, tc.server)
					cfg.Budget = budget
					c := mustNew(t, cfg)
					r := newRaw(suite, cfg.Read.Secret)
					got, err := receive(c, tc.stream(r), pieces...)
					if string(got) != tc.data || !errors.Is(err, tc.err) || (tc.err == nil) != (err == nil) {
						t.Fatalf("suite %x, pieces %v: got %d octets (%.20q), %v; want %d octets, %v",
							suite, pieces, len(got), got, err, len(tc.data), tc.err)
					}
					out := newRaw(suite, cfg.Write.Secret)
					if said := text(out.open(t, c.AppendOutput(nil))); said != tc.said {
						t.Fatalf("pieces %v: said %q, want %q", pieces, said, tc.said)
					}
					if c.AppendOutput(nil) != nil {
						t.Fatal("said it twice")
					}
					if f, ok := isFault(err); ok {
						if want := fmt.Sprintf("alert 2 %v", f.Alert); want != tc.said {
							t.Fatalf("the fault's alert is %v, said was %v", want, tc.said)
						}
					}
					if tc.err != nil {
						_, ok, again := c.Poll()
						if ok || again != err {
							t.Fatalf("the error was not final: %v, %v", ok, again)
						}
						if c.Buffered() != 0 || c.rd.secret != [maxSecret]byte{} || c.rd.aead != nil {
							t.Fatal("an ended direction kept octets or secrets")
						}
						if err != io.EOF && (c.wr.secret != [maxSecret]byte{} || c.wr.aead != nil) {
							t.Fatal("the other direction kept its secrets")
						}
						// Only close_notify leaves the other direction alone.
						_, err := c.AppendRecords(nil, []byte("x"))
						if (err == nil) != (tc.err == io.EOF) {
							t.Fatalf("sending afterwards: %v", err)
						}
					}
					c.Wipe()
					if budget.Used() != 0 {
						t.Fatalf("%d octets of the budget were not given back", budget.Used())
					}
				}
			}
		})
	}
}

func TestFaultsAreDistinct(t *testing.T) {
	all := []*Fault{ErrContentType, ErrChangeCipherSpec, ErrVersion, ErrTooLong, ErrTooShort, ErrTag, ErrInnerTooLong,
		ErrNoContent, ErrInnerType, ErrEmpty, ErrFlood, ErrAlert, ErrInterleaved, ErrMessageType, ErrMessageTooLong,
		ErrMessage, ErrKeyUpdateValue, ErrKeyUpdateNotLast, ErrKeyUpdates, ErrBudget}
	seen := map[string]bool{}
	for _, f := range all {
		if seen[f.Error()] || f.Alert.level() != 2 || !strings.HasPrefix(f.Error(), "tlsrecord: ") {
			t.Errorf("%v", f)
		}
		seen[f.Error()] = true
	}
}

func TestTamperingWithAnyOctet(t *testing.T) {
	eachSuite(t, func(t *testing.T, suite uint16) {
		cfg := config(suite, true)
		r := newRaw(suite, cfg.Read.Secret)
		parts := [][]byte{r.data("first"), r.seal(23, []byte("second"), 3), r.keyUpdate(0), r.data("third"), r.seal(21, []byte{1, 0}, 0)}
		before := []string{"", "first", "firstsecond", "firstsecond", "firstsecondthird"}
		stream := join(parts...)
		at := 0
		for i, part := range parts {
			for o := range part {
				for _, mask := range []byte{1, 0x80, 0xff} {
					bad := bytes.Clone(stream)
					bad[at+o] ^= mask
					c := mustNew(t, cfg)
					got, err := receive(c, bad)
					if string(got) != before[i] {
						t.Fatalf("record %d, octet %d: released %q", i, o, got)
					}
					switch {
					case o == 0:
						if err != ErrContentType && err != ErrChangeCipherSpec {
							t.Fatalf("record %d, type: %v", i, err)
						}
					case o < 3:
						if err != ErrVersion {
							t.Fatalf("record %d, version: %v", i, err)
						}
					case o < HeaderLen:
						// Longer than what is there: the rest is waited for.
						if err != ErrTag && err != ErrTooShort && err != ErrTooLong && err != nil {
							t.Fatalf("record %d, length: %v", i, err)
						}
						c.HandleEOF()
						if _, ok, err := c.Poll(); ok || err == nil || err == io.EOF {
							t.Fatalf("record %d, length, at the end: %v", i, err)
						}
					default:
						if err != ErrTag {
							t.Fatalf("record %d, octet %d: %v", i, o, err)
						}
					}
				}
			}
			at += len(part)
		}
	})
}

func TestTruncationAtAnyOctet(t *testing.T) {
	cfg := config(tls.TLS_AES_128_GCM_SHA256, true)
	r := newRaw(cfg.Suite, cfg.Read.Secret)
	a, b, end := r.data("first"), r.data("second"), r.seal(21, []byte{1, 0}, 0)
	stream := join(a, b, end)
	for n := range len(stream) + 1 {
		want := ""
		if n >= len(a) {
			want += "first"
		}
		if n >= len(a)+len(b) {
			want += "second"
		}
		for _, settle := range []bool{false, true} {
			c := mustNew(t, cfg)
			var got []byte
			var err error
			poll := func() {
				for ok := true; ok; {
					var p []byte
					p, ok, err = c.Poll()
					got = append(got, p...)
				}
			}
			c.HandleBytes(bytes.Clone(stream[:n]))
			if settle {
				poll()
				c.Settle()
			}
			c.HandleEOF()
			poll()
			wantErr := ErrTruncated
			if n == len(stream) {
				wantErr = io.EOF
			}
			if string(got) != want || err != wantErr {
				t.Fatalf("%d of %d octets: %q, %v", n, len(stream), got, err)
			}
			if c.Pending() {
				t.Fatal("an alert for nobody")
			}
			if _, err := c.AppendRecords(nil, []byte("x")); err != nil {
				t.Fatalf("the transport's end ended sending: %v", err)
			}
			c.Wipe()
		}
	}
}

// A record's beginning costs what has arrived of it, not what it announces, and
// never more than the record.
func TestPartialRecordsAreCounted(t *testing.T) {
	budget := buf.NewBudget(1 << 20)
	cfg := config(tls.TLS_AES_128_GCM_SHA256, true)
	cfg.Budget = budget
	c := mustNew(t, cfg)
	r := newRaw(cfg.Suite, cfg.Read.Secret)
	rec := r.seal(23, make([]byte, MaxPlaintext), 0)
	next := r.data("next")
	for n := range rec {
		if got, err := receive(c, rec[n:n+1]); err != nil || (len(got) != 0) != (n == len(rec)-1) {
			t.Fatalf("octet %d: %d octets of data, %v", n, len(got), err)
		}
		if n == len(rec)-1 {
			break
		}
		if c.Buffered() != n+1 || budget.Used() > int64(max(buf.MinClass, 4*(n+1))) {
			t.Fatalf("after %d octets %d are held and %d counted", n+1, c.Buffered(), budget.Used())
		}
	}
	if budget.Used() != 0 || c.Buffered() != 0 {
		t.Fatalf("%d octets are counted of nothing", budget.Used())
	}
	if got, err := receive(c, next); string(got) != "next" || err != nil {
		t.Fatal(got, err)
	}
}

func TestPartialRecordWithoutBudget(t *testing.T) {
	for _, limit := range []int64{0, 255, 16 << 10} {
		cfg := config(tls.TLS_AES_128_GCM_SHA256, true)
		cfg.Budget = buf.NewBudget(limit)
		c := mustNew(t, cfg)
		r := newRaw(cfg.Suite, cfg.Read.Secret)
		rec := r.seal(23, make([]byte, MaxPlaintext), 0)
		if _, err := receive(c, rec[:len(rec)-1], 1000); err != nil && err != ErrBudget {
			t.Fatal(err)
		}
		_, err := receive(c, rec[len(rec)-1:])
		if err != ErrBudget {
			t.Fatalf("limit %d: %v", limit, err)
		}
		if said := text(newRaw(cfg.Suite, cfg.Write.Secret).open(t, c.AppendOutput(nil))); said != "alert 2 internal_error" {
			t.Fatal(said)
		}
		if cfg.Budget.Used() != 0 {
			t.Fatal("not given back")
		}
	}
	// A message needs memory only if it is split.
	cfg := config(tls.TLS_AES_128_GCM_SHA256, false)
	cfg.Budget = buf.NewBudget(0)
	c := mustNew(t, cfg)
	r := newRaw(cfg.Suite, cfg.Read.Secret)
	whole := message(4, ticket(9, 9, ""))
	if _, err := receive(c, r.seal(22, whole, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := receive(c, r.seal(22, whole[:9], 0)); err != ErrBudget {
		t.Fatal(err)
	}
}

// All data of one turn stays valid until Settle, and its capacity ends with it.
func TestDataIsBorrowedForTheTurn(t *testing.T) {
	cfg := config(tls.TLS_AES_128_GCM_SHA256, true)
	c := mustNew(t, cfg)
	r := newRaw(cfg.Suite, cfg.Read.Secret)
	stream := join(r.data("one"), r.data("two"), r.data("three"), r.data("four"))
	c.HandleBytes(bytes.Clone(stream[:7]))
	if _, ok, _ := c.Poll(); ok {
		t.Fatal("data too early")
	}
	c.HandleBytes(bytes.Clone(stream[7 : len(stream)-2])) // settles by itself
	var all [][]byte
	for {
		p, ok, err := c.Poll()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		if cap(p) != len(p) {
			t.Error("an append would write over what follows")
		}
		all = append(all, p)
	}
	if got := string(bytes.Join(all, []byte("|"))); got != "one|two|three" {
		t.Error(got)
	}
	c.Settle()
	if got, err := receive(c, stream[len(stream)-2:]); string(got) != "four" || err != nil {
		t.Error(string(got), err)
	}
}

func TestSettleWithRecordsUnread(t *testing.T) {
	for _, first := range []int{0, 3, 11} {
		cfg := config(tls.TLS_AES_128_GCM_SHA256, true)
		c := mustNew(t, cfg)
		r := newRaw(cfg.Suite, cfg.Read.Secret)
		stream := join(r.data("one"), r.data("two"))
		if first > 0 {
			_, _ = receive(c, stream[:first])
		}
		c.HandleBytes(bytes.Clone(stream[first:]))
		c.Settle()
		if _, ok, err := c.Poll(); ok || err != ErrUnpolled {
			t.Errorf("%v, %v", ok, err)
		}
	}
	c := mustNew(t, config(tls.TLS_AES_128_GCM_SHA256, true))
	c.HandleBytes(append([]byte{23, 3, 3, 0xff, 0xff}, make([]byte, 30000)...))
	c.Settle()
	if c.Buffered() != 0 {
		t.Error("kept more than a record")
	}
}

// RFC 8446 4.6.3: an answer, before any further data, and one for many.
func TestRequestedKeyUpdateIsAnswered(t *testing.T) {
	eachSuite(t, func(t *testing.T, suite uint16) {
		cfg := config(suite, true)
		for _, how := range []string{"records", "batch", "long batch", "output", "close", "alert"} {
			c := mustNew(t, cfg)
			in, out := newRaw(suite, cfg.Read.Secret), newRaw(suite, cfg.Write.Secret)
			stream := join(in.data("a"), in.keyUpdate(1), in.keyUpdate(1), in.keyUpdate(0), in.data("b"))
			got, err := receive(c, stream)
			if string(got) != "ab" || err != nil || !c.Pending() {
				t.Fatal(got, err, c.Pending())
			}
			var sent []byte
			want := "handshake 1800000100"
			switch how {
			case "records":
				sent, err = c.AppendRecords(nil, []byte("c"))
				want += `, data "c"`
			case "batch":
				b, start := batch(nil, []byte("c"), 0)
				sent, err = c.SealBatch(b, start)
				want += `, data "c"`
			case "long batch":
				b, start := batch(nil, make([]byte, MaxPlaintext+100), 0)
				sent, err = c.SealBatch(b, start)
				want += `, data of 16384, data of 100`
			case "output":
				sent = c.AppendOutput(nil)
			case "close": // no data follows, so no answer is due
				sent = c.AppendCloseNotify(nil)
				want = "alert 1 close_notify"
			case "alert":
				sent = c.AppendAlert(nil, AlertInternalError)
				want = "alert 2 internal_error"
			}
			if err != nil {
				t.Fatal(err)
			}
			if said := text(out.open(t, sent)); said != want {
				t.Errorf("%s: %s, want %s", how, said, want)
			}
			if c.Pending() {
				t.Errorf("%s: still pending", how)
			}
			if st := c.Stats(); st.KeyUpdatesIn != 3 || st.RecordsIn != 5 {
				t.Errorf("%+v", st)
			}
		}
	})
}

func TestKeyUpdateAfterOurCloseIsNotAnswered(t *testing.T) {
	cfg := config(tls.TLS_AES_128_GCM_SHA256, true)
	c := mustNew(t, cfg)
	c.AppendCloseNotify(nil)
	in := newRaw(cfg.Suite, cfg.Read.Secret)
	got, err := receive(c, join(in.keyUpdate(1), in.data("a")))
	if string(got) != "a" || err != nil || c.Pending() || len(c.AppendOutput(nil)) != 0 {
		t.Fatal(got, err, c.Pending())
	}
}

func TestFaultAfterOurCloseIsNotAnswered(t *testing.T) {
	cfg := config(tls.TLS_AES_128_GCM_SHA256, true)
	c := mustNew(t, cfg)
	c.AppendCloseNotify(nil)
	in := newRaw(cfg.Suite, cfg.Read.Secret)
	if _, err := receive(c, in.seal(99, []byte("a"), 0)); err != ErrInnerType || len(c.AppendOutput(nil)) != 0 {
		t.Fatal(err)
	}
}

func TestTicketsAreCounted(t *testing.T) {
	cfg := config(tls.TLS_AES_256_GCM_SHA384, false)
	c := mustNew(t, cfg)
	in := newRaw(cfg.Suite, cfg.Read.Secret)
	m := message(4, ticket(8, 80, ""))
	for range 40 {
		if _, err := receive(c, join(in.seal(22, join(m, m), 0), in.data("x"))); err != nil {
			t.Fatal(err)
		}
	}
	if st := c.Stats(); st.TicketsIn != 80 || st.RecordsIn != 80 {
		t.Fatalf("%+v", st)
	}
}

// A peer that never rekeys is asked to, once for each of its keys.
func TestPeerIsAskedToRekey(t *testing.T) {
	cfg := config(tls.TLS_AES_128_GCM_SHA256, true)
	cfg.RekeyAfter = 5
	c := mustNew(t, cfg)
	in, out := newRaw(cfg.Suite, cfg.Read.Secret), newRaw(cfg.Suite, cfg.Write.Secret)
	for round := range 3 {
		for i := range 8 {
			if _, err := receive(c, in.data("x")); err != nil {
				t.Fatal(err)
			}
			want := ""
			if i == 4 {
				want = "handshake 1800000101"
			}
			if said := text(out.open(t, c.AppendOutput(nil))); said != want {
				t.Fatalf("round %d, record %d: said %q", round, i, said)
			}
		}
		if _, err := receive(c, in.keyUpdate(0)); err != nil {
			t.Fatal(err)
		}
	}
	// Nor is one that we have nothing to say to any more.
	deaf := mustNew(t, cfg)
	deaf.AppendCloseNotify(nil)
	other := newRaw(cfg.Suite, cfg.Read.Secret)
	for range 10 {
		if _, err := receive(deaf, other.data("x")); err != nil || deaf.Pending() {
			t.Fatal(err, deaf.Pending())
		}
	}
	// A peer that rekeys in time is not asked.
	for range 4 {
		if _, err := receive(c, in.data("x")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := receive(c, in.keyUpdate(0)); err != nil || c.Pending() {
		t.Fatal(err, c.Pending())
	}
}

func TestSequenceNumbersAreInherited(t *testing.T) {
	eachSuite(t, func(t *testing.T, suite uint16) {
		cfg := config(suite, true)
		cfg.Read.Seq, cfg.Write.Seq = 7, 1
		c := mustNew(t, cfg)
		in, out := newRaw(suite, cfg.Read.Secret), newRaw(suite, cfg.Write.Secret)
		in.seq, out.seq = 7, 1
		got, err := receive(c, in.data("a"))
		if string(got) != "a" || err != nil {
			t.Fatal(got, err)
		}
		b, err := c.AppendRecords(nil, []byte("b"))
		if err != nil || text(out.open(t, b)) != `data "b"` {
			t.Fatal(err)
		}
	})
}

func TestSequenceNumbersDoNotWrap(t *testing.T) {
	cfg := config(tls.TLS_AES_128_GCM_SHA256, true)
	cfg.Read.Seq, cfg.Write.Seq = math.MaxUint64-1, math.MaxUint64
	c := mustNew(t, cfg)
	in, out := newRaw(cfg.Suite, cfg.Read.Secret), newRaw(cfg.Suite, cfg.Write.Secret)
	in.seq, out.seq = math.MaxUint64-1, math.MaxUint64
	got, err := receive(c, join(in.data("a"), in.data("b")))
	if string(got) != "a" || err != ErrExhausted {
		t.Fatal(string(got), err)
	}
	c = mustNew(t, cfg)
	b, err := c.AppendRecords(nil, []byte("c"))
	if err != nil || text(out.open(t, b)) != `handshake 1800000100, data "c"` {
		t.Fatal(err)
	}
}

func FuzzTicket(f *testing.F) {
	f.Add(ticket(3, 4, ""))
	f.Add(ticket(0, 1, "\x00\x2a\x00\x04\x00\x00\x04\x00"))
	f.Add(ticket(255, 0, "\x00\x2a\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got := validTicket(bytes.Clone(b)[:len(b):len(b)])
		// Written forwards from the grammar of RFC 8446 4.6.1.
		rest, ok := b, true
		vector := func(lenLen, floor int) []byte {
			if !ok || len(rest) < lenLen {
				ok = false
				return nil
			}
			n := int(rest[0])
			if lenLen == 2 {
				n = int(binary.BigEndian.Uint16(rest))
			}
			rest = rest[lenLen:]
			if n < floor || n > len(rest) {
				ok = false
				return nil
			}
			v := rest[:n]
			rest = rest[n:]
			return v
		}
		if len(rest) < 8 {
			ok = false
		} else {
			rest = rest[8:]
			vector(1, 0)
			vector(2, 1)
			extensions := vector(2, 0)
			ok = ok && len(rest) == 0
			for rest = extensions; ok && len(rest) > 0; {
				if len(rest) < 2 {
					ok = false
					break
				}
				rest = rest[2:]
				vector(2, 0)
			}
		}
		if got != ok {
			t.Fatalf("%x: %v, want %v", b, got, ok)
		}
	})
}
