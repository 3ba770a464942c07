package main

import (
	"bytes"
	"io"
	"testing"

	"github.com/trestle-npamp/trestle/wire"
)

// pieces is a connection on which octets come in pieces; it counts reads.
type pieces struct {
	all   []byte
	most  int // octets that a read brings at most; 0: as many as there is room for
	reads int
}

func (p *pieces) Read(b []byte) (int, error) {
	p.reads++
	if len(p.all) == 0 {
		return 0, io.EOF
	}
	if p.most > 0 {
		b = b[:min(len(b), p.most)]
	}
	n := copy(b, p.all)
	p.all = p.all[n:]
	return n, nil
}

func framesOf(sizes ...int) (all []byte) {
	for i, n := range sizes {
		all = wire.AppendHeader(all, wire.FlagENC, wire.FirstChannelType, wire.ChannelBridge, wire.Seq(i), n)
		all = append(all, bytes.Repeat([]byte{byte(i + 1)}, n)...)
	}
	return all
}

// The blocking server makes one read for each frame where they are alike, and loses
// none where they are not, however they come.
func TestTheBlockingServerReadsOnceAFrame(t *testing.T) {
	const count = 100
	alike := make([]int, count)
	for i := range alike {
		alike[i] = 600
	}
	r := &pieces{all: framesOf(alike...)}
	c := &blockingConn{r: r}
	for i := range count {
		f, err := c.frame(wire.MaxFrameLen)
		if err != nil || f.Header().Seq() != wire.Seq(i) {
			t.Fatalf("frame %d: %v", i, err)
		}
	}
	if r.reads != count+1 { // nothing is known of the first
		t.Errorf("%d reads of %d frames", r.reads, count)
	}

	sizes := []int{600, 600, 20, 0, 70_000, 16, 16, 3000, 600, 0}
	for most := range 700 {
		r := &pieces{all: framesOf(sizes...), most: most}
		c := &blockingConn{r: r}
		for i, n := range sizes {
			f, err := c.frame(wire.MaxFrameLen)
			if err != nil || f.Header().Seq() != wire.Seq(i) || !bytes.Equal(f.Payload(), bytes.Repeat([]byte{byte(i + 1)}, n)) {
				t.Fatalf("%d octets at a time: frame %d of %d: %v", most, i, n, err)
			}
		}
		if _, err := c.frame(wire.MaxFrameLen); err != io.EOF {
			t.Fatalf("%d octets at a time: behind the last frame: %v", most, err)
		}
	}
}
