package protocol_test

import (
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"agentd/agent/protocol"
)

func discard() *log.Logger { return log.New(io.Discard, "", 0) }

// counted counts the connections that each route came over.
type counted struct {
	mu    sync.Mutex
	conns map[string]map[string]bool // path → remote addresses
}

func (c *counted) note(path, remote string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conns[path] == nil {
		c.conns[path] = map[string]bool{}
	}
	c.conns[path][remote] = true
}

func TestHeartbeatsPollsLogsAndTheRestHaveConnectionsOfTheirOwn(t *testing.T) {
	a, now := newAuthority(t), time.Now()
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		c := counted{conns: map[string]map[string]bool{}}
		h := func(w http.ResponseWriter, r *http.Request) {
			if r.Proto != proto {
				t.Errorf("got %s, want %s", r.Proto, proto)
			}
			c.note(r.URL.Path, r.RemoteAddr)
			if r.URL.Path == "/agent/v1/jobs/next" {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			io.WriteString(w, `{"next":1,"leaseTtlMs":10000,"heartbeatMs":3000,"queries":[]}`)
		}
		cfg := protocol.ClientConfig{TLS: a.trusted()}
		if proto == "HTTP/1.1" {
			server := httptest.NewServer(http.HandlerFunc(h))
			defer server.Close()
			cfg.Server = server.URL
		} else {
			cfg.Server = a.server(t, "127.0.0.1", now.Add(-time.Hour), now.Add(time.Hour), h).URL
		}
		client := newClient(t, cfg)
		ctx := t.Context()
		beat := func() {
			if _, err := client.Heartbeat(ctx, "job_1", 0, protocol.HeartbeatRequest{Attempt: 1, LeaseToken: "lt"}); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			_, poll := client.NextJob(ctx, protocol.PollRequest{PollID: "p", Types: []string{"x"}})
			_, logs := client.LogNext(ctx, ref)
			_, queries := client.Activate(ctx, protocol.Activation{Type: "t", Connectors: []string{"c"}, MaxQueries: 1})
			rest := client.Complete(ctx, "job_1", protocol.Completion{Attempt: 1, LeaseToken: "lt", Outcome: protocol.Succeeded})
			if err := errors.Join(poll, logs, queries, rest); err != nil {
				t.Fatal(err)
			}
			beat()
		}
		all := map[string]bool{}
		for path, conns := range c.conns {
			if len(conns) != 1 {
				t.Errorf("%s: %s came over %d connections, want 1 kept", proto, path, len(conns))
			}
			for remote := range conns {
				all[remote] = true
			}
		}
		if len(all) != 5 {
			t.Errorf("%s: got %d connections for five pools, want 5", proto, len(all))
		}
		client.FreshHeartbeats()
		beat()
		beat()
		if got := len(c.conns["/agent/v1/jobs/job_1/heartbeat"]); got != 2 {
			t.Errorf("%s: heartbeats came over %d connections, want 2: a fresh one", proto, got)
		}
	}
}

// hole forwards to a server until it is told to swallow everything, as a firewall that drops does.
type hole struct {
	net.Listener
	to     string
	silent atomic.Bool
	conns  atomic.Int64
}

func newHole(t *testing.T, to string) *hole {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &hole{Listener: ln, to: to}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			h.conns.Add(1)
			wg.Go(func() { h.forward(conn, &wg) })
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return h
}

func (h *hole) forward(from net.Conn, wg *sync.WaitGroup) {
	defer from.Close()
	deaf := h.silent.Load() // later connections are fine again: the path, not the server, was lost
	to, err := net.Dial("tcp", h.to)
	if err != nil || deaf {
		return
	}
	defer to.Close()
	wg.Go(func() { h.pump(from, to) })
	h.pump(to, from)
}

func (h *hole) pump(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	data := make([]byte, 32<<10)
	for {
		n, err := from.Read(data)
		if err != nil {
			return
		}
		if h.silent.Load() {
			continue
		}
		if _, err := to.Write(data[:n]); err != nil {
			return
		}
	}
}

