package main

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// post sends one message to an agent through the HTTP edge.
func post(url, message string) (status int, body string, err error) {
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
	resp, err := client.Post(url, "application/json", strings.NewReader(message))
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	octets, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(octets), err
}

func (p *place) post(agent, message string) (int, string) {
	p.t.Helper()
	status, body, err := post("http://"+p.http+"/agents/"+agent, message)
	if err != nil {
		p.t.Fatal(err)
	}
	return status, body
}

func (p *place) get(path string) (int, string) {
	p.t.Helper()
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + p.http + path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	octets, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, string(octets)
}

const hello = `{"jsonrpc":"2.0","id":"h","method":"message/send","params":{"message":{"kind":"message","messageId":"m1","role":"user","parts":[{"kind":"text","text":"hello, relay"}]}}}`

func TestServeWithoutFlagsButPortsBringsAnEchoAgent(t *testing.T) {
	p := serving(t, start(t, ports()...))
	if status, body := p.post("echo", hello); status != 200 || !strings.Contains(body, "hello, relay") || !strings.Contains(body, `"id":"h"`) {
		t.Errorf("echo: %d %s", status, body)
	}
	if status, body := p.get("/agents/echo/.well-known/agent-card.json"); status != 200 || !strings.Contains(body, `"echo"`) {
		t.Errorf("card: %d %s", status, body)
	}
	if status, _ := p.get("/healthz"); status != 200 {
		t.Errorf("healthz: %d", status)
	}
	r := trestle(t, hello, "call", "--to", p.npamp, "--pin", p.key, "--agent", "echo")
	if r.code != exitOK || !strings.Contains(r.out, "hello, relay") {
		t.Errorf("call: %+v", r)
	}
	p.stop()
	if code := p.wait(); code != exitOK {
		t.Errorf("code %d: %s", code, p.errOut)
	}
	// Exactly one line on stdout, whatever happened since.
	if out := p.out.String(); strings.Count(out, "\n") != 1 || !strings.HasSuffix(out, "\n") {
		t.Errorf("stdout: %q", out)
	}
	if !strings.Contains(p.errOut.String(), "level=INFO") {
		t.Errorf("no log on stderr: %q", p.errOut)
	}
}

func TestServeOverRawTCPAndWithoutTheDemo(t *testing.T) {
	p := serving(t, start(t, ports("--transport", "tcp", "--no-demo", "--log-json", "--loops", "1")...))
	if status, _ := p.post("echo", hello); status != 404 {
		t.Errorf("echo: %d", status)
	}
	r := trestle(t, hello, "call", "--transport", "tcp", "--to", p.npamp, "--agent", "echo")
	if r.code != exitTransport || !strings.Contains(r.err, "transport error 4 NotDelivered") {
		t.Errorf("call: %+v", r)
	}
	p.stop()
	p.wait()
	for line := range strings.Lines(p.errOut.String()) {
		if !strings.HasPrefix(line, "{") {
			t.Errorf("not JSON: %q", line)
		}
	}
}

func TestServeHasTheIdentityAndLetsInWhomItIsTold(t *testing.T) {
	dir := t.TempDir()
	relayKey, friend := filepath.Join(dir, "relay.pem"), filepath.Join(dir, "friend.pem")
	key := strings.TrimSpace(trestle(t, "", "keygen", "--out", relayKey).out)
	friendKey := trestle(t, "", "keygen", "--out", friend).out
	allowed := filepath.Join(dir, "peers.txt")
	if err := os.WriteFile(allowed, []byte("# friends\n"+friendKey), 0o600); err != nil {
		t.Fatal(err)
	}
	p := serving(t, start(t, ports("--identity", relayKey, "--allow-peers", allowed)...))
	if p.key != key {
		t.Errorf("serves as %s, want %s", p.key, key)
	}
	if r := trestle(t, hello, "call", "--to", p.npamp, "--pin", key, "--identity", friend, "--agent", "echo"); r.code != exitOK {
		t.Errorf("a friend: %+v", r)
	}
	if r := trestle(t, hello, "call", "--to", p.npamp, "--pin", key, "--agent", "echo", "--timeout", "10s"); r.code != exitTransport {
		t.Errorf("a stranger: %+v", r)
	}
}

