package tlsrecord

import (
	"crypto/cipher"
	"crypto/tls"
	"testing"
)

// noop protects nothing: what is left is what the records themselves cost.
type noop struct{}

func (noop) NonceSize() int { return ivLen }
func (noop) Overhead() int  { return tagLen }
func (noop) Seal(dst, _, plaintext, _ []byte) []byte {
	return dst[:len(plaintext)+tagLen]
}
func (noop) Open(dst, _, sealed, _ []byte) ([]byte, error) {
	return dst[:len(sealed)-tagLen], nil
}

// BenchmarkOverhead: what a record costs beyond its AEAD.
func BenchmarkOverhead(b *testing.B) {
	client, server := newPair(b, tls.TLS_AES_128_GCM_SHA256, func(c *Config) {
		c.AESGCM = func([]byte) (cipher.AEAD, error) { return &noop{}, nil }
	})
	room := make([]byte, HeaderLen+600, 1000)
	b.Run("seal", func(b *testing.B) {
		for b.Loop() {
			if _, err := client.SealBatch(room, 0); err != nil {
				b.Fatal(err)
			}
		}
	})
	rec, err := client.SealBatch(room, 0)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			server.HandleBytes(rec)
			if _, ok, err := server.Poll(); !ok || err != nil {
				b.Fatal(err)
			}
			server.Settle()
		}
	})
	b.Run("append", func(b *testing.B) {
		for b.Loop() {
			if _, err := client.AppendRecords(room[:0], room[200:800]); err != nil {
				b.Fatal(err)
			}
		}
	})
}
