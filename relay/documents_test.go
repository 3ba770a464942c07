package relay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/carriage/discovery"
	"github.com/trestle-npamp/trestle/carriage/document"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/mapping/a2a"
	"github.com/trestle-npamp/trestle/mapping/a2a/card"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/relay/upstream"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

var docTags = &bridge.Tags{DocumentBinding: 0x40}

// servedCard is a card that any reformatting would break, signed with both schemes.
func servedCard(t *testing.T, pad int) (octets []byte, keys map[string]identity.PublicKey) {
	t.Helper()
	octets = fmt.Appendf(nil, "{ \"version\":1.0, \"url\":\"https:\\u002f\\u002fh\",\r\n\"required\":false,\"streaming\":false,\"description\":\"%s\" }\n", strings.Repeat("é", pad/2))
	keys = make(map[string]identity.PublicKey)
	for _, scheme := range []profiles.Scheme{profiles.Ed25519, profiles.MLDSA87} {
		k, err := identity.FromSeed(scheme, sha256.Sum256([]byte("card")))
		if err != nil {
			t.Fatal(err)
		}
		s, err := card.Sign(octets, k, card.Header{KeyID: fmt.Sprint(scheme)})
		if err != nil {
			t.Fatal(err)
		}
		if octets, err = card.Attach(octets, s); err != nil {
			t.Fatal(err)
		}
		keys[fmt.Sprint(scheme)] = k.Public()
	}
	return octets, keys
}

// docCaller is an N-PAMP caller that takes document sets on both channels.
type docCaller struct {
	t              *testing.T
	onBridge, docs *carriage.Bridge
	assoc          *engine.Association
}

func docConfig(h carriage.Handler) carriage.Config {
	return carriage.Config{Protocols: []carriage.Protocol{a2a.Protocol(h)}, Tags: docTags}
}

func dialForDocuments(t *testing.T, r *Relay, agent string) *docCaller {
	t.Helper()
	on := docConfig(nil)
	on.Channel = wire.ChannelDiscovery
	c := &docCaller{t: t, onBridge: carriage.New(docConfig(nil)), docs: carriage.New(on)}
	d := discovery.New(discovery.Config{Documents: c.docs.Attach})
	e, err := engine.New(engine.Config{
		Transport: engine.TransportTCP, Loops: 1, Protocols: c.onBridge.Protocols(), Channels: []engine.ChannelHandler{c.onBridge, d},
		Limits: engine.Limits{MaxFrame: wire.FloorFrameLen},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		_ = e.Shutdown(ctx)
	})
	if c.assoc, err = e.Dial(t.Context(), r.Addr().String(), engine.DialOptions{Agent: agent, Peer: identity.Pin(r.Key())}); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *docCaller) fetch(b *carriage.Bridge, method string) (*document.Set, error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), limit)
	defer cancel()
	return document.NewReceiver(document.Config{}).Fetch(ctx, b, c.assoc, &carriage.Call{Protocol: bridge.ProtocolA2A, Method: method})
}

