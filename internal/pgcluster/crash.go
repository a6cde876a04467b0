package pgcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Crash kills every process of the cluster at once, as a power cut would. What it holds stays, for Again.
func (c *Cluster) Crash() error { return c.signal(syscall.SIGKILL) }

// Freeze stops every process of the cluster where it is: connections stay open, and nothing answers.
func (c *Cluster) Freeze() error { return c.signal(syscall.SIGSTOP) }

// Thaw lets a frozen cluster go on.
func (c *Cluster) Thaw() error { return c.signal(syscall.SIGCONT) }

// signal reaches the main process first, so that it starts no others.
func (c *Cluster) signal(sig syscall.Signal) error {
	pids, err := c.PIDs()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("pgcluster: signal %d: %w", pid, err)
		}
	}
	return nil
}

// Again starts a cluster that crashed, as it was started before. Its lock files go first: where nobody buries the dead main
// process, it would be taken for a living one.
func (c *Cluster) Again(ctx context.Context) error {
	for _, lock := range []string{filepath.Join(c.data(), "postmaster.pid"), filepath.Join(c.dir, ".s.PGSQL.5432.lock")} {
		if err := os.Remove(lock); err != nil {
			return err
		}
	}
	return c.start(ctx)
}
