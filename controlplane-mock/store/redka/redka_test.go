package redka_test

import (
	"crypto/sha256"
	"testing"

	"agentd/controlplane-mock/store/redka"
	"agentd/internal/testmain"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
	"time"
)

func TestMain(m *testing.M) { testmain.Run(m) }

func TestHappy(t *testing.T) {
	s, err := redka.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx := t.Context()
	key := sha256.Sum256([]byte("k"))
	tok := store.Sum(sha256.Sum256([]byte("t")))
	if err := s.PutToken(ctx, store.Token{Sum: tok, TTL: time.Hour, MaxUses: 1}); err != nil {
		t.Fatal(err)
	}
	l, err := s.Link(ctx, store.LinkParams{Token: &tok, NewAgentID: "a1", PublicKey: []byte("pub"), ProcessID: "p", Start: true, Key: key, KeyTTL: time.Hour, KeyOverlap: time.Minute})
	if err != nil || !l.First {
		t.Fatal(l, err)
	}
	if a, err := s.Authenticate(ctx, key); err != nil || a.Agent.ID != "a1" {
		t.Fatal(a, err)
	}
	j, created, err := s.Submit(ctx, store.NewJob{ID: "j1", Type: "x", Payload: []byte(`{"a": 1}`), Env: map[string]string{"A": "b"}, MaxAttempts: 3, RetryOn: []protocol.Outcome{"lost"}})
	if err != nil || !created || j.Status != store.Pending || string(j.Payload) != `{"a": 1}` {
		t.Fatal(j, err)
	}
	o, err := s.Lease(ctx, store.LeaseParams{AgentID: "a1", Types: []string{"x"}, PollID: "p1", TTL: time.Second, Token: func(string, int64) string { return "tok" }})
	if err != nil || o.Attempt != 1 || o.Job.Env["A"] != "b" {
		t.Fatal(o, err)
	}
	ref := store.Ref{JobID: "j1", Attempt: 1, Token: sha256.Sum256([]byte("tok")), AgentID: "a1"}
	for range 2 {
		if _, err := s.Renew(ctx, ref, time.Second, store.Beat{SpooledBytes: 5}); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := s.AppendLog(ctx, ref, store.LogBatch{Count: 5, Body: []byte("x"), Encoding: "gzip"}); err != nil || n != 5 {
		t.Fatal(n, err)
	}
	bs, err := s.ReadLog(ctx, "j1", 1, 0, 10)
	if err != nil || len(bs) != 1 || bs[0].Count != 5 || string(bs[0].Body) != "x" || bs[0].Encoding != "gzip" {
		t.Fatal(bs, err)
	}
	if err := s.Complete(ctx, ref, protocol.Completion{Outcome: "succeeded", LogRecords: 5, Result: []byte(`[1]`)}); err != nil {
		t.Fatal(err)
	}
	if j, err = s.Job(ctx, "j1"); err != nil || j.Status != store.JobSucceeded || !j.Attempts[0].LogsComplete() || string(j.Attempts[0].Result) != "[1]" {
		t.Fatal(j, err)
	}
}
