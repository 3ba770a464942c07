// Command server is a provider that sells two capabilities over ACMP, whose messages
// travel in data parts of A2A messages:
//
//	reverse   streams the words of a text, last one first
//	think     comes to no result: it only says that it is alive, until it is cancelled
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/carriage/jsonrpc"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/mapping/a2a"
	"github.com/trestle-npamp/trestle/mapping/acmp"
)

const heartbeat = 50 * time.Millisecond

var v03 = &acmp.Options{} // of A2A

func main() {
	listen := flag.String("listen", "127.0.0.1:7453", "serve on `HOST:PORT`")
	flag.Parse()
	protocol := a2a.Protocol(&provider{tasks: make(map[string]context.CancelFunc)})
	protocol.Async = true // work may take its time
	b := carriage.New(carriage.Config{Protocols: []carriage.Protocol{protocol}})
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
	e.Shutdown(context.Background())
}

type provider struct {
	mu    sync.Mutex
	tasks map[string]context.CancelFunc // those under way
}

// ServeNotify implements carriage.Handler. In A2A a cancel is a request.
func (p *provider) ServeNotify(*carriage.Notify) {}

// ServeRequest implements carriage.Handler.
func (p *provider) ServeRequest(r *carriage.Request) {
	if r.Document() { // the card: what a buyer may rely on
		c := acmp.Capability{OutputStreaming: true, Heartbeat: heartbeat, Required: true}
		r.Respond(fmt.Appendf(nil, `{"name":"provider","capabilities":{"streaming":true,"extensions":[%s]}}`, c.AppendExtension(nil)))
		return
	}
	m, err := acmp.ParseA2A(r.Foreign())
	switch {
	case err != nil: // somebody who speaks A2A alone
		r.Fail(jsonrpc.AppendError(nil, r.ID(), -32602, err.Error()))
	case m.Kind == acmp.Invoke:
		p.invoke(r, &m)
	case m.Kind == acmp.Cancel:
		state := acmp.Working
		if p.end(m.TaskID) {
			state = acmp.Canceled
		}
		r.Respond(acmp.AppendTask(nil, r.ID(), m.TaskID, state, v03))
	default:
		answer(r, acmp.Fail(r.ID(), m.TaskID, acmp.CodeFeatureUnsupported, "no input streaming"))
	}
}

// answer ends a request in one piece.
func answer(r *carriage.Request, m acmp.Message) {
	b, err := acmp.AppendReply(nil, r.ID(), &m, v03)
	if err != nil {
		r.Fail(jsonrpc.AppendError(nil, r.ID(), -32603, err.Error()))
		return
	}
	r.Respond(b)
}

func (p *provider) invoke(r *carriage.Request, m *acmp.Message) {
	var params struct {
		Capability string `json:"capability"`
		Input      struct {
			Data string `json:"data"`
		} `json:"input"`
	}
	if err := json.Unmarshal(m.Body, &params); err != nil {
		answer(r, acmp.Fail(m.ID, m.TaskID, acmp.CodeInternal, err.Error()))
		return
	}
	words := strings.Fields(params.Input.Data)
	slices.Reverse(words)
	switch {
	case params.Capability != "reverse" && params.Capability != "think":
		answer(r, acmp.Fail(m.ID, m.TaskID, acmp.CodeCapabilityNotFound, "reverse or think"))
		return
	case !r.Streams() && params.Capability == "reverse":
		text, _ := json.Marshal(strings.Join(words, " "))
		answer(r, result(m, fmt.Sprintf(`"output":{"type":"text","data":%s},`, text), len(words)))
		return
	case !r.Streams():
		answer(r, acmp.Fail(m.ID, m.TaskID, acmp.CodeFeatureUnsupported, "thinking is only streamed"))
		return
	}
	s, err := r.Stream(carriage.StreamOptions{})
	if err != nil {
		return // the buyer is gone
	}
	ctx := p.begin(s.Context(), m.TaskID)
	defer p.end(m.TaskID)
	say := func(method, params string) {
		e, err := acmp.Parse(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":%q,"params":{"task_id":%s,%s}}`, method, m.TaskID, params))
		if err == nil {
			b, _ := acmp.AppendEvent(nil, m.ID, &e, v03)
			s.Send(ctx, b)
		}
	}
	say(acmp.MethodHeartbeat, `"progress":0`)
	last := result(m, `"output_streamed":true,`, len(words))
	if params.Capability == "reverse" {
		for i, word := range words {
			text, _ := json.Marshal(word)
			say(acmp.MethodStreamChunk, fmt.Sprintf(`"seq":%d,"chunk":{"type":"text","data":%s},"final":%v`, i, text, i == len(words)-1))
		}
	} else {
		alive := time.NewTicker(heartbeat)
		defer alive.Stop()
		for ctx.Err() == nil {
			select {
			case <-alive.C:
				say(acmp.MethodHeartbeat, `"detail":"still thinking"`)
			case <-ctx.Done():
			}
		}
		last = acmp.Fail(m.ID, m.TaskID, acmp.CodeCancelled, "cancelled")
	}
	b, _ := acmp.AppendEvent(nil, m.ID, &last, v03)
	s.End(b)
}

func result(m *acmp.Message, output string, words int) acmp.Message {
	body := fmt.Sprintf(`{"task_id":%s,%s"tokens_used":%d,"cost_cu":0.001}`, m.TaskID, output, words)
	return acmp.Message{Kind: acmp.Result, ID: m.ID, TaskID: m.TaskID, Body: []byte(body)}
}

// begin notes a task that can be cancelled.
func (p *provider) begin(ctx context.Context, taskID []byte) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tasks[string(taskID)] = cancel
	return ctx
}

// end stops a task; false says that there is none.
func (p *provider) end(taskID []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	cancel := p.tasks[string(taskID)]
	delete(p.tasks, string(taskID))
	if cancel != nil {
		cancel()
	}
	return cancel != nil
}
