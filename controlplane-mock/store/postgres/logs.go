package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"agentd/controlplane-mock/store"
)

// logKey names an attempt's log.
type logKey struct {
	jobID   string
	attempt int64
}

// claimCache remembers whose attempts are: that never changes, so it needs no forgetting but for lack of room.
type claimCache struct {
	mu   sync.Mutex
	mine map[logKey]string // guarded by mu
}

// maxClaims is how many are remembered. One that isn't costs a statement.
const maxClaims = 1 << 15

func (c *claimCache) knows(ref store.Ref) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	agent, ok := c.mine[logKey{ref.JobID, ref.Attempt}]
	return ok && agent == ref.AgentID
}

func (c *claimCache) learn(ref store.Ref) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mine == nil || len(c.mine) >= maxClaims {
		c.mine = map[logKey]string{} // they are soon learnt again
	}
	c.mine[logKey{ref.JobID, ref.Attempt}] = ref.AgentID
}

// claim checks that ref may speak for its attempt's log, which it may for ever.
func (s *Store) claim(ctx context.Context, ref store.Ref) error {
	if s.claims.knows(ref) {
		return nil
	}
	r, err := s.read(ctx, ref.JobID)
	if err != nil {
		return err
	}
	if r.st.Claimed(ref) == nil {
		return store.ErrNotFound
	}
	s.claims.learn(ref)
	return nil
}

// appending is one caller's batch.
type appending struct {
	ref    store.Ref
	b      store.LogBatch
	packed bool
	placed bool // it began where the log ended, and is stored; set before done is closed, as err
	err    error
	done   chan struct{}
}

func (a *appending) size() int { return len(a.b.Body) }

// key: of one log, a statement appends one batch.
func (a *appending) key() string { return a.ref.JobID + "/" + strconv.FormatInt(a.ref.Attempt, 10) }

// AppendLog stores a batch durably.
func (s *Store) AppendLog(ctx context.Context, ref store.Ref, b store.LogBatch) (next int64, err error) {
	limited, ended, err := s.change(ctx)
	if err != nil {
		return 0, err
	}
	defer ended()
	if err := s.claim(limited, ref); err != nil {
		return 0, wrap(err)
	}
	switch a := s.packed(ref, b); {
	case b.Count == 0:
		next, err = s.tail(limited, ref)
	case b.First < 0 || b.Count < 0:
		return 0, fmt.Errorf("postgres: record numbers %d+%d are out of range", b.First, b.Count)
	default:
		s.appends.add(a, false)
		select {
		case <-a.done:
			next, err = b.First+b.Count, a.err
			if err == nil && !a.placed {
				next, err = s.place(limited, ref, b)
			}
		case <-ctx.Done(): // stored all the same
			return 0, ctx.Err()
		}
	}
	if err != nil || !b.Final {
		return next, wrap(err)
	}
	// Not in the same transaction: if we die in between, the agent has no answer and sends this again.
	return next, s.alter(ctx, ref.JobID, func(r *row) (bool, error) {
		return r.st.SetLogLength(ref.Attempt, b.First+b.Count), nil
	}, store.Event{Kind: store.EventLogAppended, JobID: ref.JobID, Attempt: ref.Attempt})
}

// packAbove is the size from which a plain body is compressed: a smaller one fits into its row's page either way.
const packAbove = 512

// packed compresses a body that came plain.
func (s *Store) packed(ref store.Ref, b store.LogBatch) *appending {
	a := &appending{ref: ref, b: b, done: make(chan struct{})}
	if b.Encoding == "identity" && len(b.Body) > packAbove {
		if body := s.packer.EncodeAll(b.Body, nil); len(body) < len(b.Body) {
			a.b.Body, a.packed = body, true
		}
	}
	return a
}

// append stores many batches in one statement, each where its log ends. Those that don't begin there are left out.
func (s *Store) append(items []*appending) {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	err := s.appendAll(ctx, items)
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == noPartition {
		if err = s.partition(ctx); err == nil {
			err = s.appendAll(ctx, items)
		}
	}
	// PostgreSQL took exception to one of them: it must not hold up the others for ever.
	_, refused := errors.AsType[*pgconn.PgError](err)
	for _, a := range items {
		if a.err = err; refused && len(items) > 1 {
			a.err = s.appendAll(ctx, []*appending{a})
		}
		close(a.done)
	}
}

// noPartition is what PostgreSQL says of a row that belongs to no partition (check_violation).
const noPartition = "23514"

// insertSQL moves the ends of logs and stores the batches that they moved over. The first batch of a log makes its end. Ends are
// taken in order, so that two such statements never wait for each other.
const insertSQL = `with wanted as (
		select * from unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::boolean[], $8::bytea[])
			with ordinality as w (job_id, attempt, first, last, decoded, encoding, packed, body, n)
	), moved as (
		insert into log_tails as t (job_id, attempt, prev, next)
		select job_id, attempt, first, last from wanted w
		where first = 0 or exists (select from log_tails x where x.job_id = w.job_id and x.attempt = w.attempt)
		order by job_id, attempt
		on conflict (job_id, attempt) do update set prev = excluded.prev, next = excluded.next where t.next = excluded.prev
		returning job_id, attempt
	), stored as (
		insert into logs (job_id, attempt, last, first, decoded, encoding, packed, received, body)
		select w.job_id, w.attempt, w.last, w.first, w.decoded, w.encoding, w.packed, clock_timestamp(), w.body
		from wanted w join moved m on m.job_id = w.job_id and m.attempt = w.attempt
	) select w.n from wanted w join moved m on m.job_id = w.job_id and m.attempt = w.attempt`

