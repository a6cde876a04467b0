package controlplane

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/rules"
)

// The jobs and logs of memStore.

func (j *memJob) view() store.Job {
	v := store.Job{NewJob: j.n, Status: j.s.Status, Reason: j.s.Reason, CancelRequested: j.s.CancelRequested, CancelReason: j.s.CancelReason, CreatedAt: j.created}
	for _, a := range j.s.Attempts {
		a.LogNext = j.next(a.Number)
		v.Attempts = append(v.Attempts, a)
	}
	return v
}

func (j *memJob) next(attempt int64) int64 {
	l := j.logs[attempt]
	if len(l) == 0 {
		return 0
	}
	return l[len(l)-1].First + l[len(l)-1].Count
}

func (m *memStore) find(id string) *memJob {
	for _, j := range m.jobs {
		if j.n.ID == id {
			return j
		}
	}
	return nil
}

func (m *memStore) Submit(_ context.Context, n store.NewJob) (store.Job, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return store.Job{}, false, m.fail
	}
	for _, j := range m.jobs {
		if n.IdempotencyKey != "" && j.n.IdempotencyKey == n.IdempotencyKey {
			if j.n.BodySum != n.BodySum {
				return store.Job{}, false, store.ErrConflict
			}
			return j.view(), false, nil
		}
	}
	j := &memJob{n: n, s: rules.New(&n), created: time.Now(), logs: map[int64][]store.LogBatch{}}
	m.jobs = append(m.jobs, j)
	m.tell(store.Event{Kind: store.EventJobPending, JobID: n.ID})
	return j.view(), true, nil
}

func (m *memStore) Job(_ context.Context, id string) (store.Job, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	j := m.find(id)
	switch {
	case m.fail != nil:
		return store.Job{}, m.fail
	case j == nil:
		return store.Job{}, store.ErrNotFound
	}
	return j.view(), nil
}

func (m *memStore) Jobs(_ context.Context, f store.JobFilter) ([]store.Job, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	from, _ := strconv.Atoi(f.After)
	var items []store.Job
	for i, j := range m.jobs {
		ran := slices.ContainsFunc(j.s.Attempts, func(a store.Attempt) bool { return a.AgentID == f.AgentID })
		if i < from || f.Status != "" && j.s.Status != f.Status || f.Type != "" && j.n.Type != f.Type || f.AgentID != "" && j.n.AgentID != f.AgentID && !ran {
			continue
		}
		if len(items) == f.Limit {
			return items, strconv.Itoa(i), nil
		}
		items = append(items, j.view())
	}
	return items, "", m.fail
}

func (m *memStore) Lease(_ context.Context, p store.LeaseParams) (store.Offer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leases++
	if m.fail != nil {
		return store.Offer{}, m.fail
	}
	for _, j := range m.jobs {
		if a := j.s.Live(); a != nil && a.State == store.AttemptOffered && a.AgentID == p.AgentID && a.PollID == p.PollID {
			return store.Offer{Job: j.view(), Attempt: a.Number}, nil
		}
	}
	for _, j := range m.jobs {
		if j.s.Status != store.Pending || !slices.Contains(p.Types, j.n.Type) || j.n.AgentID != "" && j.n.AgentID != p.AgentID || !hasLabels(p.Labels, j.n.Labels) {
			continue
		}
		j.s.Offer(p.AgentID, p.PollID, time.Now())
		j.ends = time.Now().Add(p.TTL)
		return store.Offer{Job: j.view(), Attempt: j.s.Last}, nil
	}
	return store.Offer{}, store.ErrNoJob
}

// change runs f on a job and tells what came of it.
func (m *memStore) change(id string, f func(*memJob) (bool, error)) (store.Job, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	j := m.find(id)
	switch {
	case m.fail != nil:
		return store.Job{}, m.fail
	case j == nil:
		return store.Job{}, store.ErrNotFound
	}
	changed, err := f(j)
	if changed {
		m.tell(store.Event{Kind: store.EventJobChanged, JobID: id})
		if j.s.Status == store.Pending {
			m.tell(store.Event{Kind: store.EventJobPending, JobID: id})
		}
		m.tell(store.Event{Kind: store.EventLogAppended, JobID: id})
	}
	return j.view(), err
}

