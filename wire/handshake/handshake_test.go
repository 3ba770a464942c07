package handshake

import (
	"bytes"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/wire"
)

// fill gives n octets that differ from one another and from other tags'.
func fill(tag byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = tag + byte(i)
	}
	return b
}

func tlv(t wire.TLVType, value []byte) []byte { return wire.AppendTLV(nil, t, value) }

func join(parts ...[]byte) []byte { return slices.Concat(parts...) }

func clientHelloPieces() [][]byte {
	return [][]byte{
		tlv(wire.TagProfileOffer, []byte{1, 2}),
		tlv(wire.TagKEMOffer, []byte{0x11, 0xec, 0x11, 0xed}),
		tlv(wire.TagSigOffer, []byte{0x08, 0x07}),
		tlv(wire.TagAEADOffer, []byte{0, 2, 0, 1}),
		tlv(wire.TagKEMShare, fill(0x40, ShareLen768)),
	}
}

func serverHelloPieces() [][]byte {
	return [][]byte{
		tlv(wire.TagProfileSelect, []byte{1}),
		tlv(wire.TagKEMSelect, []byte{0x11, 0xec}),
		tlv(wire.TagSigSelect, []byte{0x08, 0x07}),
		tlv(wire.TagAEADSelect, []byte{0, 1}),
		tlv(wire.TagKEMCiphertext, fill(0x50, CiphertextLen768)),
	}
}

func authPieces() [][]byte {
	return [][]byte{
		tlv(wire.TagIdentityKey, fill(0x60, 32)),
		tlv(wire.TagCertVerify, join([]byte{0x08, 0x07}, fill(0x70, 64))),
		tlv(wire.TagFinished, fill(0x80, 32)),
	}
}

// Handshake binding section 1: five TLVs in order; offers preferred first.
func TestClientHelloIsReadAsViews(t *testing.T) {
	payload := join(clientHelloPieces()...)
	m, err := ParseClientHello(payload)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(m.Profiles, []byte{1, 2}) || m.KEMs.Len() != 2 || m.KEMs.At(0) != 0x11ec || m.KEMs.At(1) != 0x11ed ||
		!slices.Equal(slices.Collect(m.AEADs.All()), []uint16{2, 1}) || !m.Schemes.Contains(0x0807) || m.Schemes.Contains(0x0905) ||
		!bytes.Equal(m.Share, fill(0x40, ShareLen768)) {
		t.Errorf("read %+v", m)
	}
	if &m.Share[0] != &payload[len(payload)-ShareLen768] || &m.Raw()[0] != &payload[0] || len(m.Raw()) != len(payload) {
		t.Error("not views of the payload")
	}
	out, err := m.Append([]byte("x"))
	if err != nil || !bytes.Equal(out[1:], payload) || m.Size() != len(payload) {
		t.Errorf("Append differs, or Size %d is not %d: %v", m.Size(), len(payload), err)
	}
	built := ClientHello{
		Profiles: []byte{1, 2},
		KEMs:     AppendCodePoints[uint16](nil, 0x11ec, 0x11ed),
		Schemes:  AppendCodePoints[uint16](nil, 0x0807),
		AEADs:    AppendCodePoints[uint16](nil, 2, 1),
		Share:    fill(0x40, ShareLen768),
	}
	if out, err = built.Append(nil); err != nil || !bytes.Equal(out, payload) || built.Raw() != nil {
		t.Errorf("built message differs: %v", err)
	}
}

func TestServerHelloIsReadAsViews(t *testing.T) {
	payload := join(serverHelloPieces()...)
	m, err := ParseServerHello(payload)
	if err != nil {
		t.Fatal(err)
	}
	if m.Profile != 1 || m.KEM != 0x11ec || m.Scheme != 0x0807 || m.AEAD != 1 || !bytes.Equal(m.Ciphertext, fill(0x50, CiphertextLen768)) {
		t.Errorf("read %+v", m)
	}
	if !bytes.Equal(m.Raw(), payload) {
		t.Error("Raw is not the payload")
	}
	out, err := m.Append([]byte("x"))
	if err != nil || !bytes.Equal(out[1:], payload) || m.Size() != len(payload) {
		t.Errorf("Append differs: %v", err)
	}
}

