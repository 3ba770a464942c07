package main

import (
	"encoding/pem"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var keyLine = regexp.MustCompile(`^[0-9a-f]{64}\n$`)

func TestKeygenWritesAKeyForItsOwnerOnly(t *testing.T) {
	file := filepath.Join(t.TempDir(), "id.pem")
	made := trestle(t, "", "keygen", "--out", file)
	if made.code != exitOK || !keyLine.MatchString(made.out) {
		t.Fatalf("code %d, stdout %q, stderr %q", made.code, made.out, made.err)
	}
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		t.Errorf("mode %v lets others in", info.Mode())
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if block, rest := pem.Decode(text); block == nil || block.Type != "PRIVATE KEY" || len(rest) != 0 {
		t.Errorf("not one PKCS#8 PEM block: %q", text)
	}
	if shown := trestle(t, "", "keygen", "--show", file); shown != made {
		t.Errorf("--show gives %+v, --out gave %+v", shown, made)
	}
}

func TestKeygenSaysWhichFlagsItWants(t *testing.T) {
	for args, want := range map[string]string{
		"keygen":                  "trestle: keygen wants --out FILE, to make a key, or --show FILE, to print one's public key; see \"trestle keygen --help\"\n",
		"keygen --handle":         "--out FILE",
		"keygen --out a --show b": "--out and --show exclude each other",
		"keygen --out= --show=":   "--out FILE",
	} {
		if r := trestle(t, "", strings.Fields(args)...); r.code != exitUsage || r.out != "" || !strings.Contains(r.err, want) {
			t.Errorf("%s: code %d, stdout %q, stderr %q; want %q", args, r.code, r.out, r.err, want)
		}
	}
}

func TestKeygenNeverOverwrites(t *testing.T) {
	file := filepath.Join(t.TempDir(), "id.pem")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := trestle(t, "", "keygen", "--out", file)
	if r.code != exitFailure || r.out != "" || !strings.Contains(r.err, file) {
		t.Errorf("code %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	if text, _ := os.ReadFile(file); string(text) != "mine" {
		t.Errorf("the file now holds %q", text)
	}
}

func TestKeygenShowRefusesAKeyOthersCanRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "id.pem")
	if r := trestle(t, "", "keygen", "--out", file); r.code != exitOK {
		t.Fatal(r.err)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if r := trestle(t, "", "keygen", "--show", file); r.code != exitFailure || r.out != "" || !strings.Contains(r.err, "0644") {
		t.Errorf("code %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
}
