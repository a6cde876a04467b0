package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/rules"
)

// claim checks that ref may speak for its attempt's log, which it may for ever.
func claim(ctx context.Context, tx pgx.Tx, ref store.Ref) error {
	st, err := stateOf(ctx, tx, ref.JobID)
	if err != nil {
		return err
	}
	if st.Claimed(ref) == nil {
		return store.ErrNotFound
	}
	return nil
}

func stateOf(ctx context.Context, tx pgx.Tx, id string) (*rules.State, error) {
	var raw []byte
	if err := tx.QueryRow(ctx, "select state from jobs where id = $1", id).Scan(&raw); err != nil {
		return nil, err
	}
	var st rules.State
	return &st, json.Unmarshal(raw, &st)
}

// AppendLog stores a batch durably.
func (s *Store) AppendLog(ctx context.Context, ref store.Ref, b store.LogBatch) (int64, error) {
	var next int64
	err := s.tx(ctx, func(tx pgx.Tx) error {
		if err := claim(ctx, tx, ref); err != nil {
			return err
		}
		end := b.First + b.Count
		var err error
		if next, err = s.append(ctx, tx, ref, b); err != nil || !b.Final {
			return err
		}
		r, err := hold(ctx, tx, ref.JobID)
		if err != nil || !r.st.SetLogLength(ref.Attempt, end) {
			return err
		}
		return s.write(ctx, tx, r, r.st.Status, 0, store.Event{Kind: store.EventLogAppended, JobID: ref.JobID, Attempt: ref.Attempt})
	})
	return next, err
}

func (s *Store) append(ctx context.Context, tx pgx.Tx, ref store.Ref, b store.LogBatch) (next int64, err error) {
	if b.Count == 0 {
		return tail(ctx, tx, ref)
	}
	// Holds the tail's row: appends of one attempt are serial.
	err = tx.QueryRow(ctx, `insert into log_tails values ($1, $2, 0)
		on conflict (job_id, attempt) do update set next = log_tails.next returning next`, ref.JobID, ref.Attempt).Scan(&next)
	switch {
	case err != nil:
		return 0, err
	case b.First > next:
		return next, &store.GapError{Next: next}
	case b.First+b.Count <= next:
		return next, nil
	case b.First < next:
		trim := b.Trim
		if b, err = trim(next); err != nil {
			return next, err
		}
		if b.First != next || b.Count <= 0 {
			return next, errors.New("a trimmed batch doesn't start at next")
		}
	}
	end := b.First + b.Count
	batch := &pgx.Batch{}
	batch.Queue("insert into logs values ($1, $2, $3, $4, $5, $6, clock_timestamp(), $7)", ref.JobID, ref.Attempt, end, b.First, b.Decoded, b.Encoding, b.Body)
	batch.Queue("update log_tails set next = $3 where job_id = $1 and attempt = $2", ref.JobID, ref.Attempt, end)
	s.notify(batch, store.Event{Kind: store.EventLogAppended, JobID: ref.JobID, Attempt: ref.Attempt})
	return end, tx.SendBatch(ctx, batch).Close()
}

func tail(ctx context.Context, tx pgx.Tx, ref store.Ref) (next int64, err error) {
	err = tx.QueryRow(ctx, "select next from log_tails where job_id = $1 and attempt = $2", ref.JobID, ref.Attempt).Scan(&next)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	return next, err
}

// LogNext answers what is stored.
func (s *Store) LogNext(ctx context.Context, ref store.Ref) (next int64, err error) {
	err = s.tx(ctx, func(tx pgx.Tx) error {
		if err := claim(ctx, tx, ref); err != nil {
			return err
		}
		next, err = tail(ctx, tx, ref)
		return err
	})
	return next, err
}

// ReadLog returns stored batches that cover numbers from on.
func (s *Store) ReadLog(ctx context.Context, jobID string, attempt, from int64, maxBytes int) (out []store.LogBatch, err error) {
	err = s.tx(ctx, func(tx pgx.Tx) error {
		st, err := stateOf(ctx, tx, jobID)
		if err != nil {
			return err
		}
		if st.Find(attempt) == nil {
			return store.ErrNotFound
		}
		// The size is summed before any body is read. The first batch comes whatever its size.
		rows, err := tx.Query(ctx, `select first, last, decoded, encoding, received, body from (
				select *, sum(octet_length(body)) over (order by last) as size, row_number() over (order by last) as n
				from (select * from logs where job_id = $1 and attempt = $2 and last > $3 order by last limit 64) as ahead
			) as sized where n = 1 or size <= $4 order by last`, jobID, attempt, from, maxBytes)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var b store.LogBatch
			var last int64
			if err := rows.Scan(&b.First, &last, &b.Decoded, &b.Encoding, &b.ReceivedAt, &b.Body); err != nil {
				return fmt.Errorf("log of job %s attempt %d: %w", jobID, attempt, err)
			}
			b.Count, b.ReceivedAt = last-b.First, b.ReceivedAt.UTC()
			out = append(out, b)
		}
		return rows.Err()
	})
	return out, err
}
