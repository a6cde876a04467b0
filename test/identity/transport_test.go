package identity

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentd/agent"
	"agentd/controlplane-mock/adminclient"
	"agentd/test/stack"
)

const handlers = "cgroup: off\nhandlers: [{type: shell}]\n"

// plane starts a control plane without an agent. trust is for its admin side, nil where that speaks no TLS.
func plane(t *testing.T, trust *tls.Config, args ...string) *world {
	t.Helper()
	s, err := stack.Start(t.Context(), stack.Config{
		Bin: binaries.Dir(t), Dir: t.TempDir(), NoAgent: true, TLS: trust, ServerArgs: args, Config: handlers,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return &world{Stack: s, t: t}
}

// link runs `agentd link` on a host of its own with a good token; config is its YAML without directories.
func (w *world) link(env []string, config string, args ...string) (code int, said string, dir string) {
	w.t.Helper()
	dir = w.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "agentd.yaml"), fmt.Appendf(nil, "%sstate_dir: %[2]s/state\nruntime_dir: %[2]s/run\n", config, dir), 0o600); err != nil {
		w.t.Fatal(err)
	}
	code, said = w.linkAgain(dir, env, args...)
	return code, said, dir
}

// linkAgain runs it on the host in dir.
func (w *world) linkAgain(dir string, env []string, args ...string) (code int, said string) {
	w.t.Helper()
	token, err := w.Admin.Token(w.t.Context(), adminclient.TokenRequest{})
	if err != nil {
		w.t.Fatal(err)
	}
	argv := append([]string{filepath.Join(w.Bin, "agentd"), "link", "--config", filepath.Join(dir, "agentd.yaml"), "--token-file", "-"}, args...)
	return runWith(w.t, token, env, argv...)
}

func runWith(t *testing.T, stdin string, env []string, argv ...string) (code int, said string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), string(out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return 0, string(out)
}

func says(t *testing.T, said string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(said, want) {
			t.Errorf("it says %q, want %q in it", said, want)
		}
	}
}

// I4: each fault of the server's certificate, and of the agent's own, is told with its cause and what to do. No identity
// comes to be, and the token isn't used up.
func TestI4Certificates(t *testing.T) {
	t.Parallel()
	ours, other := newAuthority(t, "ours"), newAuthority(t, "others")
	elsewhere := server()
	elsewhere.IPAddresses, elsewhere.DNSNames = nil, []string{"other.example"}
	admin := ours.trust()
	ours.issue(t, "admin", client("admin"))
	other.issue(t, "theirs", client("theirs"))
	ours.issue(t, "ended", valid(client("ended"), -2*time.Hour, -time.Hour))
	ca := "tls: {ca_file: " + ours.file("ca") + "%s}\n"
	mtls := []string{"--client-ca", ours.file("ca")}
	for name, c := range map[string]struct {
		serve  []string
		config string // its tls section
		wants  []string
	}{
		"wrong CA":        {other.issue(t, "server", server()), fmt.Sprintf(ca, ""), []string{`signed by the authority "CN=others" that this machine doesn't trust`, "set tls.ca_file"}},
		"no CA":           {ours.issue(t, "a", server()), "", []string{`signed by the authority "CN=ours" that this machine doesn't trust`, "set tls.ca_file"}},
		"wrong host name": {ours.issue(t, "b", elsewhere), fmt.Sprintf(ca, ""), []string{"certificate is for other.example, not for 127.0.0.1"}},
		"expired":         {ours.issue(t, "c", valid(server(), -2*time.Hour, -time.Hour)), fmt.Sprintf(ca, ""), []string{"certificate expired on", "1h0m", "have it renewed"}},
		"not valid yet":   {ours.issue(t, "d", valid(server(), time.Hour, 2*time.Hour)), fmt.Sprintf(ca, ""), []string{"becomes valid on", "clock", "is behind"}},
		"no client certificate": {append(ours.issue(t, "e", server()), mtls...), fmt.Sprintf(ca, ""),
			[]string{"want", "client certificate", "tls.cert_file", "tls.key_file"}},
		"client certificate of another CA": {append(ours.issue(t, "f", server()), mtls...),
			fmt.Sprintf(ca, ", cert_file: "+other.file("theirs")+", key_file: "+other.file("theirs-key")), []string{"client certificate", "tls.cert_file", "that the server knows its authority"}},
		"expired client certificate": {append(ours.issue(t, "g", server()), mtls...),
			fmt.Sprintf(ca, ", cert_file: "+ours.file("ended")+", key_file: "+ours.file("ended-key")), []string{"client certificate", "tls.cert_file", "its expiry"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trust := admin.Clone()
			trust.InsecureSkipVerify = true // the faults are the agent's to find
			trust.Certificates = []tls.Certificate{ours.pair(t, "admin")}
			w := plane(t, trust, c.serve...)
			code, said, dir := w.link(nil, "server: "+w.URL+"\n"+c.config)
			if code != 3 {
				t.Errorf("exit code %d, want 3", code)
			}
			says(t, said, c.wants...)
			if text, err := os.ReadFile(filepath.Join(dir, "state", "identity.json")); err == nil && !strings.Contains(string(text), `"agentId": ""`) {
				t.Errorf("there is an identity all the same: %s", text)
			}
			if page, err := w.Admin.Agents(t.Context(), "", 0); err != nil || len(page.Items) != 0 {
				t.Errorf("the server has %d agents, want none (%v)", len(page.Items), err)
			}
		})
	}
}

