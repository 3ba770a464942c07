// Command client asks the server beside it for a sum.
//
//	client 1 2 3
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

func main() {
	to := flag.String("to", "127.0.0.1:7451", "ask the server at `HOST:PORT`")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	b := carriage.New(carriage.Config{Protocols: []carriage.Protocol{{ID: bridge.FirstExperimental, Class: carriage.ClassOpaque}}})
	e, err := engine.New(engine.Config{Channels: []engine.ChannelHandler{b}})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Shutdown(ctx)
	a, err := e.Dial(ctx, *to, engine.DialOptions{})
	if err != nil {
		log.Fatal(err)
	}
	reply, err := b.Call(ctx, a, &carriage.Call{
		Protocol: bridge.FirstExperimental,
		Method:   "sum",
		Label:    &bridge.Label{Effect: bridge.ReadOnly}, // without it: destructive
		Foreign:  []byte("[" + strings.Join(flag.Args(), ",") + "]"),
	})
	switch {
	case err != nil: // no answer of the server
		log.Fatal(err)
	case reply.Kind == bridge.KindError: // the protocol's own error
		fmt.Printf("error %s\n", reply.Foreign)
		os.Exit(1)
	}
	fmt.Printf("%s\n", reply.Foreign)
}
