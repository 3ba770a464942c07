package lint

import (
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
)

const module = "github.com/trestle-npamp/trestle"

// rooms is the order of the house, lowest first.
var rooms = Order{
	{"internal/invariant"},
	{"internal/wipe", "internal/lint", "internal/explore", "internal/vectors", "internal/defaults", "internal/ratio"},
	{"internal/buf"},
	{"asm/..."},
	{"wire"},
	{"wire/cbor"},
	{"wire/bridge", "wire/handshake", "wire/control", "wire/disco"},
	{"profiles"},
	{"crypto/kem", "crypto/identity", "crypto/schedule"},
	{"crypto/record", "crypto/tlsrecord"},
	{"crypto/handshake"},
	{"sched"},
	{"engine/conn"},
	{"engine/assoc"},
	{"engine/loop"},
	{"engine"},
	{"carriage/..."},
	{"mapping/..."},
	{"relay/..."},
	{"bench/..."},
	{"cmd/..."},
	// Programs and the test rig stand above everything; no room may need them.
	{"examples/...", "internal/nptest/..."},
	{"conformance"},
}

// machines are the packages that get bytes and a time and give bytes and
// events: no socket, no clock. engine/assoc is not among them, because
// goroutines outside the loop wait in it for room to send.
var machines = []string{
	"internal/buf", "internal/wipe", "internal/invariant",
	"wire", "wire/...", "asm/...", "profiles", "crypto/...", "sched",
	"engine/conn", "carriage/jsonrpc", "mapping/...",
}

var loadOnce = sync.OnceValues(func() ([]*File, error) { return Load(os.DirFS("../..")) })

