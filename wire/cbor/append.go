package cbor

import "encoding/binary"

// SizeUint returns the octets that [AppendUint] adds for v, and so the size of
// the head of a string of v octets, an array of v items or a map of v pairs:
// 1, 2, 3, 5 or 9.
func SizeUint(v uint64) int {
	switch {
	case v < 24:
		return 1
	case v <= 0xff:
		return 2
	case v <= 0xffff:
		return 3
	case v <= 0xffff_ffff:
		return 5
	}
	return 9
}

// SizeString returns the octets that [AppendBytes] or [AppendText] adds for n
// octets of content, head included.
func SizeString(n int) int { return SizeUint(uint64(n)) + n }

func appendHead(dst []byte, m Major, arg uint64) []byte {
	top := byte(m) << 5
	switch {
	case arg < 24:
		return append(dst, top|byte(arg))
	case arg <= 0xff:
		return append(dst, top|24, byte(arg))
	case arg <= 0xffff:
		return append(dst, top|25, byte(arg>>8), byte(arg))
	case arg <= 0xffff_ffff:
		return binary.BigEndian.AppendUint32(append(dst, top|26), uint32(arg))
	}
	return binary.BigEndian.AppendUint64(append(dst, top|27), arg)
}

// AppendUint appends the unsigned integer v.
func AppendUint(dst []byte, v uint64) []byte { return appendHead(dst, Uint, v) }

// AppendInt appends the integer v.
func AppendInt(dst []byte, v int64) []byte {
	if v < 0 {
		return appendHead(dst, NegInt, uint64(^v))
	}
	return appendHead(dst, Uint, uint64(v))
}

// AppendBytes appends the byte string v.
func AppendBytes(dst, v []byte) []byte {
	return append(appendHead(dst, Bytes, uint64(len(v))), v...)
}

// AppendText appends the text string v. The caller sees to it that v is UTF-8;
// readers refuse it otherwise.
func AppendText[T ~string | ~[]byte](dst []byte, v T) []byte {
	return append(appendHead(dst, Text, uint64(len(v))), v...)
}

// AppendArray appends the head of an array; the caller appends its n items.
func AppendArray(dst []byte, n int) []byte { return appendHead(dst, Array, uint64(n)) }

// AppendMap appends the head of a map; the caller appends its n pairs, keys in
// the bytewise order of their encodings (for integers: 0, 1, 2, ... and then
// -1, -2, ...).
func AppendMap(dst []byte, n int) []byte { return appendHead(dst, Map, uint64(n)) }

// AppendBool appends v.
func AppendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, simpleTrue)
	}
	return append(dst, simpleFalse)
}

// AppendNull appends null.
func AppendNull(dst []byte) []byte { return append(dst, simpleNull) }
