package bench

import (
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// preciseSleep keeps the goroutine on a thread of its own, on which sleep takes
// little longer than it is told: the runtime's timers are off by up to a
// millisecond when the machine is idle, which is what an open loop would then
// measure. end lets the thread go.
func preciseSleep() (sleep func(time.Duration), end func()) {
	runtime.LockOSThread()
	// The kernel otherwise takes 50 us more, to wake for several timers at once. It
	// is not told what the slack was before: the thread ends with the goroutine.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	return func(d time.Duration) {
		t := syscall.NsecToTimespec(int64(d))
		_ = syscall.Nanosleep(&t, nil) // a signal only makes it shorter
	}, func() {}
}
