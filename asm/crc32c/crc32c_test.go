package crc32c

import (
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// RFC 3720 appendix B.4 has no message of 21 octets, but one of 32 zeros and one of
// 32 ones; what they share with ours is the way the sum goes on from octet to octet.
// So the definition itself is the second witness: bit by bit, and independent of the
// tables and instructions of either implementation.
func definition(b []byte) uint32 {
	crc := ^uint32(0)
	for _, c := range b {
		crc ^= uint32(c)
		for range 8 {
			odd := crc & 1
			crc >>= 1
			if odd != 0 {
				crc ^= 0x82F63B78
			}
		}
	}
	return ^crc
}

// TestDefinition: the witness gives what RFC 3720 appendix B.4 publishes.
func TestDefinition(t *testing.T) {
	ones := make([]byte, 32)
	for i := range ones {
		ones[i] = 0xFF
	}
	// The RFC prints the octets in the order of iSCSI, lowest first.
	for want, b := range map[uint32][]byte{0x8A9136AA: make([]byte, 32), 0x62A8AB43: ones} {
		if got := definition(b); got != want {
			t.Errorf("%x: %08x, want %08x", b, got, want)
		}
	}
}

// check compares every implementation at each place that 21 octets can have in a
// cache line and its neighbour, between octets that don't belong to them.
func check(t *testing.T, octets *[Size]byte) {
	t.Helper()
	want := definition(octets[:])
	if got := crc32.Update(0, castagnoli, octets[:]); got != want {
		t.Fatalf("%x: the standard library gives %08x, want %08x", octets, got, want)
	}
	var room [64 + Size + 8]byte
	for at := range 64 {
		for i := range room {
			room[i] = byte(i*31 + at)
		}
		p := (*[Size]byte)(room[at+4:])
		*p = *octets
		before := room
		if got := Sum(p); got != want {
			t.Fatalf("%x at %d: %08x, want %08x", octets, at, got, want)
		}
		if room != before {
			t.Fatalf("%x at %d: the octets were changed", octets, at)
		}
	}
}

// Each bit of the message alone, and all of them: the sum is linear, so these and a
// sum of 0 determine it.
func TestEveryBit(t *testing.T) {
	var p [Size]byte
	check(t, &p)
	for bit := range 8 * Size {
		p = [Size]byte{}
		p[bit/8] = 1 << (bit % 8)
		check(t, &p)
	}
	for i := range p {
		p[i] = 0xFF
	}
	check(t, &p)
}

func TestRandomMessages(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 32))
	for range 300 {
		var p [Size]byte
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
		check(t, &p)
	}
}

// FuzzSum: whatever the octets are, the sum is what the definition says, and the
// octets before and behind them make no difference.
func FuzzSum(f *testing.F) {
	f.Add([]byte("NPAM\x22\x01\x00\x00\x0d"), uint64(1), uint32(512))
	f.Add([]byte{}, uint64(0), uint32(0))
	f.Fuzz(func(t *testing.T, head []byte, seq uint64, length uint32) {
		var p [Size]byte
		copy(p[:], head)
		if len(head) < 9 {
			binary.BigEndian.PutUint64(p[9:], seq)
			binary.BigEndian.PutUint32(p[17:], length)
		}
		check(t, &p)
	})
}

func TestSumAllocatesNothing(t *testing.T) {
	p := new([Size]byte)
	if n := testing.AllocsPerRun(100, func() { sink += Sum(p) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

var sink uint32
