package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5"

	"agentd/internal/pgcluster"
	"agentd/test/stack"
)

// instances are control planes on one store, and the PostgreSQL behind them, if it is one.
type instances struct {
	all   []*stack.Stack
	urls  []string
	token string
	pg    *pgcluster.Cluster
}

// startInstances starts n of them on a PostgreSQL of their own that is as durable as an operator's, or one on redka if n is 0.
func startInstances(ctx context.Context, e env, n int, args ...string) (_ *instances, err error) {
	in := &instances{token: "bench_" + rand.Text()}
	defer func() {
		if err != nil {
			err = errors.Join(err, in.stop())
		}
	}()
	store := ""
	if n > 0 {
		if in.pg, err = pgcluster.Start(ctx, pgcluster.Config{Durable: true, Settings: []string{"shared_preload_libraries=pg_stat_statements", "shared_buffers=256MB"}}); err != nil {
			return nil, err
		}
		if err := in.sql(ctx, "create extension pg_stat_statements"); err != nil {
			return nil, err
		}
		store = in.pg.URL()
	}
	for i := range max(n, 1) {
		dir := filepath.Join(e.dir, fmt.Sprint("instance", i))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		// All instances of a control plane know the same admin token.
		if err := os.WriteFile(filepath.Join(dir, "admin-token"), []byte(in.token+"\n"), 0o600); err != nil {
			return nil, err
		}
		s, err := stack.Start(ctx, stack.Config{Bin: e.bin, Dir: dir, Store: store, NoAgent: true, ServerArgs: append([]string{"--log-level", "warn"}, args...)})
		if err != nil {
			return nil, err
		}
		in.all, in.urls = append(in.all, s), append(in.urls, s.URL)
	}
	return in, nil
}

func (in *instances) stop() error {
	var errs []error
	for _, s := range in.all {
		errs = append(errs, s.Stop())
	}
	if in.pg != nil {
		errs = append(errs, in.pg.Stop())
	}
	return errors.Join(errs...)
}

func (in *instances) sql(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, in.pg.URL())
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is lost with it
	_, err = conn.Exec(ctx, statement)
	return err
}

// work is what the database has done so far: statements executed, the questions of this bench left out, and bytes of its log written.
func (in *instances) work(ctx context.Context) (statements, wal int64, err error) {
	conn, err := pgx.Connect(ctx, in.pg.URL())
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is lost with it
	err = conn.QueryRow(ctx, `select coalesce(sum(calls), 0)::bigint, (pg_current_wal_lsn() - '0/0')::bigint
		from pg_stat_statements where query not like '%pg_stat_statements%'`).Scan(&statements, &wal)
	return statements, wal, err
}

// cpu is what the servers, and the database with all that it has ended, have used so far.
func (in *instances) cpu() (servers, database float64, err error) {
	for _, s := range in.all {
		c, err := cpuSeconds(s.Server.PID())
		if err != nil {
			return 0, 0, err
		}
		servers += c
	}
	if in.pg == nil {
		return servers, 0, nil
	}
	pids, err := in.pg.PIDs()
	if err != nil {
		return 0, 0, err
	}
	for i, pid := range pids {
		own, children, err := cpuTimes(pid)
		if err != nil {
			continue // a backend that has just ended is among its parent's children now
		}
		database += own
		if i == 0 {
			database += children
		}
	}
	return servers, database, nil
}

// pooled is a transport that many simulated agents share.
func pooled() *http.Transport { return &http.Transport{MaxIdleConnsPerHost: 1024} }

// kindOf names the store in a report.
func (in *instances) kindOf() string {
	switch {
	case in.pg == nil:
		return "redka"
	case len(in.all) == 1:
		return "PostgreSQL"
	}
	return fmt.Sprintf("PostgreSQL, %d instances", len(in.all))
}
