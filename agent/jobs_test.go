package agent

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
)

const ttl = 10 * time.Second

func count(n int) string {
	return fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo n=$i; done", n)
}

func TestOneJobEndToEnd(t *testing.T) {
	s := startServer(t, ttl)
	a := startAgent(t, s.config(t, 2))
	id := s.submit(t, adminclient.Submission{
		Payload: script(`echo "hello $NAME"; echo oops >&2; echo '{"rows":3}' > "$AGENTD_RESULT"; exit 3`),
		Env:     map[string]string{"NAME": "world"}, MaxAttempts: 1,
	})
	job := s.settled(t, id)
	at := job.Last()
	if job.Status != "failed" || at.State != "failed" || at.ExitCode != 3 || at.Number != 1 {
		t.Errorf("job %s, attempt %+v; want failed with 3", job.Status, at)
	}
	if string(at.Result) != `{"rows":3}` {
		t.Errorf("result %s, want rows 3", at.Result)
	}
	log := s.text(t, id)
	for _, want := range []string{"out:hello world\n", "err:oops\n"} {
		if !strings.Contains(log, want) {
			t.Errorf("log %q lacks %q", log, want)
		}
	}
	if at.LogRecords == nil || *at.LogRecords != 2 || at.LogNext != 2 {
		t.Errorf("logRecords %v, logNext %d; want 2 and 2", at.LogRecords, at.LogNext)
	}
	agents, err := s.admin.Agents(t.Context(), "", 10)
	if err != nil || len(agents.Items) != 1 || agents.Items[0].ID != a.Status().AgentID || agents.Items[0].Types[0] != "shell" {
		t.Errorf("agents %+v (%v), want this one with its type", agents.Items, err)
	}
}

func TestTwentyJobsSideBySide(t *testing.T) {
	s := startServer(t, ttl)
	startAgent(t, s.config(t, 20))
	ids := make([]string, 20)
	for i := range ids {
		ids[i] = s.submit(t, adminclient.Submission{Payload: script(count(2000))})
	}
	for _, id := range ids {
		if job := s.settled(t, id); job.Status != "succeeded" || len(job.Attempts) != 1 {
			t.Errorf("%s: %s (%s) after %d attempts, want succeeded after 1", id, job.Status, job.Reason, len(job.Attempts))
		}
		s.oracle(t, id, 1, 2000)
	}
}

func TestCancelReachesTheJob(t *testing.T) {
	s := startServer(t, ttl)
	startAgent(t, s.config(t, 1))
	id := s.submit(t, adminclient.Submission{Payload: script(`trap 'echo told; exit 9' TERM; echo ready; while :; do sleep 0.1; done`), Grace: new(protocol.Millis(5000))})
	s.await(t, id, func(j adminclient.Job) bool { return j.Last() != nil && j.Last().LogNext > 0 })
	asked := time.Now()
	if _, err := s.admin.Cancel(t.Context(), id, "enough"); err != nil {
		t.Fatal(err)
	}
	job := s.settled(t, id)
	if took := time.Since(asked); took > 3*time.Second {
		t.Errorf("the cancel took %v, want well within the grace period", took)
	}
	if at := job.Last(); job.Status != "cancelled" || at.State != "cancelled" || at.ExitCode != 9 || at.Error != "cancelled: enough" {
		t.Errorf("job %s, attempt %+v; want cancelled with the trap's 9", job.Status, at)
	}
	if log := s.text(t, id); !strings.Contains(log, "out:told\n") {
		t.Errorf("log %q, want what the handler of TERM printed", log)
	}
}

func TestTimedOutJob(t *testing.T) {
	s := startServer(t, ttl)
	startAgent(t, s.config(t, 1))
	id := s.submit(t, adminclient.Submission{Payload: script("sleep 60"), Timeout: 300, Grace: new(protocol.Millis(1000)), MaxAttempts: 1})
	if job := s.settled(t, id); job.Status != "timedOut" || job.Last().State != "timedOut" {
		t.Errorf("job %s, want timedOut", job.Status)
	}
}

