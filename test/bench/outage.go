package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentd/agent"
	"agentd/controlplane-mock/adminclient"
	"agentd/test/stack"
)

// benchOutage lets a job print a backlog of four times e.data while the control plane is away, restarts the agent
// on it, brings the control plane back and drains.
func benchOutage(ctx context.Context, e env, r *report) (err error) {
	const rounds = 4
	config := fmt.Sprintf("handlers:\n  - {type: backlog, command: [/bin/sh, -c, %q]}\n", strings.Repeat("cat "+e.data+"; ", rounds))
	s, err := stack.Start(ctx, stack.Config{Bin: e.bin, Dir: e.dir, Config: config, ServerArgs: []string{"--lease-ttl", "60s"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	job, _, err := s.Admin.Submit(ctx, adminclient.Submission{Type: "backlog"})
	if err != nil {
		return err
	}
	for job.Status != "running" {
		if job, err = s.Admin.Job(ctx, job.ID); err != nil {
			return err
		}
	}
	if err := s.Server.Kill(); err != nil {
		return err
	}
	s.Server = nil
	total := float64(rounds * e.mb)
	began := time.Now()
	stopPeak := peak(ctx, func() (float64, error) { return anonMB(s.Agent.PID()) })
	// The job ends when all that it printed is in memory or spooled: then nothing of it is alive.
	if err := jobsEnded(ctx, s); err != nil {
		return err
	}
	spill := total / time.Since(began).Seconds()
	peakMB := stopPeak()
	r.value(fmt.Sprintf("spill of %.0f MB through the whole agent", total), "%9.2f MB/s", spill)
	r.atMost("peak anonymous memory with the backlog", "MB", peakMB, 50) // beside the 50 MB queue, which is a shared mapping
	used, err := diskMB(filepath.Join(s.StateDir, "spool"))
	if err != nil {
		return err
	}
	written, err := writtenMB(filepath.Join(s.StateDir, "spool"))
	if err != nil {
		return err
	}
	r.atMost("disk used ÷ backlog, without what is only preallocated", "", written/total, 0.25)
	r.value("the same with what open epochs have preallocated", "%9.2f", used/total)

	if err := s.Agent.Stop(60 * time.Second); err != nil {
		return err
	}
	began = time.Now()
	agentd := filepath.Join(e.bin, "agentd")
	if s.Agent, err = stack.StartProcess("the agent", filepath.Join(e.dir, "agentd.log"), nil, agentd, "run", "--config", s.ConfigFile); err != nil {
		return err
	}
	for exec.CommandContext(ctx, agentd, "status", "--config", s.ConfigFile).Run() != nil {
		if time.Since(began) > time.Minute {
			return fmt.Errorf("the agent did not start: %s", s.Agent.Tail())
		}
		time.Sleep(5 * time.Millisecond)
	}
	r.atMost("start on the backlog until `agentd status` answers", "s", time.Since(began).Seconds(), 1)

	if err := s.StartServer(ctx); err != nil {
		return err
	}
	began = time.Now()
	var first int64 = -1
	for {
		if job, err = s.Admin.Job(ctx, job.ID); err != nil {
			return err
		}
		last := job.Last()
		if first < 0 && last.LogNext > 0 {
			first, began = last.LogNext, time.Now()
		}
		if last.LogsComplete {
			drained := float64(last.LogNext-first) * 200 / 1e6
			r.value("drain after the outage", "%9.2f MB/s", drained/time.Since(began).Seconds())
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	time.Sleep(3 * time.Second) // drained epochs are removed in the background
	used, err = diskMB(filepath.Join(s.StateDir, "spool"))
	if err != nil {
		return err
	}
	r.atMost("disk used after the drain (an epoch is 128 MiB)", "MB", used, 135)
	return nil
}

// jobsEnded waits until the agent runs no job: what has ended and can't be reported yet doesn't count.
func jobsEnded(ctx context.Context, s *stack.Stack) error {
	for {
		st, err := s.Status(ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(st.Jobs, func(j agent.JobStatus) bool { return j.State == "running" }) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// diskMB is what dir occupies on disk, holes left out.
func diskMB(dir string) (float64, error) {
	var blocks int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed while we looked
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			blocks += stat.Blocks
		}
		return nil
	})
	return float64(blocks) * 512 / 1e6, err
}

// writtenMB is diskMB without the space that files have and nobody has written to yet.
func writtenMB(dir string) (float64, error) {
	var sum int64
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed while we looked
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer f.Close()
		for at := int64(0); ; {
			// To the kernel, what is allocated and was never written is a hole.
			from, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
			if errors.Is(err, unix.ENXIO) {
				return nil
			}
			to, err2 := unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
			if err := errors.Join(err, err2); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			sum += to - from
			at = to
		}
	})
	return float64(sum) / 1e6, err
}

func mkdir(dir string) error { return os.MkdirAll(dir, 0o700) }
