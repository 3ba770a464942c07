package bridge

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/wire"
)

// unhex decodes hexadecimal digits; spaces are for the reader, and what stands
// in quotes is text.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	var out []byte
	for i, part := range strings.Split(s, `"`) {
		if i%2 == 1 {
			out = append(out, part...)
			continue
		}
		b, err := hex.DecodeString(strings.ReplaceAll(part, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b...)
	}
	return out
}

// equal reports in which field two messages differ, and "" if in none.
func equal(a, b *Message) string {
	for _, f := range []struct {
		name string
		a, b any
	}{
		{"kind", a.Kind, b.Kind},
		{"protocol", a.Protocol, b.Protocol},
		{"content", a.Content, b.Content},
		{"flags", a.Flags, b.Flags},
		{"has label", a.HasLabel, b.HasLabel},
		{"has stream", a.HasStream, b.HasStream},
		{"transport", a.Transport, b.Transport},
		{"effect", a.Label.Effect, b.Label.Effect},
		{"stream", a.Stream, b.Stream},
	} {
		if f.a != f.b {
			return fmt.Sprintf("%s: %v and %v", f.name, f.a, f.b)
		}
	}
	for _, f := range []struct {
		name string
		a, b []byte
	}{
		{"corr", a.Corr, b.Corr},
		{"method", a.Method, b.Method},
		{"scope", a.Label.Scope, b.Label.Scope},
		{"media type", a.MediaType, b.MediaType},
		{"binding", a.Binding, b.Binding},
		{"metadata", a.Metadata, b.Metadata},
		{"foreign", a.Foreign, b.Foreign},
	} {
		if !bytes.Equal(f.a, f.b) {
			return fmt.Sprintf("%s: %x and %x", f.name, f.a, f.b)
		}
	}
	return ""
}

// Numbers for the features that have none, as two peers might configure them.
var testTags = &Tags{
	OpaqueContentType: 0x0040,
	DocumentBinding:   0x0041,
	EdgeMetadata:      0x0042,
	OpaqueContent:     0x80,
}

// A proof's binding: document "d1", SHA-256, third of three proofs, Ed25519.
const proofBinding = `02 02"d1" 00 0004 20 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f 03 02 0807`

