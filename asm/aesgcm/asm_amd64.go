//go:build !purego

package aesgcm

import (
	"runtime"
	"unsafe"

	"github.com/klauspost/cpuid/v2"
)

//go:generate go run -C ../_gen ./aesgcm -out ../aesgcm/kernels_amd64.s -stubs ../aesgcm/kernels_amd64.go -pkg aesgcm

// material is what the kernels need of a key: 40 powers of the GHASH key, then
// 15 round keys (11 for AES-128), of 16 octets each. Where it begins at a
// multiple of 32 octets, as it does on the heap, long messages are a little
// faster; nothing else depends on it.
type material = [880]byte

// available lists the implementations this processor has instructions for and
// the operating system keeps the registers of, best first.
func available() (list []implementation) {
	// cpuid reports AVX and AVX-512 only if the operating system saves their
	// registers.
	if !cpuid.CPU.Supports(cpuid.CMOV, cpuid.AESNI, cpuid.CLMUL, cpuid.AVX, cpuid.AVX2, cpuid.VAES, cpuid.VPCLMULQDQ) {
		return nil
	}
	// Not on macOS, some versions of which lose mask registers.
	if runtime.GOOS != "darwin" &&
		cpuid.CPU.Supports(cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512VL, cpuid.BMI2) {
		list = append(list, avx512)
	}
	return append(list, avx2)
}

// expand takes a key of 16 or 32 octets.
func (k *Key) expand(i implementation, key []byte) {
	raw := unsafe.SliceData(key)
	if len(key) == 32 {
		k.kernel = avx512Rounds14
		if i == avx2 {
			k.kernel = avx2Rounds14
		}
		expandRounds14(&k.material, raw)
	} else {
		k.kernel = avx512Rounds10
		if i == avx2 {
			k.kernel = avx2Rounds10
		}
		expandRounds10(&k.material, raw)
	}
}
