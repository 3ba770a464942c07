package tlsrecord

import (
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"
)

var benchSizes = []int{64, 600, MaxPlaintext}

// duel times two ways to do the same, in turns. It goes by the median round, so
// that what else the machine does weighs on neither.
type duel struct {
	per          int // of what is timed in a round
	ours, theirs []time.Duration
	allocs       [2]float64
}

func (d *duel) round(ours, theirs func()) {
	start := time.Now()
	ours()
	mid := time.Now()
	theirs()
	d.theirs = append(d.theirs, time.Since(mid))
	d.ours = append(d.ours, mid.Sub(start))
}

func (d *duel) report(b *testing.B) {
	median := func(l []time.Duration) float64 {
		slices.Sort(l)
		return float64(l[len(l)/2].Nanoseconds()) / float64(d.per)
	}
	ours, theirs := median(d.ours), median(d.theirs)
	b.ReportMetric(ours, "ns/ours")
	b.ReportMetric(theirs, "ns/theirs")
	b.ReportMetric(theirs/ours, "times-faster")
	b.ReportMetric(d.allocs[0], "allocs/ours")
	b.ReportMetric(d.allocs[1], "allocs/theirs")
	b.ReportMetric(0, "ns/op")
}

// sink is a connection that takes everything.
type sink struct{ net.Conn }

func (sink) Write(p []byte) (int, error) { return len(p), nil }

// source is a connection that gives what is in b.
type source struct {
	net.Conn
	b []byte
}

func (s *source) Read(p []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, wouldBlock{}
	}
	n := copy(p, s.b)
	s.b = s.b[n:]
	return n, nil
}

// swap is a connection that can be exchanged below a tls.Conn.
type swap struct{ net.Conn }

func eachBench(b *testing.B, bench func(b *testing.B, suite uint16, n int)) {
	for _, suite := range everySuite {
		for _, n := range benchSizes {
			b.Run(fmt.Sprintf("%s/%d", tls.CipherSuiteName(suite), n), func(b *testing.B) { bench(b, suite, n) })
		}
	}
}

// benchConn is a client of crypto/tls whose connection below can be exchanged, and
// machines with its keys.
func benchConn(b *testing.B, suite uint16) (tc *tls.Conn, below *swap, toIt *Conn) {
	near, far := ends()
	below = &swap{near}
	h := NewClientHandover(clientConfig(), below)
	tc = tls.Client(tapped{below, h}, h.Config())
	shake(b, suite, tc, tls.Server(far, serverConfig()))
	toIt = mustNew(b, Config{Suite: suite, Server: true,
		Read: Keys{Secret: h.keys.client.bytes()}, Write: Keys{Secret: h.keys.server.bytes()}})
	h.Abandon() // crypto/tls reads as it likes
	h.rw = below
	return tc, below, toIt
}

// BenchmarkSend: application data to records, one record each.
func BenchmarkSend(b *testing.B) {
	eachBench(b, func(b *testing.B, suite uint16, n int) {
		const per = 64
		tc, below, _ := benchConn(b, suite)
		below.Conn = sink{}
		client, _ := newPair(b, suite, nil)
		room := make([]byte, HeaderLen+n, HeaderLen+SealedLen(n))
		data := payload(1, n)
		ours := func() {
			for range per {
				if _, err := client.SealBatch(room, 0); err != nil {
					b.Fatal(err)
				}
			}
		}
		theirs := func() {
			for range per {
				if _, err := tc.Write(data); err != nil {
					b.Fatal(err)
				}
			}
		}
		d := duel{per: per, allocs: [2]float64{testing.AllocsPerRun(10, ours) / per, testing.AllocsPerRun(10, theirs) / per}}
		for b.Loop() {
			d.round(ours, theirs)
		}
		d.report(b)
	})
}

// BenchmarkReceive: many records to application data. What is read from the
// connection is one copy for both.
func BenchmarkReceive(b *testing.B) {
	eachBench(b, func(b *testing.B, suite uint16, n int) {
		const per = 16
		tc, below, toIt := benchConn(b, suite)
		src := &source{}
		below.Conn = src
		toUs, server := newPair(b, suite, nil)
		data := payload(1, n)
		records := func(c *Conn, dst []byte) []byte {
			dst = dst[:0]
			for range per {
				var err error
				if dst, err = c.AppendRecords(dst, data); err != nil {
					b.Fatal(err)
				}
			}
			return dst
		}
		size := per * SealedLen(n)
		ours, theirs, in, out := make([]byte, 0, size), make([]byte, 0, size), make([]byte, size), make([]byte, n)
		open := func() {
			server.HandleBytes(in[:copy(in, ours)])
			for {
				_, ok, err := server.Poll()
				if err != nil {
					b.Fatal(err)
				}
				if !ok {
					break
				}
			}
			server.Settle()
		}
		read := func() {
			src.b = theirs
			for range per {
				if k, err := tc.Read(out); err != nil || k != n {
					b.Fatal(k, err)
				}
			}
		}
		allocs := func(c *Conn, dst *[]byte, f func()) float64 {
			return testing.AllocsPerRun(10, func() {
				*dst = records(c, *dst) // allocates nothing
				f()
			}) / per
		}
		d := duel{per: per, allocs: [2]float64{allocs(toUs, &ours, open), allocs(toIt, &theirs, read)}}
		for b.Loop() {
			ours, theirs = records(toUs, ours), records(toIt, theirs)
			d.round(open, read)
		}
		d.report(b)
	})
}

// BenchmarkBatch: a batch of 64 KiB of frames by the three ways that a driver has,
// each against the last, which only seals.
func BenchmarkBatch(b *testing.B) {
	const n = 64 << 10
	client, _ := newPair(b, tls.TLS_AES_128_GCM_SHA256, nil)
	room := make([]byte, HeaderLen+n, 2*n)
	other := make([]byte, 0, 2*n)
	check := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	copied := func() {
		_, err := client.AppendRecords(other, room[HeaderLen:HeaderLen+n])
		check(err)
	}
	moved := func() {
		_, err := client.SealBatch(room[:HeaderLen+n], 0)
		check(err)
	}
	closed := func() {
		out := room[:0]
		for range n / MaxPlaintext {
			start := len(out)
			var err error
			out, err = client.SealBatch(out[:start+HeaderLen+MaxPlaintext], start)
			check(err)
		}
	}
	for _, way := range []struct {
		name string
		do   func()
	}{{"copied", copied}, {"moved", moved}} {
		b.Run(way.name, func(b *testing.B) {
			d := duel{per: 1}
			for b.Loop() {
				d.round(closed, way.do)
			}
			d.report(b)
		})
	}
}

// BenchmarkUpdate: what a KeyUpdate costs who receives it, and what Idle costs the
// next record.
func BenchmarkUpdate(b *testing.B) {
	for _, suite := range everySuite {
		c := mustNew(b, config(suite, true))
		b.Run(tls.CipherSuiteName(suite)+"/update", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := c.rd.update(&c.cfg); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(tls.CipherSuiteName(suite)+"/wake", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.rd.drop()
				if err := c.rd.derive(&c.cfg); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
