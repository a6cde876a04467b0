package postgres

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/rules"
)

// row is a job as it is stored.
type row struct {
	seq  int64
	spec store.NewJob // without payload
	st   rules.State
	now  time.Time // the database's
	due  bool      // its lease has run out
}

const rowColumns = "seq, spec, state, clock_timestamp(), coalesce(lease_until <= clock_timestamp(), false)"

func scanRow(r pgx.Row) (*row, error) {
	var out row
	var spec, state []byte
	if err := r.Scan(&out.seq, &spec, &state, &out.now, &out.due); err != nil {
		return nil, err
	}
	out.now = out.now.UTC()
	if err := json.Unmarshal(spec, &out.spec); err != nil {
		return nil, err
	}
	return &out, json.Unmarshal(state, &out.st)
}

// hold reads a job and keeps others from changing it until the transaction ends.
func hold(ctx context.Context, tx pgx.Tx, id string) (*row, error) {
	return scanRow(tx.QueryRow(ctx, "select "+rowColumns+" from jobs where id = $1 for update", id))
}

// write stores the changed state of a held job. A lease that begins or goes on ends ttl from now; 0: as it was.
func (s *Store) write(ctx context.Context, tx pgx.Tx, r *row, was store.Status, ttl time.Duration, events ...store.Event) error {
	b := &pgx.Batch{}
	var runBy []string
	for i := range r.st.Attempts {
		a := &r.st.Attempts[i]
		if a.Accepted && !slices.Contains(runBy, a.AgentID) {
			runBy = append(runBy, a.AgentID)
		}
		if a.Result != nil {
			b.Queue("insert into results values ($1, $2, $3) on conflict do nothing", r.spec.ID, a.Number, []byte(a.Result))
			a.Result = nil
		}
	}
	state, err := json.Marshal(&r.st)
	if err != nil {
		return err
	}
	var cancel *string
	if r.st.CancelRequested {
		cancel = &r.st.CancelReason
	}
	args := pgx.NamedArgs{
		"id": r.spec.ID, "state": state, "status": r.st.Status, "cancel": cancel, "run_by": append([]string{}, runBy...), "ttl": ttl.Microseconds(),
		"attempt": nil, "agent": nil, "poll": nil,
	}
	if a := r.st.Live(); a != nil {
		args["attempt"], args["agent"], args["poll"] = a.Number, a.AgentID, a.PollID
	}
	b.Queue(`update jobs set state = @state, status = @status, cancel = @cancel, run_by = @run_by,
		live_attempt = @attempt, live_agent = @agent, live_poll = @poll,
		lease_until = case when @attempt::bigint is null then null
			when @ttl::bigint = 0 then lease_until
			else clock_timestamp() + @ttl::bigint * interval '1 microsecond' end
		where id = @id`, args)
	events = append(events, store.Event{Kind: store.EventJobChanged, JobID: r.spec.ID})
	if r.st.Status == store.Pending && was != store.Pending {
		events = append(events, store.Event{Kind: store.EventJobPending, JobID: r.spec.ID})
	}
	s.notify(b, events...)
	return tx.SendBatch(ctx, b).Close()
}

// alter lets f change a job's state in a transaction of its own, and writes what it changed.
func (s *Store) alter(ctx context.Context, id string, f func(r *row) (changed bool, err error), events ...store.Event) error {
	return s.tx(ctx, func(tx pgx.Tx) error {
		r, err := hold(ctx, tx, id)
		if err != nil {
			return err
		}
		was := r.st.Status
		changed, err := f(r)
		if err != nil || !changed {
			return err
		}
		return s.write(ctx, tx, r, was, 0, events...)
	})
}

// Submit stores a new pending job.
func (s *Store) Submit(ctx context.Context, n store.NewJob) (store.Job, bool, error) {
	st := rules.New(&n)
	spec := n
	spec.Payload = nil
	specDoc, err := json.Marshal(&spec)
	if err != nil {
		return store.Job{}, false, wrap(err)
	}
	state, err := json.Marshal(&st)
	if err != nil {
		return store.Job{}, false, wrap(err)
	}
	var idem *string
	if n.IdempotencyKey != "" {
		idem = &n.IdempotencyKey
	}
	labels := n.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	created := false
	err = s.tx(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `insert into jobs (id, type, agent_id, labels, idem, body_sum, spec, payload, created_at, state, status)
			values ($1, $2, $3, $4, $5, $6, $7, $8, clock_timestamp(), $9, $10) on conflict do nothing`,
			n.ID, n.Type, n.AgentID, labels, idem, n.BodySum[:], specDoc, []byte(n.Payload), state, st.Status)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		created = true
		b := &pgx.Batch{}
		s.notify(b, store.Event{Kind: store.EventJobPending, JobID: n.ID})
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return store.Job{}, false, err
	}
	if created {
		job, err := s.Job(ctx, n.ID)
		return job, true, err
	}
	var id string
	var sum []byte
	if err := s.pool.QueryRow(ctx, "select id, body_sum from jobs where idem = $1", idem).Scan(&id, &sum); err != nil || string(sum) != string(n.BodySum[:]) {
		return store.Job{}, false, store.ErrConflict // another body, or the id is taken
	}
	job, err := s.Job(ctx, id)
	return job, false, err
}