// front is a TLS server of the test's own before a control plane that speaks plain HTTP: its certificate and its clock are the
// test's to choose.
func front(t *testing.T, to string, ahead time.Duration, cert func() *tls.Certificate) *httptest.Server {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(u)
	proxy.Transport = &http.Transport{DisableKeepAlives: true}
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	proxy.ModifyResponse = func(r *http.Response) error {
		r.Header.Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
		return nil
	}
	srv := httptest.NewUnstartedServer(proxy)
	srv.TLS = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*cert()}}, nil
	}}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return srv
}

// A clock that is off: link says so, with the size; and when the server's certificate has expired as this machine sees it, so
// that the agent is shut out, its status names the clock and not the certificate as what to mend.
func TestClockThatIsOff(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ours")
	ca.issue(t, "good", server())
	ca.issue(t, "expired", valid(server(), -2*time.Hour, -time.Hour))
	good, expired := ca.pair(t, "good"), ca.pair(t, "expired")
	var now atomic.Pointer[tls.Certificate]
	now.Store(&good)
	w := plane(t, nil, "--key-ttl", "2s")
	before := front(t, w.URL, -2*time.Hour, now.Load) // the server's clock is right, ours is two hours ahead
	code, said, dir := w.link(nil, fmt.Sprintf("server: %s\ntls: {ca_file: %s}\n%s", before.URL, ca.file("ca"), handlers))
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, said)
	}
	says(t, said, "this machine's clock disagreed with the server's; set it", `"ahead":720`)

	config := filepath.Join(dir, "agentd.yaml")
	p, err := stack.StartProcess("agent", filepath.Join(dir, "log"), nil, filepath.Join(w.Bin, "agentd"), "run", "--config", config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Stop(time.Minute); err != nil {
			t.Error(err)
		}
	}()
	status := func(flags ...string) (int, string) {
		return runWith(t, "", nil, append([]string{filepath.Join(w.Bin, "agentd"), "status", "--config", config}, flags...)...)
	}
	until(t, "the agent works", func() bool { code, _ := status("--check"); return code == 0 })
	if n := strings.Count(p.Tail(), "clock disagreed"); n < 1 || n > 2 { // once for each of its two clients
		t.Errorf("the skew was logged %d times, want once or twice", n)
	}
	now.Store(&expired)
	before.CloseClientConnections()
	var said2 string
	until(t, "the agent says what is wrong", func() bool { _, said2 = status(); return strings.Contains(said2, "expired on") })
	says(t, said2, "but this machine's clock was last seen 2h0m", "ahead of the server's: set it")
	now.Store(&good)
	until(t, "the agent works again", func() bool { code, _ := status("--check"); return code == 0 })
}

