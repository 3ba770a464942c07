package disco

import (
	"bytes"
	"iter"
	"unicode/utf8"

	"github.com/trestle-npamp/trestle/wire/cbor"
)

// List is an array of unsigned integers in its encoded form. The zero value is
// an absent array, which is not the same as an empty one: an absent filter lets
// everything through, an empty one nothing.
type List struct{ raw []byte }

// ListOf encodes the values.
func ListOf[T ~uint8 | ~uint16 | ~uint32 | ~uint64](values ...T) List {
	raw := cbor.AppendArray(nil, len(values))
	for _, v := range values {
		raw = cbor.AppendUint(raw, uint64(v))
	}
	return List{raw}
}

// Present reports whether there is an array at all.
func (l List) Present() bool { return l.raw != nil }

// Len returns the number of values.
func (l List) Len() int { return arrayLen(l.raw) }

// All yields the values in order.
func (l List) All() iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		a := cbor.OpenArray(l.raw)
		for a.Next() {
			if v := a.Uint(); a.Err() != nil || !yield(v) {
				return
			}
		}
	}
}

// Contains reports whether v is one of the values.
func (l List) Contains(v uint64) bool {
	a := cbor.OpenArray(l.raw)
	for a.Next() {
		if a.Uint() == v && a.Err() == nil {
			return true
		}
	}
	return false
}

// IDs is an array of record ids in its encoded form. The zero value is an
// absent array.
type IDs struct{ raw []byte }

// IDsOf encodes record ids. The error is FaultRecordIDLen or FaultTooMany.
func IDsOf(ids ...[]byte) (IDs, error) {
	if len(ids) > MaxRecords {
		return IDs{}, FaultTooMany
	}
	raw := cbor.AppendArray(nil, len(ids))
	for _, id := range ids {
		if !validLen(id, MaxRecordIDLen) {
			return IDs{}, FaultRecordIDLen
		}
		raw = cbor.AppendBytes(raw, id)
	}
	return IDs{raw}, nil
}

// Present reports whether there is an array at all.
func (l IDs) Present() bool { return l.raw != nil }

// Len returns the number of ids.
func (l IDs) Len() int { return arrayLen(l.raw) }

// All yields the ids in order, as views.
func (l IDs) All() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		a := cbor.OpenArray(l.raw)
		for a.Next() {
			if v := a.Bytes(); a.Err() != nil || !yield(v) {
				return
			}
		}
	}
}

// Contains reports whether id is one of the ids.
func (l IDs) Contains(id []byte) bool {
	a := cbor.OpenArray(l.raw)
	for a.Next() {
		if bytes.Equal(a.Bytes(), id) && a.Err() == nil {
			return true
		}
	}
	return false
}

// Texts is an array of text strings in its encoded form. The zero value is an
// absent array.
type Texts struct{ raw []byte }

// TextsOf encodes text strings. The error is FaultNotUTF8.
func TextsOf(texts ...string) (Texts, error) {
	raw := cbor.AppendArray(nil, len(texts))
	for _, s := range texts {
		if !utf8.ValidString(s) {
			return Texts{}, FaultNotUTF8
		}
		raw = cbor.AppendText(raw, s)
	}
	return Texts{raw}, nil
}

// Present reports whether there is an array at all.
func (l Texts) Present() bool { return l.raw != nil }

// Len returns the number of texts.
func (l Texts) Len() int { return arrayLen(l.raw) }

// All yields the texts in order, as views.
func (l Texts) All() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		a := cbor.OpenArray(l.raw)
		for a.Next() {
			if v := a.Text(); a.Err() != nil || !yield(v) {
				return
			}
		}
	}
}

func arrayLen(raw []byte) int {
	a := cbor.OpenArray(raw)
	return a.Len()
}

func validLen(b []byte, most int) bool { return len(b) > 0 && len(b) <= most }
