package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"math"
	"testing"

	"github.com/trestle-npamp/trestle/asm/crc32c"
	"github.com/trestle-npamp/trestle/internal/ratio"
)

// unhex decodes hexadecimal digits; spaces are for the reader.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(string(bytes.ReplaceAll([]byte(s), []byte(" "), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// resum gives a header that was tampered with a fitting checksum again.
func resum(h []byte) []byte {
	binary.BigEndian.PutUint32(h[21:], crc32.Checksum(h[:21], castagnoli))
	return h
}

// A PING on Control with sequence number 0, as the documents print it.
const pingHeader = "4e50414d 20 0001 0000 0000000000000000 00000000 0d880c25 0000000000000000000000"

func TestHeaderLayout(t *testing.T) {
	tests := []struct {
		name    string
		hex     string
		flags   Flags
		typ     FrameType
		ch      Channel
		seq     Seq
		payload int
	}{
		{"PING on Control", pingHeader, 0, TypePing, ChannelControl, 0, 0},
		{
			"sealed request on Bridge",
			"4e50414d 22 0100 000d 0000000000000001 00000210 00000000 0000000000000000000000",
			FlagENC, 0x0100, ChannelBridge, 1, 528,
		},
		{
			"all flags, largest numbers",
			"4e50414d 2f ffff fffe ffffffffffffffff 00ffffdc 00000000 0000000000000000000000",
			FlagURG | FlagENC | FlagCOMP | FlagFRAG, 0xFFFF, LastGREASEChannel, math.MaxUint64, MaxFrameLen - HeaderLen,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := unhex(t, tt.hex)
			if tt.hex != pingHeader {
				resum(want)
			}
			got := AppendHeader([]byte("x"), tt.flags, tt.typ, tt.ch, tt.seq, tt.payload)
			if !bytes.Equal(got[1:], want) {
				t.Fatalf("appended %x, want %x", got[1:], want)
			}
			dirty := bytes.Repeat([]byte{0xAA}, HeaderLen+1)
			PutHeader(dirty, tt.flags, tt.typ, tt.ch, tt.seq, tt.payload)
			if !bytes.Equal(dirty[:HeaderLen], want) || dirty[HeaderLen] != 0xAA {
				t.Fatalf("put %x, want %x", dirty, want)
			}
			h, err := ParseHeader(append(want, 1, 2, 3), MaxFrameLen)
			if err != nil {
				t.Fatal(err)
			}
			if len(h) != HeaderLen || cap(h) != HeaderLen {
				t.Errorf("view of %d octets, capacity %d", len(h), cap(h))
			}
			if h.Flags() != tt.flags || h.Type() != tt.typ || h.Channel() != tt.ch || h.Seq() != tt.seq || h.PayloadLen() != tt.payload {
				t.Errorf("read %v %v %v %v %v", h.Flags(), h.Type(), h.Channel(), h.Seq(), h.PayloadLen())
			}
			if h.CRC() != crc32.Checksum(want[:21], castagnoli) {
				t.Errorf("CRC %08x, want %08x", h.CRC(), crc32.Checksum(want[:21], castagnoli))
			}
			if p := h.Prefix(); !bytes.Equal(p, want[:21]) || cap(p) != PrefixLen {
				t.Errorf("prefix %x", p)
			}
		})
	}
}

func TestChecksumIsCRC32C(t *testing.T) {
	// The check value of CRC-32C in the catalogues of CRCs.
	if got := Checksum([]byte("123456789")); got != 0xE3069283 {
		t.Errorf("%08x", got)
	}
	if got := Checksum(unhex(t, pingHeader)[:21]); got != 0x0D880C25 {
		t.Errorf("%08x", got)
	}
}

