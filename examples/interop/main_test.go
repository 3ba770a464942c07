package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/trestle-npamp/trestle/internal/nptest"
)

func TestMain(m *testing.M) { nptest.VerifyNoLeaks(m) }

// output collects what a program prints.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func (o *output) wait(t *testing.T, what string) string {
	t.Helper()
	re := regexp.MustCompile(what)
	var got []string
	nptest.Eventually(t, func() bool { got = re.FindStringSubmatch(o.String()); return got != nil }, func() any { return o.String() })
	return got[len(got)-1]
}

// serve runs the echoing side until the test ends, and gives its address, key
// and output.
func serve(t *testing.T, args ...string) (addr, key string, out *output) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out = new(output)
	done := make(chan error, 1)
	go func() { done <- run(ctx, append(args, "--listen", "127.0.0.1:0"), out, io.Discard) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("server: %v\n%s", err, out)
		}
	})
	return out.wait(t, `listening on (\S+),`), out.wait(t, `, key ([0-9a-f]{64})\n`), out
}

// The program talks to itself over both transports, with each suite, with and
// without HELLO, and both sides renew their keys.
func TestEchoWithItself(t *testing.T) {
	for _, transport := range []string{"tls", "tcp"} {
		for _, server := range []string{"--suites=aes", "--suites=chacha", "--hello"} {
			t.Run(transport+server, func(t *testing.T) {
				addr, key, srv := serve(t, "--transport", transport, "--update-key=7", "--ratchet=11", "--rekem=13", server)
				for _, args := range [][]string{
					{"--message", "one frame"},
					{"--size=0"},
					{"--size=1000", "--count=50", "--window=8", "--update-key=3", "--ratchet=5", "--rekem=25", "-v"},
					{"--size=300000", "--count=3"},
					{"--size=900000", "--hello"},
					{"--type=0x7fff", "--pause=1ms", "--count=2"},
				} {
					out := new(output)
					err := run(t.Context(), append(args, "--transport", transport, "--dial", addr, "--pin", key), out, io.Discard)
					if err != nil {
						t.Fatalf("%v: %v\n%s\nserver:\n%s", args, err, out, srv)
					}
					if !strings.Contains(out.String(), "came back as they were sent") {
						t.Errorf("%v: %s", args, out)
					}
					if args[0] == "--size=1000" {
						out.wait(t, `key updates in (\d+) out 16, ratchets in [1-9]\d* out 10,`)
					}
				}
				srv.wait(t, `after 50 frames, (50000) octets`)
			})
		}
	}
}

// A peer without the suite that is offered, or with another key than the pinned
// one, is an error and not a silence.
func TestRefusals(t *testing.T) {
	addr, _, _ := serve(t, "--suites=aes")
	other := strings.Repeat("5a", 32)
	for _, args := range [][]string{{"--suites=chacha"}, {"--pin", other}, {"--transport=tcp"}} {
		if err := run(t.Context(), append(args, "--dial", addr), io.Discard, io.Discard); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"--listen=:1", "--dial=:1"}, {"--dial=:1", "more"}, {"--nonsense"}} {
		if err := run(t.Context(), args, io.Discard, io.Discard); !errors.Is(err, errUsage) {
			t.Errorf("%v: %v", args, err)
		}
	}
	if err := run(t.Context(), []string{"--dial=:1", "--transport=pigeon"}, io.Discard, io.Discard); err == nil {
		t.Error("an unknown transport is taken")
	}
}