// Job is a job with all its attempts.
func (s *Store) Job(ctx context.Context, id string) (store.Job, error) {
	jobs, err := s.query(ctx, "where id = $1", id)
	if err != nil {
		return store.Job{}, err
	}
	if len(jobs) == 0 {
		return store.Job{}, store.ErrNotFound
	}
	return jobs[0].Job, nil
}

// Jobs lists jobs oldest first. The cursor is the last one's number.
func (s *Store) Jobs(ctx context.Context, f store.JobFilter) ([]store.Job, string, error) {
	after := int64(0)
	if f.After != "" {
		var err error
		if after, err = strconv.ParseInt(f.After, 10, 64); err != nil {
			return nil, "", store.ErrNotFound
		}
	}
	limit := f.Limit
	if limit <= 0 {
		limit = 1 << 30
	}
	jobs, err := s.query(ctx, `where seq > $1 and ($2 = '' or status = $2) and ($3 = '' or type = $3)
		and ($4 = '' or agent_id = $4 or $4 = any (run_by)) order by seq limit $5`,
		after, string(f.Status), f.Type, f.AgentID, limit+1)
	if err != nil {
		return nil, "", err
	}
	next := ""
	if len(jobs) > limit {
		jobs = jobs[:limit]
		next = strconv.FormatInt(jobs[limit-1].seq, 10)
	}
	items := make([]store.Job, len(jobs))
	for i := range jobs {
		items[i] = jobs[i].Job
	}
	return items, next, nil
}

type numbered struct {
	store.Job
	seq int64
}

// query reads whole jobs.
func (s *Store) query(ctx context.Context, where string, args ...any) ([]numbered, error) {
	var out []numbered
	err := s.tx(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "select seq, spec, state, payload, created_at, spooled from jobs "+where, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		byID := map[string]int{}
		var ids []string
		for rows.Next() {
			var n numbered
			var spec, state, payload []byte
			var spooled int64
			if err := rows.Scan(&n.seq, &spec, &state, &payload, &n.CreatedAt, &spooled); err != nil {
				return err
			}
			var st rules.State
			if err := json.Unmarshal(spec, &n.NewJob); err != nil {
				return err
			}
			if err := json.Unmarshal(state, &st); err != nil {
				return err
			}
			n.Payload, n.CreatedAt = payload, n.CreatedAt.UTC()
			n.Status, n.Reason, n.CancelRequested, n.CancelReason = st.Status, st.Reason, st.CancelRequested, st.CancelReason
			for i := range st.Attempts {
				n.Attempts = append(n.Attempts, st.Attempts[i])
			}
			if st.Live() != nil {
				n.Attempts[len(n.Attempts)-1].SpooledBytes = spooled
			}
			byID[n.ID] = len(out)
			ids = append(ids, n.ID)
			out = append(out, n)
		}
		if err := rows.Err(); err != nil {
			return err
		}
		return addRest(ctx, tx, ids, func(id string, attempt int64) *store.Attempt {
			for i := range out[byID[id]].Attempts {
				if a := &out[byID[id]].Attempts[i]; a.Number == attempt {
					return a
				}
			}
			return nil
		})
	})
	return out, err
}

// addRest fills in what of attempts is in tables of its own.
func addRest(ctx context.Context, tx pgx.Tx, ids []string, find func(id string, attempt int64) *store.Attempt) error {
	rows, err := tx.Query(ctx, `select job_id, attempt, result, null from results where job_id = any ($1)
		union all select job_id, attempt, null, next from log_tails where job_id = any ($1)`, ids)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		var attempt int64
		var result []byte
		var next *int64
		if err := rows.Scan(&id, &attempt, &result, &next); err != nil {
			return err
		}
		a := find(id, attempt)
		switch {
		case a == nil:
		case next != nil:
			a.LogNext = *next
		default:
			a.Result = result
		}
	}
	return rows.Err()
}
