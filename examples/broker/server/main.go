// Command server is a broker: whoever subscribes to a topic gets every event that is
// published to it from then on, until the topic is ended. An event's octets are held
// once, whatever the number of subscribers, and one who reads too slowly is cut
// without holding the others up.
//
//	subscribe TOPIC    answered by a stream of events
//	publish TOPIC      an event; answered with the number of subscribers
//	end TOPIC          the last event, which may be empty; ends all streams
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:7452", "serve on `HOST:PORT`")
	flag.Parse()
	b := carriage.New(carriage.Config{Protocols: []carriage.Protocol{{
		ID:      bridge.FirstExperimental,
		Class:   carriage.ClassOpaque,
		Handler: &broker{topics: make(map[string]*carriage.Topic)},
		Async:   true, // Publish may wait for subscribers
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
	e.Shutdown(context.Background()) // subscribers are told that it is over
}

type broker struct {
	mu     sync.Mutex
	topics map[string]*carriage.Topic
}

// maxTopics bounds the topics at one time: their names are up to who subscribes.
const maxTopics = 1000

// topic is the topic of that name, nil if there is none. Whoever subscribes makes it,
// and gone takes it out.
func (b *broker) topic(name string, subscribe, gone bool) *carriage.Topic {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.topics[name]
	if t == nil && subscribe && len(b.topics) < maxTopics {
		t = carriage.NewTopic(carriage.TopicOptions{})
		b.topics[name] = t
	}
	if gone {
		delete(b.topics, name)
	}
	return t
}

// publish returns how many subscribers a topic has.
func (b *broker) publish(name string, event []byte) (subscribers int, err error) {
	t := b.topic(name, false, false)
	if t == nil {
		return 0, nil
	}
	err = t.Publish(context.Background(), event)
	return t.Subscribers(), err
}

// ServeRequest implements carriage.Handler.
func (b *broker) ServeRequest(r *carriage.Request) {
	operation, name, _ := strings.Cut(string(r.Method()), " ")
	switch operation {
	case "subscribe":
		t := b.topic(name, true, false)
		if t == nil {
			r.Refuse(bridge.CodeNotDelivered, "there are too many topics")
			return
		}
		// The topic sees to the stream from here on, and to its end.
		t.Subscribe(r, carriage.SubscribeOptions{First: []byte("subscribed to " + name)})
	case "publish":
		n, err := b.publish(name, r.Foreign())
		if err != nil {
			r.Refuse(bridge.CodeNotDelivered, err.Error())
			return
		}
		r.Respond(strconv.AppendInt(nil, int64(n), 10))
	case "end":
		if t := b.topic(name, false, true); t != nil {
			t.End(r.Foreign())
		}
		r.Respond(nil)
	default:
		r.Refuse(bridge.CodeMethodUnsupported, "subscribe, publish or end")
	}
}

// ServeNotify implements carriage.Handler: an event may be published without waiting
// for an answer.
func (b *broker) ServeNotify(n *carriage.Notify) {
	if name, ok := strings.CutPrefix(string(n.Method()), "publish "); ok {
		b.publish(name, n.Foreign())
	}
}
