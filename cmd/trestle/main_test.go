package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/trestle-npamp/trestle/bench"
)

// asProgram in the environment makes the test binary the program itself, for
// tests of what only a process of its own can show.
const asProgram = "TRESTLE_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	// gnet's worker pool starts two goroutines when the program does.
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent())
}

// result is what one run of the program left behind.
type result struct {
	code     int
	out, err string
}

// trestle runs the program with stdin and args, as a shell would.
func trestle(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	code := run(t.Context(), append([]string{"trestle"}, args...), strings.NewReader(stdin), &out, &errOut)
	return result{code, out.String(), errOut.String()}
}

func TestWrongCommandLinesExitWithTwoAndSaySo(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"no command":          {nil, "COMMANDS"},
		"unknown command":     {[]string{"serv"}, `no command "serv"`},
		"unknown flag":        {[]string{"version", "--nope"}, "nope"},
		"stray argument":      {[]string{"version", "now"}, `unexpected argument "now"`},
		"missing flag":        {[]string{"keygen"}, "out"},
		"missing flags":       {[]string{"call", "--to", "127.0.0.1:1"}, "agent"},
		"nothing to measure":  {[]string{"bench"}, "what to measure"},
		"no such measurement": {[]string{"bench", "loudness"}, `no command "loudness"`},
		"bad measurement":     {[]string{"bench", "unary", "--conns", "0"}, "conns"},
		"contradicting flags": {[]string{"keygen", "--out", "a", "--show", "b"}, "show"},
	} {
		t.Run(name, func(t *testing.T) {
			r := trestle(t, "", tc.args...)
			if r.code != exitUsage || r.out != "" || !strings.Contains(r.err, tc.says) {
				t.Errorf("code %d, stdout %q, stderr %q; want code 2, nothing on stdout and %q on stderr", r.code, r.out, r.err, tc.says)
			}
		})
	}
}

func TestHelpTeaches(t *testing.T) {
	for _, command := range newRoot().Commands {
		r := trestle(t, "", command.Name, "--help")
		if r.code != exitOK || r.err != "" || len(r.out) == 0 {
			t.Errorf("%s --help: code %d, stderr %q", command.Name, r.code, r.err)
		}
		// Every command without commands of its own shows a line that can be pasted.
		if len(command.Commands) == 0 && !strings.Contains(r.out, "trestle "+command.Name) {
			t.Errorf("%s --help gives no example:\n%s", command.Name, r.out)
		}
	}
}

func TestHelpOnACommandByName(t *testing.T) {
	by, flag := trestle(t, "", "help", "call"), trestle(t, "", "call", "--help")
	if by != flag || by.code != exitOK || !strings.Contains(by.out, "trestle call --to") {
		t.Errorf("help call: %+v, call --help: %+v", by, flag)
	}
}

func TestVersionNamesTheBuildAndTheSuites(t *testing.T) {
	r := trestle(t, "", "version")
	if r.code != exitOK {
		t.Fatalf("code %d: %s", r.code, r.err)
	}
	for i, want := range []string{"trestle ", "go ", "cpu ", "features ", "suites ", "aes-gcm   " + bench.AESGCM()} {
		lines := strings.Split(r.out, "\n")
		if i >= len(lines) || !strings.HasPrefix(lines[i], want) {
			t.Errorf("line %d of %q does not start with %q", i, r.out, want)
		}
	}
	for _, suite := range []string{"AES-256-GCM", "ChaCha20-Poly1305"} {
		if !strings.Contains(r.out, suite) {
			t.Errorf("no %s in %q", suite, r.out)
		}
	}
}

func TestACancelledRunOfAShortCommandStillAnswers(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	if code := run(ctx, []string{"trestle", "version"}, strings.NewReader(""), &out, &out); code != exitOK {
		t.Errorf("code %d: %s", code, out.String())
	}
}
