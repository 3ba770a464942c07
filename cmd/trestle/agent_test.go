package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// upstreamAgent is a plain HTTP agent.
func upstreamAgent(t *testing.T, h http.HandlerFunc) (url string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL + "/a2a"
}

func TestAgentCarriesOctetsExactlyBetweenCallersAndAPlainHTTPAgent(t *testing.T) {
	request := " {\"z\":1.10,\"jsonrpc\":\"2.0\", \"params\":{\"h\":\"<b>&\\u003c\\u2028é\",\"n\":123456789012345678901234567890},\"method\":\"message/send\",\"id\":\"q\\\"\\\\\"}\r\n\t"
	response := "\t{\"z\":1.10,\"jsonrpc\":\"2.0\", \"result\":{\"h\":\"<b>&\\u003c\\u2028é\",\"x\":1E+2,\"e\":{},\"n\":null},\"id\":\"q\\\"\\\\\"}  \n"
	var mu sync.Mutex
	var got []string
	var credentials string
	url := upstreamAgent(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		got, credentials = append(got, string(body)), r.Header.Get("Authorization")
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		_, _ = io.WriteString(w, response)
	})
	fields := filepath.Join(t.TempDir(), "fields")
	if err := os.WriteFile(fields, []byte("Authorization: Bearer of-the-route"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := serving(t, start(t, ports("--no-demo")...))
	a := start(t, "agent", "--name", "plain.1", "--to", p.npamp, "--pin", p.key, "--upstream", url, "--header-file", fields)
	line := a.line()
	if m := readyAgent.FindStringSubmatch(line); m == nil || m[1] != "plain.1" || m[2] != p.key {
		t.Fatalf("%q is not the ready line for plain.1 at %s", line, p.key)
	}
	if status, body := p.post("plain.1", request); status != 200 || body != response {
		t.Errorf("through the edge: %d %q", status, body)
	}
	if r := trestle(t, request, "call", "--to", p.npamp, "--agent", "plain.1"); r.code != exitOK || r.out != response {
		t.Errorf("through call: %+v", r)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(got) != 2 || got[0] != request || got[1] != request || credentials != "Bearer of-the-route" {
		t.Errorf("the agent got %q with %q", got, credentials)
	}
	a.stop()
	if code := a.wait(); code != exitOK || strings.Count(a.out.String(), "\n") != 1 {
		t.Errorf("code %d, stdout %q, stderr %q", code, a.out, a.errOut)
	}
}

// Callers of an agent that dies with their requests under way all know within a
// second, none takes it for success, and starting the agent again suffices.
func TestKillingTheAgentProcessLeavesNoCallerWaiting(t *testing.T) {
	const callers = 20
	var arrived sync.WaitGroup
	arrived.Add(callers)
	release := make(chan struct{})
	var once sync.Once
	t.Cleanup(func() { once.Do(func() { close(release) }) })
	url := upstreamAgent(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		default:
			arrived.Done()
			<-release
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":"h","result":"alive"}`)
	})
	p := serving(t, start(t, ports("--no-demo")...))
	identity := filepath.Join(t.TempDir(), "agent.pem")
	if r := trestle(t, "", "keygen", "--out", identity); r.code != exitOK {
		t.Fatal(r.err)
	}
	args := []string{"agent", "--name", "mortal", "--to", p.npamp, "--identity", identity, "--upstream", url}
	a := startProcess(t, args...)
	a.line()

	type outcome struct {
		status int
		body   string
		err    error
		at     time.Time
	}
	outcomes := make(chan outcome, callers)
	for range callers {
		go func() {
			status, body, err := post("http://"+p.http+"/agents/mortal", hello)
			outcomes <- outcome{status, body, err, time.Now()}
		}()
	}
	arrived.Wait()
	killed := time.Now()
	a.kill()
	for range callers {
		select {
		case o := <-outcomes:
			if o.err != nil || o.status != 502 || !strings.Contains(o.body, "NotDelivered") {
				t.Errorf("%d %s %v, want 502 NotDelivered", o.status, o.body, o.err)
			}
			if took := o.at.Sub(killed); took > time.Second {
				t.Errorf("a caller knew only after %v", took)
			}
		case <-time.After(patience):
			t.Fatal("a caller waits")
		}
	}
	a.wait()
	once.Do(func() { close(release) })

	b := startProcess(t, args...)
	b.line()
	if status, body := p.post("mortal", hello); status != 200 || !strings.Contains(body, "alive") {
		t.Errorf("after the restart: %d %s", status, body)
	}
}

func TestAgentDialsAgainUntilItsRelayIsThere(t *testing.T) {
	url := upstreamAgent(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":"h","result":"here"}`)
	})
	first := serving(t, start(t, ports("--no-demo")...))
	a := start(t, "agent", "--name", "patient", "--to", first.npamp, "--upstream", url)
	if line := a.line(); !strings.HasSuffix(line, first.key) {
		t.Errorf("ready line %q at %s", line, first.key)
	}
	first.stop()
	first.wait()
	second := serving(t, start(t, "serve", "--listen", first.npamp, "--http", "127.0.0.1:0", "--no-demo"))
	// It says again where it stands, as soon as it stands there.
	if line := a.line(); !strings.HasSuffix(line, second.key) {
		t.Errorf("ready line %q at %s", line, second.key)
	}
	if status, body := second.post("patient", hello); status != 200 || !strings.Contains(body, "here") {
		t.Errorf("%d %s", status, body)
	}
}

