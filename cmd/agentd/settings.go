package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/goccy/go-yaml/ast"

	"agentd/agent"
	"agentd/agent/exec"
	"agentd/agent/identity"
	"agentd/agent/protocol"
)

const defaultConfig = "/etc/agentd/agentd.yaml"

// settings is the effective config.
type settings struct {
	Server     string
	Insecure   bool
	Name       string
	StateDir   string
	RuntimeDir string
	TokenFile  string
	LogLevel   string
	Cgroup     string
	MaxJobs    int
	Labels     map[string]string
	Drain      agent.Drain
	Handlers   []handler
	Queries    []querySettings
	Logs       agent.Logs
	TLS        identity.TLSFiles
	Redact     redactSettings
	Metrics    string // address to listen on; "" = no port
}

// handler is one job type and the command that does it.
type handler struct {
	Type    string
	Command []string // empty for shell
	Env     map[string]string
	Timeout time.Duration
	Grace   time.Duration
	Signal  string
	Limits  exec.Limits
	User    string
	Keep    bool
}

// querySettings is one query type and the command that answers it.
type querySettings struct {
	Type        string
	Connectors  []string
	Command     []string
	Persistent  bool
	Concurrency int
	Timeout     time.Duration
}

// shellType runs payload.script, and exists only where it is listed.
const shellType = "shell"

const (
	mib = 1 << 20
	tib = 1 << 40
)

func defaults() settings {
	host, _ := os.Hostname() // an empty one is a fault of the config, and named there
	s := settings{
		Name: host, StateDir: agent.DefaultStateDir, RuntimeDir: agent.DefaultRuntimeDir, MaxJobs: agent.DefaultMaxJobs,
		LogLevel: "info", Cgroup: exec.CgroupAuto, Labels: map[string]string{},
		Drain: agent.Drain{Timeout: agent.DefaultDrainTimeout, Grace: agent.DefaultDrainGrace, Flush: agent.DefaultDrainFlush},
	}
	s.Logs = agent.Logs{
		Memory: 50e6, Durability: "spill", MaxLine: 64 << 10, Compression: "auto",
		Spool: agent.Spool{MaxSize: 2 << 30, MinFree: 0.05, WhenFull: "block"},
	}
	return s
}

// read takes the file's text into s and notes all that is wrong with it.
func (s *settings) read(r *reader, text []byte) {
	maxLine := int64(s.Logs.MaxLine)
	r.document(text, map[string]field{
		"server": r.word(&s.Server), "insecure": into(r, &s.Insecure, parseBool), "name": r.word(&s.Name),
		"state_dir": r.word(&s.StateDir), "runtime_dir": r.word(&s.RuntimeDir), "token_file": r.word(&s.TokenFile),
		"log_level": into(r, &s.LogLevel, oneOf("debug", "info", "warn", "error")),
		"cgroup":    r.word(&s.Cgroup),
		"max_jobs":  into(r, &s.MaxJobs, intWithin(1, 1000)),
		"labels":    r.table(&s.Labels),
		"drain": func(path string, n ast.Node) {
			r.object(path, n, map[string]field{
				"timeout": into(r, &s.Drain.Timeout, parseDuration), "grace": into(r, &s.Drain.Grace, parseDuration),
				"flush": into(r, &s.Drain.Flush, parseDuration),
			})
		},
		"handlers": r.list(func(_ int, path string, n ast.Node) { s.Handlers = append(s.Handlers, r.handler(path, n)) }),
		"queries":  r.list(func(_ int, path string, n ast.Node) { s.Queries = append(s.Queries, r.query(path, n)) }),
		"logs": func(path string, n ast.Node) {
			r.object(path, n, map[string]field{
				"memory":      into(r, &s.Logs.Memory, sizeWithin(mib, tib)),
				"durability":  into(r, &s.Logs.Durability, oneOf("spill", "strict")),
				"max_line":    into(r, &maxLine, sizeWithin(64, 512<<10)),
				"compression": into(r, &s.Logs.Compression, oneOf("auto", "zstd", "snappy", "gzip", "none")),
				"spool": func(path string, n ast.Node) {
					r.object(path, n, map[string]field{
						"max_size":     into(r, &s.Logs.Spool.MaxSize, sizeWithin(16*mib, 1024*tib)),
						"min_free":     into(r, &s.Logs.Spool.MinFree, parsePercent),
						"when_full":    into(r, &s.Logs.Spool.WhenFull, oneOf("block", "drop_oldest", "drop_newest")),
						"keep_shipped": into(r, &s.Logs.Spool.KeepShipped, parseDuration),
					})
				},
			})
		},
		"tls": func(path string, n ast.Node) {
			r.object(path, n, map[string]field{
				"ca_file": r.word(&s.TLS.CAFile), "cert_file": r.word(&s.TLS.CertFile), "key_file": r.word(&s.TLS.KeyFile),
			})
		},
		"redact": func(path string, n ast.Node) {
			r.object(path, n, map[string]field{"files": r.words(&s.Redact.Files), "env": r.words(&s.Redact.Env)})
		},
		"metrics": func(path string, n ast.Node) {
			r.object(path, n, map[string]field{"listen": r.word(&s.Metrics)})
		},
	})
	s.Logs.MaxLine = int(maxLine)
}

