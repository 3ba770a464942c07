package nptest_test

import (
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/internal/nptest"
)

func TestPairExchangesHello(t *testing.T) {
	p := nptest.NewPair(t, nptest.Options{Latency: 5 * time.Millisecond})
	p.Run(4 * time.Millisecond)
	if p.Client.PeerHello() != nil {
		t.Fatal("a HELLO arrived before the link's latency had passed")
	}
	p.Run(2 * time.Millisecond)
	if p.Client.PeerHello() == nil || p.Server.PeerHello() == nil {
		t.Fatal("no HELLO after the link's latency")
	}
}

func TestPairCloses(t *testing.T) {
	p := nptest.NewPair(t, nptest.Options{})
	p.Settle()
	p.Client.Close(0, "")
	p.Settle()
	for _, e := range []*nptest.End{p.Client, p.Server} {
		select {
		case <-e.Done():
		default:
			t.Fatalf("%v has not ended", e.Role())
		}
	}
}
