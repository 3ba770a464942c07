package gen

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestGeneratedFilesAreCurrent runs every generator and compares with what is
// committed.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	for _, kernel := range []string{"aesgcm", "crc32c"} {
		dir := t.TempDir()
		names := []string{"kernels_amd64.s", "kernels_amd64.go"}
		cmd := exec.Command("go", "run", "./"+kernel, "-pkg", kernel,
			"-out", filepath.Join(dir, names[0]), "-stubs", filepath.Join(dir, names[1]))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", kernel, err, out)
		}
		for _, name := range names {
			fresh, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			committed, err := os.ReadFile(filepath.Join("..", kernel, name))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(withoutCommand(fresh), withoutCommand(committed)) {
				t.Errorf("asm/%s/%s is not what asm/_gen/%s writes: go generate ./asm/%[1]s", kernel, name, kernel)
			}
		}
	}
}

// withoutCommand drops the first line, which tells how the file was made.
func withoutCommand(b []byte) []byte {
	_, rest, _ := bytes.Cut(b, []byte("\n"))
	return rest
}
