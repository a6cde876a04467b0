package postgres

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/klauspost/compress/zstd"
	"go.uber.org/zap"

	"agentd/controlplane-mock/store"
)

var _ store.Store = (*Store)(nil)

// Config says which database, and how long logs are kept.
type Config struct {
	URL string // postgres://…, with the pool_* settings of pgxpool
	// KeepLogs is how long log batches are kept; 0: for ever. Whole days go at once, so some are kept for a day longer.
	KeepLogs time.Duration
	Logger   *zap.Logger // nil: nothing is logged
}

const (
	// callTime bounds a call. A database that doesn't answer within it counts as lost: the client is told to come
	// back, which costs less than one more request that waits.
	callTime = 10 * time.Second
	// connectTime bounds making a connection, for the same reason.
	connectTime = 5 * time.Second
	// defaultConns is how many statements an instance has under way. Commits that wait for the disk together cost one
	// sync, so more connections than processors pay; six instances still fit into PostgreSQL's default of 100.
	defaultConns = 14
	// lazyConns is how many connections do what needn't be durable: NOTIFY, and stamps for people to read.
	lazyConns = 2
)

// Store keeps everything in one schema of a database: the first of the connection's search_path.
type Store struct {
	cfg      Config
	log      *zap.Logger
	pool     *pgxpool.Pool // its commits are durable
	lazy     *pgxpool.Pool // its commits may be lost with a crash of the database
	schema   string
	channel  string // of notifications: one for each schema
	instance string // names this Store in notifications, so that it needn't hear its own

	calls      sync.WaitGroup // public calls under way
	background sync.WaitGroup // goroutines of the batchers

	renewals *batcher[*renewal]
	appends  *batcher[*appending]
	notices  *batcher[store.Event]
	stamps   *batcher[string]

	watchers watchers
	keys     keyCache
	claims   claimCache
	seen     touched
	packer   *zstd.Encoder
	unpacker *zstd.Decoder

	mu        sync.Mutex
	now       func() time.Time // guarded by mu: time.Now, but in tests
	closed    bool             // guarded by mu
	away      bool             // guarded by mu: something that lets leases be renewed failed
	booted    time.Time        // guarded by mu: when the database started, by its own clock
	clock     time.Time        // guarded by mu: what the database's clock was at the start or the last sweep
	clockAt   time.Time        // guarded by mu: monotonic; when that was
	spareFrom time.Time        // guarded by mu: monotonic; no sweep within a TTL from then
	restUntil time.Time        // guarded by mu
	owed      bool             // guarded by mu: notices were lost; the others are to look at everything again
}

// Open connects to the database and brings its tables up to date. Instances may do so at the same time: one migrates, the others wait.
func Open(ctx context.Context, cfg Config) (_ *Store, err error) {
	pc, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	if cfg.KeepLogs < 0 {
		return nil, fmt.Errorf("postgres: KeepLogs: %v is negative", cfg.KeepLogs)
	}
	if !strings.Contains(cfg.URL, "pool_max_conns") {
		pc.MaxConns = defaultConns
	}
	pc.ConnConfig.ConnectTimeout = connectTime
	p := pc.ConnConfig.RuntimeParams
	p["application_name"] = "agentd-controlplane"
	p["synchronous_commit"] = "on" // an acknowledged log batch survives a power cut, whatever the database's default is
	// What an instance that fell silent still holds is let go about when its own calls have given up.
	p["idle_in_transaction_session_timeout"] = strconv.FormatInt(callTime.Milliseconds(), 10)
	lc := pc.Copy()
	lc.MaxConns, lc.MinConns = lazyConns, 0
	lc.ConnConfig.RuntimeParams["synchronous_commit"] = "off"

	s := &Store{cfg: cfg, log: cfg.Logger, now: time.Now, instance: hex.EncodeToString(random(8))}
	if s.log == nil {
		s.log = zap.NewNop()
	}
	if s.packer, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest)); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	if s.unpacker, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(0)); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	s.batchers()
	if s.pool, err = pgxpool.NewWithConfig(ctx, pc); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	if s.lazy, err = pgxpool.NewWithConfig(ctx, lc); err != nil {
		s.pool.Close()
		return nil, fmt.Errorf("postgres: %w", err)
	}
	if err = s.migrate(ctx); err == nil {
		err = s.partition(ctx)
	}
	if err == nil {
		err = s.pool.QueryRow(ctx, "select clock_timestamp(), pg_postmaster_start_time()").Scan(&s.clock, &s.booted)
	}
	if err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("postgres: %w", err)
	}
	s.clockAt = s.now()
	s.spareFrom = s.clockAt // from now on leases can be renewed here
	return s, nil
}

func (s *Store) batchers() {
	s.renewals = newBatcher(&s.background, &batcher[*renewal]{flush: s.renew, gap: renewGap, most: 1000})
	s.appends = newBatcher(&s.background, &batcher[*appending]{
		flush: s.append, lanes: 2, most: 256, bytes: 8 << 20, size: (*appending).size, key: (*appending).key,
	})
	s.notices = newBatcher(&s.background, &batcher[store.Event]{flush: s.notify, gap: noticeGap, most: 4096})
	s.stamps = newBatcher(&s.background, &batcher[string]{flush: s.stamp, gap: time.Second, most: 5000})
}

// begin lets a call in. Its context is bounded in time; ended must be called.
func (s *Store) begin(ctx context.Context) (_ context.Context, ended func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, store.ErrStopped
	}
	s.calls.Add(1)
	ctx, cancel := context.WithTimeout(ctx, callTime)
	return ctx, func() { cancel(); s.calls.Done() }, nil
}

// change is begin for a call that changes something: what was sent is carried out whether or not the caller stays, so
// that nobody passes over a job that is about to be given back.
func (s *Store) change(ctx context.Context) (context.Context, func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	return s.begin(context.WithoutCancel(ctx))
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
	ctx, ended, err := s.change(ctx)
	if err != nil {
		return nil, err
	}
	defer ended()
	if _, err := s.pool.Exec(ctx, "insert into meta values ($1, $2) on conflict do nothing", key, first()); err != nil {
		return nil, wrap(err)
	}
	var out []byte
	err = s.pool.QueryRow(ctx, "select value from meta where key = $1", key).Scan(&out)
	return out, wrap(err)
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

// violates says that err is a breach of the named constraint.
func violates(err error, constraint string) bool {
	const unique = "23505"
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == unique && pg.ConstraintName == constraint
}

// tx calls f in a transaction and commits it durably unless f fails.
func (s *Store) tx(ctx context.Context, f func(ctx context.Context, tx pgx.Tx) error) error {
	ctx, ended, err := s.change(ctx)
	if err != nil {
		return err
	}
	defer ended()
	return wrap(pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return f(ctx, tx) }))
}

// Ping answers whether the database can serve.
func (s *Store) Ping(ctx context.Context) error {
	ctx, ended, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer ended()
	ctx, cancel := context.WithTimeout(ctx, pingTime)
	defer cancel()
	return wrap(s.pool.Ping(ctx))
}

// pingTime is how long a database may take to say that it is there: below the timeouts of those who ask for readiness.
const pingTime = 2 * time.Second

// Close ends all connections, after the calls under way.
func (s *Store) Close() error {
	s.mu.Lock()
	was := s.closed
	s.closed = true
	s.mu.Unlock()
	if was {
		return nil
	}
	s.calls.Wait()
	s.background.Wait()
	s.pool.Close()
	if s.lazy != nil {
		s.lazy.Close()
	}
	s.unpacker.Close()
	return nil
}
