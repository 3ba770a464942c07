//go:build amd64 && !purego

package tlsrecord

// chachaAllocates: x/crypto has ChaCha20-Poly1305 in assembly here.
const chachaAllocates = false
