package conn

import (
	"crypto/cipher"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"time"
	"unsafe"

	"github.com/trestle-npamp/trestle/crypto/kem"
	"github.com/trestle-npamp/trestle/crypto/record"
	"github.com/trestle-npamp/trestle/crypto/schedule"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/sched"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// The exploration's machine and the peer at its other end, which can be copied
// whole: each input is given to a copy.

// A state of the exploration is what tells two machines apart that may answer the
// same input differently. Sequence numbers, epochs and generations are not in it:
// inputs name them relative to what the machine expects (below, expected, above),
// and only that one has no successor is a state.
type absState [len(fields)]uint8

const (
	fMode = iota
	fPhase
	fHello
	fDone
	fOverran
	fRekem
	fError
	fPings
	fCredit
	fEnd
)

// fields are the parts of a state with their values; the first is where each
// begins.
var fields = [...]struct {
	name, says string
	values     []string
}{
	fMode:    {"mode", "how the association was configured", []string{"ordinary", "no HELLO", "no ratchet"}},
	fPhase:   {"phase", "open; draining: Close was called and frames wait; closing: CLOSE was said; ended", []string{"open", "draining", "closing", "ended"}},
	fHello:   {"hello", "the peer's HELLO: none yet; late: no longer expected; credit: it came with credit for the association and for streams; free: it came without", []string{"none", "late", "credit", "free"}},
	fDone:    {"done", "HELLO_DONE has come", []string{"no", "yes"}},
	fOverran: {"overran", "the peer sent more than our credit before its HELLO", []string{"no", "yes"}},
	fRekem:   {"rekem", "a REKEM of ours waits for its answer", []string{"no", "yes"}},
	fError:   {"error", "the peer said ERROR", []string{"no", "yes"}},
	fPings:   {"pings", "of ours that are not answered", []string{"0", "1", "2"}},
	fCredit:  {"credit", "the peer's, for what we send: room; none; waits: none, and frames wait for it", []string{"room", "none", "waits"}},
	fEnd: {"end", "a counter that has no successor: sequence number and epoch of Control and Bridge, or generation, of one direction", []string{
		"none", "receive sequence", "receive epoch", "receive generation", "send sequence", "send epoch", "send generation",
	}},
}

func (s absState) String() string {
	text := ""
	for i, f := range fields {
		if s[i] != 0 || i == fPhase {
			text += f.name + "=" + f.values[s[i]] + " "
		}
	}
	return text
}

// toyKEM stands in for the key exchange, whose arithmetic is not the machine's
// business: sizes, and a secret that both sides know.
type toyKEM struct{}

const (
	toyShareLen      = 24
	toyCiphertextLen = 20
	unusable         = 0xEE // as first octet: what a real one would refuse
)

var toySecret = [kem.SecretLen]byte{0: 1, 63: 2}

func (toyKEM) ShareLen() int                         { return toyShareLen }
func (toyKEM) CiphertextLen() int                    { return toyCiphertextLen }
func (toyKEM) Generate(io.Reader) (ephemeral, error) { return toyKEM{}, nil }
func (toyKEM) Share() []byte                         { return make([]byte, toyShareLen) }
func (toyKEM) Wipe()                                 {}
func (toyKEM) Decapsulate(ct []byte) (*kem.Secret, error) {
	if ct[0] == unusable {
		return nil, kem.ErrLowOrder
	}
	return kem.NewSecret(toySecret), nil
}

func (toyKEM) Encapsulate(_ io.Reader, share []byte) ([]byte, *kem.Secret, error) {
	if share[0] == unusable {
		return nil, nil, kem.ErrLowOrder
	}
	return make([]byte, toyCiphertextLen), kem.NewSecret(toySecret), nil
}

// world is a machine and its peer.
type world struct {
	c          *Conn
	send, recv *schedule.Root // the peer's
	seal       [knownChannels]*record.Sealer
	open       [knownChannels]*record.Opener
	theirRekem []byte // the payload of the machine's last REKEM
	ourRekem   []byte // and of the peer's
	last       []byte // the octets of the last input
	outcome

	spare    [8]reflect.Value // memory of expanded keys
	counters *Counters
}

// outcome is what one input made the machine do.
type outcome struct {
	sent   []string
	events []string
	err    error // of a command
	ended  *CloseError
}

var exploredChannels = []wire.Channel{wire.ChannelControl, wire.ChannelBridge}

func newWorld(role Role, mode uint8) *world {
	master := make([]byte, 32)
	root := func(dir wire.Direction) *schedule.Root { return schedule.NewRoot(profiles.SHA256, dir, master) }
	w := &world{send: root(role.Sends().Reverse()), recv: root(role.Sends())}
	w.c = New(Config{
		Role: role, Profile: profiles.Standard, Suite: profiles.AES256GCM,
		Send: root(role.Sends()), Recv: root(role.Sends().Reverse()),
		Channels:  []wire.Channel{wire.ChannelBridge, wire.ChannelDiscovery, wire.ChannelMemory},
		NoHello:   mode == 1,
		NoRatchet: mode == 2,
	}, time.Hour)
	w.c.kem = toyKEM{}
	w.counters = w.c.cfg.Counters
	for _, ch := range exploredChannels {
		w.seal[ch] = record.NewSealer(w.send, profiles.Standard, profiles.AES256GCM, ch)
		w.open[ch] = record.NewOpener(w.recv, profiles.Standard, profiles.AES256GCM, ch)
	}
	w.turn(func(w *world) {
		if err := w.c.Open(); err != nil {
			panic(err)
		}
		// Both channels are in use from the beginning, so that counters exist.
		for _, ch := range exploredChannels {
			w.c.side(ch)
			w.c.opener(ch)
		}
	})
	return w
}

// copyWorld copies src, with everything that a step can change, into d, whose
// memory is used again.
func (d *world) copyWorld(src *world) {
	old := *d
	*d = *src
	d.spare, d.counters = old.spare, old.counters
	d.c, d.send, d.recv = old.c, old.send, old.recv
	if d.c == nil {
		d.c, d.send, d.recv = new(Conn), new(schedule.Root), new(schedule.Root)
		d.counters = new(Counters)
	}
	*d.send, *d.recv = *src.send, *src.recv
	c, from := d.c, src.c
	ours, theirs := c.cfg.Send, c.cfg.Recv
	if ours == nil {
		ours, theirs = new(schedule.Root), new(schedule.Root)
	}
	*ours, *theirs = *from.cfg.Send, *from.cfg.Recv
	openers, sealers := c.openers, c.sealers
	*c = *from
	c.cfg.Send, c.cfg.Recv = ours, theirs
	for i, ch := range exploredChannels {
		d.seal[ch] = copyKey(old.seal[ch], src.seal[ch], d.send, &d.spare[4*i])
		d.open[ch] = copyKey(old.open[ch], src.open[ch], d.recv, &d.spare[4*i+1])
		c.sealers[ch].sealer = copyKey(sealers[ch].sealer, from.sealers[ch].sealer, ours, &d.spare[4*i+2])
		c.openers[ch] = copyKey(openers[ch], from.openers[ch], theirs, &d.spare[4*i+3])
	}
	if o := from.openers[wire.ChannelDiscovery]; o != nil {
		c.openers[wire.ChannelDiscovery] = copyKey(nil, o, theirs, new(reflect.Value))
	}
	c.cfg.Counters = d.counters
	c.scan = wire.Scanner{MaxFrame: from.scan.MaxFrame}
	c.rekem.request = slices.Clone(from.rekem.request)
	c.queue = sched.Queue{}
	for _, f := range from.queued() {
		b := buf.Get(len(f.Buf.B))
		b.B = append(b.B, f.Buf.B...)
		c.push(f.Channel, f.Type, f.Flags, nil, b)
	}
}

// queued are the frames in the queue, which stay there, in their order.
func (c *Conn) queued() (list []*sched.Frame) {
	if c.queue.Len() == 0 {
		return nil
	}
	c.queue.Drain(func(f *sched.Frame) { list = append(list, f) })
	for _, f := range list {
		c.queue.Push(f)
	}
	return list
}

func copyOf[T any](p *T) *T {
	v := *p
	return &v
}

// slotsAt is where sealers and openers keep what they expanded, rootAt what they
// derive it from.
var slotsAt, rootAt = func() (uintptr, uintptr) {
	s, o := reflect.TypeFor[record.Sealer](), reflect.TypeFor[record.Opener]()
	slots, _ := s.FieldByName("slots")
	root, ok := s.FieldByName("root")
	slots2, _ := o.FieldByName("slots")
	root2, ok2 := o.FieldByName("root")
	aead := slots.Type.Elem().Field(0)
	if !ok || !ok2 || slots.Offset != slots2.Offset || root.Offset != root2.Offset || aead.Offset != 0 || aead.Type != reflect.TypeFor[cipher.AEAD]() {
		panic("sealers and openers are not what they were")
	}
	return slots.Offset, root.Offset
}()

// copyKey copies a sealer or opener, with its expanded key, onto another root; dst
// and spare are memory to use again. They have no way to copy themselves, and
// should not: two that seal under one key and count apart are what they exist to
// prevent.
func copyKey[T record.Sealer | record.Opener](dst, src *T, root *schedule.Root, spare *reflect.Value) *T {
	if dst == nil {
		dst = new(T)
	}
	*dst = *src
	*(**schedule.Root)(unsafe.Add(unsafe.Pointer(dst), rootAt)) = root
	at := unsafe.Add(unsafe.Pointer(dst), slotsAt)
	key := (*cipher.AEAD)(at)
	if *key == nil {
		return dst
	}
	from := reflect.ValueOf(*key)
	if !spare.IsValid() || spare.Type() != from.Type() {
		*spare = reflect.New(from.Type().Elem())
	}
	copyObject(spare.Elem(), from.Elem())
	// Of the interface only the pointer changes.
	*(*unsafe.Pointer)(unsafe.Add(at, unsafe.Sizeof(at))) = spare.UnsafePointer()
	return dst
}

// warm expands the keys that the next frames will need, so that the copies need not.
func (w *world) warm() {
	if w.c.state >= stateClosed {
		return
	}
	for _, ch := range exploredChannels {
		for _, s := range []*record.Sealer{w.seal[ch], w.c.sealers[ch].sealer} {
			if !s.Expanded() && s.Seq() != math.MaxUint64 {
				before := *s
				_, _ = s.Seal(make([]byte, wire.HeaderLen, wire.HeaderLen+wire.TagLen), 0, 0, 0x0100)
				rewind(s, &before)
			}
		}
		for _, o := range []*record.Opener{w.open[ch], w.c.openers[ch]} {
			if !o.Expanded() && o.Seq() != math.MaxUint64 {
				b := wire.AppendHeader(nil, wire.FlagENC, 0x0100, ch, o.Seq(), wire.TagLen)
				f, _, _ := wire.ParseFrame(append(b, make([]byte, wire.TagLen)...), wire.MaxFrameLen)
				_, _ = o.Open(f) // fails, with the key at hand
			}
		}
	}
}

// rewind gives s its numbers of before; the expanded key stays.
func rewind(s, before *record.Sealer) {
	setField(s, "seq", uint64(before.Seq()))
	setField(s, "octets", before.Octets())
}

// copyObject copies a struct, and the structs behind its pointers and interfaces.
func copyObject(dst, src reflect.Value) {
	dst.Set(src)
	for i := range dst.NumField() {
		f := dst.Field(i)
		f = reflect.NewAt(f.Type(), f.Addr().UnsafePointer()).Elem() // also where it is not exported
		from := f
		if f.Kind() == reflect.Interface {
			from = f.Elem()
		}
		if from.Kind() == reflect.Pointer && !from.IsNil() && from.Type().Elem().Kind() == reflect.Struct {
			inner := reflect.New(from.Type().Elem())
			copyObject(inner.Elem(), from.Elem())
			f.Set(inner)
		}
	}
}

// turn is one turn of the machine; act is what happens in it.
func (w *world) turn(act func(*world)) {
	w.outcome = outcome{}
	w.c.StartBatch(time.Hour, nil, false)
	act(w)
	w.poll()
	w.c.Settle()
	batch := w.c.TakeBatch()
	w.poll()
	for len(batch) > 0 {
		f, n, err := wire.ParseFrame(batch, wire.MaxFrameLen)
		if err != nil || n == 0 {
			panic(fmt.Sprintf("the machine sent no frame: %v", err))
		}
		w.follow(f)
		batch = batch[n:]
	}
}

// feed gives the machine octets within a turn.
func (w *world) feed(b []byte) {
	w.last = b
	w.c.HandleBytes(time.Hour, slices.Clone(b))
	w.poll()
	w.c.Settle()
}

func (w *world) poll() {
	for {
		ev, ok := w.c.Poll()
		if !ok {
			return
		}
		switch ev.Kind {
		case EventFrame:
			w.events = append(w.events, "frame")
		case EventHello:
			w.events = append(w.events, "HELLO")
		case EventCredit:
			w.events = append(w.events, "stream credit")
		case EventClosed:
			if w.ended != nil {
				panic("ended twice")
			}
			w.ended = ev.Err
		}
	}
}

// follow opens what the machine sent, as its peer would, and moves the peer's keys
// by it. What does not open is the machine's fault.
func (w *world) follow(f wire.Frame) {
	ch, t := f.Header().Channel(), f.Header().Type()
	o := w.open[ch]
	if o == nil {
		panic(fmt.Sprintf("the machine sent on %v", ch))
	}
	pt, err := o.Open(f)
	if err != nil {
		panic(fmt.Sprintf("what the machine sent on %v as %v does not open: %v", ch, t, err))
	}
	w.sent = append(w.sent, frameName(ch, t, pt))
	switch {
	case t == wire.TypeKeyUpdate:
		_ = o.Update()
	case ch != wire.ChannelControl:
	case t == wire.TypeMasterRatchet:
		_ = w.recv.Ratchet()
		w.rerootOpen()
	case t == wire.TypeRekem:
		w.theirRekem = slices.Clone(pt)
	case t == wire.TypeRekemAck:
		th := schedule.RekemPoint(profiles.SHA256, w.ourRekem, pt)
		_ = w.recv.RatchetKEM(toySecret[:], &th)
		w.rerootOpen()
	}
}

func (w *world) rerootOpen() {
	for _, ch := range exploredChannels {
		w.open[ch].Reroot(w.recv)
	}
}

func (w *world) rerootSeal() {
	for _, ch := range exploredChannels {
		w.seal[ch].Reroot(w.send)
	}
}

var controlNames = map[wire.FrameType]string{
	wire.TypeClientHello: "CLIENT_HELLO", wire.TypeServerHello: "SERVER_HELLO",
	wire.TypeServerAuth: "SERVER_AUTH", wire.TypeClientAuth: "CLIENT_AUTH",
	wire.TypeMasterRatchet: "MASTER_RATCHET", wire.TypeMasterRatchetAck: "MASTER_RATCHET_ACK",
	wire.TypeRekem: "REKEM", wire.TypeRekemAck: "REKEM_ACK",
	wire.TypeHello: "HELLO", wire.TypeHelloDone: "HELLO_DONE",
}

// frameName is a frame as the table writes it.
func frameName(ch wire.Channel, t wire.FrameType, payload []byte) string {
	name := fmt.Sprintf("%#04x", uint16(t))
	switch {
	case t == wire.TypeError && len(payload) >= 2:
		return fmt.Sprintf("ERROR(%v)", control.ErrorCode(binary.BigEndian.Uint16(payload)))
	case t == wire.TypeClose && ch == wire.ChannelControl:
		return "CLOSE"
	case t <= wire.TypeFlowUpdate:
		name = t.String()
	case ch == wire.ChannelControl:
		return controlNames[t]
	}
	return name + " on " + ch.String()
}

// state abstracts the machine.
func (w *world) state() absState {
	var s absState
	c := w.c
	switch {
	case c.cfg.NoHello:
		s[fMode] = 1
	case c.cfg.NoRatchet:
		s[fMode] = 2
	}
	switch {
	case c.state >= stateClosed:
		s[fPhase] = 3
		return s // nothing else matters any more
	case c.state == stateClosing && c.closeSent:
		s[fPhase] = 2
	case c.state == stateClosing:
		s[fPhase] = 1
	}
	switch {
	case c.hasHello && c.peerHello.HasCredit:
		s[fHello] = 2
	case c.hasHello:
		s[fHello] = 3
	case c.helloExpired:
		s[fHello] = 1
	}
	yes := func(f int, on bool) {
		if on {
			s[f] = 1
		}
	}
	yes(fDone, c.helloDone)
	yes(fOverran, c.overran && !c.hasHello)
	yes(fRekem, c.rekem.pending())
	yes(fError, c.peerError != 0)
	s[fPings] = uint8(c.pings)
	switch {
	case c.queue.Len() > 0:
		s[fCredit] = 2
	case !c.affords(wire.ChannelBridge, 1):
		s[fCredit] = 1
	}
	o, sl := c.openers[wire.ChannelBridge], c.sealers[wire.ChannelBridge].sealer
	switch uint64(math.MaxUint64) {
	case c.cfg.Recv.Generation():
		s[fEnd] = 3
	case uint64(o.Epoch()):
		s[fEnd] = 2
	case uint64(o.Seq()):
		s[fEnd] = 1
	case c.cfg.Send.Generation():
		s[fEnd] = 6
	case uint64(sl.Epoch()):
		s[fEnd] = 5
	case uint64(sl.Seq()):
		s[fEnd] = 4
	}
	return s
}

// jump moves a counter of both ends to where it has no successor.
func (w *world) jump(to string) {
	c := w.c
	for _, ch := range exploredChannels {
		switch to {
		case "receive sequence":
			setField(c.openers[ch], "seq", math.MaxUint64)
			setField(w.seal[ch], "seq", math.MaxUint64)
		case "receive epoch":
			setField(c.openers[ch], "epoch", math.MaxUint64)
			setField(w.seal[ch], "epoch", math.MaxUint64)
			c.openers[ch].Idle()
			w.seal[ch].Idle()
		case "receive generation":
			setField(c.openers[ch], "gen", math.MaxUint64)
			setField(w.seal[ch], "gen", math.MaxUint64)
		case "send sequence":
			setField(c.sealers[ch].sealer, "seq", math.MaxUint64)
			setField(w.open[ch], "seq", math.MaxUint64)
		case "send epoch":
			setField(c.sealers[ch].sealer, "epoch", math.MaxUint64)
			setField(w.open[ch], "epoch", math.MaxUint64)
			c.sealers[ch].sealer.Idle()
			w.open[ch].Idle()
		case "send generation":
			setField(c.sealers[ch].sealer, "gen", math.MaxUint64)
			setField(w.open[ch], "gen", math.MaxUint64)
		}
	}
	switch to {
	case "receive generation":
		setField(c.cfg.Recv, "gen", math.MaxUint64)
		setField(w.send, "gen", math.MaxUint64)
	case "send generation":
		setField(c.cfg.Send, "gen", math.MaxUint64)
		setField(w.recv, "gen", math.MaxUint64)
	}
}

// position is where the receiving direction stands.
type position struct {
	generation uint64
	epoch      [2]wire.Epoch // by exploredChannels
	seq        [2]wire.Seq
}

func (w *world) position() (p position) {
	p.generation = w.c.cfg.Recv.Generation()
	for i, ch := range exploredChannels {
		p.epoch[i], p.seq[i] = w.c.openers[ch].Epoch(), w.c.openers[ch].Seq()
	}
	return p
}

// rest is everything in the machine that is neither counted, nor a key, nor the
// driver's: what must be the same after an input that was dropped.
func (w *world) rest() Conn {
	c := *w.c
	c.cfg.Counters, c.cfg.Send, c.cfg.Recv = nil, nil, nil
	c.openers, c.sealers = [knownChannels]*record.Opener{}, [knownChannels]sendSide{}
	c.queue, c.scan, c.batch, c.sealed = sched.Queue{}, wire.Scanner{}, nil, 0
	c.lively, c.worked = false, false // of the turn
	return c
}
