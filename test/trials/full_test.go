package trials

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentd/controlplane-mock/adminclient"
	"agentd/test/stack"
)

// onSmallDisk makes the state directory a file system of mib MiB.
func onSmallDisk(t *testing.T, mib string) func(dir string) {
	return func(dir string) {
		t.Helper()
		state := filepath.Join(dir, "state")
		if err := os.Mkdir(state, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", state, "tmpfs", 0, "mode=700,size="+mib+"m"); err != nil {
			t.Fatalf("NO tmpfs COULD BE MOUNTED, SO THE FULL DISK IS NOT TESTED (root is needed): %v", err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(state, 0); err != nil {
				t.Errorf("unmount: %v", err)
				_ = unix.Unmount(state, unix.MNT_DETACH)
			}
		})
	}
}

// fill takes what is left of the disk, as another process would.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 64<<10)
	for err == nil {
		_, err = f.Write(block)
	}
	return func() { _ = os.Remove(path) }
}

// The disk fills while the agent spills, first by itself, then by others to the last byte. Outcomes get through; when
// it is freed, everything goes on unaided.
func TestC7DiskFills(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"block", "drop_oldest"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			w := beginWith(t, stack.Config{
				Config:     "max_jobs: 3\nlogs: {memory: 4MiB, spool: {max_size: 1GiB, when_full: " + policy + "}}\n",
				ServerArgs: []string{"--lease-ttl", "60s"},
			}, onSmallDisk(t, "48"))
			w.faults(t, logsAway, logsAwayToo)
			does := work{Lines: 350_000, Size: 200, Burst: 100} // 70 MB, of which zstd leaves three quarters
			flood := w.print(t, adminclient.Submission{MaxAttempts: 1}, &does)
			goFile := filepath.Join(w.dir, "go")
			quiet := w.shell(t, "echo n=1; until [ -e "+goFile+" ]; do sleep 0.05; done; exit 7")
			w.await(t, quiet, "the quiet job runs", running)
			if policy == "block" {
				until(t, "the agent says that it is full", func() bool { return w.status(t).State == "full" })
				before := does.truth(t).Written
				pass(time.Second)
				if said := does.truth(t); said.Printed || said.Written-before > 1<<20 {
					t.Errorf("the job isn't held: %+v, a second ago %d", said, before)
				}
			} else {
				until(t, "the job is not held", func() bool { return does.truth(t).Printed })
			}
			free := fill(t, w.StateDir)
			if err := os.WriteFile(goFile, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if j := w.await(t, quiet, "the quiet job's outcome, on a full disk", adminclient.Job.Settled); j.Last().ExitCode != 7 {
				t.Errorf("%+v, want exit code 7", j.Last())
			}
			free()
			w.faults(t)
			j := w.ended(t, flood, "succeeded")
			w.ended(t, quiet, "failed")
			if policy == "block" {
				w.whole(t, j, does)
			} else {
				w.whatGapsLeave(t, j, does)
			}
			until(t, "the agent is well again", func() bool { return w.status(t).Healthy })
		})
	}
}

// whatGapsLeave checks a log of whole lines with gaps: every number is there once, and what isn't a gap is the line that
// belongs there.
func (w *world) whatGapsLeave(t *testing.T, j adminclient.Job, does work) {
	t.Helper()
	var next, lost int64
	var begun string
	afterGap := false // what follows a gap may be the rest of a line whose beginning is in it
	for _, r := range w.records(t, j.ID) {
		if r.N != next {
			t.Fatalf("record %d comes where %d is due", r.N, next)
		}
		next = r.Next()
		switch {
		case r.Gap > 0:
			if r.Reason != "spoolFull" {
				t.Errorf("gap of %d: %s", r.Gap, r.Reason)
			}
			lost += r.Gap
			begun, afterGap = "", true
		case r.Part: // a line that waited for its end for a second is two records
			begun += r.Text
		default:
			line := begun + r.Text + "\n"
			n, ok := numberOf(line)
			if !ok && !afterGap || ok && line != string(appendLine(nil, n, does.Size)) {
				t.Fatalf("record %d is %.80q, which the job didn't print", r.N, line)
			}
			begun, afterGap = "", false
		}
	}
	if lost == 0 || next < does.Lines {
		t.Errorf("%d records with %d lost, want at least %d with some lost", next, lost, does.Lines)
	}
	t.Logf("%d of %d records were given up", lost, next)
}
