package agent

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"agentd/agent/exec"
	"agentd/agent/identity"
	"agentd/agent/protocol"
	"agentd/shipper"
)

// Defaults of Config.
const (
	DefaultStateDir     = "/var/lib/agentd"
	DefaultRuntimeDir   = "/run/agentd"
	DefaultMaxJobs      = 2
	DefaultDrainTimeout = 30 * time.Second
	DefaultDrainFlush   = 10 * time.Second
	DefaultDrainGrace   = 10 * time.Second
	DefaultGrace        = 10 * time.Second // of a job that names none

	// spareSlots of the journal are for outcomes that wait while as many jobs as may run do so.
	spareSlots = 8
	// maxJobs keeps the journal and the number of processes within what a host can bear.
	maxJobs = 1000
	// maxLabel is the protocol's limit on types and labels.
	maxLabel = 128
)

// Config is all that an agent needs to know. The zero value of a field is its default.
type Config struct {
	Server     string // base URL of the control plane. Required
	Insecure   bool   // allows http:// to other hosts than this one
	TLS        *tls.Config
	Name       string // default: the host's
	Version    string // told to the control plane
	StateDir   string // identity, journal, spool: must outlive a reboot
	RuntimeDir string // the queue file: tmpfs where there is one
	MaxJobs    int
	Labels     map[string]string
	Types      []string             // for Enrol alone: an agent that runs announces what it handles
	Token      identity.TokenSource // enrolment token of the first link; nil = none
	Drain      Drain
	Logs       Logs
	Redact     Redact
	Cgroup     string   // see exec.Config
	CoreLimit  uint64   // see exec.Config
	Environ    []string // the process's environment, of which jobs get an allow-list
	Logger     *zap.Logger
}

// Drain bounds the ways out.
type Drain struct {
	Timeout time.Duration // running jobs may go on for so long
	Grace   time.Duration // the most that a job gets between its stop signal and SIGKILL then
	Flush   time.Duration // completions and logs may take so long to be delivered
}

// Total is the longest that a stop takes, the processes' death and the last sync included: what a service manager must allow.
func (d Drain) Total() time.Duration { return d.Timeout + d.Grace + killSlack + d.Flush + syncSlack }

const (
	killSlack = 10 * time.Second // exec's KillWait: a process that SIGKILL doesn't end
	syncSlack = 10 * time.Second // what memory holds, written to a slow disk and synced: 50 MB at 5 MB/s
)

// Logs says where output waits.
type Logs struct {
	Memory      int64
	Durability  string
	MaxLine     int
	Compression string
	Spool       Spool
}

// Spool bounds the disk.
type Spool struct {
	MaxSize     int64
	MinFree     float64 // fraction of the file system that is left to others
	WhenFull    string
	KeepShipped time.Duration
}

func (c Config) withDefaults() Config {
	if c.Name == "" {
		c.Name, _ = os.Hostname() // validate names the fault
	}
	c.StateDir = cmp.Or(c.StateDir, DefaultStateDir)
	c.RuntimeDir = cmp.Or(c.RuntimeDir, DefaultRuntimeDir)
	c.MaxJobs = cmp.Or(c.MaxJobs, DefaultMaxJobs)
	c.Drain.Timeout = cmp.Or(c.Drain.Timeout, DefaultDrainTimeout)
	c.Drain.Flush = cmp.Or(c.Drain.Flush, DefaultDrainFlush)
	c.Drain.Grace = cmp.Or(c.Drain.Grace, DefaultDrainGrace)
	c.Logs.Spool.MaxSize = cmp.Or(c.Logs.Spool.MaxSize, 2<<30)
	c.Logs.Spool.MinFree = cmp.Or(c.Logs.Spool.MinFree, 0.05)
	c.Logs.Spool.WhenFull = cmp.Or(c.Logs.Spool.WhenFull, shipper.WhenFullBlock)
	c.Cgroup = cmp.Or(c.Cgroup, exec.CgroupAuto)
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return c
}

func (c Config) validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if _, err := protocol.ParseServer(c.Server, c.Insecure); err != nil {
		fault("server: %w", err)
	}
	if c.Name == "" {
		fault("name: missing, and the host has none")
	}
	for key, dir := range map[string]string{"state_dir": c.StateDir, "runtime_dir": c.RuntimeDir} {
		if !filepath.IsAbs(dir) {
			fault("%s: %q is not an absolute path", key, dir)
		}
	}
	if c.MaxJobs < 1 || c.MaxJobs > maxJobs {
		fault("max_jobs: %d is not within 1 and %d", c.MaxJobs, maxJobs)
	}
	if c.Drain.Timeout < 0 || c.Drain.Flush < 0 || c.Drain.Grace < 0 {
		fault("drain: a time is negative")
	}
	if c.Logs.Spool.MinFree < 0 || c.Logs.Spool.MinFree >= 1 {
		fault("logs.spool.min_free: %v is not within 0 and 1", c.Logs.Spool.MinFree)
	}
	if err := checkLabels(c.Labels); err != nil {
		faults = append(faults, err)
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	return nil
}

func checkLabels(labels map[string]string) error {
	for k, v := range labels {
		if k == "" || len(k) > maxLabel || len(v) > maxLabel {
			return fmt.Errorf("labels: %q: names have 1 to %d characters, values at most as many", k, maxLabel)
		}
	}
	return nil
}