// The client certificate is replaced while the agent runs, its key first: half of a pair is no pair. The old one isn't taken any
// more meanwhile, and no job notices.
func TestClientCertificateIsReplaced(t *testing.T) {
	t.Parallel()
	ca, next := newAuthority(t, "ours"), newAuthority(t, "next")
	ca.issue(t, "agent", client("first"))
	next.issue(t, "agent", client("second"))
	next.issue(t, "admin", client("admin"))
	clients := filepath.Join(t.TempDir(), "clients.pem") // who is let in
	let := func(who ...*authority) {
		t.Helper()
		var text []byte
		for _, a := range who {
			text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})...)
		}
		if err := os.WriteFile(clients, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	let(ca, next)
	trust := ca.trust()
	trust.Certificates = []tls.Certificate{next.pair(t, "admin")}
	args := append(ca.issue(t, "server", server()), "--client-ca", clients, "--lease-ttl", "30s")
	s, err := stack.Start(t.Context(), stack.Config{
		Bin: binaries.Dir(t), Dir: t.TempDir(), TLS: trust, ServerArgs: args,
		Config: fmt.Sprintf("%stls: {ca_file: %s, cert_file: %s, key_file: %s}\n", handlers, ca.file("ca"), ca.file("agent"), ca.file("agent-key")),
	})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Stack: s, t: t}
	t.Cleanup(func() {
		if t.Failed() {
			st, err := s.Status(context.Background())
			t.Logf("the agent says %q (%v); its log:\n%s\nthe server's:\n%s", st.Faults, err, s.Agent.Tail(), s.Server.Tail())
		}
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	pid := s.Agent.PID()
	job := w.submit("i=1; while [ ! -e " + w.StateDir + "/go ]; do echo n=$i; i=$((i+1)); sleep 0.1; done; echo $i > " + w.StateDir + "/printed")
	until(t, "the job runs", func() bool {
		j, err := w.Admin.Job(t.Context(), job)
		return err == nil && j.Last() != nil && j.Last().LogNext > 0
	})
	let(next)
	if err := s.Server.Kill(); err != nil { // its connections are the old certificate's
		t.Fatal(err)
	}
	if err := s.StartServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	var st agent.Status
	until(t, "the old certificate is refused", func() bool {
		st, err = s.Status(t.Context())
		return err == nil && strings.Contains(strings.Join(st.Faults, "\n"), "client certificate")
	})
	says(t, strings.Join(st.Faults, "\n"), "client certificate", "tls.cert_file", "knows its authority")
	move := func(name string) {
		t.Helper()
		if err := os.Rename(next.file(name), ca.file(name)); err != nil {
			t.Fatal(err)
		}
	}
	move("agent-key")
	refusals := func() int {
		text, err := os.ReadFile(s.Server.Log)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(text), "certificate signed by unknown authority")
	}
	before := refusals()
	until(t, "the agent is refused with half of a new pair, too", func() bool { return refusals() >= before+3 })
	move("agent")
	until(t, "the agent works again", func() bool { st, err = s.Status(t.Context()); return err == nil && st.Healthy })
	if s.Agent.PID() != pid || st.PID != pid {
		t.Errorf("the agent is process %d, was %d", st.PID, pid)
	}
	if err := os.WriteFile(filepath.Join(w.StateDir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n := 0
	until(t, "the job ends", func() bool {
		text, err := os.ReadFile(filepath.Join(w.StateDir, "printed"))
		return err == nil && func() bool { _, err := fmt.Sscan(string(text), &n); return err == nil }()
	})
	w.ends(job, "succeeded", n-1)
	w.sameAgent()
}

// I4: a proxy that wants a password, for TLS and for plain HTTP; given one, it is gone through.
func TestI4ProxyThatWantsAPassword(t *testing.T) {
	t.Parallel()
	w := plane(t, nil)
	u, err := url.Parse(w.URL)
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(u)
	forward.Transport = &http.Transport{DisableKeepAlives: true}
	proxy := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if _, secret, ok := (&http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}).BasicAuth(); !ok || secret != "opensesame" {
			rw.Header().Set("Proxy-Authenticate", `Basic realm="proxy"`)
			rw.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		forward.ServeHTTP(rw, r)
	}))
	defer proxy.Close()
	const secret = "user:opensesame@"
	with := strings.Replace(proxy.URL, "://", "://"+secret, 1)
	wrong := strings.Replace(proxy.URL, "://", "://user:guessed@", 1)
	const hint = "the proxy wants a password: give it as in HTTPS_PROXY=http://user:password@proxy:3128"
	for name, c := range map[string]struct {
		env, server string
		code        int
		want        string
	}{
		"TLS, without":   {"HTTPS_PROXY=" + proxy.URL, "https://control.example", 3, hint},
		"TLS, wrong":     {"HTTPS_PROXY=" + wrong, "https://control.example", 3, hint},
		"plain, without": {"HTTP_PROXY=" + proxy.URL, "http://control.example", 3, hint},
		"plain, with":    {"HTTP_PROXY=" + with, "http://control.example", 0, ""},
	} {
		code, said, _ := w.link([]string{c.env, "NO_PROXY="}, "insecure: true\nserver: "+c.server+"\n")
		if code != c.code {
			t.Errorf("%s: exit code %d, want %d: %s", name, code, c.code, said)
		}
		says(t, said, c.want)
		for _, s := range []string{"opensesame", "guessed"} {
			if strings.Contains(said, s) {
				t.Errorf("%s: the password is shown: %s", name, said)
			}
		}
	}
}

// I3: the config can't be written. link refuses before it touches the identity that is there, and says which line is missing.
func TestI3ReadOnlyConfig(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts")
	}
	w := plane(t, nil)
	code, said, dir := w.link(nil, "server: "+w.URL+"\n")
	if code != 0 {
		t.Fatal(said)
	}
	identity := filepath.Join(dir, "state", "identity.json")
	before, err := os.ReadFile(identity)
	if err != nil {
		t.Fatal(err)
	}
	etc := t.TempDir()
	config := filepath.Join(etc, "agentd.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "state_dir: %[1]s/state\nruntime_dir: %[1]s/run\n", dir), 0o600); err != nil {
		t.Fatal(err)
	}
	token, err := w.Admin.Token(t.Context(), adminclient.TokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	code, said = runWith(t, token, nil, "unshare", "-m", "sh", "-c", `mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"`, "sh",
		etc, filepath.Join(w.Bin, "agentd"), "link", "--config", config, "--server", w.URL, "--force", "--token-file", "-")
	if code != 4 {
		t.Errorf("exit code %d, want 4", code)
	}
	says(t, said, "can't be written into "+config, "read-only file system", "set `server: \""+w.URL+"\"` there yourself")
	if after, err := os.ReadFile(identity); err != nil || string(after) != string(before) {
		t.Errorf("the identity is another one now (%v)", err)
	}
	if page, err := w.Admin.Agents(t.Context(), "", 0); err != nil || len(page.Items) != 1 {
		t.Errorf("%d agents (%v), want the one", len(page.Items), err)
	}
}
