//go:build !purego

package record

import (
	"runtime"

	"github.com/klauspost/cpuid/v2"
)

// hasAESGCM tells whether the standard library's AES-GCM runs on the
// processor's own AES and carry-less multiplication.
func hasAESGCM() bool {
	switch runtime.GOARCH {
	case "amd64":
		return cpuid.CPU.Supports(cpuid.AESNI, cpuid.CLMUL, cpuid.SSE4, cpuid.SSSE3)
	case "arm64":
		return cpuid.CPU.Supports(cpuid.AESARM, cpuid.PMULL)
	case "s390x", "ppc64", "ppc64le":
		return true // part of every processor Go supports there
	}
	return false
}