func TestHeaderRejects(t *testing.T) {
	fresh := func() []byte { return AppendHeader(nil, FlagENC, 0x0100, ChannelBridge, 7, 64) }
	flip := func(i int, b byte) []byte {
		h := fresh()
		h[i] ^= b
		return h
	}
	tests := []struct {
		name string
		b    []byte
		max  int
		want error
	}{
		{"nothing", nil, 0, ErrShort},
		{"one octet missing", fresh()[:HeaderLen-1], 0, ErrShort},
		{"checksum", flip(21, 1), 0, ErrChecksum},
		{"magic without checksum", flip(0, 1), 0, ErrChecksum},
		{"first octet of magic", resum(flip(0, 1)), 0, ErrMagic},
		{"last octet of magic", resum(flip(3, 0x80)), 0, ErrMagic},
		{"version 3", resum(flip(4, 0x10)), 0, ErrVersion},
		{"version 0", resum(flip(4, 0x20)), 0, ErrVersion},
		{"first reserved octet", flip(25, 1), 0, ErrReserved},
		{"middle reserved octet", flip(30, 0x80), 0, ErrReserved},
		{"last reserved octet", flip(35, 1), 0, ErrReserved},
		{"one over the limit", fresh(), HeaderLen + 63, ErrTooLong},
		{"at the limit", fresh(), HeaderLen + 64, nil},
		{"one over the default", AppendHeader(nil, 0, 1, 0, 0, DefaultFrameLen-HeaderLen+1), 0, ErrTooLong},
		{"at the default", AppendHeader(nil, 0, 1, 0, 0, DefaultFrameLen-HeaderLen), 0, nil},
		{"one over the largest", AppendHeader(nil, 0, 1, 0, 0, MaxFrameLen-HeaderLen+1), math.MaxInt, ErrTooLong},
		{"length field all ones", resum(unhex(t, "4e50414d 20 0001 0000 0000000000000000 ffffffff 00000000 0000000000000000000000")), math.MaxInt, ErrTooLong},
	}
	for i := 25; i < 36; i++ {
		if _, err := ParseHeader(flip(i, 0x10), 0); err != ErrReserved {
			t.Errorf("reserved octet %d: %v", i, err)
		}
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h, err := ParseHeader(tt.b, tt.max)
			if !errors.Is(err, tt.want) || (err == nil) != (h != nil) {
				t.Errorf("%v, %v; want %v", h, err, tt.want)
			}
		})
	}
}

// Checksum, magic, version, reserved, length: a header with several faults is
// rejected for the first of them.
func TestHeaderCheckOrder(t *testing.T) {
	h := AppendHeader(nil, 0, 0x0100, ChannelBridge, 0, 1000)
	h[0], h[4], h[35] = 'X', 0x70, 1
	for _, step := range []struct {
		want error
		mend func()
	}{
		{ErrChecksum, func() { resum(h) }},
		{ErrMagic, func() { h[0] = 'N'; resum(h) }},
		{ErrVersion, func() { h[4] = 0x20; resum(h) }},
		{ErrReserved, func() { h[35] = 0 }},
		{ErrTooLong, func() { PutHeader(h, 0, 0x0100, ChannelBridge, 0, 10) }},
		{nil, func() {}},
	} {
		if _, err := ParseHeader(h, 100); err != step.want {
			t.Fatalf("%v, want %v", err, step.want)
		}
		step.mend()
	}
}

// Flags and type are not the header check's business: whether a frame may be
// clear or of type 0 depends on where the association is.
func TestHeaderLeavesMeaningToTheCaller(t *testing.T) {
	for _, f := range []Flags{0, FlagCOMP, FlagFRAG, 0x0F} {
		if _, err := ParseHeader(AppendHeader(nil, f, TypeNone, ChannelReserved, 0, 0), 0); err != nil {
			t.Error(err)
		}
	}
}

func TestPutHeaderMasksFlags(t *testing.T) {
	h := AppendHeader(nil, 0xF2, 1, 0, 0, 0)
	if h[4] != 0x22 {
		t.Errorf("octet 4 is %02x", h[4])
	}
}

func TestParseFrame(t *testing.T) {
	payload := []byte("0123456789")
	b := append(AppendHeader(nil, FlagENC, 0x0100, ChannelBridge, 3, len(payload)), payload...)
	stream := append(bytes.Clone(b), b...)
	for n := range b {
		if f, used, err := ParseFrame(b[:n:n], 0); used != 0 || err != nil || f.Len() != 0 {
			t.Fatalf("%d octets: %v %v", n, used, err)
		}
	}
	f, n, err := ParseFrame(stream, 0)
	if err != nil || n != len(b) || f.Len() != n {
		t.Fatal(n, err)
	}
	if !bytes.Equal(f.Payload(), payload) || cap(f.Payload()) != len(payload) {
		t.Errorf("payload %q, capacity %d", f.Payload(), cap(f.Payload()))
	}
	if f.Header().Seq() != 3 || cap(f.Header()) != HeaderLen {
		t.Errorf("header %x", f.Header())
	}
	stream[0] ^= 1
	if _, n, err := ParseFrame(stream, 0); n != 0 || err != ErrChecksum {
		t.Error(n, err)
	}
	if _, n, err := ParseFrame(b, len(b)-1); n != 0 || err != ErrTooLong {
		t.Error(n, err)
	}
}

