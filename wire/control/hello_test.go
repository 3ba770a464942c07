package control

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/cbor"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func fullHello() Hello {
	return Hello{
		Version: 1, Protocols: []uint8{2, 1, 0x80},
		HasMaxMessage: true, MaxMessage: 4 << 20,
		HasChannels: true, Channels: []wire.Channel{wire.ChannelControl, wire.ChannelBridge, wire.ChannelDiscovery, 0x0020},
		HasCredit: true, Credit: 16 << 20,
		Agent:           "echo-1.test_a",
		HasStreamCredit: true, StreamCredit: 1 << 20,
	}
}

// HELLO 4 and D3: the map's octets, laid out by hand.
func TestHelloEncoding(t *testing.T) {
	h := fullHello()
	h.Grease = []uint64{0xabcd}
	got, err := AppendHello([]byte("x"), &h)
	if err != nil {
		t.Fatal(err)
	}
	want := unhex(t, "a4"+ // four pairs
		"00 01"+ // version 1
		"01 83 02 01 1880"+ // protocols
		"02 a5"+ // params
		"00 1a00400000"+ // largest message
		"01 84 00 0d 10 1820"+ // channels
		"02 1a01000000"+ // credit
		"03 6d"+hex.EncodeToString([]byte("echo-1.test_a"))+ // agent
		"04 1a00100000"+ // stream credit
		"03 81 19abcd") // GREASE
	if !bytes.Equal(got[1:], want) {
		t.Errorf("got  %x\nwant %x", got[1:], want)
	}
	small, err := AppendHello(nil, &Hello{Version: 1})
	if err != nil || !bytes.Equal(small, unhex(t, "a2 0001 0180")) {
		t.Errorf("least HELLO: %x, %v", small, err)
	}
}

