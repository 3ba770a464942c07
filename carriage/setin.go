package carriage

import (
	"errors"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// Part is one frame of an answer that is a document set. All of it is borrowed
// until HandlePart returns.
type Part struct {
	// Kind is bridge.KindResponse for a member as a whole; bridge.KindData and
	// bridge.KindEnd for a piece of one, in the order of the stream.
	Kind      bridge.Kind
	Corr      []byte // the set's correlation id
	Content   bridge.ContentType
	MediaType []byte
	// Binding is the value of the DocumentBinding TLV, which bridge.ParseBinding
	// accepts, and empty if there is none.
	Binding []byte
	// Foreign is the member, or the piece, octet for octet.
	Foreign []byte
}

// PartHandler takes a document set apart from its frames. Its methods are called on
// the loop of the association and must not block.
type PartHandler interface {
	// HandlePart takes one frame. done says that the set is complete, which ends the
	// exchange. An error refuses the set and ends the exchange too: the peer is told
	// its code (bridge.CodeOf, or NotDelivered where that is none).
	HandlePart(p *Part) (done bool, err error)
	// HandleReply is told how the exchange ended, exactly once and last: with no Err
	// if HandlePart said that the set is complete, and with Kind bridge.KindError for
	// an error of the foreign protocol.
	Completion
}

// StartSet sends c as a request that is answered by a document set (CC-DOC 7.1), and
// returns at once. Its frames are h's to assemble; if StartSet returns an error, h is
// told nothing. c has no message, under the class JSONRPC a method that asks for a
// document, and gets a correlation id of its own. Its Timeout is for the set as a
// whole. Any goroutine may call it. The errors are Start's.
//
// A set that is given up (Cancel, Timeout) or refused is refused towards the peer
// with a transport error, and with that the exchange is over on both sides.
func (b *Bridge) StartSet(a *assoc.Association, c *Call, h PartHandler) (*Consumer, error) {
	x := &Consumer{b: b, a: a, parts: h}
	x.node.Owner = x
	if _, err := b.start(a, c, h, x, nil); err != nil {
		return nil, err
	}
	return x, nil
}

// handlePart takes a reply of an exchange that is answered by a document set; err is
// what is wrong with it.
func (c *conn) handlePart(e *exchange, m *bridge.Message, err error) {
	x := e.sub
	stream := m.Kind == bridge.KindData || m.Kind == bridge.KindEnd
	if err == nil && stream {
		_, err = x.follow(m)
	}
	switch {
	case err != nil:
		c.b.stats.repliesMalformed.Add(1)
		c.refuseSet(e, breach(err))
		return
	case m.Transport:
		code, text, _ := bridge.ParseTransportError(m.Foreign)
		c.complete(e, Reply{Err: &bridge.Error{Code: code, Text: string(text)}, Remote: true, Sent: true})
		c.free(e)
		return
	case m.Kind == bridge.KindError:
		c.complete(e, Reply{Kind: m.Kind, Content: m.Content, MediaType: m.MediaType, Foreign: m.Foreign, Sent: true})
		c.free(e)
		return
	}
	if stream {
		if !x.limited {
			x.limit(c)
		}
		if x.credit.Receive(len(m.Foreign)) != nil {
			c.b.stats.streamsOverrun.Add(1)
			c.refuseSet(e, &bridge.Error{Code: bridge.CodeNotDelivered, Text: "more than there was credit for"})
			return
		}
	}
	done, err := c.handOver(x, m)
	switch {
	case err != nil:
		code := bridge.CodeOf(err)
		if code == 0 {
			code = bridge.CodeNotDelivered
		}
		c.refuseSet(e, &bridge.Error{Code: code, Text: textOf(err)})
	case done:
		c.complete(e, Reply{Kind: m.Kind, Content: m.Content, MediaType: m.MediaType, Sent: true})
		c.free(e)
	case stream:
		x.credit.Consume(len(m.Foreign))
		x.grant()
		if m.Kind == bridge.KindEnd { // a further member may be streamed too
			x.begun, x.last = false, 0
		}
	}
}

func textOf(err error) string {
	var told *bridge.Error
	if errors.As(err, &told) {
		return told.Text
	}
	return reason(err)
}

// handOver gives a part to its handler.
func (c *conn) handOver(x *Consumer, m *bridge.Message) (done bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			c.b.panicked("part handler", &c.b.stats.completionPanics, p)
			done, err = false, errHandler
		}
	}()
	return x.parts.HandlePart(&Part{
		Kind: m.Kind, Corr: m.Corr, Content: m.Content, MediaType: m.MediaType, Binding: m.Binding, Foreign: m.Foreign,
	})
}

// refuseSet ends the exchange for both sides because of what we found. Frames that
// are still under way are replies to nothing then: the correlation id is not used
// again, so they can't be taken for another set's.
func (c *conn) refuseSet(e *exchange, why *bridge.Error) {
	c.tellRefusal(e, why)
	c.complete(e, Reply{Err: why, Sent: true})
	c.free(e)
}

// abandonSet is the same for a set that nobody wants any more.
func (c *conn) abandonSet(e *exchange, err error) {
	c.tellRefusal(e, &bridge.Error{Code: bridge.CodeSetIncomplete, Text: "given up: " + textOf(err)})
	c.complete(e, Reply{Err: err, Sent: true})
	c.free(e)
}

func (c *conn) tellRefusal(e *exchange, why *bridge.Error) {
	c.b.stats.setsFailed.Add(1)
	if _, live := c.live.Get(e.corr); !live { // else it would end an exchange of the peer's
		c.refuse(e.proto.ID, e.corr, why.Code, why.Text)
	}
}

// ReportSet tells the peer of a what is wrong with a document set of which it has sent
// everything, besides what ended the exchange: that a proof is of no kind we know
// (CC-DOC 6.4), say. corr is the set's. On a's loop alone. Errors are Begin's.
func (b *Bridge) ReportSet(a *assoc.Association, p bridge.ProtocolID, corr []byte, code bridge.Code, text string) error {
	c, err := b.on(a)
	if err != nil {
		return err
	}
	if _, live := c.live.Get(corr); live || len(corr) == 0 {
		return nil
	}
	return c.sendTransport(p, corr, code, text, false)
}

// breach is what a malformed reply is answered with.
func breach(err error) *bridge.Error {
	code := bridge.CodeOf(err)
	if code == 0 {
		code = bridge.CodeEnvelopeMalformed
	}
	return &bridge.Error{Code: code, Text: reason(err)}
}
