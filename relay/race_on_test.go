//go:build race

package relay

// Under the race detector pools drop what they are given at random, so nothing
// can be said about allocations.
const raceEnabled = true
