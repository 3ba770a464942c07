package handshake

import (
	"bytes"
	"testing"

	"github.com/trestle-npamp/trestle/wire"
)

// helloProperties are what holds of any hello that was accepted: writing it and
// reading that gives the same octets, which are those of the input without its
// unknown TLVs.
func helloProperties(t *testing.T, payload, raw, out []byte, size int) {
	if !bytes.Equal(raw, payload) || len(out) != size || len(out) > len(payload) {
		t.Fatalf("Raw has %d, Append %d, Size says %d of %d octets", len(raw), len(out), size, len(payload))
	}
	var kept []byte
	for b := payload; len(b) > 0; {
		v, n, err := wire.ConsumeTLV(b)
		if err != nil {
			t.Fatal("accepted a payload that is no run of TLVs")
		}
		if v.Type != 0 && v.Type <= wire.TagAEADSelect {
			kept = append(kept, b[:n]...)
		}
		b = b[n:]
	}
	if !bytes.Equal(kept, out) {
		t.Fatalf("%x came back as %x", kept, out)
	}
}

func FuzzParseClientHello(f *testing.F) {
	f.Add(join(clientHelloPieces()...))
	f.Add(join(append(clientHelloPieces(), tlv(0x0014, []byte("x")))...))
	f.Add(join(serverHelloPieces()...))
	f.Add(join(tlv(1, []byte{1}), tlv(3, []byte{0, 1}), tlv(5, []byte{8, 7}), tlv(12, []byte{0, 1}), tlv(7, []byte("share"))))
	f.Fuzz(func(t *testing.T, payload []byte) {
		m, err := ParseClientHello(payload)
		if err != nil {
			if !isRefusal(err) {
				t.Fatalf("error %v is not documented", err)
			}
			return
		}
		out, err := m.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		helloProperties(t, payload, m.Raw(), out, m.Size())
	})
}

func FuzzParseServerHello(f *testing.F) {
	f.Add(join(serverHelloPieces()...))
	f.Add(join(append(serverHelloPieces(), tlv(0x0014, []byte("x")))...))
	f.Add(join(clientHelloPieces()...))
	f.Add(join(tlv(2, []byte{1}), tlv(4, []byte{0, 1}), tlv(6, []byte{8, 7}), tlv(13, []byte{0, 1}), tlv(8, []byte("ciphertext"))))
	f.Fuzz(func(t *testing.T, payload []byte) {
		m, err := ParseServerHello(payload)
		if err != nil {
			if !isRefusal(err) {
				t.Fatalf("error %v is not documented", err)
			}
			return
		}
		out, err := m.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		helloProperties(t, payload, m.Raw(), out, m.Size())
	})
}

// An AUTH that is accepted is written again octet for octet, and its raw TLVs
// laid end to end are the input.
func FuzzParseAuth(f *testing.F) {
	f.Add(join(authPieces()...), true)
	f.Add(join(append(authPieces(), tlv(0x0014, nil))...), true)
	m := Auth{IdentityKey: fill(0, MLDSA87KeyLen), Scheme: 0x0905, Signature: fill(1, MLDSA87SignatureLen), Finished: fill(2, 48)}
	b, err := m.Append(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, false)
	f.Fuzz(func(t *testing.T, payload []byte, short bool) {
		hashLen := 48
		if short {
			hashLen = 32
		}
		m, err := ParseAuth(payload, hashLen)
		if err != nil {
			if !isRefusal(err) {
				t.Fatalf("error %v is not documented", err)
			}
			return
		}
		out, err := m.Append(nil)
		if err != nil || !bytes.Equal(out, payload) {
			t.Fatalf("%x came back as %x: %v", payload, out, err)
		}
		if raw := join(m.RawIdentityKey(), m.RawCertVerify(), m.RawFinished()); !bytes.Equal(raw, payload) {
			t.Fatalf("raw TLVs are %x", raw)
		}
	})
}
