package network

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentd/agent"
	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
	"agentd/controlplane-mock/faults"
	"agentd/test/stack"
)

// blocked is longer than the lease's 10 s (J2).
const blocked = 12 * time.Second

const (
	pollRoute      = "/agent/v1/jobs/next"
	heartbeatRoute = "/agent/v1/jobs/*/heartbeat"
	logRoute       = "/agent/v1/jobs/*/attempts/*/logs"
)

func (w *world) block(t *testing.T, route string) {
	w.fault(t, faults.Rule{Path: route, Mode: faults.Hang})
}

// J1: every second answer to a poll is lost after the server leased the job. Each job runs once and loses no attempt.
func TestLostPollAnswers(t *testing.T) {
	t.Parallel()
	jobs := 12
	if soak() {
		jobs = 200
	}
	w := begin(t, stack.Config{ServerArgs: []string{"--faults"}})
	w.fault(t, faults.Rule{Path: pollRoute, Mode: faults.DropResponse, Probability: new(0.5)})
	ids := make([]string, jobs)
	for i := range ids {
		ids[i] = w.submit(t, once, fmt.Sprintf("echo x >> %s/ran-%d; echo n=1", w.dir, i))
	}
	for i, id := range ids {
		w.wantOnce(t, id, 1)
		if got, want := read(fmt.Sprintf("%s/ran-%d", w.dir, i)), "x\n"; got != want {
			t.Errorf("job %d ran %d times, want once", i, len(got)/2)
		}
	}
	rules, err := w.Admin.Faults(t.Context())
	if err != nil || len(rules) != 1 || rules[0].Hits == 0 {
		t.Errorf("no answer was lost, so the trial shows nothing: %+v (%v)", rules, err)
	}
}

// J2: only the log route is blocked. The job's outcome is told at once, its log arrives afterwards, whole.
func TestOnlyTheLogRouteIsBlocked(t *testing.T) {
	t.Parallel()
	w := begin(t, stack.Config{ServerArgs: []string{"--faults"}})
	w.block(t, logRoute)
	began := time.Now()
	id := w.submit(t, once, count(30, "0.1"))
	job := w.job(t, id, "ends", adminclient.Job.Settled)
	if at := job.Last(); job.Status != "succeeded" || at.LogNext != 0 || at.LogRecords == nil || *at.LogRecords != 30 {
		t.Errorf("job %s, attempt %+v; want succeeded with 30 records to come", job.Status, at)
	}
	after(t, blocked-time.Since(began))
	w.fault(t)
	w.wantOnce(t, id, 30)
}

// J2: only the poll route is blocked. What runs goes on, and what waits starts when the route is back.
func TestOnlyThePollRouteIsBlocked(t *testing.T) {
	t.Parallel()
	w := begin(t, stack.Config{ServerArgs: []string{"--faults"}})
	first := w.submit(t, once, count(30, "0.5")) // 15 s: longer than the block
	w.job(t, first, "runs", running)
	w.block(t, pollRoute)
	began := time.Now()
	second := w.submit(t, once, count(1, "0"))
	after(t, blocked-time.Since(began))
	w.fault(t)
	w.wantOnce(t, second, 1)
	w.wantOnce(t, first, 30)
}

