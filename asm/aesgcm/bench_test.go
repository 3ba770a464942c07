package aesgcm

import (
	"crypto/cipher"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"
)

// shape is what a message looks like: octets of header before it in its buffer,
// and of associated data, which the header begins with.
type shape struct {
	name        string
	keySize     int
	header, aad int
	sizes       []int
}

var shapes = []shape{
	{"N-PAMP", 32, 36, 21, []int{64, 336, 512, 557, 640, 1024, 16 << 10}},
	{"TLS1.3-AES-128", 16, 5, 5, []int{64, 1400, 16<<10 + 1}},
	{"TLS1.3-AES-256", 32, 5, 5, []int{64, 1400, 16<<10 + 1}},
}

// sealing gives a function that seals one message in place, its nonce and header
// stored just before, word by word, as whoever makes records does.
func sealing(a cipher.AEAD, s shape, n int) func() {
	buf := make([]byte, s.header+n+Overhead)
	nonce := make([]byte, NonceSize)
	seq := uint64(0)
	return func() {
		seq++
		binary.BigEndian.PutUint32(nonce, 0x01020304)
		binary.BigEndian.PutUint64(nonce[4:], seq)
		if s.header >= 24 {
			binary.BigEndian.PutUint64(buf, 0x4e50414d10000100)
			binary.BigEndian.PutUint64(buf[8:], seq)
			binary.BigEndian.PutUint64(buf[16:], uint64(n))
		} else {
			buf[0] = 23
			binary.BigEndian.PutUint16(buf[1:], 0x0303)
			binary.BigEndian.PutUint16(buf[3:], uint16(n+Overhead))
		}
		a.Seal(buf[s.header:s.header], nonce, buf[s.header:s.header+n], buf[:s.aad])
	}
}

// opening gives a function that opens one message, not in place, so that it is
// there again the next time.
func opening(a cipher.AEAD, s shape, n int) func() {
	buf := make([]byte, s.header+n+Overhead)
	out := make([]byte, n)
	nonce := make([]byte, NonceSize)
	a.Seal(buf[s.header:s.header], nonce, buf[s.header:s.header+n], buf[:s.aad])
	return func() {
		binary.BigEndian.PutUint32(nonce, 0)
		binary.BigEndian.PutUint64(nonce[4:], 0)
		if _, err := a.Open(out[:0], nonce, buf[s.header:], buf[:s.aad]); err != nil {
			panic(err)
		}
	}
}

// BenchmarkRatio compares with the standard library in one run: short bursts of
// both in turn, and of each the time that a tenth of the bursts stay below, which
// on a busy machine is what comes nearest to the processor's own.
//
//	go test -run '^$' -bench Ratio ./asm/aesgcm
func BenchmarkRatio(b *testing.B) {
	for op, do := range map[string]func(cipher.AEAD, shape, int) func(){"seal": sealing, "open": opening} {
		for _, s := range shapes {
			for _, n := range s.sizes {
				for _, i := range available() {
					b.Run(fmt.Sprintf("%s/%s/%d/%s", op, s.name, n, i), func(b *testing.B) {
						key := octets(s.keySize, 1)
						fs := [2]func(){do(mustAEAD(b, i, key), s, n), do(oracle(b, key), s, n)}
						burst := 1 + 20000/(50+n/5)
						var times [2][]float64
						for b.Loop() {
							for j, f := range fs {
								start := time.Now()
								for range burst {
									f()
								}
								times[j] = append(times[j], float64(time.Since(start).Nanoseconds())/float64(burst))
							}
						}
						var t [2]float64
						for j := range t {
							slices.Sort(times[j])
							t[j] = times[j][len(times[j])/10]
						}
						b.ReportMetric(0, "ns/op") // of a pair of bursts: of no interest
						b.ReportMetric(t[0], "ns")
						b.ReportMetric(t[1], "ns-std")
						b.ReportMetric(t[1]/t[0], "ratio")
					})
				}
			}
		}
	}
}

func benchmark(b *testing.B, do func(cipher.AEAD, shape, int) func()) {
	for _, i := range implementations() {
		for _, s := range shapes {
			for _, n := range s.sizes {
				b.Run(fmt.Sprintf("%s/%s/%d", i, s.name, n), func(b *testing.B) {
					f := do(mustAEAD(b, i, octets(s.keySize, 1)), s, n)
					b.SetBytes(int64(n))
					b.ReportAllocs()
					for b.Loop() {
						f()
					}
				})
			}
		}
	}
}

func BenchmarkSeal(b *testing.B) { benchmark(b, sealing) }
func BenchmarkOpen(b *testing.B) { benchmark(b, opening) }

// BenchmarkNew is what another key costs.
func BenchmarkNew(b *testing.B) {
	for _, i := range implementations() {
		for _, size := range bothSizes {
			b.Run(fmt.Sprintf("%s/AES-%d", i, 8*size), func(b *testing.B) {
				key := octets(size, 1)
				b.ReportAllocs()
				for b.Loop() {
					mustAEAD(b, i, key)
				}
			})
		}
	}
}
