//go:build invariants

package buf

import (
	"testing"

	"github.com/trestle-npamp/trestle/internal/invariant"
)

func TestReleasePoisons(t *testing.T) {
	b := Get(100)
	b.B = append(b.B, "secret"...)
	stale := b.B
	b.Release()
	for _, c := range stale {
		if c != invariant.PoisonByte {
			t.Fatalf("%q is still readable", stale)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("second Release went unnoticed")
		}
	}()
	b.Release()
}