// Handshake binding section 3: the transcript is cut between the three TLVs.
func TestAuthGivesEachTLVRaw(t *testing.T) {
	pieces := authPieces()
	payload := join(pieces...)
	m, err := ParseAuth(payload, 32)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(m.IdentityKey, fill(0x60, 32)) || m.Scheme != 0x0807 || !bytes.Equal(m.Signature, fill(0x70, 64)) || !bytes.Equal(m.Finished, fill(0x80, 32)) {
		t.Errorf("read %+v", m)
	}
	for i, raw := range [][]byte{m.RawIdentityKey(), m.RawCertVerify(), m.RawFinished()} {
		if !bytes.Equal(raw, pieces[i]) || cap(raw) != len(raw) {
			t.Errorf("raw TLV %d is %x", i, raw)
		}
	}
	out, err := m.Append([]byte("x"))
	if err != nil || !bytes.Equal(out[1:], payload) {
		t.Errorf("Append differs: %v", err)
	}
	if n, ok := AuthLen(0x0807, 32); n != len(payload) || !ok {
		t.Errorf("AuthLen = %d", n)
	}
	var unparsed Auth
	if unparsed.RawIdentityKey() != nil || unparsed.RawCertVerify() != nil || unparsed.RawFinished() != nil {
		t.Error("a message that was not parsed has raw TLVs")
	}
}

// Profiles above Standard: 0x11ed, ML-DSA-87 and SHA-384 have sizes of their own.
func TestSizesFollowTheAlgorithms(t *testing.T) {
	hello := clientHelloPieces()
	hello[1] = tlv(wire.TagKEMOffer, []byte{0x11, 0xed})
	if _, err := ParseClientHello(join(hello...)); err != ErrShareLen {
		t.Errorf("a share of 768 under the KEM of 1024: %v", err)
	}
	hello[4] = tlv(wire.TagKEMShare, fill(0, ShareLen1024))
	if _, err := ParseClientHello(join(hello...)); err != nil {
		t.Errorf("1024: %v", err)
	}
	reply := serverHelloPieces()
	reply[1] = tlv(wire.TagKEMSelect, []byte{0x11, 0xed})
	reply[4] = tlv(wire.TagKEMCiphertext, fill(0, CiphertextLen1024))
	if _, err := ParseServerHello(join(reply...)); err != nil {
		t.Errorf("1024: %v", err)
	}
	auth := Auth{IdentityKey: fill(0, MLDSA87KeyLen), Scheme: 0x0905, Signature: fill(1, MLDSA87SignatureLen), Finished: fill(2, 48)}
	payload, err := auth.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := AuthLen(0x0905, 48); n != len(payload) || !ok || n > MaxPayloadLen {
		t.Errorf("AuthLen = %d, the message takes %d", n, len(payload))
	}
	if _, err := ParseAuth(payload, 48); err != nil {
		t.Error(err)
	}
	if _, err := ParseAuth(payload, 32); err != ErrFinishedLen {
		t.Errorf("a MAC of SHA-384 under SHA-256: %v", err)
	}
	if n, ok := ShareLen(0x11ec); n != 1216 || !ok {
		t.Errorf("ShareLen = %d", n)
	}
	if n, ok := CiphertextLen(0x11ec); n != 1120 || !ok {
		t.Errorf("CiphertextLen = %d", n)
	}
	if n, ok := CiphertextLen(0x11ed); n != 1600 || !ok {
		t.Errorf("CiphertextLen = %d", n)
	}
	for _, f := range []func(uint16) (int, bool){ShareLen, CiphertextLen} {
		if n, ok := f(0x1234); n != 0 || ok {
			t.Errorf("an unknown KEM has the size %d", n)
		}
	}
	if _, _, ok := SignatureLens(0x1234); ok {
		t.Error("an unknown scheme has sizes")
	}
	if _, ok := AuthLen(0x1234, 32); ok {
		t.Error("an unknown scheme has a length")
	}
}

// An unknown first KEM is for the server to refuse; its share may be any.
func TestUnknownKEMKeepsItsShare(t *testing.T) {
	hello := clientHelloPieces()
	hello[1] = tlv(wire.TagKEMOffer, []byte{0x12, 0x34, 0x11, 0xec})
	hello[4] = tlv(wire.TagKEMShare, []byte("any"))
	m, err := ParseClientHello(join(hello...))
	if err != nil || string(m.Share) != "any" {
		t.Errorf("%q, %v", m.Share, err)
	}
	hello[4] = tlv(wire.TagKEMShare, nil)
	if _, err := ParseClientHello(join(hello...)); err != ErrShareLen {
		t.Errorf("an empty share: %v", err)
	}
}

