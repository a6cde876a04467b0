package main

import (
	"net/url"
	"slices"
	"strings"

	"go.uber.org/zap"

	"agentd/agent"
	"agentd/agent/exec"
	"agentd/agent/identity"
	"agentd/agent/query"
	"agentd/internal/version"
)

// agentConfig turns settings into what package agent takes.
func (c *cli) agentConfig(s settings, token identity.TokenSource, log *zap.Logger) (agent.Config, error) {
	cfg := agent.Config{
		Server: s.Server, Insecure: s.Insecure, Name: s.Name, Version: version.String(),
		StateDir: s.StateDir, RuntimeDir: s.RuntimeDir, MaxJobs: s.MaxJobs, Labels: s.Labels,
		Token: token, Drain: s.Drain, Logs: s.Logs, Cgroup: s.Cgroup, Environ: c.environ(), Logger: log,
	}
	u, err := url.Parse(s.Server)
	if err != nil {
		return cfg, exit(exitConfig, err)
	}
	if cfg.TLS, err = identity.TLSConfig(s.TLS, u.Hostname()); err != nil {
		return cfg, exit(exitConfig, err)
	}
	return cfg, nil
}

// token is where enrolment tokens come from: the file that was named, else systemd's credential.
func (c *cli) token(s settings) identity.TokenSource {
	sources := []identity.TokenSource{}
	switch s.TokenFile {
	case "":
	case "-":
		sources = append(sources, identity.TokenReader(c.in))
	default:
		sources = append(sources, identity.TokenFile(s.TokenFile))
	}
	return identity.FirstToken(append(sources, identity.TokenCredential(c.getenv("CREDENTIALS_DIRECTORY")))...)
}

// handlersOf makes the handlers that the config lists.
func handlersOf(s settings) map[string]agent.Handler {
	handlers := map[string]agent.Handler{}
	for _, h := range s.Handlers {
		cmd := agent.Command{
			Command: h.Command, Timeout: h.Timeout, GracePeriod: h.Grace,
			Spec: exec.Spec{StopSignal: signals[h.Signal], Limits: h.Limits, User: h.User, KeepWorkDir: h.Keep},
		}
		for k, v := range h.Env {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
		slices.SortFunc(cmd.Env, strings.Compare)
		if h.Type == shellType {
			handlers[h.Type] = agent.Shell{Command: cmd}
			continue
		}
		handlers[h.Type] = cmd
	}
	return handlers
}

// queriesOf makes the connectors that the config lists.
func queriesOf(s settings, log *zap.Logger) []agent.Queries {
	var out []agent.Queries
	for _, q := range s.Queries {
		cmd := &query.Command{Argv: q.Command, Env: connectorEnv}
		made := agent.Queries{Type: q.Type, Connectors: q.Connectors, Concurrency: q.Concurrency, Handler: cmd.Once}
		if q.Persistent {
			pool := query.NewPool(cmd, q.Concurrency, log)
			made.Handler, made.Close = pool.Answer, pool.Close
		}
		if q.Timeout > 0 {
			made.Handler = query.Within(q.Timeout, made.Handler)
		}
		out = append(out, made)
	}
	return out
}

// connectorEnv is the whole environment of a connector: what it needs beyond that, its command can set (env KEY=VALUE …).
var connectorEnv = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
