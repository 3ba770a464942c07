package aesgcm

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"
)

var bothSizes = []int{16, 32}

// implementations are all that can run here, the standard library among them.
func implementations() []implementation { return append(available(), std) }

// stride is how many lengths to go on at a time: all of them for a kernel, few
// for the standard library, which other people test.
func stride(i implementation) int {
	if i == std {
		return 41
	}
	return 1
}

// forEach runs a test for every implementation and key size.
func forEach(t *testing.T, f func(t *testing.T, i implementation, keySize int)) {
	t.Helper()
	for _, i := range implementations() {
		for _, size := range bothSizes {
			t.Run(fmt.Sprintf("%s/AES-%d", i, 8*size), func(t *testing.T) { f(t, i, size) })
		}
	}
}

func mustAEAD(t testing.TB, i implementation, key []byte) cipher.AEAD {
	t.Helper()
	a, err := newAEAD(i, key)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// oracle is the standard library's AEAD, made without this package.
func oracle(t testing.TB, key []byte) cipher.AEAD {
	t.Helper()
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	a, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// octets are n octets that differ from seed to seed.
func octets(n int, seed uint64) []byte {
	b := make([]byte, n+8)
	x := seed*0x9e3779b97f4a7c15 + 1
	for i := 0; i < n; i += 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(b[i:], x*0x2545f4914f6cdd1d)
	}
	return b[:n:n]
}

// check seals and opens one message in place at an offset within a larger
// buffer, compares with the oracle, and sees to it that nothing else changed.
func check(t *testing.T, a, want cipher.AEAD, buf []byte, offset, n int, nonce, aad []byte) {
	t.Helper()
	const before, after = 0x5a, 0xa5
	for i := range buf {
		buf[i] = before
	}
	plain := octets(n, uint64(n)<<8|uint64(offset))
	sealed := want.Seal(nil, nonce, plain, aad)

	room := buf[offset : offset+n+Overhead]
	copy(room, plain)
	for i := range buf[offset+n:] {
		buf[offset+n+i] = after
	}
	intact := func(what string) {
		t.Helper()
		for i, c := range buf[:offset] {
			if c != before {
				t.Fatalf("%s: octet %d before the output was written", what, offset-i)
			}
		}
		for i, c := range buf[offset+n+Overhead:] {
			if c != after {
				t.Fatalf("%s: octet %d behind the output was written", what, i)
			}
		}
	}
	got := a.Seal(buf[:offset], nonce, room[:n], aad)
	if !bytes.Equal(got[offset:], sealed) {
		t.Fatalf("%d octets at offset %d, aad %d: sealed\n%x\nwant\n%x", n, offset, len(aad), got[offset:], sealed)
	}
	intact("Seal")
	opened, err := a.Open(buf[:offset], nonce, room, aad)
	if err != nil || !bytes.Equal(opened[offset:], plain) {
		t.Fatalf("%d octets at offset %d, aad %d: opened %v\n%x\nwant\n%x", n, offset, len(aad), err, opened[offset:], plain)
	}
	intact("Open")
	if !bytes.Equal(room[n:], sealed[n:]) {
		t.Fatal("Open wrote to the tag")
	}
}

func TestAllLengthsAndAlignments(t *testing.T) {
	forEach(t, func(t *testing.T, i implementation, size int) {
		key := octets(size, 1)
		a, want := mustAEAD(t, i, key), oracle(t, key)
		buf := make([]byte, 4096+64+Overhead+64)
		aad := octets(21, 2)
		for n := 0; n <= 4096; n += stride(i) {
			nonce := octets(NonceSize, uint64(n))
			for j := range 3 {
				check(t, a, want, buf[:n+64+Overhead+64], (n*5+j*23)%64, n, nonce, aad)
			}
		}
		for _, n := range []int{0, 1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 512, 513, 557, 576, 577, 704, 768, 769, 1023, 1024, 1025, 1536, 1600, 4096} {
			nonce := octets(NonceSize, uint64(n))
			for offset := 0; offset < 64; offset += stride(i) {
				check(t, a, want, buf[:n+64+Overhead+64], offset, n, nonce, aad)
			}
		}
	})
}

func TestAllLengthsOfAssociatedData(t *testing.T) {
	forEach(t, func(t *testing.T, i implementation, size int) {
		key := octets(size, 3)
		a, want := mustAEAD(t, i, key), oracle(t, key)
		buf := make([]byte, 2048)
		nonce := octets(NonceSize, 4)
		data := octets(64<<10+100, 5)
		for _, n := range []int{0, 1, 16, 40, 64, 100, 256, 300, 512, 557, 576, 600, 800, 1024, 1100, 1600} {
			for l := 0; l <= 300; l += stride(i) {
				check(t, a, want, buf, l%7, n, nonce, data[l%5:][:l])
			}
			for _, l := range []int{511, 512, 513, 1000, 4096, 16384 + 13, 64<<10 - 1, 64 << 10, 64<<10 + 1} {
				check(t, a, want, buf, l%7, n, nonce, data[:l])
			}
		}
		for l := 301; l < 600; l += stride(i) {
			check(t, a, want, buf, 3, 48, nonce, data[:l])
		}
	})
}

// The block counter's carries: from its last octet at 4 KiB, from the next at
// 1 MiB, from the third at 256 MiB. A wrap of all 32 bits, which other lengths
// of nonce can bring about, would take a message above GCM's limit here.
func TestCounterCarries(t *testing.T) {
	forEach(t, func(t *testing.T, i implementation, size int) {
		key := octets(size, 6)
		a, want := mustAEAD(t, i, key), oracle(t, key)
		nonce := bytes.Repeat([]byte{0xff}, NonceSize)
		aad := octets(13, 7)
		var lengths []int
		for _, carry := range []int{4 << 10, 8 << 10, 12 << 10} {
			for d := -1100; d <= 1100; d += 61 {
				lengths = append(lengths, carry+d)
			}
		}
		if i != std {
			lengths = append(lengths, 1<<20-9, 1<<20+9, 1<<20+500, 1<<20+900, 2<<20+100, 16<<20+5)
		}
		if !testing.Short() && i == chosen().use && i != std && size == 32 {
			lengths = append(lengths, 256<<20+700)
		}
		buf := make([]byte, 0, lengths[len(lengths)-1]+Overhead)
		for _, n := range lengths {
			// Sealed by one and opened by the other in place: no second buffer.
			b := buf[: n+Overhead : n+Overhead]
			clear(b)
			b = a.Seal(b[:0], nonce, b[:n], aad)
			if _, err := want.Open(b[:0], nonce, b, aad); err != nil {
				t.Fatalf("%d octets: the standard library doesn't open it", n)
			}
			b = want.Seal(b[:0], nonce, b[:n], aad)
			opened, err := a.Open(b[:0], nonce, b, aad)
			if err != nil {
				t.Fatalf("%d octets: the standard library's is not opened", n)
			}
			for len(opened) > 0 && opened[0] == 0 {
				opened = opened[1:]
			}
			if len(opened) > 0 {
				t.Fatalf("%d octets: wrong plaintext", n)
			}
		}
	})
}

func TestOutputApartFromInput(t *testing.T) {
	forEach(t, func(t *testing.T, i implementation, size int) {
		key := octets(size, 8)
		a, want := mustAEAD(t, i, key), oracle(t, key)
		nonce, aad, prefix := octets(NonceSize, 9), octets(5, 10), []byte("prefix")
		for n := 0; n < 1200; n += stride(i) {
			plain := octets(n, uint64(n))
			kept := bytes.Clone(plain)
			sealed := want.Seal(bytes.Clone(prefix), nonce, plain, aad)
			got := a.Seal(prefix[:len(prefix):len(prefix)], nonce, plain, aad)
			if !bytes.Equal(got, sealed) || !bytes.Equal(plain, kept) {
				t.Fatalf("%d octets: wrong output, or the input changed", n)
			}
			opened, err := a.Open(prefix[:len(prefix):len(prefix)], nonce, got[len(prefix):], aad)
			if err != nil || !bytes.Equal(opened[len(prefix):], plain) || !bytes.Equal(got, sealed) {
				t.Fatalf("%d octets: not opened, or the input changed: %v", n, err)
			}
		}
	})
}

// Wycheproof's kinds of forgery: each bit of the tag, of the ciphertext, of the
// associated data and of the nonce, and truncation.
func TestForgeriesAreRefusedAndWiped(t *testing.T) {
	forEach(t, func(t *testing.T, i implementation, size int) {
		key := octets(size, 11)
		a, want := mustAEAD(t, i, key), oracle(t, key)
		nonce, aad := octets(NonceSize, 12), octets(21, 13)
		refuse := func(what string, sealed, nonce, aad []byte) {
			t.Helper()
			b := append(make([]byte, 0, len(sealed)+50), sealed...)
			rest := b[len(b):cap(b)]
			for i := range rest {
				rest[i] = 0x77
			}
			if out, err := a.Open(b[:0], nonce, b, aad); !errors.Is(err, ErrOpen) || out != nil {
				t.Fatalf("%s: Open gives %x, %v", what, out, err)
			}
			if n := len(b) - Overhead; n >= 0 {
				if !bytes.Equal(b[:n], make([]byte, n)) {
					t.Fatalf("%s: plaintext is left behind: %x", what, b[:n])
				}
				if !bytes.Equal(b[n:], sealed[n:]) {
					t.Fatalf("%s: the tag was written", what)
				}
			}
			if !bytes.Equal(rest, bytes.Repeat([]byte{0x77}, len(rest))) {
				t.Fatalf("%s: octets behind the message were written", what)
			}
		}
		flip := func(b []byte, bit int) []byte {
			b = bytes.Clone(b)
			b[bit/8] ^= 1 << (bit % 8)
			return b
		}
		lengths := []int{0, 1, 16, 40, 64, 65, 200, 256, 500, 512, 557, 600, 800, 1024, 1300, 2000, 5000}
		if i == std {
			lengths = []int{0, 1, 40}
		}
		for _, n := range lengths {
			sealed := want.Seal(nil, nonce, octets(n, 14), aad)
			for bit := range 8 * Overhead {
				refuse(fmt.Sprintf("%d octets, tag bit %d", n, bit), flip(sealed, 8*n+bit), nonce, aad)
			}
			for bit := 0; bit < 8*n; bit += 1 + n/40 {
				refuse(fmt.Sprintf("%d octets, ciphertext bit %d", n, bit), flip(sealed, bit), nonce, aad)
			}
			for bit := range 8 * len(aad) {
				refuse(fmt.Sprintf("%d octets, aad bit %d", n, bit), sealed, nonce, flip(aad, bit))
			}
			for bit := range 8 * len(nonce) {
				refuse(fmt.Sprintf("%d octets, nonce bit %d", n, bit), sealed, flip(nonce, bit), aad)
			}
			for cut := 1; cut <= min(n+Overhead, 40); cut++ {
				refuse(fmt.Sprintf("%d octets, %d cut off", n, cut), sealed[:len(sealed)-cut], nonce, aad)
				if n >= cut {
					refuse(fmt.Sprintf("%d octets, %d cut out", n, cut), append(bytes.Clone(sealed[:n-cut]), sealed[n:]...), nonce, aad)
				}
			}
			tag := func(what string, f func(n int, c byte) byte) {
				t.Helper()
				b := bytes.Clone(sealed)
				for i := range b[n:] {
					b[n+i] = f(i, sealed[n+i])
				}
				refuse(what, b, nonce, aad)
			}
			tag("tag of ones", func(int, byte) byte { return 0xff })
			tag("every bit of the tag", func(_ int, c byte) byte { return ^c })
			tag("the highest bit of every octet of the tag", func(_ int, c byte) byte { return c ^ 0x80 })
			tag("the lowest bit of every octet of the tag", func(_ int, c byte) byte { return c ^ 1 })
			tag("the tag's octets moved on", func(i int, _ byte) byte { return sealed[n+(i+1)%Overhead] })
			tag("the tag's octets reversed", func(i int, _ byte) byte { return sealed[n+Overhead-1-i] })
			tag("the tag's halves exchanged", func(i int, _ byte) byte { return sealed[n+(i+8)%Overhead] })
			for same := range Overhead {
				tag(fmt.Sprintf("only octet %d of the tag is right", same), func(i int, c byte) byte {
					if i == same {
						return c
					}
					return c ^ 0x55
				})
			}
			refuse("tag of zeroes", append(bytes.Clone(sealed[:n]), make([]byte, Overhead)...), nonce, aad)
			refuse("longer", append(bytes.Clone(sealed), 0), nonce, aad)
			refuse("shorter aad", sealed, nonce, aad[:20])
			refuse("no aad", sealed, nonce, nil)
			refuse("longer aad", sealed, nonce, append(bytes.Clone(aad), 0))
		}
		if _, err := a.Open(nil, nonce, nil, aad); !errors.Is(err, ErrOpen) {
			t.Errorf("nothing at all: %v", err)
		}
	})
}

func TestForgeryLeavesOutputApartWiped(t *testing.T) {
	forEach(t, func(t *testing.T, i implementation, size int) {
		key := octets(size, 15)
		a := mustAEAD(t, i, key)
		nonce := octets(NonceSize, 16)
		for n := 0; n < 1200; n += stride(i) {
			forged := octets(n+Overhead, uint64(n))
			dst := bytes.Repeat([]byte{1}, n+3)
			if _, err := a.Open(dst[:1], nonce, forged, nil); !errors.Is(err, ErrOpen) {
				t.Fatal(err)
			}
			if want := append(append([]byte{1}, make([]byte, n)...), 1, 1); !bytes.Equal(dst, want) {
				t.Fatalf("%d octets: output is %x", n, dst)
			}
		}
	})
}

// panicOf is what f panics with, nil if it doesn't.
func panicOf(f func()) (what any) {
	defer func() { what = recover() }()
	f()
	return nil
}

// panics tells whether f does.
func panics(f func()) bool { return panicOf(f) != nil }

func TestOverlapsPanicAsInTheStandardLibrary(t *testing.T) {
	forEach(t, func(t *testing.T, i implementation, size int) {
		key := octets(size, 17)
		a, want := mustAEAD(t, i, key), oracle(t, key)
		nonce := octets(NonceSize, 18)
		buf := make([]byte, 200)
		for _, n := range []int{0, 1, 30} {
			for dst := 0; dst < 100; dst++ {
				for _, l := range []int{0, 1, 21} {
					for _, ad := range []int{0, 33, 49, 50, 51, 60, 79, 80, 81, 96, 99} {
						f := func(a cipher.AEAD) (bool, bool) {
							clear(buf)
							seal := panics(func() { a.Seal(buf[dst:dst], nonce, buf[50:50+n], buf[ad:ad+l]) })
							clear(buf)
							open := panics(func() { a.Open(buf[dst:dst], nonce, buf[50:50+n+Overhead], buf[ad:ad+l]) })
							return seal, open
						}
						seal, open := f(a)
						wantSeal, wantOpen := f(want)
						if seal != wantSeal || open != wantOpen {
							t.Fatalf("%d octets at 50 to %d, %d aad at %d: panics %t %t, want %t %t",
								n, dst, l, ad, seal, open, wantSeal, wantOpen)
						}
					}
				}
			}
		}
	})
}

func TestMisusePanics(t *testing.T) {
	forEach(t, func(t *testing.T, i implementation, size int) {
		a := mustAEAD(t, i, octets(size, 19))
		for _, n := range []int{0, 8, 11, 13, 16} {
			if !panics(func() { a.Seal(nil, make([]byte, n), nil, nil) }) {
				t.Errorf("Seal takes a nonce of %d octets", n)
			}
			if !panics(func() { a.Open(nil, make([]byte, n), make([]byte, 16), nil) }) {
				t.Errorf("Open takes a nonce of %d octets", n)
			}
		}
		if a.NonceSize() != 12 || a.Overhead() != 16 {
			t.Errorf("NonceSize %d, Overhead %d", a.NonceSize(), a.Overhead())
		}
	})
	for _, i := range available() {
		k := mustAEAD(t, i, octets(32, 19))
		for what, f := range map[string]func(){
			badNonce:   func() { k.Seal(nil, make([]byte, 8), nil, nil) },
			badOverlap: func() { b := make([]byte, 40); k.Seal(b[1:1], make([]byte, 12), b[:20], nil) },
		} {
			if got := panicOf(f); got != what {
				t.Errorf("%s panics with %v, want %q", i, got, what)
			}
		}
	}
	var zero Key
	if !panics(func() { zero.Seal(nil, make([]byte, 12), nil, nil) }) ||
		!panics(func() { zero.Open(nil, make([]byte, 12), make([]byte, 16), nil) }) {
		t.Error("a Key without a key works")
	}
}

// TestTooLongIsRefused is about the block counter, which must not come round.
// To see that the longest text is taken there is a key without a kernel, which
// only panics for that once the lengths are found to be right.
func TestTooLongIsRefused(t *testing.T) {
	nonce := make([]byte, NonceSize)
	// Of so long a slice nothing but the length may be looked at.
	long := unsafe.Slice((*byte)(unsafe.Pointer(new([16]byte))), 1)
	header := (*struct {
		p        *byte
		len, cap int
	})(unsafe.Pointer(&long))
	resize := func(n uint64) []byte {
		header.len, header.cap = int(n), int(n+Overhead)
		return long
	}
	defer resize(0)
	var zero Key
	aeads := map[string]cipher.AEAD{"none": &zero}
	for _, i := range available() {
		aeads[i.String()] = mustAEAD(t, i, octets(32, 20))
	}
	for name, a := range aeads {
		b := resize(maxPlaintext + 1)
		if got := panicOf(func() { a.Seal(b[:0], nonce, b, nil) }); got != tooLong {
			t.Errorf("%s: Seal of more than GCM may encrypt: %v", name, got)
		}
		b = resize(maxPlaintext + 1 + Overhead)
		if _, err := a.Open(b[:0], nonce, b, nil); !errors.Is(err, ErrOpen) {
			t.Errorf("%s: Open of more than GCM may encrypt: %v", name, err)
		}
	}
	b := resize(maxPlaintext)
	if got := panicOf(func() { zero.Seal(b[:0], nonce, b, nil) }); got != noKey {
		t.Errorf("Seal of as much as GCM may encrypt: %v", got)
	}
	b = resize(maxPlaintext + Overhead)
	if got := panicOf(func() { zero.Open(b[:0], nonce, b, nil) }); got != noKey {
		t.Errorf("Open of as much as GCM may encrypt: %v", got)
	}
}

func TestShortDestinationIsReplaced(t *testing.T) {
	forEach(t, func(t *testing.T, i implementation, size int) {
		key := octets(size, 24)
		a, want := mustAEAD(t, i, key), oracle(t, key)
		nonce := octets(NonceSize, 25)
		for n := 1; n < 700; n += 1 + n/10 {
			plain := octets(n, 26)
			sealed := want.Seal(nil, nonce, plain, nil)
			for _, missing := range []int{1, min(n, 8), n} {
				short := bytes.Repeat([]byte{7}, n+Overhead-missing+3)
				kept := bytes.Clone(short)
				got := a.Seal(short[:3], nonce, plain, nil)
				if !bytes.Equal(got[:3], kept[:3]) || !bytes.Equal(got[3:], sealed) || !bytes.Equal(short, kept) {
					t.Fatalf("%d octets, room for %d less: wrong, or the room was written", n, missing)
				}
				short = short[: n-missing+3 : n-missing+3]
				got, err := a.Open(short[:3], nonce, sealed, nil)
				if err != nil || !bytes.Equal(got[:3], kept[:3]) || !bytes.Equal(got[3:], plain) || !bytes.Equal(short, kept[:len(short)]) {
					t.Fatalf("%d octets, room for %d less: %v, wrong, or the room was written", n, missing, err)
				}
			}
		}
	})
}

func TestKeySizes(t *testing.T) {
	for n := range 40 {
		a, err := New(make([]byte, n))
		if ok := n == 16 || n == 32; ok != (err == nil) || ok != (a != nil) || !ok && err != ErrKeySize {
			t.Errorf("%d octets: %v", n, err)
		}
	}
}

// A key has the 881 octets that the documentation tells, or, where there are no
// kernels, next to none; above 896 begins the allocator's next class.
func TestKeyIs881Octets(t *testing.T) {
	if n := unsafe.Sizeof(Key{}); n != 881 && (len(available()) > 0 || n > 1) {
		t.Errorf("a key is %d octets", n)
	}
}

func TestWipe(t *testing.T) {
	forEach(t, func(t *testing.T, i implementation, size int) {
		a := mustAEAD(t, i, octets(size, 21))
		a.(interface{ Wipe() }).Wipe()
		a.(interface{ Wipe() }).Wipe() // does nothing more
		if k, ok := a.(*Key); ok && *k != (Key{}) {
			t.Error("something is left of the key")
		}
		if !panics(func() { a.Seal(nil, make([]byte, 12), nil, nil) }) ||
			!panics(func() { a.Open(nil, make([]byte, 12), make([]byte, 16), nil) }) {
			t.Error("a wiped key still works")
		}
	})
}

func TestNothingIsAllocated(t *testing.T) {
	forEach(t, func(t *testing.T, i implementation, size int) {
		a := mustAEAD(t, i, octets(size, 22))
		nonce, aad := make([]byte, 12), make([]byte, 21)
		for _, n := range []int{0, 64, 512, 1500} {
			buf := make([]byte, n, n+Overhead)
			if got := testing.AllocsPerRun(20, func() {
				sealed := a.Seal(buf[:0], nonce, buf, aad)
				if _, err := a.Open(sealed[:0], nonce, sealed, aad); err != nil {
					t.Fatal(err)
				}
			}); got != 0 {
				t.Errorf("%d octets: %v allocations", n, got)
			}
		}
	})
}

func TestKeyIsSharedByGoroutines(t *testing.T) {
	forEach(t, func(t *testing.T, i implementation, size int) {
		key := octets(size, 23)
		a, want := mustAEAD(t, i, key), oracle(t, key)
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				for n := range 300 {
					nonce := octets(NonceSize, uint64(g)<<32|uint64(n))
					plain := octets(n*3, uint64(g))
					if !bytes.Equal(a.Seal(nil, nonce, plain, nonce), want.Seal(nil, nonce, plain, nonce)) {
						t.Errorf("goroutine %d: %d octets sealed wrongly", g, len(plain))
					}
				}
			})
		}
		wg.Wait()
	})
}