func TestHelloRoundTrip(t *testing.T) {
	for _, want := range []Hello{
		fullHello(),
		{Version: 1, Protocols: []uint8{}, Channels: []wire.Channel{}},
		{Version: 7, Protocols: []uint8{255}, HasChannels: true, Channels: []wire.Channel{}},
		{Version: math.MaxUint64, Protocols: []uint8{1}, Channels: []wire.Channel{}, HasCredit: true, Credit: math.MaxUint64},
		{Version: 1, Protocols: []uint8{1}, Channels: []wire.Channel{}, Agent: strings.Repeat("a", MaxAgentNameLen)},
	} {
		b, err := AppendHello(nil, &want)
		if err != nil {
			t.Fatal(err)
		}
		got := Hello{Protocols: []uint8{9, 9, 9}, Channels: []wire.Channel{9}, Agent: "old", HasCredit: true, Grease: []uint64{1}}
		if err := ParseHello(&got, b); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
}

// HELLO 4: unknown keys from 0 up are ignored, whatever they hold, in the map
// and in its params.
func TestHelloIgnoresUnknownKeys(t *testing.T) {
	var h Hello
	err := ParseHello(&h, unhex(t, "a6 0001 018102"+
		"02 a3 00 1a00100000 05 a0 1903e8 63616263"+
		"03 80 04 a1 20 f93c00 1863 820102"))
	if err != nil || h.Version != 1 || h.MaxMessage != 1<<20 || len(h.Protocols) != 1 {
		t.Errorf("%+v, %v", h, err)
	}
}

// HELLO 4: unknown negative keys are kept for what cannot be ignored.
func TestHelloRefusesUnknownNegativeKeys(t *testing.T) {
	var h Hello
	for _, s := range []string{"a3 0001 0180 20 00", "a3 0001 0180 02 a1 20 00", "a3 0001 0180 3bffffffffffffffff 00"} {
		if err := ParseHello(&h, unhex(t, s)); err != ErrHelloNegativeKey {
			t.Errorf("%s: %v", s, err)
		}
	}
}

// HELLO 4, D3: GREASE is ignored where it may stand, and so is what another
// implementation may list as protocols.
func TestHelloToleratesGREASE(t *testing.T) {
	var h Hello
	err := ParseHello(&h, unhex(t, "a4 0001"+
		"01 87 00 02 190100 02 1bffffffffffffffff 19fafa 01"+
		"02 a1 01 86 19f000 0d 19fffe 0d 19fafa 00"+
		"03 83 00 1bffffffffffffffff 6161"))
	if err != nil || !bytes.Equal(h.Protocols, []byte{2, 1}) || len(h.Channels) != 2 || h.Channels[0] != wire.ChannelBridge || h.Channels[1] != wire.ChannelControl || h.Grease != nil {
		t.Errorf("%+v, %v", h, err)
	}
	for _, seed := range []uint16{0, 1, 0x0ffe, 0x0fff, 0xffff} {
		if ch := GREASEChannel(seed); !ch.IsGREASE() {
			t.Errorf("GREASEChannel(%d) = %v", seed, ch)
		}
	}
	h = Hello{Version: 1, HasChannels: true, Channels: []wire.Channel{GREASEChannel(77), wire.ChannelBridge}}
	b, err := AppendHello(nil, &h)
	if err != nil {
		t.Fatal(err)
	}
	if err := ParseHello(&h, b); err != nil || len(h.Channels) != 1 || !h.HasChannel(wire.ChannelBridge) || h.HasChannel(GREASEChannel(77)) {
		t.Errorf("%+v, %v", h, err)
	}
}

// Each thing a HELLO is refused for has its own error, and what was read before
// it is gone.
func TestHelloRefusals(t *testing.T) {
	channels := func(n int) string {
		b := cbor.AppendArray(nil, n)
		for i := range n {
			b = cbor.AppendUint(b, uint64(0x20+i))
		}
		return hex.EncodeToString(b)
	}
	agent := func(name string) string { return hex.EncodeToString(cbor.AppendText(nil, name)) }
	for _, c := range []struct {
		name, in string
		want     error
	}{
		{"too long", strings.Repeat("00", MaxHelloLen+1), ErrHelloLen},
		{"nothing", "", cbor.ErrTruncated},
		{"no map", "80", cbor.ErrType},
		{"indefinite map", "bf 0001 0180 ff", cbor.ErrIndefinite},
		{"cut", "a2 0001 0182 01", cbor.ErrTruncated},
		{"octets behind", "a2 0001 0180 00", cbor.ErrTrailing},
		{"keys out of order", "a2 0180 0001", cbor.ErrOrder},
		{"key twice", "a3 0001 0001 0180", cbor.ErrDuplicate},
		{"text key", "a3 0001 0180 616100", cbor.ErrKey},
		{"version not shortest", "a2 001801 0180", cbor.ErrNotShortest},
		{"version of another type", "a2 006131 0180", cbor.ErrType},
		{"version 0", "a2 0000 0180", ErrHelloVersion},
		{"no version", "a1 0180", ErrHelloNoVersion},
		{"no protocols", "a1 0001", ErrHelloNoProtocols},
		{"protocols of another type", "a2 0001 0102", cbor.ErrType},
		{"a protocol of another type", "a2 0001 018120", cbor.ErrType},
		{"more protocols than octets", "a2 0001 019bffffffffffffffff", cbor.ErrTruncated},
		{"params of another type", "a3 0001 0180 0280", cbor.ErrType},
		{"params out of order", "a3 0001 0180 02a2 021a00100000 001a00100000", cbor.ErrOrder},
		{"largest message below the floor", "a3 0001 0180 02a1 001a000fffff", ErrHelloMaxMessage},
		{"largest message of another type", "a3 0001 0180 02a1 00f5", cbor.ErrType},
		{"channels of another type", "a3 0001 0180 02a1 0100", cbor.ErrType},
		{"a channel of another type", "a3 0001 0180 02a1 0181 40", cbor.ErrType},
		{"channel FFFF", "a3 0001 0180 02a1 0181 19ffff", ErrHelloChannel},
		{"channel beyond 16 bits", "a3 0001 0180 02a1 0181 1a00010000", ErrHelloChannel},
		{"65 channels", "a3 0001 0180 02a1 01" + channels(MaxChannels+1), ErrHelloChannelCount},
		{"credit below the floor", "a3 0001 0180 02a1 021a000fffff", ErrHelloCredit},
		{"credit of another type", "a3 0001 0180 02a1 0220", cbor.ErrType},
		{"agent of another type", "a3 0001 0180 02a1 034161", cbor.ErrType},
		{"agent not UTF-8", "a3 0001 0180 02a1 0361ff", cbor.ErrUTF8},
		{"agent without a name", "a3 0001 0180 02a1 03" + agent(""), ErrHelloAgent},
		{"agent with a capital", "a3 0001 0180 02a1 03" + agent("Echo"), ErrHelloAgent},
		{"agent of 65", "a3 0001 0180 02a1 03" + agent(strings.Repeat("a", 65)), ErrHelloAgent},
		{"stream credit below the floor", "a3 0001 0180 02a1 041a000fffff", ErrHelloStreamCredit},
		{"stream credit of another type", "a3 0001 0180 02a1 04f6", cbor.ErrType},
		{"unknown key at fault", "a3 0001 0180 0561ff", cbor.ErrUTF8},
	} {
		h := fullHello()
		err := ParseHello(&h, unhex(t, c.in))
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		} else if !strings.HasPrefix(err.Error(), "control: HELLO") {
			t.Errorf("%s: %q lacks the package's name", c.name, err)
		}
		h.Protocols, h.Channels = nil, nil
		if !reflect.DeepEqual(h, Hello{}) {
			t.Errorf("%s: left %+v", c.name, h)
		}
	}
	var h Hello
	if err := ParseHello(&h, unhex(t, "a3 0001 0180 02a1 01"+channels(MaxChannels))); err != nil || len(h.Channels) != MaxChannels {
		t.Errorf("%d channels: %v", MaxChannels, err)
	}
}

