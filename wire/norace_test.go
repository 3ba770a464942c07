//go:build !race

package wire

// raceEnabled says that sync.Pool drops objects at random.
const raceEnabled = false
