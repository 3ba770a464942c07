package handshake

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/crypto/kem"
	"github.com/trestle-npamp/trestle/crypto/record"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
	messages "github.com/trestle-npamp/trestle/wire/handshake"
)

func TestHandshakeCompletesAtEveryRow(t *testing.T) {
	for _, p := range profiles.All() {
		for _, scheme := range p.Schemes {
			for _, k := range p.KEMs {
				for _, suite := range p.Suites {
					t.Run(fmt.Sprint(p, " ", scheme, " ", k, " ", suite), func(t *testing.T) {
						client, server := configs(t, p, scheme)
						client.KEMs, server.KEMs = []profiles.KEM{k}, []profiles.KEM{k}
						client.Suites = []profiles.Suite{suite, suite.Other()}
						server.Suites = client.Suites
						r := start(t, client, server, messageCount)
						if !r.c.Done() || !r.s.Done() {
							t.Fatal("not done")
						}
						c, s := r.c.Result(), r.s.Result()
						if c.Profile != p || c.KEM != k || c.Suite != suite {
							t.Errorf("agreed on %v, %v, %v", c.Profile, c.KEM, c.Suite)
						}
						if !c.PeerKey.Equal(server.Identity.Public()) || !s.PeerKey.Equal(client.Identity.Public()) {
							t.Error("a peer key is not the peer's")
						}
						agree(t, c, s)
					})
				}
			}
		}
	}
}

// Four frames on Control, each with sequence number 0, the hellos in clear and
// the AUTH frames sealed, the TLVs in their order (binding 1).
func TestMessagesAreTheBindings(t *testing.T) {
	client, server := standard(t)
	r := start(t, client, server, serverHello)
	for i := serverHello; i < messageCount; i++ {
		r.deliver(i, r.message[i])
	}
	for i, want := range []struct {
		typ   wire.FrameType
		flags wire.Flags
		len   int
	}{
		{0x100, 0, 36 + 4 + 1 + 4 + 2 + 4 + 2 + 4 + 4 + 4 + 1216},
		{0x101, 0, 36 + 4 + 1 + 4 + 2 + 4 + 2 + 4 + 2 + 4 + 1120},
		{0x102, wire.FlagENC, 36 + 4 + 32 + 4 + 66 + 4 + 32 + 16},
		{0x103, wire.FlagENC, 36 + 4 + 32 + 4 + 66 + 4 + 32 + 16},
	} {
		h := frame(t, r.message[i]).Header()
		if h.Type() != want.typ || h.Flags() != want.flags || h.Channel() != wire.ChannelControl || h.Seq() != 0 || len(r.message[i]) != want.len {
			t.Errorf("%s has header %x and %d octets", messageNames[i], []byte(h), len(r.message[i]))
		}
	}
	var order []wire.TLVType
	for _, b := range r.message[:serverAuth] {
		for b = b[wire.HeaderLen:]; len(b) > 0; {
			tlv, n, err := wire.ConsumeTLV(b)
			if err != nil {
				t.Fatal(err)
			}
			order = append(order, tlv.Type)
			b = b[n:]
		}
	}
	if !slices.Equal(order, []wire.TLVType{1, 3, 5, 0xc, 7, 2, 4, 6, 0xd, 8}) {
		t.Errorf("TLVs of the hellos: %x", order)
	}
}

