package exec

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// Runner runs attempts. Its methods may be called concurrently.
type Runner struct {
	cfg    Config
	cg     cgroups
	bootID string

	limitsOnce sync.Once

	mu      sync.Mutex
	live    map[string]bool // names of directories and cgroups in use; guarded by mu
	remains []remain        // guarded by mu
}

// remain is an attempt of which something could not be killed or removed.
type remain struct {
	proc  Proc
	procs []procStat
}

// New checks cfg, makes the work root and finds out what can be had of cgroups. Where a cgroup was delegated
// it moves the calling process into a leaf of it, so that controllers can be enabled for the jobs beside.
func New(cfg Config) (*Runner, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("exec: %w", err)
	}
	cfg.WorkRoot = filepath.Clean(cfg.WorkRoot)
	// Others may pass through, for jobs that run as somebody else, but not list.
	if err := os.MkdirAll(cfg.WorkRoot, 0o711); err != nil { //nolint:gosec // see above
		return nil, fmt.Errorf("exec: work root: %w", err)
	}
	bootID, err := readBootID()
	if err != nil {
		return nil, fmt.Errorf("exec: boot id: %w", err)
	}
	cg, err := openCgroups(cfg.Cgroup, cfg.WorkRoot)
	if err != nil {
		return nil, fmt.Errorf("exec: %w", err)
	}
	r := &Runner{cfg: cfg, cg: cg, bootID: bootID, live: make(map[string]bool)}
	cfg.Logger.Info("job supervision was set up", zap.String("cgroup", cg.base), zap.Strings("limits", cg.controllers), zap.String("missing", cg.why))
	return r, nil
}

// Close gives back what New made on the host, as far as nothing uses it. No Run may be under way.
func (r *Runner) Close() {
	if r.cg.made {
		_ = unix.Rmdir(r.cg.base) // not empty: something remains, and the next start sweeps it
	}
}

// Support says what the runner can do on this host, for status pages.
type Support struct {
	Cgroup string   // directory of the attempts' cgroups; empty = process tree and subreaper only
	Limits []string // of memory, pids, cpu: those that hold
	Why    string   // what is missing and why; empty = nothing
}

// Support says what the runner can do on this host.
func (r *Runner) Support() Support {
	return Support{Cgroup: r.cg.base, Limits: r.cg.controllers, Why: r.cg.why}
}

// Remains is the number of ended attempts of which something could not be killed or removed yet.
func (r *Runner) Remains() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.remains)
}

// Run runs one attempt and returns when nothing of its tree is alive, or says in the result that something could not be killed.
// However the attempt ends is an outcome, not an error. ctx ends it early: StopSignal to the whole tree, the grace
// period for its cause, SIGKILL.
func (r *Runner) Run(ctx context.Context, spec Spec) Result {
	r.retryRemains()
	a := &attempt{
		r: r, spec: spec,
		log: r.cfg.Logger.With(zap.String("job", spec.JobID), zap.Int64("attempt", spec.Attempt)),
	}
	return a.run(ctx)
}

func (r *Runner) setLive(name string, live bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if live {
		r.live[name] = true
	} else {
		delete(r.live, name)
	}
}

func (r *Runner) isLive(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.live[name]
}

func (r *Runner) addRemain(m remain) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remains = append(r.remains, m)
}

// retryRemains tries again what earlier attempts left; it doesn't wait for anything.
func (r *Runner) retryRemains() {
	r.mu.Lock()
	todo := r.remains
	r.remains = nil
	r.mu.Unlock()
	for _, m := range todo {
		var left []procStat
		for _, p := range m.procs {
			if alive, err := killIf(p.pid, p.startTicks); alive || err != nil {
				left = append(left, p)
			}
		}
		if m.proc.Cgroup != "" {
			_ = killCgroup(m.proc.Cgroup)
		}
		err := r.discard(m.proc, time.Now().Add(removeWait))
		if len(left) > 0 || err != nil {
			r.addRemain(remain{proc: m.proc, procs: left})
			continue
		}
		r.cfg.Logger.Info("Remains of an attempt were ended", zap.String("workDir", m.proc.WorkDir))
	}
}