func TestMessageLayout(t *testing.T) {
	tests := []struct {
		name string
		typ  wire.FrameType
		tags *Tags
		hex  string
		want Message
	}{
		{
			"request with label", TypeRequest, nil,
			`0010 0015 02 01 01 00 03"a-1" 0c"message/send" 0013 0006 02 04"mail" "{}"`,
			Message{
				Kind: KindRequest, Protocol: ProtocolA2A, Content: ContentJSON,
				Corr: []byte("a-1"), Method: []byte("message/send"),
				HasLabel: true, Label: Label{NonIdempotentWrite, []byte("mail")},
				Foreign: []byte("{}"),
			},
		},
		{
			"response", TypeResponse, nil,
			`0010 0007 01 02 02 00 01"7" 00 "octets"`,
			Message{Kind: KindResponse, Protocol: ProtocolMCP, Content: ContentCBOR, Corr: []byte("7"), Foreign: []byte("octets")},
		},
		{
			"error is kind 4", TypeError, nil,
			`0010 0007 01 04 01 00 01"7" 00 7b7d`,
			Message{Kind: KindError, Protocol: ProtocolMCP, Content: ContentJSON, Corr: []byte("7"), Foreign: []byte("{}")},
		},
		{
			"transport error", TypeError, nil,
			`0010 0007 01 04 01 00 01"7" 00 04 04"gone"`,
			Message{
				Kind: KindError, Protocol: ProtocolMCP, Content: ContentJSON, Corr: []byte("7"),
				Transport: true, Foreign: []byte("\x04\x04gone"),
			},
		},
		{
			"notification is kind 3", TypeNotify, nil,
			`0010 000a 01 03 01 00 00 04"ping" 7b7d`,
			Message{Kind: KindNotify, Protocol: ProtocolMCP, Content: ContentJSON, Method: []byte("ping"), Foreign: []byte("{}")},
		},
		{
			"stream data", TypeStreamData, nil,
			`0010 0007 10 05 03 00 01 ff 00 0011 000b 01 00 01 0000000000000102 "chunk"`,
			Message{
				Kind: KindData, Protocol: 0x10, Content: ContentProto, Corr: []byte{0xFF},
				HasStream: true, Stream: StreamControl{ControlData, StreamResumable, 0x102},
				Foreign: []byte("chunk"),
			},
		},
		{
			"stream end, cancelling, with no octets", TypeStreamEnd, nil,
			`0010 0007 80 06 01 01 01 09 00 0011 000b 01 02 00 ffffffffffffffff`,
			Message{
				Kind: KindEnd, Protocol: 0x80, Content: ContentJSON, Flags: FlagFinal, Corr: []byte{9},
				HasStream: true, Stream: StreamControl{ControlCancel, 0, 1<<64 - 1},
			},
		},
		{
			"reserved flags are ignored", TypeRequest, nil,
			`0010 0007 01 01 01 fe 01 09 00 0011 000b 01 01 fc 0000000000000000`,
			Message{
				Kind: KindRequest, Protocol: ProtocolMCP, Content: ContentJSON, Flags: 0xFE, Corr: []byte{9},
				HasStream: true, Stream: StreamControl{ControlResume, 0xFC, 0},
			},
		},
		{
			"everything at once", TypeResponse, testTags,
			`0010 0007 11 02 80 00 01 05 00 0011 000b 01 00 00 0000000000000001 0040 0009"text/html" 0013 0002 00 00 0041 002c` + proofBinding + `0042 0002"ab" "<p>"`,
			Message{
				Kind: KindResponse, Protocol: 0x11, Content: 0x80, Corr: []byte{5},
				HasStream: true, Stream: StreamControl{ControlData, 0, 1},
				MediaType: []byte("text/html"), HasLabel: true, Binding: unhex(t, proofBinding),
				Metadata: []byte("ab"), Foreign: []byte("<p>"),
			},
		},
		{
			"longest fields", TypeRequest, nil,
			`0010 0204 01 01 01 00 ff"` + strings.Repeat("c", 255) + `" ff"` + strings.Repeat("m", 255) + `" 0013 0101 03 ff"` + strings.Repeat("s", 255) + `"`,
			Message{
				Kind: KindRequest, Protocol: 1, Content: 1, Corr: bytes.Repeat([]byte("c"), 255), Method: bytes.Repeat([]byte("m"), 255),
				HasLabel: true, Label: Label{Destructive, bytes.Repeat([]byte("s"), 255)},
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			payload := unhex(t, tt.hex)
			var got Message
			if err := Parse(&got, tt.typ, payload, tt.tags); err != nil {
				t.Fatal(err)
			}
			if diff := equal(&got, &tt.want); diff != "" {
				t.Errorf("parsed %s", diff)
			}
			for name, v := range map[string][]byte{
				"corr": got.Corr, "method": got.Method, "scope": got.Label.Scope, "foreign": got.Foreign,
				"media type": got.MediaType, "binding": got.Binding, "metadata": got.Metadata,
			} {
				if cap(v) != len(v) {
					t.Errorf("%s: view of %d octets can grow to %d", name, len(v), cap(v))
				}
			}
			out, err := tt.want.Append([]byte("x"), tt.tags)
			if err != nil || !bytes.Equal(out[1:], payload) {
				t.Errorf("appended %x, %v; want %x", out[1:], err, payload)
			}
			if tt.want.Size() != len(payload) {
				t.Errorf("size %d, want %d", tt.want.Size(), len(payload))
			}
			prefix, err := tt.want.AppendPrefix(nil, tt.tags)
			if err != nil || !bytes.Equal(append(prefix, tt.want.Foreign...), payload) || len(prefix) != tt.want.PrefixSize() {
				t.Errorf("prefix %x, %v, size %d", prefix, err, tt.want.PrefixSize())
			}
			if kind, ok := KindOf(tt.typ); !ok || kind != got.Kind || kind.Type() != tt.typ {
				t.Errorf("kind %v of type %v", kind, tt.typ)
			}
			if got.Final() != (tt.want.Flags&1 == 1) {
				t.Error("final", got.Final())
			}
		})
	}
}

