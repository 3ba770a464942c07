package agntcy

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/carriage/document"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// RecordKind is whose record is asked for.
type RecordKind uint8

// The kinds of records (MAP-AGNTCY 6.3).
const (
	OASFRecord      RecordKind = iota + 1 // of the Open Agentic Schema Framework, by name and version
	DirectoryRecord                       // of the Agent Directory, by content id
)

// The operations that ask for a record. The names are ours, since neither OASF nor the
// Agent Directory defines any for this; a space and the reference follow.
const (
	methodOASFRecord      = "oasf/getRecord"
	methodDirectoryRecord = "dir/getRecord"
)

// RecordMediaType is the encoding of records: JSON, the only one that MAP-OASF pins.
const RecordMediaType = "application/json"

// ErrRecord: a record of no known kind, or a reference that an envelope has no room
// for.
var ErrRecord = errors.New("agntcy: not a reference to a record")

// Records is the carriage of OASF and directory records as documents, by agreement of
// the two peers: under an experimental protocol id of its own, and not under that of
// ACP or SLIM (MAP-AGNTCY 6.3, MAP-OASF 3). A record crosses octet for octet, since
// its content id and its signature are over its octets. Its signature is a detached
// proof under a number by agreement too, for Sigstore's have no code point: a
// document.Receiver that is not told of it hands it over as what can't be checked.
type Records struct{ id bridge.ProtocolID }

// NewRecords checks the protocol id, which has no default. The error is ErrProtocolID.
func NewRecords(id bridge.ProtocolID) (*Records, error) {
	if id < bridge.FirstExperimental || id > bridge.LastExperimental {
		return nil, fmt.Errorf("%w: %d", ErrProtocolID, id)
	}
	return &Records{id}, nil
}

// Protocol is the records as a Bridge carries them, on the Bridge or the Discovery
// channel, served by h (such as a document.Server); nil only asks. Nothing but
// requests for records, and pushed ones, is carried under this id.
func (r *Records) Protocol(h carriage.Handler) carriage.Protocol {
	isRecord := func(method []byte) bool { _, _, ok := ParseRecord(method); return ok }
	return carriage.Protocol{
		ID:       r.id,
		Class:    carriage.ClassOpaque,
		Content:  bridge.ContentJSON,
		Effect:   func(method []byte) (bridge.Effect, bool) { return bridge.ReadOnly, isRecord(method) },
		Document: isRecord,
		Stream:   func([]byte) bool { return false },
		Supports: isRecord,
		Handler:  h,
	}
}

// Get makes the call that asks for a record, for a document.Receiver: read-only
// (MAP-OASF 7). reference is a record's name and version, or its content id. The
// error is ErrRecord.
func (r *Records) Get(kind RecordKind, reference string) (*carriage.Call, error) {
	method := methodOf(kind) + " " + reference
	if _, _, ok := ParseRecord([]byte(method)); !ok {
		return nil, ErrRecord
	}
	return &carriage.Call{Protocol: r.id, Content: bridge.ContentJSON, Method: method}, nil
}

func methodOf(kind RecordKind) string {
	switch kind {
	case OASFRecord:
		return methodOASFRecord
	case DirectoryRecord:
		return methodDirectoryRecord
	}
	return ""
}

// ParseRecord reads the method of a request for a record. reference is a view of it.
func ParseRecord(method []byte) (kind RecordKind, reference []byte, ok bool) {
	name, reference, _ := bytes.Cut(method, []byte{' '})
	switch string(name) {
	case methodOASFRecord:
		kind = OASFRecord
	case methodDirectoryRecord:
		kind = DirectoryRecord
	}
	ok = kind != 0 && len(reference) > 0 && len(method) <= maxMethod && utf8.Valid(method)
	if !ok {
		return 0, nil, false
	}
	return kind, reference, true
}

// Record makes the document set of a record. Its digest is SHA-256, as in a content
// id. id names it in the set: its reference, say. The error is document.ErrSet.
func Record(id string, record []byte, proofs ...document.Proof) (*document.Set, error) {
	return document.New(id, RecordMediaType, bridge.DigestSHA256, record, proofs...)
}