// Handshake binding section 1: outside AUTH an unknown TLV is skipped unless its type is critical;
// what is skipped still counts for the transcript.
func TestHelloSkipsUnknownTLVs(t *testing.T) {
	unknown := tlv(0x0014, []byte("new"))
	var with [][]byte
	for _, p := range clientHelloPieces() {
		with = append(with, unknown, p)
	}
	payload := join(append(with, unknown)...)
	m, err := ParseClientHello(payload)
	if err != nil || !bytes.Equal(m.Raw(), payload) {
		t.Fatalf("%v, Raw has %d octets", err, len(m.Raw()))
	}
	out, err := m.Append(nil)
	if err != nil || !bytes.Equal(out, join(clientHelloPieces()...)) {
		t.Errorf("Append writes more than the five TLVs: %v", err)
	}
	critical := tlv(0x8014, nil)
	for i := range 6 {
		pieces := slices.Insert(clientHelloPieces(), i, critical)
		if _, err := ParseClientHello(join(pieces...)); err != wire.ErrTLVCritical {
			t.Errorf("critical TLV at %d: %v", i, err)
		}
	}
}

type refusal struct {
	name string
	in   []byte
	want error
}

func change(pieces [][]byte, i int, t wire.TLVType, value []byte) []byte {
	pieces[i] = tlv(t, value)
	return join(pieces...)
}

// Each thing that is wrong with how TLVs are arranged has its own error.
func TestArrangementIsChecked(t *testing.T) {
	for _, c := range []struct {
		name   string
		pieces func() [][]byte
		parse  func([]byte) error
		alien  wire.TLVType // of another message
	}{
		{"CLIENT_HELLO", clientHelloPieces, func(b []byte) error { _, err := ParseClientHello(b); return err }, wire.TagKEMSelect},
		{"SERVER_HELLO", serverHelloPieces, func(b []byte) error { _, err := ParseServerHello(b); return err }, wire.TagKEMOffer},
		{"AUTH", authPieces, func(b []byte) error { _, err := ParseAuth(b, 32); return err }, wire.TagKEMShare},
	} {
		n := len(c.pieces())
		check := func(name string, in []byte, want error) {
			t.Helper()
			if err := c.parse(in); err != want {
				t.Errorf("%s, %s: %v, want %v", c.name, name, err, want)
			}
		}
		check("empty", nil, ErrMissingTLV)
		check("too long", make([]byte, MaxPayloadLen+1), ErrTooLong)
		for i := range n {
			check("TLV missing", join(slices.Delete(c.pieces(), i, i+1)...), ErrMissingTLV)
			check("TLV twice", join(slices.Insert(c.pieces(), i, c.pieces()[i])...), ErrDuplicateTLV)
			check("TLV again at the end", join(append(c.pieces(), c.pieces()[i])...), ErrDuplicateTLV)
			check("TLV of another message", join(slices.Insert(c.pieces(), i, tlv(c.alien, nil))...), ErrUnexpectedTLV)
			cut := join(c.pieces()[:i+1]...)
			check("cut inside a TLV", cut[:len(cut)-1], wire.ErrTLVTruncated)
			if i > 0 {
				p := c.pieces()
				p[i-1], p[i] = p[i], p[i-1]
				check("two TLVs swapped", join(p...), ErrOrder)
			}
		}
		whole := join(c.pieces()...)
		check("three octets more", append(whole, 0, 0x14, 0), ErrTrailing)
		check("a TLV cut off behind", append(whole, 0, 0x14, 0, 2, 1), ErrTrailing)
	}
}

