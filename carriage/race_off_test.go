//go:build !race

package carriage_test

const raceEnabled = false
