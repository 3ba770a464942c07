// Package agntcy maps the protocols of AGNTCY, the Internet of Agents, onto the
// Bridge channel (MAP-AGNTCY): the Agent Connect Protocol (ACP, OpenAPI 0.2.3) and
// the remote procedure calls and messages of SLIM. Neither is JSON-RPC, and both
// are carried as they are, in the class OPAQUE: no octet of a message is looked at.
//
// There is no protocol id for AGNTCY. Two peers agree on one of the experimental
// ids by configuring it on both sides, and there is no default.
//
// So that effects can be known, the envelope's method names the operation, and in the
// answer to a REST operation its HTTP status (see Status):
//
//	POST /runs                     a REST operation of ACP, with its concrete path
//	DELETE /threads/9f3c           and, if it has one, its query
//	pkg.Service/Method             a call of SLIM's RPC (SRPC)
//	publish, subscribe, ...        what else SLIM does; these five names are ours
//
// What AGNTCY hosts but does not define is not carried under its id: A2A and MCP
// have mappings of their own (MAP-AGNTCY 1.2), and records of the Agent Directory
// and of OASF are documents (MAP-AGNTCY 6.3).
//
// Carriage says nothing about the security of what it carries: that of SLIM's own
// transport (MLS, tokens) or of ACP's HTTP is neither rebuilt nor checked here
// (MAP-AGNTCY 10).
package agntcy

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/mapping/a2a"
	"github.com/trestle-npamp/trestle/mapping/mcp"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// Surface is a protocol of AGNTCY, or both.
type Surface uint8

// The surfaces.
const (
	ACP  Surface = 1 << iota // REST with JSON bodies
	SLIM                     // protobuf messages
	Both = ACP | SLIM
)

// String returns the surface's name.
func (s Surface) String() string {
	switch s {
	case ACP:
		return "ACP"
	case SLIM:
		return "SLIM"
	case Both:
		return "ACP and SLIM"
	}
	return "no surface"
}

// Errors.
var (
	// ErrProtocolID: not an experimental protocol id (MAP-AGNTCY 4).
	ErrProtocolID = errors.New("agntcy: protocol id is not one of 0x10 to 0x7F")
	// ErrHosted: an operation of A2A or MCP, which their own mappings carry
	// (MAP-AGNTCY 1.2).
	ErrHosted = errors.New("agntcy: A2A and MCP are carried under their own protocol ids")
	// ErrDocument: an operation on directory or OASF records, which are carried as
	// documents (MAP-AGNTCY 6.3).
	ErrDocument = errors.New("agntcy: directory and OASF records are carried as documents")
	// ErrSurface: an operation of a surface that is not configured.
	ErrSurface = errors.New("agntcy: operation of another surface than is carried")
	// ErrMethod: not a method that an envelope can have.
	ErrMethod = errors.New("agntcy: method is not 1 to 255 octets of UTF-8")
	// ErrOneWay: an operation that is asked for in another way.
	ErrOneWay = errors.New("agntcy: REST operations and SRPC calls are answered")
)

// Config is what the two peers have agreed on.
type Config struct {
	// ID is the experimental protocol id, 0x10 to 0x7F. It has no default.
	ID bridge.ProtocolID
	// Surface is what is carried under it; 0 is Both.
	Surface Surface
	// CancelIsDestructive classifies the cancelling of a run as destructive rather
	// than as a non-idempotent write, which is the least that it is
	// (MAP-AGNTCY 7).
	CancelIsDestructive bool
	// ReadOnly says which SRPC methods are known to read alone. nil says that none
	// are. A sender labels them so; a receiver takes a sender's label for them
	// instead of holding every call for a write. It must be safe for use by many
	// goroutines.
	ReadOnly func(method []byte) bool
}

// Mapping is AGNTCY as two peers have agreed to carry it. It is never changed.
type Mapping struct{ cfg Config }

// New checks the configuration. Errors: ErrProtocolID, ErrSurface.
func New(cfg Config) (*Mapping, error) {
	if cfg.ID < bridge.FirstExperimental || cfg.ID > bridge.LastExperimental {
		return nil, fmt.Errorf("%w: %d", ErrProtocolID, cfg.ID)
	}
	if cfg.Surface == 0 {
		cfg.Surface = Both
	}
	if cfg.Surface > Both {
		return nil, fmt.Errorf("%w: %d", ErrSurface, cfg.Surface)
	}
	return &Mapping{cfg}, nil
}

// ID is the agreed protocol id.
func (m *Mapping) ID() bridge.ProtocolID { return m.cfg.ID }

// Surface is what is carried under it.
func (m *Mapping) Surface() Surface { return m.cfg.Surface }

// Content is the content type that messages have unless they are declared otherwise.
func (m *Mapping) Content() bridge.ContentType { return content(m.cfg.Surface) }

// Carriage is how an operation crosses the link.
type Carriage uint8

// The ways of carriage.
const (
	// Unary is a request with one reply.
	Unary Carriage = iota + 1
	// Stream is a request with a stream of replies.
	Stream
	// Any is a request with either: an SRPC call is answered as its service defines
	// it.
	Any
	// OneWay is a message without a reply.
	OneWay
)

