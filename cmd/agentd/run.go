package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"reflect"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"agentd/agent"
	"agentd/spool"
	"agentd/systemd"
)

func (c *cli) runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the agent until it is told to stop",
		Long: "run asks for jobs and does them. The first SIGTERM drains: no more jobs are taken, running ones get drain.timeout, then\n" +
			"their stop signal; completions and logs are delivered for drain.flush; the rest is on disk. A second one skips the waits.\n" +
			"SIGHUP reloads labels, handlers, limits and the log level without touching running jobs.",
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runAgent(cmd.Context(), cmd.Flags()) },
	}
	addOverrides(cmd.Flags())
	return cmd
}

// daemon is a running agent with what surrounds it.
type daemon struct {
	cli      *cli
	flags    *pflag.FlagSet
	agent    *agent.Agent
	level    zap.AtomicLevel
	log      *zap.Logger
	notifier *systemd.Notifier

	mu      sync.Mutex // serialises reloads
	current settings   // guarded by mu
}

func (c *cli) runAgent(ctx context.Context, flags *pflag.FlagSet) error {
	s, err := c.load(flags)
	if err != nil {
		return err
	}
	d := &daemon{cli: c, flags: flags, level: zap.NewAtomicLevel(), current: s}
	setLevel(d.level, s.LogLevel)
	d.log = newLogger(c.err, d.level)
	cfg, err := c.agentConfig(s, c.token(s), d.log)
	if err != nil {
		return err
	}
	if cfg.CoreLimit, err = keepFromDisk(); err != nil {
		d.log.Warn("memory could not be kept out of core files", zap.Error(err))
	}
	if cfg.Redact, err = redactOf(s); err != nil {
		return err
	}
	if d.agent, err = agent.New(cfg); err != nil {
		return err
	}
	return errors.Join(d.run(ctx, s), d.agent.Close())
}

func (d *daemon) run(ctx context.Context, s settings) error {
	if err := d.agent.Linkable(); err != nil {
		return err
	}
	for typ, h := range handlersOf(s) {
		d.agent.Handle(typ, h)
	}
	for _, q := range queriesOf(s, d.log) {
		if err := d.agent.HandleQuery(q); err != nil {
			return err
		}
	}
	metrics, err := metricsHandler(d.agent)
	if err != nil {
		return err
	}
	socket, err := listen(ctx, socketPath(s))
	if err != nil {
		return err
	}
	adm := &admin{agent: d.agent, reload: d.reload, log: d.log, mounts: d.mounts()}
	servers := []server{{socket, adm.handler(metrics)}}
	if s.Metrics != "" {
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", s.Metrics)
		if err != nil {
			return errors.Join(fmt.Errorf("metrics.listen: %w", err), socket.Close())
		}
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", metrics)
		servers = append(servers, server{l, mux})
	}
	if d.notifier, err = systemd.New(systemd.Config{
		Status: func() string { st := d.agent.Status(); return notice(&st, d.agent.Spool().Stats().Bytes) },
		Alive:  d.agent.Alive, Logger: d.log,
	}); err != nil {
		return err
	}
	return d.serve(ctx, servers)
}

type server struct {
	l net.Listener
	h http.Handler
}

// serve runs the agent and all that answers for it, which goes on answering while it drains.
func (d *daemon) serve(ctx context.Context, servers []server) error {
	take, stop := context.WithCancel(ctx)
	defer stop()
	around, end := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end()
	stopping := make(chan struct{})
	wg.Go(func() { d.signals(around, func() { stop(); close(stopping) }) })
	for _, s := range servers {
		wg.Go(func() {
			if err := serve(around, s.l, s.h, d.log); err != nil {
				d.log.Error("server ended", zap.Error(err))
			}
		})
	}
	wg.Go(func() {
		if err := d.notifier.Run(around, stopping); err != nil {
			d.log.Error("notifier ended", zap.Error(err))
		}
	})
	d.notifier.Ready()
	d.log.Info("agent started", zap.Int("pid", os.Getpid()))
	return d.agent.Run(take)
}

// signals turns signals into calls: the first SIGTERM or SIGINT drains, the next hurries, SIGHUP reloads.
func (d *daemon) signals(ctx context.Context, drain func()) {
	got := make(chan os.Signal, 4)
	signal.Notify(got, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(got)
	stops := 0
	for {
		select {
		case <-ctx.Done():
			return
		case sig := <-got:
			if sig == syscall.SIGHUP {
				if err := d.reload(); err != nil {
					d.log.Error("reload failed, the old settings stay in force", zap.Error(err))
				}
				continue
			}
			if stops++; stops == 1 {
				d.log.Info("signal was received, draining", zap.Stringer("signal", sig))
				drain()
				continue
			}
			d.log.Warn("signal was received again, not waiting any more", zap.Stringer("signal", sig))
			d.agent.Hurry()
		}
	}
}

// reload takes over what may change while jobs run, all of it or nothing.
func (d *daemon) reload() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.notifier.Reloading()
	defer d.notifier.Ready()
	s, err := d.cli.load(d.flags)
	if err != nil {
		return err
	}
	secrets, err := redactOf(s)
	if err != nil {
		return err
	}
	if err := d.agent.Reload(agent.Reloaded{Labels: s.Labels, MaxJobs: s.MaxJobs, Handlers: handlersOf(s), Redact: secrets}); err != nil {
		return err
	}
	setLevel(d.level, s.LogLevel)
	if fixed := changedFixed(d.current, s); len(fixed) > 0 {
		d.log.Warn("settings need a restart", zap.Strings("keys", fixed))
	}
	d.current.Labels, d.current.MaxJobs, d.current.Handlers, d.current.LogLevel = s.Labels, s.MaxJobs, s.Handlers, s.LogLevel
	return nil
}

// changedFixed names the settings that differ and take a restart.
func changedFixed(a, b settings) []string {
	var keys []string
	for key, differs := range map[string]bool{
		"server": a.Server != b.Server, "insecure": a.Insecure != b.Insecure, "name": a.Name != b.Name, "state_dir": a.StateDir != b.StateDir,
		"runtime_dir": a.RuntimeDir != b.RuntimeDir, "drain": a.Drain != b.Drain, "logs": a.Logs != b.Logs,
		"queries": !reflect.DeepEqual(a.Queries, b.Queries), "tls": a.TLS != b.TLS, "metrics": a.Metrics != b.Metrics, "cgroup": a.Cgroup != b.Cgroup,
	} {
		if differs {
			keys = append(keys, key)
		}
	}
	return keys
}

// mounts are the parts of the admin socket that others bring.
func (d *daemon) mounts() map[string]http.Handler {
	return map[string]http.Handler{spool.AdminPath: spool.AdminHandler(d.agent.Spool())}
}
