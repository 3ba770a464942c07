//go:build !trestle_unprotected

package record

import (
	"bytes"
	"go/build"
	"go/build/constraint"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
)

// The AEAD that does nothing is for measuring. No build has it but one with the
// tag trestle_unprotected, whatever the system, the processor and the other tags;
// and it has no other way in.
func TestOrdinaryBuildsHaveNoUnprotectedMode(t *testing.T) {
	const tag = "trestle_unprotected"
	if Unprotected {
		t.Fatal("Unprotected is set")
	}
	for _, goos := range []string{"linux", "darwin", "freebsd", "windows"} {
		for _, arch := range []string{"amd64", "arm64"} {
			for _, tags := range [][]string{nil, {"purego"}, {"invariants"}, {"race"}} {
				c := build.Default
				c.GOOS, c.GOARCH, c.BuildTags = goos, arch, tags
				with, err := c.MatchFile(".", "aead.go")
				without, err2 := c.MatchFile(".", "aead_unprotected.go")
				if err != nil || err2 != nil || !with || without {
					t.Errorf("%s/%s %v: aead.go %v, aead_unprotected.go %v; %v %v", goos, arch, tags, with, without, err, err2)
				}
			}
		}
	}
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "Unprotected = true") && name != "aead_unprotected.go" && name != "aead_test.go" {
			t.Errorf("%s sets Unprotected", name)
		}
		if name != "aead_unprotected.go" {
			continue
		}
		first, _, _ := strings.Cut(string(text), "\n")
		expr, err := constraint.Parse(first)
		if err != nil || expr.String() != tag {
			t.Errorf("%s is built with %v, %v", name, expr, err)
		}
	}
}

// What a build does with octets and a changed one says more than its constants.
func TestOrdinaryBuildsProtect(t *testing.T) {
	plain := bytes.Repeat([]byte("plain text "), 20)
	for _, suite := range []profiles.Suite{profiles.AES256GCM, profiles.ChaCha20Poly1305} {
		aead, err := newAEAD(suite, make([]byte, 32))
		if err != nil {
			t.Fatal(err)
		}
		nonce := make([]byte, aead.NonceSize())
		sealed := aead.Seal(nil, nonce, plain, nil)
		if len(sealed) != len(plain)+wire.TagLen || bytes.Contains(sealed, plain[:8]) || bytes.Equal(sealed[len(plain):], make([]byte, wire.TagLen)) {
			t.Errorf("%v: sealed as %x", suite, sealed)
		}
		for _, i := range []int{0, len(plain) - 1, len(plain), len(sealed) - 1} {
			changed := bytes.Clone(sealed)
			changed[i] ^= 1
			if _, err := aead.Open(nil, nonce, changed, nil); err == nil {
				t.Errorf("%v: octet %d changed, and opened", suite, i)
			}
		}
	}
}
