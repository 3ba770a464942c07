// Command aesgcm writes the assembly of package asm/aesgcm.
package main

import (
	. "github.com/mmcloughlin/avo/build"
)

func main() {
	ConstraintExpr("!purego")
	c := declareConstants()
	c.expand(14)
	c.expand(10)
	generate512(c)
	generate256(c)
	Generate()
}
