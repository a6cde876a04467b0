package identity

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"agentd/internal/testmain"
)

// scratch is where the binaries under test are, once built was called.
var scratch string

// built builds them as `make build` does, so that the compiler's results are shared with it.
var built = sync.OnceValue(func() (err error) {
	if scratch, err = os.MkdirTemp("", "agentd-identity-"); err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-o", scratch, "agentd/cmd/agentd", "agentd/cmd/controlplane-mock")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
})

func TestMain(m *testing.M) {
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
