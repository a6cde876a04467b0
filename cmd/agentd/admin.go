package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"agentd/agent"
)

const (
	socketName = "agentd.sock"
	// socketMode lets the agent's group look; who may change something is decided by who the peer is.
	socketMode    = 0o660
	headerTimeout = 5 * time.Second
	// idleTimeout is well above a scraper's interval, so that it keeps its connection, and not for ever.
	idleTimeout = 2 * time.Minute
	// maxHeader is far above what our own commands and scrapers send; twice as much arrives at most.
	maxHeader = 16 << 10
	// scrapes at once: each takes a look at all attempts.
	scrapes = 4
)

func socketPath(s settings) string { return filepath.Join(s.RuntimeDir, socketName) }

// admin serves the admin socket.
type admin struct {
	agent  *agent.Agent
	reload func() error
	// mounts are further handlers, by path pattern; GET is for the group, the rest for root and the agent's own user.
	mounts map[string]http.Handler
	log    *zap.Logger
}

// drainRequest asks for a drain (POST /v1/drain).
type drainRequest struct {
	On   bool `json:"on"`
	Wait bool `json:"wait"` // answer when nothing runs and everything is delivered
}

func (a *admin) handler(metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, a.agent.Status()) })
	mux.HandleFunc("POST /v1/drain", func(w http.ResponseWriter, r *http.Request) {
		var req drainRequest
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10)).Decode(&req); err != nil {
			refuse(w, http.StatusBadRequest, err)
			return
		}
		a.agent.Drain(req.On)
		if req.On && req.Wait {
			if err := a.agent.WaitDrained(r.Context()); err != nil {
				refuse(w, http.StatusServiceUnavailable, err)
				return
			}
		}
		answer(w, http.StatusOK, a.agent.Status())
	})
	mux.HandleFunc("POST /v1/reload", func(w http.ResponseWriter, _ *http.Request) {
		if err := a.reload(); err != nil {
			refuse(w, http.StatusUnprocessableEntity, err)
			return
		}
		answer(w, http.StatusOK, struct{}{})
	})
	mux.Handle("GET /metrics", metrics)
	for pattern, h := range a.mounts {
		mux.Handle(pattern, h)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, ok := r.Context().Value(peerKey{}).(*unix.Ucred)
		if !ok {
			refuse(w, http.StatusForbidden, errors.New("the peer's credentials could not be read"))
			return
		}
		own := peer.Uid == 0 || int(peer.Uid) == os.Geteuid()
		if !own && r.Method != http.MethodGet {
			refuse(w, http.StatusForbidden, fmt.Errorf("user %d may look, not change: ask as root or as the agent's user", peer.Uid))
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// problem is an error's answer.
type problem struct {
	Error string `json:"error"`
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}

func refuse(w http.ResponseWriter, status int, err error) { answer(w, status, problem{err.Error()}) }

type peerKey struct{}

// withPeer notes who is on the other end: the kernel says so.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return ctx
	}
	var cred *unix.Ucred
	if err := raw.Control(func(fd uintptr) { cred, _ = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || cred == nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, cred)
}

// listen opens the admin socket. A stale one of a process that died is replaced; one that answers is another agent's.
func listen(ctx context.Context, path string) (net.Listener, error) {
	var d net.Dialer
	if c, err := d.DialContext(ctx, "unix", path); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("another agent answers on %s: give this one a runtime_dir of its own", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	if err := os.Chmod(path, socketMode); err != nil {
		return nil, errors.Join(fmt.Errorf("admin socket: %w", err), l.Close())
	}
	return l, nil
}

// serve serves until ctx ends.
func serve(ctx context.Context, l net.Listener, h http.Handler, log *zap.Logger) error {
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, ConnContext: withPeer,
		ErrorLog: zap.NewStdLog(log.WithOptions(zap.IncreaseLevel(zap.WarnLevel))),
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin: %w", err)
	}
	return nil
}

// metricsHandler serves what the agent measures.
func metricsHandler(a *agent.Agent) (http.Handler, error) {
	reg := prometheus.NewRegistry()
	if err := errors.Join(reg.Register(a.Collector()), reg.Register(spoolCollector{a.Spool().Stats}), reg.Register(collectors.NewGoCollector()),
		reg.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: scrapes}), nil
}
