package document

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// Without a configured number a document is one plain RESPONSE, and proofs are
// refused instead of lost (D7, D24).
func TestD24_WithoutANumber(t *testing.T) {
	off := func(h carriage.Handler) carriage.Config {
		c := config(h)
		c.Tags = nil
		return c
	}
	pair, b, _ := both(t, off(nil), off(server(setOf(t, card), carriage.SetOptions{})), nil)
	o, _ := ask(t, NewReceiver(Config{}), b, pair.Client.Association)
	pair.Settle()
	if o.n != 1 || o.err != nil || o.set == nil || !bytes.Equal(o.set.Document, card) || o.set.Alg != 0 || o.set.MediaType != "application/json" {
		t.Errorf("told %d times: %+v, %v", o.n, o.set, o.err)
	}

	pair, b, _ = both(t, off(nil), off(server(setOf(t, card, signature), carriage.SetOptions{})), nil)
	o, _ = ask(t, NewReceiver(Config{}), b, pair.Client.Association)
	pair.Settle()
	o.failed(t, bridge.CodeNotDelivered, true)

	if err := Push(background, b, pair.Client.Association, &carriage.Call{Protocol: a2a, Method: method}, setOf(t, card)); !errors.Is(err, bridge.ErrTagOff) {
		t.Errorf("a push without a number: %v", err)
	}

	// One side alone has it: its binding is missed by the other, or passed over.
	pair, b, _ = both(t, config(nil), off(server(setOf(t, card), carriage.SetOptions{})), nil)
	o, _ = ask(t, NewReceiver(Config{}), b, pair.Client.Association)
	pair.Settle()
	o.failed(t, bridge.CodeBindingMalformed, false)
	pair, b, _ = both(t, off(nil), config(server(setOf(t, card), carriage.SetOptions{})), nil)
	o, _ = ask(t, NewReceiver(Config{}), b, pair.Client.Association)
	pair.Settle()
	if o.err != nil || o.set == nil || !bytes.Equal(o.set.Document, card) {
		t.Errorf("set %+v, %v", o.set, o.err)
	}
}

// A stream in place of the one RESPONSE is nothing that could be shown.
func TestD24_AStreamWithoutANumber(t *testing.T) {
	cfg := config(nil)
	cfg.Tags = nil
	pair, b, p := asking(t, cfg)
	o, _ := ask(t, NewReceiver(Config{}), b, pair.Client.Association)
	pair.Settle()
	corr := p.one(t).Corr
	m := part(corr, bridge.KindData, bindingOf(card, 0), 1, card)
	m.Binding = nil
	p.send(t, m)
	pair.Settle()
	o.failed(t, bridge.CodeEnvelopeMalformed, false)
	p.told(t, corr, bridge.CodeEnvelopeMalformed)
}

