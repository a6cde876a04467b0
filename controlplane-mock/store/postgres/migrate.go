package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

//go:embed migrations/*.sql
var migrations embed.FS

// waitForTables bounds how long a change of tables waits for those who use them. Everyone else queues up behind it
// meanwhile, so it gives up early and comes back.
const waitForTables = 2 * time.Second

// migrate applies the migrations that the schema hasn't had yet. Every one must leave the tables usable for instances of the
// version before: they go on meanwhile and after. For the same reason, migrations that we don't know are no fault.
func (s *Store) migrate(ctx context.Context) error {
	if err := s.pool.QueryRow(ctx, "select coalesce(current_schema(), '')").Scan(&s.schema); err != nil {
		return err
	}
	if s.schema == "" {
		return errors.New("the search_path names no schema that exists")
	}
	s.channel = "agentd_" + s.schema
	names, err := fs.Glob(migrations, "migrations/*.sql") // in order
	if err != nil || s.migrated(ctx, names) {
		return err
	}
	return s.alterTables(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "create table if not exists migrations (name text primary key, at timestamptz not null default now())"); err != nil {
			return err
		}
		for _, name := range names {
			if err := apply(ctx, tx, name); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
}

// migrated says that there is nothing to do, as at most starts. An error says only that it isn't known.
func (s *Store) migrated(ctx context.Context, names []string) bool {
	var had int
	err := s.pool.QueryRow(ctx, "select count(*) from migrations where name = any ($1)", names).Scan(&had)
	return err == nil && had == len(names)
}

func apply(ctx context.Context, tx pgx.Tx, name string) error {
	tag, err := tx.Exec(ctx, "insert into migrations (name) values ($1) on conflict do nothing", name)
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	sql, err := migrations.ReadFile(name)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, string(sql))
	return err
}

// alterTables calls f in a transaction that one instance at a time is in, again while somebody else is using the tables.
func (s *Store) alterTables(ctx context.Context, f func(tx pgx.Tx) error) error {
	lock := fnv.New64a()
	_, _ = lock.Write([]byte(s.channel))
	try := func() error {
		err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1)", int64(lock.Sum64())); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, fmt.Sprintf("set local lock_timeout = %d", waitForTables.Milliseconds())); err != nil {
				return err
			}
			return f(tx)
		})
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "55P03" { // lock_not_available
			return err
		}
		if err != nil {
			return backoff.Permanent(err)
		}
		return nil
	}
	return backoff.Retry(try, backoff.WithContext(backoff.NewExponentialBackOff(backoff.WithMaxElapsedTime(time.Minute)), ctx))
}