// D24, L31: cards cross as document sets, octet for octet, on the Bridge and on the
// Discovery channel (D25), in one frame or as a stream; their signatures verify where
// they arrive, in the card and as detached proofs.
func TestD24_CardsAsDocumentSets(t *testing.T) {
	for _, pad := range []int{0, 9 << 17} { // within a frame, and over the floor of 1 MiB
		t.Run(fmt.Sprint(pad), func(t *testing.T) {
			octets, keys := servedCard(t, pad)
			trusted := func(h *card.Header) identity.PublicKey { return keys[h.KeyID] }
			r := startRelay(t, Config{Tags: docTags, Engine: engine.Config{Limits: engine.Limits{MaxFrame: wire.FloorFrameLen}}})
			a, _ := startHTTPWith(t, r, "a", AgentConfig{Tags: docTags}, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if req.Method == "POST" {
					respond(w, 200, `{"jsonrpc":"2.0","id":`+idOf(t, read(t, req))+`,"result":`+strings.TrimSpace(string(octets))+`}`)
					return
				}
				respond(w, 200, string(octets))
			}))
			paths := map[string][]byte{
				"/.well-known/agent-card.json": octets, "/.well-known/agent.json": octets,
				"/extendedAgentCard": bytes.TrimSpace(octets), "/v1/card": bytes.TrimSpace(octets),
			}
			methods := map[string][]byte{a2a.MethodGetCard: octets, a2a.MethodGetExtendedCardV1: bytes.TrimSpace(octets)}
			if pad > 0 { // the canonical form of a large card takes its time
				paths = map[string][]byte{"/.well-known/agent-card.json": octets}
				methods = map[string][]byte{a2a.MethodGetCard: octets}
			}
			for path, want := range paths {
				got := do(t, "GET", agentURL(r, "a")+path, "", nil)
				if got.status != 200 || got.body != string(want) || got.header.Get("Content-Type") != "application/json" {
					t.Errorf("%s: %d, %d octets of %d", path, got.status, len(got.body), len(want))
				}
			}
			if pad == 0 {
				if s, err := card.VerifyAny(octets, trusted); err != nil {
					t.Errorf("the card: %v, %v", s, err)
				}
			}
			c := dialForDocuments(t, r, "a")
			for _, on := range []*carriage.Bridge{c.onBridge, c.docs} {
				for method, want := range methods {
					s, err := c.fetch(on, method)
					if err != nil {
						t.Fatalf("%s: %v", method, err)
					}
					if !bytes.Equal(s.Document, want) || s.Alg != bridge.DigestSHA256 || s.ID != card.DocumentID || len(s.Proofs) != 2 {
						t.Fatalf("%s: %d octets of %d, %q, %d proofs", method, len(s.Document), len(want), s.ID, len(s.Proofs))
					}
					for i := range s.Proofs {
						p := &s.Proofs[i]
						if p.Err != nil || pad == 0 && card.VerifyProof(s, p, keys[fmt.Sprint(profiles.Scheme(p.Alg))]) != nil {
							t.Errorf("%s: proof %d under %#x does not verify", method, i, p.Alg)
						}
					}
				}
			}
			if n := a.Stats().Discovery.Documents + r.Stats().Discovery.Documents; n == 0 {
				t.Error("nothing crossed on the Discovery channel")
			}
		})
	}
}

// An agent's error in place of the extended card crosses as what it is.
func TestD24_ExtendedCardErrors(t *testing.T) {
	r := startRelay(t, Config{Tags: docTags, Demo: true})
	c := dialForDocuments(t, r, DemoAgent)
	_, err := c.fetch(c.onBridge, a2a.MethodGetExtendedCard)
	var foreign *carriage.ForeignError
	if !errors.As(err, &foreign) || !bytes.Contains(foreign.Foreign, []byte("-32007")) {
		t.Errorf("error %v", err)
	}
	if s, err := c.fetch(c.docs, a2a.MethodGetCard); err != nil || string(s.Document) != echoCard {
		t.Errorf("the demo agent's card: %v", err)
	}
	do(t, "GET", agentURL(r, DemoAgent)+"/v1/card", "", nil).want(t, 502, "error in place of the card")
	_, err = c.fetch(c.onBridge, "message/send")
	if !errors.Is(err, carriage.ErrMalformed) {
		t.Errorf("what is no card: %v", err)
	}
	c = dialForDocuments(t, r, "nobody")
	if _, err := c.fetch(c.onBridge, a2a.MethodGetCard); bridge.CodeOf(err) != bridge.CodeNotDelivered {
		t.Errorf("nobody's card: %v", err)
	}
}

