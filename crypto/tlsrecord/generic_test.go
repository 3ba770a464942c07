//go:build !amd64 || purego

package tlsrecord

// chachaAllocates: x/crypto's portable ChaCha20-Poly1305 puts one small object
// on the heap for each call.
const chachaAllocates = true
