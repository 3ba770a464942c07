package engine_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/crypto/handshake"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/crypto/kem"
	"github.com/trestle-npamp/trestle/crypto/record"
	"github.com/trestle-npamp/trestle/crypto/schedule"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/engine/conn"
	"github.com/trestle-npamp/trestle/engine/loop"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// secrets are octets that must not be found in anything printed, by name.
type secrets map[string][]byte

// find looks for any eight octets in a row of a secret, in each of the forms in
// which something printed could have them.
func (s secrets) find(t *testing.T, where, text string) {
	t.Helper()
	lower := strings.ToLower(text)
	for name, secret := range s {
		for i := 0; i+8 <= len(secret); i++ {
			w := secret[i : i+8]
			forms := []string{
				hex.EncodeToString(w),
				strings.ToLower(strings.Trim(fmt.Sprint(w), "[]")),
				strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%#v", w), "[]byte{"), "}")),
				fmt.Sprintf("% x", w),
			}
			found := strings.Contains(text, string(w))
			for _, form := range forms {
				found = found || strings.Contains(lower, form)
			}
			for shift := range 3 { // base64 has three alignments
				b := base64.RawStdEncoding.EncodeToString(append(make([]byte, shift), w...))
				found = found || strings.Contains(text, b[(shift*8+5)/6:len(b)-1])
			}
			if found {
				at := max(0, strings.Index(lower, forms[1])-100)
				t.Errorf("%s: octets %d to %d of %s are in %q", where, i, i+8, name, text[at:min(len(text), at+400)])
				return
			}
		}
	}
}

// everyVerb prints v in every way. A verb that does not suit looks behind a pointer
// that another would only number, past any Format.
func everyVerb(v any) string { return everyVerbBut(v, "") }

func everyVerbBut(v any, not string) string {
	var b strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%p"} {
		if verb != not {
			fmt.Fprintf(&b, verb+"\n", v)
		}
	}
	b.WriteString(fmt.Sprint(v))
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "v", v)
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "v", v)
	return b.String()
}

// hidden reads a field that another package keeps to itself.
func hidden(of any, names ...string) reflect.Value {
	v := reflect.ValueOf(of)
	for _, name := range names {
		v = v.Elem().FieldByName(name)
		v = reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem()
		if v.Kind() != reflect.Pointer {
			v = v.Addr()
		}
	}
	return v
}

// The scan must see what it is for.
func TestSecretsScan_SeesWhatItLooksFor(t *testing.T) {
	secret := []byte("\x01\x02\x83\x04\xF5\x06\x07\x08\x09\x0A\xFB\x0C")
	for name, text := range map[string]string{
		"octets":  "x" + string(secret[2:]),
		"hex":     fmt.Sprintf("%X", secret),
		"spaced":  fmt.Sprintf("% x", secret),
		"list":    fmt.Sprintf("%+v", struct{ b [12]byte }{[12]byte(secret)}),
		"go":      fmt.Sprintf("%#v", secret),
		"base64":  base64.StdEncoding.EncodeToString(secret),
		"shifted": base64.StdEncoding.EncodeToString(append([]byte("ab"), secret...)),
	} {
		inner := &testing.T{}
		secrets{"it": secret}.find(inner, name, text)
		if !inner.Failed() {
			t.Errorf("%s: not seen in %q", name, text)
		}
	}
}

