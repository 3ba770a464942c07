package buf

import (
	"math"
	"sync"
	"testing"
)

func TestGetHasCapacityOfItsClass(t *testing.T) {
	for _, tt := range []struct{ want, class int }{
		{0, 256},
		{1, 256},
		{256, 256},
		{257, 1 << 10},
		{1 << 10, 1 << 10},
		{1<<10 + 1, 4 << 10},
		{5000, 16 << 10},
		{16<<10 + 1, 64 << 10},
		{100_000, 256 << 10},
		{256<<10 + 1, 1 << 20},
		{1 << 20, 1 << 20},
		{1<<20 + 1, 1<<20 + 1},
		{3 << 20, 3 << 20},
	} {
		b := Get(tt.want)
		if len(b.B) != 0 || cap(b.B) != tt.class || b.Cap() != tt.class || SizeOf(tt.want) != tt.class {
			t.Errorf("Get(%d): length %d, capacity %d, accounted %d, SizeOf %d; want 0 and %d",
				tt.want, len(b.B), cap(b.B), b.Cap(), SizeOf(tt.want), tt.class)
		}
		b.Release()
	}
}

func TestReleaseReturnsTheOriginalMemory(t *testing.T) {
	for range 100 {
		b := Get(256)
		b.B = append(b.B, make([]byte, 10_000)...) // moves it elsewhere
		b.B = b.B[5000:]
		if b.Cap() != 256 {
			t.Fatal("accounted size changed with the slice:", b.Cap())
		}
		b.Release()
		if b = Get(256); cap(b.B) != 256 || len(b.B) != 0 {
			t.Fatal("pool got foreign memory:", cap(b.B))
		}
		b.B = append(b.B, "abc"...)[2:]
		b.Release()
	}
}

func TestZeroBuf(t *testing.T) {
	var none *Buf
	none.Release()
	if none.Cap() != 0 {
		t.Error(none.Cap())
	}
	var zero Buf
	zero.B = append(zero.B, 1, 2, 3)
	zero.Release()
	if zero.Cap() != 0 || zero.B != nil {
		t.Error("a zero Buf kept memory")
	}
}

func TestSteadyTrafficAllocatesNothing(t *testing.T) {
	for _, n := range []int{1, 1000, 60_000} {
		if got := testing.AllocsPerRun(200, func() {
			b := Get(n)
			b.B = append(b.B, 1)
			b.Release()
		}); got != 0 {
			t.Errorf("%d octets: %v allocations", n, got)
		}
	}
}

// A new buffer of the smallest class is one object, however many are out.
func TestSmallBufIsOneObject(t *testing.T) {
	pools[0] = sync.Pool{} // so that all are new
	out := make([]*Buf, 0, 201)
	if got := testing.AllocsPerRun(200, func() { out = append(out, Get(1)) }); got != 1 {
		t.Errorf("%v allocations a buffer", got)
	}
	for i, b := range out {
		b.B = append(b.B, byte(i), byte(i))
	}
	for i, b := range out {
		if b.Cap() != MinClass || b.B[0] != byte(i) || b.B[1] != byte(i) {
			t.Fatalf("buffer %d has %d of %d octets: %v", i, len(b.B), b.Cap(), b.B)
		}
		b.Release()
	}
}

func TestBudget(t *testing.T) {
	b := NewBudget(100)
	if !b.Take(60) || b.Take(41) || !b.Take(40) || b.Take(1) || !b.Take(0) {
		t.Error("not exactly 100 octets could be taken")
	}
	if b.Used() != 100 || b.Limit() != 100 {
		t.Error(b.Used(), b.Limit())
	}
	b.Give(60)
	if b.Used() != 40 || b.Take(61) || !b.Take(60) {
		t.Error("what was given back cannot be taken")
	}
	if NewBudget(0).Take(1) || NewBudget(10).Take(math.MaxInt) {
		t.Error("overshot")
	}
}

func TestNilBudgetIsUnlimited(t *testing.T) {
	var b *Budget
	for range 2 {
		if !b.Take(math.MaxInt) || b.Used() != 0 {
			t.Error("limited")
		}
	}
	if b.Limit() != math.MaxInt64 {
		t.Error(b.Limit())
	}
	b.Give(1)
}

func TestBudgetNeverOvershootsConcurrently(t *testing.T) {
	const limit = 1000
	b := NewBudget(limit)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5000 {
				if b.Take(400) {
					if u := b.Used(); u > limit {
						t.Error("used", u)
					}
					b.Give(400)
				}
			}
		})
	}
	wg.Wait()
	if b.Used() != 0 {
		t.Error(b.Used())
	}
}

func BenchmarkGetRelease(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Get(1024).Release()
	}
}

func BenchmarkBudget(b *testing.B) {
	q := NewBudget(1 << 20)
	for b.Loop() {
		q.Take(1024)
		q.Give(1024)
	}
}

func TestWipe(t *testing.T) {
	b := []byte("secret and more")
	Wipe(b[:6])
	if string(b) != "\x00\x00\x00\x00\x00\x00 and more" {
		t.Errorf("%q", b)
	}
	Wipe(nil)
}
