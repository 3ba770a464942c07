package bench

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// shutdownTime is how long either side takes at most to end its associations.
const shutdownTime = 5 * time.Second

// echo answers each request from its own octets, or with a reply of the same
// size where the class wants a proper one.
type echo struct {
	reply []byte // for JSON-RPC
	// handled is spread over cache lines, because all loops count at once.
	handled [64]struct {
		n atomic.Uint64
		_ [56]byte
	}
}

func (e *echo) ServeRequest(r *carriage.Request) {
	e.handled[r.Association().ID()%uint64(len(e.handled))].n.Add(1)
	reply := r.Foreign()
	if r.Protocol() == bridge.ProtocolA2A {
		reply = e.reply
	}
	// A reply that is not taken shows at the client, as an error.
	_ = r.Respond(reply)
}

func (e *echo) ServeNotify(*carriage.Notify) {}

func (e *echo) count() (n uint64) {
	for i := range e.handled {
		n += e.handled[i].n.Load()
	}
	return n
}

// Serve is the server process: it answers requests of both classes on a loopback
// port of its own until in ends or ctx does. On out it writes a Hello and then,
// for each line "usage" on in, a Usage, all as lines of JSON.
func Serve(ctx context.Context, o Options, log *slog.Logger, in io.Reader, out io.Writer) (err error) {
	h := &echo{reply: jsonMessage("reply", o.Size)}
	b := carriage.New(carriage.Config{Protocols: protocols(h), MaxInFlight: o.InFlight + 1, Logger: log})
	e, err := engine.New(engine.Config{
		Channels:  []engine.ChannelHandler{b},
		Protocols: b.Protocols(),
		Transport: o.transport(),
		Loops:     o.ServerLoops,
		Limits:    engine.Limits{Associations: maxConns + 1},
		Logger:    log,
	})
	if err != nil {
		return err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
		defer cancel()
		if serr := e.Shutdown(stop); err == nil && serr != nil {
			err = fmt.Errorf("bench: stopping the server: %w", serr)
		}
	}()
	l, err := e.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		return err
	}
	return control(ctx, in, out, Hello{Addr: l.Addr().String(), Key: e.Identity().String()}, h.count)
}