var signals = map[string]syscall.Signal{
	"": 0, "SIGTERM": syscall.SIGTERM, "SIGINT": syscall.SIGINT, "SIGQUIT": syscall.SIGQUIT, "SIGHUP": syscall.SIGHUP,
	"SIGUSR1": syscall.SIGUSR1, "SIGUSR2": syscall.SIGUSR2, "SIGKILL": syscall.SIGKILL,
}

func (r *reader) handler(path string, n ast.Node) handler {
	var h handler
	r.object(path, n, map[string]field{
		"type": r.word(&h.Type), "command": r.words(&h.Command), "env": r.table(&h.Env),
		"timeout": into(r, &h.Timeout, parseDuration), "grace": into(r, &h.Grace, parseDuration),
		"stop_signal": into(r, &h.Signal, oneOf("SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGKILL")),
		"limits": func(path string, n ast.Node) {
			pids := 0
			r.object(path, n, map[string]field{
				"memory": into(r, &h.Limits.Memory, sizeWithin(mib, tib)), "cpus": into(r, &h.Limits.CPUs, parseCPUs),
				"pids": into(r, &pids, intWithin(2, 4<<20)),
			})
			h.Limits.Pids = int64(pids)
		},
		"user": r.word(&h.User), "keep_work_dir": into(r, &h.Keep, parseBool),
	})
	if h.Type == "" && r.lines[path+".type"] == 0 {
		r.fault(n, path+".type", "missing")
	}
	if len(h.Type) > 128 {
		r.fault(n, path+".type", "longer than 128 characters")
	}
	if h.Type == shellType && len(h.Command) > 0 {
		r.fault(n, path+".command", "the type shell runs the job's own script and takes no command")
	}
	if h.Type != shellType && len(h.Command) == 0 && r.lines[path+".command"] == 0 {
		r.fault(n, path+".command", "missing: the program and its arguments, [/opt/etl/extract, --json]")
	}
	return h
}

func (r *reader) query(path string, n ast.Node) querySettings {
	q := querySettings{Concurrency: 4}
	r.object(path, n, map[string]field{
		"type": r.word(&q.Type), "connectors": r.words(&q.Connectors), "command": r.words(&q.Command),
		"persistent": into(r, &q.Persistent, parseBool), "concurrency": into(r, &q.Concurrency, intWithin(1, 1000)),
		"timeout": into(r, &q.Timeout, parseDuration),
	})
	for key, missing := range map[string]bool{"type": q.Type == "", "connectors": len(q.Connectors) == 0, "command": len(q.Command) == 0} {
		if missing && r.lines[path+"."+key] == 0 {
			r.fault(n, path+"."+key, "missing")
		}
	}
	return q
}

// check finds what no single value shows.
func (s *settings) check(r *reader) {
	fault := func(path, format string, args ...any) {
		r.faults = append(r.faults, fault{r.lines[path], path, fmt.Sprintf(format, args...)})
	}
	if _, err := protocol.ParseServer(s.Server, s.Insecure); err != nil {
		fault("server", "%s", strings.TrimPrefix(strings.TrimPrefix(err.Error(), "protocol: "), "server "))
	}
	if s.Name == "" {
		fault("name", "missing, and the host has no name")
	}
	for path, dir := range map[string]string{"state_dir": s.StateDir, "runtime_dir": s.RuntimeDir} {
		if !filepath.IsAbs(dir) {
			fault(path, "%q is not an absolute path", dir)
		}
	}
	if s.Cgroup != exec.CgroupAuto && s.Cgroup != exec.CgroupOff && !filepath.IsAbs(s.Cgroup) {
		fault("cgroup", "%q is neither auto, off nor an absolute path", s.Cgroup)
	}
	for k, v := range s.Labels {
		if k == "" || len(k) > 128 || len(v) > 128 {
			fault("labels", "%q: names have 1 to 128 characters, values at most as many", k)
		}
	}
	if int64(s.Logs.MaxLine) > s.Logs.Memory/16 {
		fault("logs.max_line", "%s is more than a sixteenth of logs.memory (%s)", size(int64(s.Logs.MaxLine)), size(s.Logs.Memory))
	}
	for i, file := range s.Redact.Files {
		if !filepath.IsAbs(file) {
			fault("redact.files", "entry %d, %q, is not an absolute path", i+1, file)
		}
	}
	if (s.TLS.CertFile == "") != (s.TLS.KeyFile == "") {
		fault("tls", "cert_file and key_file go together")
	}
	seen := map[string]bool{}
	for i, h := range s.Handlers {
		if seen[h.Type] && h.Type != "" {
			fault(fmt.Sprintf("handlers[%d].type", i), "%q has a handler already", h.Type)
		}
		seen[h.Type] = true
	}
}
