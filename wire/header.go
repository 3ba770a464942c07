package wire

import (
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/trestle-npamp/trestle/asm/crc32c"
)

// Where the header's fields are.
const (
	offVersionFlags = 4
	offType         = 5
	offChannel      = 7
	offSeq          = 9
	offLength       = 17
	offCRC          = 21
	offReserved     = 25

	magic = 0x4E50414D // "NPAM"
)

// Errors of the header check, in the order in which the check is made. All but
// ErrShort say that the peer broke the protocol and the stream cannot be read
// any further.
var (
	ErrShort    = errors.New("wire: less than a header")
	ErrChecksum = errors.New("wire: header checksum mismatch")
	ErrMagic    = errors.New("wire: bad magic")
	ErrVersion  = errors.New("wire: unsupported version")
	ErrReserved = errors.New("wire: reserved header octets not zero")
	ErrTooLong  = errors.New("wire: frame longer than the limit")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum returns the CRC32C (Castagnoli) that a header carries over its first
// PrefixLen octets. It takes any number of octets; headers are made and checked with
// one that takes PrefixLen only.
func Checksum(prefix []byte) uint32 {
	return crc32.Update(0, castagnoli, prefix)
}

// Header is a view of the HeaderLen octets of a frame header. It comes from
// ParseHeader or a Scanner, which have checked it; on anything shorter the
// accessors panic.
type Header []byte

// Flags returns the header's flags.
func (h Header) Flags() Flags { return Flags(h[offVersionFlags]) & flagsMask }

// Type returns the frame type.
func (h Header) Type() FrameType { return FrameType(binary.BigEndian.Uint16(h[offType:])) }

// Channel returns the channel.
func (h Header) Channel() Channel { return Channel(binary.BigEndian.Uint16(h[offChannel:])) }

// Seq returns the sequence number.
func (h Header) Seq() Seq { return Seq(binary.BigEndian.Uint64(h[offSeq:])) }

// PayloadLen returns the octets that follow the header, an AEAD tag included.
func (h Header) PayloadLen() int { return int(binary.BigEndian.Uint32(h[offLength:])) }

// CRC returns the checksum the header carries.
func (h Header) CRC() uint32 { return binary.BigEndian.Uint32(h[offCRC:]) }

// Prefix returns the first PrefixLen octets, which are the AEAD's associated
// data as they stand on the wire.
func (h Header) Prefix() []byte { return h[:PrefixLen:PrefixLen] }

// limit returns the frame length that a caller's maxFrame stands for.
func limit(maxFrame int) int {
	if maxFrame <= 0 {
		return DefaultFrameLen
	}
	return min(maxFrame, MaxFrameLen)
}

// ParseHeader checks the header that b starts with and returns a view of it.
// maxFrame is the largest frame to accept, header included; 0 stands for
// DefaultFrameLen, and above MaxFrameLen nothing is accepted. The error is
// ErrShort for less than HeaderLen octets, or the first of ErrChecksum,
// ErrMagic, ErrVersion, ErrReserved and ErrTooLong that applies. Flags, type and
// channel are the caller's to judge.
func ParseHeader(b []byte, maxFrame int) (Header, error) {
	if len(b) < HeaderLen {
		return nil, ErrShort
	}
	h := Header(b[:HeaderLen:HeaderLen])
	if crc32c.Sum((*[PrefixLen]byte)(h)) != h.CRC() {
		return nil, ErrChecksum
	}
	if binary.BigEndian.Uint32(h) != magic {
		return nil, ErrMagic
	}
	if h[offVersionFlags]>>4 != Version {
		return nil, ErrVersion
	}
	// The eleven reserved octets, read as two overlapping eights.
	if binary.BigEndian.Uint64(h[offReserved:])|binary.BigEndian.Uint64(h[HeaderLen-8:]) != 0 {
		return nil, ErrReserved
	}
	if uint64(binary.BigEndian.Uint32(h[offLength:]))+HeaderLen > uint64(limit(maxFrame)) {
		return nil, ErrTooLong
	}
	return h, nil
}

// PutHeader writes a header with its checksum to b, which must have room for
// HeaderLen octets. payloadLen counts everything that follows, an AEAD tag
// included; with the header it must not exceed MaxFrameLen.
func PutHeader(b []byte, f Flags, t FrameType, ch Channel, seq Seq, payloadLen int) {
	h := (*[HeaderLen]byte)(b)
	// Whole words rather than fields: the checksum reads words, and a word that
	// was stored in pieces is slow to load again.
	binary.BigEndian.PutUint64(h[0:],
		magic<<32|(Version<<4|uint64(f&flagsMask))<<24|uint64(t)<<8|uint64(ch)>>8)
	binary.BigEndian.PutUint64(h[8:], uint64(ch)<<56|uint64(seq)>>8)
	binary.BigEndian.PutUint64(h[16:], uint64(seq)<<56|uint64(uint32(payloadLen))<<24)
	binary.BigEndian.PutUint32(h[24:], 0)
	binary.BigEndian.PutUint64(h[HeaderLen-8:], 0)
	binary.BigEndian.PutUint32(h[offCRC:], crc32c.Sum((*[PrefixLen]byte)(h[:])))
}

// AppendHeader appends a header, as PutHeader writes it, to dst.
func AppendHeader(dst []byte, f Flags, t FrameType, ch Channel, seq Seq, payloadLen int) []byte {
	var room [HeaderLen]byte
	dst = append(dst, room[:]...)
	PutHeader(dst[len(dst)-HeaderLen:], f, t, ch, seq, payloadLen)
	return dst
}
