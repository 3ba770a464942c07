package relay

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/carriage/document"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/mapping/a2a"
	"github.com/trestle-npamp/trestle/mapping/agntcy"
	"github.com/trestle-npamp/trestle/relay/edge"
	"github.com/trestle-npamp/trestle/relay/internal/body"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// forwarder carries messages from callers to agents, and the answers back. It
// serves N-PAMP callers as a carriage.Handler, on their loops, and HTTP callers
// as an edge.Forwarder.
type forwarder struct {
	bridge  *carriage.Bridge
	docs    *document.Receiver // of cards; nil where they are no document sets
	routes  *routes
	policy  func(*Access) error
	mapping *a2a.Mapping
	timeout time.Duration
	replies *buf.Budget // what HTTP callers have not been sent yet
	waiting *buf.Budget // events and documents that wait for N-PAMP callers
	drain   atomic.Bool

	streamBuffer int             // octets of one stream that may wait for a caller
	cut          context.Context // ends when streams are to end
	cutStreams   context.CancelFunc

	requests, notifications, undelivered atomic.Uint64
}

// What callers are told. Texts are for people; the codes are what counts.
const (
	textNoAgentNamed = "no agent was named in HELLO"
	textNoAgent      = "no agent of this name is connected"
	textNotCarried   = "the operation is not carried here"
	textDraining     = "shutting down"
	textCut          = "shutting down; outcome unknown"
	textLost         = "the agent was lost before it answered; outcome unknown"
	textGone         = "the agent was lost; the request was not sent"
	textBusy         = "over capacity"
	textLate         = "the agent did not answer in time; outcome unknown"
)

// agentOf is the agent that a caller's association is for.
func agentOf(a *engine.Association) string {
	if h := a.PeerHello(); h != nil {
		return h.Agent
	}
	return ""
}

// authorize applies the policy to N-PAMP callers.
func (f *forwarder) authorize(m *carriage.Inbound) error {
	if f.policy == nil {
		return nil
	}
	a := m.Association()
	return f.policy(&Access{
		Agent: agentOf(a), Protocol: m.Protocol(), Method: string(m.Method()), Effect: m.Effect(), Peer: a.PeerKey(), Notification: m.Notification(),
	})
}

// forward is one request of an N-PAMP caller on its way. It is the completion of
// the exchange with the agent.
type forward struct {
	f *forwarder
	r *carriage.Request
}

var forwards = sync.Pool{New: func() any { return new(forward) }}

func (x *forward) recycle() {
	*x = forward{}
	forwards.Put(x)
}

// hop is a call to the agent with what crosses unchanged: the foreign octets, and
// the label if there is one. All of it is a view of what was received, even an
// empty scope, and holds that in memory. So a hop lives no longer than it takes to
// send it, and nothing that waits for the agent has one.
type hop struct {
	label bridge.Label
	call  carriage.Call
}

var hops = sync.Pool{New: func() any { return new(hop) }}

func (f *forwarder) hop(m *carriage.Inbound) *hop {
	h := hops.Get().(*hop)
	h.call = carriage.Call{
		Protocol: m.Protocol(), Content: m.Content(), Foreign: m.Foreign(), Hop: true, Timeout: f.timeout, Binding: m.Binding(),
	}
	if opaque := m.Protocol() != bridge.ProtocolA2A; opaque || m.Document() { // elsewhere the method is read from the message
		h.call.Method = string(m.Method())
		if opaque {
			h.call.MediaType = m.MediaType()
		}
	}
	var labelled bool
	if h.label, labelled = m.Label(); labelled {
		h.call.Label = &h.label
	} else {
		h.call.NoLabel = true
	}
	return h
}

func (h *hop) recycle() {
	*h = hop{}
	hops.Put(h)
}

// ServeRequest implements carriage.Handler.
func (f *forwarder) ServeRequest(r *carriage.Request) {
	name := agentOf(r.Association())
	to := f.routes.find(name)
	switch {
	case f.drain.Load():
		f.refuse(r, textDraining)
		return
	case name == "":
		f.refuse(r, textNoAgentNamed)
		return
	case to == nil:
		f.refuse(r, textNoAgent)
		return
	}
	f.requests.Add(1)
	if r.Document() && f.sets() {
		f.forwardDocument(r, to)
		return
	}
	if r.Streams() {
		f.forwardStream(r, to)
		return
	}
	x := forwards.Get().(*forward)
	x.f, x.r = f, r
	h := f.hop(&r.Inbound)
	r.RetainEnvelope() // the foreign octets are copied by Start
	_, err := f.bridge.Start(to.assoc, &h.call, x)
	h.recycle()
	if err != nil { // else x may be in use for another request by now
		x.HandleReply(&carriage.Reply{Err: err})
	}
}

func (f *forwarder) refuse(r *carriage.Request, text string) {
	f.undelivered.Add(1)
	_ = r.Refuse(bridge.CodeNotDelivered, text) // nobody else answers
}

