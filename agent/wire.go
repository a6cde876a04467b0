package agent

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"agentd/agent/exec"
	"agentd/agent/identity"
	"agentd/agent/journal"
	"agentd/agent/protocol"
	"agentd/shipper"
)

// New opens all that an agent needs: state and runtime directory, identity, journal, logs. It starts
// nothing and asks nobody. *InUseError: another agent uses the state directory.
func New(cfg Config) (*Agent, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	a := newAgent(cfg, parts{})
	if err := a.open(); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// open makes the real parts. What was opened is noted for Close as it goes.
func (a *Agent) open() error {
	if err := errors.Join(makeDir("state_dir", a.cfg.StateDir), makeDir("runtime_dir", a.cfg.RuntimeDir)); err != nil {
		return err
	}
	release, err := takeDir(a.cfg.StateDir)
	if err != nil {
		return err
	}
	a.closers = append(a.closers, release)
	process, err := identity.NewProcessID()
	if err != nil {
		return err
	}
	if a.bootID, err = bootID(); err != nil {
		return err
	}
	jrnl, err := journal.Open(filepath.Join(a.cfg.StateDir, "journal"), 2*a.cfg.MaxJobs+spareSlots)
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	a.closers = append(a.closers, jrnl.Close)
	a.journal = jrnl
	runner, err := exec.New(exec.Config{
		WorkRoot: filepath.Join(a.cfg.StateDir, "work"), Cgroup: a.cfg.Cgroup, CoreLimit: a.cfg.CoreLimit, Environ: a.cfg.Environ, Logger: a.log,
	})
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	a.closers = append(a.closers, func() error { runner.Close(); return nil })
	a.runner, a.before = runner, a.takeLife
	return a.connect(process)
}

func (a *Agent) clientConfig(process string) protocol.ClientConfig {
	return protocol.ClientConfig{
		Server: a.cfg.Server, Insecure: a.cfg.Insecure, TLS: a.cfg.TLS, ProcessID: process,
		UserAgent: "agentd/" + cmp.Or(a.cfg.Version, "devel"), Logger: a.log,
	}
}

// connect makes the parts that talk to the control plane.
func (a *Agent) connect(process string) error {
	cfg := a.clientConfig(process)
	linker, err := protocol.NewClient(cfg)
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	a.closers = append(a.closers, func() error { linker.Close(); return nil })
	id, err := identity.Open(identity.Config{
		Dir: a.cfg.StateDir, ProcessID: process, Info: a.info(), Linker: linker, Token: a.cfg.Token, Linked: a.linked, Logger: a.log,
	})
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	a.ident = id
	cfg.Credential, cfg.Relink = id.Credential, id.Relink
	client, err := protocol.NewClient(cfg)
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	a.closers = append(a.closers, func() error { client.Close(); return nil })
	a.plane = client
	return a.openLogs(client)
}

// Linkable tells whether Run has anything to link with: an agent id, or a token. identity.ErrNotLinked if not.
func (a *Agent) Linkable() error {
	if id, ok := a.ident.(*identity.Identity); ok {
		return id.Linkable()
	}
	return nil
}

// bootID tells this boot of the host from any other.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("agent: boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

var (
	_ runner  = (*exec.Runner)(nil)
	_ plane   = (*protocol.Client)(nil)
	_ ident   = (*identity.Identity)(nil)
	_ entries = (*journal.Journal)(nil)
	_ jobLog  = (*shipper.Log)(nil)
	_ logs    = (*store)(nil)
)
