package handshake

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/internal/vectors"
	"github.com/trestle-npamp/trestle/wire"
)

// reappend parses the payload of a handshake frame, writes it again and returns
// its raw TLVs, those of an AUTH one by one.
func reappend(t *testing.T, typ wire.FrameType, payload []byte) (raw [][]byte) {
	t.Helper()
	var out []byte
	var err error
	switch typ {
	case wire.TypeClientHello:
		var m ClientHello
		if m, err = ParseClientHello(payload); err == nil {
			out, err = m.Append(nil)
			raw = [][]byte{m.Raw()}
		}
	case wire.TypeServerHello:
		var m ServerHello
		if m, err = ParseServerHello(payload); err == nil {
			out, err = m.Append(nil)
			raw = [][]byte{m.Raw()}
		}
	default:
		var m Auth
		if m, err = ParseAuth(payload, sha256.Size); err == nil {
			out, err = m.Append(nil)
			raw = [][]byte{m.RawIdentityKey(), m.RawCertVerify(), m.RawFinished()}
		}
	}
	if err != nil || !bytes.Equal(out, payload) {
		t.Fatalf("%#x: %d octets came back as %d, %v", uint16(typ), len(payload), len(out), err)
	}
	return raw
}

// The flow vector's two hellos as they stand on the wire and its two AUTHs as
// they stand before sealing.
func TestHandshakeFlowVectorFrames(t *testing.T) {
	var v struct {
		Expected struct {
			Frames        map[string]string
			AuthPlaintext map[string]string `json:"auth_plaintext"`
		}
	}
	if !vectors.Load(t, "handshake-flow-kat.json", &v) {
		return
	}
	for name, typ := range map[string]wire.FrameType{"client_hello": wire.TypeClientHello, "server_hello": wire.TypeServerHello} {
		b := mustHex(t, v.Expected.Frames[name])
		f, n, err := wire.ParseFrame(b, 0)
		if err != nil || n != len(b) || f.Header().Type() != typ {
			t.Fatalf("%s: %d octets, %v", name, n, err)
		}
		reappend(t, typ, f.Payload())
	}
	for name, typ := range map[string]wire.FrameType{"server_auth": wire.TypeServerAuth, "client_auth": wire.TypeClientAuth} {
		plaintext := mustHex(t, v.Expected.AuthPlaintext[name])
		reappend(t, typ, plaintext)
		sealed := mustHex(t, v.Expected.Frames[name])
		if len(sealed) != wire.HeaderLen+len(plaintext)+wire.TagLen {
			t.Errorf("%s: frame of %d octets for a plaintext of %d", name, len(sealed), len(plaintext))
		}
	}
}

// The transcript vector: the raw octets that this package gives, with the frame
// types in between, hash to all five points.
func TestTranscriptVectorFrames(t *testing.T) {
	var v struct {
		Frames []struct {
			FrameType string `json:"frame_type"`
			TLVs      []struct{ Type, Value string }
		}
		Points map[string]string `json:"expected_transcript_points"`
	}
	if !vectors.Load(t, "transcript-kat.json", &v) {
		return
	}
	// The points that follow the pieces of each frame, "" where there is none.
	points := [][]string{{""}, {"th_kem"}, {"th_sid", "th_scv", ""}, {"th_cid", "th_ccv", ""}}
	if len(v.Frames) != len(points) {
		t.Fatalf("%d frames", len(v.Frames))
	}
	h := sha256.New()
	checked := 0
	for i, f := range v.Frames {
		typ, err := strconv.ParseUint(strings.TrimPrefix(f.FrameType, "0x"), 16, 16)
		if err != nil {
			t.Fatal(err)
		}
		var payload []byte
		for _, p := range f.TLVs {
			tag, err := strconv.ParseUint(strings.TrimPrefix(p.Type, "0x"), 16, 16)
			if err != nil {
				t.Fatal(err)
			}
			payload = wire.AppendTLV(payload, wire.TLVType(tag), mustHex(t, p.Value))
		}
		h.Write([]byte{byte(typ >> 8), byte(typ)})
		for j, raw := range reappend(t, wire.FrameType(typ), payload) {
			h.Write(raw)
			if name := points[i][j]; name != "" {
				checked++
				if got := hex.EncodeToString(h.Sum(nil)); got != v.Points[name] {
					t.Errorf("%s = %s, want %s", name, got, v.Points[name])
				}
			}
		}
	}
	if checked != len(v.Points) {
		t.Errorf("%d of %d points checked", checked, len(v.Points))
	}
}
