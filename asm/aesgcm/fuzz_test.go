package aesgcm

import (
	"bytes"
	"testing"
)

// FuzzAgainstStandardLibrary: whatever the message, its place in memory and
// what is damaged, every implementation does what the standard library does.
func FuzzAgainstStandardLibrary(f *testing.F) {
	f.Add([]byte("key"), []byte("nonce"), []byte("plaintext"), []byte("associated data"), uint8(0), uint32(0), false)
	f.Add([]byte{}, []byte{}, []byte{}, []byte{}, uint8(1), uint32(1), true)
	for i, n := range []int{1, 16, 63, 64, 65, 512, 513, 1024, 1025, 1600, 4096, 4200, 9000, 557, 576, 577, 768, 769} {
		f.Add(octets(32, 1), octets(12, 2), octets(n, 3), octets(n%50, 4), uint8(i*7), uint32(n*n), i%2 == 0)
	}
	f.Fuzz(func(t *testing.T, keySeed, nonceSeed, plain, aad []byte, place uint8, damage uint32, short bool) {
		key, nonce := make([]byte, 32), make([]byte, NonceSize)
		copy(key, keySeed)
		copy(nonce, nonceSeed)
		if short {
			key = key[:16]
		}
		want := oracle(t, key)
		sealed := want.Seal(nil, nonce, plain, aad)
		damaged := bytes.Clone(sealed)
		bit := int(damage) % (8 * len(sealed))
		damaged[bit/8] ^= 1 << (bit % 8)
		for _, i := range available() {
			a := mustAEAD(t, i, key)
			offset := int(place % 64)
			buf := make([]byte, offset+len(sealed)+int(place)/64)
			room := buf[offset : offset+len(sealed) : offset+len(sealed)]
			copy(room, plain)
			if got := a.Seal(room[:0], nonce, room[:len(plain)], aad); !bytes.Equal(got, sealed) {
				t.Fatalf("%s: sealed\n%x, want\n%x", i, got, sealed)
			}
			if got, err := a.Open(room[:0], nonce, room, aad); err != nil || !bytes.Equal(got, plain) {
				t.Fatalf("%s: opened\n%x, %v, want\n%x", i, got, err, plain)
			}
			copy(room, damaged)
			if got, err := a.Open(room[:0], nonce, room, aad); err != ErrOpen || got != nil {
				t.Fatalf("%s: damaged at bit %d: opened\n%x, %v", i, bit, got, err)
			}
			if !bytes.Equal(room[:len(plain)], make([]byte, len(plain))) {
				t.Fatalf("%s: plaintext of a forgery is left behind", i)
			}
		}
	})
}
