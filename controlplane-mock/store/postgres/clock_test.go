package postgres_test

import (
	"strings"
	"testing"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/postgres"
)

// testClock sets the database's clock (J11): far back, an abandoned lease ends all the same; far forward, one that is renewed
// does not. The clock is a function of the schema's own, which its search_path finds before PostgreSQL's.
func testClock(t *testing.T, c *cluster) {
	const ttl = 2 * time.Second
	ctx := t.Context()
	url := c.schema(t)
	name := url[strings.LastIndex(url, "=")+1:]
	url += ",pg_catalog"
	c.exec(t, url, "create table skew (by interval not null)")
	c.exec(t, url, "insert into skew values ('0')")
	c.exec(t, url, "create function "+name+".clock_timestamp() returns timestamptz language sql volatile as 'select pg_catalog.clock_timestamp() + by from "+name+".skew'")
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
			<-time.After(ttl / 4)
		}
		return n
	}
	kept, left := start("kept"), start("left")
	if n := sweeps(2, kept, left); n != 0 {
		t.Fatalf("%d leases that were renewed ended before anything happened", n)
	}
	for _, by := range []string{"-20 years", "0", "20 years"} {
		c.exec(t, url, "update skew set by = $1::text::interval", by)
		if n := sweeps(3, kept); by == "-20 years" && n != 1 || by != "-20 years" && n != 0 {
			t.Errorf("set to %s: %d leases ended, want those that nobody renews and no other", by, n)
		}
		log := store.Ref{JobID: "kept", Attempt: 1, AgentID: "a"}
		next, err := s.LogNext(ctx, log)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.AppendLog(ctx, log, line(next)); err != nil {
			t.Errorf("set to %s: append: %v", by, err)
		}
	}
	if n := sweeps(3); n != 1 {
		t.Errorf("%d leases ended at last, want 1", n)
	}
}