// HandleReply implements carriage.Completion, on the agent's loop. An answer
// that can't be given ends the exchange too, or has nobody to go to any more.
func (x *forward) HandleReply(reply *carriage.Reply) {
	r := x.r
	switch {
	case reply.Err != nil:
		x.f.undelivered.Add(1)
		code, text := outcome(reply)
		_ = r.Refuse(code, text)
	case r.Protocol() != bridge.ProtocolA2A && r.Declare(declaration(reply)) != nil:
		_ = r.Refuse(bridge.CodeNotDelivered, edge.ErrBadReply.Error())
	case reply.Kind == bridge.KindError:
		_ = r.Fail(reply.Foreign)
	default:
		_ = r.Respond(reply.Foreign)
	}
	r.Release()
	x.recycle()
}

// declaration is what an opaque answer declares, as it was declared to us.
func declaration(reply *carriage.Reply) carriage.Declaration {
	return carriage.Declaration{Content: reply.Content, MediaType: string(reply.MediaType), Method: string(reply.Method)}
}

// ServeNotify implements carriage.Handler.
func (f *forwarder) ServeNotify(n *carriage.Notify) {
	to := f.routes.find(agentOf(n.Association()))
	if to == nil || f.drain.Load() {
		f.undelivered.Add(1)
		return
	}
	h := f.hop(&n.Inbound)
	defer h.recycle()
	if err := f.bridge.TryNotify(to.assoc, &h.call); err != nil {
		f.undelivered.Add(1)
	} else {
		f.notifications.Add(1)
	}
}

// outcome is what an N-PAMP caller is told about an exchange with the agent that
// brought no answer.
func outcome(reply *carriage.Reply) (bridge.Code, string) {
	err := reply.Err
	var told *bridge.Error
	switch {
	case errors.As(err, &told):
		if badReply(reply, told) {
			return bridge.CodeNotDelivered, edge.ErrBadReply.Error()
		}
		return told.Code, told.Text
	case errors.Is(err, engine.ErrClosed):
		if reply.Sent {
			return bridge.CodeNotDelivered, textLost
		}
		return bridge.CodeNotDelivered, textGone
	case errors.Is(err, context.DeadlineExceeded):
		return bridge.CodeNotDelivered, textLate
	case errors.Is(err, carriage.ErrDraining):
		if reply.Sent {
			return bridge.CodeNotDelivered, textCut
		}
		return bridge.CodeNotDelivered, textDraining
	case errors.Is(err, engine.ErrWouldBlock), errors.Is(err, carriage.ErrInFlight), errors.Is(err, carriage.ErrStalled):
		return bridge.CodeNotDelivered, textBusy
	case errors.Is(err, engine.ErrTooLarge):
		return bridge.CodeNotDelivered, edge.ErrTooLarge.Error()
	case errors.Is(err, carriage.ErrMalformed), errors.Is(err, bridge.ErrMalformed):
		return bridge.CodeEnvelopeMalformed, err.Error()
	}
	text := err.Error()
	switch {
	case errors.Is(err, carriage.ErrSlowConsumer):
		text = textSlow
	case errors.Is(err, carriage.ErrOverrun):
		text = textOverrun
	}
	if reply.Sent {
		text += "; outcome unknown"
	}
	return bridge.CodeNotDelivered, text
}

// badReply says that it is the agent's reply that we found malformed, and not the
// request: a caller must not be told that its own message was.
func badReply(reply *carriage.Reply, found *bridge.Error) bool {
	return found.Code == bridge.CodeEnvelopeMalformed && reply.Sent && !reply.Remote
}

// edgeError is the same for an HTTP caller.
func edgeError(reply *carriage.Reply) error {
	err := reply.Err
	var told *bridge.Error
	switch {
	case errors.As(err, &told):
		if badReply(reply, told) {
			return edge.ErrBadReply
		}
		return told
	case errors.Is(err, engine.ErrClosed) && reply.Sent:
		return edge.ErrLost
	case errors.Is(err, carriage.ErrDraining) && reply.Sent:
		return edge.ErrCut
	case errors.Is(err, carriage.ErrDraining):
		return edge.ErrDraining
	case errors.Is(err, engine.ErrWouldBlock), errors.Is(err, carriage.ErrInFlight), errors.Is(err, carriage.ErrStalled):
		return edge.ErrBusy
	case errors.Is(err, engine.ErrTooLarge):
		return edge.ErrTooLarge
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return err
	}
	code, text := outcome(reply)
	return &bridge.Error{Code: code, Text: text}
}

