package assoc_test

import (
	"testing"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/wire"
)

// BenchmarkEchoTurn is a round trip of 512 octets between two associations
// joined by memory: two frames sealed, two opened, four turns, and the rig's own
// copies.
func BenchmarkEchoTurn(b *testing.B) {
	s := &probe{frame: func(p *probe, t wire.FrameType, payload []byte) {
		out, err := p.a.Begin(wire.ChannelBridge, t, len(payload))
		if err == nil {
			err = p.a.End(append(out, payload...))
		}
		if err != nil {
			panic(err)
		}
	}}
	back := 0
	c := &probe{frame: func(*probe, wire.FrameType, []byte) { back++ }}
	var o nptest.Options
	o.Client.Handlers = []assoc.ChannelHandler{c}
	o.Server.Handlers = []assoc.ChannelHandler{s}
	p := nptest.NewPair(b, o)
	p.Settle()
	payload := make([]byte, 512)
	b.ReportAllocs()
	for b.Loop() {
		out, err := p.Client.Begin(wire.ChannelBridge, typ, len(payload))
		if err == nil {
			err = p.Client.End(append(out, payload...))
		}
		if err != nil {
			b.Fatal(err)
		}
		p.Settle()
	}
	if back < b.N {
		b.Fatalf("%d of %d came back", back, b.N)
	}
}
