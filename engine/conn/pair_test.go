package conn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/crypto/schedule"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// duplex is two machines and the octets under way between them.
type duplex struct {
	t      testing.TB
	now    time.Duration
	c      [2]*Conn
	flight [2][]byte // on the way to each side
	batch  [2][]byte
	budget *buf.Budget

	sent, got [2][2]uint64 // frames by sending side and channel
	hellos    [2]int
	ended     [2]*CloseError
}

var duplexChannels = [2]wire.Channel{wire.ChannelBridge, wire.ChannelDiscovery}

func newDuplex(t testing.TB, seed uint64, edit func(*Config)) *duplex {
	d := &duplex{t: t, now: time.Hour, budget: buf.NewBudget(1 << 30)}
	for i, role := range []Role{Client, Server} {
		cfg := Config{
			Role: role, Profile: profiles.Standard, Suite: profiles.AES256GCM,
			Channels: duplexChannels[:],
			KEM:      profiles.X25519MLKEM768,
			Grease:   uint32(seed)*2 + uint32(i),
			Budget:   d.budget,
		}
		var key [32]byte
		binary.BigEndian.PutUint64(key[:], seed)
		key[31] = byte(i)
		cfg.Rand = rand.NewChaCha8(key)
		if edit != nil {
			edit(&cfg)
		}
		cfg.Send = schedule.NewRoot(cfg.Profile.Hash, role.Sends(), make([]byte, cfg.Profile.Hash.Size()))
		cfg.Recv = schedule.NewRoot(cfg.Profile.Hash, role.Sends().Reverse(), make([]byte, cfg.Profile.Hash.Size()))
		d.c[i] = New(cfg, d.now)
	}
	for i := range d.c {
		d.turn(i, nil, func(c *Conn) {
			if err := c.Open(); err != nil {
				t.Fatal(err)
			}
		})
	}
	return d
}

// turn is one turn of side i: what arrived, and what it is told to do.
func (d *duplex) turn(i int, in []byte, act func(c *Conn)) {
	c := d.c[i]
	c.StartBatch(d.now, d.batch[i][:0], false)
	if in != nil {
		c.HandleBytes(d.now, in)
		d.poll(i)
		c.Settle()
	}
	if act != nil {
		act(c)
	}
	d.batch[i] = c.TakeBatch()
	d.poll(i)
	d.flight[1-i] = append(d.flight[1-i], d.batch[i]...)
}

func (d *duplex) poll(i int) {
	for {
		ev, ok := d.c[i].Poll()
		if !ok {
			return
		}
		if d.ended[i] != nil {
			d.t.Fatalf("side %d: %v after its end", i, ev.Kind)
		}
		switch ev.Kind {
		case EventHello:
			d.hellos[i]++
		case EventClosed:
			d.ended[i] = ev.Err
		case EventFrame:
			ch := 0
			if ev.Channel == duplexChannels[1] {
				ch = 1
			}
			if n := binary.BigEndian.Uint64(ev.Payload); n != d.got[1-i][ch] {
				d.t.Fatalf("side %d: frame %d on %v where %d was due", i, n, ev.Channel, d.got[1-i][ch])
			}
			d.got[1-i][ch]++
		}
	}
}

// say sends the next frame of side i on one of the channels, from within a turn.
func (d *duplex) say(i, ch, n int) error {
	b, err := d.c[i].Begin(duplexChannels[ch], 0x0100, n+8)
	if err != nil {
		return err
	}
	b = binary.BigEndian.AppendUint64(b, d.sent[i][ch])
	if err := d.c[i].End(append(b, make([]byte, n)...)); err != nil {
		return err
	}
	d.sent[i][ch]++
	return nil
}

// deliver hands the first n octets under way to side i.
func (d *duplex) deliver(i, n int) {
	n = min(n, len(d.flight[i]))
	in := d.flight[i][:n:n]
	d.flight[i] = d.flight[i][n:]
	d.turn(i, in, nil)
}

// step is one seeded step of the schedule. It reports whether it was a delivery,
// a point at which the connection may break.
func (d *duplex) step(rnd *rand.Rand) {
	i := rnd.IntN(2)
	switch k := rnd.IntN(100); {
	case k < 35:
		d.deliver(i, 1+rnd.IntN(1+rnd.IntN(3000)))
	case k < 60:
		n := 1 + rnd.IntN(4)
		d.turn(i, nil, func(*Conn) {
			for range n {
				d.command(d.say(i, rnd.IntN(2), rnd.IntN(300)))
			}
		})
	case k < 68:
		ch := duplexChannels[rnd.IntN(2)]
		d.turn(i, nil, func(c *Conn) { d.command(c.UpdateKey(ch)) })
	case k < 74:
		d.turn(i, nil, func(c *Conn) { d.command(c.Ratchet()) })
	case k < 80:
		d.turn(i, nil, func(c *Conn) { d.command(c.Rekem()) })
	case k < 97:
		d.now += time.Duration(rnd.IntN(200)) * time.Millisecond
		for i, c := range d.c {
			if at, ok := c.Deadline(); ok && at <= d.now {
				d.turn(i, nil, func(c *Conn) { c.HandleTimeout(d.now) })
			}
		}
	default:
		d.turn(i, nil, func(c *Conn) { c.Close(d.now, control.CodeShutdown, "enough") })
	}
}

