package trials

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

// built builds them: a trial of what somebody built last week would prove nothing.
var built = sync.OnceValue(func() (err error) {
	if scratch, err = os.MkdirTemp("", "agentd-trials-"); err != nil {
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
	if len(os.Args) > 1 && os.Args[1] == jobArg {
		os.Exit(runJob())
	}
	// The trials wait most of their time. More at once would only fight for two cores.
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	testmain.Run(m, goleak.Cleanup(func(code int) {
		if scratch != "" {
			_ = os.RemoveAll(scratch) // it is in the temporary folder; nothing depends on it
		}
		os.Exit(code)
	}))
}
