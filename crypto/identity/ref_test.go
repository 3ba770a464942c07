package identity

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/trestle-npamp/trestle/profiles"
)

func newKey(t *testing.T, s profiles.Scheme) PublicKey {
	t.Helper()
	k, err := Generate(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	return k.Public()
}

func TestRefByKeyAndByHandle(t *testing.T) {
	for _, s := range []profiles.Scheme{profiles.Ed25519, profiles.MLDSA87} {
		k, other := newKey(t, s), newKey(t, s)
		for _, text := range []string{k.String(), strings.ToUpper(k.String()), k.Handle()} {
			r, err := ParseRef(text)
			if err != nil {
				t.Fatalf("%.20s: %v", text, err)
			}
			if !r.Matches(k) || r.Matches(other) || r.Matches(PublicKey{}) || r.String() != k.Handle() {
				t.Errorf("%.20s names another key", text)
			}
			if err := PinRef(r)(k); err != nil {
				t.Error(err)
			}
			if err := PinRef(r)(other); !errors.Is(err, ErrPeerNotAllowed) {
				t.Errorf("another key: %v", err)
			}
		}
	}
	if (Ref{}).Matches(PublicKey{}) {
		t.Error("no name matches no key")
	}
}

func TestRefRefusesWhatIsNoHandle(t *testing.T) {
	h := newKey(t, profiles.Ed25519).Handle()
	for _, text := range []string{
		"", "b", h[1:], strings.ToUpper(h), h[:len(h)-1], h + "a", "z" + h[1:],
		h[:len(h)-1] + string(rune(h[len(h)-1]^1)), // the same bits, other spare ones, or another digest
		"bciq" + strings.Repeat("a", 30),
	} {
		if r, err := ParseRef(text); err == nil && r.String() != text || err != nil && !errors.Is(err, ErrRefText) {
			t.Errorf("%q: %v, %v", text, r, err)
		}
	}
}

func TestAllowListTakesHandles(t *testing.T) {
	a, b, c := newKey(t, profiles.Ed25519), newKey(t, profiles.MLDSA87), newKey(t, profiles.Ed25519)
	s, err := ParseSet(strings.NewReader("# peers\n" + a.Handle() + " # one\n" + b.String() + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	if !s.Contains(a) || !s.Contains(b) || s.Contains(c) || s.Len() != 2 {
		t.Error("the list is not what it says")
	}
}

func TestKnownPeers_TrustsTheFirstKeyAndNoOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "known")
	k, err := OpenKnownPeers(path)
	if err != nil {
		t.Fatal(err)
	}
	first, second := newKey(t, profiles.Ed25519), newKey(t, profiles.Ed25519)
	if err := k.Verifier("relay:7447")(first); err != nil {
		t.Fatal("first use:", err)
	}
	if err := k.Verifier("relay:7447")(first); err != nil {
		t.Error("second use:", err)
	}
	// Also after a restart, and for others that share the file.
	again, err := OpenKnownPeers(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Verifier("relay:7447")(second); !errors.Is(err, ErrPeerChanged) || !errors.Is(err, ErrPeerNotAllowed) {
		t.Errorf("another key under a known name: %v", err)
	}
	if err := again.Verifier("other:7447")(second); err != nil {
		t.Errorf("another name: %v", err)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("file mode %v", info.Mode())
	}
}

func TestKnownPeers_FailsClosed(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"words": "a b c\n", "handle": "relay nonsense\n"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenKnownPeers(path); !errors.Is(err, ErrKnownPeersFile) {
			t.Errorf("%s: %v", name, err)
		}
	}
	open := filepath.Join(dir, "open")
	if err := os.WriteFile(open, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenKnownPeers(open); !errors.Is(err, ErrPermissions) {
		t.Errorf("a file that others may write: %v", err)
	}
	k, err := OpenKnownPeers(filepath.Join(dir, "no", "such", "dir"))
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Verifier("relay")(newKey(t, profiles.Ed25519)); err == nil {
		t.Error("a first key that could not be written down was accepted")
	}
	k, _ = OpenKnownPeers(filepath.Join(dir, "names"))
	if err := k.Verifier("two words")(newKey(t, profiles.Ed25519)); err == nil {
		t.Error("a name that breaks the file was accepted")
	}
}

func TestKnownPeers_ManyAtOnce(t *testing.T) {
	k, err := OpenKnownPeers(filepath.Join(t.TempDir(), "known"))
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]PublicKey, 8)
	for i := range keys {
		keys[i] = newKey(t, profiles.Ed25519)
	}
	var wg sync.WaitGroup
	accepted := make([]bool, len(keys))
	for i := range keys {
		wg.Add(1)
		go func() {
			defer wg.Done()
			accepted[i] = k.Verifier("relay")(keys[i]) == nil
		}()
	}
	wg.Wait()
	n := 0
	for _, ok := range accepted {
		if ok {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d keys were the first", n)
	}
}
