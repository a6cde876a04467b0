package man_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"agentd/internal/man"
	"agentd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

func TestEveryCommandHasAPageOfTheGivenDate(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	root := &cobra.Command{Use: "tool", Short: "Do it"}
	sub := &cobra.Command{Use: "sub", Short: "Do a part", Run: func(*cobra.Command, []string) {}}
	sub.Flags().Bool("fast", false, "at once")
	root.AddCommand(sub, man.Command(root))
	dir := filepath.Join(t.TempDir(), "man")
	root.SetArgs([]string{"man", dir})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "tool-sub.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"TOOL-SUB" "1" "Nov 2023"`, "Do a part", "at once", "tool(1)"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "tool-man.1")); err == nil {
		t.Error("the hidden command has a page")
	}
}
