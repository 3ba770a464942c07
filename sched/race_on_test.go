//go:build race

package sched

// The race detector makes sync.Pool lose a part of what it is given.
const poolsLose = true