func TestSelfTestAgrees(t *testing.T) {
	for _, i := range available() {
		if !agrees(i) {
			t.Errorf("%s fails its self-test", i)
		}
	}
}

// wrong is the standard library's AEAD with a fault.
type wrong struct {
	cipher.AEAD
	seal func(sealed []byte) []byte
	open func(dst, opened []byte, err error) ([]byte, error)
}

func (w wrong) Seal(dst, nonce, plain, aad []byte) []byte {
	sealed := w.AEAD.Seal(dst, nonce, plain, aad)
	if w.seal != nil {
		return w.seal(sealed)
	}
	return sealed
}

func (w wrong) Open(dst, nonce, sealed, aad []byte) ([]byte, error) {
	opened, err := w.AEAD.Open(dst, nonce, sealed, aad)
	if w.open != nil {
		return w.open(dst[:len(sealed)-Overhead], opened, err)
	}
	return opened, err
}

func TestSelfTestFindsFaults(t *testing.T) {
	for name, w := range map[string]wrong{
		"a bit of the tag": {seal: func(b []byte) []byte { b[len(b)-1] ^= 1; return b }},
		"a bit of long ciphertexts": {seal: func(b []byte) []byte {
			if len(b) > 4200 {
				b[4100] ^= 0x10
			}
			return b
		}},
		"only one length": {seal: func(b []byte) []byte {
			if len(b) == Overhead {
				b[0]++
			}
			return b
		}},
		"an octet too few": {seal: func(b []byte) []byte { return b[:len(b)-1] }},
		"opens forgeries":  {open: func(dst, _ []byte, _ error) ([]byte, error) { return dst, nil }},
		"opens nothing":    {open: func(_, _ []byte, _ error) ([]byte, error) { return nil, ErrOpen }},
		"another error": {open: func(_, b []byte, err error) ([]byte, error) {
			if err != nil {
				err = errors.New("wrong")
			}
			return b, err
		}},
		"leaves plaintext behind": {open: func(dst, b []byte, err error) ([]byte, error) {
			if err != nil && len(dst) > 100 {
				dst[100] = 'x'
			}
			return b, err
		}},
		"wrong plaintext": {open: func(_, b []byte, err error) ([]byte, error) {
			if len(b) > 1000 {
				b[999] ^= 2
			}
			return b, err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if selfTest(func(key []byte) (cipher.AEAD, error) {
				a, err := newAEAD(std, key)
				w.AEAD = a
				return w, err
			}) {
				t.Error("not found")
			}
		})
	}
	if selfTest(func([]byte) (cipher.AEAD, error) { return nil, ErrKeySize }) {
		t.Error("an implementation that makes no keys passes")
	}
	if !selfTest(func(key []byte) (cipher.AEAD, error) { return newAEAD(std, key) }) {
		t.Error("the standard library fails")
	}
}

