package identity

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentd/agent"
	"agentd/controlplane-mock/adminclient"
	"agentd/test/stack"
)

// until calls done every few milliseconds until it says yes: what it looks at is another process's doing.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(90 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 90 s", what)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// world is a control plane whose keys live for ttl, and an agent that runs scripts.
type world struct {
	*stack.Stack
	t *testing.T
}

func start(t *testing.T, ttl time.Duration) *world {
	t.Helper()
	return startWith(t, "", "--key-ttl", ttl.String(), "--lease-ttl", "5s")
}

// startWith takes more of the agent's config, and the control plane's flags.
func startWith(t *testing.T, config string, args ...string) *world {
	t.Helper()
	s, err := stack.Start(t.Context(), stack.Config{
		Bin: binaries.Dir(t), Dir: t.TempDir(), ServerArgs: args,
		Config: config + "cgroup: off\nhandlers: [{type: shell}]\nlogs: {memory: 4MiB, spool: {max_size: 512MiB}}\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("the agent's log:\n" + s.Agent.Tail() + "\nthe server's:\n" + s.Server.Tail())
		}
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return &world{Stack: s, t: t}
}

// submit starts a job that runs script.
func (w *world) submit(script string) string {
	w.t.Helper()
	payload, err := json.Marshal(map[string]string{"script": script})
	if err != nil {
		w.t.Fatal(err)
	}
	job, _, err := w.Admin.Submit(w.t.Context(), adminclient.Submission{Type: "shell", Payload: payload, MaxAttempts: 1})
	if err != nil {
		w.t.Fatal(err)
	}
	return job.ID
}

// prints waits until the job's first lines have arrived.
func (w *world) prints(id string) {
	w.t.Helper()
	until(w.t, "job "+id+" prints", func() bool {
		job, err := w.Admin.Job(w.t.Context(), id)
		return err == nil && job.Last() != nil && job.Last().LogNext > 0
	})
}

// ends waits until the job's log is complete, and checks how it ended and that it printed just the lines 1 to n.
func (w *world) ends(id, state string, n int) {
	w.t.Helper()
	var job adminclient.Job
	until(w.t, "job "+id+" is "+state+" with all of its log", func() bool {
		var err error
		job, err = w.Admin.Job(w.t.Context(), id)
		return err == nil && job.Settled() && job.Last().LogsComplete
	})
	if last := job.Last(); len(job.Attempts) != 1 || last.State != state || last.AgentID != w.AgentID {
		w.t.Errorf("%d attempts, the last %s (%s) by %s; want one, %s, by %s", len(job.Attempts), last.State, last.Error, last.AgentID, state, w.AgentID)
	}
	i, line := 0, ""
	for r, err := range w.Admin.Logs(context.Background(), id, adminclient.LogOptions{}) {
		if err != nil {
			w.t.Fatal(err)
		}
		if r.Stream != "out" {
			continue
		}
		if line += r.Text; r.Part { // what waited a second for its end was shipped without
			continue
		}
		if i++; line != fmt.Sprintf("n=%d", i) {
			w.t.Fatalf("job %s: line %d is %q (record %+v)", id, i, line, r)
		}
		line = ""
	}
	if i != n || line != "" {
		w.t.Errorf("job %s: %d lines arrived and %q of another, want %d", id, i, line, n)
	}
}

// sameAgent checks that no other identity came to be.
func (w *world) sameAgent() {
	w.t.Helper()
	page, err := w.Admin.Agents(w.t.Context(), "", 0)
	if err != nil {
		w.t.Fatal(err)
	}
	if len(page.Items) != 1 || page.Items[0].ID != w.AgentID {
		w.t.Errorf("agents %+v, want %s alone", page.Items, w.AgentID)
	}
}

// links counts the agent's links in the control plane's audit log.
func (w *world) links() int {
	text, err := os.ReadFile(w.Server.Log)
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.Count(string(text), "agent linked")
}

const lines = `awk 'BEGIN{for(i=%d;i<=%d;i++)print "n=" i}'`

// TestI1KeyExpires: the key's life ends while the agent is idle, while a job runs, while both are away from each other
// with a backlog waiting, and while the agent itself isn't running. Each time the same identity goes on.
func TestI1KeyExpires(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	w := start(t, ttl)

	// Idle, over three lives of a key.
	n := w.links()
	until(t, "three renewals while idle", func() bool { return w.links() >= n+3 })
	w.ends(w.submit(fmt.Sprintf(lines, 1, 10)), "succeeded", 10)

	// While a job prints.
	n = w.links()
	job := w.submit(`i=1; while [ $i -le 40 ]; do echo n=$i; i=$((i+1)); sleep 0.1; done`)
	w.ends(job, "succeeded", 40)
	if got := w.links(); got < n+2 {
		t.Errorf("%d renewals while the job ran, want two at least", got-n)
	}

	// An admin expires it: the next call is refused, and the agent proves who it is at once.
	job = w.submit(`i=1; while [ $i -le 30 ]; do echo n=$i; i=$((i+1)); sleep 0.1; done`)
	if _, err := w.Admin.ExpireKey(t.Context(), w.AgentID); err != nil {
		t.Fatal(err)
	}
	w.ends(job, "succeeded", 30)

	// With a backlog, 200 MB of it with AGENTD_SOAK: the control plane is away for longer than a key lives, and the job prints meanwhile.
	many := 400_000
	if os.Getenv("AGENTD_SOAK") != "" {
		many = 20_000_000
	}
	job = w.submit("echo n=1; while [ ! -e " + w.StateDir + "/go ]; do sleep 0.05; done; " + fmt.Sprintf(lines, 2, many))
	w.prints(job)
	if err := w.Server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.StateDir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	until(t, "the job printed all of it", func() bool {
		st, err := w.Status(t.Context())
		return err == nil && len(st.Jobs) == 1 && st.Jobs[0].State == "reporting"
	})
	<-time.After(ttl)
	if err := w.StartServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.ends(job, "succeeded", many)

	// Away for a week: several lives of a key.
	if err := w.Agent.Stop(time.Minute); err != nil {
		t.Fatal(err)
	}
	job = w.submit(fmt.Sprintf(lines, 1, 10))
	<-time.After(2 * ttl)
	if err := w.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.ends(job, "succeeded", 10)
	w.sameAgent()
}

// TestL4LateLinesOfACancelledJobWithAnExpiredKey: 5 MB are still at the agent when its job is cancelled and its key has
// expired. They arrive, under their attempt.
func TestL4LateLinesOfACancelledJobWithAnExpiredKey(t *testing.T) {
	t.Parallel()
	const many = 600_000 // lines of 8 bytes or so
	w := start(t, 2*time.Second)
	job := w.submit("echo n=1; while [ ! -e " + w.StateDir + "/go ]; do sleep 0.05; done; " + fmt.Sprintf(lines, 2, many) + "; touch " + w.StateDir + "/printed; sleep 600")
	w.prints(job)
	if err := w.Server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.StateDir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	until(t, "the job printed", func() bool { _, err := os.Stat(filepath.Join(w.StateDir, "printed")); return err == nil })
	<-time.After(2 * time.Second) // the key's life
	if err := w.StartServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Admin.Cancel(t.Context(), job, "not wanted any more"); err != nil {
		t.Fatal(err)
	}
	w.ends(job, "cancelled", many)
	w.sameAgent()
}

// TestI2CopiedStateDirectory: a copy of the agent starts elsewhere. It is the current one then; the first is refused, says what to
// do, and yet ends its job.
func TestI2CopiedStateDirectory(t *testing.T) {
	t.Parallel()
	w := start(t, time.Hour)
	job := w.submit("echo n=1; while [ ! -e " + w.StateDir + "/go ]; do sleep 0.05; done; echo n=2")
	w.prints(job)
	other := t.TempDir()
	if err := os.MkdirAll(filepath.Join(other, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(w.StateDir, "identity.json"))
	if err == nil {
		err = os.WriteFile(filepath.Join(other, "state", "identity.json"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(other, "agentd.yaml")
	yaml := fmt.Sprintf("server: %s\nname: copy\nstate_dir: %s/state\nruntime_dir: %s/run\ncgroup: off\nhandlers: [{type: shell}]\n", w.URL, other, other)
	if err := os.WriteFile(config, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := stack.StartProcess("the copy", filepath.Join(other, "log"), nil, filepath.Join(w.Bin, "agentd"), "run", "--config", config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Stop(time.Minute); err != nil {
			t.Error(err)
		}
	}()
	var st agent.Status
	until(t, "the first agent is refused", func() bool {
		st, err = w.Status(t.Context())
		return err == nil && st.State == "refused"
	})
	if !strings.Contains(st.Detail, "another process") && !strings.Contains(st.Detail, "copied") {
		t.Errorf("the first agent says %q: want what happened and what to do", st.Detail)
	}
	t.Log("the first agent says: " + st.Detail)
	if err := os.WriteFile(filepath.Join(w.StateDir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.ends(job, "succeeded", 2)
	w.ends(w.submit(fmt.Sprintf(lines, 1, 3)), "succeeded", 3) // by the copy
	w.sameAgent()
}
