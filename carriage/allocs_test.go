package carriage_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// serve takes turns on a goroutine of its own whenever there is something to do, and
// calls each, if it is set, before every one. What is returned ends that.
func (d *direct) serve(each func()) (stop func()) {
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-d.woken:
				if each != nil {
					each()
				}
				d.exchange()
			case <-over:
				return
			}
		}
	}()
	return func() {
		close(over)
		<-ended
	}
}

// exchange is step for sides that others have something to say to meanwhile: it ends
// when nothing is under way.
func (d *direct) exchange() {
	var in []byte
	for again := true; again; again = len(in) > 0 || d.client.Pending() {
		d.up = d.client.Turn(d.now, in, d.up[:0])
		d.down = d.server.Turn(d.now, d.up, d.down[:0])
		in = d.down
		for len(in) == 0 && d.server.Pending() {
			d.down = d.server.Turn(d.now, nil, d.down[:0])
			in = d.down
		}
	}
}

// noticed counts the notifications that it serves.
type noticed struct{ n int }

func (*noticed) ServeRequest(*carriage.Request) {}
func (x *noticed) ServeNotify(*carriage.Notify) { x.n++ }

// In steady state a notification costs neither side an allocation, alone or among
// many that wait for one turn.
func TestNotificationAllocatesNothing(t *testing.T) {
	for _, burst := range []int{1, 64} {
		h := new(noticed)
		b := carriage.New(config(h))
		d := newDirect(t, b, b)
		for _, a := range []*assoc.Association{d.client, d.server} {
			for _, q := range []carriage.Call{{Protocol: raw, Method: "note", Foreign: message(200)}, {Protocol: mcp, Foreign: []byte(note)}} {
				h.n = 0
				round := func() {
					for range burst {
						if err := b.TryNotify(a, &q); err != nil {
							t.Fatal(err)
						}
					}
					d.step()
				}
				runs := 1280 / burst
				for range 20 {
					round()
				}
				if n := testing.AllocsPerRun(runs, round); n != 0 && !raceEnabled {
					t.Errorf("%v allocations for %d notifications that a %v sends under %v", n, burst, a.Role(), q.Protocol)
				}
				if h.n != (20+1+runs)*burst {
					t.Errorf("%d notifications, %+v", h.n, b.Stats())
				}
			}
		}
	}
}

// inline answers a request with what it carries.
var inline = carriage.HandlerFunc(func(r *carriage.Request) { _ = r.Respond(r.Foreign()) })

// A blocking Call costs one allocation, the Reply with its octets, which is the
// caller's; of a large reply the octets are another one.
func TestCallAllocatesItsReplyAlone(t *testing.T) {
	b := carriage.New(config(inline))
	d := newDirect(t, b, b)
	defer d.serve(nil)()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, a := range []*assoc.Association{d.client, d.server} {
		for _, tt := range []struct{ octets, want int }{
			{0, 1}, {1, 1}, {88, 1}, {89, 1}, {280, 1}, {281, 1}, {528, 1}, {529, 1}, {1040, 1}, {1041, 2}, {5000, 2},
		} {
			q := carriage.Call{Protocol: raw, Method: "call", Natural: []byte("1"), Foreign: bytes.Repeat([]byte("x"), tt.octets)}
			round := func() {
				r, err := b.Call(ctx, a, &q)
				if err != nil || r.Kind != bridge.KindResponse || !bytes.Equal(r.Foreign, q.Foreign) || cap(r.Foreign) != tt.octets {
					t.Fatalf("%+v %v", r, err)
				}
			}
			for range 20 {
				round()
			}
			if got := testing.AllocsPerRun(200, round); got != float64(tt.want) && !raceEnabled {
				t.Errorf("%v allocations for a reply of %d octets, want %d", got, tt.octets, tt.want)
			}
		}
	}
}