func TestRejects(t *testing.T) {
	const env = `0010 0008 02 01 01 00 02"c1" 00` // a request's envelope, well formed
	tests := []struct {
		name string
		typ  wire.FrameType
		hex  string
		want error
		corr string // what must be readable all the same
	}{
		// BRIDGE 4: the envelope is required, first, whole.
		{"nothing", TypeRequest, ``, ErrNoEnvelope, ""},
		{"one octet", TypeRequest, `00`, ErrNoEnvelope, ""},
		{"foreign message only", TypeRequest, `"{}"`, ErrNoEnvelope, ""},
		{"label before envelope", TypeRequest, `0013 0002 00 00` + env, ErrNoEnvelope, ""},
		{"envelope type alone", TypeRequest, `0010`, ErrEnvelopeTruncated, ""},
		{"empty envelope", TypeRequest, `0010 0000 "{}"`, ErrEnvelopeTruncated, ""},
		{"envelope ends before corr_len", TypeRequest, `0010 0004 02 01 01 00 "{}"`, ErrEnvelopeTruncated, ""},
		{"envelope ends in corr", TypeRequest, `0010 0007 02 01 01 00 03"c1" "{}"`, ErrEnvelopeTruncated, ""},
		{"envelope ends before method_len", TypeRequest, `0010 0007 02 01 01 00 02"c1" "{}"`, ErrEnvelopeTruncated, "c1"},
		{"envelope ends in method", TypeRequest, `0010 000a 02 01 01 00 02"c1" 03"me" "{}"`, ErrEnvelopeTruncated, "c1"},
		{"envelope longer than payload", TypeRequest, `0010 0009 02 01 01 00 02"c1" 00`, ErrEnvelopeTruncated, "c1"},
		{"envelope longer than payload, in method", TypeRequest, `0010 000b 02 01 01 00 02"c1" 03"me"`, ErrEnvelopeTruncated, "c1"},
		{"envelope longer than payload, in corr", TypeRequest, `0010 0009 02 01 01 00 03"c1"`, ErrEnvelopeTruncated, ""},
		{"octets left over in envelope", TypeRequest, `0010 0009 02 01 01 00 02"c1" 00 00`, ErrEnvelopeTrailing, "c1"},
		// BRIDGE 4: the kind is the frame type's.
		{"response kind on request", TypeRequest, `0010 0008 02 02 01 00 02"c1" 00`, ErrKindMismatch, "c1"},
		{"kind 3 on error frame", TypeError, `0010 0008 02 03 01 00 02"c1" 00`, ErrKindMismatch, "c1"},
		{"kind 4 on notify frame", TypeNotify, `0010 0006 02 04 01 00 00 00`, ErrKindMismatch, ""},
		{"kind 0", TypeRequest, `0010 0008 02 00 01 00 02"c1" 00`, ErrKindMismatch, "c1"},
		{"kind 7", TypeStreamEnd, `0010 0008 02 07 01 00 02"c1" 00`, ErrKindMismatch, "c1"},
		// NPAMP-REG 4.
		{"protocol 0", TypeRequest, `0010 0008 00 01 01 00 02"c1" 00`, ErrProtocolZero, "c1"},
		// BRIDGE 5.
		{"request without corr", TypeRequest, `0010 0006 02 01 01 00 00 00`, ErrCorrMissing, ""},
		{"response without corr", TypeResponse, `0010 0006 02 02 01 00 00 00`, ErrCorrMissing, ""},
		{"error without corr", TypeError, `0010 0006 02 04 01 00 00 00`, ErrCorrMissing, ""},
		{"data without corr", TypeStreamData, `0010 0006 02 05 01 00 00 00`, ErrCorrMissing, ""},
		{"end without corr", TypeStreamEnd, `0010 0006 02 06 01 01 00 00`, ErrCorrMissing, ""},
		{"corr on notification", TypeNotify, `0010 0008 02 03 01 00 02"c1" 00`, ErrCorrOnNotify, "c1"},
		// BRIDGE 4: method and content type.
		{"method not UTF-8", TypeRequest, `0010 000a 02 01 01 00 02"c1" 02 c3 28`, ErrMethodUTF8, "c1"},
		{"method a surrogate", TypeRequest, `0010 000b 02 01 01 00 02"c1" 03 ed a0 80`, ErrMethodUTF8, "c1"},
		{"content type 0", TypeRequest, `0010 0008 02 01 00 00 02"c1" 00`, ErrContentType, "c1"},
		{"content type 4", TypeRequest, `0010 0008 02 01 04 00 02"c1" 00`, ErrContentType, "c1"},
		{"content type 0x80 not configured", TypeRequest, `0010 0008 02 01 80 00 02"c1" 00`, ErrContentType, "c1"},
		// BRIDGE 7: the label exactly fills its TLV.
		{"empty label", TypeRequest, env + `0013 0000`, ErrLabelTruncated, "c1"},
		{"label without scope_len", TypeRequest, env + `0013 0001 00`, ErrLabelTruncated, "c1"},
		{"label ends in scope", TypeRequest, env + `0013 0003 02 05"f" "{}"`, ErrLabelTruncated, "c1"},
		{"octets left over in label", TypeRequest, env + `0013 0004 02 01"fs" "{}"`, ErrLabelTrailing, "c1"},
		{"effect 4", TypeRequest, env + `0013 0002 04 00`, ErrEffect, "c1"},
		// CC-STREAM 5.2.
		{"stream control of 10 octets", TypeRequest, env + `0011 000a 01 00 00 00000000000000`, ErrStreamLength, "c1"},
		{"stream control of 12 octets", TypeRequest, env + `0011 000c 01 00 00 000000000000000000`, ErrStreamLength, "c1"},
		{"empty stream control", TypeRequest, env + `0011 0000`, ErrStreamLength, "c1"},
		{"stream control version 0", TypeRequest, env + `0011 000b 00 00 00 0000000000000001`, ErrStreamVersion, "c1"},
		{"stream control version 2", TypeRequest, env + `0011 000b 02 00 00 0000000000000001`, ErrStreamVersion, "c1"},
		{"stream control 3", TypeRequest, env + `0011 000b 01 03 00 0000000000000001`, ErrStreamControl, "c1"},
		// D9: a known TLV that breaks off is no foreign message.
		{"label longer than payload", TypeRequest, env + `0013 0003 00 00`, ErrTLVTruncated, "c1"},
		{"label's type and nothing more", TypeRequest, env + `0013`, ErrTLVTruncated, "c1"},
		{"stream control's length cut", TypeRequest, env + `0011 00`, ErrTLVTruncated, "c1"},
		{"stream control longer than payload", TypeRequest, env + `0011 000b 01 00`, ErrTLVTruncated, "c1"},
		{"second TLV breaks off", TypeRequest, env + `0013 0002 00 00 0011 ffff`, ErrTLVTruncated, "c1"},
	}
	seen := map[error]bool{}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := Message{Method: []byte("stale"), HasLabel: true, Foreign: []byte("stale")}
			err := Parse(&m, tt.typ, unhex(t, tt.hex), nil)
			if err != tt.want {
				t.Fatalf("%v, want %v", err, tt.want)
			}
			if !errors.Is(err, ErrMalformed) || CodeOf(err) != CodeEnvelopeMalformed {
				t.Errorf("not of the class: code %v", CodeOf(err))
			}
			if string(m.Corr) != tt.corr {
				t.Errorf("corr %q, want %q", m.Corr, tt.corr)
			}
			if kind, _ := KindOf(tt.typ); m.Kind != kind || m.Foreign != nil {
				t.Errorf("%v, foreign %q", m.Kind, m.Foreign)
			}
			if tt.corr != "" && tt.want != ErrProtocolZero && m.Protocol != ProtocolA2A {
				t.Errorf("protocol %v", m.Protocol)
			}
		})
		seen[tt.want] = true
	}
	for err := range seen {
		for other := range seen {
			if err != other && (errors.Is(err, other) || err.Error() == other.Error()) {
				t.Errorf("%v is not distinct from %v", err, other)
			}
		}
	}
}

