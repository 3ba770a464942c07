package conn

import (
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/trestle-npamp/trestle/crypto/record"
	"github.com/trestle-npamp/trestle/crypto/schedule"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// input is one thing that can happen to the machine.
type input struct {
	kind, channel, variant string
	// possible tells whether it can be made in a state; nil: always.
	possible func(s absState) bool
	do       func(w *world)
	// then is a second input, judged in the state that the first leaves.
	then *input
	// generic is a fault of a frame that is the same for every kind.
	generic bool

	candidates []*compiledRule
}

func (in *input) String() string { return in.kind + " on " + in.channel + ", " + in.variant }

// kind is a frame that a peer may send.
type kind struct {
	name    string
	ch      wire.Channel
	t       wire.FrameType
	payload func(w *world) []byte
	// sent moves the peer's own keys after a good one.
	sent func(w *world)
	// variants that only this kind has: another payload, otherwise sealed right.
	variants map[string]func(w *world) []byte
}

func fixed(b []byte) func(*world) []byte { return func(*world) []byte { return b } }

// alphabet is every input of the exploration.
//
// The faults that are the same for every frame are given to every kind of frame in
// all states of the ordinary mode that have no counter at its end, and to the
// three kinds that stand for the others in all states. What is no concern of keys,
// an ERROR and a PING of ours, is left out where a counter is at its end.
func alphabet() []*input {
	list := commands()
	applications := 0
	for _, k := range kinds() {
		if k.name == "application" {
			applications++
		}
		everywhere := k.name == "CLOSE" || k.name == "KEY_UPDATE" && k.ch == wire.ChannelControl || k.name == "application"
		for _, in := range k.inputs(k.name != "application" || applications == 1) {
			if in.generic && !everywhere {
				in.possible = func(s absState) bool { return s[fMode] == 0 && s[fEnd] == 0 }
			}
			list = append(list, in)
		}
	}
	for _, in := range list {
		if in.possible == nil && (in.kind == "ERROR" && in.variant != "without a code" || in.kind == "time" && in.variant == "silence") {
			in.possible = func(s absState) bool { return s[fEnd] == 0 }
		}
	}
	for i := range list {
		list[i].compile()
		if t := list[i].then; t != nil {
			t.compile()
		}
	}
	return list
}

func (k *kind) channel() string {
	switch {
	case k.ch == wire.ChannelReserved:
		return "reserved"
	case k.ch.IsGREASE():
		return "GREASE"
	case !k.ch.IsAssigned():
		return "unassigned"
	}
	return k.ch.String()
}

func helloPayload(edit func(*control.Hello)) []byte {
	h := control.Hello{
		Version: 1, Protocols: []uint8{2},
		HasChannels: true, Channels: []wire.Channel{wire.ChannelControl, wire.ChannelBridge, wire.ChannelDiscovery},
	}
	edit(&h)
	p, err := control.AppendHello(nil, &h)
	if err != nil {
		panic(err)
	}
	return p
}

func kinds() (list []kind) {
	add := func(k kind) {
		if k.payload == nil {
			k.payload = fixed(nil)
		}
		list = append(list, k)
	}
	marker := func(ch wire.Channel, d uint64) func(*world) []byte {
		return func(w *world) []byte {
			return control.AppendKeyUpdate(nil, w.c.openers[ch].Epoch()+wire.Epoch(d))
		}
	}
	// What is the same on every channel.
	for _, ch := range exploredChannels {
		add(kind{name: "PING", ch: ch, t: wire.TypePing, payload: fixed([]byte("12345678")), variants: map[string]func(*world) []byte{
			"over 64 octets": fixed(make([]byte, control.MaxPingLen+1)),
		}})
		add(kind{name: "PONG", ch: ch, t: wire.TypePong, payload: fixed([]byte("12345678"))})
		add(kind{name: "CLOSE", ch: ch, t: wire.TypeClose})
		add(kind{name: "CLOSE_ACK", ch: ch, t: wire.TypeCloseAck})
		add(kind{name: "ERROR", ch: ch, t: wire.TypeError, payload: fixed(control.AppendErrorReport(nil, control.CodePolicy, "no")), variants: map[string]func(*world) []byte{
			"without a code":    fixed([]byte{0}),
			"text not in UTF-8": fixed([]byte{0, byte(control.CodePolicy), 0xFF}),
		}})
		add(kind{name: "KEY_UPDATE", ch: ch, t: wire.TypeKeyUpdate, payload: marker(ch, 1),
			sent: func(w *world) { _ = w.seal[ch].Update() },
			variants: map[string]func(*world) []byte{
				"epoch marker below": marker(ch, 0),
				"epoch marker above": marker(ch, 2),
				"no marker":          fixed(nil),
				"two markers":        func(w *world) []byte { m := marker(ch, 1)(w); return append(m, m...) },
				"short marker":       func(w *world) []byte { m := marker(ch, 1)(w); m[3]--; return m[:len(m)-1] },
				"critical TLV":       func(w *world) []byte { return append(marker(ch, 1)(w), 0xFF, 0, 0, 0) },
			}})
		add(kind{name: "KEY_UPDATE_ACK", ch: ch, t: wire.TypeKeyUpdateAck, payload: fixed(control.AppendKeyUpdate(nil, 0)), variants: map[string]func(*world) []byte{
			"epoch marker above": func(w *world) []byte {
				// At its end there is none above; what is no acknowledgement at all is
				// counted alike.
				if e := w.c.sealers[ch].sealer.Epoch(); e != math.MaxUint64 {
					return control.AppendKeyUpdate(nil, e+1)
				}
				return nil
			},
			"no marker": fixed([]byte{1}),
		}})
		add(kind{name: "PATH_CHALLENGE", ch: ch, t: wire.TypePathChallenge, payload: fixed([]byte("12345678"))})
		add(kind{name: "PATH_RESPONSE", ch: ch, t: wire.TypePathResponse, payload: fixed([]byte("12345678"))})
		add(kind{name: "0x000b", ch: ch, t: 0x000B})
		add(kind{name: "0x0030", ch: ch, t: 0x0030})
	}
	add(kind{name: "FLOW_UPDATE", ch: wire.ChannelControl, t: wire.TypeFlowUpdate,
		payload: func(w *world) []byte { return control.AppendFlowUpdate(nil, w.c.credit.Sent()+1<<20) },
		variants: map[string]func(*world) []byte{
			"count below": fixed(make([]byte, 8)),
			"malformed":   fixed([]byte("1234567")),
		}})
	stream, _ := control.AppendStreamFlowUpdate(nil, 1<<30, []byte("corr"))
	add(kind{name: "FLOW_UPDATE", ch: wire.ChannelBridge, t: wire.TypeFlowUpdate, payload: fixed(stream),
		variants: map[string]func(*world) []byte{"malformed": fixed(stream[:len(stream)-1])}})

	// Control's own.
	bad := map[string]func(*world) []byte{
		"malformed":           fixed([]byte{0xA1, 0x18, 0, 0}),
		"with a negative key": fixed([]byte{0xA3, 0, 1, 1, 0x80, 0x20, 0}),
		"below the floor":     fixed([]byte{0xA3, 0, 1, 1, 0x80, 2, 0xA1, 0, 1}),
	}
	add(kind{name: "HELLO", ch: wire.ChannelControl, t: wire.TypeHello, payload: fixed(helloPayload(func(*control.Hello) {})), variants: bad})
	add(kind{name: "HELLO with credit", ch: wire.ChannelControl, t: wire.TypeHello, payload: fixed(helloPayload(func(h *control.Hello) {
		h.HasCredit, h.Credit = true, FloorCredit
		h.HasStreamCredit, h.StreamCredit = true, FloorStreamCredit
	}))})
	add(kind{name: "HELLO_DONE", ch: wire.ChannelControl, t: wire.TypeHelloDone, variants: map[string]func(*world) []byte{"with a payload": fixed([]byte{0})}})
	for _, t := range []wire.FrameType{wire.TypeClientHello, wire.TypeServerHello, wire.TypeServerAuth, wire.TypeClientAuth} {
		add(kind{name: controlNames[t], ch: wire.ChannelControl, t: t, payload: fixed(make([]byte, 200))})
	}
	add(kind{name: "0x0112", ch: wire.ChannelControl, t: 0x0112})

	// The ratchet.
	target := func(d uint64) func(*world) []byte {
		return func(w *world) []byte { return control.AppendRatchet(nil, w.c.cfg.Recv.Generation()+d) }
	}
	add(kind{name: "MASTER_RATCHET", ch: wire.ChannelControl, t: wire.TypeMasterRatchet, payload: target(1),
		sent: func(w *world) { _ = w.send.Ratchet(); w.rerootSeal() },
		variants: map[string]func(*world) []byte{
			"target below":         target(0),
			"target above":         target(2),
			"malformed":            fixed(nil),
			"with octets after it": func(w *world) []byte { return append(target(1)(w), 0) },
		}})
	add(kind{name: "MASTER_RATCHET_ACK", ch: wire.ChannelControl, t: wire.TypeMasterRatchetAck, payload: fixed(control.AppendRatchet(nil, 0)), variants: map[string]func(*world) []byte{
		"target above": func(w *world) []byte {
			// With the generation at its end there is none above; what is no
			// acknowledgement at all is counted alike.
			if g := w.c.cfg.Send.Generation(); g != math.MaxUint64 {
				return control.AppendRatchet(nil, g+1)
			}
			return nil
		},
		"malformed": fixed(nil),
	}})
	rekem := func(share int, first byte, d uint64) func(*world) []byte {
		return func(w *world) []byte {
			p := make([]byte, share)
			p[0] = first
			w.ourRekem = control.AppendRekem(nil, p, w.c.cfg.Send.Generation()+d)
			return w.ourRekem
		}
	}
	add(kind{name: "REKEM", ch: wire.ChannelControl, t: wire.TypeRekem, payload: rekem(toyShareLen, 0, 1), variants: map[string]func(*world) []byte{
		"target below":          rekem(toyShareLen, 0, 0),
		"target above":          rekem(toyShareLen, 0, 2),
		"unusable share":        rekem(toyShareLen, unusable, 1),
		"share of another size": rekem(toyShareLen+1, 0, 1),
		"malformed":             fixed(nil),
		"with octets after it":  func(w *world) []byte { return append(rekem(toyShareLen, 0, 1)(w), 0) },
	}})
	ack := func(ct int, first byte, d uint64) func(*world) []byte {
		return func(w *world) []byte {
			p := make([]byte, ct)
			p[0] = first
			return control.AppendRekemAck(nil, p, w.c.cfg.Recv.Generation()+d)
		}
	}
	add(kind{name: "REKEM_ACK", ch: wire.ChannelControl, t: wire.TypeRekemAck, payload: ack(toyCiphertextLen, 0, 1),
		sent: func(w *world) {
			th := schedule.RekemPoint(profiles.SHA256, w.theirRekem, ack(toyCiphertextLen, 0, 1)(w))
			_ = w.send.RatchetKEM(toySecret[:], &th)
			w.rerootSeal()
		},
		variants: map[string]func(*world) []byte{
			"target below":               ack(toyCiphertextLen, 0, 0),
			"target above":               ack(toyCiphertextLen, 0, 2),
			"unusable ciphertext":        ack(toyCiphertextLen, unusable, 1),
			"ciphertext of another size": ack(toyCiphertextLen+1, 0, 1),
			"malformed":                  fixed(nil),
			"with octets after it":       func(w *world) []byte { return append(ack(toyCiphertextLen, 0, 1)(w), 0) },
		}})

	// Application frames: those of Bridge, and the ratchet's numbers, which mean
	// nothing there.
	for _, t := range []wire.FrameType{0x0100, wire.TypeMasterRatchet, wire.TypeMasterRatchetAck, wire.TypeRekem, wire.TypeRekemAck, wire.TypeHello} {
		add(kind{name: "application", ch: wire.ChannelBridge, t: t, payload: fixed([]byte("application"))})
	}
	// Channels that are not carried.
	for _, ch := range []wire.Channel{wire.ChannelStream, wire.FirstGREASEChannel, 0x0014, wire.ChannelReserved} {
		add(kind{name: "anything", ch: ch, t: 0x0100, payload: fixed([]byte("anything"))})
	}
	return list
}

// sealed is a frame of the kind, right in everything; the peer's counter moves
// with it.
func (k *kind) sealed(w *world, payload []byte) []byte {
	return sealWith(k.sealer(w), k, payload)
}

// sealer is the peer's of the kind's channel, nil for one that is not carried.
func (k *kind) sealer(w *world) *record.Sealer {
	if !slices.Contains(exploredChannels, k.ch) {
		return nil
	}
	return w.seal[k.ch]
}

func sealWith(s *record.Sealer, k *kind, payload []byte) []byte {
	if s == nil {
		// A channel that is not carried: never opened, so anything will do.
		b := wire.AppendHeader(nil, wire.FlagENC, k.t, k.ch, 0, len(payload)+wire.TagLen)
		return append(append(b, payload...), make([]byte, wire.TagLen)...)
	}
	seq := s.Seq()
	if seq == math.MaxUint64 {
		// A sealer at its end seals no more, but its frame can be pretended.
		setField(s, "seq", math.MaxUint64-1)
	}
	b := append(make([]byte, wire.HeaderLen, wire.HeaderLen+len(payload)+wire.TagLen+1), payload...)
	b, err := s.Seal(b, 0, 0, k.t)
	if err != nil {
		panic(err)
	}
	if seq == math.MaxUint64 {
		b = patch(b, func(h []byte) { binary.BigEndian.PutUint64(h[9:], math.MaxUint64) })
	}
	return b
}

// uncounted is a right frame that the peer does not count, because it is spoiled
// and will not be opened.
func (k *kind) uncounted(w *world) []byte {
	s := k.sealer(w)
	if s == nil {
		return sealWith(nil, k, k.payload(w))
	}
	before := *s
	b := sealWith(s, k, k.payload(w))
	*s = before
	return b
}

// elsewhere seals the kind's frame with another key or number than is due; the
// peer's own counters stay.
func (k *kind) elsewhere(w *world, change func(s *record.Sealer, root *schedule.Root)) []byte {
	s := k.sealer(w)
	if s != nil {
		root := copyOf(w.send)
		s = copyKey(nil, s, root, new(reflect.Value))
		change(s, root)
	}
	return sealWith(s, k, k.payload(w))
}

func (k *kind) inputs(generic bool) (list []*input) {
	carried := slices.Contains(exploredChannels, k.ch)
	add := func(variant string, do func(w *world)) *input {
		in := &input{kind: k.name, channel: k.channel(), variant: variant, do: do}
		list = append(list, in)
		return in
	}
	good := func(w *world) []byte {
		b := k.sealed(w, k.payload(w))
		if k.sent != nil && !(k.t == wire.TypeRekemAck && !w.c.rekem.pending()) {
			k.sent(w)
		}
		return b
	}
	add("right", func(w *world) { w.feed(good(w)) })
	for name, payload := range k.variants {
		add(name, func(w *world) { w.feed(k.sealed(w, payload(w))) })
	}
	switch k.name {
	case "KEY_UPDATE", "MASTER_RATCHET":
		add("too often", func(w *world) {
			w.c.limits.peerUpdates = bucket{taken: PeerUpdateBurst, at: time.Hour}
			w.feed(good(w))
		})
	case "REKEM":
		add("too often", func(w *world) {
			w.c.limits.peerRekems = bucket{taken: PeerRekemBurst, at: time.Hour}
			w.feed(good(w))
		})
	case "application":
		add("above its credit", func(w *world) {
			leaveCredit(w, 0, func() { w.feed(good(w)) })
		})
		add("credit just used up", func(w *world) {
			leaveCredit(w, len(k.payload(w)), func() { w.feed(good(w)) })
		})
	}
	if !generic {
		return list
	}

	mark := len(list)
	// A frame in two pieces is the frame; one that comes twice is the frame and
	// then a replay.
	add("in two pieces", func(w *world) {
		b := good(w)
		at := min(wire.HeaderLen+5, len(b)-1)
		w.feed(b[:at])
		w.feed(b[at:])
		w.last = b
	})
	twice := add("right", func(w *world) { w.feed(good(w)) })
	twice.then = &input{kind: k.name, channel: k.channel(), variant: "replayed", do: func(w *world) { w.feed(w.last) }}

	raw := func(name string, edit func(b []byte) []byte) {
		add(name, func(w *world) { w.feed(edit(k.uncounted(w))) })
	}
	mended := func(name string, edit func(h []byte)) {
		raw(name, func(b []byte) []byte { edit(b); putCRC(b); return b })
	}
	flags := func(name string, f byte) { mended(name, func(h []byte) { h[4] ^= f }) }
	channel := func(name string, ch wire.Channel) {
		mended(name, func(h []byte) { binary.BigEndian.PutUint16(h[7:], uint16(ch)) })
	}
	length := func(b []byte, n int) {
		b[17], b[18], b[19], b[20] = byte(n>>24), byte(n>>16), byte(n>>8), byte(n)
	}
	raw("CRC", func(b []byte) []byte { b[22] ^= 0x40; return b })
	mended("magic", func(h []byte) { h[0] ^= 1 })
	mended("version", func(h []byte) { h[4] ^= 0x10 })
	raw("reserved octet", func(b []byte) []byte { b[35] = 1; return b })
	mended("length over the limit", func(h []byte) { length(h, 1<<24) })
	flags("ENC clear", byte(wire.FlagENC))
	flags("COMP set", byte(wire.FlagCOMP))
	flags("FRAG set", byte(wire.FlagFRAG))
	flags("URG changed", byte(wire.FlagURG))
	mended("type 0", func(h []byte) { h[5], h[6] = 0, 0 })
	if k.t != wire.TypeClose {
		mended("type CLOSE", func(h []byte) { h[5], h[6] = 0, byte(wire.TypeClose) })
	}
	if k.t != wire.TypePong {
		mended("type PONG", func(h []byte) { h[5], h[6] = 0, byte(wire.TypePong) })
	}
	channel("channel not carried", wire.ChannelStream)
	channel("channel GREASE", wire.FirstGREASEChannel)
	raw("payload under a tag", func(b []byte) []byte { length(b, wire.TagLen-1); putCRC(b); return b[:wire.HeaderLen+wire.TagLen-1] })
	raw("length less by one", func(b []byte) []byte {
		b = b[:len(b)-1]
		length(b, len(b)-wire.HeaderLen)
		putCRC(b)
		return b
	})
	raw("length more by one", func(b []byte) []byte {
		b = append(b, 0)
		length(b, len(b)-wire.HeaderLen)
		putCRC(b)
		return b
	})
	add("cut in the header, end of file", func(w *world) {
		w.feed(k.uncounted(w)[:wire.HeaderLen-1])
		w.c.HandleEOF(time.Hour, nil)
	})
	add("cut in the payload, end of file", func(w *world) {
		b := k.sealed(w, k.payload(w))
		w.feed(b[:len(b)-1])
		w.c.HandleEOF(time.Hour, nil)
	})
	if !carried {
		for _, in := range list[mark:] {
			in.generic = true
		}
		return list
	}
	add("no memory for a partial frame", func(w *world) {
		b := k.sealed(w, k.payload(w))
		w.c.scan.Budget = buf.NewBudget(0)
		w.feed(b[:len(b)-1])
	})
	channel("channel another", wire.ChannelDiscovery)
	raw("payload changed", func(b []byte) []byte { b[wire.HeaderLen] ^= 1; return b })
	raw("tag changed", func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	mended("sequence field changed", func(h []byte) { h[16] ^= 1 })
	number := func(d wire.Seq) func(s *record.Sealer, _ *schedule.Root) {
		return func(s *record.Sealer, _ *schedule.Root) {
			n := s.Seq() + d
			if n == math.MaxUint64 { // as sealWith needs it
				n--
			}
			setField(s, "seq", uint64(n))
		}
	}
	epoch := func(d wire.Epoch) func(s *record.Sealer, _ *schedule.Root) {
		return func(s *record.Sealer, _ *schedule.Root) {
			setField(s, "epoch", uint64(s.Epoch()+d))
			s.Idle()
		}
	}
	add("sequence below", func(w *world) { w.feed(k.elsewhere(w, number(math.MaxUint64))) })
	add("sequence above (lost, overtaken)", func(w *world) { w.feed(k.elsewhere(w, number(1))) })
	add("epoch below", func(w *world) { w.feed(k.elsewhere(w, epoch(math.MaxUint64))) })
	add("epoch above", func(w *world) { w.feed(k.elsewhere(w, epoch(1))) })
	add("generation above", func(w *world) {
		w.feed(k.elsewhere(w, func(s *record.Sealer, root *schedule.Root) {
			seq := s.Seq()
			setField(root, "gen", 7)
			_ = root.Ratchet()
			s.Reroot(root)
			setField(s, "seq", uint64(seq))
		}))
	})
	add("generation below", func(w *world) {
		// A root that is not the present one: what the one before was, nobody keeps.
		w.feed(k.elsewhere(w, func(s *record.Sealer, root *schedule.Root) {
			seq := s.Seq()
			s.Reroot(schedule.NewRoot(profiles.SHA256, root.Direction(), []byte("the root of an earlier generation"[:32])))
			setField(s, "seq", uint64(seq))
		}))
	})
	add("other direction", func(w *world) {
		w.feed(k.elsewhere(w, func(s *record.Sealer, root *schedule.Root) {
			seq := s.Seq()
			s.Reroot(w.recv)
			setField(s, "seq", uint64(seq))
		}))
	})
	for _, in := range list[mark:] {
		in.generic = true
	}
	return list
}

// leaveCredit does something while the peer has n octets left of the credit that it
// was granted. Where credit is in force and we are open, the next grant follows;
// elsewhere the old one stands again, since what is used up is no state.
func leaveCredit(w *world, n int, do func()) {
	granted := fieldOf(&w.c.credit, "granted").Uint()
	setField(&w.c.credit, "granted", fieldOf(&w.c.credit, "received").Uint()+uint64(n))
	do()
	if !w.c.creditInForce() || w.c.state != stateOpen {
		setField(&w.c.credit, "granted", granted)
	}
}

// commands are the inputs from this side: of the association above, of time and
// of the transport.
func commands() (list []*input) {
	add := func(kind, channel, variant string, do func(w *world)) *input {
		in := &input{kind: kind, channel: channel, variant: variant, do: do}
		list = append(list, in)
		return in
	}
	send := func(variant string, ch wire.Channel, t wire.FrameType, n func(w *world) int, before, after func(w *world)) {
		add("send", "-", variant, func(w *world) {
			if before != nil {
				before(w)
			}
			n := n(w)
			b, err := w.c.Begin(ch, t, n)
			if err == nil {
				err = w.c.End(append(b, make([]byte, n)...))
			}
			w.err = err
			if after != nil {
				batch := w.c.TakeBatch() // so that what the bounds cause happens
				after(w)
				w.c.StartBatch(time.Hour, batch, false)
			}
		})
	}
	one := func(*world) int { return 1 }
	send("plain", wire.ChannelBridge, 0x0100, one, nil, nil)
	send("on a channel not carried", wire.ChannelStream, 0x0100, one, nil, nil)
	send("on Control", wire.ChannelControl, wire.TypeMasterRatchet, one, nil, nil)
	send("of a common type", wire.ChannelBridge, wire.TypeKeyUpdate, one, nil, nil)
	send("larger than the peer takes", wire.ChannelBridge, 0x0100, func(w *world) int { return w.c.MaxSend() + 1 }, nil, nil)
	ourRate := func(w *world) { w.c.limits.ourUpdates = bucket{taken: UpdateBurst, at: time.Hour} }
	rootBound := func(w *world) { w.c.cfg.Ratchet.Frames = 1 }
	rootFree := func(w *world) { w.c.cfg.Ratchet.Frames = math.MaxUint64 }
	keyBound := func(w *world) {
		// Old enough for the configured bound, not for the profile's. A key that
		// sealed nothing is not renewed, so this one has.
		s := &w.c.sealers[wire.ChannelBridge]
		w.c.cfg.Bounds.Age, s.since = time.Second, time.Hour-time.Second
		if s.sealer.Seq() == 0 {
			setField(s.sealer, "seq", 1)
			setField(w.open[wire.ChannelBridge], "seq", 1)
		}
	}
	keyFree := func(w *world) {
		w.c.cfg.Bounds.Age = w.c.cfg.Profile.Bounds.Age
		w.c.sealers[wire.ChannelBridge].since = time.Hour
	}
	send("root at its bound", wire.ChannelBridge, 0x0100, one, rootBound, rootFree)
	send("root at its bound, changed too often", wire.ChannelBridge, 0x0100, one, func(w *world) { rootBound(w); ourRate(w) }, rootFree)
	send("key at its bound", wire.ChannelBridge, 0x0100, one, keyBound, keyFree)
	send("key at its bound, changed too often", wire.ChannelBridge, 0x0100, one, func(w *world) { keyBound(w); ourRate(w) }, keyFree)

	for _, ch := range []wire.Channel{wire.ChannelControl, wire.ChannelBridge, wire.ChannelStream} {
		add("UpdateKey", ch.String(), "now", func(w *world) { w.err = w.c.UpdateKey(ch) })
		add("UpdateKey", ch.String(), "too often", func(w *world) { ourRate(w); w.err = w.c.UpdateKey(ch) })
	}
	add("Ratchet", "-", "now", func(w *world) { w.err = w.c.Ratchet() })
	add("Ratchet", "-", "too often", func(w *world) { ourRate(w); w.err = w.c.Ratchet() })
	add("Rekem", "-", "now", func(w *world) { w.err = w.c.Rekem() })
	add("Rekem", "-", "too often", func(w *world) {
		w.c.limits.ourRekems = bucket{taken: RekemBurst, at: time.Hour}
		w.err = w.c.Rekem()
	})
	add("GrantStream", "-", "now", func(w *world) { w.err = w.c.GrantStream(wire.ChannelBridge, 1<<20, []byte("corr")) })
	add("Close", "-", "without a reason", func(w *world) { w.c.Close(time.Hour, 0, "") })
	add("Close", "-", "with a reason", func(w *world) { w.c.Close(time.Hour, control.CodeShutdown, "bye") })
	add("Abort", "-", "now", func(w *world) { w.c.Abort(time.Hour, control.CodeInternal, errors.New("a handler panicked")) })

	// One deadline falls due, the others lie far ahead.
	due := func(variant string, set func(c *Conn)) {
		add("time", "-", variant, func(w *world) {
			c := w.c
			c.opened, c.closeBy = time.Hour, 1000*time.Hour
			if c.rekem.pending() {
				c.rekem.until = 1000 * time.Hour
			}
			if c.pingAt != 0 {
				c.pingAt = 1000 * time.Hour
			}
			set(c)
			c.HandleTimeout(time.Hour)
		})
	}
	due("silence", func(c *Conn) {
		if c.pingAt != 0 {
			c.pingAt, c.lastRecv = time.Hour, time.Hour-c.cfg.PingInterval
		}
	})
	due("no silence", func(c *Conn) {
		if c.pingAt != 0 {
			c.pingAt, c.lastRecv = time.Hour, time.Hour
		}
	})
	due("wait for HELLO over", func(c *Conn) { c.opened = time.Hour - c.cfg.HelloWait })
	due("wait for REKEM_ACK over", func(c *Conn) {
		if c.rekem.pending() {
			c.rekem.until = time.Hour
		}
	})
	due("wait for CLOSE_ACK over", func(c *Conn) { c.closeBy = time.Hour })
	add("transport", "-", "end of file", func(w *world) { w.c.HandleEOF(time.Hour, nil) })
	add("transport", "-", "error", func(w *world) { w.c.HandleEOF(time.Hour, errors.New("reset")) })

	jump := func(variant string, possible func(s absState) bool, do func(w *world)) {
		add("jump", "-", variant, do).possible = possible
	}
	jump("credit used up", func(s absState) bool {
		// Where credit binds us: before HELLO, and in force after it.
		return s[fMode] != 1 && s[fPhase] == 0 && s[fCredit] == 0 && (s[fHello] == 0 || s[fHello] == 2)
	}, func(w *world) { w.c.credit.LimitSend(w.c.credit.Sent()) })
	for _, to := range fields[fEnd].values[1:] {
		jump(to, func(s absState) bool { return s[fPhase] != 3 && s[fEnd] == 0 && s[fError] == 0 && s[fPings] == 0 }, func(w *world) { w.jump(to) })
	}
	return list
}
