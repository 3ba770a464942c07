package gate

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestGateBoundsWhatIsInside(t *testing.T) {
	g := Gate{Limit: 2}
	for range 2 {
		if err := g.Enter(); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Enter(); !errors.Is(err, ErrFull) || g.Inside() != 2 {
		t.Errorf("%v with %d inside", err, g.Inside())
	}
	g.Leave()
	if err := g.Enter(); err != nil {
		t.Error(err)
	}
	var open Gate
	for range 1000 {
		if err := open.Enter(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWaitReturnsWhenClosedAndEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		if err := g.Enter(); err != nil {
			t.Fatal(err)
		}
		waits := make(chan error, 3)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { waits <- g.Wait(t.Context()) }()
		go func() { waits <- g.Wait(t.Context()) }()
		go func() { waits <- g.Wait(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-waits; !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want Canceled", err)
		}
		g.Close()
		if err := g.Enter(); !errors.Is(err, ErrClosed) || !g.Closed() {
			t.Errorf("%v, want ErrClosed", err)
		}
		synctest.Wait()
		if len(waits) != 0 {
			t.Error("Wait returned while one was inside")
		}
		g.Leave()
		for range 2 {
			if err := <-waits; err != nil {
				t.Error(err)
			}
		}
		if err := g.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