func TestRejectsWithConfiguredTags(t *testing.T) {
	const (
		plain  = `0010 0008 11 02 01 00 02"c1" 00`
		opaque = `0010 0008 11 02 80 00 02"c1" 00`
	)
	tests := []struct {
		name string
		hex  string
		want error
		code Code
	}{
		// CC-OPAQUE 4.2, 4.3.
		{"discriminator without TLV", opaque + `"x"`, ErrMediaTypeMissing, CodeEnvelopeMalformed},
		{"TLV beside enumerated type", plain + `0040 0009"text/html"`, ErrMediaTypeAmbiguous, CodeEnvelopeMalformed},
		{"empty media type", opaque + `0040 0000`, ErrMediaType, CodeEnvelopeMalformed},
		{"NUL in media type", opaque + `0040 0004"a/b" 00`, ErrMediaType, CodeEnvelopeMalformed},
		{"no slash", opaque + `0040 0004"text"`, ErrMediaType, CodeEnvelopeMalformed},
		{"media type longer than payload", opaque + `0040 0004"a/b"`, ErrTLVTruncated, CodeEnvelopeMalformed},
		{"unknown content type", `0010 0008 11 02 81 00 02"c1" 00`, ErrContentType, CodeEnvelopeMalformed},
		{"empty metadata", plain + `0042 0000`, ErrMetadataEmpty, CodeEnvelopeMalformed},
		{"metadata breaks off", plain + `0042 0001`, ErrTLVTruncated, CodeEnvelopeMalformed},
		// CC-DOC 6.2; every kind of fault is in TestBindingRejects.
		{"empty binding", plain + `0041 0000`, ErrBindingTruncated, CodeBindingMalformed},
		{"binding of part 3", plain + `0041 002c 03` + proofBinding[2:], ErrBindingPart, CodeBindingMalformed},
		{"binding longer than payload", plain + `0041 0020 01`, ErrTLVTruncated, CodeEnvelopeMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var m Message
			err := Parse(&m, TypeResponse, unhex(t, tt.hex), testTags)
			if err != tt.want || !errors.Is(err, ErrMalformed) || CodeOf(err) != tt.code {
				t.Errorf("%v, code %v; want %v, %v", err, CodeOf(err), tt.want, tt.code)
			}
			if string(m.Corr) != "c1" {
				t.Errorf("corr %q", m.Corr)
			}
		})
	}
}

func TestOtherFrameTypesAreNotAnswered(t *testing.T) {
	for _, typ := range []wire.FrameType{0, wire.TypePing, wire.TypeError, 0x00FF, 0x0106, 0xFFFF} {
		var m Message
		err := Parse(&m, typ, unhex(t, `0010 0007 02 01 01 00 01"c" 00`), nil)
		if err != ErrFrameType || errors.Is(err, ErrMalformed) || CodeOf(err) != 0 || m.Kind != 0 {
			t.Errorf("%v: %v, %v", typ, err, m.Kind)
		}
		if _, ok := KindOf(typ); ok {
			t.Errorf("%v has a kind", typ)
		}
	}
}

