package relay

import (
	"math/rand/v2"
	"time"
)

// backoff gives the waits between attempts: each is twice the one before, from
// min to max, less up to half of it at random, so that those who lost one relay
// together don't come back together.
type backoff struct {
	min, max time.Duration
	next     time.Duration
}

func (b *backoff) wait() time.Duration {
	b.next = min(max(b.next, b.min), b.max)
	d := b.next
	b.next = min(2*d, b.max)
	return d - rand.N(d/2+1)
}

func (b *backoff) reset() { b.next = 0 }
