// Package aesgcm is AES-GCM with 12-octet nonces and 16-octet tags, for short
// and long messages, in place, without allocating.
//
// It gives the octets that crypto/cipher's GCM gives, and behaves as that does
// towards its caller (append to dst, exact overlap or none, panics on misuse),
// only faster where the processor has vector AES. Three implementations stand
// behind New, of which Implementation names the one in use:
//
//	avx512  AVX-512 (F, BW, VL), BMI2, VAES and VPCLMULQDQ
//	avx2    AVX2, VAES and VPCLMULQDQ
//	std     the standard library's: everywhere else, with the build tag purego,
//	        in FIPS 140-3 mode, and should a kernel fail its self-test
//
// The environment variable TRESTLE_AESGCM names one to be used instead of the
// best. A self-test that fails is no secret: SelfTest and Describe tell. There is
// no kernel for AES-NI alone: the standard library has that one.
//
// # How it works
//
// In the avx512 kernel a message of at most 576 octets is hashed in one go, with
// its associated data and the block of lengths, over the powers H^1..H^39 of the
// GHASH key: one reduction. A longer one is taken in groups of 512 octets, in the
// avx2 kernel every one in groups of 256. Texts end in masked loads and stores
// (avx512) or in loads of 1 to 8 octets (avx2): nothing outside the slices is ever
// touched. AES and GHASH are interleaved: one group, or half of one, is hashed
// while the next is encrypted. In the avx512 kernel, above 1024 octets, GHASH
// saves a multiplication in four (Karatsuba), and the first AES round is done once
// for a group but for what the last octet of the counter adds to it.
//
// # Secrets and time
//
// Which instructions run, and which addresses they read and write, depends on
// the lengths, the addresses of the slices and the block counter, and on nothing
// else: not on key, text, associated data, nonce or tag. There are no tables but
// the key's powers, which are read by position. Whether a message authenticates
// is decided once, over the whole tag.
//
// Open decrypts while it hashes: to hash first would be a second pass over the
// message. Should the tag then not agree, the output is zeroed before Open
// returns. Meanwhile unverified plaintext is in dst: whoever shares dst with
// another goroutine during the call would see it. Messages are never decrypted
// under a key by trial here.
//
// Wipe erases a key. Registers and what the stack held of nonces and counters are
// not erased; what it held of key material is.
//
// # Memory
//
// A Key is one object of 881 octets without pointers (in Go's size class of 896;
// the standard library's is of 768): 40 powers and 15 round keys. To make one
// takes less time than the standard library needs, so that there is no smaller
// form for a key that is seldom used: drop it, and make it again.
//
// The assembly is generated, see asm/_gen.
package aesgcm
