package sched

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script runs a random script once for each of some seeds; a failure names the
// seed that shows it again.
func script(t *testing.T, seeds int, run func(t *testing.T, r *rand.Rand)) {
	t.Helper()
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprintf("seed%d", seed), func(t *testing.T) {
			run(t, rand.New(rand.NewPCG(seed, 0x7265_7374_6c65)))
		})
	}
}

// noAllocs asserts that f allocates nothing once it has run a few times.
func noAllocs(t *testing.T, f func()) {
	t.Helper()
	for range 100 {
		f()
	}
	if n := testing.AllocsPerRun(1000, f); n != 0 {
		t.Errorf("%v allocations in each run, want 0", n)
	}
}
