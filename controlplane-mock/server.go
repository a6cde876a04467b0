package controlplane

import (
	"context"
	"crypto/sha256"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"agentd/controlplane-mock/store"
)

// Server serves the protocol over a store. Make one with New, serve its handlers, and keep Run going meanwhile.
type Server struct {
	cfg   Config
	store store.Store
	log   *zap.Logger

	agent, admin http.Handler

	ttl, beat atomic.Int64 // nanoseconds; SetPace changes them while agents are linked

	stopOnce sync.Once
	stopping chan struct{} // closed when Run ends: every hold ends with its empty answer
}

// SumOf is what the server and the store keep of a credential.
func SumOf(credential string) store.Sum { return sha256.Sum256([]byte(credential)) }

// New checks the configuration and wires a server. It starts nothing.
func New(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, store: cfg.Store, log: cfg.Logger, stopping: make(chan struct{})}
	s.SetPace(cfg.LeaseTTL, cfg.Heartbeat)
	s.agent = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { notFound("no such route").write(w) })
	s.admin = s.agent
	return s, nil
}

// AgentHandler serves /agent/v1 and the health routes.
func (s *Server) AgentHandler() http.Handler { return s.agent }

// AdminHandler serves /api/v1, the health routes and /metrics.
func (s *Server) AdminHandler() http.Handler { return s.admin }

// Handler serves both sides on one port.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/agent/") {
			s.agent.ServeHTTP(w, r)
			return
		}
		s.admin.ServeHTTP(w, r)
	})
}

// RequireAdmin lets only requests with the admin token through to h; others get their 401.
func (s *Server) RequireAdmin(h http.Handler) http.Handler { return h }

// SetPace changes the lease TTL and the heartbeat that agents are told, as a busy server may. Both must be positive, beat ≤ ttl/2.
func (s *Server) SetPace(ttl, beat time.Duration) {
	s.ttl.Store(int64(ttl))
	s.beat.Store(int64(beat))
}

func (s *Server) leaseTTL() time.Duration { return time.Duration(s.ttl.Load()) }

// Rest makes the reaper spare all leases for d from now and for one TTL after, as if the server had been stopped for d.
func (s *Server) Rest(d time.Duration) { s.store.Rest(d + s.leaseTTL()) }

// Run keeps the server alive until ctx ends: it watches the store for the holds, and reaps leases that ran out.
// When it returns, all holds have been told to end: polls with 204. Call it once.
func (s *Server) Run(ctx context.Context) error {
	defer s.stopOnce.Do(func() { close(s.stopping) })
	<-ctx.Done()
	return nil
}

// HTTPServer wraps h with the limits that only the connection can hold: slow and large headers, idle connections.
// Bodies have limits of their own (Limits.BodyTime), since a poll or an upload may well take longer than any fixed timeout.
func HTTPServer(h http.Handler, log *zap.Logger) *http.Server {
	s := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second, // a header is one packet; ten seconds survive three lost ones
		IdleTimeout:       2 * time.Minute,  // above the agent's pause between calls, so that connections are used again
		MaxHeaderBytes:    32 << 10,         // a bearer, some ids, and what proxies add
	}
	if log != nil {
		s.ErrorLog = zap.NewStdLog(log)
	}
	return s
}
