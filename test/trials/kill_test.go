package trials

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"agentd/controlplane-mock/adminclient"
	"agentd/controlplane-mock/faults"
)

var logsAway = faults.Rule{Path: logsRoute + "/**", Mode: faults.Reset}
var logsAwayToo = faults.Rule{Path: logsRoute, Mode: faults.Reset}

// The agent is killed every two seconds while jobs print and nothing is taken from it. Half of the time the whole
// control plane is away.
func TestC1KilledEveryTwoSeconds(t *testing.T) {
	t.Parallel()
	w := begin(t, "max_jobs: 3\nlogs: {memory: 4MiB, spool: {max_size: 256MiB, min_free: 0%}}\n", "--lease-ttl", "30s")
	w.faults(t, logsAway, logsAwayToo)
	var ids []string
	var all []work
	for round := range scaled(4, 60) {
		for range 3 {
			does := work{Size: 150, Burst: 10, Pause: 2}
			ids = append(ids, w.print(t, adminclient.Submission{MaxAttempts: 1}, &does))
			all = append(all, does)
		}
		for _, does := range all[len(all)-3:] {
			until(t, "the job prints", func() bool { return does.truth(t).Read > 0 })
		}
		away := round%2 == 1
		if away {
			w.out(t, faults.Refuse, false)
		}
		pass(2 * time.Second)
		w.killAgent(t)
		w.launch(t)
		if away {
			w.status(t)
			w.back(t)
		}
	}
	w.faults(t)
	for i, id := range ids {
		j := w.ended(t, id, "failed")
		if at := j.Last(); at.State != "lost" || len(j.Attempts) != 1 {
			t.Errorf("job %s: %+v; want one attempt, lost", id, j.Attempts)
		}
		w.cut(t, j, 1, all[i])
	}
}

// The agent is killed again while the control plane is still away, when what the first one had in memory is in the
// spool. Nothing is missing, and nothing is said to be.
func TestC1KilledAgainInTheSameOutage(t *testing.T) {
	t.Parallel()
	w := begin(t, logsSmall, "--lease-ttl", "30s")
	does := work{Size: 150, Burst: 10, Pause: 2}
	id := w.print(t, adminclient.Submission{MaxAttempts: 1}, &does)
	until(t, "the job prints", func() bool { return does.truth(t).Read > 0 })
	w.out(t, faults.Refuse, false)
	for range 3 {
		pass(300 * time.Millisecond)
		w.killAgent(t)
		w.launch(t)
		until(t, "what was in memory is spooled", func() bool { st := w.status(t).Logs; return st.Memory == 0 && st.Spool > 0 })
	}
	w.back(t)
	w.cut(t, w.ended(t, id, "failed"), 1, does)
}

