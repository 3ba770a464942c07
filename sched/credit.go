package sched

import (
	"errors"

	"github.com/trestle-npamp/trestle/internal/invariant"
)

// ErrOverrun is what Credit.Receive returns when the peer sent more than it was
// allowed to: the association is to be closed with CodeLimit.
var ErrOverrun = errors.New("sched: peer overran its credit")

// Credit is one pair of credit counters, of an association or of one stream, one
// for what we send and one for what we receive (D6). All counts are absolute: a
// number of octets since the beginning, so a repeated or an old update does no
// harm.
//
// The zero value limits neither side; it counts all the same, so that a side may
// be limited later. A Credit belongs to the loop.
type Credit struct {
	sent      uint64
	sendLimit uint64
	received  uint64
	consumed  uint64
	granted   uint64
	window    uint64
	reserve   uint64
	// What must be left for a unit of any size to pass; 0 is no such rule.
	sendLeast    uint64
	receiveLeast uint64
	sendOn       bool
	receiveOn    bool
}

// LimitSend limits what may be sent to limit octets in all, counted from the
// beginning and including what was sent before the call. It sets the limit, also
// to a lower one than before.
func (c *Credit) LimitSend(limit uint64) { c.sendLimit, c.sendOn = limit, true }

// FreeSend lifts the limit on what may be sent.
func (c *Credit) FreeSend() { c.sendOn = false }

// OverdrawSend lets Take pass a unit of any size while at least so many octets are
// left, though it takes the count beyond the limit. Both sides must agree on it: it
// is for units that no limit was made for and that can't be split.
func (c *Credit) OverdrawSend(least uint64) { c.sendLeast = least }

// OverdrawReceive is the receiver's side of OverdrawSend.
func (c *Credit) OverdrawReceive(least uint64) { c.receiveLeast = least }

// Take counts n octets as sent and reports true if the peer's limit allows all
// of them; otherwise it counts nothing. It fails for n < 0.
func (c *Credit) Take(n int) bool {
	if !c.Allows(n) {
		return false
	}
	c.sent += uint64(n)
	return true
}

// Allows reports what Take would.
func (c *Credit) Allows(n int) bool {
	if n < 0 {
		return false
	}
	if !c.sendOn {
		return true
	}
	left := c.Available()
	return uint64(n) <= left || c.sendLeast > 0 && left >= c.sendLeast
}

// Available returns how many octets may be sent now: the greatest uint64 when
// nothing limits them.
func (c *Credit) Available() uint64 {
	if !c.sendOn {
		return ^uint64(0)
	}
	if c.sent >= c.sendLimit {
		return 0
	}
	return c.sendLimit - c.sent
}

// Sent returns the octets counted by Take.
func (c *Credit) Sent() uint64 { return c.sent }

// Update takes the peer's FLOW_UPDATE: abs is the number of octets in all that
// it is ready to have received. It reports whether there is more to send than
// before. An update that lowers the limit, and any while the side is not
// limited, is without effect.
func (c *Credit) Update(abs uint64) bool {
	if !c.sendOn || abs <= c.sendLimit {
		return false
	}
	c.sendLimit = abs
	return true
}

// LimitReceive limits what the peer may send: at first to window octets in all,
// counted from the beginning, which it must have been told, and then to window
// octets beyond what has been consumed.
//
// largest is the size of the largest unit that the peer sends only as a whole (a
// frame's plaintext). Grants come early enough that such a unit never waits for
// a grant that only its own arrival would make due; so where window is less than
// twice largest they come often.
func (c *Credit) LimitReceive(window, largest uint64) {
	c.window = window
	c.reserve = min(max(window-window/2, largest), window)
	c.granted = window
	c.receiveOn = true
}

// FreeReceive lifts the limit on what the peer may send.
func (c *Credit) FreeReceive() { c.receiveOn = false }

// Receive counts n octets that arrived. If the peer was not allowed to send that
// much it returns ErrOverrun and counts nothing.
func (c *Credit) Receive(n int) error {
	invariant.Check(n >= 0, "sched: received a negative number of octets")
	if c.receiveOn {
		left := c.granted - min(c.received, c.granted)
		if uint64(n) > left && (c.receiveLeast == 0 || left < c.receiveLeast) {
			return ErrOverrun
		}
	}
	c.received += uint64(n)
	return nil
}

// Consume counts n of the received octets as done with, which makes room for as
// many new ones.
func (c *Credit) Consume(n int) {
	invariant.Check(n >= 0 && uint64(n) <= c.received-c.consumed, "sched: consumed more than was received")
	c.consumed = min(c.consumed+uint64(n), c.received)
}

// Held returns the octets received and not yet consumed.
func (c *Credit) Held() uint64 { return c.received - c.consumed }

// Grant reports whether a FLOW_UPDATE is due and the absolute number that it is
// to carry. When it is due it counts as granted by this call, so the caller must
// send it.
func (c *Credit) Grant() (abs uint64, due bool) {
	abs = c.consumed + c.window
	if !c.receiveOn || abs <= c.granted || c.granted >= c.consumed+c.reserve {
		return 0, false
	}
	c.granted = abs
	return abs, true
}
