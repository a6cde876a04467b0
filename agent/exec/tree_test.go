package exec

import (
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentd/agent/protocol"
)

var errCancelled = errors.New("cancelled by a test")

// TestNothingOutlivesTheAttempt is architecture.md's promise, by the seven-process tree.
func TestNothingOutlivesTheAttempt(t *testing.T) {
	inEachMode(t, func(t *testing.T, r *Runner) {
		for _, c := range []struct {
			name string
			spec Spec
			end  func(*trial)
			want protocol.Outcome
		}{
			{"cancel", Spec{Grace: 5 * time.Second}, func(tr *trial) { tr.cancel(errCancelled) }, protocol.Cancelled},
			{"cancel without grace", Spec{}, func(tr *trial) { tr.cancel(errCancelled) }, protocol.Cancelled},
			{"timeout", Spec{Timeout: time.Second}, nil, protocol.TimedOut},
			{"main process killed", Spec{}, func(tr *trial) { // its shell, by somebody else
				below, _ := descendants(tr.proc.PID)
				syscall.Kill(below[0].pid, syscall.SIGKILL)
			}, protocol.Failed},
			{"supervisor killed", Spec{}, func(tr *trial) { syscall.Kill(tr.proc.PID, syscall.SIGKILL) }, protocol.Failed},
			{"supervisor stopped, cancel without grace", Spec{}, func(tr *trial) {
				syscall.Kill(tr.proc.PID, syscall.SIGSTOP)
				tr.cancel(errCancelled)
			}, protocol.Cancelled},
		} {
			t.Run(c.name, func(t *testing.T) {
				file := filepath.Join(t.TempDir(), "pids")
				c.spec.Command, c.spec.Env = []string{"sh", "-c", tree}, []string{"PIDS=" + file}
				r.cfg.PipeWait = 200 * time.Millisecond
				tr := begin(t, r, c.spec)
				if c.end != nil {
					awaitLines(t, file, 7)
					c.end(tr)
				}
				if res := tr.wait(); res.Outcome != c.want {
					t.Errorf("got %+v, want %s", res, c.want)
				}
				wantDead(t, awaitLines(t, file, 1)) // on a busy host a timeout may come before all seven are there
				wantNobody(t, tr.proc)
			})
		}
		wantNothingLeft(t, r)
	})
}

// P2: the agent is killed, alone and together with its shims; after its restart nothing is left.
func TestNothingOutlivesTheAgentsRestart(t *testing.T) {
	for _, mode := range modes {
		for _, c := range []struct {
			name string
			kill func(agent int, p Proc)
		}{
			{"agent killed", func(agent int, _ Proc) { syscall.Kill(agent, syscall.SIGKILL) }},
			{"agent and shim killed", func(agent int, p Proc) {
				syscall.Kill(p.PID, syscall.SIGSTOP) // so that it can't act in between
				syscall.Kill(agent, syscall.SIGKILL)
				syscall.Kill(p.PID, syscall.SIGKILL)
			}},
			{"agent killed, shim stopped", func(agent int, p Proc) {
				syscall.Kill(p.PID, syscall.SIGSTOP)
				syscall.Kill(agent, syscall.SIGKILL)
			}},
		} {
			t.Run(mode+", "+c.name, func(t *testing.T) {
				t.Parallel()
				r := newRunner(t, Config{Cgroup: mode})
				file := filepath.Join(t.TempDir(), "pids")
				cmd, p, _ := startAgent(t, r.cfg.WorkRoot, mode, tree, "PIDS="+file)
				pids := awaitLines(t, file, 7)
				c.kill(cmd.Process.Pid, p)
				cmd.Wait()
				swept := r.Sweep(t.Context(), []Proc{p})
				if len(swept) != 1 || swept[0].Err != nil || swept[0].Rebooted {
					t.Errorf("swept %+v, want one without error", swept)
				}
				wantDead(t, pids)
				wantNobody(t, p)
				wantNothingLeft(t, r)
			})
		}
	}
}

