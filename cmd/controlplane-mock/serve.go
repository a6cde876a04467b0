package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	controlplane "agentd/controlplane-mock"
	"agentd/controlplane-mock/faults"
)

// shutdownTime bounds how long requests may take to end once the holds have been told to: an
// upload over a slow link, not a poll. Below the 10 s after which container runtimes kill.
const shutdownTime = 8 * time.Second

// serveOptions is what serve's flags say.
type serveOptions struct {
	listen, adminListen string
	store               string
	tokenFile           string
	leaseTTL            time.Duration
	keyTTL              time.Duration
	keepLogs            days
	faults              bool
	tls                 tlsOptions
	logLevel, logFormat string
}

func (a *app) serveCmd() *cobra.Command {
	var o serveOptions
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the control plane",
		Long: `Run the control plane. Writes the admin token's file (0600) when it doesn't exist, and prints how to
go on. SIGTERM ends it gracefully, a second one at once.`,
		Example: `  controlplane-mock serve --store redka:/var/lib/controlplane
  controlplane-mock serve --store redka:/tmp/cp --listen 127.0.0.1:7070 --admin-listen 127.0.0.1:7071 --faults`,
		Args: cobra.NoArgs,
	}
	f := c.Flags()
	f.StringVar(&o.listen, "listen", "127.0.0.1:7070", "address for agents, and for the admin side unless --admin-listen is given")
	f.StringVar(&o.adminListen, "admin-listen", "", "address of its own for the admin side")
	f.StringVar(&o.store, "store", "", "redka:DIR, or postgres://… (env CONTROLPLANE_STORE, where it isn't seen in the process list)")
	f.StringVar(&o.tokenFile, "admin-token-file", "", "file with the admin token, written if it doesn't exist (default: DIR/admin-token of redka:DIR)")
	f.DurationVar(&o.leaseTTL, "lease-ttl", 10*time.Second, "how long a lease lives without a heartbeat")
	f.DurationVar(&o.keyTTL, "key-ttl", 24*time.Hour, "an API key's life; agents renew theirs by themselves")
	f.Var(&o.keepLogs, "keep-logs", "drop logs older than that, as 30d; PostgreSQL stores only (default: keep all)")
	f.BoolVar(&o.faults, "faults", false, "allow fault injection (/mock/v1) to whoever holds the admin token")
	o.tls.flags(f)
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "auto", "console, json, or auto: console on a terminal")
	c.RunE = func(c *cobra.Command, _ []string) error {
		log, err := newLogger(a.stderr, o.logLevel, o.logFormat)
		if err != nil {
			return err
		}
		return a.serve(c.Context(), o, log)
	}
	return c
}

func (a *app) serve(ctx context.Context, o serveOptions, log *zap.Logger) (err error) {
	limitMemory(log, a.getenv)
	if o.store == "" {
		o.store = a.getenv("CONTROLPLANE_STORE")
	}
	tlsCfg, caFile, err := o.tls.load(o.listen, o.adminListen)
	if err != nil {
		return err
	}
	st, err := openStore(ctx, &o, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	token, written, err := adminToken(o.tokenFile)
	if err != nil {
		return err
	}
	srv, err := controlplane.New(controlplane.Config{ //nolint:contextcheck // requests bring their own
		Store: st, AdminToken: controlplane.SumOf(token), LeaseTTL: o.leaseTTL, KeyTTL: o.keyTTL, Logger: log,
	})
	if err != nil {
		return &exitError{exitConfig, err}
	}
	s := newService(srv, o, log)
	if err := s.bind(ctx, o, tlsCfg); err != nil {
		return err
	}
	if written {
		log.Info("admin token written", zap.String("file", o.tokenFile))
	}
	a.greet(greeting{urls: s.urls(tlsCfg != nil), tokenFile: o.tokenFile, caFile: caFile, clientCA: o.tls.clientCA != "", faults: o.faults})
	if a.getenv("GOGC") != "" {
		return s.run(ctx)
	}
	tuned, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { tuneCollector(tuned) })
	defer wg.Wait()
	defer stop()
	return s.run(ctx)
}

// service is the server with its ports.
type service struct {
	srv    *controlplane.Server
	log    *zap.Logger
	faults *faults.Injector // nil without --faults
	outage *faults.Outage   // likewise
	ports  []servedPort
}

type servedPort struct {
	ln   net.Listener
	http *http.Server
	addr string
}

