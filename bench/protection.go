package bench

import "github.com/trestle-npamp/trestle/crypto/record"

// Unprotected tells that this build seals nothing.
const Unprotected = record.Unprotected
