package controlplane

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

func TestFirstHeartbeatAccepts(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		job := e.submit(nil)
		j := a.lease()
		r := a.on(j, "heartbeat?waitMs=0", map[string]any{"spooledBytes": 77, "oldestUnshippedMs": 5}).want(t, 200, "")
		want := `{"leaseTtlMs":10000,"heartbeatMs":3000,"cancel":null}`
		if string(r.body) != want || r.took != 0 {
			t.Errorf("answered %s after %v; want %s at once", r.body, r.took, want)
		}
		v := e.job(job.ID)
		if v.Status != store.Running || v.Attempts[0].State != store.AttemptRunning || v.Attempts[0].SpooledBytes != 77 {
			t.Errorf("job: %+v", v)
		}
	})
}

func TestHeartbeatIsHeldUpToAThirdOfTheTTL(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		e.submit(nil)
		j := a.start()
		for query, want := range map[string]time.Duration{
			"": 0, "?waitMs=0": 0, "?waitMs=1200": 1200 * time.Millisecond, "?waitMs=60000": 3333 * time.Millisecond,
			"?waitMs=99999999999999999999": 3333 * time.Millisecond,
		} {
			if r := a.on(j, "heartbeat"+query, nil).want(t, 200, ""); r.took != want {
				t.Errorf("%s: held for %v; want %v", query, r.took, want)
			}
		}
		for _, query := range []string{"?waitMs=-1", "?waitMs=1.5", "?waitMs=soon", "?waitMs="} {
			a.on(j, "heartbeat"+query, nil).want(t, 400, protocol.CodeInvalid)
		}
	})
}

// Heartbeats one after another keep a lease of 10 s for as long as they come, and each renews as it answers, too.
func TestHeldHeartbeatRenewsTwice(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		pass(time.Minute)
		e.submit(nil)
		j := a.start()
		pass(9 * time.Second)
		a.on(j, "heartbeat?waitMs=3000", nil).want(t, 200, "") // at 9 s and at 12 s
		pass(9 * time.Second)                                  // 21 s: only the second renewal carries this far
		a.on(j, "heartbeat?waitMs=0", nil).want(t, 200, "")
	})
}

func TestCancelAnswersAHeldHeartbeatAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		job := e.submit(map[string]any{"graceMs": 4000})
		j := a.start()
		answer := later(func() reply { return a.on(j, "heartbeat?waitMs=3000", nil) })
		pass(time.Second)
		v := into[JobView](t, e.admin("POST", "jobs/"+job.ID+"/cancel", map[string]any{"reason": "not needed"}).want(t, 202, ""))
		if !v.CancelRequested || v.Status != store.Running {
			t.Errorf("after the cancel: %+v", v)
		}
		r := (<-answer).want(t, 200, "")
		want := `{"leaseTtlMs":10000,"heartbeatMs":3000,"cancel":{"reason":"not needed","graceMs":4000}}`
		if string(r.body) != want || r.took != time.Second {
			t.Errorf("answered %s after %v; want %s after 1s", r.body, r.took, want)
		}
		// After a cancel: at once, and the lease goes on. The first reason wins.
		e.admin("POST", "jobs/"+job.ID+"/cancel", map[string]any{"reason": "again"}).want(t, 202, "")
		for range 5 {
			r := a.on(j, "heartbeat?waitMs=3000", nil).want(t, 200, "")
			if string(r.body) != want || r.took != 0 {
				t.Errorf("answered %s after %v; want %s at once", r.body, r.took, want)
			}
			pass(8 * time.Second)
		}
		a.complete(j, protocol.Cancelled, 0).want(t, 200, "")
		if v := e.job(job.ID); v.Status != store.JobCancelled || v.Reason != "not needed" {
			t.Errorf("job: %+v", v)
		}
	})
}

func TestHeldHeartbeatEndsWithItsAttempt(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		e.submit(nil)
		j := a.start()
		answer := later(func() reply { return a.on(j, "heartbeat?waitMs=3000", nil) })
		pass(time.Second)
		a.complete(j, protocol.Succeeded, 0).want(t, 200, "")
		if r := (<-answer).want(t, 409, protocol.CodeLeaseLost); r.took != time.Second {
			t.Errorf("after %v; want 1s", r.took)
		}
	})
}

func TestHeldHeartbeatEndsWhenTheReaperComes(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		e.submit(nil)
		j := a.start()
		answer := later(func() reply { return a.on(j, "heartbeat?waitMs=3000", nil) })
		pass(time.Second)
		// The lease as another instance's clock sees it: over.
		e.mem.mu.Lock()
		e.mem.find(j.ID).ends = time.Now().Add(-time.Second)
		e.mem.mu.Unlock()
		if n, err := e.st.Reap(t.Context(), 10*time.Second); n != 1 || err != nil {
			t.Fatalf("reaped %d, %v; want 1", n, err)
		}
		if r := (<-answer).want(t, 409, protocol.CodeLeaseLost); r.took != time.Second {
			t.Errorf("after %v; want 1s", r.took)
		}
	})
}

func TestHeldHeartbeatEndsWithRevocation(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		e.submit(nil)
		j := a.start()
		answer := later(func() reply { return a.on(j, "heartbeat?waitMs=3000", nil) })
		pass(time.Second)
		e.admin("POST", "agents/"+a.id+"/revoke", nil).want(t, 200, "")
		if r := (<-answer).want(t, 403, protocol.CodeRevoked); r.took != time.Second {
			t.Errorf("after %v; want 1s", r.took)
		}
	})
}

