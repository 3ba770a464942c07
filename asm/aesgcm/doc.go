// Package aesgcm is AES-GCM with 12-octet nonces and 16-octet tags for short
// and long messages, in place, without allocating.
//
// It gives the octets that crypto/cipher's GCM gives, and behaves as that does
// towards its caller (append to dst, exact overlap or none, the same panics on
// misuse), only faster where the processor has vector AES. Several
// implementations stand behind one type; see Implementation.
package aesgcm
