// Package control reads and writes the payloads of the frames that manage an
// association after its handshake: HELLO, key updates and ratchet steps on the
// Control channel, and PING, ERROR and FLOW_UPDATE, which are common to all
// channels.
//
// Parsed values are views of the payload unless a field's comment says that it
// is copied. All integers are big-endian, all sizes in octets.
package control

import (
	"errors"

	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/cbor"
)

// MaxPingLen is the longest payload of a PING; the PONG echoes it (D6).
const MaxPingLen = 64

// Errors of the frames with the simplest payloads.
var (
	ErrPingLen   = errors.New("control: PING or PONG payload over 64 octets")
	ErrHelloDone = errors.New("control: HELLO_DONE with a payload")
)

// CheckPing checks the payload of a PING or a PONG, which is opaque: the error
// is ErrPingLen.
func CheckPing(payload []byte) error {
	if len(payload) > MaxPingLen {
		return ErrPingLen
	}
	return nil
}

// CheckHelloDone checks the payload of HELLO_DONE, which is empty: the error is
// ErrHelloDone.
func CheckHelloDone(payload []byte) error {
	if len(payload) != 0 {
		return ErrHelloDone
	}
	return nil
}

// GREASEChannel returns the channel number, among those that mean nothing, that
// a random seed picks.
func GREASEChannel(seed uint16) wire.Channel {
	const count = uint16(wire.LastGREASEChannel-wire.FirstGREASEChannel) + 1
	return wire.FirstGREASEChannel + wire.Channel(seed%count)
}

// helloCBOR is a fault of a HELLO's encoding. It unwraps to the cbor.Error and,
// being one octet, costs no allocation to return.
type helloCBOR cbor.Error

func (e helloCBOR) Error() string { return "control: HELLO: " + cbor.Error(e).Error() }

func (e helloCBOR) Unwrap() error { return cbor.Error(e) }

// badCBOR gives a reader's error this package's name.
func badCBOR(err error) error {
	if e, ok := err.(cbor.Error); ok {
		return helloCBOR(e)
	}
	return err
}
