package stack

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentd/agent"
	"agentd/controlplane-mock/adminclient"
)

// startWithin bounds how long a server may take to answer, or an agent to come online. Both do within a second
// on an idle machine; the rest is for busy ones.
const startWithin = 30 * time.Second

// Config says what to run.
type Config struct {
	Bin        string   // folder with agentd and controlplane-mock
	Dir        string   // scratch directory: everything is kept there
	ServerArgs []string // further flags of `controlplane-mock serve`
	Store      string   // default: redka in Dir
	Config     string   // further YAML of the agent's config: handlers, max_jobs …
	AgentEnv   []string
	NoAgent    bool        // the control plane alone; Join brings the agent
	Host       string      // address that the control plane listens on; default 127.0.0.1
	AgentVia   []string    // put before the agent's own command line: nsenter and its like
	TLS        *tls.Config // how to trust a control plane that serves TLS; nil = ServerArgs don't ask for it
}

// Stack is a control plane and an agent.
type Stack struct {
	Bin        string // folder with the two commands
	Admin      *adminclient.Client
	URL        string
	Server     *Process
	Agent      *Process
	AgentID    string
	ConfigFile string
	StateDir   string
	RuntimeDir string
	TokenFile  string // the admin's
	cfg        Config
	listen     string
}

// Start starts both and returns when the agent is online. On an error nothing is left running.
func Start(ctx context.Context, cfg Config) (_ *Stack, err error) {
	s := &Stack{
		cfg:        cfg,
		Bin:        cfg.Bin,
		ConfigFile: filepath.Join(cfg.Dir, "agentd.yaml"),
		StateDir:   filepath.Join(cfg.Dir, "state"),
		RuntimeDir: runtimeDir(cfg.Dir),
		TokenFile:  filepath.Join(cfg.Dir, "admin-token"),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if s.listen, err = FreePort(cmp.Or(cfg.Host, "127.0.0.1")); err != nil {
		return nil, err
	}
	s.URL = "http://" + s.listen
	if cfg.TLS != nil {
		s.URL = "https://" + s.listen
	}
	if err := s.StartServer(ctx); err != nil {
		return nil, err
	}
	if cfg.NoAgent {
		return s, nil
	}
	if err := s.Join(ctx, s.URL); err != nil {
		return nil, err
	}
	return s, nil
}

// Join configures, links and starts the agent; url is where it finds the control plane, or what stands before it.
func (s *Stack) Join(ctx context.Context, url string) error {
	config := fmt.Sprintf("server: %s\nname: stack\nstate_dir: %s\nruntime_dir: %s\n%s", url, s.StateDir, s.RuntimeDir, s.cfg.Config)
	if err := os.WriteFile(s.ConfigFile, []byte(config), 0o600); err != nil {
		return err
	}
	if err := s.link(ctx); err != nil {
		return err
	}
	return s.StartAgent(ctx)
}

// StartServer starts the control plane, again after a Kill too, and waits until it is ready.
func (s *Stack) StartServer(ctx context.Context) (err error) {
	store := s.cfg.Store
	if store == "" {
		store = "redka:" + filepath.Join(s.cfg.Dir, "store")
	}
	argv := append([]string{filepath.Join(s.cfg.Bin, "controlplane-mock"), "serve", "--listen", s.listen,
		"--store", store, "--admin-token-file", s.TokenFile}, s.cfg.ServerArgs...)
	if s.Server, err = StartProcess("the control plane", filepath.Join(s.cfg.Dir, "controlplane.log"), nil, argv...); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	err = poll(ctx, func() error {
		token, err := os.ReadFile(s.TokenFile)
		if err != nil {
			return err
		}
		if s.Admin == nil { // a restarted server has the same address and token, and others may be using the client
			if s.Admin, err = adminclient.New(adminclient.Config{URL: s.URL, Token: strings.TrimSpace(string(token)), HTTP: s.client()}); err != nil {
				return err
			}
		}
		return s.Admin.Ready(ctx)
	})
	if err != nil {
		return fmt.Errorf("the control plane did not get ready: %w\n%s", err, s.Server.Tail())
	}
	return nil
}

// client is the admin client's, nil for its own.
func (s *Stack) client() *http.Client {
	if s.cfg.TLS == nil {
		return nil
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: s.cfg.TLS, DisableKeepAlives: true}}
}

