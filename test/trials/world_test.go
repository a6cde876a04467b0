package trials

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentd/agent"
	"agentd/controlplane-mock/adminclient"
	"agentd/controlplane-mock/faults"
	"agentd/test/stack"
)

// patience bounds a wait for what should take seconds: the machine may be busy with ten other things.
const patience = 3 * time.Minute

// look is how often a trial looks again whether what it waits for has happened.
const look = 50 * time.Millisecond

const logsRoute = "/agent/v1/jobs/*/attempts/*/logs"

func soak() bool { return os.Getenv("AGENTD_SOAK") != "" }

// scaled is a size: small as a rule, the trial's own in a soak.
func scaled[T any](small, full T) T {
	if soak() {
		return full
	}
	return small
}

// world is a control plane and an agent, the real ones.
type world struct {
	*stack.Stack
	dir string
	n   int // jobs submitted
}

// begin starts both. config is more of the agent's, after a common part: small memory, so that little is much.
func begin(t *testing.T, config string, serverArgs ...string) *world {
	t.Helper()
	return beginWith(t, stack.Config{Config: config, ServerArgs: serverArgs})
}

const logsSmall = "logs: {memory: 4MiB, spool: {max_size: 64MiB, min_free: 0%}}\n"

// beginWith starts what cfg says; prepare sees the folder first.
func beginWith(t *testing.T, cfg stack.Config, prepare ...func(dir string)) *world {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "trial") //nolint:usetesting // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range []string{"agentd.log", "controlplane.log"} {
				t.Logf("%s:\n%s", name, tail(filepath.Join(dir, name)))
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	for _, f := range prepare {
		f(dir)
	}
	cfg.Bin, cfg.Dir = binaries.Dir(t), dir
	// At a trial's end nothing is waited for.
	cfg.Config = fmt.Sprintf("cgroup: off\ndrain: {timeout: 1s, grace: 1s, flush: 1s}\nhandlers: [{type: shell, grace: 1s}, {type: print, grace: 1s, command: [%q, %s]}]\n",
		exe, jobArg) + cfg.Config
	cfg.ServerArgs = append([]string{"--faults"}, cfg.ServerArgs...)
	s, err := stack.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Stack: s, dir: dir}
	t.Cleanup(func() {
		if err := w.Stop(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func tail(path string) []byte {
	b, err := os.ReadFile(path)
	if err != nil {
		return []byte(err.Error())
	}
	return b[max(0, len(b)-8<<10):]
}

// print submits a job that does the work, which it gives a file for its truth.
func (w *world) print(t *testing.T, s adminclient.Submission, does *work) string {
	t.Helper()
	w.n++
	does.Truth = filepath.Join(w.dir, fmt.Sprintf("truth-%d", w.n))
	s.Type = "print"
	return w.submit(t, s, *does)
}

func (w *world) shell(t *testing.T, script string) string {
	t.Helper()
	return w.submit(t, adminclient.Submission{Type: "shell"}, map[string]string{"script": script})
}

func (w *world) submit(t *testing.T, s adminclient.Submission, payload any) string {
	t.Helper()
	var err error
	if s.Payload, err = json.Marshal(payload); err != nil {
		t.Fatal(err)
	}
	job, _, err := w.Admin.Submit(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return job.ID
}

// letGo ends the wait of a job that was told to.
func (does work) letGo(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(does.Truth+".go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// until waits for done; what describes it.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(look)
	defer tick.Stop()
	end := time.NewTimer(scaled(patience, 20*patience))
	defer end.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("gave up waiting: %s", what)
		}
	}
}

// await waits until the job is as done wants it.
func (w *world) await(t *testing.T, id, what string, done func(adminclient.Job) bool) (job adminclient.Job) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("%s is %s: %+v", job.ID, job.Status, job.Attempts)
		}
	}()
	until(t, what, func() bool {
		var err error
		if job, err = w.Admin.Job(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		return done(job)
	})
	return job
}

func running(j adminclient.Job) bool { return j.Status == "running" }

// over says that the job has ended and that its log is complete.
func over(j adminclient.Job) bool { return j.Settled() && j.Last() != nil && j.Last().LogsComplete }

// ended waits for the job's end, whole log included, and checks how it ended.
func (w *world) ended(t *testing.T, id, status string) adminclient.Job {
	t.Helper()
	j := w.await(t, id, "the job's end and its whole log", over)
	if j.Status != status {
		t.Errorf("job %s is %s (%s), want %s", id, j.Status, j.Reason, status)
	}
	return j
}

func (w *world) faults(t *testing.T, rules ...faults.Rule) {
	t.Helper()
	if err := w.Admin.SetFaults(t.Context(), rules); err != nil {
		t.Fatal(err)
	}
}

// hits is how many requests each rule has struck.
func (w *world) hits(t *testing.T) (all []int64) {
	t.Helper()
	rules, err := w.Admin.Faults(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		all = append(all, r.Hits)
	}
	return all
}

// out begins an outage of the agents' side that lasts until back.
func (w *world) out(t *testing.T, mode faults.OutageMode, partition bool) {
	t.Helper()
	const long = 3600_000 // ms: the trial ends it
	if err := w.Admin.Outage(t.Context(), faults.OutageSpec{Mode: mode, For: long, Partition: partition}); err != nil {
		t.Fatal(err)
	}
}

func (w *world) back(t *testing.T) {
	t.Helper()
	if err := w.Admin.EndOutage(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// killAgent ends the agent with SIGKILL.
func (w *world) killAgent(t *testing.T) {
	t.Helper()
	if err := w.Agent.Kill(); err != nil {
		t.Fatal(err)
	}
	w.Agent = nil
}

// launch starts the agent, which may not find its control plane.
func (w *world) launch(t *testing.T) {
	t.Helper()
	if err := w.LaunchAgent(); err != nil {
		t.Fatal(err)
	}
}

// status asks the agent until it answers.
func (w *world) status(t *testing.T) (st agent.Status) {
	t.Helper()
	until(t, "the agent answers", func() bool {
		var err error
		st, err = w.Status(t.Context())
		return err == nil
	})
	return st
}

// agentd runs a command of the agent's that ends by itself.
func (w *world) agentd(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(w.Bin, "agentd"), append(args, "--config", w.ConfigFile)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("agentd %s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return out
}

// pass lets time go by, for trials that are about a stretch of time.
func pass(d time.Duration) { <-time.After(d) }