// Whole handshakes with fixed randomness and identities, as a program written
// in Python over its hashlib, hmac and cryptography packages computes them from
// the same inputs: the SHA-256 of each frame, and key and iv of the Bridge
// channel for both directions. The server's ML-KEM ciphertext is a pattern, which
// the client's implicit rejection turns into a secret.
func TestKnownHandshakes(t *testing.T) {
	for _, c := range []struct {
		profile *profiles.Profile
		kem     profiles.KEM
		suite   profiles.Suite
		digests [messageCount]string
		key, iv [2]string
	}{
		{
			profiles.Standard, profiles.X25519MLKEM768, profiles.AES256GCM,
			[messageCount]string{
				"050ee1ad6381e43fb2bf64ecf229a747302e4fac09ab931b919ad2a63ab854be",
				"80b4d78b670f9838bd0ac42a76a4f890cd78ff3dd54dd99020bfee218a406cbb",
				"d38b141bd16d30a61c80a601ded6d25d0e8e6309c557989399c1924648fc0c02",
				"c350c9f0e0d42e4b00c97243647d04047001aa96bff0247b6a39017fcd2f5237",
			},
			[2]string{"049f2831ec2b7483bd0c48135dbb40ecb20569fd8ef8bfd408230b0ea3be7f3f", "08cfcad8cf650fdb83415eb613f285f198a11a28baacfcbc889c3375b253dfa2"},
			[2]string{"7051a2df1884c007d7b5e333", "a100dc90f9896ace56e3fbb2"},
		},
		{
			profiles.Standard, profiles.X25519MLKEM1024, profiles.ChaCha20Poly1305,
			[messageCount]string{
				"428f589f9e92e14bcf7ade2d8940582c12d234945928dd3b983b9a63956a2192",
				"cfcbf44d2161832a354dfc733e738e8e96ed96ef4d22fcf47983767f269b8723",
				"0a98bb5e57b6f1d636add1b0969d23aa8de86e223f35d04033d8397315ecd12c",
				"dda9121787f86e7a48aeaa4b4c653f3aa8dd26eb2e9726a9328b0c17798bf19a",
			},
			[2]string{"7228ff86cd4336a7220913a8d2e9d48df3fc4de8d22aeb3a95f9fd31eaecd9e1", "05f1b83e9422a8f28fd9e33d870f7ed0d46fa5522f633a38867a31f252cc2747"},
			[2]string{"b31afe2ace7259a90e51736a", "55a57d8787b211fffb52a03f"},
		},
		{
			profiles.High, profiles.X25519MLKEM1024, profiles.AES256GCM,
			[messageCount]string{
				"53b7710888deffe9b2c4332a1c30cbd831e9cf98f912a65582ddcdaeb66a3982",
				"ce69ce485f291f10dd5115535654c03cc73e437a264651f1a81bff790e716844",
				"f5cf8953533936e65f0db233b05cb8ea4fcb162fac7cdd464acf638d45fd6188",
				"2164f99cc95da2e2deb6eba2058241b83c0714b4a8c7d825be7aa757a12a0de9",
			},
			[2]string{"167c5fbee1d3f0e1d87d4919b7fa1dcd25c37812945518e7e163a0d6a69a0386", "67ca785ab4b7c48b08d16916214dbd97151cab5760947cf12d76168a1db8f705"},
			[2]string{"d3206af2e4ab1e211c9167a1", "c0a84fcbe0790cfe4afc5c78"},
		},
	} {
		t.Run(fmt.Sprint(c.profile, " ", c.kem, " ", c.suite), func(t *testing.T) {
			client, server := configs(t, c.profile, profiles.Ed25519)
			client.KEMs = []profiles.KEM{c.kem}
			client.Suites = []profiles.Suite{c.suite, c.suite.Other()}
			server.Suites = client.Suites
			client.Rand = new(counting) // d || z || X25519 private: 00 .. 5f

			scheme := kem.ByID(c.kem)
			// The server's X25519 private key: 60 .. 7f.
			donor, err := scheme.Generate(io.MultiReader(bytes.NewReader(make([]byte, 64)), &counting{96}))
			if err != nil {
				t.Fatal(err)
			}
			n := scheme.CiphertextLen() - 32
			ciphertext := make([]byte, n)
			for i := range ciphertext {
				ciphertext[i] = byte(7 * i)
			}
			ciphertext = append(ciphertext, donor.Share()[scheme.ShareLen()-32:]...)

			r := &run{t: t}
			r.c, r.s = machines(t, client, server)
			r.message[clientHello] = r.c.AppendOutput(nil)
			secret, err := r.c.keys.Decapsulate(ciphertext)
			if err != nil {
				t.Fatal(err)
			}
			injectFlight(t, r, ciphertext, secret)
			for i := serverHello; i < messageCount; i++ {
				r.deliver(i, r.message[i])
			}
			for i, b := range r.message {
				if got := hexDigest(b); got != c.digests[i] {
					t.Errorf("%s is\n%x, digest %s, want %s", messageNames[i], b, got, c.digests[i])
				}
			}
			results := [2]Result{r.c.Result(), r.s.Result()}
			agree(t, results[0], results[1])
			for dir := range c.key {
				key, iv, err := results[dir].Send.Traffic(0, c.suite, wire.ChannelBridge)
				if err != nil || hex.EncodeToString(key[:]) != c.key[dir] || hex.EncodeToString(iv[:]) != c.iv[dir] {
					t.Errorf("%s traffic: %x, %x, %v", wire.Direction(dir), key, iv, err)
				}
			}
		})
	}
}

// injectFlight lets the server answer the client's hello with a ciphertext and
// secret from outside.
func injectFlight(t testing.TB, r *run, ciphertext []byte, secret *kem.Secret) {
	t.Helper()
	f := frame(t, r.message[clientHello])
	if err := r.s.CheckHeader(f.Header()); err != nil {
		t.Fatal(err)
	}
	offer, err := messages.ParseClientHello(f.Payload())
	if err != nil {
		t.Fatal(err)
	}
	ch, err := r.s.cfg.choose(&offer)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.s.sendServerFlight(&offer, ch, ciphertext, secret); err != nil {
		t.Fatal(err)
	}
	out := frames(t, r.s.AppendOutput(nil))
	r.message[serverHello], r.message[serverAuth] = out[0], out[1]
}

// Each state takes one message; every other type is an error that ends the
// handshake.
func TestEveryStateRefusesEveryOtherMessage(t *testing.T) {
	client, server := standard(t)
	whole := start(t, client, server, messageCount)
	types := []wire.FrameType{
		wire.TypeNone, wire.TypePing, wire.TypeClose, wire.TypeError, wire.TypeKeyUpdate,
		wire.TypeClientHello, wire.TypeServerHello, wire.TypeServerAuth, wire.TypeClientAuth,
		wire.TypeMasterRatchet, wire.TypeRekem, wire.TypeHello, wire.TypeHelloDone, 0xffff,
	}
	for next := range messageCount + 1 {
		for _, role := range []Role{Client, Server} {
			for _, typ := range types {
				for _, payload := range append(whole.message[:], make([]byte, wire.HeaderLen)) {
					r := start(t, client, server, next)
					m := r.c
					if role == Server {
						m = r.s
					}
					due, waits := steps[m.state]
					if waits && typ == due.typ {
						continue
					}
					for _, flags := range []wire.Flags{0, wire.FlagENC} {
						b := reheader(payload, flags, typ, wire.ChannelControl, 0)
						want := ErrUnexpected
						if m.state == done || m.state == failed {
							want = ErrOver
						}
						if err := m.HandleFrame(frame(t, b)); !errors.Is(err, want) {
							t.Fatalf("%s after %d messages: type %#x: %v", role, next, uint16(typ), err)
						}
						dead(t, m)
					}
				}
			}
		}
	}
}

