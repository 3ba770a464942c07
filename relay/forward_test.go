package relay

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/relay/edge"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// liveHeap is what is reachable, in octets, without what pools keep.
func liveHeap() int64 {
	var s runtime.MemStats
	for range 3 { // a pool lets go of what two collections found unused
		runtime.GC()
	}
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// A request that was sent to the agent holds none of its octets while the answer
// is awaited, however large it was.
func TestRequestsUnderWayHoldNoMessages(t *testing.T) {
	const count, size = 24, 3 << 20
	for _, method := range []string{"message/send", "message/stream"} {
		t.Run(method, func(t *testing.T) {
			r := startRelay(t, Config{})
			held := make(chan func(), count)
			l := &linkAgent{t: t, seen: make(chan carriage.Call, 1)}
			l.serve = func(r *carriage.Request) {
				if r.Streams() {
					p, err := r.Stream(carriage.StreamOptions{})
					if err != nil {
						t.Error(err)
						return
					}
					r.RetainEnvelope()
					held <- func() { _ = p.EndEmpty(); r.Release() }
					return
				}
				r.RetainEnvelope()
				held <- func() { _ = r.Refuse(bridge.CodeNotDelivered, "enough"); r.Release() }
			}
			l.start(t, r, "a", nil)
			c := dial(t, r, "a")
			request := func(n int) []byte {
				return []byte(`{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":"` + strings.Repeat("x", n) + `"}`)
			}
			small, large := request(1), request(size)
			var ended sync.WaitGroup
			send := func(request []byte) {
				call := carriage.Call{Protocol: bridge.ProtocolA2A, Foreign: request, Hop: true}
				// The label's scope is a view of what was received, too.
				call.Label = &bridge.Label{Effect: bridge.NonIdempotentWrite}
				ended.Add(1)
				var err error
				if method == "message/send" {
					_, err = c.bridge.Start(c.assoc, &call, carriage.CompletionFunc(func(*carriage.Reply) { ended.Done() }))
				} else {
					_, err = c.bridge.StartStream(c.assoc, &call, nil, endOfStream(ended.Done))
				}
				if err != nil {
					t.Fatal(err)
				}
				<-l.seen
			}
			send(small) // it takes a large one once the peer has said so
			send(large) // what there is once
			before := liveHeap()
			for range count - 2 {
				send(large)
			}
			grown := liveHeap() - before
			t.Logf("%d requests of %d octets hold %d", count-2, size, grown)
			if grown > (count-2)*size/4 {
				t.Errorf("%d requests of %d octets hold %d", count-2, size, grown)
			}
			for range count {
				(<-held)()
			}
			ended.Wait()
		})
	}
}

// endOfStream is told of a stream's end.
type endOfStream func()

func (endOfStream) HandleEvent(*carriage.Event)   {}
func (f endOfStream) HandleReply(*carriage.Reply) { f() }

// A reply that the relay finds malformed is the agent's fault. Its caller, whose
// request was sound, must not be told that it was malformed, on either path.
func TestMalformedReplyIsNotTheCallersFault(t *testing.T) {
	r := startRelay(t, Config{})
	// Its own side checks nothing that is opaque.
	l := &linkAgent{t: t, seen: make(chan carriage.Call, 3), lie: func(p *carriage.Protocol) { p.Class = carriage.ClassOpaque }}
	l.serve = func(r *carriage.Request) { _ = r.Respond([]byte(`{"jsonrpc":"2.0","id":8,"result":null}`)) }
	l.start(t, r, "a", nil)
	c := dial(t, r, "a")
	const request = `{"jsonrpc":"2.0","id":7,"method":"message/send"}`
	const told = "the agent's reply is malformed; outcome unknown"
	c.wantRefused(c.send(request), bridge.CodeNotDelivered, told)
	wantTold(t, c.open(`{"jsonrpc":"2.0","id":7,"method":"message/stream"}`), bridge.CodeNotDelivered, told)
	post(t, r, "a", request).want(t, 502, told)
}

// Once a request has left, no wording of what became of it says that it may be sent
// again: not to an N-PAMP caller, and to an HTTP caller not by the status either.
func TestOutcomesOfWhatHadLeft(t *testing.T) {
	for _, err := range []error{
		engine.ErrClosed, context.DeadlineExceeded, carriage.ErrDraining, carriage.ErrSlowConsumer, carriage.ErrOverrun, errors.New("anything else"),
	} {
		for _, sent := range []bool{false, true} {
			reply := &carriage.Reply{Err: err, Sent: sent}
			_, text := outcome(reply)
			fault := edge.FaultOf(edgeError(reply))
			unknown := strings.Contains(text, "outcome unknown")
			if sent && (!unknown || !strings.Contains(fault.Text, "outcome unknown") || fault.Status != 502 && fault.Status != 504) {
				t.Errorf("%v: %q, %d %q", err, text, fault.Status, fault.Text)
			}
			if !sent && unknown && err != context.DeadlineExceeded { // which says what it says of both
				t.Errorf("%v, not sent: %q, %d %q", err, text, fault.Status, fault.Text)
			}
		}
	}
}

// The edge holds a request's body until it has left for the agent, not until the
// answer: requests that wait for their answers keep no other caller out. The agent's
// side has room for as many as the edge.
func TestBodiesAreNotHeldForTheAnswer(t *testing.T) {
	callers, size := 20, 4<<20-1<<10
	if raceEnabled { // where such messages take long
		callers, size = 6, 1<<20
	}
	r := startRelay(t, Config{Edge: edge.Config{MaxBuffered: 3 * int64(size)}})
	answer := make(chan struct{})
	release := sync.OnceFunc(func() { close(answer) })
	defer release()
	startHTTP(t, r, "a", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		id := idOf(t, read(t, req))
		<-answer
		respond(w, 200, `{"jsonrpc":"2.0","id":`+id+`,"result":0}`)
	}))
	body := `{"jsonrpc":"2.0","id":7,"method":"message/send","params":"` + strings.Repeat("x", size-100) + `"}`
	var wg sync.WaitGroup
	for n := range callers {
		wg.Go(func() { post(t, r, "a", body).want(t, 200, `"result":0`) })
		eventually(t, "the body has left", func() bool {
			s := r.Stats()
			return s.Requests == uint64(n+1) && s.Edge.Buffered == 0
		})
	}
	if n := r.Stats().Edge.InFlight; n != callers {
		t.Errorf("%d requests are under way", n)
	}
	release()
	wg.Wait()
}

// More than may wait to be sent to an agent at one time waits at the edge, and is
// not refused.
func TestLargeRequestsWaitForRoom(t *testing.T) {
	callers, size := 32, 2<<20
	if raceEnabled { // where such messages take long
		callers = 6
	}
	r := startRelay(t, Config{})
	startHTTP(t, r, "a", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body := read(t, req)
		if strings.Contains(body, "message/stream") {
			w.Header().Set("Content-Type", "text/event-stream")
			(&flow{w, req}).say(status(idOf(t, body), "completed", true))
			return
		}
		respond(w, 200, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%d}`, idOf(t, body), len(body)))
	}))
	var wg sync.WaitGroup
	for n := range callers {
		method, want := "message/send", `"result":2`
		if n%2 == 1 {
			method, want = "message/stream", `"final":true`
		}
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":"%s"}`, n, method, strings.Repeat("x", size))
		wg.Go(func() { post(t, r, "a", body).want(t, 200, want) })
	}
	wg.Wait()
}
