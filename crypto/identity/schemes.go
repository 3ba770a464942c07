package identity

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/asn1"
	"fmt"
	"io"

	"github.com/cloudflare/circl/sign/mldsa/mldsa87"

	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/wipe"
	"github.com/trestle-npamp/trestle/profiles"
)

// row is all this package knows of a signature scheme.
type row struct {
	scheme       profiles.Scheme
	publicLen    int
	signatureLen int
	multicodec   []byte // the key type's number as a varint
	oid          asn1.ObjectIdentifier
	seedTag      int // of the seed inside PKCS#8's privateKey octets
	seedClass    int
	fromSeed     func(seed *[SeedLen]byte) (public []byte, s signer)
	verify       func(public, message, signature []byte) bool
}

type signer interface {
	sign(message []byte) []byte
	wipe()
}

var rows = []*row{
	{
		scheme:       profiles.Ed25519,
		publicLen:    ed25519.PublicKeySize,
		signatureLen: ed25519.SignatureSize,
		multicodec:   []byte{0xed, 0x01},
		oid:          asn1.ObjectIdentifier{1, 3, 101, 112},
		seedTag:      asn1.TagOctetString, // RFC 8410 section 7: CurvePrivateKey
		seedClass:    asn1.ClassUniversal,
		fromSeed: func(seed *[SeedLen]byte) ([]byte, signer) {
			private := ed25519.NewKeyFromSeed(seed[:])
			return private[SeedLen:], ed25519Signer(private)
		},
		verify: func(public, message, signature []byte) bool {
			return ed25519.Verify(public, message, signature)
		},
	},
	{
		scheme:       profiles.MLDSA87,
		publicLen:    mldsa87.PublicKeySize,
		signatureLen: mldsa87.SignatureSize,
		multicodec:   []byte{0x92, 0x24}, // 0x1212
		oid:          asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 3, 19},
		seedTag:      0, // RFC 9881 section 6: the choice seed [0]
		seedClass:    asn1.ClassContextSpecific,
		fromSeed: func(seed *[SeedLen]byte) ([]byte, signer) {
			public, private := mldsa87.NewKeyFromSeed(seed)
			return public.Bytes(), mldsaSigner{private}
		},
		verify: func(public, message, signature []byte) bool {
			var key mldsa87.PublicKey
			return key.UnmarshalBinary(public) == nil && mldsa87.Verify(&key, message, nil, signature)
		},
	},
}

func rowOf(scheme profiles.Scheme) *row {
	for _, r := range rows {
		if r.scheme == scheme {
			return r
		}
	}
	return nil
}

func (r *row) generate(rnd io.Reader) (*Key, error) {
	if rnd == nil {
		rnd = rand.Reader
	}
	var seed [SeedLen]byte
	defer buf.Wipe(seed[:])
	if _, err := io.ReadFull(rnd, seed[:]); err != nil {
		return nil, fmt.Errorf("identity: reading randomness: %w", err)
	}
	return r.derive(&seed), nil
}

func (r *row) derive(seed *[SeedLen]byte) *Key {
	public, s := r.fromSeed(seed)
	return &Key{row: r, seed: *seed, public: PublicKey{r.scheme, string(public)}, signer: s}
}

type ed25519Signer ed25519.PrivateKey

func (s ed25519Signer) sign(message []byte) []byte {
	return ed25519.Sign(ed25519.PrivateKey(s), message)
}

func (s ed25519Signer) wipe() { buf.Wipe(s) }

type mldsaSigner struct{ key *mldsa87.PrivateKey }

func (s mldsaSigner) sign(message []byte) []byte {
	signature := make([]byte, mldsa87.SignatureSize)
	// The only error is a context over 255 octets; ours is empty.
	if err := mldsa87.SignTo(s.key, message, nil, false, signature); err != nil {
		panic("identity: ML-DSA-87 refuses an empty context")
	}
	return signature
}

func (s mldsaSigner) wipe() { wipe.Object(s.key) }
