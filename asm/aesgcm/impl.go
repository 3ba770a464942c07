package aesgcm

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/fips140"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/trestle-npamp/trestle/internal/wipe"
)

// implementation is one way to do it.
type implementation uint8

const (
	std    implementation = iota // crypto/cipher
	avx2                         // vector AES on 256 bits
	avx512                       // vector AES on 512 bits
)

func (i implementation) String() string {
	switch i {
	case avx2:
		return "avx2"
	case avx512:
		return "avx512"
	}
	return "std"
}

// kernel is the code that handles a Key's messages; 0 is none, of no key.
type kernel uint8

const (
	avx512Rounds14 kernel = 1 + iota // AES-256
	avx512Rounds10                   // AES-128
	avx2Rounds14
	avx2Rounds10
)

// variable is the environment variable that overrides the choice.
const variable = "TRESTLE_AESGCM"

// choice is what was chosen, and what failed its self-test before.
type choice struct {
	use    implementation
	failed []implementation
}

// chosen is what New uses.
var chosen = sync.OnceValue(func() choice {
	return choose(os.Getenv(variable), fips140.Enabled(), available(), agrees)
})

// choose takes the first of list, best first, that passes the test, or only the
// one that is wished for, and otherwise the standard library. In FIPS 140-3 mode
// that has the only validated module.
func choose(wish string, fips bool, list []implementation, test func(implementation) bool) (c choice) {
	if fips || wish == std.String() {
		return c
	}
	named := wish == avx2.String() || wish == avx512.String()
	for _, i := range list {
		if named && wish != i.String() {
			continue
		}
		if test(i) {
			c.use = i
			break
		}
		c.failed = append(c.failed, i)
	}
	return c
}

func (c choice) err() error {
	if len(c.failed) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s; %s is used", ErrSelfTest, c.names(), c.use)
}

func (c choice) String() string {
	if len(c.failed) == 0 {
		return c.use.String()
	}
	return c.use.String() + " (self-test failed: " + c.names() + ")"
}

// names lists what failed.
func (c choice) names() string {
	var b strings.Builder
	for n, i := range c.failed {
		if n > 0 {
			b.WriteString(", ")
		}
		b.WriteString(i.String())
	}
	return b.String()
}

// ErrSelfTest is what SelfTest's error wraps.
var ErrSelfTest = errors.New("aesgcm: self-test failed")

// Implementation tells what New's keys run on: "avx512", "avx2", or "std" for
// the standard library. That is the best one that the processor and the
// operating system support and that agrees with the standard library on a few
// hundred messages when the first key is made. The environment variable
// TRESTLE_AESGCM, read then, can name another one; where that can't run it is
// "std". A value that is none of the three has no effect.
func Implementation() string { return chosen().use.String() }

// SelfTest tells which implementations disagreed with the standard library when
// one was chosen, as an error that is ErrSelfTest; nil if none did. What
// Implementation names is used in their place, so keys are right all the same,
// but slower than they should be, on a processor or under a system that is not
// to be trusted, or with a kernel that has a fault.
func SelfTest() error { return chosen().err() }

// Describe is Implementation for people: where a self-test failed it says so,
// as in "std (self-test failed: avx512, avx2)".
func Describe() string { return chosen().String() }

// newStd is the standard library's AEAD.
func newStd(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	defer wipe.Object(block) // NewGCM copied the expanded key
	return cipher.NewGCM(block)
}

// agrees tells whether an implementation passes the self-test.
func agrees(i implementation) bool {
	return selfTest(func(key []byte) (cipher.AEAD, error) { return newAEAD(i, key) })
}

// selfTest compares what newKey makes with the standard library's over lengths
// that take every path of the kernels, forgeries included: these must be refused,
// and leave no plaintext. It takes some 100 us.
func selfTest(newKey func(key []byte) (cipher.AEAD, error)) bool {
	var text [5000]byte
	for n := range text {
		text[n] = byte(n*7 + n>>8)
	}
	var sealed, got [len(text) + Overhead]byte
	for _, size := range []int{16, 32} {
		key := text[100 : 100+size]
		reference, err := newStd(key)
		if err != nil {
			return false
		}
		k, err := newKey(key)
		if err != nil {
			return false
		}
		for n := 0; n <= len(text); n += 1 + n/13 {
			nonce, aad, plain := text[n%100:][:NonceSize], text[n%50:][:n*3%60], text[:n]
			want := reference.Seal(sealed[:0], nonce, plain, aad)
			have := k.Seal(got[:0], nonce, plain, aad)
			if !bytes.Equal(have, want) {
				return false
			}
			if opened, err := k.Open(have[:0], nonce, have, aad); err != nil || !bytes.Equal(opened, plain) {
				return false
			}
			want[(n*5)%len(want)] ^= 1 << (n % 8)
			if _, err := k.Open(want[:0], nonce, want, aad); err != ErrOpen {
				return false
			}
			for _, c := range want[:n] {
				if c != 0 {
					return false
				}
			}
		}
	}
	return true
}
