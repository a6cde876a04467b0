package trials

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
)

func (w *world) records(t *testing.T, id string) (all []adminclient.LogRecord) {
	t.Helper()
	for r, err := range w.Admin.Logs(t.Context(), id, adminclient.LogOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

func TestL9EndlessLine(t *testing.T) {
	t.Parallel()
	w := begin(t, logsSmall)
	size := scaled(30_000_000, 300_000_000)
	id := w.shell(t, fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; echo; seq 1 10", size))
	var most int64
	w.await(t, id, "the job's end and its whole log", func(j adminclient.Job) bool {
		most = max(most, w.anonymous(t))
		return over(j)
	})
	if limit := int64(150 << 20); most > limit {
		t.Errorf("the agent's own memory reached %d bytes, want at most %d", most, limit)
	}
	t.Logf("the agent's own memory reached %d bytes", most)
	got, parts, short := 0, 0, []string{}
	for _, r := range w.records(t, id) {
		switch {
		case strings.Trim(r.Text, "x") == "" && len(short) == 0:
			got += len(r.Text)
			if r.Part {
				parts++
			}
		default:
			short = append(short, r.Text)
		}
	}
	if got != size || parts < size>>16 {
		t.Errorf("%d bytes in %d parts, want %d in pieces of 64 KiB at most", got, parts, size)
	}
	if got, want := strings.Join(short, " "), "1 2 3 4 5 6 7 8 9 10"; got != want {
		t.Errorf("short lines %q, want %q", got, want)
	}
}

// anonymous is the agent's own memory in bytes; the queue file's mapping, whose size is set, is not in it.
func (w *world) anonymous(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.Agent.PID()))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(text, []byte("RssAnon:"))
	kb, err := strconv.ParseInt(string(bytes.Fields(rest)[0]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kb << 10
}

func TestL12LastLineIsThere(t *testing.T) {
	t.Parallel()
	w := begin(t, "max_jobs: 3\n")
	does := work{Lines: 250_000, Size: 200, Burst: 300, Both: true} // 50 MB
	flood := w.print(t, adminclient.Submission{}, &does)
	none := w.shell(t, "exit 0")
	open := w.shell(t, "printf 'one\\ntwo'")
	w.whole(t, w.ended(t, flood, "succeeded"), does)
	if at := w.ended(t, none, "succeeded").Last(); *at.LogRecords != 0 {
		t.Errorf("a silent job has %d records, want 0", *at.LogRecords)
	}
	w.ended(t, open, "succeeded")
	got := w.records(t, open)
	if len(got) != 2 || got[0].Text != "one" || got[0].EOF || got[1].Text != "two" || !got[1].EOF {
		t.Errorf("records %+v, want one, and two without its end", got)
	}
}

// Package exec has the five seconds by the letter; here the whole system is slower by a round trip or two.
func TestL13PipeLeftOpen(t *testing.T) {
	t.Parallel()
	w := begin(t, "max_jobs: 2\n"+logsSmall)
	began := time.Now()
	var ids, pids [2]string
	for i, child := range []string{"sleep 600", "while :; do echo more; sleep 1; done"} {
		pids[i] = filepath.Join(w.dir, fmt.Sprint("pid", i))
		ids[i] = w.shell(t, fmt.Sprintf("(%s) & echo $! > %s; echo done", child, pids[i]))
	}
	for i, id := range ids {
		w.ended(t, id, "succeeded")
		said, remarked := false, false
		for _, r := range w.records(t, id) {
			said = said || r.Text == "done"
			remarked = remarked || r.Stream == protocol.Remark && strings.Contains(r.Text, "kept the output open")
		}
		if !said || !remarked {
			t.Errorf("done is there: %v, the remark about the pipe: %v; want both", said, remarked)
		}
		text, err := os.ReadFile(pids[i])
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("the child lives on: %v", err)
		}
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("over after %v, want 5 s and a little", took)
	}
}
