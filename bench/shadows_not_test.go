//go:build !race

package bench

const buildShadows = false
