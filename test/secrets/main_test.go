package secrets

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"agentd/internal/testmain"
)

// scratch is where the binaries under test are, once built was called.
var scratch string

// built builds them as `make build` does, so that the compiler's results are shared with it.
var built = sync.OnceValue(func() (err error) {
	if scratch, err = os.MkdirTemp("", "agentd-secrets-"); err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-o", scratch, "agentd/cmd/agentd", "agentd/cmd/controlplane-mock", "agentd/examples/directory")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
})

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "job" {
		if err := printSecrets(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "job:", err)
			os.Exit(1)
		}
		return
	}
	testmain.Run(m, goleak.Cleanup(func(code int) {
		if scratch != "" {
			_ = os.RemoveAll(scratch) // it is in the temporary folder; nothing depends on it
		}
		os.Exit(code)
	}))
}

// binaries returns the folder with the binaries under test.
func binaries(t *testing.T) string {
	t.Helper()
	if err := built(); err != nil {
		t.Fatal(err)
	}
	return scratch
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