// The transport hears of each caller that was told its answer, so that it can let it
// ask again before it rests, and of no completion, which asks where it is told.
func TestCallTellsItsTransportWhomItWoke(t *testing.T) {
	b := carriage.New(config(carriage.HandlerFunc(func(r *carriage.Request) { _ = r.Respond(r.Foreign()) })))
	d := newDirect(t, b, b)
	q := carriage.Call{Protocol: raw, Natural: []byte("1"), Foreign: []byte("x")}
	before := yields.Load()
	ended := false
	_, err := b.Start(d.client, &q, carriage.CompletionFunc(func(*carriage.Reply) { ended = true }))
	must(t, err)
	d.step()
	if n := yields.Load() - before; !ended || n != 0 {
		t.Errorf("a completion: ended %v, yielded to %d", ended, n)
	}
	stop := d.serve(nil)
	for range 3 {
		_, err := b.Call(t.Context(), d.client, &q)
		must(t, err)
	}
	stop()
	if n := yields.Load() - before; n != 3 {
		t.Errorf("yielded to %d of 3 callers", n)
	}
}

// A caller that goes away costs its Reply and nothing else.
func TestCancelledCallAllocatesItsReplyAlone(t *testing.T) {
	var r *carriage.Request
	arrived := make(chan struct{}, 1)
	b := carriage.New(config(carriage.HandlerFunc(func(x *carriage.Request) {
		x.Retain()
		r = x
		arrived <- struct{}{}
	})))
	d := newDirect(t, b, b)
	defer d.serve(nil)()
	ctx := &again{Context: t.Context(), done: make(chan struct{}, 1)}
	q := carriage.Call{Protocol: raw, Natural: []byte("1"), Foreign: []byte("x"), Hop: true}
	left := make(chan struct{})
	defer close(left)
	go func() {
		for {
			select {
			case <-arrived:
				ctx.done <- struct{}{}
			case <-left:
				return
			}
		}
	}()
	round := func() {
		if reply, err := b.Call(ctx, d.client, &q); err != context.Canceled || !reply.Sent {
			t.Fatalf("%+v %v", reply, err)
		}
		if err := r.Respond(nil); err != nil {
			t.Fatal(err)
		}
		r.Release()
	}
	for range 50 {
		round()
	}
	if got := testing.AllocsPerRun(200, round); got > 1 && !raceEnabled {
		t.Errorf("%v allocations", got)
	}
}

// again is a context that can be cancelled any number of times.
type again struct {
	context.Context
	done     chan struct{}
	starting atomic.Bool
}

func (c *again) Done() <-chan struct{} { return c.done }

// Err is nil when a Call begins and an error when it has found Done.
func (c *again) Err() error {
	if c.starting.CompareAndSwap(false, true) {
		return nil
	}
	c.starting.Store(false)
	return context.Canceled
}

// The pieces of a Reply are its own: what is done to one changes no other, nor those of
// other replies.
func TestRepliesShareNoOctets(t *testing.T) {
	b := carriage.New(config(carriage.HandlerFunc(func(r *carriage.Request) {
		_ = r.Declare(carriage.Declaration{Method: "as it was"})
		_ = r.Respond(r.Foreign())
	})))
	d := newDirect(t, b, b)
	defer d.serve(nil)()
	var replies []*carriage.Reply
	for i := range 200 {
		q := carriage.Call{Protocol: raw, Natural: []byte("1"), Foreign: bytes.Repeat([]byte{byte(i)}, i*8)}
		r, err := b.Call(t.Context(), d.client, &q)
		if err != nil {
			t.Fatal(err)
		}
		replies = append(replies, r)
	}
	for i, r := range replies {
		if !bytes.Equal(r.Foreign, bytes.Repeat([]byte{byte(i)}, i*8)) || string(r.Method) != "as it was" {
			t.Fatalf("reply %d has changed: %q %q", i, r.Method, r.Foreign)
		}
		_ = append(r.Foreign, "more"...)
		for k := range r.Foreign {
			r.Foreign[k] = 0xFF
		}
	}
	for i, r := range replies {
		if !bytes.Equal(r.Foreign, bytes.Repeat([]byte{0xFF}, i*8)) || string(r.Method) != "as it was" {
			t.Fatalf("reply %d has changed: %q %q", i, r.Method, r.Foreign)
		}
	}
}

