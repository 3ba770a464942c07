package document

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// The defaults of a Config.
const (
	// DefaultMaxOctets is how large one set may be, proofs included.
	DefaultMaxOctets = 16 << 20
	// DefaultMaxHeld is how many octets there may be of all sets that are not complete.
	DefaultMaxHeld = 256 << 20
	// DefaultMaxProofs is how many proofs one set may have.
	DefaultMaxProofs = 16
	// DefaultTimeout is how long a set may take from the request to its last part.
	DefaultTimeout = 30 * time.Second
)

// Config bounds what a Receiver takes. Zero limits take their defaults.
type Config struct {
	MaxOctets int
	MaxHeld   int64
	MaxProofs int
	// Timeout is for calls that have none of their own. Negative is no limit.
	Timeout time.Duration
	// Known says which kinds of proofs can be checked here; others are handed over
	// with an Err, and reported to the peer as ProofUnsupported. nil knows the
	// signatures of the core specification, ProofEd25519 and ProofMLDSA87.
	Known func(alg uint16) bool
	// Verbatim hands over proofs of all kinds and reports none: for who passes a set
	// on and checks no proofs.
	Verbatim bool
}

// Receiver receives document sets. It is safe for use by many goroutines.
type Receiver struct {
	cfg    Config
	budget *buf.Budget
}

