// Package lint reads the module's own sources and says where they break the
// order of its rooms: which package may import which, who may touch the event
// loop library, and who may read a clock.
//
// It parses every Go file whatever its build constraints, so that a file for
// another operating system or build tag is held to the same rules. The rules
// themselves are this package's tests; nothing else imports it.
package lint

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// ErrNoSource is returned by Load for a tree without a single Go file.
var ErrNoSource = errors.New("lint: no Go source below the root")

// File is one Go source file of the module.
type File struct {
	// Name is the file's slash-separated path from the module's root.
	Name string
	// Dir is the package's directory from the module's root, "." for the root.
	Dir string
	// Test reports whether the file is compiled into tests only.
	Test bool

	fset *token.FileSet
	ast  *ast.File
}

// Load parses the Go files below root. It leaves out what the go command
// leaves out: directories named testdata or starting with "." or "_", and
// nested modules, which have their own go.mod and their own dependencies.
func Load(root fs.FS) ([]*File, error) {
	var files []*File
	fset := token.NewFileSet()
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := path.Base(name)
		if d.IsDir() {
			if name == "." {
				return nil
			}
			if base == "testdata" || base == "vendor" || base[0] == '.' || base[0] == '_' {
				return fs.SkipDir
			}
			if _, err := fs.Stat(root, path.Join(name, "go.mod")); err == nil {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(base, ".go") || base[0] == '.' || base[0] == '_' {
			return nil
		}
		src, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		tree, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("lint: %w", err)
		}
		files = append(files, &File{
			Name: name,
			Dir:  path.Dir(name),
			Test: strings.HasSuffix(base, "_test.go"),
			fset: fset,
			ast:  tree,
		})
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, ErrNoSource
	}
	return files, nil
}

// Import is one import declaration.
type Import struct {
	Path string
	// Pos is file:line:column.
	Pos string
}

// Imports lists the file's imports in source order.
func (f *File) Imports() []Import {
	list := make([]Import, 0, len(f.ast.Imports))
	for _, spec := range f.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // the parser accepts only quoted paths
		}
		list = append(list, Import{Path: p, Pos: f.fset.Position(spec.Pos()).String()})
	}
	return list
}

// Uses lists the places where the file names one of the identifiers of the
// package importPath, whatever local name it was imported under. A dot import
// of that package counts as a use, since it hides which names are taken.
func (f *File) Uses(importPath string, names ...string) []string {
	var places []string
	local := ""
	for _, spec := range f.ast.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err != nil || p != importPath {
			continue
		}
		local = path.Base(importPath)
		if spec.Name != nil {
			local = spec.Name.Name
		}
		if local == "." {
			places = append(places, f.fset.Position(spec.Pos()).String())
		}
	}
	if local == "" || local == "." || local == "_" {
		return places
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == local && slices.Contains(names, sel.Sel.Name) {
			places = append(places, f.fset.Position(sel.Pos()).String())
		}
		return true
	})
	return places
}

// Order is the list of rooms from the lowest to the highest. The patterns of
// one rank stand side by side and may not import each other. A pattern is a
// directory from the module's root; one that ends in "/..." also holds the
// directories below it, which may import each other.
type Order [][]string

// Room returns the rank of the room that dir belongs to and the pattern that
// says so. An exact pattern wins over one with "/...", and a longer one over
// a shorter one.
func (o Order) Room(dir string) (rank int, pattern string, ok bool) {
	for r, patterns := range o {
		for _, p := range patterns {
			tree, isTree := strings.CutSuffix(p, "/...")
			switch {
			case dir == p:
				return r, p, true
			case isTree && (dir == tree || strings.HasPrefix(dir, tree+"/")) && len(p) > len(pattern):
				rank, pattern, ok = r, p, true
			}
		}
	}
	return rank, pattern, ok
}

// Check reports every import between packages of module that does not go
// down the order, and every package the order has no room for. Test files
// may import what they like.
func (o Order) Check(module string, files []*File) []string {
	var faults []string
	homeless := map[string]bool{}
	for _, f := range files {
		if f.Test {
			continue
		}
		rank, room, ok := o.Room(f.Dir)
		if !ok {
			if !homeless[f.Dir] {
				homeless[f.Dir] = true
				faults = append(faults, fmt.Sprintf("%s: package %s has no room in the order", f.Name, f.Dir))
			}
			continue
		}
		for _, imp := range f.Imports() {
			dir, ours := strings.CutPrefix(imp.Path, module+"/")
			if !ours {
				continue
			}
			below, other, ok := o.Room(dir)
			switch {
			case !ok:
				faults = append(faults, fmt.Sprintf("%s: %s has no room in the order", imp.Pos, dir))
			case below < rank:
			case other == room && strings.HasSuffix(room, "/..."):
			default:
				faults = append(faults, fmt.Sprintf("%s: %s may not import %s, which is not below it", imp.Pos, f.Dir, dir))
			}
		}
	}
	return faults
}
