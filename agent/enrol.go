package agent

import (
	"context"
	"errors"
	"fmt"

	"agentd/agent/identity"
	"agentd/agent/protocol"
)

// Enrol links the agent of cfg for the first time and returns its id. Where it is linked already it
// asks nobody and returns the id, also while an agent runs on the same state directory.
func Enrol(ctx context.Context, cfg Config, e identity.Enrolment) (id string, err error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return "", err
	}
	if err := makeDir("state_dir", cfg.StateDir); err != nil {
		return "", err
	}
	a := newAgent(cfg, parts{})
	defer func() { err = errors.Join(err, a.Close()) }()
	release, inUse := takeDir(cfg.StateDir)
	if inUse == nil {
		a.closers = append(a.closers, release)
	}
	process, err := identity.NewProcessID()
	if err != nil {
		return "", fmt.Errorf("agent: %w", err)
	}
	client, err := protocol.NewClient(a.clientConfig(process))
	if err != nil {
		return "", fmt.Errorf("agent: %w", err)
	}
	a.closers = append(a.closers, func() error { client.Close(); return nil })
	info := a.info()
	info.Types = cfg.Types
	ident, err := identity.Open(identity.Config{
		Dir: cfg.StateDir, ProcessID: process, Info: info, Linker: client, Token: cfg.Token, Logger: cfg.Logger,
	})
	if err != nil {
		return "", err
	}
	if inUse != nil && (ident.AgentID() == "" || e.Force) {
		return "", inUse // it links for itself, or holds what would be given up
	}
	if _, err := ident.Enrol(ctx, e); err != nil {
		return "", err
	}
	return ident.AgentID(), nil
}
