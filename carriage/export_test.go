package carriage

import (
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// BridgeOf is the Bridge that serves a's channel.
func BridgeOf(a *assoc.Association) *Bridge {
	return a.ChannelConn(wire.ChannelBridge).(*conn).b
}

// AnswerUnchecked is Respond without a look at the size, as if the peer's HELLO came
// after that.
func (r *Request) AnswerUnchecked(foreign []byte) error {
	if !r.claim() {
		return ErrAnswered
	}
	return r.post(&bridge.Message{
		Kind: bridge.KindResponse, Protocol: r.msg.Protocol, Content: r.msg.Content, Corr: r.msg.Corr, Foreign: foreign,
	})
}

// ForgetRetained gives up all streams that may be resumed, as after their time.
func (b *Bridge) ForgetRetained() {
	r := &b.retained
	for {
		r.mu.Lock()
		var e *rested
		for _, e = range r.feeds {
			break
		}
		if e == nil {
			r.mu.Unlock()
			return
		}
		r.unlink(e)
		r.mu.Unlock()
		e.f.expire()
	}
}

// Retained is how many streams are held for a resume, and how many octets.
func (b *Bridge) Retained() (streams int, octets int64) {
	b.retained.mu.Lock()
	defer b.retained.mu.Unlock()
	return len(b.retained.feeds), b.retained.octets.Load()
}

// RetainedOctets is how many octets of requests and notifications a's channel
// holds.
func RetainedOctets(a *assoc.Association) int64 {
	return a.ChannelConn(wire.ChannelBridge).(*conn).retained.Load()
}
