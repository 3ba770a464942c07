package defaults

import "testing"

func TestOnlyPositiveValuesStand(t *testing.T) {
	for given, want := range map[int]int{-1: 7, 0: 7, 1: 1, 8: 8} {
		if Fill(&given, 7); given != want {
			t.Errorf("%d, want %d", given, want)
		}
	}
}
