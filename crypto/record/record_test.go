package record

import (
	"bytes"
	"crypto/cipher"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/crypto/schedule"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
)

var bothSuites = []profiles.Suite{profiles.AES256GCM, profiles.ChaCha20Poly1305}

const testType = wire.FirstChannelType

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func equal(t testing.TB, what string, got []byte, want string) {
	t.Helper()
	if hex.EncodeToString(got) != strings.ToLower(want) {
		t.Errorf("%s is %x, want %s", what, got, want)
	}
}

// frame views b, which it does not copy, as the one frame it must be.
func frame(t testing.TB, b []byte) wire.Frame {
	t.Helper()
	f, n, err := wire.ParseFrame(b, wire.MaxFrameLen)
	if err != nil || n != len(b) {
		t.Fatalf("%x is not a frame: %d, %v", b[:min(len(b), 64)], n, err)
	}
	return f
}

func master(h profiles.Hash) []byte { return bytes.Repeat([]byte{0x6d}, h.Size()) }

func root(p *profiles.Profile) *schedule.Root {
	return schedule.NewRoot(p.Hash, wire.ClientToServer, master(p.Hash))
}

func pair(p *profiles.Profile, suite profiles.Suite) (*Sealer, *Opener) {
	return NewSealer(root(p), p, suite, wire.ChannelBridge), NewOpener(root(p), p, suite, wire.ChannelBridge)
}

func seal(t testing.TB, s *Sealer, plain []byte) []byte {
	t.Helper()
	b, err := s.Seal(append(make([]byte, wire.HeaderLen), plain...), 0, 0, testType)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// everyKind runs a test for each suite, at a profile without diversification
// and at one with it.
func everyKind(t *testing.T, test func(t *testing.T, p *profiles.Profile, suite profiles.Suite)) {
	for _, p := range []*profiles.Profile{profiles.Standard, profiles.Sovereign} {
		for _, suite := range bothSuites {
			t.Run(p.Name+"/"+suite.String(), func(t *testing.T) { test(t, p, suite) })
		}
	}
}

// RFC 8439 section 2.8.2 and test case 16 of the GCM proposal.
func TestSuitesAreTheStandards(t *testing.T) {
	for _, c := range []struct {
		suite                   profiles.Suite
		key, nonce, aad, sealed string
		plain                   []byte
	}{
		{
			profiles.ChaCha20Poly1305,
			"808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f", "070000004041424344454647", "50515253c0c1c2c3c4c5c6c7",
			"d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d63dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6a5b67ecd3b3692ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc3ff4def08e4b7a9de576d26586cec64b6116" +
				"1ae10b594f09e26a7e902ecbd0600691",
			[]byte("Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would be it."),
		},
		{
			profiles.AES256GCM,
			"feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308", "cafebabefacedbaddecaf888", "feedfacedeadbeeffeedfacedeadbeefabaddad2",
			"522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662" +
				"76fc6ece0f4e1768cddf8853bb2d551b",
			unhex(t, "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"),
		},
	} {
		aead, err := newAEAD(c.suite, unhex(t, c.key))
		if err != nil {
			t.Fatal(err)
		}
		equal(t, c.suite.String(), aead.Seal(nil, unhex(t, c.nonce), c.plain, unhex(t, c.aad)), c.sealed)
		got, err := aead.Open(nil, unhex(t, c.nonce), unhex(t, c.sealed), unhex(t, c.aad))
		if err != nil || !bytes.Equal(got, c.plain) {
			t.Errorf("%s opens to %x, %v", c.suite, got, err)
		}
	}
}

// Frames that the published reference sealed with AES-256-GCM at Standard, one
// of them after a tier-1 step of the ratchet.
func TestSealsWhatTheReferenceSealed(t *testing.T) {
	r := schedule.NewRoot(profiles.SHA256, wire.ClientToServer, unhex(t, "66c350545e2790cb9baab87c4be7e4ad2dcee1fe9d7cce5e862cf921331cd854"))
	s := NewSealer(r, profiles.Standard, profiles.AES256GCM, wire.ChannelMemory)
	o := NewOpener(r, profiles.Standard, profiles.AES256GCM, wire.ChannelMemory)
	check := func(plain, want string) {
		t.Helper()
		got, err := s.Seal(append(make([]byte, wire.HeaderLen), plain...), 0, 0, 0x120)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, plain, got, want)
		if text, err := o.Open(frame(t, unhex(t, want))); err != nil || string(text) != plain {
			t.Errorf("%s opens to %q, %v", plain, text, err)
		}
	}
	check("memory 1", "4e50414d2201200001000000000000000000000018449b2fcd00000000000000000000000403cf1b19b2f51de8cec2a864dc7b50c01138f49e428310")
	check("memory 2", "4e50414d22012000010000000000000001000000187c8a4061000000000000000000000031b86b5af33040d465be7ad5e95580d0945bbc3976b73a27")
	if err := r.Ratchet(); err != nil {
		t.Fatal(err)
	}
	s.Reroot(r)
	o.Reroot(r)
	check("memory 5", "4e50414d2201200001000000000000000000000018449b2fcd0000000000000000000000d87a0f876a0ad18b779f4c0644dc308eb95652312b1d87d2")
}

