package engine

import (
	"net"
	"reflect"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/crypto/handshake"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/profiles"
)

// Every field of Limits reaches what holds the limit: set to a value of its own,
// it is found there and nowhere else. What happens at each limit is tested where
// it is held.
func TestLimitsReachWhatHoldsThem(t *testing.T) {
	var l Limits
	n := 0
	fill := func(v reflect.Value) {
		for i := range v.NumField() {
			f := v.Field(i)
			n++
			switch {
			case f.CanInt():
				f.SetInt(int64(n) * 1000)
			case f.CanUint():
				f.SetUint(uint64(n) * 1000)
			case f.Type() == reflect.TypeFor[profiles.Bounds]():
				f.Set(reflect.ValueOf(profiles.Bounds{Frames: uint64(n), Octets: uint64(n) * 7, Age: time.Duration(n)}))
			default:
				t.Fatalf("Limits.%s: a kind this test does not know", v.Type().Field(i).Name)
			}
		}
	}
	fill(reflect.ValueOf(&l).Elem())
	e := &Engine{cfg: Config{Limits: l}}
	o := e.options(Client, handshake.Result{}, nil, nil, DialOptions{})
	held := map[string]any{
		"MaxFrame":     o.Conn.MaxFrame,
		"Credit":       o.Conn.Credit,
		"StreamCredit": o.Conn.StreamCredit,
		"HighWater":    o.Conn.HighWater,
		"Outbound":     o.OutboundLimit,
		"Stall":        o.Stall,
		"PingInterval": o.Conn.PingInterval,
		"HelloWait":    o.Conn.HelloWait,
		"HelloIdle":    o.Conn.HelloIdle,
		"CloseWait":    o.Conn.CloseWait,
		"Keys":         o.Conn.Bounds,
		"Ratchet":      o.Conn.Ratchet,
		"Rekem":        o.Conn.Rekem,
	}
	// These are held by the engine itself, and reached in tests of their own.
	own := map[string]bool{"Associations": true, "PendingHandshakes": true, "HandshakeTimeout": true, "Budget": true}
	v := reflect.ValueOf(l)
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		got, ok := held[name]
		if ok == own[name] {
			t.Errorf("Limits.%s: no test says what holds it", name)
		}
		if ok && got != v.Field(i).Interface() {
			t.Errorf("Limits.%s is %v where it is held, want %v", name, got, v.Field(i).Interface())
		}
	}
	if o.Conn.Rand == nil {
		t.Error("no randomness for tier-2 steps")
	}
}

// D12: without a rule, whoever comes from a loopback address is accepted, and
// nobody else; a rule decides alone.
func TestD12_WithoutARuleOnlyLoopbackIsAccepted(t *testing.T) {
	k, err := identity.Generate(profiles.Ed25519, nil)
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{}
	for addr, ok := range map[string]bool{
		"127.0.0.1": true, "127.8.8.8": true, "::1": true,
		"192.0.2.1": false, "10.0.0.1": false, "2001:db8::1": false, "0.0.0.0": false,
	} {
		err := e.verifier(&net.TCPAddr{IP: net.ParseIP(addr), Port: 1}, nil)(k.Public())
		if (err == nil) != ok {
			t.Errorf("%s: %v", addr, err)
		}
		if err := e.verifier(&net.TCPAddr{IP: net.ParseIP(addr)}, identity.AllowList(identity.NewSet()))(k.Public()); err == nil {
			t.Errorf("%s: an empty allow-list accepted a key", addr)
		}
	}
	if err := e.verifier(&net.UnixAddr{Name: "x"}, nil)(k.Public()); err == nil {
		t.Error("an address of another kind counts as loopback")
	}
}
