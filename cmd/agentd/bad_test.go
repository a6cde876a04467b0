package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"agentd/agent"
)

func mustSay(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("output lacks %q:\n%s", want, text)
		}
	}
}

func deadURL(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

func TestControlPlaneThatIsDown(t *testing.T) {
	h := &host{}
	h.dirs(t, deadURL(t), "handlers: [{type: shell}]\n")
	_, stderr := h.does(t, exitUnreachable, "age_x", "link", "--token-file", "-")
	mustSay(t, stderr, "connection refused")
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("age_x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := start(t, "", "run", "--config", h.config, "--token-file", token)
	st := h.status(t, func(st agent.Status) bool { return st.Link.State == "unreachable" })
	if st.Healthy {
		t.Error("healthy without a control plane")
	}
	mustSay(t, st.Link.Detail, "connection refused")
	_, stderr = h.does(t, exitFailed, "", "status", "--check")
	mustSay(t, stderr, "not healthy")
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	if code := c.code(t); code != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
}

func TestWrongURL(t *testing.T) {
	for url, want := range map[string]string{
		"control.example.com":        "has no scheme: write https://control.example.com",
		"ftp://control.example.com":  `has the scheme "ftp"`,
		"http://control.example.com": "would send API keys unencrypted",
		"https://":                   "names no host",
	} {
		h := &host{}
		h.dirs(t, url, "")
		for _, cmd := range []string{"run", "link", "check"} {
			_, stderr := h.does(t, exitConfig, "", cmd)
			mustSay(t, stderr, h.config+":1: server: ", want)
		}
	}
}

func TestWrongToken(t *testing.T) {
	h := newHost(t, "handlers: [{type: shell}]\n")
	_, stderr := h.does(t, exitDenied, "age_wrong", "link", "--token-file", "-")
	mustSay(t, stderr, "401 unauthenticated")
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("age_wrong"), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, "", "run", "--config", h.config, "--token-file", token)
	st := h.status(t, func(st agent.Status) bool { return st.State == "refused" })
	mustSay(t, st.Detail, "give it a new enrolment token")
	// A right one that is put in place later is found without a restart.
	if err := os.WriteFile(token, []byte(h.token(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	h.status(t, working)
}

func TestNotLinkedAndNoToken(t *testing.T) {
	h := newHost(t, "")
	for _, cmd := range []string{"run", "link"} {
		_, stderr := h.does(t, exitConfig, "", cmd)
		mustSay(t, stderr, "not linked", "agentd link --config FILE --token-file TOKEN")
	}
}

func TestStateDirThatCannotBeWritten(t *testing.T) {
	for _, key := range []string{"state_dir", "runtime_dir"} {
		h := newHost(t, "")
		bad := "/sys/agentd-test"
		text, err := os.ReadFile(h.config)
		if err != nil {
			t.Fatal(err)
		}
		good := map[string]string{"state_dir": h.state, "runtime_dir": h.run}[key]
		h.write(t, strings.Replace(string(text), good, bad, 1))
		_, stderr := h.does(t, exitDenied, h.token(t), "run", "--token-file", "-")
		mustSay(t, stderr, key+" "+bad+" can't be made", "set "+key+" to a directory that this user may write")
	}
}

func TestSecondAgentOnOneStateDirectory(t *testing.T) {
	h := newHost(t, "handlers: [{type: shell}]\n")
	id, _ := h.does(t, 0, h.token(t), "link", "--token-file", "-")
	c := start(t, "", "run", "--config", h.config)
	h.status(t, working)
	_, stderr := h.does(t, exitFailed, "", "run", "--runtime-dir", t.TempDir())
	mustSay(t, stderr, fmt.Sprintf("another agent (pid %d) uses the state directory %s", c.cmd.Process.Pid, h.state), "state_dir of its own")
	// Linking again is harmless, also beside a running agent.
	again, _ := h.does(t, 0, "", "link")
	if again != id || !strings.HasPrefix(id, "ag") {
		t.Errorf("link printed %q, then %q; want the same id", id, again)
	}
	_, stderr = h.does(t, exitFailed, h.token(t), "link", "--force", "--token-file", "-")
	mustSay(t, stderr, "another agent")
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h := newHost(t, "metrics: {listen: \""+l.Addr().String()+"\"}\n")
	_, stderr := h.does(t, exitFailed, h.token(t), "run", "--token-file", "-")
	mustSay(t, stderr, "metrics.listen: listen tcp "+l.Addr().String(), "address already in use")
}

func TestNoAgentAnswers(t *testing.T) {
	h := newHost(t, "")
	for _, cmd := range []string{"status", "drain", "reload"} {
		_, stderr := h.does(t, exitUnreachable, "", cmd)
		mustSay(t, stderr, "no agent answers on "+h.run+"/agentd.sock")
	}
}

func TestUsageErrors(t *testing.T) {
	h := newHost(t, "")
	for _, args := range [][]string{{"bogus"}, {"status", "--bogus"}, {"status", "extra"}, {"version", "extra"}} {
		h.does(t, exitUsage, "", args...)
	}
}