// The right message with another header: sequence number, flags, channel and
// length are what the message has, or the handshake ends.
func TestHeadersHaveNoFreedom(t *testing.T) {
	client, server := standard(t)
	for i := range messageCount {
		typ := wire.TypeClientHello + wire.FrameType(i)
		right := wire.Flags(0)
		if i >= serverAuth {
			right = wire.FlagENC
		}
		check := func(what string, want error, change func(b []byte) []byte) {
			t.Helper()
			r := start(t, client, server, i)
			b := change(r.message[i])
			m := r.receiver(i)
			if err := m.CheckHeader(frame(t, b).Header()); !errors.Is(err, want) {
				t.Errorf("%s, %s: CheckHeader: %v", messageNames[i], what, err)
			}
			if err := m.HandleFrame(frame(t, b)); !errors.Is(err, want) {
				t.Errorf("%s, %s: %v, want %v", messageNames[i], what, err, want)
			}
			dead(t, m)
		}
		for _, seq := range []wire.Seq{1, 2, 1 << 63} {
			check(fmt.Sprint("sequence ", seq), ErrSequence, func(b []byte) []byte {
				return reheader(b, right, typ, wire.ChannelControl, seq)
			})
		}
		for flags := range wire.Flags(16) {
			if flags != right {
				check(fmt.Sprint("flags ", flags), ErrFlags, func(b []byte) []byte {
					return reheader(b, flags, typ, wire.ChannelControl, 0)
				})
			}
		}
		for _, ch := range []wire.Channel{wire.ChannelMemory, wire.ChannelBridge, 0xf000, 0xffff} {
			check(ch.String(), ErrChannel, func(b []byte) []byte { return reheader(b, right, typ, ch, 0) })
		}
		check("too long", ErrLength, func(b []byte) []byte {
			return withPayload(b, append(bytes.Clone(b[wire.HeaderLen:]), make([]byte, messages.MaxPayloadLen)...))
		})
		if right == wire.FlagENC {
			check("an octet longer", ErrLength, func(b []byte) []byte { return withPayload(b, append(bytes.Clone(b[wire.HeaderLen:]), 0)) })
			check("an octet shorter", ErrLength, func(b []byte) []byte { return withPayload(b, b[wire.HeaderLen:len(b)-1]) })
			check("empty", ErrLength, func(b []byte) []byte { return withPayload(b, nil) })
		}
		// CheckHeader by itself changes nothing.
		r := start(t, client, server, i)
		if err := r.receiver(i).CheckHeader(frame(t, r.message[i]).Header()); err != nil {
			t.Errorf("%s: %v", messageNames[i], err)
		}
		r.deliver(i, r.message[i])
	}
}

// finish plays a handshake on from a message of its own, and tells whether it
// completed on the client or on the server.
func (r *run) finish(next int, b []byte) (client, server bool) {
	r.t.Helper()
	if r.give(next, b) == nil {
		for i := next + 1; i < messageCount; i++ {
			if r.give(i, r.message[i]) != nil {
				dead(r.t, r.receiver(i))
				break
			}
		}
	} else {
		dead(r.t, r.receiver(next))
	}
	return r.c.Done(), r.s.Done()
}

// Any octet of any message changed on the way: neither side completes. (The
// transcript binds the hellos, the AEAD the rest; binding 6.3.)
func TestTamperedOctetNeverCompletes(t *testing.T) {
	client, server := standard(t)
	for i := range messageCount {
		n := len(start(t, client, server, i).message[i])
		for at := wire.HeaderLen; at < n; at++ {
			// In the long ML-KEM parts a sample is enough.
			if n-at > 64 && at > 200 && at%37 != 0 {
				continue
			}
			r := start(t, client, server, i)
			b := bytes.Clone(r.message[i])
			b[at] ^= 1 << (at % 8)
			c, s := r.finish(i, b)
			// The client is done once it sent CLIENT_AUTH; that one can't be
			// tampered with in its sight.
			if s || c && i != clientAuth {
				t.Fatalf("%s, octet %d: client %v, server %v", messageNames[i], at, c, s)
			}
		}
		for _, cut := range []int{wire.HeaderLen, wire.HeaderLen + 1, n / 2, n - 1} {
			r := start(t, client, server, i)
			if c, s := r.finish(i, withPayload(r.message[i], r.message[i][wire.HeaderLen:cut])); s || c && i != clientAuth {
				t.Fatalf("%s, cut to %d", messageNames[i], cut)
			}
		}
	}
}

// The same for what is inside an AUTH, by a peer that has the handshake keys:
// every octet of IdentityKey, CertVerify and Finished, types and lengths
// included.
func TestTamperedAuthPlaintextNeverCompletes(t *testing.T) {
	client, server := standard(t)
	for _, i := range []int{serverAuth, clientAuth} {
		dir := wire.ServerToClient
		if i == clientAuth {
			dir = wire.ClientToServer
		}
		n := 4 + 32 + 4 + 66 + 4 + 32
		for at := range n {
			r := start(t, client, server, i)
			m := r.receiver(i)
			plain := openAuth(t, m, dir, r.message[i])
			if len(plain) != n {
				t.Fatalf("AUTH of %d octets", len(plain))
			}
			plain[at] ^= 1 << (at % 8)
			err := r.give(i, sealAuth(t, m, dir, plain))
			var want error
			switch {
			case at >= 40 && at < 42: // the scheme
				want = messages.ErrScheme
			case at >= 4 && at < 36, at >= 42 && at < 106:
				want = ErrCertVerify
			case at >= 110:
				want = ErrFinished
			}
			if err == nil || want != nil && !errors.Is(err, want) {
				t.Fatalf("%s, octet %d: %v, want %v", messageNames[i], at, err, want)
			}
			dead(t, m)
		}
	}
}

