package stack

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
)

// Binaries are the commands that a test package builds for itself, once and when they are first asked for: a trial of
// what somebody built last week would prove nothing.
type Binaries struct {
	packages []string
	once     sync.Once
	dir      string // set by once, as err
	err      error
}

// Build names what Dir builds: both commands, and further main packages by import path.
func Build(more ...string) *Binaries {
	return &Binaries{packages: append([]string{"agentd/cmd/agentd", "agentd/cmd/controlplane-mock"}, more...)}
}

// T is what Dir needs of a test. (Not *testing.T: the demo and the benchmarks use this package, too, and aren't tests.)
type T interface {
	Helper()
	Fatal(args ...any)
}

// Dir is the folder with the binaries, which it builds first as `make build` does, so that the compiler's results are shared with it.
func (b *Binaries) Dir(t T) string {
	t.Helper()
	if b.once.Do(func() { b.err = b.build() }); b.err != nil {
		t.Fatal(b.err)
	}
	return b.dir
}

func (b *Binaries) build() (err error) {
	if b.dir, err = os.MkdirTemp("", "agentd-test-"); err != nil {
		return err
	}
	cmd := exec.Command("go", append([]string{"build", "-trimpath", "-o", b.dir}, b.packages...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// Exit removes the folder and ends the test process: for goleak.Cleanup.
func (b *Binaries) Exit(code int) {
	if b.dir != "" {
		_ = os.RemoveAll(b.dir) // it is in the temporary folder; nothing depends on it
	}
	os.Exit(code)
}