// Handshake binding section 6.4: an AUTH holds exactly three TLVs.
func TestAuthIsExactlyThreeTLVs(t *testing.T) {
	unknown, critical := tlv(0x0014, nil), tlv(0x8014, nil)
	for _, c := range []refusal{
		{"unknown TLV in front", join(append([][]byte{unknown}, authPieces()...)...), ErrUnexpectedTLV},
		{"unknown TLV in between", join(slices.Insert(authPieces(), 2, unknown)...), ErrUnexpectedTLV},
		{"critical TLV in between", join(slices.Insert(authPieces(), 2, critical)...), wire.ErrTLVCritical},
		{"unknown TLV behind", join(append(authPieces(), unknown)...), ErrTrailing},
		{"critical TLV behind", join(append(authPieces(), critical)...), ErrTrailing},
		{"TLV of a hello behind", join(append(authPieces(), tlv(wire.TagKEMShare, nil))...), ErrTrailing},
	} {
		if _, err := ParseAuth(c.in, 32); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

// Each size that is wrong has its own error, when reading and when writing.
func TestSizesAreChecked(t *testing.T) {
	for _, c := range []refusal{
		{"no profile", change(clientHelloPieces(), 0, wire.TagProfileOffer, nil), ErrProfileOffer},
		{"no KEM", change(clientHelloPieces(), 1, wire.TagKEMOffer, nil), ErrKEMOffer},
		{"odd KEMs", change(clientHelloPieces(), 1, wire.TagKEMOffer, []byte{0x11, 0xec, 0}), ErrKEMOffer},
		{"no scheme", change(clientHelloPieces(), 2, wire.TagSigOffer, nil), ErrSigOffer},
		{"odd schemes", change(clientHelloPieces(), 2, wire.TagSigOffer, []byte{8}), ErrSigOffer},
		{"no AEAD", change(clientHelloPieces(), 3, wire.TagAEADOffer, nil), ErrAEADOffer},
		{"odd AEADs", change(clientHelloPieces(), 3, wire.TagAEADOffer, []byte{0, 1, 0}), ErrAEADOffer},
		{"short share", change(clientHelloPieces(), 4, wire.TagKEMShare, fill(0, ShareLen768-1)), ErrShareLen},
		{"long share", change(clientHelloPieces(), 4, wire.TagKEMShare, fill(0, ShareLen768+1)), ErrShareLen},
	} {
		if _, err := ParseClientHello(c.in); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	for _, c := range []refusal{
		{"two profiles", change(serverHelloPieces(), 0, wire.TagProfileSelect, []byte{1, 2}), ErrProfileSelect},
		{"no profile", change(serverHelloPieces(), 0, wire.TagProfileSelect, nil), ErrProfileSelect},
		{"short KEM", change(serverHelloPieces(), 1, wire.TagKEMSelect, []byte{0x11}), ErrKEMSelect},
		{"two schemes", change(serverHelloPieces(), 2, wire.TagSigSelect, []byte{8, 7, 9, 5}), ErrSigSelect},
		{"long AEAD", change(serverHelloPieces(), 3, wire.TagAEADSelect, []byte{0, 1, 0}), ErrAEADSelect},
		{"short ciphertext", change(serverHelloPieces(), 4, wire.TagKEMCiphertext, fill(0, CiphertextLen768-1)), ErrCiphertextLen},
		{"a share's size", change(serverHelloPieces(), 4, wire.TagKEMCiphertext, fill(0, ShareLen768)), ErrCiphertextLen},
		{"no ciphertext of an unknown KEM", func() []byte {
			p := serverHelloPieces()
			p[1] = tlv(wire.TagKEMSelect, []byte{0, 1})
			return change(p, 4, wire.TagKEMCiphertext, nil)
		}(), ErrCiphertextLen},
	} {
		if _, err := ParseServerHello(c.in); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	for _, c := range []refusal{
		{"short key", change(authPieces(), 0, wire.TagIdentityKey, fill(0, 31)), ErrKeyLen},
		{"no scheme", change(authPieces(), 1, wire.TagCertVerify, []byte{8}), ErrCertVerify},
		{"unknown scheme", change(authPieces(), 1, wire.TagCertVerify, make([]byte, 66)), ErrScheme},
		{"short signature", change(authPieces(), 1, wire.TagCertVerify, join([]byte{8, 7}, fill(0, 63))), ErrSignatureLen},
		{"another scheme's key", change(authPieces(), 1, wire.TagCertVerify, join([]byte{9, 5}, fill(0, MLDSA87SignatureLen))), ErrKeyLen},
		{"short MAC", change(authPieces(), 2, wire.TagFinished, fill(0, 31)), ErrFinishedLen},
		{"long MAC", change(authPieces(), 2, wire.TagFinished, fill(0, 48)), ErrFinishedLen},
	} {
		if _, err := ParseAuth(c.in, 32); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	// A hash length that no profile has must not let an empty MAC through.
	if _, err := ParseAuth(change(authPieces(), 2, wire.TagFinished, nil), 0); err != ErrFinishedLen {
		t.Errorf("no MAC: %v", err)
	}
}

func TestAppendRefusesWhatParseWould(t *testing.T) {
	good := func() ClientHello {
		m, err := ParseClientHello(join(clientHelloPieces()...))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	dst := []byte("kept")
	for _, c := range []struct {
		change func(*ClientHello)
		want   error
	}{
		{func(m *ClientHello) { m.Profiles = nil }, ErrProfileOffer},
		{func(m *ClientHello) { m.KEMs = m.KEMs[:3] }, ErrKEMOffer},
		{func(m *ClientHello) { m.Schemes = nil }, ErrSigOffer},
		{func(m *ClientHello) { m.AEADs = nil }, ErrAEADOffer},
		{func(m *ClientHello) { m.Share = m.Share[1:] }, ErrShareLen},
		{func(m *ClientHello) { m.Profiles = make([]byte, MaxPayloadLen) }, ErrTooLong},
		{func(m *ClientHello) { m.Profiles = make([]byte, 1<<17) }, ErrTooLong},
	} {
		m := good()
		c.change(&m)
		if out, err := m.Append(dst); err != c.want || string(out) != "kept" {
			t.Errorf("%q, %v, want %v", out, err, c.want)
		}
	}
	reply := ServerHello{KEM: 0x11ec, Ciphertext: make([]byte, 5)}
	if out, err := reply.Append(dst); err != ErrCiphertextLen || string(out) != "kept" {
		t.Errorf("%q, %v", out, err)
	}
	reply = ServerHello{KEM: 1, Ciphertext: make([]byte, 1<<17)}
	if _, err := reply.Append(dst); err != ErrTooLong {
		t.Error(err)
	}
	for _, c := range []struct {
		m    Auth
		want error
	}{
		{Auth{Scheme: 1}, ErrScheme},
		{Auth{Scheme: 0x0807, IdentityKey: make([]byte, 31)}, ErrKeyLen},
		{Auth{Scheme: 0x0807, IdentityKey: make([]byte, 32)}, ErrSignatureLen},
		{Auth{Scheme: 0x0807, IdentityKey: make([]byte, 32), Signature: make([]byte, 64)}, ErrFinishedLen},
	} {
		if out, err := c.m.Append(dst); err != c.want || string(out) != "kept" {
			t.Errorf("%q, %v, want %v", out, err, c.want)
		}
	}
	if _, err := AppendCertVerify(nil, 1, nil); err != ErrScheme {
		t.Error(err)
	}
	if _, err := AppendFinished(nil, make([]byte, 32), 48); err != ErrFinishedLen {
		t.Error(err)
	}
}

func TestErrorsAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for _, err := range refusals {
		if s := err.Error(); seen[s] || !strings.HasPrefix(s, "handshake: ") {
			t.Errorf("error text %q", s)
		} else {
			seen[s] = true
		}
	}
}

// refusals are this package's errors.
var refusals = []error{
	ErrTooLong, ErrMissingTLV, ErrDuplicateTLV, ErrOrder, ErrUnexpectedTLV, ErrTrailing, ErrProfileOffer, ErrKEMOffer, ErrSigOffer,
	ErrAEADOffer, ErrShareLen, ErrProfileSelect, ErrKEMSelect, ErrSigSelect, ErrAEADSelect, ErrCiphertextLen, ErrKeyLen, ErrCertVerify,
	ErrScheme, ErrSignatureLen, ErrFinishedLen,
}

func isRefusal(err error) bool {
	return err == wire.ErrTLVTruncated || err == wire.ErrTLVCritical ||
		slices.ContainsFunc(refusals, func(r error) bool { return errors.Is(err, r) })
}

func TestNothingAllocates(t *testing.T) {
	client, server, auth := join(clientHelloPieces()...), join(serverHelloPieces()...), join(authPieces()...)
	buf := make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(100, func() {
		ch, err := ParseClientHello(client)
		if err != nil {
			t.Fatal(err)
		}
		for p := range ch.KEMs.All() {
			if !ch.KEMs.Contains(p) {
				t.Fatal(p)
			}
		}
		sh, err := ParseServerHello(server)
		if err != nil {
			t.Fatal(err)
		}
		a, err := ParseAuth(auth, 32)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseAuth(auth[:len(auth)-1], 32); err != wire.ErrTLVTruncated {
			t.Fatal(err)
		}
		out, _ := ch.Append(buf)
		out, _ = sh.Append(out)
		out, _ = a.Append(out)
		if len(out) != len(client)+len(server)+len(auth) {
			t.Fatal(len(out))
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkParseClientHello(b *testing.B) {
	payload := join(clientHelloPieces()...)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseClientHello(payload); err != nil {
			b.Fatal(err)
		}
	}
}

func mustHex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
