package document

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// One set crosses one channel, whichever that is (CC-DOC 3, D25).
func TestCCDOC3_BridgeOrDiscovery(t *testing.T) {
	s := setOf(t, card, signature, receipt)
	for _, on := range []struct {
		name string
		join func(*testing.T, carriage.Config, carriage.Config) (*nptest.Pair, *carriage.Bridge, *carriage.Bridge)
	}{
		{"bridge", func(t *testing.T, c, s carriage.Config) (*nptest.Pair, *carriage.Bridge, *carriage.Bridge) {
			return both(t, c, s, nil)
		}},
		{"discovery", onDiscovery},
	} {
		for _, streamed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/streamed=%v", on.name, streamed), func(t *testing.T) {
				pair, b, _ := on.join(t, config(nil), config(server(s, carriage.SetOptions{Stream: streamed, Chunk: 7})))
				o, _ := ask(t, NewReceiver(Config{}), b, pair.Client.Association)
				pair.Settle()
				o.got(t, s)
			})
		}
	}
}

// The same correlation id on two channels is two correlations: what comes on the
// other channel is no part of the set (CC-DOC 3).
func TestCCDOC3_ASetIsNotAssembledAcrossChannels(t *testing.T) {
	b, d := carriage.New(config(nil)), &peer{ch: wire.ChannelDiscovery, tags: tags}
	p := &peer{ch: wire.ChannelBridge, tags: tags}
	second := config(nil)
	second.Channel = wire.ChannelDiscovery
	docs := carriage.New(second)
	pair := nptest.NewPair(t, nptest.Options{Client: options(b, channelOf{docs}), Server: options(p, d)})
	pair.Settle()
	o, _ := ask(t, NewReceiver(Config{}), b, pair.Client.Association)
	pair.Settle()
	corr := p.one(t).Corr
	v := bindingOf(card, 1)
	p.send(t, part(corr, bridge.KindResponse, v, 0, card))
	d.send(t, part(corr, bridge.KindResponse, proofOf(v, 0), 0, signature.Octets))
	pair.Settle()
	o.pending(t)
	if n := docs.Stats().RepliesUnknown; n != 1 {
		t.Errorf("%d replies to nothing on the other channel, want 1", n)
	}
	p.send(t, part(corr, bridge.KindResponse, proofOf(v, 0), 0, signature.Octets))
	pair.Settle()
	want := signature
	want.MediaType = ""
	o.got(t, setOf(t, card, want))
}

// channelOf attaches a Bridge as the Discovery channel itself.
type channelOf struct{ *carriage.Bridge }

// Only documents are carried as Bridge messages on the Discovery channel (D25).
func TestD25_NothingElseOnDiscovery(t *testing.T) {
	cfg := config(carriage.HandlerFunc(func(r *carriage.Request) { t.Errorf("handler got %q", r.Method()) }))
	cfg.Channel = wire.ChannelDiscovery
	docs := carriage.New(cfg)
	p := &peer{ch: wire.ChannelDiscovery, tags: tags}
	pair := nptest.NewPair(t, nptest.Options{Client: options(p), Server: options(channelOf{docs})})
	pair.Settle()
	p.send(t, bridge.Message{
		Kind: bridge.KindRequest, Corr: []byte("1"), Method: []byte("message/send"),
		Foreign: []byte(`{"jsonrpc":"2.0","id":1,"method":"message/send"}`),
	})
	pair.Settle()
	p.told(t, []byte("1"), bridge.CodeMethodUnsupported)
	p.send(t, bridge.Message{Kind: bridge.KindNotify, Foreign: []byte(`{"jsonrpc":"2.0","method":"x"}`)})
	pair.Settle()
	p.none(t)
	if n := docs.Stats().NotificationsDropped; n != 1 {
		t.Errorf("%d notifications dropped, want 1", n)
	}
	_, err := docs.Start(pair.Server.Association, &carriage.Call{Protocol: a2a, Foreign: []byte(`{"jsonrpc":"2.0","id":1,"method":"x"}`)}, nil)
	if !errors.Is(err, carriage.ErrMalformed) {
		t.Errorf("a call that asks for no document: %v", err)
	}
}

// All frames are of the Bridge's types and no new ones (CC-DOC 3, 12(1)).
func TestCCDOC3_OnlyTheBridgesFrameTypes(t *testing.T) {
	for _, streamed := range []bool{false, true} {
		pair, _, p := serving(t, config(server(setOf(t, card, signature), carriage.SetOptions{Stream: streamed})))
		request(t, p, "1")
		pair.Settle()
		want := "[RESPONSE RESPONSE]"
		if streamed {
			want = "[DATA END]"
		}
		var got []string
		for i, typ := range p.types {
			switch {
			case typ == bridge.TypeResponse && p.frames[i].Kind == bridge.KindResponse:
				got = append(got, "RESPONSE")
			case typ == bridge.TypeStreamData && p.frames[i].Kind == bridge.KindData:
				got = append(got, "DATA")
			case typ == bridge.TypeStreamEnd && p.frames[i].Kind == bridge.KindEnd && p.frames[i].Final():
				got = append(got, "END")
			}
		}
		if fmt.Sprint(got) != want {
			t.Errorf("frames %v, want %s", got, want)
		}
	}
}

