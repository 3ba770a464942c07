package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// expand writes the key expansion of AES with the given number of rounds, and
// the powers of the GHASH key, in AVX instructions of 128 bits.
func (c *constants) expand(rounds int) {
	TEXT(fmt.Sprintf("expandRounds%d", rounds), attr.NOSPLIT, fmt.Sprintf("func(key *[%d]byte, raw *byte)", keyState))
	Doc(fmt.Sprintf("expandRounds%d expands the AES key at raw, %d octets.", rounds, 4*(rounds-6)))
	Pragma("noescape")
	key, raw := reg.RDI, reg.RSI
	Load(Param("key"), key)
	Load(Param("raw"), raw)

	k0, k1, t, u, h := reg.X0, reg.X1, reg.X2, reg.X3, reg.X4
	// next puts a round key where the last but one (AES-256) or the last
	// (AES-128) was.
	next := func(k, last reg.VecPhysical, rcon, word uint64) {
		VAESKEYGENASSIST(Imm(rcon), last, t)
		VPSHUFD(Imm(word), t, t)
		VPSLLDQ(Imm(4), k, u)
		VPXOR(u, k, k)
		VPSLLDQ(Imm(8), k, u)
		VPXOR(u, k, k)
		VPXOR(t, k, k)
	}
	// use stores round key i and takes the all-zero block through round i.
	use := func(i int, k reg.VecPhysical) {
		VMOVDQU(k, at(key, roundKey+16*i))
		switch {
		case i == 0:
			VMOVDQA(k, h)
		case i < rounds:
			VAESENC(k, h, h)
		default:
			VAESENCLAST(k, h, h)
		}
	}
	VMOVDQU(at(raw, 0), k0)
	use(0, k0)
	rcon := uint64(1)
	step := func() uint64 {
		r := rcon
		rcon <<= 1
		if rcon > 0xff {
			rcon ^= 0x11b
		}
		return r
	}
	if rounds == 10 {
		for i := 1; i <= rounds; i++ {
			next(k0, k0, step(), 0xff)
			use(i, k0)
		}
	} else {
		VMOVDQU(at(raw, 16), k1)
		use(1, k1)
		for i := 2; i <= rounds; i++ {
			if i%2 == 0 {
				next(k0, k1, step(), 0xff)
				use(i, k0)
			} else {
				next(k1, k0, 0, 0xaa)
				use(i, k1)
			}
		}
	}

	Comment("H times 1/x: shifted left by one, with the bit that falls out fed back.")
	VPSHUFB(c.reverse, h, h)
	VPSHUFD(Imm(0xd3), h, t)
	VPSRAD(Imm(31), t, t)
	VPAND(c.carry, t, t)
	VPADDQ(h, h, h)
	VPXOR(t, h, h)

	Comment("Its powers, each from two lower ones.")
	power := func(n int) Mem { return at(key, powerEnd-16*n) }
	VMOVDQU(h, power(1))
	lo, mi, hi := reg.X5, reg.X6, reg.X7
	by := reg.X8
	for n, base := 2, 1; n <= powers; n++ {
		if n > 2*base && 2*base <= 32 {
			base *= 2
		}
		if n == 2 || n == base+1 {
			VMOVDQU(power(base), by)
		}
		VMOVDQU(power(n-base), h)
		emit(product(h, by, lo, mi, hi, t))
		VPCLMULQDQ(Imm(0x10), c.poly, lo, t)
		VPSHUFD(Imm(0x4e), lo, lo)
		VPXOR(lo, mi, mi)
		VPXOR(t, mi, mi)
		VPCLMULQDQ(Imm(0x10), c.poly, mi, t)
		VPSHUFD(Imm(0x4e), mi, mi)
		VPXOR(mi, hi, hi)
		VPXOR(t, hi, hi)
		VMOVDQU(hi, power(n))
	}
	RET()
}
