package engine_test

import (
	"errors"
	"testing"

	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// A peer that breaks the protocol learns why, also if it is in the middle of
// writing much more: a connection that is closed over octets nobody read is reset,
// and the reset must not overtake the ERROR.
func TestReasonReachesAPeerThatIsStillWriting(t *testing.T) { overBoth(t, reasonWhileWriting) }

func reasonWhileWriting(t *testing.T, tr engine.Transport) {
	// Without HELLO nobody tells limits, so the client believes in the default one.
	cfg := engine.Config{
		Transport: tr, NoHello: true, PeerChannels: []wire.Channel{wire.ChannelMemory},
		Channels: []engine.ChannelHandler{&echo{}}, Limits: engine.Limits{Outbound: 64 << 20},
	}
	cli := newEngine(t, cfg)
	cfg.Limits.MaxFrame = wire.FloorFrameLen
	srv := newEngine(t, cfg)
	addr := listen(t, srv)
	for i := range 20 {
		a, err := cli.Dial(t.Context(), addr, engine.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			err = a.Send(t.Context(), wire.ChannelMemory, echoType, make([]byte, wire.FloorFrameLen))
		}
		if errors.Is(err, engine.ErrTooLarge) {
			t.Fatalf("round %d: the limit was known: %v", i, err)
		}
		<-a.Done()
		var ce *engine.CloseError
		if !errors.As(a.Err(), &ce) || !ce.Remote || ce.Code != control.CodeLimit {
			t.Fatalf("round %d: ended with %v", i, a.Err())
		}
	}
}