// No octet is changed, whatever the octets are: not JSON, with a byte order mark, of
// no octets at all, or such that they look like TLVs (CC-DOC 4, D9).
func TestCCDOC4_OctetsAreKept(t *testing.T) {
	documents := map[string][]byte{
		"card":                  card,
		"empty":                 {},
		"one zero":              {0},
		"stream control":        {0, 0x11, 0, 11, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 'x'},
		"safety label":          {0, 0x13, 0, 2, 0, 0, 'x'},
		"document binding":      {0, 0x40, 0, 1, 'x'},
		"unknown TLV":           {0, 0x20, 0, 1, 'x'},
		"many TLVs":             bytes.Repeat([]byte{0, 0x11, 0, 0}, 20),
		"not UTF-8":             {0xFF, 0xFE, 0, 'a'},
		"two pieces":            text(carriage.DefaultChunk + 1),
		"over the outlet share": text(300 << 10),
	}
	for name, doc := range documents {
		for _, streamed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/streamed=%v", name, streamed), func(t *testing.T) {
				s := setOf(t, doc, Proof{Alg: ProofEd25519, Octets: doc}, Proof{Alg: ProofMLDSA87, Octets: []byte{0}})
				pair, b, _ := both(t, config(nil), config(server(s, carriage.SetOptions{Stream: streamed})), nil)
				o, _ := ask(t, NewReceiver(Config{}), b, pair.Client.Association)
				pair.Run(second)
				o.got(t, s)
			})
		}
	}
}

// Whoever can't keep the octets refuses with DigestUnstable, which reaches who asked
// as that (CC-DOC 4, 8).
func TestCCDOC4_DigestUnstable(t *testing.T) {
	h := &Server{Get: func(*carriage.Request) (*Set, error) {
		return nil, &bridge.Error{Code: bridge.CodeDigestUnstable, Text: "the store re-encodes"}
	}}
	pair, b, _ := both(t, config(nil), config(h), nil)
	o, _ := ask(t, NewReceiver(Config{}), b, pair.Client.Association)
	pair.Settle()
	o.failed(t, bridge.CodeDigestUnstable, true)
	var e *bridge.Error
	if !errors.As(o.err, &e) || e.Text != "the store re-encodes" {
		t.Errorf("text of %v", o.err)
	}
}

// The digest is recomputed by the algorithm that is named, before anything is shown;
// one that differs in a single bit, in the document or in the claim, is
// DigestMismatch (CC-DOC 5).
func TestCCDOC5_DigestMismatch(t *testing.T) {
	for _, alg := range []bridge.DigestAlg{bridge.DigestSHA256, bridge.DigestSHA384, bridge.DigestSHA512} {
		for _, change := range []string{"document", "digest", "cut", "nothing"} {
			t.Run(fmt.Sprintf("%v/%s", alg.Size(), change), func(t *testing.T) {
				pair, p, o, r, corr := receiving(t, Config{})
				s, err := New("card", "application/json", alg, card)
				must(t, err)
				doc, digest := bytes.Clone(s.Document), bytes.Clone(s.Digest)
				switch change {
				case "document":
					doc[7] ^= 1
				case "digest":
					digest[len(digest)-1] ^= 0x80
				case "cut":
					doc = doc[:len(doc)-1]
				}
				v := bindingOf(card, 0)
				v.Alg, v.Digest = alg, digest
				p.send(t, part(corr, bridge.KindResponse, v, 0, doc))
				pair.Settle()
				if change == "nothing" {
					o.got(t, s)
					p.none(t)
				} else {
					o.failed(t, bridge.CodeDigestMismatch, false)
					p.told(t, corr, bridge.CodeDigestMismatch)
				}
				if r.Held() != 0 {
					t.Errorf("%d octets are still held", r.Held())
				}
			})
		}
	}
}

// Every part has a binding, behind the label and before the foreign message, and the
// octets of a whole exchange are these (CC-DOC 6.1, 6.2, 9).
func TestCCDOC6_1_EveryPartHasABinding(t *testing.T) {
	pair, _, p := serving(t, config(server(setOf(t, []byte("{}"), Proof{Alg: ProofEd25519, Octets: []byte("sig")}), carriage.SetOptions{})))
	request(t, p, "c")
	pair.Settle()
	digest := "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a" // SHA-256 of {}
	want := []string{
		"0010 0007  02 02 01 00 01 63 00" + // envelope: A2A, response, JSON, no flags, "c", no method
			"0013 0002  00 00" + // read_only
			"0040 003e  01 04 63617264 10 6170706c69636174696f6e2f6a736f6e 0004 20" + digest + "01 00 0000" +
			"7b7d",
		"0010 0007  02 02 01 00 01 63 00" +
			"0013 0002  00 00" +
			"0040 002e  02 04 63617264 00 0004 20" + digest + "01 00 0807" +
			"736967",
	}
	if len(p.raw) != len(want) {
		t.Fatalf("%d frames", len(p.raw))
	}
	for i, w := range want {
		if got := hex.EncodeToString(p.raw[i]); got != strings.ReplaceAll(w, " ", "") {
			t.Errorf("frame %d is\n%s, want\n%s", i, got, strings.ReplaceAll(w, " ", ""))
		}
	}
	p.take()

	// Streamed, the pieces have it too.
	s := setOf(t, text(100), Proof{Alg: ProofEd25519, Octets: text(30)})
	pair, _, p = serving(t, config(server(s, carriage.SetOptions{Stream: true, Chunk: 20})))
	request(t, p, "c")
	pair.Settle()
	var doc, proof []byte
	for i, m := range p.take() {
		v, err := bridge.ParseBinding(m.Binding)
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		if !m.HasLabel || m.Label.Effect != bridge.ReadOnly || m.Stream.EventID != bridge.EventID(i+1) {
			t.Errorf("frame %d: label %v %v, event %d", i, m.HasLabel, m.Label, m.Stream.EventID)
		}
		if v.Part == bridge.PartDocument {
			doc = append(doc, m.Foreign...)
		} else {
			proof = append(proof, m.Foreign...)
		}
	}
	if !bytes.Equal(doc, s.Document) || !bytes.Equal(proof, s.Proofs[0].Octets) {
		t.Error("the pieces are not the members")
	}
}

