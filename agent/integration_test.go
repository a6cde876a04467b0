package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"agentd/agent/exec"
	"agentd/agent/identity"
	"agentd/agent/protocol"
	controlplane "agentd/controlplane-mock"
	"agentd/controlplane-mock/adminclient"
	"agentd/controlplane-mock/store/redka"
)

// server is a reference control plane on loopback, in this process, with its store on disk.
type server struct {
	admin *adminclient.Client
	url   string
	gate  *gate
	dir   string
	ttl   time.Duration
	shut  func() error
}

// gate stands before the control plane and plays the network: what answer says of a request happens to it.
type gate struct {
	mu   sync.Mutex
	next http.Handler                  // guarded by mu; nil = a proxy whose server is away
	in   sync.WaitGroup                // requests in next
	stop context.CancelFunc            // guarded by mu: cuts them
	ctx  context.Context               // guarded by mu
	away int                           // guarded by mu: requests that found no server
	rule func(r *http.Request) trouble // guarded by mu; nil = none
}

type trouble uint8

const (
	none         trouble = iota
	dropAnswer           // the server does it, and nobody hears of it
	dropRequest          // the connection ends before the server sees it
	neverAnswers         // until the client goes away
)

func (g *gate) set(rule func(r *http.Request) trouble) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rule = rule
}

func (g *gate) serve(h http.Handler) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next = h; h == nil {
		g.stop()
		return
	}
	g.ctx, g.stop = context.WithCancel(context.Background())
}

// drain waits until the last request has left.
func (g *gate) drain() { g.in.Wait() }

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	what, next := none, g.next
	if g.rule != nil {
		what = g.rule(r)
	}
	if next == nil {
		g.away++
	}
	ctx, away := g.ctx, g.away
	if next != nil {
		g.in.Add(1)
		defer g.in.Done()
	}
	g.mu.Unlock()
	if next == nil {
		http.Error(w, "no server", []int{http.StatusBadGateway, http.StatusServiceUnavailable}[away%2])
		return
	}
	cut, stop := context.WithCancel(r.Context())
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	r = r.WithContext(cut)
	switch what {
	case none:
		next.ServeHTTP(w, r)
		if ctx.Err() != nil {
			panic(http.ErrAbortHandler)
		}
	case dropAnswer:
		next.ServeHTTP(&sink{header: http.Header{}}, r)
		panic(http.ErrAbortHandler)
	case dropRequest:
		panic(http.ErrAbortHandler)
	case neverAnswers:
		<-r.Context().Done()
	}
}

type sink struct{ header http.Header }

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(p []byte) (int, error) { return len(p), nil }
func (s *sink) WriteHeader(int)             {}

const adminToken = "adm_integration"

func startServer(t *testing.T, ttl time.Duration) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{url: "http://" + l.Addr().String(), gate: &gate{}, dir: t.TempDir(), ttl: ttl}
	s.open(t)
	srv := &http.Server{Handler: s.gate, ErrorLog: zap.NewStdLog(zap.NewNop())}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(l) })
	t.Cleanup(func() {
		s.close(t)
		_ = srv.Close()
		wg.Wait()
	})
	if s.admin, err = adminclient.New(adminclient.Config{URL: s.url, Token: adminToken}); err != nil {
		t.Fatal(err)
	}
	return s
}

// open starts the control plane on its directory.
func (s *server) open(t *testing.T) {
	t.Helper()
	st, err := redka.Open(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	cp, err := controlplane.New(controlplane.Config{Store: st, AdminToken: controlplane.SumOf(adminToken), LeaseTTL: s.ttl})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cp.Run(ctx)
	}()
	s.gate.serve(cp.Handler())
	s.shut = func() error {
		s.gate.serve(nil)
		stop()
		<-ended
		s.gate.drain()
		return st.Close()
	}
}

// close ends it as a restart does: what is held is cut.
func (s *server) close(t *testing.T) {
	t.Helper()
	if err := s.shut(); err != nil {
		t.Error(err)
	}
}

// running is an agent with all its real parts.
type running struct {
	*Agent
	stop  context.CancelFunc
	ended chan struct{}
	err   error
}

