package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The AVX2 kernels do with registers of two blocks what the AVX-512 ones do with
// four and more care. A group is eight registers again.
const (
	pair     = 32
	pairs    = 8
	group256 = pairs * pair // octets of a group
)

// Vector registers of the AVX2 kernels:
//
//	Y0-Y7    AES states of a group, then its ciphertext, reflected
//	Y8-Y10   GHASH accumulators; X10 between groups the GHASH value so far
//	Y11 Y12  temporaries
//	Y13      a temporary, in the end (X13) the tag's mask
//	Y14      the last, partial, vector of the text; before, a temporary
//	Y15      the round key, or a temporary
var (
	state2 = []reg.VecPhysical{reg.Y0, reg.Y1, reg.Y2, reg.Y3, reg.Y4, reg.Y5, reg.Y6, reg.Y7}
	lo2    = reg.Y8
	mi2    = reg.Y9
	hi2    = reg.Y10
	u2     = reg.Y11
	v2     = reg.Y12
	mask2  = reg.X13
	last2  = reg.Y14
	key2   = reg.Y15

	acc2 = reg.X10
)

// kernel256 writes one kernel.
type kernel256 struct {
	constants
	rounds int
	open   bool
	ctr    Mem // the group's counters, reversed, then the nonce likewise
	labels int
}

func (k *kernel256) label() string {
	k.labels++
	return fmt.Sprintf("l%d", k.labels)
}

// loadPartial writes the reading of n octets at from, 1 to 32, to y, zeroes
// behind them. It spoils n, from and t.
func (k *kernel256) loadPartial(from, n reg.GPPhysical, y, t reg.VecPhysical) {
	x := asX(y)
	two, four, eight, sixteen, full, done := k.label(), k.label(), k.label(), k.label(), k.label(), k.label()
	CMPQ(n, Imm(pair))
	JE(LabelRef(full))
	VPXOR(x, x, x)
	// Backwards, so that what was read moves up.
	step := func(bit uint64, next string, f func()) {
		TESTQ(U32(uint32(bit)), n)
		JZ(LabelRef(next))
		SUBQ(Imm(bit), from)
		VPSLLDQ(Imm(bit), x, x)
		f()
		Label(next)
	}
	ADDQ(n, from)
	step(1, two, func() { VPINSRB(Imm(0), at(from, 0), x, x) })
	step(2, four, func() { VPINSRW(Imm(0), at(from, 0), x, x) })
	step(4, eight, func() { VPINSRD(Imm(0), at(from, 0), x, x) })
	step(8, sixteen, func() { VPINSRQ(Imm(0), at(from, 0), x, x) })
	TESTQ(U32(16), n)
	JZ(LabelRef(done))
	VMOVDQU(at(from, -16), asX(t))
	VINSERTI128(Imm(1), x, t, y)
	JMP(LabelRef(done))
	Label(full)
	VMOVDQU(at(from, 0), y)
	Label(done)
}

// storePartial writes the storing of the first n octets of y, 1 to 32, at to.
// It spoils n, to and y.
func (k *kernel256) storePartial(y reg.VecPhysical, to, n reg.GPPhysical) {
	x := asX(y)
	eight, four, two, one, full, done := k.label(), k.label(), k.label(), k.label(), k.label(), k.label()
	CMPQ(n, Imm(pair))
	JE(LabelRef(full))
	step := func(bit uint64, next string, f func()) {
		TESTQ(U32(uint32(bit)), n)
		JZ(LabelRef(next))
		f()
		ADDQ(Imm(bit), to)
		if bit < 16 {
			VPSRLDQ(Imm(bit), x, x)
		} else {
			VEXTRACTI128(Imm(1), y, x)
		}
		Label(next)
	}
	step(16, eight, func() { VMOVDQU(x, at(to, 0)) })
	step(8, four, func() { VMOVQ(x, at(to, 0)) })
	step(4, two, func() { VMOVD(x, at(to, 0)) })
	step(2, one, func() { VPEXTRW(Imm(0), x, at(to, 0)) })
	TESTQ(U32(1), n)
	JZ(LabelRef(done))
	VPEXTRB(Imm(0), x, at(to, 0))
	JMP(LabelRef(done))
	Label(full)
	VMOVDQU(y, at(to, 0))
	Label(done)
}