// A part whose binding is absent, truncated or impossible is BindingMalformed, told
// to the peer as that (CC-DOC 6.1, 6.2).
func TestCCDOC6_2_MalformedBindings(t *testing.T) {
	v := bindingOf(card, 0)
	good, err := v.Append(nil)
	must(t, err)
	at := 1 + 1 + 4 + 1 + 16 // of digest_alg
	edit := func(f func(b []byte) []byte) []byte { return f(bytes.Clone(good)) }
	for name, binding := range map[string][]byte{
		"absent":         nil,
		"truncated":      good[:len(good)-1],
		"trailing":       append(bytes.Clone(good), 0),
		"part kind 0":    edit(func(b []byte) []byte { b[0] = 0; return b }),
		"part kind 3":    edit(func(b []byte) []byte { b[0] = 3; return b }),
		"empty id":       edit(func(b []byte) []byte { b[1] = 0; return append(b[:2], b[6:]...) }),
		"long id":        edit(func(b []byte) []byte { b[1] = 255; return b }),
		"no media type":  edit(func(b []byte) []byte { b[6] = 0; return append(b[:7], b[at:]...) }),
		"unknown digest": edit(func(b []byte) []byte { b[at+1] = 9; return b }),
		"digest length":  edit(func(b []byte) []byte { b[at+2]--; return append(b[:at+3], b[at+4:]...) }),
		"proof index":    edit(func(b []byte) []byte { b[0] = 2; return b }),
		"proof alg":      edit(func(b []byte) []byte { b[len(b)-1] = 7; return b }),
	} {
		for _, k := range []bridge.Kind{bridge.KindResponse, bridge.KindData, bridge.KindEnd} {
			t.Run(fmt.Sprintf("%s/%v", name, k), func(t *testing.T) {
				pair, p, o, _, corr := receiving(t, Config{})
				m := part(corr, k, v, 1, card)
				m.Binding = nil
				m.Protocol, m.Content = a2a, bridge.ContentJSON
				raw, err := m.AppendPrefix(nil, tags)
				must(t, err)
				if binding != nil {
					raw = wire.AppendTLV(raw, tags.DocumentBinding, binding)
				}
				p.sendRaw(t, k.Type(), append(raw, card...))
				pair.Settle()
				o.failed(t, bridge.CodeBindingMalformed, false)
				p.told(t, corr, bridge.CodeBindingMalformed)
			})
		}
	}
}

// Parts that disagree about the set are BindingMalformed (CC-DOC 6.2).
func TestCCDOC6_2_PartsThatDisagree(t *testing.T) {
	other := sha256.Sum256([]byte("other"))
	for name, change := range map[string]func(v *bridge.Binding){
		"proof count": func(v *bridge.Binding) { v.ProofCount++ },
		"digest":      func(v *bridge.Binding) { v.Digest = other[:] },
		"digest alg":  func(v *bridge.Binding) { v.Alg, v.Digest = bridge.DigestSHA384, make([]byte, 48) },
		"index twice": func(v *bridge.Binding) { v.ProofIndex = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			pair, p, o, _, corr := receiving(t, Config{})
			v := bindingOf(card, 2)
			p.send(t, part(corr, bridge.KindResponse, proofOf(v, 0), 0, signature.Octets))
			w := proofOf(v, 1)
			change(&w)
			p.send(t, part(corr, bridge.KindResponse, w, 0, signature.Octets))
			pair.Settle()
			o.failed(t, bridge.CodeBindingMalformed, false)
			p.told(t, corr, bridge.CodeBindingMalformed)
		})
	}
	t.Run("two documents", func(t *testing.T) {
		pair, p, o, _, corr := receiving(t, Config{})
		v := bindingOf(card, 1)
		p.send(t, part(corr, bridge.KindResponse, v, 0, card))
		v.DocID = []byte("other")
		p.send(t, part(corr, bridge.KindResponse, v, 0, card))
		pair.Settle()
		o.failed(t, bridge.CodeBindingMalformed, false)
		p.told(t, corr, bridge.CodeBindingMalformed)
	})
	for name, change := range map[string]func(v *bridge.Binding){
		"pieces of two media types": func(v *bridge.Binding) { v.MediaType = []byte("text/plain") },
		"pieces of two proofs": func(v *bridge.Binding) {
			v.Part, v.ProofAlg = bridge.PartProof, ProofEd25519
			v.ProofIndex = 1
		},
	} {
		t.Run(name, func(t *testing.T) {
			pair, p, o, _, corr := receiving(t, Config{})
			v := bindingOf(card, 1)
			p.send(t, part(corr, bridge.KindData, v, 1, card[:5]))
			w := v
			change(&w)
			if w.Part == bridge.PartProof { // an index that the set does not have
				w.ProofCount = 2
			}
			p.send(t, part(corr, bridge.KindData, w, 2, card[5:]))
			pair.Settle()
			o.failed(t, bridge.CodeBindingMalformed, false)
			p.told(t, corr, bridge.CodeBindingMalformed)
		})
	}
}

