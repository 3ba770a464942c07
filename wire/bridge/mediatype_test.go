package bridge

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/wire"
)

// CC-OPAQUE 4.2: an enumerated media type has no TLV, any other one needs it, and
// what is no media type is declared by nothing.
func TestCCOPAQUE4_2_Declare(t *testing.T) {
	tags := &Tags{OpaqueContentType: 0x40, OpaqueContent: 0x70}
	for _, c := range []struct {
		media   string
		content ContentType
		off     error // without configured numbers
	}{
		{"application/json", ContentJSON, nil},
		{"APPLICATION/Json", ContentJSON, nil},
		{"application/cbor", ContentCBOR, nil},
		{"application/grpc+proto", ContentProto, nil},
		{"application/grpc", 0x70, ErrTagOff},
		{"application/json;charset=utf-8", 0x70, ErrTagOff},
		{"text/event-stream", 0x70, ErrTagOff},
		{"application/json[", 0, ErrMediaType},
		{"", 0, ErrMediaType},
		{"a/" + strings.Repeat("b", wire.MaxTLVLen-1), 0, ErrTagOff},
	} {
		for _, with := range []*Tags{nil, {}, tags} {
			content, media, err := with.Declare([]byte(c.media))
			want, wantMedia, wantErr := c.content, c.media, error(nil)
			switch {
			case with != tags && c.off != nil:
				want, wantErr = 0, c.off
			case c.content == 0 && c.off == ErrTagOff:
				wantErr = ErrValueTooLong
			case c.content == 0:
				wantErr = ErrMediaType
			}
			if want != 0x70 {
				wantMedia = ""
			}
			if content != want || string(media) != wantMedia || err != wantErr {
				t.Errorf("%.40q with %+v: %v, %.40q, %v", c.media, with, content, media, err)
			}
			if err == nil && !strings.EqualFold(Declared(content, media), c.media) {
				t.Errorf("%q declares %q", c.media, Declared(content, media))
			}
		}
	}
	if Declared(0x70, nil) != "" || Declared(ContentCBOR, nil) != "application/cbor" {
		t.Error("declared")
	}
}

// What Declare returns is carried and says the same at the other end.
func FuzzDeclare(f *testing.F) {
	f.Add([]byte("application/json"))
	f.Add([]byte("Application/CBOR"))
	f.Add([]byte(`text/plain; a="b\"c"`))
	f.Add([]byte("a"))
	tags := &Tags{OpaqueContentType: 0x40, OpaqueContent: 0x70}
	f.Fuzz(func(t *testing.T, media []byte) {
		content, tlv, err := tags.Declare(media)
		if err != nil {
			if content != 0 || tlv != nil || !errors.Is(err, ErrMediaType) && err != ErrValueTooLong {
				t.Fatalf("%v, %q, %v", content, tlv, err)
			}
			return
		}
		m := Message{Kind: KindRequest, Protocol: FirstExperimental, Content: content, MediaType: tlv, Corr: []byte("c"), Foreign: media}
		octets, err := m.Append(nil, tags)
		if err != nil {
			t.Fatal(err)
		}
		var got Message
		if err := Parse(&got, TypeRequest, octets, tags); err != nil {
			t.Fatal(err)
		}
		if declared := Declared(got.Content, got.MediaType); !strings.EqualFold(declared, string(media)) || !bytes.Equal(got.Foreign, media) {
			t.Fatalf("%q declared %q", media, declared)
		}
		if content != 0x70 && tlv != nil {
			t.Fatal("a TLV beside an enumerated content type")
		}
	})
}
