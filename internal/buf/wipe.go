package buf

import "runtime"

// Wipe overwrites a secret with zeros, up to the length of b.
//
//go:noinline
func Wipe(b []byte) {
	clear(b)
	// The stores must happen although nobody reads them.
	runtime.KeepAlive(b)
}