// A document's proof index is ignored (CC-DOC 6.2).
func TestCCDOC6_2_ADocumentsProofIndexIsIgnored(t *testing.T) {
	pair, p, o, _, corr := receiving(t, Config{})
	v := bindingOf(card, 0)
	m := part(corr, bridge.KindResponse, v, 0, card)
	m.Binding = bytes.Clone(m.Binding)
	m.Binding[len(m.Binding)-3] = 7
	p.send(t, m)
	pair.Settle()
	o.got(t, setOf(t, card))
}

// A proof of another document does not bind; it is reported and the document not
// shown without it, whichever comes first (CC-DOC 6.3).
func TestCCDOC6_3_ProofUnbound(t *testing.T) {
	for _, first := range []string{"document", "proof"} {
		t.Run(first+" first", func(t *testing.T) {
			pair, p, o, _, corr := receiving(t, Config{})
			v := bindingOf(card, 1)
			w := proofOf(v, 0)
			w.DocID = []byte("card2")
			parts := []bridge.Message{part(corr, bridge.KindResponse, v, 0, card), part(corr, bridge.KindResponse, w, 0, signature.Octets)}
			if first == "proof" {
				parts[0], parts[1] = parts[1], parts[0]
			}
			for _, m := range parts {
				p.send(t, m)
			}
			pair.Settle()
			o.failed(t, bridge.CodeProofUnbound, false)
			p.told(t, corr, bridge.CodeProofUnbound)
		})
	}
}

// A proof of an unknown kind is reported as ProofUnsupported and handed over as what
// can't be checked; it does not vanish (CC-DOC 6.4).
func TestCCDOC6_4_ProofUnsupported(t *testing.T) {
	pair, p, o, _, corr := receiving(t, Config{})
	v := bindingOf(card, 2)
	w := proofOf(v, 1)
	w.ProofAlg = receipt.Alg
	receipt := Proof{Alg: receipt.Alg, Octets: []byte("receipt")}
	p.send(t, part(corr, bridge.KindResponse, proofOf(v, 0), 0, signature.Octets))
	p.send(t, part(corr, bridge.KindResponse, w, 0, receipt.Octets))
	p.send(t, part(corr, bridge.KindResponse, v, 0, card))
	pair.Settle()
	sig := signature
	sig.MediaType = ""
	s := o.got(t, setOf(t, card, sig, receipt))
	if s.Proofs[0].Err != nil || !isCode(s.Proofs[1].Err, bridge.CodeProofUnsupported) {
		t.Errorf("proofs: %v, %v", s.Proofs[0].Err, s.Proofs[1].Err)
	}
	p.told(t, corr, bridge.CodeProofUnsupported)

	// Who passes the set on says nothing about its proofs.
	pair, p, o, _, corr = receiving(t, Config{Verbatim: true})
	w.ProofCount, w.ProofIndex = 1, 0
	p.send(t, part(corr, bridge.KindResponse, w, 0, receipt.Octets))
	p.send(t, part(corr, bridge.KindResponse, bindingOf(card, 1), 0, card))
	pair.Settle()
	if s := o.got(t, setOf(t, card, receipt)); s.Proofs[0].Err != nil {
		t.Errorf("proof: %v", s.Proofs[0].Err)
	}
	p.none(t)
}

// Carriage does not check signatures: a wrong one arrives as it is (CC-DOC 6.5).
func TestCCDOC6_5_VerificationIsTheConsumers(t *testing.T) {
	wrong := Proof{Alg: ProofEd25519, Octets: []byte("no signature at all")}
	s := setOf(t, card, wrong)
	pair, b, _ := both(t, config(nil), config(server(s, carriage.SetOptions{})), nil)
	o, _ := ask(t, NewReceiver(Config{}), b, pair.Client.Association)
	pair.Settle()
	if got := o.got(t, s); got.Proofs[0].Err != nil {
		t.Errorf("proof: %v", got.Proofs[0].Err)
	}
}

