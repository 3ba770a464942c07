package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Layout of the key state in octets. The kernels may read up to 48 octets past
// the powers, where the round keys are, only to multiply them by zero.
const (
	powers   = 40          // H^40 .. H^1, each times x^-1, reflected
	powerEnd = powers * 16 // where H^1 ends
	roundKey = powerEnd    // 11 (AES-128) or 15 (AES-256) of 16 octets
	keyState = roundKey + 15*16
)

// A group is what the kernels handle at a time: eight registers of four blocks.
// More powers and larger groups save reductions. With 19 powers and groups of
// four registers 512 octets took a tenth longer; beyond that a reduction is one
// instruction in thirty.
//
// A message that is only a vector longer than a group is hashed in one go as
// well. That takes 39 powers, for 36 blocks of text, two of associated data and
// the lengths; with 40 those of a group stand at a multiple of 64 octets from the
// key's beginning. A key of 36 is in the same class of Go's allocator, one of 41
// is not.
const (
	vector  = 64
	vectors = 8
	group   = vectors * vector

	// part is how many vectors of a message's last group are encrypted together.
	// For sealing, part after part, 4 was better than 2, 3, 5, 6 and 8. Nine are
	// taken as 5 and 4, which was better than 4, 4 and 1, three times 3, 6 and 3,
	// 7 and 2, and all together.
	part = 4
)

// Vector registers of the AVX-512 kernels. All 32 are in use:
//
//	Z0-Z7    AES states of a group, then its ciphertext, reflected for GHASH
//	Z8-Z10   GHASH accumulators: products' low, middle and high parts
//	Z11      the octet reversal of a block
//	Z12      the nonce, later the counters, in the end (X12) the tag's mask
//	Z13-Z15  temporaries; X13 the GHASH value so far, folded and reduced
//	Z16-Z30  round keys; after the first round the first two are temporaries, or
//	         from the second group on base and column
//	Z31      a temporary, or the state of a ninth vector
var (
	state = []reg.VecPhysical{reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7, reg.Z31}
	lo    = reg.Z8
	mi    = reg.Z9
	hi    = reg.Z10
	rev   = reg.Z11
	ctr   = reg.Z12
	mask  = reg.X12
	acc   = reg.Z13
	t0    = reg.Z14
	t1    = reg.Z15
	rk    = []reg.VecPhysical{reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22, reg.Z23,
		reg.Z24, reg.Z25, reg.Z26, reg.Z27, reg.Z28, reg.Z29, reg.Z30}
	t2 = reg.Z31

	base   = rk[0] // after the first round: a block whose counter's last octet adds nothing
	column = rk[1] // base's first column in all columns
)

// Other registers.
var (
	key     = reg.R8
	dst     = reg.RDI
	src     = reg.RSI
	rest    = reg.RCX // octets left
	nonce   = reg.R9
	aad     = reg.R10
	aadLen  = reg.R11 // octets, later bits
	bits    = reg.R13 // of plaintext or ciphertext
	aadBlks = reg.RBX // octets of associated data in acc, rounded up to blocks
	power   = reg.RDX // where in the powers the next product starts
	count   = reg.R12 // the group's first block counter
	inputs  = nonce   // the counters of the last group, once the nonce is read
	tail    = reg.K1  // octets of the last vector
	col0    = reg.K2  // the first column of each block
	upper   = reg.K3  // the last two blocks of a vector
)

func asX(r reg.VecPhysical) reg.VecPhysical { return r.AsX().(reg.VecPhysical) }
func asY(r reg.VecPhysical) reg.VecPhysical { return r.AsY().(reg.VecPhysical) }

func at(base reg.GPPhysical, disp int) Mem { return Mem{Base: base, Disp: disp} }

var xor3 = Imm(0x96) // VPTERNLOG's table for a ^ b ^ c

// constants are the kernels' read-only data, whole vectors.
type constants struct {
	reverse, poly, carry Mem
	first                Mem // counters 2..65 of the first two groups, big-endian
	one                  Mem // counter 1, big-endian
	low                  Mem // last octets of counters 34..49, in the order of oneRound
	sixteen              Mem // 16 in these places
	nextPair             Mem // counters 2 and 3, reversed
	stepPair             Mem // what to add for each vector of two; the ninth for a group
	ones                 Mem // 32 octets of ones, then 32 of zeroes
}