// command judges what a command may say at any time.
func (d *duplex) command(err error) {
	d.t.Helper()
	switch {
	case err == nil, errors.Is(err, ErrClosed), errors.Is(err, ErrRate), errors.Is(err, ErrRekemPending):
	default:
		d.t.Fatalf("a command said %v", err)
	}
}

// lose breaks the connection: what is under way is lost, and both sides notice.
func (d *duplex) lose(cause error) {
	for i, c := range d.c {
		d.flight[i] = nil
		c.HandleEOF(d.now, cause)
		d.poll(i)
	}
}

// wantOver checks that nothing is left of either side, and that nothing moves any
// more.
func (d *duplex) wantOver() {
	d.t.Helper()
	for i, c := range d.c {
		if d.ended[i] == nil || !errors.Is(d.ended[i], ErrClosed) {
			d.t.Fatalf("side %d did not end: %v", i, d.ended[i])
		}
		for ch := range duplexChannels {
			if d.got[1-i][ch] > d.sent[1-i][ch] {
				d.t.Fatalf("side %d opened %d frames of %d", i, d.got[1-i][ch], d.sent[1-i][ch])
			}
		}
		d.turn(i, []byte("NPAM"), func(c *Conn) {
			for _, err := range []error{d.say(i, 0, 1), c.UpdateKey(wire.ChannelBridge), c.Ratchet(), c.Rekem()} {
				if !errors.Is(err, ErrClosed) {
					d.t.Fatalf("side %d, after its end: %v", i, err)
				}
			}
			c.HandleTimeout(d.now + time.Hour)
			c.Close(d.now, 0, "")
			c.HandleEOF(d.now, nil)
		})
		if len(d.batch[i]) != 0 || c.Queued() != 0 {
			d.t.Fatalf("side %d speaks after its end", i)
		}
		if _, ok := c.Deadline(); ok {
			d.t.Fatalf("side %d wants to be woken after its end", i)
		}
		send, recv := c.cfg.Send, c.cfg.Recv
		c.Release()
		if send.Hash() != 0 || recv.Hash() != 0 || c.rekem.pending() {
			d.t.Fatalf("side %d keeps secrets", i)
		}
	}
	if n := d.budget.Used(); n != 0 {
		d.t.Fatalf("%d octets are held", n)
	}
}

// Two machines under a seeded scheduler: frames, key changes, both tiers of the
// ratchet from both sides, CLOSE, octets delivered in pieces of any size. Left
// alone every frame arrives; and the same run is broken off after each of its
// steps, so that the connection is lost at every point.
func TestPair_ConnectionLostAtEveryPoint(t *testing.T) {
	seeds, steps := 20, 150
	if testing.Short() || raceEnabled {
		seeds, steps = 4, 80
	}
	errLost := errors.New("cable")
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			run := func(until int) *duplex {
				d := newDuplex(t, seed, func(c *Config) {
					c.Bounds = profiles.Bounds{Frames: 6}
					c.Ratchet = profiles.Bounds{Frames: 40}
					c.Rekem = 3 * time.Second
					c.CloseWait = time.Second
				})
				for _, c := range d.c {
					c.kem = toyKEM{} // hundreds of steps a run, thousands of runs
				}
				rnd := rand.New(rand.NewPCG(seed, 9))
				for range until {
					d.step(rnd)
				}
				return d
			}
			for until := range steps {
				d := run(until)
				cause := []error{nil, errLost}[until%2]
				d.lose(cause)
				for i, e := range d.ended {
					// Only a side that had said CLOSE, or was told so, ends without complaint.
					if e.Remote && e.Cause != nil && (!errors.Is(e, ErrTruncated) || cause != nil && !errors.Is(e, cause)) {
						t.Fatalf("after %d steps side %d ended with %v", until, i, e)
					}
				}
				d.wantOver()
			}
			d := run(steps)
			for range 100 {
				d.now += 100 * time.Millisecond
				for i := range d.c {
					d.deliver(i, 1<<20)
					d.turn(i, nil, func(c *Conn) { c.HandleTimeout(d.now) })
				}
			}
			for i := range d.c {
				if d.ended[i] == nil {
					if d.ended[1-i] != nil {
						t.Fatalf("side %d lives on alone", i)
					}
					if d.got[i] != d.sent[i] || d.hellos[i] != 1 {
						t.Errorf("side %d sent %v, %v arrived; %d HELLO", i, d.sent[i], d.got[i], d.hellos[i])
					}
					continue
				}
				if e := d.ended[i]; e.Code != control.CodeShutdown {
					t.Errorf("side %d ended with %v", i, e)
				}
			}
		})
	}
}

