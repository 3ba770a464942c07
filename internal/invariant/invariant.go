// Package invariant holds checks that only test builds pay for. They are
// compiled in by the build tag "invariants" and are constant-folded away
// without it.
package invariant

// PoisonByte is what Poison writes. It is neither zero (which hides a use after
// release) nor a plausible start of a frame, a TLV or a JSON text.
const PoisonByte = 0xDB

// Poison overwrites b, up to its length, so that whoever still reads it after
// giving it back sees rubbish at once. Without the build tag it does nothing.
func Poison(b []byte) {
	if !Enabled {
		return
	}
	for i := range b {
		b[i] = PoisonByte
	}
}

// Check panics with msg if cond is false. Without the build tag it does
// nothing. It is for mistakes of this program only: a peer's octets must never
// decide cond.
func Check(cond bool, msg string) {
	if Enabled && !cond {
		panic("invariant: " + msg)
	}
}
