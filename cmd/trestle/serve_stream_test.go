package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// subscribeTo asks an agent for a stream through the HTTP edge.
func (p *place) subscribeTo(agent string) *http.Response {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	p.t.Cleanup(cancel)
	message := strings.Replace(hello, "message/send", "message/stream", 1)
	request, err := http.NewRequestWithContext(ctx, "POST", "http://"+p.http+"/agents/"+agent, strings.NewReader(message))
	if err != nil {
		p.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(request)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// The demo agent streams, to a caller over HTTP and to one over N-PAMP.
func TestServeStreamsFromTheEchoAgent(t *testing.T) {
	p := serving(t, start(t, ports()...))
	resp := p.subscribeTo("echo")
	octets, err := io.ReadAll(resp.Body)
	if body := string(octets); err != nil || resp.Header.Get("Content-Type") != "text/event-stream" ||
		strings.Count(body, "data: {") != 5 || strings.Count(body, "\n\n") != 5 || !strings.Contains(body, "hello,") || !strings.Contains(body, `"final":true`) {
		t.Errorf("%v, %s, %v", resp.Header, body, err)
	}
	r := trestle(t, strings.Replace(hello, "message/send", "message/stream", 1), "call", "--to", p.npamp, "--agent", "echo", "--frames")
	if r.code != exitOK || strings.Count(r.out, "\n") != 10 || !strings.Contains(r.out, `"final":true`) {
		t.Errorf("%+v", r)
	}
}

func TestServeKeepsStreamsAlive(t *testing.T) {
	url := upstreamAgent(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	p := serving(t, start(t, ports("--no-demo", "--keep-alive", "20ms")...))
	start(t, "agent", "--name", "a", "--to", p.npamp, "--upstream", url).line()
	resp := p.subscribeTo("a")
	in := bufio.NewReader(resp.Body)
	for range 3 {
		if line, err := in.ReadString('\n'); err != nil || line != ": keep-alive\n" {
			t.Fatalf("%q, %v", line, err)
		}
		_, _ = in.ReadString('\n')
	}
	resp.Body.Close()
	for _, args := range [][]string{ports("--keep-alive", "-1s"), {"agent", "--name", "a", "--to", "127.0.0.1:1", "--upstream", "http://127.0.0.1:1", "--stream-idle", "-1s"}} {
		if r := trestle(t, "", args...); r.code != exitUsage {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

func TestAgentGivesASilentStreamUpWhenToldSo(t *testing.T) {
	left := make(chan struct{})
	url := upstreamAgent(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(left)
	})
	p := serving(t, start(t, ports("--no-demo")...))
	start(t, "agent", "--name", "a", "--to", p.npamp, "--upstream", url, "--stream-idle", "50ms").line()
	status, body := p.post("a", strings.Replace(hello, "message/send", "message/stream", 1))
	if status != 502 || !strings.Contains(body, "silent for too long") {
		t.Errorf("%d %s", status, body)
	}
	<-left
}

// L27: a relay is told to end with a unary call of two seconds and an endless
// stream under way, and five seconds for the drain.
func TestServeDrainsWithAnEndlessStream(t *testing.T) {
	const takes, drain = 2 * time.Second, 5 * time.Second
	inside := make(chan struct{}, 2)
	url := upstreamAgent(t, func(w http.ResponseWriter, r *http.Request) {
		octets, _ := io.ReadAll(r.Body)
		if strings.Contains(string(octets), "message/send") {
			inside <- struct{}{}
			<-time.After(takes)
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":"h","result":"late"}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		inside <- struct{}{}
		for {
			if _, err := io.WriteString(w, `data: {"jsonrpc":"2.0","id":"h","result":{"kind":"artifact-update"}}`+"\n\n"); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			select {
			case <-time.After(10 * time.Millisecond):
			case <-r.Context().Done():
				return
			}
		}
	})
	p := serving(t, startProcess(t, ports("--no-demo", "--drain", drain.String())...))
	start(t, "agent", "--name", "slow", "--to", p.npamp, "--upstream", url, "--drain", "0s").line()
	resp := p.subscribeTo("slow")
	<-inside
	type outcome struct {
		status int
		body   string
		err    error
	}
	answered := make(chan outcome, 1)
	go func() {
		status, body, err := post("http://"+p.http+"/agents/slow", hello)
		answered <- outcome{status, body, err}
	}()
	<-inside
	began := time.Now()
	p.signal(syscall.SIGTERM)
	p.says("draining")
	// The line is written just before it begins.
	for status := 0; status != 503; {
		if status, _ = p.get("/healthz"); time.Since(began) > takes {
			t.Fatalf("/healthz says %d", status)
		}
	}
	octets, err := io.ReadAll(resp.Body)
	if err == nil || !strings.HasSuffix(string(octets), "\n\n") || strings.Contains(string(octets), "final") {
		t.Errorf("the endless stream has ended with %.200q, %v", octets[max(0, len(octets)-200):], err)
	}
	if o := <-answered; o.status != 200 || !strings.Contains(o.body, "late") || o.err != nil {
		t.Errorf("the unary call: %+v", o)
	}
	if code := p.wait(); code != exitOK {
		t.Errorf("code %d: %s", code, p.errOut)
	}
	if took := time.Since(began); took < takes || took > drain {
		t.Errorf("ended after %v", took)
	}
}

// L27: a second signal does not wait for an endless stream.
func TestASecondSignalEndsServeWithAnEndlessStream(t *testing.T) {
	url := upstreamAgent(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	p := serving(t, startProcess(t, ports("--no-demo", "--drain", "1h")...))
	start(t, "agent", "--name", "a", "--to", p.npamp, "--upstream", url, "--drain", "0s").line()
	resp := p.subscribeTo("a")
	p.signal(syscall.SIGTERM)
	p.says("draining")
	select {
	case <-p.ended:
		t.Errorf("ended with the stream under way, code %d", p.code)
	case <-time.After(300 * time.Millisecond):
	}
	began := time.Now()
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code == exitOK {
		t.Errorf("code 0: it seems to have drained: %s", p.errOut)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("ended after %v", took)
	}
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the stream has ended as it should")
	}
}
