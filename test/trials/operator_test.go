package trials

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"agentd/controlplane-mock/adminclient"
)

// An operator's afternoon: the control plane is down, a job goes on printing; its log is looked at on the host, also
// after the agent was killed; then both come back, and the log is complete at the server.
func TestOperatorReadsOnTheHostDuringAnOutage(t *testing.T) {
	t.Parallel()
	w := begin(t, logsSmall, "--lease-ttl", "60s")
	does := work{Size: 100, Burst: 1, Pause: 5}
	id := w.print(t, adminclient.Submission{MaxAttempts: 1}, &does)
	w.await(t, id, "the first lines arrive", func(j adminclient.Job) bool { return j.Last() != nil && j.Last().LogNext > 0 })
	if err := w.Server.Kill(); err != nil {
		t.Fatal(err)
	}
	w.Server = nil

	lines := func() int64 {
		var list []struct {
			Job   string
			State string
			Lines int64
		}
		if err := json.Unmarshal(w.agentd(t, "spool", "ls", "--json"), &list); err != nil {
			t.Fatal(err)
		}
		for _, l := range list {
			if l.Job == id && l.State == "waiting" {
				return l.Lines
			}
		}
		return 0
	}
	until(t, "spool ls shows the job", func() bool { return lines() > 0 })
	first := lines()
	until(t, "spool ls shows more of it", func() bool { return lines() > first })

	// cat -f beside the running agent: it prints on while the job does.
	follow := exec.CommandContext(t.Context(), filepath.Join(w.Bin, "agentd"), "spool", "cat", "-f", id, "--config", w.ConfigFile)
	out, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	followed := bufio.NewReader(out)
	beginning := first + 300 // more than there was: some of it comes while it follows
	from := consecutive(t, followed, does, beginning)
	if err := follow.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_, _ = followed.WriteTo(new(bytes.Buffer))
	_ = follow.Wait() // ended by us

	// After the kill all is there that the agent had read, its last two seconds too.
	w.killAgent(t)
	until(t, "the job has ended", func() bool { return does.truth(t).Over })
	offline := w.agentd(t, "spool", "cat", id)
	n := int64(bytes.Count(offline, []byte("\n")))
	if again := consecutive(t, bufio.NewReader(bytes.NewReader(offline)), does, n); again != from {
		t.Errorf("the log begins with line %d after the kill, and did with %d before", again, from)
	}
	if read := does.truth(t).Read / int64(does.Size); from-1+n < read {
		t.Errorf("the log ends with line %d after the kill, and the agent had read %d", from-1+n, read)
	}
	if listed := lines(); listed != n {
		t.Errorf("spool ls says %d lines, cat prints %d", listed, n)
	}

	if err := w.StartServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.launch(t)
	w.cut(t, w.ended(t, id, "failed"), 1, does)
}

// consecutive reads n lines, wants them to follow one another, and returns the number of the first.
func consecutive(t *testing.T, r *bufio.Reader, does work, n int64) (from int64) {
	t.Helper()
	for k := range n {
		line, err := r.ReadBytes('\n')
		if err != nil {
			t.Fatalf("line %d of %d: %v", k, n, err)
		}
		if k == 0 {
			if _, err := fmt.Sscanf(string(line), "n=%d ", &from); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
		}
		if want := appendLine(nil, from+k, does.Size); !bytes.Equal(line, want) {
			t.Fatalf("line %d of %d is %q, want %q", k, n, line, want)
		}
	}
	return from
}
