package storetest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

// RunModel holds the store against the rules under random interleavings of every call on jobs, with
// restarts and time passing: never two holders of one job, never a settled job unsettled
// but by a retry, never an ended attempt that changes, never a job without a next step.
func RunModel(t *testing.T, target Target) {
	t.Helper()
	checks := "25" // of 30 calls each
	if os.Getenv("AGENTD_SOAK") != "" {
		checks = "1000"
	}
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue { // nobody asked for another number
		if err := f.Value.Set(checks); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Value.Set(f.DefValue) })
	}
	body := func(t *testing.T) {
		e := newEnv(t, target) // one store for all rounds: each has jobs of its own
		rapid.Check(noDeadline{t}, func(rt *rapid.T) { newModel(rt, e).round() })
	}
	if target.Pass != nil {
		body(t)
		return
	}
	synctest.Test(t, body)
}

// noDeadline hides the test's deadline, which is real time, from rapid in its bubble.
type noDeadline struct{ *testing.T }

// holder is what an agent believes of an attempt that it has accepted.
type holder struct {
	ref     store.Ref
	trusted time.Time // until then it may run the job
}

type model struct {
	*rapid.T
	e       *env
	jobs    []string
	refs    []store.Ref // every offer ever made
	holders map[string][]holder
	last    map[string]store.Job // as last seen
	retried map[string]bool      // since then
	polls   int
}

func newModel(rt *rapid.T, e *env) *model {
	return &model{T: rt, e: e, holders: map[string][]holder{}, last: map[string]store.Job{}, retried: map[string]bool{}}
}

func (m *model) round() {
	for range rapid.IntRange(1, 3).Draw(m.T, "jobs") {
		m.submit()
	}
	m.Repeat(map[string]func(*rapid.T){
		"":         func(*rapid.T) { m.check() },
		"lease":    m.with(m.lease),
		"again":    m.with(m.lease),
		"accept":   m.onRef(m.renew),
		"renew":    m.onRef(m.renew),
		"complete": m.onRef(m.complete),
		"release":  m.onRef(m.release),
		"cancel":   m.onJob(m.cancel),
		"retry":    m.onJob(m.retry),
		"reap":     m.with(m.reap),
		"pass":     m.with(func() { m.e.pass(rapid.Float64Range(0.1, 1.2).Draw(m.T, "ttls")) }),
		"restart": m.with(func() {
			if rapid.IntRange(0, 3).Draw(m.T, "really") == 0 { // it is slow
				m.e.restart()
			}
		}),
	})
	m.finish()
}

func (m *model) with(f func()) func(*rapid.T) { return func(*rapid.T) { f() } }

func (m *model) onRef(f func(store.Ref)) func(*rapid.T) {
	return func(*rapid.T) {
		if len(m.refs) > 0 {
			f(rapid.SampledFrom(m.refs).Draw(m.T, "ref"))
		}
	}
}

func (m *model) onJob(f func(string)) func(*rapid.T) {
	return func(*rapid.T) { f(rapid.SampledFrom(m.jobs).Draw(m.T, "job")) }
}

func (m *model) allow(err error, allowed ...error) {
	for _, a := range append(allowed, nil) {
		if errors.Is(err, a) {
			return
		}
	}
	m.Fatalf("got error %v, want one of %v", err, allowed)
}

func (m *model) submit() {
	m.e.jobs++
	n := store.NewJob{
		ID: fmt.Sprintf("job_m%d", m.e.jobs), Type: "x", Payload: []byte("{}"), MaxAttempts: rapid.IntRange(1, 3).Draw(m.T, "max"),
		RetryOn: rapid.SliceOfDistinct(rapid.SampledFrom([]protocol.Outcome{protocol.Lost, protocol.Failed, protocol.TimedOut}),
			rapid.ID[protocol.Outcome]).Draw(m.T, "retryOn"),
	}
	j, _, err := m.e.Submit(m.e.ctx, n)
	m.allow(err)
	m.jobs = append(m.jobs, n.ID)
	m.last[n.ID] = j
}