// What a hostile HELLO of the greatest length leaves behind is small.
func TestHelloKeepsLittle(t *testing.T) {
	b := cbor.AppendMap(nil, 2)
	b = cbor.AppendUint(cbor.AppendUint(b, 0), 1)
	b = cbor.AppendArray(cbor.AppendUint(b, 1), 4000)
	for i := range 4000 {
		b = cbor.AppendUint(b, uint64(i%24))
	}
	var h Hello
	if err := ParseHello(&h, b); err != nil || len(h.Protocols) != 23 || cap(h.Protocols) > 64 {
		t.Errorf("%d protocols kept in room for %d, %v", len(h.Protocols), cap(h.Protocols), err)
	}
}

func TestAppendHelloRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Hello)
		want   error
	}{
		{"version 0", func(h *Hello) { h.Version = 0 }, ErrHelloVersion},
		{"protocol 0", func(h *Hello) { h.Protocols = []uint8{0} }, ErrHelloProtocol},
		{"protocol twice", func(h *Hello) { h.Protocols = []uint8{1, 2, 1} }, ErrHelloProtocol},
		{"channel FFFF", func(h *Hello) { h.Channels = []wire.Channel{wire.ChannelReserved} }, ErrHelloChannel},
		{"too many channels", func(h *Hello) { h.Channels = make([]wire.Channel, MaxChannels+1) }, ErrHelloChannelCount},
		{"small message", func(h *Hello) { h.MaxMessage = 1<<20 - 1 }, ErrHelloMaxMessage},
		{"small credit", func(h *Hello) { h.Credit = 0 }, ErrHelloCredit},
		{"small stream credit", func(h *Hello) { h.StreamCredit = 1 }, ErrHelloStreamCredit},
		{"agent", func(h *Hello) { h.Agent = "a b" }, ErrHelloAgent},
		{"too long", func(h *Hello) { h.Grease = make([]uint64, MaxHelloLen) }, ErrHelloLen},
	} {
		h := fullHello()
		c.change(&h)
		if out, err := AppendHello([]byte("kept"), &h); err != c.want || string(out) != "kept" {
			t.Errorf("%s: %q, %v, want %v", c.name, out, err, c.want)
		}
	}
}

// D22: 1 to 64 of a-z, 0-9, dot, underscore, hyphen.
func TestAgentNames(t *testing.T) {
	for _, name := range []string{"a", "echo", "0", "a.b_c-9", strings.Repeat("z", 64), ".", "-"} {
		if !ValidAgentName(name) || !ValidAgentName([]byte(name)) {
			t.Errorf("%q is refused", name)
		}
	}
	for _, name := range []string{"", "A", "a b", "a/b", "ä", "a\x00", "a\n", strings.Repeat("z", 65), "a:b", "@", "`", "{"} {
		if ValidAgentName(name) || ValidAgentName([]byte(name)) {
			t.Errorf("%q is accepted", name)
		}
	}
}

// HELLO 5: what both carry, in the initiator's order, each once.
func TestUsableProtocolsFollowTheInitiator(t *testing.T) {
	for _, c := range []struct{ initiator, responder, want []uint8 }{
		{[]uint8{3, 1, 2}, []uint8{1, 2, 3, 4}, []uint8{3, 1, 2}},
		{[]uint8{4, 2, 9}, []uint8{2, 3, 4}, []uint8{4, 2}},
		{[]uint8{1}, []uint8{2}, nil},
		{nil, []uint8{2}, nil},
		{[]uint8{5, 5, 1}, []uint8{1, 5}, []uint8{5, 1}},
	} {
		if got := AppendUsable(nil, c.initiator, c.responder); !bytes.Equal(got, c.want) {
			t.Errorf("AppendUsable(%v, %v) = %v, want %v", c.initiator, c.responder, got, c.want)
		}
	}
}

func TestHelloReusesItsRoom(t *testing.T) {
	full := fullHello()
	full.Agent = "" // the one field that is copied
	in, err := AppendHello(nil, &full)
	if err != nil {
		t.Fatal(err)
	}
	bad := unhex(t, "a2 0001 019bffffffffffffffff")
	var h Hello
	buf := make([]byte, 0, 256)
	if n := testing.AllocsPerRun(100, func() {
		if err := ParseHello(&h, in); err != nil {
			t.Fatal(err)
		}
		if _, err := AppendHello(buf, &h); err != nil {
			t.Fatal(err)
		}
		if err := ParseHello(&h, bad); err == nil {
			t.Fatal("accepted")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
