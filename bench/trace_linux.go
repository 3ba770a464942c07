package bench

import "golang.org/x/sys/unix"

// allowTracing lets any process of the same user trace this one, where the kernel
// otherwise allows that to its ancestors alone.
func allowTracing() { _ = unix.Prctl(unix.PR_SET_PTRACER, ^uintptr(0), 0, 0, 0) }
