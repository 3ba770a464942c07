// Package defaults fills in what a configuration leaves open.
package defaults

import "time"

// Fill sets *v to def unless it is positive: 0 stands for the default, and for a
// limit a negative value has no meaning.
func Fill[T int | int64 | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}