// The request for a set has no binding; one that has is refused (CC-DOC 7.1).
func TestCCDOC7_1_Pull(t *testing.T) {
	pair, b, p := asking(t, config(nil))
	ask(t, NewReceiver(Config{}), b, pair.Client.Association)
	pair.Settle()
	m := p.one(t)
	if len(m.Binding) != 0 || len(m.Foreign) != 0 || len(m.Corr) == 0 || !m.HasLabel || m.Label.Effect != bridge.ReadOnly {
		t.Errorf("request %+v", m)
	}
	_, err := b.Start(pair.Client.Association, &carriage.Call{Protocol: a2a, Method: method, Binding: []byte{1}}, nil)
	if !errors.Is(err, carriage.ErrMalformed) {
		t.Errorf("a request with a binding: %v", err)
	}

	h := server(setOf(t, card), carriage.SetOptions{})
	pair, _, p = serving(t, config(h))
	p.send(t, part([]byte("1"), bridge.KindResponse, bindingOf(card, 0), 0, nil))
	r := part([]byte("1"), bridge.KindRequest, bindingOf(card, 0), 0, nil)
	r.HasStream, r.Method = false, []byte(method)
	p.send(t, r)
	pair.Settle()
	p.told(t, []byte("1"), bridge.CodeBindingMalformed)
	request(t, p, "2")
	pair.Settle()
	if m := p.one(t); string(m.Corr) != "2" || m.Kind != bridge.KindResponse {
		t.Errorf("answer %+v", m)
	}
}

// pushed takes documents that nobody asked for.
type pushed struct {
	r    *Receiver
	sets []*Set
	errs []error
}

func (h *pushed) take(n *carriage.Notify) {
	s, err := h.r.Pushed(n)
	h.sets, h.errs = append(h.sets, s), append(h.errs, err)
}

// A document without proofs may be pushed in one notification, without a correlation
// id; its digest is recomputed like any other's. Notifications are never one set
// (CC-DOC 7.2).
func TestCCDOC7_2_Push(t *testing.T) {
	h := &pushed{r: NewReceiver(Config{MaxOctets: 1 << 10})}
	pair, c, _ := both(t, config(nil), config(&Server{Pushed: h.take}), nil)
	s := setOf(t, card)
	call := &carriage.Call{Protocol: a2a, Method: method}
	must(t, Push(background, c, pair.Client.Association, call, s))
	pair.Settle()
	if len(h.sets) != 1 || h.errs[0] != nil {
		t.Fatalf("pushed %v, %v", h.sets, h.errs)
	}
	equal(t, h.sets[0], s)
	if err := Push(background, c, pair.Client.Association, call, setOf(t, card, signature)); err != ErrProofs {
		t.Errorf("a push with proofs: %v", err)
	}

	h = &pushed{r: NewReceiver(Config{MaxOctets: 1 << 10})}
	pair, b, p := serving(t, config(&Server{Pushed: h.take}))
	push := func(v bridge.Binding, doc []byte) bridge.Message {
		m := part(nil, bridge.KindNotify, v, 0, doc)
		m.HasStream, m.Method = false, []byte(method)
		return m
	}
	p.send(t, push(bindingOf(card, 0), card))
	p.send(t, push(bindingOf(card, 0), card[1:]))
	p.send(t, push(bindingOf(card, 1), card))
	p.send(t, push(proofOf(bindingOf(card, 1), 0), signature.Octets))
	p.send(t, push(bindingOf(text(2000), 0), text(2000)))
	malformed := push(bindingOf(card, 0), card)
	malformed.Protocol, malformed.Content = a2a, bridge.ContentJSON
	raw, err := malformed.Append(nil, tags)
	must(t, err)
	raw[bytes.Index(raw, malformed.Binding)] = 9 // part_kind
	p.sendRaw(t, bridge.TypeNotify, raw)
	pair.Settle()
	p.none(t) // a notification is never answered
	var codes []string
	for i, err := range h.errs {
		if (err == nil) != (h.sets[i] != nil) {
			t.Errorf("push %d: set %v, error %v", i, h.sets[i], err)
		}
		codes = append(codes, bridge.CodeOf(err).String())
	}
	if got, want := fmt.Sprint(codes), "[code(0) DigestMismatch BindingMalformed BindingMalformed SetIncomplete]"; got != want {
		t.Errorf("pushed: %s, want %s", got, want)
	}
	if n := b.Stats().NotificationsDropped; n != 1 {
		t.Errorf("%d notifications dropped, want the malformed one", n)
	}
}

// Parts may come in any order; the set is complete with the last of them and not
// before (CC-DOC 7.3).
func TestCCDOC7_3_AnyOrder(t *testing.T) {
	proofs := []Proof{{Alg: ProofEd25519, Octets: []byte("p0")}, {Alg: ProofMLDSA87, Octets: []byte("p1")}, {Alg: ProofEd25519, Octets: nil}}
	s := setOf(t, card, proofs...)
	parts, err := s.Parts()
	must(t, err)
	orders := permutations(len(parts))
	if len(orders) != 24 {
		t.Fatalf("%d orders", len(orders))
	}
	for _, order := range orders {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			pair, p, o, r, corr := receiving(t, Config{})
			for _, i := range order {
				o.pending(t)
				p.send(t, bridge.Message{Kind: bridge.KindResponse, Corr: corr, Binding: parts[i].Binding, Foreign: parts[i].Foreign})
				pair.Settle()
			}
			o.got(t, s)
			p.none(t)
			if r.Held() != 0 {
				t.Errorf("%d octets are still held", r.Held())
			}
		})
	}
}

