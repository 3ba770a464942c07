package control

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"testing"

	"github.com/trestle-npamp/trestle/wire"
)

// A HELLO that is accepted says the same after it was written and read again,
// and it keeps no more than its bounds.
func FuzzParseHello(f *testing.F) {
	h := fullHello()
	b, err := AppendHello(nil, &h)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	for _, s := range []string{
		"a200010180", "a3000101800200", "a400010187000219010002" + "1bffffffffffffffff19fafa01" + "02a1018619f0000d19fffe0d19fafa00" + "03830001" + "6161",
		"a300010180" + "2000", "a300010180" + "02a103" + "6465636f20", "bf00010180ff", "a2001801018102",
	} {
		b, err := hex.DecodeString(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		var h, again Hello
		if err := ParseHello(&h, payload); err != nil {
			if !isRefusal(err) {
				t.Fatalf("error %v is not documented", err)
			}
			if !reflect.DeepEqual(h, Hello{Protocols: h.Protocols[:0], Channels: h.Channels[:0]}) {
				t.Fatalf("a refused HELLO left %+v", h)
			}
			return
		}
		if len(h.Protocols) > 255 || len(h.Channels) > MaxChannels || len(h.Agent) > MaxAgentNameLen {
			t.Fatalf("kept too much: %+v", h)
		}
		out, err := AppendHello(nil, &h)
		if err != nil {
			t.Fatal(err)
		}
		if err := ParseHello(&again, out); err != nil || !reflect.DeepEqual(again, h) {
			t.Fatalf("%+v came back as %+v: %v", h, again, err)
		}
	})
}

// Each small frame that is accepted is written again octet for octet; a key
// update, beside which unknown TLVs may stand, at least with the same epoch.
func FuzzParseFrames(f *testing.F) {
	share := bytes.Repeat([]byte{7}, 5)
	for kind, in := range [][]byte{
		AppendKeyUpdate(nil, 1), AppendRatchet(nil, 2), AppendRekem(nil, share, 3), AppendRekemAck(nil, share, 4),
		AppendErrorReport(nil, CodeLimit, "text"), AppendFlowUpdate(nil, 5), append(AppendFlowUpdate(nil, 6), 1, 'x'),
	} {
		f.Add(uint8(kind), in)
		f.Add(uint8(kind), append(in, 0, 0x14, 0, 0))
		f.Add(uint8(kind), in[:len(in)-1])
	}
	f.Fuzz(func(t *testing.T, kind uint8, payload []byte) {
		var out []byte
		var err error
		switch kind {
		case 0:
			var epoch wire.Epoch
			if epoch, err = ParseKeyUpdate(payload); err == nil {
				again, err := ParseKeyUpdate(AppendKeyUpdate(nil, epoch))
				if again != epoch || err != nil {
					t.Fatalf("%d came back as %d, %v", epoch, again, err)
				}
				return
			}
		case 1:
			var g uint64
			if g, err = ParseRatchet(payload); err == nil {
				out = AppendRatchet(nil, g)
			}
		case 2:
			var v []byte
			var g uint64
			if v, g, err = ParseRekem(payload, len(share)); err == nil {
				out = AppendRekem(nil, v, g)
			}
		case 3:
			var v []byte
			var g uint64
			if v, g, err = ParseRekemAck(payload, len(share)); err == nil {
				out = AppendRekemAck(nil, v, g)
			}
		case 4:
			var r ErrorReport
			if r, err = ParseErrorReport(payload); err == nil {
				out = AppendErrorReport(nil, r.Code, r.Text)
				payload = payload[:min(len(payload), len(out))] // text may be cut
			}
		case 5:
			var n uint64
			if n, err = ParseFlowUpdate(payload); err == nil {
				out = AppendFlowUpdate(nil, n)
			}
		case 6:
			var n uint64
			var corr []byte
			if n, corr, err = ParseStreamFlowUpdate(payload); err == nil {
				if out, err = AppendStreamFlowUpdate(nil, n, corr); err != nil {
					t.Fatal(err)
				}
			}
		default:
			return
		}
		if err != nil {
			if !isRefusal(err) {
				t.Fatalf("error %v is not documented", err)
			}
			return
		}
		if !bytes.Equal(out, payload) {
			t.Fatalf("%x came back as %x", payload, out)
		}
	})
}