func declareConstants() constants {
	words := func(name string, w ...uint64) Mem {
		m := GLOBL(name, attr.RODATA|attr.NOPTR)
		for i, v := range w {
			DATA(8*i, U64(v))
		}
		return m
	}
	four := func(low, high uint64) []uint64 {
		return []uint64{low, high, low, high, low, high, low, high}
	}
	var first, low []uint64
	for i := range uint64(2 * 4 * vectors) {
		first = append(first, 0, (2+i)<<56)
	}
	for lane := range uint64(4) {
		// The octet at the top of dword d gets, by ShiftRows, into column d+1.
		c := func(d uint64) uint64 { return 2 + 4*vectors + 4*((d+1)%4) + lane }
		low = append(low, c(0)<<24|c(1)<<56, c(2)<<24|c(3)<<56)
	}
	var steps []uint64
	for i := range uint64(pairs + 1) {
		steps = append(steps, 2*i, 0, 2*i, 0)
	}
	const all = 1<<64 - 1
	return constants{
		reverse: words("reverse", four(0x08090a0b0c0d0e0f, 0x0001020304050607)...),
		poly:    words("poly", four(1, 0xc200000000000000)...),
		carry:   words("carry", 1, 0xc200000000000001),
		first:   words("first", first...),
		one:     words("one", 0, 1<<56),
		low:     words("low", low...),
		sixteen: words("sixteen", four(0x1000000010000000, 0x1000000010000000)...),

		nextPair: words("nextPair", 2, 0, 3, 0),
		stepPair: words("stepPair", steps...),
		ones:     words("ones", all, all, all, all, 0, 0, 0, 0),
	}
}

// ops is a straight-line piece of code, one instruction an element.
type ops []func()

func (o *ops) add(f ...func()) { *o = append(*o, f...) }

// emit writes streams that are independent of each other, interleaved evenly,
// so that the processor's window holds some of each at any time.
func emit(streams ...ops) {
	longest := 0
	for _, s := range streams {
		longest = max(longest, len(s))
	}
	done := make([]int, len(streams))
	for i := 1; i <= longest; i++ {
		for j, s := range streams {
			for ; done[j]*longest < i*len(s); done[j]++ {
				s[done[j]]()
			}
		}
	}
}

// kernel512 writes one kernel.
type kernel512 struct {
	constants
	rounds int
	open   bool

	nine bool // nine vectors are under way: t2 is no temporary
	skip int  // for sealing: the state that has the text's first vector
}

// aesRounds streams all AES rounds but the first and the last for vectors from
// to to, and for the tag's mask, last round included, if withMask is set.
func (k *kernel512) aesRounds(from, to int, withMask bool) (s ops) {
	for r := 2; r < k.rounds; r++ {
		for _, z := range state[from:to] {
			s.add(func() { VAESENC(rk[r], z, z) })
		}
		if withMask {
			s.add(func() { VAESENC(asX(rk[r]), mask, mask) })
		}
	}
	if withMask {
		s.add(func() { VAESENCLAST(asX(rk[k.rounds]), mask, mask) })
	}
	return s
}

// finish streams the last AES round, which takes in the text, and the storing
// of vector i. For sealing it leaves the ciphertext in state[i].
func (k *kernel512) finish(i int, last bool) (s ops) {
	z, t := state[i], t2
	if k.nine {
		t = rk[0]
	}
	from, to := at(src, (i-k.skip)*vector), at(dst, (i-k.skip)*vector)
	if last {
		s.add(
			func() { VMOVDQU8_Z(from, tail, t) },
			func() { VPXORQ(rk[k.rounds], t, t) },
			func() { VAESENCLAST(t, z, z) },
			func() { VMOVDQU8(z, tail, to) })
		if !k.open {
			// What lies behind the text is zero to GHASH.
			s.add(func() { VMOVDQU8_Z(z, tail, z) })
		}
		return s
	}
	s.add(
		func() { VPXORQ(from, rk[k.rounds], t) },
		func() { VAESENCLAST(t, z, z) },
		func() { VMOVDQU64(z, to) })
	return s
}