func TestImpossibleSets(t *testing.T) {
	long := strings.Repeat("x", 256)
	for name, make := range map[string]func() (*Set, error){
		"no id":           func() (*Set, error) { return New("", "application/json", 0, card) },
		"long id":         func() (*Set, error) { return New(long, "application/json", 0, card) },
		"no media type":   func() (*Set, error) { return New("card", "", 0, card) },
		"long media type": func() (*Set, error) { return New("card", long, 0, card) },
		"not UTF-8":       func() (*Set, error) { return New("card", "\xff", 0, card) },
		"digest":          func() (*Set, error) { return New("card", "a/b", 7, card) },
		"proofs":          func() (*Set, error) { return New("card", "a/b", 0, card, make([]Proof, 256)...) },
		"proof's type":    func() (*Set, error) { return New("card", "a/b", 0, card, Proof{MediaType: long}) },
	} {
		if s, err := make(); s != nil || !errors.Is(err, ErrSet) {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	if s, err := New(long[:255], long[:255], bridge.DigestSHA512, nil, make([]Proof, 255)...); s == nil || err != nil {
		t.Errorf("the largest set: %v", err)
	}
}

// The most proofs that a set can have, each in its place.
func TestManyProofs(t *testing.T) {
	proofs := make([]Proof, MaxProofs)
	for i := range proofs {
		proofs[i] = Proof{Alg: ProofEd25519, Octets: fmt.Appendf(nil, "proof %d", i)}
	}
	s := setOf(t, card, proofs...)
	for _, streamed := range []bool{false, true} {
		pair, b, _ := both(t, config(nil), config(server(s, carriage.SetOptions{Stream: streamed})), nil)
		o, _ := ask(t, NewReceiver(Config{MaxProofs: MaxProofs}), b, pair.Client.Association)
		pair.Run(time.Second)
		o.got(t, s)
	}
}

// A server hands on what asks for no document.
func TestServerHandsOn(t *testing.T) {
	notified := 0
	next := &nextHandler{request: func(r *carriage.Request) {
		must(t, r.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":1}`)))
	}, notify: func() { notified++ }}
	s := server(setOf(t, card), carriage.SetOptions{})
	s.Next = next
	pair, _, p := serving(t, config(s))
	p.send(t, bridge.Message{Kind: bridge.KindRequest, Corr: []byte("1"), Method: []byte("x"), Foreign: []byte(`{"jsonrpc":"2.0","id":1,"method":"x"}`)})
	p.send(t, bridge.Message{Kind: bridge.KindNotify, Method: []byte("x"), Foreign: []byte(`{"jsonrpc":"2.0","method":"x"}`)})
	m := part(nil, bridge.KindNotify, bindingOf(card, 0), 0, card)
	m.HasStream = false
	p.send(t, m) // nothing takes pushed documents here but who takes notifications
	pair.Settle()
	if m := p.one(t); m.Kind != bridge.KindResponse || len(m.Binding) != 0 || notified != 2 {
		t.Errorf("answer %+v, %d notified", m, notified)
	}
	s.Next = nil
	p.send(t, bridge.Message{Kind: bridge.KindRequest, Corr: []byte("2"), Method: []byte("x"), Foreign: []byte(`{"jsonrpc":"2.0","id":1,"method":"x"}`)})
	pair.Settle()
	p.told(t, []byte("2"), bridge.CodeMethodUnsupported)
}

type nextHandler struct {
	request func(*carriage.Request)
	notify  func()
}

func (h *nextHandler) ServeRequest(r *carriage.Request) { h.request(r) }
func (h *nextHandler) ServeNotify(*carriage.Notify)     { h.notify() }

// Errors of Get become the codes that they have.
func TestServerErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		code bridge.Code
	}{
		{errors.New("no such document"), bridge.CodeNotDelivered},
		{bridge.CodeMethodUnsupported, bridge.CodeMethodUnsupported},
		{fmt.Errorf("so: %w", &bridge.Error{Code: bridge.CodeSafetyPolicy, Text: "no"}), bridge.CodeSafetyPolicy},
	} {
		pair, _, p := serving(t, config(&Server{Get: func(*carriage.Request) (*Set, error) { return nil, c.err }}))
		request(t, p, "1")
		pair.Settle()
		p.told(t, []byte("1"), c.code)
	}
	// A set that can't be one is refused too.
	pair, _, p := serving(t, config(server(&Set{ID: "x"}, carriage.SetOptions{})))
	request(t, p, "1")
	pair.Settle()
	p.told(t, []byte("1"), bridge.CodeNotDelivered)
}

// Handlers may answer from elsewhere, and Fetch waits for it on a goroutine of its own.
func TestFetch(t *testing.T) {
	s := setOf(t, text(100<<10), signature)
	h := server(s, carriage.SetOptions{Stream: true})
	cfg := config(h)
	cfg.Protocols[0].Async = true
	pair, b, _ := both(t, config(nil), cfg, nil)
	fetch := func(ctx context.Context, call carriage.Call) (*Set, error) {
		type result struct {
			s   *Set
			err error
		}
		ended := make(chan result, 1)
		go func() {
			s, err := NewReceiver(Config{}).Fetch(ctx, b, pair.Client.Association, &call)
			ended <- result{s, err}
		}()
		var r result
		pair.RunUntil(func() bool {
			select {
			case r = <-ended:
				return true
			default:
				return false
			}
		})
		return r.s, r.err
	}
	got, err := fetch(background, carriage.Call{Protocol: a2a, Method: method})
	must(t, err)
	equal(t, got, s)

	if _, err := fetch(background, carriage.Call{Protocol: a2a, Method: "message/send"}); !errors.Is(err, carriage.ErrMalformed) {
		t.Errorf("a method that asks for no document: %v", err)
	}
	if _, err := fetch(background, carriage.Call{Protocol: bridge.ProtocolMCP, Method: method}); err != carriage.ErrProtocol {
		t.Errorf("another protocol: %v", err)
	}
	ctx, cancel := context.WithCancel(background)
	cancel()
	if _, err := fetch(ctx, carriage.Call{Protocol: a2a, Method: method}); err != context.Canceled {
		t.Errorf("a context that has ended: %v", err)
	}

	// One that ends while nothing comes.
	held := make(chan struct{})
	h.Get = func(*carriage.Request) (*Set, error) { <-held; return nil, errors.New("late") }
	ctx, cancel = context.WithCancel(background)
	time.AfterFunc(time.Millisecond, cancel)
	if _, err := fetch(ctx, carriage.Call{Protocol: a2a, Method: method}); !errors.Is(err, context.Canceled) || isCode(err, bridge.CodeSetIncomplete) {
		t.Errorf("given up before anything came: %v", err)
	}
	close(held)
	pair.RunUntil(func() bool { return carriageBusy(pair) == 0 })
}

func carriageBusy(p *nptest.Pair) int {
	return p.Server.ChannelConn(13).Busy() + p.Client.ChannelConn(13).Busy()
}

// A peer that does not read costs its share of the queue and not the document, and is
// cut when nothing leaves.
func TestSlowConsumers(t *testing.T) {
	for _, streamed := range []bool{false, true} {
		t.Run(fmt.Sprintf("streamed=%v", streamed), func(t *testing.T) {
			var over []error
			s := setOf(t, text(900<<10), Proof{Alg: ProofEd25519, Octets: text(900 << 10)}, Proof{Alg: ProofEd25519, Octets: text(900 << 10)})
			cfg := config(server(s, carriage.SetOptions{Stream: streamed, Over: func(err error) { over = append(over, err) }}))
			cfg.StallTimeout = 2 * second
			pair, b, _ := both(t, config(nil), cfg, func(o *nptest.Options) {
				o.Client.Conn.StreamCredit, o.Server.Conn.StreamCredit = -1, -1
				o.Server.Stall = 20 * second
			})
			pair.Server.Block(true)
			o, _ := ask(t, NewReceiver(Config{}), b, pair.Client.Association)
			pair.Run(second)
			if n := pair.Server.Queued(); n > 2<<20 {
				t.Errorf("%d octets are queued", n)
			}
			if len(over) != 0 {
				t.Fatalf("over already: %v", over)
			}
			pair.Run(10 * second)
			if len(over) != 1 || over[0] != carriage.ErrSlowConsumer {
				t.Fatalf("over: %v", over)
			}
			pair.Server.Block(false)
			pair.Run(second)
			o.failed(t, bridge.CodeNotDelivered, true)
		})
	}
}

// Sets that wait for room go on when there is some, side by side.
func TestSetsWaitForRoom(t *testing.T) {
	s := setOf(t, text(600<<10), signature)
	pair, b, _ := both(t, config(nil), config(server(s, carriage.SetOptions{})), func(o *nptest.Options) {
		o.Server.OutboundLimit = 1 << 20
	})
	pair.Server.Block(true)
	r := NewReceiver(Config{})
	var all []*outcome
	for range 8 {
		o, _ := ask(t, r, b, pair.Client.Association)
		all = append(all, o)
	}
	pair.Run(second)
	pair.Server.Block(false)
	pair.Run(5 * second)
	for _, o := range all {
		o.got(t, s)
	}
	if n := carriageBusy(pair); n != 0 {
		t.Errorf("%d exchanges are still open", n)
	}
}

// A set whose association ends is over for who sends it, exactly once.
func TestSetsEndWithTheirAssociation(t *testing.T) {
	var over []error
	h := server(setOf(t, text(4<<20)), carriage.SetOptions{Over: func(err error) { over = append(over, err) }})
	pair, b, _ := both(t, config(nil), config(h), nil)
	pair.Server.Block(true)
	o, _ := ask(t, NewReceiver(Config{}), b, pair.Client.Association)
	pair.Run(second)
	pair.Cut(nil)
	pair.Run(second)
	if len(over) != 1 || !errors.Is(over[0], assoc.ErrClosed) {
		t.Errorf("over: %v", over)
	}
	if o.n != 1 || !errors.Is(o.err, assoc.ErrClosed) {
		t.Errorf("told %d times: %v", o.n, o.err)
	}
}

// A drain lets a set that is on its way finish, and cuts one that can't.
func TestSetsInADrain(t *testing.T) {
	for _, blocked := range []bool{false, true} {
		var over []error
		h := server(setOf(t, text(4<<20)), carriage.SetOptions{Over: func(err error) { over = append(over, err) }})
		pair, b, _ := both(t, config(nil), config(h), func(o *nptest.Options) { o.Latency = 10 * time.Millisecond })
		pair.Run(second)
		pair.Server.Block(true)
		o, _ := ask(t, NewReceiver(Config{}), b, pair.Client.Association)
		pair.Run(100 * time.Millisecond)
		pair.Server.Drain(0, "")
		pair.Server.Block(blocked)
		pair.Run(3 * second)
		if len(over) != 1 || (over[0] == nil) == blocked || blocked && over[0] != carriage.ErrDraining {
			t.Errorf("blocked %v: over %v", blocked, over)
		}
		if !blocked && (o.set == nil || o.err != nil) {
			t.Errorf("set %v, %v", o.set, o.err)
		}
	}
}

// A consumer that cancels the stream gets its acknowledgement and no more.
func TestCancelledStreams(t *testing.T) {
	var over []error
	h := server(setOf(t, text(4<<20)), carriage.SetOptions{Over: func(err error) { over = append(over, err) }})
	pair, _, p := serving(t, config(h))
	request(t, p, "1")
	pair.Settle()
	if len(p.take()) == 0 {
		t.Fatal("nothing came")
	}
	end := bridge.Message{Kind: bridge.KindEnd, Corr: []byte("1"), Flags: bridge.FlagFinal, HasStream: true, Stream: bridge.StreamControl{Control: bridge.ControlCancel, EventID: 1}}
	p.send(t, end)
	pair.Settle()
	ms := p.take()
	last := ms[len(ms)-1]
	if last.Kind != bridge.KindEnd || !last.Final() || last.Stream.Flags&bridge.StreamCancelAck == 0 {
		t.Errorf("the last frame is %+v", last)
	}
	if len(over) != 1 || over[0] != carriage.ErrCancelled {
		t.Errorf("over: %v", over)
	}
}

// FuzzAssembler gives the assembler frames of any kind in any order: what it shows is
// complete and has the digest that was claimed, it never holds more than it may, and
// lets go of everything.
func FuzzAssembler(f *testing.F) {
	const kinds = 3
	f.Add([]byte("document"), []byte{0, 0, 0, 8, 1, 1, 0, 3}, uint8(1))
	f.Add([]byte{}, []byte{0, 0, 0, 0}, uint8(0))
	f.Add([]byte("streamed"), []byte{1, 0, 0, 3, 1, 1, 0, 9, 2, 0, 3, 8}, uint8(1))
	f.Add([]byte("disagrees"), []byte{0, 0x40, 0, 9, 0, 0x80, 0, 9, 0, 0xC0, 0, 9}, uint8(2))
	f.Fuzz(func(t *testing.T, doc, script []byte, proofs uint8) {
		const limit = 64
		budget := buf.NewBudget(limit)
		a := &assembler{maxProofs: 8, maxOctets: 48, budget: budget, known: func(alg uint16) bool { return alg == ProofEd25519 }}
		sum := sha256.Sum256(doc)
		for ; len(script) >= 4; script = script[4:] {
			v := bridge.Binding{
				Part: bridge.PartDocument, DocID: []byte("x"), MediaType: []byte("a/b"), Alg: bridge.DigestSHA256, Digest: sum[:], ProofCount: proofs,
			}
			what := script[1]
			if n := what & 0x0F; n > 0 {
				v.Part, v.ProofIndex, v.ProofAlg = bridge.PartProof, n-1, uint16(n)
			}
			switch {
			case what&0x40 != 0:
				v.DocID = []byte("y")
			case what&0x80 != 0:
				v.ProofCount++
			case what&0x20 != 0:
				v.Digest = make([]byte, 32)
			}
			binding, err := v.Append(nil)
			if err != nil {
				binding = []byte{script[2]}
			}
			if what&0x10 != 0 {
				binding = nil
			}
			from, to := min(int(script[2]), len(doc)), min(int(script[3]), len(doc))
			kind := [kinds]bridge.Kind{bridge.KindResponse, bridge.KindData, bridge.KindEnd}[script[0]%kinds]
			done, err := a.add(&carriage.Part{Kind: kind, Binding: binding, Foreign: doc[min(from, to):to]})
			if budget.Used() > limit || a.octets > 48 {
				t.Fatalf("%d octets held", budget.Used())
			}
			if err != nil {
				if code := bridge.CodeOf(err); code < bridge.CodeBindingMalformed {
					t.Fatalf("error without a code of CC-DOC: %v", err)
				}
				break
			}
			if !done {
				continue
			}
			s := a.set()
			if got := sha256.Sum256(s.Document); !bytes.Equal(got[:], s.Digest) {
				t.Fatal("a document was shown whose digest differs")
			}
			for i, p := range s.Proofs {
				if p.Alg == 0 || (p.Err == nil) != (p.Alg == ProofEd25519) {
					t.Fatalf("proof %d: %+v", i, p)
				}
			}
			break
		}
		a.discard()
		if budget.Used() != 0 {
			t.Fatalf("%d octets are still held", budget.Used())
		}
	})
}

// FuzzParts gives a reception any payload for any of the four kinds of replies: it
// ends at most once, nothing is shown but what is complete, and nothing panics.
func FuzzParts(f *testing.F) {
	v := bindingOf(card, 0)
	for _, k := range []bridge.Kind{bridge.KindResponse, bridge.KindData, bridge.KindEnd} {
		m := part([]byte("x"), k, v, 1, card)
		m.Protocol, m.Content = a2a, bridge.ContentJSON
		raw, err := m.Append(nil, tags)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(k), raw[8+1+1:]) // behind the correlation id
	}
	f.Fuzz(func(t *testing.T, kind uint8, rest []byte) {
		k := bridge.Kind(kind)
		if !k.IsReply() {
			return
		}
		pair, p, o, r, corr := receiving(t, Config{Timeout: second})
		p.auto, p.tags = nil, tags
		raw := []byte{0, 0x10, 0, byte(6 + len(corr)), byte(a2a), byte(k), 1, 0, byte(len(corr))}
		raw = append(append(raw, corr...), 0)
		p.sendRaw(t, k.Type(), append(raw, rest...))
		pair.Settle()
		if o.n > 1 || o.set != nil && !bytes.Equal(o.set.Digest, digestOf(o.set)) {
			t.Fatalf("told %d times of %+v", o.n, o.set)
		}
		pair.Run(2 * second)
		if o.n != 1 || r.Held() != 0 {
			t.Fatalf("told %d times, %d octets held", o.n, r.Held())
		}
	})
}

func digestOf(s *Set) []byte {
	h := newHash(s.Alg)
	h.Write(s.Document)
	return h.Sum(nil)
}
