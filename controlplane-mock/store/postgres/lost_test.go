package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/postgres"
)

// TestLostDatabase takes the database away under load, for longer than a lease lives, and gives it back: nobody loses a
// lease by that, what was acknowledged is there, and everything goes on unaided.
func TestLostDatabase(t *testing.T) {
	const ttl = 8 * time.Second
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	c := startCluster(t)
	url := c.schema(t)
	away := func(for_ time.Duration, take, give func() error) func() {
		return func() {
			err := take()
			<-time.After(for_)
			if err = errors.Join(err, give()); err != nil {
				t.Error(err)
				stop() // nothing will be served again
			}
		}
	}
	again := func() error { return c.Again(t.Context()) }
	disasters := []struct {
		name string
		do   func()
	}{
		{"crashes and is back at once", away(0, c.Crash, again)},
		{"is gone for longer than a lease lives", away(ttl*3/2, c.Crash, again)},
		{"falls silent for longer than a lease lives", away(ttl*3/2, c.Freeze, c.Thaw)},
	}

	var wg, reapers sync.WaitGroup
	defer func() { stop(); reapers.Wait() }()
	var stores []*postgres.Store
	for range 2 {
		s := open(t, postgres.Config{URL: url})
		stores = append(stores, s)
		reapers.Go(func() { _ = s.Watch(ctx, func(store.Event) {}) })
		reapers.Go(func() {
			for ctx.Err() == nil {
				n, err := s.Reap(ctx, ttl)
				if n > 0 {
					t.Errorf("the reaper ended %d leases of those who live", n)
				}
				if err != nil && ctx.Err() == nil && ownError(err) {
					t.Errorf("reap: %v", err)
				}
				select {
				case <-ctx.Done():
				case <-time.After(ttl / 4):
				}
			}
		})
	}
	const workers = 12
	over := make(chan struct{})
	var end sync.Once
	finish := func() { end.Do(func() { close(over) }); wg.Wait() }
	defer finish()
	for n := range workers {
		w := &worker{T: t, ctx: ctx, stores: stores, name: "agent_" + strconv.Itoa(n), ttl: ttl}
		wg.Go(func() {
			for round := 0; ; round++ {
				select {
				case <-over:
					return
				default:
					w.job(fmt.Sprintf("job_%d_%d", n, round))
				}
			}
		})
	}
	for _, d := range disasters {
		<-time.After(ttl / 2)
		t.Log("the database", d.name)
		began := time.Now()
		d.do()
		var served sync.WaitGroup
		for _, s := range stores {
			w := &worker{T: t, ctx: ctx, stores: []*postgres.Store{s}}
			served.Go(func() { _ = w.persist("ping", func(s *postgres.Store) error { return s.Ping(ctx) }) })
		}
		served.Wait()
		t.Logf("served again after %v", time.Since(began).Round(time.Millisecond))
	}
	<-time.After(ttl)
	finish()
}

// ownError says that err is an answer of the store, not a fault of the database.
func ownError(err error) bool {
	for _, own := range []error{store.ErrNotFound, store.ErrLeaseLost, store.ErrConflict, store.ErrNoJob, store.ErrStopped, store.ErrDenied} {
		if errors.Is(err, own) {
			return true
		}
	}
	_, gap := errors.AsType[*store.GapError](err)
	return gap
}

// worker is an agent that comes back until it has an answer, each time to another instance.
type worker struct {
	*testing.T
	ctx    context.Context
	stores []*postgres.Store
	name   string
	ttl    time.Duration
	calls  int
}

// persist repeats a call until it is answered. An answer of the store itself is one; t fails unless it is among the allowed.
func (w *worker) persist(what string, f func(s *postgres.Store) error, allowed ...error) error {
	for {
		w.calls++
		err := f(w.stores[w.calls%len(w.stores)])
		if err == nil {
			return nil
		}
		for _, a := range allowed {
			if errors.Is(err, a) {
				return err
			}
		}
		if ownError(err) || w.ctx.Err() != nil {
			w.Errorf("%s %s: %v", w.name, what, err)
			runtime.Goexit()
		}
		<-time.After(50 * time.Millisecond)
	}
}

// job submits a job for itself, runs it with a log of some batches, and checks that all of it is there, once.
func (w *worker) job(id string) {
	ctx := w.ctx
	n := store.NewJob{ID: id, Type: "x", AgentID: w.name, Payload: []byte("{}"), MaxAttempts: 1, IdempotencyKey: id, RetryOn: []protocol.Outcome{protocol.Lost}}
	_ = w.persist("submit", func(s *postgres.Store) error { _, _, err := s.Submit(ctx, n); return err })
	var o store.Offer
	_ = w.persist("lease", func(s *postgres.Store) (err error) {
		o, err = s.Lease(ctx, store.LeaseParams{AgentID: w.name, Types: []string{"x"}, PollID: id, TTL: w.ttl})
		return err
	})
	r := store.Ref{JobID: id, Attempt: 1, AgentID: w.name}
	if o.Job.ID != id || o.Attempt != 1 {
		w.Errorf("%s: leased attempt %d of %q, want 1 of %s", w.name, o.Attempt, o.Job.ID, id)
		return
	}
	const batches = 6
	for b := range int64(batches) {
		_ = w.persist("renew", func(s *postgres.Store) error {
			_, err := s.Renew(ctx, r, w.ttl, store.Beat{Urgent: b == 0})
			return err
		})
		_ = w.persist("append", func(s *postgres.Store) error {
			next, err := s.AppendLog(ctx, r, line(b))
			if err == nil && next != b+1 {
				w.Errorf("%s: next is %d after batch %d", id, next, b)
			}
			return err
		})
		<-time.After(50 * time.Millisecond)
	}
	_ = w.persist("complete", func(s *postgres.Store) error {
		return s.Complete(ctx, r, protocol.Completion{Outcome: protocol.Succeeded, LogRecords: batches})
	})
	_ = w.persist("check", func(s *postgres.Store) error {
		j, err := s.Job(ctx, id)
		if err != nil {
			return err
		}
		if j.Status != store.JobSucceeded || len(j.Attempts) != 1 || !j.Attempts[0].LogsComplete() {
			w.Errorf("%s is %+v, want a success in one attempt with its log", id, j)
		}
		log, err := s.ReadLog(ctx, id, 1, 0, 1<<20)
		if err != nil {
			return err
		}
		for b := range int64(batches) {
			if int(b) >= len(log) || log[b].First != b || string(log[b].Body) != string(line(b).Body) {
				w.Errorf("%s: the log is %v, want batch %d there, once", id, log, b)
				break
			}
		}
		return nil
	})
}

// line is a batch of one record.
func line(n int64) store.LogBatch {
	return store.LogBatch{
		First: n, Count: 1, Encoding: "identity", Body: fmt.Appendf(nil, "%d\n", n), Decoded: 2,
		Trim: func(int64) (store.LogBatch, error) { return store.LogBatch{}, errors.New("nothing to trim") },
	}
}