// hash streams the products of vectors from to to with the powers at m onwards,
// added to the accumulators. They are state[from:to], or, for opening, what is
// in memory at src. It spoils all temporaries and the first two round keys, but
// not the ninth state.
func (k *kernel512) hash(from, to int, m Mem, partial bool) (s ops) {
	p := []reg.VecPhysical{t0, t1}
	u, v := rk[0], rk[1]
	read := func(i int, d reg.VecPhysical) reg.VecPhysical {
		if !k.open {
			return state[i]
		}
		if partial && i == to-1 {
			s.add(func() { VMOVDQU8_Z(at(src, i*vector), tail, d) })
		} else {
			s.add(func() { VMOVDQU64(at(src, i*vector), d) })
		}
		s.add(func() { VPSHUFB(rev, d, d) })
		return d
	}
	mul := func(imm uint64, p, d, to reg.VecPhysical) {
		s.add(func() { VPCLMULQDQ(Imm(imm), p, d, to) })
	}
	add := func(sum reg.VecPhysical) {
		s.add(func() { VPTERNLOGQ(xor3, u, v, sum) })
	}
	step := 2
	if k.open && k.nine {
		step = 1 // there are no registers for two
	}
	for i := from; i < to; i += step {
		// The powers stand at any multiple of 16 octets, so most loads cross a
		// cache line: one load each, not one a product.
		a := read(i, acc)
		s.add(func() { VMOVDQU64(m.Offset(i*vector), p[0]) })
		if step == 2 && i+1 < to {
			b := read(i+1, t2)
			s.add(func() { VMOVDQU64(m.Offset((i+1)*vector), p[1]) })
			mul(0x00, p[0], a, u)
			mul(0x00, p[1], b, v)
			add(lo)
			mul(0x01, p[0], a, u)
			mul(0x10, p[0], a, v)
			add(mi)
			mul(0x01, p[1], b, u)
			mul(0x10, p[1], b, v)
			add(mi)
			mul(0x11, p[0], a, u)
			mul(0x11, p[1], b, v)
			add(hi)
			continue
		}
		mul(0x00, p[0], a, p[1])
		mul(0x01, p[0], a, u)
		mul(0x10, p[0], a, v)
		s.add(func() { VPXORQ(p[1], lo, lo) })
		add(mi)
		mul(0x11, p[0], a, p[1])
		s.add(func() { VPXORQ(p[1], hi, hi) })
	}
	return s
}

// hashGroup streams what hash does for a whole group in memory at disp from
// base, to whose first block acc belongs. There the powers' sums are at hand to
// save a product in four (Karatsuba).
func (k *kernel512) hashGroup(base reg.GPPhysical, disp int, l locals) (s ops) {
	a, b, u, v := acc, t0, t1, t2
	p := at(key, powerEnd-group)
	mul := func(imm uint64, m Mem, d, to reg.VecPhysical) {
		s.add(func() { VPCLMULQDQ(Imm(imm), m, d, to) })
	}
	add := func(sum reg.VecPhysical) {
		s.add(func() { VPTERNLOGQ(xor3, u, v, sum) })
	}
	for i := 0; i < vectors; i += 2 {
		pa, pb := p.Offset(i*vector), p.Offset((i+1)*vector)
		if i == 0 {
			s.add(
				func() { VMOVDQU64(at(base, disp), b) },
				func() { VPSHUFB(rev, b, b) },
				func() { VPXORQ(b, a, a) })
		} else {
			s.add(
				func() { VMOVDQU64(at(base, disp+i*vector), a) },
				func() { VPSHUFB(rev, a, a) })
		}
		s.add(
			func() { VMOVDQU64(at(base, disp+(i+1)*vector), b) },
			func() { VPSHUFB(rev, b, b) })
		mul(0x00, pa, a, u)
		mul(0x00, pb, b, v)
		add(lo)
		mul(0x11, pa, a, u)
		mul(0x11, pb, b, v)
		add(hi)
		s.add(
			func() { VPUNPCKLQDQ(b, a, u) },
			func() { VPUNPCKHQDQ(b, a, a) },
			func() { VPXORQ(u, a, a) })
		mul(0x00, l.sums.Offset(i/2*vector), a, u)
		mul(0x11, l.sums.Offset(i/2*vector), a, v)
		add(mi)
	}
	s.add(func() { VPTERNLOGQ(xor3, lo, hi, mi) })
	return s
}

// sums writes the making of what hashGroup needs.
func (k *kernel512) sums(l locals) {
	p := at(key, powerEnd-group)
	for i := 0; i < vectors; i += 2 {
		VMOVDQU64(p.Offset(i*vector), t0)
		VMOVDQU64(p.Offset((i+1)*vector), t1)
		VPUNPCKLQDQ(t1, t0, t2)
		VPUNPCKHQDQ(t1, t0, t0)
		VPXORQ(t0, t2, t0)
		VMOVDQU64(t0, l.sums.Offset(i/2*vector))
	}
}

