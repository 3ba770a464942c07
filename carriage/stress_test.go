package carriage_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/crypto/schedule"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/sched"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// unruly answers in every way there is, right and wrong, from anywhere.
type unruly struct {
	answering atomic.Int64 // goroutines; handlers on the pool may begin some at any time
	seed      atomic.Uint64
}

func (u *unruly) ServeNotify(*carriage.Notify) {}
func (u *unruly) ServeRequest(r *carriage.Request) {
	n := u.seed.Add(1)
	good := result(r)
	answer := func(r *carriage.Request) {
		switch n % 3 {
		case 0:
			_ = r.Respond(good)
		case 1:
			_ = r.Fail([]byte(`{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}`))
		default:
			_ = r.Refuse(bridge.CodeNotDelivered, "no")
		}
	}
	switch n % 8 {
	case 0, 1:
		answer(r)
	case 2:
		panic("unruly")
	case 3: // forgets
	case 4:
		_ = r.Respond([]byte("nonsense"))
	case 5:
		r.Retain()
		answer(r)
		r.Release()
	default:
		r.Retain()
		u.answering.Add(2)
		var left atomic.Int32
		left.Store(2)
		for range 2 { // two of them, only one can be first
			go func() {
				defer u.answering.Add(-1)
				answer(r)
				if left.Add(-1) == 0 {
					r.Release()
				}
			}()
		}
	}
}

