package postgres

import (
	"context"
	"crypto/rand"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentd/controlplane-mock/store"
)

var _ store.Store = (*Store)(nil)

//go:embed migrations/*.sql
var migrations embed.FS

// Store keeps everything in one schema of a database: the first of the connection's search_path.
type Store struct {
	pool    *pgxpool.Pool
	channel string // of notifications: one for each schema

	mu        sync.Mutex
	closed    bool
	away      bool      // guarded by mu: the last sweep failed
	spareFrom time.Time // guarded by mu: monotonic; no sweep within a TTL from then
	restUntil time.Time // guarded by mu
}

// Open connects to the database that a postgres:// URL names and brings its tables up to date.
// Instances may do so at the same time: one migrates, the others wait.
func Open(ctx context.Context, url string) (*Store, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	cfg.ConnConfig.RuntimeParams["synchronous_commit"] = "on" // an acknowledged log batch survives a power cut
	cfg.ConnConfig.RuntimeParams["application_name"] = "agentd-controlplane"
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	s := &Store{pool: pool, spareFrom: time.Now()}
	if err := s.migrate(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("postgres: %w", err)
	}
	return s, nil
}

// migrate applies, each in a transaction, the migrations that the schema hasn't had yet. Every one must leave the tables
// usable for instances of the version before.
func (s *Store) migrate(ctx context.Context) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var schema string
	if err := conn.QueryRow(ctx, "select current_schema()").Scan(&schema); err != nil {
		return fmt.Errorf("the schema of search_path: %w", err)
	}
	s.channel = "agentd_" + schema
	lock := fnv.New64a()
	_, _ = lock.Write([]byte(s.channel))
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1)", int64(lock.Sum64())); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "create table if not exists migrations (name text primary key, at timestamptz not null default now())"); err != nil {
			return err
		}
		names, err := fs.Glob(migrations, "migrations/*.sql") // in order
		if err != nil {
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

// ServerID names the control plane.
func (s *Store) ServerID(ctx context.Context) (string, error) {
	raw, err := s.once(ctx, "server-id", func() []byte { return []byte("cp_" + hex.EncodeToString(random(12))) })
	return string(raw), err
}

// Secret returns the named secret, made at first use.
func (s *Store) Secret(ctx context.Context, name string) ([]byte, error) {
	return s.once(ctx, "secret/"+name, func() []byte { return random(32) })
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

// once reads key, or sets it to what first answers; who comes second reads what the first one set.
func (s *Store) once(ctx context.Context, key string, first func() []byte) ([]byte, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	if _, err := s.pool.Exec(ctx, "insert into meta values ($1, $2) on conflict do nothing", key, first()); err != nil {
		return nil, wrap(err)
	}
	var out []byte
	return out, wrap(s.pool.QueryRow(ctx, "select value from meta where key = $1", key).Scan(&out))
}

// open answers ErrStopped once the store is closed.
func (s *Store) open() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return store.ErrStopped
	}
	return nil
}

// wrap says where an error comes from, unless it is one of the store's own.
func wrap(err error) error {
	if err == nil {
		return nil
	}
	for _, own := range []error{
		store.ErrNotFound, store.ErrLeaseLost, store.ErrConflict, store.ErrDenied, store.ErrIdentity, store.ErrRevoked, store.ErrNoJob, store.ErrStopped,
	} {
		if errors.Is(err, own) {
			return err
		}
	}
	if _, ok := errors.AsType[*store.GapError](err); ok {
		return err
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return store.ErrNotFound
	}
	return fmt.Errorf("postgres: %w", err)
}

// tx calls f in a transaction and commits it durably unless f fails.
func (s *Store) tx(ctx context.Context, f func(tx pgx.Tx) error) error {
	if err := s.open(); err != nil {
		return err
	}
	return wrap(pgx.BeginFunc(ctx, s.pool, f))
}

// Ping answers whether the database can serve.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.open(); err != nil {
		return err
	}
	return wrap(s.pool.Ping(ctx))
}

// Close ends all connections, after the calls under way.
func (s *Store) Close() error {
	s.mu.Lock()
	was := s.closed
	s.closed = true
	s.mu.Unlock()
	if !was {
		s.pool.Close()
	}
	return nil
}