func TestRoundTrip(t *testing.T) {
	everyKind(t, func(t *testing.T, p *profiles.Profile, suite profiles.Suite) {
		s, o := pair(p, suite)
		octets := uint64(0)
		for i, n := range []int{0, 1, 15, 16, 17, 63, 64, 65, 511, 512, 4096, 16384, 70000} {
			plain := bytes.Repeat([]byte{byte(i + 1)}, n)
			b := seal(t, s, plain)
			if len(b) != wire.HeaderLen+n+wire.TagLen {
				t.Fatalf("frame of %d octets for %d", len(b), n)
			}
			f := frame(t, b)
			h := f.Header()
			if h.Seq() != wire.Seq(i) || h.Channel() != wire.ChannelBridge || h.Type() != testType || h.Flags() != wire.FlagENC || h.PayloadLen() != n+wire.TagLen {
				t.Fatalf("header %x", h)
			}
			if n >= 16 && bytes.Contains(b, plain) {
				t.Fatal("the plaintext is in the frame")
			}
			got, err := o.Open(f)
			if err != nil || !bytes.Equal(got, plain) {
				t.Fatalf("%d octets: %v", n, err)
			}
			if cap(got) != len(got) {
				t.Fatal("the plaintext's capacity runs into the tag")
			}
			if n > 0 && &got[0] != &b[wire.HeaderLen] {
				t.Fatal("not opened in place")
			}
			octets += uint64(n)
			for _, st := range []*state{&s.state, &o.state} {
				if st.Seq() != wire.Seq(i+1) || st.Octets() != octets || st.Epoch() != 0 || st.Channel() != wire.ChannelBridge {
					t.Fatalf("state after frame %d: %v, %v", i, s, o)
				}
			}
		}
	})
}

