package nptest

import (
	"testing"
	"time"
)

// Eventually waits until cond holds, for tests over real sockets, where nothing
// else can be waited on. It fails the test after a minute and then prints what state
// gives.
func Eventually(t testing.TB, cond func() bool, state func() any) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("condition never held: %+v", state())
		}
	}
}
