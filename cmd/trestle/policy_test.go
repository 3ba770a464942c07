package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// --policy refuses over HTTP and over N-PAMP alike, with its reason, and says so in
// the log without what the caller wrote.
func TestServeByPolicy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(file, []byte(`{"default":"deny","reason":"not allowed here","rules":[
		{"decision":"allow","agents":["echo"],"methods":["message/*"],"protocols":["a2a"],"effects":["non_idempotent_write"]},
		{"decision":"allow","effects":["read_only"]}
	]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p := serving(t, start(t, ports("--policy", file)...))
	if status, body := p.post("echo", hello); status != 200 || !strings.Contains(body, "hello, relay") {
		t.Errorf("%d %s", status, body)
	}
	if status, _ := p.get("/agents/echo/.well-known/agent-card.json"); status != 200 {
		t.Errorf("card: %d", status)
	}
	const frobnicate = `{"jsonrpc":"2.0","id":1,"method":"tasks/frobnicate"}`
	if status, body := p.post("echo", frobnicate); status != 403 || !strings.Contains(body, "not allowed here") || !strings.Contains(body, "SafetyPolicy") {
		t.Errorf("%d %s", status, body)
	}
	if r := trestle(t, hello, "call", "--to", p.npamp, "--pin", p.key, "--agent", "echo"); r.code != exitOK || !strings.Contains(r.out, "hello, relay") {
		t.Errorf("%+v", r)
	}
	if r := trestle(t, frobnicate, "call", "--to", p.npamp, "--pin", p.key, "--agent", "echo"); r.code == exitOK || !strings.Contains(r.err, "SafetyPolicy") || !strings.Contains(r.err, "not allowed here") {
		t.Errorf("%+v", r)
	}
	p.stop()
	p.wait()
	if log := p.errOut.String(); strings.Count(log, "refused by policy") != 2 || strings.Contains(log, "frobnicate") {
		t.Errorf("log: %s", log)
	}
}

func TestServeRefusesABadPolicy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.json")
	if r := trestle(t, "", append([]string{"serve", "--policy", file}, ports()[1:]...)...); r.code == exitOK {
		t.Errorf("no file: %+v", r)
	}
	if err := os.WriteFile(file, []byte(`{"default":"allow","rules":[{"decision":"deny","Methods":["*"]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := trestle(t, "", append([]string{"serve", "--policy", file}, ports()[1:]...)...); r.code == exitOK || !strings.Contains(r.err, `"Methods" is unknown`) {
		t.Errorf("a bad file: %+v", r)
	}
}
