package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentd/internal/testmain"
)

// reexec makes the test binary be the command itself.
const reexec = "CONTROLPLANE_MOCK_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(reexec) != "" {
		main()
		return
	}
	testmain.Run(m)
}

// patience bounds what should happen at once, on a machine that has much else to do as well.
const patience = time.Minute

// command is one invocation of the real command, as a process of its own.
func command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, os.Args[0], args...)
	c.Env = append(os.Environ(), reexec+"=1", "CONTROLPLANE_URL=", "CONTROLPLANE_ADMIN_TOKEN_FILE=", "CONTROLPLANE_CA_FILE=", "CONTROLPLANE_STORE=")
	return c
}

type result struct {
	code   int
	stdout string
	stderr string
}

// invoke is the command in this process: the same code but for main's three lines.
func invoke(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	return invokeWith(t, stdin, nil, args...)
}

func invokeWith(t *testing.T, stdin string, env map[string]string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out, errs bytes.Buffer
	a := &app{stdin: strings.NewReader(stdin), stdout: &out, stderr: &errs, getenv: func(k string) string { return env[k] }}
	code := a.run(ctx, args)
	if ctx.Err() != nil {
		t.Fatalf("%v: not done within %v\n%s", args, patience, errs.String())
	}
	return result{code, out.String(), errs.String()}
}

// want fails unless the exit code is code and both outputs contain what they should.
func (r result) want(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	if r.code != code || !strings.Contains(r.stdout, stdout) || !strings.Contains(r.stderr, stderr) {
		t.Fatalf("got exit code %d\nstdout: %s\nstderr: %s\nwant exit code %d, stdout with %q, stderr with %q", r.code, r.stdout, r.stderr, code, stdout, stderr)
	}
}

// watched is output that a test can wait for while the process goes on.
type watched struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{}
}

func newWatched() *watched { return &watched{changed: make(chan struct{})} }

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(p)
	close(w.changed)
	w.changed = make(chan struct{})
	return len(p), nil
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

func (w *watched) waitFor(t *testing.T, text string) {
	t.Helper()
	w.waitForTimes(t, text, 1)
}

func (w *watched) waitForTimes(t *testing.T, text string, n int) {
	t.Helper()
	late := time.After(patience)
	for {
		w.mu.Lock()
		got, changed := w.text.String(), w.changed
		w.mu.Unlock()
		if strings.Count(got, text) >= n {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("waited %v for %d times %q, got:\n%s", patience, n, text, got)
		}
	}
}

// process is a command that goes on while the test does.
type process struct {
	cmd    *exec.Cmd
	stdout *watched
	stderr *watched
	done   chan struct{}
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{cmd: command(context.Background(), args...), stdout: newWatched(), stderr: newWatched(), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	p.launch(t)
	return p
}

func (p *process) launch(t *testing.T) {
	t.Helper()
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.done
	})
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// wait returns the exit code.
func (p *process) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		t.Fatalf("still going after %v\nstdout: %s\nstderr: %s", patience, p.stdout, p.stderr)
		return -1
	}
}

// server is `serve` as a process, with a store that survives restarts.
type server struct {
	t      *testing.T
	dir    string
	listen string
	flags  []string
	url    string
	token  string // file
	p      *process
}

func serving(t *testing.T, flags ...string) *server {
	t.Helper()
	s := &server{t: t, dir: filepath.Join(t.TempDir(), "store"), listen: freeAddr(t), flags: flags}
	s.url, s.token = "http://"+s.listen, filepath.Join(s.dir, "admin-token")
	s.start()
	return s
}

// start begins serving, again after stop or kill.
func (s *server) start() {
	s.t.Helper()
	args := []string{"serve", "--listen", s.listen, "--store", "redka:" + s.dir, "--lease-ttl", "1m"}
	s.p = start(s.t, append(args, s.flags...)...)
	s.p.stderr.waitFor(s.t, "control plane started")
}

func (s *server) stop() {
	s.t.Helper()
	s.p.signal(s.t, syscall.SIGTERM)
	if code := s.p.wait(s.t); code != 0 {
		s.t.Fatalf("serve ended with %d:\n%s", code, s.p.stderr)
	}
}

func (s *server) kill() {
	s.t.Helper()
	s.p.signal(s.t, syscall.SIGKILL)
	<-s.p.done
}

// args puts the flags that reach the server behind a command.
func (s *server) args(name string, args ...string) []string {
	return append([]string{name, "--url", s.url, "--admin-token-file", s.token}, args...)
}

func (s *server) cli(name string, args ...string) result {
	s.t.Helper()
	return invoke(s.t, "", s.args(name, args...)...)
}

// must returns a successful command's output without its newline.
func (s *server) must(name string, args ...string) string {
	s.t.Helper()
	r := s.cli(name, args...)
	r.want(s.t, 0, "", "")
	return strings.TrimSuffix(r.stdout, "\n")
}

// freeAddr is a loopback address that nobody listens on. In the test's own network namespace nobody else takes it.
func freeAddr(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

func writeFile(t *testing.T, name, content string, mode os.FileMode) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	return file
}
