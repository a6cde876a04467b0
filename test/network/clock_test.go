package network

import (
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/redka"
)

// ttl is the default of a lease.
const ttl = 10 * time.Second

// J11: between two starts the control plane's clock is set back by decades, and then forward again (a synctest
// bubble's time begins in the year 2000). Leases get their one TTL after the start each time, no more and no less.
func TestReaperDoesNotReadTheClock(t *testing.T) {
	dir := t.TempDir()
	with := func(t *testing.T, f func(store.Store)) {
		t.Helper()
		s, err := redka.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		f(s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	lease := func(t *testing.T, s store.Store, id string) {
		t.Helper()
		if _, _, err := s.Submit(t.Context(), store.NewJob{ID: id, Type: "x", Payload: []byte("{}"), MaxAttempts: 1, RetryOn: []protocol.Outcome{protocol.Lost}}); err != nil {
			t.Fatal(err)
		}
		o, err := s.Lease(t.Context(), store.LeaseParams{AgentID: "a", PollID: id, Types: []string{"x"}, TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Renew(t.Context(), store.Ref{JobID: id, Attempt: o.Attempt, AgentID: "a"}, ttl, store.Beat{}); err != nil {
			t.Fatal(err)
		}
	}
	reap := func(t *testing.T, s store.Store, when string, want int) {
		t.Helper()
		if got, err := s.Reap(t.Context(), ttl); err != nil || got != want {
			t.Errorf("%s: reaped %d (%v), want %d", when, got, err, want)
		}
	}
	with(t, func(s store.Store) { lease(t, s, "job_1") })
	synctest.Test(t, func(t *testing.T) {
		with(t, func(s store.Store) {
			reap(t, s, "set back, at the start", 0)
			<-time.After(ttl + time.Second)
			reap(t, s, "set back, a TTL later", 1)
			lease(t, s, "job_2")
		})
	})
	with(t, func(s store.Store) { reap(t, s, "set forward, at the start", 0) })
	synctest.Test(t, func(t *testing.T) {
		with(t, func(s store.Store) {
			<-time.After(ttl + time.Second)
			reap(t, s, "set back again, a TTL later", 1)
			for _, id := range []string{"job_1", "job_2"} {
				if job, err := s.Job(t.Context(), id); err != nil || job.Status != store.JobFailed {
					t.Errorf("%s is %s (%v), want failed", id, job.Status, err)
				}
			}
		})
	})
}
