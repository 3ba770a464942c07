package carriage

import (
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// Inbound is what a request and a notification have in common. All octets that
// its methods return are borrowed: they must not be changed, and live until the
// handler (or Authorize) returns, or as long as a retained request.
type Inbound struct {
	c      *conn
	proto  *Protocol
	msg    bridge.Message
	id     []byte
	effect bridge.Effect
	doc    bool
}

// Association is where the message came from.
func (m *Inbound) Association() *assoc.Association { return m.c.a }

// Protocol is the foreign protocol.
func (m *Inbound) Protocol() bridge.ProtocolID { return m.msg.Protocol }

// Content is the encoding of the foreign message.
func (m *Inbound) Content() bridge.ContentType { return m.msg.Content }

// MediaType is the foreign message's media type where Content points at one (D7).
func (m *Inbound) MediaType() []byte { return m.msg.MediaType }

// Binding is the value of a DocumentBinding TLV, which only a notification can
// have: the foreign message is then a document (CC-DOC 7.2).
func (m *Inbound) Binding() []byte { return m.msg.Binding }

// Metadata is the value of an EdgeMetadata TLV, if there is one (D21).
func (m *Inbound) Metadata() []byte { return m.msg.Metadata }

// Method is the operation's name, at most 255 octets of UTF-8.
func (m *Inbound) Method() []byte { return m.msg.Method }

// ID is a JSON-RPC request's id as written, nil for anything else.
func (m *Inbound) ID() []byte { return m.id }

// Label is the SafetyLabel that came with the message; ok is false without one.
func (m *Inbound) Label() (label bridge.Label, ok bool) { return m.msg.Label, m.msg.HasLabel }

// Effect is what the message must be assumed to do: the greater of its label's
// effect and what the mapping knows; without a label it is destructive unless
// the mapping knows that it only reads (BRIDGE 7, D15).
func (m *Inbound) Effect() bridge.Effect { return m.effect }

// Notification says that the message wants no answer.
func (m *Inbound) Notification() bool { return m.msg.Kind == bridge.KindNotify }

// Document says that the message asks for a document by its method alone (D24), or
// is one: a notification with a Binding (CC-DOC 7.2).
func (m *Inbound) Document() bool { return m.doc }

// Sets says that document sets can be carried: a number is configured for their
// bindings (D7).
func (m *Inbound) Sets() bool { return m.c.b.Tags().DocumentBinding != 0 }

// Resumes says that the request asks for a stream to go on, behind the event with
// that id. Only Authorize sees such a request; its method, label and effect are
// those of the request that began the stream.
func (m *Inbound) Resumes() (after EventID, ok bool) {
	return m.msg.Stream.EventID, m.msg.HasStream && m.msg.Stream.Control == bridge.ControlResume
}

// Streams says that the protocol knows the method as one that is answered by a
// stream.
func (m *Inbound) Streams() bool { return m.proto.Stream != nil && m.proto.Stream(m.msg.Method) }

// Foreign is the foreign message, octet for octet.
func (m *Inbound) Foreign() []byte { return m.msg.Foreign }

func (m *Inbound) assess() {
	known := false
	if m.proto.Effect != nil {
		m.effect, known = m.proto.Effect(m.msg.Method)
	}
	switch {
	case m.msg.HasLabel && known:
		m.effect = max(m.effect, m.msg.Label.Effect)
	case m.msg.HasLabel:
		m.effect = m.msg.Label.Effect
	case !known || m.effect != bridge.ReadOnly:
		m.effect = bridge.Destructive
	}
}

// octets is how many own copies.
func (m *Inbound) octets(foreign bool) int {
	x := &m.msg
	n := len(x.Corr) + len(x.Method) + len(x.Label.Scope) + len(x.MediaType) + len(x.Metadata) + len(x.Binding) + len(m.id)
	if foreign {
		n += len(x.Foreign)
	}
	return n
}

// own copies what is borrowed from the frame into one buffer and points the
// message at the copies. Without foreign the foreign message stays borrowed.
func (m *Inbound) own(foreign bool) *buf.Buf {
	x := &m.msg
	b := buf.Get(m.octets(foreign))
	take := func(v *[]byte) {
		if *v == nil {
			return
		}
		at := len(b.B)
		b.B = append(b.B, *v...)
		*v = b.B[at:len(b.B):len(b.B)]
	}
	take(&x.Corr)
	take(&x.Method)
	take(&x.Label.Scope)
	take(&x.MediaType)
	take(&x.Metadata)
	take(&x.Binding)
	take(&m.id)
	if foreign {
		take(&x.Foreign)
	}
	return b
}

// Notify is a notification that a peer sent. A Handler that keeps something of
// it makes a copy.
type Notify struct {
	Inbound
	job   job
	store *buf.Buf // of one that waits for a worker
}
