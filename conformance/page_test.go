package conformance

import (
	"go/ast"
	goparser "go/parser"
	gotoken "go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const root = ".."

// testsOfTheTree are the names of all tests, fuzz targets and benchmarks, by the
// directory of their package.
func testsOfTheTree(t *testing.T) map[string]map[string]bool {
	t.Helper()
	all := map[string]map[string]bool{}
	files := gotoken.NewFileSet()
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		base := path.Base(filepath.ToSlash(name))
		switch {
		case err != nil:
			return err
		case d.IsDir() && (base == "testdata" || base[0] == '.' && name != root || base[0] == '_'):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(base, "_test.go"):
			return nil
		}
		f, err := goparser.ParseFile(files, name, nil, goparser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(name))
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(rel)
		if all[dir] == nil {
			all[dir] = map[string]bool{}
		}
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil {
				all[dir][fn.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var (
	inThePage  = regexp.MustCompile(`(?:\b([a-z][a-z0-9]*)\.)?\b((?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9_]*)(\*)?((?:/[A-Za-z0-9_-]+)?)`)
	defaultDir = regexp.MustCompile("Tests without a package are in `([a-z0-9/]+)`")
	decision   = regexp.MustCompile(`\b([DE][0-9]+)\b`)
	decided    = regexp.MustCompile(`(?m)^\*\*([DE][0-9]+)\.`)
	clauseTest = regexp.MustCompile(`^Test(?:BRIDGE|CCJSONRPC|CCSTREAM|CCDOC|CCOPAQUE|REG|DISC|A2A|AGNTCY)[0-9]+_[0-9]+_`)
)

// docs/conformance.md names tests that exist where it says, all tests of clauses, and
// decisions that were made.
func TestThePageNamesTestsThatExist(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "conformance.md"))
	if err != nil {
		t.Fatal(err)
	}
	decisions, err := os.ReadFile(filepath.Join(root, "docs", "decisions.md"))
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]bool{}
	for _, m := range decided.FindAllSubmatch(decisions, -1) {
		made[string(m[1])] = true
	}
	scripts := map[string]bool{}
	for _, s := range load(t) {
		scripts[s.Name] = true
	}
	all := testsOfTheTree(t)
	named := map[string]bool{}
	in, code := "", false
	n := 0
	for i, line := range strings.Split(string(page), "\n") {
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		if code {
			continue // how to call the go command
		}
		if m := defaultDir.FindStringSubmatch(line); m != nil {
			in = m[1]
		}
		for _, m := range inThePage.FindAllStringSubmatch(line, -1) {
			n++
			pkg, name, any, sub := m[1], m[2], m[3] == "*", strings.TrimPrefix(m[4], "/")
			if pkg == "" && in == "" {
				t.Errorf("line %d: %s is in no package", i+1, name)
				continue
			}
			found := false
			for dir, tests := range all {
				if pkg != "" && path.Base(dir) != pkg || pkg == "" && dir != in {
					continue
				}
				for have := range tests {
					found = found || have == name || any && strings.HasPrefix(have, name)
				}
			}
			if !found {
				t.Errorf("line %d: there is no %s in %s", i+1, m[0], in)
			}
			if name == "TestScriptsAgainstTheProgram" && sub != "" && !scripts[sub] {
				t.Errorf("line %d: there is no script %s", i+1, sub)
			}
			named[pkg+"."+name] = true
		}
		for _, m := range decision.FindAllStringSubmatch(line, -1) {
			if !made[m[1]] {
				t.Errorf("line %d: decisions.md has no %s", i+1, m[1])
			}
		}
	}
	if n < 300 || len(made) < 30 {
		t.Errorf("%d tests on the page, %d decisions", n, len(made))
	}
	for name := range all["conformance"] {
		if clauseTest.MatchString(name) && !named["conformance."+name] {
			t.Errorf("the page does not name conformance.%s", name)
		}
	}
}

// Every clause of the Conformance sections has its test, and every script proves one.
func TestEveryClauseHasItsTest(t *testing.T) {
	sections := map[string]int{ // how many clauses each has
		"BRIDGE 9": 6, "CC-JSONRPC 10": 8, "CC-STREAM 13": 8, "CC-DOC 12": 9, "CC-OPAQUE 11": 8,
		"REG 11": 7, "DISC 11": 8, "A2A 14": 9, "AGNTCY 12": 8,
	}
	tests := testsOfTheTree(t)["conformance"]
	for section, clauses := range sections {
		doc, number, _ := strings.Cut(section, " ")
		for c := range clauses {
			prefix := regexp.MustCompile(`^Test` + strings.ReplaceAll(doc, "-", "") + number + `_` + strconv.Itoa(c+1) + `_`)
			found := 0
			for name := range tests {
				if prefix.MatchString(name) {
					found++
				}
			}
			if found != 1 {
				t.Errorf("%s(%d) has %d tests", section, c+1, found)
			}
		}
	}
	for _, s := range load(t) {
		for _, clause := range s.Clauses {
			section, number, ok := strings.Cut(clause, "(")
			n := 0
			for c := range sections[section] {
				if number == strconv.Itoa(c+1)+")" {
					n++
				}
			}
			if !ok || n != 1 {
				t.Errorf("%s: there is no clause %s", s.Name, clause)
			}
		}
	}
}