// product streams d times the powers at m, added to the accumulators, or
// overwriting them if it is the first.
func (k *kernel256) product(d reg.VecPhysical, m Mem, first bool) ops {
	u, v, lo, mi, hi := u2, v2, lo2, mi2, hi2
	if d.Size() < pair {
		u, v, lo, mi, hi = asX(u), asX(v), asX(lo), asX(mi), asX(hi)
	}
	if first {
		return ops{
			func() { VPCLMULQDQ(Imm(0x00), m, d, lo) },
			func() { VPCLMULQDQ(Imm(0x01), m, d, mi) },
			func() { VPCLMULQDQ(Imm(0x10), m, d, u) },
			func() { VPCLMULQDQ(Imm(0x11), m, d, hi) },
			func() { VPXOR(u, mi, mi) },
		}
	}
	return ops{
		func() { VPCLMULQDQ(Imm(0x00), m, d, u) },
		func() { VPCLMULQDQ(Imm(0x01), m, d, v) },
		func() { VPXOR(asY(u), lo2, lo2) },
		func() { VPXOR(asY(v), mi2, mi2) },
		func() { VPCLMULQDQ(Imm(0x10), m, d, u) },
		func() { VPCLMULQDQ(Imm(0x11), m, d, v) },
		func() { VPXOR(asY(u), mi2, mi2) },
		func() { VPXOR(asY(v), hi2, hi2) },
	}
}

// reduce streams the reduction of the accumulators and the sum of both lanes,
// into acc2.
func (k *kernel256) reduce() ops {
	return ops{
		func() { VPCLMULQDQ(Imm(0x10), k.poly, lo2, u2) },
		func() { VPSHUFD(Imm(0x4e), lo2, lo2) },
		func() { VPXOR(u2, mi2, mi2) },
		func() { VPXOR(lo2, mi2, mi2) },
		func() { VPCLMULQDQ(Imm(0x10), k.poly, mi2, u2) },
		func() { VPSHUFD(Imm(0x4e), mi2, mi2) },
		func() { VPXOR(u2, hi2, hi2) },
		func() { VPXOR(mi2, hi2, hi2) },
		func() { VEXTRACTI128(Imm(1), hi2, asX(u2)) },
		func() { VPXOR(asX(u2), acc2, acc2) },
	}
}

// states writes the first n input blocks of a group and steps the counters.
func (k *kernel256) states(n int) {
	VBROADCASTI128(at(key, roundKey), key2)
	VMOVDQU(k.ctr, u2)
	for i, z := range state2[:n] {
		VPADDD(k.stepPair.Offset(i*pair), u2, z)
		VPSHUFB(k.reverse, z, z)
		VPXOR(key2, z, z)
	}
	if n == pairs {
		VPADDD(k.stepPair.Offset(pairs*pair), u2, u2)
		VMOVDQU(u2, k.ctr)
	}
}

// aesRounds streams all AES rounds but the last one for n vectors, and all for
// the tag's mask if withMask is set; key2 holds the last round's key then.
func (k *kernel256) aesRounds(n int, withMask bool) (s ops) {
	if withMask {
		s.add(func() { VPXOR(at(key, roundKey), mask2, mask2) })
	}
	for r := 1; r < k.rounds; r++ {
		s.add(func() { VBROADCASTI128(at(key, roundKey+16*r), key2) })
		for _, z := range state2[:n] {
			s.add(func() { VAESENC(key2, z, z) })
		}
		if withMask {
			s.add(func() { VAESENC(asX(key2), mask2, mask2) })
		}
	}
	s.add(func() { VBROADCASTI128(at(key, roundKey+16*k.rounds), key2) })
	if withMask {
		s.add(func() { VAESENCLAST(asX(key2), mask2, mask2) })
	}
	return s
}

// finish streams the last AES round and the text of the first n vectors.
func (k *kernel256) finish(n int) (s ops) {
	for i, z := range state2[:n] {
		s.add(
			func() { VAESENCLAST(key2, z, z) },
			func() { VPXOR(at(src, i*pair), z, z) },
			func() { VMOVDQU(z, at(dst, i*pair)) })
	}
	return s
}

