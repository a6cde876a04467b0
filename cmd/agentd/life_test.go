package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentd/agent"
	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
)

func (h *host) linked(t *testing.T) *host {
	t.Helper()
	h.does(t, 0, h.token(t), "link", "--token-file", "-")
	return h
}

func readPID(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// The agent is killed while a job runs: what the job started is gone, it is reported lost with the reason, its log
// arrives, and it is polled again within 5 s.
func TestKilledAgentComesBack(t *testing.T) {
	h := newHost(t, "handlers: [{type: shell}]\n").linked(t)
	c := start(t, "", "run", "--config", h.config)
	pids := filepath.Join(t.TempDir(), "pid")
	id := h.submit(t, adminclient.Submission{MaxAttempts: 1, Grace: new(protocol.Millis(1000))},
		"setsid sleep 300 & echo $! > "+pids+".new; mv "+pids+".new "+pids+"; echo n=1; echo n=2; wait")
	h.job(t, id, func(j adminclient.Job) bool { return j.Last() != nil && j.Last().LogNext == 2 })
	pid := readPID(t, pids)
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-c.done
	start(t, "", "run", "--config", h.config)
	st := h.status(t, func(st agent.Status) bool { return !st.Polls.Answered.IsZero() })
	// By the agent's own clock: how long its commands take to start on a busy machine is not what is promised.
	began := time.Now().Add(-time.Duration(st.UpForMs) * time.Millisecond)
	if took := st.Polls.Answered.Sub(began); took > 5*time.Second {
		t.Errorf("polling again after %v, want within 5 s", took)
	}
	if alive(pid) {
		t.Errorf("process %d of the job outlived the agent's restart", pid)
	}
	job := h.job(t, id, func(j adminclient.Job) bool { return j.Settled() && j.Last().LogsComplete })
	if at := job.Last(); at.State != "lost" || !strings.Contains(at.Error, "the agent died") || *at.LogRecords < 2 {
		t.Errorf("attempt %+v, want lost since the agent died, with its two lines", at)
	}
}

// The first SIGTERM lets the job end; the outcome is there when the process is gone.
func TestSIGTERMDrains(t *testing.T) {
	h := newHost(t, "handlers: [{type: shell}]\n").linked(t)
	c := start(t, "", "run", "--config", h.config)
	id := h.submit(t, adminclient.Submission{}, "sleep 1; echo n=1")
	h.job(t, id, func(j adminclient.Job) bool { return j.Status == "running" })
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	if code := c.code(t); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	job, err := h.admin.Job(t.Context(), id)
	if err != nil || job.Status != "succeeded" || !job.Last().LogsComplete {
		t.Errorf("job %+v (%v), want succeeded with its log when the agent is gone", job, err)
	}
}

// A second SIGTERM ends the wait: the job is killed and reported lost.
func TestSecondSIGTERMHurries(t *testing.T) {
	h := newHost(t, "handlers: [{type: shell}]\ndrain: {timeout: 60s}\n").linked(t)
	c := start(t, "", "run", "--config", h.config)
	id := h.submit(t, adminclient.Submission{MaxAttempts: 1, Grace: new(protocol.Millis(30000))}, "trap '' TERM; echo n=1; while :; do sleep 1; done")
	h.job(t, id, func(j adminclient.Job) bool { return j.Last() != nil && j.Last().LogNext > 0 })
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	h.status(t, func(st agent.Status) bool { return st.State == "stopping" })
	began := time.Now()
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	if code := c.code(t); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("gone %v after the second signal, want no waits", took)
	}
	// What the hurry left unsaid is said at the next start.
	start(t, "", "run", "--config", h.config)
	job := h.job(t, id, func(j adminclient.Job) bool { return j.Settled() })
	if at := job.Last(); at.State != "lost" || !strings.Contains(at.Error, "drain") {
		t.Errorf("attempt %+v, want lost by the drain", at)
	}
}

