package carriage

import (
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/wire"
)

// BridgeOf is the Bridge that serves a's channel.
func BridgeOf(a *assoc.Association) *Bridge {
	return a.ChannelConn(wire.ChannelBridge).(*conn).b
}
