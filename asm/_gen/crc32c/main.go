// Command crc32c writes the assembly of package asm/crc32c.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
)

func main() {
	ConstraintExpr("!purego")
	TEXT("sum21", NOSPLIT, "func(p *byte) uint32")
	Pragma("noescape")
	Doc("sum21 is the CRC32C of the 21 octets at p. It needs SSE4.2.")
	p := Load(Param("p"), GP64())
	crc := GP64()
	// The instruction takes 3 cycles and each needs the one before it, so that the
	// least number of them is what counts: 8 + 8 + 4 + 1. Loads that aren't aligned
	// cost nothing.
	MOVL(U32(0xFFFFFFFF), crc.As32())
	CRC32Q(Mem{Base: p}, crc)
	CRC32Q(Mem{Base: p, Disp: 8}, crc)
	CRC32L(Mem{Base: p, Disp: 16}, crc.As32())
	CRC32B(Mem{Base: p, Disp: 20}, crc.As32())
	NOTL(crc.As32())
	Store(crc.As32(), ReturnIndex(0))
	RET()
	Generate()
}
