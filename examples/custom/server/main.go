// Command server carries a protocol of its own, under one of the numbers that are
// free for experiments: the method "sum" takes a JSON array of numbers and is
// answered with their sum. In the class OPAQUE nothing on the way looks into a
// message, so that it may be anything.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:7451", "serve on `HOST:PORT`")
	flag.Parse()
	b := carriage.New(carriage.Config{Protocols: []carriage.Protocol{{
		ID:       bridge.FirstExperimental,
		Class:    carriage.ClassOpaque,
		Supports: func(method []byte) bool { return string(method) == "sum" },
		Handler:  carriage.HandlerFunc(sum),
	}}})
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

func sum(r *carriage.Request) {
	var numbers []float64
	if err := json.Unmarshal(r.Foreign(), &numbers); err != nil {
		r.Fail([]byte(`"an array of numbers is needed"`)) // the protocol's own error
		return
	}
	total := 0.0
	for _, n := range numbers {
		total += n
	}
	r.Respond(strconv.AppendFloat(nil, total, 'g', -1, 64))
}
