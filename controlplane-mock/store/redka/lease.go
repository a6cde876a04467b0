package redka

import (
	"context"
	"time"

	redkadb "github.com/nalgeon/redka"

	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/rules"
)

// Lease offers the oldest matching pending job.
func (s *Store) Lease(ctx context.Context, p store.LeaseParams) (store.Offer, error) {
	j, ready := s.glance(&p)
	if j == nil && !ready {
		return store.Offer{}, store.ErrNoJob
	}
	if j == nil {
		err := s.state.apply(ctx, 0, func(tx *redkadb.Tx) error {
			var err error
			j, err = s.offer(tx, &p)
			return err
		})
		if err != nil {
			return store.Offer{}, err
		}
	}
	out := store.Offer{Attempt: j.state.Last}
	err := s.stateDB.view(ctx, func(tx *redkadb.Tx) error {
		bare := *j
		bare.state.Attempts = nil // an offer goes without its history
		var err error
		out.Job, err = s.whole(tx, &bare)
		return err
	})
	return out, err
}

// glance looks without a transaction, so that the many polls that find nothing cost nothing:
// the job already offered to this poll, or whether there is one to offer.
func (s *Store) glance(p *store.LeaseParams) (again *job, ready bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id, ok := s.mem.offers[poll{p.AgentID, p.PollID}]; ok {
		if _, busy := s.busy[id]; busy {
			return nil, true
		}
		if j := s.mem.jobs[id]; time.Now().Before(s.endOf(id, p.TTL)) {
			return j, true
		}
	}
	return nil, s.mem.pending.oldest(p, func(*job) bool { return false }) != nil
}

func (s *Store) offer(tx *redkadb.Tx, p *store.LeaseParams) (*job, error) {
	if j := s.offered(p); j != nil {
		return j, nil
	}
	old := s.mem.pending.oldest(p, func(j *job) bool {
		// Whatever this group has done to it: leave it to the next lease, which will see how that ended.
		_, changed := s.over.jobs[j.spec.ID]
		return changed
	})
	if old == nil {
		return nil, store.ErrNoJob
	}
	id := old.spec.ID
	st := old.state.Clone()
	st.Offer(p.AgentID, p.PollID, stamp(time.Now()))
	if err := s.putJob(tx, old, st); err != nil {
		return nil, err
	}
	s.extend(id, st.Last, p.TTL, nil)
	return s.over.jobs[id], nil
}

// offered is the job whose offer to the same poll still stands.
func (s *Store) offered(p *store.LeaseParams) *job {
	standing := func(j *job) bool {
		a := j.state.Live()
		return a != nil && a.State == store.AttemptOffered && a.AgentID == p.AgentID && a.PollID == p.PollID
	}
	for _, j := range s.over.jobs { // the same poll twice in one group
		if standing(j) {
			return j
		}
	}
	id, ok := s.mem.offers[poll{p.AgentID, p.PollID}]
	if !ok || s.over.jobs[id] != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.mem.jobs[id]; standing(j) && time.Now().Before(s.endOf(id, p.TTL)) {
		return j
	}
	return nil
}

// extend sets the lease's end to ttl after the commit of the change under way.
func (s *Store) extend(id string, attempt int64, ttl time.Duration, beat *store.Beat) {
	s.over.after = append(s.over.after, func(now time.Time) {
		l := s.mem.leases[id]
		if l == nil || l.attempt != attempt {
			return
		}
		l.until = now.Add(ttl)
		if beat != nil {
			l.spooled = beat.SpooledBytes
		}
	})
}

// endOf is when the lease of a job may be ended. Called with mu held.
func (s *Store) endOf(id string, ttl time.Duration) time.Time {
	end := s.spareFrom.Add(ttl)
	if s.restUntil.After(end) {
		end = s.restUntil
	}
	if l := s.mem.leases[id]; l != nil && l.until.After(end) {
		end = l.until
	}
	return end
}

// Renew accepts an offer or extends a lease. Extending writes nothing.
func (s *Store) Renew(ctx context.Context, ref store.Ref, ttl time.Duration, beat store.Beat) (store.Lease, error) {
	if l, err, done := s.renewInMemory(ref, ttl, beat); done {
		return l, err
	}
	var out store.Lease
	err := s.state.apply(ctx, 0, func(tx *redkadb.Tx) error {
		j, err := s.job(tx, ref.JobID)
		if err != nil {
			return err
		}
		if j == nil {
			return store.ErrNotFound
		}
		st := j.state.Clone()
		changed, err := st.Renew(ref, stamp(time.Now()))
		if err != nil {
			return err
		}
		if changed {
			if err := s.putJob(tx, j, st); err != nil {
				return err
			}
		}
		s.extend(ref.JobID, ref.Attempt, ttl, &beat)
		out = leaseOf(j.spec, &st)
		return nil
	})
	return out, err
}

func leaseOf(n *store.NewJob, st *rules.State) store.Lease {
	return store.Lease{CancelRequested: st.CancelRequested, CancelReason: st.CancelReason, Grace: n.Grace}
}

// renewInMemory is the common case: the lease of a running attempt that nobody is about to end.
func (s *Store) renewInMemory(ref store.Ref, ttl time.Duration, beat store.Beat) (l store.Lease, err error, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return store.Lease{}, store.ErrStopped, true
	}
	j := s.mem.jobs[ref.JobID]
	if _, busy := s.busy[ref.JobID]; busy || j == nil {
		return store.Lease{}, nil, false
	}
	a := j.state.Claimed(ref)
	if a == nil || a.State.Over() {
		return store.Lease{}, store.ErrLeaseLost, true
	}
	if a.State != store.AttemptRunning {
		return store.Lease{}, nil, false
	}
	held := s.mem.leases[ref.JobID]
	held.until, held.spooled = time.Now().Add(ttl), beat.SpooledBytes
	return leaseOf(j.spec, &j.state), nil, true
}
