// Command client buys from the provider beside it, and prints the ACMP messages that
// it gets, one a line.
//
//	client reverse "a text"
//	client --stream reverse "a text"
//	client --stream --cancel think     changes its mind once the provider is at work
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/mapping/a2a"
	"github.com/trestle-npamp/trestle/mapping/acmp"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

const (
	task   = `"task_a7c923f1"`
	cancel = `{"jsonrpc":"2.0","method":"acmp/cancel","params":{"task_id":` + task + `}}`
)

var v03 = &acmp.Options{} // of A2A

func main() {
	to := flag.String("to", "127.0.0.1:7453", "buy from the provider at `HOST:PORT`")
	stream := flag.Bool("stream", false, "ask for the output as a stream")
	giveUp := flag.Bool("cancel", false, "cancel at the first heartbeat")
	flag.Parse()
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	b := carriage.New(carriage.Config{Protocols: []carriage.Protocol{a2a.Protocol(nil)}})
	e, err := engine.New(engine.Config{Channels: []engine.ChannelHandler{b}})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Shutdown(ctx)
	a, err := e.Dial(ctx, *to, engine.DialOptions{})
	if err != nil {
		log.Fatal(err)
	}

	input, _ := json.Marshal(strings.Join(flag.Args()[min(1, flag.NArg()):], " "))
	invoke, err := acmp.Parse(fmt.Appendf(nil,
		`{"jsonrpc":"2.0","id":"req_1","method":"acmp/invoke","params":{"task_id":%s,"capability":%q,"input":{"type":"text","data":%s},"stream":%v}}`,
		task, flag.Arg(0), input, *stream))
	if err != nil {
		log.Fatal(err)
	}
	request, err := acmp.AppendRequest(nil, nil, &invoke, *stream, v03)
	if err != nil {
		log.Fatal(err)
	}
	call := &carriage.Call{Protocol: bridge.ProtocolA2A, Foreign: request}
	if !*stream {
		reply, err := b.Call(ctx, a, call)
		if err != nil {
			log.Fatal(err)
		}
		show(reply.Foreign)
		return
	}
	events, err := b.Stream(ctx, a, call, nil)
	if err != nil {
		log.Fatal(err)
	}
	for event, err := range events.Events() {
		if err != nil {
			log.Fatal(err)
		}
		if m := show(event.Foreign); *giveUp && m.Kind == acmp.Heartbeat {
			*giveUp = false
			stopWork(ctx, b, a)
		}
	}
}

// show prints the ACMP message in an A2A message.
func show(foreign []byte) acmp.Message {
	m, err := acmp.ParseA2A(foreign)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s\n", foreign)
		log.Fatal(err)
	}
	fmt.Printf("%s\n", m.Append(nil))
	return m
}

func stopWork(ctx context.Context, b *carriage.Bridge, a *engine.Association) {
	m, err := acmp.Parse([]byte(cancel))
	if err != nil {
		log.Fatal(err)
	}
	request, err := acmp.AppendRequest(nil, []byte(`"cancel_1"`), &m, false, v03)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := b.Call(ctx, a, &carriage.Call{Protocol: bridge.ProtocolA2A, Foreign: request}); err != nil {
		log.Fatal(err)
	}
}
