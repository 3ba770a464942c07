// Command client sends one A2A message to the server beside it and prints the
// reply.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/mapping/a2a"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

const message = `{"jsonrpc":"2.0","id":1,"method":"message/send","params":
  {"message":{"kind":"message","messageId":"m1","role":"user","parts":[{"kind":"text","text":"hello"}]}}}`

func main() {
	to := flag.String("to", "127.0.0.1:7450", "call the agent at `HOST:PORT`")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	b := carriage.New(carriage.Config{Protocols: []carriage.Protocol{a2a.Protocol(nil)}})
	e, err := engine.New(engine.Config{Channels: []engine.ChannelHandler{b}})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Shutdown(ctx)
	a, err := e.Dial(ctx, *to, engine.DialOptions{}) // beyond this machine: Peer: identity.Pin(key)
	if err != nil {
		log.Fatal(err)
	}
	reply, err := b.Call(ctx, a, &carriage.Call{Protocol: bridge.ProtocolA2A, Foreign: []byte(message)})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", reply.Foreign)
}
