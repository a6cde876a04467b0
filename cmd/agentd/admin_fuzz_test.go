package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"agentd/agent"
)

// FuzzAdmin sends whatever parses as a request to the admin socket's handler, as the agent's user and as
// somebody else: nothing breaks it, and who may only look changes nothing.
func FuzzAdmin(f *testing.F) {
	for _, s := range []string{
		"GET /v1/status HTTP/1.1\r\nHost: agentd\r\n\r\n",
		"GET /metrics HTTP/1.1\r\nHost: agentd\r\n\r\n",
		"POST /v1/drain HTTP/1.1\r\nHost: agentd\r\nContent-Length: 11\r\n\r\n{\"on\":true}",
		"POST /v1/drain HTTP/1.1\r\nHost: agentd\r\nContent-Length: 2\r\n\r\n[]",
		"POST /v1/reload HTTP/1.1\r\nHost: agentd\r\nContent-Length: 0\r\n\r\n",
		"HEAD /v1/drain HTTP/1.1\r\nHost: agentd\r\n\r\n",
		"PUT //v1/../v1/reload HTTP/1.0\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	dir := f.TempDir()
	a, err := agent.New(agent.Config{
		Server: "http://127.0.0.1:1", StateDir: filepath.Join(dir, "state"), RuntimeDir: filepath.Join(dir, "run"), Cgroup: "off",
		Logs: agent.Logs{Memory: 4 << 20, MaxLine: 64 << 10, Spool: agent.Spool{MaxSize: 64 << 20}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := a.Close(); err != nil {
			f.Error(err)
		}
	})
	metrics, err := metricsHandler(a)
	if err != nil {
		f.Fatal(err)
	}
	reloads := 0
	adm := &admin{agent: a, reload: func() error { reloads++; return errors.New("nothing to reload") }, log: zap.NewNop()}
	h := adm.handler(metrics)
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, peer := range []*unix.Ucred{nil, {Uid: 4711}, {Uid: uint32(os.Geteuid())}} {
			r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
			if err != nil {
				return
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if peer != nil {
				ctx = context.WithValue(ctx, peerKey{}, peer)
			}
			before := reloads
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r.WithContext(ctx))
			cancel()
			own := peer != nil && peer.Uid != 4711
			if !own && (reloads != before || r.Method != http.MethodGet && w.Code != http.StatusForbidden) {
				t.Fatalf("%s %s as %+v: %d", r.Method, r.URL, peer, w.Code)
			}
			if peer == nil && w.Code != http.StatusForbidden {
				t.Fatalf("%s %s without credentials: %d, want 403", r.Method, r.URL, w.Code)
			}
		}
	})
}

// FuzzAdminSocket writes any bytes to the real socket: the server goes on answering.
func FuzzAdminSocket(f *testing.F) {
	f.Add([]byte("GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n"))
	f.Add([]byte("\x16\x03\x01\x00\x05hello"))
	f.Add([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	path := filepath.Join(f.TempDir(), "s")
	l, err := listen(f.Context(), path)
	if err != nil {
		f.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		f.Fatalf("the socket's mode is %v, %v; want 0660", info.Mode(), err)
	}
	ctx, stop := context.WithCancel(context.Background())
	over := make(chan error, 1)
	seen := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if peer, ok := r.Context().Value(peerKey{}).(*unix.Ucred); !ok || int(peer.Pid) != os.Getpid() {
			f.Errorf("the peer is %+v, want process %d", peer, os.Getpid())
		}
		w.WriteHeader(http.StatusNoContent)
	})
	go func() { over <- serve(ctx, l, seen, zap.NewNop()) }()
	f.Cleanup(func() {
		stop()
		if err := <-over; err != nil {
			f.Error(err)
		}
	})
	d := dialing(path)
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "unix", path)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(100 * time.Millisecond))
		_, _ = c.Write(raw)
		_ = c.Close()
		if err := d.call(t.Context(), http.MethodGet, "/", nil, nil); err != nil {
			t.Fatalf("after %q: %v", raw, err)
		}
	})
}
