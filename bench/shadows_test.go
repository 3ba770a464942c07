//go:build race

package bench

// The race detector keeps several octets for each that was ever used.
const buildShadows = true