// Callers that go away at any moment, answers that come at once, later, from elsewhere
// or too late, and associations that are lost in the midst of it, seeded: every Call
// ends with its own reply or with an error that is its own.
func TestCallsNeverTakeEachOthersEnd(t *testing.T) {
	rounds, callers, calls := 20, 16, 150
	if slowBuild || raceEnabled {
		rounds, calls = 6, 80
	}
	var good, gone, lost atomic.Int64
	for round := range rounds {
		rnd := rand.New(rand.NewPCG(uint64(round), 0)) // the loop's
		var late []*carriage.Request
		elsewhere := make(chan *carriage.Request, callers*calls)
		served, end := 0, callers*calls
		if round%2 == 1 {
			end = rnd.IntN(end / 2)
		}
		var d *direct
		b := carriage.New(config(carriage.HandlerFunc(func(r *carriage.Request) {
			if served++; served == end {
				d.woken.Wake()
			}
			switch rnd.IntN(3) {
			case 0:
				_ = r.Respond(r.Foreign())
			case 1:
				r.Retain()
				late = append(late, r)
				d.woken.Wake()
			default:
				r.Retain()
				elsewhere <- r
			}
		})))
		d = newDirect(t, b, b)
		var dead atomic.Bool
		stop := d.serve(func() {
			if served >= end && !dead.Swap(true) {
				d.client.TransportClosed(d.now, nil)
				d.server.TransportClosed(d.now, nil)
			}
			for len(late) > 0 && rnd.IntN(4) > 0 {
				i := rnd.IntN(len(late))
				_ = late[i].Respond(late[i].Foreign())
				late[i].Release()
				late[i] = late[len(late)-1]
				late = late[:len(late)-1]
			}
			if len(late) > 0 {
				d.woken.Wake()
			}
		})
		var answering, calling sync.WaitGroup
		answering.Go(func() {
			for r := range elsewhere {
				_ = r.Respond(r.Foreign())
				r.Release()
			}
		})
		for who := range callers {
			calling.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(round), uint64(1+who)))
				a := d.client
				if who%2 == 1 {
					a = d.server
				}
				for i := range calls {
					name := fmt.Appendf(nil, "%d/%d ", who, i)
					q := carriage.Call{Protocol: raw, Natural: name, Foreign: bytes.Repeat(name, 1+rnd.IntN(200))}
					ctx, cancel := context.WithCancel(t.Context())
					var cancelled atomic.Bool
					if yields := rnd.IntN(40); yields < 20 {
						go func() {
							for range yields {
								runtime.Gosched()
							}
							cancelled.Store(true)
							cancel()
						}()
					}
					r, err := b.Call(ctx, a, &q)
					switch {
					case r == nil || r.Err != err:
						t.Errorf("round %d, caller %d, call %d: %+v with %v", round, who, i, r, err)
					case err == nil && bytes.Equal(r.Foreign, q.Foreign):
						good.Add(1)
					case errors.Is(err, context.Canceled) && cancelled.Load():
						gone.Add(1)
					case errors.Is(err, assoc.ErrClosed) && dead.Load():
						lost.Add(1)
					default:
						t.Errorf("round %d, caller %d, call %d: %v, %q", round, who, i, err, r.Foreign)
					}
					cancel()
				}
			})
		}
		calling.Wait()
		stop()
		close(elsewhere)
		answering.Wait()
		if s := b.Stats(); s.CompletionPanics != 0 || s.RepliesUnknown != 0 {
			t.Errorf("round %d: %+v", round, s)
		}
	}
	if good.Load() == 0 || gone.Load() == 0 || lost.Load() == 0 {
		t.Errorf("%d replies, %d cancelled, %d lost", good.Load(), gone.Load(), lost.Load())
	}
}

// One blocking request there and back, with both sides' work.
func BenchmarkCall(b *testing.B) {
	for _, octets := range []int{64, 512, 4096} {
		b.Run(fmt.Sprint(octets), func(b *testing.B) {
			br := carriage.New(config(inline))
			d := newDirect(b, br, br)
			defer d.serve(nil)()
			q := carriage.Call{Protocol: raw, Natural: []byte("1"), Foreign: bytes.Repeat([]byte("x"), octets)}
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := br.Call(ctx, d.client, &q); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
