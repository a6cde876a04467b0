package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/rules"
)

// row is a job as it is stored.
type row struct {
	seq     int64
	version int64
	spec    store.NewJob
	st      rules.State
	created time.Time
	now     time.Time // the database's
	due     bool      // its lease has run out
}

// rowColumns are what scan reads, of jobs j and specs s.
const rowColumns = `j.seq, j.version, j.created_at, clock_timestamp(), coalesce(j.lease_until <= clock_timestamp(), false),
	j.status, j.state, j.last, j.live_agent, j.live_poll, j.offered_at, j.started_at, j.log_records, j.spooled, s.spec, s.payload`

func (r *row) scan(from pgx.Row, more ...any) error {
	var status store.Status
	var state, spec, payload []byte
	var last, spooled int64
	var agent, poll *string
	var offered, started *time.Time
	var records *int64
	err := from.Scan(append([]any{
		&r.seq, &r.version, &r.created, &r.now, &r.due, &status, &state, &last, &agent, &poll, &offered, &started, &records, &spooled, &spec, &payload,
	}, more...)...)
	if err != nil {
		return err
	}
	if err := errors.Join(json.Unmarshal(state, &r.st), json.Unmarshal(spec, &r.spec)); err != nil {
		return err
	}
	r.now, r.created, r.spec.Payload = r.now.UTC(), r.created.UTC(), payload
	r.st.Status, r.st.Last = status, last
	if agent == nil {
		return nil
	}
	live := store.Attempt{
		Number: last, State: store.AttemptOffered, AgentID: *agent, PollID: *poll, OfferedAt: offered.UTC(), LogRecords: records, SpooledBytes: spooled,
	}
	if status == store.Running {
		live.State, live.Accepted, live.StartedAt = store.AttemptRunning, true, started.UTC()
	}
	r.st.Add(live)
	return nil
}

// job is what the row says, without what is in tables of its own.
func (r *row) job() store.Job {
	n := r.spec
	return store.Job{
		NewJob: n, Status: r.st.Status, Reason: r.st.Reason, CancelRequested: r.st.CancelRequested, CancelReason: r.st.CancelReason,
		CreatedAt: r.created, Attempts: r.st.Attempts,
	}
}

func (s *Store) read(ctx context.Context, id string) (*row, error) {
	var r row
	err := r.scan(s.pool.QueryRow(ctx, "select "+rowColumns+" from jobs j join specs s on s.job_id = j.id where j.id = $1", id))
	return &r, err
}

// alter lets f change a job's state, and writes what it changed if nothing else changed the job meanwhile; if something
// did, f decides anew. So nobody waits for a lock that is held while somebody thinks.
func (s *Store) alter(ctx context.Context, id string, f func(r *row) (changed bool, err error), events ...store.Event) error {
	ctx, ended, err := s.change(ctx)
	if err != nil {
		return err
	}
	defer ended()
	for written := false; !written; { // each loss is another's progress, and ctx ends
		r, err := s.read(ctx, id)
		if err != nil {
			return wrap(err)
		}
		changed, err := f(r)
		if err != nil || !changed {
			return wrap(err)
		}
		if written, err = s.write(ctx, r); err != nil {
			return wrap(err)
		}
		if written && r.st.Status == store.Pending {
			// Also if it was pending before: a poll may have passed over the row while we held it.
			events = append(events, store.Event{Kind: store.EventJobPending, JobID: id, Wants: store.WantsOf(&r.spec)})
		}
	}
	s.tell(append(events, store.Event{Kind: store.EventJobChanged, JobID: id})...)
	return nil
}

// write stores the state of a job whose row has not changed since it was read; written says that it hadn't. Of a row that was
// read as due, the lease must still have run out.
func (s *Store) write(ctx context.Context, r *row) (written bool, err error) {
	st := r.st.Clone()
	runBy := []string{}
	var numbers []int64
	var results [][]byte
	for i := range st.Attempts {
		a := &st.Attempts[i]
		if a.Accepted && !slices.Contains(runBy, a.AgentID) {
			runBy = append(runBy, a.AgentID)
		}
		if a.Result != nil {
			numbers, results = append(numbers, a.Number), append(results, a.Result)
			a.Result = nil
		}
		a.SpooledBytes = 0
	}
	var records *int64
	live := st.Live()
	if live != nil {
		records = live.LogRecords
		st.Attempts = st.Attempts[:len(st.Attempts)-1]
	}
	state, err := json.Marshal(&st)
	if err != nil {
		return false, err
	}
	var cancel *string
	if st.CancelRequested {
		cancel = &st.CancelReason
	}
	err = s.pool.QueryRow(ctx, `with saved as (
			update jobs set version = version + 1, state = @state, status = @status, cancel = @cancel, run_by = @run_by, log_records = @records,
				live_agent = case when @live then live_agent end, live_poll = case when @live then live_poll end,
				offered_at = case when @live then offered_at end, started_at = case when @live then started_at end,
				lease_until = case when @live then lease_until end,
				pending_at = case when @status = 'pending' then clock_timestamp() else pending_at end
			where id = @id and version = @version and (not @due or lease_until <= clock_timestamp()) returning id
		), kept as (
			insert into results select saved.id, r.attempt, r.result from saved, unnest(@numbers::bigint[], @results::bytea[]) r (attempt, result)
			on conflict do nothing
		) select exists (select from saved)`, pgx.NamedArgs{
		"id": r.spec.ID, "version": r.version, "due": r.due && live == nil, "state": state, "status": string(st.Status), "cancel": cancel, "run_by": runBy,
		"records": records, "live": live != nil, "numbers": numbers, "results": results,
	}).Scan(&written)
	return written, err
}

