package network

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"agentd/agent"
	"agentd/controlplane-mock/adminclient"
	"agentd/test/netns"
	"agentd/test/stack"
)

// swallow makes the link drop every packet of the agent's present connections. Nobody is told.
func (w *world) swallow(t *testing.T, link *netns.Link) {
	t.Helper()
	ports, err := link.Connections(w.Agent.PID())
	if err != nil || len(ports) == 0 {
		t.Fatalf("the agent has no connections: %v (%v)", ports, err)
	}
	if err := link.Swallow(t.Context(), ports); err != nil {
		t.Fatal(err)
	}
}

// deafFor bounds how long a connection that leads nowhere may go unnoticed: 10 s of TCP_USER_TIMEOUT over its probes,
// a back-off, and the rest for a busy machine. Undetected, a poll would hang for its 30 s and 15 s more.
const deafFor = 25 * time.Second

// J3: the connections are black-holed right after a poll. The agent notices by itself and polls on a new one, and
// a job that the server had offered to the dead one isn't lost.
func TestBlackHoleAfterAPoll(t *testing.T) {
	t.Parallel()
	w, link := afar(t, stack.Config{})
	w.status(t, "holds a poll", func(s agent.Status) bool { return s.Polls.Wait > 0 && s.Polls.Count > 0 })
	w.swallow(t, link)
	began := time.Now()
	id := w.submit(t, once, count(1, "0")) // answers the dead poll
	w.job(t, id, "runs", func(j adminclient.Job) bool {
		return j.Last() != nil && j.Last().State != "offered" && j.Last().State != "lapsed"
	})
	took := time.Since(began)
	t.Logf("on a new connection after %v", took)
	if took > deafFor {
		t.Errorf("the agent was deaf for %v, want a new connection within %v", took, deafFor)
	}
	w.wantOnce(t, id, 1)
}

// J3: the same right after a heartbeat. The next one goes out on a fresh connection in time to keep the lease.
func TestBlackHoleAfterAHeartbeat(t *testing.T) {
	t.Parallel()
	w, link := afar(t, stack.Config{})
	id := w.submit(t, once, count(30, "0.5"))
	w.job(t, id, "runs", running)
	before := w.status(t, "beats", func(s agent.Status) bool { return s.Lateness.Count >= 2 })
	w.swallow(t, link)
	st := w.status(t, "beats again", func(s agent.Status) bool {
		return s.Lateness.Count > before.Lateness.Count && strings.Contains(w.agentLog(), "heartbeat was answered again")
	})
	t.Logf("the worst heartbeat was %v late", st.Lateness.Worst)
	if st.Lateness.Worst >= ttl {
		t.Errorf("a heartbeat was %v late, want less than the lease lives", st.Lateness.Worst)
	}
	w.wantOnce(t, id, 30)
	second := w.submit(t, once, count(1, "0")) // polls have found their way, too
	w.wantOnce(t, second, 1)
}

// J6: the upload of logs fills a link of 1 Mbit/s. Heartbeats come in time all the same, a cancel gets through, and the
// whole log arrives in the end.
func TestHeartbeatsOnASaturatedLink(t *testing.T) {
	t.Parallel()
	w, link := afar(t, stack.Config{Config: "logs: {memory: 8MiB}\n"})
	quiet := w.submit(t, once, "sleep 600")
	w.job(t, quiet, "runs", running)
	if err := link.Shape(t.Context(), "1mbit", 500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	// 90 bytes a line, of which random hex digits are nearly all: about 40 kB for each 1,000 lines, however compressed.
	const lines = 75_000
	flood := w.submit(t, once, fmt.Sprintf(
		`awk 'BEGIN { srand(1); for (i = 1; i <= %d; i++) { printf "n=%%d ", i; for (j = 0; j < 10; j++) printf "%%08x", rand() * 4294967296; print "" } }'`, lines))
	w.job(t, flood, "ships", func(j adminclient.Job) bool { return j.Last() != nil && j.Last().LogNext > 0 })

	before := w.status(t, "answers", func(agent.Status) bool { return true })
	began := time.Now()
	carried, err := link.Carried()
	if err != nil {
		t.Fatal(err)
	}
	// One of the quiet job every 3 s, and as many of the flood until its report has arrived.
	st := w.status(t, "beats on", func(s agent.Status) bool { return s.Lateness.Count >= before.Lateness.Count+5 })
	carriedThen, err := link.Carried()
	if err != nil {
		t.Fatal(err)
	}
	rate := float64(carriedThen-carried) * 8 / time.Since(began).Seconds()
	t.Logf("%.2f Mbit/s for %v, the worst heartbeat was %v late", rate/1e6, time.Since(began), st.Lateness.Worst)
	if rate < 0.7e6 {
		t.Errorf("the link carried %.2f Mbit/s meanwhile: it was not saturated, and the trial shows nothing", rate/1e6)
	}
	if st.Lateness.Worst >= 3*time.Second {
		t.Errorf("a heartbeat was %v late, want less than 3 s", st.Lateness.Worst)
	}
	asked := time.Now()
	if _, err := w.Admin.Cancel(t.Context(), quiet, "enough"); err != nil {
		t.Fatal(err)
	}
	job := w.job(t, quiet, "is cancelled", adminclient.Job.Settled)
	if took := time.Since(asked); job.Status != "cancelled" || took > 15*time.Second {
		t.Errorf("the quiet job is %s %v after its cancel, want cancelled at once", job.Status, took)
	}
	if job, err := w.Admin.Job(t.Context(), flood); err != nil || complete(job) {
		t.Errorf("the flood has arrived already (%v): the link was not saturated to the end", err)
	}
	if err := link.Unshape(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wantOnce(t, flood, lines)
}
