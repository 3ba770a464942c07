package assoc

import (
	"context"
	"errors"

	"github.com/trestle-npamp/trestle/engine/conn"
	"github.com/trestle-npamp/trestle/wire"
)

// Errors of key changes on demand.
var (
	// ErrRate: another key change now is more than a peer puts up with.
	ErrRate = conn.ErrRate
	// ErrNoRatchet: this association takes no ratchet steps.
	ErrNoRatchet = conn.ErrNoRatchet
	// ErrRekemCrossed: the peer took a step of its own before it had seen ours.
	ErrRekemCrossed = conn.ErrRekemCrossed
	// ErrRekemTimeout: the peer did not answer a REKEM.
	ErrRekemTimeout = conn.ErrRekemTimeout
)

// UpdateKey renews the sending key of ch (KEY_UPDATE). Keys are renewed within
// their bounds without it. Any goroutine but the loop. Errors: ErrChannel,
// ErrRate, ErrClosed, ctx's.
func (a *Association) UpdateKey(ctx context.Context, ch wire.Channel) error {
	return a.ask(ctx, func(res chan<- error) { res <- a.m.UpdateKey(ch) })
}

// Ratchet replaces the root of the sending direction (MASTER_RATCHET): whoever
// learns its keys later can't read what was sent before. Roots are replaced within
// their bounds without it. Any goroutine but the loop. Errors: ErrRate,
// ErrNoRatchet, ErrClosed, ctx's.
func (a *Association) Ratchet(ctx context.Context) error {
	return a.ask(ctx, func(res chan<- error) { res <- a.m.Ratchet() })
}

// Rekem replaces the root of the receiving direction by a fresh key exchange
// (REKEM): whoever knew its keys before can't read what arrives after. It returns
// once that has happened, and joins a step that is under way. Roots are replaced
// within their bounds without it. Any goroutine but the loop.
//
// Errors: ErrRekemCrossed, after which it may be called again, ErrRekemTimeout,
// ErrRate, ErrNoRatchet, ErrClosed, ctx's; the step goes on when ctx ends.
func (a *Association) Rekem(ctx context.Context) error {
	return a.ask(ctx, func(res chan<- error) {
		if err := a.m.Rekem(); err != nil && !errors.Is(err, conn.ErrRekemPending) {
			res <- err
			return
		}
		a.rekems = append(a.rekems, res)
	})
}

// ask runs f on the loop and waits for its answer.
func (a *Association) ask(ctx context.Context, f func(res chan<- error)) error {
	res := make(chan error, 1)
	if !a.Do(func() { f(res) }) {
		return a.ClosedErr()
	}
	select {
	case err := <-res:
		if errors.Is(err, ErrClosed) {
			return a.ClosedErr()
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// settleRekem tells those who wait for a tier-2 step how it ended.
func (a *Association) settleRekem(err error) {
	for _, res := range a.rekems {
		res <- err
	}
	a.rekems = nil
}