// D9: where the foreign message begins.
func TestForeignMessageBegins(t *testing.T) {
	const (
		a2a    = `0010 0007 02 05 01 00 01"c" 00`
		opaque = `0010 0007 10 05 01 00 01"c" 00`
		label  = `0013 0002 01 00`
		stream = `0011 000b 01 00 00 0000000000000007`
	)
	tests := []struct {
		name    string
		tags    *Tags
		hex     string
		foreign string
		label   bool
		stream  bool
	}{
		{"at once", nil, a2a + `"{}"`, `"{}"`, false, false},
		{"empty", nil, a2a, ``, false, false},
		{"after label", nil, a2a + label + `"{}"`, `"{}"`, true, false},
		{"canonical order", nil, opaque + stream + label + `"x"`, `"x"`, true, true},
		{"other order", nil, opaque + label + stream + `"x"`, `"x"`, true, true},
		{"second label", nil, opaque + label + label, label, true, false},
		{"second label, malformed", nil, opaque + label + `0013 0000`, `0013 0000`, true, false},
		{"second label, truncated", nil, opaque + label + `0013`, `0013`, true, false},
		{"second stream control", nil, opaque + stream + label + stream, stream, true, true},
		{"second label behind JSON envelope", nil, a2a + label + label, label, true, false},
		{"second envelope", nil, opaque + opaque, opaque, false, false},
		{"second envelope behind JSON envelope", nil, a2a + a2a, a2a, false, false},
		{"unknown TLV behind opaque envelope", nil, opaque + `0033 0001 aa` + label, `0033 0001 aa` + label, false, false},
		{"unknown TLV behind JSON envelope", nil, a2a + `0033 0001 aa` + label + `"{}"`, `"{}"`, true, false},
		{"several unknown ones, one of them twice", nil, a2a + `0033 0000 0012 0002 0000` + label + `0033 0000 "{}"`, `"{}"`, true, false},
		{"type 0", nil, a2a + `0000 0000 "{}"`, `"{}"`, false, false},
		{"type 0x00ff", nil, a2a + `00ff 0000 "{}"`, `"{}"`, false, false},
		{"type 0x0100", nil, a2a + `0100 0000`, `0100 0000`, false, false},
		{"type 0x8033", nil, a2a + `8033 0000`, `8033 0000`, false, false},
		{"unknown TLV breaks off", nil, a2a + `0033 0005 aa`, `0033 0005 aa`, false, false},
		{"half a TLV header", nil, a2a + `0033 00`, `0033 00`, false, false},
		{"single zero octet", nil, a2a + `00`, `00`, false, false},
		{"configured type without configuration", nil, opaque + `0042 0001 aa`, `0042 0001 aa`, false, false},
		{"configured type without configuration, JSON", nil, a2a + `0042 0001 aa "{}"`, `"{}"`, false, false},
		{"configured type", testTags, opaque + `0042 0001 aa "x"`, `"x"`, false, false},
		{"configured type twice", testTags, a2a + `0042 0001 aa 0042 0001 bb`, `0042 0001 bb`, false, false},
		{"MCP is JSON", nil, `0010 0007 01 05 01 00 01"c" 00 0033 0000 "{}"`, `"{}"`, false, false},
		{"HTTP is not", nil, `0010 0007 03 05 02 00 01"c" 00 0033 0000 "{}"`, `0033 0000 "{}"`, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var m Message
			if err := Parse(&m, TypeStreamData, unhex(t, tt.hex), tt.tags); err != nil {
				t.Fatal(err)
			}
			if want := unhex(t, tt.foreign); !bytes.Equal(m.Foreign, want) || m.HasLabel != tt.label || m.HasStream != tt.stream {
				t.Errorf("foreign %x, label %v, stream %v; want %x, %v, %v", m.Foreign, m.HasLabel, m.HasStream, want, tt.label, tt.stream)
			}
		})
	}
}

// D9: what its receiver would misread is labelled where that settles it, and
// otherwise refused.
func TestAmbiguousForeignOctets(t *testing.T) {
	data := func(p ProtocolID, foreign string) Message {
		return Message{Kind: KindData, Protocol: p, Content: ContentJSON, Corr: []byte("c"), Foreign: unhex(t, foreign)}
	}
	with := func(m Message, f func(*Message)) Message {
		f(&m)
		return m
	}
	const stream = `0011 000b 01 00 00 0000000000000007`
	tests := []struct {
		name    string
		tags    *Tags
		m       Message
		want    error
		labeled bool
	}{
		{"JSON", nil, data(ProtocolA2A, `"{}"`), nil, false},
		{"empty", nil, data(0x10, ``), nil, false},
		{"one zero octet", nil, data(0x10, `00`), nil, false},
		{"like a label", nil, data(0x10, `0013 0002 00 00`), nil, true},
		{"like the start of a label", nil, data(0x10, `0013`), nil, true},
		{"like a malformed label", nil, data(0x10, `0013 0001 09`), nil, true},
		{"like a label behind JSON envelope", nil, data(ProtocolMCP, `0013 0002 00 00`), nil, true},
		{"like a label behind a label", nil, with(data(0x10, `0013 0002 00 00`), func(m *Message) { m.HasLabel = true }), nil, false},
		{"like a stream control", nil, data(0x10, stream), ErrAmbiguous, false},
		{"like the start of a stream control", nil, data(0x10, `0011`), ErrAmbiguous, false},
		{"like a malformed stream control", nil, data(0x10, `0011 0000`), ErrAmbiguous, false},
		{"like a stream control behind one", nil, with(data(0x10, stream), func(m *Message) { m.HasStream = true }), nil, false},
		{"like an envelope", nil, data(0x10, `0010 0007`), nil, false},
		{"like an envelope behind JSON envelope", nil, data(ProtocolA2A, `0010 0000`), nil, false},
		{"like an unknown TLV", nil, data(0x10, `0033 0000`), nil, false},
		{"like an unknown TLV behind JSON envelope", nil, data(ProtocolA2A, `0033 0000`), ErrAmbiguous, false},
		{"like a broken unknown TLV behind JSON envelope", nil, data(ProtocolA2A, `0033 0001`), nil, false},
		{"like a configured TLV, not configured", nil, data(0x10, `0041`), nil, false},
		{"like a configured TLV", testTags, data(0x10, `0041`), ErrAmbiguous, false},
		{"like a configured TLV behind one", testTags, with(data(0x10, `0042 0000`), func(m *Message) { m.Metadata = []byte("m") }), nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, err := tt.m.Append([]byte("x"), tt.tags)
			if !errors.Is(err, tt.want) || tt.want == nil && err != nil {
				t.Fatalf("%v, want %v", err, tt.want)
			}
			if _, perr := tt.m.AppendPrefix(nil, tt.tags); perr != err {
				t.Errorf("prefix: %v", perr)
			}
			if err != nil {
				if string(out) != "x" || CodeOf(err) != CodeNotDelivered || errors.Is(err, ErrMalformed) {
					t.Errorf("%x, code %v", out, CodeOf(err))
				}
				return
			}
			if len(out)-1 != tt.m.Size() {
				t.Errorf("%d octets, size %d", len(out)-1, tt.m.Size())
			}
			var got Message
			if err := Parse(&got, TypeStreamData, out[1:], tt.tags); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Foreign, tt.m.Foreign) || got.HasLabel != (tt.labeled || tt.m.HasLabel) {
				t.Errorf("read %x, label %v", got.Foreign, got.HasLabel)
			}
		})
	}
}