// A side that has the handshake keys and an identity of its own, and signs the
// wrong thing.
func TestCertVerifyBindsRoleTranscriptAndScheme(t *testing.T) {
	client, server := standard(t)
	mallory := key(t, profiles.Ed25519, 0x66)
	client.VerifyPeer = func(identity.PublicKey) error { return nil }
	server.VerifyPeer = client.VerifyPeer
	for _, i := range []int{serverAuth, clientAuth} {
		dir := wire.ServerToClient
		if i == clientAuth {
			dir = wire.ClientToServer
		}
		forge := func(sign func(th []byte) []byte) error {
			r := start(t, client, server, i)
			m := r.receiver(i)
			tr := r.transcript(i)
			tr.AddFrameType(authType(dir))
			plain, err := messages.AppendIdentityKey(nil, uint16(profiles.Ed25519), mallory.Public().Append(nil))
			if err != nil {
				t.Fatal(err)
			}
			tr.AddTLVs(plain)
			th := tr.Sum()
			mark := len(plain)
			if plain, err = messages.AppendCertVerify(plain, uint16(profiles.Ed25519), sign(th.Bytes())); err != nil {
				t.Fatal(err)
			}
			tr.AddTLVs(plain[mark:])
			thCV := tr.Sum()
			mac := m.secrets.Finished(dir, &thCV)
			if plain, err = messages.AppendFinished(plain, mac.Bytes(), 32); err != nil {
				t.Fatal(err)
			}
			err = r.give(i, sealAuth(t, m, dir, plain))
			if err != nil {
				dead(t, m)
			}
			return err
		}
		sign := func(context string, th []byte) []byte {
			in := append(bytes.Repeat([]byte{' '}, 64), context...)
			signature, err := mallory.Sign(append(append(in, 0), th...))
			if err != nil {
				t.Fatal(err)
			}
			return signature
		}
		own, other := "N-PAMP/2, server CertificateVerify", "N-PAMP/2, client CertificateVerify"
		if i == clientAuth {
			own, other = other, own
		}
		if err := forge(func(th []byte) []byte { return sign(own, th) }); err != nil {
			t.Errorf("%s: the honest one: %v", messageNames[i], err)
		}
		for name, f := range map[string]func([]byte) []byte{
			"the other role":     func(th []byte) []byte { return sign(other, th) },
			"another transcript": func(th []byte) []byte { th[0] ^= 1; return sign(own, th) },
			"no context":         func(th []byte) []byte { return sign("", th) },
			"nothing":            func([]byte) []byte { return make([]byte, 64) },
		} {
			if err := forge(f); !errors.Is(err, ErrCertVerify) {
				t.Errorf("%s: signed for %s: %v", messageNames[i], name, err)
			}
		}
	}

	// A scheme that was not negotiated is refused though it would verify.
	client, server = configs(t, profiles.High, profiles.Ed25519)
	r := start(t, client, server, serverAuth)
	m := r.c
	pq := key(t, profiles.MLDSA87, 1)
	plain, err := messages.AppendIdentityKey(nil, uint16(profiles.MLDSA87), pq.Public().Append(nil))
	if err != nil {
		t.Fatal(err)
	}
	plain, err = messages.AppendCertVerify(plain, uint16(profiles.MLDSA87), make([]byte, messages.MLDSA87SignatureLen))
	if err != nil {
		t.Fatal(err)
	}
	plain, err = messages.AppendFinished(plain, make([]byte, 48), 48)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.give(serverAuth, sealAuth(t, m, wire.ServerToClient, plain)); !errors.Is(err, ErrLength) {
		t.Errorf("an AUTH of another scheme: %v", err)
	}
	dead(t, m)
}

