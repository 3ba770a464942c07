package cbor

import "math"

// values reads a run of items one after the other. Its first error stays: every
// later read gives a zero value and changes nothing.
type values struct {
	b       []byte
	off     int
	left    int  // entries that Next has not reached
	pending bool // Next reached an item that nothing has taken
	depth   int  // levels that an item may still open
	err     error
}

// Err returns the first error met, nil while all is well.
func (v *values) Err() error { return v.err }

// Rest returns what follows the container, once Next has returned false without
// an error.
func (v *values) Rest() []byte { return v.b[v.off:] }

// settle skips an item that nobody took and reports whether reading goes on.
func (v *values) settle() bool {
	if v.pending {
		v.Raw()
	}
	return v.err == nil
}

// take ends the read of a pending item; an item can be taken once.
func (v *values) take(n int, err error) bool {
	if err != nil {
		v.err = err
	}
	if v.err != nil {
		return false
	}
	v.off += n
	v.pending = false
	return true
}

// ready reports whether there is an item to take. To take one twice, or without
// Next, is a mistake of the calling code and reads as a truncated item.
func (v *values) ready() bool {
	if v.err == nil && !v.pending {
		v.err = ErrTruncated
	}
	return v.err == nil
}

// Uint takes the item as an unsigned integer.
func (v *values) Uint() uint64 {
	if !v.ready() {
		return 0
	}
	x, n, err := ConsumeUint(v.b[v.off:])
	v.take(n, err)
	return x
}

// Int takes the item as an integer of either sign.
func (v *values) Int() int64 {
	if !v.ready() {
		return 0
	}
	x, n, err := ConsumeInt(v.b[v.off:])
	v.take(n, err)
	return x
}

// Bool takes the item as a boolean.
func (v *values) Bool() bool {
	if !v.ready() {
		return false
	}
	x, n, err := ConsumeBool(v.b[v.off:])
	v.take(n, err)
	return x
}

// Bytes takes the item as a byte string, a view of the input; nil after an
// error only.
func (v *values) Bytes() []byte {
	if !v.ready() {
		return nil
	}
	x, n, err := ConsumeBytes(v.b[v.off:])
	v.take(n, err)
	return x
}

// Text takes the item as a text string, a view of the input; nil after an error
// only.
func (v *values) Text() []byte {
	if !v.ready() {
		return nil
	}
	x, n, err := ConsumeText(v.b[v.off:])
	v.take(n, err)
	return x
}

// Raw takes the item as it is encoded, whole and checked, a view of the input.
func (v *values) Raw() []byte {
	if !v.ready() {
		return nil
	}
	n, err := skip(v.b[v.off:], v.depth)
	if !v.take(n, err) {
		return nil
	}
	return v.b[v.off-n : v.off : v.off]
}

// open takes the item as a container of the wanted type.
func (v *values) open(want Major) values {
	if !v.ready() {
		return values{err: v.err}
	}
	// The type is looked at first, so that a wrong one is reported as that.
	if m, err := Peek(v.b[v.off:]); err != nil {
		v.err = err
	} else if m != want {
		v.err = ErrType
	}
	raw := v.Raw()
	if v.err != nil {
		return values{err: v.err}
	}
	return newValues(raw, want, v.depth)
}

func newValues(b []byte, want Major, depth int) values {
	per := uint64(1)
	if want == Map {
		per = 2
	}
	count, n, err := consumeCount(b, want, per)
	if err != nil {
		return values{err: err}
	}
	if depth == 0 {
		return values{err: ErrDepth}
	}
	return values{b: b, off: n, left: count, depth: depth - 1}
}

// Map takes the item as a map with integer keys. The whole item is checked
// first; the reader's own Err can then only tell of its keys or of a value that
// is not what its caller asks for.
func (v *values) Map() MapReader { return MapReader{values: v.open(Map)} }

// Array takes the item as an array, checked as [MapReader.Map] does.
func (v *values) Array() ArrayReader { return ArrayReader{values: v.open(Array)} }

// MapReader reads a map whose keys are integers, pair by pair:
//
//	m := cbor.OpenMap(b)
//	for m.Next() {
//		switch m.Key() {
//		case 0:
//			version = m.Uint()
//		}
//	}
//	err := m.Err()
//
// Keys must ascend as the deterministic encoding orders them: 0, 1, ..., then
// -1, -2, .... A value that nobody takes is checked and passed over. The zero
// value is an empty map. One goroutine uses a reader at a time.
type MapReader struct {
	values
	key      int64
	started  bool
	negative bool
	arg      uint64
}

// OpenMap starts to read the map that b begins with. If there is none, Err
// says why and Next returns false.
func OpenMap(b []byte) MapReader { return MapReader{values: newValues(b, Map, MaxDepth)} }

// Len returns the pairs that Next has yet to reach.
func (m *MapReader) Len() int { return m.left }

// Next moves to the next pair. It returns false at the end of the map and after
// an error.
func (m *MapReader) Next() bool {
	if !m.settle() || m.left == 0 {
		return false
	}
	major, arg, n, err := consumeHead(m.b[m.off:])
	switch {
	case err != nil:
		m.err = err
		return false
	case major > NegInt:
		m.err = ErrKey
		return false
	}
	// Shortest heads make the bytewise order the order of (type, argument).
	negative := major == NegInt
	if m.started {
		switch {
		case negative == m.negative && arg == m.arg:
			m.err = ErrDuplicate
			return false
		case m.negative && !negative, m.negative == negative && arg < m.arg:
			m.err = ErrOrder
			return false
		}
	}
	m.started, m.negative, m.arg = true, negative, arg
	m.key = int64(min(arg, math.MaxInt64))
	if negative {
		m.key = ^m.key
	}
	m.off += n
	m.left--
	m.pending = true
	return true
}

// Key returns the key of the pair that Next moved to. One outside int64 reads
// as the nearest int64: no field has such a key, and its sign is kept.
func (m *MapReader) Key() int64 { return m.key }

// ArrayReader reads an array item by item, as [MapReader] reads a map. An item
// that nobody takes is checked and passed over. The zero value is an empty
// array. One goroutine uses a reader at a time.
type ArrayReader struct{ values }

// OpenArray starts to read the array that b begins with. If there is none, Err
// says why and Next returns false.
func OpenArray(b []byte) ArrayReader { return ArrayReader{values: newValues(b, Array, MaxDepth)} }

// Len returns the items that Next has yet to reach, never more than the octets
// of the input.
func (a *ArrayReader) Len() int { return a.left }

// Next moves to the next item. It returns false at the end of the array and
// after an error.
func (a *ArrayReader) Next() bool {
	if !a.settle() || a.left == 0 {
		return false
	}
	a.left--
	a.pending = true
	return true
}
