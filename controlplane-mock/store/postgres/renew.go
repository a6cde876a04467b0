package postgres

import (
	"context"
	"time"

	"agentd/controlplane-mock/store"
)

// renewGap is how long renewals are gathered while others are under way. Who holds a lease of ten seconds doesn't notice a
// tenth of one, and 2,000 agents need ten statements a second instead of 1,300. An accept, which somebody waits for,
// doesn't wait, and takes along what has been gathered.
const renewGap = 100 * time.Millisecond

// renewal is one caller's.
type renewal struct {
	ref   store.Ref
	ttl   time.Duration
	beat  store.Beat
	lease store.Lease // set before done is closed, as err
	err   error
	done  chan struct{}
}

// Renew accepts an offer or extends a lease.
func (s *Store) Renew(ctx context.Context, ref store.Ref, ttl time.Duration, beat store.Beat) (store.Lease, error) {
	_, ended, err := s.begin(ctx)
	if err != nil {
		return store.Lease{}, err
	}
	defer ended()
	r := &renewal{ref: ref, ttl: ttl, beat: beat, done: make(chan struct{})}
	s.renewals.add(r, beat.Urgent)
	select {
	case <-r.done:
		return r.lease, r.err
	case <-ctx.Done(): // carried out all the same
		return store.Lease{}, ctx.Err()
	}
}

// renew carries out many renewals in one statement, and a second one if some of them failed.
func (s *Store) renew(items []*renewal) {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	err := s.renewAll(ctx, items)
	if err != nil {
		s.lost()
	}
	for _, r := range items {
		if err != nil {
			r.err = wrap(err)
		}
		close(r.done)
	}
}

func (s *Store) renewAll(ctx context.Context, items []*renewal) error {
	// The same lease may be in here twice, as a heartbeat that arrives and one that ends: the last one says how much is spooled.
	by := map[store.Ref][]*renewal{}
	for _, r := range items {
		by[r.ref] = append(by[r.ref], r)
	}
	refs := make([]store.Ref, 0, len(by))
	var ids, agents []string
	var attempts, spooled []int64
	var ttls []time.Duration
	for ref, same := range by {
		last := same[len(same)-1]
		refs = append(refs, ref)
		ids, attempts, agents = append(ids, ref.JobID), append(attempts, ref.Attempt), append(agents, ref.AgentID)
		ttls, spooled = append(ttls, last.ttl), append(spooled, last.beat.SpooledBytes)
	}
	// Rows are taken in the order of their ids by everyone who takes several, so that no two wait for each other.
	rows, err := s.pool.Query(ctx, `with wanted as (
			select * from unnest($1::text[], $2::bigint[], $3::text[], $4::interval[], $5::bigint[]) with ordinality as w (id, attempt, agent, ttl, spooled, n)
		), held as (
			select j.seq, j.status, w.ttl, w.spooled, w.n from wanted w join jobs j on j.id = w.id
			where j.last = w.attempt and j.live_agent = w.agent order by j.id for update of j
		) update jobs j set lease_until = clock_timestamp() + h.ttl, lease_ttl = h.ttl, spooled = h.spooled, status = 'running',
			started_at = coalesce(j.started_at, clock_timestamp()), version = j.version + (h.status = 'offered')::int,
			run_by = case when j.live_agent = any (j.run_by) then j.run_by else j.run_by || j.live_agent end
		from held h where j.seq = h.seq returning h.n, h.status = 'offered', j.cancel, j.grace`, ids, attempts, agents, ttls, spooled)
	if err != nil {
		return err
	}
	defer rows.Close()
	renewed := map[int64]bool{}
	var accepted []store.Event
	for rows.Next() {
		var n, grace int64
		var accept bool
		var cancel *string
		if err := rows.Scan(&n, &accept, &cancel, &grace); err != nil {
			return err
		}
		renewed[n] = true
		l := store.Lease{Grace: time.Duration(grace) * time.Microsecond}
		if cancel != nil {
			l.CancelRequested, l.CancelReason = true, *cancel
		}
		for _, r := range by[refs[n-1]] {
			r.lease = l
		}
		if accept {
			accepted = append(accepted, store.Event{Kind: store.EventJobChanged, JobID: ids[n-1]})
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	s.tell(accepted...)
	return s.refuse(ctx, refs, renewed, by)
}

// refuse answers those whose lease was not found: the job is unknown, or the lease lost.
func (s *Store) refuse(ctx context.Context, refs []store.Ref, renewed map[int64]bool, by map[store.Ref][]*renewal) error {
	if len(renewed) == len(refs) {
		return nil
	}
	var ids []string
	for i, ref := range refs {
		if !renewed[int64(i+1)] {
			ids = append(ids, ref.JobID)
		}
	}
	var known []string
	if err := s.pool.QueryRow(ctx, "select array(select id from jobs where id = any ($1))", ids).Scan(&known); err != nil {
		return err
	}
	is := map[string]bool{}
	for _, id := range known {
		is[id] = true
	}
	for i, ref := range refs {
		if renewed[int64(i+1)] {
			continue
		}
		err := store.ErrNotFound
		if is[ref.JobID] {
			err = store.ErrLeaseLost
		}
		for _, r := range by[ref] {
			r.err = err
		}
	}
	return nil
}