// Also when nobody restarts the agent: its death alone ends the job.
func TestAgentsDeathEndsTheJob(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			r := newRunner(t, Config{Cgroup: mode})
			file := filepath.Join(t.TempDir(), "pids")
			cmd, p, _ := startAgent(t, r.cfg.WorkRoot, mode, tree, "PIDS="+file)
			pids := awaitLines(t, file, 7)
			cmd.Process.Kill()
			cmd.Wait()
			if err := retry(time.Now().Add(5*time.Second), func() error {
				for _, pid := range append(pids, p.PID) {
					if s, err := readStat(pid); err == nil && !s.dead() {
						return fmt.Errorf("process %d is alive", pid)
					}
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
			r.Sweep(t.Context(), []Proc{p})
			wantNothingLeft(t, r)
		})
	}
}

func TestAgentKilledBeforeTheCommandRan(t *testing.T) {
	r := newRunner(t, Config{Cgroup: CgroupAuto})
	mark := filepath.Join(t.TempDir(), "ran")
	cmd := osexec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helper+"=agent", "WORK="+r.cfg.WorkRoot, "CGROUP=auto", "SCRIPT=touch "+mark, "DIE=started")
	cmd.Run()
	r.Sweep(t.Context(), nil) // the entry had not been written
	wantNothingLeft(t, r)
	if entries, _ := filepath.Glob(r.cg.base + "/job-*"); len(entries) > 0 {
		t.Errorf("cgroups left: %v", entries)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("the command ran without a go-ahead")
	}
}

// P1
func TestHandlerInABackgroundServerRuns(t *testing.T) {
	inEachMode(t, func(t *testing.T, r *Runner) {
		server := `trap 'sleep 0.2; echo cleaned up; exit 0' TERM; sleep 600 & echo ready; wait; echo not reached`
		tr := begin(t, r, Spec{Command: []string{"sh", "-c", `sh -c "$SERVER" & wait`}, Env: []string{"SERVER=" + server}, Grace: 5 * time.Second})
		tr.out.waitFor(t, "ready")
		tr.cancel(errCancelled)
		if res := tr.wait(); res.Outcome != protocol.Cancelled || !errors.Is(res.Cause, errCancelled) {
			t.Errorf("got %+v, want cancelled, and the cause", res)
		}
		if !strings.Contains(tr.out.text(), "cleaned up") {
			t.Errorf("output %q: the handler didn't run", tr.out.text())
		}
		if strings.Contains(tr.out.text(), "not reached") {
			t.Error("the handler didn't end the server")
		}
		wantNobody(t, tr.proc)
	})
}

// P3
func TestGracePeriodIsGivenAndEnforced(t *testing.T) {
	inEachMode(t, func(t *testing.T, r *Runner) {
		for _, c := range []struct {
			name, script       string
			grace, least, most time.Duration
			outcome            protocol.Outcome
			signal             string
		}{
			{"needs less", `trap 'sleep 0.8; echo done; exit 0' TERM; echo ready; while :; do sleep 0.05; done`, 10 * time.Second, 800 * time.Millisecond, 9 * time.Second, protocol.Succeeded, ""},
			{"ignores TERM", `trap '' TERM; echo ready; while :; do sleep 0.1; done`, time.Second, time.Second, 5 * time.Second, protocol.Cancelled, "SIGKILL"},
			{"stopped itself", `echo ready; kill -STOP $$`, 10 * time.Second, 0, 9 * time.Second, protocol.Cancelled, "SIGTERM"},
		} {
			t.Run(c.name, func(t *testing.T) {
				tr := begin(t, r, Spec{Command: []string{"sh", "-c", c.script}, GraceFor: func(cause error) time.Duration {
					if !errors.Is(cause, errCancelled) {
						t.Errorf("grace asked for cause %v", cause)
					}
					return c.grace
				}})
				tr.out.waitFor(t, "ready")
				start := time.Now()
				tr.cancel(errCancelled)
				res := tr.wait()
				if took := time.Since(start); took < c.least || took > c.most {
					t.Errorf("took %v, want %v to %v", took, c.least, c.most)
				}
				if res.Outcome != c.outcome || res.Signal != c.signal {
					t.Errorf("got %+v, want %s %s", res, c.outcome, c.signal)
				}
			})
		}
	})
}

