package schedule

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
)

func count(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// Traffic keys as the published conformance corpus has them: the master secret
// counts up from 0, and each row differs from the first in one part of the
// context (binding 5).
func TestTrafficBindsDirectionEpochSuiteAndChannel(t *testing.T) {
	for _, c := range []struct {
		h     profiles.Hash
		dir   wire.Direction
		epoch wire.Epoch
		suite profiles.Suite
		ch    wire.Channel
		key   string
		iv    string
	}{
		{profiles.SHA256, 0, 0, 1, 0, "4e56739d78066f3f2bd0edf62fb652b3e90398d5c5b95f38287eb1d767e6dacc", "0d45a2552d9ea33375b2d11c"},
		{profiles.SHA256, 1, 0, 1, 0, "8d53363df4f41c3b53b1d03d80761ac72bbdf5f6c922226adbfda269e16874c6", "29be009f5364a86090089312"},
		{profiles.SHA256, 0, 0, 1, 1, "f9fd0ac17b096ba2e22ff8f8479d88396f878b0a80da26ddded820a590cc86e0", "89e38010d128513dad30099e"},
		{profiles.SHA256, 0, 5, 2, 12, "20024f3e2ae4fdc690cf325c913b703e39a02730bc6c31e15b800eea2068e005", "246cb32f9835b64386faf2b6"},
		{profiles.SHA384, 0, 0, 1, 0, "3563a4d0c367f614c66b012790072de040794c1309e98ec1d82d4c6de3e18c98", "796ce4749ebd77d152784b22"},
	} {
		r := NewRoot(c.h, c.dir, count(c.h.Size()))
		key, iv, err := r.Traffic(c.epoch, c.suite, c.ch)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "key", key[:], c.key)
		equal(t, "iv", iv[:], c.iv)
	}
}

func TestNonceIsIVXorSequenceNumber(t *testing.T) {
	for _, c := range []struct {
		iv    string
		seq   wire.Seq
		nonce string
	}{
		{"a0a1a2a3a4a5a6a7a8a9aaab", 0, "a0a1a2a3a4a5a6a7a8a9aaab"},
		{"a0a1a2a3a4a5a6a7a8a9aaab", 1, "a0a1a2a3a4a5a6a7a8a9aaaa"},
		{"000000000000000000000000", 4278190090, "0000000000000000ff00000a"},
		{"ffffffffffffffffffffffff", 0x0102030405060708, "fffffffffefdfcfbfaf9f8f7"},
	} {
		var iv, nonce [IVLen]byte
		copy(iv[:], unhex(t, c.iv))
		Nonce(&iv, c.seq, &nonce)
		equal(t, "nonce", nonce[:], c.nonce)
	}
}

// Binding 3: a frame gives its type and its TLVs to the transcript, and a sum
// in between does not disturb it.
func TestTranscriptIsTypesAndTLVs(t *testing.T) {
	for _, h := range hashes {
		tr := NewTranscript(h)
		tr.AddFrameType(wire.TypeClientHello)
		tr.AddTLV(wire.TagProfileOffer, []byte{1, 2})
		raw := wire.AppendTLV(nil, wire.TagKEMOffer, []byte{0x11, 0xec})
		tr.AddTLVs(raw)
		first := tr.Sum()
		tr.AddFrameType(wire.TypeServerHello)
		second := tr.Sum()

		octets := unhex(t, "0100"+"000100020102"+"0003000211ec")
		want := func(b []byte) []byte {
			if h == profiles.SHA256 {
				d := sha256.Sum256(b)
				return d[:]
			}
			d := sha512.Sum384(b)
			return d[:]
		}
		if !bytes.Equal(first.Bytes(), want(octets)) {
			t.Errorf("%v: first point %x", h, first.Bytes())
		}
		if !bytes.Equal(second.Bytes(), want(append(octets, 1, 1))) {
			t.Errorf("%v: second point %x", h, second.Bytes())
		}
	}
}

func point(b []byte) *Point {
	p := new(Point)
	p.n = copy(p.b[:], b)
	return p
}