// Every second reply but the heartbeats' is lost: each job runs once all the same (J1, C11, L2).
func TestLostRepliesRunNothingTwice(t *testing.T) {
	s := startServer(t, ttl)
	startAgent(t, s.config(t, 4))
	var n atomic.Int64
	s.gate.set(func(r *http.Request) trouble {
		if !strings.HasPrefix(r.URL.Path, "/agent/v1/jobs") || strings.HasSuffix(r.URL.Path, "/heartbeat") || n.Add(1)%2 == 0 {
			return none
		}
		return dropAnswer
	})
	ids := make([]string, 6)
	for i := range ids {
		ids[i] = s.submit(t, adminclient.Submission{Payload: script(count(50))})
	}
	for _, id := range ids {
		job := s.settled(t, id)
		if job.Status != "succeeded" {
			t.Errorf("%s: %s (%s), want succeeded", id, job.Status, job.Reason)
		}
		used := 0
		for _, at := range job.Attempts {
			if at.State != "lapsed" && at.State != "released" {
				used++
				s.oracle(t, id, at.Number, 50)
			}
		}
		if used != 1 {
			t.Errorf("%s: %d attempts used, want 1: %+v", id, used, job.Attempts)
		}
	}
}

// J2: one route is blocked for longer than the TTL, the others are well.
func TestOneRouteBlocked(t *testing.T) {
	const ttl = 2 * time.Second // so that 5 s are more than two of them
	block := func(match func(path string) bool, d time.Duration, s *server) {
		until := time.Now().Add(d)
		s.gate.set(func(r *http.Request) trouble {
			if match(r.URL.Path) && time.Now().Before(until) {
				return dropRequest
			}
			return none
		})
	}
	t.Run("logs", func(t *testing.T) {
		t.Parallel()
		s := startServer(t, ttl)
		startAgent(t, s.config(t, 1))
		block(func(p string) bool { return strings.HasSuffix(p, "/logs") }, 3*time.Second, s)
		id := s.submit(t, adminclient.Submission{Payload: script(count(100))})
		s.await(t, id, adminclient.Job.Settled) // the status goes out at once
		if job := s.settled(t, id); job.Status != "succeeded" || len(job.Attempts) != 1 {
			t.Errorf("job %s after %d attempts, want succeeded after 1", job.Status, len(job.Attempts))
		}
		s.oracle(t, id, 1, 100)
	})
	t.Run("polls", func(t *testing.T) {
		t.Parallel()
		s := startServer(t, ttl)
		startAgent(t, s.config(t, 2))
		first := s.submit(t, adminclient.Submission{Payload: script("sleep 3; echo n=1")})
		s.await(t, first, func(j adminclient.Job) bool { return j.Status == "running" })
		block(func(p string) bool { return strings.HasSuffix(p, "/next") }, 5*time.Second, s)
		second := s.submit(t, adminclient.Submission{Payload: script("echo n=1")})
		for _, id := range []string{first, second} {
			if job := s.settled(t, id); job.Status != "succeeded" || used(job) != 1 {
				t.Errorf("%s: %s after %d attempts, want succeeded after 1", id, job.Status, used(job))
			}
		}
	})
	t.Run("heartbeats", func(t *testing.T) {
		t.Parallel()
		s := startServer(t, ttl)
		startAgent(t, s.config(t, 1))
		id := s.submit(t, adminclient.Submission{Payload: script(`echo n=1; [ "$AGENTD_ATTEMPT" -gt 1 ] || sleep 20`), MaxAttempts: 2, Grace: new(protocol.Millis(500))})
		s.await(t, id, func(j adminclient.Job) bool { return j.Status == "running" })
		block(func(p string) bool { return strings.HasSuffix(p, "/heartbeat") }, 5*time.Second, s)
		job := s.await(t, id, func(j adminclient.Job) bool { return j.Attempts[0].Over() })
		if job.Attempts[0].State != "lost" {
			t.Errorf("attempt 1 is %s, want lost: its lease ran out", job.Attempts[0].State)
		}
		job = s.await(t, id, func(j adminclient.Job) bool { return j.Settled() && j.Attempts[0].LogsComplete })
		if job.Status != "succeeded" || job.Last().State != "succeeded" {
			t.Errorf("job %s (%s), want succeeded by a later attempt", job.Status, job.Reason)
		}
	})
}

func used(j adminclient.Job) int {
	n := 0
	for _, a := range j.Attempts {
		if a.State != "lapsed" && a.State != "released" {
			n++
		}
	}
	return n
}