func TestHurryEndsTheGracePeriod(t *testing.T) {
	r := newRunner(t, Config{Cgroup: CgroupOff})
	hurry := make(chan struct{})
	tr := begin(t, r, Spec{Command: []string{"sh", "-c", `trap '' TERM; echo ready; while :; do sleep 0.1; done`}, Grace: time.Hour, Hurry: hurry})
	tr.out.waitFor(t, "ready")
	close(hurry) // alone it ends nothing
	tr.cancel(errCancelled)
	if res := tr.wait(); res.Signal != "SIGKILL" {
		t.Errorf("got %+v, want SIGKILL", res)
	}
}

func TestStopSignalIsTheHandlers(t *testing.T) {
	r := newRunner(t, Config{Cgroup: CgroupOff})
	tr := begin(t, r, Spec{
		Command:    []string{"sh", "-c", `trap 'echo got INT; exit 0' INT; trap '' TERM; echo ready; while :; do sleep 0.05; done`},
		StopSignal: syscall.SIGINT, Grace: 5 * time.Second,
	})
	tr.out.waitFor(t, "ready")
	tr.cancel(errCancelled)
	tr.wait()
	if !strings.Contains(tr.out.text(), "got INT") {
		t.Errorf("output %q, want the INT handler's", tr.out.text())
	}
}

// P4: whatever the log traffic, of this attempt and of others.
func TestCancelArrivesWithinASecondOfAFlood(t *testing.T) {
	inEachMode(t, func(t *testing.T, r *Runner) {
		noisy := begin(t, r, Spec{JobID: "noisy", Command: []string{"sh", "-c", "yes"}})
		quiet := begin(t, r, Spec{JobID: "quiet", Command: []string{"sh", "-c", `trap 'date +%s%N; exit 1' TERM; echo ready; while :; do sleep 0.02; done`}, Grace: 5 * time.Second})
		quiet.out.waitFor(t, "ready")
		noisy.out.waitFor(t, "y")
		start := time.Now()
		quiet.cancel(errCancelled)
		quiet.wait()
		stamp, err := strconv.ParseInt(strings.TrimSpace(strings.TrimPrefix(quiet.out.text(), "ready")), 10, 64)
		if took := time.Unix(0, stamp).Sub(start); err != nil || took > time.Second {
			t.Errorf("TERM arrived after %v (%v), want at most 1s", took, err)
		}
		noisy.cancel(errCancelled)
		noisy.wait()
	})
}

// L13, by the letter once: five seconds.
func TestPipeLeftOpenHoldsTheAttemptForFiveSecondsAtMost(t *testing.T) {
	var trials []*trial
	for _, script := range []string{"sleep 600 & echo done", "while :; do echo more; sleep 1; done & echo done"} {
		for _, mode := range modes {
			trials = append(trials, begin(t, newRunner(t, Config{Cgroup: mode}), Spec{Command: []string{"sh", "-c", script}}))
		}
	}
	for i, tr := range trials { // all at once, since they only wait
		res := tr.wait()
		took := time.Since(res.FinishedAt) // of the main process
		if took < 3*time.Second || took > 5*time.Second {
			t.Errorf("%d: took %v, want 3s to 5s", i, took)
		}
		if res.Outcome != protocol.Succeeded || !strings.Contains(tr.out.text(), "done\n") || !tr.remarked("kept the output open") {
			t.Errorf("%d: got %+v, %q, remarks %q; want success and a remark", i, res, tr.out.text(), tr.remarks)
		}
		wantNobody(t, tr.proc)
	}
}

