package wipe

import "testing"

type leaf struct {
	secret [16]byte
	more   []byte
}

type tree struct {
	a     [8]byte
	left  *leaf
	right *leaf // stays nil
	name  string
	any   any
}

func TestObjectReachesWhatItPointsAt(t *testing.T) {
	l := &leaf{secret: [16]byte{1, 2, 3}, more: []byte{4}}
	v := &tree{a: [8]byte{9}, left: l, name: "x", any: 7}
	Object(v)
	if *v != (tree{}) || v.right != nil {
		t.Errorf("the struct itself is not zero: %v", v)
	}
	if l.secret != [16]byte{} || l.more != nil {
		t.Errorf("a struct behind a pointer is not zero: %v", l)
	}
}

func TestObjectLeavesOtherKindsAlone(t *testing.T) {
	n := 7
	Object(nil)
	Object(n)
	Object(&n)
	Object((*leaf)(nil))
	Object(leaf{})
	if n != 7 {
		t.Fatalf("n = %d", n)
	}
}