func permutations(n int) (all [][]int) {
	var grow func(done []int)
	grow = func(done []int) {
		if len(done) == n {
			all = append(all, append([]int(nil), done...))
			return
		}
	next:
		for i := range n {
			for _, d := range done {
				if d == i {
					continue next
				}
			}
			grow(append(done, i))
		}
	}
	grow(nil)
	return all
}

// A streamed document is what its pieces are in their order; its proofs may come as
// RESPONSEs before, among and after them, in the same stream, or in streams of their
// own (CC-DOC 7.4).
func TestCCDOC7_4_StreamedParts(t *testing.T) {
	v := bindingOf(card, 2)
	p0, p1 := proofOf(v, 0), proofOf(v, 1)
	sig := []byte("a signature of some length")
	R, D, E := bridge.KindResponse, bridge.KindData, bridge.KindEnd
	type step struct {
		k  bridge.Kind
		v  bridge.Binding
		id bridge.EventID
		b  []byte
	}
	for name, steps := range map[string][]step{
		"proofs after":         {{D, v, 1, card[:9]}, {E, v, 2, card[9:]}, {R, p0, 0, sig}, {R, p1, 0, sig}},
		"proofs before":        {{R, p1, 0, sig}, {R, p0, 0, sig}, {D, v, 1, card[:9]}, {D, v, 2, card[9:]}, {E, v, 3, nil}},
		"proofs among":         {{D, v, 1, card[:9]}, {R, p0, 0, sig}, {D, v, 2, card[9:10]}, {R, p1, 0, sig}, {E, v, 3, card[10:]}},
		"one stream":           {{D, v, 1, card[:9]}, {D, v, 2, card[9:]}, {D, p0, 3, sig[:3]}, {D, p0, 4, sig[3:]}, {E, p1, 9, sig}},
		"one stream, mixed":    {{D, p0, 1, sig[:3]}, {D, v, 2, card[:9]}, {D, p1, 3, sig[:4]}, {D, p0, 4, sig[3:]}, {D, v, 5, card[9:]}, {E, p1, 6, sig[4:]}},
		"streams of their own": {{D, v, 1, card[:9]}, {E, v, 2, card[9:]}, {D, p1, 1, sig[:9]}, {E, p1, 2, sig[9:]}, {E, p0, 3, sig}},
		"streamed proofs only": {{R, v, 0, card}, {D, p1, 1, sig[:9]}, {E, p1, 2, sig[9:]}, {R, p0, 0, sig}},
		"no pieces but an end": {{E, v, 1, card}, {R, p1, 0, sig}, {R, p0, 0, sig}},
	} {
		t.Run(name, func(t *testing.T) {
			pair, p, o, _, corr := receiving(t, Config{})
			for _, s := range steps {
				o.pending(t)
				p.send(t, part(corr, s.k, s.v, s.id, s.b))
				pair.Settle()
			}
			o.got(t, setOf(t, card, Proof{Alg: ProofEd25519, Octets: sig}, Proof{Alg: ProofEd25519, Octets: sig}))
			p.none(t)
		})
	}
}

// A document that is too large for one frame is sent as a stream, within the credit
// of streams, and its digest is of the whole (CC-DOC 7.4, D4, D6).
func TestCCDOC7_4_LargeDocumentsAreStreamed(t *testing.T) {
	s := setOf(t, text(5<<20), Proof{Alg: ProofMLDSA87, Octets: text(40 << 10)})
	var over []error
	h := server(s, carriage.SetOptions{Over: func(err error) { over = append(over, err) }})
	pair, b, _ := both(t, config(nil), config(h), func(o *nptest.Options) {
		o.Latency = 5 * time.Millisecond
		o.Client.Conn.StreamCredit, o.Server.Conn.StreamCredit = 1<<20, 1<<20
	})
	pair.Run(second)
	o, _ := ask(t, NewReceiver(Config{}), b, pair.Client.Association)
	pair.Run(20 * second)
	o.got(t, s)
	if len(over) != 1 || over[0] != nil {
		t.Errorf("the sender was told %v", over)
	}
}

// No digest is compared before the stream has ended: a part of the document is no
// mismatch (CC-DOC 7.4).
func TestCCDOC7_4_NoDigestOfAPartialDocument(t *testing.T) {
	pair, p, o, _, corr := receiving(t, Config{})
	v := bindingOf(card, 0)
	for i := range card {
		p.send(t, part(corr, bridge.KindData, v, bridge.EventID(i+1), card[i:i+1]))
		pair.Settle()
		o.pending(t)
		p.none(t)
	}
	p.send(t, part(corr, bridge.KindEnd, v, 1000, nil))
	pair.Settle()
	o.got(t, setOf(t, card))

	// One that is cut off is found at the end.
	pair, p, o, _, corr = receiving(t, Config{})
	p.send(t, part(corr, bridge.KindData, v, 1, card[:4]))
	p.send(t, part(corr, bridge.KindEnd, v, 2, card[4:8]))
	pair.Settle()
	o.failed(t, bridge.CodeDigestMismatch, false)
	p.told(t, corr, bridge.CodeDigestMismatch)
}

