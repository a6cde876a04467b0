package tree_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"agentd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

const module = "agentd"

// file is one parsed source file.
type file struct {
	path   string // from the module's root
	pkg    string // its folder, as an import path below the module: "agent/exec"
	test   bool
	syntax *ast.File
}

// sources parses every Go file of the module but generated data and other modules below it.
func sources(t *testing.T) (*token.FileSet, []file) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	var files []file
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == "testdata" || d.Name() == "bin" || d.Name() == "dist" || strings.HasPrefix(d.Name(), ".") && rel != "." {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil && rel != "." {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		syntax, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, file{rel, filepath.ToSlash(filepath.Dir(rel)), strings.HasSuffix(rel, "_test.go"), syntax})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Fatalf("found %d Go files below %s: the walk is broken", len(files), root)
	}
	return fset, files
}

func (f file) imports() []string {
	var out []string
	for _, spec := range f.syntax.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err == nil {
			out = append(out, path)
		}
	}
	return out
}

// below says whether pkg is dir or lies under it.
func below(pkg, dir string) bool { return pkg == dir || strings.HasPrefix(pkg, dir+"/") }

// directions lists, for each part of the module, what of the module it may import (internal/ is
// open to all). The order is the architecture: whoever needs another arrow changes the design first.
var directions = []struct {
	dir string
	may []string
	why string
}{
	{"agent/protocol", nil, "the wire is a leaf: anyone may build on it without the rest"},
	{"agent/exec", []string{"agent/protocol"}, "the runner knows outcomes, but neither leases nor logs"},
	{"agent/journal", []string{"agent/protocol"}, "the reserved store must work when everything else is broken"},
	{"agent/identity", []string{"agent/protocol"}, "who the agent is doesn't depend on what it does"},
	{"agent/query", []string{"agent/protocol"}, "queries share the boundary with jobs and nothing else"},
	{"agent/redact", nil, "redaction is a filter on bytes"},
	{"agent", []string{"agent", "leasekeeper", "shipper", "spool"}, "the agent puts the parts together; the command wires it"},
	{"leasekeeper", []string{"agent/protocol"}, "a lease is kept for whoever holds it"},
	{"shipper", []string{"spool", "agent/protocol"}, "the shipper ships records; whose they are is the agent's business"},
	{"spool", nil, "the spool knows neither HTTP nor jobs"},
	{"systemd", nil, "the notify code must not pull the agent in"},
	{"controlplane-mock", []string{"controlplane-mock", "agent/protocol"}, "if the reference shared code with the agent, both could be wrong together"},
	{"cmd/agentd", []string{"agent", "leasekeeper", "shipper", "spool", "systemd"}, "wiring only; it never sees the reference control plane"},
	{"cmd/controlplane-mock", []string{"controlplane-mock", "agent/protocol"}, "the reference's command doesn't need the agent"},
}

func TestImportDirections(t *testing.T) {
	_, files := sources(t)
	for _, f := range files {
		if f.test {
			continue // a test may stand on both sides of the wire
		}
		// The longest rule wins: agent/protocol before agent.
		best := -1
		for i, rule := range directions {
			if below(f.pkg, rule.dir) && (best < 0 || len(rule.dir) > len(directions[best].dir)) {
				best = i
			}
		}
		if best < 0 {
			if !below(f.pkg, "internal") && !below(f.pkg, "test") && !below(f.pkg, "packaging") && !below(f.pkg, "examples") {
				t.Errorf("%s: package %s stands in no rule of directions: decide what it may import", f.path, f.pkg)
			}
			continue
		}
		rule := directions[best]
		for _, imp := range f.imports() {
			imp, ours := strings.CutPrefix(imp, module+"/")
			if !ours || below(imp, "internal") || below(imp, rule.dir) {
				continue
			}
			if !slices.ContainsFunc(rule.may, func(dir string) bool { return below(imp, dir) }) {
				t.Errorf("%s imports %s, and %s may not: %s", f.path, imp, rule.dir, rule.why)
			}
		}
	}
}