// link gives the agent its identity.
func (s *Stack) link(ctx context.Context) error {
	token, err := s.Admin.Token(ctx, adminclient.TokenRequest{})
	if err != nil {
		return err
	}
	argv := append(slices.Clone(s.cfg.AgentVia), filepath.Join(s.cfg.Bin, "agentd"), "link", "--config", s.ConfigFile, "--token-file", "-")
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(token)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	id, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("agentd link: %w\n%s", err, stderr.String())
	}
	s.AgentID = strings.TrimSpace(string(id))
	return nil
}

// StartAgent starts the agent, again after a Kill too, and waits until it says that it is healthy.
func (s *Stack) StartAgent(ctx context.Context) (err error) {
	if err := s.LaunchAgent(); err != nil {
		return err
	}
	agentd := filepath.Join(s.cfg.Bin, "agentd")
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	err = poll(ctx, func() error {
		out, err := exec.CommandContext(ctx, agentd, "status", "--check", "--config", s.ConfigFile).CombinedOutput()
		if err != nil {
			return fmt.Errorf("agentd status: %w: %s", err, bytes.TrimSpace(out))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("the agent did not come online: %w\n%s", err, s.Agent.Tail())
	}
	return nil
}

// LaunchAgent starts the agent and waits for nothing.
func (s *Stack) LaunchAgent() (err error) {
	argv := append(slices.Clone(s.cfg.AgentVia), filepath.Join(s.cfg.Bin, "agentd"), "run", "--config", s.ConfigFile)
	s.Agent, err = StartProcess("the agent", filepath.Join(s.cfg.Dir, "agentd.log"), s.cfg.AgentEnv, argv...)
	return err
}

// Status is what `agentd status --json` says, decoded.
func (s *Stack) Status(ctx context.Context) (st agent.Status, err error) {
	out, err := exec.CommandContext(ctx, filepath.Join(s.cfg.Bin, "agentd"), "status", "--json", "--config", s.ConfigFile).Output()
	if err != nil {
		return st, fmt.Errorf("agentd status: %w", err)
	}
	err = json.Unmarshal(out, &st)
	return st, err
}

// Stop ends the agent, then the control plane.
func (s *Stack) Stop() error {
	const patience = 60 * time.Second // more than the agent's default drain and flush together
	var errs []error
	for _, p := range []**Process{&s.Agent, &s.Server} {
		if *p != nil {
			errs = append(errs, (*p).Stop(patience))
			*p = nil
		}
	}
	if !strings.HasPrefix(s.RuntimeDir, s.cfg.Dir) {
		errs = append(errs, os.RemoveAll(s.RuntimeDir))
	}
	return errors.Join(errs...)
}

// poll calls f until it answers nil or ctx ends; then f's last error says why.
func poll(ctx context.Context, f func() error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// FreePort is an address on host that nothing listens on.
func FreePort(host string) (string, error) {
	ln, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}

// runtimeDir is a folder on tmpfs, as the packages have it: on a disk, the kernel would write the queue file back now and then.
func runtimeDir(dir string) string {
	const shm = "/dev/shm"
	var fs unix.Statfs_t
	if unix.Statfs(shm, &fs) != nil || fs.Type != unix.TMPFS_MAGIC || int64(fs.Bavail)*fs.Bsize < 256<<20 {
		return filepath.Join(dir, "run")
	}
	return filepath.Join(shm, "agentd-stack"+strings.ReplaceAll(dir, "/", "-"))
}