func TestChoice(t *testing.T) {
	both := []implementation{avx512, avx2}
	pass := func(implementation) bool { return true }
	fail := func(bad ...implementation) func(implementation) bool {
		return func(i implementation) bool { return !slices.Contains(bad, i) }
	}
	for name, tc := range map[string]struct {
		wish string
		fips bool
		list []implementation
		test func(implementation) bool
		want string
	}{
		"the best":                          {"", false, both, pass, "avx512"},
		"the best there is":                 {"", false, both[1:], pass, "avx2"},
		"none there":                        {"", false, nil, pass, "std"},
		"the best that passes":              {"", false, both, fail(avx512), "avx2 (self-test failed: avx512)"},
		"none passes":                       {"", false, both, fail(avx512, avx2), "std (self-test failed: avx512, avx2)"},
		"as wished: std":                    {"std", false, both, fail(avx512, avx2), "std"},
		"as wished: avx2":                   {"avx2", false, both, fail(avx512), "avx2"},
		"as wished: avx512":                 {"avx512", false, both, pass, "avx512"},
		"wished for, not there":             {"avx512", false, both[1:], pass, "std"},
		"wished for, does not pass":         {"avx512", false, both, fail(avx512), "std (self-test failed: avx512)"},
		"an unknown wish":                   {"fast", false, both, pass, "avx512"},
		"FIPS 140-3 mode":                   {"", true, both, fail(avx512), "std"},
		"FIPS 140-3 mode, whatever is said": {"avx512", true, both, pass, "std"},
	} {
		t.Run(name, func(t *testing.T) {
			c := choose(tc.wish, tc.fips, tc.list, tc.test)
			if c.String() != tc.want {
				t.Errorf("%s, want %s", c, tc.want)
			}
			use, _, failed := strings.Cut(tc.want, " ")
			if c.use.String() != use {
				t.Errorf("uses %s, want %s", c.use, use)
			}
			if err := c.err(); failed != errors.Is(err, ErrSelfTest) || !failed && err != nil {
				t.Errorf("its error is %v", err)
			} else if failed && (!strings.Contains(err.Error(), c.names()) || !strings.HasSuffix(err.Error(), use+" is used")) {
				t.Errorf("%q names neither what failed nor what is used", err)
			}
		})
	}
}

func TestNothingFailsHere(t *testing.T) {
	if err := SelfTest(); err != nil || Describe() != Implementation() {
		t.Errorf("%s: %v", Describe(), err)
	}
}

// TestEnvironmentChooses runs this binary again for each value of the variable.
func TestEnvironmentChooses(t *testing.T) {
	const mark = "implementation:"
	if os.Getenv("AESGCM_TEST_REPORT") != "" {
		fmt.Println(mark + Implementation())
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range implementations() {
		cmd := exec.Command(self, "-test.run=^TestEnvironmentChooses$")
		cmd.Env = append(os.Environ(), "AESGCM_TEST_REPORT=1", variable+"="+i.String(), "GODEBUG=fips140=off")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if _, got, _ := strings.Cut(string(out), mark); strings.Fields(got)[0] != i.String() {
			t.Errorf("%s=%s gives %s", variable, i, got)
		}
	}
}