// Nothing is shown of a set that is not complete in time; the peer is told, and what
// was held is given up (CC-DOC 7.5, 8).
func TestCCDOC7_5_IncompleteSetsAreDiscarded(t *testing.T) {
	pair, p, o, r, corr := receiving(t, Config{Timeout: 3 * second})
	v := bindingOf(card, 1)
	p.send(t, part(corr, bridge.KindResponse, v, 0, card))
	pair.Run(2 * second)
	o.pending(t)
	if r.Held() != int64(len(card)) {
		t.Errorf("%d octets held, want %d", r.Held(), len(card))
	}
	pair.Run(2 * second)
	o.failed(t, bridge.CodeSetIncomplete, false)
	if !errors.Is(o.err, context.DeadlineExceeded) {
		t.Errorf("error %v", o.err)
	}
	p.told(t, corr, bridge.CodeSetIncomplete)
	if r.Held() != 0 {
		t.Errorf("%d octets are still held", r.Held())
	}

	// What comes after that is part of nothing.
	p.send(t, part(corr, bridge.KindResponse, proofOf(v, 0), 0, signature.Octets))
	pair.Run(second)
	p.none(t)
	if o.n != 1 {
		t.Errorf("told %d times", o.n)
	}
}

// The same when it is not wanted any more, and when its association is lost.
func TestCCDOC7_5_AbandonedSets(t *testing.T) {
	pair, b, p := asking(t, config(nil))
	r := NewReceiver(Config{})
	o, x := ask(t, r, b, pair.Client.Association)
	pair.Settle()
	corr := p.one(t).Corr
	p.send(t, part(corr, bridge.KindResponse, bindingOf(card, 1), 0, card))
	pair.Settle()
	x.Cancel(nil)
	pair.Settle()
	o.failed(t, bridge.CodeSetIncomplete, false)
	p.told(t, corr, bridge.CodeSetIncomplete)

	o, _ = ask(t, r, b, pair.Client.Association)
	pair.Settle()
	p.send(t, part(p.one(t).Corr, bridge.KindResponse, bindingOf(card, 1), 0, card))
	pair.Settle()
	pair.Cut(nil)
	pair.Run(second)
	if o.n != 1 || o.set != nil || !errors.Is(o.err, assoc.ErrClosed) {
		t.Errorf("told %d times: %v, %v", o.n, o.set, o.err)
	}
	if r.Held() != 0 {
		t.Errorf("%d octets are still held", r.Held())
	}
}

// What is over the consumer's bounds, in octets or in proofs, one set's or that of
// all, is SetIncomplete (CC-DOC 8).
func TestCCDOC8_SetIncompleteOverBounds(t *testing.T) {
	t.Run("octets of a set", func(t *testing.T) {
		pair, p, o, r, corr := receiving(t, Config{MaxOctets: len(card) + 3})
		v := bindingOf(card, 1)
		p.send(t, part(corr, bridge.KindResponse, v, 0, card))
		pair.Settle()
		o.pending(t)
		p.send(t, part(corr, bridge.KindResponse, proofOf(v, 0), 0, []byte("four")))
		pair.Settle()
		o.failed(t, bridge.CodeSetIncomplete, false)
		p.told(t, corr, bridge.CodeSetIncomplete)
		if r.Held() != 0 {
			t.Errorf("%d octets are still held", r.Held())
		}
	})
	t.Run("proofs", func(t *testing.T) {
		pair, p, o, _, corr := receiving(t, Config{MaxProofs: 2})
		p.send(t, part(corr, bridge.KindResponse, bindingOf(card, 3), 0, card))
		pair.Settle()
		o.failed(t, bridge.CodeSetIncomplete, false)
		p.told(t, corr, bridge.CodeSetIncomplete)
	})
	t.Run("octets of all sets", func(t *testing.T) {
		pair, b, p := asking(t, config(nil))
		r := NewReceiver(Config{MaxHeld: int64(2*len(card) - 1)})
		one, _ := ask(t, r, b, pair.Client.Association)
		two, _ := ask(t, r, b, pair.Client.Association)
		pair.Settle()
		ms := p.take()
		for _, m := range ms {
			p.send(t, part(m.Corr, bridge.KindResponse, bindingOf(card, 1), 0, card))
		}
		pair.Settle()
		one.pending(t)
		two.failed(t, bridge.CodeSetIncomplete, false)
		p.told(t, ms[1].Corr, bridge.CodeSetIncomplete)
		p.send(t, part(ms[0].Corr, bridge.KindResponse, proofOf(bindingOf(card, 1), 0), 0, nil))
		pair.Settle()
		one.got(t, setOf(t, card, Proof{Alg: ProofEd25519}))
		if r.Held() != 0 {
			t.Errorf("%d octets are still held", r.Held())
		}
	})
}