func (m *model) lease() {
	m.polls++
	agent := rapid.SampledFrom([]string{"a", "b"}).Draw(m.T, "agent")
	poll := fmt.Sprintf("%s %d", m.jobs[0], m.polls-rapid.IntRange(0, 1).Draw(m.T, "old poll"))
	pending := m.oldestPending()
	o, err := m.e.Lease(m.e.ctx, m.e.params(agent, poll))
	if errors.Is(err, store.ErrNoJob) {
		if pending != "" {
			m.Fatalf("no job for a poll, want %s", pending)
		}
		return
	}
	m.allow(err)
	r := ref(agent, o.Job.ID, o.Attempt)
	for _, old := range m.refs {
		if old == r {
			return // the same poll again
		}
		if old.JobID == r.JobID && old.Attempt == r.Attempt {
			m.Fatalf("attempt %d of %s was offered to %s and %s", r.Attempt, r.JobID, old.AgentID, agent)
		}
	}
	if o.Job.ID != pending {
		m.Fatalf("got %s, want the oldest pending job %s", o.Job.ID, pending)
	}
	m.refs = append(m.refs, r)
}

func (m *model) oldestPending() string {
	for _, id := range m.jobs {
		if m.last[id].Status == store.Pending {
			return id
		}
	}
	return ""
}

func (m *model) renew(r store.Ref) {
	sent := m.e.now()
	_, err := m.e.Renew(m.e.ctx, r, m.e.ttl, store.Beat{})
	m.allow(err, store.ErrLeaseLost)
	if err != nil {
		m.letGo(r)
		return
	}
	m.letGo(r)
	for _, h := range m.holders[r.JobID] {
		if m.e.now().Before(h.trusted) {
			m.Fatalf("%s: attempt %d has the lease while attempt %d may trust in its own", r.JobID, r.Attempt, h.ref.Attempt)
		}
	}
	m.holders[r.JobID] = append(m.holders[r.JobID], holder{r, sent.Add(m.e.ttl)})
}

// letGo says that r's agent knows that it doesn't have the lease.
func (m *model) letGo(r store.Ref) {
	kept := m.holders[r.JobID][:0]
	for _, h := range m.holders[r.JobID] {
		if h.ref != r {
			kept = append(kept, h)
		}
	}
	m.holders[r.JobID] = kept
}

func (m *model) complete(r store.Ref) {
	o := rapid.SampledFrom([]protocol.Outcome{protocol.Succeeded, protocol.Failed, protocol.Cancelled, protocol.TimedOut, protocol.Lost}).Draw(m.T, "outcome")
	err := m.e.complete(r, o)
	m.allow(err, store.ErrLeaseLost)
	m.letGo(r)
	if err == nil {
		m.allow(m.e.complete(r, o)) // repeated
		if a := m.attempt(r); a.State != store.AttemptState(o) || a.LogRecords == nil || *a.LogRecords != 5 {
			m.Fatalf("attempt %d of %s is %+v after %s was acknowledged", r.Attempt, r.JobID, a, o)
		}
	}
}

func (m *model) attempt(r store.Ref) store.Attempt {
	j, err := m.e.Job(m.e.ctx, r.JobID)
	m.allow(err)
	return j.Attempts[r.Attempt-1]
}

func (m *model) release(r store.Ref) {
	err := m.e.Release(m.e.ctx, r, "draining")
	m.allow(err, store.ErrLeaseLost)
	m.letGo(r)
	if err == nil {
		m.allow(m.e.Release(m.e.ctx, r, "draining"))
	}
}

