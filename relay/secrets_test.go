package relay

import (
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/relay/upstream"
)

// carelessKey is a private key that prints itself.
type carelessKey struct {
	Pub  identity.PublicKey
	Seed string
}

func (k carelessKey) Public() identity.PublicKey { return k.Pub }
func (carelessKey) Sign([]byte) ([]byte, error)  { return nil, nil }

// D21: no key and no credential is in what configurations print, whatever the verb,
// nor in what is made from them.
func TestConfigurationsPrintNoSecret(t *testing.T) {
	const credential = "Bearer of-a-secret-that-nobody-logs"
	key, err := identity.Generate(profiles.Ed25519, nil)
	if err != nil {
		t.Fatal(err)
	}
	seed := bytes.Repeat([]byte{0xC7, 0x35, 0x91, 0x6E}, 8)
	cert := tls.Certificate{PrivateKey: ed25519.NewKeyFromSeed(seed)}
	e := engine.Config{Identity: carelessKey{key.Public(), credential}, Certificate: &cert}
	up := upstream.Config{
		URL: "https://user:" + credential[10:] + "@agent.example/a2a?key=" + credential[10:], Header: http.Header{"Authorization": {credential}},
		TLS: &tls.Config{Certificates: []tls.Certificate{cert}},
	}
	client, err := upstream.New(up)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	rc, ac := Config{Engine: e}, AgentConfig{Engine: e, Backend: client}
	for name, v := range map[string]any{
		"relay.Config": rc, "*relay.Config": &rc, "relay.AgentConfig": ac, "*relay.AgentConfig": &ac,
		"upstream.Config": up, "*upstream.Config": &up, "upstream.Client": client,
		"struct": struct{ A, B, C, D any }{rc, ac, up, client},
	} {
		var b strings.Builder
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
			fmt.Fprintf(&b, verb+"\n", v)
		}
		slog.New(slog.NewTextHandler(&b, nil)).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "v", v)
		text := strings.ToLower(b.String())
		for _, secret := range []string{
			credential[10:], fmt.Sprintf("%x", credential[10:]), strings.Trim(fmt.Sprint([]byte(credential[10:])), "[]"),
			fmt.Sprintf("%x", seed[:8]), strings.Trim(fmt.Sprint(seed[:8]), "[]"),
		} {
			if strings.Contains(text, strings.ToLower(secret)) {
				t.Errorf("%s: %q is in what it prints", name, secret)
				break
			}
		}
	}
}
