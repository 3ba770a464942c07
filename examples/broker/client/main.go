// Command client subscribes to a topic of the broker beside it, publishes to one, or
// ends one.
//
//	client subscribe news          prints the events until the topic ends
//	client publish news "it rains"
//	client end news
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

func main() {
	to := flag.String("to", "127.0.0.1:7452", "use the broker at `HOST:PORT`")
	flag.Parse()
	if flag.NArg() < 2 {
		log.Fatal("subscribe TOPIC, publish TOPIC EVENT, or end TOPIC")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	b := carriage.New(carriage.Config{Protocols: []carriage.Protocol{{ID: bridge.FirstExperimental, Class: carriage.ClassOpaque}}})
	e, err := engine.New(engine.Config{Channels: []engine.ChannelHandler{b}})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Shutdown(context.Background())
	a, err := e.Dial(ctx, *to, engine.DialOptions{})
	if err != nil {
		log.Fatal(err)
	}
	call := &carriage.Call{
		Protocol: bridge.FirstExperimental,
		Method:   strings.Join(flag.Args()[:2], " "),
		Natural:  []byte("1"), // what the correlation id is made from
		Foreign:  []byte(strings.Join(flag.Args()[2:], " ")),
	}
	if flag.Arg(0) == "subscribe" {
		err = subscribe(ctx, b, a, call)
	} else {
		err = ask(ctx, b, a, call)
	}
	if err != nil {
		log.Print(err)
		os.Exit(1)
	}
}

// subscribe prints a stream. Interrupting it cancels the stream at the broker.
func subscribe(ctx context.Context, b *carriage.Bridge, a *engine.Association, c *carriage.Call) error {
	s, err := b.Stream(ctx, a, c, nil)
	if err != nil {
		return err
	}
	for event, err := range s.Events() {
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err // it did not end well
		}
		fmt.Printf("%d %s\n", event.ID, event.Foreign)
	}
	return nil
}

func ask(ctx context.Context, b *carriage.Bridge, a *engine.Association, c *carriage.Call) error {
	reply, err := b.Call(ctx, a, c)
	if err != nil {
		return err
	}
	fmt.Printf("%s\n", reply.Foreign)
	return nil
}
