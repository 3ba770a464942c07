package bridge

import (
	"testing"

	"github.com/trestle-npamp/trestle/wire"
)

func TestKinds(t *testing.T) {
	for _, tt := range []struct {
		kind  Kind
		typ   wire.FrameType
		name  string
		reply bool
	}{
		{1, 0x0100, "request", false},
		{2, 0x0101, "response", true},
		{4, 0x0102, "error", true},
		{3, 0x0103, "notification", false},
		{5, 0x0104, "stream data", true},
		{6, 0x0105, "stream end", true},
	} {
		kind, ok := KindOf(tt.typ)
		if !ok || kind != tt.kind || tt.kind.Type() != tt.typ || kind.String() != tt.name || kind.IsReply() != tt.reply || !kind.Valid() {
			t.Errorf("type %v: kind %v", tt.typ, kind)
		}
	}
	for _, k := range []Kind{0, 7, 255} {
		if k.Valid() || k.IsReply() || k.Type() != wire.TypeNone {
			t.Errorf("%v is a kind", k)
		}
	}
	if Kind(7).String() != "kind(7)" {
		t.Error(Kind(7))
	}
}

func TestEffects(t *testing.T) {
	for i, name := range []string{"read_only", "idempotent_write", "non_idempotent_write", "destructive"} {
		e, err := ParseEffect(name)
		if err != nil || e != Effect(i) || e.String() != name {
			t.Errorf("%s: %v, %v", name, e, err)
		}
	}
	for _, name := range []string{"", "Read_only", "readOnly", "effect(4)"} {
		if _, err := ParseEffect(name); err != ErrEffectName {
			t.Errorf("%q: %v", name, err)
		}
	}
	if Effect(4).String() != "effect(4)" {
		t.Error(Effect(4))
	}
	if max(ReadOnly, Destructive, NonIdempotentWrite) != Destructive {
		t.Error("effects are not in order")
	}
}

func TestNames(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{ProtocolMCP.String(), "MCP"},
		{ProtocolA2A.String(), "A2A"},
		{ProtocolHTTP.String(), "HTTP"},
		{ProtocolWebSocket.String(), "WebSocket"},
		{ProtocolID(0x10).String(), "protocol(16)"},
		{ContentJSON.String(), "application/json"},
		{ContentCBOR.MediaType(), "application/cbor"},
		{ContentProto.MediaType(), "application/grpc+proto"},
		{ContentType(9).String(), "content(9)"},
		{ContentType(9).MediaType(), ""},
	} {
		if tt.got != tt.want {
			t.Errorf("%q, want %q", tt.got, tt.want)
		}
	}
}

// D7: numbers come from 0x0012 to 0x00FF, where nothing else is assigned.
func TestTagsValidate(t *testing.T) {
	for _, tt := range []struct {
		name string
		tags *Tags
		ok   bool
	}{
		{"none", nil, true},
		{"all off", &Tags{}, true},
		{"all on", testTags, true},
		{"lowest and highest", &Tags{DocumentBinding: 0x1A, EdgeMetadata: 0xFF}, true},
		{"below the range", &Tags{DocumentBinding: 0x0F}, false},
		{"envelope", &Tags{DocumentBinding: 0x10}, false},
		{"stream control", &Tags{DocumentBinding: 0x11}, false},
		{"anomaly charge", &Tags{DocumentBinding: 0x12}, false},
		{"safety label", &Tags{EdgeMetadata: 0x13}, false},
		{"handshake's", &Tags{EdgeMetadata: 0x14}, false},
		{"ratchet generation", &Tags{EdgeMetadata: 0x19}, false},
		{"above the range", &Tags{EdgeMetadata: 0x100}, false},
		{"critical", &Tags{EdgeMetadata: 0x8040}, false},
		{"twice", &Tags{DocumentBinding: 0x40, EdgeMetadata: 0x40}, false},
		{"type without discriminator", &Tags{OpaqueContentType: 0x40}, false},
		{"discriminator without type", &Tags{OpaqueContent: 0x80}, false},
		{"discriminator assigned", &Tags{OpaqueContentType: 0x40, OpaqueContent: ContentCBOR}, false},
		{"discriminator 4", &Tags{OpaqueContentType: 0x40, OpaqueContent: 4}, true},
	} {
		if err := tt.tags.Validate(); (err == nil) != tt.ok || err != nil && err != ErrTags {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