// Whatever holds a secret prints none, with any verb and in any log.
func TestNoSecretInFormats(t *testing.T) {
	var seed [identity.SeedLen]byte
	for i := range seed {
		seed[i] = byte(i*37 + 11)
	}
	key, err := identity.FromSeed(profiles.Ed25519, seed)
	if err != nil {
		t.Fatal(err)
	}
	master := bytes.Repeat([]byte{0xA7, 0x13, 0x5C, 0xE9}, 8)
	s := secrets{"identity seed": seed[:], "master secret": master}
	root := func(dir wire.Direction) *schedule.Root { return schedule.NewRoot(profiles.SHA256, dir, master) }
	send, recv := root(wire.ClientToServer), root(wire.ServerToClient)
	traffic, iv, err := send.Traffic(0, profiles.AES256GCM, wire.ChannelBridge)
	if err != nil {
		t.Fatal(err)
	}
	s["traffic key"], s["traffic iv"] = traffic[:], iv[:]
	sealer := record.NewSealer(send, profiles.Standard, profiles.AES256GCM, wire.ChannelBridge)
	opener := record.NewOpener(recv, profiles.Standard, profiles.AES256GCM, wire.ChannelBridge)
	plain := []byte("plaintext that nobody logs")
	if _, err := sealer.Seal(append(make([]byte, wire.HeaderLen), plain...), 0, 0, 0x0100); err != nil {
		t.Fatal(err)
	}
	pair, err := kem.ByID(profiles.X25519MLKEM768).Generate(bytes.NewReader(bytes.Repeat(seed[:], 3)))
	if err != nil {
		t.Fatal(err)
	}
	secret := kem.NewSecret([kem.SecretLen]byte(append(bytes.Clone(seed[:]), master...)))
	thKEM := schedule.Point{}
	hs := schedule.NewSecrets(profiles.SHA256, secret.Bytes(), &thKEM)
	client, err := handshake.NewClient(handshake.Config{Identity: key, VerifyPeer: func(identity.PublicKey) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	cfg := conn.Config{
		Profile: profiles.Standard, Suite: profiles.AES256GCM, Send: send, Recv: recv,
		Channels: []wire.Channel{wire.ChannelBridge}, KEM: profiles.X25519MLKEM768, Rand: bytes.NewReader(bytes.Repeat(seed[:], 100)),
	}
	m := conn.New(cfg, time.Hour)
	m.StartBatch(time.Hour, nil, false)
	if b, err := m.Begin(wire.ChannelBridge, 0x0100, len(plain)); err != nil {
		t.Fatal(err)
	} else {
		s["plaintext"] = plain
		_ = append(b, plain...) // the frame is left begun: its plaintext lies in the batch
	}
	a := assoc.New(assoc.Options{Conn: cfg}, time.Hour)
	opts := assoc.Options{Conn: cfg}
	result := handshake.Result{Send: send, Recv: recv}
	ecfg := engine.Config{Identity: key}
	e := newEngine(t, ecfg)
	l, err := e.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// Keys of others, which need not hide anything of themselves.
	careless := carelessKey{key.Public(), master}
	certificate := tls.Certificate{PrivateKey: ed25519.NewKeyFromSeed(seed[:])}
	hcfg := handshake.Config{Identity: careless, VerifyPeer: func(identity.PublicKey) error { return nil }}
	kcfg := engine.Config{Identity: careless, Certificate: &certificate}
	security := loop.Security{Config: loop.TLSConfig(&certificate, nil), Server: true}
	for name, v := range map[string]any{
		"handshake.Config with another's key": hcfg, "*handshake.Config with another's key": &hcfg,
		"engine.Config with another's keys": kcfg, "*engine.Config with another's keys": &kcfg,
		"loop.Security": security, "*loop.Security": &security,
		"configs, kept": struct{ A any }{[]any{kcfg, hcfg, security}},
		// Copies, which nobody should make, are as silent.
		"an identity.Key": *key, "a schedule.Root": *send, "a schedule.Secrets": *hs,
		"a kem.Secret": *secret, "a kem.KeyPair": *pair,
		"a record.Sealer": *sealer, "a record.Opener": *opener,
		"copies": struct{ A, B, C any }{*key, *send, *secret},
	} {
		s.find(t, name, everyVerbBut(v, "%p")) // of a value it prints all, past any Format; vet refuses that
	}
	for name, v := range map[string]any{
		"identity.Key": key, "identity.PrivateKey": identity.PrivateKey(key),
		"schedule.Root": send, "schedule.Secrets": hs,
		"record.Sealer": sealer, "record.Opener": opener,
		"kem.KeyPair": pair, "kem.Secret": secret,
		"handshake.Machine": client, "handshake.Config": handshake.Config{Identity: key}, "handshake.Result": result, "*handshake.Result": &result,
		"conn.Conn": m, "conn.Config": cfg, "*conn.Config": &cfg,
		"assoc.Association": a, "assoc.Options": opts, "*assoc.Options": &opts,
		"engine.Config": ecfg, "*engine.Config": &ecfg, "engine.Engine": e, "engine.Listener": l,
		// Inside of something else, as logs have it.
		"map":    map[string]any{"conn": m, "root": send, "config": cfg},
		"slice":  []any{m, send, secret, key, a},
		"struct": struct{ Root, Other *schedule.Root }{send, recv},
		"kept":   struct{ a, b any }{m, e},
	} {
		s.find(t, name, everyVerb(v))
	}
}

// carelessKey is a private key that prints itself.
type carelessKey struct {
	Pub  identity.PublicKey
	Seed []byte
}

func (k carelessKey) Public() identity.PublicKey  { return k.Pub }
func (carelessKey) Sign(m []byte) ([]byte, error) { return nil, errors.New("does not sign") }

// locked is a buffer for loggers of many goroutines.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// What engines log at any level, and every error they return, while associations
// come up, work, change keys, fail and end: no secret and no plaintext is in it.
func TestNoSecretInLogsAndErrors(t *testing.T) {
	overBoth(t, func(t *testing.T, tr engine.Transport) {
		var log locked
		logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug - 10, AddSource: true}))
		s := secrets{"plaintext": []byte("plaintext that nobody logs")}
		newKey := func(fill byte) *identity.Key {
			var seed [identity.SeedLen]byte
			for i := range seed {
				seed[i] = byte(i)*91 + fill
			}
			s[fmt.Sprintf("identity seed %d", fill)] = seed[:]
			k, err := identity.FromSeed(profiles.Ed25519, seed)
			if err != nil {
				t.Fatal(err)
			}
			return k
		}
		make1 := func(fill byte, h engine.ChannelHandler) *engine.Engine {
			return newEngine(t, engine.Config{Identity: newKey(fill), Transport: tr, Channels: []engine.ChannelHandler{h}, Logger: logger})
		}
		panics := &echo{reply: true, got: func(_ *engine.Association, p []byte) {
			if bytes.HasSuffix(p, []byte("!")) {
				panic("a handler's own words")
			}
		}}
		srv, cli := make1(1, panics), make1(2, &echo{})
		addr := listen(t, srv)
		var errs []error
		keep := func(err error) {
			if err != nil {
				errs = append(errs, err)
			}
		}
		roots := func(a *engine.Association) {
			for _, way := range []string{"Send", "Recv"} {
				r := hidden(a, "m", "cfg", way)
				s[fmt.Sprintf("root %d %s", len(s), way)] = bytes.Clone(hidden(r.Interface(), "secret").Elem().Slice(0, 32).Bytes())
			}
		}
		onLoop := func(a *engine.Association, f func()) {
			done := make(chan struct{})
			if a.Do(func() { f(); close(done) }) {
				<-done
			}
		}
		for i := range 4 {
			a, err := cli.Dial(t.Context(), addr, engine.DialOptions{Peer: identity.Pin(srv.Identity())})
			if err != nil {
				t.Fatal(err)
			}
			waitHello(t, a)
			onLoop(a, func() { roots(a) })
			keep(a.Send(t.Context(), wire.ChannelMemory, echoType, s["plaintext"]))
			keep(a.UpdateKey(t.Context(), wire.ChannelMemory))
			keep(a.Ratchet(t.Context()))
			keep(a.Rekem(t.Context()))
			onLoop(a, func() { roots(a) })
			s.find(t, "an association that works", everyVerb(a))
			switch i {
			case 0:
				a.Close(control.CodePolicy, "enough")
			case 1:
				keep(a.Send(t.Context(), wire.ChannelMemory, echoType, append(bytes.Clone(s["plaintext"]), '!')))
			case 2:
				keep(a.Send(t.Context(), wire.ChannelMemory, echoType, make([]byte, 100<<20)))
				keep(a.Send(t.Context(), wire.ChannelAudit, echoType, s["plaintext"]))
				a.Close(0, "")
			default:
				srv.Associations(func(p *engine.Association) bool { p.Close(control.CodeInternal, ""); return true })
			}
			<-a.Done()
			keep(a.Err())
			keep(a.Send(t.Context(), wire.ChannelMemory, echoType, s["plaintext"]))
			keep(a.Ratchet(t.Context()))
		}
		// Handshakes that fail: another key pinned, garbage, silence and its end.
		_, err := cli.Dial(t.Context(), addr, engine.DialOptions{Peer: identity.Pin(newKey(3).Public())})
		keep(err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = cli.Dial(ctx, addr, engine.DialOptions{})
		keep(err)
		for _, garbage := range []string{"", "GET / HTTP/1.1\r\n\r\n", string(wire.AppendHeader(nil, wire.FlagENC, 0x0103, 0, 0, 200)) + strings.Repeat("x", 200)} {
			nc, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = nc.Write([]byte(garbage))
			_ = nc.Close()
		}
		nptest.Eventually(t, func() bool { return srv.Stats().HandshakesFailed >= 3 }, func() any { return srv.Stats() })

		if len(errs) < 10 {
			t.Errorf("only %d errors to scan", len(errs))
		}
		for _, err := range errs {
			s.find(t, "an error", everyVerb(err))
			for e := err; e != nil; e = errors.Unwrap(e) {
				s.find(t, "an error's cause", everyVerb(e))
			}
		}
		text := log.String()
		if !strings.Contains(text, "association ended") || !strings.Contains(text, "panicked") {
			t.Errorf("the log tells too little to be scanned: %.300q", text)
		}
		s.find(t, "the log", text)
	})
}