// generate writes the whole kernel.
func (k *kernel256) generate(name string) {
	kernelText(name, k.open)
	k.ctr = AllocLocal(pair)
	powersOfGroup := at(key, powerEnd-group256)

	VMOVD(at(nonce, 0), mask2)
	VPINSRD(Imm(1), at(nonce, 4), mask2, mask2)
	VPINSRD(Imm(2), at(nonce, 8), mask2, mask2)
	VPSHUFB(k.reverse, mask2, mask2)
	VINSERTI128(Imm(1), mask2, asY(mask2), asY(mask2))
	VPADDD(k.nextPair, asY(mask2), asY(mask2))
	VMOVDQU(asY(mask2), k.ctr)
	VPXOR(acc2, acc2, acc2)

	Comment("Associated data.")
	from, n := reg.RAX, reg.R12
	MOVQ(aadLen, bits)
	TESTQ(aadLen, aadLen)
	JZ(LabelRef("text"))
	Label("aad_loop")
	MOVL(U32(pair), n.As32())
	CMPQ(bits, n)
	CMOVQCS(bits, n)
	SUBQ(n, bits)
	MOVQ(aad, from)
	ADDQ(n, aad)
	LEAQ(at(n, 15), reg.RBX)
	ANDQ(I8(-16), reg.RBX)
	LEAQ(at(key, powerEnd), power)
	SUBQ(reg.RBX, power)
	k.loadPartial(from, n, last2, u2)
	VPSHUFB(k.reverse, last2, last2)
	VPXOR(hi2, last2, last2)
	emit(k.product(last2, at(power, 0), true))
	emit(k.reduce())
	TESTQ(bits, bits)
	JNZ(LabelRef("aad_loop"))

	Label("text")
	SHLQ(Imm(3), aadLen)
	MOVQ(rest, bits)
	SHLQ(Imm(3), bits)
	TESTQ(rest, rest)
	JZ(LabelRef("last_0"))
	CMPQ(rest, U32(group256))
	JBE(LabelRef("last"))

	advance := func() {
		ADDQ(U32(group256), src)
		ADDQ(U32(group256), dst)
		SUBQ(U32(group256), rest)
		CMPQ(rest, U32(group256))
	}
	if k.open {
		Label("loop")
		k.states(pairs)
		emit(k.aesRounds(pairs, false), k.hashMemory(last2, src, 0, pairs, powersOfGroup))
		emit(k.finish(pairs), k.reduce())
		advance()
		JA(LabelRef("loop"))
	} else {
		// A group's ciphertext is hashed while the next one is encrypted.
		k.states(pairs)
		emit(k.aesRounds(pairs, false))
		emit(k.finish(pairs))
		advance()
		JBE(LabelRef("looped"))
		Label("loop")
		k.states(pairs)
		emit(k.aesRounds(pairs, false), k.hashMemory(last2, dst, -group256, pairs, powersOfGroup))
		emit(k.finish(pairs), k.reduce())
		advance()
		JA(LabelRef("loop"))
		Label("looped")
		emit(k.hashMemory(last2, dst, -group256, pairs, powersOfGroup))
		emit(k.reduce())
	}

	Label("last")
	Comment("The last vector, partial or not, and the powers for what is left.")
	LEAQ(at(rest, -1), from)
	ANDQ(I8(-pair), from)
	MOVQ(rest, n)
	SUBQ(from, n)
	MOVQ(n, reg.R9) // octets of the last vector
	ADDQ(src, from)
	k.loadPartial(from, n, last2, u2)
	LEAQ(at(rest, 15), reg.RAX)
	ANDQ(I8(-16), reg.RAX)
	LEAQ(at(key, powerEnd-16), power)
	SUBQ(reg.RAX, power)
	for n := 1; n < pairs; n++ {
		CMPQ(rest, U32(uint32(n*pair)))
		JBE(LabelRef(fmt.Sprintf("last_%d", n)))
	}
	for n := pairs; n >= 0; n-- {
		Label(fmt.Sprintf("last_%d", n))
		k.last(n)
	}
}

// hashState streams the products of state2[:n], to be reflected first, with the
// powers at m onwards; acc2 belongs to the first block.
func (k *kernel256) hashState(n int, m Mem) (s ops) {
	for i, z := range state2[:n] {
		s.add(func() { VPSHUFB(k.reverse, z, z) })
		if i == 0 {
			s.add(func() { VPXOR(hi2, z, z) })
		}
		s.add(k.product(z, m.Offset(i*pair), i == 0)...)
	}
	return s
}

// hashMemory is hashState for ciphertext in memory, at disp from base. It spoils
// d.
func (k *kernel256) hashMemory(d reg.VecPhysical, base reg.GPPhysical, disp, n int, m Mem) (s ops) {
	for i := range n {
		s.add(
			func() { VMOVDQU(at(base, disp+i*pair), d) },
			func() { VPSHUFB(k.reverse, d, d) })
		if i == 0 {
			s.add(func() { VPXOR(hi2, d, d) })
		}
		s.add(k.product(d, m.Offset(i*pair), i == 0)...)
	}
	return s
}

