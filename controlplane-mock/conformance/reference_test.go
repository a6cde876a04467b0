package conformance_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"regexp"
	"sync"
	"testing"
	"time"

	controlplane "agentd/controlplane-mock"
	"agentd/controlplane-mock/conformance"
	"agentd/controlplane-mock/faults"
	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/postgres"
	"agentd/controlplane-mock/store/redka"
	"agentd/internal/pgcluster"
)

const adminToken = "the-admin-token-of-this-test"

// server is one instance of the reference on loopback.
type server struct {
	t    testing.TB
	open func(context.Context) (store.Store, error)
	ttl  time.Duration
	wrap func(http.Handler) http.Handler // before the handler; nil: nothing

	agents, admins string // addresses, kept over restarts
	end            func(gracefully bool) error
}

// start serves a store until the test ends, with its admin side on a port of its own.
func start(t testing.TB, s server) *server {
	t.Helper()
	s.t, s.agents, s.admins = t, "127.0.0.1:0", "127.0.0.1:0"
	if err := s.up(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.end(false); err != nil {
			t.Error(err)
		}
	})
	return &s
}

func (s *server) up(ctx context.Context) error {
	st, err := s.open(ctx)
	if err != nil {
		return err
	}
	// Faster than people, slower than a flood: the suite comes from one address with many links.
	srv, err := controlplane.New(controlplane.Config{Store: st, AdminToken: controlplane.SumOf(adminToken), LeaseTTL: s.ttl})
	if err != nil {
		return err
	}
	in := faults.NewInjector(faults.Config{})
	out := faults.NewOutage(faults.OutageConfig{Rest: srv.Rest})
	agents := in.Middleware(srv.AgentHandler())
	admins := http.NewServeMux()
	admins.Handle("/", srv.AdminHandler())
	admins.Handle("/mock/v1/", srv.RequireAdmin(faults.API(in, out)))
	var admin http.Handler = admins
	if s.wrap != nil {
		agents, admin = s.wrap(agents), s.wrap(admin)
	}
	agentLn, err := listen(ctx, &s.agents)
	if err != nil {
		return err
	}
	adminLn, err := listen(ctx, &s.admins)
	if err != nil {
		return err
	}
	agentWeb, adminWeb := controlplane.HTTPServer(agents, nil), controlplane.HTTPServer(admin, nil)
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { _ = agentWeb.Serve(out.Listener(agentLn)) })
	wg.Go(func() { _ = adminWeb.Serve(adminLn) })
	wg.Go(func() {
		if err := srv.Run(run); err != nil {
			s.t.Errorf("Run: %v", err)
		}
	})
	s.end = func(gracefully bool) error {
		out.Close()
		in.Close()
		if gracefully {
			stop()
			if err := errors.Join(agentWeb.Shutdown(ctx), adminWeb.Shutdown(ctx)); err != nil {
				return err
			}
		}
		err := errors.Join(agentWeb.Close(), adminWeb.Close()) // as a crash: nothing is waited for
		stop()
		wg.Wait()
		return errors.Join(err, st.Close())
	}
	return nil
}

// listen takes an address that is the same after a restart.
func listen(ctx context.Context, addr *string) (net.Listener, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", *addr)
	if err == nil {
		*addr = ln.Addr().String()
	}
	return ln, err
}

func (s *server) restart(ctx context.Context) error {
	if err := s.end(false); err != nil {
		return err
	}
	return s.up(ctx)
}

func (s *server) shutdown(ctx context.Context) error {
	if err := s.end(true); err != nil {
		return err
	}
	return s.up(ctx)
}

func (s *server) target() conformance.Target {
	return conformance.Target{URL: "http://" + s.agents, AdminURL: "http://" + s.admins, AdminToken: adminToken, Faults: true, Restart: s.restart, Shutdown: s.shutdown, Quick: testing.Short()}
}

func onRedka(t testing.TB) func(context.Context) (store.Store, error) {
	dir := t.TempDir()
	return func(context.Context) (store.Store, error) { return redka.Open(dir) }
}

// ttl is short, for the suite waits for many leases to run out, and long enough for a busy machine to keep those that it keeps.
const ttl = 4 * time.Second

func TestReferenceOnRedka(t *testing.T) {
	s := start(t, server{open: onRedka(t), ttl: ttl})
	conformance.Run(t, s.target())
}

// TestReferenceOnPostgres has three instances on one database; the first answers for them all.
func TestReferenceOnPostgres(t *testing.T) {
	c := pgcluster.ForTest(t, pgcluster.Config{})
	open := func(ctx context.Context) (store.Store, error) {
		return postgres.Open(ctx, postgres.Config{URL: c.URL() + "&pool_max_conns=20"})
	}
	target := start(t, server{open: open, ttl: ttl}).target()
	for range 2 {
		target.Peers = append(target.Peers, "http://"+start(t, server{open: open, ttl: ttl}).agents)
	}
	// The minutes are redka's to wait for: they test the handlers. A partition is for a server that is alone: the others reap, too.
	target.Quick = true
	target.Only = regexp.MustCompile(`^[^f]|^faults/[^o]`)
	conformance.Run(t, target)
}