func TestDrainReloadAndMetrics(t *testing.T) {
	h := newHost(t, "handlers: [{type: shell}]\nlabels: {a: b}\n").linked(t)
	c := start(t, "", "run", "--config", h.config)
	id := h.submit(t, adminclient.Submission{}, "sleep 1; echo n=1")
	h.job(t, id, func(j adminclient.Job) bool { return j.Status == "running" })
	out, _ := h.does(t, 0, "", "drain", "--wait")
	mustSay(t, out, "drained: 0 of 2 jobs running")
	if job, err := h.admin.Job(t.Context(), id); err != nil || job.Status != "succeeded" || !job.Last().LogsComplete {
		t.Errorf("after drain --wait the job is %+v (%v), want succeeded with its log", job, err)
	}
	h.does(t, 0, "", "drain", "--off")
	h.status(t, working)

	text, err := os.ReadFile(h.config)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), "labels: {a: b}", "labels: {a: c}\nmax_jobs: 5", 1)
	h.write(t, changed+"bogus: 1\n")
	_, stderr := h.does(t, exitFailed, "", "reload")
	mustSay(t, stderr, "bogus: unknown key")
	if st := h.status(t, working); st.Labels["a"] != "b" || st.MaxJobs != 2 {
		t.Errorf("labels %v, max %d after a refused reload; want the old ones", st.Labels, st.MaxJobs)
	}
	h.write(t, changed)
	h.does(t, 0, "", "reload")
	st := h.status(t, working)
	if st.Labels["a"] != "c" || st.MaxJobs != 5 {
		t.Errorf("labels %v, max %d after the reload; want the new ones", st.Labels, st.MaxJobs)
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		a, err := h.admin.Agent(t.Context(), st.AgentID)
		if err == nil && a.Labels["a"] == "c" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the control plane has labels %v (%v), want the new ones", a.Labels, err)
		}
		<-time.After(20 * time.Millisecond)
	}
	out, _ = h.does(t, 0, "", "status", "--check")
	mustSay(t, out, "working: 0 of 5 jobs running")

	d, err := (&cli{config: h.config, getenv: func(string) string { return "" }}).daemon(noFlags())
	if err != nil {
		t.Fatal(err)
	}
	resp, err := d.http.Get("http://agentd/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body := make([]byte, 1<<20)
	n, _ := resp.Body.Read(body)
	if resp.StatusCode != http.StatusOK || !strings.Contains(string(body[:n]), "agentd_jobs_max 5") {
		t.Errorf("metrics: %s\n%s", resp.Status, body[:n])
	}
	info, err := os.Stat(filepath.Join(h.run, socketName))
	if err != nil || info.Mode().Perm() != socketMode {
		t.Errorf("socket's mode is %v (%v), want 0660", info.Mode(), err)
	}
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	if code := c.code(t); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// C11: killed after the job ended and before its completion was acknowledged. The outcome arrives once, and the job isn't run again.
func TestOutcomeSurvivesAKill(t *testing.T) {
	h := newHost(t, "handlers: [{type: shell}]\n").linked(t)
	c := start(t, "", "run", "--config", h.config)
	ran := filepath.Join(t.TempDir(), "ran")
	h.cut.Store(new("/complete"))
	id := h.submit(t, adminclient.Submission{}, "echo x >> "+ran+"; echo n=1; exit 7")
	h.status(t, func(st agent.Status) bool { return st.Reporting == 1 })
	for range 3 { // and again at each restart
		if err := c.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-c.done
		c = start(t, "", "run", "--config", h.config)
		h.status(t, polling)
	}
	h.cut.Store(nil)
	job := h.job(t, id, func(j adminclient.Job) bool { return j.Settled() && j.Last().LogsComplete })
	text, err := os.ReadFile(ran)
	if err != nil || string(text) != "x\n" || len(job.Attempts) != 1 {
		t.Errorf("ran %d times (%v) in %d attempts, want once", len(text)/2, err, len(job.Attempts))
	}
	if at := job.Last(); at.State != "failed" || at.ExitCode != 7 || *at.LogRecords != 1 {
		t.Errorf("attempt %+v, want failed with 7 and one record", at)
	}
}
