package identity

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
)

// ErrPeerChanged is returned for a peer that shows another key than the one it
// is known by: somebody else may be answering in its place. It is an
// ErrPeerNotAllowed.
var ErrPeerChanged = fmt.Errorf("%w: it is known by another key", ErrPeerNotAllowed)

// ErrKnownPeersFile is returned for a known-peers file that can't be read as one.
var ErrKnownPeersFile = errors.New("identity: not a known-peers file")

// KnownPeers is a file of names with the keys that answered to them first: trust
// on first use. One line is a name, white space and a handle; what follows a '#'
// is a comment. Its methods may be called by many goroutines at once; several
// processes may share the file.
type KnownPeers struct {
	path string
	mu   sync.Mutex
}

// OpenKnownPeers checks the file at path, which need not exist yet. Errors are
// ErrKnownPeersFile, ErrPermissions for a file that others may write, and the
// file system's.
func OpenKnownPeers(path string) (*KnownPeers, error) {
	k := &KnownPeers{path: path}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o022 != 0 {
		return nil, fmt.Errorf("%w: %s", ErrPermissions, path)
	}
	if _, err := k.read(); err != nil {
		return nil, err
	}
	return k, nil
}

// Verifier accepts the key that name is known by, and whichever key it shows the
// first time, which is then written down. A first key that can't be written down
// is refused.
func (k *KnownPeers) Verifier(name string) Verifier {
	return func(peer PublicKey) error {
		k.mu.Lock()
		defer k.mu.Unlock()
		known, err := k.read()
		if err != nil {
			return err
		}
		if ref, ok := known[name]; ok {
			if !ref.Matches(peer) {
				return fmt.Errorf("%w: %s shows %s, known is %s (%s)", ErrPeerChanged, name, peer.Handle(), ref, k.path)
			}
			return nil
		}
		return k.add(name, RefTo(peer))
	}
}

func (k *KnownPeers) read() (map[string]Ref, error) {
	text, err := os.ReadFile(k.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	known := make(map[string]Ref)
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if len(f) != 2 {
			return nil, fmt.Errorf("%w: %s, line %d", ErrKnownPeersFile, k.path, n)
		}
		ref, err := ParseRef(f[1])
		if err != nil {
			return nil, fmt.Errorf("%w: %s, line %d: %w", ErrKnownPeersFile, k.path, n, err)
		}
		// The first entry counts: two processes may have met the peer at once.
		if _, twice := known[f[0]]; !twice {
			known[f[0]] = ref
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrKnownPeersFile, k.path, err)
	}
	return known, nil
}

// add writes one line, with one write, so that lines of several processes do not
// mix.
func (k *KnownPeers) add(name string, ref Ref) (err error) {
	if name == "" || strings.ContainsAny(name, " \t\r\n#") {
		return fmt.Errorf("identity: %q can't be written down as a name", name)
	}
	f, err := os.OpenFile(k.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = fmt.Fprintf(f, "%s %s\n", name, ref)
	return err
}
