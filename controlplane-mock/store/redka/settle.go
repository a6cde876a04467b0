package redka

import (
	"context"
	"time"

	redkadb "github.com/nalgeon/redka"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/rules"
)

// alter lets f change a job's state in a transaction of its own, and writes what it changed.
func (s *Store) alter(ctx context.Context, id string, size int, f func(n *store.NewJob, st *rules.State) (bool, error)) error {
	return s.state.apply(ctx, size, func(tx *redkadb.Tx) error {
		j, err := s.job(tx, id)
		if err != nil {
			return err
		}
		if j == nil {
			return store.ErrNotFound
		}
		st := j.state.Clone()
		changed, err := f(j.spec, &st)
		if err != nil || !changed {
			return err
		}
		return s.putJob(tx, j, st)
	})
}

// Complete settles an attempt.
func (s *Store) Complete(ctx context.Context, ref store.Ref, c protocol.Completion) error {
	return s.alter(ctx, ref.JobID, len(c.Result), func(n *store.NewJob, st *rules.State) (bool, error) {
		changed, err := st.Complete(n, ref, c, stamp(time.Now()))
		if changed {
			s.over.events = append(s.over.events, store.Event{Kind: store.EventLogAppended, JobID: ref.JobID, Attempt: ref.Attempt})
		}
		return changed, err
	})
}

// Release gives an attempt back.
func (s *Store) Release(ctx context.Context, ref store.Ref, reason string) error {
	return s.alter(ctx, ref.JobID, 0, func(_ *store.NewJob, st *rules.State) (bool, error) {
		return st.Release(ref, reason, stamp(time.Now()))
	})
}

// Cancel ends a job, or asks for its end.
func (s *Store) Cancel(ctx context.Context, id, reason string) (store.Job, error) {
	err := s.alter(ctx, id, 0, func(_ *store.NewJob, st *rules.State) (bool, error) {
		return st.Cancel(reason, stamp(time.Now())), nil
	})
	if err != nil {
		return store.Job{}, err
	}
	return s.Job(ctx, id)
}

// Retry makes a settled job pending again.
func (s *Store) Retry(ctx context.Context, id string) (store.Job, error) {
	err := s.alter(ctx, id, 0, func(_ *store.NewJob, st *rules.State) (bool, error) {
		err := st.Retry()
		return err == nil, err
	})
	if err != nil {
		return store.Job{}, err
	}
	return s.Job(ctx, id)
}

// reapGroup is how many leases one change ends: few enough that nobody waits long behind it.
const reapGroup = 64

// Reap ends the attempts whose lease ran out.
func (s *Store) Reap(ctx context.Context, ttl time.Duration) (int, error) {
	var due []string
	s.mu.Lock()
	now := time.Now()
	for id := range s.mem.leases {
		if !now.Before(s.endOf(id, ttl)) {
			due = append(due, id)
		}
	}
	s.mu.Unlock()
	total := 0
	for len(due) > 0 {
		group := due[:min(len(due), reapGroup)]
		due = due[len(group):]
		n := 0
		err := s.state.apply(ctx, 0, func(tx *redkadb.Tx) error {
			for _, id := range group {
				ended, err := s.expire(tx, id, ttl)
				if err != nil {
					return err
				}
				if ended {
					n++
				}
			}
			return nil
		})
		if err != nil {
			return total, err
		}
		total += n
	}
	return total, nil
}

// expire ends the job's live attempt if its lease has still run out now.
func (s *Store) expire(tx *redkadb.Tx, id string, ttl time.Duration) (bool, error) {
	if s.over.jobs[id] != nil {
		return false, nil // changed in this very group (completed, say): that wins, and the next sweep will see
	}
	j := s.mem.jobs[id]
	if j == nil || j.state.Live() == nil {
		return false, nil
	}
	// Looking and marking are one step: a renewal comes before it and is seen, or after it and waits.
	s.mu.Lock()
	due := !time.Now().Before(s.endOf(id, ttl))
	if due {
		s.busy[id] = struct{}{}
	}
	s.mu.Unlock()
	if !due {
		return false, nil
	}
	st := j.state.Clone()
	st.Expire(j.spec, stamp(time.Now()))
	return true, s.putJob(tx, j, st)
}

// Rest makes Reap spare all leases for d from now.
func (s *Store) Rest(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if until := time.Now().Add(d); until.After(s.restUntil) {
		s.restUntil = until
	}
}
