package aesgcm

import (
	"bytes"
	"crypto/aes"
	"encoding/binary"
	"fmt"
	"testing"
)

// block is an element of GHASH's field, the coefficient of x^0 in the first
// octet's highest bit (NIST SP 800-38D section 6.3).
type block struct{ hi, lo uint64 }

func blockOf(b []byte) (x block) {
	var room [16]byte
	copy(room[:], b)
	return block{binary.BigEndian.Uint64(room[:]), binary.BigEndian.Uint64(room[8:])}
}

func (x block) octets() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, x.hi), x.lo)
}

func (x block) add(y block) block { return block{x.hi ^ y.hi, x.lo ^ y.lo} }

// times goes bit by bit, as the standard writes it down.
func (x block) times(y block) (z block) {
	for i := range 128 {
		bit := x.hi >> (63 - i%64)
		if i >= 64 {
			bit = x.lo >> (63 - i%64)
		}
		if bit&1 == 1 {
			z = z.add(y)
		}
		carry := y.lo & 1
		y = block{y.hi >> 1, y.lo>>1 | y.hi<<63}
		if carry == 1 {
			y.hi ^= 0xe1 << 56
		}
	}
	return z
}

// inverse is x^(2^128 - 2).
func (x block) inverse() block {
	r := block{hi: 1 << 63}
	for range 127 {
		x = x.times(x)
		r = r.times(x)
	}
	return r
}

// reference is AES-GCM as plain as it can be, over crypto/aes's single blocks and
// with nonces of any length. It shares nothing with the kernels or with
// crypto/cipher's GCM.
type reference struct {
	encrypt func(block) block
	h       block
}

func newReference(t testing.TB, key []byte) *reference {
	t.Helper()
	c, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	r := &reference{encrypt: func(x block) block {
		b := x.octets()
		c.Encrypt(b, b)
		return blockOf(b)
	}}
	r.h = r.encrypt(block{})
	return r
}

// hash goes on hashing from y with data, padded to whole blocks.
func (r *reference) hash(y block, data []byte) block {
	for ; len(data) > 0; data = data[min(16, len(data)):] {
		y = y.add(blockOf(data)).times(r.h)
	}
	return y
}

// first is the counter block of the tag's mask.
func (r *reference) first(nonce []byte) block {
	if len(nonce) == 12 {
		b := blockOf(nonce)
		b.lo |= 1
		return b
	}
	return r.hash(block{}, nonce).add(block{lo: uint64(len(nonce)) * 8}).times(r.h)
}

// stream is what text is added to.
func (r *reference) stream(nonce []byte, n int) []byte {
	var b []byte
	for c := r.first(nonce); len(b) < n; {
		c.lo = c.lo&^0xffffffff | uint64(uint32(c.lo)+1)
		b = append(b, r.encrypt(c).octets()...)
	}
	return b[:n]
}

// sum is GHASH of associated data, ciphertext and their lengths.
func (r *reference) sum(aad, ciphertext []byte) block {
	y := r.hash(r.hash(block{}, aad), ciphertext)
	return y.add(lengths(aad, ciphertext)).times(r.h)
}

func lengths(aad, ciphertext []byte) block {
	return block{uint64(len(aad)) * 8, uint64(len(ciphertext)) * 8}
}

// sealed is a ciphertext with its tag.
func (r *reference) sealed(nonce, ciphertext, aad []byte) []byte {
	tag := r.sum(aad, ciphertext).add(r.encrypt(r.first(nonce)))
	return append(bytes.Clone(ciphertext), tag.octets()...)
}

func (r *reference) seal(nonce, plain, aad []byte) []byte {
	return r.sealed(nonce, xored(plain, r.stream(nonce, len(plain))), aad)
}

func xored(a, b []byte) []byte {
	c := bytes.Clone(a)
	for i := range c {
		c[i] ^= b[i]
	}
	return c
}

// agree seals and opens a message, and compares with what it is known to be.
func agree(t *testing.T, what string, a interface {
	Seal(dst, nonce, plain, aad []byte) []byte
	Open(dst, nonce, sealed, aad []byte) ([]byte, error)
}, nonce, plain, aad, sealed []byte) {
	t.Helper()
	if got := a.Seal(nil, nonce, plain, aad); !bytes.Equal(got, sealed) {
		t.Fatalf("%s: sealed\n%x\nwant\n%x", what, got, sealed)
	}
	if got, err := a.Open(nil, nonce, sealed, aad); err != nil || !bytes.Equal(got, plain) {
		t.Fatalf("%s: %v, opened\n%x\nwant\n%x", what, err, got, plain)
	}
}

