// Package body reads HTTP bodies into memory that has three bounds: a body's own
// size, what has arrived of it, and a budget that all bodies share.
package body

import (
	"errors"
	"io"

	"github.com/trestle-npamp/trestle/internal/buf"
)

// Errors of Read besides those of the reader.
var (
	// ErrTooLarge says that the body is longer than its limit.
	ErrTooLarge = errors.New("body: over the size limit")
	// ErrBudget says that all bodies together would need more than the budget.
	ErrBudget = errors.New("body: over the memory budget")
)

// Body is a body that was read, in a pooled buffer with one owner. The zero value
// and nil are empty bodies.
type Body struct {
	buf    *buf.Buf
	budget *buf.Budget
}

// New returns an empty body, to be appended to.
func New(budget *buf.Budget) *Body { return &Body{budget: budget} }

// Append adds octets at the end, up to limit octets in all. The room grows by steps
// of four times what has come, as in Read. The errors are ErrTooLarge and ErrBudget;
// after them the body is as before.
func (b *Body) Append(octets []byte, limit int) error {
	have := len(b.Bytes())
	need := have + len(octets)
	if need > limit {
		return ErrTooLarge
	}
	if b.buf == nil || need > cap(b.buf.B) {
		if err := b.grow(max(need, min(4*have, limit))); err != nil {
			return err
		}
	}
	b.buf.B = append(b.buf.B, octets...)
	return nil
}

// Copy returns a body that holds a copy of octets. The error is ErrBudget.
func Copy(octets []byte, budget *buf.Budget) (*Body, error) {
	b := &Body{budget: budget}
	if err := b.grow(len(octets)); err != nil {
		return nil, err
	}
	b.buf.B = append(b.buf.B, octets...)
	return b, nil
}

// Bytes returns the octets, which live until Release.
func (b *Body) Bytes() []byte {
	if b == nil || b.buf == nil {
		return nil
	}
	return b.buf.B
}

// Release gives the memory back. It does nothing the second time.
func (b *Body) Release() {
	if b == nil || b.buf == nil {
		return
	}
	size := b.buf.Cap()
	b.buf.Release()
	b.buf = nil
	b.budget.Give(size)
}

// firstRoom is the room made before anything has arrived, in octets.
const firstRoom = buf.MinClass << 4

// Read reads r to its end, at most limit octets. announced is the length the
// sender told, below 0 for none; it can make the first buffers smaller, but the
// room never grows to more than four times what has arrived.
func Read(r io.Reader, announced int64, limit int, budget *buf.Budget) (*Body, error) {
	if announced > int64(limit) {
		return nil, ErrTooLarge
	}
	size := firstRoom
	if announced >= 0 && announced < firstRoom {
		size = int(announced) + 1 // one more, to see the end without growing
	}
	b := &Body{budget: budget}
	if err := b.grow(size); err != nil {
		return nil, err
	}
	for {
		octets := b.buf.B
		if len(octets) == cap(octets) {
			size := 4 * len(octets)
			if announced >= int64(len(octets)) {
				size = min(size, int(announced)+1)
			}
			if err := b.grow(min(size, limit+1)); err != nil {
				b.Release()
				return nil, err
			}
			octets = b.buf.B
		}
		n, err := r.Read(octets[len(octets):cap(octets)])
		b.buf.B = octets[:len(octets)+n]
		switch {
		case len(b.buf.B) > limit:
			b.Release()
			return nil, ErrTooLarge
		case err == io.EOF:
			return b, nil
		case err != nil:
			b.Release()
			return nil, err
		}
	}
}

// grow moves the body to a buffer that holds size octets.
func (b *Body) grow(size int) error {
	next := buf.Get(size)
	if !b.budget.Take(next.Cap()) {
		next.Release()
		return ErrBudget
	}
	if old := b.buf; old != nil {
		next.B = append(next.B, old.B...)
		size := old.Cap()
		old.Release()
		b.budget.Give(size)
	}
	b.buf = next
	return nil
}
