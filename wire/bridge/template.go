package bridge

import (
	"encoding/binary"

	"github.com/trestle-npamp/trestle/wire"
)

// Template puts together the messages of one stream, which differ in their event id
// and their foreign octets alone: what stands in front of those is made once. The
// zero value is no Template; see Message.Template.
type Template struct {
	prefix []byte
	id     int // where the event id is
}

// Template makes a Template of a message that has a StreamControl and is no error. Its
// event id and its foreign octets have no meaning. The errors are Append's, and
// ErrKind for another message.
func (m *Message) Template(tags *Tags) (Template, error) {
	sample := *m
	sample.Foreign = nil
	prefix, err := sample.AppendPrefix(nil, tags)
	if err == nil && (!m.HasStream || m.Kind == KindError) {
		err = ErrKind
	}
	if err != nil {
		return Template{}, err
	}
	// StreamControl follows the envelope and ends with the event id.
	id := wire.TLVHeaderLen + envelopeMin + len(m.Corr) + len(m.Method) + wire.TLVHeaderLen + streamLen - 8
	return Template{prefix, id}, nil
}

// PrefixSize is how many octets AppendPrefix appends.
func (t *Template) PrefixSize() int { return len(t.prefix) }

// AppendPrefix appends what stands in front of foreign octets that Tags.Plain accepts.
func (t *Template) AppendPrefix(dst []byte, id EventID) []byte {
	at := len(dst) + t.id
	dst = append(dst, t.prefix...)
	binary.BigEndian.PutUint64(dst[at:], uint64(id))
	return dst
}

// Plain says that foreign octets that begin so can follow the envelope of any message
// of the protocol, but for an error, as they are: nothing of them could pass for a
// TLV. What Append does with others depends on the message.
func (t *Tags) Plain(p ProtocolID, foreign []byte) bool {
	if len(foreign) < 2 || foreign[0] != 0 {
		return true
	}
	typ := wire.TLVType(foreign[1])
	return t.known(typ) == 0 && !skipped(p, typ)
}