func (m *memStore) Renew(_ context.Context, ref store.Ref, ttl time.Duration, beat store.Beat) (l store.Lease, err error) {
	_, err = m.change(ref.JobID, func(j *memJob) (bool, error) {
		changed, err := j.s.Renew(ref, time.Now())
		if err == nil {
			j.ends = time.Now().Add(ttl)
			j.s.Live().SpooledBytes = beat.SpooledBytes
			l = store.Lease{CancelRequested: j.s.CancelRequested, CancelReason: j.s.CancelReason, Grace: j.n.Grace}
		}
		return changed, err
	})
	return l, err
}

func (m *memStore) Complete(_ context.Context, ref store.Ref, c protocol.Completion) error {
	_, err := m.change(ref.JobID, func(j *memJob) (bool, error) { return j.s.Complete(&j.n, ref, c, time.Now()) })
	return err
}

func (m *memStore) Release(_ context.Context, ref store.Ref, reason string) error {
	_, err := m.change(ref.JobID, func(j *memJob) (bool, error) { return j.s.Release(ref, reason, time.Now()) })
	return err
}

func (m *memStore) Cancel(_ context.Context, id, reason string) (store.Job, error) {
	return m.change(id, func(j *memJob) (bool, error) { return j.s.Cancel(reason, time.Now()), nil })
}

func (m *memStore) Retry(_ context.Context, id string) (store.Job, error) {
	return m.change(id, func(j *memJob) (bool, error) { return true, j.s.Retry() })
}

func (m *memStore) Reap(ctx context.Context, _ time.Duration) (int, error) {
	m.mu.Lock()
	var ids []string
	for _, j := range m.jobs {
		if j.s.Live() != nil && time.Now().After(j.ends) && time.Now().After(m.rest) {
			ids = append(ids, j.n.ID)
		}
	}
	m.mu.Unlock()
	for _, id := range ids {
		if _, err := m.change(id, func(j *memJob) (bool, error) { j.s.Expire(&j.n, time.Now()); return true, nil }); err != nil {
			return 0, err
		}
	}
	return len(ids), ctx.Err()
}

func (m *memStore) AppendLog(_ context.Context, ref store.Ref, b store.LogBatch) (next int64, err error) {
	_, err = m.change(ref.JobID, func(j *memJob) (bool, error) {
		if j.s.Claimed(ref) == nil {
			return false, store.ErrNotFound
		}
		next = j.next(ref.Attempt)
		switch {
		case b.Count > 0 && b.First > next:
			return false, &store.GapError{Next: next}
		case b.Count > 0 && b.First+b.Count > next:
			cut := b
			if b.First < next {
				var err error
				if cut, err = b.Trim(next); err != nil {
					return false, fmt.Errorf("trim: %w", err)
				}
			}
			cut.ReceivedAt, cut.Trim = time.Now(), nil
			j.logs[ref.Attempt] = append(j.logs[ref.Attempt], cut)
			next = cut.First + cut.Count
		}
		if b.Final {
			j.s.SetLogLength(ref.Attempt, b.First+b.Count)
		}
		return true, nil
	})
	return next, err
}

func (m *memStore) LogNext(_ context.Context, ref store.Ref) (next int64, err error) {
	_, err = m.change(ref.JobID, func(j *memJob) (bool, error) {
		if j.s.Claimed(ref) == nil {
			return false, store.ErrNotFound
		}
		next = j.next(ref.Attempt)
		return false, nil
	})
	return next, err
}

func (m *memStore) ReadLog(_ context.Context, id string, attempt, from int64, maxBytes int) (out []store.LogBatch, err error) {
	_, err = m.change(id, func(j *memJob) (bool, error) {
		size := 0
		for _, b := range j.logs[attempt] {
			if b.First+b.Count > from && size < maxBytes {
				out = append(out, b)
				size += len(b.Body)
			}
		}
		return false, nil
	})
	return out, err
}
