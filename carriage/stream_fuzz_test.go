package carriage_test

import (
	"testing"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// script turns fuzzed octets into frames of one stream, well formed or not.
//
//	op(1) id(1) ...
func script(in []byte, corr []byte) (m bridge.Message, ok bool, rest []byte) {
	if len(in) < 3 {
		return m, false, nil
	}
	op, id, flags := in[0], in[1], in[2]
	kinds := [...]bridge.Kind{bridge.KindData, bridge.KindEnd, bridge.KindResponse, bridge.KindError, bridge.KindRequest, bridge.KindData}
	m = bridge.Message{
		Kind: kinds[op%6], Protocol: mcp, Content: bridge.ContentJSON, Corr: corr,
		HasStream: op&0x40 == 0, Stream: bridge.StreamControl{Control: bridge.Control(op >> 4 & 3), Flags: flags & 3, EventID: carriage.EventID(id)},
		Foreign: []byte("{}"),
	}
	switch {
	case m.Stream.Control > bridge.ControlCancel:
		m.Stream.Control = 0
	case flags&4 != 0:
		m.Foreign = nil
	case flags&8 != 0:
		m.Foreign = []byte(ping1)
	case flags&16 != 0 && m.Kind == bridge.KindError:
		m.Foreign, m.Transport = []byte("\x04\x00"), true
	}
	if flags&32 != 0 {
		m.Flags = bridge.FlagFinal
	}
	return m, true, in[3:]
}

var scripts = [][]byte{
	{0, 1, 0, 0, 2, 0, 1, 3, 32},
	{0, 1, 0, 0, 1, 0, 0, 2, 0},
	{0x40, 0, 0, 0x40, 0, 0, 0x41, 0, 0},
	{1, 9, 2, 0, 1, 0},
	{4, 0, 8, 0x21, 1, 32, 0x14, 1, 0, 4, 0, 8},
	{3, 0, 16, 2, 0, 0},
}

// Whatever arrives on a stream that is consumed: events in order, each once, one end.
func FuzzConsumedStream(f *testing.F) {
	for _, s := range scripts {
		f.Add(s, false)
		f.Add(s, true)
	}
	f.Fuzz(func(t *testing.T, in []byte, resumed bool) {
		if len(in) > 300 {
			return
		}
		b, c := carriage.New(config(nil)), new(peer)
		d := newDirect(t, c, b)
		s := new(taken)
		var o *carriage.StreamCall
		last := carriage.EventID(0)
		if resumed {
			o = &carriage.StreamCall{Resume: &carriage.Cursor{Corr: []byte("1"), ID: 3}}
			last = 3
		}
		if _, err := b.StartStream(d.server, &carriage.Call{Protocol: mcp, Foreign: []byte(ping1)}, o, s); err != nil {
			t.Fatal(err)
		}
		d.step()
		c.take(t)
		requests := 0
		for {
			m, ok, rest := script(in, []byte("1"))
			if !ok {
				break
			}
			in = rest
			if payload, err := m.Append(nil, nil); err == nil {
				fb := assoc.NewBuf(len(payload))
				fb.B = append(fb.B, payload...)
				if err := c.a.SendBuf(wire.ChannelBridge, m.Kind.Type(), fb); err != nil {
					t.Fatal(err)
				}
				d.step()
			}
			if m.Kind == bridge.KindRequest {
				requests++
			}
			if len(c.frames) > requests+2 { // EnvelopeMalformed and a cancel
				t.Fatalf("%d frames for one stream and %d requests", len(c.frames), requests)
			}
		}
		for _, id := range s.ids {
			if id == 0 && !resumed {
				continue // without StreamControl
			}
			if id <= last {
				t.Fatalf("event ids %v", s.ids)
			}
			last = id
		}
		c.take(t) // fails on a malformed frame
		d.server.TransportClosed(d.now, nil)
		if s.n != 1 {
			t.Fatalf("ended %d times", s.n)
		}
	})
}

// Whatever a consumer sends while a stream is produced for it: well-formed frames,
// increasing event ids but for a resume, and one terminal frame.
func FuzzProducedStream(f *testing.F) {
	for _, s := range scripts {
		f.Add(s, false)
		f.Add(s, true)
	}
	f.Fuzz(func(t *testing.T, in []byte, keep bool) {
		if len(in) > 300 {
			return
		}
		var ps []*carriage.Producer
		over := 0
		b, c := carriage.New(config(carriage.HandlerFunc(func(r *carriage.Request) {
			r.RetainEnvelope()
			if p, err := r.Stream(carriage.StreamOptions{Resumable: keep, Over: func(error) { over++ }}); err == nil {
				ps = append(ps, p)
			}
			r.Release()
		}))), new(peer)
		d := newDirect(t, c, b)
		resumes := 0
		terminals, last := 0, carriage.EventID(0)
		look := func() {
			for _, m := range c.take(t) { // fails on a malformed frame
				switch m.Kind {
				case bridge.KindData:
					if m.Stream.EventID <= last && resumes == 0 {
						t.Fatalf("event %d after %d", m.Stream.EventID, last)
					}
					last = m.Stream.EventID
				case bridge.KindEnd:
					terminals++
					last = 0
				case bridge.KindError:
					last = 0
				}
			}
		}
		for i := 0; ; i++ {
			m, ok, rest := script(in, []byte("1"))
			if !ok {
				break
			}
			in = rest
			if m.Kind == bridge.KindRequest && m.HasStream && m.Stream.Control == bridge.ControlResume {
				resumes++
			}
			m.Method = nil
			if m.Kind == bridge.KindRequest {
				m.Method = []byte("m")
			}
			if payload, err := m.Append(nil, nil); err == nil {
				fb := assoc.NewBuf(len(payload))
				fb.B = append(fb.B, payload...)
				if err := c.a.SendBuf(wire.ChannelBridge, m.Kind.Type(), fb); err != nil {
					t.Fatal(err)
				}
			}
			d.step()
			look()
			for k, p := range ps {
				_ = p.TrySend([]byte("e"))
				if (i+k)%7 == 6 {
					_ = p.EndEmpty()
				}
			}
			d.step()
			look()
		}
		if terminals > len(ps)+resumes {
			t.Fatalf("%d stream ends of %d streams", terminals, len(ps))
		}
		d.server.TransportClosed(d.now, nil)
		b.ForgetRetained()
		for _, p := range ps {
			if p.Err() == nil {
				t.Fatal("a stream that never ends")
			}
		}
		if over != len(ps) {
			t.Fatalf("%d of %d streams told that they are over", over, len(ps))
		}
		if n, octets := b.Retained(); n != 0 || octets != 0 {
			t.Fatalf("%d streams, %d octets still held", n, octets)
		}
	})
}

// Whatever arrives on a full-duplex exchange, on either side: what is read comes in
// order and each event once, each half ends once, what we send is well formed, and
// nothing stays when the association is gone.
func FuzzFullDuplex(f *testing.F) {
	for _, s := range scripts {
		f.Add(s, false)
		f.Add(s, true)
	}
	f.Add([]byte{4, 0, 8, 0, 1, 0, 0x21, 0, 0, 0, 2, 0, 1, 3, 0}, false)
	f.Add([]byte{0, 1, 0, 0x21, 0, 0, 1, 2, 0, 0x14, 0, 4}, true)
	f.Fuzz(func(t *testing.T, in []byte, requester bool) {
		if len(in) > 300 {
			return
		}
		var readers []*carriage.Stream
		var ps []*carriage.Producer
		over := 0
		o := carriage.StreamOptions{Resumable: len(in)%2 == 0, Over: func(error) { over++ }}
		b, c := carriage.New(duplexConfig(carriage.HandlerFunc(func(r *carriage.Request) {
			r.RetainEnvelope()
			if s, err := r.Upstream(background); err == nil && len(in)%3 > 0 {
				readers = append(readers, s)
			}
			if p, err := r.Stream(o); err == nil {
				ps = append(ps, p)
			}
			r.Release()
		}))), new(peer)
		d := newDirect(t, c, b)
		corr, kind := []byte("1"), bridge.KindRequest
		if requester {
			s, err := b.Stream(background, d.server, &carriage.Call{Protocol: mcp, Foreign: []byte(ping1)}, &carriage.StreamCall{Up: &o})
			if err != nil {
				t.Fatal(err)
			}
			d.step()
			readers, ps, corr, kind = append(readers, s), append(ps, s.Up()), c.one(t).Corr, bridge.KindResponse
		}
		for i := 0; ; i++ {
			m, ok, rest := script(in, corr)
			if !ok {
				break
			}
			in = rest
			if m.Method = nil; m.Kind == bridge.KindRequest {
				m.Method = []byte("m")
			}
			if payload, err := m.Append(nil, nil); err == nil {
				fb := assoc.NewBuf(len(payload))
				fb.B = append(fb.B, payload...)
				if err := c.a.SendBuf(wire.ChannelBridge, m.Kind.Type(), fb); err != nil {
					t.Fatal(err)
				}
			}
			d.step()
			for k, p := range ps {
				_ = p.TrySend([]byte("e"))
				switch (i + k) % 9 {
				case 6:
					_ = p.EndEmpty()
				case 8:
					_ = p.Refuse(bridge.CodeNotDelivered, "no")
				}
			}
			d.step()
			for _, m := range c.take(t) { // fails on a malformed frame
				if m.Kind == kind {
					t.Fatalf("%v from a side that does not send it", kind)
				}
			}
		}
		d.server.TransportClosed(d.now, nil)
		b.ForgetRetained()
		for _, s := range readers {
			last := carriage.EventID(0)
			for {
				e, err := s.Next()
				if err != nil {
					break
				}
				if e.ID <= last && e.ID != 0 {
					t.Fatalf("event %d after %d", e.ID, last)
				}
				last = e.ID
			}
		}
		for _, p := range ps {
			if p.Err() == nil {
				t.Fatal("a stream that never ends")
			}
		}
		if over != len(ps) {
			t.Fatalf("%d of %d streams told that they are over", over, len(ps))
		}
		if n := d.server.ChannelConn(wire.ChannelBridge).Busy(); n != 0 {
			t.Fatalf("%d exchanges stay open", n)
		}
		if n, octets := b.Retained(); n != 0 || octets != 0 {
			t.Fatalf("%d streams, %d octets still held", n, octets)
		}
	})
}
