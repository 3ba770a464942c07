package schedule

import (
	"bytes"
	"crypto/hmac"
	"encoding/binary"
	"fmt"
	"hash"
	"testing"

	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
)

// step is RFC 8446's HKDF-Expand-Label for an output of one hash, by HMAC alone: it
// shares nothing with what it checks, N-PAMP's prefix included.
func step(h func() hash.Hash, secret []byte, label string, context []byte) []byte {
	n := h().Size()
	info := binary.BigEndian.AppendUint16(nil, uint16(n))
	info = append(info, byte(len("n-pamp ")+len(label)))
	info = append(append(info, "n-pamp "...), label...)
	info = append(append(info, byte(len(context))), context...)
	m := hmac.New(h, secret)
	m.Write(append(info, 1))
	return m.Sum(nil)
}

// Both tiers of the ratchet, one after the other, against a derivation of its own.
func TestRatchetsAgainstAnIndependentDerivation(t *testing.T) {
	for _, h := range []profiles.Hash{profiles.SHA256, profiles.SHA384} {
		t.Run(fmt.Sprint(h), func(t *testing.T) {
			r := NewRoot(h, wire.ClientToServer, count(h.Size()))
			secret := count(h.Size())
			for gen := uint64(1); gen <= 6; gen++ {
				if gen%3 != 0 {
					if err := r.Ratchet(); err != nil {
						t.Fatal(err)
					}
					secret = step(h.New, secret, "master ratchet", binary.BigEndian.AppendUint64(nil, gen))
				} else {
					fresh := bytes.Repeat([]byte{byte(gen)}, 64)
					th := RekemPoint(h, []byte("rekem"), []byte("rekem ack"))
					if err := r.RatchetKEM(fresh, &th); err != nil {
						t.Fatal(err)
					}
					digest := h.New()
					fmt.Fprint(digest, "\x01\x06rekem\x01\x07rekem ack")
					extract := hmac.New(h.New, secret) // the old root is the salt
					extract.Write(fresh)
					secret = step(h.New, extract.Sum(nil), "master ratchet rekem", digest.Sum(nil))
				}
				if r.Generation() != gen || !bytes.Equal(r.secret[:h.Size()], secret) {
					t.Fatalf("generation %d differs", gen)
				}
			}
		})
	}
}
