package loop

import "testing"

// A machine with more processors than gnet makes loops has a group all the same.
func TestNewGroup_MoreLoopsThanThereCanBe(t *testing.T) {
	g, err := NewGroup(GroupConfig{Loops: maxLoops + 1, ReadBuffer: 1 << 10})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(g.loops); n != maxLoops {
		t.Errorf("%d loops", n)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}
