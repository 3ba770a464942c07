package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const helloRequest = `{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"hello"}]}}}`

// Every profile works from one command to the other, and nothing below the one
// asked for is accepted.
func TestProfilesEndToEnd(t *testing.T) {
	dir := t.TempDir()
	id := filepath.Join(dir, "relay.pem")
	if r := trestle(t, "", "keygen", "--algorithm", "ml-dsa-87", "--out", id); r.code != exitOK {
		t.Fatalf("keygen: %+v", r)
	}
	handle := strings.TrimSpace(trestle(t, "", "keygen", "--handle", "--show", id).out)
	if len(handle) < 50 || handle[0] != 'b' {
		t.Fatalf("%q is no handle", handle)
	}
	upstream := upstreamAgent(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	})
	for _, c := range []struct {
		serve  []string
		accept []string
		refuse []string
	}{
		{nil, []string{"standard", "high"}, nil},
		{[]string{"--profile", "high"}, []string{"high"}, []string{"standard", "sovereign"}},
		{[]string{"--profile", "sovereign", "--identity", id}, []string{"sovereign"}, []string{"standard", "high"}},
	} {
		r := start(t, ports(c.serve...)...)
		line := r.line()
		_, rest, ok := strings.Cut(line, "npamp=")
		if !ok {
			t.Fatalf("%q is no ready line", line)
		}
		addr, _, _ := strings.Cut(rest, " ")
		for _, p := range c.accept {
			args := []string{"call", "--to", addr, "--agent", "echo", "--profile", p}
			if len(c.serve) > 2 {
				args = append(args, "--pin", handle)
			}
			if got := trestle(t, helloRequest, args...); got.code != exitOK || !strings.Contains(got.out, `"hello"`) {
				t.Errorf("serve %v, call --profile %s: %+v", c.serve, p, got)
			}
		}
		// An agent of its own, at the relay's profile, which trusts it on first use.
		profile := "standard"
		if len(c.serve) > 0 {
			profile = c.serve[1]
		}
		agent := start(t, "agent", "--name", "own", "--to", addr, "--profile", profile,
			"--known-peers", filepath.Join(dir, profile+".known"), "--upstream", upstream)
		if line := agent.line(); !strings.HasPrefix(line, "ready agent=own peer=") {
			t.Errorf("serve %v, agent --profile %s: %q", c.serve, profile, line)
		}
		if got := trestle(t, helloRequest, "call", "--to", addr, "--agent", "own", "--profile", profile); got.code != exitOK {
			t.Errorf("serve %v, call through agent --profile %s: %+v", c.serve, profile, got)
		}
		for _, p := range c.refuse {
			if got := trestle(t, helloRequest, "call", "--to", addr, "--agent", "echo", "--profile", p); got.code != exitTransport || got.out != "" {
				t.Errorf("serve %v, call --profile %s: %+v", c.serve, p, got)
			}
		}
		r.stop()
		if code := r.wait(); code != exitOK {
			t.Errorf("serve %v ended with code %d", c.serve, code)
		}
	}
}

// Trust on first use: the first key is written down, another one is refused.
func TestKnownPeers(t *testing.T) {
	known := filepath.Join(t.TempDir(), "known")
	p := serving(t, start(t, ports()...))
	args := []string{"call", "--to", p.npamp, "--agent", "echo", "--known-peers", known}
	for range 2 {
		if got := trestle(t, helloRequest, args...); got.code != exitOK {
			t.Fatalf("%+v", got)
		}
	}
	text, err := os.ReadFile(known)
	if err != nil || strings.Count(string(text), "\n") != 1 || !strings.HasPrefix(string(text), p.npamp+" b") {
		t.Fatalf("%q, %v", text, err)
	}
	other := serving(t, start(t, ports()...))
	if err := os.WriteFile(known, []byte(strings.Replace(string(text), p.npamp, other.npamp, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	got := trestle(t, helloRequest, "call", "--to", other.npamp, "--agent", "echo", "--known-peers", known)
	if got.code != exitTransport || !strings.Contains(got.err, "known by another key") {
		t.Errorf("another key under a known address: %+v", got)
	}
	if got := trestle(t, helloRequest, append(args, "--pin", p.key)...); got.code != exitUsage {
		t.Errorf("--pin with --known-peers: %+v", got)
	}
}