// admit applies drain and policy to an HTTP caller.
func (f *forwarder) admit(m *edge.Message, notification bool) error {
	if f.drain.Load() {
		return edge.ErrDraining
	}
	if m.Protocol == bridge.ProtocolA2A && !f.mapping.Carries(m.Method) {
		return &bridge.Error{Code: bridge.CodeMethodUnsupported, Text: textNotCarried}
	}
	if f.policy == nil {
		return nil
	}
	err := f.policy(&Access{
		Agent: m.Agent, Protocol: m.Protocol, Method: string(m.Method), Effect: m.Effect, Principal: m.Principal, Notification: notification,
	})
	if err != nil {
		return &bridge.Error{Code: bridge.CodeSafetyPolicy, Text: err.Error()}
	}
	return nil
}

// hopFrom makes the call of an HTTP caller's message (D15: always labelled).
func hopFrom(m *edge.Message) carriage.Call {
	return carriage.Call{
		Protocol: m.Protocol, Method: string(m.Method), Label: &bridge.Label{Effect: m.Effect}, Foreign: m.Body, Hop: true,
		MediaType: m.MediaType, Timeout: m.Timeout,
	}
}

// attempts bounds how often a message that was not sent is tried again with the
// agent's next association.
const attempts = 3

// Call implements edge.Forwarder.
func (f *forwarder) Call(ctx context.Context, m *edge.Message) (*edge.Reply, error) {
	if err := f.admit(m, false); err != nil {
		return nil, err
	}
	f.requests.Add(1)
	call := hopFrom(m)
	var w *wait
	call.Sent = func() { close(w.left) }
	for i := 1; ; i++ {
		to := f.routes.find(m.Agent)
		if to == nil {
			f.undelivered.Add(1)
			return nil, edge.ErrNoAgent
		}
		w = &wait{replies: f.replies, left: make(chan struct{}), ended: make(chan struct{}), opaque: m.Protocol != bridge.ProtocolA2A}
		abandon, err := f.start(to, m, &call, w)
		for err == engine.ErrWouldBlock {
			if err = f.bridge.AwaitRoom(ctx, to.assoc, len(call.Foreign)); err == nil {
				abandon, err = f.start(to, m, &call, w)
			}
		}
		if err != nil {
			w.HandleReply(&carriage.Reply{Err: err})
		}
		select {
		case <-w.left: // it is not sent again from here on
			call.Foreign = nil
			m.Release()
		case <-w.ended:
		case <-ctx.Done():
		}
		select {
		case <-w.ended:
		case <-ctx.Done():
			if abandon != nil {
				abandon(ctx.Err())
			}
			<-w.ended
		}
		switch {
		case w.err == nil:
			reply := edge.Reply{Error: w.kind == bridge.KindError, Status: w.status, MediaType: w.media, Body: w.body.Bytes(), Release: w.body.Release}
			if m.Protocol != bridge.ProtocolA2A && reply.Status == 0 {
				w.body.Release()
				f.undelivered.Add(1)
				return nil, edge.ErrBadReply
			}
			return &reply, nil
		case !w.sent && errors.Is(w.err, engine.ErrClosed) && i < attempts && f.routes.find(m.Agent) != to:
			continue // the agent came back in the meantime, or is known to be gone
		}
		f.undelivered.Add(1)
		return nil, edgeError(&carriage.Reply{Err: w.err, Sent: w.sent, Remote: w.remote})
	}
}

// wait is the completion of an HTTP caller's exchange.
type wait struct {
	replies      *buf.Budget
	left, ended  chan struct{}
	kind         bridge.Kind
	body         *body.Body
	err          error
	remote, sent bool

	opaque bool
	status int // of an opaque reply, 0 for one that has none as it should
	media  string
}

// HandleReply implements carriage.Completion, on the agent's loop.
func (w *wait) HandleReply(r *carriage.Reply) {
	w.kind, w.err, w.remote, w.sent = r.Kind, r.Err, r.Remote, r.Sent
	if w.err == nil {
		if w.opaque {
			w.status, _ = statusOfReply(r.Method, r.Kind == bridge.KindError)
			w.media = bridge.Declared(r.Content, r.MediaType)
		}
		if w.body, w.err = body.Copy(r.Foreign, w.replies); w.err != nil {
			w.err = &bridge.Error{Code: bridge.CodeNotDelivered, Text: "no memory is left for the agent's answer"}
		}
	}
	close(w.ended)
}

// Notify implements edge.Forwarder.
func (f *forwarder) Notify(ctx context.Context, m *edge.Message) error {
	if err := f.admit(m, true); err != nil {
		return err
	}
	call := hopFrom(m)
	to := f.routes.find(m.Agent)
	if to == nil {
		f.undelivered.Add(1)
		return edge.ErrNoAgent
	}
	if err := f.bridge.Notify(ctx, to.assoc, &call); err != nil {
		f.undelivered.Add(1)
		return edgeError(&carriage.Reply{Err: err})
	}
	f.notifications.Add(1)
	return nil
}

// statusOfReply is the HTTP status of an opaque answer; 0 and false for one that can't
// be.
func statusOfReply(method []byte, failed bool) (int, bool) {
	status, ok := agntcy.ParseStatus(method, failed)
	if !ok {
		return 0, false
	}
	return status, true
}