func TestCodePointNames(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{ChannelControl.String(), "Control"},
		{ChannelBridge.String(), "Bridge"},
		{ChannelDiscovery.String(), "Discovery"},
		{ChannelSpatial.String(), "Spatial"},
		{Channel(0x0014).String(), "channel(0x0014)"},
		{TypeNone.String(), "NONE"},
		{TypeFlowUpdate.String(), "FLOW_UPDATE"},
		{FrameType(0x000B).String(), "type(0x000b)"},
		{FrameType(0x0100).String(), "type(0x0100)"},
		{TagKEMShare.String(), "KEMShare"},
		{TagRatchetGeneration.String(), "RatchetGeneration"},
		{TagReserved14.String(), "tlv(0x0014)"},
		{TLVType(0x8001).String(), "tlv(0x8001)"},
		{ClientToServer.String(), "client to server"},
		{ClientToServer.Reverse().String(), "server to client"},
	} {
		if tt.got != tt.want {
			t.Errorf("%q, want %q", tt.got, tt.want)
		}
	}
	for c, want := range map[Channel]bool{0x0013: false, 0xEFFF: false, 0xF000: true, 0xFFFE: true, 0xFFFF: false} {
		if c.IsGREASE() != want {
			t.Errorf("IsGREASE(%v) = %v", c, !want)
		}
	}
	if !ChannelSpatial.IsAssigned() || Channel(0x14).IsAssigned() || ServerToClient.Reverse() != ClientToServer {
		t.Error("assigned channels or directions")
	}
	if !FrameType(0xFF).IsCommon() || FirstChannelType.IsCommon() {
		t.Error("common types end below 0x0100")
	}
}

// The registries' numbers, which the compiler's consts must repeat.
func TestCodePoints(t *testing.T) {
	channels := []Channel{
		ChannelControl, ChannelMemory, ChannelCapability, ChannelIdentity, ChannelGovernance,
		ChannelImmune, ChannelFederation, ChannelSettlement, ChannelCompliance, ChannelSensory,
		ChannelTelemetry, ChannelAudit, ChannelStream, ChannelBridge, ChannelCommerce,
		ChannelInteraction, ChannelDiscovery, ChannelWorkflow, ChannelKnowledge, ChannelSpatial,
	}
	for i, c := range channels {
		if int(c) != i {
			t.Errorf("channel %v is %d, want %d", c, c, i)
		}
	}
	if len(channels) != ChannelCount {
		t.Error(len(channels))
	}
	types := []FrameType{
		TypeNone, TypePing, TypePong, TypeClose, TypeCloseAck, TypeError, TypeKeyUpdate,
		TypeKeyUpdateAck, TypePathChallenge, TypePathResponse, TypeFlowUpdate,
	}
	for i, c := range types {
		if int(c) != i {
			t.Errorf("type %v is %d, want %d", c, c, i)
		}
	}
	control := map[FrameType]FrameType{
		TypeClientHello: 0x0100, TypeServerHello: 0x0101, TypeServerAuth: 0x0102, TypeClientAuth: 0x0103,
		TypeMasterRatchet: 0x0104, TypeMasterRatchetAck: 0x0105, TypeRekem: 0x0106, TypeRekemAck: 0x0107,
		TypeHello: 0x0110, TypeHelloDone: 0x0111,
	}
	for got, want := range control {
		if got != want {
			t.Errorf("type %04x, want %04x", uint16(got), uint16(want))
		}
	}
	tags := map[TLVType]TLVType{
		TagProfileOffer: 0x01, TagProfileSelect: 0x02, TagKEMOffer: 0x03, TagKEMSelect: 0x04,
		TagSigOffer: 0x05, TagSigSelect: 0x06, TagKEMShare: 0x07, TagKEMCiphertext: 0x08,
		TagIdentityKey: 0x09, TagCertVerify: 0x0A, TagFinished: 0x0B, TagAEADOffer: 0x0C,
		TagAEADSelect: 0x0D, TagBridgeEnvelope: 0x10, TagStreamControl: 0x11, TagAnomalyCharge: 0x12,
		TagSafetyLabel: 0x13, TagPathChallenge: 0x15, TagPathResponse: 0x16, TagKeyUpdateMarker: 0x17,
		TagProtectionMode: 0x18, TagRatchetGeneration: 0x19,
	}
	for got, want := range tags {
		if got != want {
			t.Errorf("TLV %04x, want %04x", uint16(got), uint16(want))
		}
	}
}