// What waits when the agent stops ships when it starts again (C10), and an outcome that was never acknowledged arrives then (C11).
func TestStopInAnOutageAndStartAgain(t *testing.T) {
	s := startServer(t, ttl)
	cfg := s.config(t, 1)
	cfg.Drain = Drain{Timeout: time.Second, Flush: 200 * time.Millisecond, Grace: time.Second}
	a := startAgent(t, cfg)
	id := s.submit(t, adminclient.Submission{Payload: script(count(20000) + "; touch " + cfg.StateDir + "/printed; sleep 0.2"), MaxAttempts: 1})
	s.await(t, id, func(j adminclient.Job) bool { return j.Status == "running" })
	s.gate.set(func(r *http.Request) trouble {
		if strings.HasPrefix(r.URL.Path, "/agent/") && !strings.HasSuffix(r.URL.Path, "/heartbeat") {
			return dropRequest
		}
		return none
	})
	for a.Status().Reporting == 0 {
		select {
		case <-t.Context().Done():
			t.Fatal("the job never ended")
		case <-time.After(10 * time.Millisecond):
		}
	}
	a.stop()
	<-a.ended
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if n := a.unsettled(); n != 0 {
		t.Errorf("%d attempts are on the books of a stopped agent", n)
	}
	s.gate.set(nil)
	startAgent(t, cfg)
	job := s.settled(t, id)
	if job.Status != "succeeded" || len(job.Attempts) != 1 || job.Last().State != string(protocol.Succeeded) {
		t.Errorf("job %s after %d attempts, want succeeded after 1", job.Status, len(job.Attempts))
	}
	s.oracle(t, id, 1, 20000)
}

// An agent that dies between poll and accept costs the job no attempt, and no longer than a TTL (J11's harmless kin).
func TestOffersLapse(t *testing.T) {
	s := startServer(t, 2*time.Second)
	startAgent(t, s.config(t, 1))
	var blocked atomic.Bool
	blocked.Store(true)
	s.gate.set(func(r *http.Request) trouble {
		if strings.HasSuffix(r.URL.Path, "/heartbeat") && blocked.Load() {
			return dropRequest
		}
		return none
	})
	id := s.submit(t, adminclient.Submission{Payload: script("echo n=1"), MaxAttempts: 1})
	s.await(t, id, func(j adminclient.Job) bool { return len(j.Attempts) > 0 && j.Attempts[0].State == "lapsed" })
	blocked.Store(false)
	if job := s.settled(t, id); job.Status != "succeeded" || used(job) != 1 {
		t.Errorf("job %s, %d attempts used; want succeeded with the one that it may have", job.Status, used(job))
	}
}

// J8: the control plane restarts again and again, with 502 and 503 in between.
func TestRestartsOfTheControlPlane(t *testing.T) {
	restarts := 8
	if os.Getenv("AGENTD_SOAK") != "" {
		restarts = 50
	}
	s := startServer(t, ttl)
	a := startAgent(t, s.config(t, 3))
	ran := t.TempDir()
	var ids []string
	for i := range restarts {
		ids = append(ids, s.submit(t, adminclient.Submission{Payload: script(fmt.Sprintf("echo x >> %s/%d; %s; sleep 0.3", ran, i, count(20)))}))
		select {
		case <-time.After(time.Duration(i%5) * 50 * time.Millisecond):
		case <-t.Context().Done():
		}
		s.close(t)
		select {
		case <-time.After(200 * time.Millisecond):
		case <-t.Context().Done():
		}
		s.open(t)
	}
	for i, id := range ids {
		job := s.settled(t, id)
		if job.Status != "succeeded" || used(job) != 1 {
			t.Errorf("%s: %s after %d attempts, want succeeded after 1: %+v", id, job.Status, used(job), job.Attempts)
		}
		if text, err := os.ReadFile(fmt.Sprintf("%s/%d", ran, i)); err != nil || string(text) != "x\n" {
			t.Errorf("%s ran %d times (%v), want once", id, len(text)/2, err)
		}
		s.oracle(t, id, job.Last().Number, 20)
	}
	if st := a.Status(); !st.Healthy && st.Polls.Failing == 0 {
		t.Errorf("agent is %s: %v", st.State, st.Faults)
	}
}