func load(t *testing.T) []*File {
	t.Helper()
	files, err := loadOnce()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func in(dir string, patterns ...string) bool {
	_, _, ok := Order{patterns}.Room(dir)
	return ok
}

func TestImportsGoDownTheOrder(t *testing.T) {
	for _, fault := range rooms.Check(module, load(t)) {
		t.Error(fault)
	}
}

func TestProfilesImportOnlyWire(t *testing.T) {
	for _, f := range load(t) {
		if f.Test || f.Dir != "profiles" {
			continue
		}
		for _, imp := range f.Imports() {
			if dir, ours := strings.CutPrefix(imp.Path, module+"/"); ours && dir != "wire" {
				t.Errorf("%s: profiles is data and imports %s", imp.Pos, dir)
			}
		}
	}
}

func TestOnlyTheLoopImportsGnet(t *testing.T) {
	for _, f := range load(t) {
		if f.Test || in(f.Dir, "engine/loop") {
			continue
		}
		for _, imp := range f.Imports() {
			if strings.HasPrefix(imp.Path, "github.com/panjf2000/gnet") {
				t.Errorf("%s: only engine/loop imports gnet", imp.Pos)
			}
		}
	}
}

func TestOnlyTheLoopAndProgramsReadTheClock(t *testing.T) {
	for _, f := range load(t) {
		if f.Test || in(f.Dir, "engine/loop", "relay/...", "bench/...", "cmd/...", "internal/nptest", "internal/ratio") {
			continue
		}
		for _, place := range f.Uses("time", "Now", "Since", "Until") {
			t.Errorf("%s: reads the wall clock; time comes in as an argument here", place)
		}
	}
}

func TestMachinesWaitForNothing(t *testing.T) {
	for _, f := range load(t) {
		if f.Test || !in(f.Dir, machines...) {
			continue
		}
		for _, place := range f.Uses("time", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick") {
			t.Errorf("%s: a machine has no timers of its own", place)
		}
		for _, place := range f.Uses("net", "Dial", "Dialer", "Listen", "ListenConfig", "Conn") {
			t.Errorf("%s: a machine has no sockets", place)
		}
	}
}

func TestTestsDoNotSleep(t *testing.T) {
	for _, f := range load(t) {
		if !f.Test {
			continue
		}
		for _, place := range f.Uses("time", "Sleep") {
			t.Errorf("%s: a test that sleeps is slow or flaky; use a virtual clock", place)
		}
	}
}

// The rules above are only worth something if the checker sees a breach.

func tree(files map[string]string) fstest.MapFS {
	m := fstest.MapFS{}
	for name, src := range files {
		m[name] = &fstest.MapFile{Data: []byte(src)}
	}
	return m
}

func mustLoad(t *testing.T, files map[string]string) []*File {
	t.Helper()
	list, err := Load(tree(files))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestCheckFindsBreaches(t *testing.T) {
	order := Order{{"a"}, {"b", "c"}, {"d/..."}}
	for name, tc := range map[string]struct {
		files map[string]string
		want  string // part of the only fault; empty for none
	}{
		"down":             {map[string]string{"c/c.go": "package c\nimport _ \"m/a\"\n"}, ""},
		"up":               {map[string]string{"a/a.go": "package a\nimport _ \"m/b\"\n"}, "a/a.go:2:8: a may not import b"},
		"sideways":         {map[string]string{"b/b.go": "package b\nimport _ \"m/c\"\n"}, "b may not import c"},
		"within a tree":    {map[string]string{"d/x/x.go": "package x\nimport _ \"m/d\"\n"}, ""},
		"foreign":          {map[string]string{"a/a.go": "package a\nimport _ \"fmt\"\nimport _ \"mm/b\"\n"}, ""},
		"other build":      {map[string]string{"a/a_darwin.go": "//go:build darwin && never\n\npackage a\n\nimport _ \"m/b\"\n"}, "a may not import b"},
		"test file":        {map[string]string{"a/a_test.go": "package a\nimport _ \"m/d\"\n"}, ""},
		"unknown importer": {map[string]string{"e/e.go": "package e\n", "e/f.go": "package e\n"}, "package e has no room"},
		"unknown imported": {map[string]string{"b/b.go": "package b\nimport _ \"m/e\"\n"}, "e has no room"},
		"nested module":    {map[string]string{"a/a.go": "package a\n", "n/go.mod": "module n\n", "n/n.go": "package n\nimport _ \"m/a\"\n"}, ""},
		"left out":         {map[string]string{"a/a.go": "package a\n", "testdata/x.go": "bad", "_x/x.go": "bad", ".x/x.go": "bad", "a/_x.go": "bad"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := order.Check("m", mustLoad(t, tc.files))
			switch {
			case tc.want == "" && len(got) == 0:
			case tc.want != "" && len(got) == 1 && strings.Contains(got[0], tc.want):
			default:
				t.Errorf("faults %q, want one with %q", got, tc.want)
			}
		})
	}
}

func TestUsesSeesRenamedAndDotImports(t *testing.T) {
	for src, want := range map[string]int{
		"package a\nimport \"time\"\nvar x = time.Now()\n":                      1,
		"package a\nimport clock \"time\"\nvar x = clock.Now\n":                 1,
		"package a\nimport . \"time\"\n":                                        1,
		"package a\nimport \"time\"\nvar x time.Duration\n":                     0,
		"package a\nvar time struct{ Now int }\nvar x = time.Now\n":             0,
		"package a\nimport \"time\"\nvar x, y = time.Now(), time.Since(zero)\n": 2,
	} {
		f := mustLoad(t, map[string]string{"a/a.go": src})[0]
		if got := f.Uses("time", "Now", "Since"); len(got) != want {
			t.Errorf("%q: uses %v, want %d", src, got, want)
		}
	}
}

func TestLoadRefusesAnEmptyOrBrokenTree(t *testing.T) {
	if _, err := Load(tree(map[string]string{"README": "x"})); err != ErrNoSource {
		t.Errorf("empty tree: %v", err)
	}
	if _, err := Load(tree(map[string]string{"a/a.go": "package"})); err == nil {
		t.Error("a file that does not parse was accepted")
	}
}

func TestRoomPrefersTheNearestPattern(t *testing.T) {
	order := Order{{"x/y"}, {"x/..."}, {"x/z/..."}}
	for dir, want := range map[string]string{"x": "x/...", "x/y": "x/y", "x/z": "x/z/...", "x/z/q": "x/z/...", "x/w": "x/..."} {
		if _, got, _ := order.Room(dir); got != want {
			t.Errorf("room of %s is %q, want %q", dir, got, want)
		}
	}
	if _, _, ok := order.Room("xy"); ok {
		t.Error("a name that only starts alike has a room")
	}
}

func TestLoadSeesThisPackage(t *testing.T) {
	if !slices.ContainsFunc(load(t), func(f *File) bool { return f.Name == "internal/lint/lint.go" }) {
		t.Error("the module's root is not where the tests look for it")
	}
}
