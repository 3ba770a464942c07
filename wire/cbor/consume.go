package cbor

import (
	"bytes"
	"encoding/binary"
	"math"
	"unicode/utf8"
)

// Whole items of one octet.
const (
	simpleFalse = 0xf4
	simpleTrue  = 0xf5
	simpleNull  = 0xf6
)

// consumeHead reads the head of the item that b starts with: its type, its
// argument and the octets that the head takes. For a float the argument is its
// bits, for a simple value its number. Strings and arrays are not yet known to
// be there.
func consumeHead(b []byte) (m Major, arg uint64, n int, err error) {
	if len(b) == 0 {
		return 0, 0, 0, ErrTruncated
	}
	m = Major(b[0] >> 5)
	info := b[0] & 0x1f
	switch {
	case info < 24:
		return m, uint64(info), 1, nil
	case info == 31:
		return 0, 0, 0, ErrIndefinite
	case info > 27:
		return 0, 0, 0, ErrReserved
	}
	n = 1 + 1<<(info-24)
	if len(b) < n {
		return 0, 0, 0, ErrTruncated
	}
	switch info {
	case 24:
		arg = uint64(b[1])
	case 25:
		arg = uint64(binary.BigEndian.Uint16(b[1:]))
	case 26:
		arg = uint64(binary.BigEndian.Uint32(b[1:]))
	case 27:
		arg = binary.BigEndian.Uint64(b[1:])
	}
	if m == Simple {
		return m, arg, n, checkSimple(info, arg)
	}
	if SizeUint(arg) != n {
		return 0, 0, 0, ErrNotShortest
	}
	return m, arg, n, nil
}

// checkSimple checks the long forms of major type 7: a simple value in two
// octets must be one that does not fit the first, a float must not fit the
// next shorter float (RFC 8949 sections 3.3 and 4.2.1).
func checkSimple(info byte, arg uint64) error {
	switch info {
	case 24:
		if arg < 32 {
			return ErrSimple
		}
	case 26:
		if singleFitsHalf(uint32(arg)) {
			return ErrNotShortest
		}
	case 27:
		if doubleFitsSingle(arg) {
			return ErrNotShortest
		}
	}
	return nil
}

// doubleFitsSingle reports whether a single holds the double's value; a NaN
// fits when the fraction bits that would be cut off are zero.
func doubleFitsSingle(bits uint64) bool {
	f := math.Float64frombits(bits)
	if f != f {
		return bits&(1<<29-1) == 0
	}
	return float64(float32(f)) == f
}

// singleFitsHalf reports whether a half holds the single's value. A half has
// ten fraction bits, exponents from -14 to 15, and below those multiples of
// two to the -24th.
func singleFitsHalf(bits uint32) bool {
	const fractionCut = 13
	fraction := bits & (1<<23 - 1)
	exponent := int(bits>>23&0xff) - 127
	switch {
	case exponent == 128: // infinity, NaN
		return fraction&(1<<fractionCut-1) == 0
	case exponent > 15:
		return false
	case exponent >= -14:
		return fraction&(1<<fractionCut-1) == 0
	case exponent >= -24:
		cut := fractionCut + (-14 - exponent)
		return (1<<23|fraction)&(1<<cut-1) == 0
	}
	return bits<<1 == 0 // zero; everything else here is too small
}

// consumeTyped reads a head of the wanted type.
func consumeTyped(b []byte, want Major) (arg uint64, n int, err error) {
	m, arg, n, err := consumeHead(b)
	if err != nil {
		return 0, 0, err
	}
	if m != want {
		return 0, 0, ErrType
	}
	return arg, n, nil
}

// consumeString reads a string of the wanted type as a view of b.
func consumeString(b []byte, want Major) ([]byte, int, error) {
	size, n, err := consumeTyped(b, want)
	if err != nil {
		return nil, 0, err
	}
	if size > uint64(len(b)-n) {
		return nil, 0, ErrTruncated
	}
	end := n + int(size)
	return b[n:end:end], end, nil
}

// consumeCount reads the head of an array or a map. Each item takes an octet
// at least, so that a count beyond what is there is refused at once and the
// count always fits an int.
func consumeCount(b []byte, want Major, perEntry uint64) (int, int, error) {
	count, n, err := consumeTyped(b, want)
	if err != nil {
		return 0, 0, err
	}
	if count > uint64(len(b)-n)/perEntry {
		return 0, 0, ErrTruncated
	}
	return int(count), n, nil
}

