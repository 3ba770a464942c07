package bridge

import "github.com/trestle-npamp/trestle/wire"

// Message is a message of the Bridge channel. Read by Parse, all its slices are
// views of the payload and live as long as it does.
type Message struct {
	Kind     Kind
	Protocol ProtocolID
	Content  ContentType
	Flags    uint8  // FlagFinal; others as they came
	Corr     []byte // correlation id, 1..255 octets; none on a notification
	Method   []byte // UTF-8, up to 255 octets

	HasLabel  bool
	HasStream bool
	// Transport says that Foreign is not the foreign protocol's but a transport
	// error (D11); only with KindError.
	Transport bool

	Label  Label
	Stream StreamControl

	// The next three need Tags. Empty means absent.
	MediaType []byte // value of an OpaqueContentType TLV
	Binding   []byte // value of a DocumentBinding TLV, see ParseBinding
	Metadata  []byte // value of an EdgeMetadata TLV

	Foreign []byte // the foreign message, octet for octet
}

// Final reports whether the final flag is set.
func (m *Message) Final() bool { return m.Flags&FlagFinal != 0 }

// Parse reads the opened payload of a Bridge frame of type t into m, which it
// overwrites whole.
func Parse(m *Message, t wire.FrameType, payload []byte, tags *Tags) error { return nil }

// Append appends the message to dst.
func (m *Message) Append(dst []byte, tags *Tags) ([]byte, error) { return dst, nil }

// AppendPrefix appends what goes in front of the foreign message, which it looks
// at but does not copy.
func (m *Message) AppendPrefix(dst []byte, tags *Tags) ([]byte, error) { return dst, nil }

// Size returns the octets that Append adds, exactly.
func (m *Message) Size() int { return 0 }

// PrefixSize returns the octets that AppendPrefix adds, exactly.
func (m *Message) PrefixSize() int { return 0 }
