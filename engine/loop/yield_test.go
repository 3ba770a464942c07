package loop

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/sched"
)

// answer is a task that tells n goroutines what they wait for.
type answer struct {
	node sched.Node
	l    *eventLoop
	to   []chan struct{}
}

func (a *answer) RunTask() {
	for _, c := range a.to {
		a.l.woke++
		c <- struct{}{}
	}
}

// request is what such a goroutine posts then.
type request struct {
	node   sched.Node
	served atomic.Bool
}

func (r *request) RunTask() { r.served.Store(true) }

// single runs f where goroutines run one at a time, so that it is known which does.
func single(t *testing.T, f func(l *eventLoop)) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	l := &eventLoop{g: &Group{origin: time.Now()}} // no el: to be woken would panic
	l.enter()
	f(l)
}

// round answers n callers and tells whether the first one's next request was served
// before the loop rested. work is what a caller does between the two.
func round(l *eventLoop, n int, work func()) (served bool) {
	a := &answer{l: l}
	a.node.Owner = a
	ended := make(chan *request, n)
	for range n {
		c := make(chan struct{}, 1)
		a.to = append(a.to, c)
		go func() {
			<-c
			work()
			r := new(request)
			r.node.Owner = r
			l.dirty.PushOnce(&r.node)
			ended <- r
		}()
	}
	for range 10 {
		runtime.Gosched() // until all wait
	}
	l.running.Store(true)
	l.looked()
	l.dirty.PushOnce(&a.node)
	l.leave()
	served = len(ended) == n && (<-ended).served.Load()
	for range 10 {
		runtime.Gosched()
	}
	l.enter()
	l.looked()
	l.leave() // what came too late
	return served
}

// The next request of a lone caller comes along before the loop rests.
func TestALoneCallersNextRequestFindsTheLoopAwake(t *testing.T) {
	single(t, func(l *eventLoop) {
		n := 0
		for range 100 {
			l.patient = 0 // a yield may have taken long where others want the processor
			if round(l, 1, func() {}) {
				n++
			}
		}
		if n < 80 {
			t.Errorf("%d of 100 requests were served at once", n)
		}
	})
}

// Where several were answered the loop does not yield: they find each other.
func TestNoYieldToSeveralCallers(t *testing.T) {
	single(t, func(l *eventLoop) {
		for range 20 {
			if round(l, 2, func() {}) {
				t.Fatal("the loop waited for several callers")
			}
		}
	})
}

// A loop that had to wait long for its turn does not yield for a while.
func TestNoYieldAfterALongOne(t *testing.T) {
	single(t, func(l *eventLoop) {
		const long = 5 * time.Millisecond
		round(l, 1, func() {
			for at := time.Now(); time.Since(at) < long; {
			}
		})
		if at := l.g.Now(); l.patient < at+long {
			t.Fatalf("patient until %v, and it is %v", l.patient, at)
		}
		l.patient = l.g.Now() + time.Hour
		if round(l, 1, func() {}) {
			t.Error("it yielded again")
		}
		l.patient = 0
		l.woke = 1
		if l.yield() || l.woke != 0 {
			t.Error("it found work where there is none")
		}
	})
}