// All codes cross as what they are, in both directions, and are never one another
// (CC-DOC 8).
func TestCCDOC8_CodesBothWays(t *testing.T) {
	for code := bridge.CodeBindingMalformed; code <= bridge.CodeSetIncomplete; code++ {
		t.Run(code.String(), func(t *testing.T) {
			// From who sends.
			pair, p, o, _, corr := receiving(t, Config{})
			p.send(t, bridge.Message{
				Kind: bridge.KindError, Corr: corr, Transport: true, Foreign: bridge.AppendTransportError(nil, code, "why"),
			})
			pair.Settle()
			o.failed(t, code, true)
			p.none(t)

			// From who receives, when all was sent, and while some is still to be.
			for _, size := range []int{10, 4 << 20} {
				var told []string
				var over []error
				h := server(setOf(t, text(size)), carriage.SetOptions{Stream: size > 10, Over: func(err error) { over = append(over, err) }})
				cfg := config(h)
				cfg.SetRefused = func(a *assoc.Association, corr []byte, code bridge.Code, text []byte) {
					told = append(told, fmt.Sprintf("%s %v %s", corr, code, text))
				}
				pair, b, p := serving(t, cfg)
				refused := false
				p.auto = func(m bridge.Message) {
					if !refused && m.Kind != bridge.KindRequest {
						refused = true
						p.send(t, bridge.Message{
							Kind: bridge.KindError, Corr: m.Corr, Transport: true, Foreign: bridge.AppendTransportError(nil, code, "why"),
						})
					}
				}
				request(t, p, "1")
				pair.Run(second)
				if got, want := fmt.Sprint(told), "[1 "+code.String()+" why]"; got != want {
					t.Errorf("%d octets: the sender was told %s, want %s", size, got, want)
				}
				if b.Stats().SetsRefused != 1 || len(over) != 1 {
					t.Errorf("%d octets: %d refused, over %v", size, b.Stats().SetsRefused, over)
				}
				if size > 10 && !isCode(over[0], code) {
					t.Errorf("%d octets: over because of %v", size, over[0])
				}
				if size == 10 && over[0] != nil {
					t.Errorf("%d octets: over because of %v", size, over[0])
				}
			}
		})
	}
}

// An error of the foreign protocol in place of a set is handed over as that.
func TestCCDOC8_ForeignErrors(t *testing.T) {
	pair, p, o, _, corr := receiving(t, Config{})
	foreign := []byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32007,"message":"none"}}`)
	p.send(t, bridge.Message{Kind: bridge.KindError, Corr: corr, Foreign: foreign})
	pair.Settle()
	var e *carriage.ForeignError
	if o.n != 1 || o.set != nil || !errors.As(o.err, &e) || !bytes.Equal(e.Foreign, foreign) {
		t.Errorf("told %d times: %v, %v", o.n, o.set, o.err)
	}
}

// A set that does not belong to its exchange is not taken for an answer: on an
// exchange that assembles none, and under another protocol.
func TestCCDOC8_SetsWhereNoneIsExpected(t *testing.T) {
	pair, b, p := asking(t, config(nil))
	var reply carriage.Reply
	_, err := b.Start(pair.Client.Association, &carriage.Call{Protocol: a2a, Method: method}, carriage.CompletionFunc(func(r *carriage.Reply) { reply = *r }))
	must(t, err)
	pair.Settle()
	corr := p.one(t).Corr
	p.send(t, part(corr, bridge.KindResponse, bindingOf(card, 0), 0, card))
	pair.Settle()
	if !isCode(reply.Err, bridge.CodeEnvelopeMalformed) {
		t.Errorf("reply %+v", reply)
	}
	p.told(t, corr, bridge.CodeEnvelopeMalformed)

	pair, p, o, _, corr := receiving(t, Config{})
	m := part(corr, bridge.KindResponse, bindingOf(card, 0), 0, card)
	m.Protocol = bridge.ProtocolMCP
	p.send(t, m)
	pair.Settle()
	o.failed(t, bridge.CodeEnvelopeMalformed, false)
	p.told(t, corr, bridge.CodeEnvelopeMalformed)
}

// A request for a document without a label is destructive unless the mapping knows
// better, and is refused before any set is made (CC-DOC 9).
func TestCCDOC9_MissingLabels(t *testing.T) {
	var effects []bridge.Effect
	made := 0
	cfg := config(&Server{Get: func(*carriage.Request) (*Set, error) { made++; return setOf(t, card), nil }})
	cfg.Protocols[0].Effect = nil // a deployment that makes cards on demand
	cfg.Authorize = func(m *carriage.Inbound) error {
		effects = append(effects, m.Effect())
		if m.Effect() == bridge.Destructive {
			return errors.New("destructive")
		}
		return nil
	}
	pair, _, p := serving(t, cfg)
	request(t, p, "1")
	pair.Settle()
	p.told(t, []byte("1"), bridge.CodeSafetyPolicy)
	p.send(t, bridge.Message{
		Kind: bridge.KindRequest, Corr: []byte("2"), Method: []byte(method), HasLabel: true, Label: bridge.Label{Effect: bridge.IdempotentWrite},
	})
	pair.Settle()
	p.one(t)
	if made != 1 || fmt.Sprint(effects) != "[destructive idempotent_write]" {
		t.Errorf("%d sets made, effects %v", made, effects)
	}
}
