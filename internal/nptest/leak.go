package nptest

import (
	"testing"

	"go.uber.org/goleak"
)

// VerifyNoLeaks runs the tests of a package and fails if goroutines are left.
// gnet keeps a process-wide worker pool whose two housekeepers never end; they
// are not ours to stop.
func VerifyNoLeaks(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
		goleak.IgnoreTopFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"),
	)
}
