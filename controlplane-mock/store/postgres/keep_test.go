package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/postgres"
)

// testKeepLogs ages what is stored, and looks at what a start leaves of it.
func testKeepLogs(t *testing.T, c *cluster) {
	ctx := t.Context()
	url := c.schema(t)
	s := open(t, postgres.Config{URL: url})
	log := func(id string, first, end int64) {
		t.Helper()
		for n := first; n < end; n++ {
			if next, err := s.AppendLog(ctx, store.Ref{JobID: id, Attempt: 1, AgentID: "a"}, line(n)); err != nil || next != n+1 {
				t.Fatalf("%s: append %d: %d, %v", id, n, next, err)
			}
		}
	}
	for _, id := range []string{"old", "both", "new"} {
		if _, _, err := s.Submit(ctx, store.NewJob{ID: id, Type: "x", Payload: []byte("1"), MaxAttempts: 1}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Lease(ctx, store.LeaseParams{AgentID: "a", Types: []string{"x"}, PollID: id, TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	log("old", 0, 3)
	log("both", 0, 3)
	// 30 days and some hours: its day is not over for 30 days. 32 days: over.
	c.age(t, url, 30*24*time.Hour)
	log("new", 0, 3)
	log("both", 3, 5)

	check := func(when string, want map[string]string) {
		t.Helper()
		for id, want := range want {
			got, from := "", int64(0)
			for {
				batches, err := s.ReadLog(ctx, id, 1, from, 1<<20)
				if err != nil {
					t.Fatal(err)
				}
				if len(batches) == 0 {
					break
				}
				for _, b := range batches {
					got, from = got+string(b.Body), b.First+b.Count
				}
			}
			if got != want {
				t.Errorf("%s: the log of %s is %q, want %q", when, id, got, want)
			}
			if j, err := s.Job(ctx, id); err != nil || j.Attempts[0].LogNext != from {
				t.Errorf("%s: the log of %s goes to %d (%v), want %d", when, id, j.Attempts[0].LogNext, err, from)
			}
		}
	}
	reopen := func(keep time.Duration) {
		t.Helper()
		_ = s.Close()
		s = open(t, postgres.Config{URL: url, KeepLogs: keep})
	}
	whole := map[string]string{"old": "0\n1\n2\n", "both": "0\n1\n2\n3\n4\n", "new": "0\n1\n2\n"}
	check("at first", whole)
	reopen(0)
	check("kept for ever", whole)
	reopen(30 * 24 * time.Hour)
	check("not yet 30 days over", whole)
	c.age(t, url, 2*24*time.Hour)
	log("both", 5, 6) // nothing was lost of where it goes on
	whole["both"] += "5\n"
	check("aged", whole)
	reopen(30 * 24 * time.Hour)
	const gap = `{"s":"agent","gap":3,"reason":"expired"}` + "\n"
	check("dropped", map[string]string{"old": gap, "both": gap + "3\n4\n5\n", "new": "0\n1\n2\n"})
	log("old", 3, 4)
	check("after that", map[string]string{"old": gap + "3\n"})
}

// age makes everything in the logs that much older, in partitions of its own.
func (c *cluster) age(t *testing.T, url string, by time.Duration) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), "select distinct date_trunc('day', received - $1::interval, 'UTC') from logs", by)
	if err != nil {
		t.Fatal(err)
	}
	days, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
	if err != nil {
		t.Fatal(err)
	}
	for _, day := range days {
		const bound = "2006-01-02 00:00:00+00"
		c.exec(t, url, fmt.Sprintf("create table if not exists logs_%s partition of logs for values from ('%s') to ('%s')",
			day.UTC().Format("20060102"), day.UTC().Format(bound), day.UTC().AddDate(0, 0, 1).Format(bound)))
	}
	c.exec(t, url, "update logs set received = received - $1::interval", by)
}