// Operation is what is known of one.
type Operation struct {
	Surface Surface
	// Effect is what it may do, at the least.
	Effect   bridge.Effect
	Carriage Carriage
}

// Lookup returns what is known of an envelope's method; known is false for one that
// neither surface has. It allocates nothing.
func (m *Mapping) Lookup(method []byte) (op Operation, known bool) {
	if row := lookupACP(method); row != nil {
		op, known = row.op, m.cfg.Surface&ACP != 0
		if row.cancels && m.cfg.CancelIsDestructive {
			op.Effect = bridge.Destructive
		}
	} else if op, known = lookupSLIM(method); known {
		known = m.cfg.Surface&SLIM != 0 && !isHosted(method) && !isDocument(method)
	}
	if !known {
		return Operation{}, false
	}
	return op, true
}

// Effect returns what a request under this method must be taken to do, whatever
// its label says (D15); of an unknown method, and of an SRPC method that
// Config.ReadOnly knows, the label alone tells. Without a label all but what ACP
// reads is destructive (MAP-AGNTCY 7).
func (m *Mapping) Effect(method []byte) (effect bridge.Effect, known bool) {
	op, known := m.Lookup(method)
	if known && m.reads(method) {
		return 0, false
	}
	return op.Effect, known
}

// reads says that an SRPC method is known to read alone.
func (m *Mapping) reads(method []byte) bool {
	if m.cfg.ReadOnly == nil {
		return false
	}
	_, _, srpc := SplitSRPC(method)
	return srpc && m.cfg.ReadOnly(method)
}

// check says why a method is not carried under our id.
func (m *Mapping) check(method []byte) error {
	switch {
	case isHosted(method):
		return ErrHosted
	case isDocument(method):
		return ErrDocument
	}
	if m.cfg.Surface == Both || len(method) == 0 {
		return nil
	}
	of := SLIM
	if _, _, _, rest := SplitACP(method); rest {
		of = ACP
	}
	if of != m.cfg.Surface {
		return ErrSurface
	}
	return nil
}

// isHosted says that a method is one of A2A or MCP, by its JSON-RPC name or as a
// call of A2A's service by SRPC.
func isHosted(method []byte) bool {
	if _, known := a2a.Lookup(method); known {
		return true
	}
	if _, known := mcp.Lookup(method); known {
		return true
	}
	return isA2AService(method)
}

// Protocol is AGNTCY as a Bridge carries it, served by h; nil only originates. A
// request for what is not carried under this id is refused with MethodUnsupported.
func (m *Mapping) Protocol(h carriage.Handler) carriage.Protocol {
	return carriage.Protocol{
		ID:       m.cfg.ID,
		Class:    carriage.ClassOpaque,
		Content:  content(m.cfg.Surface),
		Effect:   m.Effect,
		Stream:   m.streams,
		Supports: func(method []byte) bool { return m.check(method) == nil },
		Handler:  h,
	}
}

// content is the encoding of a surface's messages (MAP-AGNTCY 4).
func content(s Surface) bridge.ContentType {
	if s&ACP != 0 {
		return bridge.ContentJSON
	}
	return bridge.ContentProto
}

// streams says whether the operation may be answered by a stream: what is not known
// not to be.
func (m *Mapping) streams(method []byte) bool {
	op, known := m.Lookup(method)
	return !known || op.Carriage != Unary
}

// Request makes the call of an operation that is answered, by one reply or a
// stream: labelled by what it does, its content type declared (MAP-AGNTCY 5, 7).
// What has another encoding than its surface's gets Content and MediaType from the
// caller afterwards. payload is carried octet for octet.
//
// Errors: ErrMethod, ErrHosted, ErrDocument, ErrSurface, ErrOneWay.
func (m *Mapping) Request(method string, payload []byte) (*carriage.Call, error) {
	return m.call(method, payload, false)
}

// OneWay makes the notification of a message that is not answered, labelled and
// declared like a Request: what SLIM publishes without waiting for a reply.
func (m *Mapping) OneWay(method string, payload []byte) (*carriage.Call, error) {
	return m.call(method, payload, true)
}

func (m *Mapping) call(method string, payload []byte, oneWay bool) (*carriage.Call, error) {
	name := []byte(method)
	if len(name) == 0 || len(name) > maxMethod || !utf8.Valid(name) {
		return nil, ErrMethod
	}
	if err := m.check(name); err != nil {
		return nil, err
	}
	c := &carriage.Call{Protocol: m.cfg.ID, Content: bridge.ContentProto, Method: method, Foreign: payload}
	_, _, _, rest := SplitACP(name)
	_, _, srpc := SplitSRPC(name)
	if oneWay && (rest || srpc) {
		return nil, ErrOneWay
	}
	if rest {
		c.Content = bridge.ContentJSON
	}
	c.Label = &bridge.Label{Effect: bridge.Destructive} // BRIDGE 7: of what is not known
	if op, known := m.Lookup(name); known {
		c.Label.Effect = op.Effect
		if m.reads(name) {
			c.Label.Effect = bridge.ReadOnly
		}
	}
	return c, nil
}

// maxMethod is how long an envelope's method may be, in octets (D18).
const maxMethod = 255