// BRIDGE 7: a label that we have to make up must not make anything look safer
// than its absence did.
func TestMadeUpLabelIsFailSafe(t *testing.T) {
	for kind, want := range map[Kind]Effect{
		KindRequest: Destructive, KindNotify: Destructive,
		KindResponse: ReadOnly, KindError: ReadOnly, KindData: ReadOnly, KindEnd: ReadOnly,
	} {
		m := Message{Kind: kind, Protocol: 0x10, Content: ContentJSON, Corr: []byte("c"), Foreign: []byte{0, 0x13, 0}}
		if kind == KindNotify {
			m.Corr = nil
		}
		out, err := m.Append(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got Message
		if err := Parse(&got, kind.Type(), out, nil); err != nil {
			t.Fatal(err)
		}
		if !got.HasLabel || got.Label.Effect != want || len(got.Label.Scope) != 0 {
			t.Errorf("%v: label %v, %v", kind, got.HasLabel, got.Label)
		}
		if m.HasLabel {
			t.Error("the message itself changed")
		}
	}
}

// D18, and all else that Parse would reject: what we would send is held to it.
func TestAppendRefuses(t *testing.T) {
	tests := []struct {
		name string
		f    func(*Message)
		tags *Tags
		want error
	}{
		{"kind 0", func(m *Message) { m.Kind = 0 }, nil, ErrKind},
		{"kind 7", func(m *Message) { m.Kind = 7 }, nil, ErrKind},
		{"protocol 0", func(m *Message) { m.Protocol = 0 }, nil, ErrProtocolZero},
		{"content type 0", func(m *Message) { m.Content = 0 }, testTags, ErrContentType},
		{"content type 4", func(m *Message) { m.Content = 4 }, testTags, ErrContentType},
		{"no corr", func(m *Message) { m.Corr = nil }, nil, ErrCorrMissing},
		{"corr on notification", func(m *Message) { m.Kind = KindNotify }, nil, ErrCorrOnNotify},
		{"corr of 256 octets", func(m *Message) { m.Corr = make([]byte, 256) }, nil, ErrCorrTooLong},
		{"method of 256 octets", func(m *Message) { m.Method = make([]byte, 256) }, nil, ErrMethodTooLong},
		{"method not UTF-8", func(m *Message) { m.Method = []byte{0xFF} }, nil, ErrMethodUTF8},
		{"effect 4", func(m *Message) { m.HasLabel, m.Label.Effect = true, 4 }, nil, ErrEffect},
		{"scope of 256 octets", func(m *Message) { m.HasLabel, m.Label.Scope = true, make([]byte, 256) }, nil, ErrScopeTooLong},
		{"control 3", func(m *Message) { m.HasStream, m.Stream.Control = true, 3 }, nil, ErrStreamControl},
		{"media type off", func(m *Message) { m.MediaType = []byte("a/b") }, nil, ErrTagOff},
		{"media type beside enumerated type", func(m *Message) { m.MediaType = []byte("a/b") }, testTags, ErrMediaTypeAmbiguous},
		{"discriminator without media type", func(m *Message) { m.Content = 0x80 }, testTags, ErrMediaTypeMissing},
		{"bad media type", func(m *Message) { m.Content, m.MediaType = 0x80, []byte("ab") }, testTags, ErrMediaType},
		{"media type too long", func(m *Message) {
			m.Content, m.MediaType = 0x80, append([]byte("a/"), bytes.Repeat([]byte("b"), 65534)...)
		}, testTags, ErrValueTooLong},
		{"binding off", func(m *Message) { m.Binding = unhex(t, proofBinding) }, nil, ErrTagOff},
		{"bad binding", func(m *Message) { m.Binding = []byte{1} }, testTags, ErrBindingTruncated},
		{"metadata off", func(m *Message) { m.Metadata = []byte("m") }, &Tags{DocumentBinding: 0x41}, ErrTagOff},
		{"metadata too long", func(m *Message) { m.Metadata = make([]byte, 65536) }, testTags, ErrValueTooLong},
		{"foreign error like a transport error", func(m *Message) { m.Kind, m.Foreign = KindError, []byte{4, 0} }, nil, ErrAmbiguous},
		{"transport error with an unknown code", func(m *Message) { m.Kind, m.Transport, m.Foreign = KindError, true, []byte{7, 0} }, nil, ErrNotTransport},
		{"transport error with another length", func(m *Message) { m.Kind, m.Transport, m.Foreign = KindError, true, []byte{4, 1} }, nil, ErrNotTransport},
		{"transport error in a response", func(m *Message) { m.Kind, m.Transport, m.Foreign = KindResponse, true, []byte{4, 0} }, nil, ErrNotTransport},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := Message{Kind: KindRequest, Protocol: 1, Content: 1, Corr: []byte("c"), Foreign: []byte("{}")}
			if out, err := m.Append(nil, tt.tags); err != nil || len(out) == 0 {
				t.Fatal("unchanged message:", err)
			}
			tt.f(&m)
			out, err := m.Append([]byte("x"), tt.tags)
			if err != tt.want || string(out) != "x" {
				t.Errorf("%x, %v; want %v", out, err, tt.want)
			}
			if CodeOf(err) == 0 {
				t.Error("no code for", err)
			}
		})
	}
}