// The server selects only from the offer, and the KEM of its first entry.
func TestServerSelectsFromTheOffer(t *testing.T) {
	client, server := standard(t)
	offer := func(profilesOffered []byte, kems, schemes, aeads []uint16) []byte {
		r := start(t, client, server, clientHello)
		b := r.message[clientHello]
		hello, err := messages.ParseClientHello(b[wire.HeaderLen:])
		if err != nil {
			t.Fatal(err)
		}
		out := messages.ClientHello{
			Profiles: profilesOffered, KEMs: codePoints16(kems...), Schemes: codePoints16(schemes...),
			AEADs: codePoints16(aeads...), Share: hello.Share,
		}
		payload, err := out.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		return withPayload(b, payload)
	}
	good := []uint16{0x11ec}
	ed, both := []uint16{0x0807}, []uint16{1, 2}
	for name, c := range map[string]struct {
		b       []byte
		suite   uint16
		refused bool
	}{
		"unknown code points are passed over": {b: offer([]byte{9, 0, 1}, append(good, 0x9999), []uint16{0x0403, 0x0807}, []uint16{0x1301, 1, 2}), suite: 1},
		"ChaCha20 alone":                      {b: offer([]byte{1}, good, ed, []uint16{2}), suite: 2},
		"AES alone":                           {b: offer([]byte{1}, good, ed, []uint16{1}), suite: 1},
		"the client puts ChaCha20 first":      {b: offer([]byte{1}, good, ed, []uint16{2, 1}), suite: 2},
		"higher profiles only":                {b: offer([]byte{2, 3}, good, ed, both), refused: true},
		"unknown profiles only":               {b: offer([]byte{0, 4, 0xff}, good, ed, both), refused: true},
		"no common scheme":                    {b: offer([]byte{1}, good, []uint16{0x0905, 0x0403}, both), refused: true},
		"no common suite":                     {b: offer([]byte{1}, good, ed, []uint16{0, 3, 0x1301}), refused: true},
	} {
		server.Suites = []profiles.Suite{profiles.AES256GCM, profiles.ChaCha20Poly1305}
		_, s := machines(t, client, server)
		err := s.HandleFrame(frame(t, c.b))
		if c.refused {
			if !errors.Is(err, ErrNoCommon) {
				t.Errorf("%s: %v", name, err)
			}
			dead(t, s)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		answer, err := messages.ParseServerHello(frames(t, s.AppendOutput(nil))[0][wire.HeaderLen:])
		if err != nil || answer.Profile != 1 || answer.KEM != 0x11ec || answer.Scheme != 0x0807 || answer.AEAD != c.suite {
			t.Errorf("%s: selected %+v, %v", name, answer, err)
		}
	}

	// The share is of the first KEM: when the server can't have that one it
	// fails, and does not pick the second.
	server.KEMs = []profiles.KEM{profiles.X25519MLKEM1024}
	_, s := machines(t, client, server)
	if err := s.HandleFrame(frame(t, offer([]byte{1}, []uint16{0x11ec, 0x11ed}, ed, both))); !errors.Is(err, ErrNoCommon) {
		t.Errorf("the second KEM: %v", err)
	}
	dead(t, s)
	server.KEMs = nil
	_, s = machines(t, client, server)
	if err := s.HandleFrame(frame(t, offer([]byte{1}, []uint16{0x6399, 0x11ec}, ed, both))); !errors.Is(err, ErrNoCommon) {
		t.Errorf("an unknown first KEM: %v", err)
	}
	dead(t, s)
}

// D26 and the profiles' minimum: nothing below the configured list is selected,
// even when the client puts it first.
func TestServerNeverGoesBelowItsMinimum(t *testing.T) {
	client, _ := standard(t)
	_, server := configs(t, profiles.High, profiles.Ed25519)
	client.Profiles = []*profiles.Profile{profiles.Standard}
	for _, kems := range [][]profiles.KEM{nil, {profiles.X25519MLKEM1024}} {
		client.KEMs = kems
		c, s := machines(t, client, server)
		if err := s.HandleFrame(frame(t, c.AppendOutput(nil))); !errors.Is(err, ErrNoCommon) {
			t.Errorf("%v: %v", kems, err)
		}
		dead(t, s)
	}
	// Offered both, the server takes its own first choice.
	client.KEMs = nil
	client.Profiles = []*profiles.Profile{profiles.Standard, profiles.High}
	server.Profiles = []*profiles.Profile{profiles.High, profiles.Standard}
	r := start(t, client, server, messageCount)
	c, s := r.c.Result(), r.s.Result()
	if c.Profile != profiles.High || c.KEM != profiles.X25519MLKEM1024 {
		t.Errorf("agreed on %v, %v", c.Profile, c.KEM)
	}
	agree(t, c, s)
	// D2: a diversifying profile needs both suites in the offer.
	client.Profiles = []*profiles.Profile{profiles.Standard}
	client.KEMs = []profiles.KEM{profiles.X25519MLKEM1024}
	client.Suites = []profiles.Suite{profiles.AES256GCM}
	one, s1 := machines(t, client, server)
	b := one.AppendOutput(nil)
	payload := bytes.Clone(b[wire.HeaderLen:])
	payload[4] = profiles.High.Code // the one octet of ProfileOffer
	if err := s1.HandleFrame(frame(t, withPayload(b, payload))); !errors.Is(err, ErrNoCommon) {
		t.Errorf("High with one suite: %v", err)
	}
}

func TestClientRefusesWhatItDidNotOffer(t *testing.T) {
	client, server := standard(t)
	client.Suites = []profiles.Suite{profiles.AES256GCM}
	for name, change := range map[string]func(*messages.ServerHello){
		"a higher profile":   func(m *messages.ServerHello) { m.Profile = 2 },
		"a reserved profile": func(m *messages.ServerHello) { m.Profile = 0 },
		"another KEM":        func(m *messages.ServerHello) { m.KEM, m.Ciphertext = 0x11ed, make([]byte, 1600) },
		"an unknown KEM":     func(m *messages.ServerHello) { m.KEM = 0x11eb },
		"another scheme":     func(m *messages.ServerHello) { m.Scheme = 0x0905 },
		"another suite":      func(m *messages.ServerHello) { m.AEAD = 2 },
		"an unknown suite":   func(m *messages.ServerHello) { m.AEAD = 0 },
	} {
		r := start(t, client, server, serverHello)
		answer, err := messages.ParseServerHello(r.message[serverHello][wire.HeaderLen:])
		if err != nil {
			t.Fatal(err)
		}
		change(&answer)
		payload, err := answer.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.give(serverHello, withPayload(r.message[serverHello], payload)); !errors.Is(err, ErrNotOffered) {
			t.Errorf("%s: %v", name, err)
		}
		dead(t, r.c)
	}
}

// Section 1: unknown TLVs without the critical bit are skipped in a hello, and
// the transcript has them; critical ones end the handshake.
func TestUnknownTLVsInHellos(t *testing.T) {
	client, server := standard(t)
	for _, i := range []int{clientHello, serverHello} {
		for _, critical := range []bool{false, true} {
			typ := wire.TLVType(0x7f01)
			if critical {
				typ |= 0x8000
			}
			r := start(t, client, server, i)
			payload := wire.AppendTLV(bytes.Clone(r.message[i][wire.HeaderLen:]), typ, []byte("later version"))
			if i == clientHello {
				r.c.hello = payload
			}
			b := withPayload(r.message[i], payload)
			if critical {
				if err := r.give(i, b); !errors.Is(err, wire.ErrTLVCritical) {
					t.Errorf("%s: %v", messageNames[i], err)
				}
				dead(t, r.receiver(i))
				continue
			}
			c, s := r.finish(i, b)
			// Only the client's own hello can be changed on both sides here; an
			// addition to the server's is not in the server's transcript.
			if want := i == clientHello; c != want || s != want {
				t.Errorf("%s: client %v, server %v", messageNames[i], c, s)
			}
		}
	}
}

// RFC 7748 section 6.1, through the machine.
func TestLowOrderPointsEndTheHandshake(t *testing.T) {
	client, server := standard(t)
	for _, i := range []int{clientHello, serverHello} {
		r := start(t, client, server, i)
		b := bytes.Clone(r.message[i])
		clear(b[len(b)-32:])
		if err := r.give(i, b); !errors.Is(err, kem.ErrLowOrder) {
			t.Errorf("%s: %v", messageNames[i], err)
		}
		dead(t, r.receiver(i))
	}
}

// spy counts what its key is asked for.
type spy struct {
	identity.PrivateKey
	signed int
	err    error
	cut    int
}

func (s *spy) Sign(message []byte) ([]byte, error) {
	s.signed++
	signature, err := s.PrivateKey.Sign(message)
	if s.err != nil {
		return nil, s.err
	}
	return signature[:len(signature)-s.cut], err
}

// The client knows whom it talks to before it says who it is.
func TestPinIsCheckedBeforeClientAuth(t *testing.T) {
	client, server := standard(t)
	signer := &spy{PrivateKey: client.Identity}
	client.Identity = signer
	other := key(t, profiles.Ed25519, 0x77)
	for name, verify := range map[string]identity.Verifier{
		"another pin": identity.Pin(other.Public()),
		"empty list":  identity.AllowList(nil),
	} {
		client.VerifyPeer = verify
		r := start(t, client, server, serverAuth)
		err := r.give(serverAuth, r.message[serverAuth])
		if !errors.Is(err, ErrPeerRefused) || !errors.Is(err, identity.ErrPeerNotAllowed) {
			t.Errorf("%s: %v", name, err)
		}
		dead(t, r.c)
		if signer.signed != 0 {
			t.Errorf("%s: the client signed", name)
		}
	}
	// And VerifyPeer is only asked about keys that were proved.
	client.VerifyPeer = func(identity.PublicKey) error { t.Error("asked"); return nil }
	r := start(t, client, server, serverAuth)
	plain := openAuth(t, r.c, wire.ServerToClient, r.message[serverAuth])
	plain[50] ^= 1
	if err := r.give(serverAuth, sealAuth(t, r.c, wire.ServerToClient, plain)); !errors.Is(err, ErrCertVerify) {
		t.Errorf("%v", err)
	}
}

func TestServerRefusesAClientThatIsNotAllowed(t *testing.T) {
	client, server := standard(t)
	server.VerifyPeer = identity.AllowList(identity.NewSet(key(t, profiles.Ed25519, 0x77).Public()))
	r := start(t, client, server, clientAuth)
	if err := r.give(clientAuth, r.message[clientAuth]); !errors.Is(err, ErrPeerRefused) {
		t.Errorf("%v", err)
	}
	dead(t, r.s)
	server.VerifyPeer = identity.AllowList(identity.NewSet(client.Identity.Public()))
	start(t, client, server, messageCount)
}

func TestSigningFailureEndsTheHandshake(t *testing.T) {
	client, server := standard(t)
	broken := errors.New("the token is gone")
	for _, s := range []*spy{{err: broken}, {cut: 1}} {
		want := broken
		if s.err == nil {
			want = messages.ErrSignatureLen
		}
		s.PrivateKey = server.Identity
		bad := server
		bad.Identity = s
		r := start(t, client, bad, clientHello)
		if err := r.give(clientHello, r.message[clientHello]); !errors.Is(err, want) {
			t.Errorf("server: %v", err)
		}
		dead(t, r.s)

		s.PrivateKey = client.Identity
		bad = client
		bad.Identity = s
		r = start(t, bad, server, serverAuth)
		if err := r.give(serverAuth, r.message[serverAuth]); !errors.Is(err, want) {
			t.Errorf("client: %v", err)
		}
		dead(t, r.c)
	}
}

func TestContradictoryConfigurationsAreRefused(t *testing.T) {
	good, _ := standard(t)
	good.Suites = []profiles.Suite{profiles.AES256GCM, profiles.ChaCha20Poly1305}
	good.KEMs = []profiles.KEM{profiles.X25519MLKEM768}
	if _, err := NewClient(good); err != nil {
		t.Fatal(err)
	}
	list := func(p ...*profiles.Profile) []*profiles.Profile { return p }
	for name, c := range map[string]struct {
		change func(*Config)
		want   error
	}{
		"no verifier":              {func(c *Config) { c.VerifyPeer = nil }, ErrNoVerifier},
		"no identity":              {func(c *Config) { c.Identity = nil }, ErrNoIdentity},
		"a nil profile":            {func(c *Config) { c.Profiles = list(nil) }, ErrConfig},
		"an unknown suite":         {func(c *Config) { c.Suites = []profiles.Suite{profiles.AES256GCM, 9} }, ErrConfig},
		"Ed25519 at Sovereign":     {func(c *Config) { c.Profiles, c.KEMs = list(profiles.Sovereign), nil }, ErrConfig},
		"ML-DSA-87 at Standard":    {func(c *Config) { c.Identity = key(t, profiles.MLDSA87, 1) }, ErrConfig},
		"one suite at High":        {func(c *Config) { c.Profiles, c.KEMs, c.Suites = list(profiles.High), nil, c.Suites[:1] }, ErrConfig},
		"X25519MLKEM768 at High":   {func(c *Config) { c.Profiles = list(profiles.High) }, ErrConfig},
		"an unknown KEM":           {func(c *Config) { c.KEMs = []profiles.KEM{0x11eb} }, ErrConfig},
		"one profile of two unfit": {func(c *Config) { c.Profiles, c.KEMs = list(profiles.Standard, profiles.Sovereign), nil }, ErrConfig},
	} {
		cfg := good
		c.change(&cfg)
		if m, err := NewClient(cfg); !errors.Is(err, c.want) || m != nil {
			t.Errorf("%s: client: %v", name, err)
		}
		if m, err := NewServer(cfg); !errors.Is(err, c.want) || m != nil {
			t.Errorf("%s: server: %v", name, err)
		}
	}
	// No key exchange that every offered profile takes.
	only := func(code uint8, k profiles.KEM) *profiles.Profile {
		p := *profiles.Standard
		p.Code, p.KEMs = code, []profiles.KEM{k}
		return &p
	}
	cfg := good
	cfg.KEMs = nil
	cfg.Profiles = list(only(7, profiles.X25519MLKEM768), only(8, profiles.X25519MLKEM1024))
	if _, err := NewClient(cfg); !errors.Is(err, ErrConfig) {
		t.Errorf("no common key exchange: %v", err)
	}
	cfg = good
	cfg.Rand = bytes.NewReader(nil)
	if _, err := NewClient(cfg); !errors.Is(err, io.EOF) {
		t.Errorf("no randomness: %v", err)
	}
}

func TestShortRandomnessEndsTheServer(t *testing.T) {
	client, server := standard(t)
	server.Rand = bytes.NewReader(make([]byte, 63))
	r := start(t, client, server, clientHello)
	if err := r.give(clientHello, r.message[clientHello]); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
	dead(t, r.s)
}

func TestDefaultsAreStandardAndTheProcessorsSuites(t *testing.T) {
	client, server := standard(t)
	client.Profiles, server.Profiles = nil, nil
	r := start(t, client, server, messageCount)
	c := r.c.Result()
	if c.Profile != profiles.Standard || c.KEM != profiles.X25519MLKEM768 || c.Suite != record.PreferredSuites()[0] {
		t.Errorf("agreed on %v, %v, %v", c.Profile, c.KEM, c.Suite)
	}
	hello, err := messages.ParseClientHello(r.message[clientHello][wire.HeaderLen:])
	if err != nil {
		t.Fatal(err)
	}
	want := codePoints16(uint16(record.PreferredSuites()[0]), uint16(record.PreferredSuites()[1]))
	if !bytes.Equal(hello.AEADs, want) || !bytes.Equal(hello.Profiles, []byte{1}) || !bytes.Equal(hello.KEMs, codePoints16(0x11ec)) {
		t.Errorf("offered %+v", hello)
	}
}

// What the peer may learn of a failure is the same for each.
func TestOneErrorClassForTheWire(t *testing.T) {
	for _, err := range []error{
		ErrChannel, ErrUnexpected, ErrSequence, ErrFlags, ErrLength, ErrNoCommon, ErrNotOffered, ErrScheme, ErrSealed, ErrCertVerify,
		ErrFinished, ErrOver, fmt.Errorf("%w: %w", ErrPeerRefused, identity.ErrPeerNotAllowed), messages.ErrOrder, kem.ErrLowOrder, io.EOF,
	} {
		if code := WireCode(err); code != control.CodeCrypto {
			t.Errorf("%v: %v", err, code)
		}
	}
}

func zeroed(v any) bool { return reflect.ValueOf(v).Elem().IsZero() }

// The ephemeral key, the handshake's secrets and the roots nobody took are gone
// when the machine ends, well or badly.
func TestSecretsAreWiped(t *testing.T) {
	client, server := standard(t)
	check := func(name string, m *Machine, secrets, private any) {
		t.Helper()
		if m.secrets != nil || m.keys != nil || m.transcript != nil || m.hello != nil {
			t.Errorf("%s: the machine still has secrets", name)
		}
		if secrets != nil && !onlyHashLeft(secrets) {
			t.Errorf("%s: handshake secrets are left in memory", name)
		}
		if private != nil && !zeroed(private) {
			t.Errorf("%s: the ephemeral key is left in memory", name)
		}
	}
	privateOf := func(m *Machine) any {
		f := reflect.ValueOf(m.keys).Elem().FieldByName("x25519")
		return reflect.NewAt(f.Type(), f.Addr().UnsafePointer()).Interface()
	}

	// The ephemeral key goes with SERVER_HELLO.
	r := start(t, client, server, serverHello)
	private := privateOf(r.c)
	if zeroed(private) {
		t.Fatal("the test looks at the wrong place")
	}
	r.deliver(serverHello, r.message[serverHello])
	if r.c.keys != nil || !zeroed(private) {
		t.Error("the ephemeral key outlives SERVER_HELLO")
	}

	// Completed.
	r = start(t, client, server, serverAuth)
	cs, ss := r.c.secrets, r.s.secrets
	r.deliver(serverAuth, r.message[serverAuth])
	r.deliver(clientAuth, r.message[clientAuth])
	check("client done", r.c, cs, nil)
	check("server done", r.s, ss, nil)

	// Failed.
	r = start(t, client, server, serverAuth)
	cs, ss = r.c.secrets, r.s.secrets
	bad := withPayload(r.message[serverAuth], bytes.Repeat([]byte{1}, len(r.message[serverAuth])-wire.HeaderLen))
	if r.give(serverAuth, bad) == nil || r.s.HandleFrame(frame(t, bad)) == nil {
		t.Fatal("garbage was accepted")
	}
	check("client failed", r.c, cs, nil)
	check("server failed", r.s, ss, nil)

	// Given up.
	r = start(t, client, server, serverHello)
	private = privateOf(r.c)
	ss = r.s.secrets
	r.c.Wipe()
	r.s.Wipe()
	check("client given up", r.c, nil, private)
	check("server given up", r.s, ss, nil)
	dead(t, r.c)
	dead(t, r.s)
}

// onlyHashLeft tells whether Secrets hold nothing but the name of their hash.
func onlyHashLeft(secrets any) bool {
	v := reflect.ValueOf(secrets).Elem()
	for i := range v.NumField() {
		if v.Type().Field(i).Name != "h" && !v.Field(i).IsZero() {
			return false
		}
	}
	return true
}

func TestRootsBelongToWhoeverTookThem(t *testing.T) {
	client, server := standard(t)
	r := start(t, client, server, messageCount)
	taken := r.c.Result()
	left := r.s.result
	r.c.Wipe()
	r.s.Wipe()
	if taken.Send.Hash() == 0 || taken.Recv.Hash() == 0 {
		t.Error("roots that were taken are wiped")
	}
	if left.Send.Hash() != 0 || left.Recv.Hash() != 0 {
		t.Error("roots that nobody took are left")
	}
	if r.c.Result() != (Result{}) || r.c.Done() {
		t.Error("a result after Wipe")
	}
	// A frame after the end wipes roots that nobody took, too.
	r = start(t, client, server, messageCount)
	left = r.s.result
	if err := r.s.HandleFrame(frame(t, r.message[clientAuth])); !errors.Is(err, ErrOver) {
		t.Errorf("%v", err)
	}
	if left.Send.Hash() != 0 || r.s.Done() {
		t.Error("roots are left")
	}
	// Result before the end is nothing, and takes nothing.
	r = start(t, client, server, serverAuth)
	if r.c.Result() != (Result{}) {
		t.Error("a result before the end")
	}
	r.deliver(serverAuth, r.message[serverAuth])
	left = r.c.result
	r.c.Wipe()
	if left.Send.Hash() != 0 {
		t.Error("an early Result kept the roots")
	}
}

// Every handshake has keys of its own.
func TestHandshakesAreFresh(t *testing.T) {
	client, server := standard(t)
	a, b := start(t, client, server, messageCount), start(t, client, server, messageCount)
	ka, _, errA := a.c.Result().Send.Traffic(0, profiles.AES256GCM, 0)
	kb, _, errB := b.c.Result().Send.Traffic(0, profiles.AES256GCM, 0)
	if errA != nil || errB != nil || ka == kb || bytes.Equal(a.message[clientHello], b.message[clientHello]) {
		t.Error("two handshakes are one")
	}
	// Nor can one's messages be played into another.
	for i := range messageCount {
		r := start(t, client, server, i)
		if c, s := r.finish(i, a.message[i]); s || c && i != clientAuth {
			t.Errorf("%s of another handshake: client %v, server %v", messageNames[i], c, s)
		}
	}
}

func TestMachineIsNotPrinted(t *testing.T) {
	client, server := standard(t)
	r := start(t, client, server, serverAuth)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		if out := fmt.Sprintf(verb, r.c); out != "handshake.Machine(client, redacted)" {
			t.Errorf("%s prints %q", verb, out)
		}
		out := fmt.Sprintf(verb, client)
		if strings.Contains(out, strings.Repeat(fmt.Sprintf("%x", clientFill), 4)) || strings.Contains(out, "193 193") {
			t.Errorf("%s prints %q", verb, out)
		}
	}
	if Client.String() != "client" || Server.String() != "server" {
		t.Error("role names")
	}
}

func TestMaxFrameLenHoldsTheLargestMessage(t *testing.T) {
	client, server := configs(t, profiles.Sovereign, profiles.MLDSA87)
	r := start(t, client, server, messageCount)
	for i, b := range r.message {
		if len(b) > MaxFrameLen {
			t.Errorf("%s has %d octets", messageNames[i], len(b))
		}
	}
}

// binding 6.1.
func TestSigningInput(t *testing.T) {
	client, server := standard(t)
	r := start(t, client, server, clientAuth)
	th := r.s.transcript.Sum()
	for dir, context := range []string{"client", "server"} {
		want := strings.Repeat(" ", 64) + "N-PAMP/2, " + context + " CertificateVerify\x00" + string(th.Bytes())
		if got := signingInput(nil, wire.Direction(dir), th.Bytes()); string(got) != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
