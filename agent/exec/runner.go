package exec

import (
	"context"
	"fmt"
)

// Runner runs attempts. Its methods may be called concurrently.
type Runner struct {
	cfg Config
}

// New checks cfg, makes the work root and finds out what can be had of cgroups. Where a cgroup was delegated
// it moves the calling process into a leaf of it, so that controllers can be enabled for the jobs beside.
func New(cfg Config) (*Runner, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("exec: %w", err)
	}
	return &Runner{cfg: cfg}, nil
}

// Run runs one attempt and returns when nothing of its tree is alive, or says in the result that something could not be killed.
func (r *Runner) Run(_ context.Context, _ Spec) Result { panic("not written yet") }

// Swept is what Sweep found of one attempt.
type Swept struct {
	Proc     Proc
	Rebooted bool  // the host has rebooted since: nothing can be left
	Killed   int   // processes that were still alive
	Err      error // something is left that could not be killed or removed
}

// Sweep ends what is left of attempts of an agent that died, and removes their work directories.
// Call it before the first Run. A process is touched only when it can't be anybody else's.
func (r *Runner) Sweep(_ context.Context, _ []Proc) []Swept { return nil }

// Main is the entry of the shim that supervises one job: a program that uses this package calls it first thing in main,
// and test binaries in TestMain. It does nothing unless the process was started as the shim.
func Main() {}
