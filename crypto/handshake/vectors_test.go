package handshake

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/crypto/kem"
	"github.com/trestle-npamp/trestle/crypto/schedule"
	"github.com/trestle-npamp/trestle/internal/vectors"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
)

func same(t *testing.T, what string, got []byte, want string) {
	t.Helper()
	if hex.EncodeToString(got) != strings.ToLower(want) {
		t.Errorf("%s is %x, want %s", what, got, want)
	}
}

func seeded(t *testing.T, seed string) *identity.Key {
	t.Helper()
	k, err := identity.FromSeed(profiles.Ed25519, [identity.SeedLen]byte(unhex(t, seed)))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// The recorded handshake: both roles produce its frames octet for octet. The
// client's keys come from its randomness; the ML-KEM ciphertext was captured, so
// the server is given ciphertext and secret.
func TestVectorsHandshakeFlow(t *testing.T) {
	var f struct {
		Inputs   map[string]string
		Expected struct {
			AuthPlaintext map[string]string `json:"auth_plaintext"`
			Frames        map[string]string
			KEM           map[string]string
			Secrets       map[string]string
			Transcript    map[string]string
		}
	}
	if !vectors.Load(t, "handshake-flow-kat.json", &f) {
		return
	}
	ck, sk := seeded(t, f.Inputs["client_identity_ed25519_seed"]), seeded(t, f.Inputs["server_identity_ed25519_seed"])
	suites := []profiles.Suite{profiles.AES256GCM}
	r := &run{t: t}
	r.c, r.s = machines(t,
		Config{
			Suites: suites, Identity: ck, VerifyPeer: identity.Pin(sk.Public()),
			Rand: bytes.NewReader(unhex(t, f.Inputs["mlkem768_seed_dz"]+f.Inputs["client_x25519_private"])),
		},
		Config{Suites: suites, Identity: sk, VerifyPeer: identity.Pin(ck.Public())})

	same(t, "KEMShare", r.c.keys.Share(), f.Expected.KEM["kem_share"])
	r.message[clientHello] = r.c.AppendOutput(nil)
	secret := kem.NewSecret([kem.SecretLen]byte(unhex(t, f.Inputs["combined_secret"])))
	injectFlight(t, r, unhex(t, f.Expected.KEM["kem_ciphertext"]), secret)

	for i, want := range []string{"client_hello", "server_hello", "server_auth", "client_auth"} {
		if i == clientAuth {
			// Both sides still have the handshake's secrets.
			for dir, name := range []string{"c_hs", "s_hs"} {
				key, iv, err := r.s.secrets.AuthRoot(wire.Direction(dir)).Traffic(0, profiles.AES256GCM, wire.ChannelControl)
				if err != nil {
					t.Fatal(err)
				}
				same(t, name+" key", key[:], f.Expected.Secrets[name+"_key"])
				same(t, name+" iv", iv[:], f.Expected.Secrets[name+"_iv"])
			}
			same(t, "plaintext of SERVER_AUTH", openAuth(t, r.s, wire.ServerToClient, r.message[serverAuth]), f.Expected.AuthPlaintext["server_auth"])
			same(t, "plaintext of CLIENT_AUTH", openAuth(t, r.s, wire.ClientToServer, r.message[clientAuth]), f.Expected.AuthPlaintext["client_auth"])
			points(t, r, f.Expected.Transcript)
		}
		same(t, want, r.message[i], f.Expected.Frames[want])
		if i != clientHello {
			// From here on the recorded octets themselves are taken.
			r.deliver(i, unhex(t, f.Expected.Frames[want]))
		}
	}
	c, s := r.c.Result(), r.s.Result()
	for name, roots := range map[string][2]*schedule.Root{"app_c2s": {c.Send, s.Recv}, "app_s2c": {s.Send, c.Recv}} {
		for _, root := range roots {
			key, iv, err := root.Traffic(0, profiles.AES256GCM, wire.ChannelControl)
			if err != nil {
				t.Fatal(err)
			}
			same(t, name+" key", key[:], f.Expected.Secrets[name+"_key"])
			same(t, name+" iv", iv[:], f.Expected.Secrets[name+"_iv"])
		}
	}
	agree(t, c, s)
}

// points checks the five transcript points against the messages.
func points(t *testing.T, r *run, want map[string]string) {
	t.Helper()
	tr := r.transcript(serverAuth)
	point := func(name string) {
		t.Helper()
		p := tr.Sum()
		same(t, name, p.Bytes(), want[name])
	}
	point("th_kem")
	for i, names := range [][2]string{{"th_sid", "th_scv"}, {"th_cid", "th_ccv"}} {
		dir := wire.ServerToClient
		if i == 1 {
			dir = wire.ClientToServer
		}
		tr.AddFrameType(authType(dir))
		rest := openAuth(t, r.s, dir, r.message[serverAuth+i])
		for j := range 3 {
			tlv, n, err := wire.ConsumeTLV(rest)
			if err != nil {
				t.Fatal(err)
			}
			tr.AddTLV(tlv.Type, tlv.Value)
			rest = rest[n:]
			if j < 2 {
				point(names[j])
			}
		}
	}
}

func TestVectorsCertVerify(t *testing.T) {
	var f struct {
		Contexts map[string]string
		Expected map[string]string
		Inputs   map[string]string `json:"npamp_inputs"`
	}
	if !vectors.Load(t, "certverify-kat.json", &f) {
		return
	}
	for _, c := range []struct {
		side, th string
		dir      wire.Direction
	}{{"client", "th_cid", wire.ClientToServer}, {"server", "th_sid", wire.ServerToClient}} {
		k := seeded(t, f.Inputs[c.side+"_seed"])
		same(t, c.side+" public key", k.Public().Append(nil), f.Inputs[c.side+"_pub"])
		th := unhex(t, f.Inputs[c.th])
		input := signingInput(nil, c.dir, th)
		same(t, c.side+" signing input", input, f.Expected["signing_input_"+c.side])
		if !bytes.Contains(input, []byte(f.Contexts[c.side])) {
			t.Errorf("%s: another context", c.side)
		}
		signature, err := k.Sign(input)
		if err != nil {
			t.Fatal(err)
		}
		same(t, c.side+" signature", signature, f.Expected["signature_"+c.side])
		if !k.Public().Verify(input, signature) || k.Public().Verify(signingInput(nil, c.dir.Reverse(), th), signature) {
			t.Errorf("%s: verification", c.side)
		}
	}
}
