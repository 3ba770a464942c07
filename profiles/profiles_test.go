package profiles

import (
	"crypto/sha256"
	"crypto/sha512"
	"slices"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/wire"
)

// The rows of the registry's profile table, with our key-update bounds (D1)
// and our reading of the key exchanges (D26).
func TestProfilesAreTheRegistrysRows(t *testing.T) {
	for _, row := range []struct {
		p       *Profile
		code    uint8
		name    string
		hash    Hash
		kems    []KEM
		schemes []Scheme
		div     bool
		bounds  Bounds
	}{
		{Standard, 1, "Standard", SHA256, []KEM{0x11ec, 0x11ed}, []Scheme{0x0807}, false, Bounds{16777216, 68719476736, time.Hour}},
		{High, 2, "High", SHA384, []KEM{0x11ed}, []Scheme{0x0905, 0x0807}, true, Bounds{4194304, 17179869184, 30 * time.Minute}},
		{Sovereign, 3, "Sovereign", SHA384, []KEM{0x11ed}, []Scheme{0x0905}, true, Bounds{1048576, 4294967296, 10 * time.Minute}},
	} {
		p := row.p
		if p.Code != row.code || p.Name != row.name || p.Hash != row.hash || !slices.Equal(p.KEMs, row.kems) ||
			!slices.Equal(p.Schemes, row.schemes) || p.Diversify != row.div || p.Bounds != row.bounds {
			t.Errorf("%s is not its row: %+v", row.name, *p)
		}
		if !slices.Equal(p.Suites, []Suite{1, 2}) {
			t.Errorf("%s: suites %v", row.name, p.Suites)
		}
		if ByCode(row.code) != p || ByName(row.name) != p || p.String() != row.name {
			t.Errorf("%s is not found by its code and name", row.name)
		}
	}
	for _, code := range []uint8{0, 4, 0xff} {
		if ByCode(code) != nil {
			t.Errorf("reserved code %d has a profile", code)
		}
	}
	if ByName("standard") != nil || (*Profile)(nil).String() != "none" {
		t.Error("a name that is none was found")
	}
	if !slices.Equal(All(), []*Profile{Standard, High, Sovereign}) {
		t.Error("All is not the three profiles, weakest first")
	}
}

// D26: High refuses X25519MLKEM768; Sovereign must not accept it.
func TestOnlyStandardAcceptsX25519MLKEM768(t *testing.T) {
	for _, p := range All() {
		if got := p.AcceptsKEM(X25519MLKEM768); got != (p == Standard) {
			t.Errorf("%s accepts X25519MLKEM768: %v", p, got)
		}
		if !p.AcceptsKEM(X25519MLKEM1024) {
			t.Errorf("%s refuses X25519MLKEM1024", p)
		}
		if p.AcceptsKEM(0x11eb) || p.AcceptsScheme(0x0804) || p.AcceptsSuite(3) || !p.AcceptsSuite(AES256GCM) {
			t.Errorf("%s accepts what is not registered", p)
		}
	}
	if Sovereign.AcceptsScheme(Ed25519) || Standard.AcceptsScheme(MLDSA87) || !High.AcceptsScheme(Ed25519) {
		t.Error("signature schemes")
	}
}

func TestHashSizes(t *testing.T) {
	for _, c := range []struct {
		h           Hash
		size, block int
		name        string
	}{{SHA256, sha256.Size, 64, "SHA-256"}, {SHA384, sha512.Size384, 128, "SHA-384"}, {0, 0, 0, "Hash(0)"}} {
		if c.h.Size() != c.size || c.h.BlockSize() != c.block || c.h.String() != c.name {
			t.Errorf("%v: size %d, block %d", c.h, c.h.Size(), c.h.BlockSize())
		}
		if n := c.h.New(); (n == nil) != (c.size == 0) || n != nil && n.Size() != c.size {
			t.Errorf("%v: New has another size", c.h)
		}
	}
}

func TestOtherSuitePairsTheTwo(t *testing.T) {
	if AES256GCM.Other() != ChaCha20Poly1305 || ChaCha20Poly1305.Other() != AES256GCM || Suite(7).Other() != 0 {
		t.Fatal("Other does not pair the two suites")
	}
}

func TestCodePointsHaveNames(t *testing.T) {
	for got, want := range map[string]string{
		X25519MLKEM768.String(): "X25519MLKEM768", X25519MLKEM1024.String(): "X25519MLKEM1024", KEM(1).String(): "KEM(0x0001)",
		AES256GCM.String(): "AES-256-GCM", ChaCha20Poly1305.String(): "ChaCha20-Poly1305", Suite(9).String(): "Suite(0x0009)",
		Ed25519.String(): "Ed25519", MLDSA87.String(): "ML-DSA-87", Scheme(2).String(): "Scheme(0x0002)",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The lowest profile of each channel, by number as registered.
func TestChannelsOpenFromTheirLowestProfile(t *testing.T) {
	high := []wire.Channel{4, 6, 8, 9, 0x13}
	for ch := wire.Channel(0); ch <= 0x13; ch++ {
		least := Standard
		switch {
		case slices.Contains(high, ch):
			least = High
		case ch == 0x0b:
			least = Sovereign
		}
		for _, p := range All() {
			if got, want := ChannelAllowed(p, ch), p.Code >= least.Code; got != want {
				t.Errorf("channel %#x at %s: %v", uint16(ch), p, got)
			}
		}
	}
	for _, ch := range []wire.Channel{0x14, 0x100, 0xf000, 0xfffe, 0xffff} {
		if ChannelAllowed(Sovereign, ch) {
			t.Errorf("channel %#x is allowed", uint16(ch))
		}
	}
	if ChannelAllowed(nil, 0) {
		t.Error("no profile allows a channel")
	}
}

func TestCommonScheme(t *testing.T) {
	for _, c := range []struct {
		ps   []*Profile
		want Scheme
	}{
		{nil, 0},
		{[]*Profile{Standard}, Ed25519},
		{[]*Profile{High}, Ed25519},
		{[]*Profile{High, Standard}, Ed25519},
		{[]*Profile{Sovereign}, MLDSA87},
		{[]*Profile{Sovereign, High}, MLDSA87},
		{[]*Profile{Sovereign, Standard}, 0},
	} {
		if got := CommonScheme(c.ps...); got != c.want {
			t.Errorf("%v: %v, want %v", c.ps, got, c.want)
		}
	}
}
