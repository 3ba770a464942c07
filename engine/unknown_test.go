package engine_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine"
)

// Who runs a listener learns the key of a peer that it refuses, to let it in or not.
func TestRefusedPeerIsNamedToTheOperator(t *testing.T) {
	overBoth(t, func(t *testing.T, tr engine.Transport) {
		var log locked
		srv := newEngine(t, engine.Config{
			Transport: tr,
			Peers:     func(identity.PublicKey) error { return identity.ErrPeerNotAllowed },
			Logger:    slog.New(slog.NewTextHandler(&log, nil)),
		})
		cli := newEngine(t, engine.Config{Transport: tr})
		addr := listen(t, srv)
		// The client is done before the server judges it.
		if a, err := cli.Dial(t.Context(), addr, engine.DialOptions{Peer: identity.Pin(srv.Identity())}); err == nil {
			<-a.Done()
		}
		for late := time.After(30 * time.Second); !strings.Contains(log.String(), cli.Identity().Handle()); {
			select {
			case <-late:
				t.Fatalf("the log has no %s: %s", cli.Identity().Handle(), log.String())
			case <-time.After(time.Millisecond):
			}
		}
	})
}

// D12: a dial without a rule is warned of, once, and only where it is accepted.
func TestD12_DialsWithoutARuleAreWarnedOf(t *testing.T) {
	overBoth(t, func(t *testing.T, tr engine.Transport) {
		var log locked
		srv := newEngine(t, engine.Config{Transport: tr})
		cli := newEngine(t, engine.Config{Transport: tr, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		addr := listen(t, srv)
		dial := func(peer identity.Verifier) {
			t.Helper()
			a, err := cli.Dial(t.Context(), addr, engine.DialOptions{Peer: peer})
			if err != nil {
				t.Fatal(err)
			}
			a.Close(0, "")
			<-a.Done()
		}
		dial(identity.Pin(srv.Identity()))
		if s := log.String(); strings.Contains(s, "no peer is configured") {
			t.Errorf("warned of a pinned peer: %s", s)
		}
		dial(nil)
		dial(nil)
		if s := log.String(); strings.Count(s, "no peer is configured") != 1 {
			t.Errorf("%s", s)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := cli.Dial(ctx, addr, engine.DialOptions{}); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
}