// A relay shows nobody a set whose digest is wrong, that is not complete or whose
// proof is another document's: the agent and the caller are told the same code.
func TestD24_BadSetsEndAtTheRelay(t *testing.T) {
	octets := []byte(`{"name":"x"}`)
	set, err := document.New("card", "application/json", 0, octets, document.Proof{Alg: document.ProofEd25519, Octets: []byte("p")})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(parts []carriage.SetPart) []carriage.SetPart
		code   bridge.Code
	}{
		"digest": {func(parts []carriage.SetPart) []carriage.SetPart {
			parts[0].Foreign = []byte(`{"name":"y"}`)
			return parts
		}, bridge.CodeDigestMismatch},
		"unbound": {func(parts []carriage.SetPart) []carriage.SetPart {
			other, err := document.New("other", "application/json", 0, octets, set.Proofs...)
			if err != nil {
				t.Fatal(err)
			}
			wrong, err := other.Parts()
			if err != nil {
				t.Fatal(err)
			}
			return []carriage.SetPart{parts[0], wrong[1]}
		}, bridge.CodeProofUnbound},
		"twice": {func(parts []carriage.SetPart) []carriage.SetPart {
			return []carriage.SetPart{parts[0], parts[0]}
		}, bridge.CodeBindingMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRelay(t, Config{Tags: docTags})
			refused := make(chan bridge.Code, 16)
			cfg := docConfig(carriage.HandlerFunc(func(r *carriage.Request) {
				parts, err := set.Parts()
				if err == nil {
					err = r.RespondSet(c.change(parts), carriage.SetOptions{})
				}
				if err != nil {
					t.Error(err)
				}
			}))
			cfg.SetRefused = func(_ *engine.Association, _ []byte, code bridge.Code, _ []byte) { refused <- code }
			b, d := carriage.New(cfg), discovery.New(discovery.Config{})
			e, err := engine.New(engine.Config{Transport: engine.TransportTCP, Loops: 1, Protocols: b.Protocols(), Channels: []engine.ChannelHandler{b, d}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				ctx, cancel := context.WithTimeout(context.Background(), limit)
				defer cancel()
				_ = e.Shutdown(ctx)
			})
			a, err := e.Dial(t.Context(), r.Addr().String(), engine.DialOptions{})
			if err != nil {
				t.Fatal(err)
			}
			announce(t, d, a, "r", "bad", 1)
			eventually(t, "the agent is known", func() bool { return len(r.Agents()) == 1 })
			do(t, "GET", agentURL(r, "bad")+"/.well-known/agent-card.json", "", nil).want(t, 502, c.code.String())
			if got := <-refused; got != c.code {
				t.Errorf("the agent was told %v, want %v", got, c.code)
			}
			caller := dialForDocuments(t, r, "bad")
			if s, err := caller.fetch(caller.onBridge, a2a.MethodGetCard); s != nil || bridge.CodeOf(err) != c.code {
				t.Errorf("the caller got %v, %v, want %v", s, err, c.code)
			}
			if got := <-refused; got != c.code {
				t.Errorf("the agent was told %v, want %v", got, c.code)
			}
		})
	}
}

// Impossible numbers are refused before anything is opened (D7).
func TestD7_ImpossibleNumbers(t *testing.T) {
	bad := &bridge.Tags{DocumentBinding: wire.TagSafetyLabel}
	if _, err := New(Config{Tags: bad}); !errors.Is(err, bridge.ErrTags) {
		t.Errorf("relay: %v", err)
	}
	if _, err := NewAgent(AgentConfig{Name: "a", Relay: "x:1", Backend: Echo(), Tags: bad}); !errors.Is(err, bridge.ErrTags) {
		t.Errorf("agent: %v", err)
	}
}

// startHTTPWith is startHTTP with an agent of the given configuration, which takes
// large answers.
func startHTTPWith(t *testing.T, r *Relay, name string, cfg AgentConfig, h http.Handler) (*Agent, *httptest.Server) {
	t.Helper()
	server := httptest.NewServer(h)
	client, err := upstream.New(upstream.Config{URL: server.URL + "/a2a", MaxReply: 8 << 20, Logger: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		server.CloseClientConnections()
		server.Close()
	})
	cfg.Name, cfg.Relay, cfg.Peer, cfg.Backend = name, r.Addr().String(), identity.Pin(r.Key()), client
	a, _ := startAgent(t, cfg)
	return a, server
}