func newService(srv *controlplane.Server, o serveOptions, log *zap.Logger) *service {
	s := &service{srv: srv, log: log}
	if o.faults {
		s.faults = faults.NewInjector(faults.Config{Logger: log})
		s.outage = faults.NewOutage(faults.OutageConfig{Rest: srv.Rest, Logger: log})
	}
	return s
}

// agents and admin are the two sides' handlers, with the faults in front of the first.
func (s *service) agents() http.Handler {
	if s.faults == nil {
		return s.srv.AgentHandler()
	}
	return s.faults.Middleware(s.srv.AgentHandler())
}

func (s *service) admin() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", s.srv.AdminHandler())
	if s.faults != nil {
		mux.Handle("/mock/v1/", s.srv.RequireAdmin(faults.API(s.faults, s.outage)))
	}
	return mux
}

// both serves one port; there an outage can only be one of requests.
func (s *service) both() http.Handler {
	agents, admin := s.agents(), s.admin()
	if s.outage != nil {
		agents = s.outage.Handler(agents, nil)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isAgentSide(r.URL.Path) {
			agents.ServeHTTP(w, r)
			return
		}
		admin.ServeHTTP(w, r)
	})
}

// run serves until ctx ends or a signal comes: readiness off and the holds ended first, then what is under way.
func (s *service) run(ctx context.Context) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var wg sync.WaitGroup
	errs := make(chan error, len(s.ports)+1)
	for _, p := range s.ports {
		wg.Go(func() {
			err := p.http.Serve(p.ln)
			if !errors.Is(err, http.ErrServerClosed) {
				fail(err)
				errs <- err
			}
		})
	}
	wg.Go(func() {
		if err := s.srv.Run(ctx); err != nil {
			fail(err)
			errs <- err
		}
	})
	s.log.Info("control plane started", zap.Int("pid", os.Getpid()))
	<-ctx.Done()
	stop() // the next signal kills, as it does to any process
	s.log.Info("control plane stopping")
	if s.faults != nil {
		s.outage.Close()
		s.faults.Close()
	}
	s.shutDown() //nolint:contextcheck // ctx has ended: that is why
	wg.Wait()
	s.log.Info("control plane stopped")
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}

func (s *service) shutDown() {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTime)
	defer cancel()
	var wg sync.WaitGroup
	for _, p := range s.ports {
		wg.Go(func() {
			if err := p.http.Shutdown(ctx); err != nil {
				s.log.Warn("requests cut at shutdown", zap.String("addr", p.addr), zap.Duration("after", shutdownTime))
				p.http.Close() //nolint:errcheck // nothing more can be done for them
			}
		})
	}
	wg.Wait()
}

// bind takes the ports.
func (s *service) bind(ctx context.Context, o serveOptions, t *serverTLS) error {
	sides := []struct {
		flag, addr string
		handler    http.Handler
		agents     bool
	}{{"--listen", o.listen, s.both(), false}}
	if o.adminListen != "" {
		sides[0].handler, sides[0].agents = s.agents(), true
		sides = append(sides, sides[0])
		sides[1].flag, sides[1].addr, sides[1].handler, sides[1].agents = "--admin-listen", o.adminListen, s.admin(), false
	}
	for _, side := range sides {
		var lc net.ListenConfig
		ln, err := lc.Listen(ctx, "tcp", side.addr)
		if err != nil {
			for _, p := range s.ports {
				p.ln.Close()
			}
			return bindError(side.flag, side.addr, err)
		}
		addr := ln.Addr().String()
		if side.agents && s.outage != nil {
			ln = s.outage.Listener(ln)
		}
		hs := controlplane.HTTPServer(side.handler, s.log)
		if t != nil {
			ln = t.listener(ln, hs)
		}
		s.ports = append(s.ports, servedPort{ln, hs, addr})
	}
	return nil
}

func bindError(flag, addr string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		_, port, _ := net.SplitHostPort(addr) // it was good enough to listen on
		return fmt.Errorf("%s %s: the port is in use (by whom: ss -ltnp 'sport = :%s'); stop that process or choose another address with %s", flag, addr, port, flag)
	case errors.Is(err, syscall.EACCES):
		return &exitError{exitNotPermitted, fmt.Errorf("%s %s: not permitted; ports below 1024 need CAP_NET_BIND_SERVICE, choose a higher one with %s", flag, addr, flag)}
	}
	return &exitError{exitConfig, fmt.Errorf("%s %s: %w; want HOST:PORT of this machine", flag, addr, err)}
}
