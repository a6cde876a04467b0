package trials

import (
	"os"
	"strings"
	"testing"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
	"agentd/controlplane-mock/faults"
)

// The job is cancelled, or reaped, while 5 MB of its log are still at the agent.
func TestL4LateLogOfJobsThatAreOver(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"cancelled", "reaped"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := begin(t, "logs: {memory: 16MiB}\n", "--lease-ttl", "5s")
			w.faults(t, faults.Rule{Method: "POST", Path: logsRoute, Mode: faults.Status, Status: 503, Code: protocol.CodeUnavailable})
			does := work{Lines: 25_000, Size: 200, Burst: 100, Both: true, Wait: true}
			id := w.print(t, adminclient.Submission{MaxAttempts: 1, Grace: new(protocol.Millis(1000))}, &does)
			until(t, "all is printed", func() bool { return does.truth(t).Printed })
			status := "cancelled"
			if how == "cancelled" {
				if _, err := w.Admin.Cancel(t.Context(), id, "the trial says so"); err != nil {
					t.Fatal(err)
				}
			} else {
				status = "failed"
				w.out(t, faults.Refuse, true)
			}
			j := w.await(t, id, "the job's end", adminclient.Job.Settled)
			if at := j.Last(); at.LogNext != 0 {
				t.Errorf("%d records arrived before their time", at.LogNext)
			}
			w.faults(t)
			if how == "reaped" {
				w.back(t)
			}
			w.whole(t, w.ended(t, id, status), does)
			if n := w.complaints(t, id); n > 4 {
				t.Errorf("%d warnings about the attempt, want its end and the log's trouble once", n)
			}
		})
	}
}

// complaints counts the agent's warnings and errors about a job.
func (w *world) complaints(t *testing.T, id string) (n int) {
	t.Helper()
	text, err := os.ReadFile(w.Agent.Log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, id) && (strings.Contains(strings.ToLower(line), "warn") || strings.Contains(strings.ToLower(line), "error\t")) {
			t.Logf("the agent: %s", strings.TrimSpace(line))
			n++
		}
	}
	return n
}