func (s *Store) appendAll(ctx context.Context, items []*appending) error {
	n := len(items)
	jobs, attempts, firsts, lasts := make([]string, n), make([]int64, n), make([]int64, n), make([]int64, n)
	decoded, encodings, packed, bodies := make([]int64, n), make([]string, n), make([]bool, n), make([][]byte, n)
	for i, a := range items {
		jobs[i], attempts[i], firsts[i], lasts[i] = a.ref.JobID, a.ref.Attempt, a.b.First, a.b.First+a.b.Count
		decoded[i], encodings[i], packed[i], bodies[i] = a.b.Decoded, a.b.Encoding, a.packed, a.b.Body
	}
	rows, err := s.pool.Query(ctx, insertSQL, jobs, attempts, firsts, lasts, decoded, encodings, packed, bodies)
	if err != nil {
		return err
	}
	placed, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return err
	}
	events := make([]store.Event, 0, len(placed))
	for _, i := range placed {
		a := items[i-1]
		a.placed = true
		events = append(events, store.Event{Kind: store.EventLogAppended, JobID: a.ref.JobID, Attempt: a.ref.Attempt})
	}
	s.tell(events...)
	return nil
}

// place deals with a batch that didn't begin where its log ends: it is dropped, trimmed or refused. By now it may begin there.
func (s *Store) place(ctx context.Context, ref store.Ref, b store.LogBatch) (int64, error) {
	for {
		next, err := s.tail(ctx, ref)
		switch {
		case err != nil:
			return 0, err
		case b.First > next:
			return next, &store.GapError{Next: next}
		case b.First+b.Count <= next:
			return next, nil
		}
		cut := b
		if b.First < next {
			if cut, err = b.Trim(next); err != nil {
				return next, err
			}
			if cut.First != next || cut.Count <= 0 {
				return next, errors.New("a trimmed batch doesn't start at next")
			}
		}
		a := s.packed(ref, cut)
		if err := s.appendAll(ctx, []*appending{a}); err != nil {
			return 0, err
		}
		if a.placed {
			return cut.First + cut.Count, nil
		} // else somebody else's copy of it got in: each loss is its progress, and ctx ends
	}
}

// tail is where a log ends.
func (s *Store) tail(ctx context.Context, ref store.Ref) (next int64, err error) {
	err = s.pool.QueryRow(ctx, "select next from log_tails where job_id = $1 and attempt = $2", ref.JobID, ref.Attempt).Scan(&next)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	return next, err
}

// LogNext answers what is stored.
func (s *Store) LogNext(ctx context.Context, ref store.Ref) (int64, error) {
	ctx, ended, err := s.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer ended()
	if err := s.claim(ctx, ref); err != nil {
		return 0, wrap(err)
	}
	next, err := s.tail(ctx, ref)
	return next, wrap(err)
}

// ReadLog returns stored batches that cover numbers from on. What was dropped for its age is a gap.
func (s *Store) ReadLog(ctx context.Context, jobID string, attempt, from int64, maxBytes int) ([]store.LogBatch, error) {
	ctx, ended, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer ended()
	from = max(from, 0)
	r, err := s.read(ctx, jobID)
	if err != nil {
		return nil, wrap(err)
	}
	if r.st.Find(attempt) == nil {
		return nil, store.ErrNotFound
	}
	// The end before the batches: what is below it and not there any more was dropped, and nothing was just added.
	next, err := s.tail(ctx, store.Ref{JobID: jobID, Attempt: attempt})
	if err != nil {
		return nil, wrap(err)
	}
	out, err := s.batches(ctx, jobID, attempt, from, maxBytes)
	if err != nil {
		return nil, fmt.Errorf("postgres: log of job %s attempt %d: %w", jobID, attempt, err)
	}
	stored := next
	if len(out) > 0 {
		stored = out[0].First
	}
	if from < stored {
		out = append([]store.LogBatch{store.Expired(from, stored-from)}, out...)
	}
	return out, nil
}

func (s *Store) batches(ctx context.Context, jobID string, attempt, from int64, maxBytes int) (out []store.LogBatch, err error) {
	// The size is summed before any body is read. The first batch comes whatever its size.
	rows, err := s.pool.Query(ctx, `select first, last, decoded, encoding, packed, received, body from (
			select *, sum(octet_length(body)) over (order by last) as size, row_number() over (order by last) as n
			from (select * from logs where job_id = $1 and attempt = $2 and last > $3 order by last limit 64) as ahead
		) as sized where n = 1 or size <= $4 order by last`, jobID, attempt, from, maxBytes)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var b store.LogBatch
		var last int64
		var packed bool
		if err := rows.Scan(&b.First, &last, &b.Decoded, &b.Encoding, &packed, &b.ReceivedAt, &b.Body); err != nil {
			return nil, err
		}
		if packed {
			if b.Body, err = s.unpacker.DecodeAll(b.Body, nil); err != nil {
				return nil, fmt.Errorf("the batch at %d: %w", b.First, err)
			}
		}
		b.Count, b.ReceivedAt = last-b.First, b.ReceivedAt.UTC()
		out = append(out, b)
	}
	return out, rows.Err()
}
