package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

// Lease offers the oldest matching pending job.
func (s *Store) Lease(ctx context.Context, p store.LeaseParams) (store.Offer, error) {
	var r *row
	err := s.tx(ctx, func(tx pgx.Tx) error {
		var err error
		r, err = s.lease(ctx, tx, &p)
		return err
	})
	if err != nil {
		return store.Offer{}, err
	}
	job, err := s.Job(ctx, r.spec.ID)
	if err != nil {
		return store.Offer{}, err
	}
	job.Attempts = nil
	return store.Offer{Job: job, Attempt: r.st.Last}, nil
}

func (s *Store) lease(ctx context.Context, tx pgx.Tx, p *store.LeaseParams) (*row, error) {
	// The same poll may come in twice at once, on two instances: the second must find the first one's offer.
	if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock(hashtextextended($1, 0))", p.AgentID+" "+p.PollID); err != nil {
		return nil, err
	}
	again, err := scanRow(tx.QueryRow(ctx, "select "+rowColumns+` from jobs
		where status = 'offered' and live_agent = $1 and live_poll = $2 and lease_until > clock_timestamp()`, p.AgentID, p.PollID))
	if err == nil || !errors.Is(err, pgx.ErrNoRows) {
		return again, err
	}
	labels := p.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	r, err := scanRow(tx.QueryRow(ctx, "select "+rowColumns+` from jobs
		where status = 'pending' and type = any ($1) and agent_id in ('', $2) and labels <@ $3
		order by seq limit 1 for update skip locked`, p.Types, p.AgentID, labels))
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, store.ErrNoJob
	}
	if err != nil {
		return nil, err
	}
	was := r.st.Status
	r.st.Offer(p.AgentID, p.PollID, r.now)
	return r, s.write(ctx, tx, r, was, p.TTL)
}

// Renew accepts an offer or extends a lease.
func (s *Store) Renew(ctx context.Context, ref store.Ref, ttl time.Duration, beat store.Beat) (store.Lease, error) {
	l, err := s.extend(ctx, ref, ttl, beat)
	if !errors.Is(err, pgx.ErrNoRows) {
		return l, wrap(err)
	}
	err = s.tx(ctx, func(tx pgx.Tx) error {
		r, err := hold(ctx, tx, ref.JobID)
		if err != nil {
			return err
		}
		was := r.st.Status
		if _, err := r.st.Renew(ref, r.now); err != nil {
			return err
		}
		l = store.Lease{CancelRequested: r.st.CancelRequested, CancelReason: r.st.CancelReason, Grace: r.spec.Grace}
		if _, err := tx.Exec(ctx, "update jobs set spooled = $2 where id = $1", ref.JobID, beat.SpooledBytes); err != nil {
			return err
		}
		return s.write(ctx, tx, r, was, ttl)
	})
	return l, err
}

// extend is the common case: the lease of a running attempt, compared and set in one statement.
func (s *Store) extend(ctx context.Context, ref store.Ref, ttl time.Duration, beat store.Beat) (store.Lease, error) {
	if err := s.open(); err != nil {
		return store.Lease{}, err
	}
	var cancel *string
	var grace int64
	err := s.pool.QueryRow(ctx, `update jobs set lease_until = clock_timestamp() + $4::bigint * interval '1 microsecond', spooled = $5
		where id = $1 and live_attempt = $2 and live_agent = $3 and status = 'running'
		returning cancel, (convert_from(spec, 'utf8')::jsonb ->> 'Grace')::bigint`,
		ref.JobID, ref.Attempt, ref.AgentID, ttl.Microseconds(), beat.SpooledBytes).Scan(&cancel, &grace)
	if err != nil {
		return store.Lease{}, err
	}
	l := store.Lease{Grace: time.Duration(grace)}
	if cancel != nil {
		l.CancelRequested, l.CancelReason = true, *cancel
	}
	return l, nil
}

// Complete settles an attempt.
func (s *Store) Complete(ctx context.Context, ref store.Ref, c protocol.Completion) error {
	return s.alter(ctx, ref.JobID, func(r *row) (bool, error) { return r.st.Complete(&r.spec, ref, c, r.now) },
		store.Event{Kind: store.EventLogAppended, JobID: ref.JobID, Attempt: ref.Attempt})
}

// Release gives an attempt back.
func (s *Store) Release(ctx context.Context, ref store.Ref, reason string) error {
	return s.alter(ctx, ref.JobID, func(r *row) (bool, error) { return r.st.Release(ref, reason, r.now) })
}

// Cancel ends a job, or asks for its end.
func (s *Store) Cancel(ctx context.Context, id, reason string) (store.Job, error) {
	if err := s.alter(ctx, id, func(r *row) (bool, error) { return r.st.Cancel(reason, r.now), nil }); err != nil {
		return store.Job{}, err
	}
	return s.Job(ctx, id)
}

// Retry makes a settled job pending again.
func (s *Store) Retry(ctx context.Context, id string) (store.Job, error) {
	err := s.alter(ctx, id, func(r *row) (bool, error) {
		err := r.st.Retry()
		return err == nil, err
	})
	if err != nil {
		return store.Job{}, err
	}
	return s.Job(ctx, id)
}

// Reap ends the attempts whose lease ran out.
func (s *Store) Reap(ctx context.Context, ttl time.Duration) (int, error) {
	ids, err := s.due(ctx)
	s.mu.Lock()
	if err != nil {
		s.away = true
	} else if s.away {
		s.away, s.spareFrom = false, time.Now() // nobody could renew: give everyone the time to
	}
	spare := time.Since(s.spareFrom) < ttl || time.Now().Before(s.restUntil)
	s.mu.Unlock()
	if err != nil || spare {
		return 0, wrap(err)
	}
	n := 0
	for _, id := range ids {
		ended := false
		err := s.alter(ctx, id, func(r *row) (bool, error) {
			if ended = r.due && r.st.Live() != nil; ended { // still: what happened since wins
				r.st.Expire(&r.spec, r.now)
			}
			return ended, nil
		})
		if err != nil {
			return n, err
		}
		if ended {
			n++
		}
	}
	return n, nil
}

// maxReaped bounds one sweep; the next one goes on.
const maxReaped = 1000

func (s *Store) due(ctx context.Context) ([]string, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	rows, err := s.pool.Query(ctx, "select id from jobs where live_attempt is not null and lease_until <= clock_timestamp() order by lease_until limit $1", maxReaped)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// Rest makes this instance's Reap spare all leases for d from now.
func (s *Store) Rest(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if until := time.Now().Add(d); until.After(s.restUntil) {
		s.restUntil = until
	}
}