// NewReceiver makes a Receiver.
func NewReceiver(cfg Config) *Receiver {
	if cfg.MaxOctets <= 0 {
		cfg.MaxOctets = DefaultMaxOctets
	}
	if cfg.MaxHeld <= 0 {
		cfg.MaxHeld = DefaultMaxHeld
	}
	if cfg.MaxProofs <= 0 {
		cfg.MaxProofs = DefaultMaxProofs
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.Known == nil {
		cfg.Known = func(alg uint16) bool { return alg == ProofEd25519 || alg == ProofMLDSA87 }
	}
	if cfg.Verbatim {
		cfg.Known = nil
	}
	return &Receiver{cfg: cfg, budget: buf.NewBudget(cfg.MaxHeld)}
}

// Held is how many octets there are of sets that are not complete.
func (r *Receiver) Held() int64 { return r.budget.Used() }

func (r *Receiver) assembler() assembler {
	return assembler{maxProofs: r.cfg.MaxProofs, maxOctets: r.cfg.MaxOctets, budget: r.budget, known: r.cfg.Known}
}

// Start asks a's peer for a set, by c's method, and returns at once. done is told of
// the end exactly once, on a's loop: of the set, which is then its own, or nil and a
// reply that brought none, which is borrowed (see carriage.PartHandler). If Start
// returns an error, done is told nothing. Any goroutine may call it. The errors are
// those of carriage.Bridge.StartSet.
//
// If b has no number configured for bindings, the document is what one plain
// RESPONSE brings, and the set has no digest.
func (r *Receiver) Start(b *carriage.Bridge, a *assoc.Association, c *carriage.Call, done func(s *Set, reply *carriage.Reply)) (*carriage.Consumer, error) {
	own := *c
	if own.Timeout == 0 && r.cfg.Timeout > 0 {
		own.Timeout = r.cfg.Timeout
	}
	x := &reception{b: b, a: a, p: c.Protocol, done: done, assembler: r.assembler(), plain: b.Tags().DocumentBinding == 0}
	from, err := b.StartSet(a, &own, x)
	if err != nil {
		return nil, err
	}
	return from, nil
}

// Fetch asks a's peer for a set, by c's method, and waits for it; ctx bounds the
// wait. Any goroutine but a loop may call it.
//
// Errors: those of Start; a *bridge.Error, which is what the peer said or we found,
// with SetIncomplete if some of the set came and the time ended; a
// *carriage.ForeignError; the context's; what matches assoc.ErrClosed.
func (r *Receiver) Fetch(ctx context.Context, b *carriage.Bridge, a *assoc.Association, c *carriage.Call) (*Set, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var set *Set
	var err error
	ended := make(chan struct{})
	x, startErr := r.Start(b, a, c, func(s *Set, reply *carriage.Reply) {
		set, err = s, Err(reply)
		close(ended)
	})
	if startErr != nil {
		return nil, startErr
	}
	select {
	case <-ended:
	case <-ctx.Done():
		x.Cancel(ctx.Err())
		<-ended
	}
	return set, err
}

// Err is what a reply that brought no set says, nil for one that brought a set. It
// copies what is borrowed.
func Err(reply *carriage.Reply) error {
	switch {
	case reply.Err != nil:
		return reply.Err
	case reply.Kind == bridge.KindError:
		return &carriage.ForeignError{Content: reply.Content, Foreign: append([]byte(nil), reply.Foreign...)}
	}
	return nil
}

// reception is one set on its way. All of it belongs to the loop.
type reception struct {
	b         *carriage.Bridge
	a         *assoc.Association
	p         bridge.ProtocolID
	done      func(*Set, *carriage.Reply)
	assembler assembler
	plain     bool // without bindings
	set       *Set
}

// HandlePart implements carriage.PartHandler.
func (x *reception) HandlePart(p *carriage.Part) (done bool, err error) {
	if x.plain {
		if p.Kind != bridge.KindResponse {
			return false, failure(bridge.CodeEnvelopeMalformed, "a stream in place of a document")
		}
		x.set = &Set{MediaType: mediaType(p), Document: append([]byte(nil), p.Foreign...)}
		return true, nil
	}
	if done, err = x.assembler.add(p); done {
		x.set = x.assembler.set()
		x.report(p.Corr)
	}
	return done, err
}

// report tells the peer which proofs can't be checked here (CC-DOC 6.4). The set is
// complete all the same.
func (x *reception) report(corr []byte) {
	for i := range x.set.Proofs {
		if err := x.set.Proofs[i].Err; err != nil {
			text := "proof " + strconv.Itoa(i) + ": " + algName(x.set.Proofs[i].Alg) + " is not known here"
			_ = x.b.ReportSet(x.a, x.p, corr, bridge.CodeOf(err), text) // without room it is not told
		}
	}
}

func mediaType(p *carriage.Part) string {
	if len(p.MediaType) > 0 {
		return string(p.MediaType)
	}
	return p.Content.MediaType()
}

// HandleReply implements carriage.Completion.
func (x *reception) HandleReply(reply *carriage.Reply) {
	some := x.assembler.begun
	x.assembler.discard()
	if x.set == nil && some && (errors.Is(reply.Err, context.DeadlineExceeded) || errors.Is(reply.Err, context.Canceled)) {
		r := *reply
		r.Err = fmt.Errorf("%w: %w", &bridge.Error{Code: bridge.CodeSetIncomplete, Text: "given up before the set was complete"}, reply.Err)
		reply = &r
	}
	x.done(x.set, reply)
}

// Push sends a document that nobody asked for as one notification (CC-DOC 7.2): c
// says under which protocol and method. At the outbound limit it waits for room,
// until ctx ends. Errors: ErrProofs, ErrSet, and those of carriage.Bridge.Notify,
// bridge.ErrTagOff and assoc.ErrTooLarge among them.
func Push(ctx context.Context, b *carriage.Bridge, a *assoc.Association, c *carriage.Call, s *Set) error {
	if len(s.Proofs) > 0 {
		return ErrProofs
	}
	parts, err := s.Parts()
	if err != nil {
		return err
	}
	own := *c
	own.Binding, own.Foreign = parts[0].Binding, parts[0].Foreign
	if own.Label == nil && !own.NoLabel {
		own.Label = &bridge.Label{Effect: bridge.ReadOnly} // CC-DOC 9
	}
	return b.Notify(ctx, a, &own)
}

// Pushed returns the document that a notification carries, once its digest is
// recomputed. Errors: ErrNotDocument; a *bridge.Error that says what is wrong with
// it, of which the peer is not told, as with any notification.
func (r *Receiver) Pushed(n *carriage.Notify) (*Set, error) {
	if len(n.Binding()) == 0 {
		return nil, ErrNotDocument
	}
	if v, err := bridge.ParseBinding(n.Binding()); err != nil {
		return nil, err
	} else if v.Part != bridge.PartDocument || v.ProofCount != 0 {
		return nil, failure(bridge.CodeBindingMalformed, "a notification carries a document without proofs")
	}
	a := r.assembler()
	done, err := a.add(&carriage.Part{Kind: bridge.KindResponse, Binding: n.Binding(), Foreign: n.Foreign()})
	if err != nil || !done {
		a.discard()
		return nil, err
	}
	return a.set(), nil
}