// TestABlackHoleIsNoticedDuringAHeldPoll is J3 over HTTP/2: the ping goes unanswered, and the
// poll ends within seconds rather than at its deadline. (Over HTTP/1.1 it is TCP's own probes
// that notice; they are checked below, since a proxy on loopback always acknowledges.)
func TestABlackHoleIsNoticedDuringAHeldPoll(t *testing.T) {
	t.Parallel() // it waits 10 s of real time
	a, now := newAuthority(t), time.Now()
	held := make(chan struct{}, 1)
	server := a.server(t, "127.0.0.1", now.Add(-time.Hour), now.Add(time.Hour), func(_ http.ResponseWriter, r *http.Request) {
		held <- struct{}{}
		<-r.Context().Done()
	})
	between := newHole(t, server.Listener.Addr().String())
	client := newClient(t, protocol.ClientConfig{Server: "https://" + between.Addr().String(), TLS: a.trusted()})
	var wg sync.WaitGroup
	wg.Go(func() { <-held; between.silent.Store(true) })
	start := time.Now()
	_, err := client.NextJob(t.Context(), protocol.PollRequest{PollID: "p", Wait: 50 * time.Second, Types: []string{"x"}})
	if took := time.Since(start); protocol.ActionFor(err) != protocol.Retry || took > 25*time.Second {
		t.Errorf("got %v after %v, want a lost connection after about 10 s, long before the deadline of 65 s", err, took)
	}
	wg.Wait()
}

// TestTCPNoticesABlackHole checks what the kernel was told: it is what ends an HTTP/1.1 connection.
func TestTCPNoticesABlackHole(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(next))
	defer server.Close()
	var options map[string]int
	conn := protocol.DialForTest(t, server.Listener.Addr().String())
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		get := func(level, option int) int {
			v, err := syscall.GetsockoptInt(int(fd), level, option)
			if err != nil {
				t.Error(err)
			}
			return v
		}
		const userTimeout = 18 // TCP_USER_TIMEOUT
		options = map[string]int{
			"keepalive": get(syscall.SOL_SOCKET, syscall.SO_KEEPALIVE), "idle": get(syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE),
			"interval": get(syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL), "count": get(syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT),
			"user timeout": get(syscall.IPPROTO_TCP, userTimeout),
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"keepalive": 1, "idle": 5, "interval": 2, "count": 3, "user timeout": 10000} {
		if options[name] != want {
			t.Errorf("%s: got %d, want %d", name, options[name], want)
		}
	}
}

// TestACutPollIsNotRepeatedInSecret: net/http repeats a request by itself when a kept connection
// ends without an answer. The agent has to see the cut, to learn a shorter wait and to come back
// with jitter.
func TestACutPollIsNotRepeatedInSecret(t *testing.T) {
	t.Parallel() // it waits over a second of real time
	var polls atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if polls.Add(1) == 1 {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		<-time.After(1200 * time.Millisecond) // the proxy's patience
		panic(http.ErrAbortHandler)
	}))
	defer server.Close()
	client := newClient(t, protocol.ClientConfig{Server: server.URL})
	poll := func() error {
		_, err := client.NextJob(t.Context(), protocol.PollRequest{PollID: "p", Wait: 30 * time.Second, Types: []string{"x"}})
		return err
	}
	if err := poll(); err != nil {
		t.Fatal(err)
	}
	const want = "protocol: poll: the connection was cut before the answer"
	if err := poll(); errorText(err) != want || protocol.ActionFor(err) != protocol.Retry || polls.Load() != 2 {
		t.Errorf("got %v after %d polls, want %s after 2", err, polls.Load(), want)
	}
}

// TestARefusalBeforeTheBodyWasReadIsSeen: a server or proxy that knows the size refuses at once,
// and closes while we still send. The refusal counts, not the broken connection: a batch that
// is never halved would never pass.
func TestARefusalBeforeTheBodyWasReadIsSeen(t *testing.T) {
	a, now := newAuthority(t), time.Now()
	h := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	}
	plain := httptest.NewServer(http.HandlerFunc(h))
	defer plain.Close()
	for name, url := range map[string]string{
		"HTTP/1.1": plain.URL,
		"HTTP/2":   a.server(t, "127.0.0.1", now.Add(-time.Hour), now.Add(time.Hour), h).URL,
		"abrupt":   "http://" + abrupt(t),
	} {
		client := newClient(t, protocol.ClientConfig{Server: url, TLS: a.trusted()})
		body := protocol.LogBody{Count: 1, Frames: [][]byte{make([]byte, 4<<20)}}
		for range 5 {
			if _, err := client.ShipLog(t.Context(), ref, body); protocol.ActionFor(err) != protocol.Halve {
				t.Errorf("%s: got %v, want too large", name, err)
			}
		}
	}
}

// abrupt serves 413 after the first bytes of a request, and resets the connection.
func abrupt(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			conn.Read(make([]byte, 1024))
			io.WriteString(conn, "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			conn.Close() // with unread data: RST
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return ln.Addr().String()
}
