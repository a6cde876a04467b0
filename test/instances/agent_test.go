package instances

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
)

// agent is a small one that is true to the protocol, by the real one's client: it comes back until it is answered.
type agent struct {
	*testing.T
	w       *world
	c       *protocol.Client
	id, key string
	polls   int
}

func newAgent(t *testing.T, w *world, name string, types ...string) *agent {
	t.Helper()
	a := &agent{T: t, w: w}
	var err error
	a.c, err = protocol.NewClient(protocol.ClientConfig{Server: w.URL, ProcessID: "boot." + name, Credential: func() string { return a.key }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.c.Close)
	token, err := w.Admin.Token(t.Context(), adminclient.TokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	pub, priv, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	req := protocol.LinkRequest{Name: name, Types: types, ProcessID: "boot." + name, Start: true}
	var link protocol.Link
	err = a.persist(t.Context(), func() error { // two thousand of them beside other trials: one or the other isn't answered in time
		ch, err := a.c.Challenge(t.Context(), protocol.ChallengeRequest{PublicKey: pub})
		if err != nil {
			return err
		}
		protocol.SignLink(&req, priv, ch)
		link, _, err = a.c.Link(t.Context(), token, req)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	a.id, a.key = link.AgentID, link.APIKey
	return a
}

// persist repeats a call until it is answered for good, or ctx ends.
func (a *agent) persist(ctx context.Context, f func() error) error {
	back := protocol.NewBackOff(time.Second)
	for {
		err := f()
		switch protocol.ActionFor(err) {
		case protocol.Proceed:
			return nil
		case protocol.Retry:
		default:
			return err
		}
		if pause := protocol.Pause(ctx, back, err); pause != nil {
			return errors.Join(err, pause)
		}
	}
}

// poll asks for a job until there is one or ctx ends; a poll that isn't answered is repeated under its own id.
func (a *agent) poll(ctx context.Context, types ...string) *protocol.Job {
	for ctx.Err() == nil {
		a.polls++
		req := protocol.PollRequest{PollID: fmt.Sprintf("%s_%d", a.id, a.polls), Wait: 2 * time.Second, Types: types}
		var job *protocol.Job
		err := a.persist(ctx, func() (err error) {
			job, err = a.c.NextJob(ctx, req)
			return err
		})
		if err != nil && ctx.Err() == nil {
			a.Errorf("poll of %s: %v", a.id, err)
			return nil
		}
		if job != nil {
			return job
		}
	}
	return nil
}

// beat sends one heartbeat.
func (a *agent) beat(ctx context.Context, j *protocol.Job, wait time.Duration) error {
	return a.persist(ctx, func() error {
		_, err := a.c.Heartbeat(ctx, j.ID, wait, protocol.HeartbeatRequest{Attempt: j.Attempt, LeaseToken: j.LeaseToken})
		return err
	})
}

func (a *agent) complete(ctx context.Context, j *protocol.Job, records int64) error {
	now := time.Now()
	return a.persist(ctx, func() error {
		return a.c.Complete(ctx, j.ID, protocol.Completion{
			Attempt: j.Attempt, LeaseToken: j.LeaseToken, Outcome: protocol.Succeeded, LogRecords: records, StartedAt: now, FinishedAt: now,
		})
	})
}

// ledger is who holds what, as the agents know it.
type ledger struct {
	mu      sync.Mutex
	trusted map[string]map[int64]time.Time // guarded by mu: by job and attempt, until when its holder may trust in its lease
	ran     map[string]int                 // guarded by mu: how often a job was started
}

func newLedger() *ledger {
	return &ledger{trusted: map[string]map[int64]time.Time{}, ran: map[string]int{}}
}

// holds notes an answered heartbeat that was sent at sent, and answers an attempt that may trust in the same job's lease, too.
func (l *ledger) holds(j *protocol.Job, sent time.Time) (other int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.trusted[j.ID]
	if m == nil {
		m = map[int64]time.Time{}
		l.trusted[j.ID] = m
	}
	for n, until := range m {
		if n != j.Attempt && time.Now().Before(until) {
			other = n
		}
	}
	if m[j.Attempt].IsZero() {
		l.ran[j.ID]++
	}
	m[j.Attempt] = sent.Add(ttl)
	return other
}

func (l *ledger) letGo(j *protocol.Job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trusted[j.ID][j.Attempt] = time.Now()
}

// runs is how often a job was started.
func (l *ledger) runs(id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ran[id]
}

// work is a job's length: so many batches of one line.
const batches = 8

// run takes a job and does it, to the end whatever happens to the instances.
func (a *agent) run(ctx context.Context, l *ledger, j *protocol.Job) {
	beat := func(wait time.Duration) bool {
		sent := time.Now()
		err := a.beat(ctx, j, wait)
		if ctx.Err() != nil {
			return false
		}
		if err != nil {
			a.Errorf("attempt %d of %s: the heartbeat of a living agent: %v", j.Attempt, j.ID, err)
			return false
		}
		if other := l.holds(j, sent); other != 0 {
			a.Errorf("%s: attempts %d and %d hold the lease", j.ID, j.Attempt, other)
		}
		return true
	}
	if !beat(0) {
		return
	}
	beating, enough := context.WithCancel(ctx)
	var completing atomic.Bool // a heartbeat that the end overtakes is answered with lease_lost
	var wg sync.WaitGroup
	wg.Go(func() {
		for beating.Err() == nil {
			sent := time.Now()
			switch err := a.beat(beating, j, ttl/4); {
			case beating.Err() != nil || completing.Load():
				return
			case err != nil:
				a.Errorf("attempt %d of %s: %v", j.Attempt, j.ID, err)
				return
			default:
				l.holds(j, sent)
			}
		}
	})
	defer wg.Wait()
	defer enough()
	ref := protocol.AttemptRef{JobID: j.ID, Attempt: j.Attempt, LeaseToken: j.LeaseToken}
	for n := range int64(batches) {
		err := a.persist(ctx, func() error {
			next, err := a.c.ShipLog(ctx, ref, protocol.LogBody{First: n, Count: 1, Frames: [][]byte{record(j.ID, n)}})
			if err == nil && next.Next != n+1 {
				a.Errorf("%s: next is %d after record %d", j.ID, next.Next, n)
			}
			return err
		})
		if err != nil {
			if ctx.Err() == nil {
				a.Errorf("log of %s: %v", j.ID, err)
			}
			return
		}
	}
	completing.Store(true)
	if err := a.complete(ctx, j, batches); err != nil && ctx.Err() == nil {
		a.Errorf("completion of %s: %v", j.ID, err)
	}
	l.letGo(j)
}

func record(id string, n int64) []byte {
	return protocol.AppendRecord(nil, protocol.Record{Time: 5, Stream: protocol.Stdout, Text: fmt.Sprintf("%s line %d", id, n)})
}

// whole checks that a job was run once, and that its log is all there, each line once.
func (w *world) whole(t *testing.T, l *ledger, id string) {
	t.Helper()
	j := w.ended(t, id)
	accepted := 0
	for _, a := range j.Attempts {
		if a.State != "lapsed" && a.State != "released" {
			accepted++
		}
	}
	if j.Status != "succeeded" || accepted != 1 || l.runs(id) != 1 {
		t.Errorf("%s is %s, run %d times; want a success, once: %+v", id, j.Status, l.runs(id), j.Attempts)
	}
	var next int64
	for r, err := range w.Admin.Logs(t.Context(), id, adminclient.LogOptions{Attempt: j.Last().Number}) {
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("%s line %d", id, next); r.N != next || r.Text != want {
			t.Errorf("record %d of %s is %q, want %d, %q", r.N, id, r.Text, next, want)
		}
		next = r.Next()
	}
	if next != batches {
		t.Errorf("the log of %s has %d records, want %d", id, next, batches)
	}
}
