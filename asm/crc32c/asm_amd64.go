//go:build !purego

package crc32c

import "github.com/klauspost/cpuid/v2"

//go:generate go run -C ../_gen ./crc32c -out ../crc32c/kernels_amd64.s -stubs ../crc32c/kernels_amd64.go -pkg crc32c

// kernel says that sum21 can run here.
var kernel = cpuid.CPU.Supports(cpuid.SSE42)
