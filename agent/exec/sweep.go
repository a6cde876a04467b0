package exec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// Swept is what Sweep found of one attempt.
type Swept struct {
	Proc     Proc
	Rebooted bool  // the host has rebooted since: nothing can be left
	Killed   int   // processes that were still alive
	Err      error // something is left that could not be killed or removed
}

// Sweep ends what is left of attempts of an agent that died, and removes their work directories.
// Call it before the first Run, holding whatever makes this agent the only user of its work root. A process is touched only
// when it can't be anybody else's: it is in the attempt's cgroup, or is the shim by pid, start time and boot id,
// or descends from it, or was started with the attempt's own work directory in its environment.
func (r *Runner) Sweep(ctx context.Context, procs []Proc) []Swept {
	r.retryRemains()
	known := make(map[string]bool)
	swept := make([]Swept, 0, len(procs))
	for _, p := range procs {
		known[p.WorkDir] = p.WorkDir != ""
		known[p.Cgroup] = p.Cgroup != ""
		s := r.sweepOne(ctx, p)
		r.cfg.Logger.Info("An earlier attempt's processes were swept",
			zap.Int("pid", p.PID), zap.Bool("rebooted", s.Rebooted), zap.Int("killed", s.Killed), zap.Error(s.Err))
		swept = append(swept, s)
	}
	// An agent that died between making them and noting them leaves a directory or a cgroup that no entry knows.
	for _, p := range r.strays() {
		if !known[p.WorkDir] && !known[p.Cgroup] { // one of them is empty, and never known
			if s := r.sweepOne(ctx, p); s.Err != nil {
				r.cfg.Logger.Warn("A stray could not be swept", zap.String("workDir", p.WorkDir), zap.String("cgroup", p.Cgroup), zap.Error(s.Err))
			}
		}
	}
	return swept
}

func (r *Runner) sweepOne(ctx context.Context, p Proc) Swept {
	s := Swept{Proc: p, Rebooted: p.BootID != r.bootID}
	deadline := time.Now().Add(r.cfg.KillWait)
	if !r.ours(p.WorkDir) {
		p.WorkDir = "" // the journal was written under another configuration: not ours to remove
	}
	if !strings.HasPrefix(filepath.Base(p.Cgroup), jobPrefix) {
		p.Cgroup = ""
	}
	if s.Rebooted {
		p.Cgroup = "" // it is another boot's name
		s.Err = r.discard(p, time.Now().Add(removeWait))
		return s
	}
	killed := make(map[int]bool)
	var left []procStat
	err := retry(deadline, func() error {
		left = r.traces(p)
		for _, q := range left {
			if q.pid == p.PID && len(left) > 1 {
				continue // last: while it lives, whoever loses its parent becomes the shim's and is found again
			}
			killed[q.pid] = true
			_, _ = killIf(q.pid, q.startTicks)
		}
		if p.Cgroup != "" && populated(p.Cgroup) {
			_ = killCgroup(p.Cgroup)
		}
		select {
		case <-ctx.Done():
			return nil // no more rounds; what is left is told below
		default:
		}
		if len(left) == 0 {
			return nil
		}
		return fmt.Errorf("could not be killed: %s", describe(left))
	})
	s.Killed = len(killed)
	if err == nil && len(left) > 0 {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = r.discard(p, time.Now().Add(removeWait))
	}
	if err != nil {
		s.Err = err
		r.addRemain(remain{proc: p, procs: left})
	}
	return s
}

// traces are the living processes that are an earlier attempt's beyond doubt.
func (r *Runner) traces(p Proc) []procStat {
	var found []procStat
	if p.PID > 1 {
		if s, err := readStat(p.PID); err == nil && s.startTicks == p.StartTicks && !s.dead() {
			below, _ := descendants(p.PID)
			found = append(append(found, living(below)...), s)
		}
	}
	if p.Cgroup != "" {
		found = append(found, cgroupProcs(p.Cgroup)...)
	}
	if p.WorkDir != "" {
		found = append(found, carriers("AGENTD_WORK_DIR="+p.WorkDir)...)
	}
	slices.SortFunc(found, func(a, b procStat) int { return a.pid - b.pid })
	return slices.CompactFunc(found, func(a, b procStat) bool { return a.pid == b.pid })
}

func (r *Runner) ours(dir string) bool {
	return filepath.Dir(dir) == r.cfg.WorkRoot && strings.HasPrefix(filepath.Base(dir), attemptPrefix)
}

// strays are the work directories and cgroups of attempts that don't run in this process.
func (r *Runner) strays() []Proc {
	var found []Proc
	for _, top := range []struct{ dir, prefix string }{{r.cfg.WorkRoot, attemptPrefix}, {r.cg.base, jobPrefix}} {
		if top.dir == "" {
			continue
		}
		entries, err := os.ReadDir(top.dir)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			r.cfg.Logger.Warn("Leavings of earlier attempts could not be listed", zap.String("dir", top.dir), zap.Error(err))
		}
		for _, e := range entries {
			name, ok := strings.CutPrefix(e.Name(), top.prefix)
			if !ok || !e.IsDir() || r.isLive(name) {
				continue
			}
			p := Proc{BootID: r.bootID}
			if top.prefix == jobPrefix {
				p.Cgroup = filepath.Join(top.dir, e.Name())
			} else {
				p.WorkDir = filepath.Join(top.dir, e.Name())
			}
			found = append(found, p)
		}
	}
	return found
}
