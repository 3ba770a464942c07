package bridge

import (
	"bytes"
	"testing"

	"github.com/trestle-npamp/trestle/wire"
)

// sameByTemplate checks that a Template, if m has one and its foreign octets are
// plain, puts the message together as Append did.
func sameByTemplate(t *testing.T, m *Message, tags *Tags, appended []byte) {
	t.Helper()
	sample := *m
	sample.Stream.EventID, sample.Foreign = 0, []byte("\x00\x13 of another message")
	p, err := sample.Template(tags)
	if !m.HasStream || m.Kind == KindError {
		if err == nil {
			t.Fatal("a Template of a message that is no stream's")
		}
		return
	}
	if err != nil {
		t.Fatalf("no Template of what can be appended: %v", err)
	}
	if !tags.Plain(m.Protocol, m.Foreign) {
		return
	}
	got := p.AppendPrefix([]byte("before"), m.Stream.EventID)
	if len(got) != len("before")+p.PrefixSize() {
		t.Fatalf("%d octets, PrefixSize says %d", len(got)-len("before"), p.PrefixSize())
	}
	if got = append(got, m.Foreign...); string(got) != "before"+string(appended) {
		t.Fatalf("by the Template % x\nappended        % x", got, appended)
	}
}

// Foreign octets that could pass for a TLV are not plain, whatever the message.
func TestTemplate_PlainForeignOctets(t *testing.T) {
	for _, tc := range []struct {
		protocol ProtocolID
		foreign  string
		plain    bool
	}{
		{ProtocolMCP, "", true},
		{ProtocolMCP, "\x00", true},
		{ProtocolMCP, "{}", true},
		{ProtocolMCP, "\x00\x41", false}, // passed over by a receiver
		{ProtocolHTTP, "\x00\x7f", true},
		{FirstExperimental, "\x00\x00", true},
		{FirstExperimental, "\x00\x13\x00\x00", false}, // a SafetyLabel
		{FirstExperimental, "\x00\x11", false},         // a StreamControl
		{FirstExperimental, "\x00" + string([]byte{byte(testTags.EdgeMetadata)}), false},
		{FirstExperimental, "\x01\x13", true},
	} {
		if got := testTags.Plain(tc.protocol, []byte(tc.foreign)); got != tc.plain {
			t.Errorf("protocol %d, %q: %v", tc.protocol, tc.foreign, got)
		}
	}
	var off *Tags
	if !off.Plain(FirstExperimental, []byte{0, byte(testTags.EdgeMetadata)}) {
		t.Error("a TLV that is not configured")
	}
}

func TestTemplate_Errors(t *testing.T) {
	m := Message{Kind: KindData, Protocol: ProtocolMCP, Content: ContentJSON, HasStream: true}
	if _, err := m.Template(nil); err != ErrCorrMissing {
		t.Errorf("without a correlation id: %v", err)
	}
	m.Corr = []byte("c")
	m.Kind = KindError
	if _, err := m.Template(nil); err != ErrKind {
		t.Errorf("of an error: %v", err)
	}
	m.Kind, m.HasStream = KindResponse, false
	if _, err := m.Template(nil); err != ErrKind {
		t.Errorf("without a StreamControl: %v", err)
	}
}

func TestTemplate_AllocatesNothing(t *testing.T) {
	m := Message{Kind: KindData, Protocol: ProtocolMCP, Content: ContentJSON, Corr: bytes.Repeat([]byte("c"), 255), HasStream: true}
	p, err := m.Template(nil)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 0, wire.HeaderLen+p.PrefixSize())
	if n := testing.AllocsPerRun(100, func() { p.AppendPrefix(b, 7) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