func (s *server) config(t *testing.T, maxJobs int) Config {
	t.Helper()
	token, err := s.admin.Token(t.Context(), adminclient.TokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	return Config{
		Server: s.url, Name: "it", StateDir: filepath.Join(dir, "state"), RuntimeDir: filepath.Join(dir, "run"), MaxJobs: maxJobs,
		Token: identity.TokenReader(strings.NewReader(token)), Environ: os.Environ(), Logger: testLogger(t), Cgroup: exec.CgroupOff,
		Logs:  Logs{Memory: 8 << 20, Spool: Spool{MaxSize: 64 << 20}},
		Drain: Drain{Timeout: 5 * time.Second, Flush: 5 * time.Second, Grace: time.Second},
	}
}

func startAgent(t *testing.T, cfg Config, prepare ...func(*Agent)) *running {
	t.Helper()
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	a.Handle("shell", Shell{})
	for _, f := range prepare {
		f(a)
	}
	r := &running{Agent: a, ended: make(chan struct{})}
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	go func() {
		defer close(r.ended)
		r.err = a.Run(ctx)
	}()
	t.Cleanup(func() { r.end(t) })
	return r
}

func (r *running) end(t *testing.T) {
	t.Helper()
	r.stop()
	<-r.ended
	if r.err != nil {
		t.Errorf("Run: %v", r.err)
	}
	if err := r.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if n, m := r.active(), r.unsettled(); n != 0 || m != 0 {
		t.Errorf("after the end %d slots are taken and %d attempts unsettled, want none", n, m)
	}
}

// testLogger shows what the agent logged, if the test fails.
func testLogger(t *testing.T) *zap.Logger {
	t.Helper()
	var mu sync.Mutex
	var out bytes.Buffer
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		if t.Failed() {
			t.Log("agent's log:\n" + out.String())
		}
	})
	w := zapcore.AddSync(writer(func(p []byte) (int, error) { mu.Lock(); defer mu.Unlock(); return out.Write(p) }))
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), w, zap.DebugLevel))
}

type writer func([]byte) (int, error)

func (f writer) Write(p []byte) (int, error) { return f(p) }

func script(text string) json.RawMessage {
	b, _ := json.Marshal(map[string]string{"script": text}) //nolint:errchkjson // strings only
	return b
}

func (s *server) submit(t *testing.T, sub adminclient.Submission) string {
	t.Helper()
	if sub.Type == "" {
		sub.Type = "shell"
	}
	job, _, err := s.admin.Submit(t.Context(), sub)
	if err != nil {
		t.Fatal(err)
	}
	return job.ID
}

// settled waits until the job has ended and its last attempt's log is complete.
func (s *server) settled(t *testing.T, id string) adminclient.Job {
	t.Helper()
	return s.await(t, id, func(j adminclient.Job) bool {
		return j.Settled() && (j.Last() == nil || j.Last().LogEnded())
	})
}

func (s *server) await(t *testing.T, id string, done func(adminclient.Job) bool) adminclient.Job {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for {
		job, err := s.admin.Job(ctx, id)
		if err != nil {
			t.Fatalf("%s: %v; last seen %+v", id, err, job)
		}
		if done(job) {
			return job
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s did not get there in time: %+v", id, job)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// oracle compares what the control plane holds of an attempt's stream with lines n=1..N: dense, in order, none missing, none twice.
func (s *server) oracle(t *testing.T, id string, attempt int64, want int) {
	t.Helper()
	next, line := int64(0), 0
	for rec, err := range s.admin.Logs(t.Context(), id, adminclient.LogOptions{Attempt: attempt}) {
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		if rec.N != next {
			t.Fatalf("%s: record %d where %d is due", id, rec.N, next)
		}
		next = rec.Next()
		if rec.Stream != protocol.Stdout {
			continue
		}
		line++
		if wantText := fmt.Sprintf("n=%d", line); rec.Text != wantText {
			t.Fatalf("%s: record %d is %q (gap %d), want %q", id, rec.N, rec.Text, rec.Gap, wantText)
		}
	}
	if line != want {
		t.Errorf("%s: %d lines, want %d", id, line, want)
	}
}

func (s *server) text(t *testing.T, id string) string {
	t.Helper()
	var b strings.Builder
	for rec, err := range s.admin.Logs(t.Context(), id, adminclient.LogOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s:%s\n", rec.Stream, rec.Text)
	}
	return b.String()
}
