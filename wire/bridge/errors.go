package bridge

import "errors"

// ErrMalformed is the class of the errors that BRIDGE answers with
// EnvelopeMalformed (or, for a DocumentBinding, BindingMalformed).
var ErrMalformed = errors.New("wire/bridge: malformed message")

// Errors about what we would send.
var (
	// ErrAmbiguous says that the receiver would not find the foreign message
	// again (D9, D11); such a message is NotDelivered.
	ErrAmbiguous = errors.New("wire/bridge: foreign octets would be misread")
)