// last writes the handling of the last n vectors and the end of the kernel.
func (k *kernel256) last(n int) {
	// A counter of 1, reflected: what was stored last agrees in the nonce.
	one := func() {
		MOVL(U32(1), reg.RAX.As32())
		VMOVDQU(k.ctr, mask2)
		VPINSRD(Imm(0), reg.RAX.As32(), mask2, mask2)
		VPSHUFB(k.reverse, mask2, mask2)
	}
	lengths := func() {
		VMOVQ(bits, asX(key2))
		VPINSRQ(Imm(1), aadLen, asX(key2), asX(key2))
	}
	one()
	if n == 0 {
		emit(k.aesRounds(0, true))
		lengths()
		VPXOR(acc2, asX(key2), asX(key2))
		emit(k.product(key2, at(key, powerEnd-16), true))
	} else {
		k.states(n)
		if k.open {
			d := key2
			if n < pairs {
				d = state2[n]
			}
			hash := k.hashMemory(d, src, 0, n-1, at(power, 0))
			hash.add(func() { VPSHUFB(k.reverse, last2, d) })
			if n == 1 {
				hash.add(func() { VPXOR(hi2, d, d) })
			}
			hash.add(k.product(d, at(power, (n-1)*pair), n == 1)...)
			if n < pairs {
				emit(k.aesRounds(n, true), hash)
			} else {
				emit(hash)
				emit(k.aesRounds(n, true))
			}
		} else {
			emit(k.aesRounds(n, true))
		}
		emit(k.finish(n - 1))
		z := state2[n-1]
		VAESENCLAST(key2, z, z)
		VPXOR(last2, z, last2)
		if !k.open {
			LEAQ(k.ones, reg.RAX)
			SUBQ(reg.R9, reg.RAX)
			VPAND(at(reg.RAX, pair), last2, last2)
			VMOVDQA(last2, z)
			emit(k.hashState(n, at(power, 0)))
		}
		lengths()
		emit(k.product(asX(key2), at(key, powerEnd-16), false))
	}
	if n > 0 {
		JMP(LabelRef("tag"))
		return
	}

	Label("tag")
	emit(k.reduce())
	VPSHUFB(k.reverse, acc2, acc2)
	VPXOR(mask2, acc2, acc2)
	if k.open {
		VPXOR(Mem{Base: src, Index: rest, Scale: 1}, acc2, acc2)
		VPTEST(acc2, acc2)
		SETEQ(NewParamAddr("ok", 56))
	} else {
		VMOVDQU(acc2, Mem{Base: dst, Index: rest, Scale: 1})
	}
	TESTQ(rest, rest)
	JZ(LabelRef("done"))
	LEAQ(at(rest, -1), reg.RAX)
	ANDQ(I8(-pair), reg.RAX)
	ADDQ(dst, reg.RAX)
	k.storePartial(last2, reg.RAX, reg.R9)
	Label("done")
	VZEROUPPER()
	RET()
}

func generate256(c constants) {
	for _, rounds := range []int{14, 10} {
		for _, open := range []bool{false, true} {
			k := &kernel256{constants: c, rounds: rounds, open: open}
			verb := "seal"
			if open {
				verb = "open"
			}
			k.generate(fmt.Sprintf("%s256Rounds%d", verb, rounds))
		}
	}
}

// kernelText begins a kernel and writes the reading of its arguments.
func kernelText(name string, open bool) {
	sig := fmt.Sprintf("func(key *[%d]byte, dst, src *byte, n int, nonce, aad *byte, aadLen int)", keyState)
	if open {
		sig += " (ok bool)"
	}
	TEXT(name, attr.NOSPLIT, sig)
	if open {
		Doc(name+" decrypts n octets of src to dst and tells whether the 16 octets",
			"that follow them in src are their tag.")
	} else {
		Doc(name + " encrypts n octets of src to dst and puts their tag behind them.")
	}
	Pragma("noescape")
	for _, p := range []struct {
		name string
		to   reg.GPPhysical
	}{{"nonce", nonce}, {"key", key}, {"aad", aad}, {"aadLen", aadLen}, {"n", rest}, {"src", src}, {"dst", dst}} {
		Load(Param(p.name), p.to)
	}
}