// The ladder of binding 5 and 6.2 for fixed inputs, spelled out label by label
// with Expand alone, and a digest over all of it that another program (Python's
// hmac and hashlib) computed from the same inputs.
func TestSecretsFollowTheLadder(t *testing.T) {
	for _, c := range []struct {
		h      profiles.Hash
		digest string
	}{
		{profiles.SHA256, "efa9a20e8872658a1306cccf80fec498cfb863e4c46ba878fe0ebde925a54e79"},
		{profiles.SHA384, "cc9a98db3188c364ed7c60b92ae4d0df5c7be5d17c3699e80b4f28417974a11e"},
	} {
		n := c.h.Size()
		secret := count(64)
		thKEM, thCV := point(bytes.Repeat([]byte{0xa1}, n)), point(bytes.Repeat([]byte{0xb2}, n))
		derive := func(parent []byte, label string, context []byte, length int) []byte {
			info := binary.BigEndian.AppendUint16(nil, uint16(length))
			info = append(info, byte(len("n-pamp ")+len(label)))
			info = append(info, "n-pamp "+label...)
			info = append(append(info, byte(len(context))), context...)
			out := make([]byte, length)
			if err := Expand(c.h, parent, info, out); err != nil {
				t.Fatal(err)
			}
			return out
		}
		handshake := Extract(c.h, make([]byte, n), secret)
		hs := [2][]byte{
			derive(handshake, "c hs", thKEM.Bytes(), n),
			derive(handshake, "s hs", thKEM.Bytes(), n),
		}
		master := derive(handshake, "master", thCV.Bytes(), n)

		s := NewSecrets(c.h, secret, thKEM)
		all := sha256.New()
		for dir := wire.ClientToServer; dir <= wire.ServerToClient; dir++ {
			var d digest
			mac(c.h, derive(hs[dir], "finished", nil, n), &d, thCV.Bytes())
			finished := s.Finished(dir, thCV)
			if !bytes.Equal(finished.Bytes(), d[:n]) {
				t.Errorf("%v: Finished %s differs", c.h, dir)
			}
			if !s.VerifyFinished(dir, thCV, d[:n]) {
				t.Errorf("%v: Finished %s does not verify", c.h, dir)
			}
			for _, bad := range [][]byte{nil, d[:n-1], append(bytes.Clone(d[:n]), 0), append([]byte{d[0] ^ 1}, d[1:n]...)} {
				if s.VerifyFinished(dir, thCV, bad) {
					t.Errorf("%v: Finished %s verifies %x", c.h, dir, bad)
				}
			}
			if s.VerifyFinished(dir.Reverse(), thCV, d[:n]) || s.VerifyFinished(dir, thKEM, d[:n]) {
				t.Errorf("%v: Finished %s verifies in another place", c.h, dir)
			}
			all.Write(d[:n])
		}
		check := func(name string, r *Root, dir wire.Direction, parent []byte) {
			t.Helper()
			context := append([]byte{byte(dir)}, make([]byte, 8+2+2)...)
			context[10] = byte(profiles.ChaCha20Poly1305)
			traffic := derive(parent, "traffic", context, n)
			key, iv, err := r.Traffic(0, profiles.ChaCha20Poly1305, wire.ChannelControl)
			if err != nil || r.Direction() != dir || r.Generation() != 0 || r.Hash() != c.h {
				t.Errorf("%v: %s is %v, %v", c.h, name, r, err)
			}
			if !bytes.Equal(key[:], derive(traffic, "key", nil, 32)) || !bytes.Equal(iv[:], derive(traffic, "iv", nil, 12)) {
				t.Errorf("%v: %s gives another key", c.h, name)
			}
			all.Write(key[:])
			all.Write(iv[:])
		}
		check("c hs", s.AuthRoot(wire.ClientToServer), wire.ClientToServer, hs[0])
		check("s hs", s.AuthRoot(wire.ServerToClient), wire.ServerToClient, hs[1])
		c2s, s2c := s.Master(thCV)
		check("c2s", c2s, wire.ClientToServer, master)
		check("s2c", s2c, wire.ServerToClient, master)
		equal(t, c.h.String()+" ladder", all.Sum(nil), c.digest)

		s.Wipe()
		if *s != (Secrets{h: c.h}) {
			t.Errorf("%v: secrets are left after Wipe", c.h)
		}
	}
}

// Binding 9.1: one Expand-Label per generation, whose number is the context.
func TestRatchetStepsForward(t *testing.T) {
	for _, h := range hashes {
		r := NewRoot(h, wire.ServerToClient, count(h.Size()))
		want := count(h.Size())
		for gen := uint64(1); gen <= 3; gen++ {
			var context [8]byte
			binary.BigEndian.PutUint64(context[:], gen)
			next := make([]byte, h.Size())
			if err := ExpandLabel(h, want, "master ratchet", context[:], next); err != nil {
				t.Fatal(err)
			}
			want = next
			if err := r.Ratchet(); err != nil {
				t.Fatal(err)
			}
			if r.Generation() != gen || !bytes.Equal(r.secret[:h.Size()], want) {
				t.Fatalf("%v: generation %d differs", h, gen)
			}
		}
	}
}

