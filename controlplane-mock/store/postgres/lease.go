package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

// leaseSQL offers the oldest matching pending job, unless the same poll has an offer already. Its %s is how types are compared:
// of one type, the index has the oldest first; a list would make PostgreSQL sort all of them.
const leaseSQL = `with again as (
		select seq from jobs where status = 'offered' and live_agent = $1 and live_poll = $2
	), oldest as (
		select seq from jobs where status = 'pending' and type %s and agent_id in ('', $1) and labels <@ $4 and not exists (select from again)
		order by seq limit 1 for update skip locked
	), offered as (
		update jobs j set status = 'offered', version = version + 1, last = last + 1, live_agent = $1, live_poll = $2, offered_at = clock_timestamp(),
			started_at = null, log_records = null, spooled = 0,
			lease_ttl = $5, lease_until = clock_timestamp() + $5::interval
		from oldest where j.seq = oldest.seq returning j.*
	) select ` + rowColumns + ` from offered j join specs s on s.job_id = j.id
	union all select ` + rowColumns + ` from again join jobs j on j.seq = again.seq join specs s on s.job_id = j.id`

var (
	leaseOne  = fmt.Sprintf(leaseSQL, "= $3")
	leaseMany = fmt.Sprintf(leaseSQL, "= any ($3)")
)

// Lease offers the oldest matching pending job.
func (s *Store) Lease(ctx context.Context, p store.LeaseParams) (store.Offer, error) {
	ctx, ended, err := s.change(ctx)
	if err != nil {
		return store.Offer{}, err
	}
	defer ended()
	sql, types := leaseMany, any(p.Types)
	if len(p.Types) == 1 {
		sql, types = leaseOne, p.Types[0]
	}
	var r row
	for range 2 {
		err = r.scan(s.pool.QueryRow(ctx, sql, p.AgentID, p.PollID, types, labelsOf(p.Labels), p.TTL))
		if !violates(err, "jobs_offers") {
			break // else: the same poll was faster elsewhere, and its offer can be seen now
		}
	}
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return store.Offer{}, store.ErrNoJob
	case err != nil:
		return store.Offer{}, wrap(err)
	}
	job := r.job()
	job.Attempts = nil
	return store.Offer{Job: job, Attempt: r.st.Last}, nil
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

// maxReaped bounds one sweep; the next one goes on.
const maxReaped = 1000

// Reap ends the attempts whose lease ran out.
func (s *Store) Reap(ctx context.Context, ttl time.Duration) (int, error) {
	ids, err := s.due(ctx, ttl)
	if err != nil {
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

// due is whose lease may be ended. Nobody's is while they couldn't be renewed, and for a TTL after: that is so after a start
// of ours or of the database, when a renewal or a look at the leases failed, and when a look took long. Nor is anybody's
// when the database's clock was set: it would end them all at once, or none for as long as it was set back.
func (s *Store) due(ctx context.Context, ttl time.Duration) ([]string, error) {
	ctx, ended, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer ended()
	var ids []string
	var clock, booted time.Time
	var ahead bool
	began := time.Now()
	err = s.pool.QueryRow(ctx, `select clock_timestamp(), pg_postmaster_start_time(), array(
			select id from jobs where live_agent is not null and lease_until <= clock_timestamp() order by lease_until limit $1),
		exists (select from jobs where `+leaseAhead+`)`, maxReaped).Scan(&clock, &booted, &ids, &ahead)
	if err == nil && ahead {
		err = s.setBack(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.away = true
		return nil, err
	}
	now := s.now()
	set := clock.Sub(s.clock) - now.Sub(s.clockAt)
	// What is shorter than half a TTL costs nobody a lease who renews at the pace that agents are told.
	if s.away || !booted.Equal(s.booted) || time.Since(began) > ttl/2 || set.Abs() > ttl/2 {
		s.away, s.spareFrom = false, now
	}
	s.booted, s.clock, s.clockAt = booted, clock, now
	if now.Sub(s.spareFrom) < ttl || now.Before(s.restUntil) {
		return nil, nil
	}
	return ids, nil
}

// leaseAhead is a lease that was renewed in the future: the clock was set back since. It would live for as long as that.
const leaseAhead = "live_agent is not null and lease_until > clock_timestamp() + lease_ttl + interval '1 second'"

// setBack gives such leases their time from now.
func (s *Store) setBack(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, "with ahead as (select seq from jobs where "+leaseAhead+` order by id for update)
		update jobs j set lease_until = clock_timestamp() + j.lease_ttl from ahead where j.seq = ahead.seq`)
	return err
}

// lost notes that the database could not be used, so that the reaper spares those who needed it.
func (s *Store) lost() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = true
}

// Rest makes this instance's Reap spare all leases for d from now.
func (s *Store) Rest(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if until := s.now().Add(d); until.After(s.restUntil) {
		s.restUntil = until
	}
}