// product streams d times p into the accumulators, overwriting them.
func product(d, p, lo, mi, hi, t reg.VecPhysical) ops {
	return ops{
		func() { VPCLMULQDQ(Imm(0x01), p, d, mi) },
		func() { VPCLMULQDQ(Imm(0x10), p, d, t) },
		func() { VPCLMULQDQ(Imm(0x00), p, d, lo) },
		func() { VPCLMULQDQ(Imm(0x11), p, d, hi) },
		func() { xor(t, mi, mi) },
	}
}

// xor is the plain form for registers that have one.
func xor(a, b, to reg.VecPhysical) {
	if a.Size() < 64 {
		VPXOR(a, b, to)
	} else {
		VPXORQ(a, b, to)
	}
}

// reduce streams the reduction of the accumulators, lane by lane, into hi. It
// spoils lo, mi and t.
func (k *kernel512) reduce(t reg.VecPhysical) ops {
	return ops{
		func() { VPCLMULQDQ(Imm(0x10), k.poly, lo, t) },
		func() { VPSHUFD(Imm(0x4e), lo, lo) },
		func() { VPTERNLOGQ(xor3, t, lo, mi) },
		func() { VPCLMULQDQ(Imm(0x10), k.poly, mi, t) },
		func() { VPSHUFD(Imm(0x4e), mi, mi) },
		func() { VPTERNLOGQ(xor3, t, mi, hi) },
	}
}

// fold streams the reduction of the accumulators to a single block, into acc. It
// spoils lo, mi and t0.
func (k *kernel512) fold() ops { return append(k.reduce(t0), fold(t0, acc)...) }

// fold streams the sum of hi's four lanes into to.
func fold(t, to reg.VecPhysical) ops {
	return ops{
		func() { VEXTRACTI64X4(Imm(1), hi, asY(t)) },
		func() { VPXOR(asY(hi), asY(t), asY(t)) },
		func() { VEXTRACTI128(Imm(1), asY(t), asX(to)) },
		func() { VPXOR(asX(t), asX(to), asX(to)) },
	}
}

// zero streams the clearing of whole registers, by an idiom that needs no
// execution.
func zero(rs ...reg.VecPhysical) (s ops) {
	for _, r := range rs {
		s.add(func() { VPXOR(asX(r), asX(r), asX(r)) })
	}
	return s
}

// CTR mode's first round is cheap: of a group's input blocks only the last octet
// differs, as long as the block counter does not carry, so that after a round
// only the first column does. base is a block after that round which lacks the
// last octet's share. That share depends on the octet alone, and one VAESENC
// makes it for four vectors, a column for each, when all other octets are ones
// that the S-box maps to zero; with base's own column for a round key it is the
// whole new column.

// rebase writes the making of base and column for the blocks whose counter
// agrees with count in all but the last octet. It spoils t0.
func (k *kernel512) rebase(iv Mem) {
	b := asX(t0)
	MOVL(count.As32(), reg.RAX.As32())
	BSWAPL(reg.RAX.As32())
	VMOVDQU(iv, b)
	VPINSRD(Imm(3), reg.RAX.As32(), b, b)
	VPXOR(at(key, roundKey), b, b)
	MOVL(U32(0x52), reg.RAX.As32())
	VPINSRB(Imm(15), reg.RAX.As32(), b, b)
	VAESENC(at(key, roundKey+16), b, b)
	VPBROADCASTD(b, column)
	VSHUFI64X2(Imm(0), t0, t0, base)
}

// oneRound writes the next states of a group, after their first round, and
// steps the counters.
func (k *kernel512) oneRound(l locals) {
	VPADDD(k.sixteen, ctr, t1)
	VPXORD_BCST(l.inert, ctr, t0)
	VPXORD_BCST(l.inert, t1, t2)
	VPADDD(k.sixteen, t1, ctr)
	VAESENC(column, t0, t0)
	VAESENC(column, t2, t1)
	for i, z := range state[:vectors] {
		VMOVDQA64(base, z)
		VPSHUFD(Imm(uint64(i%4)*0x55), []reg.VecPhysical{t0, t1}[i/4], col0, z)
	}

	// The carry comes, once in eight groups, between the last vector's second
	// and third block.
	CMPB(count.As8L(), Imm(0xe2))
	JE(LabelRef("carry"))
	ADDL(Imm(4*vectors), count.As32())
	Label("carried")
}