// An agent that is told which relay to trust has nothing to do with another one: it is
// never ready there, and nothing that comes from there gets to the upstream.
func TestAgentWithAnotherPinNeverServes(t *testing.T) {
	var asked atomic.Int32
	url := upstreamAgent(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":"h","result":"here"}`)
	})
	p := serving(t, start(t, ports("--no-demo")...))
	a := start(t, "agent", "--name", "wary", "--to", p.npamp, "--pin", strings.Repeat("ab", 32), "--upstream", url)
	for range 2 { // it goes on trying
		a.says("not allowed")
	}
	if status, body := p.post("wary", hello); status != 404 {
		t.Errorf("%d %s, want no such agent", status, body)
	}
	if r := trestle(t, getTask, "call", "--to", p.npamp, "--agent", "wary"); r.code != exitTransport || r.out != "" {
		t.Errorf("through call: %+v", r)
	}
	a.stop()
	if code := a.wait(); code != exitOK || a.out.String() != "" {
		t.Errorf("code %d, stdout %q, stderr %q", code, a.out, a.errOut)
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the upstream was asked %d times", n)
	}
}

// A file of credentials that others can read is refused, as an identity's is.
func TestAgentRefusesAHeaderFileOpenToOthers(t *testing.T) {
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620} {
		open := file(t, "Authorization: Bearer x\n")
		if err := os.Chmod(open, mode); err != nil {
			t.Fatal(err)
		}
		a := start(t, "agent", "--name", "a", "--to", "127.0.0.1:1", "--upstream", "http://127.0.0.1:1/", "--header-file", open)
		if code := a.wait(); code != exitFailure || !strings.Contains(a.errOut.String(), fmt.Sprintf("has mode %04o", mode)) {
			t.Errorf("code %d, stderr %q", code, a.errOut)
		}
	}
}

func TestAgentRefusesAWrongCommandLine(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, []byte("no field\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		code int
		says string
	}{
		"bad name":     {[]string{"--name", "No Such"}, exitUsage, "--name"},
		"bad address":  {[]string{"--to", "nowhere"}, exitUsage, "--to"},
		"bad pin":      {[]string{"--pin", "00"}, exitUsage, "--pin"},
		"bad upstream": {[]string{"--upstream", "ftp://x/"}, exitUsage, "--upstream"},
		"bad card":     {[]string{"--card-url", "x"}, exitUsage, "--card-url"},
		"bad timeout":  {[]string{"--timeout", "0s"}, exitUsage, "--timeout"},
		"bad drain":    {[]string{"--drain", "-1s"}, exitUsage, "--drain"},
		"bad fields":   {[]string{"--header-file", bad}, exitUsage, "--header-file"},
		"own field":    {[]string{"--header-file", file(t, "Content-Length: 7\n")}, exitUsage, "Content-Length"},
		"no fields":    {[]string{"--header-file", filepath.Join(dir, "none")}, exitFailure, "none"},
		"bad identity": {[]string{"--identity", bad}, exitFailure, bad},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"agent", "--name", "a", "--to", "127.0.0.1:1", "--upstream", "http://127.0.0.1:1/"}, tc.args...)
			if r := trestle(t, "", args...); r.code != tc.code || r.out != "" || !strings.Contains(r.err, tc.says) {
				t.Errorf("code %d, stdout %q, stderr %q; want code %d and %q", r.code, r.out, r.err, tc.code, tc.says)
			}
		})
	}
}

// file makes a file of the test's own.
func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}
