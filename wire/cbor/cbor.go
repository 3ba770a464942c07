// Package cbor reads and writes the one form of CBOR that N-PAMP's control
// plane speaks: the deterministic encoding of RFC 8949 section 4.2.1.
//
// Four small maps (HELLO and its parameters, a Discovery message, a record)
// need it, and each must refuse what is not deterministic. So the reader here
// is strict and nothing else: a head that is longer than it needs to be, an
// indefinite length, a map whose keys are unsorted or repeated, text that is
// not UTF-8, a float that fits a shorter form, and nesting deeper than
// [MaxDepth] are each refused with an error of their own. Nothing allocates;
// what is read is a view of the input with its capacity clipped.
//
// Values are written by Append functions, read by Consume functions, which
// return the octets they took, or field by field with [MapReader] and
// [ArrayReader].
package cbor

// MaxDepth is how many arrays, maps and tags may enclose one another.
const MaxDepth = 16

// Major is the type of a data item, the upper three bits of its first octet
// (RFC 8949 section 3.1).
type Major uint8

// The eight major types.
const (
	Uint   Major = 0 // unsigned integer
	NegInt Major = 1 // negative integer, -1-argument
	Bytes  Major = 2 // byte string
	Text   Major = 3 // UTF-8 text string
	Array  Major = 4 // array of items
	Map    Major = 5 // map of pairs
	Tag    Major = 6 // tag in front of one item
	Simple Major = 7 // simple value or float
)

var majorNames = [...]string{"uint", "negative int", "bytes", "text", "array", "map", "tag", "simple"}

// String returns the type's name.
func (m Major) String() string {
	if int(m) < len(majorNames) {
		return majorNames[m]
	}
	return "unknown"
}

// Error says why octets are not one deterministic item of the wanted type. Its
// values are static: returning one allocates nothing, and two are equal when
// they name one reason.
type Error uint8

// The reasons for which input is refused.
const (
	_              Error = iota
	ErrTruncated         // the item goes on beyond the input
	ErrTrailing          // octets follow the item where none may
	ErrNotShortest       // a head, or a float, has a shorter form
	ErrIndefinite        // an indefinite length or a stray break
	ErrReserved          // additional information 28 to 30
	ErrSimple            // a simple value below 32 in two octets
	ErrType              // the item has another type than the one wanted
	ErrRange             // the integer does not fit the type wanted
	ErrKey               // a map key is not an integer where it must be
	ErrOrder             // a map key sorts before the one in front of it
	ErrDuplicate         // a map key repeats the one in front of it
	ErrUTF8              // a text string is not UTF-8
	ErrDepth             // more than MaxDepth levels of nesting
	errorCount
)

var errorTexts = [errorCount]string{
	0:              "cbor: no error",
	ErrTruncated:   "cbor: truncated item",
	ErrTrailing:    "cbor: octets after the item",
	ErrNotShortest: "cbor: not the shortest form",
	ErrIndefinite:  "cbor: indefinite length",
	ErrReserved:    "cbor: reserved additional information",
	ErrSimple:      "cbor: malformed simple value",
	ErrType:        "cbor: wrong type",
	ErrRange:       "cbor: integer out of range",
	ErrKey:         "cbor: map key is not an integer",
	ErrOrder:       "cbor: map keys out of order",
	ErrDuplicate:   "cbor: duplicate map key",
	ErrUTF8:        "cbor: text is not UTF-8",
	ErrDepth:       "cbor: nested too deeply",
}

// Error returns the reason in words.
func (e Error) Error() string {
	if e < errorCount {
		return errorTexts[e]
	}
	return "cbor: unknown error"
}
