package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"testing"

	"github.com/trestle-npamp/trestle/internal/vectors"
)

// TestVectors runs the reference's conformance vectors for headers, checksums
// and TLVs over this package, if the environment variable TRESTLE_VECTORS names
// the directory they are in.
func TestVectors(t *testing.T) {
	type fields struct {
		Frame, Octets, TLV, Value, CRC32C, Magic string
		Ver, Flags, FrameType, Channel           int
		Seq                                      json.Number
		PayloadLength, Type, Length              int
		ReservedZero                             bool
	}
	var corpus struct {
		TestGroups []struct {
			Op    string
			Tests []struct {
				TcID         int
				Result       string
				In, Expected fields
			}
		}
	}
	if !vectors.Load(t, "conformance-corpus.json", &corpus) {
		return
	}
	seq := func(n json.Number) Seq {
		v, err := n.Int64()
		if err != nil {
			t.Fatal(err)
		}
		return Seq(v)
	}
	ran := 0
	for _, g := range corpus.TestGroups {
		for _, c := range g.Tests {
			in, want, valid := c.In, c.Expected, c.Result == "valid"
			var err error
			ok := true
			switch g.Op {
			case "header.decode":
				var h Header
				h, err = ParseHeader(unhex(t, in.Frame), MaxFrameLen)
				ok = err != nil || string(h[:4]) == want.Magic && int(h[4]>>4) == want.Ver &&
					h.Flags() == Flags(want.Flags) && h.Type() == FrameType(want.FrameType) &&
					h.Channel() == Channel(want.Channel) && h.Seq() == seq(want.Seq) &&
					h.PayloadLen() == want.PayloadLength && want.ReservedZero &&
					bytes.Equal(binary.BigEndian.AppendUint32(nil, h.CRC()), unhex(t, want.CRC32C))
			case "header.encode":
				b := AppendHeader(nil, Flags(in.Flags), FrameType(in.FrameType), Channel(in.Channel), seq(in.Seq), in.PayloadLength)
				ok = bytes.Equal(b, unhex(t, want.Frame))
			case "crc32c":
				ok = bytes.Equal(binary.BigEndian.AppendUint32(nil, Checksum(unhex(t, in.Octets))), unhex(t, want.CRC32C))
			case "tlv.decode":
				var v TLV
				v, _, err = ConsumeKnownTLV(unhex(t, in.TLV), TLVSetOf(TagPathChallenge))
				ok = err != nil || v.Type == TLVType(want.Type) && len(v.Value) == want.Length && bytes.Equal(v.Value, unhex(t, want.Value))
			case "tlv.encode":
				ok = bytes.Equal(AppendTLV(nil, TLVType(in.Type), unhex(t, in.Value)), unhex(t, want.TLV))
			default:
				continue
			}
			ran++
			if !ok || valid != (err == nil) {
				t.Errorf("%s #%d: %v", g.Op, c.TcID, err)
			}
		}
	}
	if ran == 0 {
		t.Error("no vector ran")
	}
	t.Logf("%d vectors", ran)
}
