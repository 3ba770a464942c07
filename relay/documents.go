package relay

import (
	"sync"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/carriage/document"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/relay/edge"
	"github.com/trestle-npamp/trestle/wire"
)

// Where a number for their bindings is configured, cards cross each hop as a document
// set (D24): the document and each of its proofs octet for octet. A relay assembles
// the set, so that it passes on or shows to an HTTP caller only what is complete and
// has the digest that it should, and checks no proof. A document that is pushed as a
// notification goes on as it is: its receiver compares the digest.

// sets says that cards cross as document sets.
func (f *forwarder) sets() bool { return f.docs != nil }

// newDocs is the documents Bridge on the Discovery channel (D25), served like the
// Bridge of the given configuration; nil without a number.
func newDocs(base carriage.Config) *carriage.Bridge {
	if base.Tags == nil || base.Tags.DocumentBinding == 0 {
		return nil
	}
	base.Channel = wire.ChannelDiscovery
	return carriage.New(base)
}

// attachDocs is discovery.Config.Documents.
func attachDocs(docs *carriage.Bridge) func(*engine.Association) engine.ChannelConn {
	if docs == nil {
		return nil
	}
	return docs.Attach
}

// forwardDocument forwards a request for a card.
func (f *forwarder) forwardDocument(r *carriage.Request, to *route) {
	h := f.hop(&r.Inbound)
	r.RetainEnvelope()
	_, err := f.docs.Start(f.bridge, to.assoc, &h.call, func(s *document.Set, reply *carriage.Reply) {
		if s == nil {
			f.notForwarded(r, reply)
			return
		}
		f.respondSet(r, s)
		r.Release()
	})
	h.recycle()
	if err != nil {
		f.notForwarded(r, &carriage.Reply{Err: err})
	}
}

// respondSet passes a set on. Its octets count until the caller's association has
// taken them.
func (f *forwarder) respondSet(r *carriage.Request, s *document.Set) {
	n := len(s.Document)
	for i := range s.Proofs {
		n += len(s.Proofs[i].Octets)
	}
	if !f.waiting.Take(n) {
		f.refuse(r, textBusy)
		return
	}
	var once sync.Once
	give := func(error) { once.Do(func() { f.waiting.Give(n) }) }
	if err := document.Respond(r, s, carriage.SetOptions{Over: give}); err != nil {
		give(err) // it was refused
	}
}

// notForwarded ends a request for which there is no set.
func (f *forwarder) notForwarded(r *carriage.Request, reply *carriage.Reply) {
	x := forwards.Get().(*forward)
	x.f, x.r = f, r
	x.HandleReply(reply)
}

// start sends an HTTP caller's call to the agent.
func (f *forwarder) start(to *route, m *edge.Message, call *carriage.Call, w *wait) (abandon func(error), err error) {
	if m.Document && f.sets() {
		x, err := f.docs.Start(f.bridge, to.assoc, call, w.handleSet)
		if err != nil {
			return nil, err
		}
		return x.Cancel, nil
	}
	x, err := f.bridge.Start(to.assoc, call, w)
	if err != nil {
		return nil, err
	}
	return x.Abandon, nil
}

// handleSet is HandleReply for a card.
func (w *wait) handleSet(s *document.Set, reply *carriage.Reply) {
	if s == nil {
		w.HandleReply(reply)
		return
	}
	r := *reply
	r.Foreign = s.Document
	w.HandleReply(&r)
}
