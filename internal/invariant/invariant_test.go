package invariant

import "testing"

func TestPoison(t *testing.T) {
	b := []byte{1, 2, 3, 4}
	Poison(b[:3])
	want := [4]byte{1, 2, 3, 4}
	if Enabled {
		want = [4]byte{PoisonByte, PoisonByte, PoisonByte, 4}
	}
	if [4]byte(b) != want {
		t.Errorf("%x, want %x", b, want)
	}
}

func TestCheck(t *testing.T) {
	Check(true, "holds")
	defer func() {
		if got := recover(); (got != nil) != Enabled {
			t.Errorf("recovered %v", got)
		}
	}()
	Check(false, "broken")
}
