// Package vectors reads the published N-PAMP test vectors. They are not in this tree:
// the environment variable TRESTLE_VECTORS names the directory that has them. Only
// tests use this package.
package vectors

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// Load decodes a file of the vectors into v, as encoding/json does, and reports true.
// It reports false where TRESTLE_VECTORS is not set: then there is nothing to run. A
// file that can't be read ends the test.
func Load(t testing.TB, name string, v any) bool {
	t.Helper()
	dir := os.Getenv("TRESTLE_VECTORS")
	if dir == "" {
		return false
	}
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return true
}
