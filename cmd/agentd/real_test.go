package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"agentd/agent"
	controlplane "agentd/controlplane-mock"
	"agentd/controlplane-mock/adminclient"
	"agentd/controlplane-mock/store/redka"
)

// host is a place where the real command runs: a config, its directories, and a control plane on loopback.
type host struct {
	admin  *adminclient.Client
	url    string
	config string
	state  string
	run    string
	cut    atomic.Pointer[string] // requests whose path ends so are cut off
}

const adminToken = "adm_real"

func newHost(t *testing.T, more string) *host {
	t.Helper()
	st, err := redka.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cp, err := controlplane.New(controlplane.Config{Store: st, AdminToken: controlplane.SumOf(adminToken), LeaseTTL: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{url: "http://" + l.Addr().String()}
	next := cp.Handler()
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if part := h.cut.Load(); part != nil && strings.HasSuffix(r.URL.Path, *part) {
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	}), ErrorLog: zap.NewStdLog(zap.NewNop())}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = cp.Run(ctx) })
	wg.Go(func() { _ = srv.Serve(l) })
	t.Cleanup(func() {
		stop()
		_ = srv.Close()
		wg.Wait()
		_ = st.Close()
	})
	if h.admin, err = adminclient.New(adminclient.Config{URL: h.url, Token: adminToken}); err != nil {
		t.Fatal(err)
	}
	h.dirs(t, h.url, more)
	return h
}

// dirs makes directories and a config for the server's url.
func (h *host) dirs(t *testing.T, url, more string) {
	t.Helper()
	dir := t.TempDir()
	h.config, h.state, h.run = filepath.Join(dir, "agentd.yaml"), filepath.Join(dir, "state"), filepath.Join(dir, "run")
	h.write(t, "server: "+url+"\nname: real\nstate_dir: "+h.state+"\nruntime_dir: "+h.run+"\ncgroup: off\nlogs: {memory: 4MiB, spool: {max_size: 64MiB}}\n"+more)
}

func (h *host) write(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(h.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (h *host) token(t *testing.T) string {
	t.Helper()
	token, err := h.admin.Token(t.Context(), adminclient.TokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// child is one run of the real command.
type child struct {
	cmd  *osexec.Cmd
	out  bytes.Buffer
	err  safeBuffer
	done chan struct{}
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}
func (s *safeBuffer) String() string { s.mu.Lock(); defer s.mu.Unlock(); return s.b.String() }

func start(t *testing.T, stdin string, args ...string) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: osexec.Command(exe, args...), done: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), asAgentd+"=1")
	c.cmd.Stdin = strings.NewReader(stdin)
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.err
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.done)
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-c.done
		if t.Failed() && !strings.HasPrefix(args[0], "status") {
			t.Logf("agentd %s:\n%s", strings.Join(args, " "), c.err.String())
		}
	})
	return c
}

// code waits for the end and returns the exit code.
func (c *child) code(t *testing.T) int {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(60 * time.Second):
		t.Fatalf("agentd %v does not end:\n%s", c.cmd.Args[1:], c.err.String())
	}
	return c.cmd.ProcessState.ExitCode()
}

// does runs a command that ends by itself and compares its exit code.
func (h *host) does(t *testing.T, want int, stdin string, args ...string) (stdout, stderr string) {
	t.Helper()
	c := start(t, stdin, append(args, "--config", h.config)...)
	if got := c.code(t); got != want {
		t.Errorf("agentd %v: exit code %d, want %d\n%s", args, got, want, c.err.String())
	}
	return c.out.String(), c.err.String()
}

// status asks until done says yes.
func (h *host) status(t *testing.T, done func(agent.Status) bool) agent.Status {
	t.Helper()
	var st agent.Status
	deadline := time.Now().Add(30 * time.Second)
	for time.Now().Before(deadline) {
		c := start(t, "", "status", "--json", "--config", h.config)
		if c.code(t) == 0 {
			if err := json.Unmarshal(c.out.Bytes(), &st); err != nil {
				t.Fatal(err)
			}
			if done(st) {
				return st
			}
		}
		<-time.After(50 * time.Millisecond)
	}
	t.Fatalf("status never got there: %+v", st)
	return st
}

func working(st agent.Status) bool { return st.State == "working" }

func polling(st agent.Status) bool { return st.Polls.Wait > 0 }

func (h *host) job(t *testing.T, id string, done func(adminclient.Job) bool) adminclient.Job {
	t.Helper()
	deadline := time.Now().Add(45 * time.Second)
	for {
		job, err := h.admin.Job(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if done(job) {
			return job
		}
		if time.Now().After(deadline) {
			t.Fatalf("job never got there: %+v", job)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func (h *host) submit(t *testing.T, s adminclient.Submission, script string) string {
	t.Helper()
	s.Type = "shell"
	s.Payload, _ = json.Marshal(map[string]string{"script": script}) //nolint:errchkjson // strings only
	job, _, err := h.admin.Submit(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return job.ID
}

func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// noFlags are the flags of a command that got none.
func noFlags() *pflag.FlagSet {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	addOverrides(flags)
	return flags
}
