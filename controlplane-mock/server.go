package controlplane

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"agentd/controlplane-mock/query"
	"agentd/controlplane-mock/store"
)

// Server serves the protocol over a store. Make one with New, serve its handlers, and keep Run going meanwhile.
type Server struct {
	cfg   Config
	store store.Store
	log   *zap.Logger

	agent, admin http.Handler
	metrics      *metrics
	storeHealth  storeHealth

	hub    *hub
	topics topics
	resync chan struct{} // holds one: subscribers of topics are to look again
	holds  holds
	bodies memory
	codecs *codecs
	fleet  fleet

	queries *query.Broker

	links, failures *limiter[netip.Prefix]
	perCredential   *limiter[store.Sum]

	secretMu sync.Mutex
	secret   *secrets // guarded by secretMu; nil until the store could be asked

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
	r := cfg.Rates
	s := &Server{
		cfg: cfg, store: cfg.Store, log: cfg.Logger,
		hub: newHub(cfg.Store), resync: make(chan struct{}, 1), stopping: make(chan struct{}),
		holds:         holds{max: cfg.Limits.Holds, perAgent: cfg.Limits.AgentHolds},
		bodies:        memory{max: cfg.Limits.LogMemory},
		codecs:        newCodecs(),
		fleet:         fleet{store: cfg.Store},
		links:         newLimiter[netip.Prefix](r.Link, r.LinkBurst, r.Entries),
		failures:      newLimiter[netip.Prefix](r.Failure, r.FailureBurst, r.Entries),
		perCredential: newLimiter[store.Sum](r.Credential, r.CredentialBurst, r.Entries),
	}
	s.SetPace(cfg.LeaseTTL, cfg.Heartbeat)
	var err error
	if s.queries, err = query.New(cfg.Queries); err != nil {
		return nil, fmt.Errorf("controlplane: %w", err)
	}
	if s.metrics, err = newMetrics(cfg.Registry, s); err != nil {
		return nil, fmt.Errorf("controlplane: metrics: %w", err)
	}
	s.agent = s.handler(s.agentRoutes(), s.healthRoutes())
	s.admin = s.handler(s.adminRoutes(), s.healthRoutes())
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

// SetPace changes the lease TTL and the heartbeat that agents are told, as a busy server may. Both must be positive, beat ≤ ttl/2.
func (s *Server) SetPace(ttl, beat time.Duration) {
	s.ttl.Store(int64(ttl))
	s.beat.Store(int64(beat))
}

// secrets are what the store knows and no restart changes.
type secrets struct {
	serverID   string
	leaseToken func(job string, attempt int64) string
}

// secrets asks the store once. New can't: it has no context, and must not need a store that answers.
func (s *Server) secrets(ctx context.Context) (*secrets, error) {
	s.secretMu.Lock()
	defer s.secretMu.Unlock()
	if s.secret != nil {
		return s.secret, nil
	}
	id, err := s.store.ServerID(ctx)
	if err != nil {
		return nil, err
	}
	key, err := s.store.Secret(ctx, "lease-token")
	if err != nil {
		return nil, err
	}
	s.secret = &secrets{serverID: id, leaseToken: leaseTokenFunc(key)}
	return s.secret, nil
}

func (s *Server) heartbeatPace() time.Duration { return time.Duration(s.beat.Load()) }

func (s *Server) leaseTTL() time.Duration { return time.Duration(s.ttl.Load()) }

// Rest makes the reaper spare all leases for d from now and for one TTL after, as if the server had been stopped for d.
func (s *Server) Rest(d time.Duration) { s.store.Rest(d + s.leaseTTL()) }

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
