package agntcy_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/carriage/discovery"
	"github.com/trestle-npamp/trestle/carriage/document"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/mapping/agntcy"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

const (
	recordsID = bridge.FirstExperimental + 10
	sigstore  = 0xF001 // by agreement
)

// OASF and directory records cross as documents with their detached signature, octet
// for octet, on either channel, and never under the id of ACP or SLIM (MAP-AGNTCY 6.3).
func TestMAPAGNTCY6_3_RecordsAsDocuments(t *testing.T) {
	record := []byte("{\"schema_version\":\"1.0.0\", \"name\":\"x\\u002fy\",\r\n \"skills\":[ ], \"v\":1.0}\n")
	bundle := []byte("{\"mediaType\":\"application/vnd.dev.sigstore.bundle.v0.3+json\"}\n")
	records, err := agntcy.NewRecords(recordsID)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(map[agntcy.RecordKind]string)
	serve := &document.Server{Get: func(r *carriage.Request) (*document.Set, error) {
		kind, reference, ok := agntcy.ParseRecord(r.Method())
		if !ok || r.Effect() != bridge.ReadOnly {
			t.Errorf("request %q, %v", r.Method(), r.Effect())
		}
		asked[kind] = string(reference)
		return agntcy.Record(string(reference), record, document.Proof{Alg: sigstore, Octets: bundle})
	}}
	for _, ch := range []wire.Channel{wire.ChannelBridge, wire.ChannelDiscovery} {
		t.Run(ch.String(), func(t *testing.T) {
			side := func(h carriage.Handler) (*carriage.Bridge, assoc.Options) {
				b := carriage.New(carriage.Config{
					Protocols: []carriage.Protocol{records.Protocol(h)}, Channel: ch, Tags: &bridge.Tags{DocumentBinding: 0x40},
				})
				o := assoc.Options{Handlers: []assoc.ChannelHandler{b}}
				if ch == wire.ChannelDiscovery {
					o.Handlers[0] = discovery.New(discovery.Config{Documents: b.Attach})
				}
				o.Conn.Protocols = []uint8{uint8(recordsID)}
				o.Conn.PingInterval = -1
				return b, o
			}
			b, client := side(nil)
			_, server := side(serve)
			pair := nptest.NewPair(t, nptest.Options{Client: client, Server: server})
			pair.Settle()
			receiver := document.NewReceiver(document.Config{Known: func(alg uint16) bool { return alg == sigstore }})
			for kind, reference := range map[agntcy.RecordKind]string{agntcy.OASFRecord: "x/y 1.2.0", agntcy.DirectoryRecord: "baeareihd"} {
				call, err := records.Get(kind, reference)
				if err != nil {
					t.Fatal(err)
				}
				var got *document.Set
				if _, err := receiver.Start(b, pair.Client.Association, call, func(s *document.Set, reply *carriage.Reply) {
					if got = s; s == nil {
						t.Errorf("no set: %v", document.Err(reply))
					}
				}); err != nil {
					t.Fatal(err)
				}
				pair.Run(time.Second)
				if got == nil {
					t.Fatal("nothing came")
				}
				sum := sha256.Sum256(record)
				if !bytes.Equal(got.Document, record) || got.MediaType != "application/json" || got.Alg != bridge.DigestSHA256 || !bytes.Equal(got.Digest, sum[:]) {
					t.Errorf("record %q, %q, %v", got.Document, got.MediaType, got.Alg)
				}
				if len(got.Proofs) != 1 || got.Proofs[0].Alg != sigstore || got.Proofs[0].Err != nil || !bytes.Equal(got.Proofs[0].Octets, bundle) {
					t.Errorf("proofs %+v", got.Proofs)
				}
				if asked[kind] != reference {
					t.Errorf("asked for %q, want %q", asked[kind], reference)
				}
			}
		})
	}
	// The id of ACP and SLIM carries no records.
	m, err := agntcy.New(agntcy.Config{ID: bridge.FirstExperimental})
	if err != nil {
		t.Fatal(err)
	}
	if p := m.Protocol(nil); p.Document != nil {
		t.Error("the opaque carriage of ACP and SLIM has documents")
	}
}

// What is no request for a record is not carried under the records' id.
func TestMAPAGNTCY6_3_NothingButRecords(t *testing.T) {
	records, err := agntcy.NewRecords(recordsID)
	if err != nil {
		t.Fatal(err)
	}
	p := records.Protocol(nil)
	for _, method := range []string{"", "oasf/getRecord", "oasf/getRecord ", "dir/getRecords x", "POST /runs", "oasf/getRecord \xff", "oasf/getRecord " + strings.Repeat("x", 241)} {
		if p.Supports([]byte(method)) || p.Document([]byte(method)) {
			t.Errorf("%q is carried", method)
		}
		if _, known := p.Effect([]byte(method)); known {
			t.Errorf("%q has a known effect", method)
		}
	}
	if m := []byte("oasf/getRecord " + strings.Repeat("x", 240)); !p.Supports(m) {
		t.Error("the longest reference is not carried")
	}
	for _, c := range []struct {
		kind      agntcy.RecordKind
		reference string
	}{{0, "x"}, {agntcy.OASFRecord, ""}, {3, "x"}, {agntcy.OASFRecord, "\xff"}, {agntcy.DirectoryRecord, strings.Repeat("x", 242)}} {
		if call, err := records.Get(c.kind, c.reference); call != nil || err != agntcy.ErrRecord {
			t.Errorf("%v %q: %v, %v", c.kind, c.reference, call, err)
		}
	}
	for _, id := range []bridge.ProtocolID{0, bridge.ProtocolA2A, 0x0F, 0x80} {
		if _, err := agntcy.NewRecords(id); !errors.Is(err, agntcy.ErrProtocolID) {
			t.Errorf("id %d: %v", id, err)
		}
	}
}
