package buf

import (
	"math"
	"sync/atomic"

	"github.com/trestle-npamp/trestle/internal/invariant"
)

// Budget is a number of octets that many owners share. A nil *Budget is
// unlimited and counts nothing. All methods may be called from any goroutine.
type Budget struct {
	limit int64
	used  atomic.Int64
}

// NewBudget returns a budget of limit octets.
func NewBudget(limit int64) *Budget {
	return &Budget{limit: limit}
}

// Take reserves n octets and reports whether there was room. It never
// overshoots, not even for a moment: one owner's refused request cannot make
// another's fail that would have fitted.
func (b *Budget) Take(n int) bool {
	if b == nil {
		return true
	}
	invariant.Check(n >= 0, "buf: took a negative number of octets")
	for {
		used := b.used.Load()
		if int64(n) > b.limit-used {
			return false
		}
		if b.used.CompareAndSwap(used, used+int64(n)) {
			return true
		}
	}
}

// Give returns n octets that Take reserved.
func (b *Budget) Give(n int) {
	if b == nil {
		return
	}
	left := b.used.Add(-int64(n))
	invariant.Check(n >= 0 && left >= 0, "buf: gave back more than was taken")
}

// Used returns the octets reserved now; 0 for a nil budget.
func (b *Budget) Used() int64 {
	if b == nil {
		return 0
	}
	return b.used.Load()
}

// Limit returns the octets that can be reserved at once; math.MaxInt64 for a
// nil budget.
func (b *Budget) Limit() int64 {
	if b == nil {
		return math.MaxInt64
	}
	return b.limit
}
