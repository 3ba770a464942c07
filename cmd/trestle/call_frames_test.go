package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

const subscribe = `{"jsonrpc":"2.0","id":1,"method":"message/stream","params":{}}`

const (
	working   = " {\"jsonrpc\":\"2.0\",\n\"id\":1,\"result\":{\"kind\":\"status-update\",\"final\":false,\"h\":\"<b>&\\u003cé\"}}"
	completed = `{"jsonrpc":"2.0","id":1,"result":{"kind":"status-update","final":true,"status":{"state":"completed"}}}`
	objection = `{"error":{"data":[{"n":12345678901234567890}],"message":"","code":-32005},"id":1,"jsonrpc":"2.0"}`
)

// stream answers with a stream that tell sends.
func stream(t *testing.T, tell func(p *carriage.Producer)) func(*carriage.Request) {
	return func(r *carriage.Request) {
		r.RetainEnvelope()
		p, err := r.Stream(carriage.StreamOptions{})
		if err != nil {
			t.Error(err)
			return
		}
		go tell(p)
	}
}

// frames is what is written for events.
func frames(events ...string) string {
	var b strings.Builder
	for _, e := range events {
		b.WriteString(strconv.Itoa(len(e)) + "\n" + e + "\n")
	}
	return b.String()
}

func TestCallWritesEventsAsFrames(t *testing.T) {
	for name, tc := range map[string]struct {
		tell  func(p *carriage.Producer)
		wrote string
		code  int
		says  string
	}{
		"a stream": {func(p *carriage.Producer) {
			_ = p.Send(t.Context(), []byte(working))
			_ = p.End([]byte(completed))
		}, frames(working, completed), exitOK, ""},
		"an end without an event": {func(p *carriage.Producer) {
			_ = p.Send(t.Context(), []byte(working))
			_ = p.EndEmpty()
		}, frames(working), exitOK, ""},
		"the agent's error in the stream": {func(p *carriage.Producer) {
			_ = p.Send(t.Context(), []byte(working))
			_ = p.End([]byte(objection))
		}, frames(working, objection), exitForeign, ""},
		"the agent's error in place of it": {func(p *carriage.Producer) { _ = p.Fail([]byte(objection)) }, frames(objection), exitForeign, ""},
		"one reply in place of it":         {func(p *carriage.Producer) { _ = p.Respond([]byte(completed)) }, frames(completed), exitOK, ""},
		"a refusal": {func(p *carriage.Producer) {
			_ = p.Refuse(bridge.CodeSafetyPolicy, "not on Sundays")
		}, "", exitTransport, "transport error 5 SafetyPolicy: not on Sundays"},
		"a stream that breaks": {func(p *carriage.Producer) {
			_ = p.Send(t.Context(), []byte(working))
			_ = p.Refuse(bridge.CodeNotDelivered, "the agent died")
		}, frames(working), exitTransport, "transport error 4 NotDelivered: the agent died"},
		"an association that ends": {func(p *carriage.Producer) {
			_ = p.Send(t.Context(), []byte(working))
			p.Association().Close(0, "")
		}, frames(working), exitTransport, "outcome unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFar(t, stream(t, tc.tell))
			r := trestle(t, subscribe, "call", "--to", f.addr, "--agent", "a", "--frames")
			if r.code != tc.code || r.out != tc.wrote || !strings.Contains(r.err, tc.says) || (tc.says == "") != (r.err == "") {
				t.Errorf("code %d, stdout %q, stderr %q", r.code, r.out, r.err)
			}
			if got, n := f.last(); n != 1 || got != (seen{"a", "message/stream", "non_idempotent_write", subscribe}) {
				t.Errorf("%d requests, the last %+v", n, got)
			}
		})
	}
	// Whatever has one reply can be asked for so, too.
	f := startFar(t, respond(`{"jsonrpc":"2.0","id":1,"result":null}`))
	if r := trestle(t, getTask, "call", "--to", f.addr, "--agent", "a", "--frames"); r.code != exitOK || r.out != frames(`{"jsonrpc":"2.0","id":1,"result":null}`) {
		t.Errorf("code %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
}

func TestCallOfAStreamNeedsFrames(t *testing.T) {
	for _, method := range []string{"message/stream", "tasks/resubscribe", "SendStreamingMessage", "SubscribeToTask"} {
		r := trestle(t, `{"jsonrpc":"2.0","id":1,"method":"`+method+`"}`, "call", "--to", "127.0.0.1:1", "--agent", "a")
		if r.code != exitUsage || !strings.Contains(r.err, "--frames") {
			t.Errorf("%s: %+v", method, r)
		}
	}
}

// Each event is on standard output before there is another, and an interrupt ends
// the stream for its producer as well.
func TestCallWritesEventsAsTheyCome(t *testing.T) {
	next := make(chan struct{})
	over := make(chan error, 1)
	f := startFar(t, stream(t, func(p *carriage.Producer) {
		for n := 0; p.Err() == nil; n++ {
			_ = p.Send(t.Context(), []byte(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"result":%d}`, n)))
			select {
			case <-next:
			case <-p.Done():
			}
		}
		over <- p.Err()
	}))
	ctx, interrupt := context.WithCancel(t.Context())
	out, errOut := newOutput(), newOutput()
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"trestle", "call", "--to", f.addr, "--agent", "a", "--frames"}, strings.NewReader(subscribe), out, errOut)
	}()
	for n := range 5 {
		want := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"result":%d}`, n)
		for _, want := range []string{strconv.Itoa(len(want)), want} {
			select {
			case line := <-out.lines:
				if line != want {
					t.Fatalf("%q, want %q", line, want)
				}
			case <-time.After(patience):
				t.Fatalf("nothing is written; stderr %q", errOut)
			}
		}
		next <- struct{}{}
	}
	interrupt()
	if c := <-code; c != exitTransport {
		t.Errorf("code %d: %s", c, errOut)
	}
	if err := <-over; err == nil {
		t.Error("the producer was not told")
	}
}

func TestCallOfAStreamHasTheTimeoutItIsGiven(t *testing.T) {
	f := startFar(t, stream(t, func(p *carriage.Producer) { _ = p.Send(t.Context(), []byte(working)) }))
	r := trestle(t, subscribe, "call", "--to", f.addr, "--agent", "a", "--frames", "--timeout", "300ms")
	if r.code != exitTransport || r.out != frames(working) || !strings.Contains(r.err, "deadline") {
		t.Errorf("code %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
}
