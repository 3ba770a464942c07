//go:build unix

package aesgcm

import (
	"bytes"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// guarded is memory between two pages that nobody may touch.
type guarded []byte

func newGuarded(t *testing.T, size int) guarded {
	t.Helper()
	page := os.Getpagesize()
	size = (size + page - 1) / page * page
	all, err := unix.Mmap(-1, 0, size+2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(all); err != nil {
			t.Error(err)
		}
	})
	for _, guard := range [][]byte{all[:page], all[page+size:]} {
		if err := unix.Mprotect(guard, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	return all[page : page+size : page+size]
}

// place puts a copy of b at the memory's very end, or at its very beginning.
func (g guarded) place(b []byte, atEnd bool) []byte {
	to := g[:len(b):len(b)]
	if atEnd {
		to = g[len(g)-len(b):]
	}
	copy(to, b)
	return to
}

// TestNothingOutsideIsTouched puts whatever a kernel reads or writes next to
// pages that fault: a single octet too many ends the test binary.
func TestNothingOutsideIsTouched(t *testing.T) {
	forEach(t, func(t *testing.T, i implementation, size int) {
		raw := octets(size, 30)
		want := oracle(t, raw)
		src, dst := newGuarded(t, 8<<10), newGuarded(t, 8<<10)
		ivs, ads, keys := newGuarded(t, 1), newGuarded(t, 1), newGuarded(t, 1)
		one := func(n, aadLen int, atEnd bool) {
			a := mustAEAD(t, i, keys.place(raw, atEnd))
			if k, ok := a.(*Key); ok {
				// The expanded key, too.
				b := keys.place(unsafe.Slice((*byte)(unsafe.Pointer(k)), int(unsafe.Sizeof(*k))), atEnd)
				a = (*Key)(unsafe.Pointer(unsafe.SliceData(b)))
			}
			nonce := ivs.place(octets(NonceSize, uint64(n)), atEnd)
			aad := ads.place(octets(aadLen, 31), atEnd)
			plain := octets(n, 32)
			sealed := want.Seal(nil, nonce, plain, aad)

			out := dst.place(make([]byte, n+Overhead), atEnd)
			if got := a.Seal(out[:0], nonce, src.place(plain, atEnd), aad); !bytes.Equal(got, sealed) {
				t.Fatalf("%d octets: wrong", n)
			}
			out = dst.place(make([]byte, n), atEnd)
			if got, err := a.Open(out[:0], nonce, src.place(sealed, atEnd), aad); err != nil || !bytes.Equal(got, plain) {
				t.Fatalf("%d octets: %v", n, err)
			}
			// In place, and a forgery.
			b := src.place(sealed, atEnd)
			if got, err := a.Open(b[:0], nonce, b, aad); err != nil || !bytes.Equal(got, plain) {
				t.Fatalf("%d octets in place: %v", n, err)
			}
			if got := a.Seal(b[:0], nonce, b[:n], aad); !bytes.Equal(got, sealed) {
				t.Fatalf("%d octets in place: wrong", n)
			}
			b[n] ^= 1
			if _, err := a.Open(b[:0], nonce, b, aad); err != ErrOpen {
				t.Fatalf("%d octets: a forgery gives %v", n, err)
			}
		}
		for _, atEnd := range []bool{false, true} {
			for n := 0; n < 1200; n += stride(i) {
				one(n, n%40, atEnd)
			}
			for n := 1200; n < 6000; n += 52 + stride(i) {
				one(n, n%300, atEnd)
			}
			for l := 0; l < 600; l += stride(i) {
				one(l%70, l, atEnd)
			}
		}
	})
}
