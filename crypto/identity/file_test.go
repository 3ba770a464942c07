package identity

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/trestle-npamp/trestle/profiles"
)

// Keys as other programs write them: Ed25519 by OpenSSL's genpkey, ML-DSA-87
// (seed 00 01 .. 1f) by the cryptography package of Python.
var foreignPEM = map[profiles.Scheme]struct{ text, public string }{
	profiles.Ed25519: {
		"-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIEsb2DLCRjmYEcCs2AB3gKoAOFv4UOEhSo1ss8TGpSqT\n-----END PRIVATE KEY-----\n",
		"a31995fbda7df97fede348025909a3ad17284855c49a40f7fc8e3ccbdeac88ef",
	},
	profiles.MLDSA87: {
		"-----BEGIN PRIVATE KEY-----\nMDQCAQAwCwYJYIZIAWUDBAMTBCKAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZ\nGhscHR4f\n-----END PRIVATE KEY-----\n",
		"",
	},
}

func TestPEMIsWhatOthersWrite(t *testing.T) {
	for scheme, c := range foreignPEM {
		k, err := ParsePEM([]byte(" \n" + c.text + "\n\t"))
		if err != nil {
			t.Fatalf("%s: %v", scheme, err)
		}
		want := c.public
		if want == "" {
			want = countingKey(t, scheme).Public().String()
		}
		if k.Public().String() != want {
			t.Errorf("%s: public key %s", scheme, k.Public())
		}
		text, err := k.MarshalPEM()
		if err != nil || string(text) != c.text {
			t.Errorf("%s: we write %q, %v", scheme, text, err)
		}
	}
}

func TestEd25519PEMAgreesWithX509(t *testing.T) {
	k := fromSeed(t, profiles.Ed25519, rfc8032Seed1)
	der, err := x509.MarshalPKCS8PrivateKey(ed25519.NewKeyFromSeed(unhex(t, rfc8032Seed1)))
	if err != nil {
		t.Fatal(err)
	}
	text, err := k.MarshalPEM()
	if err != nil || !bytes.Equal(text, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})) {
		t.Errorf("%s, %v", text, err)
	}
}

func pemOf(der string, t *testing.T) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: unhex(t, der)})
}

func TestParsePEMRefusesWhatIsNoKey(t *testing.T) {
	good := foreignPEM[profiles.Ed25519].text
	seed := rfc8032Seed1
	for name, text := range map[string][]byte{
		"empty":              nil,
		"no PEM":             []byte("key"),
		"text before":        []byte("x\n" + good),
		"text after":         []byte(good + "x"),
		"two keys":           []byte(good + good),
		"another type":       []byte(strings.ReplaceAll(good, "PRIVATE KEY", "EC PRIVATE KEY")),
		"headers":            []byte(strings.Replace(good, "KEY-----\n", "KEY-----\nProc-Type: 4,ENCRYPTED\n\n", 1)),
		"not DER":            pemOf("00", t),
		"trailing octets":    pemOf("302e020100300506032b657004220420"+seed+"00", t),
		"version 2":          pemOf("302e020102300506032b657004220420"+seed, t),
		"parameters":         pemOf("3030020100300706032b6570050004220420"+seed, t),
		"X25519":             pemOf("302e020100300506032b656e04220420"+seed, t),
		"short seed":         pemOf("302d020100300506032b65700421041f"+seed[2:], t),
		"long seed":          pemOf("302f020100300506032b657004230421"+seed+"00", t),
		"wrong inner tag":    pemOf("302e020100300506032b657004228020"+seed, t),
		"wrong inner length": pemOf("302e020100300506032b65700422041f"+seed, t),
		"another public key": pemOf("3051020101300506032b657004220420"+seed+"812100"+strings.Repeat("11", 32), t),
	} {
		if k, err := ParsePEM(text); !errors.Is(err, ErrKeyFile) || k != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// RFC 5958's second version, which names the right public key.
	k, err := ParsePEM(pemOf("3051020101300506032b657004220420"+seed+"812100"+rfc8032Public1, t))
	if err != nil || k.Public().String() != rfc8032Public1 {
		t.Errorf("with the public key: %v", err)
	}
}

func TestKeyFilesRoundTrip(t *testing.T) {
	for _, scheme := range schemes {
		dir := t.TempDir()
		path := filepath.Join(dir, "identity.pem")
		k := countingKey(t, scheme)
		if err := SaveFile(path, k); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		got, err := LoadFile(path)
		if err != nil || !got.Public().Equal(k.Public()) {
			t.Errorf("%s: %v", scheme, err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("%d files are left behind, %v", len(entries), err)
		}
	}
}

func TestSaveFileNeverReplaces(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "identity.pem")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := SaveFile(path, countingKey(t, profiles.Ed25519)); !errors.Is(err, fs.ErrExist) {
		t.Errorf("%v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		t.Errorf("%q, %v", b, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%d files are left behind, %v", len(entries), err)
	}
	if err := SaveFile(filepath.Join(dir, "none", "identity.pem"), countingKey(t, profiles.Ed25519)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing directory: %v", err)
	}
}

func TestLoadFileWantsTheOwnerAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "identity.pem")
	if err := SaveFile(path, countingKey(t, profiles.Ed25519)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		mode fs.FileMode
		ok   bool
	}{{0o600, true}, {0o400, true}, {0o700, true}, {0o640, false}, {0o604, false}, {0o620, false}, {0o602, false}, {0o610, false}, {0o644, false}} {
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		_, err := LoadFile(path)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrPermissions) {
			t.Errorf("mode %04o: %v", c.mode, err)
		}
	}
}

