package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/mapping/a2a"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// far is the other end of call: an engine with a scripted A2A handler.
type far struct {
	addr, key string

	mu       sync.Mutex
	requests []seen
	notes    chan string

	answer func(r *carriage.Request)
}

// seen is what arrived with a request.
type seen struct {
	agent, method, label, foreign string
}

func (f *far) ServeRequest(r *carriage.Request) {
	s := seen{method: string(r.Method()), label: "none", foreign: string(r.Foreign())}
	if label, ok := r.Label(); ok {
		s.label = label.Effect.String()
	}
	if h := r.Association().PeerHello(); h != nil {
		s.agent = h.Agent
	}
	f.mu.Lock()
	f.requests = append(f.requests, s)
	f.mu.Unlock()
	f.answer(r)
}

func (f *far) ServeNotify(n *carriage.Notify) { f.notes <- string(n.Foreign()) }

// last is the last request, and how many there were.
func (f *far) last() (seen, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.requests) == 0 {
		return seen{}, 0
	}
	return f.requests[len(f.requests)-1], len(f.requests)
}

func startFar(t *testing.T, answer func(r *carriage.Request)) *far {
	t.Helper()
	f := &far{answer: answer, notes: make(chan string, 16)}
	b := carriage.New(carriage.Config{Protocols: []carriage.Protocol{a2a.Protocol(f)}})
	e, err := engine.New(engine.Config{Channels: []engine.ChannelHandler{b}, Protocols: b.Protocols(), Loops: 1})
	if err != nil {
		t.Fatal(err)
	}
	l, err := e.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Requests that nobody answered are cut.
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if err := e.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
	f.addr, f.key = l.Addr().String(), e.Identity().String()
	return f
}

// respond answers with these octets.
func respond(octets string) func(*carriage.Request) {
	return func(r *carriage.Request) { _ = r.Respond([]byte(octets)) }
}

const getTask = `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"t"}}`