func TestPipeHeldFromOutsideTheTreeIsAbandoned(t *testing.T) {
	r := newRunner(t, Config{PipeWait: 200 * time.Millisecond, Cgroup: CgroupOff})
	// A process of this test takes the write end through /proc, as a container engine would be handed it.
	tr := begin(t, r, Spec{Command: []string{"sh", "-c", "echo $$; until [ -e go ]; do sleep 0.02; done; echo done"}})
	tr.out.waitFor(t, "\n")
	pid := strings.TrimSpace(tr.out.text())
	holder, err := os.OpenFile("/proc/"+pid+"/fd/1", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	if err := os.WriteFile(filepath.Join(tr.proc.WorkDir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	res := tr.wait()
	if res.Outcome != protocol.Succeeded || !tr.remarked("outside of the job") || !strings.Contains(tr.out.text(), "done") {
		t.Errorf("got %+v, %q, remarks %q; want success, all output, and a remark", res, tr.out.text(), tr.remarks)
	}
}

func TestBackgroundProcessesWithoutThePipeAreEndedAtOnce(t *testing.T) {
	inEachMode(t, func(t *testing.T, r *Runner) {
		r.cfg.PipeWait = 10 * time.Minute // which nothing here has a reason to wait for
		start := time.Now()
		res, tr := run(t, r, `setsid sleep 600 >/dev/null 2>&1 & (trap '' TERM; sleep 600) >/dev/null 2>&1 & exit 0`, Spec{})
		if took := time.Since(start); took > time.Minute {
			t.Errorf("took %v, want no waiting for a pipe that nobody holds", took)
		}
		if res.Outcome != protocol.Succeeded || !tr.remarked("in the background") {
			t.Errorf("got %+v, remarks %q; want success and a remark", res, tr.remarks)
		}
		wantNobody(t, tr.proc)
	})
}

func TestForkStormIsEnded(t *testing.T) {
	inEachMode(t, func(t *testing.T, r *Runner) {
		storm := `storm() { while :; do sleep 0.01 & done; }; storm & storm & echo ready; wait`
		tr := begin(t, r, Spec{Command: []string{"sh", "-c", storm}})
		tr.out.waitFor(t, "ready")
		tr.cancel(errCancelled)
		if res := tr.wait(); res.Remains || res.Outcome != protocol.Cancelled {
			t.Errorf("got %+v, want cancelled with nothing left", res)
		}
		wantNobody(t, tr.proc)
	})
}

// P5
func TestReusedPidIsNotTouched(t *testing.T) {
	r := newRunner(t, Config{Cgroup: CgroupOff})
	foreign := osexec.Command("sleep", "600")
	if err := foreign.Start(); err != nil {
		t.Fatal(err)
	}
	defer foreign.Wait()
	defer foreign.Process.Kill()
	s, err := readStat(foreign.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	boot, _ := readBootID()
	dir := filepath.Join(r.cfg.WorkRoot, "a-job_1-1-00000000")
	for _, c := range []struct {
		name string
		proc Proc
	}{
		{"another start time", Proc{PID: s.pid, StartTicks: s.startTicks - 1, BootID: boot, WorkDir: dir}},
		{"another boot", Proc{PID: s.pid, StartTicks: s.startTicks, BootID: "00000000-0000-0000-0000-000000000000", WorkDir: dir}},
	} {
		t.Run(c.name, func(t *testing.T) {
			swept := r.Sweep(t.Context(), []Proc{c.proc})
			if len(swept) != 1 || swept[0].Killed != 0 || swept[0].Err != nil || swept[0].Rebooted != (c.proc.BootID != boot) {
				t.Errorf("swept %+v, want nothing killed", swept)
			}
			if now, err := readStat(s.pid); err != nil || now.dead() {
				t.Errorf("the foreign process is %+v (%v), want it alive", now, err)
			}
		})
	}
}