// Whatever ParseHeader accepts is exactly what PutHeader writes.
func FuzzHeader(f *testing.F) {
	f.Add(unhex(f, pingHeader), 0)
	f.Add(AppendHeader(nil, 0x0F, 0xFFFF, 0xFFFF, math.MaxUint64, 100), 136)
	f.Add(resum(append(unhex(f, "4e50414e 20"), make([]byte, 31)...)), 0)
	f.Add([]byte("NPAM"), -1)
	f.Fuzz(func(t *testing.T, b []byte, maxFrame int) {
		for _, sum := range []bool{false, true} {
			if sum && len(b) >= HeaderLen {
				b = resum(bytes.Clone(b))
			}
			h, err := ParseHeader(b, maxFrame)
			if err != nil {
				switch err {
				case ErrShort, ErrChecksum, ErrMagic, ErrVersion, ErrReserved, ErrTooLong:
				default:
					t.Fatal(err)
				}
				if (err == ErrShort) != (len(b) < HeaderLen) || sum && err == ErrChecksum {
					t.Fatal(err)
				}
				continue
			}
			again := AppendHeader(nil, h.Flags(), h.Type(), h.Channel(), h.Seq(), h.PayloadLen())
			if !bytes.Equal(again, b[:HeaderLen]) {
				t.Fatalf("%x became %x", b[:HeaderLen], again)
			}
			if n := HeaderLen + h.PayloadLen(); n > MaxFrameLen || maxFrame > 0 && n > maxFrame {
				t.Fatalf("%d octets accepted", n)
			}
		}
	})
}

// A frame is handed out exactly when all of it is there, and never more of it.
func FuzzFrame(f *testing.F) {
	f.Add(append(AppendHeader(nil, FlagENC, 0x0100, ChannelBridge, 3, 4), "abcdef"...))
	f.Add(AppendHeader(nil, 0, 1, 0, 0, 0))
	f.Add(AppendHeader(nil, 0, 1, 0, 0, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= HeaderLen {
			b = resum(bytes.Clone(b))
		}
		b = b[:len(b):len(b)]
		fr, n, err := ParseFrame(b, 0)
		h, herr := ParseHeader(b, 0)
		switch {
		case herr == ErrShort:
			if n != 0 || err != nil {
				t.Fatal(n, err)
			}
		case herr != nil:
			if n != 0 || err != herr {
				t.Fatal(n, err)
			}
		case len(b) < HeaderLen+h.PayloadLen():
			if n != 0 || err != nil || fr.Len() != 0 {
				t.Fatal(n, err)
			}
		default:
			if err != nil || n != HeaderLen+h.PayloadLen() || fr.Len() != n {
				t.Fatal(n, err)
			}
			if !bytes.Equal(fr.Payload(), b[HeaderLen:n]) || cap(fr.Payload()) != n-HeaderLen || !bytes.Equal(fr.Header(), b[:HeaderLen]) {
				t.Fatalf("payload %x", fr.Payload())
			}
		}
	})
}

func TestHeaderAllocatesNothing(t *testing.T) {
	b := make([]byte, 0, 64)
	if n := testing.AllocsPerRun(100, func() {
		h := AppendHeader(b, FlagENC, 0x0100, ChannelBridge, 9, 10)
		if _, err := ParseHeader(h, 0); err != nil {
			t.Fatal(err)
		}
		if _, _, err := ParseFrame(h, 0); err != nil {
			t.Fatal(err)
		}
		h[0] = 0
		if _, err := ParseHeader(h, 0); err != ErrChecksum {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

var sink int

// What a header costs: checking it and writing it, and its checksum alone, beside the
// standard library's.
//
//	go test -run '^$' -bench Header ./wire
func BenchmarkHeader(b *testing.B) {
	// Frames follow each other at any place, so the headers are at all of them.
	const headers = 64
	var hs [headers]Header
	room := make([]byte, 0, headers*(HeaderLen+1))
	for i := range hs {
		at := len(room)
		room = append(AppendHeader(room, FlagENC, 0x0100, ChannelBridge, Seq(i), 512), 0)
		hs[i] = Header(room[at : at+HeaderLen])
	}
	ratio.Run(b, 20000,
		ratio.Way{Name: "check", Do: func(n int) {
			for i := range n {
				h, err := ParseHeader(hs[i%headers], 0)
				if err != nil {
					b.Fatal(err)
				}
				sink += h.PayloadLen()
			}
		}},
		ratio.Way{Name: "write", Do: func(n int) {
			for i := range n {
				PutHeader(hs[i%headers], FlagENC, 0x0100, ChannelBridge, Seq(i), 512)
			}
		}},
		ratio.Way{Name: "CRC32C", Do: func(n int) {
			for i := range n {
				sink += int(crc32c.Sum((*[PrefixLen]byte)(hs[i%headers])))
			}
		}},
		ratio.Way{Name: "hash/crc32", Do: func(n int) {
			for i := range n {
				sink += int(Checksum(hs[i%headers][:PrefixLen]))
			}
		}},
	)
}
