package secrets

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"agentd/internal/testmain"
	"agentd/test/stack"
)

// binaries are under test.
var binaries = stack.Build("agentd/examples/directory")

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "job" {
		if err := printSecrets(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "job:", err)
			os.Exit(1)
		}
		return
	}
	testmain.Run(m, goleak.Cleanup(binaries.Exit))
}

// write makes a file of mode 0600 in dir and returns its path.
func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
