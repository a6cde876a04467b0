package instances

import (
	"fmt"
	"strings"
	"testing"

	"agentd/controlplane-mock/adminclient"
	"agentd/controlplane-mock/faults"
)

const logsRoute = "/agent/v1/jobs/*/attempts/*/logs"

// shell is a job of agents that list the type shell.
func shell(script string) adminclient.Submission {
	return adminclient.Submission{Type: "shell", Payload: fmt.Appendf(nil, `{"script": %q}`, script)}
}

// text is what a job printed.
func (w *world) text(t *testing.T, id string) string {
	t.Helper()
	var b strings.Builder
	for r, err := range w.Admin.Logs(t.Context(), id, adminclient.LogOptions{Attempt: 1}) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Stream == "agent" && r.Gap == 0 {
			continue
		}
		if r.Gap > 0 {
			fmt.Fprintf(&b, "gap of %d: %s\n", r.Gap, r.Reason)
			continue
		}
		b.WriteString(r.Text)
		if !r.Part && !r.EOF {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// printed submits jobs that print numbered lines until enough requests were struck, and holds what arrived against them.
func printed(t *testing.T, enough int64, rules ...faults.Rule) {
	t.Helper()
	w := begin(t, "max_jobs: 2\nlogs: {memory: 4MiB, spool: {max_size: 64MiB, min_free: 0%}}\n")
	w.join(t)
	w.faults(t, rules...)
	lines := scaled(400, 40_000)
	script := fmt.Sprintf(`i=1; while [ $i -le %d ]; do echo "n=$i"; [ $((i %% 20)) = 0 ] && sleep 0.1; i=$((i+1)); done`, lines)
	var want strings.Builder
	for i := range lines {
		fmt.Fprintf(&want, "n=%d\n", i+1)
	}
	for round := 0; w.hits(t) < enough; round++ {
		var ids []string
		for n := range w.all {
			ids = append(ids, w.submit(t.Context(), t, shell(script), fmt.Sprint(round, " ", n)))
		}
		for _, id := range ids {
			j := w.ended(t, id)
			if got := w.text(t, id); j.Status != "succeeded" || len(j.Attempts) != 1 || got != want.String() {
				t.Fatalf("%s is %s after %d attempts; want a success in one. %d bytes arrived, want %d, each line once", id, j.Status, len(j.Attempts), len(got), want.Len())
			}
		}
	}
	t.Logf("%d requests were struck", w.hits(t))
}

func TestL1OneWriteInTwentyFails(t *testing.T) {
	t.Parallel()
	printed(t, 4,
		faults.Rule{Method: "POST", Path: logsRoute, Mode: faults.Reset, Probability: new(0.025)},
		faults.Rule{Method: "POST", Path: logsRoute, Mode: faults.DropResponse, Probability: new(0.0257)}) // of those that the first spared
}

func TestL2RepliesAreLost(t *testing.T) {
	t.Parallel()
	printed(t, 10, faults.Rule{Method: "POST", Path: logsRoute, Mode: faults.DropResponse, Probability: new(1.0 / 3)})
}

// The client waits 30 s. What one instance handles when it has left, another handled meanwhile.
func TestL3RepliesAreSlowerThanTheClientsTimeout(t *testing.T) {
	t.Parallel()
	printed(t, 1, faults.Rule{Method: "POST", Path: logsRoute, Mode: faults.Slow, Delay: 31_000, Count: 1})
}
