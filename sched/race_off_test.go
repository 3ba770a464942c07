//go:build !race

package sched

const poolsLose = false
