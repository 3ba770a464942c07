package main

import (
	"crypto/sha256"
	"net/http"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/mapping/a2a/card"
	"github.com/trestle-npamp/trestle/profiles"
)

// A signed card crosses two processes as it is, with a number for bindings (D7) and
// without, and its signature verifies at both ends of the way (D24, L31).
func TestSignedCardsCrossTwoProcesses(t *testing.T) {
	octets := []byte("{ \"version\":1.0, \"url\":\"https:\\u002f\\u002fh\",\r\n\"required\":false,\"description\":\"\" }\n")
	key, err := identity.FromSeed(profiles.MLDSA87, sha256.Sum256([]byte("card")))
	if err != nil {
		t.Fatal(err)
	}
	s, err := card.Sign(octets, key, card.Header{KeyID: "k"})
	if err != nil {
		t.Fatal(err)
	}
	if octets, err = card.Attach(octets, s); err != nil {
		t.Fatal(err)
	}
	url := upstreamAgent(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(octets)
	})
	trusted := func(*card.Header) identity.PublicKey { return key.Public() }
	for _, flags := range [][]string{nil, {"--document-binding", "0x40"}} {
		t.Run(strings.Join(flags, "="), func(t *testing.T) {
			p := serving(t, startProcess(t, ports(append(flags, "--no-demo")...)...))
			a := startProcess(t, append([]string{"agent", "--name", "signed", "--to", p.npamp, "--pin", p.key, "--upstream", url}, flags...)...)
			a.line()
			if status, body := p.get("/agents/signed/.well-known/agent-card.json"); status != 200 || body != string(octets) {
				t.Errorf("through the edge: %d %q", status, body)
			} else if _, err := card.VerifyAny([]byte(body), trusted); err != nil {
				t.Errorf("through the edge: %v", err)
			}
			args := append([]string{"call", "--to", p.npamp, "--agent", "signed", "--method", "agent/getCard"}, flags...)
			if r := trestle(t, "", args...); r.code != exitOK || r.out != string(octets) {
				t.Errorf("through call: %+v", r)
			} else if _, err := card.VerifyAny([]byte(r.out), trusted); err != nil {
				t.Errorf("through call: %v", err)
			}
			if flags == nil {
				return
			}
			// Who does not know the number gets the document without its proofs, as what
			// a reader of A2A passes over; who asks for another one is told.
			if r := trestle(t, "", append([]string{"call"}, args[1:len(args)-2]...)...); r.code != exitOK || r.out != string(octets) {
				t.Errorf("without the number: %+v", r)
			}
			if r := trestle(t, "", append(args[:len(args)-1:len(args)-1], "0x41")...); r.code != exitTransport || r.out != "" || !strings.Contains(r.err, "16 BindingMalformed") {
				t.Errorf("with another number: %+v", r)
			}
		})
	}
}

func TestImpossibleDocumentBindings(t *testing.T) {
	for _, text := range []string{"0", "x", "0x10", "0x13", "0x11", "256", "-1"} {
		for _, args := range [][]string{
			ports("--document-binding", text),
			{"agent", "--name", "a", "--to", "127.0.0.1:1", "--upstream", "http://127.0.0.1:1/", "--document-binding", text},
			{"call", "--agent", "a", "--to", "127.0.0.1:1", "--method", "agent/getCard", "--document-binding", text},
		} {
			if r := trestle(t, "", args...); r.code != exitUsage {
				t.Errorf("%v: %+v", args, r)
			}
		}
	}
}