// carry writes what oneRound leaves to be done then.
func (k *kernel512) carry(l locals) {
	Label("carry")
	ADDL(Imm(4*vectors), count.As32())
	VPXORQ(column, t1, t1)
	k.rebase(l.nonce)
	VPXORQ(column, t1, t1)
	VMOVDQA64(base, t0)
	VPSHUFD(Imm(0xff), t1, col0, t0)
	VMOVDQA64(t0, upper, state[vectors-1])
	JMP(LabelRef("carried"))
}

// locals are the kernels' variables in memory.
type locals struct {
	sums  Mem // of the halves of each power for a group, in the order of hashGroup
	nonce Mem // and four octets more
	inert Mem // a dword to add to the octets of low by XOR
}

// advance moves n octets on.
func advance(n int) {
	ADDQ(U32(n), src)
	ADDQ(U32(n), dst)
	SUBQ(U32(n), rest)
}

// shortData writes the reading of the aadLen octets at aad, at most 32, to
// acc, and their number rounded up to blocks to aadBlks. They were likely
// written a moment ago, field by field, and a load that spans several stores
// has to wait until these have left the processor; but nothing needs the result
// before the encryption is through.
func shortData() {
	TESTQ(aadLen, aadLen)
	JZ(LabelRef("aad_none"))
	Label("aad_some")
	MOVQ(I32(-1), reg.RAX)
	BZHIQ(aadLen, reg.RAX, reg.RAX)
	KMOVQ(reg.RAX, tail)
	VMOVDQU8_Z(at(aad, 0), tail, asY(acc))
	LEAQ(at(aadLen, 15), aadBlks)
	ANDQ(I8(-16), aadBlks)
	VPSHUFB(asY(rev), asY(acc), asY(acc))
}

// longData writes the hashing of more than 32 octets of associated data. Its
// value goes to acc in place of the last block, with nothing to multiply it by
// yet, so aadBlks is 0.
func (k *kernel512) longData() {
	n, chunk := reg.R12, reg.RAX
	MOVQ(aadLen, n)
	emit(zero(acc))
	Label("aad_loop")
	MOVL(U32(vector), chunk.As32())
	CMPQ(n, chunk)
	CMOVQCS(n, chunk)
	MOVQ(I32(-1), aadBlks)
	BZHIQ(chunk, aadBlks, aadBlks)
	KMOVQ(aadBlks, tail)
	VMOVDQU8_Z(at(aad, 0), tail, t0)
	ADDQ(chunk, aad)
	SUBQ(chunk, n)
	ADDQ(Imm(15), chunk)
	ANDQ(I8(-16), chunk)
	LEAQ(at(key, powerEnd), power)
	SUBQ(chunk, power)
	VMOVDQU64(at(power, 0), t1)
	VPSHUFB(rev, t0, t0)
	VPXORQ(acc, t0, t0)
	emit(product(t0, t1, lo, mi, hi, state[1]))
	emit(k.fold())
	TESTQ(n, n)
	JNZ(LabelRef("aad_loop"))
	XORL(aadBlks.As32(), aadBlks.As32())
	JMP(LabelRef("aad_done"))
}

