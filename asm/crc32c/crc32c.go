// Package crc32c computes the checksum of N-PAMP headers: the CRC32C
// (Castagnoli) of 21 octets. The standard library takes any length, and the
// octets before an aligned word and behind the last one singly, which is most of
// the work where there are so few; here they are four instructions.
//
// It needs SSE4.2 on amd64. On other processors, and in builds with the tag
// "purego", the standard library does it.
package crc32c

import "hash/crc32"

// Size is the number of octets that Sum takes.
const Size = 21

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Sum returns the CRC32C of p.
func Sum(p *[Size]byte) uint32 {
	if kernel {
		return sum21(&p[0])
	}
	return crc32.Update(0, castagnoli, p[:])
}
