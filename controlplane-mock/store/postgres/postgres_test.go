package postgres_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/postgres"
	"agentd/controlplane-mock/store/storetest"
	"agentd/internal/pgcluster"
	"agentd/internal/testmain"
)

func TestMain(m *testing.M) {
	testmain.Run(m)
}

// TestStore runs everything on one private cluster, each test in a schema of its own.
func TestStore(t *testing.T) {
	c := startCluster(t)
	t.Run("suite", func(t *testing.T) { storetest.Run(t, c.target()) })
	t.Run("model", func(t *testing.T) { storetest.RunModel(t, c.target()) })
	t.Run("linearizable", func(t *testing.T) { storetest.RunLinearizable(t, c.target()) })
	t.Run("keep logs", func(t *testing.T) { testKeepLogs(t, c) })
	t.Run("clock", func(t *testing.T) { testClock(t, c) })
	t.Run("migrate", func(t *testing.T) { testMigrate(t, c) })
	t.Run("instances", func(t *testing.T) { testInstances(t, c) })
}

// cluster hands out schemas.
type cluster struct {
	*pgcluster.Cluster
	pool    *pgxpool.Pool // past all stores
	schemas atomic.Int64
}

func startCluster(t testing.TB) *cluster {
	t.Helper()
	c := &cluster{Cluster: pgcluster.ForTest(t, pgcluster.Config{})}
	var err error
	if c.pool, err = pgxpool.New(t.Context(), c.URL()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.pool.Close)
	return c
}

// schema makes a schema and answers its URL. The clock is a function of the schema's own, which is found before PostgreSQL's:
// the tests set it.
func (c *cluster) schema(t testing.TB) string {
	t.Helper()
	name := fmt.Sprint("test_", c.schemas.Add(1))
	_, err := c.pool.Exec(t.Context(), fmt.Sprintf(`create schema %[1]s;
		create table %[1]s.skew (by interval not null);
		insert into %[1]s.skew values ('0');
		create function %[1]s.clock_timestamp() returns timestamptz language sql volatile as 'select pg_catalog.clock_timestamp() + by from %[1]s.skew'`, name))
	if err != nil {
		t.Fatal(err)
	}
	return c.URL() + "&search_path=" + name + ",pg_catalog"
}

// setClock sets the clock of a schema on, or back.
func (c *cluster) setClock(t testing.TB, url string, by time.Duration) {
	t.Helper()
	_, after, _ := strings.Cut(url, "search_path=")
	name, _, _ := strings.Cut(after, ",")
	if _, err := c.pool.Exec(t.Context(), "update "+name+".skew set by = by + $1", by); err != nil {
		t.Fatal(err)
	}
}

// exec runs a statement past all stores.
func (c *cluster) exec(t testing.TB, url, sql string, args ...any) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func open(t testing.TB, cfg postgres.Config) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// target opens two instances at once and spreads calls over them: whatever is promised, it is promised by both together.
func (c *cluster) target() storetest.Target {
	return storetest.Target{
		Open: func(t *testing.T) store.Store { return openFleet(t, c.schema(t)) },
		Pass: func(t *testing.T, s store.Store, d time.Duration) {
			t.Helper()
			f := s.(*fleet)
			c.setClock(t, f.url, d)
			for _, one := range f.all {
				one.Skip(d)
			}
		},
		Reopen: func(t *testing.T, s store.Store) store.Store {
			t.Helper()
			old := s.(*fleet)
			if err := old.Close(); err != nil {
				t.Fatal(err)
			}
			return openFleet(t, old.url)
		},
	}
}

// testMigrate opens on tables that somebody is using, and on those of a newer version.
func testMigrate(t *testing.T, c *cluster) {
	ctx := t.Context()
	url := c.schema(t)
	old := open(t, postgres.Config{URL: url})
	c.exec(t, url, "insert into migrations (name) values ('migrations/9999_from_the_future.sql')")
	_, after, _ := strings.Cut(url, "search_path=")
	name, _, _ := strings.Cut(after, ",")
	// A partition is to be made, and the tables can't be had for longer than one try waits for them.
	c.exec(t, url, "drop table logs_"+time.Now().UTC().AddDate(0, 0, 7).Format("20060102"))
	tx, err := c.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, "lock table "+name+".logs in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	opened := make(chan error)
	go func() {
		s, err := postgres.Open(ctx, postgres.Config{URL: url})
		if err == nil {
			err = s.Close()
		}
		opened <- err
	}()
	select {
	case err := <-opened:
		t.Errorf("opened (%v) while the tables were in use", err)
	case <-time.After(3 * time.Second):
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-opened; err != nil {
		t.Errorf("open when the tables are free again, and newer than we are: %v", err)
	}
	if _, _, err := old.Submit(ctx, store.NewJob{ID: "job", Type: "x", Payload: []byte("1"), MaxAttempts: 1}); err != nil {
		t.Errorf("the old instance: %v", err)
	}
}

// testInstances opens many at once on an empty schema: one migrates, and all agree who they are.
func testInstances(t *testing.T, c *cluster) {
	url := c.schema(t)
	const n = 6
	ids := make(chan string, n)
	for range n {
		go func() {
			s, err := postgres.Open(t.Context(), postgres.Config{URL: url})
			if err != nil {
				ids <- err.Error()
				return
			}
			defer s.Close()
			id, err := s.ServerID(t.Context())
			if err != nil {
				id = err.Error()
			}
			ids <- id
		}()
	}
	want := <-ids
	for range n - 1 {
		if got := <-ids; got != want {
			t.Errorf("two instances on one database are %q and %q", got, want)
		}
	}
}