func TestLoadFileRefusesWhatIsNoKey(t *testing.T) {
	dir := t.TempDir()
	if _, err := LoadFile(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	if _, err := LoadFile(dir); !errors.Is(err, ErrKeyFile) {
		t.Errorf("directory: %v", err)
	}
	for name, content := range map[string]string{
		"empty": "",
		"long":  strings.Repeat(" ", maxKeyFile) + foreignPEM[profiles.Ed25519].text,
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadFile(path); !errors.Is(err, ErrKeyFile) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAllowListFile(t *testing.T) {
	a, b := countingKey(t, profiles.Ed25519).Public(), countingKey(t, profiles.MLDSA87).Public()
	path := filepath.Join(t.TempDir(), "peers")
	text := "# peers\n\n" + a.String() + "\n\t" + strings.ToUpper(b.String()) + "  # the other one\r\n" + a.String() + "#twice"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := LoadSet(path)
	if err != nil || s.Len() != 2 || !s.Contains(a) || !s.Contains(b) {
		t.Errorf("%v, %v", s.Len(), err)
	}
	if _, err := LoadSet(path + "none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	for text, line := range map[string]string{
		"zz":                             "line 1",
		"#\n\n" + a.String() + "00\n":    "line 3",
		a.String() + " " + a.String():    "line 1",
		"#\n" + a.String()[1:] + "\n":    "line 2",
		"key: " + a.String():             "line 1",
		a.String() + "\n0x" + a.String(): "line 2",
	} {
		s, err := ParseSet(strings.NewReader(text))
		if !errors.Is(err, ErrRefText) || s != nil || !strings.Contains(err.Error(), line+":") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := ParseSet(strings.NewReader("#\n#" + strings.Repeat("x", maxSetLine))); !errors.Is(err, bufio.ErrTooLong) {
		t.Errorf("long line: %v", err)
	}
	if s, err := ParseSet(strings.NewReader("")); err != nil || s.Len() != 0 {
		t.Errorf("empty: %v", err)
	}
}

// FuzzParsePEM: nothing panics, and what parses is written in a form that
// parses to the same key.
func FuzzParsePEM(f *testing.F) {
	for _, c := range foreignPEM {
		f.Add([]byte(c.text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		k, err := ParsePEM(text)
		if err != nil {
			if !errors.Is(err, ErrKeyFile) || k != nil {
				t.Fatal(err)
			}
			return
		}
		again, err := k.MarshalPEM()
		if err != nil {
			t.Fatal(err)
		}
		if k2, err := ParsePEM(again); err != nil || !k2.Public().Equal(k.Public()) {
			t.Fatalf("%v", err)
		}
	})
}

// FuzzParseSet: nothing panics, and every key of a set is named in the text, by
// itself or by its handle.
func FuzzParseSet(f *testing.F) {
	f.Add("# a\n" + rfc8032Public1 + "\n")
	f.Add(rfc8032Public1 + " # b\r\n\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSet(strings.NewReader(text))
		if err != nil {
			return
		}
		named := make(map[string]bool)
		for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r == '#' || unicode.IsSpace(r) }) {
			if ref, err := ParseRef(word); err == nil {
				named[ref.String()] = true
			}
		}
		for ref := range s.refs {
			if !named[ref.String()] {
				t.Errorf("%s is not in the text", ref)
			}
		}
	})
}