// The agent is killed while it drains several epochs with all its requests under way.
func TestC6KilledWhileDraining(t *testing.T) {
	t.Parallel()
	w := begin(t, "max_jobs: 10\n"+logsSmall, "--lease-ttl", "60s")
	w.faults(t, logsAway, logsAwayToo)
	var ids [10]string
	var does [10]work
	var total int64
	for i := range ids {
		does[i] = work{Lines: scaled[int64](18_000, 24_000), Size: 200, Burst: 100, Both: true}
		ids[i] = w.print(t, adminclient.Submission{MaxAttempts: 1}, &does[i])
		total += does[i].Lines
	}
	for _, id := range ids {
		w.await(t, id, "the job's outcome", adminclient.Job.Settled)
	}
	var st struct {
		Epochs int `json:"Epochs"`
	}
	until(t, "three epochs wait", func() bool {
		out := w.agentd(t, "spool", "stat", "--json")
		if err := json.Unmarshal(out, &st); err != nil {
			t.Fatal(err)
		}
		return st.Epochs >= 3
	})
	w.faults(t, faults.Rule{Path: logsRoute, Mode: faults.Slow, Delay: 400})
	arrived := func() (n int64) {
		for _, id := range ids {
			j, err := w.Admin.Job(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			n += j.Last().LogNext
		}
		return n
	}
	for _, share := range []int64{1, total / 3, total / 2} {
		until(t, "the drain goes on", func() bool { return arrived() >= share })
		w.killAgent(t)
		w.launch(t)
	}
	w.faults(t)
	for i, id := range ids {
		w.whole(t, w.ended(t, id, "succeeded"), does[i])
	}
}

// The agent is stopped in an outage with a backlog: by SIGTERM, by a second one, and by a service manager that has
// one second of patience while the job still prints.
func TestC10StoppedInAnOutage(t *testing.T) {
	t.Parallel()
	size := scaled[int64](15e6, 200e6)
	w := begin(t, keeps(size), "--lease-ttl", "120s")
	for _, how := range []string{"SIGTERM", "two SIGTERM", "SIGTERM, SIGKILL after 1 s"} {
		id, does := w.backlog(t, size)
		switch how {
		case "SIGTERM":
			w.stopAgent(t)
		case "two SIGTERM":
			if err := w.Agent.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			until(t, "the agent stops", func() bool { st, err := w.Status(t.Context()); return err != nil || st.State == "stopping" })
			w.stopAgent(t)
		default:
			if err := w.Agent.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			pass(time.Second)
			w.killAgent(t)
		}
		w.agentd(t, "spool", "verify")
		w.launch(t)
		w.back(t)
		t.Logf("%s: %d bytes", how, size)
		w.whole(t, w.ended(t, id, "succeeded"), does)
	}
	does := work{Size: 200, Burst: 20, Pause: 2}
	id := w.print(t, adminclient.Submission{MaxAttempts: 1}, &does)
	until(t, "the job prints", func() bool { return does.truth(t).Read > 0 })
	w.out(t, faults.Refuse, false)
	pass(time.Second)
	if err := w.Agent.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	pass(time.Second)
	w.killAgent(t)
	w.agentd(t, "spool", "verify")
	w.launch(t)
	w.back(t)
	w.cut(t, w.ended(t, id, "failed"), 1, does)
}

// stopAgent sends SIGTERM and wants a clean exit.
func (w *world) stopAgent(t *testing.T) {
	t.Helper()
	if err := w.Agent.Stop(patience); err != nil {
		t.Error(err)
	}
	w.Agent = nil
}

// The reply to the completion is dropped, and the agent is killed after each.
func TestC11OutcomeArrivesOnce(t *testing.T) {
	t.Parallel()
	w := begin(t, logsSmall, "--lease-ttl", "60s")
	w.faults(t, faults.Rule{Method: "POST", Path: "/agent/v1/jobs/*/complete", Mode: faults.DropResponse})
	ran := filepath.Join(w.dir, "ran")
	id := w.shell(t, fmt.Sprintf("echo x >> %s; seq 1 1000; exit 7", ran))
	drops := scaled[int64](5, 50)
	for n := int64(1); n <= drops; n++ {
		until(t, "one more reply is dropped", func() bool { return w.hits(t)[0] >= n })
		w.killAgent(t)
		w.launch(t)
	}
	until(t, "the completion is sent again", func() bool { return w.hits(t)[0] > drops })
	w.faults(t)
	until(t, "the completion is acknowledged", func() bool { st := w.status(t); return st.Reporting == 0 && st.Running == 0 })
	j := w.ended(t, id, "failed")
	text, err := os.ReadFile(ran)
	if err != nil || string(text) != "x\n" || len(j.Attempts) != 1 {
		t.Errorf("ran %d times (%v) in %d attempts, want once in one", len(text)/2, err, len(j.Attempts))
	}
	if at := j.Last(); at.State != "failed" || at.ExitCode != 7 || *at.LogRecords != 1000 {
		t.Errorf("attempt %+v, want failed with 7 and a thousand records", at)
	}
}
