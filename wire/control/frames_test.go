package control

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/wire"
)

// Key updates: TLV 0x17 with eight octets; unknown TLVs beside it are skipped.
func TestKeyUpdate(t *testing.T) {
	b := AppendKeyUpdate([]byte("x"), 0x0102030405060708)[1:]
	if !bytes.Equal(b, unhex(t, "0017 0008 0102030405060708")) || len(b) != KeyUpdateLen {
		t.Errorf("payload %x", b)
	}
	unknown := wire.AppendTLV(nil, 0x0014, []byte("x"))
	for _, in := range [][]byte{b, append(unknown, b...), append(slices.Clone(b), unknown...)} {
		if epoch, err := ParseKeyUpdate(in); epoch != 0x0102030405060708 || err != nil {
			t.Errorf("%x: %d, %v", in, epoch, err)
		}
	}
	for _, c := range []struct {
		name, in string
		want     error
	}{
		{"nothing", "", ErrNoMarker},
		{"another TLV only", "0014 0000", ErrNoMarker},
		{"generation", "0019 0008 0000000000000001", ErrNoMarker},
		{"two", "0017 0008 0000000000000001 0017 0008 0000000000000001", ErrTwoMarkers},
		{"seven octets", "0017 0007 00000000000001", ErrMarkerLen},
		{"nine octets", "0017 0009 000000000000000001", ErrMarkerLen},
		{"cut", "0017 0008 00000000000000", wire.ErrTLVTruncated},
		{"octets behind", "0017 0008 0000000000000001 00", wire.ErrTLVTruncated},
		{"critical TLV", "8014 0000 0017 0008 0000000000000001", wire.ErrTLVCritical},
	} {
		if _, err := ParseKeyUpdate(unhex(t, c.in)); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

// Handshake binding section 9.3: the generation and nothing else.
func TestRatchetIsOneTLV(t *testing.T) {
	b := AppendRatchet(nil, 2)
	if !bytes.Equal(b, unhex(t, "0019 0008 0000000000000002")) || len(b) != RatchetLen {
		t.Errorf("payload %x", b)
	}
	if g, err := ParseRatchet(b); g != 2 || err != nil {
		t.Errorf("%d, %v", g, err)
	}
	for _, c := range []struct {
		name, in string
		want     error
	}{
		{"nothing", "", ErrRatchetLayout},
		{"epoch marker", "0017 0008 0000000000000002", ErrRatchetLayout},
		{"unknown TLV in front", "0014 0000 0019 0008 0000000000000002", ErrRatchetLayout},
		{"unknown TLV behind", "0019 0008 0000000000000002 0014 0000", ErrRatchetTrailing},
		{"twice", "0019 0008 0000000000000002 0019 0008 0000000000000002", ErrRatchetTrailing},
		{"octet behind", "0019 0008 0000000000000002 00", ErrRatchetTrailing},
		{"seven octets", "0019 0007 00000000000002", ErrGenerationLen},
		{"cut", "0019 0008 00000000000000", wire.ErrTLVTruncated},
		{"critical TLV", "8019 0000", wire.ErrTLVCritical},
	} {
		if _, err := ParseRatchet(unhex(t, c.in)); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

// Handshake binding section 9.3: share or ciphertext of the KEM's size, then
// the generation.
func TestRekemIsTwoTLVs(t *testing.T) {
	share, ciphertext := bytes.Repeat([]byte{7}, 1216), bytes.Repeat([]byte{8}, 1120)
	rekem, ack := AppendRekem(nil, share, 3), AppendRekemAck(nil, ciphertext, 3)
	if !bytes.Equal(rekem[:4], unhex(t, "0007 04c0")) || !bytes.Equal(rekem[4+1216:], AppendRatchet(nil, 3)) || len(rekem) != RekemLen(1216) {
		t.Error("REKEM is not share, generation")
	}
	if !bytes.Equal(ack[:4], unhex(t, "0008 0460")) || !bytes.Equal(ack[4+1120:], AppendRatchet(nil, 3)) || len(ack) != RekemLen(1120) {
		t.Error("REKEM_ACK is not ciphertext, generation")
	}
	if got, g, err := ParseRekem(rekem, 1216); !bytes.Equal(got, share) || cap(got) != len(got) || g != 3 || err != nil {
		t.Errorf("REKEM: %d octets, %d, %v", len(got), g, err)
	}
	if got, g, err := ParseRekemAck(ack, 1120); !bytes.Equal(got, ciphertext) || g != 3 || err != nil {
		t.Errorf("REKEM_ACK: %d octets, %d, %v", len(got), g, err)
	}
	generation := AppendRatchet(nil, 3)
	shareTLV := wire.AppendTLV(nil, wire.TagKEMShare, share)
	for _, c := range []struct {
		name string
		in   []byte
		want error
	}{
		{"nothing", nil, ErrRatchetLayout},
		{"REKEM_ACK's", ack, ErrRatchetLayout},
		{"other order", slices.Concat(generation, shareTLV), ErrRatchetLayout},
		{"no generation", shareTLV, ErrRatchetLayout},
		{"unknown TLV in between", slices.Concat(shareTLV, unhex(t, "00140000"), generation), ErrRatchetLayout},
		{"octet behind", append(slices.Clone(rekem), 0), ErrRatchetTrailing},
		{"short share", AppendRekem(nil, share[1:], 3), ErrRekemShareLen},
		{"share of 1024", AppendRekem(nil, make([]byte, 1600), 3), ErrRekemShareLen},
		{"short generation", slices.Concat(shareTLV, unhex(t, "0019 0001 00")), ErrGenerationLen},
		{"cut", rekem[:len(rekem)-1], wire.ErrTLVTruncated},
		{"critical TLV", slices.Concat(shareTLV, unhex(t, "80190000")), wire.ErrTLVCritical},
	} {
		if _, _, err := ParseRekem(c.in, 1216); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if _, _, err := ParseRekemAck(AppendRekemAck(nil, make([]byte, 1600), 3), 1120); err != ErrRekemCiphertextLen {
		t.Errorf("ciphertext of 1024: %v", err)
	}
}

// D16: code(2) and text.
func TestErrorReport(t *testing.T) {
	b := AppendErrorReport([]byte("x"), CodeCrypto, "bad tag")[1:]
	if !bytes.Equal(b, append([]byte{0, 2}, "bad tag"...)) {
		t.Errorf("payload %x", b)
	}
	r, err := ParseErrorReport(b)
	if err != nil || r.Code != CodeCrypto || string(r.Text) != "bad tag" {
		t.Errorf("%v %q, %v", r.Code, r.Text, err)
	}
	if r, err := ParseErrorReport([]byte{0, 6}); err != nil || r.Code != CodeShutdown || len(r.Text) != 0 {
		t.Errorf("%v, %v", r, err)
	}
	for _, in := range [][]byte{nil, {0}} {
		if _, err := ParseErrorReport(in); err != ErrReportLen {
			t.Errorf("%x: %v", in, err)
		}
	}
	if r, err := ParseErrorReport([]byte{0, 5, 0xff}); err != ErrReportText || r.Code != CodePolicy || r.Text != nil {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestErrorReportTextIsCutBetweenCharacters(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{strings.Repeat("a", 300), strings.Repeat("a", MaxErrorText)},
		{"a" + strings.Repeat("é", 200), "a" + strings.Repeat("é", 127)},
		{"ok\xffrest", "ok"},
		{"cut \xe6\xb0", "cut "},
		{"replaced \ufffd", "replaced \ufffd"},
	} {
		r, err := ParseErrorReport(AppendErrorReport(nil, CodeInternal, []byte(c.in)))
		if err != nil || string(r.Text) != c.want {
			t.Errorf("%q became %q, %v", c.in, r.Text, err)
		}
	}
}

func TestErrorCodeNames(t *testing.T) {
	for c, want := range map[ErrorCode]string{
		CodeProtocol: "protocol", CodeCrypto: "crypto", CodeLimit: "limit", CodeTimeout: "timeout", CodePolicy: "policy",
		CodeShutdown: "shutdown", CodeInternal: "internal", 0: "code(0)", 8: "code(8)",
	} {
		if c.String() != want {
			t.Errorf("%d is %q, want %q", uint16(c), c, want)
		}
	}
}

// D6: u64, and on Bridge the correlation id that fills the rest.
func TestFlowUpdate(t *testing.T) {
	b := AppendFlowUpdate(nil, 16<<20)
	if !bytes.Equal(b, unhex(t, "0000000001000000")) {
		t.Errorf("payload %x", b)
	}
	if n, err := ParseFlowUpdate(b); n != 16<<20 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	for _, n := range []int{0, 7, 9} {
		if _, err := ParseFlowUpdate(make([]byte, n)); err != ErrFlowLen {
			t.Errorf("%d octets: %v", n, err)
		}
	}
	s, err := AppendStreamFlowUpdate(nil, math.MaxUint64, []byte(`"a"`))
	if err != nil || !bytes.Equal(s, unhex(t, "ffffffffffffffff 03 226122")) {
		t.Errorf("payload %x, %v", s, err)
	}
	if n, corr, err := ParseStreamFlowUpdate(s); n != math.MaxUint64 || string(corr) != `"a"` || cap(corr) != 3 || err != nil {
		t.Errorf("%d, %q, %v", n, corr, err)
	}
	for _, c := range []struct {
		in   string
		want error
	}{
		{"", ErrFlowLen}, {"0000000000000001", ErrFlowLen}, {"000000000000000100", ErrFlowCorr}, {"00000000000000010061", ErrFlowCorr},
		{"00000000000000010261", ErrFlowLen}, {"0000000000000001016161", ErrFlowLen},
	} {
		if _, _, err := ParseStreamFlowUpdate(unhex(t, c.in)); err != c.want {
			t.Errorf("%s: %v, want %v", c.in, err, c.want)
		}
	}
	for _, corr := range [][]byte{nil, make([]byte, 256)} {
		if out, err := AppendStreamFlowUpdate([]byte("kept"), 1, corr); err != ErrFlowCorr || string(out) != "kept" {
			t.Errorf("%d octets: %q, %v", len(corr), out, err)
		}
	}
}

func TestPingAndHelloDonePayloads(t *testing.T) {
	if CheckPing(nil) != nil || CheckPing(make([]byte, 64)) != nil || CheckPing(make([]byte, 65)) != ErrPingLen {
		t.Error("a PING has 0 to 64 octets")
	}
	if CheckHelloDone(nil) != nil || CheckHelloDone([]byte{0}) != ErrHelloDone {
		t.Error("HELLO_DONE is empty")
	}
}

func TestErrorsAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for _, err := range refusals {
		if s := err.Error(); seen[s] || !strings.HasPrefix(s, "control: ") {
			t.Errorf("error text %q", s)
		} else {
			seen[s] = true
		}
	}
}

// refusals are this package's errors.
var refusals = []error{
	ErrPingLen, ErrHelloDone, ErrHelloLen, ErrHelloNegativeKey, ErrHelloNoVersion, ErrHelloVersion, ErrHelloNoProtocols, ErrHelloProtocol,
	ErrHelloChannel, ErrHelloChannelCount, ErrHelloMaxMessage, ErrHelloCredit, ErrHelloStreamCredit, ErrHelloAgent, ErrNoMarker, ErrTwoMarkers,
	ErrMarkerLen, ErrRatchetLayout, ErrRatchetTrailing, ErrGenerationLen, ErrRekemShareLen, ErrRekemCiphertextLen, ErrFlowLen, ErrFlowCorr,
	ErrReportLen, ErrReportText,
}

// isRefusal reports whether err is one that the package documents.
func isRefusal(err error) bool {
	var encoding helloCBOR
	return err == wire.ErrTLVTruncated || err == wire.ErrTLVCritical || errors.As(err, &encoding) || slices.Contains(refusals, err)
}

func TestNothingAllocates(t *testing.T) {
	share := make([]byte, 1216)
	buf := make([]byte, 0, 2048)
	corr := []byte("corr")
	if n := testing.AllocsPerRun(100, func() {
		_, err := ParseKeyUpdate(AppendKeyUpdate(buf, 1))
		_, err2 := ParseRatchet(AppendRatchet(buf, 1))
		_, _, err3 := ParseRekem(AppendRekem(buf, share, 1), len(share))
		_, err4 := ParseErrorReport(AppendErrorReport(buf, CodeLimit, "text"))
		_, err5 := ParseFlowUpdate(AppendFlowUpdate(buf, 1))
		s, err6 := AppendStreamFlowUpdate(buf, 1, corr)
		_, _, err7 := ParseStreamFlowUpdate(s)
		if err != nil || err2 != nil || err3 != nil || err4 != nil || err5 != nil || err6 != nil || err7 != nil {
			t.Fatal("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkParseHello(b *testing.B) {
	h := fullHello()
	in, err := AppendHello(nil, &h)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := ParseHello(&h, in); err != nil {
			b.Fatal(err)
		}
	}
}