func TestAgreesWithPlainReference(t *testing.T) {
	forEach(t, func(t *testing.T, i implementation, size int) {
		key := octets(size, 40)
		a, r := mustAEAD(t, i, key), newReference(t, key)
		for n := 0; n <= 2200; n += 1 + n/60 {
			nonce, plain, aad := octets(NonceSize, uint64(n)), octets(n, 41), octets(n*7%90, 42)
			agree(t, fmt.Sprintf("%d octets", n), a, nonce, plain, aad, r.seal(nonce, plain, aad))
		}
	})
}

// Wycheproof's special values: ciphertexts, sums and tags at the edges, made by
// choosing the plaintext, or one block of it, so that they come about.
func TestSpecialValues(t *testing.T) {
	forEach(t, func(t *testing.T, i implementation, size int) {
		key := octets(size, 43)
		a, r := mustAEAD(t, i, key), newReference(t, key)
		nonce, aad := octets(NonceSize, 44), octets(16, 45)
		inverse := r.h.inverse()
		if r.h.times(inverse) != (block{hi: 1 << 63}) {
			t.Fatal("the reference can't divide")
		}
		mask := r.encrypt(r.first(nonce))
		ones := block{^uint64(0), ^uint64(0)}
		stream := r.stream(nonce, 5000)
		try := func(what string, ciphertext, aad []byte) []byte {
			t.Helper()
			sealed := r.sealed(nonce, ciphertext, aad)
			agree(t, fmt.Sprintf("%d octets, %s", len(ciphertext), what), a,
				nonce, xored(ciphertext, stream), aad, sealed)
			return sealed[len(ciphertext):]
		}
		for _, n := range []int{16, 32, 48, 64, 80, 128, 240, 256, 272, 512, 528, 576, 592, 768, 784, 1024, 1040, 1536, 2064, 4096, 4112} {
			for _, octet := range []byte{0x00, 0xff, 0x80, 0x01, 0x7f} {
				c := bytes.Repeat([]byte{octet}, n)
				try(fmt.Sprintf("ciphertext of %x", octet), c, nil)
				try(fmt.Sprintf("ciphertext and data of %x", octet), c, c[:min(n, 600)])
				try(fmt.Sprintf("ciphertext of %x, a part of a block", octet), c[:n-5], aad)
			}

			// The hash so far is zero from some block on, and again behind it.
			c := octets(n, 46)
			copy(c, r.hash(block{}, aad).octets())
			if r.hash(r.hash(block{}, aad), c[:16]) != (block{}) {
				t.Fatal("the hash so far is not zero")
			}
			try("hash of zero", c, aad)
			clear(c[16:])
			try("hash of zero throughout", c, aad)

			// One block decides on the sum, wherever it stands.
			for _, at := range []int{0, n / 32 * 16, n - 16} {
				steer := func(what string, sum block) []byte {
					t.Helper()
					c := octets(n, 47)
					// Backwards from the sum to what the hash must be after the block.
					y := sum.times(inverse).add(lengths(aad, c))
					for b := n - 16; b > at; b -= 16 {
						y = y.times(inverse).add(blockOf(c[b:]))
					}
					before := r.hash(r.hash(block{}, aad), c[:at])
					copy(c[at:], y.times(inverse).add(before).octets())
					if r.sum(aad, c) != sum {
						t.Fatal("the sum is not what was wanted")
					}
					return try(what, c, aad)
				}
				steer("sum of zero", block{})
				steer("sum of ones", ones)
				steer("sum of x^0", block{hi: 1 << 63})
				steer("sum of x^127", block{lo: 1})
				if tag := steer("tag of zero", mask); !bytes.Equal(tag, make([]byte, Overhead)) {
					t.Fatalf("the tag is %x", tag)
				}
				if tag := steer("tag of ones", mask.add(ones)); !bytes.Equal(tag, ones.octets()) {
					t.Fatalf("the tag is %x", tag)
				}
			}
		}
	})
}
