// Package storetest is the suite that every Store passes: one test for each rule of
// store.Store and of protocol §2 to §4, named as the rule.
//
// A store that keeps its own time runs in a synctest bubble, where a TTL passes at once. One
// whose clock is a database's can't; its target says how that is moved on.
package storetest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

// Target is the store under test.
type Target struct {
	// Open opens a new, empty store that is closed at the test's end.
	Open func(t *testing.T) store.Store
	// Reopen closes s and opens what it kept, as a restart does. The new one is closed at the test's end.
	Reopen func(t *testing.T, s store.Store) store.Store
	// Pass makes the store believe that d has passed. Nil: its clock is the process's, and the tests run in a bubble.
	Pass func(t *testing.T, s store.Store, d time.Duration)
}

// Run runs the suite.
func Run(t *testing.T, target Target) {
	t.Helper()
	groups := []struct {
		name  string
		rules []rule
	}{
		{"jobs", jobRules}, {"leases", leaseRules}, {"ends", endRules}, {"reaper", reaperRules},
		{"logs", logRules}, {"links", linkRules}, {"keys", keyRules}, {"store", storeRules},
	}
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			if target.Pass != nil {
				t.Parallel()
			}
			for _, r := range g.rules {
				t.Run(r.name, func(t *testing.T) {
					if target.Pass != nil {
						t.Parallel()
						r.test(newEnv(t, target))
						return
					}
					synctest.Test(t, func(t *testing.T) { r.test(newEnv(t, target)) })
				})
			}
		})
	}
}

type rule struct {
	name string
	test func(e *env)
}

// env is one test's store and what its steps are made of. A step that fails ends the test.
type env struct {
	*testing.T
	store.Store
	target Target
	ctx    context.Context
	ttl    time.Duration
	jobs   int
	passed time.Duration // by Target.Pass
}

// now is the time as the store believes it to be.
func (e *env) now() time.Time { return time.Now().Add(e.passed) }

func newEnv(t *testing.T, target Target) *env {
	t.Helper()
	e := &env{T: t, Store: target.Open(t), target: target, ctx: t.Context(), ttl: 10 * time.Second}
	if target.Pass != nil {
		e.ttl = time.Hour // real time passes, too: what a busy machine takes is nothing beside it
	}
	return e
}

// pass lets n TTLs and a little pass.
func (e *env) pass(ttls float64) { e.wait(time.Duration(ttls*float64(e.ttl)) + e.ttl/20) }

// wait lets d pass.
func (e *env) wait(d time.Duration) {
	if e.target.Pass != nil {
		e.target.Pass(e.T, e.Store, d)
		e.passed += d
		return
	}
	<-time.After(d)
}

func (e *env) restart() {
	e.Helper()
	e.Store = e.target.Reopen(e.T, e.Store)
}

func (e *env) ok(err error) {
	e.Helper()
	if err != nil {
		e.Fatalf("got error %v, want none", err)
	}
}

func (e *env) wantErr(got, want error) {
	e.Helper()
	if !errors.Is(got, want) {
		e.Fatalf("got error %v, want %v", got, want)
	}
}

func equal[T comparable](e *env, what string, got, want T) {
	e.Helper()
	if got != want {
		e.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func sum(s string) store.Sum { return sha256.Sum256([]byte(s)) }

// submit makes a job of type x and answers its id; change may alter it first.
func (e *env) submit(change ...func(n *store.NewJob)) string {
	e.Helper()
	e.jobs++
	n := store.NewJob{
		ID: fmt.Sprintf("job_%d", e.jobs), Type: "x", Payload: []byte(`{"n": 1}`), MaxAttempts: 3,
		RetryOn: []protocol.Outcome{protocol.Lost}, Grace: 7 * time.Second,
	}
	n.BodySum = sum(n.ID)
	for _, f := range change {
		f(&n)
	}
	_, created, err := e.Submit(e.ctx, n)
	e.ok(err)
	equal(e, "created", created, true)
	return n.ID
}

func (e *env) params(agentID, pollID string) store.LeaseParams {
	return store.LeaseParams{AgentID: agentID, PollID: pollID, Types: []string{"x"}, TTL: e.ttl}
}

func ref(agentID, jobID string, attempt int64) store.Ref {
	return store.Ref{JobID: jobID, Attempt: attempt, AgentID: agentID}
}

// lease offers the job to agent a and answers the claim to it.
func (e *env) lease(jobID string) store.Ref {
	e.Helper()
	e.jobs++
	o, err := e.Lease(e.ctx, e.params("a", "poll "+strconv.Itoa(e.jobs)))
	e.ok(err)
	equal(e, "leased job", o.Job.ID, jobID)
	return ref("a", jobID, o.Attempt)
}

func (e *env) accept(r store.Ref) {
	e.Helper()
	_, err := e.Renew(e.ctx, r, e.ttl, store.Beat{})
	e.ok(err)
}

// start leases and accepts.
func (e *env) start(jobID string) store.Ref {
	e.Helper()
	r := e.lease(jobID)
	e.accept(r)
	return r
}

func (e *env) complete(r store.Ref, o protocol.Outcome) error {
	return e.Complete(e.ctx, r, protocol.Completion{Attempt: r.Attempt, Outcome: o, ExitCode: 3, LogRecords: 5})
}

func (e *env) reap(want int) {
	e.Helper()
	n, err := e.Reap(e.ctx, e.ttl)
	e.ok(err)
	equal(e, "reaped", n, want)
}

func (e *env) job(id string) store.Job {
	e.Helper()
	j, err := e.Job(e.ctx, id)
	e.ok(err)
	return j
}

// wantJob checks a job's state and those of all its attempts.
func (e *env) wantJob(id string, status store.Status, attempts ...store.AttemptState) store.Job {
	e.Helper()
	j := e.job(id)
	var got []store.AttemptState
	for _, a := range j.Attempts {
		got = append(got, a.State)
	}
	if j.Status != status || fmt.Sprint(got) != fmt.Sprint(attempts) {
		e.Fatalf("%s: got %s with attempts %v, want %s with %v", id, j.Status, got, status, attempts)
	}
	return j
}
