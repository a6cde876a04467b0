package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"agentd/agent/protocol"
	"agentd/test/fleet"
)

const (
	leasePollers = 64
	leaseJobs    = 6400 // a hundred for each poller
)

// benchLease measures how fast jobs go out, and how fast one that comes is picked up.
func benchLease(ctx context.Context, e env, r *report) error {
	plain, leased, err := leaseOnPostgres(ctx, e, r)
	if err != nil {
		return err
	}
	r.atLeast("that ÷ the plain loop", "×", leased/plain, 0.5)
	return leaseOnRedka(ctx, e, r)
}

func leaseOnPostgres(ctx context.Context, e env, r *report) (plain, leased float64, err error) {
	// No offer lapses meanwhile: what is measured is that each job goes out once.
	in, err := startInstances(ctx, e, 3, "--lease-ttl", "10m")
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, in.stop()) }()
	before, err := plainLoop(ctx, e, in)
	if err != nil {
		return 0, 0, err
	}
	if leased, err = leaseAll(ctx, in, r); err != nil {
		return 0, 0, err
	}
	after, err := plainLoop(ctx, e, in)
	if err != nil {
		return 0, 0, err
	}
	plain = (before + after) / 2
	r.value("SELECT … FOR UPDATE SKIP LOCKED + UPDATE, pgbench -c 64", "%9.0f jobs/s", plain)
	r.value("jobs leased, 64 pollers over 3 instances on PostgreSQL", "%9.0f jobs/s", leased)
	return plain, leased, pickup(ctx, in, r)
}

func leaseOnRedka(ctx context.Context, e env, r *report) (err error) {
	in, err := startInstances(ctx, env{bin: e.bin, dir: filepath.Join(e.dir, "redka")}, 0, "--lease-ttl", "10m")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.stop()) }()
	n, err := leaseAll(ctx, in, r)
	if err != nil {
		return err
	}
	r.value("jobs leased, 64 pollers on redka", "%9.0f jobs/s", n)
	return pickup(ctx, in, r)
}

var tps = regexp.MustCompile(`tps = ([0-9.]+)`)

// plainLoop is what a queue in PostgreSQL does at the least: find the oldest that nobody holds, and take it, durably.
func plainLoop(ctx context.Context, e env, in *instances) (float64, error) {
	const rows = 2 * leaseJobs
	if err := in.sql(ctx, fmt.Sprintf(`drop table if exists plain_queue;
		create table plain_queue (id bigserial primary key, status text not null, taken_by int, taken_at timestamptz, payload bytea not null);
		insert into plain_queue (status, payload) select 'pending', '{}' from generate_series(1, %d);
		create index on plain_queue (id) where status = 'pending'; analyze plain_queue`, rows)); err != nil {
		return 0, err
	}
	script := filepath.Join(os.TempDir(), filepath.Base(in.pg.Socket())+".sql") // where the cluster's user may read it
	const loop = "begin;\nselect id as job from plain_queue where status = 'pending' order by id limit 1 for update skip locked \\gset\n" +
		"update plain_queue set status = 'offered', taken_by = :client_id, taken_at = clock_timestamp() where id = :job;\ncommit;\n"
	if err := os.WriteFile(script, []byte(loop), 0o644); err != nil {
		return 0, err
	}
	defer os.Remove(script)
	out, err := in.pg.Command(ctx, "pgbench", "-h", in.pg.Socket(), "-U", "agentd", "-n", "-c", strconv.Itoa(leasePollers), "-j", "2", "-M", "prepared",
		"-t", strconv.Itoa(leaseJobs/leasePollers), "-f", script, "postgres").CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("pgbench: %w: %s", err, out)
	}
	m := tps.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("pgbench says no tps: %s", out)
	}
	return strconv.ParseFloat(string(m[1]), 64)
}

// leaseAll submits jobs, and then has 64 pollers take them as fast as they can.
func leaseAll(ctx context.Context, in *instances, r *report) (float64, error) {
	const kind = "lease"
	f, err := fleet.New(fleet.Config{URLs: in.urls, AdminToken: in.token, Agents: 1, Type: kind})
	if err != nil {
		return 0, err
	}
	if err := f.SubmitMany(ctx, leaseJobs, 32, fleet.Job{}); err != nil {
		return 0, err
	}
	base := pooled()
	defer base.CloseIdleConnections()
	var pollers []*protocol.Client
	for i := range leasePollers {
		c, err := linkedVia(ctx, in.all[i%len(in.all)], base, fmt.Sprint("lease.", i), kind)
		if err != nil {
			return 0, err
		}
		pollers = append(pollers, c)
	}
	var wg sync.WaitGroup
	var got atomic.Int64
	faults := make(chan error, leasePollers)
	servers, database, err := in.cpu()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	for i, c := range pollers {
		wg.Go(func() {
			for n := 0; ; n++ {
				job, err := c.NextJob(ctx, protocol.PollRequest{PollID: fmt.Sprintf("p-%d-%d", i, n), Types: []string{kind}})
				if err != nil {
					faults <- err
					return
				}
				if job == nil {
					return
				}
				got.Add(1)
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	close(faults)
	if err := <-faults; err != nil {
		return 0, err
	}
	// A poll that found everything held by others just then has left early; the rest must have gone out once each.
	if n := got.Load(); n < leaseJobs*99/100 || n > leaseJobs {
		return 0, fmt.Errorf("%d jobs were leased of %d", n, leaseJobs)
	}
	serversNow, databaseNow, err := in.cpu()
	if err != nil {
		return 0, err
	}
	each := func(seconds float64) float64 { return 1000 * seconds / float64(got.Load()) }
	r.value("CPU a lease: servers, database", "%s ms", fmt.Sprintf("%9.2f, %.2f", each(serversNow-servers), each(databaseNow-database)))
	return float64(got.Load()) / took.Seconds(), nil
}

// pickup submits jobs at a steady rate to agents that wait at all instances.
func pickup(ctx context.Context, in *instances, r *report) error {
	const agents, jobs, every = 64, 500, 20 * time.Millisecond
	f, err := fleet.New(fleet.Config{URLs: in.urls, AdminToken: in.token, Agents: agents})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	run, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { _ = f.Run(run) })
	if err := f.Linked(ctx); err != nil {
		return err
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for range jobs {
		<-tick.C
		if _, err := f.Submit(ctx, fleet.Job{}); err != nil {
			return err
		}
	}
	if err := f.Completed(ctx, jobs); err != nil {
		return err
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	p := f.Stats().Pickup
	what := "submitted → picked up at 50/s, " + in.kindOf()
	r.value(fmt.Sprintf("%s, p50 of %d", what, p.Count), "%9.2f ms", ms(p.P50))
	r.atMost(what+", p99", "ms", ms(p.P99), 30)
	return nil
}
