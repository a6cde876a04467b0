package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func (c *cli) checkCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Print the effective config, and every fault of it with its line",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := c.load(cmd.Flags())
			if err != nil {
				return err
			}
			if _, err := redactOf(s); err != nil {
				return err
			}
			s.print(c.out)
			if types := s.unwalled(); len(types) > 0 {
				fmt.Fprintf(c.err, "agentd: note: jobs of type %s run as the agent's own user: they can read its identity, and what other jobs print. "+
					"An agent that runs as root can give them users of their own (user:)\n", strings.Join(types, ", "))
			}
			return nil
		},
	}
	addOverrides(cmd.Flags())
	return cmd
}

// unwalled are the types of jobs that nothing keeps from what is the agent's (docs/security.md).
func (s *settings) unwalled() (types []string) {
	for _, h := range s.Handlers {
		if h.User == "" {
			types = append(types, h.Type)
		}
	}
	return types
}

// print writes the effective config as YAML that reads back to the same.
func (s *settings) print(w io.Writer) {
	p := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	p("server: %s", quote(s.Server))
	p("insecure: %t", s.Insecure)
	p("name: %s", quote(s.Name))
	p("state_dir: %s", quote(s.StateDir))
	p("runtime_dir: %s", quote(s.RuntimeDir))
	if s.TokenFile != "" {
		p("token_file: %s", quote(s.TokenFile))
	}
	p("log_level: %s", s.LogLevel)
	p("cgroup: %s", quote(s.Cgroup))
	p("max_jobs: %d", s.MaxJobs)
	p("labels: %s", table(s.Labels))
	p("drain: {timeout: %s, grace: %s, flush: %s}", duration(s.Drain.Timeout), duration(s.Drain.Grace), duration(s.Drain.Flush))
	if len(s.Handlers) > 0 {
		p("handlers:")
	}
	for _, h := range s.Handlers {
		p("  - type: %s", quote(h.Type))
		if len(h.Command) > 0 {
			p("    command: %s", flow(h.Command))
		}
		if len(h.Env) > 0 {
			p("    env: %s", table(h.Env))
		}
		if h.Timeout > 0 {
			p("    timeout: %s", duration(h.Timeout))
		}
		if h.Grace > 0 {
			p("    grace: %s", duration(h.Grace))
		}
		if h.Signal != "" {
			p("    stop_signal: %s", h.Signal)
		}
		var limits []string
		if h.Limits.Memory > 0 {
			limits = append(limits, "memory: "+size(h.Limits.Memory))
		}
		if h.Limits.CPUs > 0 {
			limits = append(limits, fmt.Sprintf("cpus: %g", h.Limits.CPUs))
		}
		if h.Limits.Pids > 0 {
			limits = append(limits, fmt.Sprintf("pids: %d", h.Limits.Pids))
		}
		if len(limits) > 0 {
			p("    limits: {%s}", strings.Join(limits, ", "))
		}
		if h.User != "" {
			p("    user: %s", quote(h.User))
		}
		if h.Keep {
			p("    keep_work_dir: true")
		}
	}
	if len(s.Queries) > 0 {
		p("queries:")
	}
	for _, q := range s.Queries {
		p("  - type: %s", quote(q.Type))
		p("    connectors: %s", flow(q.Connectors))
		p("    command: %s", flow(q.Command))
		p("    persistent: %t", q.Persistent)
		p("    concurrency: %d", q.Concurrency)
		if q.Timeout > 0 {
			p("    timeout: %s", duration(q.Timeout))
		}
	}
	sp := s.Logs.Spool
	p("logs:")
	p("  memory: %s", size(s.Logs.Memory))
	p("  durability: %s", s.Logs.Durability)
	p("  max_line: %s", size(int64(s.Logs.MaxLine)))
	p("  compression: %s", s.Logs.Compression)
	p("  spool: {max_size: %s, min_free: %g%%, when_full: %s, keep_shipped: %s}", size(sp.MaxSize), sp.MinFree*100, sp.WhenFull, duration(sp.KeepShipped))
	p("tls: {ca_file: %s, cert_file: %s, key_file: %s}", quote(s.TLS.CAFile), quote(s.TLS.CertFile), quote(s.TLS.KeyFile))
	p("redact: {files: %s, env: %s}", flow(s.Redact.Files), flow(s.Redact.Env))
	p("metrics: {listen: %s}", quote(s.Metrics))
}

func duration(d time.Duration) string { return d.String() }

func flow(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = quote(w)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

func table(m map[string]string) string {
	var pairs []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		pairs = append(pairs, quote(k)+": "+quote(m[k]))
	}
	return "{" + strings.Join(pairs, ", ") + "}"
}
