package bench

import (
	"github.com/trestle-npamp/trestle/asm/aesgcm"
	"github.com/trestle-npamp/trestle/crypto/record"
)

// Unprotected tells that this build seals no frame: it has the build tag
// trestle_unprotected, and shows what everything but the AEAD costs.
const Unprotected = record.Unprotected

// AESGCM names what seals and opens with AES-GCM in this build, on this machine,
// as package aesgcm does; in an Unprotected build frames have none, and only the
// records of TLS around them are still sealed.
func AESGCM() string {
	if Unprotected {
		return "none (in TLS records " + aesgcm.Describe() + ")"
	}
	return aesgcm.Describe()
}
