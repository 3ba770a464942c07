package carriage_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// broker answers every request by subscribing it to its topic.
type broker struct {
	t     *testing.T
	topic *carriage.Topic
	o     carriage.SubscribeOptions
	subs  []*carriage.Producer
	over  []error
}

func (b *broker) ServeNotify(*carriage.Notify) {}
func (b *broker) ServeRequest(r *carriage.Request) {
	o := b.o
	o.Over = func(err error) { b.over = append(b.over, err) }
	p, err := b.topic.Subscribe(r, o)
	if err != nil && err != carriage.ErrStreamEnded {
		b.t.Error(err)
	}
	b.subs = append(b.subs, p)
}

func subscribed(t *testing.T, n int, o carriage.TopicOptions, so carriage.SubscribeOptions) (*nptest.Pair, *broker, *carriage.Bridge, []*taken) {
	t.Helper()
	br := &broker{t: t, topic: carriage.NewTopic(o), o: so}
	pair, c, s := both(t, config(nil), config(br))
	var all []*taken
	for i := range n {
		k, _ := consume(t, c, pair.Client.Association, carriage.Call{Protocol: raw, Natural: fmt.Append(nil, i)}, nil)
		all = append(all, k)
	}
	pair.Settle()
	return pair, br, s, all
}

// One event goes to all, each with its own numbers, and one that comes later starts
// with what is published then.
func TestTopic(t *testing.T) {
	pair, br, _, all := subscribed(t, 3, carriage.TopicOptions{}, carriage.SubscribeOptions{})
	if n := br.topic.Subscribers(); n != 3 {
		t.Fatalf("%d subscribers", n)
	}
	must(t, br.topic.TryPublish([]byte("a")))
	must(t, br.topic.TryPublish([]byte("b")))
	pair.Settle()
	late, _ := consume(t, br.client(pair), pair.Client.Association, carriage.Call{Protocol: raw, Natural: []byte("late")}, nil)
	pair.Settle()
	must(t, br.topic.TryPublish([]byte("c")))
	must(t, br.topic.End([]byte("end")))
	pair.Settle()
	for _, s := range all {
		s.want(t, 1, "a", "b", "c")
		s.ends(t, "end")
	}
	late.want(t, 1, "c")
	late.ends(t, "end")
	if n := br.topic.Subscribers(); n != 0 {
		t.Errorf("%d subscribers", n)
	}
	for _, err := range []error{br.topic.TryPublish(nil), br.topic.Publish(background, nil), br.topic.End(nil), br.topic.Refuse(4, "")} {
		if err != carriage.ErrStreamEnded {
			t.Errorf("after the end: %v", err)
		}
	}
	after, _ := consume(t, br.client(pair), pair.Client.Association, carriage.Call{Protocol: raw, Natural: []byte("after")}, nil)
	pair.Settle()
	after.outcome.ended(t, bridge.CodeNotDelivered, true)
	if len(br.over) != 4 || br.over[0] != nil {
		t.Errorf("over %v", br.over)
	}
}

func (b *broker) client(p *nptest.Pair) *carriage.Bridge {
	return carriage.BridgeOf(p.Client.Association)
}

// A subscriber may have an event of its own first, and its own head on the others.
func TestTopic_OwnFirstEventAndHead(t *testing.T) {
	pair, br, _, all := subscribed(t, 2, carriage.TopicOptions{}, carriage.SubscribeOptions{First: []byte("snapshot"), Head: []byte("id=7 ")})
	must(t, br.topic.TryPublish([]byte("a")))
	must(t, br.topic.TryPublish([]byte("b")))
	must(t, br.topic.End([]byte("end")))
	pair.Settle()
	for _, s := range all {
		s.want(t, 1, "snapshot", "id=7 a", "id=7 b")
		s.ends(t, "id=7 end")
	}
	pair, br, _, all = subscribed(t, 1, carriage.TopicOptions{}, carriage.SubscribeOptions{Head: []byte("id=7 ")})
	must(t, br.topic.End(nil))
	pair.Settle()
	all[0].ends(t, "")
}