// A client that went away renews nothing more: its next heartbeat has to.
func TestHeartbeatOfAClientThatWentAwayRenewsOnce(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		pass(time.Minute)
		e.submit(nil)
		j := a.start()
		ctx, cancel := context.WithCancel(t.Context())
		body := map[string]any{"attempt": j.Attempt, "leaseToken": j.LeaseToken}
		gone := later(func() reply {
			return e.callCtx(ctx, "POST", "/agent/v1/jobs/"+j.ID+"/heartbeat?waitMs=3000", a.key, body)
		})
		pass(time.Second)
		cancel()
		<-gone
		synctest.Wait()
		e.mem.mu.Lock()
		ends := e.mem.find(j.ID).ends
		e.mem.mu.Unlock()
		if left := time.Until(ends); left != 9*time.Second {
			t.Errorf("lease ends in %v; want 9s: ten from the arrival", left)
		}
	})
}

func TestHeartbeatThatIsNotForALiveLease(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a, b := e.agent(nil), e.agent(nil)
		e.submit(nil)
		j := a.start()
		for name, tc := range map[string]struct {
			a    *agent
			id   string
			with map[string]any
			code protocol.Code
		}{
			"wrong token":            {a, j.ID, map[string]any{"leaseToken": "nonsense"}, protocol.CodeLeaseLost},
			"empty token":            {a, j.ID, map[string]any{"leaseToken": ""}, protocol.CodeLeaseLost},
			"another agent's":        {b, j.ID, nil, protocol.CodeLeaseLost},
			"an attempt never made":  {a, j.ID, map[string]any{"attempt": 99}, protocol.CodeLeaseLost},
			"attempt 0":              {a, j.ID, map[string]any{"attempt": 0}, protocol.CodeLeaseLost},
			"unknown job":            {a, "job_x", nil, protocol.CodeNotFound},
			"what can't be a job id": {a, "job.x", nil, protocol.CodeNotFound},
		} {
			status := 409
			if tc.code == protocol.CodeNotFound {
				status = 404
			}
			other := j
			other.ID = tc.id
			for _, call := range []string{"heartbeat?waitMs=3000", "release"} {
				t.Log(name, call)
				tc.a.on(other, call, tc.with).want(t, status, tc.code)
			}
			done := map[string]any{"outcome": "failed", "logRecords": 0}
			maps.Copy(done, tc.with)
			tc.a.on(other, "complete", done).want(t, status, tc.code)
		}
		a.on(j, "heartbeat", nil).want(t, 200, "")
	})
}

// A busy server stretches its TTL, and every answer says so.
func TestPaceIsToldWithEveryAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		e.submit(nil)
		e.srv.SetPace(40*time.Second, 12*time.Second)
		j := a.lease()
		if j.LeaseTTL != 40_000 {
			t.Errorf("offer: leaseTtlMs %d; want 40000", j.LeaseTTL)
		}
		r := a.on(j, "heartbeat?waitMs=60000", nil).want(t, 200, "")
		if want := `{"leaseTtlMs":40000,"heartbeatMs":12000,"cancel":null}`; string(r.body) != want || r.took != 13333*time.Millisecond {
			t.Errorf("%s after %v; want %s after 13.333s", r.body, r.took, want)
		}
		if l := a.linked(a.sendLink("", map[string]any{"start": false}).want(t, 200, "")).link; l.LeaseTTL != 40_000 || l.Heartbeat != 12_000 {
			t.Errorf("link: %+v", l)
		}
	})
}

func TestReaperWaitsOneTTLAfterAStart(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		job := e.submit(nil)
		a.start()
		e.mem.mu.Lock()
		e.mem.find(job.ID).ends = time.Now().Add(-time.Hour) // it ran out while there was no server
		e.mem.mu.Unlock()
		pass(9900 * time.Millisecond)
		if v := e.job(job.ID); v.Status != store.Running {
			t.Errorf("before one TTL: %s; want running", v.Status)
		}
		pass(200 * time.Millisecond)
		v := e.job(job.ID)
		if v.Status != store.Pending || v.Attempts[0].State != store.AttemptLost {
			t.Errorf("after one TTL: %s, %+v; want pending and lost", v.Status, v.Attempts)
		}
	})
}

func TestReaperSweepsWithinAQuarterOfTheTTL(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		pass(61 * time.Second)
		job := e.submit(nil)
		a.start()
		pass(12500*time.Millisecond + time.Millisecond)
		if v := e.job(job.ID); v.Attempts[0].State != store.AttemptLost {
			t.Errorf("attempt is %s after TTL × 1.25; want lost", v.Attempts[0].State)
		}
	})
}

// A simulated outage of 20 s ends no lease, nor does the TTL after it in which agents find back.
func TestRestSparesLeases(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		pass(time.Minute)
		job := e.submit(nil)
		j := a.start()
		e.srv.Rest(20 * time.Second)
		pass(29 * time.Second)
		if v := e.job(job.ID); v.Status != store.Running {
			t.Errorf("within the rest: %s; want running", v.Status)
		}
		a.on(j, "heartbeat", nil).want(t, 200, "")
		pass(15 * time.Second)
		if v := e.job(job.ID); v.Status != store.Pending {
			t.Errorf("after the rest and a TTL without a heartbeat: %s; want pending", v.Status)
		}
	})
}
