package tlsrecord

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/tls"
	"encoding/binary"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/trestle-npamp/trestle/crypto/schedule"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/wipe"
	"github.com/trestle-npamp/trestle/profiles"
)

const (
	ivLen     = 12
	maxKey    = 32
	maxSecret = profiles.MaxHashSize
)

// suite is a cipher suite of TLS 1.3 (RFC 8446 appendix B.4).
type suite struct {
	id     uint16
	name   string
	hash   profiles.Hash
	keyLen int
}

var suites = [...]suite{
	{tls.TLS_AES_128_GCM_SHA256, "TLS_AES_128_GCM_SHA256", profiles.SHA256, 16},
	{tls.TLS_AES_256_GCM_SHA384, "TLS_AES_256_GCM_SHA384", profiles.SHA384, 32},
	{tls.TLS_CHACHA20_POLY1305_SHA256, "TLS_CHACHA20_POLY1305_SHA256", profiles.SHA256, 32},
}

func suiteOf(id uint16) *suite {
	for i := range suites {
		if suites[i].id == id {
			return &suites[i]
		}
	}
	return nil
}

// newAESGCM is the standard library's AES-GCM. It is what Config.AESGCM stands
// for when nothing better is known.
func newAESGCM(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	defer wipe.Object(block) // NewGCM copies the expanded key
	return cipher.NewGCM(block)
}

func (s *settings) newAEAD(key []byte) (cipher.AEAD, error) {
	if s.suite.id == tls.TLS_CHACHA20_POLY1305_SHA256 {
		return chacha20poly1305.New(key)
	}
	return s.aesgcm(key)
}

// expandLabel is HKDF-Expand-Label of RFC 8446 section 7.1 with an empty context.
func expandLabel(h profiles.Hash, secret []byte, label string, out []byte) error {
	const prefix = "tls13 "
	var room [2 + 1 + len(prefix) + 16 + 1]byte
	info := binary.BigEndian.AppendUint16(room[:0], uint16(len(out)))
	info = append(info, byte(len(prefix)+len(label)))
	info = append(info, prefix...)
	info = append(info, label...)
	info = append(info, 0)
	return schedule.Expand(h, secret, info, out)
}

// half is one direction: secret, key and counter in one place, so that no pair of
// key and nonce is used twice.
type half struct {
	aead  cipher.AEAD // nil: dropped by Idle, or wiped
	seq   uint64      // of the next record
	iv    uint64      // the last eight octets of the IV
	nonce [ivLen]byte // of the next record: IV XOR (0^4 || seq)
	// secret is application_traffic_secret_N; the first hash.Size() octets count.
	secret [maxSecret]byte
}

// derive makes key and IV out of the secret (RFC 8446 section 7.3).
func (h *half) derive(s *settings) error {
	var (
		key [maxKey]byte
		iv  [ivLen]byte
	)
	defer buf.Wipe(key[:])
	defer buf.Wipe(iv[:])
	secret := h.secret[:s.suite.hash.Size()]
	if err := expandLabel(s.suite.hash, secret, "key", key[:s.suite.keyLen]); err != nil {
		return err
	}
	if err := expandLabel(s.suite.hash, secret, "iv", iv[:]); err != nil {
		return err
	}
	aead, err := s.newAEAD(key[:s.suite.keyLen])
	if err != nil {
		return err
	}
	h.aead = aead
	copy(h.nonce[:], iv[:])
	h.iv = binary.BigEndian.Uint64(iv[4:])
	h.setNonce()
	return nil
}

// update moves on to the next secret (RFC 8446 section 7.2) and its key; the old
// ones are erased.
func (h *half) update(s *settings) error {
	var next [maxSecret]byte
	defer buf.Wipe(next[:])
	n := s.suite.hash.Size()
	if err := expandLabel(s.suite.hash, h.secret[:n], "traffic upd", next[:n]); err != nil {
		return err
	}
	h.drop()
	copy(h.secret[:n], next[:n])
	h.seq = 0
	return h.derive(s)
}

// setNonce writes the next record's nonce. That is done well before the record
// comes, so that a vector load doesn't run into the stores.
func (h *half) setNonce() { binary.BigEndian.PutUint64(h.nonce[4:], h.iv^h.seq) }

func (h *half) advance() {
	h.seq++
	h.setNonce()
}

// drop erases the expanded key.
func (h *half) drop() {
	if h.aead != nil {
		if a, ok := h.aead.(interface{ Wipe() }); ok {
			a.Wipe()
		} else {
			wipe.Object(h.aead)
		}
		h.aead = nil
	}
	h.iv = 0
	buf.Wipe(h.nonce[:])
}

// wipe erases everything but the counter.
func (h *half) wipe() {
	h.drop()
	buf.Wipe(h.secret[:])
}