// The head belongs to events: a transport error that ends the topic is octets that no
// protocol knows (BRIDGE 5), and bears none.
func TestTopic_RefuseBearsNoHead(t *testing.T) {
	pair, br, _, all := subscribed(t, 2, carriage.TopicOptions{}, carriage.SubscribeOptions{Head: []byte("id=7 ")})
	must(t, br.topic.TryPublish([]byte("a")))
	must(t, br.topic.Refuse(bridge.CodeSafetyPolicy, "no more"))
	pair.Settle()
	for _, s := range all {
		s.want(t, 1, "id=7 a")
		s.outcome.ended(t, bridge.CodeSafetyPolicy, true)
	}
}

// The head is the start of what crosses, so it must not look like a TLV (D9).
func TestTopic_HeadWithAZeroOctet(t *testing.T) {
	topic := carriage.NewTopic(carriage.TopicOptions{})
	h := new(held)
	pair, c, _ := both(t, config(nil), config(h))
	s, _ := consume(t, c, pair.Client.Association, carriage.Call{Protocol: raw, Natural: []byte("x")}, nil)
	pair.Settle()
	if _, err := topic.Subscribe(h.requests[0], carriage.SubscribeOptions{Head: []byte("\x00\x13")}); err != bridge.ErrAmbiguous {
		t.Errorf("%v", err)
	}
	pair.Settle()
	s.outcome.ended(t, bridge.CodeNotDelivered, true)
}

// A subscriber's own end, and its consumer's cancel, leave the others alone.
func TestTopic_OneLeaves(t *testing.T) {
	br := &broker{t: t, topic: carriage.NewTopic(carriage.TopicOptions{})}
	pair, c, _ := both(t, config(nil), config(br))
	var all []*taken
	var xs []*carriage.Consumer
	for i := range 3 {
		s, x := consume(t, c, pair.Client.Association, carriage.Call{Protocol: raw, Natural: fmt.Append(nil, i)}, nil)
		all, xs = append(all, s), append(xs, x)
	}
	pair.Settle()
	must(t, br.topic.TryPublish([]byte("a")))
	must(t, br.subs[1].End([]byte("bye")))
	if err := br.subs[0].TrySend([]byte("x")); err != carriage.ErrNotSubscribed {
		t.Errorf("sending on a subscription: %v", err)
	}
	must(t, br.topic.TryPublish([]byte("b")))
	pair.Settle()
	xs[2].Cancel(nil)
	pair.Settle()
	must(t, br.topic.TryPublish([]byte("c")))
	pair.Settle()
	all[0].want(t, 1, "a", "b", "c")
	all[0].pending(t)
	all[1].want(t, 1, "a")
	all[1].ends(t, "bye")
	all[2].want(t, 1, "a", "b")
	if n := br.topic.Subscribers(); n != 1 {
		t.Errorf("%d subscribers", n)
	}
	pair.Cut(errors.New("reset"))
	pair.Settle()
	if n := br.topic.Subscribers(); n != 0 {
		t.Errorf("%d subscribers", n)
	}
	must(t, br.topic.TryPublish([]byte("d"))) // for nobody
}

// A subscriber that falls behind by the buffer is cut, with a definite reason; the
// others get everything.
func TestTopic_SlowSubscriberIsCut(t *testing.T) {
	br := &broker{t: t, topic: carriage.NewTopic(carriage.TopicOptions{Buffer: 100_000})}
	pair, c, s := both(t, config(nil), config(br))
	fast, _ := consume(t, c, pair.Client.Association, carriage.Call{Protocol: raw, Natural: []byte("fast")}, nil)
	slow, _ := consume(t, c, pair.Client.Association, carriage.Call{Protocol: raw, Natural: []byte("slow")}, &carriage.StreamCall{Manual: true})
	pair.Settle()
	const n = 2000
	for range n {
		must(t, br.topic.TryPublish(text(1000)))
		pair.Settle()
	}
	must(t, br.topic.End(nil))
	pair.Settle()
	if len(fast.events) != n {
		t.Errorf("%d events of %d", len(fast.events), n)
	}
	fast.ends(t, "")
	slow.outcome.ended(t, bridge.CodeNotDelivered, true)
	if got := len(slow.events); got < 1000 || got > 1050 {
		t.Errorf("the slow one got %d events on a credit of 1 MiB", got)
	}
	if st := s.Stats(); st.StreamsCut != 1 {
		t.Errorf("%+v", st)
	}
	var cut int
	for _, err := range br.over {
		if err == carriage.ErrSlowConsumer {
			cut++
		}
	}
	if cut != 1 {
		t.Errorf("over %v", br.over)
	}
}

