package ratio

import (
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
)

// One way does ten times what the other does and allocates: both show.
func TestWaysAreToldApart(t *testing.T) {
	var order []string
	var kept []byte
	work := func(rounds int) {
		for range rounds {
			x := 0
			for i := range 200 {
				x += i ^ x
			}
			sink.Add(int64(x))
		}
	}
	r := testing.Benchmark(func(b *testing.B) {
		order = nil
		Run(b, 500,
			Way{Name: "lean", Do: func(n int) { order = append(order, "lean"); work(n) }},
			Way{Name: "fat", Do: func(n int) {
				order = append(order, "fat")
				work(10 * n)
				for range n {
					kept = make([]byte, 1000)
				}
			}})
	})
	_ = kept
	if len(order) < 4 || len(order)%2 != 0 {
		t.Fatal(order)
	}
	for i, name := range order {
		if want := []string{"lean", "fat"}[i%2]; name != want {
			t.Fatalf("turn %d was %s, want %s", i, name, want)
		}
	}
	if got := r.Extra["fat-B"]; got < 1000 || got > 1100 {
		t.Errorf("fat allocates %v octets an operation, want 1000 rounded up to a size class", got)
	}
	if got := r.Extra["lean-B"]; got > 10 {
		t.Errorf("lean allocates %v octets an operation", got)
	}
	if got := r.Extra["fat-ratio"]; got < 2 {
		t.Errorf("ten times the work takes %v times as long", got)
	}
	if r.Extra["lean-ns"] <= 0 || r.Extra["fat-ns"] <= r.Extra["lean-ns"] {
		t.Error(r.Extra)
	}
	if _, ok := r.Extra["lean-ratio"]; ok {
		t.Error("the first way has a ratio to itself")
	}
}

func TestEachPartIsDoneOnce(t *testing.T) {
	var parts [8]atomic.Int64
	w := Way{Goroutines: 8, Each: func(g, n int) { parts[g].Add(int64(n)) }}
	if took, ran := w.together(800); took <= 0 || ran <= 0 {
		t.Error(took, ran)
	}
	for g := range parts {
		if got := parts[g].Load(); got != 100 {
			t.Errorf("goroutine %d did %d operations, want 100", g, got)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a remainder was dropped")
		}
	}()
	w.together(801)
}

// As many goroutines as processors are at work at the same time: each waits for the other
// within its part.
func TestGoroutinesRunTogether(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	var here atomic.Int32
	w := Way{Goroutines: 2, Each: func(g, n int) {
		here.Add(1)
		for here.Load() < 2 {
			runtime.Gosched()
		}
	}}
	w.together(2)
	if got := here.Load(); got != 2 {
		t.Error(got)
	}
}

func TestQuantile(t *testing.T) {
	v := []float64{9, 1, 5, 7, 3}
	for part, want := range map[float64]float64{0: 1, 0.2: 3, 0.5: 5, 0.9: 9} {
		if got := quantile(slices.Clone(v), part); got != want {
			t.Errorf("%v of them stay below %v, want %v", part, got, want)
		}
	}
}

var sink atomic.Int64
