package postgres_test

import (
	"testing"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/postgres"
)

// testClock sets the database's clock (J11): far back, an abandoned lease ends all the same; far forward, one that is renewed
// does not.
func testClock(t *testing.T, c *cluster) {
	const ttl = time.Hour
	ctx := t.Context()
	url := c.schema(t)
	s := open(t, postgres.Config{URL: url})
	start := func(id string) store.Ref {
		t.Helper()
		n := store.NewJob{ID: id, Type: id, Payload: []byte("1"), MaxAttempts: 1, RetryOn: []protocol.Outcome{protocol.Lost}}
		if _, _, err := s.Submit(ctx, n); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Lease(ctx, store.LeaseParams{AgentID: "a", Types: []string{id}, PollID: id, TTL: ttl}); err != nil {
			t.Fatal(err)
		}
		return store.Ref{JobID: id, Attempt: 1, AgentID: "a"}
	}
	renew := func(r store.Ref) {
		t.Helper()
		if _, err := s.Renew(ctx, r, ttl, store.Beat{}); err != nil {
			t.Fatalf("renew %s: %v", r.JobID, err)
		}
	}
	reap := func() int {
		t.Helper()
		n, err := s.Reap(ctx, ttl)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	// sweeps reaps as often as a server does, for some TTLs, and answers how many leases that ended.
	sweeps := func(ttls int, renewed ...store.Ref) (n int) {
		t.Helper()
		for range 4 * ttls {
			for _, r := range renewed {
				renew(r)
			}
			n += reap()
			c.setClock(t, url, ttl/4)
			s.Skip(ttl / 4)
		}
		return n
	}
	kept, left := start("kept"), start("left")
	if n := sweeps(2, kept, left); n != 0 {
		t.Fatalf("%d leases that were renewed ended before anything happened", n)
	}
	const years = 365 * 24 * time.Hour
	for i, by := range []time.Duration{-20 * years, 20 * years, 20 * years} {
		c.setClock(t, url, by)
		if n, want := sweeps(3, kept), max(1-i, 0); n != want {
			t.Errorf("set by %v: %d leases ended, want those that nobody renews and no other", by, n)
		}
		log := store.Ref{JobID: "kept", Attempt: 1, AgentID: "a"}
		next, err := s.LogNext(ctx, log)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.AppendLog(ctx, log, line(next)); err != nil {
			t.Errorf("set by %v: append: %v", by, err)
		}
	}
	if n := sweeps(3); n != 1 {
		t.Errorf("%d leases ended at last, want 1", n)
	}
}
