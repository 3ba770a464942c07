// Package wipe overwrites the secrets inside key objects of other packages that
// offer no erasure of their own. For octets there is buf.Wipe.
//
// Erasure is best effort: the garbage collector does not move heap objects, so
// what is wiped in place is gone, but the compiler may have left copies in
// registers and on stacks, and the operating system may have paged memory out.
package wipe

import "reflect"

// maxDepth bounds how far Object follows pointers.
const maxDepth = 3

// Object overwrites the struct that p points at, and the structs that its
// fields point at, with zeroes. It is for key objects of other packages which
// offer no erasure of their own (an expanded AES key, an unpacked ML-KEM key);
// the caller must be the only holder of everything that hangs off p, for after
// Object it is all zero.
//
// Slices, maps, interfaces and channels inside are dropped, their contents are
// not overwritten. A nil p, and a p that is not a pointer to a struct, is left
// alone.
func Object(p any) {
	object(reflect.ValueOf(p), maxDepth)
}

func object(v reflect.Value, depth int) {
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Type().Elem().Kind() != reflect.Struct {
		return
	}
	s := v.Elem()
	if depth > 1 {
		for i := range s.NumField() {
			f := s.Field(i)
			if f.Kind() != reflect.Pointer || f.IsNil() || f.Type().Elem().Kind() != reflect.Struct {
				continue
			}
			// A value read from an unexported field is read-only to reflect; a
			// new value of the same type at the same address is not.
			object(reflect.NewAt(f.Type().Elem(), f.UnsafePointer()), depth-1)
		}
	}
	s.SetZero()
}