// Peek returns the type of the item that b starts with, after checking its
// head.
func Peek(b []byte) (Major, error) {
	m, _, _, err := consumeHead(b)
	return m, err
}

// ConsumeUint reads an unsigned integer and returns the octets it took.
func ConsumeUint(b []byte) (v uint64, n int, err error) { return consumeTyped(b, Uint) }

// ConsumeInt reads an integer of either sign and returns the octets it took;
// one outside int64 is ErrRange.
func ConsumeInt(b []byte) (v int64, n int, err error) {
	m, arg, n, err := consumeHead(b)
	switch {
	case err != nil:
		return 0, 0, err
	case m > NegInt:
		return 0, 0, ErrType
	case arg > math.MaxInt64:
		return 0, 0, ErrRange
	case m == NegInt:
		return ^int64(arg), n, nil
	}
	return int64(arg), n, nil
}

// ConsumeBytes reads a byte string, as a view of b, and returns the octets it
// took.
func ConsumeBytes(b []byte) (v []byte, n int, err error) { return consumeString(b, Bytes) }

// ConsumeText reads a text string, as a view of b, and returns the octets it
// took.
func ConsumeText(b []byte) (v []byte, n int, err error) {
	v, n, err = consumeString(b, Text)
	if err == nil && !utf8.Valid(v) {
		return nil, 0, ErrUTF8
	}
	return v, n, err
}

// ConsumeArray reads the head of an array and returns its number of items,
// never more than the octets that follow, and the octets the head took.
func ConsumeArray(b []byte) (count, n int, err error) { return consumeCount(b, Array, 1) }

// ConsumeMap reads the head of a map and returns its number of pairs, never
// more than half the octets that follow, and the octets the head took.
func ConsumeMap(b []byte) (count, n int, err error) { return consumeCount(b, Map, 2) }

// ConsumeBool reads a boolean and returns the octets it took.
func ConsumeBool(b []byte) (v bool, n int, err error) {
	if _, _, _, err := consumeHead(b); err != nil {
		return false, 0, err
	}
	switch b[0] {
	case simpleFalse, simpleTrue:
		return b[0] == simpleTrue, 1, nil
	}
	return false, 0, ErrType
}

// ConsumeNull reads null and returns the octets it took.
func ConsumeNull(b []byte) (n int, err error) {
	if _, _, _, err := consumeHead(b); err != nil {
		return 0, err
	}
	if b[0] != simpleNull {
		return 0, ErrType
	}
	return 1, nil
}

// Skip checks one whole item, with everything inside it, and returns the octets
// it takes.
func Skip(b []byte) (n int, err error) { return skip(b, MaxDepth) }

// Valid checks that b is exactly one item.
func Valid(b []byte) error {
	n, err := Skip(b)
	if err == nil && n != len(b) {
		return ErrTrailing
	}
	return err
}

// skip is Skip with the levels of nesting that are left; the recursion goes no
// deeper than that.
func skip(b []byte, depth int) (int, error) {
	m, arg, n, err := consumeHead(b)
	if err != nil {
		return 0, err
	}
	switch m {
	case Bytes:
		_, n, err = ConsumeBytes(b)
		return n, err
	case Text:
		_, n, err = ConsumeText(b)
		return n, err
	case Array, Map, Tag:
		if depth == 0 {
			return 0, ErrDepth
		}
	default:
		return n, nil
	}
	rest := uint64(len(b) - n)
	switch m {
	case Tag:
		inner, err := skip(b[n:], depth-1)
		return n + inner, err
	case Array:
		if arg > rest {
			return 0, ErrTruncated
		}
		for range arg {
			item, err := skip(b[n:], depth-1)
			if err != nil {
				return 0, err
			}
			n += item
		}
		return n, nil
	}
	if arg > rest/2 {
		return 0, ErrTruncated
	}
	var previous []byte
	for i := range arg {
		size, err := skip(b[n:], depth-1)
		if err != nil {
			return 0, err
		}
		key := b[n : n+size]
		if i > 0 {
			switch c := bytes.Compare(previous, key); {
			case c == 0:
				return 0, ErrDuplicate
			case c > 0:
				return 0, ErrOrder
			}
		}
		previous = key
		n += size
		if size, err = skip(b[n:], depth-1); err != nil {
			return 0, err
		}
		n += size
	}
	return n, nil
}
