package trials

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/durability.md promises a test for each trial and each fault: the tests that it names exist, and no trial is without one.
func TestDocsNameTestsThatExist(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "durability.md"))
	if err != nil {
		t.Fatal(err)
	}
	var tests strings.Builder
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		tests.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile("`(Test[A-Za-z0-9]+)(`|…)").FindAllStringSubmatch(string(text), -1) {
		want := "\nfunc " + name[1]
		if name[2] == "`" {
			want += "("
		}
		if !strings.Contains(tests.String(), want) {
			t.Errorf("docs/durability.md names %s, which isn't there", name[1])
		}
	}
	for kind, n := range map[string]int{"L": 17, "C": 11} {
		for i := range n {
			if trial := fmt.Sprintf("%s%d", kind, i+1); !regexp.MustCompile(`\n\| ` + trial + " .*`Test").Match(text) {
				t.Errorf("docs/durability.md has no test for %s", trial)
			}
		}
	}
}