// A month of an association in seconds: bursts of frames both ways, pauses of
// minutes, idle nights with nothing but pings; keys, roots and the key exchange
// renew themselves in the time of the profile. Every frame arrives in order, and
// nobody closes.
func TestPair_Month(t *testing.T) {
	days, burst := 30, 400
	if testing.Short() || raceEnabled {
		days, burst = 3, 100
	}
	var counters [2]Counters
	i := 0
	d := newDuplex(t, 1, func(c *Config) { c.Counters = &counters[i]; i++ })
	rnd := rand.New(rand.NewPCG(1, 30))
	end := d.now + time.Duration(days)*24*time.Hour
	next := d.now
	bursts := 0
	settle := func() {
		for len(d.flight[0])+len(d.flight[1]) > 0 {
			for i := range d.c {
				if in := d.flight[i]; len(in) > 0 {
					d.flight[i] = nil
					d.turn(i, in, nil)
				}
			}
		}
		// The memory is used again: nothing is under way.
		d.flight = [2][]byte{d.batch[1][:0:0], d.batch[0][:0:0]}
	}
	settle()
	for d.now < end {
		at := next
		for _, c := range d.c {
			if t, ok := c.Deadline(); ok {
				at = min(at, t)
			}
		}
		d.now = max(at, d.now)
		for i, c := range d.c {
			if at, ok := c.Deadline(); ok && at <= d.now {
				d.turn(i, nil, func(c *Conn) { c.HandleTimeout(d.now) })
			}
		}
		if d.now >= next {
			bursts++
			for range burst / 32 {
				for i := range d.c {
					d.turn(i, nil, func(*Conn) {
						for range 32 {
							if err := d.say(i, rnd.IntN(2), 24); err != nil {
								t.Fatal(err)
							}
						}
					})
				}
				settle()
			}
			next += time.Duration(rnd.ExpFloat64() * float64(5*time.Minute))
			if hour := next / time.Hour % 24; hour >= 20 {
				next = next.Truncate(24*time.Hour) + 30*time.Hour // the night
			}
		}
		settle()
		if d.ended[0] != nil || d.ended[1] != nil {
			t.Fatalf("after %v: %v, %v", d.now, d.ended[0], d.ended[1])
		}
	}
	frames := uint64(0)
	for i := range d.c {
		if d.got[i] != d.sent[i] {
			t.Errorf("side %d sent %v, %v arrived", i, d.sent[i], d.got[i])
		}
		frames += d.got[i][0] + d.got[i][1]
	}
	for i := range counters {
		k := &counters[i]
		t.Logf("side %d: %d frames, %d key updates, %d ratchet steps, %d re-KEMs, %d dropped, %d pings", i,
			k.FramesOut.Load(), k.KeyUpdatesOut.Load(), k.RatchetsOut.Load(), k.RekemsOut.Load(), k.RekemsDropped.Load(), k.PingsOut.Load())
		for name, c := range map[string]struct {
			n           uint64
			least, aDay int
		}{
			"key updates":   {k.KeyUpdatesOut.Load(), 20, 0},
			"ratchet steps": {k.RatchetsOut.Load(), 3, 0},
			"re-KEMs":       {k.RekemsOut.Load(), 0, 1},
			"pings":         {k.PingsOut.Load(), 800, 0},
		} {
			if least := uint64(c.least*days + c.aDay*(days-2)); c.n < least {
				t.Errorf("side %d: %d %s in %d days, want at least %d", i, c.n, name, days, least)
			}
		}
	}
	s0, r0 := d.c[0].Generations()
	s1, r1 := d.c[1].Generations()
	if s0 != r1 || s1 != r0 {
		t.Errorf("generations %d/%d at one end, %d/%d at the other", s0, r0, s1, r1)
	}
	t.Logf("%d application frames in %d bursts over %d days, generations %d and %d", frames, bursts, days, s0, s1)
	if !testing.Short() && !raceEnabled && frames < 2_000_000 {
		t.Errorf("%d frames, want millions", frames)
	}
	d.lose(nil)
	d.wantOver()
}

// tape is a source of randomness that a fuzzer writes.
type tape struct {
	b []byte
	n uint64
}

func (s *tape) Uint64() uint64 {
	var w [2]byte
	s.b = s.b[copy(w[:], s.b):]
	s.n += 0x9E3779B97F4A7C15 // so that no choice is tried again for ever
	return uint64(w[0])<<56 | uint64(w[1])<<24 ^ s.n>>40
}

// Whatever a fuzzer lets the two machines do, in whatever order and with the
// connection lost where the tape ends: frames arrive in order, no command breaks
// anything, nothing is left.
func FuzzPair(f *testing.F) {
	for seed := range byte(4) {
		b := make([]byte, 600)
		for i := range b {
			b[i] = byte(i)*31 + byte(i/7)*seed
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d := newDuplex(t, 1, func(c *Config) {
			c.Bounds = profiles.Bounds{Frames: 6}
			c.Ratchet = profiles.Bounds{Frames: 40}
		})
		for _, c := range d.c {
			c.kem = toyKEM{}
		}
		src := &tape{b: b[:min(len(b), 4096)]}
		rnd := rand.New(src)
		for len(src.b) > 0 {
			d.step(rnd)
		}
		d.lose(nil)
		d.wantOver()
	})
}