// So is one whose association takes nothing, before that is noticed there.
func TestTopic_SubscriberBehindABlockedAssociation(t *testing.T) {
	br := &broker{t: t, topic: carriage.NewTopic(carriage.TopicOptions{Buffer: 50_000})}
	pair, c, s := both(t, config(nil), config(br))
	var all []*taken
	for i := range 3 {
		k, _ := consume(t, c, pair.Client.Association, carriage.Call{Protocol: raw, Natural: fmt.Append(nil, i)}, nil)
		all = append(all, k)
	}
	pair.Settle()
	pair.Server.Block(true)
	for range 400 {
		must(t, br.topic.TryPublish(text(1000)))
		pair.Settle()
	}
	if len(br.over) != 3 || br.over[0] != carriage.ErrSlowConsumer || s.Stats().StreamsCut != 3 {
		t.Errorf("over %v, %+v", br.over, s.Stats())
	}
	pair.Server.Block(false)
	pair.Settle()
	for _, k := range all {
		k.outcome.ended(t, bridge.CodeNotDelivered, true)
		for i, id := range k.ids {
			if id != carriage.EventID(i+1) {
				t.Fatalf("event %d as number %d", id, i+1)
			}
		}
	}
}

// Publish waits for those who are behind, no longer than its patience, and for
// nobody who is not there.
func TestTopic_PublishWaits(t *testing.T) {
	br := &broker{t: t, topic: carriage.NewTopic(carriage.TopicOptions{Buffer: 20_000, Patience: time.Hour, Stall: time.Hour})}
	pair, c, _ := both(t, config(nil), config(br))
	s, _ := consume(t, c, pair.Client.Association, carriage.Call{Protocol: raw, Natural: []byte("s")}, nil)
	pair.Settle()
	const n = 5000
	errs := make(chan error, 1)
	go func() {
		for i := range n {
			if err := br.topic.Publish(background, fmt.Append(text(100), i)); err != nil {
				errs <- err
				return
			}
		}
		errs <- br.topic.End(nil)
	}()
	pair.RunUntil(func() bool { return s.n > 0 })
	must(t, <-errs)
	s.ends(t, "")
	if len(s.events) != n || s.ids[n-1] != n {
		t.Fatalf("%d events", len(s.events))
	}
	for i, e := range s.events {
		if e != fmt.Sprintf("%s%d", text(100), i) {
			t.Fatalf("event %d out of order", i)
		}
	}

	// Nobody reads: the context ends the wait.
	br = &broker{t: t, topic: carriage.NewTopic(carriage.TopicOptions{Buffer: 1000, Patience: time.Hour})}
	pair, c, _ = both(t, config(nil), config(br))
	consume(t, c, pair.Client.Association, carriage.Call{Protocol: raw, Natural: []byte("s")}, nil)
	pair.Settle()
	must(t, br.topic.Publish(background, text(900)))
	ctx, cancel := context.WithCancel(background)
	go func() { errs <- br.topic.Publish(ctx, text(900)) }()
	cancel()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	// A subscriber that leaves lets the publisher go on.
	go func() { errs <- br.topic.Publish(background, text(900)) }()
	pair.Cut(errors.New("reset"))
	pair.RunUntil(func() bool { return len(errs) == 1 })
	must(t, <-errs)
}

// Who stalls is cut, and the others are not.
func TestTopic_PublishCutsWhoStalls(t *testing.T) {
	br := &broker{t: t, topic: carriage.NewTopic(carriage.TopicOptions{Buffer: 200_000, Patience: 100 * time.Millisecond, Stall: time.Second})}
	pair, c, s := both(t, config(nil), config(br))
	fast, _ := consume(t, c, pair.Client.Association, carriage.Call{Protocol: raw, Natural: []byte("fast")}, nil)
	slow, _ := consume(t, c, pair.Client.Association, carriage.Call{Protocol: raw, Natural: []byte("slow")}, &carriage.StreamCall{Manual: true})
	pair.Settle()
	const n = 2000
	errs := make(chan error, 1)
	go func() {
		for range n {
			if err := br.topic.Publish(background, text(1000)); err != nil {
				errs <- err
				return
			}
		}
		errs <- br.topic.End(nil)
	}()
	pair.RunUntil(func() bool { return fast.n > 0 && slow.n > 0 })
	must(t, <-errs)
	fast.ends(t, "")
	slow.outcome.ended(t, bridge.CodeNotDelivered, true)
	if len(fast.events) != n || s.Stats().StreamsCut != 1 {
		t.Errorf("%d events, %+v", len(fast.events), s.Stats())
	}
}