// Whatever handlers do and whenever the association ends, each exchange ends
// exactly once.
func TestEveryExchangeEndsExactlyOnce(t *testing.T) {
	for round := range 6 {
		u := new(unruly)
		cfg := config(u)
		cfg.Protocols[0].Async = round%2 == 1
		cfg.ReplyTimeout = time.Hour
		b := carriage.New(cfg)
		p := nptest.NewPair(t, nptest.Options{Client: options(b), Server: options(b), Latency: time.Millisecond, Chunk: 777})
		p.Run(10 * time.Millisecond)

		const callers, each = 8, 50
		var ends [callers * each]atomic.Int32
		var open atomic.Int64
		open.Store(callers * each)
		var wg sync.WaitGroup
		var refused atomic.Int64
		for c := range callers {
			wg.Go(func() {
				a := []*assoc.Association{p.Client.Association, p.Server.Association}[c%2]
				for i := range each {
					k := c*each + i
					x, err := b.Start(a, &carriage.Call{
						Protocol: mcp, Hop: i%2 == 0, Foreign: fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"m"}`, k),
					}, carriage.CompletionFunc(func(*carriage.Reply) {
						ends[k].Add(1)
						open.Add(-1)
					}))
					if err != nil {
						if !errors.Is(err, assoc.ErrClosed) {
							t.Error(err)
						}
						ends[k].Add(1)
						open.Add(-1)
						refused.Add(1)
					} else if i%5 == 0 {
						x.Abandon(nil)
					}
				}
			})
		}
		turns := 0
		cut := 200 + rand.IntN(400)
		p.RunUntil(func() bool {
			if turns++; round >= 4 && turns == cut {
				p.Cut(errors.New("reset"))
			}
			p.Run(time.Millisecond)
			return open.Load() == 0
		})
		wg.Wait()
		nptest.Eventually(t, func() bool { return u.answering.Load() == 0 }, func() any { return u.answering.Load() })
		p.Run(second)
		for k := range ends {
			if n := ends[k].Load(); n != 1 {
				t.Fatalf("round %d: exchange %d ended %d times", round, k, n)
			}
		}
		if round < 4 {
			for _, e := range []*nptest.End{p.Client, p.Server} {
				if n := e.ChannelConn(wire.ChannelBridge).Busy(); n != 0 {
					t.Errorf("round %d: %d exchanges busy on the %v", round, n, e.Role())
				}
			}
			if refused.Load() != 0 {
				t.Errorf("round %d: %d refused", round, refused.Load())
			}
		}
	}
}

// direct is two associations without anything between them, for measuring.
type direct struct {
	client, server *assoc.Association
	up, down       []byte
	now            time.Duration
	woken          noTransport
}

// noTransport has a place for the word that there is something to do.
type noTransport chan struct{}

func (woken noTransport) Wake() {
	select {
	case woken <- struct{}{}:
	default:
	}
}
func (noTransport) Buffered() int      { return 0 }
func (noTransport) Now() time.Duration { return 0 }

// Yield counts, over all of them, how often a caller was told its answer.
func (noTransport) Yield() { yields.Add(1) }

var yields atomic.Int64

func newDirect(tb testing.TB, client, server assoc.ChannelHandler, edit ...func(*assoc.Options)) *direct {
	tb.Helper()
	d := &direct{now: time.Hour, woken: make(noTransport, 1)}
	side := func(role assoc.Role, h assoc.ChannelHandler) *assoc.Association {
		o := options(h)
		for _, f := range edit {
			f(&o)
		}
		o.Conn.Role, o.Conn.Profile, o.Conn.Suite = role, profiles.Standard, profiles.AES256GCM
		send, recv := wire.ClientToServer, wire.ServerToClient
		if role == assoc.Server {
			send, recv = recv, send
		}
		master := bytes.Repeat([]byte{1}, 32)
		o.Conn.Send = schedule.NewRoot(profiles.SHA256, send, bytes.Clone(master))
		o.Conn.Recv = schedule.NewRoot(profiles.SHA256, recv, bytes.Clone(master))
		a := assoc.New(o, d.now)
		if err := a.Start(d.now, d.woken, sched.NewWheel(time.Millisecond, d.now)); err != nil {
			tb.Fatal(err)
		}
		return a
	}
	d.client, d.server = side(assoc.Client, client), side(assoc.Server, server)
	d.step()
	return d
}

// step lets both sides say what they have to say, back and forth.
func (d *direct) step() {
	var in []byte
	for range 3 {
		d.up = d.client.Turn(d.now, in, d.up[:0])
		d.down = d.server.Turn(d.now, d.up, d.down[:0])
		in = d.down
	}
}

// ask is a peer that sends one prepared request again and again and looks only
// at whether there was an answer.
type ask struct {
	peer
	answers int
}

func (p *ask) Attach(a *assoc.Association) assoc.ChannelConn { p.a = a; return p }
func (p *ask) HandleFrame(t wire.FrameType, b []byte) {
	if t == bridge.TypeResponse {
		p.answers++
	}
}

func message(size int) []byte {
	const head, tail = `{"jsonrpc":"2.0","id":"req-000001","method":"message/send","params":{"text":"`, `"}}`
	return []byte(head + string(bytes.Repeat([]byte("x"), size-len(head)-len(tail))) + tail)
}

var prepared = func() []byte {
	b, err := (&bridge.Message{Kind: bridge.KindRequest, Protocol: mcp, Content: bridge.ContentJSON, Corr: []byte(`"req-000001"`),
		Method: []byte("message/send"), Foreign: message(512)}).Append(nil, nil)
	if err != nil {
		panic(err)
	}
	return b
}()

// fixed answers every request with the same result, as an inline handler does.
var fixedReply = []byte(`{"jsonrpc":"2.0","id":"req-000001","result":` + string(message(450)) + `}`)

func (p *ask) send(tb testing.TB) {
	f := assoc.NewBuf(len(prepared))
	f.B = append(f.B, prepared...)
	if err := p.a.SendBuf(wire.ChannelBridge, bridge.TypeRequest, f); err != nil {
		tb.Fatal(err)
	}
}

// In steady state a request and its reply cost the responder no allocation.
func TestInlineRequestAllocatesNothing(t *testing.T) {
	for _, serving := range []assoc.Role{assoc.Client, assoc.Server} {
		c := new(ask)
		b := carriage.New(config(carriage.HandlerFunc(func(r *carriage.Request) { _ = r.Respond(fixedReply) })))
		var d *direct
		if serving == assoc.Server {
			d = newDirect(t, c, b)
		} else {
			d = newDirect(t, b, c)
		}
		round := func() {
			c.send(t)
			d.step()
		}
		for range 100 {
			round()
		}
		if n := testing.AllocsPerRun(2000, round); n != 0 && !raceEnabled {
			t.Errorf("%v allocations a request that a %v serves", n, serving)
		}
		if c.answers != 2101 {
			t.Errorf("%d answers, %+v", c.answers, b.Stats())
		}
	}
}

// Neither does one that is retained, answered elsewhere and released, nor the
// originator's side of an exchange.
func TestExchangeAllocatesNothing(t *testing.T) {
	var r *carriage.Request
	b := carriage.New(config(carriage.HandlerFunc(func(x *carriage.Request) { x.Retain(); r = x })))
	d := newDirect(t, b, b)
	q := carriage.Call{Protocol: mcp, Foreign: message(512), Timeout: time.Minute}
	for _, a := range []*assoc.Association{d.client, d.server} {
		n := 0
		done := carriage.CompletionFunc(func(reply *carriage.Reply) {
			if reply.Err == nil {
				n++
			}
		})
		round := func() {
			if _, err := b.Start(a, &q, done); err != nil {
				t.Fatal(err)
			}
			d.step()
			if err := r.Respond(fixedReply); err != nil {
				t.Fatal(err)
			}
			r.Release()
			d.step()
		}
		for range 100 {
			round()
		}
		if got := testing.AllocsPerRun(1000, round); got != 0 && !raceEnabled {
			t.Errorf("%v allocations an exchange that a %v began", got, a.Role())
		}
		if n != 1101 {
			t.Errorf("%d replies, %+v", n, b.Stats())
		}
	}
}

// One request of 512 octets there and back, with both sides' cryptography.
func BenchmarkInlineRequest(b *testing.B) {
	for _, batch := range []int{1, 16} {
		b.Run(fmt.Sprint(batch), func(b *testing.B) {
			c := new(ask)
			d := newDirect(b, c, carriage.New(config(carriage.HandlerFunc(func(r *carriage.Request) { _ = r.Respond(fixedReply) }))))
			b.ReportAllocs()
			for b.Loop() {
				for range batch {
					c.send(b)
				}
				d.step()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(batch), "ns/req")
		})
	}
}

// A request of 512 octets that Start sends and its answer, 16 in flight on each
// association, with both sides' work and cryptography but without a socket.
func BenchmarkExchange(b *testing.B) {
	for _, conns := range []int{1, 64} {
		b.Run(fmt.Sprint(conns), func(b *testing.B) {
			const batch = 16
			cfg := config(carriage.HandlerFunc(func(r *carriage.Request) { _ = r.Respond(r.Foreign()) }))
			br := carriage.New(cfg)
			pairs := make([]*direct, conns)
			for i := range pairs {
				pairs[i] = newDirect(b, br, br)
			}
			n := 0
			done := carriage.CompletionFunc(func(r *carriage.Reply) {
				if r.Err == nil {
					n++
				}
			})
			q := carriage.Call{Protocol: raw, Foreign: bytes.Repeat([]byte("x"), 512), Hop: true}
			b.ReportAllocs()
			for b.Loop() {
				for _, d := range pairs {
					for range batch {
						if _, err := br.Start(d.client, &q, done); err != nil {
							b.Fatal(err)
						}
					}
					d.step()
				}
			}
			if n != b.N*batch*conns {
				b.Fatalf("%d replies of %d", n, b.N*batch*conns)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(batch*conns), "ns/req")
		})
	}
}

// Any sequence of Bridge frames: no panic, every frame we answer with is well
// formed, a transport error, and at most one for each request; ours end once.
func FuzzHandleFrame(f *testing.F) {
	add := func(m bridge.Message) {
		if m.Content == 0 {
			m.Content = bridge.ContentJSON
		}
		if m.Protocol == 0 {
			m.Protocol = mcp
		}
		b, err := m.Append(nil, nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(m.Kind.Type()-bridge.TypeRequest), b)
	}
	add(request("c", ping1))
	add(notification(note))
	add(response([]byte("1"), pong1))
	add(bridge.Message{Kind: bridge.KindError, Corr: []byte("1"), Foreign: []byte("\x04\x01x"), Transport: true})
	add(bridge.Message{Kind: bridge.KindData, Corr: []byte("1"), HasStream: true})
	add(bridge.Message{Kind: bridge.KindEnd, Corr: []byte("1"), Foreign: []byte("\x00")})
	add(bridge.Message{Kind: bridge.KindRequest, Protocol: raw, Corr: []byte{0}, Foreign: []byte("\x00\x13")})
	f.Add(byte(0), []byte{})
	f.Add(byte(9), []byte{0, 0x10, 0, 6})
	f.Fuzz(func(t *testing.T, typ byte, payload []byte) {
		b, c := carriage.New(config(new(echo))), new(peer)
		d := newDirect(t, c, b)
		o := new(outcome)
		if _, err := b.Start(d.server, &carriage.Call{Protocol: mcp, Foreign: []byte(ping1)}, o); err != nil {
			t.Fatal(err)
		}
		d.step()
		if len(c.take(t)) != 1 {
			t.Fatal("no request")
		}
		if len(payload) > 1<<16 {
			return
		}
		for range 2 {
			fb := assoc.NewBuf(len(payload))
			fb.B = append(fb.B, payload...)
			if err := c.a.SendBuf(wire.ChannelBridge, bridge.TypeRequest+wire.FrameType(typ), fb); err != nil {
				t.Fatal(err)
			}
			d.step()
			answers := c.take(t) // fails on a malformed frame
			if len(answers) > 1 || len(answers) == 0 && typ == 0 {
				t.Fatalf("%d answers to a frame of type %d", len(answers), typ)
			}
			if len(answers) == 1 && (typ == 3 || typ > 5) {
				t.Fatalf("a frame of type %d was answered", typ)
			}
		}
		if o.n > 1 {
			t.Fatalf("ended %d times", o.n)
		}
		_ = b.Stats()
		d.server.Close(0, "")
		d.step()
		d.server.TransportClosed(d.now, nil)
		if o.n != 1 {
			t.Fatalf("ended %d times", o.n)
		}
	})
}