// generate writes the whole kernel.
func (k *kernel512) generate(name string) {
	kernelText(name, k.open)
	Comment("The nonce was likely stored a moment ago, in pieces: load no more at a time.")
	VMOVD(at(nonce, 0), asX(ctr))
	VPINSRD(Imm(1), at(nonce, 4), asX(ctr), asX(ctr))
	VPINSRD(Imm(2), at(nonce, 8), asX(ctr), asX(ctr))
	load := func(i int) { VBROADCASTI32X4(at(key, roundKey+16*i), rk[i]) }
	load(0)
	load(1)
	VPXORQ(asX(rk[0]), asX(ctr), asX(t2))
	VSHUFI64X2(Imm(0), t2, t2, t2)
	VPXORQ(k.first, t2, state[0])
	VAESENC(rk[1], state[0], state[0])
	for i := 2; i <= k.rounds; i++ {
		load(i)
	}
	VMOVDQU64(k.reverse, rev)

	CMPQ(aadLen, Imm(32))
	JA(LabelRef("aad_long"))
	shortData()
	Label("aad_done")
	SHLQ(Imm(3), aadLen)
	MOVQ(rest, bits)
	SHLQ(Imm(3), bits)
	CMPQ(rest, U32(group))
	JA(LabelRef("long"))

	Comment("A short message, hashed in one go: its first counter is 2.")
	LEAQ(k.first, inputs)
	Label("inputs")
	Comment("The counter of the tag's mask is 1.")
	VPXORQ(k.one, asX(t2), mask)
	VAESENC(asX(rk[1]), mask, mask)
	for n := range vectors {
		if n > 0 {
			CMPQ(rest, U32(n*vector))
			JBE(LabelRef(fmt.Sprintf("last_%d", n)))
			VPXORQ(at(inputs, n*vector), t2, state[n])
			VAESENC(rk[1], state[n], state[n])
		} else {
			TESTQ(rest, rest)
			JZ(LabelRef("last_0"))
		}
	}
	for n := vectors; n >= 0; n-- {
		Label(fmt.Sprintf("last_%d", n))
		k.last(n, 0)
	}

	Label("long")
	CMPQ(rest, U32((vectors+1)*vector))
	JBE(LabelRef("nine"))
	if !k.open {
		CMPQ(rest, U32((vectors+part)*vector))
		JBE(LabelRef("half"))
	}
	for i, z := range state[1:vectors] {
		VPXORQ(k.first.Offset((i+1)*vector), t2, z)
		VAESENC(rk[1], z, z)
	}
	k.dataProduct(group)
	CMPQ(rest, U32(2*group))
	JA(LabelRef("bulk"))

	Comment("A group and a last one.")
	k.two(0)

	Label("bulk")
	l := locals{AllocLocal(vectors / 2 * vector), AllocLocal(16), AllocLocal(8)}
	VPTERNLOGQ(xor3, lo, hi, mi) // as hashGroup adds them
	emit(zero(acc))
	VMOVDQU(asX(ctr), l.nonce)
	MOVBLZX(at(key, roundKey+15), reg.RAX.As32())
	SHLL(Imm(24), reg.RAX.As32())
	XORL(U32(0x525252), reg.RAX.As32())
	MOVL(reg.RAX.As32(), l.inert)
	MOVL(U32(0x1111), reg.RAX.As32())
	KMOVW(reg.RAX.As32(), col0)
	MOVL(U32(0xf0), reg.RAX.As32())
	KMOVW(reg.RAX.As32(), upper)
	k.sums(l)
	XORL(count.As32(), count.As32())
	k.rebase(l.nonce)
	MOVL(U32(2+4*vectors), count.As32())
	VMOVDQU64(k.low, ctr)
	k.groups(l)

	Comment("The tag's mask.")
	MOVL(U32(1<<24), reg.RAX.As32())
	VMOVDQU(l.nonce, mask)
	VPINSRD(Imm(3), reg.RAX.As32(), mask, mask)
	VPXOR(at(key, roundKey), mask, mask)
	VAESENC(at(key, roundKey+16), mask, mask)
	if !k.open {
		emit(k.aesRounds(0, part, true), append(k.hashGroup(dst, -group, l), k.fold()...))
	}

	Comment("The sums are as secret as the key, and inert has an octet of it.")
	emit(zero(t0))
	for i := range vectors / 2 {
		VMOVDQU64(t0, l.sums.Offset(i*vector))
	}
	MOVL(U32(0), l.inert)
	if k.open {
		for n := 1; n < vectors; n++ {
			CMPQ(rest, U32(n*vector))
			JBE(LabelRef(fmt.Sprintf("last_%d", n)))
		}
		JMP(LabelRef("last_8"))
	} else {
		Label("begun")
		for n := 1; n < vectors; n++ {
			CMPQ(rest, U32(n*vector))
			JBE(LabelRef(fmt.Sprintf("begun_%d", n)))
		}
		for n := vectors; n > 0; n-- {
			Label(fmt.Sprintf("begun_%d", n))
			k.last(n, part)
		}
	}
	k.carry(l)

	Comment("Without data aad may be nil, where even to read nothing takes 300 cycles.")
	Label("aad_none")
	MOVQ(key, aad)
	JMP(LabelRef("aad_some"))
	Label("aad_long")
	k.longData()

	if !k.open {
		Label("half")
		Comment("Half a group and a last one, of which more than half is text: with a whole group",
			"in front more would be encrypted than there is.")
		VMOVDQA64(state[0], state[part])
		for i := part + 1; i < vectors; i++ {
			VPXORQ(k.first.Offset((i-part)*vector), t2, state[i])
			VAESENC(rk[1], state[i], state[i])
		}
		k.dataProduct(group - part*vector)
		k.two(part)
	}

	Label("nine")
	Comment("A vector more than a group, hashed in one go like a short message.")
	for i := 1; i < vectors; i++ {
		VPXORQ(k.first.Offset(i*vector), t2, state[i])
		VAESENC(rk[1], state[i], state[i])
	}
	VPXORQ(k.one, asX(t2), mask)
	VAESENC(asX(rk[1]), mask, mask)
	VPXORQ(k.first.Offset(vectors*vector), t2, state[vectors])
	VAESENC(rk[1], state[vectors], state[vectors])
	k.last(vectors+1, 0)
}

