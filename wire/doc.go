// Package wire reads and writes N-PAMP frames (draft-bubblefish-npamp-02,
// section 4): the header, whole frames in a stream of octets, and TLVs, with a
// name for each code point. It holds no keys and keeps no state but the
// Scanner's.
//
// A frame is a 36-octet header and a payload; all integers are big-endian:
//
//	0               4  5       7         9           17          21      25         36
//	| magic "NPAM"  |vf| type  | channel | sequence  | length    | CRC   | reserved | payload
//	|<------------- 21 octets: under the CRC, and the AEAD's AAD ----->|  4  | 11 zeros |
//
// v is the version (2), f the flags. The length counts everything after the
// header, the tag of a sealed payload included.
//
// Nothing here allocates, and nothing that a peer sends makes it panic.
package wire