func TestMissingLabel(t *testing.T) {
	m := Message{Label: Label{Effect: ReadOnly}}
	if m.EffectOr(Destructive) != Destructive {
		t.Error("a missing label counts as the caller says")
	}
	m.HasLabel = true
	if m.EffectOr(Destructive) != ReadOnly {
		t.Error("a present label counts")
	}
}

// FuzzParse: whatever is accepted can be sent on as it is, views stay inside the
// payload, and a readable correlation id is told even of a rejected message.
func FuzzParse(f *testing.F) {
	for _, s := range []struct {
		typ  wire.FrameType
		hex  string
		tags bool
	}{
		{TypeRequest, `0010 0015 02 01 01 00 03"a-1" 0c"message/send" 0013 0006 02 04"mail" "{}"`, false},
		{TypeNotify, `0010 000a 01 03 01 00 00 04"ping" 7b7d`, false},
		{TypeError, `0010 0007 01 04 01 00 01"7" 00 04 04"gone"`, false},
		{TypeStreamData, `0010 0007 10 05 03 00 01 ff 00 0011 000b 01 00 01 0000000000000102 "chunk"`, false},
		{TypeStreamEnd, `0010 0007 02 06 01 01 01 ff 00 0033 0001 00 0013 0002 0000 0013`, false},
		{TypeResponse, `0010 0007 11 02 80 00 01 05 00 0040 0009"text/html" 0041 002c` + proofBinding + `0042 0002"ab" "<p>"`, true},
		{TypeRequest, `0010 0020 01 01 01 00 04`, false},
	} {
		f.Add(uint16(s.typ), unhex(f, s.hex), s.tags)
	}
	f.Fuzz(func(t *testing.T, typ uint16, payload []byte, configured bool) {
		var tags *Tags
		if configured {
			tags = testTags
		}
		payload = payload[:len(payload):len(payload)]
		before := bytes.Clone(payload)
		var m Message
		err := Parse(&m, wire.FrameType(typ), payload, tags)
		if !bytes.Equal(before, payload) {
			t.Fatal("the payload changed")
		}
		if err != nil {
			if err != ErrFrameType && (!errors.Is(err, ErrMalformed) || CodeOf(err) == 0) {
				t.Fatal(err)
			}
			if _, ok := KindOf(wire.FrameType(typ)); ok == (err == ErrFrameType) {
				t.Fatal(err)
			}
			if p := payload; err != ErrFrameType && len(p) >= 9 && p[0] == 0 && p[1] == 0x10 {
				n := int(p[8])
				if value := int(p[2])<<8 | int(p[3]); value >= 5+n && len(p) >= 9+n && !bytes.Equal(m.Corr, p[9:9+n]) {
					t.Fatalf("corr %x of %x", m.Corr, p)
				}
			}
			return
		}
		out, err := m.Append(nil, tags)
		if err != nil {
			t.Fatalf("%x was accepted but cannot be sent on: %v", payload, err)
		}
		if len(out) != m.Size() || len(out) > len(payload) {
			t.Fatalf("%d octets became %d, size %d", len(payload), len(out), m.Size())
		}
		var again Message
		if err := Parse(&again, wire.FrameType(typ), out, tags); err != nil {
			t.Fatal(err)
		}
		if diff := equal(&m, &again); diff != "" {
			t.Fatal(diff)
		}
		if !bytes.HasSuffix(payload, m.Foreign) || cap(m.Foreign) != len(m.Foreign) {
			t.Fatalf("foreign %x", m.Foreign)
		}
	})
}

