package conn

import (
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// Streams have credit of their own if both HELLOs carried params key 4 (D6). The
// machine carries it; who counts is the channel that has the streams.

// streamCreditInForce: the peer's HELLO and ours carried key 4.
func (c *Conn) streamCreditInForce() bool {
	return !c.cfg.NoHello && c.cfg.StreamCredit > 0 && c.hasHello && c.peerHello.HasStreamCredit
}

// StreamLimit is how many octets may be sent on a stream at first; limited is false
// when nothing limits them. Until the peer's HELLO has come, or is no longer
// expected, the floor stands (D3).
func (c *Conn) StreamLimit() (octets uint64, limited bool) {
	switch {
	case c.streamCreditInForce():
		return max(c.peerHello.StreamCredit, FloorStreamCredit), true
	case !c.hasHello && !c.helloExpired && !c.cfg.NoHello:
		return FloorStreamCredit, true
	}
	return 0, false
}

// StreamWindow is how many octets beyond those consumed the peer may send on a
// stream; limited is false when it knows of no such limit.
func (c *Conn) StreamWindow() (octets uint64, limited bool) {
	if !c.streamCreditInForce() {
		return uint64(max(c.cfg.StreamCredit, 0)), false
	}
	return uint64(c.cfg.StreamCredit), true
}

// HelloExpired says that the peer is taken for one that sends no HELLO.
func (c *Conn) HelloExpired() bool { return c.helloExpired && !c.hasHello }

// GrantStream tells the peer how many octets in all it may send on a stream of ch
// (FLOW_UPDATE). It goes before what waits. Errors: ErrClosed, ErrChannel, ErrBegin,
// those of control.AppendStreamFlowUpdate.
func (c *Conn) GrantStream(ch wire.Channel, octets uint64, corr []byte) error {
	switch {
	case c.state != stateOpen:
		return ErrClosed
	case ch == wire.ChannelControl || !c.Usable(ch):
		return ErrChannel
	case c.begin.open:
		return ErrBegin
	case !c.streamCreditInForce():
		return nil
	}
	var p [control.FlowUpdateLen + 1 + control.MaxCorrLen]byte
	payload, err := control.AppendStreamFlowUpdate(p[:0], octets, corr)
	if err != nil {
		return err
	}
	if c.Direct(ch, len(payload)) {
		c.sealNow(ch, wire.TypeFlowUpdate, payload)
		return nil
	}
	b := buf.Get(wire.HeaderLen + len(payload) + wire.TagLen)
	b.B = append(append(b.B, zeroHeader[:]...), payload...)
	c.push(ch, wire.TypeFlowUpdate, wire.FlagURG, nil, b)
	return nil
}

// handleStreamUpdate takes a FLOW_UPDATE on another channel than Control.
func (c *Conn) handleStreamUpdate(ch wire.Channel, pt []byte) bool {
	if !c.streamCreditInForce() {
		c.cfg.Counters.UnknownType.Add(1)
		return false
	}
	octets, corr, err := control.ParseStreamFlowUpdate(pt)
	if err != nil {
		c.fail(control.CodeProtocol, ErrControl)
		return false
	}
	c.event = Event{Kind: EventCredit, Channel: ch, Type: wire.TypeFlowUpdate, Payload: corr, Octets: octets}
	return true
}