func TestCallCarriesOctetsExactly(t *testing.T) {
	request := " {\"z\":1.10,\"jsonrpc\":\"2.0\", \"params\":{\"h\":\"<b>&\\u003c\\u2028é\",\"n\":123456789012345678901234567890},\"method\":\"message/send\",\"id\":\"q\\\"\\\\\"}\r\n\t"
	response := "\t{\"z\":1.10,\"jsonrpc\":\"2.0\", \"result\":{\"h\":\"<b>&\\u003c\\u2028é\",\"x\":1E+2,\"e\":{},\"n\":null},\"id\":\"q\\\"\\\\\"}  \n"
	f := startFar(t, respond(response))
	r := trestle(t, request, "call", "--to", f.addr, "--pin", f.key, "--agent", "echo")
	if r.code != exitOK || r.out != response || r.err != "" {
		t.Errorf("code %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	got, n := f.last()
	if n != 1 || got != (seen{"echo", "message/send", "non_idempotent_write", request}) {
		t.Errorf("%d requests, the last %+v", n, got)
	}
}

func TestCallGivesTheAgentsErrorWithCodeThree(t *testing.T) {
	body := `{"error":{"data":[{"retryAfter":5,"n":12345678901234567890}],"message":"","code":-32005},"id":1,"jsonrpc":"2.0"}`
	f := startFar(t, func(r *carriage.Request) { _ = r.Fail([]byte(body)) })
	r := trestle(t, getTask, "call", "--to", f.addr, "--agent", "a")
	if r.code != exitForeign || r.out != body || r.err != "" {
		t.Errorf("code %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
}

func TestCallGivesATransportErrorWithCodeFour(t *testing.T) {
	f := startFar(t, func(r *carriage.Request) { _ = r.Refuse(bridge.CodeSafetyPolicy, "not on Sundays") })
	r := trestle(t, getTask, "call", "--to", f.addr, "--agent", "a")
	if r.code != exitTransport || r.out != "" || !strings.Contains(r.err, "transport error 5 SafetyPolicy: not on Sundays") {
		t.Errorf("code %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
}

// What a peer says cannot pass for a line of ours, nor steer the terminal.
func TestCallShowsAPeersWordsAsText(t *testing.T) {
	f := startFar(t, func(r *carriage.Request) {
		_ = r.Refuse(bridge.CodeNotDelivered, "a\x1b[2J\x9bb\r\ntrestle: all is well\u202e")
	})
	r := trestle(t, getTask, "call", "--to", f.addr, "--agent", "a")
	if want := "trestle: transport error 4 NotDelivered: a?[2J?b??trestle: all is well?\n"; r.code != exitTransport || strings.ReplaceAll(r.err, "\ufffd", "?") != want {
		t.Errorf("code %d, stderr %q", r.code, r.err)
	}
}

func TestCallThatReachesNobodyIsNotDelivered(t *testing.T) {
	silent := startFar(t, func(r *carriage.Request) { r.Retain() })
	leaving := startFar(t, func(r *carriage.Request) {
		r.Retain()
		r.Association().Close(0, "")
	})
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"nobody listens":          {[]string{"--to", gone.Addr().String()}, "refused"},
		"another key":             {[]string{"--to", silent.addr, "--pin", strings.Repeat("ab", 32)}, "not allowed"},
		"no answer in time":       {[]string{"--to", silent.addr, "--timeout", "1s"}, "outcome unknown"},
		"association ends":        {[]string{"--to", leaving.addr}, "outcome unknown"},
		"raw TCP beyond loopback": {[]string{"--to", "192.0.2.1:7447", "--transport", "tcp", "--timeout", "100ms"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := trestle(t, getTask, append([]string{"call", "--agent", "a"}, tc.args...)...)
			if r.code != exitTransport || r.out != "" || !strings.Contains(r.err, "transport error 4 NotDelivered") || !strings.Contains(r.err, tc.says) {
				t.Errorf("code %d, stdout %q, stderr %q; want %q", r.code, r.out, r.err, tc.says)
			}
		})
	}
}

func TestCallHelpNamesEveryExitCode(t *testing.T) {
	r := trestle(t, "", "call", "--help")
	for code := exitOK; code <= exitTransport; code++ {
		if !regexp.MustCompile(fmt.Sprintf(`(?m)^ +%d  \w`, code)).MatchString(r.out) {
			t.Errorf("%d is not in the help", code)
		}
	}
}

func TestCallLabelsAsAsked(t *testing.T) {
	f := startFar(t, respond(`{"jsonrpc":"2.0","id":1,"result":null}`))
	unknown := `{"jsonrpc":"2.0","id":1,"method":"tasks/frobnicate"}`
	for _, tc := range []struct{ message, label, want string }{
		{getTask, "", "read_only"},
		{unknown, "", "destructive"},
		{unknown, "idempotent_write", "idempotent_write"},
		{getTask, "destructive", "destructive"},
		{getTask, "none", "none"},
	} {
		args := []string{"call", "--to", f.addr, "--agent", "a"}
		if tc.label != "" {
			args = append(args, "--label", tc.label)
		}
		if r := trestle(t, tc.message, args...); r.code != exitOK {
			t.Errorf("--label %q: code %d: %s", tc.label, r.code, r.err)
		}
		if got, _ := f.last(); got.label != tc.want {
			t.Errorf("--label %q of %s: arrived as %s, want %s", tc.label, tc.message, got.label, tc.want)
		}
	}
}

func TestCallSendsANotificationAndSaysNothing(t *testing.T) {
	f := startFar(t, nil)
	note := `{"jsonrpc":"2.0","method":"tasks/note","params":{"requestId":0}}`
	if r := trestle(t, note, "call", "--to", f.addr, "--agent", "a"); r != (result{}) {
		t.Errorf("%+v", r)
	}
	select {
	case got := <-f.notes:
		if got != note {
			t.Errorf("arrived as %q", got)
		}
	case <-time.After(5 * time.Second):
		t.Error("the notification did not arrive")
	}
}

func TestCallAsksForACardWithoutAMessage(t *testing.T) {
	card := "{\"name\":\"a\",\"url\":\"x\\u002fy\"}\n"
	f := startFar(t, respond(card))
	r := trestle(t, "", "call", "--to", f.addr, "--agent", "a", "--method", "agent/getCard")
	if r.code != exitOK || r.out != card {
		t.Errorf("code %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	if got, _ := f.last(); got.method != "agent/getCard" || got.foreign != "" || got.label != "read_only" {
		t.Errorf("arrived as %+v", got)
	}
}

func TestCallCarriesAMessageLargerThanTheFloor(t *testing.T) {
	big := strings.Repeat("x", 2<<20)
	f := startFar(t, respond(`{"jsonrpc":"2.0","id":1,"result":"`+big+`"}`))
	request := `{"jsonrpc":"2.0","id":1,"method":"message/send","params":"` + big + `"}`
	r := trestle(t, request, "call", "--to", f.addr, "--agent", "a")
	if r.code != exitOK || len(r.out) < len(big) {
		t.Errorf("code %d, %d octets on stdout, stderr %q", r.code, len(r.out), r.err)
	}
	if got, _ := f.last(); got.foreign != request {
		t.Errorf("%d octets arrived of %d", len(got.foreign), len(request))
	}
}

// A reply may have as much as a frame of 16 MiB holds, and not an octet more; nor may
// a message.
func TestCallTakesRepliesUpToAFrameOf16MiB(t *testing.T) {
	var more atomic.Int32
	f := startFar(t, func(r *carriage.Request) {
		m := bridge.Message{Kind: bridge.KindResponse, Protocol: r.Protocol(), Content: r.Content(), Corr: r.Corr()}
		const head, tail = `{"jsonrpc":"2.0","id":1,"result":"`, `"}`
		room := 16<<20 - wire.HeaderLen - wire.TagLen - m.Size() - len(head) - len(tail)
		_ = r.Respond([]byte(head + strings.Repeat("x", room+int(more.Load())) + tail))
	})
	r := trestle(t, getTask, "call", "--to", f.addr, "--agent", "a")
	if r.code != exitOK || len(r.out) < 16<<20-200 || !strings.HasSuffix(r.out, `x"}`) {
		t.Errorf("code %d, %d octets on stdout, stderr %q", r.code, len(r.out), r.err)
	}
	more.Store(1)
	r = trestle(t, getTask, "call", "--to", f.addr, "--agent", "a")
	if r.code != exitTransport || r.out != "" || !strings.Contains(r.err, "transport error 4 NotDelivered") || !strings.Contains(r.err, "outcome unknown") {
		t.Errorf("one octet more: code %d, %d octets on stdout, stderr %q", r.code, len(r.out), r.err)
	}
	message := strings.Replace(getTask, `"t"`, `"`+strings.Repeat("t", 16<<20)+`"`, 1)
	r = trestle(t, message, "call", "--to", f.addr, "--agent", "a")
	if _, n := f.last(); r.code != exitUsage || r.out != "" || n != 2 {
		t.Errorf("too long a message: code %d, stderr %q, %d requests", r.code, r.err, n)
	}
}

func TestCallRefusesWhatIsNoRequestBeforeDialling(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "no.pem")
	for name, tc := range map[string]struct {
		stdin string
		args  []string
		code  int
		says  string
	}{
		"nothing":       {"", nil, exitUsage, "empty"},
		"no JSON":       {"hello", nil, exitUsage, "no JSON-RPC message"},
		"a batch":       {"[" + getTask + "]", nil, exitUsage, "no JSON-RPC message"},
		"a reply":       {`{"jsonrpc":"2.0","id":1,"result":1}`, nil, exitUsage, "a JSON-RPC reply"},
		"another name":  {getTask, []string{"--method", "tasks/cancel"}, exitUsage, "--method"},
		"unary, empty":  {"", []string{"--method", "tasks/get"}, exitUsage, "empty"},
		"bad label":     {getTask, []string{"--label", "harmless"}, exitUsage, "--label"},
		"bad pin":       {getTask, []string{"--pin", "xyz"}, exitUsage, "--pin"},
		"bad address":   {getTask, []string{"--to", "nowhere"}, exitUsage, "--to"},
		"bad agent":     {getTask, []string{"--agent", "No Such"}, exitUsage, "--agent"},
		"bad transport": {getTask, []string{"--transport", "pigeon"}, exitUsage, "--transport"},
		"bad timeout":   {getTask, []string{"--timeout", "-1s"}, exitUsage, "--timeout"},
		"bad log level": {getTask, []string{"--log-level", "loud"}, exitUsage, "--log-level"},
		"no such key":   {getTask, []string{"--identity", missing}, exitFailure, missing},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"call", "--to", "127.0.0.1:1", "--agent", "a"}, tc.args...)
			if r := trestle(t, tc.stdin, args...); r.code != tc.code || r.out != "" || !strings.Contains(r.err, tc.says) {
				t.Errorf("code %d, stdout %q, stderr %q; want code %d and %q", r.code, r.out, r.err, tc.code, tc.says)
			}
		})
	}
}
