package secrets

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentd/controlplane-mock/adminclient"
	"agentd/test/stack"
)

// TestJobsOfOtherUsersAreShutOut: with an agent that runs as root and handlers with users of their own, a job gets at nothing of the
// agent's or of another user's job; its own work directory and redaction are its.
func TestJobsOfOtherUsersAreShutOut(t *testing.T) {
	t.Parallel()
	if users, err := os.ReadFile("/proc/self/uid_map"); err != nil || os.Geteuid() != 0 || strings.HasSuffix(strings.TrimSpace(string(users)), " 1") {
		t.Skip("needs root: only it runs jobs as somebody else")
	}
	top, err := os.MkdirTemp("", "agentd-walls-") //nolint:usetesting // others may not pass through T.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	bin, dir, told := binaries.Dir(t), filepath.Join(top, "stack"), filepath.Join(top, "told")
	for d, mode := range map[string]os.FileMode{bin: 0o755, top: 0o711, dir: 0o711, told: 0o777} { // for the jobs to run agentd, and to tell what they did
		if err := os.MkdirAll(d, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(d, mode); err != nil {
			t.Fatal(err)
		}
	}
	s, err := stack.Start(t.Context(), stack.Config{Bin: bin, Dir: dir, Config: "cgroup: off\nhandlers:\n" +
		fmt.Sprintf("  - {type: one, user: nobody, command: [/bin/sh, -c, %q]}\n", "umask 0; echo mine > $AGENTD_WORK_DIR/file; echo $AGENTD_WORK_DIR > "+told+"/dir; while [ ! -e "+told+"/go ]; do sleep 0.05; done") +
		fmt.Sprintf("  - {type: other, user: daemon, command: [/bin/sh, %q]}\n", filepath.Join(told, "script"))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	submit := func(typ string) string {
		job, _, err := s.Admin.Submit(t.Context(), adminclient.Submission{Type: typ, Payload: json.RawMessage(`{}`), MaxAttempts: 1})
		if err != nil {
			t.Fatal(err)
		}
		return job.ID
	}
	one := submit("one")
	var theirs string
	until(t, "the first job told its directory", func() bool {
		text, err := os.ReadFile(filepath.Join(told, "dir"))
		theirs = strings.TrimSpace(string(text))
		return err == nil && theirs != ""
	})
	var script strings.Builder
	script.WriteString("exec 2>/dev/null\ntry() { if \"$@\" >/dev/null; then echo \"got: $*\"; else echo \"refused: $*\"; fi; }\n")
	var want strings.Builder
	for _, cmd := range []string{
		"cat " + theirs + "/file", "ls " + theirs, "touch " + theirs + "/x", "ls " + s.StateDir, "cat " + s.StateDir + "/identity.json", "cat " + s.StateDir + "/journal",
		"ls " + s.StateDir + "/spool", "ls " + s.StateDir + "/work", "ls " + s.RuntimeDir, "cat " + s.RuntimeDir + "/queue",
		bin + "/agentd status --config " + s.ConfigFile + " --runtime-dir " + s.RuntimeDir, "env AGENTD_WORK_DIR=" + theirs + " " + bin + "/agentd redact",
	} {
		script.WriteString("echo a-secret | try " + cmd + "\n")
		want.WriteString("refused: " + cmd + "\n")
	}
	script.WriteString("echo of-the-other | try " + bin + "/agentd redact\necho of-the-other\nid -un\n")
	want.WriteString("got: " + bin + "/agentd redact\n[redacted]\ndaemon\n")
	if err := os.WriteFile(filepath.Join(told, "script"), []byte(script.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	other := submit("other")
	complete(t, s, other)
	if got := logText(t, s, other); got != want.String() {
		t.Errorf("got\n%s\nwant\n%s", got, want.String())
	}
	if err := os.WriteFile(filepath.Join(told, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if job := complete(t, s, one); job.Status != "succeeded" {
		t.Errorf("the first job: %+v", job.Last())
	}
}