func TestOnlyTheSpoolImportsBadger(t *testing.T) {
	_, files := sources(t)
	for _, f := range files {
		for _, imp := range f.imports() {
			if strings.HasPrefix(imp, "github.com/dgraph-io/badger") && !below(f.pkg, "spool") {
				t.Errorf("%s imports %s: badger's traps are known to package spool alone", f.path, imp)
			}
		}
	}
}

func TestOneDocCommentAPackage(t *testing.T) {
	_, files := sources(t)
	docs := map[string][]string{}
	for _, f := range files {
		if f.test {
			continue
		}
		if _, ok := docs[f.pkg]; !ok {
			docs[f.pkg] = nil
		}
		if f.syntax.Doc != nil && !strings.HasPrefix(f.syntax.Doc.Text(), "Code generated") {
			docs[f.pkg] = append(docs[f.pkg], f.path)
		}
	}
	for pkg, in := range docs {
		if len(in) != 1 {
			t.Errorf("package %s has %d doc comments %v, want 1: a package has one idea and says it once", pkg, len(in), in)
		}
	}
}

// TestNoBareGo holds every goroutine to an owner: sync.WaitGroup.Go (or errgroup) in the function
// that also waits. A bare go statement has nobody who knows when it ended.
func TestNoBareGo(t *testing.T) {
	fset, files := sources(t)
	for _, f := range files {
		if f.test || suite(f.pkg) {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if g, ok := n.(*ast.GoStmt); ok {
				t.Errorf("%s: bare go statement: start it with sync.WaitGroup.Go and wait in the same function", at(fset, g.Pos()))
			}
			return true
		})
	}
}

// suite says whether a package is test code that other packages' tests run: storetest, openapitest.
func suite(pkg string) bool {
	return strings.HasSuffix(pkg, "test") || strings.HasSuffix(pkg, "/conformance")
}

// TestNoSleepInTests keeps tests from guessing how long a thing takes: wait for the event, or use a synctest bubble (in the
// file, or by a helper whose name begins with bubble), in which time.Sleep is exact and costs nothing.
func TestNoSleepInTests(t *testing.T) {
	fset, files := sources(t)
	for _, f := range files {
		if !f.test || slices.Contains(f.imports(), "testing/synctest") {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if fun, ok := call.Fun.(*ast.Ident); ok && strings.HasPrefix(fun.Name, "bubble") {
					return false
				}
			}
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Sleep" {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" {
					t.Errorf("%s: time.Sleep in a test: wait for the event", at(fset, sel.Pos()))
				}
			}
			return true
		})
	}
}

// TestEveryTestPackageUsesTestmain keeps tests off the network and goroutines from leaking.
func TestEveryTestPackageUsesTestmain(t *testing.T) {
	_, files := sources(t)
	has, uses := map[string]bool{}, map[string]bool{}
	for _, f := range files {
		if !f.test {
			continue
		}
		has[f.pkg] = true
		if slices.Contains(f.imports(), module+"/internal/testmain") {
			uses[f.pkg] = true
		}
	}
	for pkg := range has {
		if !uses[pkg] {
			t.Errorf("package %s has tests, but no TestMain that calls testmain.Run", pkg)
		}
	}
}

// TestFilesStayShort: about 400 lines hold one idea; past 600 a file holds several.
func TestFilesStayShort(t *testing.T) {
	fset, files := sources(t)
	const most = 600
	for _, f := range files {
		if f.test {
			continue
		}
		if lines := fset.File(f.syntax.Pos()).LineCount(); lines > most {
			t.Errorf("%s has %d lines, at most %d: split it by what it holds", f.path, lines, most)
		}
	}
}

func at(fset *token.FileSet, pos token.Pos) string {
	p := fset.Position(pos)
	return fmt.Sprintf("%s:%d", filepath.Base(filepath.Dir(p.Filename))+"/"+filepath.Base(p.Filename), p.Line)
}
