//go:build purego

package record

// hasAESGCM is false: this build leaves the processor's AES unused.
func hasAESGCM() bool { return false }