// J2: only the heartbeat route is blocked, for longer than the lease. A job that isn't exclusive goes on unless the
// reaper was faster than the first answer; an exclusive one is stopped in time, and its next attempt starts after that.
func TestOnlyTheHeartbeatRouteIsBlocked(t *testing.T) {
	t.Parallel()
	w := begin(t, stack.Config{ServerArgs: []string{"--faults"}})
	trace := filepath.Join(w.dir, "trace")
	shared := w.submit(t, adminclient.Submission{MaxAttempts: 2, Grace: new(protocol.Millis(1000))}, count(40, "0.5"))
	alone := w.submit(t, adminclient.Submission{MaxAttempts: 2, Grace: new(protocol.Millis(1000)), Exclusive: true}, fmt.Sprintf(
		`echo begin $AGENTD_ATTEMPT >> %[1]s; trap 'echo end $AGENTD_ATTEMPT >> %[1]s; exit 1' TERM
		[ -e %[1]s.again ] || { touch %[1]s.again; while :; do sleep 0.1; done; }; echo n=1; echo end $AGENTD_ATTEMPT >> %[1]s`, trace))
	w.job(t, shared, "runs", running)
	w.job(t, alone, "runs", running)
	w.block(t, heartbeatRoute)
	began := time.Now()
	// The report of its end goes out at once, by another route.
	job := w.job(t, alone, "is stopped", func(j adminclient.Job) bool { return j.Attempts[0].Over() })
	if at := job.Attempts[0]; at.State != "lost" || !strings.Contains(at.Error, "lease") {
		t.Errorf("exclusive: attempt 1 is %s (%q), want lost with the lease as the reason", at.State, at.Error)
	}
	after(t, blocked-time.Since(began))
	w.fault(t)

	job = w.job(t, alone, "ends", complete)
	last := job.Last()
	if want := fmt.Sprintf("begin 1\nend 1\nbegin %[1]d\nend %[1]d\n", last.Number); job.Status != "succeeded" || read(trace) != want {
		t.Errorf("exclusive: %s, and its attempts were %q, want %q", job.Status, read(trace), want)
	}
	w.oracle(t, job, last.Number, 1)
	job = w.job(t, shared, "ends", complete)
	if job.Status != "succeeded" || used(job) > 2 || used(job) == 2 && job.Attempts[0].State != "lost" {
		t.Errorf("not exclusive: %s, want succeeded by attempt 1, or by attempt 2 after the reaper: %+v", job.Status, job.Attempts)
	}
	w.oracle(t, job, job.Last().Number, 40)
}

// J8: the control plane is stopped and killed again and again. In between nginx answers 502 for it, and HAProxy 503.
func TestControlPlaneThatRestarts(t *testing.T) {
	t.Parallel()
	restarts := 5
	if soak() {
		restarts = 50
	}
	for name, p := range map[string]struct {
		proxy proxy
		says  string
	}{"nginx": {nginx, "502"}, "HAProxy": {haproxy, "503"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := behind(t, p.proxy, 0)
			var ids []string
			for i := range restarts {
				ids = append(ids, w.submit(t, once, fmt.Sprintf("echo x >> %s/ran-%d; %s", w.dir, i, count(20, "0.1"))))
				if i%2 == 0 { // the other half is hit while it is being offered
					w.job(t, ids[i], "runs", running)
				}
				if i%3 == 0 {
					if err := w.Server.Stop(patience); err != nil {
						t.Fatal(err)
					}
				} else if err := w.Server.Kill(); err != nil {
					t.Fatal(err)
				}
				w.Server = nil
				w.status(t, "notices", func(s agent.Status) bool { return s.Polls.Failing > 0 })
				if err := w.StartServer(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for i, id := range ids {
				w.wantOnce(t, id, 20)
				if got, want := read(fmt.Sprintf("%s/ran-%d", w.dir, i)), "x\n"; got != want {
					t.Errorf("job %d ran %d times, want once", i, len(got)/2)
				}
			}
			w.status(t, "is back", func(s agent.Status) bool { return s.Healthy && s.Running == 0 && s.Reporting == 0 })
			if log := w.agentLog(); !strings.Contains(log, p.says) {
				t.Errorf("the agent never saw a %s", p.says)
			}
		})
	}
}

// J11: jobs leased by an agent that never comes back are reaped, over a restart of the control plane too. (Its clock
// plays no part: TestReaperDoesNotReadTheClock.)
func TestAgentThatNeverComesBack(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%v", restart), func(t *testing.T) {
			t.Parallel()
			w := begin(t, stack.Config{ServerArgs: []string{"--lease-ttl", "3s"}})
			ids := make([]string, 3)
			for i := range ids {
				ids[i] = w.submit(t, once, "sleep 600")
			}
			for _, id := range ids {
				w.job(t, id, "runs", running)
			}
			err := w.Agent.Kill()
			w.Agent = nil
			if err != nil {
				t.Fatal(err)
			}
			if restart {
				if err := w.Server.Kill(); err != nil {
					t.Fatal(err)
				}
				w.Server = nil
				if err := w.StartServer(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for _, id := range ids {
				if job := w.job(t, id, "is reaped", adminclient.Job.Settled); job.Status != "failed" || job.Last().State != "lost" {
					t.Errorf("job %s is %s, its attempt %s; want failed and lost", id, job.Status, job.Last().State)
				}
			}
		})
	}
}
