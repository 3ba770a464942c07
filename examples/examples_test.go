// Package examples compiles the small programs below it and runs them against
// each other.
package examples

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// patience bounds every wait; only a failing test gets near it.
const patience = time.Minute

// programs is where TestMain put what it built.
var programs string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "examples")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	programs = dir
	for _, example := range []string{"echo", "custom", "broker", "acmp"} {
		out, err := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(dir, example)+string(filepath.Separator),
			"./"+example+"/server", "./"+example+"/client").CombinedOutput()
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n%s", example, err, out)
			return 1
		}
	}
	return m.Run()
}

// serve runs the server of an example until the test ends, and gives its address.
// When it is told to stop it must do so without complaint.
func serve(t *testing.T, example string) (addr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	cmd := exec.CommandContext(ctx, filepath.Join(programs, example, "server"), "--listen", "127.0.0.1:0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer cancel()
		_ = cmd.Process.Signal(os.Interrupt) // if it has ended, Wait says how
		_, _ = io.Copy(io.Discard, stdout)
		if err := cmd.Wait(); err != nil {
			t.Errorf("server: %v\n%s", err, &stderr)
		}
	})
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	m := regexp.MustCompile(`^listening on (\S+), key [0-9a-f]{64}\n$`).FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("the server said %q\n%s", line, &stderr)
	}
	return m[1]
}

// call runs the client of an example to its end.
func call(t *testing.T, example string, args ...string) (stdout, stderr string, ok bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(programs, example, "client"), args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	return out.String(), errOut.String(), err == nil
}

func TestEcho(t *testing.T) {
	addr := serve(t, "echo")
	const want = `{"jsonrpc":"2.0","id":1,"result":{"kind":"message","messageId":"re","role":"agent",` +
		`"parts":[{"kind":"text","text":"hello"}]}}` + "\n"
	for range 2 {
		if out, errOut, ok := call(t, "echo", "--to", addr); !ok || out != want {
			t.Errorf("printed %q, %q, want %q", out, errOut, want)
		}
	}
}

func TestCustom(t *testing.T) {
	addr := serve(t, "custom")
	for _, tc := range []struct {
		args []string
		want string
		ok   bool
	}{
		{nil, "0\n", true},
		{[]string{"1", "2", "3.5"}, "6.5\n", true},
		{[]string{"one"}, `error "an array of numbers is needed"` + "\n", false},
	} {
		out, errOut, ok := call(t, "custom", append([]string{"--to", addr}, tc.args...)...)
		if ok != tc.ok || out != tc.want {
			t.Errorf("%v: %q, %q, success %v, want %q", tc.args, out, errOut, ok, tc.want)
		}
	}
}

// A client whose protocol the server does not carry is told so.
func TestTheExamplesDoNotMix(t *testing.T) {
	out, errOut, ok := call(t, "custom", "--to", serve(t, "echo"), "1")
	if ok || out != "" || !strings.Contains(errOut, "ProtocolUnsupported") {
		t.Errorf("printed %q, %q, success %v", out, errOut, ok)
	}
}
