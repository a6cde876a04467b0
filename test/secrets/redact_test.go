package secrets

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
	"agentd/test/stack"
)

// until calls done every few milliseconds until it says yes: what it looks at is another process's doing.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
		<-time.After(10 * time.Millisecond)
	}
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// secretJob runs a stack and one job that prints secrets, and returns once it has printed them; it goes on until release.
func secretJob(t *testing.T, how string, env map[string]string, handler string) (s *stack.Stack, id, told string, needles []string) {
	t.Helper()
	bin, dir := binaries.Dir(t), t.TempDir()
	told = t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := write(t, told, "listed", "listed-in-a-file-4711\n-----BEGIN PRIVATE KEY-----\nTUlJRXZRSUJBREFOQmdrcWhraUc5dzBCQVFFRkFBU0NCS2N3Z2dTakFnRUFBb0lCQVFD\n"+
		"eGtqc2hka2FqaHNka2poYXNrZGpoYWtzZGhrYWpzaGRramFoc2tkamhha2pzZGhramFo\nc2hvcnQ=\n-----END PRIVATE KEY-----\n")
	config := fmt.Sprintf("cgroup: off\nlogs: {compression: none, durability: strict, spool: {keep_shipped: 1h, max_size: 128MiB}}\n%s\nhandlers:\n"+
		"  - {type: leak, command: [%q, job, %s], env: {NAMED_BY_CONFIG: \"from the/config+0815\", NAMED_BY_JOB: \"from the=job&4242\"}}\n",
		strings.ReplaceAll(handler, "FILE", file), self, how)
	s, err = stack.Start(t.Context(), stack.Config{Bin: bin, Dir: dir, Config: config, ServerArgs: []string{"--lease-ttl", "5s"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	payload, err := json.Marshal(orders{Agentd: filepath.Join(bin, "agentd"), File: file, Dir: told})
	if err != nil {
		t.Fatal(err)
	}
	job, _, err := s.Admin.Submit(t.Context(), adminclient.Submission{Type: "leak", Payload: payload, Env: env, MaxAttempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the job printed", func() bool {
		j, err := s.Admin.Job(t.Context(), job.ID)
		if err == nil && j.Settled() {
			t.Fatalf("the job ended early: %+v\n%s", j.Attempts, logText(t, s, job.ID))
		}
		return exists(filepath.Join(told, "printed"))
	})
	var secrets []string
	text, err := os.ReadFile(filepath.Join(told, "secrets"))
	if err == nil {
		err = json.Unmarshal(text, &secrets)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range secrets {
		needles = append(needles, forms(secret)...)
	}
	return s, job.ID, told, needles
}

func logText(t *testing.T, s *stack.Stack, id string) string {
	t.Helper()
	var out bytes.Buffer
	for r, err := range s.Admin.Logs(context.Background(), id, adminclient.LogOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString(r.Text)
		out.Write(r.Bytes)
		if !r.Part {
			out.WriteByte('\n')
		}
		if r.Gap > 0 {
			t.Errorf("the log has a gap of %d: %s", r.Gap, r.Reason)
		}
	}
	return out.String()
}

// complete waits until the job has ended and all of its log is there.
func complete(t *testing.T, s *stack.Stack, id string) adminclient.Job {
	t.Helper()
	var job adminclient.Job
	until(t, "the job ended", func() bool {
		var err error
		job, err = s.Admin.Job(t.Context(), id)
		return err == nil && job.Settled() && job.Last() != nil && job.Last().LogEnded()
	})
	return job
}

// checkText wants n marks at least, and none of the needles.
func checkText(t *testing.T, text string, needles []string, n int) {
	t.Helper()
	if got := strings.Count(text, "[redacted]"); got < n {
		t.Errorf("the log has %d marks, want at least %d", got, n)
	}
	for _, needle := range needles {
		if i := strings.Index(text, needle); i >= 0 {
			t.Errorf("the log holds %q, as in %q", needle, text[max(0, i-60):min(len(text), i+60)])
		}
	}
}

// TestRedactionSecretsAreFoundNowhere prints secrets from the config's file, from variables that the config and the job name,
// and from `agentd redact`: whole, byte by byte, over edges, multi-line, in base64 and URL-encoded. Then every
// file is searched: with the agent killed in the middle, so that its queue file is as it was, and after everything was delivered.
func TestRedactionSecretsAreFoundNowhere(t *testing.T) {
	t.Parallel() // each of these tests mostly waits
	s, id, told, needles := secretJob(t, "all", map[string]string{"secrets": "NAMED_BY_JOB"}, "redact: {files: [FILE], env: [NAMED_BY_CONFIG]}")
	status, err := exec.Command(filepath.Join(binaries.Dir(t), "agentd"), "status", "--json", "--config", s.ConfigFile).Output()
	if err != nil {
		t.Fatal(err)
	}
	metrics := write(t, t.TempDir(), "status", string(status))
	until(t, "the logs arrived", func() bool {
		return strings.Count(logText(t, s, id), "control: the end") == 2
	})
	dirs := []string{filepath.Join(filepath.Dir(s.ConfigFile), "store"), s.StateDir, s.RuntimeDir, s.Agent.Log, s.Server.Log, metrics}
	if err := s.Agent.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, f := range search(t, needles, dirs...) {
		t.Error("after the kill: " + f)
	}
	// What isn't secret is found by the same search: in the server's store and in the agent's spool.
	for _, dir := range []string{dirs[0], s.StateDir} {
		if len(search(t, []string{"control: password=[redacted];"}, dir)) == 0 {
			t.Errorf("%s does not hold what the job printed: the search finds nothing", dir)
		}
	}
	if err := os.WriteFile(filepath.Join(told, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	job := complete(t, s, id)
	if last := job.Last(); last.State != "lost" {
		t.Errorf("the attempt is %s, want lost: its agent was killed", last.State)
	}
	// Per secret and stream: 2 prints, 7 encodings; on stdout 6 edges; and the two that were told when they became secrets.
	checkText(t, logText(t, s, id), needles, 2+6*(2*9+6))
	for _, f := range search(t, needles, dirs...) {
		t.Error("after the end: " + f)
	}
}

// TestRedactionBeginsWhileTheJobRuns: a job without secrets goes the short way, until it names one.
func TestRedactionBeginsWhileTheJobRuns(t *testing.T) {
	t.Parallel()
	s, id, told, needles := secretJob(t, "late", nil, "")
	// Nobody but the job's processes may add secrets: not even root.
	work, err := filepath.Glob(filepath.Join(s.StateDir, "work", "a-*"))
	if err != nil || len(work) != 1 {
		t.Fatalf("work directories: %v, %v", work, err)
	}
	cmd := exec.Command(filepath.Join(binaries.Dir(t), "agentd"), "redact")
	cmd.Env = append(os.Environ(), "AGENTD_WORK_DIR="+work[0])
	cmd.Stdin = strings.NewReader("control")
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 4 || !strings.Contains(string(out), "only the job's own processes") {
		t.Errorf("from outside of the job: %v, %s; want exit code 4", err, out)
	}
	if err := os.WriteFile(filepath.Join(told, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	job := complete(t, s, id)
	if last := job.Last(); last.State != string(protocol.Succeeded) {
		t.Errorf("the attempt is %s (%s), want succeeded", last.State, last.Error)
	}
	text := logText(t, s, id)
	checkText(t, text, needles, 2+2*(2*9+6))
	if !strings.HasPrefix(text, "control: before\n") || strings.Count(text, "control: the end\n") != 2 {
		t.Error("lines of the log are missing")
	}
	for _, f := range search(t, needles, filepath.Join(filepath.Dir(s.ConfigFile), "store"), s.StateDir, s.RuntimeDir, s.Agent.Log, s.Server.Log) {
		t.Error(f)
	}
}

// TestRedactionRefusesWhatItCanNotKeep: a job that names a variable which isn't there does not run unredacted.
func TestRedactionRefusesWhatItCanNotKeep(t *testing.T) {
	t.Parallel()
	s, err := stack.Start(t.Context(), stack.Config{Bin: binaries.Dir(t), Dir: t.TempDir(), Config: "cgroup: off\nhandlers: [{type: shell}]\n"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}()
	for _, row := range []struct {
		name, want string
		env        map[string]string
	}{
		{"not a variable", "could not start: env: secrets: entry 2 is not the name of one of the job's variables", map[string]string{"A": "long enough", "secrets": "A,hunter22"}},
		{"too short", "could not start: env: secrets: entry 1: redact: a secret of fewer than 4 bytes can't be redacted: it would occur everywhere", map[string]string{"A": "abc", "secrets": "A"}},
	} {
		payload := json.RawMessage(`{"script":"echo ran"}`)
		job, _, err := s.Admin.Submit(t.Context(), adminclient.Submission{Type: "shell", Payload: payload, Env: row.env, MaxAttempts: 1})
		if err != nil {
			t.Fatal(err)
		}
		done := complete(t, s, job.ID)
		if got := done.Last().Error; done.Status != "failed" || got != row.want {
			t.Errorf("%s: %s, %q; want failed, %q", row.name, done.Status, got, row.want)
		}
	}
}