func TestServeReportsWhatItCanNotDo(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, []byte("not a key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	taken := serving(t, start(t, ports("--no-demo")...))
	for name, tc := range map[string]struct {
		args []string
		code int
		says string
	}{
		"bad address":          {[]string{"serve", "--listen", "nowhere"}, exitUsage, "--listen"},
		"bad HTTP address":     {[]string{"serve", "--http", "nowhere"}, exitUsage, "--http"},
		"bad transport":        {ports("--transport", "pigeon"), exitUsage, "--transport"},
		"bad log level":        {ports("--log-level", "loud"), exitUsage, "--log-level"},
		"bad loops":            {ports("--loops", "-1"), exitUsage, "--loops"},
		"bad drain":            {ports("--drain", "-1s"), exitUsage, "--drain"},
		"half a certificate":   {ports("--tls-cert", bad), exitUsage, "--tls-key"},
		"bad certificate":      {ports("--tls-cert", bad, "--tls-key", bad), exitFailure, "tls"},
		"bad identity":         {ports("--identity", bad), exitFailure, bad},
		"bad peers":            {ports("--allow-peers", bad), exitFailure, bad},
		"no peers":             {ports("--allow-peers", filepath.Join(dir, "none")), exitFailure, "none"},
		"port in use":          {[]string{"serve", "--listen", taken.npamp, "--http", "127.0.0.1:0"}, exitFailure, "in use"},
		"HTTP port in use":     {[]string{"serve", "--listen", "127.0.0.1:0", "--http", taken.http}, exitFailure, "in use"},
		"raw TCP for all":      {[]string{"serve", "--transport", "tcp", "--listen", "0.0.0.0:0", "--http", "127.0.0.1:0"}, exitFailure, "non-loopback"},
		"HTTP for all, openly": {[]string{"serve", "--listen", "127.0.0.1:0", "--http", "0.0.0.0:0"}, exitFailure, "authentication"},
	} {
		t.Run(name, func(t *testing.T) {
			if r := trestle(t, "", tc.args...); r.code != tc.code || r.out != "" || !strings.Contains(r.err, tc.says) {
				t.Errorf("code %d, stdout %q, stderr %q; want code %d and %q", r.code, r.out, r.err, tc.code, tc.says)
			}
		})
	}
}

func TestServeDrainsOnASignalAndExitsWithZero(t *testing.T) {
	for _, s := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		p := serving(t, startProcess(t, ports()...))
		p.signal(s)
		if code := p.wait(); code != exitOK {
			t.Errorf("%v: code %d: %s", s, code, p.errOut)
		}
	}
}

// busy brings a relay and an agent into the state with one request under way.
// What it returns lets the agent answer, and waits for the caller's reply.
func busy(t *testing.T, p *place) (answer func(), reply func() (int, string)) {
	t.Helper()
	here, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	answer = func() { once.Do(func() { close(release) }) }
	url := upstreamAgent(t, func(w http.ResponseWriter, r *http.Request) {
		close(here)
		<-release
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":"h","result":"late"}`)
	})
	a := start(t, "agent", "--name", "slow", "--to", p.npamp, "--upstream", url)
	t.Cleanup(answer) // before the agent is stopped, which would wait for it
	a.line()
	type outcome struct {
		status int
		body   string
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		status, body, err := post("http://"+p.http+"/agents/slow", hello)
		done <- outcome{status, body, err}
	}()
	select {
	case <-here:
	case <-time.After(patience):
		t.Fatalf("the request did not reach the agent: %s", p.errOut)
	}
	return answer, func() (int, string) {
		t.Helper()
		select {
		case o := <-done:
			if o.err != nil {
				t.Fatal(o.err)
			}
			return o.status, o.body
		case <-time.After(patience):
			t.Fatal("no reply")
			return 0, ""
		}
	}
}

func TestServeAnswersWhatIsUnderWayBeforeItEnds(t *testing.T) {
	p := serving(t, start(t, ports("--no-demo")...))
	answer, reply := busy(t, p)
	p.stop()
	p.says("msg=draining at_most=")
	// Nothing new, while the old one goes on.
	for {
		status, _, err := post("http://"+p.http+"/agents/slow", hello)
		if err != nil || status == 503 {
			break
		}
		t.Fatalf("a new request while draining: %d", status)
	}
	answer()
	if status, body := reply(); status != 200 || body != `{"jsonrpc":"2.0","id":"h","result":"late"}` {
		t.Errorf("%d %s", status, body)
	}
	if code := p.wait(); code != exitOK {
		t.Errorf("code %d: %s", code, p.errOut)
	}
}

func TestServeCutsWhatIsUnderWayAtTheDeadline(t *testing.T) {
	p := serving(t, start(t, ports("--no-demo", "--drain", "100ms")...))
	_, reply := busy(t, p)
	p.stop()
	if status, body := reply(); status < 500 || !strings.Contains(body, "NotDelivered") {
		t.Errorf("%d %s, want a definite failure", status, body)
	}
	if code := p.wait(); code != exitOK {
		t.Errorf("code %d: %s", code, p.errOut)
	}
}

func TestASecondSignalEndsServeOnTheSpot(t *testing.T) {
	p := serving(t, startProcess(t, ports("--no-demo", "--drain", "1h")...))
	_, _ = busy(t, p)
	p.signal(syscall.SIGTERM)
	p.says("msg=draining at_most=")
	// The log line comes a moment before or after the default effect is back.
	for {
		p.signal(syscall.SIGTERM)
		select {
		case <-p.ended:
		case <-time.After(50 * time.Millisecond):
			continue
		}
		break
	}
	if p.code == exitOK {
		t.Errorf("code 0: it seems to have drained: %s", p.errOut)
	}
}

func TestAFailedStandardOutputEndsServe(t *testing.T) {
	broken := writerFunc(func([]byte) (int, error) { return 0, errors.New("nobody reads") })
	errOut := newOutput()
	if code := run(t.Context(), append([]string{"trestle"}, ports("--no-demo")...), strings.NewReader(""), broken, errOut); code != exitFailure || !strings.Contains(errOut.String(), "nobody reads") {
		t.Errorf("code %d: %s", code, errOut)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