// Who makes progress is waited for, however slow, unless most others wait for it.
func TestTopic_PublishWaitsForWhoMakesProgress(t *testing.T) {
	for _, others := range []int{0, 2} {
		br := &broker{t: t, topic: carriage.NewTopic(carriage.TopicOptions{Buffer: 200_000, Patience: 500 * time.Millisecond})}
		pair, c, _ := both(t, config(nil), config(br))
		for i := range others {
			consume(t, c, pair.Client.Association, carriage.Call{Protocol: raw, Natural: fmt.Append(nil, i)}, nil)
		}
		slow, x := consume(t, c, pair.Client.Association, carriage.Call{Protocol: raw, Natural: []byte("slow")}, &carriage.StreamCall{Manual: true})
		pair.Settle()
		const n = 2500
		errs := make(chan error, 1)
		go func() {
			for range n {
				if err := br.topic.Publish(background, text(1000)); err != nil {
					errs <- err
					return
				}
			}
			errs <- br.topic.End(nil)
		}()
		last := time.Now()
		pair.RunUntil(func() bool {
			if time.Since(last) > time.Duration(1+30*others)*10*time.Millisecond {
				last = time.Now()
				x.Consumed(64 << 10)
			}
			return slow.n > 0
		})
		if others == 0 {
			slow.ends(t, "")
			if len(slow.events) != n {
				t.Errorf("%d events of %d", len(slow.events), n)
			}
		} else {
			slow.outcome.ended(t, bridge.CodeNotDelivered, true)
		}
		pair.RunUntil(func() bool { return len(errs) == 1 })
		must(t, <-errs)
	}
}

// An event larger than the whole buffer goes when all have caught up.
func TestTopic_EventLargerThanTheBuffer(t *testing.T) {
	pair, br, _, all := subscribed(t, 2, carriage.TopicOptions{Buffer: 1000}, carriage.SubscribeOptions{})
	errs := make(chan error, 1)
	go func() {
		for range 5 {
			if err := br.topic.Publish(background, text(100_000)); err != nil {
				errs <- err
				return
			}
		}
		errs <- nil
	}()
	pair.RunUntil(func() bool { return len(all[0].events) == 5 && len(all[1].events) == 5 })
	must(t, <-errs)
}

// L22: 100 subscribers to one stream, one never reads; 10,000 events of 1 KiB.
func TestL22_SlowSubscriberAmongMany(t *testing.T) {
	br := &broker{t: t, topic: carriage.NewTopic(carriage.TopicOptions{})}
	server := carriage.New(config(br))
	client := carriage.New(config(nil))
	const subscribers, events = 10, 10_000 // on each of ten associations
	n, links := events, 10
	if slowBuild {
		n, links = 2200, 3 // still more than a stalled one can be behind
	}
	var pairs []*nptest.Pair
	var all []*counted
	for i := range links {
		pair := nptest.NewPair(t, nptest.Options{Client: options(client), Server: options(server)})
		pair.Settle()
		pairs = append(pairs, pair)
		for j := range subscribers {
			s := new(counted)
			all = append(all, s)
			o := &carriage.StreamCall{Manual: i == 0 && j == 0} // that one never reads
			_, err := client.StartStream(pair.Client.Association, &carriage.Call{Protocol: raw, Natural: fmt.Append(nil, j)}, o, s)
			must(t, err)
		}
		pair.Settle()
	}
	for range n {
		must(t, br.topic.TryPublish(text(1024)))
		for _, p := range pairs {
			p.Settle()
		}
	}
	must(t, br.topic.End([]byte("end")))
	for _, p := range pairs {
		p.Settle()
	}
	for i, s := range all {
		if i == 0 {
			var e *bridge.Error
			if s.ended != 1 || !errors.As(s.err, &e) || e.Code != bridge.CodeNotDelivered || s.events > 1024 {
				t.Errorf("the slow one: %d events, ended %d times: %v", s.events, s.ended, s.err)
			}
		} else if s.events != n || s.ended != 1 || s.err != nil {
			t.Errorf("subscriber %d: %d events, ended %d times: %v", i, s.events, s.ended, s.err)
		}
	}
	if st := server.Stats(); st.StreamsCut != 1 {
		t.Errorf("%+v", st)
	}
}
