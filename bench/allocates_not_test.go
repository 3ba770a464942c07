//go:build !race && !purego

package bench

const buildAllocates = false
