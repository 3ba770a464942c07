package record

import (
	"fmt"
	"testing"

	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
)

var benchSizes = []int{64, 512, 16 << 10}

func BenchmarkSeal(b *testing.B) {
	for _, suite := range bothSuites {
		for _, n := range benchSizes {
			b.Run(fmt.Sprintf("%s/%d", suite, n), func(b *testing.B) {
				s, _ := pair(profiles.Standard, suite)
				buf := make([]byte, wire.HeaderLen+n, wire.HeaderLen+n+wire.TagLen)
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := s.Seal(buf, 0, 0, testType); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	for _, suite := range bothSuites {
		for _, n := range benchSizes {
			b.Run(fmt.Sprintf("%s/%d", suite, n), func(b *testing.B) {
				s, o := pair(profiles.Standard, suite)
				sealed := seal(b, s, make([]byte, n))
				buf := make([]byte, len(sealed))
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					copy(buf, sealed) // opening in place consumed it
					f, _, err := wire.ParseFrame(buf, 0)
					if err != nil {
						b.Fatal(err)
					}
					o.seq = 0
					if _, err := o.Open(f); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkRekey is what the first frame of an epoch, or after Idle, costs more.
func BenchmarkRekey(b *testing.B) {
	for _, suite := range bothSuites {
		b.Run(suite.String(), func(b *testing.B) {
			s, _ := pair(profiles.Standard, suite)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.key(); err != nil {
					b.Fatal(err)
				}
				s.Idle()
			}
		})
	}
}