func (m *model) cancel(id string) {
	before := m.last[id]
	j, err := m.e.Cancel(m.e.ctx, id, fmt.Sprint("reason ", len(m.refs)))
	m.allow(err)
	if before.Status.Settled() && !reflect.DeepEqual(before, j) {
		m.Fatalf("a cancel changed a settled job from %+v to %+v", before, j)
	}
	if before.CancelRequested && before.CancelReason != j.CancelReason {
		m.Fatalf("a second cancel's reason %q won over the first's %q", j.CancelReason, before.CancelReason)
	}
}

func (m *model) retry(id string) {
	before := m.last[id].Status
	_, err := m.e.Retry(m.e.ctx, id)
	want := error(nil)
	if !before.Settled() || before == store.JobSucceeded {
		want = store.ErrConflict
	}
	if !errors.Is(err, want) {
		m.Fatalf("a retry of a job that is %s: got %v, want %v", before, err, want)
	}
	m.retried[id] = err == nil
}

func (m *model) reap() {
	_, err := m.e.Reap(m.e.ctx, m.e.ttl)
	m.allow(err)
}

// check holds every job against what holds after every step.
func (m *model) check() {
	for _, id := range m.jobs {
		j, err := m.e.Job(m.e.ctx, id)
		m.allow(err)
		before := m.last[id]
		if before.Status.Settled() && before.Status != j.Status && !m.retried[id] {
			m.Fatalf("%s was settled as %s and is %s", id, before.Status, j.Status)
		}
		m.checkAttempts(before, j)
		m.last[id], m.retried[id] = j, false
	}
}

func (m *model) checkAttempts(before, j store.Job) {
	used, live := 0, (*store.Attempt)(nil)
	for i := range j.Attempts {
		a := &j.Attempts[i]
		if a.Number != int64(i+1) {
			m.Fatalf("%s: attempt %d has number %d", j.ID, i, a.Number)
		}
		if a.Accepted && a.State != store.AttemptReleased {
			used++
		}
		if !a.State.Over() {
			if i != len(j.Attempts)-1 {
				m.Fatalf("%s: attempt %d is %s and not the last", j.ID, a.Number, a.State)
			}
			live = a
		}
		if i < len(before.Attempts) && before.Attempts[i].State.Over() && before.Attempts[i].State != a.State {
			m.Fatalf("%s: attempt %d ended as %s and is %s", j.ID, a.Number, before.Attempts[i].State, a.State)
		}
	}
	want := map[store.Status]store.AttemptState{store.Offered: store.AttemptOffered, store.Running: store.AttemptRunning}[j.Status]
	if got := stateOf(live); got != want {
		m.Fatalf("%s is %s with a live attempt that is %q, want %q", j.ID, j.Status, got, want)
	}
	if j.Status == store.Pending && j.CancelRequested {
		m.Fatalf("%s is pending although its end was asked for", j.ID)
	}
}

func stateOf(a *store.Attempt) store.AttemptState {
	if a == nil {
		return ""
	}
	return a.State
}

// finish shows that each job has a next step: whatever is held ends by the reaper alone, and
// what is pending then can be leased, the oldest first, and settled.
func (m *model) finish() {
	m.check()
	m.e.pass(1.2)
	m.reap()
	m.check()
	for _, id := range m.jobs {
		if s := m.last[id].Status; s != store.Pending && !s.Settled() {
			m.Fatalf("%s is %s although its lease ran out", id, s)
		}
	}
	for id := m.oldestPending(); id != ""; id = m.oldestPending() {
		m.polls++
		o, err := m.e.Lease(m.e.ctx, m.e.params("c", fmt.Sprintf("%s end %d", m.jobs[0], m.polls)))
		m.allow(err)
		if o.Job.ID != id {
			m.Fatalf("got %s, want the oldest pending job %s", o.Job.ID, id)
		}
		m.allow(m.e.complete(ref("c", id, o.Attempt), protocol.Succeeded))
		m.check()
		if s := m.last[id].Status; s != store.JobSucceeded {
			m.Fatalf("%s is %s after its success", id, s)
		}
	}
}