// Frames are sealed one behind the other into one buffer, which the earlier
// ones must survive, with and without room for the tag.
func TestSealIntoTheMiddleOfABuffer(t *testing.T) {
	for _, spare := range []int{0, 4096} {
		s, o := pair(profiles.Standard, profiles.AES256GCM)
		buf := make([]byte, 0, spare)
		var err error
		for i := range 5 {
			start := len(buf)
			buf = append(buf, make([]byte, wire.HeaderLen)...)
			buf = append(buf, strings.Repeat("x", 10*i)...)
			if buf, err = s.Seal(buf, start, wire.FlagURG, testType); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 5 {
			f, n, err := wire.ParseFrame(buf, 0)
			if err != nil || n == 0 || f.Header().Flags() != wire.FlagURG|wire.FlagENC {
				t.Fatalf("frame %d: %d, %v", i, n, err)
			}
			if got, err := o.Open(f); err != nil || string(got) != strings.Repeat("x", 10*i) {
				t.Fatalf("frame %d: %q, %v", i, got, err)
			}
			buf = buf[n:]
		}
	}
}

// refused opens a frame that must fail, and checks that nothing moved.
func refused(t *testing.T, o *Opener, b []byte, want error) {
	t.Helper()
	seq, epoch, octets := o.Seq(), o.Epoch(), o.Octets()
	got, err := o.Open(frame(t, b))
	if !errors.Is(err, want) || got != nil {
		t.Fatalf("%v, want %v", err, want)
	}
	if o.Seq() != seq || o.Epoch() != epoch || o.Octets() != octets {
		t.Fatalf("%v moved the state: %v", err, o)
	}
}

// No octet of a sealed frame may change, but for those the CRC alone covers; and
// a frame that fails changes nothing: the genuine one still opens.
func TestTamperedFrameChangesNothing(t *testing.T) {
	everyKind(t, func(t *testing.T, p *profiles.Profile, suite profiles.Suite) {
		s, o := pair(p, suite)
		for round := range 2 { // an even and an odd sequence number
			plain := []byte("unverified plaintext must not get out")
			genuine := seal(t, s, plain)
			for i := range genuine {
				bad := bytes.Clone(genuine)
				bad[i] ^= 0x10
				switch {
				case i < 4, i == 4, i >= 21 && i < 36, i >= 17 && i < 21:
					continue // magic, version and length; CRC; reserved: wire rejects these
				case i < 21:
					binary.BigEndian.PutUint32(bad[21:], wire.Checksum(bad[:21]))
				}
				want := ErrTag
				switch {
				case i == 7 || i == 8:
					want = ErrChannel
				case i >= 9 && i < 17:
					want = ErrSequence
				}
				refused(t, o, bad, want)
				if bytes.Contains(bad, plain[:8]) || bytes.Contains(bad, plain[len(plain)-8:]) {
					t.Fatalf("octet %d: unverified plaintext is in the buffer", i)
				}
			}
			urgent := bytes.Clone(genuine)
			urgent[4] ^= byte(wire.FlagURG)
			binary.BigEndian.PutUint32(urgent[21:], wire.Checksum(urgent[:21]))
			refused(t, o, urgent, ErrTag)
			if got, err := o.Open(frame(t, genuine)); err != nil || !bytes.Equal(got, plain) {
				t.Fatalf("round %d: the genuine frame: %v", round, err)
			}
		}
	})
}

// D8: on TCP a sequence number is exactly the next one.
func TestWrongSequenceChangesNothing(t *testing.T) {
	everyKind(t, func(t *testing.T, p *profiles.Profile, suite profiles.Suite) {
		s, o := pair(p, suite)
		frames := [][]byte{seal(t, s, []byte("0")), seal(t, s, []byte("1")), seal(t, s, []byte("2"))}
		refused(t, o, bytes.Clone(frames[1]), ErrSequence)
		if o.Expanded() {
			t.Error("a frame out of sequence made us derive a key")
		}
		if _, err := o.Open(frame(t, bytes.Clone(frames[0]))); err != nil {
			t.Fatal(err)
		}
		refused(t, o, bytes.Clone(frames[0]), ErrSequence)
		refused(t, o, bytes.Clone(frames[2]), ErrSequence)
		untouched := bytes.Clone(frames[2])
		refused(t, o, untouched, ErrSequence)
		if !bytes.Equal(untouched, frames[2]) {
			t.Error("a frame out of sequence was written to")
		}
		for _, b := range frames[1:] {
			if _, err := o.Open(frame(t, b)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestUnsealedFramesAreRefused(t *testing.T) {
	_, o := pair(profiles.Standard, profiles.AES256GCM)
	for _, f := range []wire.Flags{0, wire.FlagURG, wire.FlagENC | wire.FlagCOMP, wire.FlagENC | wire.FlagFRAG, wire.FlagCOMP} {
		b := append(wire.AppendHeader(nil, f, testType, wire.ChannelBridge, 0, 20), make([]byte, 20)...)
		refused(t, o, b, ErrNotSealed)
	}
	for n := range wire.TagLen {
		b := append(wire.AppendHeader(nil, wire.FlagENC, testType, wire.ChannelBridge, 0, n), make([]byte, n)...)
		refused(t, o, b, ErrNotSealed)
	}
	b := append(wire.AppendHeader(nil, wire.FlagENC, testType, wire.ChannelControl, 0, 16), make([]byte, 16)...)
	refused(t, o, b, ErrChannel)
}

func TestSealRefusesWhatMayNotBeSent(t *testing.T) {
	s, _ := pair(profiles.Standard, profiles.AES256GCM)
	buf := append(make([]byte, wire.HeaderLen), "text"...)
	for _, f := range []wire.Flags{wire.FlagCOMP, wire.FlagFRAG, wire.FlagENC | wire.FlagCOMP} {
		if got, err := s.Seal(buf, 0, f, testType); !errors.Is(err, ErrFlags) || !bytes.Equal(got, buf) {
			t.Errorf("flags %x: %v", f, err)
		}
	}
	long := make([]byte, wire.MaxFrameLen-wire.TagLen+1)
	if _, err := s.Seal(long, 0, 0, testType); !errors.Is(err, ErrTooLong) {
		t.Errorf("one octet too long: %v", err)
	}
	if s.Seq() != 0 || s.Octets() != 0 || s.Expanded() {
		t.Errorf("a refusal moved the state: %v", s)
	}
	if b, err := s.Seal(long[:len(long)-1], 0, 0, testType); err != nil || len(b) != wire.MaxFrameLen {
		t.Errorf("the longest frame: %d, %v", len(b), err)
	}
}

func TestSequenceExhaustionIsRefused(t *testing.T) {
	everyKind(t, func(t *testing.T, p *profiles.Profile, suite profiles.Suite) {
		s, o := pair(p, suite)
		s.seq, o.seq = math.MaxUint64-1, math.MaxUint64-1
		b := seal(t, s, []byte("last"))
		if _, err := o.Open(frame(t, b)); err != nil {
			t.Fatal(err)
		}
		buf := append(make([]byte, wire.HeaderLen), "one more"...)
		if got, err := s.Seal(buf, 0, 0, testType); !errors.Is(err, ErrExhausted) || string(got[wire.HeaderLen:]) != "one more" {
			t.Errorf("Seal: %v", err)
		}
		more := append(wire.AppendHeader(nil, wire.FlagENC, testType, wire.ChannelBridge, math.MaxUint64, 16), make([]byte, 16)...)
		refused(t, o, more, ErrExhausted)
		// Another epoch is the way on.
		if s.Update() != nil || o.Update() != nil {
			t.Fatal("no next epoch")
		}
		if _, err := o.Open(frame(t, seal(t, s, nil))); err != nil {
			t.Error(err)
		}
	})
}

func TestEpochExhaustionIsRefused(t *testing.T) {
	s, _ := pair(profiles.Standard, profiles.AES256GCM)
	s.epoch = math.MaxUint64
	seal(t, s, nil)
	if err := s.Update(); !errors.Is(err, ErrExhausted) {
		t.Errorf("%v", err)
	}
	if s.Epoch() != math.MaxUint64 || s.Seq() != 1 {
		t.Errorf("a refused update moved the state: %v", s)
	}
}

func isZero(a cipher.AEAD) bool { return reflect.ValueOf(a).Elem().IsZero() }

// Section 3: after the KEY_UPDATE comes epoch+1, sequence number 0, and the old
// key is gone.
func TestUpdateMovesOnAndWipesTheOldKey(t *testing.T) {
	everyKind(t, func(t *testing.T, p *profiles.Profile, suite profiles.Suite) {
		s, o := pair(p, suite)
		for range 2 {
			if _, err := o.Open(frame(t, seal(t, s, []byte("old")))); err != nil {
				t.Fatal(err)
			}
		}
		var old []cipher.AEAD
		for _, st := range []*state{&s.state, &o.state} {
			for _, k := range st.slots {
				if k.aead != nil {
					if isZero(k.aead) {
						t.Fatal("the test looks at the wrong place")
					}
					old = append(old, k.aead)
				}
			}
		}
		if want := 2 + 2*int(s.parity); len(old) != want {
			t.Fatalf("%d keys were expanded, want %d", len(old), want)
		}
		late := seal(t, s, []byte("late"))
		if s.Update() != nil || o.Update() != nil {
			t.Fatal("no next epoch")
		}
		for _, a := range old {
			if !isZero(a) {
				t.Error("an old key is left in memory")
			}
		}
		if s.Epoch() != 1 || s.Seq() != 0 || s.Octets() != 0 || s.Expanded() || s.slots[0].iv != [12]byte{} || s.nonce != [12]byte{} {
			t.Errorf("after Update: %v", s)
		}
		fresh := seal(t, s, []byte("new"))
		if frame(t, fresh).Header().Seq() != 0 {
			t.Error("the sequence number does not restart")
		}
		refused(t, o, late, ErrSequence)
		if got, err := o.Open(frame(t, fresh)); err != nil || string(got) != "new" {
			t.Errorf("%q, %v", got, err)
		}
		if len(late) == 0 || s.Update() != nil || s.Epoch() != 2 {
			t.Error("epochs do not go on")
		}
	})
}

// A frame of one epoch does not open in another, though its number fits.
func TestEpochsHaveKeysOfTheirOwn(t *testing.T) {
	everyKind(t, func(t *testing.T, p *profiles.Profile, suite profiles.Suite) {
		s, o := pair(p, suite)
		old := seal(t, s, []byte("old"))
		if err := o.Update(); err != nil {
			t.Fatal(err)
		}
		refused(t, o, old, ErrTag)
	})
}

// D2: even sequence numbers under the selected suite, odd ones under the other,
// each with the key its suite's code point derives.
func TestDiversificationAlternatesTheSuites(t *testing.T) {
	for _, suite := range bothSuites {
		p := profiles.High
		s, _ := pair(p, suite)
		for i := range 4 {
			plain := []byte{byte(i), 1, 2, 3}
			b := seal(t, s, plain)
			of := suite
			if i%2 == 1 {
				of = suite.Other()
			}
			key, iv, err := root(p).Traffic(0, of, wire.ChannelBridge)
			if err != nil {
				t.Fatal(err)
			}
			aead, err := newAEAD(of, key[:])
			if err != nil {
				t.Fatal(err)
			}
			iv[11] ^= byte(i)
			got, err := aead.Open(nil, iv[:], b[wire.HeaderLen:], b[:wire.PrefixLen])
			if err != nil || !bytes.Equal(got, plain) {
				t.Errorf("%s, sequence number %d: not sealed with %s (%v)", suite, i, of, err)
			}
		}
	}
}

func TestIdleDropsTheKeyAndNothingElse(t *testing.T) {
	everyKind(t, func(t *testing.T, p *profiles.Profile, suite profiles.Suite) {
		s, o := pair(p, suite)
		for i := range 4 {
			b := seal(t, s, []byte{byte(i)})
			a := s.slots[wire.Seq(i)&s.parity].aead
			if !s.Expanded() {
				t.Fatal("no key is expanded after a seal")
			}
			s.Idle()
			if s.Expanded() || !isZero(a) {
				t.Fatal("the expanded key is left")
			}
			if s.Seq() != wire.Seq(i+1) || s.Octets() != uint64(i+1) {
				t.Fatalf("Idle moved the state: %v", s)
			}
			if got, err := o.Open(frame(t, b)); err != nil || !bytes.Equal(got, []byte{byte(i)}) {
				t.Fatal(err)
			}
			o.Idle()
		}
	})
}

// After a ratchet every channel of the direction is at epoch 0 of the new root,
// by Reroot and also without it: no key of an old generation is ever used.
func TestRatchetRestartsTheChannel(t *testing.T) {
	for _, reroot := range []bool{true, false} {
		everyKind(t, func(t *testing.T, p *profiles.Profile, suite profiles.Suite) {
			rs, ro := root(p), root(p)
			s := NewSealer(rs, p, suite, wire.ChannelControl)
			o := NewOpener(ro, p, suite, wire.ChannelControl)
			if _, err := o.Open(frame(t, seal(t, s, []byte("a")))); err != nil {
				t.Fatal(err)
			}
			if s.Update() != nil || o.Update() != nil {
				t.Fatal("no next epoch")
			}
			stale := seal(t, s, []byte("stale"))
			old := s.slots[0].aead
			if rs.Ratchet() != nil || ro.Ratchet() != nil {
				t.Fatal("no next generation")
			}
			if reroot {
				s.Reroot(rs)
				o.Reroot(ro)
				if !isZero(old) || s.Epoch() != 0 || s.Seq() != 0 || s.Octets() != 0 {
					t.Fatalf("after Reroot: %v", s)
				}
			}
			fresh := seal(t, s, []byte("b"))
			if !isZero(old) || s.Epoch() != 0 || s.Seq() != 1 {
				t.Fatalf("after the ratchet: %v", s)
			}
			got, err := o.Open(frame(t, stale))
			if !errors.Is(err, ErrTag) || got != nil {
				t.Fatalf("a frame of the old generation: %v", err)
			}
			if got, err := o.Open(frame(t, fresh)); err != nil || string(got) != "b" {
				t.Fatalf("%q, %v", got, err)
			}
			// Update right after a ratchet counts from the new epoch 0.
			if rs.Ratchet() != nil || s.Update() != nil || s.Epoch() != 1 {
				t.Fatalf("update after a ratchet: %v", s)
			}
		})
	}
}

func TestWipedStateIsUseless(t *testing.T) {
	everyKind(t, func(t *testing.T, p *profiles.Profile, suite profiles.Suite) {
		check := func(what string, s *Sealer, o *Opener, b []byte) {
			t.Helper()
			buf := append(make([]byte, wire.HeaderLen), "text"...)
			if got, err := s.Seal(buf, 0, 0, testType); !errors.Is(err, ErrWiped) || string(got[wire.HeaderLen:]) != "text" {
				t.Errorf("%s: Seal: %v", what, err)
			}
			refused(t, o, b, ErrWiped)
		}
		s, o := pair(p, suite)
		b := seal(t, s, nil)
		old := s.slots[0].aead
		s.Wipe()
		o.Wipe()
		s.Wipe()
		if !isZero(old) || s.Expanded() {
			t.Error("a key is left")
		}
		check("Wipe", s, o, b)
		if err := s.Update(); !errors.Is(err, ErrWiped) {
			t.Errorf("Update: %v", err)
		}

		s, o = pair(p, suite)
		b = seal(t, s, nil)
		s.root.Wipe()
		o.root.Wipe()
		check("wiped root", s, o, b)

		s, o = pair(p, suite)
		b = seal(t, s, nil)
		s.Reroot(nil)
		o.Reroot(nil)
		check("Reroot(nil)", s, o, b)
	})
}

func TestUnknownSuiteIsAnError(t *testing.T) {
	s := NewSealer(root(profiles.Standard), profiles.Standard, 0x7777, wire.ChannelBridge)
	if _, err := s.Seal(make([]byte, wire.HeaderLen), 0, 0, testType); !errors.Is(err, ErrSuite) {
		t.Errorf("%v", err)
	}
	if HasSuite(0x7777) || !HasSuite(profiles.AES256GCM) || !HasSuite(profiles.ChaCha20Poly1305) {
		t.Error("HasSuite")
	}
}

func TestChannelsAndDirectionsHaveKeysOfTheirOwn(t *testing.T) {
	p := profiles.Standard
	b := seal(t, NewSealer(root(p), p, profiles.AES256GCM, wire.ChannelBridge), []byte("text"))
	other := schedule.NewRoot(p.Hash, wire.ServerToClient, master(p.Hash))
	refused(t, NewOpener(other, p, profiles.AES256GCM, wire.ChannelBridge), bytes.Clone(b), ErrTag)
	refused(t, NewOpener(root(p), p, profiles.ChaCha20Poly1305, wire.ChannelBridge), bytes.Clone(b), ErrTag)
	// The same octets under another channel's number: the number is refused
	// before, and the key would be another.
	moved := bytes.Clone(b)
	binary.BigEndian.PutUint16(moved[7:], uint16(wire.ChannelMemory))
	binary.BigEndian.PutUint32(moved[21:], wire.Checksum(moved[:21]))
	refused(t, NewOpener(root(p), p, profiles.AES256GCM, wire.ChannelMemory), moved, ErrTag)
}

// D1: the frame that reaches a bound is a KEY_UPDATE.
func TestDueAtTheBounds(t *testing.T) {
	s, _ := pair(profiles.Standard, profiles.AES256GCM)
	b := profiles.Bounds{Frames: 3, Octets: 1000}
	for i := range 3 {
		if got, want := s.Due(b), i == 2; got != want {
			t.Errorf("after %d frames: %v", i, got)
		}
		seal(t, s, []byte("x"))
	}
	if err := s.Update(); err != nil || s.Due(b) {
		t.Errorf("due after Update (%v)", err)
	}
	seal(t, s, make([]byte, 1000))
	if !s.Due(b) {
		t.Error("not due after the octets")
	}
}

// Suites by the processor: AES first where it is in hardware.
func TestPreferredSuitesFollowTheProcessor(t *testing.T) {
	got := PreferredSuites()
	want := slices.Clone(bothSuites)
	if !hasAESGCM() {
		slices.Reverse(want)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestKeysAreNotPrinted(t *testing.T) {
	s, o := pair(profiles.Standard, profiles.ChaCha20Poly1305)
	if _, err := o.Open(frame(t, seal(t, s, nil))); err != nil {
		t.Fatal(err)
	}
	key, _, err := root(profiles.Standard).Traffic(0, profiles.ChaCha20Poly1305, wire.ChannelBridge)
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d"} {
		for _, v := range []any{s, o} {
			out := fmt.Sprintf(verb, v)
			if !strings.Contains(out, "redacted") || strings.Contains(out, hex.EncodeToString(key[:4])) || strings.Contains(out, "109 109") {
				t.Errorf("%s prints %q", verb, out)
			}
		}
	}
}

func TestSealAndOpenDoNotAllocate(t *testing.T) {
	everyKind(t, func(t *testing.T, p *profiles.Profile, suite profiles.Suite) {
		if chachaAllocates && (p.Diversify || suite == profiles.ChaCha20Poly1305) {
			return
		}
		s, o := pair(p, suite)
		buf := make([]byte, wire.HeaderLen+512, wire.HeaderLen+512+wire.TagLen)
		step := func() {
			b, err := s.Seal(buf, 0, 0, testType)
			if err != nil {
				t.Fatal(err)
			}
			f, _, err := wire.ParseFrame(b, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := o.Open(f); err != nil {
				t.Fatal(err)
			}
		}
		step()
		step()
		if n := testing.AllocsPerRun(200, step); n != 0 {
			t.Errorf("%v allocations", n)
		}
		// Nor does a refusal.
		b := seal(t, s, nil)
		b[len(b)-1] ^= 1
		bad := frame(t, b)
		if n := testing.AllocsPerRun(200, func() {
			if _, err := o.Open(bad); err == nil {
				t.Fatal("opened")
			}
		}); n != 0 {
			t.Errorf("a refusal: %v allocations", n)
		}
	})
}

// FuzzOpen: whatever arrives, nothing but the genuine next frame opens, and
// nothing moves; the genuine frame opens afterwards.
func FuzzOpen(f *testing.F) {
	s, _ := pair(profiles.Sovereign, profiles.AES256GCM)
	f.Add(seal(f, s, []byte("first")), true)
	f.Add(seal(f, s, []byte("second")), false)
	f.Add(wire.AppendHeader(nil, 0, testType, wire.ChannelBridge, 0, 0), true)
	f.Add(append(wire.AppendHeader(nil, wire.FlagENC, testType, wire.ChannelBridge, 0, 16), make([]byte, 16)...), false)
	f.Fuzz(func(t *testing.T, b []byte, diversify bool) {
		p := profiles.Standard
		if diversify {
			p = profiles.Sovereign
		}
		s, o := pair(p, profiles.AES256GCM)
		genuine := seal(t, s, []byte("genuine"))
		fr, n, err := wire.ParseFrame(bytes.Clone(b), 0)
		if err != nil || n == 0 {
			return
		}
		before := bytes.Clone(b[:n])
		plain, err := o.Open(fr)
		if err == nil {
			// Only a frame that our own sealer could have made.
			again, serr := NewSealer(root(p), p, profiles.AES256GCM, wire.ChannelBridge).
				Seal(append(make([]byte, wire.HeaderLen), plain...), 0, fr.Header().Flags(), fr.Header().Type())
			if serr != nil || !bytes.Equal(again, before) {
				t.Fatalf("%x opened to %x", before, plain)
			}
			return
		}
		if plain != nil || o.Seq() != 0 || o.Octets() != 0 {
			t.Fatalf("%v: plaintext %x, state %v", err, plain, o)
		}
		if got, err := o.Open(frame(t, genuine)); err != nil || string(got) != "genuine" {
			t.Fatalf("the genuine frame: %q, %v", got, err)
		}
	})
}