// dataProduct writes the multiplication of the associated data in acc by the
// powers that stand before those of the next n octets: a product of its own,
// reduced with theirs. aadBlks is 0 then, and what has been hashed takes its
// place.
func (k *kernel512) dataProduct(n int) {
	Comment("Associated data: a product of its own, reduced with the first group's.")
	MOVQ(key, reg.RAX)
	SUBQ(aadBlks, reg.RAX)
	XORL(aadBlks.As32(), aadBlks.As32())
	VMOVDQU(at(reg.RAX, powerEnd-n), asY(t1))
	emit(product(acc, t1, lo, mi, hi, t0))
}

// two writes the handling of a message's first group, which for sealing may be
// only the states from skip on, and the beginning of its last one.
func (k *kernel512) two(skip int) {
	n := (vectors - skip) * vector
	k.skip = skip
	other := k.parts(vectors, false, nil, at(key, powerEnd-group), 0)
	k.skip = 0
	advance(n)
	VBROADCASTI32X4(at(key, roundKey), rk[0])
	VBROADCASTI32X4(at(key, roundKey+16), rk[1])
	VSHUFI64X2(Imm(0), ctr, ctr, t2)
	VPXORQ(rk[0], t2, t2)
	input := func(i int) {
		VPXORQ(k.first.Offset(n+i*vector), t2, state[i])
		VAESENC(rk[1], state[i], state[i])
	}
	if k.open {
		emit(k.fold())
		input(0)
		LEAQ(k.first.Offset(n), inputs)
		JMP(LabelRef("inputs"))
		return
	}
	Comment("Half of the group is left to be hashed, while as much of the last one is encrypted,",
		"be there text for it or not.")
	for i := range part {
		input(i)
	}
	VPXORQ(k.one, asX(t2), mask)
	VAESENC(asX(rk[1]), mask, mask)
	emit(k.aesRounds(0, part, true), append(other, k.fold()...))
	if skip == 0 {
		CMPQ(rest, U32(part*vector))
		JBE(LabelRef("begun"))
	}
	VBROADCASTI32X4(at(key, roundKey+16), rk[1])
	for i := part; i < vectors; i++ {
		input(i)
	}
	JMP(LabelRef("begun"))
}

// groups writes the handling of all whole groups but the last group or part of
// one, whose states it leaves ready. For sealing the group before is left to be
// hashed.
func (k *kernel512) groups(l locals) {
	var out ops
	for i := range vectors {
		out.add(k.finish(i, false)...)
	}
	reduce := k.fold()
	if k.open {
		Label("loop")
		emit(k.aesRounds(0, vectors, false), k.hashGroup(src, 0, l))
		emit(out, reduce)
		emit(zero(lo, mi, hi))
		k.oneRound(l)
		advance(group)
		CMPQ(rest, U32(group))
		JA(LabelRef("loop"))
		return
	}
	// A group's ciphertext is hashed while the next one is encrypted.
	emit(k.aesRounds(0, vectors, false))
	emit(out)
	JMP(LabelRef("enter"))
	Label("loop")
	emit(k.aesRounds(0, vectors, false), k.hashGroup(dst, -group, l))
	emit(out, reduce)
	emit(zero(lo, mi, hi))
	Label("enter")
	k.oneRound(l)
	advance(group)
	CMPQ(rest, U32(group))
	JA(LabelRef("loop"))
}

