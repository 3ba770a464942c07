package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What strace 6.1 wrote, shortened.
const traceTable = `% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 52.90    0.000730          73      2000           read
 40.00    0.000100           5      4000      3000 epoll_pwait
  0.00    0.000000           0         1           rt_sigreturn
------ ----------- ----------- --------- --------- ----------------
100.00    0.000830           5      6001      3000 total
`

func TestTheTableOfStraceIsRead(t *testing.T) {
	got, err := parseTrace(traceTable)
	want := []Syscall{{Name: "epoll_pwait", Calls: 4000, Failed: 3000}, {Name: "read", Calls: 2000}, {Name: "rt_sigreturn", Calls: 1}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %+v", err, got)
	}
	for _, text := range []string{"", "strace: what?\n", strings.Replace(traceTable, "2000", "many", 1), strings.Replace(traceTable, "3000 epoll", "-1 epoll", 1)} {
		if got, err := parseTrace(text); !errors.Is(err, ErrTrace) {
			t.Errorf("%q: %v, %v", text, err, got)
		}
	}
	for i := range want {
		want[i].Each = per(float64(want[i].Calls), 1000)
	}
	if got, want := words(want), "4 epoll_pwait (75 % in vain), 2 read, 0.001 others"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// stracing puts a program of that name into the only place where it is looked for.
func stracing(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if script == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(dir, tracer), []byte("#!/bin/sh\nPATH=/bin:/usr/bin\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
}

func traces(t *testing.T, o Options) (*Report, error) {
	t.Helper()
	o.Transport, o.Syscalls = "tcp", true
	p := startPeer(t, o)
	target, err := Engine(o, quietly, p.Hello)
	if err != nil {
		t.Fatal(errors.Join(err, p.Close()))
	}
	r, err := Measure(t.Context(), o, target, p, new(bytes.Buffer))
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	return r, err
}

// Without strace, or where it may not look into processes, that is said.
func TestSystemCallsThatCanNotBeCounted(t *testing.T) {
	stracing(t, "")
	if err := Traceable(); !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), "the program strace") {
		t.Errorf("no strace: %v", err)
	}
	if _, err := traces(t, small(Unary)); !errors.Is(err, ErrTrace) {
		t.Errorf("no strace: measured with %v", err)
	}
	stracing(t, "echo \"strace: attach: ptrace(PTRACE_SEIZE, $6): Operation not permitted\" >&2\nexit 1\n")
	if err := Traceable(); err != nil {
		t.Error(err)
	}
	if _, err := traces(t, small(Unary)); !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), "Operation not permitted") || !strings.Contains(err.Error(), "takes root") {
		t.Errorf("without leave: %v", err)
	}
	stracing(t, "echo \"strace: Process $6 attached\" >&2\necho nonsense >\"$4\"\n")
	if _, err := traces(t, small(Unary)); !errors.Is(err, ErrTrace) {
		t.Errorf("a table that is none: %v", err)
	}
	for _, scenario := range []string{Notify, Idle} {
		o := Defaults(scenario)
		o.Syscalls = true
		if err := o.Validate(); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: %v", scenario, err)
		}
	}
}

// What strace counts is shared among what was served meanwhile, for server and
// client, and stands in every form of the report.
func TestSystemCallsAreCountedARequest(t *testing.T) {
	stracing(t, `
trap 'cat >"$4" <<END
`+traceTable+`END
exit 0' TERM
echo "strace: Process $6 attached with 5 threads" >&2
while :; do sleep 0.02; done
`)
	for scenario, one := range map[string]string{Unary: "request", Stream: "event", Handshake: "handshake"} {
		r, err := traces(t, small(scenario))
		if err != nil {
			t.Fatalf("%s: %v", scenario, err)
		}
		c := r.Syscalls
		if c == nil || c.Requests == 0 || len(c.Server) != 3 || len(c.Client) != 3 {
			t.Fatalf("%s: %+v", scenario, c)
		}
		if x := c.Server[0]; x.Name != "epoll_pwait" || x.Each != rounded(4000/float64(c.Requests), 4) {
			t.Errorf("%s: %+v of %d", scenario, x, c.Requests)
		}
		if text := fmt.Sprint(r.Rows()); !strings.Contains(text, "{server calls ") && !strings.Contains(text, "[server calls ") || !strings.Contains(text, "epoll_pwait (75 % in vain)") {
			t.Errorf("%s: %s", scenario, text)
		}
		var page, text bytes.Buffer
		if err := errors.Join(r.WritePage(&page), r.WriteJSON(&text)); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(page.String(), "<td>epoll_pwait</td>") || !strings.Contains(page.String(), "server, each "+one) {
			t.Errorf("%s: %s", scenario, page.String())
		}
		var back Report
		if err := json.Unmarshal(text.Bytes(), &back); err != nil || back.Syscalls == nil || !slices.Equal(back.Syscalls.Server, c.Server) {
			t.Errorf("%s: %v, %+v", scenario, err, back.Syscalls)
		}
	}
}

// Where there is a strace, and leave to use it, it counts what each request takes at
// the least: one at a time, a read and a write on either side.
func TestStraceSeesReadsAndWrites(t *testing.T) {
	o := small(Unary)
	o.Conns, o.InFlight = 1, 1
	r, err := traces(t, o)
	if errors.Is(err, ErrTrace) {
		return // it was said why; see above
	}
	if err != nil {
		t.Fatal(err)
	}
	for side, calls := range map[string][]Syscall{"server": r.Syscalls.Server, "client": r.Syscalls.Client} {
		for _, name := range []string{"read", "write"} {
			i := slices.IndexFunc(calls, func(c Syscall) bool { return c.Name == name })
			if i < 0 || calls[i].Each < 0.95 || calls[i].Each > 3 {
				t.Errorf("%s: %s of %d: %+v", side, name, r.Syscalls.Requests, calls)
			}
		}
	}
}