// Binding 9.2: the old root salts the extract, the fresh secret is its key
// material, and the exchange's transcript is the context.
func TestRatchetKEMExtractsThenExpands(t *testing.T) {
	rekem := wire.AppendTLV(wire.AppendTLV(nil, wire.TagKEMShare, count(1216)), wire.TagRatchetGeneration, count(8))
	ack := wire.AppendTLV(wire.AppendTLV(nil, wire.TagKEMCiphertext, count(1120)), wire.TagRatchetGeneration, count(8))
	for _, h := range hashes {
		n := h.Size()
		r := NewRoot(h, wire.ClientToServer, count(n))
		fresh := bytes.Repeat([]byte{7}, 64)
		th := RekemPoint(h, rekem, ack)

		sum := h.New()
		sum.Write([]byte{1, 6})
		sum.Write(rekem)
		sum.Write([]byte{1, 7})
		sum.Write(ack)
		if !bytes.Equal(th.Bytes(), sum.Sum(nil)) {
			t.Fatalf("%v: TH_rekem is %x", h, th.Bytes())
		}
		want := make([]byte, n)
		if err := ExpandLabel(h, Extract(h, count(n), fresh), "master ratchet rekem", th.Bytes(), want); err != nil {
			t.Fatal(err)
		}
		if err := r.RatchetKEM(fresh, &th); err != nil {
			t.Fatal(err)
		}
		if r.Generation() != 1 || !bytes.Equal(r.secret[:n], want) {
			t.Errorf("%v: the step differs", h)
		}
	}
}

func TestRatchetRefusesWithoutNextGeneration(t *testing.T) {
	r := NewRoot(profiles.SHA256, 0, count(32))
	r.gen = math.MaxUint64
	before := *r
	if err := r.Ratchet(); !errors.Is(err, ErrGeneration) {
		t.Errorf("tier 1: %v", err)
	}
	if err := r.RatchetKEM(count(64), point(count(32))); !errors.Is(err, ErrGeneration) {
		t.Errorf("tier 2: %v", err)
	}
	if *r != before {
		t.Error("a refused step changed the root")
	}
}

func TestWipedRootGivesNothing(t *testing.T) {
	r := NewRoot(profiles.SHA384, 0, count(48))
	r.Wipe()
	if r.secret != (digest{}) || r.Hash() != 0 {
		t.Error("the secret is left")
	}
	key, iv, err := r.Traffic(0, profiles.AES256GCM, 0)
	if !errors.Is(err, ErrWiped) || key != [KeyLen]byte{} || iv != [IVLen]byte{} {
		t.Errorf("Traffic: %v", err)
	}
	if err := r.Ratchet(); !errors.Is(err, ErrWiped) {
		t.Errorf("Ratchet: %v", err)
	}
	if err := r.RatchetKEM(count(64), point(count(48))); !errors.Is(err, ErrWiped) {
		t.Errorf("RatchetKEM: %v", err)
	}
	if _, _, err := (*Root)(nil).Traffic(0, 1, 0); !errors.Is(err, ErrWiped) {
		t.Errorf("nil root: %v", err)
	}
}

func TestNewRootPanicsOnAWrongMaster(t *testing.T) {
	for _, f := range []func(){
		func() { NewRoot(profiles.SHA256, 0, count(31)) },
		func() { NewRoot(profiles.SHA384, 0, count(32)) },
		func() { NewRoot(0, 0, nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f()
		}()
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	master := bytes.Repeat([]byte{0xc3}, 32)
	s := NewSecrets(profiles.SHA256, master, point(count(32)))
	r := NewRoot(profiles.SHA256, wire.ClientToServer, master)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d", "%q"} {
		for _, v := range []any{s, r} {
			out := fmt.Sprintf(verb, v)
			if !strings.Contains(out, "redacted") || strings.Contains(strings.ToLower(out), "c3c3") || strings.Contains(out, "195 195") {
				t.Errorf("%s prints %q", verb, out)
			}
			if secret := hex.EncodeToString(s.handshake[:8]); strings.Contains(out, secret) {
				t.Errorf("%s prints a secret", verb)
			}
		}
	}
}

func TestTrafficDoesNotAllocate(t *testing.T) {
	r := NewRoot(profiles.SHA256, 0, count(32))
	if n := testing.AllocsPerRun(100, func() { _, _, _ = r.Traffic(1, profiles.AES256GCM, wire.ChannelBridge) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if n := testing.AllocsPerRun(100, func() { _ = r.Ratchet() }); n != 0 {
		t.Errorf("Ratchet: %v allocations", n)
	}
}

func BenchmarkTraffic(b *testing.B) {
	for _, h := range hashes {
		b.Run(h.String(), func(b *testing.B) {
			r := NewRoot(h, 0, count(h.Size()))
			b.ReportAllocs()
			for b.Loop() {
				_, _, _ = r.Traffic(1, profiles.AES256GCM, wire.ChannelBridge)
			}
		})
	}
}
