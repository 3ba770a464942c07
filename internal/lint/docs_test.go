package lint

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

var (
	caseEntry = regexp.MustCompile(`(?m)^\*\*(L\d\d)\.`)
	caseRef   = regexp.MustCompile(`\bL(?:0[1-9]|[1-3]\d)\b`)
	testName  = regexp.MustCompile("`([a-z/0-9]+)\\.((?:Test|Benchmark|Fuzz)\\w+)`")
	decision  = regexp.MustCompile(`(?m)^\*\*([DE]\d+)\.`)
	cited     = regexp.MustCompile(`\b([DE][1-9]\d?)\b`)
	testFunc  = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)\w+)\(`)
)

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("../../" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func set(found [][]string) map[string]bool {
	s := make(map[string]bool)
	for _, f := range found {
		s[f[1]] = true
	}
	return s
}

// sources calls f for each Go file of the tree and the comments in it.
func sources(t *testing.T, f func(name, text string, comments []string)) {
	t.Helper()
	err := fs.WalkDir(os.DirFS("../.."), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(name) != ".go" {
			return err
		}
		text := read(t, name)
		var comments []string
		for line := range strings.Lines(text) {
			if _, c, ok := strings.Cut(line, "//"); ok {
				comments = append(comments, c)
			}
		}
		f(name, text, comments)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// docs/cases.md names tests that exist, and every case that a comment names is in it.
func TestCasesAreTrue(t *testing.T) {
	doc := read(t, "docs/cases.md")
	entries := set(caseEntry.FindAllStringSubmatch(doc, -1))
	if len(entries) != 37 {
		t.Errorf("%d entries", len(entries))
	}
	for _, entry := range strings.Split(doc, "\n**")[1:] {
		if strings.HasPrefix(entry, "L") && !testName.MatchString(entry) {
			t.Errorf("no test holds %.60q", entry)
		}
	}
	exist := make(map[string]bool)
	sources(t, func(name, text string, comments []string) {
		for _, f := range testFunc.FindAllStringSubmatch(text, -1) {
			exist[path.Dir(name)+"."+f[1]] = true
		}
		for _, c := range comments {
			for _, ref := range caseRef.FindAllString(c, -1) {
				if !entries[ref] {
					t.Errorf("%s: %s is no entry of docs/cases.md", name, ref)
				}
			}
		}
	})
	for _, m := range testName.FindAllStringSubmatch(doc, -1) {
		if !exist[m[1]+"."+m[2]] {
			t.Errorf("docs/cases.md: there is no %s.%s", m[1], m[2])
		}
	}
}

// Every decision that a comment names is in docs/decisions.md, and no comment cites a
// document that nobody has.
func TestDecisionsAreThere(t *testing.T) {
	entries := decision.FindAllStringSubmatch(read(t, "docs/decisions.md"), -1)
	there := set(entries)
	if len(there) < 50 || len(there) != len(entries) {
		t.Fatalf("%d entries with %d numbers", len(entries), len(there))
	}
	sources(t, func(name, _ string, comments []string) {
		if strings.HasPrefix(name, "asm/") {
			return // registers
		}
		for _, c := range comments {
			if strings.Contains(c, "PROTO"+"COL section") || strings.Contains(c, "CAS"+"ES") {
				t.Errorf("%s cites what is not in the tree: %s", name, strings.TrimSpace(c))
			}
			for _, ref := range cited.FindAllStringSubmatch(c, -1) {
				if !there[ref[1]] {
					t.Errorf("%s: %s is no entry of docs/decisions.md: %s", name, ref[1], strings.TrimSpace(c))
				}
			}
		}
	})
}
