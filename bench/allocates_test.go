//go:build race || purego

package bench

// Pools drop at random under the race detector, and the standard library's
// ciphers allocate in pure Go.
const buildAllocates = true
