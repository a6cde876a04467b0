package agent

import (
	"fmt"
	"maps"
	"slices"

	"go.uber.org/zap"

	"agentd/agent/identity"
)

// Reloaded is what may change while jobs run. Attempts that run keep the handler that they began with.
type Reloaded struct {
	Labels   map[string]string
	MaxJobs  int // fewer than run now: those go on
	Handlers map[string]Handler
	Redact   Redact // for attempts that start from then on
}

// Reload takes over r, or refuses all of it. The control plane hears of it by a re-link that follows.
func (a *Agent) Reload(r Reloaded) error {
	if r.MaxJobs < 1 || r.MaxJobs > maxJobs {
		return fmt.Errorf("agent: max_jobs: %d is not within 1 and %d", r.MaxJobs, maxJobs)
	}
	if err := checkLabels(r.Labels); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	a.update(func() {
		a.labels, a.maxJobs, a.handlers, a.redact = maps.Clone(r.Labels), r.MaxJobs, maps.Clone(r.Handlers), r.Redact
	})
	a.log.Info("settings were reloaded", zap.Int("max_jobs", r.MaxJobs), zap.Int("types", len(r.Handlers)))
	a.ident.Announce(a.info())
	return nil
}

// info is what the agent announces.
func (a *Agent) info() identity.Info {
	a.mu.Lock()
	defer a.mu.Unlock()
	types, connectors := a.announcedQueries()
	types = append(a.typesLocked(), types...)
	slices.Sort(types) // a type may be both a job's and a query's
	return identity.Info{Name: a.cfg.Name, Labels: maps.Clone(a.labels), Types: slices.Compact(types), Connectors: connectors, Version: a.cfg.Version}
}
