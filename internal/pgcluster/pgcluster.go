// Package pgcluster runs a private PostgreSQL for tests and benchmarks: in a scratch directory, as an ordinary user, on a unix
// socket, with a Debian package's binaries. Nothing of the machine's own PostgreSQL is touched, and nothing is left of it.
package pgcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Config says how the cluster differs from the default: crash safety off, for tests don't test the disk.
type Config struct {
	// Durable leaves fsync on: what is measured is to be what an operator gets.
	Durable bool
	// Settings are further name=value pairs of postgresql.conf.
	Settings []string
}

// Cluster is a running PostgreSQL.
type Cluster struct {
	// Bin is the folder with psql, pgbench and the like.
	Bin  string
	dir  string
	opts string // of the server
	as   *syscall.SysProcAttr
}

// Start makes a cluster and starts it. The caller stops it.
func Start(ctx context.Context, cfg Config) (_ *Cluster, err error) {
	bins, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(bins) == 0 {
		return nil, errors.New("pgcluster: no PostgreSQL in /usr/lib/postgresql: install the package postgresql")
	}
	c := &Cluster{Bin: slices.Max(bins), as: &syscall.SysProcAttr{}}
	if c.dir, err = os.MkdirTemp("", "agentd-pg"); err != nil { // short: a socket's path has at most 107 bytes
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(c.dir)
		}
	}()
	if os.Getuid() == 0 { // PostgreSQL refuses to run as root
		if err := c.asPostgres(); err != nil {
			return nil, err
		}
	}
	if err := c.run(ctx, "initdb", "-D", c.data(), "-U", "agentd", "-A", "trust", "-N", "-E", "UTF8", "--locale=C"); err != nil {
		return nil, err
	}
	c.opts = fmt.Sprintf("-c listen_addresses='' -c unix_socket_directories='%s' -c max_connections=300", c.dir)
	if !cfg.Durable {
		c.opts += " -c fsync=off"
	}
	for _, s := range cfg.Settings {
		c.opts += " -c " + s
	}
	return c, c.start(ctx)
}

func (c *Cluster) start(ctx context.Context) error {
	return c.run(ctx, "pg_ctl", "-D", c.data(), "-w", "-l", filepath.Join(c.dir, "log"), "-o", c.opts, "start")
}

// asPostgres has everything run as the package's own user.
func (c *Cluster) asPostgres() error {
	u, err := user.Lookup("postgres")
	if err != nil {
		return err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return err
	}
	c.as.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return os.Chown(c.dir, int(uid), int(gid))
}

func (c *Cluster) data() string { return filepath.Join(c.dir, "data") }

func (c *Cluster) run(ctx context.Context, name string, arg ...string) error {
	out, err := c.Command(ctx, name, arg...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("pgcluster: %s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}

// Command is one of PostgreSQL's own programs, run as the cluster's user in its directory.
func (c *Cluster) Command(ctx context.Context, name string, arg ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(c.Bin, name), arg...) //nolint:gosec // the callers are tests and benchmarks
	cmd.SysProcAttr, cmd.Dir = c.as, c.dir
	return cmd
}

// Socket is the directory of the socket that the cluster listens on, for PGHOST.
func (c *Cluster) Socket() string { return c.dir }

// URL is where the database is, with room for further parameters after an &.
func (c *Cluster) URL() string { return "postgres:///postgres?host=" + c.dir + "&user=agentd" }

// PIDs are the server's processes.
func (c *Cluster) PIDs() ([]int, error) {
	raw, err := os.ReadFile(filepath.Join(c.data(), "postmaster.pid"))
	if err != nil {
		return nil, err
	}
	first, _, _ := strings.Cut(string(raw), "\n")
	main, err := strconv.Atoi(first)
	if err != nil {
		return nil, err
	}
	all := []int{main}
	raw, err = os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", main, main))
	for s := range strings.FieldsSeq(string(raw)) {
		if pid, err := strconv.Atoi(s); err == nil {
			all = append(all, pid)
		}
	}
	return all, err
}

// Stop ends the cluster and removes it.
func (c *Cluster) Stop() error {
	err := c.run(context.Background(), "pg_ctl", "-D", c.data(), "-w", "-m", "immediate", "stop")
	return errors.Join(err, os.RemoveAll(c.dir))
}

// ForTest is a cluster that lives as long as the test.
func ForTest(t testing.TB, cfg Config) *Cluster {
	t.Helper()
	c, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}