// Submit stores a new pending job.
func (s *Store) Submit(ctx context.Context, n store.NewJob) (store.Job, bool, error) {
	ctx, ended, err := s.change(ctx)
	if err != nil {
		return store.Job{}, false, err
	}
	defer ended()
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
	r := row{spec: n, st: st}
	err = s.pool.QueryRow(ctx, `with j as (
			insert into jobs (id, type, agent_id, labels, idem, body_sum, grace, status, state) values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
			on conflict do nothing returning id, created_at
		), s as (
			insert into specs select id, $10::bytea, $11::bytea from j
		) select created_at from j`,
		n.ID, n.Type, n.AgentID, labelsOf(n.Labels), idem, n.BodySum[:], n.Grace.Microseconds(), string(st.Status), state, specDoc, []byte(n.Payload)).Scan(&r.created)
	if err == nil {
		s.tell(store.Event{Kind: store.EventJobPending, JobID: n.ID, Wants: store.WantsOf(&n)})
		r.created = r.created.UTC()
		return r.job(), true, nil
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return store.Job{}, false, wrap(err)
	}
	var id string
	var sum []byte
	err = s.pool.QueryRow(ctx, "select id, body_sum from jobs where idem = $1", idem).Scan(&id, &sum)
	switch {
	case errors.Is(err, pgx.ErrNoRows), err == nil && string(sum) != string(n.BodySum[:]):
		return store.Job{}, false, store.ErrConflict // another body, or the id is taken
	case err != nil:
		return store.Job{}, false, wrap(err)
	}
	job, err := s.job(ctx, id)
	return job, false, err
}

func labelsOf(labels map[string]string) map[string]string {
	if labels == nil {
		return map[string]string{}
	}
	return labels
}

// Job is a job with all its attempts.
func (s *Store) Job(ctx context.Context, id string) (store.Job, error) {
	ctx, ended, err := s.begin(ctx)
	if err != nil {
		return store.Job{}, err
	}
	defer ended()
	return s.job(ctx, id)
}

func (s *Store) job(ctx context.Context, id string) (store.Job, error) {
	rows, err := s.query(ctx, "where j.id = $1", id)
	if err != nil {
		return store.Job{}, wrap(err)
	}
	if len(rows) == 0 {
		return store.Job{}, store.ErrNotFound
	}
	return rows[0].job(), nil
}

// Jobs lists jobs oldest first. The cursor is the last one's number.
func (s *Store) Jobs(ctx context.Context, f store.JobFilter) ([]store.Job, string, error) {
	ctx, ended, err := s.begin(ctx)
	if err != nil {
		return nil, "", err
	}
	defer ended()
	after := int64(0)
	if f.After != "" {
		if after, err = strconv.ParseInt(f.After, 10, 64); err != nil {
			return nil, "", store.ErrNotFound
		}
	}
	limit := f.Limit
	if limit <= 0 {
		limit = 1 << 30
	}
	rows, err := s.query(ctx, `where j.seq > $1 and ($2 = '' or j.status = $2) and ($3 = '' or j.type = $3)
		and ($4 = '' or j.agent_id = $4 or $4 = any (j.run_by)) order by j.seq limit $5`,
		after, string(f.Status), f.Type, f.AgentID, limit+1)
	if err != nil {
		return nil, "", wrap(err)
	}
	next := ""
	if len(rows) > limit {
		rows = rows[:limit]
		next = strconv.FormatInt(rows[limit-1].seq, 10)
	}
	items := make([]store.Job, len(rows))
	for i := range rows {
		items[i] = rows[i].job()
	}
	return items, next, nil
}

// query reads whole jobs, in one statement.
func (s *Store) query(ctx context.Context, where string, args ...any) ([]row, error) {
	rows, err := s.pool.Query(ctx, "select "+rowColumns+`, t.attempts, t.nexts, r.attempts, r.results from jobs j
		join specs s on s.job_id = j.id
		left join lateral (select array_agg(attempt) as attempts, array_agg(next) as nexts from log_tails where job_id = j.id) t on true
		left join lateral (select array_agg(attempt) as attempts, array_agg(result) as results from results where job_id = j.id) r on true `+where, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []row
	for rows.Next() {
		var r row
		var tails, nexts, have []int64
		var results [][]byte
		if err := r.scan(rows, &tails, &nexts, &have, &results); err != nil {
			return nil, err
		}
		for i, number := range tails {
			if a := r.st.Find(number); a != nil {
				a.LogNext = nexts[i]
			}
		}
		for i, number := range have {
			if a := r.st.Find(number); a != nil {
				a.Result = results[i]
			}
		}
		out = append(out, r)
	}
	return out, rows.Err()
}
