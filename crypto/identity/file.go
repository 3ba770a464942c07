package identity

import (
	"bufio"
	"bytes"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/trestle-npamp/trestle/internal/buf"
)

// Errors of key files.
var (
	// ErrKeyFile is returned for a file that isn't exactly one unencrypted
	// PKCS#8 private key in PEM form, of a scheme this package has.
	ErrKeyFile = errors.New("identity: not a PKCS#8 private key file")
	// ErrPermissions is returned for a private key file that others than its
	// owner may read or write.
	ErrPermissions = errors.New("identity: private key file is open to others than its owner")
)

const (
	pemType = "PRIVATE KEY"
	// maxKeyFile bounds what is read of a key file, in octets.
	maxKeyFile = 64 << 10
	// othersMode are the permission bits a private key file must not have.
	othersMode = 0o077
)

// pkcs8 is OneAsymmetricKey of RFC 5958.
type pkcs8 struct {
	Version    int
	Algorithm  algorithm
	PrivateKey []byte
	Attributes asn1.RawValue  `asn1:"optional,tag:0"`
	PublicKey  asn1.BitString `asn1:"optional,tag:1"`
}

type algorithm struct {
	Algorithm  asn1.ObjectIdentifier
	Parameters asn1.RawValue `asn1:"optional"`
}

// MarshalPEM encodes the key as unencrypted PKCS#8 in PEM form: RFC 8410 for
// Ed25519, the seed form of RFC 9881 for ML-DSA-87. The octets are secret. The
// error is ErrWiped.
func (k *Key) MarshalPEM() ([]byte, error) {
	if k.signer == nil {
		return nil, ErrWiped
	}
	inner := append([]byte{byte(k.row.seedClass<<6 | k.row.seedTag), SeedLen}, k.seed[:]...)
	der, err := asn1.Marshal(pkcs8{Algorithm: algorithm{Algorithm: k.row.oid}, PrivateKey: inner})
	buf.Wipe(inner)
	if err != nil {
		return nil, fmt.Errorf("identity: encoding the key: %w", err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: der})
	buf.Wipe(der)
	return text, nil
}

// ParsePEM decodes what MarshalPEM encodes, and what other programs write in
// the same form. Nothing but white space may surround the one PEM block. The
// error is ErrKeyFile.
func ParsePEM(text []byte) (*Key, error) {
	text = bytes.TrimSpace(text)
	// Decode looks for a block anywhere.
	if !bytes.HasPrefix(text, []byte("-----BEGIN ")) {
		return nil, ErrKeyFile
	}
	block, rest := pem.Decode(text)
	if block == nil {
		return nil, ErrKeyFile
	}
	defer buf.Wipe(block.Bytes)
	if block.Type != pemType || len(block.Headers) != 0 || len(bytes.TrimSpace(rest)) != 0 {
		return nil, ErrKeyFile
	}
	var p pkcs8
	if rest, err := asn1.Unmarshal(block.Bytes, &p); err != nil || len(rest) != 0 {
		return nil, ErrKeyFile
	}
	defer buf.Wipe(p.PrivateKey)
	if p.Version != 0 && p.Version != 1 || len(p.Algorithm.Parameters.FullBytes) != 0 {
		return nil, ErrKeyFile
	}
	for _, r := range rows {
		if !r.oid.Equal(p.Algorithm.Algorithm) {
			continue
		}
		seed, ok := r.seed(p.PrivateKey)
		if !ok {
			return nil, ErrKeyFile
		}
		k := r.derive(seed)
		if p.PublicKey.BitLength != 0 && string(p.PublicKey.Bytes) != k.public.raw {
			k.Wipe()
			return nil, ErrKeyFile
		}
		return k, nil
	}
	return nil, ErrKeyFile
}

// seed finds the seed in PKCS#8's privateKey octets: one octet string with the
// scheme's tag.
func (r *row) seed(inner []byte) (*[SeedLen]byte, bool) {
	if len(inner) != 2+SeedLen || inner[0] != byte(r.seedClass<<6|r.seedTag) || inner[1] != SeedLen {
		return nil, false
	}
	return (*[SeedLen]byte)(inner[2:]), true
}

// LoadFile reads a private key file. It refuses one that others than its owner
// may read or write (ErrPermissions) or that is no key (ErrKeyFile); other
// errors are the file system's.
func LoadFile(path string) (*Key, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s", ErrKeyFile, path)
	}
	if info.Mode().Perm()&othersMode != 0 {
		return nil, fmt.Errorf("%w: %s has mode %04o", ErrPermissions, path, info.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return nil, err
	}
	defer buf.Wipe(text)
	if len(text) > maxKeyFile {
		return nil, fmt.Errorf("%w: %s", ErrKeyFile, path)
	}
	k, err := ParsePEM(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, path)
	}
	return k, nil
}

// SaveFile writes a private key file that only its owner may read. It never
// replaces a file: an existing path is an error that is fs.ErrExist. The file
// appears whole or not at all.
func SaveFile(path string, k *Key) (err error) {
	text, err := k.MarshalPEM()
	if err != nil {
		return err
	}
	defer buf.Wipe(text)
	// CreateTemp's mode is 0600.
	f, err := os.CreateTemp(filepath.Dir(path), ".key-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	// Link, unlike Rename, fails when the path exists.
	return os.Link(f.Name(), path)
}

// Set is a set of public keys. It is read-only once made and may be shared.
type Set struct {
	refs map[Ref]struct{}
}

// NewSet makes a set of the keys.
func NewSet(keys ...PublicKey) *Set {
	s := &Set{refs: make(map[Ref]struct{}, len(keys))}
	for _, k := range keys {
		if !k.IsZero() {
			s.refs[RefTo(k)] = struct{}{}
		}
	}
	return s
}

// Contains tells whether the key is in the set. No key is in none.
func (s *Set) Contains(k PublicKey) bool {
	if s == nil || k.IsZero() {
		return false
	}
	_, ok := s.refs[RefTo(k)]
	return ok
}

// Len is the number of keys.
func (s *Set) Len() int {
	if s == nil {
		return 0
	}
	return len(s.refs)
}

// maxSetLine is the longest line of an allow-list in octets: the longest key in
// hexadecimal, with room for a comment.
const maxSetLine = 8 << 10

// ParseSet reads an allow-list: one public key in hexadecimal, or its handle, a
// line; what follows a '#' is a comment, white space and empty lines mean
// nothing. An error names the line and is ErrRefText, bufio.ErrTooLong or r's.
func ParseSet(r io.Reader) (*Set, error) {
	s := NewSet()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxSetLine)
	n := 0
	for lines.Scan() {
		n++
		text, _, _ := strings.Cut(lines.Text(), "#")
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		ref, err := ParseRef(text)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		s.refs[ref] = struct{}{}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", n+1, err)
	}
	return s, nil
}

// LoadSet reads an allow-list file.
func LoadSet(path string) (*Set, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s, err := ParseSet(f)
	if err != nil {
		return nil, fmt.Errorf("identity: %s: %w", path, err)
	}
	return s, nil
}
