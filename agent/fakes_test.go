package agent

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentd/agent/exec"
	"agentd/agent/identity"
	"agentd/agent/journal"
	"agentd/agent/protocol"
	"agentd/shipper"
)

// fakePlane is a control plane in memory, as far as one agent can tell: offers by poll id, leases, outcomes.
type fakePlane struct {
	mu       sync.Mutex
	changed  chan struct{}
	pending  []*protocol.Job
	offers   map[string]*protocol.Job // by poll id, until accepted
	accepted map[string]int           // by job/attempt
	attempt  map[string]int64         // by job: the last number
	done     map[string][]protocol.Completion
	released map[string]string // by job/attempt: the reason
	polls    []pollSeen
	cancels  map[string]*protocol.Cancel

	poll     func(n int, age time.Duration) error // nil error = serve; asked before a poll is served
	lose     func(n int) error                    // asked after a poll was served: the answer is lost
	beat     func(job string) error
	complete func(n int) error // asked after a completion was noted
	beats    int
	sent     int // completions
}

type pollSeen struct {
	at   time.Time
	id   string
	wait time.Duration
}

func newFakePlane() *fakePlane {
	return &fakePlane{
		changed: make(chan struct{}), offers: map[string]*protocol.Job{}, accepted: map[string]int{}, attempt: map[string]int64{},
		done: map[string][]protocol.Completion{}, released: map[string]string{}, cancels: map[string]*protocol.Cancel{},
	}
}

func (p *fakePlane) wakeLocked() { close(p.changed); p.changed = make(chan struct{}) }

func (p *fakePlane) submit(ids ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		p.pending = append(p.pending, &protocol.Job{ID: id, Type: "t", LeaseTTL: 10000, Grace: 1000, Payload: []byte("{}")})
	}
	p.wakeLocked()
}

var errCut = &protocol.Error{Op: "poll", Err: io.ErrUnexpectedEOF}

func (p *fakePlane) NextJob(ctx context.Context, r protocol.PollRequest) (*protocol.Job, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.polls)
	began := time.Now()
	p.polls = append(p.polls, pollSeen{began, r.PollID, r.Wait})
	for {
		if p.poll != nil {
			if err := p.poll(n, time.Since(began)); err != nil {
				return nil, err
			}
		}
		if job := p.offerLocked(r.PollID); job != nil {
			if p.lose != nil {
				if err := p.lose(n); err != nil {
					return nil, err
				}
			}
			return job, nil
		}
		left := r.Wait - time.Since(began)
		if left <= 0 {
			return nil, nil
		}
		changed := p.changed
		p.mu.Unlock()
		t := time.NewTimer(min(left, time.Second))
		select {
		case <-ctx.Done():
		case <-changed:
		case <-t.C:
		}
		t.Stop()
		p.mu.Lock()
		if ctx.Err() != nil {
			return nil, &protocol.Error{Op: "poll", Err: ctx.Err()}
		}
	}
}

func (p *fakePlane) offerLocked(pollID string) *protocol.Job {
	if job := p.offers[pollID]; job != nil {
		return job
	}
	if len(p.pending) == 0 {
		return nil
	}
	job := *p.pending[0]
	p.pending = p.pending[1:]
	p.attempt[job.ID]++
	job.Attempt = p.attempt[job.ID]
	job.LeaseToken = "token"
	p.offers[pollID] = &job
	return &job
}

func (p *fakePlane) Heartbeat(ctx context.Context, jobID string, wait time.Duration, r protocol.HeartbeatRequest) (protocol.Heartbeat, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.beats++
	if p.beat != nil {
		if err := p.beat(jobID); err != nil {
			return protocol.Heartbeat{}, err
		}
	}
	k := key(jobID, r.Attempt)
	if _, over := p.released[k]; over || p.attempt[jobID] != r.Attempt {
		return protocol.Heartbeat{}, leaseLost
	}
	p.accepted[k]++
	for id, job := range p.offers {
		if job.ID == jobID && job.Attempt == r.Attempt {
			delete(p.offers, id)
		}
	}
	end := time.Now().Add(wait)
	for p.cancels[jobID] == nil && time.Now().Before(end) {
		changed := p.changed
		p.mu.Unlock()
		t := time.NewTimer(time.Until(end))
		select {
		case <-ctx.Done():
		case <-changed:
		case <-t.C:
		}
		t.Stop()
		p.mu.Lock()
		if ctx.Err() != nil {
			return protocol.Heartbeat{}, &protocol.Error{Op: "heartbeat", Err: ctx.Err()}
		}
	}
	return protocol.Heartbeat{LeaseTTL: 10000, Heartbeat: 3000, Cancel: p.cancels[jobID]}, nil
}

func (p *fakePlane) FreshHeartbeats() {}

func (p *fakePlane) Complete(_ context.Context, jobID string, c protocol.Completion) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent++
	if all := p.done[jobID]; !slices.ContainsFunc(all, func(o protocol.Completion) bool { return o.Attempt == c.Attempt && o.Outcome == c.Outcome }) {
		p.done[jobID] = append(all, c)
	}
	if p.complete != nil {
		return p.complete(p.sent)
	}
	return nil
}

func (p *fakePlane) Release(_ context.Context, jobID string, r protocol.Release) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released[key(jobID, r.Attempt)] = r.Reason
	return nil
}

func (p *fakePlane) outcome(t *testing.T, jobID string) protocol.Completion {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.done[jobID]) != 1 {
		t.Fatalf("%s: %d outcomes %+v, want 1", jobID, len(p.done[jobID]), p.done[jobID])
	}
	return p.done[jobID][0]
}