// lastProduct streams the products that a last group begins with, the associated
// data's in acc and the lengths', and puts into power where the group's own
// begin.
func (k *kernel512) lastProduct() ops {
	h := at(key, powerEnd-16) // H^1, of the lengths
	return append(ops{
		func() { LEAQ(at(rest, 15), reg.RAX) },
		func() { ANDQ(I8(-16), reg.RAX) },
		func() { LEAQ(h, power) },
		func() { SUBQ(reg.RAX, power) },
		func() { MOVQ(power, reg.RAX) },
		func() { SUBQ(aadBlks, reg.RAX) },
		func() { VMOVQ(bits, asX(t0)) },
		func() { VPINSRQ(Imm(1), aadLen, asX(t0), asX(t0)) },
		func() { VINSERTI32X4(Imm(2), asX(t0), acc, acc) },
		func() { VMOVDQU(at(reg.RAX, 0), asY(t1)) },
		func() { VINSERTI32X4(Imm(2), h, t1, t1) },
	}, product(acc, t1, lo, mi, hi, t0)...)
}

// parts writes the encryption and hashing of n vectors, with the powers at m
// onwards; for sealing, without the first skip ones. If they are the last, the
// last of them has 1 to 64 octets, and the tag's mask is made. first goes in
// between, before anything is hashed. If begun is set, the first part's states,
// and the mask, are through all rounds but the last one already. The products that nothing is left to hide behind are
// returned, to be written next.
func (k *kernel512) parts(n int, last bool, first ops, m Mem, begun int) ops {
	finish := func(from, to int) {
		var out ops
		for i := from; i < to; i++ {
			out.add(k.finish(i, last && i == n-1)...)
		}
		if !k.open {
			for i := from; i < to; i++ {
				out.add(func() { VPSHUFB(rev, state[i], state[i]) })
			}
		}
		emit(out)
	}
	if k.open {
		emit(k.aesRounds(0, n, last), append(first, k.hash(0, n, m, last)...))
		finish(0, n)
		return nil
	}
	// A part of the vectors is hashed while the next one is encrypted.
	other, from, step := first, k.skip, part
	if k.nine {
		step = 5
	}
	if begun > 0 {
		from = min(begun, n)
		if from == n {
			emit(first)
			first = nil
		}
		finish(0, from)
		other = append(first, k.hash(0, from, m, last)...)
	}
	for ; from < n || n == 0 && from == 0; from += step {
		to := min(from+step, n)
		emit(k.aesRounds(from, to, last && from == 0), other)
		finish(from, to)
		other = k.hash(from, to, m, last)
		if n == 0 {
			break
		}
	}
	return other
}

// last writes the handling of the last n vectors, of which the last has 1 to 64
// octets, and the end of the kernel. acc holds the associated data, or what was
// hashed before. For begun see parts.
func (k *kernel512) last(n, begun int) {
	k.nine = n > vectors
	var first ops
	switch {
	case n > 1:
		first.add(func() { LEAQ(at(rest, -(n-1)*vector), reg.R12) })
	case n == 1:
		first.add(func() { MOVQ(rest, reg.R12) })
	}
	if n > 0 {
		first.add(
			func() { MOVQ(I32(-1), reg.RAX) },
			func() { BZHIQ(reg.R12, reg.RAX, reg.RAX) },
			func() { KMOVQ(reg.RAX, tail) })
	}
	first.add(k.lastProduct()...)
	emit(k.parts(n, true, first, at(power, 0), begun))
	if n > 0 {
		JMP(LabelRef("tag"))
		return
	}

	Label("tag")
	Comment("Mask and tag go in before the lanes are summed up, which is latency saved.")
	VPSHUFB(asX(rev), mask, mask)
	if k.open {
		VMOVDQU(Mem{Base: src, Index: rest, Scale: 1}, asX(t1))
		VPSHUFB(asX(rev), asX(t1), asX(t1))
		VPTERNLOGQ(xor3, ctr, t1, hi)
	} else {
		VPXORQ(ctr, hi, hi)
	}
	emit(k.reduce(t0))
	emit(fold(t0, hi))
	if k.open {
		VPTEST(asX(hi), asX(hi))
		SETEQ(NewParamAddr("ok", 56))
	} else {
		VPSHUFB(asX(rev), asX(hi), asX(hi))
		VMOVDQU(asX(hi), Mem{Base: dst, Index: rest, Scale: 1})
	}
	VZEROUPPER()
	RET()
}

func generate512(c constants) {
	for _, rounds := range []int{14, 10} {
		for _, open := range []bool{false, true} {
			k := &kernel512{constants: c, rounds: rounds, open: open}
			verb := "seal"
			if open {
				verb = "open"
			}
			k.generate(fmt.Sprintf("%s512Rounds%d", verb, rounds))
		}
	}
}
