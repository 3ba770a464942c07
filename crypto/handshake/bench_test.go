package handshake

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
)

// BenchmarkHandshake is the CPU and the allocations of one role alone, from
// the new machine to the roots. The randomness is the same each time, so that
// the other side's messages can be prepared.
func BenchmarkHandshake(b *testing.B) {
	for _, row := range []struct {
		p      *profiles.Profile
		scheme profiles.Scheme
	}{{profiles.Standard, profiles.Ed25519}, {profiles.High, profiles.Ed25519}, {profiles.Sovereign, profiles.MLDSA87}} {
		client, server := configs(b, row.p, row.scheme)
		client.Rand, server.Rand = replaying{bytes.Repeat([]byte{0x31}, 96)}, replaying{bytes.Repeat([]byte{0x32}, 64)}
		whole := start(b, client, server, messageCount)
		var buf, out []byte
		// give copies, since opening in place consumes a frame.
		give := func(m *Machine, message int) {
			buf = append(buf[:0], whole.message[message]...)
			f, _, err := wire.ParseFrame(buf, MaxFrameLen)
			if err != nil {
				b.Fatal(err)
			}
			if err := m.HandleFrame(f); err != nil {
				b.Fatal(err)
			}
			out = m.AppendOutput(out[:0])
		}
		finish := func(m *Machine) {
			if !m.Done() {
				b.Fatal("not done")
			}
			m.Wipe()
		}
		b.Run(fmt.Sprintf("%s/%s/client", row.p, row.scheme), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m, err := NewClient(client)
				if err != nil {
					b.Fatal(err)
				}
				out = m.AppendOutput(out[:0])
				give(m, serverHello)
				give(m, serverAuth)
				finish(m)
			}
		})
		b.Run(fmt.Sprintf("%s/%s/server", row.p, row.scheme), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m, err := NewServer(server)
				if err != nil {
					b.Fatal(err)
				}
				give(m, clientHello)
				give(m, clientAuth)
				finish(m)
			}
		})
	}
}
