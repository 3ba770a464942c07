package bench

// Unprotected tells that this build seals nothing.
const Unprotected = false
