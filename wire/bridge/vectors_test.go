package bridge

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/trestle-npamp/trestle/internal/vectors"
	"github.com/trestle-npamp/trestle/wire"
)

// TestVectors runs the reference's conformance vectors for the Bridge channel
// over this package, if the environment variable TRESTLE_VECTORS names the
// directory they are in.
func TestVectors(t *testing.T) {
	type fields struct {
		FrameType   wire.FrameType
		ProtocolID  ProtocolID  `json:"protocol_id"`
		MessageKind Kind        `json:"message_kind"`
		ContentType ContentType `json:"content_type"`
		Flags       uint8
		Final       bool
		Corr        string
		Method      string
		Safety      *struct {
			Effect Effect
			Scope  string
		}
		Foreign string

		Payload string
		Match   bool
	}
	var corpus struct {
		TestGroups []struct {
			Op    string
			Tests []struct {
				TcID   int
				Result string
				In     struct {
					FrameType        wire.FrameType
					Payload          string
					Fields           fields
					RequestFrameType wire.FrameType
					RequestPayload   string
					ReplyFrameType   wire.FrameType
					ReplyPayload     string
				}
				Expected json.RawMessage
			}
		}
	}
	if !vectors.Load(t, "conformance-corpus.json", &corpus) {
		return
	}
	message := func(f *fields) Message {
		m := Message{
			Kind: f.MessageKind, Protocol: f.ProtocolID, Content: f.ContentType, Flags: f.Flags,
			Corr: unhex(t, f.Corr), Method: []byte(f.Method), Foreign: unhex(t, f.Foreign),
		}
		if f.Safety != nil {
			m.HasLabel, m.Label = true, Label{f.Safety.Effect, []byte(f.Safety.Scope)}
		}
		return m
	}
	ran := 0
	for _, g := range corpus.TestGroups {
		switch g.Op {
		case "bridge.envelope.decode", "bridge.envelope.encode", "bridge.correlate":
		default:
			continue
		}
		for _, c := range g.Tests {
			ran++
			var want fields
			if len(c.Expected) > 0 {
				if err := json.Unmarshal(c.Expected, &want); err != nil {
					t.Fatal(err)
				}
			}
			var err error
			var diff string
			switch g.Op {
			case "bridge.envelope.decode":
				var got Message
				if err = Parse(&got, c.In.FrameType, unhex(t, c.In.Payload), nil); err == nil {
					m := message(&want)
					if diff = equal(&got, &m); got.Final() != want.Final {
						diff = "final"
					}
				}
			case "bridge.envelope.encode":
				m := message(&c.In.Fields)
				var out []byte
				if out, err = m.Append(nil, nil); !bytes.Equal(out, unhex(t, want.Payload)) {
					diff = "octets"
				}
				if m.Kind.Type() != c.In.Fields.FrameType {
					diff = "frame type"
				}
			case "bridge.correlate":
				var request, reply Message
				if err = Parse(&request, c.In.RequestFrameType, unhex(t, c.In.RequestPayload), nil); err == nil {
					err = Parse(&reply, c.In.ReplyFrameType, unhex(t, c.In.ReplyPayload), nil)
				}
				if bytes.Equal(request.Corr, reply.Corr) != want.Match {
					diff = "match"
				}
			}
			if diff != "" || (err == nil) != (c.Result == "valid") {
				t.Errorf("%s #%d: %v %s", g.Op, c.TcID, err, diff)
			}
		}
	}
	if ran == 0 {
		t.Error("no vector ran")
	}
	t.Logf("%d vectors", ran)
}