// FuzzAppend: whatever Append accepts, Parse reads back equal; and what it calls
// ambiguous really would not be.
func FuzzAppend(f *testing.F) {
	bind := unhex(f, proofBinding)
	f.Add(uint8(1), uint8(2), uint8(1), uint8(0), []byte("c"), []byte("m"), uint8(1), uint8(2), []byte("s"), uint64(1), []byte(nil), []byte(nil), []byte(nil), []byte("{}"), false)
	f.Add(uint8(5), uint8(16), uint8(1), uint8(1), []byte("c"), []byte(""), uint8(0), uint8(0), []byte(""), uint64(0), []byte(nil), []byte(nil), []byte(nil), []byte("\x00\x13\x00\x02\x00\x00"), false)
	f.Add(uint8(4), uint8(2), uint8(1), uint8(1), []byte("c"), []byte(""), uint8(4), uint8(0), []byte(""), uint64(0), []byte(nil), []byte(nil), []byte(nil), []byte("\x04\x01x"), false)
	f.Add(uint8(2), uint8(17), uint8(0x80), uint8(1), []byte("c"), []byte(""), uint8(3), uint8(0), []byte(""), uint64(9), []byte("a/b"), bind, []byte("x"), []byte("\x00\x41\x00"), true)
	f.Add(uint8(6), uint8(1), uint8(1), uint8(1), []byte("c"), []byte(""), uint8(2), uint8(0), []byte(""), uint64(9), []byte(nil), []byte(nil), []byte(nil), []byte("\x00\x33\x00\x00"), true)
	f.Add(uint8(5), uint8(3), uint8(2), uint8(0), []byte("c"), []byte(""), uint8(0), uint8(0), []byte(""), uint64(9), []byte(nil), []byte(nil), []byte(nil), []byte("\x00\x11"), false)
	f.Fuzz(func(t *testing.T, kind, protocol, content, flags uint8, corr, method []byte, bits, effect uint8, scope []byte,
		event uint64, media, binding, metadata, foreign []byte, configured bool,
	) {
		var tags *Tags
		if configured {
			tags = testTags
		}
		m := Message{
			Kind: Kind(kind), Protocol: ProtocolID(protocol), Content: ContentType(content), Flags: flags, Corr: corr, Method: method,
			HasLabel: bits&1 != 0, HasStream: bits&2 != 0, Transport: bits&4 != 0,
			MediaType: media, Binding: binding, Metadata: metadata, Foreign: foreign,
		}
		if m.HasLabel {
			m.Label = Label{Effect(effect), scope}
		}
		if m.HasStream {
			m.Stream = StreamControl{Control(bits >> 3 & 3), effect, EventID(event)}
		}
		out, err := m.Append(nil, tags)
		if err == ErrAmbiguous {
			out = append(m.appendPrefix(nil, tags), m.Foreign...)
			var got Message
			if err := Parse(&got, m.Kind.Type(), out, tags); err == nil && equal(&m, &got) == "" {
				t.Fatalf("%x was refused, but is read as it was meant", out)
			}
			return
		}
		if err != nil {
			if CodeOf(err) == 0 || out != nil {
				t.Fatal(err)
			}
			return
		}
		if len(out) != m.Size() {
			t.Fatalf("%d octets, size %d", len(out), m.Size())
		}
		prefix, err := m.AppendPrefix(nil, tags)
		if err != nil || len(prefix) != m.PrefixSize() || !bytes.Equal(append(prefix, foreign...), out) {
			t.Fatalf("prefix %x, %v", prefix, err)
		}
		sameByTemplate(t, &m, tags, out)
		var got Message
		if err := Parse(&got, m.Kind.Type(), out, tags); err != nil {
			t.Fatalf("%x: %v", out, err)
		}
		if got.HasLabel && !m.HasLabel {
			if len(foreign) < 2 || foreign[0] != 0 || foreign[1] != 0x13 {
				t.Fatal("a label was made up without need")
			}
			m.HasLabel, m.Label = true, Label{Effect: m.impliedEffect()}
		}
		if diff := equal(&m, &got); diff != "" {
			t.Fatal(diff)
		}
	})
}

func request() Message {
	return Message{
		Kind: KindRequest, Protocol: ProtocolA2A, Content: ContentJSON,
		Corr: []byte("\"8d1f0c\"\x00abcdefgh"), Method: []byte("message/send"),
		HasLabel: true, Label: Label{Effect: NonIdempotentWrite},
		Foreign: bytes.Repeat([]byte("{"), 512),
	}
}

func TestMessageAllocatesNothing(t *testing.T) {
	m := request()
	room := make([]byte, 0, 2048)
	bad := unhex(t, `0010 0008 02 02 01 00 02"c1" 00`)
	full := Message{
		Kind: KindResponse, Protocol: 0x11, Content: 0x80, Corr: []byte{5}, HasStream: true,
		MediaType: []byte("text/html; q=\"x\""), Binding: unhex(t, proofBinding), Metadata: []byte("ab"), Foreign: []byte{0, 0x13},
	}
	if n := testing.AllocsPerRun(100, func() {
		out, err := m.Append(room, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got Message
		if err := Parse(&got, TypeRequest, out, nil); err != nil {
			t.Fatal(err)
		}
		if out, err = full.Append(room, testTags); err != nil {
			t.Fatal(err)
		}
		if err := Parse(&got, TypeResponse, out, testTags); err != nil {
			t.Fatal(err)
		}
		if err := Parse(&got, TypeRequest, bad, nil); err != ErrKindMismatch {
			t.Fatal(err)
		}
		if _, err := got.Append(room, nil); err == nil {
			t.Fatal("no error")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkParse(b *testing.B) {
	m := request()
	payload, err := m.Append(nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	var got Message
	b.ReportAllocs()
	for b.Loop() {
		if err := Parse(&got, TypeRequest, payload, nil); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	m := request()
	room := make([]byte, 0, 2048)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Append(room, nil); err != nil {
			b.Fatal(err)
		}
	}
}
