package network

import (
	"flag"
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

// built builds them: a test of what somebody built last week would prove nothing.
var built = sync.OnceValue(func() (err error) {
	if scratch, err = os.MkdirTemp("", "agentd-network-"); err != nil {
		return err
	}
	// As `make build` does, so that the compiler's results are shared with it.
	cmd := exec.Command("go", "build", "-trimpath", "-o", scratch, "agentd/cmd/agentd", "agentd/cmd/controlplane-mock")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
})

func TestMain(m *testing.M) {
	// These tests wait for timeouts of 5 to 15 s, nearly all the time: side by side they take as long as the longest.
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	testmain.Run(m, goleak.Cleanup(func(code int) {
		if scratch != "" {
			_ = os.RemoveAll(scratch) // it is in the temporary folder; nothing depends on it
		}
		os.Exit(code)
	}))
}
