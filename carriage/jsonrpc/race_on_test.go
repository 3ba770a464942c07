//go:build race

package jsonrpc

// Under the race detector pools drop what they are given at random, so not
// everything can be said about allocations.
const raceEnabled = true