func (p *fakePlane) pollsSeen() []pollSeen {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.polls)
}

var leaseLost = &protocol.Error{Op: "heartbeat", Status: 409, Code: protocol.CodeLeaseLost}

// fakeIdent is always linked, unless told otherwise.
type fakeIdent struct {
	mu       sync.Mutex
	state    identity.State
	reported []error
	info     identity.Info
	linked   func(protocol.Link)
	link     protocol.Link
}

func (i *fakeIdent) Run(ctx context.Context) error {
	i.linked(i.link)
	<-ctx.Done()
	return nil
}

func (i *fakeIdent) Status() identity.Status {
	i.mu.Lock()
	defer i.mu.Unlock()
	return identity.Status{AgentID: "agt_1", State: i.state, Words: "words"}
}

func (i *fakeIdent) Announce(info identity.Info) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.info = info
}

func (i *fakeIdent) Report(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.reported = append(i.reported, err)
	switch protocol.CodeOf(err) {
	case protocol.CodeRevoked:
		i.state = identity.Revoked
	case protocol.CodeIdentityConflict:
		i.state = identity.Conflict
	}
}

func (i *fakeIdent) set(s identity.State) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.state = s
}

// fakeJournal keeps entries in memory and notes the order of what happened.
type fakeJournal struct {
	mu      sync.Mutex
	entries []journal.Entry
	free    int
	events  []string
}

func (j *fakeJournal) find(jobID string, attempt int64) *journal.Entry {
	for i := range j.entries {
		if j.entries[i].JobID == jobID && j.entries[i].Attempt == attempt {
			return &j.entries[i]
		}
	}
	return nil
}

func (j *fakeJournal) note(format string, args ...any) {
	j.events = append(j.events, fmt.Sprintf(format, args...))
}

func (j *fakeJournal) Begin(e journal.Entry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.note("begin %s", e.JobID)
	j.entries = append(j.entries, e)
	return nil
}

func (j *fakeJournal) SetProc(jobID string, attempt int64, p journal.Proc, at time.Time) error {
	return j.change(jobID, attempt, func(e *journal.Entry) { e.Proc, e.StartedAt = p, at })
}

func (j *fakeJournal) SetLog(jobID string, attempt int64, l journal.LogState) error {
	return j.change(jobID, attempt, func(e *journal.Entry) { e.Log = l })
}

func (j *fakeJournal) SetCompletion(jobID string, attempt int64, c protocol.Completion) error {
	return j.change(jobID, attempt, func(e *journal.Entry) { e.Completion = &c; j.note("completion %s", jobID) })
}

func (j *fakeJournal) change(jobID string, attempt int64, f func(*journal.Entry)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := j.find(jobID, attempt)
	if e == nil {
		return journal.ErrNotFound
	}
	f(e)
	return nil
}

func (j *fakeJournal) Remove(jobID string, attempt int64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.note("remove %s", jobID)
	j.entries = slices.DeleteFunc(j.entries, func(e journal.Entry) bool { return e.JobID == jobID && e.Attempt == attempt })
	return nil
}

func (j *fakeJournal) Entries() []journal.Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.entries)
}

func (j *fakeJournal) Free() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.free
}

// fakeLogs takes everything.
type fakeLogs struct {
	mu        sync.Mutex
	full      string
	changed   chan struct{}
	recovered []shipper.Recovered
	final     []string
	flushed   atomic.Bool
	closed    atomic.Bool
	flush     func(context.Context) error
	refuse    error // Open's answer
}

func (l *fakeLogs) Run(ctx context.Context) error { <-ctx.Done(); l.closed.Store(true); return nil }
func (l *fakeLogs) Open(protocol.AttemptRef) (jobLog, error) {
	if l.refuse != nil {
		return nil, l.refuse
	}
	return &fakeLog{}, nil
}

func (l *fakeLogs) Final(ref protocol.AttemptRef) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.final = append(l.final, key(ref.JobID, ref.Attempt))
}
func (l *fakeLogs) Recovered() []shipper.Recovered { return l.recovered }

func (l *fakeLogs) MemoryLost(protocol.AttemptRef, int64) {}
func (l *fakeLogs) SetServer(int64, []string)             {}
func (l *fakeLogs) Flush(ctx context.Context) error {
	l.flushed.Store(true)
	if l.flush != nil {
		return l.flush(ctx)
	}
	return nil
}

func (l *fakeLogs) AttemptStats(string, int64) (shipper.AttemptStats, bool) {
	return shipper.AttemptStats{}, false
}
func (l *fakeLogs) Stats() shipper.Stats                         { return shipper.Stats{} }
func (l *fakeLogs) Backlog(string, int64) (int64, time.Duration) { return 0, 0 }
func (l *fakeLogs) Full() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.full
}

func (l *fakeLogs) Changed() <-chan struct{} { return l.changed }

func (l *fakeLogs) setFull(why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.full = why
}

type fakeLog struct{ remarks atomic.Int64 }

func (l *fakeLog) Stream(protocol.Stream) io.ReaderFrom { return nil }
func (l *fakeLog) Remark(string)                        { l.remarks.Add(1) }
func (l *fakeLog) Close() int64                         { return 7 + l.remarks.Load() }

// fakeRunner sweeps and notes what.
type fakeRunner struct {
	mu    sync.Mutex
	swept []exec.Proc
}

func (r *fakeRunner) Run(context.Context, exec.Spec) exec.Result {
	panic("no test runs commands with it")
}
func (r *fakeRunner) Sweep(_ context.Context, procs []exec.Proc) []exec.Swept {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.swept = append(r.swept, procs...)
	return nil
}
