package network

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentd/agent"
	"agentd/controlplane-mock/adminclient"
	"agentd/controlplane-mock/faults"
	"agentd/test/netns"
	"agentd/test/stack"
)

// patience bounds a wait for what should take seconds: the machine may be busy with ten other things.
const patience = 3 * time.Minute

// look is how often a test looks again whether what it waits for has happened.
const look = 250 * time.Millisecond

func soak() bool { return os.Getenv("AGENTD_SOAK") != "" }

// world is a control plane and an agent, the real ones, with a folder in which jobs leave traces.
type world struct {
	*stack.Stack
	dir string
}

// config is the agent's; at a test's end it waits for nothing.
const config = "max_jobs: 4\ncgroup: off\ninsecure: true\ndrain: {timeout: 1s, grace: 1s, flush: 1s}\nhandlers: [{type: shell, grace: 1s}]\n"

// begin starts the control plane, and the agent unless cfg says otherwise.
func begin(t *testing.T, cfg stack.Config) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "net") //nolint:usetesting // a socket's path must be short, and TempDir's has the test's name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range []string{"agentd.log", "controlplane.log", "proxy.log"} {
				t.Logf("%s:\n%s", name, read(filepath.Join(dir, name)))
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	cfg.Bin, cfg.Dir = binaries.Dir(t), dir
	cfg.Config = config + cfg.Config
	s, err := stack.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return &world{Stack: s, dir: dir}
}

// afar is begin with the agent at the far end of a link.
func afar(t *testing.T, cfg stack.Config) (*world, *netns.Link) {
	t.Helper()
	if why := netns.Missing(); why != "" {
		t.Skip(why)
	}
	link, err := netns.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := link.Close(); err != nil {
			t.Error(err)
		}
	})
	cfg.Host, cfg.AgentVia = link.Near, link.Enter()
	return begin(t, cfg), link
}

func read(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(b)
}

// agentLog is what the agent has logged so far.
func (w *world) agentLog() string { return read(filepath.Join(w.dir, "agentd.log")) }

// await waits until done says yes; what names it in the failure.
func await[T any](t *testing.T, what string, get func() (T, error), done func(T) bool) T {
	t.Helper()
	tick := time.NewTicker(look)
	defer tick.Stop()
	over := time.NewTimer(patience)
	defer over.Stop()
	for {
		v, err := get()
		if err == nil && done(v) {
			return v
		}
		select {
		case <-over.C:
			t.Fatalf("%s: not within %v: %+v (%v)", what, patience, v, err)
		case <-t.Context().Done():
			t.Fatalf("%s: %v", what, t.Context().Err())
		case <-tick.C:
		}
	}
}

func (w *world) job(t *testing.T, id, what string, done func(adminclient.Job) bool) adminclient.Job {
	t.Helper()
	return await(t, "job "+id+" "+what, func() (adminclient.Job, error) { return w.Admin.Job(t.Context(), id) }, done)
}

func (w *world) status(t *testing.T, what string, done func(agent.Status) bool) agent.Status {
	t.Helper()
	return await(t, "agent "+what, func() (agent.Status, error) { return w.Status(t.Context()) }, done)
}

// submit hands in a shell job.
func (w *world) submit(t *testing.T, s adminclient.Submission, script string) string {
	t.Helper()
	s.Type = "shell"
	s.Payload, _ = json.Marshal(map[string]string{"script": script}) //nolint:errchkjson // strings only
	job, _, err := w.Admin.Submit(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return job.ID
}

// once: a second attempt would show.
var once = adminclient.Submission{MaxAttempts: 1}

func running(j adminclient.Job) bool { return j.Status == "running" }

// complete: it has ended, and so has its log.
func complete(j adminclient.Job) bool {
	return j.Settled() && j.Last() != nil && j.Last().LogsComplete
}

// used counts the attempts that cost the job one.
func used(j adminclient.Job) int {
	n := 0
	for _, a := range j.Attempts {
		if a.State != "lapsed" && a.State != "released" {
			n++
		}
	}
	return n
}

// count is a script that prints n=1 to n=N, one every pause.
func count(n int, pause string) string {
	return fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo n=$i; sleep %s; done", n, pause)
}

// wantOnce checks that the job succeeded with one attempt used, and the oracle for its last one.
func (w *world) wantOnce(t *testing.T, id string, lines int) {
	t.Helper()
	job := w.job(t, id, "ends", complete)
	if job.Status != "succeeded" || used(job) != 1 {
		t.Errorf("job %s is %s (%s) with %d attempts used, want succeeded with 1: %+v", id, job.Status, job.Reason, used(job), job.Attempts)
	}
	w.oracle(t, job, job.Last().Number, lines)
}

// oracle: the log is exactly n=1 to n=N.
func (w *world) oracle(t *testing.T, job adminclient.Job, attempt int64, lines int) {
	t.Helper()
	n := 0
	line := "" // joined of parts: what waits a second for its end ships without
	for r, err := range w.Admin.Logs(t.Context(), job.ID, adminclient.LogOptions{Attempt: attempt}) {
		if err != nil {
			t.Fatal(err)
		}
		if line += r.Text; r.Part {
			continue
		}
		n++
		if word, _, _ := strings.Cut(line, " "); word != fmt.Sprintf("n=%d", n) {
			t.Fatalf("job %s attempt %d: line %d is %q (record %+v)", job.ID, attempt, n, line, r)
		}
		line = ""
	}
	if n != lines {
		t.Fatalf("job %s attempt %d: %d lines arrived, want %d", job.ID, attempt, n, lines)
	}
}

func (w *world) fault(t *testing.T, rules ...faults.Rule) {
	t.Helper()
	if err := w.Admin.SetFaults(t.Context(), rules); err != nil {
		t.Fatal(err)
	}
}

// reachable says whether a server answers at url, whatever it says.
func reachable(ctx context.Context, url string) (bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
	if err != nil {
		return false, err
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return false, err
	}
	return resp.StatusCode == http.StatusOK, resp.Body.Close()
}

// after waits for d, which is part of the trial ("blocked for 12 s"), not a guess at how long something takes.
func after(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}
