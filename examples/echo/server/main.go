// Command server is an A2A agent that answers message/send with the parts it was
// sent.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/carriage/jsonrpc"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/mapping/a2a"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:7450", "serve on `HOST:PORT`")
	flag.Parse()
	b := carriage.New(carriage.Config{Protocols: []carriage.Protocol{a2a.Protocol(carriage.HandlerFunc(echo))}})
	e, err := engine.New(engine.Config{Channels: []engine.ChannelHandler{b}})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	l, err := e.Listen(ctx, *listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("listening on %v, key %v\n", l.Addr(), e.Identity())
	<-ctx.Done()
	e.Shutdown(context.Background()) // answers what is under way
}

func echo(r *carriage.Request) {
	var m struct {
		Params struct {
			Message struct{ Parts json.RawMessage }
		}
	}
	if json.Unmarshal(r.Foreign(), &m) != nil || m.Params.Message.Parts == nil {
		r.Fail(jsonrpc.AppendError(nil, r.ID(), -32602, "send me a message with parts"))
		return
	}
	reply := fmt.Appendf(nil, `{"kind":"message","messageId":"re","role":"agent","parts":%s}`, m.Params.Message.Parts)
	r.Respond(jsonrpc.AppendResult(nil, r.ID(), reply))
}
